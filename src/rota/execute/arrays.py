"""A schedule carried out on numpy arrays: the numbers its moves give, all ranks in one process."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rota.columns import I64, U8, Array, pointers
from rota.errors import UsageError
from rota.native.arithmetic import Combine, move_pieces
from rota.schedule.ir import Op, Schedule
from rota.schedule.levels import blocks, latest_before

COMBINE: Final = {Op.NONE: Combine.COPY, Op.ADD: Combine.ADD, Op.MAX: Combine.MAX, Op.MIN: Combine.MIN}


def execute(schedule: Schedule, inputs: Array) -> Array:
    """Run a schedule and return what it leaves in the output buffers.

    Rows run in blocks of the stored order that do not depend on each other, which is one legal execution.

    Args:
        inputs: shape (ranks, elements of the input buffer); its dtype is the wire dtype.

    Returns:
        Shape (ranks, elements of the output buffer), same dtype. `inputs` is left as it was.

    Raises:
        UsageError: the shape does not fit the schedule, or the schedule has an operation this version cannot do.
    """
    want = schedule.buffers[schedule.input].size
    if inputs.ndim != 2 or inputs.shape[0] != schedule.ranks or inputs.shape[1] * inputs.itemsize != want:
        raise UsageError(
            f"inputs of shape {inputs.shape} and {inputs.itemsize} bytes an element: expected {schedule.ranks} ranks "
            f"of {want} bytes"
        )
    base = _bases(schedule)
    memory = np.zeros((schedule.ranks, int(base[-1])), np.uint8)
    given = np.ascontiguousarray(inputs).view(np.uint8).reshape(schedule.ranks, want)
    memory[:, base[schedule.input] : base[schedule.input] + want] = given
    _run(schedule, memory.reshape(-1), base, inputs.dtype)
    start, size = int(base[schedule.output]), schedule.buffers[schedule.output].size
    return memory[:, start : start + size].view(inputs.dtype)


def _bases(schedule: Schedule) -> I64:
    """Return where each buffer starts in a rank's memory, 64-byte aligned, and the size of that memory."""
    sizes = np.array([buffer.size for buffer in schedule.buffers], np.int64)
    return pointers(-(-sizes // 64) * 64)


def _run(schedule: Schedule, memory: U8, base: I64, dtype: np.dtype[Any]) -> None:
    rows = schedule.rows
    stride = int(base[-1])
    source = schedule.sources.rank.astype(np.int64) * stride + base[schedule.sources.buffer] + schedule.sources.offset
    target = schedule.targets.rank.astype(np.int64) * stride + base[schedule.targets.buffer] + schedule.targets.offset
    source_ptr, target_ptr = schedule.sources.ptr.astype(np.int64), schedule.targets.ptr.astype(np.int64)
    shape = np.stack([rows.size, rows.op.astype(np.int64), np.diff(source_ptr), np.diff(target_ptr)], axis=1)
    shapes, kind = np.unique(shape, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    edges = blocks(latest_before(schedule))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        for k in np.unique(kind[first:last]).tolist():
            size, op, n_sources, n_targets = shapes[k].tolist()
            if size == 0:
                continue
            row = first + np.flatnonzero(kind[first:last] == k)
            move_pieces(
                memory,
                target[target_ptr[row][:, None] + np.arange(n_targets)],
                source[source_ptr[row][:, None] + np.arange(n_sources)],
                size,
                how=_combine(Op(op)),
                dtype=dtype,
            )


def _combine(op: Op) -> Combine:
    if op not in COMBINE:
        raise UsageError(f"operation {op.name}: this version executes {', '.join(o.name for o in COMBINE)}")
    return COMBINE[op]
