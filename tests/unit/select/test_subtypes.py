"""The subtypes of the full, grouped and per-device meshes, with their limits. Source: select §7.3 and §7.4.

The sizes of t0, t1 and the cap of t2 are high; the other cells of §7.3 and all of §7.4 are conventions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.select.asking import (
    A2A,
    A2AV,
    AG,
    AR,
    INTRA_RDH,
    KANGARING,
    KIB,
    MESH,
    MIB,
    POD,
    RING,
    RS,
    STEP,
    TRN2,
    chips,
    plan,
    ranges,
    windows,
)

from rota.facts import CONVENTION, HIGH
from rota.isa.enums import Algorithm, EncOp, MeshType
from rota.machine.platform import load_platform
from rota.request import COMPOSED
from rota.select import Selector, Settings
from rota.select.limits import UNBOUNDED, Subtype
from rota.select.settings import CHANNEL_BUFFER
from rota.select.subtypes import MAX_SUBTYPES, Shape, subtypes

Rows = list[tuple[str, Algorithm, int, int]]
NODE = chips(*range(16))


def shape(mesh_type: MeshType, ranks: int, **other: int | bool) -> Shape:
    """Return a node of so many ranks with the default buffer, and whatever is said otherwise."""
    usual = Shape(
        mesh_type=mesh_type,
        lnc=2,
        ranks=ranks,
        nodes=1,
        local_rack_rank_n=0,
        chips=max(ranks // 4, 1),
        pod=1,
        one_rank_per_chip=False,
        channel_buffer=CHANNEL_BUFFER,
        double_buffer=True,
        rdh=0,
    )
    return replace(usual, **other)  # type: ignore[arg-type]


def rows(built: tuple[Subtype, ...], kind: EncOp) -> Rows:
    """Return name, reported algorithm, minimum and maximum of every row of an operation, in slot order."""
    found = [(one, row) for one in built for row in one.rows if row.op is kind]
    assert all(row.plain == row.sbuf for _, row in found)  # the twins are mirrored: a convention
    return [(one.name, one.reported, row.plain.minimum, row.plain.maximum) for one, row in found]


def full(ranks: int, kind: EncOp, **other: int | bool) -> Rows:
    """Return the rows of a full mesh."""
    return rows(subtypes(shape(MeshType.FULL_MESH, ranks, **other)), kind)


def per_device(ranks: int, kind: EncOp, **other: int | bool) -> Rows:
    """Return the rows of a per-device mesh."""
    return rows(subtypes(shape(MeshType.MESH_TRN2, ranks, **other)), kind)


# --- full mesh --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "kind", "expected"),
    [
        (2, AR, [("t0", STEP, 0, 256 * MIB)]),
        (2, AG, [("t0", MESH, 0, 256 * MIB)]),
        (2, RS, [("t0", MESH, 0, 256 * MIB)]),
        (32, AR, [("t1", STEP, 0, 32 * KIB), ("t2", MESH, 0, 8 * MIB)]),
        (32, RS, [("t2", MESH, 0, 256 * KIB)]),
        (32, AG, [("t2", MESH, 0, MIB)]),
        # 8 MiB / 24 is no multiple of 32: floor32(PG) = 349,504, and the window 24 x that
        (24, AR, [("t1", STEP, 0, 32 * KIB), ("t2", MESH, 0, 24 * 349_504)]),
        (24, RS, [("t2", MESH, 0, 349_504)]),
        # 512 ranks: a group's part of the channel buffer is under 32 KiB
        (512, AR, [("t1", STEP, 0, 16 * KIB), ("t2", MESH, 0, 8 * MIB)]),
    ],
)
def test_t0_t1_t2(ranks: int, kind: EncOp, expected: Rows) -> None:
    """t0 for two ranks, 0x10000000; t1 min(0x8000, PG); t2 N x floor32(PG) up to CHB. High but for t2's product."""
    assert full(ranks, kind) == expected


@pytest.mark.parametrize("ranks", [4, 8, 16, 32, 256, 512, 2048])
def test_t1_is_the_smaller_of_32_kib_and_a_groups_part(ranks: int) -> None:
    """t1: min(0x8000, PG), PG = CHB / num_groups. High."""
    assert full(ranks, AR)[0] == ("t1", STEP, 0, min(0x8000, CHANNEL_BUFFER // ranks))


@pytest.mark.parametrize("ranks", [4, 6, 10, 24, 32, 100, 512])
@pytest.mark.parametrize("buffer", [64 * 1024, CHANNEL_BUFFER, 32 * MIB])
def test_no_all_reduce_of_a_full_mesh_is_larger_than_the_channel_buffer(ranks: int, buffer: int) -> None:
    """Assertion of the original: op_max_limit[ALLREDUCE] <= CHB (t1, t2). High."""
    assert all(row[3] <= buffer for row in full(ranks, AR, channel_buffer=buffer))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (A2AV, [("t3", MESH, 0, MIB)]),
        (A2A, [("t4", MESH, 0, MIB)]),
        (AR, [("t4", MESH, 0, 8 * MIB)]),
        (RS, [("t4", MESH, 0, 4 * MIB)]),
        (AG, [("t4", MESH, 0, MIB)]),
    ],
)
def test_t3_t4(kind: EncOp, expected: Rows) -> None:
    """Two nodes: t3 is all-to-all-v alone, t4 the rest; neither is a single step. High but for the limits."""
    assert full(2, kind, nodes=2) == expected


