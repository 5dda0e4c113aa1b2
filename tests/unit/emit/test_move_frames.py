"""Packets of EMIT against the packets of `isa.packets`, which are built one by one, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand import Stages
from hypothesis import given, settings
from hypothesis import strategies as st
from read_rings import launch
from test_moves import DTYPES, local_rows, places
from tests.images import TRN1, TRN2

from rota.emit.moves import fold_cut
from rota.isa.arch import PAD_LINE
from rota.isa.descriptors import (
    ACCUMULATE,
    DESCRIPTOR,
    DESCRIPTOR_SIZE,
    Ordering,
    RxFlag,
    TxFlag,
    decode_length,
    limits_of,
    reduce_packet_bytes,
)
from rota.isa.dtypes import Dtype, size_of
from rota.isa.enums import CceType
from rota.isa.packets import CopyPacket, Packet, ReducePacket, encode_packet
from rota.schedule.ir import Op

CCE = {Op.ADD: CceType.ADD, Op.FMA: CceType.FMA, Op.MAX: CceType.MAX, Op.MIN: CceType.MIN}
SCALE = 0.75
SCALE_BITS = int(np.float32(SCALE).view(np.uint32))
ONE_BITS = 0x3F800000


def built(stages: Stages, row: int, fold: int) -> tuple[bytes, bytes]:
    """Return the packets of a row's data on a fold, built one by one; only for folds that need no padding."""
    schedule, dtype = stages.schedule, stages.dtype
    arch = stages.at.arch.name
    start, length = (int(x[0, fold]) for x in fold_cut(np.array([schedule.rows.size[row]]), stages.folds))
    sources, targets = places(schedule.sources, row, stages), places(schedule.targets, row, stages)
    op = Op(int(schedule.rows.op[row]))
    reduces = len(sources) > 1 or op is Op.FMA
    most = reduce_packet_bytes(dtype, arch) if reduces else limits_of(arch).rx_cap << 16
    out = [b"", b""]
    for at in range(start, start + length, most):
        size = min(most, start + length - at)
        strong = stages.at.arch.sow and at + size == start + length
        ordering = Ordering.STRONG_ORDER_WR if strong else Ordering.NONE
        packet: Packet = CopyPacket(sources[0] + at, targets[0] + at, size, 0, ordering)
        if reduces:
            packet = ReducePacket(
                op=CCE[op],
                sources=tuple(source + at for source in sources),
                targets=tuple(target + at for target in targets),
                count=size // size_of(dtype),
                transfer=dtype,
                result=ACCUMULATE.get(dtype, dtype),
                scales=(SCALE_BITS, *(ONE_BITS,) * (len(sources) - 1)) if op is Op.FMA else (),
                ring=0,
                ordering=ordering,
            )
        out = [before + added for before, added in zip(out, encode_packet(packet, arch=arch), strict=True)]
    return out[0], out[1]


def check(stages: Stages, fold: int = 0) -> None:
    """The descriptors of the first row begin with the packets that are built one by one; behind them is a signal."""
    tx, rx = launch(stages.emitted.rings, 0, fold)
    want = built(stages, 0, fold)
    assert tx.tobytes()[: len(want[0])] == want[0]
    assert rx.tobytes()[: len(want[1])] == want[1]
    assert (tx.size, rx.size) == tuple(len(side) // DESCRIPTOR_SIZE + 1 for side in want)


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from([Op.ADD, Op.MAX, Op.MIN, Op.FMA]),
    sources=st.integers(2, 32),
    targets=st.integers(1, 6),
    packets=st.integers(0, 2),
    rest=st.integers(1, 32),
)
def test_reduces_are_the_packets_of_the_instruction_set(
    dtype: Dtype, op: Op, sources: int, targets: int, packets: int, rest: int
) -> None:
    """Sources with their scales before them, replication first where there are several targets, strong order last."""
    size = packets * reduce_packet_bytes(dtype, "cayman") + rest * size_of(dtype)
    check(Stages(schedule=local_rows([(size, sources, targets, op)]), folds=1, dtype=dtype, scales=(SCALE,)))


@pytest.mark.parametrize("targets", [1, 2, 5])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if size_of(dtype) > 1])
def test_an_fma_of_one_source_is_a_reduce(dtype: Dtype, targets: int) -> None:
    """It scales; as a plain copy it would not."""
    check(Stages(schedule=local_rows([(4200, 1, targets, Op.FMA)]), folds=1, dtype=dtype, scales=(SCALE,)))


@pytest.mark.parametrize("sources", [2, 31])
@pytest.mark.parametrize("op", [Op.ADD, Op.FMA, Op.MAX])
def test_reduces_of_trn1(op: Op, sources: int) -> None:
    """Smaller packets, no strong order."""
    schedule = local_rows([(5000, sources, 1, op)])
    check(Stages(schedule=schedule, folds=1, dtype=Dtype.FP16, scales=(SCALE,), platform_name=TRN1))


