"""What the DMA engines of the architectures do differently, beyond the packet limits of `descriptors`.

Ordering, semaphores inside descriptors, notifications and the registers of the reduce block. Nothing here encodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source, Verdict, no, yes
from rota.isa.descriptors import ORDERING_SOURCE, Ordering, limits_of
from rota.isa.layout import Bits, Field, Layout

DIFFERENCES_SOURCE: Final = Source("sdma", "16", HIGH)
UNKNOWN: Final = None


class SbufTranspose(IntEnum):
    """How a transpose into the state buffer addresses it. Source: sdma §16, high."""

    GENERIC = 0
    WINDOWED = 1  # windows of 32 MiB, partitions of 256 KiB


SBUF_WINDOW: Final = 32 << 20
SBUF_PARTITION: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class EngineFeatures:
    """One column of the table of differences.

    Attributes:
        generation: 2, 3 or 4; "arch > 2" in the rules compares this number.
        notification_mask: bit 28 of the operation word may be set.
        dual_tail: there is a second, data tail pointer, and descriptors can be fetched ahead.
        semaphore_regions: regions an embedded semaphore can name, 0 without embedded semaphores.
        semaphore_regions_used: how many of them lead to a semaphore block.
        cce_registers: offset of the reduce block's own registers, None without.
        notification_stride: bytes between the notification blocks of the fabric.
        m2s_getter: the hardware layer's own "most reading descriptors of a packet", None where it is not known;
            packing uses `SdmaLimits.tx_cap`, which is lower on mariana.
        reverse_dma: the reverse path, None where it is not known.
    """

    generation: int
    notification_mask: bool
    dual_tail: bool
    semaphore_regions: int
    semaphore_regions_used: int
    cce_registers: int | None
    notification_stride: int
    m2s_getter: int | None
    reverse_dma: bool | None
    sbuf_transpose: SbufTranspose


FEATURES: Final[Mapping[str, EngineFeatures]] = {
    #                         gen notify dual   regions registers stride getter   reverse  transpose
    "sunda":   EngineFeatures(2, False, False,  0, 0,   UNKNOWN, 48,    UNKNOWN, UNKNOWN, SbufTranspose.GENERIC),
    "cayman":  EngineFeatures(3, False, True,   0, 0,   UNKNOWN, 48,    UNKNOWN, UNKNOWN, SbufTranspose.WINDOWED),
    "mariana": EngineFeatures(4, True,  True,  32, 24,  0x2000,  52,    128,     False,   SbufTranspose.GENERIC),
}  # fmt: skip

# Registers of a queue, from the engine's base; the first queue block follows one block for the engine itself.
DATA_TAIL_SOURCE: Final = Source("sdma", "1", HIGH)
QUEUE_STRIDE: Final = 0x1000
DATA_TAIL_INCREMENT: Final = 0xE0

SEED_SOURCE: Final = Source("sdma", "11", HIGH)
SEED_STRIDE: Final = 8
SEED_CONVERTERS: Final = 16
SEED_QUEUES: Final = 16
SEED_FIRST_ROW: Final = 8

KERNEL_CAP_SOURCE: Final = Source("sdma", "7", HIGH)
KERNEL_PACKET_CAP: Final = range(8, 129)  # what the kernel driver takes as "most descriptors of a packet"
SB2SB_MAX_ELEMENTS: Final = 256  # of one 0xBF word
PRIORITY_CLASSES: Final = range(5)

COMPLETION_MARKER_SOURCE: Final = Source("sdma", "1", HIGH)
COMPLETION_MARKER: Final = 0xABCDEF01  # written last by copies of the host

# On v3 an engine's semaphore increment may be fed from the state buffer. Source: sdma §13, high.
SBUF_FEED_PARTITION_SHIFT: Final = 18
SBUF_FEED_OFFSET: Final = 229372


def features_of(arch: str) -> EngineFeatures:
    """Return the features of an architecture.

    Raises:
        UsageError: no architecture is called that.
    """
    limits_of(arch)
    return FEATURES[arch]


def can_order(ordering: Ordering, arch: str) -> Verdict:
    """Say whether the engine of an architecture has an ordering mode. Source: sdma §8, high.

    Raises:
        UsageError: no architecture is called that.
    """
    if ordering is Ordering.STRONG_ORDER_WR and not limits_of(arch).strong_ordered_write:
        return no(f"{arch} has no strong-ordered write; use DMB", ORDERING_SOURCE)
    return yes(f"{arch} takes {ordering.name}", ORDERING_SOURCE)


def check_ordering(ordering: Ordering, arch: str) -> None:
    """Refuse an ordering mode that an architecture has not.

    Raises:
        UnsupportedError: the mode is a strong-ordered write and the architecture has none.
        UsageError: no architecture is called that.
    """
    verdict = can_order(ordering, arch)
    if not verdict:
        raise UnsupportedError(verdict.reason, source=verdict.source)


LAST_ORDERING_SOURCE: Final = Source("sdma", "17 row 11", CONVENTION)


def last_ordering(arch: str) -> Ordering:
    """Return how a collective ring orders its last data: strong-ordered where that exists, else DMB, never both.

    Raises:
        UsageError: no architecture is called that.
    """
    return Ordering.STRONG_ORDER_WR if limits_of(arch).strong_ordered_write else Ordering.DMB


def seed_register(queue: int, converter: int, *, arch: str) -> int:
    """Return the offset of a stochastic-rounding seed register from the engine's base. Source: sdma §11, high.

    Raises:
        UnsupportedError: the reduce block of the architecture has no registers of its own.
        UsageError: the queue or the converter is out of range, or the architecture unknown.
    """
    block = features_of(arch).cce_registers
    if block is None:
        raise UnsupportedError(f"{arch} has no seed registers; prepend a seed descriptor", source=SEED_SOURCE)
    if not (0 <= queue < SEED_QUEUES and 0 <= converter < SEED_CONVERTERS):
        raise UsageError(f"seed register: expected queue and converter from 0 to 15, got {queue} and {converter}")
    return block + SEED_STRIDE * (converter + SEED_CONVERTERS * (queue + SEED_FIRST_ROW))


def data_tail_register(queue: int, *, arch: str) -> int:
    """Return the offset of a queue's second, data tail increment from the engine's base. Source: sdma §1, high.

    Raises:
        UnsupportedError: the architecture has one tail pointer.
        UsageError: the architecture is unknown.
    """
    if not features_of(arch).dual_tail:
        raise UnsupportedError(f"{arch} has one tail pointer; use the first", source=DIFFERENCES_SOURCE)
    return (queue + 1) * QUEUE_STRIDE + DATA_TAIL_INCREMENT


CHANNEL_SOURCE: Final = Source("sdma", "15", MEDIUM)
CHANNEL_COUNTER: Final = Layout("channel_counter", size=8, source=CHANNEL_SOURCE, fields=(
    # name           at type    meaning
    Field("m2s_val", 0, "<u2",  "reading descriptors"),
    Field("s2m_val", 2, "<u2",  "writing descriptors"),
    Field("repeat",  4, "<u2",  "times the step is launched"),
    Bits("last_sync", 6, "u1", 0, 1, "the last step before a synchronisation"),
))  # fmt: skip


def channel_has_room(counter: int, new: int, *, arch: str) -> Verdict:
    """Say whether `new` descriptors still fit a channel's 16-bit counter; asked for both directions.

    Raises:
        UsageError: the architecture is unknown.
    """
    room = limits_of(arch).max_descriptors_per_channel - counter
    if new < room:
        return yes(f"{new} descriptors, room for {room}", CHANNEL_SOURCE)
    return no(f"a channel takes fewer than {room} more descriptors in one operation, got {new}", CHANNEL_SOURCE)
