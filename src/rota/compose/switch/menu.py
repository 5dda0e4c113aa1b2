"""The build side: the menu of the switch in its order, each builder one row, and the subtypes it fills.

    slot  builder                     phases                                                         events
    0     latency-opt all-gather      pcie, chip handshake, intra-axis, inter-axis, sync             1 2 3 11 0
    1     bandwidth-opt all-gather    pcie, chip handshake, intra-axis bw, inter-axis bw, chip, sync 1 2 3 11 7 0
    2     reduce-scatter              chip handshake, chipr1w, inter dimr1w, intra-rank, sync        2 8 9 10 0
    3     single-step all-reduce      intra-axis, inter-axis, single-step reduce, sync               3 11 10 0
    4     latency-opt all-reduce      chip handshake, reductions, intra-axis, inter-axis, sync       2 8 9 10 3 11 0
    5     bandwidth-opt all-reduce    the same with the bw broadcasts, chip, sync                    2 8 9 10 3 11 7 0
    6     latency-opt all-to-all      all-rank handshake, intra-axis, inter-axis, sync               1 3 11 0

With one rank on each chip two builders with the all-rank handshake take slots 0 and 4, and 1 and 5 stay empty. Behind
the phases of every subtype two slots are reserved for the function barriers; their ids are cached. The gates and the
limits of each builder are in `select.subtypes`, and are read there.

Source: switch_schedule §2 to §4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from rota.compose.switch.grid import Grid, grid_of
from rota.compose.switch.planned import PHASES, Event, Phase, plan_event
from rota.errors import UnsupportedError, VerifyError
from rota.facts import CONVENTION, HIGH, Source, Verdict
from rota.isa import switch_records
from rota.isa.enums import EncOp, MeshType
from rota.isa.events import MAX_EVENTS, EventType
from rota.machine.geometry import geometry
from rota.machine.platform import Family, Platform
from rota.request import Groups
from rota.select.limits import Subtype
from rota.select.settings import Settings
from rota.select.subtypes import MAX_SUBTYPES, Shape, switch

MENU_SOURCE: Final = Source("switch_schedule", "2", HIGH)
ORDER_SOURCE: Final = Source("switch_schedule", "4", HIGH)
ORDER_OURS: Final = Source("switch_schedule", "4", CONVENTION)
FAMILY_SOURCE: Final = Source("switch_schedule", "1", HIGH)
BUFFER_SOURCE: Final = Source("switch_schedule", "6, double buffer", HIGH)
PROXY_EVENTS: Final = (
    EventType.EVT_LOCAL_HNDSHK,
    EventType.EVT_INTER_GRP_BRDCST,
    EventType.EVT_SYNC,
    EventType.EVT_SYNC,
)
"""The event types the network proxy is started with. Source: switch_schedule §6, high."""
_TEXT: Final = "unsupported instance family for event-based algorithms"


@dataclass(frozen=True, slots=True)
class Builder:
    """One row of the menu.

    Attributes:
        name: as `select.subtypes` calls it.
        kinds: the operations it carries.
        phases: in the order in which they are built, the dma-sync last.
        source: of that order.
        double_buffered: consecutive operations use the halves of its buffer in turn.
        flags: of the subtype that the composer goes by.
    """

    name: str
    kinds: tuple[EncOp, ...]
    phases: tuple[Phase, ...]
    source: Source
    double_buffered: bool = False
    flags: frozenset[str] = frozenset()


_REDUCE: Final = (Phase.INTRA_AXIS_CHIPR1W, Phase.INTER_AXIS_DIMR1W, Phase.INTRA_RANK_DIMR1W)
_BROADCAST: Final = (Phase.INTRA_AXIS_BROADCAST, Phase.INTER_AXIS_BROADCAST)
_BW_BROADCAST: Final = (Phase.INTRA_AXIS_BW_BROADCAST, Phase.INTER_AXIS_BW_BROADCAST, Phase.INTRA_CHIP_BROADCAST)
_MEET: Final = (Phase.PCIE_PEER_HANDSHAKE, Phase.INTRA_CHIP_HANDSHAKE)
_LOCAL: Final = (Phase.INTRA_CHIP_HANDSHAKE,)
_ALL: Final = (Phase.ALL_RANK_HANDSHAKE,)
_SYNC: Final = (Phase.DMA_SYNC,)
_AG, _AR, _RS = (EncOp.ALLGATHER,), (EncOp.ALLREDUCE,), (EncOp.REDUCE_SCATTER,)
_A2A: Final = (EncOp.ALLTOALL, EncOp.ALLTOALL_V)
_LATENCY, _BANDWIDTH = frozenset({"is_latency_opt"}), frozenset({"is_bw_opt"})
_SINGLE, _ONE = frozenset({"is_single_step_mesh"}), frozenset({"is_one_rank_per_chip"})

_ROWS: Final = (
    Builder("latency-opt all-gather", _AG, (*_MEET, *_BROADCAST, *_SYNC), ORDER_SOURCE, flags=_LATENCY),
    Builder("bandwidth-opt all-gather", _AG, (*_MEET, *_BW_BROADCAST, *_SYNC), ORDER_SOURCE, flags=_BANDWIDTH),
    Builder("reduce-scatter", _RS, (*_LOCAL, *_REDUCE, *_SYNC), ORDER_OURS, double_buffered=True),
    Builder(
        "single-step all-reduce",
        _AR,
        (*_BROADCAST, Phase.SINGLE_STEP_REDUCE, *_SYNC),
        ORDER_SOURCE,
        double_buffered=True,
        flags=_SINGLE,
    ),
    Builder("latency-opt all-reduce", _AR, (*_LOCAL, *_REDUCE, *_BROADCAST, *_SYNC), ORDER_SOURCE, flags=_LATENCY),
    Builder("bandwidth-opt all-reduce", _AR, (*_LOCAL, *_REDUCE, *_BW_BROADCAST, *_SYNC), ORDER_OURS, flags=_BANDWIDTH),
    Builder("latency-opt all-to-all", _A2A, (*_ALL, *_BROADCAST, *_SYNC), ORDER_OURS, flags=_LATENCY),
    Builder("one-rank-per-chip all-gather", _AG, (*_ALL, *_BROADCAST, *_SYNC), ORDER_OURS, flags=_ONE),
    Builder("one-rank-per-chip all-reduce", _AR, (*_ALL, *_REDUCE, *_BROADCAST, *_SYNC), ORDER_OURS, flags=_ONE),
)
BUILDERS: Final[Mapping[str, Builder]] = MappingProxyType({row.name: row for row in _ROWS})
"""Name of a subtype -> how it is built. Source: `MENU_SOURCE`, and that of each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One subtype of a communicator: what `select` says of it, and its planned events.

    Attributes:
        subtype: name, reported algorithm and limit rows; or why it was refused, and then nothing is planned.
        builder: None where it was refused.
        events: of the phases, then the two reserved for function barriers.
        first_barrier, last_barrier: ids of these two, cached; the running index of the phases never reaches them.
        halves: parts of its buffer that operations use in turn, 1 or 2.
    """

    subtype: Subtype
    builder: Builder | None
    events: tuple[Event, ...] = ()
    first_barrier: int = 0
    last_barrier: int = 0
    halves: int = 1

    @property
    def refused(self) -> Verdict | None:
        """Why the builder left the slot empty."""
        return self.subtype.refused

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What the composer walks; it must find their events in this order."""
        return () if self.builder is None else self.builder.phases

    def lines(self, group: int = 0, position: int = 0) -> tuple[str, ...]:
        """Return what the builders of its phases log for one rank."""
        return tuple(event.line(group, position) for event in self.events[: len(self.phases)])

    def record(self) -> bytes:
        """Return the subtype as a rank's runtime would hold it, without its pointers; all ranks hold the same."""
        flags = frozenset() if self.builder is None else self.builder.flags
        events = [
            switch_records.MeshEvent(
                event.type, event.valid or event.phase in BARRIERS, event.sources.shape[2], event.notified.shape[2]
            )
            for event in self.events
        ]
        limits = {row.op: (row.plain.maximum, row.plain.minimum, row.sbuf.maximum, row.sbuf.minimum)
                  for row in self.subtype.rows}  # fmt: skip
        return switch_records.encode_subtype(events, limits, flags)


