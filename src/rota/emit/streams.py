"""Streams of a program: whose collectives are on which stream processors and queues.

Streams run at the same time, so they share no stream processor, no queue and no semaphore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rota.emit.allocation import Shape
from rota.emit.collective import Collective
from rota.emit.placement import Placement, Processors
from rota.errors import UnsupportedError
from rota.facts import HIGH, Source
from rota.isa.network import PROXY_QUEUE
from rota.isa.streams import STREAMS, STREAMS_SOURCE, processors_of
from rota.schedule.ir import Schedule

EVENTS_SOURCE: Final = Source("select", "4", HIGH)  # device mesh events require exactly one stream


def by_stream(
    collectives: Sequence[Collective], at: Placement
) -> tuple[Sequence[Collective], Placement, list[Processors]]:
    """Return collectives with queues that no other stream has, and the stream processors of each stream.

    Raises:
        UnsupportedError: there are more streams than the machine has, or their queues are more.
    """
    streams = 1 + max(each.stream for each in collectives)
    most = min(STREAMS, at.sps)
    if streams > most:
        raise UnsupportedError(f"{streams} streams: a rank with {at.sps} TOP_SPs has {most}", source=STREAMS_SOURCE)
    out, on, queues = list(collectives), list[Processors](), 0
    for stream in range(streams):
        share = processors_of(stream, streams, at.sps)
        on.append(Processors(share.start, len(share), queues))
        mine = [i for i, each in enumerate(collectives) if each.stream == stream]
        for i in mine if queues else ():
            out[i] = replace(collectives[i], schedule=_moved(collectives[i].schedule, queues))
        used = [out[i].schedule.rows.queue.astype(np.int64) % PROXY_QUEUE for i in mine]
        queues = max([queues, *(int(each.max(initial=-1)) + 1 for each in used)])
    return out, replace(at, streams=streams), on


def _moved(schedule: Schedule, queues: int) -> Schedule:
    """Return a schedule on queues that are so many higher."""
    queue = schedule.rows.queue.astype(np.int64)
    if (queue % PROXY_QUEUE + queues >= PROXY_QUEUE).any():
        raise UnsupportedError(f"{PROXY_QUEUE} queues of a rank: the streams of the program need more")
    return replace(schedule, rows=replace(schedule.rows, queue=(queue + queues).astype(schedule.rows.queue.dtype)))


def check_streams(shape: Shape, at: Placement) -> None:
    """Refuse event lists where there are several streams.

    Raises:
        UnsupportedError: as said.
    """
    if at.streams > 1 and not all(activity.ring for activity in shape.parts.table):
        raise UnsupportedError(
            f"mesh events with {at.streams} streams: they take one stream; use a ring, or one stream",
            source=EVENTS_SOURCE,
        )
