"""The full mesh of Trn1, Inf2 and the network, and which mesh a plan runs: compose §12.1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import (
    AG,
    AR,
    RS,
    by_blocks,
    check,
    chips,
    event_laws,
    events,
    outputs,
    plan,
)

from rota.compose.board import Board, Region
from rota.compose.chip_mesh import Flavour, blocks_of
from rota.compose.mesh import (
    can_compose,
    compose_mesh,
    how_of,
    may_skip_handshake,
    write_all_gather,
    write_reduce_scatter,
)
from rota.compose.single_step import compose_single_step
from rota.errors import UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.schedule.ir import Leaf, Op
from rota.select import Settings
from rota.verify import traffic

GROUPS: dict[str, tuple[str, int, list[tuple[int, ...]]]] = {
    "pair": ("trn1.32xlarge", 1, [(1, 0), (4, 5)]),
    "trn1 row": ("trn1.32xlarge", 1, [tuple(range(8)), (15, 8, 14, 9, 12, 11, 13, 10)]),
    "trn1 node": ("trn1.32xlarge", 1, [tuple(range(32))]),
    "inf2": ("inf2.48xlarge", 1, [(0, 1, 2, 3, 4, 5, 6, 7)]),
    "two nodes": ("trn1.32xlarge", 2, [(0, 32), (33, 1)]),
    "four nodes": ("trn1.32xlarge", 4, [(64, 0, 32, 96), (1, 33, 65, 97)]),
}


SHAPES = [[[0, 1, 2, 3]], [[0], [1], [2], [3]]]


def mesh_plan(case: str, kind: EncOp, count: int, **other: Any) -> Any:
    name, nodes, groups = GROUPS[case]
    return plan(name, groups, kind, count, nodes=nodes, **other)


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize(("kind", "in_place"), [(AR, False), (AR, True), (AG, False), (RS, False)])
def test_every_rank_ends_with_what_the_loops_give(case: str, kind: EncOp, in_place: bool) -> None:
    """Compose §12.1, and schedule §4: data, order, events and bits, with an odd number of elements."""
    groups = GROUPS[case][2]
    count = 333 if kind is AR else 5 * len(groups[0])
    asked = mesh_plan(case, kind, count, in_place=in_place)
    schedule = compose_mesh(asked)
    blocks = [chips(group, 2) if case != "pair" else [[0], [1]] for group in groups]
    check(schedule, asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks(blocks[g])))
    event_laws(schedule)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 129])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("case", ["pair", "trn1 row", "two nodes"])
def test_fewer_elements_than_ranks_and_odd_sizes(case: str, count: int, in_place: bool) -> None:
    """Shards of an all-reduce are cut at 32 bytes; empty ones move nothing, and waits stay balanced."""
    groups = GROUPS[case][2]
    asked = mesh_plan(case, AR, count, in_place=in_place)
    blocks = [chips(group, 2) if case != "pair" else [[0], [1]] for group in groups]
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks(blocks[g])))


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP8_EXP4, Dtype.INT32])
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
def test_types_and_operations(dtype: Dtype, op: CceType) -> None:
    """Partials are rounded to the wire type; design §2 (2)."""
    groups = GROUPS["trn1 row"][2]
    asked = mesh_plan("trn1 row", AR, 100, dtype=dtype, op=op)
    blocks = [chips(group, 2) for group in groups]
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, data, g, by_blocks(blocks[g])))


@pytest.mark.parametrize("case", ["pair", "trn1 row", "four nodes"])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_input_is_scaled_when_it_is_first_read(case: str, in_place: bool) -> None:
    """Design §2 (27): with scales 2, every input counts twice, wherever it is read, and no partial does."""
    asked = mesh_plan(case, AR, 40, op=CceType.FMA, scales=(2.0,), in_place=in_place, dtype=Dtype.FP32)
    blocks = [chips(group, 2) if case != "pair" else [[0], [1]] for group in GROUPS[case][2]]
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, 2 * data, g, by_blocks(blocks[g])))


@pytest.mark.parametrize(
    ("case", "kind", "in_place", "want"),
    [
        ("pair", AR, False, [2, 8, 0]),
        ("pair", AG, False, [2, 8]),
        ("pair", RS, False, [2, 8, 0]),
        ("trn1 row", AR, False, [2, 1, 8, 10, 11]),
        ("trn1 row", AR, True, [2, 1, 8, 10, 6, 11]),
        ("trn1 row", RS, False, [2, 1, 8, 10, 0]),
        ("trn1 row", AG, False, [2, 1, 3, 11]),
        ("two nodes", AR, False, [1, 8, 10, 3]),
        ("four nodes", AR, False, [1, 8, 10, 11]),
    ],
)
def test_events_follow_the_lists_of_the_subtypes(case: str, kind: EncOp, in_place: bool, want: list[int]) -> None:
    """Compose §12.1: t0, t2 and t4; what has nobody to tell is left out."""
    assert events(compose_mesh(mesh_plan(case, kind, 64 * 32, in_place=in_place))) == want


@pytest.mark.parametrize("case", GROUPS)
def test_bytes_sent_are_those_of_a_direct_exchange(case: str) -> None:
    """Compose §15 (6): (N-1) C for a gather or a reduce-scatter, twice that for an all-reduce."""
    ranks = len(GROUPS[case][2][0])
    for kind, times in ((AG, 1), (RS, 1), (AR, 2)):
        sent = traffic(compose_mesh(mesh_plan(case, kind, 16 * ranks))).sent
        want = 32 * (ranks - 1) * times
        assert (sent == (want if case != "pair" or kind is not AR else 32 * ranks)).all()


def test_pair_reads_two_and_writes_one() -> None:
    """Compose §12.1, t0: each rank reads both inputs, writes own output (2R1W)."""
    touched = traffic(compose_mesh(mesh_plan("pair", AR, 64)))
    assert (touched.read.tolist(), touched.written.tolist()) == ([256] * 4, [128] * 4)


def test_pair_in_place_writes_its_half_to_both() -> None:
    """Compose §12.1, t0: in place, rank h handles half h and writes both outputs; sunda writes them in two rows."""
    schedule = compose_mesh(mesh_plan("pair", AR, 64, in_place=True))
    moving = schedule.rows.size > 0
    assert set(schedule.rows.size[moving].tolist()) == {64}
    assert np.diff(schedule.targets.ptr)[moving].max() == 1
    copies = moving & (schedule.rows.leaf == Leaf.MESH_SEND)
    assert copies.sum() == 4
    assert schedule.rows.fence[copies].all()
    assert (schedule.rows.op[copies] == Op.NONE).all()


@pytest.mark.parametrize(
    ("name", "nodes", "group", "flavour", "shape"),
    [
        ("trn1.32xlarge", 1, (0, 1), Flavour.PAIR, (1, 1, 2)),
        ("trn1.32xlarge", 1, tuple(range(32)), Flavour.FULL, (1, 16, 2)),
        ("trn1.32xlarge", 4, (0, 32, 64, 96), Flavour.FULL, (1, 4, 1)),
        ("inf2.48xlarge", 1, tuple(range(8)), Flavour.FULL, (1, 4, 2)),
        ("inf2.48xlarge", 1, tuple(range(12)), Flavour.GROUPED, (1, 2, 6)),
        ("trn2.48xlarge", 1, tuple(range(64)), Flavour.CHIP, (1, 16, 4)),
        ("trn2.48xlarge", 4, (0, 64, 128, 192), Flavour.CHIP, (1, 4, 1)),
    ],
)
def test_the_mesh_of_a_group(name: str, nodes: int, group: tuple[int, ...], flavour: Flavour, shape: Any) -> None:
    """Select §7.2: the flavour goes by family and ranks; compose §12.0: blocks are chips, on Inf2 sixes."""
    how = how_of(load_platform(name, nodes=nodes), (group,), Settings())
    assert (how.flavour, how.blocks.shape) == (flavour, shape)


def test_blocks_come_in_the_order_of_the_group() -> None:
    """Chips in the order of their first member, members by rank; unequal chips leave every rank alone."""
    assert blocks_of([(9, 0, 8, 1)], 8).tolist() == [[[2, 0], [1, 3]]]
    assert blocks_of([(0, 1, 8)], 8).tolist() == [[[0], [1], [2]]]


@pytest.mark.parametrize(
    ("settings", "may"),
    [
        (Settings(), True),
        (Settings(mesh_double_buffer=False), False),
        (Settings(mesh_global_handshake=1), False),
    ],
)
def test_when_the_runtime_leaves_the_global_handshake_out(settings: Settings, may: bool) -> None:
    """Compose §12.3: double buffer on, it may be skipped for alternate ops; off or enforced, keep it."""
    verdict = may_skip_handshake(settings)
    assert bool(verdict) is may
    assert verdict.source is not None
    assert "handshake" in verdict.reason or "meet" in verdict.reason


def test_groups_of_different_shapes_run_together() -> None:
    """One request, a group on one chip and one over four chips: each by its own chips."""
    groups = [(20, 21, 22, 23), (0, 4, 8, 12)]
    for kind, count in ((AR, 100), (AG, 40), (RS, 40)):
        asked = plan("trn2.48xlarge", groups, kind, count)
        schedule = compose_mesh(asked)
        check(schedule, asked.request, lambda data, g, a=asked: outputs(a.request, data, g, by_blocks(SHAPES[g])))
        assert any(buffer.name.startswith("shape1.") for buffer in schedule.buffers) or kind is AG


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
def test_a_leg_writes_on_any_region_and_sub_board(name: str) -> None:
    """A hierarchy's legs: a strided reduce-scatter into scratch, then an all-gather from there."""
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    board = Board(ranks=4, groups=2, input_size=4 * 48, output_size=4 * 32, op=Op.ADD)
    how = how_of(load_platform(name), groups, Settings())
    scratch = board.buffer("scratch", 32)
    inner = board.part(board.members, leg=1, prefix="intra.")
    write_reduce_scatter(inner, how, Region(board.input, 16, 48), Region(scratch), 32)
    outer = board.part(board.members, leg=2, prefix="again.")
    write_all_gather(outer, how, Region(scratch), Region(board.output, 0, 32), 32, fence_first=True)
    schedule = board.schedule()
    assert set(schedule.rows.leg.tolist()) == {1, 2}
    assert {one.name.split(".")[0] for one in schedule.semaphores} == {"intra", "again"}
    first = schedule.rows.leg == 2
    first_rows = [int(np.flatnonzero(first & (schedule.rows.rank == rank))[0]) for rank in range(8)]
    assert schedule.rows.fence[first_rows].all()


@pytest.mark.parametrize("composer", [compose_mesh, compose_single_step])
def test_groups_over_a_switch_are_refused(composer: Any) -> None:
    """Compose §12.6: the switch has builders of its own; a group on one of its chips runs the per-device mesh."""
    over = plan("trn3pds98", [tuple(range(8))], AR, 64)
    assert not can_compose(over)
    with pytest.raises(UnsupportedError, match="a mesh of 8 ranks: its chips are joined by a switch") as caught:
        composer(over)
    assert caught.value.source is not None
    on_chip = plan("trn3pds98", [(0, 1, 2, 3)], AR, 64)
    assert can_compose(on_chip)
    check(
        compose_mesh(on_chip), on_chip.request, lambda data, g: outputs(on_chip.request, data, g, by_blocks(SHAPES[g]))
    )


def test_reported_algorithm_of_the_cases() -> None:
    """These groups select a mesh, so that what is composed is what runs."""
    assert mesh_plan("trn1 row", AG, 8 * 1024).selected is Algorithm.MESH
