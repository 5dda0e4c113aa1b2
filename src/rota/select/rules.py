"""The predicates of an operation: each a pure function that says yes or no, and why.

All of them are asked for every operation; `choose` takes the first that agrees. What does not depend on the operation
was decided when the communicator was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, MEDIUM, Source, Verdict, no, yes
from rota.isa.enums import Algorithm, EncOp, MeshType
from rota.request import KIND_NAMES, Staging
from rota.select.communicator import Communicator
from rota.select.limits import BOUNDARY, NO_ROWS, Table
from rota.units import format_size

_SUPPORT: Final = Source("select", "5.3", HIGH)
_GATHERED: Final = Source("select", "5.1", HIGH)
_GATHERED_OURS: Final = Source("select", "5.1", CONVENTION)
_SINGLE_CYCLE: Final = Source("all-reduce", "6.1", HIGH)
_NO_ROW: Final = Source("select", "7.1", MEDIUM)
_MESH_ONLY: Final = Source("select", "5.2", HIGH)
_ALL_TO_ALL_V: Final = Source("platforms", "5", HIGH)

RING_OPS: Final = frozenset(
    {
        EncOp.ALLGATHER,
        EncOp.ALLREDUCE,
        EncOp.REDUCE_SCATTER,
        EncOp.SEND,
        EncOp.RECV,
        EncOp.PERMUTE,
        EncOp.PERMUTE_IMPLICIT,
        EncOp.PERMUTE_REDUCE_IMPLICIT,
    }
)
"""What a ring does. Source: select §5.3, high."""
SHARDED_OPS: Final = frozenset({EncOp.ALLGATHER, EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER})
"""What KangaRing, both recursive doublings and a hierarchy do. Source: select §5.1 and §5.3, high."""
POINT_TO_POINT: Final = RING_OPS - SHARDED_OPS
"""What only a ring does. Source: select §5.3, high."""
MESH_ONLY: Final = frozenset({EncOp.ALLTOALL, EncOp.ALLTOALL_V})
"""What only a mesh does. Source: select §5.2, high."""
UNSUPPORTED: Final = frozenset({EncOp.BROADCAST, EncOp.REDUCE, EncOp.PERMUTE_REDUCE, EncOp.INVALID})
"""What the runtime refuses. Source: select §5.2, high."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a predicate is asked about.

    Attributes:
        size: the bytes that limits are compared with.
        staging: which twin of a limit row speaks.
        elements: of the whole buffer; None where no predicate needs it (a leg of a hierarchy).
    """

    kind: EncOp
    size: int
    staging: Staging
    elements: int | None = None


def can_hier(comm: Communicator, ask: Question) -> Verdict:
    """A hierarchy does the three sharded collectives of several nodes with several ranks each."""
    if ask.kind not in SHARDED_OPS:
        return no(f"it does not do {KIND_NAMES[ask.kind]}", _SUPPORT)
    return comm.admitted[Algorithm.HIER]


def can_intra_rdh(comm: Communicator, ask: Question) -> Verdict:
    """Recursive doubling and halving: whole chips, 1, 2, 4 or 16 of them, inside its size window."""
    admitted = comm.admitted[Algorithm.INTRA_RDH]
    if not admitted:
        return admitted
    return _in_window(comm.halving.get(ask.kind, NO_ROWS), ask)


def can_mesh(comm: Communicator, ask: Question) -> Verdict:
    """A mesh: an admitted group, and a subtype whose window holds the size."""
    if not comm.subtypes:
        return comm.admitted[Algorithm.MESH]
    table = comm.offered.get(ask.kind)
    if table is None:
        admitted = comm.admitted[Algorithm.MESH]
        return _not_offered(comm, ask) if admitted else admitted
    if ask.kind is EncOp.ALLTOALL_V and comm.mesh_type is MeshType.MESH_SWITCH:
        members = comm.geometry.ranks
        whole = comm.geometry.whole_chips and len(comm.geometry.chips) > 1
        if not whole or sorted(members) != list(range(min(members), max(members) + 1)):
            return no("on the switch it takes consecutive ranks, all of each of several chips", _ALL_TO_ALL_V)
    return _in_window(table, ask)


def can_kangaring(comm: Communicator, ask: Question) -> Verdict:
    """KangaRing looks at the topology alone, whatever the size; its caller asks for the three sharded collectives."""
    if ask.kind not in SHARDED_OPS:
        return no(f"it does not do {KIND_NAMES[ask.kind]}", _SUPPORT)
    return comm.kangaring


def can_single_cycle_ring(comm: Communicator, ask: Question) -> Verdict:
    """Single-cycle ring is for all-reduce alone, between nodes, in one pass. Source: all-reduce §6.1, high."""
    if ask.kind is not EncOp.ALLREDUCE:
        return no(f"it does only all_reduce, not {KIND_NAMES[ask.kind]}", _SINGLE_CYCLE)
    admitted = comm.admitted[Algorithm.SINGLE_CYCLE_RING]
    if not admitted:
        return admitted
    if not comm.ring:
        return comm.ring
    most = comm.settings.chunk
    if ask.size > most:
        return no(f"size {format_size(ask.size)} is more than one chunk of {format_size(most)}", _GATHERED_OURS)
    return yes(f"size {format_size(ask.size)} fits one chunk of {format_size(most)}", _GATHERED_OURS)


def can_inter_rdh(comm: Communicator, ask: Question) -> Verdict:
    """Recursive doubling and halving between nodes: a power of two of them, and tiles that fit its scratch."""
    if ask.kind not in SHARDED_OPS:
        return no(f"it does not do {KIND_NAMES[ask.kind]}", _SUPPORT)
    admitted = comm.admitted[Algorithm.INTER_RDH]
    if not admitted:
        return admitted
    if ask.elements is not None and ask.elements < comm.ranks:
        return no(f"{ask.elements} elements: each of {comm.ranks} ranks needs one", _GATHERED_OURS)
    settings = comm.settings
    share = ask.size if ask.kind is not EncOp.ALLREDUCE else -(-ask.size // comm.ranks)
    needs = min(share, settings.chunk) * max(settings.inter_rdh_window, 1)
    if needs > settings.inter_rdh_buffer:
        has = format_size(settings.inter_rdh_buffer)
        return no(f"its tiles in flight take {format_size(needs)}, and its scratch has {has}", _GATHERED_OURS)
    return yes(admitted.reason, _GATHERED)


def can_ring(comm: Communicator, ask: Question) -> Verdict:
    """The ring does what it does wherever the runtime has one.

    What only a ring does takes any wired one, also where the cascade has no flat ring.

    Source: select §9, S3, convention.
    """
    if ask.kind not in RING_OPS:
        return no(f"it does not do {KIND_NAMES[ask.kind]}", _SUPPORT)
    if ask.kind in POINT_TO_POINT and comm.wiring.channels:
        return yes(comm.wiring.verdict.reason, comm.wiring.verdict.source)
    return comm.ring


CASCADE: Final = (
    (Algorithm.HIER, can_hier),
    (Algorithm.INTRA_RDH, can_intra_rdh),
    (Algorithm.MESH, can_mesh),
    (Algorithm.KANGARING, can_kangaring),
    (Algorithm.SINGLE_CYCLE_RING, can_single_cycle_ring),
    (Algorithm.INTER_RDH, can_inter_rdh),
    (Algorithm.RING, can_ring),
)
"""All predicates are asked; the first in this order that agrees wins, HIER with a condition more.
Source: select §5.2, high."""


# --- windows ----------------------------------------------------------------------------------------------------------


def _in_window(table: Table, ask: Question) -> Verdict:
    found = table.carrier(ask.staging, ask.size)
    if found is not None:
        subtype, row = found
        window = row.text(ask.staging)
        return yes(f"size {format_size(ask.size)} is in the window of {subtype.name}, {window}", row.source)
    source = table.rows[-1][1].source if table.rows else _NO_ROW
    outside = table.outside[ask.staging is Staging.STATIC]
    if not outside:
        return no(f"no row admits a size for {ask.staging.value} operands", source)
    return no(f"size {format_size(ask.size)} is outside its windows, {outside}", source)


def edges(comm: Communicator, kind: EncOp) -> Iterator[int]:
    """Yield the sizes up to which some predicate of one level may say one thing, and above which another."""
    settings = comm.settings
    yield settings.chunk
    in_flight = settings.inter_rdh_buffer // max(settings.inter_rdh_window, 1)
    yield in_flight * (comm.ranks if kind is EncOp.ALLREDUCE else 1)
    for tables in (comm.offered, comm.halving):
        for _, row in tables.get(kind, NO_ROWS).rows:
            for window in (row.plain, row.sbuf):
                yield from (window.minimum, window.maximum)


def _not_offered(comm: Communicator, ask: Question) -> Verdict:
    refused = [one.refused for one in comm.subtypes if one.refused is not None]
    because = f": {refused[-1].reason}" if refused and ask.kind in MESH_ONLY else ""
    return no(f"no subtype does {KIND_NAMES[ask.kind]}{because}", _NO_ROW if not because else BOUNDARY)
