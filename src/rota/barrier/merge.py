"""The barrier table of a device: the receiving sides of all programs on it, in which no two peers share a bit.

A device is one rank, whose semaphores count; columns hold those of all ranks of the machine. The key is the type and
the bit, never the peer: two peers that set one bit would be taken for each other, and a signal lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.barrier.table import Program, peers_seen
from rota.columns import I64, freeze_columns
from rota.errors import UnsupportedError, UsageError
from rota.facts import HIGH, Source
from rota.isa.barrier_records import BarrierType, collision_hash
from rota.machine.geometry import Peer, device
from rota.machine.platform import Platform
from rota.machine.topology import node_of

MERGE_SOURCE: Final = Source("barrier", "6", HIGH)
_BITS: Final = 1 << 16  # more than any bit, for one number out of a key


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """What each rank's device may be signalled by; rows in the order in which they were appended.

    Attributes:
        owner, peer: ranks of the machine.
        kind: BarrierType.
    """

    owner: I64
    peer: I64
    kind: I64
    bit: I64

    def __post_init__(self) -> None:
        freeze_columns(self)

    def keys(self) -> I64:
        """Return the hash of each row's key {type, bit}."""
        return collision_hashes(self.kind, self.bit)


def collision_hashes(kind: I64, bit: I64) -> I64:
    """Return the hashes of keys."""
    return np.array(
        [collision_hash(one, two) for one, two in zip(kind.tolist(), bit.tolist(), strict=True)], dtype=np.int64
    )


def empty_table() -> DeviceTable:
    """Return the table of devices without programs."""
    return DeviceTable(*(np.zeros(0, np.int64) for _ in range(4)))


def merge(programs: Sequence[Program], *, onto: DeviceTable | None = None) -> DeviceTable:
    """Return the device table with the receiving sides of programs appended, in their order.

    The same peer under one key stands once. The programs share one communicator: they are of one machine.

    Args:
        onto: the table of what is loaded already.

    Raises:
        UsageError: the programs are of different machines.
        UnsupportedError: D5, two peers of a rank set the same bit; the first such pair is named.

    Source:
        barrier §6, high; across programs, convention.
    """
    if any(program.platform != programs[0].platform for program in programs):
        raise UsageError("barrier merge: the programs are of different machines, expected those of one communicator")
    have = onto or empty_table()
    if not programs:
        return have
    rows = [program.recv for program in programs]
    owner, peer, kind, bit = (
        np.concatenate([getattr(have, name), *(getattr(each, name) for each in rows)])
        for name in ("owner", "peer", "kind", "bit")
    )
    key = (owner * (BarrierType.MAX + 1) + kind) * _BITS + bit
    _, first, run = np.unique(key, return_index=True, return_inverse=True)
    clash = peer != peer[first[run]]
    if clash.any():
        late = int(np.argmax(clash))
        early = int(first[run[late]])
        raise _collision(programs[0].platform, int(owner[late]), int(kind[late]), int(bit[late]),
                         int(peer[early]), int(peer[late]))  # fmt: skip
    kept = np.sort(first)
    return DeviceTable(owner[kept], peer[kept], kind[kept], bit[kept])


def entries_of(table: DeviceTable, rank: int) -> list[tuple[int, int, int]]:
    """Return the rows of one device: peer, type, bit."""
    mine = table.owner == rank
    return list(zip(table.peer[mine].tolist(), table.kind[mine].tolist(), table.bit[mine].tolist(), strict=True))


def _collision(platform: Platform, owner: int, kind: int, bit: int, *peers: int) -> UnsupportedError:
    chip = owner // platform.ranks_per_chip
    told = peers_seen(platform, node_of(platform, chip), np.array(peers, np.int64))
    both = " and ".join(
        f"peer{i} rank {rank} {_fields(peer)}" for i, (rank, peer) in enumerate(zip(peers, told, strict=True))
    )
    return UnsupportedError(
        f"barrier: [nec_dev {device(platform, chip)}] rank {owner} has two peers across its programs that set the same "
        f"bit, expected one: barrier type {kind} ({BarrierType(kind).name}), bit position {bit}, {both}; change the "
        "groups so that they agree on it, or do not load both programs (D5, status 1)",
        source=MERGE_SOURCE,
    )


def _fields(peer: Peer) -> str:
    return (
        f"(neuron_dev {peer.neuron_dev}, rid {peer.rid}, tpb_index {peer.tpb_index}, pod_node_id {peer.pod_node_id}, "
        f"reservation_id {peer.reservation_id})"
    )
