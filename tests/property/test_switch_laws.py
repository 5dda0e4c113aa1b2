"""Laws of the switch's algorithms on random boxes, sizes, orders of members and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.compose.board import Board, Op, Region
from rota.compose.chip_mesh import Shards
from rota.compose.switch.algorithms import write_all_gather, write_all_reduce, write_reduce_scatter
from rota.compose.switch.grid import BoxShape, Grid
from rota.compose.switch.menu import BUILDERS, Slot, build
from rota.execute.arrays import execute
from rota.isa.enums import Algorithm, EncOp
from rota.schedule.ir import Schedule
from rota.select import Settings
from rota.select.limits import Subtype
from rota.verify import find_order

FEW = settings(max_examples=25, deadline=None)
GATHERS = [name for name, each in BUILDERS.items() if EncOp.ALLGATHER in each.kinds]
REDUCES = [name for name, each in BUILDERS.items() if EncOp.ALLREDUCE in each.kinds]


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Up to two groups of one box, members in any order."""
    shape = BoxShape(
        draw(st.integers(1, 3)), draw(st.integers(1, 3)), lanes := draw(st.integers(1, 4)), tuple(range(lanes))
    )
    ranks = shape.rows * shape.columns * lanes
    flat = np.array([draw(st.permutations(range(ranks))) for _ in range(draw(st.integers(1, 2)))], np.int64)
    return Grid(shape, flat, np.argsort(flat, axis=1))


def narrowed(grid: Grid, name: str) -> Grid:
    """The grid, or one of the same ranks that all count as chips where the builder is for one rank per chip."""
    if not name.startswith("one-rank-per-chip"):
        return grid
    shape = BoxShape(grid.shape.rows, grid.shape.columns * grid.shape.lanes, 1, (0,))
    return Grid(shape, grid.flat, grid.index)


def slot_of(grid: Grid, name: str, *, proxies: bool = False) -> Slot:
    """A builder's slot, whatever the gates say."""
    return build(grid, Subtype(0, name, Algorithm.MESH, ()), Settings(), proxies=proxies)


def board_of(grid: Grid, given: int, wanted: int, **other: Any) -> Board:
    return Board(ranks=grid.ranks, groups=grid.flat.shape[0], input_size=given, output_size=wanted, **other)


def integers(schedule: Schedule, seed: int) -> Any:
    """Small integers in float32, which add exactly in any order."""
    size = schedule.buffers[schedule.input].size // 4
    return np.random.default_rng(seed).integers(-99, 99, (schedule.ranks, size)).astype(np.float32)


@FEW
@given(grid=grids(), name=st.sampled_from(REDUCES), count=st.integers(1, 150), in_place=st.booleans(),
       block=st.integers(1, 8), proxies=st.booleans())  # fmt: skip
def test_an_all_reduce_leaves_the_sum_everywhere(
    grid: Grid, name: str, count: int, in_place: bool, block: int, proxies: bool
) -> None:
    """Every rank of every group ends with the same sum, in every execution."""
    grid = narrowed(grid, name)
    board = board_of(grid, 4 * count, 4 * count, op=Op.ADD, in_place=in_place)
    given_, wanted = Region(board.input), Region(board.output)
    write_all_reduce(board, slot_of(grid, name, proxies=proxies), given_, wanted, 4 * count, max_block=32 * block)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, count)
    sums = data.reshape(grid.flat.shape[0], -1, count).sum(axis=1)
    assert (execute(schedule, data) == np.repeat(sums, grid.ranks, axis=0)).all()


@FEW
@given(grid=grids(), name=st.sampled_from(GATHERS), share=st.integers(1, 9), block=st.integers(1, 40),
       proxies=st.booleans())  # fmt: skip
def test_a_gather_leaves_every_block_everywhere(grid: Grid, name: str, share: int, block: int, proxies: bool) -> None:
    """Blocks of the broadcasts may be of any size."""
    grid = narrowed(grid, name)
    board = board_of(grid, 4 * share, 4 * share * grid.ranks)
    target = Region(board.output, 0, 4 * share)
    shards = Shards.of(target, grid.ranks, 4 * share)
    write_all_gather(board, slot_of(grid, name, proxies=proxies), Region(board.input), target, shards, max_block=block)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, share)
    whole = data.reshape(grid.flat.shape[0], -1)
    assert (execute(schedule, data) == np.repeat(whole, grid.ranks, axis=0)).all()


@FEW
@given(grid=grids(), share=st.integers(1, 9), gap=st.integers(0, 3), parity=st.integers(0, 1))
def test_a_reduce_scatter_leaves_every_rank_its_shard(grid: Grid, share: int, gap: int, parity: int) -> None:
    """Shards may lie apart."""
    stride = 4 * (share + gap)
    board = board_of(grid, stride * grid.ranks, 4 * share, op=Op.ADD)
    source = Region(board.input, 0, stride)
    write_reduce_scatter(board, slot_of(grid, "reduce-scatter"), source, Region(board.output), 4 * share, parity=parity)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, share)
    sums = data.reshape(grid.flat.shape[0], grid.ranks, grid.ranks, share + gap).sum(axis=1)
    assert (execute(schedule, data) == sums[:, :, :share].reshape(-1, share)).all()
