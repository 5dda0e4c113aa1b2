"""Tables of a program: what is inserted once, what is only marked, and the records of the runtime."""

from __future__ import annotations

import numpy as np
import pytest

from rota.barrier.table import Entries, Scratch, construct, kind_name, peers_seen, records
from rota.errors import UsageError
from rota.isa.barrier_records import ENTRY, RECV, SEND, BarrierType
from rota.machine.geometry import NETWORK_PEER, POD_PEER
from rota.machine.platform import Platform, load_platform

TRN2 = load_platform("trn2.48xlarge")
GEN2 = load_platform("trn3pds98")
POD = load_platform("trn2u.48xlarge", nodes=4)


def entries(*pairs: tuple[int, int]) -> Entries:
    owner, peer = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    same = np.zeros(owner.size, np.int64)
    return Entries(owner, peer, same, np.arange(owner.size, dtype=np.int64), same)


# --- insert and mark (check 4) ----------------------------------------------------------------------------------------


def test_a_peer_is_inserted_once() -> None:
    """The first entry of a peer stays; another owner may have the same peer."""
    found = Scratch(64).insert(SEND, entries((0, 1), (0, 2), (0, 1), (3, 1)))
    assert found.bit.tolist() == [0, 1, 3]


def test_sides_are_separate() -> None:
    """A peer that is covered on the send side only is still new on the receiving side."""
    scratch = Scratch(64)
    scratch.insert(SEND, entries((0, 1)))
    assert scratch.insert(SEND, entries((0, 1))).owner.size == 0
    assert scratch.insert(RECV, entries((0, 1))).owner.size == 1


def test_marked_peers_yield_no_entry() -> None:
    """A mark covers a peer on both sides."""
    scratch = Scratch(64)
    scratch.mark(np.array([0]), np.array([1]))
    for side in (SEND, RECV):
        assert scratch.insert(side, entries((0, 1), (0, 2))).peer.tolist() == [2]


def test_dedup_across_two_groups_of_one_program() -> None:
    """A peer that group 0 covers yields no second entry in group 1; in a program of its own it does."""
    both = construct(TRN2, [range(4), [0, 1]])
    alone = construct(TRN2, [range(4)])
    assert set(both.recv.group.tolist()) == {0}
    assert both.recv.peer.tolist() == alone.recv.peer.tolist()
    swapped = construct(TRN2, [[0, 1], range(4)])
    assert swapped.recv.of(0).group.tolist() == [0, 1, 1]
    assert sorted(swapped.recv.of(0).peer.tolist()) == [1, 2, 3]


def test_marks_of_one_group_hold_for_the_next() -> None:
    """A peer that a first group only marks gets no entry from a second one that would give it one."""
    across = [0, 5]  # chips 0 and 1, lanes 0 and 1: counterparts only while each is alone on its chip
    assert construct(GEN2, [across]).recv.owner.size == 2
    both = construct(GEN2, [range(16), across])
    assert set(both.recv.group.tolist()) == {0}


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_of_a_rank() -> None:
    """A table is entries of 32 bytes: the peer as its owner sees it, type and bit."""
    program = construct(TRN2, [range(4)])
    data = records(program, 1, RECV)
    assert len(data) == 3 * 32
    first = ENTRY.decode(data)
    assert first == {
        "neuron_dev": 0, "rid": 0, "tpb_index": 0, "pod_node_id": 0, "reservation_id": 0, "barr_type": 0,
        "bit_to_set": 1,
    }  # fmt: skip
    assert records(program, 1, SEND) == data
    assert records(construct(TRN2, [[7]]), 7, SEND) == b""


def test_a_peer_behind_a_pod_link_has_no_device() -> None:
    """A pod sibling's device is -2, and its node tells it from the others."""
    rows = [ENTRY.decode(records(construct(POD, [[5, 69, 133, 197]]), 69, SEND), 32 * i) for i in range(3)]
    assert [row["neuron_dev"] for row in rows] == [POD_PEER] * 3
    assert [row["pod_node_id"] for row in rows] == [0, 2, 3]


@pytest.mark.parametrize("platform", [TRN2, POD, GEN2, load_platform("trn2.48xlarge", nodes=3)], ids=lambda p: p.name)
def test_ranks_are_different_peers(platform: Platform) -> None:
    """To one viewer no two ranks have all five fields in common, so that a rank stands for its peer."""
    everybody = np.arange(platform.ranks, dtype=np.int64)
    assert len(set(peers_seen(platform, 0, everybody))) == platform.ranks


def test_a_peer_by_network() -> None:
    """A rank on another instance is seen at -1."""
    far = load_platform("trn1.32xlarge", nodes=2)
    assert peers_seen(far, 0, np.array([33]))[0].neuron_dev == NETWORK_PEER


def test_a_group_of_one_rank_waits_for_nobody() -> None:
    """A single rank has empty tables."""
    assert construct(TRN2, [[3]]).recv.owner.size == 0
    assert construct(TRN2, []).recv.owner.size == 0


def test_groups_are_checked() -> None:
    """A rank outside the machine is named."""
    with pytest.raises(UsageError, match=r"rank 64 is not on trn2\.48xlarge"):
        construct(TRN2, [[0, 64]])


def test_names_of_types() -> None:
    """Types print by name."""
    assert kind_name(6) == BarrierType.INTER_RACK.name
