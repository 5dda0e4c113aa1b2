"""The chips of a machine and what joins them: labels, distances, links of every class, ports, racks and pods.

Chips are global: chip = node * chips of a node + chip in node. On a torus the routing id is the label of a corner of a
cube: chips that differ in one bit are joined by one cable, so a distance is a count of bits. A directed link of any
class has the id `chip * chip_count + other chip`. Cycles over many chips live in `cycles`, orders of ranks in `rings`.

Source: topology §1 and §5, high.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, assert_never

from rota.errors import UsageError
from rota.isa.enums import PodType
from rota.machine.platform import Platform, Shape

ON_CHIP: Final = -1
"""The cable id of a hop that stays on its chip."""

SAME_DIE: Final = 1
"""Lane xor lane of two ranks on one die."""

DIAGONAL: Final = 2
"""Lane xor lane of two ranks on different dies that do not face each other."""

ACROSS_DIES: Final = 3
"""Lane xor lane of two ranks across the die-to-die path; also of the owners of the two ends of a cable."""

_X2V: Final = 3
_CHIP_BITS: Final = 4  # of a routing id on a switch machine, below the server


class LinkClass(Enum):
    """What joins two chips directly; the value is what a user reads."""

    CABLE = "cable"  # chips of one node
    POD = "pod link"  # the same place on neighbouring nodes of a pod (Z)
    NETWORK = "network"  # any two chips of nodes without a pod link, by EFA
    SERVER = "server switch"
    RACK = "rack switch"
    INTER_RACK = "inter-rack link"  # the same place on the same server of the other rack


LINK_PARAMETER: Final[Mapping[LinkClass, str]] = MappingProxyType(
    {
        LinkClass.CABLE: "link_bytes_per_second",
        LinkClass.POD: "pod_link_bytes_per_second",
        LinkClass.NETWORK: "network_bytes_per_second",
        LinkClass.SERVER: "server_link_bytes_per_second",
        LinkClass.RACK: "rack_link_bytes_per_second",
        LinkClass.INTER_RACK: "inter_rack_link_bytes_per_second",
    }
)
"""Class of a link -> parameter with its rate in one direction."""


# --- where a chip is --------------------------------------------------------------------------------------------------


def node_of(platform: Platform, chip: int) -> int:
    """Return the node of a chip."""
    return chip // platform.chips


def server_of(platform: Platform, chip: int) -> int:
    """Return the number of a chip's node within its instance; 0 where an instance is one node."""
    return node_of(platform, chip) % platform.servers


def rack_of(platform: Platform, chip: int) -> int:
    """Return the rack of a chip within its instance; 0 where there are no racks. Source: topology §5, convention."""
    return server_of(platform, chip) // platform.servers_per_rack if platform.servers_per_rack else 0


def routing_id(platform: Platform, chip: int) -> int:
    """Return the label of a chip: its corner of the cube, its server and place there, or its place in the node.

    Source: topology §1 for the cube, §5 for switch machines; ring and chain, convention.
    """
    place = chip % platform.chips
    match platform.shape:
        case Shape.CUBE:
            return platform.routing_ids.index(place)
        case Shape.SWITCH:
            return server_of(platform, chip) << _CHIP_BITS | place
        case Shape.RING | Shape.CHAIN:
            return place
    assert_never(platform.shape)


def rack_local_rid(platform: Platform, chip: int) -> int:
    """Return the routing id of a chip with its server counted from the first of its rack. Source: topology §5."""
    per_rack = platform.servers_per_rack
    if not per_rack:
        return routing_id(platform, chip)
    return server_of(platform, chip) % per_rack << _CHIP_BITS | chip % platform.chips


