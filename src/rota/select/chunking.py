"""How a selected ring is cut: channels, chunks, passes; and the slices an operation is logged with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.enums import EncOp
from rota.select.choose import Plan
from rota.select.hierarchy import pipeline_slices

CHUNK_SOURCE: Final = Source("select", "8, ring chunk and chunk groups", HIGH)
DYNAMIC_SOURCE: Final = Source("select", "8, dynamic chunk", MEDIUM)
SLICE_SOURCE: Final = Source("select", "8, copy_slice_sz and reduce_slice_sz", CONVENTION)
SCRATCH_SOURCE: Final = Source("select", "6.2, scratch", HIGH)
DYNAMIC_PARTS: Final = 32
"""A dynamic chunk is this part of a channel's buffer, NEC_MAX_NR_CHANNEL_CHUNKS. Source: select §8, medium."""
ROUNDING: Final = 32
"""Bytes to which dynamic chunks and slices are rounded up. Source: select §8, convention."""
SCRATCH: Final = {"sunda": 32 << 20, "cayman": 128 << 20, "mariana": 128 << 20}
"""Bytes of a hierarchy's scratch. Source: select §6.2, high."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the rings of a plan cut the buffer.

    Attributes:
        chunk: most bytes of one rank's chunk in a channel and pass.
        passes: chunk groups.
        slots: half-chunks a channel buffers.
        dynamic: the chunk and the depth the runtime's dynamic chunking would take; None where it would not apply.
    """

    channels: int
    chunk: int
    passes: int
    slots: int
    dynamic: tuple[int, int] | None


def chunks(plan: Plan) -> Chunks | None:
    """Return how the plan's rings cut the buffer; None where there is no ring.

    Dynamic chunking is reported, not applied: when the runtime applies it is unknown.

    Source:
        select §8.
    """
    if not plan.channels:
        return None
    request, settings = plan.request, plan.settings
    total = request.share if request.kind in (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER) else request.size
    units = plan.channels * (request.ranks if request.kind is EncOp.ALLREDUCE else 1)
    buffer = settings.chunk * settings.slots
    small = -(-buffer // DYNAMIC_PARTS // ROUNDING) * ROUNDING
    applies = request.size // plan.channels < request.ranks * settings.chunk
    return Chunks(
        channels=plan.channels,
        chunk=settings.chunk,
        passes=-(-total // (units * settings.chunk)),
        slots=settings.slots,
        dynamic=(small, buffer // small) if applies else None,
    )


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices an operation is logged with: what each rank gathers and reduces at a time, in bytes."""

    count: int
    copy: int
    reduce: int


def slices(plan: Plan, count: int = 1) -> Slices:
    """Return the slices of a plan; the sizes are shares of one rank, rounded up. Source: `SLICE_SOURCE`."""
    share = -(-plan.request.size // plan.request.ranks)
    part = -(-share // count)
    size = -(-part // ROUNDING) * ROUNDING
    reduces = plan.request.op is not None
    gathers = plan.request.kind is not EncOp.REDUCE_SCATTER
    return Slices(count, size if gathers else 0, size if reduces else 0)


def scratch_pieces(plan: Plan, arch: str) -> int:
    """Return in how many pieces a hierarchical operation runs, so that each fits its scratch; a gather takes none.

    Source:
        select §6.2.
    """
    if not plan.legs or plan.request.kind is EncOp.ALLGATHER:
        return 1
    inner = next(leg for leg in plan.legs if leg.slot == "intra_redsct")
    return max(-(-inner.size // SCRATCH[arch]), 1)


__all__ = ["Chunks", "Slices", "chunks", "pipeline_slices", "scratch_pieces", "slices"]
