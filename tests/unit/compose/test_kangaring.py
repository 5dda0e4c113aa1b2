"""KangaRing, row by row: the tables of compose §7.2 as plain loops, held equal to what is composed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.compose.slow_kangaring import AG, AR, RS, SlowKangaRing, slow_numbers

from rota.compose.board import Board, Op, Region
from rota.compose.cut import Cut, cut
from rota.compose.kangaring import (
    KangaRings,
    compose_kangaring,
    how_of,
    write_all_gather,
    write_all_reduce,
    write_reduce_scatter,
)
from rota.compose.ring import compose_ring
from rota.errors import UnsupportedError, UsageError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.group import wire
from rota.machine.kangaring import kanga_paths
from rota.machine.platform import Platform, load_platform
from rota.native.arithmetic import Combine
from rota.request import Request
from rota.schedule.ir import Leaf, Schedule
from rota.schedule.text import to_text
from rota.select import Plan, Selector, Settings
from rota.select.settings import RING_CHUNK
from rota.verify import traffic, verify
from rota.verify.order import find_order

PATHS = {
    (1, 2): [[[1, 0]]],
    (2, 2): [[[0, 1], [3, 2]], [[2, 3], [1, 0]]],
    (3, 2): [[[4, 0], [1, 5], [2, 3]]],
    (4, 2): [[[1, 0], [2, 3], [5, 4], [7, 6]], [[6, 7], [4, 5], [3, 2], [0, 1]]],
    (1, 4): [[[3, 0, 2, 1]]],
    (2, 4): [[[2, 0, 1, 3], [4, 6, 7, 5]], [[5, 7, 6, 4], [3, 1, 0, 2]]],
}
"""(P, G) -> a path for each channel."""
SENDS = (Leaf.DIRECT_REDUCE_SEND_KANGARING, Leaf.RECV_REDUCE_SEND, Leaf.DIRECT_COPY_SEND, Leaf.DIRECT_RECV_SEND)


def rings(paths: Any, **other: Any) -> KangaRings:
    """Return the paths of one group as an array with all axes."""
    return KangaRings(np.asarray(paths)[:, None], **other)


def board_for(how: KangaRings, kind: EncOp, size: int, *, op: Op = Op.ADD, in_place: bool = False) -> Board:
    ranks = how.primaries * how.group_size
    return Board(
        ranks=ranks,
        groups=how.members.shape[1],
        input_size=size // ranks if kind is AG else size,
        output_size=size // ranks if kind is RS else size,
        op=Op.NONE if kind is AG else op,
        in_place=in_place,
    )


def compose(how: KangaRings, kind: EncOp, size: int, *, op: Op = Op.ADD, in_place: bool = False) -> Schedule:
    board = board_for(how, kind, size, op=op, in_place=in_place)
    shard = size // board.ranks
    if kind is RS:
        write_reduce_scatter(board, how, Region(board.input, 0, shard), Region(board.output), shard)
    elif kind is AG:
        write_all_gather(board, how, Region(board.input), Region(board.output, 0, shard), shard)
    else:
        write_all_reduce(board, how, Region(board.input), Region(board.output), size)
    return board.schedule()


def pieces_of(how: KangaRings, kind: EncOp, size: int) -> Cut:
    ranks = how.primaries * how.group_size
    return cut(kind, size, ranks=ranks, channels=how.channels, halves=how.halves, chunk=how.chunk)


def plan_for(platform: Platform, groups: tuple[tuple[int, ...], ...], kind: EncOp, count: int, **other: Any) -> Plan:
    settings = other.pop("settings", Settings())
    dtype, op = other.pop("dtype", Dtype.FP32), None if kind is AG else other.pop("op", CceType.ADD)
    return Selector(platform, settings).select(Request(kind, dtype, count, groups, op, **other))


def node(lnc: int) -> tuple[Platform, tuple[int, ...]]:
    platform = load_platform("trn2.48xlarge", lnc=lnc)
    return platform, tuple(range(platform.ranks))


def row_0() -> tuple[Platform, tuple[tuple[int, ...], ...]]:
    """Return a machine and its four rows of chips, members of some of them not in ascending order."""
    rows = [tuple(range(16 * i, 16 * i + 16)) for i in range(4)]
    return load_platform("trn2.48xlarge"), (rows[0], rows[1][::-1], (*rows[2][5:], *rows[2][:5]), rows[3])


# --- rows -----------------------------------------------------------------------------------------------------------


def rows_by_lane(schedule: Schedule) -> dict[str, list[str]]:
    lanes = defaultdict(list)
    for line in to_text(schedule).splitlines():
        if line[0].isdigit():
            lanes[line.split()[0]].append(line)
    return lanes


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize(("size", "chunk", "slots"), [(3072, RING_CHUNK, 8), (3072 + 72, 64, 3), (24, 128, 4)])
def test_every_row(kind: EncOp, shape: tuple[int, int], halves: int, size: int, chunk: int, slots: int) -> None:
    """Who moves which chunk from where to where at each step, with which waits and signals. Source: compose §7.2.

    One pass, several chunk groups with a small last one, and less data than pieces; in halves and whole.
    """
    paths, ranks = PATHS[shape], shape[0] * shape[1]
    size = size // ranks * ranks
    how = rings(paths, slots=slots, chunk=chunk, halves=halves)
    lanes, pieces = rows_by_lane(compose(how, kind, size)), pieces_of(how, kind, size)
    expected = {}
    for channel, path in enumerate(paths):
        for at, core in enumerate(path):
            slow = SlowKangaRing(kind, path, at, channel, pieces, slots)
            expected |= {f"{rank}.{channel}": slow.of_secondary(rank) for rank in core[1:]}
            expected[f"{core[0]}.{channel}"] = list(slow.lines())
    assert dict(lanes) == expected


@pytest.mark.parametrize("kind", [AR, AG, RS])
def test_rows_are_stored_step_after_step(kind: EncOp) -> None:
    """Stored order is chunk group, then step, then half: H0 of all primaries before H1."""
    rows = compose(rings(PATHS[4, 2], chunk=64), kind, 8 * 2 * 64 * 3).rows
    moves = rows.size > 0
    key = (rows.part.astype(np.int64) // 2 << 24) + (rows.step.astype(np.int64) << 8) + rows.part % 2
    assert (np.diff(key[moves]) >= 0).all()


def test_one_row_of_many_sources_or_targets_never_two_copies() -> None:
    """Compose §7.1: a reduction is 3R1W (5R1W at LNC 1), a gather 1R2W (1R4W): members are sources or targets of a row.

    The first reduction reads the members alone, and the first gather also serves the owner of the chunk.
    """
    for shape, members in (((4, 2), 2), ((2, 4), 4)):
        for kind in (RS, AG):
            schedule = compose(rings(PATHS[shape]), kind, 8 * 256)
            rows, moves = schedule.rows, schedule.rows.size > 0
            shapes = {
                (Leaf(leaf), reads, writes)
                for leaf, reads, writes in zip(
                    rows.leaf[moves],
                    np.diff(schedule.sources.ptr)[moves].tolist(),
                    np.diff(schedule.targets.ptr)[moves].tolist(),
                    strict=True,
                )
            }
            middle = shape[0] > 2
            if kind is RS:
                expected = {
                    (Leaf.DIRECT_REDUCE_SEND_KANGARING, members, 1),
                    *([(Leaf.RECV_REDUCE_SEND, members + 1, 1)] * middle),
                    (Leaf.RECV_REDUCE_COPY, members + 1, 1),
                }
            else:
                expected = {
                    (Leaf.DIRECT_COPY_SEND, 1, members + 1),
                    *([(Leaf.DIRECT_RECV_SEND, 1, members)] * middle),
                    (Leaf.DIRECT_RECV, 1, members - 1),
                }
            assert shapes == expected


@pytest.mark.parametrize("kind", [AR, AG, RS])
def test_a_step_of_one_half_is_one_unit_of_flow(kind: EncOp) -> None:
    """What a step waits for is at its first row, what it tells at its last, and it takes each semaphore once.

    So the rows of one (rank, channel, leg, step, part) can start together. Source: schedule §1 (part).
    """
    schedule = compose(rings(PATHS[2, 4], chunk=64, slots=3), kind, 8 * 2 * 64 * 2 + 8 * 24)
    rows = schedule.rows
    names = [getattr(rows, name).tolist() for name in ("rank", "queue", "leg", "step", "part")]
    units = defaultdict(list)
    for row, key in enumerate(zip(*names, strict=True)):
        units[key].append(row)
    assert max(map(len, units.values())) == 4
    waits = np.diff(schedule.waits.ptr)
    signals = np.diff(schedule.signals.ptr)
    for unit in units.values():
        assert not waits[unit[1:]].any()
        assert not signals[unit[:-1]].any()


def test_secondaries_move_nothing() -> None:
    """Compose §7.1: secondaries issue no data movement; theirs is the word before and the wait after."""
    schedule = compose(rings(PATHS[4, 2][:1]), AR, 4096)
    rows = schedule.rows
    moved = np.unique(rows.rank[rows.size > 0]).tolist()
    assert moved == [1, 2, 5, 7]
    secondaries = ~np.isin(rows.rank, moved)
    assert sorted(zip(rows.rank[secondaries].tolist(), rows.leaf[secondaries].tolist(), strict=True)) == sorted(
        (rank, leaf) for rank in (0, 3, 4, 6) for leaf in (Leaf.POST_SEND, Leaf.DIRECT_RECV)
    )


def test_received_data_fold_before_the_members() -> None:
    """A partial sum is the first source, then the primary's input, then those of RMTV, RMTV2 and LOCAL."""
    lanes = rows_by_lane(compose(rings(PATHS[2, 4][:1], halves=1), RS, 8 * 64))
    last = next(line for line in lanes["4.0"] if "recv_reduce_copy" in line)
    places = last.split(" : ")[1].split(" -> ")[0].split(" + ")
    assert [place.split("+")[0] for place in places] == ["4.slot.0", *(f"{rank}.input" for rank in (4, 6, 7, 5))]


