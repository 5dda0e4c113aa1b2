"""What a replica group gets: the table of topology §4 row by row, refusals with their reasons, and warnings."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH
from rota.machine.geometry import geometry
from rota.machine.group import HIER_ONLY, Wiring, node_channels, wire
from rota.machine.platform import Platform, known_platforms, load_platform
from rota.machine.topology import port_owner

ROWS = [tuple(range(4 * row, 4 * row + 4)) for row in range(4)]
COLUMNS = [tuple(range(column, 16, 4)) for column in range(4)]
XOR_2, XOR_1 = (0, 1, 4, 5), (1, 2, 5, 6)

# Topology §4: chips, channels with all lanes, channels with one lane.
TABLE = [
    ("two adjacent chips", (0, 1), 1, 1),
    ("two adjacent chips round the edge", (0, 12), 1, 1),
    *[("row", row, 2, 2) for row in ROWS],
    *[("column", column, 2, 2) for column in COLUMNS],
    ("square, xor-2 kind", XOR_2, 2, 2),
    ("square, xor-1 kind", XOR_1, 2, 2),
    ("square round two edges, xor-2 kind", (15, 12, 3, 0), 2, 2),
    *[("two adjacent rows", ROWS[row] + ROWS[(row + 1) % 4], 2, 2) for row in range(4)],
    *[("two adjacent columns", COLUMNS[column] + COLUMNS[(column + 1) % 4], 2, 2) for column in range(4)],
    ("node", tuple(range(16)), 4, 4),
    ("three rows", ROWS[0] + ROWS[1] + ROWS[2], 2, 2),
    ("irregular with a cycle", (0, 1, 2, 4, 5, 6), 2, 2),
    ("only a path, three chips", (0, 1, 2), 1, 0),
    ("only a path, five chips", (0, 1, 2, 3, 4), 1, 0),
    ("rows 0 and 2", ROWS[0] + ROWS[2], 0, 0),
    ("columns 0 and 2, every second chip", COLUMNS[0] + COLUMNS[2], 0, 0),
    ("chips 2 to 5", (2, 3, 4, 5), 0, 0),
    ("two chips that do not touch", (0, 8), 0, 0),
    ("a chip with three arms", (0, 1, 3, 4), 0, 0),
]


@pytest.fixture(params=["trn1.32xlarge", "trn2.48xlarge"])
def platform(request: pytest.FixtureRequest) -> Platform:
    return load_platform(request.param)


@pytest.fixture
def trn1() -> Platform:
    return load_platform("trn1.32xlarge")


@pytest.fixture
def trn2() -> Platform:
    return load_platform("trn2.48xlarge")


def ranks(platform: Platform, chips: Iterable[int], lanes: Iterable[int] | None = None) -> list[int]:
    chosen = range(platform.ranks_per_chip) if lanes is None else tuple(lanes)
    return [platform.ranks_per_chip * chip + lane for chip in chips for lane in chosen]


def refusal(platform: Platform, members: Iterable[int]) -> str:
    with pytest.raises(UnsupportedError) as caught:
        wire(platform, tuple(members))
    assert caught.value.source is not None
    return str(caught.value)


def check(platform: Platform, members: list[int], count: int) -> None:
    if count == 0:
        assert refusal(platform, members).startswith(
            "this group gets 0 of the node's 4 ring channels, because its chips "
        )
        return
    wiring = wire(platform, members)
    assert len(wiring.channels) == count
    assert wiring.verdict
    assert wiring.verdict.reason.startswith(
        f"this group gets {count} of the node's 4 ring channels, because its chips "
    )


@pytest.mark.parametrize(("chips", "count"), [row[1:3] for row in TABLE], ids=[row[0] for row in TABLE])
def test_channels_with_all_lanes(platform: Platform, chips: tuple[int, ...], count: int) -> None:
    """Topology §4: ring channels of a chip set with all lanes of each chip."""
    check(platform, ranks(platform, chips), count)


@pytest.mark.parametrize(("chips", "count"), [row[1::2] for row in TABLE], ids=[row[0] for row in TABLE])
def test_channels_with_one_lane(platform: Platform, chips: tuple[int, ...], count: int) -> None:
    """Topology §4: ring channels of a chip set with one rank on each chip."""
    for lane in range(platform.ranks_per_chip):
        check(platform, ranks(platform, chips, [lane]), count)


@pytest.mark.parametrize(
    ("chips", "reason"),
    [
        ((0, 1), "because its chips have only 0 edge-disjoint cycles: chips 0 and 1 share one cable, out and back"),
        (ROWS[2], "because its chips have only 1 edge-disjoint cycle"),
        (range(16), "because its chips have 2 edge-disjoint cycles"),
        ((0, 1, 2), "0 edge-disjoint cycles: chips 0 1 2 are an open chain, and one ring goes out and back along it"),
    ],
)
def test_verdicts(platform: Platform, chips: Iterable[int], reason: str) -> None:
    """Topology §4: the verdict says how many of the node's channels, and how many edge-disjoint cycles there are."""
    assert wire(platform, ranks(platform, chips)).verdict.reason.endswith(reason)


