"""Orders of ranks in a ring: how a walk over chips passes each chip, and which cables the hops use.

The walks come from `cycles`; which of them a group gets is decided in `group`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rota.machine.platform import Platform
from rota.machine.topology import (
    ACROSS_DIES,
    DIAGONAL,
    ON_CHIP,
    SAME_DIE,
    LinkClass,
    cable_id,
    link_class,
    node_of,
    pod_node_of,
    port_owner,
)

PASSAGES: Final[Mapping[int, tuple[int, ...]]] = {
    ACROSS_DIES: (0, 1, 2, 3),  # a turn
    DIAGONAL:    (0, 1, 3, 2),  # straight on
    SAME_DIE:    (0, 3, 2, 1),  # a turn
    0:           (0, 3, 2, 1),  # back by the port of entry: a pair of chips
}  # fmt: skip
"""Owner of the entry port xor owner of the exit port -> lanes in ring order, each as a xor of the entry's.
Source: topology §1, high; the last row, topology §4, convention."""

_LEFT: Final = 1  # node in the pod xor this: the neighbour by the left cables. Source: topology §5, high.


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring over all ranks of a group; hop i goes from `order[i]` to the next of `order`, the last to the first."""

    order: tuple[int, ...]  # ranks
    cables: tuple[int, ...]  # hop -> directed link, chip * chips + next chip; -1 when the hop stays on its chip
    gateway: tuple[bool, ...]  # hop -> it leaves or enters through a port that its rank does not own


def channel(platform: Platform, order: Sequence[int]) -> Channel:
    """Return the ring that visits the ranks in this order; ranks that follow each other share a chip or a link."""
    per_chip = platform.ranks_per_chip
    cables: list[int] = []
    gateway: list[bool] = []
    source = divmod(order[0], per_chip)
    for rank in (*order[1:], order[0]):
        target = divmod(rank, per_chip)
        stays = source[0] == target[0]
        cables.append(ON_CHIP if stays else cable_id(platform, source[0], target[0]))
        gateway.append(not stays and not _owns_both_ends(platform, source, target))
        source = target
    return Channel(tuple(order), tuple(cables), tuple(gateway))


def both_ways(platform: Platform, orders: Sequence[Sequence[int]]) -> tuple[Channel, ...]:
    """Return the rings of these orders and then their exact reversals. Source: topology §2, convention."""
    forward = tuple(channel(platform, order) for order in orders)
    return forward + tuple(_reversal(platform, each) for each in forward)


