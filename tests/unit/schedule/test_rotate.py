"""Schedules run again: the slots of their rings go on where the runs before left them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.backtoback import twice
from tests.unit.emit.by_hand import schedule_of

from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.pipeline import How, prove
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.schedule.rotate import rotated, used_slots
from rota.select.settings import Settings
from rota.verify import find_order

TRN2 = load_platform("trn2.48xlarge")
KINDS = (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER)
RINGS = (Algorithm.RING, Algorithm.KANGARING)


@cache
def composed(kind: EncOp, algorithm: Algorithm, ranks: int = 16, slots: int = 8) -> Schedule:
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    request = Request(kind, Dtype.BFLOAT16, ranks * 40, (tuple(range(ranks)),), op)
    return prove(request, TRN2, How(Settings(slots=slots), algorithm=algorithm, verify=False)).schedule


def internal(schedule: Schedule) -> list[int]:
    return [number for number, buffer in enumerate(schedule.buffers) if not buffer.user]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", RINGS)
def test_a_run_behind_another_is_in_order(algorithm: Algorithm, kind: EncOp) -> None:
    """Twice in a row with slots that go on: nothing is overwritten before it is read. Compose §2.1."""
    assert find_order(twice(composed(kind, algorithm))) == []


@pytest.mark.parametrize(("algorithm", "slots"), [(Algorithm.RING, 7), (Algorithm.KANGARING, 5)])
def test_a_run_that_begins_with_the_first_slot_again_is_not(algorithm: Algorithm, slots: int) -> None:
    """Where a run does not go through all slots a whole number of times."""
    schedule = composed(EncOp.REDUCE_SCATTER, algorithm, slots=slots)
    used = [used_slots(schedule, number) % schedule.buffers[number].size for number in internal(schedule)]
    assert any(used)
    assert find_order(twice(schedule)) == []
    assert find_order(twice(schedule, rotates=False)) != []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slots", [3, 5, 8])
def test_places_in_slots_go_on_and_others_stay(kind: EncOp, slots: int) -> None:
    """By what one run uses, times the runs before, round the buffer; everything else is the same."""
    schedule = composed(kind, Algorithm.RING, 8, slots)
    for turns in (1, 2, 7):
        again = rotated(schedule, turns)
        for before, after in ((schedule.sources, again.sources), (schedule.targets, again.targets)):
            for number, buffer in enumerate(schedule.buffers):
                inside = before.buffer == number
                moved = turns * used_slots(schedule, number)
                want = (before.offset[inside] + moved) % buffer.size if moved else before.offset[inside]
                assert (after.offset[inside] == want).all()
            assert (before.buffer == after.buffer).all()
            assert (before.rank == after.rank).all()
        assert (again.rows, again.waits, again.signals) == (schedule.rows, schedule.waits, schedule.signals)


def test_turns_add_up() -> None:
    """The third run is the second run of the second."""
    schedule = composed(EncOp.REDUCE_SCATTER, Algorithm.RING, 8, 5)
    assert rotated(rotated(schedule, 1), 2) == rotated(schedule, 3)
    assert rotated(schedule, 0) is schedule


def test_a_run_takes_a_slot_for_each_credit() -> None:
    """All slots of a channel are of one size; 14 half-chunks go out of a rank of 8 in a reduce-scatter."""
    schedule = composed(EncOp.REDUCE_SCATTER, Algorithm.RING, 8, 5)
    for number in internal(schedule):
        assert used_slots(schedule, number) == 14 * schedule.buffers[number].size // 5


@pytest.mark.parametrize("algorithm", [Algorithm.MESH, Algorithm.SINGLE_STEP_MESH, Algorithm.INTRA_RDH])
def test_what_has_no_slots_does_not_rotate(algorithm: Algorithm) -> None:
    """Meshes and recursive exchanges use the same places in every run."""
    schedule = composed(EncOp.ALLREDUCE, algorithm)
    assert rotated(schedule, 3) is schedule
    assert [used_slots(schedule, number) for number in range(len(schedule.buffers))] == [0] * len(schedule.buffers)


def test_user_buffers_do_not_rotate() -> None:
    """An all-gather has credits and no slots: it sends into the neighbour's output."""
    schedule = composed(EncOp.ALLGATHER, Algorithm.RING, 8)
    again = rotated(schedule, 3)
    user = np.array([buffer.user for buffer in schedule.buffers])
    inside = user[schedule.targets.buffer]
    assert inside.any()
    assert (schedule.targets.offset[inside] == again.targets.offset[inside]).all()
    tiny = schedule_of([], ("credit.0",), ranks=1)
    assert rotated(tiny, 5) is tiny
