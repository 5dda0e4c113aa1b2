"""Laws of the mesh families on random groups, sizes, types and orders of members."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.compose.all_to_all import ExchangeHow, Pieces, write_pieces
from rota.compose.board import Board, Op, Region
from rota.compose.chip_mesh import CHIP_EVENTS, Flavour, MeshHow, Shards
from rota.compose.fold import fold_rows
from rota.compose.grouped import GROUPED_EVENTS
from rota.compose.mesh import FULL_EVENTS, write_all_gather, write_all_reduce, write_reduce_scatter
from rota.compose.pod import PodHow
from rota.compose.pod import write_all_reduce as write_pod
from rota.compose.single_step import SingleStepHow
from rota.compose.single_step import write_all_reduce as write_single_step
from rota.execute.arrays import execute
from rota.schedule.ir import Schedule
from rota.verify import find_order

FEW = settings(max_examples=25, deadline=None)
EVENTS = {Flavour.CHIP: CHIP_EVENTS, Flavour.FULL: FULL_EVENTS, Flavour.GROUPED: GROUPED_EVENTS}


@st.composite
def meshes(draw: st.DrawFn) -> MeshHow:
    """Any flavour but the pair, up to four groups, members of the blocks in any order."""
    flavour = draw(st.sampled_from(sorted(EVENTS, key=lambda each: each.value)))
    width = 6 if flavour is Flavour.GROUPED else draw(st.integers(1, 4))
    count = draw(st.integers(1, 3 if flavour is Flavour.GROUPED else 6))
    groups = draw(st.integers(1, 2))
    orders = [draw(st.permutations(range(count * width))) for _ in range(groups)]
    blocks = np.array(orders, np.int64).reshape(groups, count, width)
    duplicates = flavour is Flavour.CHIP and draw(st.booleans())
    return MeshHow(flavour, blocks, EVENTS[flavour], duplicates=duplicates)


def integers(schedule: Schedule, seed: int) -> Any:
    """Small integers in float32, which add exactly in any order."""
    size = schedule.buffers[schedule.input].size // 4
    return np.random.default_rng(seed).integers(-99, 99, (schedule.ranks, size)).astype(np.float32)


def sums(data: Any, groups: int) -> Any:
    """The sum of each group's inputs, for each of its members."""
    whole = data.reshape(groups, -1, data.shape[1]).sum(axis=1)
    return np.repeat(whole, data.shape[0] // groups, axis=0)


@FEW
@given(how=meshes(), count=st.integers(1, 200), in_place=st.booleans(), seed=st.integers(0, 99))
def test_an_all_reduce_leaves_the_sum_everywhere(how: MeshHow, count: int, in_place: bool, seed: int) -> None:
    """Every rank ends with the same sum, in every execution."""
    groups, ranks = how.blocks.shape[0], how.blocks[0].size
    board = Board(ranks=ranks, groups=groups, input_size=4 * count, output_size=4 * count, op=Op.ADD, in_place=in_place)
    write_all_reduce(board, how, Region(board.input), Region(board.output), 4 * count)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, seed)
    assert (execute(schedule, data) == sums(data, groups)).all()


@FEW
@given(how=meshes(), share=st.integers(1, 9), gap=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_gather_behind_a_reduce_scatter_is_an_all_reduce(how: MeshHow, share: int, gap: int, seed: int) -> None:
    """Two legs on strided regions, the second from scratch."""
    groups, ranks = how.blocks.shape[0], how.blocks[0].size
    stride, size = 4 * (share + gap), 4 * share
    board = Board(ranks=ranks, groups=groups, input_size=ranks * stride, output_size=ranks * stride, op=Op.ADD)
    scratch = Region(board.buffer("scratch", size))
    first, second = (board.part(board.members, leg=leg, prefix=f"leg{leg}.") for leg in (0, 1))
    write_reduce_scatter(first, how, Region(board.input, 0, stride), scratch, size)
    write_all_gather(second, how, scratch, Region(board.output, 0, stride), size, fence_first=True)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, seed)
    got, want = execute(schedule, data), sums(data, groups)
    used = np.arange(data.shape[1]) % (share + gap) < share
    assert (got[:, used] == want[:, used]).all()
    assert (got[:, ~used] == 0).all()