def test_only_the_bridge_is_fenced() -> None:
    """The first row of each gather reads what the row before it wrote; nothing else needs a fence. Schedule §2."""
    for kind in (AR, AG, RS):
        rows = compose(rings(PATHS[3, 2], chunk=64), kind, 6 * 64 * 2).rows
        assert set(rows.leaf[rows.fence].tolist()) == ({Leaf.DIRECT_COPY_SEND} if kind is AR else set())
        assert int(rows.fence.sum()) == (3 * 2 if kind is AR else 0)  # primaries, chunk groups


@pytest.mark.parametrize(
    ("kind", "in_place", "names"),
    [
        (AR, False, {"input": 4000, "output": 4000, "slot.0": 4096, "slot.1": 4096}),
        (AR, True, {"input": 4000, "slot.0": 4096, "slot.1": 4096}),
        (RS, False, {"input": 4000, "output": 500, "slot.0": 2048, "slot.1": 2048}),
        (AG, False, {"input": 500, "output": 4000}),
    ],
)
def test_buffers(kind: EncOp, in_place: bool, names: dict[str, int]) -> None:
    """User buffers have the sizes of the request; a slot holds the pieces of one half of a core group."""
    schedule = compose(rings(PATHS[4, 2]), kind, 4000, in_place=in_place)
    pieces = pieces_of(rings(PATHS[4, 2]), kind, 4000)
    names = {name: 8 * 2 * pieces.largest if name.startswith("slot") else size for name, size in names.items()}
    assert {buffer.name: buffer.size for buffer in schedule.buffers} == names
    assert [buffer.name for buffer in schedule.buffers if buffer.user] == [n for n in names if not n.startswith("slot")]


