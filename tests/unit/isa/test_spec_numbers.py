"""Numbers and places of the specification, typed a second time from its pages."""

from __future__ import annotations

import pytest

from rota.isa import (
    arch,
    carriers,
    cce_info,
    config,
    descriptors,
    engines,
    op_words,
    operand_words,
    operands,
    packets,
    pairs,
    records,
    ring_cursor,
    semaphores,
    spad,
    templates,
    transfer_types,
    vrings,
)
from rota.isa.dtypes import Dtype
from rota.isa.layout import Layout
from rota.isa.opcodes import NAME_LENGTH

PLACES: list[tuple[Layout, dict[str, tuple[int, int]]]] = [
    # isa §5.5
    (carriers.SEND_RECV_WORD, {"tensor_id": (12, 4), "peer_id": (16, 8), "is_send": (24, 1), "offset_bytes": (48, 8),
                               "size_bytes": (56, 8)}),
    # isa §5.9
    (carriers.SB2SB_WORD, {"in_dtype": (12, 1), "out_dtype": (13, 1), "lnc_size": (32, 1), "num_channels": (33, 1)}),
    # isa §5.6
    (carriers.RANK_ID_WORD, {"group_id": (12, 2), "channel_id": (14, 2), "iteration_id": (16, 2), "dst_reg": (18, 1),
                             "stream_id": (20, 2)}),
    (carriers.GID_LOAD_WORD, {"valid": (12, 1), "dst_reg": (23, 1)}),
    # isa §5.7
    (carriers.CORE_BARRIER_WORD, {"barrier_id": (12, 4), "semaphore": (16, 4)}),
    (carriers.SYNC_BARRIER_WORD, {"opcode": (0, 1), "wait_mode": (4, 1), "semaphore_value": (8, 4)}),
    (carriers.DMA_BARRIER_WORD, {"barrier_metadata": (12, 4)}),
    # isa §5.8
    (carriers.DMA_TRIGGER_WORD, {"queue_name": (12, 32), "use_raw_count": (44, 4), "block_or_count": (48, 4)}),
    # isa §2.3, §5.10
    (carriers.EVENT_SEMAPHORE_WORD, {"ext_wait_mode": (0x20, 1), "ext_update_mode": (0x22, 1),
                                     "ext_update_idx": (0x23, 1)}),
    (carriers.ALU_WORD, {"op": (12, 1), "dtype": (13, 1), "src1_source": (14, 1), "dst_dtype": (15, 1),
                         "immediate": (24, 8)}),
    (carriers.BRANCH_WORD, {"compare_op": (12, 1), "dtype": (13, 1), "target_mode": (14, 1), "compare_value": (16, 4),
                            "compare_reg": (32, 1), "target": (48, 8)}),
    # isa §5.11
    (carriers.TENSOR_COMPLETION_WORD, {"completion_id": (12, 4), "access_pattern": (16, 1)}),
    (carriers.PSEUDO_INST_WORD, {"pseudo_opcode": (12, 1)}),
    (carriers.EXTENDED_WORD, {"extended_opcode": (12, 1), "completion_info": (13, 1), "specific": (14, 50)}),
    # isa §2.3
    (records.EVENTS_EXTENDED, {"wait_mode": (0, 1), "wait_idx": (1, 1), "update_mode": (2, 1), "update_idx": (3, 1)}),
    # isa §4
    (operands.ADDR4_REGISTER, {"register": (0, 1), "marker": (3, 1)}),
    (operands.ADDR8_REGISTER, {"register_low": (0, 1), "register_high": (1, 1), "marker": (7, 1)}),
    (operands.TENSOR2D, {"address": (0, 4), "step[0]": (4, 2), "num[0]": (8, 2), "num[1]": (10, 2)}),
    # device §6
    (config.HIERARCHY, {"handle": (0, 8)}),
]  # fmt: skip
BITS: list[tuple[Layout, dict[str, tuple[int, int]]]] = [
    # isa §4: lowest bit and width in the little-endian record
    (operands.PARTITION_OFFSET, {"address": (0, 29)}),
    (operands.ADDR4, {"value": (0, 26), "marker": (26, 6)}),
    (operands.ADDR8, {"value": (0, 58), "marker": (58, 6)}),
    (operands.DTYPE_PAIR, {"src": (0, 4), "dst": (4, 4)}),
    (operands.DMA_CONFIGS, {"priority_class": (0, 3)}),
    (operands.BOUND_CHECK_REG, {"register": (0, 6), "silent": (6, 1), "enabled": (7, 1)}),
    # device §2.1
    (spad.CONTROL_RING, {"cc_op": (0, 1), "algo_type": (8, 4), "algo_sub_type": (12, 3), "trigger_next": (15, 1),
                         "reporter": (16, 1), "ring_wait_complete": (17, 1), "ring_send_complete": (18, 1),
                         "safe_mode": (19, 1), "unique_tensors": (20, 1), "channel_list": (32, 32)}),
    (spad.CONTROL_MESH, {"sema_shift_offset": (32, 16), "sema_mask": (48, 16)}),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "fields"), PLACES, ids=lambda value: getattr(value, "name", ""))
