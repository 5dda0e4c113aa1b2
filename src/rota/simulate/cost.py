"""What the rows of a schedule cost: how long a row keeps its queue busy, and how long its last byte then travels.

A machine is three kinds of shared resources: directed cables, the HBM of each rank, the DMA engines of each rank. A
queue has a fixed part of each for the whole run: the part that its bytes are of all bytes there, or an equal part where
that is more. So no run is shorter than its busiest resource allows, and no queue is slowed by more than the number of
queues beside it; queues that use a resource at different times are timed too slow. How rows wait is `engine`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze_columns, owners, pointers, ranges
from rota.errors import UsageError
from rota.facts import CONVENTION, MEDIUM, Source
from rota.machine.platform import Platform
from rota.machine.routes import CLASSES, Routes, routes, through_gateway
from rota.machine.topology import LINK_PARAMETER, LinkClass
from rota.request import Request
from rota.schedule.ir import Op, Places, Schedule
from rota.units import PICOSECONDS_PER_SECOND, transfer_ps

CCE_SLOWDOWN: Final = 2
"""A reduction of two sources moves its result at one part in so many of the copy rate, before NeuronCore-v4."""
CCE_SOURCE: Final = Source("platforms", "2, DMA compute", MEDIUM)
SHARING_SOURCE: Final = Source("platforms", "7, one step", CONVENTION)

_LONGEST_PS: Final = 1 << 61
_PERMILLE: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """One entry per row of a schedule.

    Raises:
        UsageError: a cost is negative, or all together exceed what 64 bits of picoseconds hold.
    """

    occupancy_ps: I64  # from the start of the row until its queue may start the next
    latency_ps: I64  # after that, until the row has completed

    def __post_init__(self) -> None:
        freeze_columns(self)
        for name in self.__slots__:
            column: I64 = getattr(self, name)
            if column.min(initial=0) < 0:
                row = int(np.argmin(column))
                raise UsageError(f"{name} of row {row}: expected 0 or more picoseconds, got {column[row]}")
            if column.sum(dtype=np.float64) > _LONGEST_PS:
                raise UsageError(f"{name}: the rows together take more than {_LONGEST_PS} ps; use less data")


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What rows ask of one kind of resource: one entry per row and resource."""

    kind: str  # "cable", "hbm" or "dma"
    rate: Fraction  # bytes per second of one resource
    row: I64
    resource: I64  # directed cable, or machine rank
    size: I64  # bytes the row moves over it, never 0


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What a schedule asks of a machine, before anything is shared."""

    demands: tuple[Demand, ...]
    latency_ps: I64  # per row
    lane: I64  # per row: its queue, as a number below ranks x queues


def uniform_costs(schedule: Schedule, *, rate: int, hop_ps: int) -> Costs:
    """Return costs on a machine with one kind of link, and HBM and DMA without limit.

    A row that sends to another rank occupies its queue for its transfer, rounded to the nearest picosecond, and then
    travels for one hop. All other rows cost nothing.

    Args:
        rate: bytes per second of a link in one direction.
        hop_ps: latency of one hop.
    """
    sends = _leaves(schedule, schedule.targets)
    size, inverse = np.unique(schedule.rows.size[sends], return_inverse=True)
    duration = np.array([transfer_ps(int(each), rate) for each in size], np.int64)
    occupancy = np.zeros(len(schedule), np.int64)
    occupancy[sends] = duration[inverse]
    return Costs(occupancy_ps=occupancy, latency_ps=sends * np.int64(hop_ps))


def platform_costs(schedule: Schedule, request: Request, platform: Platform) -> Costs:
    """Return costs on a machine: `share` of what `ask` returns for the same arguments."""
    return share(ask(schedule, request, platform))


def ask(schedule: Schedule, request: Request, platform: Platform) -> Load:
    """Return what a schedule asks of a machine.

    Every source read and every target written touches the HBM of its rank. The DMA engines of the issuing rank carry
    what is read or what is written, whichever is more, and a reduction at least `CCE_SLOWDOWN` times its result. Bytes
    that leave a rank use the links of `machine.routes`; a row has the latency of its longest transfer, that is of its
    links, plus that of a hop on the chip if it takes a gateway or no link; a row that stays on its rank has none.

    Source:
        platforms §7 for the three terms and the latency.
    """
    rows, member = schedule.rows, np.array(request.members, np.int64)
    assert member.size == schedule.ranks, "the schedule is of another request"
    rank, queue = rows.rank.astype(np.int64), rows.queue.astype(np.int64)
    links, latency = _routed(schedule, member, platform)
    moving, moved = _moves(schedule)
    touching, touched, size = _touches(schedule)
    return Load(
        demands=(
            *links,
            Demand("hbm", Fraction(platform.parameter("hbm_bytes_per_second")), touching, member[touched], size),
            Demand("dma", _dma_rate(platform), moving, member[rank[moving]], moved),
        ),
        latency_ps=latency,
        lane=rank * (int(queue.max(initial=0)) + 1) + queue,
    )


def share(load: Load) -> Costs:
    """Return the costs of rows when every queue has a fixed part of each resource.

    A row occupies its queue for as long as the slowest of its resources needs, rounded up to a picosecond.

    Source:
        platforms §7 for the longest of the terms; the parts are a convention, see the top of this file.
    """
    occupancy = np.zeros(load.lane.size, np.int64)
    for demand in load.demands:
        np.maximum.at(occupancy, demand.row, _occupancy(demand, load.lane[demand.row]))
    return Costs(occupancy_ps=occupancy, latency_ps=load.latency_ps)


def busiest_ps(demand: Demand) -> int:
    """Return the picoseconds, rounded down, that the busiest resource needs for all its bytes: no run is shorter."""
    total = np.zeros(int(demand.resource.max(initial=-1)) + 1, np.int64)
    np.add.at(total, demand.resource, demand.size)
    return int(int(total.max(initial=0)) * PICOSECONDS_PER_SECOND / demand.rate)


# --- transfers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Transfers:
    """What leaves a rank or comes to it: one entry for each place of a row on another rank than the issuer."""

    row: I64
    source: I64  # rank of the schedule
    target: I64


def _transfers(schedule: Schedule) -> _Transfers:
    """Return what rows write to other ranks, and what they read from them."""
    issuer = schedule.rows.rank.astype(np.int64)
    parts = []
    for places, pulls in ((schedule.targets, False), (schedule.sources, True)):
        row = owners(places.ptr)
        other, own = places.rank.astype(np.int64), issuer[row]
        away = other != own
        ends = (other[away], own[away]) if pulls else (own[away], other[away])
        parts.append((row[away], *ends))
    return _Transfers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _routed(schedule: Schedule, member: I64, platform: Platform) -> tuple[list[Demand], I64]:
    """Return what rows ask of each class of links, and the latency of each row.

    Args:
        member: machine rank of each rank of the schedule.
    """
    moved = _transfers(schedule)
    pairs, of = np.unique(moved.source * schedule.ranks + moved.target, return_inverse=True)
    source, target = (member[each] for each in np.divmod(pairs, schedule.ranks))
    links = routes(platform, source, target)
    order = np.argsort(links.transfer, kind="stable")
    ptr = pointers(np.bincount(links.transfer, minlength=pairs.size))
    count = np.diff(ptr)[of]
    entry = order[ranges(ptr[of], count)]
    row = np.repeat(moved.row, count)
    demands = [
        _demand(schedule, platform, kind, row[mine], links.port[entry[mine]])
        for at, kind in enumerate(CLASSES)
        if (mine := links.kind[entry] == at).any()
    ]
    latency = np.zeros(len(schedule), np.int64)
    np.maximum.at(latency, moved.row, _latency(platform, links, source, target)[of])
    return demands, latency


def _demand(schedule: Schedule, platform: Platform, kind: LinkClass, row: I64, port: I64) -> Demand:
    """Return one class's demand: all that a row sends through one port is one entry."""
    _, resource = np.unique(port, return_inverse=True)
    ports = int(resource.max()) + 1
    key, times = np.unique(row * ports + resource, return_counts=True)
    row, resource = np.divmod(key, ports)
    return Demand(kind.name.lower(), _link_rate(platform, kind), row, resource, schedule.rows.size[row] * times)