def test_in_place_is_the_same_plan_in_one_buffer() -> None:
    """Nothing is added anywhere in place: the same rows, with the input where the output was. Source: schedule §4."""
    apart, same = (to_text(compose(rings(PATHS[3, 2]), AR, 600, in_place=each)) for each in (False, True))
    apart = apart.replace("buffer output 600 user\n", "").replace("output output", "output input")
    assert apart.replace(".output+", ".input+") == same


def test_fma_scales_every_input_once() -> None:
    """Every read of a raw input is a source of a row that combines, and no other row combines. Design §2 (27)."""
    for in_place in (False, True):
        schedule = compose(rings(PATHS[2, 4]), AR, 8 * 256, op=Op.FMA, in_place=in_place)
        rows, sources = schedule.rows, schedule.sources
        row = np.repeat(np.arange(len(schedule)), np.diff(sources.ptr))
        combined = rows.op[row] == Op.FMA
        raw = (sources.buffer == schedule.input) & (rows.leg[row] == 0)
        assert (combined == (rows.leg[row] == 0)).all()
        assert int((rows.size[row] * raw).sum()) == 8 * 8 * 256


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lnc", "core"), [(1, 4), (2, 2)])
@pytest.mark.parametrize("kind", [AR, AG, RS])
def test_touches_of_the_node(lnc: int, core: int, kind: EncOp) -> None:
    """Topology §6, HBM touches per rank in C: AG reads P and writes N; RS reads G + (P-1)(G+1) and writes P."""
    platform, ranks = node(lnc)
    count = len(ranks)
    schedule = compose_kangaring(plan_for(platform, (ranks,), kind, 64 * count))
    p, share, moved = count // core, 256, traffic(schedule)
    gathered = (p, count)
    reduced = (core + (p - 1) * (core + 1), p)
    listed = {(1, AG): (32, 128), (1, RS): (159, 32), (2, AG): (32, 64), (2, RS): (95, 32)}
    assert gathered == listed[lnc, AG]
    assert reduced == listed[lnc, RS]
    # of an all-reduce, the gather finds the owner's chunk in place: one write less a chunk
    expected = {AG: gathered, RS: reduced, AR: (p + reduced[0], count - 1 + p)}[kind]
    touches = [np.add.reduceat(each, np.arange(0, count, core)) for each in (moved.read, moved.written)]
    for total, times in zip(touches, expected, strict=True):
        assert int(total.sum()) == count * times * share
    assert (touches[1] == core * expected[1] * share).all()


