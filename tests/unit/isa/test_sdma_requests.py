"""The records of a container's DMA requests, and the engine's tables of types and differences."""

from __future__ import annotations

import math
import struct

import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.cce_info import (
    ACCESS_PATTERN,
    CCE_INFO_FMA,
    CCE_INFO_MINMAX,
    CCE_INFO_PLAIN,
    CceInfo,
    Constant,
    cce_of_kbin,
    decode_cce_info,
    encode_cce_info,
    kbin_dma_desc,
    packet_needs_info,
    scale_bits,
    scale_of,
)
from rota.isa.descriptors import LIMITS, Ordering
from rota.isa.dtypes import HELPER_SIZE, SIZE, Dtype
from rota.isa.engines import (
    CHANNEL_COUNTER,
    COMPLETION_MARKER,
    FEATURES,
    KERNEL_PACKET_CAP,
    PRIORITY_CLASSES,
    SB2SB_MAX_ELEMENTS,
    SBUF_FEED_OFFSET,
    SBUF_FEED_PARTITION_SHIFT,
    SBUF_PARTITION,
    SBUF_WINDOW,
    SbufTranspose,
    can_order,
    channel_has_room,
    check_ordering,
    data_tail_register,
    features_of,
    last_ordering,
    seed_register,
)
from rota.isa.enums import CceType
from rota.isa.transfer_types import (
    CCE_DTYPES,
    SIZE_TABLES,
    can_round_stochastically,
    hal_size_of,
    legacy_types_agree,
    needs_promotion,
    result_bytes,
)

PLAIN = struct.pack("<I132xI", 3, 0)
FMA = struct.pack("<II32fI", 2, 5, 0.5, -1.0, *[0.0] * 30, 4)
MINMAX = struct.pack("<IB3xII120xI", 32, 1, 7, 0xDEADBEEF, 1)


def test_views_of_the_reduce_parameters() -> None:
    """sdma §10: 140 bytes; scales and the constant alias each other."""
    assert len(PLAIN) == len(FMA) == len(MINMAX) == 140 == CCE_INFO_PLAIN.size
    rows = [
        (CceType.ADD, PLAIN, CceInfo(3)),
        (CceType.FMA, FMA, CceInfo(2, (0x3F000000, 0xBF800000), None, 4)),
        (CceType.MAX, MINMAX, CceInfo(32, (), Constant(Dtype.BFLOAT16, 0xDEADBEEF), 1)),
        (CceType.MIN, PLAIN, CceInfo(3)),
    ]
    for op, data, info in rows:
        assert decode_cce_info(b"\xff" + data, op, offset=1) == info
        assert encode_cce_info(info, op) == data
    aliased = [[each.at for each in view.fields] for view in (CCE_INFO_FMA, CCE_INFO_MINMAX)]
    assert aliased == [[0, 4, 8, 136], [0, 4, 8, 12, 136]]


@pytest.mark.parametrize(
    ("op", "data", "offset", "message"),
    [
        (CceType.ADD, PLAIN[:139], 0, "expected 140 bytes, got 139"),
        (CceType.ADD, b"\0" + PLAIN[1:], 0, "expected 1 to 32, got 0"),
        (CceType.ADD, b"\x21" + PLAIN[1:], 0, "expected 1 to 32, got 33"),
        (CceType.FMA, FMA[:4] + b"\x06" + FMA[5:], 4, "expected 5, FP32, got 6"),
        (CceType.FMA, FMA[:16] + b"\x01" + FMA[17:], 16, "expected 0x00, got 0x01"),  # a third scale
        (CceType.MAX, MINMAX[:4] + b"\x02" + MINMAX[5:], 4, "expected 0x01, got 0x02"),
        (CceType.MAX, MINMAX[:8] + b"\x10" + MINMAX[9:], 8, "a container type from 1 to 15, got 16"),
        (CceType.MAX, MINMAX[:4] + b"\x00" + MINMAX[5:], 8, "expected 0x00, got 0x07"),
        (CceType.MIN, MINMAX[:100] + b"\x09" + MINMAX[101:], 100, "expected 0x00, got 0x09"),
        (CceType.EXT, PLAIN, 0, "expected ADD, FMA, MAX or MIN, got EXT"),
    ],
)
def test_reduce_parameters_that_break_a_rule(op: CceType, data: bytes, offset: int, message: str) -> None:
    """sdma §6, §10: 1 to 32 sources, FP32 scales, and everything that is not used 0."""
    with pytest.raises(DecodeError, match=message) as caught:
        decode_cce_info(data, op)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("info", "op", "message"),
    [
        (CceInfo(0), CceType.ADD, "ADD sources: expected 1 to 32, got 0"),
        (CceInfo(33), CceType.ADD, "ADD sources: expected 1 to 32, got 33"),
        (CceInfo(2, (1,)), CceType.FMA, "FMA scales: expected 2, one a source, got 1"),
        (CceInfo(2, (1, 1)), CceType.MAX, "MAX scales: expected none, got 2"),
        (CceInfo(2, constant=Constant(Dtype.FP32, 0)), CceType.ADD, "ADD constant: expected none, got fp32"),
    ],
)
def test_reduce_parameters_that_are_refused(info: CceInfo, op: CceType, message: str) -> None:
    """sdma §6, §10: the same rules on the way out."""
    with pytest.raises(UsageError, match=message):
        encode_cce_info(info, op)


