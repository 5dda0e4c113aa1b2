"""Which links a transfer between two ranks uses, on every shape of machine.

On the cube a transfer crosses the routing id bits in ascending order (e-cube): dimension by dimension, minimal, and
never out of a subcube. Between nodes it takes the network, or the Z cables of a pod, or the switches.

Source: topology §6 for the cube, convention; §5 for pods and switches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze_columns
from rota.machine.platform import Platform, Shape
from rota.machine.topology import LinkClass, dimension, pod_node_of, pod_of, routing_id

CLASSES: Final = tuple(LinkClass)
PAIRWISE: Final = frozenset({LinkClass.CABLE, LinkClass.POD})
"""Links that join two chips; of every other class a chip has one port, which all its transfers share.
Source: platforms §3.6, medium."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The links of many transfers, one entry for each transfer and link, in no particular order.

    Attributes:
        transfer: which transfer.
        kind: index into CLASSES.
        port: the directed cable, chip * chips + next chip, or the chip whose port it is.
    """

    transfer: I64
    kind: I64
    port: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Hop:
    """One link of some transfers."""

    kind: LinkClass
    where: Bool
    start: I64
    end: I64


def routes(platform: Platform, source: I64, target: I64) -> Routes:
    """Return the links between two ranks each; two ranks of one chip use none.

    Args:
        source, target: machine ranks, equally many.
    """
    chips = platform.chip_count
    found = list(_hops(platform, source // platform.ranks_per_chip, target // platform.ranks_per_chip))
    transfer = [np.flatnonzero(hop.where) for hop in found]
    port = [
        hop.start[which] * chips + hop.end[which] if hop.kind in PAIRWISE else hop.start[which]
        for hop, which in zip(found, transfer, strict=True)
    ]
    kind = [np.full(which.size, CLASSES.index(hop.kind)) for hop, which in zip(found, transfer, strict=True)]
    empty = np.zeros(0, np.int64)
    return Routes(
        transfer=np.concatenate([empty, *transfer]),
        kind=np.concatenate([empty, *kind]),
        port=np.concatenate([empty, *port]),
    )


def through_gateway(platform: Platform, source: I64, target: I64) -> Bool:
    """Return which transfers leave or enter a chip of a cube by a port that their rank does not own.

    On machines whose ports belong to no rank there is none.
    """
    per_chip, chips = platform.ranks_per_chip, platform.chips
    start, end = source // per_chip, target // per_chip
    inside = (start != end) & (start // chips == end // chips)
    if platform.port_lane is None or not dimension(platform):
        return np.zeros(source.size, np.bool_)
    labels = np.array([routing_id(platform, chip) for chip in range(chips)], np.int64)
    differ = labels[start % chips] ^ labels[end % chips]
    first = np.zeros(source.size, np.int64)
    last = np.zeros(source.size, np.int64)
    for bit in reversed(range(dimension(platform))):
        first = np.where(differ >> bit & 1, bit, first)
    for bit in range(dimension(platform)):
        last = np.where(differ >> bit & 1, bit, last)
    owner = np.array(platform.port_lane, np.int64)
    engine = platform.lanes_per_engine
    leaves = owner[start % chips, first] != source % per_chip // engine
    enters = owner[end % chips, last] != target % per_chip // engine
    through: Bool = inside & (leaves | enters)
    return through


def _hops(platform: Platform, start: I64, end: I64) -> Iterator[_Hop]:
    match platform.shape:
        case Shape.SWITCH:
            yield from _switch_hops(platform, start, end)
        case Shape.CUBE | Shape.RING | Shape.CHAIN:
            here, away = yield from _between_nodes(platform, start, end)
            walk = _cube_hops if platform.shape is Shape.CUBE else _line_hops
            yield from walk(platform, here, np.where(away, here, end))


def _between_nodes(platform: Platform, start: I64, end: I64) -> Generator[_Hop, None, tuple[I64, Bool]]:
    """Yield the hops to the target's node; return where the transfers stand then, and which are already there.

    The network reaches any chip. A Z cable joins equal places of neighbouring nodes of a pod's ring, so a transfer in a
    pod goes round the ring first, and then through the node.
    """
    chips = platform.chips
    nodes = np.arange(platform.nodes)
    pod = np.array([pod_of(platform, int(node)) for node in nodes])
    place = np.array([pod_node_of(platform, int(node)) for node in nodes])
    first, last = start // chips, end // chips
    network = pod[first] != pod[last]
    yield _Hop(LinkClass.NETWORK, network, start, end)
    here, size = start, platform.pod_nodes
    for _ in range(size // 2):
        node = here // chips
        gap = (place[last] - place[node]) % size
        moves = ~network & (gap != 0)
        step = np.where(gap <= size // 2, 1, -1)
        onward = _node_at(pod, place, pod[node], (place[node] + step) % size)
        there = np.where(moves, onward * chips + here % chips, here)
        yield _Hop(LinkClass.POD, moves, here, there)
        here = there
    return here, network


def _node_at(pod: I64, place: I64, wanted_pod: I64, wanted_place: I64) -> I64:
    table = np.zeros((int(pod.max()) + 1, int(place.max()) + 1), np.int64)
    table[pod, place] = np.arange(pod.size)
    found: I64 = table[wanted_pod, np.minimum(wanted_place, table.shape[1] - 1)]
    return found


def _cube_hops(platform: Platform, start: I64, end: I64) -> Iterator[_Hop]:
    chips = platform.chips
    base = start - start % chips
    labels = np.array([routing_id(platform, chip) for chip in range(chips)], np.int64)
    chip_of = np.argsort(labels)
    here, goal = labels[start % chips], labels[end % chips]
    for bit in range(dimension(platform)):
        moves = ((here ^ goal) >> bit & 1).astype(np.bool_)
        there = np.where(moves, here ^ (1 << bit), here)
        yield _Hop(LinkClass.CABLE, moves, base + chip_of[here], base + chip_of[there])
        here = there


def _line_hops(platform: Platform, start: I64, end: I64) -> Iterator[_Hop]:
    """Yield the hops along a chain, or the shorter way round a ring, upwards where both are equal."""
    chips = platform.chips
    base, here, goal = start - start % chips, start % chips, end % chips
    up = goal > here
    if platform.shape is Shape.RING:
        up = 2 * ((goal - here) % chips) <= chips
    for _ in range(chips - 1):
        moves = here != goal
        if not moves.any():
            return
        there = np.where(moves, (here + np.where(up, 1, -1)) % chips, here)
        yield _Hop(LinkClass.CABLE, moves, base + here, base + there)
        here = there


def _switch_hops(platform: Platform, start: I64, end: I64) -> Iterator[_Hop]:
    """Yield the hops between servers: to the same place of the other rack first, then within the rack or server."""
    chips, servers, per_rack = platform.chips, platform.servers, platform.servers_per_rack
    network = start // (chips * servers) != end // (chips * servers)
    yield _Hop(LinkClass.NETWORK, network, start, end)
    here = np.where(network, end, start)
    server, goal = here // chips, end // chips
    crosses = server % servers // per_rack != goal % servers // per_rack
    opposite = server - server % servers + (server % servers + per_rack) % servers
    there = np.where(crosses, opposite * chips + here % chips, here)
    yield _Hop(LinkClass.INTER_RACK, crosses, here, there)
    here = there
    rack = here // chips != goal
    yield _Hop(LinkClass.RACK, rack, here, end)
    yield _Hop(LinkClass.SERVER, ~rack & (here != end), here, end)
