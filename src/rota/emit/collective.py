"""One collective of a program on its way to bytes: what it starts, signals and moves, on all its ranks at once.

What depends on the rest of the program comes from outside: where members and buffers lie, which semaphores it has,
which feed words its ranks have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Bool
from rota.emit.activities import Activities, activities
from rota.emit.allocation import Shape
from rota.emit.descriptors import Rings, join, scatter
from rota.emit.events import EventLists, event_lists
from rota.emit.launches import Launches, launches, peer_signals
from rota.emit.moves import Cut, cut_moves, pack_moves
from rota.emit.placement import Placement
from rota.emit.signals import Told, pack_signals, signals_of
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa import arch as isa
from rota.isa.descriptors import LIMITS
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm
from rota.isa.network import PROXY_QUEUE
from rota.isa.ring_cursor import GUARD
from rota.schedule.ir import Schedule

RING_SIZE: Final = 4096
RING_SOURCE: Final = Source("sdma", "14.6", HIGH)
COUNTER_SOURCE: Final = Source("sdma", "7", HIGH)
CREDITS_SOURCE: Final = Source("device-model", "5.3, credits", CONVENTION)
QUEUES_SOURCE: Final = Source("sdma", "1", HIGH)


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective of a program, as EMIT takes it.

    Attributes:
        algorithm: as its control entries call it; None where nothing is known but the schedule.
        scales: of an FMA, as `execute` takes them.
        member: of the program, for each rank of the schedule.
        buffers: of the program, for each buffer of the schedule.
        groups: members of the program that meet, each in the order of its communicator.
        shape: collectives with one number share semaphores, channel records and scratch, one run after another.
        turn: how many runs of the same shape come before it.
        stream: collectives of one stream run one after another, streams at the same time.
    """

    schedule: Schedule
    dtype: Dtype
    algorithm: Algorithm | None
    scales: Sequence[float]
    member: I64
    buffers: I64
    groups: Sequence[Sequence[int]]
    shape: int = 0
    turn: int = 0
    stream: int = 0

    @property
    def proxied(self) -> bool:
        """Whether network proxies carry some of it."""
        return bool((self.schedule.rows.queue >= PROXY_QUEUE).any())


@dataclass(frozen=True, slots=True, eq=False)
class Walks:
    """One entry per (lane, activity) of a collective: what one stream processor of one member runs in one entry.

    Activities of one leg have the same neighbours and peers.

    Attributes:
        member: of the program. start: first of its starts; one longer than the others.
        following, preceding: of a ring channel, the members it sends to and receives from; itself where it has none.
        peers: of a KangaRing, the members it tells; -1 where there are fewer, shape (walks, 3).
        primary: of a KangaRing, whether it is on the ring.
    """

    member: I64
    activity: I64
    start: I64
    following: I64
    preceding: I64
    peers: I64
    primary: Bool


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a collective starts and signals; the rest needs the feed words of the whole program.

    Attributes:
        mask: engines of each queue of the schedule, shape (256,).
    """

    of: Collective
    shape: Shape
    folds: int
    parity: int
    starts: Launches
    owner: I64
    cut: Cut
    launch_of_move: I64
    told: Told
    mask: I64

    @property
    def parts(self) -> Activities:
        """The activities of the schedule."""
        return self.shape.parts


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """A collective as descriptors, event lists and walks."""

    plan: Plan
    rings: Rings
    lists: EventLists
    walks: Walks


def split(collective: Collective) -> Activities:
    """Return the activities of a collective's schedule."""
    return activities(collective.schedule, collective.algorithm)


def plan(collective: Collective, shape: Shape, at: Placement, *, folds: int) -> Plan:
    """Return what a collective starts and signals.

    Raises:
        UnsupportedError: the schedule needs what the machine does not have.
    """
    schedule = collective.schedule
    parity = 0 if shape.carries else collective.turn % 2
    move = np.flatnonzero((schedule.rows.size > 0) & (shape.parts.of_row >= 0))
    cut = cut_moves(schedule, move, collective.dtype, at.arch, folds)
    most = RING_SIZE - GUARD
    weight = np.bincount(schedule.signal_row, minlength=len(schedule)) + 1
    weight[move] += cut.each * np.maximum(cut.reads, cut.writes)
    starts, owner = launches(schedule, shape.parts, weight=weight, most=most)
    by_launch = np.argsort(owner[move], kind="stable")
    move = move[by_launch]
    cut = cut_moves(schedule, move, collective.dtype, at.arch, folds)
    homes = shape.homes(folds=folds, parity=parity)
    told = signals_of(schedule, shape.parts, starts, owner, homes, collective.member, folds)
    _check_credits(schedule, shape.parts, starts)
    return Plan(
        of=collective,
        shape=shape,
        folds=folds,
        parity=parity,
        starts=starts,
        owner=owner,
        cut=cut,
        launch_of_move=owner[move],
        told=told,
        mask=_masks(shape.parts, folds),
    )


