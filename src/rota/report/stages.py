"""The path of one collective through all stages, with its own values: what `rota lower --stages` prints.

From the instruction word to the completion, as the first rank of the request sees it. What comes before the bytes is
said by the plan and the schedule; from `emit` on every number is read from the rank's image. Source: all-reduce §9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from rota.columns import I64, U32, Array
from rota.device.disasm import disassemble_stream
from rota.device.load import Image, load_image
from rota.errors import UnsupportedError
from rota.facts import Verdict
from rota.isa import arch as isa
from rota.isa.arch import chip_of
from rota.isa.cc_op_info import CC_OP_INFO, encode_cc_op_info
from rota.isa.config import CONFIGURATIONS, MESH_EVENT, RING_CHANNEL
from rota.isa.descriptors import DESCRIPTOR, TxFlag
from rota.isa.dtypes import Dtype, short_name
from rota.isa.enums import Algorithm, Pattern
from rota.isa.image import Section
from rota.isa.op_words import KIND_OF_CCE, OpWord, WordKind, decode_word
from rota.isa.opcodes import describe_opcode
from rota.isa.registers import REGISTERS, WRITES, Dispatch, HostStep, Register, RunState, register_address
from rota.isa.semaphores import BLOCK_SIZE, Reserved, decode_register
from rota.isa.spad import CONTROL_REGION_SIZE, SLOT_REGION_SIZE, SlotFlag
from rota.machine.platform import Platform
from rota.pipeline import Composed, Lowered
from rota.report.device_log import Entry, Processor, Program, expected_notifications, read_processors
from rota.report.explain import asked
from rota.report.records import cc_op_info_of
from rota.report.text import machine, size_text
from rota.schedule.ir import Leaf
from rota.select.hierarchy import LEGS

_WIDE: Final = 16  # bytes of one line of hex
_SHOWN: Final = 8  # lines of one list, before "... and n more"
_REDUCES: Final = frozenset(KIND_OF_CCE.values())
_MIDDLE: Final = frozenset({WordKind.ADD, WordKind.EXT})  # classes whose sources' type is the middle nibble
_SEMAPHORES: Final = ("recv_sema", "send_sema", "post_sema", "dma_compl_sema", "kangaring_mine")


def stage_lines(lowered: Lowered, platform: Platform) -> list[str]:
    """Return the lines, each stage under its name.

    Raises:
        DecodeError: the image of the first rank, or the word, is damaged.
    """
    made = lowered.composed
    image = load_image(lowered.images[0])
    processors = read_processors(image)
    rank = made.request.members[image.rank]
    stages: tuple[tuple[str, Iterable[str]], ...] = (
        ("word", _word(lowered.word)),
        ("select", _select(made, platform)),
        ("compose", _compose(made)),
        ("emit", _emit(lowered, image, processors, rank)),
        ("host", _host(image, processors)),
        ("device", _device(made, processors)),
        ("complete", _complete(lowered, image, processors)),
    )
    return [f"{name if not i else '':<11}{line}" for name, lines in stages for i, line in enumerate(lines)]


def _word(word: bytes) -> Iterator[str]:
    """Yield the compiler's word: its bytes, and its fields."""
    if not word:
        yield "none: no instruction asks for this collective"
        return
    yield f"{len(word)} bytes of the compiler, {describe_opcode(word[0])}; the host rewrites it, no engine executes it"
    yield from (f"  {at:+05x} {word[at : at + _WIDE].hex(' ')}" for at in range(0, len(word), _WIDE))
    yield from (f"  {line}" for line in disassemble_stream(word).text)


def _select(made: Composed, platform: Platform) -> Iterator[str]:
    """Yield what was admitted, what each rule of the cascade said, the algorithm and its legs."""
    plan = made.plan
    yield f"{asked(made.request)} on {machine(platform)}, {size_text(plan.request.select_size)} to compare"
    yield "  admitted " + (" ".join(each.name for each, verdict in plan.admissions if verdict) or "nothing")
    yield from _verdicts("cascade", plan.verdicts)
    instead = "" if made.algorithm == plan.selected.name else f"; {made.algorithm} is composed in its place"
    yield f"  selected {plan.selected.name} ({int(plan.selected)}){instead}"
    for leg in plan.legs:
        unused = "" if leg.used else ", which this operation does not use"
        yield f"  alg_{leg.slot} {leg.algorithm.name} ({int(leg.algorithm)}), slices of {size_text(leg.size)}{unused}"


