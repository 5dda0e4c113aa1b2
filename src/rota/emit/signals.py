"""Signals as packets: 4 bytes of a feed word to a semaphore's INC register, on every fold of the start they end.

A semaphore that a ring channel waits on counts folds; one that an event list waits on counts `1 << shift` for each
signal, shared by the folds. Source: device-model §3, semaphore packet; §5.2 and §5.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, U64, Bool, freeze_columns
from rota.emit.activities import RING_ROLES, Activities
from rota.emit.launches import Launches, peer_signals
from rota.emit.moves import Packets, Reads, Writes
from rota.emit.placement import Placement
from rota.errors import UnsupportedError
from rota.isa import arch as isa
from rota.isa.descriptors import COPY_WORD, TxFlag
from rota.isa.semaphores import Window
from rota.schedule.ir import Schedule

_WORD_BYTES = 4  # of a feed word, and of a semaphore


@dataclass(frozen=True, slots=True, eq=False)
class Homes:
    """Where the semaphores of a schedule are, the same on every rank.

    Attributes:
        sp, identity: of each semaphore of the schedule.
        unit: what one signal adds on all folds together: `folds` for a ring, `1 << shift` for an event list.
        compl_sp, compl_identity, compl_unit: the semaphore by which each activity's descriptors say they are done.
    """

    sp: I64
    identity: I64
    unit: I64
    compl_sp: I64
    compl_identity: I64
    compl_unit: I64

    def __post_init__(self) -> None:
        freeze_columns_unequal(self)


def freeze_columns_unequal(homes: Homes) -> None:
    """Make the columns read-only; those of semaphores and those of activities differ in length."""
    for name in homes.__slots__:
        getattr(homes, name).flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One entry per signal that is a packet: the start it ends, whose semaphore, and what is added on each fold."""

    launch: I64
    place: I64  # among the signals of the start
    member: I64
    sp: I64
    identity: I64
    value: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


def signals_of(
    schedule: Schedule, parts: Activities, starts: Launches, owner: I64, homes: Homes, member: I64, folds: int
) -> Told:
    """Return the signals of all starts, completion last, in the order in which they are performed.

    Raises:
        UnsupportedError: a signal is not a whole number on each fold.
    """
    table, row = schedule.signals, schedule.signal_row
    launch = owner[row]
    chosen = np.flatnonzero((launch >= 0) & ~peer_signals(schedule, parts))
    chosen = chosen[~starts.direct[launch[chosen]]]
    semaphore = table.semaphore[chosen].astype(np.int64)
    order = np.lexsort((_turn(schedule, parts)[semaphore], launch[chosen]))
    chosen, semaphore = chosen[order], semaphore[order]
    ends = np.flatnonzero(starts.completes)
    activity = starts.activity[ends]
    total = np.concatenate((homes.unit[semaphore] * table.add[chosen], homes.compl_unit[activity]))
    if (total % folds).any():
        raise UnsupportedError(f"{folds} folds share what a mesh event counts; use 1, 2, 4, 8 or 16")
    all_launch = np.concatenate((launch[chosen], ends))
    by = np.argsort(all_launch, kind="stable")  # completion behind the others
    columns = (
        np.concatenate((member[table.rank[chosen].astype(np.int64)], member[starts.rank[ends]])),
        np.concatenate((homes.sp[semaphore], homes.compl_sp[activity])),
        np.concatenate((homes.identity[semaphore], homes.compl_identity[activity])),
        total // folds,
    )
    all_launch = all_launch[by]
    place = np.arange(by.size) - np.searchsorted(all_launch, all_launch)
    return Told(all_launch, place, *(column[by] for column in columns))


def _turn(schedule: Schedule, parts: Activities) -> I64:
    """Return in which order signals of a ring's row stand: data, credit; those of an event list as they come."""
    out = np.zeros(len(schedule.semaphores), np.int64)
    for activity in parts.table:
        for i, role in enumerate(RING_ROLES):
            if activity.ring and getattr(activity, role) >= 0:
                out[getattr(activity, role)] = i
    return out


def pack_signals(
    told: Told,
    starts: Launches,
    counts: tuple[I64, I64],
    feed: I64,
    has_data: Bool,
    *,
    at: Placement,
    member: I64,
    folds: int,
) -> tuple[Packets, Reads, Writes]:
    """Return the packets of signals.

    Args:
        counts: TX and RX descriptors of the moves of each start, on every fold.
        feed: which feed word of its rank each signal adds.
        has_data: whether data has been moved on a fold since the signal before, shape (starts, folds).
    """
    n = told.launch.size
    one = np.repeat(np.arange(n), folds)
    fold = np.tile(np.arange(folds), n)
    ones = np.ones(one.size, np.int64)
    launch = told.launch[one]
    issuer = member[starts.rank[told.launch]]
    packets = Packets(
        launch=launch,
        fold=fold,
        tx_at=counts[0][launch] + told.place[one],
        rx_at=counts[1][launch] + told.place[one],
        size=ones * _WORD_BYTES,
        reads=ones,
        writes=ones,
    )
    source: U64 = (at.memory(issuer, issuer) + isa.FEED_WORDS + _WORD_BYTES * feed).astype(np.uint64)
    barrier = (told.place[one] == 0) & has_data[launch, fold] & (not at.arch.sow)
    flags = np.where(barrier, TxFlag.DMB, 0) | TxFlag.FIRST | TxFlag.LAST
    index, zero = np.arange(one.size), np.zeros(one.size, np.int64)
    reads = Reads(index, zero, flags.astype(np.uint32), np.full(one.size, COPY_WORD, np.uint32), source[one])
    target = at.semaphore(told.member, told.sp, told.identity, Window.INC, issuer)
    return packets, reads, Writes(index, zero, target[one], np.zeros(one.size, np.bool_))
