"""A whole program as images: many collectives, of several groups, one after another on the same ranks.

Collectives of one shape share semaphores, channel records and scratch; others have their own. A chain of control
entries is started once: the legs of a collective, and successive collectives that both run on one and the same
stream processor of every rank. Source: device-model §4 and §5.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, pointers
from rota.emit.allocation import Allocator, Shape, presets
from rota.emit.barriers import barrier_views
from rota.emit.collective import RING_SIZE, Collective, Emitted, Plan, plan, split, write
from rota.emit.image import pack_image
from rota.emit.network import NetworkRun, network_sections
from rota.emit.order import OMITTED, Orders, check_orders, entries_in_order, first_entries, places
from rota.emit.placement import Placement, place
from rota.emit.processors import Entry, processor_sections
from rota.emit.streams import by_stream, check_streams
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa import arch as isa
from rota.isa.barrier_records import FEEDS
from rota.isa.descriptors import FIRST_PHASE, RING_ID_SHIFT
from rota.isa.dtypes import size_of
from rota.isa.image import BUFFER, META, PRESET, BufferUse, Section
from rota.isa.semaphores import FIRST_FREE, Window
from rota.machine.platform import Platform
from rota.schedule.ir import Buffer

DEFAULT_FOLDS: Final = 2
FOLDS_SOURCE: Final = Source("device-model", "1, folds", CONVENTION)
PROXY_FOLDS: Final = 1  # Source: device-model §5.2, two rows in flight, convention
POD_FOLDS: Final = 1  # of a ring that crosses from node to node of a pod. Source: device §4, high


@dataclass(frozen=True, slots=True)
class Declared:
    """A buffer of every rank of a program."""

    buffer: Buffer
    use: BufferUse


@dataclass(frozen=True, slots=True)
class Resources:
    """What a program takes: of each rank, or in all where it says so."""

    collectives: int
    communicators: int  # groups that the rank with most of them is in
    entries: int
    chains: int
    streams: int
    channels: int
    semaphores: int  # of the stream processor that has most
    events: int  # records, likewise
    rings: int  # descriptor rings of all ranks
    descriptors: int  # of all ranks
    memory: int  # bytes
    barrier: str  # who brings the ranks together: device, host or none


@dataclass(frozen=True, slots=True)
class Program:
    """The images of a program, one a member, what it takes, and how many control entries each collective has."""

    images: tuple[bytes, ...]
    resources: Resources
    entries: tuple[int, ...]


def emit_program(
    collectives: Sequence[Collective],
    ranks: I64,
    buffers: Sequence[Declared],
    platform: Platform,
    *,
    folds: int = DEFAULT_FOLDS,
    extra: Sequence[tuple[Section, int, bytes]] = (),
    orders: Orders | None = None,
    partitions: Sequence[Sequence[Sequence[int]]] | None = None,
) -> Program:
    """Return the loadable images of a program.

    Args:
        collectives: in program order, stream after stream; no two streams use a buffer that one of them writes.
        ranks: machine rank of each member.
        buffers: what every member's memory holds.
        folds: DMA queues each channel spreads its rows over.
        extra: sections that every image has.
        partitions: groups of each collective, machine ranks, for the barrier that brackets the program; None for none.
        orders: members that do the collectives in another order, or not all of them; no device does that rightly.

    Raises:
        UnsupportedError: the program needs more than the machine, or this version, has.
        UsageError: there is nothing to load, or the folds are no number of engines.
    """
    if not 1 <= folds <= isa.ENGINES:
        raise UsageError(f"{folds} folds: expected 1 to {isa.ENGINES}")
    if not any(len(each.schedule) for each in collectives):
        raise UsageError("the schedule has no rows: there is nothing to load")
    at = place(ranks, [declared.buffer for declared in buffers], platform)
    collectives, at, on = by_stream(collectives, at)
    allocator = Allocator(at.sps)
    shapes: dict[int, Shape] = {}
    for each in collectives:
        if each.shape not in shapes:
            shapes[each.shape] = allocator.shape(each.schedule, split(each), on[each.stream])
            check_streams(shapes[each.shape], at)
    plans = [
        plan(each, shapes[each.shape], at, folds=_folds(each, shapes[each.shape], at, folds)) for each in collectives
    ]
    feeds, words = _feeds(plans, ranks.size)
    emitted = [write(each, feed, at) for each, feed in zip(plans, words, strict=True)]
    orders = orders or {}
    check_orders(orders, len(plans), ranks.size)
    rooms = places(plans, orders)
    entries = entries_in_order(plans, range(len(plans)), rooms) if orders else _entries(plans, ranks.size)
    own = {member: entries_in_order(plans, order, rooms) for member, order in orders.items()}
    walks = _walks_of(emitted)
    start = _presets(plans, ranks.size)
    common = [(Section.BUFFERS, 0, _buffers(buffers, at)), *extra]
    rings = _Rings(emitted, ranks.size)
    each_has = [own.get(member, entries) for member in range(ranks.size)]
    proxies = network_sections(_runs(plans, each_has, at), ranks.size)
    views, by_host = ((), "") if partitions is None else barrier_views(partitions, ranks, platform, at)
    images = []
    for member in range(ranks.size):
        view = views[member] if views else None
        sections = [
            (Section.META, 0, _meta(member, at, max(each.folds for each in plans), entries)),
            *processor_sections(member, emitted, each_has[member], walks, at, barrier=view.config if view else b""),
            *rings.sections(member, orders.get(member, range(len(plans)))),
            *((Section.NETWORK, sp, data) for sp, data in sorted(proxies[member].items())),
            *common,
            *([(Section.MEM, FEEDS, view.page)] if view and view.page else []),
            *([(Section.MEM, isa.FEED_WORDS, feeds[member].astype("<u4").tobytes())] if feeds[member].size else []),
            *([(Section.SEMA, 0, start[member])] if start[member] else []),
        ]
        images.append(pack_image(sections))
    listed = {each.plan.of.shape: int(np.diff(each.lists.ptr).max(initial=-1)) + 1 for each in emitted}
    resources = Resources(
        collectives=len(plans),
        communicators=_communicators(collectives),
        entries=len(entries),
        chains=sum(not entry.chained for entry in entries),
        streams=at.streams,
        channels=len(allocator.channels),
        semaphores=max(allocator.next_id) - FIRST_FREE,
        events=sum(listed.values()),
        rings=rings.count,
        descriptors=rings.descriptors,
        memory=at.memory_size,
        barrier="none" if not views else "host" if by_host else "device",
    )
    return Program(tuple(images), resources, tuple(rooms))


def _communicators(collectives: Sequence[Collective]) -> int:
    """Return how many groups the member that is in most of them is in."""
    groups = {tuple(members) for each in collectives for members in each.groups}
    count: dict[int, int] = {}
    for members in groups:
        for member in members:
            count[member] = count.get(member, 0) + 1
    return max(count.values(), default=0)


def _folds(collective: Collective, shape: Shape, at: Placement, folds: int) -> int:
    """Return the folds of a collective: one for a ring that crosses from node to node of a pod.

    One as well where a network proxy is told by an event list, which has several starts under way, or of several hops
    at once: parts of two signals must not be taken for a whole one.
    """
    ring = [activity.ring for activity in shape.parts.table]
    schedule = collective.schedule
    told = shape.parts.of_semaphore[schedule.signals.semaphore] < 0
    if collective.proxied and (not all(ring) or (schedule.signals.add[told] > 1).any()):
        return PROXY_FOLDS
    if not any(ring):
        return folds
    targets, signals = collective.schedule.targets, collective.schedule.signals
    row = np.repeat(np.arange(len(collective.schedule)), np.diff(targets.ptr))
    pairs = np.concatenate(
        (
            np.stack([collective.schedule.rows.rank[row], targets.rank]),
            np.stack([collective.schedule.rows.rank[collective.schedule.signal_row], signals.rank]),
        ),
        axis=1,
    ).astype(np.int64)
    one, other = collective.member[pairs]
    crosses = (at.span[one] == at.span[other]) & (at.node[one] != at.node[other])
    return POD_FOLDS if crosses.any() and at.pods else folds


def _feeds(plans: Sequence[Plan], members: int) -> tuple[list[I64], list[I64]]:
    """Return the distinct values that each member's packets add, ascending, and which of them each packet adds."""
    rank = [each.of.member[each.starts.rank[each.told.launch]] for each in plans]
    keys = np.concatenate([r << 32 | each.told.value for r, each in zip(rank, plans, strict=True)])
    found, index = np.unique(keys, return_inverse=True)
    start = np.searchsorted(found, np.arange(members + 1) << 32)
    most = int(np.diff(start).max(initial=0))
    if most > isa.FEED_WORD_COUNT:
        raise UnsupportedError(f"{most} different signal values: the feed area holds {isa.FEED_WORD_COUNT}")
    feeds = [found[start[m] : start[m + 1]] & 0xFFFFFFFF for m in range(members)]
    words = index.reshape(-1) - start[np.concatenate(rank)]
    ends = pointers(np.array([each.size for each in rank]))
    return feeds, [words[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _entries(plans: Sequence[Plan], members: int) -> list[Entry]:
    """Return the control entries: those of one collective are chained, and collectives where that orders them."""
    out: list[Entry] = []
    for i, each in enumerate(plans):
        count = each.parts.entries
        chained = i + 1 < len(plans) and _chains(each, plans[i + 1], members)
        out += [Entry(i, number, chained or number + 1 < count) for number in range(count)]
    return out


def _chains(one: Plan, other: Plan, members: int) -> bool:
    """Say whether two collectives may be chained: all ranks take part in both, each with one and the same processor."""
    homes = {each.shape.on.sp(activity.queue) for each in (one, other) for activity in each.parts.table}
    everyone = all(np.unique(each.of.member[each.starts.rank]).size == members for each in (one, other))
    return len(homes) == 1 and everyone


def _runs(plans: Sequence[Plan], entries: Sequence[Sequence[Entry]], at: Placement) -> list[NetworkRun]:
    """Return the collectives as network proxies see them; `entries` are those of each member."""
    if not any(each.of.proxied for each in plans):
        return []
    first = np.array([first_entries(each, len(plans)) for each in entries], np.int64)
    return [_run(each, first[:, i], at) for i, each in enumerate(plans) if each.of.proxied]


def _run(each: Plan, first: I64, at: Placement) -> NetworkRun:
    homes, buffers = each.shape.homes(folds=each.folds, parity=each.parity), at.buffers[each.of.buffers]
    table = np.array([activity.entry for activity in each.parts.table], np.int64)

    def memory(member: I64, buffer: I64, offset: I64) -> I64:
        return at.memory(member, member) + buffers[buffer] + offset

    def semaphore(member: I64, which: I64, window: Window) -> I64:
        return at.semaphore(member, homes.sp[which], homes.identity[which], window, member)

    return NetworkRun(
        schedule=each.of.schedule,
        member=each.of.member,
        entry=first[each.of.member[each.of.schedule.rows.rank]] + table[each.parts.of_row],
        processor=each.shape.on.sp,
        unit=homes.unit,
        element_size=size_of(each.of.dtype),
        memory=memory,
        semaphore=semaphore,
        absent=np.flatnonzero(first == OMITTED),
    )


def _walks_of(emitted: Sequence[Emitted]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for i, each in enumerate(emitted):
        for walk, member in enumerate(each.walks.member.tolist()):
            found.setdefault((i, member), []).append(walk)
    return found


def _presets(plans: Sequence[Plan], members: int) -> list[bytes]:
    """Return the presets of each member: of the semaphores that something of it waits on."""
    found: list[dict[tuple[int, int], int]] = [{} for _ in range(members)]
    for each in plans:
        if each.of.turn:
            continue
        value = presets(each.of.schedule, each.shape, folds=each.folds)
        waits = each.of.schedule.waits
        waiting = each.of.member[each.of.schedule.rows.rank[each.of.schedule.wait_row].astype(np.int64)]
        for semaphore in np.flatnonzero(value > 0).tolist():
            place = int(each.shape.sp[semaphore]), int(each.shape.identity[semaphore])
            for member in np.unique(waiting[waits.semaphore == semaphore]).tolist():
                found[member][place] = int(value[semaphore])
    return [b"".join(PRESET.encode(sp=sp, id=i, value=v) for (sp, i), v in sorted(each.items())) for each in found]


class _Rings:
    """The rings of all members: what each collective puts there, one after another, with the phases of their places."""

    def __init__(self, emitted: Sequence[Emitted], members: int) -> None:
        self.pieces: list[dict[int, list[tuple[int, Array, Array]]]] = [{} for _ in range(members)]
        self.descriptors = 0
        for number, each in enumerate(emitted):
            rings, mask = each.rings, each.plan.mask
            member = each.plan.of.member[rings.lane >> 8].tolist()
            queue = (rings.lane & 255).tolist()
            tx_ptr, rx_ptr = rings.tx_ptr.tolist(), rings.rx_ptr.tolist()
            for lane, (owner, q) in enumerate(zip(member, queue, strict=True)):
                engine = (int(mask[q]) & -int(mask[q])).bit_length() - 1
                for fold in range(rings.folds):
                    section = lane * rings.folds + fold
                    if tx_ptr[section] == tx_ptr[section + 1]:
                        continue
                    place = (engine + fold) * isa.QUEUES + q % isa.QUEUES
                    tx = rings.tx[tx_ptr[section] : tx_ptr[section + 1]]
                    rx = rings.rx[rx_ptr[section] : rx_ptr[section + 1]]
                    self.pieces[owner].setdefault(place, []).append((number, tx, rx))
            self.descriptors += rings.tx.size + rings.rx.size
        self.count = 2 * sum(map(len, self.pieces))

    def sections(self, member: int, order: Sequence[int]) -> Iterator[tuple[Section, int, bytes]]:
        """Yield the TX and RX sections of a member that does the collectives in this order."""
        turn = {number: i for i, number in enumerate(order)}
        for index, every in self.pieces[member].items():
            pieces = sorted((piece for piece in every if piece[0] in turn), key=lambda piece: turn[piece[0]])
            for kind, side in ((Section.TX, 1), (Section.RX, 2)) if pieces else ():
                ring = np.concatenate([piece[side] for piece in pieces])
                phase = (FIRST_PHASE + np.arange(ring.size) // RING_SIZE) & 3
                ring["len_ctrl"] |= (phase << RING_ID_SHIFT).astype(np.uint32)
                yield kind, index, ring.tobytes()


def _buffers(buffers: Sequence[Declared], at: Placement) -> bytes:
    return b"".join(
        BUFFER.encode(
            name=int.from_bytes(_name(i, each.buffer.name), "little"),
            offset=int(at.buffers[i]),
            size=each.buffer.size,
            use=each.use,
        )
        for i, each in enumerate(buffers)
    )


def _name(number: int, name: str) -> bytes:
    """Return the name of a buffer as its field holds it: of one too long its beginning, and its number."""
    data, most = name.encode(), BUFFER.dtype["name"].itemsize
    tag = f"~{number}".encode()
    return data if len(data) <= most else data[: most - len(tag)] + tag


def _meta(member: int, at: Placement, folds: int, entries: Sequence[Entry]) -> bytes:
    return META.encode(
        arch_id=at.arch.arch_id,
        rank=member,
        ranks=at.chip.size,
        chip=int(at.chip[member]),
        lane=int(at.lane[member]),
        lnc=at.lnc,
        stream_processors=at.sps,
        streams=at.streams,
        folds=folds,
        operations=len(entries),
        ring_size=RING_SIZE,
        memory_size=at.memory_size,
        chains=sum(not entry.chained for entry in entries),
        span=int(at.span[member]),
    )
