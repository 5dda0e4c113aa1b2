"""Descriptors of single rows: the conventions of device-model §3, each as a test. Sections are those of that page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from rows import PAD_LINE, Rows, is_signal
from tests.images import PLATFORMS, TRN1, TRN2, Ring, section

from rota.emit import emit
from rota.isa.arch import ARCHES
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, RxFlag, TxFlag, decode_length
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.image import Section
from rota.request import Request
from rota.schedule.build import Block, Signal, assemble
from rota.schedule.ir import Buffer, Checks, Leaf, Op, Semaphore

SIZES = (1, 4, 31, 32, 33, 63, 64, 100, 1000, 4095, 4096, 4097, 70_001)


def sizes_of(ring: np.ndarray) -> list[int]:
    return [int(n) for n in decode_length(ring["len_ctrl"])]


# --- fold split -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("size", SIZES)
def test_folds_are_cut_at_granules_of_32_bytes(size: int, folds: int) -> None:
    """Fold f gets granules floor(U f / F) to floor(U (f + 1) / F), the tail goes to the last. §3, fold split."""
    rows = Rows(sizes=(size,), folds=folds)
    granules = -(-size // 32)
    for fold in range(folds):
        start, end = (min(granules * f // folds * 32, size) for f in (fold, fold + 1))
        written = rows.writes(fold)
        assert [at for at, _ in written] == [start + 65536 * i for i in range(-(-(end - start) // 65536))]
        assert sum(n for _, n in written) == end - start


@pytest.mark.parametrize("platform", [TRN1, TRN2])
@pytest.mark.parametrize("sources", [1, 2, 3])
@pytest.mark.parametrize("folds", [1, 2, 3, 4, 7, 16])
def test_all_folds_have_equal_counts(folds: int, sources: int, platform: str) -> None:
    """TX and RX counts are the same on every fold, whatever the rows' sizes. §3; sdma §15."""
    rows = Rows(sizes=tuple(2 * n for n in SIZES), folds=folds, sources=sources, platform_name=platform)
    for kind in (Section.TX, Section.RX):
        assert len({rows.ring(kind, fold).size for fold in range(folds)}) == 1


def test_a_copy_fold_with_fewer_packets_ends_in_padding() -> None:
    """65568 bytes: one fold has a full descriptor and the other two; the first gets a 4-byte copy of the pad line."""
    rows = Rows(sizes=(2 * 65536 + 32,), folds=2)
    tx, rx = rows.ring(Section.TX, 0), rows.ring(Section.RX, 0)
    assert sizes_of(rx) == [65536, 4, 4]
    assert int(tx["buf_ptr"][1]) == int(rx["buf_ptr"][1]) == rows.memory + PAD_LINE
    assert int(tx["meta_ctrl"][1]) == COPY_WORD
    assert int(tx["len_ctrl"][1]) == TxFlag.FIRST | TxFlag.LAST | 1 << 24 | 4
    assert rows.writes(1) == [(65536, 65536), (131072, 32)]


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.FP8_EXP4])
def test_a_reduce_fold_without_a_byte_reduces_one_element_of_the_pad_line(dtype: Dtype) -> None:
    """Same shape as the folds with data, all addresses the pad line. §3, fold split."""
    rows = Rows(sizes=(32,), folds=3, sources=3, dtype=dtype)
    item = {Dtype.BFLOAT16: 2, Dtype.FP32: 4, Dtype.FP8_EXP4: 1}[dtype]
    for fold in (0, 1):
        tx, rx = rows.ring(Section.TX, fold), rows.ring(Section.RX, fold)
        assert sizes_of(tx)[:3] == [item] * 3
        assert sizes_of(rx)[0] == item
        assert set(tx["buf_ptr"][:3].tolist()) == {rows.memory + PAD_LINE} == {int(rx["buf_ptr"][0])}
        assert tx["meta_ctrl"][:3].tolist() == rows.ring(Section.TX, 2)["meta_ctrl"][:3].tolist()
    assert rows.writes(2) == [(0, 32)]


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32])
def test_a_reduce_fold_that_is_one_packet_short_halves_its_last(dtype: Dtype) -> None:
    """257 granules and a packet of 4096 bytes: 4096 on one fold becomes 2048 + 2048. §3, fold split."""
    full = {Dtype.BFLOAT16: 4096, Dtype.FP32: 8192}[dtype]
    rows = Rows(sizes=(2 * full + 32,), folds=2, sources=2, dtype=dtype)
    assert rows.writes(0) == [(0, full // 2), (full // 2, full // 2)]
    assert rows.writes(1) == [(full, full), (2 * full, 32)]


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32])
@pytest.mark.parametrize("folds", [2, 3])
def test_packets_of_a_reduction_are_whole_elements(folds: int, dtype: Dtype) -> None:
    """Around the sizes at which a fold gets one packet more, every packet has a whole number of elements, and not 0."""
    full = 4096 if dtype is Dtype.BFLOAT16 else 8192
    item = 2 if dtype is Dtype.BFLOAT16 else 4
    for size in range(folds * full - 68, folds * full + 140, item):
        rows = Rows(sizes=(size,), folds=folds, sources=2, dtype=dtype)
        written = [piece for fold in range(folds) for piece in rows.writes(fold)]
        assert all(n > 0 and n % item == 0 for _, n in written)
        assert [at for at, _ in written] == [0, *np.cumsum([n for _, n in written])[:-1].tolist()]


