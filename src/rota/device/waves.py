"""Running in waves: all steps whose gates hold fire together, and their data moves in runs of contiguous packets.

A machine whose gate does not hold is parked at the semaphore it waits for, and looked at again when something has been
added there, so that a wave costs what happens in it. One wave is one tick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Bool, ranges
from rota.device.disturb import Disturbance
from rota.device.dma import Items
from rota.device.memory import Memory
from rota.device.program import WHOLE, Kind, Program
from rota.device.runs import Runs, Signals, build_runs, build_signals, combine_of
from rota.device.stuck import stuck
from rota.device.world import World
from rota.native.arithmetic import Combine
from rota.native.runs import fold_runs

Observe = Callable[[int, I64], None]


class Gates:
    """The gates of steps as arrays of one width; those a step has not are at a semaphore that is always 0."""

    def __init__(self, program: Program) -> None:
        gates = program.gates
        count = np.diff(gates.ptr)
        width = max(int(count.max(initial=0)), 1)
        shape = (program.steps, width)
        self.semaphore = np.full(shape, program.semaphores, np.int64)
        self.shift, self.at_least, self.subtract = np.zeros((3, *shape), np.int64)
        self.mask = np.full(shape, WHOLE, np.int64)
        row = np.repeat(np.arange(program.steps), count)
        column = np.arange(row.size) - gates.ptr[row]
        for name in ("semaphore", "shift", "mask", "at_least", "subtract"):
            getattr(self, name)[row, column] = getattr(gates, name)
        self.plain = not gates.shift.any() and bool((gates.mask == WHOLE).all())

    def test(self, semaphores: I64, step: I64) -> Bool:
        """Say which gates of these steps hold, shape (steps, width)."""
        value = semaphores[self.semaphore[step]]
        if not self.plain:
            value = (value >> self.shift[step]) & self.mask[step]
        held: Bool = value >= self.at_least[step]
        return held


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What waves need of a program, whatever its memory holds: made once, for any number of runs."""

    runs: Runs
    signals: Signals
    gates: Gates


def prepare(items: Items, program: Program) -> Work:
    """Merge the data of all launches into runs, and put the gates of steps side by side."""
    return Work(build_runs(items, program), build_signals(items, program), Gates(program))


def run_waves(
    world: World,
    items: Items,
    program: Program,
    work: Work,
    memory: Memory,
    *,
    disturbance: Disturbance | None = None,
    observe: Observe | None = None,
) -> None:
    """Run all machines to their ends.

    Raises:
        StuckError: steps are left and no gate holds.
    """
    faults = None if disturbance is None else _Faults(items, program, disturbance)
    _Waves(world, items, program, work, memory, faults, observe).run()


