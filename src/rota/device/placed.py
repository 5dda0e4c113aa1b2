"""All items in the order of the program, and whose each is; what the checks look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Array, Bool
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.load import of_rank
from rota.device.program import Program
from rota.device.runs import items_of
from rota.device.steps import Tables
from rota.device.world import World
from rota.errors import DecodeError


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """One entry per item, launch by launch and fold by fold, in ring order.

    Attributes:
        fold: of a launch, as `Folds` numbers them. worker: index into `Workers`; record: into `Rings`, -1 of a list.
        data, signal: kinds.
    """

    world: World
    items: Items
    program: Program
    tables: Tables
    item: I64
    fold: I64
    launch: I64
    worker: I64
    record: I64
    data: Bool
    signal: Bool

    def refuse(self, bad: Bool, what: str, expected: str, values: Array, *, transmit: bool = False) -> None:
        """Raise DecodeError for the first bad item, if there is one; `bad` and `values` are as the columns here.

        Args:
            transmit: its place is that of its first reading descriptor.
        """
        if bad.any():
            at = int(np.argmax(bad))
            image, offset = self.items.offset_of(int(self.item[at]), transmit=transmit)
            with of_rank(image):
                raise DecodeError(what, offset=offset, expected=expected, got=hex(int(values[at])))


def place_items(world: World, items: Items, program: Program, tables: Tables) -> Placed:
    """Return all items with their owners."""
    item, fold = items_of(program)
    launch = program.folds.launch[fold]
    machine = program.machine[program.launches.step[launch]]
    worker = machine - (program.machines.count - tables.workers.count)
    kind = items.kind[item]
    return Placed(
        world, items, program, tables, item, fold, launch, worker, tables.workers.record[worker],
        kind == DATA, kind == SIGNAL,
    )  # fmt: skip
