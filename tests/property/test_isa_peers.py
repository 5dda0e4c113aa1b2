"""A second decoder of the words and descriptors, written with `struct` and strings of bits, on random records."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rota.isa.copies import Copy, decode_copy, encode_copy
from rota.isa.descriptors import (
    DESCRIPTOR,
    RING_ID_MASK,
    RING_ID_SHIFT,
    CceWord,
    Ordering,
    TxFlag,
    cce_word,
    decode_cce_word,
    decode_length,
    is_last,
    len_ctrl,
)
from rota.isa.dtypes import Dtype, size_of
from rota.isa.enums import CceType
from rota.isa.words import ALL_REDUCE_WORD, COLLECTIVE_WORD

HEAD = ("opcode", "inst_word_len", "debug_cmd", "debug_hint")
EVENTS = ("wait_mode", "wait_idx", "update_mode", "update_idx", "semaphore_value")
WORD_NAMES = (*HEAD, *EVENTS, "op", "dtype")
SIZED = [dtype for dtype in Dtype if size_of(dtype)]


def bits(value: int, high: int, low: int) -> int:
    """Return bits high:low, cut out of the number's 32 binary digits."""
    return int(f"{value:032b}"[31 - high : 32 - low], 2)


@given(record=st.binary(min_size=64, max_size=64))
def test_collective_word_against_struct(record: bytes) -> None:
    """isa §5.2: the fields of 0xC8 by a second reading of the table."""
    values = struct.unpack("<8BIBBHIIQB15xQQ", record)
    names = [*WORD_NAMES, "group_id", "input_id", "output_id", "num_elements", "ctype", "src_offset", "dst_offset"]
    assert COLLECTIVE_WORD.decode(record) == dict(zip(names, values, strict=True))


@given(record=st.binary(min_size=64, max_size=64))
def test_all_reduce_word_against_struct(record: bytes) -> None:
    """isa §5.1: the fields of 0xC7 by a second reading of the table."""
    values = struct.unpack("<8BIBB2xIIQ32x", record)
    names = [*WORD_NAMES, "input_id", "output_id", "num_elements"]
    assert ALL_REDUCE_WORD.decode(record) == dict(zip(names, values, strict=True))


@given(data=st.lists(st.binary(min_size=16, max_size=16), max_size=5).map(b"".join))
def test_descriptors_against_struct(data: bytes) -> None:
    """sdma §2: two 32-bit words and a 64-bit pointer."""
    assert np.frombuffer(data, DESCRIPTOR).tolist() == list(struct.iter_unpack("<IIQ", data))


@given(word=st.integers(0, (1 << 32) - 1))
def test_length_words_against_bits(word: int) -> None:
    """sdma §2.1: length, phase and flags of any word, cut out digit by digit."""
    assert int(decode_length(np.array([word], np.uint32))[0]) == (bits(word, 15, 0) or 65536)
    assert word >> RING_ID_SHIFT & RING_ID_MASK == bits(word, 25, 24)
    for flag, place in (
        (TxFlag.META, 23),
        (TxFlag.FIRST, 26),
        (TxFlag.LAST, 27),
        (TxFlag.DMB, 30),
        (TxFlag.CONCAT, 31),
    ):
        assert bool(word & flag) == bool(bits(word, place, place))


@given(
    sizes=st.lists(st.integers(1, 65536), min_size=1, max_size=6),
    ring=st.integers(0, 3),
    flags=st.tuples(*[st.booleans()] * 5),
)
def test_made_length_words_against_bits(sizes: list[int], ring: int, flags: tuple[bool, ...]) -> None:
    """sdma §2.1: what `len_ctrl` writes is read back bit by bit, and no other bit is set."""
    first, last, concat, dmb, strong = flags
    made = len_ctrl(np.array(sizes), ring=ring, first=first, last=last, concat=concat, dmb=dmb, strong_order=strong)
    for word, size in zip(made.tolist(), sizes, strict=True):
        assert (bits(word, 15, 0) or 65536, bits(word, 25, 24), bits(word, 23, 16), bits(word, 28, 28)) == (
            size,
            ring,
            0,
            0,
        )
        assert tuple(bool(bits(word, place, place)) for place in (26, 27, 31, 30, 29)) == flags


@given(
    op=st.sampled_from([CceType.ADD, CceType.FMA, CceType.MAX, CceType.MIN, CceType.EXT]),
    transfer=st.sampled_from(SIZED),
    accumulate=st.sampled_from(Dtype),
    last=st.booleans(),
    barrier=st.booleans(),
)
def test_reduce_words_against_bits(op: CceType, transfer: Dtype, accumulate: Dtype, last: bool, barrier: bool) -> None:
    """sdma §3.1, §4: engine, operation, nibbles and flags of a reduce word, cut out digit by digit."""
    word = cce_word(op, transfer, accumulate, last=last, barrier=barrier)
    minmax = op in (CceType.MAX, CceType.MIN)
    low = transfer if minmax or op is CceType.FMA else 0
    middle = Dtype.FP32 if op is CceType.FMA else transfer
    assert (bits(word, 31, 26), bits(word, 25, 23), bits(word, 22, 20)) == (0, 4, op)
    assert (bits(word, 19, 16), bits(word, 15, 12), bits(word, 11, 8)) == (accumulate, middle, low)
    assert (bits(word, 7, 7), bits(word, 6, 6), bits(word, 5, 5), bits(word, 4, 4)) == (
        last,
        barrier,
        0,
        last and minmax,
    )
    assert bits(word, 3, 0) == 0
    assert is_last(word) == last
    scale = Dtype.FP32 if op is CceType.FMA else None
    assert decode_cce_word(word) == CceWord(op, transfer, accumulate, scale, last, barrier)


copies = st.builds(
    Copy,
    source=st.integers(0, (1 << 64) - 1),
    target=st.integers(0, (1 << 64) - 1),
    size=st.integers(1, 65536),
    ring=st.integers(0, 3),
    ordering=st.sampled_from(Ordering),
)


@given(copy=copies)
def test_copies_against_struct(copy: Copy) -> None:
    """sdma §2, §3, §8: a pair of copy descriptors read with struct; and decode∘encode is the identity."""
    tx, rx = encode_copy(copy, arch="mariana")
    tx_word, meta, source = struct.unpack("<IIQ", tx)
    rx_word, second, target = struct.unpack("<IIQ", rx)
    assert (source, target, second) == (copy.source, copy.target, 0)
    assert {bits(word, 15, 0) or 65536 for word in (tx_word, rx_word)} == {copy.size}
    assert {bits(word, 25, 24) for word in (tx_word, rx_word)} == {copy.ring}
    assert (bits(tx_word, 31, 26), bits(rx_word, 31, 26)) == (
        0b010011 if copy.ordering is Ordering.DMB else 0b000011,
        0b001000 if copy.ordering is Ordering.STRONG_ORDER_WR else 0,
    )
    assert meta == (0x05080003 if copy.ordering is Ordering.WRITE_BARRIER else 0x01080003)
    assert decode_copy(tx, rx) == copy
