"""The single-cycle ring: raw inputs go round once, and every rank reduces them in rank order. Source: compose §8."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.compose.slow_recursive import scaled_sum, slow_single_cycle

from rota.compose.board import Board, Region
from rota.compose.single_cycle import compose_single_cycle, how_of, write_all_reduce
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import Platform, load_platform
from rota.native.arithmetic import Combine
from rota.request import Request
from rota.schedule.ir import Leaf, Op, Schedule
from rota.select import Plan, Settings, select
from rota.verify import traffic, verify
from rota.verify.order import find_order

TRN2 = load_platform("trn2.48xlarge", nodes=64)
TRN1 = load_platform("trn1.32xlarge", nodes=64)
COMBINE = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}


def nodes(ranks: int, *, local: int = 0, platform: Platform = TRN2, shuffle: int | None = None) -> tuple[int, ...]:
    """Return one rank on each node, ascending or in an order of its own."""
    order = range(ranks) if shuffle is None else np.random.default_rng(shuffle).permutation(ranks).tolist()
    return tuple(platform.node_ranks * node + local for node in order)


def plan(count: int, *groups: tuple[int, ...], platform: Platform = TRN2, **other: Any) -> Plan:
    op, settings = other.pop("op", CceType.ADD), other.pop("settings", Settings())
    request = Request(EncOp.ALLREDUCE, other.pop("dtype", Dtype.FP32), count, groups, op, **other)
    return select(request, platform, settings)


def composed(count: int, *groups: tuple[int, ...], **other: Any) -> Schedule:
    asked = plan(count, *groups, **other)
    schedule = compose_single_cycle(asked)
    verify(schedule, asked.request)
    assert find_order(schedule) == []
    return schedule


@pytest.mark.parametrize("ranks", [2, 3, 8, 33])
def test_steps_and_bytes(ranks: int) -> None:
    """N-1 hops, (N-1) B bytes of each rank. Source: compose §8; §15 (5) and (6)."""
    schedule = composed(100, nodes(ranks))
    moved = traffic(schedule)
    assert set(moved.sent.tolist()) == {(ranks - 1) * 400}
    assert set(moved.sends.tolist()) == {ranks - 1}
    assert int(schedule.rows.step.max()) == ranks - 1


@pytest.mark.parametrize("ranks", [2, 5, 16, 32])
def test_touches(ranks: int) -> None:
    """In buffers: one read for each hop and N at the end; a write for each of the N slots and the output."""
    moved = traffic(composed(100, nodes(ranks)))
    assert set(moved.read.tolist()) == {(ranks - 1 + ranks) * 400}
    assert set(moved.written.tolist()) == {(ranks + 1) * 400}


def test_raw_inputs_go_round() -> None:
    """Step j sends the raw input of the rank j places before; nothing is reduced before the end."""
    schedule = composed(8, nodes(5))
    ring = [schedule.targets.rank[schedule.targets.ptr[rank] + 1] for rank in range(5)]
    before = {int(after): rank for rank, after in enumerate(ring)}
    for row in np.flatnonzero(schedule.rows.leaf == Leaf.DIRECT_RECV_SEND).tolist():
        origin = int(schedule.rows.rank[row])
        for _ in range(int(schedule.rows.step[row])):
            origin = before[origin]
        source, target = int(schedule.sources.ptr[row]), int(schedule.targets.ptr[row])
        assert schedule.sources.offset[source] == schedule.targets.offset[target] == origin * 32
    last = schedule.rows.leaf == Leaf.RECV_REDUCE_COPY
    assert (schedule.rows.op[~last] == Op.NONE).all()
    assert int(last.sum()) == 5


def test_all_ranks_reduce_in_rank_order() -> None:
    """The sources of every rank's reduction are the slots of ranks 0, 1, 2, ... Source: design §2 (10)."""
    schedule = composed(8, nodes(5, shuffle=1))
    for row in np.flatnonzero(schedule.rows.leaf == Leaf.RECV_REDUCE_COPY).tolist():
        entries = slice(int(schedule.sources.ptr[row]), int(schedule.sources.ptr[row + 1]))
        assert schedule.sources.offset[entries].tolist() == [0, 32, 64, 96, 128]


def test_the_ring_is_the_machines() -> None:
    """A rank sends to the next of the first ring the group is wired with, whatever the order of the group."""
    asked = plan(8, nodes(8, shuffle=2))
    schedule, group = compose_single_cycle(asked), asked.request.groups[0]
    order = asked.wirings[0].channels[0].order
    for i, rank in enumerate(order):
        member = group.index(rank)
        to = int(schedule.targets.rank[schedule.targets.ptr[member] + 1])
        assert group[to] == order[(i + 1) % 8]


