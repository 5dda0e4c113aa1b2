"""Sizes from text and to text, and the time a transfer takes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import UsageError
from rota.units import format_size, parse_size, transfer_ps

MOST = 1 << 50


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("32K", 32 << 10),
        ("128M", 128 << 20),
        ("1G", 1 << 30),
        ("1024T", MOST),
        ("64k", 64 << 10),
        ("64 KiB", 64 << 10),
        ("64KB", 64 << 10),
        (" 7B ", 7),
    ],
)
def test_sizes_are_powers_of_two(text: str, size: int) -> None:
    """Sizes read `8`, `32K`, `128M`, `1G`, all powers of two, however the unit is written."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "K",
        "0",
        "0K",
        "-1",
        "1.5M",
        "1e6",
        "0x10",
        "64Q",
        "64KM",
        "1025T",
        "9" * 18 + "T",
        "9" * 5000,
        "٣",
        "64\u212a",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """Nothing, no number, a fraction, another alphabet, zero, more than 1024T: one short sentence each."""
    with pytest.raises(UsageError, match=r"^size '.*': expected ") as error:
        parse_size(text)
    assert len(str(error.value)) < 200


def test_the_sentence_says_what_to_write() -> None:
    """A refusal says what was expected and shows an example."""
    with pytest.raises(UsageError, match=r"size '1.5M': expected a whole number .* for example 64M"):
        parse_size("1.5M")
    with pytest.raises(UsageError, match="expected between 1 byte and 1024T, got 0 bytes"):
        parse_size("0")


@settings(deadline=None)
@given(size=st.integers(1, MOST))
def test_a_size_prints_and_parses_back(size: int) -> None:
    """The printed form is exact."""
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (1000, "1000"), (1024, "1K"), (65536, "64K"), (1536 << 20, "1536M"), (MOST, "1024T")]
)
def test_the_shortest_exact_text(size: int, text: str) -> None:
    """The largest unit that divides a size is printed."""
    assert format_size(size) == text


@settings(deadline=None)
@given(size=st.integers(0, MOST), rate=st.integers(1, 10**13))
def test_transfers_are_rounded_to_the_nearest_picosecond(size: int, rate: int) -> None:
    """Time is whole picoseconds, at most half of one from the exact quotient, whatever the sizes."""
    exact = Fraction(size * 10**12, rate)
    assert abs(transfer_ps(size, rate) - exact) <= Fraction(1, 2)


def test_known_transfers() -> None:
    """64 MiB at 50 GB/s take 1,342,177,280 ps; 1 byte at 3 TB/s takes a third of a picosecond, which rounds to none."""
    assert transfer_ps(64 << 20, 50 * 10**9) == 1_342_177_280
    assert transfer_ps(1, 3 * 10**12) == 0
    assert transfer_ps(2, 3 * 10**12) == 1