def _verdicts(name: str, verdicts: Iterable[tuple[Algorithm, Verdict]]) -> Iterator[str]:
    for i, (rule, verdict) in enumerate(verdicts):
        yield f"  {name if not i else '':<8} {rule.name} {'yes' if verdict else 'no'}: {verdict.reason}"


def _compose(made: Composed) -> Iterator[str]:
    """Yield what the first member's rows are: by leg its queues, pieces, steps and step primitives."""
    schedule = made.schedule
    rows = schedule.rows
    mine = rows.rank == 0
    yield f"{made.algorithm}: {len(schedule)} rows of {schedule.ranks} members, {np.count_nonzero(mine)} of the first"
    for buffer in schedule.buffers:
        yield f"  buffer   {buffer.name}, {size_text(buffer.size)}"
    for leg in np.unique(rows.leg[mine]).tolist():
        here = mine & (rows.leg == leg)
        parts = np.unique(rows.part[here])
        chunks = f"{_counted(np.unique(parts // 2).size, 'chunk group')} in {_counted(parts.size, 'half', 'halves')}"
        counts = (
            _counted(np.unique(rows.queue[here]).size, "channel"),
            chunks if rows.leaf[here].max() < Leaf.RDH_SEND else _counted(parts.size, "part"),
            _counted(np.unique(rows.step[here]).size, "step"),
            f"at most {size_text(int(rows.size[here].max()))} a row",
        )
        yield f"  leg {leg}    {', '.join(counts)}"
        leaves, times = np.unique(rows.leaf[here], return_counts=True)
        names = (f"{Leaf(leaf).name.lower()} {n}" for leaf, n in zip(leaves.tolist(), times.tolist(), strict=True))
        yield f"           {', '.join(names)}"


def _counted(number: int, what: str, several: str = "") -> str:
    return f"{number} {what if number == 1 else several or what + 's'}"


# --- what was emitted -------------------------------------------------------------------------------------------------


def _emit(lowered: Lowered, image: Image, processors: tuple[Processor, ...], rank: int) -> Iterator[str]:
    """Yield the operation words, the descriptors of each queue, and what each stream processor loads."""
    total = sum(map(len, lowered.images))
    yield f"{len(lowered.images)} images of {total} bytes; that of rank {rank}, chip {image.chip} lane {image.lane}:"
    yield from _operation_words(image)
    yield from _queues(image)
    for processor in processors:
        if processor.active:
            yield f"  TOP_SP {processor.top_sp}"
            yield from _cut(_entries(processor), _SHOWN * 4)
            yield from _configuration(image, processor)
        else:
            yield f"  TOP_SP {processor.top_sp} has no part: control {processor.entries[0].raw.hex(' ')}"


def _configuration(image: Image, processor: Processor) -> Iterator[str]:
    """Yield where the records a stream processor uses stand in its configuration, and what they say."""
    layout = CONFIGURATIONS[image.arch.name]
    ring, mesh = layout.part("ring").at, layout.part("mesh").at
    blocks = f"program block +{layout.part('program').at:#x}, device ids +{layout.part('device_ids').at:#x}"
    yield f"    configuration {layout.size:#x} bytes, {blocks}"
    for channel, record in processor.channels.items():
        yield from _channel(image, channel, record, ring + channel * RING_CHANNEL.size)
    events = (_event(image, i, record, mesh + i * MESH_EVENT.size) for i, record in processor.events.items())
    yield from _cut(events, _SHOWN * 2)
    block = processor.block
    yield f"    trigger {_where(image, block['trigger'])}; a step adds 1 at {block['trigger_next']:#x}"


