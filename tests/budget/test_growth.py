"""What a composed ring costs: rows, bytes a row, Python work that does not grow with the ranks. Counts, not time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from rota.compose import board as board_module
from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED
from rota.schedule.build import Block
from rota.schedule.ir import Schedule

BYTES_A_ROW = {EncOp.ALLREDUCE: 100, EncOp.ALLGATHER: 100, EncOp.REDUCE_SCATTER: 106}
"""Source: performance §4. A reduce-scatter has little but rows of the widest kind: with the stored types of schedule §1
two sources, a target, two waits and two signals take 106."""


def ring(ranks: int, kind: EncOp, *, channels: int = 1, halves: int = 1, groups: int = 1) -> Schedule:
    """Return a ring of this many chunk groups, every piece with bytes."""
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    size = ranks * channels * 64 * groups
    return compose_ring([range(ranks)] * channels, kind=kind, size=size, op=op, halves=halves, chunk=64)


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize(("ranks", "channels", "halves"), [(16, 1, 1), (64, 4, 2), (256, 1, 1)])
def test_bytes_a_row(kind: EncOp, ranks: int, channels: int, halves: int) -> None:
    """A row costs at most 100 bytes on average, all columns counted; the widest row of a ring takes 106."""
    schedule = ring(ranks, kind, channels=channels, halves=halves)
    assert sum(column.nbytes for column in schedule.columns()) <= BYTES_A_ROW[kind] * len(schedule)


@pytest.mark.parametrize("ranks", [8, 16, 32, 64, 128])
def test_rows_grow_with_the_work(ranks: int) -> None:
    """An all-reduce has 2N rows a rank, half, channel and chunk group: 2N-1 that move and one that waits."""
    assert len(ring(ranks, EncOp.ALLREDUCE, channels=2, halves=2, groups=3)) == 2 * ranks * ranks * 2 * 2 * 3


@pytest.mark.parametrize(("kind", "blocks"), [(EncOp.ALLREDUCE, 6), (EncOp.REDUCE_SCATTER, 3), (EncOp.ALLGATHER, 5)])
def test_blocks_do_not_grow_with_the_ranks(monkeypatch: pytest.MonkeyPatch, kind: EncOp, blocks: int) -> None:
    """A ring is composed in the same few numpy blocks whatever its ranks and channels; chunk groups repeat them."""
    counts: list[int] = []
    assemble = board_module.assemble

    def counting(parts: list[Block], **other: Any) -> Schedule:
        counts.append(len(parts))
        return assemble(parts, **other)

    monkeypatch.setattr(board_module, "assemble", counting)
    for ranks in (3, 8, 64):
        ring(ranks, kind, channels=ranks % 3 + 1, halves=2)
    assert counts == [blocks] * 3
    counts.clear()
    ring(8, kind, groups=4)
    entered = 1 if kind is EncOp.ALLGATHER else 0
    assert counts == [entered + 4 * (blocks - entered)]


@pytest.mark.parametrize("kind", COMPOSED)
def test_python_work_does_not_grow_with_the_ranks(kind: EncOp) -> None:
    """Composing and checking makes the same number of calls for 8 and for 64 ranks: all loops over rows are numpy's."""
    few, many = (_calls(lambda n=ranks: ring(n, kind, channels=2, halves=2)) for ranks in (8, 64))
    assert few == many
    assert few > 1000  # something was counted


def _calls(work: Callable[[], Any]) -> int:
    """Return how many Python and C functions are called while the work is done."""
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work()  # what is imported or cached at the first call
    before = sys.getprofile()
    gc.disable()  # what others have it call would count
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls
