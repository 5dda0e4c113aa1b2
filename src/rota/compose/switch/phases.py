"""The compose side: one function for each phase, which writes its rows from the planned groups alone.

A composer is given an event that `menu.planned` has asserted, and never works out a neighbour again. Whoever copies or
reduces notifies each destination once, behind the last byte for it; the notify is on the event's own index, and then
the running index advances. Slots of scratch are numbered by the sender's place in the receive group of the receiver.

    handshakes           notify everybody of the destination group; wait
    broadcasts           the own block, input or pieces to every target, block after block; wait
    intra-chip broadcast the own block and what the two broadcasts received, to the mates: the own die's, then the rest
    chipr1w              for every target and every rank of its column: my chip's inputs -> a slot of the target
    inter dimr1w         for every target: the slots of its row -> a slot of the target
    intra-rank dimr1w    the slots of my column -> the own output
    single-step reduce   all inputs in rank order -> the own output
    dma-sync             notify myself; wait

Source: switch_schedule §3, §4 and §6; ownership of the reductions, compose §12.6, convention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array, Bool
from rota.compose.all_to_all import MOST_PARTS, Pieces
from rota.compose.board import Board, Leaf, Op, Place, Region, Signal, Wait
from rota.compose.chip_mesh import Shards
from rota.compose.cut import GRANULE
from rota.compose.fold import first_op, fold_rows, write_fold
from rota.compose.switch.menu import Slot
from rota.compose.switch.planned import Event, Phase
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa.events import EventType
from rota.isa.switch_records import MAX_COPY
from rota.schedule.ir import MAX_SOURCES

BLOCK_SOURCE: Final = Source("switch_schedule", "6, maximum block size", CONVENTION)
MAX_BLOCK: Final = MAX_COPY - GRANULE
"""Most bytes of an output block: what one copy record can say, in whole granules. Source: `BLOCK_SOURCE`."""
WAIT_PART: Final = MOST_PARTS - 1
"""The part of the row that waits, behind those that move data."""
MOST_SHARES: Final = 3
"""Parts of an event that one block for one rank may take: its copies, and what is handed on."""


class Cargo(Enum):
    """What the broadcasts of an operation carry."""

    BLOCK = "own block"  # of an all-gather: the input; behind a reduction: the own slice of the output
    INPUT = "whole input"  # into the mesh buffers
    PIECES = "piece for each rank"


@dataclass(frozen=True, slots=True)
class Blocks:
    """A copy cut into output blocks; the last one is partial. Source: switch_schedule §6, high."""

    most: int  # bytes of a block

    def count(self, size: ArrayLike) -> I64:
        """Return the blocks of some bytes; no bytes are one block that moves nothing."""
        found: I64 = np.maximum(-(-np.asarray(size, np.int64) // self.most), 1)
        return found

    def offset(self, number: ArrayLike) -> I64:
        """Return where block k begins."""
        return np.asarray(number, np.int64) * self.most

    def size(self, number: ArrayLike, whole: ArrayLike) -> I64:
        """Return the bytes of block k."""
        found: I64 = np.clip(np.asarray(whole, np.int64) - self.offset(number), 0, self.most)
        return found


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the operations of one subtype share: scratch and semaphores, each for every half.

    Attributes:
        slots: partials of chips; slot [half, row of the owner, column of the sender].
        sums: partials of rows; slot [half, row of the sender].
        mesh: whole inputs; slot [half, sender].
        partial: of reductions of more than 32 sources; slot [half, row of the owner].
        semaphores: of an event and a half.
        proxies: of an event: what is to be handed on; slot [half, place among what a rank hands on].
        landed: of an event and a half: says that something is to be handed on.
    """

    slots: Region
    sums: Region
    mesh: Region
    partial: Region
    semaphores: Mapping[tuple[EventType, int], int]
    proxies: Mapping[EventType, Region]
    landed: Mapping[tuple[EventType, int], int]