class _Waves:
    def __init__(
        self,
        world: World,
        items: Items,
        program: Program,
        work: Work,
        memory: Memory,
        faults: _Faults | None,
        observe: Observe | None,
    ) -> None:
        self.world, self.items, self.program, self.memory = world, items, program, memory
        self.faults, self.observe = faults, observe
        self.signals, self.gates = work.signals, work.gates
        self.mover = _Mover(items, work.runs, memory)
        self.semaphores = np.concatenate(
            [memory.semaphores, np.zeros(program.semaphores - world.semaphores + 1, np.int64)]
        )
        self.step = program.machines.step[:-1].copy()
        self.end = program.machines.step[1:]
        self.parked = np.full(program.semaphores + 1, -1, np.int64)  # machine at each semaphore
        self.stamp = np.zeros(program.machines.count, np.int64)
        self.many = np.zeros(0, np.int64)  # machines for which there was no room at their semaphore

    def run(self) -> None:
        """Run wave after wave until everybody is done."""
        ready = np.flatnonzero(self.step < self.end)
        tick = 0
        while True:
            fired = self._fire(ready, tick)
            if not fired.size:
                following = None if self.faults is None else self.faults.following(tick)
                if following is None:
                    break
                tick = following
            told = self._perform(self.step[fired], tick)
            self.step[fired] += 1
            going = fired[self.step[fired] < self.end[fired]]
            ready = self._once(np.concatenate([going, self._woken(told)]))
            tick += 1
        self.memory.semaphores[:] = self.semaphores[: self.world.semaphores]
        if (self.step < self.end).any():
            faults = None if self.faults is None else self.faults.of
            raise stuck(self.world, self.items, self.program, self.semaphores, self.step, disturbance=faults, tick=tick)

    def _fire(self, ready: I64, tick: int) -> I64:
        """Return the machines whose gates hold, having subtracted; park the others."""
        step = self.step[ready]
        held = self.gates.test(self.semaphores, step)
        able = held.all(axis=1)
        if self.faults is not None:
            stopped = self.faults.stopped(ready, tick)
            able &= ~stopped
            self._park(ready[~able & ~stopped], step[~able & ~stopped], held[~able & ~stopped])
            self.many = np.concatenate([self.many, ready[stopped]])
        else:
            rest = ~able
            self._park(ready[rest], step[rest], held[rest])
        fired = ready[able]
        taken = step[able]
        if fired.size:
            place = self.gates.semaphore[taken].ravel()
            np.subtract.at(self.semaphores, place, self.gates.subtract[taken].ravel())
            if self.observe is not None:
                self.observe(tick, taken)
        return fired

    def _park(self, machine: I64, step: I64, held: Bool) -> None:
        if not machine.size:
            return
        place = self.gates.semaphore[step, np.argmin(held, axis=1)]
        taken = self.parked[place] >= 0
        if taken.any():
            self.many = np.concatenate([self.many, machine[taken]])
            machine, place = machine[~taken], place[~taken]
        self.parked[place] = machine
        lost = self.parked[place] != machine
        if lost.any():
            self.many = np.concatenate([self.many, machine[lost]])

    def _woken(self, told: I64) -> I64:
        """Return the machines that wait at semaphores to which something was added."""
        found = self.parked[told]
        here = found >= 0
        self.parked[told[here]] = -1
        woken = found[here]
        if self.many.size:
            woken = np.concatenate([woken, self.many])
            self.many = self.many[:0]
        return woken

    def _once(self, machine: I64) -> I64:
        """Return each machine once."""
        place = np.arange(machine.size)
        self.stamp[machine] = place
        once: I64 = machine[self.stamp[machine] == place]
        return once

    def _perform(self, step: I64, tick: int) -> I64:
        """Do what steps do; return the semaphores that were added to."""
        signals, adds = self.signals, self.program.adds
        signal = ranges(signals.ptr[step], signals.ptr[step + 1] - signals.ptr[step])
        add = ranges(adds.ptr[step], adds.ptr[step + 1] - adds.ptr[step])
        told, value = signals.semaphore[signal], signals.value[signal]
        if self.faults is not None:
            told, value = self._disturbed(step, signal, tick)
        else:
            self.mover.move(step)
        if add.size:
            told = np.concatenate([told, adds.semaphore[add]])
            value = np.concatenate([value, adds.value[add]])
        np.add.at(self.semaphores, told, value)
        return told

    def _disturbed(self, step: I64, signal: I64, tick: int) -> tuple[I64, I64]:
        """Move the data and return the signals of this tick as the faults make them."""
        assert self.faults is not None
        now, postponed = self.faults.split(step)
        self.mover.move(now)
        self.mover.move(self.faults.postponed)
        told, value = self.faults.signals(self.signals.item[signal], step, tick)
        self.faults.postponed = postponed
        return told, value


