"""What the stream processors load: control tables, slot programs and device configurations.

A collective is one control entry for each of its legs, chained; entries of collectives follow each other. On every
processor that has no part in an entry stands an inactive one, so that all advance together. At the end of a chain the
processors that took part complete in ascending order, and the highest posts; inside a chain nothing orders them.
Source: device-model §4 and §5.4, conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rota.emit.collective import Emitted
from rota.emit.placement import Placement
from rota.errors import UnsupportedError
from rota.isa import arch as isa
from rota.isa.barrier_records import HOME_SP
from rota.isa.config import (
    CONFIGURATIONS,
    DEVICE_BITS,
    DEVICE_IDS,
    DMA_ALLOCATIONS,
    MESH_EVENT,
    PROGRAM_BLOCK,
    RING_CHANNEL,
    Configuration,
    NeighbourType,
)
from rota.isa.enums import Algorithm, Pattern
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.semaphores import PARITIES, STRIDE, Reserved, Window
from rota.isa.spad import (
    CONTINUE,
    CONTROL_REGION_SIZE,
    ENTRY_SIZE,
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
from rota.isa.streams import stream_of

_MAX_REPEAT: Final = 0xFFFF
_ROLES: Final = ("recv_sema", "send_sema", "post_sema", "dma_compl_sema")


@dataclass(frozen=True, slots=True)
class Entry:
    """One control entry of the program: which collective, which of its entries, and whether the next one is chained."""

    collective: int
    number: int
    chained: bool


@dataclass(slots=True)
class _Processor:
    """What one stream processor of one member has so far."""

    control: list[Control] = field(default_factory=list)
    slots: dict[int, list[bytes | int]] = field(default_factory=dict)  # an int is the entry whose mark stands there
    channels: dict[int, bytes] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    lists: dict[bytes, int] = field(default_factory=dict)
    bundles: dict[tuple[int, int], None] = field(default_factory=dict)
    complete: int = 0
    busy: bool = False  # has taken part in the chain that is under way
    leads: bool = False


def processor_sections(
    member: int,
    emitted: Sequence[Emitted],
    entries: Sequence[Entry],
    walks: dict[tuple[int, int], list[int]],
    at: Placement,
    *,
    barrier: bytes = b"",
) -> Iterator[tuple[Section, int, bytes]]:
    """Yield (kind, index, bytes) of the control, slot and configuration sections of one member.

    Args:
        walks: of each (collective, member), the walks of that collective.
        barrier: configuration of the program's barrier, for the home processor.

    Raises:
        UnsupportedError: a table is longer than its region.
    """
    processors = [_Processor() for _ in range(at.sps)]
    reporters: list[int | None] = []
    for entry in entries:
        reporters.append(
            _add_entry(
                member, entry, emitted[entry.collective], walks.get((entry.collective, member), []), processors, at
            )
        )
    for sp, processor in enumerate(processors):
        control = b"".join(pack_control(each) for each in processor.control)
        if len(control) > CONTROL_REGION_SIZE:
            raise UnsupportedError(
                f"control block overflow: {len(entries)} entries, the region takes {CONTROL_REGION_SIZE // ENTRY_SIZE}"
            )
        yield Section.CTRL, sp, control
        for slot, pieces in sorted(processor.slots.items()):
            program = b"".join(
                each if isinstance(each, bytes) else _mark(member, each, processor, entries, reporters, at)
                for each in pieces
            )
            if len(program) > SLOT_REGION_SIZE:
                raise UnsupportedError(
                    f"TOP_SP {sp} slot {slot} overflow: the program has {len(program)} bytes, the region "
                    f"{SLOT_REGION_SIZE}; use a smaller size"
                )
            yield Section.SLOT, sp * SLOTS_PER_SP + slot, program
        yield (
            Section.CONF,
            sp,
            _configuration(member, sp, processor, len(entries), at, barrier=barrier if sp == HOME_SP else b""),
        )


def _add_entry(
    member: int, entry: Entry, done: Emitted, mine: list[int], processors: list[_Processor], at: Placement
) -> int | None:
    """Add one control entry to every processor of a member; return the one that reports it, or None."""
    table = done.plan.parts.table
    here: dict[int, list[int]] = {}
    for walk in mine:
        activity = table[int(done.walks.activity[walk])]
        if activity.entry == entry.number:
            here.setdefault(done.plan.shape.on.sp(activity.queue), []).append(walk)
    for sp, processor in enumerate(processors):
        if processor.busy and not entry.chained:
            here.setdefault(sp, [])  # the end of a chain is posted when all have come there that took part
        processor.busy = entry.chained and (processor.busy or sp in here)
    active = sorted(here)
    for sp, processor in enumerate(processors):
        if sp not in here:
            processor.control.append(Control(pattern=Pattern.INVALID, trigger_next=entry.chained))
            continue
        ring = bool(here[sp]) and table[int(done.walks.activity[here[sp][0]])].ring
        common = Control(
            pattern=Pattern.RING if ring else Pattern.MESH,
            algo_type=algo_type(table[int(done.walks.activity[here[sp][0]])].algorithm if here[sp] else Algorithm.MESH),
            trigger_next=entry.chained,
            reporter=sp == active[-1],
            ring_wait_complete=sp != active[0] and not entry.chained,
            ring_send_complete=sp != active[-1] and not entry.chained,
        )
        if common.ring_send_complete:
            following = _semaphore(at, member, active[active.index(sp) + 1], Reserved.COMPLETE_PREV, Window.INC)
            if processor.complete not in (0, following):
                raise UnsupportedError(
                    f"TOP_SP {sp}: passes its completion on to two processors in one program, and has one address for "
                    "it; use queues that follow each other"
                )
            processor.complete = following
        processor.control.append(_fill(member, sp, common, done, here[sp], processor, at, len(processor.control)))
    if active:
        stream = stream_of(np.arange(at.sps), at.streams, at.sps)
        for sp in np.flatnonzero(stream == stream[active[-1]]).tolist():
            processors[sp].leads = sp == active[-1]
    return active[-1] if active else None


def _fill(
    member: int,
    sp: int,
    common: Control,
    done: Emitted,
    walks: list[int],
    processor: _Processor,
    at: Placement,
    entry: int,
) -> Control:
    """Add the slot entries, records and events of one processor in one entry; return its control entry."""
    plan, rings = done.plan, done.rings
    channels = 0
    for walk in walks:
        first, last = int(done.walks.start[walk]), int(done.walks.start[walk + 1])
        activity = int(done.walks.activity[walk])
        queue = plan.parts.table[activity].queue
        processor.bundles.setdefault((queue % isa.QUEUES, int(plan.mask[queue])))
        if common.pattern is Pattern.RING:
            record = int(plan.shape.channel[activity])
            channels |= 1 << record
            slot = plan.shape.on.slot(queue)
            processor.slots.setdefault(slot, []).extend((ring_program(done, first, last), entry))
            processor.channels[record] = _channel(member, sp, done, walk, at)
            continue
        chosen = np.flatnonzero(plan.starts.dma[first:last]) + first
        program = np.zeros(chosen.size, SLOT.dtype)
        program["m2s_val"], program["s2m_val"], program["repeat"] = rings.m2s[chosen], rings.s2m[chosen], 1
        program["flags"][-1:] = SlotFlag.LAST_ROW
        processor.slots.setdefault(0, []).extend((program.tobytes(), entry))
        number = int(
            np.flatnonzero((done.lists.lane == plan.starts.lane[first]) & (done.lists.activity == activity))[0]
        )
        records = done.lists.records[done.lists.ptr[number] : done.lists.ptr[number + 1]].tobytes()
        return _mesh(common, processor, records, plan.parity, at)
    if common.pattern is Pattern.RING:
        return replace(common, channel_list=channels)
    processor.slots.setdefault(0, []).extend((b"", entry))
    return _mesh(common, processor, b"", plan.parity, at)


def _mesh(common: Control, processor: _Processor, records: bytes, parity: int, at: Placement) -> Control:
    """Put an event list into the table, unless it stands there already.

    Raises:
        UnsupportedError: the table is full.
    """
    data = records + bytes(MESH_EVENT.size)
    if data not in processor.lists:
        most = CONFIGURATIONS[at.arch.name].part("mesh").count
        first = sum(map(len, processor.events)) // MESH_EVENT.size
        if first + len(data) // MESH_EVENT.size > most:
            wanted = first + len(data) // MESH_EVENT.size
            raise UnsupportedError(f"mesh event overflow: {wanted} records on one TOP_SP, {at.arch.name} has {most}")
        processor.events.append(data)
        processor.lists[data] = first
    shift = PARITIES[parity]
    return replace(common, first_event=processor.lists[data], sema_shift_offset=shift.shift, sema_mask=shift.mask)


def ring_program(done: Emitted, first: int, last: int) -> bytes:
    """Return the slot entries of a channel's starts, equal successive rows in one entry, without the mark."""
    starts, rings = done.plan.starts, done.rings
    span = slice(first, last)
    flags = (
        ~starts.receives[span] * SlotFlag.NO_RECEIVE
        + ~starts.sends[span] * SlotFlag.NO_SEND
        + starts.wait_peers[span] * SlotFlag.WAIT_PEERS
        + starts.signal_peers[span] * SlotFlag.SIGNAL_PEERS
    )
    flags[-1] += SlotFlag.LAST_ROW
    table = np.stack([rings.m2s[span], rings.s2m[span], flags.astype(np.int64)])
    index = np.arange(last - first)
    fresh = np.ones(last - first, np.bool_)
    fresh[1:] = (table[:, 1:] != table[:, :-1]).any(axis=0)
    fresh |= (index - np.maximum.accumulate(np.where(fresh, index, 0))) % _MAX_REPEAT == 0
    begin = np.flatnonzero(fresh)
    out = np.zeros(begin.size, SLOT.dtype)
    out["m2s_val"], out["s2m_val"], out["flags"] = table[:, begin]
    out["repeat"] = np.diff(np.append(begin, last - first))
    return out.tobytes()