def declare_rooms(board: Board, slot: Slot, size: int) -> Rooms:
    """Declare the scratch and the semaphores of a subtype.

    Args:
        size: bytes of a slot: of the largest slice, block or piece, or for a single step of the input.
    """
    events = {event.phase: event for event in slot.events if event.valid}
    halves, nothing = slot.halves, Region(board.input)
    slots = sums = mesh = partial = nothing
    chip, row = events.get(Phase.INTRA_AXIS_CHIPR1W), events.get(Phase.INTER_AXIS_DIMR1W)
    if chip is not None and row is not None:
        columns, rows = chip.targets.shape[2], row.targets.shape[2]
        slots = Region(board.buffer("chip_sums", halves * rows * columns * size), 0, size)
        sums = Region(board.buffer("row_sums", halves * rows * size), 0, size)
        if max(columns, rows) > MAX_SOURCES:
            partial = Region(board.buffer("partial", halves * rows * size), 0, size)
    if Phase.SINGLE_STEP_REDUCE in events:
        mesh = Region(board.buffer("mesh", halves * board.ranks * size), 0, size)
        if board.ranks > MAX_SOURCES:
            partial = Region(board.buffer("partial", halves * size), 0, size)
    through = [event for event in events.values() if event.handed is not None]
    proxies = {}
    for event in through:
        assert event.handed is not None, "only such events are kept"
        name = f"proxy.{event.type.name.lower()}"
        proxies[event.type] = Region(board.buffer(name, halves * event.handed.shape[2] * size), 0, size)
    return Rooms(
        slots,
        sums,
        mesh,
        partial,
        _semaphores(board, [event.type for event in events.values()], halves, ""),
        proxies,
        _semaphores(board, [event.type for event in through], halves, "landed."),
    )


def _semaphores(board: Board, types: Sequence[EventType], halves: int, prefix: str) -> dict[tuple[EventType, int], int]:
    """Declare the semaphores of some events, one for every half."""
    return {
        (event, half): board.semaphore(prefix + event.name.lower() + (f".{half}" if halves > 1 else ""))
        for event in types
        for half in range(halves)
    }


class Run:
    """One operation of one subtype as it is written.

    Attributes:
        source, target: of the operation; shards or pieces say where what lies in them.
        half: of the rooms.
        fence: the next row is the first of every rank, and reads what earlier rows of the queue wrote.
    """

    def __init__(
        self,
        board: Board,
        slot: Slot,
        rooms: Rooms,
        cargo: Cargo,
        *,
        source: Region,
        target: Region,
        shards: Shards,
        pieces: Pieces | None = None,
        half: int = 0,
        max_block: int = MAX_BLOCK,
        fence: bool = False,
    ) -> None:
        self.board, self.slot, self.rooms, self.cargo = board, slot, rooms, cargo
        self.source, self.target, self.shards, self.pieces = source, target, shards, pieces
        self.half, self.blocks, self.fence = half, Blocks(max_block), fence
        self.me = np.broadcast_to(board.position, (board.groups, board.ranks))
        self.step = 0

    def event(self, phase: Phase) -> Event | None:
        """Return the planned event of a phase, None where the subtype has none or it is empty."""
        return next((each for each in self.slot.events if each.phase is phase and each.valid), None)

    def semaphore(self, event: Event) -> int:
        """Return the semaphore of an event in this half."""
        return self.rooms.semaphores[event.type, self.half]

    def place(self, region: Region, rank: Array, within: ArrayLike = 0) -> Place:
        """Return a place in a region whose offset may differ from rank to rank."""
        offset = np.broadcast_to(np.asarray(region.offset), self.me.shape)
        return Place(region.buffer, offset[np.arange(self.board.groups)[:, None], rank] + np.asarray(within), rank)

    def take_fence(self) -> bool:
        """Return whether the next row is fenced; those behind it are not."""
        fence, self.fence = self.fence, False
        return fence

    @property
    def in_place(self) -> bool:
        """Whether the operation writes over what it reads."""
        return self.source.buffer == self.target.buffer

    def wait(self, event: Event) -> None:
        """Wait for the notifies that reach a rank; ranks that none reaches have no row."""
        count = np.maximum(event.wait_val, 1)
        self.board.rows(
            Leaf.MESH_WAIT,
            self.me,
            waits=[Wait(self.semaphore(event), count, count)],
            event=event.type,
            step=self.step,
            part=WAIT_PART,
            when=event.wait_val > 0,
        )


