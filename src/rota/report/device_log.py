"""The runtime's log lines about what a rank loads, read from its image: what to search a log for.

For each stream processor in turn, in the order in which the runtime comes to say it: events as they are installed, then
operation by operation what is appended when it is closed (control entry, slot entries, mark), then what is loaded and
started. The tokens and their order are known, the words between them are ours. A stream processor that has no part in
an operation gets no line for it. Lines about decisions are in `log_lines`. Source: device §14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rota.columns import Array
from rota.device.load import Image, Part, load_image
from rota.errors import DecodeError
from rota.isa.config import CHANNELS, CONFIGURATIONS, MESH_EVENT, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.enums import Pattern
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.registers import END_NOTIFICATIONS
from rota.isa.spad import (
    CONTINUE,
    CONTROL_REGION_SIZE,
    ENTRY_SIZE,
    MAX_COMPLETIONS,
    SLOT,
    SLOT_REGION_SIZE,
    SLOTS,
    Control,
    is_end,
    unpack_control,
    unpack_end,
)

_MESH_SLOT: Final = 0  # the slot program of event lists. Source: device-model §4, convention


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The part of a slot program that belongs to one operation: its entries and the mark behind them.

    Attributes:
        channel: who walks it, 0 for a mesh.
        offset: of its first entry in its section.
        steps: slot entries, in the columns of `spad.SLOT`.
        following: the control entry behind a CONTINUE mark; None behind an END mark.
        value, addresses: what an END mark adds, and where.
    """

    channel: int
    slot: int
    offset: int
    steps: Array
    following: Control | None
    value: int
    addresses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation on one stream processor: its control entry, its slot programs, the events it begins with."""

    index: int
    control: Control
    raw: bytes
    programs: tuple[Program, ...]
    events: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Processor:
    """What one stream processor loads.

    Attributes:
        sp, top_sp: its number on the rank and on the chip.
        channels: records of the ring channels that some operation uses, by id.
        events: records of the events that some operation uses, by index.
        block: the program block.
    """

    sp: int
    top_sp: int
    entries: tuple[Entry, ...]
    channels: Mapping[int, Mapping[str, int]]
    events: Mapping[int, Mapping[str, int]]
    block: Mapping[str, int]

    @property
    def active(self) -> tuple[Entry, ...]:
        """Return the operations it has a part in."""
        return tuple(each for each in self.entries if each.control.pattern is not Pattern.INVALID)

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the slots that some operation uses, ascending."""
        return tuple(sorted({program.slot for entry in self.entries for program in entry.programs}))


def device_log(image: bytes) -> tuple[str, ...]:
    """Return the lines the runtime logs about what a rank loads.

    Raises:
        DecodeError: the image is damaged, or its tables contradict each other.
    """
    loaded = load_image(image)
    return tuple(line for each in read_processors(loaded) for line in processor_lines(each, loaded.chip))


