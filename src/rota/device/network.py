"""Network proxies: the sections NETWORK of all images, and each send paired with its receive.

What the proxies do is `proxies`. Source: device §13, high; how sends and receives are paired, convention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, U64, Array, Bool, owners, pointers, running_count
from rota.device.load import Part, of_rank
from rota.device.records import Controls
from rota.device.world import World, refuse, resolve, semaphores_at
from rota.errors import DecodeError
from rota.isa.image import Section
from rota.isa.network import (
    ENTRY_SIGNALS,
    OPERATION,
    PROXY_QUEUE,
    RECEIVE,
    SECTION_HEADER,
    SEND,
    NetworkSection,
    decode_network,
)
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, SEMAPHORES, Window

NOWHERE: Final = -1  # no byte of memory, and no semaphore


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """One entry per operation that sends: image by image, by processor, control entry and channel.

    Attributes:
        send: first of its sends; one longer.
        handshake: flat semaphore; unit: what a send takes from it.
        credits: sends that may be under way at once.
        offset: of its record in the file of its rank.
    """

    image: I64
    sp: I64
    entry: I64
    channel: I64
    send: I64
    handshake: I64
    unit: I64
    credits: I64
    offset: I64

    @property
    def count(self) -> int:
        """How many there are."""
        return self.image.size


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """One entry per send with its receive, operation by operation, in order.

    Attributes:
        operation, receiver: whose it is, and the image it goes to.
        leads: it waits for the handshake; the others are there when the one before them is.
        source, target: flat bytes of memory; NOWHERE without data.
        semaphore: flat, shape (hops, 2), NOWHERE for none; value: what is added to each.
        offset: of its send entry in the file of its rank.
    """

    operations: Operations
    operation: I64
    receiver: I64
    leads: Bool
    source: I64
    target: I64
    size: I64
    semaphore: I64
    value: I64
    offset: I64

    @property
    def taken(self) -> I64:
        """What each operation takes from its handshake in all."""
        count = np.bincount(self.operation[self.leads], minlength=self.operations.count)
        return count * self.operations.unit


def read_hops(world: World, controls: Controls) -> Hops | None:
    """Read the sections of all images, and pair sends with receives; None where no image has any.

    Raises:
        DecodeError: records that mean nothing, or a send and a receive that do not fit each other.
    """
    found = [_section(world, *place) for place in _places(world)]
    if not found:
        return None
    sends, receives = _sends(found), _receives(found)
    _check_ranks(world, sends, "send", "a rank that no address reaches")
    _check_ranks(world, receives, "receive", "a rank that no address reaches")
    taken = _pair(world, sends, receives)
    _check_pairs(sends, receives, taken)
    source = _memory(world, sends.image, sends.source, sends.size, sends.offset, "network_send source")
    target = _memory(world, receives.image, receives.target, receives.size, receives.offset, "network_receive target")
    semaphore = _signalled(world, receives)
    operations = _operations(world, controls, found)
    return Hops(
        operations=operations,
        operation=owners(operations.send),
        receiver=sends.peer,
        leads=np.concatenate([each.records.sends.follows for each in found]) == 0,
        source=source,
        target=target[taken],
        size=sends.size,
        semaphore=semaphore[taken],
        value=sends.value,
        offset=sends.offset,
    )


def given_and_taken(hops: Hops | None, semaphores: int) -> tuple[I64, I64]:
    """Return what receive proxies add to each semaphore, and what send proxies take from it."""
    given, taken = np.zeros((2, semaphores), np.int64)
    if hops is not None:
        row, k = np.nonzero(hops.semaphore != NOWHERE)
        np.add.at(given, hops.semaphore[row, k], hops.value[row, k])
        np.add.at(taken, hops.operations.handshake, hops.taken)
    return given, taken


# --- sections ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Section:
    """The records of one stream processor."""

    image: int
    sp: int
    start: int  # of the section in the file
    records: NetworkSection


def _places(world: World) -> Iterator[tuple[int, int, Part]]:
    for i, image in enumerate(world.images):
        for (kind, sp), part in image.parts.items():
            if kind is Section.NETWORK:
                yield i, sp, part


def _section(world: World, image: int, sp: int, part: Part) -> _Section:
    with of_rank(image):
        try:
            records = decode_network(part.data)
        except DecodeError as error:
            at = part.offset + error.offset
            raise DecodeError(error.what, offset=at, expected=error.expected, got=error.got) from None
        entry = records.operations.entry
        offset = part.offset + SECTION_HEADER.size + OPERATION.size * np.arange(entry.size)
        most = world.images[0].operations
        refuse(entry >= most, offset, "network_operation", f"a control entry below {most}", entry)
    return _Section(image, sp, part.offset, records)


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """Sends or receives of all images, section by section, as their records say.

    Attributes:
        image, sp, entry, channel: whose they are. peer: the other rank.
        unit, credits, element_size: of the operation.
        source, value: of sends; empty for receives.
        target, semaphore: addresses as the receiver sees them, the latter of shape (transfers, 2).
        offset: of the entry in the file of its rank.
    """

    image: I64
    sp: I64
    entry: I64
    channel: I64
    peer: I64
    unit: I64
    credits: I64
    element_size: I64
    source: U64
    target: U64
    size: I64
    semaphore: U64
    value: I64
    offset: I64


def _sends(found: list[_Section]) -> _Side:
    parts = []
    for each in found:
        records = each.records
        of = records.send_operation
        start = each.start + SECTION_HEADER.size + OPERATION.size * records.operations.entry.size
        place = np.arange(of.size) + of  # one terminator for each operation before
        sends = records.sends
        value = np.stack([sends.value_0, sends.value_1], axis=1).astype(np.int64)
        semaphore = np.stack([sends.semaphore_0, sends.semaphore_1], axis=1)
        own = _of_operation(each, of)
        moved = (sends.source, sends.target, sends.size, semaphore, value)
        parts.append((*own[:4], sends.rank, *own[4:], *moved, start + SEND.size * place))
    return _side(parts)


def _receives(found: list[_Section]) -> _Side:
    parts = []
    for each in found:
        records = each.records
        of = records.receive_operation
        count = records.operations.entry.size
        start = each.start + SECTION_HEADER.size + (OPERATION.size + SEND.size) * count
        start += SEND.size * records.sends.rank.size
        place = np.arange(of.size) + of
        receives = records.receives
        semaphore = np.stack([receives.semaphore_0, receives.semaphore_1], axis=1)
        none = np.zeros(of.size, np.uint64)
        value = np.zeros((of.size, ENTRY_SIGNALS), np.int64)
        own = _of_operation(each, of)
        moved = (none, receives.target, receives.size, semaphore, value)
        parts.append((*own[:4], receives.rank, *own[4:], *moved, start + RECEIVE.size * place))
    return _side(parts)


def _of_operation(section: _Section, of: I64) -> tuple[I64, ...]:
    """Return image, processor, entry, channel, unit, credits and element size of transfers by their operation."""
    table = section.records.operations
    image, sp = np.full(of.size, section.image), np.full(of.size, section.sp)
    unit = table.steps << table.shift
    return image, sp, *(column[of] for column in (table.entry, table.channel, unit, table.credits, table.element_size))


def _side(parts: list[tuple[Array, ...]]) -> _Side:
    return _Side(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _operations(world: World, controls: Controls, found: list[_Section]) -> Operations:
    """Return the operations that send, each for an active control entry and with a handshake of its processor."""
    columns = []
    for each in found:
        table = each.records.operations
        chosen = np.flatnonzero(table.sends > 0)
        offset = each.start + SECTION_HEADER.size + OPERATION.size * chosen
        image, sp = np.full(chosen.size, each.image), np.full(chosen.size, each.sp)
        unit = table.steps << table.shift
        columns.append((image, sp, *(c[chosen] for c in (
            table.entry, table.channel, table.sends, table.handshake, unit, table.credits)), offset))  # fmt: skip
    image, sp, entry, channel, sends, handshake, unit, credits, offset = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    processor = image * world.sps + sp
    idle = ~controls.active[processor, entry]
    refuse(idle, offset, "network_operation", "a control entry in which its processor works", entry, image=image)
    at = offset + next(each.at for each in OPERATION.fields if each.name == "send_handshake")
    flat = semaphores_at(world, image, handshake, Window.READ, at, "network_operation send_handshake")
    foreign = (flat // SEMAPHORES != processor) | ~_free(flat)
    expected = f"a semaphore of its processor from {FIRST_FREE} to {LAST_FREE}"
    refuse(foreign, at, "network_operation send_handshake", expected, handshake, image=image)
    return Operations(image, sp, entry, channel, pointers(sends), flat, unit, credits, offset)


# --- pairs ------------------------------------------------------------------------------------------------------------


def _check_ranks(world: World, side: _Side, what: str, expected: str) -> None:
    """A proxy is for ranks of another span; the others have addresses."""
    known = side.peer < len(world.images)
    span = world.span[np.where(known, side.peer, 0)]
    bad = ~known | (span == world.span[side.image])
    refuse(bad, side.offset, f"network_{what} rank", expected, side.peer, image=side.image)


def _pair(world: World, sends: _Side, receives: _Side) -> I64:
    """Return the receive of each send: the k-th from one rank for one operation is of the k-th that goes there."""
    ranks = len(world.images)

    def key(side: _Side, sender: I64, receiver: I64) -> I64:
        operation = (side.sp * world.images[0].operations + side.entry) * PROXY_QUEUE + side.channel
        return (operation * ranks + receiver) * ranks + sender

    sent, taken = key(sends, sends.image, sends.peer), key(receives, receives.peer, receives.image)
    keys, place = np.unique(np.concatenate((sent, taken)), return_inverse=True)
    sent, taken = place[: sent.size], place[sent.size :]
    there = np.bincount(taken, minlength=keys.size)[sent] <= running_count(sent)
    lost = np.bincount(sent, minlength=keys.size)[taken] <= running_count(taken)
    refuse(there, sends.offset, "network_send", "a receive entry of the rank it goes to", sends.peer, image=sends.image)
    expected = "a send entry of the rank it comes from"
    refuse(lost, receives.offset, "network_receive", expected, receives.peer, image=receives.image)
    out = np.empty(sent.size, np.int64)
    out[np.argsort(sent, kind="stable")] = np.argsort(taken, kind="stable")
    return out


def _check_pairs(sends: _Side, receives: _Side, taken: I64) -> None:
    """Both sides say the same of one transfer, and of its operation."""
    for name in ("size", "target", "unit", "credits", "element_size"):
        mine, other = getattr(sends, name), getattr(receives, name)[taken]
        expected = f"the {name.replace('_', ' ')} of its receive entry"
        refuse(mine != other, sends.offset, "network_send", expected, mine, image=sends.image)
    for k in range(ENTRY_SIGNALS):
        mine, other = sends.semaphore[:, k], receives.semaphore[taken, k]
        refuse(
            mine != other, sends.offset, "network_send", "the semaphores of its receive entry", mine, image=sends.image
        )


def _memory(world: World, image: I64, address: U64, size: I64, offset: I64, what: str) -> I64:
    """Return the flat bytes of the data of transfers, which lie in one declared buffer of their own rank."""
    out = np.full(image.size, NOWHERE, np.int64)
    chosen = np.flatnonzero(size > 0)
    image, address, size, offset = image[chosen], address[chosen], size[chosen], offset[chosen]
    places = resolve(world, image, address, offset, what)
    refuse(~places.memory | (places.image != image), offset, what, "memory of its own rank", address, image=image)
    flat = world.memory_base[places.image] + places.offset
    at = np.searchsorted(world.buffer_start, flat, side="right") - 1
    outside = (at < 0) | (size > world.buffer_end[np.maximum(at, 0)] - flat)
    outside |= size > world.memory_size[places.image] - places.offset
    refuse(outside, offset, what, "bytes inside one declared buffer", address, image=image)
    out[chosen] = flat
    return out


def _signalled(world: World, receives: _Side) -> I64:
    """Return the flat semaphores that receives signal, which are of their own rank and free."""
    out = np.full(receives.semaphore.shape, NOWHERE, np.int64)
    row, k = np.nonzero(receives.semaphore)
    image, address, offset = receives.image[row], receives.semaphore[row, k], receives.offset[row]
    flat = semaphores_at(world, image, address, Window.INC, offset, "network_receive semaphore")
    foreign = (flat // (world.sps * SEMAPHORES) != image) | ~_free(flat)
    expected = f"a semaphore of its own rank from {FIRST_FREE} to {LAST_FREE}"
    refuse(foreign, offset, "network_receive semaphore", expected, address, image=image)
    out[row, k] = flat
    return out


def _free(flat: I64) -> Bool:
    found: Bool = (flat % SEMAPHORES >= FIRST_FREE) & (flat % SEMAPHORES <= LAST_FREE)
    return found
