"""How a ring cuts a buffer, in three numbers, for who only wants to say it.

Where each piece lies is `compose.cut`, which needs arrays; a test holds both equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import EncOp

CHUNK_SOURCE: Final = Source("select", "8, ring chunk and chunk groups", HIGH)
GRANULE_SOURCE: Final = Source("device-model", "3, fold split", CONVENTION)
_HALVES: Final = 2
_UNIT: Final = 64  # bytes: both halves of a chunk are whole granules of 32


@dataclass(frozen=True, slots=True)
class Pieces:
    """Passes over the buffer, and the bytes of the largest half-chunk: what a slot must hold."""

    groups: int
    largest: int


def pieces_of(kind: EncOp, size: int, *, ranks: int, channels: int, chunk: int) -> Pieces:
    """Return how a ring of this many channels cuts the whole buffer.

    Args:
        kind: one that a ring composer does.
        size: bytes of the whole buffer, B.
        chunk: most bytes of one rank's chunk in one channel and pass.

    Source:
        select §8; compose §6.1.
    """
    shards = 1 if kind is EncOp.ALLREDUCE else ranks
    units = channels * ranks // shards
    total = size // shards
    groups = -(-total // (units * chunk))
    if groups > 1:
        return Pieces(groups, chunk // _HALVES)
    share = -(-total // units)
    return Pieces(groups, min(total, min(chunk, -(-share // _UNIT) * _UNIT) // _HALVES))
