"""The per-device mesh of Trn2: compose §12.3, platforms §4.1, and the numbers of topology §6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import AG, AR, RS, by_blocks, check, chips, event_laws, events, outputs, plan

from rota.columns import owners
from rota.compose.board import Board, Region
from rota.compose.chip_mesh import Shards, chip_mesh, write_all_gather
from rota.compose.mesh import compose_mesh
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.events import EventType
from rota.machine.platform import load_platform
from rota.schedule.ir import Schedule
from rota.select import Settings
from rota.verify import traffic

NODE = tuple(range(64))
GROUPS: dict[str, tuple[int, list[tuple[int, ...]]]] = {
    "one chip": (2, [(0, 1, 2, 3), (7, 5, 6, 4)]),
    "two chips": (2, [tuple(range(8))]),
    "row": (2, [(8, 9, 10, 11, 0, 1, 2, 3, 15, 14, 13, 12, 4, 5, 6, 7)]),
    "node": (2, [NODE]),
    "one a chip": (2, [tuple(range(0, 64, 4)), tuple(range(63, 0, -4))]),
    "two a chip": (2, [tuple(rank for rank in range(16) if rank % 4 < 2)]),
    "chip, LNC 1": (1, [tuple(range(8))]),
    "row, LNC 1": (1, [tuple(range(32))]),
}


def mesh_plan(case: str, kind: EncOp, count: int, **other: Any) -> Any:
    lnc, groups = GROUPS[case]
    return plan("trn2.48xlarge", groups, kind, count, lnc=lnc, **other)


def lanes(case: str) -> int:
    return 4 if GROUPS[case][0] == 2 else 8


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize(("kind", "in_place"), [(AR, False), (AR, True), (AG, False), (RS, False)])
def test_every_rank_ends_with_what_the_loops_give(case: str, kind: EncOp, in_place: bool) -> None:
    """One rounded partial from every foreign chip, the own chip's inputs raw, in the order of the chips."""
    groups = GROUPS[case][1]
    count = 777 if kind is AR else 3 * len(groups[0])
    asked = mesh_plan(case, kind, count, in_place=in_place)
    schedule = compose_mesh(asked)
    blocks = [chips(group, lanes(case)) for group in groups]
    check(schedule, asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks(blocks[g])))
    event_laws(schedule)


@pytest.mark.parametrize("count", [1, 31, 33, 64])
@pytest.mark.parametrize("in_place", [False, True])
def test_fewer_elements_than_ranks(count: int, in_place: bool) -> None:
    """Most shards are empty, and their rows still wait and tell."""
    asked = mesh_plan("row", AR, count, in_place=in_place)
    blocks = [chips(group, 4) for group in GROUPS["row"][1]]
    schedule = compose_mesh(asked)
    check(schedule, asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks(blocks[g])))
    event_laws(schedule)


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP8_EXP5, Dtype.INT32])
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
def test_types_and_operations(dtype: Dtype, op: CceType) -> None:
    """Partials are rounded to the wire type."""
    asked = mesh_plan("two chips", AR, 50, dtype=dtype, op=op)
    blocks = [chips(group, 4) for group in GROUPS["two chips"][1]]
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks(blocks[g])))


@pytest.mark.parametrize("case", ["one chip", "row", "one a chip"])
@pytest.mark.parametrize("in_place", [False, True])
def test_only_inputs_are_scaled(case: str, in_place: bool) -> None:
    """Design §2 (27): with scales 2, every input counts twice and no partial does."""
    asked = mesh_plan(case, AR, 100, op=CceType.FMA, scales=(2.0,), dtype=Dtype.FP32, in_place=in_place)
    blocks = [chips(group, 4) for group in GROUPS[case][1]]
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, 2 * data, g, by_blocks(blocks[g])))


