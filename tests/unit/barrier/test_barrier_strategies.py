"""Who is whose peer: dispatch, the four strategies, their bits, and the invariants of the switch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from rota.barrier.strategies import (
    RACKS,
    RING_UNSAFE,
    chip_bit,
    is_safe,
    mesh,
    pod,
    rack_bit,
    rack_kind,
    ring,
    round_robin,
    switch,
)
from rota.barrier.table import Program, Strategy, candidates, construct, dispatch, is_switch
from rota.errors import UnsupportedError
from rota.isa.barrier_records import BarrierType
from rota.machine.geometry import geometry
from rota.machine.group import wire
from rota.machine.platform import Platform, load_platform

TRN1 = load_platform("trn1.32xlarge")
TRN2 = load_platform("trn2.48xlarge")
POD = load_platform("trn2u.48xlarge", nodes=4)
GEN1 = load_platform("trn3pds98-gen1")
GEN2 = load_platform("trn3pds98")
MACHINES = {
    "switch": (GEN2, [range(64)]),
    "ring": (TRN2, [range(64)]),
    "ring of rows": (TRN2, [range(16), range(16, 32)]),
    "mesh": (TRN2, [range(4)]),
    "mesh of chips": (TRN2, [[0, 4, 8]]),
    "pod": (POD, [range(256)]),
    "pod of four": (POD, [[5, 69, 133, 197]]),
    "trn1": (TRN1, [range(32)]),
}

Edge = tuple[int, int, int, int]


def edges(program: Program) -> tuple[list[Edge], list[Edge]]:
    """Return (from, to, type, bit) of all signals: as senders say, and as receivers do."""
    send, recv = program.send, program.recv
    one = zip(send.owner.tolist(), send.peer.tolist(), send.kind.tolist(), send.bit.tolist(), strict=True)
    two = zip(recv.peer.tolist(), recv.owner.tolist(), recv.kind.tolist(), recv.bit.tolist(), strict=True)
    return sorted(one), sorted(two)


def kinds(program: Program) -> set[BarrierType]:
    return {BarrierType(kind) for kind in program.recv.kind.tolist()}


# --- dispatch (check 1) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "ranks", "strategy"),
    [
        (GEN2, range(64), Strategy.SWITCH),
        (GEN2, range(4), Strategy.SWITCH),  # the family is asked first, also on one chip
        (GEN1, range(256), Strategy.SWITCH),
        (TRN2, range(64), Strategy.RING),
        (TRN1, range(32), Strategy.RING),
        (POD, range(256), Strategy.RING_AND_POD),
        (POD, [0, 64], Strategy.RING_AND_POD),
        (TRN2, range(4), Strategy.MESH),  # a ring on one chip is no geometry of several chips
        (TRN2, [0, 4, 8], Strategy.MESH),  # an open chain of single ranks has no ring
    ],
)
def test_dispatch_table(platform: Platform, ranks: Sequence[int], strategy: Strategy) -> None:
    """Family 15 goes to the switch builder, a ring or a pod to the ring builder, all else to the mesh builder."""
    assert dispatch(platform, geometry(platform, ranks)) is strategy
    assert is_switch(platform) is (strategy is Strategy.SWITCH)


def test_d1_refuses_a_bad_geometry() -> None:
    """Without a ring, three ranks on a chip or more than 16 chips are no mesh; the message has both counts."""
    with pytest.raises(UnsupportedError, match=r"\[nec_dev 0\].*chip count 1, ranks per chip 3.*D1, status 2") as bad:
        construct(TRN2, [[0, 1, 2]])
    assert str(bad.value.source).startswith("barrier §3")
    two_nodes = load_platform("trn2.48xlarge", nodes=2)
    with pytest.raises(UnsupportedError, match="chip count 32, ranks per chip 4"):
        construct(two_nodes, [range(128)])
    with pytest.raises(UnsupportedError, match="chip count 2, ranks per chip 1 and more on some"):
        construct(TRN2, [[0, 1, 4]])


# --- pairs (checks 2 and 3) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_pairwise_consistency(name: str) -> None:
    """A sends to b exactly where b receives from a, with one type and one bit."""
    sent, received = edges(construct(*MACHINES[name]))
    assert sent == received
    assert sent


@pytest.mark.parametrize("name", MACHINES)
def test_no_two_peers_of_a_rank_share_a_bit(name: str) -> None:
    """Types and bits are injective for every receiver."""
    recv = construct(*MACHINES[name]).recv
    keys = set(zip(recv.owner.tolist(), recv.kind.tolist(), recv.bit.tolist(), strict=True))
    assert len(keys) == recv.owner.size


def test_ring_types_differ_between_the_two_sides_of_a_neighbour() -> None:
    """Of one neighbour on another chip, one side is LOCAL and the other REMOTE, at both of its ends."""
    program = construct(TRN2, [range(64)])
    send, recv = program.send, program.recv
    assert (send.owner == recv.owner).all()
    assert (send.peer == recv.peer).all()
    across = send.owner // 4 != send.peer // 4
    sides = np.sort(np.stack([send.kind[across], recv.kind[across]]), axis=0)
    assert (sides.T == [BarrierType.INTER_CHIP_RING_LOCAL, BarrierType.INTER_CHIP_RING_REMOTE]).all()
    assert across.sum() == 64
    assert (send.kind[~across] == recv.kind[~across]).all()


def test_a_safe_leg_is_local() -> None:
    """The type is 4 less whether the transactions are safe: self to peer when sending, peer to self when receiving."""
    rings = wire(TRN2, range(16)).channels
    for value, kind in ((True, BarrierType.INTER_CHIP_RING_LOCAL), (False, BarrierType.INTER_CHIP_RING_REMOTE)):
        found = ring(TRN2, rings, safe=lambda *_, value=value: value)
        assert set(found.send[2].tolist()) == {BarrierType.INTRA_CHIP, kind}
    assert RING_UNSAFE is BarrierType.INTER_CHIP_RING_REMOTE
    assert is_safe(TRN2, 0, 1)
    assert is_safe(TRN2, 1, 0)
    assert is_safe(TRN2, 0, 4) is not is_safe(TRN2, 4, 0)


def test_a_ring_of_two() -> None:
    """The lower rank has the other as its next, the higher one as its previous."""
    program = construct(TRN1, [[0, 2]])
    assert program.strategies == (Strategy.RING,)
    assert list(zip(program.send.owner.tolist(), program.send.bit.tolist(), strict=True)) == [(0, 0), (2, 1)]
    assert list(zip(program.recv.owner.tolist(), program.recv.bit.tolist(), strict=True)) == [(0, 1), (2, 0)]
    sent, received = edges(program)
    assert sent == received


def test_bits_of_a_channel() -> None:
    """On channel c a rank receives from its previous on bit 2c, from its next on 2c + 1, and sends the other way."""
    rings = wire(TRN2, range(64)).channels
    found = ring(TRN2, rings)
    expected = set()
    for c, each in enumerate(rings):
        for one, two in pairwise((*each.order, each.order[0])):
            if one // 4 != two // 4:
                expected |= {(one, two, 2 * c), (two, one, 2 * c + 1)}
    owner, peer, kind, bit = found.send
    across = kind != BarrierType.INTRA_CHIP
    assert set(zip(owner[across].tolist(), peer[across].tolist(), bit[across].tolist(), strict=True)) == expected


def test_a_peer_on_several_channels_keeps_the_first() -> None:
    """The reversal of a ring has the same neighbours, so that its bits never appear."""
    program = construct(TRN2, [range(64)])
    across = program.recv.kind != BarrierType.INTRA_CHIP
    assert len(wire(TRN2, range(64)).channels) == 4
    assert set(program.recv.bit[across].tolist()) == {0, 1, 2, 3}


def test_mesh_of_one_chip() -> None:
    """Ranks of a chip have each other, bit by the xor of their cores less 1."""
    program = construct(TRN2, [range(4)])
    mine = program.send.of(1)
    assert (mine.peer.tolist(), mine.bit.tolist()) == ([0, 2, 3], [1, 5, 3])
    lnc1 = construct(load_platform("trn2.48xlarge", lnc=1), [range(8)])
    assert sorted(lnc1.recv.of(5).bit.tolist()) == list(range(7))


def test_mesh_takes_counterparts_on_direct_links() -> None:
    """Chips one cable away give an entry for the rank on the same core, bit by the xor of routing ids less 1."""
    found = mesh(TRN2, geometry(TRN2, [0, 1, 4, 5, 8, 9]))
    rows = list(zip(*(column.tolist() for column in found.send), strict=True))
    assert (0, 4, BarrierType.INTER_CHIP, 7) in rows
    assert not any(one == 0 and other in {5, 8, 9} for one, other, _, _ in rows)
    assert rows == list(zip(*(column.tolist() for column in found.recv), strict=True))


def test_pod_siblings() -> None:
    """The same place on the other nodes of the pod is INTRA_POD, bit by the xor of the nodes less 1."""
    mine = construct(POD, [range(256)]).send.of(69)
    siblings = mine.kind == BarrierType.INTRA_POD
    assert (mine.peer[siblings].tolist(), mine.bit[siblings].tolist()) == ([5, 133, 197], [0, 2, 1])
    assert kinds(construct(POD, [[5, 69, 133, 197]])) == {BarrierType.INTRA_POD}


def test_builders_of_a_pod() -> None:
    """First the rings of the group's part on each node, then the pod's builder, which has nothing within a node."""
    at = geometry(POD, range(256))
    *rings, last = candidates(POD, at, Strategy.RING_AND_POD)
    assert len(rings) == 4
    assert all((part.send[0] // 64 == part.send[1] // 64).all() for part in rings)
    assert [column.tolist() for column in last.send] == [column.tolist() for column in pod(POD, at).send]
    assert (last.send[0] // 64 != last.send[1] // 64).all()
    assert chip_bit(POD, 64, 67) == 5


def test_a_ring_over_two_pods_has_ring_entries_within_them() -> None:
    """A group over pods is no pod: its neighbours on other nodes are ring neighbours, by whatever link."""
    pods = load_platform("trn2u.48xlarge", nodes=8)
    program = construct(pods, [range(5, 512, 64)])
    assert program.strategies == (Strategy.RING,)
    assert kinds(program) == {BarrierType.INTER_CHIP_RING_LOCAL, BarrierType.INTER_CHIP_RING_REMOTE}
    assert (np.bincount(program.recv.owner)[5::64] == 2).all()


# --- switch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "chip_peers", "rack", "inter"), [(GEN1, 3, 16, 2), (GEN2, 3, 20, 18)], ids=["gen1", "gen2"]
)
def test_entries_of_the_whole_machine(platform: Platform, chip_peers: int, rack: int, inter: int) -> None:
    """A rank has 16 entries in its rack and 2 across on Gen1, 20 and 18 on Gen2."""
    program = construct(platform, [range(platform.ranks)])
    for kind, count in zip((0, 5, 6), (chip_peers, rack, inter), strict=True):
        per_rank = np.bincount(program.recv.owner[program.recv.kind == kind], minlength=platform.ranks)
        assert (per_rank == count).all()
    sent, received = edges(program)
    assert sent == received


@pytest.mark.parametrize("platform", [GEN1, GEN2], ids=["gen1", "gen2"])
def test_the_two_round_scheme_is_complete(platform: Platform) -> None:
    """After chip, round and round every rank knows of every rank, on the whole machine; the relation is symmetric."""
    near, chip = relations(construct(platform, [range(platform.ranks)]))
    assert (near == near.T).all()
    assert (near @ near @ chip > 0).all()


def test_one_counterpart_across_would_not_be_a_barrier() -> None:
    """Server mates and the column, but one server across: two rounds do not reach everybody."""
    program = construct(GEN2, [range(GEN2.ranks)])
    recv = program.recv
    far = (recv.kind == BarrierType.INTER_RACK) & ((recv.owner // 16 % 18) != (recv.peer // 16 % 18))
    near, chip = relations(program, left_out=far)
    assert (near == near.T).all()
    assert not (near @ near @ chip > 0).all()


def relations(program: Program, left_out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return who hears of whom in one round between chips, and on a chip; each rank of itself, too."""
    ranks = program.platform.ranks
    near, chip = np.eye(ranks, dtype=np.float32), np.eye(ranks, dtype=np.float32)
    recv = program.recv
    keep = np.ones(recv.owner.size, np.bool_) if left_out is None else ~left_out
    on_chip = recv.kind == BarrierType.INTRA_CHIP
    near[recv.owner[~on_chip & keep], recv.peer[~on_chip & keep]] = 1
    chip[recv.owner[on_chip], recv.peer[on_chip]] = 1
    return near, chip


