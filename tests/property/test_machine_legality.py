"""Laws of every answer on legality: it never raises, and what it suggests is legal."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import UnsupportedError
from rota.machine.geometry import comm_info, geometry, inter_groups, intra_groups
from rota.machine.group import wire
from rota.machine.layouts import documented_groups, is_documented, nearest
from rota.machine.legality import check_group, check_groups, check_pairs
from rota.machine.pairs import components, parse_pairs, ring_of
from rota.machine.platform import Platform, Shape, known_platforms, load_platform

PLATFORMS = [
    load_platform(name, lnc=lnc, nodes=nodes)
    for name in known_platforms()
    for lnc in load_platform(name).lncs
    for nodes in ((1, 3, 4) if load_platform(name).network else (1,))
]

platforms = st.sampled_from(PLATFORMS)


@st.composite
def any_groups(draw: st.DrawFn) -> tuple[Platform, tuple[int, ...]]:
    """Draw a machine and ranks of it: some at random, or equal parts of some nodes, or either with a few left out."""
    platform = draw(platforms)
    ranks = st.integers(0, platform.ranks - 1)
    if draw(st.booleans()):
        return platform, tuple(draw(st.lists(ranks, unique=True, min_size=1, max_size=40)))
    nodes = draw(st.sets(st.integers(0, platform.nodes - 1), min_size=1, max_size=5))
    chips = draw(st.sets(st.integers(0, platform.chips - 1), min_size=1))
    lanes = draw(st.sets(st.integers(0, platform.ranks_per_chip - 1), min_size=1))
    per_chip = platform.ranks_per_chip
    regular = [
        platform.node_ranks * node + per_chip * chip + lane for node in nodes for chip in chips for lane in lanes
    ]
    left_out = draw(st.sets(st.sampled_from(regular), max_size=3)) if len(regular) > 3 else set()
    return platform, tuple(sorted(set(regular) - left_out))


@given(any_groups())
def test_an_answer_agrees_with_the_wiring(case: tuple[Platform, tuple[int, ...]]) -> None:
    """A group is legal exactly when it is wired without an error, with the same channels and reason."""
    platform, ranks = case
    answer = check_group(platform, ranks)
    if not answer.legal:
        with pytest.raises(UnsupportedError) as caught:
            wire(platform, ranks)
        assert str(caught.value).startswith(answer.reason)
        assert answer.channels == 0
        assert answer.runtime_message is not None
        return
    wiring = wire(platform, ranks)
    assert answer.reason == wiring.verdict.reason
    assert answer.channels == len(wiring.channels)
    assert len(answer.warnings) == len(wiring.warnings)


@given(any_groups())
def test_suggestions_are_legal(case: tuple[Platform, tuple[int, ...]]) -> None:
    """What is suggested is legal, distinct, and not the group itself; for an illegal group there is something."""
    platform, ranks = case
    answer = check_group(platform, ranks)
    assert len(set(answer.suggestions)) == len(answer.suggestions)
    assert answer.legal or answer.suggestions
    for group in answer.suggestions:
        assert set(group) != set(ranks)
        assert check_group(platform, group).legal


@given(any_groups())
def test_suggestions_on_a_torus_have_no_warnings(case: tuple[Platform, tuple[int, ...]]) -> None:
    """On every machine without a switch only documented groups are suggested."""
    platform, ranks = case
    if platform.shape is not Shape.SWITCH:
        for group in check_group(platform, ranks).suggestions:
            assert is_documented(platform, group)
            assert check_group(platform, group).warnings == ()


@given(any_groups())
def test_boxes_near_a_group(case: tuple[Platform, tuple[int, ...]]) -> None:
    """On a switch machine a smaller suggestion for a box that is not full lies inside it, a larger one around it."""
    platform, ranks = case
    answer = check_group(platform, ranks)
    if platform.shape is Shape.SWITCH and not answer.legal:
        for group in answer.suggestions:
            assert set(group) < set(ranks) or set(group) > set(ranks)


def subsets(count: int) -> list[tuple[int, ...]]:
    return [each for size in range(1, count + 1) for each in combinations(range(count), size)]


def boxes_inside(ranks: frozenset[int]) -> list[tuple[int, ...]]:
    """Return the full boxes of two or more ranks inside a group of Gen2 at LNC 2, by trying all lanes and chips."""
    found: list[tuple[int, ...]] = []
    for lanes, chips in product(subsets(4), subsets(4)):
        full = [s for s in range(36) if all(16 * s + 4 * chip + lane in ranks for chip in chips for lane in lanes)]
        racks = [[s for s in full if s < 18], [s for s in full if s >= 18]]
        both = [s for s in full if (s + 18) % 36 in full]
        for servers in (*racks, both):
            if len(servers) * len(chips) > 1 or (servers and len(lanes) in (2, 4)):
                found.append(tuple(16 * s + 4 * chip + lane for s in servers for chip in chips for lane in lanes))
    return found


@given(
    st.sets(st.sampled_from([0, 1, 2, 17, 18, 19, 35]), min_size=1, max_size=5),
    st.sets(st.integers(0, 15), min_size=3),
    st.sets(st.integers(0, 15), min_size=1),
)
def test_the_largest_box_inside_a_group(servers: set[int], here: set[int], odd: set[int]) -> None:
    """Topology §5: the smaller suggestion is the largest full box inside, of several the one with the lowest ranks."""
    ranks = {16 * server + rank for server in servers for rank in here} | {16 * min(servers) + rank for rank in odd}
    platform = load_platform("trn3pds98")
    if not check_group(platform, sorted(ranks)).legal:
        boxes = boxes_inside(frozenset(ranks))
        expected = min(boxes, key=lambda box: (-len(box), box)) if boxes else None
        assert nearest(platform, sorted(ranks)).smaller == expected


@given(any_groups(), st.randoms(use_true_random=False))
def test_member_order_decides_nothing(case: tuple[Platform, tuple[int, ...]], random: object) -> None:
    """The answer does not depend on the order of the members, but for the members it repeats."""
    platform, ranks = case
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = check_group(platform, ranks), check_group(platform, shuffled)
    assert other.ranks == tuple(shuffled)
    assert (one.reason, one.warnings, one.suggestions, one.notes) == (
        other.reason,
        other.warnings,
        other.suggestions,
        other.notes,
    )


@given(platforms, st.lists(st.integers(-2, 600), max_size=6))
def test_groups_written_wrongly_are_answers(platform: Platform, ranks: list[int]) -> None:
    """No list of numbers raises."""
    answer = check_group(platform, ranks)
    assert answer.ranks == tuple(ranks)
    assert all(check_group(platform, group).legal for group in answer.suggestions)
    assert len(check_groups(platform, [ranks, ranks])) == 2


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda p: f"{p.name}-{p.lnc}-{p.instances}")
def test_the_list_of_documented_groups_has_no_repeats(platform: Platform) -> None:
    """Each documented group stands once, in ascending rank order, by size and then by ranks."""
    groups = documented_groups(platform)
    assert list(groups) == sorted(set(groups), key=lambda group: (len(group), group))
    assert all(list(group) == sorted(set(group)) for group in groups)


@given(any_groups())
def test_parts_of_a_group(case: tuple[Platform, tuple[int, ...]]) -> None:
    """Intra groups split the members by node; inter groups take one of every node; a member sees all peers."""
    platform, ranks = case
    at = geometry(platform, ranks)
    intra = intra_groups(platform, at)
    assert sorted(rank for group in intra for rank in group) == sorted(ranks)
    assert [{rank // platform.node_ranks for rank in group} for group in intra] == [{node} for node in at.nodes]
    info = comm_info(platform, at, ranks[-1])
    assert (info.rank_n, len(info.peers), info.rank) == (len(ranks), len(ranks), len(ranks) - 1)
    assert info.peers[info.rank].neuron_dev == info.neuron_dev
    assert info.local_rank_n == len(intra[info.node])
    if at.local_ranks:
        assert at.local_rank_n * at.node_n == at.rank_n
        across = inter_groups(platform, at)
        assert sorted(rank for group in across for rank in group) == sorted(ranks)
        assert all(len(group) == at.node_n for group in across)


# --- pairs ------------------------------------------------------------------------------------------------------------


@st.composite
def partial_permutations(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Draw pairs with every source and every target at most once."""
    ranks = draw(st.lists(st.integers(0, 63), unique=True, max_size=12))
    targets = draw(st.permutations(ranks))
    return tuple(zip(ranks, targets, strict=True))[: draw(st.integers(0, 12))]


