"""The menu and the limit tables of the switch, and the switch points they give. Source: switch_schedule §2 and §5.

High: the order of the menu, the bandwidth-opt all-gather, the single step, the latency-opt all-reduce. The other limits
are conventions (select §7.5; design §2 (4), (5), (29)).
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.unit.select.asking import (
    A2A,
    A2AV,
    AG,
    AR,
    BANDWIDTH,
    GIB,
    HIER,
    INTRA_RDH,
    KANGARING,
    KIB,
    LATENCY,
    MESH,
    MIB,
    RING,
    RS,
    STEP,
    SWITCH,
    chips,
    plan,
    ranges,
    request,
    windows,
)

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, MEDIUM
from rota.isa.enums import Algorithm, EncOp, MeshType
from rota.machine.layouts import RACK_KEYS
from rota.machine.platform import load_platform
from rota.request import Staging
from rota.select import Selector, Settings
from rota.select.limits import UNBOUNDED, Row, Subtype
from rota.select.settings import CHANNEL_BUFFER
from rota.select.subtypes import BANDWIDTH_LIMITS, SINGLE_STEP_LIMITS, Shape, subtypes

LNC1, GEN1 = load_platform("trn3pds98", lnc=1), load_platform("trn3pds98-gen1")


def menu(
    ranks: int, *, local: int | None = None, lnc: int = 2, one_each: bool = False, buffer: int = CHANNEL_BUFFER
) -> tuple[Subtype, ...]:
    """Return the slots of a switch mesh of so many ranks."""
    return subtypes(
        Shape(
            mesh_type=MeshType.MESH_SWITCH,
            lnc=lnc,
            ranks=ranks,
            nodes=1,
            local_rack_rank_n=ranks if local is None else local,
            chips=ranks // 4,
            pod=1,
            one_rank_per_chip=one_each,
            channel_buffer=buffer,
            double_buffer=True,
            rdh=0,
        )
    )


def row(built: tuple[Subtype, ...], slot: int, op: EncOp) -> Row:
    """Return the row of an operation in a slot."""
    found = built[slot].row(op)
    assert found is not None
    return found


# --- the menu ---------------------------------------------------------------------------------------------------------


def test_the_menu_in_build_order() -> None:
    """Seven builders, in slots 0 to 6, with the algorithm each is reported as. High."""
    assert [(one.slot, one.name, one.reported) for one in menu(32)] == [
        (0, "latency-opt all-gather", LATENCY),
        (1, "bandwidth-opt all-gather", BANDWIDTH),
        (2, "reduce-scatter", MESH),
        (3, "single-step all-reduce", STEP),
        (4, "latency-opt all-reduce", LATENCY),
        (5, "bandwidth-opt all-reduce", BANDWIDTH),
        (6, "latency-opt all-to-all", LATENCY),
    ]
    ops = [{each.op for each in one.rows} for one in menu(32)]
    assert ops == [{AG}, {AG}, {RS}, {AR}, {AR}, {AR}, {A2A, A2AV}]
    assert [int(algorithm) for algorithm in (LATENCY, BANDWIDTH, STEP)] == [9, 10, 6]


@pytest.mark.parametrize("ranks", [4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("slot", [1, 5, 6])
def test_three_builders_need_lnc_2(slot: int, ranks: int) -> None:
    """Bandwidth-opt all-gather and all-reduce and the all-to-all need LNC 2: "... does not support LNC1". High."""
    assert menu(ranks)[slot].refused is None
    refused = menu(ranks, lnc=1)[slot].refused
    assert refused is not None
    assert refused.reason == f"{menu(ranks)[slot].name} does not support LNC1"
    assert refused.source is not None
    assert refused.source.confidence is HIGH
    for other in (0, 2, 4):
        assert menu(ranks, lnc=1)[other].refused is None


def test_alltoall_on_the_switch_at_lnc_1() -> None:
    """Nothing is left for an all-to-all at LNC 1, and the refusal says why."""
    with pytest.raises(UnsupportedError, match="latency-opt all-to-all does not support LNC1"):
        plan(range(32), 64 * KIB, A2A, platform=LNC1)
    assert plan(range(32), 1 * GIB, A2A, platform=SWITCH).selected is LATENCY


# --- the rank-keyed tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "limit"),
    [(4, 0x400000), (8, 0x400000), (16, 0x1000000), (32, 0x1800000), (64, 0x1800000), (128, 0x1800000)],
)
def test_bandwidth_opt_all_gather(ranks: int, limit: int) -> None:
    """op_max_limit_sbuf[ALLGATHER] by local_rack_rank_n; plain maximum and both minima 0. High."""
    found = row(menu(ranks), 1, AG)
    assert (found.sbuf.minimum, found.sbuf.maximum) == (0, limit)
    assert (found.plain.minimum, found.plain.maximum) == (0, 0)
    assert found.source.confidence is HIGH
    assert BANDWIDTH_LIMITS[ranks] == limit


@pytest.mark.parametrize("ranks", [256, 12, 2, 72])
def test_bandwidth_opt_all_gather_of_other_counts(ranks: int) -> None:
    """256 and any other count: "Unsupported rank (%d) for building ..." (high), and the menu goes on (convention)."""
    for slot in (1, 5):
        refused = menu(ranks)[slot].refused
        assert refused is not None
        assert refused.reason.startswith(f"Unsupported rank ({ranks}) for building bandwidth-opt")
    assert menu(ranks)[4].refused is None
    assert len(menu(ranks)) == 7


@pytest.mark.parametrize(("ranks", "limit"), [(4, 0x20000), (8, 0x8000), (16, 0x4000), (32, 0x2000), (64, 0x2000)])
def test_single_step_all_reduce(ranks: int, limit: int) -> None:
    """op_max_limit[ALLREDUCE] of the single step by local_rack_rank_n. High; which twin, medium."""
    found = row(menu(ranks), 3, AR)
    assert (found.sbuf.minimum, found.sbuf.maximum) == (0, limit)
    assert found.plain.maximum == 0
    assert found.source.confidence is MEDIUM
    assert SINGLE_STEP_LIMITS[ranks] == limit


@pytest.mark.parametrize(("ranks", "says"), [(128, "at most 64"), (256, "at most 64"), (12, "Unsupported rank (12)")])
def test_single_step_is_not_built(ranks: int, says: str) -> None:
    """128 and 256: not built, local_rack_rank_n <= 64 (high); a count without a row: refused (proposal)."""
    refused = menu(ranks)[3].refused
    assert refused is not None
    assert says in refused.reason
    assert not menu(ranks)[3].rows


@pytest.mark.parametrize(
    ("buffer", "limit"), [(CHANNEL_BUFFER, 0x400000), (2 * MIB, 0x400000), (MIB, 2 * MIB), (64 * MIB, 0x400000)]
)
def test_latency_opt_all_reduce(buffer: int, limit: int) -> None:
    """op_max_limit_sbuf[ALLREDUCE] = min(2 x CHB, 0x400000), for any number of ranks. High."""
    for ranks in RACK_KEYS:
        found = row(menu(ranks, buffer=buffer), 4, AR)
        assert (found.sbuf.minimum, found.sbuf.maximum, found.plain.maximum) == (0, limit, 0)
        assert found.source.confidence is HIGH


def test_the_key_set_over_all_builders() -> None:
    """{4, 8, 16, 32, 64, 128, 256}. High."""
    assert RACK_KEYS == (4, 8, 16, 32, 64, 128, 256)
    assert set(BANDWIDTH_LIMITS) | set(SINGLE_STEP_LIMITS) == set(RACK_KEYS) - {256}


# --- the conventions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "limit"), [(4, 2 * MIB), (8, MIB), (16, 512 * KIB), (64, 128 * KIB), (256, 32 * KIB)]
)
def test_latency_opt_all_gather(ranks: int, limit: int) -> None:
    """min(CHB / local_rack_rank_n, 4 MiB), so that bandwidth-opt is reachable at every key: a convention."""
    found = row(menu(ranks), 0, AG)
    assert (found.sbuf.maximum, found.plain.maximum) == (limit, 0)
    assert found.source.confidence is CONVENTION
    if ranks in BANDWIDTH_LIMITS:
        assert limit < BANDWIDTH_LIMITS[ranks]


def test_latency_opt_all_gather_is_capped() -> None:
    """A larger channel buffer does not lift it above 4 MiB."""
    assert row(menu(4, buffer=64 * MIB), 0, AG).sbuf.maximum == 4 * MIB


@pytest.mark.parametrize("ranks", [4, 8, 16, 32, 64, 128])
def test_bandwidth_opt_all_reduce(ranks: int) -> None:
    """As the all-gather's table, from where the latency-opt window ends: a convention; at 4 and 8 ranks it is empty."""
    found = row(menu(ranks), 5, AR)
    assert (found.sbuf.minimum, found.sbuf.maximum) == (4 * MIB, BANDWIDTH_LIMITS[ranks])
    assert found.source.confidence is CONVENTION
    assert found.sbuf.admits(4 * MIB + 1) is (ranks > 8)


