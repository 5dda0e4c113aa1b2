"""Instruction streams and images as text: one record a line, for people. Nothing here decides whether bytes may run.

A damaged container is refused with the place; inside a sound one every record is shown, raw where it means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rota.device.load import Image, Part, load_image
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, RING_ID_SHIFT, RxFlag, TxFlag, decode_cce_word, decode_length
from rota.isa.dtypes import short_name
from rota.isa.enums import Algorithm, Pattern
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.opcodes import Opcode
from rota.isa.spad import ENTRY_SIZE, SLOT, SlotFlag, is_end, unpack_control
from rota.isa.words import Word, decode_stream

Record = dict[str, Any]
_FLAGS: Final = ((TxFlag.FIRST, "first"), (TxFlag.LAST, "last"), (TxFlag.CONCAT, "concat"), (TxFlag.DMB, "barrier"))


@dataclass(frozen=True, slots=True)
class Line:
    """One record: the part it belongs to, its offset in the file, and its fields."""

    part: str
    offset: int
    fields: Record

    def __str__(self) -> str:
        fields = " ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.offset:08x}  {self.part:<12} {fields}"

    def to_json(self) -> Record:
        """Return the record for JSON."""
        return {"part": self.part, "offset": self.offset, **self.fields}


def disassemble_stream(data: bytes) -> Iterator[Line]:
    """Yield the collective words of an instruction stream.

    Raises:
        DecodeError: the stream is damaged.
    """
    stream = decode_stream(data)
    for word in stream.words:
        yield _word(word)
    for opcode, count in sorted(stream.passed.items()):
        yield Line("other", 0, {"opcode": Opcode(opcode).name, "count": count})


def disassemble_image(data: bytes) -> Iterator[Line]:
    """Yield every record of an image, section after section.

    Raises:
        DecodeError: the container is damaged.
    """
    image = load_image(data)
    meta = (
        "rank",
        "ranks",
        "chip",
        "lane",
        "lnc",
        "stream_processors",
        "folds",
        "operations",
        "ring_size",
        "memory_size",
    )
    yield Line(
        "meta", image.part(Section.META, 0).offset, {"arch": image.arch.name} | {n: getattr(image, n) for n in meta}
    )
    for (kind, index), part in image.parts.items():
        yield from _section(image, kind, index, part)


def counts(data: bytes) -> Record:
    """Return how many rows, descriptors and bytes an image has.

    Raises:
        DecodeError: the container is damaged.
    """
    image = load_image(data)
    rows = 0
    for (kind, _), part in image.parts.items():
        if kind is Section.SLOT:
            rows += sum(line.fields.get("repeat", 0) for line in _slots(part, ""))
    tx = sum(len(part.data) // DESCRIPTOR.itemsize for (kind, _), part in image.parts.items() if kind is Section.TX)
    rx = sum(len(part.data) // DESCRIPTOR.itemsize for (kind, _), part in image.parts.items() if kind is Section.RX)
    return {"rank": image.rank, "bytes": len(data), "rows": rows, "tx": tx, "rx": rx}


def _section(image: Image, kind: Section, index: int, part: Part) -> Iterator[Line]:
    if kind is Section.WORDS:
        yield from _words(part)
    elif kind is Section.BUFFERS:
        yield from (
            Line(
                "buffer",
                part.offset,
                {"name": b.name, "offset": hex(b.offset), "size": b.size, "use": b.use.name or "INTERNAL"},
            )
            for b in image.buffers
        )
    elif kind is Section.SEMA:
        yield from (
            Line("preset", part.offset, {"sp": p.sp, "semaphore": p.identity, "value": p.value}) for p in image.presets
        )
    elif kind is Section.MEM:
        words = np.frombuffer(part.data, "<u4").tolist()
        yield Line("memory", part.offset, {"at": hex(index), "words": ",".join(map(str, words))})
    elif kind is Section.CTRL:
        yield _control(part, index)
    elif kind is Section.SLOT:
        yield from _slots(part, f"slot {index // SLOTS_PER_SP}.{index % SLOTS_PER_SP}")
    elif kind is Section.CONF:
        yield from _configuration(image, index, part)
    elif kind in (Section.TX, Section.RX):
        yield from _descriptors(kind, index, part)


def _word(word: Word, base: int = 0) -> Line:
    fields = {
        "op": word.opcode.name,
        "kind": word.kind.name,
        "alu": word.alu_op.name,
        "dtype": short_name(word.dtype),
        "group": word.group_id,
        "input": word.input_id,
        "output": word.output_id,
        "elements": word.num_elements,
        "wait": f"{word.wait_mode.name}[{word.wait_idx}]",
        "update": f"{word.update_mode.name}[{word.update_idx}]",
        "value": word.semaphore_value,
    }
    return Line("word", base + word.offset, fields)


def _words(part: Part) -> Iterator[Line]:
    try:
        words = decode_stream(bytes(part.data)).words
    except DecodeError:
        yield Line("words", part.offset, {"raw": bytes(part.data).hex()})
        return
    yield from (_word(word, part.offset) for word in words)


def _control(part: Part, sp: int) -> Line:
    try:
        entry = unpack_control(part.data)
    except DecodeError:
        return Line("control", part.offset, {"sp": sp, "raw": bytes(part.data).hex()})
    if entry.pattern is Pattern.INVALID:
        return Line("control", part.offset, {"sp": sp, "op": "NOP"})
    fields = {
        "sp": sp,
        "alg": Algorithm(entry.algo_type).name,
        "subalg": entry.algo_sub_type,
        "trignext": int(entry.trigger_next),
        "chlist": bin(entry.channel_list),
        "reporter": int(entry.reporter),
        "wait_complete": int(entry.ring_wait_complete),
        "send_complete": int(entry.ring_send_complete),
    }
    return Line("control", part.offset, fields)


def _slots(part: Part, name: str) -> Iterator[Line]:
    raw = np.frombuffer(part.data, "<u8").tolist()
    at = 0
    while at < len(raw) and not is_end(raw[at]):
        entry = SLOT.decode(part.data, at * ENTRY_SIZE)
        flags = [flag.name for flag in SlotFlag if entry[flag.name.lower() if flag.name else ""]]
        fields: Record = {"m2s": entry["m2s_val"], "s2m": entry["s2m_val"], "repeat": entry["repeat"]}
        yield Line(
            name, part.offset + at * ENTRY_SIZE, fields | ({"flags": "|".join(filter(None, flags))} if flags else {})
        )
        at += 1
    if at < len(raw):
        end = {
            "mark": "END",
            "value": raw[at] >> 32 & 0xFFFF,
            "completion": ",".join(hex(word) for word in raw[at + 1 :]),
        }
        yield Line(name, part.offset + at * ENTRY_SIZE, end)


def _configuration(image: Image, sp: int, part: Part) -> Iterator[Line]:
    layout = CONFIGURATIONS[image.arch.name]
    for channel in range(layout.part("ring").count):
        at = layout.part("ring").at + channel * RING_CHANNEL.size
        record = RING_CHANNEL.decode(part.data, at)
        if not record["mask"]:
            continue
        shown = ("recv_sema", "send_sema", "post_sema", "dma_compl_sema", "m2s_tail_ptr", "s2m_tail_ptr", "mask")
        fields: Record = {"sp": sp, "id": channel, "slot": record["spad_slot_idx"], "folds": record["fold_n"]}
        yield Line("channel", part.offset + at, fields | {name: hex(record[name]) for name in shown})
    at = layout.part("program").at
    block = PROGRAM_BLOCK.decode(part.data, at)
    starts = ("trigger", "trigger_next", "complete", "complete_prev")
    addresses: Record = {name: hex(block[name]) for name in starts}
    yield Line("program", part.offset + at, {"sp": sp, "op_num": block["op_num"]} | addresses)


def _descriptors(kind: Section, index: int, part: Part) -> Iterator[Line]:
    engine, queue = divmod(index, isa.QUEUES)
    table = np.frombuffer(part.data, DESCRIPTOR)
    sizes = decode_length(table["len_ctrl"]).tolist()
    name = f"{kind.name.lower()} {engine}.{queue}"
    for i, (word0, word1, address) in enumerate(table.tolist()):
        fields: Record = {"size": sizes[i], "address": f"0x{address:016x}", "phase": word0 >> RING_ID_SHIFT & 3}
        if kind is Section.TX:
            fields["op"] = _operation(word1)
            flags = [text for flag, text in _FLAGS if word0 & flag]
        else:
            flags = ["strong"] if word0 & RxFlag.STRONG_ORDER_WR else []
        yield Line(name, part.offset + i * DESCRIPTOR.itemsize, fields | ({"flags": "|".join(flags)} if flags else {}))


def _operation(word: int) -> str:
    if word == COPY_WORD:
        return "copy"
    try:
        decoded = decode_cce_word(word)
    except DecodeError:
        return f"raw:0x{word:08x}"
    return f"{decoded.op.name.lower()}:{short_name(decoded.transfer)}{':last' if decoded.last else ''}"
