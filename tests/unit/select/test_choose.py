"""SELECT on one node: windows to the byte, what each kind of group gets, and why each rule answers.

The decision table and the worked outcomes, also those of several nodes, are in `test_worked_outcomes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.select.asking import (
    AG,
    AR,
    INTRA_RDH,
    KANGARING,
    KIB,
    MESH,
    MIB,
    RING,
    RS,
    STEP,
    TRN1,
    TRN2,
    chips,
    plan,
    verdict,
)

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.layouts import documented_groups
from rota.machine.platform import Platform
from rota.request import COMPOSED, Request
from rota.select import Selector, Settings, select
from rota.select.choose import alike
from rota.select.rules import CASCADE

RDH = INTRA_RDH
NODE = chips(*range(16))
ONE_A_CHIP = chips(*range(16), lanes=[0])


def share(group: Sequence[int], size: int, kind: EncOp) -> Algorithm:
    """Return what is selected when each rank's shard has `size` bytes."""
    return plan(group, size * len(group), kind).selected


# --- the table of select §9 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected", "cascade"),
    [(16 * KIB, STEP, MESH), (512 * KIB, MESH, MESH), (8 * MIB, RDH, RDH), (128 * MIB, KANGARING, KANGARING)],
)
def test_64_ranks_bf16_all_reduce(size: int, expected: Algorithm, cascade: Algorithm) -> None:
    """64 ranks, 1 TRN2 node, AR BF16: 16 KiB single-step (a mesh), 512 KiB MESH, 8 MiB INTRA_RDH, 128 MiB KANGARING."""
    decided = plan(NODE, size, dtype=Dtype.BFLOAT16)
    assert decided.selected is expected
    assert next(algorithm for algorithm, said in decided.verdicts if said) is cascade
    assert decided.channels == 4


@pytest.mark.parametrize("lane", range(4))
def test_16_ranks_one_per_chip(lane: int) -> None:
    """16 ranks one per chip, AR 128 MiB: RING, hybrid, with 4 channels."""
    decided = plan(chips(*range(16), lanes=[lane]), 128 * MIB)
    assert (decided.selected, decided.channels) == (RING, 4)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (32 * KIB, STEP),
        (32 * KIB + 1, MESH),
        (8 * MIB - 1, MESH),
        (8 * MIB, MESH),
        (8 * MIB + 1, RING),
        (1 << 30, RING),
    ],
)
def test_trn1_node(size: int, expected: Algorithm) -> None:
    """32 ranks of Trn1, AR: t1 to 32 KiB, t2 to the channel buffer of 8 MiB, then RING; KangaRing needs 4 ranks a chip.

    Source: select §7.3; design §2 (13).
    """
    decided = plan(range(32), size, platform=TRN1)
    assert (decided.selected, decided.channels) == (expected, 4)
    assert verdict(decided, KANGARING) == "no: 2 ranks a chip: it needs at least 4"


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize("size", [64, 16 * MIB])
@pytest.mark.parametrize("platform", [TRN1, TRN2], ids=lambda platform: platform.name)
def test_one_rank(kind: EncOp, size: int, platform: Platform) -> None:
    """S0: a group of one is a copy, reported as RING, with no channels."""
    decided = plan([7], size, kind, platform=platform)
    assert (decided.selected, decided.channels) == (RING, 0)
    assert "one rank" in verdict(decided, RING)


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize("size", [64 * 64, 64 * MIB, 64 * 64 * MIB])
def test_the_single_cycle_guard(kind: EncOp, size: int) -> None:
    """`op == ALLREDUCE` else false, before any other test can make it true; on one node it is never true."""
    reason = verdict(plan(NODE, size, kind), Algorithm.SINGLE_CYCLE_RING)
    if kind is AR:
        assert reason.startswith("no: it runs between nodes")
    else:
        assert reason.startswith("no: it does only all_reduce, not ")


