"""The two 64-byte words that ask for a collective, and the walk through an instruction stream that finds them.

Other instructions are only checked for a known opcode and a sound header. Which tensors the ids mean, who is in
a group, and whether a planner takes the request is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, TypeVar

import numpy as np

from rota.columns import Array, Bool
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.dtypes import SIZE_SOURCE, Dtype, short_name, size_of
from rota.isa.enums import (
    CTYPE_OF_ENC,
    ENC_OF_CTYPE,
    PTC_ALU_MASK,
    PTC_ALU_MASK_SOURCE,
    REDUCING,
    AluOp,
    CollectiveType,
    EncOp,
    Opcode,
    UpdateMode,
    WaitMode,
)
from rota.isa.layout import Buffer, Field, Layout
from rota.isa.opcodes import KNOWN_OPCODES, describe_opcode

Vocabulary = TypeVar("Vocabulary", bound=IntEnum)

WORD_SIZE: Final = 64
INST_WORD_LEN: Final = 0x10  # in four-byte words; the only value a loader takes

HEADER: Final = Layout("header", size=4, source=Source("isa", "2.1", HIGH), fields=(
    # name                   at  type   meaning
    Field("opcode",           0, "u1",  "Opcode"),
    Field("inst_word_len",    1, "u1",  "always 0x10: sixteen four-byte words"),
    Field("debug_cmd",        2, "u1",  "what the profiler notes"),
    Field("debug_hint",       3, "u1",  "trace hint"),
))  # fmt: skip

EVENTS: Final = Layout("events", size=8, source=Source("isa", "2.2", HIGH), fields=(
    # name                   at  type   meaning
    Field("wait_mode",        0, "u1",  "WaitMode: what must hold before issue"),
    Field("wait_idx",         1, "u1",  "semaphore or event waited for"),
    Field("update_mode",      2, "u1",  "UpdateMode: what happens when done"),
    Field("update_idx",       3, "u1",  "semaphore or event updated"),
    Field("semaphore_value",  4, "<u4", "one value for the wait and for the update"),
))  # fmt: skip

# The beginning of every record but an extension.
RECORD: Final = Layout("record", size=WORD_SIZE, source=Source("isa", "2", HIGH), fields=(*HEADER.at(0), *EVENTS.at(4)))

ALL_REDUCE_WORD: Final = Layout("all_reduce_word", size=WORD_SIZE, source=Source("isa", "5.1", HIGH), fields=(
    # name                   at  type   meaning
    *HEADER.at(0),
    *EVENTS.at(4),
    Field("op",              12, "u1",  "AluOp: how elements combine"),
    Field("dtype",           13, "u1",  "Dtype of one element"),
    Field("input_id",        16, "<u4", "source tensor"),
    Field("output_id",       20, "<u4", "destination tensor"),
    Field("num_elements",    24, "<u8", "elements of the whole tensor"),
))  # fmt: skip

COLLECTIVE_WORD: Final = Layout("collective_word", size=WORD_SIZE, source=Source("isa", "5.2", HIGH), fields=(
    # name                   at  type   meaning
    *HEADER.at(0),
    *EVENTS.at(4),
    Field("op",              12, "u1",  "AluOp: how elements combine, where they do"),
    Field("dtype",           13, "u1",  "Dtype of one element"),
    Field("group_id",        14, "<u2", "replica group"),
    Field("input_id",        16, "<u4", "source tensor"),
    Field("output_id",       20, "<u4", "destination tensor"),
    Field("num_elements",    24, "<u8", "elements: of one rank's shard, or of the whole tensor for an all-reduce"),
    Field("ctype",           32, "u1",  "CollectiveType"),
    Field("src_offset",      48, "<u8", "first element of the source"),
    Field("dst_offset",      56, "<u8", "first element of the destination"),
))  # fmt: skip

_LAYOUTS: Final[Mapping[Opcode, Layout]] = {
    Opcode.PSEUDO_TRIGGER_ALL_REDUCE: ALL_REDUCE_WORD,
    Opcode.PSEUDO_TRIGGER_COLLECTIVE: COLLECTIVE_WORD,
}

# An extension follows one of these, and has neither header nor events of its own. Source: isa §5.4, high.
_EXTENDED: Final = (Opcode.PSEUDO_TRIGGER_COLLECTIVE2, Opcode.PSEUDO_DMA_DIRECT2D)

# 0xC7 has no group, offsets or kind of its own; it is read as a 0xC8 with these.
ALL_REDUCE_AS_COLLECTIVE: Final = Source("isa", "5.1", CONVENTION)
UPDATE_MODE_SOURCE: Final = Source("isa", "9", HIGH)
MULTIPLY_SOURCE: Final = Source("isa", "12 row 5", MEDIUM)
EMPTY_SOURCE: Final = Source("isa", "8.3", CONVENTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One collective word of a stream; `offset` is its byte offset there, offsets of tensors count elements."""

    index: int = 0
    offset: int = 0
    opcode: Opcode = Opcode.PSEUDO_TRIGGER_COLLECTIVE
    kind: EncOp
    alu_op: AluOp
    dtype: Dtype
    group_id: int = 0
    input_id: int
    output_id: int
    num_elements: int
    src_offset: int = 0
    dst_offset: int = 0
    wait_mode: WaitMode = WaitMode.NONE
    wait_idx: int = 0
    update_mode: UpdateMode = UpdateMode.SEM_INC_COMPLETE
    update_idx: int = 0
    semaphore_value: int = 0
    debug_cmd: int = 0
    debug_hint: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """What a walk found: the collective words in order, and how many records of each other opcode it passed."""

    words: tuple[Word, ...]
    passed: Mapping[int, int]


