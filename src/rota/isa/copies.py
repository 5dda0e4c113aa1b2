"""One plain copy as a value, and the pair of descriptors that carries it out.

For the few descriptors a person writes or reads; rows of them are columns, see `descriptors.len_ctrl`. Longer copies
and packets that reduce are in `packets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.errors import DecodeError
from rota.isa.descriptors import (
    COPY_WORD,
    DESCRIPTOR_SIZE,
    FIRST_PHASE,
    LAYOUT,
    RING_ID_MASK,
    RING_ID_SHIFT,
    MetaCtrl,
    Ordering,
    RxFlag,
    TxFlag,
    decode_length,
    len_ctrl,
)
from rota.isa.engines import check_ordering
from rota.isa.layout import Buffer

_SIZE: Final = DESCRIPTOR_SIZE
_MOST_CAPABLE: Final = "mariana"  # takes every ordering


@dataclass(frozen=True, slots=True)
class Copy:
    """One plain copy of 1 to 65536 bytes: a descriptor that reads and one that writes."""

    source: int
    target: int
    size: int
    ring: int = FIRST_PHASE
    ordering: Ordering = Ordering.NONE


def encode_copy(copy: Copy, *, arch: str) -> tuple[bytes, bytes]:
    """Return the reading and the writing descriptor of a copy that is a packet of its own.

    Raises:
        UnsupportedError: the architecture has no strong-ordered write.
        UsageError: the architecture is unknown, or a value does not fit.
    """
    check_ordering(copy.ordering, arch)
    strong = copy.ordering is Ordering.STRONG_ORDER_WR
    dmb = copy.ordering is Ordering.DMB
    reading = len_ctrl(copy.size, ring=copy.ring, first=True, last=True, dmb=dmb)
    writing = len_ctrl(copy.size, ring=copy.ring, strong_order=strong)
    barrier = MetaCtrl.WRITE_BARRIER if copy.ordering is Ordering.WRITE_BARRIER else 0
    tx = LAYOUT.encode(len_ctrl=int(reading), meta_ctrl=COPY_WORD | barrier, buf_ptr=copy.source)
    return tx, LAYOUT.encode(len_ctrl=int(writing), buf_ptr=copy.target)


def decode_copy(tx: Buffer, rx: Buffer) -> Copy:
    """Return the copy that a reading and a writing descriptor say; the inverse of `encode_copy`.

    Raises:
        DecodeError: they are not 16 bytes each, do not belong together, or are no plain copy; offsets from 16 on
            are in the writing descriptor.
    """
    reading, writing = LAYOUT.decode(tx), LAYOUT.decode(rx)
    ordering = Ordering.NONE
    if reading["len_ctrl"] & TxFlag.DMB:
        ordering = Ordering.DMB
    if reading["meta_ctrl"] & MetaCtrl.WRITE_BARRIER:
        ordering = Ordering.WRITE_BARRIER
    if writing["len_ctrl"] & RxFlag.STRONG_ORDER_WR:
        ordering = Ordering.STRONG_ORDER_WR
    copy = Copy(
        source=reading["buf_ptr"],
        target=writing["buf_ptr"],
        size=int(decode_length(np.asarray(reading["len_ctrl"]))),
        ring=reading["len_ctrl"] >> RING_ID_SHIFT & RING_ID_MASK,
        ordering=ordering,
    )
    want, got = b"".join(encode_copy(copy, arch=_MOST_CAPABLE)), bytes(tx[:_SIZE]) + bytes(rx[:_SIZE])
    for offset in range(0, 2 * _SIZE, 4):
        right, there = (int.from_bytes(side[offset : offset + 4], "little") for side in (want, got))
        if right != there:
            raise DecodeError("copy descriptor", offset=offset, expected=f"0x{right:08X}", got=f"0x{there:08X}")
    return copy
