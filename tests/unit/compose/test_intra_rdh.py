"""Intra-RDH: who sends what, touches, link loads, handshakes, pieces, and bit-exact results. Source: compose §11."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.compose.slow_recursive import corners, scaled_sum, slow_intra

from rota.compose.board import Board, Region
from rota.compose.intra_rdh import (
    compose_intra_rdh,
    gather_rooms,
    how_of,
    scatter_rooms,
    write_all_gather,
    write_all_reduce,
    write_reduce_scatter,
)
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.events import EventType
from rota.machine.platform import Platform, load_platform
from rota.machine.topology import cable_id, dimension, routing_id
from rota.native.arithmetic import Combine
from rota.request import COMPOSED, Request
from rota.schedule.ir import Leaf, Op, Schedule
from rota.select import Plan, Settings, select
from rota.verify import find_data, traffic, verify
from rota.verify.order import find_order

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
MACHINE = {lnc: load_platform("trn2.48xlarge", lnc=lnc) for lnc in (1, 2)}
ULTRA = load_platform("trn2u.48xlarge", nodes=4)
COMBINE = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}
ROW, SQUARE, NODE = (0, 1, 2, 3), (0, 1, 5, 4), tuple(range(16))
MOVES = (Leaf.RDH_SEND, Leaf.RDH_REDUCE, Leaf.RDH_COPY)


def whole(chips: tuple[int, ...], platform: Platform = MACHINE[2], *, shuffle: int | None = None) -> tuple[int, ...]:
    """Return all ranks of some chips, in ascending order or in one of their own."""
    ranks = [chip * platform.ranks_per_chip + lane for chip in chips for lane in range(platform.ranks_per_chip)]
    return tuple(ranks) if shuffle is None else tuple(np.random.default_rng(shuffle).permutation(ranks).tolist())


def plan(kind: EncOp, count: int, *groups: tuple[int, ...], platform: Platform = MACHINE[2], **other: Any) -> Plan:
    op, settings = other.pop("op", CceType.ADD), other.pop("settings", Settings())
    request = Request(kind, other.pop("dtype", Dtype.FP32), count, groups, None if kind is AG else op, **other)
    return select(request, platform, settings)


def composed(kind: EncOp, count: int, *groups: tuple[int, ...], rotate: bool = False, **other: Any) -> Schedule:
    asked = plan(kind, count, *groups, **other)
    schedule = compose_intra_rdh(asked, rotate_lanes=rotate)
    verify(schedule, asked.request)
    assert find_order(schedule) == []
    return schedule


def by_label(platform: Platform = MACHINE[2]) -> tuple[int, ...]:
    """Return all ranks of a node, its chips in the order of their labels."""
    return whole(platform.routing_ids, platform)


# --- who sends what ---------------------------------------------------------------------------------------------------


def test_chunks_that_chip_0_lane_0_receives() -> None:
    """{32}, {16, 48}, {8, 24, 40, 56}, {4, 12, ..., 60}, in this order. Source: platforms §4.1, by label."""
    schedule = composed(AG, 64 * 8, by_label())
    found: dict[int, set[int]] = {}
    for row in np.flatnonzero(schedule.rows.leaf == Leaf.RDH_SEND).tolist():
        entry = int(schedule.targets.ptr[row])
        if schedule.targets.rank[entry] == 0:
            found.setdefault(int(schedule.rows.step[row]), set()).add(int(schedule.targets.offset[entry]) // 32)
    assert list(found.values()) == [{32}, {16, 48}, {8, 24, 40, 56}, set(range(4, 64, 8))]


def test_a_chip_reduces_a_quarter_of_the_chunks_on_each_rank() -> None:
    """Stage 1: lane l reads chunk c of all 4 lanes for every chunk c of lane l, 16 of 64. Source: compose §11."""
    schedule = composed(RS, 64 * 8, by_label())
    stage = np.flatnonzero((schedule.rows.leaf == Leaf.RDH_REDUCE) & (schedule.rows.step == 1))
    assert stage.size == 64 * 16
    for row in stage.tolist():
        entries = slice(int(schedule.sources.ptr[row]), int(schedule.sources.ptr[row + 1]))
        rank, chunk = int(schedule.rows.rank[row]), np.unique(schedule.sources.offset[entries]) // 32
        assert schedule.sources.rank[entries].tolist() == [rank // 4 * 4 + lane for lane in range(4)]
        assert (chunk % 4).tolist() == [rank % 4]


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("kind", [AG, RS])
def test_partners_differ_in_one_bit_and_not_in_the_lane(kind: EncOp, *, rotate: bool) -> None:
    """Axes are label bits: lowest first to scatter, highest first to gather; lanes start apart when asked.

    Source: design §2 (14) and (25).
    """
    schedule = composed(kind, 64 * 8, by_label(), rotate=rotate)
    row = np.flatnonzero(schedule.rows.leaf == Leaf.RDH_SEND)
    rank = schedule.rows.rank[row].astype(int)
    step = schedule.rows.step[row].astype(int)
    number = step - step.min() if kind is RS else step.max() - step
    bit = (number + rank % 4 * rotate) % 4
    assert ((schedule.targets.rank[schedule.targets.ptr[row]] ^ rank) == 4 << bit).all()


@pytest.mark.parametrize("chips", [(9,), (0, 3), ROW, SQUARE, NODE])
@pytest.mark.parametrize("lnc", [1, 2])
def test_steps(lnc: int, chips: tuple[int, ...]) -> None:
    """A gather or scatter takes log2 D steps between chips and one on the chip. Source: platforms §4.1."""
    group = whole(chips, MACHINE[lnc])
    rounds = (len(chips) - 1).bit_length()
    for kind in (AG, RS):
        schedule = composed(kind, len(group) * 8, group, platform=MACHINE[lnc])
        sends = schedule.rows.leaf == Leaf.RDH_SEND
        assert np.unique(schedule.rows.step[sends]).size == rounds
        other = np.isin(schedule.rows.leaf, MOVES) & ~np.isin(schedule.rows.step, schedule.rows.step[sends])
        assert np.unique(schedule.rows.step[other]).size == (1 if kind is RS else 2)  # a gather's own copy


# --- touches and loads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lnc", "chips", "gather", "scatter"),
    [
        (2, NODE, (32, 64), (109, 46)),
        (1, NODE, (32, 128), (173, 46)),
        (2, ROW, (8, 16), (16 + 9, 4 + 6)),
        (2, (3,), (2, 4), (4, 1)),
    ],
)
def test_touches(lnc: int, chips: tuple[int, ...], gather: tuple[int, int], scatter: tuple[int, int]) -> None:
    """In chunks, read / written: a gather 2G / N, a reduce-scatter N + 3(G-1) / G + 2(G-1). Source: topology §6."""
    group = whole(chips, MACHINE[lnc])
    for kind, (read, written) in ((AG, gather), (RS, scatter)):
        moved = traffic(composed(kind, len(group) * 8, group, platform=MACHINE[lnc]))
        assert set(moved.read.tolist()) == {read * 32}
        assert set(moved.written.tolist()) == {written * 32}
        assert set(moved.sent.tolist()) == {(len(group) - 1) * 32}


def test_touches_without_duplication() -> None:
    """Where a row has one target the broadcast reads once for each mate: 64 / 64. Source: topology §6."""
    how = how_of(MACHINE[2], [by_label()], Settings())
    board = Board(ranks=64, input_size=32, output_size=64 * 32)
    write_all_gather(board, replace(how, duplicates=False), Region(board.input), Region(board.output, 0, 32), 32)
    schedule = board.schedule()
    assert int(np.diff(schedule.targets.ptr).max()) == 1
    assert find_order(schedule) == find_data(schedule, Request(AG, Dtype.FP32, 64 * 8, (by_label(),))) == []
    moved = traffic(schedule)
    assert {*moved.read.tolist(), *moved.written.tolist()} == {64 * 32}


def loads(schedule: Schedule, group: tuple[int, ...], platform: Platform, *, size: int) -> list[float]:
    """Return the chunks on the busiest directed cable in each step, routed over routing id bits, lowest first."""
    steps: dict[int, Counter[int]] = {}
    for row in np.flatnonzero(schedule.rows.leaf == Leaf.RDH_SEND).tolist():
        entry = int(schedule.targets.ptr[row])
        source, target = (group[int(rank)] for rank in (schedule.rows.rank[row], schedule.targets.rank[entry]))
        chip, goal = source // platform.ranks_per_chip, target // platform.ranks_per_chip
        for bit in range(dimension(platform)):
            if (routing_id(platform, chip) ^ routing_id(platform, goal)) >> bit & 1:
                after = platform.routing_ids[routing_id(platform, chip) ^ 1 << bit]
                cable = cable_id(platform, chip, after)
                steps.setdefault(int(schedule.rows.step[row]), Counter())[cable] += int(schedule.rows.size[row])
                chip = after
    return [max(steps[step].values()) / size for step in sorted(steps)]


@pytest.mark.parametrize(
    ("lnc", "chips", "straight", "rotated"),
    [
        (2, (0, 3), [4], [4]),
        (2, ROW, [4, 8], [2, 4]),
        (2, SQUARE, [4, 8], [2, 4]),
        (2, NODE, [4, 8, 16, 32], [1, 2, 4, 8]),
        (1, NODE, [8, 16, 32, 64], [2, 4, 8, 16]),
    ],
)
def test_link_loads(lnc: int, chips: tuple[int, ...], straight: list[int], rotated: list[int]) -> None:
    """Busiest cable, in chunks: 60 = 4+8+16+32 with one order of axes, 15 = 1+2+4+8 rotated. Source: topology §6."""
    group = whole(chips, MACHINE[lnc])
    for kind, order in ((AG, 1), (RS, -1)):
        for rotate, expected in ((False, straight), (True, rotated)):
            schedule = composed(kind, len(group) * 8, group, platform=MACHINE[lnc], rotate=rotate)
            assert loads(schedule, group, MACHINE[lnc], size=32)[::order] == expected


# --- handshakes, events, scratch --------------------------------------------------------------------------------------


def test_events_in_order() -> None:
    """Handshake, chip, handshake, four rounds, then the same backwards, each event once. Source: compose §11."""
    schedule = composed(AR, 64 * 8, by_label())
    mine = schedule.rows.event[schedule.rows.rank == 0]
    order = mine[np.flatnonzero(np.diff(mine.astype(int), prepend=-1))].tolist()
    assert order == [
        EventType.EVT_RDH_LOCAL_HANDSHAKE,
        EventType.EVT_RH_STEP_0,
        EventType.EVT_RDH_AXES_HANDSHAKE,
        *range(EventType.EVT_RH_STEP_1, EventType.EVT_RH_STEP_4 + 1),
        EventType.EVT_RDH_AXES_HANDSHAKE_2,
        EventType.EVT_RDH_LOCAL_PEER_HANDSHAKE,
        *range(EventType.EVT_RD_STEP_0, EventType.EVT_RD_STEP_4 + 1),
        EventType.EVT_SYNC,
    ]


@pytest.mark.parametrize("kind", COMPOSED)
def test_rows_have_names_of_their_own(kind: EncOp) -> None:
    """Rank, leg, step and part name a row, also with several pieces. Source: schedule §1."""
    rows = composed(kind, 16 * 64, whole(ROW), settings=Settings(intra_rdh_buffer=448)).rows
    names = np.stack([rows.rank, rows.leg, rows.step, rows.part])
    assert np.unique(names, axis=1).shape[1] == rows.rank.size


@pytest.mark.parametrize(
    ("kind", "buffers"),
    [
        (AG, {}),
        (AR, {"slot": 15 * 32}),
        (RS, {"slot": 15 * 32, "partial": 16 * 32}),
    ],
)
def test_scratch(kind: EncOp, buffers: dict[str, int]) -> None:
    """Slots hold the chunks of all rounds; partials of a reduce-scatter are scratch, of an all-reduce the output."""
    schedule = composed(kind, 64 * 8, by_label())
    assert {buffer.name: buffer.size for buffer in schedule.buffers if not buffer.user} == buffers


def test_no_more_scratch_than_there_is() -> None:
    """Chunks of 256 bytes on 4 chips with 448 bytes of scratch go in pieces of 64: 4 partials and 3 slots."""
    schedule = composed(RS, 16 * 64, whole(ROW), settings=Settings(intra_rdh_buffer=448))
    assert {buffer.name: buffer.size for buffer in schedule.buffers if not buffer.user} == {"slot": 192, "partial": 256}
    sends = schedule.rows.leaf == Leaf.RDH_SEND
    assert np.unique(schedule.rows.size[sends]).tolist() == [64]
    assert int(sends.sum()) == 16 * 3 * 4


def test_one_chip_needs_neither_scratch_nor_partners() -> None:
    """On one chip the first stage is all: 4 sources for each output."""
    schedule = composed(RS, 4 * 8, whole((6,)))
    assert all(buffer.user for buffer in schedule.buffers)
    assert Counter(schedule.rows.leaf.tolist()) == {Leaf.MESH_NOTIFY: 4, Leaf.RDH_REDUCE: 4, Leaf.MESH_WAIT: 4}


# --- results ----------------------------------------------------------------------------------------------------------


def values(shape: tuple[int, int], dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers whose sums round."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-100, 100, shape).astype(dtype)
    return (rng.standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize(
    ("lnc", "chips"),
    [(2, ((1,), (8,))), (2, ((0, 3), (5, 4))), (2, (ROW, (12, 13, 14, 15))), (1, (SQUARE, (2, 3, 7, 6))), (2, (NODE,))],
)
@pytest.mark.parametrize(
    ("dtype", "wire", "op"),
    [
        (Dtype.BFLOAT16, ml_dtypes.bfloat16, CceType.ADD),
        (Dtype.FP8_EXP4, ml_dtypes.float8_e4m3, CceType.ADD),
        (Dtype.FP32, np.float32, CceType.MAX),
        (Dtype.INT32, np.int32, CceType.MIN),
    ],
)
def test_bit_for_bit(
    lnc: int,
    chips: tuple[tuple[int, ...], ...],
    kind: EncOp,
    dtype: Dtype,
    wire: Any,
    op: CceType,
    *,
    rotate: bool,
) -> None:
    """Every element is what loops over ranks and rounds give, for several groups at once in orders of their own."""
    groups = [whole(each, MACHINE[lnc], shuffle=len(each) + i) for i, each in enumerate(chips)]
    ranks = len(groups[0])
    count = ranks * 5 if kind is not AR else ranks * 5 + 3
    integers = kind is not AG and np.dtype(wire).kind == "i"
    schedule = composed(
        kind,
        count,
        *groups,
        platform=MACHINE[lnc],
        dtype=dtype,
        op=op,
        integer_as_fp32=integers,
        rotate=rotate,
        settings=Settings(intra_rdh_buffer=1024),
    )
    inputs = values((ranks * len(groups), count // (ranks if kind is AG else 1)), wire, 11)
    expected = [
        slow_intra(kind, part, COMBINE[op], corners(MACHINE[lnc], group), rotate=rotate)
        for part, group in zip(np.split(inputs, len(groups)), groups, strict=True)
    ]
    assert execute(schedule, inputs).tobytes() == np.concatenate(expected).tobytes()


@pytest.mark.parametrize("scratch", [None, 1024])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 128, 129, 4100])
def test_in_place_and_odd_sizes(count: int, scratch: int | None) -> None:
    """In place, with fewer elements than ranks, where the last shards are short or empty, and in pieces."""
    group = whole(SQUARE, shuffle=3)
    settings = Settings(intra_rdh_buffer=scratch)
    schedule = composed(AR, count, group, in_place=True, dtype=Dtype.BFLOAT16, settings=settings)
    inputs = values((16, count), ml_dtypes.bfloat16, count)
    expected = slow_intra(AR, inputs, Combine.ADD, corners(MACHINE[2], group), rotate=False)
    assert execute(schedule, inputs).tobytes() == expected.tobytes()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("chips", [(7,), (0, 3), ROW])
def test_scaled_sums(chips: tuple[int, ...], *, in_place: bool) -> None:
    """FMA scales every input once, when it is first read; partials carry scale 1. Source: design §2 (27)."""
    group = whole(chips)
    ranks = len(group)
    board = Board(ranks=ranks, input_size=640, output_size=640, op=Op.FMA, in_place=in_place)
    how = how_of(MACHINE[2], [group], Settings(intra_rdh_buffer=512))
    write_all_reduce(board, how, Region(board.input), Region(board.output), 640)
    inputs = np.arange(ranks * 160, dtype=np.float32).reshape(ranks, 160)
    scale = [float(2 + rank) for rank in range(ranks)]
    wanted = sum(factor * given for factor, given in zip(scale, inputs, strict=True))
    assert (scaled_sum(board.schedule(), inputs, scale) == wanted).all()


def test_legs_of_a_hierarchy() -> None:
    """Scatter and gather work on regions of several nodes at once, in scratch, behind other rows of the queue."""
    chips = [tuple(16 * node + chip for chip in (0, 3)) for node in range(2)]
    groups = [whole(each) for each in chips]
    how = how_of(load_platform("trn2.48xlarge", nodes=2), groups, Settings())
    board = Board(ranks=16, input_size=8 * 40, output_size=8 * 40, op=Op.ADD)
    scratch = Region(board.buffer("scratch", 40))
    part = board.part(np.arange(16).reshape(2, 8), prefix="in.")
    write_reduce_scatter(part, how, Region(board.input, 0, 40), scratch, 40)
    last = board.part(np.arange(16).reshape(2, 8), leg=1, prefix="out.")
    write_all_gather(last, how, scratch, Region(board.output, 0, 40), 40, fence_first=True)
    schedule = board.schedule()
    assert find_order(schedule) == []
    inputs = np.arange(16 * 80, dtype=np.float32).reshape(16, 80)
    assert (execute(schedule, inputs) == np.repeat(inputs.reshape(2, 8, 80).sum(axis=1), 8, axis=0)).all()


def test_parts_of_a_leg_share_their_rooms() -> None:
    """Several scatters and gathers one after another need the scratch and semaphores of one."""
    group = whole(ROW)
    how = how_of(MACHINE[2], [group], Settings())
    board = Board(ranks=16, input_size=3 * 16 * 32, output_size=3 * 16 * 32, op=Op.ADD)
    given, scratch = scatter_rooms(board, how, 32), board.buffer("scratch", 3 * 32)
    for part in range(3):
        source, target = Region(board.input, part * 16 * 32, 32), Region(scratch, part * 32)
        on = board.part(board.members, step=256 * part)
        write_reduce_scatter(on, how, source, target, 32, fence_first=part > 0, rooms=given)
    wanted = gather_rooms(board, how)
    for part in range(3):
        source, target = Region(scratch, part * 32), Region(board.output, part * 16 * 32, 32)
        on = board.part(board.members, leg=1, step=256 * part)
        write_all_gather(on, how, source, target, 32, fence_first=True, rooms=wanted)
    schedule = board.schedule()
    assert find_order(schedule) == []
    assert len(schedule.semaphores) == (2 + 2 * 2) + (2 + 2 * 2)
    assert [buffer.name for buffer in schedule.buffers if not buffer.user] == ["slot", "partial", "scratch"]
    inputs = np.arange(16 * 384, dtype=np.float32).reshape(16, 384)
    assert (execute(schedule, inputs) == inputs.sum(axis=0)).all()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks",
    [
        whole((0, 2)),  # two links apart
        whole((0, 1, 2)),
        whole((0, 1, 4, 6)),
        (*whole((0,)), 4, 5, 6, 8),  # a part of two chips
        (0, 1),  # half a chip
        (*whole((0,)), *whole((16,))),  # chips of two nodes of a pod
    ],
)
def test_groups_without_axes(ranks: tuple[int, ...]) -> None:
    """It takes all ranks of the chips of a subcube of one node."""
    with pytest.raises(UnsupportedError, match="expected all 4 ranks of the chips that agree outside some routing id"):
        how_of(ULTRA, [ranks], Settings())


def test_one_chip_of_a_switch_machine() -> None:
    """A chip is a cube of no dimension on every machine; several chips of a switch have no axes."""
    switch = load_platform("trn3pds98")
    how = how_of(switch, [whole((2,), switch)], Settings())
    assert how.cube.position.tolist() == [[[0, 1, 2, 3]]]
    with pytest.raises(UnsupportedError, match="chips that agree outside some routing id bits"):
        how_of(switch, [whole((0, 1), switch)], Settings())


def test_a_scratch_too_small_for_any_piece() -> None:
    """4 partials and 3 slots of at least 32 bytes do not fit 192."""
    with pytest.raises(UnsupportedError, match="192 of scratch for intra-RDH of 4 chips: expected at least 224; set"):
        composed(RS, 16 * 8, whole(ROW), settings=Settings(intra_rdh_buffer=192))


def test_more_pieces_than_a_schedule_numbers() -> None:
    """Too little scratch for the data is refused before anything is built."""
    with pytest.raises(UnsupportedError, match="take 2049 pieces, and a schedule numbers 2048; use less data"):
        composed(RS, 16 * 8 * 2049, whole(ROW), settings=Settings(intra_rdh_buffer=224))
