"""Every mutant of a ring is caught with a row named, or is equivalent, or needs the analysis of order.

`pytest -s tests/mutation/test_mutation.py` shows the table of who caught what; `python tests/mutation/survey.py` makes
the whole one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from mutants import Drop, build, mutants
from oracle import Verdict, judge
from survey import CASES, GRAIN, ORDER_VERDICTS, Case, Catcher, Fate, fates, table

from rota.isa.enums import EncOp
from rota.schedule.ir import Leaf

SAMPLE = 75  # mutants of each collective in the default run
ROW = re.compile(r"row \d+ \(rank \d+ channel \d+ leg \d+ step \d+ part \d+ [a-z_]+\)")


@pytest.fixture(scope="module")
def sample() -> Sequence[Fate]:
    return tuple(fates(most=SAMPLE))


def assert_all_caught(results: Sequence[Fate]) -> None:
    """What passes constructor, data proof and device is equivalent, or only the analysis of order can see it."""
    for fate in results:
        if fate.catcher is Catcher.NOBODY:
            assert fate.verdict in ORDER_VERDICTS | {Verdict.EQUIVALENT}, fate
        else:
            assert ROW.search(fate.said), fate


def assert_imbalance_is_seen(results: Sequence[Fate]) -> None:
    """A wait or a signal alone breaks the balance, a pair does not; with the check on, the constructor names a row."""
    for fate in results:
        if fate.catcher in (Catcher.CONSTRUCTOR, Catcher.ROW_ORDER):
            continue
        if fate.mutant.drop in (Drop.WAIT, Drop.SIGNAL):
            assert ROW.search(fate.imbalance), fate
        if fate.mutant.drop in (Drop.PAIR, Drop.SOURCE):
            assert fate.imbalance == "", fate


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_mutated_is_right_to_begin_with(case: Case) -> None:
    """The oracle finds no deadlock, wrong byte, race or missing handshake in the schedules themselves."""
    assert judge(case.schedule(), case.request(), grain=GRAIN).verdict is Verdict.EQUIVALENT


def test_no_mutant_escapes(sample: Sequence[Fate]) -> None:
    """No dropped row, wait, signal, source or pair that deadlocks or spoils data passes; each catch names a row."""
    print("\n" + table(sample))
    assert_all_caught(sample)


def test_balance_sees_what_it_should(sample: Sequence[Fate]) -> None:
    """Every dropped wait or signal that nothing else sees is refused once the balance check is on."""
    assert_imbalance_is_seen(sample)


def test_a_dropped_source_is_named_itself(sample: Sequence[Fate]) -> None:
    """The row that lost a source is the row the message names, and nobody needs a device for it."""
    dropped = [fate for fate in sample if fate.mutant.drop is Drop.SOURCE]
    assert dropped
    for fate in dropped:
        assert fate.catcher in (Catcher.CONSTRUCTOR, Catcher.DATA)
        assert fate.named in fate.said, fate


def test_what_the_analysis_of_order_has_to_catch(sample: Sequence[Fate]) -> None:
    """Left are rows that wait: for a slot, for data, for a peer's permission, or for the end."""
    left = {(fate.verdict, fate.leaf) for fate in sample if fate.verdict in ORDER_VERDICTS}
    waits = {Leaf.SEND, Leaf.RECV_REDUCE_SEND, Leaf.RECV_REDUCE_COPY, Leaf.DIRECT_RECV_SEND, Leaf.DIRECT_RECV}
    assert {leaf for verdict, leaf in left if verdict is Verdict.RACE} <= waits
    assert {leaf for verdict, leaf in left if verdict is Verdict.NOT_ENTERED} <= {Leaf.DIRECT_COPY_SEND}
    assert {leaf for verdict, leaf in left if verdict is Verdict.NOT_FINISHED} <= {Leaf.DIRECT_RECV}


@pytest.mark.parametrize("kind", [EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER])
@pytest.mark.parametrize("channels", [1, 2])
def test_every_mutant_of_three_ranks(kind: EncOp, channels: int) -> None:
    """All edits of a small ring, each wait paired with every signal of its semaphore."""
    results = tuple(fates([Case(kind, 3, channels, 1)], every_pair=True))
    assert {fate.mutant.drop for fate in results} == set(Drop)
    assert_all_caught(results)
    assert_imbalance_is_seen(results)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 7))
def test_no_mutant_of_the_whole_grid_escapes(ranks: int) -> None:
    """N = 2 to 6, 1 and 2 channels, one half and two, every edit."""
    results = tuple(fates(case for case in CASES if case.ranks == ranks))
    assert_all_caught(results)
    assert_imbalance_is_seen(results)


@pytest.mark.parametrize("slots", [3, 8])
def test_a_dropped_credit_wait_is_a_race_only_when_slots_are_used_twice(slots: int) -> None:
    """With more slots than sends nobody waits for a credit, so the wait is equivalent; with few it protects a slot."""
    case = Case(EncOp.REDUCE_SCATTER, 6, slots=slots)
    schedule, request = case.schedule(), case.request()
    credits = [m for m in mutants(schedule) if m.drop is Drop.WAIT and schedule.waits.semaphore[m.entry] == 1]
    verdicts = {judge(build(schedule, mutant), request, grain=GRAIN).verdict for mutant in credits}
    assert verdicts == ({Verdict.RACE} if slots == 3 else {Verdict.EQUIVALENT})
