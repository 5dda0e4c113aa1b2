"""Every byte of every row is written once, from the right sources, whatever its size, type, folds and targets.

The rows are rebuilt from the descriptors alone: by flags, words and counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand import Stages
from hypothesis import given, settings
from hypothesis import strategies as st
from read_rings import Move, launch, moves
from tests.images import TRN1, TRN2

from rota.emit.moves import fold_cut
from rota.isa import arch as isa
from rota.isa.descriptors import LIMITS, reduce_packet_bytes
from rota.isa.dtypes import Dtype, size_of
from rota.isa.op_words import WordKind
from rota.schedule.ir import Buffer, Checks, Op, Places, Schedule, Semaphore

FOLDS = (1, 2, 3, 4, 8, 16)
DTYPES = tuple(dtype for dtype in Dtype if size_of(dtype))
KIND_OF_OP = {Op.ADD: WordKind.ADD, Op.FMA: WordKind.FMA, Op.MAX: WordKind.MAX, Op.MIN: WordKind.MIN}
OFFSET = 32  # of each row in its buffers, beyond the end of the one before


def local_rows(shapes: list[tuple[int, int, int, Op]]) -> Schedule:
    """Return rows of one rank: (bytes, sources, targets, op) each; source i of every row lies in buffer i."""
    from rota.schedule.build import Block, Place, Wait, assemble

    sizes = [shape[0] for shape in shapes]
    offset = np.cumsum([0, *(-(-size // 32) * 32 + OFFSET for size in sizes)])
    most_sources, most_targets = max(s for _, s, _, _ in shapes), max(t for _, _, t, _ in shapes)
    first = [Wait(0)]  # makes a ring channel of the queue
    blocks = []
    for i, (size, sources, targets, op) in enumerate(shapes):
        blocks.append(
            Block(
                rank=np.zeros(1, np.int64),
                queue=0,
                leaf=0,
                step=i,
                size=size,
                op=op,
                sources=[Place(k, offset[i]) for k in range(sources)],
                targets=[Place(most_sources + k, offset[i]) for k in range(targets)],
                waits=first,
            )
        )
        first = []
    buffers = [Buffer(f"b{k}", int(offset[-1]), user=k < 2) for k in range(most_sources + most_targets)]
    return assemble(
        blocks, ranks=1, buffers=buffers, semaphores=[Semaphore("recv.0", 1)], input=0, output=most_sources,
        checks=Checks.UNBALANCED,
    )  # fmt: skip


def places(table: Places, row: int, stages: Stages) -> list[int]:
    """Return the addresses of a row's sources or targets."""
    span = slice(int(table.ptr[row]), int(table.ptr[row + 1]))
    member = stages.at.memory(table.rank[span].astype(np.int64), np.zeros(1, np.int64))
    return (member + stages.at.buffers[table.buffer[span]] + table.offset[span]).tolist()


def real(stages: Stages, start: int, fold: int) -> tuple[list[Move], list[Move]]:
    """Return the moves of data of a start on a fold, and those of the pad line."""
    memory = int(stages.at.memory(np.zeros(1, np.int64), np.zeros(1, np.int64))[0])
    found = list(moves(*launch(stages.emitted.rings, start, fold)))
    found = [move for move in found if move.sources[0] != memory + isa.FEED_WORDS]
    pads = [move for move in found if memory + isa.PAD_LINE in move.targets]
    return [move for move in found if move not in pads], pads


def check_row(stages: Stages, row: int) -> None:
    """The data moves of a row's start, over all folds, are exactly the row."""
    schedule = stages.schedule
    size, op = int(schedule.rows.size[row]), Op(int(schedule.rows.op[row]))
    sources, targets = places(schedule.sources, row, stages), places(schedule.targets, row, stages)
    reduces = len(sources) > 1 or op is Op.FMA
    written = np.zeros(size, np.int64)
    for fold in range(stages.folds):
        data, pads = real(stages, row, fold)
        start, length = (int(x[0, fold]) for x in fold_cut(np.array([size]), stages.folds))
        end = start
        for move in data:
            at = move.targets[0] - targets[0]
            assert at == end, "pieces of a fold follow each other"
            end += move.size
            assert list(move.targets) == [target + at for target in targets]
            assert list(move.sources) == [source + at for source in sources]
            written[at : at + move.size] += 1
            assert move.size % size_of(stages.dtype) == 0 or not reduces
            cap = reduce_packet_bytes(stages.dtype, stages.at.arch.name) if reduces else 1 << 16
            assert 0 < move.size <= cap
        assert end == start + length
        memory = int(stages.at.memory(np.zeros(1, np.int64), np.zeros(1, np.int64))[0])
        for pad in pads:
            assert set(pad.sources) | set(pad.targets) == {memory + isa.PAD_LINE}
            assert pad.size == (size_of(stages.dtype) if reduces else 4)
            assert (len(pad.sources), len(pad.targets)) == (len(sources), len(targets))
        for move in (*data, *pads):
            kind = KIND_OF_OP[op] if reduces else WordKind.COPY if len(targets) == 1 else WordKind.REPLICATION
            assert move.word.kind is kind
            assert not any(move.strong[:-1])
        strong = [move.strong[-1] for move in data]
        assert strong == [stages.at.arch.sow and i == len(strong) - 1 for i in range(len(strong))]
    assert (written == 1).all(), "each byte is written once"


