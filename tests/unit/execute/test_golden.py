"""Inputs of a run, and how far a result is from what the collective means in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.execute.golden import Accuracy, exceeds_exact_integers, make_inputs, measure
from rota.isa.dtypes import INTEGERS, REDUCIBLE, Dtype, numpy_dtype, size_of
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED, Request

Array = np.ndarray[Any, Any]
AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
BF16 = ml_dtypes.bfloat16
PAIR = ((0, 1),)


def request(
    kind: EncOp, count: int, dtype: Dtype = Dtype.FP32, *, op: CceType = CceType.ADD, groups: Any = PAIR
) -> Request:
    return Request(kind, dtype, count, groups, None if kind is AG else op, integer_as_fp32=True)


def array(rows: Sequence[Sequence[float]], dtype: Any = np.float32) -> Array:
    return np.array(rows, np.float64).astype(dtype)


def error_of(inputs: Array, result: float, dtype: Dtype, *, op: CceType = CceType.ADD) -> float | None:
    """Return max_ulp of an all-reduce of one element whose ranks all hold `result`."""
    asked = request(AR, 1, dtype, op=op, groups=(tuple(range(inputs.shape[0])),))
    return measure(asked, inputs, np.full(inputs.shape, result, inputs.dtype)).max_ulp


# --- units of the last place, by hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("golden", "result", "ulp"),
    [
        (1.0, 1.0, 0),
        (1.0, 1.0078125, 1),  # bf16 has 8 bits: the unit at 1 is 2^-7
        (1.0, 0.99609375, 0.5),  # below 1 neighbours are 2^-8 apart, the unit is that of the golden value
        (256.0, 258.0, 1),
        (255.0, 256.0, 1),
        (-3.0, -3.03125, 2),  # the unit at 3 is 2^-6
        (2.0**-126, 2.0**-126 + 2.0**-133, 1),  # least normal: the unit of subnormals
        (2.0**-133, 2.0**-132, 1),  # least subnormal
        (0.0, 2.0**-133, 1),  # zero's neighbour is the least subnormal
        (0.0, -(2.0**-132), 2),
    ],
)
def test_units_of_bf16(golden: float, result: float, ulp: float) -> None:
    """The error is in units of the last place of the golden value in the wire format."""
    assert error_of(array([[golden], [0.0]], BF16), result, Dtype.BFLOAT16) == ulp


@settings(deadline=None)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False), steps=st.integers(-3, 3))
def test_units_of_fp32_are_those_of_numpy(value: float, steps: int) -> None:
    """For fp32 the unit is the spacing of float32, at every finite value, zero included."""
    golden = np.float32(value)
    unit = max(abs(float(np.spacing(golden))), math.ulp(0.0))
    result = np.float32(value + steps * unit)
    if np.isfinite(result):
        expected = abs(float(result) - float(golden)) / unit
        assert error_of(array([[value], [0.0]]), float(result), Dtype.FP32) == pytest.approx(expected, abs=0)


@pytest.mark.parametrize("dtype", sorted(REDUCIBLE))
def test_an_exact_result_has_no_error(dtype: Dtype) -> None:
    """Every format measures the rounded sum of its inputs at half a unit or less, the exact one at none."""
    kind = numpy_dtype(dtype)
    inputs = array([[0.5, 0.25], [0.25, 0.0]], kind)
    assert measure(request(AR, 2, dtype), inputs, array([[0.75, 0.25]] * 2, kind)) == Accuracy(0.0, True)
    many = np.random.default_rng(4).random((2, 200)).astype(kind)
    total = many.astype(np.float64).sum(axis=0).astype(kind)
    found = measure(request(AR, 200, dtype), many, np.stack([total, total])).max_ulp
    assert found is not None
    assert 0 < found <= 0.5


@pytest.mark.parametrize(
    ("parts", "result", "error"),
    [
        ((240.0, 4.0), 240.0, 0.25),  # 244 is under the middle of 240 and 256: it rounds to the largest
        ((240.0, 7.0), 240.0, 7 / 16),
        ((240.0, 8.0), np.inf, 0),  # 248 ties to 256, which is infinity
        ((240.0, 8.0), 240.0, None),
        ((240.0, 7.0), np.inf, None),
        ((-240.0, -240.0), -np.inf, 0),
        ((-240.0, -240.0), np.inf, None),
        ((np.inf, 1.0), np.inf, 0),
        ((np.inf, 1.0), np.nan, None),
        ((np.inf, -np.inf), np.nan, 0),
        ((np.nan, 1.0), np.nan, 0),
        ((np.nan, 1.0), 1.0, None),
        ((1.0, 1.0), np.nan, None),
        ((1.0, 1.0), np.inf, None),
    ],
)
def test_the_end_of_e4m3(parts: tuple[float, float], result: float, error: float | None) -> None:
    """Overflow goes to infinity where rounding does; a wrong infinity, NaN or finite value has no distance."""
    with np.errstate(invalid="ignore"):
        assert error_of(array([[parts[0]], [parts[1]]], ml_dtypes.float8_e4m3), result, Dtype.FP8_EXP4) == error


@pytest.mark.parametrize(
    ("op", "parts", "result", "error"),
    [
        (CceType.MAX, (1.0, 2.0), 2.0, 0),
        (CceType.MAX, (1.0, 2.0), 1.0, 2.0**22),  # 1 off, and the unit at 2 is 2^-22
        (CceType.MIN, (1.0, -2.0), -2.0, 0),
        (CceType.MIN, (np.nan, -2.0), np.nan, 0),
        (CceType.MAX, (np.nan, -2.0), -2.0, None),
    ],
)
def test_max_and_min(op: CceType, parts: tuple[float, float], result: float, error: float | None) -> None:
    """The golden value folds with the operation of the request; NaN propagates."""
    assert error_of(array([[parts[0]], [parts[1]]]), result, Dtype.FP32, op=op) == error


@pytest.mark.parametrize(
    ("dtype", "parts", "result", "error"),
    [
        (Dtype.INT32, (5, -7), -2, 0),
        (Dtype.INT32, (5, -7), 1, 3),
        (Dtype.UINT8, (200, 100), 255, 0),  # saturates
        (Dtype.UINT8, (200, 100), 44, 211),  # wraps: wrong
        (Dtype.INT8, (-100, -100), -128, 0),
        (Dtype.INT64, (1 << 40, 1), (1 << 40) + 3, 2),
    ],
)
def test_integers_count_in_ones(dtype: Dtype, parts: tuple[int, int], result: int, error: float) -> None:
    """An integer's unit is one, and the golden sum saturates as the device does."""
    inputs = np.array([[parts[0]], [parts[1]]]).astype(numpy_dtype(dtype))
    outputs = np.array([[result], [result]]).astype(numpy_dtype(dtype))
    assert measure(request(AR, 1, dtype), inputs, outputs).max_ulp == error


