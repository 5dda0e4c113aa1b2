"""The subtypes of each mesh flavour, in slot order, with their limit tables.

Which flavour a communicator has is decided in `admission`. A sourced number is marked high; what the specification
leaves open is a convention, chosen so that everything fits where it must go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rota.facts import CONVENTION, HIGH, MEDIUM, Source, Verdict, no
from rota.isa.enums import Algorithm, EncOp, MeshType
from rota.select.limits import NOTHING, UNBOUNDED, Row, Subtype, Window

KIB: Final = 1 << 10
MIB: Final = 1 << 20
MAX_SUBTYPES: Final = 20
"""Slots of a mesh communicator, ENC_MAX_MESH_SUBTYPES. Source: select §7.1, high."""

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
A2A, A2AV = EncOp.ALLTOALL, EncOp.ALLTOALL_V
GRANULE: Final = 32
"""Slots are cut at multiples of this many bytes. Source: select §7.3, convention."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the builders read of a communicator.

    Attributes:
        mesh_type: the flavour.
        local_rack_rank_n: ranks of the group in each rack; the key of the switch's tables.
        chips: chips of the group on each node.
        pod: nodes of the pod the group spans; 1 outside pods.
        one_rank_per_chip: every chip of the group holds one member.
        channel_buffer: bytes of the mesh channel buffer.
        double_buffer: two halves, used in turn.
        rdh: the window of recursive doubling and halving is built, up to this size; 0 where it is not.
    """

    mesh_type: MeshType
    lnc: int
    ranks: int
    nodes: int
    local_rack_rank_n: int
    chips: int
    pod: int
    one_rank_per_chip: bool
    channel_buffer: int
    double_buffer: bool
    rdh: int


def subtypes(shape: Shape) -> tuple[Subtype, ...]:
    """Return the populated and the refused slots of a mesh communicator, in scan order."""
    match shape.mesh_type:
        case MeshType.FULL_MESH:
            return full_mesh(shape)
        case MeshType.GROUPED_MESH:
            return grouped_mesh(shape)
        case MeshType.MESH_TRN2:
            return per_device(shape)
        case MeshType.MESH_SWITCH:
            return switch(shape)
        case MeshType.INVALID:
            return ()


# --- full mesh: Trn1, Inf2, and Trn2 across nodes ---------------------------------------------------------------------

_FULL: Final = Source("select", "7.3", HIGH)
_FULL_OURS: Final = Source("select", "7.3", CONVENTION)
TWO_RANK_LIMIT: Final = 0x10000000
"""t0, two ranks of one node: everything up to here goes in a single step. Source: select §7.3, high."""
SINGLE_STEP_LIMIT: Final = 0x8000
"""t1 and the single step of a Trn2 device. Source: select §7.3, high; §7.4, convention."""
DIRECT_LIMIT: Final = MIB
"""What is written straight to a peer's output takes no channel buffer. Source: select §7.3, convention."""


def full_mesh(shape: Shape) -> tuple[Subtype, ...]:
    """Return t0, or t1 and t2, of one node; t3 and t4 of two nodes; t2 of more.

    Source:
        select §7.3. A group's share is the channel buffer divided by all ranks.
    """
    share = shape.channel_buffer // shape.ranks
    slots = share // GRANULE * GRANULE
    exchange = (_row(A2A, DIRECT_LIMIT, _FULL_OURS), _row(A2AV, DIRECT_LIMIT, _FULL_OURS))
    several = (
        _row(AR, min(shape.ranks * slots, shape.channel_buffer), _FULL_OURS),
        _row(RS, slots, _FULL_OURS),
        _row(AG, DIRECT_LIMIT, _FULL_OURS),
    )
    if shape.nodes == 1 and shape.ranks == 2:
        both = (_row(AG, TWO_RANK_LIMIT, _FULL_OURS), _row(RS, TWO_RANK_LIMIT, _FULL_OURS))
        return _slots(
            ("t0", Algorithm.SINGLE_STEP_MESH, (_row(AR, TWO_RANK_LIMIT, _FULL),)),
            ("t0", Algorithm.MESH, (*both, *exchange)),
        )
    if shape.nodes == 2:
        return _slots(
            ("t3", Algorithm.MESH, (_row(A2AV, DIRECT_LIMIT, _FULL_OURS),)),
            ("t4", Algorithm.MESH, (*several, exchange[0])),
        )
    step = ("t1", Algorithm.SINGLE_STEP_MESH, (_row(AR, min(SINGLE_STEP_LIMIT, share), _FULL),))
    rest = ("t2", Algorithm.MESH, (*several, *exchange))
    return _slots(step, rest) if shape.nodes == 1 else _slots(rest)