# --- windows, to the byte ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, STEP),
        (32 * KIB - 1, STEP),
        (32 * KIB, STEP),
        (32 * KIB + 1, MESH),
        (256 * KIB - 1, MESH),
        (256 * KIB, MESH),
        (256 * KIB + 1, MESH),
        (MIB - 1, MESH),
        (MIB, MESH),
        (MIB + 1, RDH),
        (56 * MIB - 1, RDH),
        (56 * MIB, RDH),
        (56 * MIB + 1, KANGARING),
    ],
)
def test_windows_of_a_trn2_all_reduce(size: int, expected: Algorithm) -> None:
    """A row admits minimum < size <= maximum: single step to 32 KiB, mesh to 1 MiB, RDH to 56 MiB (select §7.4)."""
    assert plan(NODE, size).selected is expected


@pytest.mark.parametrize(("size", "name"), [(32 * KIB + 1, "pass 0"), (256 * KIB, "pass 0"), (256 * KIB + 1, "pass 1")])
def test_the_two_passes_of_the_mesh(size: int, name: str) -> None:
    """Which pass of the per-device mesh serves a size is in the verdict, though both are reported as MESH."""
    assert f"in the window of mesh {name}, above" in verdict(plan(NODE, size), MESH)


@pytest.mark.parametrize("kind", [AG, RS])
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, MESH),
        (256 * KIB, MESH),
        (256 * KIB + 1, MESH),
        (MIB, MESH),
        (MIB + 1, RDH),
        (56 * MIB, RDH),
        (56 * MIB + 1, KANGARING),
    ],
)
def test_windows_compare_the_shard(kind: EncOp, size: int, expected: Algorithm) -> None:
    """All-gather and reduce-scatter compare C = B / N. Source: select §1.1; design §2 (17)."""
    assert share(NODE, size, kind) is expected


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        (AG, MIB, MESH),
        (AG, MIB + 1, RING),
        (RS, 256 * KIB, MESH),
        (RS, 256 * KIB + 1, RING),
    ],
)
def test_windows_of_trn1_shards(kind: EncOp, size: int, expected: Algorithm) -> None:
    """t2 gathers shards up to 1 MiB and scatters up to the group's part of the channel buffer, 8 MiB / 32 ranks."""
    group = range(32)
    assert plan(group, size * 32, kind, platform=TRN1).selected is expected


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        (AR, 256 * MIB, STEP),
        (AR, 256 * MIB + 1, RING),
        (AG, 2 * 256 * MIB, MESH),
        (RS, 2 * 256 * MIB, MESH),
        (AG, 2 * 256 * MIB + 2, RING),
    ],
)
def test_two_ranks_of_trn1(kind: EncOp, size: int, expected: Algorithm) -> None:
    """t0: two ranks on one node take everything up to 256 MiB in a single step. Source: select §7.3."""
    assert plan([0, 1], size, kind, platform=TRN1).selected is expected


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_smaller_groups_of_trn1(ranks: int) -> None:
    """t1 and t2 of smaller groups: the share grows, the limits stay at 32 KiB and the channel buffer."""
    sizes = [32 * KIB, 32 * KIB + 1, 8 * MIB, 8 * MIB + 1]
    assert [plan(range(ranks), size, platform=TRN1).selected for size in sizes] == [STEP, MESH, MESH, RING]


# --- groups of Trn2 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "middle", "large"),
    [
        (chips(0), RDH, RING),  # 4 ranks: KangaRing needs more than 4
        (chips(0, 1), RDH, RING),  # one cable: no primary owns both ends
        (chips(0, 1, 2, 3), RDH, KANGARING),  # a row, all straight
        (chips(0, 1, 4, 5), RDH, KANGARING),  # a square that turns across dies
        (chips(1, 2, 5, 6), RDH, RING),  # a square that turns on one die
        (chips(*range(8)), KANGARING, KANGARING),  # 8 chips are no RDH geometry
        (chips(0, 1, 2), RING, RING),  # an open chain
        (chips(*range(12)), KANGARING, KANGARING),  # three rows: a cycle, no documented size
        (chips(0, 1, lanes=[2]), RING, RING),
        (chips(0, 1, 2, 3, lanes=[1]), RING, RING),
        (ONE_A_CHIP, RING, RING),
        (chips(0, lanes=[0, 1]), RING, RING),
    ],
)
def test_what_a_group_gets_above_the_mesh(group: tuple[int, ...], middle: Algorithm, large: Algorithm) -> None:
    """RDH takes whole sets of 1, 2, 4 or 16 chips; KangaRing whole chips on a cycle whose ports primaries own.

    Source: select §4, §5.1 and §5.2; topology §4, last column.
    """
    decided = [plan(group, size).selected for size in (8 * MIB, 57 * MIB)]
    assert decided == [middle, large]


