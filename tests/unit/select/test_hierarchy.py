"""The five slots of a hierarchy: slices, priorities, legality, and the pipeline. Source: select §6."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.unit.select.asking import (
    AG,
    AR,
    HIER,
    INTER_RDH,
    INTRA_RDH,
    KANGARING,
    KIB,
    MESH,
    MIB,
    POD,
    RING,
    RS,
    SINGLE_CYCLE,
    SWITCH,
    chips,
    one_a_node,
    plan,
    ranges,
    request,
)
from tests.unit.select.asking import legs as leg_names

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, no, yes
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import load_platform
from rota.request import Staging
from rota.select import Selector, Settings
from rota.select import hierarchy as module
from rota.select.chunking import scratch_pieces
from rota.select.hierarchy import LEGAL, LEGALITY_SOURCE, LEGS, SLOTS, STAGES, legs, pipeline_slices
from rota.select.settings import parse_alg_types

FOUR, EIGHT = load_platform("trn2.48xlarge", nodes=4), load_platform("trn2.48xlarge", nodes=8)
ULTRA = load_platform("trn2u.48xlarge", nodes=4)
ALL = tuple(range(256))
NAMES = ["intra_allg", "intra_redsct", "inter_allr", "inter_allg", "inter_redsct"]


# --- slots, slices, priorities ----------------------------------------------------------------------------------------


def test_five_slots_in_the_order_in_which_they_are_logged() -> None:
    """alg_intra_allg, alg_intra_redsct, alg_inter_allr, alg_inter_allg, alg_inter_redsct (offsets +224 to +240)."""
    assert [slot for slot, *_ in SLOTS] == NAMES
    assert [leg.slot for leg in plan(ALL, MIB, platform=FOUR).legs] == NAMES


@pytest.mark.parametrize(
    ("slot", "scope", "op", "tested"),
    [
        ("intra_allg", "intra", AG, [INTRA_RDH, MESH, KANGARING]),
        ("intra_redsct", "intra", RS, [INTRA_RDH, MESH, KANGARING]),
        ("inter_allr", "inter", AR, [MESH, INTER_RDH, SINGLE_CYCLE]),
        ("inter_allg", "inter", AG, [MESH, INTER_RDH]),
        ("inter_redsct", "inter", RS, [MESH, INTER_RDH]),
    ],
)
def test_what_each_slot_tests(slot: str, scope: str, op: EncOp, tested: list[Algorithm]) -> None:
    """The priority lists of select §6, high."""
    assert {name: (where, kind, list(asks)) for name, where, kind, asks in SLOTS}[slot] == (scope, op, tested)
    (leg,) = (leg for leg in plan(ALL, MIB, platform=FOUR).legs if leg.slot == slot)
    assert [algorithm for algorithm, _ in leg.verdicts] == [*tested, RING]


def test_the_call_census() -> None:
    """Mesh x5, inter_rdh x3, intra_rdh x2, kangaring x2, single_cycle x1. Source: select §6, high; all-reduce §6.1."""
    calls = [algorithm for *_, asks in SLOTS for algorithm in asks]
    census = {MESH: 5, INTER_RDH: 3, INTRA_RDH: 2, KANGARING: 2, SINGLE_CYCLE: 1}
    assert {algorithm: calls.count(algorithm) for algorithm in calls} == census


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, MIB, MIB + 1])
def test_slices(size: int) -> None:
    """intra_slice = ceil(per-rank bytes / intra.rank_n); inter_slice = intra_slice x inter.node_n. High."""
    sizes = {leg.slot: leg.size for leg in plan(ALL, size, platform=FOUR).legs}
    intra = -(-size // 64)
    assert sizes == {slot: intra if slot.startswith("intra") else 4 * intra for slot in NAMES}


@pytest.mark.parametrize("kind", [AG, RS])
def test_slices_of_sharded_operations_are_of_one_ranks_bytes(kind: EncOp) -> None:
    """Per-rank bytes are C for all-gather and reduce-scatter: SELECT's size."""
    sizes = {leg.slot: leg.size for leg in plan(ALL, 256 * 6400, kind, platform=FOUR).legs}
    assert (sizes["intra_allg"], sizes["inter_allg"]) == (100, 400)