@pytest.mark.parametrize("ranks", [4, 32, 256])
def test_reduce_scatter_and_all_to_all(ranks: int) -> None:
    """RS: the latency-opt all-reduce's maximum / rank_n; A2A: unbounded, in iterations; both twins. Conventions."""
    scatter = row(menu(ranks), 2, RS)
    assert scatter.plain == scatter.sbuf
    assert scatter.sbuf.maximum == 4 * MIB // ranks
    for kind in (A2A, A2AV):
        assert row(menu(ranks), 6, kind).sbuf.maximum == row(menu(ranks), 6, kind).plain.maximum == UNBOUNDED


def test_one_rank_per_chip_builders() -> None:
    """They take the place of items 1, 2, 5 and 6, up to 4 MiB; single step, RS and A2A stay: design §2 (29)."""
    built = menu(16, one_each=True)
    assert [one.name for one in built if one.refused is None] == [
        "one-rank-per-chip all-gather",
        "reduce-scatter",
        "single-step all-reduce",
        "one-rank-per-chip all-reduce",
        "latency-opt all-to-all",
    ]
    for slot, op in ((0, AG), (4, AR)):
        assert row(built, slot, op).sbuf.maximum == 4 * MIB
    for slot in (1, 5):
        refused = built[slot].refused
        assert refused is not None
        assert "one rank per chip takes its place" in refused.reason


