"""Replica groups on a machine: which rings a group gets, over which links, and why not more.

How a group is written is in `partition`, where its ranks stand in `geometry`, which groups are documented in `layouts`,
how a ring passes a chip in `rings`. Whether a program may use a group, and what to use instead, is in `legality`.

Source of every rule here unless said otherwise: topology §4, high.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source, Verdict, no, yes
from rota.machine.cycles import first_cycle, first_path, has_node_cycles, node_cycles
from rota.machine.geometry import Geometry, asymmetry, geometry, lanes_by_chip
from rota.machine.layouts import box_doubts, box_fault, is_documented, nearest
from rota.machine.partition import format_groups, format_ranks, parse_groups
from rota.machine.platform import Family, Platform, Shape
from rota.machine.rings import (
    Channel,
    both_ways,
    box_order,
    channel,
    chip_order,
    cycle_order,
    folded_order,
    rotated_apart,
    serpentine,
)
from rota.machine.topology import dimension, distance, neighbours, one_die_turns, pod_node_of, pod_of

__all__ = [
    "Channel",
    "Decision",
    "Outcome",
    "Wiring",
    "decide",
    "format_groups",
    "format_ranks",
    "parse_groups",
    "wire",
]

_TABLE: Final = Source("topology", "4", HIGH)
_CHOICE: Final = Source("topology", "4", CONVENTION)
_NODES: Final = Source("topology", "5", CONVENTION)
_SYMMETRY: Final = Source("platforms", "4.2", HIGH)
_BOXES: Final = Source("topology", "5", HIGH)

DIES: Final = 2
"""Dies of a chip with four ranks or more; lanes of one die follow each other. Source: platforms §2, high."""

FLAT_FAMILIES: Final = frozenset({Family.TRN1, Family.TRN1N})
"""Families with flat rings over several nodes with several ranks each. Source: topology §5, high."""

HIER_ONLY: Final = "no flat ring is wired over several nodes with several ranks each; HIER serves them"


class Outcome(Enum):
    """What became of a group."""

    WIRED = "wired"
    LOCAL = "local"  # one rank: nothing to wire
    HIER = "hier"  # no ring of its own; the parts of its nodes have
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Decision:
    """The rings of one group, and the words for them."""

    outcome: Outcome
    channels: tuple[Channel, ...]
    because: str
    source: Source
    cycle: tuple[int, ...] = ()  # the chips of the forward ring where KangaRing could ask for it


@dataclass(frozen=True, slots=True)
class Wiring:
    """The rings of one group. A group of one rank has none, and needs none."""

    ranks: tuple[int, ...]  # members in the caller's order
    chips: tuple[int, ...]  # ascending
    lanes: tuple[int, ...]  # ascending; the same on every chip; () where any group is allowed and chips differ
    channels: tuple[Channel, ...]  # forward rings, then their reversals in the same order
    verdict: Verdict  # why this many channels
    warnings: tuple[str, ...]
    geometry: Geometry


def wire(platform: Platform, ranks: Sequence[int], *, any_group: bool = False) -> Wiring:
    """Return the rings of a group, or refuse it with the reason.

    A group over several nodes with several ranks on each has a flat ring on Trn1 and inside a switch machine only;
    elsewhere it comes back without channels, with a verdict that says no.

    Args:
        platform: the machine.
        ranks: the members; their order decides nothing about the rings.
        any_group: return a group that cannot be wired without channels and with a warning, instead of refusing it.

    Raises:
        UsageError: there is no rank, or one is outside the machine or named twice.
        UnsupportedError: no ring can be wired: unequal lanes on the chips, a part of the lanes of several chips, three
            lanes of one chip, chips whose cables form no cycle and no chain that can be folded, nodes that differ, or
            no full box on a switch machine.
    """
    at = geometry(platform, ranks)
    made = decide(platform, at)
    if made.outcome is Outcome.REFUSED:
        reason = f"{gets(platform, at, 0)}, because {made.because}"
        if not any_group:
            near = f"; documented groups near it: {nearest(platform, at.ranks)}"
            raise UnsupportedError(f"{reason}{near}", source=made.source)
        warning = f"{reason}; it is taken as it is, because any group is allowed"
        return Wiring(at.ranks, at.chips, at.lanes, (), no(reason, made.source), (warning,), at)
    return Wiring(
        at.ranks, at.chips, at.lanes, made.channels, verdict(platform, at, made), _warnings(platform, at, made), at
    )


def decide(platform: Platform, at: Geometry) -> Decision:
    """Return the rings of a group, or why it has none; refusals are values. Source: topology §4 and §5."""
    if at.rank_n == 1:
        return Decision(Outcome.LOCAL, (), "a group of one rank is a local copy: it needs no ring channel", _TABLE)
    if platform.shape is Shape.SWITCH:
        return _in_box(platform, at)
    if at.node_n > 1:
        return _over_nodes(platform, at)
    return _on_node(platform, at)


def verdict(platform: Platform, at: Geometry, made: Decision) -> Verdict:
    """Return why a group gets this many channels."""
    match made.outcome:
        case Outcome.LOCAL:
            return yes(made.because, made.source)
        case Outcome.HIER:
            return no(made.because, made.source)
        case Outcome.WIRED:
            return yes(f"{gets(platform, at, len(made.channels))}, because {made.because}", made.source)
        case Outcome.REFUSED:
            return no(f"{gets(platform, at, 0)}, because {made.because}", made.source)


def node_channels(platform: Platform) -> int:
    """Return the ring channels of a group of all ranks of a node. Source: topology §4; §5 for rings and chains."""
    if platform.chips == 1:
        return 1 if platform.ranks_per_chip == DIES else 2
    return _SHAPE_CHANNELS[platform.shape](platform)


_SHAPE_CHANNELS: Final[Mapping[Shape, Callable[[Platform], int]]] = MappingProxyType(
    {
        Shape.CUBE: lambda platform: max(1, 2 * (dimension(platform) // 2)),
        Shape.RING: lambda _: 2,
        Shape.CHAIN: lambda _: 1,
        Shape.SWITCH: lambda _: 2,
    }
)


# --- one node ---------------------------------------------------------------------------------------------------------


def _on_node(platform: Platform, at: Geometry) -> Decision:
    if not at.lanes:
        return _refused(_unequal_lanes(platform, at), _TABLE)
    if len(at.chips) == 1:
        return _on_one_chip(platform, at.chips[0], at.lanes)
    if at.per_chip != 1 and not at.whole_chips and not is_documented(platform, at.ranks, shape=at):
        some = " and ".join(map(str, at.lanes))
        return _refused(f"it has lanes {some} of each chip, and a ring takes all lanes or one", _TABLE)
    return _over_chips(platform, at)


def _unequal_lanes(platform: Platform, at: Geometry) -> str:
    """Name a chip whose lanes differ, beside the first chip with the most lanes."""
    lanes_of = lanes_by_chip(platform, at.ranks)
    full = max(lanes_of, key=lambda chip: (len(lanes_of[chip]), -chip))
    odd = next(chip for chip, here in lanes_of.items() if here != lanes_of[full])
    found, wanted = (format_ranks(chip_order(platform, chip, lanes_of[chip])) for chip in (odd, full))
    return f"chip {odd} has ranks {found} in it where chip {full} has {wanted}"


def _on_one_chip(platform: Platform, chip: int, lanes: tuple[int, ...]) -> Decision:
    order = chip_order(platform, chip, lanes)
    count, per_chip = len(lanes), platform.ranks_per_chip
    if count == 2:
        ring = (channel(platform, order),)
        return Decision(Outcome.WIRED, ring, "a ring of two ranks on one chip is its own reversal", _TABLE)
    if count == per_chip:
        because = "its one chip uses no cable: a ring on the chip and its reversal"
        return Decision(Outcome.WIRED, both_ways(platform, [order]), because, _TABLE)
    a_die = per_chip // DIES
    if count == a_die and lanes[0] // a_die == lanes[-1] // a_die:
        because = "its one die uses no cable: a ring on the die and its reversal"
        return Decision(Outcome.WIRED, both_ways(platform, [order]), because, _CHOICE)
    have = f"it has {count} of the {per_chip} ranks of chip {chip}"
    die = f"two, the {a_die} of a die," if a_die > 2 else "two"
    return _refused(f"{have}, and a ring on one chip takes {die} or all", _TABLE)


def _over_chips(platform: Platform, at: Geometry) -> Decision:
    chips, lanes = at.chips, at.lanes
    if len(chips) == platform.chips and has_node_cycles(platform):
        orders = [cycle_order(platform, cycle, lanes) for cycle in node_cycles(platform, node=at.nodes[0])]
        return Decision(Outcome.WIRED, both_ways(platform, orders), "its chips have 2 edge-disjoint cycles", _TABLE)
    if len(chips) == 2 and distance(platform, *chips) == 1:
        because = f"{_only(0)}: chips {chips[0]} and {chips[1]} share one cable, out and back"
        return Decision(Outcome.WIRED, (channel(platform, cycle_order(platform, chips, lanes)),), because, _TABLE)
    cycle = first_cycle(platform, chips)
    if cycle is not None:
        asks = cycle if len(lanes) > 1 else ()
        rings = both_ways(platform, [cycle_order(platform, cycle, lanes)])
        around = platform.shape is Shape.RING and len(chips) == platform.chips
        because = f"its {len(chips)} chips are the whole ring of the node" if around else _only(1)
        return Decision(Outcome.WIRED, rings, because, _TABLE, asks)
    path = first_path(platform, chips)
    if path is None:
        return _refused(f"{_only(0)}: {_no_chain(platform, chips)}", _TABLE)
    chain = f"chips {' '.join(map(str, path))} are an open chain"
    if len(lanes) == 1:
        return _refused(f"{_only(0)}: {chain}, and one rank of each chip cannot go out and come back", _TABLE)
    because = f"{_only(0)}: {chain}, and one ring goes out and back along it"
    return Decision(Outcome.WIRED, (channel(platform, folded_order(platform, path)),), because, _CHOICE)


# --- several nodes ----------------------------------------------------------------------------------------------------


def _over_nodes(platform: Platform, at: Geometry) -> Decision:
    difference = asymmetry(platform, at)
    if difference is not None:
        return _refused(f"{difference}, and a group has the same local ranks on every node", _SYMMETRY)
    if at.local_rank_n == 1:
        return _one_rank_per_node(platform, at)
    first = [rank for rank in at.ranks if rank // platform.node_ranks == at.nodes[0]]
    local = decide(platform, geometry(platform, first))
    if local.outcome is Outcome.REFUSED:
        return _refused(f"of its part on node {at.nodes[0]} {local.because}", local.source)
    if platform.family not in FLAT_FAMILIES:
        return Decision(Outcome.HIER, (), HIER_ONLY, _NODES)
    forward = [ring.order for ring in local.channels[: (len(local.channels) + 1) // 2]]
    apart = [*forward[:1], *(rotated_apart(platform, order, forward[0]) for order in forward[1:])]
    orders = [serpentine(platform, order, at.nodes) for order in apart]
    rings = (
        both_ways(platform, orders) if len(local.channels) > 1 else tuple(channel(platform, each) for each in orders)
    )
    because = f"its part on each node gets as many, and the rings go through {at.node_n} nodes as a serpentine"
    return Decision(Outcome.WIRED, rings, because, _NODES)


def _one_rank_per_node(platform: Platform, at: Geometry) -> Decision:
    local = at.local_ranks[0]
    nodes = sorted(at.nodes, key=lambda node: (pod_of(platform, node), pod_node_of(platform, node)))
    order = [platform.node_ranks * node + local for node in nodes]
    if len(order) == 2:
        return Decision(Outcome.WIRED, (channel(platform, order),), "a ring of two nodes is its own reversal", _NODES)
    because = f"it has one rank on each of {len(order)} nodes: a ring over the nodes and its reversal"
    return Decision(Outcome.WIRED, both_ways(platform, [order]), because, _NODES)


def _in_box(platform: Platform, at: Geometry) -> Decision:
    """Wire a group on a switch machine. Source: topology §5, high; the order of the ring, convention."""
    if len(at.chips) == 1:
        return _on_one_chip(platform, at.chips[0], at.lanes)
    fault = box_fault(platform, at)
    if fault is not None:
        return _refused(fault, _BOXES)
    if len(at.pods) > 1 and at.local_rank_n > 1:
        return Decision(Outcome.HIER, (), HIER_ONLY, _NODES)
    order = box_order(platform, at.chips, at.lanes)
    if len(order) == 2:
        return Decision(Outcome.WIRED, (channel(platform, order),), "a ring of two ranks is its own reversal", _NODES)
    because = f"it is a full box of {len(at.chips)} chips: a ring over the box and its reversal"
    return Decision(Outcome.WIRED, both_ways(platform, [order]), because, _NODES)


# --- words ------------------------------------------------------------------------------------------------------------


def gets(platform: Platform, at: Geometry, count: int) -> str:
    """Say how many ring channels a group gets, and of how many where it lies on one node."""
    if at.node_n > 1 or platform.shape is Shape.SWITCH:
        return f"this group gets {count} ring channel{'' if count == 1 else 's'}"
    return f"this group gets {count} of the node's {node_channels(platform)} ring channels"


def _only(cycles: int) -> str:
    return f"its chips have only {cycles} edge-disjoint cycle{'' if cycles == 1 else 's'}"


def _refused(because: str, source: Source) -> Decision:
    return Decision(Outcome.REFUSED, (), because, source)


def _no_chain(platform: Platform, chips: tuple[int, ...]) -> str:
    """Say what keeps the chips from being a chain: chips on their own, parts that do not touch, or too many ends."""
    inside = {chip: [other for other in neighbours(platform, chip) if other in chips] for chip in chips}
    alone = [chip for chip in chips if not inside[chip]]
    if len(alone) > 1:
        return f"chips {alone[0]} and {alone[1]} have no neighbour in the group"
    if alone:
        return f"chip {alone[0]} has no neighbour in the group"
    part, rest = {chips[0]}, [chips[0]]
    while rest:
        found = [chip for chip in inside[rest.pop()] if chip not in part]
        part.update(found)
        rest.extend(found)
    if len(part) < len(chips):
        others = [chip for chip in chips if chip not in part]
        apart = f"chips {format_ranks(sorted(part))} do not touch chips {format_ranks(others)}"
        return f"no cables of the group lead from chip {chips[0]} to chip {others[0]} ({apart})"
    return "no walk over its cables visits every chip once"


def _warnings(platform: Platform, at: Geometry, made: Decision) -> tuple[str, ...]:
    if made.outcome is Outcome.LOCAL:
        return ()
    count = len(made.channels)
    wired = f"wired with {count} ring channel{'' if count == 1 else 's'}"
    if made.outcome is Outcome.HIER:
        wired = "run as HIER"
    if platform.shape is Shape.SWITCH:
        return tuple(f"{doubt}; it is {wired}" for doubt in box_doubts(platform, at))
    warnings: list[str] = []
    documented = is_documented(platform, at.ranks, shape=at)
    if not documented:
        warnings.append(f"{documented.reason}; it is {wired}; documented groups near it: {nearest(platform, at.ranks)}")
    turns = one_die_turns(platform, made.cycle)
    if turns:
        at_chips = f"chip{'' if len(turns) == 1 else 's'} {format_ranks(sorted(turns))}"
        warnings.append(
            f"the group is {wired} that turn on one die of {at_chips}: KangaRing cannot own its ports there"
        )
    return tuple(warnings)
