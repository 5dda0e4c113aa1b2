"""The collective words and the walk through a stream, against isa §2, §5, §9 and §14."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, CollectiveType, EncOp, Opcode, UpdateMode, WaitMode
from rota.isa.words import (
    ALL_REDUCE_WORD,
    COLLECTIVE_WORD,
    EVENTS,
    HEADER,
    RECORD,
    Multiply,
    Word,
    check_trigger,
    decode_stream,
    decode_word,
    encode_word,
)

REAL = Word(
    opcode=Opcode.PSEUDO_TRIGGER_COLLECTIVE,
    kind=EncOp.ALLREDUCE,
    alu_op=AluOp.ADD,
    dtype=Dtype.FP32,
    input_id=3,
    output_id=4,
    num_elements=32,
    wait_mode=WaitMode.WAIT_FOR_SEM_GT_IMM,
    wait_idx=10,
    update_mode=UpdateMode.SEM_INC_COMPLETE,
    update_idx=22,
)
CONSTRUCTED = Word(
    opcode=Opcode.PSEUDO_TRIGGER_ALL_REDUCE,
    kind=EncOp.ALLREDUCE,
    alu_op=AluOp.ADD,
    dtype=Dtype.BFLOAT16,
    input_id=7,
    output_id=8,
    num_elements=4096,
    wait_mode=WaitMode.WAIT_FOR_SEM_GE_IMM,
    wait_idx=3,
    update_mode=UpdateMode.SEM_INC_COMPLETE,
    update_idx=9,
    semaphore_value=1,
)


def record(opcode: int, *rest: int) -> bytes:
    """Return 64 bytes that begin with these and go on with zeros."""
    return bytes([opcode, *rest]).ljust(64, b"\0")


def changed(data: bytes, at: int, value: int) -> bytes:
    """Return the data with one byte changed."""
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "word"), [("collective_word.hex", REAL), ("all_reduce_word.hex", CONSTRUCTED)], ids=["0xC8", "0xC7"]
)
def test_golden_words(name: str, word: Word, golden: Callable[[str], bytes]) -> None:
    """isa §5.2, §14: the two records decode to what the page says, and encode to the same 64 bytes."""
    data = golden(name)
    assert decode_stream(data).words == (word,)
    assert encode_word(word) == data


def test_a_dedicated_word_is_an_all_reduce_of_group_zero() -> None:
    """isa §5.1: 0xC7 is read as 0xC8 with ctype ALL_REDUCE, group 0 and offsets 0."""
    generic = dataclasses.replace(CONSTRUCTED, opcode=Opcode.PSEUDO_TRIGGER_COLLECTIVE)
    read = decode_word(encode_word(CONSTRUCTED))
    assert (
        dataclasses.replace(read, opcode=Opcode.PSEUDO_TRIGGER_COLLECTIVE)
        == generic
        == decode_word(encode_word(generic))
    )


def test_a_word_is_plain_unless_told() -> None:
    """What a word leaves out is 0: group, offsets, waiting; it increments semaphore 0 on completion."""
    word = Word(kind=EncOp.ALLGATHER, alu_op=AluOp.BYPASS, dtype=Dtype.INT8, input_id=1, output_id=2, num_elements=3)
    assert encode_word(word).hex(" ", 4) == (
        "c8100000 00001300 00000000 00020000 01000000 02000000 03000000 00000000 03000000" + " 00000000" * 7
    )
    assert (word.index, word.offset) == (0, 0)


def test_every_field_of_the_generic_word_has_its_place() -> None:
    """isa §5.2: offset and width of each field."""
    word = dataclasses.replace(
        REAL, kind=EncOp.ALLTOALL_V, alu_op=AluOp.BYPASS, dtype=Dtype.INT8, group_id=0x0201, input_id=0x06050403,
        output_id=0x0A090807, num_elements=0x1211100F0E0D0C0B, src_offset=0x2827262524232221,
        dst_offset=0x3837363534333231, semaphore_value=0x44434241, debug_cmd=1, debug_hint=2,
    )  # fmt: skip
    assert encode_word(word).hex(" ", 4) == (
        "c8100102 040a1316 41424344 00020102 03040506 0708090a 0b0c0d0e 0f101112 "
        "09000000 00000000 00000000 00000000 21222324 25262728 31323334 35363738"
    )


def test_walk_passes_other_instructions_and_counts_them() -> None:
    """A stream is 64-byte records; those that are no collective word are counted by opcode, in any number."""
    move, halt = record(0xA7, 0x10), record(0xA1, 0x10)
    stream = decode_stream(move + encode_word(REAL) + move + halt + encode_word(CONSTRUCTED))
    assert [(word.index, word.offset) for word in stream.words] == [(1, 64), (4, 256)]
    assert stream.passed == {0xA7: 2, 0xA1: 1}


def test_empty_stream() -> None:
    """A stream may be empty."""
    assert decode_stream(b"").words == ()


def test_extension_has_no_header() -> None:
    """isa §5.4: byte 1 of 0xDA is the chaining, and bytes 4 to 11 are data, not events; 0xD4 has one, too."""
    first = changed(record(0xD9, 0x10), 14, CollectiveType.ALL_GATHER)
    pair = first + record(0xDA, 3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF)
    assert decode_stream(pair).passed == {0xD9: 1, 0xDA: 1}
    assert decode_stream(record(0xD4, 0x10) + record(0xDA, 3)).passed == {0xD4: 1, 0xDA: 1}
    assert not decode_stream(record(0xD4, 0x10) + record(0xDA, 3)).pairs


GOOD = encode_word(REAL)
SHORT = encode_word(CONSTRUCTED)
REFUSED = [
    # data, offset, part of the message
    (bytes(63), 0, "truncated record at offset 0: expected 64 bytes, got 63 bytes"),
    (GOOD + bytes(3), 64, "truncated record at offset 64: expected 64 bytes, got 3 bytes"),
    (GOOD + record(0x00, 0x10), 64, "opcode at offset 64: expected a known opcode, got 0x00"),
    (record(0xC0, 0x10), 0, "opcode at offset 0: expected a known opcode, got 0xC0"),
    (record(0xFF, 0x10), 0, "opcode at offset 0: expected a known opcode, got 0xFF"),
    (GOOD + record(0xA7, 0x40), 65, "inst_word_len of MOVE 0xA7 at offset 65: expected 0x10, got 0x40"),
    (changed(GOOD, 1, 0), 1, "inst_word_len of PSEUDO_TRIGGER_COLLECTIVE 0xC8"),
    (GOOD + changed(GOOD, 4, 0x08), 68, "wait_mode of PSEUDO_TRIGGER_COLLECTIVE 0xC8 at offset 68: expected one of"),
    (changed(GOOD, 4, 0xFF), 4, "wait_mode of PSEUDO_TRIGGER_COLLECTIVE 0xC8 at offset 4"),
    (changed(GOOD, 6, 0x06), 6, "update_mode of PSEUDO_TRIGGER_COLLECTIVE 0xC8 at offset 6"),
    (record(0xA7, 0x10, 0, 0, 0, 0, 0xFF), 6, "update_mode of MOVE 0xA7 at offset 6"),
    (changed(GOOD, 32, 0), 32, "collective type at offset 32: expected one from 0x01 to 0x09, got 0x00"),
    (changed(GOOD, 32, 10), 32, "collective type at offset 32: expected a value of CollectiveType, got 0x0A"),
    (changed(GOOD, 33, 1), 33, "reserved byte of collective_word at offset 33: expected 0x00, got 0x01"),
    (GOOD + changed(GOOD, 47, 9), 111, "reserved byte of collective_word at offset 111: expected 0x00, got 0x09"),
    (changed(GOOD, 12, 0x17), 12, "ALU operation at offset 12: expected a value of AluOp, got 0x17"),
    (changed(GOOD, 13, 0x10), 13, "element type at offset 13: expected a value of Dtype, got 0x10"),
    (changed(SHORT, 14, 1), 14, "reserved byte of all_reduce_word at offset 14: expected 0x00, got 0x01"),
    (changed(SHORT, 32, 1), 32, "reserved byte of all_reduce_word at offset 32"),
    (changed(SHORT, 63, 1), 63, "reserved byte of all_reduce_word at offset 63"),
    (record(0xDA, 3), 0, "expected PSEUDO_TRIGGER_COLLECTIVE2 0xD9 or PSEUDO_DMA_DIRECT2D 0xD4 in the record before"),
    (GOOD + record(0xDA, 3), 64, "in the record before, got PSEUDO_TRIGGER_COLLECTIVE 0xC8"),
    (record(0xD9, 0x10) + GOOD, 64, "record after PSEUDO_TRIGGER_COLLECTIVE2 0xD9 at offset 64: expected PSEUDO_EXT"),
    (record(0xD9, 0x10), 64, "got the end of the stream"),
    (changed(GOOD, 33, 1) + record(0x00), 33, "the first defect is named, whatever its kind"),
    (record(0x00) + changed(GOOD, 33, 1), 0, "the first defect is named, whatever its kind"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "offset", "message"), REFUSED)
def test_what_means_nothing_is_refused_with_its_place(data: bytes, offset: int, message: str) -> None:
    """isa §2.6, §5: each failure is a DecodeError with offset, expected and got; the first defect is the one named."""
    with pytest.raises(DecodeError) as caught:
        decode_stream(data)
    assert caught.value.offset == offset
    assert caught.value.expected
    assert caught.value.got
    assert message.startswith("the first") or message in str(caught.value)


def test_a_single_word_must_be_one_of_the_two() -> None:
    """`decode_word` reads 0xC7 and 0xC8 and nothing else."""
    with pytest.raises(DecodeError, match="expected PSEUDO_TRIGGER_ALL_REDUCE 0xC7 or PSEUDO_TRIGGER_COLLECTIVE 0xC8"):
        decode_word(record(0xA7, 0x10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"opcode": Opcode.NOP}, "expected one of the two collective opcodes"),
        ({"kind": EncOp.BROADCAST}, "BROADCAST has no collective type"),
        ({"kind": EncOp.INVALID}, "INVALID has no collective type"),
        ({"group_id": 1 << 16}, "collective_word.group_id: expected a value from 0 to 65535, got 65536"),
        ({"num_elements": -1}, "collective_word.num_elements"),
    ],
)
def test_encode_refuses_what_the_word_cannot_say(change: dict[str, int], message: str) -> None:
    """A value without a place or out of range is a UsageError."""
    with pytest.raises(UsageError, match=message):
        encode_word(dataclasses.replace(REAL, **change))


@pytest.mark.parametrize(
    "change", [{"kind": EncOp.REDUCE_SCATTER}, {"group_id": 1}, {"src_offset": 1}, {"dst_offset": 1}]
)
def test_the_dedicated_word_says_nothing_else(change: dict[str, int]) -> None:
    """isa §5.1: 0xC7 has no type, group or offsets; a word that needs them is sent to 0xC8."""
    with pytest.raises(UsageError, match="use PSEUDO_TRIGGER_COLLECTIVE 0xC8"):
        encode_word(dataclasses.replace(CONSTRUCTED, **change))


def test_trigger_stage_takes_the_golden_words() -> None:
    """isa §9: both are well-formed and planned."""
    check_trigger(REAL)
    check_trigger(CONSTRUCTED)


@pytest.mark.parametrize(
    ("change", "message", "section"),
    [
        ({"update_mode": UpdateMode.NONE}, "update mode must be SEM_INC_COMPLETE, got NONE", "9"),
        ({"update_mode": UpdateMode.SEM_INC_READ}, "update mode must be SEM_INC_COMPLETE, got SEM_INC_READ", "9"),
        ({"alu_op": AluOp.BYPASS}, "ALLREDUCE reduces by one of ADD, MULT, MAX, MIN, got BYPASS", "8.1"),
        ({"kind": EncOp.PERMUTE_REDUCE, "alu_op": AluOp.ADD_INT}, "PERMUTE_REDUCE reduces by one of", "8.1"),
        ({"alu_op": AluOp.MULT}, "no FMA at this stage", "12 row 5"),
        ({"dtype": Dtype.FP32R}, "fp32r has no transfer size; use fp32", "9"),
        ({"dtype": Dtype.INVALID}, "invalid has no transfer size", "9"),
        ({"num_elements": 0}, "expected at least 1", "8.3"),
        ({"num_elements": 1 << 62}, "4611686018427387904 elements of fp32 are 18446744073709551616 bytes", "5.2"),
    ],
)
def test_trigger_stage_refuses(change: dict[str, int], message: str, section: str) -> None:
    """isa §9: what the stage would not plan is an UnsupportedError that carries its source."""
    with pytest.raises(UnsupportedError, match=message) as caught:
        check_trigger(dataclasses.replace(REAL, **change))
    assert caught.value.source is not None
    assert caught.value.source.section == section


@pytest.mark.parametrize("op", list(AluOp))
@pytest.mark.parametrize("kind", [EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER])
def test_trigger_stage_operations(kind: EncOp, op: AluOp) -> None:
    """isa §8.1: a reducing collective passes when bit `op` of 0x350 is set, for every operation there is."""
    word = dataclasses.replace(REAL, kind=kind, alu_op=op)
    if op in (4, 6, 8, 9):
        check_trigger(word, multiply=Multiply.ACCEPTED)
    else:
        with pytest.raises(UnsupportedError):
            check_trigger(word, multiply=Multiply.ACCEPTED)


def test_kinds_that_only_move_take_any_operation() -> None:
    """isa §8.1: the operation mask is for reducing kinds; an all-gather carries bypass."""
    check_trigger(dataclasses.replace(REAL, kind=EncOp.ALLGATHER, alu_op=AluOp.BYPASS))


def test_update_mode_of_the_dedicated_word_is_free() -> None:
    """isa §9: the rule on the update mode is one of 0xC8."""
    check_trigger(dataclasses.replace(CONSTRUCTED, update_mode=UpdateMode.NONE))


def test_every_collective_type_has_a_word() -> None:
    """isa §6.1: types 1 to 9 go through the word unchanged."""
    for ctype in list(CollectiveType)[1:]:
        data = changed(GOOD, 32, ctype)
        assert encode_word(decode_word(data)) == data


def test_sizes() -> None:
    """isa §2: a header has 4 bytes, events 8, a record 64."""
    assert [layout.size for layout in (HEADER, EVENTS, RECORD, ALL_REDUCE_WORD, COLLECTIVE_WORD)] == [4, 8, 64, 64, 64]


def test_reserved_bytes_are_those_the_pages_print() -> None:
    """isa §5.1, §5.2: 0xC7 leaves 14..15 and 32..63, 0xC8 leaves 33..47."""
    for layout, gaps in ((ALL_REDUCE_WORD, {14, 15, *range(32, 64)}), (COLLECTIVE_WORD, set(range(33, 48)))):
        assert {at for at in range(64) if layout.reserved(bytes(at) + b"\x80") is not None} == gaps
