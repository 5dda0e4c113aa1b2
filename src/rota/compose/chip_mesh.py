"""MESH over blocks: G blocks of L members exchange one partial or one copy per block. The per-device mesh of Trn2.

A block is a chip; its members read each other's inputs. For rank (g, l), with d = (q, l) another block's member of the
same index, and q served by l when (q - g) mod L = l (compose §12.3):

    LOCAL_HNDSHK, GLOBAL_HNDSHK    notify block mates, then ranks of index l elsewhere; wait for theirs
    reduce-scatter  REDUCE_COPY    L inputs, slice d -> slot g of d, for every q
                    REDUCE_WRITE   L inputs, own slice, and G-1 slots, in block order -> own output
                    SYNC           notify mates that their inputs are read; wait
    all-gather      INTER          the block's L chunks -> (q, l), for every block q that l serves; own chunk -> mates
                    INTRA          chunks that landed here -> mates
    all-reduce      the reduce-scatter, with REDUCE_LOCAL_HNDSHK in place of SYNC, then the all-gather of the results

Both DMA passes move the same data; names of buffers and semaphores begin with the pass. Two chips of one node use the
two-device events for the handshake and the broadcast between chips. With L = 1 it is the plain two-step mesh. An event
fires, then waits: its rows are contiguous on every rank, and `wait_val` is counted from what is notified.

What is built on these phases with other blocks is in `mesh` (full) and `grouped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array, freeze
from rota.compose.board import Board, Leaf, Place, Region, Signal, Wait
from rota.compose.cut import GRANULE
from rota.compose.fold import write_fold
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.events import EventType
from rota.machine.platform import Platform
from rota.schedule.ir import MAX_SOURCES

EVENTS_SOURCE: Final = Source("compose", "12.3, events of the per-device mesh", CONVENTION)
MOVEMENT_SOURCE: Final = Source("compose", "12.3, official data flow", HIGH)


class Landing(Enum):
    """Who carries a chunk to another block: the index that serves the block carries all, or each member its own."""

    SERVED = "served"
    OWN = "own"


class Flavour(Enum):
    """Which list of phases a mesh runs."""

    PAIR = "pair"  # t0: two ranks of one node
    FULL = "full"  # t2, t4
    GROUPED = "grouped"  # Inf2
    CHIP = "chip"  # per device


@dataclass(frozen=True, slots=True)
class Events:
    """The event types that differ between the lists of the subtypes.

    Attributes:
        meet: handshake with other blocks.
        broadcast, forward: of an all-gather: between blocks, then inside them.
        gather: as broadcast, behind a reduce-scatter.
        write: the last reduction of a reduce-scatter.
    """

    meet: EventType
    broadcast: EventType
    gather: EventType
    forward: EventType
    write: EventType = EventType.EVT_REDUCE_WRITE


CHIP_EVENTS: Final = Events(
    meet=EventType.EVT_GLOBAL_HNDSHK,
    broadcast=EventType.EVT_INTER_GRP_BRDCST,
    gather=EventType.EVT_INTER_GRP_BRDCST_2,
    forward=EventType.EVT_INTRA_GRP_BRDCST,
)
"""The lists of the per-device mesh. Source: compose §12.3, convention."""
TWO_CHIP_EVENTS: Final = Events(
    meet=EventType.EVT_2DEV_HNDSHK,
    broadcast=EventType.EVT_2DEV_BRDCST,
    gather=EventType.EVT_2DEV_BRDCST,
    forward=EventType.EVT_INTRA_GRP_BRDCST,
)
"""The same for two chips of one node. Source: compose §12.3, convention."""


@dataclass(frozen=True, slots=True, eq=False)
class MeshHow:
    """How the groups of a mesh exchange: a value for `write_reduce_scatter`, `write_all_gather`, `write_all_reduce`.

    Attributes:
        flavour: the list of phases.
        blocks: position of member l of block g, shape (groups, G, L); G * L = N.
        events: the event types of its subtype.
        prefix: of its buffers and semaphores.
        duplicates: whether a row may write several targets, so that a broadcast in a block reads once.
    """

    flavour: Flavour
    blocks: I64
    events: Events
    prefix: str = ""
    duplicates: bool = False

    def __post_init__(self) -> None:
        assert self.blocks.ndim == 3, "blocks are (groups, blocks, members)"
        freeze(self.blocks)

    @property
    def flat(self) -> I64:
        """The members as blocks of one, in group order."""
        groups = self.blocks.shape[0]
        ranks = self.blocks[0].size
        return np.broadcast_to(np.arange(ranks, dtype=np.int64)[None, :, None], (groups, ranks, 1)).copy()


def blocks_of(groups: Sequence[Sequence[int]], block: int) -> I64:
    """Return the blocks of groups of machine ranks: a block holds the members whose ranks agree in rank // block.

    Blocks come in the order of their first member, members by rank. Where two blocks differ in size, every
    rank is a block of its own.

    Returns:
        Positions, shape (groups, blocks, members of each).
    """
    found: list[list[list[int]]] = []
    for group in groups:
        parts: dict[int, list[tuple[int, int]]] = {}
        for position, rank in enumerate(group):
            parts.setdefault(rank // block, []).append((rank, position))
        found.append([[position for _, position in sorted(part)] for part in parts.values()])
    if len({len(part) for parts in found for part in parts}) > 1:
        found = [[[position] for position in range(len(group))] for group in groups]
    return np.array(found, np.int64)


def chip_mesh(platform: Platform, groups: Sequence[Sequence[int]], *, number: int = 0) -> MeshHow:
    """Return the per-device mesh of groups of machine ranks; its blocks are their chips.

    Args:
        number: the DMA pass, 0 or 1.
    """
    blocks = blocks_of(groups, platform.ranks_per_chip)
    nodes = {rank // platform.node_ranks for rank in groups[0]}
    events = TWO_CHIP_EVENTS if blocks.shape[1] == 2 and len(nodes) == 1 else CHIP_EVENTS
    return MeshHow(Flavour.CHIP, blocks, events, prefix=f"pass{number}.")


# --- writers ----------------------------------------------------------------------------------------------------------


def write_reduce_scatter(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write a reduce-scatter: shard k of every rank's source, combined, to shard 0 of position k's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    phases = Exchange(board, how.blocks, how.events, how.prefix)
    phases.handshakes(fence=fence_first)
    shards = Shards.of(source, board.ranks, size)
    phases.scatter(source, target, shards, fence=fence_first)
    phases.meet(EventType.EVT_SYNC, phases.mates)


def write_all_gather(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-gather: shard 0 of position k's source to shard k of every rank's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    gather_shards(board, how, source, target, Shards.of(target, board.ranks, size), fence_first=fence_first)


def gather_shards(
    board: Board, how: MeshHow, source: Region, target: Region, shards: Shards, *, fence_first: bool = False
) -> None:
    """Write an all-gather of shards of any sizes, which lie in the target where `shards` says."""
    phases = Exchange(board, how.blocks, how.events, how.prefix)
    phases.handshakes(fence=fence_first)
    landing = Landing.SERVED if how.flavour is Flavour.CHIP else Landing.OWN
    phases.gather(
        landing,
        source,
        target,
        shards,
        between=how.events.broadcast,
        inside=how.events.forward,
        once=how.duplicates,
        fence=fence_first and board.ranks == 1,
    )


def write_all_reduce(
    board: Board, how: MeshHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce of whole buffers, cut into a shard for each rank.

    Args:
        size: bytes of the buffer.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    phases = Exchange(board, how.blocks, how.events, how.prefix)
    phases.handshakes(fence=fence_first)
    shards = Shards.cut(board.ranks, size)
    own = own_shards(target, shards)
    phases.scatter(source, own, shards, fence=fence_first)
    phases.meet(EventType.EVT_REDUCE_LOCAL_HNDSHK, phases.mates, fence_wait=True)
    phases.gather(
        Landing.SERVED,
        own,
        target,
        shards,
        between=how.events.gather,
        inside=how.events.forward,
        once=how.duplicates,
        fence=not phases.mates,
    )


def own_shards(target: Region, shards: Shards) -> Region:
    """Return the region whose shard 0 is, on every rank, the rank's own shard of a buffer."""
    return Region(target.buffer, np.asarray(target.offset) + np.atleast_2d(shards.offset))