def _latency(platform: Platform, links: Routes, source: I64, target: I64) -> I64:
    """Return the latency of each transfer: its links, and a hop on the chip where it takes none or a gateway."""
    hop = np.zeros(len(CLASSES), np.int64)
    for kind in np.unique(links.kind).tolist():
        name = "network_hop_latency_ps" if CLASSES[kind] is LinkClass.NETWORK else "hop_latency_ps"
        hop[kind] = platform.parameter(name)
    latency = np.zeros(source.size, np.int64)
    np.add.at(latency, links.transfer, hop[links.kind])
    on_chip = np.bincount(links.transfer, minlength=source.size) == 0
    step = platform.parameter("onchip_hop_latency_ps")
    latency += step * (on_chip | through_gateway(platform, source, target))
    return latency


def _leaves(schedule: Schedule, places: Places) -> Bool:
    """Return the rows that have one of these places on another rank."""
    owner = owners(places.ptr)
    out = np.zeros(len(schedule), np.bool_)
    out[owner[places.rank != schedule.rows.rank[owner]]] = True
    return out


# --- bytes ------------------------------------------------------------------------------------------------------------


def _touches(schedule: Schedule) -> tuple[I64, I64, I64]:
    """Return (row, rank of the schedule, bytes) of all sources and targets, one entry per row and rank."""
    row = np.concatenate([owners(schedule.sources.ptr), owners(schedule.targets.ptr)])
    rank = np.concatenate([schedule.sources.rank, schedule.targets.rank]).astype(np.int64)
    pair, count = np.unique(row * schedule.ranks + rank, return_counts=True)
    row, rank = np.divmod(pair, schedule.ranks)
    return row, rank, schedule.rows.size[row] * count


