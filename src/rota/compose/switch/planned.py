"""The phase table of the switch, and one phase planned for all ranks of some groups: an event.

Nothing here writes rows, and nothing else than `plan_event` works out who is whose neighbour. Groups hold positions.

Source: switch_schedule §3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze
from rota.compose.switch.grid import Grid
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.events import EventType
from rota.isa.switch_records import COPY_MODES

PHASES_SOURCE: Final = Source("switch_schedule", "3", HIGH)
GROUPS_SOURCE: Final = Source("switch_schedule", "3.1", CONVENTION)
FOLD_SOURCE: Final = Source("switch_schedule", "3, num_fold of handshakes and of the sync", CONVENTION)
PROXY_SOURCE: Final = Source("compose", "12.6, should_write_to_proxy_buff", CONVENTION)
VIEWS_SOURCE: Final = Source("design", "2 (30), different views", CONVENTION)

HANDSHAKE: Final = 4
"""Notify mode of a semaphore update. Source: switch_schedule §6, high."""
COMPLETION: Final = 0
"""Notify mode of a plain completion. Source: switch_schedule §6, high; of the sync, convention."""


class Phase(Enum):
    """What a builder appends to a subtype and a composer emits; the value is how messages call it."""

    PCIE_PEER_HANDSHAKE = "single-hop PCIe-peer handshake"
    INTRA_CHIP_HANDSHAKE = "intra-chip handshake"
    ALL_RANK_HANDSHAKE = "all-rank handshake"
    INTRA_AXIS_BROADCAST = "intra-axis broadcast"
    INTER_AXIS_BROADCAST = "inter-axis broadcast"
    INTRA_AXIS_BW_BROADCAST = "intra-axis bw-opt broadcast"
    INTER_AXIS_BW_BROADCAST = "inter-axis bw-opt broadcast"
    INTRA_CHIP_BROADCAST = "intra-chip broadcast"
    INTRA_AXIS_CHIPR1W = "intra-axis chipr1w reduce"
    INTER_AXIS_DIMR1W = "inter-axis dimr1w reduce"
    INTRA_RANK_DIMR1W = "intra-rank dimr1w reduce"
    SINGLE_STEP_REDUCE = "single-step reduce"
    DMA_SYNC = "dma-sync"
    FIRST_BARRIER = "first function barrier"
    LAST_BARRIER = "last function barrier"


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One row of the phase table.

    Attributes:
        event: what the build side stamps and the compose side asserts.
        num_fold: unrolling of copies and reductions; never a threshold.
        notify: mode of the notify, `HANDSHAKE` or `COMPLETION`.
        copy_mode: of the reductions; None where nothing is reduced.
        fires_dma: moves data, which takes engines and rings; else a semaphore is all.
        fold_source: of `num_fold`.
    """

    event: EventType
    num_fold: int
    notify: int
    copy_mode: int | None = None
    fires_dma: bool = False
    fold_source: Source = PHASES_SOURCE


BROADCAST_FOLD: Final = 2
SCRATCH_FOLD: Final = 4
WRITE_FOLD: Final = 8
PROXY_FOLD: Final = 1
"""num_fold of broadcasts, of reductions into scratch, of those into the output, and behind a proxy buffer.

Source: switch_schedule §3, high.
"""


def _handshake(event: EventType) -> PhaseRow:
    return PhaseRow(event, 0, HANDSHAKE, fold_source=FOLD_SOURCE)


def _broadcast(event: EventType) -> PhaseRow:
    return PhaseRow(event, BROADCAST_FOLD, COMPLETION, fires_dma=True)


def _reduce(event: EventType, num_fold: int) -> PhaseRow:
    return PhaseRow(event, num_fold, COMPLETION, COPY_MODES[event], fires_dma=True)