def test_three_quarters_of_the_touches_of_a_ring() -> None:
    """Topology §6: KangaRing/Ring is exactly 3/4 for a whole all-gather, (2N-1)/(3N-1) for a reduce-scatter."""
    platform, ranks = node(2)
    orders = [[list(ring.order)] for ring in wire(platform, ranks).channels]
    for kind, ratio in ((AG, (3, 4)), (RS, (127, 191))):
        kanga = traffic(compose_kangaring(plan_for(platform, (ranks,), kind, 64 * 64)))
        op = {} if kind is AG else {"op": CceType.ADD}
        ring = traffic(compose_ring(orders, kind=kind, size=64 * 64 * 4, **op))
        touched = [int(each.read.sum() + each.written.sum()) for each in (kanga, ring)]
        assert touched[0] * ratio[1] == touched[1] * ratio[0]


@pytest.mark.parametrize(("lnc", "core", "load"), [(1, 4, 31.0), (2, 2, 15.5)])
@pytest.mark.parametrize("kind", [AG, RS])
def test_every_cable_carries_the_same(lnc: int, core: int, load: float, kind: EncOp) -> None:
    """Topology §6: the load of every directed cable is (P-1) x group / channels: 15.5 C at LNC 2, 31 C at LNC 1."""
    platform, ranks = node(lnc)
    schedule = compose_kangaring(plan_for(platform, (ranks,), kind, 64 * len(ranks)))
    share, per_chip = 256, platform.ranks_per_chip
    row = np.repeat(np.arange(len(schedule)), np.diff(schedule.targets.ptr))
    source, target = schedule.rows.rank[row] // per_chip, schedule.targets.rank // per_chip
    away = source != target
    carried = np.zeros((16, 16), np.int64)
    np.add.at(carried, (source[away], target[away]), schedule.rows.size[row][away])
    assert (len(ranks) // core - 1) * core / 4 == load
    assert sorted(set(carried.reshape(-1).tolist())) == [0, int(load * share)]
    assert int((carried > 0).sum()) == 64
    reads = np.repeat(np.arange(len(schedule)), np.diff(schedule.sources.ptr))
    assert (schedule.rows.rank[reads] // per_chip == schedule.sources.rank // per_chip).all()


@pytest.mark.parametrize("shape", [shape for shape in PATHS if shape[0] > 1])
@pytest.mark.parametrize("halves", [1, 2])
def test_hops_and_rows(shape: tuple[int, int], halves: int) -> None:
    """Compose §7.2: P-1 hops a phase; each moves the chunks of one core group, one row a member, half and channel."""
    (primaries, core), paths = shape, PATHS[shape]
    how = rings(paths, chunk=128, halves=halves)
    for kind in (RS, AG, AR):
        phases = 2 if kind is AR else 1
        schedule = compose(how, kind, primaries * core * how.channels * 128 * 2)  # two chunk groups
        rows = schedule.rows
        sends = np.isin(rows.leaf, SENDS)
        assert np.unique(rows.step[sends]).size == phases * (primaries - 1)
        lanes = primaries * core * how.channels * halves * 2
        assert int(sends.sum()) == phases * (primaries - 1) * lanes
        assert int((rows.size > 0).sum()) == phases * primaries * lanes
        extra = how.channels * primaries * (2 * (core - 1) + (kind is AG))
        assert len(schedule) == phases * primaries * lanes + extra


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("lnc", [1, 2])
def test_the_node(kind: EncOp, lnc: int) -> None:
    """The paths of a plan are those of its wiring; the schedule is right and its order is proved."""
    platform, ranks = node(lnc)
    plan = plan_for(platform, (ranks,), kind, 256 * len(ranks), dtype=Dtype.BFLOAT16)
    schedule = compose_kangaring(plan)
    verify(schedule, plan.request)
    assert find_order(schedule) == []
    how = how_of(platform, (ranks,), plan.settings)
    for channel, path in enumerate(kanga_paths(platform, plan.wirings[0])):
        assert tuple(how.members[channel, 0].reshape(-1).tolist()) == path.logical_path
    moved = schedule.rows.size > 0
    assert set(zip(schedule.rows.rank[moved].tolist(), schedule.rows.queue[moved].tolist(), strict=True)) == {
        (int(rank), channel) for channel in range(4) for rank in how.members[channel, 0, :, 0]
    }


@pytest.mark.parametrize("kind", [AR, AG, RS])
def test_groups_in_any_order_run_together(kind: EncOp) -> None:
    """Groups of one request have paths of their own, in positions: the order of the members decides who owns what."""
    platform, groups = row_0()
    plan = plan_for(platform, groups, kind, 16 * 25)
    schedule = compose_kangaring(plan)
    verify(schedule, plan.request)
    assert find_order(schedule) == []
    how = how_of(platform, groups, plan.settings)
    for g, group in enumerate(groups):
        for channel, path in enumerate(kanga_paths(platform, plan.wirings[g])):
            assert [group[i] for i in how.members[channel, g].reshape(-1)] == list(path.logical_path)


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("lnc", [1, 2])
def test_behind_a_switch(kind: EncOp, lnc: int) -> None:
    """The same on chips of a switch, whose two channels have disjoint primaries."""
    platform = load_platform("trn3pds98", lnc=lnc)
    ranks = tuple(range(2 * platform.ranks_per_chip))
    plan = plan_for(platform, (ranks,), kind, 48 * len(ranks))
    schedule = compose_kangaring(plan)
    verify(schedule, plan.request)
    assert find_order(schedule) == []


def test_settings_reach_the_channels() -> None:
    """The slots and the chunk of a KangaRing are those of the settings."""
    platform, groups = row_0()
    plan = plan_for(platform, groups[:1], AR, 16 * 1024, settings=Settings(slots=5, chunk=128))
    schedule = compose_kangaring(plan)
    assert {s.name: s.initial for s in schedule.semaphores if s.name.startswith("credit")} == {
        "credit.0": 5,
        "credit.1": 5,
    }
    assert int(schedule.rows.size.max()) == 64
    assert {b.name: b.size for b in schedule.buffers if not b.user} == {"slot.0": 5 * 2 * 64, "slot.1": 5 * 2 * 64}


# --- numbers ----------------------------------------------------------------------------------------------------------

FOLDS = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}


def bits(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(20)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-1000, 1000, shape).astype(dtype)
    return (rng.standard_normal(shape) * 8).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "wire_type"),
    [
        (ml_dtypes.bfloat16, Dtype.BFLOAT16),
        (np.float32, Dtype.FP32),
        (ml_dtypes.float8_e4m3, Dtype.FP8_EXP4),
        (np.int32, Dtype.INT32),
    ],
    ids=["bf16", "fp32", "fp8", "int32"],
)
@pytest.mark.parametrize("op", FOLDS)
@pytest.mark.parametrize("kind", [AR, RS])
def test_numbers_are_those_of_the_table(dtype: Any, wire_type: Dtype, op: CceType, kind: EncOp) -> None:
    """Bit for bit what plain loops over core groups give: one rounding a core group, in path order, groups apart."""
    platform, groups = row_0()
    count = 16 * 37
    integers = {"integer_as_fp32": True} if np.dtype(dtype).kind in "iu" else {}
    plan = plan_for(platform, groups, kind, count, dtype=wire_type, op=op, **integers)
    plan = replace(plan, settings=replace(plan.settings, chunk=64))
    inputs = bits((64, count), dtype)
    found = execute(compose_kangaring(plan), inputs)
    pieces = cut(kind, count * inputs.itemsize, ranks=16, channels=2, chunk=64)
    how = how_of(platform, groups, plan.settings)
    for g in range(4):
        paths = [how.members[channel, g].tolist() for channel in range(2)]
        expected = slow_numbers(kind, FOLDS[op], paths, inputs[16 * g : 16 * g + 16], pieces)
        for rank in range(16):
            assert found[16 * g + rank].tobytes() == expected[rank].tobytes()


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("per_rank", [1, 7, 33])
def test_numbers_of_the_node(lnc: int, kind: EncOp, per_rank: int) -> None:
    """The same on the node's four channels, with odd sizes; an all-reduce also of less than a chunk for each rank."""
    platform, ranks = node(lnc)
    count = per_rank if kind is AR else per_rank * len(ranks)
    plan = plan_for(platform, (ranks,), kind, count, dtype=Dtype.BFLOAT16)
    inputs = bits((len(ranks), per_rank if kind is AG else count), ml_dtypes.bfloat16)
    schedule = compose_kangaring(plan)
    how = how_of(platform, (ranks,), plan.settings)
    paths = [how.members[channel, 0].tolist() for channel in range(4)]
    pieces = cut(kind, 2 * count, ranks=len(ranks), channels=4)
    expected = slow_numbers(kind, Combine.ADD, paths, inputs, pieces)
    assert execute(schedule, inputs).tobytes() == np.stack(expected).tobytes()


