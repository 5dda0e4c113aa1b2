"""The layouts of the records around a collective: its pair, its transfers, rank loads, barriers, and what the
runtime puts in the place of a trigger.

One body serves every architecture. The words 0xC7 and 0xC8 are in `words`; rules about values are in `pairs`,
`transfers` and `validators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.layout import Field, Layout
from rota.isa.opcodes import Opcode
from rota.isa.operands import DMA_CONFIGS, PSEUDO_ADDR8TENSOR2D, TENSOR3D
from rota.isa.records import EVENTS, EVENTS_EXTENDED, HEADER, WORD_SIZE

_HEAD: Final = (*HEADER.at(0), *EVENTS.at(4))
EXTENSION_TAIL_SOURCE: Final = Source("isa", "5.4", CONVENTION)  # bytes 32 to 63 of 0xDA but the one at 41

COLLECTIVE2_WORD: Final = Layout("collective2_word", size=WORD_SIZE, source=Source("isa", "5.3", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("op",              12, "u1",  "AluOp: how elements combine, where they do"),
    Field("dtype",           13, "u1",  "Dtype of one element"),
    Field("ctype",           14, "u1",  "CollectiveType"),
    Field("cc_dim",          15, "u1",  "Dimension the ranks' parts lie along"),
    *PSEUDO_ADDR8TENSOR2D.at(16, prefix="src0_"),
    *PSEUDO_ADDR8TENSOR2D.at(40, prefix="src1_"),
))  # fmt: skip

EXTENSION_WORD: Final = Layout("extension_word", size=WORD_SIZE, source=Source("isa", "5.4", HIGH), fields=(
    # name                   at  type   meaning
    Field("opcode",           0, "u1",  "always 0xDA; this record has neither header nor events"),
    Field("chaining",         1, "u1",  "Chaining: where the operation stands in a chain"),
    Field("group_id",         2, "<u2", "replica group"),
    Field("channel_id",       4, "<u2", "channel, of the permuting kinds"),
    Field("stream_id",        6, "<u2", "stream"),
    *PSEUDO_ADDR8TENSOR2D.at(8, prefix="dst_"),
    Field("cc_buf_start",    32, "<u8", "where the collective's buffer starts; width is a convention"),
    Field("cross_sb_out",    40, "u1",  "place is a convention"),
    *DMA_CONFIGS.at(41),
    Field("cc_buf_size",     44, "<u4", "place and width are a convention"),
    Field("src1_bitmap",     48, "<u8", "place and width are a convention"),
))  # fmt: skip

SEND_RECV_WORD: Final = Layout("send_recv_word", size=WORD_SIZE, source=Source("isa", "5.5", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("tensor_id",       12, "<u4", "tensor"),
    Field("peer_id",         16, "<u8", "the other rank"),
    Field("is_send",         24, "u1",  "1: send, 0: receive"),
    Field("offset_bytes",    48, "<u8", "first byte of the tensor"),
    Field("size_bytes",      56, "<u8", "bytes that travel"),
))  # fmt: skip

SB2SB_WORD: Final = Layout("sb2sb_word", size=WORD_SIZE, source=Source("isa", "5.9", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("in_dtype",        12, "u1",  "Dtype that is read"),
    Field("out_dtype",       13, "u1",  "Dtype that is written: the same"),
    *TENSOR3D.at(16, prefix="src_"),
    Field("lnc_size",        32, "u1",  "LncSize: cores that exchange"),
    Field("num_channels",    33, "u1",  "active channels, 1 to 128"),
    *TENSOR3D.at(48, prefix="dst_"),
))  # fmt: skip

RANK_ID_WORD: Final = Layout("rank_id_word", size=WORD_SIZE, source=Source("isa", "5.6", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("group_id",        12, "<u2", "replica group"),
    Field("channel_id",      14, "<u2", "channel"),
    Field("iteration_id",    16, "<u2", "iteration whose rank is asked for"),
    Field("dst_reg",         18, "u1",  "register that is loaded"),
    Field("stream_id",       20, "<u2", "stream"),
))  # fmt: skip

# The register form; the memory form is selected by a marker and is not described.
GID_LOAD_WORD: Final = Layout("gid_load_word", size=WORD_SIZE, source=Source("isa", "5.6", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("valid",           12, "u1",  "always 1"),
    Field("dst_reg",         23, "u1",  "register that takes the device's global number"),
))  # fmt: skip

CORE_BARRIER_WORD: Final = Layout("core_barrier_word", size=WORD_SIZE, source=Source("isa", "5.7", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("barrier_id",      12, "<u4", "which barrier of the virtual core"),
    Field("semaphore",       16, "<u4", "semaphore it counts on"),
))  # fmt: skip

SYNC_BARRIER_WORD: Final = Layout("sync_barrier_word", size=WORD_SIZE, source=Source("isa", "5.7", HIGH), fields=_HEAD)

DMA_BARRIER_WORD: Final = Layout("dma_barrier_word", size=WORD_SIZE, source=Source("isa", "5.7", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("barrier_metadata", 12, "<u4", "how long writes to SBUF take to be seen by a DMA engine"),
))  # fmt: skip

DMA_TRIGGER_WORD: Final = Layout("dma_trigger_word", size=WORD_SIZE, source=Source("isa", "5.8", MEDIUM), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("queue_name",      12, "V32", "characters, ended by 0"),
    Field("use_raw_count",   44, "<u4", "whether the next field is a count"),
    Field("block_or_count",  48, "<u4", "number of the block, or how many"),
))  # fmt: skip

EVENT_SEMAPHORE_WORD: Final = Layout(
    "event_semaphore_word",
    size=WORD_SIZE,
    source=Source("isa", "2.3", HIGH),
    fields=(*_HEAD, *EVENTS_EXTENDED.at(0x20, prefix="ext_")),
)

ALU_WORD: Final = Layout("alu_word", size=WORD_SIZE, source=Source("isa", "5.10", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("op",              12, "u1",  "AluOp"),
    Field("dtype",           13, "u1",  "Dtype of the operands"),
    Field("src1_source",     14, "u1",  "1: the immediate"),
    Field("dst_dtype",       15, "u1",  "Dtype of the result"),
    Field("src0",            16, "2u1", "registers of the first operand"),
    Field("src1",            18, "2u1", "registers of the second operand"),
    Field("dst",             20, "2u1", "registers of the result"),
    Field("immediate",       24, "<u8", "value of the second operand"),
))  # fmt: skip

BRANCH_WORD: Final = Layout("branch_word", size=WORD_SIZE, source=Source("isa", "5.10", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("compare_op",      12, "u1",  "AluOp that decides"),
    Field("dtype",           13, "u1",  "Dtype of what is compared"),
    Field("target_mode",     14, "u1",  "BranchTarget"),
    Field("compare_value",   16, "<u4", "value compared with"),
    Field("compare_reg",     32, "u1",  "register compared"),
    Field("target_regs",     34, "2u1", "registers of the target"),
    Field("target",          48, "<u8", "target, when immediate"),
))  # fmt: skip

TENSOR_COMPLETION_WORD: Final = Layout(
    "tensor_completion_word", size=WORD_SIZE, source=Source("isa", "5.11", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("completion_id",   12, "<u4", "completion"),
    Field("access_pattern",  16, "u1",  "access pattern byte"),
))  # fmt: skip

PSEUDO_INST_WORD: Final = Layout("pseudo_inst_word", size=WORD_SIZE, source=Source("isa", "3.1", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("pseudo_opcode",   12, "u1",  "PseudoOpcode"),
))  # fmt: skip

EXTENDED_WORD: Final = Layout("extended_word", size=WORD_SIZE, source=Source("isa", "5.11", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("extended_opcode", 12, "u1",  "what it is"),
    Field("completion_info", 13, "u1",  "bit 0 reads, bit 2 writes, bits 5 to 3 active ports"),
    Field("specific",        14, "V50", "by the extended opcode"),
))  # fmt: skip

RDMA_DESC_GEN_WORD: Final = Layout("rdma_desc_gen_word", size=WORD_SIZE, source=Source("isa", "5.11", HIGH), fields=(
    # name                   at  type   meaning
    *_HEAD,
    Field("extended_opcode", 12, "u1",  "always 8"),
    Field("completion_info", 13, "u1",  "bit 0 reads, bit 2 writes, bits 5 to 3 active ports"),
    Field("local_sem",       14, "u1",  "semaphore here"),
    Field("remote_sem",      15, "u1",  "semaphore there"),
    Field("remote_core_id",  16, "<u4", "core there"),
    Field("remote_routing_id", 20, "<u4", "device there"),
    Field("dma_engine_mask", 24, "<u4", "1, 2, 4, 8 or 16"),
    Field("src_addr",        28, "<u4", "first byte read"),
    Field("dst_addr",        32, "<u4", "first byte written"),
    Field("free_dim_bytes",  36, "<u4", "bytes of one partition"),
    Field("is_bidirectional", 40, "u1", "whether the other side sends too"),
    Field("remote_sem_prev", 41, "u1",  "semaphore of the one before"),
))  # fmt: skip


class PseudoOpcode(IntEnum):
    """The second opcode of 0xDF; a stream without an exit is suspect. Source: isa §3.1, high."""

    INVALID = 0
    PSEUDO_EXIT_EXECUTION = 1
    PSEUDO_LIBRARY_RELOAD_INDEX = 2


class BranchTarget(IntEnum):
    """Where 0xA9 has its target. Source: isa §5.10, high."""

    REG = 1
    REL_IMM = 3
    REL_REG = 4


# The layout of each record that has one beside 0xC7 and 0xC8; the architecture plays no part in it.
CARRIERS: Final[Mapping[Opcode, Layout]] = {
    Opcode.EVENT_SEMAPHORE: EVENT_SEMAPHORE_WORD,
    Opcode.ALU_OP: ALU_WORD,
    Opcode.COMPARE_BRANCH: BRANCH_WORD,
    Opcode.SB2SB_COLLECTIVE: SB2SB_WORD,
    Opcode.PSEUDO_DMATRIGGER: DMA_TRIGGER_WORD,
    Opcode.PSEUDO_DMABARRIER: DMA_BARRIER_WORD,
    Opcode.PSEUDO_SEND_RECV: SEND_RECV_WORD,
    Opcode.PSEUDO_SYNC_BARRIER: SYNC_BARRIER_WORD,
    Opcode.PSEUDO_CORE_BARRIER: CORE_BARRIER_WORD,
    Opcode.PSEUDO_TRIGGER_COLLECTIVE2: COLLECTIVE2_WORD,
    Opcode.PSEUDO_EXTENSION: EXTENSION_WORD,
    Opcode.PSEUDO_CUR_PROCESSING_RANK_ID: RANK_ID_WORD,
    Opcode.PSEUDO_GID_LOAD: GID_LOAD_WORD,
    Opcode.PSEUDO_TENSOR_COMPLETION: TENSOR_COMPLETION_WORD,
    Opcode.PSEUDO_INST: PSEUDO_INST_WORD,
    Opcode.EXTENDED_INST: EXTENDED_WORD,
}
