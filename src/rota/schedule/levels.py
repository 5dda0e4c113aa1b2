"""Cutting the stored order of a schedule into consecutive blocks of rows that do not depend on each other."""

from __future__ import annotations

import numpy as np

from rota.columns import I64
from rota.schedule.counters import releases
from rota.schedule.ir import Schedule


def blocks(latest: I64) -> I64:
    """Return the boundaries of the fewest consecutive blocks in which no row depends on another.

    Args:
        latest: for each row, the last row it depends on, which is an earlier one; -1 for none.

    Returns:
        Block b is rows `[b]` to `[b + 1]`; the first entry is 0, the last the number of rows.
    """
    reach = np.maximum.accumulate(latest) if latest.size else latest
    edges = [0]
    while edges[-1] < latest.size:
        edges.append(int(np.searchsorted(reach, edges[-1])))
    return np.array(edges, np.int64)


def previous_in_queue(schedule: Schedule) -> I64:
    """Return, for each row, the row before it in its queue, -1 for the first."""
    lane = schedule.lane
    _, dense = np.unique(lane, return_inverse=True) if schedule.ranks * 256 > 1 << 16 else (None, lane)
    order = np.argsort(dense.astype(np.uint16) if dense.max(initial=0) < 1 << 16 else dense, kind="stable")
    out = np.full(len(schedule), -1, np.int64)
    same = lane[order[1:]] == lane[order[:-1]]
    out[order[1:][same]] = order[:-1][same]
    return out


def latest_before(schedule: Schedule) -> I64:
    """Return, for each row, the last row that must come before it: in its queue, or by a signal it waits for."""
    latest = previous_in_queue(schedule)
    wait, signal = releases(schedule)
    np.maximum.at(latest, schedule.wait_row[wait], schedule.signal_row[signal])
    return latest
