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

TRN2 = load_platform("trn2.48xlarge")


def whole_node(size: int) -> Plan:
    """Return the plan of an all-reduce over all 64 ranks."""
    return select(
        Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, size // 2, (tuple(range(64)),), CceType.ADD), TRN2, Settings()
    )


def plan(*groups: tuple[int, ...], settings: Settings | None = None, in_place: bool = False) -> Plan:
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 1000, groups, CceType.ADD, in_place=in_place)
    return select(request, TRN2, settings or Settings())


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


@pytest.mark.parametrize(
    ("size", "selected"),
    [
        (16 << 10, Algorithm.SINGLE_STEP_MESH),
        (512 << 10, Algorithm.MESH),
        (8 << 20, Algorithm.INTRA_RDH),
        (128 << 20, Algorithm.KANGARING),
    ],
)
def test_what_is_composed_for_what_is_selected(size: int, selected: Algorithm) -> None:
    """Until an algorithm has a composer RING is composed where RING does the operation, and the verdict says so."""
    asked = whole_node(size)
    assert asked.selected is selected
    instead, verdict = composed(asked)
    if selected in COMPOSERS:
        assert (instead, bool(verdict)) == (selected, True)
    else:
        assert (instead, bool(verdict)) == (Algorithm.RING, False)
        assert f"the runtime takes {selected.name} for all_reduce, which has no composer" in verdict.reason
    assert selected.name in verdict.reason


def test_a_ring_is_composed_as_selected() -> None:
    """What has a composer is composed."""
    group = tuple(range(0, 64, 4))
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 64 << 20, (group,), CceType.ADD)
    asked = select(request, TRN2, Settings())
    instead, verdict = composed(asked)
    assert (asked.selected, instead, bool(verdict)) == (Algorithm.RING, Algorithm.RING, True)
    assert verdict.reason == "RING is composed as selected"


def test_what_a_ring_does_not_do_is_refused() -> None:
    """An all-to-all without a composer cannot be substituted: the runtime's algorithm is named."""
    asked = select(Request(EncOp.ALLTOALL, Dtype.BFLOAT16, 6400, (tuple(range(64)),)), TRN2, Settings())
    assert asked.selected is Algorithm.MESH
    if Algorithm.MESH not in COMPOSERS:
        with pytest.raises(UnsupportedError, match=r"takes MESH for all_to_all, .*, and a ring does not do it"):
            composed(asked)


def test_what_a_ring_does_but_has_no_composer_is_refused() -> None:
    """A permute is RING, whose composer does other collectives."""
    pairs = ((0, 1), (1, 0))
    asked = select(Request(EncOp.PERMUTE, Dtype.BFLOAT16, 64, ((0, 1),), pairs=pairs), TRN2, Settings())
    assert asked.selected is Algorithm.RING
    if EncOp.PERMUTE not in COMPOSERS[Algorithm.RING].kinds:
        with pytest.raises(UnsupportedError, match="permute"):
            composed(asked)
        with pytest.raises(UnsupportedError, match="RING of permute: this version composes RING"):
            compose(asked, Algorithm.RING)


def test_no_ring_to_take_the_place_of_a_hierarchy() -> None:
    """Several nodes with several ranks each have no flat ring: without a composer for HIER there is nothing to run."""
    four = load_platform("trn2.48xlarge", nodes=4)
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 64, (tuple(range(256)),), CceType.ADD)
    asked = select(request, four, Settings())
    assert (asked.selected, asked.channels) == (Algorithm.HIER, 0)
    if Algorithm.HIER not in COMPOSERS:
        with pytest.raises(UnsupportedError, match=r"takes HIER .*, and there is no ring to take its place: no flat"):
            composed(asked)


def test_an_algorithm_without_composer_is_refused() -> None:
    """Asking for one by name is refused, and the known ones are named."""
    with pytest.raises(UnsupportedError, match="KANGARING of all_reduce: this version composes RING"):
        compose(plan((0, 1, 2, 3)), Algorithm.KANGARING)


def test_equal_plans_compose_equal_schedules() -> None:
    """Composing is a function of the plan."""
    one, other = plan((0, 1, 2, 3)), plan((0, 1, 2, 3))
    assert compose(one, Algorithm.RING) == compose(other, Algorithm.RING)
    assert compose(replace(one, settings=Settings(slots=4)), Algorithm.RING) != compose(other, Algorithm.RING)
