"""What every reader of jobs shares: the command line's options, requests by group size, and refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rota.errors import RotaError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Groups, Job, Request


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the source; None where it says nothing."""

    groups: Groups | None = None
    integer_as_fp32: bool = False


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
            integer_as_fp32=options.integer_as_fp32,
        )
        for size in sizes
    )


def refuse(job: Job, error: RotaError) -> Job:
    """Return a job that an error refuses: it has no requests, and the reason."""
    return replace(job, requests=(), word=b"", refused=str(error))
