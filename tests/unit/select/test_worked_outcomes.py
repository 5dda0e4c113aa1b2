"""The worked outcomes of select §9, the rows S0 to S10 of its decision table, and the cascade of §5.2 row by row."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.unit.select.asking import (
    A2A,
    A2AV,
    AG,
    AR,
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
    SWITCH,
    TRN1,
    TRN2,
    chips,
    legs,
    one_a_node,
    plan,
    ranges,
    verdict,
)

from rota.errors import UnsupportedError
from rota.facts import HIGH, no, yes
from rota.isa.dtypes import Dtype
from rota.isa.enums import REDUCING, Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.request import Pairs, Request, Staging
from rota.select import Selector, Settings, select
from rota.select import choose as module
from rota.select.chunking import chunks
from rota.select.limits import UNBOUNDED
from rota.select.rules import CASCADE, POINT_TO_POINT, RING_OPS, SHARDED_OPS, UNSUPPORTED, Question

NODE = chips(*range(16))
FOUR = load_platform("trn2.48xlarge", nodes=4)
SIX, SIXTEEN = load_platform("trn2.48xlarge", nodes=6), load_platform("trn2.48xlarge", nodes=16)
TWO_TRN1 = load_platform("trn1.32xlarge", nodes=2)
BF16 = Dtype.BFLOAT16


# --- the worked outcomes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "winner", "reported", "carrier"),
    [
        (16 * KIB, MESH, STEP, "single-step"),
        (512 * KIB, MESH, MESH, "mesh pass 1"),
        (8 * MIB, INTRA_RDH, INTRA_RDH, "rdh"),
        (128 * MIB, KANGARING, KANGARING, None),
    ],
)
def test_64_ranks_1_trn2_node_ar_bf16(size: int, winner: Algorithm, reported: Algorithm, carrier: str | None) -> None:
    """16 KiB: MESH, single-step subtype, reported 6; 512 KiB: MESH, pass 1; 8 MiB: INTRA_RDH; 128 MiB: KANGARING."""
    decided = plan(NODE, size, dtype=BF16)
    assert (decided.winner, decided.selected) == (winner, reported)
    assert (decided.carrier.name if decided.carrier else None) == carrier
    assert int(STEP) == 6


def test_16_ranks_one_per_chip_ar_128_mib() -> None:
    """RING, hybrid: 4 channels where all members have equal lanes (device % 4 of their routing)."""
    decided = plan(chips(*range(16), lanes=[0]), 128 * MIB, dtype=BF16)
    assert (decided.selected, decided.channels) == (RING, 4)
    assert "hybrid ring" in decided.notes[0]


def test_4_nodes_x_64_ar_64_mib_per_rank() -> None:
    """HIER; intra_slice is exactly 1 MiB, which `min < size <= max` leaves to MESH; inter_slice 4 MiB takes RING."""
    decided = plan(range(256), 64 * MIB, platform=FOUR, dtype=BF16)
    assert decided.selected is HIER
    sizes = {leg.slot: leg.size for leg in decided.legs}
    assert (sizes["intra_redsct"], sizes["inter_allr"]) == (MIB, 4 * MIB)
    assert decided.leg_names == {"intra_allg": "MESH", "intra_redsct": "MESH", "inter_allr": "RING"}


@pytest.mark.parametrize(
    ("size", "intra"),
    [(64 * MIB, MESH), (64 * MIB + 128, INTRA_RDH), (64 * 56 * MIB, INTRA_RDH), (64 * 56 * MIB + 128, KANGARING)],
)
def test_4_nodes_x_64_intra_legs_go_by_intra_slice(size: int, intra: Algorithm) -> None:
    """intra_redsct is RDH or KANGARING by intra_slice (1 MiB to 56 MiB, and above); intra_allg like redsct."""
    decided = legs(plan(range(256), size, platform=FOUR, dtype=BF16))
    assert (decided["intra_redsct"], decided["intra_allg"]) == (intra, intra)


@pytest.mark.parametrize(("size", "inter"), [(16 * MIB, MESH), (16 * MIB + 128, RING)])
def test_4_nodes_x_64_inter_leg_is_mesh_inside_its_window(size: int, inter: Algorithm) -> None:
    """inter MESH (4 <= 16 nodes) while inter_slice, size / 64 x 4, is in its window of 1 MiB, else RING."""
    assert legs(plan(range(256), size, platform=FOUR, dtype=BF16))["inter_allr"] is inter


def test_4_nodes_x_64_inter_mesh_needs_few_enough_nodes() -> None:
    """inter MESH is bounded by NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES; 0 turns it off."""
    for most, inter in ((0, RING), (3, RING), (4, MESH)):
        settings = Settings(inter_mesh_max_nodes=most)
        assert legs(plan(range(256), MIB, platform=FOUR, settings=settings))["inter_allr"] is inter


@pytest.mark.parametrize(
    ("size", "expected"), [(64 * KIB, MESH), (MIB, MESH), (MIB + 2, INTER_RDH), (1 << 30, INTER_RDH)]
)
def test_16_nodes_x_1_ar(size: int, expected: Algorithm) -> None:
    """MESH if its window admits, else INTER_RDH, since 16 is a power of two and at least 8."""
    assert plan(one_a_node(SIXTEEN), size, platform=SIXTEEN, dtype=BF16).selected is expected


def test_6_nodes_x_1_ar_64_mib() -> None:
    """RING: 6 is no power of two, and the single-cycle ring is disabled by default."""
    decided = plan(one_a_node(SIX), 64 * MIB, platform=SIX, dtype=BF16)
    assert decided.selected is RING
    assert "6 ranks: it needs a power of two" in verdict(decided, INTER_RDH)
    assert "NEURON_RT_DBG_SINGLE_CYCLE_RING_ALLR_CC=2, the default, turns it off" in verdict(decided, SINGLE_CYCLE)


@pytest.mark.parametrize(("size", "expected"), [(2 * MIB, SINGLE_CYCLE), (2 * MIB + 2, RING), (64 * MIB, RING)])
def test_6_nodes_x_1_ar_with_single_cycle_env_0(size: int, expected: Algorithm) -> None:
    """SINGLE_CYCLE_RING if the size is at most its bound, one ring chunk (a convention), else RING."""
    settings = Settings(single_cycle_mode=0)
    assert plan(one_a_node(SIX), size, platform=SIX, settings=settings, dtype=BF16).selected is expected


@pytest.mark.parametrize("size", [6, 6 * KIB, 6 * MIB])
def test_ag_with_single_cycle_env_1(size: int) -> None:
    """Never SINGLE_CYCLE: the guard asks for ALLREDUCE before anything else, also where the mode forces it."""
    forced = Settings(single_cycle_mode=1, mesh=False)
    decided = plan(one_a_node(SIX), size, AG, platform=SIX, settings=forced)
    assert decided.selected is RING
    assert verdict(decided, SINGLE_CYCLE).startswith("no: it does only all_reduce")
    assert plan(one_a_node(SIX), size, AR, platform=SIX, settings=forced).selected is (
        SINGLE_CYCLE if size <= 2 * MIB else RING
    )


@pytest.mark.parametrize("kind", [A2A, A2AV])
def test_alltoall_of_a_ring_only_group(kind: EncOp) -> None:
    """Error: "alltoall cannot be supported without Mesh algorithm", with the number of ranks."""
    with pytest.raises(
        UnsupportedError, match="of 64 ranks: alltoall cannot be supported without Mesh algorithm"
    ) as error:
        plan(NODE, 64 * KIB, kind, settings=Settings(mesh=False))
    assert "NEURON_RT_DBG_MESH_CC=0 turns it off" in str(error.value)
    with pytest.raises(UnsupportedError, match="12 ranks: a mesh takes 2, 4, 8"):
        plan(chips(0, 1, 2), 12 * KIB, kind)


def test_alltoall_over_2_nodes_8_ranks() -> None:
    """Error: across nodes a mesh has one rank on each; `node_n == 1 || (rank_n == 4 && enable_pod)`."""
    two = load_platform("trn2.48xlarge", nodes=2)
    group = (*range(4), *range(64, 68))
    with pytest.raises(UnsupportedError, match=r"node_n == 1 \|\| \(rank_n == 4 && enable_pod\)"):
        plan(group, 8 * KIB, A2A, platform=two)
    pod = load_platform("trn2u.48xlarge", nodes=4)
    assert plan(one_a_node(pod), 4 * KIB, A2A, platform=pod).selected is MESH


# --- the decision table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in EncOp if kind not in (EncOp.INVALID, *POINT_TO_POINT)])
def test_s0_one_rank_copies(kind: EncOp) -> None:
    """S0: rank_n == 1 gives the one-rank copy, reported as RING, whatever is asked for; it needs no channel."""
    pairs: Pairs = ((7, 7),) if kind is EncOp.PERMUTE_REDUCE else ()
    alone = Request(kind, BF16, 64, ((7,),), CceType.ADD if kind in REDUCING else None, pairs=pairs)
    decided = select(alone, TRN2, Settings())
    assert (decided.selected, decided.channels, decided.carrier) == (RING, 0, None)


@pytest.mark.parametrize("size", [64, 64 * MIB])
def test_s0_forced_single_rank(size: int) -> None:
    """S0: NEURON_RT_DBG_CC_FORCE_SINGLE_RANK_RG counts every group as one rank, and the plan warns."""
    decided = plan(NODE, size, settings=Settings(force_single_rank=True))
    assert decided.selected is RING
    assert "FORCE_SINGLE_RANK_RG=1" in decided.notes[0]


@pytest.mark.parametrize(("kind", "number"), [(EncOp.BROADCAST, 2), (EncOp.REDUCE, 3), (EncOp.PERMUTE_REDUCE, 9)])
def test_s1_operations_the_runtime_does_not_support(kind: EncOp, number: int) -> None:
    """S1: BROADCAST, REDUCE and PERMUTE_REDUCE are refused: "not supported operation (op_type %d)"."""
    assert kind in UNSUPPORTED
    with pytest.raises(UnsupportedError, match=rf"not supported operation \(op_type {number}\)") as error:
        plan(NODE, 64 * KIB, kind)
    assert error.value.source is not None
    assert error.value.source.confidence is HIGH


@pytest.mark.parametrize("dtype", [Dtype.INT32, Dtype.UINT8, Dtype.FP32R])
def test_s2_a_reduction_of_a_dtype_the_cce_does_not_reduce(dtype: Dtype) -> None:
    """S2: integers and fp32r are refused before SELECT is asked; fp32 is accepted (design §2 (1))."""
    with pytest.raises(UnsupportedError):
        Request(AR, dtype, 64 * KIB, (NODE,), CceType.ADD)
    assert plan(NODE, 64 * KIB, dtype=Dtype.FP32).selected is MESH


@pytest.mark.parametrize("kind", sorted(POINT_TO_POINT))
def test_s3_point_to_point_takes_the_ring(kind: EncOp) -> None:
    """S3: SEND, RECV and the permutes take RING whatever the mesh and KangaRing say; without a ring it is an error."""
    for size in (64, 64 * MIB):
        assert plan(NODE, size, kind).selected is RING
    with pytest.raises(UnsupportedError, match="takes a ring: no flat ring is built over several nodes"):
        plan(range(256), 256, kind, platform=FOUR)


def test_s3_takes_any_wired_ring() -> None:
    """S3: "RING if wired": the ring of a box on the switch serves a permute, though the cascade has no flat ring there.

    A convention: the ring object of the cascade and the rings for pairs are told apart.
    """
    box = range(32)
    assert plan(box, 32 * KIB, EncOp.PERMUTE, platform=SWITCH).selected is RING
    assert verdict(plan(box, 32 * MIB, platform=SWITCH), RING).startswith("no: no flat ring")


def test_s4_every_predicate_is_asked() -> None:
    """S4: every predicate is evaluated, it is not short-circuit; verdicts after the winner are there too."""
    decided = plan(NODE, 16 * KIB)
    assert [algorithm for algorithm, _ in decided.verdicts] == [algorithm for algorithm, _ in CASCADE]
    assert [algorithm for algorithm, said in decided.verdicts if said] == [MESH, KANGARING, RING]


@pytest.mark.parametrize(
    ("group", "platform", "field", "algorithm"),
    [
        (NODE, TRN2, "kangaring_mode", KANGARING),
        (range(64), TWO_TRN1, "hier_mode", HIER),
        (one_a_node(SIX), SIX, "single_cycle_mode", SINGLE_CYCLE),
    ],
)
def test_s5_a_forced_algorithm_wins_where_it_is_legal(group, platform, field, algorithm) -> None:  # type: ignore[no-untyped-def]
    """S5, a convention: a mode variable of 1 lets its algorithm win before the cascade where its predicate agrees."""
    forced = Settings(**{field: 1})
    assert plan(group, 64 * KIB, platform=platform).selected is not algorithm
    assert plan(group, 64 * KIB, platform=platform, settings=forced).selected is algorithm
    assert plan(chips(0), 64 * KIB, settings=forced).selected is MESH


@pytest.mark.parametrize("answers", list(product([False, True], repeat=len(CASCADE))))
@pytest.mark.parametrize("ring", [False, True])
def test_s6_the_cascade(answers: tuple[bool, ...], ring: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6, every row: HIER only if no flat KangaRing, mesh, single-cycle or ring; then RDH, mesh, KangaRing, ...

    Source: select §5.2, high.
    """
    said = dict(zip([algorithm for algorithm, _ in CASCADE], answers, strict=True))
    rules = [(name, lambda *_, agrees=agrees: yes("so") if agrees else no("not")) for name, agrees in said.items()]
    monkeypatch.setattr(module, "CASCADE", tuple(rules))
    comm = replace(Selector(FOUR, Settings()).communicator(tuple(range(256))), ring=yes("so") if ring else no("not"))
    ask = Question(AR, 64, Staging.DEVICE)
    expected: Algorithm | None = None
    if said[HIER] and not (said[KANGARING] or said[MESH] or said[SINGLE_CYCLE]) and not ring:
        expected = HIER
    elif said[INTRA_RDH]:
        expected = INTRA_RDH
    elif said[MESH]:
        expected = MESH
    elif said[KANGARING]:
        expected = KANGARING
    elif said[SINGLE_CYCLE]:
        expected = SINGLE_CYCLE
    elif said[INTER_RDH]:
        expected = INTER_RDH
    elif said[RING]:
        expected = RING
    if expected is None:
        with pytest.raises(UnsupportedError, match="no_hier no_mesh"):
            module.choose(comm, ask)
    else:
        assert module.choose(comm, ask).winner is expected