Composer = Callable[[Run, Event], None]


# --- notifies ---------------------------------------------------------------------------------------------------------


def notify(run: Run, event: Event) -> None:
    """Write a phase without data: handshakes and the dma-sync."""
    done = run.semaphore(event)
    signals = [Signal(event.notified[:, :, k], done) for k in range(event.notified.shape[2])]
    run.board.rows(Leaf.MESH_NOTIFY, run.me, signals=signals, event=event.type, step=run.step, fence=run.take_fence())
    run.wait(event)


def barrier(run: Run, event: Event) -> None:
    """Write a function barrier: a notify whose waiter is no part of the operation. Source: switch_schedule §6, high."""
    run.board.rows(Leaf.MESH_NOTIFY, run.me, event=event.type, step=run.step, fence=run.take_fence())


# --- broadcasts -------------------------------------------------------------------------------------------------------


def broadcast(run: Run, event: Event) -> None:
    """Write the cargo of every rank to its targets, those of the intra-axis broadcast also to the own output."""
    intra = event.phase in (Phase.INTRA_AXIS_BROADCAST, Phase.INTRA_AXIS_BW_BROADCAST)
    keeps = intra and (run.cargo is Cargo.PIECES or (run.cargo is Cargo.BLOCK and not _reduced(run)))
    if keeps:
        _copy(run, event, run.me[None], part=0, tell=False)
    if event.targets.shape[2]:
        _copy(run, event, _axis(event.targets), part=_parts(run, 1) if keeps else 0, tell=True)
    if event.handed is not None:
        _hand_over(run, event, event.handed)
    run.wait(event)


def _copy(run: Run, event: Event, to: I64, *, part: int, tell: bool) -> None:
    """Write one copy for every destination and block, blocks outermost; the last to each destination notifies it.

    A block that lies where it is to go already is not copied.
    """
    size, write = _destination(run, run.me, to)
    read, semaphore, lands = _origin(run, to), np.asarray(run.semaphore(event)), to
    if tell and event.landing is not None:
        lands = _axis(event.landing)
        write, semaphore = _landing(run, event, to, lands, write)
    k = np.arange(int(run.blocks.count(size).max()))[:, None, None, None]
    number = np.arange(to.shape[0])[:, None, None]
    last, block = run.blocks.count(size) - 1, run.blocks.size(k, size)
    at = np.where(block > 0, run.blocks.offset(k), 0)
    run.board.rows(
        Leaf.MESH_SEND,
        run.me,
        size=block,
        reads=[Place(read.buffer, np.asarray(read.offset) + at)],
        writes=[Place(write.buffer, np.asarray(write.offset) + at, write.rank)],
        signals=[Signal(lands, semaphore, where=k == last)] if tell else [],
        op=first_op(run.board) if run.cargo is Cargo.INPUT else Op.NONE,
        event=event.type,
        step=run.step,
        part=part + k * to.shape[0] + number,
        fence=(k == 0) & (number == 0) & run.take_fence(),
        when=(k <= last) & (tell | ((size > 0) & _apart(read, write))),
    )


def _apart(read: Place, write: Place) -> Bool:
    """Return where a rank's copy to itself has two ends."""
    apart: Bool = (np.asarray(read.buffer) != write.buffer) | (np.asarray(read.offset) != write.offset)
    return apart


def _landing(run: Run, event: Event, to: I64, lands: I64, write: Place) -> tuple[Place, Array]:
    """Return the places and semaphores of copies of which some land in a proxy buffer."""
    assert event.handed is not None, "what lands elsewhere is handed on"
    groups, ranks, copies, _ = event.handed.shape
    slot = np.zeros((groups, ranks, ranks), np.int64)
    group, _, number = np.indices((groups, ranks, copies))
    slot[group, event.handed[..., 0], event.handed[..., 1]] = number
    there = run.rooms.proxies[event.type].at(run.half * copies + slot[np.arange(groups)[:, None], run.me, to])
    direct = lands == to
    semaphore = np.where(direct, run.semaphore(event), run.rooms.landed[event.type, run.half])
    offset = np.where(direct, write.offset, there.offset)
    return Place(np.where(direct, write.buffer, there.buffer), offset, lands), semaphore


