"""Which part of a schedule each stream processor runs, and in which form: ring channel or event list.

A queue's rows fall into activities, one after another; the i-th activities of all queues are the i-th control entry of
the operation. Rows whose waits are those of a ring channel (data, credit, and the peers of a KangaRing) run as a
channel; all others, and rows that no ring channel can express, as a list of mesh events. A queue may come back to a
leg, as the chunks of a pipelined hierarchy do: each time is an activity, and they share semaphores and channel record.
Queue q runs on stream processor S - 1 - q mod S. Source: device-model §4 and §5.4, conventions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze, owners
from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm, Pattern
from rota.isa.network import PROXY_QUEUE
from rota.isa.spad import PATTERN_OF_ALGORITHM
from rota.schedule.ir import Schedule

RING_ROLES: Final = ("recv", "credit")
PEER_ROLES: Final = ("ready", "done")
_ROLE: Final = re.compile(r"(|.*\.)(recv|credit|ready|done)(?:\.\d+)?", re.ASCII)
_NETWORK: Final = re.compile(r"net\.\d+", re.ASCII)
# Legs of a hierarchy by what their semaphores are called; of an activity, the first that fits. Else MESH or RING.
_FAMILIES: Final = (
    (re.compile(r".*\b(peers|local|arrived|read|axes|axes_2)\b.*", re.ASCII), Algorithm.INTRA_RDH),
    (re.compile(r".*\b(halve|double)\b.*", re.ASCII), Algorithm.INTER_RDH),
    (re.compile(r".*\bready\b.*", re.ASCII), Algorithm.KANGARING),
    (re.compile(r"(|.*\.)credit", re.ASCII), Algorithm.SINGLE_CYCLE_RING),
)


@dataclass(frozen=True, slots=True)
class Activity:
    """What one queue does in one control entry, on every rank that has rows of it.

    Attributes:
        entry: of the operation, from 0.
        recv, credit, ready, done: semaphores of the schedule that a ring channel waits on; -1 where it has none.
        waited: semaphores of the schedule that an event list waits on, ascending.
        shares: the first activity of the same leg, whose semaphores and record it has; -1 where that is itself.
    """

    queue: int
    entry: int
    ring: bool
    algorithm: Algorithm
    recv: int = -1
    credit: int = -1
    ready: int = -1
    done: int = -1
    waited: tuple[int, ...] = ()
    shares: int = -1

    @property
    def kangaring(self) -> bool:
        """Whether the channel has peers beside its ring."""
        return self.ready >= 0 or self.done >= 0


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """The activities of a schedule.

    Attributes:
        table: by entry, then queue.
        of_row: index into `table` of each row of the schedule; -1 for rows of network proxies.
        of_semaphore: index of the first activity that waits on each semaphore; -1 for those that proxies wait on.
    """

    table: tuple[Activity, ...]
    of_row: I64
    of_semaphore: I64

    @property
    def entries(self) -> int:
        """Control entries of the operation; none where it has no rows."""
        return 1 + max((activity.entry for activity in self.table), default=-1)

    @property
    def homes(self) -> I64:
        """Index of the activity whose semaphores and record each has."""
        return np.array([i if each.shares < 0 else each.shares for i, each in enumerate(self.table)], np.int64)

    @property
    def listed(self) -> Bool:
        """Which semaphores of the schedule an event list waits on."""
        other = np.array([*(activity.ring for activity in self.table), True])  # the last is that of no activity
        found: Bool = ~other[self.of_semaphore]
        return found


def activities(schedule: Schedule, algorithm: Algorithm | None) -> Activities:
    """Split the rows of a schedule.

    Args:
        algorithm: of the operation; one activity of each queue is called that, those of a hierarchy, and of what has no
            name of ours, by their semaphores.

    Raises:
        UnsupportedError: two queues wait on one semaphore.
    """
    names = [semaphore.name for semaphore in schedule.semaphores]
    prefix, ring_prefix = _prefixes(names)
    key = _keys(schedule, prefix, ring_prefix)
    own = np.flatnonzero(schedule.rows.queue < PROXY_QUEUE)
    if not own.size:
        return Activities((), np.full(len(schedule), -1, np.int64), np.full(len(names), -1, np.int64))
    found, first = np.unique(key[own], return_index=True)
    order = np.argsort(first, kind="stable")  # by first row in stored order
    place = np.empty(found.size, np.int64)
    place[order] = np.arange(found.size)
    of_row = np.full(len(schedule), -1, np.int64)
    of_row[own] = place[np.searchsorted(found, key[own])]
    rings = np.zeros(found.size, np.bool_)
    rings[place] = found & 1 == 1
    leg = np.arange(found.size)
    by_lane = own[np.argsort(schedule.lane[own], kind="stable")]
    lane, seen = schedule.lane[by_lane], of_row[by_lane]
    fits = _fits(schedule, of_row, ring_prefix, prefix) and _reaches(schedule, of_row, rings, names)
    if fits and ((np.diff(seen) < 0) & (np.diff(lane) == 0)).any():
        visit, leg = _visits(lane, seen) if rings.any() else (lane[:0], leg[:0])
        fits = leg.size > 0
        of_row[by_lane] = visit if fits else 0
    if not fits:
        found, of_row[own] = np.unique(schedule.rows.queue[own], return_inverse=True)
        leg = np.arange(found.size)
        rings = np.zeros(found.size, np.bool_)
    return _table(schedule, of_row, leg, rings, algorithm, names)


def _visits(lane: I64, leg: I64) -> tuple[I64, I64]:
    """Number the times that queues come to a leg, the same on every rank.

    Args:
        lane, leg: of each row, lane after lane in queue order.

    Returns:
        The number of each row's visit, and the leg of each visit, queue after queue in the order of its visits; none
        where ranks come to the legs of a queue in different orders.
    """
    fresh = np.ones(lane.size, np.bool_)
    fresh[1:] = (np.diff(lane) != 0) | (np.diff(leg) != 0)
    begin = np.flatnonzero(fresh)
    cuts = np.flatnonzero(np.diff(lane[begin])) + 1
    walks = [tuple(walk.tolist()) for walk in np.split(leg[begin], cuts)]
    queues = (lane[begin[np.append(0, cuts)]] & 255).tolist()
    whole: dict[int, tuple[int, ...]] = {}
    for queue, walk in zip(queues, walks, strict=True):
        whole[queue] = max(whole.get(queue, ()), walk, key=len)
    base, legs = {}, list[int]()
    for queue in sorted(whole):
        base[queue] = len(legs)
        legs += whole[queue]
    places = {pair: _places(pair[1], whole[pair[0]]) for pair in set(zip(queues, walks, strict=True))}
    if not all(places.values()):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    number = [base[queue] + place for queue, walk in zip(queues, walks, strict=True) for place in places[queue, walk]]
    return np.repeat(np.array(number, np.int64), np.diff(np.append(begin, lane.size))), np.array(legs, np.int64)


def _places(walk: tuple[int, ...], whole: tuple[int, ...]) -> list[int]:
    """Return where the legs of a walk are in a longer one, in order; none where they are not."""
    left = iter(enumerate(whole))
    found = [next((place for place, each in left if each == leg), -1) for leg in walk]
    return [] if -1 in found else found


def _prefixes(names: list[str]) -> tuple[I64, Bool]:
    """Return what each semaphore's name begins with, numbered, and whether all of that beginning make ring channels."""
    matches = [_ROLE.fullmatch(name) for name in names]
    begins = [match[1] if match else name.rpartition(".")[0] for match, name in zip(matches, names, strict=True)]
    known = {begin: i for i, begin in enumerate(dict.fromkeys(begins))}
    prefix = np.array([known[begin] for begin in begins], np.int64)
    ring = np.zeros(len(known), np.bool_)
    for begin, i in known.items():
        mine = [
            m for m, b, name in zip(matches, begins, names, strict=True) if b == begin and not _NETWORK.fullmatch(name)
        ]
        ring[i] = bool(mine) and all(mine) and any(m is not None and m[2] == "recv" for m in mine)
    return prefix, ring


