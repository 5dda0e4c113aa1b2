"""Which groups, partitions and pairs are legal, why not, what the runtime says, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from rota.errors import UnsupportedError, UsageError
from rota.machine.group import wire
from rota.machine.layouts import documented_groups
from rota.machine.legality import (
    MESH_UNTESTED,
    NO_ALGORITHM,
    NOT_A_MEMBER,
    UNSUPPORTED_TOPOLOGY,
    Legality,
    check_group,
    check_groups,
    check_pairs,
)
from rota.machine.partition import format_ranks, parse_groups
from rota.machine.platform import Platform, known_platforms, load_platform

MACHINES = [(name, lnc) for name in known_platforms() for lnc in load_platform(name).lncs]


@pytest.fixture
def trn1() -> Platform:
    return load_platform("trn1.32xlarge")


@pytest.fixture
def trn2() -> Platform:
    return load_platform("trn2.48xlarge")


@pytest.fixture
def trn3() -> Platform:
    return load_platform("trn3pds98")


def group(platform: Platform, text: str) -> tuple[int, ...]:
    return parse_groups(text, ranks=platform.ranks)[0]


def near(answer: Legality) -> list[str]:
    return [format_ranks(ranks) for ranks in answer.suggestions]


def box(
    servers: Iterable[int], chips: Sequence[int] = range(4), lanes: Sequence[int] = range(4), *, per_server: int = 4
) -> tuple[int, ...]:
    """Return ranks of a switch machine at LNC 2."""
    return tuple(4 * (per_server * server + chip) + lane for server in servers for chip in chips for lane in lanes)


# --- all machines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "lnc"), MACHINES)
def test_documented_groups_are_legal_without_warnings(name: str, lnc: int) -> None:
    """Platforms §5: on every machine and logical core size."""
    platform = load_platform(name, lnc=lnc)
    groups = documented_groups(platform)
    assert groups
    for members in groups:
        answer = check_group(platform, members)
        assert (answer.legal, answer.warnings, answer.suggestions) == (True, (), ())
        assert answer.runtime_message is None
        assert answer.channels > 0


@pytest.mark.parametrize(("name", "nodes"), [("trn1.32xlarge", 3), ("trn2.48xlarge", 2), ("trn2u.48xlarge", 4)])
def test_documented_groups_of_several_nodes_are_legal_without_warnings(name: str, nodes: int) -> None:
    """Platforms §4.2: the groups of each node, and the same documented ranks, or one rank, on all nodes."""
    platform = load_platform(name, nodes=nodes)
    groups = documented_groups(platform)
    assert tuple(range(platform.ranks)) in groups
    assert tuple(range(0, platform.ranks, platform.node_ranks)) in groups
    answers = [check_group(platform, members) for members in groups]
    assert all(answer.legal and not answer.warnings for answer in answers)


def test_one_rank_is_legal_everywhere() -> None:
    """A group of one rank is a local copy."""
    for name, lnc in MACHINES:
        platform = load_platform(name, lnc=lnc)
        answer = check_group(platform, [platform.ranks - 1])
        assert (answer.legal, answer.channels, answer.warnings, answer.suggestions) == (True, 0, (), ())


def test_any_group_is_legal_when_asked_for(trn2: Platform) -> None:
    """With any_group a group that cannot be wired is legal, and its reason is a warning."""
    answer = check_group(trn2, range(6), any_group=True)
    assert (answer.legal, answer.channels) == (True, 0)
    assert "chip 1 has ranks 4-5 in it where chip 0 has 0-3" in answer.warnings[0]
    assert answer.warnings == wire(trn2, range(6), any_group=True).warnings
    assert not check_group(trn2, range(6)).legal


def test_ranks_that_are_no_group_are_an_answer(trn2: Platform) -> None:
    """Illegal is a value: ranks outside the machine, named twice, or none at all."""
    for ranks, words in (([0, 64], "rank 64 is not on"), ([3, 3], "rank 3 is named twice"), ([], "at least one rank")):
        answer = check_group(trn2, ranks)
        assert not answer.legal
        assert words in answer.reason
        assert answer.ranks == tuple(ranks)


# --- Inf2 -------------------------------------------------------------------------------------------------------------


def test_inf2_24_ranks_and_12_ranks() -> None:
    """Topology §5: 24 ranks of the ring of 12 get 2 channels, 12 of the chain of 6 get 1; both without a warning."""
    for name, count, channels in (("inf2.48xlarge", 24, 2), ("inf2.24xlarge", 12, 1)):
        answer = check_group(load_platform(name), range(count))
        assert (answer.legal, answer.channels, answer.warnings) == (True, channels, ())


def test_inf2_24_ranks_on_the_machine_of_12() -> None:
    """The same group on the smaller machine: the first rank outside is named, and the whole machine suggested."""
    answer = check_group(load_platform("inf2.24xlarge"), range(24))
    assert not answer.legal
    assert answer.reason == "group: rank 12 is not on inf2.24xlarge, expected 0 to 11"
    assert near(answer)[0] == "0-11"


@pytest.mark.parametrize("count", [6, 12, 18])
def test_inf2_segments(count: int) -> None:
    """Topology §5: 6, 12 and 18 ranks are folded segments of the ring, wired with 1 channel."""
    answer = check_group(load_platform("inf2.48xlarge"), range(4, 4 + count))
    assert (answer.legal, answer.channels) == (True, 1)
    assert f"groups of {count} ranks are not documented on inf2.48xlarge; it is wired with 1" in answer.warnings[0]


# --- Trn1 -------------------------------------------------------------------------------------------------------------


def test_trn1_3_ranks(trn1: Platform) -> None:
    """Three ranks have unequal lanes: illegal, with the runtime's own words."""
    answer = check_group(trn1, range(3))
    assert not answer.legal
    assert answer.reason.endswith("because chip 1 has ranks 2 in it where chip 0 has 0-1")
    assert answer.runtime_message == UNSUPPORTED_TOPOLOGY
    assert near(answer) == ["0-1", "0-3"]


