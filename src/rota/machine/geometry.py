"""The shape of a replica group before any wiring: nodes, chips, lanes, racks, pods, and what one member is told.

Which rings a shape gets is decided in `group`; whether it is legal, in `legality`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import HIGH, Source
from rota.isa.enums import PodType
from rota.machine.platform import Platform, Shape
from rota.machine.topology import node_of, pod_node_of, pod_of, rack_of, routing_id

_SYMMETRY: Final = Source("platforms", "4.2", HIGH)

NETWORK_PEER: Final = -1
"""Device number of a peer that is reached by the network. Source: select §3.2, high."""

POD_PEER: Final = -2
"""Device number of a peer on another node of the same pod. Source: select §3.2, high."""

NO_TOPOLOGY: Final = 0
DEVICES_IN_ROW: Final = 1
DEVICES_IN_COLUMN: Final = 2
TOPOLOGY_SOURCE: Final = Source("select", "3.2", HIGH)
"""Topology modes of a group: none, four whole chips in a row, four in a column."""

ROW_OF_CHIPS: Final = 4
"""Chips of a group with a topology mode; the groups are those of 16 ranks on Trn2 at LNC 2.
Source: platforms §8, high; 32 ranks at LNC 1, convention."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the ranks of one replica group stand. A chip is a global number: node * chips of a node + chip in node."""

    ranks: tuple[int, ...]  # members in the caller's order
    nodes: tuple[int, ...]  # ascending
    chips: tuple[int, ...]  # ascending
    per_chip: int  # ranks of the group on each chip; 0 when chips differ
    lanes: tuple[int, ...]  # lanes of every chip, ascending; () when chips differ
    local_ranks: tuple[int, ...]  # rank % ranks of a node, of every node, ascending; () when nodes differ
    local_rank_n: int  # ranks on each node; 0 when nodes differ
    racks: tuple[int, ...]  # ascending; () without racks
    local_rack_rank_n: int  # ranks of the group in each rack; 0 when racks differ or there are none
    pods: tuple[int, ...]  # ascending
    enable_pod: bool  # several nodes, all of one pod
    use_net: bool  # several nodes, not all of one pod
    topo_mode: int  # NO_TOPOLOGY, DEVICES_IN_ROW or DEVICES_IN_COLUMN
    whole_chips: bool  # every chip has all its ranks in the group

    @property
    def rank_n(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def node_n(self) -> int:
        """Nodes the group has ranks on."""
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Peer:
    """What one member is told of another, or of itself. Source: select §3.2, high."""

    neuron_dev: int  # device, or NETWORK_PEER, or POD_PEER
    rid: int
    tpb_index: int  # first physical core of the rank in its device
    pod_node_id: int
    reservation_id: int


@dataclass(frozen=True, slots=True)
class CommInfo:
    """What one member is told of its group, in the order of the runtime's record. Source: select §3.2, high."""

    neuron_dev: int
    rank: int  # position in the group
    rank_n: int
    local_rank_n: int  # ranks of the group on this node
    local_rack_rank_n: int  # ranks of the group in this rack
    node: int  # position among the nodes of the group
    node_n: int
    enc_topo_mode: int
    enable_pod: bool
    use_net: bool
    pod: int  # position among the pods of the group
    pod_n: int
    pod_node: int  # node in its pod
    pod_node_n: int  # nodes of the group in this pod
    peers: tuple[Peer, ...]  # one for each position in the group


def geometry(platform: Platform, ranks: Sequence[int]) -> Geometry:
    """Return where the ranks of a group stand.

    Raises:
        UsageError: there is no rank, or one is outside the machine or named twice.
    """
    members = _members(platform, ranks)
    lanes_of = lanes_by_chip(platform, members)
    chips = tuple(lanes_of)
    lane_sets = set(lanes_of.values())
    lanes = next(iter(lane_sets)) if len(lane_sets) == 1 else ()
    local = local_ranks_by_node(platform, members)
    local_sets = set(local.values())
    local_ranks = next(iter(local_sets)) if len(local_sets) == 1 else ()
    counts = {len(here) for here in local.values()}
    nodes = tuple(local)
    pods = tuple(sorted({pod_of(platform, node) for node in nodes}))
    in_one_pod = len(pods) == 1 and platform.pod_nodes > 1
    racks = _ranks_of_racks(platform, lanes_of)
    return Geometry(
        ranks=members,
        nodes=nodes,
        chips=chips,
        per_chip=len(lanes),
        lanes=lanes,
        local_ranks=local_ranks,
        local_rank_n=counts.pop() if len(counts) == 1 else 0,
        racks=tuple(racks),
        local_rack_rank_n=next(iter(racks.values())) if len(set(racks.values())) == 1 else 0,
        pods=pods,
        enable_pod=len(nodes) > 1 and in_one_pod,
        use_net=len(nodes) > 1 and not in_one_pod,
        topo_mode=_topology_mode(platform, nodes, chips, len(lanes)),
        whole_chips=len(lanes) == platform.ranks_per_chip,
    )


def lanes_by_chip(platform: Platform, ranks: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return global chip -> its lanes among the ranks, both ascending."""
    return _split(ranks, platform.ranks_per_chip)


def local_ranks_by_node(platform: Platform, ranks: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return node -> its ranks as numbers on the node, both ascending."""
    return _split(ranks, platform.node_ranks)


def comm_info(platform: Platform, group: Geometry, rank: int) -> CommInfo:
    """Return what one member is told of its group.

    A peer on another node is `NETWORK_PEER`, unless both nodes are of one peer-to-peer pod, then `POD_PEER`. Behind a
    switch every chip of the pod is addressed directly and keeps its device number.

    Raises:
        UsageError: `rank` is no member.

    Source: select §3.2, high; the numbering of pods, cores and reservations, convention.
    """
    if rank not in group.ranks:
        raise UsageError(f"comm info: rank {rank} is not in the group, expected one of its {group.rank_n} ranks")
    chip = rank // platform.ranks_per_chip
    node = node_of(platform, chip)
    pod = pod_of(platform, node)
    rack = _rack(platform, chip)
    chips = [member // platform.ranks_per_chip for member in group.ranks]
    nodes = [node_of(platform, other) for other in chips]
    return CommInfo(
        neuron_dev=device(platform, chip),
        rank=group.ranks.index(rank),
        rank_n=group.rank_n,
        local_rank_n=nodes.count(node),
        local_rack_rank_n=sum(_rack(platform, other) == rack for other in chips) if group.racks else 0,
        node=group.nodes.index(node),
        node_n=group.node_n,
        enc_topo_mode=group.topo_mode,
        enable_pod=group.enable_pod,
        use_net=group.use_net,
        pod=group.pods.index(pod),
        pod_n=len(group.pods),
        pod_node=pod_node_of(platform, node),
        pod_node_n=sum(pod_of(platform, other) == pod for other in group.nodes),
        peers=tuple(_peer(platform, node, member) for member in group.ranks),
    )


def device(platform: Platform, chip: int) -> int:
    """Return the device number of a global chip on its instance."""
    return chip % (platform.chips * platform.servers)


def intra_groups(platform: Platform, group: Geometry) -> tuple[tuple[int, ...], ...]:
    """Return the members of each node, by node and in the order of the group. Source: compose §13.1, high."""
    members: dict[int, list[int]] = {node: [] for node in group.nodes}
    for rank in group.ranks:
        members[rank // platform.node_ranks].append(rank)
    return tuple(map(tuple, members.values()))


def inter_groups(platform: Platform, group: Geometry) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each index on the node, one of every node, both ascending.

    Raises:
        UnsupportedError: the nodes differ in the ranks they have in the group.

    Source: compose §13.1, high.
    """
    difference = asymmetry(platform, group)
    if difference is not None:
        raise UnsupportedError(difference, source=_SYMMETRY)
    return tuple(tuple(platform.node_ranks * node + local for node in group.nodes) for local in group.local_ranks)


def asymmetry(platform: Platform, group: Geometry) -> str | None:
    """Say which node has other ranks in the group than the first node has, and which; None when all are alike.

    Source: platforms §4.2, high (the same number of ranks on each node, and the same indices).
    """
    if group.local_ranks:
        return None
    local = local_ranks_by_node(platform, group.ranks)
    sets = list(local.values())
    usual = max(sets, key=lambda here: (sets.count(here), len(here)))
    model = next(node for node, here in local.items() if here == usual)
    odd = next(node for node, here in local.items() if here != usual)
    if len(local[odd]) != len(usual):
        return f"node {odd} has {_count(local[odd])} of the group where node {model} has {len(usual)}"
    own = sorted(set(local[odd]) - set(usual))[0]
    missing = sorted(set(usual) - set(local[odd]))[0]
    return f"node {odd} has its local rank {own} in the group where node {model} has its local rank {missing}"


# --- parts ------------------------------------------------------------------------------------------------------------


def _members(platform: Platform, ranks: Sequence[int]) -> tuple[int, ...]:
    members = tuple(int(rank) for rank in ranks)
    if not members:
        raise UsageError("group: expected at least one rank, got none")
    seen: set[int] = set()
    for rank in members:
        if not 0 <= rank < platform.ranks:
            raise UsageError(f"group: rank {rank} is not on {platform.name}, expected 0 to {platform.ranks - 1}")
        if rank in seen:
            raise UsageError(f"group: rank {rank} is named twice, name each rank once")
        seen.add(rank)
    return members


def _split(ranks: Iterable[int], size: int) -> dict[int, tuple[int, ...]]:
    parts: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        parts.setdefault(rank // size, []).append(rank % size)
    return {part: tuple(here) for part, here in parts.items()}


def _count(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'}"


def _rack(platform: Platform, chip: int) -> tuple[int, int]:
    """Return the pod and the rack in it."""
    return pod_of(platform, node_of(platform, chip)), rack_of(platform, chip)


def _ranks_of_racks(platform: Platform, lanes_of: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return rack -> ranks of the group there, over all instances; empty without racks."""
    counts: dict[int, int] = {}
    for chip, lanes in lanes_of.items() if platform.servers_per_rack else ():
        rack = node_of(platform, chip) // platform.servers_per_rack
        counts[rack] = counts.get(rack, 0) + len(lanes)
    return dict(sorted(counts.items()))


def _topology_mode(platform: Platform, nodes: Sequence[int], chips: Sequence[int], per_chip: int) -> int:
    """Return the mode of a group of four whole chips of one node. Source: `ROW_OF_CHIPS`."""
    torus = platform.shape is Shape.CUBE and platform.rows == platform.columns == ROW_OF_CHIPS
    whole = per_chip == platform.ranks_per_chip
    if not torus or platform.port_lane is None or len(nodes) > 1 or len(chips) != ROW_OF_CHIPS or not whole:
        return NO_TOPOLOGY
    places = [divmod(chip % platform.chips, platform.columns) for chip in chips]
    if len({row for row, _ in places}) == 1:
        return DEVICES_IN_ROW
    return DEVICES_IN_COLUMN if len({column for _, column in places}) == 1 else NO_TOPOLOGY


def _peer(platform: Platform, own_node: int, rank: int) -> Peer:
    chip, lane = divmod(rank, platform.ranks_per_chip)
    node = node_of(platform, chip)
    pod = pod_of(platform, node)
    seen = device(platform, chip)
    if node != own_node:
        one_pod = platform.pod_type is not PodType.NONE and pod == pod_of(platform, own_node)
        if not one_pod:
            seen = NETWORK_PEER
        elif platform.pod_type is PodType.P2P:
            seen = POD_PEER
    return Peer(seen, routing_id(platform, chip), lane * platform.lnc, pod_node_of(platform, node), pod)
