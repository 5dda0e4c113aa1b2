"""Hops between nodes that no address reaches: the schedule in which the network proxy of a rank carries them.

Each queue with such a hop gets a second one of the same rank, whose rows are what its network proxy does, one a row.
What they are as records is `network_records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from rota.columns import I64, Array, Bool, owners, pointers, ranges, running_count
from rota.emit.network_records import NetworkRun, network_sections
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa.network import ENTRY_SIGNALS, PROXY_QUEUE
from rota.schedule.ir import STORED, Buffer, Checks, Op, Places, Rows, Schedule, Semaphore, Signals, Waits

T = TypeVar("T", Places, Waits, Signals)
GRAIN: Final = 32
"""Data left for a proxy begin at multiples of so many bytes. Source: device-model §2, convention."""
PROXY_NAME: Final = "net.{}"
"""What the semaphore and the buffer between a queue and its proxy are called. Source: device §13, convention."""
PROXY_SOURCE: Final = Source("device", "13, proxies", CONVENTION)
__all__ = ["PROXY_QUEUE", "NetworkRun", "network_sections", "with_proxies"]


def with_proxies(schedule: Schedule, span: I64) -> Schedule:
    """Return the schedule in which nothing but a proxy writes to, or signals, a member of another span.

    A row with such a target leaves its data in a place of its own in the internal buffer `net.<queue>`, adds 1 to the
    semaphore of that name, and is followed by one row of the proxy for each target or pair of signals of each such
    member, of which the first waits for that. A plain copy out of a user buffer of its own rank is left to the proxy
    whole, where nobody writes those bytes later.

    Args:
        span: of each member; those of one number reach each other by addresses.

    Raises:
        UnsupportedError: a row reads what another span has, or a queue is a proxy's already.
    """
    far = _far(schedule, span)
    entries = _entries(schedule, far)
    _check(schedule, span)
    if not entries.row.size:
        return schedule
    carried = _carried(schedule, far)
    plan = _plan(schedule, entries, carried)
    return Schedule(
        ranks=schedule.ranks,
        buffers=(*schedule.buffers, *plan.buffers),
        semaphores=(*schedule.semaphores, *plan.semaphores),
        input=schedule.input,
        output=schedule.output,
        rows=_rows(schedule, entries, carried, plan),
        sources=_sources(schedule, entries, carried, plan),
        targets=_targets(schedule, far, entries, carried, plan),
        waits=_waits(schedule, entries, plan),
        signals=_signals(schedule, far, entries, plan),
        checks=schedule.checks,
    )


@dataclass(frozen=True, slots=True)
class _Far:
    """Which targets and signals are a proxy's, and the row of each target."""

    target_row: I64
    target: Bool
    signal: Bool


def _far(schedule: Schedule, span: I64) -> _Far:
    rank = schedule.rows.rank
    target_row = owners(schedule.targets.ptr)
    return _Far(
        target_row=target_row,
        target=span[schedule.targets.rank] != span[rank[target_row]],
        signal=span[schedule.signals.rank] != span[rank[schedule.signal_row]],
    )


def _check(schedule: Schedule, span: I64) -> None:
    high = np.flatnonzero(schedule.rows.queue >= PROXY_QUEUE)
    if high.size:
        name = schedule.name(int(high[0]))
        raise UnsupportedError(
            f"{name}: queues from {PROXY_QUEUE} on are those of network proxies", source=PROXY_SOURCE
        )
    row = owners(schedule.sources.ptr)
    far = np.flatnonzero(span[schedule.sources.rank] != span[schedule.rows.rank[row]])
    if far.size:
        name, rank = schedule.name(int(row[far[0]])), int(schedule.sources.rank[far[0]])
        raise UnsupportedError(
            f"{name}: reads what rank {rank} of another node has, and a network proxy only sends", source=PROXY_SOURCE
        )


@dataclass(frozen=True, slots=True)
class _Entries:
    """What the proxies do, one entry a proxy row, in the order of their rows; and the entry of each far thing.

    An entry has one target or none, and at most `ENTRY_SIGNALS` signals, which go with the last data of their member.
    """

    row: I64
    of_target: I64
    of_signal: I64


def _entries(schedule: Schedule, far: _Far) -> _Entries:
    target, signal = np.flatnonzero(far.target), np.flatnonzero(far.signal)
    row = np.concatenate((far.target_row[target], schedule.signal_row[signal]))
    member = np.concatenate((schedule.targets.rank[target], schedule.signals.rank[signal]))
    _, first, pair = np.unique(row * schedule.ranks + member, return_index=True, return_inverse=True)
    targets = np.bincount(pair[: target.size], minlength=first.size)
    number = np.concatenate(
        (
            running_count(pair[: target.size]),
            np.maximum(targets, 1)[pair[target.size :]] - 1 + running_count(pair[target.size :]) // ENTRY_SIGNALS,
        )
    )
    turn = np.empty(first.size, np.int64)  # members of a row in the order in which it names them
    turn[np.lexsort((first, row[first]))] = np.arange(first.size)
    width = int(number.max(initial=0)) + 1
    _, at, entry = np.unique(turn[pair] * width + number, return_index=True, return_inverse=True)
    return _Entries(row=row[at], of_target=entry[: target.size], of_signal=entry[target.size :])


