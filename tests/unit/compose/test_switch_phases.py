"""The compose side of the switch: switch_schedule §6 and its checks 2 to 5; design §2 (7), (22), (24)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_switch import A2A, AG, AR, BANDWIDTH, GEN2, LATENCY, MESH, RS, SINGLE, box, plan

from rota.compose.board import Board, Region
from rota.compose.chip_mesh import Shards
from rota.compose.switch.algorithms import (
    Gates,
    Step,
    compose_switch,
    order_of,
    write_all_gather,
    write_all_reduce,
    write_reduce_scatter,
)
from rota.compose.switch.menu import Slot, initialize_trn3pds98
from rota.compose.switch.phases import COMPOSERS, Blocks, broadcast, declare_rooms
from rota.compose.switch.planned import PHASES, Phase
from rota.errors import UsageError, VerifyError
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.machine.platform import load_platform
from rota.schedule.ir import Checks, Leaf, Op, Schedule
from rota.select import Settings
from rota.verify import find_order, verify

GROUP = box(GEN2, 2, [0, 4], [0, 1], [1, 2])
SHARE = 32
ALL = Gates(skip_handshake=False, first_barrier=True, last_barrier=True)


def slots(settings: Settings | None = None, *, proxies: bool = False) -> tuple[Slot, ...]:
    return initialize_trn3pds98(load_platform(GEN2), (GROUP,), settings or Settings(), proxies=proxies)


def write(board: Board, slot: Slot, *, number: int = 0, **how: Any) -> tuple[Step, ...]:
    """The operation of a slot, on its own part of the user buffers."""
    ranks, size = board.ranks, SHARE
    whole = Region(board.input, number * ranks * size, size), Region(board.output, number * ranks * size, size)
    match slot.builder.kinds[0] if slot.builder else None:
        case EncOp.ALLGATHER:
            shards = Shards.of(whole[1], ranks, size)
            return write_all_gather(board, slot, whole[0], whole[1], shards, **how)
        case EncOp.REDUCE_SCATTER:
            return write_reduce_scatter(board, slot, *whole, size, **how)
        case _:
            return write_all_reduce(board, slot, *whole, ranks * size, **how)


def room(slot: Slot, ranks: int) -> int:
    return SHARE * ranks if slot.subtype.reported is SINGLE else SHARE


def operations(slot: Slot, number: int, *, alternate: bool, checks: Checks = Checks.ALL, **how: Any) -> Schedule:
    """Several operations one after another on the rooms of one subtype."""
    ranks = len(GROUP)
    size = number * ranks * SHARE
    board = Board(ranks=ranks, input_size=size, output_size=size, op=Op.ADD)
    rooms = declare_rooms(board, slot, room(slot, ranks))
    for k in range(number):
        part = board.part(board.members, leg=k)
        parity = {} if slot.builder is None or EncOp.ALLGATHER in slot.builder.kinds else {"parity": k % 2 * alternate}
        write(part, slot, number=k, rooms=rooms, **parity, **how)
    return board.schedule(checks=checks)


def rules(schedule: Schedule) -> set[str]:
    return {finding.rule for finding in find_order(schedule)}


# --- the mirror -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_a_permuted_plan_fails_at_the_first_event_that_differs(number: int) -> None:
    """Check 2: both types are named."""
    slot = slots()[number]
    for at in range(len(slot.phases) - 1):
        events = list(slot.events)
        events[at], events[at + 1] = events[at + 1], events[at]
        board = Board(ranks=8, input_size=8 * SHARE, output_size=8 * SHARE, op=Op.ADD)
        wanted, found = slot.events[at], slot.events[at + 1]
        because = (
            f"event {at} of {slot.subtype.name}: the {wanted.phase.value} asserts {wanted.type.name}, "
            f"the plan has {found.type.name} of the {found.phase.value}"
        )
        with pytest.raises(VerifyError, match=because):
            write(board, replace(slot, events=tuple(events)))


def test_an_edited_plan_fails() -> None:
    """A type stamped over, another phase of the same type, an event too few."""
    slot = slots()[0]
    first, second, *rest = slot.events
    edits = {
        "asserts EVT_GLOBAL_HNDSHK, the plan has EVT_SYNC": (replace(first, type=EventType.EVT_SYNC), second, *rest),
        "has EVT_GLOBAL_HNDSHK of the all-rank": (replace(first, phase=Phase.ALL_RANK_HANDSHAKE), second, *rest),
        "asserts EVT_FUNCTION_BARRIER_FIRST_COLL, and the plan has only 5 events": slot.events[:5],
    }
    for because, events in edits.items():
        board = Board(ranks=8, input_size=8 * SHARE, output_size=8 * SHARE)
        with pytest.raises(VerifyError, match=because):
            write(board, replace(slot, events=events), rooms=declare_rooms(board, slot, 0))


def test_a_plan_with_a_wait_val_of_bytes_is_refused() -> None:
    """§3: wait_val counts notifies; 32 of them never come."""
    slot = slots()[0]
    broken = tuple(
        replace(event, wait_val=event.wait_val * 0 + SHARE) if event.phase is Phase.INTRA_AXIS_BROADCAST else event
        for event in slot.events
    )
    board = Board(ranks=8, input_size=8 * SHARE, output_size=8 * SHARE)
    write(board, replace(slot, events=broken))
    with pytest.raises(VerifyError):
        board.schedule()


def test_every_phase_has_a_composer_and_the_bandwidth_broadcasts_a_thunk() -> None:
    """§3: the intra-axis bw-opt broadcast is composed by the code of the plain one."""
    assert set(COMPOSERS) == set(Phase) == set(PHASES)
    assert COMPOSERS[Phase.INTRA_AXIS_BW_BROADCAST] is COMPOSERS[Phase.INTRA_AXIS_BROADCAST] is broadcast


# --- the bracket ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_the_dma_sync_is_emitted_behind_the_last_barrier(number: int) -> None:
    """§6: first barrier, phases in build order, last barrier, dma-sync; ids are those of the built list."""
    slot = slots()[number]
    order = order_of(slot)
    assert [phase for phase, _ in order] == [
        Phase.FIRST_BARRIER,
        *slot.phases[:-1],
        Phase.LAST_BARRIER,
        Phase.DMA_SYNC,
    ]
    assert all(slot.events[index].phase is phase for phase, index in order)


@pytest.mark.parametrize("number", range(6))
def test_function_barriers_notify_on_cached_ids(number: int) -> None:
    """Check 4: skipping emits nothing, and the ids of all other events stay."""
    slot = slots()[number]
    found = {}
    for gates in (Gates(), ALL, Gates(first_barrier=True)):
        board = Board(ranks=8, input_size=8 * SHARE, output_size=8 * SHARE, op=Op.ADD)
        steps = write(board, slot, gates=gates)
        schedule = board.schedule()
        assert not rules(schedule)
        found[gates] = steps, schedule
    steps, schedule = found[ALL]
    at = {int(event): int(step) for event, step in zip(schedule.rows.event, schedule.rows.step, strict=True)}
    assert (at[4], at[5]) == (slot.first_barrier, slot.last_barrier)
    assert (schedule.rows.leaf[np.isin(schedule.rows.event, (4, 5))] == Leaf.MESH_NOTIFY).all()
    quiet, without = found[Gates()]
    assert [step.index for step in quiet] == [step.index for step in steps]
    assert {4, 5}.isdisjoint(without.rows.event.tolist())
    assert len(schedule) == len(without) + 2 * 8
    assert "Skipping composition of first function barrier: the operation is not the first" in str(quiet[0])
    assert 4 in found[Gates(first_barrier=True)][1].rows.event
    assert 5 not in found[Gates(first_barrier=True)][1].rows.event


def test_notify_and_copy_modes() -> None:
    """§6: 4 for handshakes, 0 for completions; copy_mode 4 into scratch, 0 into the output."""
    board = Board(ranks=8, input_size=8 * SHARE, output_size=8 * SHARE, op=Op.ADD)
    steps = write(board, slots()[4])
    emitted = [(step.type, step.notify, step.copy_mode) for step in steps if not step.skipped]
    assert emitted == [(2, 4, None), (8, 0, 4), (9, 0, 4), (10, 0, 0), (3, 0, None), (11, 0, None), (0, 0, None)]
    assert str(steps[2]) == ("Composing intra-axis chipr1w reduce: event 1 EVT_REDUCE_COPY, notify mode 0, copy_mode 4")


@pytest.mark.parametrize("number", [0, 1, 6])
def test_a_skipped_handshake_leaves_its_id(number: int) -> None:
    """§6: the index advances either way; alone, such a schedule touches ranks that have not entered."""
    kind, algorithm = {0: (AG, LATENCY), 1: (AG, BANDWIDTH), 6: (A2A, LATENCY)}[number]
    asked = plan(GEN2, 2, [GROUP], kind, 8 * 16, algorithm)
    whole, skipping = (compose_switch(asked, gates=Gates(skip_handshake=skip)) for skip in (False, True))
    assert 1 in whole.rows.event
    assert 1 not in skipping.rows.event
    for event in (3, 11, 0):
        steps = [set(each.rows.step[each.rows.event == event].tolist()) for each in (whole, skipping)]
        assert steps[0] == steps[1]
    assert rules(skipping) == {"not_entered"}
    with pytest.raises(VerifyError):
        verify(skipping, asked.request)


def test_an_event_fires_on_its_own_index() -> None:
    """Design §2 (7): the rows of an event have its id, never the next."""
    slot = slots()[5]
    schedule = compose_switch(plan(GEN2, 2, [GROUP], AR, 64, BANDWIDTH))
    for event, step in set(zip(schedule.rows.event.tolist(), schedule.rows.step.tolist(), strict=True)):
        assert slot.events[step].type == event


# --- buffers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("slot", [2, 3])
def test_double_buffered_operations_need_no_handshake_between_them(slot: int, number: int) -> None:
    """Check 5, design §2 (22): the single step and the reduce-scatter alternate halves."""
    schedule = operations(slots()[slot], number, alternate=True)
    assert not rules(schedule)
    if slot == 3:
        assert {1, 2}.isdisjoint(schedule.rows.event.tolist())


@pytest.mark.parametrize("slot", [0, 3, 4])
def test_proxy_buffers_are_free_again_in_time(slot: int) -> None:
    """What lands there is handed on before the next operation of the same half sends to it."""
    schedule = operations(slots(proxies=True)[slot], 4, alternate=True)
    assert any(buffer.name.startswith("proxy") for buffer in schedule.buffers)
    assert not rules(schedule)


@pytest.mark.parametrize("slot", [2, 3])
def test_one_half_is_overwritten_early(slot: int) -> None:
    """A third party that is an operation ahead writes over what is still read, and releases its wait."""
    schedule = operations(slots()[slot], 3, alternate=False, checks=Checks.FORM)
    assert rules(schedule) & {"race", "slot_reuse", "ambiguous_semaphore"}


def test_one_half_with_a_handshake_will_do() -> None:
    """Compose §12.6: with double buffering off all ranks meet first."""
    slot = slots(Settings(mesh_double_buffer=False))[3]
    assert slot.halves == 1
    schedule = operations(slot, 3, alternate=True)
    assert not rules(schedule)
    assert 1 in schedule.rows.event


@pytest.mark.parametrize("slot", [0, 1, 4, 5])
@pytest.mark.parametrize("number", [2, 4])
def test_a_closing_gather_frees_the_scratch(slot: int, number: int) -> None:
    """Design §2 (22): who has everybody's result has waited for everybody, so one half is enough."""
    built = slots()[slot]
    assert built.halves == 1
    assert not rules(operations(built, number, alternate=True))