def test_full_mesh_of_more_nodes_has_t2_alone() -> None:
    """One rank on each of several nodes: multi-group, no single step."""
    assert full(8, AR, nodes=8) == [("t2", MESH, 0, 8 * MIB)]


@pytest.mark.parametrize("kind", [A2A, A2AV])
def test_exchanges_of_a_full_mesh(kind: EncOp) -> None:
    """All-to-all up to 1 MiB: a convention."""
    for ranks in (2, 8, 32):
        assert [row[3] for row in full(ranks, kind)] == [MIB]


def test_grouped_mesh() -> None:
    """Inf2 with a multiple of 6 ranks: the limits of t2, without all-to-all-v and single step. Source: §5.3."""
    built = subtypes(shape(MeshType.GROUPED_MESH, 24))
    assert rows(built, AR) == [("grouped", MESH, 0, 24 * 349_504)]
    assert rows(built, RS) == [("grouped", MESH, 0, 349_504)]
    assert rows(built, AG) == rows(built, A2A) == [("grouped", MESH, 0, MIB)]
    assert rows(built, A2AV) == []


def test_no_mesh_has_no_subtypes() -> None:
    """INVALID builds nothing."""
    assert subtypes(shape(MeshType.INVALID, 10)) == ()


# --- the per-device mesh ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "single"), [(2, 32 * KIB), (64, 32 * KIB), (128, 32 * KIB), (256, 16 * KIB)])
def test_per_device(ranks: int, single: int) -> None:
    """Single-step to min(32 KiB, CHB / N / 2), pass 0 to 256 KiB, pass 1 to 1 MiB. Source: select §7.4, convention."""
    passes = [("mesh pass 0", MESH, 0, 256 * KIB), ("mesh pass 1", MESH, 256 * KIB, MIB)]
    assert per_device(ranks, AR) == [
        ("mesh pass 0", MESH, single, 256 * KIB),
        ("single-step", STEP, 0, single),
        passes[1],
    ]
    assert per_device(ranks, AG) == per_device(ranks, RS) == passes


def test_the_single_step_fills_the_buffer_without_double_buffering() -> None:
    """min(32 KiB, CHB / rank_n / (double_buffer ? 2 : 1)): 256 ranks have 32 KiB when one half is the whole."""
    assert per_device(256, AR, double_buffer=False)[1] == ("single-step", STEP, 0, 32 * KIB)
    assert per_device(256, AR, channel_buffer=MIB)[1] == ("single-step", STEP, 0, 2 * KIB)


def test_all_to_all_of_a_device_has_no_upper_bound() -> None:
    """A2A has no other algorithm, so its last row is unbounded, by iterations: a convention."""
    for kind in (A2A, A2AV):
        assert per_device(64, kind) == [
            ("mesh pass 0", MESH, 0, 256 * KIB),
            ("mesh pass 1", MESH, 256 * KIB, UNBOUNDED),
        ]


def test_the_builder_runs_twice() -> None:
    """Both passes take fresh slots, all of the first before those of the second; then RDH. High (mechanism)."""
    names = [one.name for one in subtypes(shape(MeshType.MESH_TRN2, 64, rdh=56 * MIB))]
    first = [slot for slot, name in enumerate(names) if name in ("mesh pass 0", "single-step")]
    second = [slot for slot, name in enumerate(names) if name == "mesh pass 1"]
    assert max(first) < min(second)
    assert names[-1] == "rdh"
    assert len(names) == len(first) + len(second) + 1


@pytest.mark.parametrize(
    ("fits", "most"), [(MIB << 10, 56 * MIB), (56 * MIB, 56 * MIB), (56 * MIB - 1, 56 * MIB - 1), (2 * MIB, 2 * MIB)]
)
def test_rdh(fits: int, most: int) -> None:
    """RDH from above 1 MiB to 56 MiB, and at most what fits its scratch, for all three operations: a convention."""
    for kind in COMPOSED:
        assert per_device(64, kind, rdh=fits)[-1] == ("rdh", INTRA_RDH, MIB, most)
    assert [one.name for one in subtypes(shape(MeshType.MESH_TRN2, 64)) if one.is_rdh] == []


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (None, [(32 * KIB, STEP), (MIB, MESH), (56 * MIB, INTRA_RDH), (4096 * MIB, KANGARING)]),
        (31 * MIB, [(32 * KIB, STEP), (MIB, MESH), (56 * MIB, INTRA_RDH), (4096 * MIB, KANGARING)]),
        (310 * 64 * KIB, [(32 * KIB, STEP), (MIB, MESH), (40 * MIB, INTRA_RDH), (4096 * MIB, KANGARING)]),
        (64 * KIB, [(32 * KIB, STEP), (MIB, MESH), (4096 * MIB, KANGARING)]),
    ],
)
def test_the_rdh_window_is_cut_where_its_scratch_is_small(
    buffer: int | None, expected: list[tuple[int, Algorithm]]
) -> None:
    """A plan of 16 chips of 4 ranks takes 31/64 of the size; a smaller scratch ends the window: a convention."""
    found = ranges(NODE, settings=Settings(intra_rdh_buffer=buffer))
    assert windows(found) == expected


