"""Running in random order: one step of one channel or queue at a time, by priorities, with writes that land late.

Always the runnable machine with the highest priority goes; now and then a priority is drawn anew, and one in a while a
held write lands. This finds missing synchronisation far more often than a uniform choice. Source: device-model §6.
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
    def __init__(self, world: World, items: Items, program: Program, memory: Memory, rng: np.random.Generator) -> None:
        self.world, self.items, self.program, self.memory, self.rng = world, items, program, memory, rng
        channels = program.channels
        self.row = channels.row.tolist()
        self.end = [*channels.row.tolist()[1:], program.rows.items.size]
        self.moving = [False] * len(self.row)
        self.queues = [[_Queue(int(first)) for first in program.item[start]] for start in self.row]
        self.folds = program.item.shape[1]
        self.priority = rng.random(len(self.row) * (1 + self.folds))

    def run(self) -> None:
        width = 1 + self.folds
        while True:
            ready = [m for m in range(self.priority.size) if self._ready(*divmod(m, width))]
            if not ready:
                break
            machine = max(ready, key=self.priority.__getitem__)
            channel, part = divmod(machine, width)
            if part:
                self._queue_step(self.queues[channel][part - 1])
            else:
                self._channel_step(channel)
            if self.rng.random() < _REDRAW:
                self.priority[self.rng.integers(self.priority.size)] = self.rng.random()
            if self.rng.random() < _LAND:
                self._land_one()
        for queues in self.queues:
            for queue in queues:
                self._land(queue)
        left = [c for c in range(len(self.row)) if self.row[c] < self.end[c]]
        if left:
            rows = np.array([self.row[c] for c in left])
            raise stuck(self.world, self.program, self.memory, np.array(left), rows)

    def _ready(self, channel: int, part: int) -> bool:
        if part:
            queue = self.queues[channel][part - 1]
            return queue.next < queue.tail
        if self.row[channel] >= self.end[channel]:
            return False
        table, rows, value = self.program.channels, self.program.rows, self.memory.semaphores
        if self.moving[channel]:
            return bool(value[table.compl[channel]] >= table.folds[channel])
        row = self.row[channel]
        data = not rows.receives[row] or value[table.recv[channel]] >= table.prev_folds[channel]
        credit = not rows.sends[row] or value[table.send[channel]] >= table.next_folds[channel]
        return bool(data and credit)

    def _channel_step(self, channel: int) -> None:
        table, rows, value = self.program.channels, self.program.rows, self.memory.semaphores
        row = self.row[channel]
        if self.moving[channel]:
            value[table.compl[channel]] -= table.folds[channel]
            self.moving[channel] = False
            self.row[channel] += 1
            return
        if rows.receives[row]:
            value[table.recv[channel]] -= table.prev_folds[channel]
        if rows.sends[row]:
            value[table.send[channel]] -= table.next_folds[channel]
        for queue in self.queues[channel]:
            queue.tail += int(rows.items[row])
        self.moving[channel] = True

    def _queue_step(self, queue: _Queue) -> None:
        items, i = self.items, queue.next
        queue.next += 1
        size, target = int(items.size[i]), int(items.target[i])
        sources = items.source[items.source_ptr[i] : items.source_ptr[i + 1]].tolist()
        if items.kind[i] == SIGNAL:
            if items.barrier[i]:
                self._land(queue)
            self.memory.semaphores[target] += int(self.memory.bytes[sources[0] : sources[0] + size].view(np.uint32)[0])
        elif items.kind[i] == DATA:
            how, dtype = operation(items.words, int(items.word[i]))
            parts = [self.memory.bytes[at : at + size] for at in sources]
            value = (
                parts[0]
                if how is Combine.COPY
                else fold(how, [p.view(dtype or np.uint8) for p in parts]).view(np.uint8)
            )
            if items.strong[i]:
                self._land(queue)
                self.memory.bytes[target : target + size] = value
            else:
                queue.held.append((target, value.copy()))

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
