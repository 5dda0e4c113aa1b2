"""Members whose program is not that of the others: collectives left out, or in another order.

No right program is like that; these are for seeing what a device does with one that is wrong. So that the chains of
control entries still begin and end together on all members, each place of the program gets as many entries as the
longest collective that stands there on any member, and those that a member has too many do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rota.emit.collective import Plan
from rota.emit.processors import Entry
from rota.errors import UsageError

OMITTED: Final = -1
"""Stands where a member leaves out a collective."""

Orders = Mapping[int, Sequence[int]]
"""The collective that a member, by its number, does at each place of the program; those with none do what is there."""


def check_orders(orders: Orders, collectives: int, members: int) -> None:
    """Refuse orders that are of no member, or not of these collectives.

    Raises:
        UsageError: as said.
    """
    for member, order in orders.items():
        kept = sorted(each for each in order if each != OMITTED)
        rest = set(range(collectives)).issuperset(kept) and len(set(kept)) == len(kept)
        if not 0 <= member < members or len(order) != collectives or not rest:
            what = f"the {collectives} collectives in some order, or {OMITTED} in the place of some"
            raise UsageError(f"member {member}: expected {what}, got {list(order)}")


def places(plans: Sequence[Plan], orders: Orders) -> list[int]:
    """Return the control entries that each place of the program has."""
    every = [range(len(plans)), *orders.values()]
    counts = [[plans[i].parts.entries if i != OMITTED else 1 for i in order] for order in every]
    return [max(column) for column in zip(*counts, strict=True)]


def entries_in_order(plans: Sequence[Plan], order: Sequence[int], rooms: Sequence[int]) -> list[Entry]:
    """Return the control entries of a member: each collective at the end of its place, chained by itself."""
    out: list[Entry] = []
    for i, room in zip(order, rooms, strict=True):
        count = plans[i].parts.entries if i != OMITTED else 0
        out += [Entry(OMITTED, 0, chained=at + 1 < room) for at in range(room - count)]
        out += [Entry(i, number, chained=number + 1 < count) for number in range(count)]
    return out


def first_entries(entries: Sequence[Entry], collectives: int) -> list[int]:
    """Return the first control entry of each collective; OMITTED where it has none."""
    first = {entry.collective: i for i, entry in reversed(list(enumerate(entries)))}
    return [first.get(i, OMITTED) for i in range(collectives)]