def test_two_step_pod() -> None:
    """Four nodes of a pod: the two-step builders for AR, RS and AG up to CHB / 4 replace the plain ones; A2A stays."""
    for kind in COMPOSED:
        assert per_device(4, kind, pod=4, nodes=4) == [("two-step pod", POD, 0, 2 * MIB)]
    assert [row[0] for row in per_device(4, A2A, pod=4, nodes=4)] == ["mesh pass 0", "mesh pass 1"]
    assert per_device(2, AR, pod=2, nodes=2)[0][0] == "mesh pass 0"


def test_lnc_1_has_the_same_windows() -> None:
    """At LNC 1, 8 ranks of one chip: RDH with 8 ranks a chip, but KangaRing needs more than 8 ranks, so RING."""
    lnc1 = load_platform("trn2.48xlarge", lnc=1)
    assert windows(ranges(range(8), platform=lnc1)) == [
        (32 * KIB, STEP),
        (MIB, MESH),
        (56 * MIB, INTRA_RDH),
        (4096 * MIB, RING),
    ]
    assert windows(ranges(range(32), platform=lnc1))[-2:] == [(56 * MIB, INTRA_RDH), (4096 * MIB, KANGARING)]
    assert windows(ranges(range(4), platform=lnc1)) == [(32 * KIB, STEP), (MIB, MESH), (4096 * MIB, RING)]
    assert plan(range(8), 2 * MIB, platform=lnc1).selected is INTRA_RDH


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize("flavour", [MeshType.FULL_MESH, MeshType.MESH_TRN2, MeshType.GROUPED_MESH])
@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16, 24, 32, 64])
def test_windows_have_no_gap_and_a_source(flavour: MeshType, ranks: int, kind: EncOp) -> None:
    """From one byte up to the largest window of an operation some row admits every size; each row has its source.

    A mesh of more than two ranks stages an all-reduce in the channel buffer, so no window is larger.
    """
    found = [row for one in subtypes(shape(flavour, ranks)) for row in one.rows if row.op is kind]
    covered = 0
    for row in sorted(found, key=lambda row: row.plain.minimum):
        assert row.plain.minimum <= covered
        assert row.plain.maximum > 0
        assert row.source.page == "select"
        assert row.source.confidence in (HIGH, CONVENTION)
        covered = max(covered, row.plain.maximum)
    if kind is AR and ranks > 2:
        assert covered <= CHANNEL_BUFFER


@settings(deadline=None, max_examples=200)
@given(
    flavour=st.sampled_from(list(MeshType)),
    ranks=st.integers(1, 4096),
    buffer=st.integers(1, 1 << 40),
    nodes=st.integers(1, 40),
    racks=st.integers(0, 600),
    flags=st.tuples(st.booleans(), st.booleans()),
    lnc=st.sampled_from([1, 2]),
    pod=st.sampled_from([1, 2, 4]),
    rdh=st.integers(0, 1 << 30),
)
def test_any_shape_builds_slots(flavour, ranks, buffer, nodes, racks, flags, lnc, pod, rdh) -> None:  # type: ignore[no-untyped-def]
    """Up to 20 subtypes (ENC_MAX_MESH_SUBTYPES, high), numbered in slot order; a refused one is empty and says why."""
    one_each, double = flags
    built = subtypes(Shape(flavour, lnc, ranks, nodes, racks, 1, pod, one_each, buffer, double, rdh))
    assert len(built) <= MAX_SUBTYPES == 20
    assert [one.slot for one in built] == list(range(len(built)))
    for one in built:
        assert bool(one.rows) is (one.refused is None)
        assert one.refused is None or (one.refused.reason and not one.refused)
        assert all(row.sbuf.minimum >= 0 and row.sbuf.maximum >= 0 for row in one.rows)


def test_channel_buffer_default() -> None:
    """CHB = 8 MiB by default, and NEURON_RT_DBG_MESH_CHANNEL_BUFFER_SIZE changes what depends on it. High."""
    assert CHANNEL_BUFFER == 0x800000 == Settings().mesh_channel_buffer
    small = Selector(load_platform("trn1.32xlarge"), Settings(mesh_channel_buffer=64 * KIB))
    comm = small.communicator(tuple(range(32)))
    assert [row.plain.maximum for _, row in comm.offered[AR].rows] == [2 * KIB, 64 * KIB]
    assert Selector(TRN2, Settings()).communicator(NODE).mesh_type is MeshType.MESH_TRN2
