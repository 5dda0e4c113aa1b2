"""One collective as a program of its own: its buffers are those of the schedule, its members those of the request."""

from __future__ import annotations

import numpy as np

from rota.emit.collective import Collective
from rota.emit.network import with_proxies
from rota.emit.placement import spans
from rota.emit.program import DEFAULT_FOLDS, Declared, emit_program
from rota.isa.enums import Algorithm
from rota.isa.image import BufferUse, Section
from rota.machine.platform import Platform
from rota.request import Request
from rota.schedule.ir import Schedule


def emit(
    schedule: Schedule,
    request: Request,
    platform: Platform,
    *,
    algorithm: Algorithm | None = Algorithm.RING,
    folds: int = DEFAULT_FOLDS,
    words: bytes = b"",
) -> tuple[bytes, ...]:
    """Return the loadable image of each member.

    Args:
        algorithm: as its control entries call it; None where it has no name of the runtime's.
        folds: DMA queues each channel spreads its rows over.
        words: the instruction words this comes from, kept in the image for people.

    Raises:
        UnsupportedError: the schedule needs what the machine, or this version, does not have.
        UsageError: the schedule has no rows, or the folds are no number of engines.
    """
    ranks = np.array(request.members, np.int64)
    schedule = with_proxies(schedule, spans(ranks, platform)[0])
    one = Collective(
        schedule=schedule,
        dtype=request.dtype,
        algorithm=algorithm,
        scales=request.scales,
        member=np.arange(schedule.ranks),
        buffers=np.arange(len(schedule.buffers)),
        groups=[range(i, i + request.ranks) for i in range(0, schedule.ranks, request.ranks)],
    )
    declared = [
        Declared(
            buffer,
            (BufferUse.INPUT if i == schedule.input else BufferUse.INTERNAL)
            | (BufferUse.OUTPUT if i == schedule.output else BufferUse.INTERNAL),
        )
        for i, buffer in enumerate(schedule.buffers)
    ]
    extra = [(Section.WORDS, 0, words)] if words else []
    return emit_program([one], ranks, declared, platform, folds=folds, extra=extra).images