def test_bits_of_counterparts() -> None:
    """Server mates take the first bits, other servers of the rack the next, those across (s + s') modulo servers."""
    assert [rack_bit(GEN2, 1, other) for other in (0, 2, 3)] == [0, 2, 1]
    assert [rack_kind(GEN2, 1, other) for other in (0, 4, 5, 73, 72)] == [
        BarrierType.INTRA_RACK, None, BarrierType.INTRA_RACK, BarrierType.INTER_RACK, None,
    ]  # fmt: skip
    column = [rack_bit(GEN2, 1, 4 * server + 1) for server in range(1, 18)]
    assert column == [3 + round_robin(0, server, 18) for server in range(1, 18)]
    assert sorted(column) == list(range(3, 20))
    assert [rack_bit(GEN2, 4 * 5, 4 * (18 + server)) for server in range(18)] == [(5 + s) % 18 for s in range(18)]
    assert [rack_bit(GEN1, 0, other) for other in (1, 15, 16)] == [0, 14, 15]
    assert [rack_bit(GEN1, 16, other) for other in (32, 48)] == [1, 0]


def test_a_barrier_joins_two_racks() -> None:
    """A machine of three racks has no bits for the third."""
    three = dataclasses.replace(GEN2, servers_per_rack=12)
    assert RACKS == 2
    assert construct(three, [[0, 12 * 16]]).recv.owner.size == 2
    with pytest.raises(UnsupportedError, match="ranks in 3 racks, and its bits tell 2 apart"):
        construct(three, [[0, 12 * 16, 24 * 16]])


