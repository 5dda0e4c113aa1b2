"""Switch points: the acceptance sweeps to the element, and that a sweep says what asking at every size would say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.select.asking import (
    A2A,
    AG,
    AR,
    GIB,
    HIER,
    INTER_RDH,
    INTRA_RDH,
    KANGARING,
    KIB,
    MESH,
    MIB,
    RING,
    RS,
    SINGLE_CYCLE,
    STEP,
    TRN1,
    TRN2,
    chips,
    one_a_node,
    ranges,
    request,
    windows,
)

from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import Platform, load_platform
from rota.select import Selector, Settings
from rota.select.whatif import FLIPS, SizeRange, switch_points, what_if

BF16 = Dtype.BFLOAT16
NODE = chips(*range(16))
FOUR, SIX = load_platform("trn2.48xlarge", nodes=4), load_platform("trn2.48xlarge", nodes=6)
SIXTEEN, TWO_TRN1 = load_platform("trn2.48xlarge", nodes=16), load_platform("trn1.32xlarge", nodes=2)


def at(group: tuple[int, ...] | range, size: int, platform: Platform, kind: EncOp = AR) -> Algorithm:
    """Return what is selected at one size; bf16."""
    return Selector(platform, Settings()).select(request(group, size, kind, dtype=BF16)).selected


# --- the acceptance sweeps --------------------------------------------------------------------------------------------


def test_sweep_of_64_ranks_bf16_all_reduce_on_trn2() -> None:
    """Single-step to 32 KiB, mesh to 1 MiB, RDH to 56 MiB, KangaRing above: at, one element below, one above."""
    found = ranges(NODE, dtype=BF16)
    assert windows(found) == [(32 * KIB, STEP), (MIB, MESH), (56 * MIB, INTRA_RDH), (4 * GIB, KANGARING)]
    for lower, upper in pairwise(found):
        assert upper.first == lower.last + 2
        selected = [at(NODE, lower.last + 2 * away, TRN2) for away in (-1, 0, 1)]
        assert selected == [lower.algorithm, lower.algorithm, upper.algorithm]


def test_sweep_of_32_ranks_all_reduce_on_trn1() -> None:
    """Single-step to 32 KiB, mesh to 8 MiB, then ring."""
    found = ranges(range(32), platform=TRN1, dtype=BF16)
    assert windows(found) == [(32 * KIB, STEP), (8 * MIB, MESH), (4 * GIB, RING)]
    for lower, upper in pairwise(found):
        selected = [at(range(32), lower.last + 2 * away, TRN1) for away in (-1, 0, 1)]
        assert selected == [lower.algorithm, lower.algorithm, upper.algorithm]


def test_sweep_of_4_nodes_of_trn2_is_hier() -> None:
    """HIER at every size; its legs switch at 16 MiB (inter), 64 MiB and 3584 MiB (intra), each of 64 ranks."""
    found = ranges(range(256), platform=FOUR, dtype=BF16)
    assert {each.algorithm for each in found} == {HIER}
    expected = [
        (16 * MIB, MESH, MESH),
        (64 * MIB, MESH, RING),
        (64 * 56 * MIB, INTRA_RDH, RING),
        (4 * GIB, KANGARING, RING),
    ]
    assert [(each.last, dict(each.legs)["intra_redsct"], dict(each.legs)["inter_allr"]) for each in found] == expected
    for each in found:
        legs = dict(each.legs)
        assert list(legs) == ["intra_allg", "intra_redsct", "inter_allr"]
        assert legs["intra_allg"] is legs["intra_redsct"]
    selector = Selector(FOUR, Settings())
    for lower, upper in pairwise(found):
        for away, expected in ((-1, lower), (0, lower), (1, upper)):
            asked = request(range(256), lower.last + 2 * away, dtype=BF16)
            decided = selector.select(asked)
            assert (decided.selected, decided.leg_names) == (HIER, {slot: one.name for slot, one in expected.legs})
            assert len(decided.legs) == 5


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # RS compares C: intra_slice = C / 64, inter_slice = intra_slice x 4, in whole buffers of 256 C
        (RS, [(256 * 16 * MIB, {"intra_redsct": MESH, "inter_redsct": MESH})]),
        (AG, [(256 * 16 * MIB, {"intra_allg": MESH, "inter_allg": MESH})]),
    ],
)
def test_sweep_of_4_nodes_of_trn2_sharded(kind: EncOp, expected: list[tuple[int, dict[str, Algorithm]]]) -> None:
    """The first switch of a reduce-scatter and an all-gather of 4 nodes is that of the inter leg, at 16 MiB a rank."""
    found = ranges(range(256), kind, platform=FOUR, most=8 * GIB)
    assert [(each.last, dict(each.legs)) for each in found[:1]] == expected
    assert set(dict(found[1].legs).values()) == {MESH, RING}


def test_sweep_of_one_rank_a_node() -> None:
    """16 nodes x 1: single-step, mesh, INTER_RDH; 6 nodes: RING instead, with the single-cycle ring in between."""
    assert windows(ranges(one_a_node(SIXTEEN), platform=SIXTEEN)) == [
        (32 * KIB, STEP),
        (MIB, MESH),
        (4 * GIB, INTER_RDH),
    ]
    assert windows(ranges(one_a_node(SIX), platform=SIX)) == [(32 * KIB, STEP), (MIB, MESH), (4 * GIB, RING)]
    single = Settings(single_cycle_mode=0)
    assert windows(ranges(one_a_node(SIX), platform=SIX, settings=single)) == [
        (32 * KIB, STEP),
        (MIB, MESH),
        (2 * MIB, SINGLE_CYCLE),
        (4 * GIB, RING),
    ]


@pytest.mark.parametrize("kind", [AR, AG])
def test_sweep_of_inter_rdh(kind: EncOp) -> None:
    """INTER_RDH needs an element for each rank, and tiles in flight that fit its scratch (conventions).

    With a window of 32 tiles of 2 MiB its 32 MiB hold shares of 1 MiB, 16 of them in a buffer.
    """
    windowed = Settings(mesh=False, inter_rdh_window=32)
    found = windows(ranges(one_a_node(SIXTEEN), kind, platform=SIXTEEN, settings=windowed))
    least = [(15, RING)] if kind is AR else []  # a gather has an element of every rank
    assert found == [*least, (16 * MIB, INTER_RDH), (4 * GIB, RING)]
    usual = windows(ranges(one_a_node(SIXTEEN), kind, platform=SIXTEEN, settings=Settings(mesh=False)))
    assert usual == [*least, (4 * GIB, INTER_RDH)]


def test_sweep_of_two_nodes_of_trn1_is_flat() -> None:
    """Trn1 has a flat ring over nodes, so it is RING at every size and HIER only where it is forced."""
    assert windows(ranges(range(64), platform=TWO_TRN1)) == [(4 * GIB, RING)]
    forced = ranges(range(64), platform=TWO_TRN1, settings=Settings(hier_mode=1))
    assert {each.algorithm for each in forced} == {HIER}


@pytest.mark.parametrize("kind", [AG, RS])
def test_sweep_of_shards_on_trn2(kind: EncOp) -> None:
    """All-gather and reduce-scatter switch at 64 times the limits, which speak of one rank's shard."""
    assert windows(ranges(NODE, kind)) == [(64 * MIB, MESH), (64 * 56 * MIB, INTRA_RDH), (4 * GIB, KANGARING)]