@pytest.mark.parametrize(
    ("group", "algorithm", "reason"),
    [
        (NODE, Algorithm.HIER, "the group lies on one node"),
        (NODE, Algorithm.INTER_RDH, "it runs between nodes with one rank each"),
        (ONE_A_CHIP, RDH, "16 ranks on 16 chips: it takes all ranks of 1, 2, 4 or 16 chips, 4, 8, 16, 64 ranks in all"),
        (chips(*range(8)), RDH, "32 ranks on 8 chips"),
        (chips(0, 1, 2), MESH, "12 ranks: a mesh takes 2, 4, 8, 16, 32, 64, 128"),
        (chips(0), KANGARING, "4 ranks: at LNC 2 it needs at least 5"),
        (chips(0, 1), KANGARING, "two chips share one cable each way"),
        (chips(0, 1, 2), KANGARING, "these are an open chain"),
        (chips(1, 2, 5, 6), KANGARING, "the ring turns on one die of chips 1-2,5-6"),
        (ONE_A_CHIP, KANGARING, "1 rank a chip: it needs at least 4"),
        (NODE, MESH, "size 2M is outside its windows, above 0 and up to 1M"),
        (chips(0), RING, "this group gets 2 of the node's 4 ring channels"),
    ],
)
def test_reasons(group: tuple[int, ...], algorithm: Algorithm, reason: str) -> None:
    """A rule that can say no says why, with the numbers it looked at."""
    assert reason in verdict(plan(group, 2 * MIB), algorithm)


def test_trn1_has_no_recursive_doubling() -> None:
    """RDH is built for chips of 4 or 8 ranks. Source: select §5.2."""
    for ranks in (4, 8, 16):
        assert "these have 2" in verdict(plan(range(ranks), 2 * MIB, platform=TRN1), RDH)


# --- the decision as a value ------------------------------------------------------------------------------------------


def test_every_rule_is_asked_in_the_order_of_the_cascade() -> None:
    """Every predicate is evaluated, it is not short-circuit; the first that agrees wins. Source: select §5.2."""
    decided = plan(NODE, 16 * KIB)
    assert [algorithm for algorithm, _ in decided.verdicts] == [algorithm for algorithm, _ in CASCADE]
    assert [algorithm for algorithm, said in decided.verdicts if said] == [MESH, KANGARING, RING]
    assert decided.selected is STEP  # refined by the row that admits


GROUPS = {platform.name: documented_groups(platform) for platform in (TRN1, TRN2)}


@st.composite
def requests(draw: st.DrawFn) -> tuple[Request, Platform]:
    """Any request of a documented group of either machine."""
    platform = draw(st.sampled_from([TRN1, TRN2]))
    group = draw(st.sampled_from(GROUPS[platform.name]))
    kind = draw(st.sampled_from(COMPOSED))
    dtype = draw(st.sampled_from([Dtype.BFLOAT16, Dtype.FP32, Dtype.INT8, Dtype.FP8_EXP5]))
    count = draw(st.integers(1, 1 << draw(st.integers(0, 32)))) * (1 if kind is AR else len(group))
    op = None if kind is AG else draw(st.sampled_from([CceType.ADD, CceType.MIN]))
    return Request(kind, dtype, count, (draw(st.permutations(group).map(tuple)),), op, integer_as_fp32=True), platform


@settings(max_examples=150, deadline=None)
@given(asked=requests())
def test_selecting_is_total(asked: tuple[Request, Platform]) -> None:
    """Any legal request of a documented group gets an algorithm, with a reason and a source from every rule.

    There is no search and no cost model: equal requests get equal decisions, and RING is always admitted.
    """
    request, platform = asked
    decided = select(request, platform, Settings())
    assert decided.selected in (STEP, MESH, RDH, KANGARING, RING)
    for _, said in decided.verdicts:
        assert said.reason
        assert said.source is not None
        assert said.source.confidence in (HIGH, CONVENTION) or said.source.section == "7.1"
    assert dict(decided.verdicts)[RING]
    if decided.selected is STEP:
        assert request.kind is AR
    assert decided.channels == len(decided.wirings[0].channels)
    assert select(request, platform, Settings()) == decided