def test_row_1_a_flat_ring_keeps_hier_away() -> None:
    """Row 1's last condition: on two nodes of Trn1 HIER agrees and a ring object exists, so RING wins."""
    decided = plan(range(64), 64 * MIB, platform=TWO_TRN1)
    assert verdict(decided, HIER).startswith("yes")
    assert decided.selected is RING
    assert decided.channels == 4


def test_row_1_a_flat_mesh_or_kangaring_keeps_hier_away() -> None:
    """Row 1's second condition: on two sleds of the switch HIER agrees, and so do the mesh and KangaRing."""
    for size, expected in ((MIB, MESH), (64 * MIB, KANGARING)):
        decided = plan(range(32), size, platform=SWITCH)
        assert verdict(decided, HIER).startswith("yes")
        assert decided.winner is expected


@pytest.mark.parametrize("size", [64, 64 * MIB, 64 * 1024 * MIB])
@pytest.mark.parametrize("kind", [A2A, A2AV])
def test_s7_alltoall_takes_the_mesh(kind: EncOp, size: int) -> None:
    """S7: ALLTOALL and ALLTOALL_V are MESH or an error; on Trn2 there is no upper bound, they go in iterations."""
    decided = plan(NODE, size, kind)
    assert decided.winner is MESH
    assert decided.carrier is not None
    if size > MIB:
        row = decided.carrier.row(kind)
        assert row is not None
        assert row.plain.maximum == UNBOUNDED


