"""Inputs for a run, what the collective means in float64, and how far a result is from it.

`_results` states every collective in its own way, as arrays that must be equal; the proof of schedules has another
statement of its own. Bytes of an output for which nothing is asked are not looked at here. Source: compose §5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rota.columns import Array, equal_bytes
from rota.isa.dtypes import numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.request import EXACT_INTEGER, Request

_FOLD: Final = {CceType.ADD: np.add, CceType.FMA: np.add, CceType.MAX: np.maximum, CceType.MIN: np.minimum}
_ALIKE: Final = frozenset({EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.BROADCAST})  # every output is the same
_HALVES: Final = frozenset({EncOp.PERMUTE_REDUCE, EncOp.PERMUTE_REDUCE_IMPLICIT})  # their inputs are two operands
_BLOCK: Final = 1 << 16  # elements compared at a time, which stay in cache
_DRAWN: Final = 1 << 16  # random elements drawn at a time, which stay in cache
_WHOLE: Final = (1 << 64) - 1
_INTEGER_SPAN: Final = 99
_EXACT_BITS: Final = 11
_EXACT_MOST: Final = 9  # largest of the whole numbers, and how many of them may meet at that size
_EXACT_TERMS: Final = 4
_EXACT_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A result against the float64 golden.

    Attributes:
        max_ulp: largest error in units of the last place of the golden value in the wire format, whole numbers for
            integers; None when a result is no number where the golden value, held to that format, is one, or another
            infinity, and when bytes that were only moved differ.
        ranks_identical: whether all ranks of a group hold the same bytes; None where the collective does not ask for
            it, which only all-reduce, all-gather and broadcast do.
    """

    max_ulp: float | None
    ranks_identical: bool | None


class _Result(NamedTuple):
    """Part of an output, and the equally long arrays that it combines; a single one is only moved.

    Attributes:
        held: one dimension.
        scales: of the parts, for fma.
    """

    held: Array
    parts: Sequence[Array] | Array
    scales: Sequence[float] = ()


