"""Inputs for a run, what the collective means in float64, and how far a result is from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from rota.columns import Array
from rota.isa.dtypes import numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.request import EXACT_INTEGER, Request

_FOLD: Final = {CceType.ADD: np.add, CceType.MAX: np.maximum, CceType.MIN: np.minimum}
_BLOCK: Final = 1 << 20  # elements compared at a time
_INTEGER_SPAN: Final = 100


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A result against the float64 golden.

    Attributes:
        max_ulp: largest error in units of the last place of the golden value's format; None when a result is not
            finite where the golden value is, or the other way round.
        ranks_identical: whether all ranks of a group hold the same bytes; None for reduce-scatter, whose shards differ.
    """

    max_ulp: float | None
    ranks_identical: bool | None


def make_inputs(request: Request, rng: np.random.Generator) -> Array:
    """Return one input a member, shape (members, elements), in the wire dtype.

    Floats are uniform in [0.5, 1.5) divided by the next power of two above the ranks, so that a sum is near one in
    every format; integers are uniform in [0, 100) for reductions and over the whole range for moves.
    """
    dtype = numpy_dtype(request.dtype)
    shape = (len(request.members), request.input_size // request.itemsize)
    if dtype.kind not in "iu":
        scale = 0.5 ** (request.ranks - 1).bit_length()
        return ((rng.random(shape, np.float32) + np.float32(0.5)) * np.float32(scale)).astype(dtype)
    if request.op is not None:
        return rng.integers(0, _INTEGER_SPAN, shape).astype(dtype)
    whole: Array = np.frombuffer(rng.bytes(shape[0] * shape[1] * dtype.itemsize), dtype).reshape(shape)
    return whole


def measure(request: Request, inputs: Array, outputs: Array) -> Accuracy:
    """Compare what all members hold after the collective with what it means.

    Args:
        inputs, outputs: shape (members, elements), group after group.
    """
    ranks = request.ranks
    worst: float | None = 0.0
    identical = True
    for first in range(0, inputs.shape[0], ranks):
        group_in, group_out = inputs[first : first + ranks], outputs[first : first + ranks]
        if request.kind is EncOp.REDUCE_SCATTER:
            result = group_out.reshape(1, -1)
        else:
            raw = group_out.view(np.uint8)
            same = all(np.array_equal(raw[0], raw[r]) for r in range(1, ranks))
            identical &= same
            result = group_out[:1] if same else group_out
        for row in result:
            error = _row_error(request, group_in, row)
            worst = None if worst is None or error is None else max(worst, error)
    return Accuracy(worst, None if request.kind is EncOp.REDUCE_SCATTER else identical)


def exceeds_exact_integers(request: Request, inputs: Array) -> bool:
    """Say whether an integer reduction meets values that float32 cannot hold exactly."""
    if not request.integer_as_fp32:
        return False
    bound = np.abs(inputs.astype(np.float64))
    largest = bound.sum(axis=0).max() if request.op is CceType.ADD else bound.max()
    return bool(largest > EXACT_INTEGER)


def _row_error(request: Request, inputs: Array, row: Array) -> float | None:
    worst = 0.0
    for start in range(0, row.size, _BLOCK):
        stop = min(start + _BLOCK, row.size)
        if request.op is None:
            if not np.array_equal(inputs.reshape(-1)[start:stop].view(np.uint8), row[start:stop].view(np.uint8)):
                return None
            continue
        golden = inputs[0, start:stop].astype(np.float64)
        for source in inputs[1:]:
            golden = _FOLD[request.op](golden, source[start:stop].astype(np.float64))
        error = _ulps(golden, row[start:stop])
        if error is None:
            return None
        worst = max(worst, error)
    return worst


def _ulps(golden: Array, result: Array) -> float | None:
    """Return the largest distance in units of the last place, None where finite meets infinite."""
    value = result.astype(np.float64)
    if result.dtype.kind in "iu":
        return float(np.abs(value - golden).max(initial=0))
    info: Any = ml_dtypes.finfo(result.dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no annotations there
    rounded = np.where(np.abs(golden) > float(info.max), np.copysign(np.inf, golden), golden)
    finite = np.isfinite(rounded)
    if (np.isfinite(value) != finite).any():
        return None
    _, exponent = np.frexp(rounded[finite])
    unit = np.maximum(np.ldexp(float(info.eps), exponent - 1), float(info.smallest_subnormal))
    return float((np.abs(value[finite] - rounded[finite]) / unit).max(initial=0))
