"""Tables as bytes: counts of the steps, semaphores and targets, descriptors, and what has no place in them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rota.barrier.guarantee import Early, Guarantee, find_early, pairs_of, promised
from rota.barrier.program import lower_barrier
from rota.barrier.table import Entries, Program, Strategy, construct
from rota.errors import UnsupportedError
from rota.isa.arch import ARCHES
from rota.isa.barrier_records import (
    CONFIG,
    DRAINED,
    ENGINE,
    FEEDS,
    QUEUE,
    RING,
    RING_END,
    BarrierType,
    semaphore_mapping,
)
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR
from rota.machine.platform import Platform, load_platform

TRN2 = load_platform("trn2.48xlarge")
GEN1 = load_platform("trn3pds98-gen1")
GEN2 = load_platform("trn3pds98")
CAYMAN = ARCHES["cayman"]


def decoded(program: Program, rank: int, *, context: int = 0) -> dict[str, int]:
    """Return the configuration of a rank."""
    images = lower_barrier(program, context=context)
    return CONFIG.decode(next(image.config for image in images if image.rank == rank))


def with_bits(program: Program, bits: list[int]) -> Program:
    """Return the program with other bits on the receiving side of rank 0."""
    bit = program.recv.bit.copy()
    bit[program.recv.owner == 0] = bits
    return dataclasses.replace(program, recv=dataclasses.replace(program.recv, bit=bit))


def test_counts_of_descriptors() -> None:
    """A step starts as many descriptors as its types have send entries; the last one more, for the drained ones."""
    found = decoded(construct(GEN2, [range(576)]), 100)
    counts = [found[f"step{step}_m2s_val"] for step in range(4)]
    assert counts == [3, 38, 38, 3 + 1]
    assert counts == [found[f"step{step}_s2m_val"] for step in range(4)]
    assert (found["desc_count"], found["total_desc_n"]) == (83, 166)


def test_the_queue_and_the_engine() -> None:
    """The last queue of engine 0 of the rank's first core runs the descriptors, which lie at 0x400 of its memory."""
    found = decoded(construct(TRN2, [range(4)]), 3)
    assert (found["queue_id"], found["mask"], found["dma_engines_bitmap"]) == (QUEUE, 1 << ENGINE, 1) == (15, 1, 1)
    assert found["m2s_tail_ptr"] == CAYMAN.doorbell(6, 15, receive=False)
    assert found["s2m_tail_ptr"] == CAYMAN.doorbell(6, 15, receive=True)
    assert found["tdrbp_high"] << 32 | found["tdrbp_low"] == CAYMAN.memory(6) + 0x400
    assert found["dma_sync_sema_value"] == DRAINED == 1
    assert [found[f"dma_sync_sema[{leader}]"] != 0 for leader in range(4)] == [True, False, False, False]
    assert found["start_network_proxy"] == 0


def test_targets_are_the_sums_of_bits() -> None:
    """A slot waits for the sum of the bits of its type on the receiving side, on the type's own semaphore."""
    program = construct(TRN2, [range(64)])
    found = decoded(program, 0)
    recv = program.recv.of(0)
    for step, operation in ((1, 0), (2, 1)):
        for slot, kind in enumerate(list(BarrierType)[1:5]):
            want = sum(1 << bit for bit in recv.bit[recv.kind == kind].tolist())
            assert found[f"step{step}_target_sema_val[{slot}]"] == want
            identity = semaphore_mapping(kind).sem_index[operation][0]
            address = CAYMAN.semaphores(0) + 0x1000 + 4 * identity if want else 0
            assert found[f"step{step}_barrier_sema[{slot}]"] == address
    assert found["step0_target_sema_val[0]"] == sum(1 << b for b in recv.bit[recv.kind == 0].tolist()) != 0


def test_slots_without_peers_are_empty() -> None:
    """A chip alone has nothing to wait for in the second and third step."""
    found = decoded(construct(GEN2, [range(4)]), 2)
    assert all(found[f"step{step}_barrier_sema[{slot}]"] == 0 for step in (1, 2) for slot in range(4))
    assert [found[f"step{step}_m2s_val"] for step in range(4)] == [3, 0, 0, 4]
    assert found["execute_device_barrier"] == 1


def test_a_context_that_the_host_drives_has_its_own_semaphores() -> None:
    """The two contexts share no semaphore but that of the drained descriptors."""
    program = construct(TRN2, [range(4)])
    one, other = decoded(program, 0), decoded(program, 0, context=1)
    assert one["step0_barrier_sema[0]"] - other["step0_barrier_sema[0]"] == 4 * 14
    assert one["dma_sync_sema[0]"] == other["dma_sync_sema[0]"] == CAYMAN.semaphores(0) + 0x1000 + 4 * 4


