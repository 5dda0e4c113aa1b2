"""When the rows of a schedule start and complete: a max-plus pass over its dependencies, in whole picoseconds.

A queue is one in-order resource. A row starts when the row before it in its queue has occupied the queue for its time,
when its waits hold and, if it is fenced, when the row before it has completed. It completes its occupancy and latency
later, never before the row before it; then it signals. The stored order is an execution, so it falls into consecutive
blocks of rows that do not depend on each other, and a block is one vectorised step.

What a row costs is `cost`'s. Queues that compete for a link are not resolved here: an evaluator that does so takes the
same arguments and says so in the certificate. Source: schedule §2 for the order, simulation §4 for the evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rota.columns import I64, Bool, freeze, pointers, ranges
from rota.errors import UsageError
from rota.machine.platform import Platform
from rota.request import Request
from rota.schedule.counters import releases
from rota.schedule.ir import Schedule
from rota.schedule.levels import blocks, previous_in_queue
from rota.simulate.cost import Costs, Load, ask, busiest_ps, share


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """When each row starts and has completed, and which evaluator says so."""

    start_ps: I64
    end_ps: I64
    certificate: str

    def __post_init__(self) -> None:
        freeze(self.start_ps)
        freeze(self.end_ps)

    @property
    def makespan_ps(self) -> int:
        """From the first start to the last completion."""
        return int(self.end_ps.max(initial=0))

    def critical(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the rows of a longest chain, earliest first: each bounds the start of the next or its completion."""
        if not len(schedule):
            return ()
        return _critical(self, dependencies(schedule))


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """What each row waits for.

    A moment is a number: `row` is the completion of a row, `rows` the beginning of time, and `rows + 1 + row` when the
    queue of a row may go on after it. A row starts at the latest of its causes, of which it has at least one.
    """

    previous: I64  # per row, the completion of the row before it in its queue
    ptr: I64  # row -> causes
    cause: I64
    block: I64  # boundaries of blocks of rows that do not depend on each other

    def __post_init__(self) -> None:
        for column in (self.previous, self.ptr, self.cause, self.block):
            freeze(column)


def simulate(schedule: Schedule, costs: Costs) -> Timing:
    """Return when the rows of a schedule start and complete.

    Raises:
        UsageError: the costs are another schedule's.
    """
    if costs.occupancy_ps.size != len(schedule):
        raise UsageError(f"costs of {costs.occupancy_ps.size} rows for a schedule of {len(schedule)}: expected as many")
    return evaluate(dependencies(schedule), costs)


def predict(schedule: Schedule, request: Request, platform: Platform) -> Timing:
    """Return the timing of a schedule on a machine, having checked that it is not under the lower bound."""
    load = ask(schedule, request, platform)
    order = dependencies(schedule)
    timing = evaluate(order, share(load))
    bound = _bound_ps(load, order)
    assert timing.makespan_ps >= bound, f"{timing.makespan_ps} ps is under the lower bound of {bound} ps"
    return timing


def lower_bound_ps(schedule: Schedule, request: Request, platform: Platform) -> int:
    """Return a time that no run of the schedule on the machine can be under.

    It is the most that a directed cable, the HBM of a rank, its DMA engines or the chain of latencies alone would take.
    """
    return _bound_ps(ask(schedule, request, platform), dependencies(schedule))


def _bound_ps(load: Load, order: Dependencies) -> int:
    latencies = Costs(occupancy_ps=np.zeros_like(load.latency_ps), latency_ps=load.latency_ps)
    return max(evaluate(order, latencies).makespan_ps, *map(busiest_ps, load.demands))


def evaluate(order: Dependencies, costs: Costs) -> Timing:
    """Return the timing of a schedule whose dependencies are known: for many costs of one schedule."""
    rows = order.previous.size
    moment = np.zeros(2 * rows + 1, np.int64)
    end, free = moment[:rows], moment[rows + 1 :]
    start = np.empty(rows, np.int64)
    cause, ptr, previous = order.cause, order.ptr, order.previous
    occupancy, latency = costs.occupancy_ps, costs.latency_ps
    edges, heads = order.block.tolist(), ptr[order.block].tolist()
    for (first, last), (head, tail) in zip(pairwise(edges), pairwise(heads), strict=True):
        begin = np.maximum.reduceat(moment[cause[head:tail]], ptr[first:last] - head)
        start[first:last] = begin
        begin += occupancy[first:last]
        free[first:last] = begin
        begin += latency[first:last]
        np.maximum(begin, moment[previous[first:last]], out=end[first:last])
    return Timing(start_ps=start, end_ps=end.copy(), certificate=f"max-plus, {len(edges) - 1} levels")


