"""RING: reduce-scatter and all-gather around a directed cycle, in halves, over several channels at once.

Per half, chunk group and channel, with k the chunk that stands `i` places before a rank in its ring (compose §6.2-6.3):

    reduce-scatter  step 0          send               own input k -> next's slot
                    step 1 .. N-2   recv_reduce_send   slot + own input k -> next's slot
                    step N-1        recv_reduce_copy   slot + own input -> own output
    all-gather      bridge          direct_copy_send   own chunk -> next's output
                    middle          direct_recv_send   chunk just received -> next's output
                    last            direct_recv        nothing moves

A sending row takes a credit and a receiving row returns one, in both phases; slots are used in sending order. The
wiring of the ring is `machine`'s, the number of channels `select`'s. A group of one rank is a local copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array
from rota.compose.cut import Cut, cut
from rota.errors import UnsupportedError, UsageError
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED, KIND_NAMES
from rota.schedule.build import Block, Place, Signal, Wait, assemble
from rota.schedule.ir import MAX_RANKS, Buffer, Checks, Leaf, Op, Schedule, Semaphore
from rota.select.settings import MOST_SLOTS, RING_CHUNK, SLOTS

MAX_CHANNELS: Final = 32

_OP: Final = {CceType.ADD: Op.ADD, CceType.MAX: Op.MAX, CceType.MIN: Op.MIN}


def compose_ring(
    orders: ArrayLike,
    *,
    kind: EncOp,
    size: int,
    op: CceType | None = None,
    slots: int = SLOTS,
    halves: int = 2,
    chunk: int = RING_CHUNK,
    in_place: bool = False,
    checks: Checks = Checks.ALL,
) -> Schedule:
    """Compose a ring collective of all ranks.

    Args:
        orders: the ring of each channel: shape (channels, ranks) for one group, (channels, groups, ranks) for several
            that run together. Entries are positions in the group; each ring is a permutation of 0 .. ranks - 1.
        kind: all-reduce, all-gather or reduce-scatter.
        size: bytes of the whole buffer, B.
        slots: half-chunks a channel buffers at the receiver, which is also its credit.
        halves: 2 as the runtime does, or 1.
        chunk: most bytes of one rank's chunk in one channel and chunk group.

    Raises:
        UsageError: orders that are no rings, slots that would block, or a size, chunk or operation that makes no ring
            collective.
        UnsupportedError: more ranks or chunk groups than the columns of a schedule can number.

    Source:
        compose §6; schedule §4; device-model §5.3 for the least number of slots.
    """
    rings = _rings(orders)
    ranks = rings.shape[2]
    combine = _operation(kind, op, in_place=in_place)
    if halves not in (1, 2) or not halves < slots <= MOST_SLOTS:
        raise UsageError(
            f"{slots} slots for {halves} halves: expected more slots than halves and at most {MOST_SLOTS}, or the ring "
            "waits for itself"
        )
    pieces = cut(kind, size, ranks=ranks, channels=rings.shape[0], halves=halves, chunk=chunk)
    plan = _Plan(rings, pieces, kind, combine, slots, in_place)
    shard = size // ranks
    user = [Buffer("input", shard if kind is EncOp.ALLGATHER else size, user=True)]
    if not in_place:
        user.append(Buffer("output", shard if kind is EncOp.REDUCE_SCATTER else size, user=True))
    reduces = kind is not EncOp.ALLGATHER and ranks > 1
    internal = [Buffer(f"slot.{c}", slots * pieces.largest) for c in range(rings.shape[0])] if reduces else []
    credit = slots if kind is not EncOp.ALLGATHER else 0
    semaphores = [
        semaphore
        for c in range(rings.shape[0] if ranks > 1 else 0)
        for semaphore in (Semaphore(f"recv.{c}"), Semaphore(f"credit.{c}", credit))
    ]
    return assemble(
        list(plan.blocks()),
        ranks=rings.shape[1] * ranks,
        buffers=user + internal,
        semaphores=semaphores,
        input=0,
        output=0 if in_place else 1,
        checks=checks,
    )


def _operation(kind: EncOp, op: CceType | None, *, in_place: bool) -> Op:
    if kind not in COMPOSED:
        raise UsageError(f"{kind.name}: a ring does {', '.join(KIND_NAMES[known] for known in COMPOSED)}")
    if in_place and kind is not EncOp.ALLREDUCE:
        raise UsageError(f"{KIND_NAMES[kind]} cannot be in place: its input and output differ in size")
    if kind is EncOp.ALLGATHER:
        if op is not None:
            raise UsageError(f"{KIND_NAMES[kind]} does not reduce: leave the reduction out")
        return Op.NONE
    if op not in _OP:
        raise UsageError(f"{KIND_NAMES[kind]} needs a reduction: one of {', '.join(known.name for known in _OP)}")
    return _OP[op]


def _rings(orders: ArrayLike) -> I64:
    try:
        rings = np.asarray(orders, np.int64)
    except (TypeError, ValueError, OverflowError):
        raise UsageError("ring orders: expected equally long lists of positions") from None
    if rings.ndim == 2:
        rings = rings[:, None, :]
    if rings.ndim != 3 or not rings.size or rings.shape[0] > MAX_CHANNELS:
        raise UsageError(f"ring orders: expected 1 to {MAX_CHANNELS} channels of at least one rank, got {rings.shape}")
    if (np.sort(rings, axis=2) != np.arange(rings.shape[2])).any():
        raise UsageError(f"ring orders: expected each to name the positions 0 to {rings.shape[2] - 1} once")
    if rings.shape[1] * rings.shape[2] > MAX_RANKS:
        raise UnsupportedError(f"{rings.shape[1] * rings.shape[2]} ranks: a schedule numbers {MAX_RANKS}")
    return rings


@dataclass(frozen=True, slots=True)
class _Plan:
    """The blocks of one ring collective; arrays have shape (steps, halves, channels, groups, ranks)."""

    rings: I64
    pieces: Cut
    kind: EncOp
    op: Op
    slots: int
    in_place: bool

    @property
    def ranks(self) -> int:
        return int(self.rings.shape[2])

    @property
    def _input(self) -> int:
        return 0

    @property
    def _output(self) -> int:
        return 0 if self.in_place else 1

    @property
    def _slot(self) -> int:
        return self._output + 1

    @property
    def _gathers(self) -> bool:
        return self.kind is not EncOp.REDUCE_SCATTER

    @property
    def _scatters(self) -> bool:
        return self.kind is not EncOp.ALLGATHER

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in stored order: chunk group after chunk group, step after step, H0 before H1."""
        if self.ranks == 1:
            yield from self._local_copy()
            return
        if not self._scatters:
            yield self._enter()
        for group in range(self.pieces.groups):
            if self._scatters:
                yield from self._reduce_scatter(group)
            if self._gathers:
                yield from self._all_gather(group)

    def _local_copy(self) -> Iterator[Block]:
        if self.in_place:
            return
        for group in range(self.pieces.groups):
            at = self._at(group, [0], 0)
            yield at.block(Leaf.DIRECT_COPY, 0, 0, [at.place(self._input)], [at.place(self._output)])

    def _enter(self) -> Block:
        """Each rank tells the one before it that its output may be written; the credits come back at the end."""
        at = self._at(0, [0], 0, halves=1)
        return at.block(Leaf.POST_RECV, 0, 0, signals=[at.give_credit(min(self.slots, self._receives))])

    @property
    def _receives(self) -> int:
        return self.pieces.groups * (self.ranks - 1) * self.pieces.halves

    def _reduce_scatter(self, group: int) -> Iterator[Block]:
        n = self.ranks
        own, out, slot = self._input, self._output, self._slot
        at = self._at(group, [0], 1)
        yield at.block(Leaf.SEND, 0, 0, [at.place(own)], [at.next_slot(slot)], [at.credit()], [at.post()])
        at = self._at(group, range(1, n - 1), 1)
        yield at.block(
            Leaf.RECV_REDUCE_SEND,
            0,
            0,
            [at.own_slot(slot), at.place(own)],
            [at.next_slot(slot)],
            [at.received(), at.credit()],
            [at.post(), at.give_credit()],
            op=self.op,
        )
        at = self._at(group, [n - 1], 1)
        target = at.place(out) if self._gathers else at.place(out, shard=True)
        sources = [at.own_slot(slot), at.place(own)]
        yield at.block(Leaf.RECV_REDUCE_COPY, 0, 0, sources, [target], [at.received()], [at.give_credit()], op=self.op)

    def _all_gather(self, group: int) -> Iterator[Block]:
        n, out = self.ranks, self._output
        leg, first = (1, n) if self._scatters else (0, 1)
        at = self._at(group, [0], 0, after=n - 1)
        source = at.place(out) if self._scatters else at.place(self._input, shard=True)
        send = [at.next_place(out)]
        fence = self._scatters  # it reads what the row before it writes
        yield at.block(Leaf.DIRECT_COPY_SEND, leg, first, [source], send, [at.credit()], [at.post()], fence=fence)
        if not self._scatters:
            first += 1
            yield at.block(Leaf.DIRECT_COPY, leg, first, [source], [at.place(out)])
        at = self._at(group, range(1, n - 1), 0, after=n - 1)
        yield at.block(
            Leaf.DIRECT_RECV_SEND,
            leg,
            first,
            [at.place(out)],
            [at.next_place(out)],
            [at.received(), at.credit()],
            [at.post(), self._return(at, group)],
        )
        at = self._at(group, [n - 1], 0, after=n - 1)
        yield at.block(Leaf.DIRECT_RECV, leg, first, waits=[at.received()], signals=[self._return(at, group)])

    def _return(self, at: _At, group: int) -> Signal:
        """The credit a receiving row returns; the last ones of an all-gather keep what `_enter` gave."""
        if self._scatters:
            return at.give_credit()
        halves = self.pieces.halves
        received = (group * (self.ranks - 1) + at.step - 1) * halves + at.half
        return at.give_credit(where=received < self._receives - min(self.slots, self._receives))

    def _at(self, group: int, steps: Sequence[int], back: int, *, after: int = 0, halves: int | None = None) -> _At:
        """Return the rows of some steps of a phase: chunk k of step j stands `j + back` places before its rank.

        Args:
            after: sending steps of the phase before this one, when the operation has one.
            halves: rows of each step, by default one for each half.
        """
        n = self.ranks
        every = self.pieces.halves
        step, half, channel, member_group, position = np.ix_(
            np.asarray(steps, np.int64), np.arange(halves or every), *map(np.arange, self.rings.shape)
        )
        ring = self.rings
        phases = int(self._scatters) + int(self._gathers)
        sends = (group * phases * (n - 1) + step + (after if phases == 2 else 0)) * every + half
        columns = np.broadcast_arrays(
            member_group * n,
            ring[channel, member_group, position],
            ring[channel, member_group, (position + 1) % n],
            ring[channel, member_group, (position - 1) % n],
            ring[channel, member_group, (position - step - back) % n],
            half,
            channel,
            step,
            sends,
        )
        return _At(self, group, *columns)