def make_inputs(request: Request, rng: np.random.Generator) -> Array:
    """Return one input a member, shape (members, elements), in the wire dtype.

    Floats are uniform in [0.5, 1.5) divided by the least power of two not under the weight of the inputs in a result,
    so that a sum is near one in every format: the weight is the ranks, or the sum of the scales where that is larger.
    Integers are uniform over the whole range for moves; for reductions from 0 to 99, or as far as a sum of all inputs
    fits, but at least to 1.
    """
    dtype = numpy_dtype(request.dtype)
    shape = (len(request.members), request.input_size // request.itemsize)
    operands = 2 if request.kind in _HALVES else 1
    weight = max(request.ranks, operands, math.ceil(sum(map(abs, _scales(request)))))
    if dtype.kind not in "iu":
        return _uniform(shape, dtype, 0.5 ** (weight - 1).bit_length(), rng)
    if request.op is not None:
        most = min(_INTEGER_SPAN, max(1, np.iinfo(dtype).max // weight))
        return rng.integers(0, most, shape, endpoint=True).astype(dtype)
    return rng.integers(0, 255, (shape[0], shape[1] * dtype.itemsize), np.uint8, endpoint=True).view(dtype)


def _uniform(shape: tuple[int, int], dtype: np.dtype[Any], scale: float, rng: np.random.Generator) -> Array:
    """Return floats of [0.5, 1.5) times a scale, drawn a block at a time; of 65,536 different ones for narrow types."""
    out = np.empty(shape, dtype)
    flat = out.reshape(-1)
    steps = np.arange(1 << 16, dtype=np.float32) / (1 << 16)
    table = ((steps + np.float32(0.5)) * np.float32(scale)).astype(dtype)
    for start in range(0, flat.size, _DRAWN):
        block = flat[start : start + _DRAWN]
        if dtype.itemsize > 2:
            block[:] = (rng.random(block.size, np.float32) + np.float32(0.5)) * np.float32(scale)
        else:
            drawn = rng.integers(0, _WHOLE, -(-block.size // 4), np.uint64, endpoint=True).view(np.uint16)
            np.take(table, drawn[: block.size], out=block, mode="wrap")
    return out


def measure(request: Request, inputs: Array, outputs: Array) -> Accuracy:
    """Compare what all members hold after the collective with what it means.

    Args:
        inputs, outputs: shape (members, elements), group after group.
    """
    worst: float | None = 0.0
    identical = True
    for number in range(len(request.groups)):
        first, last = number * request.ranks, (number + 1) * request.ranks
        group_in, group_out = inputs[first:last], outputs[first:last]
        if request.kind in _ALIKE:
            raw = group_out.view(np.uint8)
            same = all(equal_bytes(raw[0], raw[r]) for r in range(1, request.ranks))
            identical &= same
            group_out = group_out[:1] if same else group_out
        for result in _results(request, number, group_in, group_out):
            error = _error(request.op, result)
            worst = None if worst is None or error is None else max(worst, error)
    return Accuracy(worst, identical if request.kind in _ALIKE else None)


def make_exact_inputs(request: Request, rng: np.random.Generator) -> Array:
    """Return inputs of whole numbers so few and small that every partial result is exact, whatever the order.

    A result then has one right value, bit for bit. Shape and dtype are those of `make_inputs`.
    """
    dtype = numpy_dtype(request.dtype)
    if request.op is None:
        return make_inputs(request, rng)
    shape = (len(request.members), request.input_size // request.itemsize)
    holds = largest_exact(dtype)
    scales = np.resize(np.abs(np.array(request.scales or (1.0,))), request.ranks)
    scale = max(1, math.ceil(scales.max()))
    most = max(1, min(_EXACT_MOST, holds // (scale * min(request.ranks, _EXACT_TERMS))))
    alone = request.op is CceType.FMA and any(scale % 1 for scale in request.scales)
    out = np.empty(shape, dtype)
    width = max(1, _EXACT_BLOCK // shape[0])
    for start in range(0, shape[1], width):
        block = out[:, start : start + width]
        values = _small_numbers(block.shape, 0 if dtype.kind == "u" else -most, most, rng)
        if request.op in (CceType.ADD, CceType.FMA):
            for number in range(len(request.groups)):
                _bound(values[number * request.ranks : (number + 1) * request.ranks], scale, holds)
        if alone:
            # A product that is rounded stays what it is when only zeros are added.
            place = np.arange(start, start + block.shape[1])
            values = np.sign(values) * (place % request.ranks == np.arange(shape[0])[:, None] % request.ranks)
        block[:] = values.astype(dtype)
    return out


def _small_numbers(shape: tuple[int, ...], least: int, most: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Return whole numbers of a small range, all about as often: each the upper byte of a random one times how many."""
    size = math.prod(shape)
    drawn = rng.integers(0, _WHOLE, -(-size // 8), np.uint64, endpoint=True).view(np.uint8)[:size]
    upper = np.multiply(drawn, most - least + 1, dtype=np.uint16) >> 8
    return (upper.astype(np.int8) + np.int8(least)).reshape(shape)


def _bound(rows: NDArray[np.int8], scale: int, most: int) -> None:
    """Make values zero from where the magnitudes of a column, times a scale, add up to more than the most."""
    total = np.zeros(rows.shape[1], np.int32)
    for row in rows:
        part = np.abs(row).astype(np.int32)
        total += part * scale if scale > 1 else part
        np.multiply(row, total <= most, out=row)


def largest_exact(dtype: np.dtype[Any]) -> int:
    """Return a whole number up to which, and not much further than need be, a type holds all of them."""
    if dtype.kind in "iu":
        return min(int(np.iinfo(dtype).max), 1 << _EXACT_BITS)
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no annotations there
    return min(int(float(info.max)), 1 << min(int(info.nmant) + 1, _EXACT_BITS))


def perform(request: Request, inputs: Array) -> Array:
    """Return what a collective means, computed in float64 and rounded once; exact for `make_exact_inputs`.

    Args:
        inputs: shape (members, elements of an input).

    Returns:
        Shape (members, elements of an output); what nobody asks for is 0. Rows may be one and the same memory.
    """
    shape = len(request.members), request.output_size // request.itemsize
    alike = request.kind in _ALIKE
    outputs = np.zeros((len(request.groups) if alike else shape[0], shape[1]), inputs.dtype)
    each = 1 if alike else request.ranks
    for number in range(len(request.groups)):
        group_in = inputs[number * request.ranks : (number + 1) * request.ranks]
        for result in _results(request, number, group_in, outputs[number * each : (number + 1) * each]):
            for start in range(0, result.held.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                golden = _golden(request.op, [part[block] for part in result.parts], result.scales)
                result.held[block] = golden.astype(inputs.dtype)
    if not alike:
        return outputs
    return np.broadcast_to(outputs[:, None], (len(outputs), request.ranks, shape[1])).reshape(shape)


def _golden(op: CceType | None, parts: Sequence[Array] | Array, scales: Sequence[float]) -> Array:
    """Return parts combined in float64; a single part that is only moved stays as it is."""
    if op is None:
        return parts[0]
    golden: Array | None = None
    for part, scale in zip(parts, scales or [1.0] * len(parts), strict=True):
        term = part.astype(np.float64)
        term = term if scale == 1 else term * scale
        golden = term if golden is None else _FOLD[op](golden, term)
    assert golden is not None, "a result has parts"
    return golden


def exceeds_exact_integers(request: Request, inputs: Array) -> bool:
    """Say whether an integer reduction meets values that float32 cannot hold exactly."""
    if not request.integer_as_fp32:
        return False
    bound = np.abs(inputs.astype(np.float64))
    largest = bound.max()
    if request.op in (CceType.ADD, CceType.FMA):
        terms = bound.reshape(-1, 2, request.count) if request.kind in _HALVES else bound.reshape(-1, *_each(request))
        if request.op is CceType.FMA:
            terms = terms * np.abs(_scales(request))[:, None]
        largest = max(largest, terms.sum(axis=1).max())
    return bool(largest > EXACT_INTEGER)


def _each(request: Request) -> tuple[int, int]:
    """Return the shape of one group's inputs."""
    return request.ranks, request.input_size // request.itemsize


def _scales(request: Request) -> list[float]:
    """Return the scale of each member's input, none unless it is an fma."""
    return list(request.scales) * (request.ranks // max(1, len(request.scales)))


def _results(request: Request, number: int, inputs: Array, outputs: Array) -> Iterator[_Result]:
    """Yield what the outputs of one group are made of; where all are alike, of those outputs that are given."""
    ranks = request.ranks
    match request.kind:
        case EncOp.ALLREDUCE:
            for held in outputs:
                yield _Result(held, inputs, _scales(request))
        case EncOp.REDUCE_SCATTER:
            yield _Result(outputs.reshape(-1), inputs, _scales(request))
        case EncOp.REDUCE:
            yield _Result(outputs[request.root], inputs)
        case EncOp.ALLGATHER:
            counts = request.gather_counts or [inputs.shape[1]] * ranks
            whole = np.concatenate([part[:count] for part, count in zip(inputs, counts, strict=True)])
            for held in outputs:
                yield _Result(held, [whole])
        case EncOp.BROADCAST:
            for held in outputs:
                yield _Result(held, [inputs[request.root]])
        case EncOp.ALLTOALL:
            shards = inputs.reshape(ranks, ranks, -1)
            yield _Result(outputs.reshape(-1), [shards.swapaxes(0, 1).reshape(-1)])
        case EncOp.ALLTOALL_V:
            yield from _exchanged(request, inputs, outputs)
        case _:
            yield from _moved(request, number, inputs, outputs)


def _exchanged(request: Request, inputs: Array, outputs: Array) -> Iterator[_Result]:
    sent = np.array(request.sent)
    leaves = np.array(request.send_displacements or np.cumsum(sent, axis=1) - sent)
    lands = np.array(request.receive_displacements or (np.cumsum(sent, axis=0) - sent).T)
    for source, target in np.argwhere(sent).tolist():
        count, at, to = sent[source, target], leaves[source, target], lands[target, source]
        yield _Result(outputs[target, to : to + count], [inputs[source, at : at + count]])


def _moved(request: Request, number: int, inputs: Array, outputs: Array) -> Iterator[_Result]:
    group = request.groups[number]
    if request.kind in (EncOp.SEND, EncOp.RECV):
        pairs = [(group[0], group[:2][-1])]
    else:
        pairs = list(request.pairs) or list(zip(group, (*group[1:], group[0]), strict=True))
    for source, target in pairs:
        if source in group:
            whole = inputs[group.index(source)]
            parts = np.split(whole, 2) if request.kind in _HALVES else [whole]
            yield _Result(outputs[group.index(target)], parts)


def _error(op: CceType | None, result: _Result) -> float | None:
    """Return the largest error of part of an output, None where there is no distance."""
    worst = 0.0
    for start in range(0, result.held.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        held, parts = result.held[block], [part[block] for part in result.parts]
        if op is None:
            if not np.array_equal(parts[0].view(np.uint8), held.view(np.uint8)):
                return None
            continue
        golden = _golden(op, parts, result.scales)
        error = _ulps(golden, held)
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