def test_sources_of_the_verdicts(platform: Platform) -> None:
    """The table is the specification's; the fold of an open chain is a choice."""
    assert confidence(wire(platform, range(platform.ranks))) is HIGH
    assert confidence(wire(platform, ranks(platform, (0, 1, 2)))) is CONVENTION


def confidence(wiring: Wiring) -> object:
    assert wiring.verdict.source is not None
    return wiring.verdict.source.confidence


# --- one chip, one rank -----------------------------------------------------------------------------------------------


def test_one_rank(platform: Platform) -> None:
    """A group of one rank is a local copy: no channel, no warning."""
    wiring = wire(platform, [5])
    assert (wiring.channels, wiring.warnings) == ((), ())
    assert wiring.verdict
    assert "a group of one rank is a local copy" in wiring.verdict.reason


def test_one_chip_of_trn2(trn2: Platform) -> None:
    """Topology §4: one chip has 2 channels, two of its ranks have 1, and three are refused."""
    assert len(wire(trn2, range(4, 8)).channels) == 2
    for other in (5, 6, 7):
        wiring = wire(trn2, [4, other])
        assert [(channel.order, channel.cables) for channel in wiring.channels] == [((4, other), (-1, -1))]
    assert "because it has 3 of the 4 ranks of chip 1, and a ring on one chip takes two or all" in refusal(
        trn2, [4, 5, 7]
    )


def test_one_chip_of_trn1(trn1: Platform) -> None:
    """Topology §4: one chip of 2 ranks has 1 channel."""
    assert [channel.order for channel in wire(trn1, [2, 3]).channels] == [(2, 3)]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "members", "reason"),
    [
        ("trn2.48xlarge", range(6), "because chip 1 has ranks 4-5 in it where chip 0 has 0-3;"),
        ("trn2.48xlarge", [1, *range(4, 8)], "because chip 0 has ranks 1 in it where chip 1 has 4-7;"),
        ("trn2.48xlarge", [0, 5], "because chip 1 has ranks 5 in it where chip 0 has 0;"),
        ("trn2.48xlarge", range(62), "because chip 15 has ranks 60-61 in it where chip 0 has 0-3;"),
        ("trn1.32xlarge", range(5), "because chip 2 has ranks 4 in it where chip 0 has 0-1;"),
        ("trn1.32xlarge", [0, 1, 16], "because chip 8 has ranks 16 in it where chip 0 has 0-1;"),
        (
            "trn2.48xlarge",
            [0, 1, 4, 5],
            "because it has lanes 0 and 1 of each chip, and a ring takes all lanes or one;",
        ),
        ("trn2.48xlarge", [0, 1, 3, 4, 5, 7], "because it has lanes 0 and 1 and 3 of each chip, and a ring takes all"),
    ],
)
def test_unequal_and_partial_lanes(name: str, members: Iterable[int], reason: str) -> None:
    """Topology §4: equal lane sets come first, and a chip whose ranks differ is named; then all lanes or one."""
    assert reason in refusal(load_platform(name), members)