def test_trn1_4_adjacent_ranks(trn1: Platform) -> None:
    """Platforms §5: four adjacent cores are documented since 2.21."""
    answer = check_group(trn1, range(4))
    assert (answer.legal, answer.channels, answer.warnings, answer.runtime_message) == (True, 1, (), None)


@pytest.mark.parametrize(
    ("count", "channels", "smaller", "larger"),
    [(6, 1, "0-3", "0-7"), (12, 2, "0-7", "0-15"), (24, 2, "0-15", "0-31")],
)
def test_trn1_6_12_and_24_ranks(trn1: Platform, count: int, channels: int, smaller: str, larger: str) -> None:
    """Wired but undocumented: legal with a warning that has the runtime's words."""
    answer = check_group(trn1, range(count))
    assert (answer.legal, answer.channels) == (True, channels)
    assert answer.runtime_message == (
        "Unsupported topology. Supported number of Neuron Cores is 1, 2, 8, 16 or a multiple of 32"
    )
    assert answer.runtime_message in answer.warnings[0]
    assert near(answer) == [smaller, larger]


def test_trn1_every_second_rank(trn1: Platform) -> None:
    """Eight ranks with stride 2: a warning with the runtime's words, and both channel counts of this model."""
    answer = check_group(trn1, range(0, 16, 2))
    assert (answer.legal, answer.channels) == (True, 2)
    assert answer.runtime_message == "global comm (2) has less channels than this replica group (2)"
    assert "the ranks around it, 0-15, get 2 and it gets 2" in answer.warnings[0]
    assert near(answer) == ["0-7", "8-15", "0-3", "0-15"]


def test_trn1_two_halves(trn1: Platform) -> None:
    """Topology §4: 16 ranks as 0-15 and 16-31 are legal; the pairs across them are two cables apart."""
    answers = check_groups(trn1, [range(16), range(16, 32)])
    assert all(answer.legal and not answer.warnings for answer in answers)
    advice = answers[0].notes[0]
    assert advice.startswith("the groups across these, such as 0,16, are not legal")
    assert advice.endswith("chips 0 and 8 have no neighbour in the group")
    assert answers[0].notes[1].startswith("layout 16x2: TP 0-15;24-31,16-23; DP 0,24;1,25;")
    assert answers[1].notes == ()


