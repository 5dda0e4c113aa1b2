"""Element types, against the tables of isa §6.4 and sdma §9."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import (
    DTYPE_OF_KBIN,
    HELPER_SIZE,
    INTEGERS,
    REDUCIBLE,
    Dtype,
    numpy_dtype,
    parse_dtype,
    short_name,
    size_of,
)

ROWS = [
    # wire, name, bytes, short, numpy
    (1, "UINT64", 8, "uint64", "<u8"),
    (2, "INT8", 1, "int8", "i1"),
    (3, "UINT8", 1, "uint8", "u1"),
    (4, "INT16", 2, "int16", "<i2"),
    (5, "UINT16", 2, "uint16", "<u2"),
    (6, "BFLOAT16", 2, "bf16", ml_dtypes.bfloat16),
    (7, "FP16", 2, "fp16", "<f2"),
    (8, "INT32", 4, "int32", "<i4"),
    (9, "UINT32", 4, "uint32", "<u4"),
    (10, "FP32", 4, "fp32", "<f4"),
    (12, "INT64", 8, "int64", "<i8"),
    (13, "FP8_EXP3", 1, "fp8_e3m4", ml_dtypes.float8_e3m4),
    (14, "FP8_EXP4", 1, "fp8_e4m3", ml_dtypes.float8_e4m3),
    (15, "FP8_EXP5", 1, "fp8_e5m2", ml_dtypes.float8_e5m2),
]


@pytest.mark.parametrize(("wire", "name", "size", "short", "numpy"), ROWS)
def test_rows_of_the_type_table(wire: int, name: str, size: int, short: str, numpy: object) -> None:
    """isa §6.4: tag, name and size; the numpy type has that size too."""
    dtype = Dtype(wire)
    assert dtype.name == name
    assert size_of(dtype) == HELPER_SIZE[dtype] == size
    assert numpy_dtype(dtype) == np.dtype(numpy)
    assert numpy_dtype(dtype).itemsize == size
    assert short_name(dtype) == short
    assert parse_dtype(short) is parse_dtype(name.lower()) is parse_dtype(f" {name} ") is dtype


def test_fp32r_has_two_sizes() -> None:
    """sdma §9: FP32R has size 0 on the collective path and 4 in the helper tables; nothing else differs."""
    assert {dtype for dtype in Dtype if size_of(dtype) != HELPER_SIZE[dtype]} == {Dtype.FP32R}
    assert (size_of(Dtype.FP32R), HELPER_SIZE[Dtype.FP32R], int(Dtype.FP32R)) == (0, 4, 11)


@pytest.mark.parametrize("dtype", [Dtype.FP32R, Dtype.INVALID])
def test_types_without_a_size_have_no_array(dtype: Dtype) -> None:
    """sdma §9: byte sizing by a type of size 0 is refused, with the way out."""
    with pytest.raises(UnsupportedError, match="has no transfer size; use fp32") as caught:
        numpy_dtype(dtype)
    assert caught.value.source is not None


def test_container_tags() -> None:
    """sdma §9: container tag less 1 indexes 13 14 15 7 10 11 6 3 5 9 1 2 4 8 12."""
    assert [int(DTYPE_OF_KBIN[kbin]) for kbin in range(1, 16)] == [13, 14, 15, 7, 10, 11, 6, 3, 5, 9, 1, 2, 4, 8, 12]


def test_kinds_of_types() -> None:
    """isa §12 row 1: fp32, bf16, fp16 and fp8 reduce; integers and FP32R do not."""
    assert {int(dtype) for dtype in REDUCIBLE} == {6, 7, 10, 13, 14, 15}
    assert REDUCIBLE | INTEGERS | {Dtype.INVALID, Dtype.FP32R} == set(Dtype)
    assert not REDUCIBLE & INTEGERS
    assert all(np.issubdtype(numpy_dtype(dtype), np.integer) for dtype in INTEGERS)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("f32", Dtype.FP32),
        ("float32", Dtype.FP32),
        ("bfloat16", Dtype.BFLOAT16),
        ("BF16", Dtype.BFLOAT16),
        ("f16", Dtype.FP16),
        ("s8", Dtype.INT8),
        ("u16", Dtype.UINT16),
        ("s64", Dtype.INT64),
        ("f8e3m4", Dtype.FP8_EXP3),
        ("f8e4m3", Dtype.FP8_EXP4),
        ("float8_e5m2", Dtype.FP8_EXP5),
        ("float8e4", Dtype.FP8_EXP4),
        ("fp32r", Dtype.FP32R),
    ],
)
def test_names_of_others(text: str, dtype: Dtype) -> None:
    """HLO, numpy and container names are understood."""
    assert parse_dtype(text) is dtype


def test_numpy_names_parse_back() -> None:
    """The name numpy gives a type leads back to the type."""
    assert all(parse_dtype(numpy_dtype(dtype).name) is dtype for dtype in Dtype if size_of(dtype))


@pytest.mark.parametrize("text", ["", "invalid", "float64", "fp4", "bf 16"])
def test_unknown_name_lists_the_known_ones(text: str) -> None:
    """An unknown name is refused with all the names there are."""
    with pytest.raises(UsageError, match=r"expected one of uint64, int8, .*bf16.*fp8_e5m2"):
        parse_dtype(text)


def test_finite_only_fp8_is_not_taken_for_ours() -> None:
    """FP8_EXP4 has infinities and ends at 240; the format that ends at 448 is refused, not silently renamed."""
    assert float(ml_dtypes.finfo(numpy_dtype(Dtype.FP8_EXP4)).max) == 240
    with pytest.raises(UsageError, match="say fp8_e4m3 if that is what you mean"):
        parse_dtype("f8e4m3fn")
