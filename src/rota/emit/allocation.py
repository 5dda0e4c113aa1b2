"""What each stream processor hands out, the same on every rank: semaphore ids, channel records.

Ids are taken lowest first, by queue and control entry: a ring channel takes its data, credit, post and completion ids,
and one more for its peers if it has any; an event list takes one for each semaphore it waits on, and one for its own
completion. The ids of barriers are not handed out. Source: device-model §4, semaphore ids; device §8.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rota.columns import I64
from rota.emit.activities import PEER_ROLES, RING_ROLES, Activities
from rota.emit.placement import Processors
from rota.emit.signals import Homes
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.barrier_records import FIRST_SEMAPHORE, SEMAPHORES_PER_CONTEXT
from rota.isa.config import CHANNELS
from rota.isa.network import PROXY_QUEUE
from rota.isa.semaphores import FIRST_FREE, PARITIES
from rota.isa.spad import SLOTS
from rota.schedule.ir import Schedule

LAST_ID: Final = FIRST_SEMAPHORE - SEMAPHORES_PER_CONTEXT - 1
"""The last id handed out: those of the two barrier contexts stand above. Source: barrier §8.2, convention."""
ALLOCATION_SOURCE: Final = Source("device", "8.3", HIGH)
SLOTS_SOURCE: Final = Source("device-model", "4, slot number", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a schedule has been given, whichever of its runs in a program is meant.

    Attributes:
        identity: of each semaphore of the schedule; -1 for one that nobody waits on. sp: its stream processor.
        own: data, credit, post, completion and peer id of each activity; -1 where it has none.
        channel: record of each activity that is a ring channel; -1 for the others.
        on: stream processors that its queues are on.
        carries: an event list starts with a value in a semaphore, so that its two parities cannot alternate.
    """

    parts: Activities
    sp: I64
    identity: I64
    own: I64
    channel: I64
    carries: bool
    on: Processors

    def homes(self, *, folds: int, parity: int) -> Homes:
        """Return where semaphores are and what they count, for a run of this parity."""
        ring = np.array([activity.ring for activity in self.parts.table], np.bool_)
        unit = 1 << PARITIES[parity].shift
        listed = np.where(self.parts.of_semaphore >= 0, self.parts.listed, not ring.all())
        queue = np.array([activity.queue for activity in self.parts.table], np.int64)
        return Homes(
            sp=self.sp,
            identity=self.identity,
            unit=np.where(listed, unit, folds),
            compl_sp=self.on.sp(queue),
            compl_identity=self.own[:, 3],
            compl_unit=np.where(ring, folds, unit),
        )


@dataclass(slots=True)
class Allocator:
    """Hands out ids and channel records of all stream processors of a rank; every rank's are the same."""

    sps: int
    next_id: list[int] = field(default_factory=list)
    channels: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.next_id = [FIRST_FREE] * self.sps

    def shape(self, schedule: Schedule, parts: Activities, on: Processors | None = None) -> Shape:
        """Give a schedule what its activities need.

        Args:
            on: stream processors of its queues; all there are without it.

        Raises:
            UnsupportedError: a stream processor has not so many semaphores, slots or channel records, or two event
                lists would run on it at once.
        """
        count = len(schedule.semaphores)
        identity, sp = np.full((2, count), -1, np.int64)
        own = np.full((len(parts.table), 5), -1, np.int64)
        channel = np.full(len(parts.table), -1, np.int64)
        on = on or Processors(0, self.sps)
        _check_turns(parts, on)
        for index in sorted(range(len(parts.table)), key=lambda i: (parts.table[i].queue, parts.table[i].entry)):
            activity = parts.table[index]
            if activity.shares >= 0:
                continue
            home = on.sp(activity.queue)
            if activity.ring:
                own[index, :4] = self._take(home, 4)
                if activity.kangaring:
                    own[index, 4] = self._take(home, 1)[0]
                held = {role: own[index, i] for i, role in enumerate(RING_ROLES)} | dict.fromkeys(
                    PEER_ROLES, own[index, 4]
                )
                for role, value in held.items():
                    if getattr(activity, role) >= 0:
                        identity[getattr(activity, role)], sp[getattr(activity, role)] = value, home
                channel[index] = self._record(activity.queue)
                continue
            ids = self._take(home, len(activity.waited) + 1)
            identity[list(activity.waited)], sp[list(activity.waited)] = ids[:-1], home
            own[index, 3] = ids[-1]
        own, channel = own[parts.homes], channel[parts.homes]
        self._proxies(schedule, sp, identity, on)
        initial = np.array([semaphore.initial for semaphore in schedule.semaphores], np.int64)
        return Shape(parts, sp, identity, own, channel, bool((initial[parts.listed] > 0).any()), on)

    def _proxies(self, schedule: Schedule, sp: I64, identity: I64, on: Processors) -> None:
        """Give ids to what only network proxies wait on, on the processor of their queue."""
        waits = schedule.waits
        queue = schedule.rows.queue[schedule.wait_row].astype(np.int64)
        for semaphore in np.unique(waits.semaphore[queue >= PROXY_QUEUE]).tolist():
            lane = int(queue[waits.semaphore == semaphore][0]) - PROXY_QUEUE
            sp[semaphore] = on.sp(lane)
            identity[semaphore] = self._take(int(sp[semaphore]), 1)[0]

    def _take(self, sp: int, wanted: int) -> list[int]:
        first = self.next_id[sp]
        if first + wanted - 1 > LAST_ID:
            raise UnsupportedError(
                f"TOP_SP {sp}: {wanted} semaphores wanted, and {LAST_ID + 1 - first} are left; too many communicators",
                source=ALLOCATION_SOURCE,
            )
        self.next_id[sp] = first + wanted
        return list(range(first, first + wanted))

    def _record(self, queue: int) -> int:
        free = queue if queue not in self.channels and queue < CHANNELS else None
        found = free if free is not None else next((i for i in range(CHANNELS) if i not in self.channels), None)
        if found is None:
            raise UnsupportedError(
                f"more than {CHANNELS} ring channels on a rank: the table of channel records is full"
            )
        self.channels.add(found)
        return found


def _check_turns(parts: Activities, on: Processors) -> None:
    """Refuse what one stream processor cannot do at once."""
    seen: dict[tuple[int, int], list[bool]] = {}
    for activity in parts.table:
        seen.setdefault((activity.entry, on.sp(activity.queue)), []).append(activity.ring)
        if activity.ring and on.slot(activity.queue) >= SLOTS:
            raise UnsupportedError(
                f"channel {activity.queue - on.queue}: {on.count} stream processors with {SLOTS} slots each take at "
                f"most {on.count * SLOTS} channels",
                source=SLOTS_SOURCE,
            )
    for (_, home), rings in seen.items():
        if len(rings) > 1 and not all(rings):
            raise UnsupportedError(
                f"TOP_SP {home}: {len(rings)} queues of one operation at once, and an event list runs alone; use "
                f"at most {on.count} queues",
                source=SLOTS_SOURCE,
            )


def presets(schedule: Schedule, shape: Shape, *, folds: int) -> I64:
    """Return what each semaphore of a schedule starts with, in what it counts."""
    homes = shape.homes(folds=folds, parity=0)
    initial = np.array([semaphore.initial for semaphore in schedule.semaphores], np.int64)
    return initial * homes.unit