@pytest.mark.parametrize(
    ("kind", "used"),
    [
        (AR, ["intra_allg", "intra_redsct", "inter_allr"]),
        (RS, ["intra_redsct", "inter_redsct"]),
        (AG, ["intra_allg", "inter_allg"]),
    ],
)
def test_s8_hier_takes_the_per_leg_table(kind: EncOp, used: list[str]) -> None:
    """S8: a hierarchy fills five slots, of which an operation has two or three legs."""
    decided = plan(range(256), 256 * KIB, kind, platform=FOUR)
    assert decided.selected is HIER
    assert [leg.slot for leg in decided.legs] == [
        "intra_allg",
        "intra_redsct",
        "inter_allr",
        "inter_allg",
        "inter_redsct",
    ]
    assert [leg.slot for leg in decided.legs if leg.used] == used


def test_s9_the_first_admitting_subtype_refines_what_is_reported() -> None:
    """S9: slots are scanned in ascending order, and the flag of the first that admits is reported."""
    decided = plan(NODE, 16 * KIB)
    admitting = [read.subtype.slot for read in decided.limits if read.admits]
    assert decided.carrier is not None
    assert decided.carrier.slot == min(admitting)
    assert decided.selected is decided.carrier.reported is STEP
    both = plan(range(32), 32 * KIB, platform=TRN1)
    assert [read.subtype.name for read in both.limits if read.admits] == ["t1", "t2"]
    assert both.selected is STEP