def _keys(schedule: Schedule, prefix: I64, ring: Bool) -> I64:
    """Return what tells activities apart, one number a row: queue, then the ring's name or the leg; odd for rings.

    A row belongs to what it waits for, or else signals, or else to what the row before it in its queue belongs to.
    """
    rows = schedule.rows
    named = np.full(len(schedule), -1, np.int64)
    quiet = np.array([bool(_NETWORK.fullmatch(s.name)) for s in schedule.semaphores] + [False])
    for row, semaphore in (
        (schedule.signal_row, schedule.signals.semaphore),
        (schedule.wait_row, schedule.waits.semaphore),
    ):
        chosen = np.flatnonzero(~quiet[semaphore])[::-1]
        named[row[chosen]] = prefix[semaphore[chosen]]
    order = np.argsort(schedule.lane, kind="stable")
    known = named[order]
    start = np.concatenate(([True], np.diff(schedule.lane[order]) != 0)) if order.size else np.zeros(0, np.bool_)
    last = np.maximum.accumulate(np.where((known >= 0) | start, np.arange(order.size), 0))
    leg = rows.leg[order].astype(np.int64)
    same = leg[last] == leg
    known = np.where(same, known[last], -1)
    # rows in front of the first that is named belong to the next one that is
    nxt = np.minimum.accumulate(np.where(known >= 0, np.arange(order.size), order.size - 1)[::-1])[::-1]
    ahead = (known < 0) & (schedule.lane[order][nxt] == schedule.lane[order]) & (leg[nxt] == leg)
    known = np.where(ahead, known[nxt], known)
    is_ring = (known >= 0) & np.append(ring, False)[known]
    inner = np.where(is_ring, known, leg)
    key = np.empty(order.size, np.int64)
    key[order] = (rows.queue[order].astype(np.int64) << 40) | (inner << 1) | is_ring
    return key


