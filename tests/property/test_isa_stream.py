"""Laws of the words and of the walk through a stream, against a walk written out record by record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from rota.errors import DecodeError, UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CTYPE_OF_ENC, AluOp, EncOp, Opcode, UpdateMode, WaitMode
from rota.isa.opcodes import KNOWN_OPCODES
from rota.isa.pairs import decode_pair
from rota.isa.words import Stream, Word, check_trigger, decode_stream, decode_word, encode_word

T = TypeVar("T")

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
WAITS = [mode for mode in WaitMode if mode is not WaitMode.INVALID]
UPDATES = [mode for mode in UpdateMode if mode is not UpdateMode.INVALID]
KINDS = [kind for kind in CTYPE_OF_ENC if kind is not EncOp.INVALID]

generic = st.builds(
    Word,
    opcode=st.just(Opcode.PSEUDO_TRIGGER_COLLECTIVE),
    kind=st.sampled_from(KINDS),
    alu_op=st.sampled_from(AluOp),
    dtype=st.sampled_from(Dtype),
    group_id=U16,
    input_id=U32,
    output_id=U32,
    num_elements=U64,
    src_offset=U64,
    dst_offset=U64,
    wait_mode=st.sampled_from(WAITS),
    wait_idx=U8,
    update_mode=st.sampled_from(UPDATES),
    update_idx=U8,
    semaphore_value=U32,
    debug_cmd=U8,
    debug_hint=U8,
)
dedicated = generic.map(
    lambda word: dataclasses.replace(
        word,
        opcode=Opcode.PSEUDO_TRIGGER_ALL_REDUCE,
        kind=EncOp.ALLREDUCE,
        group_id=0,
        src_offset=0,
        dst_offset=0,
    )
)
words = generic | dedicated


def other(opcode: int, length: int, wait: int, update: int) -> bytes:
    """Return a record that is no collective word."""
    return bytes([opcode, length, 0, 0, wait, 0, update]).ljust(64, b"\0")


# Records that are often sound, and wrong in one place often enough.
records = (
    words.map(encode_word)
    | st.builds(
        other,
        st.sampled_from([0xA7, 0xD9, 0xDA, 0xD4, 0x41, 0x00, 0xC0]),
        st.sampled_from([0x10] * 9 + [0x40]),
        st.sampled_from([0] * 9 + [8]),
        st.sampled_from([0] * 9 + [6]),
    )
    | st.just(other(0xD9, 0x10, 0, 0) + other(0xDA, 3, 0xFF, 0xFF))
    | st.just(other(0xD9, 0x10, 0, 0)[:14] + b"\x03".ljust(50, b"\0") + other(0xDA, 3, 0xFF, 0xFF))
)
streams = st.lists(records, max_size=8).map(b"".join)


def walk(data: bytes) -> tuple[list[int], dict[int, int]]:
    """Return the offsets of the collective words and the count of other opcodes: the rules, one record at a time."""
    found: list[int] = []
    passed: dict[int, int] = {}
    for offset in range(0, len(data), 64):
        opcode = data[offset]
        before = data[offset - 64] if offset else None
        after = data[offset + 64] if offset + 64 < len(data) else None
        if opcode not in KNOWN_OPCODES:
            raise DecodeError("opcode", offset=offset, expected="", got="")
        if opcode == 0xDA:
            if before not in (0xD9, 0xD4):
                raise DecodeError("extension", offset=offset, expected="", got="")
        else:
            if data[offset + 1] != 0x10:
                raise DecodeError("length", offset=offset + 1, expected="", got="")
            if data[offset + 4] not in WAITS:
                raise DecodeError("wait", offset=offset + 4, expected="", got="")
            if data[offset + 6] not in UPDATES:
                raise DecodeError("update", offset=offset + 6, expected="", got="")
            if opcode == 0xD9 and after != 0xDA:
                raise DecodeError("pair", offset=offset + 64, expected="", got="")
        if opcode in (0xC7, 0xC8):
            decode_word(data, offset=offset)
            found.append(offset)
        else:
            passed[opcode] = passed.get(opcode, 0) + 1
        if opcode == 0xD9:
            decode_pair(data, offset=offset)
    return found, passed


def outcome(read: Callable[[bytes], T], data: bytes) -> T | DecodeError:
    """Return what reading the data gives, an error as a value."""
    try:
        return read(data)
    except DecodeError as error:
        return error


@given(word=words)
def test_a_word_goes_through_its_bytes(word: Word) -> None:
    """decode∘encode is the identity on words."""
    assert decode_word(encode_word(word)) == word
    assert decode_stream(encode_word(word)) == Stream((word,), {})


@given(data=streams)
def test_bytes_go_through_their_words(data: bytes) -> None:
    """encode∘decode is the identity on the collective records of any stream that is taken."""
    match outcome(decode_stream, data):
        case Stream(found):
            assert all(encode_word(word) == data[word.offset : word.offset + 64] for word in found)
            assert all(word.index * 64 == word.offset for word in found)
        case DecodeError():
            pass


@given(data=streams)
@example(data=other(0xD9, 0x10, 0, 0))
@example(data=other(0xDA, 3, 0, 0))
@example(data=other(0xD9, 0x10, 0, 0) * 2 + other(0xDA, 3, 0, 0))
def test_the_walk_is_the_loop(data: bytes) -> None:
    """The walk over columns finds the words, the counts and the first defect that a loop over records finds."""
    match outcome(walk, data), outcome(decode_stream, data):
        case (offsets, passed), Stream(found, counts):
            assert ([word.offset for word in found], counts) == (offsets, passed)
        case DecodeError() as expected, DecodeError() as error:
            assert error.offset == expected.offset
        case expected, got:
            raise AssertionError(f"expected {expected}, got {got}")


@given(data=st.binary(max_size=320))
def test_random_bytes_only_ever_give_decode_errors(data: bytes) -> None:
    """Whatever the bytes, the answer is a stream or a DecodeError inside them."""
    caught = outcome(decode_stream, data)
    if isinstance(caught, DecodeError):
        assert 0 <= caught.offset <= len(data)


@given(word=words, at=st.integers(0, 63), value=U8)
def test_one_changed_byte_is_another_word_or_an_error(word: Word, at: int, value: int) -> None:
    """No byte of a record is ignored: changing one changes the word, makes it no word, or is refused."""
    data = encode_word(word)
    changed = data[:at] + bytes([value]) + data[at + 1 :]
    match outcome(decode_stream, changed):
        case Stream(found):
            assert (found == (word,)) == (changed == data)
        case DecodeError() as error:
            assert at in (error.offset, 0)


@given(word=words)
def test_the_trigger_stage_only_ever_refuses_with_a_source(word: Word) -> None:
    """Any word that decodes is taken, or refused with the place and the rule that refuses it."""
    refusal: UnsupportedError | None = None
    try:
        check_trigger(word)
    except UnsupportedError as error:
        refusal = error
    assert refusal is None or (refusal.source is not None and f"at offset {word.offset}" in str(refusal))
