"""Stream processors' programs as columns: channels, and the rows each walks. Nothing here runs.

Control tables, ring channel records, program blocks and slot programs are read and held against each other and against
the descriptors they launch. Source: device-model §4, §7, conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, freeze_columns, pointers
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.load import Image, Part
from rota.device.world import World, resolve, semaphore_index
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.enums import Pattern
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, SEMAPHORES, Reserved, Window
from rota.isa.spad import (
    CONTINUE,
    ENTRY_SIZE,
    SLOT,
    SLOT_REGION_SIZE,
    SLOTS,
    Control,
    SlotFlag,
    is_end,
    unpack_control,
    unpack_end,
)

_ROLES: Final = ("recv_sema", "send_sema", "post_sema", "dma_compl_sema")
_UNUSED: Final = ("kangaring_mine", "kangaring_is_primary", "kangaring_num_peers")


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """One entry per ring channel of every rank."""

    image: I64
    sp: I64
    identity: I64
    folds: I64
    next_folds: I64
    prev_folds: I64
    recv: I64  # flat semaphores
    send: I64
    compl: I64
    row: I64  # first row; its rows end where the next channel's begin

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


@dataclass(frozen=True, slots=True)
class Processor:
    """One stream processor of a rank in the operation: its control entry and what it posts."""

    image: int
    sp: int
    control: Control
    complete: int  # flat semaphore incremented when done; -1 for none
    posts: tuple[tuple[int, int], ...]  # (flat semaphore, value) the reporter adds


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
    """Read the programs of all images.

    Raises:
        DecodeError: tables that contradict each other or the descriptors.
    """
    section = {place: i for i, place in enumerate(items.sections)}
    found: list[_Channel] = []
    processors: list[Processor] = []
    for index, image in enumerate(world.images):
        used: set[int] = set()
        for sp in range(world.sps):
            processor, channels = _processor(world, index, sp)
            processors.append(processor)
            found += channels
            used |= {place for channel in channels for place in channel.places}
        loaded = {place for i, place in items.sections if i == index}
        if loaded != used:
            raise DecodeError(
                f"rings of rank {image.rank}",
                offset=0,
                expected=f"those of its channels, {sorted(used)}",
                got=f"{sorted(loaded)}",
            )
        _check_reporter(image, [p for p in processors if p.image == index])
    return _columns(world, items, section, found, tuple(processors))


@dataclass(frozen=True, slots=True)
class _Channel:
    """A channel while it is read."""

    image: int
    sp: int
    record: Mapping[str, int]
    semaphores: tuple[int, ...]  # flat, in the order of _ROLES
    places: tuple[int, ...]  # engine x 16 + queue of each fold
    entries: Array  # slot entries
    slot_offset: int
    completion: tuple[int, tuple[int, ...]]  # value and addresses of the END mark


def _processor(world: World, index: int, sp: int) -> tuple[Processor, list[_Channel]]:
    image = world.images[index]
    control_part = image.part(Section.CTRL, sp)
    if len(control_part.data) != ENTRY_SIZE * image.operations:
        raise DecodeError(
            f"control table of TOP_SP {sp}",
            offset=control_part.offset,
            expected=f"{image.operations} entries",
            got=f"{len(control_part.data)} bytes",
        )
    control = _control(control_part)
    conf = image.part(Section.CONF, sp)
    layout = CONFIGURATIONS[image.arch.name]
    if len(conf.data) != layout.size:
        raise DecodeError(
            f"configuration of TOP_SP {sp}",
            offset=conf.offset,
            expected=f"{layout.size} bytes",
            got=str(len(conf.data)),
        )
    program = layout.part("program")
    block = PROGRAM_BLOCK.decode(conf.data, program.at)
    ids = [bit for bit in range(32) if control.channel_list >> bit & 1]
    records = {
        channel: RING_CHANNEL.decode(conf.data, layout.part("ring").at + channel * RING_CHANNEL.size) for channel in ids
    }
    _check_rest(conf, layout.part("ring").at, ids, program.at, program.end)
    complete = _check_block(world, index, sp, control, block, conf.offset + program.at, list(records.values()))
    channels = [_channel(world, index, sp, channel, record, conf, block) for channel, record in records.items()]
    if len({channel.record["spad_slot_idx"] for channel in channels}) != len(channels):
        raise DecodeError(
            f"ring channels of TOP_SP {sp}", offset=conf.offset, expected="a slot program each", got="one shared"
        )
    posts = (
        tuple((address, channels[0].completion[0]) for address in channels[0].completion[1])
        if channels and control.reporter
        else ()
    )
    return Processor(index, sp, control, complete, posts), channels


def _control(part: Part) -> Control:
    try:
        control = unpack_control(part.data)
    except DecodeError as error:
        raise DecodeError(
            error.what, offset=part.offset + error.offset, expected=error.expected, got=error.got
        ) from None
    plain = (control.algo_sub_type, control.trigger_next, control.safe_mode, control.unique_tensors)
    if control.pattern is Pattern.MESH or any(plain) or (control.pattern is Pattern.RING) != bool(control.channel_list):
        raise DecodeError(
            "control entry",
            offset=part.offset,
            expected="a plain ring entry with channels, or none",
            got=bytes(part.data).hex(" "),
        )
    return control


def _check_rest(conf: Part, ring_at: int, ids: list[int], program_at: int, program_end: int) -> None:
    """Everything but the live channel records and the program block is zero, and these name no reserved byte."""
    rest = bytearray(conf.data)
    for channel in ids:
        at = ring_at + channel * RING_CHANNEL.size
        stray = RING_CHANNEL.reserved(bytes(rest[at : at + RING_CHANNEL.size]))
        if stray is not None:
            raise DecodeError(
                "ring channel record",
                offset=conf.offset + at + stray,
                expected="reserved bytes 0",
                got=hex(rest[at + stray]),
            )
        rest[at : at + RING_CHANNEL.size] = bytes(RING_CHANNEL.size)
    rest[program_at:program_end] = bytes(program_end - program_at)
    if any(rest):
        at = next(i for i, value in enumerate(rest) if value)
        raise DecodeError(
            "configuration", offset=conf.offset + at, expected="0 in what no channel uses", got=hex(rest[at])
        )


def _check_block(
    world: World,
    index: int,
    sp: int,
    control: Control,
    block: Mapping[str, int],
    offset: int,
    records: list[Mapping[str, int]],
) -> int:
    """Recompute the program block; return the flat semaphore that completion is passed to, or -1."""
    image = world.images[index]
    own = image.arch.semaphores(image.lane * world.sps + sp)
    spad = own + 0x100000
    complete = -1
    address = block["complete"]
    if (address != 0) != control.ring_send_complete:
        raise DecodeError(
            "program block", offset=offset, expected="`complete` exactly where it is used", got=hex(address)
        )
    if address:
        complete = _semaphore(world, index, address, Window.INC, offset, "complete")
        next_sp, identity = divmod(complete - index * world.sps * SEMAPHORES, SEMAPHORES)
        if identity != Reserved.COMPLETE_PREV or not sp < next_sp < world.sps:
            raise DecodeError(
                "program block complete",
                offset=offset,
                expected="complete_prev of a higher processor",
                got=hex(address),
            )
    queues = {
        (record["m2s_tail_ptr"] - image.arch.doorbell(image.lane * world.lnc, 0, receive=False))
        >> isa.QUEUE_SHIFT: record["mask"]
        for record in records
    }
    pairs = [n for pair in queues.items() for n in pair]
    active = control.pattern is Pattern.RING
    want = {
        **{f"dma_alloc_bitmap[{i}]": pairs[i] if i < len(pairs) else 0 for i in range(16)},
        **{f"slot_spad_base[{i}]": spad + 0x1000 + i * SLOT_REGION_SIZE for i in range(SLOTS)},
        "ctrl_spad_base": spad,
        "trigger": own + Window.READ + 4 * Reserved.TRIGGER,
        "trigger_next": own + Window.INC + 4 * Reserved.TRIGGER,
        "complete": address,
        "complete_prev": own + Window.READ + 4 * Reserved.COMPLETE_PREV,
        "op_num": image.operations,
        "function_n": 1,
        "tpb_compl_addr_num": 1,
        "leader": int(active and control.reporter),
    }
    for name, value in block.items():
        if value != want.get(name, 0):
            raise DecodeError(f"program block {name}", offset=offset, expected=hex(want.get(name, 0)), got=hex(value))
    return complete


def _channel(
    world: World, index: int, sp: int, channel: int, record: Mapping[str, int], conf: Part, block: Mapping[str, int]
) -> _Channel:
    image = world.images[index]
    at = conf.offset + channel * RING_CHANNEL.size
    core = image.lane * world.lnc
    queue = (record["m2s_tail_ptr"] - image.arch.doorbell(core, 0, receive=False)) >> isa.QUEUE_SHIFT
    canonical = 0 <= queue < isa.QUEUES and all(
        record[name] == image.arch.doorbell(core, queue, receive=receive)
        for name, receive in (("m2s_tail_ptr", False), ("s2m_tail_ptr", True))
    )
    engines = [engine for engine in range(isa.ENGINES) if record["mask"] >> engine & 1]
    laws = (
        ("channel_id", record["channel_id"] == channel, str(channel)),
        ("spad_slot_idx", record["spad_slot_idx"] < SLOTS, f"below {SLOTS}"),
        (
            "fold_n",
            record["fold_n"] == image.folds == len(engines) == record["mask"].bit_count(),
            f"{image.folds}, one engine each",
        ),
        ("m2s_tail_ptr", canonical, "the doorbells of one queue of the rank's core"),
        ("next_fold_n", record["next_fold_n"] == image.folds, str(image.folds)),
        ("prev_fold_n", record["prev_fold_n"] == image.folds, str(image.folds)),
        ("next_type", record["next_type"] <= 1, "0 or 1"),
        ("prev_type", record["prev_type"] <= 1, "0 or 1"),
        *((name, record[name] == 0, "0 on a plain ring") for name in _UNUSED),
        *(
            (name, record[name] == 0, "0 inside a node")
            for name in record
            if "network_index" in name or "peers[" in name
        ),
    )
    for name, holds, expected in laws:
        if not holds:
            raise DecodeError(f"ring channel {channel} {name}", offset=at, expected=expected, got=hex(record[name]))
    semaphores = tuple(_semaphore(world, index, record[name], Window.READ, at, name) for name in _ROLES)
    home = (index * world.sps + sp) * SEMAPHORES
    if len(set(semaphores)) < len(_ROLES) or any(not FIRST_FREE <= flat - home <= LAST_FREE for flat in semaphores):
        raise DecodeError(
            f"ring channel {channel}",
            offset=at,
            expected="four free semaphores of its own processor",
            got=str([flat - home for flat in semaphores]),
        )
    entries, completion, slot_offset = _slot(world, index, sp, record["spad_slot_idx"], block["tpb_compl_addr_num"])
    return _Channel(
        index, sp, record, semaphores, tuple(e * isa.QUEUES + queue for e in engines), entries, slot_offset, completion
    )


def _semaphore(world: World, index: int, address: int, window: Window, offset: int, what: str) -> int:
    at = np.array([offset], np.int64)
    places = resolve(world, index, np.array([address], np.uint64), at, what)
    return int(semaphore_index(world, places, window, at, what)[0])


def _slot(
    world: World, index: int, sp: int, slot: int, addresses: int
) -> tuple[Array, tuple[int, tuple[int, ...]], int]:
    """Read a slot program up to its END mark."""
    part = world.images[index].part(Section.SLOT, sp * SLOTS_PER_SP + slot)
    what = f"slot program {slot} of TOP_SP {sp}"
    if len(part.data) % ENTRY_SIZE or len(part.data) > SLOT_REGION_SIZE:
        raise DecodeError(
            what,
            offset=part.offset,
            expected=f"whole entries, at most {SLOT_REGION_SIZE} bytes",
            got=f"{len(part.data)} bytes",
        )
    raw = np.frombuffer(part.data, "<u8")
    ends = np.flatnonzero(raw >> np.uint64(48) == 0xFFFD)
    if not ends.size or not is_end(int(raw[ends[0]])) or (raw[: ends[0]] == CONTINUE).any():
        raise DecodeError(
            what, offset=part.offset, expected="rows and one END mark", got="no END mark, or a CONTINUE mark"
        )
    end = int(ends[0]) * ENTRY_SIZE
    try:
        value, targets = unpack_end(part.data, offset=end, count=addresses)
    except DecodeError as error:
        raise DecodeError(
            error.what, offset=part.offset + error.offset, expected=error.expected, got=error.got
        ) from None
    entries = SLOT.columns(part.data[:end])
    if len(part.data) != end + ENTRY_SIZE * (1 + addresses) or value != 1 or not entries.size:
        raise DecodeError(
            what, offset=part.offset + end, expected="an END mark of value 1 behind the rows", got=f"value {value}"
        )
    known = SlotFlag.LAST_ROW | SlotFlag.NO_RECEIVE | SlotFlag.NO_SEND
    last = (entries["flags"] & SlotFlag.LAST_ROW) != 0
    should = np.arange(entries.size) == entries.size - 1
    bad = (SLOT.reserved(bytes(part.data[:end])) is not None) | (entries["flags"] & ~np.uint8(known)).any()
    if (
        bad
        or (last != should).any()
        or (entries["repeat"] == 0).any()
        or entries["repeat"][-1] != 1
        or (entries["s2m_val"] == 0).any()
    ):
        raise DecodeError(what, offset=part.offset, expected="rows that repeat, the last marked and once", got="others")
    flat = tuple(
        _semaphore(world, index, target, Window.INC, part.offset + end, "completion address") for target in targets
    )
    home = index * world.sps * SEMAPHORES
    if any(f % SEMAPHORES != Reserved.COMPLETION or not 0 <= f - home < world.sps * SEMAPHORES for f in flat):
        raise DecodeError(
            "completion address",
            offset=part.offset + end,
            expected="the rank's own completion semaphore",
            got=hex(targets[0]),
        )
    return entries, (value, flat), part.offset


def _check_reporter(image: Image, processors: list[Processor]) -> None:
    """The processors that take part complete in ascending order, and the highest reports."""
    active = [p for p in processors if p.control.pattern is Pattern.RING]
    for i, p in enumerate(active):
        want = (i == len(active) - 1, i > 0, i < len(active) - 1)
        chained = p.complete == -1 or p.complete // SEMAPHORES % len(processors) == active[i + 1].sp
        if (p.control.reporter, p.control.ring_wait_complete, p.control.ring_send_complete) != want or not chained:
            raise DecodeError(
                f"control entry of TOP_SP {p.sp} of rank {image.rank}",
                offset=image.part(Section.CTRL, p.sp).offset,
                expected="completion in ascending order, reported by the highest",
                got=str(p.control),
            )
    if not active or len({p.control.algo_type for p in active}) > 1:
        raise DecodeError(
            f"control tables of rank {image.rank}",
            offset=0,
            expected="one algorithm on at least one processor",
            got="others",
        )


def _columns(
    world: World,
    items: Items,
    section: Mapping[tuple[int, int], int],
    found: list[_Channel],
    processors: tuple[Processor, ...],
) -> Program:
    counts: list[int] = []
    tables: list[tuple[Array, ...]] = []
    starts: list[I64] = []
    for channel in found:
        sections = [section[(channel.image, place)] for place in channel.places]
        entries = channel.entries
        repeat = entries["repeat"].astype(np.int64)
        _check_totals(items, sections, entries, repeat, channel)
        s2m = np.repeat(entries["s2m_val"].astype(np.int64), repeat)
        m2s = np.repeat(entries["m2s_val"].astype(np.int64), repeat)
        flags = np.repeat(entries["flags"], repeat)
        within = pointers(s2m)[:-1]
        start = items.section_ptr[sections][None, :] + within[:, None]
        _check_reads(items, sections, start, m2s, channel)
        counts.append(s2m.size)
        tables.append((s2m, flags))
        starts.append(start)
    row = pointers(np.array(counts, np.int64))
    flags = np.concatenate([table[1] for table in tables])
    channels = Channels(
        image=np.array([c.image for c in found], np.int64),
        sp=np.array([c.sp for c in found], np.int64),
        identity=np.array([c.record["channel_id"] for c in found], np.int64),
        folds=np.array([c.record["fold_n"] for c in found], np.int64),
        next_folds=np.array([c.record["next_fold_n"] for c in found], np.int64),
        prev_folds=np.array([c.record["prev_fold_n"] for c in found], np.int64),
        recv=np.array([c.semaphores[0] for c in found], np.int64),
        send=np.array([c.semaphores[1] for c in found], np.int64),
        compl=np.array([c.semaphores[3] for c in found], np.int64),
        row=row[:-1],
    )
    rows = DeviceRows(
        channel=np.repeat(np.arange(len(found)), counts),
        receives=(flags & SlotFlag.NO_RECEIVE) == 0,
        sends=(flags & SlotFlag.NO_SEND) == 0,
        items=np.concatenate([table[0] for table in tables]),
    )
    program = Program(channels, rows, np.concatenate(starts), processors)
    _check_rows(world, items, program)
    return program


def _check_totals(items: Items, sections: list[int], entries: Array, repeat: I64, channel: _Channel) -> None:
    """The rows launch exactly the descriptors that are there, on every fold."""
    s2m = int((entries["s2m_val"] * repeat).sum())
    m2s = int((entries["m2s_val"] * repeat).sum())
    for i in sections:
        first, last = int(items.section_ptr[i]), int(items.section_ptr[i + 1])
        reads = int(items.source_ptr[last] - items.source_ptr[first])
        if (last - first, reads) != (s2m, m2s):
            raise DecodeError(
                f"slot program of channel {channel.record['channel_id']}",
                offset=channel.slot_offset,
                expected=f"{last - first} writing and {reads} reading descriptors on each fold",
                got=f"{s2m} and {m2s}",
            )


def _check_reads(items: Items, sections: list[int], start: I64, m2s: I64, channel: _Channel) -> None:
    """Each row's reading descriptors belong to its writing ones."""
    before = pointers(m2s)[:-1]
    base = items.source_ptr[items.section_ptr[sections]]
    if (items.source_ptr[start] - base != before[:, None]).any():
        raise DecodeError(
            f"slot program of channel {channel.record['channel_id']}",
            offset=channel.slot_offset,
            expected="rows that launch whole packets on every fold",
            got="a row that ends inside one",
        )


