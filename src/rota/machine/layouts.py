"""Documented replica groups: which a machine lists, and which of them lie near a group that somebody asked for.

A documented group is a `Layout` of the machine file, moved to any place its routing id bits allow; on a switch machine
it is a full box. A group may be wired without being documented; `group` decides about that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, Source, Verdict, no, yes
from rota.machine.geometry import Geometry, geometry, lanes_by_chip, local_ranks_by_node
from rota.machine.partition import format_groups, format_ranks
from rota.machine.platform import Layout, Platform, Shape
from rota.machine.topology import routing_id

RACK_KEYS: Final = (4, 8, 16, 32, 64, 128, 256)
"""Ranks of a group in each rack for which the switch has a mesh; the keys over all builders are the same.
Source: select §4, convention; switch_schedule §5.2, high."""

RACK_CHIPS: Final = 32
"""Most chips of a group in each rack for which the switch has a mesh.
Source: topology §5, convention (per rack rather than per group)."""

_DOCUMENTED: Final = Source("platforms", "5", HIGH)
_BOX: Final = Source("topology", "5", HIGH)
_BOX_CHOICE: Final = Source("topology", "5", CONVENTION)
_SUGGESTIONS: Final = 2
_DIES: Final = 2  # of a chip. Source: platforms §2, high.
_PART_OF_CHIP: Final = 4  # ranks of a chip or a die that are more than a pair
_MOST_SETS: Final = 64  # of lanes or places looked at; all of them for a server of 4 chips with 4 lanes each
_FULL_BOX: Final = "a full box has the same chips on every server and the same lanes on every chip"

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Documented groups near one that was asked for, each in ascending rank order."""

    same_size: tuple[Group, ...]  # at most two, each with at least half of the ranks in common
    smaller: Group | None  # of the largest documented size below
    larger: Group | None  # of the smallest documented size above

    @property
    def groups(self) -> tuple[Group, ...]:
        """All of them: the same size, smaller, larger."""
        return (*self.same_size, *(group for group in (self.smaller, self.larger) if group is not None))

    def __str__(self) -> str:
        parts = []
        if self.same_size:
            parts.append(" or ".join(format_ranks(group) for group in self.same_size) + " (same size)")
        if self.smaller is not None:
            parts.append(f"{format_ranks(self.smaller)} (smaller)")
        if self.larger is not None:
            parts.append(f"{format_ranks(self.larger)} (larger)")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Split:
    """A way to cut a node into groups of one size, and the groups across them: member i of each."""

    name: str
    tp: tuple[Group, ...]
    dp: tuple[Group, ...]
    source: Source

    def __str__(self) -> str:
        return f"layout {self.name}: TP {format_groups(self.tp)}; DP {format_groups(self.dp)}"


def documented_groups(platform: Platform) -> tuple[Group, ...]:
    """Return every documented group of two or more ranks, each once, by size and then by ranks.

    On several nodes these are the groups of each node, and over all nodes the same ranks of each: those of a documented
    group, or one rank.

    Source: platforms §5, high; the places, topology §4, as marked in the machine file; several nodes, platforms §4.2.
    """
    if platform.shape is Shape.SWITCH:
        return tuple(sorted(set(_documented_boxes(platform)), key=_size_and_ranks))
    local = node_groups(platform)
    nodes = range(platform.nodes)
    groups = {_on_nodes(platform, group, (node,)) for group in local for node in nodes}
    if platform.nodes > 1:
        groups |= {_on_nodes(platform, group, nodes) for group in (*local, *_single_ranks(platform))}
    return tuple(sorted(groups, key=_size_and_ranks))


def node_groups(platform: Platform) -> tuple[Group, ...]:
    """Return the documented groups of two or more ranks on node 0 of a machine without a switch, by size and ranks."""
    groups = {group for layout in platform.layouts for group in _places(platform, layout)}
    return tuple(sorted(groups, key=_size_and_ranks))


def documented_sizes(platform: Platform, nodes: int) -> set[int]:
    """Return the sizes of the documented groups over this many nodes of a machine without a switch."""
    sizes = {layout.lanes * min(platform.chips, 1 << len(layout.bits)) for layout in platform.layouts}
    return {nodes * size for size in sizes} | ({nodes} if nodes > 1 else set())


