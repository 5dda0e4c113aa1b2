"""The machines of network proxies, behind all others: what sends, and what receives.

A send proxy does the sends of one operation in order. When the data of one are there and it has a credit, it moves
them, and behind them a notice to the receiver. A receive proxy, one for each operation and rank that sends to it, takes
the notices in order, adds the signals and returns the credit. A control entry is over only when each of its send
proxies has all its credits back; nobody waits for a receive proxy. Source: device §13, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from rota.columns import I64, Array, owners, pointers, running_count
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.launches import SECTIONS
from rota.device.network import NOWHERE, Hops
from rota.device.program import WHOLE, Adds, Folds, Gates, Kind, Launches, Machines, Program
from rota.device.world import World

NAMES: Final = ("the start of its control entry", "a credit of its window", "a notice of the network")
"""How messages call the counters of proxies: to start, credits, and what arrives."""


def add_proxies(world: World, items: Items, program: Program, hops: Hops | None) -> tuple[Items, Program]:
    """Return items and program with those of network proxies behind them; the same where there is no hop."""
    if hops is None:
        return items, program
    counters = _Counters(program, hops)
    inserted = _Inserted(items, hops, counters)
    return inserted.items, _extended(world, program, hops, counters, inserted)


class _Counters:
    """Counters of proxies behind those that are there; a receive proxy is a group of hops.

    Attributes:
        group: receive proxy of each hop; first: its first hop. Groups are numbered in the order of their first hops.
    """

    def __init__(self, program: Program, hops: Hops) -> None:
        ranks = int(hops.receiver.max(initial=0)) + 1
        _, first, group = np.unique(hops.operation * ranks + hops.receiver, return_index=True, return_inverse=True)
        self.group, self.first = group.reshape(-1), first
        operations = hops.operations.count
        self.start = program.semaphores + np.arange(operations)
        self.credit = self.start + operations
        self.arrived = program.semaphores + 2 * operations + np.arange(first.size)
        self.end = program.semaphores + 2 * operations + first.size
        begins = (self.start, self.credit, self.arrived)
        self.names = tuple((int(each[0]), name) for each, name in zip(begins, NAMES, strict=True) if each.size)


class _Inserted:
    """The items of all hops put among the others, as one more queue of each operation behind the rings of its rank.

    Attributes:
        items: all of them. section: of each operation; item, count: of each hop.
    """

    def __init__(self, items: Items, hops: Hops, counters: _Counters) -> None:
        operations = hops.operations
        moves = (hops.size > 0).astype(np.int64)
        self.count = 1 + moves
        hop = np.repeat(np.arange(moves.size), self.count)
        last = np.cumsum(self.count) - 1
        data = np.ones(hop.size, np.bool_)
        data[last] = False
        before = np.searchsorted(items.sections[:, 0], operations.image, side="right")  # section it is put before
        at = items.section_ptr[before]  # item it is put before
        place = at[hops.operation][hop]
        self._shift = at[hops.operation]
        self._place, self._before = place, before
        self.section = before + np.arange(before.size)
        self.item = self._shift + last + 1 - self.count
        new = {
            "kind": np.where(data, DATA, SIGNAL),
            "operation": np.zeros(hop.size, np.int64),
            "size": np.where(data, hops.size[hop], 4),
            "target": np.where(data, hops.target[hop], counters.arrived[counters.group][hop]),
            "value": np.where(data, 0, 1),
            "strong": data,
            "barrier": np.zeros(hop.size, np.bool_),
            "first": np.ones(hop.size, np.bool_),
        }
        columns: dict[str, Any] = {name: _insert(getattr(items, name), place, added) for name, added in new.items()}
        sources = np.diff(items.source_ptr)
        columns["source_ptr"] = pointers(_insert(sources, place, data.astype(np.int64)))
        columns["source"] = _insert(items.source, items.source_ptr[place[data]], hops.source[hop[data]])
        if items.scale.size:
            columns["scale"] = _insert(items.scale, items.source_ptr[place[data]], np.ones(int(data.sum())))
        for name in ("tx_ptr", "rx_ptr"):
            columns[name] = pointers(_insert(np.diff(getattr(items, name)), place, np.zeros(hop.size, np.int64)))
        many = np.diff(operations.send)
        length = np.bincount(hops.operation, self.count, operations.count).astype(np.int64)
        assert (many > 0).all(), "an operation without sends has no queue"
        columns["section_ptr"] = pointers(_insert(np.diff(items.section_ptr), before, length))
        number = np.stack([operations.image, SECTIONS + running_count(operations.image)], axis=1)
        columns["sections"] = np.insert(items.sections, before, number, axis=0)
        for name in ("tx_offset", "rx_offset"):
            columns[name] = _insert(getattr(items, name), before, operations.offset)
        columns["more_item"] = self.moved(items.more_item)
        self.items = replace(items, **columns)

    def moved(self, item: I64) -> I64:
        """Return where items are now."""
        return item + np.searchsorted(self._place, item, side="right")

    def moved_section(self, section: I64) -> I64:
        """Return where sections are now."""
        return section + np.searchsorted(self._before, section, side="right")


def _insert(column: Array, at: I64, added: Array) -> Array:
    return np.insert(column, at, added.astype(column.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Where the steps of proxies are.

    Attributes:
        first: of each machine, send proxies before receive proxies; one longer.
        send, receive: of each hop. begin, end: of each send proxy.
    """

    first: I64
    send: I64
    receive: I64
    begin: I64
    end: I64


