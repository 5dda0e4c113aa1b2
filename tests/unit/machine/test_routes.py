"""Routes: which links a transfer uses, on the cube, on lines, between nodes, and through the switches."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from rota.machine.group import wire
from rota.machine.platform import Platform, load_platform
from rota.machine.routes import CLASSES, routes, through_gateway
from rota.machine.topology import LinkClass, distance, link_class

TRN2 = load_platform("trn2.48xlarge")


def links(platform: Platform, source: int, target: int) -> list[tuple[LinkClass, int]]:
    """Return the links between two ranks, in the order in which they are taken."""
    found = routes(platform, np.array([source]), np.array([target]))
    return [(CLASSES[kind], port) for kind, port in zip(found.kind.tolist(), found.port.tolist(), strict=True)]


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
def test_the_cube_is_crossed_on_shortest_routes(name: str) -> None:
    """A transfer takes as many cables as the chips' labels differ in bits, each of them a real one."""
    platform = load_platform(name)
    per_chip, chips = platform.ranks_per_chip, platform.chip_count
    for a in range(chips):
        for b in range(chips):
            taken = links(platform, a * per_chip, b * per_chip)
            assert len(taken) == distance(platform, a, b)
            walk = [divmod(port, chips) for _, port in taken]
            assert all(distance(platform, *hop) == 1 for hop in walk)
            if walk:
                assert walk[0][0] == a
                assert walk[-1][1] == b
                assert all(x[1] == y[0] for x, y in pairwise(walk))


@pytest.mark.parametrize(("groups", "busiest"), [(range(64), 32), (range(16), 8), (range(32), 16), (range(8), 4)])
def test_link_loads_of_a_mesh(groups: range, busiest: int) -> None:
    """An all-gather mesh loads every used cable of a subcube with L x G / 2 chunks. Source: topology §6."""
    chips = sorted({rank // 4 for rank in groups})
    source = [4 * a for a in chips for b in chips if a != b]
    target = [4 * b for a in chips for b in chips if a != b]
    found = routes(TRN2, np.array(source), np.array(target))
    load = Counter(found.port.tolist())
    assert set(load.values()) == {busiest // 4}
    assert 4 * max(load.values()) == busiest


@pytest.mark.parametrize("group", [range(64), range(16), [0, 4, 8, 12], range(8), [16 * k for k in range(4)]])
def test_ring_hops_take_their_cable_and_gateway(group: list[int]) -> None:
    """A hop of a ring between neighbouring chips is its one cable, with a gateway where a port is not owned."""
    for channel in wire(TRN2, group).channels:
        order = np.array(channel.order)
        following = np.roll(order, -1)
        taken = [links(TRN2, int(a), int(b)) for a, b in zip(order, following, strict=True)]
        assert [hop[0][1] if hop else -1 for hop in taken] == list(channel.cables)
        assert through_gateway(TRN2, order, following).tolist() == list(channel.gateway)


def test_lines_take_the_shorter_way() -> None:
    """A ring of chips is walked the shorter way round, a chain the only way."""
    ring, chain = load_platform("inf2.48xlarge"), load_platform("inf2.24xlarge")
    assert [port for _, port in links(ring, 0, 22)] == [11]
    assert [divmod(port, 12) for _, port in links(ring, 0, 12)] == [(k, k + 1) for k in range(6)]
    assert [divmod(port, 6) for _, port in links(chain, 10, 4)] == [(5, 4), (4, 3), (3, 2)]


def test_pods_go_round_the_z_ring() -> None:
    """In a pod of four, neighbours are one Z cable away and the opposite node two, at the same place. Source: §5."""
    pod = load_platform("trn2u.48xlarge", nodes=4)
    assert links(pod, 0, 64) == [(LinkClass.POD, 16)]
    assert links(pod, 0, 192) == [(LinkClass.POD, 48)]
    assert [divmod(port, 64) for _, port in links(pod, 0, 128)] == [(0, 16), (16, 32)]
    assert [kind for kind, _ in links(pod, 0, 64 + 4)] == [LinkClass.POD, LinkClass.CABLE]


def test_the_network_reaches_any_chip() -> None:
    """Between nodes without a pod a transfer takes the port of its chip to the network, once."""
    far = load_platform("trn2.48xlarge", nodes=4)
    assert links(far, 5, 200) == [(LinkClass.NETWORK, 1)]


def test_switches() -> None:
    """Same server, same rack, other rack at the same place, and other rack elsewhere: one link each, but the last."""
    switch = load_platform("trn3pds98")
    assert links(switch, 0, 3) == []
    assert [kind for kind, _ in links(switch, 0, 4)] == [LinkClass.SERVER]
    assert [kind for kind, _ in links(switch, 0, 16)] == [LinkClass.RACK]
    assert [kind for kind, _ in links(switch, 0, 18 * 16)] == [LinkClass.INTER_RACK]
    assert [kind for kind, _ in links(switch, 0, 19 * 16)] == [LinkClass.INTER_RACK, LinkClass.RACK]
    assert link_class(switch, 0, 72) is LinkClass.INTER_RACK