# --- the switch points ------------------------------------------------------------------------------------------------

ALL_REDUCE: dict[int, list[tuple[int, Algorithm]]] = {
    8: [(0x8000, STEP), (4 * MIB, LATENCY), (4 * GIB, KANGARING)],
    16: [(0x4000, STEP), (4 * MIB, LATENCY), (16 * MIB, BANDWIDTH), (4 * GIB, KANGARING)],
    32: [(0x2000, STEP), (4 * MIB, LATENCY), (24 * MIB, BANDWIDTH), (4 * GIB, KANGARING)],
    64: [(0x2000, STEP), (4 * MIB, LATENCY), (24 * MIB, BANDWIDTH), (4 * GIB, KANGARING)],
    128: [(4 * MIB, LATENCY), (24 * MIB, BANDWIDTH), (4 * GIB, KANGARING)],
}


@pytest.mark.parametrize("ranks", [8, 16, 32, 64, 128])
def test_sweep_of_all_reduce(ranks: int) -> None:
    """The table's switch points exactly: at, one element below and one above each limit."""
    group = tuple(range(ranks))
    found = ranges(group, platform=SWITCH)
    assert windows(found) == ALL_REDUCE[ranks]
    for lower, upper in pairwise(found):
        selected = [plan(group, lower.last + away, platform=SWITCH).selected for away in (-1, 0, 1)]
        assert selected == [lower.algorithm, lower.algorithm, upper.algorithm]


def test_sweep_of_a_2_x_2_box() -> None:
    """[[0,1,4,5]]: two ranks on each of two chips, key 4: single-step to 128 KiB, latency-opt to 4 MiB, then RING."""
    box = (0, 1, 4, 5)
    found = ranges(box, platform=SWITCH)
    assert windows(found) == [(0x20000, STEP), (4 * MIB, LATENCY), (4 * GIB, RING)]
    for lower, upper in pairwise(found):
        selected = [plan(box, lower.last + away, platform=SWITCH).selected for away in (-1, 0, 1)]
        assert selected == [lower.algorithm, lower.algorithm, upper.algorithm]


