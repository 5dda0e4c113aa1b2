"""Walks over chips: the two cycles of the node, the counts of the exhaustive search, the first walk of a set."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest

from rota.machine import cycles
from rota.machine.cycles import (
    CYCLE_A,
    first_cycle,
    first_path,
    hamiltonian_cycles,
    has_node_cycles,
    node_cycles,
    owned_port_cycles,
)
from rota.machine.platform import Platform, load_platform
from rota.machine.topology import distance, is_subcube, one_die_turns, port_owner

CYCLE_B = (0, 3, 15, 11, 10, 9, 5, 1, 13, 14, 2, 6, 7, 4, 8, 12)
ROWS = [range(4 * row, 4 * row + 4) for row in range(4)]
COLUMNS = [range(column, 16, 4) for column in range(4)]


@pytest.fixture
def trn2() -> Platform:
    return load_platform("trn2.48xlarge")


@pytest.fixture(params=["trn1.32xlarge", "trn2.48xlarge"])
def platform(request: pytest.FixtureRequest) -> Platform:
    return load_platform(request.param)


def edges(cycle: Iterable[int]) -> frozenset[frozenset[int]]:
    chips = tuple(cycle)
    return frozenset(frozenset((chip, chips[i - 1])) for i, chip in enumerate(chips))


def test_node_cycles(platform: Platform) -> None:
    """Topology §2: cycles A and B of the node; they are closed, edge-disjoint and use all 32 cables."""
    a, b = node_cycles(platform)
    assert a == (0, 1, 2, 3, 7, 11, 8, 9, 13, 12, 15, 14, 10, 6, 5, 4)
    assert b == CYCLE_B
    assert len(edges(a) | edges(b)) == 32
    assert all(distance(platform, *edge) == 1 for edge in edges(a) | edges(b))


def test_where_the_node_cycles_turn(trn2: Platform) -> None:
    """Topology §2: both cycles go straight on chips 1 2 5 7 8 10 12 15 and turn on the other eight."""
    for cycle in node_cycles(trn2):
        straight = []
        for i, chip in enumerate(cycle):
            entry, leave = (port_owner(trn2, chip, other) for other in (cycle[i - 1], cycle[(i + 1) % 16]))
            assert entry is not None
            assert leave is not None
            if entry ^ leave == 2:
                straight.append(chip)
        assert sorted(straight) == [1, 2, 5, 7, 8, 10, 12, 15]


def test_cycle_a_follows_from_its_search_rule(trn2: Platform) -> None:
    """Topology §2: 1,344 cycles, 456 splits, 16 without a one-die turn; A is the first whose mate is its image."""
    found = list(hamiltonian_cycles(trn2, range(16)))
    by_edges = {edges(cycle): cycle for cycle in found}
    every = edges(CYCLE_A) | edges(CYCLE_B)
    pairs = [(cycle, by_edges[mate]) for cycle in found if (mate := every - edges(cycle)) in by_edges]
    owned = [pair for pair in pairs if not one_die_turns(trn2, pair[0]) and not one_die_turns(trn2, pair[1])]
    assert (len(found), len(pairs) / 2, len(owned) / 2) == (1344, 456, 16)
    mirrored = [a for a, b in owned if edges(-(c % 4) % 4 * 4 + -(c // 4) % 4 for c in a) == edges(b)]
    assert min(mirrored) == CYCLE_A


def test_cycles_come_in_lexicographic_order(trn2: Platform) -> None:
    """Cycles start at the lowest chip, run in one direction only, and come in order."""
    found = list(hamiltonian_cycles(trn2, range(12)))
    assert found == sorted(found)
    assert all(cycle[0] == 0 and cycle[1] < cycle[-1] for cycle in found)


@pytest.mark.parametrize(
    ("chips", "count", "owned"),
    [
        (ROWS[0], 1, 1),
        (COLUMNS[1], 1, 1),
        ((0, 1, 5, 4), 1, 1),
        ((1, 2, 6, 5), 1, 0),
        ((*ROWS[0], *ROWS[3]), 6, 2),
        ((*ROWS[1], *ROWS[2]), 6, 2),
        ((*COLUMNS[0], *COLUMNS[1]), 6, 2),
        ((*ROWS[0], *ROWS[1], *ROWS[2]), 22, 5),
        ((*ROWS[0], *ROWS[2]), 0, 0),
        ((*COLUMNS[0], *COLUMNS[2]), 0, 0),
        (range(2, 6), 0, 0),
        ((0, 1), 0, 0),
    ],
)
def test_cycles_of_the_table(trn2: Platform, chips: Iterable[int], count: int, owned: int) -> None:
    """Topology §4: Hamiltonian cycles of each chip set, and those without a one-die turn."""
    members = tuple(chips)
    assert len(list(hamiltonian_cycles(trn2, members))) == count
    assert len(list(owned_port_cycles(trn2, members))) == owned


@pytest.mark.parametrize("chips", [range(8), range(12), (0, 3, 4, 7, 11, 15), (*COLUMNS[1], *COLUMNS[2]), range(16)])
def test_owned_port_cycles_are_those_without_a_one_die_turn(trn2: Platform, chips: Iterable[int]) -> None:
    """A cycle is left out exactly when it turns on one die of some chip, the first and the last included."""
    members = tuple(chips)
    every = hamiltonian_cycles(trn2, members)
    assert list(owned_port_cycles(trn2, members)) == [cycle for cycle in every if not one_die_turns(trn2, cycle)]


def test_sets_of_four_and_eight_chips(platform: Platform) -> None:
    """Topology §4: 324 sets of eight with chip 0 have a cycle but are no subcube; no set of four does."""
    irregular = {
        n: sum(
            first_cycle(platform, (0, *rest)) is not None and not is_subcube(platform, (0, *rest))
            for rest in combinations(range(1, 16), n - 1)
        )
        for n in (4, 8)
    }
    assert irregular == {4: 0, 8: 324}


@pytest.mark.parametrize(
    ("chips", "cycle"),
    [
        ((*ROWS[0], *ROWS[3]), (0, 1, 2, 14, 13, 12, 15, 3)),
        ((*ROWS[1], *ROWS[2]), (4, 5, 6, 10, 9, 8, 11, 7)),
        ((*ROWS[0], *ROWS[1]), (0, 1, 2, 3, 7, 6, 5, 4)),
        ((*COLUMNS[0], *COLUMNS[1]), (0, 1, 5, 9, 13, 12, 8, 4)),
    ],
)
def test_first_cycle_without_a_one_die_turn(trn2: Platform, chips: tuple[int, ...], cycle: tuple[int, ...]) -> None:
    """Topology §4: the listed chip orders of double rows and columns."""
    assert first_cycle(trn2, chips) == cycle


def test_a_cycle_with_one_die_turns_is_better_than_none(trn2: Platform) -> None:
    """Topology §4: a square of the xor-1 kind has one cycle, which turns on one die everywhere."""
    assert first_cycle(trn2, (1, 2, 5, 6)) == (1, 2, 6, 5)


def test_first_path(platform: Platform) -> None:
    """An open chain is found from its lower end; chips that do not touch have none."""
    assert first_path(platform, (2, 0, 1)) == (0, 1, 2)
    assert first_path(platform, (1, 4, 0)) == (1, 0, 4)
    assert first_path(platform, (0, 1, 3, 4)) is None  # chip 0 with three arms
    assert first_path(platform, (0, 5)) is None


def test_the_search_stays_short(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """On no set of 14 or 15 chips does the search for a path or a cycle look at more than 10,000 partial walks."""
    steps = 0
    plain_path, plain_close = cycles._path, cycles._close

    def count_path(*arguments: object) -> object:
        nonlocal steps
        steps += 1
        return plain_path(*arguments)  # type: ignore[arg-type]

    def count_close(*arguments: object) -> object:
        nonlocal steps
        steps += 1
        return plain_close(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cycles, "_path", count_path)
    monkeypatch.setattr(cycles, "_close", count_close)
    most = 0
    for n in (14, 15):
        for chips in combinations(range(16), n):
            steps = 0
            if first_cycle(platform, chips) is None:
                first_path(platform, chips)
            most = max(most, steps)
    assert 0 < most <= 10_000


def test_node_cycles_of_another_node(platform: Platform) -> None:
    """Cycles of node 1 are those of node 0, on the chips of node 1."""
    two = load_platform(platform.name, nodes=2)
    assert node_cycles(two, node=1) == tuple(tuple(16 + chip for chip in cycle) for cycle in node_cycles(platform))
    assert first_cycle(two, range(16, 20)) == (16, 17, 18, 19)


def test_walks_of_a_ring_and_a_chain() -> None:
    """Platforms §3.1: the ring of 12 has one cycle, a segment of it only a path; the chain of 6 has no cycle."""
    ring, chain = load_platform("inf2.48xlarge"), load_platform("inf2.24xlarge")
    assert list(hamiltonian_cycles(ring, range(12))) == [tuple(range(12))]
    assert first_cycle(ring, range(11)) is None
    assert first_path(ring, (11, 0, 1)) == (1, 0, 11)
    assert first_path(ring, (0, 2)) is None
    assert first_cycle(chain, range(6)) is None
    assert first_path(chain, range(1, 5)) == (1, 2, 3, 4)
    assert first_path(chain, (0, 5)) is None
    assert has_node_cycles(ring) is has_node_cycles(chain) is has_node_cycles(load_platform("trn2.3xlarge")) is False
