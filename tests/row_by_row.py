"""A schedule carried out one row after another, in the stored order: the slow, clear twin of `rota.execute.arrays`.

Sources widen to float32, fold in their order and are rounded once, by ml_dtypes; integers are rounded to the nearest
and saturate. A row with op FMA multiplies a source in the input buffer with the scale of the rank whose memory it is.
Nothing of `rota.native` or `rota.execute` is used. Source: design §2 (2), (27).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rota.columns import Array
from rota.schedule.ir import Op, Schedule


def run_rows(schedule: Schedule, inputs: Array, *, scales: Sequence[float] = ()) -> Array:
    """Return what a schedule leaves in the output buffers.

    Args:
        inputs: shape (ranks, elements of the input buffer).
        scales: of rows with op FMA: one for all ranks, or one for each position of a group.

    Returns:
        Shape (ranks, elements of the output buffer); what no row writes is zero, in place the input.
    """
    dtype = inputs.dtype
    memory = [[bytearray(buffer.size) for buffer in schedule.buffers] for _ in range(schedule.ranks)]
    for rank in range(schedule.ranks):
        memory[rank][schedule.input][:] = inputs[rank].tobytes()
    sources, targets = places(schedule.sources), places(schedule.targets)
    sizes, ops = schedule.rows.size.tolist(), schedule.rows.op.tolist()
    for row, size in enumerate(sizes):
        if not size:
            continue
        parts = [memory[rank][buffer][offset : offset + size] for rank, buffer, offset in sources[row]]
        if ops[row] == Op.NONE:
            value = bytes(parts[0])
        else:
            factors = [
                scales[rank % len(scales)] if ops[row] == Op.FMA and buffer == schedule.input else 1.0
                for rank, buffer, _ in sources[row]
            ]
            value = combine(Op(ops[row]), [np.frombuffer(part, dtype) for part in parts], factors).tobytes()
        for rank, buffer, offset in targets[row]:
            memory[rank][buffer][offset : offset + size] = value
    return np.stack([np.frombuffer(bytes(memory[rank][schedule.output]), dtype) for rank in range(schedule.ranks)])


def places(table: Any) -> list[list[tuple[int, int, int]]]:
    """Return (rank, buffer, offset) of the entries of each row."""
    entries = list(zip(table.rank.tolist(), table.buffer.tolist(), table.offset.tolist(), strict=True))
    ends = table.ptr.tolist()
    return [entries[first:last] for first, last in pairwise(ends)]


def combine(op: Op, parts: Sequence[Array], factors: Sequence[float]) -> Array:
    """Return the parts folded in order in float32 and rounded once to their type."""
    wide = [part.astype(np.float32) for part in parts]
    if op is Op.FMA:
        wide = [part * np.float32(factor) for part, factor in zip(wide, factors, strict=True)]
    total = wide[0]
    for part in wide[1:]:
        total = pair(op, total, part)
    dtype = parts[0].dtype
    if dtype.kind not in "iu":
        return total.astype(dtype)
    limits = np.iinfo(dtype)
    whole = [min(max(int(value), limits.min), limits.max) for value in np.rint(total).tolist()]
    return np.array(whole, dtype)


def pair(op: Op, left: Array, right: Array) -> Array:
    """Return two operands combined; of two zeros, -0 is the smaller."""
    if op in (Op.ADD, Op.FMA):
        return left + right
    if op is Op.MAX:
        first = (left > right) | ((left == right) & ~np.signbit(left))
    else:
        first = (left < right) | ((left == right) & np.signbit(left))
    return np.where(first, left, right)