def _hand_over(run: Run, event: Event, handed: I64) -> None:
    """Copy what landed in the proxy buffer to the mates it is for, and notify them for the senders.

    Source:
        compose §12.6, convention: RMV forwarding, num_fold 1.
    """
    copies, base = handed.shape[2], _parts(run, event.targets.shape[2] + 1)
    landed = run.rooms.landed[event.type, run.half]
    waits = [Wait(landed, copies, copies)]
    run.board.rows(Leaf.MESH_WAIT, run.me, waits=waits, event=event.type, step=run.step, part=base)
    sender, to = _axis(handed[..., 0]), _axis(handed[..., 1])
    size, write = _destination(run, sender, to)
    number = np.arange(copies)[:, None, None]
    run.board.rows(
        Leaf.MESH_SEND,
        run.me,
        size=size,
        reads=[run.rooms.proxies[event.type].at(run.half * copies + number)],
        writes=[write],
        signals=[Signal(to, run.semaphore(event))],
        event=event.type,
        step=run.step,
        part=base + 1 + number,
    )


def _destination(run: Run, sender: I64, to: I64) -> tuple[I64, Place]:
    """Return the bytes that senders have for some ranks, and where they go there."""
    match run.cargo:
        case Cargo.BLOCK:
            size, write = run.shards.size[sender], run.place(run.target, to, run.shards.start(sender))
        case Cargo.INPUT:
            size = run.shards.size[sender]
            write = run.rooms.mesh.at(run.half * run.board.ranks + sender, rank=to)
        case Cargo.PIECES:
            assert run.pieces is not None, "an exchange has pieces"
            size, write = run.pieces.size[sender, to], run.place(run.target, to, run.pieces.lands_at[sender, to])
    return np.broadcast_to(size, to.shape), write


def _origin(run: Run, to: I64) -> Place:
    """Return where the bytes for some ranks lie at their sender."""
    if run.cargo is Cargo.PIECES:
        assert run.pieces is not None, "an exchange has pieces"
        return run.place(run.source, np.broadcast_to(run.me, to.shape), run.pieces.sent_at[run.me, to])
    return run.place(run.source, run.me) if run.cargo is Cargo.INPUT else _own_block(run)


def _own_block(run: Run) -> Place:
    """Return where a rank's own block lies before it is broadcast."""
    if _reduced(run):
        return run.place(run.target, run.me, run.shards.start(run.me))
    return run.place(run.source, run.me)


def hand_on(run: Run, event: Event) -> None:
    """Write the own block and all received ones to the mates, those of the own die and then the rest.

    Source:
        switch_schedule §3.1, convention; that the legs are the die's and the rest, convention there.
    """
    arrived = [run.event(phase) for phase in (Phase.INTRA_AXIS_BW_BROADCAST, Phase.INTER_AXIS_BW_BROADCAST)]
    origin = np.concatenate([run.me[None], *(_axis(each.receives) for each in arrived if each is not None)])
    origin = origin[:, None]
    size, start = run.shards.size[origin], run.shards.start(origin)
    number = np.arange(origin.shape[0])[:, None, None, None]
    k = np.arange(int(run.blocks.count(size).max()))[:, None, None]
    last, block = run.blocks.count(size) - 1, run.blocks.size(k, size)
    within = np.where(block > 0, run.blocks.offset(k), 0)
    own, landed = _own_block(run), run.place(run.target, np.broadcast_to(run.me, origin.shape), start)
    read = Place(
        np.where(number == 0, own.buffer, landed.buffer), np.where(number == 0, own.offset, landed.offset) + within
    )
    final: Bool = (number == origin.shape[0] - 1) & (k == last)
    for leg, targets in enumerate((event.targets[:, :, : event.near], event.targets[:, :, event.near :])):
        ranks = [targets[:, :, mate] for mate in range(targets.shape[2])]
        if ranks:
            run.board.rows(
                Leaf.MESH_SEND,
                run.me,
                size=block,
                reads=[read],
                writes=[run.place(run.target, rank, start + within) for rank in ranks],
                signals=[Signal(rank, run.semaphore(event), where=final) for rank in ranks],
                event=event.type,
                step=run.step,
                part=2 * (number * k.shape[0] + k) + leg,
                when=k <= last,
            )
    run.wait(event)


