"""Laws of composed rings, read off by verify: data are right, and rows, bytes and touches have their closed forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.compose.cut import RING_CHUNK, cut
from rota.compose.ring import compose_ring
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED, Request
from rota.schedule.ir import Leaf, Schedule
from rota.verify import traffic, verify

UP_TO_12 = st.integers(2, 12)
SENDS = (Leaf.SEND, Leaf.RECV_REDUCE_SEND, Leaf.DIRECT_COPY_SEND, Leaf.DIRECT_RECV_SEND)


@dataclass(frozen=True)
class Ring:
    """The arguments of one composition; `orders` has shape (channels, groups, ranks)."""

    orders: tuple[tuple[tuple[int, ...], ...], ...]
    kind: EncOp
    count: int
    dtype: Dtype
    halves: int
    slots: int
    chunk: int
    in_place: bool = False

    @property
    def ranks(self) -> int:
        return len(self.orders[0][0])

    @property
    def channels(self) -> int:
        return len(self.orders)

    @property
    def request(self) -> Request:
        groups = tuple(tuple(range(g * self.ranks, (g + 1) * self.ranks)) for g in range(len(self.orders[0])))
        op = None if self.kind is EncOp.ALLGATHER else CceType.ADD
        return Request(self.kind, self.dtype, self.count, groups, op, in_place=self.in_place)

    @property
    def schedule(self) -> Schedule:
        request = self.request
        return compose_ring(
            self.orders,
            kind=self.kind,
            size=request.size,
            op=request.op,
            slots=self.slots,
            halves=self.halves,
            chunk=self.chunk,
            in_place=self.in_place,
        )

    def chunk_sizes(self) -> np.ndarray:
        """Return the bytes of each chunk, shape (channels, ranks)."""
        pieces = cut(
            self.kind,
            self.request.size,
            ranks=self.ranks,
            channels=self.channels,
            halves=self.halves,
            chunk=self.chunk,
        )
        return pieces.size.sum(axis=(0, 3))


@st.composite
def rings(
    draw: st.DrawFn, *, ranks: st.SearchStrategy[int] = UP_TO_12, most_count: int = 3000, most_groups: int = 3
) -> Ring:
    """Any ring collective: kind, orders, groups that run together, odd sizes, several chunk groups, in place."""
    size = draw(ranks)
    channels, groups = draw(st.integers(1, 4)), draw(st.integers(1, most_groups))
    order = st.permutations(range(size)).map(tuple)
    kind = draw(st.sampled_from(COMPOSED))
    per_rank = draw(st.integers(1, most_count if kind is EncOp.ALLREDUCE else most_count // size + 1))
    halves = draw(st.integers(1, 2))
    return Ring(
        orders=tuple(tuple(draw(order) for _ in range(groups)) for _ in range(channels)),
        kind=kind,
        count=per_rank * (1 if kind is EncOp.ALLREDUCE else size),
        dtype=draw(st.sampled_from([Dtype.FP8_EXP4, Dtype.BFLOAT16, Dtype.FP32])),
        halves=halves,
        slots=draw(st.integers(3, 8)),
        chunk=draw(st.sampled_from([64, 128, 448, RING_CHUNK])),
        in_place=kind is EncOp.ALLREDUCE and draw(st.booleans()),
    )


@settings(max_examples=120, deadline=None)
@given(ring=rings())
def test_every_contribution_arrives_exactly_once(ring: Ring) -> None:
    """Any ring orders, channels, halves, slots, sizes and groups leave each contribution once in each output byte."""
    verify(ring.schedule, ring.request)


@settings(max_examples=20, deadline=None)
@given(ring=rings(ranks=st.sampled_from([16, 31, 32, 63, 64]), most_count=9000, most_groups=2))
def test_up_to_64_ranks(ring: Ring) -> None:
    """The same for groups as large as a node."""
    verify(ring.schedule, ring.request)


@settings(max_examples=60, deadline=None)
@given(ring=rings())
def test_rows_that_send_per_half_group_and_channel(ring: Ring) -> None:
    """A rank sends N-1 rows per phase, half, chunk group and channel; an all-reduce 2(N-1), of 2N rows in all."""
    schedule, phases = ring.schedule, 2 if ring.kind is EncOp.ALLREDUCE else 1
    rows, n = schedule.rows, ring.ranks
    lane = (rows.rank.astype(np.int64) * ring.channels + rows.queue) * 65536 + rows.part
    sends = np.isin(rows.leaf, SENDS)
    counts = np.unique(lane[sends], return_counts=True)[1]
    groups = int(rows.part.max()) // 2 + 1
    assert counts.tolist() == [phases * (n - 1)] * (schedule.ranks * ring.channels * ring.halves * groups)
    local = {EncOp.ALLREDUCE: 2, EncOp.ALLGATHER: 2, EncOp.REDUCE_SCATTER: 1}[ring.kind]  # own copy, last receive
    others = np.unique(lane[~sends & (rows.leaf != Leaf.POST_RECV)], return_counts=True)[1]
    assert set(others.tolist()) == {local}


@settings(max_examples=60, deadline=None)
@given(ring=rings())
def test_bytes_sent_are_the_sum_of_the_cuts(ring: Ring) -> None:
    """To reduce, a rank sends every chunk but its own; to gather, every chunk but that of the rank after it."""
    chunks, n = ring.chunk_sizes(), ring.ranks
    expected = np.zeros(ring.schedule.ranks, np.int64)
    for channel, groups in enumerate(ring.orders):
        for group, order in enumerate(groups):
            for position, rank in enumerate(order):
                total, after = int(chunks[channel].sum()), order[(position + 1) % n]
                reduced = total - int(chunks[channel, rank]) if ring.kind is not EncOp.ALLGATHER else 0
                gathered = total - int(chunks[channel, after]) if ring.kind is not EncOp.REDUCE_SCATTER else 0
                expected[group * n + rank] += reduced + gathered
    assert traffic(ring.schedule).sent.tolist() == expected.tolist()


@settings(max_examples=40, deadline=None)
@given(ring=rings())
def test_every_byte_sent_is_written_and_every_row_with_bytes_moves(ring: Ring) -> None:
    """The ring pushes: what is sent in all is written elsewhere, and `moves` counts the rows with data."""
    schedule = ring.schedule
    moved = traffic(schedule)
    assert int(moved.moves.sum()) == int((schedule.rows.size > 0).sum())
    assert int(moved.sends.sum()) <= int(moved.moves.sum())
    assert int(moved.sent.sum()) == int(schedule.rows.size[np.isin(schedule.rows.leaf, SENDS)].sum())


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("halves", [1, 2])
def test_even_all_reduce(ranks: int, channels: int, halves: int) -> None:
    """B a multiple of N x channels x 64 bytes: 2(N-1)/N x B sent, 2(N-1) sending rows and 2N rows a half."""
    size = ranks * channels * 64 * 3
    ring = _plain(EncOp.ALLREDUCE, ranks, channels=channels, halves=halves, size=size)
    moved = traffic(ring.schedule)
    assert set(moved.sent.tolist()) == {2 * (ranks - 1) * size // ranks}
    assert set(moved.sends.tolist()) == {2 * (ranks - 1) * halves * channels}
    assert len(ring.schedule) == 2 * ranks * ranks * halves * channels
    chunk = size // ranks  # reduce-scatter N writes and 2N-1 reads, the gather N-1 more of each
    assert set(moved.read.tolist()) == {(3 * ranks - 2) * chunk}
    assert set(moved.written.tolist()) == {(2 * ranks - 1) * chunk}


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize(("kind", "read"), [(EncOp.ALLGATHER, "N"), (EncOp.REDUCE_SCATTER, "2N-1")])
def test_touches(kind: EncOp, ranks: int, read: str) -> None:
    """Touches of a rank's memory in units of C: all-gather N / N, reduce-scatter 2N-1 / N. Source: topology §6."""
    share = 4 * 64
    moved = traffic(_plain(kind, ranks, channels=4, halves=2, size=share * ranks).schedule)
    reads = ranks if read == "N" else 2 * ranks - 1
    assert set(moved.read.tolist()) == {reads * share}
    assert set(moved.written.tolist()) == {ranks * share}
    assert set(moved.sent.tolist()) == {(ranks - 1) * share}


def test_a_group_of_one_copies_its_input() -> None:
    """One rank has nobody to send to: its input is copied, in place not even that."""
    for kind in COMPOSED:
        ring = _plain(kind, 1, channels=2, halves=2, size=200)
        verify(ring.schedule, ring.request)
        moved = traffic(ring.schedule)
        assert (moved.sent.tolist(), moved.read.tolist(), moved.written.tolist()) == ([0], [200], [200])


def _plain(kind: EncOp, ranks: int, *, channels: int, halves: int, size: int) -> Ring:
    orders = ((tuple(range(ranks)),),) * channels
    ring = Ring(orders, kind, size // 2, Dtype.BFLOAT16, halves=halves, slots=8, chunk=RING_CHUNK)
    verify(ring.schedule, ring.request)
    return ring
