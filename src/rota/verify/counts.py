"""Counting: what is signalled against what is waited for, and what a rank needs against what the architecture has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rota.schedule.ir import Schedule
from rota.verify.findings import MOST, Finding
from rota.verify.match import Needs, Signals


def counts(schedule: Schedule, given: Signals, waits: Needs) -> tuple[list[Finding], list[Finding]]:
    """Return the semaphores on which waits and signals differ in number, and those that do not return otherwise."""
    added, taken = given.added, waits.taken
    numbers: list[Finding] = []
    values: list[Finding] = []
    wrong = np.flatnonzero(added != taken)
    if not wrong.size:
        return numbers, values
    asked = np.zeros(added.size, np.int64)
    np.maximum.at(asked, waits.key, waits.threshold)
    for key in wrong[: 2 * MOST].tolist():
        rank, index = divmod(key, len(schedule.semaphores))
        semaphore = schedule.semaphores[index]
        waiting, signalling = (
            waits.row[waits.key == key].tolist(),
            given.row[slice(*given.first[key : key + 2])].tolist(),
        )
        rows = (*waiting[-1:], *signalling[-1:])
        if semaphore.initial == 0 and asked[key] != added[key]:
            last = schedule.name(rows[0])
            who = f"the last wait is {last}" if waiting else f"nobody waits, and the last signal is {last}"
            text = f"the waits on {semaphore.name} of rank {rank} ask for {asked[key]} signals in all, and "
            numbers.append(Finding("wait_count", f"{text}{added[key]} are sent; {who}", rows))
            continue
        text = (
            f"{semaphore.name} of rank {rank} ends {added[key] - taken[key]:+d} away from its initial value; the last"
        )
        values.append(Finding("unbalanced", f"{text} row that touches it is {schedule.name(max(rows))}", rows))
    return numbers, values


def limits(schedule: Schedule, internal_bytes: int | None, semaphores: int | None) -> Iterator[Finding]:
    """Yield what a rank needs and the architecture does not have; None is no limit."""
    internal = [buffer for buffer in schedule.buffers if not buffer.user]
    need = sum(buffer.size for buffer in internal)
    if internal_bytes is not None and need > internal_bytes:
        largest = max(internal, key=lambda buffer: buffer.size)
        text = f"the internal buffers take {need} bytes a rank, and there are {internal_bytes}"
        yield Finding("buffer_limit", f"{text}; the largest is {largest.name} with {largest.size}")
    if semaphores is not None and len(schedule.semaphores) > semaphores:
        text = f"the schedule uses {len(schedule.semaphores)} semaphores a rank, and there are {semaphores}"
        yield Finding("semaphore_limit", f"{text}; the first too many is {schedule.semaphores[semaphores].name}")