def is_documented(platform: Platform, ranks: Sequence[int], *, shape: Geometry | None = None) -> Verdict:
    """Return whether a group is one of the documented ones; the reason tells a wrong size from a wrong place.

    Args:
        platform: the machine.
        ranks: the group.
        shape: its geometry, where the caller has it.
    """
    at = shape or geometry(platform, ranks)
    count = at.rank_n
    if platform.shape is Shape.SWITCH:
        doubts = box_doubts(platform, at)
        fault = box_fault(platform, at) or (doubts[0] if doubts else None)
        if fault is not None:
            return no(fault, _BOX_CHOICE)
        return yes(f"this full box of {count} ranks is documented on {platform.name}", _DOCUMENTED)
    if _is_listed(platform, at):
        return yes(f"this group of {count} ranks is documented on {platform.name}", _DOCUMENTED)
    if count in documented_sizes(platform, at.node_n):
        return no(f"groups of {count} ranks are documented on {platform.name}, but not with these ranks", _DOCUMENTED)
    return no(f"groups of {count} ranks are not documented on {platform.name}", _DOCUMENTED)


def nearest(platform: Platform, ranks: Sequence[int]) -> Nearest:
    """Return the documented groups near the given ranks: most ranks in common, then the lowest ranks.

    A group over several nodes is answered with the same ranks on each of its nodes, and with groups on the node that
    has most of it. On a switch machine the neighbours are the smallest full box around it and the largest inside.

    Source: topology §4; that one of the same size shares at least half of the ranks is a convention.
    """
    wanted = frozenset(ranks)
    if platform.shape is Shape.SWITCH:
        return _nearest_boxes(platform, geometry(platform, ranks))
    count = len(wanted)
    groups = [group for _, group in sorted(_candidates(platform, wanted))]
    below = max((len(group) for group in groups if len(group) < count), default=None)
    above = min((len(group) for group in groups if len(group) > count), default=None)
    return Nearest(
        same_size=tuple(
            group for group in groups if len(group) == count and 2 * len(wanted.intersection(group)) >= count
        )[:_SUGGESTIONS],
        smaller=next((group for group in groups if len(group) == below), None),
        larger=next((group for group in groups if len(group) == above), None),
    )


def splits(platform: Platform, size: int) -> tuple[Split, ...]:
    """Return the documented ways to cut a node into groups of one size, with the groups across them.

    The members of every group are listed so that member i of all of them form a group that is wired, too: the chips of
    both kinds agree outside complementary routing id bits.

    Source: topology §4, high.
    """
    if platform.shape is not Shape.CUBE:
        return ()
    rows = [_split(platform, layout) for layout in platform.layouts if layout.role == "tp"]
    return tuple(split for split in rows if len(split.tp[0]) == size)


# --- one node ---------------------------------------------------------------------------------------------------------


def _size_and_ranks(group: Group) -> tuple[int, Group]:
    return len(group), group


def _places(platform: Platform, layout: Layout) -> list[Group]:
    """Return the groups of one layout: a cube of chips for each value of the other bits, and one for each lane set."""
    varying = sum(1 << bit for bit in layout.bits)
    cubes: dict[int, list[int]] = {}
    for chip in range(platform.chips):
        cubes.setdefault(routing_id(platform, chip) & ~varying, []).append(chip)
    per_chip = platform.ranks_per_chip
    return [
        tuple(per_chip * chip + lane for chip in chips for lane in lanes)
        for chips in cubes.values()
        for lanes in layout.lane_sets(per_chip)
    ]


def _split(platform: Platform, layout: Layout) -> Split:
    """Return the split whose groups are those of one layout, members in the order of the group of chip 0."""
    ids, per_chip = platform.routing_ids, platform.ranks_per_chip
    others = [bit for bit in range((platform.chips - 1).bit_length()) if bit not in layout.bits]
    base = sorted(ids[_spread(value, layout.bits)] for value in range(1 << len(layout.bits)))
    labels = [routing_id(platform, chip) for chip in base]
    offsets = sorted((_spread(value, others) for value in range(1 << len(others))), key=lambda offset: ids[offset])
    tp = tuple(
        tuple(per_chip * ids[label ^ offset] + lane for label in labels for lane in lanes)
        for offset in offsets
        for lanes in layout.lane_sets(per_chip)
    )
    name = layout.partition or f"{len(tp[0])}x{len(tp)}"
    return Split(name, tp, tuple(zip(*tp, strict=True)), layout.source)


def _spread(value: int, bits: Sequence[int]) -> int:
    """Return the label with bit `bits[i]` where `value` has bit i."""
    return sum(1 << bit for i, bit in enumerate(bits) if value >> i & 1)


