"""Size windows of the mesh-family variants, as data: a row admits a size when minimum < size <= maximum.

Sizes are what SELECT compares: the whole buffer for all-reduce, one rank's shard for all-gather and reduce-scatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import Family
from rota.select.settings import CHANNEL_BUFFER

KIB: Final = 1 << 10
MIB: Final = 1 << 20

_FULL_MESH: Final = Source("select", "7.3", HIGH)
_FULL_MESH_OURS: Final = Source("select", "7.3", CONVENTION)
_PER_DEVICE: Final = Source("select", "7.4", CONVENTION)
_GATHERING: Final = (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER)
_ALL: Final = (EncOp.ALLREDUCE, *_GATHERING)


@dataclass(frozen=True, slots=True)
class Limit:
    """One row: which variant takes which sizes of which operations."""

    name: str
    reported: Algorithm
    kinds: tuple[EncOp, ...]
    minimum: int
    maximum: int
    source: Source

    def admits(self, kind: EncOp, size: int) -> bool:
        """Say whether the row takes this size."""
        return kind in self.kinds and self.minimum < size <= self.maximum


def full_mesh_limits(ranks: int) -> tuple[Limit, ...]:
    """Return the rows of a full mesh on one node, in the order in which they are tried.

    Source:
        select §7.3. The bytes each group of the mesh gets are the channel buffer shared by all ranks.
    """
    share = CHANNEL_BUFFER // ranks // 32 * 32
    if ranks == 2:
        return (
            Limit("t0", Algorithm.SINGLE_STEP_MESH, (EncOp.ALLREDUCE,), 0, 256 * MIB, _FULL_MESH),
            Limit("t0", Algorithm.MESH, _GATHERING, 0, 256 * MIB, _FULL_MESH_OURS),
        )
    return (
        Limit("t1", Algorithm.SINGLE_STEP_MESH, (EncOp.ALLREDUCE,), 0, min(32 * KIB, share), _FULL_MESH),
        Limit("t2", Algorithm.MESH, (EncOp.ALLREDUCE,), 0, min(ranks * share, CHANNEL_BUFFER), _FULL_MESH_OURS),
        Limit("t2", Algorithm.MESH, (EncOp.REDUCE_SCATTER,), 0, share, _FULL_MESH_OURS),
        Limit("t2", Algorithm.MESH, (EncOp.ALLGATHER,), 0, MIB, _FULL_MESH_OURS),
    )


def per_device_limits(ranks: int) -> tuple[Limit, ...]:
    """Return the rows of the per-device mesh of Trn2 on one node, in the order in which they are tried.

    Source:
        select §7.4; the double-buffered half of each rank's share bounds the single step.
    """
    single = min(32 * KIB, CHANNEL_BUFFER // ranks // 2)
    return (
        Limit("single-step", Algorithm.SINGLE_STEP_MESH, (EncOp.ALLREDUCE,), 0, single, _PER_DEVICE),
        Limit("mesh pass 0", Algorithm.MESH, (EncOp.ALLREDUCE,), single, 256 * KIB, _PER_DEVICE),
        Limit("mesh pass 0", Algorithm.MESH, _GATHERING, 0, 256 * KIB, _PER_DEVICE),
        Limit("mesh pass 1", Algorithm.MESH, _ALL, 256 * KIB, MIB, _PER_DEVICE),
    )


def mesh_limits(family: Family, ranks: int) -> tuple[Limit, ...]:
    """Return the mesh rows of an instance family."""
    return full_mesh_limits(ranks) if family in (Family.TRN1, Family.TRN1N) else per_device_limits(ranks)


RDH_LIMIT: Final = Limit("rdh", Algorithm.INTRA_RDH, _ALL, MIB, 56 * MIB, _PER_DEVICE)
