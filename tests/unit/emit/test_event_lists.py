"""Event lists: records that fire first and then wait, their addresses, and what they count. Sections: device-model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from by_hand import Stages, schedule_of
from hypothesis import given, settings
from test_activities import LISTS, composed
from tests.images import PLATFORMS, TRN2, section, table
from tests.schedules import INPUT, OUTPUT, SCRATCH, Row, schedules

from rota.emit import emit
from rota.errors import UnsupportedError
from rota.isa.config import CONFIGURATIONS, MESH_EVENT
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp, Pattern
from rota.isa.image import PRESET, Section
from rota.isa.spad import SLOT, unpack_control
from rota.request import Request
from rota.schedule.ir import Op, Schedule

REQUEST = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 32, ((0, 1),), CceType.ADD)
HELLO, ARRIVED = 0, 1


def exchange() -> Schedule:
    """Two ranks greet each other, send what they have, and add the two."""
    rows = [Row(r, 0, event=3, signals=[(1 - r, HELLO, 1)]) for r in (0, 1)]
    rows += [
        Row(
            r, 0, event=5, step=1, size=64, sources=[(r, INPUT, 0)], targets=[(1 - r, SCRATCH, 0)],
            waits=[(HELLO, 1, 1)], signals=[(1 - r, ARRIVED, 1)],
        )
        for r in (0, 1)
    ]  # fmt: skip
    rows += [
        Row(
            r, 0, event=7, step=2, size=64, sources=[(r, INPUT, 0), (r, SCRATCH, 0)], targets=[(r, OUTPUT, 0)],
            waits=[(ARRIVED, 1, 1)], op=Op.ADD,
        )
        for r in (0, 1)
    ]  # fmt: skip
    return schedule_of(rows, ("hello", "arrived"))


def images(schedule: Schedule, **more: Any) -> tuple[bytes, ...]:
    return emit(schedule, REQUEST, PLATFORMS[TRN2], algorithm=Algorithm.MESH, **more)


def records(image: bytes, sp: int = 3) -> list[dict[str, Any]]:
    """Return the records of a processor's table, each without its zeros, up to and with the first that is all zero."""
    part = CONFIGURATIONS["cayman"].part("mesh")
    raw = section(image, Section.CONF, sp)
    out = []
    for at in range(part.at, part.end, MESH_EVENT.size):
        out.append({name: value for name, value in MESH_EVENT.decode(raw, at).items() if value})
        if not out[-1]:
            break
    return out


# --- a two-step exchange, typed by hand -------------------------------------------------------------------------------


def test_an_exchange_of_two_ranks() -> None:
    """The whole list of rank 0, checked by hand against device §5 and device-model §2 and §5.5.

    Queue 0 runs on TOP_SP 3, whose block is at 0x83_4000_0000; that of rank 1 is TOP_SP 7, at 0x84_4000_0000. The two
    semaphores are 8 and 9, the completion of the list is 10; READ is at 0x1000, INC at 0x1800. Folds 0 and 1 are
    engines 0 and 1; queue 0 rings at 0x1038, and 0x20000 above.
    """
    assert records(images(exchange())[0]) == [
        {
            "direct_trigger": 1, "direct_trigger_sema[0]": 0x84_4000_1820, "event_type": 3,
            "wait_event": 1, "event_wait_sema": 0x83_4000_1020, "wait_val": 1,
        },
        {
            "dma_trigger": 1, "leg0_m2s_tail_ptr": 0x60_0000_1038, "leg0_s2m_tail_ptr": 0x60_0002_1038,
            "leg0_mask": 3, "event_type": 5, "wait_event": 1, "event_wait_sema": 0x83_4000_1024, "wait_val": 1,
        },
        {
            "dma_trigger": 1, "leg0_m2s_tail_ptr": 0x60_0000_1038, "leg0_s2m_tail_ptr": 0x60_0002_1038,
            "leg0_mask": 3, "event_type": 7, "wait_event": 1, "event_wait_sema": 0x83_4000_1028, "wait_val": 1,
        },
        {},
    ]  # fmt: skip