# --- writers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("missing", [0, 44])
def test_a_scatter_and_a_gather_in_scratch_are_an_all_reduce(shape: tuple[int, int], missing: int) -> None:
    """Writers work on any regions: the legs of a hierarchy with the own shard in scratch, short last shards included.

    They share no semaphore, and the second reads what the first wrote on the same queue.
    """
    how = rings(PATHS[shape], slots=4, chunk=64)
    ranks = shape[0] * shape[1]
    size, shard = 32 * ranks - missing, 32
    request = Request(AR, Dtype.FP8_EXP4, size, (tuple(range(ranks)),), CceType.ADD)
    board = Board.of(request)
    scratch = board.buffer("scratch", shard)
    first = board.part(board.members, leg=0, prefix="down.")
    write_reduce_scatter(first, how, Region(board.input, 0, shard), Region(scratch), shard, whole=size)
    second = board.part(board.members, leg=1, prefix="up.")
    target = Region(board.output, 0, shard)
    write_all_gather(second, how, Region(scratch), target, shard, whole=size, fence_first=True)
    schedule = board.schedule()
    verify(schedule, request)
    assert find_order(schedule) == []


def test_a_gather_finds_its_shard_in_place() -> None:
    """A source in the buffer of the target is no copy: the own shard is read there and not written again."""
    how = rings(PATHS[4, 2])
    request = Request(AR, Dtype.FP8_EXP4, 8 * 64, (tuple(range(8)),), CceType.ADD, in_place=True)
    board = Board.of(request)
    every, table = Region(board.input, 0, 64), 64 * np.arange(8)[None, :]
    scratch = board.buffer("scratch", 64)
    write_reduce_scatter(board.part(board.members, prefix="down."), how, every, Region(scratch), 64)
    write = board.part(board.members, leg=1, prefix="up.")
    me = board.position
    write.rows(
        Leaf.DIRECT_COPY,
        me,
        size=64,
        fence=True,
        reads=[Region(scratch).at()],
        writes=[Region(board.input, table=table).at(me)],
    )
    gather = board.part(board.members, leg=2, prefix="on.")
    write_all_gather(gather, how.only(0), every, every, 64, fence_first=True)
    schedule = board.schedule()
    verify(schedule, request)
    gathered = schedule.rows.leg == 2
    row = np.repeat(np.arange(len(schedule)), np.diff(schedule.targets.ptr))
    assert int(schedule.rows.size[row][gathered[row]].sum()) == 8 * 7 * 64


