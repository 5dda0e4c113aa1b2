"""Whole DMA packets: the order of descriptors, their counts, the limits of each architecture, and reading back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.cce_info import CceInfo, Constant, scale_bits
from rota.isa.copies import Copy, encode_copy
from rota.isa.descriptors import DESCRIPTOR, Ordering
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType
from rota.isa.packets import (
    CopyPacket,
    Packet,
    ReducePacket,
    decode_packet,
    descriptor_counts,
    encode_packet,
    packet_of_request,
    promoted,
    read_packets,
    reduce_sizes,
)

BF16, FP32, FP32R = Dtype.BFLOAT16, Dtype.FP32, Dtype.FP32R
A, B, C, OUT, OUT2 = 0x1000, 0x2000, 0x3000, 0x8000, 0x9000
ADD = ReducePacket(CceType.ADD, (A, B, C), (OUT,), 64, BF16, BF16)
FMA = ReducePacket(CceType.FMA, (A, B), (OUT,), 16, FP32, FP32, scales=(scale_bits(0.5), scale_bits(1.0)))
CLAMP = ReducePacket(CceType.MAX, (A, B), (OUT,), 8, BF16, FP32, constant=0x3F800000)
COMBO = dataclasses.replace(FMA, targets=(OUT, OUT2), seed=7)


def rows(data: bytes) -> list[tuple[int, ...]]:
    """Return descriptors as (W0, W1, pointer)."""
    return np.frombuffer(data, DESCRIPTOR).tolist()


def test_an_add_has_one_descriptor_a_source() -> None:
    """sdma §7: N data descriptors, FIRST .. LAST, chained, only the last word marked; one RX of the result's bytes."""
    tx, rx = encode_packet(ADD, arch="cayman")
    assert rows(tx) == [
        (0x85000080, 0x02066000, A),
        (0x81000080, 0x02066000, B),
        (0x09000080, 0x02066080, C),
    ]
    assert rows(rx) == [(0x01000080, 0, OUT)]


def test_the_result_has_its_own_length() -> None:
    """sdma §7: TX length is elements of the source's type, RX length of the result's; FP32R is written as 4 bytes."""
    for result in (FP32, FP32R):
        tx, rx = encode_packet(dataclasses.replace(ADD, result=result), arch="cayman")
        assert (rows(tx)[0][0] & 0xFFFF, rows(rx)[0][0] & 0xFFFF) == (128, 256)


def test_fma_has_a_scale_before_each_source() -> None:
    """sdma §5, §7: META(i), DATA(i); the scale is the second half of the operand."""
    tx, _ = encode_packet(FMA, arch="sunda")
    assert rows(tx) == [
        (0x85800000, 0x02100000, 0x3F000000_09000000),
        (0x81000040, 0x021AAA00, A),
        (0x81800000, 0x02100000, 0x3F800000_09000000),
        (0x09000040, 0x021AAA80, B),
    ]


def test_a_clamp_has_one_constant() -> None:
    """sdma §4, §5, §7: one META for the packet; words say use_const, and the result's type in the middle nibble."""
    tx, rx = encode_packet(CLAMP, arch="cayman")
    assert rows(tx) == [
        (0x85800000, 0x06200000, 0x3F800000_02000010),
        (0x81000010, 0x022AA620, A),
        (0x09000010, 0x022AA6B0, B),
    ]
    assert rows(rx) == [(0x01000020, 0, OUT)]


def test_a_combination_writes_to_several_places() -> None:
    """sdma §7: seed first, then replication; bit 30 on every data word but the last; members carry bit 26."""
    tx, rx = encode_packet(COMBO, arch="cayman")
    assert rows(tx) == [
        (0x85800000, 0x06000000, 7 << 32),
        (0x81800000, 0x24A00000, 2),
        (0x81800000, 0x06100000, 0x3F000000_09000000),
        (0x81000040, 0x421AAA00, A),
        (0x81800000, 0x06100000, 0x3F800000_09000000),
        (0x09000040, 0x021AAA80, B),
    ]
    assert rows(rx) == [(0x01000040, 0, OUT), (0x01000040, 0, OUT2)]


