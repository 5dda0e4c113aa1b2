"""Columns: many things of one kind as equally long, read-only arrays; lists of varying length as CSR."""

from __future__ import annotations

import dataclasses
import mmap
from contextlib import suppress
from threading import Thread
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bool: TypeAlias = NDArray[np.bool_]
U8: TypeAlias = NDArray[np.uint8]
U16: TypeAlias = NDArray[np.uint16]
U32: TypeAlias = NDArray[np.uint32]
U64: TypeAlias = NDArray[np.uint64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
Array: TypeAlias = NDArray[Any]

_TOUCHED: Final = 64 << 20  # bytes whose pages are brought in at a time; less is not worth a thread
_PAGE: Final = 4096


def freeze(array: Array) -> None:
    """Make an array read-only, and so every view that is made of it from now on."""
    array.flags.writeable = False


def freeze_columns(table: Any) -> None:
    """Check that all array fields of a dataclass are one-dimensional and equally long, and make them read-only."""
    columns = {f.name: getattr(table, f.name) for f in dataclasses.fields(table)}
    lengths = {name: column.shape for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or any(len(shape) != 1 for shape in lengths.values()):
        raise ValueError(f"columns of {type(table).__name__} differ in length: {lengths}")
    for column in columns.values():
        freeze(column)


def pointers(counts: Array) -> I64:
    """Return the CSR pointers of lists with these lengths: one longer than `counts`, starting at 0."""
    out = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def ranges(starts: Array, counts: Array) -> I64:
    """Return the concatenation of `arange(start, start + count)` over all pairs."""
    counts = np.asarray(counts, np.int64)
    if counts.size and (counts == counts[0]).all():
        return np.asarray(np.asarray(starts, np.int64)[:, None] + np.arange(counts[0]), np.int64).ravel()
    first = pointers(counts)
    out: I64 = np.arange(first[-1], dtype=np.int64)
    return out + np.repeat(np.asarray(starts, np.int64) - first[:-1], counts)


def owners(indptr: Array) -> I64:
    """Return, for each element of a CSR list, the row that owns it."""
    return np.repeat(np.arange(indptr.size - 1, dtype=np.int64), np.diff(indptr))


def running_count(keys: Array) -> I64:
    """Return, for each element, how many earlier elements have the same key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    position = np.arange(keys.size, dtype=np.int64)
    fresh = np.ones(keys.size, np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(fresh, position, 0))
    out = np.empty(keys.size, np.int64)
    out[order] = position - start
    return out


def equal_bytes(one: U8, other: U8) -> bool:
    """Say whether two rows of bytes are equal, a word at a time where they can be read so."""
    if one.shape == other.shape and one.size % 8 == 0:
        return np.array_equal(one.view(np.uint64), other.view(np.uint64))
    return np.array_equal(one, other)


class Workspace:
    """Memory that one run after another works in, so that its pages are brought in once.

    Args:
        expected: bytes that a run will ask for; their pages come in while the caller does something else.
    """

    def __init__(self, expected: int = 0) -> None:
        self._held: U8 = np.empty(0, np.uint8)
        self._used = 0
        self._coming: Thread | None = None
        if expected >= _TOUCHED:
            with suppress(MemoryError):  # whoever asks for it is told
                self._held = _unused_pages(expected)
                self._coming = Thread(target=_touch, args=(self._held[:expected],), daemon=True)
                self._coming.start()

    def zeros(self, size: int) -> U8:
        """Return that many bytes, all 0, in large pages where the machine has them.

        What an earlier call returned is written over.

        Raises:
            MemoryError: there is not as much.
        """
        if self._coming is not None:
            self._coming.join()
            self._coming = None
        if size > self._held.size:
            self._held, self._used = np.empty(0, np.uint8), 0
            self._held = _unused_pages(size)
        self._held[: min(size, self._used)] = 0
        self._used = max(size, self._used)
        return self._held[:size]


def _touch(pages: U8) -> None:
    """Bring pages in that hold zeros, a part at a time, so that others get their turn."""
    for start in range(0, pages.size, _TOUCHED):
        pages[start : start + _TOUCHED : _PAGE] = 0


def _unused_pages(size: int) -> U8:
    """Return zeros that take no memory before they are written, twice as many as asked for at most."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        pages = mmap.mmap(-1, 1 << (size - 1).bit_length(), **private)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
