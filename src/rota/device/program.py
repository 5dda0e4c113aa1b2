"""Stream processors' programs as columns: channels, and the rows each walks. Nothing here runs.

Slot programs are expanded and held against the descriptors they launch; what a processor says is `records`, what rows
must look like `checks`. Source: device-model §4, §7, conventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Array, Bool, freeze_columns, pointers
from rota.device.dma import Items
from rota.device.load import Image, of_rank
from rota.device.records import Channel, Processor, read_processor
from rota.device.world import World
from rota.errors import DecodeError
from rota.isa.enums import Pattern
from rota.isa.image import HEADER, SLOTS_PER_SP, Section
from rota.isa.ring_cursor import GUARD
from rota.isa.semaphores import SEMAPHORES, Reserved
from rota.isa.spad import SlotFlag


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """One entry per ring channel of every rank."""

    image: I64
    identity: I64
    folds: I64
    next_folds: I64
    prev_folds: I64
    next_type: I64  # NeighbourType
    prev_type: I64
    recv: I64  # flat semaphores
    send: I64
    compl: I64
    row: I64  # first row; its rows end where the next channel's begin
    offset: I64  # of its record in the file of its rank

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """One entry per expanded slot row."""

    channel: I64
    receives: Bool
    sends: Bool
    items: I64  # destination descriptors on each fold

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Everything the processors of all ranks do.

    Attributes:
        item: first item of each row on each fold, shape (rows, folds).
    """

    channels: Channels
    rows: DeviceRows
    item: I64
    processors: tuple[Processor, ...]


def decode_program(world: World, items: Items) -> Program:
    """Read the programs of all images. That the rows are ones an emitter could mean, `checks` sees.

    Raises:
        DecodeError: tables that contradict each other or the descriptors.
    """
    section = {place: i for i, place in enumerate(items.sections)}
    found: list[Channel] = []
    processors: list[Processor] = []
    tables: list[_Expanded] = []
    for index, image in enumerate(world.images):
        with of_rank(index):
            pairs = [read_processor(world, index, sp=sp) for sp in range(world.sps)]
            own = [processor for processor, _ in pairs]
            channels = [channel for _, some in pairs for channel in some]
            _check_loaded(image, channels, {place for i, place in items.sections if i == index})
            _check_reporter(world, image, index, own, channels)
            most = image.ring_size - GUARD
            tables += [_expand(items, [section[index, place] for place in c.places], c, most=most) for c in channels]
        processors += own
        found += channels
    return _columns(found, tables, tuple(processors))


def fold_rows(program: Program, items: Items) -> I64:
    """Return, for each item, its row and fold as one number: row x folds + fold."""
    folds = program.item.shape[1]
    out = np.empty(items.kind.size, np.int64)
    flat = program.item.ravel()
    count = np.repeat(program.rows.items, folds)
    index = np.arange(int(count.sum())) - np.repeat(pointers(count)[:-1], count)
    out[np.repeat(flat, count) + index] = np.repeat(np.arange(flat.size), count)
    return out


def walk(program: Program) -> Iterator[Processor]:
    """Yield the processors in the order in which they complete: rank by rank, ascending."""
    yield from (p for p in program.processors if p.control.pattern is Pattern.RING)


def _check_loaded(image: Image, channels: list[Channel], rings: set[int]) -> None:
    """Every ring and slot program in the file belongs to one channel."""
    used = [place for channel in channels for place in channel.places]
    if sorted(used) != sorted(rings):
        raise DecodeError(
            "section table",
            offset=HEADER.size,
            expected=f"the rings of its channels, {sorted(used)}",
            got=f"{sorted(rings)}",
        )
    slots = {channel.sp * SLOTS_PER_SP + channel.record["spad_slot_idx"] for channel in channels}
    for (kind, index), part in image.parts.items():
        if kind is Section.SLOT and index not in slots:
            raise DecodeError(
                "image section", offset=part.entry, expected="a slot program of a channel", got=f"SLOT {index}"
            )


