"""The oracle itself: its verdicts on schedules that can be judged by eye, and its order against random executions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mutation.mutants import Edit, Mutant, build
from tests.mutation.oracle import Verdict, judge, precedence

from rota.compose.ring import compose_ring
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.schedule.text import parse

HEAD = """schedule 1
ranks 2
buffer input 4 user
buffer output 4 user
buffer slot 4
semaphore ready 0
semaphore recv 0
input input
output output
"""
REQUEST = Request(EncOp.ALLREDUCE, Dtype.FP32, 1, ((0, 1),), CceType.ADD)
FENCED = """0.0 0.0 send : 0.input+0 -> 1.slot+0 4 !1.recv+1
1.0 0.0 send : 1.input+0 -> 0.slot+0 4 !0.recv+1
0.0 0.1 recv_reduce_copy ?recv>=1-1 : 0.slot+0 + 0.input+0 -> 0.output+0 4 add
1.0 0.1 direct_recv ?recv>=1-1 !0.ready+1
0.0 0.2 direct_copy_send | ?ready>=1-1 : 0.output+0 -> 1.output+0 4 !1.recv+1
1.0 0.2 direct_recv ?recv>=1-1
"""


def test_a_right_schedule_is_equivalent() -> None:
    """Nothing is wrong with a small all-reduce in which every access is ordered."""
    assert judge(parse(HEAD + FENCED), REQUEST).verdict is Verdict.EQUIVALENT


def test_without_the_fence_a_row_races_with_the_row_before_it() -> None:
    """A row may start before the row before it has completed; only a fence orders what they touch."""
    judgement = judge(parse(HEAD + FENCED.replace(" | ", " ")), REQUEST)
    assert judgement.verdict is Verdict.RACE
    assert sorted(judgement.rows) == [2, 4]


@pytest.mark.parametrize(
    ("mutant", "verdict"),
    [
        (Mutant(Edit.DROP_WAIT, row=2), Verdict.RACE),  # it reads a slot that may not be written yet
        (Mutant(Edit.DROP_WAIT, row=4), Verdict.EQUIVALENT),  # rank 1 must have sent before anyway
        (Mutant(Edit.DROP_WAIT, row=5), Verdict.NOT_FINISHED),  # rank 1 ends before its output is written
        (Mutant(Edit.DROP_ROW, row=5), Verdict.NOT_FINISHED),
        (Mutant(Edit.DROP_SOURCE, row=2), Verdict.WRONG),
    ],
)
def test_each_edit_makes_the_fault_it_is_known_to_make(mutant: Mutant, verdict: Verdict) -> None:
    """The faults of a schedule of six rows can be checked by eye."""
    assert judge(build(parse(HEAD + FENCED), mutant), REQUEST).verdict is verdict


def test_a_row_that_waits_for_a_signal_after_it_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks that each wait for the other's first send; the constructor, switched off here, would see it first."""
    monkeypatch.setattr("rota.schedule.check.check", lambda _: None)
    rows = FENCED.replace(" send :", " send ?recv>=1-1 :")
    judgement = judge(parse(HEAD + rows), REQUEST)
    assert judgement.verdict is Verdict.DEADLOCK
    assert judgement.rows == (0, 1, 2, 3, 4, 5)


def test_touching_a_rank_that_has_not_begun_is_not_entered() -> None:
    """A write into a user buffer of a rank that may not have started is reported, though no bytes race."""
    rows = """0.0 0.0 direct_copy_send : 0.input+0 -> 1.output+0 4 !1.recv+1
1.0 0.0 direct_recv ?recv>=1-1
1.0 0.1 direct_copy : 1.input+0 -> 1.slot+0 4
"""
    text = HEAD.replace("output 4", "output 8") + rows + "0.0 0.1 direct_copy : 0.input+0 -> 0.output+0 4\n"
    text += "1.0 0.2 direct_copy_send : 1.input+0 -> 0.output+4 4 !0.recv+1\n"
    text += "1.0 0.3 direct_copy : 1.input+0 -> 1.output+4 4\n"
    gather = Request(EncOp.ALLGATHER, Dtype.FP32, 2, ((0, 1),))
    judgement = judge(parse(text + "0.0 0.2 direct_recv ?recv>=1-1\n"), gather)
    assert judgement.verdict is Verdict.NOT_ENTERED
    assert judgement.rows == (0, 1)


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(2, 4), channels=st.integers(1, 2), halves=st.integers(1, 2), seed=st.integers(0, 2**32 - 1))
def test_no_execution_breaks_the_order(ranks: int, channels: int, halves: int, seed: int) -> None:
    """In every random execution, what the oracle calls before has completed when the later row starts."""
    schedule = compose_ring(
        [range(ranks)] * channels,
        kind=EncOp.ALLREDUCE,
        size=32 * ranks * channels * halves,
        op=CceType.ADD,
        halves=halves,
        slots=halves + 1,
    )
    before, stuck = precedence(schedule)
    assert not stuck.any()
    start, end = _execution(schedule, np.random.default_rng(seed))
    x, y = np.nonzero(before)
    assert (end[x] < start[y]).all()
    assert (end[:, None] < start).sum() >= before.sum()


def _execution(schedule: Schedule, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Run the rows in random order, one event at a time; return when each starts and completes."""
    rows = len(schedule)
    value = {(r, s): item.initial for r in range(schedule.ranks) for s, item in enumerate(schedule.semaphores)}
    queues = [np.flatnonzero(schedule.lane == lane).tolist() for lane in np.unique(schedule.lane)]
    begun, done = [0] * len(queues), [0] * len(queues)
    start, end = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for clock in range(2 * rows):
        events = [(q, True) for q in range(len(queues)) if done[q] < begun[q]]
        events += [(q, False) for q in range(len(queues)) if _can_start(schedule, queues[q], begun[q], done[q], value)]
        queue, completes = events[rng.integers(len(events))]
        if completes:
            row = queues[queue][done[queue]]
            done[queue] += 1
            end[row] = clock
            for s in range(schedule.signals.ptr[row], schedule.signals.ptr[row + 1]):
                value[int(schedule.signals.rank[s]), int(schedule.signals.semaphore[s])] += int(schedule.signals.add[s])
            continue
        row = queues[queue][begun[queue]]
        begun[queue] += 1
        start[row] = clock
        for w in range(schedule.waits.ptr[row], schedule.waits.ptr[row + 1]):
            value[int(schedule.rows.rank[row]), int(schedule.waits.semaphore[w])] -= int(schedule.waits.subtract[w])
    return start, end


def _can_start(schedule: Schedule, queue: list[int], begun: int, done: int, value: dict[tuple[int, int], int]) -> bool:
    if begun == len(queue) or (schedule.rows.fence[queue[begun]] and done < begun):
        return False
    row = queue[begun]
    waits = range(schedule.waits.ptr[row], schedule.waits.ptr[row + 1])
    rank = int(schedule.rows.rank[row])
    return all(value[rank, int(schedule.waits.semaphore[w])] >= schedule.waits.at_least[w] for w in waits)
