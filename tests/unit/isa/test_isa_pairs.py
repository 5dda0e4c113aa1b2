"""The collective of two records, its chains and its refusals, against isa §5.3, §5.4 and §10."""

from __future__ import annotations

import dataclasses

import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, Chaining, EncOp, UpdateMode, WaitMode
from rota.isa.operands import Pattern2D, variable
from rota.isa.pairs import Dimension, Pair, chains, decode_pair, encode_pair
from rota.isa.records import Events
from rota.isa.words import Multiply, check_trigger, decode_stream

EVENTS = Events(WaitMode.WAIT_FOR_SEM_GE_IMM, 2, UpdateMode.SEM_INC_COMPLETE, 3, 4)
PAIR = Pair(
    kind=EncOp.REDUCE_SCATTER,
    alu_op=AluOp.ADD,
    dtype=Dtype.BFLOAT16,
    cc_dim=Dimension.FREE,
    src0=variable(0x11, step=(-1, 2), num=(3, 4)),
    src1=variable(0x22, step=(5, 6), num=(7, 8)),
    dst=variable(0x33, step=(9, 10), num=(11, 12)),
    chaining=Chaining.NONE,
    group_id=0x0102,
    channel_id=0x0304,
    stream_id=0x0506,
    priority_class=4,
    cc_buf_start=0x0807060504030201,
    cc_buf_size=0x0C0B0A09,
    cross_sb_out=0x0D,
    src1_bitmap=0x1514131211100F0E,
    events=EVENTS,
)
DATA = encode_pair(PAIR)


def changed(at: int, *values: int) -> bytes:
    """Return the pair with bytes changed."""
    return DATA[:at] + bytes(values) + DATA[at + len(values) :]


def test_byte_by_byte() -> None:
    """isa §5.3, §5.4: every field of both records has its place."""
    assert DATA.hex(" ", 4) == (
        "d9100000 05021303 04000000 04060201 11000000 00000010 ffffffff 02000000 "
        "03000000 04000000 22000000 00000010 05000000 06000000 07000000 08000000 "
        "da000201 04030605 33000000 00000010 09000000 0a000000 0b000000 0c000000 "
        "01020304 05060708 0d040000 090a0b0c 0e0f1011 12131415 00000000 00000000"
    )
    assert decode_pair(DATA) == PAIR


def test_a_stream_lists_pairs() -> None:
    """A pair is one entry of the walk, with the place of its first record; its records are counted as passed, too."""
    stream = decode_stream(bytes([0xA7, 0x10]).ljust(64, b"\0") + DATA + DATA)
    assert [(pair.index, pair.offset) for pair in stream.pairs] == [(1, 64), (3, 192)]
    assert stream.pairs[0] == dataclasses.replace(PAIR, index=1, offset=64)
    assert (stream.words, stream.passed) == ((), {0xA7: 1, 0xD9: 2, 0xDA: 2})


def test_the_extension_has_neither_header_nor_events() -> None:
    """isa §5.4: bytes 1 to 11 of 0xDA are its own fields: no length, no modes."""
    pair = decode_pair(changed(64 + 2, *[0xFF] * 6))
    assert (pair.group_id, pair.channel_id, pair.stream_id) == (0xFFFF, 0xFFFF, 0xFFFF)


def test_no_second_source() -> None:
    """isa §5.3: the second source is there, or its 24 bytes are zero."""
    alone = dataclasses.replace(PAIR, src1=None)
    data = encode_pair(alone)
    assert data[40:64] == bytes(24)
    assert decode_pair(data) == alone