BARRIERS: Final = (Phase.FIRST_BARRIER, Phase.LAST_BARRIER)


def shape_of(platform: Platform, group: tuple[int, ...], settings: Settings) -> Shape:
    """Return what the builders read of the communicator of a group on the switch."""
    at = geometry(platform, group)
    return Shape(
        mesh_type=MeshType.MESH_SWITCH,
        lnc=platform.lnc,
        ranks=at.rank_n,
        nodes=at.node_n,
        local_rack_rank_n=at.local_rack_rank_n,
        chips=len(at.chips) // at.node_n,
        pod=at.node_n if at.enable_pod else 1,
        one_rank_per_chip=at.per_chip == 1,
        channel_buffer=settings.mesh_channel_buffer,
        double_buffer=settings.mesh_double_buffer,
        rdh=0,
    )


def check_family(platform: Platform) -> None:
    """Check that a platform is of the family that event-based algorithms are for.

    Raises:
        UnsupportedError: it is not.

    Source:
        switch_schedule §1, high.
    """
    if platform.family is not Family.TRN3PDS98:
        raise UnsupportedError(
            f"{_TEXT}: {platform.name} is of family {platform.family.name}, expected {Family.TRN3PDS98.name}",
            source=FAMILY_SOURCE,
        )


def initialize_trn3pds98(
    platform: Platform, groups: Groups, settings: Settings, *, shape: Shape | None = None, proxies: bool = False
) -> tuple[Slot, ...]:
    """Return the slots of the communicators of groups of one box shape, in the order of the menu.

    A builder that refuses leaves its slot empty, with its reason, and the menu goes on.

    Args:
        groups: machine ranks of each.
        shape: what the gates read; by default that of the first group.
        proxies: as of `build`.

    Raises:
        UnsupportedError: the platform is of another family.

    Source:
        switch_schedule §2, high; design §2 (29).
    """
    check_family(platform)
    grid = grid_of(platform, groups)
    offered = switch(shape or shape_of(platform, groups[0], settings))
    assert len(offered) <= MAX_SUBTYPES, "more subtypes than a communicator has slots"
    slots = tuple(build(grid, subtype, settings, proxies=proxies) for subtype in offered)
    assert [slot.subtype.slot for slot in slots] == list(range(len(slots))), "every builder takes the next free slot"
    return slots


