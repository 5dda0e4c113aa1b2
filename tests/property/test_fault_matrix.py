"""Every fault on every family of algorithms, in both orders of the device model: how a run under a fault may end.

It ends in the right result, in an error of ours that says why, or in a result that the golden check calls wrong; within
as many steps as the program has, never in another exception, and what is right is never called wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pytest
from tests.grid import A2A, AG, AR, RS, Case, Groups, Machine, nodes, run

from rota.device.model import Device, Order
from rota.errors import RotaError, StuckError, VerifyError
from rota.faults import (
    SECTIONS,
    Fault,
    FaultKind,
    Prepared,
    check_programs,
    orders_of,
    parse_fault,
    prepare,
    sections_of,
)
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.meaning import as_bytes, golden_program, make_program_inputs
from rota.pipeline import Composed, prove, runnable
from rota.program import Loaded, Step, asked_of, execute_program, load_program, steps_of
from rota.request import Request
from rota.select.settings import Settings

TRN2, NODES, POD = Machine("trn2.48xlarge"), Machine("trn2.48xlarge", 2), Machine("trn2u.48xlarge", 4)
SWITCH, MANY, INF2 = Machine("trn3pds98", 2), Machine("trn2.48xlarge", 8), Machine("inf2.48xlarge")
LEGS = Settings(hier_mode=1, chunk=256, slots=3, mesh_channel_buffer=2048)
PIPELINED = Settings(hier_mode=1, chunk=128, hier_pipeline=2, mesh=False)
KANGARING = Settings(chunk=192, kangaring_mode=1, hier_mode=2, mesh=False, hybrid_ring=False, rdh_mode=0)
EVERY_OTHER = run(0, 24, 2)


def asked(kind: EncOp, group: tuple[int, ...], count: int, dtype: Dtype = Dtype.BFLOAT16) -> Request:
    """Return a sum, or a movement around the group."""
    pairs = tuple(zip(group, (*group[1:], *group[:1]), strict=True)) if kind is EncOp.PERMUTE else ()
    groups: Groups = (group,)
    return Request(kind, dtype, count, groups, CceType.ADD if kind in (AR, RS) else None, pairs=pairs)


RING, MESH = Algorithm.RING, Algorithm.MESH
FAMILIES = {
    "RING": Case(TRN2, asked(AR, run(0, 4), 4 * 80), Settings(chunk=128), RING),
    "KANGARING": Case(SWITCH, asked(RS, nodes(SWITCH, *run(0, 4)), 8 * 40), KANGARING, Algorithm.KANGARING),
    "MESH": Case(TRN2, asked(AR, run(0, 8), 8 * 40), Settings(), MESH),
    "MESH grouped": Case(INF2, asked(AG, EVERY_OTHER, 12 * 20), Settings(), MESH),
    "SINGLE_STEP_MESH": Case(TRN2, asked(AR, run(0, 4), 70), Settings(), Algorithm.SINGLE_STEP_MESH),
    "INTRA_RDH": Case(TRN2, asked(AR, run(0, 4), 4 * 50, Dtype.FP32), Settings(), Algorithm.INTRA_RDH),
    "INTER_RDH": Case(MANY, asked(AR, nodes(MANY, 0), 8 * 20), Settings(), Algorithm.INTER_RDH),
    "SINGLE_CYCLE_RING": Case(NODES, asked(AR, nodes(NODES, 0), 90), Settings(), Algorithm.SINGLE_CYCLE_RING),
    "TWO_STEP_POD_MESH": Case(POD, asked(AR, nodes(POD, 0), 4 * 40), Settings(), Algorithm.TWO_STEP_POD_MESH),
    "HIER RING RING": Case(NODES, asked(AR, nodes(NODES, *run(0, 4)), 8 * 20), LEGS, legs=(RING, RING)),
    "HIER pipelined": Case(NODES, asked(AR, nodes(NODES, *run(0, 4)), 8 * 25), PIPELINED, legs=(RING, RING)),
    "HIER MESH MESH": Case(NODES, asked(AG, nodes(NODES, *run(0, 4)), 8 * 20), LEGS, legs=(MESH, MESH)),
    "LATENCY_OPT_MESH": Case(SWITCH, asked(AR, nodes(SWITCH, *run(0, 4)), 40), algorithm=Algorithm.LATENCY_OPT_MESH),
    "BW_OPT_MESH": Case(SWITCH, asked(AR, nodes(SWITCH, *run(0, 4)), 8 * 20), algorithm=Algorithm.BW_OPT_MESH),
    "PERMUTE": Case(TRN2, asked(EncOp.PERMUTE, run(0, 4), 60), any_group=True),
    "ALLTOALL": Case(TRN2, asked(A2A, run(0, 4), 4 * 30, Dtype.FP32)),
}


@dataclass(frozen=True)
class Family:
    """A program of two collectives of one family, the second twice as large, on inputs whose result is exact."""

    name: str

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        case = FAMILIES[self.name]
        both = [case.request, replace(case.request, count=2 * case.request.count)]
        made: list[Composed] = [prove(each, case.machine.platform, replace(case.how, verify=False)) for each in both]
        return steps_of([replace(each, schedule=runnable(each.schedule)) for each in made])

    @cached_property
    def whole(self) -> Loaded:
        return load_program(self.steps, FAMILIES[self.name].machine.platform)

    @cached_property
    def requests(self) -> list[Request]:
        return [step.made.request for step in self.steps]

    def loaded(self, faults: list[Fault]) -> Loaded:
        """Return the program, emitted anew where a rank has another one."""
        orders = orders_of(faults, self.requests)
        if not orders:
            return self.whole
        return load_program(self.steps, FAMILIES[self.name].machine.platform, orders=orders)

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        inputs = make_program_inputs(asked_of(self.steps), self.whole.ranks, 0, exact=True)
        return {name: as_bytes(value) for name, value in inputs.items()}

    @cached_property
    def want(self) -> dict[str, np.ndarray]:
        inputs = make_program_inputs(asked_of(self.steps), self.whole.ranks, 0, exact=True)
        want = execute_program(self.steps, self.whole.ranks, inputs)
        golden = golden_program(asked_of(self.steps), self.whole.ranks, inputs)
        assert all(np.array_equal(want[name], golden[name]) for name in want), "what is right is never called wrong"
        return want


@cache
def family(name: str) -> Family:
    return Family(name)


@dataclass
class Watch:
    """Sees that every step happens once, and that ticks are no more than what there is to do."""

    device: Device
    ticks: int

    def __post_init__(self) -> None:
        self.seen = np.zeros(self.device.program.steps, np.bool_)
        self.most = self.device.program.steps + self.device.items.count + self.ticks + 2

    def __call__(self, tick: int, steps: np.ndarray) -> None:
        assert not self.seen[steps].any(), "no step happens twice"
        assert tick <= self.most, "no more ticks than steps, packets, and ticks that something is late"
        self.seen[steps] = True


End = tuple[str, str]
"""How a run ends: right, wrong or the name of an error; and what the error says."""


def fates(name: str, faults: list[Fault], orders: Sequence[tuple[Order, int]]) -> list[End]:
    """Return how runs in several orders, of these seeds, end."""
    one = family(name)
    loaded = one.loaded(faults)
    try:
        prepared = prepare(loaded.images, loaded.ranks, faults, entries=loaded.entries)
    except RotaError as error:
        return [(type(error).__name__, str(error))] * len(orders)
    return [_end(one, prepared, sum(fault.get("ticks") or 0 for fault in faults), *each) for each in orders]


def _end(one: Family, prepared: Prepared, late: int, order: Order, seed: int) -> End:
    device, watch = prepared.device, Watch(prepared.device, late)
    rng, disturbance = np.random.default_rng(seed), prepared.disturbance
    try:
        got = device.run_program(one.inputs, order=order, rng=rng, disturbance=disturbance, observe=watch)
    except RotaError as error:
        return type(error).__name__, str(error)
    same = all(np.array_equal(got[output], one.want[output]) for output in one.want)
    return ("right" if same else "wrong"), ""


def flips(name: str, rank: int, rng: np.random.Generator, each: int) -> Iterator[str]:
    """Yield flips of bits in every section that a rank has."""
    loaded = family(name).whole
    parts = sections_of(loaded.images[loaded.ranks.index(rank)])
    for section, kind in SECTIONS.items():
        size = sum(size for (found, _), (_, _, size) in parts.items() if found is kind)
        for _ in range(each if size else 0):
            yield f"flip:rank={rank},section={section},byte={rng.integers(size)},bit={rng.integers(8)}"


def faults_of(name: str, rank: int, rng: np.random.Generator, *, signals: int, each: int) -> Iterator[str]:
    """Yield faults of one rank, of every kind."""
    for collective in range(2):
        for kind in ("drop", "double", "delay", "early"):
            ticks = ",ticks=9" if kind == "delay" else ""
            yield f"{kind}:rank={rank}{ticks},collective={collective}"
            for nth in range(signals):
                yield f"{kind}:rank={rank}{ticks},collective={collective},nth={nth}"
        yield f"skip:rank={rank},collective={collective}"
    yield from (f"kill:rank={rank}{tick}" for tick in ("", ",tick=0", ",tick=5"))
    yield from (f"late:rank={rank},ticks={ticks}" for ticks in (11, 10**9))
    yield from (f"credits:rank={rank}{value}" for value in ("", ",value=1"))
    yield f"swap:rank={rank},collectives=0+1"
    yield from flips(name, rank, rng, each)


def check(name: str, text: str, orders: Sequence[tuple[Order, int]]) -> Counter[str]:
    """Run one fault in several orders; raise where it ends as it must not, else return how often it ends how."""
    fault = parse_fault(text)
    count = Counter[str]()
    for (order, seed), (ended, says) in zip(orders, fates(name, [fault], orders), strict=True):
        where = f"{name} {text} {order.value} {seed}: {ended} {says}"
        match fault.kind:
            case FaultKind.LATE | FaultKind.DELAY:
                assert ended == "right" or "performs" in says, where
            case FaultKind.KILL if fault.get("tick") in (None, 0):
                assert ended == "StuckError", where
                assert f"rank {fault.rank} was killed at tick" in says.partition("\n")[0], where
            case FaultKind.SKIP | FaultKind.SWAP:
                assert ended == "StuckError", where
                assert re.search(rf"ranks? (\d+, )*{fault.rank}(, \d+)* (never|ha)", says.partition("\n")[0]), where
            case _:
                assert ended in ("right", "wrong", "StuckError", "DecodeError", "UsageError"), where
        count[ended if ended in ("right", "wrong") else "named error"] += 1
    return count


def check_all(name: str, rank: int, *, signals: int, each: int, seeds: int) -> Counter[str]:
    """Run all faults of a rank in waves and in several random orders."""
    orders = [(Order.WAVES, 0), *((Order.RANDOM, seed) for seed in range(seeds))]
    found = faults_of(name, rank, np.random.default_rng(rank), signals=signals, each=each)
    return sum((check(name, text, orders) for text in found), Counter[str]())


def middle(name: str) -> int:
    """Return a rank in the middle of a family's group."""
    ranks = family(name).whole.ranks
    return ranks[len(ranks) // 2]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_fault_ends_named_right_or_reported(name: str) -> None:
    """One rank, one signal of each collective, one flip in each section, one random order."""
    count = check_all(name, middle(name), signals=0, each=1, seeds=1)
    assert {"named error", "right"} <= count.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_fault_of_every_rank_ends_named_right_or_reported(name: str) -> None:
    """All ranks, the first signals too, more flips, two random orders."""
    count = Counter[str]()
    for rank in family(name).whole.ranks:
        count += check_all(name, rank, signals=2, each=4, seeds=2)
    assert {"named error", "right"} <= count.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_programs_that_differ_are_told_before(name: str) -> None:
    """A collective left out, or two in another order: the verifier names the rank, whatever the algorithm."""
    one = family(name)
    rank = middle(name)
    for text in (
        f"skip:rank={rank},collective=0",
        f"skip:rank={rank},collective=1",
        f"swap:rank={rank},collectives=0+1",
    ):
        with pytest.raises(VerifyError, match=rf"rank {rank}\b"):
            check_programs(one.requests, orders_of([parse_fault(text)], one.requests))
    check_programs(one.requests, {})


def test_two_faults_at_once() -> None:
    """What one of them does the other does not hide: a rank that is late and a signal that is lost."""
    late, lost = parse_fault("late:rank=1,ticks=30"), parse_fault("drop:rank=2,nth=3")
    for ended, says in fates("RING", [late, lost], [(order, 0) for order in Order]):
        assert ended == StuckError.__name__
        assert "was dropped" in says