@pytest.mark.parametrize(
    ("case", "kind", "want"),
    [
        ("node", AG, [2, 1, 3, 7]),
        ("node", RS, [2, 1, 8, 10, 0]),
        ("node", AR, [2, 1, 8, 10, 6, 11, 7]),
        ("two chips", AG, [2, 21, 20, 7]),
        ("two chips", RS, [2, 21, 8, 10, 0]),
        ("two chips", AR, [2, 21, 8, 10, 6, 20, 7]),
        ("one a chip", AR, [1, 8, 10, 11]),
        ("one chip", AR, [2, 10, 6, 7]),
    ],
)
def test_events_in_the_order_of_the_specification(case: str, kind: EncOp, want: list[int]) -> None:
    """Compose §12.3: the lists; two chips take EVT_2DEV_HNDSHK and EVT_2DEV_BRDCST for the global pair."""
    assert events(compose_mesh(mesh_plan(case, kind, 64 * 64))) == want


@pytest.mark.parametrize(("kind", "steps"), [(AG, 2), (RS, 2), (AR, 4)])
def test_steps_that_move_data(kind: EncOp, steps: int) -> None:
    """Platforms §4.1: a mesh takes 2 steps for a gather or a reduce-scatter, 4 for an all-reduce."""
    rows = compose_mesh(mesh_plan("node", kind, 64 * 64)).rows
    assert len(set(rows.event[rows.size > 0].tolist())) == steps


@pytest.mark.parametrize("case", ["node", "two chips"])
def test_two_composed_plans_are_equal(case: str) -> None:
    """Composing is a function of the plan."""
    assert compose_mesh(mesh_plan(case, AR, 100)) == compose_mesh(mesh_plan(case, AR, 100))


def landed(schedule: Schedule, event: EventType, size: int) -> list[int]:
    """Chunks that other ranks write to each rank in rows of an event."""
    rows = schedule.rows
    row = owners(schedule.targets.ptr)
    foreign = (rows.event[row] == event) & (schedule.targets.rank != rows.rank[row])
    other_chip = schedule.targets.rank // 4 != rows.rank[row] // 4
    assert set(rows.size[row[foreign]].tolist()) == {size}
    return np.bincount(schedule.targets.rank[foreign & other_chip], minlength=schedule.ranks).tolist()


def test_landing_of_the_node() -> None:
    """Mesh all-gather at 16 x 4 lands 16 chunks on lanes 1-3 and 12 on lane 0, 60 a chip. Source: platforms §4.1."""
    schedule = compose_mesh(mesh_plan("node", AG, 64 * 16))
    assert landed(schedule, EventType.EVT_INTER_GRP_BRDCST, 32) == [12, 16, 16, 16] * 16


