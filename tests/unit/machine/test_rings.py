"""Rank orders of rings, against the lists of the specification."""

from __future__ import annotations

import pytest

from rota.machine.group import Channel, wire
from rota.machine.platform import Platform, load_platform
from rota.machine.rings import folded_order, passage
from rota.machine.topology import (
    ACROSS_DIES,
    DIAGONAL,
    ON_CHIP,
    SAME_DIE,
    LinkClass,
    cable_id,
    link_class,
    links,
    port_owner,
)

# Topology §2: ring rank orders of the node.
TRN2_A = """1 0 3 2 | 5 4 6 7 | 8 9 11 10 | 13 12 15 14 | 29 28 30 31 | 44 45 46 47 | 32 33 35 34 | 37 36 39 38 |
    53 52 55 54 | 49 48 50 51 | 60 61 63 62 | 57 56 59 58 | 41 40 42 43 | 24 25 26 27 | 20 21 23 22 | 17 16 19 18"""
TRN2_B = """3 2 1 0 | 15 14 13 12 | 63 62 60 61 | 46 47 44 45 | 42 43 41 40 | 39 38 37 36 | 23 22 20 21 | 6 7 5 4 |
    55 54 53 52 | 59 58 57 56 | 11 10 8 9 | 26 27 24 25 | 30 31 29 28 | 19 18 17 16 | 35 34 32 33 | 50 51 49 48"""
TRN1_A = "0 1 2 3 4 5 6 7 14 15 22 23 16 17 18 19 26 27 24 25 30 31 28 29 20 21 12 13 10 11 8 9"
TRN1_B = "0 1 6 7 30 31 22 23 20 21 18 19 10 11 2 3 26 27 28 29 4 5 12 13 14 15 8 9 16 17 24 25"

# Topology §4: orders of groups smaller than the node, LNC 2.
ROW_0 = "0 1 3 2 | 5 4 6 7 | 8 9 11 10 | 13 12 14 15"
COLUMN_0 = "3 2 0 1 | 18 19 17 16 | 35 34 32 33 | 50 51 49 48"
SQUARE = "1 0 3 2 | 5 4 7 6 | 21 20 23 22 | 17 16 19 18"


@pytest.fixture
def trn1() -> Platform:
    return load_platform("trn1.32xlarge")


@pytest.fixture
def trn2() -> Platform:
    return load_platform("trn2.48xlarge")


def ranks_of(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in text.replace("|", " ").split())


def all_lanes(platform: Platform, *chips: int) -> list[int]:
    per_chip = platform.ranks_per_chip
    return [per_chip * chip + lane for chip in chips for lane in range(per_chip)]


@pytest.mark.parametrize(
    ("name", "a", "b"), [("trn2.48xlarge", TRN2_A, TRN2_B), ("trn1.32xlarge", TRN1_A, TRN1_B)], ids=["trn2", "trn1"]
)
def test_four_rings_of_the_node(name: str, a: str, b: str) -> None:
    """Topology §2: channels A+, B+, A-, B- of the full node, the last two the exact reversals."""
    platform = load_platform(name)
    orders = [channel.order for channel in wire(platform, range(platform.ranks)).channels]
    assert orders == [ranks_of(a), ranks_of(b), ranks_of(a)[::-1], ranks_of(b)[::-1]]


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
@pytest.mark.parametrize("lanes", ["all", "one"])
def test_four_rings_use_every_directed_cable_once(name: str, lanes: str) -> None:
    """Topology §2: each ring visits every rank once, and the four use each of the 64 directed cables exactly once."""
    platform = load_platform(name)
    ranks = range(0, platform.ranks, 1 if lanes == "all" else platform.ranks_per_chip)
    channels = wire(platform, ranks).channels
    assert all(sorted(channel.order) == list(ranks) for channel in channels)
    cables = [cable for channel in channels for cable in channel.cables if cable >= 0]
    assert len(cables) == len(set(cables)) == links(platform)


