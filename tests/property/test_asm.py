"""Text and bytes: every byte string survives its listing, a listing is canonical, no text breaks the assembler."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.device.asm import assemble
from rota.device.disasm import KINDS, disassemble
from rota.device.instructions import STRICT, WORDS
from rota.errors import DecodeError, UsageError
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR_SIZE
from rota.isa.image import MAGIC
from rota.isa.opcodes import KNOWN_OPCODES, Opcode
from rota.isa.records import INST_WORD_LEN
from rota.isa.spad import CONTINUE, END_TAG
from rota.isa.words import decode_stream

PARTS = tuple(kind for kind in KINDS if kind != "image")
_BYTE = st.one_of(st.sampled_from((0, 0, 0, 1, 2, 4, 6, 0x10, 0xFF)), st.integers(0, 255))


def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Return the bytes with a few of them replaced, and perhaps cut."""
    out = bytearray(data)
    for at, value in draw(st.lists(st.tuples(st.integers(0, max(len(out) - 1, 0)), _BYTE), max_size=6)):
        if out:
            out[at] = value
    return bytes(out[: draw(st.integers(0, len(out)))] if draw(st.booleans()) else out)


@st.composite
def streams(draw: st.DrawFn, *, opcodes: tuple[int, ...] = tuple(sorted(KNOWN_OPCODES))) -> bytes:
    """Return records with known opcodes, some fields set and some of them damaged."""
    records = []
    for opcode in draw(st.lists(st.sampled_from(opcodes), max_size=5)):
        shape = WORDS[opcode]
        record = bytearray(draw(st.lists(_BYTE, min_size=64, max_size=64)))
        for at in range(64):
            record[at] &= ~int(shape.unnamed[at]) & 0xFF
        if draw(st.booleans()):
            record = bytearray(64)
        record[0] = opcode
        if opcode != Opcode.PSEUDO_EXTENSION and draw(st.booleans()):
            record[1:8] = bytes([INST_WORD_LEN, 0, 0, 0, 0, 0, 0])
        if opcode == Opcode.PSEUDO_TRIGGER_COLLECTIVE2 and draw(st.booleans()):
            record += bytes([Opcode.PSEUDO_EXTENSION, *bytes(63)])
        records.append(bytes(record))
    return _mutated(draw, b"".join(records))