# --- packets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "dtype", "full"),
    [
        (TRN2, Dtype.BFLOAT16, 4096),  # 0x800 elements
        (TRN2, Dtype.FP16, 4096),
        (TRN2, Dtype.FP32, 8192),  # 0x800 elements and 0x2000 bytes
        (TRN2, Dtype.FP8_EXP3, 2048),
        (TRN1, Dtype.BFLOAT16, 2048),  # 0x400 elements
        (TRN1, Dtype.FP32, 4096),  # 0x400 elements and 0x1000 bytes
        (TRN1, Dtype.FP8_EXP5, 1024),
        (TRN2, Dtype.INT64, 8192),  # 0x2000 bytes
    ],
)
def test_reduce_packets_end_at_the_caps_of_the_engine(platform: str, dtype: Dtype, full: int) -> None:
    """Full packets, then a short one of whole elements; every length of a packet alike. §3, CCE packet; sdma §7."""
    rows = Rows(sizes=(3 * full + 8,), sources=2, dtype=dtype, platform_name=platform)
    assert rows.writes() == [(0, full), (full, full), (2 * full, full), (3 * full, 8)]
    tx = rows.ring(Section.TX)
    assert sizes_of(tx)[:8] == [n for _, n in rows.writes() for _ in range(2)]


@pytest.mark.parametrize(("platform", "cap"), [(TRN2, 60), (TRN1, 128)])
def test_copy_packets_have_as_many_descriptors_as_the_engine_takes(platform: str, cap: int) -> None:
    """65536 bytes a descriptor, 60 a packet (128 on Trn1), then a new packet; LAST alone lacks CONCAT. §3."""
    rows = Rows(sizes=((2 * cap + 1) * 65536 - 1,), platform_name=platform)
    tx = rows.ring(Section.TX)
    word = tx["len_ctrl"]
    first, last, concat = ((word & flag) != 0 for flag in (TxFlag.FIRST, TxFlag.LAST, TxFlag.CONCAT))
    completion = 2 * cap + 1
    assert np.flatnonzero(first).tolist() == [0, cap, 2 * cap, completion]
    assert np.flatnonzero(last).tolist() == [cap - 1, 2 * cap - 1, 2 * cap, completion]
    assert (concat == ~last).all()
    assert sizes_of(tx)[:-1] == [65536] * (2 * cap) + [65535]
    assert (word[0] & 0xFFFF) == 0  # 65536 is written as 0


@pytest.mark.parametrize("sources", [2, 3, 5, 32])
def test_a_reduce_packet_is_all_its_sources_in_order(sources: int) -> None:
    """FIRST on the first, LAST and the last-source bit on the last, CONCAT on all but it; one RX. sdma §7."""
    rows = Rows(sizes=(96,), sources=sources)
    tx, rx = rows.ring(Section.TX), rows.ring(Section.RX)
    packet = tx[:sources]
    assert [bool(w & TxFlag.FIRST) for w in packet["len_ctrl"].tolist()] == [True] + [False] * (sources - 1)
    assert [bool(w & TxFlag.LAST) for w in packet["len_ctrl"].tolist()] == [False] * (sources - 1) + [True]
    assert [bool(w & TxFlag.CONCAT) for w in packet["len_ctrl"].tolist()] == [True] * (sources - 1) + [False]
    assert packet["meta_ctrl"].tolist() == [0x02066000] * (sources - 1) + [0x02066080]
    room = 128
    starts = [0x1000, *[0x1000 + room * (k + 1) for k in range(1, sources)]]
    assert (packet["buf_ptr"] - rows.memory).tolist() == starts
    assert rx.size == 2  # the result and the completion


