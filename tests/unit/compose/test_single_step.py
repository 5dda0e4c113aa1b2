"""The single-step mesh: compose §12.4 and t1 of §12.1, schedule §4 and §7."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import AR, by_blocks, check, event_laws, events, outputs, plan

from rota.compose.board import Board, Region
from rota.compose.single_step import compose_single_step, declare_rooms, how_of, write_all_reduce
from rota.errors import UsageError, VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType
from rota.machine.platform import load_platform
from rota.schedule.ir import Op, Schedule
from rota.verify import find_order, traffic

GROUPS: dict[str, tuple[str, int, list[tuple[int, ...]]]] = {
    "chip": ("trn2.48xlarge", 1, [(2, 0, 3, 1), (4, 5, 6, 7)]),
    "node": ("trn2.48xlarge", 1, [tuple(range(64))]),
    "trn1 row": ("trn1.32xlarge", 1, [(7, 6, 5, 4, 3, 2, 1, 0)]),
    "pair": ("trn1.32xlarge", 1, [(1, 0)]),
    "network": ("trn2.48xlarge", 3, [(0, 64, 128)]),
}


def step_plan(case: str, count: int, **other: Any) -> Any:
    name, nodes, groups = GROUPS[case]
    return plan(name, groups, AR, count, nodes=nodes, **other)


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [1, 45])
@pytest.mark.parametrize("parity", [0, 1])
def test_all_ranks_end_with_one_sum_in_rank_order(case: str, in_place: bool, count: int, parity: int) -> None:
    """Compose §12.4: reduce in rank order for identical results; above 32 ranks in chains."""
    asked = step_plan(case, count, in_place=in_place)
    schedule = compose_single_step(asked, parity=parity)
    single = [[rank] for rank in range(asked.request.ranks)]

    def want(data: Any, group: int) -> list[Any]:
        return outputs(asked.request, data, group, by_blocks(single))

    check(schedule, asked.request, want)
    event_laws(schedule)


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP8_EXP3, Dtype.INT32])
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
def test_types_and_operations(dtype: Dtype, op: CceType) -> None:
    """One rounding of N sources."""
    asked = step_plan("chip", 20, dtype=dtype, op=op)
    single = [[rank] for rank in range(4)]
    check(
        compose_single_step(asked),
        asked.request,
        lambda data, g: outputs(asked.request, data, g, by_blocks(single)),
    )


@pytest.mark.parametrize("in_place", [False, True])
def test_only_inputs_are_scaled(in_place: bool) -> None:
    """Design §2 (27): raw inputs are scaled on their way to a slot, the own one in the last reduction."""
    asked = step_plan("chip", 20, op=CceType.FMA, scales=(2.0,), dtype=Dtype.FP32, in_place=in_place)
    single = [[rank] for rank in range(4)]
    check(
        compose_single_step(asked),
        asked.request,
        lambda data, g: outputs(asked.request, 2 * data, g, by_blocks(single)),
    )


@pytest.mark.parametrize("case", ["chip", "node", "trn1 row", "network"])
def test_bytes_sent_are_all_of_the_buffer_to_everyone(case: str) -> None:
    """Compose §12.4: traffic (N-1) B per rank, one hop."""
    asked = step_plan(case, 48)
    assert (traffic(compose_single_step(asked)).sent == 96 * (asked.request.ranks - 1)).all()


@pytest.mark.parametrize(
    ("case", "want"),
    [("node", [2, 1, 7, 3, 10]), ("trn1 row", [2, 1, 7, 3, 10]), ("chip", [2, 7, 10]), ("network", [1, 3, 10])],
)
def test_events_follow_t1(case: str, want: list[int]) -> None:
    """Compose §12.1, t1: LOCAL, GLOBAL, INTRA, INTER, REDUCE_WRITE; what has no peers is left out."""
    assert events(compose_single_step(step_plan(case, 48))) == want


def test_chain_above_32_ranks() -> None:
    """Design §2 (20): 64 sources are three rows of at most 32."""
    schedule = compose_single_step(step_plan("node", 48))
    folds = np.diff(schedule.sources.ptr)[schedule.rows.op != Op.NONE]
    assert sorted(folds.tolist()) == sorted([32, 32, 2] * 64)


def operations(number: int, *, alternate: bool) -> Schedule:
    """Several operations on one board without handshakes, on consecutive parts of the buffers."""
    groups = ((0, 1, 2, 3),)
    board = Board(ranks=4, input_size=32 * number, output_size=32 * number, op=Op.ADD)
    how = replace(how_of(load_platform("trn2.48xlarge"), groups), handshake=False)
    rooms = declare_rooms(board, 32)
    for k in range(number):
        part = board.part(board.members, leg=k)
        parity = k % 2 if alternate else 0
        write_all_reduce(
            part, how, Region(board.input, 32 * k), Region(board.output, 32 * k), 32, rooms=rooms, parity=parity
        )
    return board.schedule()


@pytest.mark.parametrize("number", [2, 3, 5])
def test_the_double_buffer_makes_handshakes_unneeded(number: int) -> None:
    """Schedule §7: two halves and two semaphores pass, 2 to 5 operations without handshake."""
    assert not list(find_order(operations(number, alternate=True)))


def test_one_half_is_not_enough_without_handshakes() -> None:
    """Schedule §7: one semaphore is reported ambiguous, one half is a race."""
    try:
        found = list(find_order(operations(3, alternate=False)))
    except VerifyError as error:
        found = list(error.findings)
    assert found


@pytest.mark.parametrize("parity", [-1, 2])
def test_a_parity_is_0_or_1(parity: int) -> None:
    """Anything else names no half of the buffer."""
    with pytest.raises(UsageError, match=f"parity of a single-step mesh: expected 0 or 1, got {parity}"):
        compose_single_step(step_plan("chip", 8), parity=parity)


def test_the_parity_moves_the_slots_and_the_semaphores() -> None:
    """Compose §12.4: peer's mesh buffer plus double-buffer offset; nothing else differs."""
    one, other = (compose_single_step(step_plan("chip", 8), parity=parity) for parity in (0, 1))
    assert one.buffers == other.buffers
    assert one.semaphores == other.semaphores
    mesh = [buffer.name for buffer in one.buffers].index("mesh")
    slots = [schedule.targets.offset[schedule.targets.buffer == mesh] for schedule in (one, other)]
    assert (slots[1] - slots[0] == one.buffers[mesh].size // 2).all()
    assert not np.array_equal(one.waits.semaphore, other.waits.semaphore)


def test_small_all_reduces_select_it() -> None:
    """Select §7.4: up to its share of the channel buffer."""
    assert step_plan("chip", 48).selected is Algorithm.SINGLE_STEP_MESH
