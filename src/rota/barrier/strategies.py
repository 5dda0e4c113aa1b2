"""The four ways to find the barrier peers of a group: switch, ring, pod and mesh.

Each gives, for all ranks of the group, what would be inserted on either side, in order, and what is only marked as
covered; the insertion itself, which leaves out peers that are covered already, is `table`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.barrier_records import BarrierType
from rota.machine.geometry import Geometry, lanes_by_chip
from rota.machine.partition import format_ranks
from rota.machine.platform import Platform
from rota.machine.rings import Channel
from rota.machine.topology import (
    LinkClass,
    link_class,
    node_of,
    pod_node_of,
    pod_of,
    rack_local_rid,
    rack_of,
    routing_id,
    server_of,
)

INVARIANTS_SOURCE: Final = Source("barrier", "5.1", HIGH)
BOX_SOURCE: Final = Source("topology", "5, barrier entries", CONVENTION)
RACKS: Final = 2  # joined by a barrier of the switch. Source: topology §5, convention
RING_UNSAFE: Final = (
    BarrierType.INTER_CHIP_RING_REMOTE
)  # type of an unsafe leg; a safe one is 1 less. Source: barrier §5.2

Rows = tuple[I64, I64, I64, I64]  # owner, peer, kind, bit
Row = tuple[int, int, int, int]
Safe = Callable[[Platform, int, int], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What a builder gives; `marks` are owners and peers that are covered without an entry."""

    send: Rows
    recv: Rows
    marks: tuple[I64, I64]


# --- switch -----------------------------------------------------------------------------------------------------------


def switch(platform: Platform, at: Geometry) -> Candidates:
    """Return the peers of a group on a switch machine.

    Every rank has entries for the other ranks of its chip; of other chips for the rank at its own index there: on the
    chips of its server, and at its own place on the other servers, of its rack and of the other one.

    Raises:
        UnsupportedError: chips have different numbers of ranks (D2), the ranks at one index differ modulo that number
            (D3), a chip has no counterpart in the other rack (D4), or the chips are no full box.

    Source:
        barrier §5.1 for the invariants, topology §5 for the entries, convention.
    """
    members = _members(platform, at)
    _check_instance(platform, at)
    _check_counts(platform, members)
    _check_modulo(platform, members)
    _check_racks(platform, members)
    _check_box(platform, members)
    rows = [*_on_chips(platform, members), *_between_racks(platform, members)]
    table = _rows(rows)
    return Candidates(table, table, _others(at, table))


def _members(platform: Platform, at: Geometry) -> dict[int, tuple[int, ...]]:
    """Return chip -> its ranks in the group, both ascending."""
    per_chip = platform.ranks_per_chip
    lanes = lanes_by_chip(platform, at.ranks)
    return {chip: tuple(per_chip * chip + lane for lane in here) for chip, here in lanes.items()}


def _check_instance(platform: Platform, at: Geometry) -> None:
    if len(at.pods) > 1:
        raise UnsupportedError(
            f"barrier: the group has ranks on {len(at.pods)} instances of {platform.name}, and its racks are those of "
            "one; give the part of every instance as a group of its own",
            source=BOX_SOURCE,
        )
    racks = {rack_of(platform, chip) for chip in at.chips}
    if len(racks) > RACKS:
        raise UnsupportedError(
            f"barrier: the group has ranks in {len(racks)} racks, and its bits tell {RACKS} apart; give groups of "
            f"{RACKS} racks",
            source=BOX_SOURCE,
        )


def _check_counts(platform: Platform, members: dict[int, tuple[int, ...]]) -> None:
    model = next(iter(members))
    for chip, here in members.items():
        if len(here) != len(members[model]):
            raise UnsupportedError(
                f"barrier: rid {routing_id(platform, chip)} (chip {chip}) holds {len(here)} ranks of the group, "
                f"expected {len(members[model])} as on rid {routing_id(platform, model)}; give each chip as many "
                "(D2, status 2)",
                source=INVARIANTS_SOURCE,
            )


def _check_modulo(platform: Platform, members: dict[int, tuple[int, ...]]) -> None:
    model = next(iter(members))
    count = len(members[model])
    for here in members.values():
        for mine, other in zip(members[model], here, strict=True):
            if mine % count != other % count:
                raise UnsupportedError(
                    f"barrier: global device ids {mine} and {other} differ modulo {count}, and counterparts on "
                    f"{platform.name} agree there; take the same lanes of each chip, a number that divides "
                    f"{platform.ranks_per_chip} (D3, status 2)",
                    source=INVARIANTS_SOURCE,
                )