PHASES: Final[Mapping[Phase, PhaseRow]] = MappingProxyType(
    {
        Phase.PCIE_PEER_HANDSHAKE: _handshake(EventType.EVT_GLOBAL_HNDSHK),
        Phase.INTRA_CHIP_HANDSHAKE: _handshake(EventType.EVT_LOCAL_HNDSHK),
        Phase.ALL_RANK_HANDSHAKE: _handshake(EventType.EVT_GLOBAL_HNDSHK),
        Phase.INTRA_AXIS_BROADCAST: _broadcast(EventType.EVT_INTER_GRP_BRDCST),
        Phase.INTER_AXIS_BROADCAST: _broadcast(EventType.EVT_INTER_GRP_BRDCST_2),
        Phase.INTRA_AXIS_BW_BROADCAST: _broadcast(EventType.EVT_INTER_GRP_BRDCST),
        Phase.INTER_AXIS_BW_BROADCAST: _broadcast(EventType.EVT_INTER_GRP_BRDCST_2),
        Phase.INTRA_CHIP_BROADCAST: _broadcast(EventType.EVT_INTRA_GRP_BRDCST),
        Phase.INTRA_AXIS_CHIPR1W: _reduce(EventType.EVT_REDUCE_COPY, SCRATCH_FOLD),
        Phase.INTER_AXIS_DIMR1W: _reduce(EventType.EVT_REDUCE_COPY_2, SCRATCH_FOLD),
        Phase.INTRA_RANK_DIMR1W: _reduce(EventType.EVT_REDUCE_WRITE, WRITE_FOLD),
        Phase.SINGLE_STEP_REDUCE: _reduce(EventType.EVT_REDUCE_WRITE, WRITE_FOLD),
        Phase.DMA_SYNC: PhaseRow(EventType.EVT_SYNC, 1, COMPLETION, fires_dma=True, fold_source=FOLD_SOURCE),
        Phase.FIRST_BARRIER: _handshake(EventType.EVT_FUNCTION_BARRIER_FIRST_COLL),
        Phase.LAST_BARRIER: _handshake(EventType.EVT_FUNCTION_BARRIER_LAST_COLL),
    }
)
"""The phase table. Source: `PHASES_SOURCE`; the inter-axis broadcast takes 11 in every list of §4."""

BROADCASTS: Final = frozenset(
    {
        Phase.INTRA_AXIS_BROADCAST,
        Phase.INTER_AXIS_BROADCAST,
        Phase.INTRA_AXIS_BW_BROADCAST,
        Phase.INTER_AXIS_BW_BROADCAST,
        Phase.INTRA_CHIP_BROADCAST,
    }
)
THROUGH_PROXIES: Final = frozenset({Phase.INTRA_AXIS_BROADCAST, Phase.INTER_AXIS_BROADCAST})
"""The phases that write to other lanes of other chips. Source: `PROXY_SOURCE`."""
OPTIONAL: Final = BROADCASTS - {Phase.INTRA_AXIS_BROADCAST, Phase.INTRA_AXIS_BW_BROADCAST}
"""The broadcasts that are empty where there is nobody to send to; the first ones also keep the own block."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A phase planned for every rank of some groups; shapes are (groups, ranks, members of each).

    Attributes:
        type: as the build side stamps it.
        sources: whom a rank reads.
        targets: whom it writes to, in the order in which it does.
        notified: whom its notify reaches; the targets, and in some phases others.
        receives: who notifies it, writers first, by index. Slots in its scratch are numbered by place in here.
        wait_val: notifies that reach it, itself included if it notifies itself, shape (groups, ranks).
        near: how many of the targets, the first ones, are on the own die.
        landing: who takes the copy for each target, itself or the sender's lane on its chip; None: all go directly.
        handed: (sender, target) of the copies that land with a rank and that it hands on from its proxy buffer, by
            their slots there, shape (groups, ranks, copies, 2).
    """

    phase: Phase
    type: EventType
    sources: I64
    targets: I64
    notified: I64
    receives: I64
    wait_val: I64
    near: int = 0
    landing: I64 | None = None
    handed: I64 | None = None

    def __post_init__(self) -> None:
        for array in (self.sources, self.targets, self.notified, self.receives, self.wait_val):
            freeze(array)

    @property
    def valid(self) -> bool:
        """Whether anything is to be done; an event without sources and destinations is empty."""
        return bool(self.sources.shape[2] or self.notified.shape[2])

    @property
    def row(self) -> PhaseRow:
        """The row of the phase table."""
        return PHASES[self.phase]

    def place_of(self, sender: I64, receiver: I64) -> I64:
        """Return the place of senders in the receive groups of receivers; both have (groups, ranks) last."""
        groups, ranks, _ = self.receives.shape
        place = np.full((groups, ranks, ranks), -1, np.int64)
        group, rank, number = np.indices(self.receives.shape)
        place[group, rank, self.receives] = number
        found: I64 = place[np.arange(groups)[:, None], receiver, sender]
        assert (found >= 0).all(), "who is written to expects it"
        return found

    def line(self, group: int, position: int) -> str:
        """Return what the builder logs for one rank: its source, destination and receive groups, in that order.

        Source:
            switch_schedule §3, notes, high; each phase under its own name, the intra-chip broadcast too.
        """
        lists = (self.sources, self.targets if self.row.fires_dma else self.notified, self.receives)
        src, dst, recv = (",".join(map(str, each[group, position].tolist())) for each in lists)
        return f"Building {self.phase.value} event: src-{src} dst-{dst} recv-{recv}"