@st.composite
def shapes(draw: Any, *, replication: bool = True, dtype: Dtype = Dtype.BFLOAT16) -> tuple[int, int, int, Op]:
    """A row: bytes around the sizes at which a fold, a granule or a packet more begins; sources, targets, operation."""
    item = size_of(dtype)
    sources = draw(st.sampled_from([1, 1, 2, 3, 5, 32]))
    op = draw(st.sampled_from([Op.NONE, Op.NONE, Op.FMA] if sources == 1 else [Op.ADD, Op.MAX, Op.MIN, Op.FMA]))
    base = draw(st.sampled_from([item, 32, 64, 1024, 4096, 8192, *(() if sources > 5 else (16_384, 49_152))]))
    if op is Op.NONE:
        base = draw(st.sampled_from([base, 65_536, 131_072, 262_144, 1 << 20]))
    size = max(item, (base + draw(st.integers(-40, 40)) * item) // item * item)
    return size, sources, draw(st.integers(1, 4)) if replication else 1, op


@settings(max_examples=40)
@given(
    data=st.data(), folds=st.sampled_from(FOLDS), dtype=st.sampled_from(DTYPES), platform=st.sampled_from([TRN2, TRN1])
)
def test_every_byte_is_written_once_by_the_right_sources(data: Any, folds: int, dtype: Dtype, platform: str) -> None:
    """Rebuilt from the descriptors: data, order of sources, targets, padding, strong order. Device-model §3."""
    found = data.draw(st.lists(shapes(replication=platform == TRN2, dtype=dtype), min_size=1, max_size=4))
    schedule = local_rows(found)
    stages = Stages(schedule=schedule, folds=folds, dtype=dtype, scales=(2.0,), platform_name=platform)
    for row in range(len(schedule)):
        check_row(stages, row)


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 1 << 22) | st.integers(1, 200), min_size=1, max_size=20), folds=st.integers(1, 16))
def test_folds_cut_rows_at_granules(sizes: list[int], folds: int) -> None:
    """Shares follow each other from the first byte to the last, begin at multiples of 32, and differ by one granule."""
    start, length = fold_cut(np.array(sizes), folds)
    assert (start[:, 0] == 0).all()
    assert ((start + length)[:, -1] == sizes).all()
    assert (start[:, 1:] == (start + length)[:, :-1]).all()
    inside = start < np.array(sizes)[:, None]
    assert (start[inside] % 32 == 0).all()
    granules = -(-length // 32)
    assert (granules.max(axis=1) - granules.min(axis=1) <= 1).all()


@settings(max_examples=25)
@given(data=st.data(), folds=st.sampled_from(FOLDS), dtype=st.sampled_from(DTYPES))
def test_all_folds_have_as_many_descriptors(data: Any, folds: int, dtype: Dtype) -> None:
    """TX and RX counts of a start hold for each of its folds; the slot program has one number for all. Sdma §15."""
    rows = data.draw(st.lists(shapes(dtype=dtype), min_size=1, max_size=4))
    stages = Stages(schedule=local_rows(rows), folds=folds, dtype=dtype, scales=(2.0,))
    rings = stages.emitted.rings
    assert (np.diff(rings.tx_ptr) == rings.m2s.sum()).all()
    assert (np.diff(rings.rx_ptr) == rings.s2m.sum()).all()


@pytest.mark.parametrize("platform", [TRN1, TRN2])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.FP8_EXP4])
def test_a_packet_has_no_more_descriptors_than_the_engine_takes(platform: str, dtype: Dtype) -> None:
    """32 sources with their scales and a replication are 65 reading descriptors, the most of a packet. Sdma §7."""
    several = 4 if platform == TRN2 else 1
    row = (3 * reduce_packet_bytes(dtype, "sunda" if platform == TRN1 else "cayman") + 32, 32, several, Op.FMA)
    stages = Stages(schedule=local_rows([row]), folds=1, dtype=dtype, scales=(0.5,), platform_name=platform)
    check_row(stages, 0)
    found = [move.tx for move in real(stages, 0, 0)[0]]
    assert np.diff(found).max() == 64 + (several > 1) <= LIMITS[stages.at.arch.name].tx_cap
