"""What one stream processor of one image says: control entry, program block, ring channel records, slot programs.

Each is read and held against the others and against what the conventions leave no choice about. The descriptors these
launch are `dma`, the rows they expand to `program`. Source: device-model §4 and §7, conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import Array
from rota.device.load import Part
from rota.device.world import World, resolve, semaphore_index
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL, NeighbourType
from rota.isa.enums import Algorithm, Pattern
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.semaphores import FIRST_FREE, SEMAPHORES, STRIDE, Reserved, Window
from rota.isa.spad import (
    CONTINUE,
    END_TAG,
    ENTRY_SIZE,
    SLOT,
    Control,
    SlotFlag,
    algo_type,
    control_base,
    slot_bases,
    unpack_control,
    unpack_end,
)

ROLES: Final = ("recv_sema", "send_sema", "post_sema", "dma_compl_sema")
"""Semaphores of a channel in the order in which they take ids. Source: device-model §4, convention."""
COMPLETIONS: Final = 1  # addresses behind an END mark


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring channel of one rank.

    Attributes:
        offset: of its record in the file; slot_offset: of its slot program.
        semaphores: flat, in the order of ROLES.
        places: engine x 16 + queue of each fold.
        entries: slot entries, without the mark.
        posts: (flat semaphore, value) pairs of its END mark.
    """

    image: int
    sp: int
    record: Mapping[str, int]
    offset: int
    slot_offset: int
    semaphores: tuple[int, ...]
    places: tuple[int, ...]
    entries: Array
    posts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Processor:
    """One stream processor of a rank in the operation: its control entry and what it posts.

    Attributes:
        complete: flat semaphore incremented when it is done; -1 for none.
        posts: (flat semaphore, value) the reporter adds; empty for the others.
    """

    image: int
    sp: int
    control: Control
    complete: int
    posts: tuple[tuple[int, int], ...]


def read_processor(world: World, index: int, *, sp: int) -> tuple[Processor, list[Channel]]:
    """Read what an image says about one of its rank's stream processors.

    Raises:
        DecodeError: tables that contradict each other.
    """
    image = world.images[index]
    control = _control(image.part(Section.CTRL, sp))
    conf = image.part(Section.CONF, sp)
    layout = CONFIGURATIONS[image.arch.name]
    ring_at, program = layout.part("ring").at, layout.part("program")
    ids = [bit for bit in range(32) if control.channel_list >> bit & 1]
    places = [ring_at + channel * RING_CHANNEL.size for channel in ids]
    records = [RING_CHANNEL.decode(conf.data, at) for at in places]
    _check_rest(conf, places, program.at)
    complete = _check_block(world, index, sp, control, conf.offset + program.at, records)
    channels = [
        _channel(world, index, sp, k, channel, records[k], conf.offset + places[k]) for k, channel in enumerate(ids)
    ]
    posts = channels[0].posts if channels and control.reporter else ()
    return Processor(index, sp, control, complete, posts), channels


def _control(part: Part) -> Control:
    try:
        control = unpack_control(part.data)
    except DecodeError as error:
        raise _shifted(error, part.offset) from None
    if control == Control(pattern=Pattern.INVALID):
        return control
    plain = (control.algo_sub_type, control.trigger_next, control.safe_mode, control.unique_tensors)
    if control.algo_type != algo_type(Algorithm.RING) or any(plain) or not control.channel_list:
        got = bytes(part.data).hex(" ")
        raise DecodeError(
            "control entry", offset=part.offset, expected="a plain RING entry with channels, or none", got=got
        )
    return control


