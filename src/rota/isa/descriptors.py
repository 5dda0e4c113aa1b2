"""The 16-byte DMA descriptor: its two control words, the reduce words, and what each architecture's engine takes.

A single copy as a value is in `copies`. Rings, addresses and packets made of many descriptors are built by `emit`
and run by `device`; both read the bits from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np

from rota.columns import U32, U64, Array
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.dtypes import SIZE_SOURCE, Dtype, short_name, size_of
from rota.isa.enums import CceType, SdmaOp
from rota.isa.layout import Field, Layout

DESCRIPTOR_SIZE: Final = 16

LAYOUT: Final = Layout("descriptor", size=DESCRIPTOR_SIZE, source=Source("sdma", "2", HIGH), fields=(
    # name               at  type   meaning
    Field("len_ctrl",     0, "<u4", "length and flags"),
    Field("meta_ctrl",    4, "<u4", "operation; 0 on the receiving side"),
    Field("buf_ptr",      8, "<u8", "address; two operand words in a meta descriptor"),
))  # fmt: skip
DESCRIPTOR: Final = LAYOUT.dtype

LEN_CTRL_SOURCE: Final = Source("sdma", "2.1", HIGH)
LENGTH_MASK: Final = 0xFFFF
MAX_LENGTH: Final = 0x10000  # written as 0
RING_ID_SHIFT: Final = 24
RING_ID_MASK: Final = 3
FIRST_PHASE: Final = 1


class TxFlag(IntEnum):
    """Flags of the length word on the reading side. Source: sdma §2.1, high."""

    DUMMY = 1 << 22
    META = 1 << 23
    FIRST = 1 << 26
    LAST = 1 << 27
    INT_EN = 1 << 28
    NO_SNOOP = 1 << 29
    DMB = 1 << 30
    CONCAT = 1 << 31


class RxFlag(IntEnum):
    """Flags of the length word on the writing side. Source: sdma §2.1, high."""

    FIRST = 1 << 26
    LAST = 1 << 27
    INT_EN = 1 << 28
    STRONG_ORDER_WR = 1 << 29
    EMBEDDED_SEMAPHORE = 1 << 31


class MetaCtrl(IntEnum):
    """Flags of the operation word of a copy. Source: sdma §3, high."""

    LAST_BLOCK = 1 << 0
    FIRST_BLOCK = 1 << 1
    VALIDATE_CRC = 1 << 14
    USE_STORED_CRC_IV = 1 << 15
    SEND_CRC_RESULT = 1 << 16
    STORE_CRC_RESULT = 1 << 17
    STORE_SOURCE_CRC = 1 << 18
    COPY_SOURCE_DATA = 1 << 19
    WRITE_BARRIER = 1 << 26
    NOTIFICATION_MASK = 1 << 28
    CHAIN = 1 << 30


class CceCtrl(IntEnum):
    """Flags of the operation word of a reduce. Source: sdma §4, high for the places, low for the names."""

    MINMAX_LAST = 1 << 4
    USE_CONSTANT = 1 << 5
    WRITE_BARRIER = 1 << 6
    LAST = 1 << 7


# Places inside the operation word. Source: sdma §3 and §4, high.
OP_TYPE_SHIFT: Final = 20
OP_TYPE_MASK: Final = 7
SSMAE_OP_SHIFT: Final = 23
SSMAE_OP_MASK: Final = 7
FMA_INPUT_SHIFT: Final = 8
TRANSFER_SHIFT: Final = 12
ACCUMULATE_SHIFT: Final = 16
NIBBLE: Final = 0xF

COPY_WORD_SOURCE: Final = Source("sdma", "3", HIGH)
COPY_WORD: Final = 0x01080003

CCE_WORD_SOURCE: Final = Source("sdma", "3.1", MEDIUM)
LAST_SOURCE: Final = Source("sdma", "4", CONVENTION)

# Where the type of the bytes that are read stands. MIN and MAX carry it twice: their input nibble is the low one,
# every other reader of a length looks at the high one.
TRANSFER_SOURCE: Final = Source("sdma", "4", CONVENTION)
TRANSFER_SHIFTS: Final[Mapping[CceType, tuple[int, ...]]] = {
    CceType.ADD: (TRANSFER_SHIFT,),
    CceType.FMA: (FMA_INPUT_SHIFT,),
    CceType.MAX: (FMA_INPUT_SHIFT, TRANSFER_SHIFT),
    CceType.MIN: (FMA_INPUT_SHIFT, TRANSFER_SHIFT),
    CceType.EXT: (TRANSFER_SHIFT,),
}
LAST_BITS: Final[Mapping[CceType, int]] = {
    CceType.ADD: CceCtrl.LAST,
    CceType.FMA: CceCtrl.LAST,
    CceType.MAX: CceCtrl.LAST | CceCtrl.MINMAX_LAST,
    CceType.MIN: CceCtrl.LAST | CceCtrl.MINMAX_LAST,
    CceType.EXT: CceCtrl.LAST,
}

# The type of the running value and of the result, by transfer type: fp32 is accumulated as fp32r.
ACCUMULATE_SOURCE: Final = Source("all-reduce", "5", MEDIUM)
ACCUMULATE: Final[Mapping[Dtype, Dtype]] = {
    Dtype.BFLOAT16: Dtype.BFLOAT16,
    Dtype.FP16: Dtype.FP16,
    Dtype.FP32: Dtype.FP32R,
    Dtype.FP8_EXP3: Dtype.FP8_EXP3,
    Dtype.FP8_EXP4: Dtype.FP8_EXP4,
    Dtype.FP8_EXP5: Dtype.FP8_EXP5,
}

# The operand descriptor of one FMA source: `running = input * scale + running`.
FMA_META_SOURCE: Final = Source("sdma", "5", HIGH)
FMA_META_WORD: Final = 0x02100000
FMA_SELECTORS: Final = 0x09000000  # input buffer, scale, stored buffer
SCALE_DTYPE: Final = Dtype.FP32


ORDERING_SOURCE: Final = Source("sdma", "8", HIGH)


class Ordering(IntEnum):
    """How a descriptor is kept in order with its neighbours. Source: sdma §8, high."""

    NONE = 0
    DMB = 1
    WRITE_BARRIER = 2
    STRONG_ORDER_WR = 3


@dataclass(frozen=True, slots=True)
class SdmaLimits:
    """What the DMA engine of one architecture takes."""

    max_cce_elements: int
    max_cce_bytes: int
    max_sources: int
    tx_cap: int  # descriptors of one packet
    rx_cap: int
    replication: bool
    strong_ordered_write: bool
    max_descriptor_bytes: int = MAX_LENGTH
    max_descriptors_per_channel: int = 0xFFFF  # of one operation


LIMITS_SOURCE: Final = Source("sdma", "7", HIGH)
LIMITS: Final[Mapping[str, SdmaLimits]] = {
    "sunda": SdmaLimits(0x400, 0x1000, 32, 128, 128, replication=False, strong_ordered_write=False),
    "cayman": SdmaLimits(0x800, 0x2000, 32, 65, 60, replication=True, strong_ordered_write=True),
    "mariana": SdmaLimits(0x800, 0x2000, 32, 65, 60, replication=True, strong_ordered_write=True),
}
PACKET_GRANULE: Final = 32  # a full reduce packet is a multiple of this

Flags: TypeAlias = bool | Array


def limits_of(arch: str) -> SdmaLimits:
    """Return the limits of an architecture.

    Raises:
        UsageError: no architecture is called that.
    """
    limits = LIMITS.get(arch)
    if limits is None:
        raise UsageError(f"architecture '{arch}': expected one of {', '.join(LIMITS)}")
    return limits


def reduce_packet_bytes(dtype: Dtype, arch: str, *, cap: int = 0) -> int:
    """Return the bytes of a full reduce packet; the last of a transfer may be shorter. Source: sdma §7, high.

    Args:
        dtype: type of the bytes read.
        arch: name of the architecture.
        cap: the most bytes for the priority class of the transfer, 0 without a limit.

    Raises:
        UnsupportedError: the elements have no size.
        UsageError: no architecture is called that.
    """
    limits = limits_of(arch)
    if not size_of(dtype):
        raise UnsupportedError(f"{short_name(dtype)} has no transfer size; use fp32", source=SIZE_SOURCE)
    want = min(size_of(dtype) * limits.max_cce_elements, limits.max_cce_bytes)
    return (min(want, cap) if cap else want) & ~(PACKET_GRANULE - 1)


def encode_length(size: int | Array) -> Array:
    """Return the length field of descriptors of `size` bytes each; 65536 becomes 0.

    Raises:
        UsageError: a size is not between 1 and 65536.
    """
    sizes = np.asarray(size)
    if sizes.size and not (sizes.min() >= 1 and sizes.max() <= MAX_LENGTH):
        raise UsageError(f"descriptor length: expected 1 to {MAX_LENGTH} bytes, got {sizes.min()} to {sizes.max()}")
    field: U32 = (sizes & LENGTH_MASK).astype(np.uint32)
    return field


def decode_length(word: Array) -> U32:
    """Return the bytes that length words stand for: 1 to 65536."""
    field = (word & LENGTH_MASK).astype(np.uint32)
    return np.where(field, field, np.uint32(MAX_LENGTH))


def len_ctrl(
    size: int | Array,
    *,
    ring: int | Array = FIRST_PHASE,
    first: Flags = False,
    last: Flags = False,
    concat: Flags = False,
    dmb: Flags = False,
    strong_order: Flags = False,
) -> U32:
    """Return the length words of data descriptors; every argument is one value for all, or one a descriptor.

    Args:
        size: bytes of each descriptor, 1 to 65536.
        ring: phase of the ring, 0 to 3.
        first: TX, the descriptor begins a packet.
        last: TX, it ends one.
        concat: TX, the next one belongs to the same packet.
        dmb: TX, it starts only when all earlier ones have retired.
        strong_order: RX, its write is not overtaken by later ones.

    Raises:
        UsageError: a size is out of range.
    """
    return encode_length(size) | _flags(ring, first=first, last=last, concat=concat, dmb=dmb, strong_order=strong_order)


def meta_len_ctrl(count: int, *, ring: int | Array = FIRST_PHASE, first: Flags = False) -> U32:
    """Return the length words of `count` operand descriptors; they move no bytes and their packet goes on."""
    operand = np.full(count, TxFlag.META | TxFlag.CONCAT, np.uint32)
    return operand | _flags(ring, first=first, last=False, concat=False, dmb=False, strong_order=False)


def _flags(ring: int | Array, *, first: Flags, last: Flags, concat: Flags, dmb: Flags, strong_order: Flags) -> U32:
    word: U32 = (np.asarray(ring, np.uint32) & np.uint32(RING_ID_MASK)) << np.uint32(RING_ID_SHIFT)
    pairs = (
        (first, TxFlag.FIRST),
        (last, TxFlag.LAST),
        (concat, TxFlag.CONCAT),
        (dmb, TxFlag.DMB),
        (strong_order, RxFlag.STRONG_ORDER_WR),
    )
    for wanted, bit in pairs:
        word = word | np.where(wanted, np.uint32(bit), np.uint32(0))
    return word


@dataclass(frozen=True, slots=True)
class CceWord:
    """A reduce word taken apart; `scale` is the FMA scale's type, None for the other operations."""

    op: CceType
    transfer: Dtype
    accumulate: Dtype
    scale: Dtype | None
    last: bool
    barrier: bool


