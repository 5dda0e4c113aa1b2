"""A microscope: single rows of one rank or of a pair as descriptors, without a composer in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tests.images import PLATFORMS, TRN2, section

from rota.emit import emit
from rota.isa.arch import ARCHES
from rota.isa.descriptors import DESCRIPTOR, decode_length
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.image import Section
from rota.request import Request
from rota.schedule.build import Block, Place, Wait, assemble
from rota.schedule.ir import Buffer, Checks, Leaf, Op, Schedule, Semaphore

Array = np.ndarray[Any, Any]
PAD_LINE = 0x40
INPUT = 0x1000


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Local rows of one rank on queue 0, row i of `sizes[i]` bytes, each from so many sources to the output.

    As a ring channel, the first of them waits for data, and every row is one start; as an event list they are batches.
    """

    sizes: Sequence[int]
    sources: int = 1
    dtype: Dtype = Dtype.BFLOAT16
    platform_name: str = TRN2
    folds: int = 1
    rank: int = 0
    op: Op = Op.ADD
    channel: bool = True

    @cached_property
    def schedule(self) -> Schedule:
        sizes = np.array(self.sizes, np.int64)
        offset = np.cumsum(sizes) - sizes
        total = int(sizes.sum())
        block = Block(
            rank=np.zeros(sizes.size, np.int64),
            queue=0,
            leaf=Leaf.DIRECT_COPY,
            size=sizes,
            step=np.arange(sizes.size),
            op=self.op if self.sources > 1 else Op.NONE,
            sources=[Place(0 if k == 0 else k + 1, offset) for k in range(self.sources)],
            targets=[Place(1, offset)],
            waits=[Wait(0, where=np.arange(sizes.size) == 0)] if self.channel else [],
        )
        buffers = [Buffer("input", total, user=True), Buffer("output", total, user=True)]
        buffers += [Buffer(f"other.{k}", total) for k in range(1, self.sources)]
        semaphores = [Semaphore("recv.0", initial=1)] if self.channel else []
        return assemble(
            [block], ranks=1, buffers=buffers, semaphores=semaphores, input=0, output=1, checks=Checks.UNBALANCED
        )

    @cached_property
    def image(self) -> bytes:
        count = max(1, sum(self.sizes) // 8)
        request = Request(EncOp.ALLREDUCE, self.dtype, count, ((self.rank,),), CceType.ADD, integer_as_fp32=True)
        return emit(self.schedule, request, PLATFORMS[self.platform_name], folds=self.folds)[0]

    def ring(self, kind: Section, fold: int = 0) -> Array:
        """Return the descriptors of one fold."""
        return np.frombuffer(section(self.image, kind, 16 * fold), DESCRIPTOR)

    @property
    def memory(self) -> int:
        platform = PLATFORMS[self.platform_name]
        core = self.rank % platform.ranks_per_chip * platform.lnc
        return ARCHES[platform.arch].memory(core)

    @property
    def output(self) -> int:
        """Address of the output buffer."""
        return self.memory + INPUT + -(-sum(self.sizes) // 128) * 128

    def writes(self, fold: int = 0) -> list[tuple[int, int]]:
        """Return (offset in the output, bytes) of the data written on a fold, in order."""
        rx = self.ring(Section.RX, fold)
        start, end = self.output, self.output + sum(self.sizes)
        there = (rx["buf_ptr"] >= start) & (rx["buf_ptr"] < end)
        return list(
            zip((rx["buf_ptr"][there] - start).tolist(), decode_length(rx["len_ctrl"])[there].tolist(), strict=True)
        )


def is_signal(rx: Array, arch: str = "cayman") -> Array:
    """Say which destination descriptors name a semaphore."""
    return (rx["buf_ptr"] & ((1 << 47) - 1)) >= ARCHES[arch].topsp