def slot_of(platform: Platform, groups: Groups, settings: Settings, number: int, *, proxies: bool = False) -> Slot:
    """Return one slot of `initialize_trn3pds98`, the one that carries an operation.

    Args:
        number: of the slot.
        proxies: as of `build`.

    Raises:
        UnsupportedError: the platform is of another family, or the builder refuses these groups.
    """
    check_family(platform)
    subtype = switch(shape_of(platform, groups[0], settings))[number]
    if subtype.refused is not None:
        raise UnsupportedError(subtype.refused.reason, source=subtype.refused.source)
    return build(grid_of(platform, groups), subtype, settings, proxies=proxies)


def build(grid: Grid, subtype: Subtype, settings: Settings, *, proxies: bool = False) -> Slot:
    """Return one slot: the events of its builder's phases, then those of the function barriers.

    Without the double buffer all ranks meet before what would use it, a single step or a reduce-scatter, and there is
    one half.

    Args:
        proxies: copies for a lane that is not the landing lane go through that one's proxy buffer; by default every
            copy is written where it goes.

    Source:
        `ORDER_SOURCE`, `BUFFER_SOURCE`; without the double buffer, compose §12.6, convention.
    """
    if subtype.refused is not None:
        return Slot(subtype, None)
    builder = BUILDERS[subtype.name]
    alternates = builder.double_buffered and settings.mesh_double_buffer
    if builder.double_buffered and (not alternates or settings.mesh_global_handshake):
        builder = replace(builder, phases=(*_ALL, *builder.phases))
    events = tuple(plan_event(grid, phase, builder.phases, proxies=proxies) for phase in (*builder.phases, *BARRIERS))
    types = [event.type for event in events]
    assert len(set(types)) == len(types) <= MAX_EVENTS, "an event type stands at most once in a subtype"
    count = len(builder.phases)
    return Slot(subtype, builder, events, count, count + 1, 2 if alternates else 1)


def planned(slot: Slot, index: int, phase: Phase) -> Event:
    """Return the event at a running index, which must be that of a phase.

    Raises:
        VerifyError: it is another one, or there is none; the message names both.
    """
    expected = PHASES[phase].event
    where = f"event {index} of {slot.subtype.name}: the {phase.value} asserts {expected.name}"
    if index >= len(slot.events):
        raise VerifyError(f"{where}, and the plan has only {len(slot.events)} events; build the subtype again")
    event = slot.events[index]
    if event.type is not expected or event.phase is not phase:
        raise VerifyError(
            f"{where}, the plan has {event.type.name} of the {event.phase.value}; build the subtype again"
        )
    return event
