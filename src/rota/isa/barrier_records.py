"""The records of device barriers: peers, table entries, groups, step tables, semaphores, the 296-byte configuration.

Who is whose peer is decided in `barrier`; what a stream processor does with a configuration is in `device.barrier`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rota.errors import UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.config import BROADCAST
from rota.isa.descriptors import DESCRIPTOR_SIZE
from rota.isa.layout import Bits, Field, Layout
from rota.isa.semaphores import LAST_FREE


class BarrierType(IntEnum):
    """Kind of link to a peer. Source: barrier §2.6, high."""

    INTRA_CHIP = 0
    INTRA_POD = 1
    INTER_CHIP = 2
    INTER_CHIP_RING_LOCAL = 3
    INTER_CHIP_RING_REMOTE = 4
    INTRA_RACK = 5
    INTER_RACK = 6
    MAX = 7  # unused slots of a step table


class BarrierOperation(IntEnum):
    """Which of a type's two semaphores. Source: barrier §2.6, high."""

    ENTRY = 0
    EXIT = 1
    MAX = 2  # unused slots of a step table


SEND: Final = 0
RECV: Final = 1
SIDES_SOURCE: Final = Source("barrier", "1", HIGH)
"""Table 0 names whom this rank signals, table 1 who signals it."""

PEER: Final = Layout("barrier_peer", size=24, source=Source("barrier", "2.1", HIGH), fields=(
    # name                   at  type   meaning
    Field("neuron_dev",       0, "<i4", "device, -1 by network, -2 by a pod link"),
    Field("rid",              4, "<i4", "routing id of the chip"),
    Field("tpb_index",        8, "<i4", "first core of the rank on the chip"),
    Field("pod_node_id",     12, "<i4", "node in its pod"),
    Field("reservation_id",  16, "<u8", "pod"),
))  # fmt: skip

ENTRY: Final = Layout("barrier_table_entry", size=32, source=Source("barrier", "2.2", HIGH), fields=(
    # name                   at  type   meaning
    *PEER.at(0),
    Field("barr_type",       24, "<i4", "BarrierType"),
    Field("bit_to_set",      28, "<i4", "bit of the type's semaphore"),
))  # fmt: skip

GROUP: Final = Layout("barrier_group", size=72, source=Source("barrier", "2.3", HIGH), fields=(
    # name                   at  type   meaning
    Field("send_table",       0, "3<u8", "vector of entries: begin, end, end of storage"),
    Field("recv_table",      24, "3<u8", "vector of entries: begin, end, end of storage"),
    Field("group_id",        48, "<u8", "replica group; width is a convention"),
    Field("rg",              56, "<u8", "pointer to the replica group"),
    Field("comm",            64, "<u8", "pointer to the communicator"),
))  # fmt: skip

HASH_SHIFT: Final = 7
HASH_SOURCE: Final = Source("barrier", "2.5", HIGH)


def collision_hash(barr_type: int, bit: int) -> int:
    """Return the hash of the key {type, bit} by which the tables of a device are merged. Source: barrier §2.5, high."""
    return barr_type ^ bit << HASH_SHIFT


# --- the program of four steps ----------------------------------------------------------------------------------------

Step = tuple[tuple[BarrierType, BarrierOperation], ...]

STEPS: Final = 4  # of every program. Source: barrier §7.1, high
SLOTS: Final = 4  # of every step. Source: barrier §7.1, high

_NEAR: Final = (
    BarrierType.INTRA_POD,
    BarrierType.INTER_CHIP,
    BarrierType.INTER_CHIP_RING_LOCAL,
    BarrierType.INTER_CHIP_RING_REMOTE,
)
_RACKS: Final = (BarrierType.INTRA_RACK, BarrierType.INTER_RACK)


def _program(types: tuple[BarrierType, ...]) -> tuple[Step, ...]:
    enter, leave = BarrierOperation.ENTRY, BarrierOperation.EXIT
    return (
        ((BarrierType.INTRA_CHIP, enter),),
        tuple((each, enter) for each in types),
        tuple((each, leave) for each in types),
        ((BarrierType.INTRA_CHIP, leave),),
    )


DEFAULT_PROGRAM: Final = _program(_NEAR)
SWITCH_PROGRAM: Final = _program(_RACKS)
PROGRAM_SOURCE: Final = Source("barrier", "7.1", HIGH)
"""Step -> its active slots, for the switch family and for all others."""


