"""SINGLE_STEP_MESH: every rank sends its whole input to every other, and each reduces all of them in rank order.

    LOCAL_HNDSHK, GLOBAL_HNDSHK   notify chip mates, then all others; wait for theirs
    INTRA_GRP_BRDCST              whole input -> own slot of every chip mate; wait
    INTER_GRP_BRDCST              whole input -> own slot of every other rank; wait
    REDUCE_WRITE                  N-1 slots and the own input, in rank order -> output; in place, fenced

The mesh buffer has two halves and each half its own semaphores; an operation uses those of its parity. With the double
buffer consecutive operations of alternating parity need no handshake; a schedule has it all the same, see
`mesh.may_skip_handshake`. Two ranks of one node of Trn1 or Inf2 run `mesh`'s pair instead.

Source: compose §12.4 and t1 of §12.1; schedule §4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, freeze
from rota.compose import mesh
from rota.compose.board import Board, Leaf, Place, Region, Signal
from rota.compose.chip_mesh import CHIP_EVENTS, Exchange, Flavour, blocks_of
from rota.compose.fold import first_op, write_fold
from rota.errors import UsageError
from rota.facts import HIGH, Source
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.machine.platform import Platform
from rota.request import Groups
from rota.schedule.ir import MAX_SOURCES, Schedule
from rota.select.choose import Plan

HALVES: Final = 2
"""Halves of the double buffer. Source: compose §12.4, high."""
ORDER_SOURCE: Final = Source("compose", "12.4, rank order", HIGH)
_BROADCASTS: Final = (EventType.EVT_INTRA_GRP_BRDCST, EventType.EVT_INTER_GRP_BRDCST)


@dataclass(frozen=True, slots=True, eq=False)
class SingleStepHow:
    """How groups run the single step.

    Attributes:
        blocks: position of member l of chip g, shape (groups, chips, members of each).
        handshake: whether an operation begins with its handshakes.
    """

    blocks: I64
    handshake: bool = True

    def __post_init__(self) -> None:
        freeze(self.blocks)


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the operations of one communicator share: the mesh buffer and its semaphores.

    Attributes:
        slots: slot k of half h begins at shard h * N + k.
        arrived: semaphore of each parity and broadcast, chip mates first.
        partial: scratch of reductions of more than 32 sources.
    """

    slots: Region
    arrived: tuple[tuple[int, int], ...]
    partial: Region


def how_of(platform: Platform, groups: Groups, *, handshake: bool = True) -> SingleStepHow:
    """Return how groups of machine ranks run it; where chips differ in their members, every rank counts as a chip."""
    return SingleStepHow(blocks_of(groups, platform.ranks_per_chip), handshake)


def declare_rooms(board: Board, size: int) -> Rooms:
    """Declare the mesh buffer for operations of at most `size` bytes: two halves of a slot for each rank."""
    names = [event.name.lower() for event in _BROADCASTS]
    slots = Region(board.buffer("mesh", HALVES * board.ranks * size), 0, size)
    arrived = [[board.semaphore(f"{name}.{parity}") for name in names] for parity in range(HALVES)]
    wide = board.ranks > MAX_SOURCES
    partial = Region(board.buffer("partial", HALVES * size), 0, size) if wide else slots
    return Rooms(slots, tuple((intra, inter) for intra, inter in arrived), partial)


def write_all_reduce(
    board: Board,
    how: SingleStepHow,
    source: Region,
    target: Region,
    size: int,
    *,
    rooms: Rooms | None = None,
    parity: int = 0,
    fence_first: bool = False,
) -> None:
    """Write an all-reduce of whole buffers.

    Args:
        size: bytes of the buffer.
        rooms: of the communicator, when several operations of a board share them.
        parity: half of the mesh buffer, 0 or 1; consecutive operations alternate.
        fence_first: the first row reads what earlier rows of the queue wrote.

    Raises:
        UsageError: `parity` is neither 0 nor 1.
    """
    if parity not in range(HALVES):
        raise UsageError(f"parity of a single-step mesh: expected 0 or 1, got {parity}")
    rooms = rooms or declare_rooms(board, size)
    step = _Step(board, how, rooms, parity)
    if how.handshake:
        step.meet(EventType.EVT_LOCAL_HNDSHK, step.mates, fence=fence_first)
        step.meet(EventType.EVT_GLOBAL_HNDSHK, step.elsewhere, fence=fence_first and not step.mates)
    fence = fence_first and not how.handshake
    step.send(_BROADCASTS[0], step.mates, source, size, fence=fence)
    step.send(_BROADCASTS[1], step.elsewhere, source, size, fence=fence and not step.mates)
    overwrites = source.buffer == target.buffer  # the input, which the own sends may still read
    step.reduce(source, target, size, fence=overwrites or (fence_first and board.ranks == 1))