def grouped_mesh(shape: Shape) -> tuple[Subtype, ...]:
    """Return the subtype of Inf2's grouped mesh: the limits of t2, without all-to-all-v. Source: select §5.3, §7.3."""
    slots = shape.channel_buffer // shape.ranks // GRANULE * GRANULE
    rows = (
        _row(AR, min(shape.ranks * slots, shape.channel_buffer), _FULL_OURS),
        _row(RS, slots, _FULL_OURS),
        _row(AG, DIRECT_LIMIT, _FULL_OURS),
        _row(A2A, DIRECT_LIMIT, _FULL_OURS),
    )
    return _slots(("grouped", Algorithm.MESH, rows))


# --- the per-device mesh of Trn2 and Trn3 -----------------------------------------------------------------------------

_PER_DEVICE: Final = Source("select", "7.4", CONVENTION)
FIRST_PASS_LIMIT: Final = 256 * KIB
"""Up to here the first pass serves; above it the second, with more DMA engines. Source: select §7.4, convention."""
SECOND_PASS_LIMIT: Final = MIB
"""Where the documented range of the mesh ends. Source: select §7.4, convention."""
RDH_LIMIT: Final = 56 * MIB
"""Where the documented range of recursive doubling and halving ends. Source: select §7.4, convention."""
POD_SHARE: Final = 4
"""A two-step pod operation uses the channel buffer divided by this. Source: select §7.4, convention."""
POD: Final = 4
"""Nodes of a pod whose opposite node is no neighbour, so that a mesh takes two steps. Source: compose §12.5, high."""


