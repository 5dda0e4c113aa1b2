"""The golden of `rota run DIR`: inputs of which every sum is exact, and what a collective makes of them.

Compared with `tests.exact`, which states every collective by plain loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exact import results, whole_numbers, wire

from rota.columns import Array
from rota.execute.golden import make_exact_inputs, make_inputs, perform
from rota.isa.dtypes import INTEGERS, REDUCIBLE, Dtype, numpy_dtype, size_of
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.request import SCALED, Request

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
GROUPS = (((3,),), ((0, 1),), ((4, 9, 7),), ((0, 1, 2, 3), (8, 12, 9, 4)), (tuple(range(9)),))
MOVED = tuple(dtype for dtype in Dtype if size_of(dtype))
REDUCED = tuple(sorted(REDUCIBLE))
OPS = (CceType.ADD, CceType.MAX, CceType.MIN, CceType.FMA)
SCALES = (1.0, 2.0, -1.0, 3.0, -2.0)
KINDS = tuple(kind for kind in EncOp if kind is not EncOp.INVALID)
PERMUTES = (EncOp.PERMUTE, EncOp.PERMUTE_IMPLICIT, EncOp.PERMUTE_REDUCE, EncOp.PERMUTE_REDUCE_IMPLICIT)


def ask(kind: EncOp, dtype: Dtype, groups: Any, op: CceType | None = None, **more: Any) -> Request:
    """Return a request of a few elements, each rank's share different from the others'."""
    ranks = len(groups[0])
    if kind in (EncOp.PERMUTE, EncOp.PERMUTE_REDUCE):
        ring = [(group[i], group[(i + 1) % ranks]) for group in groups for i in range(ranks)]
        more["pairs"] = tuple(ring[: len(ring) - (ranks > 2)])  # not a whole ring, where that leaves any
    if kind in (EncOp.BROADCAST, EncOp.REDUCE):
        more["root"] = ranks - 1
    if op is CceType.FMA:
        more["scales"] = tuple(SCALES[i % 5] for i in range(ranks))
    count = 7 * ranks if kind in (AR, AG, RS, EncOp.ALLTOALL, EncOp.ALLTOALL_V) else 21
    integer = kind in REDUCING and dtype in INTEGERS
    return Request(kind, dtype, count, groups, op if kind in REDUCING else None, integer_as_fp32=integer, **more)


def requests() -> list[Request]:
    found = []
    for kind in KINDS:
        for groups in GROUPS:
            if kind in (EncOp.SEND, EncOp.RECV) and groups != ((0, 1),):
                continue
            if kind in PERMUTES and len(groups[0]) == 1:
                continue
            for dtype in REDUCED if kind in REDUCING else MOVED:
                for op in OPS if kind in REDUCING else (None,):
                    if op is CceType.FMA and kind not in SCALED:
                        continue
                    found.append(ask(kind, dtype, groups, op))
    return found


REQUESTS = requests()


def named(request: Request) -> str:
    return request.to_text().replace(" ", "_")


def test_every_kind_type_and_operation_is_here() -> None:
    assert {request.kind for request in REQUESTS} == set(KINDS)
    assert {(request.dtype, request.op) for request in REQUESTS if request.kind is AR} == {
        (dtype, op) for dtype in REDUCED for op in OPS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_performed_is_what_is_meant(kind: EncOp) -> None:
    """For all types, groups and reductions: bit for bit what the loops of `tests.exact` give."""
    for number, request in enumerate(each for each in REQUESTS if each.kind is kind):
        values = whole_numbers(request, number)
        want = wire(request, results(request, values))
        got = perform(request, wire(request, values))
        assert got.dtype == want.dtype
        assert same(got, want), named(request)


@pytest.mark.parametrize("kind", sorted(REDUCING))
def test_exact_inputs_are_exact(kind: EncOp) -> None:
    """Any order of combining gives the same bits, whatever the type; some of them are not zero."""
    for number, request in enumerate(each for each in REQUESTS if each.kind is kind):
        inputs = make_exact_inputs(request, np.random.default_rng(number))
        values = inputs.astype(np.float64)
        assert (values == np.round(values)).all()
        assert values.any(), named(request)
        want = wire(request, results(request, values.astype(np.int64)))
        assert same(perform(request, inputs), want), named(request)
        if request.op in (CceType.ADD, CceType.FMA) and kind in (AR, RS):
            for seed in range(2):
                order = np.random.default_rng(seed).permutation(request.ranks)
                assert same(folded(request, inputs, order), perform_one(request, inputs)), named(request)


def same(one: Array, other: Array) -> bool:
    """Compare as numbers: a zero has two signs."""
    return np.array_equal(one.astype(np.float64), other.astype(np.float64))


def folded(request: Request, inputs: Array, order: Array) -> Array:
    """Return the sum over the first group, rounded to the type after every step, in some order of the members."""
    dtype, total = numpy_dtype(request.dtype), None
    for member in order.tolist():
        scale = request.scales[member % len(request.scales)] if request.scales else 1.0
        term = inputs[member].astype(np.float32) * np.float32(scale)
        total = term if total is None else total.astype(np.float32) + term
        total = total.astype(dtype)
    assert total is not None
    return total


def perform_one(request: Request, inputs: Array) -> Array:
    """Return what the first group combines, as a whole."""
    whole = perform(request, inputs)[: request.ranks]
    return whole[0] if request.kind is AR else whole.reshape(-1)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - REDUCING))
def test_what_only_moves_is_any_bits(kind: EncOp) -> None:
    """Nothing can round there, so the inputs are those of every other run."""
    request = next(each for each in REQUESTS if each.kind is kind)
    one, other = (make(request, np.random.default_rng(3)) for make in (make_exact_inputs, make_inputs))
    assert one.tobytes() == other.tobytes()


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(REDUCED),
    ranks=st.integers(1, 70),
    op=st.sampled_from(OPS),
    scales=st.lists(st.integers(-9, 9), min_size=1, max_size=1),
    seed=st.integers(0, 99),
)
def test_sums_of_many_ranks_stay_exact(dtype: Dtype, ranks: int, op: CceType, scales: list[int], seed: int) -> None:
    """However many ranks meet: no partial sum is above what the type holds."""
    more = {"scales": tuple(map(float, scales))} if op is CceType.FMA else {}
    integer = dtype in INTEGERS
    request = Request(AR, dtype, 33, (tuple(range(ranks)),), op, integer_as_fp32=integer, **more)
    inputs = make_exact_inputs(request, np.random.default_rng(seed))
    values = inputs.astype(np.int64)
    assert (values == inputs.astype(np.float64)).all()
    if op in (CceType.ADD, CceType.FMA) and not (integer and scales[0] < 0 and op is CceType.FMA):
        order = np.random.default_rng(seed).permutation(ranks)
        assert same(folded(request, inputs, order), perform(request, inputs)[0])


def test_outputs_that_nobody_asks_for_are_zero() -> None:
    """The ranks that are not the root of a reduction, and gaps between pieces."""
    request = ask(EncOp.REDUCE, Dtype.FP32, ((0, 1, 2),), CceType.ADD)
    out = perform(request, np.ones((3, 21), np.float32))
    assert out[2].tolist() == [3.0] * 21
    assert not out[:2].any()
