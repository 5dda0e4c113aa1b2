"""The records of the switch's build and compose sides as the runtime holds them: subtype, event, copy, reduction.

Pointers and vectors are here as raw bytes: what they lead to lies elsewhere in the process. Which events a subtype has,
and who is in their groups, is `compose.switch`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rota.errors import DecodeError
from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Source
from rota.isa.enums import EncOp
from rota.isa.events import MAX_EVENTS, EventType
from rota.isa.layout import Field, Layout
from rota.isa.records import member

LIMITS_SOURCE: Final = Source("switch_schedule", "5.1, 7.1", HIGH)
FLAGS_SOURCE: Final = Source("switch_schedule", "7.1, order of the flags", MEDIUM)
FLAG_PLACES_SOURCE: Final = Source("switch_schedule", "7.1, offsets of the flags", LOW)
TAIL_SOURCE: Final = Source("switch_schedule", "7.1, alltoall_iteration", LOW)
MODES_SOURCE: Final = Source("switch_schedule", "3, copy_mode", HIGH)

MESH_EVENT: Final = Layout("enc_mesh_event", size=40, source=Source("switch_schedule", "7.2", HIGH), fields=(
    # name             at  type   meaning
    Field("src_ranks",  0, "<u8", "pointer to the ranks of the source group"),
    Field("src_n",      8, "<i4", "ranks of the source group"),
    Field("dst_ranks", 16, "<u8", "pointer to the ranks of the destination group"),
    Field("dst_n",     24, "<i4", "ranks of the destination group"),
    Field("valid",     32, "u1",  "whether the event exists"),
    Field("evt_type",  36, "<i4", "EventType: stamped by the build side, asserted by the compose side"),
))  # fmt: skip

OP_TYPES: Final = 13
"""Entries of a limit array: one for each operation, by EncOp. Source: switch_schedule §5.1, high."""
EVENTS_SIZE: Final = MAX_EVENTS * MESH_EVENT.size
FLAGS: Final = (
    "no_inplace_support",
    "is_use_chnl_buffer",
    "is_rdh",
    "is_single_step_mesh",
    "is_two_step_pod_mesh",
    "is_latency_opt",
    "is_bw_opt",
    "is_one_rank_per_chip",
)
"""One-byte flags of a subtype, in order. Source: `FLAGS_SOURCE`, the first five; `FLAG_PLACES_SOURCE`, the rest."""

SUBTYPE: Final = Layout("enc_alg_mesh_subtype", size=3016, source=Source("switch_schedule", "7.1", HIGH), fields=(
    # name                      at  type      meaning
    Field("events",              0, "V2560",  "64 x enc_mesh_event"),
    Field("num_events",       2560, "<i4",    "events that are planned; 0: the slot is free"),
    Field("drv_mesh",         2568, "<u8",    "pointer to the driver's mesh"),
    Field("mesh",             2576, "<u8",    "pointer back to the mesh"),
    Field("op_max_limit",     2584, "13<u8",  "largest message by EncOp; 0 offers nothing"),
    Field("op_min_limit",     2688, "13<u8",  "message above which it is offered"),
    Field("op_max_limit_sbuf", 2792, "13<u8", "the same for 2-D operands"),
    Field("op_min_limit_sbuf", 2896, "13<u8", "the same for 2-D operands"),
    *(Field(name, 3000 + i, "u1", "whether the subtype is of this kind") for i, name in enumerate(FLAGS)),
    Field("alltoall_iteration", 3008, "<u4",  "iterations of an all-to-all"),
))  # fmt: skip

COPY_PARAMS: Final = Layout("enc_copy_op_params", size=184, source=Source("switch_schedule", "7.5", HIGH), fields=(
    # name                 at  type   meaning
    Field("src_idx",        0, "<i4", "place of the source in its neighbour group"),
    Field("s_addr",         8, "V16", "source address: device, then host"),
    Field("s_mhandle",     24, "<u8", "network handle of the source"),
    Field("s_offsets",     32, "V24", "vector of u32: byte of the source for each destination"),
    Field("d_addrs",       56, "V24", "vector of u64: destination addresses"),
    Field("d_skip_copy",   80, "V40", "vector of bool: destinations that are not written"),
    Field("d_ranks",      120, "V24", "vector of i32: places of the destinations in their neighbour group"),
    Field("copy_sizes",   144, "V24", "vector of u64: bytes for each destination"),
    Field("host_d_addr",  168, "<u8", "destination address in the host's memory"),
    Field("d_mhandle",    176, "<u8", "network handle of the destination"),
))  # fmt: skip

REDUCE_PARAMS: Final = Layout("enc_reduce_op_params", size=104, source=Source("switch_schedule", "7.5", HIGH), fields=(
    # name              at  type   meaning
    Field("s_addrs",     0, "V24", "vector of addresses of the sources, in fold order"),
    Field("src_idx",    24, "V24", "vector of i32: places of the sources in their neighbour group"),
    Field("d_addrs",    48, "V24", "vector of addresses of the destinations"),
    Field("dst_idx",    72, "V24", "vector of i32: places of the destinations in their neighbour group"),
    Field("reduce_size", 96, "<u8", "bytes of every source"),
))  # fmt: skip

MAX_COPY: Final = 1 << 32
"""A copy has fewer bytes than this. Source: switch_schedule §7.5, high."""

COPY_MODES: Final[Mapping[EventType, int]] = MappingProxyType({
    EventType.EVT_REDUCE_COPY: 4,
    EventType.EVT_REDUCE_COPY_2: 4,
    EventType.EVT_REDUCE_WRITE: 0,
})  # fmt: skip
"""Event of a reduction -> its copy_mode: into scratch, or into the own output. Source: `MODES_SOURCE`."""

NO_LIMITS: Final = (0, 0, 0, 0)
_ARRAYS: Final = ("op_max_limit", "op_min_limit", "op_max_limit_sbuf", "op_min_limit_sbuf")
POINTERS_SOURCE: Final = Source("switch_schedule", "7.1, pointers are written as 0", CONVENTION)


@dataclass(frozen=True, slots=True)
class MeshEvent:
    """What a record says of one event of a rank, without its pointers."""

    type: EventType
    valid: bool
    sources: int
    destinations: int

    def encode(self) -> bytes:
        """Return the 40 bytes, with pointers of 0."""
        return MESH_EVENT.encode(
            src_n=self.sources, dst_n=self.destinations, valid=int(self.valid), evt_type=int(self.type)
        )


def encode_subtype(
    events: Sequence[MeshEvent], limits: Mapping[EncOp, tuple[int, int, int, int]], flags: Collection[str]
) -> bytes:
    """Return the 3016 bytes of a subtype, with pointers of 0.

    Args:
        events: in slot order, at most 64.
        limits: operation -> plain maximum and minimum, `_sbuf` maximum and minimum, in bytes.
        flags: names of the flags that are set.
    """
    assert len(events) <= MAX_EVENTS, "more events than a subtype holds"
    block = b"".join(event.encode() for event in events).ljust(EVENTS_SIZE, b"\0")
    every = [limits.get(EncOp(number), NO_LIMITS) for number in range(OP_TYPES)]
    arrays = {name: [limit[i] for limit in every] for i, name in enumerate(_ARRAYS)}
    kinds = {name: int(name in flags) for name in FLAGS}
    return SUBTYPE.encode(events=int.from_bytes(block, "little"), num_events=len(events), **arrays, **kinds)


def decode_events(data: bytes) -> tuple[MeshEvent, ...]:
    """Return the planned events of a subtype record.

    Raises:
        DecodeError: it is too short, has more than 64 events, or one of an unknown type.
    """
    count = SUBTYPE.decode(data)["num_events"]
    if not 0 <= count <= MAX_EVENTS:
        raise DecodeError("num_events of a subtype", offset=2560, expected=f"0 to {MAX_EVENTS}", got=str(count))
    found = []
    for start in range(0, count * MESH_EVENT.size, MESH_EVENT.size):
        each = MESH_EVENT.decode(data, start)
        kind = member(EventType, each["evt_type"], "evt_type of an event", start + 36)
        found.append(MeshEvent(kind, bool(each["valid"]), each["src_n"], each["dst_n"]))
    return tuple(found)