def test_no_container_asks_for_an_extension() -> None:
    """sdma §6: EXT and GCE have no container operation."""
    with pytest.raises(UnsupportedError, match="GCE: no container asks for it"):
        encode_cce_info(CceInfo(1), CceType.GCE)


def test_container_operations() -> None:
    """sdma §6: FMA 1, ADD 2, MIN 3, MAX 4 are 1, 0, 3, 2; the others combine nothing."""
    assert [cce_of_kbin(op) for op in (1, 2, 3, 4)] == [1, 0, 3, 2]
    for op, name in ((0, "COPY"), (5, "TRANSPOSE"), (-1, "INVALID"), (7, "unknown")):
        with pytest.raises(DecodeError, match=f"expected FMA, ADD, MIN or MAX, got {op} .{name}."):
            cce_of_kbin(op, offset=4)


def test_parameters_may_be_missing() -> None:
    """sdma §6: for ADD, and for MAX and MIN without a constant, never for FMA."""
    needs = [packet_needs_info(op, constant=False) for op in (CceType.ADD, CceType.MAX, CceType.MIN, CceType.FMA)]
    assert needs == [False, False, False, True]
    assert packet_needs_info(CceType.MAX, constant=True)


def test_scales_are_float32() -> None:
    """sdma §10: a scale is the bits of a float32."""
    assert [scale_bits(each) for each in (0.5, -1.0, math.inf, 0.0)] == [0x3F000000, 0xBF800000, 0x7F800000, 0]
    assert scale_of(0x3F000000) == 0.5
    with pytest.raises(UsageError, match="expected a float32, got 1e"):
        scale_bits(1e39)


def test_request_record() -> None:
    """sdma §10: 5456 bytes; 160 a pattern; the fields after the union are where they are said to be."""
    layout = kbin_dma_desc()
    at = {each.name: each.at for each in layout.fields}
    assert (layout.size, ACCESS_PATTERN.size) == (5456, 160)
    assert [at[name] for name in ("desc_type", "op", "to_idx", "from0_idx", "from31_idx")] == [0, 4, 8, 168, 5128]
    assert [at[name] for name in ("num_tiling_dims", "cce_info")] == [5288, 5292]
    assert 5292 + 140 == 8 + 5424 == at["block_id"]
    assert [at[name] for name in ("block_end", "function_name", "priority_class")] == [0x153C, 0x1540, 0x1548]
    assert layout.decode(layout.encode(op=-1))["op"] == -1


def test_the_size_tables_differ_at_fp32r() -> None:
    """sdma §9: the collective table stops FP32R with 0, the two others say 4; everything else agrees."""
    assert list(SIZE_TABLES) == ["collective", "helper", "hardware layer"]
    assert [table[Dtype.FP32R] for table in SIZE_TABLES.values()] == [0, 4, 4]
    assert [dtype for dtype in Dtype if len({table[dtype] for table in SIZE_TABLES.values()}) > 1] == [Dtype.FP32R]
    assert list(HELPER_SIZE.values()) == [0, 8, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 8, 1, 1, 1]
    assert [result_bytes(each) for each in (Dtype.FP32R, Dtype.FP32)] == [4, 4]
    assert SIZE[Dtype.FP32R] == 0


def test_the_hardware_layer_refuses_tags() -> None:
    """sdma §9: index 0 and above 15."""
    assert [hal_size_of(tag) for tag in (1, 11, 15)] == [8, 4, 1]
    for tag in (0, 16, -1):
        with pytest.raises(DecodeError, match="expected a tag from 1 to 15"):
            hal_size_of(tag, offset=3)


def test_cce_dtypes() -> None:
    """sdma §12: six pairs, in order; each value is the bytes of the rounded type, and FP32 and integers are absent."""
    assert list(CCE_DTYPES.items()) == [(6, 2), (7, 2), (11, 4), (13, 1), (14, 1), (15, 1)]
    assert all(HELPER_SIZE[dtype] == size for dtype, size in CCE_DTYPES.items())
    assert [bool(can_round_stochastically(each)) for each in (Dtype.BFLOAT16, Dtype.FP32, Dtype.INT8)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("source", "result", "agree"),
    [
        (Dtype.FP32, Dtype.INT32, True),
        (Dtype.BFLOAT16, Dtype.FP16, True),
        (Dtype.BFLOAT16, Dtype.FP32, False),
        (Dtype.FP32R, Dtype.INT64, False),
        (Dtype.UINT32, Dtype.FP32R, True),
    ],
)
def test_legacy_gate(source: Dtype, result: Dtype, agree: bool) -> None:
    """sdma §9: both types inside {8, 9, 10, 11}, or both outside."""
    assert bool(legacy_types_agree(source, result)) == agree


