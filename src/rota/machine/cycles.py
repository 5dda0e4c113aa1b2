"""Closed and open walks over chips that visit each chip once: the two cycles of the node, and a search for the rest.

Only chips of one node occur here, by global number; which rank stands where on a chip is the business of `rings`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rota.machine.platform import Platform, Shape
from rota.machine.topology import is_one_die_turn, neighbours, routing_id

CYCLE_A: Final = (0, 1, 2, 3, 7, 11, 8, 9, 13, 12, 15, 14, 10, 6, 5, 4)
"""First cycle of the full 4x4 node: of the 16 pairs of edge-disjoint cycles without a one-die turn, the
lexicographically first whose second cycle is the image of the first under (row, column) -> (-column, -row).
Source: topology §2, convention."""

SIDE: Final = 4
"""Rows and columns of the torus that `CYCLE_A` is a cycle of. Source: topology §2, high."""

Passage = Callable[[int, int, int], bool]


def has_node_cycles(platform: Platform) -> bool:
    """Return whether a node has the two edge-disjoint cycles of the 4x4 torus."""
    return platform.shape is Shape.CUBE and platform.rows == platform.columns == SIDE


def node_cycles(platform: Platform, *, node: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the two edge-disjoint cycles of a full node, A and B, each from its chip 0 to its lower neighbour first.

    B is the image of A under (row, column) -> (-column, -row). Chips are global numbers.

    Source: topology §2, convention (any pair without a one-die turn would do).
    """
    assert has_node_cycles(platform), "the cycles are those of a 4x4 torus"
    image = tuple(-(chip % SIDE) % SIDE * SIDE + -(chip // SIDE) % SIDE for chip in CYCLE_A)
    mirrored = image if image[1] < image[-1] else (image[0], *image[:0:-1])
    base = platform.chips * node
    return tuple(base + chip for chip in CYCLE_A), tuple(base + chip for chip in mirrored)


def hamiltonian_cycles(platform: Platform, chips: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Yield every closed walk over the chips, each in one direction only, in lexicographic order.

    A walk starts at the lowest chip, and its second chip is lower than its last.
    """
    return _cycles(platform, chips, _any_passage)


def owned_port_cycles(platform: Platform, chips: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Yield those of `hamiltonian_cycles` that turn on one die on no chip, in the same order."""
    return _cycles(platform, chips, lambda before, chip, after: not is_one_die_turn(platform, before, chip, after))


def first_cycle(platform: Platform, chips: Collection[int]) -> tuple[int, ...] | None:
    """Return the first cycle without a one-die turn, else the first cycle, else None.

    Source: topology §4, convention.
    """
    return next(owned_port_cycles(platform, chips), None) or next(hamiltonian_cycles(platform, chips), None)


def first_path(platform: Platform, chips: Collection[int]) -> tuple[int, ...] | None:
    """Return the lexicographically first open walk over the chips, or None. Source: topology §4, convention."""
    masks = _masks(platform, chips)
    if abs(_imbalance(platform, masks)) > 1:
        return None
    every = _set_of(masks)
    for start in sorted(masks):
        found = _path(masks, [start], every ^ 1 << start)
        if found is not None:
            return found
    return None


# --- the search -------------------------------------------------------------------------------------------------------
# A set of chips is a bit mask by chip number; `masks[chip]` are the members of the group one cable away. Branches in
# which some chip can no longer be both entered and left are cut, which keeps the search short on any set of 16 chips.


def _masks(platform: Platform, chips: Collection[int]) -> Mapping[int, int]:
    members = set(chips)
    return {
        chip: sum(1 << other for other in neighbours(platform, chip) if other in members) for chip in sorted(members)
    }


def _imbalance(platform: Platform, chips: Collection[int]) -> int:
    """Return the chips of even colour less those of odd colour; every cable joins one of each, so a walk alternates.

    The colour of a corner of a cube is the parity of its bits, that of a chip in an even ring or a chain its own.
    """
    if platform.shape is Shape.CUBE:
        return sum(1 - 2 * (routing_id(platform, chip).bit_count() % 2) for chip in chips)
    if platform.shape is Shape.RING and platform.chips % 2:
        return 0
    return sum(1 - 2 * (chip % platform.chips % 2) for chip in chips)


def _set_of(chips: Collection[int]) -> int:
    return sum(1 << chip for chip in chips)


def _members(mask: int) -> Iterator[int]:
    """Yield the chips of a set in ascending order."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _any_passage(before: int, chip: int, after: int) -> bool:  # noqa: ARG001
    return True


@dataclass(frozen=True, slots=True)
class _Search:
    masks: Mapping[int, int]
    passage: Passage
    start: int


def _cycles(platform: Platform, chips: Collection[int], passage: Passage) -> Iterator[tuple[int, ...]]:
    masks = _masks(platform, chips)
    if len(masks) < 3 or _imbalance(platform, masks) != 0:
        return
    start = min(masks)
    yield from _close(_Search(masks, passage, start), [start], _set_of(masks) ^ 1 << start)


def _close(search: _Search, path: list[int], free: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to go on from `path` over all chips in `free` and back to the start."""
    masks, passage, last = search.masks, search.passage, path[-1]
    if not free:
        if path[1] < last and passage(path[-2], last, search.start) and passage(last, search.start, path[1]):
            yield tuple(path)
        return
    usable = free | 1 << last | 1 << search.start
    if any((masks[chip] & usable).bit_count() < 2 for chip in _members(free)):
        return
    for chip in _members(masks[last] & free):
        if len(path) > 1 and not passage(path[-2], last, chip):
            continue
        path.append(chip)
        yield from _close(search, path, free ^ 1 << chip)
        path.pop()


def _path(masks: Mapping[int, int], path: list[int], free: int) -> tuple[int, ...] | None:
    """Return the first way to go on from `path` over all chips in `free`, or None."""
    if not free:
        return tuple(path)
    usable = free | 1 << path[-1]
    ways = [(masks[chip] & usable).bit_count() for chip in _members(free)]
    if 0 in ways or ways.count(1) > 1:
        return None
    for chip in _members(masks[path[-1]] & free):
        path.append(chip)
        found = _path(masks, path, free ^ 1 << chip)
        if found is not None:
            return found
        path.pop()
    return None