def test_a_lane_serves_every_fourth_chip() -> None:
    """Compose §12.3: rank (g, l) serves chips q with (q - g) mod L = l, and lands on lane l of them."""
    schedule = compose_mesh(mesh_plan("node", AG, 64 * 16))
    rows, row = schedule.rows, owners(schedule.targets.ptr)
    sends = rows.event[row] == EventType.EVT_INTER_GRP_BRDCST
    issuer, to = rows.rank[row[sends]].astype(int), schedule.targets.rank[sends].astype(int)
    away = issuer // 4 != to // 4
    issuer, to = issuer[away], to[away]
    assert ((to // 4 - issuer // 4) % 4 == issuer % 4).all()
    assert (to % 4 == issuer % 4).all()


def test_a_served_rank_of_a_reduce_scatter_gets_one_chunk_from_every_chip() -> None:
    """Compose §12.3: destination ranks with lane(d) = l; each rank reduces its G partials, own chip included."""
    schedule = compose_mesh(mesh_plan("node", RS, 64 * 16))
    assert landed(schedule, EventType.EVT_REDUCE_COPY, 32) == [15] * 64


@pytest.mark.parametrize(("lnc", "ranks", "lane_count"), [(2, 64, 4), (1, 128, 8)])
def test_touches_of_the_node(lnc: int, ranks: int, lane_count: int) -> None:
    """Topology §6: all-gather N / N on the mean of the ranks; reduce-scatter N+G-1 / G on each."""
    chip_count = ranks // lane_count
    gather, scatter = (
        traffic(compose_mesh(plan("trn2.48xlarge", [tuple(range(ranks))], kind, 16 * ranks, lnc=lnc)))
        for kind in (AG, RS)
    )
    assert (int(gather.read.sum()), set(gather.written.tolist())) == (ranks * ranks * 32, {32 * ranks})
    assert set(scatter.read.tolist()) == {32 * (ranks + chip_count - 1)}
    assert set(scatter.written.tolist()) == {32 * chip_count}


def test_touches_when_a_broadcast_reads_once() -> None:
    """Topology §6: 31 / 64 if the on-chip broadcast reads once."""
    how = replace(chip_mesh(load_platform("trn2.48xlarge"), (NODE,)), duplicates=True)
    board = Board(ranks=64, input_size=32, output_size=64 * 32)
    write_all_gather(board, how, Region(board.input), Region(board.output, 0, 32), 32)
    touched = traffic(board.schedule())
    assert (int(touched.read.sum()), set(touched.written.tolist())) == (64 * 31 * 32, {64 * 32})


@pytest.mark.parametrize("case", ["node", "row", "one a chip", "row, LNC 1"])
def test_bytes_sent(case: str) -> None:
    """A reduce-scatter sends (N-1) C from every rank. A gather also reads the mates' chunks it carries elsewhere."""
    lanes_used = 1 if case == "one a chip" else lanes(case)
    ranks = len(GROUPS[case][1][0])
    scatter, gather = (traffic(compose_mesh(mesh_plan(case, kind, 16 * ranks))).sent for kind in (RS, AG))
    assert (scatter == 32 * (ranks - 1)).all()
    carried = (ranks // lanes_used - 1) * (lanes_used - 1)
    assert int(gather.sum()) == 32 * gather.size * (ranks - 1) + 32 * gather.size // lanes_used * carried


@pytest.mark.parametrize(("count", "number"), [(64 * 64, 0), (64 * (300 << 10) // 2, 1)])
def test_the_pass_is_in_the_names(count: int, number: int) -> None:
    """Compose §12.3: two DMA passes, which move the same data; buffers and semaphores say which."""
    asked = mesh_plan("node", RS, count)
    assert asked.carrier is not None
    assert asked.carrier.name == f"mesh pass {number}"
    schedule = compose_mesh(asked)
    names = [buffer.name for buffer in schedule.buffers if not buffer.user] + [s.name for s in schedule.semaphores]
    assert names
    assert all(name.startswith(f"pass{number}.") for name in names)


def test_fences_where_a_rank_reads_what_it_wrote() -> None:
    """Schedule §2: the chip mesh needs one fence, on the wait before the own result is sent on."""
    schedule = compose_mesh(mesh_plan("node", AR, 64 * 64))
    fenced = np.flatnonzero(schedule.rows.fence)
    assert set(schedule.rows.event[fenced].tolist()) == {EventType.EVT_REDUCE_LOCAL_HNDSHK}
    assert fenced.size == 64


@pytest.mark.parametrize(
    ("ranks", "size", "sizes"),
    [(4, 128, [32, 32, 32, 32]), (4, 129, [64, 64, 1, 0]), (4, 2, [2, 0, 0, 0]), (3, 200, [96, 96, 8])],
)
def test_an_all_reduce_is_cut_at_multiples_of_32_bytes(ranks: int, size: int, sizes: list[int]) -> None:
    """Device-model §3: the last shards may be short or empty."""
    shards = Shards.cut(ranks, size)
    assert shards.size.tolist() == sizes
    assert (shards.offset[1:] == np.cumsum(shards.size)[:-1]).all()


@pytest.mark.parametrize("counts", [(3, 0, 5, 1), (1, 1, 1, 1)])
def test_an_all_gather_of_unequal_shards(counts: tuple[int, ...]) -> None:
    """The extension: members give differently many elements, which lie end to end in every output."""
    asked = plan("trn2.48xlarge", [(0, 1, 2, 3)], AG, sum(counts), gather_counts=counts)

    def want(data: Any, _: int) -> list[Any]:
        return [np.concatenate([data[k][:count] for k, count in enumerate(counts)])] * 4

    check(compose_mesh(asked), asked.request, want)


def test_plain_mesh_of_one_rank_a_chip_folds_in_rank_order() -> None:
    """Design §2 (10): one rounding of all inputs in rank order."""
    asked = mesh_plan("one a chip", RS, 16 * 4, settings=Settings())
    schedule = compose_mesh(asked)
    reads = np.diff(schedule.sources.ptr)
    assert reads.max() == 16
    check(schedule, asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks([list(range(16))])))
