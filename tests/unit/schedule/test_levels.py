"""Blocks of rows that do not depend on each other, against loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedules import schedules

from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.schedule.counters import releases
from rota.schedule.ir import Schedule
from rota.schedule.levels import blocks, latest_before, previous_in_queue

DEPENDENCIES = st.integers(0, 30).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))))


def slow_blocks(latest: tuple[int, ...]) -> list[int]:
    """Return the boundaries of greedy blocks: a block ends before the first row that depends on one of it."""
    edges = [0]
    for row, before in enumerate(latest):
        if before >= edges[-1]:
            edges.append(row)
    return edges + [len(latest)] * (len(latest) > 0)


@settings(deadline=None)
@given(latest=DEPENDENCIES)
def test_blocks_are_independent_and_as_few_as_can_be(latest: tuple[int, ...]) -> None:
    """No row depends on a row of its block, the blocks cover all rows, and greedy blocks are the fewest."""
    edges = blocks(np.array(latest, np.int64)).tolist()
    assert edges == slow_blocks(latest)
    for first, last in pairwise(edges):
        assert first < last
        assert all(before < first for before in latest[first:last])


def test_blocks_of_nothing() -> None:
    """No rows, no blocks; rows on their own, one block; a chain, a block a row."""
    assert blocks(np.zeros(0, np.int64)).tolist() == [0]
    assert blocks(np.full(5, -1)).tolist() == [0, 5]
    assert blocks(np.arange(-1, 4)).tolist() == [0, 1, 2, 3, 4, 5]


@settings(max_examples=40, deadline=None)
@given(schedule=schedules())
def test_previous_in_queue(schedule: Schedule) -> None:
    """The row before a row in its queue is the last earlier one of the same rank and queue."""
    newest: dict[int, int] = {}
    expected = []
    for row, lane in enumerate(schedule.lane.tolist()):
        expected.append(newest.get(lane, -1))
        newest[lane] = row
    assert previous_in_queue(schedule).tolist() == expected


@pytest.mark.parametrize("ranks", [256, 257, 33_000])
def test_queues_of_many_ranks(ranks: int) -> None:
    """Queues are told apart where rank and queue, or the number of queues, no longer fit 16 bits."""
    schedule = compose_ring(np.zeros((2, ranks, 1), int), kind=EncOp.ALLREDUCE, size=128, op=CceType.ADD)
    half = 2 * ranks  # rows of a half: every rank's two channels
    assert previous_in_queue(schedule).tolist() == [-1] * half + list(range(half))


@settings(max_examples=40, deadline=None)
@given(schedule=schedules())
def test_latest_before(schedule: Schedule) -> None:
    """A row comes after the row before it in its queue and after the rows whose signals it waits for, all earlier."""
    expected = previous_in_queue(schedule).tolist()
    for wait, signal in zip(*releases(schedule), strict=True):
        row = int(schedule.wait_row[wait])
        expected[row] = max(expected[row], int(schedule.signal_row[signal]))
    latest = latest_before(schedule).tolist()
    assert latest == expected
    assert all(before < row for row, before in enumerate(latest))


def test_a_ring_has_a_block_for_each_step_and_half() -> None:
    """The rows of all ranks at one step and half depend only on earlier steps: blocks grow with N, not N^2."""
    for ranks in (3, 6):
        schedule = compose_ring([range(ranks)], kind=EncOp.ALLREDUCE, size=64 * ranks, op=CceType.ADD)
        assert blocks(latest_before(schedule)).size - 1 == 2 * 2 * ranks
