"""DMA descriptors, against the test vectors of sdma §19 and the tables before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.copies import Copy, decode_copy, encode_copy
from rota.isa.descriptors import (
    ACCUMULATE,
    COPY_WORD,
    DESCRIPTOR,
    FMA_META_WORD,
    LIMITS,
    PACKET_GRANULE,
    CceCtrl,
    CceWord,
    MetaCtrl,
    Ordering,
    RxFlag,
    TxFlag,
    cce_word,
    decode_cce_word,
    decode_length,
    encode_length,
    fma_operands,
    is_last,
    len_ctrl,
    limits_of,
    meta_len_ctrl,
    reduce_packet_bytes,
)
from rota.isa.dtypes import REDUCIBLE, Dtype
from rota.isa.enums import CceType

BF16, FP32, FP32R = Dtype.BFLOAT16, Dtype.FP32, Dtype.FP32R
ADDRESS = 0x1000000000


def row(length: object, meta: int = 0, pointer: int = ADDRESS) -> bytes:
    """Return one descriptor made of a length word, an operation word and a pointer."""
    return np.array([(int(np.asarray(length).item()), meta, pointer)], DESCRIPTOR).tobytes()


def test_golden_descriptors(golden: Callable[[str], bytes]) -> None:
    """sdma §19: the vectors for copies, ordering, ADD words and FMA operands have not moved."""
    add = [cce_word(CceType.ADD, BF16, BF16, last=last) for last in (False, True)]
    made = [
        encode_copy(Copy(ADDRESS, 0, 4096), arch="cayman")[0],
        encode_copy(Copy(ADDRESS, 0, 65536), arch="cayman")[0],
        encode_copy(Copy(ADDRESS, 0, 4096, ordering=Ordering.WRITE_BARRIER), arch="cayman")[0],
        encode_copy(Copy(ADDRESS, 0, 4096, ordering=Ordering.DMB), arch="sunda")[0],
        encode_copy(Copy(0, ADDRESS, 4096, ordering=Ordering.STRONG_ORDER_WR), arch="mariana")[1],
        row(len_ctrl(4096, first=True, concat=True), add[0]),
        row(len_ctrl(4096, last=True), add[1]),
        row(meta_len_ctrl(1, first=True), FMA_META_WORD, int(fma_operands(np.array([0.5]))[0])),
    ]
    assert b"".join(made).hex(" ", 16) == golden("sdma_descriptors.hex").hex(" ", 16)


@pytest.mark.parametrize(
    ("ordering", "tx_length", "meta", "rx_length"),
    [
        (Ordering.NONE, 0x0D001000, 0x01080003, 0x01001000),
        (Ordering.WRITE_BARRIER, 0x0D001000, 0x05080003, 0x01001000),
        (Ordering.DMB, 0x4D001000, 0x01080003, 0x01001000),
        (Ordering.STRONG_ORDER_WR, 0x0D001000, 0x01080003, 0x21001000),
    ],
)
def test_copy_words(ordering: Ordering, tx_length: int, meta: int, rx_length: int) -> None:
    """sdma §19: the words of a 4096-byte copy in phase 1, in every ordering; RX carries neither FIRST nor LAST."""
    tx, rx = encode_copy(Copy(ADDRESS, 8, 4096, ordering=ordering), arch="cayman")
    assert np.frombuffer(tx, DESCRIPTOR).tolist() == [(tx_length, meta, ADDRESS)]
    assert np.frombuffer(rx, DESCRIPTOR).tolist() == [(rx_length, 0, 8)]
    assert decode_copy(tx, rx) == Copy(ADDRESS, 8, 4096, ordering=ordering)


def test_sunda_has_no_strong_ordered_write() -> None:
    """sdma §8: on v2 the builder refuses it."""
    with pytest.raises(UnsupportedError, match="sunda has no strong-ordered write; use DMB") as caught:
        encode_copy(Copy(0, 0, 4, ordering=Ordering.STRONG_ORDER_WR), arch="sunda")
    assert caught.value.source is not None


@pytest.mark.parametrize(
    ("side", "at", "value", "offset"),
    [
        (0, 2, 0x10, 0),  # a length-adjust bit
        (0, 3, 0x09, 0),  # FIRST is missing
        (0, 3, 0x5D, 0),  # INT_EN
        (0, 6, 0x00, 4),  # copies no data
        (0, 7, 0x02, 4),  # CCE
        (1, 0, 0x04, 16),  # another length
        (1, 3, 0x02, 16),  # another phase
        (1, 4, 0x01, 20),  # a second buffer
    ],
)
def test_a_pair_that_is_no_plain_copy_is_refused(side: int, at: int, value: int, offset: int) -> None:
    """Both descriptors must be exactly those of one copy; the word that differs is named."""
    pair = [bytearray(each) for each in encode_copy(Copy(ADDRESS, 8, 4096), arch="cayman")]
    pair[side][at] = value
    with pytest.raises(DecodeError) as caught:
        decode_copy(bytes(pair[0]), bytes(pair[1]))
    assert caught.value.offset == offset


def test_two_orderings_at_once_are_refused() -> None:
    """sdma §8: DMB and a strong-ordered write are never both active."""
    tx = encode_copy(Copy(ADDRESS, 8, 4096, ordering=Ordering.DMB), arch="cayman")[0]
    rx = encode_copy(Copy(ADDRESS, 8, 4096, ordering=Ordering.STRONG_ORDER_WR), arch="cayman")[1]
    with pytest.raises(DecodeError):
        decode_copy(tx, rx)


def test_copy_of_too_few_bytes() -> None:
    """A descriptor that is not all there is a DecodeError."""
    tx, rx = encode_copy(Copy(ADDRESS, 8, 4096), arch="cayman")
    with pytest.raises(DecodeError, match="truncated descriptor"):
        decode_copy(tx, rx[:15])


@pytest.mark.parametrize(
    ("op", "transfer", "accumulate", "word", "last"),
    [
        (CceType.ADD, BF16, FP32, 0x020A6000, 0x020A6080),
        (CceType.ADD, BF16, BF16, 0x02066000, 0x02066080),
        (CceType.ADD, FP32, FP32, 0x020AA000, 0x020AA080),
        (CceType.ADD, FP32, FP32R, 0x020BA000, 0x020BA080),
        (CceType.FMA, BF16, FP32, 0x021AA600, 0x021AA680),
        (CceType.MAX, BF16, BF16, 0x02266600, 0x02266690),
        (CceType.MIN, FP32, FP32R, 0x023BAA00, 0x023BAA90),
        (CceType.EXT, BF16, FP32, 0x024A6000, 0x024A6080),
    ],
)
def test_reduce_words(op: CceType, transfer: Dtype, accumulate: Dtype, word: int, last: int) -> None:
    """sdma §3.1, §4, §19: one rule makes all words; the last source sets bit 7, and bit 4 too for MIN and MAX."""
    assert cce_word(op, transfer, accumulate, last=False) == word
    assert cce_word(op, transfer, accumulate, last=True) == last
    assert (is_last(word), is_last(last)) == (False, True)
    scale = Dtype.FP32 if op is CceType.FMA else None
    assert decode_cce_word(last) == CceWord(op, transfer, accumulate, scale, last=True, barrier=False)


def test_fp32_is_accumulated_as_fp32r_and_nothing_else_is() -> None:
    """all-reduce §5: FP32R rides the accumulation nibble, never the length nibble; other types are both."""
    assert ACCUMULATE.keys() == REDUCIBLE
    assert {dtype: acc for dtype, acc in ACCUMULATE.items() if acc is not dtype} == {FP32: FP32R}
    assert cce_word(CceType.ADD, FP32, ACCUMULATE[FP32], last=False) == 0x020BA000


def test_last_is_read_from_either_bit() -> None:
    """sdma §17 row 6: MIN and MAX may mark the last source in bit 4 or in bit 7; bit 4 of ADD means nothing."""
    assert is_last(0x02266610)
    assert is_last(0x02266680)
    assert not is_last(0x02066010)
    assert decode_cce_word(0x02266610).last


def test_barrier_of_a_reduce_is_bit_6() -> None:
    """sdma §8: a reduce word has its write barrier at bit 6."""
    word = cce_word(CceType.ADD, BF16, BF16, last=True, barrier=True)
    assert word == 0x020660C0
    assert decode_cce_word(word).barrier


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (COPY_WORD, "expected a CCE operation"),
        (0x02566000, "expected an operation from 0 to 4"),
        (0x02766000, "expected an operation from 0 to 4"),
        (0x020BB000, "expected a type with a size, got fp32r in 0x020BB000"),
        (0x02060000, "expected a type with a size, got invalid"),
        (0x02066001, "expected 0x02066000, got 0x02066001"),
        (0x06066000, "expected 0x02066000, got 0x06066000"),
        (0x02266000, "a type with a size"),
        (0x021A7600, "expected 0x021AA600, got 0x021A7600"),
    ],
)
def test_reduce_words_that_mean_nothing(word: int, message: str) -> None:
    """A word with an unknown operation, a type without a size, or a bit nobody names is a DecodeError."""
    for offset, read in ((0, lambda: decode_cce_word(word)), (12, lambda: decode_cce_word(word, offset=12))):
        with pytest.raises(DecodeError, match=message) as caught:
            read()
        assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("op", "transfer", "scale", "message"),
    [
        (CceType.ADD, FP32R, FP32, "fp32r has no transfer size; use fp32"),
        (CceType.GCE, FP32, FP32, "GCE: the format of its descriptors is not known"),
        (CceType.FMA, FP32, BF16, "FMA scale: expected fp32, got bf16"),
    ],
)
def test_reduce_words_that_are_refused(op: CceType, transfer: Dtype, scale: Dtype, message: str) -> None:
    """sdma §6, §9: no length from FP32R, a scale is FP32, and GCE has no known format."""
    with pytest.raises(UnsupportedError, match=message):
        cce_word(op, transfer, FP32, last=False, scale=scale)


@pytest.mark.parametrize(
    ("dtype", "arch", "size"),
    [
        (BF16, "cayman", 4096),
        (FP32, "cayman", 8192),
        (Dtype.FP8_EXP4, "cayman", 2048),
        (BF16, "mariana", 4096),
        (BF16, "sunda", 2048),
        (FP32, "sunda", 4096),
        (Dtype.INT64, "cayman", 8192),
    ],
)
def test_reduce_packet_size(dtype: Dtype, arch: str, size: int) -> None:
    """sdma §7, §19: elements times their size, at most the byte limit, a multiple of 32."""
    assert reduce_packet_bytes(dtype, arch) == size
    assert PACKET_GRANULE == 32
    assert size % PACKET_GRANULE == 0


@pytest.mark.parametrize("dtype", [FP32R, Dtype.INVALID])
def test_reduce_packet_of_no_size(dtype: Dtype) -> None:
    """sdma §19: FP32R dies in packet sizing."""
    with pytest.raises(UnsupportedError, match="has no transfer size; use fp32"):
        reduce_packet_bytes(dtype, "cayman")


def test_limits_by_architecture() -> None:
    """sdma §7: the rows of the limits table."""
    names = ("max_cce_elements", "max_cce_bytes", "max_sources", "tx_cap", "rx_cap", "replication",
             "strong_ordered_write", "max_descriptor_bytes", "max_descriptors_per_channel")  # fmt: skip
    rows = {arch: [getattr(limits, name) for name in names] for arch, limits in LIMITS.items()}
    assert rows == {
        "sunda": [1024, 4096, 32, 128, 128, False, False, 65536, 65535],
        "cayman": [2048, 8192, 32, 65, 60, True, True, 65536, 65535],
        "mariana": [2048, 8192, 32, 65, 60, True, True, 65536, 65535],
    }


def test_the_widest_packet_fits_the_cap() -> None:
    """sdma §7: 32 sources with an operand each and one seed are the 65 reading descriptors of a packet."""
    assert all(2 * limits.max_sources + 1 <= limits.tx_cap for limits in LIMITS.values())


def test_unknown_architecture() -> None:
    """An architecture that is not in the table is refused with those that are."""
    with pytest.raises(UsageError, match="architecture 'tonga': expected one of sunda, cayman, mariana"):
        limits_of("tonga")


@pytest.mark.parametrize(
    ("flag", "mask"),
    [
        (TxFlag.CONCAT, 0x80000000), (TxFlag.DMB, 0x40000000), (TxFlag.NO_SNOOP, 0x20000000),
        (TxFlag.INT_EN, 0x10000000),
        (TxFlag.LAST, 0x08000000), (TxFlag.FIRST, 0x04000000), (TxFlag.META, 0x00800000), (TxFlag.DUMMY, 0x00400000),
        (RxFlag.STRONG_ORDER_WR, 0x20000000), (RxFlag.EMBEDDED_SEMAPHORE, 0x80000000), (RxFlag.INT_EN, 0x10000000),
        (RxFlag.FIRST, 0x04000000), (RxFlag.LAST, 0x08000000), (MetaCtrl.WRITE_BARRIER, 0x04000000),
        (MetaCtrl.VALIDATE_CRC, 0x00004000), (MetaCtrl.USE_STORED_CRC_IV, 0x00008000),
        (MetaCtrl.SEND_CRC_RESULT, 0x00010000), (MetaCtrl.STORE_CRC_RESULT, 0x00020000),
        (MetaCtrl.STORE_SOURCE_CRC, 0x00040000), (CceCtrl.MINMAX_LAST, 0x10), (CceCtrl.USE_CONSTANT, 0x20),
        (CceCtrl.WRITE_BARRIER, 0x40), (CceCtrl.LAST, 0x80),
        (MetaCtrl.NOTIFICATION_MASK, 0x10000000), (MetaCtrl.CHAIN, 0x40000000), (MetaCtrl.COPY_SOURCE_DATA, 0x00080000),
    ],
)  # fmt: skip
def test_flag_masks(flag: int, mask: int) -> None:
    """sdma §2.1, §3: the mask of each flag."""
    assert int(flag) == mask


def test_plain_copy_word_is_its_flags() -> None:
    """sdma §3: 0x01080003 is first and last block, copied data, and operation class 2."""
    assert COPY_WORD == MetaCtrl.FIRST_BLOCK | MetaCtrl.LAST_BLOCK | MetaCtrl.COPY_SOURCE_DATA | 2 << 23


def test_length_65536_is_written_as_zero() -> None:
    """sdma §2.1: a length field of 0 means 65536; other bits of the word do not matter to it."""
    sizes = np.array([1, 4, 65535, 65536])
    assert encode_length(sizes).tolist() == [1, 4, 65535, 0]
    assert decode_length(encode_length(sizes) | np.uint32(0xFFFF0000)).tolist() == sizes.tolist()


@pytest.mark.parametrize("size", [0, -1, 65537])
def test_length_out_of_range(size: int) -> None:
    """sdma §2.1: sizes of 0 and above 65536 are refused, also as one of many."""
    with pytest.raises(UsageError, match="descriptor length: expected 1 to 65536 bytes"):
        len_ctrl(np.array([16, size, 16]))


def test_length_words_of_many_descriptors() -> None:
    """Every argument may be one value for all or one for each; the phase is taken modulo 4."""
    words = len_ctrl(
        np.array([16, 32, 65536]),
        ring=np.array([1, 2, 5]),
        first=np.array([True, False, False]),
        last=np.array([False, False, True]),
        concat=np.array([True, True, False]),
        dmb=np.array([False, True, False]),
        strong_order=np.array([False, False, True]),
    )
    assert [f"{word:08X}" for word in words.tolist()] == ["85000010", "C2000020", "29000000"]
    assert words.dtype == np.uint32


def test_length_words_say_nothing_unless_told() -> None:
    """A data descriptor alone has its length and phase 1; an operand has META, CONCAT and phase 1, and no length."""
    assert (int(len_ctrl(16)), meta_len_ctrl(2).tolist()) == (0x01000010, [0x81800000] * 2)
    assert meta_len_ctrl(2, ring=2, first=np.array([True, False])).tolist() == [0x86800000, 0x82800000]


def test_orderings() -> None:
    """sdma §8: the numbers of the modes."""
    assert [(mode.name, int(mode)) for mode in Ordering] == [
        ("NONE", 0),
        ("DMB", 1),
        ("WRITE_BARRIER", 2),
        ("STRONG_ORDER_WR", 3),
    ]


def test_fma_selectors() -> None:
    """sdma §19: selectors 1, 2, 0 are 0x09000000; a scale of 0.5 is 0x3F000000 in the word after it."""
    assert fma_operands(np.array([0.5, -1.0])).tolist() == [0x3F00000009000000, 0xBF80000009000000]
    assert FMA_META_WORD == 0x02100000
