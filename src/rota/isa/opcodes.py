"""The opcode byte: the names of the control and pseudo band, and which values exist on which architecture.

The 16-character names the runtime prints are here too.

Opcodes below 0xA0 and those of the datapath have no name here; a stream walker only has to know that they exist.
What the collective words contain is in `words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from rota.errors import UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source

SOURCE: Final = Source("isa", "3.2", HIGH)


class Opcode(IntEnum):
    """Byte 0 of an instruction record. Source: isa §3.2, high.

    The pseudo band 0xC0..0xDF is written by the compiler, rewritten by the runtime and never fetched by hardware.
    """

    EVENT_SEMAPHORE = 0xA0
    HALT = 0xA1
    DRAIN = 0xA2
    INSTRUCTION_FLUSH = 0xA3
    NOP = 0xA4
    WRITE = 0xA5
    NOTIFY = 0xA6
    MOVE = 0xA7
    ALU_OP = 0xA8
    COMPARE_BRANCH = 0xA9
    TENSOR_LOAD = 0xAA
    TENSOR_STORE = 0xAB
    EVENT_SEMAPHORE_RANGE_CLEAR = 0xB0
    SET_ORDERING_MODE = 0xB1
    MOVE_SHAPE = 0xB2
    POLL_SEM = 0xB3
    TEST_EVENT_SEM = 0xB4
    BRANCH_PREFETCH_HINT = 0xB5
    COMPACT_CONTROL_INST = 0xB6
    DMAMEMCPY = 0xB8
    DMA_MEMCPY2 = 0xB9
    DMA_IMMEDIATE = 0xBA
    DMA_INDIRECT = 0xBB
    RANGE_SELECT = 0xBC
    DMA_TRANSPOSE = 0xBD
    GET_SEQUENCE_BOUNDS = 0xBE
    SB2SB_COLLECTIVE = 0xBF
    PSEUDO_DMATRIGGER = 0xC1
    PSEUDO_DMAREARM = 0xC2
    PSEUDO_DMABARRIER = 0xC3
    PSEUDO_DMAMEMCPY_FULL_IND = 0xC4
    PSEUDO_SEMAPHORE_SET = 0xC5
    PSEUDO_LOAD_ACT_FUNC_SET = 0xC6
    PSEUDO_TRIGGER_ALL_REDUCE = 0xC7
    PSEUDO_TRIGGER_COLLECTIVE = 0xC8
    PSEUDO_READ_VAR_ADDR = 0xC9
    PSEUDO_EMBEDDING_UPDATE = 0xCA
    PSEUDO_SEND_RECV = 0xCB
    PSEUDO_BRANCH_LABEL = 0xCC
    PSEUDO_TENSOR_STORE = 0xCD
    PSEUDO_TENSOR_LOAD = 0xCE
    PSEUDO_DMASWAP_QUEUE_SET = 0xCF
    PSEUDO_SET_RNG_SEED = 0xD0
    PSEUDO_FUNCTION_BEGIN = 0xD1
    PSEUDO_FUNCTION_RETURN = 0xD2
    PSEUDO_FUNCTION_CALL = 0xD3
    PSEUDO_DMA_DIRECT2D = 0xD4
    PSEUDO_SYNC_BARRIER = 0xD5
    PSEUDO_RANGE_CHECK = 0xD6
    PSEUDO_JPEG_DECODE = 0xD7
    PSEUDO_CORE_BARRIER = 0xD8
    PSEUDO_TRIGGER_COLLECTIVE2 = 0xD9
    PSEUDO_EXTENSION = 0xDA
    PSEUDO_CUR_PROCESSING_RANK_ID = 0xDB
    PSEUDO_GID_LOAD = 0xDC
    PSEUDO_BRANCH_PREFETCH_HINT = 0xDD
    PSEUDO_TENSOR_COMPLETION = 0xDE
    PSEUDO_INST = 0xDF
    SPARSITY_COMPRESS = 0xE0
    SPARSITY_COMPRESS_TAG = 0xE1
    RAND2 = 0xE2
    QUANTIZE_MX = 0xE3
    CONV_LUT_LOAD = 0xE4
    TENSOR_TENSOR_SCAN_ARITH = 0xE5
    TENSOR_SCALAR_CACHE_CUMULATIVE = 0xE6
    INDIRECT_COPY = 0xE7
    COPY_PREDICATED_SCALAR = 0xE8
    DVE_READ_INDICES = 0xE9
    SELECT_REDUCE = 0xEA
    EXTENDED_INST = 0xF0
    DMA_GATHER_TRANSPOSE = 0xF1
    NONZERO_WITH_COUNT = 0xF2
    TENSOR_TENSOR_INT_WIDE = 0xF3
    TENSOR_SCALAR_INT_WIDE = 0xF4
    INVALID = 0xFF


def _values(*runs: tuple[int, int]) -> frozenset[int]:
    return frozenset(value for first, last in runs for value in range(first, last + 1))


_SUNDA: Final = _values(
    (0x01, 0x05), (0x21, 0x24), (0x30, 0x30), (0x41, 0x4F), (0x51, 0x54), (0x58, 0x58), (0x5E, 0x74), (0x76, 0x7F),
    (0x82, 0x88), (0x8A, 0x8F), (0x92, 0x96), (0x98, 0x9F), (0xA0, 0xAB), (0xB0, 0xB3), (0xB5, 0xB5), (0xB8, 0xB8),
    (0xBB, 0xBB), (0xC1, 0xD6), (0xD8, 0xDF), (0xE5, 0xE8), (0xEA, 0xEA), (0xF0, 0xF0), (0xFF, 0xFF),
)  # fmt: skip
_CAYMAN: Final = (_SUNDA - _values((0x87, 0x88), (0x8A, 0x8D), (0x8F, 0x8F))) | _values(
    (0x06, 0x07), (0x81, 0x81), (0xBC, 0xBF), (0xD7, 0xD7), (0xE4, 0xE4), (0xE9, 0xE9), (0xF1, 0xF2),
)  # fmt: skip
_MARIANA: Final = _CAYMAN | _values((0x08, 0x0A), (0x25, 0x25), (0xB4, 0xB4), (0xE0, 0xE3))
_MAVERICK: Final = _MARIANA | _values((0x26, 0x26), (0xB6, 0xB6), (0xB9, 0xBA), (0xF3, 0xF4))

# The opcodes of each architecture, the sentinel 0xFF included. Source: isa §3.2, high.
OPCODES: Final[Mapping[str, frozenset[int]]] = {
    "sunda": _SUNDA,
    "cayman": _CAYMAN,
    "mariana": _MARIANA,
    "maverick": _MAVERICK,
}

# What a stream may hold when its architecture is not known: any of the four sets, without the sentinel 0xFF.
KNOWN_OPCODES: Final = frozenset().union(*OPCODES.values()) - {Opcode.INVALID}


NAME_LENGTH: Final = 16
NAME_SOURCE: Final = Source("isa", "3.2", MEDIUM)

# The compiler's names; the runtime's table keeps the first sixteen characters of each. The rows from 0xE0 print no
# compiler name of their own where the enum name is written in capitals: theirs is spelt from it.
MNEMONICS: Final[Mapping[Opcode, str]] = {
    Opcode.EVENT_SEMAPHORE: "EventSemaphore",
    Opcode.HALT: "Halt",
    Opcode.DRAIN: "Drain",
    Opcode.INSTRUCTION_FLUSH: "InstructionFlush",
    Opcode.NOP: "Nop",
    Opcode.WRITE: "Write",
    Opcode.NOTIFY: "Notify",
    Opcode.MOVE: "Move",
    Opcode.ALU_OP: "AluOp",
    Opcode.COMPARE_BRANCH: "CompareBranch",
    Opcode.TENSOR_LOAD: "TensorLoad",
    Opcode.TENSOR_STORE: "TensorStore",
    Opcode.EVENT_SEMAPHORE_RANGE_CLEAR: "EventSemaphoreRangeClear",
    Opcode.SET_ORDERING_MODE: "SetOrderingMode",
    Opcode.MOVE_SHAPE: "MoveShape",
    Opcode.POLL_SEM: "PollSem",
    Opcode.TEST_EVENT_SEM: "TestEventSem",
    Opcode.BRANCH_PREFETCH_HINT: "BranchPrefetchHint",
    Opcode.COMPACT_CONTROL_INST: "CompactControlInst",
    Opcode.DMAMEMCPY: "DMAMemcpy",
    Opcode.DMA_MEMCPY2: "DmaMemcpy2",
    Opcode.DMA_IMMEDIATE: "DmaImmediate",
    Opcode.DMA_INDIRECT: "DmaIndirect",
    Opcode.RANGE_SELECT: "RangeSelect",
    Opcode.DMA_TRANSPOSE: "DmaTranspose",
    Opcode.GET_SEQUENCE_BOUNDS: "GetSequenceBounds",
    Opcode.SB2SB_COLLECTIVE: "Sb2sbCollective",
    Opcode.PSEUDO_DMATRIGGER: "PseudoDMATrigger",
    Opcode.PSEUDO_DMAREARM: "PseudoDMARearm",
    Opcode.PSEUDO_DMABARRIER: "PseudoDMABarrier",
    Opcode.PSEUDO_DMAMEMCPY_FULL_IND: "PseudoDMAMemcpyFullInd",
    Opcode.PSEUDO_SEMAPHORE_SET: "PseudoSemaphoreSet",
    Opcode.PSEUDO_LOAD_ACT_FUNC_SET: "PseudoLoadActFuncSet",
    Opcode.PSEUDO_TRIGGER_ALL_REDUCE: "PseudoTriggerAllReduce",
    Opcode.PSEUDO_TRIGGER_COLLECTIVE: "PseudoTriggerCollective",
    Opcode.PSEUDO_READ_VAR_ADDR: "PseudoReadVarAddr",
    Opcode.PSEUDO_EMBEDDING_UPDATE: "PseudoEmbeddingUpdate",
    Opcode.PSEUDO_SEND_RECV: "PseudoSendRecv",
    Opcode.PSEUDO_BRANCH_LABEL: "PseudoBranchLabel",
    Opcode.PSEUDO_TENSOR_STORE: "PseudoTensorStore",
    Opcode.PSEUDO_TENSOR_LOAD: "PseudoTensorLoad",
    Opcode.PSEUDO_DMASWAP_QUEUE_SET: "PseudoDMASwapQueueSet",
    Opcode.PSEUDO_SET_RNG_SEED: "PseudoSetRngSeed",
    Opcode.PSEUDO_FUNCTION_BEGIN: "PseudoFunctionBegin",
    Opcode.PSEUDO_FUNCTION_RETURN: "PseudoFunctionReturn",
    Opcode.PSEUDO_FUNCTION_CALL: "PseudoFunctionCall",
    Opcode.PSEUDO_DMA_DIRECT2D: "PseudoDmaDirect2d",
    Opcode.PSEUDO_SYNC_BARRIER: "PseudoSyncBarrier",
    Opcode.PSEUDO_RANGE_CHECK: "PseudoRangeCheck",
    Opcode.PSEUDO_JPEG_DECODE: "PseudoJpegDecode",
    Opcode.PSEUDO_CORE_BARRIER: "PseudoCoreBarrier",
    Opcode.PSEUDO_TRIGGER_COLLECTIVE2: "PseudoTriggerCollective2",
    Opcode.PSEUDO_EXTENSION: "PseudoExtension",
    Opcode.PSEUDO_CUR_PROCESSING_RANK_ID: "PseudoCurProcessingRankID",
    Opcode.PSEUDO_GID_LOAD: "PseudoGidLoad",
    Opcode.PSEUDO_BRANCH_PREFETCH_HINT: "PseudoBranchPrefetchHint",
    Opcode.PSEUDO_TENSOR_COMPLETION: "PseudoTensorCompletion",
    Opcode.PSEUDO_INST: "PseudoInst",
    Opcode.SPARSITY_COMPRESS: "SparsityCompress",
    Opcode.SPARSITY_COMPRESS_TAG: "SparsityCompressTag",
    Opcode.RAND2: "Rand2",
    Opcode.QUANTIZE_MX: "QuantizeMx",
    Opcode.CONV_LUT_LOAD: "ConvLutLoad",
    Opcode.TENSOR_TENSOR_SCAN_ARITH: "TensorTensorScanArith",
    Opcode.TENSOR_SCALAR_CACHE_CUMULATIVE: "TensorScalarCacheCumulative",
    Opcode.INDIRECT_COPY: "IndirectCopy",
    Opcode.COPY_PREDICATED_SCALAR: "CopyPredicatedScalar",
    Opcode.DVE_READ_INDICES: "DveReadIndices",
    Opcode.SELECT_REDUCE: "SelectReduce",
    Opcode.EXTENDED_INST: "ExtendedInst",
    Opcode.DMA_GATHER_TRANSPOSE: "DmaGatherTranspose",
    Opcode.NONZERO_WITH_COUNT: "NonzeroWithCount",
    Opcode.TENSOR_TENSOR_INT_WIDE: "TensorTensorIntWide",
    Opcode.TENSOR_SCALAR_INT_WIDE: "TensorScalarIntWide",
    Opcode.INVALID: "Invalid",
}

# The names that were read from the runtime's own table; the others follow the rule these obey.
QUOTED_NAMES: Final[Mapping[Opcode, str]] = {
    Opcode.PSEUDO_SEMAPHORE_SET: "PseudoSemaphoreS",
    Opcode.PSEUDO_LOAD_ACT_FUNC_SET: "PseudoLoadActFun",
    Opcode.PSEUDO_TRIGGER_ALL_REDUCE: "PseudoTriggerAll",
    Opcode.PSEUDO_TRIGGER_COLLECTIVE: "PseudoTriggerCol",
    Opcode.PSEUDO_READ_VAR_ADDR: "PseudoReadVarAdd",
}
RUNTIME_NAMES: Final[Mapping[Opcode, str]] = {
    **{opcode: mnemonic[:NAME_LENGTH] for opcode, mnemonic in MNEMONICS.items()},
    **QUOTED_NAMES,
}

# Instructions of the sequencer: semaphores, branches, registers, and every pseudo instruction there is. That the
# collective ones are control instructions is stated; where the class ends is not.
CONTROL_SOURCE: Final = Source("all-reduce", "1", CONVENTION)
CONTROL: Final = KNOWN_OPCODES & _values((0xA0, 0xA9), (0xB0, 0xB6), (0xC1, 0xDF))

_NAMES: Final[Mapping[int, str]] = {opcode.value: opcode.name for opcode in Opcode}


def is_pseudo(opcode: int) -> bool:
    """Say whether the upper three bits are 0b110: written by the compiler, never run. Source: isa §3.1, high."""
    return opcode >> 5 == 0b110


def is_control(opcode: int) -> bool:
    """Say whether the sequencer handles the instruction; no datapath sees it. Source: all-reduce §1, convention."""
    return opcode in CONTROL


def exists(opcode: int, arch: str) -> bool:
    """Say whether an architecture has the instruction; the sentinel 0xFF is none.

    Raises:
        UsageError: no architecture is called that.

    Source:
        isa §3.2, high.
    """
    if arch not in OPCODES:
        raise UsageError(f"architecture '{arch}': expected one of {', '.join(OPCODES)}")
    return opcode in OPCODES[arch] and opcode != Opcode.INVALID


def runtime_name(opcode: int) -> str:
    """Return the name of at most 16 characters the runtime prints, or `0x41` where none is known."""
    named = opcode in _NAMES
    return RUNTIME_NAMES[Opcode(opcode)] if named else f"0x{opcode:02X}"


def describe_opcode(opcode: int) -> str:
    """Return the name of an opcode, or its number where it has none."""
    return f"{_NAMES.get(opcode, 'opcode')} 0x{opcode:02X}"
