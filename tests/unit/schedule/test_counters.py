"""Semaphores as counters, against a loop over the rows that keeps every value."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from tests.schedules import schedules

from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.schedule.counters import counters, releases
from rota.schedule.ir import Schedule
from rota.schedule.text import parse


def slow_counters(schedule: Schedule) -> list[tuple[int, int, int]]:
    """Return (key, threshold, additions before) of every wait, row after row."""
    added: defaultdict[tuple[int, int], int] = defaultdict(int)
    spent: defaultdict[tuple[int, int], int] = defaultdict(int)
    found = []
    for row in range(len(schedule)):
        rank = int(schedule.rows.rank[row])
        for wait in range(int(schedule.waits.ptr[row]), int(schedule.waits.ptr[row + 1])):
            at = rank, int(schedule.waits.semaphore[wait])
            initial = schedule.semaphores[at[1]].initial
            threshold = int(schedule.waits.at_least[wait]) + spent[at] - initial
            found.append((rank * len(schedule.semaphores) + at[1], threshold, added[at]))
            spent[at] += int(schedule.waits.subtract[wait])
        for signal in range(int(schedule.signals.ptr[row]), int(schedule.signals.ptr[row + 1])):
            at = int(schedule.signals.rank[signal]), int(schedule.signals.semaphore[signal])
            added[at] += int(schedule.signals.add[signal])
    return found


def slow_releases(schedule: Schedule) -> list[tuple[int, int]]:
    """Return (wait, signal) where the signal is the one in stored order that brings its counter to the threshold."""
    pairs = []
    for wait, (key, threshold, _) in enumerate(slow_counters(schedule)):
        total = 0
        for signal in range(schedule.signals.add.size):
            at = int(schedule.signals.rank[signal]) * len(schedule.semaphores) + int(schedule.signals.semaphore[signal])
            total += int(schedule.signals.add[signal]) if at == key else 0
            if at == key and threshold > 0 and total >= threshold:
                pairs.append((wait, signal))
                break
    return pairs


@settings(max_examples=60, deadline=None)
@given(schedule=schedules())
def test_thresholds_and_additions(schedule: Schedule) -> None:
    """A wait holds iff additions so far >= at_least + what earlier waits took - initial. Source: schedule §2 (4)."""
    table = counters(schedule)
    assert list(zip(table.key.tolist(), table.threshold.tolist(), table.before.tolist(), strict=True)) == slow_counters(
        schedule
    )
    assert (table.before >= table.threshold).all()  # what the constructor admits


@settings(max_examples=60, deadline=None)
@given(schedule=schedules())
def test_the_signal_that_releases_a_wait(schedule: Schedule) -> None:
    """Every wait that needs a signal is paired with the one that reaches its threshold, and no other wait is."""
    wait, signal = releases(schedule)
    assert list(zip(wait.tolist(), signal.tolist(), strict=True)) == slow_releases(schedule)


def test_credits_and_receives_of_a_ring() -> None:
    """Two credits: the third send needs the first credit back; the n-th receive needs the n-th post."""
    schedule = parse(
        """schedule 1
        ranks 1
        buffer input 8 user
        semaphore recv 0
        semaphore credit 2
        input input
        output input
        """.replace("        ", "")
        + "\n".join(
            [
                "0.0 0.0 post_send ?credit>=1-1 !0.recv+1",
                "0.0 0.1 post_send ?credit>=1-1 !0.recv+1",
                "0.1 0.0 post_recv ?recv>=1-1 !0.credit+1",
                "0.0 0.2 post_send ?credit>=1-1 !0.recv+1",
                "0.1 0.1 post_recv ?recv>=1-1 !0.credit+1",
                "0.1 0.2 post_recv ?recv>=1-1 !0.credit+1",
            ]
        )
    )
    assert counters(schedule).threshold.tolist() == [-1, 0, 1, 1, 2, 3]
    wait, signal = releases(schedule)
    assert list(zip(schedule.wait_row[wait].tolist(), schedule.signal_row[signal].tolist(), strict=True)) == [
        (2, 0),
        (3, 2),
        (4, 1),
        (5, 3),
    ]


def test_more_semaphores_than_16_bits() -> None:
    """Counters are told apart where ranks x semaphores exceed 65,536: 17,000 pairs of ranks, two semaphores each."""
    pairs = np.tile([0, 1], (1, 17_000, 1))
    schedule = compose_ring(pairs, kind=EncOp.REDUCE_SCATTER, size=128, op=CceType.ADD, halves=1, slots=3)
    table = counters(schedule)
    assert int(table.key.max()) >= 1 << 16
    assert list(zip(table.key.tolist(), table.threshold.tolist(), table.before.tolist(), strict=True)) == slow_counters(
        schedule
    )
    wait, signal = releases(schedule)
    senders, receivers = schedule.rows.rank[schedule.signal_row[signal]], schedule.rows.rank[schedule.wait_row[wait]]
    assert wait.size == 2 * 17_000
    assert (senders == (receivers ^ 1)).all()


def test_a_schedule_without_semaphores() -> None:
    """No waits, no counters."""
    schedule = parse("schedule 1\nranks 1\nbuffer b 8 user\ninput b\noutput b\n0.0 0.0 direct_recv\n")
    assert counters(schedule).key.size == 0
    assert [found.size for found in releases(schedule)] == [0, 0]
