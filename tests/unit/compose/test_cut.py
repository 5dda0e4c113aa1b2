"""How a buffer is cut into chunk groups, channel windows, rank chunks and halves. Source: select §8; compose §6.1."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.compose.cut import GRANULE, Cut, cut
from rota.errors import UnsupportedError, UsageError
from rota.isa.enums import EncOp
from rota.request import COMPOSED
from rota.select.settings import RING_CHUNK

MIB = 1 << 20


@dataclass(frozen=True)
class Asked:
    """The arguments of one cut."""

    kind: EncOp
    size: int
    ranks: int
    channels: int
    halves: int
    chunk: int

    @property
    def shards(self) -> int:
        """Contiguous parts that are cut on their own: the ranks' shards, or the whole buffer."""
        return 1 if self.kind is EncOp.ALLREDUCE else self.ranks

    @property
    def units(self) -> int:
        """Chunks of a shard in one chunk group."""
        return self.channels * self.ranks // self.shards

    def cut(self) -> Cut:
        return cut(self.kind, self.size, ranks=self.ranks, channels=self.channels, halves=self.halves, chunk=self.chunk)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Any cut: sizes from a byte to several chunk groups, odd ones included."""
    kind = draw(st.sampled_from(COMPOSED))
    ranks = draw(st.integers(1, 9))
    size = draw(st.integers(1, 40_000)) * (1 if kind is EncOp.ALLREDUCE else ranks)
    chunk = draw(st.sampled_from([64, 128, 448, 4096, RING_CHUNK]))
    return Asked(kind, size, ranks, draw(st.integers(1, 5)), draw(st.integers(1, 2)), chunk)


CUTS = settings(max_examples=80, deadline=None)


@CUTS
@given(asked=asked())
def test_pieces_partition_the_buffer(asked: Asked) -> None:
    """Every byte of the buffer lies in exactly one piece."""
    pieces = asked.cut()
    assert pieces.offset.shape == pieces.size.shape == (pieces.groups, asked.channels, asked.ranks, asked.halves)
    full = pieces.size.ravel() > 0
    order = np.argsort(pieces.offset.ravel()[full])
    offset, size = pieces.offset.ravel()[full][order], pieces.size.ravel()[full][order]
    assert offset.tolist() == [0, *np.cumsum(size)[:-1].tolist()]
    assert int(size.sum()) == asked.size


@CUTS
@given(asked=asked())
def test_chunk_k_belongs_to_member_k(asked: Asked) -> None:
    """The chunks of an all-gather or reduce-scatter lie in the shard of their rank; an all-reduce's follow in order."""
    pieces, share = asked.cut(), asked.size // asked.shards
    for member in range(asked.ranks):
        offset, size = pieces.offset[:, :, member], pieces.size[:, :, member]
        if asked.shards > 1 or asked.ranks == 1:
            shard = member if asked.shards > 1 else 0
            assert (offset >= shard * share).all()
            assert (offset + size <= (shard + 1) * share).all()
            assert int(size.sum()) == share
    assert (np.diff(pieces.offset, axis=2) >= 0).all()