def cce_word(
    op: CceType,
    transfer: Dtype,
    accumulate: Dtype,
    *,
    last: bool,
    scale: Dtype = SCALE_DTYPE,
    barrier: bool = False,
) -> int:
    """Return the operation word of one source of a reduce packet.

    Args:
        op: how this source meets the running value.
        transfer: type of the bytes read, which gives the length; never FP32R.
        accumulate: type of the result.
        last: whether this is the last source, after which the result is written.
        scale: type of the FMA scale, FP32; no other operation has one.
        barrier: whether later writes of the ring wait for this one.

    Raises:
        UnsupportedError: the operation is GCE, whose format is not known, `transfer` has no size, or an FMA scale
            is not FP32.
    """
    if op not in TRANSFER_SHIFTS:
        raise UnsupportedError(f"{op.name}: the format of its descriptors is not known", source=CCE_WORD_SOURCE)
    if not size_of(transfer):
        raise UnsupportedError(f"{short_name(transfer)} has no transfer size; use fp32", source=SIZE_SOURCE)
    if op is CceType.FMA and scale is not SCALE_DTYPE:
        raise UnsupportedError(f"FMA scale: expected fp32, got {short_name(scale)}", source=FMA_META_SOURCE)
    word = SdmaOp.CCE << SSMAE_OP_SHIFT | op << OP_TYPE_SHIFT | accumulate << ACCUMULATE_SHIFT
    for shift in TRANSFER_SHIFTS[op]:
        word |= transfer << shift
    if op is CceType.FMA:
        word |= scale << TRANSFER_SHIFT
    if barrier:
        word |= CceCtrl.WRITE_BARRIER
    return int(word | LAST_BITS[op]) if last else int(word)


