"""A second decoder of every record and operand, written with `struct` from the pages' offsets, on random bytes.

CI reads 200 records of each layout; `-m slow` reads 10,000.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from rota.isa import carriers, operands, records, words
from rota.isa.layout import Layout

HEAD_NAMES = "opcode inst_word_len debug_cmd debug_hint wait_mode wait_idx update_mode update_idx semaphore_value"
HEAD = HEAD_NAMES.split(" ")  # "<8BI"
TABLES: dict[str, tuple[str, str]] = {
    # layout: format after the header and the events, names; `x` is reserved
    "all_reduce_word": ("BB2xIIQ32x", "op dtype input_id output_id num_elements"),
    "collective_word": (
        "BBHIIQB15xQQ",
        "op dtype group_id input_id output_id num_elements ctype src_offset dst_offset",
    ),
    "collective2_word": (
        "4BQ2i2IQ2i2I",
        "op dtype ctype cc_dim src0_address src0_step[0] src0_step[1] src0_num[0] src0_num[1] "
        "src1_address src1_step[0] src1_step[1] src1_num[0] src1_num[1]",
    ),
    "send_recv_word": ("IQB23xQQ", "tensor_id peer_id is_send offset_bytes size_bytes"),
    "sb2sb_word": (
        "BB2xI3h3HBB14xI3h3H",
        "in_dtype out_dtype src_address src_step[0] src_step[1] src_step[2] src_num[0] src_num[1] src_num[2] "
        "lnc_size num_channels dst_address dst_step[0] dst_step[1] dst_step[2] dst_num[0] dst_num[1] dst_num[2]",
    ),
    "rank_id_word": ("HHHBxH42x", "group_id channel_id iteration_id dst_reg stream_id"),
    "gid_load_word": ("B10xB40x", "valid dst_reg"),
    "core_barrier_word": ("II44x", "barrier_id semaphore"),
    "sync_barrier_word": ("52x", ""),
    "dma_barrier_word": ("I48x", "barrier_metadata"),
    "dma_trigger_word": ("32sII12x", "queue_name use_raw_count block_or_count"),
    "event_semaphore_word": (
        "20x4BII20x",
        "ext_wait_mode ext_wait_idx ext_update_mode ext_update_idx ext_wait_value ext_update_value",
    ),
    "alu_word": (
        "4B2B2B2B2xQ32x",
        "op dtype src1_source dst_dtype src0[0] src0[1] src1[0] src1[1] dst[0] dst[1] immediate",
    ),
    "branch_word": (
        "BBBxI12xBx2B12xQ8x",
        "compare_op dtype target_mode compare_value compare_reg target_regs[0] target_regs[1] target",
    ),
    "tensor_completion_word": ("IB47x", "completion_id access_pattern"),
    "pseudo_inst_word": ("B51x", "pseudo_opcode"),
    "extended_word": ("BB50s", "extended_opcode completion_info specific"),
    "rdma_desc_gen_word": (
        "BBBBIIIIIIBB22x",
        "extended_opcode completion_info local_sem remote_sem remote_core_id remote_routing_id dma_engine_mask "
        "src_addr dst_addr free_dim_bytes is_bidirectional remote_sem_prev",
    ),
    "record": ("52x", ""),
}
BARE: dict[str, tuple[str, str]] = {
    "header": ("4B", " ".join(HEAD[:4])),
    "events": ("4BI", " ".join(HEAD[4:])),
    "events_extended": ("4BII", "wait_mode wait_idx update_mode update_idx wait_value update_value"),
    "addr4_register": ("B2xB", "register marker"),
    "addr8_register": ("BB5xB", "register_low register_high marker"),
    "pseudo_addr8": ("I3xB", "var_id marker"),
    "tensor2d": ("I2h2H", "address step[0] step[1] num[0] num[1]"),
    "tensor3d": ("I3h3H", "address step[0] step[1] step[2] num[0] num[1] num[2]"),
    "pseudo_addr8tensor2d": ("Q2i2I", "address step[0] step[1] num[0] num[1]"),
}


def extension(data: bytes) -> dict[str, int]:
    """Read 0xDA: no header; the priority class is three bits of byte 41."""
    names = "opcode chaining group_id channel_id stream_id dst_address dst_step[0] dst_step[1] dst_num[0] dst_num[1] "
    names += "cc_buf_start cross_sb_out priority_class cc_buf_size src1_bitmap"
    values = dict(zip(names.split(), struct.unpack("<BBHHHQ2i2IQBB2xIQ8x", data), strict=True))
    return {**values, "priority_class": values["priority_class"] & 7}


def number(data: bytes) -> int:
    """Read bytes as one number."""
    return sum(byte << 8 * at for at, byte in enumerate(data))


BITS: dict[str, Callable[[bytes], dict[str, int]]] = {
    "extension_word": extension,
    "partition_offset": lambda data: {"address": number(data) & 0x1FFFFFFF},
    "addr4": lambda data: {"value": number(data) % (1 << 26), "marker": data[3] >> 2},
    "addr8": lambda data: {"value": number(data) % (1 << 58), "marker": data[7] >> 2},
    "dtype_pair": lambda data: {"src": data[0] & 15, "dst": data[0] >> 4},
    "dma_configs": lambda data: {"priority_class": data[0] & 7},
    "bound_check_reg": lambda data: {"register": data[0] & 63, "silent": data[0] >> 6 & 1, "enabled": data[0] >> 7},
}
LAYOUTS = {
    each.name: each
    for module in (carriers, operands, records, words)
    for each in vars(module).values()
    if isinstance(each, Layout)
}


def second(name: str, data: bytes) -> dict[str, int]:
    """Read a record by the tables above."""
    if name in BITS:
        return BITS[name](data)
    form, names = (f"8BI{TABLES[name][0]}", [*HEAD, *TABLES[name][1].split()]) if name in TABLES else (
        BARE[name][0],
        BARE[name][1].split(),
    )  # fmt: skip
    values = struct.unpack(f"<{form}", data)
    return {
        each: number(value) if isinstance(value, bytes) else value for each, value in zip(names, values, strict=True)
    }


def agree(layout: Layout, rows: int) -> None:
    """Compare the two decoders on this many random records, and encode each again where it has no reserved bit."""
    chance = random.Random(layout.name)
    for _ in range(rows):
        data = chance.randbytes(layout.size)
        values = second(layout.name, data)
        assert layout.decode(data) == values
        clean = layout.encode(**values)
        assert second(layout.name, clean) == values
        assert (layout.reserved(data) is None) == (clean == data)


def test_every_layout_has_a_second_reading() -> None:
    """No record and no operand is decoded by one table alone."""
    assert set(LAYOUTS) == {*TABLES, *BARE, *BITS}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_two_decoders_agree(layout: Layout) -> None:
    """isa §2, §4, §5: a second reading of the pages finds the same values, and the same reserved bytes."""
    agree(layout, 200)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_two_decoders_agree_on_ten_thousand(layout: Layout) -> None:
    """The same on 10,000 records."""
    agree(layout, 10_000)