@st.composite
def descriptors(draw: st.DrawFn) -> bytes:
    """Return descriptors whose flags and operations mostly mean something."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 0xFFFF),
                st.sampled_from((0x01, 0x05, 0x0D, 0x29, 0x81, 0x40, 0xFF)),
                st.one_of(
                    st.sampled_from((COPY_WORD, 0, 0x02066000, 0x020BA080, 0x02266616, 0x02266690)),
                    st.integers(0, 0xFFFFFFFF),
                ),
                st.integers(0, (1 << 64) - 1),
            ),
            max_size=6,
        )
    )
    data = b"".join(
        (length | flags << 24).to_bytes(4, "little") + word.to_bytes(4, "little") + address.to_bytes(8, "little")
        for length, flags, word, address in rows
    )
    assert len(data) == DESCRIPTOR_SIZE * len(rows)
    return _mutated(draw, data)


@st.composite
def programs(draw: st.DrawFn) -> bytes:
    """Return scratchpad entries with marks among them."""
    entry = st.one_of(
        st.lists(_BYTE, min_size=8, max_size=8).map(bytes),
        st.just(bytes(8)),
        st.just(CONTINUE.to_bytes(8, "little")),
        st.integers(0, (1 << 48) - 1).map(lambda low: (END_TAG << 48 | low).to_bytes(8, "little")),
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 7)).map(
            lambda row: b"".join(value.to_bytes(2, "little") for value in row)
        ),
    )
    return _mutated(draw, b"".join(draw(st.lists(entry, max_size=12))))


def round_trip(data: bytes, kind: str) -> None:
    """Hold the laws for one byte string."""
    text = "\n".join(disassemble(data, kind).lines())
    again = assemble(text)
    assert again == data
    assert "\n".join(disassemble(again, kind).lines()) == text
    assert assemble("\n".join(disassemble(data, kind).lines(raw=data))) == data


@pytest.mark.parametrize("kind", PARTS)
@settings(deadline=None)
@given(data=st.one_of(st.binary(max_size=300), st.lists(_BYTE, max_size=300).map(bytes)))
def test_any_bytes_come_back(kind: str, data: bytes) -> None:
    """asm(disasm(bytes)) is the bytes, whatever they are and whatever they are taken for."""
    round_trip(data, kind)


@settings(deadline=None)
@given(data=streams())
def test_streams_come_back(data: bytes) -> None:
    """So do instruction records, sound, damaged and cut."""
    round_trip(data, "stream")


@pytest.mark.parametrize("kind", ["tx", "rx"])
@settings(deadline=None)
@given(data=descriptors())
def test_descriptors_come_back(kind: str, data: bytes) -> None:
    """So do descriptors of either side."""
    round_trip(data, kind)


@pytest.mark.parametrize("kind", ["ctrl", "slot", "conf"])
@settings(deadline=None)
@given(data=programs())
def test_scratchpads_come_back(kind: str, data: bytes) -> None:
    """So do control tables and slot programs."""
    round_trip(data, kind)


@settings(deadline=None)
@given(data=st.one_of(st.binary(max_size=600), st.lists(_BYTE, max_size=600).map(bytes)), count=st.integers(0, 12))
def test_any_image_comes_back(data: bytes, count: int) -> None:
    """So does whatever begins like an image, and however its table lies."""
    round_trip(MAGIC + count.to_bytes(4, "little") + data, "image")
    round_trip(data, "image")


@settings(deadline=None)
@given(data=streams(opcodes=(*sorted(STRICT), Opcode.NOP, Opcode.PSEUDO_DMA_DIRECT2D, Opcode.PSEUDO_CORE_BARRIER)))
def test_damage_is_what_the_stream_is_refused_for(data: bytes) -> None:
    """A listing calls a stream damaged exactly when the decoder refuses it."""
    damaged = bool(disassemble(data, "stream").damaged)
    try:
        decode_stream(data)
    except DecodeError:
        assert damaged
    else:
        assert not damaged


_WORDS = """
    ; : = - . 0 1 auto .raw .zero .align .section .end 0x ff S[1]>0 S[2]++ wait update value kind op size flags tx rx
    slot end digest section image buffer name= Nop PseudoTriggerCol channel body add:bf16>bf16 first|last var[1]
    kind=ALL_REDUCE op=add wait=S[1]>0 wait= body=00 crc32=auto
"""
_WORD = st.sampled_from(_WORDS.split())
_LINE = st.lists(st.one_of(_WORD, st.text(max_size=6)), max_size=6)


@settings(deadline=None)
@given(
    title=st.one_of(st.sampled_from(KINDS).map(lambda kind: f"; rota {kind} 1"), st.text(max_size=20)),
    lines=st.lists(st.tuples(_LINE, st.sampled_from((" ", "", "="))).map(lambda pair: pair[1].join(pair[0]))),
)
def test_no_text_breaks_the_assembler(title: str, lines: list[str]) -> None:
    """Bytes or a UsageError; never anything else."""
    try:
        assemble("\n".join([title, *lines]))
    except UsageError:
        return


@settings(deadline=None)
@given(data=streams(), at=st.integers(0, 10_000), put=st.text(max_size=3))
def test_edited_text_is_read_or_refused(data: bytes, at: int, put: str) -> None:
    """A listing with a few characters replaced gives bytes whose listing is canonical, or a UsageError."""
    text = "\n".join(disassemble(data, "stream").lines())
    at %= len(text) + 1
    try:
        result = assemble(text[:at] + put + text[at + len(put) :])
    except UsageError:
        return
    round_trip(result, "stream")
