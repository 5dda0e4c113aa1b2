"""INTRA_RDH: recursive halving and doubling over the chips of a node, with a stage on the chip before or after.

D = 2^k chips of L ranks. Ranks of one lane meet over the cables: in each round the chips whose routing ids differ in
one bit, lowest first to scatter, highest first to gather. A chunk has the lane of its owner (compose §11):

    reduce-scatter  handshake       mesh_notify to the chip-mates: "my input may be read"
                    on the chip     rdh_reduce  chunk x of all L inputs -> partial x, for the D chunks x of the own lane
                    handshake       mesh_notify to the partners: "my slots may be written"
                    round 0 .. k-1  rdh_send    partial x -> partner's slot, D/2, D/4, ... chunks of the partner's side
                                    rdh_reduce  slot + partial x -> partial x, of the own side; the last into the output
                    end             mesh_wait   the chip-mates have read my input
    all-gather      handshakes      mesh_notify to the partners, and to the chip-mates: "my output may be written";
                                    rdh_copy of the own chunk
                    round 0 .. k-1  rdh_send    chunks held -> partner's output, 1, 2, 4, ... of them
                    on the chip     rdh_copy    each of the D chunks of the own lane -> outputs of the L - 1 chip-mates
                    end             mesh_wait   the chip-mates' chunks have arrived

The scratch holds partials and slots of one piece of every chunk; larger chunks are scattered piece after piece. An
all-reduce keeps its partials in the output. Lanes may start on different axes, which spreads them over the cables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rota.columns import I64
from rota.compose.board import Board, Leaf, Region, Signal, Wait
from rota.compose.cube import (
    Credit,
    Cube,
    Doubling,
    Halving,
    Shards,
    Slots,
    aligned,
    may_hold_partials,
    semaphores,
    shard_sizes,
    write_copy,
)
from rota.compose.cut import GRANULE
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.machine.platform import Platform, Shape
from rota.machine.topology import dimension
from rota.schedule.ir import Schedule
from rota.select.choose import Plan
from rota.select.settings import Settings, intra_rdh_bytes
from rota.units import format_size

MAX_PIECES: Final = 1 << 11
"""Most pieces of a chunk: with 16 chips, a row's `part` is below 2 x 16 x pieces, in 16 bits. Source: schedule §1."""

SUNDA: Final = "sunda"
"""The architecture whose rows have one target. Source: design §2 (19)."""

_SHAPE: Final = Source("compose", "11", HIGH)
_SCRATCH: Final = Source("select", "3.1, scratch of recursive doubling", MEDIUM)
_PARTS: Final = Source("schedule", "1, part", CONVENTION)

_LOCAL: Final = EventType.EVT_RDH_LOCAL_HANDSHAKE
_AXES: Final = EventType.EVT_RDH_AXES_HANDSHAKE
_AXES_2: Final = EventType.EVT_RDH_AXES_HANDSHAKE_2
_PEERS: Final = EventType.EVT_RDH_LOCAL_PEER_HANDSHAKE
_HALVING: Final = EventType.EVT_RH_STEP_0  # on the chip; the rounds follow
_DOUBLING: Final = EventType.EVT_RD_STEP_0  # of round 0; the other rounds and the chip follow
_SYNC: Final = EventType.EVT_SYNC
"""Which event a row belongs to. Source: compose §11, convention (the names alone are sourced)."""


@dataclass(frozen=True, slots=True, eq=False)
class IntraRdh:
    """Intra-RDH of some groups.

    Attributes:
        cube: chips by label, ranks of a chip by lane.
        scratch: bytes of partials and slots of a rank.
        duplicates: a row may write the same bytes to several ranks.
    """

    cube: Cube
    scratch: int
    duplicates: bool

    @property
    def lanes(self) -> int:
        """Ranks of a chip."""
        return int(self.cube.position.shape[2])

    def mates(self) -> list[I64]:
        """Return the positions of the chip-mates of each member, those on the next lane first."""
        label, lane, lanes = self.cube.label, self.cube.lane, self.lanes
        group = np.arange(label.shape[0])[:, None]
        return [self.cube.position[group, label, (lane + other) % lanes] for other in range(1, lanes)]


