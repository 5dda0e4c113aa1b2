"""The torus as a cube, its cables and its ports, against the tables of the specification."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from rota.errors import UsageError
from rota.machine.platform import Platform, load_platform
from rota.machine.topology import (
    ACROSS_DIES,
    DIAGONAL,
    LINK_PARAMETER,
    ON_CHIP,
    SAME_DIE,
    LinkClass,
    cable_bit,
    cable_id,
    cable_name,
    dimension,
    distance,
    is_one_die_turn,
    is_subcube,
    link_class,
    links,
    neighbours,
    node_of,
    one_die_turns,
    pod_node_of,
    pod_of,
    port_owner,
    rack_local_rid,
    rack_of,
    routing_id,
    server_of,
    torus_peer,
)

PLATFORMS = ("trn1.32xlarge", "trn2.48xlarge")

# Platforms §3.3, the whole table: rank (s-engine) direction -> peer rank.
PORTS = """
dev0 :  0(SE2)X- ->15   1(SE3)Y+ ->18   2(SE1)X+ ->5    3(SE0)Y- ->48
dev1 :  4(SE1)Y- ->55   5(SE0)X- ->2    6(SE2)Y+ ->21   7(SE3)X+ ->8
dev2 :  8(SE2)X- ->7    9(SE3)Y+ ->26  10(SE1)X+ ->13  11(SE0)Y- ->56
dev3 : 12(SE1)Y- ->63  13(SE0)X- ->10  14(SE2)Y+ ->29  15(SE3)X+ ->0
dev4 : 16(SE0)Y+ ->35  17(SE1)X+ ->22  18(SE3)Y- ->1   19(SE2)X- ->28
dev5 : 20(SE3)X+ ->27  21(SE2)Y- ->6   22(SE0)X- ->17  23(SE1)Y+ ->36
dev6 : 24(SE0)Y+ ->43  25(SE1)X+ ->30  26(SE3)Y- ->9   27(SE2)X- ->20
dev7 : 28(SE3)X+ ->19  29(SE2)Y- ->14  30(SE0)X- ->25  31(SE1)Y+ ->44
dev8 : 32(SE2)X- ->47  33(SE3)Y+ ->50  34(SE1)X+ ->37  35(SE0)Y- ->16
dev9 : 36(SE1)Y- ->23  37(SE0)X- ->34  38(SE2)Y+ ->53  39(SE3)X+ ->40
dev10: 40(SE2)X- ->39  41(SE3)Y+ ->58  42(SE1)X+ ->45  43(SE0)Y- ->24
dev11: 44(SE1)Y- ->31  45(SE0)X- ->42  46(SE2)Y+ ->61  47(SE3)X+ ->32
dev12: 48(SE0)Y+ ->3   49(SE1)X+ ->54  50(SE3)Y- ->33  51(SE2)X- ->60
dev13: 52(SE3)X+ ->59  53(SE2)Y- ->38  54(SE0)X- ->49  55(SE1)Y+ ->4
dev14: 56(SE0)Y+ ->11  57(SE1)X+ ->62  58(SE3)Y- ->41  59(SE2)X- ->52
dev15: 60(SE3)X+ ->51  61(SE2)Y- ->46  62(SE0)X- ->57  63(SE1)Y+ ->12
"""
ROWS = [
    (int(rank), int(engine), direction, int(peer))
    for rank, engine, direction, peer in re.findall(r"(\d+)\(SE(\d)\)([XY][+-]) *->(\d+)", PORTS)
]
STEP = {"X+": (0, 1), "X-": (0, -1), "Y+": (1, 0), "Y-": (-1, 0)}

# Platforms §3.2 and §3.3: neighbour tables of the driver.
TRN1_NEIGHBOURS = """12,3,4,1 13,0,5,2 14,1,6,3 15,2,7,0 0,7,8,5 1,4,9,6 2,5,10,7 3,6,11,4
4,11,12,9 5,8,13,10 6,9,14,11 7,10,15,8 8,15,0,13 9,12,1,14 10,13,2,15 11,14,3,12"""
TRN2_NEIGHBOURS = """12,1,3,4 0,13,5,2 14,3,1,6 2,15,7,0 8,5,7,0 4,9,1,6 10,7,5,2 6,11,3,4
4,9,11,12 8,5,13,10 6,11,9,14 10,7,15,8 0,13,15,8 12,1,9,14 2,15,13,10 14,3,11,12"""


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> Platform:
    return load_platform(request.param)


@pytest.fixture
def trn2() -> Platform:
    return load_platform("trn2.48xlarge")


def torus_distance(a: int, b: int) -> int:
    """Count cables by row and column, the short way round."""
    (row_a, column_a), (row_b, column_b) = divmod(a, 4), divmod(b, 4)
    return sum(min(d % 4, -d % 4) for d in (row_a - row_b, column_a - column_b))


def step(chip: int, direction: str) -> int:
    row, column = divmod(chip, 4)
    down, right = STEP[direction]
    return (row + down) % 4 * 4 + (column + right) % 4


def test_distance_is_the_bits_of_the_routing_ids(platform: Platform) -> None:
    """Topology §1.1: torus distance is popcount(rid xor rid), for all 256 pairs on v2 and v3."""
    for a in range(16):
        for b in range(16):
            assert distance(platform, a, b) == torus_distance(a, b)
            assert distance(platform, a, b) == (routing_id(platform, a) ^ routing_id(platform, b)).bit_count()


@pytest.mark.parametrize(("name", "table"), [("trn1.32xlarge", TRN1_NEIGHBOURS), ("trn2.48xlarge", TRN2_NEIGHBOURS)])
def test_neighbours(name: str, table: str) -> None:
    """Platforms §3.2, §3.3: the driver's neighbours of each device, on both machines those of the same torus."""
    platform = load_platform(name)
    for chip, row in enumerate(table.split()):
        assert neighbours(platform, chip) == tuple(sorted(map(int, row.split(","))))
        assert neighbours(platform, chip) == tuple(sorted(step(chip, direction) for direction in STEP))


