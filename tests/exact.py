"""What a collective leaves in every output, by plain loops over members and elements of small whole numbers.

The numbers are so small that every type holds every partial result, whatever the order; so the result is exact.
This is a third statement of the meaning, beside those of `rota.execute.golden` and `rota.verify.meaning`, and uses
neither. Source: compose §5; `rota.request.Request`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from rota.columns import Array
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request

HOLDS = {
    Dtype.FP32: 1 << 20,
    Dtype.FP16: 1 << 11,
    Dtype.BFLOAT16: 1 << 8,
    Dtype.FP8_EXP3: 15,
    Dtype.FP8_EXP4: 16,
    Dtype.FP8_EXP5: 8,
    Dtype.INT8: 127,
}
"""Whole numbers up to here, and no others need be, are exact in a type; all other types hold more than is used."""
UNSIGNED = frozenset({Dtype.UINT8, Dtype.UINT16, Dtype.UINT32, Dtype.UINT64})
MOST = 9


def whole_numbers(request: Request, seed: int) -> Array:
    """Return inputs as int64, shape (members, elements of an input), every partial sum of which is exact."""
    members, elements = len(request.members), request.input_size // request.itemsize
    holds = HOLDS.get(request.dtype, 1 << 11)
    low = 0 if request.dtype in UNSIGNED else -1
    values = np.random.default_rng(seed).integers(low * min(MOST, holds), min(MOST, holds) + 1, (members, elements))
    if request.op not in (CceType.ADD, CceType.FMA):
        return values
    scale = int(max(map(abs, request.scales), default=1))
    terms = 2 if request.kind in (EncOp.PERMUTE_REDUCE, EncOp.PERMUTE_REDUCE_IMPLICIT) else request.ranks
    most = max(1, min(MOST, holds // (terms * scale)))
    values = np.sign(values) * (abs(values) % (most + 1))
    step = -(-terms // max(1, holds // (most * scale)))
    for member in range(members):
        keep = (np.arange(elements) + member % request.ranks) % step == 0
        values[member][~keep] = 0
    return values


def results(request: Request, values: Array) -> Array:
    """Return the outputs as int64, shape (members, elements of an output); what nobody asks for is 0."""
    outputs = np.zeros((len(request.members), request.output_size // request.itemsize), np.int64)
    for number, group in enumerate(request.groups):
        first = number * request.ranks
        given = [values[first + i] for i in range(request.ranks)]
        for member, start, piece in _pieces(request, group, given):
            outputs[first + member][start : start + len(piece)] = piece
    return outputs


def wire(request: Request, values: Array) -> Array:
    """Return whole numbers in the type of the request."""
    made = values.astype(numpy_dtype(request.dtype))
    assert (made.astype(np.float64) == values).all(), "a number that the type does not hold"
    return made


def _pieces(request: Request, group: tuple[int, ...], given: list[Array]) -> Iterator[tuple[int, int, Array]]:
    """Yield (member, first element of its output, values)."""
    ranks = range(request.ranks)
    share = request.count // request.ranks
    match request.kind:
        case EncOp.ALLREDUCE:
            yield from ((i, 0, combined(request, given)) for i in ranks)
        case EncOp.REDUCE_SCATTER:
            yield from ((i, 0, combined(request, given)[i * share : (i + 1) * share]) for i in ranks)
        case EncOp.REDUCE:
            yield request.root, 0, combined(request, given)
        case EncOp.BROADCAST:
            yield from ((i, 0, given[request.root]) for i in ranks)
        case EncOp.ALLGATHER:
            counts = request.gather_counts or (share,) * request.ranks
            starts = (0, *accumulate(counts))
            yield from ((i, starts[k], given[k][: counts[k]]) for i in ranks for k in ranks)
        case EncOp.ALLTOALL:
            yield from ((i, k * share, given[k][i * share : (i + 1) * share]) for i in ranks for k in ranks)
        case EncOp.ALLTOALL_V:
            yield from _exchanged(request, given)
        case EncOp.SEND | EncOp.RECV:
            yield min(1, request.ranks - 1), 0, given[0]
        case _:
            yield from _permuted(request, group, given)


def combined(request: Request, given: list[Array]) -> Array:
    """Return the inputs of a group combined, one after another."""
    total = None
    for member, each in enumerate(given):
        scales = request.scales
        value = each * int(scales[member % len(scales)]) if scales else each
        total = value if total is None else two(request.op, total, value)
    assert total is not None, "a group has members"
    return total


def two(op: CceType | None, left: Array, right: Array) -> Array:
    """Return two operands combined."""
    if op in (CceType.ADD, CceType.FMA):
        return left + right
    return np.where((left > right) == (op is CceType.MAX), left, right)


def _exchanged(request: Request, given: list[Array]) -> Iterator[tuple[int, int, Array]]:
    for i in range(request.ranks):
        at = 0
        for k in range(request.ranks):
            size = request.sent[k][i]
            start = sum(request.sent[k][:i])
            if request.send_displacements:
                start = request.send_displacements[k][i]
            to = request.receive_displacements[i][k] if request.receive_displacements else at
            if size:
                yield i, to, given[k][start : start + size]
            at += size


def _permuted(request: Request, group: tuple[int, ...], given: list[Array]) -> Iterator[tuple[int, int, Array]]:
    size = len(group)
    ring = tuple((group[i], group[(i + 1) % size]) for i in range(size))
    for source, target in request.pairs or ring:
        if source in group:
            value = given[group.index(source)]
            if request.kind in (EncOp.PERMUTE_REDUCE, EncOp.PERMUTE_REDUCE_IMPLICIT):
                value = two(request.op, value[: request.count], value[request.count :])
            yield group.index(target), 0, value
