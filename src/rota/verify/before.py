"""The order of rows: whether one completes before another starts, in every execution.

A row that completes before a signal's row, or is it, completes before what waits for the signal starts, and all rows
behind that in its queue. So a pair is ordered if a chain of edges leads from the queue of the first, at or after it, to
the queue of the second, at or before it; in one queue also by a fence between them. Most pairs have a chain of one
edge, found with a sort of the edges; vector clocks decide the rest exactly. Source: schedule §5 (5).
"""

from __future__ import annotations

import numpy as np

from rota.columns import I64, Array, Bool, pointers, ranges
from rota.errors import UnsupportedError
from rota.schedule.ir import Schedule
from rota.verify.lanes import Lanes, by_key, last_fence

_CLOCK_BYTES = 1 << 24  # of edges merged at once


class Order:
    """The order that the edges of a schedule make, together with its queues and fences.

    Args:
        signal, wait: for each edge, the row that signals, and the row that starts only after it, a later one.
    """

    def __init__(self, schedule: Schedule, queues: Lanes, signal: I64, wait: I64) -> None:
        self.queues, self.signal, self.wait = queues, signal, wait
        self.rows = max(len(schedule), 1)
        self.fence = last_fence(schedule, queues)
        if 2 * queues.count.bit_length() + self.rows.bit_length() > 63:
            raise UnsupportedError(
                f"{queues.count} queues of {self.rows} rows are more than the proof of order follows"
            )
        self._arrival, self._latest = self._sorted()

    def _sorted(self) -> tuple[I64, I64]:
        """Return the edges by (queue it leaves, queue it enters, row it enters), and the last row that left so far."""
        pair = self._pair(self.queues.of[self.signal], self.queues.of[self.wait])
        arrival, bits = pair * self.rows + self.wait, self.rows.bit_length()
        if int(arrival.max(initial=0)).bit_length() + bits <= 63:  # sorting numbers is faster than sorting places
            both = (arrival << bits) | self.signal
            both.sort()
            arrival, signal = both >> bits, both & ((1 << bits) - 1)
        else:
            order = np.argsort(arrival)
            arrival, signal = arrival[order], self.signal[order]
        return arrival, np.maximum.accumulate(arrival // self.rows * self.rows + signal)

    def _pair(self, first: I64, second: I64) -> I64:
        return first * self.queues.count + second

    def near(self, first: I64, second: I64) -> Bool:
        """Return which pairs are ordered by one edge or a fence; the first row of each comes earlier."""
        lane_first, lane_second = self.queues.of[first], self.queues.of[second]
        pair = self._pair(lane_first, lane_second) * self.rows
        edge = np.searchsorted(self._arrival, pair + second, side="right") - 1
        ordered: Bool = self._latest[edge] >= pair + first if self._latest.size else np.zeros(first.size, np.bool_)
        ordered &= edge >= 0
        ordered |= (lane_first == lane_second) & (self.fence[second] > first)
        return ordered

    def far(self, first: I64, second: I64) -> Bool:
        """Return which pairs are ordered by any chain of edges: exact, and the slower the longer the chains are."""
        if not first.size:
            return np.zeros(0, np.bool_)
        pair, back = np.unique(first * self.rows + second, return_inverse=True)
        ordered: Bool = _Clocks(self).ordered(*np.divmod(pair, self.rows))[back]
        return ordered


class _Clocks:
    """Vector clocks of segments. A segment begins at a row with an edge into it and ends before the next one.

    The clock of a segment says of each queue how many of its rows have completed before the segment starts. Segments
    are taken in rounds, each after everything it depends on; a clock is kept until its last consumer has read it.
    """

    def __init__(self, order: Order) -> None:
        self.order, queues = order, order.queues
        size = queues.rows.size
        self.position = np.empty(size, np.int64)
        self.position[queues.rows] = np.arange(size) - np.repeat(queues.ptr[:-1], np.diff(queues.ptr))
        begins = np.zeros(size, np.bool_)
        begins[queues.ptr[:-1]] = True
        into = np.zeros(size, np.bool_)
        into[order.wait] = True
        begins |= into[queues.rows]
        self.segment = np.empty(size, np.int64)
        self.segment[queues.rows] = np.cumsum(begins) - 1
        self.lane = queues.of[queues.rows[begins]]
        by_wait = np.argsort(self.segment[order.wait], kind="stable")
        self.source = order.signal[by_wait]
        self.edges = pointers(np.bincount(self.segment[order.wait], minlength=self.lane.size))
        self.round = self._rounds()

    def _rounds(self) -> I64:
        """Return the length of the longest chain that ends in each segment."""
        source = self.segment[self.source]
        head = np.flatnonzero(np.diff(self.lane, prepend=-1) > 0)
        end = np.append(head[1:], self.lane.size)
        out = np.full(self.lane.size, -1, np.int64)
        done = np.zeros(self.lane.size, np.bool_)
        at, number = head.copy(), 0
        while (open_lanes := np.flatnonzero(at < end)).size:
            segment = at[open_lanes]
            counts = self.edges[segment + 1] - self.edges[segment]
            unmet = np.bincount(
                np.repeat(np.arange(segment.size), counts),
                ~done[source[ranges(self.edges[segment], counts)]],
                segment.size,
            )
            ready = open_lanes[unmet == 0]
            assert ready.size, "an order of execution has no cycle"
            out[at[ready]] = number
            done[at[ready]] = True
            at[ready] += 1
            number += 1
        return out

    def ordered(self, first: I64, second: I64) -> Bool:
        """Return whether each first row completes before its second one starts."""
        into = self.segment[second]
        order = np.argsort(self.round[into], kind="stable")
        asked = pointers(np.bincount(self.round[into], minlength=int(self.round.max()) + 1))
        out = np.zeros(first.size, np.bool_)
        lane = self.order.queues.of[first]
        walk = _Walk(self)
        for number in range(int(self.round[into].max()) + 1):
            walk.advance()
            some = order[asked[number] : asked[number + 1]]
            out[some] = walk.clock[self.order.queues.of[second[some]], lane[some]] > self.position[first[some]]
        return out


class _Walk:
    """The clocks while the rounds go by: `clock[q]` is that of the last segment of queue q so far."""

    def __init__(self, clocks: _Clocks) -> None:
        self.of = clocks
        count = clocks.order.queues.count
        longest = int(clocks.position.max(initial=0)) + 1
        self.dtype = np.uint16 if longest < 1 << 16 else np.uint32
        self.clock: Array = np.zeros((count, count), self.dtype)
        by_round = by_key(clocks.round, int(clocks.round.max(initial=0)) + 1)
        self.segments = np.split(by_round, np.cumsum(np.bincount(clocks.round))[:-1])
        self.until = np.full(clocks.round.size, -1, np.int64)
        consumer = np.repeat(np.arange(clocks.round.size), np.diff(clocks.edges))
        np.maximum.at(self.until, clocks.segment[clocks.source], clocks.round[consumer])
        self.kept = np.full(clocks.round.size, -1, np.int64)
        self.store: Array = np.zeros((0, count), self.dtype)
        self.free: list[Array] = []
        self.expire: dict[int, list[Array]] = {}
        self.number = 0

    def advance(self) -> None:
        """Take the segments of the next round."""
        segments = self.segments[self.number]
        busy = segments[np.diff(self.of.edges)[segments] > 0] if segments.size else segments
        width = self.clock.shape[1] * self.clock.itemsize
        counts = self.of.edges[busy + 1] - self.of.edges[busy]
        total = pointers(counts)
        first = 0
        while first < busy.size:
            last = max(first + 1, int(np.searchsorted(total, total[first] + _CLOCK_BYTES // width, side="right")) - 1)
            self._merge(busy[first:last], counts[first:last])
            first = last
        self._keep(segments)
        self.number += 1

    def _merge(self, segments: I64, counts: I64) -> None:
        of = self.of
        source = of.source[ranges(of.edges[segments], counts)]
        lane = of.order.queues.of[source]
        known = self.store[self.kept[of.segment[source]]]
        known[np.arange(source.size), lane] = of.position[source] + 1
        if counts.max() > 1:
            known = np.maximum.reduceat(known, pointers(counts)[:-1], axis=0)
        mine = of.lane[segments]
        self.clock[mine] = np.maximum(self.clock[mine], known)

    def _keep(self, segments: I64) -> None:
        """Store the clocks that later rounds read, in places whose last reader has been."""
        for places in self.expire.pop(self.number, ()):
            self.free.append(places)
        needed = segments[self.until[segments] > self.number]
        if not needed.size:
            return
        free = np.concatenate(self.free) if self.free else np.zeros(0, np.int64)
        if free.size < needed.size:
            grown = max(2 * self.store.shape[0], self.store.shape[0] + needed.size - free.size)
            store = np.zeros((grown, self.store.shape[1]), self.dtype)
            store[: self.store.shape[0]] = self.store
            free = np.concatenate((free, np.arange(self.store.shape[0], grown)))
            self.store = store
        places, rest = free[: needed.size], free[needed.size :]
        self.free = [rest]
        self.store[places] = self.clock[self.of.lane[needed]]
        self.kept[needed] = places
        ends = self.until[needed]
        for number in np.unique(ends).tolist():
            self.expire.setdefault(number, []).append(places[ends == number])
