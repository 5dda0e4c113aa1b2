"""The rows of network proxies as records: what the proxy of each stream processor sends, and what it receives.

A row of a proxy is one send entry of its rank and one receive entry of the member it reaches, both in the section of
the stream processor that runs the queue. Where things are is the caller's: addresses come from callables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rota.columns import I64, U64, Array, freeze_columns
from rota.errors import UsageError
from rota.facts import CONVENTION, Source
from rota.isa.network import (
    ENTRY_SIGNALS,
    LEAST_CREDITS,
    MOST_CREDITS,
    PROXY_QUEUE,
    NetworkSection,
    Operations,
    Receives,
    Sends,
    encode_network,
)
from rota.isa.semaphores import PARITIES, Window
from rota.schedule.ir import Schedule

DEFAULT_CREDITS: Final = 8
"""Sends of an operation that may be under way at once. Source: device §13, a window from 1 to 511; convention."""
CREDITS_SOURCE: Final = Source("device", "13, initial send credits", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class NetworkRun:
    """One collective of a program, as far as network proxies carry it.

    Attributes:
        schedule: what `with_proxies` made.
        member: of the program, for each rank of the schedule.
        entry: control entry of each row of the schedule; those of proxy rows are not looked at.
        processor: stream processor of a queue, the same on every member.
        unit: what one signal of each semaphore of the schedule adds on all folds together.
        element_size: bytes of an element.
        memory: address of (member, buffer of the schedule, offset), as the member sees it.
        semaphore: address of (member, semaphore of the schedule) in a window, as the member sees it.
        absent: members whose program leaves this collective out; neither they nor their partners have its records.
    """

    schedule: Schedule
    member: I64
    entry: I64
    processor: Callable[[I64], I64]
    unit: I64
    element_size: int
    memory: Callable[[I64, I64, I64], I64]
    semaphore: Callable[[I64, I64, Window], I64]
    absent: I64 = field(default_factory=lambda: np.zeros(0, np.int64))


def network_sections(
    runs: Sequence[NetworkRun],
    members: int,
    *,
    credits: int = DEFAULT_CREDITS,
) -> list[dict[int, bytes]]:
    """Return the section NETWORK of each stream processor of each member, by its index; none without a proxy row.

    Args:
        members: of the program.
        credits: sends of an operation that may be under way at once.

    Raises:
        UsageError: there are no such credits.
    """
    if not LEAST_CREDITS <= credits <= MOST_CREDITS:
        raise UsageError(f"{credits} send credits: expected {LEAST_CREDITS} to {MOST_CREDITS}")
    out: list[dict[int, bytes]] = [{} for _ in range(members)]
    parts = [_hops(run) for run in runs]
    hops = _Hops(*(np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True))) if parts else None
    if hops is None or not hops.sender.size:
        return out
    sp = hops.sp
    width = int(sp.max()) + 1
    sends = np.lexsort((hops.queue, hops.entry, sp, hops.sender))
    receives = np.lexsort((hops.sender, hops.queue, hops.entry, sp, hops.receiver))
    send_home, receive_home = hops.sender * width + sp, hops.receiver * width + sp
    for home in np.unique(np.concatenate((send_home, receive_home))).tolist():
        first, last = np.searchsorted(send_home[sends], (home, home + 1))
        begin, end = np.searchsorted(receive_home[receives], (home, home + 1))
        section = _section(hops, sends[first:last], receives[begin:end], credits)
        out[home // width][home % width] = encode_network(section)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Hops:
    """One entry per proxy row, in the order of the program; the row as its sender and its receiver have it."""

    sender: I64
    receiver: I64
    entry: I64
    queue: I64
    sp: I64
    handshake: I64
    unit: I64
    element_size: I64
    source: I64
    target: I64
    size: I64
    semaphore_0: I64
    semaphore_1: I64
    value_0: I64
    value_1: I64
    follows: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


def _columns(hops: _Hops) -> tuple[I64, ...]:
    return tuple(getattr(hops, name) for name in _Hops.__slots__)


def _hops(run: NetworkRun) -> _Hops:
    """Return the proxy rows of one collective."""
    schedule, rows = run.schedule, run.schedule.rows
    row = np.flatnonzero(rows.queue >= PROXY_QUEUE)
    row = row[np.argsort(schedule.lane[row], kind="stable")]
    sender = run.member[rows.rank[row]]
    source, target = schedule.sources, schedule.targets
    moves = rows.size[row] > 0
    from_, to = source.ptr[row[moves]], target.ptr[row[moves]]
    receiver, begin, end = np.full(row.size, -1, np.int64), *np.zeros((2, row.size), np.int64)
    receiver[moves] = run.member[target.rank[to]]
    begin[moves] = run.memory(sender[moves], _wide(source.buffer[from_]), source.offset[from_])
    end[moves] = run.memory(receiver[moves], _wide(target.buffer[to]), target.offset[to])
    signals = np.zeros((2, ENTRY_SIGNALS, row.size), np.int64)
    for k in range(ENTRY_SIGNALS):
        has = np.flatnonzero(np.diff(schedule.signals.ptr)[row] > k)
        one = schedule.signals.ptr[row[has]] + k
        semaphore = _wide(schedule.signals.semaphore[one])
        receiver[has] = run.member[schedule.signals.rank[one]]
        signals[0, k, has] = run.semaphore(receiver[has], semaphore, Window.INC)
        signals[1, k, has] = schedule.signals.add[one] * run.unit[semaphore]
    waits = np.diff(schedule.waits.ptr)[row] > 0
    first = np.maximum.accumulate(np.where(waits, np.arange(row.size), 0))  # row that waits, of the same origin
    awaited = _wide(schedule.waits.semaphore[schedule.waits.ptr[row[first]]])
    origin = np.cumsum(waits) - 1
    hops = _Hops(
        sender=sender,
        receiver=receiver,
        entry=run.entry[_origin(schedule, row[waits])][origin],
        queue=_wide(rows.queue[row]) - PROXY_QUEUE,
        sp=run.processor(_wide(rows.queue[row]) - PROXY_QUEUE),
        handshake=run.semaphore(sender, awaited, Window.READ),
        unit=run.unit[awaited],
        element_size=np.full(row.size, run.element_size),
        source=begin,
        target=end,
        size=rows.size[row],
        semaphore_0=signals[0, 0],
        semaphore_1=signals[0, 1],
        value_0=signals[1, 0],
        value_1=signals[1, 1],
        follows=(~waits).astype(np.int64),
    )
    return _between(hops, origin, run.absent) if run.absent.size else hops


def _between(hops: _Hops, origin: I64, absent: I64) -> _Hops:
    """Return the hops from and to those that are there; `origin` numbers the rows that they are of."""
    kept = np.flatnonzero(~np.isin(hops.sender, absent) & ~np.isin(hops.receiver, absent))
    columns = {name: getattr(hops, name)[kept] for name in _Hops.__slots__}
    columns["follows"] = (np.diff(origin[kept], prepend=-1) == 0).astype(np.int64)
    return _Hops(**columns)


def _wide(column: Array) -> I64:
    return column.astype(np.int64)


def _origin(schedule: Schedule, row: I64) -> I64:
    """Return the row that each of these proxy rows waits for: the k-th that adds to its semaphore, for the k-th.

    Args:
        row: lane by lane.
    """
    signals = schedule.signals
    net = np.zeros(max(len(schedule.semaphores), 1), np.bool_)
    net[schedule.waits.semaphore[schedule.waits.ptr[row]]] = True
    told = np.flatnonzero(net[signals.semaphore])
    told = told[np.argsort(schedule.lane[schedule.signal_row[told]], kind="stable")]
    origin = schedule.signal_row[told]
    same = np.array_equal(schedule.lane[origin] + PROXY_QUEUE, schedule.lane[row])
    assert same, "with_proxies tells a proxy of each row"
    return origin


def _section(hops: _Hops, sends: I64, receives: I64, credits: int) -> NetworkSection:
    """Return the records of one stream processor: these sends and receives, each by entry and queue."""
    sent, taken = _keys(hops, sends), _keys(hops, receives)
    keys = np.unique(np.concatenate((sent, taken)))
    first_send = np.searchsorted(sent, keys)
    first_receive = np.searchsorted(taken, keys)
    counts = np.diff(np.append(first_send, sends.size))
    has = counts > 0
    lead = np.full(keys.size, -1, np.int64)
    lead[has] = sends[first_send[has]]
    some = np.where(
        has, lead, receives[np.minimum(first_receive, max(receives.size - 1, 0))] if receives.size else lead
    )
    unit = hops.unit[some]
    shift = np.zeros(keys.size, np.int64)
    for parity in PARITIES:
        shift[unit == 1 << parity.shift] = parity.shift
    operations = Operations(
        entry=keys // PROXY_QUEUE,
        channel=keys % PROXY_QUEUE,
        handshake=np.where(has, hops.handshake[some], 0).astype(np.uint64),
        shift=shift,
        steps=unit >> shift,
        sends=counts,
        receives=np.diff(np.append(first_receive, receives.size)),
        credits=np.full(keys.size, credits),
        element_size=hops.element_size[some],
    )
    return NetworkSection(
        operations=operations,
        sends=Sends(
            rank=hops.receiver[sends],
            follows=hops.follows[sends],
            source=_address(hops.source[sends]),
            target=_address(hops.target[sends]),
            size=hops.size[sends],
            semaphore_0=_address(hops.semaphore_0[sends]),
            semaphore_1=_address(hops.semaphore_1[sends]),
            value_0=hops.value_0[sends].astype(np.uint32),
            value_1=hops.value_1[sends].astype(np.uint32),
        ),
        receives=Receives(
            rank=hops.sender[receives],
            target=_address(hops.target[receives]),
            size=hops.size[receives],
            semaphore_0=_address(hops.semaphore_0[receives]),
            semaphore_1=_address(hops.semaphore_1[receives]),
        ),
    )


def _keys(hops: _Hops, chosen: I64) -> I64:
    return hops.entry[chosen] * PROXY_QUEUE + hops.queue[chosen]


def _address(column: I64) -> U64:
    return column.astype(np.uint64)
