"""Which algorithms have a composer, and how a decision becomes a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.compose.ring import compose_ring
from rota.compose.support import SUPPORT, can_compose, composed
from rota.compose.table import COMPOSERS, compose
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


def test_what_is_said_to_be_composed_has_a_composer() -> None:
    """`SUPPORT`, which loads no composer, and `COMPOSERS` hold the same algorithms."""
    assert set(SUPPORT) == set(COMPOSERS)


@pytest.mark.parametrize(
    ("size", "selected"),
    [
        (16 << 10, Algorithm.SINGLE_STEP_MESH),
        (512 << 10, Algorithm.MESH),
        (8 << 20, Algorithm.INTRA_RDH),
        (128 << 20, Algorithm.KANGARING),
    ],
)
def test_what_is_selected_is_composed(size: int, selected: Algorithm) -> None:
    """What SELECT takes is what is composed, and what is emitted."""
    asked = whole_node(size)
    assert asked.selected is selected
    found, verdict = composed(asked)
    assert (found, bool(verdict)) == (selected, True)
    assert verdict.reason == f"{selected.name} is composed as selected"


def test_a_ring_is_composed_as_selected() -> None:
    """A selected ring is composed."""
    group = tuple(range(0, 64, 4))
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 64 << 20, (group,), CceType.ADD)
    asked = select(request, TRN2, Settings())
    instead, verdict = composed(asked)
    assert (asked.selected, instead, bool(verdict)) == (Algorithm.RING, Algorithm.RING, True)
    assert verdict.reason == "RING is composed as selected"


def test_an_all_to_all_is_composed_as_a_mesh() -> None:
    """No ring does it."""
    asked = select(Request(EncOp.ALLTOALL, Dtype.BFLOAT16, 6400, (tuple(range(64)),)), TRN2, Settings())
    assert composed(asked)[0] is asked.selected is Algorithm.MESH
    verify(compose(asked, Algorithm.MESH), asked.request)


def test_a_ring_takes_the_place_of_what_has_no_composer() -> None:
    """With the reason; where a ring does not do the operation, that is refused."""
    asked = replace(whole_node(16 << 10), selected=Algorithm.INVALID)
    found, verdict = composed(asked)
    assert (found, bool(verdict)) == (Algorithm.RING, False)
    assert verdict.reason == (
        "the runtime takes INVALID, and INVALID of all_reduce has no composer in this version; RING does the operation "
        "on this group"
    )
    exchange = select(Request(EncOp.ALLTOALL, Dtype.BFLOAT16, 6400, (tuple(range(64)),)), TRN2, Settings())
    with pytest.raises(UnsupportedError, match=r"takes INVALID, and INVALID of all_to_all .*; a ring does not do it"):
        composed(replace(exchange, selected=Algorithm.INVALID))


def test_point_to_point_is_composed_as_a_ring() -> None:
    """A permute and a send are RING, which has a composer for them."""
    permute = Request(EncOp.PERMUTE, Dtype.BFLOAT16, 64, ((0, 1),), pairs=((0, 1), (1, 0)))
    for request in (permute, Request(EncOp.SEND, Dtype.BFLOAT16, 64, ((0, 1),))):
        asked = select(request, TRN2, Settings())
        assert composed(asked)[0] is asked.selected is Algorithm.RING
        verify(compose(asked, Algorithm.RING), asked.request)


def test_no_ring_to_take_the_place_of_a_hierarchy() -> None:
    """Several nodes with several ranks each have no flat ring: a hierarchy is composed."""
    four = load_platform("trn2.48xlarge", nodes=4)
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 64, (tuple(range(256)),), CceType.ADD)
    asked = select(request, four, Settings())
    assert (asked.selected, asked.channels) == (Algorithm.HIER, 0)
    assert composed(asked)[0] is Algorithm.HIER
    with pytest.raises(UnsupportedError, match=r"takes INVALID, .*; there is no ring to take its place: no flat"):
        composed(replace(asked, selected=Algorithm.INVALID))


def test_an_operation_that_an_algorithm_does_not_do_is_refused() -> None:
    """A single-cycle ring is for all-reduce alone; asking for another operation is refused with the reason."""
    asked = select(Request(EncOp.ALLGATHER, Dtype.BFLOAT16, 64, ((0, 1, 2, 3),)), TRN2, Settings())
    refused = can_compose(asked, Algorithm.SINGLE_CYCLE_RING)
    assert not refused
    with pytest.raises(UnsupportedError, match="SINGLE_CYCLE_RING of all_gather has no composer in this version"):
        compose(asked, Algorithm.SINGLE_CYCLE_RING)


def test_equal_plans_compose_equal_schedules() -> None:
    """Composing is a function of the plan."""
    one, other = plan((0, 1, 2, 3)), plan((0, 1, 2, 3))
    assert compose(one, Algorithm.RING) == compose(other, Algorithm.RING)
    assert compose(replace(one, settings=Settings(slots=4)), Algorithm.RING) != compose(other, Algorithm.RING)