def test_each_routing_id_bit_is_eight_cables(platform: Platform) -> None:
    """Topology §1.1: the four bits use disjoint cables, eight each."""
    bits = [cable_bit(platform, a, b) for a, b in combinations(range(16), 2) if torus_distance(a, b) == 1]
    assert [bits.count(bit) for bit in range(dimension(platform))] == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("name", "directions"), [("trn2.48xlarge", ["X-", "Y+", "Y-", "X+"]), ("trn1.32xlarge", ["Y+", "X+", "X-", "Y-"])]
)
def test_direction_of_each_bit_from_chip_0(name: str, directions: list[str]) -> None:
    """Topology §1.1: the way chip 0 leaves by routing id bits 0 to 3."""
    platform = load_platform(name)
    assert [cable_bit(platform, 0, step(0, direction)) for direction in directions] == [0, 1, 2, 3]


def test_every_port_of_every_rank(trn2: Platform) -> None:
    """Platforms §3.3: all 64 rows of the rank to port table."""
    assert len(ROWS) == 64
    for rank, _, direction, peer in ROWS:
        chip, lane = divmod(rank, 4)
        assert port_owner(trn2, chip, step(chip, direction)) == lane
        assert torus_peer(trn2, rank) == peer


def test_ports_are_an_involution(trn2: Platform) -> None:
    """Platforms §3.3: the peer of a peer is the rank itself."""
    for rank in range(64):
        peer = torus_peer(trn2, rank)
        assert peer is not None
        assert torus_peer(trn2, peer) == rank


