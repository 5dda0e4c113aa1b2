"""What a stream processor starts at once: rows of channels, batches of event lists, and which of them need packets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from by_hand import Stages, schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Rows
from tests.images import Ring
from tests.schedules import INPUT, OUTPUT, Row, schedules

from rota.emit.activities import activities
from rota.emit.launches import DIRECT, Launches, launches
from rota.errors import UnsupportedError
from rota.schedule.ir import Schedule

EVENTS = ("a", "b", "c", "d")


def starts_of(schedule: Schedule, *, most: int = 4080, weight: Any = None) -> tuple[Launches, list[int]]:
    heavy = np.full(len(schedule), 1) if weight is None else np.array(weight)
    found, owner = launches(schedule, activities(schedule, None), weight=heavy, most=most)
    return found, owner.tolist()


def copy(number: int, **more: Any) -> Row:
    """A row of rank 0 that moves 64 bytes."""
    return Row(0, 0, size=64, sources=[(0, INPUT, 64 * number)], targets=[(0, OUTPUT, 64 * number)], **more)


def tell(semaphore: int, add: int = 1, rank: int = 0, **more: Any) -> Row:
    return Row(0, 0, signals=[(rank, semaphore, add)], **more)


def wait(semaphore: int, units: int = 1, **more: Any) -> Row:
    return Row(0, 0, waits=[(semaphore, units, units)], **more)


def one_rank(*rows: Row, names: Any = EVENTS) -> Schedule:
    return schedule_of(list(rows), names, ranks=1)


# --- where a batch begins ---------------------------------------------------------------------------------------------


def test_a_batch_begins_at_a_wait() -> None:
    """A list fires and then waits: rows up to the next that waits are started together. §5.5."""
    schedule = one_rank(copy(0), copy(1), tell(0), wait(0, signals=[(0, 1, 1)]), copy(2), wait(1))
    found, owner = starts_of(schedule)
    assert owner == [0, 0, 0, 1, 1, 2]
    assert found.first.tolist() == [0, 3, 5]
    assert found.last.tolist() == [False, False, True]
    assert not found.ring.any()


def test_a_batch_begins_at_a_fence() -> None:
    """A fenced row waits for all that its queue has started."""
    found, owner = starts_of(one_rank(copy(0), copy(1), copy(2, fence=True), copy(3)))
    assert owner == [0, 0, 1, 1]
    assert found.fence.tolist() == [False, True]
    assert found.completes.tolist() == [True, True]


def test_a_fence_behind_nothing_is_none() -> None:
    """The first row of a list has nothing before it, and a fence behind a fence nothing new."""
    rows = [copy(0, fence=True), copy(1, fence=True), Row(0, 0, fence=True), copy(2, fence=True)]
    found, owner = starts_of(one_rank(*rows))
    assert owner == [0, 1, 2, 3]
    assert found.fence.tolist() == [False, True, True, False]
    assert found.completes.tolist() == [True, True, False, True]


def test_each_step_of_a_ring_is_a_start() -> None:
    """Rows of one step are one row of the slot program, whatever the waits; the next step is another. §4, a row."""
    schedule = Ring(groups=((0, 1, 2),), orders=((0, 1, 2),)).schedule
    found, owner = starts_of(schedule)
    rows = schedule.rows
    names = np.stack([schedule.lane, rows.leg, rows.step, rows.part]).astype(np.int64)
    for number in range(found.first.size):
        mine = np.flatnonzero(np.array(owner) == number)
        assert np.unique(names[:, mine], axis=1).shape[1] == 1
    assert len(set(owner)) == np.unique(names, axis=1).shape[1]
    assert found.ring.all()
    assert found.completes.all()
    assert found.dma.all()


# --- what is too heavy ------------------------------------------------------------------------------------------------


def test_a_batch_that_is_too_heavy_is_cut() -> None:
    """At every half of what a ring takes at once, so that no part is heavier than the whole of it."""
    rows = [copy(number) for number in range(8)]
    _, owner = starts_of(one_rank(*rows), weight=[10] * 8, most=60)
    assert owner == [0, 0, 0, 1, 1, 1, 2, 2]
    _, owner = starts_of(one_rank(*rows), weight=[10] * 8, most=160)
    assert owner == [0] * 8
    _, owner = starts_of(one_rank(*rows), weight=[5, 10, 10, 10, 30, 10, 20, 10], most=60)
    assert owner == [0, 0, 0, 0, 1, 2, 2, 3]


def test_a_row_heavier_than_half_a_ring_stands_alone() -> None:
    """With a small one before it the two would be more than the ring takes."""
    rows = [copy(number) for number in range(5)]
    _, owner = starts_of(one_rank(*rows), weight=[20, 60, 20, 31, 20], most=60)
    assert owner == [0, 1, 2, 3, 4]
    schedule = Rows(sizes=(100 << 16, 4000 << 16, 100 << 16), channel=False).schedule
    assert Stages(schedule=schedule, folds=1).emitted.rings.m2s.tolist() == [100, 4000, 101]


def test_only_the_last_part_of_a_cut_batch_completes() -> None:
    """Packets of a queue run in order, so one completion says that all parts have."""
    found, _ = starts_of(one_rank(*(copy(number) for number in range(8))), weight=[10] * 8, most=60)
    assert found.completes.tolist() == [False, False, True]
    assert found.dma.all()


@pytest.mark.parametrize("size", [1 << 20, 4079 << 16])
def test_what_emit_cuts_fits_the_ring(size: int) -> None:
    """Two hundred rows of 65536-byte pieces go out in parts, none above the 4080 descriptors of a ring."""
    stages = Stages(schedule=Rows(sizes=(size,) * (1 + (4100 << 16) // size), channel=False).schedule, folds=1)
    counts = stages.emitted.rings.m2s
    assert counts.size > 1
    assert counts.max() <= 4080
    with pytest.raises(UnsupportedError, match="needs 4081 descriptors on one of 1 folds"):
        _ = Stages(schedule=Rows(sizes=(4080 << 16,), channel=False).schedule, folds=1).emitted


# --- signals without a transfer ---------------------------------------------------------------------------------------


def test_signals_behind_nothing_are_the_processors_own() -> None:
    """A handshake: nothing is under way, so the signal may be performed at once. §5.5, direct trigger."""
    found, _ = starts_of(one_rank(tell(0), tell(1), wait(0), wait(1)))
    assert found.direct.tolist() == [True, False, False]
    assert not found.dma.any()
    assert not found.completes.any()


def test_a_record_holds_three_signals() -> None:
    """The fourth makes packets of all. Device §5."""
    for count, direct in ((3, True), (4, False)):
        found, _ = starts_of(one_rank(*(tell(i) for i in range(count)), *(wait(i) for i in range(count))))
        assert found.direct.tolist()[0] is direct
        assert found.dma.tolist()[0] is not direct


def test_a_direct_signal_adds_one() -> None:
    found, _ = starts_of(one_rank(tell(0, add=2), wait(0, 2)))
    assert (found.direct.tolist(), found.dma.tolist()) == ([False, False], [True, False])


def test_a_signal_does_not_overtake_what_is_under_way() -> None:
    """A row signals when all rows before it have completed: behind a transfer it is a packet, behind a fence it is not.

    What the fence waited for is over; and a wait is no fence.
    """
    rows = [tell(2), copy(0, signals=[(0, 0, 1)]), wait(0), tell(1), wait(1), wait(2)]
    found, _ = starts_of(one_rank(*rows))
    assert found.dma.tolist()[:2] == [True, True]
    assert not found.direct.any()
    fenced = one_rank(copy(0, signals=[(0, 0, 1)]), wait(0), tell(1, fence=True), wait(1))
    found, _ = starts_of(fenced)
    assert found.direct.tolist() == [False, False, True, False]
    assert found.fence.tolist() == [False, False, True, False]


def test_a_row_that_moves_makes_packets_of_the_batch() -> None:
    found, _ = starts_of(one_rank(tell(0), copy(0), wait(0)))
    assert (found.direct.tolist(), found.dma.tolist()) == ([False, False], [True, False])


# --- against a plain loop ---------------------------------------------------------------------------------------------


@dataclass
class Start:
    """What one start is, by the plain loop below."""

    rows: list[int]
    walk: tuple[int, int]
    ring: bool
    fence: bool = False
    dma: bool = False
    direct: bool = False
    completes: bool = False


def slow_launches(schedule: Schedule, weight: list[int], most: int) -> list[Start]:
    """Return the starts of a schedule, lane after lane."""
    parts = activities(schedule, None)
    peers = {i for each in parts.table for i in (each.ready, each.done) if i >= 0}
    out = []
    for lane in sorted(set(schedule.lane.tolist())):
        out += _of_lane(schedule, parts, lane, weight, most)
    for start in out:
        signals = [
            (int(schedule.signals.semaphore[i]), int(schedule.signals.add[i]))
            for i in np.flatnonzero(np.isin(schedule.signal_row, start.rows))
        ]
        told = [add for semaphore, add in signals if semaphore not in peers]
        heavy = any(schedule.rows.size[row] for row in start.rows) or len(told) > DIRECT or any(x != 1 for x in told)
        start.dma = start.ring or heavy
        start.direct = bool(told) and not start.dma
    for walk in dict.fromkeys(start.walk for start in out):
        _mark(schedule, [start for start in out if start.walk == walk])
    return out


def _mark(schedule: Schedule, walk: list[Start]) -> None:
    """Say of the starts of one walk which are fenced, whose signals go out at once, and which tell their completion."""
    busy, last = False, None
    for i, start in enumerate(walk):
        if schedule.rows.fence[start.rows[0]] and not start.ring and i:
            start.fence = busy
            busy, last = False, None if busy else last
        if start.direct and busy:
            start.direct, start.dma = False, True
        busy |= start.dma
        if start.dma:
            start.completes = True
            if last is not None and not start.ring:
                last.completes = False
            last = start


def _of_lane(schedule: Schedule, parts: Any, lane: int, weight: list[int], most: int) -> list[Start]:
    rows, out = schedule.rows, []
    before: tuple[Any, ...] | None = None
    load, part, half, previous = 0, 0, max(most // 2, 1), 0
    for row in np.flatnonzero(schedule.lane == lane).tolist():
        activity = int(parts.of_row[row])
        ring = parts.table[activity].ring
        step = (int(rows.leg[row]), int(rows.step[row]), int(rows.part[row]))
        name = (activity, *(step if ring else ()))
        waits = schedule.waits.ptr[row] < schedule.waits.ptr[row + 1]
        if before is None or before != name or (not ring and (waits or rows.fence[row])):
            out.append(Start([], (lane, activity), ring))
            load, part = 0, 0
        elif not ring and (load // half != part or max(weight[row], weight[previous]) > half):
            part = load // half
            out.append(Start([], (lane, activity), ring))
        before = name
        load, previous = load + weight[row], row
        out[-1].rows.append(row)
    return out


@settings(max_examples=30)
@given(
    schedule=schedules(most_rows=12),
    names=st.permutations(["recv.0", "event", "x.credit", "other"]),
    most=st.sampled_from([4, 9, 4080]),
    data=st.data(),
)
def test_starts_are_those_of_a_plain_loop(schedule: Schedule, names: list[str], most: int, data: Any) -> None:
    """Which rows start together, and what each start is: the columns and the loop agree."""
    named = [replace(each, name=name) for each, name in zip(schedule.semaphores, names, strict=False)]
    schedule = replace(schedule, semaphores=tuple(named))
    weight = data.draw(st.lists(st.integers(1, 5), min_size=len(schedule), max_size=len(schedule)))
    try:
        found, owner = starts_of(schedule, weight=weight, most=most)
    except UnsupportedError:
        return
    want = slow_launches(schedule, weight, most)
    assert [np.flatnonzero(np.array(owner) == i).tolist() for i in range(found.first.size)] == [s.rows for s in want]
    for name in ("ring", "fence", "dma", "direct", "completes"):
        assert getattr(found, name).tolist() == [getattr(start, name) for start in want], name
    last = [i + 1 == len(want) or want[i + 1].walk != start.walk for i, start in enumerate(want)]
    assert found.last.tolist() == last
