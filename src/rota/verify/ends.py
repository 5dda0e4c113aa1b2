"""Entered and finished: a rank's user buffers are touched by others only while the rank takes part.

Before its first row completes a rank may not have been given its buffers; once its last row of some queue starts, the
caller may use them again. Source: schedule §5 (4), further pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Bool, owners, ranges
from rota.schedule.ir import Schedule
from rota.verify.findings import Finding, Name
from rota.verify.lanes import Lanes


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """For each queue and each other rank whose user buffers it touches, the first and the last row that does.

    Attributes:
        host: the rank whose buffers they are.
        visit, lane: pairs of a visit and a queue of its host, of which one must be in order.
    """

    host: I64
    first: I64
    last: I64
    visit: I64
    lane: I64


def visits(schedule: Schedule, queues: Lanes) -> Visits:
    """Return who touches whose user buffers."""
    user = np.array([buffer.user for buffer in schedule.buffers], np.bool_)
    ranks, keys = schedule.ranks, []
    bits = max(len(schedule), 1).bit_length()
    for table in (schedule.sources, schedule.targets):
        row = owners(table.ptr)
        foreign = user[table.buffer] & (table.rank != schedule.rows.rank[row])
        row = row[foreign]
        keys.append(((queues.of[row] * ranks + table.rank[foreign]) << bits) | row)
    key = np.concatenate(keys)
    key.sort()
    name, row = key >> bits, key & ((1 << bits) - 1)
    begins = np.ones(name.size + 1, np.bool_)
    begins[1:-1] = name[1:] != name[:-1]
    at = np.flatnonzero(begins)
    host = name[at[:-1]] % ranks
    start = np.searchsorted(queues.rank, host)
    counts = np.searchsorted(queues.rank, host, side="right") - start
    return Visits(
        host=host,
        first=row[at[:-1]],
        last=row[at[1:] - 1],
        visit=np.repeat(np.arange(host.size), counts),
        lane=ranges(start, counts),
    )


def any_of(found: Visits, ordered: Bool) -> Bool:
    """Return which visits have a pair that is ordered."""
    out = np.zeros(found.host.size, np.bool_)
    out[found.visit[ordered]] = True
    return out


def not_entered(name: Name, found: Visits, bad: I64) -> Iterator[Finding]:
    """Yield visits to ranks that may not have begun."""
    for visit in bad.tolist():
        host, row = int(found.host[visit]), int(found.first[visit])
        text = f"{name(row)} touches user buffers of rank {host} before any row of that rank must have completed"
        yield Finding("not_entered", text, (row,))


def not_finished(name: Name, found: Visits, queues: Lanes, bad: I64) -> Iterator[Finding]:
    """Yield visits to ranks that may already have ended."""
    for visit in bad.tolist():
        host, row = int(found.host[visit]), int(found.last[visit])
        last = queues.last[found.lane[found.visit == visit]].tolist()
        end = f"with {name(last[0])}" if last else "at once"
        text = f"{name(row)} touches user buffers of rank {host}, which may have ended before, {end}"
        yield Finding("not_finished", text, (row, *last[:1]))