def _check_racks(platform: Platform, members: dict[int, tuple[int, ...]]) -> None:
    racks: dict[int, dict[int, int]] = {}
    for chip in members:
        racks.setdefault(rack_of(platform, chip), {})[rack_local_rid(platform, chip)] = chip
    for rack, here in racks.items():
        for other, there in racks.items():
            missing = sorted(set(there) - set(here))
            if missing:
                raise UnsupportedError(
                    f"barrier: rack-local rid {missing[0]} (chip {there[missing[0]]} in rack {other}) has no "
                    f"counterpart in rack {rack}; take the same servers of both racks (D4, status 2)",
                    source=INVARIANTS_SOURCE,
                )


def _check_box(platform: Platform, members: dict[int, tuple[int, ...]]) -> None:
    """Refuse chips that two rounds over servers and columns would not reach."""
    places: dict[int, list[int]] = {}
    for chip in members:
        places.setdefault(node_of(platform, chip), []).append(chip % platform.chips)
    model = next(iter(places))
    for node, here in places.items():
        if here != places[model]:
            raise UnsupportedError(
                f"barrier: server {node} has chips {format_ranks(here)} in it where server {model} has "
                f"{format_ranks(places[model])}, and two rounds join full boxes only; take the same chips of each",
                source=BOX_SOURCE,
            )


def _on_chips(platform: Platform, members: dict[int, tuple[int, ...]]) -> Iterator[Row]:
    """Yield the entries of all pairs of ranks that share a chip."""
    for here in members.values():
        for one in here:
            for other in here:
                if one != other:
                    yield one, other, BarrierType.INTRA_CHIP, chip_bit(platform, one, other)


def _between_racks(platform: Platform, members: dict[int, tuple[int, ...]]) -> Iterator[Row]:
    """Yield the entries of counterparts: first those of one rack by rack-local rid, then those across by server."""
    for kind in (BarrierType.INTRA_RACK, BarrierType.INTER_RACK):
        for chip, mine in members.items():
            for other, theirs in members.items():
                if other != chip and rack_kind(platform, chip, other) is kind:
                    bit = rack_bit(platform, chip, other)
                    yield from ((one, peer, kind, bit) for one, peer in zip(mine, theirs, strict=True))


def rack_kind(platform: Platform, chip: int, other: int) -> BarrierType | None:
    """Return the type of the entry between counterparts on two chips; None where there is none. Source: topology §5."""
    same_server = node_of(platform, chip) == node_of(platform, other)
    if not same_server and chip % platform.chips != other % platform.chips:
        return None
    return BarrierType.INTRA_RACK if rack_of(platform, chip) == rack_of(platform, other) else BarrierType.INTER_RACK


def rack_bit(platform: Platform, chip: int, other: int) -> int:
    """Return the bit that counterparts on two chips set on each other; no two peers of a rank have the same.

    Source: topology §5, convention.
    """
    servers = platform.servers_per_rack
    one, two = (server_of(platform, each) % servers for each in (chip, other))
    if rack_of(platform, chip) != rack_of(platform, other):
        return (one + two) % servers
    if node_of(platform, chip) == node_of(platform, other):
        return (chip % platform.chips ^ other % platform.chips) - 1
    return platform.chips - 1 + round_robin(one, two, servers)


def round_robin(one: int, other: int, count: int) -> int:
    """Return the round in which two of `count` players meet when each meets one other a round.

    An odd count, which no machine has, leaves one player out of each round.

    Source: topology §5, convention.
    """
    rounds = count - 1 if count % 2 == 0 else count
    last = max(one, other)
    return (2 * min(one, other) if last == rounds else one + other) % rounds


# --- ring and pod -----------------------------------------------------------------------------------------------------


def is_safe(platform: Platform, one: int, other: int) -> bool:
    """Return whether transactions of semaphores alone are free of deadlock from a rank to another.

    They are on one chip, and towards the chip with the higher node and routing id. Source: barrier §5.2, convention.
    """
    here, there = one // platform.ranks_per_chip, other // platform.ranks_per_chip
    return here == there or _order(platform, here) < _order(platform, there)