@pytest.mark.parametrize(
    ("slot", "answers"),
    [(slot, answers) for slot, *_, asks in SLOTS for answers in product([False, True], repeat=len(asks))],
)
def test_the_first_predicate_that_passes_wins(
    slot: str, answers: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First predicate that passes wins; if none, RING."""
    asks = next(tested for name, *_, tested in SLOTS if name == slot)
    agrees = dict(zip(asks, answers, strict=True))
    said = {one: yes("so") if agrees.get(one) else no("not") for one in module._RULES}
    monkeypatch.setattr(module, "_RULES", {one: lambda *_, one=one: said[one] for one in said})
    comm = Selector(FOUR, Settings()).communicator(ALL)
    filled = {leg.slot: leg.algorithm for leg in legs(comm, AR, MIB, Staging.DEVICE)}
    assert filled[slot] is next((one for one in asks if agrees[one]), RING)


# --- legality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slot", "mesh", "ring"),
    [
        ("intra_redsct", {MESH, INTRA_RDH}, {RING, KANGARING}),
        ("intra_allg", {MESH, INTRA_RDH}, {RING, KANGARING}),
        ("inter_allr", {MESH}, {RING, INTER_RDH, SINGLE_CYCLE}),
        ("inter_allg", {MESH}, {RING, INTER_RDH}),
        ("inter_redsct", {MESH}, {RING, INTER_RDH}),
    ],
)
def test_legality_of_each_leg(slot: str, mesh: set[Algorithm], ring: set[Algorithm]) -> None:
    """The mesh branch and the asserted set of the ring branch. Source: select §6.1, high."""
    assert LEGAL[slot] == mesh | ring
    assert LEGALITY_SOURCE.confidence is HIGH
    asks = next(tested for name, *_, tested in SLOTS if name == slot)
    assert set(asks) | {RING} <= LEGAL[slot]


@pytest.mark.parametrize(
    ("kind", "used"),
    [
        (AR, ("intra_redsct", "inter_allr", "intra_allg")),
        (RS, ("intra_redsct", "inter_redsct")),
        (AG, ("inter_allg", "intra_allg")),
    ],
)
def test_which_legs_an_operation_has(kind: EncOp, used: tuple[str, ...]) -> None:
    """AR never splits its inter leg into inter RS and inter AG (that it never does is a convention)."""
    assert LEGS[kind] == used
    decided = plan(ALL, 256 * KIB, kind, platform=FOUR)
    assert {leg.slot for leg in decided.legs if leg.used} == set(used) == set(decided.leg_names)


def test_a_leg_without_algorithm() -> None:
    """AR fails with "Invalid allr alg types" if one of its three slots is INVALID.

    Where any group is allowed, a stride group of two nodes has a mesh inside each, but no ring above its window.
    """
    stride = chips(0, 2, 8, 10, lanes=[0, 1])
    two = load_platform("trn2.48xlarge", nodes=2)
    group = (*stride, *(rank + 64 for rank in stride))
    selector = Selector(two, Settings(), any_group=True)
    small = selector.select(request(group, 64 * KIB, AR))
    assert (small.selected, small.leg_names["intra_redsct"]) == (HIER, "MESH")
    with pytest.raises(UnsupportedError, match="Invalid allr alg types: leg intra_") as error:
        selector.select(request(group, 64 * MIB, AR))
    assert error.value.source is LEGALITY_SOURCE
    with pytest.raises(UnsupportedError, match="invalid leg algorithms: leg intra_redsct"):
        selector.select(request(group, 16 * 64 * MIB, RS))


# --- examples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (MIB, {"intra_redsct": MESH, "inter_allr": MESH}),
        (8 * MIB, {"intra_redsct": MESH, "inter_allr": MESH}),
        (8 * MIB + 1, {"intra_redsct": MESH, "inter_allr": INTER_RDH}),
        (128 * MIB, {"intra_redsct": INTRA_RDH, "inter_allr": INTER_RDH}),
    ],
)
def test_8_nodes_of_64_use_inter_rdh(size: int, expected: dict[str, Algorithm]) -> None:
    """8 nodes are a power of two: above the mesh window of the inter leg, 1 MiB, INTER_RDH takes it."""
    platform, group = EIGHT, range(512)
    decided = leg_names(plan(group, size, platform=platform))
    assert {slot: decided[slot] for slot in expected} == expected


def test_single_cycle_in_a_leg() -> None:
    """inter_allr tests SINGLE_CYCLE_RING last: with the mode on and no mesh it carries slices of one chunk."""
    on = Settings(single_cycle_mode=0, inter_mesh_max_nodes=0)
    for size, expected in ((32 * MIB, SINGLE_CYCLE), (32 * MIB + 1, RING)):
        assert leg_names(plan(ALL, size, platform=FOUR, settings=on))["inter_allr"] is expected
    assert leg_names(plan(ALL, 256 * KIB, AG, platform=FOUR, settings=on))["inter_allg"] is RING


def test_a_bitmap_reaches_the_legs() -> None:
    """Excluding (INTRA, INTRA_RDH) leaves the mesh and KangaRing to the intra legs."""
    settings = Settings(alg_types=parse_alg_types("^INTRA_RDH_ALG"))
    decided = plan(ALL, 128 * MIB, platform=FOUR, settings=settings)
    assert decided.leg_names["intra_redsct"] == "KANGARING"


def test_hier_over_a_pod_uses_the_pod_mesh_between_nodes() -> None:
    """4 x trn2u: HIER; the inter slots say MESH and are carried, and reported, as TWO_STEP_POD_MESH."""
    decided = plan(ALL, MIB, platform=ULTRA)
    assert decided.selected is HIER
    inter = {leg.slot: leg for leg in decided.legs if leg.slot.startswith("inter")}
    assert {leg.algorithm for leg in inter.values()} == {MESH}
    assert {leg.reported for leg in inter.values()} == {POD}
    assert {leg.reported for leg in decided.legs if leg.slot.startswith("intra")} == {MESH}


def test_the_pod_window_of_the_inter_leg() -> None:
    """The two-step pod mesh takes CHB / 4 = 2 MiB of inter_slice, so 32 MiB a rank: a convention."""
    found = ranges(ALL, platform=ULTRA)
    assert (found[0].last, dict(found[0].legs)["inter_allr"]) == (32 * MIB, MESH)
    assert dict(found[1].legs)["inter_allr"] is RING


def test_one_rank_a_node_of_a_pod() -> None:
    """Four ranks, one on each node of a pod: TWO_STEP_POD_MESH to 2 MiB, then RING; no INTER_RDH in a pod."""
    group = one_a_node(ULTRA)
    assert [(each.last, each.algorithm) for each in ranges(group, platform=ULTRA)] == [(2 * MIB, POD), (1 << 32, RING)]
    for kind in (AG, RS):
        assert plan(group, 4 * KIB, kind, platform=ULTRA).selected is POD


def test_the_whole_switch_machine_is_hier() -> None:
    """576 ranks have no key and too many ranks for a KangaRing: HIER, a mesh in each sled and a ring over 36 sleds.

    Source: topology §5.
    """
    decided = plan(range(576), 576 * KIB, platform=SWITCH)
    assert decided.selected is HIER
    assert decided.leg_names == {"intra_allg": "MESH", "intra_redsct": "MESH", "inter_allr": "RING"}
    rdh = dict(next(leg for leg in decided.legs if leg.slot == "inter_allr").verdicts)
    assert "36 nodes" in rdh[MESH].reason
    assert "36 ranks: it needs a power of two" in rdh[INTER_RDH].reason


# --- the pipeline and the scratch -------------------------------------------------------------------------------------

RINGS_ONLY = Settings(mesh=False, kangaring_mode=2, inter_mesh_max_nodes=0)


@pytest.mark.parametrize(
    ("mode", "size", "slices"),
    [
        (0, 64 * MIB, 1),
        (2, 64 * MIB, 2),
        (5, 64, 5),
        (1, 64, 1),
        (1, 6 * MIB, 1),
        (1, 6 * MIB + 1, 2),
        (1, 42 * MIB, 7),
        (1, 42 * MIB + 1, 8),
        (1, 1 << 30, 8),
    ],
)
def test_pipeline_slices(mode: int, size: int, slices: int) -> None:
    """0 is one slice, n >= 2 is n, 1 is clamp(ceil(bytes / (3 x ring chunk)), 1, 8): a convention; 3 stages, high."""
    settings = replace(RINGS_ONLY, hier_pipeline=mode)
    comm = Selector(FOUR, settings).communicator(ALL)
    filled = legs(comm, AR, size, Staging.DEVICE)
    assert {leg.algorithm for leg in filled if leg.used} == {RING}
    count, said = pipeline_slices(comm, filled, size)
    assert count == slices
    assert bool(said) is (mode > 0)
    assert said.source is not None
    assert said.source.confidence is CONVENTION
    assert STAGES == 3


def test_a_pipeline_takes_rings_alone() -> None:
    """Any leg that resolved to something else, or a second stream: one slice."""
    piped = Settings(hier_pipeline=4)
    comm = Selector(FOUR, piped).communicator(ALL)
    count, said = pipeline_slices(comm, legs(comm, AR, MIB, Staging.DEVICE), MIB)
    assert (count, bool(said)) == (1, False)
    assert "is MESH, and a pipeline takes rings alone" in said.reason
    two = Selector(FOUR, replace(RINGS_ONLY, hier_pipeline=4), streams=2).communicator(ALL)
    count, said = pipeline_slices(two, legs(two, AR, MIB, Staging.DEVICE), MIB)
    assert (count, "2 streams" in said.reason) == (1, True)


@pytest.mark.parametrize(
    ("kind", "size", "arch", "pieces"),
    [
        (AR, 64 * 128 * MIB, "cayman", 1),
        (AR, 64 * 128 * MIB + 64, "cayman", 2),
        (AR, 64 * 128 * MIB, "sunda", 4),
        (RS, 256 * 64 * 128 * MIB, "mariana", 1),
        (AG, 1 << 40, "cayman", 1),
    ],
)
def test_scratch_pieces(kind: EncOp, size: int, arch: str, pieces: int) -> None:
    """128 MiB of scratch on Trn2 and Trn3, else 32 MiB; for AR and RS, not for AG. High; the loop is a convention."""
    assert scratch_pieces(plan(ALL, size, kind, platform=FOUR), arch) == pieces


def test_no_hierarchy_takes_no_scratch() -> None:
    """What has no legs runs in one piece."""
    assert scratch_pieces(plan(chips(0), 1 << 40), "cayman") == 1