def _fits(schedule: Schedule, of_row: I64, ring: Bool, prefix: I64) -> bool:
    """Say whether the rows of rings are rows of ring channels, and no semaphore is waited on by two activities.

    A step of a ring waits for one unit of data and one credit at most, each of one semaphore; a channel tells one rank
    of its data and one of its credit.
    """
    names = [_ROLE.fullmatch(semaphore.name) for semaphore in schedule.semaphores]
    kinds = {role: i for i, role in enumerate((*RING_ROLES, *PEER_ROLES))}
    role = np.array([kinds[match[2]] if match else -1 for match in names], np.int64)
    if not role.size:
        return True
    role[~ring[prefix]] = -1
    waits, rows = schedule.waits, schedule.rows
    inside = of_row[schedule.wait_row] >= 0
    row, semaphore = schedule.wait_row[inside], waits.semaphore[inside].astype(np.int64)
    pairs = np.unique(semaphore * (of_row.max() + 1) + of_row[row])
    if (np.diff(pairs // (of_row.max() + 1)) == 0).any():
        return False
    flow = (role[semaphore] >= 0) & (role[semaphore] < len(RING_ROLES))
    units = (waits.at_least[inside] == 1) & (waits.subtract[inside] == 1)
    if (flow & ~units).any():
        return False
    step = np.stack([schedule.lane[row], rows.leg[row], rows.step[row], rows.part[row], role[semaphore]])[
        :, role[semaphore] >= 0
    ]
    if _distinct(step).shape[1] < step.shape[1]:
        return False
    by_activity = np.stack([of_row[row], role[semaphore], semaphore])[:, role[semaphore] >= 0]
    by_activity = _distinct(by_activity)
    if _distinct(by_activity[:2]).shape[1] < by_activity.shape[1]:
        return False
    signals = schedule.signals
    told = role[signals.semaphore]
    lane = schedule.lane[schedule.signal_row]
    peers = np.stack([lane, signals.semaphore, signals.rank])[:, (told >= 0) & (told < len(RING_ROLES))].astype(
        np.int64
    )
    peers = _distinct(peers)
    return bool(_distinct(peers[:2]).shape[1] == peers.shape[1])


def _distinct(columns: I64) -> I64:
    """Return the different columns of a table."""
    ordered = columns[:, np.lexsort(columns)]
    fresh = np.ones(ordered.shape[1], np.bool_)
    fresh[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    return ordered[:, fresh]


def _reaches(schedule: Schedule, of_row: I64, rings: Bool, names: list[str]) -> bool:
    """Say whether plain ring channels read their own rank alone, and write there or to the rank they tell of data."""
    matches = [_ROLE.fullmatch(name) for name in names]
    role = np.array([match[2] if match else "" for match in matches], "U8")
    plain = rings.copy()
    inside = of_row >= 0
    peers = np.isin(role, PEER_ROLES)[schedule.waits.semaphore] & inside[schedule.wait_row]
    plain[of_row[schedule.wait_row[peers]]] = False
    mine = np.append(plain, False)[of_row]
    following = schedule.rows.rank.astype(np.int64)
    walk = schedule.lane * (rings.size + 1) + of_row
    told = np.flatnonzero((role[schedule.signals.semaphore] == RING_ROLES[0]) & mine[schedule.signal_row])
    known, first = np.unique(walk[schedule.signal_row[told]], return_index=True)
    if known.size:
        at = np.minimum(np.searchsorted(known, walk), known.size - 1)
        following = np.where(known[at] == walk, schedule.signals.rank[told[first]][at], following)
    reads, writes = owners(schedule.sources.ptr), owners(schedule.targets.ptr)
    pulls = schedule.sources.rank != schedule.rows.rank[reads]
    away = (schedule.targets.rank != schedule.rows.rank[writes]) & (schedule.targets.rank != following[writes])
    return not ((pulls & mine[reads]).any() or (away & mine[writes]).any())


def _table(
    schedule: Schedule, of_row: I64, leg: I64, rings: Bool, algorithm: Algorithm | None, names: list[str]
) -> Activities:
    """Return these activities.

    Args:
        of_row: activity of each row. leg: of each activity. rings: of each leg.

    Raises:
        UnsupportedError: two queues wait on one semaphore.
    """
    inside = of_row[schedule.wait_row] >= 0
    activity, semaphore = of_row[schedule.wait_row[inside]], schedule.waits.semaphore[inside].astype(np.int64)
    _, first_row = np.unique(np.append(-1, of_row), return_index=True)
    queues = schedule.rows.queue[first_row[1:] - 1].tolist()
    legs, first = np.unique(leg, return_index=True)
    home = np.zeros(rings.size, np.int64)
    home[legs] = first
    waited: dict[int, list[int]] = {}
    of_semaphore = np.full(len(names), -1, np.int64)
    for pair in np.unique(leg[activity] * max(len(names), 1) + semaphore).tolist():
        index, one = divmod(pair, len(names))
        if of_semaphore[one] >= 0:
            raise UnsupportedError(
                f"semaphore {names[one]}: queues {queues[of_semaphore[one]]} and {queues[home[index]]} wait on it, "
                "and it is on one stream processor; use one semaphore for each"
            )
        waited.setdefault(index, []).append(one)
        of_semaphore[one] = home[index]
    turn: dict[int, int] = {}
    table: list[Activity] = []
    for index, (queue, which) in enumerate(zip(queues, leg.tolist(), strict=True)):
        entry = turn.get(queue, 0)
        turn[queue] = entry + 1
        if home[which] != index:
            table.append(replace(table[home[which]], entry=entry, shares=int(home[which])))
            continue
        mine, ring = waited.get(which, []), bool(rings[which])
        called = algorithm if queues.count(queue) == 1 else None
        if called in (None, Algorithm.HIER) or (PATTERN_OF_ALGORITHM[called] is Pattern.RING) is not ring:
            called = _family([names[i] for i in mine], ring)
        if not ring:
            table.append(Activity(queue, entry, ring=False, algorithm=called, waited=tuple(mine)))
            continue
        roles = {match[2]: i for i in mine if (match := _ROLE.fullmatch(names[i]))}
        recv, credit, ready, done = (roles.get(role, -1) for role in (*RING_ROLES, *PEER_ROLES))
        table.append(Activity(queue, entry, True, called, recv=recv, credit=credit, ready=ready, done=done))
    freeze(of_row)
    return Activities(tuple(table), of_row, of_semaphore)


def _family(names: list[str], ring: bool) -> Algorithm:
    """Return what an activity is called in a control entry, by its semaphores."""
    for pattern, algorithm in _FAMILIES:
        if any(pattern.fullmatch(name) for name in names) and (
            ring or algorithm not in (Algorithm.KANGARING, Algorithm.SINGLE_CYCLE_RING)
        ):
            return algorithm
    return Algorithm.RING if ring else Algorithm.MESH
