"""The board a collective is composed on: its groups, its buffers and semaphores, and the rows written so far.

A composer takes a board, names what it needs, and writes rows in the order of one legal execution. Ranks are positions
in a group; the board repeats every row for each group. Arrays broadcast against each other; their last two axes are
(groups, positions), so that one call writes a whole phase:

    board = Board.of(request)
    me, step = board.position, np.arange(1, board.ranks)[:, None, None]
    done = board.semaphore("done")
    to = (me + step) % board.ranks
    board.rows(Leaf.SEND, me, size=share, step=step,
               reads=[Place(board.input, 0)], writes=[Place(board.output, me * share, to)],
               signals=[Signal(to, done)])
    board.rows(Leaf.DIRECT_RECV, me, waits=[Wait(done, board.ranks - 1, board.ranks - 1)])
    return board.schedule()
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array
from rota.errors import UnsupportedError
from rota.isa.enums import CceType
from rota.request import Request
from rota.schedule.build import Block, Place, Signal, Wait, assemble
from rota.schedule.ir import Buffer, Checks, Leaf, Op, Schedule, Semaphore

__all__ = ["OP_OF", "Board", "Leaf", "Op", "Place", "Region", "Signal", "Wait"]

MAX_BUFFER: Final = 255
"""Largest number of a buffer. Source: schedule §1, u1."""
OP_OF: Final = {CceType.ADD: Op.ADD, CceType.FMA: Op.FMA, CceType.MAX: Op.MAX, CceType.MIN: Op.MIN}
"""The operation of a request's reduction in a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Where the equal shards of some data lie: shard k of a rank starts at `offset + k * stride` of its buffer.

    Attributes:
        offset: may differ from group to group, shape (groups, 1).
        table: start of each shard instead of a stride, shape (groups, shards): those of a hierarchy lie anywhere.
    """

    buffer: int
    offset: ArrayLike = 0
    stride: int = 0
    table: I64 | None = None

    def at(self, shard: ArrayLike = 0, within: ArrayLike = 0, rank: Array | None = None) -> Place:
        """Return the place `within` bytes behind the start of a shard, on the issuer or on another rank."""
        index = np.asarray(shard, np.int64)
        if self.table is None:
            start = index * self.stride
        else:
            start = self.table[np.arange(self.table.shape[0])[:, None], index]
        return Place(self.buffer, np.asarray(self.offset) + start + np.asarray(within), rank)

    def of(self, groups: Sequence[int]) -> Region:
        """Return the region of some of the groups."""
        offset = np.asarray(self.offset)
        if offset.ndim and offset.shape[0] > 1:
            offset = offset[groups]
        table = self.table[groups] if self.table is not None and self.table.shape[0] > 1 else self.table
        return Region(self.buffer, offset, self.stride, table)


class Board:
    """Rows of one collective, as they are written.

    Attributes:
        groups, ranks: groups that run together, and the members of each.
        op: how the collective combines; NONE where it only moves.
        input, output: buffers; one and the same when in place.
        members: member of the schedule at each (group, position).
    """

    def __init__(
        self,
        *,
        ranks: int,
        input_size: int,
        output_size: int,
        groups: int = 1,
        op: Op = Op.NONE,
        in_place: bool = False,
    ) -> None:
        self.groups = groups
        self.ranks = ranks
        self.op = op
        self.input = 0
        self.output = 0 if in_place else 1
        self._buffers = [Buffer("input", input_size, user=True)]
        if not in_place:
            self._buffers.append(Buffer("output", output_size, user=True))
        self._semaphores: list[Semaphore] = []
        self._blocks: list[Block] = []
        self.members = np.arange(groups * ranks, dtype=np.int64).reshape(groups, ranks)
        self._leg, self._step, self._queue, self._prefix = 0, 0, 0, ""

    @staticmethod
    def of(request: Request) -> Board:
        """Return an empty board for a request."""
        return Board(
            ranks=request.ranks,
            groups=len(request.groups),
            input_size=request.input_size,
            output_size=request.output_size,
            op=Op.NONE if request.op is None else OP_OF[request.op],
            in_place=request.in_place,
        )

    def part(self, members: I64, *, leg: int = 0, step: int = 0, queue: int = 0, prefix: str = "") -> Board:
        """Return a board that writes onto this one for other groups: the legs of a hierarchy, for example.

        Args:
            members: member of the schedule at each (group, position); groups share no member.
            leg, step, queue: added to those of every row.
            prefix: put before the names of its buffers and semaphores.
        """
        other = copy(self)
        other.members = members
        other.groups, other.ranks = members.shape
        other._leg, other._step, other._queue = self._leg + leg, self._step + step, self._queue + queue
        other._prefix = self._prefix + prefix
        return other

    @property
    def position(self) -> I64:
        """Positions of all members in their group, shape (1, ranks)."""
        return np.arange(self.ranks, dtype=np.int64)[None, :]

    def buffer(self, name: str, size: int) -> int:
        """Declare an internal buffer that every rank has, and return its id.

        Raises:
            UnsupportedError: more buffers than a schedule can number.
        """
        if len(self._buffers) > MAX_BUFFER:
            raise UnsupportedError(
                f"buffer {self._prefix}{name}: the schedule has {len(self._buffers)} buffers already and numbers no "
                "more; use fewer nodes or less data"
            )
        self._buffers.append(Buffer(self._prefix + name, size))
        return len(self._buffers) - 1

    def semaphore(self, name: str, initial: int = 0) -> int:
        """Declare a semaphore that every rank has, and return its id. Consecutive calls give consecutive ids."""
        self._semaphores.append(Semaphore(self._prefix + name, initial))
        return len(self._semaphores) - 1

    def rows(
        self,
        leaf: Leaf,
        rank: ArrayLike,
        *,
        size: ArrayLike = 0,
        reads: Sequence[Place] = (),
        writes: Sequence[Place] = (),
        waits: Sequence[Wait] = (),
        signals: Sequence[Signal] = (),
        op: Op = Op.NONE,
        fence: ArrayLike = False,
        queue: ArrayLike = 0,
        leg: int = 0,
        step: ArrayLike = 0,
        part: ArrayLike = 0,
        event: int = 0,
        when: Array | None = None,
    ) -> None:
        """Write one row for every entry of the arrays, in C order.

        Args:
            rank: position of the issuer; so are the ranks of places (without one, the issuer's own) and of signals.
            size: bytes of every source and target; a row of size 0 keeps its waits and signals and moves nothing.
            reads: sources in fold order.
            when: rows that exist; all by default.
        """
        shape = self._shape(rank, size, queue, step, part, fence, when, *self._arrays(reads, writes, waits, signals))
        keep = None if when is None else np.broadcast_to(when, shape)

        def column(value: ArrayLike) -> Array:
            whole = np.broadcast_to(np.asarray(value), shape)
            return whole if keep is None else whole[keep]

        def member(value: ArrayLike) -> Array:
            return column(self.members[np.arange(self.groups)[:, None], np.asarray(value, np.int64)])

        def mask(value: Array | None) -> Array | None:
            return None if value is None else column(value)

        def place(one: Place) -> Place:
            return Place(
                column(one.buffer),
                column(one.offset),
                None if one.rank is None else member(one.rank),
                mask(one.where),
            )

        self._blocks.append(
            Block(
                rank=member(rank),
                queue=column(np.asarray(queue) + self._queue),
                leaf=leaf,
                size=column(size),
                leg=self._leg + leg,
                step=column(np.asarray(step) + self._step),
                part=column(part),
                op=op,
                fence=column(fence),
                event=event,
                sources=[place(one) for one in reads],
                targets=[place(one) for one in writes],
                waits=[
                    Wait(column(one.semaphore), column(one.at_least), column(one.subtract), mask(one.where))
                    for one in waits
                ],
                signals=[
                    Signal(member(one.rank), column(one.semaphore), column(one.add), mask(one.where)) for one in signals
                ],
            )
        )

    def schedule(self, *, checks: Checks = Checks.ALL) -> Schedule:
        """Return the checked schedule.

        Raises:
            VerifyError: the rows make no schedule: the stored order is no execution, a semaphore does not return to its
                initial value, a place lies outside its buffer, ...
        """
        return assemble(
            self._blocks,
            ranks=self.members.size,
            buffers=self._buffers,
            semaphores=self._semaphores,
            input=self.input,
            output=self.output,
            checks=checks,
        )

    def _shape(self, *values: ArrayLike | None) -> tuple[int, ...]:
        shapes = [np.shape(value) for value in values if value is not None]
        return np.broadcast_shapes((self.groups, 1), *shapes)

    @staticmethod
    def _arrays(
        reads: Sequence[Place], writes: Sequence[Place], waits: Sequence[Wait], signals: Sequence[Signal]
    ) -> list[ArrayLike | None]:
        return [value for one in (*reads, *writes, *waits, *signals) for value in one]