class _Mover:
    """Moves the data of steps."""

    def __init__(self, items: Items, runs: Runs, memory: Memory) -> None:
        self.runs, self.memory = runs, memory
        self.kinds = [combine_of(items, i) for i in range(len(items.operations))]
        self.turns = bool(runs.turn.any())
        self.fan_in = np.diff(runs.source_ptr)

    def move(self, step: I64) -> None:
        """Move the data of steps that fire together; they do not touch each other."""
        first = self.runs.ptr[step]
        chosen = ranges(first, self.runs.ptr[step + 1] - first)
        if not chosen.size:
            return
        if not self.turns:
            self._move(chosen)
            return
        turn = self.runs.turn[chosen]
        for each in range(int(turn.max()) + 1):
            self._move(chosen[turn == each])

    def _move(self, chosen: I64) -> None:
        operation = self.runs.operation[chosen]
        if (operation == operation[0]).all():
            self._fold(chosen, int(operation[0]))
            return
        for each in np.unique(operation).tolist():
            self._fold(chosen[operation == each], each)

    def _fold(self, chosen: I64, operation: int) -> None:
        how, dtype = self.kinds[operation]
        runs, memory = self.runs, self.memory.bytes
        fan_in = self.fan_in[chosen]
        ptr = np.zeros(chosen.size + 1, np.int64)
        np.cumsum(fan_in, out=ptr[1:])
        place = ranges(runs.source_ptr[chosen], fan_in)
        scales = runs.scale[place] if how is Combine.FMA else None
        size, target = runs.size[chosen], runs.target[chosen]
        fold_runs(memory, target, ptr, runs.source[place], size, how=how, dtype=dtype, scales=scales)
        if not runs.more_ptr.size:
            return
        count = runs.more_ptr[chosen + 1] - runs.more_ptr[chosen]
        more = runs.more[ranges(runs.more_ptr[chosen], count)]
        if more.size:
            whose = np.repeat(np.arange(chosen.size), count)
            every = np.arange(more.size + 1)
            fold_runs(memory, more, every, target[whose], size[whose], how=Combine.COPY, dtype=None)


class _Faults:
    """What a disturbance does to a run in waves."""

    def __init__(self, items: Items, program: Program, disturbance: Disturbance) -> None:
        self.items, self.program, self.of = items, program, disturbance
        self.times = np.ones(items.count, np.int64)
        self.times[sorted(disturbance.dropped)] = 0
        self.times[sorted(disturbance.doubled)] = 2
        self.delay = np.zeros(items.count, np.int64)
        for item, ticks in disturbance.delayed.items():
            self.delay[item] = ticks
        self.early = np.zeros(items.count, np.bool_)
        self.early[sorted(disturbance.early)] = True
        signals = build_signals(items, program)
        step = np.repeat(np.arange(program.steps), np.diff(signals.ptr))
        self.hasty = np.zeros(program.steps, np.bool_)
        self.hasty[step[self.early[signals.item]]] = True
        self.postponed = np.zeros(0, np.int64)
        self.item_step = np.zeros(items.count, np.int64)
        self.item_step[signals.item] = step
        self.landing: list[tuple[int, I64]] = []
        machines = program.machines
        never = np.iinfo(np.int64).max
        self.start, self.death = np.zeros(machines.count, np.int64), np.full(machines.count, never)
        for rank, ticks in disturbance.late.items():
            self.start[(machines.image == rank) & (machines.kind == Kind.HOST)] = ticks
        for rank, ticks in disturbance.dead.items():
            self.death[machines.image == rank] = ticks

    def following(self, tick: int) -> int | None:
        """Return the tick at which something comes when nobody can fire, this or a later one; None if nothing does."""
        if self.postponed.size:
            return tick
        coming = [when for when, _ in self.landing] + (self.start[self.start > tick] - 1).tolist()
        return max(tick, min(coming)) if coming else None

    def stopped(self, machine: I64, tick: int) -> Bool:
        """Say which machines do not step at this tick."""
        found: Bool = (self.start[machine] > tick) | (self.death[machine] <= tick)
        return found

    def split(self, step: I64) -> tuple[I64, I64]:
        """Return the steps whose data moves now, and those whose data moves a tick later."""
        hasty = self.hasty[step]
        return step[~hasty], step[hasty]

    def signals(self, item: I64, step: I64, tick: int) -> tuple[I64, I64]:
        """Return the semaphores and values that are added at this tick."""
        late = self.hasty[self.item_step[item]] & ~self.early[item]
        due = [(tick + int(d), item[(self.delay[item] + late) == d]) for d in np.unique(self.delay[item] + late)]
        self.landing += due
        now = [each for when, each in self.landing if when <= tick]
        self.landing = [(when, each) for when, each in self.landing if when > tick and each.size]
        found = np.concatenate([np.zeros(0, np.int64), *now])
        assert step is not None
        return self.items.target[found], self.items.value[found] * self.times[found]
