"""Mutants of a schedule: one row, wait, signal or source less, or a wait together with a signal of its semaphore."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from rota.columns import pointers
from rota.schedule.ir import Checks, Places, Rows, Schedule, Signals, Waits


class Drop(Enum):
    """What a mutant lacks."""

    ROW = "row"
    WAIT = "wait"
    SIGNAL = "signal"
    SOURCE = "source"
    PAIR = "wait and signal"


@dataclass(frozen=True)
class Mutant:
    """One edit, not yet made. `entry` is the wait, signal or source that is dropped; `partner` the signal of a pair."""

    drop: Drop
    row: int
    entry: int = -1
    partner: int = -1


def mutants(schedule: Schedule, *, every_pair: bool = False) -> Iterator[Mutant]:
    """Yield every single drop, then the balanced pairs.

    Args:
        every_pair: pair each wait with every signal of its semaphore, not only with those that stand for it.
    """
    for row in range(len(schedule)):
        yield Mutant(Drop.ROW, row)
    for drop, table in ((Drop.WAIT, schedule.waits), (Drop.SIGNAL, schedule.signals), (Drop.SOURCE, schedule.sources)):
        for row in range(len(schedule)):
            for entry in range(int(table.ptr[row]), int(table.ptr[row + 1])):
                yield Mutant(drop, row, entry)
    for wait, signal in sorted(_pairs(schedule, every_pair)):
        yield Mutant(Drop.PAIR, int(schedule.wait_row[wait]), wait, signal)


def build(schedule: Schedule, mutant: Mutant) -> Schedule:
    """Make the edit, without the balance check.

    Raises:
        VerifyError: the constructor refuses the mutant.
    """
    keep = {name: np.ones(getattr(schedule, name).ptr[-1], np.bool_) for name in _TABLES}
    rows = np.ones(len(schedule), np.bool_)
    add = schedule.signals.add.copy()
    match mutant.drop:
        case Drop.ROW:
            rows[mutant.row] = False
        case Drop.WAIT:
            keep["waits"][mutant.entry] = False
        case Drop.SIGNAL:
            keep["signals"][mutant.entry] = False
        case Drop.SOURCE:
            keep["sources"][mutant.entry] = False
        case Drop.PAIR:
            keep["waits"][mutant.entry] = False
            add[mutant.partner] -= schedule.waits.subtract[mutant.entry]
            keep["signals"][mutant.partner] = add[mutant.partner] > 0
    signals = Signals(schedule.signals.ptr, schedule.signals.rank, schedule.signals.semaphore, add)
    edited = {name: getattr(schedule, name) for name in _TABLES} | {"signals": signals}
    return replace(
        schedule,
        rows=Rows(*(getattr(schedule.rows, name)[rows] for name in Rows.__slots__)),
        **{name: _filtered(table, rows, keep[name]) for name, table in edited.items()},
        checks=Checks.UNBALANCED,
    )


_TABLES = {"sources": Places, "targets": Places, "waits": Waits, "signals": Signals}


def _filtered(table: Any, rows: Any, keep: Any) -> Any:
    owner = np.repeat(np.arange(rows.size), np.diff(table.ptr))
    keep = keep & rows[owner]
    counts = np.bincount(owner[keep], minlength=rows.size)[rows]
    columns = [getattr(table, name)[keep] for name in type(table).__slots__ if name != "ptr"]
    return type(table)(pointers(counts).astype(np.int32), *columns)


def _pairs(schedule: Schedule, every: bool) -> set[tuple[int, int]]:
    """Return (wait, signal) on one semaphore, such that the signal adds at least what the wait subtracts."""
    waits: dict[tuple[int, int], list[int]] = defaultdict(list)
    signals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for wait, row in enumerate(schedule.wait_row.tolist()):
        waits[int(schedule.rows.rank[row]), int(schedule.waits.semaphore[wait])].append(wait)
    for signal, rank in enumerate(schedule.signals.rank.tolist()):
        signals[rank, int(schedule.signals.semaphore[signal])].append(signal)
    pairs = set()
    for key, queue in waits.items():
        initial = schedule.semaphores[key[1]].initial
        chosen = _all_of(queue, signals[key]) if every else _matched(schedule, queue, signals[key], initial)
        pairs |= {(w, s) for w, s in chosen if schedule.signals.add[s] >= schedule.waits.subtract[w] > 0}
    return pairs


def _all_of(waits: list[int], signals: list[int]) -> Iterator[tuple[int, int]]:
    return ((wait, signal) for wait in waits for signal in signals)


def _matched(schedule: Schedule, waits: list[int], signals: list[int], initial: int) -> Iterator[tuple[int, int]]:
    """Pair each wait with the signal that releases it, and with the one that gives back what it takes."""
    given = [signal for signal in signals for _ in range(int(schedule.signals.add[signal]))]
    spent = 0
    for wait in waits:
        last = spent + int(schedule.waits.subtract[wait]) - 1
        for unit in (last, spent + int(schedule.waits.at_least[wait]) - 1 - initial):
            if 0 <= unit < len(given):
                yield wait, given[unit]
        spent = last + 1