def test_sweep_at_lnc_1() -> None:
    """128 ranks of Trn2 at LNC 1 have the same windows; the single step holds 8 MiB / 128 / 2 = 32 KiB still."""
    found = ranges(range(128), platform=load_platform("trn2.48xlarge", lnc=1))
    assert windows(found) == [(32 * KIB, STEP), (MIB, MESH), (56 * MIB, INTRA_RDH), (4 * GIB, KANGARING)]


def test_a_refusal_is_a_range_of_its_own() -> None:
    """Trn1's all-to-all ends at 1 MiB; above, the range says why."""
    found = ranges(range(32), A2A, platform=TRN1)
    assert windows(found) == [(MIB, MESH), (4 * GIB, None)]
    assert found[1].name == "refused"
    assert "alltoall cannot be supported without Mesh algorithm" in found[1].refused
    assert found[0].refused == ""


# --- as a function ----------------------------------------------------------------------------------------------------

CASES = [
    (TRN2, NODE),
    (TRN2, chips(0, 1, 4, 5)),
    (TRN1, tuple(range(32))),
    (TRN1, (0, 1)),
    (FOUR, tuple(range(256))),
    (TWO_TRN1, tuple(range(64))),
    (SIXTEEN, one_a_node(SIXTEEN)),
    (SIX, one_a_node(SIX)),
    (load_platform("trn3pds98"), tuple(range(32))),
    (load_platform("trn3pds98"), tuple(range(576))),
    (load_platform("trn2u.48xlarge", nodes=4), (0, 64, 128, 192)),
]


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[Selector, tuple[int, ...], EncOp, Dtype]:
    """A group, an operation, and settings that move the switch points."""
    platform, group = draw(st.sampled_from(CASES))
    chosen = Settings(
        chunk=64 * draw(st.integers(1, 1 << 16)),
        hier_mode=draw(st.integers(0, 2)),
        kangaring_mode=draw(st.integers(0, 2)),
        single_cycle_mode=draw(st.integers(0, 2)),
        mesh=draw(st.booleans()),
        mesh_channel_buffer=64 * draw(st.integers(1, 1 << 18)),
        inter_rdh_buffer=64 * draw(st.integers(1, 1 << 19)),
        inter_rdh_window=draw(st.sampled_from([0, 1, 32, 4096])),
    )
    kind = draw(st.sampled_from([AR, AR, AG, RS, A2A]))
    return Selector(platform, chosen), group, kind, draw(st.sampled_from([Dtype.FP8_EXP4, BF16, Dtype.FP32]))


