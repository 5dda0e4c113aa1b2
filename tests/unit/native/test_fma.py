"""FMA of the element arithmetic: products and sums of float32, against float64 rounded twice and by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.native.arithmetic import Combine, fold, move_pieces

F32 = np.float32
DTYPES = [np.dtype(name) for name in ("<f4", "<f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2)]


def fma(parts: Any, scales: Any, dtype: Any = F32) -> Any:
    """Return the fma of one value a part, as a float."""
    return float(fold(Combine.FMA, [np.array([part], dtype) for part in parts], [F32(scale) for scale in scales])[0])


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_product_rounds_to_float32_and_then_a_sum_does(parts: list[float], data: st.DataObject) -> None:
    """FMA: float32 multiply, then float32 add, in list order. A float64 product of two float32 is exact."""
    scales = data.draw(
        st.lists(st.floats(-4, 4, width=32), min_size=len(parts), max_size=len(parts)),
    )
    with np.errstate(all="ignore"):
        products = [F32(np.float64(part) * np.float64(scale)) for part, scale in zip(parts, scales, strict=True)]
        total = products[0]
        for product in products[1:]:
            total = F32(np.float64(total) + np.float64(product))
    found = fold(Combine.FMA, [np.array([part], F32) for part in parts], [F32(scale) for scale in scales])
    assert np.array_equal(found, [total], equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_of_one_is_a_sum(dtype: np.dtype[Any]) -> None:
    """Partials carry scale 1: patterns of every format add as ADD does, NaNs and zeros with their bits."""
    raw = np.random.default_rng(1).bytes(4096 * dtype.itemsize)
    left = np.frombuffer(raw, dtype)
    for parts in ([left], [left, left[::-1].copy()]):
        ones = [F32(1)] * len(parts)
        assert fold(Combine.FMA, parts, ones).tobytes() == fold(Combine.ADD, parts).tobytes()
        assert fold(Combine.FMA, parts).tobytes() == fold(Combine.ADD, parts).tobytes()


@pytest.mark.parametrize(
    ("parts", "scales", "expected"),
    [
        ((-0.0,), (2,), -0.0),  # the first product starts the sum: no zero is added to it
        ((3e38,), (2,), np.inf),
        ((np.inf,), (0,), np.nan),
        ((np.inf, np.inf), (1, -1), np.nan),
        ((1e-40,), (0.5,), 5e-41),  # subnormals are kept
        ((np.nan, 1), (0, 1), np.nan),
    ],
)
def test_corners(parts: Any, scales: Any, expected: float) -> None:
    """Infinities, zeros and NaNs go the way of float32."""
    assert np.array_equal(F32(fma(parts, scales)), F32(expected), equal_nan=True)
    assert np.signbit(fma(parts, scales)) == np.signbit(expected) or np.isnan(expected)


def test_zero_times_infinity_is_the_one_nan_of_this_arithmetic() -> None:
    """Its sign does not depend on the hardware."""
    found = fold(Combine.FMA, [np.array([np.inf, -np.inf], F32)], [F32(0)])
    assert found.view(np.uint32).tolist() == [0x7FC00000] * 2


def test_formats_round_once_at_the_write() -> None:
    """bf16 256 x 1 + 1 x 1.5 is 257.5, nearest to 258; integers round to the nearest and saturate."""
    assert fma((256, 1), (1, 1.5), ml_dtypes.bfloat16) == 258
    assert fma((7, 1), (0.5, 0.25), np.int32) == 4
    assert fma((100, 100), (1, 1), np.int8) == 127


@pytest.mark.parametrize("size", [64, 8192])
def test_pieces_have_their_own_scales(size: int) -> None:
    """Each source of each piece has its scale, whichever way pieces are moved."""
    count = size // 4
    memory = np.concatenate([np.full(count, value, F32) for value in (1, 10, 100, 0, 0)]).view(np.uint8)
    targets, sources = np.array([[3], [4]]) * size, np.array([[0, 1], [1, 2]]) * size
    scales = np.array([[2, 3], [0.5, -1]], F32)
    move_pieces(memory, targets, sources, size, how=Combine.FMA, dtype=np.dtype(F32), scales=scales)
    result = memory.view(F32).reshape(5, count)
    assert set(result[3]) == {32.0}
    assert set(result[4]) == {-95.0}
