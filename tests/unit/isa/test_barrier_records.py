"""Records of device barriers: sizes, places, enumerations, step tables, semaphores and the 296-byte configuration."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.isa.arch import FIRST_BUFFER
from rota.isa.barrier_records import (
    BARRIER_COMPLETED,
    CONFIG,
    CONTEXTS,
    DEFAULT_PROGRAM,
    DEVICE_VIEW,
    ENTRY,
    FEEDS,
    FIRST_SEMAPHORE,
    GROUP,
    HASH_SHIFT,
    HOME_SP,
    HOST_VIEW,
    LEADERS,
    MAPPING,
    MAX_DEVICES,
    MOST_SIGNALS,
    NUM_BITS,
    PEER,
    RANKS_PER_CHIP,
    RECV,
    RING,
    RING_END,
    SEMAPHORES_PER_CONTEXT,
    SEND,
    SLOTS,
    START_BIT,
    STEP_CONFIG,
    STEP_TABLE,
    STEPS,
    SWITCH_PROGRAM,
    BarrierOperation,
    BarrierType,
    SemaphoreMapping,
    collision_hash,
    search_type_in_step,
    semaphore_mapping,
    step_table,
)
from rota.isa.config import PROGRAM_BLOCK
from rota.isa.layout import Layout
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, MAX_VALUE

KINDS = [kind for kind in BarrierType if kind is not BarrierType.MAX]


def places(layout: Layout) -> dict[str, int]:
    """Return name -> offset."""
    return {each.name: each.at for each in layout.fields}


@pytest.mark.parametrize(
    ("layout", "size"),
    [(PEER, 24), (ENTRY, 32), (GROUP, 72), (MAPPING, 14), (STEP_CONFIG, 52), (DEVICE_VIEW, 292), (HOST_VIEW, 16)],
    ids=lambda value: value.name if isinstance(value, Layout) else str(value),
)
def test_sizes_of_the_records(layout: Layout, size: int) -> None:
    """Peer 24, entry 32, group 72, mapping 14, step 52, device view 292 and host view 16 bytes."""
    assert layout.size == size


def test_places_of_peer_entry_and_group() -> None:
    """A peer is five fields, an entry a peer, a type at 24 and a bit at 28; a group has its tables at 0 and 24."""
    assert places(PEER) == {"neuron_dev": 0, "rid": 4, "tpb_index": 8, "pod_node_id": 12, "reservation_id": 16}
    assert places(ENTRY) == {**places(PEER), "barr_type": 24, "bit_to_set": 28}
    assert places(GROUP) == {"send_table": 0, "recv_table": 24, "group_id": 48, "rg": 56, "comm": 64}
    assert (SEND, RECV) == (0, 1)


def test_places_of_the_configuration() -> None:
    """The device view and its flag behind it are 296 bytes, as the program block has them at 2200."""
    found = places(CONFIG)
    assert CONFIG.size == 296
    assert {name: found[name] for name in ("dma_sync_sema", "m2s_tail_ptr", "s2m_tail_ptr", "mask")} == {
        "dma_sync_sema": 0x0D0, "m2s_tail_ptr": 0x0F0, "s2m_tail_ptr": 0x0F8, "mask": 0x100,
    }  # fmt: skip
    tail = ("start_network_proxy", "dma_sync_sema_value", "tdrbp_low", "tdrbp_high", "desc_count", "total_desc_n",
            "dma_engines_bitmap", "queue_id", "execute_device_barrier")  # fmt: skip
    assert [found[name] for name in tail] == [0x104, 0x10C, 0x110, 0x114, 0x118, 0x11C, 0x120, 0x122, 0x124]
    assert [found[f"step{step}_m2s_val"] for step in range(STEPS)] == [0, 0x34, 0x68, 0x9C]
    assert [found[f"step1_{name}"] - 0x34 for name in ("m2s_val", "s2m_val", "barrier_sema", "target_sema_val")] == [
        0, 2, 4, 0x24,
    ]  # fmt: skip
    block = next(each for each in PROGRAM_BLOCK.fields if each.name == "barrier_configs")
    assert (block.at, block.type) == (2200, f"V{CONFIG.size}")
    assert BARRIER_COMPLETED == 92


def test_the_first_unnamed_byte_is_reserved() -> None:
    """Byte 0x123, bits 1 to 7 of 0x124, and 0x125 to 0x127 are reserved."""
    for at, value in ((0x123, 1), (0x124, 2), (0x125, 1), (0x127, 0x80)):
        data = bytearray(CONFIG.size)
        data[at] = value
        assert CONFIG.reserved(bytes(data)) == at
    assert CONFIG.reserved(CONFIG.encode(execute_device_barrier=1)) is None


def test_enumerations() -> None:
    """Eight barrier types and three operations, by number."""
    assert [(each.name, each.value) for each in BarrierType] == [
        ("INTRA_CHIP", 0), ("INTRA_POD", 1), ("INTER_CHIP", 2), ("INTER_CHIP_RING_LOCAL", 3),
        ("INTER_CHIP_RING_REMOTE", 4), ("INTRA_RACK", 5), ("INTER_RACK", 6), ("MAX", 7),
    ]  # fmt: skip
    assert [(each.name, each.value) for each in BarrierOperation] == [("ENTRY", 0), ("EXIT", 1), ("MAX", 2)]


def test_hash_of_the_collision_key() -> None:
    """The hash is the type xor the bit shifted by 7: (5, 3) gives 389."""
    assert HASH_SHIFT == 7
    assert collision_hash(5, 3) == 389
    assert collision_hash(0, 0) == 0
    assert collision_hash(4, 1) == 132


def test_active_entries_of_the_steps() -> None:
    """The default steps have 1, 4, 4, 1 active entries, the switch's 1, 2, 2, 1."""
    assert [len(step) for step in DEFAULT_PROGRAM] == [1, 4, 4, 1]
    assert [len(step) for step in SWITCH_PROGRAM] == [1, 2, 2, 1]


