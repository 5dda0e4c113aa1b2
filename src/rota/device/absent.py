"""Ranks that have no part in an operation in which others count on them, found in the programs alone.

Others signal such a rank, and it never takes these signals: in a right program every semaphore is given exactly what is
taken from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Bool
from rota.device.program import Program
from rota.device.waits import WORKERS, Waits, image_of_semaphore, show_group, show_ranks
from rota.device.world import World


@dataclass(frozen=True, slots=True)
class Absent:
    """Ranks that are not where they should be: the operation, the sentence that says it, and what would help."""

    entry: int
    says: str
    fix: str


def takes_part(world: World, program: Program) -> Bool:
    """Return which ranks have a part in which operation, shape (ranks, operations)."""
    machines = program.machines
    workers = np.isin(machines.kind, WORKERS)
    out = np.zeros((len(world.images), int(machines.entry.max(initial=0)) + 1), np.bool_)
    out[machines.image[workers], machines.entry[workers]] = True
    return out


def find_absent(world: World, waits: Waits, blocked: Set[int]) -> Absent | None:
    """Return the ranks that are absent from the first operation of which any are; None where all are there.

    Args:
        blocked: operations in which somebody waits; they come first.
    """
    program = waits.program
    machine = program.machine[waits.told_by]
    entry, source = program.machines.entry[machine], program.machines.image[machine]
    target = image_of_semaphore(world, waits.told)
    active = takes_part(world, program)
    chosen = np.flatnonzero(np.isin(program.machines.kind[machine], WORKERS) & (target >= 0))
    chosen = chosen[waits.balance[waits.told[chosen]] > 0]
    chosen = chosen[~active[target[chosen], entry[chosen]]]
    if not chosen.size:
        return None
    one = min(set(entry[chosen].tolist()), key=lambda e: (e not in blocked, e))
    gone = np.unique(target[chosen[entry[chosen] == one]]).tolist()
    group = _component(source[entry == one], target[entry == one], gone[0])
    counts = active.sum(axis=1)
    others = Counter(counts[[i for i in group if i not in gone]].tolist()).most_common(1)[0][0]
    mine = sorted({int(counts[i]) for i in gone})
    whose = "its program has" if len(gone) == 1 else "their programs have"
    has = f"{whose} {' or '.join(map(str, mine))} operation{'s' * (mine != [1])}, the others {others}"
    names = show_ranks(sorted(world.images[i].rank for i in gone))
    all_of = show_group(sorted(world.images[i].rank for i in group))
    return Absent(
        entry=one,
        says=f"{names} never entered group {all_of} in operation {one}; {has}",
        fix=f"enter it on every rank of the group, or leave {names} out of the group",
    )


def _component(source: I64, target: I64, start: int) -> list[int]:
    """Return the ranks that signals connect with one, ascending."""
    near: dict[int, set[int]] = {}
    for one, other in set(zip(source.tolist(), target.tolist(), strict=True)):
        if one >= 0 and other >= 0:
            near.setdefault(one, set()).add(other)
            near.setdefault(other, set()).add(one)
    found, rest = {start}, [start]
    while rest:
        fresh = near.get(rest.pop(), set()) - found
        found |= fresh
        rest += sorted(fresh)
    return sorted(found)