def plan_event(grid: Grid, phase: Phase, phases: tuple[Phase, ...], *, proxies: bool = False) -> Event:
    """Return one phase of a list of phases, planned for all ranks of a grid.

    Args:
        proxies: copies for another lane than the sender's go through the proxy buffer of the sender's lane there.

    Raises:
        UnsupportedError: whom a rank expects is not who would notify it.

    Source:
        `GROUPS_SOURCE`; reductions, compose §12.6, convention.
    """
    sources, targets, told = _sets(grid, phase, phases)
    listed, near = grid.listed(targets, sprayed=True), 0
    if phase is Phase.INTRA_CHIP_BROADCAST:
        listed, near = _die_first(grid, targets)
    more = told & ~targets
    notified = np.concatenate([listed, grid.listed(more, sprayed=True)], axis=2)
    event = Event(
        phase=phase,
        type=PHASES[phase].event,
        sources=grid.listed(sources),
        targets=listed,
        notified=notified,
        receives=np.concatenate([grid.listed(targets.T), grid.listed(more.T)], axis=2),
        wait_val=count_notifies(notified),
        near=near,
    )
    if proxies and phase in THROUGH_PROXIES:
        landing, handed = grid.routes(listed)
        event = replace(event, landing=landing, handed=handed) if handed.shape[2] else event
    check_views(event)
    return event


def count_notifies(notified: I64) -> I64:
    """Return how many notifies reach every rank, shape (groups, ranks). Source: design §2 (23)."""
    groups, ranks, _ = notified.shape
    flat = (notified + np.arange(groups)[:, None, None] * ranks).reshape(-1)
    return np.bincount(flat, minlength=groups * ranks).reshape(groups, ranks).astype(np.int64)