@CUTS
@given(asked=asked())
def test_halves_are_equal_and_aligned(asked: Asked) -> None:
    """Pieces start at whole granules of 32 bytes from their shard, and halves are equal but where the data end."""
    pieces = asked.cut()
    full = pieces.size > 0
    shard = np.arange(asked.ranks)[:, None] * (asked.size // asked.shards) * (asked.shards > 1)
    assert not ((pieces.offset - shard)[full] % GRANULE).any()
    assert (pieces.size[:-1] == asked.chunk // asked.halves).all()
    last = pieces.size[-1]
    assert np.count_nonzero((last > 0) & (last < last.max())) <= asked.shards  # one end of data in a shard


@CUTS
@given(asked=asked())
def test_chunks_and_chunk_groups(asked: Asked) -> None:
    """groups = ceil(size / (units x chunk)); all but the last have full chunks, the last the rest, no chunk is larger.

    The last chunk is the rest shared by all, rounded up to whole granules for every half.
    """
    pieces, share = asked.cut(), asked.size // asked.shards
    assert pieces.groups == ceil(share / (asked.units * asked.chunk))
    chunks = pieces.size.sum(axis=3)
    assert (chunks[:-1] == asked.chunk).all()
    assert int(chunks.max()) <= asked.chunk
    rest = share - (pieces.groups - 1) * asked.units * asked.chunk
    step = asked.halves * GRANULE
    assert int(chunks[-1].max()) <= ceil(ceil(rest / asked.units) / step) * step
    assert pieces.largest == int(pieces.size.max())
    assert pieces.halves == asked.halves


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (3, 2), (8, 4), (64, 4)])
@pytest.mark.parametrize("halves", [1, 2])
def test_equal_pieces_when_the_size_divides_evenly(kind: EncOp, ranks: int, channels: int, halves: int) -> None:
    """B a multiple of ranks x channels x 64 bytes is cut into equal pieces, so bytes sent are 2(N-1)/N x B."""
    size = ranks * channels * 64 * 5
    pieces = cut(kind, size, ranks=ranks, channels=channels, halves=halves)
    assert np.unique(pieces.size).tolist() == [64 * 5 // halves]


@pytest.mark.parametrize(
    ("kind", "size", "groups"),
    [
        (EncOp.ALLREDUCE, 512 * MIB, 1),
        (EncOp.ALLREDUCE, 512 * MIB + 1, 2),
        (EncOp.ALLREDUCE, 1024 * MIB, 2),
        (EncOp.ALLGATHER, 64 * 8 * MIB, 1),
        (EncOp.REDUCE_SCATTER, 64 * (8 * MIB + 2), 2),
    ],
)
def test_the_ring_chunk_of_the_runtime(kind: EncOp, size: int, groups: int) -> None:
    """A chunk is at most 2 MiB: 64 ranks and 4 channels move 512 MiB in one pass. Source: select §8, high."""
    pieces = cut(kind, size, ranks=64, channels=4)
    assert pieces.groups == groups
    assert int(pieces.size.sum(axis=3).max()) == 2 * MIB


def test_a_small_buffer_leaves_ranks_without_bytes() -> None:
    """40 bytes over 4 ranks: the granule is 32 for each half, so rank 0 has 32 + 8, the others nothing."""
    pieces = cut(EncOp.ALLREDUCE, 40, ranks=4, channels=1)
    assert pieces.size[0, 0].tolist() == [[32, 8], [0, 0], [0, 0], [0, 0]]
    assert pieces.offset[0, 0].tolist() == [[0, 32], [40, 40], [40, 40], [40, 40]]


def test_windows_of_an_all_reduce() -> None:
    """Channel c has its own window of N chunks in each chunk group. Source: compose §6.1."""
    pieces = cut(EncOp.ALLREDUCE, 3 * 2 * 64 + 3 * 2 * 64, ranks=3, channels=2, chunk=64)
    assert pieces.offset[:, :, :, 0].tolist() == [
        [[0, 64, 128], [192, 256, 320]],
        [[384, 448, 512], [576, 640, 704]],
    ]
    assert np.unique(pieces.offset[..., 1] - pieces.offset[..., 0]).tolist() == [32]


def test_shards_are_cut_one_by_one() -> None:
    """A rank's shard is contiguous, so its channels and chunk groups lie beside each other in it."""
    pieces = cut(EncOp.ALLGATHER, 2 * 192, ranks=2, channels=2, halves=1, chunk=64)
    assert pieces.groups == 2
    assert pieces.offset[..., 0].tolist() == [[[0, 192], [64, 256]], [[128, 320], [160, 352]]]
    assert pieces.size[..., 0].tolist() == [[[64, 64], [64, 64]], [[32, 32], [32, 32]]]


def test_a_cut_is_read_only() -> None:
    """A result is a value."""
    pieces = cut(EncOp.ALLREDUCE, 64, ranks=2, channels=1)
    with pytest.raises(ValueError, match="read-only"):
        pieces.size[0] = 1


@pytest.mark.parametrize(("chunk", "halves"), [(0, 2), (-64, 2), (63, 2), (96, 2), (65, 1), (48, 1)])
def test_chunks_that_cannot_be_halved(chunk: int, halves: int) -> None:
    """A chunk whose halves are no whole granules would lose bytes or misalign them."""
    with pytest.raises(UsageError, match=f"chunk of {chunk} bytes: expected a multiple of {32 * halves}"):
        cut(EncOp.ALLREDUCE, 4096, ranks=2, channels=1, halves=halves, chunk=chunk)


def test_more_chunk_groups_than_a_schedule_numbers() -> None:
    """Too much data is refused before anything is built: 1 PiB would be a thousand million pieces."""
    with pytest.raises(UnsupportedError, match="take 2097152 chunk groups, and a schedule numbers 32768"):
        cut(EncOp.ALLREDUCE, 1 << 50, ranks=64, channels=4)
    assert cut(EncOp.ALLREDUCE, 64 * 32768, ranks=1, channels=1, chunk=64).groups == 32768


@pytest.mark.parametrize(
    ("kind", "size"), [(EncOp.ALLREDUCE, 0), (EncOp.ALLREDUCE, -8), (EncOp.ALLGATHER, 7), (EncOp.REDUCE_SCATTER, 9)]
)
def test_sizes_that_cannot_be_cut(kind: EncOp, size: int) -> None:
    """No bytes, and shards of unequal size, are refused."""
    with pytest.raises(UsageError, match=f"{size} bytes for 2 ranks"):
        cut(kind, size, ranks=2, channels=1)
