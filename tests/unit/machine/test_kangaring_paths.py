"""KangaRing paths, against the lists of the specification and the rules they follow from."""

from __future__ import annotations

from collections import Counter

import pytest

from rota.errors import UnsupportedError
from rota.isa.enums import Neighbour
from rota.machine.group import wire
from rota.machine.kangaring import PEERS, KangaPath, kanga_paths
from rota.machine.platform import Platform, load_platform
from rota.machine.topology import ACROSS_DIES, DIAGONAL, port_owner

# Topology §3: logical paths of the node at LNC 2, and where the reversals start.
A_FORWARD = """1 0 2 3 | 5 4 7 6 | 8 9 10 11 | 13 12 14 15 | 29 28 31 30 | 44 45 47 46 | 32 33 34 35 | 37 36 38 39 |
    53 52 54 55 | 49 48 51 50 | 60 61 62 63 | 57 56 58 59 | 41 40 43 42 | 24 25 27 26 | 20 21 22 23 | 17 16 18 19"""
B_FORWARD = """3 2 0 1 | 15 14 12 13 | 63 62 61 60 | 46 47 45 44 | 42 43 40 41 | 39 38 36 37 | 23 22 21 20 | 6 7 4 5 |
    55 54 52 53 | 59 58 56 57 | 11 10 9 8 | 26 27 25 24 | 30 31 28 29 | 19 18 16 17 | 35 34 33 32 | 50 51 48 49"""
A_BACK = "2 3 1 0 | 18 19 17 16 | 22 23 20 21"
B_BACK = "0 1 3 2 | 48 49 50 51 | 33 32 35 34"
FIRST_CHIP_LNC_1 = "2 0 1 3 | 4 6 7 5"


def ranks_of(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in text.replace("|", " ").split())


def machine(lnc: int = 2, name: str = "trn2.48xlarge") -> Platform:
    return load_platform(name, lnc=lnc)


def paths(platform: Platform, *chips: int) -> tuple[KangaPath, ...]:
    """Return the paths of all ranks of some chips, of all chips by default."""
    per_chip = platform.ranks_per_chip
    ranks = [per_chip * chip + lane for chip in chips or range(platform.chips) for lane in range(per_chip)]
    return kanga_paths(platform, wire(platform, ranks))


def roles(found: tuple[KangaPath, ...]) -> Counter[int]:
    """Return rank -> channels on which it is a primary."""
    return Counter(rank for path in found for rank in path.primaries)


@pytest.mark.parametrize(
    ("number", "text"), list(enumerate([A_FORWARD, B_FORWARD, A_BACK, B_BACK])), ids=["A+", "B+", "A-", "B-"]
)
def test_listed_paths(number: int, text: str) -> None:
    """Topology §3: the paths of A+ and B+, and the starts of A- and B-, LNC 2."""
    expected = ranks_of(text)
    assert paths(machine())[number].logical_path[: len(expected)] == expected


def test_first_chip_at_lnc_1() -> None:
    """Topology §3: LNC 1, the first chip of A+: primary, RMTV, RMTV2, LOCAL of each die."""
    path = paths(machine(1))[0]
    assert path.logical_path[:8] == ranks_of(FIRST_CHIP_LNC_1)
    assert path.kinds == (Neighbour.PEER_RMTV, Neighbour.PEER_RMTV2, Neighbour.PEER_LOCAL) == PEERS


@pytest.mark.parametrize("lnc", [1, 2])
def test_reversals_have_the_groups_of_the_forward_path(lnc: int) -> None:
    """Topology §3: A- and B- pass the same core groups in reverse order; at LNC 2 under the same primaries."""
    found = paths(machine(lnc))
    for forward, back in zip(found[:2], found[2:], strict=True):
        groups = [
            [frozenset((p, *s)) for p, s in zip(path.primaries, path.secondaries, strict=True)]
            for path in (forward, back)
        ]
        turned = groups[0][::-1]
        start = turned.index(groups[1][0])
        assert turned[start:] + turned[:start] == groups[1]
        assert lnc == 1 or set(forward.primaries) == set(back.primaries)


