"""The two 64-byte words that ask for a collective, and the walk through an instruction stream that finds them.

The walk also finds what asks for one in other records: pairs, sends and receives, and exchanges on a chip. Other
instructions are only checked for a known opcode and a sound header. Which tensors the ids mean, who is in a group,
and whether a planner takes the request is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from rota.columns import Array, Bool
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.counts import EMPTY_SOURCE, MAX_BYTES, OVERFLOW_SOURCE
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
from rota.isa.pairs import Pair, check_follower, check_operands, decode_pair
from rota.isa.records import EVENTS as EVENTS  # noqa: PLC0414 -- a word begins with these
from rota.isa.records import HEADER as HEADER  # noqa: PLC0414
from rota.isa.records import INST_WORD_LEN, RECORD, UPDATES, WAITS, WORD_SIZE, check_header, check_reserved, member
from rota.isa.transfers import Sb2Sb, SendRecv, decode_sb2sb, decode_send_recv

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

# The other records that ask for a collective, or begin a pair that does.
_OTHERS: Final = (Opcode.PSEUDO_TRIGGER_COLLECTIVE2, Opcode.PSEUDO_SEND_RECV, Opcode.SB2SB_COLLECTIVE)

# An extension follows one of these, and has neither header nor events of its own. Source: isa §5.4, high.
_EXTENDED: Final = (Opcode.PSEUDO_TRIGGER_COLLECTIVE2, Opcode.PSEUDO_DMA_DIRECT2D)

# 0xC7 has no group, offsets or kind of its own; it is read as a 0xC8 with these.
ALL_REDUCE_AS_COLLECTIVE: Final = Source("isa", "5.1", CONVENTION)
UPDATE_MODE_SOURCE: Final = Source("isa", "9", HIGH)
MULTIPLY_SOURCE: Final = Source("isa", "12 row 5", MEDIUM)


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
    """What a walk found, each in stream order; `passed` counts by opcode the records that are none of `words`.

    The records of pairs, transfers and exchanges are counted there too.
    """

    words: tuple[Word, ...]
    passed: Mapping[int, int]
    pairs: tuple[Pair, ...] = ()
    transfers: tuple[SendRecv, ...] = ()
    exchanges: tuple[Sb2Sb, ...] = ()


class Multiply(Enum):
    """Whether the trigger stage takes the multiply operation; its scale operands have no place in a word."""

    REFUSED = "refused"
    ACCEPTED = "accepted"


def decode_stream(data: Buffer) -> Stream:
    """Return the collectives of a raw instruction stream.

    Raises:
        DecodeError: the tail is no whole record, or a record has an unknown opcode, another length than 0x10, an
            unknown wait or update mode, stands alone where two belong together, or asks for a collective in fields
            that mean nothing. The first such record is the one named.
    """
    records = RECORD.columns(data)
    opcode = records["opcode"]
    defects = _defects(opcode, records)
    sound = int(defects.argmax()) if defects.any() else opcode.size
    rows = np.flatnonzero(np.isin(opcode[:sound], [int(each) for each in (*_LAYOUTS, *_OTHERS)]))
    words: list[Word] = []
    pairs: list[Pair] = []
    transfers: list[SendRecv] = []
    exchanges: list[Sb2Sb] = []
    for offset in (rows * WORD_SIZE).tolist():
        match data[offset]:
            case Opcode.PSEUDO_TRIGGER_COLLECTIVE2:
                pairs.append(decode_pair(data, offset=offset))
            case Opcode.PSEUDO_SEND_RECV:
                transfers.append(decode_send_recv(data, offset=offset))
            case Opcode.SB2SB_COLLECTIVE:
                exchanges.append(decode_sb2sb(data, offset=offset))
            case _:
                words.append(decode_word(data, offset=offset))
    if sound < opcode.size:
        _refuse_record(data, sound)
    values, counts = np.unique(opcode[~np.isin(opcode, [int(each) for each in _LAYOUTS])], return_counts=True)
    passed = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return Stream(tuple(words), passed, tuple(pairs), tuple(transfers), tuple(exchanges))


def decode_word(data: Buffer, *, offset: int = 0) -> Word:
    """Return the collective word at `offset`; the header and the modes are checked as in a stream.

    Raises:
        DecodeError: see `decode_stream`.
    """
    opcode = RECORD.decode(data, offset)["opcode"]
    if opcode not in _LAYOUTS:
        expected = " or ".join(describe_opcode(each) for each in _LAYOUTS)
        raise DecodeError("collective word", offset=offset, expected=expected, got=describe_opcode(opcode))
    check_header(data, offset)
    layout = _LAYOUTS[Opcode(opcode)]
    check_reserved(layout, data, offset)
    values = layout.decode(data, offset)
    ctype = member(CollectiveType, values.get("ctype", CollectiveType.ALL_REDUCE), "collective type", offset + 32)
    if ctype is CollectiveType.INVALID:
        raise DecodeError("collective type", offset=offset + 32, expected="one from 0x01 to 0x09", got="0x00")
    return Word(
        index=offset // WORD_SIZE,
        offset=offset,
        opcode=Opcode(opcode),
        kind=ENC_OF_CTYPE[ctype],
        alu_op=member(AluOp, values["op"], "ALU operation", offset + 12),
        dtype=member(Dtype, values["dtype"], "element type", offset + 13),
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


def check_trigger(word: Word | Pair, *, multiply: Multiply = Multiply.REFUSED) -> None:
    """Refuse a well-formed word or pair that the trigger stage of the runtime would not plan.

    Raises:
        UnsupportedError: a 0xC8 does not increment a semaphore on completion; a pair has operands of the wrong form;
            or it reduces by an operation the stage does not take, has elements without a size, no elements, or more
            bytes than 64 bits count.
    """
    opcode = word.opcode if isinstance(word, Word) else Opcode.PSEUDO_TRIGGER_COLLECTIVE2
    where = f"{describe_opcode(opcode)} at offset {word.offset}"
    if isinstance(word, Word):
        _check_update(word, where)
    else:
        check_operands(word)
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
    size = word.num_elements * size_of(word.dtype)
    if size > MAX_BYTES:
        raise UnsupportedError(
            f"{where}: {word.num_elements} elements of {short_name(word.dtype)} are {size} bytes, expected at most "
            f"{MAX_BYTES}",
            source=OVERFLOW_SOURCE,
        )


def _check_update(word: Word, where: str) -> None:
    if word.opcode is Opcode.PSEUDO_TRIGGER_COLLECTIVE and word.update_mode is not UpdateMode.SEM_INC_COMPLETE:
        raise UnsupportedError(
            f"{where}: update mode must be SEM_INC_COMPLETE, got {word.update_mode.name}", source=UPDATE_MODE_SOURCE
        )


def _table(values: frozenset[int]) -> Bool:
    out = np.zeros(256, np.bool_)
    out[sorted(values)] = True
    return out


_KNOWN: Final = _table(KNOWN_OPCODES)
_WAIT: Final = _table(WAITS)
_UPDATE: Final = _table(UPDATES)


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
        following = offset + WORD_SIZE
        turned = following < len(data) and data[following] in _EXTENDED
        expected = " or ".join(describe_opcode(each) for each in _EXTENDED) + " in the record before"
        got = describe_opcode(data[offset - WORD_SIZE]) if row else "the beginning of the stream"
        what = f"{describe_opcode(opcode)} in the wrong order" if turned else f"{describe_opcode(opcode)} alone"
        raise DecodeError(what, offset=offset, expected=expected, got=got)
    check_header(data, offset)
    check_follower(data, offset)