def ring(platform: Platform, channels: Sequence[Channel], *, safe: Safe = is_safe) -> Candidates:
    """Return the neighbours of all ranks on the rings of a group, channel after channel.

    A leg's type depends on its direction: the send side asks whether self to peer is safe, the receiving side whether
    peer to self is.

    Source:
        barrier §5.2, high; direction, medium; bits, convention.
    """
    send: list[Row] = []
    recv: list[Row] = []
    for index, each in enumerate(channels):
        for rank, peer, is_next in _neighbours(each.order):
            if rank // platform.ranks_per_chip == peer // platform.ranks_per_chip:
                row = (rank, peer, int(BarrierType.INTRA_CHIP), chip_bit(platform, rank, peer))
                send.append(row)
                recv.append(row)
                continue
            outward, inward = 2 * index + (not is_next), 2 * index + is_next
            send.append((rank, peer, RING_UNSAFE - safe(platform, rank, peer), outward))
            recv.append((rank, peer, RING_UNSAFE - safe(platform, peer, rank), inward))
    return Candidates(_rows(send), _rows(recv), _NOTHING)


def _neighbours(order: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Yield (rank, neighbour, whether it is the next); of two ranks the lower has the other as its next."""
    count = len(order)
    if count == 2:
        low, high = sorted(order)
        yield low, high, True
        yield high, low, False
        return
    for i, rank in enumerate(order if count > 1 else ()):
        yield rank, order[i - 1], False
        yield rank, order[(i + 1) % count], True


def pod(platform: Platform, at: Geometry) -> Candidates:
    """Return the same place on the other nodes of each rank's pod. Source: barrier §5.3, convention."""
    place: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(at.ranks):
        node = rank // platform.node_ranks
        place.setdefault((pod_of(platform, node), rank % platform.node_ranks), []).append(rank)
    rows = [
        (one, other, int(BarrierType.INTRA_POD), (_pod_node(platform, one) ^ _pod_node(platform, other)) - 1)
        for here in place.values()
        for one in here
        for other in here
        if one != other
    ]
    table = _rows(rows)
    return Candidates(table, table, _NOTHING)


# --- mesh -------------------------------------------------------------------------------------------------------------


def mesh(platform: Platform, at: Geometry) -> Candidates:
    """Return the other ranks of each rank's chip, and its counterparts on the chips one direct link away.

    Source: barrier §5.4, high for the two kinds, convention for the rest.
    """
    members = _members(platform, at)
    on_chip = list(_on_chips(platform, members))
    send = [*on_chip, *_direct(platform, members, lambda mine, theirs: _is_direct(platform, mine, theirs))]
    recv = [*on_chip, *_direct(platform, members, lambda mine, theirs: _is_direct(platform, theirs, mine))]
    return Candidates(_rows(send), _rows(recv), _NOTHING)


def _direct(
    platform: Platform, members: dict[int, tuple[int, ...]], linked: Callable[[int, int], bool]
) -> Iterator[Row]:
    per_chip = platform.ranks_per_chip
    for chip, mine in members.items():
        for other, theirs in members.items():
            if chip == other or not linked(chip, other):
                continue
            bit = (routing_id(platform, chip) ^ routing_id(platform, other)) - 1
            lanes = {rank % per_chip for rank in theirs}
            for rank in mine:
                if rank % per_chip in lanes:
                    yield rank, other * per_chip + rank % per_chip, BarrierType.INTER_CHIP, bit


def _is_direct(platform: Platform, chip: int, other: int) -> bool:
    return link_class(platform, chip, other) is LinkClass.CABLE


# --- parts ------------------------------------------------------------------------------------------------------------


def chip_bit(platform: Platform, one: int, other: int) -> int:
    """Return the bit that two ranks of a chip set on each other. Source: barrier §5.5, convention."""
    cores = [rank % platform.ranks_per_chip * platform.lnc for rank in (one, other)]
    return (cores[0] ^ cores[1]) - 1


def _order(platform: Platform, chip: int) -> tuple[int, int]:
    return node_of(platform, chip), routing_id(platform, chip)


def _pod_node(platform: Platform, rank: int) -> int:
    return pod_node_of(platform, rank // platform.node_ranks)


def _rows(rows: Iterable[Row]) -> Rows:
    table = np.array(list(rows), np.int64).reshape(-1, 4)
    owner, peer, kind, bit = (table[:, i].copy() for i in range(4))
    return owner, peer, kind, bit


def _others(at: Geometry, rows: Rows) -> tuple[I64, I64]:
    """Return all pairs of members that have no entry; of each the owner and the peer."""
    members = np.array(sorted(at.ranks), np.int64)
    count = int(members[-1]) + 1
    owner, peer = np.repeat(members, members.size), np.tile(members, members.size)
    left = (owner != peer) & ~np.isin(owner * count + peer, rows[0] * count + rows[1])
    return owner[left], peer[left]


_NOTHING: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))
