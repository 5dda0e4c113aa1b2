"""Where the producer and the consumer of a hardware ring stand: free slots, phases, doorbells.

A cursor is a value; moving it gives another. What lies in the slots is in `descriptors` and `vrings`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import U32
from rota.errors import UsageError
from rota.facts import HIGH, Source
from rota.isa.descriptors import FIRST_PHASE, RING_ID_MASK

CURSOR_SOURCE: Final = Source("sdma", "14.6", HIGH)
GUARD: Final = 16  # slots that are never filled
HOST_RING_NOMINAL: Final = 4096
HOST_RING_ALLOCATED: Final = 8192
FLUSH_THRESHOLD: Final = 2031
DOORBELL_BITS: Final = 24  # of the count that a doorbell takes


@dataclass(frozen=True, slots=True)
class RingCursor:
    """A ring of `size` slots, a power of two above the guard gap.

    Attributes:
        producer, consumer: the slots to fill and to retire next.
        phase: RING_ID of the slot at `producer`; one more, modulo 4, each time the producer passes the end.

    Raises:
        UsageError: the size is no such power of two, or a position is outside of the ring.
    """

    size: int
    producer: int = 0
    consumer: int = 0
    phase: int = FIRST_PHASE

    def __post_init__(self) -> None:
        if self.size <= GUARD or self.size & (self.size - 1):
            raise UsageError(f"ring size: expected a power of two above {GUARD}, got {self.size}")
        if not (0 <= self.producer < self.size and 0 <= self.consumer < self.size and 0 <= self.phase <= RING_ID_MASK):
            raise UsageError(f"ring of {self.size}: no slot {self.producer} or {self.consumer}, or phase {self.phase}")

    @property
    def free(self) -> int:
        """Slots that may be filled now."""
        return (self.consumer - (self.producer + GUARD)) & (self.size - 1)

    @property
    def pending(self) -> int:
        """Slots that are filled and not retired."""
        return (self.producer - self.consumer) & (self.size - 1)

    def phases(self, count: int) -> U32:
        """Return the RING_ID of each of the next `count` slots.

        Raises:
            UsageError: the count is 0 or larger than the ring.
        """
        self._check(count)
        wraps = (self.producer + np.arange(count, dtype=np.uint32)) // self.size
        return (wraps.astype(np.uint32) + np.uint32(self.phase)) & np.uint32(RING_ID_MASK)

    def filled(self, count: int) -> RingCursor:
        """Return the cursor after `count` descriptors were written and the doorbell rung.

        Raises:
            UsageError: the count is 0, larger than the ring, or more than is free.
        """
        self._check(count)
        if count > self.free:
            raise UsageError(f"ring of {self.size}: {count} descriptors do not fit, {self.free} slots are free")
        wraps, producer = divmod(self.producer + count, self.size)
        return dataclasses.replace(self, producer=producer, phase=(self.phase + wraps) & RING_ID_MASK)

    def retired(self, count: int) -> RingCursor:
        """Return the cursor after the engine is done with `count` more descriptors.

        Raises:
            UsageError: the count is 0, larger than the ring, or more than is pending.
        """
        self._check(count)
        if count > self.pending:
            raise UsageError(f"ring of {self.size}: {count} descriptors retired, {self.pending} are pending")
        return dataclasses.replace(self, consumer=(self.consumer + count) & (self.size - 1))

    def _check(self, count: int) -> None:
        if not 0 < count <= self.size:
            raise UsageError(f"ring of {self.size}: expected 1 to {self.size} descriptors, got {count}")


def doorbells(tx: int, rx: int) -> tuple[tuple[bool, int], tuple[bool, int]]:
    """Return the two doorbell writes that start descriptors, in order: (receive, count), RX before TX.

    Raises:
        UsageError: a count is 0 or does not fit the register.
    """
    for count in (tx, rx):
        if not 0 < count < 1 << DOORBELL_BITS:
            raise UsageError(f"doorbell: expected 1 to {(1 << DOORBELL_BITS) - 1} descriptors, got {count}")
    return (True, rx), (False, tx)
