"""The device configuration a stream processor reads: ring channels, mesh events, program block, device ids.

Per architecture, which record stands where. What the firmware does with them is in `device`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from rota.columns import Array
from rota.errors import DecodeError, UsageError
from rota.facts import HIGH, Source
from rota.isa.layout import Bits, Buffer, Field, Layout
from rota.isa.spad import SLOTS

CHANNEL_SOURCE: Final = Source("device", "4", HIGH)


class NeighbourType(IntEnum):
    """How a ring neighbour is reached. Source: device §4, high."""

    LOCAL = 0
    POINT_TO_POINT = 1
    POINT_TO_POINT_POD = 2  # its fold_n is 1


NEIGHBOUR: Final = Layout("neighbour", size=28, source=CHANNEL_SOURCE, fields=(
    # name                     at  type   meaning
    Field("network_index",      0, "3<u8", "network index addresses; 0 inside a node"),
    Field("fold_n",            24, "u1",  "folds that signal, and are signalled"),
    Field("type",              25, "u1",  "NeighbourType"),
))  # fmt: skip

BROADCAST: Final = Layout("dma_broadcast", size=20, source=CHANNEL_SOURCE, fields=(
    # name                     at  type   meaning
    Field("m2s_tail_ptr",       0, "<u8", "register that advances the reading queues"),
    Field("s2m_tail_ptr",       8, "<u8", "register that advances the writing queues"),
    Field("mask",              16, "<u4", "one bit for each engine written at once"),
))  # fmt: skip

RING_CHANNEL: Final = Layout("ring_channel", size=148, source=CHANNEL_SOURCE, fields=(
    # name                     at  type   meaning
    *NEIGHBOUR.at(0, prefix="next_"),
    *NEIGHBOUR.at(28, prefix="prev_"),
    Field("recv_sema",         56, "<u8", "data has arrived"),
    Field("send_sema",         64, "<u8", "credit: the next neighbour has a free slot"),
    Field("post_sema",         72, "<u8", "a slot is ready"),
    Field("dma_compl_sema",    80, "<u8", "own descriptors are done"),
    Field("kangaring_mine",    88, "<u8", "own semaphore among the peers"),
    Field("kangaring_peers",   96, "3<u8", "semaphores of the peers"),
    *BROADCAST.at(120),
    Field("channel_id",       140, "u1",  "0 to 31"),
    Field("spad_slot_idx",    141, "u1",  "slot program of this channel"),
    Field("fold_n",           142, "u1",  "folds of this channel"),
    Field("kangaring_is_primary", 143, "u1", "1 for the rank of the chip that is on the ring"),
    Field("kangaring_num_peers", 144, "u1", "1 or 3; 0 on another ring"),
))  # fmt: skip
CHANNELS: Final = 32

EVENT_SOURCE: Final = Source("device", "5", HIGH)
MESH_EVENT: Final = Layout("mesh_event", size=80, source=EVENT_SOURCE, fields=(
    # name                     at  type   meaning
    *BROADCAST.at(0, prefix="leg0_"),
    *BROADCAST.at(20, prefix="leg1_"),
    Field("direct_trigger_sema", 40, "3<u8", "semaphores incremented without a transfer; 0 for none"),
    Field("event_wait_sema",   64, "<u8", "semaphore this event waits for"),
    Field("wait_val",          72, "<u4", "ranks waited for"),
    Field("event_type",        76, "u1",  "a name, for people"),
    Field("dma_trigger",       77, "u1",  "1: advance the queues of each leg that has engines"),
    Field("direct_trigger",    78, "u1",  "1: increment the direct semaphores"),
    Field("wait_event",        79, "u1",  "1: wait"),
))  # fmt: skip
HOST_EVENTS: Final = 200

PROGRAM_SOURCE: Final = Source("device", "3.1", HIGH)
DMA_ALLOCATIONS: Final = 8
PROGRAM_BLOCK: Final = Layout("program_block", size=3592, source=PROGRAM_SOURCE, fields=(
    # name                     at  type   meaning
    Field("dma_alloc_bitmap",   0, f"{2 * DMA_ALLOCATIONS}<u4", "eight pairs: queue, bit for each engine"),
    Field("desc_count",        64, "V2080", "descriptor counts"),
    Field("slot_spad_base",  2144, f"{SLOTS}<u8", "addresses of the slot programs"),
    Field("ctrl_spad_base",  2192, "<u8", "address of the control table"),
    Field("barrier_configs", 2200, "V296", "function barriers"),
    Field("basic_blocks",    2496, "V1024", "descriptor counts of basic blocks"),
    Field("switch_completed", 3520, "<u8", "a basic block has been switched to"),
    Field("pring_base_addr", 3528, "<u8", "address of the physical ring"),
    Field("pring_total_desc_num", 3536, "<u4", "its descriptors"),
    Field("trigger",         3544, "<u8", "semaphore that starts an entry"),
    Field("trigger_next",    3552, "<u8", "semaphore that starts the following entry"),
    Field("complete",        3560, "<u8", "semaphore of the next processor to complete"),
    Field("complete_prev",   3568, "<u8", "semaphore the processor before increments"),
    Field("tpb_stop_sema",   3576, "<u8", "semaphore that stops the engine"),
    Field("op_num",          3584, "<u4", "entries of the control table"),
    Field("function_n",      3588, "<u2", "functions of the program"),
    Field("tpb_compl_addr_num", 3590, "u1", "completion addresses behind an END mark"),
    Bits("leader",           3591, "u1",  0, 1, "this processor leads the others"),
    Bits("dbg_cc_nop",       3591, "u1",  1, 1, "operations are skipped, for debugging"),
    Bits("host_cc",          3591, "u1",  2, 1, "the host runs the collectives"),
))  # fmt: skip

DEVICE_IDS: Final = Layout("device_ids", size=48, source=PROGRAM_SOURCE, fields=(
    # name                     at  type   meaning
    Field("dma_apb_rsvd_addr",  0, "<u8", "register set aside for time synchronisation"),
    Field("eng_tpb",            8, "<u8", "engine it belongs to"),
    Field("timestamp_local",   16, "<u8", "address of the local time"),
    Field("timestamp_tpb",     24, "<u8", "address of the core's time"),
    Field("timestamp_tpb_val", 32, "<u4", "value of the core's time"),
    Field("tpb_ctrl_ack",      36, "<u8", "address of the acknowledgement"),
    Bits("tpb_id",             44, "u1",  0, 4, "core"),
    Bits("seng_id",            44, "u1",  4, 4, "engine group"),
    Bits("dev_id",             45, "u1",  0, 4, "device"),
))  # fmt: skip

DEVICE_BITS: Final = 0xF
"""What of a chip's number its nibble holds: the lowest bits. Source: device §3.1, convention."""

