"""Saying why nothing can move: the rank at fault first, then who waits for whom, then what would help.

All of it is read off the bytes and the disturbance of the run: which ranks have a part in an operation, who signals
whom, who waits for what. An operation is a control entry; which collective it is of, the bytes do not say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rota.columns import I64, owners
from rota.device.absent import find_absent, takes_part
from rota.device.disturb import Disturbance, blame, signal_name, step_of
from rota.device.dma import Items
from rota.device.program import Kind, Program
from rota.device.records import read_controls, stack
from rota.device.rings import Rings, read_rings
from rota.device.waits import PROXIES, WORKERS, Waits, read_waits, show_ranks
from rota.device.world import World
from rota.errors import StuckError
from rota.isa.image import Section
from rota.isa.semaphores import SEMAPHORES

_SHOWN: Final = 12  # of those who wait, and of a chain
_AGAIN: Final = "it is raised again only by what comes after that"
_CREDITS: Final = "NEURON_RT_CC_CHANNEL_BUFFER_N"


def stuck(
    world: World,
    items: Items,
    program: Program,
    semaphores: I64,
    step: I64,
    *,
    disturbance: Disturbance | None = None,
    tick: int = 0,
) -> StuckError:
    """Return the error that says who waits for what, and why.

    Args:
        semaphores: with the counters of the program behind them.
        step: the step that each machine would do next; the end of its steps for one that is done.
        disturbance: of the run. tick: at which nothing can move.
    """
    waits = read_waits(world, items, program, semaphores, step)
    return _Report(world, items, waits, semaphores, disturbance or Disturbance(), tick).error()


def left_over(world: World, items: Items, program: Program, says: str) -> str:
    """Return what a program says that has ended and left semaphores changed: the rank that is missing, if one is.

    Args:
        says: which semaphore, and how.
    """
    nothing = np.zeros(program.semaphores, np.int64)
    found = find_absent(world, read_waits(world, items, program, nothing, program.machines.step[1:]), set())
    return says if found is None else f"{found.says}\n  {says}\n  fix: {found.fix}"


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong: the sentence that names the rank, a machine from which the chain is followed, what would help."""

    says: str
    start: int
    fix: str = ""