# --- reductions -------------------------------------------------------------------------------------------------------


def chip_reduce(run: Run, event: Event) -> None:
    """Reduce my chip's inputs for every rank of my lane, into slots of those of my row who collect for it."""
    rows = _event(run, Phase.INTER_AXIS_DIMR1W)
    to = _axis(event.targets)[:, None]
    r = np.arange(rows.receives.shape[2])[:, None, None]
    owner = rows.receives[np.arange(run.board.groups)[:, None], to, r]
    column, columns = event.place_of(run.me, to), event.targets.shape[2]
    number = np.arange(columns)[:, None, None, None]
    base = run.half * r.shape[0] * columns
    lanes = event.sources.shape[2]
    run.board.rows(
        Leaf.MESH_REDUCE if lanes > 1 else Leaf.MESH_SEND,
        run.me,
        size=run.shards.size[owner],
        reads=[run.place(run.source, event.sources[:, :, k], run.shards.start(owner)) for k in range(lanes)],
        writes=[run.rooms.slots.at(base + r * columns + column, rank=np.broadcast_to(to, owner.shape))],
        signals=[Signal(to, run.semaphore(event), where=r == r.shape[0] - 1)],
        op=run.board.op if lanes > 1 else first_op(run.board),
        event=event.type,
        step=run.step,
        part=number * r.shape[0] + r,
        fence=(number == 0) & (r == 0) & run.take_fence(),
    )
    more = event.notified[:, :, columns:]
    if more.shape[2]:
        signals = [Signal(more[:, :, k], run.semaphore(event)) for k in range(more.shape[2])]
        part = columns * r.shape[0]
        run.board.rows(Leaf.MESH_NOTIFY, run.me, signals=signals, event=event.type, step=run.step, part=part)
    run.wait(event)


def row_reduce(run: Run, event: Event) -> None:
    """Reduce what my row's chips sent me for every rank of my column, into a slot of that rank."""
    to = _axis(event.targets)
    columns, rows = _event(run, Phase.INTRA_AXIS_CHIPR1W).targets.shape[2], event.targets.shape[2]
    first = run.half * rows * columns + event.place_of(to, run.me) * columns
    number = np.arange(rows)[:, None, None]
    write_fold(
        run.board,
        Leaf.MESH_REDUCE if columns > 1 else Leaf.MESH_SEND,
        run.me,
        [run.rooms.slots.at(first + column) for column in range(columns)],
        run.rooms.sums.at(run.half * rows + event.place_of(run.me, to), rank=to),
        run.shards.size[to],
        _partial(run, run.half * rows + number),
        signals=[Signal(to, run.semaphore(event))],
        event=event.type,
        step=run.step,
        part=number * fold_rows(columns),
    )
    run.wait(event)


def own_reduce(run: Run, event: Event) -> None:
    """Reduce what the rows of my column sent me, into the own output."""
    rows = _event(run, Phase.INTER_AXIS_DIMR1W).targets.shape[2]
    within = run.shards.start(run.me) if _broadcasts(run) else 0
    write_fold(
        run.board,
        Leaf.MESH_REDUCE if rows > 1 else Leaf.MESH_SEND,
        run.me,
        [run.rooms.sums.at(run.half * rows + row) for row in range(rows)],
        run.place(run.target, run.me, within),
        run.shards.size[run.me],
        _partial(run, run.half * rows),
        signals=[Signal(run.me, run.semaphore(event))],
        fence=rows > MAX_SOURCES,
        event=event.type,
        step=run.step,
    )
    run.wait(event)


