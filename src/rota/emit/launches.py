"""What a stream processor starts at once, as columns: rows of ring channels, and batches of event lists.

A row of a ring channel is all moves of one (rank, queue, leg, step, part). A batch of an event list is the rows from
one that waits, or is fenced, to the next such one; it may be cut where the descriptors of one start get too many.
Source: device-model §4, a row; §5.5, events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze_columns
from rota.emit.activities import PEER_ROLES, Activities, Activity
from rota.schedule.ir import Schedule

DIRECT: Final = 3
"""Semaphores that an event record increments without a transfer. Source: device §5, high."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """One entry per start, lane after lane, in queue order.

    Attributes:
        lane: rank x 256 + queue. activity: index into `Activities.table`.
        first: row of the schedule that begins it.
        ring: row of a ring channel; receives, sends, wait_peers, signal_peers are those of its slot entry.
        fence: of an event list, whether all that was started before must have completed.
        dma: descriptors are started. direct: its signals are the processor's own, without a transfer.
        completes: a packet at its end says that it has completed.
        last: nothing is started after it in its lane and activity.
    """

    lane: I64
    activity: I64
    first: I64
    ring: Bool
    receives: Bool
    sends: Bool
    wait_peers: Bool
    signal_peers: Bool
    fence: Bool
    dma: Bool
    direct: Bool
    completes: Bool
    last: Bool

    def __post_init__(self) -> None:
        freeze_columns(self)

    @property
    def rank(self) -> I64:
        """Member that starts it."""
        return self.lane >> 8

    @property
    def queue(self) -> I64:
        """Queue of the schedule."""
        return self.lane & 255

    @property
    def walk(self) -> I64:
        """Number of the (lane, activity) each belongs to, ascending from 0."""
        fresh = np.ones(self.lane.size, np.bool_)
        fresh[1:] = (np.diff(self.lane) != 0) | (np.diff(self.activity) != 0)
        return np.cumsum(fresh) - 1


def launches(schedule: Schedule, parts: Activities, *, weight: I64, most: int) -> tuple[Launches, I64]:
    """Return the starts of a schedule, and for each of its rows the start it is part of; -1 for rows of proxies.

    Args:
        weight: descriptors of each row on one fold, at most.
        most: descriptors that one start may have on a fold.
    """
    rows = schedule.rows
    own = np.flatnonzero(parts.of_row >= 0)
    order = own[np.argsort(schedule.lane[own], kind="stable")]
    lane, activity = schedule.lane[order], parts.of_row[order]
    ring = np.array([each.ring for each in parts.table], np.bool_)[activity]
    waits = np.diff(schedule.waits.ptr)[order] > 0
    walk_start = np.ones(order.size, np.bool_)
    walk_start[1:] = (np.diff(lane) != 0) | (np.diff(activity) != 0)
    names = np.stack([rows.leg[order], rows.step[order], rows.part[order]]).astype(np.int64)
    step = np.zeros(order.size, np.bool_)
    step[1:] = (np.diff(names, axis=1) != 0).any(axis=0)
    fresh = walk_start | np.where(ring, step, waits | rows.fence[order])
    fresh |= ~ring & _cuts(fresh, weight[order], most)
    owner = np.full(len(schedule), -1, np.int64)
    owner[order] = np.cumsum(fresh) - 1
    return _columns(schedule, parts, owner, order[fresh], lane[fresh], activity[fresh], ring[fresh]), owner


def _cuts(fresh: Bool, weight: I64, most: int) -> Bool:
    """Say where batches that are too heavy are cut: at every half of what may be started at once.

    A row that is heavier than that stands alone, so that no part of several rows is heavier than the whole.
    """
    half = max(most // 2, 1)
    before = np.cumsum(weight) - weight
    start = np.maximum.accumulate(np.where(fresh, np.arange(fresh.size), 0))
    part = (before - before[start]) // half
    out = np.zeros(fresh.size, np.bool_)
    out[1:] = (np.diff(part) != 0) | (np.maximum(weight[1:], weight[:-1]) > half)
    return out & ~fresh


def _columns(
    schedule: Schedule, parts: Activities, owner: I64, first: I64, lane: I64, activity: I64, ring: Bool
) -> Launches:
    n = first.size
    gates = _gates(schedule, parts, owner, n)
    row = np.flatnonzero((owner >= 0) & (schedule.rows.size > 0))
    data = np.bincount(owner[row], minlength=n) > 0
    signals, plain, peers = _signals(schedule, parts, owner, n)
    walk_start = np.ones(n, np.bool_)
    walk_start[1:] = (np.diff(lane) != 0) | (np.diff(activity) != 0)
    fence = schedule.rows.fence[first] & ~ring & ~walk_start
    heavy = data | ((signals > 0) & ((signals > DIRECT) | ~plain))
    begins = walk_start | fence
    since = _since(heavy, begins)
    direct = ~ring & (signals > 0) & ~heavy & ~since
    dma = ring | heavy | ((signals > 0) & ~direct)
    last = np.append(walk_start[1:], np.ones(min(n, 1), np.bool_))
    return Launches(
        lane=lane,
        activity=activity,
        first=first,
        ring=ring,
        receives=gates[0],
        sends=gates[1],
        wait_peers=gates[2] | gates[3],
        signal_peers=peers & ring,
        fence=fence & _since(dma, begins, before=True),
        dma=dma,
        direct=direct,
        completes=ring | _completes(dma, fence, walk_start),
        last=last,
    )


def _gates(schedule: Schedule, parts: Activities, owner: I64, n: int) -> Bool:
    """Say which starts of ring channels wait for data, credit and peers, shape (4, starts)."""
    out = np.zeros((4, n), np.bool_)
    start = owner[schedule.wait_row]
    for role, name in enumerate(("recv", "credit", "ready", "done")):
        held = np.zeros(len(schedule.semaphores), np.bool_)
        held[[i for each in parts.table if (i := _semaphore(each, name)) >= 0]] = True
        chosen = held[schedule.waits.semaphore] & (start >= 0)
        out[role, start[chosen]] = True
    return out


def _semaphore(activity: Activity, role: str) -> int:
    return int(getattr(activity, role)) if activity.ring else -1


def peer_signals(schedule: Schedule, parts: Activities) -> Bool:
    """Say which signals a KangaRing's processor performs itself, since its record names the peers."""
    held = np.zeros(len(schedule.semaphores), np.bool_)
    held[[i for each in parts.table for role in PEER_ROLES if (i := _semaphore(each, role)) >= 0]] = True
    found: Bool = held[schedule.signals.semaphore]
    return found


