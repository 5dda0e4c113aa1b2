"""Descriptors as items: what each destination descriptor does, resolved to flat indices, with everything checked.

TX packets are FIRST..LAST runs; a copy pairs each of its descriptors with the next RX, a reduce pairs all of them with
one. Kinds, framing and pairing are rebuilt from flags and counts alone. Source: device-model §3, conventions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, owners, pointers
from rota.device.load import Image, of_rank
from rota.device.world import Places, World, refuse, resolve, semaphore_index
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.descriptors import (
    ACCUMULATE,
    COPY_WORD,
    DESCRIPTOR,
    DESCRIPTOR_SIZE,
    FIRST_PHASE,
    LIMITS,
    RING_ID_SHIFT,
    CceWord,
    RxFlag,
    TxFlag,
    decode_cce_word,
    decode_length,
)
from rota.isa.dtypes import size_of
from rota.isa.enums import CceType
from rota.isa.image import HEADER, Section
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, SEMAPHORES, Window
from rota.native.arithmetic import Combine

DATA: Final = 0
SIGNAL: Final = 1
PAD: Final = 2
_LENGTH_AND_RING: Final = 0xFFFF | 3 << RING_ID_SHIFT
_SIGNAL_BYTES: Final = 4
_PAD_BYTES: Final = 4
FEED_WORD: Final = 4  # bytes

COMBINE: Final[Mapping[CceType, Combine]] = {
    CceType.ADD: Combine.ADD,
    CceType.MAX: Combine.MAX,
    CceType.MIN: Combine.MIN,
}
"""What a reduce packet does to elements; the other operations need operand descriptors, which this version has not."""


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """One entry per destination descriptor of all ranks, section after section, in ring order.

    Attributes:
        kind: DATA, SIGNAL or PAD.
        word: index into `words`, the decoded operation; -1 for a copy.
        target: flat memory byte, or flat semaphore for a signal.
        source: flat memory bytes, CSR by `source_ptr`, in fold order.
        strong: the write is not overtaken by later ones. barrier: nothing before may be outstanding.
        rx_offset, tx_offset: of the destination and the first source descriptor in the file of their rank.
        section_ptr: where the section `(image, engine x 16 + queue)` of `sections` starts.
    """

    kind: Array
    word: I64
    size: I64
    target: I64
    source_ptr: I64
    source: I64
    strong: Bool
    barrier: Bool
    rx_offset: I64
    tx_offset: I64
    sections: tuple[tuple[int, int], ...]
    section_ptr: I64
    words: tuple[CceWord, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """All TX or all RX descriptors of an image, with the file offset of each."""

    word0: Array
    word1: Array
    address: Array
    offset: I64
    ptr: I64  # section starts


def decode_items(world: World) -> Items:
    """Decode and check the rings of all images.

    Raises:
        DecodeError: a descriptor that no emitter could have meant, with its offset in the file of its rank.
    """
    words: list[CceWord] = []
    parts = []
    for i in range(len(world.images)):
        with of_rank(i):
            parts.append(_image_items(world, i, words))
    counts = [np.diff(part.source_ptr) for part in parts]
    lengths = [np.diff(part.section_ptr) for part in parts]
    return Items(
        **{
            f: np.concatenate([getattr(p, f) for p in parts])
            for f in ("kind", "word", "size", "target", "source", "strong", "barrier", "rx_offset", "tx_offset")
        },
        source_ptr=pointers(np.concatenate(counts)),
        sections=tuple(section for part in parts for section in part.sections),
        section_ptr=pointers(np.concatenate(lengths)),
        words=tuple(words),
    )


def _image_items(world: World, index: int, words: list[CceWord]) -> Items:
    image = world.images[index]
    places = sorted(i for kind, i in image.parts if kind is Section.TX)
    if places != sorted(i for kind, i in image.parts if kind is Section.RX) or not places:
        raise DecodeError("section table", offset=HEADER.size, expected="TX and RX sections in pairs", got="others")
    tx, rx = _side(image, Section.TX, places), _side(image, Section.RX, places)
    _check_flags(image, tx, rx)
    item_of_tx, is_cce, code = _pair(image, tx, rx, places, words)
    return _items(world, index, tx, rx, places, item_of_tx, is_cce, code, tuple(words))


def _side(image: Image, kind: Section, places: Sequence[int]) -> _Side:
    arrays, offsets = [], []
    for place in places:
        part = image.part(kind, place)
        arrays.append(np.frombuffer(part.data, DESCRIPTOR))
        offsets.append(part.offset + DESCRIPTOR_SIZE * np.arange(arrays[-1].size, dtype=np.int64))
    table = np.concatenate(arrays)
    return _Side(
        table["len_ctrl"].copy(),
        table["meta_ctrl"].copy(),
        table["buf_ptr"].copy(),
        np.concatenate(offsets),
        pointers(np.array([a.size for a in arrays])),
    )


def _check_flags(image: Image, tx: _Side, rx: _Side) -> None:
    """Exact masks, the ring phase by position, and the packet framing."""
    allowed = np.uint32(
        _LENGTH_AND_RING | TxFlag.FIRST | TxFlag.LAST | TxFlag.CONCAT | (0 if image.arch.sow else TxFlag.DMB)
    )
    refuse((tx.word0 & ~allowed) != 0, tx.offset, "TX descriptor", "no other flags", tx.word0)
    allowed = np.uint32(_LENGTH_AND_RING | (RxFlag.STRONG_ORDER_WR if image.arch.sow else 0))
    refuse((rx.word0 & ~allowed) != 0, rx.offset, "RX descriptor", "no other flags", rx.word0)
    refuse(rx.word1 != 0, rx.offset, "RX descriptor", "a second word of 0", rx.word1)
    for name, side in (("TX", tx), ("RX", rx)):
        place = np.arange(side.offset.size) - np.repeat(side.ptr[:-1], np.diff(side.ptr))
        phase = (FIRST_PHASE + place // image.ring_size) & 3
        refuse(
            (side.word0 >> RING_ID_SHIFT & 3) != phase,
            side.offset,
            f"{name} ring phase",
            "that of its place",
            side.word0,
        )
    first, last = _flag(tx, TxFlag.FIRST), _flag(tx, TxFlag.LAST)
    follows_last = np.concatenate(([True], last[:-1]))
    ends = np.zeros(tx.offset.size, np.bool_)
    ends[tx.ptr[1:] - 1] = True
    refuse((first != follows_last) | (ends & ~last), tx.offset, "TX packet", "FIRST behind each LAST", tx.word0)
    refuse(_flag(tx, TxFlag.CONCAT) == last, tx.offset, "TX packet", "CONCAT on all but the last", tx.word0)


def _flag(side: _Side, flag: TxFlag) -> Bool:
    found: Bool = (side.word0 & np.uint32(flag)) != 0
    return found


def _pair(image: Image, tx: _Side, rx: _Side, places: Sequence[int], words: list[CceWord]) -> tuple[I64, Bool, I64]:
    """Return the item of each TX descriptor, whether it reduces, and the operation's index in `words`."""
    first, last = _flag(tx, TxFlag.FIRST), _flag(tx, TxFlag.LAST)
    is_cce = tx.word1 != COPY_WORD
    code = np.full(tx.offset.size, -1, np.int64)
    for value in np.unique(tx.word1[is_cce]).tolist():
        where = is_cce & (tx.word1 == value)
        at = int(np.argmax(where))
        decoded = decode_cce_word(value, offset=int(tx.offset[at]) + 4)
        refuse(where & (last != decoded.last), tx.offset, "reduce packet", "the last-source bit on its last", tx.word1)
        base = replace(decoded, last=False)
        plain = not decoded.barrier and decoded.accumulate is ACCUMULATE.get(decoded.transfer, decoded.transfer)
        bad = where & (decoded.op not in COMBINE or not plain)
        refuse(bad, tx.offset, "reduce word", "an operation this version runs, without a barrier", tx.word1)
        if base not in words:
            words.append(base)
        code[where] = words.index(base)
    within = ~first
    refuse(within & (code != np.concatenate(([-1], code[:-1]))), tx.offset, "TX packet", "one operation", tx.word1)
    opens = ~is_cce | first
    item = np.cumsum(opens) - 1
    per_section = np.add.reduceat(opens.astype(np.int64), tx.ptr[:-1])
    for i in np.flatnonzero(per_section != np.diff(rx.ptr)).tolist():
        raise DecodeError(
            f"RX ring {places[i]}",
            offset=int(rx.offset[rx.ptr[i]]),
            expected=f"{per_section[i]} descriptors, as TX needs",
            got=str(rx.ptr[i + 1] - rx.ptr[i]),
        )
    packet = np.cumsum(first) - 1
    copies = np.bincount(packet, ~is_cce)
    refuse(
        (copies > LIMITS[image.arch.name].rx_cap)[packet], tx.offset, "copy packet", "at most the packet cap", tx.word0
    )
    return item, is_cce, code