def _check_reporter(
    world: World, image: Image, index: int, processors: list[Processor], channels: list[Channel]
) -> None:
    """The processors that take part complete in ascending order; the highest reports, on its own semaphore."""
    active = [p for p in processors if p.control.pattern is Pattern.RING]
    if not active:
        offset = image.part(Section.CTRL, 0).offset
        raise DecodeError("control tables", offset=offset, expected="a processor that takes part", got="none")
    for i, p in enumerate(active):
        last = i == len(active) - 1
        chained = p.complete // SEMAPHORES % world.sps == active[i + 1].sp if not last else p.complete == -1
        if (p.control.reporter, p.control.ring_wait_complete, p.control.ring_send_complete) != (last, i > 0, not last):
            raise DecodeError(
                f"control entry of TOP_SP {p.sp}",
                offset=image.part(Section.CTRL, p.sp).offset,
                expected="completion in ascending order, reported by the highest",
                got=str(p.control),
            )
        if not chained:
            raise DecodeError(
                f"program block of TOP_SP {p.sp} complete",
                offset=image.part(Section.CONF, p.sp).offset,
                expected=f"complete_prev of TOP_SP {active[i + 1].sp}",
                got=f"semaphore {p.complete}",
            )
    post = (index * world.sps + active[-1].sp) * SEMAPHORES + Reserved.COMPLETION
    for channel in channels:
        if channel.posts != ((post, 1),):
            raise DecodeError(
                "completion address",
                offset=channel.slot_offset,
                expected=f"the completion semaphore of the reporter, TOP_SP {active[-1].sp}",
                got=str(channel.posts),
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Expanded:
    """The rows of one channel."""

    s2m: I64
    flags: Array
    item: I64  # shape (rows, folds)


def _expand(items: Items, sections: list[int], channel: Channel, *, most: int) -> _Expanded:
    """Expand a slot program; its rows launch exactly the descriptors that are there, whole packets on every fold.

    Args:
        most: descriptors of one row that a hardware ring holds.
    """
    entries = channel.entries
    repeat = entries["repeat"].astype(np.int64)
    what = f"slot program of channel {channel.record['channel_id']}"
    total = int((entries["s2m_val"] * repeat).sum()), int((entries["m2s_val"] * repeat).sum())
    for i in sections:
        first, last = int(items.section_ptr[i]), int(items.section_ptr[i + 1])
        there = last - first, int(items.source_ptr[last] - items.source_ptr[first])
        if there != total:
            expected = f"{there[0]} writing and {there[1]} reading descriptors on each fold"
            raise DecodeError(what, offset=channel.slot_offset, expected=expected, got=f"{total[0]} and {total[1]}")
    longest = int(entries["m2s_val"].max())
    if longest > most:
        raise DecodeError(what, offset=channel.slot_offset, expected=f"rows of at most {most}", got=str(longest))
    s2m = np.repeat(entries["s2m_val"].astype(np.int64), repeat)
    m2s = np.repeat(entries["m2s_val"].astype(np.int64), repeat)
    item = items.section_ptr[sections][None, :] + pointers(s2m)[:-1, None]
    base = items.source_ptr[items.section_ptr[sections]]
    if (items.source_ptr[item] - base != pointers(m2s)[:-1, None]).any():
        raise DecodeError(
            what, offset=channel.slot_offset, expected="rows that launch whole packets", got="a row that ends inside"
        )
    return _Expanded(s2m, np.repeat(entries["flags"], repeat), item)


def _columns(found: list[Channel], tables: list[_Expanded], processors: tuple[Processor, ...]) -> Program:
    counts = [table.s2m.size for table in tables]
    flags = np.concatenate([table.flags for table in tables])

    def column(name: str) -> I64:
        return np.array([channel.record[name] for channel in found], np.int64)

    channels = Channels(
        image=np.array([channel.image for channel in found], np.int64),
        identity=column("channel_id"),
        folds=column("fold_n"),
        next_folds=column("next_fold_n"),
        prev_folds=column("prev_fold_n"),
        next_type=column("next_type"),
        prev_type=column("prev_type"),
        recv=np.array([channel.semaphores[0] for channel in found], np.int64),
        send=np.array([channel.semaphores[1] for channel in found], np.int64),
        compl=np.array([channel.semaphores[3] for channel in found], np.int64),
        row=pointers(np.array(counts, np.int64))[:-1],
        offset=np.array([channel.offset for channel in found], np.int64),
    )
    rows = DeviceRows(
        channel=np.repeat(np.arange(len(found)), counts),
        receives=(flags & SlotFlag.NO_RECEIVE) == 0,
        sends=(flags & SlotFlag.NO_SEND) == 0,
        items=np.concatenate([table.s2m for table in tables]),
    )
    return Program(channels, rows, np.concatenate([table.item for table in tables]), processors)