def test_order_of_the_entries_of_a_rank() -> None:
    """First the chip by global id, then the rack by rack-local rid, then the other rack."""
    mine = construct(GEN2, [range(GEN2.ranks)]).send.of(0)
    assert mine.kind.tolist() == sorted(mine.kind.tolist())
    for kind in (0, 5, 6):
        peers = mine.peer[mine.kind == kind].tolist()
        assert peers == sorted(peers)


def test_marked_peers_of_the_switch_have_no_entry() -> None:
    """Every other rank of the group has an entry or is marked, and none is both."""
    found = switch(GEN2, geometry(GEN2, range(64)))
    entries = set(zip(found.send[0].tolist(), found.send[1].tolist(), strict=True))
    marks = set(zip(found.marks[0].tolist(), found.marks[1].tolist(), strict=True))
    assert not entries & marks
    assert entries | marks == {(one, two) for one in range(64) for two in range(64) if one != two}


@pytest.mark.parametrize("count", [2, 4, 18])
def test_round_robin_lets_each_pair_meet_once(count: int) -> None:
    """In each of the rounds, one fewer than players, everybody meets somebody, and nobody meets two."""
    for one in range(count):
        rounds = [round_robin(one, other, count) for other in range(count) if other != one]
        assert sorted(rounds) == list(range(count - 1))
    assert all(round_robin(a, b, count) == round_robin(b, a, count) for a in range(count) for b in range(count))


