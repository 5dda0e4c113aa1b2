"""What EMIT refuses, and that the sentence says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from by_hand import schedule_of
from rows import Rows
from tests.images import PLATFORMS, TRN1, TRN2, Ring, table
from tests.schedules import Row

from rota.compose.ring import compose_ring
from rota.emit import emit
from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.image import Section
from rota.request import Request
from rota.schedule.build import Block, Place, Signal, assemble
from rota.schedule.ir import Buffer, Checks, Leaf, Schedule, Semaphore

ONE, TWO = (Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 64, (tuple(range(n)),), CceType.ADD) for n in (1, 2))


def refuse(schedule: Schedule, text: str, *, platform: str = TRN2, **more: Any) -> UnsupportedError:
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 64, (tuple(range(schedule.ranks)),), CceType.ADD)
    with pytest.raises(UnsupportedError, match=text) as caught:
        emit(schedule, request, PLATFORMS[platform], **more)
    return caught.value


def pair(
    *, sources: Any = (), targets: Any = (), waits: Any = (), signals: Any = (), semaphores: Any = (), **more: Any
) -> Schedule:
    """One row of each of two ranks."""
    rank = np.array([0, 1])
    block = Block(
        rank=rank,
        queue=0,
        leaf=Leaf.SEND,
        size=64 if sources else 0,
        sources=sources,
        targets=targets,
        waits=waits,
        signals=signals,
        **more,
    )
    buffers = [Buffer("input", 64, user=True), Buffer("output", 128, user=True)]
    return assemble(
        [block], ranks=2, buffers=buffers, semaphores=semaphores, input=0, output=1, checks=Checks.UNBALANCED
    )


def test_one_queue_has_one_processor_at_a_time() -> None:
    """Two queues of event lists on one processor would be one list; a machine of four takes four. Device-model §5.4."""

    def lists(*queues: int) -> Schedule:
        tells = [Row(0, queue, signals=[(0, i, 1)]) for i, queue in enumerate(queues)]
        waits = [Row(0, queue, waits=[(i, 1, 1)]) for i, queue in enumerate(queues)]
        return schedule_of([*tells, *waits], ["one", "two"], ranks=1)

    refuse(lists(0, 4), "TOP_SP 3: 2 queues of one operation at once, and an event list runs alone")
    assert emit(lists(0, 3), ONE, PLATFORMS[TRN2])


@pytest.mark.parametrize("folds", [3, 5, 6, 7, 12])
def test_folds_share_what_an_event_counts(folds: int) -> None:
    """An event counts 16 for each signal, so the folds are 1, 2, 4, 8 or 16. Device-model §5.5."""
    rows = Rows(sizes=(640,), folds=folds, channel=False)
    with pytest.raises(UnsupportedError, match=f"{folds} folds share what a mesh event counts; use 1, 2, 4, 8 or 16"):
        _ = rows.image
    _ = replace(rows, channel=True).image


def test_trn1_writes_to_one_place() -> None:
    """Its engine has no replication. Sdma §1."""
    schedule = pair(sources=[Place(0, 0)], targets=[Place(1, 0), Place(1, 64)])
    error = refuse(schedule, "sunda writes to one place at a time; use two rows", platform=TRN1)
    assert "row 0 (rank 0 channel 0" in str(error)
    assert error.source is not None
    assert emit(schedule, TWO, PLATFORMS[TRN2])


def test_a_schedule_without_rows_is_refused() -> None:
    schedule = compose_ring([[0]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD, in_place=True)
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 32, ((0,),), CceType.ADD, in_place=True)
    with pytest.raises(UsageError, match="no rows"):
        emit(schedule, request, PLATFORMS[TRN2])


@pytest.mark.parametrize("folds", [0, 17, -1])
def test_folds_are_engines(folds: int) -> None:
    with pytest.raises(UsageError, match="expected 1 to 16"):
        _ = Rows(sizes=(64,), folds=folds).image


def test_a_row_leaves_the_gap_of_the_ring() -> None:
    """4080 descriptors of 4096: the 16-slot guard. Device-model §3, ring size; sdma §14.6."""
    _ = Rows(sizes=(4079 * 65536,)).image
    with pytest.raises(UnsupportedError, match=r"needs 4081 descriptors on one of 1 folds.*use more folds") as caught:
        _ = Rows(sizes=(4080 * 65536,)).image
    assert caught.value.source is not None
    assert caught.value.source.page == "sdma"
    _ = Rows(sizes=(4080 * 65536,), folds=2).image


def test_a_channel_counts_to_65535() -> None:
    """The counter of an operation is 16 bits wide, for TX and RX each. Sdma §7."""
    rows = (4000 * 65536,) * 16
    _ = Rows(sizes=(*rows, 1518 * 65536)).image  # 16 x 4001 + 1519 = 65535
    with pytest.raises(UnsupportedError, match="needs 65536 descriptors for one operation") as caught:
        _ = Rows(sizes=(*rows, 1519 * 65536)).image
    assert "use a smaller size" in str(caught.value)
    reads = (2000 * 4096,) * 16  # each packet reads twice
    with pytest.raises(UnsupportedError, match="for one operation"):
        _ = Rows(sizes=(*reads, 767 * 4096), sources=2).image


def test_buffers_fit_the_memory_of_a_rank() -> None:
    """16 GiB for each core of the rank; beyond lies another rank's window. Device-model §2."""
    window = {TRN1: 1 << 34, TRN2: 2 << 34}
    for platform, size in window.items():
        rows = Rows(sizes=(64,), platform_name=platform)
        room = size - 0x1000 - 128  # behind the first buffer's address and the output
        fits = replace(rows.schedule, buffers=(Buffer("input", room, user=True), Buffer("output", 128, user=True)))
        larger = replace(
            rows.schedule, buffers=(Buffer("input", room + 1, user=True), Buffer("output", 128, user=True))
        )
        request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 32, ((0,),), CceType.ADD)
        assert emit(fits, request, PLATFORMS[platform])
        with pytest.raises(UnsupportedError, match=f"a rank of {platform} has {size}; use a smaller size"):
            emit(larger, request, PLATFORMS[platform])