class Multiply(Enum):
    """Whether the trigger stage takes the multiply operation; its scale operands have no place in a word."""

    REFUSED = "refused"
    ACCEPTED = "accepted"


def decode_stream(data: Buffer) -> Stream:
    """Return the collective words of a raw instruction stream.

    Raises:
        DecodeError: the tail is no whole record, or a record has an unknown opcode, another length than 0x10, an
            unknown wait or update mode, stands alone where two belong together, or is a collective word whose
            fields mean nothing. The first such record is the one named.
    """
    records = RECORD.columns(data)
    opcode = records["opcode"]
    defects = _defects(opcode, records)
    sound = int(defects.argmax()) if defects.any() else opcode.size
    collective = np.isin(opcode[:sound], [int(each) for each in _LAYOUTS])
    words = tuple(decode_word(data, offset=WORD_SIZE * int(row)) for row in np.flatnonzero(collective))
    if sound < opcode.size:
        _refuse_record(data, sound)
    values, counts = np.unique(opcode[~collective], return_counts=True)
    return Stream(words, dict(zip(values.tolist(), counts.tolist(), strict=True)))


def decode_word(data: Buffer, *, offset: int = 0) -> Word:
    """Return the collective word at `offset`; the header and the modes are checked as in a stream.

    Raises:
        DecodeError: see `decode_stream`.
    """
    opcode = RECORD.decode(data, offset)["opcode"]
    if opcode not in _LAYOUTS:
        expected = " or ".join(describe_opcode(each) for each in _LAYOUTS)
        raise DecodeError("collective word", offset=offset, expected=expected, got=describe_opcode(opcode))
    _check_header(data, offset)
    layout = _LAYOUTS[Opcode(opcode)]
    stray = layout.reserved(data[offset : offset + WORD_SIZE])
    if stray is not None:
        got = f"0x{data[offset + stray]:02X}"
        raise DecodeError(f"reserved byte of {layout.name}", offset=offset + stray, expected="0x00", got=got)
    values = layout.decode(data, offset)
    ctype = _member(CollectiveType, values.get("ctype", CollectiveType.ALL_REDUCE), "collective type", offset + 32)
    if ctype is CollectiveType.INVALID:
        raise DecodeError("collective type", offset=offset + 32, expected="one from 0x01 to 0x09", got="0x00")
    return Word(
        index=offset // WORD_SIZE,
        offset=offset,
        opcode=Opcode(opcode),
        kind=ENC_OF_CTYPE[ctype],
        alu_op=_member(AluOp, values["op"], "ALU operation", offset + 12),
        dtype=_member(Dtype, values["dtype"], "element type", offset + 13),
        group_id=values.get("group_id", 0),
        input_id=values["input_id"],
        output_id=values["output_id"],
        num_elements=values["num_elements"],
        src_offset=values.get("src_offset", 0),
        dst_offset=values.get("dst_offset", 0),
        wait_mode=WaitMode(values["wait_mode"]),
        wait_idx=values["wait_idx"],
        update_mode=UpdateMode(values["update_mode"]),
        update_idx=values["update_idx"],
        semaphore_value=values["semaphore_value"],
        debug_cmd=values["debug_cmd"],
        debug_hint=values["debug_hint"],
    )