OTHER = bytes([0xA7, 0x10]).ljust(64, b"\0")
EXTENSION = DATA[64:]
NAMED = [
    # data, offset, message
    (EXTENSION, 0, "PSEUDO_EXTENSION 0xDA alone at offset 0: expected PSEUDO_TRIGGER_COLLECTIVE2 0xD9 or PSEUDO_DMA_"),
    (DATA + EXTENSION, 128, "PSEUDO_EXTENSION 0xDA alone at offset 128"),
    (OTHER + EXTENSION, 64, "in the record before, got MOVE 0xA7"),
    (
        DATA[:64] + DATA,
        64,
        "PSEUDO_TRIGGER_COLLECTIVE2 0xD9 twice, record after PSEUDO_TRIGGER_COLLECTIVE2 0xD9 at off",
    ),
    (EXTENSION + DATA[:64], 0, "PSEUDO_EXTENSION 0xDA in the wrong order at offset 0"),
    (DATA[:64] + OTHER + EXTENSION, 64, "record after PSEUDO_TRIGGER_COLLECTIVE2 0xD9 at offset 64: expected PSEUDO_E"),
    (DATA[:64], 64, "expected PSEUDO_EXTENSION 0xDA, got the end of the stream"),
    (DATA[:100], 64, "truncated record at offset 64: expected 64 bytes, got 36 bytes"),
    (changed(14, 0), 14, "collective type at offset 14: expected one from 0x01 to 0x09, got 0x00"),
    (changed(14, 10), 14, "collective type at offset 14: expected a value of CollectiveType, got 0x0A"),
    (changed(12, 0x17), 12, "ALU operation at offset 12: expected a value of AluOp, got 0x17"),
    (changed(13, 0x10), 13, "element type at offset 13: expected a value of Dtype, got 0x10"),
    (changed(15, 2), 15, "collective dimension at offset 15: expected a value of Dimension, got 0x02"),
    (changed(1, 0x40), 1, "inst_word_len of PSEUDO_TRIGGER_COLLECTIVE2 0xD9 at offset 1"),
    (changed(64 + 1, 4), 65, "chaining at offset 65: expected a value of Chaining, got 0x04"),
    (changed(64 + 41, 5), 105, "priority class at offset 105: expected one from 0 to 4, got 5"),
    (changed(64 + 41, 8), 105, "reserved byte of extension_word at offset 105"),
    (changed(64 + 42, 1), 106, "reserved byte of extension_word at offset 106"),
    (changed(64 + 63, 1), 127, "reserved byte of extension_word at offset 127"),
    (changed(20, 1), 20, "reserved byte of a variable's address at offset 20"),
    (changed(46, 1), 46, "reserved byte of a variable's address at offset 46"),
    (changed(64 + 15, 0x11), 79, "reserved byte of a variable's address at offset 79: expected 0x10, got 0x11"),
]


@pytest.mark.parametrize(("data", "offset", "message"), NAMED)
def test_each_mistake_is_named(data: bytes, offset: int, message: str) -> None:
    """isa §5.4: the pairing rule and each vocabulary refuse with the place, what was expected and what was there."""
    with pytest.raises(DecodeError) as caught:
        decode_stream(data)
    assert caught.value.offset == offset
    assert message in str(caught.value)


def test_a_pair_is_decoded_from_its_first_record() -> None:
    """isa §5.4: the first buffered record is a 0xD9."""
    with pytest.raises(DecodeError, match="first record of a pair at offset 0: expected PSEUDO_TRIGGER_COLLECTIVE2"):
        decode_pair(EXTENSION)
    with pytest.raises(DecodeError, match="truncated collective2_word"):
        decode_pair(DATA[:63])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": EncOp.SEND}, "SEND has no collective type"),
        ({"priority_class": 5}, "priority class: expected one from 0 to 4, got 5"),
        ({"group_id": 1 << 16}, "extension_word.group_id: expected a value from 0 to 65535"),
        ({"src0": Pattern2D(1 << 64)}, "collective2_word.src0_address"),
    ],
)
def test_what_a_pair_cannot_say(change: dict[str, object], message: str) -> None:
    """A value without a place or out of range is a UsageError."""
    with pytest.raises(UsageError, match=message):
        encode_pair(dataclasses.replace(PAIR, **change))  # type: ignore[arg-type]


def test_priority_is_read_from_v3_on() -> None:
    """isa §5.4: the class is read only when arch_type is above 2."""
    assert [PAIR.priority(arch) for arch in ("sunda", "cayman", "mariana", "maverick")] == [0, 4, 4, 4]


def link(chaining: Chaining, elements: int = 1, **changes: object) -> Pair:
    """Return a pair of a chain, with this many elements."""
    return dataclasses.replace(PAIR, chaining=chaining, src0=variable(1, num=(elements, 1)), **changes)  # type: ignore[arg-type]


def test_a_chain_sums_its_members() -> None:
    """isa §5.4: the elements of a chain are the sum over its members; NONE is a chain of its own."""
    found = chains(
        [link(Chaining.NONE, 5), link(Chaining.FIRST, 1), link(Chaining.MIDDLE, 2), link(Chaining.LAST, 3),
         link(Chaining.FIRST, 7), link(Chaining.LAST, 8)]
    )  # fmt: skip
    assert [(len(chain.pairs), chain.num_elements) for chain in found] == [(1, 5), (3, 6), (2, 15)]


