"""Selecting is total: any machine, group, operation, size and settings give a plan, or a refusal with its reason."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import INTEGERS, Dtype, size_of
from rota.isa.enums import REDUCING, Algorithm, CceType, EncOp
from rota.machine.layouts import documented_groups
from rota.machine.platform import Platform, known_platforms, load_platform
from rota.request import COMPOSED, PAIRED, Request, Staging
from rota.select import Plan, Selector, Settings
from rota.select.chunking import chunks, scratch_pieces, slices
from rota.select.hierarchy import LEGAL, LEGS, SLOTS
from rota.select.rules import CASCADE
from rota.select.whatif import what_if

KINDS = [kind for kind in EncOp if kind is not EncOp.INVALID] + 4 * list(COMPOSED)  # all, some more often
DTYPES = [dtype for dtype in Dtype if size_of(dtype)]
MESHES = {
    Algorithm.MESH,
    Algorithm.SINGLE_STEP_MESH,
    Algorithm.TWO_STEP_POD_MESH,
    Algorithm.LATENCY_OPT_MESH,
    Algorithm.BW_OPT_MESH,
}


@cache
def machine(name: str, nodes: int, lnc: int | None) -> Platform | None:
    """Return a machine; None where it refuses the number of nodes or the LNC."""
    try:
        return load_platform(name, nodes=nodes, lnc=lnc)
    except (UnsupportedError, UsageError):
        return None


@st.composite
def platforms(draw: st.DrawFn) -> Platform:
    """Any built-in machine of one to four nodes."""
    nodes = draw(st.sampled_from([1, 1, 2, 3, 4]))
    found = machine(draw(st.sampled_from(known_platforms())), nodes, draw(st.sampled_from([None, 1, 2])))
    assume(found is not None)
    assert found is not None
    return found


@st.composite
def groups(draw: st.DrawFn, platform: Platform) -> tuple[int, ...]:
    """Ranks in any order: a handful, every n-th, whole boxes of chips over some nodes, a documented group, or all."""
    form = draw(st.sampled_from(["some", "strided", "box", "box", "documented", "all"]))
    lanes, chips = platform.ranks_per_chip, platform.chip_count
    if form == "all":
        return tuple(range(platform.ranks))
    if form == "documented":
        known = documented_groups(platform)
        assume(known)
        return tuple(draw(st.sampled_from(known)))
    if form == "some":
        members = draw(st.lists(st.integers(0, platform.ranks - 1), min_size=1, max_size=12, unique=True))
        return tuple(members)
    if form == "strided":
        step = draw(st.sampled_from([1, 2, 3, 4, lanes, 2 * lanes, platform.node_ranks, platform.node_ranks // 2 or 1]))
        first = draw(st.integers(0, platform.ranks - 1))
        count = draw(st.integers(1, min((platform.ranks - 1 - first) // step + 1, 256)))
        return tuple(first + step * i for i in range(count))
    first, count = draw(st.integers(0, platform.chips - 1)), draw(st.integers(1, platform.chips))
    nodes = draw(st.lists(st.integers(0, platform.nodes - 1), min_size=1, max_size=8, unique=True))
    some = draw(st.sampled_from([range(lanes), range(1), range(lanes // 2), range(1, lanes)]))
    here = range(first, min(first + count, platform.chips))
    boxed = [lanes * (platform.chips * node + chip) + lane for node in sorted(nodes) for chip in here for lane in some]
    assume(boxed and max(boxed) < lanes * chips)
    return tuple(boxed)


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    """The defaults, or anything that SELECT reads."""
    if draw(st.booleans()):
        return Settings()
    mode = st.integers(0, 2)
    return Settings(
        alg_types=draw(st.sampled_from([(1 << 22) - 1]) | st.integers(0, (1 << 22) - 1)),
        chunk=64 * draw(st.integers(1, 1 << 16)),
        hier_mode=draw(mode),
        hier_pipeline=draw(mode | st.integers(3, 16)),
        kangaring_mode=draw(mode),
        single_cycle_mode=draw(mode),
        rdh_mode=draw(st.integers(0, 1)),
        mesh=draw(st.booleans()),
        inter_mesh_max_nodes=draw(st.sampled_from([0, 1, 4, 16, 64])),
        mesh_channel_buffer=64 * draw(st.integers(1, 1 << 18)),
        mesh_double_buffer=draw(st.booleans()),
        intra_rdh_buffer=draw(st.none() | st.integers(1, 1 << 20).map(lambda part: 64 * part)),
        inter_rdh_buffer=64 * draw(st.integers(1, 1 << 20)),
        inter_rdh_window=draw(st.sampled_from([0, 1, 32, 1 << 16])),
        hybrid_ring=draw(st.booleans()),
        force_single_rank=draw(st.integers(0, 9)) == 0,
        nop=draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn, platform: Platform) -> Request:
    """Any request of one group."""
    group = draw(groups(platform))
    kind, dtype = draw(st.sampled_from(KINDS)), draw(st.sampled_from(DTYPES))
    each = draw(st.integers(1, 1 << draw(st.integers(0, 30))))
    sharded = kind in (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL)
    return Request(
        kind=kind,
        dtype=dtype,
        count=each * len(group) if sharded else each,
        groups=(group,),
        op=draw(st.sampled_from([CceType.ADD, CceType.MAX, CceType.MIN])) if kind in REDUCING else None,
        integer_as_fp32=dtype in INTEGERS,
        pairs=tuple(zip(group, (*group[1:], group[0]), strict=True)) if kind in PAIRED else (),
        staging=draw(st.sampled_from([None, *Staging])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Selector, Request]:
    """Any machine with any settings, and a request."""
    platform = draw(platforms())
    selector = Selector(
        platform,
        draw(any_settings()),
        streams=draw(st.sampled_from([1, 1, 1, 2])),
        any_group=draw(st.booleans()),
    )
    return selector, draw(requests(platform))


def check_plan(plan: Plan) -> None:
    """What holds of every plan: reasons, sources, and that the winner is what the table of ops allows."""
    kind = plan.request.kind
    assert [algorithm for algorithm, _ in plan.verdicts] == [algorithm for algorithm, _ in CASCADE]
    for _, said in (*plan.verdicts, *plan.admissions):
        assert said.reason
        assert said.source is not None
    assert plan.channels == len(plan.wirings[0].channels)
    if plan.request.ranks > 1 and not plan.settings.force_single_rank:
        assert dict(plan.verdicts)[plan.winner]
        assert plan.selected is plan.winner or (plan.winner is Algorithm.MESH and plan.selected in MESHES)
    assert (plan.carrier is not None) is (plan.winner in (Algorithm.MESH, Algorithm.INTRA_RDH))
    assert bool(plan.legs) is (plan.winner is Algorithm.HIER)
    if plan.legs:
        assert [leg.slot for leg in plan.legs] == [slot for slot, *_ in SLOTS]
        assert {leg.slot for leg in plan.legs if leg.used} == set(LEGS[kind])
        assert all(leg.algorithm in LEGAL[leg.slot] for leg in plan.legs if leg.used)
        for leg in plan.legs:
            agreeing = [algorithm for algorithm, said in leg.verdicts if said]
            assert leg.algorithm is (agreeing[0] if agreeing else Algorithm.INVALID)


def decided(selector: Selector, request: Request) -> Plan | str:
    """Return the plan, or the reason why there is none."""
    try:
        return selector.select(request)
    except (UnsupportedError, UsageError) as error:
        return str(error)


def check_total(selector: Selector, request: Request) -> None:
    """Select, and accept a plan or one of our refusals."""
    plan = decided(selector, request)
    if isinstance(plan, str):
        assert plan
        return
    check_plan(plan)
    assert selector.choice_at(request, request.select_size).selected is plan.selected
    found = chunks(plan)
    assert (found is None) is (plan.channels == 0)
    assert slices(plan).count == 1
    assert scratch_pieces(plan, selector.platform.arch) >= 1


SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases())
def test_selecting_anything_gives_a_plan_or_a_reason(case: tuple[Selector, Request]) -> None:
    """A plan, or an UnsupportedError or UsageError with its reason; never another error, never silence."""
    check_total(*case)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases())
def test_selecting_anything_gives_a_plan_or_a_reason_ten_thousand_times(case: tuple[Selector, Request]) -> None:
    """The same, 10,000 times."""
    check_total(*case)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases())
def test_equal_requests_get_equal_plans(case: tuple[Selector, Request]) -> None:
    """There is no search and no state: a second selector decides the same, and so does the first one again."""
    selector, request = case
    other = Selector(selector.platform, selector.settings, streams=selector.streams, any_group=selector.any_group)
    first = decided(selector, request)
    assert decided(other, request) == first
    assert decided(selector, request) == first


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(), data=st.data())
def test_the_order_of_members_does_not_matter(case: tuple[Selector, Request], data: st.DataObject) -> None:
    """The members of a group in another order make the same decision."""
    selector, request = case
    assume(request.kind not in PAIRED and request.ranks < 300)
    mixed = tuple(data.draw(st.permutations(request.groups[0])))
    other = Request(
        request.kind, request.dtype, request.count, (mixed,), request.op, staging=request.staging, integer_as_fp32=True
    )
    plan, again = decided(selector, request), decided(selector, other)
    assert isinstance(plan, str) is isinstance(again, str)
    if not isinstance(plan, str) and not isinstance(again, str):
        assert (again.selected, again.legs, again.channels) == (plan.selected, plan.legs, plan.channels)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases())
def test_what_if_is_total(case: tuple[Selector, Request]) -> None:
    """Where there is a plan, every change named is another choice, or a refusal."""
    selector, request = case
    plan = decided(selector, request)
    if isinstance(plan, str):
        return
    used = {leg.slot: leg.algorithm for leg in plan.legs if leg.used}
    for change in what_if(selector, request):
        assert change.algorithm is not plan.selected or used
        assert change.what.startswith("NEURON_RT_")
