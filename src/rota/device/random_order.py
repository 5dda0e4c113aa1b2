"""Running in random order: one step of one machine or one packet of one queue at a time, with writes that land late.

In most runs the runnable thing with the highest priority goes, and now and then a priority is drawn anew: this finds
missing synchronisation far more often than a uniform choice, which the other runs make. A data write that nothing
orders lands at some later step, or not before the program has ended. Source: device-model §6.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rota.columns import I64, U8
from rota.device.disturb import Disturbance
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.launches import SECTIONS
from rota.device.memory import Memory
from rota.device.program import Kind, Program
from rota.device.runs import combine_of
from rota.device.stuck import stuck
from rota.device.world import World
from rota.errors import StuckError
from rota.isa import arch as isa
from rota.isa.semaphores import SEMAPHORES, Reserved
from rota.native.arithmetic import Combine, fold

_UNIFORM: Final = 0.25  # of the runs choose uniformly
_REDRAW: Final = 0.02  # of the steps change a priority
_LAND: Final = 0.05  # of the steps let a held write land

Observe = Callable[[int, I64], None]


def run_random(
    world: World,
    items: Items,
    program: Program,
    memory: Memory,
    rng: np.random.Generator,
    *,
    disturbance: Disturbance | None = None,
    observe: Observe | None = None,
) -> None:
    """Run all machines to their ends.

    Raises:
        StuckError: steps are left and nothing can move, or completion is posted while descriptors are outstanding.
    """
    _Run(world, items, program, memory, rng, disturbance or Disturbance(), observe).run()


@dataclass(slots=True)
class _Queue:
    """One ring of one engine: items in order up to the tail, and data writes that have not landed."""

    next: int
    tail: int
    held: list[tuple[int, U8]] = field(default_factory=list)
    early: set[int] = field(default_factory=set)  # signals that have been performed before their turn


class _Ready:
    """Which things can go now, and which of them goes next: by priority, or any."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.uniform = rng.random() < _UNIFORM
        self.priority: list[float] = rng.random(count).tolist()
        self.place = [-1] * count  # in `able`
        self.able: list[int] = []
        self.heap: list[tuple[float, int]] = []

    def set(self, thing: int, can_go: bool) -> None:
        """Say whether a thing can go."""
        there = self.place[thing]
        if can_go and there < 0:
            self.place[thing] = len(self.able)
            self.able.append(thing)
            heapq.heappush(self.heap, (self.priority[thing], thing))
        elif not can_go and there >= 0:
            last = self.able.pop()
            if last != thing:
                self.able[there], self.place[last] = last, there
            self.place[thing] = -1

    def choose(self) -> int | None:
        """Return what goes next, or None."""
        if not self.able:
            return None
        if self.uniform:
            return self.able[int(self.rng.integers(len(self.able)))]
        while True:
            priority, thing = self.heap[0]
            if self.place[thing] >= 0 and priority == self.priority[thing]:
                return thing
            heapq.heappop(self.heap)

    def redraw(self) -> None:
        """Draw the priority of a thing anew, now and then."""
        if self.rng.random() < _REDRAW:
            thing = int(self.rng.integers(len(self.priority)))
            self.priority[thing] = float(self.rng.random())
            if self.place[thing] >= 0:
                heapq.heappush(self.heap, (self.priority[thing], thing))