def test_the_halves_differ_in_nothing_but_place() -> None:
    """§6: the peer's mesh buffer plus the double-buffer offset."""
    asked = plan(GEN2, 2, [GROUP], AR, 32, SINGLE)
    one, other = (compose_switch(asked, parity=parity) for parity in (0, 1))
    mesh = [buffer.name for buffer in one.buffers].index("mesh")
    places = [each.targets.offset[each.targets.buffer == mesh] for each in (one, other)]
    assert (places[1] - places[0] == one.buffers[mesh].size // 2).all()
    assert (one.buffers, one.semaphores) == (other.buffers, other.semaphores)
    assert one != other


@pytest.mark.parametrize("parity", [-1, 2])
@pytest.mark.parametrize(("kind", "algorithm"), [(AR, SINGLE), (RS, MESH)])
def test_a_parity_is_0_or_1(parity: int, kind: EncOp, algorithm: Any) -> None:
    """Anything else names no half."""
    with pytest.raises(UsageError, match=f"expected 0 or 1, got {parity}"):
        compose_switch(plan(GEN2, 2, [GROUP], kind, 64, algorithm), parity=parity)


@pytest.mark.parametrize("number", range(6))
def test_a_leg_may_follow_other_rows(number: int) -> None:
    """With `fence_first` the first row of every rank is fenced, and only one of an event without data."""
    slot = slots()[number]
    board = Board(ranks=8, input_size=8 * SHARE, output_size=8 * SHARE, op=Op.ADD)
    write(board, slot, fence_first=True)
    schedule = board.schedule()
    for rank in range(8):
        assert schedule.rows.fence[np.flatnonzero(schedule.rows.rank == rank)[0]]


@pytest.mark.parametrize(("size", "most", "want"), [(100, 32, [32, 32, 32, 4]), (64, 32, [32, 32]), (0, 32, [0])])
def test_blocks(size: int, most: int, want: list[int]) -> None:
    """§6: size(k) is what is left of size - k x max_block, at least 0 and at most max_block."""
    blocks = Blocks(most)
    numbers = np.arange(int(blocks.count(size)))
    assert blocks.size(numbers, size).tolist() == want
    assert blocks.offset(numbers).tolist() == [k * most for k in range(len(want))]
    assert blocks.size(len(want) + 3, size) == 0
