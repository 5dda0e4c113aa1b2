"""Running a schedule greedily: the order in which its rows can start, and what the others wait for.

No execution can disable a row that another enables, so one run decides deadlock, and any other order of the same rows
is as good. In a round, every queue whose next rows can start starts them up to the next row that waits.
Source: schedule §2 (5), §5 (1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rota.columns import I64, pointers, ranges
from rota.schedule.ir import Checks, Places, Rows, Schedule, Signals, Waits
from rota.verify.findings import Finding
from rota.verify.lanes import Lanes
from rota.verify.match import Needs

_SHOWN: Final = 16
"""Queues of a cycle that a message names; the finding has the rows of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished greedy run.

    Attributes:
        order: rows in the order they start; shorter than the schedule if some never do.
        head: lane by lane, the row that it stands at; -1 where it has finished.
        value: what has been added to each semaphore, rank x semaphores + semaphore.
    """

    order: I64
    head: I64
    value: I64


def run(schedule: Schedule, waits: Needs, queues: Lanes) -> Run:
    """Return what starts, whatever order the rows are stored in. Time is rounds x queues and the rows."""
    rows, ptr = queues.rows, queues.ptr
    awaits, signals = _Lists(schedule.waits.ptr), _Lists(schedule.signals.ptr)
    key, threshold = _by_entry(waits)
    width = max(len(schedule.semaphores), 1)
    target = schedule.signals.rank.astype(np.int64) * width + schedule.signals.semaphore
    value = np.zeros(schedule.ranks * width, np.int64)
    stop = _next_wait(schedule, queues)
    at, order = ptr[:-1].copy(), [np.zeros(0, np.int64)]
    while True:
        open_lanes = np.flatnonzero(at < ptr[1:])
        wait, owner = awaits.of(rows[at[open_lanes]])
        unmet = np.bincount(owner, value[key[wait]] < threshold[wait], open_lanes.size)
        ready = open_lanes[unmet == 0]
        if not ready.size:
            break
        fired = rows[ranges(at[ready], stop[at[ready]] - at[ready])]
        signal, _ = signals.of(fired)
        np.add.at(value, target[signal], schedule.signals.add[signal])
        at[ready] = stop[at[ready]]
        order.append(fired)
    head = np.where(at < ptr[1:], np.append(rows, -1)[at], -1)
    return Run(order=np.concatenate(order), head=head, value=value)


def _by_entry(waits: Needs) -> tuple[I64, I64]:
    """Return semaphore and threshold of each wait as the schedule stores them."""
    key, threshold = np.empty((2, waits.entry.size), np.int64)
    key[waits.entry], threshold[waits.entry] = waits.key, waits.threshold
    return key, threshold


class _Lists:
    """The entries of rows in a CSR table."""

    def __init__(self, ptr: Any) -> None:
        self.ptr = ptr.astype(np.int64)

    def of(self, rows: I64) -> tuple[I64, I64]:
        """Return the entries of these rows, and which of the rows owns each."""
        counts = self.ptr[rows + 1] - self.ptr[rows]
        return ranges(self.ptr[rows], counts), np.repeat(np.arange(rows.size), counts)


def _next_wait(schedule: Schedule, queues: Lanes) -> I64:
    """Return, for each place in the queues, the next one of its queue that waits, or the end of the queue."""
    waits = np.diff(schedule.waits.ptr)[queues.rows] > 0
    waits[queues.ptr[:-1]] = True
    stop = np.append(np.where(waits, np.arange(waits.size), waits.size), waits.size)
    nearest: I64 = np.minimum.accumulate(stop[::-1])[::-1][1:]
    return nearest


def reorder(schedule: Schedule, order: I64) -> Schedule:
    """Return the schedule with its rows stored in this order; all of them, each queue's in its own order."""

    def table(kind: Any, name: str) -> Any:
        old = getattr(schedule, name)
        first, counts = old.ptr.astype(np.int64)[order], np.diff(old.ptr)[order]
        entry = ranges(first, counts)
        columns = (getattr(old, column)[entry] for column in kind.__slots__ if column != "ptr")
        return kind(pointers(counts).astype(old.ptr.dtype), *columns)

    return replace(
        schedule,
        rows=Rows(*(getattr(schedule.rows, name)[order] for name in Rows.__slots__)),
        sources=table(Places, "sources"),
        targets=table(Places, "targets"),
        waits=table(Waits, "waits"),
        signals=table(Signals, "signals"),
        checks=Checks.UNBALANCED,
    )