def said(selector: Selector, group: tuple[int, ...], size: int, kind: EncOp, dtype: Dtype) -> tuple[object, ...]:
    """Return the algorithm and legs at one size of the whole buffer."""
    asked = request(group, size, kind, dtype=dtype)
    try:
        choice = selector.choice_at(asked, asked.select_size)
    except UnsupportedError:
        return (None, ())
    for leg in choice.legs:  # what is kept between two edges is what the rules say at this size
        assert leg.algorithm is next(algorithm for algorithm, said in leg.verdicts if said)
    return (choice.selected, tuple((leg.slot, leg.algorithm) for leg in choice.legs if leg.used))


@settings(max_examples=120, deadline=None)
@given(case=sweeps())
def test_a_sweep_is_what_every_size_says(case: tuple[Selector, tuple[int, ...], EncOp, Dtype]) -> None:
    """Ranges follow each other without a gap, neighbours differ, and both ends of each say what the range says."""
    selector, group, kind, dtype = case
    asked = request(group, 4 * len(group), kind, dtype=dtype)
    low, high = 1, 1 << 34
    found = switch_points(selector, asked, low, high)
    shard = asked.itemsize * (asked.ranks if kind in (AG, RS) else 1)
    assert found[0].first == shard
    assert found[-1].last == high // shard * shard
    for lower, upper in pairwise(found):
        assert upper.first == lower.last + shard
        assert (lower.algorithm, lower.legs) != (upper.algorithm, upper.legs)
    whole = asked.ranks * asked.itemsize if kind is A2A else shard  # what a request of this kind may have
    for each in found:
        for size in (each.first, (each.first + each.last) // 2, each.last):
            if whole <= size // whole * whole and each.first <= size // whole * whole:
                assert said(selector, group, size // whole * whole, kind, dtype) == (each.algorithm, each.legs)


@settings(max_examples=60, deadline=None)
@given(case=sweeps(), low=st.integers(1, 1 << 20), length=st.integers(0, 1 << 20))
def test_a_part_of_a_sweep_is_a_part(
    case: tuple[Selector, tuple[int, ...], EncOp, Dtype], low: int, length: int
) -> None:
    """Sweeping a part of the sizes gives the ranges of the whole, cut at its ends."""
    selector, group, kind, dtype = case
    asked = request(group, 4 * len(group), kind, dtype=dtype)
    part = switch_points(selector, asked, low, low + length)
    whole = switch_points(selector, asked, 1, 1 << 34)
    for each in part:
        inside = [all_ for all_ in whole if all_.first <= each.first and each.last <= all_.last]
        assert [(one.algorithm, one.legs) for one in inside] == [(each.algorithm, each.legs)]
        assert low <= each.first <= each.last <= low + length


def test_a_sweep_without_sizes_is_empty() -> None:
    """Between two sizes that hold no whole element of every shard there is no range."""
    assert ranges(NODE, AG, most=63) == ()
    selector = Selector(TRN2, Settings())
    assert switch_points(selector, request(NODE, 64), 9, 8) == ()


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "platform", "size", "expected"),
    [
        (NODE, TRN2, 512 * KIB, {"NEURON_RT_DBG_MESH_CC=0": KANGARING, "NEURON_RT_DBG_KANGARING_CC=1": KANGARING}),
        (
            NODE,
            TRN2,
            8 * MIB,
            {
                "NEURON_RT_DBG_MESH_CC=0": KANGARING,
                "NEURON_RT_DBG_RDH_CC=0": KANGARING,
                "NEURON_RT_DBG_KANGARING_CC=1": KANGARING,
            },
        ),
        (NODE, TRN2, 128 * MIB, {"NEURON_RT_DBG_KANGARING_CC=2": RING}),
        (one_a_node(SIX), SIX, 2 * MIB, {"NEURON_RT_DBG_SINGLE_CYCLE_RING_ALLR_CC=0": SINGLE_CYCLE}),
    ],
)
def test_settings_that_would_change_the_winner(
    group: tuple[int, ...], platform: Platform, size: int, expected: dict[str, Algorithm]
) -> None:
    """Each change alone, with what it lets win."""
    changes = what_if(Selector(platform, Settings()), request(group, size, dtype=BF16))
    assert {change.what: change.algorithm for change in changes} == expected