def encode_word(word: Word) -> bytes:
    """Return the 64 bytes of a word; `index` and `offset` say where it stood and are not part of it.

    Raises:
        UsageError: the opcode is not one of the two, it cannot express the kind or the group and offsets given,
            or a value does not fit its field.
    """
    layout = _LAYOUTS.get(word.opcode)
    if layout is None:
        raise UsageError(f"encode {describe_opcode(word.opcode)}: expected one of the two collective opcodes")
    values = {
        "opcode": word.opcode,
        "inst_word_len": INST_WORD_LEN,
        "debug_cmd": word.debug_cmd,
        "debug_hint": word.debug_hint,
        "wait_mode": word.wait_mode,
        "wait_idx": word.wait_idx,
        "update_mode": word.update_mode,
        "update_idx": word.update_idx,
        "semaphore_value": word.semaphore_value,
        "op": word.alu_op,
        "dtype": word.dtype,
        "input_id": word.input_id,
        "output_id": word.output_id,
        "num_elements": word.num_elements,
    }
    if layout is ALL_REDUCE_WORD:
        if (word.kind, word.group_id, word.src_offset, word.dst_offset) != (EncOp.ALLREDUCE, 0, 0, 0):
            raise UsageError(
                f"encode {describe_opcode(word.opcode)}: it says all-reduce in group 0 without offsets and nothing "
                f"else, got {word.kind.name} in group {word.group_id} with offsets {word.src_offset} and "
                f"{word.dst_offset}; use {describe_opcode(Opcode.PSEUDO_TRIGGER_COLLECTIVE)}"
            )
        return layout.encode(**values)
    ctype = CTYPE_OF_ENC.get(word.kind, CollectiveType.INVALID)
    if ctype is CollectiveType.INVALID:
        raise UsageError(f"encode {describe_opcode(word.opcode)}: {word.kind.name} has no collective type")
    return layout.encode(
        **values, ctype=ctype, group_id=word.group_id, src_offset=word.src_offset, dst_offset=word.dst_offset
    )


def check_trigger(word: Word, *, multiply: Multiply = Multiply.REFUSED) -> None:
    """Refuse a well-formed word that the trigger stage of the runtime would not plan.

    Raises:
        UnsupportedError: the word does not increment a semaphore on completion (0xC8), reduces by an operation the
            stage does not take, has elements without a size, or has no elements.
    """
    where = f"{describe_opcode(word.opcode)} at offset {word.offset}"
    if word.opcode is Opcode.PSEUDO_TRIGGER_COLLECTIVE and word.update_mode is not UpdateMode.SEM_INC_COMPLETE:
        raise UnsupportedError(
            f"{where}: update mode must be SEM_INC_COMPLETE, got {word.update_mode.name}", source=UPDATE_MODE_SOURCE
        )
    if word.kind in REDUCING and not PTC_ALU_MASK >> word.alu_op & 1:
        taken = ", ".join(op.name for op in AluOp if PTC_ALU_MASK >> op & 1)
        raise UnsupportedError(
            f"{where}: {word.kind.name} reduces by one of {taken}, got {word.alu_op.name}", source=PTC_ALU_MASK_SOURCE
        )
    if word.kind in REDUCING and word.alu_op is AluOp.MULT and multiply is Multiply.REFUSED:
        raise UnsupportedError(
            f"{where}: no FMA at this stage, the word has no place for the scales of MULT", source=MULTIPLY_SOURCE
        )
    if not size_of(word.dtype):
        name = short_name(word.dtype)
        raise UnsupportedError(f"{where}: {name} has no transfer size; use fp32", source=SIZE_SOURCE)
    if not word.num_elements:
        raise UnsupportedError(f"{where}: the collective has no elements, expected at least 1", source=EMPTY_SOURCE)