def test_descriptors_add_the_bit_to_the_peer() -> None:
    """Each signal reads a word `1 << bit` of its own rank and writes 4 bytes to the INC window of its peer."""
    program = construct(TRN2, [range(4)])
    image = lower_barrier(program)[1]
    tx = np.frombuffer(image.page, DESCRIPTOR, 7, RING)
    rx = np.frombuffer(image.page, DESCRIPTOR, 7, RING + 7 * 16)
    words = np.frombuffer(image.page, "<u4")
    base = CAYMAN.memory(2)
    added = words[((tx["buf_ptr"] - np.uint64(base)) // np.uint64(4)).astype(int)].tolist()
    assert added == [2, 32, 8, 2, 32, 8, 1]
    assert (tx["meta_ctrl"] == COPY_WORD).all()
    enter, leave = (semaphore_mapping(BarrierType.INTRA_CHIP).sem_index[i][0] for i in (0, 1))
    peers = [CAYMAN.semaphores(4 * lane) + 0x1800 for lane in (0, 2, 3)]
    own = CAYMAN.semaphores(4) + 0x1800 + 4 * 4
    assert rx["buf_ptr"].tolist() == [*[at + 4 * enter for at in peers], *[at + 4 * leave for at in peers], own]
    assert len(image.page) == RING_END
    assert sum(word != 0 for word in words[FEEDS // 4 : RING // 4].tolist()) == 4  # bits 0, 1, 3 and 5


def test_d6_a_bit_out_of_range() -> None:
    """A bit outside the field of its type is refused, with device, bit, type and operation."""
    program = construct(TRN2, [range(4)])
    for bit in (31, -1):
        with pytest.raises(UnsupportedError, match=rf"\[nec_dev 0\] invalid bit {bit}, barrier type 0 .*D6, status 1"):
            lower_barrier(with_bits(program, [1, 3, bit]))
    assert lower_barrier(with_bits(program, [1, 3, 30]))


def test_d7_a_repeated_bit() -> None:
    """A bit that two entries of a rank set is refused."""
    program = construct(TRN2, [range(4)])
    with pytest.raises(UnsupportedError, match=r"\[nec_dev 0\] bit 3 of barrier type 0 .*already set.*D7, status 1"):
        lower_barrier(with_bits(program, [1, 3, 3]))


def test_rings_of_many_channels_run_out_of_bits() -> None:
    """Channel 15 would need bit 31, which a signed semaphore has not: D6."""
    program = construct(TRN2, [range(16)])
    bit = program.recv.bit.copy()
    across = program.recv.kind != BarrierType.INTRA_CHIP
    bit[across] += 2 * 15
    shifted = dataclasses.replace(program, recv=dataclasses.replace(program.recv, bit=bit))
    with pytest.raises(UnsupportedError, match="invalid bit 31"):
        lower_barrier(shifted)


def test_peers_behind_the_network_have_no_address() -> None:
    """A ring over instances has tables, and no bytes."""
    platform = load_platform("trn1.32xlarge", nodes=2)
    program = construct(platform, [range(64)])
    assert program.recv.owner.size
    with pytest.raises(UnsupportedError, match="through the network"):
        lower_barrier(program)


def test_chips_beyond_the_address() -> None:
    """A chip that no address names is refused."""
    platform = load_platform("trn2.48xlarge", nodes=5)
    with pytest.raises(UnsupportedError, match=r"rank 259 is on chip 64, and an address names 64 chips"):
        lower_barrier(construct(platform, [range(256, 260)]))


def test_more_signals_than_the_ring_takes() -> None:
    """A rank may signal 95 times in a barrier, and once more for the drained ones; more is refused."""
    bit = np.tile(np.arange(31, dtype=np.int64), 2)
    kind = np.repeat(np.array([0, 3], np.int64), 31)
    rows = Entries(bit * 0, bit + 1, kind, bit, bit * 0)
    program = Program(TRN2, (tuple(range(64)),), (Strategy.RING,), rows, rows)
    with pytest.raises(UnsupportedError, match="rank 0 sends 125 signals in one barrier, and its ring takes 96"):
        lower_barrier(program)
    lnc1 = load_platform("trn3pds98", lnc=1)
    images = lower_barrier(construct(lnc1, [range(lnc1.ranks)]))
    assert CONFIG.decode(images[0].config)["desc_count"] == 91  # the most of any machine


@pytest.mark.parametrize("platform", [GEN1, GEN2], ids=["gen1", "gen2"])
def test_promises(platform: Platform) -> None:
    """The switch promises everybody, every other family the neighbours; the pairs say who waits for whom."""
    program = construct(platform, [range(16)])
    assert promised(program) is Guarantee.EVERYBODY
    assert promised(construct(TRN2, [range(4)])) is Guarantee.NEIGHBOURS
    assert pairs_of(program, Guarantee.EVERYBODY)[0].size == 256
    assert pairs_of(program, Guarantee.NEIGHBOURS)[0].size == program.recv.owner.size


def test_an_early_rank_is_found() -> None:
    """The first barrier, rank and outsider are named; leaving at the moment of the last entry is in time."""
    program = construct(TRN2, [range(4)])
    entry = np.array([[0, 1, 2, 3], [10, 11, 12, 20]])
    assert find_early(program, Guarantee.NEIGHBOURS, entry, entry * 0 + [[3], [20]]) is None
    leave = np.array([[3, 3, 3, 3], [20, 19, 20, 20]])
    assert find_early(program, Guarantee.NEIGHBOURS, entry, leave) == Early(1, 1, 3)
