"""Laws of every wiring, over all kinds of chip sets and lane sets, and over all machines."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from rota.errors import UnsupportedError
from rota.machine.cycles import first_cycle, first_path
from rota.machine.group import Wiring, wire
from rota.machine.platform import Platform, known_platforms, load_platform
from rota.machine.topology import LinkClass, distance, link_class, port_owner

PLATFORMS = {name: load_platform(name) for name in ("trn1.32xlarge", "trn2.48xlarge")}

platforms = st.sampled_from(sorted(PLATFORMS)).map(PLATFORMS.__getitem__)
chip_sets = st.sets(st.integers(0, 15), min_size=1)


@st.composite
def regular_groups(draw: st.DrawFn) -> tuple[Platform, tuple[int, ...]]:
    """Draw a machine and a group with all lanes or one lane of some chips."""
    platform = draw(platforms)
    per_chip = platform.ranks_per_chip
    lanes = draw(st.sampled_from([range(per_chip), *(range(lane, lane + 1) for lane in range(per_chip))]))
    return platform, tuple(per_chip * chip + lane for chip in sorted(draw(chip_sets)) for lane in lanes)


@st.composite
def any_groups(draw: st.DrawFn) -> tuple[Platform, tuple[int, ...]]:
    """Draw a machine and any ranks of it, in any order."""
    platform = draw(platforms)
    return platform, tuple(draw(st.lists(st.integers(0, platform.ranks - 1), unique=True, min_size=1)))


def wired(platform: Platform, ranks: tuple[int, ...]) -> Wiring | None:
    try:
        return wire(platform, ranks)
    except UnsupportedError:
        return None


@given(st.one_of(regular_groups(), any_groups()))
def test_rings_visit_every_rank_once_and_share_no_directed_cable(case: tuple[Platform, tuple[int, ...]]) -> None:
    """Every ring visits each rank once over chips that share a cable, and no two hops use the same directed cable."""
    platform, ranks = case
    wiring = wired(platform, ranks)
    if wiring is None or len(ranks) == 1:
        return
    assert wiring.channels
    used: list[int] = []
    for channel in wiring.channels:
        assert sorted(channel.order) == sorted(ranks)
        for i, rank in enumerate(channel.order):
            chip = rank // platform.ranks_per_chip
            next_chip = channel.order[(i + 1) % len(ranks)] // platform.ranks_per_chip
            if chip == next_chip:
                assert (channel.cables[i], channel.gateway[i]) == (-1, False)
            else:
                assert distance(platform, chip, next_chip) == 1
                assert channel.cables[i] == 16 * chip + next_chip
                used.append(channel.cables[i])
    assert len(used) == len(set(used))


@given(regular_groups())
def test_gateways_are_the_hops_without_two_owners(case: tuple[Platform, tuple[int, ...]]) -> None:
    """A hop has a gateway exactly when it leaves or enters through a port that its rank does not own."""
    platform, ranks = case
    wiring = wired(platform, ranks)
    for channel in wiring.channels if wiring else ():
        for i, rank in enumerate(channel.order):
            (chip, lane), (next_chip, next_lane) = (
                divmod(r, platform.ranks_per_chip) for r in (rank, channel.order[(i + 1) % len(ranks)])
            )
            owners = (lane, next_lane)
            if chip != next_chip and platform.port_lane is not None:
                assert channel.gateway[i] == (
                    owners != (port_owner(platform, chip, next_chip), port_owner(platform, next_chip, chip))
                )
            else:
                assert not channel.gateway[i]


@given(regular_groups())
def test_a_cycle_with_all_lanes_needs_no_gateway(case: tuple[Platform, tuple[int, ...]]) -> None:
    """Topology §4: with all lanes of a cycle of chips each hop between chips joins the two owners of its cable."""
    platform, ranks = case
    chips = {rank // platform.ranks_per_chip for rank in ranks}
    if len(ranks) == len(chips) * platform.ranks_per_chip and first_cycle(platform, chips) is not None:
        assert not any(flag for channel in wire(platform, ranks).channels for flag in channel.gateway)


@given(regular_groups())
def test_channel_count(case: tuple[Platform, tuple[int, ...]]) -> None:
    """Topology §4: 4 channels for the node, 2 for a cycle, 1 for a pair and for a chain with all lanes, else none."""
    platform, ranks = case
    chips = sorted({rank // platform.ranks_per_chip for rank in ranks})
    everything = len(ranks) == len(chips) * platform.ranks_per_chip
    if len(chips) == 1:
        expected = {1: 0, 2: 1, 4: 2}[len(ranks)]
    elif len(chips) == 16:
        expected = 4
    elif first_cycle(platform, chips) is not None:
        expected = 2
    elif first_path(platform, chips) is not None and (everything or len(chips) == 2):
        expected = 1
    else:
        expected = 0
    wiring = wired(platform, ranks)
    assert (len(wiring.channels) if wiring else 0) == expected


@given(any_groups(), st.randoms(use_true_random=False))
def test_member_order_decides_nothing(case: tuple[Platform, tuple[int, ...]], random: object) -> None:
    """The rings of a group do not depend on the order of its members, nor does a refusal."""
    platform, ranks = case
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = wired(platform, ranks), wired(platform, tuple(shuffled))
    assert (one and one.channels) == (other and other.channels)


@given(platforms, st.sets(st.integers(0, 15), min_size=2, max_size=6))
def test_first_walks_agree_with_brute_force(platform: Platform, chips: set[int]) -> None:
    """The search finds the lexicographically first open walk, and a closed one exactly when there is one."""
    walks = [
        walk
        for walk in permutations(sorted(chips))
        if all(distance(platform, walk[i], walk[i + 1]) == 1 for i in range(len(walk) - 1))
    ]
    assert first_path(platform, chips) == (walks[0] if walks else None)
    closed = [walk for walk in walks if len(walk) > 2 and distance(platform, walk[0], walk[-1]) == 1]
    assert (first_cycle(platform, chips) is not None) == bool(closed)


# --- all machines, logical core sizes, and several nodes -------------------------------------------------------------

EVERY = [
    load_platform(name, lnc=lnc, nodes=nodes)
    for name in known_platforms()
    for lnc in load_platform(name).lncs
    for nodes in ((1, 2, 4) if load_platform(name).network else (1,))
]


@st.composite
def regular_groups_everywhere(draw: st.DrawFn) -> tuple[Platform, tuple[int, ...]]:
    """Draw any machine and a group of equal chips on every node, with some equal lanes."""
    platform = draw(st.sampled_from(EVERY))
    per_chip = platform.ranks_per_chip
    nodes = draw(st.sets(st.integers(0, platform.nodes - 1), min_size=1, max_size=6))
    chips = draw(st.sets(st.integers(0, platform.chips - 1), min_size=1))
    lanes = draw(st.one_of(st.just(set(range(per_chip))), st.sets(st.integers(0, per_chip - 1), min_size=1)))
    ranks = [platform.node_ranks * node + per_chip * chip + lane for node in nodes for chip in chips for lane in lanes]
    return platform, tuple(sorted(ranks))


@given(regular_groups_everywhere())
def test_rings_of_every_machine(case: tuple[Platform, tuple[int, ...]]) -> None:
    """Every ring of every machine visits each rank once over direct links; on a node no cable is used twice."""
    platform, ranks = case
    wiring = wired(platform, ranks)
    used: list[int] = []
    for channel in wiring.channels if wiring else ():
        assert sorted(channel.order) == list(ranks)
        for i, rank in enumerate(channel.order):
            chip, other = (each // platform.ranks_per_chip for each in (rank, channel.order[(i + 1) % len(ranks)]))
            if chip == other:
                assert (channel.cables[i], channel.gateway[i]) == (-1, False)
                continue
            kind = link_class(platform, chip, other)
            assert kind is not None
            assert channel.cables[i] == chip * platform.chip_count + other
            if kind is LinkClass.CABLE:
                used.append(channel.cables[i])
    assert len(used) == len(set(used))


@given(regular_groups_everywhere())
def test_reverse_channels_are_the_reversals(case: tuple[Platform, tuple[int, ...]]) -> None:
    """The second half of the channels are the first half backwards, with links and gateways turned round."""
    platform, ranks = case
    wiring = wired(platform, ranks)
    if wiring is None or len(wiring.channels) < 2:
        return
    half = len(wiring.channels) // 2
    for forward, back in zip(wiring.channels[:half], wiring.channels[half:], strict=True):
        assert back.order == forward.order[::-1]
        chips = platform.chip_count
        turned = sorted(cable % chips * chips + cable // chips for cable in forward.cables if cable >= 0)
        assert sorted(cable for cable in back.cables if cable >= 0) == turned
        assert sum(back.gateway) == sum(forward.gateway)


@given(st.one_of(regular_groups_everywhere(), any_groups()))
def test_any_group_never_refuses(case: tuple[Platform, tuple[int, ...]]) -> None:
    """With any_group nothing is refused, and what can be wired is wired as without it."""
    platform, ranks = case
    wiring = wire(platform, ranks, any_group=True)
    strict = wired(platform, ranks)
    if strict is None:
        assert wiring.channels == ()
        assert not wiring.verdict
        assert len(wiring.warnings) == 1
    else:
        assert wiring == strict
