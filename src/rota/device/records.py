"""Scratchpad and configuration of all stream processors on top of each other, one row a processor.

Control entries become columns here; ring records are `rings`, event records `mesh`, program blocks `blocks`, slot
programs `machines`. Everything is read for all processors of all ranks at once. Source: device-model §4 and §7,
conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, U8, Array, Bool, owners, pointers
from rota.device.load import of_rank
from rota.device.world import World, refuse
from rota.errors import DecodeError
from rota.isa.config import CONFIGURATIONS, Configuration
from rota.isa.enums import MeshType, Pattern
from rota.isa.image import Section
from rota.isa.layout import Layout
from rota.isa.semaphores import PARITIES
from rota.isa.spad import CONTROL_MESH, CONTROL_RING, ENTRY_SIZE, PATTERN_OF_ALGORITHM

_ALGORITHMS: Final = 16  # values of the four bits


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The sections of one kind, one a processor: their bytes, shape (processors, bytes), and where they start.

    Attributes:
        image: of each processor.
    """

    data: U8
    image: I64
    offset: I64


def stack(world: World, kind: Section) -> Stack:
    """Return the control tables or the configurations of all processors; all have one size."""
    parts = [image.part(kind, sp) for image in world.images for sp in range(world.sps)]
    data = np.frombuffer(b"".join(part.data for part in parts), np.uint8).reshape(len(parts), -1)
    image = np.repeat(np.arange(len(world.images)), world.sps)
    return Stack(data, image, np.array([part.offset for part in parts], np.int64))


def unnamed_bits(layout: Layout) -> U8:
    """Return the bits that no field of a record names, as a mask of its bytes."""
    named = 0
    for each in layout.fields:
        for _, place in each.places():
            named |= ((1 << place.width) - 1) << (8 * place.start + place.low)
    mask = ~named & ((1 << 8 * layout.size) - 1)
    return np.frombuffer(mask.to_bytes(layout.size, "little"), np.uint8)


def refuse_bytes(bad: Bool, records: U8, image: I64, offset: I64, what: str, expected: str) -> None:
    """Raise DecodeError for the first bad byte of the first record that has one, if there is one.

    Args:
        bad: shape (records, bytes of one), as `records`.
        image, offset: of each record.
    """
    rows = bad.any(axis=1)
    if rows.any():
        row = int(np.argmax(rows))
        at = int(np.argmax(bad[row]))
        with of_rank(int(image[row])):
            got = hex(int(records[row, at]))
            raise DecodeError(what, offset=int(offset[row]) + at, expected=expected, got=got)


@dataclass(frozen=True, slots=True, eq=False)
class Controls:
    """The control tables, shape (processors, entries).

    Attributes:
        ring, mesh: what kind of active entry it is; neither for one of no part.
        channels: channel_list of a ring. first_event, shift, mask: of a mesh.
        raw: the eight bytes as a number.
    """

    ring: Bool
    mesh: Bool
    algorithm: I64
    sub_type: I64
    trigger_next: Bool
    reporter: Bool
    wait_complete: Bool
    send_complete: Bool
    flags: I64  # safe_mode and unique_tensors
    channels: I64
    first_event: I64
    shift: I64
    mask: I64
    raw: Array
    image: I64  # of each processor
    offset: I64

    @property
    def active(self) -> Bool:
        """The processor takes part."""
        return self.ring | self.mesh

    @property
    def chain(self) -> I64:
        """Chain of each entry."""
        ends = ~self.trigger_next[0]
        found: I64 = np.cumsum(ends) - ends
        return found

    @property
    def entries(self) -> int:
        """Entries of every control table."""
        return int(self.ring.shape[1])


def read_controls(world: World) -> Controls:
    """Read the control tables of all processors.

    Raises:
        DecodeError: an entry that means nothing, or entries of one operation that do not go together.
    """
    table = stack(world, Section.CTRL)
    shape = (table.image.size, world.images[0].operations)
    offset = table.offset[:, None] + ENTRY_SIZE * np.arange(shape[1])
    ring_view = table.data.reshape(-1).view(CONTROL_RING.dtype).reshape(shape)
    mesh_view = table.data.reshape(-1).view(CONTROL_MESH.dtype).reshape(shape)

    def ring(name: str) -> I64:
        return CONTROL_RING.column(ring_view, name).astype(np.int64)

    def mesh(name: str) -> I64:
        return CONTROL_MESH.column(mesh_view, name).astype(np.int64)

    active = ring("cc_op") == 1
    pattern = np.full(_ALGORITHMS, -1, np.int64)
    for each, form in PATTERN_OF_ALGORITHM.items():
        pattern[each] = form
    kind = np.where(active, pattern[ring("algo_type")], int(Pattern.INVALID))
    controls = Controls(
        ring=kind == Pattern.RING,
        mesh=kind == Pattern.MESH,
        algorithm=ring("algo_type"),
        sub_type=ring("algo_sub_type"),
        trigger_next=ring("trigger_next") == 1,
        reporter=ring("reporter") == 1,
        wait_complete=ring("ring_wait_complete") == 1,
        send_complete=ring("ring_send_complete") == 1,
        flags=ring("safe_mode") | ring("unique_tensors") << 1,
        channels=np.where(kind == Pattern.RING, ring("channel_list"), 0),
        first_event=mesh("first_event"),
        shift=mesh("sema_shift_offset"),
        mask=mesh("sema_mask"),
        raw=table.data.reshape(-1).view("<u8").reshape(shape),
        image=table.image,
        offset=offset,
    )
    _check_spelling(controls, kind, table.data.reshape(*shape, ENTRY_SIZE))
    _check_together(world, controls)
    return controls