@pytest.mark.parametrize(
    ("chips", "reason"),
    [
        (ROWS[0] + ROWS[2], "no cables of the group lead from chip 0 to chip 8 (chips 0-3 do not touch chips 8-11)"),
        ((2, 3, 4, 5), "no cables of the group lead from chip 2 to chip 4 (chips 2-3 do not touch chips 4-5)"),
        (tuple(range(0, 16, 2)), "chip 0 to chip 2 (chips 0,4,8,12 do not touch chips 2,6,10,14)"),
        (COLUMNS[1] + COLUMNS[3], "chip 1 to chip 3 (chips 1,5,9,13 do not touch chips 3,7,11,15)"),
        ((0, 8), "chips 0 and 8 have no neighbour in the group"),
        ((0, 1, 6), "chip 6 has no neighbour in the group"),
        ((0, 1, 3, 4), "no walk over its cables visits every chip once"),
    ],
)
def test_chips_without_a_chain(platform: Platform, chips: tuple[int, ...], reason: str) -> None:
    """Topology §4: a refusal names two chips that keep the group apart, with all lanes and with one."""
    for members in (ranks(platform, chips), ranks(platform, chips, [0])):
        text = refusal(platform, members)
        assert "because its chips have only 0 edge-disjoint cycles: " in text
        assert reason + "; documented groups near it: " in text


def test_an_open_chain_with_one_rank_per_chip(platform: Platform) -> None:
    """Topology §4: an open chain has a folded ring only when there are two ranks or more on each chip."""
    text = refusal(platform, ranks(platform, (0, 1, 2), [0]))
    assert "chips 0 1 2 are an open chain, and one rank of each chip cannot go out and come back" in text


def test_a_refusal_ends_with_the_nearest_groups(trn2: Platform) -> None:
    """Topology §4: no channel is an error that shows the nearest legal groups."""
    text = refusal(trn2, range(8, 24))
    assert text.endswith("groups near it: 0-15 or 16-31 (same size), 8-15 (smaller), 0-15,48-63 (larger)")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "expected at least one rank, got none"),
        ([0, 64], r"rank 64 is not on trn2\.48xlarge, expected 0 to 63"),
        ([-1], r"rank -1 is not on trn2\.48xlarge, expected 0 to 63"),
        ([3, 2, 3], "rank 3 is named twice, name each rank once"),
    ],
)
def test_ranks_that_are_no_group(trn2: Platform, members: list[int], message: str) -> None:
    """An empty group, a rank outside the machine and a rank named twice are the caller's mistakes."""
    with pytest.raises(UsageError, match=message):
        wire(trn2, members)


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("trn2.48xlarge", range(64)),
        ("trn2.48xlarge", range(16, 32)),
        ("trn2.48xlarge", [*range(4, 8), *range(20, 24), *range(36, 40), *range(52, 56)]),
        ("trn2.48xlarge", range(12, 16)),
        ("trn2.48xlarge", range(3, 64, 4)),
        ("trn2.48xlarge", [*range(16), *range(48, 64)]),
        ("trn2.48xlarge", range(16, 48)),
        ("trn2.48xlarge", [5, 21]),
        ("trn2.48xlarge", range(8, 16)),
        ("trn1.32xlarge", range(32)),
        ("trn1.32xlarge", range(16, 32)),
        ("trn1.32xlarge", range(8, 16)),
        ("trn1.32xlarge", range(4, 8)),
    ],
)
def test_documented_groups_have_no_warning(name: str, members: Iterable[int]) -> None:
    """Platforms §5: the documented groups are wired without a word."""
    assert wire(load_platform(name), tuple(members)).warnings == ()


@pytest.mark.parametrize(
    ("name", "members", "start"),
    [
        ("trn2.48xlarge", range(48), "groups of 48 ranks are not documented on trn2.48xlarge; it is wired with 2 ring"),
        (
            "trn2.48xlarge",
            range(32),
            "groups of 32 ranks are documented on trn2.48xlarge, but not with these ranks; it is",
        ),
        (
            "trn2.48xlarge",
            range(4, 12),
            "groups of 8 ranks are documented on trn2.48xlarge, but not with these ranks; it",
        ),
        ("trn1.32xlarge", range(24), "groups of 24 ranks are not documented on trn1.32xlarge; it is wired with 2 ring"),
        ("trn1.32xlarge", range(8, 24), "groups of 16 ranks are documented on trn1.32xlarge, but not with these ranks"),
        (
            "trn1.32xlarge",
            range(6),
            "groups of 6 ranks are not documented on trn1.32xlarge; it is wired with 1 ring channel",
        ),
    ],
)
def test_undocumented_groups_are_wired_with_a_warning(name: str, members: Iterable[int], start: str) -> None:
    """Topology §4: a group that is wired but undocumented is a warning with its channel count."""
    (warning,) = wire(load_platform(name), tuple(members)).warnings
    assert warning.startswith(start)


