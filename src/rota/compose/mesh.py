"""MESH: the full mesh of Trn1 and Inf2 and of the network, and which mesh a plan or a leg runs.

    flavour  subtypes           blocks                    events
    pair     t0                 the two ranks             LOCAL_HNDSHK, REDUCE_COPY, SYNC
    full     t2, t4, network    chips, or single ranks    LOCAL_HNDSHK, GLOBAL_HNDSHK, then those of `chip_mesh`
    grouped  Inf2               six ranks                 `grouped`
    chip     passes 0 and 1     chips                     `chip_mesh`

Full: an all-gather carries each chunk to one member of every block, who copies it to its mates; behind a reduction
every rank writes its own slice to all outputs.

Pair: reads both inputs, writes the own output (2R1W); in place, rank h combines half h and writes both outputs.

A leg of a hierarchy takes `how_of` for its groups and one of the writers; all use queue 0 of their board. Every list
begins with its handshakes; `may_skip_handshake` says when the runtime leaves the global one out.

Source: compose §12.1; the movement, convention there.
"""

from __future__ import annotations

from typing import Final, assert_never

import numpy as np

from rota.compose import chip_mesh, grouped
from rota.compose.all_to_all import compose_all_to_all
from rota.compose.board import Board, Leaf, Region
from rota.compose.chip_mesh import Events, Exchange, Flavour, Landing, MeshHow, Shards, blocks_of, own_shards
from rota.errors import UnsupportedError
from rota.facts import HIGH, Source, Verdict, no, yes
from rota.isa.enums import CommScope, EncOp, MeshType
from rota.isa.events import EventType
from rota.machine.geometry import geometry
from rota.machine.platform import Platform
from rota.request import Groups
from rota.schedule.ir import Schedule
from rota.select.admission import Candidate, mesh_type, over_switch
from rota.select.choose import Plan
from rota.select.settings import Settings

SKIP_SOURCE: Final = Source("compose", "12.3, double buffer", HIGH)
SWITCH_SOURCE: Final = Source("compose", "12.6", HIGH)
SECOND_PASS: Final = "mesh pass 1"
"""Name of the second DMA pass among the subtypes."""

PAIR_EVENTS: Final = Events(
    meet=EventType.EVT_LOCAL_HNDSHK,
    broadcast=EventType.EVT_REDUCE_COPY,
    gather=EventType.EVT_REDUCE_COPY,
    forward=EventType.EVT_REDUCE_COPY,
    write=EventType.EVT_REDUCE_COPY,
)
"""t0. Source: compose §12.1, high."""
FULL_EVENTS: Final = Events(
    meet=EventType.EVT_GLOBAL_HNDSHK,
    broadcast=EventType.EVT_INTER_GRP_BRDCST,
    gather=EventType.EVT_INTER_GRP_BRDCST_2,
    forward=EventType.EVT_INTER_GRP_BRDCST_2,
)
"""t2; it has no event for a broadcast in a group, so the second one between groups stands for it.

Source: compose §12.1, high; the second use, convention.
"""
TWO_NODE_EVENTS: Final = Events(
    meet=EventType.EVT_GLOBAL_HNDSHK,
    broadcast=EventType.EVT_INTER_GRP_BRDCST,
    gather=EventType.EVT_INTER_GRP_BRDCST,
    forward=EventType.EVT_INTRA_GRP_BRDCST,
)
"""t4, which has one broadcast. Source: compose §12.1, high."""


