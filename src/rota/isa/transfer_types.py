"""Element types as the DMA engine's own tables see them: sizes, stochastic rounding, and pairs that go together.

The collective path's sizes and the tags themselves are in `dtypes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rota.errors import DecodeError
from rota.facts import HIGH, MEDIUM, Source, Verdict, no, yes
from rota.isa.dtypes import HELPER_SIZE, SIZE, Dtype, short_name

# The three size tables by the code that reads them. They differ at FP32R: packet sizing stops there with 0, the
# container path and the hardware layer give it 4 bytes.
SIZE_TABLES: Final[Mapping[str, Mapping[Dtype, int]]] = {
    "collective": SIZE,
    "helper": HELPER_SIZE,
    "hardware layer": HELPER_SIZE,
}


def hal_size_of(tag: int, *, offset: int = 0) -> int:
    """Return the bytes of one element in the hardware layer's table: 4 for FP32R. Source: sdma §9, high.

    Raises:
        DecodeError: the tag is 0 or above 15, which the hardware layer refuses.
    """
    if tag not in HELPER_SIZE or not HELPER_SIZE[Dtype(tag)]:
        raise DecodeError("element type", offset=offset, expected="a tag from 1 to 15", got=str(tag))
    return HELPER_SIZE[Dtype(tag)]


# The pairs of the table `cce_dtypes`, in its order: a result type that can be rounded stochastically, and its bytes.
CCE_DTYPES_SOURCE: Final = Source("sdma", "12", HIGH)
CCE_DTYPES_READING: Final = Source("sdma", "12", MEDIUM)
CCE_DTYPES: Final[Mapping[Dtype, int]] = {
    Dtype.BFLOAT16: 2,
    Dtype.FP16: 2,
    Dtype.FP32R: 4,
    Dtype.FP8_EXP3: 1,
    Dtype.FP8_EXP4: 1,
    Dtype.FP8_EXP5: 1,
}


def can_round_stochastically(result: Dtype) -> Verdict:
    """Say whether a result of this type takes a seed; it is no list of the types that reduce."""
    if result in CCE_DTYPES:
        return yes(f"{short_name(result)} is rounded from fp32", CCE_DTYPES_READING)
    return no(f"a {short_name(result)} result is not rounded from fp32, so it takes no seed", CCE_DTYPES_READING)


GATE_SOURCE: Final = Source("sdma", "9", HIGH)
FOUR_BYTE: Final = frozenset({Dtype.INT32, Dtype.UINT32, Dtype.FP32, Dtype.FP32R})


def legacy_types_agree(source: Dtype, result: Dtype) -> Verdict:
    """Say whether the oldest engines combine this pair: both are 32-bit types, or neither is."""
    if (source in FOUR_BYTE) == (result in FOUR_BYTE):
        return yes("both or neither are 32 bits wide", GATE_SOURCE)
    return no(
        f"{short_name(source)} into {short_name(result)}: only one of them is an INT32, UINT32, FP32 or FP32R",
        GATE_SOURCE,
    )


PROMOTION_SOURCE: Final = Source("sdma", "9", HIGH)
PROMOTED: Final = Dtype.UINT16


def needs_promotion(sources: int, transfer: Dtype, result: Dtype) -> bool:
    """Say whether a packet is one source of one-byte elements that stay as they are; it travels as UINT16."""
    return sources == 1 and transfer is result and SIZE[transfer] == 1


def result_bytes(dtype: Dtype) -> int:
    """Return the bytes of one element that is written: FP32R is written as four bytes."""
    return HELPER_SIZE[dtype]
