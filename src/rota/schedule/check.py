"""What a schedule must satisfy to exist: ranges, shapes, balance, and that its row order is an execution.

All checks are single passes over columns, without a graph; data and races are `verify`'s.
Source: schedule §3, conventions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from rota.columns import Array, owners
from rota.errors import VerifyError
from rota.schedule.counters import counters
from rota.schedule.ir import MAX_NUMBER, MAX_RANKS, MAX_SOURCES, STORED, Checks, Leaf, Op, Places, Schedule

_FINDINGS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)


def check(schedule: Schedule) -> None:
    """Raise VerifyError with findings if the schedule is malformed, unbalanced or out of order."""
    for law in _LAWS:
        _raise(law(schedule))
    if schedule.checks is Checks.ALL:
        _raise(_balance(schedule))
    if schedule.checks is not Checks.FORM:
        _raise(_row_order(schedule))


def _raise(findings: Iterator[str]) -> None:
    found = [finding for _, finding in zip(range(_FINDINGS), findings, strict=False)]
    if found:
        raise VerifyError(f"not a schedule: {found[0]}", findings=found)


def _declared(schedule: Schedule) -> Iterator[str]:
    if not 0 < schedule.ranks <= MAX_RANKS:
        yield f"{schedule.ranks} ranks, expected 1 to {MAX_RANKS}"
    for name, index in (("input", schedule.input), ("output", schedule.output)):
        if not 0 <= index < len(schedule.buffers):
            yield f"{name} buffer {index}, expected one of the {len(schedule.buffers)} declared"
    buffers = [(buffer.name, buffer.size) for buffer in schedule.buffers]
    semaphores = [(semaphore.name, semaphore.initial) for semaphore in schedule.semaphores]
    for what, entries in (("buffer", buffers), ("semaphore", semaphores)):
        for name, number in entries:
            if _NAME.fullmatch(name) is None:
                yield f"{what} name '{name}', expected letters, digits, '_' or '.', the first no digit"
            if not 0 <= number <= MAX_NUMBER:
                yield f"{what} {name} of {number}, expected 0 to {MAX_NUMBER}"
        times = Counter(name for name, _ in entries)
        yield from (f"{what} {name} is declared twice" for name, count in times.items() if count > 1)


def _shapes(schedule: Schedule) -> Iterator[str]:
    for table in (schedule.rows, schedule.sources, schedule.targets, schedule.waits, schedule.signals):
        for name, kind in STORED[type(table)].items():
            found = getattr(table, name).dtype
            if found != kind:
                yield f"column {name} of {type(table).__name__} is {found}, expected {np.dtype(kind).name}"
    rows = len(schedule)
    tables = (
        ("sources", schedule.sources.ptr, schedule.sources.buffer.size),
        ("targets", schedule.targets.ptr, schedule.targets.buffer.size),
        ("waits", schedule.waits.ptr, schedule.waits.semaphore.size),
        ("signals", schedule.signals.ptr, schedule.signals.semaphore.size),
    )
    for name, ptr, entries in tables:
        if ptr.size != rows + 1 or ptr[0] != 0 or ptr[-1] != entries or (np.diff(ptr) < 0).any():
            yield f"pointers of {name} do not run from 0 to {entries} over {rows} rows"


def _ids(schedule: Schedule) -> Iterator[str]:
    rows = schedule.rows
    every = np.arange(len(schedule))
    yield from _where(schedule, every, rows.rank >= schedule.ranks, "rank does not exist")
    yield from _where(schedule, every, rows.leaf > max(Leaf), "leaf does not exist")
    yield from _where(schedule, every, rows.op > max(Op), "operation does not exist")
    yield from _where(schedule, every, rows.size < 0, "size is negative")
    waits, signals = schedule.waits, schedule.signals
    semaphores = len(schedule.semaphores)
    yield from _where(schedule, schedule.wait_row, waits.semaphore >= semaphores, "waits on an undeclared semaphore")
    yield from _where(schedule, schedule.signal_row, signals.semaphore >= semaphores, "signals an undeclared semaphore")
    yield from _where(
        schedule, schedule.signal_row, signals.rank >= schedule.ranks, "signals a rank that does not exist"
    )
    for name, places in (("source", schedule.sources), ("target", schedule.targets)):
        owner = owners(places.ptr)
        yield from _where(schedule, owner, places.rank >= schedule.ranks, f"{name} rank does not exist")
        yield from _where(schedule, owner, places.buffer >= len(schedule.buffers), f"{name} buffer is not declared")


def _bounds(schedule: Schedule) -> Iterator[str]:
    limit = np.array([buffer.size for buffer in schedule.buffers], np.int64)
    for name, places in (("source", schedule.sources), ("target", schedule.targets)):
        owner = owners(places.ptr)
        last = limit[places.buffer] - schedule.rows.size[owner]
        bad = (places.offset < 0) | (places.offset > last)
        yield from _where(schedule, owner, bad, f"{name} lies outside its buffer")


def _movement(schedule: Schedule) -> Iterator[str]:
    rows, every = schedule.rows, np.arange(len(schedule))
    sources, targets = np.diff(schedule.sources.ptr), np.diff(schedule.targets.ptr)
    moves = rows.size > 0
    yield from _where(schedule, every, (sources > 0) != moves, "a size without a source, or a source without a size")
    yield from _where(schedule, every, (targets > 0) != moves, "a size without a target, or a target without a size")
    yield from _where(schedule, every, (sources > 1) & (rows.op == Op.NONE), "several sources and no operation")
    yield from _where(schedule, every, (rows.op != Op.NONE) & ~moves, "an operation and no data")
    yield from _where(schedule, every, (sources > MAX_SOURCES), f"more than {MAX_SOURCES} sources")
    yield from _overlaps(schedule)


def _overlaps(schedule: Schedule) -> Iterator[str]:
    """Targets of a row are disjoint; a source of a row overlaps a target only where they are the same bytes."""
    targets, sources = schedule.targets, schedule.sources
    size = schedule.rows.size
    for a, b in _pairs(targets, targets):
        row = owners(targets.ptr)[a]
        same = (targets.rank[a] == targets.rank[b]) & (targets.buffer[a] == targets.buffer[b]) & (a < b)
        yield from _where(
            schedule, row, same & (abs(targets.offset[a] - targets.offset[b]) < size[row]), "two targets overlap"
        )
    for a, b in _pairs(sources, targets):
        row = owners(sources.ptr)[a]
        same = (sources.rank[a] == targets.rank[b]) & (sources.buffer[a] == targets.buffer[b])
        gap = abs(sources.offset[a] - targets.offset[b])
        yield from _where(schedule, row, same & (gap > 0) & (gap < size[row]), "a source partly overlaps a target")


def _pairs(left: Places, right: Places) -> Iterator[tuple[Array, Array]]:
    """Yield index pairs (left entry, right entry) of the same row, one k-th right entry at a time."""
    owner = owners(left.ptr)
    entry = np.arange(owner.size)
    counts = np.diff(right.ptr)
    for k in range(int(counts.max(initial=0))):
        keep = counts[owner] > k
        yield entry[keep], right.ptr[:-1].astype(np.int64)[owner[keep]] + k


def _semaphore_use(schedule: Schedule) -> Iterator[str]:
    waits, signals = schedule.waits, schedule.signals
    at_least, subtract = waits.at_least, waits.subtract
    bad = (at_least < 1) | (subtract < 0) | (subtract > at_least)
    yield from _where(schedule, schedule.wait_row, bad, "wait needs at_least >= 1 and 0 <= subtract <= at_least")
    yield from _where(schedule, schedule.signal_row, signals.add < 1, "signal adds less than 1")
    pair = schedule.wait_row * len(schedule.semaphores) + waits.semaphore
    order = np.argsort(pair, kind="stable")
    twice = np.zeros(pair.size, np.bool_)
    twice[order[1:]] = pair[order[1:]] == pair[order[:-1]]
    yield from _where(schedule, schedule.wait_row, twice, "two waits on one semaphore in a row")
    yield from _one_queue(schedule)


def _one_queue(schedule: Schedule) -> Iterator[str]:
    """A semaphore is waited on by one queue only, unless no wait on it subtracts."""
    waits, rows = schedule.waits, schedule.rows
    key = rows.rank[schedule.wait_row].astype(np.int64) * len(schedule.semaphores) + waits.semaphore
    queue = rows.queue[schedule.wait_row].astype(np.int64)
    order = np.lexsort((queue, key))
    change = np.zeros(key.size, np.bool_)
    change[order[1:]] = (key[order[1:]] == key[order[:-1]]) & (queue[order[1:]] != queue[order[:-1]])
    consumed = np.unique(key[waits.subtract > 0])
    shared = change & np.isin(key, consumed)
    yield from _where(schedule, schedule.wait_row, shared, "waits on a semaphore that another queue consumes")


def _balance(schedule: Schedule) -> Iterator[str]:
    count = schedule.ranks * len(schedule.semaphores)
    key_signal = schedule.signals.rank.astype(np.int64) * len(schedule.semaphores) + schedule.signals.semaphore
    key_wait = schedule.rows.rank[schedule.wait_row].astype(np.int64) * len(schedule.semaphores)
    key_wait = key_wait + schedule.waits.semaphore
    change = np.bincount(key_signal, schedule.signals.add, count) - np.bincount(
        key_wait, schedule.waits.subtract, count
    )
    for key in np.flatnonzero(change):
        rank, semaphore = divmod(int(key), len(schedule.semaphores))
        yield (
            f"semaphore {schedule.semaphores[semaphore].name} of rank {rank} ends {int(change[key]):+d} away from its "
            f"initial value; the last row that touches it is {schedule.name(_last_touch(schedule, int(key)))}"
        )


def _last_touch(schedule: Schedule, key: int) -> int:
    rank, semaphore = divmod(key, len(schedule.semaphores))
    waits = schedule.wait_row[(schedule.waits.semaphore == semaphore) & (schedule.rows.rank[schedule.wait_row] == rank)]
    signals = schedule.signal_row[(schedule.signals.semaphore == semaphore) & (schedule.signals.rank == rank)]
    return int(max(waits.max(initial=-1), signals.max(initial=-1)))


def _row_order(schedule: Schedule) -> Iterator[str]:
    """Rows in stored order are a legal execution: every wait is satisfied by signals of earlier rows."""
    table = counters(schedule)
    missing = table.threshold - table.before
    for wait in np.flatnonzero(missing > 0):
        row = int(schedule.wait_row[wait])
        name = schedule.semaphores[int(schedule.waits.semaphore[wait])].name
        yield (
            f"{schedule.name(row)} waits for {name} to have received {int(table.threshold[wait])}, but the rows "
            f"before it give only {int(table.before[wait])}"
        )


def _where(schedule: Schedule, owner: Array, bad: Array, what: str) -> Iterator[str]:
    for entry in np.flatnonzero(bad):
        yield f"{schedule.name(int(owner[entry]))}: {what}"


_LAWS: Final[tuple[Callable[[Schedule], Iterator[str]], ...]] = (
    _declared,
    _shapes,
    _ids,
    _bounds,
    _movement,
    _semaphore_use,
)
