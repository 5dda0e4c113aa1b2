"""What the stream processors load: control tables, slot programs and device configurations.

Channel c runs on stream processor S - 1 - c mod S of its rank, so that channel 0 is on the highest, which reports; the
processors that take part complete in ascending order. Source: device-model §4 and §5.4, conventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array
from rota.emit.placement import ROLES, DeviceRows, Placement
from rota.emit.rings import Rings
from rota.errors import UnsupportedError
from rota.isa.config import CONFIGURATIONS, DMA_ALLOCATIONS, PROGRAM_BLOCK, RING_CHANNEL, NeighbourType
from rota.isa.enums import Algorithm, Pattern
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.semaphores import Reserved, Window
from rota.isa.spad import (
    SLOT,
    SLOT_REGION_SIZE,
    Control,
    SlotFlag,
    algo_type,
    control_base,
    pack_control,
    pack_end,
    slot_bases,
)

_MAX_REPEAT: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Per channel of the whole schedule: the member a rank sends to and the one it receives from."""

    following: I64
    preceding: I64


def processor_sections(
    member: int, rings: Rings, rows: DeviceRows, at: Placement, neighbours: Neighbours, algorithm: Algorithm
) -> Iterator[tuple[Section, int, bytes]]:
    """Yield (kind, index, bytes) of the control, slot and configuration sections of one member.

    Raises:
        UnsupportedError: a slot program is longer than its region, or the member has no rows at all.
    """
    mine = np.flatnonzero(rings.rank == member)
    if not mine.size:
        raise UnsupportedError(f"member {member} has no rows: this version loads every member of the operation")
    processor = at.sp(rings.queue[mine])
    active = np.unique(processor)
    report = int(active[-1])
    completion = _semaphore(at, member, report, Reserved.COMPLETION, Window.INC)
    for sp in range(at.sps):
        channels = mine[processor == sp]
        entry = _control(rings.queue[channels], sp, active, algorithm)
        yield Section.CTRL, sp, pack_control(entry)
        for k in channels.tolist():
            slot = int(at.slot(rings.queue[k : k + 1])[0])
            program = slot_program(rings, rows, k) + pack_end([completion])
            if len(program) > SLOT_REGION_SIZE:
                raise UnsupportedError(
                    f"TOP_SP {sp} slot {slot} overflow: the program has {len(program)} bytes, the region "
                    f"{SLOT_REGION_SIZE}; use a smaller size"
                )
            yield Section.SLOT, sp * SLOTS_PER_SP + slot, program
        yield Section.CONF, sp, _configuration(member, sp, channels, active, rings, at, neighbours)


def slot_program(rings: Rings, rows: DeviceRows, channel: int) -> bytes:
    """Return the slot entries of a channel, equal successive rows in one entry, without the final mark."""
    start = rows.channel_start
    first = int(start[channel])
    last = int(start[channel + 1]) if channel + 1 < start.size else rows.rank.size
    span = slice(first, last)
    flags = (
        rows.last[span] * SlotFlag.LAST_ROW
        + ~rows.receives[span] * SlotFlag.NO_RECEIVE
        + ~rows.sends[span] * SlotFlag.NO_SEND
    )
    table = np.stack([rings.m2s[span], rings.s2m[span], flags.astype(np.int64)])
    fresh = np.ones(last - first, np.bool_)
    fresh[1:] = (table[:, 1:] != table[:, :-1]).any(axis=0)
    fresh |= (
        np.arange(last - first) - np.maximum.accumulate(np.where(fresh, np.arange(last - first), 0))
    ) % _MAX_REPEAT == 0
    begin = np.flatnonzero(fresh)
    out = np.zeros(begin.size, SLOT.dtype)
    out["m2s_val"], out["s2m_val"], out["flags"] = table[:, begin]
    out["repeat"] = np.diff(np.append(begin, last - first))
    return out.tobytes()