def test_one_channel_is_a_window_of_its_own() -> None:
    """The paths of one channel are numbered from 0, so that a window of a hierarchy runs on any queue."""
    how = rings(PATHS[4, 2]).only(1)
    board = board_for(how, RS, 8 * 64)
    window = board.part(board.members, queue=5, prefix="w.")
    write_reduce_scatter(window, how, Region(board.input, 0, 64), Region(board.output), 64)
    schedule = board.schedule()
    assert set(schedule.rows.queue.tolist()) == {5}
    assert {s.name for s in schedule.semaphores} == {"w.ready.0", "w.done.0", "w.recv.0", "w.credit.0"}
    assert {int(rank) for rank in schedule.rows.rank[schedule.rows.size > 0]} == {6, 4, 3, 0}


def test_no_bytes_no_rows() -> None:
    """A shard of no bytes needs nobody."""
    how = rings(PATHS[4, 2])
    board = board_for(how, AR, 64)
    region = Region(board.input)
    write_reduce_scatter(board, how, region, Region(board.output), 0)
    write_all_gather(board, how, region, Region(board.output), 0)
    write_all_reduce(board, how, region, Region(board.output), 0)
    assert len(board.schedule()) == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        (np.zeros((1, 1, 0, 2), int), "expected shape .channels, groups, P, G."),
        (np.zeros((2, 4), int), "expected shape .channels, groups, P, G., got .2, 4."),
        ([[[[0], [1]]]], "expected a primary and at least one secondary"),
        ([[[[0, 1], [1, 2]]]], "expected each to name the positions 0 to 3 once"),
        ([[[[0, 1], [2, -1]]]], "expected each to name the positions 0 to 3 once"),
    ],
)
def test_paths_that_are_none(paths: Any, sentence: str) -> None:
    """Each path names every position once, in core groups of a primary and its secondaries."""
    with pytest.raises(UsageError, match=f"^KangaRing paths: {sentence}"):
        KangaRings(np.asarray(paths))