def _single_ranks(platform: Platform) -> tuple[Group, ...]:
    return tuple((rank,) for rank in range(platform.node_ranks))


# --- any number of nodes ----------------------------------------------------------------------------------------------


def _on_nodes(platform: Platform, group: Group, nodes: Sequence[int]) -> Group:
    return tuple(platform.node_ranks * node + rank for node in nodes for rank in group)


def _is_listed(platform: Platform, at: Geometry) -> bool:
    """Return whether the ranks of a group are those of a documented one, without listing them all."""
    if not at.local_ranks or not at.lanes:
        return False
    chips = [chip for chip in at.chips if chip // platform.chips == at.nodes[0]]
    if at.node_n > 1 and at.local_rank_n == 1:
        return True
    labels = [routing_id(platform, chip) for chip in chips]
    varying = 0
    for label in labels:
        varying |= label ^ labels[0]
    return any(
        sum(1 << bit for bit in layout.bits) == varying
        and len(labels) == min(platform.chips, 1 << len(layout.bits))
        and at.lanes in layout.lane_sets(platform.ranks_per_chip)
        for layout in platform.layouts
    )


def _candidates(platform: Platform, wanted: frozenset[int]) -> list[tuple[tuple[int, Group], Group]]:
    """Return groups to suggest, each behind its key: minus the ranks in common, then its ranks."""
    local = local_ranks_by_node(platform, wanted)
    masks = {node: sum(1 << rank for rank in here) for node, here in local.items()}
    fullest = max(local, key=lambda node: (len(local[node]), -node))
    places: list[tuple[tuple[int, ...], tuple[Group, ...]]] = [((fullest,), node_groups(platform))]
    if len(local) > 1:
        places.append((tuple(local), (*node_groups(platform), *_single_ranks(platform))))
    found: list[tuple[tuple[int, Group], Group]] = []
    for nodes, groups in places:
        for group in groups:
            mask = sum(1 << rank for rank in group)
            common = sum((mask & masks[node]).bit_count() for node in nodes)
            whole = _on_nodes(platform, group, nodes)
            found.append(((-common, whole), whole))
    return found


# --- boxes of a switch machine ----------------------------------------------------------------------------------------
# A full box takes the same chips of every server it touches and the same lanes of each of these chips; where it lies in
# several racks, it takes the same servers of each.


def box_fault(platform: Platform, at: Geometry) -> str | None:
    """Say why a group on a switch machine is no full box; None where it is one.

    Source: topology §5, high (D2: equal ranks on every chip; D4: the same servers in both racks).
    """
    lanes_of = lanes_by_chip(platform, at.ranks)
    if not at.lanes:
        model = max(lanes_of, key=lambda chip: (len(lanes_of[chip]), -chip))
        odd = next(chip for chip in lanes_of if lanes_of[chip] != lanes_of[model])
        found, wanted = (_ranks_text(platform, chip, lanes_of[chip]) for chip in (odd, model))
        return f"chip {odd} has ranks {found} in it where chip {model} has {wanted}: {_FULL_BOX} (D2)"
    places = _places_by_node(platform, at.chips)
    model = max(places, key=lambda node: (len(places[node]), -node))
    for node, here in places.items():
        if here != places[model]:
            found, wanted = format_ranks(here), format_ranks(places[model])
            return f"server {node} has chips {found} in it where server {model} has {wanted}: {_FULL_BOX} (D2)"
    racks = _servers_by_rack(platform, places)
    model = next(iter(racks))
    for rack, servers in racks.items():
        missing = sorted(set(racks[model]) ^ set(servers))
        if missing:
            lone = model if missing[0] in racks[model] else rack
            server = lone * platform.servers_per_rack + missing[0]
            other = rack if lone == model else model
            lacks = f"server {server} has no counterpart of the group in rack {other}"
            return f"{lacks}: a full box takes the same servers of both racks (D4)"
    return None


def box_doubts(platform: Platform, at: Geometry) -> tuple[str, ...]:
    """Say what of a full box is not documented to run as a mesh of the switch; nothing where all is.

    Source: topology §5 (sizes), platforms §5 (one rank per chip, per server, per die).
    """
    per_chip, all_lanes = at.per_chip, platform.ranks_per_chip
    if len(at.chips) == 1:
        return (
            () if at.whole_chips else (f"groups of {per_chip} ranks of one chip are not documented on {platform.name}",)
        )
    if per_chip == 1 or (per_chip == _DIES and len({lane * _DIES // all_lanes for lane in at.lanes}) == _DIES):
        return ()
    doubts = []
    if all_lanes % per_chip:
        doubts.append(
            f"{per_chip} ranks of each chip do not divide its {all_lanes}: the barrier of the racks refuses them (D3)"
        )
    if at.local_rack_rank_n not in RACK_KEYS:
        keys = ", ".join(map(str, RACK_KEYS))
        hier = "the group runs as HIER, a mesh on each server and a ring over the servers"
        other = hier if at.node_n > 1 else "only rings serve it"
        doubts.append(f"{at.local_rack_rank_n} ranks in a rack are no size of the switch mesh ({keys}): {other}")
    chips = at.local_rack_rank_n // per_chip
    if chips > RACK_CHIPS:
        doubts.append(f"{chips} chips in a rack are more than the {RACK_CHIPS} of the switch mesh")
    if not doubts and not at.whole_chips:
        doubts.append(f"groups of {per_chip} ranks of each of several chips are not documented on {platform.name}")
    return tuple(doubts)


def _ranks_text(platform: Platform, chip: int, lanes: Sequence[int]) -> str:
    return format_ranks([platform.ranks_per_chip * chip + lane for lane in lanes])


def _places_by_node(platform: Platform, chips: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return server -> the places of these chips on it, both ascending."""
    places: dict[int, list[int]] = {}
    for chip in sorted(chips):
        places.setdefault(chip // platform.chips, []).append(chip % platform.chips)
    return {node: tuple(here) for node, here in places.items()}


def _servers_by_rack(platform: Platform, nodes: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return rack, counted over all instances -> servers counted from its first, both ascending."""
    racks: dict[int, list[int]] = {}
    for node in sorted(nodes):
        racks.setdefault(node // platform.servers_per_rack, []).append(node % platform.servers_per_rack)
    return {rack: tuple(here) for rack, here in racks.items()}


def _box(platform: Platform, nodes: Sequence[int], places: Sequence[int], lanes: Sequence[int]) -> Group:
    chips, per_chip = platform.chips, platform.ranks_per_chip
    return tuple(per_chip * (chips * node + place) + lane for node in nodes for place in places for lane in lanes)


def _documented_boxes(platform: Platform) -> Iterator[Group]:
    """Yield the documented boxes of aligned powers of two, and one rank per chip and per server of every instance."""
    every, per_chip = range(platform.chips), platform.ranks_per_chip
    for first in range(0, platform.nodes, platform.servers):
        servers = range(first, first + platform.servers)
        for size in _powers(platform.chips):
            for node in servers:
                for low in range(0, platform.chips, size):
                    yield _box(platform, (node,), range(low, low + size), range(per_chip))
        for nodes in _aligned(platform, first):
            if len(nodes) * platform.node_ranks <= RACK_KEYS[-1] and len(nodes) * platform.chips <= RACK_CHIPS:
                yield _box(platform, nodes, every, range(per_chip))
                if platform.servers > platform.servers_per_rack:
                    mirrored = [node + platform.servers_per_rack for node in nodes]
                    if mirrored[-1] < first + platform.servers:
                        yield _box(platform, (*nodes, *mirrored), every, range(per_chip))
        for lane in range(per_chip):
            yield _box(platform, servers, every, (lane,))
            yield from (_box(platform, servers, (place,), (lane,)) for place in every)


def _powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]


def _aligned(platform: Platform, first: int) -> Iterator[tuple[int, ...]]:
    """Yield the runs of 1, 2, 4, ... servers of one rack of an instance that start at a multiple of their number."""
    per_rack = platform.servers_per_rack
    for rack in range(first, first + platform.servers, per_rack):
        for size in _powers(per_rack):
            yield from (tuple(range(low, low + size)) for low in range(rack, rack + per_rack - size + 1, size))


def _nearest_boxes(platform: Platform, at: Geometry) -> Nearest:
    """Return the boxes near a group: of a full box, documented ones; else the smallest around and the largest inside.

    Source: topology §5; which of several is a convention.
    """
    wanted = frozenset(at.ranks)
    if box_fault(platform, at) is None and (len(at.chips) > 1 or platform.ranks_per_chip % at.per_chip == 0):
        groups = sorted(set(_documented_boxes(platform)), key=_size_and_ranks)
        inside = [group for group in groups if len(group) < len(wanted) and wanted.issuperset(group)]
        around = [group for group in groups if len(group) > len(wanted) and wanted.issubset(group)]
        same = _mirrored_half(platform, at)
        largest = max((len(group) for group in inside), default=0)
        return Nearest(
            same_size=(same,) if same is not None and same in groups else (),
            smaller=next((group for group in inside if len(group) == largest), None),
            larger=around[0] if around else None,
        )
    return Nearest((), _box_inside(platform, at), _box_around(platform, at))


def _mirrored_half(platform: Platform, at: Geometry) -> Group | None:
    """Return the box of the first half of the servers of a box in one rack, in both racks of the instance."""
    per_rack, half = platform.servers_per_rack, at.node_n // 2
    first = at.nodes[0] // platform.servers * platform.servers
    if len(at.racks) != 1 or at.node_n % 2 or platform.servers != 2 * per_rack:
        return None
    local = [node % per_rack for node in at.nodes[:half]]
    nodes = [first + per_rack * rack + server for rack in range(2) for server in local]
    return _box(platform, nodes, sorted({chip % platform.chips for chip in at.chips}), at.lanes)


def _box_around(platform: Platform, at: Geometry) -> Group:
    """Return the smallest full box with every rank of a group; lanes that do not divide a chip become all lanes."""
    per_rack, all_lanes = platform.servers_per_rack, platform.ranks_per_chip
    lanes = sorted({rank % all_lanes for rank in at.ranks})
    places = sorted({chip % platform.chips for chip in at.chips})
    if all_lanes % len(lanes) or (len(at.chips) == 1 and len(lanes) != 2):
        lanes = list(range(all_lanes))
    servers = sorted({node % per_rack for node in at.nodes})
    return _box(platform, [per_rack * rack + server for rack in at.racks for server in servers], places, lanes)


def _box_inside(platform: Platform, at: Geometry) -> Group | None:
    """Return the largest full box of two or more ranks inside a group, of several the one with the lowest ranks.

    The lanes and the places of a box are what some chips, or servers, have in common; where there are more such sets
    than `_MOST_SETS`, the rest is left out.
    """
    chips = platform.chips
    lanes_of = lanes_by_chip(platform, at.ranks)
    here = {chip: _mask(lanes) for chip, lanes in lanes_of.items()}
    best = min((_chip_part(platform, chip, lanes_of[chip]) for chip in here), key=lambda part: (-len(part), part))
    for lanes in _intersections(here.values()):
        places: dict[int, int] = {}
        for chip, mask in here.items():
            if mask & lanes == lanes:
                places[chip // chips] = places.get(chip // chips, 0) | 1 << chip % chips
        for common in _intersections(places.values()):
            nodes = [node for node, mask in places.items() if mask & common == common]
            each = lanes.bit_count() * common.bit_count()
            for chosen in _same_servers(platform, nodes):
                if len(chosen) * common.bit_count() > 1 and len(chosen) * each >= max(2, len(best)):
                    found = _box(platform, chosen, _members(common), _members(lanes))
                    best = found if len(found) > len(best) else min(best, found)
    return best or None


def _chip_part(platform: Platform, chip: int, lanes: Sequence[int]) -> Group:
    """Return the most ranks of these of one chip that are a group: all of a chip, those of a die, or two."""
    all_lanes = range(platform.ranks_per_chip)
    half = len(all_lanes) // _DIES
    for part in (all_lanes, all_lanes[:half], all_lanes[half:]):
        if len(part) >= _PART_OF_CHIP and set(part).issubset(lanes):
            return _box(platform, (chip // platform.chips,), (chip % platform.chips,), part)
    return _box(platform, (chip // platform.chips,), (chip % platform.chips,), lanes[:2]) if len(lanes) > 1 else ()


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def _members(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _intersections(masks: Iterable[int]) -> list[int]:
    """Return what some of the sets have in common and is not empty, at most `_MOST_SETS`, in a fixed order."""
    closed: set[int] = set()
    for mask in sorted(set(masks), key=lambda mask: (-mask.bit_count(), mask)):
        if len(closed) >= _MOST_SETS:
            break
        closed |= {mask} | {mask & other for other in closed}
    closed.discard(0)
    return sorted(closed, key=lambda mask: (-mask.bit_count(), mask))[:_MOST_SETS]


def _same_servers(platform: Platform, nodes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the servers of each rack alone, and those that all racks have."""
    racks = _servers_by_rack(platform, nodes)
    per_rack = platform.servers_per_rack
    for rack, servers in racks.items():
        yield [per_rack * rack + server for server in servers]
    common = sorted(set.intersection(*map(set, racks.values()))) if racks else []
    if common and len(racks) > 1:
        yield [per_rack * rack + server for rack in racks for server in common]