@dataclass(frozen=True, slots=True)
class _At:
    """Rows of a few steps, and the places, waits and signals a ring step is made of."""

    plan: _Plan
    group: int
    base: Array  # first member of the row's group
    rank: Array  # position in the group, as the next three
    following: Array
    preceding: Array
    chunk: Array
    half: Array
    channel: Array
    step: Array
    sent: Array  # sends of the channel before this row's

    @property
    def size(self) -> Array:
        size: Array = self.plan.pieces.size[self.group, self.channel, self.chunk, self.half]
        return size

    def place(self, buffer: int, *, shard: bool = False) -> Place:
        """The row's chunk in the rank's own buffer; `shard` when that buffer holds only the rank's own chunk."""
        offset = self.plan.pieces.offset[self.group, self.channel, self.chunk, self.half]
        if shard:
            offset = offset - self.chunk * self._shard_size
        return Place(buffer, offset)

    @property
    def _shard_size(self) -> int:
        return int(self.plan.pieces.size.sum()) // self.plan.ranks

    def next_place(self, buffer: int) -> Place:
        return self.place(buffer)._replace(rank=self.base + self.following)

    def next_slot(self, buffer: int) -> Place:
        return Place(buffer + self.channel, self._slot_offset(self.sent), self.base + self.following)

    def own_slot(self, buffer: int) -> Place:
        return Place(buffer + self.channel, self._slot_offset(self.sent - self.plan.pieces.halves))

    def _slot_offset(self, sent: Array) -> Array:
        return sent % self.plan.slots * self.plan.pieces.largest

    def received(self) -> Wait:
        return Wait(2 * self.channel)

    def credit(self) -> Wait:
        return Wait(2 * self.channel + 1)

    def post(self) -> Signal:
        return Signal(self.base + self.following, 2 * self.channel)

    def give_credit(self, add: int = 1, *, where: Array | None = None) -> Signal:
        return Signal(self.base + self.preceding, 2 * self.channel + 1, add, where)

    def block(
        self,
        leaf: Leaf,
        leg: int,
        first_step: int,
        sources: Sequence[Place] = (),
        targets: Sequence[Place] = (),
        waits: Sequence[Wait] = (),
        signals: Sequence[Signal] = (),
        *,
        op: Op = Op.NONE,
        fence: bool = False,
    ) -> Block:
        return Block(
            rank=self.base + self.rank,
            queue=self.channel,
            leaf=leaf,
            size=self.size if sources else 0,
            leg=leg,
            step=first_step + self.step,
            part=2 * self.group + self.half,
            op=op,
            fence=fence,
            sources=sources,
            targets=targets,
            waits=waits,
            signals=signals,
        )
