"""Packets: which reading and writing descriptors belong together, and what each packet does to its elements.

A TX packet is a FIRST..LAST run. A copy pairs each of its descriptors with the next RX; a copy to several targets is
one TX descriptor and one RX a target; a reduce has operands (META) and sources, in one order, and one RX a target. All
of this is rebuilt from flags, words and counts; addresses are `dma`. Source: device-model §3, conventions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, pointers
from rota.device.load import Image
from rota.device.world import refuse
from rota.errors import DecodeError
from rota.isa.descriptors import (
    ACCUMULATE,
    COPY_WORD,
    DESCRIPTOR,
    DESCRIPTOR_SIZE,
    FIRST_PHASE,
    FMA_META_WORD,
    FMA_SELECTORS,
    LIMITS,
    RING_ID_SHIFT,
    MetaCtrl,
    RxFlag,
    TxFlag,
    decode_cce_word,
    decode_length,
)
from rota.isa.dtypes import Dtype, size_of
from rota.isa.enums import CceType
from rota.isa.image import HEADER, Section
from rota.isa.op_words import WordKind, base_of, decode_word
from rota.isa.operand_words import OPERAND_BIT, encode_operand, replication_operand
from rota.native.arithmetic import Combine

COMBINE: Final[Mapping[CceType, Combine]] = {
    CceType.ADD: Combine.ADD,
    CceType.FMA: Combine.FMA,
    CceType.MAX: Combine.MAX,
    CceType.MIN: Combine.MIN,
}
"""What a reduce packet does to elements."""
_LEAST_SOURCES: Final[Mapping[Combine, int]] = {Combine.COPY: 1, Combine.FMA: 1}  # of the others, 2
_LENGTH: Final = 0xFFFF
_FEW: Final = 16  # different words that are looked for one by one, which is faster than sorting
_LENGTH_AND_RING: Final = _LENGTH | 3 << RING_ID_SHIFT
_REPLICATION_META: Final = int.from_bytes(encode_operand(replication_operand(2))[4:8], "little")
_COUNT_MASK: Final = decode_word(base_of(WordKind.REPLICATION) | 0xFFFF).field("count")


@dataclass(frozen=True, slots=True)
class Operation:
    """What items do: move bytes, or combine elements of one type. Two words that mean the same are one operation."""

    how: Combine
    element: Dtype | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 1 where bytes are moved."""
        return 1 if self.element is None else size_of(self.element)


COPY: Final = Operation(Combine.COPY)


class Role(IntEnum):
    """What a TX descriptor is in its packet."""

    COPY = 0
    SOURCE = 1  # of a reduce
    SCALE = 2  # META: the scale of the source behind it
    REPLICATION = 3  # META: how many targets the packet has


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """All TX or all RX descriptors of an image, with the file offset of each."""

    word0: Array
    word1: Array
    address: Array
    offset: I64
    ptr: I64  # section starts


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """The items of an image: an item is one operation, with its sources and its targets.

    Attributes:
        source: TX descriptors that read, ascending; `item` is whose each is.
        head: first TX descriptor of each item. first: it begins a packet.
        operation: index into the operations of all images.
        targets: RX descriptors of each item; rx_ptr: their first one, one longer than the items.
        scale: of each source of an FMA, the bits of a float32; those of 1.0 elsewhere.
        section_ptr: first item of each section.
    """

    source: I64
    item: I64
    head: I64
    first: Bool
    operation: I64
    targets: I64
    rx_ptr: I64
    scale: Array
    section_ptr: I64


def read_sides(image: Image) -> tuple[tuple[int, ...], Side, Side]:
    """Return the places (engine x 16 + queue) of an image's rings, and the descriptors of both sides.

    Raises:
        DecodeError: there is a ring without its other side.
    """
    places = tuple(sorted(i for kind, i in image.parts if kind is Section.TX))
    if places != tuple(sorted(i for kind, i in image.parts if kind is Section.RX)):
        raise DecodeError("section table", offset=HEADER.size, expected="TX and RX sections in pairs", got="others")
    return places, _side(image, Section.TX, places), _side(image, Section.RX, places)