def test_the_last_takes_wait_and_value_of_the_first() -> None:
    """isa §5.4: the trigger has the events of FINAL, with wait_mode and semaphore_value of the chain's first record."""
    first = Events(WaitMode.WAIT_FOR_SEM_GE_IMM, 1, UpdateMode.SEM_DEC_COMPLETE, 2, 3)
    last = Events(WaitMode.WAIT_FOR_SEM_EQ_IMM, 11, UpdateMode.SEM_INC_COMPLETE, 12, 13)
    (chain,) = chains([link(Chaining.FIRST, events=first), link(Chaining.LAST, events=last)])
    assert chain.events == Events(WaitMode.WAIT_FOR_SEM_GE_IMM, 11, UpdateMode.SEM_INC_COMPLETE, 12, 3)
    (alone,) = chains([link(Chaining.NONE, events=last)])
    assert alone.events == last


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("LAST", "LAST without the FIRST of its chain"),
        ("MIDDLE", "MIDDLE without the FIRST of its chain"),
        ("FIRST NONE", "NONE inside a chain"),
        ("FIRST FIRST", "FIRST inside a chain"),
        ("FIRST LAST LAST", "LAST without the FIRST"),
        ("FIRST MIDDLE", "expected a LAST, got the end of the stream"),
    ],
)
def test_chains_out_of_order(order: str, message: str) -> None:
    """isa §5.4: a head begins a chain, LAST ends it."""
    with pytest.raises(UnsupportedError, match=message):
        chains(link(Chaining[name]) for name in order.split())


@pytest.mark.parametrize(
    "change",
    [{"kind": EncOp.ALLREDUCE}, {"alu_op": AluOp.MAX}, {"dtype": Dtype.FP32}, {"group_id": 1}, {"stream_id": 1}],
)
def test_members_are_alike(change: dict[str, object]) -> None:
    """A chain is one operation: its members agree in what it is and who takes part."""
    with pytest.raises(UnsupportedError, match="kind, operation, type, group, channel and stream of the chain"):
        chains([link(Chaining.FIRST), link(Chaining.LAST, 1, **change)])


SBUF = Pattern2D(0x1000000, (1, 1), (2, 2))


@pytest.mark.parametrize(
    ("change", "message", "section"),
    [
        ({"alu_op": AluOp.BYPASS}, "REDUCE_SCATTER reduces by one of ADD, MULT, MAX, MIN, got BYPASS", "8.1"),
        ({"alu_op": AluOp.MULT}, "no FMA at this stage", "12 row 5"),
        ({"dtype": Dtype.FP32R}, "fp32r has no transfer size; use fp32", "9"),
        ({"src0": variable(1, num=(0, 4))}, "the collective has no elements, expected at least 1", "8.3"),
        ({"src0": variable(1, num=(0xFFFFFFFF, 0xFFFFFFFF))}, "bytes, expected at most 18446744073709551615", "5.2"),
        ({"src0": Pattern2D(0x80 << 56)}, "src0 must be a variable .* got ADDRESS_IN_REGISTER", "5.4"),
        ({"dst": Pattern2D(0x08 << 56)}, "dst must be a variable .* got marker 0x08", "5.4"),
        ({"dst": Pattern2D(0x2000000)}, "dst must lie in SBUF, bits 25 and up clear, got 0x2000000", "5.4"),
        ({"src1": Pattern2D(0x80000000)}, "src1 must lie in SBUF", "5.4"),
        ({"src1": SBUF}, "operands must be all variables or all in SBUF, got both", "10"),
    ],
)
def test_trigger_stage_refuses(change: dict[str, object], message: str, section: str) -> None:
    """isa §5.4, §9, §10: what the stage would not plan is an UnsupportedError that carries its source."""
    check_trigger(PAIR)
    with pytest.raises(UnsupportedError, match=message) as caught:
        check_trigger(dataclasses.replace(PAIR, **change))  # type: ignore[arg-type]
    assert caught.value.source is not None
    assert caught.value.source.section == section


def test_trigger_stage_takes() -> None:
    """isa §5.4: variables, or places in SBUF; MULT when asked to; any update mode: the rule is one of 0xC8."""
    check_trigger(dataclasses.replace(PAIR, src0=SBUF, src1=None, dst=SBUF))
    check_trigger(dataclasses.replace(PAIR, alu_op=AluOp.MULT), multiply=Multiply.ACCEPTED)
    check_trigger(dataclasses.replace(PAIR, events=Events()))