def test_round_robin_of_an_odd_count() -> None:
    """An odd count leaves one player out of each round, and still nobody meets two."""
    for one in range(5):
        rounds = [round_robin(one, other, 5) for other in range(5) if other != one]
        assert len(set(rounds)) == 4
        assert set(rounds) < set(range(5))


# --- invariants (check 5) ---------------------------------------------------------------------------------------------


def test_d2_unequal_ranks_on_chips() -> None:
    """A chip with another number of ranks is refused, with its rid, the number and the expected one."""
    damaged = [rank for rank in range(64) if rank != 21]
    with pytest.raises(UnsupportedError, match=r"rid 17 \(chip 5\) holds 3 ranks .* expected 4 .*D2, status 2") as bad:
        construct(GEN2, [damaged])
    assert "barrier §5.1" in str(bad.value.source)


@pytest.mark.parametrize(
    ("ranks", "fine"),
    [
        ([0, 1, 4, 5], True),
        ([0, 2, 4, 6], True),
        ([0, 1, 6, 7], True),  # lanes 0, 1 against 2, 3
        ([0, 1, 5, 6], False),  # lanes 0, 1 against 1, 2
        ([0, 1, 2, 4, 5, 6], False),  # 3 does not divide 4
    ],
)
def test_d3_global_ids_modulo(ranks: list[int], fine: bool) -> None:
    """Counterparts agree modulo the ranks of a chip; the message has both ids and the modulus."""
    if fine:
        assert construct(GEN2, [ranks]).recv.owner.size
        return
    with pytest.raises(UnsupportedError, match=r"global device ids \d+ and \d+ differ modulo [23].*D3, status 2"):
        construct(GEN2, [ranks])


def test_d4_a_server_without_counterpart() -> None:
    """Servers 16 and 17 have no counterpart among 0 and 1 of the other rack; rid and rack are named."""
    ranks = range(16 * 16, 20 * 16)
    with pytest.raises(UnsupportedError, match=r"rack-local rid 0 .* has no counterpart in rack 0.*D4, status 2"):
        construct(GEN2, [ranks])
    assert construct(GEN2, [[*range(16), *range(18 * 16, 19 * 16)]]).recv.owner.size


def test_a_group_that_is_no_box() -> None:
    """Chips that two rounds over servers and columns would not join are refused, though D2 to D4 hold."""
    with pytest.raises(UnsupportedError, match="two rounds join full boxes only"):
        construct(GEN2, [[0, 1, 2, 3, *range(20, 24)]])


def test_a_group_over_instances() -> None:
    """The racks a barrier joins are those of one instance."""
    platform = load_platform("trn3pds98", nodes=2)
    with pytest.raises(UnsupportedError, match="2 instances"):
        construct(platform, [[0, platform.ranks // 2]])
