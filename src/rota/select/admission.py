"""What a communicator may use at all: the admission gate of each algorithm, and the flavour of its mesh.

These are asked once, when the communicator is made; what depends on an operation or its size is in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Source, Verdict, no, yes
from rota.isa.enums import Algorithm, CommScope, MeshType
from rota.machine.geometry import Geometry
from rota.machine.layouts import RACK_CHIPS, RACK_KEYS
from rota.machine.legality import MESH_RANKS
from rota.machine.platform import Family, Platform, Shape
from rota.machine.topology import is_subcube
from rota.select.settings import OFF, Settings, admits
from rota.select.subtypes import POD

_GATE: Final = Source("select", "4", HIGH)
_GATE_OURS: Final = Source("select", "4, enc_enable_mesh_alg", CONVENTION)
_BITMAP: Final = Source("select", "3.1, NEURON_RT_CC_ALG_TYPES", MEDIUM)
_SWITCH_GATE: Final = Source("select", "4", MEDIUM)
_FIELD: Final = Source("select", "4, node_n == 1 or a pod of four ranks", HIGH)
_ACROSS: Final = Source("design", "2 (8), cross-node mesh", CONVENTION)
_NODES: Final = Source("select", "3.1, NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES", LOW)
_ERRORS: Final = Source("select", "10", HIGH)
_FLAVOUR: Final = Source("select", "7.2", HIGH)
_FLAVOUR_OURS: Final = Source("select", "7.2", MEDIUM)
_RDH: Final = Source("select", "5.1", HIGH)
_RDH_GEOMETRY: Final = Source("select", "5.2", CONVENTION)
_WHOLE_CHIPS: Final = Source("select", "4, KANGARING needs the whole chip", HIGH)
_PRIMARIES: Final = Source("design", "2 (13)", CONVENTION)
_KANGARING_MOST: Final = Source("compose", "1.1", HIGH)
_DEVICES: Final = Source("topology", "5, Trn3", CONVENTION)

TRN1: Final = frozenset({Family.TRN1, Family.TRN1N})
FULL_MESH_FAMILIES: Final = TRN1 | {Family.INF2E}
"""Families 2, 3 and 7, with a full mesh. Source: select §7.2, high."""
INF2_RANKS: Final = (2, 4, 8)
"""Ranks with which an Inf2 full mesh is admitted. Source: select §7.2, high."""
INF2_GROUP: Final = 6
"""A grouped mesh takes multiples of this many ranks. Source: select §7.2, high."""
RDH_CHIPS: Final = (1, 2, 4, 16)
"""Chips of recursive doubling and halving: {4, 8, 16, 64} ranks at 4 a chip. Source: select §5.1, high."""
RDH_PER_CHIP: Final = {1: 8, 2: 4}
"""Ranks of each chip of recursive doubling and halving, by LNC. Source: select §5.2, convention."""
INTER_RDH_LEAST: Final = 8
"""Fewest ranks of recursive doubling and halving between nodes. Source: select §4, high."""
KANGARING_LEAST_RANKS: Final = {1: 9, 2: 5}
"""Fewest ranks of a KangaRing, by LNC. Source: select §4, high."""
KANGARING_LEAST_PER_CHIP: Final = 4
"""Fewest ranks of a chip for a primary on each side of it. Source: design §2 (13)."""
KANGARING_MOST_RANKS: Final = 256
"""NEC_KANGARING_MAX_NUM_RANKS. Source: compose §1.1, high."""
_MODES: Final = {
    Algorithm.HIER: "NEURON_RT_DBG_HIERARCHICAL_CC",
    Algorithm.KANGARING: "NEURON_RT_DBG_KANGARING_CC",
    Algorithm.SINGLE_CYCLE_RING: "NEURON_RT_DBG_SINGLE_CYCLE_RING_ALLR_CC",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """What admission looks at: a group on a machine, as one level of a communicator."""

    platform: Platform
    geometry: Geometry
    settings: Settings
    scope: CommScope
    streams: int
    pairs: bool  # the group comes from source-target pairs

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.geometry.ranks)

    @property
    def nodes(self) -> int:
        """Nodes of the group."""
        return len(self.geometry.nodes)

    @property
    def one_per_node(self) -> bool:
        """Whether every node holds one member."""
        return self.ranks == self.nodes


def admissions(at: Candidate) -> Mapping[Algorithm, Verdict]:
    """Return for every algorithm whether the communicator may use it. Source: select §4, high."""
    mesh = _mesh(at)
    flavour = mesh_type(at)[0]
    admitted = _unless_excluded(at, Algorithm.MESH, mesh)
    return {
        Algorithm.RING: yes("a ring is always admitted", _GATE),
        Algorithm.HIER: _unless_excluded(at, Algorithm.HIER, _hier(at), CommScope.INTER),
        Algorithm.MESH: admitted,
        Algorithm.KANGARING: _unless_excluded(at, Algorithm.KANGARING, _kangaring(at)),
        Algorithm.SINGLE_CYCLE_RING: _unless_excluded(at, Algorithm.SINGLE_CYCLE_RING, _single_cycle(at)),
        Algorithm.INTRA_RDH: _unless_excluded(at, Algorithm.INTRA_RDH, _intra_rdh(at, admitted, flavour)),
        Algorithm.SINGLE_STEP_MESH: _unless_excluded(at, Algorithm.SINGLE_STEP_MESH, mesh),
        Algorithm.INTER_RDH: _unless_excluded(at, Algorithm.INTER_RDH, _inter_rdh(at)),
        Algorithm.TWO_STEP_POD_MESH: _unless_excluded(at, Algorithm.TWO_STEP_POD_MESH, _two_step_pod(at, mesh)),
        Algorithm.LATENCY_OPT_MESH: _unless_excluded(at, Algorithm.LATENCY_OPT_MESH, _on_switch(mesh, flavour)),
        Algorithm.BW_OPT_MESH: _unless_excluded(at, Algorithm.BW_OPT_MESH, _on_switch(mesh, flavour)),
    }


def _unless_excluded(at: Candidate, algorithm: Algorithm, verdict: Verdict, scope: CommScope | None = None) -> Verdict:
    """Return the verdict, or that the admission bitmap excludes the algorithm; the bitmap is asked first."""
    scope = at.scope if scope is None else scope
    if admits(at.settings.alg_types, algorithm, scope):
        return verdict
    return no(f"NEURON_RT_CC_ALG_TYPES excludes {algorithm.name} in scope {scope.name}", _BITMAP)


def _gate(otherwise: Verdict, *tests: tuple[bool, str, Source]) -> Verdict:
    """Return a no for the first test that holds, with its reason, else the given verdict."""
    refused = _refusal(*tests)
    return otherwise if refused is None else refused


def _refusal(*tests: tuple[bool, str, Source]) -> Verdict | None:
    """Return a no for the first test that holds, with its reason; None where none does."""
    return next((no(reason, source) for holds, reason, source in tests if holds), None)


# --- one gate for each family -----------------------------------------------------------------------------------------


def _hier(at: Candidate) -> Verdict:
    local, nodes = at.geometry.local_rank_n, at.nodes
    return _gate(
        yes(f"{nodes} nodes with {local} ranks each", _GATE),
        (nodes == 1, "the group lies on one node, and a hierarchy needs ranks on several", _GATE),
        (local * nodes != at.ranks, "its nodes hold different ranks, and a hierarchy needs the same on each", _GATE),
        (local < 2, "one rank on each node: a hierarchy needs at least two", _GATE),
        (at.pairs, "source-target pairs have no hierarchy", _GATE),
        (at.settings.hier_mode == OFF, f"{_MODES[Algorithm.HIER]}={OFF} turns it off", _GATE),
    )


def _kangaring(at: Candidate) -> Verdict:
    lnc, per_chip = at.platform.lnc, at.geometry.per_chip
    ranks = "1 rank" if per_chip == 1 else f"{per_chip} ranks"
    least = KANGARING_LEAST_RANKS[lnc]
    whole = f"{per_chip} of {at.platform.ranks_per_chip} ranks a chip: it needs whole chips"
    return _gate(
        yes(f"{len(at.geometry.chips)} whole chips on a ring", _GATE),
        (at.streams > 1, f"{at.streams} streams: it takes one", _GATE),
        (at.scope is CommScope.INTER, "the group spans nodes, and it runs on one", _GATE),
        (at.settings.kangaring_mode == OFF, f"{_MODES[Algorithm.KANGARING]}={OFF} turns it off", _GATE),
        (
            per_chip < KANGARING_LEAST_PER_CHIP,
            f"{ranks} a chip: it needs at least {KANGARING_LEAST_PER_CHIP}",
            _PRIMARIES,
        ),
        (not at.geometry.whole_chips, whole, _WHOLE_CHIPS),
        (at.ranks < least, f"{at.ranks} ranks: at LNC {lnc} it needs at least {least}", _GATE),
        (
            at.ranks > KANGARING_MOST_RANKS,
            f"{at.ranks} ranks: it takes at most {KANGARING_MOST_RANKS}",
            _KANGARING_MOST,
        ),
    )


def _single_cycle(at: Candidate) -> Verdict:
    if at.scope is not CommScope.INTER or at.nodes == 1:
        return no("it runs between nodes with one rank each, and the group lies on one", _GATE)
    if not at.one_per_node:
        return no(f"{at.ranks} ranks on {at.nodes} nodes: it needs one rank on each", _GATE)
    if at.settings.single_cycle_mode == OFF:
        return no(f"{_MODES[Algorithm.SINGLE_CYCLE_RING]}={OFF}, the default, turns it off", _GATE)
    return yes(f"one rank on each of {at.nodes} nodes", _GATE)


def _intra_rdh(at: Candidate, mesh: Verdict, flavour: MeshType) -> Verdict:
    geometry, per_chip = at.geometry, RDH_PER_CHIP[at.platform.lnc]
    chips, two = len(geometry.chips), at.platform.family in TRN1 or at.platform.family is Family.INF2
    shape = chips in RDH_CHIPS and geometry.per_chip == per_chip and geometry.whole_chips
    counts = ", ".join(str(per_chip * each) for each in RDH_CHIPS)
    takes = f"it takes all ranks of 1, 2, 4 or 16 chips, {counts} ranks in all"
    axes = "its chips are no subcube of the routing ids, so that halving has no axes"
    return _gate(
        yes(f"all ranks of {chips} chip{'s' * (chips > 1)}", _RDH),
        (at.scope is CommScope.INTER or at.nodes > 1, "the group spans nodes, and it runs on one", _GATE),
        (at.streams > 1, f"{at.streams} streams: it takes one", _GATE),
        (not at.settings.rdh_mode, "NEURON_RT_DBG_RDH_CC=0 turns it off", _GATE),
        (two, "recursive doubling is built for chips of 4 or 8 ranks, and these have 2", _RDH_GEOMETRY),
        (not shape, f"{at.ranks} ranks on {chips} chips: {takes}", _RDH),
        (not mesh, f"it shares the mesh's channel, and no mesh is admitted: {mesh.reason}", _GATE),
        (flavour is not MeshType.MESH_TRN2, "a mesh on the switch has no recursive doubling", _RDH_GEOMETRY),
        (shape and not is_subcube(at.platform, geometry.chips), axes, _RDH_GEOMETRY),
    )


def _inter_rdh(at: Candidate) -> Verdict:
    if at.scope is not CommScope.INTER or at.nodes == 1:
        return no("it runs between nodes with one rank each, and the group lies on one", _GATE)
    if not at.one_per_node:
        return no(f"{at.ranks} ranks on {at.nodes} nodes: it needs one rank on each", _GATE)
    if at.ranks < INTER_RDH_LEAST or at.ranks & (at.ranks - 1):
        return no(f"{at.ranks} ranks: it needs a power of two, at least {INTER_RDH_LEAST}", _GATE)
    if at.geometry.enable_pod:
        return no("the nodes are a pod, and it runs over the network", _GATE)
    return yes(f"one rank on each of {at.nodes} nodes, a power of two", _GATE)


def _two_step_pod(at: Candidate, mesh: Verdict) -> Verdict:
    if not mesh:
        return mesh
    if not at.geometry.enable_pod or at.nodes != POD:
        return no(f"it runs over the {POD} nodes of a pod", _GATE)
    return yes(f"{at.nodes} nodes of one pod", _GATE)


def _on_switch(mesh: Verdict, flavour: MeshType) -> Verdict:
    if not mesh:
        return mesh
    if flavour is not MeshType.MESH_SWITCH:
        return no("only a mesh on the switch has it", _SWITCH_GATE)
    return yes("a mesh on the switch", _SWITCH_GATE)


# --- the mesh ---------------------------------------------------------------------------------------------------------


def over_switch(platform: Platform, geometry: Geometry) -> bool:
    """Return whether a mesh of these ranks lies over a switch. Source: select §7.2."""
    return platform.shape is Shape.SWITCH and geometry.local_rack_rank_n > 1 and len(geometry.chips) > 1


def mesh_type(at: Candidate) -> tuple[MeshType, Verdict]:
    """Return the flavour of a communicator's mesh. Source: select §7.2; the switch is asked first, design §2 (12)."""
    family = at.platform.family
    if over_switch(at.platform, at.geometry):
        if family is not Family.TRN3PDS98:
            return MeshType.INVALID, no("Unsupported instance family for event-based algorithms", _ERRORS)
        return MeshType.MESH_SWITCH, yes("several chips on the switch", _FLAVOUR)
    if family >= Family.TRN2 and family is not Family.INF2E:
        if at.nodes == 1 or at.one_per_node:
            return MeshType.MESH_TRN2, yes("one node, or one rank on each", _FLAVOUR_OURS)
        return MeshType.FULL_MESH, yes("several nodes with several ranks each", _FLAVOUR_OURS)
    return _older_mesh(at)