class _Step(Exchange):
    """The phases of one operation in one half of the mesh buffer."""

    def __init__(self, board: Board, how: SingleStepHow, rooms: Rooms, parity: int) -> None:
        super().__init__(board, how.blocks, CHIP_EVENTS)
        self.rooms = rooms
        self.parity = parity

    @property
    def elsewhere(self) -> list[Array]:
        """Positions on other chips, from the next chip on."""
        return [self.peer(self.block + i, self.lane + j) for i in range(1, self.count) for j in range(self.width)]

    def slot(self, sender: Array | int, rank: Array | None = None) -> Place:
        """Return a sender's slot, of the issuer or of another rank."""
        return self.rooms.slots.at(self.parity * self.board.ranks + np.asarray(sender), rank=rank)

    def send(self, event: EventType, peers: list[Array], source: Region, size: int, *, fence: bool) -> None:
        """Send the input to some ranks and wait for theirs."""
        if not peers:
            return
        to = np.stack(peers)
        arrived = self.rooms.arrived[self.parity][_BROADCASTS.index(event)]
        number = np.arange(len(peers))[:, None, None]
        self.board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=size,
            reads=[source.at()],
            writes=[self.slot(self.me, to)],
            signals=[Signal(to, arrived)],
            op=first_op(self.board),
            event=event,
            step=self.step,
            part=number,
            fence=(number == 0) & fence,
        )
        self.wait(event, arrived, np.full(self.me.shape, len(peers)), part=len(peers))
        self.step += 1

    def reduce(self, source: Region, target: Region, size: int, *, fence: bool) -> None:
        """Fold all inputs in rank order. Source: `ORDER_SOURCE`."""
        own, reads = source.at(), []
        for k in range(self.board.ranks):
            mine, slot = self.me == k, self.slot(k)
            offset = np.where(mine, own.offset, slot.offset)
            reads.append(Place(np.where(mine, own.buffer, slot.buffer), offset))
        write_fold(
            self.board,
            Leaf.MESH_REDUCE,
            self.me,
            reads,
            target.at(),
            size,
            Region(self.rooms.partial.buffer, self.parity * size),
            fence=fence,
            event=EventType.EVT_REDUCE_WRITE,
            step=self.step,
        )
        self.step += 1


def compose_single_step(plan: Plan, *, parity: int = 0) -> Schedule:
    """Compose the single-step all-reduce of every group of a plan.

    Args:
        parity: half of the mesh buffer, 0 or 1; consecutive operations of a program alternate.

    Raises:
        UsageError: `parity` is neither 0 nor 1.
        UnsupportedError: the groups lie over a switch.

    Source:
        compose §12.4; for two ranks of one node of Trn1 or Inf2, t0 of §12.1.
    """
    mesh.refuse_switch(plan)
    request = plan.request
    assert request.kind is EncOp.ALLREDUCE, "a single step is for all-reduce alone"
    board = Board.of(request)
    given, wanted = Region(board.input), Region(board.output)
    pair = mesh.how_of(plan.platform, request.groups[:1], plan.settings)
    if pair.flavour is Flavour.PAIR:
        mesh.write_all_reduce(
            board, mesh.how_of(plan.platform, request.groups, plan.settings), given, wanted, request.size
        )
        return board.schedule()
    for part, groups in mesh.parts_of(board, plan.platform, request.groups):
        write_all_reduce(part, how_of(plan.platform, groups), given, wanted, request.size, parity=parity)
    return board.schedule()
