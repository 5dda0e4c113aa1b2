"""Who waits for whom when nothing can move: the gates that do not hold, and who adds to their semaphores next.

What follows from that is said in `stuck`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, owners, ranges
from rota.device.dma import SIGNAL, Items
from rota.device.program import Kind, Program
from rota.device.runs import fold_step, items_of
from rota.device.world import World
from rota.isa.arch import ENGINES
from rota.isa.semaphores import PARITIES, SEMAPHORES

WORKERS: Final = (Kind.CHANNEL, Kind.EVENTS)
PROXIES: Final = (Kind.SEND_PROXY, Kind.RECEIVE_PROXY)
_SECOND: Final = (1 << PARITIES[1].shift) // ENGINES  # the least that counts for an odd operation, one fold of many


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Machines once nothing can move, and everything that any step of the program adds to a semaphore.

    Attributes:
        step: the step that each machine would do next; the end of its steps for one that is done.
        left: those that are not done, ascending.
        gate: of each machine, its first gate that does not hold; -1 where all hold, or it is done.
        by: of each machine, the one that adds next to what it waits for; -1 where nobody is left who does.
        told, told_by: of everything that is added: its semaphore and its step; in no order.
        balance: of each semaphore, what the whole program adds to it less what it takes.
    """

    program: Program
    step: I64
    left: I64
    gate: I64
    by: I64
    told: I64
    told_by: I64
    balance: I64

    def semaphore(self, machine: int) -> int:
        """Return what a machine waits for; -1 where it waits for nothing."""
        gate = int(self.gate[machine])
        return int(self.program.gates.semaphore[gate]) if gate >= 0 else -1

    def chain(self, machine: int) -> tuple[list[int], int]:
        """Follow who should signal whom: machines, each once, and where among them the next one stands; -1 for none."""
        place: dict[int, int] = {}
        while machine >= 0 and machine not in place:
            place[machine] = len(place)
            machine = int(self.by[machine])
        return list(place), place.get(machine, -1)

    def reaching(self, ends: Callable[[int], bool]) -> list[int]:
        """Return the machines whose chain comes to one of these ends, the ends left out."""
        known: dict[int, bool] = {}
        for start in self.left.tolist():
            path, at = [], start
            while at >= 0 and at not in known and not ends(at):
                known[at] = False  # should the chain come back here
                path.append(at)
                at = int(self.by[at])
            found = at >= 0 and (ends(at) or known[at])
            known.update(dict.fromkeys(path, found))
        return [machine for machine, found in known.items() if found]


def read_waits(world: World, items: Items, program: Program, semaphores: I64, step: I64) -> Waits:
    """Return who waits for whom.

    Args:
        semaphores: with the counters of the program behind them.
        step: as `Waits` has it.
    """
    left = np.flatnonzero(step < program.machines.step[1:])
    gate = _failing(program, semaphores, step, left)
    told, told_by, added = _tells(items, program)
    gates = program.gates
    nearest = _nearest(program, step, 2 * told + (added >= _SECOND), told_by)
    wanted = 2 * gates.semaphore + (gates.shift >= PARITIES[1].shift)
    by = np.where(gate >= 0, nearest[wanted[gate]], -1) if wanted.size else gate
    balance = np.zeros(program.semaphores, np.int64)
    np.add.at(balance, told, added)
    np.subtract.at(balance, gates.semaphore, gates.subtract)
    return Waits(program, step, left, gate, by, told, told_by, balance[: world.semaphores])


def _failing(program: Program, semaphores: I64, step: I64, left: I64) -> I64:
    """Return the first gate of each machine's step that does not hold, -1 when all do."""
    gates = program.gates
    out = np.full(program.machines.count, -1, np.int64)
    first, last = gates.ptr[step[left]], gates.ptr[step[left] + 1]
    gate, machine = ranges(first, last - first), np.repeat(left, last - first)
    bad = (semaphores[gates.semaphore[gate]] >> gates.shift[gate]) & gates.mask[gate] < gates.at_least[gate]
    out[machine[bad][::-1]] = gate[bad][::-1]
    return out


def _tells(items: Items, program: Program) -> tuple[I64, I64, I64]:
    """Return semaphore, step and value of everything that the steps add, by themselves and by descriptors."""
    adds = program.adds
    item, fold = items_of(program)
    signal = items.kind[item] == SIGNAL
    item, fold = item[signal], fold[signal]
    return (
        np.concatenate((adds.semaphore, items.target[item])),
        np.concatenate((owners(adds.ptr), fold_step(program)[fold])),
        np.concatenate((adds.value, items.value[item])),
    )


def _nearest(program: Program, step: I64, told: I64, told_by: I64) -> I64:
    """Return the machine that adds next to each half of each semaphore, twice its index and 0 or 1; -1 for nobody.

    Of several ranks it is one of that which has done the least of all that it ever adds there; of its machines, the one
    in the earliest entry that is fewest steps away.
    """
    machine = program.machine[told_by]
    ahead = told_by - step[machine]
    image = program.machines.image[machine]
    _, source = np.unique(told * (int(image.max(initial=0)) + 1) + image, return_inverse=True)
    source = source.reshape(-1)
    share = (np.bincount(source, ahead < 0) / np.bincount(source))[source] if source.size else np.zeros(0)
    rest = np.flatnonzero(ahead >= 0)
    keys = (machine, ahead, program.machines.entry[machine], share, told)
    rest = rest[np.lexsort([key[rest] for key in keys])[::-1]]
    out = np.full(2 * program.semaphores, -1, np.int64)
    out[told[rest]] = machine[rest]
    return out


def image_of_semaphore(world: World, semaphore: I64) -> I64:
    """Return whose each semaphore is; -1 for counters that no address names."""
    found: I64 = np.where(semaphore < world.semaphores, semaphore // (world.sps * SEMAPHORES), -1)
    return found


def show_ranks(ranks: Sequence[int]) -> str:
    """Return how messages call some ranks: "rank 3", "ranks 1, 2, 5"."""
    shown = [str(rank) for rank in ranks[:8]] + ([f"... {ranks[-1]}"] if len(ranks) > 8 else [])
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(shown)}"


def show_group(ranks: Sequence[int]) -> str:
    """Return how messages call a group, by its ranks in ascending order: [0..7], [0, 2, 4]."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"[{ranks[0]}..{ranks[-1]}]"
    if len(ranks) <= 8:
        return f"[{', '.join(map(str, ranks))}]"
    return f"[{', '.join(map(str, ranks[:4]))}, ... {ranks[-1]}] of {len(ranks)}"