def _reversal(platform: Platform, ring: Channel) -> Channel:
    """Return the ring in the other direction: the same links backwards, and the same gateways."""
    back = (*ring.cables[-2::-1], ring.cables[-1])
    chips = platform.chip_count
    return Channel(
        order=ring.order[::-1],
        cables=tuple(ON_CHIP if cable == ON_CHIP else cable % chips * chips + cable // chips for cable in back),
        gateway=(*ring.gateway[-2::-1], ring.gateway[-1]),
    )


# --- on a node --------------------------------------------------------------------------------------------------------


def chip_order(platform: Platform, chip: int, lanes: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of one chip in ascending order: hops go to the same die, across, to the same die, across."""
    return tuple(platform.ranks_per_chip * chip + lane for lane in sorted(lanes))


def cycle_order(platform: Platform, cycle: Sequence[int], lanes: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of a ring over a closed walk of two or more chips, with these lanes of each chip.

    Source: topology §1 (passages), §2 and §4 (orders); part of the lanes, `_part_passage`.
    """
    per_chip = platform.ranks_per_chip
    if len(lanes) == 1:
        return tuple(per_chip * chip + lanes[0] for chip in cycle)
    count = len(cycle)
    passing = passage if len(lanes) == per_chip else _part_passage
    return tuple(
        per_chip * chip + lane
        for i, chip in enumerate(cycle)
        for lane in passing(platform, cycle[i - 1], chip, cycle[(i + 1) % count])
        if lane in lanes
    )


def passage(platform: Platform, before: int, chip: int, after: int) -> tuple[int, ...]:
    """Return the lanes of a chip in ring order when the ring comes from `before` and goes on to `after`.

    The first lane owns the port the ring enters by. The last owns the port it leaves by, unless that is the same port
    (a pair of chips). Two lanes that share a port follow each other. Without owners the lanes go up.

    Source: `PASSAGES`; two lanes on a port, topology §2, convention.
    """
    entry, leave = port_owner(platform, chip, before), port_owner(platform, chip, after)
    if entry is None or leave is None:
        return tuple(range(platform.ranks_per_chip))
    return _lanes(platform, tuple(entry ^ step for step in PASSAGES[entry ^ leave]))


def _part_passage(platform: Platform, before: int, chip: int, after: int) -> tuple[int, ...]:
    """Return all lanes of a chip, the owners of the entry port first and those of the exit port last, else ascending.

    Source: topology §4, convention (two lanes of each chip at LNC 1, whose order no source gives).
    """
    entry, leave = port_owner(platform, chip, before), port_owner(platform, chip, after)
    per_engine = platform.lanes_per_engine
    lanes = range(platform.ranks_per_chip)
    return tuple(sorted(lanes, key=lambda lane: (lane // per_engine != entry, lane // per_engine == leave, lane)))


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
        out, back = (leave ^ ACROSS_DIES, leave), (leave ^ SAME_DIE, leave ^ DIAGONAL)
    elif leave is None:
        out, back = (entry, entry ^ ACROSS_DIES), (entry ^ DIAGONAL, entry ^ SAME_DIE)
    else:
        beside = ACROSS_DIES if entry ^ leave == SAME_DIE else SAME_DIE
        out, back = (entry, leave), (leave ^ beside, entry ^ beside)
    return _lanes(platform, out), _lanes(platform, back)


def _lanes(platform: Platform, owners: Sequence[int]) -> tuple[int, ...]:
    """Return the lanes of these port owners, all lanes of one before those of the next."""
    per_engine = platform.lanes_per_engine
    return tuple(per_engine * owner + lane for owner in owners for lane in range(per_engine))


# --- over several nodes -----------------------------------------------------------------------------------------------


def serpentine(platform: Platform, order: Sequence[int], nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the ring over several nodes that passes each as an open walk, every second one backwards.

    Args:
        platform: the machine.
        order: ranks of the first node of `nodes`; the first and the last are on chips that join the nodes.
        nodes: the nodes in ring order.

    Source: topology §5, convention.
    """
    low = min(nodes)
    return tuple(
        rank + platform.node_ranks * (node - low)
        for i, node in enumerate(nodes)
        for rank in (order if i % 2 == 0 else order[::-1])
    )


def rotated_apart(platform: Platform, order: Sequence[int], taken: Sequence[int]) -> tuple[int, ...]:
    """Return a ring order that starts at a chip, and ends at one, on which `taken` neither starts nor ends.

    Where there is no such start, the order stays as it is.

    Source: topology §5, convention (the second cycle has another break).
    """
    per_chip = platform.ranks_per_chip
    ends = {taken[0] // per_chip, taken[-1] // per_chip}
    runs = [list(run) for _, run in groupby(order, key=lambda rank: rank // per_chip)]
    for i, run in enumerate(runs):
        if not ends & {run[0] // per_chip, runs[i - 1][0] // per_chip}:
            return tuple(rank for other in runs[i:] + runs[:i] for rank in other)
    return tuple(order)


def box_order(platform: Platform, chips: Sequence[int], lanes: Sequence[int]) -> tuple[int, ...]:
    """Return the ring over a full box of a switch machine: up through one rack, back through the other.

    Inside a rack any chip reaches any other. Racks are joined chip by chip, so the way through the second rack is the
    mirror of the way through the first, and both crossings are cables.

    Source: topology §5, convention.
    """
    order: list[int] = []
    racks = groupby(sorted(chips), key=lambda chip: node_of(platform, chip) // platform.servers_per_rack)
    for i, (_, rack) in enumerate(racks):
        order += list(rack)[:: 1 if i % 2 == 0 else -1]
    return tuple(platform.ranks_per_chip * chip + lane for chip in order for lane in lanes)


# --- ports ------------------------------------------------------------------------------------------------------------


def _owns_both_ends(platform: Platform, source: tuple[int, int], target: tuple[int, int]) -> bool:
    """Return whether the (chip, lane) at each end of a link owns its port; true where no rank owns ports."""
    if platform.port_lane is None:
        return True
    if source[0] // platform.chips == target[0] // platform.chips:
        per_engine = platform.lanes_per_engine
        return (
            port_owner(platform, source[0], target[0]) == source[1] // per_engine
            and port_owner(platform, target[0], source[0]) == target[1] // per_engine
        )
    if link_class(platform, source[0], target[0]) is not LinkClass.POD:
        return True
    return _owns_pod_port(platform, source, target[0]) and _owns_pod_port(platform, target, source[0])


def _owns_pod_port(platform: Platform, end: tuple[int, int], other: int) -> bool:
    """Return whether a (chip, lane) owns the port to the same chip of a neighbour node in its pod."""
    if platform.s_engine_lane is None or not platform.pod_left:
        return True
    chip, lane = end
    s_engine = platform.s_engine_lane[chip % platform.chips].index(lane // platform.lanes_per_engine)
    nodes = (pod_node_of(platform, node_of(platform, each)) for each in (chip, other))
    step = next(nodes) ^ next(nodes)
    return s_engine in (platform.pod_left if step == _LEFT else platform.pod_right)
