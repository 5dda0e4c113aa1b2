"""Descriptors as items: what each packet does, resolved to flat indices, with everything checked.

An item is one operation of an engine: it moves or combines its sources and writes the result to its targets, or it adds
to a semaphore, or it is padding. How descriptors make items is `packets`. Source: device-model §3, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rota.columns import I64, Array, Bool, owners, pointers
from rota.device.load import Image, of_rank
from rota.device.packets import COPY, Operation, Packets, Side, check_sizes, flag, lengths, packets_of, read_sides
from rota.device.world import Places, World, refuse, resolve, semaphore_index
from rota.isa import arch as isa
from rota.isa.descriptors import DESCRIPTOR_SIZE, RxFlag, TxFlag
from rota.isa.image import Section
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, SEMAPHORES, Window
from rota.native.arithmetic import Combine

DATA: Final = 0
SIGNAL: Final = 1
PAD: Final = 2
_SIGNAL_BYTES: Final = 4
_PAD_BYTES: Final = 4
FEED_WORD: Final = 4  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """One entry per item of all ranks, section after section, in ring order.

    Attributes:
        kind: DATA, SIGNAL or PAD.
        operation: index into `operations`; 0 is a copy.
        target: flat memory byte, or flat semaphore for a signal; of several targets the first.
        more_item, more: the other targets: whose each is, ascending, and its flat memory byte.
        source: flat memory bytes, CSR by `source_ptr`, in fold order.
        scale: of each source of an FMA, float32; empty where there is no FMA at all.
        value: what each signal adds; 0 elsewhere.
        strong: its last write is not overtaken by later ones. barrier: nothing before may be outstanding.
        first: it begins a packet.
        tx_ptr, rx_ptr: first descriptor of each item, counted over all sections; one longer than the items.
        sections: (image, engine x 16 + queue) of each section, ascending; section_ptr: its first item.
        tx_offset, rx_offset: of the first descriptor of each section in the file of its rank.
    """

    kind: Array
    operation: Array
    size: I64
    target: I64
    more_item: I64
    more: I64
    source_ptr: I64
    source: I64
    scale: Array
    value: I64
    strong: Bool
    barrier: Bool
    first: Bool
    tx_ptr: I64
    rx_ptr: I64
    sections: I64  # shape (sections, 2)
    section_ptr: I64
    tx_offset: I64
    rx_offset: I64
    operations: tuple[Operation, ...]

    @property
    def count(self) -> int:
        """Items of all ranks together."""
        return self.kind.size

    def section_of(self, item: I64) -> I64:
        """Return the section of each item."""
        found: I64 = np.searchsorted(self.section_ptr, item, side="right") - 1
        return found

    def image_of(self, item: I64) -> I64:
        """Return the image of each item."""
        found: I64 = self.sections[self.section_of(item), 0]
        return found

    def offset_of(self, item: int, *, transmit: bool = False) -> tuple[int, int]:
        """Return the image of an item, and where its first descriptor of one side is in the file."""
        section = int(self.section_of(np.array([item]))[0])
        ptr, start = (self.tx_ptr, self.tx_offset) if transmit else (self.rx_ptr, self.rx_offset)
        within = int(ptr[item] - ptr[self.section_ptr[section]])
        return int(self.sections[section, 0]), int(start[section]) + DESCRIPTOR_SIZE * within


_JOINED: Final = (
    "kind",
    "operation",
    "size",
    "target",
    "more",
    "source",
    "scale",
    "value",
    "strong",
    "barrier",
    "first",
)


def decode_items(world: World) -> Items:
    """Decode and check the rings of all images.

    Raises:
        DecodeError: a descriptor that no emitter could have meant, with its offset in the file of its rank.
    """
    operations = [COPY]
    parts = []
    for i in range(len(world.images)):
        with of_rank(i):
            parts.append(_image_items(world, i, operations))
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _JOINED}
    before = np.cumsum([0, *(part.kind.size for part in parts)])
    counts: dict[str, Any] = {
        name: np.concatenate([np.diff(getattr(part, name)) for part in parts])
        for name in ("source_ptr", "tx_ptr", "rx_ptr", "section_ptr")
    }
    if all(each.how is not Combine.FMA for each in operations):
        joined["scale"] = np.zeros(0, np.float32)
    joined |= {name: pointers(each) for name, each in counts.items()}
    joined |= {
        name: np.concatenate([getattr(p, name) for p in parts]) for name in ("sections", "tx_offset", "rx_offset")
    }
    return Items(
        **joined,
        more_item=np.concatenate([part.more_item + start for part, start in zip(parts, before, strict=False)]),
        operations=tuple(operations),
    )


def _image_items(world: World, index: int, operations: list[Operation]) -> Items:
    image = world.images[index]
    places, tx, rx = read_sides(image)
    packets = packets_of(image, places, tx, rx, operations)
    rx_item = owners(packets.rx_ptr)
    rx_size = lengths(rx)
    size = rx_size[packets.rx_ptr[:-1]]
    refuse(rx_size != size[rx_item], rx.offset, "RX length", "that of the packet's first target", rx.word0)
    tx_size, tx_offset = lengths(tx)[packets.source], tx.offset[packets.source]
    wrong = tx_size != size[packets.item]
    refuse(wrong, tx_offset, "TX length", "that of its RX descriptor", tx.word0[packets.source])
    check_sizes(image, packets, size, rx.offset[packets.rx_ptr[:-1]], operations)

    address = tx.address[packets.source]
    target = resolve(world, index, rx.address, rx.offset, "RX address")
    source = resolve(world, index, address, tx_offset, "TX address")
    refuse(~source.memory, tx_offset, "TX address", "memory of a rank", address)

    itemsize = np.array([_PAD_BYTES if each.element is None else each.itemsize for each in operations])
    kind = _kinds(target, index, size[rx_item], itemsize[packets.operation][rx_item], rx)
    mixed = kind != kind[packets.rx_ptr[:-1]][rx_item]
    refuse(mixed, rx.offset, "RX address", "a place of the same kind as the packet's first target", rx.address)
    kind = kind[packets.rx_ptr[:-1]]
    own_pad = (source.offset == isa.PAD_LINE) & (source.image == index)
    odd = (kind[packets.item] == PAD) != own_pad
    refuse(odd, tx_offset, "TX address", "the pad line exactly where RX names it", address)
    data = kind == DATA
    flat_target = world.memory_base[target.image] + target.offset
    _check_inside(world, target, size[rx_item], data[rx_item], rx.offset, rx.address, "RX address")
    flat_source = world.memory_base[source.image] + source.offset
    _check_inside(world, source, tx_size, data[packets.item], tx_offset, address, "TX address")
    semaphore, value = _signals(world, index, kind == SIGNAL, size, target, source, packets, tx, rx)
    strong = flag(rx, RxFlag.STRONG_ORDER_WR)
    final = np.zeros(strong.size, np.bool_)
    final[packets.rx_ptr[1:] - 1] = True
    refuse(strong & ~final, rx.offset, "RX descriptor", "strong order on the last target alone", rx.word0)
    opens = np.zeros(tx.word0.size, np.bool_)
    opens[packets.head] = True
    refuse(flag(tx, TxFlag.DMB) & ~opens, tx.offset, "TX descriptor", "a barrier on a signal only", tx.word0)
    more = np.flatnonzero(rx_item[1:] == rx_item[:-1]) + 1
    return Items(
        kind=kind.astype(np.uint8),
        operation=packets.operation.astype(np.int16),
        size=size,
        target=np.where(kind == SIGNAL, semaphore, flat_target[packets.rx_ptr[:-1]]),
        more_item=rx_item[more],
        more=flat_target[more],
        source_ptr=pointers(np.bincount(packets.item, minlength=size.size)),
        source=flat_source,
        scale=packets.scale.view(np.float32),
        value=value,
        strong=strong[packets.rx_ptr[1:] - 1],
        barrier=flag(tx, TxFlag.DMB)[packets.head],
        first=packets.first,
        tx_ptr=np.append(packets.head, tx.word0.size),
        rx_ptr=packets.rx_ptr,
        sections=np.array([(index, place) for place in places], np.int64).reshape(-1, 2),
        section_ptr=packets.section_ptr,
        tx_offset=np.array([image.part(Section.TX, place).offset for place in places], np.int64),
        rx_offset=np.array([image.part(Section.RX, place).offset for place in places], np.int64),
        operations=(),
    )


def _kinds(target: Places, index: int, size: I64, pad_size: I64, rx: Side) -> I64:
    """Tell data, signals and padding apart by where they go; padding has one address and one size."""
    line = (target.offset >= isa.PAD_LINE) & (target.offset < isa.PAD_LINE + isa.PAD_LINE_SIZE)
    pad = target.memory & (target.image == index) & line
    exact = (target.offset == isa.PAD_LINE) & (size == pad_size)
    refuse(pad & ~exact, rx.offset, "padding", "the start of the pad line, 4 bytes or one element", rx.address)
    kind: I64 = np.where(pad, PAD, np.where(target.memory, DATA, SIGNAL))
    return kind


def feed_words(image: Image) -> Array:
    """Return the constants an image's signals add."""
    part = image.parts.get((Section.MEM, isa.FEED_WORDS))
    return np.frombuffer(part.data if part is not None else b"", "<u4")