def _side(image: Image, kind: Section, places: Sequence[int]) -> Side:
    arrays = [np.frombuffer(image.part(kind, place).data, DESCRIPTOR) for place in places]
    table = np.concatenate([np.zeros(0, DESCRIPTOR), *arrays])
    ptr = pointers(np.array([each.size for each in arrays], np.int64))
    start = np.array([image.part(kind, place).offset for place in places], np.int64)
    within = np.arange(table.size) - np.repeat(ptr[:-1], np.diff(ptr))
    offset = np.repeat(start, np.diff(ptr)) + DESCRIPTOR_SIZE * within
    return Side(table["len_ctrl"].copy(), table["meta_ctrl"].copy(), table["buf_ptr"].copy(), offset, ptr)


def flag(side: Side, which: TxFlag | RxFlag) -> Bool:
    """Return which descriptors have a flag of the length word."""
    found: Bool = (side.word0 & np.uint32(which)) != 0
    return found


def packets_of(image: Image, places: Sequence[int], tx: Side, rx: Side, operations: list[Operation]) -> Packets:
    """Check the framing of an image's descriptors and put them together; operations not yet known are appended.

    Raises:
        DecodeError: a descriptor that no emitter could have meant.
    """
    meta = flag(tx, TxFlag.META)
    _check_flags(image, tx, rx, meta)
    words = _Words(image, tx, meta, operations)
    first, last = flag(tx, TxFlag.FIRST), flag(tx, TxFlag.LAST)
    packet = np.cumsum(first) - 1
    start = np.flatnonzero(first)
    end = np.append(start[1:], first.size)
    copy = words.role == Role.COPY
    _check_form(image, tx, packet, start, end, words, last)
    opens = copy | first
    item_of_tx = np.cumsum(opens) - 1
    head = np.flatnonzero(opens)
    fan_out = words.targets[head]
    several = fan_out > LIMITS[image.arch.name].rx_cap
    refuse(several, tx.offset[head], "packet", "at most as many targets as the packet cap", fan_out)
    source = np.flatnonzero(~meta)
    fan_in = np.bincount(item_of_tx[source], minlength=head.size)
    operation = words.operation[np.append(head[1:], first.size)[: head.size] - 1]  # the last one is never an operand
    _check_fan_in(image, tx, head, fan_in, operation, operations)
    section_ptr = np.append(item_of_tx, head.size)[np.minimum(tx.ptr, first.size)]
    rx_ptr = pointers(fan_out)
    for i in np.flatnonzero(np.diff(rx_ptr[section_ptr]) != np.diff(rx.ptr)).tolist():
        need = int(rx_ptr[section_ptr[i + 1]] - rx_ptr[section_ptr[i]])
        raise DecodeError(
            f"RX ring {places[i]}",
            offset=int(rx.offset[rx.ptr[i]]),
            expected=f"{need} descriptors, as TX needs",
            got=str(rx.ptr[i + 1] - rx.ptr[i]),
        )
    scale = np.full(source.size, np.float32(1).view(np.uint32), np.uint32)
    scaled = np.flatnonzero(words.scaled[source])
    scale[scaled] = (tx.address[source[scaled] - 1] >> np.uint64(32)).astype(np.uint32)
    return Packets(source, item_of_tx[source], head, first[head], operation, fan_out, rx_ptr, scale, section_ptr)


