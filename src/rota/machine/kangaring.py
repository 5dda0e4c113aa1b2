"""KangaRing paths: which ranks of a ring are primaries, and which secondaries read and write through each.

A channel's path follows its ring from chip to chip. On each chip it meets two core groups, one a die: the ranks of a
die are one primary and its secondaries. Primaries alone form the cycle, which leaves and enters every chip by ports its
primaries own. Which rings there are is decided in `group`; what moves along a path is the composer's business.

Source of every rule here unless said otherwise: topology §3, high; compose §7.1, high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import Neighbour
from rota.machine.group import Wiring
from rota.machine.machine_file import S_ENGINES
from rota.machine.platform import Platform
from rota.machine.rings import channel
from rota.machine.topology import ACROSS_DIES, ON_CHIP, SAME_DIE

RANKS_PER_CHIP: Final = (S_ENGINES, 2 * S_ENGINES)
"""Ranks of a chip on a path: one or both cores of its four s-engines. Source: compose §1.1, high."""

PEERS: Final = (Neighbour.PEER_RMTV, Neighbour.PEER_RMTV2, Neighbour.PEER_LOCAL)
"""What the secondaries of a primary are to it, in the order of a path; at LNC 2 the first alone.
Source: topology §3, high."""

_OWNED_PORTS: Final = Source("topology", "4, KangaRing with owned ports", CONVENTION)
_PRIMARIES: Final = Source("design", "2 (13), KangaRing", CONVENTION)
_WHOLE_CHIPS: Final = Source("select", "4, KANGARING needs the whole chip", HIGH)


@dataclass(frozen=True, slots=True)
class KangaPath:
    """One channel: its primaries in the order of their cycle, and the secondaries of each.

    Attributes:
        primaries: machine ranks; hop i goes from `primaries[i]` to the next of them, the last to the first.
        secondaries: of each primary, in the order of `kinds`.
        kinds: what each secondary is to its primary, the same for all.
        cables: hop -> directed link as in `rings.Channel`; -1 when the hop stays on its chip.
    """

    primaries: tuple[int, ...]
    secondaries: tuple[tuple[int, ...], ...]
    kinds: tuple[Neighbour, ...]
    cables: tuple[int, ...]

    @property
    def is_next_pcie(self) -> tuple[bool, ...]:
        """Whether each primary reaches the next by a link between chips; else the next is on the other die."""
        return tuple(cable != ON_CHIP for cable in self.cables)

    @property
    def group_size(self) -> int:
        """Ranks of a core group: the primary and its secondaries."""
        return 1 + len(self.kinds)

    @property
    def logical_path(self) -> tuple[int, ...]:
        """Every rank once: a primary, its secondaries, the next primary, ... Source: compose §7.1, high."""
        return tuple(
            rank
            for primary, others in zip(self.primaries, self.secondaries, strict=True)
            for rank in (primary, *others)
        )


def kanga_paths(platform: Platform, wiring: Wiring) -> tuple[KangaPath, ...]:
    """Return the path of each ring channel of a group, starting on its lowest chip.

    Where ranks own ports, the primaries of a chip own the port the ring enters by and the port it leaves by. At LNC 1
    both cores of an s-engine own its port: the first core is primary on forward channels, the second on reversals.
    Elsewhere (a switch) the primaries face each other across the dies, and channels take turns: even ones have lanes 0
    and 3 of a chip of four, odd ones 1 and 2.

    Raises:
        UnsupportedError: chips of neither four nor eight ranks, or not all of them in the group; no ring, or a ring
            that comes to a chip twice or enters and leaves it by ports of one die.

    Source:
        topology §3 and §4; which core is primary at LNC 1, and the roles behind a switch, convention.
    """
    per_chip = platform.ranks_per_chip
    if per_chip not in RANKS_PER_CHIP:
        takes = " or ".join(map(str, RANKS_PER_CHIP))
        raise UnsupportedError(
            f"KangaRing on {platform.name}: its chips have {per_chip} ranks, and it needs {takes}", source=_PRIMARIES
        )
    if not wiring.geometry.whole_chips:
        raise UnsupportedError(
            f"KangaRing: {wiring.geometry.per_chip} of {per_chip} ranks a chip: it needs whole chips",
            source=_WHOLE_CHIPS,
        )
    if not wiring.channels:
        raise UnsupportedError(f"KangaRing follows a ring: {wiring.verdict.reason}", source=wiring.verdict.source)
    count = len(wiring.channels)
    return tuple(
        _path(platform, ring.order, number=number, core=int(2 * number >= count > 1))
        for number, ring in enumerate(wiring.channels)
    )


def _path(platform: Platform, order: Sequence[int], *, number: int, core: int) -> KangaPath:
    """Return the path along one ring; `core` is the core of an s-engine that is primary where it has two."""
    per_engine = platform.ranks_per_chip // S_ENGINES
    core %= per_engine
    groups = [
        (chip, engine) for chip, ends in _chips(platform, order) for engine in _engines(platform, chip, ends, number)
    ]

    def rank(chip: int, engine: int, lane: int) -> int:
        return platform.ranks_per_chip * chip + per_engine * engine + lane

    primaries = tuple(rank(chip, engine, core) for chip, engine in groups)
    return KangaPath(
        primaries=primaries,
        secondaries=tuple(
            (
                rank(chip, engine ^ SAME_DIE, core),
                *(rank(chip, each, 1 - core) for each in (engine ^ SAME_DIE, engine) if per_engine > 1),
            )
            for chip, engine in groups
        ),
        kinds=PEERS if per_engine > 1 else PEERS[:1],
        cables=channel(platform, primaries).cables,
    )


def _chips(platform: Platform, order: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    """Return the chips of a ring from the lowest on, each with the ranks it enters and leaves by."""
    per_chip = platform.ranks_per_chip
    first = next((i for i in range(len(order)) if order[i] // per_chip != order[i - 1] // per_chip), 0)
    runs = [
        (chip, list(run)) for chip, run in groupby((*order[first:], *order[:first]), key=lambda rank: rank // per_chip)
    ]
    twice = next((chip for chip, run in runs if len(run) < per_chip), None)
    if twice is not None:
        raise UnsupportedError(
            f"KangaRing goes round a cycle of chips, and this ring comes to chip {twice} more than once",
            source=_OWNED_PORTS,
        )
    lowest = min(range(len(runs)), key=lambda i: runs[i][0])
    return [(chip, (run[0], run[-1])) for chip, run in runs[lowest:] + runs[:lowest]]


def _engines(platform: Platform, chip: int, ends: tuple[int, int], number: int) -> tuple[int, int]:
    """Return the s-engines of a chip's two primaries, numbered by lane, in the order of the ring."""
    per_engine = platform.ranks_per_chip // S_ENGINES
    entry, leave = (end % platform.ranks_per_chip // per_engine for end in ends)
    if platform.port_lane is None:
        return (number % 2, number % 2 ^ ACROSS_DIES)
    if entry | SAME_DIE == leave | SAME_DIE:
        raise UnsupportedError(
            f"KangaRing: the ring enters and leaves chip {chip} by ports of one die, and the primaries are on both; "
            "use another group, or Ring",
            source=_OWNED_PORTS,
        )
    return entry, leave