HIERARCHY: Final = Layout("hierarchical_handle", size=8, source=Source("device", "6", HIGH), fields=(
    Field("handle",             0, "<u8", "unused on the device"),
))  # fmt: skip

HOST_BLOCK_SIZE: Final = 24376  # what the host keeps for one stream processor


@dataclass(frozen=True, slots=True)
class Part:
    """Some equal records of the configuration, back to back."""

    name: str
    at: int
    count: int
    layout: Layout

    @property
    def end(self) -> int:
        """Return the offset behind the last record."""
        return self.at + self.count * self.layout.size


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of one architecture: parts without gaps from offset 0 to `size`.

    The runtime contexts that follow on the device start at `size`; of them only two places matter here.
    """

    size: int
    parts: tuple[Part, ...]
    runtime_algorithm: int  # offset of the algorithms' run-time records

    def __post_init__(self) -> None:
        ends = (0, *(part.end for part in self.parts))
        starts = (*(part.at for part in self.parts), self.size)
        if ends != starts:
            raise ValueError(f"parts end at {ends}, and the following ones start at {starts}")

    def part(self, name: str) -> Part:
        """Return a part by name.

        Raises:
            UsageError: no part is called that.
        """
        for each in self.parts:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.parts)
        raise UsageError(f"device configuration has no '{name}': expected one of {names}")

    def columns(self, image: Buffer, name: str) -> Array:
        """Return the records of a part as a structured array over the image's memory, writable when that is.

        Raises:
            DecodeError: the image has another size than the configuration.
            UsageError: no part is called that.
        """
        if len(image) != self.size:
            expected = f"{self.size} bytes"
            raise DecodeError("device configuration", offset=0, expected=expected, got=f"{len(image)} bytes")
        part = self.part(name)
        return np.frombuffer(image, part.layout.dtype, count=part.count, offset=part.at)

    def reserved(self, image: Buffer) -> int | None:
        """Return the offset of the first byte with a bit set that no record names, or None."""
        for part in self.parts:
            stray = part.layout.reserved(image[part.at : part.end])
            if stray is not None:
                return part.at + stray
        return None


CONFIGURATIONS_SOURCE: Final = Source("device", "3", HIGH)
_SUNDA: Final = Configuration(size=0x3060, runtime_algorithm=0x30C0, parts=(
    Part("ring",                0, CHANNELS, RING_CHANNEL),
    Part("mesh",           0x1280, 50,       MESH_EVENT),
    Part("hierarchy",      0x2220, 1,        HIERARCHY),
    Part("program",        0x2228, 1,        PROGRAM_BLOCK),
    Part("device_ids",     0x3030, 1,        DEVICE_IDS),
))  # fmt: skip
_CAYMAN: Final = Configuration(size=0x4280, runtime_algorithm=0x42E0, parts=(
    Part("ring",                0, CHANNELS, RING_CHANNEL),
    Part("mesh",           0x1280, 108,      MESH_EVENT),
    Part("hierarchy",      0x3440, 1,        HIERARCHY),
    Part("program",        0x3448, 1,        PROGRAM_BLOCK),
    Part("device_ids",     0x4250, 1,        DEVICE_IDS),
))  # fmt: skip
CONFIGURATIONS: Final[Mapping[str, Configuration]] = {"sunda": _SUNDA, "cayman": _CAYMAN, "mariana": _CAYMAN}