@pytest.mark.parametrize(
    ("dtype", "op", "word", "last"),
    [
        (Dtype.BFLOAT16, Op.ADD, 0x02066000, 0x02066080),
        (Dtype.FP16, Op.ADD, 0x02077000, 0x02077080),
        (Dtype.FP32, Op.ADD, 0x020BA000, 0x020BA080),
        (Dtype.FP8_EXP4, Op.ADD, 0x020EE000, 0x020EE080),
        (Dtype.BFLOAT16, Op.MAX, 0x02266600, 0x02266690),
        (Dtype.FP32, Op.MIN, 0x023BAA00, 0x023BAA90),
        (Dtype.INT32, Op.ADD, 0x02088000, 0x02088080),
    ],
)
def test_reduce_words(dtype: Dtype, op: Op, word: int, last: int) -> None:
    """Transfer and accumulator nibbles; fp32 is accumulated as fp32r. Design §2 (1), sdma §3.1 and §4."""
    tx = Rows(sizes=(64,), sources=2, dtype=dtype, op=op).ring(Section.TX)
    assert tx["meta_ctrl"].tolist() == [word, last, COPY_WORD]


def test_the_second_word_of_rx_is_zero_and_no_packet_flags_are_there() -> None:
    """RX: length, phase and strong order only. §3, flags."""
    ring = Ring()
    for index in (0, 1, 16, 17):
        rx = np.frombuffer(section(ring.images[0], Section.RX, index), DESCRIPTOR)
        assert not rx["meta_ctrl"].any()
        assert not (rx["len_ctrl"] & ~np.uint32(0xFFFF | 3 << 24 | RxFlag.STRONG_ORDER_WR)).any()


# --- what ends a row --------------------------------------------------------------------------------------------------


def test_strong_order_is_on_the_last_data_descriptor_of_each_fold() -> None:
    """Once a row and fold with data, and on no padding, signal or completion. §3, order of writes."""
    sizes = (3 * 65536, 32, 8192)
    rows = Rows(sizes=sizes, folds=2)
    strong = [(rows.ring(Section.RX, fold)["len_ctrl"] & RxFlag.STRONG_ORDER_WR) != 0 for fold in range(2)]
    # three rows: 2, 1 and 1 data descriptors, each row ends in a completion; the second has one granule, on fold 1
    assert np.flatnonzero(strong[0]).tolist() == [1, 5]
    assert np.flatnonzero(strong[1]).tolist() == [1, 3, 5]
    assert sizes_of(rows.ring(Section.RX, 0)) == [65536, 32768, 4, 4, 4, 4096, 4]


def test_strong_order_is_on_the_last_packet_of_a_reduction() -> None:
    rows = Rows(sizes=(3 * 4096,), sources=2)
    strong = rows.ring(Section.RX)["len_ctrl"] & RxFlag.STRONG_ORDER_WR
    assert np.flatnonzero(strong).tolist() == [2]


def test_trn1_puts_a_barrier_on_the_first_semaphore_packet_of_a_fold_with_data() -> None:
    """TX bit 30, only behind data, and RX bit 29 nowhere. Design §2 (19)."""
    ring = Ring(platform_name=TRN1, groups=((0, 1, 2),))
    seen = 0
    for index in (0, 1, 16, 17):
        tx = np.frombuffer(section(ring.images[0], Section.TX, index), DESCRIPTOR)
        rx = np.frombuffer(section(ring.images[0], Section.RX, index), DESCRIPTOR)
        assert not (rx["len_ctrl"] & RxFlag.STRONG_ORDER_WR).any()
        feed = ARCHES["sunda"].memory(0) + 0x80
        signal = tx["buf_ptr"] == feed
        padding = tx["buf_ptr"] == feed - 0x40
        behind_data = np.append(False, ~signal[:-1] & ~padding[:-1])
        barrier = (tx["len_ctrl"] & TxFlag.DMB) != 0
        assert (barrier == (signal & behind_data)).all()
        seen += int(barrier.sum())
    assert seen


def test_trn2_has_no_barrier() -> None:
    ring = Ring()
    for index in (0, 1, 16, 17):
        tx = np.frombuffer(section(ring.images[0], Section.TX, index), DESCRIPTOR)
        assert not (tx["len_ctrl"] & TxFlag.DMB).any()


def tail(ring: Ring, rank: int, row: Sequence[int]) -> list[int]:
    rx = np.frombuffer(section(ring.images[rank], Section.RX), DESCRIPTOR)
    return [int(address) for address in rx["buf_ptr"][list(row)]]


def test_a_row_ends_with_data_credit_and_its_own_completion() -> None:
    """Data, padding, inc next.recv, inc prev.credit, inc own completion, on every fold. §3, order in a fold."""
    ring = Ring(groups=((0, 1, 2),), orders=((0, 1, 2),), count=6 * 64)
    arch = ARCHES["cayman"]
    inc = {name: 0x1800 + 4 * (8 + i) for i, name in enumerate(("recv", "credit", "post", "completion"))}
    for fold in range(2):
        rx = np.frombuffer(section(ring.images[1], Section.RX, 16 * fold), DESCRIPTOR)["buf_ptr"]
        own, before, behind = (arch.semaphores(4 * lane + 3) for lane in (1, 0, 2))
        # two sends of three descriptors, then the row that receives, reduces and sends
        assert rx[1:3].tolist() == [behind + inc["recv"], own + inc["completion"]]
        assert rx[7:10].tolist() == [behind + inc["recv"], before + inc["credit"], own + inc["completion"]]
        last = [before + inc["credit"], own + inc["completion"]]
        assert rx[-2:].tolist() == last  # the last row only receives


