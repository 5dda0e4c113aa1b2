"""The layouts around a collective, against isa §5: sizes, reserved bytes, examples; no architecture matters."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

from rota.isa import carriers, layout, operands, pairs, records, transfers, words
from rota.isa.carriers import CARRIERS, RDMA_DESC_GEN_WORD, PseudoOpcode
from rota.isa.layout import Layout
from rota.isa.opcodes import OPCODES, Opcode
from rota.isa.operands import Pattern3D, variable
from rota.isa.records import WORD_SIZE


def span(*runs: tuple[int, int]) -> set[int]:
    """Return the bytes of these runs, ends included."""
    return {at for first, last in runs for at in range(first, last + 1)}


RESERVED = {
    0xA0: span((12, 31), (44, 63)),
    0xA8: span((22, 23), (32, 63)),
    0xA9: span((15, 15), (20, 31), (33, 33), (36, 47), (56, 63)),
    0xBF: span((14, 15), (34, 47)),
    0xC1: span((52, 63)),
    0xC3: span((16, 63)),
    0xCB: span((25, 47)),
    0xD5: span((12, 63)),
    0xD8: span((20, 63)),
    0xD9: set[int](),
    0xDA: span((41, 43), (56, 63)),
    0xDB: span((19, 19), (22, 63)),
    0xDC: span((13, 22), (24, 63)),
    0xDE: span((17, 63)),
    0xDF: span((13, 63)),
    0xF0: set[int](),
}


@pytest.mark.parametrize("opcode", list(CARRIERS), ids=lambda opcode: f"0x{opcode:02X}")
def test_reserved_bytes(opcode: Opcode) -> None:
    """isa §5: a record has 64 bytes, and those the page gives no field are found when set."""
    carrier = CARRIERS[opcode]
    assert carrier.size == WORD_SIZE
    found = {at for at in range(WORD_SIZE) if carrier.reserved(bytes(at) + b"\xff" + bytes(63 - at)) is not None}
    assert found == RESERVED[opcode]


def test_all_are_listed() -> None:
    """The table above and the one in the code have the same rows."""
    assert {int(opcode) for opcode in CARRIERS} == set(RESERVED)


def test_semaphore_increment() -> None:
    """isa §5.10, §14: an increment is 0x10A0 with 0x15 at 0x22, the semaphore at 0x23 and 1 at 0x28."""
    record = CARRIERS[Opcode.EVENT_SEMAPHORE].encode(
        opcode=0xA0, inst_word_len=0x10, ext_update_mode=0x15, ext_update_idx=7, ext_update_value=1
    )
    assert record[:2] == (0x10A0).to_bytes(2, "little")
    assert (record[0x22], record[0x23], record[0x28:0x2C]) == (0x15, 7, bytes([1, 0, 0, 0]))
    assert sum(record) == 0xA0 + 0x10 + 0x15 + 7 + 1


def test_queue_trigger_of_the_known_container() -> None:
    """isa §11.3: `c1 10`, eight event bytes, then the queue's name, ended by 0."""
    record = bytes.fromhex("c1100000 0416 0000 00000000") + b"q_gradient_out".ljust(52, b"\0")
    values = CARRIERS[Opcode.PSEUDO_DMATRIGGER].decode(record)
    name = values["queue_name"].to_bytes(32, "little")
    assert name.rstrip(b"\0") == b"q_gradient_out"
    assert (values["wait_mode"], values["wait_idx"], values["use_raw_count"], values["block_or_count"]) == (4, 22, 0, 0)


def test_semaphore_wait_of_the_known_container() -> None:
    """isa §11.3: `a0 10 00 00 04 0b` waits until semaphore 11 is above 0, by the ordinary events."""
    values = CARRIERS[Opcode.EVENT_SEMAPHORE].decode(bytes.fromhex("a0100000040b").ljust(64, b"\0"))
    assert (values["wait_mode"], values["wait_idx"], values["ext_wait_mode"]) == (4, 11, 0)


def test_end_of_a_program() -> None:
    """isa §5.11: 0xDF with 1 at byte 12 ends a program."""
    record = CARRIERS[Opcode.PSEUDO_INST].encode(opcode=0xDF, pseudo_opcode=PseudoOpcode.PSEUDO_EXIT_EXECUTION)
    assert record[12] == 1
    assert [op.name for op in PseudoOpcode] == ["INVALID", "PSEUDO_EXIT_EXECUTION", "PSEUDO_LIBRARY_RELOAD_INDEX"]


@pytest.mark.parametrize(
    ("name", "at", "size"),
    [
        ("local_sem", 14, 1),
        ("remote_sem", 15, 1),
        ("remote_core_id", 16, 4),
        ("remote_routing_id", 20, 4),
        ("dma_engine_mask", 24, 4),
        ("src_addr", 28, 4),
        ("dst_addr", 32, 4),
        ("free_dim_bytes", 36, 4),
        ("is_bidirectional", 40, 1),
        ("remote_sem_prev", 41, 1),
    ],
)
def test_descriptor_generation(name: str, at: int, size: int) -> None:
    """isa §5.11: operands of extended opcode 8."""
    record = RDMA_DESC_GEN_WORD.encode(**{name: (1 << 8 * size) - 1})
    assert record == bytes(at) + b"\xff" * size + bytes(64 - at - size)


MODULES = (carriers, operands, records, words, layout)
ENCODERS: tuple[Callable[..., bytes], ...] = (
    words.encode_word,
    pairs.encode_pair,
    transfers.encode_send_recv,
    transfers.encode_sb2sb,
)


def test_no_layout_knows_an_architecture() -> None:
    """isa §1: one body serves all four architectures. No table of layouts and no encoder names one."""
    for module in MODULES:
        source = inspect.getsource(module)
        assert not [arch for arch in OPCODES if arch in source], module.__name__
        for value in vars(module).values():
            if isinstance(value, Layout):
                assert not [arch for arch in OPCODES if arch in repr(value)]
    for encoder in ENCODERS:
        assert not {"arch", "platform"} & set(inspect.signature(encoder).parameters)
    assert all(isinstance(each, Layout) for each in CARRIERS.values())  # one each, not one by architecture


@pytest.mark.parametrize("opcode", [0xC7, 0xC8, 0xCB, 0xD5, 0xD8, 0xD9, 0xDA, 0xDB, 0xDC])
def test_collective_records_exist_everywhere(opcode: int) -> None:
    """isa §1, §3.2: the collective band is the same on v2 to v5, so that one body can serve."""
    assert all(opcode in opcodes for opcodes in OPCODES.values())


def test_loads_without_numpy() -> None:
    """The tables are read by commands that must start without numpy."""
    code = (
        "import sys, rota.isa.carriers, rota.isa.pairs, rota.isa.transfers, rota.isa.counts, rota.isa.validators\n"
        "sys.exit(bool({'numpy', 'ml_dtypes'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_patterns_lie_as_the_page_prints() -> None:
    """isa §4: TENSOR3D is address, three i16 steps at 4, three u16 counts at 10; the 2-D one is 24 bytes."""
    three = Pattern3D(0x01020304, (-1, 2, 3), (4, 5, 6))
    assert operands.TENSOR3D.encode(address=three.address, step=three.step, num=three.num).hex(" ", 2) == (
        "0403 0201 ffff 0200 0300 0400 0500 0600"
    )
    two = variable(9, step=(-1, 2), num=(3, 4)).values("")
    assert operands.PSEUDO_ADDR8TENSOR2D.encode(**two).hex(" ", 4) == (
        "09000000 00000010 ffffffff 02000000 03000000 04000000"
    )
