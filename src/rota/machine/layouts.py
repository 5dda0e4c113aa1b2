"""Documented replica groups: which a machine lists, and which of them lie near a group that somebody asked for.

A documented group is a `Layout` of the machine file, moved to any place its routing id bits allow. A group may be
wired without being documented; `group` decides about that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rota.facts import HIGH, Source, Verdict, no, yes
from rota.machine.partition import format_ranks
from rota.machine.platform import Layout, Platform
from rota.machine.topology import routing_id

_SUGGESTIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Nearest:
    """Documented groups near one that was asked for, each in ascending rank order."""

    same_size: tuple[tuple[int, ...], ...]  # at most two, each with at least half of the ranks in common
    smaller: tuple[int, ...] | None  # of the largest documented size below
    larger: tuple[int, ...] | None  # of the smallest documented size above

    def __str__(self) -> str:
        parts = []
        if self.same_size:
            parts.append(" or ".join(format_ranks(group) for group in self.same_size) + " (same size)")
        if self.smaller is not None:
            parts.append(f"{format_ranks(self.smaller)} (smaller)")
        if self.larger is not None:
            parts.append(f"{format_ranks(self.larger)} (larger)")
        return ", ".join(parts)


def documented_groups(platform: Platform) -> tuple[tuple[int, ...], ...]:
    """Return every documented group of two or more ranks, each once, by size and then by ranks.

    Source: platforms §5, high; the places, topology §4, as marked in the machine file.
    """
    groups = {group for layout in platform.layouts for group in _places(platform, layout)}
    return tuple(sorted(groups, key=lambda group: (len(group), group)))


def is_documented(platform: Platform, ranks: Sequence[int]) -> Verdict:
    """Return whether a group is one of the documented ones; the reason tells a wrong size from a wrong place."""
    source = Source("platforms", "5", HIGH)
    groups = documented_groups(platform)
    count = len(ranks)
    if tuple(sorted(ranks)) in groups:
        return yes(f"this group of {count} ranks is documented on {platform.name}", source)
    if any(len(group) == count for group in groups):
        return no(f"groups of {count} ranks are documented on {platform.name}, but not with these ranks", source)
    return no(f"groups of {count} ranks are not documented on {platform.name}", source)


def nearest(platform: Platform, ranks: Sequence[int]) -> Nearest:
    """Return the documented groups near the given ranks: most ranks in common, then the lowest ranks.

    Source: topology §4; that one of the same size shares at least half of the ranks is a convention.
    """
    wanted = frozenset(ranks)
    count = len(wanted)
    groups = sorted(documented_groups(platform), key=lambda group: (-len(wanted.intersection(group)), group))
    below = max((len(group) for group in groups if len(group) < count), default=None)
    above = min((len(group) for group in groups if len(group) > count), default=None)
    return Nearest(
        same_size=tuple(
            group for group in groups if len(group) == count and 2 * len(wanted.intersection(group)) >= count
        )[:_SUGGESTIONS],
        smaller=next((group for group in groups if len(group) == below), None),
        larger=next((group for group in groups if len(group) == above), None),
    )


def _places(platform: Platform, layout: Layout) -> list[tuple[int, ...]]:
    """Return the groups of one layout: a cube of chips for each value of the other bits, and one for each lane set."""
    varying = sum(1 << bit for bit in layout.bits)
    cubes: dict[int, list[int]] = {}
    for chip in range(platform.chips):
        cubes.setdefault(routing_id(platform, chip) & ~varying, []).append(chip)
    per_chip = platform.ranks_per_chip
    lane_sets = [range(per_chip)] if layout.lanes == per_chip else [range(lane, lane + 1) for lane in range(per_chip)]
    return [
        tuple(per_chip * chip + lane for chip in chips for lane in lanes)
        for chips in cubes.values()
        for lanes in lane_sets
    ]