def _check_rows(world: World, items: Items, program: Program) -> None:
    """On each fold a row ends with its own completion, and its last data write is ordered before the signals."""
    owner = fold_rows(program, items)
    last = program.item + program.rows.items[:, None] - 1
    own = program.channels.compl[program.rows.channel]
    if ((items.kind[last] != SIGNAL) | (items.target[last] != own[:, None])).any():
        raise DecodeError(
            "row", offset=0, expected="its own completion as the last descriptor of every fold", got="another"
        )
    data = np.flatnonzero(items.kind == DATA)
    final = np.zeros(items.kind.size, np.bool_)
    if data.size:
        final[data] = np.append(owner[data][1:] != owner[data][:-1], True)
    if world.arch.sow and (items.strong != final).any():
        raise DecodeError(
            "RX descriptor", offset=0, expected="strong order exactly on the last data write of a row", got="others"
        )
    if not world.arch.sow:
        follows = np.zeros(items.kind.size, np.bool_)
        signal = np.flatnonzero(items.kind == SIGNAL)
        first = signal[np.append(True, owner[signal][1:] != owner[signal][:-1])]
        has_data = np.isin(owner[first], owner[data])
        follows[first[has_data]] = True
        if (items.barrier != follows).any():
            raise DecodeError(
                "TX descriptor", offset=0, expected="a barrier exactly on the first signal behind data", got="others"
            )


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
