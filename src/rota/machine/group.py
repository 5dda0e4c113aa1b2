"""Replica groups on a machine: which rings a group gets, over which cables, and why not more.

How a group is written is in `partition`, which groups are documented in `layouts`, how a ring passes a chip in `rings`.

Source of every rule here unless said otherwise: topology §4, high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source, Verdict, yes
from rota.machine.cycles import first_cycle, first_path, node_cycles
from rota.machine.layouts import is_documented, nearest
from rota.machine.partition import format_groups, format_ranks, parse_groups
from rota.machine.platform import Platform
from rota.machine.rings import Channel, both_ways, channel, chip_order, cycle_order, folded_order
from rota.machine.topology import dimension, distance, neighbours, one_die_turns

__all__ = ["Channel", "Wiring", "format_groups", "format_ranks", "parse_groups", "wire"]

_TABLE: Final = Source("topology", "4", HIGH)
_CHOICE: Final = Source("topology", "4", CONVENTION)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The rings of one group. A group of one rank has none, and needs none."""

    ranks: tuple[int, ...]  # members in the caller's order
    chips: tuple[int, ...]  # ascending
    lanes: tuple[int, ...]  # ascending; the same on every chip
    channels: tuple[Channel, ...]  # forward rings, then their reversals in the same order
    verdict: Verdict  # why this many channels
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rings:
    channels: tuple[Channel, ...]
    because: str
    source: Source
    cycle: tuple[int, ...] = ()  # the chips of the forward ring where KangaRing could ask for it


def wire(platform: Platform, ranks: Sequence[int]) -> Wiring:
    """Return the rings of a group, or refuse it with the reason.

    Args:
        platform: the machine.
        ranks: the members; their order decides nothing about the rings.

    Raises:
        UsageError: there is no rank, or one is outside the machine or named twice.
        UnsupportedError: no ring can be wired: unequal lanes on the chips, a part of the lanes of several chips, three
            lanes of one chip, or chips whose cables form no cycle and no chain that can be folded.
    """
    members = _members(platform, ranks)
    lanes_of = _lanes_of(platform, members)
    chips = tuple(sorted(lanes_of))
    lanes = _equal_lanes(platform, members, lanes_of)
    if len(members) == 1:
        verdict = yes("a group of one rank is a local copy: it needs no ring channel", _TABLE)
        return Wiring(members, chips, lanes, (), verdict, ())
    rings = (
        _on_one_chip(platform, members, chips[0], lanes) if len(chips) == 1 else _rings(platform, members, chips, lanes)
    )
    verdict = yes(f"{_gets(platform, len(rings.channels))}, because {rings.because}", rings.source)
    return Wiring(members, chips, lanes, rings.channels, verdict, _warnings(platform, members, rings))


# --- the shape of a group ---------------------------------------------------------------------------------------------


def _members(platform: Platform, ranks: Sequence[int]) -> tuple[int, ...]:
    members = tuple(int(rank) for rank in ranks)
    if not members:
        raise UsageError("group: expected at least one rank, got none")
    seen: set[int] = set()
    for rank in members:
        if not 0 <= rank < platform.ranks:
            raise UsageError(f"group: rank {rank} is not on {platform.name}, expected 0 to {platform.ranks - 1}")
        if rank in seen:
            raise UsageError(f"group: rank {rank} is named twice, name each rank once")
        seen.add(rank)
    return members