def program_of(*, switch: bool) -> tuple[Step, ...]:
    """Return the four steps of a family."""
    return SWITCH_PROGRAM if switch else DEFAULT_PROGRAM


STEP_TABLE: Final = Layout("barrier_step_table", size=128, source=PROGRAM_SOURCE, fields=(
    Field("slots",            0, f"{2 * STEPS * SLOTS}<u4", "type and operation of each slot, step by step"),
))  # fmt: skip


def step_table(*, switch: bool) -> bytes:
    """Return a program as it lies in memory: four steps of four slots, unused ones (MAX, MAX). Source: barrier §7.1."""
    pad = (BarrierType.MAX, BarrierOperation.MAX)
    slots = [pair for step in program_of(switch=switch) for pair in (*step, *[pad] * (SLOTS - len(step)))]
    return STEP_TABLE.encode(slots=[int(value) for pair in slots for value in pair])


def search_type_in_step(barr_type: BarrierType, step: int, *, switch: bool) -> tuple[BarrierOperation, int] | None:
    """Return the operation and the slot of a type in a step; None where the step has no such slot.

    Raises:
        UsageError: there is no such step.

    Source:
        barrier §7.2, high.
    """
    if not 0 <= step < STEPS:
        raise UsageError(f"barrier step {step}: expected 0 to {STEPS - 1}")
    for slot, (kind, operation) in enumerate(program_of(switch=switch)[step]):
        if kind is barr_type:
            return operation, slot
    return None


# --- semaphores -------------------------------------------------------------------------------------------------------

MAPPING: Final = Layout("barrier_sem_mapping", size=14, source=Source("barrier", "8.2", MEDIUM), fields=(
    # name                   at  type   meaning
    Field("sem_index",        0, "4<u2", "semaphore by operation and context"),
    Field("sp_idx",           8, "<u2", "stream processor it is on"),
    Field("start_bit",       10, "u1",  "first bit an entry may set"),
    Field("num_bits",        11, "u1",  "bits an entry may set"),
    Field("exit_start_bit",  12, "u1",  "the same on the way out"),
    Field("exit_num_bits",   13, "u1",  "the same on the way out"),
))  # fmt: skip

CONTEXTS: Final = 2  # program, and standalone or driven by the host. Source: barrier §8.2, high
HOME_SP: Final = 0  # of the rank. Source: barrier §8.2, convention

BITS_SOURCE: Final = Source("barrier", "8.2", CONVENTION)
START_BIT: Final = 0
NUM_BITS: Final = 31  # a semaphore compares as a signed number

SEMAPHORES_PER_CONTEXT: Final = int(BarrierType.MAX) * int(BarrierOperation.MAX)
FIRST_SEMAPHORE: Final = LAST_FREE + 1 - SEMAPHORES_PER_CONTEXT
SEMAPHORE_SOURCE: Final = Source("barrier", "8.2", CONVENTION)
"""One semaphore for each type and operation, at the top of the free ids, since channels take theirs from below."""