@FEW
@given(
    how=meshes(), count=st.integers(1, 60), in_place=st.booleans(), parity=st.integers(0, 1), seed=st.integers(0, 99)
)
def test_a_single_step_leaves_the_sum_everywhere(
    how: MeshHow, count: int, in_place: bool, parity: int, seed: int
) -> None:
    """In either half of the mesh buffer, in place or not."""
    groups, ranks = how.blocks.shape[0], how.blocks[0].size
    board = Board(ranks=ranks, groups=groups, input_size=4 * count, output_size=4 * count, op=Op.ADD, in_place=in_place)
    step = SingleStepHow(how.blocks.copy())
    write_single_step(board, step, Region(board.input), Region(board.output), 4 * count, parity=parity)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, seed)
    assert (execute(schedule, data) == sums(data, groups)).all()


@FEW
@given(
    orders=st.lists(st.permutations(range(4)), min_size=1, max_size=3), count=st.integers(1, 99), in_place=st.booleans()
)
def test_a_pod_leaves_the_sum_everywhere(orders: list[list[int]], count: int, in_place: bool) -> None:
    """For any order of the members on the four nodes."""
    groups = len(orders)
    board = Board(ranks=4, groups=groups, input_size=4 * count, output_size=4 * count, op=Op.ADD, in_place=in_place)
    write_pod(board, PodHow(np.array(orders, np.int64)), Region(board.input), Region(board.output), 4 * count)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, 1)
    assert (execute(schedule, data) == sums(data, groups)).all()


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, Any]:
    """A table of counts, and blocks that its ranks form."""
    width, count = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ranks = width * count
    table = draw(st.lists(st.lists(st.integers(0, 40), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks))
    blocks = np.array(draw(st.permutations(range(ranks))), np.int64).reshape(1, count, width)
    return np.array(table, np.int64), blocks


@FEW
@given(case=tables(), budget=st.sampled_from([32, 64, 1 << 20]))
def test_an_exchange_moves_every_piece_once(case: tuple[Any, Any], budget: int) -> None:
    """Packed pieces of any sizes, in any number of iterations."""
    table, blocks = case
    ranks = table.shape[0]
    inputs, outputs = int(table.sum(axis=1).max()), int(table.sum(axis=0).max())
    board = Board(ranks=ranks, input_size=4 * inputs, output_size=4 * outputs)
    how = ExchangeHow(blocks, budget)
    write_pieces(board, how, Region(board.input), Region(board.output), Pieces.packed(4 * table))
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = integers(schedule, 2)
    got = execute(schedule, data)
    for to in range(ranks):
        pieces = [data[i][table[i, :to].sum() : table[i, : to + 1].sum()] for i in range(ranks)]
        want = np.concatenate(pieces)
        assert (got[to][: want.size] == want).all()
        assert (got[to][want.size :] == 0).all()


@given(ranks=st.integers(1, 300), size=st.integers(1, 1 << 40))
def test_a_cut_covers_a_buffer(ranks: int, size: int) -> None:
    """Shards are disjoint, in order, begin at multiples of 32 bytes or at the end, and cover everything."""
    shards = Shards.cut(ranks, size)
    assert (shards.size >= 0).all()
    assert int(shards.size.sum()) == size
    assert ((shards.offset % 32 == 0) | (shards.offset == size)).all()
    assert (shards.offset[1:] == (shards.offset + shards.size)[:-1]).all()


@given(sources=st.integers(1, 5000))
def test_the_rows_of_a_fold_hold_its_sources(sources: int) -> None:
    """No row fewer would do: 32 sources in the first row, 31 in each other."""
    rows = fold_rows(sources)
    assert 32 + 31 * (rows - 1) >= sources
    assert rows == 1 or 32 + 31 * (rows - 2) < sources