def how_of(platform: Platform, groups: Groups, settings: Settings, *, number: int = 0) -> MeshHow:
    """Return the mesh that groups of machine ranks run, by where they stand.

    Args:
        groups: of equal size; for blocks of more than one rank they must be alike in their chips.
        number: the DMA pass of a per-device mesh.
    """
    shape = geometry(platform, groups[0])
    scope = CommScope.INTRA if shape.node_n == 1 else CommScope.INTER
    kind, _ = mesh_type(Candidate(platform, shape, settings, scope, 1, False))
    if kind is MeshType.GROUPED_MESH:
        return grouped.grouped_mesh(groups)
    if kind is not MeshType.FULL_MESH:
        return chip_mesh.chip_mesh(platform, groups, number=number)
    if shape.node_n == 1 and shape.rank_n == 2:
        blocks = np.broadcast_to(np.arange(2), (len(groups), 1, 2)).copy()
        return MeshHow(Flavour.PAIR, blocks, PAIR_EVENTS, duplicates=platform.arch != "sunda")
    events = TWO_NODE_EVENTS if shape.node_n == 2 else FULL_EVENTS
    return MeshHow(Flavour.FULL, blocks_of(groups, platform.ranks_per_chip), events)


def may_skip_handshake(settings: Settings) -> Verdict:
    """Return whether the runtime may leave out the global handshake of every other operation.

    Schedules always have it: it is right either way, and a schedule stands for any operation of a program.

    Source:
        compose §12.3, high.
    """
    if not settings.mesh_double_buffer:
        return no("NEURON_RT_DBG_MESH_DOUBLE_BUF=0: there is one mesh buffer, so all ranks meet before it", SKIP_SOURCE)
    if settings.mesh_global_handshake:
        name = "NEURON_RT_DBG_ENFORCE_MESH_GLOBAL_HANDSHAKE"
        return no(f"{name}={settings.mesh_global_handshake}: all ranks meet before every operation", SKIP_SOURCE)
    return yes("the mesh buffer has two halves, so alternate operations need no global handshake", SKIP_SOURCE)


def can_compose(plan: Plan) -> Verdict:
    """Return whether the groups of a plan run a mesh of this page; groups over the switch have builders of their own.

    Source:
        compose §12.6.
    """
    shape = plan.geometries[0]
    if over_switch(plan.platform, shape):
        text = "its chips are joined by a switch, whose meshes compose.switch writes"
        return no(f"a mesh of {shape.rank_n} ranks: {text}", SWITCH_SOURCE)
    _, because = mesh_type(Candidate(plan.platform, shape, plan.settings, plan.scope, 1, False))
    return yes(f"a mesh of {shape.rank_n} ranks: {because.reason}", because.source)


def refuse_switch(plan: Plan) -> None:
    """Raise unless `can_compose` agrees.

    Raises:
        UnsupportedError: the groups lie over a switch.
    """
    verdict = can_compose(plan)
    if not verdict:
        raise UnsupportedError(verdict.reason, source=verdict.source)


# --- writers ----------------------------------------------------------------------------------------------------------