def dependencies(schedule: Schedule) -> Dependencies:
    """Return what each row waits for, and the blocks in which no row waits for another."""
    rows = len(schedule)
    latest = previous_in_queue(schedule)
    wait, signal = _claims(schedule)
    waiter, releaser = schedule.wait_row[wait], schedule.signal_row[signal]
    first = latest < 0
    completed = np.where(first, rows, latest)
    ptr = pointers(np.bincount(waiter, minlength=rows) + 1)
    cause = np.empty(ptr[-1], np.int64)
    cause[ptr[:-1]] = np.where(first | schedule.rows.fence, completed, latest + rows + 1)
    cause[np.arange(waiter.size) + waiter + 1] = releaser
    np.maximum.at(latest, waiter, releaser)
    return Dependencies(previous=completed, ptr=ptr, cause=cause, block=blocks(latest))


def _claims(schedule: Schedule) -> tuple[I64, I64]:
    """Return pairs (wait, signal), by wait: a wait holds when all its signals have been performed.

    The signals of one queue are performed in order, so of those the last one needed stands for all. Where several
    queues signal a semaphore, a wait needs all signals up to its threshold in stored order that no earlier wait of its
    queue needed. That is exact unless a later signal could release it, which verification refuses as ambiguous.
    """
    shared = _shared(schedule)
    wait, signal = releases(schedule)
    if not shared.any():
        return wait, signal
    many = shared[_counter(schedule)[signal]]
    more_wait, more_signal = _all_up_to(schedule, wait[many], signal[many])
    wait, signal = np.concatenate([wait[~many], more_wait]), np.concatenate([signal[~many], more_signal])
    by_wait = np.argsort(wait, kind="stable")
    return wait[by_wait], signal[by_wait]


def _counter(schedule: Schedule) -> I64:
    """Return what each signal adds to: rank x semaphores + semaphore."""
    return schedule.signals.rank.astype(np.int64) * len(schedule.semaphores) + schedule.signals.semaphore


def _shared(schedule: Schedule) -> Bool:
    """Return, for each rank x semaphores + semaphore, whether several queues signal it."""
    counter, lane = _counter(schedule), schedule.lane[schedule.signal_row]
    any_lane = np.zeros(schedule.ranks * len(schedule.semaphores), np.int64)
    any_lane[counter] = lane
    out = np.zeros(any_lane.size, np.bool_)
    out[counter[any_lane[counter] != lane]] = True
    return out


def _all_up_to(schedule: Schedule, wait: I64, signal: I64) -> tuple[I64, I64]:
    """Return pairs (wait, signal) with all signals of the semaphore, the last included, since the queue's last wait."""
    counter = _counter(schedule)
    order = np.argsort(counter, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    lane = schedule.lane[schedule.wait_row[wait]]
    by_queue = np.lexsort((wait, lane, counter[signal]))
    wait, lane, signal = wait[by_queue], lane[by_queue], signal[by_queue]
    key, last = counter[signal], place[signal]
    begin = np.searchsorted(counter[order], key)
    again = (key[1:] == key[:-1]) & (lane[1:] == lane[:-1])
    begin[1:][again] = last[:-1][again] + 1
    count = np.maximum(last + 1 - begin, 0)
    return np.repeat(wait, count), order[ranges(begin, count)]


def _critical(timing: Timing, order: Dependencies) -> tuple[int, ...]:
    rows = order.previous.size
    time = np.append(timing.end_ps, 0)
    moment = int(np.argmax(time))
    path: list[int] = []
    while moment != rows:
        row = moment if moment < rows else moment - rows - 1
        before = int(order.previous[row])
        if moment < rows and time[before] == time[row]:
            moment = before
            continue
        path.append(row)
        cause = order.cause[order.ptr[row] : order.ptr[row + 1]]
        binding = cause[(cause <= rows) & (time[np.minimum(cause, rows)] == timing.start_ps[row])]
        moment = int(binding[0] if binding.size else cause[0])
    return tuple(path[::-1])
