"""Where the ranks of a group stand, and what one member is told of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import pytest

from rota.errors import UnsupportedError, UsageError
from rota.machine.geometry import (
    NETWORK_PEER,
    POD_PEER,
    CommInfo,
    Geometry,
    Peer,
    asymmetry,
    comm_info,
    geometry,
    inter_groups,
    intra_groups,
)
from rota.machine.platform import Platform, load_platform


def at(name: str, ranks: Iterable[int], *, lnc: int | None = None, nodes: int = 1) -> tuple[Platform, Geometry]:
    platform = load_platform(name, lnc=lnc, nodes=nodes)
    return platform, geometry(platform, tuple(ranks))


def test_a_row_of_trn2() -> None:
    """Every field of a whole row of chips, given in another order."""
    _, group = at("trn2.48xlarge", range(31, 15, -1))
    assert group == Geometry(
        ranks=tuple(range(31, 15, -1)),
        nodes=(0,),
        chips=(4, 5, 6, 7),
        per_chip=4,
        lanes=(0, 1, 2, 3),
        local_ranks=tuple(range(16, 32)),
        local_rank_n=16,
        racks=(),
        local_rack_rank_n=0,
        pods=(0,),
        enable_pod=False,
        use_net=False,
        topo_mode=1,
        whole_chips=True,
    )
    assert (group.rank_n, group.node_n) == (16, 1)


def test_chips_that_differ() -> None:
    """Without the same lanes on every chip there is no number of ranks per chip."""
    _, group = at("trn2.48xlarge", (0, 1, 2, 3, 4, 5))
    assert (group.per_chip, group.lanes, group.whole_chips) == (0, (), False)
    assert at("trn2.48xlarge", (0, 5))[1].lanes == ()


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "expected at least one rank, got none"),
        ([0, 256], r"rank 256 is not on trn2u\.48xlarge, expected 0 to 255"),
        ([-1], "rank -1 is not on"),
        ([7, 7], "rank 7 is named twice"),
    ],
)
def test_ranks_that_are_no_group(ranks: list[int], message: str) -> None:
    """An empty group, a rank outside all nodes and a rank named twice are the caller's mistakes."""
    with pytest.raises(UsageError, match=message):
        at("trn2u.48xlarge", ranks, nodes=4)


@pytest.mark.parametrize(
    ("chips", "mode"),
    [((0, 1, 2, 3), 1), ((12, 13, 14, 15), 1), ((1, 5, 9, 13), 2), ((0, 1, 4, 5), 0), (range(8), 0), ((0, 1, 2), 0)],
)
def test_topology_mode(chips: Iterable[int], mode: int) -> None:
    """Select §3.2: four whole chips in a row are mode 1, in a column 2; 16 ranks at LNC 2 and 32 at LNC 1."""
    for lnc, per_chip in ((2, 4), (1, 8)):
        ranks = [per_chip * chip + lane for chip in chips for lane in range(per_chip)]
        assert at("trn2.48xlarge", ranks, lnc=lnc)[1].topo_mode == mode


def test_topology_mode_is_for_whole_chips_of_trn2() -> None:
    """Platforms §8: the modes are of 16-rank groups of Trn2, not of one lane, two nodes or Trn1."""
    assert at("trn2.48xlarge", range(0, 16, 4))[1].topo_mode == 0
    assert at("trn1.32xlarge", range(8))[1].topo_mode == 0
    assert at("trn2.48xlarge", [*range(16), *range(64, 80)], nodes=2)[1].topo_mode == 0


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "pod", "net"),
    [
        ("trn2.48xlarge", 1, range(64), False, False),
        ("trn2.48xlarge", 4, range(256), False, True),
        ("trn2u.48xlarge", 4, range(64), False, False),
        ("trn2u.48xlarge", 4, range(256), True, False),
        ("trn2u.48xlarge", 4, (0, 192), True, False),
        ("trn2u.48xlarge", 2, range(128), True, False),
        ("trn2u.48xlarge", 8, range(512), False, True),
        ("trn2u.48xlarge", 8, (192, 256), False, True),
        ("trn3pds98", 1, range(576), True, False),
        ("trn3pds98", 2, (0, 576), False, True),
        ("trn1.32xlarge", 2, (0, 32), False, True),
    ],
)
def test_pod_and_network(name: str, nodes: int, ranks: Iterable[int], pod: bool, net: bool) -> None:
    """Compose §12.1: a group of one node uses neither; of several, exactly one of pod and network."""
    _, group = at(name, ranks, nodes=nodes)
    assert (group.enable_pod, group.use_net) == (pod, net)
    assert group.node_n == 1 or pod != net