def write_reduce_scatter(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write a reduce-scatter: shard k of every rank's source, combined, to shard 0 of position k's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    write = grouped.write_reduce_scatter if how.flavour is Flavour.GROUPED else chip_mesh.write_reduce_scatter
    write(board, how, source, target, size, fence_first=fence_first)


def write_all_gather(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-gather: shard 0 of position k's source to shard k of every rank's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    chip_mesh.write_all_gather(board, how, source, target, size, fence_first=fence_first)


def write_all_reduce(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce of whole buffers.

    Args:
        size: bytes of the buffer.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    match how.flavour:
        case Flavour.PAIR:
            _pair_all_reduce(board, how, source, target, size, fence=fence_first)
        case Flavour.FULL:
            _full_all_reduce(board, how, source, target, size, fence=fence_first)
        case Flavour.GROUPED:
            grouped.write_all_reduce(board, how, source, target, size, fence_first=fence_first)
        case Flavour.CHIP:
            chip_mesh.write_all_reduce(board, how, source, target, size, fence_first=fence_first)
        case _:
            assert_never(how.flavour)


def _full_all_reduce(board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence: bool) -> None:
    """Write t2 or t4: reduce by blocks, meet the mates again where inputs are overwritten, write to all outputs."""
    phases = Exchange(board, how.blocks, how.events, how.prefix)
    phases.handshakes(fence=fence)
    shards = Shards.cut(board.ranks, size)
    own = own_shards(target, shards)
    phases.scatter(source, own, shards, fence=fence)
    again = phases.mates if source.buffer == target.buffer else []
    phases.meet(EventType.EVT_REDUCE_LOCAL_HNDSHK, again, fence_wait=True)
    phases = Exchange(board, how.flat, how.events, how.prefix, step=phases.step)
    event = how.events.gather
    phases.gather(Landing.OWN, own, target, shards, between=event, inside=event, fence=not again)


def _pair_all_reduce(board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence: bool) -> None:
    """Write t0: each rank combines the whole of both inputs, or in place its half for both."""
    phases = Exchange(board, how.blocks, how.events, how.prefix)
    phases.handshakes(fence=fence)
    me, in_place = phases.me, source.buffer == target.buffer
    half = Shards.cut(2, size) if in_place else Shards.of(Region(source.buffer), 2, size)
    reads = [phases.place(source, np.full_like(me, rank), half.start(me)) for rank in range(2)]
    writes = [phases.place(target, rank, half.start(me)) for rank in (me, *(phases.mates if in_place else ()))]
    event, step, sizes = EventType.EVT_REDUCE_COPY, phases.step, half.size[me]
    first = writes if how.duplicates else writes[:1]
    board.rows(Leaf.MESH_REDUCE, me, size=sizes, reads=reads, writes=first, op=board.op, event=event, step=step)
    if in_place and not how.duplicates:
        copy, to = [writes[0]], writes[1:]
        board.rows(Leaf.MESH_SEND, me, size=sizes, reads=copy, writes=to, event=event, step=step, part=1, fence=True)
    phases.step += 1
    phases.meet(EventType.EVT_SYNC, phases.mates)


# --- plans ------------------------------------------------------------------------------------------------------------


def compose_mesh(plan: Plan) -> Schedule:
    """Compose a mesh collective of every group of a plan.

    All-reduce, all-gather (also of unequal shards), reduce-scatter, all-to-all and all-to-all-v.

    Raises:
        UnsupportedError: the groups lie over a switch, or an all-to-all takes more iterations than a schedule numbers.

    Source:
        compose §12.1 to §12.3 and §12.7.
    """
    refuse_switch(plan)
    request = plan.request
    if request.kind in (EncOp.ALLTOALL, EncOp.ALLTOALL_V):
        return compose_all_to_all(plan)
    assert request.kind in (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER), "a mesh does no other collective"
    board = Board.of(request)
    number = int(plan.carrier is not None and plan.carrier.name == SECOND_PASS)
    for part, groups in parts_of(board, plan.platform, request.groups):
        how = how_of(plan.platform, groups, plan.settings, number=number)
        given, wanted = Region(board.input), Region(board.output)
        match request.kind:
            case EncOp.ALLREDUCE:
                write_all_reduce(part, how, given, wanted, request.size)
            case EncOp.REDUCE_SCATTER:
                write_reduce_scatter(part, how, Region(board.input, 0, request.share), wanted, request.share)
            case _:
                counts = request.gather_counts or (request.share // request.itemsize,) * request.ranks
                shards = Shards.packed([count * request.itemsize for count in counts])
                chip_mesh.gather_shards(part, how, given, wanted, shards)
    return board.schedule()


def parts_of(board: Board, platform: Platform, groups: Groups) -> list[tuple[Board, Groups]]:
    """Return a board for the groups of each shape: those that have equally many chips and nodes, equally filled."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, group in enumerate(groups):
        nodes = {rank // platform.node_ranks for rank in group}
        shape = (*blocks_of([group], platform.ranks_per_chip).shape, len(nodes))
        shapes.setdefault(shape, []).append(number)
    if len(shapes) == 1:
        return [(board, groups)]
    return [
        (board.part(board.members[numbers], prefix=f"shape{k}."), tuple(groups[number] for number in numbers))
        for k, numbers in enumerate(shapes.values())
    ]
