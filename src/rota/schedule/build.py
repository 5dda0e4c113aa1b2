"""Building schedules in uniform blocks: every column of a block is one array, blocks are concatenated in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rota.columns import Array, pointers
from rota.schedule.ir import STORED, Buffer, Checks, Leaf, Op, Places, Rows, Schedule, Semaphore, Signals, Waits


class Place(NamedTuple):
    """One source or target of every row of a block; rows outside `where` have none. A rank of None is the issuer."""

    buffer: Array | int
    offset: Array | int
    rank: Array | None = None
    where: Array | None = None


class Wait(NamedTuple):
    """One wait of every row of a block."""

    semaphore: Array | int
    at_least: Array | int = 1
    subtract: Array | int = 1
    where: Array | None = None


class Signal(NamedTuple):
    """One signal of every row of a block."""

    rank: Array
    semaphore: Array | int
    add: Array | int = 1
    where: Array | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one shape, in stored order. A row of size 0 keeps its waits and signals and moves nothing.

    Every array broadcasts to the shape of `rank` and is read in C order.
    """

    rank: Array
    queue: Array | int
    leaf: Leaf
    size: Array | int
    leg: int = 0
    step: Array | int = 0
    part: Array | int = 0
    op: Op = Op.NONE
    fence: Array | bool = False
    event: int = 0
    sources: Sequence[Place] = field(default_factory=tuple)
    targets: Sequence[Place] = field(default_factory=tuple)
    waits: Sequence[Wait] = field(default_factory=tuple)
    signals: Sequence[Signal] = field(default_factory=tuple)


def assemble(
    blocks: Sequence[Block],
    *,
    ranks: int,
    buffers: Sequence[Buffer],
    semaphores: Sequence[Semaphore],
    input: int,
    output: int,
    checks: Checks = Checks.ALL,
) -> Schedule:
    """Return the checked schedule of these blocks, one after another."""
    parts = [_Flat(block) for block in blocks if block.rank.size]
    rows = STORED[Rows]
    return Schedule(
        ranks=ranks,
        buffers=tuple(buffers),
        semaphores=tuple(semaphores),
        input=input,
        output=output,
        rows=Rows(
            rank=_stack([p.column(p.block.rank) for p in parts], rows["rank"]),
            queue=_stack([p.column(p.block.queue) for p in parts], rows["queue"]),
            part=_stack([p.column(p.block.part) for p in parts], rows["part"]),
            leg=_stack([p.column(p.block.leg) for p in parts], rows["leg"]),
            step=_stack([p.column(p.block.step) for p in parts], rows["step"]),
            event=_stack([p.column(p.block.event) for p in parts], rows["event"]),
            leaf=_stack([p.column(int(p.block.leaf)) for p in parts], rows["leaf"]),
            op=_stack([np.where(p.size > 0, int(p.block.op), 0) for p in parts], rows["op"]),
            fence=_stack([p.column(p.block.fence) for p in parts], rows["fence"]),
            size=_stack([p.size for p in parts], rows["size"]),
        ),
        sources=Places(*_csr(parts, [p.places(p.block.sources) for p in parts], STORED[Places])),
        targets=Places(*_csr(parts, [p.places(p.block.targets) for p in parts], STORED[Places])),
        waits=Waits(*_csr(parts, [p.waits() for p in parts], STORED[Waits])),
        signals=Signals(*_csr(parts, [p.signals() for p in parts], STORED[Signals])),
        checks=checks,
    )


class _Flat:
    """A block with its columns flattened."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.shape = block.rank.shape
        self.rank = block.rank.ravel()
        self.size = self.column(block.size)

    def column(self, value: Array | int | bool) -> Array:
        return np.broadcast_to(np.asarray(value), self.shape).ravel()

    def mask(self, where: Array | None) -> Array:
        return np.ones(self.rank.size, np.bool_) if where is None else self.column(where).astype(np.bool_)

    def places(self, places: Sequence[Place]) -> list[_Entry]:
        return [
            _Entry(
                self.mask(place.where) & (self.size > 0),
                (
                    self.rank if place.rank is None else self.column(place.rank),
                    self.column(place.buffer),
                    self.column(place.offset),
                ),
            )
            for place in places
        ]

    def waits(self) -> list[_Entry]:
        return [
            _Entry(self.mask(w.where), (self.column(w.semaphore), self.column(w.at_least), self.column(w.subtract)))
            for w in self.block.waits
        ]

    def signals(self) -> list[_Entry]:
        return [
            _Entry(self.mask(s.where), (self.column(s.rank), self.column(s.semaphore), self.column(s.add)))
            for s in self.block.signals
        ]


class _Entry(NamedTuple):
    """One source, target, wait or signal of every row of a block: which rows have it, and its columns."""

    mask: Array
    columns: tuple[Array, ...]


def _stack(columns: Sequence[Array], dtype: type[np.generic]) -> Array:
    """Concatenate and narrow; a value that does not fit is our own mistake, never a wrap-around."""
    whole = np.concatenate(columns) if columns else np.zeros(0, np.int64)
    narrow: Array = whole.astype(dtype)
    if not np.array_equal(narrow, whole):
        raise OverflowError(f"a schedule column holds values outside {np.dtype(dtype).name}")
    return narrow


def _csr(
    parts: Sequence[_Flat], entries: Sequence[list[_Entry]], stored: Mapping[str, type[np.generic]]
) -> list[Array]:
    """Interleave the entries of each block row by row: CSR pointers, then the merged columns."""
    counts, columns = [np.zeros(0, np.int64)], []
    for part, block in zip(parts, entries, strict=True):
        keep = np.stack([entry.mask for entry in block] or [np.zeros(part.rank.size, np.bool_)], axis=1)
        counts.append(keep.sum(axis=1))
        if block:
            columns.append([np.stack(c, axis=1)[keep] for c in zip(*(entry.columns for entry in block), strict=True)])
    ptr, *kinds = stored.values()
    merged = [[part[i] for part in columns] for i in range(len(kinds))]
    first = _stack([pointers(np.concatenate(counts))], ptr)
    return [first, *(_stack(c, kind) for c, kind in zip(merged, kinds, strict=True))]
