"""How often a value is rounded on its way from the inputs to an output: the longest chain of combining rows."""

from __future__ import annotations

import numpy as np

from rota.schedule.ir import Op, Schedule
from rota.verify.atoms import levels, trace


def roundings(schedule: Schedule) -> int:
    """Return the most roundings on any way from an input to an output; 0 where bytes only move.

    A row rounds once where it combines several sources, or scales one. Source: design §2 (2) and (20), conventions.

    Raises:
        UnsupportedError: the moves cut each other into more pieces than this version follows.
    """
    flow = trace(schedule)
    op = schedule.rows.op
    sources = np.diff(schedule.sources.ptr)
    rounds = ((op != Op.NONE) & (sources > 1)) | (op == Op.FMA)
    depth = np.zeros(flow.row.size + 1, np.int64)  # the last is that of an input
    for first, last in levels(flow):
        producers = flow.producer[flow.ptr[first] : flow.ptr[last]]
        head = flow.ptr[first:last] - flow.ptr[first]
        depth[first:last] = np.maximum.reduceat(depth[producers], head) + rounds[flow.row[first:last]]
    final = flow.final[flow.final >= 0]
    return int(depth[final].max(initial=0))
