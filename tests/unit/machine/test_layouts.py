"""Documented groups, and the suggestions for a group that is not one of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rota.machine.group import parse_groups, wire
from rota.machine.layouts import documented_groups, is_documented, nearest
from rota.machine.platform import Platform, load_platform


@pytest.fixture
def trn1() -> Platform:
    return load_platform("trn1.32xlarge")


@pytest.fixture
def trn2() -> Platform:
    return load_platform("trn2.48xlarge")


def group(text: str) -> tuple[int, ...]:
    return parse_groups(text, ranks=64)[0]


def test_count(trn1: Platform, trn2: Platform) -> None:
    """Topology §4: 103 groups are documented at LNC 2; on Trn1 16 chips, 8 pairs, 4 rows, 2 halves and the node."""
    assert len(documented_groups(trn2)) == 103
    assert [sum(len(g) == n for g in documented_groups(trn1)) for n in (2, 4, 8, 16, 32)] == [16, 8, 4, 2, 1]


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
def test_every_documented_group_is_wired(name: str) -> None:
    """Topology §4: documented groups are subcubes, so each has a ring, and none a warning."""
    platform = load_platform(name)
    for members in documented_groups(platform):
        wiring = wire(platform, members)
        assert wiring.channels
        assert wiring.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "0-15", "16-31", "0-3,16-19,32-35,48-51", "0-15,48-63", "16-47", "0-63", "60-63", "2,18,34,50",
        "1,5,9,13", "7,23", "49,33", "0-7", "8-15", "48-55",
    ],
)  # fmt: skip
def test_documented_on_trn2(trn2: Platform, text: str) -> None:
    """Platforms §5, topology §4: members of the layouts 64x1, 16x4 both ways, 4x16, 32x2 and 8x8."""
    assert is_documented(trn2, group(text))


@pytest.mark.parametrize(
    "text", ["0-31", "32-63", "4-11", "0,32", "0,8,16,24,32,40,48,56", "0-3,4-7,16-19,20-23", "0,1"]
)
def test_undocumented_place_on_trn2(trn2: Platform, text: str) -> None:
    """Topology §4: ascending halves, pairs two cables apart and squares have a documented size and the wrong place."""
    verdict = is_documented(trn2, group(text))
    assert not verdict
    assert verdict.reason.endswith("ranks are documented on trn2.48xlarge, but not with these ranks")


@pytest.mark.parametrize(
    ("text", "documented"),
    [
        ("0-15", True),
        ("16-31", True),
        ("8-23", False),
        ("0-7,24-31", False),
        ("4-11", False),
        ("2-5", False),
        ("1-2", False),
    ],
)
def test_documented_on_trn1(trn1: Platform, text: str, documented: bool) -> None:
    """Platforms §5: 16 ranks only as 0-15 or 16-31, 4 as two adjacent chips from an even one, 8 as a row."""
    assert bool(is_documented(trn1, parse_groups(text, ranks=32)[0])) == documented


@pytest.mark.parametrize(
    ("text", "same", "smaller", "larger"),
    [
        ("0-5", [], "0-3", "0-7"),
        ("8-23", ["0-15", "16-31"], "8-15", "0-15,48-63"),
        ("0-31", ["0-15,48-63", "16-47"], "0-15", "0-63"),
        ("0,8,16,24,32,40,48,56", [], "0,16,32,48", "0,4,8,12,16,20,24,28,32,36,40,44,48,52,56,60"),
        ("0-47", [], "16-47", "0-63"),
        ("0,32", ["0,16", "32,48"], None, "0,16,32,48"),
    ],
)
def test_suggestions(trn2: Platform, text: str, same: list[str], smaller: str | None, larger: str) -> None:
    """Topology §4: the table of what is answered to a group that is asked for."""
    near = nearest(trn2, group(text))
    assert near.same_size == tuple(map(group, same))
    assert near.smaller == (None if smaller is None else group(smaller))
    assert near.larger == group(larger)


@pytest.mark.parametrize(
    ("members", "text"),
    [(range(6), "0-3 (smaller), 0-7 (larger)"), (range(63), "16-47 (smaller), 0-63 (larger)"), ([9], "9,25 (larger)")],
)
def test_suggestions_in_words(trn2: Platform, members: Iterable[int], text: str) -> None:
    """Suggestions print as ranges, with what each one is."""
    assert str(nearest(trn2, tuple(members))) == text