def test_one_port_of_each_direction_per_chip(trn2: Platform) -> None:
    """Platforms §3.3: every chip has exactly one port in each of X+, X-, Y+ and Y-."""
    for chip in range(16):
        reached = sorted(peer // 4 for lane in range(4) if (peer := torus_peer(trn2, 4 * chip + lane)) is not None)
        assert reached == sorted(step(chip, direction) for direction in STEP)


def test_torus_peer_has_the_lane_across_the_dies(trn2: Platform) -> None:
    """Topology §1.3: the torus peer of lane a is lane a^3 on the neighbour chip, for all 64 ranks."""
    for rank in range(64):
        peer = torus_peer(trn2, rank)
        assert peer is not None
        assert peer % 4 == rank % 4 ^ 3


def test_s_engines_are_lanes_by_xor() -> None:
    """Topology §1.2: same die is lane^1, across the dies lane^3, diagonal lane^2, on all 16 chips."""
    lane = {(rank // 4, engine): rank % 4 for rank, engine, _, _ in ROWS}
    for chip in range(16):
        for engine in range(4):
            here = lane[chip, engine]
            assert [here ^ lane[chip, engine ^ other] for other in (1, 2, 3)] == [SAME_DIE, ACROSS_DIES, DIAGONAL]


def test_trn1_ports_have_no_owner() -> None:
    """Topology §2: on Trn1 no rank owns a port, so no passage turns on one die."""
    trn1 = load_platform("trn1.32xlarge")
    assert port_owner(trn1, 0, 1) is None
    assert torus_peer(trn1, 0) is None
    assert not is_one_die_turn(trn1, 1, 0, 4)


def test_a_straight_passage_is_never_on_one_die(trn2: Platform) -> None:
    """Topology §1: straight passages are always diagonal (xor 2 of the lanes)."""
    for chip in range(16):
        for one, other in (("X-", "X+"), ("Y-", "Y+")):
            owners = port_owner(trn2, chip, step(chip, one)), port_owner(trn2, chip, step(chip, other))
            assert owners[0] is not None
            assert owners[1] is not None
            assert owners[0] ^ owners[1] == DIAGONAL


def test_squares_turn_on_one_die_by_the_parity_of_their_corner(trn2: Platform) -> None:
    """Topology §4: a square with top left chip (row, col) turns across the dies when row + col is even, else on one."""
    for chip in range(16):
        square = (chip, step(chip, "X+"), step(step(chip, "X+"), "Y+"), step(chip, "Y+"))
        expected = () if sum(divmod(chip, 4)) % 2 == 0 else square
        assert one_die_turns(trn2, square) == expected


def test_subcubes(platform: Platform) -> None:
    """Topology §4: 81 subcubes: 16 chips, 32 pairs, 24 fours, 8 eights, 1 node."""
    counts = [sum(is_subcube(platform, chips) for chips in combinations(range(16), n)) for n in (1, 2, 4, 8, 16)]
    assert counts == [16, 32, 24, 8, 1]
    assert not is_subcube(platform, ())
    assert not any(is_subcube(platform, chips) for chips in combinations(range(16), 3))


def test_cables(platform: Platform) -> None:
    """Topology §2: the node has 64 directed cables, and each has a name."""
    ids = [cable_id(platform, chip, other) for chip in range(16) for other in neighbours(platform, chip)]
    assert len(set(ids)) == links(platform) == 64
    assert cable_name(platform, cable_id(platform, 0, 3)) == "chip 0 -> chip 3"
    assert cable_name(platform, cable_id(platform, 15, 12)) == "chip 15 -> chip 12"
    assert cable_name(platform, ON_CHIP) == "on the chip"


@pytest.mark.parametrize("cable", [0, 2, -2, 256, 10**30])
def test_a_number_that_is_no_cable(platform: Platform, cable: int) -> None:
    """Chips without a cable between them (chip 0 and 0, chip 0 and 2, chip 16) have no cable to name."""
    with pytest.raises(UsageError, match=rf"cable {cable}: expected 16 \* chip \+ neighbour"):
        cable_name(platform, cable)


# --- chips through all nodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_node_is_the_same(name: str) -> None:
    """A chip of node n is 16 n + its place; labels, distances, neighbours and owners are those of the place."""
    one, three = load_platform(name), load_platform(name, nodes=3)
    assert links(three) == links(one)
    for chip in range(16):
        there = 32 + chip
        assert node_of(three, there) == 2
        assert routing_id(three, there) == routing_id(one, chip)
        assert neighbours(three, there) == tuple(32 + other for other in neighbours(one, chip))
        for other in neighbours(one, chip):
            assert distance(three, there, 32 + other) == 1
            assert port_owner(three, there, 32 + other) == port_owner(one, chip, other)
            assert cable_id(three, there, 32 + other) == there * 48 + 32 + other
    assert is_subcube(three, range(16, 32))
    assert not is_subcube(three, (0, 16))


def test_torus_peers_at_lnc_1() -> None:
    """Topology §2: both cores of an s-engine own its port; the peer of core t is core t at the other end."""
    one, two = load_platform("trn2.48xlarge", lnc=1, nodes=2), load_platform("trn2.48xlarge", nodes=2)
    for rank in range(two.ranks):
        peer = torus_peer(two, rank)
        assert peer is not None
        assert [torus_peer(one, 2 * rank + core) for core in (0, 1)] == [2 * peer, 2 * peer + 1]


def test_one_chip_has_no_cables() -> None:
    """Platforms §1: a single chip has no link, though its ranks could own ports."""
    chip = load_platform("trn2.3xlarge")
    assert (dimension(chip), links(chip), neighbours(chip, 0), distance(chip, 0, 0)) == (0, 0, (), 0)
    assert torus_peer(chip, 3) is None
    assert is_subcube(chip, (0,))


@pytest.mark.parametrize(
    ("name", "count", "ends", "far"), [("inf2.48xlarge", 24, (1, 11), 6), ("inf2.24xlarge", 10, (1,), 5)]
)
def test_ring_and_chain(name: str, count: int, ends: tuple[int, ...], far: int) -> None:
    """Platforms §3.1: a ring of 12 chips; six are an open chain, with no cable between chips 0 and 5."""
    inf2 = load_platform(name)
    assert (dimension(inf2), links(inf2), neighbours(inf2, 0)) == (0, count, ends)
    assert max(distance(inf2, 0, chip) for chip in range(inf2.chips)) == far
    assert all(routing_id(inf2, chip) == chip for chip in range(inf2.chips))
    assert link_class(inf2, 0, inf2.chips - 1) is (LinkClass.CABLE if len(ends) == 2 else None)
    assert is_subcube(inf2, (3,))
    assert not is_subcube(inf2, (0, 1))


# --- pods -------------------------------------------------------------------------------------------------------------


def test_the_z_ring() -> None:
    """Platforms §3.4: chips at the same place of four nodes form the ring 0-1-2-3; other chips meet by network."""
    pod = load_platform("trn2u.48xlarge", nodes=4)
    joined = {(a, b) for a in range(4) for b in range(4) if link_class(pod, 16 * a + 5, 16 * b + 5) is LinkClass.POD}
    assert joined == {(a, (a + step) % 4) for a in range(4) for step in (1, 3)}
    assert link_class(pod, 5, 32 + 5) is LinkClass.NETWORK
    assert link_class(pod, 5, 16 + 6) is LinkClass.NETWORK
    assert cable_name(pod, cable_id(pod, 5, 21)) == "chip 5 -> chip 21 (pod link)"


def test_pods_do_not_touch() -> None:
    """Platforms §3.4: nodes of two pods are joined by network alone; X2V pairs nodes i and i + 2."""
    pods = load_platform("trn2u.48xlarge", nodes=8)
    assert [pod_of(pods, node) for node in range(8)] == [0] * 4 + [1] * 4
    assert [pod_node_of(pods, node) for node in range(8)] == [0, 1, 2, 3] * 2
    assert link_class(pods, 48, 64) is LinkClass.NETWORK
    split = load_platform("trn2u.48xlarge", nodes=8, pod_mode=3)
    assert [pod_node_of(split, node) for node in range(8)] == [0, 0, 1, 1] * 2
    kinds = [link_class(split, 0, 16 * node) for node in range(1, 8)]
    assert [kind is LinkClass.POD for kind in kinds] == [False, True] + [False] * 5


def test_instances_without_pods_meet_by_network() -> None:
    """Platforms §1: Trn1 and Trn2 instances are joined by EFA, chip to chip."""
    trn2 = load_platform("trn2.48xlarge", nodes=2)
    assert {link_class(trn2, chip, 16 + other) for chip in range(16) for other in range(16)} == {LinkClass.NETWORK}
    assert [pod_of(trn2, node) for node in (0, 1)] == [0, 1]
    assert pod_node_of(trn2, 1) == 0
    assert cable_name(trn2, cable_id(trn2, 0, 31)) == "chip 0 -> chip 31 (network)"


# --- switch machines --------------------------------------------------------------------------------------------------

SWITCHES = [("trn3pds98-gen1", 16, 2), ("trn3pds98", 4, 18)]


@pytest.mark.parametrize(("name", "c", "s"), SWITCHES)
def test_numbers_of_a_switch_machine(name: str, c: int, s: int) -> None:
    """Topology §5: rid = server << 4 | chip, rack = server / S, nec_dev = server c + chip."""
    switch = load_platform(name)
    for chip in range(switch.chip_count):
        server, place = divmod(chip, c)
        assert (node_of(switch, chip), server_of(switch, chip), rack_of(switch, chip)) == (server, server, server // s)
        assert routing_id(switch, chip) == server << 4 | place
        assert rack_local_rid(switch, chip) == server % s << 4 | place
    assert rack_of(switch, switch.chip_count - 1) == 1
    assert rack_local_rid(switch, switch.chip_count - 1) == {"trn3pds98-gen1": 31, "trn3pds98": 275}[name]


@pytest.mark.parametrize(("name", "c", "s"), SWITCHES)
def test_links_of_a_switch_machine(name: str, c: int, s: int) -> None:
    """Platforms §3.6: a switch joins a server, another a rack; a direct link joins its place on server s + S."""
    switch = load_platform(name)
    assert neighbours(switch, 1) == tuple(chip for chip in range(c) if chip != 1)
    assert links(switch) == c * (c - 1)
    for chip in range(switch.chip_count):
        expected = LinkClass.SERVER if chip < c else LinkClass.RACK if chip < s * c else None
        if chip == s * c + 1:
            expected = LinkClass.INTER_RACK
        assert link_class(switch, 1, chip) is (None if chip == 1 else expected)
        assert link_class(switch, chip, 1) is link_class(switch, 1, chip)


def test_two_ultraservers_meet_by_network() -> None:
    """Platforms §1: UltraServers are joined by EFA; servers, racks and labels are counted in each."""
    two = load_platform("trn3pds98", nodes=2)
    assert link_class(two, 0, 144) is LinkClass.NETWORK
    assert (server_of(two, 144), rack_of(two, 144), routing_id(two, 144), pod_of(two, 36)) == (0, 0, 0, 1)
    assert link_class(two, 144, 144 + 72) is LinkClass.INTER_RACK


def test_a_torus_has_no_racks() -> None:
    """Topology §5: racks are those of switch machines."""
    trn2 = load_platform("trn2.48xlarge", nodes=2)
    assert {rack_of(trn2, chip) for chip in range(32)} == {0}
    assert {server_of(trn2, chip) for chip in range(32)} == {0}
    assert rack_local_rid(trn2, 17) == routing_id(trn2, 17)


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2u.48xlarge", "inf2.48xlarge", "trn3pds98"])
def test_every_link_has_a_rate(name: str) -> None:
    """Each class of link a machine has is priced by one parameter of its file."""
    machine = load_platform(name, nodes=1 if name.startswith("inf2") else 4)
    kinds = {link_class(machine, a, b) for a in range(0, machine.chip_count, 5) for b in range(machine.chip_count)}
    assert all(machine.parameter(LINK_PARAMETER[kind]) > 0 for kind in kinds if kind is not None)
    assert set(LINK_PARAMETER) == set(LinkClass)


def test_a_number_that_is_no_link_of_a_switch() -> None:
    """Chips of two racks at different places have no link to name."""
    switch = load_platform("trn3pds98")
    with pytest.raises(UsageError, match=r"expected 144 \* chip"):
        cable_name(switch, 0 * 144 + 73)
