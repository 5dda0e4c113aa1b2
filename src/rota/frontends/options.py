"""What every reader of jobs shares: the command line's options, requests by group size or by pairs, and refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rota.errors import RotaError, UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.pairs import components, ring_of
from rota.machine.platform import Platform
from rota.request import ROOTED, Counts, Groups, Job, Pairs, Request, Staging


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the source; None where it says nothing.

    Attributes:
        staging: where the operands lie, for the limit rows.
        root: position of the root of a broadcast or reduce.
        scales: of an fma.
        counts: elements of an all-to-all-v, a row for each sender; of an all-gather, one row.
    """

    groups: Groups | None = None
    integer_as_fp32: bool = False
    pairs: Pairs = ()
    staging: Staging | None = None
    in_place: bool = False
    root: int = 0
    scales: tuple[float, ...] = ()
    counts: Counts = ()


def by_size(
    kind: EncOp, dtype: Dtype, groups: Groups, elements: int, op: CceType | None, options: Options
) -> tuple[Request, ...]:
    """Return one request for each group size; `elements` is per rank: a gather's shard, the input of the others."""
    sizes = sorted({len(group) for group in groups}, reverse=True)
    return tuple(
        Request(
            kind=kind,
            dtype=dtype,
            count=elements * size if kind is EncOp.ALLGATHER else elements,
            groups=tuple(group for group in groups if len(group) == size),
            op=op,
            in_place=options.in_place,
            integer_as_fp32=options.integer_as_fp32,
            staging=options.staging,
            root=options.root if kind in ROOTED else 0,
            scales=options.scales,
            counts=options.counts if kind is EncOp.ALLTOALL_V else (),
        )
        for size in sizes
    )


def permute(
    job: Job,
    kind: EncOp,
    dtype: Dtype,
    elements: int,
    op: CceType | None,
    platform: Platform,
    options: Options,
) -> Job:
    """Return a job of pairs with one request for each length of the rings they form; refused where they form none."""
    if not job.pairs:
        return refuse(job, UsageError(f"{job.kind}: it names no pair of a source and a target, so nothing moves"))
    rings: dict[int, list[tuple[tuple[int, ...], Pairs]]] = {}
    for part in components(job.pairs):
        ring = ring_of(part)
        if ring is None:
            from rota.machine.legality import check_pairs

            wrong = next(answer for answer in check_pairs(platform, job.pairs) if not answer.legal)
            return refuse(job, UnsupportedError(wrong.reason, source=wrong.source))
        rings.setdefault(len(ring), []).append((ring, part))
    requests = tuple(
        Request(
            kind=kind,
            dtype=dtype,
            count=elements,
            groups=tuple(ring for ring, _ in rings[length]),
            op=op,
            integer_as_fp32=options.integer_as_fp32,
            pairs=tuple(pair for _, part in rings[length] for pair in part),
            staging=options.staging,
        )
        for length in sorted(rings, reverse=True)
    )
    groups = tuple(group for request in requests for group in request.groups)
    return replace(job, groups=groups, requests=requests)


def refuse(job: Job, error: RotaError) -> Job:
    """Return a job that an error refuses: it has no requests, and the reason."""
    return replace(job, requests=(), word=b"", refused=str(error))