def _check_spelling(controls: Controls, kind: I64, data: U8) -> None:
    """Every entry is one of the three kinds, with nothing set that its kind has not."""
    image = np.repeat(controls.image, controls.entries)
    offset, raw = controls.offset.ravel(), controls.raw.ravel()

    def law(bad: Bool, expected: str) -> None:
        refuse(bad.ravel(), offset, "control entry", expected, raw, image=image)

    law(kind < 0, "an algorithm")
    idle = ~controls.active & ((controls.raw & ~np.uint64(1 << 15)) != 0)
    law(idle, "nothing set but trigger_next where nothing is done")
    records = data.reshape(-1, ENTRY_SIZE)
    for layout, there in ((CONTROL_RING, controls.ring), (CONTROL_MESH, controls.mesh)):
        stray = (records & unnamed_bits(layout)) != 0
        refuse_bytes(stray & there.reshape(-1, 1), records, image, offset, "control entry", "reserved bits 0")
    law(controls.ring & (controls.channels == 0), "channels of a ring")
    law(controls.ring & (controls.sub_type != 0), "no sub type of a ring")
    law(controls.mesh & (controls.sub_type >= MeshType.INVALID), "a kind of mesh")
    parity = np.zeros(controls.ring.shape, np.bool_)
    for each in PARITIES:
        parity |= (controls.shift == each.shift) & (controls.mask == each.mask)
    law(controls.mesh & ~parity, "the shift and the mask of even or of odd operations")


def _check_together(world: World, controls: Controls) -> None:
    """Entries of one number agree about the chain on all processors."""
    image = np.repeat(controls.image, controls.entries)
    offset, raw = controls.offset.ravel(), controls.raw.ravel()
    law = controls.trigger_next != controls.trigger_next[:1]
    law[:, -1] |= controls.trigger_next[:, -1]
    expected = "the same entries chained on every processor, and the last one not"
    refuse(law.ravel(), offset, "control entry", expected, raw, image=image)
    chains = np.count_nonzero(~controls.trigger_next[0])
    first = world.images[0]
    if first.chains != chains:
        raise DecodeError(
            "image of rank 0: image META chains",
            offset=first.part(Section.META, 0).offset,
            expected=f"{chains}, as the control tables have",
            got=str(first.chains),
        )


def configuration(world: World) -> Configuration:
    """Return where which records of a configuration stand."""
    return CONFIGURATIONS[world.arch.name]


def records_of(table: Stack, layout: Configuration, name: str) -> tuple[Array, U8, I64]:
    """Return a part of all configurations: as records, shape (processors, records), as bytes, and their offsets."""
    part = layout.part(name)
    data = np.ascontiguousarray(table.data[:, part.at : part.end]).reshape(table.image.size, part.count, -1)
    offset = table.offset[:, None] + part.at + part.layout.size * np.arange(part.count)
    return data.reshape(-1).view(part.layout.dtype).reshape(data.shape[:2]), data, offset


def check_unused(table: Stack, layout: Configuration, name: str, used: Bool) -> None:
    """Refuse a record of a part with a bit set that no field names, or any where the record is not used.

    Args:
        used: shape (processors, records).

    Raises:
        DecodeError: there is one.
    """
    _, data, offset = records_of(table, layout, name)
    part = layout.part(name)
    records = data.reshape(-1, part.layout.size)
    image, at = np.repeat(table.image, part.count), offset.ravel()
    there = used.reshape(-1, 1)
    refuse_bytes((records != 0) & ~there, records, image, at, "configuration", "0 in what nothing uses")
    stray = (records & unnamed_bits(part.layout)) != 0
    refuse_bytes(stray & there, records, image, at, part.layout.name, "reserved bits 0")


def bits_of(masks: I64, width: int) -> tuple[I64, I64]:
    """Return the set bits of each mask, ascending: which mask, and which bit."""
    row, bit = np.nonzero(masks[:, None] >> np.arange(width) & 1)
    return row, bit


def segments(counts: I64) -> tuple[I64, I64]:
    """Return, for lists of these lengths behind each other, whose each element is and its place in its list."""
    ptr = pointers(counts)
    owner = owners(ptr)
    return owner, np.arange(owner.size) - ptr[owner]