def _mark(
    member: int,
    entry: int,
    processor: _Processor,
    entries: Sequence[Entry],
    reporters: Sequence[int | None],
    at: Placement,
) -> bytes:
    """Return what ends the part of a slot program that belongs to an entry."""
    if entries[entry].chained:
        following = replace(processor.control[entry + 1], reporter=False)
        return CONTINUE.to_bytes(ENTRY_SIZE, "little") + pack_control(following)
    reporter = reporters[entry]
    assert reporter is not None
    return pack_end([_semaphore(at, member, reporter, Reserved.COMPLETION, Window.INC)])


def _configuration(
    member: int, sp: int, processor: _Processor, entries: int, at: Placement, *, barrier: bytes
) -> bytes:
    layout = CONFIGURATIONS[at.arch.name]
    out = bytearray(layout.size)
    for record, data in processor.channels.items():
        start = layout.part("ring").at + record * RING_CHANNEL.size
        out[start : start + RING_CHANNEL.size] = data
    events = b"".join(processor.events)
    start = layout.part("mesh").at
    out[start : start + len(events)] = events
    block = _block(member, sp, processor, entries, at, barrier=barrier)
    start = layout.part("program").at
    out[start : start + PROGRAM_BLOCK.size] = block
    core = (int(at.lane[member]) * at.sps + sp) // at.arch.sps_per_core
    start = layout.part("device_ids").at
    device = int(at.chip[member]) & DEVICE_BITS
    out[start : start + DEVICE_IDS.size] = DEVICE_IDS.encode(tpb_id=core, dev_id=device)
    return bytes(out)


