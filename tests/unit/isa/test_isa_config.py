"""The device configuration, against device §3, §4 and §5."""

from __future__ import annotations

import dataclasses

import pytest

from rota.errors import DecodeError, UsageError
from rota.isa.config import (
    BROADCAST,
    CHANNELS,
    CONFIGURATIONS,
    DEVICE_IDS,
    DMA_ALLOCATIONS,
    HOST_BLOCK_SIZE,
    HOST_EVENTS,
    MESH_EVENT,
    NEIGHBOUR,
    PROGRAM_BLOCK,
    RING_CHANNEL,
    Configuration,
    NeighbourType,
)
from rota.isa.layout import Layout


@pytest.mark.parametrize(
    ("arch", "offsets", "events"),
    [
        ("sunda", [0, 0x1280, 0x2220, 0x2228, 0x3030, 0x3060, 0x30C0], 50),
        ("cayman", [0, 0x1280, 0x3440, 0x3448, 0x4250, 0x4280, 0x42E0], 108),
        ("mariana", [0, 0x1280, 0x3440, 0x3448, 0x4250, 0x4280, 0x42E0], 108),
    ],
)
def test_where_the_parts_are(arch: str, offsets: list[int], events: int) -> None:
    """device §3: ring, mesh, hierarchical handle, program block, device ids, total, run-time algorithm records."""
    config = CONFIGURATIONS[arch]
    assert [part.name for part in config.parts] == ["ring", "mesh", "hierarchy", "program", "device_ids"]
    assert [*(part.at for part in config.parts), config.size, config.runtime_algorithm] == offsets
    assert config.part("mesh").count == events


def test_parts_are_back_to_back() -> None:
    """device §3: every offset is the end of the part before; a table with a gap or an overlap is refused."""
    cayman = CONFIGURATIONS["cayman"]
    moved = (dataclasses.replace(cayman.parts[0], count=31), *cayman.parts[1:])
    with pytest.raises(ValueError, match="parts end at"):
        Configuration(size=cayman.size, parts=moved, runtime_algorithm=0)
    with pytest.raises(ValueError, match="parts end at"):
        Configuration(size=cayman.size + 8, parts=cayman.parts, runtime_algorithm=0)


def test_host_block() -> None:
    """device §3: the host keeps 20736 bytes of algorithms (4736 of rings, 16000 of events), a program block and ids."""
    rings, events = CHANNELS * RING_CHANNEL.size, HOST_EVENTS * MESH_EVENT.size
    assert (rings, events, rings + events) == (4736, 16000, 20736)
    assert rings + events + PROGRAM_BLOCK.size + DEVICE_IDS.size == HOST_BLOCK_SIZE == 24376


def offsets(layout: Layout) -> dict[str, int]:
    """Return the offset of each field."""
    return {field.name: field.at for field in layout.fields}


def stray_bits(layout: Layout) -> list[int]:
    """Return the bits of a record that no field names."""
    size = layout.size
    return [bit for bit in range(8 * size) if layout.reserved((1 << bit).to_bytes(size, "little")) is not None]


def test_ring_channel_fields() -> None:
    """device §4: the rows of the 148-byte table; a neighbour has 28 bytes, a broadcast 20."""
    assert (RING_CHANNEL.size, NEIGHBOUR.size, BROADCAST.size) == (148, 28, 20)
    assert offsets(NEIGHBOUR) == {"network_index": 0, "fold_n": 24, "type": 25}
    assert offsets(RING_CHANNEL) == {
        "next_network_index": 0, "next_fold_n": 24, "next_type": 25,
        "prev_network_index": 28, "prev_fold_n": 52, "prev_type": 53,
        "recv_sema": 56, "send_sema": 64, "post_sema": 72, "dma_compl_sema": 80, "kangaring_mine": 88,
        "kangaring_peers": 96,
        "m2s_tail_ptr": 120, "s2m_tail_ptr": 128, "mask": 136, "channel_id": 140, "spad_slot_idx": 141, "fold_n": 142,
        "kangaring_is_primary": 143, "kangaring_num_peers": 144,
    }  # fmt: skip
    assert list(NeighbourType) == [0, 1, 2]