def test_fields_stand_where_the_page_says(layout: Layout, fields: dict[str, tuple[int, int]]) -> None:
    """All ones in a field fill exactly its bytes."""
    for name, (at, size) in fields.items():
        data = bytearray(layout.size)
        data[at : at + size] = b"\xff" * size
        found = {key: value for key, value in layout.decode(bytes(data)).items() if value}
        assert list(found) == [name]
        assert abs(found[name]) == (1 if found[name] < 0 else (1 << 8 * size) - 1)


@pytest.mark.parametrize(("layout", "fields"), BITS, ids=lambda value: getattr(value, "name", ""))
def test_bits_stand_where_the_page_says(layout: Layout, fields: dict[str, tuple[int, int]]) -> None:
    """All ones in a bit field fill exactly its bits."""
    for name, (low, width) in fields.items():
        word = ((1 << width) - 1) << low
        found = {key: value for key, value in layout.decode(word.to_bytes(layout.size, "little")).items() if value}
        assert found == {name: (1 << width) - 1}


def test_addresses() -> None:
    """Routing bits, bits 46:0 local, 47 die, 53:48 chip, 54 valid. Source: device §8.2."""
    assert (arch.DIE_BIT, arch.CHIP_SHIFT, arch.CHIP_VALID_BIT) == (47, 48, 54)
    assert (arch.CHIP_BITS, {each.chips for each in arch.ARCHES.values() if each.name != "mariana"}) == (6, {64})
    assert arch.LOCAL_MASK == 0x7FFF_FFFF_FFFF
    assert templates.TEMPLATE_BIT == 1 << 61


def test_chips_of_the_switch_machines() -> None:
    """On family 15 bits 53:48 = nec_dev & 63 and 56:55 = nec_dev >> 6, else 63:55 zero. Source: design §2 (21)."""
    assert arch.CHIP_HIGH_SHIFT == 55
    assert {name: each.chip_bits_end for name, each in arch.ARCHES.items()} == {
        "sunda": 55,
        "cayman": 55,
        "mariana": 57,
    }
    routed = arch.route(0x123, 143, 0)
    assert routed == 0x123 + ((143 & 63) << 48) + (1 << 54) + ((143 >> 6) << 55)
    assert arch.chip_of(routed) == 143


