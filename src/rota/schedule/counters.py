"""Semaphores as monotone counters: which signals a wait needs. Everything that reasons about order reads this.

A wait with one consumer queue holds exactly when the additions so far reach a threshold: its own `at_least`, plus what
earlier waits of the queue subtracted, minus the initial value. So subtraction disappears. Source: schedule §2 (4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, freeze_columns, pointers
from rota.schedule.ir import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """One entry per wait."""

    key: I64  # rank x semaphores + semaphore
    threshold: I64  # additions the wait needs, in total since the start; 0 or less needs none
    before: I64  # additions by signals of earlier rows, in stored order

    def __post_init__(self) -> None:
        freeze_columns(self)


def counters(schedule: Schedule) -> Counters:
    """Return the thresholds of all waits and what the stored order gives them."""
    width = max(len(schedule.semaphores), 1)
    keys, span = schedule.ranks * width, len(schedule) + 1
    waits, signals = schedule.waits, schedule.signals
    signal_key = signals.rank.astype(np.int64) * width + signals.semaphore
    given, first_given = _by_key(signal_key, keys)
    key = schedule.rows.rank[schedule.wait_row].astype(np.int64) * width + waits.semaphore
    taken, first_taken = _by_key(key, keys)
    total, spent = pointers(signals.add[given]), pointers(waits.subtract[taken])
    ordered = key[taken]
    earlier = np.searchsorted(
        signal_key[given] * span + schedule.signal_row[given], ordered * span + schedule.wait_row[taken]
    )
    threshold, before = np.empty((2, key.size), np.int64)
    threshold[taken] = (
        waits.at_least[taken] + spent[:-1] - spent[first_taken[:-1]][ordered] - _initial(schedule)[ordered]
    )
    before[taken] = total[earlier] - total[first_given[:-1]][ordered]
    return Counters(key=key, threshold=threshold, before=before)


def _initial(schedule: Schedule) -> I64:
    """Return the initial value of each semaphore of each rank."""
    return np.tile(np.array([s.initial for s in schedule.semaphores] or [0], np.int64), schedule.ranks)


def releases(schedule: Schedule) -> tuple[I64, I64]:
    """Return pairs (wait, signal): for each wait that needs a signal, the one with which its threshold is reached.

    Signals of a semaphore are taken in stored order, which is exact where one queue produces them.
    """
    width = max(len(schedule.semaphores), 1)
    keys = schedule.ranks * width
    waits, signals = schedule.waits, schedule.signals
    given, first_given = _by_key(signals.rank.astype(np.int64) * width + signals.semaphore, keys)
    key = schedule.rows.rank[schedule.wait_row].astype(np.int64) * width + waits.semaphore
    taken, first_taken = _by_key(key, keys)
    total, spent = pointers(signals.add[given]), pointers(waits.subtract[taken])
    base = total[first_given[:-1]]  # additions to all smaller keys
    key = key[taken]
    goal = waits.at_least[taken] + spent[:-1] + (base - spent[first_taken[:-1]] - _initial(schedule))[key]
    reached = (goal > base[key]) & (goal <= total[first_given[1:]][key])
    signal = np.full(key.size, -1, np.int64)
    signal[taken[reached]] = given[np.searchsorted(total, goal[reached]) - 1]
    wait = np.flatnonzero(signal >= 0)
    return wait, signal[wait]


def _by_key(key: I64, keys: int) -> tuple[I64, I64]:
    """Return the entries by key, in stored order within one, and where each key begins."""
    narrow = key.astype(np.uint16) if keys <= 1 << 16 else key  # 16 bits sort by radix
    return np.argsort(narrow, kind="stable"), pointers(np.bincount(key, minlength=keys))
