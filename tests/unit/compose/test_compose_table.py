"""Which algorithms have a composer, and how a decision becomes a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.compose import COMPOSERS, compose, composed
from rota.compose.ring import compose_ring
from rota.errors import UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.request import Request
from rota.select import Plan, Settings, select
from rota.verify import verify


def plan(*groups: tuple[int, ...], settings: Settings | None = None, in_place: bool = False) -> Plan:
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 1000, groups, CceType.ADD, in_place=in_place)
    return select(request, load_platform("trn2.48xlarge"), settings or Settings())


def test_the_ring_of_a_plan_uses_positions_in_the_group() -> None:
    """A schedule numbers members, not ranks: the ring of chip 1 given as 7, 5, 6, 4 is in terms of their places."""
    asked = plan((7, 5, 6, 4))
    places = [[(7, 5, 6, 4).index(rank) for rank in channel.order] for channel in asked.wirings[0].channels]
    schedule = compose(asked, Algorithm.RING)
    assert schedule == compose_ring(places, kind=EncOp.ALLREDUCE, size=2000, op=CceType.ADD)
    verify(schedule, asked.request)


def test_groups_settings_and_place_reach_the_schedule() -> None:
    """Groups run together in their order; slots and chunk are the settings', in place the request's."""
    asked = plan((12, 13, 14, 15), (0, 1, 2, 3), settings=Settings(slots=5, chunk=64), in_place=True)
    schedule = compose(asked, Algorithm.RING)
    assert (schedule.ranks, schedule.in_place, schedule.semaphores[1].initial) == (8, True, 5)
    assert int(schedule.rows.part.max()) // 2 + 1 == -(-2000 // (4 * 2 * 64))
    verify(schedule, asked.request)


def test_a_group_of_one_has_no_ring_and_copies() -> None:
    """One rank needs no channel: its schedule is a copy."""
    asked = plan((9,), (3,))
    assert asked.channels == 0
    schedule = compose(asked, Algorithm.RING)
    assert (schedule.ranks, len(schedule.semaphores)) == (2, 0)
    verify(schedule, asked.request)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_what_is_composed_for_what_is_selected(algorithm: Algorithm) -> None:
    """Only RING has a composer in this version; for anything else RING is composed, and the verdict says so."""
    instead, verdict = composed(algorithm)
    assert instead is Algorithm.RING
    assert bool(verdict) is (algorithm in COMPOSERS) is (algorithm is Algorithm.RING)
    assert algorithm.name in verdict.reason


def test_an_algorithm_without_composer_is_refused() -> None:
    """Asking for one by name is refused, and the known ones are named."""
    with pytest.raises(UnsupportedError, match="KANGARING: this version composes RING"):
        compose(plan((0, 1, 2, 3)), Algorithm.KANGARING)


def test_equal_plans_compose_equal_schedules() -> None:
    """Composing is a function of the plan."""
    one, other = plan((0, 1, 2, 3)), plan((0, 1, 2, 3))
    assert compose(one, Algorithm.RING) == compose(other, Algorithm.RING)
    assert compose(replace(one, settings=Settings(slots=4)), Algorithm.RING) != compose(other, Algorithm.RING)
