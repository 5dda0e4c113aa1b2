"""The chips of a node as a cube: distances, cables, ports, and how a ring may pass a chip.

The torus of 4x4 chips is the 4-cube, and the routing id is the label of a corner: chips that differ in one bit are
joined by one cable, so a distance is a count of bits. A directed cable has the id `chip * chips + neighbour`.
Cycles over many chips live in `cycles`, orders of ranks in `rings`.

Source: topology §1, high.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rota.errors import UsageError
from rota.machine.platform import Platform

ON_CHIP: Final = -1
"""The cable id of a hop that stays on its chip."""

SAME_DIE: Final = 1
"""Lane xor lane of two ranks on one die."""

DIAGONAL: Final = 2
"""Lane xor lane of two ranks on different dies that do not face each other."""

ACROSS_DIES: Final = 3
"""Lane xor lane of two ranks across the die-to-die path; also of the owners of the two ends of a cable."""


def routing_id(platform: Platform, chip: int) -> int:
    """Return the label of a chip in the cube."""
    return platform.routing_ids.index(chip)


def dimension(platform: Platform) -> int:
    """Return the cables of one chip: the bits of a routing id."""
    return (platform.chips - 1).bit_length()


def distance(platform: Platform, a: int, b: int) -> int:
    """Return the cables on a shortest route between two chips."""
    return (routing_id(platform, a) ^ routing_id(platform, b)).bit_count()


def neighbours(platform: Platform, chip: int) -> tuple[int, ...]:
    """Return the chips one cable away, in ascending order."""
    label = routing_id(platform, chip)
    return tuple(sorted(platform.routing_ids[label ^ 1 << bit] for bit in range(dimension(platform))))


def cable_bit(platform: Platform, a: int, b: int) -> int:
    """Return the routing id bit in which two neighbours differ: the name of their cable on both chips."""
    difference = routing_id(platform, a) ^ routing_id(platform, b)
    assert difference.bit_count() == 1, f"chips {a} and {b} share no cable"
    return difference.bit_length() - 1


def is_subcube(platform: Platform, chips: Collection[int]) -> bool:
    """Return whether the chips are all those that agree outside some routing id bits."""
    labels = [routing_id(platform, chip) for chip in chips]
    varying = 0
    for label in labels:
        varying |= label ^ labels[0]
    return bool(labels) and len(set(labels)) == 1 << varying.bit_count()


# --- cables -----------------------------------------------------------------------------------------------------------


def links(platform: Platform) -> int:
    """Return the directed cables of the node."""
    return platform.chips * dimension(platform)


def cable_id(platform: Platform, chip: int, neighbour: int) -> int:
    """Return the id of the directed cable from a chip to its neighbour."""
    assert distance(platform, chip, neighbour) == 1, f"chips {chip} and {neighbour} share no cable"
    return chip * platform.chips + neighbour


def cable_name(platform: Platform, cable: int) -> str:
    """Return the words for a cable id: `chip 0 -> chip 3`, or `on the chip` for a hop without a cable.

    Raises:
        UsageError: the id is no cable of this node.
    """
    if cable == ON_CHIP:
        return "on the chip"
    chip, neighbour = divmod(cable, platform.chips)
    if not 0 <= chip < platform.chips or distance(platform, chip, neighbour) != 1:
        raise UsageError(f"cable {cable}: expected {platform.chips} * chip + neighbour of two chips that share a cable")
    return f"chip {chip} -> chip {neighbour}"


# --- ports ------------------------------------------------------------------------------------------------------------


def port_owner(platform: Platform, chip: int, neighbour: int) -> int | None:
    """Return the lane of `chip` that owns its end of the cable to `neighbour`; None where ports belong to no rank."""
    if platform.port_lane is None:
        return None
    return platform.port_lane[chip][cable_bit(platform, chip, neighbour)]


def torus_peer(platform: Platform, rank: int) -> int | None:
    """Return the rank that owns the other end of the cable whose port `rank` owns; None where no rank owns a port."""
    if platform.port_lane is None:
        return None
    chip, lane = divmod(rank, platform.ranks_per_chip)
    bit = platform.port_lane[chip].index(lane)
    neighbour = platform.routing_ids[routing_id(platform, chip) ^ 1 << bit]
    return platform.ranks_per_chip * neighbour + platform.port_lane[neighbour][bit]


def is_one_die_turn(platform: Platform, before: int, chip: int, after: int) -> bool:
    """Return whether a ring that comes from `before` and goes on to `after` uses the two ports of one die of `chip`."""
    entry, leave = port_owner(platform, chip, before), port_owner(platform, chip, after)
    return entry is not None and leave is not None and entry ^ leave == SAME_DIE


def one_die_turns(platform: Platform, cycle: Sequence[int]) -> tuple[int, ...]:
    """Return the chips on which a closed walk over chips turns on one die, in the order of the walk.

    A ring without such a turn has its two ports of every chip on different dies, which is what KangaRing needs to let
    each primary own the port it uses.
    """
    count = len(cycle)
    return tuple(
        chip for i, chip in enumerate(cycle) if is_one_die_turn(platform, cycle[i - 1], chip, cycle[(i + 1) % count])
    )