@pytest.mark.parametrize(
    ("ordering", "first", "word", "rx"),
    [
        (Ordering.NONE, 0x85000080, 0x02066080, 0x01000080),
        (Ordering.DMB, 0xC5000080, 0x02066080, 0x01000080),
        (Ordering.WRITE_BARRIER, 0x85000080, 0x020660C0, 0x01000080),
        (Ordering.STRONG_ORDER_WR, 0x85000080, 0x02066080, 0x21000080),
    ],
)
def test_orderings_of_a_reduce(ordering: Ordering, first: int, word: int, rx: int) -> None:
    """sdma §8: DMB on the first descriptor, the barrier at bit 6 of the last word, a strong order on the last RX."""
    tx, written = encode_packet(dataclasses.replace(ADD, ordering=ordering), arch="cayman")
    assert (rows(tx)[0][0], rows(tx)[-1][1], rows(written)[-1][0]) == (first, word, rx)
    assert rows(tx)[0][1] == 0x02066000


def test_a_long_copy_is_cut_and_ordered_at_its_end() -> None:
    """sdma §7, §8: pieces of 65536 bytes, chained; the barrier is on the last one only."""
    copy = CopyPacket(0, 1 << 32, 2 * 65536 + 4, ordering=Ordering.WRITE_BARRIER)
    tx, rx = encode_packet(copy, arch="cayman")
    assert rows(tx) == [
        (0x85000000, 0x01080003, 0),
        (0x81000000, 0x01080003, 65536),
        (0x09000004, 0x05080003, 131072),
    ]
    assert [row[0] for row in rows(rx)] == [0x01000000, 0x01000000, 0x01000004]
    assert rows(rx)[2][2] == (1 << 32) + 131072
    dmb = rows(encode_packet(dataclasses.replace(copy, ordering=Ordering.DMB), arch="sunda")[0])
    assert [row[0] & 1 << 30 for row in dmb] == [0, 0, 1 << 30]


def test_a_short_copy_is_the_same_as_a_copy() -> None:
    """One piece gives the descriptors of `encode_copy`."""
    for ordering in Ordering:
        mine = encode_packet(CopyPacket(8, 16, 4096, 2, ordering), arch="mariana")
        assert mine == encode_copy(Copy(8, 16, 4096, 2, ordering), arch="mariana")


PACKETS: list[Packet] = [
    ADD, FMA, CLAMP, COMBO,
    CopyPacket(1, 2, 65536),
    CopyPacket(1, 2, 3 * 65536 + 1, 3, Ordering.STRONG_ORDER_WR),
    dataclasses.replace(ADD, targets=(OUT, OUT2), ordering=Ordering.STRONG_ORDER_WR),
    dataclasses.replace(CLAMP, op=CceType.MIN, seed=1, ordering=Ordering.DMB),
    dataclasses.replace(ADD, op=CceType.EXT, ordering=Ordering.WRITE_BARRIER, ring=0),
]  # fmt: skip