def test_descriptor_words() -> None:
    """Length 65536 is written as 0, phases start at 1, and where the operation word has what. Source: sdma §2 to §5."""
    assert (descriptors.LENGTH_MASK, descriptors.MAX_LENGTH, descriptors.FIRST_PHASE) == (0xFFFF, 65536, 1)
    assert (descriptors.OP_TYPE_SHIFT, descriptors.OP_TYPE_MASK) == (20, 7)
    assert (descriptors.SSMAE_OP_SHIFT, descriptors.SSMAE_OP_MASK) == (23, 7)
    shifts = (descriptors.FMA_INPUT_SHIFT, descriptors.TRANSFER_SHIFT, descriptors.ACCUMULATE_SHIFT)
    assert (shifts, descriptors.NIBBLE) == ((8, 12, 16), 0xF)
    assert (descriptors.FMA_SELECTORS, descriptors.SCALE_DTYPE) == (0x09000000, Dtype.FP32)
    selectors = operand_words.Selector
    assert [selectors.STORED_BUFFER, selectors.INPUT_BUFFER, selectors.SCALE] == [0, 1, 2]
    assert op_words.WORD_SIZE == 4
    assert {kind.name for kind in op_words.NEEDS_REPLICATION} == {"EXT", "REPLICATION"}
    kinds = {one.name: other.name for one, other in packets.WORD_KIND.items()}
    assert kinds == {name: name for name in ("ADD", "FMA", "MAX", "MIN", "EXT")}


def test_engine_numbers() -> None:
    """Queue stride, second tail register, seed registers, 24-bit doorbells. Source: sdma §1, §11, §14.6."""
    assert (engines.QUEUE_STRIDE, engines.DATA_TAIL_INCREMENT) == (0x1000, 0xE0)
    seeds = (engines.SEED_STRIDE, engines.SEED_CONVERTERS, engines.SEED_QUEUES, engines.SEED_FIRST_ROW)
    assert seeds == (8, 16, 16, 8)
    assert (ring_cursor.DOORBELL_BITS, ring_cursor.GUARD) == (24, 16)


def test_container_records() -> None:
    """The reduce record and the virtual rings. Source: sdma §10, §14.1, §14.5."""
    assert (cce_info.CCE_INFO_SIZE, cce_info.MAX_SOURCES) == (140, 32)
    assert (vrings.NAME_SIZE, vrings.VRINGS_OF_SET, vrings.VRING_SET_SIZE, vrings.NO_OP_BYTES) == (256, 16, 5520, 4)


def test_types_of_a_transfer() -> None:
    """The four-byte class of the legacy gate, and what one-byte packets become. Source: sdma §9."""
    assert {Dtype.INT32, Dtype.UINT32, Dtype.FP32, Dtype.FP32R} == transfer_types.FOUR_BYTE
    assert transfer_types.PROMOTED is Dtype.UINT16


def test_operand_addresses() -> None:
    """State buffer quadrants and PSUM. Source: isa §4, §5.4."""
    assert (operands.ADDRESS_MASK, operands.QUADRANT_MASK, operands.PSUM_BIT) == (0x1FFFFFFF, 0x1E000000, 25)
    assert (operands.PSUM_START, operands.PSUM_LAST) == (0x2000000, 0x2203FFF)
    assert operands.SBUF_QUADRANTS == (0x0, 0x800000, 0x1000000, 0x1800000)
    assert (operands.SBUF_QUADRANT_SIZE, operands.SBUF_ADDRESS_MASK) == (0x38000, (1 << 25) - 1)
    assert operands.MAX_PRIORITY == 4


def test_words_and_pairs() -> None:
    """A pair, priority on v2, branch targets, length of names. Source: isa §1, §3.2, §5.4, §5.10."""
    assert pairs.PAIR_SIZE == 128
    assert {"sunda"} == pairs.WITHOUT_PRIORITY
    modes = carriers.BranchTarget
    assert [modes.REG, modes.REL_IMM, modes.REL_REG] == [1, 3, 4]
    assert NAME_LENGTH == 16


def test_scratchpad_and_semaphores() -> None:
    """Six slot programs behind a 4 KiB control table at 1 MiB; semaphores four bytes apart. Source: device §2.3, §8."""
    assert (spad.SLOTS, spad.SPAD_OFFSET, semaphores.STRIDE) == (6, 0x100000, 4)
    assert spad.control_base(0x8280000000) == 0x8280100000
    assert spad.slot_bases(0) == tuple(0x101000 + 0x8000 * slot for slot in range(6))
