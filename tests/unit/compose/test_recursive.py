"""Inter-RDH: partners, index sets, rows, windows, and bit-exact results. Source: compose §10."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.compose.slow_recursive import received, scaled_sum, sent, slow_inter

from rota.compose.board import Board, Region
from rota.compose.recursive import (
    MAX_TILES,
    compose_inter_rdh,
    how_of,
    write_all_gather,
    write_all_reduce,
    write_reduce_scatter,
)
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import load_platform
from rota.native.arithmetic import Combine
from rota.request import COMPOSED, Request
from rota.schedule.ir import Leaf, Op, Schedule
from rota.schedule.text import to_text
from rota.select import Plan, Settings, select
from rota.verify import find_data, traffic, verify
from rota.verify.order import find_order

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
TRN2 = load_platform("trn2.48xlarge", nodes=64)
COMBINE = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}
WINDOWS = [
    Settings(),
    Settings(chunk=64, inter_rdh_window=1),
    Settings(chunk=64, inter_rdh_window=3),
    Settings(chunk=128, inter_rdh_window=4),
    Settings(chunk=64, inter_rdh_buffer=352),
]


def nodes(ranks: int, *, local: int = 0, step: int = 1) -> tuple[int, ...]:
    """Return one rank on each node, in an order of its own where `step` is not 1."""
    return tuple(TRN2.node_ranks * (i * step % ranks) + local for i in range(ranks))


def plan(kind: EncOp, count: int, *groups: tuple[int, ...], settings: Settings | None = None, **other: Any) -> Plan:
    op = other.pop("op", CceType.ADD)
    request = Request(kind, other.pop("dtype", Dtype.FP32), count, groups, None if kind is AG else op, **other)
    return select(request, TRN2, settings or Settings())


def composed(kind: EncOp, count: int, *groups: tuple[int, ...], **other: Any) -> Schedule:
    asked = plan(kind, count, *groups, **other)
    schedule = compose_inter_rdh(asked)
    verify(schedule, asked.request)
    assert find_order(schedule) == []
    return schedule


# --- who sends what ---------------------------------------------------------------------------------------------------


def chunks(schedule: Schedule, leaf: Leaf, *, leg: int, size: int, table: str) -> dict[tuple[int, int], set[int]]:
    """Return (round, rank) -> the chunks of the output or input that rows of a leaf name in a table."""
    places, found = getattr(schedule, table), dict[tuple[int, int], set[int]]()
    for row in np.flatnonzero((schedule.rows.leaf == leaf) & (schedule.rows.leg == leg)).tolist():
        key = int(schedule.rows.step[row]), int(schedule.rows.rank[row])
        for entry in range(int(places.ptr[row]), int(places.ptr[row + 1])):
            if schedule.buffers[int(places.buffer[entry])].user:
                found.setdefault(key, set()).add(int(places.offset[entry]) // size)
    return found


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_index_sets_of_the_reduce_scatter(bits: int) -> None:
    """Round b: send base + i 2^(b+1) with base = (2^b xor r's bit b) + r's bits below; receive the same of own bits."""
    n = 1 << bits
    schedule = composed(AR, n * 8, nodes(n))
    sends = chunks(schedule, Leaf.RDH_SEND, leg=0, size=32, table="sources")
    keeps = chunks(schedule, Leaf.RDH_REDUCE, leg=0, size=32, table="targets")
    for number in range(bits):
        for rank in range(n):
            assert sends[number, rank] == set(sent(rank, number, bits))
            assert keeps[number, rank] == set(received(rank, number, bits))


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_index_sets_are_mutual(bits: int) -> None:
    """The send set of r at a round is the receive set of r xor 2^b. Source: compose §15 (3)."""
    n = 1 << bits
    schedule = composed(AR, n * 8, nodes(n))
    sends = chunks(schedule, Leaf.RDH_SEND, leg=0, size=32, table="sources")
    keeps = chunks(schedule, Leaf.RDH_REDUCE, leg=0, size=32, table="targets")
    assert len(sends) == n * bits
    for (number, rank), given in sends.items():
        assert given == keeps[number, rank ^ (1 << number)]


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_index_sets_of_the_all_gather(bits: int) -> None:
    """Round b: send all x equal to r modulo 2^(k-b) to r xor 2^(k-1-b)."""
    n = 1 << bits
    schedule = composed(AR, n * 8, nodes(n))
    sends = chunks(schedule, Leaf.RDH_SEND, leg=1, size=32, table="sources")
    for number in range(bits):
        step = 1 << (bits - number)
        for rank in range(n):
            assert sends[bits + number, rank] == {x for x in range(n) if x % step == rank % step}


@pytest.mark.parametrize("kind", COMPOSED)
def test_partners(kind: EncOp) -> None:
    """A round sends to one partner: r xor 2^b to reduce, r xor 2^(k-1-b) to gather. Source: design §2 (9)."""
    schedule = composed(kind, 8 * 8, nodes(8))
    row = np.flatnonzero(schedule.rows.leaf == Leaf.RDH_SEND)
    to = schedule.targets.rank[schedule.targets.ptr[row]].astype(int) ^ schedule.rows.rank[row]
    step, first = schedule.rows.step[row].astype(int), int(kind is AG)
    gathers = (schedule.rows.leg[row] == 1) | (kind is AG)
    number = np.where(gathers, step - (first if kind is AG else 3), step)
    assert (to == np.where(gathers, 1 << (2 - number), 1 << number)).all()


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("kind", COMPOSED)
def test_steps(kind: EncOp, ranks: int) -> None:
    """A phase takes log2 N steps. Source: platforms §4.2; compose §15 (5)."""
    rows = composed(kind, ranks * 8, nodes(ranks)).rows
    steps = np.unique(rows.step[rows.leaf == Leaf.RDH_SEND]).size
    assert steps == (2 if kind is AR else 1) * (ranks.bit_length() - 1)


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_rows(ranks: int) -> None:
    """One row for each chunk sent and one for each reduced, 3(N-1) of an all-reduce, and one that waits at the end."""
    schedule = composed(AR, ranks * 8, nodes(ranks))
    assert len(schedule) == ranks * (3 * (ranks - 1) + 1)
    assert len(composed(RS, ranks * 8, nodes(ranks))) == ranks * 2 * (ranks - 1)
    assert len(composed(AG, ranks * 8, nodes(ranks))) == ranks * (ranks - 1 + 3)  # enter, own copy, end


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_touches(ranks: int) -> None:
    """In chunks: a gather reads N and writes N, a reduce-scatter reads 3(N-1) and writes 2(N-1); both send N-1."""
    n = ranks
    gather, scatter = (traffic(composed(kind, n * 8, nodes(n))) for kind in (AG, RS))
    assert {*gather.read.tolist(), *gather.written.tolist()} == {n * 32}
    assert set(scatter.read.tolist()) == {3 * (n - 1) * 32}
    assert set(scatter.written.tolist()) == {2 * (n - 1) * 32}
    assert {*gather.sent.tolist(), *scatter.sent.tolist()} == {(n - 1) * 32}
    whole = traffic(composed(AR, n * 8, nodes(n)))
    assert set(whole.sent.tolist()) == {2 * (n - 1) * 32}


# --- semaphores, fences, windows --------------------------------------------------------------------------------------


def test_one_semaphore_for_each_round_and_phase() -> None:
    """Rounds share no semaphore, and with regions for all tiles an all-reduce needs no credit. Source: schedule §4."""
    names = [semaphore.name for semaphore in composed(AR, 64, nodes(8)).semaphores]
    assert names == ["halve.0", "halve.1", "halve.2", "double.0", "double.1", "double.2"]


def test_only_the_last_tile_of_a_round_tells() -> None:
    """In-order completion covers all tiles of a round with one signal, which the first reduction takes."""
    schedule = composed(AR, 64, nodes(8))
    assert schedule.signals.semaphore.size == 8 * 6
    assert schedule.waits.semaphore.size == 8 * 6


def test_fences() -> None:
    """Fenced are the first rows of the rounds behind the first, and of the gather. Source: schedule §2."""
    schedule = composed(AR, 64, nodes(8))
    rows = schedule.rows
    fenced = np.flatnonzero(rows.fence)
    assert (rows.leaf[fenced] == Leaf.RDH_SEND).all()
    assert np.unique(rows.step[fenced]).tolist() == [1, 2, 3]
    assert not composed(AG, 64, nodes(8)).rows.fence.any()


@pytest.mark.parametrize(
    ("settings", "slots", "credits"),
    [
        (Settings(chunk=64), 14, []),
        (Settings(chunk=64, inter_rdh_window=14), 14, []),
        (Settings(chunk=64, inter_rdh_window=9), 9, [8, 1, 0]),
        (Settings(chunk=64, inter_rdh_window=1), 1, [1, 0, 0]),
        (Settings(chunk=64, inter_rdh_buffer=320), 5, [5, 0, 0]),
    ],
)
def test_the_window_is_as_set_or_as_the_scratch_holds(settings: Settings, slots: int, credits: list[int]) -> None:
    """Slots hold all 7 x 2 tiles, the window that is set, or what fits the scratch; then a credit is a slot."""
    schedule = composed(AR, 8 * 32, nodes(8), settings=settings)
    assert next(buffer.size for buffer in schedule.buffers if buffer.name == "slot") == slots * 64
    assert [one.initial for one in schedule.semaphores if one.name.startswith("credit")] == credits


def test_a_small_window_never_has_more_tiles_in_flight() -> None:
    """Between a send and the reduction that frees its slot lie fewer sends than the window."""
    schedule = composed(AR, 8 * 64, nodes(8), settings=Settings(chunk=64, inter_rdh_window=3))
    mine = schedule.rows.leaf[(schedule.rows.rank == 5) & (schedule.rows.leg == 0)]
    ahead = np.cumsum(np.where(mine == Leaf.RDH_SEND, 1, -1))
    assert (ahead.min(), ahead.max()) == (0, 3)


def test_a_reduce_scatter_returns_a_credit_for_each_round() -> None:
    """It has no closing gather, so the next operation must not write to slots that are not yet read."""
    schedule = composed(RS, 64, nodes(8))
    assert {one.name: one.initial for one in schedule.semaphores} == {
        **{f"halve.{b}": 0 for b in range(3)},
        **{f"credit.{b}": 1 for b in range(3)},
    }


def test_only_an_all_gather_of_its_own_enters() -> None:
    """A gather writes to a partner's output at once, so each rank first tells its partners that it is there."""
    schedule = composed(AG, 64, nodes(8))
    assert schedule.rows.leaf[:8].tolist() == [Leaf.RDH_RECV] * 8
    assert {one.name for one in schedule.semaphores} == {f"{n}.{b}" for n in ("ready", "double") for b in range(3)}


def test_tiles_are_at_most_a_chunk() -> None:
    """A shard of 200 bytes in tiles of 64 is 4 rows, the last of 8 bytes."""
    schedule = composed(AG, 8 * 50, nodes(8), settings=Settings(chunk=64))
    sizes = schedule.rows.size[schedule.rows.leaf == Leaf.RDH_SEND]
    assert np.unique(sizes, return_counts=True)[1].tolist() == [7 * 8, 3 * 7 * 8]
    assert (sizes.min(), sizes.max()) == (8, 64)


# --- results ----------------------------------------------------------------------------------------------------------


def values(shape: tuple[int, int], dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers whose sums round."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-100, 100, shape).astype(dtype)
    return (rng.standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("settings", WINDOWS)
@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize(
    ("dtype", "wire", "op"),
    [
        (Dtype.BFLOAT16, ml_dtypes.bfloat16, CceType.ADD),
        (Dtype.FP32, np.float32, CceType.ADD),
        (Dtype.FP8_EXP5, ml_dtypes.float8_e5m2, CceType.ADD),
        (Dtype.FP32, np.float32, CceType.MAX),
        (Dtype.BFLOAT16, ml_dtypes.bfloat16, CceType.MIN),
        (Dtype.INT32, np.int32, CceType.ADD),
    ],
)
def test_bit_for_bit(settings: Settings, kind: EncOp, dtype: Dtype, wire: Any, op: CceType) -> None:
    """Every element is what loops over ranks and rounds give, for two groups at once in orders of their own."""
    count = 8 * 37 if kind is not AR else 301
    groups = nodes(8, step=3), nodes(8, local=5, step=5)
    whole = kind is not AG and np.dtype(wire).kind == "i"
    schedule = composed(kind, count, *groups, settings=settings, dtype=dtype, op=op, integer_as_fp32=whole)
    inputs = values((16, count // (8 if kind is AG else 1)), wire, 7)
    expected = [slow_inter(kind, part, COMBINE[op]) for part in np.split(inputs, 2)]
    assert execute(schedule, inputs).tobytes() == np.concatenate(expected).tobytes()


@pytest.mark.parametrize("settings", WINDOWS[:3])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 4097])
def test_in_place_and_odd_sizes(settings: Settings, count: int) -> None:
    """In place, with fewer elements than ranks, and where the last shards are short or empty."""
    schedule = composed(AR, count, nodes(8), in_place=True, settings=settings, dtype=Dtype.BFLOAT16)
    inputs = values((8, count), ml_dtypes.bfloat16, count)
    assert execute(schedule, inputs).tobytes() == slow_inter(AR, inputs, Combine.ADD).tobytes()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_scaled_sums(ranks: int, in_place: bool) -> None:
    """FMA scales every input once, when it is first read; partials carry scale 1. Source: design §2 (27)."""
    board = Board(ranks=ranks, input_size=96, output_size=96, op=Op.FMA, in_place=in_place)
    how = how_of(TRN2, [tuple(range(ranks))], Settings(chunk=64))
    write_all_reduce(board, how, Region(board.input), Region(board.output), 96)
    inputs = np.arange(ranks * 24, dtype=np.float32).reshape(ranks, 24)
    scale = [float(2 + rank) for rank in range(ranks)]
    wanted = sum(factor * given for factor, given in zip(scale, inputs, strict=True))
    assert (scaled_sum(board.schedule(), inputs, scale) == wanted).all()


def test_legs_of_a_hierarchy() -> None:
    """Scatter and gather work on strided regions of part of the ranks, in the same memory, behind other rows."""
    board = Board(ranks=8, input_size=256, output_size=256, op=Op.ADD)
    members = np.arange(8).reshape(2, 4)
    how = how_of(TRN2, [(0, 1, 2, 3), (4, 5, 6, 7)], Settings())
    source, scratch = Region(board.input, np.array([[0], [32]]), 64), board.buffer("scratch", 32)
    write_reduce_scatter(board.part(members, prefix="a."), how, source, Region(scratch), 32)
    target = Region(board.output, np.array([[0], [32]]), 64)
    inner = board.part(members, leg=1, prefix="b.")
    write_all_gather(inner, how, Region(scratch), target, 32, fence_first=True, entered=True)
    schedule = board.schedule()
    assert find_order(schedule) == []
    inputs = values((8, 64), np.float32, 1)
    got = execute(schedule, inputs)
    for group, first in enumerate((0, 4)):
        mine = np.arange(64) // 8 % 2 == group
        wanted = slow_inter(AR, inputs[first : first + 4, mine], Combine.ADD)
        assert got[first : first + 4, mine].tobytes() == wanted.tobytes()


def test_a_group_of_one_copies() -> None:
    """One rank copies its input to its output; in place there is nothing to do."""
    assert "direct_copy : 0.input+0 -> 0.output+0 40" in to_text(composed(AR, 10, (3,)))
    assert len(composed(AR, 10, (3,), in_place=True)) == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "near"), [(3, "2 or 4"), (6, "4 or 8"), (12, "8 or 16")])
def test_other_than_a_power_of_two(ranks: int, near: str) -> None:
    """It takes N = 2^k ranks."""
    with pytest.raises(UnsupportedError, match=f"halving of {ranks} ranks: expected a power of two; use {near}"):
        compose_inter_rdh(plan(AR, 64, nodes(ranks)))


def test_tiles_that_do_not_fit_the_scratch() -> None:
    """A window of tiles larger than the scratch is refused, not cut."""
    asked = plan(AR, 8 * 4096, nodes(8))
    settings = Settings(chunk=4096, inter_rdh_window=3, inter_rdh_buffer=8192)
    with pytest.raises(
        UnsupportedError, match=r"tiles in flight of inter-RDH take 12K, and .* gives 8K; use a smaller"
    ):
        compose_inter_rdh(replace(asked, settings=settings))


def test_more_tiles_than_a_round_numbers() -> None:
    """Too much data is refused before anything is built."""
    asked = plan(AR, 8 * 64 * (MAX_TILES // 4 + 1) // 4, nodes(8), settings=Settings(chunk=64))
    with pytest.raises(UnsupportedError, match="32772 tiles in a round, and a schedule numbers 32768"):
        compose_inter_rdh(asked)


def test_a_wrong_partner_is_found() -> None:
    """The proof is not empty: with the partner r xor 2^(k-1-b) of one sentence of the source, data are lost."""
    asked = plan(RS, 64, nodes(8))
    good = compose_inter_rdh(asked)
    ranks = good.targets.rank.copy()
    sends = np.flatnonzero(good.rows.leaf == Leaf.RDH_SEND)
    at = good.targets.ptr[sends]
    bit = 1 << good.rows.step[sends].astype(int)
    ranks[at] = ranks[at] ^ bit ^ (4 // bit)
    assert find_data(replace(good, targets=replace(good.targets, rank=ranks)), asked.request)