@pytest.mark.parametrize(
    ("group", "channels"),
    [(NODE, 4), (chips(0, 1), 1), (chips(*range(8)), 2), (chips(*range(16), lanes=[0]), 4), (chips(0), 2)],
)
def test_s10_channels_and_chunks(group: tuple[int, ...], channels: int) -> None:
    """S10: a ring's channels are those the group is wired with, its chunk and depth those of the settings."""
    decided = plan(group, 256 * MIB)
    found = chunks(decided)
    assert found is not None
    assert (decided.channels, found.channels, found.chunk, found.slots) == (channels, channels, 2 * MIB, 8)


# --- operations and algorithms ----------------------------------------------------------------------------------------

RINGS = [
    EncOp.SEND,
    EncOp.RECV,
    EncOp.PERMUTE,
    EncOp.PERMUTE_IMPLICIT,
    EncOp.PERMUTE_REDUCE_IMPLICIT,
]


def test_what_a_ring_does() -> None:
    """RING: the three sharded collectives, send, receive and three permutes. Source: select §5.3, high."""
    assert {AG, AR, RS, *RINGS} == RING_OPS


@pytest.mark.parametrize("kind", [kind for kind in EncOp if kind is not EncOp.INVALID])
@pytest.mark.parametrize(
    ("algorithm", "group", "platform"),
    [
        (HIER, range(256), FOUR),
        (INTRA_RDH, NODE, TRN2),
        (KANGARING, NODE, TRN2),
        (INTER_RDH, one_a_node(SIXTEEN), SIXTEEN),
    ],
)
def test_what_the_sharded_algorithms_do(kind, algorithm, group, platform) -> None:  # type: ignore[no-untyped-def]
    """KangaRing, both recursive doublings and HIER do AG, AR and RS alone. Source: select §5.3, high."""
    comm = Selector(platform, Settings()).communicator(tuple(group))
    said = dict(CASCADE)[algorithm](comm, Question(kind, 2 * MIB, Staging.DEVICE))
    assert bool(said) is (kind in SHARDED_OPS) is (kind in (AG, AR, RS))