def test_sweep_of_4_ranks_of_one_chip() -> None:
    """Plain `--ranks 4` is one chip: the on-chip path, with the limits of the per-device mesh and RDH."""
    found = ranges(range(4), platform=SWITCH)
    assert windows(found) == [(32 * KIB, STEP), (MIB, MESH), (56 * MIB, INTRA_RDH), (4 * GIB, RING)]
    comm = Selector(SWITCH, Settings()).communicator((0, 1, 2, 3))
    assert comm.mesh_type is MeshType.MESH_TRN2
    assert comm.geometry.local_rack_rank_n == 4  # the key is there, several chips are not


@pytest.mark.parametrize("ranks", [8, 16, 32, 64, 128])
def test_sweep_of_all_gather(ranks: int) -> None:
    """Shards: latency-opt to 8 MiB / ranks, bandwidth-opt to its table, then KangaRing."""
    found = ranges(range(ranks), AG, platform=SWITCH, most=8 * GIB)
    assert windows(found) == [
        (8 * MIB, LATENCY),
        (ranks * BANDWIDTH_LIMITS[ranks], BANDWIDTH),
        (8 * GIB, KANGARING),
    ]


def test_sweep_of_reduce_scatter_and_all_to_all() -> None:
    """A reduce-scatter is a mesh up to whole buffers of 4 MiB; an all-to-all has no end."""
    assert windows(ranges(range(32), RS, platform=SWITCH)) == [(4 * MIB, MESH), (4 * GIB, KANGARING)]
    assert windows(ranges(range(32), A2A, platform=SWITCH)) == [(4 * GIB, LATENCY)]


def test_sweep_at_lnc_1() -> None:
    """LNC 1: no bandwidth-opt, so KangaRing follows latency-opt at 4 MiB."""
    assert windows(ranges(range(32), platform=LNC1)) == [
        (0x2000, STEP),
        (4 * MIB, LATENCY),
        (4 * GIB, KANGARING),
    ]


def test_sweep_of_gen1() -> None:
    """Gen1 and Gen2 are one family: equal local_rack_rank_n, equal switch points. Source: design §2 (12)."""
    for ranks in (8, 16, 32, 64, 128):
        assert windows(ranges(range(ranks), platform=GEN1)) == ALL_REDUCE[ranks]


def test_the_key_counts_the_ranks_of_one_rack() -> None:
    """256 ranks, 8 + 8 sleds at the same places of both racks, have key 128; 16 sleds of one rack have no mesh."""
    both = chips(*range(32), *range(72, 104))
    found = ranges(both, platform=SWITCH)
    assert windows(found)[:2] == [(4 * MIB, LATENCY), (24 * MIB, BANDWIDTH)]
    assert windows(ranges(range(256), platform=SWITCH)) == [(4 * GIB, KANGARING)]


def test_one_rank_per_chip_groups() -> None:
    """144 ranks one a chip and 36 one a sled: the one-rank-per-chip builders, to 4 MiB; reported as MESH."""
    for ranks, above in ((range(0, 576, 4), HIER), (range(0, 576, 16), RING)):
        found = windows(ranges(ranks, platform=SWITCH))
        assert found[0] == (4 * MIB, MESH)
        assert found[1][1] is above


def test_a_strict_reader_of_the_plain_rows_finds_reduce_scatter_and_all_to_all_alone() -> None:
    """`staging device` reads the literal zeros of the all-gather and all-reduce rows: KangaRing takes them."""
    selector = Selector(SWITCH, Settings())
    for kind, expected in ((AG, KANGARING), (AR, KANGARING), (RS, MESH), (A2A, LATENCY)):
        asked = request(range(32), 32 * KIB, kind)
        object.__setattr__(asked, "staging", Staging.DEVICE)
        assert selector.select(asked).selected is expected


@pytest.mark.parametrize(
    ("group", "platform", "says"),
    [
        (range(32), SWITCH, None),
        (range(16), GEN1, None),
        ((0, 1, 4, 5), SWITCH, "consecutive ranks"),
        (range(4), SWITCH, None),
        (chips(0, 2), SWITCH, "consecutive ranks"),
    ],
)
def test_all_to_all_v_on_the_switch(group, platform, says) -> None:  # type: ignore[no-untyped-def]
    """All-to-all-v takes consecutive whole chips on the switch. Source: platforms §5, high."""
    if says is None:
        assert plan(group, 64 * KIB, A2AV, platform=platform).winner is MESH
        return
    with pytest.raises(UnsupportedError, match=says):
        plan(group, 64 * KIB, A2AV, platform=platform)
