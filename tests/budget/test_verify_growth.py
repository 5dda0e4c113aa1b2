"""What the proof of order costs: Python work that does not grow with the ranks, and few pairs for the slow way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.families import hierarchical, recursive_doubling, two_step_mesh

from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.schedule.ir import Schedule
from rota.verify import find_order
from rota.verify.before import Order
from rota.verify.memory import conflicts


def ring(ranks: int, channels: int = 2) -> Schedule:
    orders = [range(ranks)] * channels
    return compose_ring(orders, kind=EncOp.ALLREDUCE, size=ranks * channels * 128, op=CceType.ADD, slots=3, chunk=128)


@pytest.mark.parametrize("family", [ring, two_step_mesh])
def test_python_work_does_not_grow_with_the_ranks(family: Callable[[int], Schedule]) -> None:
    """Proving the order makes the same number of calls for 8 and for 32 ranks: all loops over rows are numpy's."""
    few, many = (_calls(partial(find_order, family(ranks))) for ranks in (8, 32))
    assert few == many
    assert few > 100  # something was counted


@pytest.mark.parametrize("family", [ring, two_step_mesh, recursive_doubling])
def test_one_edge_proves_all_of_most_families(
    family: Callable[[int], Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pair of a ring, a mesh or of recursive doubling needs vector clocks. Source: schedule §5 (5)."""
    asked = _asked(family(16), monkeypatch)
    assert asked == 0


def test_a_hierarchy_leaves_few_pairs_to_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, the chunks that go all around are all that one edge does not show."""
    plan = hierarchical(4, 4, in_place=True)
    assert 0 < _asked(plan, monkeypatch) <= conflicts(plan).first.size // 3


def _asked(plan: Schedule, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many pairs the clocks are asked about."""
    sizes: list[int] = []
    far = Order.far

    def counting(order: Order, first: Any, second: Any) -> Any:
        sizes.append(first.size)
        return far(order, first, second)

    monkeypatch.setattr(Order, "far", counting)
    assert find_order(plan) == []
    return sum(sizes)


def _calls(work: Callable[[], Any]) -> int:
    """Return how many Python and C functions are called while the work is done."""
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
