"""Settings a decision depends on, by the names of the runtime's environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.errors import UsageError
from rota.facts import HIGH, Source

CHANNEL_BUFFER: Final = 8 << 20
"""Bytes of a communicator's mesh channel buffer. Source: select §7.1, high."""
RING_CHUNK: Final = 2 << 20
"""Bytes of one rank's chunk in one channel and chunk group. Source: select §8, high."""
SLOTS: Final = 8
LEAST_SLOTS: Final = 3
MOST_SLOTS: Final = 32
SLOTS_SOURCE: Final = Source("select", "8, channel buffer depth", HIGH)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may change.

    Attributes:
        slots: NEURON_RT_CC_CHANNEL_BUFFER_N: half-chunks a ring channel buffers, which is its credit.
        chunk: most bytes of one rank's chunk in one channel and chunk group; even.

    Raises:
        UsageError: a value that would block or that no hardware takes.
    """

    slots: int = SLOTS
    chunk: int = RING_CHUNK

    def __post_init__(self) -> None:
        if not LEAST_SLOTS <= self.slots <= MOST_SLOTS:
            raise UsageError(
                f"NEURON_RT_CC_CHANNEL_BUFFER_N={self.slots}: expected {LEAST_SLOTS} to {MOST_SLOTS}; with fewer, the "
                "two halves of a chunk wait for each other"
            )
        if self.chunk < 64 or self.chunk % 64:
            raise UsageError(f"ring chunk {self.chunk}: expected a multiple of 64 bytes, so that halves stay aligned")