def _block(member: int, sp: int, processor: _Processor, entries: int, at: Placement, *, barrier: bytes) -> bytes:
    own_block = at.arch.semaphores(int(at.lane[member]) * at.sps + sp)
    pairs = _bundles(processor, CONFIGURATIONS[at.arch.name])[:DMA_ALLOCATIONS]
    return PROGRAM_BLOCK.encode(
        dma_alloc_bitmap=[n for pair in pairs for n in pair] + [0, 0] * (DMA_ALLOCATIONS - len(pairs)),
        slot_spad_base=slot_bases(own_block),
        ctrl_spad_base=control_base(own_block),
        barrier_configs=int.from_bytes(barrier, "little"),
        trigger=_semaphore(at, member, sp, Reserved.TRIGGER, Window.READ),
        trigger_next=_semaphore(at, member, sp, Reserved.TRIGGER, Window.INC),
        complete=processor.complete,
        complete_prev=_semaphore(at, member, sp, Reserved.COMPLETE_PREV, Window.READ),
        op_num=entries,
        function_n=1,
        tpb_compl_addr_num=1,
        leader=int(processor.leads),
    )


def _bundles(processor: _Processor, layout: Configuration) -> list[tuple[int, int]]:
    """Return queue and engines of all channels in order of their records, then of the events."""
    found: dict[tuple[int, int], None] = {}
    for _, data in sorted(processor.channels.items()):
        record = RING_CHANNEL.decode(data)
        found.setdefault((_queue(record["m2s_tail_ptr"]), record["mask"]))
    table = np.frombuffer(b"".join(processor.events), layout.part("mesh").layout.dtype)
    for tail, mask in zip(table["leg0_m2s_tail_ptr"].tolist(), table["leg0_mask"].tolist(), strict=True):
        if mask:
            found.setdefault((_queue(tail), mask))
    return list(found)