def test_trn1_of_one_chip_has_no_second_node() -> None:
    """Platforms §1: two nodes of trn1.2xlarge are refused by the machine, before any group is looked at."""
    with pytest.raises(UnsupportedError, match=r"2 nodes of trn1\.2xlarge"):
        load_platform("trn1.2xlarge", nodes=2)
    assert check_group(load_platform("trn1.2xlarge"), range(2)).legal


# --- Trn2: the table of questions and answers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "legal", "suggestions"),
    [
        ("0-5", False, ["0-3", "0-7"]),
        ("8-23", False, ["0-15", "16-31", "8-15", "0-15,48-63"]),
        ("0-31", True, ["0-15,48-63", "16-47", "0-15", "0-63"]),
        (
            "0,8,16,24,32,40,48,56",
            False,
            ["0,16,32,48", "0,4,8,12,16,20,24,28,32,36,40,44,48,52,56,60"],
        ),
        ("0-47", True, ["16-47", "0-63"]),
        ("0,32", False, ["0,16", "32,48", "0,16,32,48"]),
    ],
)
def test_questions_and_answers(trn2: Platform, asked: str, legal: bool, suggestions: list[str]) -> None:
    """Topology §4: the same size first, then smaller, then larger."""
    answer = check_group(trn2, group(trn2, asked))
    assert answer.legal is legal
    assert near(answer) == suggestions
    assert bool(answer.warnings) is legal


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("0-5", "because chip 1 has ranks 4-5 in it where chip 0 has 0-3"),
        ("8-23", "chips 2-3 do not touch chips 4-5"),
        ("0,8,16,24,32,40,48,56", "chips 0,4,8,12 do not touch chips 2,6,10,14"),
        ("0,32", "chips 0 and 8 have no neighbour in the group"),
    ],
)
def test_reasons_of_the_refusals(trn2: Platform, asked: str, words: str) -> None:
    """Topology §4: equal lanes come first, then chips that do not touch; the runtime has no algorithm for either."""
    answer = check_group(trn2, group(trn2, asked))
    assert answer.reason.startswith("this group gets 0 of the node's 4 ring channels, because ")
    assert words in answer.reason
    assert answer.runtime_message == NO_ALGORITHM
    assert (answer.channels, answer.source.page) == (0, "topology")


@pytest.mark.parametrize(
    ("asked", "layout"),
    [
        ("0-31", "layout 32x2 Logic2: TP 0-15,48-63;16-47; DP 0,16;1,17;"),
        ("0,8,16,24,32,40,48,56", "layout 8x8: TP 0-7;12-15,8-11;16-23;28-31,24-27;"),
    ],
)
def test_layouts_of_the_same_size(trn2: Platform, asked: str, layout: str) -> None:
    """Topology §4: the layout row with groups of this size is printed as TP and DP lists."""
    assert check_group(trn2, group(trn2, asked)).notes[0].startswith(layout)


def test_a_count_the_mesh_does_not_know(trn2: Platform) -> None:
    """48 ranks are wired, and the runtime's words for a mesh of this count are in the warning."""
    answer = check_group(trn2, range(48))
    assert answer.runtime_message == MESH_UNTESTED.format(ranks=48)
    assert answer.runtime_message in answer.warnings[0]


def test_a_square_that_turns_on_one_die(trn2: Platform) -> None:
    """Topology §4: on a square of the xor-1 kind KangaRing cannot own its ports, which is a second warning."""
    answer = check_group(trn2, group(trn2, "4-11,20-27"))
    assert (answer.legal, answer.channels) == (True, 2)
    assert answer.warnings[1] == "its rings turn on one die of chips 1-2,5-6: KangaRing cannot own its ports there"


# --- partitions -------------------------------------------------------------------------------------------------------