def _lanes_of(platform: Platform, members: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return chip -> its lanes in the group, both ascending."""
    lanes: dict[int, list[int]] = {}
    for rank in sorted(members):
        chip, lane = divmod(rank, platform.ranks_per_chip)
        lanes.setdefault(chip, []).append(lane)
    return {chip: tuple(here) for chip, here in lanes.items()}


def _equal_lanes(platform: Platform, members: Sequence[int], lanes_of: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the lanes that every chip has; one that differs is named, beside the first chip with the most lanes."""
    full = max(lanes_of, key=lambda chip: (len(lanes_of[chip]), -chip))
    lanes = lanes_of[full]
    for chip, here in lanes_of.items():
        if here != lanes:
            found, wanted = (format_ranks(chip_order(platform, at, lanes_of[at])) for at in (chip, full))
            _refuse(platform, members, f"chip {chip} has ranks {found} in it where chip {full} has {wanted}")
    if len(lanes_of) > 1 and len(lanes) not in (1, platform.ranks_per_chip):
        some = " and ".join(map(str, lanes))
        _refuse(platform, members, f"it has lanes {some} of each chip, and a ring takes all lanes or one")
    return lanes


# --- its rings --------------------------------------------------------------------------------------------------------


def _on_one_chip(platform: Platform, members: Sequence[int], chip: int, lanes: tuple[int, ...]) -> _Rings:
    order = chip_order(platform, chip, lanes)
    if len(lanes) == 2:
        return _Rings((channel(platform, order),), "a ring of two ranks on one chip is its own reversal", _TABLE)
    if len(lanes) != platform.ranks_per_chip:
        have = f"{len(lanes)} of the {platform.ranks_per_chip} ranks of chip {chip}"
        _refuse(platform, members, f"it has {have}, and a ring on one chip takes two or all")
    return _Rings(
        both_ways(platform, [order]), "its one chip uses no cable: a ring on the chip and its reversal", _TABLE
    )


def _rings(platform: Platform, members: Sequence[int], chips: tuple[int, ...], lanes: tuple[int, ...]) -> _Rings:
    if len(chips) == platform.chips:
        orders = [cycle_order(platform, cycle, lanes) for cycle in node_cycles(platform)]
        return _Rings(both_ways(platform, orders), "its chips have 2 edge-disjoint cycles", _TABLE)
    if len(chips) == 2 and distance(platform, *chips) == 1:
        because = f"{_only(0)}: chips {chips[0]} and {chips[1]} share one cable, out and back"
        return _Rings((channel(platform, cycle_order(platform, chips, lanes)),), because, _TABLE)
    cycle = first_cycle(platform, chips)
    if cycle is not None:
        asks = cycle if len(lanes) > 1 else ()
        return _Rings(both_ways(platform, [cycle_order(platform, cycle, lanes)]), _only(1), _TABLE, asks)
    path = first_path(platform, chips)
    if path is None:
        _refuse(platform, members, f"{_only(0)}: {_no_chain(platform, chips)}")
    chain = f"chips {' '.join(map(str, path))} are an open chain"
    if len(lanes) == 1:
        _refuse(platform, members, f"{_only(0)}: {chain}, and one rank of each chip cannot go out and come back")
    because = f"{_only(0)}: {chain}, and one ring goes out and back along it"
    return _Rings((channel(platform, folded_order(platform, path)),), because, _CHOICE)


# --- words ------------------------------------------------------------------------------------------------------------


def _gets(platform: Platform, count: int) -> str:
    return f"this group gets {count} of the node's {2 * (dimension(platform) // 2)} ring channels"


def _only(cycles: int) -> str:
    return f"its chips have only {cycles} edge-disjoint cycle{'' if cycles == 1 else 's'}"


def _refuse(platform: Platform, members: Sequence[int], because: str) -> NoReturn:
    near = f"; documented groups near it: {nearest(platform, members)}"
    raise UnsupportedError(f"{_gets(platform, 0)}, because {because}{near}", source=_TABLE)


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


def _warnings(platform: Platform, members: tuple[int, ...], rings: _Rings) -> tuple[str, ...]:
    count = len(rings.channels)
    wired = f"wired with {count} ring channel{'' if count == 1 else 's'}"
    warnings: list[str] = []
    documented = is_documented(platform, members)
    if not documented:
        warnings.append(f"{documented.reason}; it is {wired}; documented groups near it: {nearest(platform, members)}")
    turns = one_die_turns(platform, rings.cycle)
    if turns:
        at = f"chip{'' if len(turns) == 1 else 's'} {format_ranks(sorted(turns))}"
        warnings.append(f"the group is {wired} that turn on one die of {at}: KangaRing cannot own its ports there")
    return tuple(warnings)