def test_entries_of_the_steps() -> None:
    """Chips enter first and leave last; between, all other links enter, and then leave, in the same slots."""
    enter, leave = BarrierOperation.ENTRY, BarrierOperation.EXIT
    for program, kinds in ((DEFAULT_PROGRAM, KINDS[1:5]), (SWITCH_PROGRAM, KINDS[5:])):
        assert program == (
            ((BarrierType.INTRA_CHIP, enter),),
            tuple((kind, enter) for kind in kinds),
            tuple((kind, leave) for kind in kinds),
            ((BarrierType.INTRA_CHIP, leave),),
        )


def test_memory_form_of_the_steps() -> None:
    """A step takes 0x20 bytes, a slot 8: a type and an operation; unused slots hold (7, 2)."""
    table = step_table(switch=True)
    assert len(table) == STEP_TABLE.size == 128 == STEPS * SLOTS * 8
    words = [int.from_bytes(table[at : at + 4], "little") for at in range(0, 128, 4)]
    assert words == [0, 0, *[7, 2] * 3, 5, 0, 6, 0, *[7, 2] * 2, 5, 1, 6, 1, *[7, 2] * 2, 0, 1, *[7, 2] * 3]
    default = step_table(switch=False)
    assert default[0x20:0x28] == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert default[0x58:0x60] == bytes([4, 0, 0, 0, 1, 0, 0, 0])


def test_search_type_in_step() -> None:
    """A type is found with its operation and slot, and only in the steps and the family that have it."""
    ring = BarrierType.INTER_CHIP_RING_REMOTE
    assert search_type_in_step(ring, 1, switch=False) == (BarrierOperation.ENTRY, 3)
    assert search_type_in_step(ring, 2, switch=False) == (BarrierOperation.EXIT, 3)
    assert search_type_in_step(ring, 0, switch=False) is None
    assert search_type_in_step(ring, 1, switch=True) is None
    assert search_type_in_step(BarrierType.INTER_RACK, 2, switch=True) == (BarrierOperation.EXIT, 1)
    assert search_type_in_step(BarrierType.MAX, 0, switch=True) is None  # padding is no entry
    with pytest.raises(UsageError, match="barrier step 4: expected 0 to 3"):
        search_type_in_step(ring, 4, switch=False)


def test_each_type_and_operation_has_a_semaphore_of_its_own() -> None:
    """No two of types, operations and contexts share an id, none is reserved, none is near the channels' first."""
    ids = [each for kind in KINDS for row in semaphore_mapping(kind).sem_index for each in row]
    assert len(set(ids)) == len(ids) == len(KINDS) * 2 * CONTEXTS == 28
    assert max(ids) == LAST_FREE == 253
    assert min(ids) == 226 > FIRST_FREE
    assert FIRST_SEMAPHORE == 240
    assert SEMAPHORES_PER_CONTEXT == 14
    with pytest.raises(UsageError, match="barrier type MAX"):
        semaphore_mapping(BarrierType.MAX)


def test_the_mapping_record() -> None:
    """Semaphore ids by operation and context, the stream processor at 8, and first bit and bits for each operation."""
    mapping = semaphore_mapping(BarrierType.INTRA_RACK)
    assert mapping == SemaphoreMapping(((250, 236), (251, 237)), HOME_SP, ((START_BIT, NUM_BITS),) * 2)
    assert (HOME_SP, START_BIT) == (0, 0)
    assert mapping.sem_index == ((250, 236), (251, 237))
    assert mapping.encode() == bytes([250, 0, 236, 0, 251, 0, 237, 0, 0, 0, 0, 31, 0, 31])


def test_all_bits_together_stay_a_signed_number() -> None:
    """The sum of all bits a semaphore takes is the largest value it compares."""
    assert (1 << NUM_BITS) - 1 == MAX_VALUE


def test_what_a_barrier_needs_lies_below_the_buffers() -> None:
    """Words for all bits fit before the ring, the ring ends where buffers start and takes 96 signals."""
    assert FEEDS + 4 * NUM_BITS <= RING < RING_END == FIRST_BUFFER
    assert MOST_SIGNALS == 96
    assert LEADERS == 4


def test_meshes_that_are_taken() -> None:
    """1, 2, 4 or 8 ranks on each of at most 16 chips."""
    assert RANKS_PER_CHIP == (1, 2, 4, 8)
    assert MAX_DEVICES == 16