def test_promotion() -> None:
    """sdma §9: one source, one type, one byte."""
    assert needs_promotion(1, Dtype.FP8_EXP4, Dtype.FP8_EXP4)
    assert not needs_promotion(2, Dtype.FP8_EXP4, Dtype.FP8_EXP4)
    assert not needs_promotion(1, Dtype.FP8_EXP4, Dtype.FP8_EXP5)
    assert not needs_promotion(1, Dtype.BFLOAT16, Dtype.BFLOAT16)


def test_differences() -> None:
    """sdma §16: the rows of the table."""
    rows = [
        (each.generation, each.notification_mask, each.dual_tail, each.semaphore_regions, each.semaphore_regions_used,
         each.cce_registers, each.notification_stride, each.reverse_dma, each.sbuf_transpose)
        for each in FEATURES.values()
    ]  # fmt: skip
    assert rows == [
        (2, False, False, 0, 0, None, 48, None, SbufTranspose.GENERIC),
        (3, False, True, 0, 0, None, 48, None, SbufTranspose.WINDOWED),
        (4, True, True, 32, 24, 0x2000, 52, False, SbufTranspose.GENERIC),
    ]
    assert FEATURES.keys() == LIMITS.keys()
    assert (SBUF_WINDOW, SBUF_PARTITION) == (32 * 1024 * 1024, 256 * 1024)
    with pytest.raises(UsageError, match="architecture 'tonga'"):
        features_of("tonga")


def test_replication_and_strong_order_begin_with_generation_three() -> None:
    """sdma §7, §8, §16: what "arch > 2" says agrees with the limits."""
    for arch, features in FEATURES.items():
        later = features.generation > 2
        assert (LIMITS[arch].replication, LIMITS[arch].strong_ordered_write, features.dual_tail) == (later,) * 3


def test_packing_goes_by_the_lower_cap() -> None:
    """sdma §7, §17 row 7: the v4 getter says 128, packing 65; both are what the kernel takes."""
    assert (FEATURES["mariana"].m2s_getter, LIMITS["mariana"].tx_cap) == (128, 65)
    caps = [cap for each in LIMITS.values() for cap in (each.tx_cap, each.rx_cap)]
    assert all(cap in KERNEL_PACKET_CAP for cap in caps)
    assert (KERNEL_PACKET_CAP[0], KERNEL_PACKET_CAP[-1]) == (8, 128)


def test_orderings_by_architecture() -> None:
    """sdma §8, §16: v2 has no strong-ordered write and orders with DMB; v3 and later order strongly."""
    assert [last_ordering(arch).name for arch in LIMITS] == ["DMB", "STRONG_ORDER_WR", "STRONG_ORDER_WR"]
    refused = [(arch, how) for arch in LIMITS for how in Ordering if not can_order(how, arch)]
    assert refused == [("sunda", Ordering.STRONG_ORDER_WR)]
    with pytest.raises(UnsupportedError, match="sunda has no strong-ordered write; use DMB"):
        check_ordering(Ordering.STRONG_ORDER_WR, "sunda")


def test_registers() -> None:
    """sdma §1, §11: the seed registers of v4, and the second tail pointer after v2."""
    assert seed_register(0, 0, arch="mariana") == 0x2000 + 8 * 16 * 8
    assert seed_register(15, 15, arch="mariana") == 0x2000 + 8 * (15 + 16 * 23)
    assert [data_tail_register(queue, arch="cayman") for queue in (0, 2)] == [0x10E0, 0x30E0]
    with pytest.raises(UnsupportedError, match="cayman has no seed registers"):
        seed_register(0, 0, arch="cayman")
    with pytest.raises(UnsupportedError, match="sunda has one tail pointer"):
        data_tail_register(0, arch="sunda")
    for queue, converter in ((16, 0), (0, 16), (-1, 0)):
        with pytest.raises(UsageError, match="expected queue and converter from 0 to 15"):
            seed_register(queue, converter, arch="mariana")


def test_channel_guard() -> None:
    """sdma §15: 65535 - counter > new."""
    assert channel_has_room(0, 65534, arch="cayman")
    assert not channel_has_room(0, 65535, arch="cayman")
    assert not channel_has_room(65000, 535, arch="sunda")
    assert channel_has_room(65000, 534, arch="sunda")


def test_single_numbers() -> None:
    """sdma §1, §7, §13, §15: numbers that stand alone."""
    assert (COMPLETION_MARKER, SB2SB_MAX_ELEMENTS, list(PRIORITY_CLASSES)) == (0xABCDEF01, 256, [0, 1, 2, 3, 4])
    assert (SBUF_FEED_PARTITION_SHIFT, SBUF_FEED_OFFSET) == (18, 229372)
    assert CHANNEL_COUNTER.decode(b"\1\0\2\0\3\0\1\0") == {"m2s_val": 1, "s2m_val": 2, "repeat": 3, "last_sync": 1}
