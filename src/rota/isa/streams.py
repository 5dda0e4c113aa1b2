"""Collective streams of a rank, and which of its stream processors each has.

Collectives of one stream run one after another, streams run at the same time.
"""

from __future__ import annotations

from typing import Final

from rota.columns import I64
from rota.facts import HIGH, Source

STREAMS: Final = 4
STREAMS_SOURCE: Final = Source("compose", "1.1", HIGH)
"""Streams of a rank, NEC_MAX_STREAM_N."""
SHARE_SOURCE: Final = Source("platforms", "2, CC-Core allocation", HIGH)
"""Each stream has one processor, and the first one those that are left. That the first has the lowest ones is ours."""


def processors_of(stream: int, streams: int, sps: int) -> range:
    """Return the stream processors of a stream, of a rank's `sps`."""
    first = sps - streams + 1
    return range(first) if stream == 0 else range(first + stream - 1, first + stream)


def stream_of(sp: I64, streams: int, sps: int) -> I64:
    """Return the stream that each stream processor belongs to."""
    return (sp - (sps - streams)).clip(0)
