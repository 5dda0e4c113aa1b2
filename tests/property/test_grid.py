"""Every case of the grid is proved, does exactly what is asked, and does it bit for bit as its rows say."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backtoback import twice
from tests.exact import results, whole_numbers, wire
from tests.grid import A2A, AG, AR, PLAIN, RINGS, RS, SELECTED, Case, Groups, Machine, Turns, cases, cost, nodes, run
from tests.row_by_row import run_rows

from rota.columns import Array
from rota.compose.extensions import EXTENSIONS, can_all_gather_v
from rota.compose.support import can_compose
from rota.compose.switch.algorithms import compose_switch
from rota.errors import RotaError, UnsupportedError, UsageError
from rota.execute.arrays import execute
from rota.facts import Verdict, yes
from rota.isa.dtypes import INTEGERS, Dtype, numpy_dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.pipeline import How, decide, prove, split
from rota.request import Request
from rota.select.admission import over_switch
from rota.select.choose import Plan
from rota.select.settings import Settings
from rota.verify import find_order

ROOT = Path(__file__).resolve().parents[2]
SEED = 5
PARTS = 8
SWITCH_MESHES = {"MESH", "SINGLE_STEP_MESH", "LATENCY_OPT_MESH", "BW_OPT_MESH"}
LARGE = 1 << 15
"""Inputs of more bytes are looked at for themselves where few cases are chosen."""


def random_inputs(request: Request) -> Array:
    """Return inputs of any bits for integers, of any magnitude around 1 that cannot overflow otherwise."""
    shape = (len(request.members), request.input_size // request.itemsize)
    rng, dtype = np.random.default_rng(SEED), numpy_dtype(request.dtype)
    if request.dtype in INTEGERS:
        bits = rng.integers(0, 256, (shape[0], shape[1] * request.itemsize), np.uint8)
        return bits.view(dtype)
    values = rng.normal(size=shape).astype(np.float32) / np.float32(max(1, request.ranks // 8))
    return values.astype(dtype)


def faults(case: Case) -> list[str]:
    """Return what is wrong with a case that SELECT does not refuse; a wrong proof raises."""
    made = prove(case.request, case.machine.platform, case.how)
    again = prove(case.request, case.machine.platform, replace(case.how, verify=False))
    request, schedule, scales = made.request, made.schedule, made.request.scales
    found = [] if schedule == again.schedule else ["two calls give different schedules"]
    values = whole_numbers(request, SEED)
    whole = execute(schedule, wire(request, values), scales=scales)
    found += _differs("whole numbers", whole, wire(request, results(request, values)), request)
    inputs = random_inputs(request)
    found += _differs(
        "random numbers",
        execute(schedule, inputs, scales=scales),
        run_rows(schedule, inputs, scales=scales),
        request,
        bits=True,
    )
    return found


def _differs(what: str, got: Array, want: Array, request: Request, *, bits: bool = False) -> list[str]:
    one, other = (got, want) if not bits else (got.view(np.uint8), want.view(np.uint8))
    if np.array_equal(one, other):
        return []
    rank, at = np.argwhere(one != other)[0]
    return [f"{what}: rank {rank} element {at} is {one[rank, at]}, expected {other[rank, at]} of {request.ranks} ranks"]


def refusal(case: Case) -> str | None:
    """Return why a case is refused; None where it is composed."""
    try:
        plan, algorithm = decide(case.request, case.machine.platform, case.how)
    except (UnsupportedError, UsageError) as error:
        because = str(error)
    else:
        can = composes(case, plan, algorithm)
        if can:
            return None
        because = can.reason
    assert len(because) > 20, f"{case}: refused without a reason"
    return because


def composes(case: Case, plan: Plan, algorithm: Algorithm) -> Verdict:
    """Return whether there is a composer for what was decided; legs and extensions go by no table."""
    if case.request.gather_counts:
        return can_all_gather_v(plan, case.any_group)
    if case.legs is not None or case.request.kind in EXTENSIONS:
        return yes("by a composer of its own")
    return can_compose(plan, algorithm)


def check(chosen: list[Case]) -> Counter[str]:
    """Run cases; raise with all that is wrong with them. Return how many were composed and how many refused."""
    bad: list[str] = []
    count = Counter[str]()
    for case in chosen:
        because = refusal(case)
        if because is not None:
            count["refused"] += 1
            continue
        try:
            found = faults(case)
        except UnsupportedError as error:
            count["refused by a composer"] += 1
            asked = case.algorithm is not None or case.legs or case.extensions
            bad += [] if asked and len(str(error)) > 20 else [f"{case}: selected and then refused: {error}"]
            continue
        except RotaError as error:
            found = [f"{type(error).__name__}: {error}"]
        count["composed"] += 1
        bad += [f"{case}: {each}" for each in found]
    assert not bad, f"{len(bad)} faults\n" + "\n".join(bad)
    return count


Pair = tuple[str, str, str]


def pair(case: Case) -> Pair | None:
    """Return family with its mesh subtype or legs, operation and platform of a case; None where it is refused."""
    try:
        plan, algorithm = decide(case.request, case.machine.platform, case.how)
    except (UnsupportedError, UsageError):
        return None
    if not composes(case, plan, algorithm):
        return None
    own = case.request.kind in EXTENSIONS or bool(case.request.gather_counts)
    family = "EXTENSION" if own else algorithm.name
    carrier = f" {plan.carrier.name}" if plan.carrier is not None and algorithm is plan.selected and not own else ""
    legs = " ".join(leg.name for leg in case.legs or ())
    return f"{family}{carrier} {legs}".strip(), case.request.kind.name, case.machine.name


@cache
def few() -> tuple[Case, ...]:
    """Return the cheapest case of every pair, found among the cheapest of what is alike at a glance."""
    tried: set[Any] = set()
    refused: set[Any] = set()
    found: dict[Pair, Case] = {}
    for case in sorted(cases(), key=cost):
        ranks, kind = case.request.ranks, case.request.kind
        size = (ranks > 1) + (ranks > 2) + (ranks > 2 and ranks % 6 == 0)
        if case.algorithm is None and kind in (AR, AG, RS):
            size += 4 * (ranks >= 16)
        large = case.settings is PLAIN and (case.request.input_size > LARGE) + (case.request.input_size > 1 << 20)
        settings = case.settings if case.algorithm is None else None
        glance = (case.machine, kind, case.algorithm, case.legs, settings, case.any_group, size, large)
        meshes = case.algorithm in (Algorithm.MESH, Algorithm.SINGLE_STEP_MESH)  # the others refuse a group as such
        forced = (case.machine, case.request.groups, case.algorithm, meshes and kind)
        if glance in tried or (case.algorithm is not None and forced in refused):
            continue
        of = pair(case)
        if of is None:
            refused.add(forced)
        else:
            found.setdefault(of, case)
        if of is not None or case.algorithm is None:
            tried.add(glance)
    return tuple(found.values())


@cache
def sample() -> tuple[Case, ...]:
    """Return a fifth of the grid, at random but always the same, and the few."""
    order = np.random.default_rng(SEED).permutation(len(cases()))[: len(cases()) // 5]
    return (*few(), *(cases()[at] for at in sorted(order.tolist())))


# --- the grid ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_family_operation_and_platform(part: int) -> None:
    """Each family does each of its operations on each platform: proved, exact, bit for bit its rows, twice alike."""
    count = check(list(few()[part::PARTS]))
    assert count["refused"] == count["refused by a composer"] == 0
    assert count["composed"] >= 200 // PARTS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_grid(part: int) -> None:
    """What holds for the cheapest case of each pair holds at every size, type, order and setting; refusals say why."""
    count = check(list(sample()[part::PARTS]))
    assert count["composed"] >= 2000 // PARTS, count
    assert count["refused"] > count["refused by a composer"], count


@pytest.mark.slow
def test_the_few_reach_every_pair() -> None:
    """No family, operation or platform is met in the sample alone."""
    reached = {pair(case) for case in sample()} - {None}
    assert reached - {pair(case) for case in few()} == set()


def test_schedules_do_not_depend_on_hash_seeds() -> None:
    """Two identical requests give byte-identical schedules in two processes with different hash seeds."""
    code = "from tests.property.test_grid import few_digests; print(few_digests())"
    digests = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert len(digests[0]) == 10
    assert digests[0] == digests[1]


def few_digests() -> str:
    """Return a digest of the columns of ten schedules of different families."""
    made = (prove(case.request, case.machine.platform, replace(case.how, verify=False)) for case in _ten())
    return " ".join(
        hashlib.sha256(b"".join(column.tobytes() for column in each.schedule.columns())).hexdigest() for each in made
    )


def _ten() -> list[Case]:
    two, sixteen, node = Machine("trn2.48xlarge", 2), (run(0, 16),), Machine("trn2.48xlarge")
    many, pod = Machine("trn2.48xlarge", 8), Machine("trn2u.48xlarge", 4)
    rings = Settings(mesh=False, chunk=128)
    turns = Turns()
    asked = [
        (node, AR, sixteen, 64, Algorithm.RING),
        (node, AR, sixteen, 64, Algorithm.MESH),
        (node, AG, sixteen, 64, Algorithm.KANGARING),
        (node, RS, sixteen, 64, Algorithm.INTRA_RDH),
        (node, AR, (run(0, 8),), 9, Algorithm.SINGLE_STEP_MESH),
        (many, AR, (nodes(many, 0),), 64, Algorithm.INTER_RDH),
        (many, AR, (nodes(many, 0),), 9, Algorithm.SINGLE_CYCLE_RING),
        (pod, AG, (nodes(pod, 0),), 8, Algorithm.TWO_STEP_POD_MESH),
        (two, AR, (nodes(two, *run(0, 4)), nodes(two, *run(4, 8))), 100, Algorithm.HIER),
        (node, EncOp.PERMUTE_IMPLICIT, sixteen, 100, None),
    ]
    return [
        Case(machine, turns.request(kind, groups, count), rings if algorithm is None else Settings(), algorithm)
        for machine, kind, groups, count, algorithm in asked
    ]


# --- cases of public reports ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(PARTS))
def test_an_operation_may_follow_itself(part: int) -> None:
    """Run back to back on one group, with the same semaphores and slots, no schedule of any family has a finding.

    Consecutive operations of the switch's meshes alternate the halves of the double buffer where they have one.
    """
    found = {}
    for case in few()[part::PARTS]:
        made = prove(case.request, case.machine.platform, replace(case.how, verify=False))
        plan = made.plan
        switch = made.algorithm in SWITCH_MESHES and over_switch(plan.platform, plan.geometries[0])
        findings = find_order(twice(made.schedule, other=compose_switch(plan, parity=1) if switch else None))
        if findings:
            found[str(case)] = str(findings[0])
    assert found == {}


@pytest.mark.parametrize("slots", [3, 4, 5, 7])
@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        *((Algorithm.RING, ranks) for ranks in (2, 4, 8, 16)),
        *((Algorithm.MESH, ranks) for ranks in (2, 4, 8, 16)),
        *((Algorithm.KANGARING, ranks) for ranks in (16, 32)),
        *((Algorithm.INTRA_RDH, ranks) for ranks in (4, 8, 16)),
    ],
)
def test_two_reduce_scatters_back_to_back(family: Algorithm, ranks: int, slots: int) -> None:
    """Two reduce-scatters on one group share slots: the second must not write what the first has not read."""
    request = Turns().request(RS, (run(0, ranks),), 100 * ranks, dtype=Dtype.FP32)
    how = How(settings=Settings(chunk=128, slots=slots, intra_rdh_buffer=1024), algorithm=family)
    made = prove(request, Machine("trn2.48xlarge").platform, how)
    assert find_order(twice(made.schedule)) == []


def test_a_ring_that_begins_with_its_first_slot_again_is_caught() -> None:
    """Credits alone do not keep a slot: a reduce-scatter that restarts its slots writes what has not been read."""
    request = Turns().request(RS, ((0, 4),), 2, dtype=Dtype.FP32)
    made = prove(request, Machine("trn2.48xlarge").platform, How(settings=RINGS))
    assert {finding.rule for finding in find_order(twice(made.schedule, rotates=False))} == {"slot_reuse"}


@pytest.mark.parametrize("machine", [Machine("trn1.32xlarge"), Machine("trn2.48xlarge"), Machine("inf2.48xlarge")])
@pytest.mark.parametrize("kind", [AR, AG, RS, EncOp.PERMUTE_IMPLICIT])
def test_eight_groups_of_one_rank_are_the_identity(machine: Machine, kind: EncOp) -> None:
    """A group of one rank leaves its input in its output."""
    op = CceType.ADD if kind in (AR, RS) else None
    for in_place in (False, True) if kind is AR else (False,):
        request = Request(kind, Dtype.BFLOAT16, 77, tuple((rank,) for rank in range(8)), op, in_place=in_place)
        made = prove(request, machine.platform)
        inputs = random_inputs(request)
        assert np.array_equal(execute(made.schedule, inputs).view(np.uint8), inputs.view(np.uint8))


def test_a_group_of_one_rank_scales_in_place() -> None:
    """In place an fma of one rank multiplies as well: there is no movement, and yet something to do."""
    request = Request(AR, Dtype.FP32, 5, ((0,), (1,)), CceType.FMA, in_place=True, scales=(-2.0,))
    assert faults(Case(Machine("trn1.32xlarge"), request)) == []


def test_groups_of_unequal_sizes_are_no_request() -> None:
    """Uneven groups are refused, never composed with the first group's size."""
    with pytest.raises(UsageError, match="equal sizes"):
        Request(AG, Dtype.FP32, 12, (run(0, 4), run(4, 6)))


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize(
    ("machine", "groups"),
    [
        (Machine("trn1.32xlarge"), (run(0, 4), (4, 6, 12, 14), run(8, 12))),
        (Machine("trn2.48xlarge", 2), (run(0, 4), (4, 5, 68, 69), run(8, 12), (6, 7, 70, 71))),
    ],
    ids=["channels", "algorithms"],
)
def test_unlike_groups_are_composed_one_by_one(machine: Machine, groups: Groups, kind: EncOp) -> None:
    """Groups of one size that get different algorithms or channels become requests of their own, which do it all."""
    request = Turns().request(kind, groups, 64, dtype=Dtype.FP32)
    parts = split(request, machine.platform, How(settings=RINGS))
    assert len(parts) > 1
    assert sorted(group for part in parts for group in part.groups) == sorted(groups)
    assert check([Case(machine, part, RINGS) for part in parts])["composed"] == len(parts)


