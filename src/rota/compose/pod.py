"""TWO_STEP_POD_MESH: one rank on each of four nodes joined in the ring 0-1-2-3, so that no chunk crosses two links.

With direct = node ^ 1, proxy = node ^ 3 and opposite = node ^ 2, which is the proxy of direct and the direct of proxy:

    GLOBAL_HNDSHK                      notify direct and proxy; wait for theirs
    reduce-scatter  REDUCE_COPY        own slices of direct and of opposite -> two slots of direct
                    REDUCE_COPY_2      slot and own slice of proxy -> third slot of proxy
                    REDUCE_WRITE       own slice, slot of direct, slot of proxy -> own output
    all-gather      LOCAL_AND_POD_GRP_BRDCST     own chunk -> outputs of direct and of proxy (and the own output)
                    LOCAL_AND_POD_GRP_BRDCST_2   proxy's chunk -> output of direct, for whom it is the opposite's
    all-reduce      the reduce-scatter, then the all-gather of the results

A chunk for the opposite is forwarded from the output of proxy, which it reaches anyway: each of N-1 chunks crosses a
link once. Several ranks of a node are several groups, or the outer legs of a hierarchy.

Source: compose §12.5; design §2 (26) for the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, freeze
from rota.compose.board import Board, Leaf, Place, Region, Signal
from rota.compose.chip_mesh import CHIP_EVENTS, Exchange, Shards, own_shards
from rota.compose.fold import first_op, write_fold
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.machine.platform import Platform
from rota.machine.topology import node_of, pod_node_of, pod_of
from rota.schedule.ir import Schedule
from rota.select.choose import Plan

NODES: Final = 4
"""Nodes of the pod. Source: compose §12.5, high."""
DIRECT: Final = 1
PROXY: Final = 3
OPPOSITE: Final = 2
"""Node xor node of a rank's neighbours. Source: design §2 (26)."""
POD_SOURCE: Final = Source("compose", "12.5, four pod nodes", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class PodHow:
    """How groups of four run it.

    Attributes:
        nodes: position of the member on each node of the pod, shape (groups, 4).
    """

    nodes: I64

    def __post_init__(self) -> None:
        freeze(self.nodes)


def how_of(platform: Platform, groups: Sequence[Sequence[int]]) -> PodHow:
    """Return how groups of machine ranks run it.

    Raises:
        UnsupportedError: a group is not one rank on each of the four nodes of a pod.
    """
    found = np.zeros((len(groups), NODES), np.int64)
    for number, group in enumerate(groups):
        nodes = [node_of(platform, rank // platform.ranks_per_chip) for rank in group]
        places = [pod_node_of(platform, node) for node in nodes]
        if len({pod_of(platform, node) for node in nodes}) != 1 or sorted(places) != list(range(NODES)):
            raise UnsupportedError(
                f"a two-step pod mesh of ranks {', '.join(map(str, group))} on nodes {', '.join(map(str, nodes))}: "
                f"expected one rank on each of the {NODES} nodes of one pod; use a hierarchy or another algorithm",
                source=POD_SOURCE,
            )
        found[number, places] = np.arange(NODES)
    return PodHow(found)


# --- writers ----------------------------------------------------------------------------------------------------------


def write_reduce_scatter(
    board: Board, how: PodHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write a reduce-scatter: shard k of every rank's source, combined, to shard 0 of position k's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    phases = _Pod(board, how)
    phases.handshake(fence=fence_first)
    phases.reduce(source, target, Shards.of(source, board.ranks, size))


def write_all_gather(
    board: Board, how: PodHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-gather: shard 0 of position k's source to shard k of every rank's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    gather_shards(board, how, source, target, Shards.of(target, board.ranks, size), fence_first=fence_first)


def gather_shards(
    board: Board, how: PodHow, source: Region, target: Region, shards: Shards, *, fence_first: bool = False
) -> None:
    """Write an all-gather of shards of any sizes, which lie in the target where `shards` says."""
    phases = _Pod(board, how)
    phases.handshake(fence=fence_first)
    phases.broadcast(source, target, shards, fence=False)


def write_all_reduce(
    board: Board, how: PodHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce of whole buffers, cut into a shard for each rank.

    Args:
        size: bytes of the buffer.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    phases = _Pod(board, how)
    phases.handshake(fence=fence_first)
    shards = Shards.cut(board.ranks, size)
    own = own_shards(target, shards)
    phases.reduce(source, own, shards)
    phases.broadcast(own, target, shards, fence=True)


class _Pod(Exchange):
    """The phases of one operation; a block is a node with one rank."""

    def __init__(self, board: Board, how: PodHow) -> None:
        super().__init__(board, how.nodes[:, :, None], CHIP_EVENTS)

    def across(self, difference: int) -> Array:
        """Return the position of the rank on node xor `difference`."""
        return self.peer(self.block ^ difference, 0)

    def handshake(self, *, fence: bool) -> None:
        """Meet the two neighbours."""
        self.meet(self.events.meet, [self.across(DIRECT), self.across(PROXY)], fence=fence)

    def reduce(self, source: Region, target: Region, shards: Shards) -> None:
        """Write REDUCE_COPY, REDUCE_COPY_2 and REDUCE_WRITE."""
        board, stride = self.board, int(shards.size.max())
        slots = Region(board.buffer("slot", 3 * stride), 0, stride)  # direct's slice for us, for our proxy; proxy's sum
        direct, proxy = self.across(DIRECT), self.across(PROXY)
        filled = self.semaphore(EventType.EVT_REDUCE_COPY)
        owner = np.stack([direct, self.across(OPPOSITE)])
        number = np.arange(2)[:, None, None]
        board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=shards.size[owner],
            reads=[self.place(source, np.broadcast_to(self.me, owner.shape), shards.start(owner))],
            writes=[slots.at(number, rank=direct)],
            signals=[Signal(direct, filled, where=number == 1)],
            op=first_op(board),
            event=EventType.EVT_REDUCE_COPY,
            step=self.step,
            part=number,
        )
        self.wait(EventType.EVT_REDUCE_COPY, filled, np.ones_like(self.me), part=2)
        self.step += 1
        passed = self.semaphore(EventType.EVT_REDUCE_COPY_2)
        self._fold(
            [self.place(source, self.me, shards.start(proxy)), slots.at(1)],
            slots.at(2, rank=proxy),
            shards.size[proxy],
            EventType.EVT_REDUCE_COPY_2,
            slots,
            [Signal(proxy, passed)],
        )
        self.wait(EventType.EVT_REDUCE_COPY_2, passed, np.ones_like(self.me), part=1)
        self.step += 1
        reads = [self.place(source, self.me, shards.start(self.me)), slots.at(0), slots.at(2)]
        self._fold(reads, target.at(), shards.size[self.me], EventType.EVT_REDUCE_WRITE, slots, [])
        self.step += 1

    def _fold(
        self, reads: list[Place], write: Place, size: Array, event: EventType, scratch: Region, signals: list[Signal]
    ) -> None:
        step = self.step
        write_fold(
            self.board, Leaf.MESH_REDUCE, self.me, reads, write, size, scratch, signals=signals, event=event, step=step
        )

    def broadcast(self, source: Region, target: Region, shards: Shards, *, fence: bool) -> None:
        """Write both broadcasts; an own chunk that already lies in the target is not copied there."""
        board, event = self.board, EventType.EVT_LOCAL_AND_POD_GRP_BRDCST
        direct, proxy = self.across(DIRECT), self.across(PROXY)
        arrived, own = self.semaphore(event), shards.start(self.me)
        read, home = self.place(source, self.me), self.place(target, self.me, own)
        stays = read.buffer == home.buffer and np.array_equal(read.offset, home.offset)
        to = np.stack([direct, proxy, *([] if stays else [self.me])])
        number = np.arange(len(to))[:, None, None]
        board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=shards.size[self.me],
            reads=[read],
            writes=[self.place(target, to, own)],
            signals=[Signal(to, arrived, where=number < 2)],
            event=event,
            step=self.step,
            part=number,
            fence=(number == 0) & fence,
        )
        self.wait(event, arrived, np.full_like(self.me, 2), part=len(to))
        self.step += 1
        event = EventType.EVT_LOCAL_AND_POD_GRP_BRDCST_2
        forwarded = self.semaphore(event)
        board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=shards.size[proxy],
            reads=[self.place(target, self.me, shards.start(proxy))],
            writes=[self.place(target, direct, shards.start(proxy))],
            signals=[Signal(direct, forwarded)],
            event=event,
            step=self.step,
        )
        self.wait(event, forwarded, np.ones_like(self.me), part=1)
        self.step += 1


def compose_pod(plan: Plan) -> Schedule:
    """Compose the two-step pod mesh of every group of a plan.

    All-reduce, all-gather (also of unequal shards) and reduce-scatter.

    Raises:
        UnsupportedError: a group is not one rank on each of the four nodes of a pod.

    Source:
        compose §12.5.
    """
    request = plan.request
    assert request.kind in (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER), "a pod mesh does no other"
    board, how = Board.of(request), how_of(plan.platform, request.groups)
    given, wanted = Region(board.input), Region(board.output)
    match request.kind:
        case EncOp.ALLREDUCE:
            write_all_reduce(board, how, given, wanted, request.size)
        case EncOp.REDUCE_SCATTER:
            write_reduce_scatter(board, how, Region(board.input, 0, request.share), wanted, request.share)
        case _:
            counts = request.gather_counts or (request.share // request.itemsize,) * request.ranks
            shards = Shards.packed([count * request.itemsize for count in counts])
            gather_shards(board, how, given, wanted, shards)
    return board.schedule()