def test_the_other_rank_of_the_exchange() -> None:
    """Its own semaphores are read, those of rank 0 are raised, and its queues are those of core 2."""
    found = records(images(exchange())[1])
    assert found[0]["direct_trigger_sema[0]"] == 0x83_4000_1820
    assert [each["event_wait_sema"] for each in found[:-1]] == [0x84_4000_1020, 0x84_4000_1024, 0x84_4000_1028]
    assert found[1]["leg0_m2s_tail_ptr"] == 0x60_2000_1038


def test_the_slot_program_of_an_exchange() -> None:
    """Slot 0, one entry for each start with descriptors, none repeated, the last one flagged; then the mark. §5.5."""
    image = images(exchange())[0]
    raw = section(image, Section.SLOT, 24)
    # 32 bytes and a signal on each fold; then two sources, the sum, and the completion
    assert np.frombuffer(raw[:-16], SLOT.dtype).tolist() == [(2, 2, 1, 0), (3, 2, 1, 1)]
    assert [index for kind, index in table(image) if kind is Section.SLOT] == [24]


def test_the_control_entry_of_an_exchange() -> None:
    """A mesh that begins at record 0 and counts from bit 4 on; the other processors have nothing to do. §4, §5.5."""
    image = images(exchange())[0]
    entry = unpack_control(section(image, Section.CTRL, 3))
    assert (entry.pattern, entry.algo_type, entry.first_event) == (Pattern.MESH, Algorithm.MESH, 0)
    assert (entry.sema_shift_offset, entry.sema_mask, entry.reporter) == (4, 0x0FFF, True)
    assert [section(image, Section.CTRL, sp) for sp in range(3)] == [bytes(8)] * 3


