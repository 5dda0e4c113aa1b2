"""Every mutant of every family is caught with a row named, or is equivalent.

`pytest -s tests/mutation/test_mutation.py` shows the tables of who caught what; `python -m tests.mutation.survey` makes
the whole ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from tests.mutation.device_catcher import catch
from tests.mutation.mutants import SINGLE, Edit, build, mutants, rows_of
from tests.mutation.oracle import Verdict, judge
from tests.mutation.survey import COMPOSERS, FAMILIES, RINGS, VERDICTS, Case, Catcher, Fate, fates, ring, table

from rota.errors import VerifyError
from rota.isa.enums import EncOp
from rota.schedule.ir import Checks
from rota.verify import executable, find_order, verify

SAMPLE = 32  # mutants of each collective in the default run
ROW = re.compile(r"row \d+ \(rank \d+ channel \d+ leg \d+ step \d+ part \d+ [a-z_]+\)")
BALANCED = frozenset({Edit.PAIR, Edit.DROP_SOURCE, Edit.TWICE_SOURCE, Edit.SHIFT_SOURCE, Edit.SHIFT_TARGET})


@pytest.fixture(scope="module")
def sample() -> Sequence[Fate]:
    return tuple(fates(RINGS, most=SAMPLE))


def assert_all_caught(results: Sequence[Fate]) -> None:
    """What passes the constructor and both proofs is equivalent; each catch names a row."""
    for fate in results:
        if fate.catcher is Catcher.NOBODY:
            assert fate.verdict is Verdict.EQUIVALENT, fate
        else:
            assert ROW.search(fate.said), fate


def assert_imbalance_is_seen(results: Sequence[Fate]) -> None:
    """A wait or a signal alone breaks the balance, a pair does not; with the check on, the constructor names a row."""
    for fate in results:
        if fate.catcher is Catcher.CONSTRUCTOR:
            continue
        if fate.mutant.edit in SINGLE:
            assert ROW.search(fate.imbalance), fate
        if fate.mutant.edit in BALANCED and " waits for " not in fate.imbalance:
            assert fate.imbalance == "", fate


@pytest.mark.parametrize("case", [*RINGS, *FAMILIES, *COMPOSERS], ids=str)
def test_what_is_mutated_is_right_to_begin_with(case: Case) -> None:
    """The oracle finds no deadlock, wrong byte, race or missing handshake in the schedules themselves."""
    assert judge(case.make(), case.request, grain=case.grain).verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize("case", FAMILIES, ids=str)
def test_both_proofs_pass_each_family(case: Case) -> None:
    """What is mutated has no finding, of order or of data, in place and out of place."""
    verify(case.make(), case.request)


def test_no_mutant_of_a_ring_survives(sample: Sequence[Fate]) -> None:
    """No dropped, doubled, moved or swapped row, wait, signal, source or target that changes anything passes."""
    print("\n" + table(sample))
    assert {fate.mutant.edit for fate in sample} == set(Edit)
    assert_all_caught(sample)


def test_no_mutant_of_another_family_survives() -> None:
    """The same for meshes, KangaRing, recursive doubling, hierarchies, all-to-all and permute."""
    results = tuple(fates(FAMILIES, most=SAMPLE))
    print("\n" + table(results))
    assert_all_caught(results)


def test_no_mutant_of_what_is_composed_survives() -> None:
    """The same for the schedules of the package's own composers, whatever the machine."""
    results = tuple(fates(COMPOSERS, most=SAMPLE // 4))
    print("\n" + table(results))
    assert_all_caught(results)


def test_balance_sees_what_it_should(sample: Sequence[Fate]) -> None:
    """Every dropped or doubled wait or signal is refused once the balance check is on."""
    assert_imbalance_is_seen(sample)


def test_a_dropped_source_is_named_itself(sample: Sequence[Fate]) -> None:
    """The row that lost a source is named by the data proof, or the row whose bytes nobody reads any more is."""
    dropped = [fate for fate in sample if fate.mutant.edit is Edit.DROP_SOURCE]
    assert dropped
    for fate in dropped:
        assert fate.catcher in (Catcher.CONSTRUCTOR, Catcher.DATA, Catcher.NEVER_READ), fate
        assert fate.catcher is Catcher.NEVER_READ or fate.named in fate.said, fate


def test_each_dropped_wait_is_caught_by_order_or_balance(sample: Sequence[Fate]) -> None:
    """A wait less lets rows run early: no value in the stored order changes, so only order and balance can see it."""
    dropped = [fate for fate in sample if fate.mutant.edit is Edit.DROP_WAIT]
    assert {fate.catcher for fate in dropped} == {Catcher.ORDER, Catcher.BALANCE}


def test_the_device_agrees_about_what_is_equivalent(sample: Sequence[Fate]) -> None:
    """What passes the proofs runs right on the device in random orders, where its bytes can be loaded at all."""
    left = [fate for fate in sample if fate.catcher is Catcher.NOBODY][::6]
    ran = 0
    for seed, fate in enumerate(left):
        broken = executable(build(fate.case.make(), fate.mutant, checks=Checks.FORM))
        said = catch(broken, fate.case.request, seed)
        assert said is None or said.startswith("not loadable"), (fate, said)
        ran += said is None
    assert ran > len(left) // 2


@pytest.mark.parametrize("kind", [EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER])
def test_every_mutant_of_three_ranks(kind: EncOp) -> None:
    """All edits of a small ring, each wait paired with every signal of its semaphore, none caught without reason."""
    results = tuple(fates([ring(kind, 3)], every_pair=True, judged=True))
    assert_all_caught(results)
    assert_imbalance_is_seen(results)
    for fate in results:
        if fate.rule in VERDICTS:
            assert fate.verdict in VERDICTS[fate.rule], fate


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 7))
def test_no_mutant_of_all_rings_survives(ranks: int) -> None:
    """N = 2 to 6, 1 and 2 channels, one half and two, every edit."""
    results = tuple(fates(case for case in RINGS if case.ranks == ranks))
    assert_all_caught(results)
    assert_imbalance_is_seen(results)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*FAMILIES, *COMPOSERS], ids=str)