@dataclass(frozen=True, slots=True)
class _Carried:
    """Rows whose data a proxy carries: `whole` where it takes them from the source itself, else from a bounce place."""

    whole: Bool
    bounced: Bool


def _carried(schedule: Schedule, far: _Far) -> _Carried:
    rows, sources = schedule.rows, schedule.sources
    moves = np.zeros(len(schedule), np.bool_)
    moves[far.target_row[far.target]] = True
    near = np.zeros(len(schedule), np.bool_)
    near[far.target_row[~far.target]] = True
    user = np.array([buffer.user for buffer in schedule.buffers], np.bool_)
    whole = moves & ~near & (rows.op == Op.NONE)
    row = np.flatnonzero(whole)
    source = sources.ptr[row]
    row = row[user[sources.buffer[source]] & (sources.rank[source] == rows.rank[row])]
    whole[:] = False
    whole[row[~_written_later(schedule, row, far.target_row)]] = True
    return _Carried(whole=whole, bounced=moves & ~whole)


def _written_later(schedule: Schedule, row: I64, target_row: I64) -> Bool:
    """Return whether a later row writes a byte that the only source of each of these rows names.

    Where the stored order is no execution, every row counts as later.
    """
    sources, targets, size = schedule.sources, schedule.targets, schedule.rows.size
    base = pointers(np.array([buffer.size for buffer in schedule.buffers]))
    begin = targets.rank.astype(np.int64) * base[-1] + base[targets.buffer] + targets.offset
    end = begin + size[target_row]
    edges = np.unique(np.concatenate((begin, end)))
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    latest = np.full(edges.size, -1, np.int64)
    by = target_row if schedule.checks is not Checks.FORM else np.full(target_row.size, len(schedule))
    np.maximum.at(latest, ranges(first, last - first), np.repeat(by, last - first))
    source = sources.ptr[row]
    begin = sources.rank[source].astype(np.int64) * base[-1] + base[sources.buffer[source]] + sources.offset[source]
    first = np.maximum(np.searchsorted(edges, begin, side="right") - 1, 0)
    last = np.searchsorted(edges, begin + size[row])
    count = np.maximum(last - first, 0)
    found = np.full(row.size, -1, np.int64)
    np.maximum.at(found, np.repeat(np.arange(row.size), count), latest[ranges(first, count)])
    return found > row


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where everything goes: rows and entries in the new order, and what is between a queue and its proxy.

    Attributes:
        place: of each old row.
        proxy: place of each entry.
        queue: those that have a proxy, ascending; their semaphores follow the declared ones in that order.
        offset: in the bounce buffer, of each old row that has a place there.
        buffer: of each queue by number, where it has a bounce buffer.
    """

    place: I64
    proxy: I64
    semaphore: I64
    buffer: I64
    offset: I64
    buffers: tuple[Buffer, ...]
    semaphores: tuple[Semaphore, ...]


def _plan(schedule: Schedule, entries: _Entries, carried: _Carried) -> _Plan:
    rows = schedule.rows
    before = pointers(np.bincount(entries.row, minlength=len(schedule)))[:-1]
    place = np.arange(len(schedule)) + before
    queues = np.unique(rows.queue[entries.row]).astype(np.int64)
    semaphore = np.zeros(PROXY_QUEUE, np.int64)
    semaphore[queues] = len(schedule.semaphores) + np.arange(queues.size)
    offset, end = _bounce(schedule, np.flatnonzero(carried.bounced))
    bounced = np.flatnonzero(end)
    buffer = np.zeros(PROXY_QUEUE, np.int64)
    buffer[bounced] = len(schedule.buffers) + np.arange(bounced.size)
    most = 1 << 8 * np.dtype(STORED[Places]["buffer"]).itemsize
    if len(schedule.buffers) + bounced.size > most:
        raise UnsupportedError(f"{bounced.size} queues leave data for a proxy, and a schedule has {most} buffers")
    return _Plan(
        place=place,
        proxy=np.arange(entries.row.size) + entries.row + 1,
        semaphore=semaphore,
        buffer=buffer,
        offset=offset,
        buffers=tuple(Buffer(PROXY_NAME.format(queue), int(end[queue])) for queue in bounced.tolist()),
        semaphores=tuple(Semaphore(PROXY_NAME.format(queue)) for queue in queues.tolist()),
    )


def _bounce(schedule: Schedule, row: I64) -> tuple[I64, I64]:
    """Return the place of the data of these rows in the buffer of their queue, by row, and its size, by queue."""
    room = -(-schedule.rows.size[row] // GRAIN) * GRAIN
    order = np.argsort(schedule.lane[row], kind="stable")
    lane, total = schedule.lane[row][order], pointers(room[order])
    first = np.searchsorted(lane, lane)
    offset, end = np.zeros(len(schedule), np.int64), np.zeros(PROXY_QUEUE, np.int64)
    offset[row[order]] = total[:-1] - total[first]
    np.maximum.at(end, schedule.rows.queue[row], offset[row] + room)
    return offset, end


def _rows(schedule: Schedule, entries: _Entries, carried: _Carried, plan: _Plan) -> Rows:
    old = schedule.rows
    of = np.repeat(np.arange(len(schedule)), 1 + np.bincount(entries.row, minlength=len(schedule)))
    columns = {name: getattr(old, name)[of] for name in Rows.__slots__}
    has_data = np.zeros(entries.row.size, np.bool_)
    has_data[entries.of_target] = True
    columns["queue"][plan.proxy] += PROXY_QUEUE
    columns["op"][plan.proxy] = Op.NONE
    columns["size"][plan.proxy[~has_data]] = 0
    columns["size"][plan.place[carried.whole]] = 0
    return Rows(**columns)


def _sources(schedule: Schedule, entries: _Entries, carried: _Carried, plan: _Plan) -> Places:
    """Rows keep their sources, but for those that a proxy does whole; a proxy reads the source, or the bounce place."""
    rows, old = schedule.rows, schedule.sources
    owner = owners(old.ptr)
    keep = ~carried.whole[owner]
    entry = np.unique(entries.of_target)
    row = entries.row[entry]
    whole = carried.whole[row]
    source = np.where(whole, old.ptr[row], 0)
    taken = (
        rows.rank[row],
        np.where(whole, old.buffer[source], plan.buffer[rows.queue[row]]),
        np.where(whole, old.offset[source], plan.offset[row]),
    )
    kept = (old.rank[keep], old.buffer[keep], old.offset[keep])
    return _table(Places, len(schedule) + entries.row.size, (plan.place[owner[keep]], kept), (plan.proxy[entry], taken))


def _targets(schedule: Schedule, far: _Far, entries: _Entries, carried: _Carried, plan: _Plan) -> Places:
    """Rows keep their near targets and write their bounce place; a proxy has the far target of its entry."""
    old, row = schedule.targets, np.flatnonzero(carried.bounced)
    near, away = ~far.target, far.target
    queue = schedule.rows.queue[row]
    return _table(
        Places,
        len(schedule) + entries.row.size,
        (plan.place[far.target_row[near]], (old.rank[near], old.buffer[near], old.offset[near])),
        (plan.place[row], (schedule.rows.rank[row], plan.buffer[queue], plan.offset[row])),
        (plan.proxy[entries.of_target], (old.rank[away], old.buffer[away], old.offset[away])),
    )


def _waits(schedule: Schedule, entries: _Entries, plan: _Plan) -> Waits:
    """Rows keep their waits; the first proxy row of each waits for it, and the others come behind that."""
    old = schedule.waits
    row, first = np.unique(entries.row, return_index=True)
    one = np.ones(row.size, np.int64)
    return _table(
        Waits,
        len(schedule) + entries.row.size,
        (plan.place[schedule.wait_row], (old.semaphore, old.at_least, old.subtract)),
        (plan.proxy[first], (plan.semaphore[schedule.rows.queue[row]], one, one)),
    )


def _signals(schedule: Schedule, far: _Far, entries: _Entries, plan: _Plan) -> Signals:
    """Rows keep their near signals and tell their proxy that they are done; a proxy has those of its entry."""
    old, rows = schedule.signals, schedule.rows
    near, away = ~far.signal, far.signal
    row = np.unique(entries.row)
    one = np.ones(row.size, np.int64)
    return _table(
        Signals,
        len(schedule) + entries.row.size,
        (plan.place[schedule.signal_row[near]], (old.rank[near], old.semaphore[near], old.add[near])),
        (plan.place[row], (rows.rank[row], plan.semaphore[rows.queue[row]], one)),
        (plan.proxy[entries.of_signal], (old.rank[away], old.semaphore[away], old.add[away])),
    )


def _table(kind: type[T], rows: int, *parts: tuple[I64, tuple[Array, ...]]) -> T:
    """Return a CSR table of these entries, each part as the row of each and its columns; in order within a row."""
    ptr, *stored = STORED[kind].values()
    row = np.concatenate([part[0] for part in parts])
    order = np.argsort(row, kind="stable")
    columns = zip(*(part[1] for part in parts), strict=True)
    first = pointers(np.bincount(row, minlength=rows)).astype(ptr)
    return kind(first, *(np.concatenate(c)[order].astype(t) for c, t in zip(columns, stored, strict=True)))