@pytest.mark.parametrize("packet", PACKETS)
def test_counts(packet: Packet) -> None:
    """sdma §7: the counts of the table are those of the packet."""
    tx, rx = encode_packet(packet, arch="cayman")
    assert descriptor_counts(packet) == (len(tx) // 16, len(rx) // 16)
    assert decode_packet(tx, rx, arch="cayman") == packet


def test_counts_of_the_table() -> None:
    """sdma §7: N; N and one constant; 2N; one more for a seed; D written."""
    assert [descriptor_counts(each) for each in (ADD, CLAMP, FMA, COMBO)] == [(3, 1), (3, 1), (4, 1), (6, 2)]


def test_a_ring_of_packets_reads_back() -> None:
    """FIRST to LAST is a packet; its RX descriptors are as many as it says."""
    pairs = [encode_packet(each, arch="mariana") for each in PACKETS]
    tx, rx = (b"".join(side) for side in zip(*pairs, strict=True))
    assert read_packets(tx, rx, arch="mariana") == tuple(PACKETS)
    assert read_packets(b"", b"", arch="mariana") == ()


def test_damage_in_a_ring_is_found_where_it_is() -> None:
    """The offset of an error counts from the beginning of TX, and goes on in RX."""
    pairs = [encode_packet(each, arch="cayman") for each in (ADD, FMA)]
    tx, rx = (b"".join(side) for side in zip(*pairs, strict=True))
    cases = [
        (tx[:4] + b"\x08" + tx[5:], rx, 4),  # a reserved bit of the first ADD word
        (tx[: 3 * 16 + 8] + b"\x01" + tx[3 * 16 + 9 :], rx, 3 * 16 + 8),  # "length" of the FMA's first operand
        (tx, rx[:20] + b"\x01" + rx[21:], len(tx) + 20),  # second buffer of the second RX
        (tx[:-16], rx, 3 * 16),  # no LAST
        (tx, rx + bytes(16), len(tx) + 32),
        (tx, rx[:16], len(tx) + 16),
        (tx + b"\0", rx, len(tx)),
        (tx[16:], rx, 0),  # no FIRST
    ]
    for reading, writing, offset in cases:
        with pytest.raises(DecodeError) as caught:
            read_packets(reading, writing, arch="cayman")
        assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("packet", "arch", "message"),
    [
        (dataclasses.replace(ADD, targets=(OUT, OUT2)), "sunda", "sunda has no replication"),
        (dataclasses.replace(ADD, op=CceType.EXT), "sunda", "sunda has no replication"),
        (dataclasses.replace(ADD, ordering=Ordering.STRONG_ORDER_WR), "sunda", "no strong-ordered write; use DMB"),
        (dataclasses.replace(ADD, transfer=FP32R), "cayman", "fp32r into bf16: one has no transfer size; use fp32"),
        (dataclasses.replace(ADD, result=Dtype.INVALID), "cayman", "bf16 into invalid: one has no transfer size"),
        (dataclasses.replace(ADD, op=CceType.GCE), "cayman", "GCE: the format of its descriptors is not known"),
        (dataclasses.replace(ADD, count=1025), "sunda", "at most 1024 elements and 4096 bytes, got 1025 of 2050"),
        (dataclasses.replace(ADD, count=2049), "cayman", "at most 2048 elements and 8192 bytes"),
        (dataclasses.replace(ADD, count=1025, result=Dtype.INT64), "cayman", "got 1025 of 8200 bytes"),
        (dataclasses.replace(ADD, targets=(OUT,) * 61), "cayman", "at most 65 reading and 60 writing .* got 4 and 61"),
        (
            dataclasses.replace(COMBO, sources=(A,) * 32, scales=(0,) * 32),
            "cayman",
            "at most 65 reading and 60 writing .* got 66 and 2",
        ),
        (
            ReducePacket(CceType.ADD, (A,), (OUT,), 4, Dtype.INT8, Dtype.INT8),
            "cayman",
            "one source of one-byte elements travels as uint16",
        ),
    ],
)
def test_what_an_architecture_refuses(packet: ReducePacket, arch: str, message: str) -> None:
    """sdma §6 to §9: limits and refusals, by architecture."""
    with pytest.raises(UnsupportedError, match=message) as caught:
        encode_packet(packet, arch=arch)
    assert caught.value.source is not None


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (dataclasses.replace(ADD, sources=()), "expected 1 to 32 sources"),
        (dataclasses.replace(ADD, sources=(A,) * 33), "expected 1 to 32 sources"),
        (dataclasses.replace(ADD, targets=()), "and a target"),
        (dataclasses.replace(ADD, scales=(0, 0, 0)), "ADD packet: 3 scales for 3 sources"),
        (dataclasses.replace(FMA, scales=(0,)), "FMA packet: 1 scales for 2 sources"),
        (dataclasses.replace(ADD, constant=0), "only MAX and MIN take a constant"),
        (CopyPacket(0, 0, 0), "expected 1 to 3932160 bytes, got 0"),
        (CopyPacket(0, 0, 60 * 65536 + 1), "got 3932161; cut it"),
        (CopyPacket((1 << 64) - 1, 0, 65537), "buf_ptr"),
    ],
)
def test_packets_that_make_no_sense(packet: Packet, message: str) -> None:
    """Values that do not go together are refused before anything is written."""
    with pytest.raises(UsageError, match=message):
        encode_packet(packet, arch="cayman")