def _steps(program: Program, hops: Hops, counters: _Counters) -> _Steps:
    """A send proxy has a step to start, one a send, and one to end; a receive proxy has one a receive."""
    operations = hops.operations
    counts = np.concatenate((np.diff(operations.send) + 2, np.bincount(counters.group, minlength=counters.first.size)))
    first = program.steps + pointers(counts)
    begin = first[: operations.count]
    group = first[operations.count : -1]
    return _Steps(
        first=first,
        send=begin[hops.operation] + 1 + np.arange(hops.size.size) - operations.send[hops.operation],
        receive=group[counters.group] + running_count(counters.group),
        begin=begin,
        end=first[1 : operations.count + 1] - 1,
    )


def _extended(world: World, program: Program, hops: Hops, counters: _Counters, inserted: _Inserted) -> Program:
    operations, steps = hops.operations, _steps(program, hops, counters)
    processor = operations.image * world.sps + operations.sp
    walk = np.flatnonzero(program.machines.kind == Kind.WALK)[processor]
    entered = program.machines.step[walk] + 2 * operations.entry
    total = int(steps.first[-1])
    ended = world.semaphores + processor
    semaphore = hops.semaphore
    told, k = np.nonzero(semaphore != NOWHERE)
    operation = hops.operation
    zero = np.zeros(total, np.int64)
    place = np.concatenate((program.place, zero[program.steps :]))
    place[steps.send] = steps.send - steps.begin[operation] - 1
    place[steps.end] = np.diff(operations.send) - 1
    place[steps.receive] = running_count(counters.group)
    gates = _Blocks(6)
    gates.keep(program.gates, Gates)
    _raise_ends(gates, program, entered + 1, ended)
    gates.add(steps.begin, counters.start, 0, WHOLE, 1, 1, 0)
    lead = np.flatnonzero(hops.leads)
    step, unit = steps.send[lead], operations.unit[operation[lead]]
    gates.add(step, operations.handshake[operation[lead]], 0, WHOLE, unit, unit, place[step])
    gates.add(steps.send, counters.credit[operation], 0, WHOLE, 1, 1, place[steps.send])
    gates.add(steps.end, counters.credit, 0, WHOLE, operations.credits, operations.credits, place[steps.end])
    gates.add(steps.receive, counters.arrived[counters.group], 0, WHOLE, 1, 1, place[steps.receive])
    adds = _Blocks(2)
    adds.keep(program.adds, Adds)
    adds.add(entered, counters.start, 1)
    adds.add(steps.begin, counters.credit, operations.credits)
    adds.add(steps.end, ended, 1)
    adds.add(steps.receive[told], semaphore[told, k], hops.value[told, k])
    adds.add(steps.receive, counters.credit[operation], 1)
    gate_ptr, *gate = gates.table(total)
    add_ptr, *add = adds.table(total)
    launches = _launches(program, hops, steps)
    return replace(
        program,
        machines=_machines(program.machines, hops, counters, steps),
        machine=np.concatenate((program.machine, program.machines.count + owners(steps.first))),
        place=place,
        gates=Gates(gate_ptr, *gate),
        adds=Adds(add_ptr, *add),
        launches=launches,
        launch=pointers(np.bincount(launches.step, minlength=total)),
        folds=_folds(program, hops, inserted),
        semaphores=counters.end,
        names=counters.names,
    )


