"""The state buffer of a core: partitions, window on the chip, reserved bytes; and what the SB2SB leg says and logs.

The 0xBF word itself is in `carriers` and `transfers`, addresses inside a word in `operands`. Cutting a move into words
is `emit.sb2sb`, carrying them out `device.sb2sb`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from rota.columns import I64
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.arch import DIE_BIT, LOCAL_MASK, Arch, T
from rota.isa.engines import SBUF_FEED_OFFSET, SBUF_PARTITION, SBUF_WINDOW
from rota.isa.opcodes import Opcode
from rota.isa.operands import SBUF_QUADRANT_SIZE, SBUF_QUADRANTS
from rota.isa.semaphores import FIRST_FREE

LEG_SOURCE: Final = Source("device", "11", HIGH)
MIN_GENERATION: Final = 3  # core version from which the leg exists

PARTITIONS: Final = 128
"""Partitions of a state buffer. Source: platforms §2, high."""

PARTITION_SIZE: Final[Mapping[str, int]] = {"sunda": 192 << 10, "cayman": 224 << 10, "mariana": 256 << 10}
"""Bytes of a partition by architecture. Source: platforms §2, high."""

QUADRANT_PARTITIONS: Final = SBUF_QUADRANTS[1] // SBUF_PARTITION
"""Partitions from one place a word's address can name to the next. Source: isa §4, high; sdma §16, high."""

# What a word can name of a partition, on every architecture; its last bytes are kept for what the leg itself needs.
RESERVED_SOURCE: Final = Source("device", "11, reserved bytes of a partition", CONVENTION)
REACH: Final = SBUF_QUADRANT_SIZE
SINK: Final = REACH - 16  # what a core sends that only receives lands here
SINK_SIZE: Final = 8  # one element of any type
USABLE: Final = SINK  # operands lie below
LIMIT: Final = SBUF_FEED_OFFSET  # nothing is written from here on: the word that semaphore descriptors read

WINDOW_SOURCE: Final = Source("device", "11, address of a state buffer", CONVENTION)
WINDOW_BASE: Final[Mapping[str, int]] = {"cayman": 0x20_0000_0000, "mariana": 0x20_0000_0000}
WINDOW_SHIFT: Final = 36  # from one core of a die to the next

# How the sender sees the receiver's state buffer while it works, and what it finds in its flag.
VIEW_SOURCE: Final = Source("device", "11, windows of the sender", CONVENTION)
POOL_VIEW: Final = 0x4000_0000
COMPUTE_VIEW: Final = POOL_VIEW + SBUF_WINDOW
READY: Final = 1

ENGINE_SOURCE: Final = Source("device", "11, engine mask", CONVENTION)
ENGINE_MASK: Final = 1  # one engine carries a word, so that each semaphore counts words

SEMAPHORES_SOURCE: Final = Source("device", "11, semaphores of a word", CONVENTION)
COMPLETION: Final = FIRST_FREE  # counts what a core has sent; the word updates it
RECEIVE: Final = FIRST_FREE + 1  # counts what a core has received; the word waits for it


class Handshake(IntEnum):
    """What the two cores do for one word, in this order. Source: device §11, high."""

    ISSUE = 0  # the receptions of earlier words are there
    ANNOUNCE = 1  # receiver: the sender may read that it is ready
    READ_READY = 2  # sender: maps the receiver's windows, reads its flag and clears it
    BUILD = 3  # sender: descriptors, with one for each semaphore
    RX_TAIL = 4  # receiver: publishes the descriptors that write
    SIGNAL = 5  # receiver: tells the sender
    WAIT_SIGNAL = 6  # sender
    TX_TAIL = 7  # sender: the copy starts
    COMPLETE = 8  # what it sent has left, what it receives has come


DECODE_SET: Final = (
    "ExtendedInstCopy",
    "ExtendedInstCptc",
    "ExtendedInstRandGetState",
    "ExtendedInstRandSetState",
    "ExtendedInstTensorTensorArith",
    "GetSequenceBounds",
    "SB2SB_Collective",
    "Sbuf2Sbuf",
)
"""The operations the pool engine decodes; no trigger is among them. Source: all-reduce §8, high."""

DECODED_SOURCE: Final = Source("all-reduce", "8, opcodes of the decode set", CONVENTION)
DECODED: Final = frozenset({Opcode.SB2SB_COLLECTIVE, Opcode.GET_SEQUENCE_BOUNDS, Opcode.EXTENDED_INST})

# Log lines of one word, in order, as the firmware has them.
LOG_SOURCE: Final = Source("all-reduce", "8", HIGH)
LOG_DECODE: Final = "P%i: Decode : SB2SB_Collective"
LOG_OPERATION: Final = (
    "P%i: SB2SB_Collective : total_src_nelem = %zu, total_dst_nelem = %zu, dtype=%d, dst_nc=%zu, src_nc=%zu, mask=0x%x"
)
LOG_CHANNELS: Final = "P%i: SB2SB_Collective: num_chans = %0d, tpb_idx = %u"
LOG_PRE_SYNC: Final = (
    "P%i: SB2SB Pre-sync: remote_pool_xt_addr=0x%x, remote_q7_xt_addr=0x%x, sb2sb_ready_to_receive_remote=0x%x"
)
# The page has the tokens; the words between them are those of the published firmware's strings.
ANNOUNCE_SOURCE: Final = Source("device", "14", MEDIUM)
LOG_ANNOUNCE: Final = "P%i: SB2SB Pre-sync: This TPB (NC %u) is letting NC %u know that we are ready to receive data."


def log_line(form: str, *values: int) -> str:
    """Return a log line with its values."""
    return form.replace("%zu", "%u") % values


def partner(core: int) -> int:
    """Return the other core of a logical core of two. Source: isa §6.5, high."""
    return core ^ 1


def die_partner(engine: int) -> int:
    """Return the pair of cores on the other die that faces this one. Source: device §11, high."""
    return engine ^ 2


def state_buffer(arch: Arch, core: T) -> T:
    """Return the address of a core's state buffer on its chip, the die in its high bits. Source: `WINDOW_SOURCE`."""
    base = WINDOW_BASE[arch.name]
    address: T = base + ((core % arch.cores_per_die) << WINDOW_SHIFT) + ((core // arch.cores_per_die) << DIE_BIT)
    return address


def place_in_state_buffer(arch: Arch, address: I64) -> tuple[I64, I64, I64]:
    """Return core, partition and byte of addresses in state buffers; the inverse of `state_buffer` and its parts."""
    distance = (address & LOCAL_MASK) - WINDOW_BASE[arch.name]
    core = (address >> DIE_BIT) * arch.cores_per_die + (distance >> WINDOW_SHIFT)
    inside = distance & ((1 << WINDOW_SHIFT) - 1)
    return core, inside // SBUF_PARTITION, inside % SBUF_PARTITION