def test_no_mutant_of_all_families_survives(case: Case) -> None:
    """Every edit of every other family, and of what is composed."""
    results = tuple(fates([case], every_pair=True))
    print("\n" + table(results))
    assert_all_caught(results)


@pytest.mark.parametrize("slots", [3, 8])
def test_a_dropped_credit_wait_is_a_race_only_when_slots_are_used_twice(slots: int) -> None:
    """With more slots than sends nobody waits for a credit, so the wait is equivalent; with few it protects a slot."""
    case = ring(EncOp.REDUCE_SCATTER, 6, slots=slots)
    schedule = case.make()
    credit = [semaphore.name.startswith("credit") for semaphore in schedule.semaphores]
    rows = rows_of(schedule)
    dropped = [
        build(schedule, mutant)
        for mutant in mutants(schedule)
        if mutant.edit is Edit.DROP_WAIT and credit[rows[mutant.row].waits[mutant.entry][0]]
    ]
    verdicts = {judge(broken, case.request, grain=case.grain).verdict for broken in dropped}
    assert verdicts == ({Verdict.RACE} if slots == 3 else {Verdict.EQUIVALENT})
    assert {find_order(broken)[0].rule for broken in dropped} == {"slot_reuse" if slots == 3 else "unbalanced"}


def test_every_edit_of_a_schedule_is_another_schedule() -> None:
    """A mutant differs from what it is made of, or the constructor refuses it."""
    case = ring(EncOp.ALLREDUCE, 3)
    schedule = case.make()
    refused, every = 0, list(mutants(schedule))
    for mutant in every:
        try:
            assert build(schedule, mutant, checks=Checks.FORM) != schedule
        except VerifyError:
            refused += 1
    assert 0 < refused < len(every) // 4
