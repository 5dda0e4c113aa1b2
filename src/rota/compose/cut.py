"""Cutting a buffer into chunk groups, channel windows, rank chunks and halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, freeze
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import EncOp
from rota.select.settings import RING_CHUNK

GRANULE: Final = 32
"""Halves of a chunk are cut at multiples of this many bytes. Source: device-model §3, convention."""
MAX_CHUNK_GROUPS: Final = 1 << 15
"""A row's `part` is 2 x chunk group + half in 16 bits. Source: schedule §1, conventions."""
CHUNK_SOURCE: Final = Source("select", "8, ring chunk and chunk groups", HIGH)
GRANULE_SOURCE: Final = Source("device-model", "3, fold split", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where each piece lies in the whole buffer; both arrays have shape (chunk groups, channels, chunks, halves).

    Chunk k belongs to member k of the group. A piece past the end of the data has size 0.
    """

    offset: I64
    size: I64
    shard: int  # bytes of one rank's shard; 0 for an all-reduce, which has none

    def __post_init__(self) -> None:
        freeze(self.offset)
        freeze(self.size)

    @property
    def groups(self) -> int:
        """Chunk groups: passes over the buffer."""
        return int(self.size.shape[0])

    @property
    def halves(self) -> int:
        """Pieces of a chunk."""
        return int(self.size.shape[3])

    @property
    def largest(self) -> int:
        """Bytes of the largest piece: what a ring slot must hold."""
        return int(self.size.max())


def cut(
    kind: EncOp,
    size: int,
    *,
    ranks: int,
    channels: int,
    halves: int = 2,
    chunk: int = RING_CHUNK,
    whole: int | None = None,
) -> Cut:
    """Cut the whole buffer of a collective for a ring.

    An all-reduce gives each (chunk group, channel) a window of `ranks` chunks. The shards of an all-gather or
    reduce-scatter are one rank's contiguous bytes, so there each shard is cut into chunk groups and channels.
    All groups but the last have full chunks; the last shares the rest, rounded up to whole granules for every half.

    Args:
        size: bytes of the whole buffer, B.
        chunk: most bytes of one rank's chunk in one channel and group.
        whole: bytes of the data when they end before the last shards do; those are short or empty.

    Raises:
        UsageError: no bytes, no equal shards, or a chunk whose halves are no whole granules.
        UnsupportedError: more chunk groups than a schedule can number.

    Source:
        select §8; compose §6.1; the granule is device-model §3.
    """
    if chunk < 1 or chunk % (halves * GRANULE):
        raise UsageError(f"chunk of {chunk} bytes: expected a multiple of {halves * GRANULE}, so that it can be halved")
    if size < 1 or (kind is not EncOp.ALLREDUCE and size % ranks):
        raise UsageError(f"{size} bytes for {ranks} ranks: expected at least one, and equal shards unless all-reduced")
    shards = ranks if kind is not EncOp.ALLREDUCE else 1
    units = channels if kind is not EncOp.ALLREDUCE else channels * ranks
    total = size // shards
    groups = -(-total // (units * chunk))
    if groups > MAX_CHUNK_GROUPS:
        raise UnsupportedError(
            f"{size} bytes in chunks of {chunk} take {groups} chunk groups, and a schedule numbers {MAX_CHUNK_GROUPS}; "
            "use less data or larger chunks"
        )
    base = np.arange(groups, dtype=np.int64) * units * chunk
    length = np.full(groups, chunk, np.int64)
    rest = -(-(total - int(base[-1])) // units)
    length[-1] = min(chunk, -(-rest // (halves * GRANULE)) * halves * GRANULE)
    shape = (groups, channels, ranks, halves)
    channel = np.arange(channels)[:, None, None]
    member = np.arange(ranks)[None, :, None]
    unit = channel + 0 * member if shards > 1 else channel * ranks + member
    half = length[:, None, None, None] // halves
    start = base[:, None, None, None] + unit * length[:, None, None, None] + np.arange(halves) * half
    start = np.broadcast_to(start, shape)
    shard = member * total if shards > 1 else np.zeros_like(member)
    room = total if whole is None else np.clip(whole - shard, 0, total)
    return Cut(
        offset=np.minimum(start, total) + shard,
        size=np.clip(room - start, 0, np.broadcast_to(half, shape)),
        shard=total if shards > 1 or kind is not EncOp.ALLREDUCE else 0,
    )
