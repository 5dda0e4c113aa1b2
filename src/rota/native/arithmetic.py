"""The accelerator's element arithmetic in numpy, and moving many pieces of one memory at once.

Inputs widen to float32, sources fold in list order, one rounding (nearest, ties to even) at the write. MIN and MAX
propagate NaN and hold -0 < +0; of two NaNs the first stays; overflow goes to infinity; subnormals are kept. FMA
multiplies each source with its float32 scale, rounds, and then adds as ADD does; the first product starts the sum, and
a scale of 1 leaves every bit as it is. Integers take the same way and round to the nearest integer, saturating. This is
the slow, clear form; kernels.c has the fast one of the floating types, which gives the same bits and does the work here
where it was built.
Source: design §2 (2), conventions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rota.columns import I64, U8, Array
from rota.native import calls
from rota.native.library import kernels

F32 = NDArray[np.float32]
_GATHER_BELOW: Final = 4096  # bytes of a piece; above it a loop over slices moves faster than an index gather
_IN_C_FROM: Final = 64  # bytes of a piece; smaller ones move as fast in one gather
_COPIES_IN_C_FROM: Final = 1 << 16  # bytes of all pieces; below it a call costs more than numpy's copy
_FOLDED_AT_ONCE: Final = 1 << 17  # bytes of each source that numpy folds at once
_STAGE_BELOW: Final = 1024  # bytes of a piece; copying it once more then costs less than a place in a sort
_WORDS: Final = (np.uint64, np.uint32, np.uint16, np.uint8)


class Combine(Enum):
    """How the sources of a move become one value."""

    COPY = "copy"
    ADD = "add"
    MAX = "max"
    MIN = "min"
    FMA = "fma"


NUMBER: Final = {how: number for number, how in enumerate(Combine)}  # `enum How` in kernels.c


def fold(how: Combine, sources: Sequence[Array], scales: Sequence[F32 | np.float32] | F32 = ()) -> Array:
    """Return the sources combined in list order, in their dtype, rounded once.

    Args:
        sources: arrays of one shape and one dtype, at least one.
        scales: of FMA: one for each source, of no dimension or of those that broadcast to its shape; 1 without them.
    """
    if how is Combine.COPY:
        return sources[0]
    library = kernels()
    if library is not None and _are_plain(sources):
        factors = _one_each(how, sources, scales)
        if factors is not None:
            return calls.call_fold(library, sources, how=NUMBER[how], scales=factors if factors.size else None)
    dtype = sources[0].dtype
    with np.errstate(all="ignore"):
        wide = (source.astype(np.float32) for source in sources)
        if how is Combine.FMA and len(scales):
            wide = (_product(source, scale) for source, scale in zip(wide, scales, strict=True))
        total = next(wide)
        for source in wide:
            total = _pair(how, total, source)
        return _narrow(total, dtype)


def _are_plain(sources: Sequence[Array]) -> bool:
    """Say whether the kernels take these arrays."""
    dtype, shape = sources[0].dtype, sources[0].shape
    if not sources[0].nbytes or not shape or calls.number_of(dtype) is None:
        return False
    return all(one.dtype == dtype and one.shape == shape and one.flags.c_contiguous for one in sources)


def _one_each(how: Combine, sources: Sequence[Array], scales: Sequence[F32 | np.float32] | F32) -> F32 | None:
    """Return one float32 a source, none for a plain sum, or None if the scales are anything else."""
    if how is not Combine.FMA or not len(scales):
        return np.empty(0, np.float32)
    if len(scales) != len(sources) or any(np.ndim(scale) for scale in scales):
        return None
    factors = np.asarray(scales)
    return factors if factors.dtype == np.float32 and factors.flags.c_contiguous else None


def _product(value: F32, scale: F32 | np.float32) -> F32:
    product: F32 = value * scale
    nan = np.isnan(product)
    if nan.any():  # a NaN keeps its bits; zero times infinity has a sign that depends on the hardware
        product[nan] = np.where(np.isnan(value), value, np.float32(np.nan))[nan]
    return product


def _pair(how: Combine, left: F32, right: F32) -> F32:
    if how in (Combine.ADD, Combine.FMA):
        value = left + right
    else:
        zero = (left == 0) & (right == 0)
        if how is Combine.MAX:
            value = np.where(zero, left + right, np.maximum(left, right))
        else:
            value = np.where(zero, -(-left - right), np.minimum(left, right))
    nan = np.isnan(value)
    if nan.any():  # which of two NaNs the hardware keeps depends on the length of the array
        first, second = left[nan], right[nan]
        value[nan] = np.where(np.isnan(first), first, np.where(np.isnan(second), second, np.float32(np.nan)))
    return value


def _narrow(value: F32, dtype: np.dtype[Any]) -> Array:
    if dtype.kind not in "iu":
        return value.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.rint(np.nan_to_num(value, nan=0.0, posinf=np.inf, neginf=-np.inf)).astype(np.float64)
    inside = np.clip(whole, float(limits.min), float(limits.max))
    top = inside >= float(limits.max)
    return np.where(top, limits.max, np.where(top, 0, inside).astype(dtype)).astype(dtype)


def move_pieces(
    memory: U8,
    targets: I64,
    sources: I64,
    size: int,
    *,
    how: Combine = Combine.COPY,
    dtype: np.dtype[Any] | None = None,
    scales: F32 | None = None,
) -> None:
    """Move n pieces of one memory, each `size` bytes, all reads before all writes.

    Args:
        memory: bytes, one dimension.
        targets: shape (n, t): the value of piece i is written to each of its t targets. Targets do not overlap.
        sources: shape (n, k): the k sources of piece i, in fold order.
        dtype: the elements; needed when the pieces are combined.
        scales: shape (n, k): of the sources of FMA; 1 without them.
    """
    library = kernels()
    if library is not None and _in_c(memory, targets, size, how, dtype):
        stage = np.empty(len(targets) * size, np.uint8) if _stages(targets, sources, size) else None
        factors = None if scales is None or how is not Combine.FMA else np.ascontiguousarray(scales, np.float32)
        calls.call_move_pieces(
            library, memory, targets, sources, size, how=NUMBER[how], dtype=dtype, scales=factors, stage=stage
        )
    elif size < _GATHER_BELOW:
        _gather(memory, targets, sources, size, how, dtype, scales)
    else:
        _by_piece(memory, targets, sources, size, how, dtype, scales)


def _in_c(memory: U8, targets: I64, size: int, how: Combine, dtype: np.dtype[Any] | None) -> bool:
    """Say whether the kernels can move these pieces, and faster."""
    if not targets.size or size < _IN_C_FROM or not calls.is_plain(memory):
        return False
    if how is Combine.COPY:
        return len(targets) * size >= _COPIES_IN_C_FROM
    return dtype is not None and calls.number_of(dtype) is not None and size % dtype.itemsize == 0


def _stages(targets: I64, sources: I64, size: int) -> bool:
    """Say whether values go through a stage: they must, or they are so small that it costs less than finding out."""
    return size < _STAGE_BELOW or _reads_what_is_written(targets, sources, size)


def _by_piece(
    memory: U8, targets: I64, sources: I64, size: int, how: Combine, dtype: np.dtype[Any] | None, scales: F32 | None
) -> None:
    values: Iterable[Array]
    if how is Combine.COPY:
        values = (memory[at : at + size] for at in sources[:, 0].tolist())
    else:
        values = _folded(memory, sources, size, how, dtype, scales)
    if _reads_what_is_written(targets, sources, size):
        values = [value.copy() if how is Combine.COPY else value for value in values]
    for piece, value in zip(targets.tolist(), values, strict=True):
        for at in piece:
            memory[at : at + size] = value


def _folded(
    memory: U8, sources: I64, size: int, how: Combine, dtype: np.dtype[Any] | None, scales: F32 | None
) -> Iterator[Array]:
    """Yield the value of each piece; as many are folded at once as stay in cache."""
    together = max(1, _FOLDED_AT_ONCE // size)
    for start in range(0, len(sources), together):
        some = slice(start, start + together)
        columns = sources[some].T.tolist()
        parts = [np.concatenate([memory[at : at + size] for at in column]).reshape(-1, size) for column in columns]
        factors = () if scales is None else scales[some].T[:, :, None]
        yield from fold(how, [part.view(dtype or np.uint8) for part in parts], factors).view(np.uint8)


def _reads_what_is_written(targets: I64, sources: I64, size: int) -> bool:
    """Say whether a source meets a target, other than the very bytes its own piece writes."""
    at = np.sort(sources, axis=None)
    met = np.searchsorted(at, targets + size, side="left") - np.searchsorted(at, targets - size, side="right")
    own = (sources[:, None, :] == targets[:, :, None]).sum(axis=2)
    return bool((met > own).any())


def _gather(
    memory: U8, targets: I64, sources: I64, size: int, how: Combine, dtype: np.dtype[Any] | None, scales: F32 | None
) -> None:
    word = _widest_word(targets, sources, size, memory.size)
    width = np.dtype(word).itemsize
    view = memory[: memory.size // width * width].view(word)
    step = np.arange(size // width)
    parts = [view[(column // width)[:, None] + step] for column in sources.T]
    if how is Combine.COPY:
        value = parts[0]
    else:
        columns = () if scales is None else scales.T[:, :, None]
        value = fold(how, [part.view(dtype or word) for part in parts], columns).view(word)
    for column in targets.T:
        view[(column // width)[:, None] + step] = value


def _widest_word(targets: I64, sources: I64, size: int, end: int) -> type[Any]:
    bits = int(np.bitwise_or.reduce(targets, axis=None) | np.bitwise_or.reduce(sources, axis=None)) | size
    return next(word for word in _WORDS if bits % np.dtype(word).itemsize == 0 and end >= np.dtype(word).itemsize)