def test_what_has_arrived_is_the_first_source_of_a_hop() -> None:
    """Received slot first, own input second. §3, source order."""
    ring = Ring(groups=((0, 1, 2),), orders=((0, 1, 2),), count=6 * 64)
    memory = ARCHES["cayman"].memory(2)
    slot = 0x1000 + 2 * 6 * 128  # behind input and output of 768 bytes each
    tx = np.frombuffer(section(ring.images[1], Section.TX), DESCRIPTOR)
    first, second = (int(address) - memory for address in tx["buf_ptr"][6:8])
    assert tx["meta_ctrl"][6:8].tolist() == [0x02066000, 0x02066080]
    assert first >= slot
    assert 0x1000 <= second < 0x1000 + 768


def test_a_signal_is_a_packet_of_four_bytes_from_a_feed_word() -> None:
    """Plain copy word, FIRST and LAST; the word read is what is added, 1 here. §3, semaphore packet."""
    ring = Ring()
    assert section(ring.images[0], Section.MEM, 0x80) == (1).to_bytes(4, "little")
    tx = np.frombuffer(section(ring.images[0], Section.TX), DESCRIPTOR)
    rx = np.frombuffer(section(ring.images[0], Section.RX), DESCRIPTOR)
    feeds = tx[tx["buf_ptr"] == ARCHES["cayman"].memory(0) + 0x80]
    assert feeds.size == is_signal(rx).sum()
    assert set(feeds["meta_ctrl"].tolist()) == {COPY_WORD}
    assert set(feeds["len_ctrl"].tolist()) == {int(TxFlag.FIRST | TxFlag.LAST) | 1 << 24 | 4}


def test_feed_words_are_the_distinct_values_added() -> None:
    """An all-gather gives all credits at once when it begins: min(slots, receives)."""
    ring = Ring(kind=EncOp.ALLGATHER, count=3 * 100, slots=8)
    assert np.frombuffer(section(ring.images[0], Section.MEM, 0x80), "<u4").tolist() == [1, 4]
    ring = Ring(kind=EncOp.ALLGATHER, count=3 * 1000, slots=8, chunk=64)
    assert np.frombuffer(section(ring.images[0], Section.MEM, 0x80), "<u4").tolist() == [1, 8]


def test_each_rank_has_the_feed_words_it_reads() -> None:
    """Rank 0 adds 1, rank 1 adds 7, and each completion adds 1. §2, feed words."""
    rank = np.array([0, 1])
    block = Block(rank=rank, queue=0, leaf=Leaf.POST_RECV, size=0, signals=[Signal(1 - rank, 0, np.array([1, 7]))])
    buffers = [Buffer("input", 64, user=True), Buffer("output", 64, user=True)]
    schedule = assemble(
        [block],
        ranks=2,
        buffers=buffers,
        semaphores=[Semaphore("recv.0")],
        input=0,
        output=1,
        checks=Checks.UNBALANCED,
    )
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 32, ((0, 1),), CceType.ADD)
    images = emit(schedule, request, PLATFORMS[TRN2])
    feeds = [np.frombuffer(section(image, Section.MEM, 0x80), "<u4").tolist() for image in images]
    assert feeds == [[1], [1, 7]]
    tx = np.frombuffer(section(images[1], Section.TX), DESCRIPTOR)
    assert (tx["buf_ptr"] & 0xFFF).tolist() == [0x84, 0x80]


def test_a_row_without_data_still_has_its_signals() -> None:
    """The last receive of an all-gather, and rows of empty chunks: signals and completion on each fold. §4, a row."""
    ring = Ring(count=1)  # one element: every other chunk is empty
    for rank in range(3):
        counts = set()
        for fold in range(2):
            rx = np.frombuffer(section(ring.images[rank], Section.RX, 16 * fold), DESCRIPTOR)
            counts.add((rx.size, int(is_signal(rx).sum())))
        assert len(counts) == 1


# --- rings ------------------------------------------------------------------------------------------------------------


def test_phases_advance_with_every_round_of_the_ring() -> None:
    """Descriptor i has phase (1 + i div 4096) & 3; twenty thousand go round more than four times. §3, RING_ID."""
    rows = Rows(sizes=(3999 * 65536,) * 5)
    for kind in (Section.TX, Section.RX):
        ring = rows.ring(kind)
        assert ring.size == 20_000
        phase = ring["len_ctrl"] >> 24 & 3
        assert phase.tolist() == [(1 + i // 4096) & 3 for i in range(20_000)]