def _signals(
    world: World,
    index: int,
    signal: Bool,
    size: I64,
    target: Places,
    source: Places,
    packets: Packets,
    tx: Side,
    rx: Side,
) -> tuple[I64, I64]:
    """Return semaphore and value of each signal, 0 for other items: 4 bytes from a feed word to an INC register."""
    head = packets.rx_ptr[:-1]
    odd = signal & ((packets.operation != 0) | (size != _SIGNAL_BYTES) | (packets.targets > 1))
    refuse(odd, rx.offset[head], "signal", "a 4-byte copy", rx.word0[head])
    address, offset = tx.address[packets.source], tx.offset[packets.source]
    alone = (flag(tx, TxFlag.FIRST) & flag(tx, TxFlag.LAST))[packets.source]
    refuse(signal[packets.item] & ~alone, offset, "signal", "a packet of its own", tx.word0[packets.source])
    words = feed_words(world.images[index])
    end = isa.FEED_WORDS + FEED_WORD * words.size
    feeds = (source.offset >= isa.FEED_WORDS) & (source.offset < end) & (source.offset % FEED_WORD == 0)
    feeds &= source.image == index
    refuse(signal[packets.item] & ~feeds, offset, "signal source", "a feed word", address)
    chosen = np.flatnonzero(signal)
    at = rx.offset[head[chosen]]
    rx_chosen = head[chosen]
    places = Places(target.memory[rx_chosen], target.image[rx_chosen], target.offset[rx_chosen])
    found = semaphore_index(world, places, Window.INC, at, "signal target")
    identity = found % SEMAPHORES
    free = (identity >= FIRST_FREE) & (identity <= LAST_FREE)
    refuse(~free, at, "signal target", "a free semaphore", identity)
    flat, value = np.zeros((2, size.size), np.int64)
    flat[chosen] = found
    reads = np.flatnonzero(signal[packets.item])
    value[packets.item[reads]] = words[(source.offset[reads] - isa.FEED_WORDS) // FEED_WORD]
    return flat, value


def _check_inside(
    world: World, places: Places, size: I64, chosen: Bool, offset: I64, addresses: Array, what: str
) -> None:
    """Data lies inside one declared buffer."""
    buffers = world.images[0].buffers  # those of every rank
    start = np.array([buffer.offset for buffer in buffers], np.int64)
    end = np.array([buffer.offset + buffer.size for buffer in buffers], np.int64)
    at = np.searchsorted(start, places.offset, side="right") - 1
    outside = (at < 0) | (places.offset + size > end[at])
    refuse(chosen & outside, offset, what, "bytes inside one declared buffer", addresses)