@pytest.mark.parametrize("folds", [1, 2, 8])
def test_16_engines_have_16_queues_each(folds: int) -> None:
    """Channel c uses queue c mod 16 of the (c div 16)-th set of engines, and no two share one. Sdma §1."""
    most = min(16 // folds * 16, 24)
    ring = Ring(groups=((0, 1),), orders=((0, 1),) * most, count=64, folds=folds)
    used = {index for kind, index in table(ring.images[0]) if kind is Section.TX}
    assert used == {(c // 16 * folds + fold) * 16 + c % 16 for c in range(most) for fold in range(folds)}


def test_the_engines_have_no_more_queues() -> None:
    """Sixteen folds use every engine for sixteen channels, ten folds do not fit twice."""
    for folds, orders in ((16, 17), (10, 17)):
        ring = Ring(groups=((0, 1),), orders=((0, 1),) * orders, count=64, folds=folds)
        with pytest.raises(
            UnsupportedError, match=rf"{orders} queues of {folds} folds: 16 engines of 16 queues"
        ) as caught:
            _ = ring.images
        assert caught.value.source is not None
    with pytest.raises(UnsupportedError, match="take at most 16"):
        _ = ring.images


@pytest.mark.parametrize(("platform", "slots"), [(TRN1, 18), (TRN2, 24)])
def test_a_processor_has_6_slots(platform: str, slots: int) -> None:
    ring = Ring(platform_name=platform, groups=((0, 1),), orders=((0, 1),) * (slots + 1), count=64)
    with pytest.raises(UnsupportedError, match=f"with 6 slots each take at most {slots}"):
        _ = ring.images


@pytest.mark.parametrize("halves", [1, 2])
def test_fewer_credits_than_sends_before_the_first_receive_and_one_are_refused(halves: int) -> None:
    """Device-model §5.3; design §2 (16). Where such a ring would wait for itself, the schedule is refused before; two
    ranks would get through, and the rule holds for them too.
    """
    ring = Ring(groups=((0, 1),), orders=((0, 1),), slots=4, halves=halves)
    for credit in (halves, halves + 1):
        semaphores = tuple(replace(each, initial=credit if each.initial else 0) for each in ring.schedule.semaphores)
        schedule = replace(ring.schedule, semaphores=semaphores)
        if credit == halves:
            with pytest.raises(UnsupportedError, match=f"a credit of at least {halves + 1}, and has {credit}"):
                emit(schedule, ring.request, ring.platform)
        else:
            assert emit(schedule, ring.request, ring.platform)


def test_a_slot_program_fits_its_region() -> None:
    """0x8000 bytes of SPAD: rows that alternate cannot repeat. Device §2.3."""
    sizes = (64, 70_000) * 2050  # each fold has two descriptors of one row, and three of the next
    with pytest.raises(UnsupportedError, match=r"TOP_SP 3 slot 0 overflow.*use a smaller size"):
        _ = Rows(sizes=sizes).image


def test_signals_have_at_most_16_values() -> None:
    """The feed area has 16 words. Device-model §2."""
    values = np.arange(1, 18)
    block = Block(
        rank=np.zeros(17, np.int64),
        queue=0,
        leaf=Leaf.POST_RECV,
        size=0,
        step=np.arange(17),
        signals=[Signal(np.zeros(17, np.int64), 0, values)],
    )
    schedule = assemble(
        [block],
        ranks=1,
        buffers=[Buffer("input", 64, user=True), Buffer("output", 64, user=True)],
        semaphores=[Semaphore("recv.0")],
        input=0,
        output=1,
        checks=Checks.UNBALANCED,
    )
    refuse(schedule, "17 different signal values")