def _masks(parts: Activities, folds: int) -> I64:
    """Return the engines of each queue: 16 queues to a set of engines, then the next set.

    Raises:
        UnsupportedError: there are not so many engines.
    """
    group = np.arange(256) // isa.QUEUES
    used = np.array([activity.queue for activity in parts.table], np.int64)
    beyond = used[(group[used] + 1) * folds > isa.ENGINES]
    if beyond.size:
        raise UnsupportedError(
            f"{used.max() + 1} queues of {folds} folds: {isa.ENGINES} engines of {isa.QUEUES} queues take at most "
            f"{isa.ENGINES // folds * isa.QUEUES}",
            source=QUEUES_SOURCE,
        )
    shift = np.minimum(group * folds, isa.ENGINES * 2)
    return ((1 << folds) - 1) << shift


def write(done: Plan, feed: I64, at: Placement) -> Emitted:
    """Return the descriptors and event lists of a collective.

    Args:
        feed: which feed word of its rank each packet of `done.told` adds.

    Raises:
        UnsupportedError: a start or a channel needs more descriptors than a ring or a counter takes.
    """
    schedule, starts, folds, member = done.of.schedule, done.starts, done.folds, done.of.member
    buffers = at.buffers[done.of.buffers]
    n = starts.lane.size
    launch = done.launch_of_move
    moves = pack_moves(
        schedule, done.cut, launch, dtype=done.of.dtype, scales=done.of.scales, at=at, member=member, buffers=buffers
    )
    tx = np.bincount(launch, done.cut.each * done.cut.reads, n).astype(np.int64)
    rx = np.bincount(launch, done.cut.each * done.cut.writes, n).astype(np.int64)
    has_data = np.zeros((n, folds), np.bool_)
    np.logical_or.at(has_data, launch, done.cut.length > 0)
    signals = np.bincount(done.told.launch, minlength=n)
    has_data = _pending(has_data, signals > 0, starts.lane)
    m2s, s2m = tx + signals, rx + signals
    _check_counts(schedule, starts, m2s, s2m, folds)
    packets = pack_signals(done.told, starts, (tx, rx), feed, has_data, at=at, member=member, folds=folds)
    rings = scatter(join(moves, packets), starts, m2s, s2m, folds)
    homes = done.shape.homes(folds=folds, parity=done.parity)
    lists = event_lists(schedule, starts, done.owner, homes, at=at, member=member, mask=done.mask)
    return Emitted(done, rings, lists, _walks(done))


def _pending(has_data: Bool, tells: Bool, lane: I64) -> Bool:
    """Say on which folds data has been started since the last signal of the lane, this start's own data included."""
    fresh = np.ones(tells.size, np.bool_)
    fresh[1:] = tells[:-1] | (np.diff(lane) != 0)
    group = np.cumsum(fresh) - 1
    found = np.zeros((int(group.max(initial=-1)) + 1, has_data.shape[1]), np.bool_)
    np.logical_or.at(found, group, has_data)
    pending: Bool = found[group]
    return pending


def _check_counts(schedule: Schedule, starts: Launches, m2s: I64, s2m: I64, folds: int) -> None:
    either = np.maximum(m2s, s2m)
    longest = int(either.max(initial=0))
    if longest > RING_SIZE - GUARD:
        heavy = int(np.argmax(either))
        raise UnsupportedError(
            f"{schedule.name(int(starts.first[heavy]))}: needs {longest} descriptors on one of {folds} folds, and a "
            f"ring of {RING_SIZE} takes {RING_SIZE - GUARD}; use more folds",
            source=RING_SOURCE,
        )
    ring = starts.ring
    walk = starts.walk
    most = int(
        max(np.bincount(walk[ring], m2s[ring]).max(initial=0), np.bincount(walk[ring], s2m[ring]).max(initial=0))
    )
    cap = LIMITS["cayman"].max_descriptors_per_channel
    if most > cap:
        raise UnsupportedError(
            f"a channel needs {most} descriptors for one operation, and its counter ends at {cap}; use a smaller size",
            source=COUNTER_SOURCE,
        )