def test_squares_that_turn_on_one_die(trn2: Platform) -> None:
    """Topology §4: KangaRing cannot own its ports on a square of the xor-1 kind; on one of the xor-2 kind it can."""
    warnings = wire(trn2, ranks(trn2, XOR_1)).warnings
    assert len(warnings) == 2
    assert "wired with 2 ring channels that turn on one die of chips 1-2,5-6" in warnings[1]
    assert len(wire(trn2, ranks(trn2, XOR_2)).warnings) == 1
    assert len(wire(trn2, ranks(trn2, XOR_1, [0])).warnings) == 1


# --- the value --------------------------------------------------------------------------------------------------------


def test_members_keep_the_callers_order(trn2: Platform) -> None:
    """A wiring lists the members as the caller does, chips and lanes in ascending order; rings ignore the order."""
    members = ranks(trn2, (4, 0, 5, 1))[::-1]
    wiring = wire(trn2, members)
    assert wiring.ranks == tuple(members)
    assert (wiring.chips, wiring.lanes) == ((0, 1, 4, 5), (0, 1, 2, 3))
    assert wiring.channels == wire(trn2, sorted(members)).channels


def test_a_one_lane_pair_needs_a_gateway(trn2: Platform) -> None:
    """Topology §1.3: ranks of equal lane on neighbouring chips never own the two ends of one cable."""
    (channel,) = wire(trn2, [2, 6]).channels
    assert port_owner(trn2, 0, 1) == 2
    assert (channel.order, channel.cables, channel.gateway) == ((2, 6), (1, 16), (True, True))


def test_a_wiring_carries_its_geometry(trn2: Platform) -> None:
    """The geometry of a wiring is that of its ranks."""
    assert wire(trn2, [5, 4]).geometry == geometry(trn2, [5, 4])


def test_any_group(trn2: Platform) -> None:
    """With any_group a group that cannot be wired has no channels, a verdict that says no, and one warning."""
    wiring = wire(trn2, [0, 5, 9], any_group=True)
    assert (wiring.channels, wiring.lanes, wiring.chips) == ((), (), (0, 1, 2))
    assert not wiring.verdict
    (warning,) = wiring.warnings
    assert warning == f"{wiring.verdict.reason}; it is taken as it is, because any group is allowed"
    with pytest.raises(UsageError):
        wire(trn2, [0, 0], any_group=True)


def test_any_group_changes_nothing_for_a_wired_group(platform: Platform) -> None:
    """A group that can be wired is the same with any_group."""
    members = ranks(platform, (0, 1))
    assert wire(platform, members, any_group=True) == wire(platform, members)


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("inf2.24xlarge", 1), ("inf2.48xlarge", 2), ("trn1.2xlarge", 1), ("trn1.32xlarge", 4), ("trn1n.32xlarge", 4),
        ("trn2.3xlarge", 2), ("trn2.48xlarge", 4), ("trn2u.48xlarge", 4), ("trn3pds98", 2), ("trn3pds98-gen1", 2),
    ],
)  # fmt: skip
def test_channels_of_a_whole_node(name: str, channels: int) -> None:
    """Topology §4 and §5: ring channels of all ranks of a node, at every logical core size."""
    for lnc in load_platform(name).lncs:
        whole = load_platform(name, lnc=lnc)
        assert node_channels(whole) == channels
        assert len(wire(whole, range(whole.node_ranks)).channels) == channels


def test_every_machine_has_its_channels_tested() -> None:
    """A machine that is added needs a row in the table above."""
    assert len(known_platforms()) == 10