def _items(
    world: World,
    index: int,
    tx: _Side,
    rx: _Side,
    places: Sequence[int],
    item: I64,
    is_cce: Bool,
    code: I64,
    words: tuple[CceWord, ...],
) -> Items:
    image = world.images[index]
    size = decode_length(rx.word0).astype(np.int64)
    refuse(
        decode_length(tx.word0).astype(np.int64) != size[item],
        tx.offset,
        "TX length",
        "that of its RX descriptor",
        tx.word0,
    )
    head = np.flatnonzero(np.concatenate(([True], item[1:] != item[:-1])))
    word, reduces = code[head], is_cce[head]
    fan_in = np.diff(np.append(head, item.size))
    _check_reduce(image, word, size, fan_in, rx, words)
    target = resolve(world, index, rx.address, rx.offset, "RX address")
    source = resolve(world, index, tx.address, tx.offset, "TX address")
    refuse(~source.memory | (source.image != index), tx.offset, "TX address", "the rank's own memory", tx.address)

    kind = _kinds(target, index, size, word, words, rx)
    refuse(
        (kind[item] == PAD) != (source.offset == isa.PAD_LINE),
        tx.offset,
        "TX address",
        "the pad line exactly where RX names it",
        tx.address,
    )
    flat_source = world.memory_base[source.image] + source.offset
    flat_target = world.memory_base[target.image] + target.offset
    data = kind == DATA
    _check_inside(world, flat_target, size, data, target.offset, world.memory_size[target.image], rx, "RX address")
    _check_inside(
        world, flat_source, size[item], data[item], source.offset, world.memory_size[source.image], tx, "TX address"
    )
    signal = kind == SIGNAL
    semaphore = _signals(world, image, signal, size, reduces, target, source, item, tx, rx)
    opens = np.zeros(item.size, np.bool_)
    opens[head] = True
    refuse(_flag(tx, TxFlag.DMB) & ~opens, tx.offset, "TX descriptor", "a barrier on a signal only", tx.word0)
    return Items(
        kind=kind.astype(np.uint8),
        word=word,
        size=size,
        target=np.where(signal, semaphore, flat_target),
        source_ptr=np.append(head, item.size),
        source=flat_source,
        strong=(rx.word0 & np.uint32(RxFlag.STRONG_ORDER_WR)) != 0,
        barrier=_flag(tx, TxFlag.DMB)[head],
        rx_offset=rx.offset,
        tx_offset=tx.offset[head],
        sections=tuple((index, place) for place in places),
        section_ptr=rx.ptr,
        words=(),
    )