class _Report:
    def __init__(
        self, world: World, items: Items, waits: Waits, semaphores: I64, disturbance: Disturbance, tick: int
    ) -> None:
        self.world, self.items, self.waits, self.semaphores = world, items, waits, semaphores
        self.program, self.disturbance = waits.program, disturbance
        self.dead = disturbance.gone(len(world.images), tick)
        self.named = self._named()

    def error(self) -> StuckError:
        """Return the error: the first rule that finds a fault says it."""
        rules = (self._killed, self._dropped, self._absent, self._reordered, self._starved, self._unpaired, self._end)
        fault = next(found for rule in rules if (found := rule()) is not None)
        message = "\n  ".join((fault.says, *self._chain_lines(fault.start)))
        if fault.fix:
            message += f"\n  fix: {fault.fix}"
        waiting = [self._line(machine) for machine in self.named[:_SHOWN]]
        return StuckError(message, waiting=waiting or [self._line(fault.start)])

    # --- rules --------------------------------------------------------------------------------------------------------

    def _killed(self) -> _Fault | None:
        """A rank that has died with work left is at fault, whatever else is."""
        image = self.program.machines.image
        gone = np.unique(image[self.waits.left[self.dead[image[self.waits.left]]]]).tolist()
        if not gone:
            return None
        waiting = [m for m in self.waits.reaching(lambda m: bool(self.dead[image[m]])) if not self.dead[image[m]]]
        when = ", ".join(f"rank {self._rank(i)} was killed at tick {self.disturbance.dead[i]}" for i in gone)
        ranks = sorted({self._rank(image[m]) for m in waiting})
        verb = f"wait{'s' * (len(ranks) == 1)} for {'it' if len(gone) == 1 else 'them'}"
        start = next((m for m in self.named if m in set(waiting)), waiting[0] if waiting else self._first(gone[0]))
        return _Fault(f"{when}; {show_ranks(ranks) if ranks else 'no other rank'} {verb if ranks else 'waits'}", start)

    def _dropped(self) -> _Fault | None:
        """A signal that was dropped is at fault where somebody who would take it is left."""
        waits = self.waits
        for item in sorted(self.disturbance.dropped):
            semaphore, step = int(self.items.target[item]), step_of(self.program, item)
            takers = self._steps_waiting(np.array([semaphore]))
            machine = self.program.machine[takers]
            machine = np.unique(machine[takers >= waits.step[machine]])
            if not machine.size or step >= waits.step[self.program.machine[step]]:
                continue  # nobody misses it, or it would not have come yet
            there = [m for m in machine.tolist() if waits.semaphore(m) == semaphore]
            start = there[0] if there else int(machine[0])
            says = f"{signal_name(self.world, self.items, self.program, item)} was dropped"
            if not there:
                taker = self._rank(self.program.machines.image[start])
                return _Fault(f"{says}: rank {taker} misses it for the rest of the program", start)
            alone = waits.by[start] < 0
            return _Fault(f"{says}: {'nobody else in the program raises it' if alone else _AGAIN}", start)
        return None

    def _absent(self) -> _Fault | None:
        """A rank that has no part in an operation in which others count on it."""
        machines = self.program.machines
        found = find_absent(self.world, self.waits, set(machines.entry[self.named].tolist()))
        if found is None:
            return None
        start = next((m for m in self.named if machines.entry[m] == found.entry), self._start())
        return _Fault(found.says, start, found.fix)

    def _unpaired(self) -> _Fault | None:
        """Somebody waits for more than the program gives, in an operation of which some rank has no part."""
        machines = self.program.machines
        for machine in self.named:
            semaphore, entry = self.waits.semaphore(machine), int(machines.entry[machine])
            if entry < 0 or self.waits.by[machine] >= 0 or self.waits.balance[semaphore] >= 0:
                continue
            idle = np.flatnonzero(~takes_part(self.world, self.program)[:, entry]).tolist()
            if idle:
                names = show_ranks(sorted(self._rank(i) for i in idle))
                verb = "have" if len(idle) > 1 else "has"
                waiter = f"{self._line(machine)}: nothing that is left raises it"
                says = f"{names} {verb} no part in operation {entry}, and {waiter}"
                return _Fault(says, machine, "enter it on every rank of the group")
        return None

    def _reordered(self) -> _Fault | None:
        """Ranks that wait for each other in different operations: the one is at fault that most such waits touch."""
        machines, waits = self.program.machines, self.waits
        source = {m: self._source(m) for m in self.named}
        ahead = {
            m: by
            for m, by in source.items()
            if by >= 0 and machines.entry[by] > machines.entry[m] and machines.image[by] != machines.image[m]
        }
        start = next((m for m in ahead if self._turns(m, ahead) > 1), None)
        if start is None:
            return None
        touched = Counter[int]()
        for pair in {(int(machines.image[m]), int(machines.image[by])) for m, by in ahead.items()}:
            touched.update(pair)
        most = max(touched.values())
        odd = sorted(image for image, count in touched.items() if count == most)
        chain, _ = waits.chain(start)
        waiter = next((m for m in chain if machines.image[m] in odd and m in ahead), start)
        by = ahead[waiter]
        one, other = self._rank(machines.image[waiter]), self._rank(machines.image[by])
        if len(odd) == 1:
            who = f"rank {self._rank(odd[0])} has its operations in another order than the others"
        else:
            who = f"{show_ranks(sorted(map(self._rank, odd)))} have their operations in different orders"
        says = (
            f"{who}: in operation {int(machines.entry[waiter])} rank {one} waits for what rank {other} does only in "
            f"operation {int(machines.entry[by])}, and so the other way round"
        )
        return _Fault(says, waiter, "issue the operations in the same order on every rank")

    def _source(self, machine: int) -> int:
        """Return the worker or send proxy that gives a machine what it waits for; -1 for others, and for nobody."""
        kind, by = self.program.machines.kind, int(self.waits.by[machine])
        if by >= 0 and kind[by] == Kind.RECEIVE_PROXY:
            by = int(self.waits.by[by])
        return by if by >= 0 and kind[by] in (*WORKERS, Kind.SEND_PROXY) else -1

    def _turns(self, machine: int, ahead: dict[int, int]) -> int:
        """Return how many waits across operations there are in the ring that a chain ends in; 0 if it ends in none."""
        chain, back = self.waits.chain(machine)
        return sum(each in ahead for each in chain[back:]) if back >= 0 else 0

    def _starved(self) -> _Fault | None:
        """A ring that waits for itself, in which a channel has too few credits to begin with."""
        for machine in self.named:
            chain, back = self.waits.chain(machine)
            ring = chain[max(back, 0) :] if back >= 0 else []
            short = [m for m in ring if self._role(m) == "credit" and self._credits(m)[0] < self._credits(m)[1]]
            if short:
                worst = min(short, key=lambda m: (self._credits(m)[0], m))
                by = int(self.waits.by[worst])
                has, needs = self._credits(worst)
                returns = f"rank {self._rank(self.program.machines.image[by])}, which returns it, {self._wait(by)}"
                fix = f"start with at least {needs} credits ({_CREDITS}); this channel starts with {has}"
                return _Fault(f"{self._who(worst)} {self._wait(worst)}; {returns}", worst, fix)
            if back >= 0:
                return None
        return None

    def _end(self) -> _Fault:
        """The machine at the end of the chain of the first one that waits."""
        start = self._start()
        chain, back = self.waits.chain(start)
        if back >= 0:
            ring = chain[back:]
            says = f"{self._line(ring[0])}, and so, in the end, for itself: {len(ring)} machines wait in a ring"
            return _Fault(says + blame(self.world, self.items, self.program, self.disturbance), ring[0])
        last = chain[-1]
        semaphore = self.waits.semaphore(last)
        says = self._line(last) + (", and nothing that is left signals it" if semaphore >= 0 else "")
        return _Fault(says + blame(self.world, self.items, self.program, self.disturbance), start)

    # --- words --------------------------------------------------------------------------------------------------------

    def _rank(self, image: int) -> int:
        return self.world.images[int(image)].rank

    def _named(self) -> list[int]:
        """Return those who wait for what an address names: workers, or else walks, or else hosts, or else proxies."""
        left = self.waits.left
        kind = self.program.machines.kind[left]
        for kinds in (WORKERS, (Kind.WALK,), (Kind.HOST,), PROXIES):
            found = [m for m in left[np.isin(kind, kinds)].tolist() if self._waits_at_address(m)]
            if found:
                return found
        return []

    def _waits_at_address(self, machine: int) -> bool:
        return 0 <= self.waits.semaphore(machine) < self.world.semaphores

    def _start(self) -> int:
        return self.named[0] if self.named else int(self.waits.left[0])

    def _first(self, image: int) -> int:
        """Return the first machine of a rank that is not done."""
        return int(self.waits.left[self.program.machines.image[self.waits.left] == image][0])

    @cached_property
    def _rings(self) -> Rings:
        return read_rings(self.world, stack(self.world, Section.CONF), read_controls(self.world))

    def _role(self, machine: int) -> str:
        """Return what a ring channel waits for; "" for everything else."""
        if self.program.machines.kind[machine] != Kind.CHANNEL:
            return ""
        rings, semaphore = self._rings, self.waits.semaphore(machine)
        columns = ((rings.recv, "data"), (rings.send, "credit"), (rings.compl, "completion"), (rings.mine, "its peers"))
        return next((role for column, role in columns if semaphore >= 0 and (column == semaphore).any()), "")

    def _credits(self, machine: int) -> tuple[int, int]:
        """Return with how many credits a channel starts, and how many every channel of its number needs.

        Source: device-model §5.3.
        """
        machines, rings = self.program.machines, self._rings
        semaphore = self.waits.semaphore(machine)
        record = int(np.flatnonzero(rings.send == semaphore)[0])
        presets = self.world.images[int(machines.image[machine])].presets
        preset = {(each.sp, each.identity): each.value for each in presets}
        has = preset.get((int(machines.sp[machine]), semaphore % SEMAPHORES), 0)
        sends, receives = self._steps_waiting(rings.send), self._steps_waiting(rings.recv)
        alike = (machines.kind == Kind.CHANNEL) & (machines.channel == machines.channel[machine])
        needs = 0
        for each in np.flatnonzero(alike & (machines.sp == machines.sp[machine])).tolist():
            first, last = machines.step[each], machines.step[each + 1]
            until = min(receives[(first <= receives) & (receives < last)], default=first)
            needs = max(needs, int(np.count_nonzero((first <= sends) & (sends < until))) + 1)
        return has // max(int(rings.next_folds[record]), 1), needs

    def _steps_waiting(self, semaphores: I64) -> I64:
        """Return the steps that wait for any of these."""
        gates = self.program.gates
        found: I64 = np.unique(owners(gates.ptr)[np.isin(gates.semaphore, semaphores)])
        return found

    def _who(self, machine: int) -> str:
        """Return how the first line calls a machine."""
        machines = self.program.machines
        rank = f"rank {self._rank(machines.image[machine])}"
        if machines.kind[machine] == Kind.CHANNEL:
            return f"{rank} channel {int(machines.channel[machine])}"
        return self.program.describe(self.world, int(self.waits.step[machine]))

    def _wait(self, machine: int) -> str:
        """Return what a machine does: waits for credit (semaphore 9 of TOP_SP 1) to reach 2, it is 0."""
        gate = int(self.waits.gate[machine])
        if gate < 0:
            return "could go on"
        role, semaphore = self._role(machine), self.waits.semaphore(machine)
        name = self.program.semaphore_name(self.world, semaphore)
        by = int(self.waits.by[machine])
        of = f" of rank {self._rank(self.program.machines.image[by])}" if role == "data" and by >= 0 else ""
        what = f"{role}{of} ({name.rpartition(' of rank')[0]})" if role else name
        return f"waits for {what} to reach {int(self.program.gates.at_least[gate])}, it is {self._value(gate)}"

    def _value(self, gate: int) -> int:
        gates = self.program.gates
        return int(self.semaphores[gates.semaphore[gate]]) >> int(gates.shift[gate]) & int(gates.mask[gate])

    def _line(self, machine: int) -> str:
        step, gate = int(self.waits.step[machine]), int(self.waits.gate[machine])
        if step == self.program.machines.step[machine + 1]:
            return f"{self.program.describe(self.world, step - 1)} is done"
        if self.dead[self.program.machines.image[machine]]:
            return f"{self.program.describe(self.world, step)} is dead"
        if gate < 0:
            return f"{self.program.describe(self.world, step)} could go on"
        gates = self.program.gates
        place = self.program.describe(self.world, step, place=int(gates.place[gate]))
        name = self.program.semaphore_name(self.world, int(gates.semaphore[gate]))
        return f"{place} waits for {name} to reach {int(gates.at_least[gate])}, it is {self._value(gate)}"

    def _chain_lines(self, start: int) -> list[str]:
        """Return the chain in words, what waits for counters inside a rank left out."""
        chain, back = self.waits.chain(start)
        dead = self.dead[self.program.machines.image[chain]]
        if dead.any():
            chain, back = chain[: int(np.argmax(dead)) + 1], -1
        shown = [m for i, m in enumerate(chain) if self._waits_at_address(m) or (back < 0 and i == len(chain) - 1)]
        lines = []
        for machine in shown[:_SHOWN]:
            role, by = self._role(machine), int(self.waits.by[machine])
            rank = (
                f" of rank {self._rank(self.program.machines.image[by])}"
                if by >= 0 and role in ("data", "credit")
                else ""
            )
            lines.append(self._line(machine) + (f" ({role}{rank})" if role else ""))
        if len(shown) > _SHOWN:
            lines.append(f"... and {len(shown) - _SHOWN} more")
        if back >= 0:
            again = next((m for m in chain[back:] if self._waits_at_address(m)), chain[back])
            lines.append(f"and so again for {self._line(again).partition(' waits for')[0]}")
        elif self.waits.semaphore(chain[-1]) >= 0 and not self.dead[self.program.machines.image[chain[-1]]]:
            lines.append("which nothing that is left signals")
        return lines