def test_a_setting_may_leave_nothing() -> None:
    """Without HIER nothing carries an all-reduce over 4 nodes: the change is a refusal."""
    changes = {each.what: each for each in what_if(Selector(FOUR, Settings()), request(range(256), 256 * KIB))}
    assert changes["NEURON_RT_DBG_HIERARCHICAL_CC=2"].name == "refused"
    assert changes["NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES=0"].algorithm is HIER  # with other legs


def test_a_setting_that_is_already_so_is_no_change() -> None:
    """What is set already is not proposed."""
    for variable, value, flip in FLIPS:
        now = flip(Settings())
        named = [change.what for change in what_if(Selector(TRN2, now), request(NODE, 64))]
        assert f"{variable}={value}" not in named


@settings(max_examples=60, deadline=None)
@given(case=sweeps(), size=st.integers(1, 1 << 30))
def test_a_change_does_what_it_says(case: tuple[Selector, tuple[int, ...], EncOp, Dtype], size: int) -> None:
    """Selecting with the changed setting gives the named algorithm, and what is not named changes nothing."""
    selector, group, kind, dtype = case
    whole = len(group) * 4
    asked = request(group, -(-size // whole) * whole, kind, dtype=dtype)
    now = said(selector, group, asked.size, kind, dtype)
    if now[0] is None:
        return
    changes = {(change.variable, change.value): change.algorithm for change in what_if(selector, asked)}
    for variable, value, flip in FLIPS:
        other = said(Selector(selector.platform, flip(selector.settings)), group, asked.size, kind, dtype)
        assert ((variable, value) in changes) is (other != now)
        if other != now:
            assert changes[variable, value] is other[0]


def test_a_range_names_itself() -> None:
    """A range is called after its algorithm."""
    assert SizeRange(1, 2, RING).name == "RING"
    with pytest.raises(UsageError, match="rank 64 is not on"):
        switch_points(Selector(TRN2, Settings()), request((0, 64), 64), 1, 64)