# --- kinds and groups -------------------------------------------------------------------------------------------------


def test_ranks_that_differ_are_found_and_the_worst_counts() -> None:
    """All ranks of an all-reduce hold the same bytes; where they do not, the worst of them is the error."""
    inputs, asked = array([[1.0], [1.0]]), request(AR, 1)
    assert measure(asked, inputs, array([[2.0], [2.0]])) == Accuracy(0.0, True)
    assert measure(asked, inputs, array([[2.0], [2.0 + 2.0**-22]])) == Accuracy(1.0, False)
    assert measure(asked, inputs, array([[2.0 + 2.0**-21], [2.0]])) == Accuracy(2.0, False)
    assert measure(asked, array([[0.0], [0.0]]), array([[0.0], [-0.0]])) == Accuracy(0.0, False)


def test_groups_are_measured_on_their_own() -> None:
    """Each group has its own sum; groups may differ from each other, ranks of a group may not."""
    asked = request(AR, 2, groups=((0, 1), (2, 3)))
    inputs = array([[1, 2], [3, 4], [10, 20], [30, 40]])
    right = array([[4, 6], [4, 6], [40, 60], [40, 60]])
    assert measure(asked, inputs, right) == Accuracy(0.0, True)
    swapped = right[[2, 3, 0, 1]]
    found = measure(asked, inputs, swapped)
    assert found.ranks_identical
    assert found.max_ulp is not None
    assert found.max_ulp > 1e6
    one_off = right.copy()
    one_off[3, 1] += 2.0**-18
    assert measure(asked, inputs, one_off) == Accuracy(1.0, False)
    assert measure(asked, inputs[[2, 3, 0, 1]], one_off[[2, 3, 0, 1]]) == Accuracy(1.0, False)


def test_a_reduce_scatter_compares_shards() -> None:
    """Member i holds the sum of shard i: outputs in a row are the whole sum, and ranks are not compared."""
    asked = request(RS, 4)
    inputs = array([[1, 2, 3, 4], [10, 20, 30, 40]])
    assert measure(asked, inputs, array([[11, 22], [33, 44]])) == Accuracy(0.0, None)
    found = measure(asked, inputs, array([[33, 44], [11, 22]]))
    assert found.max_ulp is not None
    assert found.max_ulp > 1e6


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.INT64, Dtype.UINT16])
def test_a_gather_is_compared_byte_for_byte(dtype: Dtype) -> None:
    """Moved bytes are right or wrong: NaNs and large integers keep every bit, anything else has no distance."""
    kind = numpy_dtype(dtype)
    inputs = np.frombuffer(np.random.default_rng(8).bytes(2 * 3 * kind.itemsize), kind).reshape(2, 3)
    outputs = np.stack([inputs.reshape(-1)] * 2)
    asked = request(AG, 6, dtype)
    assert measure(asked, inputs, outputs) == Accuracy(0.0, True)
    wrong = outputs.copy()
    wrong.view(np.uint8)[:, -1] ^= 1
    assert measure(asked, inputs, wrong) == Accuracy(None, True)


