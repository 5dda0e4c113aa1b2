"""Collectives of any algorithm and whole programs all the way to images, and edits of their tables; for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tests.images import PLATFORMS, TRN2, edit, section, table

from rota.device.model import Device, load
from rota.emit import emit
from rota.emit.collective import Collective
from rota.emit.program import Declared, emit_program
from rota.execute.arrays import execute
from rota.isa.config import CONFIGURATIONS, MESH_EVENT, RING_CHANNEL
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.isa.image import BufferUse, Section
from rota.pipeline import Composed, How, prove
from rota.request import Request
from rota.schedule.ir import Buffer

Array = np.ndarray[Any, Any]
CONF = CONFIGURATIONS["cayman"]


@dataclass(frozen=True, kw_only=True)
class Lowering:
    """One collective of one group that begins with rank 0, by an algorithm of our choice."""

    algorithm: Algorithm
    kind: EncOp = EncOp.ALLREDUCE
    ranks: int = 4
    count: int = 256
    dtype: Dtype = Dtype.BFLOAT16
    op: CceType = CceType.ADD
    scales: tuple[float, ...] = ()
    folds: int = 2
    words: bytes = b"\xc7 words for people"

    @cached_property
    def request(self) -> Request:
        reduces = self.kind in (EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER)
        op = self.op if reduces else None
        return Request(self.kind, self.dtype, self.count, (tuple(range(self.ranks)),), op, scales=self.scales)

    @cached_property
    def made(self) -> Composed:
        return prove(self.request, PLATFORMS[TRN2], How(algorithm=self.algorithm))

    @cached_property
    def images(self) -> tuple[bytes, ...]:
        made = self.made
        return emit(
            made.schedule, made.request, PLATFORMS[TRN2], algorithm=self.algorithm, folds=self.folds, words=self.words
        )

    def raw_inputs(self, seed: int = 0) -> Array:
        """Return inputs near one as bytes, shape (ranks, bytes)."""
        shape = (self.ranks, self.request.input_size // numpy_dtype(self.dtype).itemsize)
        values = np.random.default_rng(seed).uniform(1, 100, shape).astype(np.float32)
        return values.astype(numpy_dtype(self.dtype)).view(np.uint8)

    def expected(self, raw: Array) -> Array:
        """Return what the schedule leaves on arrays, as bytes."""
        values = raw.view(numpy_dtype(self.dtype))
        return execute(self.made.schedule, values, scales=self.request.scales).view(np.uint8)


@dataclass(frozen=True)
class Chained:
    """A program of several collectives on the same ranks, those of one number sharing everything but their turn."""

    parts: tuple[Lowering, ...]
    order: tuple[int, ...]

    @cached_property
    def images(self) -> tuple[bytes, ...]:
        declared: list[Declared] = []
        first: list[int] = []
        for number, part in enumerate(self.parts):
            schedule = part.made.schedule
            first.append(len(declared))
            for i, buffer in enumerate(schedule.buffers):
                use = BufferUse.INPUT if i == schedule.input else BufferUse.INTERNAL
                use |= BufferUse.OUTPUT if i == schedule.output else BufferUse.INTERNAL
                declared.append(Declared(Buffer(f"{number}.{buffer.name}", buffer.size, buffer.user), use))
        ranks = self.parts[0].ranks
        collectives = [
            Collective(
                schedule=self.parts[number].made.schedule,
                dtype=self.parts[number].dtype,
                algorithm=self.parts[number].algorithm,
                scales=self.parts[number].scales,
                member=np.arange(ranks),
                buffers=first[number] + np.arange(len(self.parts[number].made.schedule.buffers)),
                groups=[range(ranks)],
                shape=number,
                turn=self.order[:place].count(number),
            )
            for place, number in enumerate(self.order)
        ]
        return emit_program(collectives, np.arange(ranks), declared, PLATFORMS[TRN2]).images

    @cached_property
    def device(self) -> Device:
        return load(self.images)

    def inputs(self, seed: int = 0) -> Mapping[str, Array]:
        """Return the inputs of all collectives by buffer."""
        return {f"{number}.input": part.raw_inputs(seed + number) for number, part in enumerate(self.parts)}

    def expected(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return what each schedule leaves on arrays."""
        return {
            f"{number}.{part.made.schedule.buffers[part.made.schedule.output].name}": part.expected(
                inputs[f"{number}.input"]
            )
            for number, part in enumerate(self.parts)
        }


def event(image: bytes, sp: int, place: int) -> dict[str, int]:
    """Return a record of the event table."""
    at = CONF.part("mesh").at + place * MESH_EVENT.size
    return MESH_EVENT.decode(section(image, Section.CONF, sp), at)


def with_event(image: bytes, sp: int, place: int, **fields: int) -> bytes:
    """Change fields of a record of the event table."""
    at = CONF.part("mesh").at + place * MESH_EVENT.size
    return edit(image, Section.CONF, sp, at, MESH_EVENT.encode(**(event(image, sp, place) | fields)))


def channel(image: bytes, sp: int, place: int) -> dict[str, int]:
    """Return a ring channel record."""
    return RING_CHANNEL.decode(section(image, Section.CONF, sp), place * RING_CHANNEL.size)


def with_channel(image: bytes, sp: int, place: int, **fields: int) -> bytes:
    """Change fields of a ring channel record."""
    data = RING_CHANNEL.encode(**(channel(image, sp, place) | fields))
    return edit(image, Section.CONF, sp, place * RING_CHANNEL.size, data)


def processors(image: bytes, kind: Section = Section.SLOT) -> list[int]:
    """Return the stream processors that have slot programs."""
    return sorted({index // 8 for each, index in table(image) if each is kind})