def _control(channels: Array, sp: int, active: Array, algorithm: Algorithm) -> Control:
    if not channels.size:
        return Control(pattern=Pattern.INVALID)
    return Control(
        pattern=Pattern.RING,
        algo_type=algo_type(algorithm),
        reporter=sp == active[-1],
        ring_wait_complete=sp != active[0],
        ring_send_complete=sp != active[-1],
        channel_list=int(np.bitwise_or.reduce(1 << channels)),
    )


def _configuration(
    member: int, sp: int, channels: Array, active: Array, rings: Rings, at: Placement, neighbours: Neighbours
) -> bytes:
    layout = CONFIGURATIONS[at.arch.name]
    out = bytearray(layout.size)
    mask = (1 << rings.folds) - 1
    for k in channels.tolist():
        channel = int(rings.queue[k])
        record = layout.part("ring").at + channel * RING_CHANNEL.size
        out[record : record + RING_CHANNEL.size] = _channel(k, member, sp, rings, at, neighbours)
    higher = active[active > sp]
    taking_part = channels.size > 0
    own_block = at.arch.semaphores(int(at.lane[member]) * at.sps + sp)
    pairs = [(int(queue) % 16, mask) for queue in rings.queue[channels]]
    block = PROGRAM_BLOCK.encode(
        dma_alloc_bitmap=[n for pair in pairs for n in pair] + [0, 0] * (DMA_ALLOCATIONS - len(pairs)),
        slot_spad_base=slot_bases(own_block),
        ctrl_spad_base=control_base(own_block),
        trigger=_semaphore(at, member, sp, Reserved.TRIGGER, Window.READ),
        trigger_next=_semaphore(at, member, sp, Reserved.TRIGGER, Window.INC),
        complete=_semaphore(at, member, int(higher[0]), Reserved.COMPLETE_PREV, Window.INC)
        if taking_part and higher.size
        else 0,
        complete_prev=_semaphore(at, member, sp, Reserved.COMPLETE_PREV, Window.READ),
        op_num=1,
        function_n=1,
        tpb_compl_addr_num=1,
        leader=int(sp == active[-1]),
    )
    start = layout.part("program").at
    out[start : start + PROGRAM_BLOCK.size] = block
    return bytes(out)


def _channel(k: int, member: int, sp: int, rings: Rings, at: Placement, neighbours: Neighbours) -> bytes:
    channel = int(rings.queue[k])
    core = int(at.lane[member]) * at.lnc
    ids = {
        role: _semaphore(at, member, sp, int(at.semaphore_id(rings.queue[k : k + 1], np.array([i]))[0]), Window.READ)
        for i, role in enumerate(ROLES)
    }
    return RING_CHANNEL.encode(
        next_fold_n=rings.folds,
        next_type=_type(at, member, int(neighbours.following[k])),
        prev_fold_n=rings.folds,
        prev_type=_type(at, member, int(neighbours.preceding[k])),
        recv_sema=ids["recv"],
        send_sema=ids["credit"],
        post_sema=ids["post"],
        dma_compl_sema=ids["compl"],
        m2s_tail_ptr=at.arch.doorbell(core, channel % 16, receive=False),
        s2m_tail_ptr=at.arch.doorbell(core, channel % 16, receive=True),
        mask=(1 << rings.folds) - 1,
        channel_id=channel,
        spad_slot_idx=int(at.slot(rings.queue[k : k + 1])[0]),
        fold_n=rings.folds,
    )


def _type(at: Placement, member: int, peer: int) -> NeighbourType:
    return NeighbourType.LOCAL if at.chip[member] == at.chip[peer] else NeighbourType.POINT_TO_POINT


def _semaphore(at: Placement, member: int, sp: int, identity: int, window: Window) -> int:
    one = np.array([member], np.int64)
    return int(at.semaphore(one, np.array([sp]), np.array([int(identity)]), window, one)[0])
