"""What a schedule really allows, by brute force: run it once for every row, with that row never completing.

Executions are confluent (no row can take from another what lets it start), so one greedy run tells everything: row x
completes before row y starts, in every execution, exactly if y cannot start while x never completes. Time and memory
are the square of the rows. It shares no code with the package's own checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from tests.mutation.reference import wrong_data

from rota.columns import Array, Bool
from rota.request import Request
from rota.schedule.ir import Schedule


class Verdict(Enum):
    """What is wrong with a schedule, the worst first."""

    DEADLOCK = "deadlock"
    WRONG = "wrong data"
    RACE = "race"
    NOT_ENTERED = "not entered"  # a rank's memory is touched before the rank takes part
    NOT_FINISHED = "not finished"  # a rank ends before the last access of others to its memory
    EQUIVALENT = "equivalent"


@dataclass(frozen=True)
class Judgement:
    """A verdict and the rows that show it: those that never start, or one unordered pair."""

    verdict: Verdict
    rows: tuple[int, ...] = ()


def judge(schedule: Schedule, request: Request, *, grain: int = 1) -> Judgement:
    """Decide what a schedule does, whatever the timing."""
    before, stuck = precedence(schedule)
    if stuck.any():
        return Judgement(Verdict.DEADLOCK, tuple(np.flatnonzero(stuck).tolist()))
    wrong = wrong_data(schedule, request, grain=grain)
    if wrong:
        return Judgement(Verdict.WRONG, tuple(sorted({row for _, row in wrong})))
    for verdict, pairs in (
        (Verdict.RACE, races(schedule, before)),
        (Verdict.NOT_ENTERED, not_entered(schedule, before)),
        (Verdict.NOT_FINISHED, not_finished(schedule, before)),
    ):
        pair = next(pairs, None)
        if pair is not None:
            return Judgement(verdict, pair)
    return Judgement(Verdict.EQUIVALENT)


def precedence(schedule: Schedule) -> tuple[Bool, Bool]:
    """Return before[x, y], x completes before y starts in every execution, and which rows never start at all."""
    rows = len(schedule)
    run = _Runs(schedule)
    while run.advance():
        pass
    started = run.started
    stuck = ~started[rows]
    return ~started[:rows] & ~stuck, stuck


class _Runs:
    """All runs at once: run x never completes row x, the last run completes every row."""

    def __init__(self, schedule: Schedule) -> None:
        rows, width = len(schedule), max(len(schedule.semaphores), 1)
        self.runs = np.arange(rows + 1)[:, None]
        lane = schedule.rows.rank.astype(np.int64) * 256 + schedule.rows.queue
        self.lanes = [np.flatnonzero(lane == name) for name in np.unique(lane)]
        self.length = np.array([queue.size for queue in self.lanes])
        longest = int(self.length.max(initial=0))
        self.queue = np.full((len(self.lanes), longest + 1), rows)
        for index, queue in enumerate(self.lanes):
            self.queue[index, : queue.size] = queue
        self.fence = np.append(schedule.rows.fence, False)
        self.waits = _padded(schedule.waits.ptr, thresholds(schedule, width), (schedule.ranks * width, 0))
        key = schedule.signals.rank.astype(np.int64) * width + schedule.signals.semaphore
        self.signals = _padded(
            schedule.signals.ptr, np.stack((key, schedule.signals.add), axis=1), (schedule.ranks * width, 0)
        )
        self.value = np.zeros((rows + 1, schedule.ranks * width + 1), np.int64)
        self.head = np.zeros((rows + 1, len(self.lanes)), np.int64)
        self.stopped = np.zeros(
            (rows + 1, len(self.lanes)), np.bool_
        )  # the lane has started the row that never completes
        self.started = np.zeros((rows + 1, rows), np.bool_)

    def advance(self) -> bool:
        """Start at most one row of each queue in each run; return whether any started."""
        row = self.queue[np.arange(self.length.size), self.head]
        waits = self.waits[row]  # shape (runs, queues, waits, 2)
        ready = (self.value[self.runs[:, :, None], waits[..., 0]] >= waits[..., 1]).all(axis=-1)
        ready &= (self.head < self.length) & ~(self.fence[row] & self.stopped)
        run, lane = np.nonzero(ready)
        fired = row[run, lane]
        self.started[run, fired] = True
        self.head[run, lane] += 1
        self.stopped[run, lane] |= fired == run
        done = ~self.stopped[run, lane]
        run, fired = run[done], fired[done]
        signals = self.signals[fired]
        np.add.at(self.value, (run[:, None], signals[..., 0]), signals[..., 1])
        return bool(ready.any())


def _padded(ptr: Array, items: Array, nothing: tuple[int, int]) -> Array:
    """Return lists of pairs as a rectangle of shape (rows + 1, longest, 2), filled up with `nothing`."""
    counts = np.diff(ptr)
    out = np.empty((counts.size + 1, max(int(counts.max(initial=0)), 1), 2), np.int64)
    out[:] = nothing
    for row in range(counts.size):
        out[row, : counts[row]] = items[ptr[row] : ptr[row + 1]]
    return out


def thresholds(schedule: Schedule, width: int) -> Array:
    """Return (semaphore, additions it needs in all) of each wait, by walking the rows."""
    spent: dict[int, int] = {}
    out = np.empty((schedule.wait_row.size, 2), np.int64)
    for wait, row in enumerate(schedule.wait_row.tolist()):
        semaphore = int(schedule.waits.semaphore[wait])
        key = int(schedule.rows.rank[row]) * width + semaphore
        initial = schedule.semaphores[semaphore].initial
        out[wait] = key, int(schedule.waits.at_least[wait]) + spent.get(key, 0) - initial
        spent[key] = spent.get(key, 0) + int(schedule.waits.subtract[wait])
    return out


def _accesses(schedule: Schedule) -> Array:
    """Return row, rank, buffer, start, end, writes of every access, shape (accesses, 6)."""
    out: list[tuple[int, ...]] = []
    for table, writes in ((schedule.sources, 0), (schedule.targets, 1)):
        row = np.repeat(np.arange(len(schedule)), np.diff(table.ptr))
        end = table.offset + schedule.rows.size[row]
        columns: tuple[Any, ...] = (row, table.rank, table.buffer, table.offset, end)
        out += [(*item, writes) for item in zip(*(column.tolist() for column in columns), strict=True)]
    return np.array(out, np.int64).reshape(-1, 6)


def races(schedule: Schedule, before: Bool) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows that touch the same bytes, one of them writing, and are not ordered."""
    access = _accesses(schedule)
    row, rank, buffer, start, end, writes = access.T
    memory = rank * len(schedule.buffers) + buffer
    clash = (memory[:, None] == memory) & (start[:, None] < end) & (start < end[:, None])
    clash &= (writes[:, None] | writes).astype(np.bool_)
    unordered = ~before[row[:, None], row] & ~before[row, row[:, None]] & (row[:, None] < row)
    for first, second in zip(*np.nonzero(clash & unordered), strict=True):
        yield int(row[first]), int(row[second])


def _foreign(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Yield (row, rank) for each access to a user buffer of another rank than the row's own."""
    for row, rank, buffer, *_ in _accesses(schedule).tolist():
        if schedule.buffers[buffer].user and schedule.rows.rank[row] != rank:
            yield row, rank


def not_entered(schedule: Schedule, before: Bool) -> Iterator[tuple[int, int]]:
    for row, rank in _foreign(schedule):
        own = np.flatnonzero(schedule.rows.rank == rank)
        if not before[own, row].any():
            yield row, int(own[0]) if own.size else -1


def not_finished(schedule: Schedule, before: Bool) -> Iterator[tuple[int, int]]:
    lane = schedule.rows.rank.astype(np.int64) * 256 + schedule.rows.queue
    for row, rank in _foreign(schedule):
        ends = [int(np.flatnonzero(lane == name)[-1]) for name in np.unique(lane[schedule.rows.rank == rank])]
        if not any(before[row, end] for end in ends):
            yield row, max(ends, default=-1)