def expected_notifications(image: bytes) -> tuple[int, ...]:
    """Return how many notifications each TOP_SP of the rank sends: one for each operation it does, and an end marker.

    Raises:
        DecodeError: the image is damaged, or a control table is.

    Source:
        device §10, medium.
    """
    loaded = load_image(image)
    tables = (_controls(loaded.part(Section.CTRL, sp)) for sp in range(loaded.stream_processors))
    return tuple(
        sum(control.pattern is not Pattern.INVALID for control, _ in table) + END_NOTIFICATIONS for table in tables
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def read_processors(image: Image) -> tuple[Processor, ...]:
    """Return what the stream processors of a rank load.

    Raises:
        DecodeError: a control table, a slot program or the configuration contradicts the others; offsets in the file.
    """
    out = []
    for sp in range(image.stream_processors):
        slots = {slot: image.parts.get((Section.SLOT, sp * SLOTS_PER_SP + slot)) for slot in range(SLOTS)}
        out.append(
            read_processor(
                image.part(Section.CTRL, sp),
                image.part(Section.CONF, sp),
                {slot: part for slot, part in slots.items() if part is not None},
                arch=image.arch.name,
                sp=sp,
                top_sp=image.lane * image.stream_processors + sp,
            )
        )
    return tuple(out)


def read_processor(
    control: Part, configuration: Part, slots: Mapping[int, Part], *, arch: str, sp: int, top_sp: int
) -> Processor:
    """Return what one stream processor loads: its control table, its configuration and its slot programs.

    Raises:
        DecodeError: one of them contradicts the others, at the offset its `Part` gives it.
    """
    layout = CONFIGURATIONS[arch]
    if len(configuration.data) != layout.size:
        got = f"{len(configuration.data)} bytes"
        raise DecodeError("configuration", offset=configuration.offset, expected=f"{layout.size} bytes", got=got)
    block = PROGRAM_BLOCK.decode(configuration.data, layout.part("program").at)
    if block["tpb_compl_addr_num"] > MAX_COMPLETIONS:
        at = configuration.offset + layout.part("program").at
        got = str(block["tpb_compl_addr_num"])
        raise DecodeError("program block tpb_compl_addr_num", offset=at, expected=f"up to {MAX_COMPLETIONS}", got=got)
    take = partial(_take, slots, dict.fromkeys(slots, 0), completions=block["tpb_compl_addr_num"])
    entries: list[Entry] = []
    channels: dict[int, Mapping[str, int]] = {}
    events: dict[int, Mapping[str, int]] = {}
    for index, (entry, raw) in enumerate(_controls(control)):
        listed: dict[int, Mapping[str, int]] = {}
        programs: list[Program] = []
        if entry.pattern is Pattern.RING:
            for channel in (each for each in range(CHANNELS) if entry.channel_list >> each & 1):
                at = layout.part("ring").at + channel * RING_CHANNEL.size
                channels[channel] = RING_CHANNEL.decode(configuration.data, at)
                slot = channels[channel]["spad_slot_idx"]
                programs.append(take(slot=slot, channel=channel, asking=configuration.offset + at))
        elif entry.pattern is Pattern.MESH:
            part = layout.part("mesh")
            listed = _events(configuration, part.at, part.count, entry.first_event)
            programs.append(take(slot=_MESH_SLOT, channel=0, asking=control.offset + index * ENTRY_SIZE))
        events |= listed
        entries.append(Entry(index, entry, raw, tuple(programs), tuple(listed)))
    return Processor(sp, top_sp, tuple(entries), channels, events, block)


def _controls(part: Part) -> list[tuple[Control, bytes]]:
    """Return the entries of a control table, each with its bytes."""
    places = range(0, len(part.data), ENTRY_SIZE)
    return [(_control(part, at), bytes(part.data[at : at + ENTRY_SIZE])) for at in places]


def _control(part: Part, at: int) -> Control:
    try:
        return unpack_control(part.data, offset=at)
    except DecodeError as error:
        raise _moved(error, part.offset) from None


def _events(part: Part, first_at: int, count: int, first: int) -> dict[int, Mapping[str, int]]:
    """Return the records of the event list that begins at `first`, by index, up to the first that does nothing."""
    if first >= count:
        raise DecodeError("first_event", offset=part.offset, expected=f"an event below {count}", got=str(first))
    out: dict[int, Mapping[str, int]] = {}
    for index in range(first, count):
        record = MESH_EVENT.decode(part.data, first_at + index * MESH_EVENT.size)
        if not (record["dma_trigger"] or record["direct_trigger"] or record["wait_event"]):
            break
        out[index] = record
    return out


def _take(
    slots: Mapping[int, Part], read: dict[int, int], *, slot: int, channel: int, completions: int, asking: int
) -> Program:
    """Return the part of a slot program that belongs to the next operation.

    Args:
        read: bytes of each slot program that belong to earlier operations; moved on.
        completions: addresses behind an END mark.
        asking: offset of what says that there is such a part.
    """
    part = slots.get(slot)
    if part is None:
        raise DecodeError("slot program", offset=asking, expected="one that is loaded", got=f"slot {slot}")
    start = read[slot]
    mark = _mark(part, start)
    steps = SLOT.columns(part.data[start:mark])
    behind = mark + ENTRY_SIZE
    if int.from_bytes(part.data[mark:behind], "little") == CONTINUE:
        read[slot] = behind + ENTRY_SIZE
        return Program(channel, slot, start, steps, _control(part, behind), 0, ())
    read[slot] = behind + ENTRY_SIZE * completions
    try:
        value, addresses = unpack_end(part.data, offset=mark, count=completions)
    except DecodeError as error:
        raise _moved(error, part.offset) from None
    return Program(channel, slot, start, steps, None, value, addresses)


def _mark(part: Part, start: int) -> int:
    """Return where in a slot program the next mark is."""
    for at in range(start, len(part.data) - ENTRY_SIZE + 1, ENTRY_SIZE):
        word = int.from_bytes(part.data[at : at + ENTRY_SIZE], "little")
        if word == CONTINUE or is_end(word):
            return at
    raise DecodeError("slot program", offset=part.offset + start, expected="a CONTINUE or END mark", got="none")


def _moved(error: DecodeError, offset: int) -> DecodeError:
    return DecodeError(error.what, offset=offset + error.offset, expected=error.expected, got=error.got)


# --- lines ------------------------------------------------------------------------------------------------------------


def processor_lines(processor: Processor, device: int) -> Iterator[str]:
    """Yield the lines about one stream processor.

    Args:
        device: number of its chip, nec_dev.
    """
    at = f"[nec_dev {device}]"
    top_sp = processor.top_sp
    installed: set[int] = set()
    earlier: tuple[Program, ...] = ()
    for entry in processor.entries:
        for index in (each for each in entry.events if each not in installed):
            record = processor.events[index]
            yield f"{at} mesh event {index}: type {record['event_type']}, sem_val {record['wait_val']}"
        installed |= set(entry.events)
        if entry.control.pattern is not Pattern.INVALID:
            yield f"{at} TOPSP {top_sp} op {entry.index} control mark: {_control_words(entry.control)}"
            for program in earlier:
                if program.following is not None and program.following.pattern is not Pattern.INVALID:
                    words = _control_words(program.following, reporter=False)
                    yield f"{at} TOPSP {top_sp} op {entry.index} slot continue mark: {words}"
            yield from _program_lines(entry, at, top_sp)
        earlier = entry.programs
    yield f"TOP_SP {top_sp} configs staged: {processor.block['op_num']} operations"
    loads = [("control", CONTROL_REGION_SIZE), *((f"slot {slot}", SLOT_REGION_SIZE) for slot in processor.slots)]
    for region, size in loads:
        yield f"{at} TOP_SP {top_sp} SPAD load: {region}, {size:#x}"
    total = sum(size for _, size in loads)
    yield f"{at} TOP_SP {top_sp} started: {total} bytes loaded, {processor.block['ctrl_spad_base']:#x}"


def _program_lines(entry: Entry, at: str, top_sp: int) -> Iterator[str]:
    """Yield the step list of each slot of an operation, and the mark that ends it."""
    for program in entry.programs:
        head = f"{at} ch {program.channel} op {entry.index} slot {program.slot}:"
        columns = (program.steps[name].tolist() for name in ("m2s_val", "s2m_val", "repeat"))
        for i, (m2s, s2m, repeat) in enumerate(zip(*columns, strict=True)):
            yield f"{head} tp_inc_steps[{i}] = {m2s}, {s2m}, {repeat}"
        if program.following is not None:
            yield f"{at} TOPSP {top_sp} continue mark"
            continue
        where = ", ".join(f"{address:#x}" for address in program.addresses)
        yield f"{at} TOPSP {top_sp} end mark: completion address {where} semaphore bits {program.value:#x}"


def _control_words(control: Control, *, reporter: bool = True) -> str:
    """Return the fields of a control entry as the runtime prints them: keys with a dash, decimal values."""
    values = {
        "alg": control.algo_type,
        "subalg": control.algo_sub_type,
        "trignext": control.trigger_next,
        "chlist": control.channel_list,
        **({"reporter": control.reporter} if reporter else {}),
        "sema_shift_offset": control.sema_shift_offset,
        "sema_mask": control.sema_mask,
        "safe_mode": control.safe_mode,
    }
    return " ".join(f"-{name} {int(value)}" for name, value in values.items())
