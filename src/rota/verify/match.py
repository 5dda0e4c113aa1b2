"""Matching: which signals a wait is released by, and what must hold for no others to release it.

A wait needs additions up to its threshold. From one queue signals come in order, so the prefix that reaches the
threshold is exact. From several, a wait claims the signals performed before it in one execution: they must add up to
exactly the threshold, and no producer may perform its next one before the wait has started. If that holds of all
waits, no execution releases a wait by anything else: take the first one that did, up to it all claims hold, and by the
second condition only claimed signals were performed. Source: schedule §5 (2, 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Bool, pointers, ranges
from rota.schedule.ir import Schedule
from rota.verify.lanes import Lanes, by_key


class Signals:
    """The signals by semaphore, in stored order within one. Semaphores are numbered rank x semaphores + semaphore.

    Attributes:
        entry, row, lane: of each signal, its index in the schedule, its row and the queue of that.
        first: where each semaphore's signals begin.
        total: additions by all signals in front of each.
        shared: semaphores that several queues signal.
    """

    def __init__(self, schedule: Schedule, queues: Lanes) -> None:
        signals, width = schedule.signals, max(len(schedule.semaphores), 1)
        self.width, self.keys = width, schedule.ranks * width
        key = signals.rank.astype(np.int64) * width + signals.semaphore
        self.entry = by_key(key, self.keys)
        counts = np.bincount(key, minlength=self.keys)
        self.first = pointers(counts)
        self.total = pointers(signals.add[self.entry])
        self.row = schedule.signal_row[self.entry]
        self.lane = queues.of[self.row]
        self.shared = np.zeros(self.keys, np.bool_)
        used = np.flatnonzero(counts)
        if used.size:
            starts = self.first[used]
            self.shared[used] = np.minimum.reduceat(self.lane, starts) != np.maximum.reduceat(self.lane, starts)

    @property
    def added(self) -> I64:
        """What each semaphore is given in all."""
        return np.diff(self.total[self.first])

    def reaching(self, goal: I64) -> I64:
        """Return the signals with which the total reaches these goals, which are above 0 and at most the whole."""
        if self.total[-1] == self.entry.size:  # each adds 1
            return goal - 1
        reached: I64 = np.searchsorted(self.total, goal) - 1
        return reached

    def before(self, key: I64, row: I64) -> I64:
        """Return where the signals of `key` that rows before `row` perform end."""
        wanted = np.unique(key)
        counts = self.first[wanted + 1] - self.first[wanted]
        at = ranges(self.first[wanted], counts)
        span = int(self.row.max(initial=0)) + int(row.max(initial=0)) + 2
        within = np.searchsorted(np.repeat(wanted, counts) * span + self.row[at], key * span + row)
        place = np.append(at, self.entry.size)[within]
        clipped: I64 = np.clip(place, self.first[key], self.first[key + 1])
        return clipped

    def previous(self, key: I64) -> I64:
        """Return, for each signal of these semaphores, the one before it of the same queue; -1 for none and others."""
        out = np.full(self.entry.size, -1, np.int64)
        counts = np.diff(self.first)[key]
        at, owner = ranges(self.first[key], counts), np.repeat(key, counts)
        order = np.lexsort((at, self.lane[at], owner))
        at, owner = at[order], owner[order]
        same = (owner[1:] == owner[:-1]) & (self.lane[at[1:]] == self.lane[at[:-1]])
        out[at[1:][same]] = at[:-1][same]
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The waits by semaphore, in stored order within one.

    Attributes:
        entry, row, key: of each wait, its index in the schedule, its row and its semaphore.
        threshold: additions it needs in all since the start; 0 or less needs none. Source: schedule §2 (4).
        taken: what the waits on each semaphore subtract in all.
    """

    entry: I64
    row: I64
    key: I64
    threshold: I64
    taken: I64