def _kinds(target: Places, index: int, size: I64, word: I64, words: tuple[CceWord, ...], rx: _Side) -> I64:
    """Tell data, signals and padding apart by where they go; padding has one address and one size."""
    line = (target.offset >= isa.PAD_LINE) & (target.offset < isa.PAD_LINE + isa.PAD_LINE_SIZE)
    pad = target.memory & (target.image == index) & line
    itemsize = np.array([*(size_of(each.transfer) for each in words), _PAD_BYTES])  # a word of -1 is a copy
    exact = (target.offset == isa.PAD_LINE) & (size == itemsize[word])
    refuse(pad & ~exact, rx.offset, "padding", "the start of the pad line, 4 bytes or one element", rx.address)
    kind: I64 = np.where(pad, PAD, np.where(target.memory, DATA, SIGNAL))
    return kind


def _signals(
    world: World,
    image: Image,
    signal: Bool,
    size: I64,
    reduces: Bool,
    target: Places,
    source: Places,
    item: I64,
    tx: _Side,
    rx: _Side,
) -> I64:
    """Return the flat semaphore of each signal, 0 for the other items: 4 bytes from a feed word to an INC register."""
    refuse(signal & (reduces | (size != _SIGNAL_BYTES)), rx.offset, "signal", "a 4-byte copy", rx.word0)
    alone = _flag(tx, TxFlag.FIRST) & _flag(tx, TxFlag.LAST)
    refuse(signal[item] & ~alone, tx.offset, "signal", "a packet of its own", tx.word0)
    end = isa.FEED_WORDS + len(image.part(Section.MEM, isa.FEED_WORDS).data)
    feeds = (source.offset >= isa.FEED_WORDS) & (source.offset < end) & (source.offset % FEED_WORD == 0)
    refuse(signal[item] & ~feeds, tx.offset, "signal source", "a feed word", tx.address)
    chosen = np.flatnonzero(signal)
    at = rx.offset[chosen]
    found = semaphore_index(world, _take(target, chosen), Window.INC, at, "signal target")
    identity = found % SEMAPHORES
    free = (identity >= FIRST_FREE) & (identity <= LAST_FREE)
    refuse(~free, at, "signal target", "a free semaphore", identity)
    flat = np.zeros(size.size, np.int64)
    flat[chosen] = found
    return flat


def _take(places: Places, chosen: I64) -> Places:
    return Places(places.memory[chosen], places.image[chosen], places.offset[chosen])


def _check_reduce(image: Image, word: I64, size: I64, fan_in: I64, rx: _Side, words: tuple[CceWord, ...]) -> None:
    limits = LIMITS[image.arch.name]
    refuse(fan_in > limits.max_sources, rx.offset, "reduce packet", f"at most {limits.max_sources} sources", fan_in)
    refuse((word >= 0) & (fan_in < 2), rx.offset, "reduce packet", "at least 2 sources", fan_in)
    for i, decoded in enumerate(words):
        itemsize = size_of(decoded.transfer)
        cap = min(limits.max_cce_elements * itemsize, limits.max_cce_bytes)
        bad = (word == i) & ((size % itemsize != 0) | (size > cap))
        refuse(bad, rx.offset, "reduce packet", f"whole elements, at most {cap} bytes", size)


def _check_inside(
    world: World, flat: I64, size: I64, chosen: Bool, offset: I64, memory: I64, side: _Side, what: str
) -> None:
    """Data lies inside one declared buffer."""
    at = np.searchsorted(world.buffer_start, flat, side="right") - 1
    outside = (at < 0) | (flat + size > world.buffer_end[np.maximum(at, 0)]) | (offset + size > memory)
    refuse(chosen & outside, side.offset, what, "bytes inside one declared buffer", side.address)


def source_owner(items: Items) -> I64:
    """Return the item of each source."""
    return owners(items.source_ptr)