def _moves(schedule: Schedule) -> tuple[I64, I64]:
    """Return the rows that move data, and the bytes each takes through DMA engines."""
    rows = schedule.rows
    moving = np.flatnonzero(rows.size > 0)
    read = np.diff(schedule.sources.ptr)[moving].astype(np.int64)
    written = np.diff(schedule.targets.ptr)[moving].astype(np.int64)
    reduced = np.where(rows.op[moving] == Op.NONE, 1, CCE_SLOWDOWN) * written
    return moving, rows.size[moving] * np.maximum(read, reduced)


# --- rates and shares -------------------------------------------------------------------------------------------------

_EFFICIENCY: Final = {
    LinkClass.CABLE: "link_efficiency_permille",
    LinkClass.NETWORK: "network_efficiency_permille",
}
"""Class of a link -> the parameter that says what share of its rate is achieved; the others achieve all of it."""


def _link_rate(platform: Platform, kind: LinkClass) -> Fraction:
    nominal = platform.parameter(LINK_PARAMETER[kind])
    efficiency = _EFFICIENCY.get(kind, "")
    share = platform.parameter(efficiency) if efficiency in platform.parameters else _PERMILLE
    return Fraction(nominal * share, _PERMILLE)


def _dma_rate(platform: Platform) -> Fraction:
    return Fraction(platform.parameter("dma_engines") * platform.parameter("dma_engine_bytes_per_second"))


def _occupancy(demand: Demand, lane: I64) -> I64:
    """Return the picoseconds, rounded up, of each entry at the part that its queue has of the resource.

    Args:
        lane: the queue of each entry.
    """
    used = np.zeros((int(demand.resource.max(initial=-1)) + 1, int(lane.max(initial=-1)) + 1), np.int64)
    np.add.at(used, (demand.resource, lane), demand.size)
    total, users = used.sum(axis=1), np.count_nonzero(used, axis=1)
    sizes, size = np.unique(demand.size, return_inverse=True)
    cases, case = np.unique((demand.resource * used.shape[1] + lane) * sizes.size + size, return_inverse=True)
    duration = np.empty(cases.size, np.int64)
    for i, number in enumerate(cases.tolist()):
        user, which = divmod(number, sizes.size)
        at, by = divmod(user, used.shape[1])
        slower = min(Fraction(int(users[at])), Fraction(int(total[at]), int(used[at, by])))
        duration[i] = ceil(int(sizes[which]) * PICOSECONDS_PER_SECOND * slower / demand.rate)
    out: I64 = duration[case]
    return out
