"""Laws of simulated time, over random rings, orders, fences and costs, and over random machines."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import fields, replace
from fractions import Fraction
from itertools import count

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.columns import pointers, ranges
from rota.compose.ring import compose_ring
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.group import wire
from rota.machine.platform import Platform, load_platform
from rota.request import REDUCING, Request
from rota.schedule.build import Block, Signal, Wait, assemble
from rota.schedule.ir import Buffer, Leaf, Places, Schedule, Semaphore, Signals, Waits
from rota.simulate import Costs, Timing, predict, simulate

KINDS = (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER)
PICOSECONDS = 10**12
law = settings(deadline=None)


# --- the slow, clear twin: one event after the other, semaphores that count up and down -------------------------------


def run(schedule: Schedule, costs: Costs) -> tuple[list[int], list[int]]:
    """Return start and end of each row, by events in order of time."""
    queues: dict[int, list[int]] = defaultdict(list)
    for row, lane in enumerate(schedule.lane.tolist()):
        queues[lane].append(row)
    value = {(rank, i): s.initial for rank in range(schedule.ranks) for i, s in enumerate(schedule.semaphores)}
    start, end = [-1] * len(schedule), [-1] * len(schedule)
    free, completes = dict.fromkeys(queues, 0), dict.fromkeys(queues, 0)
    done: set[int] = set()
    order = count()
    events: list[tuple[int, int, int]] = [(0, next(order), -1)]  # time, tie-break, completed row or -1

    def may_start(row: int, lane: int, now: int) -> bool:
        ready = now >= free[lane] and all(value[key] >= least for key, least, _ in waits_of(schedule, row))
        earlier = queues[lane][: queues[lane].index(row)]
        return ready and (not schedule.rows.fence[row] or all(before in done for before in earlier))

    heads = {lane: iter(rows) for lane, rows in queues.items()}
    head = {lane: next(rows, None) for lane, rows in heads.items()}
    while events:
        now, _, completed = heapq.heappop(events)
        if completed >= 0:
            done.add(completed)
            for key, add in signals_of(schedule, completed):
                value[key] += add
        for lane in sorted(queues):
            while (row := head[lane]) is not None and may_start(row, lane, now):
                for key, _, subtract in waits_of(schedule, row):
                    value[key] -= subtract
                start[row], free[lane] = now, now + int(costs.occupancy_ps[row])
                completes[lane] = end[row] = max(completes[lane], free[lane] + int(costs.latency_ps[row]))
                heapq.heappush(events, (free[lane], next(order), -1))
                heapq.heappush(events, (end[row], next(order), row))
                head[lane] = next(heads[lane], None)
    assert len(done) == len(schedule)
    return start, end


def waits_of(schedule: Schedule, row: int) -> list[tuple[tuple[int, int], int, int]]:
    waits, rank = schedule.waits, int(schedule.rows.rank[row])
    return [
        ((rank, int(waits.semaphore[i])), int(waits.at_least[i]), int(waits.subtract[i]))
        for i in range(waits.ptr[row], waits.ptr[row + 1])
    ]


def signals_of(schedule: Schedule, row: int) -> list[tuple[tuple[int, int], int]]:
    signals = schedule.signals
    return [
        ((int(signals.rank[i]), int(signals.semaphore[i])), int(signals.add[i]))
        for i in range(signals.ptr[row], signals.ptr[row + 1])
    ]


# --- random schedules and costs ---------------------------------------------------------------------------------------


@st.composite
def rings(draw: st.DrawFn) -> Schedule:
    """Draw a ring collective of any kind, groups, orders, channels, halves and slots, with fences it does not need."""
    kind, ranks = draw(st.sampled_from(KINDS)), draw(st.integers(1, 5))
    channels, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    orders = [[draw(st.permutations(range(ranks))) for _ in range(groups)] for _ in range(channels)]
    halves = draw(st.integers(1, 2))
    schedule = compose_ring(
        orders,
        kind=kind,
        size=ranks * draw(st.integers(1, 400)),
        op=CceType.ADD if kind in REDUCING else None,
        slots=draw(st.integers(halves + 1, 5)),
        halves=halves,
        chunk=64,
        in_place=kind is EncOp.ALLREDUCE and draw(st.booleans()),
    )
    fence = schedule.rows.fence | (draw(generators()).random(len(schedule)) < draw(st.sampled_from([0.0, 0.1, 0.5])))
    return replace(schedule, rows=replace(schedule.rows, fence=fence))


def alternating_barriers(ranks: int, rounds: int) -> Schedule:
    """Return rounds in which every rank tells all others, on two queues, and waits for all of them on one counter."""
    rank, queue = (part.ravel() for part in np.indices((ranks, 2)))
    own, everyone = np.arange(ranks), 2 * (ranks - 1)
    blocks = []
    for turn in range(rounds):
        counter = turn % 2
        peers = [Signal((rank + step) % ranks, counter) for step in range(1, ranks)]
        arrived = Wait(counter, everyone, everyone)
        blocks += [
            Block(rank, queue, Leaf.POST_SEND, 0, signals=peers),
            Block(own, 0, Leaf.POST_RECV, 0, waits=[arrived], signals=[Signal(own, 2)]),
            Block(own, 1, Leaf.POST_RECV, 0, waits=[Wait(2)]),
        ]
    names = [Semaphore(name) for name in ("even", "odd", "mate")]
    return assemble(blocks, ranks=ranks, buffers=[Buffer("all", 0, user=True)], semaphores=names, input=0, output=0)


def generators() -> st.SearchStrategy[np.random.Generator]:
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


def random_costs(schedule: Schedule, generator: np.random.Generator, most: int = 1000) -> Costs:
    """Return costs that are often equal and often 0, so that ties happen."""
    draw = [generator.integers(0, most, len(schedule)) * generator.integers(0, 2, len(schedule)) for _ in range(2)]
    return Costs(occupancy_ps=draw[0], latency_ps=draw[1])


def times(timing: Timing) -> tuple[list[int], list[int]]:
    return timing.start_ps.tolist(), timing.end_ps.tolist()


# --- laws -------------------------------------------------------------------------------------------------------------


@law
@given(rings(), generators(), st.sampled_from([2, 1000]))
def test_a_ring_is_timed_as_events_would(schedule: Schedule, generator: np.random.Generator, most: int) -> None:
    """Start and completion of every row equal those of an event queue with counting semaphores, exactly."""
    costs = random_costs(schedule, generator, most)
    assert times(simulate(schedule, costs)) == run(schedule, costs)


@law
@given(st.integers(2, 4), st.integers(1, 5), generators())
def test_counters_of_several_queues_are_timed_as_events_would(
    ranks: int, rounds: int, generator: np.random.Generator
) -> None:
    """A wait for several queues, again and again on the same counter, holds when the event queue says so."""
    schedule = alternating_barriers(ranks, rounds)
    costs = random_costs(schedule, generator)
    assert times(simulate(schedule, costs)) == run(schedule, costs)


@law
@given(rings(), generators())
def test_doubled_costs_double_all_times(schedule: Schedule, generator: np.random.Generator) -> None:
    """Time has no unit of its own: twice the costs, twice every start and completion."""
    costs = random_costs(schedule, generator)
    once = simulate(schedule, costs)
    twice = simulate(schedule, Costs(occupancy_ps=2 * costs.occupancy_ps, latency_ps=2 * costs.latency_ps))
    assert (twice.start_ps == 2 * once.start_ps).all()
    assert (twice.end_ps == 2 * once.end_ps).all()


@law
@given(rings(), generators())
def test_more_cost_never_starts_or_ends_a_row_earlier(schedule: Schedule, generator: np.random.Generator) -> None:
    """Adding latency or occupancy to any rows makes no row earlier."""
    costs, more = random_costs(schedule, generator), random_costs(schedule, generator)
    before = simulate(schedule, costs)
    after = simulate(
        schedule,
        Costs(occupancy_ps=costs.occupancy_ps + more.occupancy_ps, latency_ps=costs.latency_ps + more.latency_ps),
    )
    assert (after.start_ps >= before.start_ps).all()
    assert (after.end_ps >= before.end_ps).all()


@law
@given(rings(), generators())
def test_names_of_ranks_do_not_matter(schedule: Schedule, generator: np.random.Generator) -> None:
    """Ranks named otherwise, throughout, change no time."""
    costs = random_costs(schedule, generator)
    name = generator.permutation(schedule.ranks).astype(np.uint16)
    parts = {part: getattr(schedule, part) for part in ("rows", "sources", "targets", "signals")}
    renamed = replace(schedule, **{part: replace(table, rank=name[table.rank]) for part, table in parts.items()})
    assert times(simulate(renamed, costs)) == times(simulate(schedule, costs))


@law
@given(rings(), generators())
def test_stored_order_does_not_matter(schedule: Schedule, generator: np.random.Generator) -> None:
    """The rows in any other order that is an execution have the same times."""
    costs = random_costs(schedule, generator)
    order = np.argsort(simulate(schedule, random_costs(schedule, generator)).start_ps, kind="stable")
    timing = simulate(schedule, costs)
    other = simulate(
        reordered(schedule, order), Costs(occupancy_ps=costs.occupancy_ps[order], latency_ps=costs.latency_ps[order])
    )
    assert (other.start_ps == timing.start_ps[order]).all()
    assert (other.end_ps == timing.end_ps[order]).all()


@law
@given(rings(), generators())
def test_critical_rows_explain_the_whole_time(schedule: Schedule, generator: np.random.Generator) -> None:
    """If all rows that are not critical cost nothing, the schedule takes as long; each critical row starts in turn."""
    costs = random_costs(schedule, generator)
    timing = simulate(schedule, costs)
    path = list(timing.critical(schedule))
    kept = np.zeros(len(schedule), np.int64)
    kept[path] = 1
    alone = simulate(schedule, Costs(occupancy_ps=costs.occupancy_ps * kept, latency_ps=costs.latency_ps * kept))
    assert alone.makespan_ps == timing.makespan_ps
    assert (np.diff(timing.start_ps[path]) >= 0).all()


def reordered(schedule: Schedule, order: np.ndarray) -> Schedule:
    """Return the schedule with its rows, and all they own, in this order."""
    rows = replace(schedule.rows, **{f.name: getattr(schedule.rows, f.name)[order] for f in fields(schedule.rows)})

    def table(old: Places | Waits | Signals) -> Places | Waits | Signals:
        length = np.diff(old.ptr)[order]
        entry = ranges(old.ptr[:-1][order], length)
        moved = {f.name: getattr(old, f.name)[entry] for f in fields(old) if f.name != "ptr"}
        return replace(old, ptr=pointers(length).astype(np.int32), **moved)

    parts = {part: table(getattr(schedule, part)) for part in ("sources", "targets", "waits", "signals")}
    return replace(schedule, rows=rows, **parts)


# --- machines ---------------------------------------------------------------------------------------------------------

GROUPS = {
    "trn1.32xlarge": [[[0, 1]], [[0, 1], [6, 7]], [list(range(8))], [[4]]],
    "trn2.48xlarge": [
        [list(range(4))],
        [list(range(8))],
        [[3, 0, 2, 1], [4, 5, 6, 7]],
        [list(range(16))],
        [[0, 16, 32, 48], [1, 17, 33, 49], [2, 18, 34, 50]],
    ],
}


@st.composite
def machines(draw: st.DrawFn) -> Platform:
    """Draw a machine of any rates and latencies."""
    platform = load_platform(draw(st.sampled_from(sorted(GROUPS))))
    rate, latency = st.integers(10**6, 10**13), st.integers(0, 10**7)
    values = {
        "link_bytes_per_second": draw(rate),
        "link_efficiency_permille": draw(st.integers(1, 1000)),
        "hbm_bytes_per_second": draw(rate),
        "dma_engine_bytes_per_second": draw(rate),
        "dma_engines": draw(st.integers(1, 64)),
        "hop_latency_ps": draw(latency),
        "onchip_hop_latency_ps": draw(latency),
    }
    changed = {
        name: replace(parameter, value=values.get(name, parameter.value))
        for name, parameter in platform.parameters.items()
    }
    return replace(platform, parameters=changed)


@law
@given(machines(), st.sampled_from(KINDS), st.integers(1, 2000), st.integers(1, 2), st.data())
def test_no_time_is_under_the_bound_of_a_resource(
    platform: Platform, kind: EncOp, share: int, halves: int, data: st.DataObject
) -> None:
    """No cable, HBM or set of DMA engines carries more than its rate: bytes <= rate x time, in whole numbers."""
    groups = data.draw(st.sampled_from(GROUPS[platform.name]))
    wirings = [wire(platform, group) for group in groups]
    op = CceType.ADD if kind in REDUCING else None
    size = share * len(groups[0])
    channels = max(len(wirings[0].channels), 1)
    members = list(zip(groups, wirings, strict=True))
    orders = [
        [
            [group.index(r) for r in (wiring.channels[c].order if wiring.channels else group)]
            for group, wiring in members
        ]
        for c in range(channels)
    ]
    schedule = compose_ring(orders, kind=kind, size=size, op=op, halves=halves, chunk=256)
    request = Request(kind, Dtype.FP8_EXP4, size, tuple(map(tuple, groups)), op=op)
    timing = predict(schedule, request, platform)
    value = platform.parameter
    rates = {
        "cable": Fraction(value("link_bytes_per_second") * value("link_efficiency_permille"), 1000),
        "hbm": value("hbm_bytes_per_second"),
        "dma": value("dma_engine_bytes_per_second") * value("dma_engines"),
    }
    for (resource, _), carried in carried_bytes(schedule, request, wirings).items():
        assert carried * PICOSECONDS <= rates[resource] * timing.makespan_ps


def carried_bytes(schedule: Schedule, request: Request, wirings: list) -> dict[tuple[str, int], int]:
    """Return the bytes over each resource, counted row by row."""
    cable_of = {
        (channel, a, channel_of.order[(i + 1) % len(channel_of.order)]): channel_of.cables[i]
        for wiring in wirings
        for channel, channel_of in enumerate(wiring.channels)
        for i, a in enumerate(channel_of.order)
    }
    carried: dict[tuple[str, int], int] = defaultdict(int)
    for row in range(len(schedule)):
        size, issuer = int(schedule.rows.size[row]), request.members[schedule.rows.rank[row]]
        read, written = (
            [request.members[r] for r in places.rank[places.ptr[row] : places.ptr[row + 1]]]
            for places in (schedule.sources, schedule.targets)
        )
        for rank in read + written:
            carried["hbm", rank] += size
        for rank in written:
            cable = cable_of[int(schedule.rows.queue[row]), issuer, rank] if rank != issuer else -1
            if cable >= 0:
                carried["cable", cable] += size
        carried["dma", issuer] += size * max(len(read), len(written))
    return carried