def _older_mesh(at: Candidate) -> tuple[MeshType, Verdict]:
    """Return the flavour of Trn1 and Inf2, which goes by the number of ranks."""
    family = at.platform.family
    if family in FULL_MESH_FAMILIES or at.ranks in INF2_RANKS:
        return MeshType.FULL_MESH, yes(f"{family.name} has a full mesh", _FLAVOUR)
    if at.ranks % INF2_GROUP == 0 and at.nodes == 1:
        return MeshType.GROUPED_MESH, yes(f"{at.ranks} ranks are whole groups of {INF2_GROUP}", _FLAVOUR)
    return MeshType.INVALID, no(f"Mesh algo untested with {at.ranks} ranks on this instance type", _FLAVOUR)


def _mesh(at: Candidate) -> Verdict:
    flavour, because = mesh_type(at)
    refused = _refusal(
        (at.ranks < 2, "a group of one rank needs no mesh", _GATE),
        (not at.settings.mesh, "NEURON_RT_DBG_MESH_CC=0 turns it off", _GATE),
        (at.streams > 1, f"{at.streams} streams: Mesh does not work with multiple streams", _ERRORS),
        (flavour is MeshType.INVALID, because.reason, because.source or _FLAVOUR),
    )
    if refused is not None:
        return refused
    if flavour is MeshType.MESH_SWITCH:
        return _switch_mesh(at)
    return _mesh_across_nodes(at) if at.nodes > 1 else _mesh_on_a_node(at)