# --- phases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Where the shard of each position lies in a region, and how long it is.

    Attributes:
        offset: shape (ranks,), or (groups, ranks) where the shards of each group lie elsewhere.
        size: shape (ranks,).
    """

    offset: I64
    size: I64

    @staticmethod
    def of(region: Region, ranks: int, size: int) -> Shards:
        """Return the equal shards of a region."""
        table = np.arange(ranks, dtype=np.int64) * region.stride if region.table is None else region.table
        return Shards(table, np.full(ranks, size, np.int64))

    def start(self, owner: Array) -> I64:
        """Return where the shards of some positions start; the last two axes are (groups, positions)."""
        if self.offset.ndim == 1:
            return self.offset[owner]
        found: I64 = self.offset[np.arange(self.offset.shape[0])[:, None], owner]
        return found

    @staticmethod
    def cut(ranks: int, size: int) -> Shards:
        """Return a buffer cut at multiples of `GRANULE`; the last shards may be short or empty."""
        stride = -(-size // (ranks * GRANULE)) * GRANULE
        offset = np.minimum(np.arange(ranks, dtype=np.int64) * stride, size)
        return Shards(offset, np.minimum(size - offset, stride))

    @staticmethod
    def packed(sizes: Sequence[int]) -> Shards:
        """Return shards of given sizes, end to end."""
        size = np.array(sizes, np.int64)
        return Shards(np.cumsum(size) - size, size)


class Exchange:
    """The phases of one mesh operation, written one after another; every phase is one event.

    Arrays have their last two axes (groups, positions). Steps count the events.
    """

    def __init__(self, board: Board, blocks: I64, events: Events, prefix: str = "", *, step: int = 0) -> None:
        self.events = events
        self.board = board.part(board.members, prefix=prefix)
        self.blocks = blocks
        self.count, self.width = blocks.shape[1], blocks.shape[2]
        self.me = np.broadcast_to(board.position, (board.groups, board.ranks))
        self.block = np.empty_like(self.me)
        self.lane = np.empty_like(self.me)
        group, block, lane = np.indices(blocks.shape)
        self.block[group, blocks] = block
        self.lane[group, blocks] = lane
        self.step = step

    def peer(self, block: ArrayLike, lane: ArrayLike) -> Array:
        """Return the position of a member of a block."""
        group = np.arange(self.board.groups)[:, None]
        found: Array = self.blocks[group, np.asarray(block) % self.count, np.asarray(lane) % self.width]
        return found

    @property
    def mates(self) -> list[Array]:
        """The others of the own block, from the next on."""
        return [self.peer(self.block, self.lane + j) for j in range(1, self.width)]

    @property
    def counterparts(self) -> list[Array]:
        """The members of the own index in the other blocks, from the next block on."""
        return [self.peer(self.block + i, self.lane) for i in range(1, self.count)]

    def semaphore(self, event: EventType) -> int:
        """Declare the semaphore of an event."""
        return self.board.semaphore(event.name.lower())

    def place(self, region: Region, rank: Array, within: ArrayLike = 0) -> Place:
        """Return a place in a region whose offset may differ from rank to rank."""
        offset = np.broadcast_to(np.asarray(region.offset), self.me.shape)
        return Place(region.buffer, offset[np.arange(self.board.groups)[:, None], rank] + np.asarray(within), rank)

    def handshakes(self, *, fence: bool = False) -> None:
        """Meet the block mates, then the counterparts; none where there are none."""
        self.meet(EventType.EVT_LOCAL_HNDSHK, self.mates, fence=fence)
        self.meet(self.events.meet, self.counterparts, fence=fence and not self.mates)

    def meet(self, event: EventType, peers: Sequence[Array], *, fence: bool = False, fence_wait: bool = False) -> None:
        """Notify some ranks and wait for as many; nothing when there are none."""
        if not peers:
            return
        done, board = self.semaphore(event), self.board
        signals = [Signal(peer, done) for peer in peers]
        board.rows(Leaf.MESH_NOTIFY, self.me, signals=signals, event=event, step=self.step, fence=fence)
        self.wait(event, done, len(peers), part=1, fence=fence_wait)
        self.step += 1

    def wait(self, event: EventType, semaphore: int, count: ArrayLike, *, part: int, fence: bool = False) -> None:
        """Wait for so many notifies of an event and end it; ranks that none reaches have no row."""
        count = np.asarray(count)
        waits = [Wait(semaphore, np.maximum(count, 1), np.maximum(count, 1))]
        self.board.rows(
            Leaf.MESH_WAIT, self.me, waits=waits, event=event, step=self.step, part=part, fence=fence, when=count > 0
        )

    def scatter(self, source: Region, target: Region, shards: Shards, *, fence: bool = False) -> None:
        """Reduce in every block for every foreign rank, and at every rank what arrives: REDUCE_COPY, REDUCE_WRITE.

        Args:
            source: shards on every rank.
            target: its shard 0 takes the own result.
            fence: the first row is fenced where no handshake precedes it.
        """
        board, stride = self.board, int(shards.size.max())
        slots = Region(board.buffer("slot", self.count * stride) if self.count > 1 else source.buffer, 0, stride)
        if self.count > 1:
            event, filled = EventType.EVT_REDUCE_COPY, self.semaphore(EventType.EVT_REDUCE_COPY)
            i = np.arange(1, self.count)[:, None, None]
            owner = self.peer(self.block + i, self.lane)
            reads = [self.place(source, self.peer(self.block, k), shards.start(owner)) for k in range(self.width)]
            write_fold(
                board,
                Leaf.MESH_REDUCE if self.width > 1 else Leaf.MESH_SEND,
                self.me,
                reads,
                slots.at(self.block, rank=owner),
                shards.size[owner],
                slots,
                signals=[Signal(owner, filled)],
                event=event,
                step=self.step,
                part=i - 1,
            )
            self.wait(event, filled, self.count - 1, part=self.count - 1)
            self.step += 1
        self._write(source, slots, target, shards, fence=fence and self.count * self.width == 1)

    def _write(self, source: Region, slots: Region, target: Region, shards: Shards, *, fence: bool) -> None:
        """Fold the own slice of the block's inputs and the slots, in block order."""
        reads = []
        own = shards.start(self.me)
        for k in range(self.count + self.width - 1):
            inside = (self.block <= k) & (k < self.block + self.width)
            mate = self.peer(self.block, np.clip(k - self.block, 0, self.width - 1))
            given = self.place(source, mate, own)
            slot = slots.at(np.where(k < self.block, k, max(k - self.width + 1, 0)))
            reads.append(
                Place(
                    np.where(inside, source.buffer, slots.buffer),
                    np.where(inside, given.offset, slot.offset),
                    np.where(inside, mate, self.me),
                )
            )
        scratch = slots
        if len(reads) > MAX_SOURCES:
            scratch = Region(self.board.buffer("partial", int(shards.size.max())))
        write_fold(
            self.board,
            Leaf.MESH_REDUCE,
            self.me,
            reads,
            target.at(),
            shards.size[self.me],
            scratch,
            fence=fence,
            event=self.events.write,
            step=self.step,
        )
        self.step += 1

    def gather(
        self,
        landing: Landing,
        source: Region,
        target: Region,
        shards: Shards,
        *,
        between: EventType,
        inside: EventType,
        once: bool = False,
        fence: bool = False,
    ) -> None:
        """Broadcast between blocks, then inside them.

        Args:
            source: its shard 0 is the own chunk; where it already is the own shard of the target, it is not copied.
            between, inside: events of the two steps.
            once: a broadcast in a block is one row with several targets.
            fence: the first row of every rank is fenced; ranks of a served mesh with mates meet before instead.
        """
        assert not fence or landing is Landing.OWN or self.width == 1 or self.count == 1, "which row is first varies"
        done = self.semaphore(inside) if self.width > 1 else 0
        if self.count == 1:
            self._own_chunk(inside, source, target, shards, done=done, once=once, fence=fence)
        else:
            self._between(landing, source, target, shards, between, once=once, fence=fence)
            self._forward(landing, target, shards, inside, done, once=once)
        if self.width > 1:
            self.wait(inside, done, self.width - 1, part=self.board.ranks * self.width)
        self.step += 1

    def _between(
        self,
        landing: Landing,
        source: Region,
        target: Region,
        shards: Shards,
        event: EventType,
        *,
        once: bool,
        fence: bool,
    ) -> None:
        landed, chunks = self.semaphore(event), self.width if landing is Landing.SERVED else 1
        i = np.arange(1, self.count).reshape(-1, 1, 1, 1)
        k = np.arange(chunks).reshape(1, -1, 1, 1)
        to = (self.block + i) % self.count
        chunk, lands = self.peer(self.block, self.lane + k), self.peer(to, self.lane)
        self.board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=shards.size[chunk],
            reads=[self.place(source, chunk)],
            writes=[self.place(target, lands, shards.start(chunk))],
            signals=[Signal(lands, landed, where=k == chunks - 1)],
            event=event,
            step=self.step,
            part=(i - 1) * chunks + k,
            fence=(i == 1) & (k == 0) & fence,
            when=self._carries(landing, self.block, to),
        )
        self._own_chunk(event, source, target, shards, done=None, once=once, part=(self.count - 1) * chunks)
        others = (self.block + i[:, 0]) % self.count
        arrive = np.broadcast_to(self._carries(landing, others, self.block), others.shape).sum(axis=0)
        self.wait(event, landed, arrive, part=(self.count - 1) * chunks + self.width)
        self.step += 1

    def _carries(self, landing: Landing, block: Array, to: Array) -> Array:
        """Say whether the member of the own index of a block carries chunks of it to another block."""
        if landing is Landing.OWN:
            return np.ones(np.broadcast_shapes(np.shape(block), np.shape(to)), np.bool_)
        serves: Array = (to - block) % self.width == self.lane
        return serves

    def _own_chunk(
        self,
        event: EventType,
        source: Region,
        target: Region,
        shards: Shards,
        *,
        done: int | None,
        once: bool,
        part: int = 0,
        fence: bool = False,
    ) -> None:
        """Copy the own chunk to the own target and to the mates; signal `done` to these if it is given."""
        own = shards.start(self.me)
        read, home = self.place(source, self.me), self.place(target, self.me, own)
        first = int(read.buffer == home.buffer and np.array_equal(read.offset, home.offset))
        to = [self.peer(self.block, self.lane + j) for j in range(first, self.width)]
        for number, ranks in enumerate([to] if once and to else [[rank] for rank in to]):
            tell = [rank for rank in ranks if rank is not to[0] or first]
            self.board.rows(
                Leaf.MESH_SEND,
                self.me,
                size=shards.size[self.me],
                reads=[read],
                writes=[self.place(target, rank, own) for rank in ranks],
                signals=[Signal(rank, done) for rank in tell] if done is not None and self.width > 1 else [],
                event=event,
                step=self.step,
                part=part + number,
                fence=fence and not number,
            )

    def _forward(
        self, landing: Landing, target: Region, shards: Shards, event: EventType, done: int, *, once: bool
    ) -> None:
        """Copy what landed here to the mates; the last copy to each says so, or a notify where nothing landed."""
        if self.width == 1:
            return
        chunks, mates = self.width if landing is Landing.SERVED else 1, self.mates
        i = np.arange(1, self.count).reshape(-1, 1, 1, 1, 1)
        k = np.arange(chunks).reshape(1, -1, 1, 1, 1)
        j = np.arange(1, 2 if once else self.width).reshape(1, 1, -1, 1, 1)
        origin = (self.block - i) % self.count
        here = self._carries(landing, origin, self.block)
        chunk = self.peer(origin, self.lane + k)
        final = (i == (i * here).max(axis=0)) & (k == chunks - 1)
        to = mates if once else [self.peer(self.block, self.lane + j)]
        self.board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=shards.size[chunk],
            reads=[self.place(target, self.me, shards.start(chunk))],
            writes=[self.place(target, rank, shards.start(chunk)) for rank in to],
            signals=[Signal(rank, done, where=final) for rank in to],
            event=event,
            step=self.step,
            part=((i - 1) * chunks + k) * self.width + j,
            when=here,
        )
        signals = [Signal(mate, done) for mate in mates]
        idle: Array = np.logical_not(here.any(axis=(0, 1, 2)))
        self.board.rows(Leaf.MESH_NOTIFY, self.me, signals=signals, event=event, step=self.step, when=idle)
