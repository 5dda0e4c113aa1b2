"""The vocabularies and the tables between them, against the sentences of isa §3, §6, §7 and §8."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rota.isa.enums import (
    ALU_OF_CCE,
    CCE_OF_ALU,
    CCE_OF_KBIN,
    CCE_OF_NRT,
    CTYPE_OF_COMPILER_KIND,
    CTYPE_OF_ENC,
    ENC_OF_CTYPE,
    NRT_OF_CCE,
    PTC_ALU_MASK,
    PTC_INPUT_SCALE_MASK,
    PTC_OUTPUT_SCALE_MASK,
    REDUCING,
    RING_TYPE_OF_ALGORITHM,
    Algorithm,
    AluOp,
    CceOp,
    CceType,
    Chaining,
    CollectiveType,
    CommScope,
    EncOp,
    HalfChunk,
    KbinOp,
    MeshType,
    Neighbour,
    NrtOp,
    Opcode,
    Pattern,
    PodType,
    ReductionType,
    RingType,
    SdmaOp,
    UpdateMode,
    WaitMode,
)
from rota.isa.opcodes import KNOWN_OPCODES, OPCODES, describe_opcode, is_pseudo

MASKS = {0x00: 0x0001001E0000003E, 0x41: 0x7FEFFFFFE08F7FFF, 0x82: 0x024BC3FFFFDF3F7F, 0xC1: 0x400082F07FBFFFFF}


def test_sunda_opcodes_are_those_of_the_runtime_masks() -> None:
    """isa §3.2: the four 64-bit legality masks of the runtime decode to exactly the v2 opcodes."""
    legal = {base + bit for base, mask in MASKS.items() for bit in range(64) if mask >> bit & 1}
    assert OPCODES["sunda"] == legal


def test_opcode_counts() -> None:
    """isa §3.2: the enum has 145, 150, 159 and 165 members on v2 to v5, the sentinel included."""
    assert {arch: len(opcodes) for arch, opcodes in OPCODES.items()} == {
        "sunda": 145,
        "cayman": 150,
        "mariana": 159,
        "maverick": 165,
    }


def test_no_opcode_between_the_bands() -> None:
    """isa §3.1, §3.2: 0x00, 0xC0 and the sentinel 0xFF are no instructions; every other named opcode is one."""
    assert not KNOWN_OPCODES & {0x00, 0xC0, 0xFF}
    assert {int(opcode) for opcode in Opcode} - {Opcode.INVALID} == {op for op in KNOWN_OPCODES if op >= 0xA0}


@pytest.mark.parametrize(
    ("opcode", "present"),
    [
        (0xBF, {"cayman", "mariana", "maverick"}),
        (0xD7, {"cayman", "mariana", "maverick"}),
        (0xB4, {"mariana", "maverick"}),
        (0xE0, {"mariana", "maverick"}),
        (0xB6, {"maverick"}),
        (0xF3, {"maverick"}),
        (0x8A, {"sunda"}),
        (0x81, {"cayman", "mariana", "maverick"}),
        (0xC7, set(OPCODES)),
        (0xC8, set(OPCODES)),
    ],
)
def test_presence_by_architecture(opcode: int, present: set[str]) -> None:
    """isa §3.2: rows of the presence columns."""
    assert {arch for arch, opcodes in OPCODES.items() if opcode in opcodes} == present


def test_pseudo_band() -> None:
    """isa §3.1: an opcode is pseudo when its upper three bits are 0b110."""
    assert [opcode for opcode in range(256) if is_pseudo(opcode)] == list(range(0xC0, 0xE0))


def test_opcode_is_described_by_name_where_it_has_one() -> None:
    """Messages name an opcode, or give its number."""
    assert describe_opcode(0xC8) == "PSEUDO_TRIGGER_COLLECTIVE 0xC8"
    assert describe_opcode(0x41) == "opcode 0x41"


ENUMS = [
    (
        EncOp,
        "ALLGATHER ALLREDUCE BROADCAST REDUCE REDUCE_SCATTER SEND RECV ALLTOALL PERMUTE PERMUTE_REDUCE "
        "PERMUTE_IMPLICIT PERMUTE_REDUCE_IMPLICIT ALLTOALL_V INVALID",
    ),
    (
        Algorithm,
        "RING HIER MESH KANGARING SINGLE_CYCLE_RING INTRA_RDH SINGLE_STEP_MESH INTER_RDH TWO_STEP_POD_MESH "
        "LATENCY_OPT_MESH BW_OPT_MESH INVALID",
    ),
    (
        CollectiveType,
        "INVALID ALL_REDUCE REDUCE_SCATTER ALL_GATHER ALL_TO_ALL PERMUTE PERMUTE_REDUCE PERMUTE_IMPLICIT "
        "PERMUTE_REDUCE_IMPLICIT ALL_TO_ALL_V",
    ),
    (MeshType, "FULL_MESH GROUPED_MESH MESH_TRN2 MESH_SWITCH INVALID"),
    (RingType, "RING KANGARING SINGLE_CYCLE_RING RDH INVALID"),
    (Pattern, "RING MESH INVALID"),
    (CommScope, "INTRA INTER MAX"),
    (PodType, "NONE P2P SWITCH INVALID"),
    (ReductionType, "RING_2R1W RING_2R2W KANGARING_NR1W"),
    (HalfChunk, "H0 H1 SPLIT_N"),
    (Neighbour, "LOCAL NEXT PREV GATEWAY PEER_RMTV PEER_RMTV2 PEER_LOCAL NEXT_PEER_RMTV INVALID"),
    (CceType, "ADD FMA MAX MIN EXT GCE"),
    (Chaining, "NONE FIRST MIDDLE LAST"),
]


@pytest.mark.parametrize(("enum", "names"), ENUMS, ids=lambda value: getattr(value, "__name__", ""))
def test_members_are_numbered_in_order(enum: type[EncOp], names: str) -> None:
    """isa §6, §7: these enums count from 0 in the order the specification prints."""
    assert [(member.name, int(member)) for member in enum] == [(name, i) for i, name in enumerate(names.split())]


def test_sparse_enums() -> None:
    """isa §6.3, §7: the enums with holes."""
    assert {op.name: int(op) for op in CceOp} == {"ADD": 0, "MAX": 2, "MIN": 3}
    assert {op.name: int(op) for op in NrtOp} == {"ADD": 0, "FMA": 1, "MAX": 2, "MIN": 3, "INVALID": 15}
    assert {op.name: int(op) for op in SdmaOp} == {"DRE": 1, "CME": 2, "CCE": 4}
    assert [int(op) for op in KbinOp] == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_alu_op_band() -> None:
    """isa §6.2: values 0x00 to 0x21 with four holes, then the integer band."""
    low = [int(op) for op in AluOp if op < 0xC4]
    assert low == [value for value in range(0x22) if value not in (0x17, 0x1C, 0x1E, 0x1F)]
    assert [int(op) for op in AluOp if op >= 0xC4] == [0xC4, 0xC8, 0xCF, 0xD0]


def test_wait_and_update_modes() -> None:
    """isa §2.4, §2.5: 0x04 is strictly greater, 0x13 is increment on completion, registers set the high bit."""
    assert WaitMode(0x04) is WaitMode.WAIT_FOR_SEM_GT_IMM
    assert UpdateMode(0x13) is UpdateMode.SEM_INC_COMPLETE
    assert [int(mode) for mode in WaitMode] == [
        *range(8), 0x0E, 0x0F, *range(0x81, 0x86), *range(0x91, 0x96), 0xFE, 0xFF,
    ]  # fmt: skip
    assert [int(mode) for mode in UpdateMode] == [
        0, 1, 2, 3, 4, 5, 7, 9, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x19, 0x99, 0xFF,
    ]  # fmt: skip


def test_compiler_kinds() -> None:
    """isa §14: kinds 2 to 10 give the bytes 01 02 03 04 09 05 06 07 08."""
    assert bytes(CTYPE_OF_COMPILER_KIND[kind] for kind in range(2, 11)).hex() == "010203040905060708"


def test_collective_type_to_operation() -> None:
    """isa §6.1: the operation by wire byte."""
    assert [int(ENC_OF_CTYPE[ctype]) for ctype in CollectiveType] == [13, 1, 4, 0, 7, 8, 9, 10, 11, 12]
    assert all(CTYPE_OF_ENC[enc] is ctype for ctype, enc in ENC_OF_CTYPE.items())
    assert not CTYPE_OF_ENC.keys() & {EncOp.BROADCAST, EncOp.REDUCE, EncOp.SEND, EncOp.RECV}


def test_kinds_that_need_a_reduce_operation() -> None:
    """isa §6.1: exactly the types marked so, and the reduce that has no type."""
    needed = {ENC_OF_CTYPE[CollectiveType(byte)] for byte in (1, 2, 6, 8)}
    assert needed | {EncOp.REDUCE} == REDUCING


def test_trigger_stage_takes_four_operations() -> None:
    """isa §14: the accepted ALU operations are 4, 6, 8 and 9, which are those with a descriptor operation."""
    assert [op for op in AluOp if PTC_ALU_MASK >> op & 1] == [4, 6, 8, 9] == sorted(CCE_OF_ALU)


def test_reduce_operation_through_the_vocabularies() -> None:
    """isa §8.1: add, mult, max and min in every vocabulary; container operations 1 to 4 are 1 0 3 2."""
    assert [(alu.name, cce.name) for alu, cce in CCE_OF_ALU.items()] == [
        ("ADD", "ADD"),
        ("MULT", "FMA"),
        ("MAX", "MAX"),
        ("MIN", "MIN"),
    ]
    assert all(ALU_OF_CCE[cce] is alu for alu, cce in CCE_OF_ALU.items())
    assert all(int(nrt) == int(cce) and CCE_OF_NRT[nrt] is cce for cce, nrt in NRT_OF_CCE.items())
    assert [int(CCE_OF_KBIN[KbinOp(op)]) for op in range(1, 5)] == [1, 0, 3, 2]
    assert all(CceType(op).name == op.name for op in CceOp)


def test_element_counts_by_operation() -> None:
    """isa §8.3: reduce-scatter and all-to-all scale the input by the ranks, all-gather and all-to-all the output."""
    assert {op for op in EncOp if PTC_INPUT_SCALE_MASK >> op & 1} == {EncOp.REDUCE_SCATTER, EncOp.ALLTOALL}
    assert {op for op in EncOp if PTC_OUTPUT_SCALE_MASK >> op & 1} == {EncOp.ALLGATHER, EncOp.ALLTOALL}


def test_ring_type_by_algorithm() -> None:
    """select §1: 0, 3, 4 and 7 are rings; no other algorithm has a ring flavour."""
    assert {int(alg): int(ring) for alg, ring in RING_TYPE_OF_ALGORITHM.items()} == {0: 0, 3: 1, 4: 2, 7: 3}


def test_tables_load_without_numpy() -> None:
    """The vocabularies and layouts are loaded by commands that must start without numpy."""
    code = (
        "import sys, rota.isa.enums, rota.isa.dtypes, rota.isa.layout, rota.isa.spad, rota.isa.semaphores\n"
        "sys.exit(bool({'numpy', 'ml_dtypes'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
