"""The predicates of the flat cascade on one node: each a pure function that says yes or no, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, MEDIUM, Source, Verdict, no, yes
from rota.isa.enums import Algorithm, EncOp
from rota.machine.group import Wiring
from rota.machine.partition import format_ranks
from rota.machine.platform import Family, Platform
from rota.machine.topology import one_die_turns
from rota.request import KIND_NAMES, Request
from rota.select.limits import RDH_LIMIT, Limit, mesh_limits
from rota.units import format_size

_ADMISSION: Final = Source("select", "4", HIGH)
_ADMISSION_OURS: Final = Source("select", "4", CONVENTION)
_RDH: Final = Source("select", "5.1", HIGH)
_RDH_GEOMETRY: Final = Source("select", "5.2", CONVENTION)
_PRIMARIES: Final = Source("design", "2 (13)", CONVENTION)
_OWNED_PORTS: Final = Source("topology", "4, KangaRing with owned ports", CONVENTION)
_SINGLE_CYCLE: Final = Source("all-reduce", "6.1", HIGH)
_RING: Final = Source("select", "5.2", HIGH)
_NO_ROW: Final = Source("select", "7.1", MEDIUM)

MESH_RANKS: Final = frozenset({2, 4, 8, 16, 32, 64, 128})
RDH_RANKS: Final = frozenset({4, 8, 16, 64})
RDH_CHIPS: Final = frozenset({1, 2, 4, 16})
KANGARING_LEAST_RANKS: Final = {1: 9, 2: 5}
KANGARING_LEAST_PER_CHIP: Final = 4


@dataclass(frozen=True, slots=True)
class Situation:
    """What the predicates look at: one group of a request, on one node."""

    request: Request
    platform: Platform
    wiring: Wiring

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.wiring.ranks)

    @property
    def per_chip(self) -> int:
        """Ranks of the group on each of its chips."""
        return len(self.wiring.lanes)


def can_hier(_: Situation) -> Verdict:
    """A hierarchy needs several nodes."""
    return no("the group lies on one node, and a hierarchy needs ranks on several", _ADMISSION)


def can_intra_rdh(at: Situation) -> Verdict:
    """Recursive doubling and halving: whole chips, 1, 2, 4 or 16 of them, inside its size window."""
    if at.platform.family in (Family.TRN1, Family.TRN1N):
        return no("recursive doubling is built for chips of 4 or 8 ranks, and these have 2", _RDH_GEOMETRY)
    if at.ranks not in RDH_RANKS or len(at.wiring.chips) not in RDH_CHIPS or at.per_chip != at.platform.ranks_per_chip:
        return no(
            f"{at.ranks} ranks on {len(at.wiring.chips)} chips: it takes all ranks of 1, 2, 4 or 16 chips, "
            f"{', '.join(map(str, sorted(RDH_RANKS)))} ranks in all",
            _RDH,
        )
    return _in_window(at, (RDH_LIMIT,))


def can_mesh(at: Situation) -> Verdict:
    """A mesh: an admitted number of ranks, and a variant whose window holds the size."""
    trn1 = at.platform.family in (Family.TRN1, Family.TRN1N)
    if at.ranks < 2 or (not trn1 and at.ranks not in MESH_RANKS):
        return no(f"{at.ranks} ranks: a mesh takes {', '.join(map(str, sorted(MESH_RANKS)))}", _ADMISSION_OURS)
    return _in_window(at, mesh_limits(at.platform.family, at.ranks))


def can_kangaring(at: Situation) -> Verdict:
    """KangaRing looks at the topology alone: pairs on every chip, and owned ports along a cycle of chips."""
    if at.per_chip < KANGARING_LEAST_PER_CHIP:
        ranks = "1 rank" if at.per_chip == 1 else f"{at.per_chip} ranks"
        return no(f"{ranks} a chip: it needs at least {KANGARING_LEAST_PER_CHIP}", _PRIMARIES)
    least = KANGARING_LEAST_RANKS[at.platform.lnc]
    if at.ranks < least:
        return no(f"{at.ranks} ranks: at LNC {at.platform.lnc} it needs at least {least}", _ADMISSION)
    if len(at.wiring.chips) == 2:
        return no("two chips share one cable each way, so a primary cannot own both its ports", _OWNED_PORTS)
    if len(at.wiring.channels) == 1:
        return no("it goes round a cycle of chips, and these are an open chain", _OWNED_PORTS)
    order = at.wiring.channels[0].order
    turns = one_die_turns(at.platform, [rank // at.per_chip for rank in order[:: at.per_chip]])
    if turns:
        chips = format_ranks(sorted(turns))
        return no(f"the ring turns on one die of chips {chips}, where one pair would own both its ports", _OWNED_PORTS)
    return yes(f"{len(at.wiring.chips)} whole chips on a ring", _ADMISSION)


def can_single_cycle_ring(at: Situation) -> Verdict:
    """Single-cycle ring is for all-reduce alone, between nodes. Source: all-reduce §6.1, high."""
    if at.request.kind is not EncOp.ALLREDUCE:
        return no(f"it does only all_reduce, not {KIND_NAMES[at.request.kind]}", _SINGLE_CYCLE)
    return no("it runs between nodes with one rank each, and the group lies on one", _ADMISSION)


def can_inter_rdh(_: Situation) -> Verdict:
    """Recursive doubling between nodes needs one rank on each of at least eight."""
    return no("it runs between nodes with one rank each, and the group lies on one", _ADMISSION)


def can_ring(at: Situation) -> Verdict:
    """The ring is always admitted where it can be wired."""
    return Verdict(True, at.wiring.verdict.reason, at.wiring.verdict.source or _RING)


CASCADE: Final = (
    (Algorithm.HIER, can_hier),
    (Algorithm.INTRA_RDH, can_intra_rdh),
    (Algorithm.MESH, can_mesh),
    (Algorithm.KANGARING, can_kangaring),
    (Algorithm.SINGLE_CYCLE_RING, can_single_cycle_ring),
    (Algorithm.INTER_RDH, can_inter_rdh),
    (Algorithm.RING, can_ring),
)
"""All predicates are asked; the first in this order that agrees wins. Source: select §5.2, high."""


def admitting(at: Situation, limits: tuple[Limit, ...]) -> Limit | None:
    """Return the first row that takes the request's size."""
    size = at.request.select_size
    return next((row for row in limits if row.admits(at.request.kind, size)), None)


def _in_window(at: Situation, limits: tuple[Limit, ...]) -> Verdict:
    size = format_size(at.request.select_size)
    row = admitting(at, limits)
    if row is not None:
        window = f"above {format_size(row.minimum)} and up to {format_size(row.maximum)}"
        return yes(f"size {size} is in the window of {row.name}, {window}", row.source)
    offered = [row for row in limits if at.request.kind in row.kinds]
    if not offered:
        return no(f"no variant does {KIND_NAMES[at.request.kind]}", _NO_ROW)
    low, high = min(row.minimum for row in offered), max(row.maximum for row in offered)
    return no(
        f"size {size} is outside its windows, above {format_size(low)} and up to {format_size(high)}",
        offered[-1].source,
    )