@pytest.mark.parametrize(("halves", "least"), [(1, 2), (2, 3)])
def test_slots_of_halves(halves: int, least: int) -> None:
    """Slots are more than the halves that wait in them and at most 32. Source: design §2 (16)."""
    for slots in (least, 32):
        assert find_order(compose(rings(PATHS[2, 4], slots=slots, halves=halves), AR, 4096)) == []
    for slots in (0, least - 1, 33):
        with pytest.raises(UsageError, match=f"{slots} slots for {halves} halves: expected more slots than halves and"):
            rings(PATHS[2, 4], slots=slots, halves=halves)


def test_a_board_of_other_groups() -> None:
    """Paths belong to the groups of a board."""
    how = rings(PATHS[4, 2])
    with pytest.raises(UsageError, match="1 groups of 8 ranks: the board has 1 of 4; make the paths for its groups"):
        write_all_reduce(board_for(rings(PATHS[2, 2]), AR, 64), how, Region(0), Region(1), 64)


def test_what_a_kangaring_does_not_do() -> None:
    """It does the three sharded collectives. Source: select §5.1, high."""
    platform, ranks = node(2)
    plan = plan_for(platform, (ranks,), AR, 64)
    asked = replace(plan, request=Request(EncOp.ALLTOALL, Dtype.FP32, 64, (ranks,)))
    with pytest.raises(UnsupportedError, match="ALLTOALL: a KangaRing does all-reduce, all-gather and reduce-scatter"):
        compose_kangaring(asked)


def test_groups_of_different_shapes() -> None:
    """Groups that run together have equally many channels and ranks."""
    platform, ranks = node(2)
    with pytest.raises(UnsupportedError, match="different numbers of KangaRing channels or ranks"):
        how_of(platform, (ranks, ranks[:16]), Settings())
