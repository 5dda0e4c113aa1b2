"""Virtual rings: the runtime's unbounded descriptor lists before they are written to a hardware ring.

The records, where a descriptor goes, the edits before a list is committed, and the dump. Descriptors are structured
arrays of `descriptors.DESCRIPTOR`; every edit returns a new one. Template addresses are in `templates`, the cursors
of the hardware ring in `ring_cursor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import Array, Bool
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.descriptors import (
    COPY_WORD,
    DESCRIPTOR,
    DESCRIPTOR_SIZE,
    SSMAE_OP_MASK,
    SSMAE_OP_SHIFT,
    RxFlag,
    TxFlag,
    decode_length,
    len_ctrl,
    limits_of,
)
from rota.isa.engines import DIFFERENCES_SOURCE, features_of
from rota.isa.enums import SdmaOp
from rota.isa.layout import Bits, Field, Layout

STRUCTURES_SOURCE: Final = Source("sdma", "14.1", HIGH)
SET_SOURCE: Final = Source("sdma", "14.1, vring set", MEDIUM)
NAME_SIZE: Final = 256
VRINGS_OF_SET: Final = 16
VRING_SET_SIZE: Final = 5520

VRING_HALF: Final = Layout("vring_half", size=32, source=STRUCTURES_SOURCE, fields=(
    # name                   at    type    meaning
    Field("used_desc_count", 0,    "<u4",  "descriptors in use"),
    Field("head",            8,    "<u8",  "first page"),
    Field("tail",            0x10, "<u8",  "last page"),
    Field("is_template",     0x18, "u1",   "addresses name variables"),
    Field("max_var_id",      0x1C, "<u4",  "largest variable that may be named"),
))  # fmt: skip

VRING: Final = Layout("vring", size=0x158, source=STRUCTURES_SOURCE, fields=(
    Field("name",                   0,     "V256", "name, ended by 0"),
    *VRING_HALF.at(0x100, prefix="tx_"),
    *VRING_HALF.at(0x120, prefix="rx_"),
    Field("total_tx_size",          0x140, "<u8",  "bytes read"),
    Field("total_rx_size",          0x148, "<u8",  "bytes written"),
    Field("stochastic_rounding_en", 0x150, "u1",   "results are rounded stochastically"),
))  # fmt: skip

PAGE_SLOTS_SHIFT: Final = 16
PAGE_SLOTS: Final = 1 << PAGE_SLOTS_SHIFT
PAGE_LINKS: Final = Layout("vring_page_links", size=16, source=STRUCTURES_SOURCE, fields=(
    # name         at  type    meaning
    Field("next",  0,  "<u8",  "next page"),
    Field("prev",  8,  "<u8",  "previous page"),
))  # fmt: skip
PAGE_LINKS_AT: Final = PAGE_SLOTS * DESCRIPTOR_SIZE  # the links follow the descriptors
PAGE_SIZE: Final = PAGE_LINKS_AT + PAGE_LINKS.size

ALLOCATION_SOURCE: Final = Source("sdma", "14.2", HIGH)
MAX_DESCRIPTORS: Final = 0xFFFFF0

PACK_SOURCE: Final = Source("sdma", "14.3", CONVENTION)
EDIT_SOURCE: Final = Source("sdma", "14.3", HIGH)
DUMP_SOURCE: Final = Source("sdma", "14.5", HIGH)
NO_OP_BYTES: Final = 4

# What an embedded semaphore says. The fields are known, their places are not.
BLOB_SOURCE: Final = Source("sdma", "14.3, embedded semaphore", CONVENTION)
BLOB_MARK: Final = 0x0100
SEMAPHORE_BLOB: Final = Layout("embedded_semaphore", size=6, source=BLOB_SOURCE, fields=(
    # name              at  type    meaning
    Field("sow",        0,  "u1",   "0 or 1: strong-ordered write"),
    Field("mark",       1,  "<u2",  "always 0x0100"),
    Field("csr_index",  3,  "u1",   "region"),
    Field("semaphore",  4,  "<u2",  "semaphore of the region"),
))  # fmt: skip
EMBEDDED: Final = Layout("embedded_semaphore_words", size=8, source=BLOB_SOURCE, fields=(
    # name           at type   low wide meaning
    Bits("sow",       0, "<u4", RxFlag.STRONG_ORDER_WR.bit_length() - 1, 1, "strong-ordered write"),
    Bits("packed",    0, "<u4", RxFlag.EMBEDDED_SEMAPHORE.bit_length() - 1, 1, "a semaphore is embedded"),
    Bits("semaphore", 4, "<u4", 0, 16, "semaphore of the region"),
    Bits("csr_index", 4, "<u4", 16, 8, "region"),
    Bits("mark",      4, "<u4", 24, 8, "always 1"),
))  # fmt: skip


def vring_set() -> Layout:
    """Return the layout of a set of 16 vrings; its 240 fields are built when asked for."""
    return Layout("vring_set", size=VRING_SET_SIZE, source=SET_SOURCE, fields=(
        *(each for i in range(VRINGS_OF_SET) for each in VRING.at(i * VRING.size, prefix=f"vring{i}_")),
        Field("count", VRINGS_OF_SET * VRING.size,     "<u8", "vrings in use"),
        Field("tile",  VRINGS_OF_SET * VRING.size + 8, "<u8", "index of the tile"),
    ))  # fmt: skip


def place_of(index: int) -> tuple[int, int]:
    """Return page and slot of a descriptor; slot 0 is where a page is made. Source: sdma §14.2, high.

    Raises:
        UsageError: the index is negative or past the largest vring.
    """
    if not 0 <= index < MAX_DESCRIPTORS:
        raise UsageError(f"vring: expected a descriptor index below {MAX_DESCRIPTORS}, got {index}; use another vring")
    return index >> PAGE_SLOTS_SHIFT, index & (PAGE_SLOTS - 1)


def pages_for(count: int) -> int:
    """Return the pages that `count` descriptors take.

    Raises:
        UsageError: one vring does not take so many.
    """
    return place_of(count - 1)[0] + 1 if count else 0


def _reduces(tx: Array) -> Bool:
    """Return which descriptors are anything but plain copies: their packets are never taken apart."""
    block = tx["meta_ctrl"] >> np.uint32(SSMAE_OP_SHIFT) & np.uint32(SSMAE_OP_MASK)
    operand = tx["len_ctrl"] & np.uint32(TxFlag.META) != 0
    other: Bool = operand | (block != SdmaOp.CME)
    return other


def _packet_bounds(tx: Array) -> list[tuple[int, int]]:
    """Return the first row and the row after the last of each packet.

    Raises:
        DecodeError: a packet begins or ends where it should not.
    """
    first = tx["len_ctrl"] & np.uint32(TxFlag.FIRST) != 0
    last = tx["len_ctrl"] & np.uint32(TxFlag.LAST) != 0
    begins = np.concatenate([np.ones(1, np.bool_), last[:-1]]) if tx.size else last
    wrong = np.flatnonzero(first != begins)
    if wrong.size:
        at = int(wrong[0])
        expected = "FIRST" if begins[at] else "no FIRST"
        got = f"0x{int(tx['len_ctrl'][at]):08X}"
        raise DecodeError("vring packet", offset=at * DESCRIPTOR_SIZE, expected=expected, got=got)
    if tx.size and not last[-1]:
        at = (tx.size - 1) * DESCRIPTOR_SIZE
        raise DecodeError("vring packet", offset=at, expected="LAST", got=f"0x{int(tx['len_ctrl'][-1]):08X}")
    return list(zip(np.flatnonzero(first).tolist(), (np.flatnonzero(last) + 1).tolist(), strict=True))


def pack(tx: Array, *, arch: str, max_bytes: int) -> tuple[Array, int]:
    """Return the descriptors regrouped into as few packets as the limits allow, and how many packets more there are.

    Copies join the packet before them while it stays within `max_bytes` and the descriptors of a packet; a packet
    that reduces or reshapes stays as it is. FIRST, LAST and CONCAT are written anew, nothing else changes.

    Args:
        tx: reading descriptors, whole packets.
        arch: name of the architecture.
        max_bytes: the most bytes of a packet; one larger descriptor makes a packet of its own.

    Raises:
        DecodeError: the descriptors are no whole packets.
        UsageError: the architecture is unknown.
    """
    cap = min(limits_of(arch).tx_cap, limits_of(arch).rx_cap)
    before = _packet_bounds(tx)
    starts = list(_new_starts(tx, before, cap=cap, max_bytes=max_bytes))
    first = np.zeros(tx.size, np.bool_)
    first[starts] = True
    last = np.roll(first, -1)
    out = tx.copy()
    word = out["len_ctrl"] & np.uint32(~(TxFlag.FIRST | TxFlag.LAST | TxFlag.CONCAT) & 0xFFFFFFFF)
    for where, flag in ((first, TxFlag.FIRST), (last, TxFlag.LAST), (~last, TxFlag.CONCAT)):
        word = word | np.where(where, np.uint32(flag), np.uint32(0))
    out["len_ctrl"] = word
    return out, len(starts) - len(before)


def _new_starts(tx: Array, packets: list[tuple[int, int]], *, cap: int, max_bytes: int) -> Iterator[int]:
    """Yield the rows that begin a packet after packing."""
    whole = _reduces(tx)
    lengths = decode_length(tx["len_ctrl"])
    rows, size = cap, 0  # of the packet that is open; full at the beginning
    for start, stop in packets:
        if whole[start:stop].any():
            yield start
            rows = cap
            continue
        for row in range(start, stop):
            if rows >= cap or size + int(lengths[row]) > max_bytes:
                yield row
                rows, size = 0, 0
            rows, size = rows + 1, size + int(lengths[row])


def barrier_on_last_packet(tx: Array, *, arch: str) -> Array:
    """Return the descriptors with DMB on the first one of the last packet; unchanged where writes can be ordered.

    Raises:
        DecodeError: the descriptors are no whole packets.
        UsageError: there is no packet, or the architecture is unknown.
    """
    if limits_of(arch).strong_ordered_write:
        return tx
    packets = _packet_bounds(tx)
    if not packets:
        raise UsageError("barrier on the last packet: expected a packet, got an empty vring")
    out = tx.copy()
    out["len_ctrl"][packets[-1][0]] |= np.uint32(TxFlag.DMB)
    return out


@dataclass(frozen=True, slots=True)
class EmbeddedSemaphore:
    """A semaphore that the last writing descriptor increments by itself."""

    csr_index: int
    semaphore: int
    sow: bool


def embed_semaphore(rx: Array, semaphore: EmbeddedSemaphore, *, arch: str) -> Array:
    """Return the writing descriptors with a semaphore in the last one; unchanged when it has one already.

    Raises:
        UnsupportedError: the architecture has no embedded semaphores.
        UsageError: there is no descriptor, no such region or semaphore, or the architecture is unknown.
    """
    regions = features_of(arch).semaphore_regions
    if not regions:
        raise UnsupportedError(f"{arch} has no embedded semaphores; add a packet", source=DIFFERENCES_SOURCE)
    if not rx.size or not 0 <= semaphore.csr_index < regions:
        raise UsageError(f"embedded semaphore: expected a descriptor and a region below {regions}")
    if int(rx["len_ctrl"][-1]) & RxFlag.EMBEDDED_SEMAPHORE:
        return rx
    words = EMBEDDED.encode(
        sow=int(semaphore.sow),
        packed=1,
        semaphore=semaphore.semaphore,
        csr_index=semaphore.csr_index,
        mark=BLOB_MARK >> 8,
    )
    out = rx.copy()
    out["len_ctrl"][-1] |= np.uint32(int.from_bytes(words[:4], "little"))
    out["meta_ctrl"][-1] = np.uint32(int.from_bytes(words[4:], "little"))
    return out


def embedded_semaphore(rx: Array) -> EmbeddedSemaphore | None:
    """Return the semaphore in the last writing descriptor, or None.

    Raises:
        DecodeError: the descriptor says it has one, and its words do not hold one.
    """
    if not rx.size or not int(rx["len_ctrl"][-1]) & RxFlag.EMBEDDED_SEMAPHORE:
        return None
    values = EMBEDDED.decode(rx[-1:].tobytes())
    if values["mark"] != BLOB_MARK >> 8:
        at = (rx.size - 1) * DESCRIPTOR_SIZE + 4
        raise DecodeError("embedded semaphore", offset=at, expected="the mark 0x01", got=f"0x{values['mark']:02X}")
    return EmbeddedSemaphore(values["csr_index"], values["semaphore"], bool(values["sow"]))


def move_addresses(tx: Array, *, base: int, size: int, new: int) -> Array:
    """Return the reading descriptors with every address from `base` to `base + size` moved by `new - base`.

    Operand descriptors have no address and stay.
    """
    data = tx["len_ctrl"] & np.uint32(TxFlag.META) == 0
    pointer = tx["buf_ptr"]
    inside = data & (pointer >= np.uint64(base)) & (pointer - np.uint64(base) < np.uint64(size))
    out = tx.copy()
    out["buf_ptr"] = np.where(inside, pointer - np.uint64(base) + np.uint64(new), pointer)
    return out


PRING_INFO: Final = Layout("dma_ring_info", size=32, source=STRUCTURES_SOURCE, fields=(
    # name                    at    type    meaning
    Field("type",             0,    "<u4",  "1 TX, 2 RX"),
    Field("ring_mem",         8,    "<u8",  "memory of the ring"),
    Field("ring_offset_bytes", 0x10, "<u8", "where in it the ring begins"),
    Field("used",             0x18, "<u4",  "descriptors in use"),
    Field("allocated",        0x1C, "<u4",  "descriptors it has room for"),
))  # fmt: skip
PRING_TX: Final = 1
PRING_RX: Final = 2


def no_ops(count: int, *, address: int, receive: bool) -> Array:
    """Return `count` descriptors of one side that copy 4 bytes onto themselves."""
    out = np.zeros(count, DESCRIPTOR)
    out["len_ctrl"] = len_ctrl(NO_OP_BYTES, first=not receive, last=not receive)
    out["meta_ctrl"] = 0 if receive else COPY_WORD
    out["buf_ptr"] = address
    return out


def dump(half: Array, *, padded_size: int, address: int, receive: bool, trap: bytes = b"") -> Array:
    """Return one half of a vring as the descriptors of a hardware ring, filled up with no-ops.

    Args:
        half: the descriptors in use, TX or RX.
        padded_size: descriptors of the result before the trap; the ring's `used` count.
        address: the four bytes that a no-op copies onto themselves.
        receive: whether it is the RX half.
        trap: one more descriptor after them, or nothing.

    Raises:
        UsageError: more descriptors are in use than `padded_size`, or the trap is no descriptor.
    """
    if half.size > padded_size:
        raise UsageError(f"dump to a ring of {padded_size} descriptors: {half.size} are in use")
    if len(trap) not in (0, DESCRIPTOR_SIZE):
        raise UsageError(f"trap descriptor: expected {DESCRIPTOR_SIZE} bytes or none, got {len(trap)}")
    filling = no_ops(padded_size - half.size, address=address, receive=receive)
    return np.concatenate([half, filling, np.frombuffer(trap, DESCRIPTOR)])