def _check_rest(conf: Part, records: list[int], program_at: int) -> None:
    """Everything but the live channel records and the program block is zero, and these name no reserved byte."""
    rest = bytearray(conf.data)
    for layout, at in [*((RING_CHANNEL, at) for at in records), (PROGRAM_BLOCK, program_at)]:
        stray = layout.reserved(bytes(rest[at : at + layout.size]))
        if stray is not None:
            raise DecodeError(
                layout.name, offset=conf.offset + at + stray, expected="reserved bits 0", got=hex(rest[at + stray])
            )
        rest[at : at + layout.size] = bytes(layout.size)
    if any(rest):
        at = next(i for i, value in enumerate(rest) if value)
        raise DecodeError(
            "configuration", offset=conf.offset + at, expected="0 in what no channel uses", got=hex(rest[at])
        )


def _check_block(
    world: World, index: int, sp: int, control: Control, offset: int, records: list[dict[str, int]]
) -> int:
    """Recompute the program block; return the flat semaphore that completion is passed to, or -1."""
    image = world.images[index]
    conf = image.part(Section.CONF, sp)
    block = PROGRAM_BLOCK.decode(conf.data, offset - conf.offset)
    own = image.arch.semaphores(image.lane * world.sps + sp)
    address = block["complete"]
    if (address != 0) != control.ring_send_complete:
        raise DecodeError(
            "program block", offset=offset, expected="`complete` exactly where it is used", got=hex(address)
        )
    first = image.arch.doorbell(image.lane * world.lnc, 0, receive=False)
    pairs = [n for record in records for n in (record["m2s_tail_ptr"] - first >> isa.QUEUE_SHIFT, record["mask"])]
    want = {
        **{f"dma_alloc_bitmap[{i}]": value for i, value in enumerate(pairs)},
        **{f"slot_spad_base[{i}]": address for i, address in enumerate(slot_bases(own))},
        "ctrl_spad_base": control_base(own),
        "trigger": own + Window.READ + STRIDE * Reserved.TRIGGER,
        "trigger_next": own + Window.INC + STRIDE * Reserved.TRIGGER,
        "complete": address,
        "complete_prev": own + Window.READ + STRIDE * Reserved.COMPLETE_PREV,
        "op_num": image.operations,
        "function_n": 1,
        "tpb_compl_addr_num": COMPLETIONS,
        "leader": int(control.reporter),
    }
    for name, value in block.items():
        if value != want.get(name, 0):
            raise DecodeError(f"program block {name}", offset=offset, expected=hex(want.get(name, 0)), got=hex(value))
    if not address:
        return -1
    complete = _semaphore(world, index, address, Window.INC, offset, "program block complete")
    next_sp, identity = divmod(complete - index * world.sps * SEMAPHORES, SEMAPHORES)
    if identity != Reserved.COMPLETE_PREV or not sp < next_sp < world.sps:
        raise DecodeError(
            "program block complete",
            offset=offset,
            expected="complete_prev of a higher processor",
            got=hex(address),
        )
    return complete