@pytest.mark.parametrize(("lnc", "core_group"), [(1, 4), (2, 2)])
def test_every_rank_is_once_on_a_path_in_a_die(lnc: int, core_group: int) -> None:
    """Compose §7.1: a core group is the ranks of one die, a primary and 1 (LNC 2) or 3 (LNC 1) secondaries."""
    platform = machine(lnc)
    for path in paths(platform):
        assert sorted(path.logical_path) == list(range(platform.ranks))
        assert path.group_size == core_group
        assert len(path.primaries) == platform.ranks // core_group
        for primary, others in zip(path.primaries, path.secondaries, strict=True):
            assert {rank // core_group for rank in (primary, *others)} == {primary // core_group}


@pytest.mark.parametrize(("lnc", "core_group"), [(1, 4), (2, 2)])
def test_roles_alternate(lnc: int, core_group: int) -> None:
    """Topology §3: a rank is primary in exactly 2 of 4 channels at LNC 2, in exactly 1 of 4 at LNC 1."""
    platform = machine(lnc)
    assert roles(paths(platform)) == dict.fromkeys(range(platform.ranks), 4 // core_group)


def test_primaries_of_a_and_b_are_disjoint() -> None:
    """Topology §3: on each chip A's primaries are two lanes and B's the other two, in both directions."""
    a, b, a_back, b_back = (set(path.primaries) for path in paths(machine()))
    assert a == a_back
    assert b == b_back
    assert not a & b
    assert all(len({rank for rank in a if rank // 4 == chip}) == 2 for chip in range(16))


def test_half_of_the_hops_are_cables() -> None:
    """Topology §3: per channel 32 primaries, 16 nexts by cable and 16 on the chip, 8 across the dies and 8 diagonal."""
    for path in paths(machine()):
        nexts = (*path.primaries[1:], path.primaries[0])
        on_chip = Counter(
            a % 4 ^ b % 4 for a, b, pcie in zip(path.primaries, nexts, path.is_next_pcie, strict=True) if not pcie
        )
        assert on_chip == {ACROSS_DIES: 8, DIAGONAL: 8}
        assert sum(path.is_next_pcie) == 16
        assert path.is_next_pcie[:4] == (False, True, False, True)


@pytest.mark.parametrize("lnc", [1, 2])
def test_cables_are_used_once_from_owner_to_owner(lnc: int) -> None:
    """Topology §2 and §3: the four paths use each of the 64 directed cables once, between the owners of its ports."""
    platform = machine(lnc)
    used = []
    for path in paths(platform):
        for primary, following, cable in zip(
            path.primaries, (*path.primaries[1:], path.primaries[0]), path.cables, strict=True
        ):
            if cable < 0:
                continue
            used.append(cable)
            (here, lane), (there, other) = (divmod(rank, platform.ranks_per_chip) for rank in (primary, following))
            per_engine = platform.lanes_per_engine
            assert port_owner(platform, here, there) == lane // per_engine
            assert port_owner(platform, there, here) == other // per_engine
            assert lane % per_engine == other % per_engine
    assert len(used) == len(set(used)) == 64


@pytest.mark.parametrize(
    "chips",
    [(0, 1, 2, 3), (0, 4, 8, 12), (0, 1, 4, 5), (0, 1, 2, 3, 12, 13, 14, 15), (0, 1, 2, 3, 4, 5, 6, 7)],
    ids=["row", "column", "square", "rows 0 and 3", "rows 0 and 1"],
)
def test_one_cycle_gives_all_channels_the_same_primaries(chips: tuple[int, ...]) -> None:
    """Topology §3: with one cycle both channels have the same primaries; the other lanes are never primary."""
    found = paths(machine(), *chips)
    assert len(found) == 2
    assert roles(found) == dict.fromkeys(found[0].primaries, 2)
    one = paths(machine(1), *chips)
    assert set(roles(one).values()) == {1}
    assert {rank // 2 for rank in roles(one)} == set(found[0].primaries)


@pytest.mark.parametrize(
    ("chips", "sentence"),
    [
        ((0, 1), "enters and leaves chip 0 by ports of one die"),
        ((1, 2, 5, 6), "enters and leaves chip . by ports of one die"),
        ((0, 1, 2), "comes to chip 1 more than once"),
    ],
    ids=["two chips", "a square that turns on one die", "a chain"],
)
def test_rings_without_owned_ports(chips: tuple[int, ...], sentence: str) -> None:
    """Topology §4, last column: no KangaRing on two chips, on one-die turns, and on open chains."""
    platform = machine()
    ranks = [4 * chip + lane for chip in chips for lane in range(4)]
    wiring = wire(platform, ranks, any_group=True)
    with pytest.raises(UnsupportedError, match=sentence):
        kanga_paths(platform, wiring)


def test_two_ranks_a_chip_are_too_few() -> None:
    """Topology §3: Trn1 and Inf2 have two ranks a chip, and KangaRing needs at least four."""
    platform = load_platform("trn1.32xlarge")
    with pytest.raises(UnsupportedError, match="its chips have 2 ranks, and it needs 4 or 8"):
        kanga_paths(platform, wire(platform, range(32)))


def test_parts_of_chips() -> None:
    """Select §4: KangaRing needs all ranks of its chips; one rank of each has rings, and no paths."""
    platform = machine()
    with pytest.raises(UnsupportedError, match="1 of 4 ranks a chip: it needs whole chips"):
        kanga_paths(platform, wire(platform, range(0, 64, 4)))


def test_a_group_without_a_ring() -> None:
    """A group that no ring serves has no path, with the reason of its wiring."""
    platform = load_platform("trn2.48xlarge", nodes=2)
    with pytest.raises(UnsupportedError, match="KangaRing follows a ring: no flat ring is wired over several nodes"):
        kanga_paths(platform, wire(platform, range(128)))


@pytest.mark.parametrize("name", ["trn3pds98", "trn3pds98-gen1"])
@pytest.mark.parametrize(("lnc", "core_group"), [(1, 4), (2, 2)])
@pytest.mark.parametrize("chips", [2, 4, 32])
def test_behind_a_switch_channels_take_turns(name: str, lnc: int, core_group: int, chips: int) -> None:
    """Convention: behind a switch the primaries of the two channels are disjoint, and face each other on a chip."""
    platform = load_platform(name, lnc=lnc)
    found = paths(platform, *range(chips))
    assert len(found) == 2
    assert set(roles(found).values()) == {1}
    engines = [
        [rank % platform.ranks_per_chip // (platform.ranks_per_chip // 4) for rank in path.primaries[:2]]
        for path in found
    ]
    assert engines == [[0, 3], [1, 2]]
    for path in found:
        assert sorted(path.logical_path) == list(range(chips * platform.ranks_per_chip))
        assert len(path.primaries) == 2 * chips == len(path.logical_path) // core_group
        assert path.is_next_pcie == (False, True) * chips
