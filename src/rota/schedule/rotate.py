"""A schedule run again: the slots of its ring channels go on where the runs before it left them.

Credits are counted from the start of the program, and so are slots; a run that began with slot 0 again would write what
has not been read. Source: compose §2.1, advance_send; device-model §5.2.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from rota.columns import I64
from rota.schedule.ir import Places, Schedule

_SLOTS: Final = re.compile(r"(.*\b)slot(\.\d+)")


def rotated(schedule: Schedule, turns: int) -> Schedule:
    """Return the schedule as it runs after `turns` earlier runs of it on the same slots."""
    used = {number: used_slots(schedule, number) for number in range(len(schedule.buffers))}
    moved = {number: size * turns % schedule.buffers[number].size for number, size in used.items() if size}
    if not any(moved.values()):
        return schedule
    return replace(
        schedule, sources=_moved(schedule, schedule.sources, moved), targets=_moved(schedule, schedule.targets, moved)
    )


def used_slots(schedule: Schedule, number: int) -> int:
    """Return the bytes of slots that a run goes through, from first to first again; 0 for a buffer of no ring's."""
    buffer = schedule.buffers[number]
    name = _SLOTS.fullmatch(buffer.name)
    names = [semaphore.name for semaphore in schedule.semaphores]
    if name is None or not buffer.size or f"{name[1]}credit{name[2]}" not in names:
        return 0
    credit = names.index(f"{name[1]}credit{name[2]}")
    taken: I64 = np.bincount(schedule.rows.rank[schedule.wait_row[schedule.waits.semaphore == credit]])
    slots = schedule.semaphores[credit].initial
    return int(taken.max(initial=0)) * (buffer.size // slots) if slots else 0


def _moved(schedule: Schedule, places: Places, moved: dict[int, int]) -> Places:
    offset = places.offset.copy()
    for number, distance in moved.items():
        inside = places.buffer == number
        offset[inside] = (offset[inside] + distance) % schedule.buffers[number].size
    return replace(places, offset=offset)