def pod_of(platform: Platform, node: int) -> int:
    """Return the pod of a node; without pods each node is one of its own.

    Source: platforms §3.4; X2V pairs nodes i and i + 2 of four, convention.
    """
    if platform.pod_mode == _X2V and platform.pod_nodes == 2 and platform.nodes > 2:
        return 2 * (node // 4) + node % 2
    return node // platform.pod_nodes


def pod_node_of(platform: Platform, node: int) -> int:
    """Return the number of a node in its pod; 0 without pods. Source: as `pod_of`."""
    if platform.pod_mode == _X2V and platform.pod_nodes == 2 and platform.nodes > 2:
        return node % 4 // 2
    return node % platform.pod_nodes


# --- chips of one node ------------------------------------------------------------------------------------------------


def dimension(platform: Platform) -> int:
    """Return the bits of a routing id of a cube, which are the cables of one chip; 0 for every other shape."""
    return (platform.chips - 1).bit_length() if platform.shape is Shape.CUBE else 0


def distance(platform: Platform, a: int, b: int) -> int:
    """Return the cables on a shortest route between two chips of one node."""
    assert node_of(platform, a) == node_of(platform, b), f"chips {a} and {b} are on different nodes"
    match platform.shape:
        case Shape.CUBE:
            return (routing_id(platform, a) ^ routing_id(platform, b)).bit_count()
        case Shape.RING:
            return min((a - b) % platform.chips, (b - a) % platform.chips)
        case Shape.CHAIN:
            return abs(a - b)
        case Shape.SWITCH:
            return int(a != b)
    assert_never(platform.shape)


def neighbours(platform: Platform, chip: int) -> tuple[int, ...]:
    """Return the chips of the same node one cable away, in ascending order; on a switch all others of the server."""
    first = chip - chip % platform.chips
    if platform.shape is Shape.CUBE:
        label = routing_id(platform, chip)
        found = [first + platform.routing_ids[label ^ 1 << bit] for bit in range(dimension(platform))]
        return tuple(sorted(found))
    others = range(first, first + platform.chips)
    return tuple(other for other in others if distance(platform, chip, other) == 1)


def cable_bit(platform: Platform, a: int, b: int) -> int:
    """Return the routing id bit in which two neighbours on a cube differ: the name of their cable on both chips."""
    difference = routing_id(platform, a) ^ routing_id(platform, b)
    assert difference.bit_count() == 1, f"chips {a} and {b} share no cable"
    return difference.bit_length() - 1


def is_subcube(platform: Platform, chips: Collection[int]) -> bool:
    """Return whether the chips are all those of a node that agree outside some routing id bits.

    Where the chips form no cube, one chip is a subcube and nothing else is.
    """
    if len({node_of(platform, chip) for chip in chips}) != 1:
        return False
    if platform.shape is not Shape.CUBE:
        return len(set(chips)) == 1
    labels = {routing_id(platform, chip) for chip in chips}
    varying = 0
    for label in labels:
        varying |= label ^ min(labels)
    return len(labels) == 1 << varying.bit_count()


# --- links ------------------------------------------------------------------------------------------------------------


def link_class(platform: Platform, a: int, b: int) -> LinkClass | None:
    """Return what joins two chips directly; None where nothing does, as between a chip and itself.

    Source: platforms §3, topology §5.
    """
    if a == b:
        return None
    one, other = node_of(platform, a), node_of(platform, b)
    if one == other:
        if platform.shape is Shape.SWITCH:
            return LinkClass.SERVER
        return LinkClass.CABLE if distance(platform, a, b) == 1 else None
    if pod_of(platform, one) != pod_of(platform, other):
        return LinkClass.NETWORK
    if platform.pod_type is PodType.SWITCH:
        return _switch_link(platform, a, b)
    same_place = a % platform.chips == b % platform.chips
    return LinkClass.POD if same_place and _are_pod_neighbours(platform, one, other) else LinkClass.NETWORK


def _switch_link(platform: Platform, a: int, b: int) -> LinkClass | None:
    """Return what joins chips of different servers of one instance."""
    if rack_of(platform, a) == rack_of(platform, b):
        return LinkClass.RACK
    return LinkClass.INTER_RACK if rack_local_rid(platform, a) == rack_local_rid(platform, b) else None


def _are_pod_neighbours(platform: Platform, one: int, other: int) -> bool:
    """Return whether two nodes of a pod are joined: the ring 0-1-2-3, left is node ^ 1 and right is node ^ 3."""
    return pod_node_of(platform, one) ^ pod_node_of(platform, other) in (1, 3)


def links(platform: Platform) -> int:
    """Return the directed cables of one node."""
    return sum(len(neighbours(platform, chip)) for chip in range(platform.chips))


def cable_id(platform: Platform, chip: int, other: int) -> int:
    """Return the id of the directed link, of any class, from a chip to another."""
    assert link_class(platform, chip, other) is not None, f"chips {chip} and {other} share no cable"
    return chip * platform.chip_count + other


def cable_name(platform: Platform, cable: int) -> str:
    """Return the words for a cable id: `chip 0 -> chip 3`, or `on the chip` for a hop without a cable.

    A link that is not a cable of a node has its class behind it: `chip 0 -> chip 16 (pod link)`.

    Raises:
        UsageError: the id is no link of this machine.
    """
    if cable == ON_CHIP:
        return "on the chip"
    count = platform.chip_count
    chip, other = divmod(cable, count)
    kind = link_class(platform, chip, other) if 0 <= chip < count else None
    if kind is None:
        raise UsageError(f"cable {cable}: expected {count} * chip + neighbour of two chips that share a cable")
    return f"chip {chip} -> chip {other}" + ("" if kind is LinkClass.CABLE else f" ({kind.value})")


# --- ports ------------------------------------------------------------------------------------------------------------
# An owner is a lane at LNC 2; at LNC 1 two lanes share an s-engine, and an owner is their lane // lanes_per_engine.


def port_owner(platform: Platform, chip: int, neighbour: int) -> int | None:
    """Return the owner on `chip` of its end of the cable to `neighbour`; None where ports belong to no rank."""
    if platform.port_lane is None:
        return None
    return platform.port_lane[chip % platform.chips][cable_bit(platform, chip, neighbour)]


def torus_peer(platform: Platform, rank: int) -> int | None:
    """Return the rank that owns the other end of the cable whose port `rank` owns; None where it owns none.

    At LNC 1 both ranks of an s-engine own its port, and the peer of the first is the first there.
    """
    chip, lane = divmod(rank, platform.ranks_per_chip)
    owner, core = divmod(lane, platform.lanes_per_engine)
    owners = platform.port_lane[chip % platform.chips] if platform.port_lane else ()
    if owner not in owners:
        return None
    bit = owners.index(owner)
    place = platform.routing_ids[routing_id(platform, chip) ^ 1 << bit]
    assert platform.port_lane is not None
    peer = platform.port_lane[place][bit] * platform.lanes_per_engine + core
    return platform.ranks_per_chip * (chip - chip % platform.chips + place) + peer


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