def how_of(
    platform: Platform, members: Sequence[Sequence[int]], settings: Settings, *, rotate_lanes: bool = False
) -> IntraRdh:
    """Return the recursive halving and doubling of groups of whole chips.

    The label of a chip is its routing id, without the bits in which the chips of the group agree.

    Args:
        rotate_lanes: in each round, lane l takes the axis l places further on.

    Raises:
        UnsupportedError: a group is not all ranks of the chips of a subcube.

    Source:
        design §2 (14) and (25); the rotation is topology §6.
    """
    ranks, lanes = np.array(members, np.int64), platform.ranks_per_chip
    label, rounds = _labels(platform, ranks)
    place = label * lanes + ranks % lanes
    if place.shape[1] != lanes << rounds or (np.sort(place, axis=1) != np.arange(lanes << rounds)).any():
        raise UnsupportedError(
            f"recursive halving on a node: expected all {lanes} ranks of the chips that agree outside some routing id "
            f"bits, got other groups of {ranks.shape[1]} ranks; use the groups that `rota check` suggests",
            source=_SHAPE,
        )
    position = np.argsort(place, axis=1).reshape(ranks.shape[0], 1 << rounds, lanes)
    shift = np.arange(lanes)[:, None] if rotate_lanes else np.zeros((lanes, 1), np.int64)
    axes = (np.arange(rounds) + shift) % max(rounds, 1)
    return IntraRdh(Cube(position, axes), intra_rdh_bytes(settings, platform.arch), platform.arch != SUNDA)


def _labels(platform: Platform, ranks: I64) -> tuple[I64, int]:
    """Return the label of the chip of each member, and the bits of a label."""
    chip = ranks // platform.ranks_per_chip
    if platform.shape is not Shape.CUBE:
        return np.where(chip == chip[:, :1], 0, 1), 0
    rid = np.argsort(np.array(platform.routing_ids))[chip % platform.chips] + chip // platform.chips * platform.chips
    varying = np.bitwise_or.reduce(rid ^ rid[:, :1], axis=1)
    label, width = np.zeros_like(rid), np.zeros_like(varying)
    for bit in range(dimension(platform)):
        varies = (varying >> bit) & 1
        label |= ((rid >> bit) & varies[:, None]) << width[:, None]
        width += varies
    beyond = varying >> dimension(platform) > 0  # the group spans nodes
    return np.where(beyond[:, None], -1, label), int(width.max(initial=0))


@dataclass(frozen=True, slots=True)
class ScatterRooms:
    """The scratch and semaphores of a reduce-scatter; several in one queue, one after another, may share them.

    Attributes:
        piece: bytes of a chunk that are scattered at a time.
        slots: what the partners write to, and the semaphores of the rounds.
        partial: a piece of the chunk of each label; None where partials stand where the results go.
        local: the chip-mates' inputs may be read.
        read: the chip-mates have read; None where nobody asks.
    """

    piece: int
    slots: Slots
    partial: Region | None
    local: int
    read: int | None


@dataclass(frozen=True, slots=True)
class GatherRooms:
    """The semaphores of an all-gather; several in one queue, one after another, may share them.

    Attributes:
        ready, received: of the first round; those of the other rounds follow.
        peers: the chip-mates' outputs may be written.
        arrived: the chip-mates' chunks have arrived.
    """

    ready: int
    received: int
    peers: int
    arrived: int


def scatter_rooms(board: Board, how: IntraRdh, size: int) -> ScatterRooms:
    """Declare what reduce-scatters of shards of at most `size` bytes need.

    Raises:
        UnsupportedError: a scratch that holds no piece of every chunk.
    """
    return _scatter_rooms(board, how, size, in_result=False, closes=True)


def gather_rooms(board: Board, how: IntraRdh) -> GatherRooms:
    """Declare what all-gathers need."""
    rounds, mates = how.cube.rounds, how.lanes > 1
    return GatherRooms(
        ready=semaphores(board, "axes_2", [0] * rounds),
        received=semaphores(board, "double", [0] * rounds),
        peers=board.semaphore("peers") if mates else 0,
        arrived=board.semaphore("arrived") if mates else 0,
    )