def test_racks() -> None:
    """Topology §5: 18 servers are a rack on Gen2, 2 on Gen1, and 256 ranks on 8 + 8 servers are 128 in each rack."""
    _, group = at("trn3pds98", [*range(128), *range(288, 416)])
    assert (group.racks, group.local_rack_rank_n) == ((0, 1), 128)
    assert at("trn3pds98", range(576))[1].local_rack_rank_n == 288
    assert at("trn3pds98", (0, 16, 288))[1].local_rack_rank_n == 0
    assert at("trn3pds98", (0, 576), nodes=2)[1].racks == (0, 2)
    assert at("trn3pds98-gen1", range(256))[1].local_rack_rank_n == 128
    assert at("trn3pds98-gen1", range(512), lnc=1)[1].local_rack_rank_n == 256


def test_parts_of_a_group() -> None:
    """Compose §13.1: intra groups are the members of a node, inter groups the ranks of one index on every node."""
    platform, group = at("trn2.48xlarge", (65, 1, 0, 64, 193, 192), nodes=4)
    assert (group.nodes, group.local_ranks, group.local_rank_n) == ((0, 1, 3), (0, 1), 2)
    assert intra_groups(platform, group) == ((1, 0), (65, 64), (193, 192))
    assert inter_groups(platform, group) == ((0, 64, 192), (1, 65, 193))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([*range(64), 64], "node 1 has 1 rank of the group where node 0 has 64"),
        ([0, 64, 65, 128, 129], "node 0 has 1 rank of the group where node 1 has 2"),
        ([0, 64, 129], "node 2 has its local rank 1 in the group where node 0 has its local rank 0"),
    ],
)
def test_nodes_that_differ(ranks: list[int], words: str) -> None:
    """Platforms §4.2: a group has the same number of ranks on every node and the same indices; else one is named."""
    platform, group = at("trn2.48xlarge", ranks, nodes=4)
    assert group.local_ranks == ()
    assert asymmetry(platform, group) == words
    with pytest.raises(UnsupportedError, match=words):
        inter_groups(platform, group)


# --- what a member is told --------------------------------------------------------------------------------------------


def test_the_record_has_the_fields_of_the_runtime() -> None:
    """Select §3.2: the fields of the communicator record and of a peer, in order."""
    assert [each.name for each in fields(CommInfo)] == [
        "neuron_dev", "rank", "rank_n", "local_rank_n", "local_rack_rank_n", "node", "node_n", "enc_topo_mode",
        "enable_pod", "use_net", "pod", "pod_n", "pod_node", "pod_node_n", "peers",
    ]  # fmt: skip
    assert [each.name for each in fields(Peer)] == ["neuron_dev", "rid", "tpb_index", "pod_node_id", "reservation_id"]


def test_on_one_node() -> None:
    """A member of a pair of chips on Trn2: chip 3 has routing id 1, and lane 1 begins at core 2."""
    platform, group = at("trn2.48xlarge", (1, 13))
    info = comm_info(platform, group, 13)
    assert (info.neuron_dev, info.rank, info.rank_n, info.local_rank_n) == (3, 1, 2, 2)
    assert info.peers == (Peer(0, 0, 2, 0, 0), Peer(3, 1, 2, 0, 0))
    with pytest.raises(UsageError, match="rank 2 is not in the group"):
        comm_info(platform, group, 2)


def test_network_peers() -> None:
    """Select §3.2: a peer on another node is -1 without a pod; devices are numbered on each instance."""
    platform, group = at("trn2.48xlarge", (4, 68, 5, 69), nodes=2)
    info = comm_info(platform, group, 69)
    assert (info.neuron_dev, info.node, info.node_n, info.local_rank_n, info.use_net) == (1, 1, 2, 2, True)
    assert [peer.neuron_dev for peer in info.peers] == [NETWORK_PEER, 1, NETWORK_PEER, 1]


def test_pod_peers() -> None:
    """Select §3.2: a peer on another node of the pod is -2, with its number there; of another pod -1."""
    platform, group = at("trn2u.48xlarge", range(0, 512, 64), nodes=8)
    info = comm_info(platform, group, 320)
    assert [peer.neuron_dev for peer in info.peers] == [NETWORK_PEER] * 4 + [POD_PEER, 0, POD_PEER, POD_PEER]
    assert [peer.pod_node_id for peer in info.peers] == [0, 1, 2, 3] * 2
    assert [peer.reservation_id for peer in info.peers] == [0] * 4 + [1] * 4
    assert (info.pod, info.pod_n, info.pod_node, info.pod_node_n) == (1, 2, 1, 4)


def test_switch_peers_keep_their_devices() -> None:
    """Topology §5: behind the switch a chip is nec_dev = server * chips + chip, with rid = server << 4 | chip."""
    platform, group = at("trn3pds98", range(0, 576, 4))
    info = comm_info(platform, group, 4 * 143)
    assert [peer.neuron_dev for peer in info.peers] == list(range(144))
    assert [peer.rid for peer in info.peers] == [server << 4 | chip for server in range(36) for chip in range(4)]
    assert (info.local_rack_rank_n, info.local_rank_n, info.node, info.node_n) == (72, 4, 35, 36)
