"""HIER: a collective of several nodes as legs inside the nodes and across them, any algorithm in any leg.

With X nodes of Y ranks, rank (x, y) being local rank y of node x, and S bytes a shard (compose §13.2):

    all-reduce      leg 0   reduce-scatter in each node     shard y of the buffer -> scratch
                    leg 1   all-reduce across the nodes     scratch, in place
                    leg 2   all-gather in each node         scratch -> shard y of every output
    reduce-scatter  leg 0   reduce-scatter in each node     for every x': shard (x', y) -> scratch x'
                    leg 1   reduce-scatter across           scratch x -> output
    all-gather      leg 0   all-gather across the nodes     input -> shards (x', y) of the output
                    leg 1   all-gather in each node         for every x': shards (x', .) of the output, in place

Data are cut into windows, one on each queue: as many as all legs have channels where all legs are rings, else one. An
all-reduce whose buffer has no equal shards leaves a tail that every rank of a node reduces whole. Pipelined, windows
are slices, and each stage has a queue of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

import numpy as np

from rota.columns import I64
from rota.compose import intra_rdh, kangaring, mesh, pod, recursive, single_cycle, single_step
from rota.compose.board import Board, Leaf, Region, Signal, Wait
from rota.compose.cut import cut
from rota.compose.ring import Ends, Ring
from rota.compose.switch import leg as switch_leg
from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm, EncOp
from rota.machine.geometry import geometry
from rota.machine.group import wire
from rota.machine.platform import Platform
from rota.schedule.ir import Schedule
from rota.select.admission import over_switch
from rota.select.choose import Plan
from rota.select.chunking import SCRATCH
from rota.select.hierarchy import Leg

GRANULE: Final = 32
"""Shards and windows are cut at multiples of this many bytes. Source: select §6.2, convention."""
RING_FAMILY: Final = frozenset({Algorithm.RING, Algorithm.KANGARING})
"""Legs that run one window on each channel. Source: design §2 (28)."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The groups of one level, which run alike.

    Attributes:
        members: member of the schedule at each (group, position).
        ranks: machine rank of each.
        orders: the rings of the level: shape (channels, groups, positions).
        algorithm, reported: of the leg, and the subtype that carries it.
    """

    members: I64
    ranks: tuple[tuple[int, ...], ...]
    orders: I64
    algorithm: Algorithm
    reported: Algorithm


# --- writing one leg --------------------------------------------------------------------------------------------------
# A leg runs several parts. Rings keep their slots and semaphores from part to part; every other family takes new ones.

_SCATTER, _GATHER, _REDUCE = EncOp.REDUCE_SCATTER, EncOp.ALLGATHER, EncOp.ALLREDUCE
_STEP_BITS: Final = 8  # steps of one part of a leg that is no ring: names of rows
MOST_PARTS: Final = 255
"""Most parts of a leg that is no ring: a row's step has 16 bits. Source: schedule §1, convention."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a leg.

    Attributes:
        size: bytes of a shard; of all data, for an all-reduce.
        own: where the own shard of an all-gather in place lies.
    """

    source: Region
    target: Region
    size: int
    own: Region | None = None


class _Leg:
    """One leg of a window, on one queue: its parts can be written one by one."""

    def __init__(
        self, board: Board, level: Level, kind: EncOp, parts: Sequence[_Part], plan: Plan, *, channel: int, enter: bool
    ) -> None:
        self.board = board
        self.level = level
        self.kind = kind
        self.parts = parts
        self.platform, self.settings, self.channel = plan.platform, plan.settings, channel
        self.ring = self._ring(enter) if level.algorithm is Algorithm.RING else None
        if self.ring is None and len(parts) > MOST_PARTS:
            raise UnsupportedError(
                f"{level.algorithm.name} leg of {len(parts)} parts, one for each node and piece: expected at most "
                f"{MOST_PARTS}; use fewer nodes, less data, or rings (NEURON_RT_DBG_MESH_CC=0)"
            )

    def _ring(self, enter: bool) -> Ring:
        ranks, chunk = self.board.ranks, self.settings.chunk
        shards = 1 if self.kind is _REDUCE else ranks
        return Ring(
            self.board,
            self.level.orders[self.channel % self.level.orders.shape[0]][None],
            [cut(self.kind, part.size * shards, ranks=ranks, channels=1, chunk=chunk) for part in self.parts],
            self.kind,
            self.settings.slots,
            [Ends(part.source, part.target) for part in self.parts],
            enter=enter,
            fence_first=True,
            duplicate=self.platform.arch != "sunda",
        )

    def write(self, parts: range | None = None) -> None:
        """Write some parts, or all; parts are written in their order."""
        for number in range(len(self.parts)) if parts is None else parts:
            if self.ring is not None:
                self.ring.write_part(number)
            else:
                self._write(number)

    def _write(self, number: int) -> None:
        part = self.parts[number]
        prefix = f"{number}." if number else ""
        board = self.board.part(self.board.members, step=number << _STEP_BITS, prefix=prefix)
        family, how = self._family
        if family is single_step:
            single_step.write_all_reduce(board, how, part.source, part.target, part.size, fence_first=True)
            return
        explicit = part.own is not None and family in (mesh, pod, switch_leg)
        source = part.own if explicit else part.source
        writers = {_SCATTER: "write_reduce_scatter", _GATHER: "write_all_gather", _REDUCE: "write_all_reduce"}
        write = getattr(family, writers[self.kind])
        write(board, how, source, part.target, part.size, fence_first=True, **self._rooms)

    @cached_property
    def _rooms(self) -> dict[str, Any]:
        """What the parts of an intra-RDH leg share."""
        if self.level.algorithm is not Algorithm.INTRA_RDH or self.kind is _REDUCE:
            return {}
        _, how = self._family
        if self.kind is _GATHER:
            return {"rooms": intra_rdh.gather_rooms(self.board, how)}
        return {"rooms": intra_rdh.scatter_rooms(self.board, how, max(part.size for part in self.parts))}

    @cached_property
    def _family(self) -> tuple[Any, Any]:
        """Return the module whose writers carry the leg, and how its groups run."""
        platform, ranks, settings = self.platform, self.level.ranks, self.settings
        match self.level.algorithm:
            case Algorithm.MESH | Algorithm.SINGLE_STEP_MESH:
                return self._mesh
            case Algorithm.KANGARING:
                paths = kangaring.how_of(platform, ranks, settings)
                return kangaring, paths.only(self.channel % paths.channels)
            case Algorithm.INTRA_RDH:
                return intra_rdh, intra_rdh.how_of(platform, ranks, settings)
            case Algorithm.INTER_RDH:
                return recursive, recursive.how_of(platform, ranks, settings)
            case Algorithm.SINGLE_CYCLE_RING:
                return single_cycle, single_cycle.how_of(platform, ranks, settings)
            case _:
                raise UnsupportedError(f"{self.level.algorithm.name}: no leg of a hierarchy")

    @property
    def _mesh(self) -> tuple[Any, Any]:
        platform, ranks, reported = self.platform, self.level.ranks, self.level.reported
        if over_switch(platform, geometry(platform, ranks[0])):
            return switch_leg, switch_leg.how_of(platform, ranks, self.settings, reported=reported)
        if reported is Algorithm.SINGLE_STEP_MESH and self.kind is _REDUCE:
            return single_step, single_step.how_of(platform, ranks)
        if reported is Algorithm.TWO_STEP_POD_MESH:
            return pod, pod.how_of(platform, ranks)
        return mesh, mesh.how_of(platform, ranks, self.settings)


# --- the grid ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """The ranks of the groups of a plan by node and local rank.

    Attributes:
        position: of (group, x, y) in its group.
        inner, outer: the level inside the nodes and the one across them.
    """

    position: I64
    inner: Callable[[Leg], Level]
    outer: Callable[[Leg], Level]

    @property
    def nodes(self) -> int:
        return int(self.position.shape[1])

    @property
    def local(self) -> int:
        return int(self.position.shape[2])


def _grid(plan: Plan, board: Board) -> _Grid:
    platform, groups = plan.platform, plan.request.groups
    ranks = np.array(groups, np.int64)
    order = np.argsort(ranks, axis=1)
    nodes = plan.geometries[0].node_n
    position = order.reshape(len(groups), nodes, -1)
    group = np.arange(len(groups))[:, None, None]
    member, machine = board.members[group, position], ranks[group, position]
    local = position.shape[2]

    def level(members: I64, machine_ranks: I64) -> Callable[[Leg], Level]:
        named = tuple(tuple(int(rank) for rank in each) for each in machine_ranks)
        orders = _orders(platform, named)
        return lambda leg: Level(members, named, orders, leg.algorithm, leg.reported)

    return _Grid(
        position=position,
        inner=level(member.reshape(-1, local), machine.reshape(-1, local)),
        outer=level(member.swapaxes(1, 2).reshape(-1, nodes), machine.swapaxes(1, 2).reshape(-1, nodes)),
    )


def _orders(platform: Platform, groups: Sequence[Sequence[int]]) -> I64:
    """Return the rings of some groups by position, shape (channels, groups, positions); 0 channels: no ring."""
    wirings = [wire(platform, group) for group in groups]
    channels = min(len(wiring.channels) for wiring in wirings)
    made = [
        [
            [group.index(rank) for rank in wiring.channels[channel].order]
            for group, wiring in zip(groups, wirings, strict=True)
        ]
        for channel in range(channels)
    ]
    return np.array(made, np.int64).reshape(channels, len(groups), len(groups[0]))


# --- the operations ---------------------------------------------------------------------------------------------------


def compose_hierarchy(plan: Plan) -> Schedule:
    """Compose a hierarchical all-reduce, reduce-scatter or all-gather.

    Raises:
        UnsupportedError: a leg's algorithm cannot carry its part.

    Source:
        compose §13; design §2 (28).
    """
    board = Board.of(plan.request)
    _Hierarchy(plan, board).write()
    return board.schedule()


@dataclass(frozen=True, slots=True)
class _Window:
    """Part of every shard: where it begins in the shard, and its bytes."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Stage:
    """One leg of some windows: the leg, and its parts for each window."""

    leg: _Leg
    parts: list[range]


