"""A schedule carried out on numpy arrays: the numbers its moves give, all ranks in one process.

A row with op FMA multiplies a source in the input buffer with the scale of the rank whose memory it is, whatever stands
there, and any other source with 1; every other row leaves its sources unscaled. Source: design §2 (2), (27).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rota.columns import I64, U8, Array, Workspace, pointers
from rota.errors import UsageError
from rota.native.arithmetic import Combine, move_pieces
from rota.schedule.ir import Op, Schedule
from rota.schedule.levels import blocks, latest_before

F32 = NDArray[np.float32]
COMBINE: Final = {
    Op.NONE: Combine.COPY,
    Op.ADD: Combine.ADD,
    Op.FMA: Combine.FMA,
    Op.MAX: Combine.MAX,
    Op.MIN: Combine.MIN,
}


def execute(
    schedule: Schedule, inputs: Array, *, scales: Sequence[float] = (), workspace: Workspace | None = None
) -> Array:
    """Run a schedule and return what it leaves in the output buffers.

    Rows run in blocks of the stored order that do not depend on each other, which is one legal execution.

    Args:
        inputs: shape (ranks, elements of the input buffer); its dtype is the wire dtype.
        scales: of rows with op FMA: one for all ranks, or one for each position of a group, as a request has them.
        workspace: where the memories of the ranks lie, and what is returned; a new one without it.

    Returns:
        Shape (ranks, elements of the output buffer), same dtype. `inputs` is left as it was.

    Raises:
        UsageError: the shape does not fit the schedule, or there are not as many scales as it needs.
    """
    want = schedule.buffers[schedule.input].size
    if inputs.ndim != 2 or inputs.shape[0] != schedule.ranks or inputs.shape[1] * inputs.itemsize != want:
        raise UsageError(
            f"inputs of shape {inputs.shape} and {inputs.itemsize} bytes an element: expected {schedule.ranks} ranks "
            f"of {want} bytes"
        )
    factors = _factors(schedule, scales)
    base = _bases(schedule)
    memory = (workspace or Workspace()).zeros(memory_size(schedule)).reshape(schedule.ranks, -1)
    for held, given in zip(memory[:, base[schedule.input] : base[schedule.input] + want], inputs, strict=True):
        held[:] = np.ascontiguousarray(given).view(np.uint8)
    _run(schedule, memory.reshape(-1), base, inputs.dtype, factors)
    start, size = int(base[schedule.output]), schedule.buffers[schedule.output].size
    return memory[:, start : start + size].view(inputs.dtype)


def memory_size(schedule: Schedule) -> int:
    """Return the bytes that the memories of all ranks take in `execute`."""
    return schedule.ranks * int(_bases(schedule)[-1])


def _bases(schedule: Schedule) -> I64:
    """Return where each buffer starts in a rank's memory, 64-byte aligned, and the size of that memory."""
    sizes = np.array([buffer.size for buffer in schedule.buffers], np.int64)
    return pointers(-(-sizes // 64) * 64)


def _factors(schedule: Schedule, scales: Sequence[float]) -> F32 | None:
    """Return what each source is multiplied with in a row with op FMA; None where there is no such row."""
    if not (schedule.rows.op == Op.FMA).any():
        return None
    if not len(scales) or schedule.ranks % len(scales):
        raise UsageError(
            f"{len(scales)} scales: a schedule of {schedule.ranks} ranks with FMA rows needs one for all of them, or "
            "one for each position of a group"
        )
    own = np.resize(np.array(scales, np.float32), schedule.ranks)
    return np.where(schedule.sources.buffer == schedule.input, own[schedule.sources.rank], np.float32(1))


def _run(schedule: Schedule, memory: U8, base: I64, dtype: np.dtype[Any], factors: F32 | None) -> None:
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
            entry = source_ptr[row][:, None] + np.arange(n_sources)
            move_pieces(
                memory,
                target[target_ptr[row][:, None] + np.arange(n_targets)],
                source[entry],
                size,
                how=COMBINE[Op(op)],
                dtype=dtype,
                scales=factors[entry] if factors is not None and op == Op.FMA else None,
            )
