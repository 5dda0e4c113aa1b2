"""A schedule appended to itself: the same collective twice on the same group, as a program runs it.

The second run has user buffers of its own, the upper halves of buffers twice as large; semaphores and internal buffers
are those of the first, which is what double buffering and credits are for. On each queue it starts when the first run
has completed there; nothing else is between them, so that a rank may be a whole operation ahead of another. The slots
of a ring channel go on where the first run left them, because credits are counted from the start of the program.
Source: schedule §4, §5; compose §2.1, advance_send; one queue does one operation after another: convention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rota.columns import Array
from rota.schedule.ir import Places, Rows, Schedule
from rota.schedule.rotate import used_slots


def twice(schedule: Schedule, *, other: Schedule | None = None, rotates: bool = True) -> Schedule:
    """Return a schedule that runs another and then runs it again on the upper halves of the user buffers.

    Args:
        other: the second run, where it is not the same: an operation that uses the other half of a double buffer.
        rotates: the slots of ring channels go on where they were, rather than begin with the first again.
    """
    other = other or schedule
    assert (other.buffers, other.semaphores) == (schedule.buffers, schedule.semaphores), "they share all that is named"
    return replace(
        schedule,
        buffers=tuple(replace(buffer, size=2 * buffer.size) if buffer.user else buffer for buffer in schedule.buffers),
        rows=_rows(schedule, other),
        sources=_moved(schedule, schedule.sources, other.sources, rotates=rotates),
        targets=_moved(schedule, schedule.targets, other.targets, rotates=rotates),
        waits=_joined(schedule.waits, other.waits),
        signals=_joined(schedule.signals, other.signals),
    )


def _rows(schedule: Schedule, other: Schedule) -> Rows:
    """Return the rows of both; the first of each queue in the second run waits for all before it."""
    pairs = ((getattr(schedule.rows, name), getattr(other.rows, name)) for name in Rows.__slots__)
    again = Rows(*map(np.concatenate, pairs))
    fence = again.fence.copy()
    fence[len(schedule) + np.unique(other.lane, return_index=True)[1]] = True
    return replace(again, fence=fence)


def _joined(table: Any, other: Any) -> Any:
    """Return two tables of entries as one; the pointers of the second go on where those of the first ended."""
    names = [name for name in type(table).__slots__ if name != "ptr"]
    ptr: Array = np.concatenate([table.ptr, other.ptr[1:] + table.ptr[-1]])
    entries = (np.concatenate([getattr(table, name), getattr(other, name)]) for name in names)
    return type(table)(ptr.astype(table.ptr.dtype), *entries)


def _moved(schedule: Schedule, places: Places, other: Places, *, rotates: bool) -> Places:
    """Return the places of both, the second in the upper half of a user buffer, or in the slots that are next."""
    again: Places = _joined(places, other)
    offset = again.offset.copy()
    second = offset[places.offset.size :]
    for number, buffer in enumerate(schedule.buffers):
        inside = other.buffer == number
        if buffer.user:
            second[inside] += buffer.size
        elif rotates and buffer.size:
            second[inside] = (second[inside] + used_slots(schedule, number)) % buffer.size
    return replace(again, offset=offset)