@pytest.mark.parametrize("folds", [1, 2, 4, 8, 16])
def test_a_signal_adds_sixteen_on_all_folds_together(folds: int) -> None:
    """Each fold adds its share, so wait_val counts ranks and never folds. §5.5."""
    image = images(exchange(), folds=folds)[0]
    assert np.frombuffer(section(image, Section.MEM, 0x80), "<u4").tolist() == [16 // folds]


# --- in which order ---------------------------------------------------------------------------------------------------


def one_rank(*rows: Row, names: tuple[Any, ...] = ("a", "b", "c")) -> Stages:
    return Stages(schedule=schedule_of(list(rows), names, ranks=1))


def copy(number: int, **more: Any) -> Row:
    return Row(0, 0, size=64, sources=[(0, INPUT, 64 * number)], targets=[(0, OUTPUT, 64 * number)], **more)


def script(stages: Stages, number: int = 0) -> list[tuple[str, Any]]:
    """Return what a list does, in order: ("dma", engines), ("direct", semaphores), ("wait", (id, value))."""
    lists = stages.emitted.lists
    out: list[tuple[str, Any]] = []
    for record in lists.records[lists.ptr[number] : lists.ptr[number + 1]]:
        if record["dma_trigger"]:
            out.append(("dma", int(record["leg0_mask"])))
        if record["direct_trigger"]:
            told = [int(address) for address in record["direct_trigger_sema"] if address]
            out.append(("direct", [(address - 0x1800 & 0xFFF) // 4 for address in told]))
        if record["wait_event"]:
            address = int(record["event_wait_sema"])
            assert address & 0xFFFFF >= 0x1000
            out.append(("wait", ((address - 0x1000 & 0xFFF) // 4, int(record["wait_val"]))))
    return out


def test_a_record_fires_and_then_waits() -> None:
    """A wait stands in the record of the start before it: an event may wait on its own semaphore. §5.5, fire first."""
    stages = one_rank(copy(0, signals=[(0, 0, 1)]), copy(1, waits=[(0, 1, 1)]))
    assert script(stages) == [("dma", 3), ("wait", (8, 1)), ("dma", 3), ("wait", (9, 1))]
    assert stages.emitted.lists.records.size == 2


def test_a_list_that_begins_with_a_wait_has_a_record_for_it() -> None:
    """It fires nothing."""
    schedule = schedule_of([copy(0, waits=[(0, 1, 1)], signals=[(0, 0, 1)])], (("a", 1),), ranks=1)
    stages = Stages(schedule=schedule)
    records = stages.emitted.lists.records
    assert (records["dma_trigger"].tolist(), records["wait_event"].tolist()) == ([0, 1], [1, 1])


def test_several_semaphores_are_waited_for_one_after_another() -> None:
    """The first in the record of the start before, each of the others in a record of its own. wait_val is the sum."""
    rows = [Row(0, 0, signals=[(0, 0, 1), (0, 1, 2), (0, 2, 1)]), copy(0, waits=[(0, 1, 1), (1, 2, 2), (2, 1, 1)])]
    stages = one_rank(*rows)
    assert script(stages) == [
        ("dma", 3), ("wait", (8, 1)), ("wait", (9, 2)), ("wait", (10, 1)), ("dma", 3), ("wait", (11, 1))
    ]  # fmt: skip
    assert stages.emitted.lists.records.size == 4


def test_a_fence_waits_for_what_the_list_has_started() -> None:
    """Its own completion, behind the semaphores of the row; the end of the list waits for what is started since."""
    rows = [copy(0), copy(1, signals=[(0, 0, 1)]), copy(2, fence=True, waits=[(0, 1, 1)]), copy(3)]
    stages = one_rank(*rows)
    assert script(stages) == [("dma", 3), ("wait", (8, 1)), ("wait", (9, 1)), ("dma", 3), ("wait", (9, 1))]


def test_nothing_is_waited_for_where_nothing_is_started() -> None:
    """Direct triggers and waits alone have no completion. §5.4."""
    rows = [Row(0, 0, signals=[(0, 0, 1), (0, 1, 1)]), Row(0, 0, waits=[(0, 1, 1), (1, 1, 1)])]
    stages = one_rank(*rows)
    assert script(stages) == [("direct", [8, 9]), ("wait", (8, 1)), ("wait", (9, 1))]
    assert not stages.emitted.rings.tx.size
    image = emit(stages.schedule, replace(REQUEST, groups=((0,),)), PLATFORMS[TRN2], algorithm=None)[0]
    assert len(section(image, Section.SLOT, 24)) == 16, "a mark and its address"
    assert not [kind for kind, _ in table(image) if kind in (Section.TX, Section.RX, Section.MEM)]


def test_an_events_name_is_that_of_the_row_that_fires() -> None:
    stages = one_rank(copy(0, event=4, signals=[(0, 0, 1)]), copy(1, event=9, waits=[(0, 1, 1)]))
    assert stages.emitted.lists.records["event_type"].tolist() == [4, 9]


def slow_script(stages: Stages, lane: int) -> Iterator[tuple[str, Any]]:
    """Yield what the lists of a lane do, start by start."""
    starts, schedule, shape = stages.plan.starts, stages.schedule, stages.shape
    busy = False
    for start in np.flatnonzero(starts.lane == lane).tolist():
        done = int(shape.own[starts.activity[start]][3])
        rows = np.flatnonzero(stages.plan.owner == start)
        for wait in np.flatnonzero(np.isin(schedule.wait_row, rows)):
            semaphore = int(schedule.waits.semaphore[wait])
            yield "wait", (int(shape.identity[semaphore]), int(schedule.waits.at_least[wait]))
        if starts.fence[start]:
            yield "wait", (done, 1)
            busy = False
        if starts.dma[start]:
            yield "dma", 3
            busy = True
        if starts.direct[start]:
            told = schedule.signals.semaphore[np.isin(schedule.signal_row, rows)]
            yield "direct", shape.identity[told.astype(np.int64)].tolist()
        if busy and starts.last[start]:
            yield "wait", (done, 1)
            busy = False


@settings(max_examples=25)
@given(schedule=schedules(most_rows=12))
def test_a_list_does_what_its_starts_are(schedule: Schedule) -> None:
    """Record after record, in the order of the queue, and nothing else; whole waits only."""
    wanted = replace(schedule.waits, subtract=schedule.waits.at_least)
    exact = bool((wanted.subtract == schedule.waits.subtract).all())
    stages = Stages(schedule=schedule)
    try:
        lists = stages.emitted.lists
    except UnsupportedError as error:
        assert not exact or "wait on it" in str(error) or "at once" in str(error)  # noqa: PT017
        return
    assert exact
    if len(set(stages.parts.of_row.tolist())) == len(set(schedule.rows.queue.tolist())):
        assert lists.lane.tolist() == np.unique(schedule.lane).tolist()
        for number, lane in enumerate(lists.lane.tolist()):
            assert script(stages, number) == list(slow_script(stages, lane))


@pytest.mark.parametrize("algorithm", LISTS)
def test_lists_of_composers_do_what_their_starts_are(algorithm: Algorithm) -> None:
    """The same of 16 ranks' meshes and recursive exchanges, each leg its own list."""
    stages = Stages(schedule=composed(algorithm), algorithm=algorithm)
    lists = stages.emitted.lists
    for lane in np.unique(lists.lane).tolist():
        got = [each for number in np.flatnonzero(lists.lane == lane) for each in script(stages, number)]
        assert got == list(slow_script(stages, lane))


# --- what they count --------------------------------------------------------------------------------------------------


def test_the_second_run_counts_from_bit_20() -> None:
    """Its signals are worth 1 << 20, so they cannot be taken for those of the first. §5.5, parity."""
    first, second = (Stages(schedule=exchange(), turn=turn).plan for turn in (0, 1))
    assert (first.parity, second.parity) == (0, 1)
    assert set(first.told.value.tolist()) == {8}
    assert set(second.told.value.tolist()) == {1 << 19}


def test_a_list_with_a_value_at_the_start_keeps_its_parity() -> None:
    """What the first run leaves is what the second begins with."""
    rows = [copy(0, waits=[(0, 1, 1)], signals=[(0, 0, 1)])]
    schedule = schedule_of(rows, (("a", 1),), ranks=1)
    for turn in (0, 1):
        assert Stages(schedule=schedule, turn=turn).plan.parity == 0
    image = emit(schedule, replace(REQUEST, groups=((0,),)), PLATFORMS[TRN2], algorithm=None)[0]
    assert np.frombuffer(section(image, Section.SEMA), PRESET.dtype).tolist() == [(3, 8, 16)]


@pytest.mark.parametrize(("units", "taken"), [(1, 0), (2, 1), (2048, 2048)])
def test_an_event_takes_what_it_waits_for(units: int, taken: int) -> None:
    """The record has one value, and 2047 is the most that fits beside the other parity. §5.5."""
    rows = [Row(0, 0, signals=[(0, 0, units)]), Row(0, 0, waits=[(0, units, taken)])]
    rows += [Row(0, 0, waits=[(0, units - taken, units - taken)])] if units > taken else []
    with pytest.raises(
        UnsupportedError, match=f"waits for {units} and takes {taken}; an event takes what it waits for"
    ):
        _ = one_rank(*rows).emitted


def test_the_table_has_room_for_108_records() -> None:
    """A list of 107 and its end fit; one more does not. Device §5."""

    def steps(count: int) -> Schedule:
        rows = [copy(0, signals=[(0, 0, 1)])]
        rows += [Row(0, 0, waits=[(0, 1, 1)], signals=[(0, 0, 1)]) for _ in range(count - 2)]
        return schedule_of([*rows, Row(0, 0, waits=[(0, 1, 1)])], ("a",), ranks=1)

    one = replace(REQUEST, groups=((0,),))
    # each row but the last starts something, and the last start says it has completed: one record for each wait
    image = emit(steps(107), one, PLATFORMS[TRN2], algorithm=None)[0]
    assert len(records(image)) == 108
    with pytest.raises(UnsupportedError, match="mesh event overflow: 109 records on one TOP_SP, cayman has 108"):
        emit(steps(108), one, PLATFORMS[TRN2], algorithm=None)