def test_slots_are_credits() -> None:
    """A rank has N slots; N-1 of them are the next one's credit, which its reduction returns at once."""
    schedule = composed(10, nodes(6))
    assert {one.name: one.initial for one in schedule.semaphores} == {"recv": 0, "credit": 5}
    assert {buffer.name: buffer.size for buffer in schedule.buffers if not buffer.user} == {"slot": 6 * 64}
    returned = schedule.signals.add[schedule.signals.semaphore == 1]
    assert returned.tolist() == [5] * 6


def test_a_row_with_one_target() -> None:
    """Trn1 does not duplicate: step 0 is a copy and a send. Source: design §2 (19)."""
    schedule = composed(10, nodes(4, platform=TRN1), platform=TRN1)
    assert int(np.diff(schedule.targets.ptr).max()) == 1
    assert schedule.rows.leaf[:8].tolist() == [Leaf.DIRECT_COPY] * 4 + [Leaf.SEND] * 4


def values(shape: tuple[int, int], dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers whose sums round."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-100, 100, shape).astype(dtype)
    return (rng.standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 8, 32, 33, 63, 64])
@pytest.mark.parametrize(
    ("dtype", "wire", "op"),
    [
        (Dtype.BFLOAT16, ml_dtypes.bfloat16, CceType.ADD),
        (Dtype.FP32, np.float32, CceType.ADD),
        (Dtype.FP8_EXP5, ml_dtypes.float8_e5m2, CceType.MAX),
        (Dtype.INT32, np.int32, CceType.MIN),
    ],
)
def test_bit_for_bit(ranks: int, dtype: Dtype, wire: Any, op: CceType, *, in_place: bool) -> None:
    """Every rank ends with one fold of all inputs in rank order, two groups at once, odd sizes."""
    groups = nodes(ranks, shuffle=4), nodes(ranks, local=5, shuffle=5)
    integers = np.dtype(wire).kind == "i"
    schedule = composed(37, *groups, dtype=dtype, op=op, in_place=in_place, integer_as_fp32=integers)
    inputs = values((2 * ranks, 37), wire, ranks)
    expected = [slow_single_cycle(part, COMBINE[op]) for part in np.split(inputs, 2)]
    assert execute(schedule, inputs).tobytes() == np.concatenate(expected).tobytes()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 5, 40])
def test_scaled_sums(ranks: int, *, in_place: bool) -> None:
    """FMA scales every input once, on its first hop: all ranks fold the same numbers. Source: design §2 (27)."""
    board = Board(ranks=ranks, input_size=96, output_size=96, op=Op.FMA, in_place=in_place)
    how = how_of(TRN2, [nodes(ranks)], Settings())
    write_all_reduce(board, how, Region(board.input), Region(board.output), 96)
    inputs = np.arange(ranks * 24, dtype=np.float32).reshape(ranks, 24)
    scale = [float(2 + rank) for rank in range(ranks)]
    wanted = sum(factor * given for factor, given in zip(scale, inputs, strict=True))
    assert (scaled_sum(board.schedule(), inputs, scale) == wanted).all()


def test_a_leg_of_a_hierarchy() -> None:
    """The outer leg of several groups at once works in scratch, behind other rows of the queue."""
    board = Board(ranks=6, input_size=64, output_size=64, op=Op.ADD)
    scratch = board.buffer("scratch", 64)
    me = board.position
    board.rows(Leaf.DIRECT_COPY, me, size=64, reads=[Region(board.input).at()], writes=[Region(scratch).at()])
    how = how_of(TRN2, [nodes(3), nodes(3, local=1)], Settings())
    part = board.part(np.array([[0, 2, 4], [1, 3, 5]]), leg=1, prefix="outer.")
    write_all_reduce(part, how, Region(scratch), Region(board.output), 64, fence_first=True)
    schedule = board.schedule()
    assert find_order(schedule) == []
    inputs = np.arange(96, dtype=np.float32).reshape(6, 16)
    wanted = np.stack([inputs[rank % 2 :: 2].sum(axis=0) for rank in range(6)])
    assert (execute(schedule, inputs) == wanted).all()


def test_at_most_one_chunk() -> None:
    """A buffer of more than one chunk is refused: every rank keeps all of them."""
    assert len(composed(16, nodes(4), settings=Settings(chunk=64))) == 4 * 4
    with pytest.raises(UnsupportedError, match="single-cycle ring of 68: expected at most one chunk of 64; use less"):
        compose_single_cycle(plan(17, nodes(4), settings=Settings(chunk=64)))