class _Run:
    """Things are the machines, and behind them the queues. Columns are lists here: every step reads a few entries."""

    def __init__(
        self,
        world: World,
        items: Items,
        program: Program,
        memory: Memory,
        rng: np.random.Generator,
        faults: Disturbance,
        observe: Observe | None,
    ) -> None:
        self.world, self.items, self.program, self.memory, self.rng = world, items, program, memory, rng
        self.faults, self.observe = faults, observe
        self.kind, self.size, self.target = items.kind.tolist(), items.size.tolist(), items.target.tolist()
        self.sources, self.pointer = items.source.tolist(), items.source_ptr.tolist()
        self.more: dict[int, list[int]] = {}
        for item, target in zip(items.more_item.tolist(), items.more.tolist(), strict=True):
            self.more.setdefault(item, []).append(target)
        self.combine = [combine_of(items, i) for i in range(len(items.operations))]
        self.value: list[int] = [*memory.semaphores.tolist(), *[0] * (program.semaphores - world.semaphores)]
        self.step: list[int] = program.machines.step[:-1].tolist()
        self.end: list[int] = program.machines.step[1:].tolist()
        self.machines = program.machines.count
        self._read_gates()
        self._read_launches()
        self.adds = program.adds
        self.ready = _Ready(self.machines + len(self.queues), rng)
        self.waiting: dict[int, set[int]] = {}  # machines at the semaphore that they wait for
        self.asleep: dict[int, int] = {}
        self.landing: list[tuple[int, int]] = []  # (tick, item) of delayed signals
        self.tick = 0
        self.late = {
            int(m): faults.late[int(program.machines.image[m])]
            for m in np.flatnonzero(program.machines.kind == Kind.HOST)
            if int(program.machines.image[m]) in faults.late
        }

    def _read_gates(self) -> None:
        gates = self.program.gates
        self.gate_ptr: list[int] = gates.ptr.tolist()
        columns = (gates.semaphore, gates.shift, gates.mask, gates.at_least, gates.subtract)
        self.gate: list[tuple[int, ...]] = list(zip(*(column.tolist() for column in columns), strict=True))

    def _read_launches(self) -> None:
        program, folds = self.program, self.program.folds
        starts = np.concatenate([self.items.section_ptr[:-1]])
        self.queues = [_Queue(int(first), int(first)) for first in starts]
        self.launch: list[int] = program.launch.tolist()
        self.fold: list[int] = folds.ptr.tolist()
        self.section: list[int] = folds.section.tolist()
        self.item: list[int] = folds.item.tolist()
        self.count: list[int] = folds.count.tolist()
        starter = program.machine[program.launches.step[folds.launch]]
        self.stream = np.zeros(len(self.queues), np.int64)  # of a rank, that uses each queue
        self.stream[folds.section] = self.world.host_of(self._processor(starter))

    def _processor(self, machine: int | I64) -> I64:
        machines = self.program.machines
        return np.asarray(machines.image[machine] * self.world.sps + machines.sp[machine])

    def run(self) -> None:
        """Step until nothing can."""
        for machine in range(self.machines):
            self._look(machine)
        while True:
            self._land_signals()
            self._start_late()
            thing = self.ready.choose()
            if thing is None:
                if not self._wait():
                    break
                continue
            if thing >= self.machines:
                self._queue_step(thing)
            else:
                self._machine_step(thing)
            self.tick += 1
            self.ready.redraw()
            if self.rng.random() < _LAND:
                self._land_one()
        self.memory.semaphores[:] = self.value[: self.world.semaphores]
        if any(step < end for step, end in zip(self.step, self.end, strict=True)):
            values, step = np.array(self.value, np.int64), np.array(self.step, np.int64)
            raise stuck(self.world, self.items, self.program, values, step, disturbance=self.faults, tick=self.tick)

    def _wait(self) -> bool:
        """Say whether time alone brings something, and let it pass until then."""
        coming = [tick for tick, _ in self.landing] + list(self.late.values())
        if coming:
            self.tick = max(self.tick, min(coming))
        return bool(coming)

    def _start_late(self) -> None:
        """Look again at the hosts whose time has come."""
        for machine in [machine for machine, tick in self.late.items() if tick <= self.tick]:
            del self.late[machine]
            self._look(machine)

    def _look(self, machine: int) -> None:
        """See whether a machine can step; if not, remember at which semaphore it waits."""
        at = self.asleep.pop(machine, -1)
        if at >= 0:
            self.waiting[at].discard(machine)
        gate = self._failing(machine)
        if gate >= 0:
            semaphore = self.gate[gate][0]
            self.waiting.setdefault(semaphore, set()).add(machine)
            self.asleep[machine] = semaphore
        able = gate < 0 and self.step[machine] < self.end[machine] and self.tick >= self.late.get(machine, 0)
        if self.faults.dead and able:
            rank = int(self.program.machines.image[machine])
            able = self.tick < self.faults.dead.get(rank, self.tick + 1)
        self.ready.set(machine, able)

    def _failing(self, machine: int) -> int:
        step = self.step[machine]
        if step == self.end[machine]:
            return -1
        for i in range(self.gate_ptr[step], self.gate_ptr[step + 1]):
            semaphore, shift, mask, at_least, _ = self.gate[i]
            if self.value[semaphore] >> shift & mask < at_least:
                return i
        return -1

    def _machine_step(self, machine: int) -> None:
        step = self.step[machine]
        rank = int(self.program.machines.image[machine])
        if self.faults.dead.get(rank, self.tick + 1) <= self.tick:
            self.ready.set(machine, False)
            return
        for i in range(self.gate_ptr[step], self.gate_ptr[step + 1]):
            self.value[self.gate[i][0]] -= self.gate[i][4]
        for launch in range(self.launch[step], self.launch[step + 1]):
            for fold_ in range(self.fold[launch], self.fold[launch + 1]):
                self._start(self.section[fold_], self.item[fold_], self.count[fold_])
        if self.observe is not None:
            self.observe(self.tick, np.array([step], np.int64))
        self.step[machine] += 1
        first, last = int(self.adds.ptr[step]), int(self.adds.ptr[step + 1])
        for i in range(first, last):
            self._add(int(self.adds.semaphore[i]), int(self.adds.value[i]), machine)
        self._look(machine)

    def _start(self, section: int, item: int, count: int) -> None:
        queue = self.queues[section]
        queue.tail += count
        if self.faults.early:
            for early in sorted(self.faults.early & set(range(item, item + count))):
                queue.early.add(early)
                self._signal(early)
        self.ready.set(self.machines + section, queue.next < queue.tail)

    def _add(self, semaphore: int, value: int, machine: int) -> None:
        self.value[semaphore] += value
        if semaphore < self.world.semaphores and semaphore % SEMAPHORES == Reserved.COMPLETION:
            self._check_post(machine)
        for each in sorted(self.waiting.get(semaphore, ())):
            self._look(each)

    def _check_post(self, machine: int) -> None:
        """When a stream of a rank posts, nothing that it has started is outstanding."""
        machines = self.program.machines
        image = int(machines.image[machine])
        stream = self.world.host_of(self._processor(machine))
        sections = self.items.sections
        first, last = np.searchsorted(sections[:, 0], [image, image + 1]).tolist()
        for section in range(first, last):
            queue = self.queues[section]
            if queue.next != queue.tail and self.stream[section] == stream:
                engine, number = divmod(int(sections[section, 1]) % SECTIONS, isa.QUEUES)
                raise StuckError(
                    f"descriptor outstanding at completion: rank {self.world.images[image].rank} posts while engine "
                    f"{engine} queue {number} has {queue.tail - queue.next} packets left"
                )

    def _queue_step(self, thing: int) -> None:
        queue = self.queues[thing - self.machines]
        i = queue.next
        queue.next += 1
        if self.kind[i] == DATA:
            self._move(queue, i)
        elif self.kind[i] == SIGNAL and i not in queue.early:
            if self.items.barrier[i]:
                self._land(queue)
            self._signal(i)
        self.ready.set(thing, queue.next < queue.tail)

    def _move(self, queue: _Queue, i: int) -> None:
        begin, end, size = self.pointer[i], self.pointer[i + 1], self.size[i]
        how, dtype = self.combine[int(self.items.operation[i])]
        parts = [self.memory.bytes[at : at + size] for at in self.sources[begin:end]]
        if how is Combine.COPY:
            value = parts[0].copy()
        else:
            scales = self.items.scale[begin:end] if how is Combine.FMA else ()
            value = fold(how, [part.view(dtype or np.uint8) for part in parts], scales).view(np.uint8)
        targets = [self.target[i], *self.more.get(i, ())]
        for target in targets[:-1]:
            queue.held.append((target, value))
        if self.items.strong[i]:
            self._land(queue)
            self.memory.bytes[targets[-1] : targets[-1] + size] = value
        else:
            queue.held.append((targets[-1], value))

    def _signal(self, item: int) -> None:
        """Perform a signal, as the faults have it."""
        if item in self.faults.dropped:
            return
        if item in self.faults.delayed:
            self.landing.append((self.tick + self.faults.delayed[item], item))
            return
        self._give(item)

    def _give(self, item: int) -> None:
        times = 2 if item in self.faults.doubled else 1
        machine = -1
        self._add(self.target[item], int(self.items.value[item]) * times, machine)

    def _land_signals(self) -> None:
        if self.landing:
            due = [item for tick, item in self.landing if tick <= self.tick]
            self.landing = [(tick, item) for tick, item in self.landing if tick > self.tick]
            for item in due:
                self._give(item)

    def _land(self, queue: _Queue) -> None:
        for target, value in queue.held:
            self.memory.bytes[target : target + value.size] = value
        queue.held.clear()

    def _land_one(self) -> None:
        holding = [queue for queue in self.queues if queue.held]
        if holding:
            queue = holding[int(self.rng.integers(len(holding)))]
            target, value = queue.held.pop(int(self.rng.integers(len(queue.held))))
            self.memory.bytes[target : target + value.size] = value
