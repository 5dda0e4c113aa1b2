"""Documented groups, and the suggestions for a group that is not one of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rota.machine.geometry import geometry
from rota.machine.group import parse_groups, wire
from rota.machine.layouts import box_fault, documented_groups, is_documented, nearest, splits
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


# --- logical core size 1, other machines, several nodes -------------------------------------------------------------


def test_count_at_lnc_1() -> None:
    """Topology §4: the groups of LNC 2 in 8 lanes, without the 8 pairs of chips, with 32 half chips and 4 across."""
    groups = documented_groups(load_platform("trn2.48xlarge", lnc=1))
    one_lane = 16 + 16 + 4 + 32  # columns, rows, every chip, two rows; of the 4 lanes of LNC 2
    assert len(groups) == 103 - 8 + one_lane + 32 + 4 == 199
    assert sum(len(group) == 4 and group[-1] - group[0] == 3 for group in groups) == 32


@pytest.mark.parametrize(
    ("name", "groups"), [("inf2.24xlarge", 7), ("inf2.48xlarge", 13), ("trn1.2xlarge", 1), ("trn2.3xlarge", 1)]
)
def test_count_of_other_machines(name: str, groups: int) -> None:
    """Every chip, and all chips."""
    assert len(documented_groups(load_platform(name))) == groups


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge", "inf2.24xlarge"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_is_documented_agrees_with_the_list(name: str, nodes: int) -> None:
    """A group is documented exactly when it is in the list."""
    if nodes > 1 and name.startswith("inf2"):
        return
    platform = load_platform(name, nodes=nodes)
    listed = set(documented_groups(platform))
    for members in listed:
        assert is_documented(platform, members)
        assert bool(is_documented(platform, members[1:])) == (members[1:] in listed)
        moved = tuple(sorted((rank + platform.ranks_per_chip) % platform.ranks for rank in members))
        assert bool(is_documented(platform, moved)) == (moved in listed)


def test_documented_over_nodes(trn2: Platform) -> None:
    """Platforms §4.2: the same documented ranks on some nodes, or one rank on each."""
    platform = load_platform("trn2.48xlarge", nodes=4)
    assert is_documented(platform, [*range(16), *range(128, 144)])
    assert is_documented(platform, [9, 201])
    squares = [*range(8), *range(16, 24)]
    other = is_documented(platform, [*squares, *(64 + rank for rank in squares)])
    assert other.reason == "groups of 32 ranks are documented on trn2.48xlarge, but not with these ranks"
    assert not is_documented(trn2, squares)


@pytest.mark.parametrize(
    ("size", "names", "tp", "dp"),
    [
        (64, ["64x1"], 1, 64),
        (32, ["32x2 Logic2"], 2, 32),
        (16, ["16x4", "16x4 in columns"], 4, 16),
        (8, ["8x8"], 8, 8),
        (4, ["4x16"], 16, 4),
        (2, [], 0, 0),
    ],
)
def test_splits(trn2: Platform, size: int, names: list[str], tp: int, dp: int) -> None:
    """Topology §4: TP groups cut the node, DP groups across them do as well, and all are wired."""
    found = splits(trn2, size)
    assert [split.name for split in found] == names
    for split in found:
        assert (len(split.tp), len(split.dp)) == (tp, dp)
        for groups in (split.tp, split.dp):
            assert sorted(rank for group in groups for rank in group) == list(range(64))
            for group in groups:
                assert len(group) == 1 or wire(trn2, group).channels


def test_members_of_the_8x8_split(trn2: Platform) -> None:
    """Topology §4: chips 0-1, 3-2, 4-5, 7-6, 12-13, 15-14, 8-9, 11-10 in this member order."""
    (split,) = splits(trn2, 8)
    chips = {tuple(dict.fromkeys(rank // 4 for rank in group)) for group in split.tp}
    assert chips == {(0, 1), (3, 2), (4, 5), (7, 6), (12, 13), (15, 14), (8, 9), (11, 10)}
    across = {tuple(sorted(rank // 4 for rank in group)) for group in split.dp}
    assert across == {(0, 3, 4, 7, 8, 11, 12, 15), (1, 2, 5, 6, 9, 10, 13, 14)}
    assert all(len({rank % 4 for rank in group}) == 1 for group in split.dp)


def test_splits_of_half_chips() -> None:
    """Topology §4: 4x32 at LNC 1 has half chips, and across them two ranks of every chip."""
    (split,) = splits(load_platform("trn2.48xlarge", lnc=1), 4)
    assert split.name == "4x32"
    assert split.tp == tuple(tuple(range(low, low + 4)) for low in range(0, 128, 4))
    assert split.dp == tuple(tuple(range(k, 128, 4)) for k in range(4))


def test_suggestions_over_nodes() -> None:
    """Suggestions for a group over two nodes are the same ranks on both, or a group on the node with most of it."""
    platform = load_platform("trn2.48xlarge", nodes=2)
    assert str(nearest(platform, [0, 1, 2, 64, 65])) == "0-3 (smaller), 0-3,64-67 (larger)"
    assert str(nearest(platform, [*range(64, 128), 3])) == "64-127 (smaller), 0-127 (larger)"


def test_boxes_near_a_group_of_a_switch() -> None:
    """Topology §5: the largest full box inside a group and the smallest around it."""
    platform = load_platform("trn3pds98")
    ragged = [*range(0, 16), *range(16, 28), *range(32, 40), *range(48, 60)]  # servers with 4, 3, 2 and 3 chips
    near = nearest(platform, ragged)
    assert near.smaller == tuple(16 * server + rank for server in (0, 1, 3) for rank in range(12))
    assert near.larger == tuple(range(64))
    for group in near.groups:
        assert box_fault(platform, geometry(platform, group)) is None