def deadlocks(schedule: Schedule, waits: Needs, queues: Lanes, ran: Run) -> Iterator[Finding]:
    """Yield each cycle of queues that wait for each other, and each wait for a signal that nobody performs."""
    stuck = np.flatnonzero(ran.head >= 0)
    if not stuck.size:
        return
    chains = _Chains(schedule, waits, queues, ran)
    seen: dict[int, int] = {}
    for start in stuck.tolist():
        path = []
        lane: int | None = start
        while lane is not None and lane not in seen:
            seen[lane] = start
            path.append(lane)
            lane = chains.following(lane)
        if lane is None:
            yield chains.dead_end(path[-1], int(stuck.size))
        elif seen[lane] == start:
            yield chains.cycle(path[path.index(lane) :])


class _Chains:
    """Who waits for whom once a run is stuck: each queue for the first signal its head lacks."""

    def __init__(self, schedule: Schedule, waits: Needs, queues: Lanes, ran: Run) -> None:
        self.schedule, self.queues, self.ran = schedule, queues, ran
        self.needs, self.threshold = _by_entry(waits)
        performed = np.zeros(len(schedule), np.bool_)
        performed[ran.order] = True
        width = max(len(schedule.semaphores), 1)
        key = schedule.signals.rank.astype(np.int64) * width + schedule.signals.semaphore
        open_signals = np.flatnonzero(~performed[schedule.signal_row])
        self.open, first = np.unique(key[open_signals], return_index=True)
        self.signaller = schedule.signal_row[open_signals[first]]

    def _lacking(self, lane: int) -> int:
        """Return the first wait of a queue's head that does not hold."""
        row = int(self.ran.head[lane])
        waits = range(int(self.schedule.waits.ptr[row]), int(self.schedule.waits.ptr[row + 1]))
        return next(w for w in waits if self.ran.value[self.needs[w]] < self.threshold[w])

    def _signaller(self, lane: int) -> int | None:
        """Return the first row that has not signalled what a queue lacks."""
        key = self.needs[self._lacking(lane)]
        at = int(np.searchsorted(self.open, key))
        return int(self.signaller[at]) if at < self.open.size and self.open[at] == key else None

    def following(self, lane: int) -> int | None:
        """Return the queue that a stuck queue waits for."""
        row = self._signaller(lane)
        return None if row is None else int(self.queues.of[row])

    def _lack(self, lane: int) -> str:
        wait = self._lacking(lane)
        name = self.schedule.semaphores[int(self.schedule.waits.semaphore[wait])].name
        has, needs = int(self.ran.value[self.needs[wait]]), int(self.threshold[wait])
        return f"waits for {name} ({has} of {needs} signalled)"

    def cycle(self, lanes: list[int]) -> Finding:
        """Return the finding of queues that wait for each other in a ring."""
        rows = tuple(self.ran.head[lanes].tolist())
        text = self.schedule.name(rows[0])
        for lane in lanes[:_SHOWN]:
            signaller = self._signaller(lane)
            assert signaller is not None, "a cycle has no dead end"
            head = int(self.ran.head[self.queues.of[signaller]])
            text += f" {self._lack(lane)} from {self.schedule.name(signaller)}, which"
            if head != signaller:
                text += f" comes after {self.schedule.name(head)}, which"
        if len(lanes) > _SHOWN:
            text += f" waits over {len(lanes) - _SHOWN} more queues for {self.schedule.name(rows[0])}"
        queues = f"{len(lanes)} queues" if len(lanes) > 1 else "a queue"
        return Finding("deadlock", f"{text.removesuffix(', which')}: a cycle of {queues}", rows)

    def dead_end(self, lane: int, stuck: int) -> Finding:
        """Return the finding of a wait that nobody will end."""
        row = int(self.ran.head[lane])
        others = f"; {stuck} queues do not finish" if stuck > 1 else ""
        text = f"{self.schedule.name(row)} {self._lack(lane)}, and nobody signals it any more{others}"
        return Finding("deadlock", text, (row,))
