"""Windows and rows as values: which sizes they admit, for which operands, and what they say of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.select.asking import AG, AR, KIB, MIB, RS, SWITCH, TRN1, TRN2, plan, request

from rota.facts import CONVENTION, HIGH
from rota.isa.enums import Algorithm
from rota.request import Staging
from rota.select import Selector, Settings
from rota.select.limits import BOUNDARY, NOTHING, UNBOUNDED, LimitRead, Row, Subtype, Table, Window

SOURCE = BOUNDARY


@settings(deadline=None)
@given(minimum=st.integers(0, 1 << 40), length=st.integers(1, 1 << 40), away=st.integers(-2, 2))
def test_a_window_admits_above_its_minimum_and_up_to_its_maximum(minimum: int, length: int, away: int) -> None:
    """min < size <= max, with min == 0 meaning 'from 1 byte': a convention. Source: select §7.1."""
    window = Window(minimum, minimum + length)
    for edge in (minimum, minimum + length):
        size = edge + away
        assert window.admits(size) is (minimum < size <= minimum + length)
    assert BOUNDARY.confidence is CONVENTION


@given(size=st.integers(1, UNBOUNDED))
def test_a_maximum_of_0_is_not_offered(size: int) -> None:
    """A row with max == 0 offers no size at all."""
    assert not NOTHING.admits(size)
    assert Window(0, 0) == NOTHING


def test_a_maximum_below_the_minimum_admits_nothing() -> None:
    """Where the fitting maximum is below the minimum no size is left: no error, no negative window."""
    assert not any(Window(MIB, 64 * KIB).admits(size) for size in (1, 64 * KIB, 64 * KIB + 1, MIB, MIB + 1))


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (Window(0, 0), "no size"),
        (Window(4 * MIB, 4 * MIB), "no size"),
        (Window(0, 32 * KIB), "up to 32K"),
        (Window(32 * KIB, MIB), "above 32K and up to 1M"),
        (Window(MIB, UNBOUNDED), "above 1M"),
        (Window(0, UNBOUNDED), "any size"),
    ],
)
def test_windows_as_text(window: Window, text: str) -> None:
    """A window reads as a person would say it."""
    assert str(window) == text


def test_a_row_has_two_twins() -> None:
    """Static (2-D, SBUF) operands read the `_sbuf` twin, device operands the plain one. Source: design §2 (4)."""
    row = Row(AR, NOTHING, Window(0, 64), SOURCE)
    assert row.window(Staging.STATIC) == Window(0, 64)
    assert row.window(Staging.DEVICE) == NOTHING
    assert (row.text(Staging.STATIC), row.text(Staging.DEVICE)) == ("up to 64", "no size")


def test_a_subtype_has_a_row_for_an_operation_or_none() -> None:
    """The limit tables are indexed by operation."""
    row = Row(AR, NOTHING, Window(0, 64), SOURCE)
    subtype = Subtype(3, "some", Algorithm.MESH, (row,))
    assert subtype.row(AR) is row
    assert subtype.row(AG) is None


def test_the_first_slot_that_admits_carries() -> None:
    """Scan order: slot index ascending, the first admitted wins (a convention); every row that is read is kept."""
    rows = tuple(
        (Subtype(slot, name, Algorithm.MESH, ()), Row(AR, Window(*limits), Window(*limits), SOURCE))
        for slot, (name, limits) in enumerate((("a", (0, 8)), ("b", (0, 16)), ("c", (16, 32))))
    )
    table = Table(rows)
    assert table.outside == ("above 0 and up to 32", "above 0 and up to 32")
    for size, expected in ((8, "a"), (9, "b"), (16, "b"), (17, "c"), (32, "c"), (33, None)):
        found = table.carrier(Staging.DEVICE, size)
        assert (found[0].name if found else None) == expected
        assert [read.admits for read in table.reads(Staging.DEVICE, size)] == [
            row.plain.admits(size) for _, row in rows
        ]


def test_rdh_rows_are_read_by_the_rdh_predicate_alone() -> None:
    """RDH subtypes are scanned only by the RDH predicate, all others only by the mesh predicate."""
    comm = Selector(TRN2, Settings()).communicator(tuple(range(64)))
    for kind in (AR, AG, RS):
        assert not any(subtype.is_rdh for subtype, _ in comm.offered[kind].rows)
        assert [subtype.is_rdh for subtype, _ in comm.halving[kind].rows] == [True]
    slots = [subtype.slot for subtype, _ in comm.offered[AR].rows]
    assert slots == sorted(slots)


@pytest.mark.parametrize(
    ("platform", "staging"),
    [(SWITCH, Staging.STATIC), (TRN2, Staging.DEVICE), (TRN1, Staging.DEVICE)],
)
def test_which_twin_a_machine_reads(platform, staging) -> None:  # type: ignore[no-untyped-def]
    """Static is the default on the switch family, device elsewhere; the request may say. Source: design §2 (4)."""
    decided = plan(range(8), 64, platform=platform)
    assert decided.staging is staging
    assert {read.staging for read in decided.limits} == {staging}


def test_the_plain_twin_of_the_switch_offers_nothing() -> None:
    """A literal reader of the plain rows never selects these subtypes; the verdict says so. Source: design §2 (4)."""
    asked = replace(request(range(8), 64), staging=Staging.DEVICE)
    decided = Selector(SWITCH, Settings()).select(asked)
    assert decided.selected is Algorithm.KANGARING
    assert dict(decided.verdicts)[Algorithm.MESH].reason == "no row admits a size for device operands"
    assert not any(read.admits for read in decided.limits)


def test_a_read_row_knows_what_it_was_compared_with() -> None:
    """A read row keeps the size, the twin, and whether it took it."""
    for read in plan(range(64), 16 * KIB).limits:
        assert isinstance(read, LimitRead)
        assert read.size == 16 * KIB
        assert read.row.source.confidence in (HIGH, CONVENTION)
    assert [read.subtype.name for read in plan(range(64), 16 * KIB).limits if read.admits] == ["single-step"]