@dataclass(frozen=True, slots=True)
class SemaphoreMapping:
    """Where the signals of one barrier type go. Source: barrier §8.2, high for the record, convention for the values.

    Attributes:
        sem_index: semaphore by operation and context.
        sp_idx: stream processor of the rank.
        fields: first bit and number of bits an entry may set, by operation.
    """

    sem_index: tuple[tuple[int, ...], ...]
    sp_idx: int
    fields: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Return the record of 14 bytes."""
        (start, number), (exit_start, exit_number) = self.fields
        return MAPPING.encode(
            sem_index=[each for row in self.sem_index for each in row],
            sp_idx=self.sp_idx,
            start_bit=start,
            num_bits=number,
            exit_start_bit=exit_start,
            exit_num_bits=exit_number,
        )


def semaphore_mapping(barr_type: BarrierType) -> SemaphoreMapping:
    """Return the semaphores of a type, the same on every architecture.

    Raises:
        UsageError: the type is MAX, which names no link.

    Source:
        barrier §8.2, convention.
    """
    if barr_type is BarrierType.MAX:
        raise UsageError("barrier type MAX: expected one of the seven kinds of link; MAX only pads a step table")
    operations = (BarrierOperation.ENTRY, BarrierOperation.EXIT)
    return SemaphoreMapping(
        sem_index=tuple(
            tuple(
                FIRST_SEMAPHORE - context * SEMAPHORES_PER_CONTEXT + len(operations) * barr_type + operation
                for context in range(CONTEXTS)
            )
            for operation in operations
        ),
        sp_idx=HOME_SP,
        fields=((START_BIT, NUM_BITS),) * len(operations),
    )


# --- the configuration ------------------------------------------------------------------------------------------------

_CONFIG_SOURCE: Final = Source("barrier", "8.1", HIGH)
LEADERS: Final = 4  # most stream leaders. Source: barrier §8.1, high

STEP_CONFIG: Final = Layout("barrier_step_config", size=0x34, source=_CONFIG_SOURCE, fields=(
    # name                   at    type   meaning
    Field("m2s_val",         0x00, "<u2", "reading descriptors this step starts"),
    Field("s2m_val",         0x02, "<u2", "writing descriptors this step starts"),
    Field("barrier_sema",    0x04, f"{SLOTS}<u8", "semaphore each slot waits for; 0 where it waits for nothing"),
    Field("target_sema_val", 0x24, f"{SLOTS}<u4", "sum of the bits each slot waits for"),
))  # fmt: skip

DEVICE_VIEW: Final = Layout("barrier_device_view", size=0x124, source=_CONFIG_SOURCE, fields=(
    # name                   at     type   meaning
    *(field for step in range(STEPS) for field in STEP_CONFIG.at(step * STEP_CONFIG.size, prefix=f"step{step}_")),
    Field("dma_sync_sema",   0x0D0, f"{LEADERS}<u8", "semaphore of each stream leader; 0 for none"),
    *BROADCAST.at(0x0F0),
    Field("start_network_proxy", 0x104, "<u8", "address in the host's memory; 0 for none"),
    Field("dma_sync_sema_value", 0x10C, "<u4", "what it reaches when the descriptors are done"),
    Field("tdrbp_low",       0x110, "<u4", "address of the descriptors, low half"),
    Field("tdrbp_high",      0x114, "<u4", "address of the descriptors, high half"),
    Field("desc_count",      0x118, "<u4", "reading descriptors; as many writing ones lie behind them"),
    Field("total_desc_n",    0x11C, "<u4", "reading and writing descriptors together"),
    Field("dma_engines_bitmap", 0x120, "<u2", "engines that run them"),
    Field("queue_id",        0x122, "u1",  "queue of the engines"),
))  # fmt: skip

HOST_VIEW: Final = Layout("barrier_host_view", size=16, source=_CONFIG_SOURCE, fields=(
    # name                   at  type   meaning
    Field("barrier_start",    0, "<u8", "address of the start word"),
    Field("barrier_done",     8, "<u8", "semaphore that says the barrier is done"),
))  # fmt: skip

CONFIG: Final = Layout("neff_barrier_configs", size=0x128, source=_CONFIG_SOURCE, fields=(
    # name                   at     type   meaning
    *DEVICE_VIEW.at(0),
    Bits("execute_device_barrier", 0x124, "u1", 0, 1, "1: the bytes before are a device view, 0: a host view"),
))  # fmt: skip

BARRIER_COMPLETED: Final = 0x5C  # u8 in the program's run-time context. Source: barrier §9, high

# --- where a rank keeps what its barrier needs, below its buffers -----------------------------------------------------

FEEDS: Final = 0x100  # a word for each bit, `1 << bit`; those that no descriptor reads are 0
RING: Final = 0x400
RING_END: Final = 0x1000
MOST_SIGNALS: Final = (RING_END - RING) // (2 * DESCRIPTOR_SIZE)
QUEUE: Final = 15  # the last, since channels take theirs from below
ENGINE: Final = 0
DRAINED: Final = 1  # what the last descriptor adds to the semaphore of drained ones
PLACE_SOURCE: Final = Source("barrier", "8.3", CONVENTION)

MAX_DEVICES: Final = 16  # chips of a mesh, but on the switch family. Source: barrier §3, convention
RANKS_PER_CHIP: Final = (1, 2, 4, 8)  # of a mesh. Source: barrier §3, convention


@dataclass(frozen=True, slots=True)
class BarrierImage:
    """What one rank loads for its barriers.

    Attributes:
        arch: name of the architecture.
        rank: of the program, for messages.
        chip, lane: where the rank stands.
        lnc: physical cores of a rank.
        config: the configuration of its home stream processor, 296 bytes.
        page: its memory below `RING_END`, with the words that are added and the descriptors.
    """

    arch: str
    rank: int
    chip: int
    lane: int
    lnc: int
    config: bytes
    page: bytes
