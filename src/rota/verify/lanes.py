"""Lanes: the in-order queues of a schedule, numbered without gaps, and their rows in queue order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, pointers
from rota.schedule.ir import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The queues of a schedule, ordered by (rank, queue). Lane q has rows `rows[ptr[q]]` to `rows[ptr[q + 1]]`.

    Attributes:
        of: lane of each row.
        rank: rank of each lane.
    """

    of: I64
    rank: I64
    rows: I64
    ptr: I64

    @property
    def count(self) -> int:
        """Queues that have a row."""
        return self.rank.size

    @property
    def first(self) -> I64:
        """First row of each lane."""
        return self.rows[self.ptr[:-1]]

    @property
    def last(self) -> I64:
        """Last row of each lane."""
        return self.rows[self.ptr[1:] - 1]


def lanes(schedule: Schedule) -> Lanes:
    """Return the queues of a schedule; time is a radix sort of the rows."""
    rank = schedule.rows.rank.astype(np.int64)
    width = int(schedule.rows.queue.max(initial=0)) + 1
    name = rank * width + schedule.rows.queue
    counts = np.bincount(name, minlength=schedule.ranks * width)
    used = np.flatnonzero(counts)
    number = np.cumsum(counts > 0) - 1
    lane = number[name]
    return Lanes(of=lane, rank=used // width, rows=by_key(lane, used.size), ptr=pointers(counts[used]))


def by_key(key: I64, keys: int) -> I64:
    """Return the stable order of entries by key; up to 16 bits sort by radix."""
    return np.argsort(key.astype(np.uint16) if keys <= 1 << 16 else key, kind="stable")


def last_fence(schedule: Schedule, queues: Lanes) -> I64:
    """Return, for each row, the last fenced row of its queue up to and including it; -1 for none."""
    out = np.full(len(schedule), -1, np.int64)
    if not schedule.rows.fence.any():
        return out
    rows, position = queues.rows, np.arange(len(schedule))
    latest = np.maximum.accumulate(np.where(schedule.rows.fence[rows], position, -1))
    found = latest >= np.repeat(queues.ptr[:-1], np.diff(queues.ptr))
    out[rows[found]] = rows[latest[found]]
    return out
