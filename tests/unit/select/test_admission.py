"""What a communicator may use at all: the gate of select §4 row by row, and the flavour of its mesh (§7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.select.asking import (
    A2A,
    AR,
    BANDWIDTH,
    HIER,
    INTER_RDH,
    INTRA_RDH,
    KANGARING,
    KIB,
    LATENCY,
    MESH,
    MIB,
    POD,
    RING,
    SINGLE_CYCLE,
    STEP,
    SWITCH,
    TRN1,
    TRN2,
    chips,
    one_a_node,
    plan,
    request,
    verdict,
)

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, LOW
from rota.isa.enums import Algorithm, CommScope, MeshType
from rota.machine.geometry import geometry
from rota.machine.platform import Family, Platform, load_platform
from rota.select import Selector, Settings
from rota.select.admission import Candidate, admissions, mesh_type
from rota.select.settings import OFF, parse_alg_types

NODE = chips(*range(16))
NAMED = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.INVALID]
FOUR, SIX, EIGHT, SIXTEEN = (load_platform("trn2.48xlarge", nodes=nodes) for nodes in (4, 6, 8, 16))
ULTRA, ULTRA_TWO = load_platform("trn2u.48xlarge", nodes=4), load_platform("trn2u.48xlarge", nodes=2)
INF2, INF2_SMALL = load_platform("inf2.48xlarge"), load_platform("inf2.24xlarge")
LNC1 = load_platform("trn2.48xlarge", lnc=1)


def candidate(
    platform: Platform, ranks: Sequence[int], *, streams: int = 1, pairs: bool = False, settings: Settings | None = None
) -> Candidate:
    """Return a group as admission sees it; over nodes without a switch its scope is INTER."""
    at = geometry(platform, ranks)
    scope = CommScope.INTER if at.node_n > 1 and not platform.servers_per_rack else CommScope.INTRA
    return Candidate(platform, at, settings or Settings(), scope, streams, pairs)


def admitted(platform: Platform, ranks: Sequence[int], algorithm: Algorithm, **other: object) -> bool:
    """Say whether an algorithm is admitted."""
    return bool(admissions(candidate(platform, ranks, **other))[algorithm])  # type: ignore[arg-type]


def reason(platform: Platform, ranks: Sequence[int], algorithm: Algorithm, **other: object) -> str:
    """Return why an algorithm is not admitted."""
    said = admissions(candidate(platform, ranks, **other))[algorithm]  # type: ignore[arg-type]
    assert not said
    return said.reason


# --- the bitmap -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [one for one in NAMED if one is not RING])
@pytest.mark.parametrize("scope", [CommScope.INTRA, CommScope.INTER])
def test_the_bitmap_is_asked_first(algorithm: Algorithm, scope: CommScope) -> None:
    """First test: bit (alg + 11 x comm_type) of the admission bitmap."""
    bit = int(algorithm) + 11 * int(scope)
    without = Settings(alg_types=Settings().alg_types & ~(1 << bit))
    at = replace(candidate(TRN2, NODE, settings=without), scope=scope)
    asks = CommScope.INTER if algorithm is HIER else scope  # HIER: bit (INTER, HIER)
    said = admissions(at)[algorithm]
    assert said.reason.startswith("NEURON_RT_CC_ALG_TYPES excludes") is (asks is scope)
    others = admissions(at)
    usual = admissions(replace(at, settings=Settings()))
    follows = {algorithm} | ({INTRA_RDH} if algorithm is MESH else set())  # recursive doubling needs the mesh
    assert {one for one in NAMED if others[one] != usual[one]} <= follows


def test_ring_is_always_admitted() -> None:
    """RING: always true, whatever the bitmap says."""
    for platform, ranks in ((TRN2, NODE), (FOUR, range(256)), (TRN1, (0,))):
        assert admitted(platform, ranks, RING, settings=Settings(alg_types=0))


def test_the_grammar_excludes_one_entry_by_name() -> None:
    """`^INTER_RDH_ALG` excludes (INTER, 7): 16 nodes x 1 of 8 MiB then take RING."""
    settings = Settings(alg_types=parse_alg_types("^INTER_RDH_ALG"))
    assert plan(one_a_node(SIXTEEN), 8 * MIB, platform=SIXTEEN).selected is INTER_RDH
    assert plan(one_a_node(SIXTEEN), 8 * MIB, platform=SIXTEEN, settings=settings).selected is RING


def test_a_mesh_object_is_made_if_any_variant_is_admitted() -> None:
    """Mesh path if any mesh variant is admitted: without MESH the single step is left, and RDH is skipped.

    Source: select §2, high; §4, INTRA_RDH: mesh admitted.
    """
    settings = Settings(alg_types=parse_alg_types("^MESH_ALG"))
    assert plan(NODE, 16 * KIB, settings=settings).selected is STEP
    assert plan(NODE, 512 * KIB, settings=settings).selected is KANGARING
    decided = plan(NODE, 8 * MIB, settings=settings)
    assert decided.selected is KANGARING
    assert "no mesh is admitted: NEURON_RT_CC_ALG_TYPES excludes MESH" in verdict(decided, INTRA_RDH)
    single = Settings(alg_types=parse_alg_types("^SINGLE_STEP_MESH_ALG"))
    assert plan(NODE, 16 * KIB, settings=single).selected is KANGARING  # the mesh's first row begins above the step


# --- the gates --------------------------------------------------------------------------------------------------------


def test_hier_gate() -> None:
    """HIER: local_rank_n > 1, node_n x local_rank_n == rank_n, no source-target pairs, mode != 2; several nodes."""
    assert admitted(FOUR, range(256), HIER)
    assert admitted(FOUR, (0, 1, 64, 65), HIER)
    assert "one node" in reason(TRN2, NODE, HIER)
    assert "one rank on each node" in reason(FOUR, one_a_node(FOUR), HIER)
    assert "different ranks" in reason(FOUR, (0, 1, 64), HIER)
    assert "source-target pairs" in reason(FOUR, range(256), HIER, pairs=True)
    assert "NEURON_RT_DBG_HIERARCHICAL_CC=2" in reason(FOUR, range(256), HIER, settings=Settings(hier_mode=OFF))


def test_kangaring_gate() -> None:
    """KANGARING: one stream, not INTER, mode != 2; vcore 2 and rank_n > 4, or vcore 1 and rank_n > 8."""
    assert admitted(TRN2, NODE, KANGARING)
    assert "2 streams" in reason(TRN2, NODE, KANGARING, streams=2)
    assert "spans nodes" in reason(FOUR, range(256), KANGARING)
    assert "NEURON_RT_DBG_KANGARING_CC=2" in reason(TRN2, NODE, KANGARING, settings=Settings(kangaring_mode=OFF))
    assert "at LNC 2 it needs at least 5" in reason(TRN2, chips(0), KANGARING)
    assert admitted(TRN2, chips(0, 1), KANGARING)
    assert "at LNC 1 it needs at least 9" in reason(LNC1, range(8), KANGARING)
    assert admitted(LNC1, range(16), KANGARING)


def test_kangaring_needs_whole_chips() -> None:
    """KANGARING needs the whole chip in one rank list; one-rank-per-chip groups use RING. At least 4 ranks a chip.

    Source: select §4, high; the 4 ranks, design §2 (13), convention.
    """
    assert "1 rank a chip" in reason(TRN2, chips(*range(16), lanes=[0]), KANGARING)
    assert "2 ranks a chip: it needs at least 4" in reason(TRN1, range(32), KANGARING)
    half = tuple(8 * chip + lane for chip in range(16) for lane in range(4))
    assert "4 of 8 ranks a chip: it needs whole chips" in reason(LNC1, half, KANGARING)


def test_kangaring_takes_at_most_256_ranks() -> None:
    """NEC_KANGARING_MAX_NUM_RANKS is 256. Source: compose §1.1, high."""
    assert admitted(SWITCH, range(256), KANGARING)
    assert "576 ranks: it takes at most 256" in reason(SWITCH, range(576), KANGARING)


def test_single_cycle_gate() -> None:
    """SINGLE_CYCLE_RING: INTER only; mode != 2 (its default is 2); node_n > 1; rank_n == node_n."""
    on = Settings(single_cycle_mode=0)
    assert admitted(SIX, one_a_node(SIX), SINGLE_CYCLE, settings=on)
    assert Settings().single_cycle_mode == OFF
    assert "the default, turns it off" in reason(SIX, one_a_node(SIX), SINGLE_CYCLE)
    assert "lies on one" in reason(TRN2, NODE, SINGLE_CYCLE, settings=on)
    assert "one rank on each" in reason(FOUR, range(256), SINGLE_CYCLE, settings=on)


def test_intra_rdh_gate() -> None:
    """INTRA_RDH: INTRA only, single stream, RDH mode != 0, mesh admitted."""
    assert admitted(TRN2, NODE, INTRA_RDH)
    assert admitted(TRN2, NODE, INTRA_RDH, settings=Settings(rdh_mode=7))
    assert "spans nodes" in reason(FOUR, range(256), INTRA_RDH)
    assert "2 streams" in reason(TRN2, NODE, INTRA_RDH, streams=2)
    assert "NEURON_RT_DBG_RDH_CC=0" in reason(TRN2, NODE, INTRA_RDH, settings=Settings(rdh_mode=0))
    assert "no mesh is admitted" in reason(TRN2, NODE, INTRA_RDH, settings=Settings(mesh=False))


@pytest.mark.parametrize("ranks", [4, 8, 16, 64])
def test_intra_rdh_ranks(ranks: int) -> None:
    """rank_n of {4, 8, 16, 64}: 1, 2, 4 and 16 chips of 4 ranks. Source: select §5.1, high."""
    assert admitted(TRN2, range(ranks), INTRA_RDH)
    assert plan(range(ranks), 2 * MIB).selected is INTRA_RDH


@pytest.mark.parametrize(
    ("group", "because"),
    [
        (chips(*range(8)), "32 ranks on 8 chips"),
        (chips(0, 1, 2), "12 ranks on 3 chips"),
        (chips(0, 1, 2, 3, lanes=[0]), "4 ranks on 4 chips"),
        (chips(0, lanes=[0, 1]), "2 ranks on 1 chip"),
        (chips(0, 2), "no subcube of the routing ids"),
        (chips(0, 1, 2, 4), "no subcube of the routing ids"),
    ],
)
def test_intra_rdh_geometry(group: tuple[int, ...], because: str) -> None:
    """All ranks of 1, 2, 4 or 16 chips that are a subcube; one-rank-per-chip groups are refused (conventions)."""
    assert because in reason(TRN2, group, INTRA_RDH)


def test_intra_rdh_at_lnc_1() -> None:
    """With 8 ranks a chip the set is 8, 16, 32, 128; half a chip is refused. Source: select §5.2, convention."""
    for ranks in (8, 16, 32, 128):
        assert admitted(LNC1, range(ranks), INTRA_RDH)
    assert "8, 16, 32, 128 ranks in all" in reason(LNC1, range(4), INTRA_RDH)
    assert not admitted(LNC1, range(64), INTRA_RDH)


def test_inter_rdh_gate() -> None:
    """INTER_RDH: INTER only; local_rank_n == 1; rank_n == node_n, a power of two above 7; pod not enabled."""
    assert admitted(EIGHT, one_a_node(EIGHT), INTER_RDH)
    assert admitted(SIXTEEN, one_a_node(SIXTEEN), INTER_RDH)
    assert "lies on one" in reason(TRN2, NODE, INTER_RDH)
    assert "one rank on each" in reason(SIXTEEN, range(1024), INTER_RDH)
    for platform in (FOUR, SIX):
        assert "a power of two, at least 8" in reason(platform, one_a_node(platform), INTER_RDH)
    pods = load_platform("trn2u.48xlarge", nodes=8)
    assert admitted(pods, one_a_node(pods), INTER_RDH)  # two pods: their nodes are not of one
    assert "a power of two" in reason(ULTRA, one_a_node(ULTRA), INTER_RDH)


def test_two_step_pod_gate() -> None:
    """TWO_STEP_POD_MESH: as MESH, on the four nodes of a pod."""
    assert admitted(ULTRA, one_a_node(ULTRA), POD)
    assert "4 nodes of a pod" in reason(FOUR, one_a_node(FOUR), POD)
    assert "4 nodes of a pod" in reason(ULTRA_TWO, one_a_node(ULTRA_TWO), POD)
    assert "4 nodes of a pod" in reason(TRN2, NODE, POD)
    assert not admitted(ULTRA, range(256), POD)


@pytest.mark.parametrize("algorithm", [LATENCY, BANDWIDTH])
def test_switch_gates(algorithm: Algorithm) -> None:
    """LATENCY_OPT_MESH and BW_OPT_MESH: as MESH on the switch family (medium)."""
    assert admitted(SWITCH, range(32), algorithm)
    assert "only a mesh on the switch" in reason(SWITCH, range(4), algorithm)
    assert "only a mesh on the switch" in reason(TRN2, NODE, algorithm)


@pytest.mark.parametrize("algorithm", [MESH, STEP, POD, LATENCY, BANDWIDTH])
def test_mesh_variants_take_one_stream(algorithm: Algorithm) -> None:
    """Device mesh events need exactly one stream: "Mesh does not work with multiple streams"."""
    for platform, ranks in ((TRN2, NODE), (SWITCH, range(32)), (ULTRA, one_a_node(ULTRA))):
        said = admissions(candidate(platform, ranks, streams=2))[algorithm]
        assert "Mesh does not work with multiple streams" in said.reason
        assert said.source is not None
        assert said.source.confidence is HIGH


def test_mesh_can_be_switched_off() -> None:
    """NEURON_RT_DBG_MESH_CC=0 turns every mesh off."""
    for algorithm in (MESH, STEP, POD, LATENCY, BANDWIDTH):
        assert "NEURON_RT_DBG_MESH_CC=0" in reason(TRN2, NODE, algorithm, settings=Settings(mesh=False))


# --- the mesh, family by family ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "says"),
    [
        (chips(0, lanes=[0, 1]), None),
        (chips(0), None),
        (chips(0, 1), None),
        (chips(*range(4)), None),
        (chips(*range(8)), None),
        (NODE, None),
        (chips(*range(16), lanes=[0]), None),
        (chips(0, 1, 2), "12 ranks: a mesh takes 2, 4, 8, 16, 32, 64, 128"),
        (chips(*range(12)), "48 ranks"),
        ((0, 1, 4, 8), "its chips hold different numbers of ranks"),
        ((0,), "a group of one rank needs no mesh"),
    ],
)
def test_mesh_on_a_trn2_node(group: tuple[int, ...], says: str | None) -> None:
    """A convention: local_rank_n of {2, 4, 8, 16, 32, 64, 128}, equal numbers of ranks on each chip."""
    assert admitted(TRN2, group, MESH) is (says is None)
    if says is not None:
        assert says in reason(TRN2, group, MESH)


def test_mesh_across_nodes() -> None:
    """`node_n == 1 || (rank_n == 4 && enable_pod)`, literally; and one rank on each of few enough nodes.

    Source: select §4, high for the assertion; design §2 (8), convention; the 16 nodes, low.
    """
    said = admissions(candidate(FOUR, range(256)))[MESH]
    assert "node_n == 1 || (rank_n == 4 && enable_pod)" in said.reason
    assert said.source is not None
    assert said.source.confidence is HIGH
    assert admitted(SIXTEEN, one_a_node(SIXTEEN), MESH)
    wide = load_platform("trn2.48xlarge", nodes=17)
    far = admissions(candidate(wide, one_a_node(wide)))[MESH]
    assert "17 nodes: NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES is 16" in far.reason
    assert far.source is not None
    assert far.source.confidence is LOW
    assert not admitted(FOUR, one_a_node(FOUR), MESH, settings=Settings(inter_mesh_max_nodes=0))
    assert admitted(ULTRA, one_a_node(ULTRA), MESH, settings=Settings(inter_mesh_max_nodes=0))  # no network in a pod


@pytest.mark.parametrize(
    ("platform", "ranks"), [(TRN1, range(32)), (TRN1, range(2)), (TRN1, range(16)), (INF2, range(24)), (INF2, (0, 1))]
)
def test_mesh_of_the_older_families(platform: Platform, ranks: Sequence[int]) -> None:
    """A convention: families 2, 3 and 7 any two ranks of a node; Inf2 2, 4, 8 or multiples of 6."""
    assert admitted(platform, ranks, MESH)


@pytest.mark.parametrize(
    ("ranks", "local"), [(range(8), 8), (range(16), 16), (range(128), 128), ((0, 1, 4, 5), 4), (chips(0, 1, 72, 73), 8)]
)
def test_mesh_on_the_switch(ranks: Sequence[int], local: int) -> None:
    """A convention: local_rack_rank_n of {4, 8, 16, 32, 64, 128, 256}; a group in both racks counts one rack."""
    assert geometry(SWITCH, ranks).local_rack_rank_n == local
    assert admitted(SWITCH, ranks, MESH)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (chips(0, 1, 2), "12 ranks in each rack: a switch mesh takes 4, 8, 16, 32, 64, 128, 256"),
        (range(256), "64 chips in a rack: a switch mesh takes at most 32"),
        (range(576), "288 ranks in each rack"),
    ],
)
def test_mesh_the_switch_refuses(ranks: Sequence[int], says: str) -> None:
    """No key, or more chips of one rack than the 32 devices of the architecture (per rack: convention)."""
    assert says in reason(SWITCH, ranks, MESH)


@pytest.mark.parametrize("ranks", [range(0, 576, 4), range(0, 576, 16)])
def test_one_rank_per_chip_groups_of_the_switch_skip_the_key(ranks: Sequence[int]) -> None:
    """144 (one a chip) and 36 (one a sled) ranks have no key and are supported. Source: design §2 (13)."""
    assert admitted(SWITCH, ranks, MESH)


# --- the flavour ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "ranks", "expected"),
    [
        (TRN2, NODE, MeshType.MESH_TRN2),
        (FOUR, one_a_node(FOUR), MeshType.MESH_TRN2),
        (ULTRA, one_a_node(ULTRA), MeshType.MESH_TRN2),
        (FOUR, tuple(range(256)), MeshType.FULL_MESH),
        (SWITCH, tuple(range(8)), MeshType.MESH_SWITCH),
        (SWITCH, (0, 16), MeshType.MESH_SWITCH),
        (SWITCH, (0, 288), MeshType.MESH_TRN2),
        (SWITCH, tuple(range(4)), MeshType.MESH_TRN2),
        (TRN1, tuple(range(32)), MeshType.FULL_MESH),
        (load_platform("trn1n.32xlarge"), tuple(range(8)), MeshType.FULL_MESH),
        (INF2, (0, 1), MeshType.FULL_MESH),
        (INF2, tuple(range(4)), MeshType.FULL_MESH),
        (INF2, tuple(range(8)), MeshType.FULL_MESH),
        (INF2_SMALL, tuple(range(12)), MeshType.GROUPED_MESH),
        (INF2, tuple(range(24)), MeshType.GROUPED_MESH),
        (INF2, tuple(range(6)), MeshType.GROUPED_MESH),
        (INF2, tuple(range(10)), MeshType.INVALID),
    ],
)
def test_flavour_dispatch(platform: Platform, ranks: tuple[int, ...], expected: MeshType) -> None:
    """The table of select §7.2, high but for its first two rows; the switch is asked first (design §2 (12))."""
    flavour, said = mesh_type(candidate(platform, ranks))
    assert flavour is expected
    assert bool(said) is (expected is not MeshType.INVALID)
    assert said.source is not None


def test_a_group_on_one_chip_of_the_switch_takes_the_on_chip_path() -> None:
    """4 ranks of one chip have one rid: the MESH_TRN2 builder and its limits. Source: design §2 (12)."""
    decided = plan(range(4), 64 * KIB, platform=SWITCH)
    assert decided.carrier is not None
    assert decided.carrier.name == "mesh pass 0"
    assert decided.selected is MESH


def test_an_untested_number_of_ranks() -> None:
    """Else: "Mesh algo untested with %d ranks on this instance type"."""
    assert reason(INF2, range(10), MESH) == "Mesh algo untested with 10 ranks on this instance type"
    with pytest.raises(UnsupportedError, match="Mesh algo untested with 10 ranks on this instance type"):
        Selector(INF2, Settings(), any_group=True).select(request(range(10), 40, A2A))


def test_switch_code_on_another_family() -> None:
    """A switch machine that is not family 15: "Unsupported instance family for event-based algorithms"."""
    other = replace(SWITCH, family=Family.TRN3)
    assert reason(other, range(32), MESH) == "Unsupported instance family for event-based algorithms"
    assert Family.TRN3PDS98 == 15


# --- nothing ----------------------------------------------------------------------------------------------------------


def test_no_algorithm_at_init() -> None:
    """ "failed (2) to init a collective algorithm ... reason: no_hier no_mesh" where nothing can be wired."""
    apart = chips(0, 2, 8)  # no cable between them: no ring; 12 ranks: no mesh
    with pytest.raises(UnsupportedError, match="0 of the node's 4 ring channels"):
        Selector(TRN2, Settings()).select(request(apart, 64, AR))
    phrase = r"failed \(2\) to init a collective algorithm, reason: no_hier no_mesh"
    with pytest.raises(UnsupportedError, match=phrase) as error:
        Selector(TRN2, Settings(), any_group=True).select(request(apart, 60, AR))
    assert error.value.source is not None
    assert "12 ranks: a mesh takes" in str(error.value)


def test_any_group_lets_a_mesh_carry_what_no_ring_could() -> None:
    """A stride group of 8 has no ring, but a mesh: with any group allowed it is MESH, and above its window refused."""
    stride = chips(0, 2, 8, 10, lanes=[0, 1])
    anyhow = Selector(TRN2, Settings(), any_group=True)
    decided = anyhow.select(request(stride, 64 * KIB, AR))
    assert (decided.selected, decided.channels) == (MESH, 0)
    assert decided.wirings[0].warnings
    with pytest.raises(UnsupportedError, match="no_hier no_mesh"):
        anyhow.select(request(stride, 64 * MIB, AR))


def test_every_verdict_has_a_source_with_its_confidence() -> None:
    """High where it is read, convention or low where it is ours."""
    for platform, ranks in ((TRN2, NODE), (FOUR, range(256)), (SWITCH, range(32)), (INF2, range(24)), (TRN1, range(8))):
        for algorithm, said in admissions(candidate(platform, ranks)).items():
            assert said.source is not None, algorithm
            assert said.reason
    ring = admissions(candidate(TRN2, NODE))[MESH]
    assert ring.source is not None
    assert ring.source.confidence is CONVENTION