class _Hierarchy:
    """One hierarchical collective."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self.plan = plan
        self.board = board
        self.grid = _grid(plan, board)
        self.legs = {leg.slot: leg for leg in plan.legs if leg.used}

    def write(self) -> None:
        """Write all rows."""
        request, local = self.plan.request, self.grid.local
        if request.kind is not EncOp.ALLREDUCE:
            self._shards(request.share)
            return
        main = request.size // (local * GRANULE) * local * GRANULE
        if main:
            self._shards(main // local)
        if request.size > main:
            self._tail(main, request.size - main)

    def _shards(self, shard: int) -> None:
        """Write all windows of the shards: side by side on their queues, or as slices of a pipeline."""
        stages = {
            EncOp.ALLREDUCE: self._all_reduce,
            EncOp.REDUCE_SCATTER: self._reduce_scatter,
            EncOp.ALLGATHER: self._all_gather,
        }[self.plan.request.kind]
        if self.plan.slices > 1:
            windows = list(_windows(0, shard, self.plan.slices))
            self._pipeline(stages(shard, windows, None), len(windows))
            return
        side = _windows(0, shard, self._channels())
        beside = [stages(shard, list(self._pieces(window)), queue) for queue, window in enumerate(side)]
        for piece in range(len(beside[0][0].parts)):
            for together in zip(*beside, strict=True):
                for stage in together:
                    if piece < len(stage.parts):
                        stage.leg.write(stage.parts[piece])

    def _channels(self) -> int:
        """Return how many windows run side by side. Source: design §2 (28)."""
        if any(leg.algorithm not in RING_FAMILY for leg in self.legs.values()):
            return 1
        return max(min(leg.channels for leg in self.legs.values()), 1)

    def _pieces(self, window: _Window) -> Iterator[_Window]:
        """Yield a window in pieces whose shards fit the scratch, one after another. Source: select §6.2, convention."""
        kind = self.plan.request.kind
        shards = {EncOp.ALLREDUCE: 1, EncOp.REDUCE_SCATTER: self.grid.nodes}.get(kind)
        room = _aligned(window.size)
        if shards is not None:
            room = min(room, SCRATCH[self.plan.platform.arch] // self._channels() // shards // GRANULE * GRANULE)
        for at in range(window.start, window.start + window.size, room):
            yield _Window(at, min(room, window.start + window.size - at))

    def _pipeline(self, stages: list[_Stage], slices: int) -> None:
        """Write slice t of stage s at tick s + t; a stage tells the next one, on another queue, that it is done.

        Source: compose §13.3, convention.
        """
        board, me = self.board, self.board.position
        done = [board.semaphore(f"stage.{number}") for number in range(len(stages) - 1)]
        for tick in range(slices + len(stages) - 1):
            for number, stage in enumerate(stages):
                part = tick - number
                if not 0 <= part < slices:
                    continue
                on = board.part(board.members, leg=2 * number, step=_MARKS, queue=number)
                if number:
                    on.rows(Leaf.MESH_WAIT, me, part=part, waits=[Wait(done[number - 1])])
                stage.leg.write(stage.parts[part])
                if number + 1 < len(stages):
                    on.rows(Leaf.MESH_NOTIFY, me, part=part, signals=[Signal(me, done[number])], fence=True)

    def _tail(self, start: int, size: int) -> None:
        """Reduce the bytes behind the last equal shards whole: in every node, and then across the nodes."""
        scratch = Region(self.board.buffer("tail", size))
        legs = len(self.legs)
        inner = [_Part(Region(self.board.input, start), scratch, size)]
        outer = [_Part(scratch, Region(self.board.output, start), size)]
        self._leg("intra_redsct", _REDUCE, legs, 0, inner, name="tail_intra").write()
        self._leg("inter_allr", _REDUCE, legs + 1, 0, outer, name="tail_inter").write()

    # --- the stages of each operation; without a queue, every stage has its own ---

    def _all_reduce(self, shard: int, windows: Sequence[_Window], queue: int | None) -> list[_Stage]:
        board = self.board
        scratch = self._scratch(windows, queue, 1)
        inner = [
            _Part(Region(board.input, each.start, shard), at, each.size)
            for each, at in zip(windows, scratch, strict=True)
        ]
        outer = [_Part(at, at, each.size) for each, at in zip(windows, scratch, strict=True)]
        last = [
            _Part(at, Region(board.output, each.start, shard), each.size)
            for each, at in zip(windows, scratch, strict=True)
        ]
        return [
            self._stage("intra_redsct", _SCATTER, 0, queue, inner, windows),
            self._stage("inter_allr", _REDUCE, 1, queue, outer, windows),
            self._stage("intra_allg", _GATHER, 2, queue, last, windows),
        ]

    def _reduce_scatter(self, shard: int, windows: Sequence[_Window], queue: int | None) -> list[_Stage]:
        board, nodes = self.board, range(self.grid.nodes)
        inner, outer = [], []
        for each, at in zip(windows, self._scratch(windows, queue, len(nodes)), strict=True):
            room = _aligned(each.size)
            for x in nodes:
                there = Region(at.buffer, np.asarray(at.offset) + x * room)
                inner.append(_Part(self._of_node(board.input, x, shard, each.start), there, each.size))
            whole = Region(at.buffer, at.offset, room)
            outer.append(_Part(whole, Region(board.output, each.start), each.size))
        return [
            self._stage("intra_redsct", _SCATTER, 0, queue, inner, windows),
            self._stage("inter_redsct", _SCATTER, 1, queue, outer, windows),
        ]

    def _all_gather(self, shard: int, windows: Sequence[_Window], queue: int | None) -> list[_Stage]:
        board = self.board
        outer, inner = [], []
        for each in windows:
            lanes = self._across(board.output, shard, each.start)
            outer.append(_Part(Region(board.input, each.start), lanes, each.size))
            for x in range(self.grid.nodes):
                there = self._of_node(board.output, x, shard, each.start)
                inner.append(_Part(there, there, each.size, self._own(there)))
        return [
            self._stage("inter_allg", _GATHER, 0, queue, outer, windows, enter=True),
            self._stage("intra_allg", _GATHER, 1, queue, inner, windows, enter=True),
        ]

    def _stage(
        self,
        slot: str,
        kind: EncOp,
        number: int,
        queue: int | None,
        parts: Sequence[_Part],
        windows: Sequence[_Window],
        *,
        enter: bool = False,
    ) -> _Stage:
        run = len(parts) // len(windows)
        leg = self._leg(slot, kind, number, number if queue is None else queue, parts, enter=enter)
        return _Stage(leg, [range(at * run, (at + 1) * run) for at in range(len(windows))])

    def _leg(
        self,
        slot: str,
        kind: EncOp,
        number: int,
        queue: int,
        parts: Sequence[_Part],
        *,
        enter: bool = False,
        name: str = "",
    ) -> _Leg:
        leg = self.legs[slot]
        level = self.grid.inner(leg) if slot.startswith("intra") else self.grid.outer(leg)
        board = self.board.part(level.members, leg=2 * number, queue=queue, prefix=f"{name or slot}.{queue}.")
        return _Leg(board, level, kind, parts, self.plan, channel=queue, enter=enter)

    # --- places ---

    def _scratch(self, windows: Sequence[_Window], queue: int | None, shards: int) -> list[Region]:
        """Return scratch for some shards of each window: one for all on one queue, which follow each other."""
        rooms = [shards * _aligned(window.size) for window in windows]
        if queue is not None:
            return [Region(self.board.buffer(f"scratch.{queue}", max(rooms)))] * len(windows)
        buffer = self.board.buffer("scratch", sum(rooms))
        return [Region(buffer, end - room) for end, room in zip(accumulate(rooms), rooms, strict=True)]

    def _of_node(self, buffer: int, x: int, shard: int, start: int) -> Region:
        """Return the shards of the ranks of node x, for the groups inside the nodes."""
        table = np.repeat(self.grid.position[:, x], self.grid.nodes, axis=0) * shard
        return Region(buffer, start, table=table)

    def _across(self, buffer: int, shard: int, start: int) -> Region:
        """Return the shards of equal local ranks, for the groups across the nodes."""
        table = self.grid.position.swapaxes(1, 2).reshape(-1, self.grid.nodes) * shard
        return Region(buffer, start, table=table)

    def _own(self, region: Region) -> Region:
        """Return the region whose shard 0 is, on every rank, the rank's own shard."""
        assert region.table is not None, "shards of a node lie in a table"
        return Region(region.buffer, np.asarray(region.offset) + region.table)


_MARKS: Final = (1 << 16) - 1  # step of the rows that join the stages of a pipeline


def _windows(start: int, size: int, count: int) -> Iterator[_Window]:
    """Yield at most `count` windows, cut at whole granules; none is empty."""
    room = _aligned(-(-size // count))
    for at in range(start, start + size, room):
        yield _Window(at, min(room, start + size - at))


def _aligned(size: int) -> int:
    return -(-size // GRANULE) * GRANULE