def equal_parts(platform: Platform, size: int) -> list[range]:
    return [range(low, low + size) for low in range(0, platform.ranks, size)]


@pytest.mark.parametrize("size", [64, 16, 4])
def test_ascending_partitions_of_trn2(trn2: Platform, size: int) -> None:
    """Platforms §5: 64x1, 16x4 and 4x16 ascending are legal without a word, and so are the groups across them."""
    for answer in check_groups(trn2, equal_parts(trn2, size)):
        assert (answer.legal, answer.warnings, answer.notes) == (True, (), ())


@pytest.mark.parametrize("size", [128, 32, 8, 4])
def test_ascending_partitions_of_trn2_lnc_1(size: int) -> None:
    """Platforms §5: 128x1, 32x4, 8x16 and 4x32 ascending at LNC 1."""
    platform = load_platform("trn2.48xlarge", lnc=1)
    for answer in check_groups(platform, equal_parts(platform, size)):
        assert (answer.legal, answer.warnings, answer.notes) == (True, (), ())


def test_16x8_is_not_documented_at_lnc_1() -> None:
    """Platforms §5: 16x8 is unsupported at LNC 1."""
    platform = load_platform("trn2.48xlarge", lnc=1)
    answers = check_groups(platform, equal_parts(platform, 16))
    assert all("groups of 16 ranks are documented" in answer.warnings[0] for answer in answers)


def test_32x2_ascending_and_logic2(trn2: Platform) -> None:
    """Topology §4: ascending halves are wired with a warning, the pairs across them are not; Logic2 is legal whole."""
    answers = check_groups(trn2, [range(32), range(32, 64)])
    assert [bool(answer.warnings) for answer in answers] == [True, True]
    layout, across = answers[0].notes
    dp = ";".join([*(f"{i},{i + 16}" for i in range(16)), *(f"{i},{i - 16}" for i in range(48, 64))])
    assert layout == f"layout 32x2 Logic2: TP 0-15,48-63;16-47; DP {dp}"
    assert across.startswith("the groups across these, such as 0,32, are not legal")
    assert answers[1].notes == ()
    logic2 = check_groups(trn2, parse_groups("0-15,48-63;16-47", ranks=64))
    assert all((answer.legal, answer.warnings, answer.notes) == (True, (), ()) for answer in logic2)


def test_64x2_logic2_at_lnc_1() -> None:
    """Platforms §5: at LNC 1 the same split is called 64x2 and needs Logic2, too."""
    platform = load_platform("trn2.48xlarge", lnc=1)
    answers = check_groups(platform, [range(64), range(64, 128)])
    assert answers[0].notes[0].startswith("layout 64x2 Logic2: TP 0-31,96-127;32-95; DP 0,32;1,33;")


def test_8x8_ascending(trn2: Platform) -> None:
    """Topology §4: the groups 0-7, 8-15, ... are documented, but their members need another order for DP."""
    answers = check_groups(trn2, equal_parts(trn2, 8))
    assert all(answer.legal and not answer.warnings for answer in answers)
    across, layout = answers[0].notes
    assert "such as 0,8,16,24,32,40,48,56, are not legal" in across
    assert layout.startswith("layout 8x8: TP 0-7;12-15,8-11;16-23;28-31,24-27;")


def test_a_rank_in_two_groups(trn2: Platform) -> None:
    """A rank that is in two groups makes the second one illegal."""
    answers = check_groups(trn2, [range(4), range(3, 7)])
    assert [answer.legal for answer in answers] == [True, False]
    assert answers[1].reason == "groups: rank 3 is in group 0 and in 1, name each rank once"


def test_groups_that_are_no_partition_keep_their_notes(trn2: Platform) -> None:
    """Groups that do not cut the node still say which layouts have their size, once."""
    answers = check_groups(trn2, [range(0, 64, 8), range(1, 64, 8)])
    assert answers[0].notes[0].startswith("layout 8x8: ")
    assert (len(answers[0].notes), answers[1].notes) == (1, ())