def _scatter_rooms(board: Board, how: IntraRdh, size: int, *, in_result: bool, closes: bool) -> ScatterRooms:
    labels, rounds, mates = how.cube.labels, how.cube.rounds, how.lanes > 1
    chunks = 0 if labels == 1 else labels - 1 if in_result else 2 * labels - 1
    piece = aligned(size)
    if chunks:
        piece = min(piece, how.scratch // chunks // GRANULE * GRANULE)
    if not piece:
        raise UnsupportedError(
            f"{format_size(how.scratch)} of scratch for intra-RDH of {labels} chips: expected at least "
            f"{format_size(chunks * GRANULE)}; set NEURON_RT_DBG_INTRA_RDH_CHANNEL_BUFFER_SIZE higher",
            source=_SCRATCH,
        )
    local = board.semaphore("local") if mates else 0
    read = board.semaphore("read") if mates and closes else None
    axes = semaphores(board, "axes", [0] * rounds)
    received = semaphores(board, "halve", [0] * rounds)
    if not chunks:
        return ScatterRooms(piece, Slots(board.output, 1, 0, received, Credit.ASKED, axes), None, local, read)
    slots = Slots(board.buffer("slot", (labels - 1) * piece), labels - 1, piece, received, Credit.ASKED, axes)
    partial = None if in_result else Region(board.buffer("partial", labels * piece), 0, piece)
    return ScatterRooms(piece, slots, partial, local, read)


def compose_intra_rdh(plan: Plan, *, rotate_lanes: bool = False) -> Schedule:
    """Compose the intra-RDH of a plan: all-reduce, all-gather or reduce-scatter.

    Raises:
        UnsupportedError: a group is not all ranks of the chips of a subcube, a scratch that holds no piece of every
            chunk, or more pieces than a schedule can number.

    Source:
        compose §11.
    """
    request = plan.request
    board = Board.of(request)
    how = how_of(plan.platform, request.groups, plan.settings, rotate_lanes=rotate_lanes)
    share = request.share
    if request.kind is EncOp.ALLGATHER:
        write_all_gather(board, how, Region(board.input), Region(board.output, 0, share), share)
    elif request.kind is EncOp.REDUCE_SCATTER:
        write_reduce_scatter(board, how, Region(board.input, 0, share), Region(board.output), share)
    else:
        write_all_reduce(board, how, Region(board.input), Region(board.output), request.size, gather_leg=1)
    return board.schedule()


def write_reduce_scatter(
    board: Board,
    how: IntraRdh,
    source: Region,
    target: Region,
    size: int,
    *,
    fence_first: bool = False,
    rooms: ScatterRooms | None = None,
) -> None:
    """Write a reduce-scatter: N shards of every rank's source, the own one reduced into its target.

    Args:
        source: shard k belongs to position k.
        target: the rank's own shard; the same object as `source` puts it where shard k was.
        size: bytes of a shard.
        fence_first: earlier rows of the same queue write the source, or use the rooms.
        rooms: shared with other reduce-scatters of this queue, which need no more; by default its own.

    Raises:
        UnsupportedError: a scratch that holds no piece of every chunk, or more pieces than a schedule can number.
    """
    if board.ranks == 1:
        write_copy(board, source, target, size, fence=fence_first)
        return
    cube = how.cube
    result = Shards.of_members(cube, target) if target is source else Shards.of_one(cube, target)
    sizes = np.full(board.ranks, size, np.int64)
    rooms = scatter_rooms(board, how, size) if rooms is None else rooms
    _Scatter(board, how, rooms, source, result, sizes, size, fence=fence_first).write()


def write_all_gather(
    board: Board,
    how: IntraRdh,
    source: Region,
    target: Region,
    size: int,
    *,
    fence_first: bool = False,
    rooms: GatherRooms | None = None,
) -> None:
    """Write an all-gather: every rank's own shard into the N shards of all targets.

    Args:
        source: the rank's own shard; the same object as `target` where it is at its place already.
        target: shard k comes from position k.
        size: bytes of a shard.
        fence_first: the source is written by earlier rows of the same queue.
        rooms: shared with other all-gathers of this queue; by default its own.
    """
    if board.ranks == 1:
        write_copy(board, source, target, size, fence=fence_first)
        return
    rooms = gather_rooms(board, how) if rooms is None else rooms
    own = None if source is target else source
    sizes = np.full(board.ranks, size, np.int64)
    _gather(board, how, rooms, own, target, sizes, stride=size, first_step=0, fence=fence_first)


def write_all_reduce(
    board: Board,
    how: IntraRdh,
    source: Region,
    target: Region,
    size: int,
    *,
    fence_first: bool = False,
    gather_leg: int = 0,
) -> None:
    """Write an all-reduce: a reduce-scatter, then an all-gather of the same cut of the buffer.

    Args:
        source, target: where the buffers start; they may be the same.
        size: bytes of the buffer.
        fence_first: the source is written by earlier rows of the same queue.
        gather_leg: leg of the all-gather, counted from that of the reduce-scatter.

    Raises:
        UnsupportedError: as `write_reduce_scatter`.
    """
    if board.ranks == 1:
        write_copy(board, source, target, size, fence=fence_first)
        return
    sizes, stride = shard_sizes(size, board.ranks)
    source, target = replace(source, stride=stride), replace(target, stride=stride)
    result = Shards.of_members(how.cube, target)
    rooms = _scatter_rooms(board, how, stride, in_result=may_hold_partials(board, target), closes=False)
    _Scatter(board, how, rooms, source, result, sizes, stride, fence=fence_first).write()
    after = board.part(board.members, leg=gather_leg)
    _gather(
        after,
        how,
        gather_rooms(after, how),
        None,
        target,
        sizes,
        stride=stride,
        first_step=how.cube.rounds + 4,
        fence=True,
    )


@dataclass(frozen=True, slots=True)
class _Scatter:
    """The rows of a reduce-scatter.

    Attributes:
        sizes: bytes of each position's shard, shape (ranks,); `stride` is the largest.
    """

    board: Board
    how: IntraRdh
    rooms: ScatterRooms
    source: Region
    result: Shards
    sizes: I64
    stride: int
    fence: bool

    def write(self) -> None:
        """Write piece after piece. Steps: 0 handshake, 1 chip, 2 handshake, 3 .. rounds, then the end."""
        board, rooms, mates = self.board, self.rooms, self.how.mates()
        pieces = -(-self.stride // rooms.piece)
        if pieces > MAX_PIECES:
            raise UnsupportedError(
                f"shards of {format_size(self.stride)} in pieces of {format_size(rooms.piece)} take {pieces} pieces, "
                f"and a schedule numbers {MAX_PIECES}; use less data or a larger scratch",
                source=_PARTS,
            )
        if mates:
            told = [Signal(mate, rooms.local) for mate in mates]
            board.rows(Leaf.MESH_NOTIFY, board.position, signals=told, event=_LOCAL)
        for number in range(pieces):
            self._piece(number, last=number == pieces - 1)
        if rooms.read is not None:
            waits, step = [Wait(rooms.read, len(mates), len(mates))], self.how.cube.rounds + 3
            board.rows(Leaf.MESH_WAIT, board.position, waits=waits, step=step, event=_SYNC)

    def _piece(self, number: int, *, last: bool) -> None:
        board, cube, rooms = self.board, self.how.cube, self.rooms
        start = number * rooms.piece
        sizes, result = np.clip(self.sizes - start, 0, rooms.piece), self.result.behind(start)
        held = result if rooms.partial is None else Shards.of_labels(cube, rooms.partial)
        self._on_chip(number, start, sizes, held, last=last)
        if not cube.rounds:
            return
        ready = [Signal(cube.partner(axis), rooms.slots.credit + axis) for axis in range(cube.rounds)]
        board.rows(Leaf.MESH_NOTIFY, board.position, signals=ready, step=2, part=number, event=_AXES)
        Halving(
            board=board,
            cube=cube,
            source=held,
            partial=held,
            result=result,
            size=sizes,
            tile=rooms.piece,
            tiles=1,
            slots=rooms.slots,
            first_step=3,
            piece=number,
            fence=True,
            events=range(_HALVING + 1, _HALVING + 1 + cube.rounds),
        ).write()

    def _on_chip(self, number: int, start: int, sizes: I64, held: Shards, *, last: bool) -> None:
        """Reduce the inputs of the chip, chunk by chunk, in the order of the lanes; only the first piece waits."""
        board, cube, lanes = self.board, self.how.cube, self.how.lanes
        label = np.arange(cube.labels)[:, None, None]
        shard = cube.lookup(cube.position, label)
        size, first, ends = sizes[shard], label == 0, label == cube.labels - 1
        group = np.arange(board.groups)[:, None]
        reads = [
            self.source.at(shard, start, np.broadcast_to(cube.position[group, cube.label, lane], shard.shape))
            for lane in range(lanes)
        ]
        mates, read = self.how.mates(), self.rooms.read if last else None
        asks = bool(mates) and number == 0
        exists = (size > 0) | (first & (asks or number > 0 or self.fence)) | (ends & (read is not None))
        board.rows(
            Leaf.RDH_REDUCE,
            board.position,
            size=size,
            reads=reads,
            writes=[held.place(label)],
            waits=[Wait(self.rooms.local, lanes - 1, lanes - 1, where=first)] if asks else [],
            signals=[] if read is None else [Signal(mate, read, where=ends) for mate in mates],
            op=board.op,
            fence=first if number or self.fence else False,
            step=1,
            part=number * cube.labels + label,
            event=_HALVING,
            when=None if exists.all() else exists,
        )


def _gather(
    board: Board,
    how: IntraRdh,
    rooms: GatherRooms,
    own: Region | None,
    target: Region,
    sizes: I64,
    *,
    stride: int,
    first_step: int,
    fence: bool,
) -> None:
    """Write an all-gather. Steps: handshakes and own chunk 2, then rounds, chip and end."""
    cube, mates = how.cube, how.mates()
    doubling = Doubling(
        board=board,
        cube=cube,
        own=own,
        target=Shards.of_members(cube, target),
        size=sizes,
        tile=stride,
        tiles=1,
        received=rooms.received,
        ready=rooms.ready,
        first_step=first_step + 2,
        fence=fence and own is None,
        events=range(_DOUBLING, _DOUBLING + cube.rounds),
    )
    if cube.rounds:
        doubling.enter(Leaf.MESH_NOTIFY, step=first_step, event=_AXES_2)
    if mates:
        told = [Signal(mate, rooms.peers) for mate in mates]
        board.rows(Leaf.MESH_NOTIFY, board.position, signals=told, step=first_step + 1, event=_PEERS)
    doubling.copy(step=first_step + 1, fence=fence)
    doubling.write()
    if mates:
        _broadcast(doubling, how, rooms, fence=fence and own is None and not cube.rounds)
    else:
        waits, step = doubling.last(), first_step + 3 + cube.rounds
        board.rows(Leaf.MESH_WAIT, board.position, waits=waits, step=step, event=_SYNC)


def _broadcast(doubling: Doubling, how: IntraRdh, rooms: GatherRooms, *, fence: bool) -> None:
    """Write each chunk of the own lane to the chip-mates, with one read where rows may have several targets."""
    board, cube, mates = doubling.board, how.cube, how.mates()
    rows = len(mates) if not how.duplicates else 1
    step, event = doubling.first_step + cube.rounds, _DOUBLING + cube.rounds
    for turn in range(rows):
        label = np.arange(cube.labels)[:, None, None]
        size, first, last = doubling.sizes(label), label == 0, label == cube.labels - 1
        to = mates if how.duplicates else mates[turn : turn + 1]
        exists = (size > 0) | (last & (turn == rows - 1)) | (first & (turn == 0))
        waits = [*doubling.last(), Wait(rooms.peers, len(mates), len(mates))] if turn == 0 else []
        board.rows(
            Leaf.RDH_COPY,
            board.position,
            size=size,
            reads=[doubling.held(label)],
            writes=[doubling.target.place(label, 0, mate) for mate in to],
            waits=[wait._replace(where=first) for wait in waits],
            signals=[Signal(mate, rooms.arrived, where=last) for mate in mates] if turn == rows - 1 else [],
            fence=first if fence and turn == 0 else False,
            step=step,
            part=turn * cube.labels + label,
            event=event,
            when=None if exists.all() else exists,
        )
    end = [Wait(rooms.arrived, len(mates), len(mates))]
    board.rows(Leaf.MESH_WAIT, board.position, waits=end, step=step + 1, event=_SYNC)
