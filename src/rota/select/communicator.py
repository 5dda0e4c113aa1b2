"""What is made once for a replica group: its shape, its rings, what it may use, and the subtypes of its mesh.

The runtime does this when a communicator is initialised; `rules` then answers for each operation. A group on several
nodes also has a communicator inside a node and one across the nodes, which a hierarchy uses leg by leg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rota.facts import CONVENTION, HIGH, Source, Verdict, no, yes
from rota.isa.enums import Algorithm, CommScope, EncOp, MeshType
from rota.machine.geometry import Geometry, geometry, inter_groups, intra_groups
from rota.machine.group import Wiring, wire
from rota.machine.partition import format_ranks
from rota.machine.platform import Platform, Shape
from rota.machine.topology import one_die_turns
from rota.select.admission import TRN1, Candidate, admissions, mesh_type
from rota.select.limits import Row, Subtype, Table
from rota.select.settings import Settings, intra_rdh_bytes
from rota.select.subtypes import Shape as MeshShape
from rota.select.subtypes import subtypes

_FLAT: Final = Source("select", "5.2", CONVENTION)
_WIRED: Final = Source("select", "5.2", HIGH)
_OWNED_PORTS: Final = Source("topology", "4, KangaRing with owned ports", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class Communicator:
    """One replica group, or one level of it, ready to be asked about operations.

    Attributes:
        scope: INTER when its messages cross the network or a pod's links, else INTRA.
        ring: whether the runtime builds a ring for it, and why.
        kangaring: whether it builds a KangaRing.
        subtypes: of its mesh, in slot order; empty where no mesh is admitted.
        offered: operation -> the subtypes the mesh predicate asks, with their rows; `halving` likewise for RDH.
        intra, inter: the levels of a hierarchy; None where there is none.
        steps, held: of a level: the sizes between which a slot holds one algorithm, and what it holds between them.
    """

    platform: Platform
    geometry: Geometry
    wiring: Wiring
    settings: Settings
    scope: CommScope
    streams: int
    admitted: Mapping[Algorithm, Verdict]
    ring: Verdict
    kangaring: Verdict
    mesh_type: MeshType
    flavour: Verdict
    subtypes: tuple[Subtype, ...]
    offered: Mapping[EncOp, Table]
    halving: Mapping[EncOp, Table]
    intra: Communicator | None
    inter: Communicator | None
    admissions: tuple[tuple[Algorithm, Verdict], ...] = ()  # `admitted` in order
    steps: dict[str, list[int]] = field(default_factory=dict, repr=False)  # kept by `hierarchy`, made when asked for
    held: dict[tuple[str, bool, int], tuple[Algorithm, Algorithm]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "admissions", tuple(self.admitted.items()))

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.geometry.ranks)

    @property
    def nodes(self) -> int:
        """Nodes of the group."""
        return len(self.geometry.nodes)


def communicator(
    platform: Platform,
    ranks: Sequence[int],
    settings: Settings,
    *,
    streams: int = 1,
    pairs: bool = False,
    any_group: bool = False,
) -> Communicator:
    """Make the communicator of a replica group, with the levels of its hierarchy.

    Args:
        streams: collective streams of the program.
        pairs: the group was made from source-target pairs.
        any_group: let a group pass that the machine's rules refuse.

    Raises:
        UsageError: a rank is outside the machine, or named twice.
        UnsupportedError: the group cannot be wired, or its nodes are not alike.
    """
    wiring = wire(platform, ranks, any_group=any_group)
    shape = geometry(platform, wiring.ranks)
    across = (len(shape.nodes) > 1 and platform.shape is not Shape.SWITCH) or shape.use_net
    at = Candidate(platform, shape, settings, CommScope.INTER if across else CommScope.INTRA, streams, pairs)
    intra = inter = None
    admitted = admissions(at)
    if admitted[Algorithm.HIER]:
        within, between = intra_groups(platform, shape)[0], inter_groups(platform, shape)[0]
        intra = _level(at, within, CommScope.INTRA, any_group=any_group)
        inter = _level(at, between, CommScope.INTER, any_group=any_group)
    return _make(at, wiring, admitted, intra, inter)


def _level(whole: Candidate, ranks: tuple[int, ...], scope: CommScope, *, any_group: bool) -> Communicator:
    """Make one level of a hierarchy, which has no levels of its own."""
    wiring = wire(whole.platform, ranks, any_group=any_group)
    at = replace(whole, geometry=geometry(whole.platform, ranks), scope=scope)
    return _make(at, wiring, admissions(at), None, None)


def _make(
    at: Candidate,
    wiring: Wiring,
    admitted: Mapping[Algorithm, Verdict],
    intra: Communicator | None,
    inter: Communicator | None,
) -> Communicator:
    flavour, because = mesh_type(at)
    built = subtypes(_mesh_shape(at, flavour, admitted)) if _any_mesh(admitted) else ()
    return Communicator(
        platform=at.platform,
        geometry=at.geometry,
        wiring=wiring,
        settings=at.settings,
        scope=at.scope,
        streams=at.streams,
        admitted=admitted,
        ring=_ring(at, wiring),
        kangaring=_kangaring(at, wiring, admitted[Algorithm.KANGARING]),
        mesh_type=flavour,
        flavour=because,
        subtypes=built,
        offered=_by_op([one for one in built if not one.is_rdh and admitted[one.reported]]),
        halving=_by_op([one for one in built if one.is_rdh]),
        intra=intra,
        inter=inter,
    )


def _any_mesh(admitted: Mapping[Algorithm, Verdict]) -> bool:
    """Return whether a mesh object is made: any variant is admitted. Source: select §2, high."""
    return any(
        admitted[variant]
        for variant in (
            Algorithm.MESH,
            Algorithm.SINGLE_STEP_MESH,
            Algorithm.TWO_STEP_POD_MESH,
            Algorithm.LATENCY_OPT_MESH,
            Algorithm.BW_OPT_MESH,
        )
    )


def _by_op(built: Sequence[Subtype]) -> Mapping[EncOp, Table]:
    found: dict[EncOp, list[tuple[Subtype, Row]]] = {}
    for subtype in built:
        for row in subtype.rows:
            found.setdefault(row.op, []).append((subtype, row))
    return {op: Table(tuple(rows)) for op, rows in found.items()}


def _mesh_shape(at: Candidate, flavour: MeshType, admitted: Mapping[Algorithm, Verdict]) -> MeshShape:
    shape = at.geometry
    return MeshShape(
        mesh_type=flavour,
        lnc=at.platform.lnc,
        ranks=at.ranks,
        nodes=at.nodes,
        local_rack_rank_n=shape.local_rack_rank_n,
        chips=len(shape.chips) // at.nodes,
        pod=at.nodes if shape.enable_pod else 1,
        one_rank_per_chip=shape.per_chip == 1,
        channel_buffer=at.settings.mesh_channel_buffer,
        double_buffer=at.settings.mesh_double_buffer,
        rdh=_rdh_limit(at) if admitted[Algorithm.INTRA_RDH] else 0,
    )


def _rdh_limit(at: Candidate) -> int:
    """Return the largest size whose plan fits the scratch of recursive doubling and halving.

    A rank keeps its part of the on-chip sums, 1/L of the size, and what it receives while halving over D chips, one
    (D-1)/D of that again.

    Source: select §7.4, convention.
    """
    chips, lanes = len(at.geometry.chips), at.geometry.per_chip
    buffer = intra_rdh_bytes(at.settings, at.platform.arch)
    return buffer * lanes * chips // (2 * chips - 1)


def _ring(at: Candidate, wiring: Wiring) -> Verdict:
    """Return whether the runtime has a ring for the group; a flat one over nodes with several ranks only on Trn1."""
    several = at.nodes > 1 and not at.one_per_node
    if several and at.platform.family not in TRN1:
        return no("no flat ring is built over several nodes with several ranks each", _FLAT)
    if not wiring.channels and at.ranks > 1:
        return no(wiring.verdict.reason, wiring.verdict.source)
    return yes(wiring.verdict.reason, wiring.verdict.source or _WIRED)


def _kangaring(at: Candidate, wiring: Wiring, admitted: Verdict) -> Verdict:
    """Return whether a KangaRing is built: an admitted group whose primaries own the ports they use."""
    if not admitted:
        return admitted
    if at.platform.shape is Shape.SWITCH:
        return admitted
    if len(at.geometry.chips) == 2:
        return no("two chips share one cable each way, so a primary cannot own both its ports", _OWNED_PORTS)
    if len(wiring.channels) < 2:
        return no("it goes round a cycle of chips, and these are an open chain", _OWNED_PORTS)
    per_chip = at.geometry.per_chip
    walk = [rank // per_chip for rank in wiring.channels[0].order[::per_chip]]
    turns = one_die_turns(at.platform, walk)
    if turns:
        chips = format_ranks(sorted(turns))
        return no(f"the ring turns on one die of chips {chips}, where one pair would own both its ports", _OWNED_PORTS)
    return admitted