def test_the_order_of_members_does_not_matter() -> None:
    """The members of a group in another order make the same decision."""
    for size in (16 * KIB, 2 * MIB, 64 * MIB):
        assert plan(NODE, size).selected is plan(NODE[::-1], size).selected


def test_groups_decided_together_get_equally_many_channels() -> None:
    """Groups of one request run together; where their channels differ they are two requests."""
    request = Request(AR, Dtype.BFLOAT16, 64, (chips(0, 1), chips(2, 3)), CceType.ADD)
    assert select(request, TRN2, Settings()).channels == 1
    mixed = Request(AR, Dtype.BFLOAT16, 64, (chips(0, 1), chips(4, 8, 12, 5, 9, 13, 6, 10, lanes=[0])), CceType.ADD)
    with pytest.raises(UnsupportedError, match="different numbers of ring channels; make one request for each"):
        select(mixed, TRN2, Settings())


def test_groups_the_machine_refuses() -> None:
    """A group of 5 on Trn1 cannot be wired; a rank outside the node is not there."""
    with pytest.raises(UnsupportedError, match="0 of the node's 4 ring channels") as error:
        plan(range(5), 64, platform=TRN1)
    assert error.value.source is not None
    with pytest.raises(UsageError, match="rank 32 is not on trn1"):
        plan([31, 32], 64, platform=TRN1)


def test_groups_decided_together_get_one_algorithm() -> None:
    """Two squares have two channels each, but one turns on one die: above the RDH window they are two requests."""
    turns, straight = chips(9, 10, 13, 14), chips(0, 1, 4, 5)
    both = Request(AR, Dtype.BFLOAT16, 57 * MIB, (straight, turns), CceType.ADD)
    with pytest.raises(UnsupportedError, match="different algorithms; make one request for each"):
        select(both, TRN2, Settings())
    parts = [select(alike(both, (group,)), TRN2, Settings()) for group in both.groups]
    assert [(part.selected, part.channels) for part in parts] == [(KANGARING, 2), (RING, 2)]
    assert parts[0].request.groups == (straight,)


def test_pairs_go_with_their_groups() -> None:
    """A part of a permute keeps the pairs of its groups alone."""
    pairs = ((0, 1), (1, 0), (2, 3), (3, 2))
    asked = Request(EncOp.PERMUTE, Dtype.BFLOAT16, 64, ((0, 1), (2, 3)), pairs=pairs)
    assert alike(asked, ((2, 3),)).pairs == ((2, 3), (3, 2))
    assert alike(asked, asked.groups) == asked


def test_a_selector_makes_a_communicator_once() -> None:
    """The communicator of a group is made when the group is first met, and kept; one for pairs is another."""
    selector = Selector(TRN2, Settings())
    assert selector.communicator(NODE) is selector.communicator(NODE)
    assert selector.communicator(NODE, pairs=True) is not selector.communicator(NODE)
    assert Selector(TRN2, Settings()).communicator(NODE) is not selector.communicator(NODE)


def test_a_choice_at_another_size() -> None:
    """`choice_at` speaks of the size SELECT compares, whatever the request's own size is."""
    selector = Selector(TRN2, Settings())
    asked = selector.select(Request(AG, Dtype.FP8_EXP4, 64, (NODE,)))
    assert asked.selected is MESH
    assert selector.choice_at(asked.request, MIB + 1).selected is RDH
    assert selector.choice_at(asked.request, 57 * MIB).selected is KANGARING


def test_notes_of_settings_that_spoil_the_result() -> None:
    """A NOP collective and a forced single rank warn."""
    assert "NEURON_RT_DBG_CC_NOP=1" in plan(NODE, 64, settings=Settings(nop=True)).notes[0]
    assert plan(NODE, 64).notes == ()