def check_views(event: Event) -> None:
    """Check that every rank expects exactly those that notify it, and waits for as many.

    Raises:
        UnsupportedError: two ranks have different views of the event. Source: `VIEWS_SOURCE`.
    """
    groups, ranks, _ = event.notified.shape
    tells = np.zeros((groups, ranks, ranks), np.int64)
    expects = np.zeros((groups, ranks, ranks), np.int64)
    group, rank, _ = np.indices(event.notified.shape)
    np.add.at(tells, (group, rank, event.notified), 1)
    group, rank, _ = np.indices(event.receives.shape)
    np.add.at(expects, (group, event.receives, rank), 1)
    bad = np.argwhere((tells != expects) | (tells > 1))
    if bad.size:
        g, sender, receiver = bad[0].tolist()
        raise UnsupportedError(
            f"{event.phase.value} ({event.type.name}): rank {sender} of group {g} notifies rank {receiver} "
            f"{tells[g, sender, receiver]} times, which expects it {expects[g, sender, receiver]} times; "
            "ranks that plan one event differently cannot run it",
            source=VIEWS_SOURCE,
        )
    arrive = count_notifies(event.notified)
    wrong = np.argwhere(arrive != event.wait_val)
    if wrong.size:
        g, rank_of = wrong[0].tolist()
        raise UnsupportedError(
            f"{event.phase.value} ({event.type.name}): {arrive[g, rank_of]} notifies reach rank {rank_of} of group "
            f"{g}, and it waits for {event.wait_val[g, rank_of]}",
            source=VIEWS_SOURCE,
        )


def _sets(grid: Grid, phase: Phase, phases: tuple[Phase, ...]) -> tuple[Bool, Bool, Bool]:
    """Return the sets of a phase: whom a rank reads, whom it writes to, and whom it notifies."""
    me, nobody = grid.self_only, np.zeros_like(grid.self_only)
    if not PHASES[phase].fires_dma:
        return nobody, nobody, _met(grid, phase, phases)
    match phase:
        case Phase.INTRA_AXIS_BROADCAST:
            sources, targets, told = me, grid.intra_axis, grid.intra_axis
        case Phase.INTRA_AXIS_BW_BROADCAST:
            sources, targets, told = me, grid.row_lane & grid.others, grid.row_lane & grid.others
        case Phase.INTER_AXIS_BROADCAST:
            sources, targets, told = me, grid.inter_axis, grid.inter_axis
        case Phase.INTER_AXIS_BW_BROADCAST:
            sources, targets, told = me, grid.own_lane & grid.inter_axis, grid.own_lane & grid.inter_axis
        case Phase.INTRA_CHIP_BROADCAST:
            sources, targets, told = me, grid.mates, grid.mates
        case Phase.INTRA_AXIS_CHIPR1W:
            readers = nobody if BROADCASTS.intersection(phases) else grid.mates
            sources, targets, told = grid.chip, grid.row_lane, grid.row_lane | readers
        case Phase.INTER_AXIS_DIMR1W:
            sources, targets, told = grid.row_lane, grid.column_lane, grid.column_lane
        case Phase.INTRA_RANK_DIMR1W | Phase.SINGLE_STEP_REDUCE | Phase.DMA_SYNC:
            sources, targets, told = me, me, me
        case _:
            raise AssertionError(f"{phase.value} moves no data")
    return (nobody if phase in OPTIONAL and not targets.any() else sources), targets, told


def _met(grid: Grid, phase: Phase, phases: tuple[Phase, ...]) -> Bool:
    """Return whom a phase without data notifies. Nobody of the group waits for a function barrier."""
    if phase is Phase.INTRA_CHIP_HANDSHAKE:
        return grid.mates
    if phase is Phase.ALL_RANK_HANDSHAKE:
        return grid.others
    if phase is Phase.PCIE_PEER_HANDSHAKE:
        written = grid.own_lane if Phase.INTRA_AXIS_BW_BROADCAST in phases else grid.others
        return written & ~grid.chip
    return np.zeros_like(grid.others)


def _die_first(grid: Grid, targets: Bool) -> tuple[I64, int]:
    """Return the mates, those of the own die first, and how many these are; 0 where ranks differ in that."""
    close, far = targets & grid.same_die, targets & ~grid.same_die
    counts = close.sum(axis=1)
    if (counts != counts[0]).any():
        return grid.listed(targets, sprayed=True), 0
    return np.concatenate([grid.listed(close, sprayed=True), grid.listed(far, sprayed=True)], axis=2), int(counts[0])
