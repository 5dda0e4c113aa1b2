"""Chains of rows for wide reductions: design §2 (20)."""

from __future__ import annotations

import numpy as np
import pytest

from rota.compose.board import Board, Leaf, Op, Place, Region, Signal, Wait
from rota.compose.fold import first_op, fold_rows, write_fold
from rota.execute.arrays import execute
from rota.native.arithmetic import Combine, fold
from rota.schedule.ir import Schedule


@pytest.mark.parametrize(("sources", "rows"), [(1, 1), (2, 1), (32, 1), (33, 2), (63, 2), (64, 3), (94, 3), (95, 4)])
def test_one_row_takes_32_sources_and_each_further_row_31(sources: int, rows: int) -> None:
    """Design §2 (20): the first 32 in fold order, then scratch and the next 31, and so on."""
    assert fold_rows(sources) == rows
    schedule = folded(sources, size=4)
    moving = schedule.rows.size > 0
    assert int(moving.sum()) == rows
    counts = np.diff(schedule.sources.ptr)[moving]
    assert counts.max() <= 32
    assert counts.sum() == sources + rows - 1


def folded(sources: int, *, size: int, op: Op = Op.ADD) -> Schedule:
    """One rank folds the pieces of its input, told by itself, and tells itself."""
    board = Board(ranks=1, input_size=4 * sources, output_size=4, op=op)
    scratch = Region(board.buffer("scratch", 4))
    told, done = board.semaphore("told"), board.semaphore("done")
    board.rows(Leaf.MESH_NOTIFY, 0, signals=[Signal(np.zeros(1, np.int64), told)])
    write_fold(
        board,
        Leaf.MESH_REDUCE,
        0,
        [Place(board.input, 4 * k) for k in range(sources)],
        Place(board.output, 0),
        size,
        scratch,
        waits=[Wait(told)],
        signals=[Signal(np.zeros(1, np.int64), done)],
        step=1,
    )
    board.rows(Leaf.MESH_WAIT, 0, waits=[Wait(done)], step=2)
    return board.schedule()


@pytest.mark.parametrize("sources", [1, 32, 33, 70])
def test_every_row_of_a_chain_rounds_once(sources: int) -> None:
    """Design §2 (20): each row rounds once, in the wire dtype; fold order is the order of the sources."""
    data = np.random.default_rng(1).normal(size=(1, 2 * sources)).astype(np.float16)
    pieces = list(data[0].reshape(sources, 2))
    total = fold(Combine.ADD, pieces[:32]) if sources > 1 else pieces[0]
    for first in range(32, sources, 31):
        total = fold(Combine.ADD, [total, *pieces[first : first + 31]])
    assert execute(folded(sources, size=4), data).tobytes() == total.tobytes()


def test_rows_behind_the_first_are_fenced_and_named_apart() -> None:
    """They read the scratch that the row before writes; their parts count up."""
    schedule = folded(70, size=4)
    moving = schedule.rows.size > 0
    assert schedule.rows.fence[moving].tolist() == [False, True, True]
    assert schedule.rows.part[moving].tolist() == [0, 1, 2]


def test_the_first_row_waits_and_the_last_signals() -> None:
    """Also where nothing moves: then the rows between them are left out."""
    for size, rows in ((4, 3), (0, 2)):
        schedule = folded(70, size=size)
        step = np.flatnonzero(schedule.rows.step == 1)
        assert step.size == rows
        assert np.diff(schedule.waits.ptr)[step].tolist() == [1, *[0] * (rows - 1)]
        assert np.diff(schedule.signals.ptr)[step].tolist() == [*[0] * (rows - 1), 1]


@pytest.mark.parametrize(("op", "alone"), [(Op.ADD, Op.NONE), (Op.MAX, Op.NONE), (Op.FMA, Op.FMA)])
def test_a_single_raw_input_is_scaled_only_by_fma(op: Op, alone: Op) -> None:
    """Design §2 (27): an input is scaled the first time it is read; other operations copy it."""
    schedule = folded(1, size=4, op=op)
    assert schedule.rows.op[schedule.rows.size > 0].tolist() == [alone]
    assert first_op(Board(ranks=1, input_size=0, output_size=0, op=op)) is alone