def _mesh_across_nodes(at: Candidate) -> Verdict:
    """Across nodes a mesh has one rank on each; the runtime asserts that the other case is a pod of four ranks.

    Four ranks on the nodes of a pod are one a node as well, so one condition says both.

    Source:
        select §4; design §2 (8).
    """
    most = at.settings.inter_mesh_max_nodes
    asserted = "across nodes a mesh takes one rank on each (node_n == 1 || (rank_n == 4 && enable_pod))"
    far = at.nodes > most and not at.geometry.enable_pod
    return _gate(
        yes(f"one rank on each of {at.nodes} nodes", _ACROSS),
        (not at.one_per_node, f"{at.ranks} ranks on {at.nodes} nodes: {asserted}", _FIELD),
        (far, f"{at.nodes} nodes: NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES is {most}", _NODES),
    )


def _mesh_on_a_node(at: Candidate) -> Verdict:
    family, per_chip = at.platform.family, at.geometry.per_chip
    if family is Family.INF2 or family in FULL_MESH_FAMILIES:
        return yes(f"{at.ranks} ranks on one node of {at.platform.name}", _GATE_OURS)
    unequal = "its chips hold different numbers of ranks, and a mesh needs equal ones"
    return _gate(
        yes(f"{at.ranks} ranks, {per_chip} on each chip", _GATE_OURS),
        (
            at.ranks not in MESH_RANKS,
            f"{at.ranks} ranks: a mesh takes {', '.join(map(str, sorted(MESH_RANKS)))}",
            _GATE_OURS,
        ),
        (not per_chip, unequal, _GATE_OURS),
    )


def _switch_mesh(at: Candidate) -> Verdict:
    geometry, most = at.geometry, at.settings.inter_mesh_max_nodes
    if at.scope is CommScope.INTER and at.nodes > most:
        return no(f"{at.nodes} nodes: NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES is {most}", _NODES)
    ranks, chips = geometry.local_rack_rank_n, len(geometry.chips)
    if geometry.per_chip == 1:
        return yes(f"one rank on each of {chips} chips", _PRIMARIES)
    if ranks not in RACK_KEYS:
        known = ", ".join(map(str, RACK_KEYS))
        return no(f"{ranks} ranks in each rack: a switch mesh takes {known}", _GATE_OURS)
    in_rack = chips // max(len(geometry.racks), 1)
    if in_rack > RACK_CHIPS:
        return no(f"{in_rack} chips in a rack: a switch mesh takes at most {RACK_CHIPS}", _DEVICES)
    return yes(f"{ranks} ranks in each rack, on {in_rack} chips", _GATE_OURS)