@pytest.mark.parametrize("kind", [kind for kind in EncOp if kind is not EncOp.INVALID])
def test_what_single_cycle_does(kind: EncOp) -> None:
    """SINGLE_CYCLE_RING does ALLREDUCE alone. Source: select §5.3 and §5.1, high."""
    comm = Selector(SIX, Settings(single_cycle_mode=0)).communicator(one_a_node(SIX))
    assert bool(dict(CASCADE)[SINGLE_CYCLE](comm, Question(kind, 64, Staging.DEVICE))) is (kind is AR)


@pytest.mark.parametrize("kind", [kind for kind in EncOp if kind is not EncOp.INVALID])
@pytest.mark.parametrize(
    ("flavour", "group", "platform", "does"),
    [
        ("full", range(32), TRN1, {AG, AR, RS, A2A, A2AV}),
        ("grouped", range(24), load_platform("inf2.48xlarge"), {AG, AR, RS, A2A}),
        ("Trn2", NODE, TRN2, {AG, AR, RS, A2A, A2AV}),
        ("switch", range(32), SWITCH, {AG, AR, RS, A2A, A2AV}),
        ("switch, LNC 1", range(32), load_platform("trn3pds98", lnc=1), {AG, AR, RS}),
    ],
)
def test_what_the_meshes_do(kind, flavour, group, platform, does) -> None:  # type: ignore[no-untyped-def]
    """Every mesh does AG, AR, RS and ALLTOALL; the grouped one no ALLTOALL_V; the switch's needs LNC 2 for both.

    Source: select §5.3, high where a composer exists, medium otherwise.
    """
    comm = Selector(platform, Settings()).communicator(tuple(group))
    said = dict(CASCADE)[MESH](comm, Question(kind, 64, Staging.STATIC))
    assert bool(said) is (kind in does), flavour
    single = {each for one in comm.subtypes if one.reported is STEP for each in (row.op for row in one.rows)}
    assert single <= {AR}


@pytest.mark.parametrize("kind", [EncOp.BROADCAST, EncOp.REDUCE, EncOp.PERMUTE_REDUCE])
def test_what_nothing_does(kind: EncOp) -> None:
    """BROADCAST, REDUCE and PERMUTE_REDUCE are rejected by every algorithm. Source: select §5.3, high."""
    comm = Selector(TRN2, Settings()).communicator(NODE)
    assert not any(rule(comm, Question(kind, 64, Staging.DEVICE)) for _, rule in CASCADE)


def test_effect_by_size_on_a_node() -> None:
    """MESH below its window's top, INTRA_RDH in its window, KANGARING above, RING never where those are built."""
    names = [each.algorithm for each in ranges(NODE, dtype=BF16)]
    assert names == [STEP, MESH, INTRA_RDH, KANGARING]
