"""Mutants of a schedule: one row, wait, signal, source or target less, more, moved or swapped, and balanced pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from tests.schedules import Row

from rota.columns import pointers
from rota.schedule.ir import STORED, Checks, Op, Places, Rows, Schedule, Signals, Waits


class Edit(Enum):
    """What is done to a schedule."""

    DROP_ROW = "drop a row"
    DROP_WAIT = "drop a wait"
    DROP_SIGNAL = "drop a signal"
    DROP_SOURCE = "drop a source"
    DROP_TARGET = "drop a target"
    TWICE_ROW = "a row twice"
    TWICE_SIGNAL = "a signal twice"
    TWICE_SOURCE = "a source twice"
    SHIFT_SOURCE = "shift a source"
    SHIFT_TARGET = "shift a target"
    SWAP_ROWS = "swap two rows"
    SWAP_SOURCES = "swap two sources"
    WAIT_LATER = "wait a row later"
    SIGNAL_EARLIER = "signal a row earlier"
    SIGNAL_LATER = "signal a row later"
    SIGNAL_OTHER = "signal another rank"
    DROP_FENCE = "drop a fence"
    PAIR = "drop wait and signal"


SINGLE = frozenset({Edit.DROP_WAIT, Edit.DROP_SIGNAL, Edit.TWICE_SIGNAL})
"""Edits after which a semaphore no longer returns to where it began."""


@dataclass(frozen=True)
class Mutant:
    """One edit, not yet made.

    Attributes:
        entry: which wait, signal, source or target of the row.
        partner: of a pair, the row and the signal of it; of a swap, the other row.
    """

    edit: Edit
    row: int
    entry: int = 0
    partner: tuple[int, int] = (-1, -1)


def mutants(schedule: Schedule, *, every_pair: bool = False) -> Iterator[Mutant]:
    """Yield every edit of one row, then the balanced pairs.

    Args:
        every_pair: pair each wait with every signal of its semaphore, not only with those that stand for it.
    """
    following = _following(schedule)
    for index, row in enumerate(rows_of(schedule)):
        yield Mutant(Edit.DROP_ROW, index)
        yield Mutant(Edit.TWICE_ROW, index)
        if row.fence:
            yield Mutant(Edit.DROP_FENCE, index)
        behind = following.get(index, -1)
        if behind >= 0:
            yield Mutant(Edit.SWAP_ROWS, index, partner=(behind, 0))
        yield from _entries(row, index, schedule)
        for entry in range(len(row.waits)):
            if behind >= 0:
                yield Mutant(Edit.WAIT_LATER, index, entry, (behind, 0))
        for entry in range(len(row.signals)):
            if behind >= 0:
                yield Mutant(Edit.SIGNAL_LATER, index, entry, (behind, 0))
        for other, after in following.items():
            if after == index:
                yield from (Mutant(Edit.SIGNAL_EARLIER, index, entry, (other, 0)) for entry in range(len(row.signals)))
    yield from _pairs(schedule, every_pair)


def _entries(row: Row, index: int, schedule: Schedule) -> Iterator[Mutant]:
    for entry in range(len(row.waits)):
        yield Mutant(Edit.DROP_WAIT, index, entry)
    for entry in range(len(row.signals)):
        yield Mutant(Edit.DROP_SIGNAL, index, entry)
        yield Mutant(Edit.TWICE_SIGNAL, index, entry)
        if schedule.ranks > 2:
            yield Mutant(Edit.SIGNAL_OTHER, index, entry)
    for edits, places in (
        ((Edit.DROP_SOURCE, Edit.TWICE_SOURCE, Edit.SHIFT_SOURCE), row.sources),
        ((Edit.DROP_TARGET, Edit.SHIFT_TARGET), row.targets),
    ):
        for entry, (_, buffer, _) in enumerate(places):
            fits = schedule.buffers[buffer].size >= 2 * row.size
            yield from (Mutant(edit, index, entry) for edit in edits if fits or "SHIFT" not in edit.name)
    if len(row.sources) > 1:
        yield Mutant(Edit.SWAP_SOURCES, index)


def build(schedule: Schedule, mutant: Mutant, *, checks: Checks = Checks.UNBALANCED) -> Schedule:
    """Make the edit, without the balance check.

    Raises:
        VerifyError: the constructor refuses the mutant.
    """
    rows = rows_of(schedule)
    row, entry, other = rows[mutant.row], mutant.entry, mutant.partner[0]
    match mutant.edit:
        case Edit.DROP_ROW:
            rows = rows[: mutant.row] + rows[mutant.row + 1 :]
        case Edit.TWICE_ROW:
            rows = rows[: mutant.row + 1] + rows[mutant.row :]
        case Edit.DROP_FENCE:
            row.fence = False
        case Edit.DROP_WAIT:
            del row.waits[entry]
        case Edit.DROP_SIGNAL:
            del row.signals[entry]
        case Edit.TWICE_SIGNAL:
            row.signals.append(row.signals[entry])
        case Edit.SIGNAL_OTHER:
            rank, semaphore, add = row.signals[entry]
            row.signals[entry] = ((rank + 1) % schedule.ranks, semaphore, add)
        case Edit.SWAP_ROWS:
            rows[mutant.row], rows[other] = rows[other], rows[mutant.row]
        case Edit.WAIT_LATER:
            rows[other].waits.append(row.waits.pop(entry))
        case Edit.SIGNAL_LATER | Edit.SIGNAL_EARLIER:
            rows[other].signals.append(row.signals.pop(entry))
        case Edit.PAIR:
            subtract = row.waits.pop(entry)[2]
            rank, semaphore, add = rows[other].signals[mutant.partner[1]]
            rows[other].signals[mutant.partner[1]] = (rank, semaphore, add - subtract)
            rows[other].signals = [signal for signal in rows[other].signals if signal[2]]
        case _:
            _edit_places(schedule, row, mutant)
    return made(schedule, rows, checks)


def _edit_places(schedule: Schedule, row: Row, mutant: Mutant) -> None:
    places = row.targets if mutant.edit in (Edit.DROP_TARGET, Edit.SHIFT_TARGET) else row.sources
    match mutant.edit:
        case Edit.DROP_SOURCE | Edit.DROP_TARGET:
            del places[mutant.entry]
        case Edit.TWICE_SOURCE:
            places.insert(mutant.entry, places[mutant.entry])
            row.op = row.op or Op.ADD
        case Edit.SWAP_SOURCES:
            places[0], places[1] = places[1], places[0]
        case _:
            rank, buffer, offset = places[mutant.entry]
            room = schedule.buffers[buffer].size - row.size + 1
            places[mutant.entry] = (rank, buffer, (offset + row.size) % room if room > 1 else offset)


def rows_of(schedule: Schedule) -> list[Row]:
    """Return the rows as plain values."""
    tables = {name: _lists(getattr(schedule, name)) for name in ("sources", "targets", "waits", "signals")}
    columns = {name: getattr(schedule.rows, name).tolist() for name in Rows.__slots__}
    return [
        Row(**{name: column[i] for name, column in columns.items()}, **{name: t[i] for name, t in tables.items()})
        for i in range(len(schedule))
    ]


def _lists(table: Any) -> list[list[tuple[int, ...]]]:
    entries = list(
        zip(*(getattr(table, name).tolist() for name in type(table).__slots__ if name != "ptr"), strict=True)
    )
    return [entries[a:b] for a, b in zip(table.ptr[:-1].tolist(), table.ptr[1:].tolist(), strict=True)]


def made(schedule: Schedule, rows: list[Row], checks: Checks) -> Schedule:
    """Return a schedule with the head of another and these rows."""

    def table(kind: Any, name: str) -> Any:
        lists = [getattr(row, name) for row in rows]
        ptr, *kinds = STORED[kind].values()
        entries = [entry for items in lists for entry in items]
        values = [np.array([entry[i] for entry in entries], column) for i, column in enumerate(kinds)]
        return kind(pointers(np.array([len(items) for items in lists], np.int64)).astype(ptr), *values)

    return replace(
        schedule,
        rows=Rows(*(np.array([getattr(row, name) for row in rows], kind) for name, kind in STORED[Rows].items())),
        sources=table(Places, "sources"),
        targets=table(Places, "targets"),
        waits=table(Waits, "waits"),
        signals=table(Signals, "signals"),
        checks=checks,
    )


def _following(schedule: Schedule) -> dict[int, int]:
    """Return the next row of the same queue, for each row that has one."""
    last: dict[int, int] = {}
    out = {}
    for row, lane in enumerate(schedule.lane.tolist()):
        if lane in last:
            out[last[lane]] = row
        last[lane] = row
    return out


def _pairs(schedule: Schedule, every: bool) -> Iterator[Mutant]:
    """Yield (wait, signal) on one semaphore, such that the signal adds at least what the wait subtracts."""
    waits: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    signals: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    rows = rows_of(schedule)
    for index, row in enumerate(rows):
        for entry, (semaphore, _, _) in enumerate(row.waits):
            waits[row.rank, semaphore].append((index, entry))
        for entry, (rank, semaphore, _) in enumerate(row.signals):
            signals[rank, semaphore].append((index, entry))
    for key, queue in sorted(waits.items()):
        initial = schedule.semaphores[key[1]].initial
        chosen = _all_of(queue, signals[key]) if every else _matched(rows, queue, signals[key], initial)
        for wait, signal in sorted(set(chosen)):
            subtract, add = rows[wait[0]].waits[wait[1]][2], rows[signal[0]].signals[signal[1]][2]
            if add >= subtract > 0:
                yield Mutant(Edit.PAIR, wait[0], wait[1], signal)


_Place = tuple[int, int]


def _all_of(waits: list[_Place], signals: list[_Place]) -> Iterator[tuple[_Place, _Place]]:
    return ((wait, signal) for wait in waits for signal in signals)


def _matched(
    rows: list[Row], waits: list[_Place], signals: list[_Place], initial: int
) -> Iterator[tuple[_Place, _Place]]:
    """Pair each wait with the signal that releases it, and with the one that gives back what it takes."""
    given = [place for place in signals for _ in range(rows[place[0]].signals[place[1]][2])]
    spent = 0
    for place in waits:
        _, at_least, subtract = rows[place[0]].waits[place[1]]
        last = spent + subtract - 1
        for unit in (last, spent + at_least - 1 - initial):
            if 0 <= unit < len(given):
                yield place, given[unit]
        spent = last + 1
