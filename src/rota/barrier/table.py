"""The barrier tables of a program: of every rank of its groups whom it signals and who signals it, over which bit.

A table is columns, the entries of all ranks in one; `records` gives those of one rank as the runtime keeps them. Which
peers a group gives is in `strategies`. All groups of a program share the scratch that says which peers are covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from rota.barrier.strategies import Candidates, mesh, pod, ring, switch
from rota.columns import I64, Array, freeze_columns
from rota.errors import UnsupportedError
from rota.facts import HIGH, Source
from rota.isa.barrier_records import ENTRY, MAX_DEVICES, RANKS_PER_CHIP, BarrierType
from rota.machine.geometry import Geometry, Peer, comm_info, device, geometry, intra_groups
from rota.machine.group import Outcome, decide
from rota.machine.partition import format_ranks
from rota.machine.platform import Family, Platform
from rota.machine.rings import Channel
from rota.machine.topology import node_of

DISPATCH_SOURCE: Final = Source("barrier", "3", HIGH)
INSERT_SOURCE: Final = Source("barrier", "4", HIGH)


class Strategy(Enum):
    """How the peers of a group are found; the value is what a user reads. Source: barrier §3, high."""

    SWITCH = "switch"
    RING = "ring"
    RING_AND_POD = "ring and pod"
    MESH = "mesh"


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries of one side, of all ranks; those of a rank in the order of their insertion.

    Attributes:
        owner, peer: ranks of the machine.
        kind: BarrierType.
        group: of the program, the one the entry comes from.
    """

    owner: I64
    peer: I64
    kind: I64
    bit: I64
    group: I64

    def __post_init__(self) -> None:
        freeze_columns(self)

    def of(self, rank: int) -> Entries:
        """Return the entries of one rank."""
        return self.where(self.owner == rank)

    def where(self, chosen: Array) -> Entries:
        """Return the entries of a mask, or at indices."""
        columns = (self.owner, self.peer, self.kind, self.bit, self.group)
        return Entries(*(column[chosen] for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The tables of one program.

    Attributes:
        strategies: of each group.
        send: table 0, the bits each rank sets on others.
        recv: table 1, the bits others set on it.
    """

    platform: Platform
    groups: tuple[tuple[int, ...], ...]
    strategies: tuple[Strategy, ...]
    send: Entries
    recv: Entries

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of all groups, ascending."""
        return tuple(sorted({rank for group in self.groups for rank in group}))

    @property
    def switch(self) -> bool:
        """Whether the steps are those of the switch family."""
        return is_switch(self.platform)


@dataclass(slots=True)
class Scratch:
    """Peers already covered, by side: the vectors a composer keeps while it builds the tables of its groups.

    A pair is `owner * ranks of the machine + peer`, ascending. Source: barrier §2.4 and §4, high; each side counts for
    itself, convention.
    """

    ranks: int
    encountered: list[I64] = field(default_factory=lambda: [np.zeros(0, np.int64), np.zeros(0, np.int64)])

    def insert(self, side: int, entries: Entries) -> Entries:
        """Return the entries whose peers are new to their owners on a side, and take these peers as covered."""
        pairs = entries.owner * self.ranks + entries.peer
        _, first = np.unique(pairs, return_index=True)
        fresh = np.zeros(pairs.size, np.bool_)
        fresh[first] = True
        fresh &= ~np.isin(pairs, self.encountered[side])
        self.encountered[side] = _union(self.encountered[side], pairs)
        return entries.where(fresh)

    def mark(self, owner: I64, peer: I64) -> None:
        """Take peers as covered on both sides, without entries."""
        pairs = owner * self.ranks + peer
        self.encountered = [_union(side, pairs) for side in self.encountered]


def is_switch(platform: Platform) -> bool:
    """Return whether a machine is of the switch family. Source: barrier §3, high."""
    return platform.family is Family.TRN3PDS98


def construct(platform: Platform, groups: Sequence[Sequence[int]]) -> Program:
    """Return the tables of all ranks of a program's groups.

    Raises:
        UsageError: a group is empty, or a rank is outside the machine or twice in a group.
        UnsupportedError: the machine has no barrier for the shape of a group (D1), or a group on a switch machine
            breaks an invariant (D2, D3, D4) or is no box.

    Source:
        barrier §3 and §4, high.
    """
    scratch = Scratch(platform.ranks)
    shapes = [geometry(platform, group) for group in groups]
    strategies: list[Strategy] = []
    sides: tuple[list[Entries], list[Entries]] = ([], [])
    for index, at in enumerate(shapes):
        strategy = dispatch(platform, at)
        strategies.append(strategy)
        for found in candidates(platform, at, strategy):
            for side, rows in enumerate((found.send, found.recv)):
                sides[side].append(scratch.insert(side, _entries(rows, index)))
            scratch.mark(*found.marks)
    send, recv = (_joined(parts) for parts in sides)
    return Program(platform, tuple(at.ranks for at in shapes), tuple(strategies), send, recv)


def dispatch(platform: Platform, at: Geometry) -> Strategy:
    """Return the strategy of a group: the first of switch, ring, and mesh that fits.

    Raises:
        UnsupportedError: D1, none fits: the group has no ring, and is no shape a mesh takes.

    Source:
        barrier §3, high for the order; when a ring exists and which meshes are taken, convention.
    """
    if is_switch(platform):
        return Strategy.SWITCH
    if at.enable_pod:
        return Strategy.RING_AND_POD
    if len(at.chips) > 1 and _flat_rings(platform, at):
        return Strategy.RING
    chips, (per_chip, rest) = len(at.chips), divmod(at.rank_n, len(at.chips))
    if rest or per_chip not in RANKS_PER_CHIP or chips > MAX_DEVICES:
        raise UnsupportedError(
            f"barrier: [nec_dev {device(platform, at.ranks[0] // platform.ranks_per_chip)}] group "
            f"{format_ranks(at.ranks)} has no ring, and a mesh takes up to {MAX_DEVICES} chips with "
            f"{', '.join(map(str, RANKS_PER_CHIP))} ranks each: got chip count {chips}, ranks per chip {per_chip}"
            f"{' and more on some' if rest else ''}; give parts of the group that have (D1, status 2)",
            source=DISPATCH_SOURCE,
        )
    return Strategy.MESH


def candidates(platform: Platform, at: Geometry, strategy: Strategy) -> tuple[Candidates, ...]:
    """Return what a strategy inserts and marks, builder after builder.

    Over the nodes of a pod the rings are those of the group's part on each node, and between nodes the pod builder's.

    Source:
        barrier §5.2 and §5.3, convention.
    """
    if strategy is Strategy.SWITCH:
        return (switch(platform, at),)
    if strategy is Strategy.MESH:
        return (mesh(platform, at),)
    if strategy is Strategy.RING:
        return (ring(platform, _flat_rings(platform, at)),)
    parts = (geometry(platform, part) for part in intra_groups(platform, at))
    return (*(ring(platform, _flat_rings(platform, part)) for part in parts), pod(platform, at))


def records(program: Program, rank: int, side: int) -> bytes:
    """Return one table of a rank as the runtime keeps it, 32 bytes an entry. Source: barrier §2.2, high."""
    rows = (program.send, program.recv)[side].of(rank)
    peers = peers_seen(program.platform, node_of(program.platform, rank // program.platform.ranks_per_chip), rows.peer)
    return b"".join(
        ENTRY.encode(
            neuron_dev=peer.neuron_dev,
            rid=peer.rid,
            tpb_index=peer.tpb_index,
            pod_node_id=peer.pod_node_id,
            reservation_id=peer.reservation_id,
            barr_type=kind,
            bit_to_set=bit,
        )
        for peer, kind, bit in zip(peers, rows.kind.tolist(), rows.bit.tolist(), strict=True)
    )


def peers_seen(platform: Platform, node: int, ranks: I64) -> tuple[Peer, ...]:
    """Return what a rank of a node is told of other ranks."""
    if not ranks.size:
        return ()
    viewer = node * platform.node_ranks
    others = sorted({viewer, *ranks.tolist()})
    told: Mapping[int, Peer] = dict(
        zip(others, comm_info(platform, geometry(platform, others), viewer).peers, strict=True)
    )
    return tuple(told[rank] for rank in ranks.tolist())


def kind_name(kind: int) -> str:
    """Return the name of a barrier type."""
    return BarrierType(kind).name


def _union(one: I64, other: I64) -> I64:
    """Return the numbers of both, ascending, each once."""
    both = np.sort(np.concatenate((one, other)))
    fresh = np.ones(both.size, np.bool_)
    fresh[1:] = both[1:] != both[:-1]
    return both[fresh]


def _flat_rings(platform: Platform, at: Geometry) -> tuple[Channel, ...]:
    made = decide(platform, at)
    return made.channels if made.outcome is Outcome.WIRED else ()


def _entries(rows: tuple[I64, I64, I64, I64], group: int) -> Entries:
    return Entries(*rows, group=np.full(rows[0].size, group, np.int64))


def _joined(parts: Sequence[Entries]) -> Entries:
    """Return entries put together, by owner, those of one owner in their order."""
    names = ("owner", "peer", "kind", "bit", "group")
    columns = [np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, np.int64)]) for name in names]
    whole = Entries(*columns)
    return whole.where(np.argsort(whole.owner, kind="stable"))
