"""Every test vector of sdma §19, and the words of §3.1, §4 and §5 around them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.cce_info import scale_bits
from rota.isa.descriptors import LAYOUT, Ordering, cce_word, decode_cce_word, reduce_packet_bytes
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType
from rota.isa.op_words import (
    OpWord,
    WordKind,
    base_of,
    decode_word,
    encode_word,
    kinds_of,
    replication_word,
    split_word,
    transpose_word,
)
from rota.isa.operand_words import (
    TAG,
    Operand,
    OperandKind,
    Position,
    constant_operand,
    decode_operand,
    encode_operand,
    fma_operand,
    replication_operand,
    seed_operand,
)
from rota.isa.packets import CopyPacket, encode_packet
from rota.isa.templates import Template, encode_template

BF16, FP32 = Dtype.BFLOAT16, Dtype.FP32
ADDRESS = 0x1000000000


def words(data: bytes) -> list[int]:
    """Return bytes as little-endian 32-bit words."""
    return np.frombuffer(data, "<u4").tolist()


def test_vectors_of_the_specification(golden: Callable[[str], bytes]) -> None:
    """sdma §19: every vector, each word made by the encoder that a packet uses."""
    copies = {how: encode_packet(CopyPacket(ADDRESS, 0, 4096, ordering=how), arch="cayman") for how in Ordering}
    pairs = [(CceType.ADD, BF16, FP32), (CceType.ADD, BF16, BF16), (CceType.ADD, FP32, FP32), (CceType.FMA, BF16, FP32)]
    template = encode_template(Template(5, 0x100))
    operands = [seed_operand(0), constant_operand(CceType.MAX, 0, size=0), constant_operand(CceType.MIN, 0, size=0)]
    gradient = Operand(OperandKind.GRADIENT, {"operand": 1})
    made = [
        *words(copies[Ordering.NONE][0]),
        words(encode_packet(CopyPacket(ADDRESS, 0, 65536), arch="cayman")[0])[0],
        words(copies[Ordering.WRITE_BARRIER][0])[1],
        words(copies[Ordering.DMB][0])[0],
        words(copies[Ordering.STRONG_ORDER_WR][1])[0],
        *(cce_word(*pair, last=last) for pair in pairs for last in (False, True)),
        cce_word(CceType.EXT, BF16, FP32, last=False),
        *words(encode_operand(fma_operand(scale_bits(0.5))))[2:],
        template & 0xFFFFFFFF,
        template >> 32,
        *(words(encode_operand(each))[1] for each in (*operands, replication_operand(2), gradient)),
    ]
    assert [f"{word:08x}" for word in made] == [f"{word:08x}" for word in words(golden("sdma_vectors.hex"))]


@pytest.mark.parametrize(("dtype", "size"), [(BF16, 4096), (FP32, 8192), (Dtype.FP8_EXP4, 2048)])
def test_reduce_packet_sizes(dtype: Dtype, size: int) -> None:
    """sdma §19: uncapped packets of v3."""
    assert reduce_packet_bytes(dtype, "cayman") == size


@pytest.mark.parametrize(("cap", "size"), [(0, 8192), (100, 96), (4096, 4096), (9000, 8192), (31, 0)])
def test_a_priority_class_caps_the_packet(cap: int, size: int) -> None:
    """sdma §7: the cap applies when it is not 0 and smaller, then the result is rounded down to 32 bytes."""
    assert reduce_packet_bytes(FP32, "cayman", cap=cap) == size


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (WordKind.SPLIT, 0x00800000),
        (WordKind.TRANSPOSE, 0x00900000),
        (WordKind.REPLICATION, 0x00A00000),
        (WordKind.COPY, 0x01000000),
        (WordKind.ADD, 0x02000000),
        (WordKind.FMA, 0x02100000),
        (WordKind.MAX, 0x02200000),
        (WordKind.MIN, 0x02300000),
        (WordKind.EXT, 0x02400000),
        (WordKind.GCE, 0x02500000),
    ],
)
def test_one_rule_makes_every_class(kind: WordKind, base: int) -> None:
    """sdma §3.1: block at 25:23, operation at 22:20, for every class."""
    assert base_of(kind) == base
    assert encode_word(OpWord(kind, {}), arch="mariana") == base
    assert decode_word(base).kind is kind


@pytest.mark.parametrize(
    ("kind", "tag"),
    [
        (OperandKind.FMA, 0x02100000),
        (OperandKind.MAX_CONSTANT, 0x06200000),
        (OperandKind.MIN_CONSTANT, 0x06300000),
        (OperandKind.SEED, 0x06000000),
        (OperandKind.REPLICATION, 0x04A00000),
        (OperandKind.GRADIENT, 0x06500001),
    ],
)
def test_operand_words(kind: OperandKind, tag: int) -> None:
    """sdma §3.1, §5: operand words are the class with bit 26, but for FMA."""
    assert TAG[kind] == tag


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        (0x008C0523 | 1 << 5, {"kind": WordKind.SPLIT, "count": 3, "many": 1, "shape_index": 5, "dtype": 12}),
        (0x00940924, {"kind": WordKind.TRANSPOSE, "element_size": 4, "many": 1, "shape_index": 9, "byte_count": 4}),
        (0x00A0FFFF, {"kind": WordKind.REPLICATION, "count": 0xFFFF}),
        (0x01080003, {"kind": WordKind.COPY, "last_block": 1, "first_block": 1, "copy_source_data": 1}),
        (0x0108FFFB, {"kind": WordKind.COPY, "last_block": 1, "first_block": 1, "crc_iv": 7, "endianness": 255,
                      "validate_crc": 1, "use_stored_crc_iv": 1, "copy_source_data": 1}),
        (0x020A60D7, {"kind": WordKind.ADD, "sub": 7, "flag_4": 1, "cce_barrier": 1, "last": 1, "middle_dtype": 6,
                      "result_dtype": 10}),
        (0x022A76B0, {"kind": WordKind.MAX, "last_4": 1, "use_constant": 1, "last": 1, "input_dtype": 6,
                      "middle_dtype": 7, "result_dtype": 10}),
        (0x021AA610, {"kind": WordKind.FMA, "flag_4": 1, "input_dtype": 6, "middle_dtype": 10, "result_dtype": 10}),
        (0x42566680, {"kind": WordKind.GCE, "chain": 1, "last": 1, "input_dtype": 6, "middle_dtype": 6,
                      "result_dtype": 6}),
        (0x15080003, {"kind": WordKind.COPY, "write_barrier": 1, "notification_mask": 1, "last_block": 1,
                      "first_block": 1, "copy_source_data": 1}),
    ],
)  # fmt: skip
def test_interior_fields(word: int, fields: dict[str, int]) -> None:
    """sdma §3, §4, §7: the places of the interior fields of each class."""
    found = decode_word(word)
    assert {"kind": found.kind} | {name: value for name, value in found.fields.items() if value} == fields
    assert encode_word(found, arch="mariana") == word


def test_reduce_words_of_a_collective_are_among_them() -> None:
    """A word of `cce_word` has the same last, barrier and result by the general decoder."""
    for op in (CceType.ADD, CceType.FMA, CceType.MAX, CceType.MIN, CceType.EXT):
        for last, barrier in ((False, False), (True, False), (False, True), (True, True)):
            word = cce_word(op, BF16, FP32, last=last, barrier=barrier)
            found, short = decode_word(word), decode_cce_word(word)
            assert (found.last, found.barrier, found.field("result_dtype")) == (last, barrier, short.accumulate)


@pytest.mark.parametrize(
    ("word", "offset"),
    [
        (0x00000000, 40),  # no block
        (0x00B00000, 40),  # a fourth reshaping
        (0x01100000, 40),  # a copy with an operation
        (0x02600000, 40),  # a seventh reduce
        (0x01080007, 40),  # the reserved block attribute
        (0x02000008, 40),  # bit 3 of an ADD
        (0x02000100, 41),  # its low nibble
        (0x88000000 | 0x02000000, 43),  # bits 31 and 27
        (1 << 32, 40),
    ],
)
def test_words_of_no_class(word: int, offset: int) -> None:
    """A class that does not exist, or a bit that the class does not name, is a DecodeError at the byte."""
    with pytest.raises(DecodeError) as caught:
        decode_word(word, offset=40)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("word", "arch", "message"),
    [
        (replication_word(2), "sunda", "sunda has no REPLICATION"),
        (OpWord(WordKind.EXT, {}), "sunda", "sunda has no EXT"),
        (OpWord(WordKind.COPY, {"notification_mask": 1}), "sunda", "sunda has no notification mask"),
        (OpWord(WordKind.COPY, {"notification_mask": 1}), "cayman", "cayman has no notification mask"),
    ],
)
def test_words_an_architecture_has_not(word: OpWord, arch: str, message: str) -> None:
    """sdma §16: replication and EXT begin with v3, the notification mask with v4."""
    with pytest.raises(UnsupportedError, match=message):
        encode_word(word, arch=arch)
    assert encode_word(word, arch="mariana")


def test_a_class_cannot_be_given_twice() -> None:
    """The class decides block and operation."""
    with pytest.raises(UsageError, match="ADD word: the class decides op_type; leave it out"):
        encode_word(OpWord(WordKind.ADD, {"op_type": 1}), arch="cayman")


def test_kinds_of_many_words() -> None:
    """Rows of words are classified as one word is; what has no class is -1."""
    rows = [0x01080003, 0x02066080, 0x00A00002, 0, 0x02700000, 0x42566680]
    kinds = kinds_of(np.array(rows, np.uint32)).tolist()
    assert kinds == [WordKind.COPY, WordKind.ADD, WordKind.REPLICATION, -1, -1, WordKind.GCE]


def test_reshaping_words() -> None:
    """sdma §4: the flag at bit 5 says that there is more than one."""
    split = [encode_word(split_word(n, shape_index=2, dtype=BF16), arch="sunda") for n in (1, 3)]
    transpose = [encode_word(transpose_word(2, shape=n, shape_index=1, byte_count=4), arch="cayman") for n in (1, 2)]
    assert split == [0x00860201, 0x00860223]
    assert transpose == [0x00940102, 0x00940122]
    assert encode_word(replication_word(3), arch="cayman") == 0x00A00003


def test_operand_descriptors() -> None:
    """sdma §5: the frame, the tag, the selectors or length, and the payload."""
    rows = [
        (encode_operand(fma_operand(0x3F), Position(first=True)), [0x85800000, 0x02100000, 0x09000000, 0x3F]),
        (encode_operand(fma_operand(1, member=True)), [0x81800000, 0x06100000, 0x09000000, 1]),
        (encode_operand(constant_operand(CceType.MAX, 7, size=64)), [0x81800000, 0x06200000, 0x02000040, 7]),
        (encode_operand(constant_operand(CceType.MIN, 7, size=0)), [0x81800000, 0x06300000, 0x02000000, 7]),
        (encode_operand(seed_operand(9), Position(3, dmb=True)), [0xC3800000, 0x06000000, 0, 9]),
        (encode_operand(replication_operand(4)), [0x81800000, 0x24A00000, 4, 0]),
    ]  # fmt: skip
    for data, want in rows:
        assert [f"{word:08x}" for word in words(data)] == [f"{word:08x}" for word in want]
        assert encode_operand(*decode_operand(data)) == data


@pytest.mark.parametrize(
    ("row", "offset"),
    [
        ((0x01001000, 0x02100000, 0), 16),  # no META
        ((0x01800000, 0x01080003, 0), 20),  # a copy
        ((0x01800000, 0x02000000, 0), 20),  # ADD without the operand bit
        ((0x01800000, 0x06500000, 0), 20),  # gradient without its bit 0
        ((0x01800000, 0x04A00000, 0), 20),  # replication without a mode
        ((0x01800004, 0x02100000, 0), 16),  # an operand with a length
        ((0x01800000, 0x06000000, 1), 24),  # a seed beside its place
        ((0x01800000, 0x06200001, 0), 20),  # a constant with a sub-operation
    ],
)
def test_rows_that_are_no_operand(row: tuple[int, int, int], offset: int) -> None:
    """Only what `encode_operand` makes is an operand; the error points at the byte or the word."""
    data = bytes(16) + LAYOUT.encode(len_ctrl=row[0], meta_ctrl=row[1], buf_ptr=row[2])
    with pytest.raises(DecodeError) as caught:
        decode_operand(data, offset=16)
    assert caught.value.offset == offset


def test_operands_cut_short() -> None:
    """Fewer than 16 bytes are a DecodeError."""
    with pytest.raises(DecodeError, match="expected 16 bytes, got 15 bytes"):
        decode_operand(encode_operand(seed_operand(1))[:15])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant_operand(CceType.ADD, 0, size=0), "expected MAX or MIN, got ADD"),
        (lambda: encode_operand(Operand(OperandKind.SEED, {"seed": 1})), "expected operand 1, got 0"),
        (lambda: encode_operand(Operand(OperandKind.SEED, {"operand": 1, "meta": 0})), "leave out meta"),
        (lambda: encode_operand(Operand(OperandKind.REPLICATION, {"operand": 1})), "expected a mode from 1 to 7"),
        (lambda: encode_operand(seed_operand(1 << 32)), "expected a value from 0 to 4294967295"),
    ],
)
def test_operands_that_are_refused(make: Callable[[], object], message: str) -> None:
    """What would not read back is refused."""
    with pytest.raises(UsageError, match=message):
        make()
