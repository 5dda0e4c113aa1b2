"""Semaphores as monotone counters: which signals a wait needs. Everything that reasons about order reads this.

A wait with one consumer queue holds exactly when the additions so far reach a threshold: its own `at_least`, plus what
earlier waits of the queue subtracted, minus the initial value. So subtraction disappears. Source: schedule §2 (4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, freeze_columns
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
    waits, signals = schedule.waits, schedule.signals
    key = schedule.rows.rank[schedule.wait_row].astype(np.int64) * width + waits.semaphore
    initial = np.array([s.initial for s in schedule.semaphores] or [0], np.int64)[waits.semaphore]
    spent = _running(key, schedule.wait_row, waits.subtract.astype(np.int64))
    signal_key = signals.rank.astype(np.int64) * width + signals.semaphore
    return Counters(
        key=key,
        threshold=waits.at_least + spent - initial,
        before=_given(key, schedule.wait_row, signal_key, schedule.signal_row, signals.add.astype(np.int64)),
    )


def releases(schedule: Schedule) -> tuple[I64, I64]:
    """Return pairs (wait, signal): for each wait that needs a signal, the one with which its threshold is reached.

    Signals of a semaphore are taken in stored order, which is exact where one queue produces them.
    """
    width = max(len(schedule.semaphores), 1)
    table = counters(schedule)
    signals = schedule.signals
    signal_key = signals.rank.astype(np.int64) * width + signals.semaphore
    order = np.lexsort((schedule.signal_row, signal_key))
    reached = np.cumsum(signals.add[order].astype(np.int64))
    first = np.searchsorted(signal_key[order], table.key)  # first signal of the wait's semaphore
    base = np.where(first > 0, reached[np.maximum(first, 1) - 1] if reached.size else 0, 0)
    wait = np.flatnonzero((table.threshold > 0) & (table.before >= table.threshold))
    position = np.searchsorted(reached, (base + table.threshold)[wait])
    return wait, order[position]


def _running(key: I64, row: I64, amount: I64) -> I64:
    """Return, for each entry, the sum of `amount` over entries of the same key in earlier rows."""
    order = np.lexsort((row, key))
    total = np.cumsum(amount[order]) - amount[order]
    fresh = np.ones(key.size, np.bool_)
    fresh[1:] = key[order][1:] != key[order][:-1]
    start = np.flatnonzero(fresh)
    base = np.repeat(total[start], np.diff(np.append(start, key.size)))
    out = np.empty(key.size, np.int64)
    out[order] = total - base
    return out


def _given(key: I64, row: I64, signal_key: I64, signal_row: I64, add: I64) -> I64:
    """Return, for each wait (key, row), the additions to its key by signals of earlier rows."""
    order = np.lexsort((signal_row, signal_key))
    total = np.concatenate(([0], np.cumsum(add[order])))
    span = int(max(row.max(initial=0), signal_row.max(initial=0))) + 1
    place = signal_key[order] * span + signal_row[order]
    return total[np.searchsorted(place, key * span + row)] - total[np.searchsorted(place, key * span)]
