"""The size windows as tables: what they hold, and that they leave no gap. Source: select §7.1, §7.3, §7.4."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.facts import CONVENTION, HIGH
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import Family
from rota.request import COMPOSED
from rota.select.limits import RDH_LIMIT, Limit, full_mesh_limits, mesh_limits, per_device_limits
from rota.select.settings import CHANNEL_BUFFER

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
KIB, MIB = 1 << 10, 1 << 20
Row = tuple[str, Algorithm, int, int]


def rows(limits: tuple[Limit, ...], kind: EncOp) -> list[Row]:
    return [(row.name, row.reported, row.minimum, row.maximum) for row in limits if kind in row.kinds]


@pytest.mark.parametrize(
    ("ranks", "kind", "expected"),
    [
        (2, AR, [("t0", Algorithm.SINGLE_STEP_MESH, 0, 256 * MIB)]),
        (2, AG, [("t0", Algorithm.MESH, 0, 256 * MIB)]),
        (2, RS, [("t0", Algorithm.MESH, 0, 256 * MIB)]),
        (32, AR, [("t1", Algorithm.SINGLE_STEP_MESH, 0, 32 * KIB), ("t2", Algorithm.MESH, 0, 8 * MIB)]),
        (32, RS, [("t2", Algorithm.MESH, 0, 256 * KIB)]),
        (32, AG, [("t2", Algorithm.MESH, 0, MIB)]),
        # 8 MiB / 24 is no multiple of 32: floor32(PG) = 349,504, and the window 24 x that
        (24, AR, [("t1", Algorithm.SINGLE_STEP_MESH, 0, 32 * KIB), ("t2", Algorithm.MESH, 0, 24 * 349_504)]),
        (24, RS, [("t2", Algorithm.MESH, 0, 349_504)]),
        # 512 ranks: a group's part of the channel buffer is under 32 KiB
        (512, AR, [("t1", Algorithm.SINGLE_STEP_MESH, 0, 16 * KIB), ("t2", Algorithm.MESH, 0, 8 * MIB)]),
    ],
)
def test_full_mesh(ranks: int, kind: EncOp, expected: list[Row]) -> None:
    """t0 for two ranks; t1 min(32 KiB, PG); t2 N x floor32(PG) up to the channel buffer. Source: select §7.3."""
    assert rows(full_mesh_limits(ranks), kind) == expected


@pytest.mark.parametrize(("ranks", "single"), [(2, 32 * KIB), (64, 32 * KIB), (128, 32 * KIB), (256, 16 * KIB)])
def test_per_device(ranks: int, single: int) -> None:
    """Single-step to min(32 KiB, CHB / N / 2), pass 0 to 256 KiB, pass 1 to 1 MiB. Source: select §7.4."""
    limits = per_device_limits(ranks)
    passes = [("mesh pass 0", Algorithm.MESH, 0, 256 * KIB), ("mesh pass 1", Algorithm.MESH, 256 * KIB, MIB)]
    assert rows(limits, AR) == [
        ("single-step", Algorithm.SINGLE_STEP_MESH, 0, single),
        ("mesh pass 0", Algorithm.MESH, single, 256 * KIB),
        passes[1],
    ]
    assert rows(limits, AG) == rows(limits, RS) == passes


def test_rdh() -> None:
    """RDH from above 1 MiB to 56 MiB, for all three operations. Source: select §7.4."""
    assert [rows((RDH_LIMIT,), kind) for kind in COMPOSED] == [[("rdh", Algorithm.INTRA_RDH, MIB, 56 * MIB)]] * 3


@pytest.mark.parametrize("family", Family)
def test_which_mesh_a_family_has(family: Family) -> None:
    """Trn1 has the full mesh, Trn2 the per-device one."""
    full = family in (Family.TRN1, Family.TRN1N)
    assert mesh_limits(family, 16) == (full_mesh_limits(16) if full else per_device_limits(16))


@pytest.mark.parametrize("kind", COMPOSED)
@pytest.mark.parametrize("family", [Family.TRN1, Family.TRN2])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64])
def test_windows_have_no_gap_and_a_source(family: Family, ranks: int, kind: EncOp) -> None:
    """From one byte up to the largest window of an operation some row admits every size; each row has its source.

    A mesh of more than two ranks stages an all-reduce in the channel buffer, so no window is larger.
    """
    limits = [row for row in mesh_limits(family, ranks) if kind in row.kinds]
    covered = 0
    for row in limits:
        assert row.minimum <= covered < row.maximum
        assert row.source.page == "select"
        assert row.source.confidence in (HIGH, CONVENTION)
        covered = row.maximum
    if kind is AR and ranks > 2:
        assert covered <= CHANNEL_BUFFER


@settings(deadline=None)
@given(minimum=st.integers(0, 1 << 40), length=st.integers(1, 1 << 40), away=st.integers(-2, 2))
def test_a_row_admits_above_its_minimum_and_up_to_its_maximum(minimum: int, length: int, away: int) -> None:
    """min < size <= max, with min == 0 meaning 'from 1 byte'; other operations never. Source: select §7.1."""
    row = Limit("row", Algorithm.MESH, (AG,), minimum, minimum + length, RDH_LIMIT.source)
    for edge in (minimum, minimum + length):
        size = edge + away
        assert row.admits(AG, size) is (minimum < size <= minimum + length)
        assert not row.admits(AR, size)