def _check_credits(schedule: Schedule, parts: Activities, starts: Launches) -> None:
    """Each channel can send once more than it does before it first receives, or the ring waits for itself.

    Channels without initial credit get theirs from their neighbour.
    """
    credit = np.array([activity.credit for activity in parts.table], np.int64)
    initial = np.append([semaphore.initial for semaphore in schedule.semaphores], 0)[credit]
    order, walk = _legs(parts, starts)
    begin = np.flatnonzero(np.diff(walk, prepend=-1))
    receives, sends_too = starts.receives[order], starts.sends[order]
    received = np.cumsum(receives)
    early: Bool = received - (received - receives)[begin][walk] == 0
    before = np.bincount(walk[early & sends_too], minlength=begin.size)
    begin = order[begin]
    has = initial[starts.activity[begin]]
    flows = np.bincount(walk[receives], minlength=begin.size) > 0
    sends = np.bincount(walk[sends_too], minlength=begin.size)
    short = starts.ring[begin] & flows & (has > 0) & (has <= before) & (has < sends)
    if short.any():
        one = int(np.argmax(short))
        at = int(begin[one])
        raise UnsupportedError(
            f"rank {starts.rank[at]} channel {starts.queue[at]}: sends {before[one]} times before it first receives, "
            f"so it needs a credit of at least {before[one] + 1}, and has {has[one]}; use more slots",
            source=CREDITS_SOURCE,
        )


def _walks(done: Plan) -> Walks:
    """Return the walks of a collective, with the neighbours and peers that the signals of ring channels name.

    Raises:
        UnsupportedError: a KangaRing has other than 1 or 3 peers.
    """
    schedule, starts, parts, member = done.of.schedule, done.starts, done.parts, done.of.member
    order, ordered = _legs(parts, starts)
    leg = np.empty(order.size, np.int64)
    leg[order] = ordered
    own = member[starts.rank[order[np.flatnonzero(np.diff(ordered, prepend=-1))]]]
    following, preceding = own.copy(), own.copy()
    signals = schedule.signals
    launch = done.owner[schedule.signal_row]
    for role, out in (("recv", following), ("credit", preceding)):
        named = np.zeros(len(schedule.semaphores), np.bool_)
        named[[i for a in parts.table if a.ring and (i := int(getattr(a, role))) >= 0]] = True
        chosen = named[signals.semaphore] & (launch >= 0)
        out[leg[launch[chosen]]] = member[signals.rank[chosen].astype(np.int64)]
    peers = np.full((own.size, 3), -1, np.int64)
    primary = np.zeros(own.size, np.bool_)
    told = np.flatnonzero(peer_signals(schedule, parts) & (launch >= 0))
    done_semaphores = [a.done for a in parts.table if a.done >= 0]
    if told.size:
        pairs = np.unique(np.stack([leg[launch[told]], member[signals.rank[told].astype(np.int64)]]), axis=1)
        place = np.arange(pairs.shape[1]) - np.searchsorted(pairs[0], pairs[0])
        count = np.bincount(pairs[0], minlength=own.size)
        primary[leg[launch[told[np.isin(signals.semaphore[told], done_semaphores)]]]] = True
        odd = primary & ~np.isin(count, (1, 3)) | ((count > 1) & ~primary)
        if odd.any():
            queue, found = starts.queue[leg == np.argmax(odd)][0], count[np.argmax(odd)]
            raise UnsupportedError(f"KangaRing channel {queue}: {found} peers, and a record has 1 or 3")
        peers[pairs[0], place] = pairs[1]
    begin = np.flatnonzero(np.diff(starts.walk, prepend=-1))
    of = leg[begin]
    ends = np.append(begin, starts.lane.size)
    return Walks(own[of], starts.activity[begin], ends, following[of], preceding[of], peers[of], primary[of])


def _legs(parts: Activities, starts: Launches) -> tuple[I64, I64]:
    """Return the starts lane after lane, leg after leg, and the number of the (lane, leg) each of them is of."""
    key = starts.lane * max(len(parts.table), 1) + parts.homes[starts.activity]
    order = np.argsort(key, kind="stable")
    return order, np.cumsum(np.diff(key[order], prepend=-1) != 0) - 1
