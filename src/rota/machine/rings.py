"""Orders of ranks in a ring: how a walk over chips passes each chip, and which cables the hops use.

The walks come from `cycles`; which of them a group gets is decided in `group`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rota.machine.platform import Platform
from rota.machine.topology import ACROSS_DIES, DIAGONAL, ON_CHIP, SAME_DIE, cable_bit, cable_id, port_owner

PASSAGES: Final[Mapping[int, tuple[int, ...]]] = {
    ACROSS_DIES: (0, 1, 2, 3),  # a turn
    DIAGONAL:    (0, 1, 3, 2),  # straight on
    SAME_DIE:    (0, 3, 2, 1),  # a turn
    0:           (0, 3, 2, 1),  # back by the port of entry: a pair of chips
}  # fmt: skip
"""Owner of the entry port xor owner of the exit port -> lanes in ring order, each as a xor of the entry's.
Source: topology §1, high; the last row, topology §4, convention."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring over all ranks of a group; hop i goes from `order[i]` to the next of `order`, the last to the first."""

    order: tuple[int, ...]  # ranks
    cables: tuple[int, ...]  # hop -> directed cable, chip * chips + neighbour chip; -1 when the hop stays on its chip
    gateway: tuple[bool, ...]  # hop -> it leaves or enters through a port that its rank does not own


def channel(platform: Platform, order: Sequence[int]) -> Channel:
    """Return the ring that visits the ranks in this order; ranks that follow each other share a chip or a cable."""
    cables: list[int] = []
    gateway: list[bool] = []
    for i, rank in enumerate(order):
        source = divmod(rank, platform.ranks_per_chip)
        target = divmod(order[(i + 1) % len(order)], platform.ranks_per_chip)
        stays = source[0] == target[0]
        cables.append(ON_CHIP if stays else cable_id(platform, source[0], target[0]))
        gateway.append(not stays and not _owns_both_ends(platform, source, target))
    return Channel(tuple(order), tuple(cables), tuple(gateway))


def both_ways(platform: Platform, orders: Sequence[Sequence[int]]) -> tuple[Channel, ...]:
    """Return the rings of these orders and then their exact reversals. Source: topology §2, convention."""
    forward = tuple(tuple(order) for order in orders)
    return tuple(channel(platform, order) for order in forward + tuple(order[::-1] for order in forward))


def chip_order(platform: Platform, chip: int, lanes: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of one chip in ascending order: hops go to the same die, across, to the same die, across."""
    return tuple(platform.ranks_per_chip * chip + lane for lane in sorted(lanes))


def cycle_order(platform: Platform, cycle: Sequence[int], lanes: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of a ring over a closed walk of two or more chips, with all lanes of each chip or one.

    Source: topology §1 (passages), §2 and §4 (orders).
    """
    if len(lanes) == 1:
        return tuple(platform.ranks_per_chip * chip + lanes[0] for chip in cycle)
    count = len(cycle)
    return tuple(
        platform.ranks_per_chip * chip + lane
        for i, chip in enumerate(cycle)
        for lane in passage(platform, cycle[i - 1], chip, cycle[(i + 1) % count])
    )


def passage(platform: Platform, before: int, chip: int, after: int) -> tuple[int, ...]:
    """Return the lanes of a chip in ring order when the ring comes from `before` and goes on to `after`.

    The first lane owns the port the ring enters by. The last owns the port it leaves by, unless that is the same port
    (a pair of chips). Without owners the lanes go up.

    Source: `PASSAGES`.
    """
    entry, leave = port_owner(platform, chip, before), port_owner(platform, chip, after)
    if entry is None or leave is None:
        return tuple(range(platform.ranks_per_chip))
    return tuple(entry ^ step for step in PASSAGES[entry ^ leave])


def folded_order(platform: Platform, path: Sequence[int]) -> tuple[int, ...]:
    """Return the ring out along an open chain of three or more chips and back, with all lanes of each chip.

    The way out runs over the owners of the ports. The way back uses the same cables in the other direction, and its
    owners are taken, so it runs over the two other lanes, which reach the ports through a gateway. Without owners, the
    lower half of the lanes goes out and the upper half comes back.

    Source: topology §4, convention.
    """
    halves = [_folded_lanes(platform, path, i) for i in range(len(path))]
    out = [(chip, lane) for chip, (lanes, _) in zip(path, halves, strict=True) for lane in lanes]
    back = [(chip, lane) for chip, (_, lanes) in zip(path[::-1], halves[::-1], strict=True) for lane in lanes]
    return tuple(platform.ranks_per_chip * chip + lane for chip, lane in out + back)


def _folded_lanes(platform: Platform, path: Sequence[int], i: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lanes of chip i of an open chain on the way out and on the way back, each in ring order."""
    if platform.port_lane is None:
        lanes = tuple(range(platform.ranks_per_chip))
        return lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :]
    entry = port_owner(platform, path[i], path[i - 1]) if i > 0 else None
    leave = port_owner(platform, path[i], path[i + 1]) if i + 1 < len(path) else None
    if entry is None:
        assert leave is not None, "a chain has at least two chips"
        return (leave ^ ACROSS_DIES, leave), (leave ^ SAME_DIE, leave ^ DIAGONAL)
    if leave is None:
        return (entry, entry ^ ACROSS_DIES), (entry ^ DIAGONAL, entry ^ SAME_DIE)
    beside = ACROSS_DIES if entry ^ leave == SAME_DIE else SAME_DIE
    return (entry, leave), (leave ^ beside, entry ^ beside)


def _owns_both_ends(platform: Platform, source: tuple[int, int], target: tuple[int, int]) -> bool:
    """Return whether the (chip, lane) at each end of a cable owns its port; true where no rank owns ports."""
    if platform.port_lane is None:
        return True
    bit = cable_bit(platform, source[0], target[0])
    return all(platform.port_lane[chip][bit] == lane for chip, lane in (source, target))