def needs(schedule: Schedule) -> Needs:
    """Return what each wait needs."""
    waits, width = schedule.waits, max(len(schedule.semaphores), 1)
    keys = schedule.ranks * width
    key = schedule.rows.rank[schedule.wait_row].astype(np.int64) * width + waits.semaphore
    entry = by_key(key, keys)
    first = pointers(np.bincount(key, minlength=keys))
    spent = pointers(waits.subtract[entry])
    start = np.tile(np.array([s.initial for s in schedule.semaphores] or [0], np.int64), schedule.ranks)
    start += spent[first[:-1]]
    key = key[entry]
    threshold = waits.at_least[entry] + spent[:-1] - start[key]
    return Needs(entry, schedule.wait_row[entry], key, threshold, np.diff(spent[first]))


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """The edges of the order of a schedule.

    Attributes:
        runs: whether the stored order is an execution; without that nothing else holds.
        signal, wait: for each edge, the row that signals, and the row that starts only after it.
        excess, surplus: waits before which several queues have signalled more than they need, and the row that does.
        claimant, next_signal: a wait, and the row of a signal that must not be performed before it starts.
            Waits are positions in `Needs`.
    """

    runs: bool
    signal: I64
    wait: I64
    excess: I64
    surplus: I64
    claimant: I64
    next_signal: I64


def match(given: Signals, waits: Needs, queues: Lanes) -> Matching:
    """Return what releases each wait. Time is that of a few passes over signals and waits."""
    needy = waits.threshold > 0
    shared = needy & given.shared[waits.key]
    single, several = np.flatnonzero(needy & ~shared), np.flatnonzero(shared)
    key = waits.key[single]
    goal = waits.threshold[single] + given.total[given.first[key]]
    runs = bool((goal <= given.total[given.first[key + 1]]).all())
    last = given.row[given.reaching(goal)] if runs else np.zeros(single.size, np.int64)
    row = waits.row[single]
    claims = _Claims(given, waits, several, queues)
    return Matching(
        runs=runs and bool((last < row).all()) and claims.runs,
        signal=np.concatenate((last, given.row[claims.claimed])),
        wait=np.concatenate((row, waits.row[claims.claimant])),
        excess=claims.excess,
        surplus=given.row[claims.surplus],
        claimant=claims.exposed,
        next_signal=given.row[claims.following],
    )


class _Claims:
    """The claims of the waits on semaphores that several queues signal; signals are positions in `Signals`.

    Attributes:
        runs: whether each wait has what it needs from the rows before it.
        claimed, claimant: pairs of a signal and the wait that claims it; what an earlier wait of the same queue has
            claimed is not claimed again.
        excess, surplus: waits that have more, and the first signal too many.
        exposed, following: pairs of a wait and the next signal of a producer, which must come after it.
    """

    def __init__(self, given: Signals, waits: Needs, some: I64, queues: Lanes) -> None:
        lane = queues.of[waits.row[some]]
        order = np.lexsort((some, lane, waits.key[some]))
        some, lane = some[order], lane[order]
        key, goal = waits.key[some], waits.threshold[some]
        cut = given.before(key, waits.row[some])
        fresh = np.ones(key.size, np.bool_)
        fresh[1:] = (key[1:] != key[:-1]) | (lane[1:] != lane[:-1])
        begin = np.where(fresh, given.first[key], np.roll(cut, 1))
        base = given.total[given.first[key]]
        over = given.total[cut] - base - goal
        self.runs = bool((over >= 0).all())
        self.claimed, self.claimant = ranges(begin, cut - begin), np.repeat(some, cut - begin)
        self.excess = some[over > 0]
        self.surplus = given.reaching((goal + base)[over > 0] + 1)
        self.exposed, self.following = _next(given, some, key, cut, fresh)


def _next(given: Signals, waits: I64, key: I64, cut: I64, fresh: Bool) -> tuple[I64, I64]:
    """Pair each signal with the last wait of each queue that came before it, but after the producer's previous one.

    Args:
        waits: ordered by semaphore, waiting queue and row; `fresh` where one of the first two changes.
        cut: the signals of the semaphore `key` in front of each wait end here.
    """
    starts = np.flatnonzero(fresh)
    if not starts.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    group = np.cumsum(fresh) - 1
    owner = key[starts]
    counts = given.first[owner + 1] - given.first[owner]
    at, of = ranges(given.first[owner], counts), np.repeat(np.arange(starts.size), counts)
    span = given.entry.size + 1
    latest = np.searchsorted(group * span + cut, of * span + at, side="right") - 1
    inside = (latest >= 0) & (group[latest] == of)
    if not inside.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    inside &= cut[latest] > given.previous(np.unique(owner))[at]
    return waits[latest[inside]], at[inside]
