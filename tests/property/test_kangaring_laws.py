"""Laws of composed KangaRings: data and order are right, numbers are those of plain loops, counts have closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.compose.slow_kangaring import slow_numbers

from rota.compose.board import Board, Region
from rota.compose.cut import Cut, cut
from rota.compose.kangaring import KangaRings, write_all_gather, write_all_reduce, write_reduce_scatter
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.native.arithmetic import Combine
from rota.request import COMPOSED, Request
from rota.schedule.ir import Leaf, Schedule
from rota.select.settings import RING_CHUNK
from rota.verify import traffic, verify
from rota.verify.order import find_order

FOLDS: Final = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}
SENDS: Final = (
    Leaf.DIRECT_REDUCE_SEND_KANGARING,
    Leaf.RECV_REDUCE_SEND,
    Leaf.DIRECT_COPY_SEND,
    Leaf.DIRECT_RECV_SEND,
)


@dataclass(frozen=True)
class Kanga:
    """The arguments of one composition."""

    how: KangaRings
    request: Request

    @property
    def ranks(self) -> int:
        return self.request.ranks

    @property
    def pieces(self) -> Cut:
        how = self.how
        return cut(
            self.request.kind,
            self.request.size,
            ranks=self.ranks,
            channels=how.channels,
            halves=how.halves,
            chunk=how.chunk,
        )

    @property
    def schedule(self) -> Schedule:
        board, request, shard = Board.of(self.request), self.request, self.request.share
        match request.kind:
            case EncOp.REDUCE_SCATTER:
                source = Region(board.input, 0, shard)
                write_reduce_scatter(board, self.how, source, Region(board.output), shard)
            case EncOp.ALLGATHER:
                target = Region(board.output, 0, shard)
                write_all_gather(board, self.how, Region(board.input), target, shard)
            case _:
                write_all_reduce(board, self.how, Region(board.input), Region(board.output), request.size)
        return board.schedule()


@st.composite
def kangas(draw: st.DrawFn, *, most_primaries: int = 6, most_count: int = 1500) -> Kanga:
    """Any KangaRing: kind, paths in any order, groups that run together, odd sizes, several chunk groups, in place."""
    primaries, core = draw(st.integers(1, most_primaries)), draw(st.sampled_from([2, 4]))
    ranks, channels, groups = primaries * core, draw(st.integers(1, 4)), draw(st.integers(1, 3))
    path = st.permutations(range(ranks))
    members = np.array([[draw(path) for _ in range(groups)] for _ in range(channels)])
    kind = draw(st.sampled_from(COMPOSED))
    halves = draw(st.integers(1, 2))
    count = draw(st.integers(1, most_count if kind is EncOp.ALLREDUCE else most_count // ranks + 1))
    how = KangaRings(
        members.reshape(channels, groups, primaries, core),
        slots=draw(st.integers(halves + 1, 8)),
        chunk=draw(st.sampled_from([64, 128, 448, RING_CHUNK])),
        halves=halves,
    )
    request = Request(
        kind,
        draw(st.sampled_from([Dtype.FP8_EXP4, Dtype.BFLOAT16, Dtype.FP32])),
        count * (1 if kind is EncOp.ALLREDUCE else ranks),
        tuple(tuple(range(g * ranks, (g + 1) * ranks)) for g in range(groups)),
        None if kind is EncOp.ALLGATHER else draw(st.sampled_from(list(FOLDS))),
        in_place=kind is EncOp.ALLREDUCE and draw(st.booleans()),
    )
    return Kanga(how, request)


@settings(max_examples=60, deadline=None)
@given(kanga=kangas())
def test_contributions_arrive_once_and_in_order(kanga: Kanga) -> None:
    """Any paths, channels, slots, sizes and groups leave each contribution once, whatever the timing."""
    schedule = kanga.schedule
    verify(schedule, kanga.request)
    assert find_order(schedule) == []


@settings(max_examples=40, deadline=None)
@given(kanga=kangas(most_count=600), seed=st.integers(0, 1 << 30))
def test_numbers_are_those_of_plain_loops(kanga: Kanga, seed: int) -> None:
    """Every rank ends, bit for bit, with what folding core group after core group along each path gives."""
    request, ranks = kanga.request, kanga.ranks
    dtype: Any = numpy_dtype(request.dtype)
    shape = (len(request.members), request.input_size // request.itemsize)
    inputs = (np.random.default_rng(seed).standard_normal(shape) * 8).astype(dtype)
    found = execute(kanga.schedule, inputs)
    how = FOLDS.get(request.op, Combine.COPY) if request.op is not None else Combine.COPY
    for g in range(len(request.groups)):
        paths = [kanga.how.members[channel, g].tolist() for channel in range(kanga.how.channels)]
        mine = inputs[g * ranks : (g + 1) * ranks]
        expected = slow_numbers(request.kind, how, paths, mine, kanga.pieces)
        for rank in range(ranks):
            assert found[g * ranks + rank].tobytes() == expected[rank].tobytes()


@settings(max_examples=60, deadline=None)
@given(kanga=kangas())
def test_touches_and_bytes(kanga: Kanga) -> None:
    """Topology §6, summed over all ranks, in bytes of the whole buffer: AG reads P and writes N, RS reads G+(P-1)(G+1).

    A rank sends what it writes elsewhere; what its primary reads from a secondary counts as sent by the secondary.
    """
    request, how = kanga.request, kanga.how
    p, core, n = how.primaries, how.group_size, kanga.ranks
    moved = traffic(kanga.schedule)
    reads = {EncOp.ALLGATHER: p, EncOp.REDUCE_SCATTER: core + (p - 1) * (core + 1)}
    writes = {EncOp.ALLGATHER: n, EncOp.REDUCE_SCATTER: p}
    reads[EncOp.ALLREDUCE] = sum(reads.values())
    writes[EncOp.ALLREDUCE] = sum(writes.values()) - 1  # the owner has its chunk already
    total = request.size * len(request.groups)
    assert int(moved.read.sum()) == reads[request.kind] * total
    assert int(moved.written.sum()) == writes[request.kind] * total


@settings(max_examples=60, deadline=None)
@given(kanga=kangas())
def test_hops(kanga: Kanga) -> None:
    """P-1 hops a phase; each primary passes on the chunks of every other core group once."""
    how, schedule = kanga.how, kanga.schedule
    phases = 2 if kanga.request.kind is EncOp.ALLREDUCE else 1
    rows = schedule.rows
    sends = np.isin(rows.leaf, SENDS)
    if how.primaries == 1:
        assert not sends.any()
        return
    assert np.unique(rows.step[sends]).size == phases * (how.primaries - 1)
    primaries = np.zeros((how.channels, schedule.ranks), np.bool_)
    for channel in range(how.channels):
        for g in range(how.members.shape[1]):
            primaries[channel, g * kanga.ranks + how.members[channel, g, :, 0]] = True
    assert primaries[rows.queue[rows.size > 0], rows.rank[rows.size > 0]].all()
    if phases == 2:
        return
    keeps = 0 if kanga.request.kind is EncOp.REDUCE_SCATTER else 1  # its own chunks, or those of the next core group
    sizes = kanga.pieces.size.sum(axis=(0, 3))  # of each channel's chunks
    passed = np.zeros((how.channels, schedule.ranks), np.int64)
    np.add.at(passed, (rows.queue[sends], rows.rank[sends]), rows.size[sends])
    for channel, g, i in np.ndindex(how.members.shape[:3]):
        kept = how.members[channel, g, (i + keeps) % how.primaries]
        rank = g * kanga.ranks + how.members[channel, g, i, 0]
        assert passed[channel, rank] == sizes[channel].sum() - sizes[channel, kept].sum()


@pytest.mark.parametrize("core", [2, 4])
def test_rows_grow_with_the_hops(core: int) -> None:
    """Rows are linear in primaries times hops: no row for anything else than a move, a ready, a done or an entry."""
    for primaries in (2, 4, 8, 16):
        ranks = primaries * core
        how = KangaRings(np.arange(ranks).reshape(1, 1, primaries, core))
        request = Request(EncOp.ALLGATHER, Dtype.FP32, 64 * ranks, (tuple(range(ranks)),))
        moves = 2 * core * primaries * primaries
        assert len(Kanga(how, request).schedule) == moves + primaries + 2 * (core - 1) * primaries


def test_a_sum_rounds_once_a_core_group() -> None:
    """The core group after the owner's is summed first and rounded, then the owner's members join it in one rounding.

    In bf16 256 + 1 is 256, and 256 + 1 + 1 is 258.
    """
    how = KangaRings(np.arange(4).reshape(1, 1, 2, 2))
    request = Request(EncOp.REDUCE_SCATTER, Dtype.BFLOAT16, 4, ((0, 1, 2, 3),), CceType.ADD)
    schedule = Kanga(how, request).schedule
    for column, expected in (([256, 0, 1, 1], [258] * 4), ([256, 1, 0, 1], [258, 258, 256, 256])):
        inputs = np.repeat(np.array(column, ml_dtypes.bfloat16)[:, None], 4, axis=1)
        assert execute(schedule, inputs).reshape(-1).tolist() == expected


# --- what is missed ---------------------------------------------------------------------------------------------------


def four_pairs(kind: EncOp) -> Schedule:
    """Return the KangaRing of four core groups of two, with fewer slots than sends."""
    how = KangaRings(np.array([1, 0, 2, 3, 5, 4, 7, 6]).reshape(1, 1, 4, 2), slots=3)
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    return Kanga(how, Request(kind, Dtype.FP8_EXP4, 8 * 64, (tuple(range(8)),), op)).schedule


@pytest.mark.parametrize("name", ["ready.0", "done.0", "recv.0", "credit.0"])
@pytest.mark.parametrize("kind", COMPOSED)
def test_every_semaphore_is_needed(kind: EncOp, name: str) -> None:
    """Schedule §11 (4): without a secondary's ready, or any other semaphore, the order is no longer proved."""
    schedule = four_pairs(kind)
    number = [semaphore.name for semaphore in schedule.semaphores].index(name)
    assert find_order(schedule) == []
    assert find_order(without(schedule, number)) != []


def without(schedule: Schedule, semaphore: int) -> Schedule:
    """Return a schedule without the waits and signals of one semaphore."""
    kept = {}
    for table in ("waits", "signals"):
        old = getattr(schedule, table)
        keep = old.semaphore != semaphore
        ptr = np.concatenate([[0], np.cumsum(keep)])[old.ptr].astype(np.int32)
        columns = {name: getattr(old, name)[keep] for name in old.__slots__ if name != "ptr"}
        kept[table] = type(old)(ptr=ptr, **columns)
    return replace(schedule, **kept)


def test_the_bridge_needs_its_fence() -> None:
    """Schedule §2: without the fence a gather may read a chunk before it is written."""
    schedule = four_pairs(EncOp.ALLREDUCE)
    rows = replace(schedule.rows, fence=np.zeros(len(schedule), np.bool_))
    assert find_order(replace(schedule, rows=rows)) != []