# --- several nodes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trn2.48xlarge", "trn2u.48xlarge"])
@pytest.mark.parametrize(
    ("text", "channels"),
    [("0-255", 0), ("0,64,128,192", 2), ("5,69,133,197", 2), ("0-127", 0), ("64-127,192-255", 0), ("0,64", 1)],
)
def test_symmetric_groups_of_four_nodes(name: str, text: str, channels: int) -> None:
    """Platforms §4.2: all ranks of all nodes, one rank of each, two of the four nodes: legal without a warning."""
    platform = load_platform(name, nodes=4)
    answer = check_group(platform, group(platform, text))
    assert (answer.legal, answer.channels, answer.warnings) == (True, channels, ())


def test_one_rank_per_chip_of_four_nodes() -> None:
    """One rank per chip of all nodes runs as HIER: 16 on each node, 4 across."""
    platform = load_platform("trn2.48xlarge", nodes=4)
    answer = check_group(platform, range(1, 256, 4))
    assert (answer.legal, answer.channels, answer.warnings) == (True, 0, ())
    assert answer.notes[0] == "it runs as HIER: 4 groups of 16 on the nodes and 16 groups of 4 across"


@pytest.mark.parametrize(
    ("text", "words", "suggestions"),
    [
        ("0-69", "node 1 has 6 ranks of the group where node 0 has 64", ["0-63", "0-127"]),
        ("0-3,68-71", "node 1 has its local rank 4 in the group where node 0 has its local rank 0",
         ["0-7", "0-3,64-67", "0-3", "0-7,64-71"]),
        ("0,64,129", "node 2 has its local rank 1 in the group where node 0 has its local rank 0", None),
    ],
)  # fmt: skip
def test_asymmetric_groups_of_four_nodes(text: str, words: str, suggestions: list[str] | None) -> None:
    """Platforms §4.2: a node that differs is named, and in what."""
    platform = load_platform("trn2.48xlarge", nodes=4)
    answer = check_group(platform, group(platform, text))
    assert not answer.legal
    assert words in answer.reason
    assert answer.runtime_message == NO_ALGORITHM
    assert suggestions is None or near(answer) == suggestions


def test_parts_of_several_nodes_must_be_legal() -> None:
    """A symmetric group is refused for the part it has on each node."""
    platform = load_platform("trn2.48xlarge", nodes=2)
    answer = check_group(platform, group(platform, "0,32,64,96"))
    assert not answer.legal
    assert "of its part on node 0" in answer.reason
    assert "chips 0 and 8 have no neighbour in the group" in answer.reason


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("trn2u.48xlarge", "0,64,128,192", False),
        ("trn2u.48xlarge", "0-1,64-65", False),
        ("trn2.48xlarge", "0-1,64-65", True),
        ("trn2.48xlarge", "0,64,128", False),
        ("trn2.48xlarge", "0-255", True),
    ],
)
def test_all_to_all_across_nodes(name: str, text: str, refused: bool) -> None:
    """Select §4: a mesh across nodes has one rank on each, or is of four ranks in a pod; else a note cites the test."""
    platform = load_platform(name, nodes=4)
    notes = check_group(platform, group(platform, text)).notes
    assert any("node_n == 1 || (rank_n == 4 && enable_pod)" in note for note in notes) is refused


def test_trn1_over_nodes_has_flat_rings() -> None:
    """Topology §5: 64 ranks of two Trn1 nodes get 4 channels as one node does."""
    answer = check_group(load_platform("trn1.32xlarge", nodes=2), range(64))
    assert (answer.legal, answer.channels, answer.warnings) == (True, 4, ())