@pytest.mark.parametrize("kind", [AR, AG, RS, A2A])
@pytest.mark.parametrize(
    ("machine", "group"),
    [
        (Machine("trn2.48xlarge"), run(0, 64, 4)),
        (Machine("trn2.48xlarge"), run(3, 64, 4)),
        (Machine("trn1.32xlarge"), run(0, 32, 2)),
        (Machine("inf2.48xlarge"), run(1, 24, 2)),
        (Machine("trn3pds98"), run(0, 64, 4)),
        (Machine("trn3pds98"), run(0, 64, 16)),
        (Machine("trn3pds98"), run(5, 128, 16)),
    ],
    ids=["trn2", "trn2 lane 3", "trn1", "inf2", "chips of the switch", "sleds", "sleds of racks"],
)
def test_one_rank_on_each_chip_or_sled(machine: Machine, group: tuple[int, ...], kind: EncOp) -> None:
    """Groups of one rank on each chip, and on each sled of a rack, are composed, or refused with a reason."""
    turns = Turns()
    alone = check([Case(machine, turns.request(kind, (group,), 16 * len(group)), each) for each in SELECTED[1:4]])
    forced = [Case(machine, turns.request(kind, (group,), 3 * len(group)), PLAIN, each) for each in Algorithm]
    several = check([case for case in forced if case.algorithm is not Algorithm.INVALID])
    assert kind is A2A or alone["composed"] + several["composed"] > 0