class _Blocks:
    """Gates or adds that grow in blocks, by step; those of one step stay in the order in which they come."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.blocks: list[tuple[Array, ...]] = []

    def keep(self, table: Gates | Adds, kind: type) -> None:
        """Take over a table."""
        names = [each.name for each in fields(kind) if each.name != "ptr"]
        self.blocks.append((owners(table.ptr), *(getattr(table, name) for name in names)))

    def add(self, step: I64, *columns: I64 | int) -> None:
        """Add a block; a number stands for a whole column."""
        self.blocks.append((step, *(np.broadcast_to(np.asarray(each, np.int64), step.shape) for each in columns)))

    def table(self, steps: int) -> tuple[I64, ...]:
        """Return pointers and columns."""
        step, *columns = (np.concatenate(each) for each in zip(*self.blocks, strict=True))
        order = np.argsort(step, kind="stable")
        return pointers(np.bincount(step, minlength=steps)), *(each[order] for each in columns)


def _raise_ends(gates: _Blocks, program: Program, step: I64, ended: I64) -> None:
    """Let the end of control entries wait for their send proxies too."""
    owner, semaphore, shift, mask, at_least, subtract, place = gates.blocks[0]
    more = np.bincount(step, minlength=program.steps)[owner]
    more[~np.isin(semaphore, ended)] = 0
    gates.blocks[0] = (owner, semaphore, shift, mask, at_least + more, subtract + more, place)


def _machines(old: Machines, hops: Hops, counters: _Counters, steps: _Steps) -> Machines:
    operations = hops.operations
    of = hops.operation[counters.first]
    sends, receives = operations.count, of.size
    kind = np.repeat([int(Kind.SEND_PROXY), int(Kind.RECEIVE_PROXY)], [sends, receives])
    image = np.concatenate((operations.image, hops.receiver[counters.first]))
    names = ("sp", "entry", "channel")
    both = {name: np.concatenate((getattr(operations, name), getattr(operations, name)[of])) for name in names}
    new = {"kind": kind, "image": image, **both}
    columns = {name: np.concatenate((getattr(old, name), column)) for name, column in new.items()}
    return Machines(**columns, step=np.concatenate((old.step, steps.first[1:])))


def _launches(program: Program, hops: Hops, steps: _Steps) -> Launches:
    """Each send is a start of its own queue, of no engine."""
    old, operation = program.launches, hops.operation
    zero = np.zeros(operation.size, np.int64)
    image, channel = hops.operations.image[operation], hops.operations.channel[operation]
    new = (steps.send, image, channel, zero, zero, zero, hops.offset)
    names = [each.name for each in fields(Launches)]
    return Launches(*(np.concatenate((getattr(old, name), column)) for name, column in zip(names, new, strict=True)))


def _folds(program: Program, hops: Hops, inserted: _Inserted) -> Folds:
    old, count = program.folds, hops.operation.size
    launches = program.launches.count
    return Folds(
        launch=np.concatenate((old.launch, launches + np.arange(count))),
        ptr=np.concatenate((old.ptr, old.ptr[-1] + 1 + np.arange(count))),
        section=np.concatenate((inserted.moved_section(old.section), inserted.section[hops.operation])),
        item=np.concatenate((inserted.moved(old.item), inserted.item)),
        count=np.concatenate((old.count, inserted.count)),
    )
