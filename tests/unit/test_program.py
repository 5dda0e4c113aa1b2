"""Whole programs: what they are lowered to does on the device what their schedules do, in any order, exactly."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.images import section, table

from rota.columns import Array
from rota.device.model import Device, Order, load
from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import REDUCING, Algorithm, CceType, EncOp
from rota.isa.image import BUFFER, BufferUse, Section
from rota.machine.platform import Platform, load_platform
from rota.meaning import Asked, as_bytes, golden_program, make_program_inputs, request_text
from rota.pipeline import Composed, How, prove
from rota.program import Loaded, Step, asked_of, execute_program, load_program, run_program, steps_of
from rota.request import Request

AR, AG, RS, A2A = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL
RING, MESH, KANGARING, INTRA_RDH = Algorithm.RING, Algorithm.MESH, Algorithm.KANGARING, Algorithm.INTRA_RDH
TRN2, SWITCH = load_platform("trn2.48xlarge"), load_platform("trn3pds98")
EIGHT, SIXTEEN = (tuple(range(8)),), (tuple(range(16)),)
HALVES = (tuple(range(8)), tuple(range(8, 16)))
ACROSS = tuple(tuple(range(lane, 16, 4)) for lane in range(4))
Groups = tuple[tuple[int, ...], ...]


@cache
def made(
    kind: EncOp,
    groups: Groups = EIGHT,
    algorithm: Algorithm | None = None,
    *,
    platform: Platform = TRN2,
    **more: Any,
) -> Composed:
    """Return a collective of 512 elements of bf16 and a sum, unless said otherwise."""
    op = CceType.ADD if kind in REDUCING else None
    usual: dict[str, Any] = {"dtype": Dtype.BFLOAT16, "count": 512, "op": op}
    request = Request(kind, groups=groups, **(usual | more))
    return prove(request, platform, How(algorithm=algorithm, verify=False))


def run_all(
    steps: tuple[Step, ...], *, seeds: int = 3, exact: bool = False, platform: Platform = TRN2, **more: Any
) -> Loaded:
    """Run a program in waves and in random orders; each gives the bits of the schedules, one after another.

    Args:
        exact: the inputs are whole numbers, and the results are what the collectives mean.
    """
    loaded = load_program(steps, platform, **more)
    asked = asked_of(steps)
    inputs = make_program_inputs(asked, loaded.ranks, 5, exact=exact)
    want = execute_program(steps, loaded.ranks, inputs)
    if exact:
        golden = golden_program(asked, loaded.ranks, inputs)
        assert want.keys() == golden.keys()
        for name, value in golden.items():
            assert np.array_equal(want[name], value), name
    device = load(loaded.images)
    raw = {name: as_bytes(value) for name, value in inputs.items()}
    orders = [(Order.WAVES, 0), *((Order.RANDOM, seed) for seed in range(seeds))]
    for order, seed in orders:
        got = device.run_program(raw, order=order, rng=np.random.default_rng(seed))
        assert got.keys() == want.keys()
        for name, value in want.items():
            assert np.array_equal(got[name], value), f"{name} in order {order.value} {seed}"
    return loaded


# --- mixed ------------------------------------------------------------------------------------------------------------

FMA = {"op": CceType.FMA, "scales": (0.5,)}
OWN = {"op": CceType.FMA, "scales": tuple(0.25 * (i + 1) for i in range(16))}


def mixed() -> list[Composed]:
    """Rings, meshes and KangaRings on all ranks and on two partitions, repeated, in place, with scales."""
    return [
        made(AR, SIXTEEN, RING),
        made(AR, SIXTEEN, MESH),
        made(RS, HALVES, RING, dtype=Dtype.FP32),
        made(AR, SIXTEEN, KANGARING),
        made(AR, SIXTEEN, MESH),
        made(AG, ACROSS),
        made(AR, SIXTEEN, RING, in_place=True),
        made(AR, SIXTEEN, RING),
        made(A2A, SIXTEEN),
        made(RS, HALVES, RING, dtype=Dtype.FP32),
        made(AR, SIXTEEN, RING, **FMA),
        made(AR, SIXTEEN, MESH, **OWN),
        made(AR, SIXTEEN, INTRA_RDH, op=CceType.MAX, dtype=Dtype.FP8_EXP4),
        made(AG, HALVES, RING, dtype=Dtype.INT32),
        made(AR, ACROSS, in_place=True, dtype=Dtype.FP16),
    ]


@pytest.mark.parametrize("folds", [1, 2, 4])
def test_a_mixed_program_gives_the_bits_of_its_schedules(folds: int) -> None:
    """In waves and in random order, whatever the folds."""
    loaded = run_all(steps_of(mixed()), seeds=1, folds=folds)
    assert loaded.resources.collectives == 15
    assert loaded.resources.communicators == 3
    assert loaded.resources.entries == sum(loaded.entries)


def test_a_mixed_program_means_what_it_says() -> None:
    """On whole numbers the results are exact, and those of the requests."""
    run_all(steps_of(mixed()), seeds=1, exact=True)


@pytest.mark.parametrize("seed", range(4))
def test_any_program_gives_the_bits_of_its_schedules(seed: int) -> None:
    """Collectives of any kind, algorithm, group and type, in any number and order, some again and again."""
    rng = np.random.default_rng(seed)
    every = mixed()
    chosen = [every[i] for i in rng.integers(0, len(every), 8)]
    run_all(steps_of(chosen), seeds=1, folds=int(rng.choice([1, 2, 8])))


@pytest.mark.parametrize("platform", ["trn1.32xlarge", "trn3pds98"])
def test_programs_of_other_machines(platform: str) -> None:
    """No strong-ordered writes on one, a switch on the other."""
    machine = load_platform(platform)
    kinds = [(AR, None), (AR, RING), (RS, None), (AR, None), (AG, None), (A2A, None), (AR, None), (AR, RING)]
    every = []
    for kind, algorithm in kinds:
        every.append(made(kind, EIGHT, algorithm, platform=machine))
    ran = run_program(every, machine)
    assert [outcome.device_matches for outcome in ran.outcomes] == [True] * len(kinds), ran.not_on_device


# --- the same again ---------------------------------------------------------------------------------------------------


def test_twenty_runs_of_a_ring() -> None:
    """Slots and credits go on from run to run: a run that began with slot 0 again would overwrite what is not read.

    One reduce-scatter of 8 ranks takes 14 credits of 8, so that each run begins with another slot.
    """
    loaded = run_all(steps_of([made(RS, algorithm=RING)] * 20), seeds=3, exact=True)
    one = load_program(steps_of([made(RS, algorithm=RING)]), TRN2)
    for name in ("channels", "semaphores"):
        assert getattr(loaded.resources, name) == getattr(one.resources, name)
    names = [name for name in buffers(loaded) if not name.startswith("t")]
    assert names == [name for name in buffers(one) if not name.startswith("t")], "one scratch for all"


@pytest.mark.parametrize("algorithm", [MESH, KANGARING, INTRA_RDH, Algorithm.SINGLE_STEP_MESH])
def test_runs_of_a_shape_do_not_disturb_each_other(algorithm: Algorithm) -> None:
    """A rank may be a whole run ahead of another: double buffers, handshakes and parities keep them apart."""
    run_all(steps_of([made(AR, SIXTEEN, algorithm)] * 5), seeds=6, exact=True)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [(AR, Algorithm.SINGLE_STEP_MESH), (RS, MESH), (AG, Algorithm.LATENCY_OPT_MESH), (AR, Algorithm.BW_OPT_MESH)],
)
def test_runs_over_the_switch_take_turns_with_two_halves(kind: EncOp, algorithm: Algorithm) -> None:
    """Every second run has the other half of the buffers and, in some meshes, other semaphores; scratch is one."""
    every = steps_of([made(kind, EIGHT, algorithm, platform=SWITCH)] * 5)
    loaded = run_all(every, seeds=4, exact=True, platform=SWITCH)
    one = load_program(every[:1], SWITCH)
    names = [[name for name in buffers(each) if name.startswith("s")] for each in (loaded, one)]
    assert names[0] == names[1]
    two = load_program(every[:2], SWITCH)
    assert loaded.resources.semaphores == two.resources.semaphores == 2 * one.resources.semaphores


# --- tensors ----------------------------------------------------------------------------------------------------------


def buffers(loaded: Loaded) -> dict[str, BufferUse]:
    raw = section(loaded.images[0], Section.BUFFERS)
    found = [BUFFER.decode(raw, at) for at in range(0, len(raw), BUFFER.size)]
    return {row["name"].to_bytes(32, "little").rstrip(b"\0").decode(): BufferUse(row["use"]) for row in found}


def test_each_collective_has_tensors_of_its_own() -> None:
    """An input and an output, which are one in place; scratch is named after its shape."""
    loaded = load_program(steps_of([made(AR, algorithm=RING), made(AR, algorithm=RING, in_place=True)]), TRN2)
    uses = buffers(loaded)
    tensors = {name: use for name, use in uses.items() if name.startswith("t")}
    assert tensors == {
        "t0.in": BufferUse.INPUT, "t0.out": BufferUse.OUTPUT, "t1.in": BufferUse.INPUT | BufferUse.OUTPUT
    }  # fmt: skip
    rest = {name for name in uses if name not in tensors}
    assert {name.split(".")[0] for name in rest} == {"s0", "s1"}
    assert {uses[name] for name in rest} == {BufferUse.INTERNAL}


def test_what_one_collective_leaves_the_next_one_reads() -> None:
    """Reduce-scatter, all-gather and an all-reduce in place on one chain of tensors."""
    parts = [made(RS), made(AG), made(AR, in_place=True), made(AR, algorithm=RING)]
    names = [("x", "shard"), ("shard", "whole"), ("whole", "whole"), ("whole", "last")]
    loaded = run_all(steps_of(parts, names), exact=True)
    uses = buffers(loaded)
    assert uses["x"] == BufferUse.INPUT
    assert all(uses[name] == BufferUse.OUTPUT for name in ("shard", "whole", "last"))


def test_a_tensor_that_others_have_written_is_filled_where_they_have_not() -> None:
    """Ranks 0 to 3 read what they have reduced, ranks 4 to 7 what the host puts there."""
    parts = [made(AR, ((0, 1, 2, 3),)), made(AR, algorithm=RING)]
    loaded = run_all(steps_of(parts, [("x", "y"), ("y", "z")]), exact=True)
    assert buffers(loaded)["y"] == BufferUse.INPUT | BufferUse.OUTPUT


def test_a_tensor_has_one_size() -> None:
    with pytest.raises(UsageError, match="tensor x: used with 1024 and with 128 bytes"):
        load_program(steps_of([made(AR), made(AG)], [("x", "y"), ("x", "z")]), TRN2)


def test_what_is_in_place_is_composed_so() -> None:
    with pytest.raises(UnsupportedError, match="reads tensor x and writes y: it is composed otherwise"):
        steps_of([made(AR, in_place=True)], [("x", "y")])
    with pytest.raises(UnsupportedError, match="composed otherwise"):
        steps_of([made(AR)], [("x", "x")])


# --- what a program is, and what cannot be one ------------------------------------------------------------------------


def test_images_are_of_all_ranks_that_take_part() -> None:
    """Machine ranks, ascending; each knows its place among them."""
    loaded = load_program(steps_of([made(AR, ((4, 5, 6, 7),)), made(AR, ((0, 4),))]), TRN2)
    assert loaded.ranks == (0, 4, 5, 6, 7)
    assert len(loaded.images) == 5
    request = [section(image, Section.REQUEST) for image in loaded.images]
    assert len(set(request)) == 1
    assert request[0] == request_text(asked_of(steps_of([made(AR, ((4, 5, 6, 7),)), made(AR, ((0, 4),))])), 0)
    assert (Section.WORDS, 0) not in table(loaded.images[0])
    words = load_program(steps_of([made(AR)]), TRN2, words=b"\xc7 words")
    assert section(words.images[3], Section.WORDS) == b"\xc7 words"


def test_equal_programs_are_equal_bytes() -> None:
    one, other = (load_program(steps_of(mixed()), TRN2, seed=3) for _ in range(2))
    assert one == other


def test_a_program_that_needs_too_much_runs_on_arrays_alone() -> None:
    """It is proved, executed and timed, and the reason is said."""
    many = [made(AR, ((0, 1, 2, 3),), RING, count=64 + 8 * i) for i in range(17)]  # of two channels each
    ran = run_program(many, TRN2)
    assert ran.resources is None
    assert ran.not_on_device.startswith("more than 32 ring channels on a rank")
    assert [outcome.device_matches for outcome in ran.outcomes] == [None] * 17
    assert {outcome.not_on_device for outcome in ran.outcomes} == {ran.not_on_device}
    assert all(outcome.accuracy.max_ulp is not None for outcome in ran.outcomes)


def test_a_program_that_runs_says_how_well() -> None:
    ran = run_program(mixed(), TRN2, seed=4)
    assert [outcome.device_matches for outcome in ran.outcomes] == [True] * 15
    assert ran.not_on_device == ""
    assert ran.resources is not None
    assert all(outcome.timing is not None for outcome in ran.outcomes)


def test_a_collective_that_moves_nothing_is_part_of_a_program() -> None:
    """All-reduces of one rank, in place: the others go on around them."""
    alone = made(AR, ((0,), (1,), (2,)), in_place=True)
    assert not len(alone.schedule)
    ran = run_program([made(AR), alone, made(AR, algorithm=MESH), alone], TRN2)
    assert [outcome.device_matches for outcome in ran.outcomes] == [True] * 4


# --- against the meaning ----------------------------------------------------------------------------------------------


def test_execute_and_golden_go_through_the_program_in_order() -> None:
    """By hand: two ranks sum 1 and 2, then the sums again, in place; a rank that takes no part keeps what it has."""
    pair = made(AR, ((0, 1),), in_place=True, count=1, dtype=Dtype.FP32)
    asked = asked_of(steps_of([pair, pair], [("x", "x")] * 2))
    inputs = {"x": np.array([[1.0], [2.0], [5.0]], np.float32)}
    for result in (
        golden_program(asked, (0, 1, 9), inputs),
        execute_program(steps_of([pair, pair], [("x", "x")] * 2), (0, 1, 9), inputs),
    ):
        assert result["x"].view(np.float32).tolist() == [[6.0], [6.0], [5.0]]


def test_inputs_are_those_of_each_collective() -> None:
    """By its number and the seed; ranks that read nothing there have zeros."""
    asked = asked_of(steps_of([made(AR, ((4, 5),)), made(AR, ((0, 4, 5, 6, 7, 1, 2, 3),))]))
    found = make_program_inputs(asked, tuple(range(8)), 7, exact=False)
    assert list(found) == ["t0.in", "t1.in"]
    assert [bool(row.any()) for row in found["t0.in"]] == [rank in (4, 5) for rank in range(8)]
    again = make_program_inputs(asked, tuple(range(8)), 7, exact=False)
    other = make_program_inputs(asked, tuple(range(8)), 8, exact=False)
    for name, value in found.items():
        assert value.dtype == numpy_dtype(Dtype.BFLOAT16)
        assert value.tobytes() == again[name].tobytes()
        assert value.tobytes() != other[name].tobytes()


def test_as_bytes_keeps_the_ranks() -> None:
    value: Array = np.arange(6, dtype=np.uint16).reshape(2, 3)
    assert as_bytes(value).tolist() == [[0, 0, 1, 0, 2, 0], [3, 0, 4, 0, 5, 0]]


def test_the_device_has_the_tensors_by_name() -> None:
    """Inputs that are missing are named."""
    steps = steps_of([made(AR), made(AG)])
    loaded = load_program(steps, TRN2)
    device: Device = load(loaded.images)
    with pytest.raises(UsageError, match=r"expected t0\.in, t1\.in"):
        device.run_program({"t0.in": np.zeros((8, 1024), np.uint8)})
    assert [asked.output for asked in asked_of(steps)] == ["t0.out", "t1.out"]
    assert asked_of(steps)[0] == Asked(made(AR).request, "t0.in", "t0.out")
    assert replace(steps[0], input="x") == Step(made(AR), "x", "t0.out")


def test_a_rank_is_in_at_most_twelve_groups() -> None:
    """Compose §1.1, NEC_MAX_COMM_N: a program whose rank is in more groups is refused in one sentence."""
    how = How(any_group=True, verify=False)
    made = [
        prove(Request(EncOp.ALLGATHER, Dtype.FP32, 4, ((0, other),)), load_platform("trn2.48xlarge"), how)
        for other in range(4, 56, 4)
    ]
    assert load_program(steps_of(made[:12]), load_platform("trn2.48xlarge")).resources.communicators == 12
    with pytest.raises(UnsupportedError, match="a rank is in 13 groups, and a program takes 12 communicators"):
        load_program(steps_of(made), load_platform("trn2.48xlarge"))


def test_a_program_in_which_nothing_moves_runs_on_arrays_alone() -> None:
    """Groups of one rank in place have no rows: there is nothing to load, and the result is right."""
    request = Request(EncOp.ALLREDUCE, Dtype.FP32, 4, ((0,), (1,)), CceType.ADD, in_place=True)
    ran = run_program([prove(request, load_platform("trn2.48xlarge"))], load_platform("trn2.48xlarge"))
    assert (ran.resources, ran.not_on_device) == (None, "no rank moves anything: there is nothing to load")
    assert [outcome.accuracy.max_ulp for outcome in ran.outcomes] == [0]