def test_mesh_event_fields() -> None:
    """device §5: the 80-byte record."""
    assert MESH_EVENT.size == 80
    assert offsets(MESH_EVENT) == {
        "leg0_m2s_tail_ptr": 0, "leg0_s2m_tail_ptr": 8, "leg0_mask": 16,
        "leg1_m2s_tail_ptr": 20, "leg1_s2m_tail_ptr": 28, "leg1_mask": 36,
        "direct_trigger_sema": 40, "event_wait_sema": 64, "wait_val": 72, "event_type": 76, "dma_trigger": 77,
        "direct_trigger": 78, "wait_event": 79,
    }  # fmt: skip
    assert MESH_EVENT.reserved(b"\xff" * 80) is None


def test_program_block_fields() -> None:
    """device §3.1: the offsets of the 3592-byte block."""
    assert PROGRAM_BLOCK.size == 3592
    assert offsets(PROGRAM_BLOCK) == {
        "dma_alloc_bitmap": 0, "desc_count": 64, "slot_spad_base": 2144, "ctrl_spad_base": 2192,
        "barrier_configs": 2200, "basic_blocks": 2496, "switch_completed": 2496 + 1024, "pring_base_addr": 2496 + 1032,
        "pring_total_desc_num": 2496 + 1040, "trigger": 3544, "trigger_next": 3552, "complete": 3560,
        "complete_prev": 3568, "tpb_stop_sema": 3576, "op_num": 3584, "function_n": 3588, "tpb_compl_addr_num": 3590,
        "leader": 3591, "dbg_cc_nop": 3591, "host_cc": 3591,
    }  # fmt: skip
    flags = [PROGRAM_BLOCK.encode(**{name: 1})[3591] for name in ("leader", "dbg_cc_nop", "host_cc")]
    assert flags == [1, 2, 4]
    assert stray_bits(PROGRAM_BLOCK) == [*range(8 * 3540, 8 * 3544), *range(8 * 3591 + 3, 8 * 3592)]
    assert (DMA_ALLOCATIONS, PROGRAM_BLOCK.decode(bytes(3592)).get("dma_alloc_bitmap[15]")) == (8, 0)


def test_device_id_fields() -> None:
    """device §3.1: the 48-byte record; ids are nibbles."""
    data = DEVICE_IDS.encode(dma_apb_rsvd_addr=1, eng_tpb=2, timestamp_local=3, timestamp_tpb=4, timestamp_tpb_val=5,
                             tpb_ctrl_ack=6, tpb_id=7, seng_id=8, dev_id=9)  # fmt: skip
    assert (len(data), {at: byte for at, byte in enumerate(data) if byte}) == (
        48,
        {0: 1, 8: 2, 16: 3, 24: 4, 32: 5, 36: 6, 44: 0x87, 45: 9},
    )
    assert stray_bits(DEVICE_IDS) == list(range(8 * 45 + 4, 8 * 48))


@pytest.mark.parametrize("arch", list(CONFIGURATIONS))
def test_parts_are_views_of_the_image(arch: str) -> None:
    """Writing through the columns of a part changes the image, at the part's offset and nowhere else."""
    config = CONFIGURATIONS[arch]
    image = bytearray(config.size)
    config.columns(image, "ring")["channel_id"][31] = 31
    config.columns(image, "program")["op_num"] = 5
    program = config.part("program").at
    assert {at: byte for at, byte in enumerate(image) if byte} == {31 * 148 + 140: 31, program + 3584: 5}


def test_reserved_bytes_of_the_image() -> None:
    """The first byte that no record names is found, with its offset in the image."""
    config = CONFIGURATIONS["cayman"]
    image = bytearray(config.size)
    assert config.reserved(image) is None
    image[config.part("device_ids").at + 46] = 1
    assert config.reserved(image) == 0x4250 + 46
    image[148 + 145] = 1
    assert config.reserved(image) == 148 + 145


def test_image_of_another_size() -> None:
    """An image that is not the configuration's size is a DecodeError."""
    with pytest.raises(DecodeError, match="at offset 0: expected 17024 bytes, got 12384 bytes"):
        CONFIGURATIONS["cayman"].columns(bytes(0x3060), "ring")


def test_unknown_part() -> None:
    """A part that does not exist is refused with those that do."""
    with pytest.raises(UsageError, match="no 'rings': expected one of ring, mesh, hierarchy, program, device_ids"):
        CONFIGURATIONS["cayman"].part("rings")
