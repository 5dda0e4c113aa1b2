"""The table of a device: the same peer twice is fine, two peers on one bit are refused with both."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rota.barrier.merge import DeviceTable, empty_table, entries_of, merge
from rota.barrier.table import Entries, Program, Strategy, construct
from rota.errors import UnsupportedError, UsageError
from rota.isa.barrier_records import BarrierType, collision_hash
from rota.machine.platform import load_platform

TRN2 = load_platform("trn2.48xlarge")
GEN2 = load_platform("trn3pds98")
ROWS = construct(TRN2, [range(16), range(16, 32)])
COLUMNS = construct(TRN2, [[0, 16, 32, 48]])


def program(owner: list[int], peer: list[int], kind: list[int], bit: list[int]) -> Program:
    """Return a program with these receiving entries."""
    columns = [np.array(column, np.int64) for column in (owner, peer, kind, bit)]
    rows = Entries(*columns, group=np.zeros(len(owner), np.int64))
    return Program(TRN2, ((*sorted({*owner, *peer}),),), (Strategy.MESH,), rows, rows)


def test_only_the_receiving_side_is_merged() -> None:
    """Sends are never looked at: a send side full of collisions merges."""
    empty = Entries(*(np.zeros(0, np.int64) for _ in range(5)))
    sends = program([0, 0], [1, 2], [0, 0], [3, 3]).send
    merged = merge([dataclasses.replace(ROWS, send=sends)])
    assert merged.owner.size == ROWS.recv.owner.size
    assert merge([dataclasses.replace(ROWS, recv=empty)]).owner.size == 0


def test_d5_two_programs_with_different_peers() -> None:
    """Two peers of two programs on one bit are refused with type, bit, and all fields of both."""
    with pytest.raises(UnsupportedError, match=r"barrier type 4 \(INTER_CHIP_RING_REMOTE\), bit position 0") as bad:
        merge([ROWS, COLUMNS])
    text = str(bad.value)
    assert "[nec_dev 0]" in text
    assert "peer0 rank 15 (neuron_dev 3, rid 1, tpb_index 6, pod_node_id 0, reservation_id 0)" in text
    assert "peer1 rank 48 (neuron_dev 12, rid 4, tpb_index 0, pod_node_id 0, reservation_id 0)" in text
    assert "D5, status 1" in text
    assert str(bad.value.source).startswith("barrier §6")


def test_d5_within_one_program() -> None:
    """Two groups of one program are merged by the same rule."""
    with pytest.raises(UnsupportedError, match="D5"):
        merge([construct(TRN2, [range(16), [0, 16, 32, 48]])])


def test_the_same_peer_twice_is_fine() -> None:
    """One key with one peer stands once, whoever brings it, and again on a table that has it already."""
    once = merge([ROWS])
    assert once.owner.size == ROWS.recv.owner.size
    for again in (merge([ROWS, ROWS]), merge([ROWS], onto=once)):
        assert again.owner.tolist() == once.owner.tolist()
        assert again.peer.tolist() == once.peer.tolist()


def test_a_program_that_collides_with_what_is_loaded() -> None:
    """The table of the device is looked at, too, and stays as it was."""
    loaded = merge([ROWS])
    before = loaded.peer.tolist()
    with pytest.raises(UnsupportedError, match="peer0 rank 15"):
        merge([COLUMNS], onto=loaded)
    assert loaded.peer.tolist() == before


def test_the_key_is_type_and_bit() -> None:
    """The same bit of another type, or of another rank, is another key; the peer is no part of it."""
    fine = program([0, 0, 1], [1, 2, 2], [0, 3, 0], [5, 5, 5])
    assert merge([fine]).owner.size == 3
    with pytest.raises(UnsupportedError, match="bit position 5"):
        merge([fine, program([0], [3], [3], [5])])


def test_the_first_collision_in_order_is_named() -> None:
    """Of several collisions the one that would be appended first is named."""
    base = program([0, 1], [1, 0], [0, 0], [0, 0])
    with pytest.raises(UnsupportedError, match=r"rank 1 has two peers .*peer0 rank 0 .*peer1 rank 9"):
        merge([base, program([1], [9], [0], [0]), program([0], [8], [0], [0])])


def test_rows_are_appended_in_order() -> None:
    """Programs, groups and entries keep their order."""
    table = merge([program([0, 0], [2, 1], [0, 0], [4, 3]), program([0], [3], [0], [1])])
    assert entries_of(table, 0) == [(2, 0, 4), (1, 0, 3), (3, 0, 1)]
    assert entries_of(table, 1) == []


def test_hashes_of_a_table() -> None:
    """Each row's hash is that of its type and bit: (5, 3) gives 389."""
    table = DeviceTable(*(np.array([value]) for value in (0, 1, BarrierType.INTRA_RACK, 3)))
    assert table.keys().tolist() == [389] == [collision_hash(5, 3)]


def test_nothing_to_merge() -> None:
    """No program leaves the table as it was."""
    assert merge([]).owner.size == empty_table().owner.size == 0


def test_programs_of_different_machines() -> None:
    """There is one communicator."""
    with pytest.raises(UsageError, match="different machines"):
        merge([ROWS, construct(GEN2, [range(16)])])


def test_groups_of_the_switch_do_not_collide() -> None:
    """Bits of the switch depend on the two chips alone: boxes with the same lanes on every chip merge."""
    boxes = [construct(GEN2, [range(64)]), construct(GEN2, [range(576)]), construct(GEN2, [[*range(0, 64, 4)]])]
    assert merge(boxes).owner.size == merge(boxes[1:2]).owner.size


@pytest.mark.parametrize("planted", [False, True])
def test_ten_thousand_groups_of_a_hundred_programs(*, planted: bool) -> None:
    """A planted collision among 10,000 groups is found, with both peers; without it they merge."""
    rng = np.random.default_rng(1)
    programs = []
    for _ in range(100):
        owner = rng.integers(0, 64, 2400)  # a hundred groups with two dozen entries
        bit = rng.integers(0, 31, owner.size)
        kind = rng.integers(0, 5, owner.size)
        rows = Entries(owner, (owner + bit + 31 * kind) % 64, kind, bit, np.repeat(np.arange(100), 24))
        programs.append(Program(TRN2, (tuple(range(64)),), (Strategy.MESH,), rows, rows))
    if not planted:
        assert merge(programs).owner.size == 64 * 31 * 5
        return
    peer = programs[70].recv.peer.copy()
    peer[1234] = (peer[1234] + 1) % 64
    programs[70] = dataclasses.replace(programs[70], recv=dataclasses.replace(programs[70].recv, peer=peer))
    with pytest.raises(UnsupportedError, match=f"peer1 rank {peer[1234]} "):
        merge(programs)
    # Trap: with the peer in the key nothing is ever found.
    recv = programs[70].recv
    triple = {(int(recv.owner[1234]), int(recv.kind[1234]), int(recv.bit[1234]), int(peer[1234]))}
    known = {key for each in programs[:70] for key in zip(*(c.tolist() for c in _key(each.recv)), strict=True)}
    assert not triple & known
    assert {key[:3] for key in triple} <= {key[:3] for key in known}


def _key(rows: Entries) -> tuple[np.ndarray, ...]:
    return rows.owner, rows.kind, rows.bit, rows.peer