def _operation_words(image: Image) -> Iterator[str]:
    """Yield each operation word of the reading descriptors, and how often it stands there."""
    words: list[U32] = [np.zeros(0, np.uint32)]
    operands = 0
    for (kind, _), part in image.parts.items():
        if kind is Section.TX:
            table: Array = np.frombuffer(part.data, DESCRIPTOR)
            meta = (table["len_ctrl"] & np.uint32(TxFlag.META)) != 0
            operands += int(np.count_nonzero(meta))
            words.append(table["meta_ctrl"][~meta])
    found, times = np.unique(np.concatenate(words), return_counts=True)
    for word, count in zip(found.tolist(), times.tolist(), strict=True):
        yield f"  word     0x{word:08X} x {count}: {_operation(decode_word(word))}"
    if operands:
        yield f"  operands {operands} descriptors of scales, counts and seeds"


def _operation(word: OpWord) -> str:
    """Say what an operation word does."""
    if word.kind is WordKind.REPLICATION:
        return f"copy to {word.field('count')} targets"
    if word.kind not in _REDUCES:
        return word.kind.name.lower()
    source = Dtype(word.field("middle_dtype" if word.kind in _MIDDLE else "input_dtype"))
    result = Dtype(word.field("result_dtype"))
    last = ", the last source" if word.last else ""
    return f"CCE {word.kind.name} of {short_name(source)}, accumulated as {short_name(result)}{last}"


def _queues(image: Image) -> Iterator[str]:
    """Yield how many descriptors a queue has on each fold, folds of equal counts on one line."""
    counts: dict[int, dict[int, list[int]]] = {}
    for (kind, index), part in image.parts.items():
        if kind in (Section.TX, Section.RX):
            engine, queue = divmod(index, isa.QUEUES)
            fold = counts.setdefault(queue, {}).setdefault(engine, [0, 0])
            fold[kind is Section.RX] = len(part.data) // DESCRIPTOR.itemsize
    for queue, folds in sorted(counts.items()):
        masks: dict[tuple[int, ...], int] = {}
        for engine, both in sorted(folds.items()):
            masks[tuple(both)] = masks.get(tuple(both), 0) | 1 << engine
        each = ", ".join(f"{tx} TX {rx} RX on each of engines {mask:#x}" for (tx, rx), mask in masks.items())
        yield f"  queue {queue:<2} {each}"


def _entries(processor: Processor) -> Iterator[str]:
    """Yield the control entries and slot programs of a stream processor, with their bytes."""
    for entry in processor.entries:
        yield f"    control {entry.index}: {entry.raw.hex(' ')}  {_entry_words(entry)}"
        for program in entry.programs:
            yield from _program(program)


def _entry_words(entry: Entry) -> str:
    control = entry.control
    if control.pattern is Pattern.INVALID:
        return f"no part, trigger_next {int(control.trigger_next)}"
    ring = control.pattern is Pattern.RING
    view = f"channels {control.channel_list:#x}" if ring else f"events from {control.first_event}"
    shift = "" if ring else f", shift {control.sema_shift_offset} mask {control.sema_mask:#x}"
    names = ("trigger_next", "reporter", "ring_wait_complete", "ring_send_complete", "safe_mode", "unique_tensors")
    flags = "".join(f" {name}" for name in names if getattr(control, name))
    return f"cc_op 1, algo {control.algo_type}.{control.algo_sub_type}, {view}{shift}{flags and ',' + flags}"


def _program(program: Program) -> Iterator[str]:
    """Yield the steps of a slot program and the mark behind them."""
    head = f"    slot {program.slot}"
    yield from _cut(_steps(program, head), _SHOWN)
    at = f"+{program.offset + program.steps.nbytes:<#5x}"
    if program.following is None:
        yield f"{head} {at} END, adds {program.value} at {', '.join(map(hex, program.addresses))}"
    else:
        yield f"{head} {at} CONTINUE, then the next control entry"


def _steps(program: Program, head: str) -> Iterator[str]:
    size = program.steps.dtype.itemsize
    for i, step in enumerate(program.steps):
        flags = " ".join(flag.name.lower() for flag in SlotFlag if int(step["flags"]) & flag)
        counts = f"m2s {step['m2s_val']}, s2m {step['s2m_val']}, repeat {step['repeat']}"
        yield f"{head} +{program.offset + i * size:<#5x} {step.tobytes().hex(' ')}  {counts}{flags and ', ' + flags}"


