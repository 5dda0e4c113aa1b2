"""The proof of order against the oracle of all executions, on random small schedules that may do anything wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.mutation.oracle import not_entered, not_finished, precedence, races, thresholds
from tests.schedules import INPUT, OUTPUT, SCRATCH, Row, build
from tests.unchecked import unchecked

from rota.columns import Bool
from rota.schedule.ir import Op, Schedule
from rota.verify.before import Order
from rota.verify.findings import MOST, Finding
from rota.verify.lanes import lanes
from rota.verify.match import Signals, match, needs
from rota.verify.order import find_order

GRAIN = 4
RACES = ("race", "slot_reuse", "in_place_hazard")


@dataclass
class Values:
    """What the semaphores hold while rows are drawn in an order of execution."""

    initial: list[int]
    now: dict[tuple[int, int], int]
    consumer: dict[tuple[int, int], int]


@st.composite
def wild_schedules(draw: st.DrawFn) -> Schedule:
    """Two or three ranks with two queues each, shared semaphores, random fences, few bytes that all fight for.

    Rows are drawn such that they can run as they stand. Then signals are dropped and the queues shuffled together
    anew, so that some deadlock and others only run in another order than the stored one.
    """
    ranks, count = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    initial = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=count, max_size=count))
    keys = list(product(range(ranks), range(count)))
    values = Values(initial, {(r, s): initial[s] for r, s in keys}, {key: draw(st.integers(0, 1)) for key in keys})
    cells = draw(st.integers(1, 3))
    rows = [_row(draw, ranks, values, cells) for _ in range(draw(st.integers(2, 10)))]
    if draw(st.integers(0, 1)):
        for _ in range(draw(st.integers(1, 2))):
            row = draw(st.sampled_from(rows))
            row.signals = row.signals[1:]
    if draw(st.booleans()):
        rows = _shuffled(draw, rows)
    with unchecked():
        schedule = build(rows, ranks=ranks, grain=GRAIN, initial=initial)
        return replace(schedule, output=INPUT) if draw(st.booleans()) else schedule


def _row(draw: st.DrawFn, ranks: int, values: Values, cells: int) -> Row:
    rank, queue = draw(st.integers(0, ranks - 1)), draw(st.integers(0, 1))
    row = Row(rank, queue, fence=draw(st.integers(0, 4)) == 0)
    for (at, semaphore), consumer in values.consumer.items():
        now = values.now[at, semaphore]
        if (at, consumer) == (rank, queue) and now and draw(st.integers(0, 2)):
            at_least = draw(st.sampled_from([now, now, 1]))
            subtract = draw(st.sampled_from([at_least, at_least, 0]))
            values.now[at, semaphore] -= subtract
            row.waits.append((semaphore, at_least, subtract))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        at, semaphore, add = draw(st.integers(0, ranks - 1)), draw(st.integers(0, len(values.initial) - 1)), 1
        values.now[at, semaphore] += add
        row.signals.append((at, semaphore, add))
    if draw(st.integers(0, 2)):
        row.size = GRAIN * draw(st.sampled_from([1, 1, 2]))
        row.sources = draw(st.lists(_places(ranks, cells), min_size=1, max_size=2, unique=True))
        row.targets = [draw(_places(ranks, cells))]
        row.sources = [place for place in row.sources if not _partly(place, row.targets[0], row.size)] or row.targets
        row.op = Op.ADD if len(row.sources) > 1 else Op.NONE
    return row


def _places(ranks: int, cells: int) -> st.SearchStrategy[tuple[int, int, int]]:
    buffers = st.sampled_from([INPUT, OUTPUT, SCRATCH, SCRATCH])
    return st.tuples(st.integers(0, ranks - 1), buffers, st.integers(0, cells - 1).map(lambda cell: cell * GRAIN))


def _partly(source: tuple[int, int, int], target: tuple[int, int, int], size: int) -> bool:
    return source[:2] == target[:2] and 0 < abs(source[2] - target[2]) < size


def _shuffled(draw: st.DrawFn, rows: list[Row]) -> list[Row]:
    """Return the rows in another order that keeps each queue's."""
    lanes = draw(st.permutations([(row.rank, row.queue) for row in rows]))
    queues = {lane: iter([row for row in rows if (row.rank, row.queue) == lane]) for lane in lanes}
    return [next(queues[lane]) for lane in lanes]