@pytest.mark.parametrize("platform", [TRN1, TRN2])
@pytest.mark.parametrize("size", [1, 32, 65_535, 65_536, 65_537, 61 << 16, (128 << 16) + 4])
def test_copies_are_the_packets_of_the_instruction_set(size: int, platform: str) -> None:
    """Descriptors of 65536 bytes, as many as the engine takes in a packet."""
    check(Stages(schedule=local_rows([(size, 1, 1, Op.NONE)]), folds=1, platform_name=platform))


@pytest.mark.parametrize("folds", [2, 3, 8])
@pytest.mark.parametrize("op", [Op.ADD, Op.FMA, Op.NONE])
def test_each_fold_has_the_packets_of_its_share(op: Op, folds: int) -> None:
    """Where every fold has as many, none is padded and none is halved."""
    schedule = local_rows([(folds * 3200, 1 if op is Op.NONE else 3, 1, op)])
    for fold in range(folds):
        check(Stages(schedule=schedule, folds=folds, scales=(SCALE,)), fold)


# --- several targets of a copy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [2, 3, 16])
def test_a_copy_to_several_places_is_one_packet_a_descriptor(targets: int) -> None:
    """The word says how many places follow: 0x00A00000 and the number. Each is read once and written to all. §3."""
    stages = Stages(schedule=local_rows([(65_536 + 100, 1, targets, Op.NONE)]), folds=1)
    tx, rx = launch(stages.emitted.rings, 0, 0)
    sources, into = places(stages.schedule.sources, 0, stages), places(stages.schedule.targets, 0, stages)
    assert tx["meta_ctrl"][:2].tolist() == [0x00A00000 | targets] * 2
    assert (tx["len_ctrl"][:2] & ~np.uint32(0xFFFF)).tolist() == [TxFlag.FIRST | TxFlag.LAST] * 2
    assert tx["buf_ptr"][:2].tolist() == [sources[0], sources[0] + 65_536]
    assert decode_length(tx["len_ctrl"][:2]).tolist() == [65_536, 100]
    assert decode_length(rx["len_ctrl"][:-1]).tolist() == [65_536] * targets + [100] * targets
    assert rx["buf_ptr"][:-1].tolist() == [*into, *(place + 65_536 for place in into)]
    strong = (rx["len_ctrl"] & RxFlag.STRONG_ORDER_WR) != 0
    assert np.flatnonzero(strong).tolist() == [2 * targets - 1], "the last place of the last piece"


# --- padding ----------------------------------------------------------------------------------------------------------


def padding(stages: Stages, fold: int, tx_at: int, rx_at: int) -> tuple[Any, Any]:
    """Return the descriptors behind the data of a fold, without the completion."""
    tx, rx = launch(stages.emitted.rings, 0, fold)
    return tx[tx_at:-1], rx[rx_at:-1]


def test_a_copy_without_a_piece_copies_the_pad_line() -> None:
    """One granule for two folds: the first has nothing and copies 4 bytes of the line at 0x40 to itself. §3."""
    stages = Stages(schedule=local_rows([(32, 1, 1, Op.NONE)]), folds=2)
    pad = stages.at.arch.memory(0) + PAD_LINE
    tx, rx = padding(stages, 0, 0, 0)
    assert (tx.tobytes(), rx.tobytes()) == encode_packet(CopyPacket(pad, pad, 4, 0), arch="cayman")


@pytest.mark.parametrize("op", [Op.ADD, Op.FMA, Op.MIN])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.INT8])
def test_a_reduce_without_a_byte_has_the_packet_of_the_others(dtype: Dtype, targets: int, op: Op) -> None:
    """One element of the pad line from and to everywhere, scales and replication as on the fold with data. §3."""
    stages = Stages(schedule=local_rows([(32, 3, targets, op)]), folds=2, dtype=dtype, scales=(SCALE,))
    pad = stages.at.arch.memory(0) + PAD_LINE
    scales = (SCALE_BITS, ONE_BITS, ONE_BITS) if op is Op.FMA else ()
    packet = ReducePacket(CCE[op], (pad,) * 3, (pad,) * targets, 1, dtype, ACCUMULATE.get(dtype, dtype), scales, ring=0)
    tx, rx = padding(stages, 0, 0, 0)
    assert (tx.tobytes(), rx.tobytes()) == encode_packet(packet, arch="cayman")
    other = launch(stages.emitted.rings, 0, 1)[0][:-1]
    assert other["meta_ctrl"].tolist() == tx["meta_ctrl"].tolist()


def test_a_copy_to_several_places_without_a_piece_pads_as_many() -> None:
    """One reading descriptor and as many writing ones as on the other fold."""
    stages = Stages(schedule=local_rows([(32, 1, 4, Op.NONE)]), folds=2)
    pad = stages.at.arch.memory(0) + PAD_LINE
    tx, rx = padding(stages, 0, 0, 0)
    assert (tx.size, rx.size) == (1, 4)
    assert tx["meta_ctrl"].tolist() == [0x00A00004]
    assert set(rx["buf_ptr"].tolist()) | set(tx["buf_ptr"].tolist()) == {pad}
    assert set(decode_length(np.append(tx, rx).view(DESCRIPTOR)["len_ctrl"]).tolist()) == {4}