def per_device(shape: Shape) -> tuple[Subtype, ...]:
    """Return both passes of the per-device builder, then recursive doubling and halving.

    In a pod of four nodes the two-step builders take the place of the plain ones, because no cable leads to the
    opposite node; all-to-all stays.

    Source:
        select §7.4; compose §12.3 and §12.5.
    """
    step = min(SINGLE_STEP_LIMIT, shape.channel_buffer // shape.ranks // (2 if shape.double_buffer else 1))
    two_steps = shape.pod == POD
    built: list[tuple[str, Algorithm, tuple[Row, ...]]] = []
    for number, (low, high) in enumerate(((0, FIRST_PASS_LIMIT), (FIRST_PASS_LIMIT, SECOND_PASS_LIMIT))):
        name = f"mesh pass {number}"
        exchange = UNBOUNDED if number else high
        if not two_steps:
            built += [
                (name, Algorithm.MESH, (_row(AR, high, _PER_DEVICE, low or step),)),
                (name, Algorithm.MESH, (_row(RS, high, _PER_DEVICE, low),)),
                (name, Algorithm.MESH, (_row(AG, high, _PER_DEVICE, low),)),
            ]
        swap = (_row(A2A, exchange, _PER_DEVICE, low), _row(A2AV, exchange, _PER_DEVICE, low))
        built.append((name, Algorithm.MESH, swap))
        if not number:
            pod = tuple(_row(op, shape.channel_buffer // POD_SHARE, _PER_DEVICE) for op in (AR, RS, AG))
            single = ("single-step", Algorithm.SINGLE_STEP_MESH, (_row(AR, step, _PER_DEVICE),))
            built.append(("two-step pod", Algorithm.TWO_STEP_POD_MESH, pod) if two_steps else single)
    meshes = _slots(*built)
    if not shape.rdh:
        return meshes
    rows = tuple(_row(op, min(RDH_LIMIT, shape.rdh), _PER_DEVICE, SECOND_PASS_LIMIT) for op in (AR, RS, AG))
    return (*meshes, Subtype(len(meshes), "rdh", Algorithm.INTRA_RDH, rows, is_rdh=True))


# --- the switch -------------------------------------------------------------------------------------------------------

_MENU: Final = Source("switch_schedule", "2", HIGH)
_KEYED: Final = Source("switch_schedule", "5.2", HIGH)
_TWIN: Final = Source("switch_schedule", "5.2, which twin", MEDIUM)
_SWITCH_OURS: Final = Source("select", "7.5", CONVENTION)
_GATHER_OURS: Final = Source("design", "2 (5), latency-opt all-gather", CONVENTION)
_REPLACED: Final = Source("design", "2 (29), one rank per chip", CONVENTION)
CAP: Final = 0x400000
"""Largest message of the latency-optimised algorithms. Source: switch_schedule §5.2, high."""
BANDWIDTH_LIMITS: Final[Mapping[int, int]] = MappingProxyType(
    {4: 0x400000, 8: 0x400000, 16: 0x1000000, 32: 0x1800000, 64: 0x1800000, 128: 0x1800000}
)
"""Largest message of the bandwidth-optimised all-gather, by ranks in a rack. Source: switch_schedule §5.2, high."""
SINGLE_STEP_LIMITS: Final[Mapping[int, int]] = MappingProxyType(
    {4: 0x20000, 8: 0x8000, 16: 0x4000, 32: 0x2000, 64: 0x2000}
)
"""Largest message of the single-step all-reduce, by ranks in a rack. Source: switch_schedule §5.2, high."""
SINGLE_STEP_RANKS: Final = 64
"""Most ranks in a rack for which the single step is built. Source: switch_schedule §1, high."""


def switch(shape: Shape) -> tuple[Subtype, ...]:
    """Return the seven slots of the switch's menu, in its order; a builder that refuses leaves its slot empty.

    The two builders for one rank per chip take the place of items 1, 2, 5 and 6, as slots 0 and 4.

    Source:
        switch_schedule §2 for the order; §5 and select §7.5 for the limits; design §2 (4), (5) and (29).
    """
    latency = min(2 * shape.channel_buffer, CAP)
    scatter = _row(RS, latency // shape.ranks, _SWITCH_OURS)
    exchange = (_row(A2A, UNBOUNDED, _SWITCH_OURS), _row(A2AV, UNBOUNDED, _SWITCH_OURS))
    gather = min(shape.channel_buffer // max(shape.local_rack_rank_n, 1), CAP)
    menu = [
        _offer(0, "latency-opt all-gather", Algorithm.LATENCY_OPT_MESH, _static(AG, gather, _GATHER_OURS)),
        _bandwidth(1, shape, AG, 0),
        _offer(2, "reduce-scatter", Algorithm.MESH, scatter),
        _single_step(3, shape),
        _offer(4, "latency-opt all-reduce", Algorithm.LATENCY_OPT_MESH, _static(AR, latency, _KEYED)),
        _bandwidth(5, shape, AR, latency),
        _offer(6, "latency-opt all-to-all", Algorithm.LATENCY_OPT_MESH, *exchange)
        if shape.lnc == 2
        else _refuse(6, "latency-opt all-to-all", Algorithm.LATENCY_OPT_MESH, _no_lnc1("latency-opt all-to-all")),
    ]
    if shape.one_rank_per_chip:
        for slot, op, name in ((0, AG, "one-rank-per-chip all-gather"), (4, AR, "one-rank-per-chip all-reduce")):
            menu[slot] = _offer(slot, name, Algorithm.MESH, _static(op, CAP, _SWITCH_OURS))
        for slot in (1, 5):
            because = no("the builder for one rank per chip takes its place", _REPLACED)
            menu[slot] = _refuse(slot, menu[slot].name, Algorithm.BW_OPT_MESH, because)
    return tuple(menu)


def _bandwidth(slot: int, shape: Shape, op: EncOp, minimum: int) -> Subtype:
    name = "bandwidth-opt all-gather" if op is AG else "bandwidth-opt all-reduce"
    if shape.lnc != 2:
        return _refuse(slot, name, Algorithm.BW_OPT_MESH, _no_lnc1(name))
    limit = BANDWIDTH_LIMITS.get(shape.local_rack_rank_n)
    if limit is None:
        known = ", ".join(map(str, BANDWIDTH_LIMITS))
        because = f"Unsupported rank ({shape.local_rack_rank_n}) for building {name}: it takes {known} in a rack"
        return _refuse(slot, name, Algorithm.BW_OPT_MESH, no(because, _KEYED))
    row = _static(op, limit, _KEYED if op is AG else _SWITCH_OURS, minimum)
    return _offer(slot, name, Algorithm.BW_OPT_MESH, row)


def _single_step(slot: int, shape: Shape) -> Subtype:
    name, ranks = "single-step all-reduce", shape.local_rack_rank_n
    if ranks > SINGLE_STEP_RANKS:
        because = f"{ranks} ranks in a rack: the single step is built for at most {SINGLE_STEP_RANKS}"
        return _refuse(slot, name, Algorithm.SINGLE_STEP_MESH, no(because, _MENU))
    limit = SINGLE_STEP_LIMITS.get(ranks)
    if limit is None:
        because = f"Unsupported rank ({ranks}) for building {name}: it takes {_list(SINGLE_STEP_LIMITS)}"
        return _refuse(slot, name, Algorithm.SINGLE_STEP_MESH, no(because, _SWITCH_OURS))
    halves = 2 if shape.double_buffer else 1
    room = shape.channel_buffer // shape.ranks // halves
    if room < limit:
        return _offer(slot, name, Algorithm.SINGLE_STEP_MESH, _static(AR, room, _SWITCH_OURS))
    return _offer(slot, name, Algorithm.SINGLE_STEP_MESH, _static(AR, limit, _TWIN))


# --- rows and slots ---------------------------------------------------------------------------------------------------


def _row(op: EncOp, maximum: int, source: Source, minimum: int = 0) -> Row:
    """Return a row with one window for both kinds of operands. Source: select §7.5, convention (mirrored twins)."""
    window = Window(minimum, maximum)
    return Row(op, window, window, source)


def _static(op: EncOp, maximum: int, source: Source, minimum: int = 0) -> Row:
    """Return a row whose plain window stays 0, as the switch's builders write it. Source: design §2 (4)."""
    return Row(op, NOTHING, Window(minimum, maximum), source)


def _slots(*built: tuple[str, Algorithm, tuple[Row, ...]]) -> tuple[Subtype, ...]:
    assert len(built) <= MAX_SUBTYPES, "more subtypes than a communicator has slots"
    return tuple(Subtype(slot, name, reported, rows) for slot, (name, reported, rows) in enumerate(built))


def _offer(slot: int, name: str, reported: Algorithm, *rows: Row) -> Subtype:
    return Subtype(slot, name, reported, rows)


def _refuse(slot: int, name: str, reported: Algorithm, because: Verdict) -> Subtype:
    return Subtype(slot, name, reported, (), refused=because)


def _no_lnc1(name: str) -> Verdict:
    return no(f"{name} does not support LNC1", _MENU)


def _list(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
