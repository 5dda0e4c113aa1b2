"""The small vocabularies of the instruction set and the runtime, and the tables between them.

Members keep the specification's spelling. Element types are in `dtypes`, opcodes in `opcodes`; nothing here
decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from rota.facts import HIGH, MEDIUM, Source
from rota.isa.opcodes import Opcode as Opcode  # noqa: PLC0414 -- offered here with the other vocabularies


class WaitMode(IntEnum):
    """What an instruction waits for before it is issued. Source: isa §2.4, high."""

    NONE = 0x00
    WAIT_FOR_SEM_EQ_IMM = 0x01
    WAIT_FOR_SEM_LT_IMM = 0x02
    WAIT_FOR_SEM_LE_IMM = 0x03
    WAIT_FOR_SEM_GT_IMM = 0x04
    WAIT_FOR_SEM_GE_IMM = 0x05
    WAIT_FOR_EVT_SET = 0x06
    EVT_SET_THEN_CLEAR = 0x07
    EVT_CLEAR = 0x0E
    EVT_CLEAR_THEN_SET = 0x0F
    WAIT_FOR_SEM_EQ_REG = 0x81
    WAIT_FOR_SEM_LT_REG = 0x82
    WAIT_FOR_SEM_LE_REG = 0x83
    WAIT_FOR_SEM_GT_REG = 0x84
    WAIT_FOR_SEM_GE_REG = 0x85
    WAIT_FOR_SEM_EQ_REG_OFFSET = 0x91
    WAIT_FOR_SEM_LT_REG_OFFSET = 0x92
    WAIT_FOR_SEM_LE_REG_OFFSET = 0x93
    WAIT_FOR_SEM_GT_REG_OFFSET = 0x94
    WAIT_FOR_SEM_GE_REG_OFFSET = 0x95
    UNORDERED = 0xFE
    INVALID = 0xFF


class UpdateMode(IntEnum):
    """What an instruction does to its event or semaphore when its reads, or all of it, are done.

    Source: isa §2.5, high.
    """

    NONE = 0x00
    EVT_SET_READ = 0x01
    EVT_CLR_READ = 0x02
    SEM_INC_READ = 0x03
    SEM_DEC_READ = 0x04
    SEM_ADD_IMM_READ = 0x05
    SEM_SUB_IMM_READ = 0x07
    SEM_WR_IMM_READ = 0x09
    EVT_SET_COMPLETE = 0x11
    EVT_CLR_COMPLETE = 0x12
    SEM_INC_COMPLETE = 0x13
    SEM_DEC_COMPLETE = 0x14
    SEM_ADD_IMM_COMPLETE = 0x15
    SEM_SUB_IMM_COMPLETE = 0x17
    SEM_WR_IMM_COMPLETE = 0x19
    SEM_WR_REG_COMPLETE = 0x99
    INVALID = 0xFF


class CollectiveType(IntEnum):
    """The collective a 0xC8 or 0xD9 word asks for, as its byte. Source: isa §6.1, high."""

    INVALID = 0
    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    ALL_TO_ALL = 4
    PERMUTE = 5
    PERMUTE_REDUCE = 6
    PERMUTE_IMPLICIT = 7
    PERMUTE_REDUCE_IMPLICIT = 8
    ALL_TO_ALL_V = 9


class EncOp(IntEnum):
    """The collective as the planner names it, enc_op_type. Source: isa §7, high."""

    ALLGATHER = 0
    ALLREDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    REDUCE_SCATTER = 4
    SEND = 5
    RECV = 6
    ALLTOALL = 7
    PERMUTE = 8
    PERMUTE_REDUCE = 9
    PERMUTE_IMPLICIT = 10
    PERMUTE_REDUCE_IMPLICIT = 11
    ALLTOALL_V = 12
    INVALID = 13


class Algorithm(IntEnum):
    """How a collective, or one leg of it, is carried out, enc_alg_type. Source: isa §7, high."""

    RING = 0
    HIER = 1
    MESH = 2
    KANGARING = 3
    SINGLE_CYCLE_RING = 4
    INTRA_RDH = 5
    SINGLE_STEP_MESH = 6
    INTER_RDH = 7
    TWO_STEP_POD_MESH = 8
    LATENCY_OPT_MESH = 9
    BW_OPT_MESH = 10
    INVALID = 11


class MeshType(IntEnum):
    """The flavour of a mesh, enc_alg_mesh_type. Source: isa §7, high."""

    FULL_MESH = 0
    GROUPED_MESH = 1
    MESH_TRN2 = 2
    MESH_SWITCH = 3
    INVALID = 4


class RingType(IntEnum):
    """The flavour of a ring, metaring_type. Source: select §1, high; device §2.1, high."""

    RING = 0
    KANGARING = 1
    SINGLE_CYCLE_RING = 2
    RDH = 3
    INVALID = 4


class Pattern(IntEnum):
    """The two shapes of device configuration, enc_pattern_t. Source: isa §7, high."""

    RING = 0
    MESH = 1
    INVALID = 2


class CommScope(IntEnum):
    """The part of a group a leg spans, enc_comm_type. Source: isa §7, high."""

    INTRA = 0
    INTER = 1
    MAX = 2


class PodType(IntEnum):
    """How the servers of a pod are joined. Source: isa §7, high."""

    NONE = 0
    P2P = 1
    SWITCH = 2
    INVALID = 3


class ReductionType(IntEnum):
    """How often a ring step reads and writes memory; not the operation. Source: isa §7, high."""

    RING_2R1W = 0
    RING_2R2W = 1
    KANGARING_NR1W = 2


class HalfChunk(IntEnum):
    """Which half of a chunk a ring step moves, enc_half_chunk_index. Source: isa §7, high."""

    H0 = 0
    H1 = 1
    SPLIT_N = 2


class Neighbour(IntEnum):
    """Whom a step talks to, encd_neigh. Source: isa §7, high."""

    LOCAL = 0
    NEXT = 1
    PREV = 2
    GATEWAY = 3
    PEER_RMTV = 4
    PEER_RMTV2 = 5
    PEER_LOCAL = 6
    NEXT_PEER_RMTV = 7
    INVALID = 8


class AluOp(IntEnum):
    """The operation byte of a word; four of its values reduce a collective. Source: isa §6.2, high.

    The integer band runs from 0xC4 to 0xE1; only the values the specification names are here.
    """

    BYPASS = 0x00
    BITWISE_NOT = 0x01
    ARITH_SHIFT_LEFT = 0x02
    ARITH_SHIFT_RIGHT = 0x03
    ADD = 0x04
    SUBTRACT = 0x05
    MULT = 0x06
    DIVIDE = 0x07
    MAX = 0x08
    MIN = 0x09
    BITWISE_AND = 0x0A
    BITWISE_OR = 0x0B
    BITWISE_XOR = 0x0C
    LOGICAL_AND = 0x0D
    LOGICAL_OR = 0x0E
    LOGICAL_XOR = 0x0F
    LOGICAL_SHIFT_LEFT = 0x10
    LOGICAL_SHIFT_RIGHT = 0x11
    IS_EQUAL = 0x12
    IS_GT = 0x13
    IS_GE = 0x14
    IS_LE = 0x15
    IS_LT = 0x16
    NOT_EQUAL = 0x18
    ABS = 0x19
    POW = 0x1A
    MOD = 0x1B
    RSQRT = 0x1D
    ABS_MAX = 0x20
    ABS_MIN = 0x21
    ADD_INT = 0xC4
    MOD_INT = 0xC8
    MAX_INT = 0xCF
    MIN_INT = 0xD0


class CceOp(IntEnum):
    """The reduce operations the instruction set names for a DMA transfer. Source: isa §6.3, high."""

    ADD = 0
    MAX = 2
    MIN = 3


class CceType(IntEnum):
    """The reduce operation a DMA descriptor carries, SDMA_CCETYPE. Source: isa §6.3, high."""

    ADD = 0
    FMA = 1
    MAX = 2
    MIN = 3
    EXT = 4
    GCE = 5


class NrtOp(IntEnum):
    """The reduce operation of the public interface, nrt_op_type. Source: isa §6.3, high."""

    ADD = 0
    FMA = 1
    MAX = 2
    MIN = 3
    INVALID = 15


class KbinOp(IntEnum):
    """The operation of a descriptor in a container, kbin_dma_desc_op. Source: isa §6.3, high."""

    INVALID = -1
    COPY = 0
    FMA = 1
    ADD = 2
    MIN = 3
    MAX = 4
    TRANSPOSE = 5
    NUM = 6


class SdmaOp(IntEnum):
    """The engine block that carries out a descriptor, SDMAOP. Source: isa §7, high."""

    DRE = 1
    CME = 2
    CCE = 4


class Chaining(IntEnum):
    """Where an operation stands in a chain, enc_op_instr_chaining. Source: isa §5.4, high."""

    NONE = 0
    FIRST = 1
    MIDDLE = 2
    LAST = 3


# The operation class by the byte of the word; the kinds missing here have no byte.
ENC_OF_CTYPE_SOURCE: Final = Source("isa", "6.1", HIGH)
ENC_OF_CTYPE: Final[Mapping[CollectiveType, EncOp]] = {
    CollectiveType.INVALID: EncOp.INVALID,
    CollectiveType.ALL_REDUCE: EncOp.ALLREDUCE,
    CollectiveType.REDUCE_SCATTER: EncOp.REDUCE_SCATTER,
    CollectiveType.ALL_GATHER: EncOp.ALLGATHER,
    CollectiveType.ALL_TO_ALL: EncOp.ALLTOALL,
    CollectiveType.PERMUTE: EncOp.PERMUTE,
    CollectiveType.PERMUTE_REDUCE: EncOp.PERMUTE_REDUCE,
    CollectiveType.PERMUTE_IMPLICIT: EncOp.PERMUTE_IMPLICIT,
    CollectiveType.PERMUTE_REDUCE_IMPLICIT: EncOp.PERMUTE_REDUCE_IMPLICIT,
    CollectiveType.ALL_TO_ALL_V: EncOp.ALLTOALL_V,
}
CTYPE_OF_ENC: Final[Mapping[EncOp, CollectiveType]] = {enc: ctype for ctype, enc in ENC_OF_CTYPE.items()}

# The collectives that combine values; the others only move them. Source: isa §6.1, high.
REDUCING: Final = frozenset(
    {
        EncOp.ALLREDUCE,
        EncOp.REDUCE,
        EncOp.REDUCE_SCATTER,
        EncOp.PERMUTE_REDUCE,
        EncOp.PERMUTE_REDUCE_IMPLICIT,
    }
)

# The wire byte by the compiler's kinds 2..10, in that order. Source: isa §6.1, high.
CTYPE_OF_COMPILER_KIND: Final[Mapping[int, CollectiveType]] = {
    2: CollectiveType.ALL_REDUCE,
    3: CollectiveType.REDUCE_SCATTER,
    4: CollectiveType.ALL_GATHER,
    5: CollectiveType.ALL_TO_ALL,
    6: CollectiveType.ALL_TO_ALL_V,
    7: CollectiveType.PERMUTE,
    8: CollectiveType.PERMUTE_REDUCE,
    9: CollectiveType.PERMUTE_IMPLICIT,
    10: CollectiveType.PERMUTE_REDUCE_IMPLICIT,
}

# The reduce operation through the vocabularies.
CCE_OF_ALU_SOURCE: Final = Source("isa", "8.1", MEDIUM)
CCE_OF_ALU: Final[Mapping[AluOp, CceType]] = {
    AluOp.ADD: CceType.ADD,
    AluOp.MULT: CceType.FMA,
    AluOp.MAX: CceType.MAX,
    AluOp.MIN: CceType.MIN,
}
ALU_OF_CCE: Final[Mapping[CceType, AluOp]] = {cce: alu for alu, cce in CCE_OF_ALU.items()}

REDUCE_OP_SOURCE: Final = Source("isa", "8.1", HIGH)
NRT_OF_CCE: Final[Mapping[CceType, NrtOp]] = {
    CceType.ADD: NrtOp.ADD,
    CceType.FMA: NrtOp.FMA,
    CceType.MAX: NrtOp.MAX,
    CceType.MIN: NrtOp.MIN,
}
CCE_OF_NRT: Final[Mapping[NrtOp, CceType]] = {nrt: cce for cce, nrt in NRT_OF_CCE.items()}
CCE_OF_KBIN: Final[Mapping[KbinOp, CceType]] = {
    KbinOp.FMA: CceType.FMA,
    KbinOp.ADD: CceType.ADD,
    KbinOp.MIN: CceType.MIN,
    KbinOp.MAX: CceType.MAX,
}

# Bit n is set when the trigger stage takes ALU operation n for a reducing collective.
PTC_ALU_MASK: Final = 0x350
PTC_ALU_MASK_SOURCE: Final = Source("isa", "8.1", HIGH)

# Bit n is set when the input, or the output, of collective n is num_elements times the number of ranks.
PTC_INPUT_SCALE_MASK: Final = 0x90
PTC_OUTPUT_SCALE_MASK: Final = 0x81
PTC_SCALE_SOURCE: Final = Source("isa", "8.3", HIGH)

# The ring flavour by algorithm; anything else has none. Source: select §1, high.
RING_TYPE_OF_ALGORITHM: Final[Mapping[Algorithm, RingType]] = {
    Algorithm.RING: RingType.RING,
    Algorithm.KANGARING: RingType.KANGARING,
    Algorithm.SINGLE_CYCLE_RING: RingType.SINGLE_CYCLE_RING,
    Algorithm.INTER_RDH: RingType.RDH,
}
