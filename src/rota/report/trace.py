"""What the device model did, step by step: one line of JSON for each step that fired, and when each rank was at work.

A tick is a wave of steps that fire at once, or one step of the random order. Nothing here runs: `Device.run_program`
says which steps fired, and the program what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rota.columns import I64, pointers
from rota.device.dma import DATA, Items
from rota.device.model import Device
from rota.device.program import Kind, Program
from rota.machine.partition import format_ranks

_PLACE: Final = {
    Kind.HOST: '"chain":{place}',
    Kind.WALK: '"part":"{part}"',
    Kind.CHANNEL: '"channel":{channel},"row":{place}',
    Kind.EVENTS: '"event":{place}',
    Kind.SEND_PROXY: '"channel":{channel},"send":{place}',
    Kind.RECEIVE_PROXY: '"channel":{channel},"receive":{place}',
}
"""How a line says where in its machine a step is."""
_LINE: Final = (
    '{{"tick":{tick},"rank":{rank},"top_sp":{top_sp},"entry":{entry},"collective":{collective},'
    '"machine":"{machine}",PLACE,"bytes":{bytes}}}'
)
_PARTS: Final = ("begin", "end")  # of a control entry, as a walk comes to it
_WORKERS: Final = (Kind.CHANNEL, Kind.EVENTS, Kind.SEND_PROXY, Kind.RECEIVE_PROXY)
_BLOCK: Final = 1 << 14  # lines made at a time


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One entry per step that fired, in the order in which they did.

    Attributes:
        rank: of the machine.
        top_sp: on its chip; -1 of a host. entry, collective: -1 where it is of none, or where nobody knows.
        kind: of its machine. channel: -1 where it has none.
        place: the row, event, send, receive or chain it is about; of a walk, 0 to begin an entry and 1 to end it.
        bytes: what the descriptors that it starts write, on all their targets.
    """

    tick: I64
    rank: I64
    top_sp: I64
    entry: I64
    collective: I64
    kind: I64
    channel: I64
    place: I64
    bytes: I64


@dataclass(frozen=True, slots=True)
class Span:
    """When some ranks were at work for a collective: the first and last tick of steps of their channels and lists."""

    collective: int
    first: int
    last: int
    ranks: tuple[int, ...]


def trace_of(device: Device, ranks: Sequence[int], entries: Sequence[int], fired: Sequence[tuple[int, I64]]) -> Trace:
    """Return what fired, as columns.

    Args:
        ranks: machine rank of each image.
        entries: control entries of each collective, which follow one another; none where nobody knows.
        fired: ticks and the steps that fired in them, as a device tells its observer.
    """
    program, world = device.program, device.world
    step = np.concatenate([np.zeros(0, np.int64), *(steps for _, steps in fired)])
    tick = np.repeat([tick for tick, _ in fired], [steps.size for _, steps in fired]).astype(np.int64)
    at = program.machine[step]
    image, sp, kind = program.machines.image[at], program.machines.sp[at], program.machines.kind[at]
    entry = program.entry(step)
    of_entry = np.append(np.repeat(np.arange(len(entries)), entries), -1)
    known = np.where((entry >= 0) & (entry < of_entry.size - 1), entry, of_entry.size - 1)
    walks = kind == Kind.WALK
    return Trace(
        tick=tick,
        rank=np.array(ranks, np.int64)[image],
        top_sp=np.where(sp < 0, -1, world.lane[image] * world.sps + sp),
        entry=entry,
        collective=of_entry[known].astype(np.int64),
        kind=kind,
        channel=program.machines.channel[at],
        place=np.where(walks, (step - program.machines.step[at]) % len(_PARTS), program.place[step]),
        bytes=bytes_of_steps(program, device.items)[step],
    )


def bytes_of_steps(program: Program, items: Items) -> I64:
    """Return the bytes that each step's descriptors write, those of signals and padding not counted."""
    size = np.where(items.kind == DATA, items.size, 0)
    more = np.bincount(items.more_item, minlength=items.count)
    before = pointers(size * (1 + more))
    folds = program.folds
    written = before[folds.item + folds.count] - before[folds.item]
    step = program.launches.step[folds.launch]
    return np.bincount(step, written, program.steps).astype(np.int64)


def trace_lines(trace: Trace) -> Iterator[str]:
    """Yield the line of each step: one JSON object, its fields always in the same order."""
    forms = {kind: _LINE.replace("PLACE", place) for kind, place in _PLACE.items()}
    for start in range(0, trace.tick.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        columns = (trace.tick, trace.rank, trace.top_sp, trace.entry, trace.collective, trace.kind, trace.channel)
        rows = zip(*(column[block].tolist() for column in (*columns, trace.place, trace.bytes)), strict=True)
        for tick, rank, top_sp, entry, collective, kind, channel, place, size in rows:
            yield forms[Kind(kind)].format(
                tick=tick,
                rank=rank,
                top_sp=_known(top_sp),
                entry=_known(entry),
                collective=_known(collective),
                machine=Kind(kind).name.lower(),
                channel=channel,
                place=place,
                part=_PARTS[place % len(_PARTS)],
                bytes=size,
            )


def _known(number: int) -> str:
    return "null" if number < 0 else str(number)


def spans(trace: Trace) -> tuple[Span, ...]:
    """Return when ranks were at work for each collective; ranks with equal ticks together, the earliest first."""
    chosen = np.flatnonzero(np.isin(trace.kind, _WORKERS) & (trace.collective >= 0))
    if not chosen.size:
        return ()
    pairs = np.stack([trace.collective[chosen], trace.rank[chosen]], axis=1)
    found, owner = np.unique(pairs, axis=0, return_inverse=True)
    owner, tick = owner.reshape(-1), trace.tick[chosen]
    first = np.full(found.shape[0], np.iinfo(np.int64).max)
    last = np.zeros(found.shape[0], np.int64)
    np.minimum.at(first, owner, tick)
    np.maximum.at(last, owner, tick)
    together: dict[tuple[int, int, int], list[int]] = {}
    for (collective, rank), begin, end in zip(found.tolist(), first.tolist(), last.tolist(), strict=True):
        together.setdefault((collective, begin, end), []).append(rank)
    return tuple(Span(*key, tuple(ranks)) for key, ranks in sorted(together.items()))


def ticks(trace: Trace) -> int:
    """Return how many ticks there were, up to the last step."""
    return int(trace.tick[-1]) + 1 if trace.tick.size else 0


def trace_json(trace: Trace, name: str) -> dict[str, Any]:
    """Return the record of a trace for a JSON document; `name` is how the document calls it."""
    records = [
        {"collective": each.collective, "first": each.first, "last": each.last, "ranks": list(each.ranks)}
        for each in spans(trace)
    ]
    return {"file": name, "steps": int(trace.tick.size), "ticks": ticks(trace), "spans": records}


def span_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the record of a trace: when which ranks were at work."""
    yield f"# trace {record['file']}: {record['steps']} steps in {record['ticks']} ticks"
    yield f"# {'collective':>10} {'first':>8} {'last':>8} ranks"
    for each in record["spans"]:
        yield f"  {each['collective']:>10} {each['first']:>8} {each['last']:>8} {format_ranks(each['ranks'])}"
