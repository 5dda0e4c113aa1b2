"""Running in random order: one step of one channel or queue at a time, with writes that land late.

In most runs the runnable machine with the highest priority goes, and now and then a priority is drawn anew: this finds
missing synchronisation far more often than a uniform choice, which the other runs make. A data write that nothing
orders lands at some later step, or not before the operation has been posted. Source: device-model §6.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rota.columns import U8
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.memory import Memory
from rota.device.program import Program
from rota.device.waves import operation, stuck
from rota.device.world import World
from rota.native.arithmetic import Combine, fold

_UNIFORM: Final = 0.25  # of the runs choose uniformly
_REDRAW: Final = 0.02  # of the steps change a priority
_LAND: Final = 0.05  # of the steps let a held write land


class _Queue:
    """One fold of one channel: items in order up to the tail, and data writes that have not landed."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.tail = first
        self.held: list[tuple[int, U8]] = []


def run_random(world: World, items: Items, program: Program, memory: Memory, rng: np.random.Generator) -> None:
    """Run all rows of all channels.

    Raises:
        StuckError: rows are left and nothing can move.
    """
    _Run(world, items, program, memory, rng).run()


class _Run:
    """Machine c x width is the walk of channel c, the next ones are its queues.

    Columns are lists here, since every step reads a few entries of them.
    """

    def __init__(self, world: World, items: Items, program: Program, memory: Memory, rng: np.random.Generator) -> None:
        self.world, self.items, self.program, self.memory, self.rng = world, items, program, memory, rng
        self.kind, self.size, self.target = items.kind.tolist(), items.size.tolist(), items.target.tolist()
        self.sources, self.pointer = items.source.tolist(), items.source_ptr.tolist()
        channels, rows = program.channels, program.rows
        self.receives, self.sends, self.count = rows.receives.tolist(), rows.sends.tolist(), rows.items.tolist()
        self.recv = list(zip(channels.recv.tolist(), channels.prev_folds.tolist(), strict=True))
        self.send = list(zip(channels.send.tolist(), channels.next_folds.tolist(), strict=True))
        self.compl = list(zip(channels.compl.tolist(), channels.folds.tolist(), strict=True))
        self.waiter = {flat: c for table in (self.recv, self.send, self.compl) for c, (flat, _) in enumerate(table)}
        self.value: list[int] = memory.semaphores.tolist()
        self.row = channels.row.tolist()
        self.end = [*self.row[1:], rows.items.size]
        self.moving = [False] * len(self.row)
        self.queues = [[_Queue(int(first)) for first in program.item[start]] for start in self.row]
        self.width: int = 1 + program.item.shape[1]
        self.priority = rng.random(len(self.row) * self.width)
        self.order = np.argsort(self.priority).tolist()
        self.ready = [self._can_go(machine) for machine in range(self.priority.size)]

    def run(self) -> None:
        uniform = self.rng.random() < _UNIFORM
        while True:
            machine = self._uniform() if uniform else next((m for m in self.order if self.ready[m]), None)
            if machine is None:
                break
            channel, part = divmod(machine, self.width)
            if part:
                self._queue_step(self.queues[channel][part - 1])
                self.ready[machine] = self._can_go(machine)
            else:
                self._channel_step(channel)
                for each in range(machine, machine + self.width):
                    self.ready[each] = self._can_go(each)
            if self.rng.random() < _REDRAW:
                self.priority[self.rng.integers(self.priority.size)] = self.rng.random()
                self.order = np.argsort(self.priority).tolist()
            if self.rng.random() < _LAND:
                self._land_one()
        self.memory.semaphores[:] = self.value
        left = [c for c in range(len(self.row)) if self.row[c] < self.end[c]]
        if left:
            rows, moving = np.array(self.row)[left], np.array(self.moving)[left]
            raise stuck(self.world, self.program, self.memory, np.array(left), rows, moving=moving)

    def _uniform(self) -> int | None:
        able = [machine for machine, ready in enumerate(self.ready) if ready]
        return able[int(self.rng.integers(len(able)))] if able else None

    def _can_go(self, machine: int) -> bool:
        channel, part = divmod(machine, self.width)
        if part:
            queue = self.queues[channel][part - 1]
            return queue.next < queue.tail
        row = self.row[channel]
        if row >= self.end[channel]:
            return False
        if self.moving[channel]:
            return self._reached(self.compl[channel])
        if self.receives[row] and not self._reached(self.recv[channel]):
            return False
        return self._reached(self.send[channel]) if self.sends[row] else True

    def _reached(self, wait: tuple[int, int]) -> bool:
        return self.value[wait[0]] >= wait[1]

    def _take(self, wait: tuple[int, int]) -> None:
        self.value[wait[0]] -= wait[1]

    def _channel_step(self, channel: int) -> None:
        row = self.row[channel]
        if self.moving[channel]:
            self._take(self.compl[channel])
            self.moving[channel] = False
            self.row[channel] += 1
            return
        if self.receives[row]:
            self._take(self.recv[channel])
        if self.sends[row]:
            self._take(self.send[channel])
        for queue in self.queues[channel]:
            queue.tail += self.count[row]
        self.moving[channel] = True

    def _queue_step(self, queue: _Queue) -> None:
        i = queue.next
        queue.next += 1
        sources = self.sources[self.pointer[i] : self.pointer[i + 1]]
        if self.kind[i] == SIGNAL:
            self._signal(queue, i, sources[0])
        elif self.kind[i] == DATA:
            size, target = self.size[i], self.target[i]
            how, dtype = operation(self.items.words, int(self.items.word[i]))
            parts = [self.memory.bytes[at : at + size] for at in sources]
            value = (
                parts[0]
                if how is Combine.COPY
                else fold(how, [p.view(dtype or np.uint8) for p in parts]).view(np.uint8)
            )
            if self.items.strong[i]:
                self._land(queue)
                self.memory.bytes[target : target + size] = value
            else:
                queue.held.append((target, value.copy()))

    def _signal(self, queue: _Queue, item: int, source: int) -> None:
        if self.items.barrier[item]:
            self._land(queue)
        target = self.target[item]
        self.value[target] += int.from_bytes(self.memory.bytes[source : source + self.size[item]].tobytes(), "little")
        if target in self.waiter:
            walk = self.waiter[target] * self.width
            self.ready[walk] = self._can_go(walk)

    def _land(self, queue: _Queue) -> None:
        for target, value in queue.held:
            self.memory.bytes[target : target + value.size] = value
        queue.held.clear()

    def _land_one(self) -> None:
        holding = [queue for queues in self.queues for queue in queues if queue.held]
        if holding:
            queue = holding[int(self.rng.integers(len(holding)))]
            target, value = queue.held.pop(int(self.rng.integers(len(queue.held))))
            self.memory.bytes[target : target + value.size] = value