@pytest.mark.parametrize(
    ("members", "channels"),
    [
        (range(8), 2),
        (range(4), 2),
        (range(4, 8), 2),
        ([0, 5], 1),
        (range(2, 6), None),
        (range(3), None),
        ([0, 4, 1, 5], None),
    ],
)
def test_one_chip_at_lnc_1(members: Iterable[int], channels: int | None) -> None:
    """Topology §4: at LNC 1 a ring on one chip takes two ranks, the four of a die, or all eight."""
    lnc_1 = load_platform("trn2.48xlarge", lnc=1)
    if channels is None:
        assert "a ring on one chip takes two, the 4 of a die, or all" in refusal(lnc_1, members)
    else:
        assert len(wire(lnc_1, tuple(members)).channels) == channels


@pytest.mark.parametrize(
    ("chips", "lanes", "wired"),
    [(range(16), (0, 4), True), (range(16), (3, 7), True), (range(16), (0, 1), False), (range(16), (0, 5), False),
     (range(4), (0, 4), False), (range(16), (0, 1, 2, 3), False)],
)  # fmt: skip
def test_part_of_the_lanes_at_lnc_1(chips: Iterable[int], lanes: tuple[int, ...], wired: bool) -> None:
    """Platforms §5: of the groups with part of the lanes, only {k, k+4} of every chip are documented."""
    lnc_1 = load_platform("trn2.48xlarge", lnc=1)
    members = ranks(lnc_1, chips, lanes)
    if wired:
        assert len(wire(lnc_1, members).channels) == 4
        assert wire(lnc_1, members).warnings == ()
    else:
        assert "and a ring takes all lanes or one" in refusal(lnc_1, members)


# --- several nodes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trn2.48xlarge", "trn2u.48xlarge"])
@pytest.mark.parametrize("members", [range(128), [*range(16), *range(64, 80)], range(0, 128, 4), [0, 1, 64, 65]])
def test_no_flat_ring_over_nodes(name: str, members: Iterable[int]) -> None:
    """Topology §5: several ranks on each of several nodes have no flat ring outside Trn1; that is no error."""
    wiring = wire(load_platform(name, nodes=4), tuple(members))
    assert wiring.channels == ()
    assert not wiring.verdict
    assert wiring.verdict.reason == HIER_ONLY


def test_chips_of_another_node_are_wired_alike(platform: Platform) -> None:
    """A group on node 1 has the rings of the same ranks on node 0."""
    two = load_platform(platform.name, nodes=2)
    for chips in (range(16), ROWS[1], XOR_1, (0, 12), (0, 1, 2)):
        first = ranks(platform, chips)
        second = [platform.ranks + rank for rank in first]
        here, there = wire(two, first), wire(two, second)
        assert [[rank - platform.ranks for rank in channel.order] for channel in there.channels] == [
            list(channel.order) for channel in here.channels
        ]
        assert [channel.gateway for channel in there.channels] == [channel.gateway for channel in here.channels]
        assert here.verdict.reason.split(",")[0] == there.verdict.reason.split(",")[0]


def test_asymmetric_nodes_are_refused() -> None:
    """Platforms §4.2: nodes that differ are refused, and one is named."""
    text = refusal(load_platform("trn1.32xlarge", nodes=2), [*range(32), 40])
    assert text.startswith(
        "this group gets 0 ring channels, because node 1 has 1 rank of the group where node 0 has 32"
    )
    assert text.endswith("documented groups near it: 0-31 (smaller), 0-63 (larger)")


@pytest.mark.parametrize(
    ("members", "channels"), [(range(64), 4), ([*range(16), *range(32, 48)], 2), ([0, 1, 32, 33], 1), ([3, 35], 1)]
)
def test_flat_rings_of_two_trn1_nodes(members: Iterable[int], channels: int) -> None:
    """Topology §5: over Trn1 nodes a group gets as many channels as its part on one node does."""
    wiring = wire(load_platform("trn1.32xlarge", nodes=2), tuple(members))
    assert len(wiring.channels) == channels
    assert wiring.warnings == ()


def test_switch_boxes_of_two_instances() -> None:
    """Two UltraServers are joined by the network: one rank per server has a ring over all, several have none."""
    platform = load_platform("trn3pds98", nodes=2)
    assert len(wire(platform, range(0, platform.ranks, 16)).channels) == 2
    assert wire(platform, range(platform.ranks)).verdict.reason == HIER_ONLY
