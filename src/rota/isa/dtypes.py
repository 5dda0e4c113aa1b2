"""Element types: wire tags, sizes, names, and the numpy type that holds one.

Loads neither numpy nor ml_dtypes; only `numpy_dtype` does, when called. The arithmetic is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import HIGH, MEDIUM, Source

if TYPE_CHECKING:
    import numpy as np


class Dtype(IntEnum):
    """The tag of an element type in words and descriptors. Source: isa §6.4, high."""

    INVALID = 0
    UINT64 = 1
    INT8 = 2
    UINT8 = 3
    INT16 = 4
    UINT16 = 5
    BFLOAT16 = 6
    FP16 = 7
    INT32 = 8
    UINT32 = 9
    FP32 = 10
    FP32R = 11
    INT64 = 12
    FP8_EXP3 = 13
    FP8_EXP4 = 14
    FP8_EXP5 = 15


# Bytes of an element on the collective path, and in the helper and hardware-layer tables; they differ at FP32R alone.
SIZE_SOURCE: Final = Source("sdma", "9", HIGH)
SIZE: Final[Mapping[Dtype, int]] = {
    Dtype.INVALID: 0,
    Dtype.UINT64: 8,
    Dtype.INT8: 1,
    Dtype.UINT8: 1,
    Dtype.INT16: 2,
    Dtype.UINT16: 2,
    Dtype.BFLOAT16: 2,
    Dtype.FP16: 2,
    Dtype.INT32: 4,
    Dtype.UINT32: 4,
    Dtype.FP32: 4,
    Dtype.FP32R: 0,
    Dtype.INT64: 8,
    Dtype.FP8_EXP3: 1,
    Dtype.FP8_EXP4: 1,
    Dtype.FP8_EXP5: 1,
}
HELPER_SIZE: Final[Mapping[Dtype, int]] = {**SIZE, Dtype.FP32R: 4}

# The types a DMA engine combines: the floating ones that have a transfer size.
REDUCIBLE_SOURCE: Final = Source("isa", "12 row 1", MEDIUM)
REDUCIBLE: Final = frozenset(
    {Dtype.BFLOAT16, Dtype.FP16, Dtype.FP32, Dtype.FP8_EXP3, Dtype.FP8_EXP4, Dtype.FP8_EXP5},
)
INTEGERS: Final = frozenset(
    {
        Dtype.UINT64,
        Dtype.INT8,
        Dtype.UINT8,
        Dtype.INT16,
        Dtype.UINT16,
        Dtype.INT32,
        Dtype.UINT32,
        Dtype.INT64,
    }
)

# The tags of compiled containers are another numbering. Source: sdma §9, high.
DTYPE_OF_KBIN: Final[Mapping[int, Dtype]] = {
    1: Dtype.FP8_EXP3,
    2: Dtype.FP8_EXP4,
    3: Dtype.FP8_EXP5,
    4: Dtype.FP16,
    5: Dtype.FP32,
    6: Dtype.FP32R,
    7: Dtype.BFLOAT16,
    8: Dtype.UINT8,
    9: Dtype.UINT16,
    10: Dtype.UINT32,
    11: Dtype.UINT64,
    12: Dtype.INT8,
    13: Dtype.INT16,
    14: Dtype.INT32,
    15: Dtype.INT64,
}

_SHORT: Final[Mapping[Dtype, str]] = {
    Dtype.INVALID: "invalid",
    Dtype.UINT64: "uint64",
    Dtype.INT8: "int8",
    Dtype.UINT8: "uint8",
    Dtype.INT16: "int16",
    Dtype.UINT16: "uint16",
    Dtype.BFLOAT16: "bf16",
    Dtype.FP16: "fp16",
    Dtype.INT32: "int32",
    Dtype.UINT32: "uint32",
    Dtype.FP32: "fp32",
    Dtype.FP32R: "fp32r",
    Dtype.INT64: "int64",
    Dtype.FP8_EXP3: "fp8_e3m4",
    Dtype.FP8_EXP4: "fp8_e4m3",
    Dtype.FP8_EXP5: "fp8_e5m2",
}

# Names in other people's files: HLO, numpy and ml_dtypes, containers.
_SYNONYMS: Final[Mapping[str, Dtype]] = {
    "u64": Dtype.UINT64,
    "s8": Dtype.INT8,
    "i8": Dtype.INT8,
    "u8": Dtype.UINT8,
    "s16": Dtype.INT16,
    "i16": Dtype.INT16,
    "u16": Dtype.UINT16,
    "bfloat16": Dtype.BFLOAT16,
    "f16": Dtype.FP16,
    "float16": Dtype.FP16,
    "half": Dtype.FP16,
    "s32": Dtype.INT32,
    "i32": Dtype.INT32,
    "u32": Dtype.UINT32,
    "f32": Dtype.FP32,
    "float32": Dtype.FP32,
    "float": Dtype.FP32,
    "float32r": Dtype.FP32R,
    "s64": Dtype.INT64,
    "i64": Dtype.INT64,
    "f8e3m4": Dtype.FP8_EXP3,
    "float8_e3m4": Dtype.FP8_EXP3,
    "float8e3": Dtype.FP8_EXP3,
    "f8e4m3": Dtype.FP8_EXP4,
    "float8_e4m3": Dtype.FP8_EXP4,
    "float8e4": Dtype.FP8_EXP4,
    "f8e5m2": Dtype.FP8_EXP5,
    "float8_e5m2": Dtype.FP8_EXP5,
    "float8e5": Dtype.FP8_EXP5,
}

# Names that look like FP8_EXP4, which has infinities and ends at 240, and mean a format without infinities.
_FINITE_ONLY: Final = frozenset({"f8e4m3fn", "float8_e4m3fn", "fp8_e4m3fn"})


def size_of(dtype: Dtype) -> int:
    """Return the bytes of one element on the collective path: 0 for INVALID and FP32R. Source: sdma §9, high."""
    return SIZE[dtype]


def short_name(dtype: Dtype) -> str:
    """Return the name rota prints: `bf16`, `fp32`, `fp8_e4m3`, `int32`."""
    return _SHORT[dtype]


def parse_dtype(text: str) -> Dtype:
    """Return the element type a name stands for: rota's, the specification's, HLO's or numpy's, in any case.

    Raises:
        UsageError: no type, or not one of ours, is called that.
    """
    name = text.strip().lower()
    if name in _FINITE_ONLY:
        raise UsageError(
            f"dtype '{text}': the machine's four-exponent type has infinities and ends at 240, the 'fn' kind ends at "
            "448; say fp8_e4m3 if that is what you mean"
        )
    known = {**_SYNONYMS, **{tag.name.lower(): tag for tag in Dtype}, **{short: tag for tag, short in _SHORT.items()}}
    dtype = known.get(name, Dtype.INVALID)
    if dtype is Dtype.INVALID:
        names = ", ".join(_SHORT[tag] for tag in Dtype if tag is not Dtype.INVALID)
        raise UsageError(f"dtype '{text}': expected one of {names}")
    return dtype


def numpy_dtype(dtype: Dtype) -> np.dtype[Any]:
    """Return the numpy type of one element, of exactly `size_of(dtype)` bytes, little-endian.

    Raises:
        UnsupportedError: `dtype` has no size on the collective path (INVALID, FP32R).
    """
    import ml_dtypes  # noqa: PLC0415 -- this module is loaded by `rota --help`, which must stay free of numpy
    import numpy as np  # noqa: PLC0415

    if not size_of(dtype):
        raise UnsupportedError(f"{short_name(dtype)} has no transfer size; use fp32", source=SIZE_SOURCE)
    floats: Mapping[Dtype, Any] = {
        Dtype.BFLOAT16: ml_dtypes.bfloat16,
        Dtype.FP16: "<f2",
        Dtype.FP32: "<f4",
        Dtype.FP8_EXP3: ml_dtypes.float8_e3m4,
        Dtype.FP8_EXP4: ml_dtypes.float8_e4m3,
        Dtype.FP8_EXP5: ml_dtypes.float8_e5m2,
    }
    integer = f"<{'u' if dtype.name.startswith('U') else 'i'}{size_of(dtype)}"
    result: np.dtype[Any] = np.dtype(floats.get(dtype, integer))
    return result
