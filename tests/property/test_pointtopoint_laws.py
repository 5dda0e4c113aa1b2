"""Laws of movements and chains on random groups, pairs, sizes, types and channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.compose.board import Board, Op, Region
from rota.compose.extensions import write_broadcast, write_reduce
from rota.compose.pointtopoint import Moves, window, write_moves
from rota.execute.arrays import execute
from rota.verify import find_order, traffic

FEW = settings(max_examples=40, deadline=None)
CHANNELS = st.integers(1, 4)
SLOTS = st.integers(3, 5)
COUNTS = st.integers(1, 300)


@st.composite
def movements(draw: st.DrawFn) -> Moves:
    """Up to three groups of up to seven; every position sends to at most one and receives from at most one."""
    groups, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    target = np.full((groups, ranks), -1, np.int64)
    for group in range(groups):
        to = draw(st.permutations(range(ranks)))
        named = draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks))
        target[group, named] = np.array(to, np.int64)[named]
    return Moves(target)


@st.composite
def chains(draw: st.DrawFn) -> Any:
    """Up to four channels, each with an own order of each group."""
    channels, groups, ranks = draw(CHANNELS), draw(st.integers(1, 2)), draw(st.integers(1, 7))
    orders = [[draw(st.permutations(range(ranks))) for _ in range(groups)] for _ in range(channels)]
    found = np.array(orders, np.int64)
    end = draw(st.integers(0, ranks - 1))
    place = np.argmax(found == end, axis=2)[..., None]
    return np.take_along_axis(found, (place + np.arange(ranks)) % ranks, axis=2)


def integers(ranks: int, count: int) -> Any:
    """Small integers in float32, which add exactly in any order."""
    return np.random.default_rng(count).integers(-99, 99, (ranks, count)).astype(np.float32)


def board_of(groups: int, ranks: int, count: int, *, operands: int = 1, op: Op = Op.NONE) -> Board:
    return Board(ranks=ranks, groups=groups, input_size=4 * operands * count, output_size=4 * count, op=op)


@FEW
@given(moves=movements(), count=COUNTS, channels=CHANNELS, slots=SLOTS, operands=st.integers(1, 2))
def test_every_target_gets_its_source(moves: Moves, count: int, channels: int, slots: int, operands: int) -> None:
    """A target ends with its source's operand, or the sum of both; nobody else is written to."""
    groups, ranks = moves.target.shape
    board = board_of(groups, ranks, count, operands=operands, op=Op.ADD if operands > 1 else Op.NONE)
    sources = [Region(board.input, 4 * count * k) for k in range(operands)]
    pieces = window(4 * count, channels=channels, chunk=128)
    write_moves(board, moves, sources, Region(board.output), pieces, slots)
    schedule = board.schedule()
    assert find_order(schedule) == []
    data = integers(groups * ranks, operands * count)
    given = data.reshape(groups, ranks, operands, count).sum(axis=2)
    want = np.zeros_like(given)
    for group in range(groups):
        for position, to in enumerate(moves.target[group].tolist()):
            if to >= 0:
                want[group, to] = given[group, position]
    assert (execute(schedule, data).reshape(want.shape) == want).all()
    assert traffic(schedule).sent.reshape(groups, ranks).tolist() == (4 * count * moves.sends).tolist()


@FEW
@given(orders=chains(), count=COUNTS, slots=SLOTS)
def test_a_broadcast_reaches_all(orders: Any, count: int, slots: int) -> None:
    """Every member ends with the input of the first of its chains."""
    channels, groups, ranks = orders.shape
    board = board_of(groups, ranks, count)
    pieces = window(4 * count, channels=channels, chunk=128)
    write_broadcast(board, orders, Region(board.input), Region(board.output), pieces, slots)
    schedule = board.schedule()
    assert find_order(schedule) == []
    data = integers(groups * ranks, count)
    root = data.reshape(groups, ranks, count)[:, orders[0, 0, 0]]
    assert (execute(schedule, data).reshape(groups, ranks, count) == root[:, None]).all()


@FEW
@given(orders=chains(), count=COUNTS, slots=SLOTS)
def test_a_reduce_ends_at_the_last(orders: Any, count: int, slots: int) -> None:
    """The last of the chains ends with the sum of all inputs; no other output is written to."""
    channels, groups, ranks = orders.shape
    ends = np.roll(orders, -1, axis=2)
    board = board_of(groups, ranks, count, op=Op.ADD)
    pieces = window(4 * count, channels=channels, chunk=128)
    write_reduce(board, ends, Region(board.input), Region(board.output), pieces, slots)
    schedule = board.schedule()
    assert find_order(schedule) == []
    data = integers(groups * ranks, count)
    got = execute(schedule, data).reshape(groups, ranks, count)
    root = int(ends[0, 0, -1])
    assert (got[:, root] == data.reshape(groups, ranks, count).sum(axis=1)).all()
    assert not np.delete(got, root, axis=1).any()