def whole_reduce(run: Run, event: Event) -> None:
    """Reduce the inputs of all ranks in rank order; in place only when the own sends have read the input."""
    own, reads = run.place(run.source, run.me), []
    for k in range(run.board.ranks):
        mine, slot = run.me == k, run.rooms.mesh.at(run.half * run.board.ranks + k)
        offset = np.where(mine, own.offset, slot.offset)
        reads.append(Place(np.where(mine, own.buffer, slot.buffer), offset))
    write_fold(
        run.board,
        Leaf.MESH_REDUCE,
        run.me,
        reads,
        run.place(run.target, run.me),
        run.shards.size[run.me],
        _partial(run, run.half),
        signals=[Signal(run.me, run.semaphore(event))],
        fence=run.in_place or run.take_fence(),
        event=event.type,
        step=run.step,
    )
    run.wait(event)


COMPOSERS: Final[Mapping[Phase, Composer]] = MappingProxyType(
    {
        Phase.PCIE_PEER_HANDSHAKE: notify,
        Phase.INTRA_CHIP_HANDSHAKE: notify,
        Phase.ALL_RANK_HANDSHAKE: notify,
        Phase.INTRA_AXIS_BROADCAST: broadcast,
        Phase.INTER_AXIS_BROADCAST: broadcast,
        Phase.INTRA_AXIS_BW_BROADCAST: broadcast,
        Phase.INTER_AXIS_BW_BROADCAST: broadcast,
        Phase.INTRA_CHIP_BROADCAST: hand_on,
        Phase.INTRA_AXIS_CHIPR1W: chip_reduce,
        Phase.INTER_AXIS_DIMR1W: row_reduce,
        Phase.INTRA_RANK_DIMR1W: own_reduce,
        Phase.SINGLE_STEP_REDUCE: whole_reduce,
        Phase.DMA_SYNC: notify,
        Phase.FIRST_BARRIER: barrier,
        Phase.LAST_BARRIER: barrier,
    }
)
"""Phase -> what writes it; the plain and the bandwidth-opt broadcasts are one. Source: switch_schedule §3, high."""


# --- parts ------------------------------------------------------------------------------------------------------------


def check_parts(largest: int, ranks: int, max_block: int) -> None:
    """Check that the copies of one event have numbers.

    Args:
        largest: bytes of the largest copy.

    Raises:
        UnsupportedError: they take more blocks than a schedule can number.
    """
    blocks = int(Blocks(max_block).count(largest))
    if MOST_SHARES * blocks * (ranks + 1) >= WAIT_PART:
        raise UnsupportedError(
            f"{largest} bytes for each of {ranks} ranks in blocks of {max_block} take {blocks} blocks, and a schedule "
            f"numbers {(WAIT_PART - 1) // (MOST_SHARES * (ranks + 1))}; send less at a time",
            source=BLOCK_SOURCE,
        )


def _axis(groups: I64) -> I64:
    """Return neighbour groups with their members first, shape (members, groups, ranks)."""
    return np.moveaxis(groups, 2, 0)


def _parts(run: Run, copies: int) -> int:
    """Return the parts that a number of copies of the largest size take."""
    largest = int(run.shards.size.max()) if run.pieces is None else int(run.pieces.size.max())
    return copies * int(run.blocks.count(largest))


def _event(run: Run, phase: Phase) -> Event:
    event = run.event(phase)
    assert event is not None, "the three reductions are planned together"
    return event


def _reduced(run: Run) -> bool:
    return run.event(Phase.INTRA_RANK_DIMR1W) is not None


def _broadcasts(run: Run) -> bool:
    return run.event(Phase.INTRA_AXIS_BROADCAST) is not None or run.event(Phase.INTRA_AXIS_BW_BROADCAST) is not None


def _partial(run: Run, index: ArrayLike) -> Region:
    """Return the scratch of one wide reduction."""
    return Region(run.rooms.partial.buffer, np.asarray(index) * run.rooms.partial.stride)
