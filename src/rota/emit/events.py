"""Event lists: what a stream processor does for a mesh, as 80-byte records.

A record first starts descriptors or increments semaphores itself, and then waits. A batch that waits for several
semaphores, or for what was started before it, has records that only wait. Source: device-model §5.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, owners
from rota.emit.launches import DIRECT, Launches
from rota.emit.placement import Placement
from rota.emit.signals import Homes
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa.config import MESH_EVENT
from rota.isa.semaphores import PARITIES, Window
from rota.schedule.ir import Schedule

RECORD: Final = MESH_EVENT.dtype
WAIT_SOURCE: Final = Source("device-model", "5.5", CONVENTION)
_FOR_SEMAPHORE, _FOR_OWN, _FIRES, _AT_END = range(4)  # in this order within a start


@dataclass(frozen=True, slots=True, eq=False)
class EventLists:
    """The records of all lists, list after list.

    Attributes:
        lane, activity: of each list. ptr: its records; the terminator is not among them.
        records: structured array of `config.MESH_EVENT`.
    """

    lane: I64
    activity: I64
    ptr: I64
    records: Array


def event_lists(
    schedule: Schedule,
    starts: Launches,
    owner: I64,
    homes: Homes,
    *,
    at: Placement,
    member: I64,
    mask: I64,
) -> EventLists:
    """Return the event lists of all lanes.

    Args:
        mask: engines of each queue.

    Raises:
        UnsupportedError: a row waits in a way that no event does.
    """
    mesh = np.flatnonzero(~starts.ring)
    walk = starts.walk
    token = _tokens(schedule, starts, owner, mesh, homes)
    joins = np.zeros(token.start.size, np.bool_)
    joins[1:] = ~token.fires[1:] & token.fires[:-1] & (np.diff(walk[token.start]) == 0)
    record = np.cumsum(~joins) - 1
    records = np.zeros(int(record[-1]) + 1 if record.size else 0, RECORD)
    fires = np.flatnonzero(token.fires)
    _fire(records, record[fires], token.start[fires], schedule, starts, owner, homes, at, member, mask)
    waits = np.flatnonzero(~token.fires)
    _wait(records, record[waits], token, waits, starts, at, member)
    records["event_type"][record[::-1]] = token.event[::-1]
    of_record = np.zeros(records.size, np.int64)
    of_record[record] = walk[token.start]
    lists, first = np.unique(walk[mesh], return_index=True)
    ptr = np.append(np.searchsorted(of_record, lists), records.size)
    return EventLists(starts.lane[mesh[first]], starts.activity[mesh[first]], ptr, records)


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """Of each list, in order, the starts and the waits; `sp`, `identity` and `value` are those of a wait."""

    start: I64
    fires: Bool
    sp: I64
    identity: I64
    value: I64
    event: I64


def _tokens(schedule: Schedule, starts: Launches, owner: I64, mesh: I64, homes: Homes) -> _Tokens:
    """Each batch waits for its semaphores, if fenced for what was started before, and starts; a list ends waiting."""
    table = schedule.waits
    row = owners(table.ptr)
    is_mesh = np.append(~starts.ring, False)
    chosen = np.flatnonzero(is_mesh[owner[row]] & (owner[row] >= 0))
    _check_waits(schedule, row[chosen], chosen)
    start = owner[row[chosen]]
    semaphore = table.semaphore[chosen].astype(np.int64)
    fenced = mesh[starts.fence[mesh]]
    fired = mesh[starts.dma[mesh] | starts.direct[mesh]]
    walk = starts.walk
    told = mesh[starts.completes[mesh]]  # is waited for by the next fence, or else at the end of the list
    behind = np.searchsorted(fenced, told, side="right")
    next_fence = np.append(fenced, -1)[behind]
    met = (behind < fenced.size) & (walk[next_fence] == walk[told])
    final = np.flatnonzero(starts.last)
    end = final[np.searchsorted(final, told[~met])]  # the last start of its list
    columns = (
        _waits(_FOR_SEMAPHORE, start, homes.sp[semaphore], homes.identity[semaphore], table.at_least[chosen]),
        _own(_FOR_OWN, fenced, starts, homes),
        _waits(_FIRES, fired, *np.zeros((3, fired.size), np.int64)),
        _own(_AT_END, end, starts, homes),
    )
    phase, at, sp, identity, value = (np.concatenate(each) for each in zip(*columns, strict=True))
    order = np.lexsort((phase, at))
    event = schedule.rows.event[starts.first[at]].astype(np.int64)
    return _Tokens(at[order], (phase == _FIRES)[order], sp[order], identity[order], value[order], event[order])


def _check_waits(schedule: Schedule, row: I64, chosen: I64) -> None:
    """Refuse waits that no event can do.

    Raises:
        UnsupportedError: one does not subtract what it waits for, or waits for more than an event counts.
    """
    at_least, subtract = schedule.waits.at_least[chosen], schedule.waits.subtract[chosen]
    most = min(parity.mask for parity in PARITIES)
    wrong = (at_least != subtract) | (at_least > most)
    if wrong.any():
        one = int(np.argmax(wrong))
        raise UnsupportedError(
            f"{schedule.name(int(row[one]))}: waits for {at_least[one]} and takes {subtract[one]}; an event takes what "
            f"it waits for, at most {most}",
            source=WAIT_SOURCE,
        )


def _waits(phase: int, start: I64, sp: I64, identity: I64, value: Array) -> tuple[I64, I64, I64, I64, I64]:
    return np.full(start.size, phase), start, sp, identity, value.astype(np.int64)


def _own(phase: int, start: I64, starts: Launches, homes: Homes) -> tuple[I64, I64, I64, I64, I64]:
    """Return waits for the completion of what a list has started."""
    activity = starts.activity[start]
    return _waits(phase, start, homes.compl_sp[activity], homes.compl_identity[activity], np.ones(start.size, np.int64))


def _fire(
    records: Array, record: I64, start: I64, schedule: Schedule, starts: Launches, owner: I64, homes: Homes,
    at: Placement, member: I64, mask: I64,
) -> None:  # fmt: skip
    moved = starts.dma[start]
    here, started = record[moved], start[moved]
    queue = starts.queue[started]
    core = at.lane[member[starts.rank[started]]] * at.lnc
    records["dma_trigger"][here] = 1
    records["leg0_mask"][here] = mask[queue]
    records["leg0_m2s_tail_ptr"][here] = at.doorbell(core, queue, receive=False)
    records["leg0_s2m_tail_ptr"][here] = at.doorbell(core, queue, receive=True)
    told, started = record[~moved], start[~moved]
    records["direct_trigger"][told] = 1
    signals, row = schedule.signals, schedule.signal_row
    chosen = np.flatnonzero((owner[row] >= 0) & starts.direct[owner[row]])
    chosen = chosen[np.argsort(owner[row[chosen]], kind="stable")]
    of = owner[row[chosen]]
    place = np.arange(of.size) - np.searchsorted(of, of)
    assert (place < DIRECT).all()
    semaphore = signals.semaphore[chosen].astype(np.int64)
    issuer, peer = member[starts.rank[of]], member[signals.rank[chosen].astype(np.int64)]
    address = at.semaphore(peer, homes.sp[semaphore], homes.identity[semaphore], Window.INC, issuer)
    slot = np.zeros(starts.lane.size, np.int64)
    slot[started] = told
    records["direct_trigger_sema"][slot[of], place] = address.astype(np.uint64)


def _wait(
    records: Array, record: I64, token: _Tokens, chosen: I64, starts: Launches, at: Placement, member: I64
) -> None:
    own = member[starts.rank[token.start[chosen]]]
    records["wait_event"][record] = 1
    records["wait_val"][record] = token.value[chosen]
    address = at.semaphore(own, token.sp[chosen], token.identity[chosen], Window.READ, own)
    records["event_wait_sema"][record] = address.astype(np.uint64)
