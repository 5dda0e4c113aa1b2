"""What EMIT refuses, and that the sentence says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rows import Rows
from tests.images import PLATFORMS, TRN1, TRN2, Ring

from rota.compose.ring import compose_ring
from rota.emit import emit
from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request
from rota.schedule.build import Block, Place, Signal, Wait, assemble
from rota.schedule.ir import Buffer, Checks, Leaf, Op, Schedule, Semaphore


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


def test_a_pull_is_refused() -> None:
    """Sources lie in the own rank. Device-model §7, push model."""
    other = np.array([1, 0])
    error = refuse(pair(sources=[Place(0, 0, other)], targets=[Place(1, 0)]), "reads another rank's memory")
    assert "row 0 (rank 0 channel 0" in str(error)


def test_a_duplication_is_refused() -> None:
    refuse(pair(sources=[Place(0, 0)], targets=[Place(1, 0), Place(1, 64)]), "one target a row")


@pytest.mark.parametrize("sources", [[Place(0, 0)], [Place(0, 0), Place(1, 64)]])
def test_fma_is_refused(sources: list[Place]) -> None:
    """Also one that only scales: it would go out as a plain copy."""
    refuse(pair(sources=sources, targets=[Place(1, 0)], op=Op.FMA), "operation FMA; this version emits ADD, MAX, MIN")


def test_a_semaphore_without_a_role_is_refused() -> None:
    schedule = pair(semaphores=[Semaphore("phase.0")], signals=[Signal(np.array([0, 1]), 0)])
    refuse(schedule, "semaphore phase.0")


@pytest.mark.parametrize("wait", [Wait(0, 2, 2), Wait(0, 1, 0)])
def test_a_channel_waits_for_one_unit(wait: Wait) -> None:
    schedule = pair(semaphores=[Semaphore("recv.0", 2)], waits=[wait])
    refuse(schedule, "waits for one unit")


def test_a_channel_waits_on_its_own_semaphores_only() -> None:
    refuse(pair(semaphores=[Semaphore("recv.1", 1)], waits=[Wait(0)]), "its own semaphores")


def test_a_channel_has_one_neighbour_on_each_side() -> None:
    """Two signals of one role to two ranks: no record could name both. Design §2 (30)."""
    ranks = np.array([0, 1])
    signals = [Signal(ranks, 0), Signal(1 - ranks, 0)]
    error = refuse(pair(semaphores=[Semaphore("recv.0")], signals=signals), "one neighbour on each side")
    assert "row 0" in str(error) or "row 1" in str(error)


def test_moves_of_one_row_have_one_gate() -> None:
    """Two rows of the schedule with one name are one device row; they cannot wait twice for one semaphore."""
    rank = np.array([0, 0])
    block = Block(rank=rank, queue=0, leaf=Leaf.DIRECT_RECV, size=0, waits=[Wait(0)])
    schedule = assemble(
        [block],
        ranks=1,
        buffers=[Buffer("input", 64, user=True), Buffer("output", 64, user=True)],
        semaphores=[Semaphore("recv.0", 2)],
        input=0,
        output=1,
        checks=Checks.UNBALANCED,
    )
    refuse(schedule, "wait twice for one semaphore")


def test_a_member_without_rows_is_refused() -> None:
    rank = np.array([1])
    block = Block(rank=rank, queue=0, leaf=Leaf.DIRECT_COPY, size=64, sources=[Place(0, 0)], targets=[Place(1, 0)])
    buffers = [Buffer("input", 64, user=True), Buffer("output", 64, user=True)]
    schedule = assemble([block], ranks=2, buffers=buffers, semaphores=[], input=0, output=1)
    refuse(schedule, "member 0 has no rows")


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
    with pytest.raises(UnsupportedError, match=r"needs 4081 descriptors on one fold.*use more folds") as caught:
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


@pytest.mark.parametrize(("platform", "most"), [(TRN1, 16), (TRN2, 16)])
def test_an_engine_has_16_queues(platform: str, most: int) -> None:
    """Channel c uses queue c mod 16, and no two share one."""
    order = ((0, 1),)
    ring = Ring(platform_name=platform, groups=((0, 1),), orders=order * most, count=64)
    assert len(ring.images) == 2
    with pytest.raises(UnsupportedError, match=r"17 channels: an engine has 16 queues"):
        _ = replace(ring, orders=order * (most + 1)).images


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
    sizes = (64, 70_000) * 2050
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