def _table(values: frozenset[int]) -> Bool:
    out = np.zeros(256, np.bool_)
    out[sorted(values)] = True
    return out


_KNOWN: Final = _table(KNOWN_OPCODES)
_WAITS: Final = frozenset(int(mode) for mode in WaitMode) - {WaitMode.INVALID}
_UPDATES: Final = frozenset(int(mode) for mode in UpdateMode) - {UpdateMode.INVALID}
_WAIT: Final = _table(_WAITS)
_UPDATE: Final = _table(_UPDATES)


def _defects(opcode: Array, records: Array) -> Bool:
    """Say which records `_refuse_record` has something against."""
    extension = opcode == Opcode.PSEUDO_EXTENSION
    after = np.zeros(opcode.size, np.bool_)
    after[1:] = np.isin(opcode[:-1], _EXTENDED)
    before = np.zeros(opcode.size, np.bool_)
    before[:-1] = extension[1:]
    headless = (records["inst_word_len"] != INST_WORD_LEN) | ~_WAIT[records["wait_mode"]]
    headless |= ~_UPDATE[records["update_mode"]]
    alone = (opcode == Opcode.PSEUDO_TRIGGER_COLLECTIVE2) & ~before
    defects: Bool = ~_KNOWN[opcode] | np.where(extension, ~after, headless | alone)
    return defects


def _refuse_record(data: Buffer, row: int) -> None:
    """Raise what is wrong with a record that `_defects` marked."""
    offset = row * WORD_SIZE
    opcode = data[offset]
    if opcode not in KNOWN_OPCODES:
        raise DecodeError("opcode", offset=offset, expected="a known opcode", got=f"0x{opcode:02X}")
    if opcode == Opcode.PSEUDO_EXTENSION:
        expected = " or ".join(describe_opcode(each) for each in _EXTENDED) + " in the record before"
        got = describe_opcode(data[offset - WORD_SIZE]) if row else "the beginning of the stream"
        raise DecodeError(describe_opcode(opcode), offset=offset, expected=expected, got=got)
    _check_header(data, offset)
    following = offset + WORD_SIZE
    raise DecodeError(
        f"record after {describe_opcode(opcode)}",
        offset=following,
        expected=describe_opcode(Opcode.PSEUDO_EXTENSION),
        got=describe_opcode(data[following]) if following < len(data) else "the end of the stream",
    )


def _check_header(data: Buffer, offset: int) -> None:
    values = RECORD.decode(data, offset)
    what = describe_opcode(values["opcode"])
    if values["inst_word_len"] != INST_WORD_LEN:
        got = f"0x{values['inst_word_len']:02X}"
        raise DecodeError(f"inst_word_len of {what}", offset=offset + 1, expected=f"0x{INST_WORD_LEN:02X}", got=got)
    for name, at, known in (("wait_mode", 4, _WAITS), ("update_mode", 6, _UPDATES)):
        if values[name] not in known:
            expected = "one of " + ", ".join(f"0x{mode:02X}" for mode in sorted(known))
            raise DecodeError(f"{name} of {what}", offset=offset + at, expected=expected, got=f"0x{values[name]:02X}")


def _member(kind: type[Vocabulary], value: int, what: str, offset: int) -> Vocabulary:
    try:
        return kind(value)
    except ValueError:
        raise DecodeError(what, offset=offset, expected=f"a value of {kind.__name__}", got=f"0x{value:02X}") from None