def test_hops_leave_and_enter_at_the_owners(trn2: Platform) -> None:
    """Topology §2: each hop between chips leaves the lane that owns the exit port and enters the owner of the other."""
    for channel in wire(trn2, range(64)).channels:
        for i, rank in enumerate(channel.order):
            chip, lane = divmod(rank, 4)
            next_chip, next_lane = divmod(channel.order[(i + 1) % 64], 4)
            if chip != next_chip:
                assert channel.cables[i] == 16 * chip + next_chip
                assert port_owner(trn2, chip, next_chip) == lane
                assert port_owner(trn2, next_chip, chip) == next_lane
        assert not any(channel.gateway)


def test_no_hop_of_a_one_lane_ring_owns_both_ends(trn2: Platform) -> None:
    """Topology §4: with one rank per chip each of the 64 hops needs a gateway; per chip one channel owns its exit."""
    for lane in range(4):
        channels = wire(trn2, range(lane, 64, 4)).channels
        assert [channel.gateway for channel in channels] == [(True,) * 16] * 4
        exits = [cable for channel in channels for cable in channel.cables if owns_exit(trn2, cable, lane)]
        assert sorted(cable // 16 for cable in exits) == list(range(16))


def owns_exit(platform: Platform, cable: int, lane: int) -> bool:
    return port_owner(platform, *divmod(cable, 16)) == lane


def test_trn1_has_no_gateways(trn1: Platform) -> None:
    """Topology §2: without owners no hop needs a gateway."""
    for ranks in (range(32), range(0, 32, 2), range(4), range(6)):
        assert not any(flag for channel in wire(trn1, ranks).channels for flag in channel.gateway)


@pytest.mark.parametrize(
    ("chips", "order"),
    [((0, 1, 2, 3), ROW_0), ((0, 4, 8, 12), COLUMN_0), ((0, 1, 5, 4), SQUARE)],
    ids=["row", "column", "square"],
)
def test_orders_of_four_chips(trn2: Platform, chips: tuple[int, ...], order: str) -> None:
    """Topology §4: rank orders of row 0, column 0 and the square 0 1 5 4, each with its reversal."""
    channels = wire(trn2, all_lanes(trn2, *chips)).channels
    assert [channel.order for channel in channels] == [ranks_of(order), ranks_of(order)[::-1]]


@pytest.mark.parametrize(
    ("chips", "order"),
    [
        ((0, 1, 2, 3, 12, 13, 14, 15), (0, 1, 2, 14, 13, 12, 15, 3)),
        ((4, 5, 6, 7, 8, 9, 10, 11), (4, 5, 6, 10, 9, 8, 11, 7)),
        ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 7, 6, 5, 4)),
        ((0, 1, 4, 5, 8, 9, 12, 13), (0, 1, 5, 9, 13, 12, 8, 4)),
    ],
    ids=["rows 0+3", "rows 1+2", "rows 0+1", "columns 0+1"],
)
@pytest.mark.parametrize("lanes", [4, 1])
def test_chip_orders_of_eight_chips(trn2: Platform, chips: tuple[int, ...], order: tuple[int, ...], lanes: int) -> None:
    """Topology §4: chip orders of double rows and columns, with all lanes or one, without a gateway for all."""
    channels = wire(trn2, [4 * chip + lane for chip in chips for lane in range(lanes)]).channels
    assert chips_of(channels[0]) == order
    assert channels[1].order == channels[0].order[::-1]
    assert {flag for channel in channels for flag in channel.gateway} == {lanes == 1}