# --- the switch machine -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "count", "channels"),
    [
        (box([5], [2]), 4, 2),
        (box([0], [0, 1]), 8, 2),
        (box([0]), 16, 2),
        (box([0, 1]), 32, 2),
        (box(range(4)), 64, 2),
        (box(range(8)), 128, 2),
        (box([*range(8), *range(18, 26)]), 256, 2),
        (box(range(36), [0], [0]), 36, 2),
        (box(range(36), lanes=[1]), 144, 2),
    ],
)
def test_full_boxes(trn3: Platform, ranks: tuple[int, ...], count: int, channels: int) -> None:
    """Topology §5: 1 chip, 1x2, 1x4, 2x4, 4x4, 8x4, 8 + 8 servers, one rank per server and per chip: no warning."""
    answer = check_group(trn3, ranks)
    assert len(ranks) == count
    assert (answer.legal, answer.channels, answer.warnings, answer.runtime_message) == (True, channels, (), None)


def test_one_rank_per_die(trn3: Platform) -> None:
    """Platforms §5: one rank per die is documented, two ranks of one die of each chip are not."""
    assert check_group(trn3, box(range(36), lanes=[0, 2])).warnings == ()
    assert check_group(trn3, box(range(36), lanes=[0, 1])).warnings != ()


def test_256_ranks_in_one_rack(trn3: Platform) -> None:
    """Topology §5: 64 chips of a rack are more than the mesh takes: legal with a warning; 8 + 8 servers are better."""
    answer = check_group(trn3, box(range(16)))
    assert (answer.legal, answer.channels) == (True, 2)
    assert answer.warnings[0].startswith("64 chips in a rack are more than the 32 of the switch mesh")
    assert near(answer) == ["0-127,288-415", "0-127"]


def test_576_ranks(trn3: Platform) -> None:
    """Topology §5: the whole machine has no key of the switch mesh and runs as HIER."""
    answer = check_group(trn3, range(576))
    assert answer.legal
    assert answer.warnings[0].startswith(
        "288 ranks in a rack are no size of the switch mesh (4, 8, 16, 32, 64, 128, 256)"
    )
    assert "HIER" in answer.warnings[0]
    assert answer.runtime_message == "Unsupported rank (288) for building"


@pytest.mark.parametrize(
    ("ranks", "words", "suggestions"),
    [
        (box([0])[:-1], "chip 3 has ranks 12-14 in it where chip 0 has 0-3", ["0-11", "0-15"]),
        (box([0]) + box([1], [0, 1]), "server 1 has chips 0-1 in it where server 0 has 0-3", ["0-15", "0-31"]),
        (
            box(range(16, 20)),
            "server 18 has no counterpart of the group in rack 0",
            ["256-287", "0-31,256-319,544-575"],
        ),
        (box([0, 18]) + box([1]), "server 1 has no counterpart of the group in rack 1", ["0-31", "0-31,288-319"]),
        (box([0], [0], [0, 1, 2]), "it has 3 of the 4 ranks of chip 0", ["0-1", "0-3"]),
        ((0, 5), "chip 1 has ranks 5 in it where chip 0 has 0", ["0-1,4-5"]),
    ],
)
def test_boxes_that_are_not_full(trn3: Platform, ranks: tuple[int, ...], words: str, suggestions: list[str]) -> None:
    """Topology §5: D2 and D4 name the chip or server; suggested are the largest box inside and the smallest around."""
    answer = check_group(trn3, ranks)
    assert not answer.legal
    assert words in answer.reason
    assert near(answer) == suggestions


def test_the_rule_of_a_full_box_is_said(trn3: Platform) -> None:
    """Topology §5: same chips on every server, same lanes on every chip (D2); the same servers of both racks (D4)."""
    rule = "a full box has the same chips on every server and the same lanes on every chip (D2)"
    assert check_group(trn3, box([0])[:-1]).reason.endswith(rule)
    assert check_group(trn3, box([0]) + box([1], [0])).reason.endswith(rule)
    assert check_group(trn3, box([16, 17, 18, 19])).reason.endswith(
        "a full box takes the same servers of both racks (D4)"
    )


def test_three_lanes_of_every_chip(trn3: Platform) -> None:
    """Topology §5: three lanes are a full box, which the barrier of the racks refuses (D3): a warning."""
    answer = check_group(trn3, box([0, 1], lanes=[0, 1, 2]))
    assert answer.legal
    assert "(D3)" in answer.warnings[0]


