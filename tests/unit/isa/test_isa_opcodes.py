"""The runtime's names, legality by architecture and the classes of opcodes, against isa §3."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.isa.opcodes import (
    KNOWN_OPCODES,
    MNEMONICS,
    OPCODES,
    QUOTED_NAMES,
    RUNTIME_NAMES,
    Opcode,
    exists,
    is_control,
    is_pseudo,
    runtime_name,
)

PAGE = """
A0 EventSemaphore A1 Halt A2 Drain A3 InstructionFlush A4 Nop A5 Write A6 Notify A7 Move A8 AluOp A9 CompareBranch
AA TensorLoad AB TensorStore B0 EventSemaphoreRangeClear B1 SetOrderingMode B2 MoveShape B3 PollSem B4 TestEventSem
B5 BranchPrefetchHint B8 DMAMemcpy BB DmaIndirect BC RangeSelect BD DmaTranspose BE GetSequenceBounds
BF Sb2sbCollective C1 PseudoDMATrigger C2 PseudoDMARearm C3 PseudoDMABarrier C4 PseudoDMAMemcpyFullInd
C5 PseudoSemaphoreSet C6 PseudoLoadActFuncSet C7 PseudoTriggerAllReduce C8 PseudoTriggerCollective
C9 PseudoReadVarAddr CA PseudoEmbeddingUpdate CB PseudoSendRecv CC PseudoBranchLabel CD PseudoTensorStore
CE PseudoTensorLoad CF PseudoDMASwapQueueSet D0 PseudoSetRngSeed D1 PseudoFunctionBegin D2 PseudoFunctionReturn
D3 PseudoFunctionCall D4 PseudoDmaDirect2d D5 PseudoSyncBarrier D6 PseudoRangeCheck D7 PseudoJpegDecode
D8 PseudoCoreBarrier D9 PseudoTriggerCollective2 DA PseudoExtension DB PseudoCurProcessingRankID DC PseudoGidLoad
DD PseudoBranchPrefetchHint DE PseudoTensorCompletion DF PseudoInst E4 ConvLutLoad E9 DveReadIndices EA SelectReduce
F0 ExtendedInst FF Invalid
"""


def test_names_are_the_compilers_cut_at_sixteen() -> None:
    """isa §3.2: the runtime's name is the compiler's mnemonic, its first sixteen characters."""
    words = PAGE.split()
    page = {int(value, 16): name for value, name in zip(words[::2], words[1::2], strict=True)}
    assert {int(opcode): MNEMONICS[opcode] for opcode in Opcode if opcode in page} == page
    assert {opcode: RUNTIME_NAMES[opcode] for opcode in Opcode} == {op: MNEMONICS[op][:16] for op in Opcode}


def test_quoted_names() -> None:
    """isa §3.2, all-reduce §3: 0xC5 to 0xC9 stand in the runtime as one run of sixteen characters each."""
    run = "PseudoSemaphoreSPseudoLoadActFunPseudoTriggerAllPseudoTriggerColPseudoReadVarAdd"
    assert "".join(runtime_name(opcode) for opcode in range(0xC5, 0xCA)) == run
    assert "".join(QUOTED_NAMES.values()) == run


def test_names_are_unique_but_where_the_cut_makes_them_one() -> None:
    """A cut at sixteen characters joins one pair of collective names, and none of the quoted ones."""
    names = [runtime_name(opcode) for opcode in Opcode]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"PseudoTriggerCol", "SparsityCompress"}
    assert runtime_name(0xC8) == runtime_name(0xD9)


def test_an_opcode_without_a_name_is_its_number() -> None:
    """Opcodes of the datapath, and those that are none, have no name here."""
    assert [runtime_name(opcode) for opcode in (0x41, 0xC0, 0xB7)] == ["0x41", "0xC0", "0xB7"]


@pytest.mark.parametrize("arch", list(OPCODES))
def test_existence(arch: str) -> None:
    """isa §3.2: an architecture has the opcodes of its column, and the sentinel is none."""
    assert {opcode for opcode in range(256) if exists(opcode, arch)} == OPCODES[arch] - {0xFF}


def test_sb2sb_is_absent_on_v2_alone() -> None:
    """isa §1: 0xBF exists from v3."""
    assert [exists(0xBF, arch) for arch in ("sunda", "cayman", "mariana", "maverick")] == [False, True, True, True]


def test_existence_asks_for_a_known_architecture() -> None:
    """A misspelt architecture is a usage error that names the known ones."""
    with pytest.raises(UsageError, match="architecture 'trn2': expected one of sunda, cayman, mariana, maverick"):
        exists(0xC8, "trn2")


def test_collectives_are_pseudo_and_control() -> None:
    """all-reduce §1: the trigger is a pseudo instruction and a control instruction, never one of the datapath."""
    assert all(is_pseudo(opcode) and is_control(opcode) for opcode in (0xC7, 0xC8, 0xD9, 0xDA))


def test_control_is_no_datapath() -> None:
    """all-reduce §1: every pseudo instruction there is is control; arithmetic and the sentinel are not."""
    assert {opcode for opcode in KNOWN_OPCODES if is_pseudo(opcode)} <= {op for op in range(256) if is_control(op)}
    assert not any(is_control(opcode) for opcode in (0x00, 0x41, 0xAA, 0xB8, 0xBF, 0xC0, 0xE5, 0xFF))
