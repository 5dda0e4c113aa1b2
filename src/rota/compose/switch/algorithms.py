"""Composing the switch's algorithms: one bracket around the phases of a planned subtype, and the plans of SELECT.

    primitive · proxy start (2, 3, 0, 0) · first function barrier · phases · last function barrier · dma-sync · end

The dma-sync is the last phase that is built, and comes behind the last barrier when it is emitted. What is skipped
writes no rows; its event keeps its id. A schedule stands for any operation of a program, so by default no handshake is
skipped and no function barrier notifies.

Source: switch_schedule §6, high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.compose import all_to_all
from rota.compose.all_to_all import Pieces
from rota.compose.board import Board, Region
from rota.compose.chip_mesh import Shards
from rota.compose.switch.grid import boxes
from rota.compose.switch.menu import Slot, check_family, planned, slot_of
from rota.compose.switch.phases import COMPOSERS, MAX_BLOCK, Cargo, Rooms, Run, check_parts, declare_rooms
from rota.compose.switch.planned import Event, Phase
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.request import KIND_NAMES, Request
from rota.schedule.ir import Schedule
from rota.select.choose import Plan

PARITY_SOURCE: Final = Source("design", "2 (22), double-buffered scratch", CONVENTION)
EMPTY: Final = "the event is empty"


@dataclass(frozen=True, slots=True)
class Gates:
    """What is left out or put in around the phases.

    Attributes:
        skip_handshake: the handshakes of all ranks or of the PCIe peers, mesh_skip_global_handshake.
        first_barrier, last_barrier: the operation is the first, or the last, of its function.
    """

    skip_handshake: bool = False
    first_barrier: bool = False
    last_barrier: bool = False


SCHEDULED: Final = Gates()
"""Nothing skipped, no function barrier: right wherever the operation stands in a program."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the composer did with one event.

    Attributes:
        index: of the event in its subtype.
        notify: its mode.
        copy_mode: of a reduction.
        skipped: why nothing was emitted; empty where something was.
    """

    phase: Phase
    index: int
    type: EventType
    notify: int
    copy_mode: int | None
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"Skipping composition of {self.phase.value}: {self.skipped}"
        mode = "" if self.copy_mode is None else f", copy_mode {self.copy_mode}"
        return f"Composing {self.phase.value}: event {self.index} {self.type.name}, notify mode {self.notify}{mode}"


def emit_slot(run: Run, *, gates: Gates = SCHEDULED) -> tuple[Step, ...]:
    """Write the bracket of one operation, and return what was done with each event, in order.

    Raises:
        VerifyError: the plan has other events than the composer asserts; the first is named, and what it should be.
    """
    slot, steps = run.slot, []
    for phase, index in order_of(slot):
        event = planned(slot, index, phase)
        skipped = _skipped(event, gates)
        if not skipped:
            run.step = index
            COMPOSERS[phase](run, event)
        steps.append(Step(phase, index, event.type, event.row.notify, event.row.copy_mode, skipped))
    return tuple(steps)


def order_of(slot: Slot) -> tuple[tuple[Phase, int], ...]:
    """Return the phases in the order in which they are emitted, with the ids of their events."""
    built = tuple((phase, index) for index, phase in enumerate(slot.phases))
    first, last = (Phase.FIRST_BARRIER, slot.first_barrier), (Phase.LAST_BARRIER, slot.last_barrier)
    return (first, *built[:-1], last, built[-1])


def _skipped(event: Event, gates: Gates) -> str:
    """Return why an event is skipped; an empty text where it is not."""
    match event.phase:
        case Phase.FIRST_BARRIER:
            return "" if gates.first_barrier else "the operation is not the first of its function"
        case Phase.LAST_BARRIER:
            return "" if gates.last_barrier else "the operation is not the last of its function"
        case Phase.PCIE_PEER_HANDSHAKE | Phase.ALL_RANK_HANDSHAKE if gates.skip_handshake:
            return "mesh_skip_global_handshake is set"
    return "" if event.valid else EMPTY


# --- writers ----------------------------------------------------------------------------------------------------------


def write_all_gather(
    board: Board,
    slot: Slot,
    source: Region,
    target: Region,
    shards: Shards,
    *,
    gates: Gates = SCHEDULED,
    rooms: Rooms | None = None,
    max_block: int = MAX_BLOCK,
    fence_first: bool = False,
) -> tuple[Step, ...]:
    """Write an all-gather: shard 0 of position k's source to where `shards` says in every rank's target.

    Args:
        slot: planned for the groups of the board.
        rooms: of the subtype, when several operations of a board share them.
        max_block: bytes of an output block.
        fence_first: the first row reads what earlier rows of the queue wrote.

    Raises:
        UnsupportedError: more blocks than a schedule can number.
        VerifyError: the plan was changed.
    """
    check_parts(int(shards.size.max()), board.ranks, max_block)
    run = Run(
        board,
        slot,
        rooms or declare_rooms(board, slot, int(shards.size.max())),
        Cargo.BLOCK,
        source=source,
        target=target,
        shards=shards,
        max_block=max_block,
        fence=fence_first,
    )
    return emit_slot(run, gates=gates)


def write_reduce_scatter(
    board: Board,
    slot: Slot,
    source: Region,
    target: Region,
    size: int,
    *,
    gates: Gates = SCHEDULED,
    rooms: Rooms | None = None,
    parity: int = 0,
    fence_first: bool = False,
) -> tuple[Step, ...]:
    """Write a reduce-scatter: shard k of every rank's source, combined, to shard 0 of position k's target.

    Args:
        size: bytes of a shard.
        parity: half of the scratch; consecutive operations alternate. The others are as of `write_all_gather`.

    Raises:
        UsageError: `parity` is no half of the scratch.
        VerifyError: the plan was changed.
    """
    run = Run(
        board,
        slot,
        rooms or declare_rooms(board, slot, size),
        Cargo.BLOCK,
        source=source,
        target=target,
        shards=Shards.of(source, board.ranks, size),
        half=_half(slot, parity),
        fence=fence_first,
    )
    return emit_slot(run, gates=gates)


def write_all_reduce(
    board: Board,
    slot: Slot,
    source: Region,
    target: Region,
    size: int,
    *,
    gates: Gates = SCHEDULED,
    rooms: Rooms | None = None,
    parity: int = 0,
    max_block: int = MAX_BLOCK,
    fence_first: bool = False,
) -> tuple[Step, ...]:
    """Write an all-reduce of whole buffers: in a single step, or cut into a shard for each rank.

    Args:
        size: bytes of the buffer. The others are as of `write_reduce_scatter`.

    Raises:
        UsageError: `parity` is no half of the mesh buffer.
        UnsupportedError: more blocks than a schedule can number.
        VerifyError: the plan was changed.
    """
    single = Phase.SINGLE_STEP_REDUCE in slot.phases
    shards = Shards.of(source, board.ranks, size) if single else Shards.cut(board.ranks, size)
    check_parts(int(shards.size.max()), board.ranks, max_block)
    run = Run(
        board,
        slot,
        rooms or declare_rooms(board, slot, int(shards.size.max())),
        Cargo.INPUT if single else Cargo.BLOCK,
        source=source,
        target=target,
        shards=shards,
        half=_half(slot, parity),
        max_block=max_block,
        fence=fence_first,
    )
    return emit_slot(run, gates=gates)


def write_pieces(
    board: Board,
    slot: Slot,
    source: Region,
    target: Region,
    pieces: Pieces,
    *,
    budget: int,
    gates: Gates = SCHEDULED,
    fence_first: bool = False,
) -> tuple[Step, ...]:
    """Write an all-to-all of any pieces, displaced from the starts of the regions.

    Args:
        budget: most bytes of a piece that move in one iteration. The others are as of `write_all_gather`.

    Raises:
        UnsupportedError: more iterations than a schedule can number.
        VerifyError: the plan was changed.
    """
    check_parts(int(pieces.size.max()), board.ranks, budget)
    run = Run(
        board,
        slot,
        declare_rooms(board, slot, int(pieces.size.max())),
        Cargo.PIECES,
        source=source,
        target=target,
        shards=Shards.of(source, board.ranks, 0),
        pieces=pieces,
        max_block=budget,
        fence=fence_first,
    )
    return emit_slot(run, gates=gates)


def _half(slot: Slot, parity: int) -> int:
    """Return the half that operations of a parity use; without a double buffer there is one."""
    if parity not in (0, 1):
        raise UsageError(f"parity of {slot.subtype.name}: expected 0 or 1, got {parity}")
    return parity % slot.halves


# --- plans ------------------------------------------------------------------------------------------------------------


def compose_switch(
    plan: Plan, *, gates: Gates = SCHEDULED, parity: int = 0, max_block: int = MAX_BLOCK, proxies: bool = False
) -> Schedule:
    """Compose the operation of a plan that a mesh over the switch carries, for every group.

    Args:
        parity: half of a double buffer; consecutive operations of a program alternate.
        max_block: bytes of an output block of a broadcast.
        proxies: copies between different lanes of different chips go through the proxy buffer of the sender's lane.

    Raises:
        UsageError: `parity` is neither 0 nor 1.
        UnsupportedError: the platform is of another family, or a copy takes more blocks than a schedule numbers.

    Source:
        switch_schedule §6.
    """
    check_family(plan.platform)
    request, carrier = plan.request, plan.carrier
    if carrier is None:
        raise UnsupportedError(f"no subtype of the switch carries {KIND_NAMES[request.kind]} of this size")
    board = Board.of(request)
    shapes = boxes(plan.platform, request.groups)
    for number, chosen in enumerate(shapes.values()):
        part = board
        if len(shapes) > 1:
            part = board.part(board.members[list(chosen)], prefix=f"shape{number}.")
        groups = tuple(request.groups[each] for each in chosen)
        slot = slot_of(plan.platform, groups, plan.settings, carrier.slot, proxies=proxies)
        _write(part, slot, plan, gates, parity, max_block)
    return board.schedule()


def _write(board: Board, slot: Slot, plan: Plan, gates: Gates, parity: int, max_block: int) -> None:
    request = plan.request
    given, wanted = Region(board.input, 0, request.share), Region(board.output, 0, request.share)
    match request.kind:
        case EncOp.ALLGATHER:
            counts = request.gather_counts or (request.share // request.itemsize,) * request.ranks
            shards = Shards.packed([count * request.itemsize for count in counts])
            write_all_gather(board, slot, given, wanted, shards, gates=gates, max_block=max_block)
        case EncOp.REDUCE_SCATTER:
            write_reduce_scatter(board, slot, given, wanted, request.share, gates=gates, parity=parity)
        case EncOp.ALLREDUCE:
            write_all_reduce(board, slot, given, wanted, request.size, gates=gates, parity=parity, max_block=max_block)
        case _:
            budget = all_to_all.how_of(plan.platform, request.groups, plan.settings).budget
            write_pieces(board, slot, given, wanted, _pieces(request), budget=min(budget, max_block), gates=gates)


def _pieces(request: Request) -> Pieces:
    """Return the pieces of an all-to-all or all-to-all-v."""
    if request.kind is EncOp.ALLTOALL:
        return Pieces.equal(request.ranks, request.share, source_stride=request.share, target_stride=request.share)
    unit = request.itemsize
    displaced = [
        np.array(table, np.int64) * unit for table in (request.send_displacements, request.receive_displacements)
    ]
    return Pieces.packed(np.array(request.sent, np.int64) * unit, *displaced)