@given(partial_permutations())
def test_components_split_the_pairs(pairs: tuple[tuple[int, int], ...]) -> None:
    """Every pair is in one component, components share no rank, and a ring has as many ranks as pairs."""
    parts = components(pairs)
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    ranks = [{rank for pair in part for rank in pair} for part in parts]
    assert sum(map(len, ranks)) == len(set().union(*ranks))
    for part in parts:
        ring = ring_of(part)
        assert (ring is not None) == ({a for a, _ in part} == {b for _, b in part})
        if ring is not None:
            assert {(rank, ring[(i + 1) % len(ring)]) for i, rank in enumerate(ring)} == set(part)


@given(partial_permutations(), st.sampled_from(["{{%s}}", "{%s}", "[[%s]]", "%s"]))
def test_pairs_as_text(pairs: tuple[tuple[int, int], ...], form: str) -> None:
    """Each form of the text gives back the pairs in their order."""
    if not pairs:
        return
    inner, between = {"{": ("%d,%d", "},{"), "[": ("%d,%d", "],["), "%": ("%d>%d", ",")}[form[0]]
    assert parse_pairs(form % between.join(inner % pair for pair in pairs), ranks=64) == pairs


@given(partial_permutations())
def test_pairs_never_raise(pairs: tuple[tuple[int, int], ...]) -> None:
    """One answer for each component; legal ones are rings, and with any_group all are legal."""
    platform = load_platform("trn2.48xlarge")
    answers = check_pairs(platform, pairs)
    parts = components(pairs)
    assert len(answers) == len(parts)
    for answer, part in zip(answers, parts, strict=True):
        assert not answer.legal or ring_of(part) == answer.ranks
    assert all(answer.legal for answer in check_pairs(platform, pairs, any_group=True))