def is_last(word: int) -> bool:
    """Say whether a reduce word marks the last source of its packet."""
    minmax = word >> OP_TYPE_SHIFT & OP_TYPE_MASK in (CceType.MAX, CceType.MIN)
    return bool(word & CceCtrl.LAST or (minmax and word & CceCtrl.MINMAX_LAST))


def decode_cce_word(word: int, *, offset: int = 0) -> CceWord:
    """Return what a reduce word says; exactly the words `cce_word` makes are understood.

    Raises:
        DecodeError: the word is no reduce word, or has a bit set that means nothing here.
    """
    if word >> SSMAE_OP_SHIFT & SSMAE_OP_MASK != SdmaOp.CCE:
        raise DecodeError(
            "reduce word", offset=offset, expected="a CCE operation (4 at bits 25:23)", got=f"0x{word:08X}"
        )
    op = word >> OP_TYPE_SHIFT & OP_TYPE_MASK
    known = {int(each): each for each in TRANSFER_SHIFTS}
    if op not in known:
        raise DecodeError("reduce word", offset=offset, expected="an operation from 0 to 4", got=f"0x{word:08X}")
    kind = known[op]
    found = CceWord(
        op=kind,
        transfer=Dtype(word >> TRANSFER_SHIFTS[kind][0] & NIBBLE),
        accumulate=Dtype(word >> ACCUMULATE_SHIFT & NIBBLE),
        scale=SCALE_DTYPE if kind is CceType.FMA else None,
        last=is_last(word),
        barrier=bool(word & CceCtrl.WRITE_BARRIER),
    )
    if not size_of(found.transfer):
        got = f"{short_name(found.transfer)} in 0x{word:08X}"
        raise DecodeError("transfer type of a reduce word", offset=offset, expected="a type with a size", got=got)
    plain = cce_word(kind, found.transfer, found.accumulate, last=False, barrier=found.barrier)
    if word & ~LAST_BITS[kind] != plain:
        raise DecodeError("reduce word", offset=offset, expected=f"0x{plain:08X}", got=f"0x{word:08X}")
    return found


def fma_operands(scale: Array) -> U64:
    """Return the second half (`buf_ptr`) of the operand descriptors with these float32 scales, one each."""
    bits = np.ascontiguousarray(scale, np.float32).view(np.uint32).astype(np.uint64)
    return (bits << np.uint64(32)) | np.uint64(FMA_SELECTORS)
