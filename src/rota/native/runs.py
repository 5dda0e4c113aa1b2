"""Folding many runs of one memory, of any sizes and fan-ins, in one call: in C where it was built, else in numpy.

The arithmetic is `arithmetic`'s, which also moves pieces of one size that trade places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rota.columns import I64, U8
from rota.native import calls
from rota.native.arithmetic import NUMBER, Combine, move_pieces
from rota.native.library import kernels

F32 = NDArray[np.float32]


def fold_runs(
    memory: U8,
    target: I64,
    source_ptr: I64,
    source: I64,
    size: I64,
    *,
    how: Combine,
    dtype: np.dtype[Any] | None,
    scales: F32 | None = None,
) -> None:
    """Fold n runs: run i combines `size[i]` bytes from each of its sources, in order, and writes them to `target[i]`.

    Runs of one call must be independent: none reads or writes what another writes, so that their order does not matter.
    Within a run the target may be one of its sources, and a copy may overlap its source in part.

    Args:
        memory: bytes, one dimension.
        target: shape (n,): offsets, of any alignment.
        source_ptr: shape (n + 1,): the sources of run i are `source[source_ptr[i] : source_ptr[i + 1]]`, at least one.
        source: offsets. COPY takes the first of a run.
        size: shape (n,): bytes, whole elements.
        how: how sources combine; COPY moves bytes.
        dtype: the elements; needed unless `how` is COPY.
        scales: of FMA, parallel to `source`; 1 without them.

    Raises:
        IndexError: a run leaves the memory, has no source, or a part of an element; nothing has been moved.
    """
    target, source_ptr, source, size = (
        np.ascontiguousarray(column, np.int64) for column in (target, source_ptr, source, size)
    )
    factors = np.ascontiguousarray(scales, np.float32) if scales is not None and how is Combine.FMA else None
    if source_ptr.size != target.size + 1 or size.size != target.size:
        raise IndexError(f"{target.size} targets have {size.size} sizes and {source_ptr.size} source pointers")
    if factors is not None and factors.size != source.size:
        raise IndexError(f"{source.size} sources have {factors.size} scales")
    library = kernels()
    in_c = how is Combine.COPY or (dtype is not None and calls.number_of(dtype) is not None)
    if library is not None and in_c and calls.is_plain(memory):
        number = NUMBER[how]
        calls.call_fold_runs(library, memory, target, source_ptr, source, size, how=number, dtype=dtype, scales=factors)
    else:
        _by_shape(memory, target, source_ptr, source, size, how, dtype, factors)


def _by_shape(
    memory: U8,
    target: I64,
    source_ptr: I64,
    source: I64,
    size: I64,
    how: Combine,
    dtype: np.dtype[Any] | None,
    scales: F32 | None,
) -> None:
    """Do the same in numpy: runs of one size and fan-in at a time."""
    _check(memory, target, source_ptr, source, size, 1 if dtype is None or how is Combine.COPY else dtype.itemsize)
    shapes, shape = np.unique(np.stack([size, np.diff(source_ptr)], axis=1), axis=0, return_inverse=True)
    shape = shape.reshape(-1)
    for k, (each, fan_in) in enumerate(shapes.tolist()):
        if each == 0:
            continue
        run = np.flatnonzero(shape == k)
        entry = source_ptr[run][:, None] + np.arange(fan_in)
        factors = None if scales is None else scales[entry]
        move_pieces(memory, target[run][:, None], source[entry], each, how=how, dtype=dtype, scales=factors)


def _check(memory: U8, target: I64, source_ptr: I64, source: I64, size: I64, item: int) -> None:
    fan_in = np.diff(source_ptr)
    bad = (size < 0) | (size % item != 0) | (target < 0) | (target > memory.size - size)
    bad |= (fan_in < 1) | (source_ptr[:-1] < 0) | (source_ptr[1:] > source.size)
    if not bad.any() and target.size:
        last = np.repeat(memory.size - size, fan_in)
        used = source[source_ptr[0] : source_ptr[-1]]
        bad = np.logical_or.reduceat((used < 0) | (used > last), source_ptr[:-1] - source_ptr[0])
    if bad.any():
        raise calls.refused(memory, target, int(bad.argmax()), item)