def test_large_buffers_are_compared_to_their_end() -> None:
    """Comparison goes in blocks of 2^20 elements; an error in the last element of the second is found."""
    count = (1 << 20) + 3
    inputs = np.ones((2, count), np.float16)
    outputs = np.full((2, count), 2.0, np.float16)
    assert measure(request(AR, count, Dtype.FP16), inputs, outputs).max_ulp == 0
    outputs[:, -1] += np.float16(2.0**-8)
    assert measure(request(AR, count, Dtype.FP16), inputs, outputs).max_ulp == 2.0


def test_a_group_of_one() -> None:
    """One rank's result is its input."""
    inputs = array([[1.5, 2.5]])
    for kind in COMPOSED:
        found = measure(request(kind, 2, groups=((3,),)), inputs, inputs.copy())
        assert found == Accuracy(0.0, None if kind is RS else True)


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize("dtype", sorted(REDUCIBLE))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64])
def test_float_inputs_sum_to_about_one(kind: EncOp, dtype: Dtype, ranks: int) -> None:
    """Floats are in [0.5, 1.5] over the least power of two not under the ranks, so a sum is near one."""
    count = 200 * (1 if kind is AR else ranks)
    asked = request(kind, count, dtype, groups=(tuple(range(ranks)),))
    inputs = make_inputs(asked, np.random.default_rng(2))
    assert inputs.shape == (ranks, asked.input_size // size_of(dtype))
    assert inputs.dtype == numpy_dtype(dtype)
    scale = 0.5 ** math.ceil(math.log2(ranks))
    values = inputs.astype(np.float64)
    spacing = float(ml_dtypes.finfo(numpy_dtype(dtype)).smallest_subnormal)
    assert values.min() >= 0.5 * scale - spacing / 2
    assert values.max() <= 1.5 * scale + spacing / 2


@pytest.mark.parametrize("dtype", sorted(INTEGERS))
@pytest.mark.parametrize("ranks", [2, 32, 64])
def test_integer_inputs_of_a_reduction(dtype: Dtype, ranks: int) -> None:
    """Integers run from 0 to 99 or as far as a sum of all ranks fits: no sum saturates up to 127 ranks."""
    asked = request(AR, 500, dtype, groups=(tuple(range(ranks)),))
    inputs = make_inputs(asked, np.random.default_rng(2)).astype(np.int64)
    assert (inputs.min(), inputs.max()) == (0, min(99, max(1, np.iinfo(numpy_dtype(dtype)).max // ranks)))
    assert inputs.sum(axis=0).max() <= np.iinfo(numpy_dtype(dtype)).max


def test_moves_get_every_pattern() -> None:
    """Integers that are only moved run over their whole range, so that a lost or shifted byte shows."""
    asked = request(AG, 4000, Dtype.UINT8)
    assert np.unique(make_inputs(asked, np.random.default_rng(2))).size == 256


def test_inputs_depend_on_the_generator_alone() -> None:
    """Randomness is the generator the caller passes."""
    asked = request(AR, 100, Dtype.BFLOAT16)
    first, again, other = (make_inputs(asked, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert first.tobytes() == again.tobytes() != other.tobytes()


# --- integers beyond float32 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "parts", "exceeds"),
    [
        (CceType.ADD, (1 << 23, 1 << 23), False),
        (CceType.ADD, (1 << 23, (1 << 23) + 1), True),
        (CceType.ADD, (-(1 << 23), (1 << 23) + 1), True),  # a partial sum may be this large in another order
        (CceType.MAX, (1 << 24, -(1 << 24)), False),
        (CceType.MAX, (-(1 << 24) - 1, 0), True),
    ],
)
def test_when_integers_stop_being_exact(op: CceType, parts: tuple[int, int], exceeds: bool) -> None:
    """float32 is exact up to 2^24; a warning is due when any value that could be met exceeds it."""
    inputs = np.array([[parts[0]], [parts[1]]], np.int32)
    assert exceeds_exact_integers(request(AR, 1, Dtype.INT32, op=op), inputs) is exceeds
    assert not exceeds_exact_integers(request(AR, 1, Dtype.FP32, op=op), inputs.astype(np.float32))