def _check_flags(image: Image, tx: Side, rx: Side, meta: Bool) -> None:
    """Exact masks, the ring phase by position, and FIRST behind each LAST."""
    allowed = np.uint32(
        _LENGTH_AND_RING
        | TxFlag.META
        | TxFlag.FIRST
        | TxFlag.LAST
        | TxFlag.CONCAT
        | (0 if image.arch.sow else TxFlag.DMB)
    )
    refuse((tx.word0 & ~allowed) != 0, tx.offset, "TX descriptor", "no other flags", tx.word0)
    stray = meta & ((tx.word0 & np.uint32(_LENGTH | TxFlag.LAST)) != 0)
    refuse(stray, tx.offset, "TX operand", "no length, and data behind it", tx.word0)
    allowed = np.uint32(_LENGTH_AND_RING | (RxFlag.STRONG_ORDER_WR if image.arch.sow else 0))
    refuse((rx.word0 & ~allowed) != 0, rx.offset, "RX descriptor", "no other flags", rx.word0)
    refuse(rx.word1 != 0, rx.offset, "RX descriptor", "a second word of 0", rx.word1)
    for name, side in (("TX", tx), ("RX", rx)):
        place = np.arange(side.offset.size) - np.repeat(side.ptr[:-1], np.diff(side.ptr))
        phase = (FIRST_PHASE + place // image.ring_size) & 3
        wrong = (side.word0 >> RING_ID_SHIFT & 3) != phase
        refuse(wrong, side.offset, f"{name} ring phase", "that of its place", side.word0)
    first, last = flag(tx, TxFlag.FIRST), flag(tx, TxFlag.LAST)
    follows_last = np.concatenate((np.ones(min(last.size, 1), np.bool_), last[:-1]))
    ends = np.zeros(tx.offset.size, np.bool_)
    ends[tx.ptr[1:] - 1] = True
    refuse((first != follows_last) | (ends & ~last), tx.offset, "TX packet", "FIRST behind each LAST", tx.word0)
    refuse(flag(tx, TxFlag.CONCAT) == last, tx.offset, "TX packet", "CONCAT on all but the last", tx.word0)


def _distinct(words: Array) -> list[int]:
    """Return the different words, ascending; there are few of them."""
    found: list[int] = []
    while words.size and len(found) < _FEW:
        found.append(int(words[0]))
        words = words[words != words[0]]
    return sorted([*found, *np.unique(words).tolist()])


class _Words:
    """What the operation word of each TX descriptor says, as columns.

    `targets` is meant for copies; `_check_form` puts in that of a reduce, which an operand says.
    """

    def __init__(self, image: Image, tx: Side, meta: Bool, operations: list[Operation]) -> None:
        n = tx.word1.size
        self.role = np.zeros(n, np.int8)
        self.operation = np.full(n, -1, np.int64)
        self.targets = np.ones(n, np.int64)
        self.chain = np.zeros(n, np.bool_)
        self.last = np.zeros(n, np.bool_)
        self.member = np.zeros(n, np.bool_)
        self.scaled = np.zeros(n, np.bool_)
        for is_meta in (False, True):
            inside = meta == is_meta
            for word in _distinct(tx.word1[inside]):
                where = inside & (tx.word1 == word)
                if is_meta:
                    self._operand(tx, where, word)
                else:
                    self._data(image, tx, where, word, operations)

    def _operand(self, tx: Side, where: Bool, word: int) -> None:
        if word == _REPLICATION_META:
            self.role[where] = Role.REPLICATION
            count = tx.address.astype(np.int64)
            refuse(where & ((count < 2) | (count > _COUNT_MASK)), tx.offset, "TX operand", "2 targets or more", count)
            self.targets[where] = count[where]
            return
        known = word & ~OPERAND_BIT == FMA_META_WORD
        refuse(where & (not known), tx.offset, "TX operand", "a scale or a number of targets", tx.word1)
        self.role[where] = Role.SCALE
        self.member[where] = bool(word & OPERAND_BIT)
        other = (tx.address & np.uint64(0xFFFFFFFF)) != FMA_SELECTORS
        refuse(where & other, tx.offset, "TX operand", "a scale that multiplies the source behind it", tx.address)

    def _data(self, image: Image, tx: Side, where: Bool, word: int, operations: list[Operation]) -> None:
        found = COPY
        offset = int(tx.offset[np.argmax(where)]) + 4
        if word != COPY_WORD and decode_word(word, offset=offset).kind is WordKind.REPLICATION:
            self.targets[where] = word & _COUNT_MASK
            plain_word = word == base_of(WordKind.REPLICATION) | word & _COUNT_MASK
            odd = not plain_word or word & _COUNT_MASK < 2 or not LIMITS[image.arch.name].replication
            refuse(where & odd, tx.offset, "copy word", "2 targets or more, where engines replicate", tx.word1)
        elif word != COPY_WORD:
            decoded = decode_cce_word(word & ~MetaCtrl.CHAIN, offset=offset)
            plain = not decoded.barrier and decoded.accumulate is ACCUMULATE.get(decoded.transfer, decoded.transfer)
            bad = where & (decoded.op not in COMBINE or not plain)
            refuse(bad, tx.offset, "reduce word", "an operation this version runs, without a barrier", tx.word1)
            self.role[where] = Role.SOURCE
            self.chain[where] = bool(word & MetaCtrl.CHAIN)
            self.last[where] = decoded.last
            found = Operation(COMBINE[decoded.op], decoded.transfer)
            self.scaled[where] = found.how is Combine.FMA
        if found not in operations:
            operations.append(found)
        self.operation[where] = operations.index(found)


def _check_form(image: Image, tx: Side, packet: I64, start: I64, end: I64, words: _Words, last: Bool) -> None:
    """Every packet is all copies, or a reduce: [replication], then each source, an FMA's behind its scale."""
    if not packet.size:
        return
    role, place = words.role, np.arange(packet.size) - start[packet]
    copy = role == Role.COPY
    refuse(copy != copy[start[packet]], tx.offset, "TX packet", "one operation", tx.word1)
    alone = (start == end - 1)[packet]
    refuse(copy & (words.targets > 1) & ~alone, tx.offset, "copy word", "a packet of its own", tx.word1)
    cap = LIMITS[image.arch.name].rx_cap
    long = (end - start > cap)[packet]
    refuse(copy & long, tx.offset, "copy packet", "at most the packet cap", tx.word0)
    combined = (role[start] == Role.REPLICATION)[packet]
    step = place - combined
    scaled = words.scaled[end - 1][packet]
    want = np.where(step < 0, Role.REPLICATION, np.where(scaled & (step % 2 == 0), Role.SCALE, Role.SOURCE))
    refuse(~copy & (role != want), tx.offset, "reduce packet", "its operands in their places", tx.word1)
    source = role == Role.SOURCE
    other = source & (words.operation != words.operation[end - 1][packet])
    refuse(other, tx.offset, "TX packet", "one operation", tx.word1)
    refuse(source & (words.last != last), tx.offset, "reduce packet", "the last-source bit on its last", tx.word1)
    linked = source & (words.chain != (combined & ~last))
    linked |= (role == Role.SCALE) & (words.member != combined)
    refuse(linked, tx.offset, "reduce packet", "the marks of several targets exactly where there are such", tx.word1)
    refuse(combined & (not LIMITS[image.arch.name].replication), tx.offset, "reduce packet", "one target", tx.word1)
    refuse(
        ~copy & (end - start > LIMITS[image.arch.name].tx_cap)[packet],
        tx.offset,
        "reduce packet",
        "at most the packet cap",
        tx.word0,
    )


def _check_fan_in(
    image: Image, tx: Side, head: I64, fan_in: I64, operation: I64, operations: Sequence[Operation]
) -> None:
    most = LIMITS[image.arch.name].max_sources
    at = tx.offset[head]
    refuse(fan_in > most, at, "reduce packet", f"at most {most} sources", fan_in)
    for i, each in enumerate(operations):
        least = _LEAST_SOURCES.get(each.how, 2)
        refuse((operation == i) & (fan_in < least), at, "reduce packet", f"at least {least} sources", fan_in)


def check_sizes(image: Image, packets: Packets, size: I64, offset: I64, operations: Sequence[Operation]) -> None:
    """Reduces are of whole elements, and no more than an engine takes; `size` and `offset` are of each item.

    Raises:
        DecodeError: one is not.
    """
    limits = LIMITS[image.arch.name]
    for i, each in enumerate(operations):
        if each.element is None:
            continue
        cap = min(limits.max_cce_elements * each.itemsize, limits.max_cce_bytes)
        bad = (packets.operation == i) & ((size % each.itemsize != 0) | (size > cap))
        refuse(bad, offset, "reduce packet", f"whole elements, at most {cap} bytes", size)


def lengths(side: Side) -> I64:
    """Return the bytes of each descriptor."""
    return decode_length(side.word0).astype(np.int64)