@pytest.mark.parametrize(("servers", "legal"), [([0, 1], True), ([0, 2], True), ([1, 2], False), (range(4), True)])
def test_gen1_boxes(servers: Sequence[int], legal: bool) -> None:
    """Topology §5: on Gen1 two servers are a rack; 0 and 2 face each other, 1 and 2 do not."""
    platform = load_platform("trn3pds98-gen1")
    answer = check_group(platform, box(servers, range(16), per_server=16))
    assert (answer.legal, answer.warnings) == (legal, ())


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_a_ring_of_pairs_leaves_ranks_idle() -> None:
    """Ranks 0 and 1 of 4 swap: a legal ring; ranks 2 and 3 stay idle, with the runtime's words."""
    (answer,) = check_pairs(load_platform("trn2.3xlarge"), [(0, 1), (1, 0)])
    assert (answer.legal, answer.channels, answer.ranks) == (True, 1, (0, 1))
    assert answer.runtime_message == NOT_A_MEMBER.format(rank=2)
    assert answer.notes[0].startswith("ranks 2-3 are in no pair and idle")
    assert "does not have myself 2" in answer.notes[0]


def test_no_rank_is_idle_when_all_are_named() -> None:
    """When every rank is in a pair, nothing is said of idle ranks."""
    answers = check_pairs(load_platform("trn2.3xlarge"), [(0, 1), (1, 0), (3, 2), (2, 3)])
    assert [(answer.legal, answer.ranks, answer.runtime_message, answer.notes) for answer in answers] == [
        (True, (0, 1), None, ()),
        (True, (2, 3), None, ()),
    ]


def test_one_pair_is_an_open_chain() -> None:
    """Compose §9: a permute takes rings only; the pair that would close the chain is named."""
    (answer,) = check_pairs(load_platform("trn2.3xlarge"), [(0, 1)])
    assert not answer.legal
    assert answer.reason == (
        "the pairs are an open chain from rank 0 to rank 1, and a permute takes rings only; add 1>0 to close it"
    )


def test_pairs_need_direct_links(trn2: Platform) -> None:
    """Platforms §5: consecutive ranks of a ring are physically adjacent; two that are not are named, with chips."""
    (answer,) = check_pairs(trn2, [(0, 4), (4, 8), (8, 0)])
    assert not answer.legal
    assert answer.reason == "the pair 8>0 joins chips 2 and 0, which have no direct link"
    (row,) = check_pairs(trn2, [(0, 4), (4, 8), (8, 12), (12, 0)])
    assert row.legal


def test_pairs_between_racks(trn3: Platform) -> None:
    """Topology §5: racks are joined chip by chip."""
    assert check_pairs(trn3, [(0, 288), (288, 0)])[0].legal
    assert not check_pairs(trn3, [(0, 292), (292, 0)])[0].legal
    assert check_pairs(trn3, [(0, 68), (68, 0)])[0].legal


def test_pairs_between_nodes() -> None:
    """Chips of different nodes are joined by the network."""
    platform = load_platform("trn1.32xlarge", nodes=2)
    assert check_pairs(platform, [(0, 63), (63, 0)])[0].legal


def test_any_pairs_are_legal_when_asked_for(trn2: Platform) -> None:
    """With any_group an open chain is legal, and its reason is a warning."""
    (answer,) = check_pairs(trn2, [(0, 1)], any_group=True)
    assert answer.legal
    assert answer.warnings[0].startswith("the pairs are an open chain")


def test_pairs_outside_the_machine_and_repeated(trn2: Platform) -> None:
    """A rank outside is an answer; a rank that sends twice is the caller's mistake."""
    assert check_pairs(trn2, [(0, 64), (64, 0)])[0].reason == "pairs: rank 64 is not on trn2.48xlarge, expected 0 to 63"
    with pytest.raises(UsageError, match="rank 0 is the source of"):
        check_pairs(trn2, [(0, 1), (0, 2)])
    assert check_pairs(trn2, [(5, 5)])[0].reason == "the pairs form a copy of a rank to itself"