def _channel(
    world: World, index: int, sp: int, k: int, channel: int, record: Mapping[str, int], offset: int
) -> Channel:
    """Read the k-th channel of a processor."""
    image = world.images[index]
    queue = channel % isa.QUEUES
    engines = [engine for engine in range(isa.ENGINES) if record["mask"] >> engine & 1]
    folds = record["fold_n"] == image.folds == len(engines) == record["mask"].bit_count()
    want = {
        "channel_id": channel,
        "spad_slot_idx": k,
        "fold_n": image.folds,
        "next_fold_n": image.folds,
        "prev_fold_n": image.folds,
        "m2s_tail_ptr": image.arch.doorbell(image.lane * world.lnc, queue, receive=False),
        "s2m_tail_ptr": image.arch.doorbell(image.lane * world.lnc, queue, receive=True),
    }
    unused = [name for name in record if "kangaring" in name or "network_index" in name]
    laws = (
        *((name, record[name] == value, hex(value)) for name, value in want.items()),
        ("mask", folds, f"one engine for each of {image.folds} folds"),
        ("next_type", record["next_type"] <= NeighbourType.POINT_TO_POINT, "0 or 1"),
        ("prev_type", record["prev_type"] <= NeighbourType.POINT_TO_POINT, "0 or 1"),
        *((name, record[name] == 0, "0 on a plain ring inside a node") for name in unused),
    )
    for name, holds, expected in laws:
        if not holds:
            raise DecodeError(f"ring channel {channel} {name}", offset=offset, expected=expected, got=hex(record[name]))
    semaphores = tuple(_semaphore(world, index, record[name], Window.READ, offset, name) for name in ROLES)
    ids = [flat - (index * world.sps + sp) * SEMAPHORES for flat in semaphores]
    first = FIRST_FREE + k * len(ROLES)
    if ids != [*range(first, first + len(ROLES))]:
        expected = f"semaphores {first} to {first + len(ROLES) - 1} of its own processor"
        raise DecodeError(f"ring channel {channel}", offset=offset, expected=expected, got=str(ids))
    part = image.part(Section.SLOT, sp * SLOTS_PER_SP + k)
    entries, posts = _slot(world, index, part, f"slot program {k} of TOP_SP {sp}")
    places = tuple(engine * isa.QUEUES + queue for engine in engines)
    return Channel(index, sp, record, offset, part.offset, semaphores, places, entries, posts)


def _semaphore(world: World, index: int, address: int, window: Window, offset: int, what: str) -> int:
    at = np.array([offset], np.int64)
    places = resolve(world, index, np.array([address], np.uint64), at, what)
    return int(semaphore_index(world, places, window, at, what)[0])


def _slot(world: World, index: int, part: Part, what: str) -> tuple[Array, tuple[tuple[int, int], ...]]:
    """Read a slot program up to its END mark: its entries, and what the mark posts."""
    raw = np.frombuffer(part.data, "<u8")
    ends = np.flatnonzero(raw >> np.uint64(48) == END_TAG)
    if not ends.size or (raw[: ends[0]] == CONTINUE).any():
        raise DecodeError(what, offset=part.offset, expected="rows and an END mark", got="no END, or a CONTINUE mark")
    end = int(ends[0]) * ENTRY_SIZE
    try:
        value, targets = unpack_end(part.data, offset=end, count=COMPLETIONS)
    except DecodeError as error:
        raise _shifted(error, part.offset) from None
    if len(part.data) != end + ENTRY_SIZE * (1 + COMPLETIONS) or value != 1 or not end:
        expected = f"an END mark of value 1 with {COMPLETIONS} address behind the rows"
        raise DecodeError(what, offset=part.offset + end, expected=expected, got=f"value {value}")
    entries = SLOT.columns(part.data[:end])
    known = np.uint8(SlotFlag.LAST_ROW | SlotFlag.NO_RECEIVE | SlotFlag.NO_SEND)
    final = np.arange(entries.size) == entries.size - 1
    stray = SLOT.reserved(part.data[:end])
    bad = (entries["flags"] & ~known) != 0
    bad |= ((entries["flags"] & SlotFlag.LAST_ROW) != 0) != final
    bad |= (entries["repeat"] == 0) | (final & (entries["repeat"] != 1))
    bad |= (entries["s2m_val"] == 0) | (entries["m2s_val"] < entries["s2m_val"])
    if stray is not None:
        bad[stray // ENTRY_SIZE] = True
    if bad.any():
        at = int(np.argmax(bad)) * ENTRY_SIZE
        got = bytes(part.data[at : at + ENTRY_SIZE]).hex(" ")
        raise DecodeError(
            what, offset=part.offset + at, expected="rows that repeat, only the last marked, and that once", got=got
        )
    flat = tuple(_semaphore(world, index, t, Window.INC, part.offset + end, "completion address") for t in targets)
    return entries, tuple((semaphore, value) for semaphore in flat)


def _shifted(error: DecodeError, offset: int) -> DecodeError:
    return DecodeError(error.what, offset=offset + error.offset, expected=error.expected, got=error.got)