def _channel(image: Image, channel: int, record: Mapping[str, int], at: int) -> Iterator[str]:
    """Yield the record of a ring channel: its tails and semaphores."""
    tails = f"tails {record['m2s_tail_ptr']:#x} {record['s2m_tail_ptr']:#x}"
    yield f"    channel {channel} +{at:#x}: engines {record['mask']:#x}, {record['fold_n']} folds, {tails}"
    for name in _SEMAPHORES:
        if record[name]:
            yield f"      {name:<14} {_where(image, record[name])}"
    for i in range(3):
        if record[f"kangaring_peers[{i}]"]:
            yield f"      peer {i:<9} {_where(image, record[f'kangaring_peers[{i}]'])}"


def _event(image: Image, index: int, record: Mapping[str, int], at: int) -> str:
    """Return the record of a mesh event: what it launches, signals and waits for."""
    masks = [record[f"leg{leg}_mask"] for leg in (0, 1) if record["dma_trigger"] and record[f"leg{leg}_mask"]]
    names = [f"direct_trigger_sema[{i}]" for i in range(3)]
    direct = [record[name] for name in names if record["direct_trigger"] and record[name]]
    said = [f"launch on engines {' and '.join(map(hex, masks))}"] if masks else []
    said += [f"signal {_where(image, address)}" for address in direct]
    if record["wait_event"]:
        said.append(f"wait for {record['wait_val']} on {_where(image, record['event_wait_sema'])}")
    return f"    event {index} +{at:#x}: type {record['event_type']}, {', '.join(said)}"


def _where(image: Image, address: int) -> str:
    """Return how a semaphore address is said: id, stream processor, window and the address itself."""
    local = address & ((1 << isa.CHIP_SHIFT) - 1)
    chip = f"chip {chip_of(address)} " if address >> isa.CHIP_SHIFT else ""
    for top_sp in range(image.arch.sps):
        offset = local - image.arch.semaphores(top_sp)
        if 0 <= offset < BLOCK_SIZE:
            window, identity = decode_register(offset)
            return f"id {identity} of {chip}TOP_SP {top_sp}, {window.name} {address:#x}"
    return f"no semaphore, {address:#x}"


def _cut(lines: Iterable[str], most: int) -> Iterator[str]:
    """Yield lines, and how many are left out beyond `most`."""
    rest = iter(lines)
    yield from islice(rest, most)
    left = sum(1 for _ in rest)
    if left:
        yield f"    ... and {left} more"


# --- who runs it ------------------------------------------------------------------------------------------------------


def _host(image: Image, processors: tuple[Processor, ...]) -> Iterator[str]:
    """Yield what the host does in each step, and the registers it writes."""
    yield "step by step, on all stream processors of the rank"
    for step in HostStep:
        register = WRITES[step]
        yield f"  {step.name:<10} {step.value}"
        yield from (f"{'':<13}{line}" for line in _step(step, processors))
        if register is not None:
            yield f"{'':<13}{_writes(image, register, processors)}"


def _step(step: HostStep, processors: tuple[Processor, ...]) -> Iterator[str]:
    """Yield what else there is to say of a step."""
    if step is HostStep.CONFIGURE:
        yield f"reads by dispatch {Dispatch.READ_CONFIG_ADDRESS:#x}; the address is not 0"
    for processor in processors if step is HostStep.START else ():
        block = processor.block
        regions = [f"control {CONTROL_REGION_SIZE:#x} at {block['ctrl_spad_base']:#x}"]
        regions += [
            f"slot {slot} {SLOT_REGION_SIZE:#x} at {block[f'slot_spad_base[{slot}]']:#x}" for slot in processor.slots
        ]
        yield f"TOP_SP {processor.top_sp}: {', '.join(regions)}"
    if step is HostStep.STEP:
        yield f"{_counted(processors[0].block['function_n'], 'function')}"


