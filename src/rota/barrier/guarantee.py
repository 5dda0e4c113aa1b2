"""What a barrier promises, and whether times of a run kept it.

On a switch machine two rounds over servers and columns reach everybody of a group; elsewhere a rank waits for its
neighbours, which protects the buffers it writes and is no barrier of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from rota.barrier.table import Program
from rota.columns import I64
from rota.facts import CONVENTION, Source

GUARANTEE_SOURCE: Final = Source("barrier", "7.3", CONVENTION)


class Guarantee(Enum):
    """Who has entered when a rank leaves; the value is what a user reads. Source: barrier §7.3, convention."""

    EVERYBODY = "nobody leaves before everybody of its group has entered"
    NEIGHBOURS = "nobody leaves before every rank on the receiving side of its own table has entered"


@dataclass(frozen=True, slots=True)
class Early:
    """A rank that left while another, for which it should have waited, had not entered."""

    round: int
    rank: int
    outside: int


def promised(program: Program) -> Guarantee:
    """Return what the machine's barrier promises. Source: barrier §7.3, convention."""
    return Guarantee.EVERYBODY if program.switch else Guarantee.NEIGHBOURS


def find_early(program: Program, guarantee: Guarantee, entry: I64, leave: I64) -> Early | None:
    """Return the first rank that broke a guarantee, or None where it held.

    Args:
        entry, leave: times of each barrier and rank, shape (barriers, ranks), in the order of `program.ranks`.
    """
    ranks = np.array(program.ranks, np.int64)
    waiter, other = pairs_of(program, guarantee)
    one, two = np.searchsorted(ranks, waiter), np.searchsorted(ranks, other)
    for index in range(entry.shape[0]):
        early = leave[index, one] < entry[index, two]
        if early.any():
            at = int(np.argmax(early))
            return Early(index, int(waiter[at]), int(other[at]))
    return None


def pairs_of(program: Program, guarantee: Guarantee) -> tuple[I64, I64]:
    """Return who waits for whom by a guarantee, as two columns of ranks."""
    if guarantee is Guarantee.NEIGHBOURS:
        return program.recv.owner, program.recv.peer
    members = [np.array(group, np.int64) for group in program.groups]
    waiter = np.concatenate([np.repeat(group, group.size) for group in members] or [np.zeros(0, np.int64)])
    other = np.concatenate([np.tile(group, group.size) for group in members] or [np.zeros(0, np.int64)])
    return waiter, other
