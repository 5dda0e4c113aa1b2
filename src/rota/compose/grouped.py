"""GROUPED_MESH of Inf2: groups of six ranks reduce at roots, roots exchange, members fetch what is theirs.

With Q groups, member (q, j), and R(p, q) = member q mod 6 of group p, the root of p for destination group q:

    LOCAL_HNDSHK                 notify the mates; wait for theirs
    reduce-scatter  REDUCE_COPY            R(p, q): six inputs, slice d -> own partial of d, for every d of group q;
                                           R(q, q) tells its mates
                    GLOBAL_HNDSHK          R(q, p) tells R(p, q)
                    INTER_GRP_BRDCST       R(p, q): its six partials -> slots of R(q, p); tells all of group q
                    REDUCE_WRITE           partial at R(q, q) and slots at R(q, p), in group order -> own output
                    SYNC                   notify the mates that their inputs and slots are read; wait
    all-gather      GLOBAL_HNDSHK, INTER_GRP_BRDCST   own chunk -> member of the own index in every group, and mates
                    INTRA_GRP_BRDCST                  what arrived -> mates
    all-reduce      the reduce-scatter without SYNC, then the all-gather with INTER_GRP_BRDCST_2

Source: compose §12.2, convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rota.columns import I64, Array
from rota.compose.board import Board, Leaf, Place, Region, Signal
from rota.compose.chip_mesh import Events, Exchange, Flavour, Landing, MeshHow, Shards, own_shards
from rota.compose.fold import write_fold
from rota.isa.events import EventType
from rota.schedule.ir import MAX_SOURCES

GROUP: Final = 6
"""Ranks of a group. Source: select §7.2, high; consecutive by routing id, compose §12.2, convention."""
GROUPED_EVENTS: Final = Events(
    meet=EventType.EVT_GLOBAL_HNDSHK,
    broadcast=EventType.EVT_INTER_GRP_BRDCST,
    gather=EventType.EVT_INTER_GRP_BRDCST_2,
    forward=EventType.EVT_INTRA_GRP_BRDCST,
)
"""Source: compose §12.2, convention."""


def grouped_mesh(groups: Sequence[Sequence[int]]) -> MeshHow:
    """Return the grouped mesh of groups of machine ranks, whose number six divides; ranks go by their machine number.

    A rank's chip is its routing id on Inf2, so that order of rank is order of routing id.
    """
    assert all(len(group) % GROUP == 0 for group in groups), "a grouped mesh has whole groups of six"
    order = np.array([np.argsort(np.array(group), kind="stable") for group in groups], np.int64)
    return MeshHow(Flavour.GROUPED, order.reshape(len(groups), -1, GROUP), GROUPED_EVENTS)


def write_reduce_scatter(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write a reduce-scatter: shard k of every rank's source, combined, to shard 0 of position k's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    phases = _Roots(board, how)
    phases.reduce(source, target, Shards.of(source, board.ranks, size), fence=fence_first)
    phases.meet(EventType.EVT_SYNC, phases.mates)


def write_all_reduce(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce of whole buffers, cut into a shard for each rank.

    Args:
        size: bytes of the buffer.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    phases = _Roots(board, how)
    shards = Shards.cut(board.ranks, size)
    own = own_shards(target, shards)
    phases.reduce(source, own, shards, fence=fence_first)
    phases.gather(
        Landing.OWN,
        own,
        target,
        shards,
        between=how.events.gather,
        inside=how.events.forward,
        once=how.duplicates,
        fence=True,
    )


class _Roots(Exchange):
    """The reduce-scatter through roots. Partials and slots of a root are numbered by (group // 6, member)."""

    def __init__(self, board: Board, how: MeshHow) -> None:
        super().__init__(board, how.blocks, how.events, how.prefix)

    def reduce(self, source: Region, target: Region, shards: Shards, *, fence: bool) -> None:
        """Write all phases up to REDUCE_WRITE."""
        stride = int(shards.size.max())
        rounds = -(-self.count // GROUP)
        partial = Region(self.board.buffer("partial", rounds * GROUP * stride), 0, stride)
        self.meet(EventType.EVT_LOCAL_HNDSHK, self.mates, fence=fence)
        self._reduce_copy(source, partial, shards)
        slots = partial
        if self.count > 1:
            slots = Region(self.board.buffer("slot", rounds * GROUP * stride), 0, stride)
            self._meet_roots()
            self._exchange(partial, slots, shards)
        self._reduce_write(partial, slots, target, shards)

    def _served(self) -> tuple[Array, Array]:
        """Return the groups a rank is root for, shape (rounds, groups, positions), and which of these exist."""
        served = self.lane + GROUP * np.arange(-(-self.count // GROUP))[:, None, None]
        return np.minimum(served, self.count - 1), served < self.count

    def _reduce_copy(self, source: Region, partial: Region, shards: Shards) -> None:
        event, ready = EventType.EVT_REDUCE_COPY, self.semaphore(EventType.EVT_REDUCE_COPY)
        served, exists = self._served()
        j = np.arange(GROUP)[:, None, None]
        owner = self.peer(served[:, None], j)
        mates = [self.peer(self.block, k) for k in range(GROUP)]
        own = (served == self.block)[:, None] & (j == GROUP - 1)
        write_fold(
            self.board,
            Leaf.MESH_REDUCE,
            self.me,
            [self.place(source, mate, shards.start(owner)) for mate in mates],
            partial.at(served[:, None] // GROUP * GROUP + j),
            shards.size[owner],
            partial,
            signals=[Signal(mate, ready, where=own) for mate in self.mates],
            event=event,
            step=self.step,
            part=np.arange(served.shape[0])[:, None, None, None] * GROUP + j,
            when=np.broadcast_to(exists[:, None], owner.shape),
        )
        self.wait(event, ready, self.block % GROUP != self.lane, part=served.shape[0] * GROUP)
        self.step += 1

    def _meet_roots(self) -> None:
        """R(q, p) tells R(p, q) that its slots are free; they are free once its mates have started."""
        event, free = self.events.meet, self.semaphore(self.events.meet)
        served, exists = self._served()
        others = exists & (served != self.block)
        count = others.sum(axis=0)
        self.board.rows(
            Leaf.MESH_NOTIFY,
            self.me,
            signals=[
                Signal(self.peer(served[t], self.block % GROUP), free, where=others[t]) for t in range(served.shape[0])
            ],
            event=event,
            step=self.step,
            when=count > 0,
        )
        self.wait(event, free, count, part=1, fence=True)
        self.step += 1

    def _exchange(self, partial: Region, slots: Region, shards: Shards) -> None:
        event, landed = EventType.EVT_INTER_GRP_BRDCST, self.semaphore(EventType.EVT_INTER_GRP_BRDCST)
        served, exists = self._served()
        served, exists = served[:, None], exists[:, None]
        j = np.arange(GROUP)[:, None, None]
        owner = self.peer(served, j)
        self.board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=shards.size[owner],
            reads=[partial.at(served // GROUP * GROUP + j)],
            writes=[slots.at(self.block // GROUP * GROUP + j, rank=self.peer(served, self.block % GROUP))],
            signals=[Signal(self.peer(served, k), landed, where=j == GROUP - 1) for k in range(GROUP)],
            event=event,
            step=self.step,
            part=np.arange(served.shape[0])[:, None, None, None] * GROUP + j,
            when=np.broadcast_to(exists & (served != self.block), owner.shape),
        )
        self.wait(event, landed, np.full(self.me.shape, self.count - 1), part=served.shape[0] * GROUP)
        self.step += 1

    def _reduce_write(self, partial: Region, slots: Region, target: Region, shards: Shards) -> None:
        reads = []
        for p in range(self.count):
            own = self.block == p
            buffer: I64 = np.where(own, partial.buffer, slots.buffer)
            number = p // GROUP * GROUP + self.lane
            reads.append(Place(buffer, number * partial.stride, self.peer(self.block, p % GROUP)))
        scratch = partial
        if len(reads) > MAX_SOURCES:
            scratch = Region(self.board.buffer("chain", int(shards.size.max())))
        write_fold(
            self.board,
            Leaf.MESH_REDUCE,
            self.me,
            reads,
            target.at(),
            shards.size[self.me],
            scratch,
            fence=(self.count == 1) & (self.block % GROUP == self.lane),  # else the partials of others come later
            event=self.events.write,
            step=self.step,
        )
        self.step += 1