def _writes(image: Image, register: Register, processors: tuple[Processor, ...]) -> str:
    """Return where a register is written, and what."""
    row = REGISTERS[register]
    value = "the number of the block" if row.value is None else str(row.value)
    slot = "" if row.write is None else f" by dispatch {row.write:#x}"
    try:
        addresses = [hex(register_address(image.arch.name, register, each.top_sp)) for each in processors]
    except UnsupportedError as error:
        return f"writes {value}{slot}; {error}"
    return f"writes {value} to {register.value}{slot}: {' '.join(addresses)}"


def _device(made: Composed, processors: tuple[Processor, ...]) -> Iterator[str]:
    """Yield the states each active entry goes through, and how often."""
    yield f"each stream processor waits for its trigger (id {int(Reserved.TRIGGER)}), then walks its control table"
    if made.algorithm == Algorithm.HIER.name:
        legs = [slot for slot in LEGS[made.request.kind] if slot in made.plan.leg_names]
        yield f"  hierarchy: {', '.join(f'{leg} ({i})' for i, leg in enumerate([*legs, 'done']))}"
    for processor in processors:
        for entry in processor.active:
            name = f"  TOP_SP {processor.top_sp} op {entry.index}"
            ring = entry.control.pattern is Pattern.RING
            yield f"{name}: {_ring_states(entry) if ring else _event_states(entry, processor)}"


def _ring_states(entry: Entry) -> str:
    """Return the run states of an entry's channels, each with its number and how often it is entered."""
    flags, repeat = _flags(entry)
    control = entry.control
    times = {
        RunState.FETCH: flags.size + len(entry.programs),
        RunState.WAIT_DATA: int(repeat[flags & SlotFlag.NO_RECEIVE == 0].sum()),
        RunState.WAIT_CREDIT: int(repeat[flags & SlotFlag.NO_SEND == 0].sum()),
        RunState.MOVE: int(repeat.sum()),
        RunState.WAIT_PREV: int(control.ring_wait_complete),
        RunState.COMPLETE: 1,
        RunState.CHAIN: int(control.trigger_next),
    }
    path = (f"{state.name} ({int(state)}) x {n}" for state, n in times.items() if n)
    return ", ".join([f"{RunState.IDLE.name} ({int(RunState.IDLE)})", *path, RunState.IDLE.name])


def _event_states(entry: Entry, processor: Processor) -> str:
    records = [processor.events[index] for index in entry.events]
    counts = {name: sum(record[name] for record in records) for name in ("dma_trigger", "direct_trigger", "wait_event")}
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{len(records)} events from index {entry.control.first_event}, each fires, then waits: {said}"


def _flags(entry: Entry) -> tuple[I64, I64]:
    """Return flags and repeats of all steps of an entry."""
    none = np.zeros(0, np.int64)
    tables = [program.steps for program in entry.programs]
    flags, repeat = (np.concatenate([none, *(table[name] for table in tables)]) for name in ("flags", "repeat"))
    return flags, repeat


def _complete(lowered: Lowered, image: Image, processors: tuple[Processor, ...]) -> Iterator[str]:
    """Yield who completes in which order, what is posted, and the record of the operation."""
    active = [each for each in processors if each.active]
    order = " then ".join(f"TOP_SP {each.top_sp}" for each in active) or "no stream processor"
    yield order + (f", by semaphore {int(Reserved.COMPLETE_PREV)} of the next" if len(active) > 1 else "")
    entries = [entry for each in active for entry in each.active if entry.control.reporter]
    programs = [program for entry in entries for program in entry.programs]
    for address, value in sorted({(address, each.value) for each in programs for address in each.addresses}):
        yield f"  posts    {value} on {_where(image, address)}"
    sent = ", ".join(map(str, expected_notifications(lowered.images[0])))
    yield f"  notifies {sent} times, by TOP_SP: one for each operation it does, and the end"
    made = lowered.composed
    info = replace(cc_op_info_of(made), cc_op=bool(active))
    data = encode_cc_op_info(info)
    values = {name: value for name, value in CC_OP_INFO.decode(data).items() if name != "alg_name"}
    numbers = ", ".join(f"{name} {value}" for name, value in values.items())
    yield f"  cc_op_info {numbers}, alg_name {info.alg_name}"
    yield from (f"  {at:+05x} {data[at : at + _WIDE].hex(' ')}" for at in range(0, len(data), _WIDE))
