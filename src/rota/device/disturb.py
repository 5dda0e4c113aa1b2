"""Faults that a run can have: signals lost, doubled, late or too early, ranks that are late or die.

What can be disturbed is found in the program: the signals a rank performs, in order. What a disturbance does while
the program runs is in `waves` and `random_order`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rota.columns import I64, Bool
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.program import Program
from rota.device.runs import fold_step, items_of
from rota.device.world import World


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What goes wrong in one run. Items are indices of signals; ticks are waves, or steps of the random order.

    However long something is late, a run ends: whatever happens in it is a step of a machine, a packet of a queue or
    the coming of something late, of which there are finitely many, and nothing happens twice. Time in which nothing
    happens is skipped.

    Attributes:
        dropped: signals that are not performed. doubled: signals that are performed twice.
        delayed: signals that are performed that many ticks later than they should.
        early: signals that are performed before the data of their launch, which move a tick later.
        late: ranks whose host triggers only after that many ticks.
        dead: ranks of which no machine steps from that tick on; what their queues have been given still runs.
    """

    dropped: frozenset[int] = frozenset()
    doubled: frozenset[int] = frozenset()
    delayed: Mapping[int, int] = field(default_factory=dict)
    early: frozenset[int] = frozenset()
    late: Mapping[int, int] = field(default_factory=dict)
    dead: Mapping[int, int] = field(default_factory=dict)

    def gone(self, ranks: int, tick: int) -> Bool:
        """Say which ranks have died by a tick."""
        return np.array([self.dead.get(rank, tick + 1) <= tick for rank in range(ranks)], np.bool_)


def signals_of(
    items: Items, program: Program, image: int, *, entries: Sequence[int] | None = None, with_data: bool = False
) -> I64:
    """Return the signals that a rank performs with descriptors, in the order of its program.

    Args:
        entries: only those of these control entries.
        with_data: only those of launches that move data.
    """
    item, fold = items_of(program)
    launch = program.folds.launch[fold]
    machine = program.machine[program.launches.step[launch]]
    chosen = (items.kind[item] == SIGNAL) & (program.machines.image[machine] == image)
    if entries is not None:
        chosen &= np.isin(program.machines.entry[machine], entries)
    if with_data:
        moves = np.zeros(program.launches.count, np.bool_)
        moves[launch[items.kind[item] == DATA]] = True
        chosen &= moves[launch]
    at = np.flatnonzero(chosen)
    found: I64 = item[at[np.lexsort((at, program.machines.entry[machine[at]]))]]
    return found


def step_of(program: Program, item: int) -> int:
    """Return the step whose launch an item is of."""
    first = program.folds.item
    fold = np.flatnonzero((first <= item) & (item < first + program.folds.count))[0]
    return int(fold_step(program)[fold])


def signal_name(world: World, items: Items, program: Program, item: int) -> str:
    """Return how messages call a signal: who performs it, and on which semaphore."""
    step = step_of(program, item)
    target = program.semaphore_name(world, int(items.target[item]))
    return f"the signal of {program.describe(world, step)} to {target}"


def blame(
    world: World, items: Items, program: Program, disturbance: Disturbance | None, semaphore: int | None = None
) -> str:
    """Return, as the end of a message, which disturbed signal may have done it: one to this semaphore; "" for none."""
    if disturbance is None:
        return ""
    for chosen, what in (
        (disturbance.dropped, "was dropped"),
        (disturbance.doubled, "was performed twice"),
        (disturbance.early, "was performed before its data"),
        (disturbance.delayed, "was late"),
    ):
        for item in sorted(chosen):
            if semaphore is None or items.target[item] == semaphore:
                return f": {signal_name(world, items, program, item)} {what}"
    return ""