def chips_of(channel: Channel) -> tuple[int, ...]:
    """Return the chips of a ring in order, each run of one chip once."""
    chips = [rank // 4 for rank in channel.order]
    return tuple(chip for i, chip in enumerate(chips) if i == 0 or chips[i - 1] != chip)


def test_one_chip(trn2: Platform) -> None:
    """Topology §4: one chip has the ring 0 1 2 3 and its reversal, hops on the die and across the dies only."""
    channels = wire(trn2, range(20, 24)).channels
    assert [channel.order for channel in channels] == [(20, 21, 22, 23), (23, 22, 21, 20)]
    for channel in channels:
        assert channel.cables == (-1,) * 4
        steps = [rank ^ channel.order[(i + 1) % 4] for i, rank in enumerate(channel.order)]
        assert set(steps) == {SAME_DIE, ACROSS_DIES}


@pytest.mark.parametrize("pair", [(0, 1), (0, 3), (0, 4), (5, 9), (12, 0), (14, 15)])
def test_two_chips(trn2: Platform, pair: tuple[int, int]) -> None:
    """Topology §4: on each of two chips a, a^3, a^2, a^1 with a the owner; the exit lane leaves through a's port."""
    (channel,) = wire(trn2, all_lanes(trn2, *pair)).channels
    low, high = sorted(pair)
    expected: list[int] = []
    for chip, other in ((low, high), (high, low)):
        owner = port_owner(trn2, chip, other)
        assert owner is not None
        expected += [4 * chip + (owner ^ step) for step in (0, 3, 2, 1)]
    assert channel.order == tuple(expected)
    assert channel.gateway == (False, False, False, True) * 2
    assert channel.cables == (-1, -1, -1, 16 * low + high, -1, -1, -1, 16 * high + low)


def test_two_chips_of_trn1(trn1: Platform) -> None:
    """Topology §4: two adjacent chips have one ring, out and back on the one cable."""
    (channel,) = wire(trn1, range(4)).channels
    assert channel == Channel((0, 1, 2, 3), (-1, 1, -1, 16), (False,) * 4)


def test_folded_ring_of_trn1(trn1: Platform) -> None:
    """Topology §4: on a chain of chips with two ranks, lane 0 goes outward and lane 1 comes back."""
    (channel,) = wire(trn1, range(6)).channels
    assert channel.order == (0, 2, 4, 5, 3, 1)
    assert channel.cables == (1, 18, -1, 33, 16, -1)


def test_folded_ring_of_trn2(trn2: Platform) -> None:
    """The way out of a folded ring runs over the owners of the ports, the way back over the rest through gateways."""
    path = (0, 1, 2, 6)  # straight on chip 1, a turn on one die of chip 2
    (channel,) = wire(trn2, all_lanes(trn2, *path)).channels
    assert channel.order == folded_order(trn2, path)
    assert channel.order == ranks_of("1 2 | 5 7 | 8 9 | 26 25 | 24 27 | 10 11 | 6 4 | 3 0")
    hops = [
        (divmod(cable, 16), flag) for cable, flag in zip(channel.cables, channel.gateway, strict=True) if cable >= 0
    ]
    assert hops == [
        ((0, 1), False),
        ((1, 2), False),
        ((2, 6), False),
        ((6, 2), True),
        ((2, 1), True),
        ((1, 0), True),
    ]


def test_passages(trn2: Platform) -> None:
    """Topology §1: the order of the lanes on a chip for a turn across dies, straight on, and a turn on one die."""
    for before, after, kind, steps in [
        (1, 4, ACROSS_DIES, (0, 1, 2, 3)),
        (1, 3, DIAGONAL, (0, 1, 3, 2)),
        (3, 4, SAME_DIE, (0, 3, 2, 1)),
    ]:
        entry, leave = port_owner(trn2, 0, before), port_owner(trn2, 0, after)
        assert entry is not None
        assert leave is not None
        assert entry ^ leave == kind
        assert passage(trn2, before, 0, after) == tuple(entry ^ step for step in steps)
        assert passage(trn2, before, 0, after)[-1] == leave


# --- LNC 1 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lnc_1() -> Platform:
    return load_platform("trn2.48xlarge", lnc=1)


def test_four_rings_of_the_node_at_lnc_1(lnc_1: Platform) -> None:
    """Topology §2: at LNC 1 each rank x of LNC 2 becomes 2x, 2x+1; the reverse channels are the exact reversals."""
    a, b = (tuple(2 * rank + core for rank in ranks_of(text) for core in (0, 1)) for text in (TRN2_A, TRN2_B))
    orders = [channel.order for channel in wire(lnc_1, range(128)).channels]
    assert orders == [a, b, a[::-1], b[::-1]]


def test_rings_at_lnc_1_keep_their_ports(lnc_1: Platform) -> None:
    """Topology §2: each ring visits every rank once, the four use each of 64 directed cables once, owner to owner."""
    cables = []
    for channel in wire(lnc_1, range(128)).channels:
        assert sorted(channel.order) == list(range(128))
        assert not any(channel.gateway)
        for i, rank in enumerate(channel.order):
            (chip, lane), (next_chip, next_lane) = divmod(rank, 8), divmod(channel.order[(i + 1) % 128], 8)
            if chip == next_chip:
                assert channel.cables[i] == ON_CHIP
                continue
            assert (lane // 2, next_lane // 2) == (
                port_owner(lnc_1, chip, next_chip),
                port_owner(lnc_1, next_chip, chip),
            )
            cables.append(channel.cables[i])
    assert len(cables) == len(set(cables)) == links(lnc_1) == 64


def test_cores_of_a_port_at_lnc_1(lnc_1: Platform) -> None:
    """Topology §2: both cores of an s-engine own its port: a + channel enters at core 0 and leaves from core 1."""
    for channel in wire(lnc_1, range(128)).channels[:2]:
        for i, rank in enumerate(channel.order):
            if channel.cables[i] != ON_CHIP:
                assert (rank % 2, channel.order[(i + 1) % 128] % 2) == (1, 0)


@pytest.mark.parametrize("chips", [(0, 1), (0, 4), (0, 1, 2, 3), (0, 4, 8, 12), (0, 1, 4, 5), (1, 2, 5, 6), (0, 1, 2)])
def test_smaller_groups_at_lnc_1(trn2: Platform, lnc_1: Platform, chips: tuple[int, ...]) -> None:
    """Topology §2: the doubling of ranks holds for every group with all lanes, gateways included."""
    two, one = wire(trn2, all_lanes(trn2, *chips)).channels, wire(lnc_1, all_lanes(lnc_1, *chips)).channels
    assert len(one) == len(two)
    forward = two[: (len(two) + 1) // 2]
    for plain, doubled in zip(forward, one, strict=False):
        assert doubled.order == tuple(2 * rank + core for rank in plain.order for core in (0, 1))
        assert [cable for cable in doubled.cables if cable >= 0] == [cable for cable in plain.cables if cable >= 0]


def test_half_a_chip_at_lnc_1(lnc_1: Platform) -> None:
    """Topology §4: 4x32 are half chips, one die each, with a ring and its reversal that never leave the die."""
    for low in (8, 12):
        channels = wire(lnc_1, range(low, low + 4)).channels
        assert [channel.order for channel in channels] == [
            (low, low + 1, low + 2, low + 3),
            (low + 3, low + 2, low + 1, low),
        ]
        assert all(channel.cables == (ON_CHIP,) * 4 for channel in channels)


def test_two_ranks_of_every_chip_at_lnc_1(lnc_1: Platform) -> None:
    """Topology §4: the groups across 4x32 are {k, k+4} of every chip; they get the four rings of the node."""
    for k in range(4):
        ranks = range(k, 128, 4)
        channels = wire(lnc_1, ranks).channels
        assert len(channels) == 4
        assert all(sorted(channel.order) == list(ranks) for channel in channels)
        cables = [cable for channel in channels for cable in channel.cables if cable >= 0]
        assert len(cables) == len(set(cables)) == 64


# --- other shapes -----------------------------------------------------------------------------------------------------


def test_inf2_rings() -> None:
    """Topology §5: the ring of 12 has 0 1 2 ... 23 and its reversal."""
    platform = load_platform("inf2.48xlarge")
    channels = wire(platform, range(24)).channels
    assert [channel.order for channel in channels] == [tuple(range(24)), tuple(range(23, -1, -1))]
    assert channels[0].cables[-1] == 11 * 12 + 0


def test_inf2_chain() -> None:
    """Topology §5: the chain of 6 is folded: 0 2 4 6 8 10 11 9 7 5 3 1, one channel."""
    (channel,) = wire(load_platform("inf2.24xlarge"), range(12)).channels
    assert channel.order == (0, 2, 4, 6, 8, 10, 11, 9, 7, 5, 3, 1)
    assert not any(channel.gateway)


def test_inf2_segment_round_the_end() -> None:
    """A segment of the ring of 12 may run over its end."""
    (channel,) = wire(load_platform("inf2.48xlarge"), [0, 1, 2, 3, 22, 23]).channels
    assert channel.order == (2, 0, 22, 23, 1, 3)


def hop_classes(platform: Platform, channel: Channel) -> list[LinkClass]:
    found = []
    for i, rank in enumerate(channel.order):
        chip, other = (each // platform.ranks_per_chip for each in (rank, channel.order[(i + 1) % len(channel.order)]))
        if chip != other:
            kind = link_class(platform, chip, other)
            assert kind is not None
            assert channel.cables[i] == cable_id(platform, chip, other)
            found.append(kind)
    return found


@pytest.mark.parametrize(
    ("name", "servers"),
    [("trn3pds98", range(36)), ("trn3pds98", [0, 5, 18, 23]), ("trn3pds98-gen1", range(4)), ("trn3pds98-gen1", [1, 3])],
)
@pytest.mark.parametrize("lanes", [range(4), [2]])
@pytest.mark.parametrize("chips", [range(4), [1, 3], [0]])
def test_rings_over_two_racks(name: str, servers: list[int], lanes: list[int], chips: list[int]) -> None:
    """Topology §5: any path through rack 0, then the mirrored path through rack 1: two crossings, both cables."""
    platform = load_platform(name)
    per_server = platform.chips
    ranks = [4 * (per_server * server + chip) + lane for server in servers for chip in chips for lane in lanes]
    channels = wire(platform, ranks).channels
    assert len(channels) == (2 if len(ranks) > 2 else 1)
    for channel in channels:
        assert sorted(channel.order) == ranks
        kinds = hop_classes(platform, channel)
        assert set(kinds) <= {LinkClass.SERVER, LinkClass.RACK, LinkClass.INTER_RACK}
        assert kinds.count(LinkClass.INTER_RACK) == 2
        assert not any(channel.gateway)


def test_one_rank_per_server_of_gen2() -> None:
    """Topology §5: the ring over 36 servers is 0..17, 35..18."""
    platform = load_platform("trn3pds98")
    channels = wire(platform, range(0, 576, 16)).channels
    servers = (*range(18), *range(35, 17, -1))
    assert [channel.order for channel in channels] == [
        tuple(16 * server for server in servers),
        tuple(16 * server for server in servers[::-1]),
    ]


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_flat_rings_of_trn1_nodes(nodes: int) -> None:
    """Topology §5: a Trn1 ring goes through the nodes as a serpentine; each break of a cycle is at other chips."""
    platform = load_platform("trn1.32xlarge", nodes=nodes)
    channels = wire(platform, range(32 * nodes)).channels
    assert len(channels) == 4
    used: list[int] = []
    ends = []
    for channel in channels:
        assert sorted(channel.order) == list(range(32 * nodes))
        assert hop_classes(platform, channel).count(LinkClass.NETWORK) == nodes
        used += [cable for cable in channel.cables if cable != ON_CHIP]
        ends.append({channel.order[0] // 2, channel.order[31] // 2})
    assert len(used) == len(set(used))
    assert ends[0] == {0, 4}
    assert not ends[0] & ends[1]


def test_a_flat_ring_of_two_trn1_nodes_begins_as_on_one(trn1: Platform) -> None:
    """Topology §5: node 0 forwards, node 1 the same chips backwards."""
    order = wire(load_platform("trn1.32xlarge", nodes=2), range(64)).channels[0].order
    assert order[:32] == wire(trn1, range(32)).channels[0].order
    assert order[32:] == tuple(rank + 32 for rank in order[:32][::-1])


def test_a_pod_ring_of_one_rank_per_node() -> None:
    """Topology §5: one rank per node has the ring 0 1 2 3 and back, over pod links only."""
    platform = load_platform("trn2u.48xlarge", nodes=4)
    for local in (0, 1, 37):
        channels = wire(platform, range(local, 256, 64)).channels
        assert [[rank // 64 for rank in channel.order] for channel in channels] == [[0, 1, 2, 3], [3, 2, 1, 0]]
        assert all(set(hop_classes(platform, channel)) == {LinkClass.POD} for channel in channels)


def test_a_rank_owns_every_second_hop_of_a_pod_ring() -> None:
    """Topology §5: a rank has exactly one Z port, so of its pod ring every second hop needs a gateway."""
    platform = load_platform("trn2u.48xlarge", nodes=4)
    left = []
    for lane in range(4):
        gateway = wire(platform, range(lane, 256, 64)).channels[0].gateway
        assert gateway in ((False, True, False, True), (True, False, True, False))
        left.append(not gateway[0])
    assert sorted(left) == [False, False, True, True]
