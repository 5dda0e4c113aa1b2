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
_INTEGER_SPAN: Final = 99


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A result against the float64 golden.

    Attributes:
        max_ulp: largest error in units of the last place of the golden value in the wire format, whole numbers for
            integers; None when a result is no number where the golden value, held to that format, is one, or another
            infinity, and when bytes that were only moved differ.
        ranks_identical: whether all ranks of a group hold the same bytes; None for reduce-scatter, whose shards differ.
    """

    max_ulp: float | None
    ranks_identical: bool | None


def make_inputs(request: Request, rng: np.random.Generator) -> Array:
    """Return one input a member, shape (members, elements), in the wire dtype.

    Floats are uniform in [0.5, 1.5) divided by the least power of two not under the ranks, so that a sum is near one in
    every format. Integers are uniform over the whole range for moves; for reductions from 0 to 99, or as far as a sum
    of all ranks fits, but at least to 1.
    """
    dtype = numpy_dtype(request.dtype)
    shape = (len(request.members), request.input_size // request.itemsize)
    if dtype.kind not in "iu":
        scale = 0.5 ** (request.ranks - 1).bit_length()
        return ((rng.random(shape, np.float32) + np.float32(0.5)) * np.float32(scale)).astype(dtype)
    if request.op is not None:
        most = min(_INTEGER_SPAN, max(1, np.iinfo(dtype).max // request.ranks))
        return rng.integers(0, most, shape, endpoint=True).astype(dtype)
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
    """Return the largest distance in units of the last place, None where a number meets none, or another infinity.

    The golden value is first held to the format: integers saturate, what would round above the largest float is
    infinite.
    """
    value = result.astype(np.float64)
    if result.dtype.kind in "iu":
        limits = np.iinfo(result.dtype)
        return float(np.abs(value - np.clip(golden, float(limits.min), float(limits.max))).max(initial=0))
    info: Any = ml_dtypes.finfo(result.dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no annotations there
    last = float(info.max)
    too_large = np.abs(golden) >= last + _unit(np.array(last), info) / 2
    held = np.where(too_large, np.copysign(np.inf, golden), golden)
    finite = np.isfinite(held)
    if not np.array_equal(value[~finite], held[~finite], equal_nan=True) or not np.isfinite(value[finite]).all():
        return None
    return float((np.abs(value[finite] - held[finite]) / _unit(held[finite], info)).max(initial=0))


def _unit(value: Array, info: Any) -> Array:
    """Return the distance of neighbours in the format at these finite values."""
    exponent = np.where(value == 0, -(1 << 15), np.frexp(value)[1])
    unit: Array = np.maximum(np.ldexp(float(info.eps), exponent - 1), float(info.smallest_subnormal))
    return unit