def _signals(schedule: Schedule, parts: Activities, owner: I64, n: int) -> tuple[I64, Bool, Bool]:
    """Return, of each start, how many signals it has, whether each adds one, and whether it tells its peers."""
    start = owner[schedule.signal_row]
    own, told = start >= 0, peer_signals(schedule, parts)
    peers = np.zeros(n, np.bool_)
    peers[start[own & told]] = True
    count = np.bincount(start[own & ~told], minlength=n)
    plain = np.bincount(start[own & ~told], schedule.signals.add[own & ~told] != 1, n) == 0
    return count, plain, peers


def _since(started: Bool, begins: Bool, *, before: bool = False) -> Bool:
    """Say whether anything was started before each, since its walk began or a fence was passed.

    Args:
        before: what stands before a fence counts for the fence itself.
    """
    total: I64 = np.cumsum(started) - started
    mark = np.flatnonzero(begins)
    at = np.searchsorted(mark, np.arange(started.size), side="left" if before else "right") - 1
    found: Bool = (total - total[mark[np.maximum(at, 0)]] > 0) & (at >= 0)
    return found


def _completes(dma: Bool, fence: Bool, walk_start: Bool) -> Bool:
    """Say which start of an event list is the last before a fence or the end, and so tells that it has completed."""
    segment = np.cumsum(fence | walk_start) - 1
    last = np.full(int(segment.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, segment[dma], np.flatnonzero(dma))
    out = np.zeros(dma.size, np.bool_)
    out[last[last >= 0]] = True
    return out
