"""The semaphore block of a stream processor: windows, ids with a meaning, and the counting of mesh events.

Where the block of a given stream processor lies is in `arch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rota.errors import DecodeError, UsageError
from rota.facts import CONVENTION, HIGH, Source

BLOCK_SOURCE: Final = Source("device", "8.1", HIGH)
BLOCK_SIZE: Final = 1 << 20
SEMAPHORES: Final = 256
EVENTS: Final = 256
STRIDE: Final = 4
MAX_VALUE: Final = (1 << 31) - 1  # registers are 32 bits wide and compare as signed numbers


class Window(IntEnum):
    """What an access to a semaphore does, as the offset of its register in the block. Source: device §8.1, high."""

    EVENTS = 0x0000  # read, write: set and clear
    READ = 0x1000  # read: the value
    SET = 0x1400  # write: replaces the value
    INC = 0x1800  # write: adds
    DEC = 0x1C00  # write: subtracts


class Reserved(IntEnum):
    """Ids that are never handed out. Source: device §8.3, high; COMPLETE_PREV is a choice of this project."""

    TRIGGER = 0
    COMPLETION = 1
    BARRIER_DONE = 2  # device mode
    BARRIER = 3
    BARRIER_DMA_SYNC = 4
    FUNCTION_SWITCH = 5
    HOST_BARRIER_DONE = 6  # host mode
    HOST_BARRIER = 7
    COMPLETE_PREV = 254
    NULL = 255


ALLOCATION_SOURCE: Final = Source("device-model", "4", CONVENTION)
FIRST_FREE: Final = 8  # ids are handed out from here, lowest first
LAST_FREE: Final = 253


@dataclass(frozen=True, slots=True)
class Parity:
    """The part of an event semaphore that counts for one operation, so that its successor cannot be taken for it."""

    shift: int
    mask: int


# By operation number modulo 2; bit 31 stays clear in both.
PARITIES_SOURCE: Final = Source("device-model", "5.5", CONVENTION)
PARITIES: Final = (Parity(shift=4, mask=0x0FFF), Parity(shift=20, mask=0x07FF))


def register_offset(window: Window, semaphore: int) -> int:
    """Return the offset of a register in the semaphore block.

    Raises:
        UsageError: the id is not between 0 and 255.
    """
    if not 0 <= semaphore < SEMAPHORES:
        raise UsageError(f"semaphore {semaphore}: expected an id from 0 to {SEMAPHORES - 1}")
    return window + STRIDE * semaphore


def decode_register(offset: int) -> tuple[Window, int]:
    """Return the window and the id of an offset in the semaphore block.

    Raises:
        DecodeError: no register starts there.
    """
    for window in Window:
        semaphore, rest = divmod(offset - window, STRIDE)
        if 0 <= semaphore < SEMAPHORES and not rest:
            return window, semaphore
    raise DecodeError(
        "semaphore block", offset=offset, expected="a register of one of its windows", got=f"offset 0x{offset:X}"
    )