def _queue(tail: int) -> int:
    """Return the queue whose tail register is at an address."""
    return (tail - isa.TAIL_INCREMENT >> isa.QUEUE_SHIFT) % (2 * isa.QUEUES) - 1


def _channel(member: int, sp: int, done: Emitted, walk: int, at: Placement) -> bytes:
    plan, walks = done.plan, done.walks
    activity = int(walks.activity[walk])
    queue = plan.parts.table[activity].queue
    core = int(at.lane[member]) * at.lnc
    own = plan.shape.own[activity].tolist()
    ids = {role: _semaphore(at, member, sp, own[i], Window.READ) for i, role in enumerate(_ROLES)}
    kangaring: dict[str, int | list[int]] = {}
    if plan.parts.table[activity].kangaring:
        peers = [int(peer) for peer in walks.peers[walk] if peer >= 0]
        kangaring = {
            "kangaring_mine": _semaphore(at, member, sp, own[4], Window.READ),
            "kangaring_peers": [_far(at, peer, sp, own[4], member) for peer in peers] + [0] * (3 - len(peers)),
            "kangaring_is_primary": int(walks.primary[walk]),
            "kangaring_num_peers": _peers(done, activity),
        }
    mask = int(plan.mask[queue])
    return RING_CHANNEL.encode(
        next_fold_n=plan.folds,
        next_type=_type(at, member, int(walks.following[walk])),
        prev_fold_n=plan.folds,
        prev_type=_type(at, member, int(walks.preceding[walk])),
        **ids,
        **kangaring,
        m2s_tail_ptr=at.doorbell(core, queue, receive=False),
        s2m_tail_ptr=at.doorbell(core, queue, receive=True),
        mask=mask,
        channel_id=int(plan.shape.channel[activity]),
        spad_slot_idx=plan.shape.on.slot(queue),
        fold_n=plan.folds,
    )


def _peers(done: Emitted, activity: int) -> int:
    """Return how many peers a primary of a KangaRing channel has."""
    homes = done.plan.parts.homes
    chosen = done.walks.primary & (homes[done.walks.activity] == homes[activity])
    return int((done.walks.peers[chosen] >= 0).sum(axis=1).max(initial=1))


def _type(at: Placement, member: int, peer: int) -> NeighbourType:
    if at.pods and at.span[member] == at.span[peer] and at.node[member] != at.node[peer]:
        return NeighbourType.POINT_TO_POINT_POD
    same = at.span[member] == at.span[peer] and at.chip[member] == at.chip[peer]
    return NeighbourType.LOCAL if same else NeighbourType.POINT_TO_POINT


def _semaphore(at: Placement, member: int, sp: int, identity: int, window: Window) -> int:
    return _far(at, member, sp, identity, member, window)


def _far(at: Placement, member: int, sp: int, identity: int, viewer: int, window: Window = Window.INC) -> int:
    block = at.arch.semaphores(int(at.lane[member]) * at.sps + sp)
    local = block + int(window) + int(identity) * STRIDE
    return int(isa.route(local, int(at.chip[member]), int(at.chip[viewer])))
