"""Calls into the C library with arrays: numbers of element types, addresses, the check of all offsets.

What is called here needs the library and memory that is plain; whoever calls decides when to. Offsets are checked
before anything moves, since C would not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rota.columns import I64, U8, Array

F32 = NDArray[np.float32]
COPY: Final = 0  # of `enum How` in kernels.c

# `enum Dtype` in kernels.c, by numpy's and ml_dtypes' names.
_NUMBERS: Final[Mapping[str, int]] = {
    "bfloat16": 0,
    "float16": 1,
    "float32": 2,
    "float8_e3m4": 3,
    "float8_e4m3": 4,
    "float8_e5m2": 5,
}


@cache
def number_of(dtype: np.dtype[Any]) -> int | None:
    """Return the kernels' number of an element type, or None if they have not got it."""
    return _NUMBERS.get(dtype.name) if dtype.isnative else None


def is_plain(memory: U8) -> bool:
    """Say whether the kernels can write this memory: bytes in one piece, and not read-only."""
    return memory.strides == (1,) and memory.flags.writeable


def call_fold_runs(
    library: ctypes.CDLL,
    memory: U8,
    target: I64,
    source_ptr: I64,
    source: I64,
    size: I64,
    *,
    how: int,
    dtype: np.dtype[Any] | None,
    scales: F32 | None,
) -> None:
    """Do `runs.fold_runs`, for a `dtype` that has a number.

    Raises:
        IndexError: a run leaves the memory, has no source, or a part of an element; nothing has been moved.
    """
    columns = [_address(column) for column in (target, source_ptr, source, size)]
    _check(library, memory, target, columns, source.size, how, dtype)
    _run(library, _address(memory), target.size, columns, how, dtype, scales)


def call_move_pieces(
    library: ctypes.CDLL,
    memory: U8,
    targets: I64,
    sources: I64,
    size: int,
    *,
    how: int,
    dtype: np.dtype[Any] | None,
    scales: F32 | None,
    stage: U8 | None,
) -> None:
    """Do `arithmetic.move_pieces`, for a `dtype` that has a number and at least one piece and target.

    Args:
        stage: room for all values, through which they go if pieces read what others write.

    Raises:
        IndexError: as `call_fold_runs`.
    """
    base, (count, fan_in) = _address(memory), sources.shape
    every = np.arange(count + 1)
    pointer, sizes, source = every * fan_in, np.full(count, size), np.ascontiguousarray(sources)
    columns = [np.ascontiguousarray(column) for column in targets.T]
    rest = [_address(column) for column in (pointer, source, sizes)]
    for column in columns:
        _check(library, memory, column, [_address(column), *rest], source.size, how, dtype)
    value = columns.pop(0) if stage is None else _address(stage) - base + every[:-1] * size
    _run(library, base, count, [_address(value), *rest], how, dtype, scales)
    for column in columns:
        copied = [_address(part) for part in (column, every, value, sizes)]
        _run(library, base, count, copied, COPY, None, None)


def call_fold(library: ctypes.CDLL, sources: Sequence[Array], *, how: int, scales: F32 | None) -> Array:
    """Return the fold of contiguous arrays of one shape and one dtype that has a number."""
    first, count = sources[0], len(sources)
    result = np.empty(first.shape, first.dtype)
    base = _address(result)
    places = np.array([0, count, result.nbytes, *(_address(source) - base for source in sources)], np.int64)
    at = _address(places)
    _run(library, base, 1, [at, at, at + 24, at + 16], how, first.dtype, scales)  # one run to 0, of sources 0 to count
    return result


def refused(memory: U8, target: I64, run: int, item: int) -> IndexError:
    """Return the error of a run that the memory cannot hold."""
    return IndexError(
        f"run {run}, to byte {target[run]}: it or a source of it leaves the memory of {memory.size} bytes, or it has "
        f"no source, or its size is no multiple of {item}"
    )


def _check(
    library: ctypes.CDLL,
    memory: U8,
    target: I64,
    columns: Sequence[int],
    entries: int,
    how: int,
    dtype: np.dtype[Any] | None,
) -> None:
    item = dtype.itemsize if dtype is not None and how != COPY else 1
    bad = library.rota_bad_run(memory.size, item, entries, target.size, *columns)
    if bad >= 0:
        raise refused(memory, target, bad, item)


def _run(
    library: ctypes.CDLL,
    base: int,
    count: int,
    columns: Sequence[int],
    how: int,
    dtype: np.dtype[Any] | None,
    scales: F32 | None,
) -> None:
    number = 0 if dtype is None else number_of(dtype) or 0
    library.rota_fold_runs(base, count, *columns, how, number, None if scales is None else _address(scales))


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