def test_the_widest_packet() -> None:
    """sdma §7: 32 sources with a scale each and a seed are the 65 descriptors that v3 and v4 take."""
    wide = dataclasses.replace(FMA, sources=(A,) * 32, scales=(1,) * 32, seed=3)
    tx, rx = encode_packet(wide, arch="mariana")
    assert (len(tx) // 16, len(rx) // 16) == (65, 1)
    assert decode_packet(tx, rx, arch="mariana") == wide


def test_a_packet_of_another_architecture_does_not_read() -> None:
    """sdma §16: what sunda refuses to make it refuses to read."""
    tx, rx = encode_packet(COMBO, arch="cayman")
    with pytest.raises(DecodeError, match="one that sunda takes"):
        decode_packet(tx, rx, arch="sunda")


@pytest.mark.parametrize("data", [b"", bytes(15), bytes(17)])
def test_no_whole_descriptors(data: bytes) -> None:
    """An empty or cut side is a DecodeError."""
    tx, rx = encode_packet(ADD, arch="cayman")
    for sides in ((data, rx), (tx, data)):
        with pytest.raises(DecodeError, match="whole descriptors, one or more"):
            decode_packet(*sides, arch="cayman")


def test_one_byte_elements_of_one_source_are_promoted() -> None:
    """sdma §9: a single source of unchanged one-byte elements travels as UINT16; anything else does not."""
    narrow = ReducePacket(CceType.ADD, (A,), (OUT,), 10, Dtype.UINT8, Dtype.UINT8)
    wide = promoted(narrow)
    assert (wide.count, wide.transfer, wide.result) == (5, Dtype.UINT16, Dtype.UINT16)
    assert rows(encode_packet(wide, arch="cayman")[0]) == [(0x0D00000A, 0x02055080, A)]
    assert promoted(ADD) is ADD
    assert promoted(dataclasses.replace(narrow, result=FP32)).transfer is Dtype.UINT8
    with pytest.raises(UsageError, match="expected an even count, got 9"):
        promoted(dataclasses.replace(narrow, count=9))


def test_requests_of_a_container() -> None:
    """sdma §6: ADD needs no parameters, FMA does; numbers of sources and targets must agree."""
    base = {"sources": (A, B), "targets": (OUT,), "count": 16, "transfer": FP32, "result": FP32}
    assert packet_of_request(CceType.ADD, None, **base).scales == ()
    assert packet_of_request(CceType.FMA, CceInfo(2, FMA.scales), **base) == FMA
    clamp = packet_of_request(CceType.MIN, CceInfo(2, constant=Constant(FP32, 9), targets=1), **base)
    assert clamp.constant == 9
    with pytest.raises(UnsupportedError, match="FMA without parameters has no scale"):
        packet_of_request(CceType.FMA, None, **base)
    for info in (CceInfo(3), CceInfo(2, targets=2)):
        with pytest.raises(UsageError, match="expected 2 sources and 1 targets"):
            packet_of_request(CceType.ADD, info, **base)


def test_sizes_of_a_transfer() -> None:
    """sdma §7: full packets, then the remaining whole elements without rounding."""
    assert reduce_sizes(10_002, BF16, "cayman") == (4096, 4096, 1810)
    assert reduce_sizes(8192, FP32, "cayman") == (8192,)
    assert reduce_sizes(0, FP32, "cayman") == ()
    assert reduce_sizes(100, FP32, "sunda", cap=40) == (32, 32, 32, 4)
    for size, cap in ((3, 0), (-2, 0), (64, 31)):
        with pytest.raises(UsageError, match="expected whole bf16 elements"):
            reduce_sizes(size, BF16, "cayman", cap=cap)