def check(schedule: Schedule) -> str:
    """Hold the findings against the oracle's; return what kind of schedule it was."""
    found = find_order(schedule)
    by_rule: dict[str, list[Finding]] = {}
    for finding in found:
        by_rule.setdefault(finding.rule, []).append(finding)
    assert all(len(some) <= MOST for some in by_rule.values())
    before, stuck = precedence(schedule)
    assert ("deadlock" in by_rule) == bool(stuck.any())
    if stuck.any():
        assert all(stuck[row] for finding in by_rule["deadlock"] for row in finding.rows)
        return "deadlock"
    assert ("ambiguous_semaphore" in by_rule) == any(_inexact(schedule, before))
    if "ambiguous_semaphore" in by_rule:
        return "ambiguous"
    true = {tuple(sorted(pair)) for pair in races(schedule, before)}
    said = {tuple(sorted(finding.rows)) for rule in RACES for finding in by_rule.get(rule, ())}
    assert said <= true
    assert bool(said) == bool(true)
    for rule, pairs in (("not_entered", not_entered), ("not_finished", not_finished)):
        visits = {row for row, _ in pairs(schedule, before)}
        assert {finding.rows[0] for finding in by_rule.get(rule, ())} <= visits
        assert (rule in by_rule) == bool(visits)
    return "race" if true else "clean"


def _inexact(schedule: Schedule, before: Bool) -> Iterator[bool]:
    """Yield, for each wait that needs signals of several queues, whether other signals than those may release it."""
    width = len(schedule.semaphores)
    key = schedule.signals.rank.astype(np.int64) * width + schedule.signals.semaphore
    row, lane = schedule.signal_row, schedule.lane
    for wait, (semaphore, goal) in enumerate(thresholds(schedule, width).tolist()):
        mine = np.flatnonzero(key == semaphore)
        if goal <= 0 or np.unique(lane[row[mine]]).size == 1:
            continue
        waiting = schedule.wait_row[wait]
        must = before[row[mine], waiting]
        later = before[waiting, row[mine]] | ((lane[row[mine]] == lane[waiting]) & (row[mine] >= waiting))
        yield bool((must == later).any()) or int(schedule.signals.add[mine[must]].sum()) != goal


FAST = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


@FAST
@given(schedule=wild_schedules())
def test_verdicts_are_those_of_all_executions(schedule: Schedule) -> None:
    """No unsound verdict and no false race: what is found is what some execution does, and nothing else."""
    check(schedule)


@pytest.mark.slow
def test_verdicts_of_ten_thousand_schedules() -> None:
    """The same of many, with enough of each kind among them to mean something."""
    kinds: Counter[str] = Counter()

    @MANY
    @given(schedule=wild_schedules())
    def run(schedule: Schedule) -> None:
        kinds[check(schedule)] += 1

    run()
    print(f"\n{dict(kinds)}")
    assert all(kinds[kind] > 300 for kind in ("deadlock", "ambiguous", "race", "clean"))


@FAST
@given(schedule=wild_schedules())
def test_the_order_is_the_true_one(schedule: Schedule) -> None:
    """Where no semaphore is ambiguous, clocks and the short cut agree with the oracle on every pair of rows."""
    before, stuck = precedence(schedule)
    queues = lanes(schedule)
    found = match(Signals(schedule, queues), needs(schedule), queues)
    if stuck.any() or not found.runs:
        return
    if any(finding.rule == "ambiguous_semaphore" for finding in find_order(schedule)):
        return
    order = Order(schedule, queues, found.signal, found.wait)
    first, second = np.triu_indices(len(schedule), 1)
    near, far = order.near(first, second), order.far(first, second)
    true = before[first, second]
    assert (near <= true).all()
    assert ((near | far) == true).all()
    assert not before[second, first].any()
