"""RING: reduce-scatter and all-gather around a directed cycle, in halves, over several channels at once.

Per half, chunk group and channel, with k the chunk that stands `i` places before a rank in its ring (compose §6.2-6.3):

    reduce-scatter  step 0          send               own input k -> next's slot
                    step 1 .. N-2   recv_reduce_send   slot + own input k -> next's slot
                    step N-1        recv_reduce_copy   slot + own input -> own output
    all-gather      bridge          direct_copy_send   own chunk -> next's output
                    middle          direct_recv_send   chunk just received -> next's output
                    last            direct_recv        nothing moves

A sending row takes a credit and a receiving row returns one, in both phases; slots are used in sending order. The
wiring of the ring is `machine`'s, the number of channels `select`'s. A group of one rank is a local copy, scaled by
an fma.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array
from rota.compose.board import OP_OF, Board, Leaf, Op, Place, Region, Signal, Wait
from rota.compose.cut import Cut, cut
from rota.errors import UnsupportedError, UsageError
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED, KIND_NAMES
from rota.schedule.ir import MAX_RANKS, Checks, Schedule
from rota.select.settings import MOST_SLOTS, RING_CHUNK, SLOTS

MAX_CHANNELS: Final = 32


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
    shard = size // ranks
    board = Board(
        ranks=ranks,
        groups=rings.shape[1],
        input_size=shard if kind is EncOp.ALLGATHER else size,
        output_size=shard if kind is EncOp.REDUCE_SCATTER else size,
        op=combine,
        in_place=in_place,
    )
    sharded = Region(board.output, stride=shard) if kind is EncOp.ALLGATHER else Region(board.output)
    source = Region(board.input, stride=shard) if kind is EncOp.REDUCE_SCATTER else Region(board.input)
    Ring(board, rings, [pieces], kind, slots, [Ends(source, sharded)]).write()
    return board.schedule(checks=checks)


def _operation(kind: EncOp, op: CceType | None, *, in_place: bool) -> Op:
    if kind not in COMPOSED:
        raise UsageError(f"{kind.name}: a ring does {', '.join(KIND_NAMES[known] for known in COMPOSED)}")
    if in_place and kind is not EncOp.ALLREDUCE:
        raise UsageError(f"{KIND_NAMES[kind]} cannot be in place: its input and output differ in size")
    if kind is EncOp.ALLGATHER:
        if op is not None:
            raise UsageError(f"{KIND_NAMES[kind]} does not reduce: leave the reduction out")
        return Op.NONE
    if op not in OP_OF:
        raise UsageError(f"{KIND_NAMES[kind]} needs a reduction: one of {', '.join(known.name for known in OP_OF)}")
    return OP_OF[op]


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
class Ends:
    """Where one part of a ring collective takes its data and leaves its result.

    Attributes:
        source: of an all-gather, the own shard as shard 0; otherwise all the data.
        target: of a reduce-scatter, the own shard as shard 0; otherwise all the data. An all-gather whose source and
            target are in one buffer finds its own shard in place.
    """

    source: Region
    target: Region


class Ring:
    """The rows of one ring collective, or of several parts one after another; parts are alike but for their ends.

    Arrays have shape (steps, halves, channels, groups, ranks).

    Args:
        rings: shape (channels, groups, ranks), positions.
        enter: an all-gather announces that its target may be written.
        fence_first: the first row of each part reads what earlier rows of its queue wrote.
        duplicate: an all-gather writes its own shard to both targets in one row.

    Source:
        compose §6; §13.2 for the parts of a hierarchy.
    """

    def __init__(
        self,
        board: Board,
        rings: I64,
        pieces: Sequence[Cut],
        kind: EncOp,
        slots: int,
        ends: Sequence[Ends],
        *,
        enter: bool = True,
        fence_first: bool = False,
        duplicate: bool = False,
    ) -> None:
        self.board = board
        self.rings = rings
        self.pieces = pieces
        self.halves = pieces[0].halves
        self.largest = max(each.largest for each in pieces)
        self.starts = list(accumulate((each.groups for each in pieces), initial=0))
        self.kind = kind
        self.slots = slots
        self.ends = ends
        self.ranks = int(rings.shape[2])
        self.scatters = kind is not EncOp.ALLGATHER
        self.gathers = kind is not EncOp.REDUCE_SCATTER
        self.enters = enter and not self.scatters
        self.fence_first = fence_first
        self.duplicate = duplicate
        self.recv, self.slot = self._declare()

    def _declare(self) -> tuple[int, int]:
        """Declare semaphores and slots of every channel; return the ids of channel 0's, the others follow."""
        first = [0, 0]
        for channel in range(self.rings.shape[0] if self.ranks > 1 else 0):
            recv = self.board.semaphore(f"recv.{channel}")
            self.board.semaphore(f"credit.{channel}", 0 if self.enters else self.slots)
            slot = self.board.buffer(f"slot.{channel}", self.slots * self.largest) if self.scatters else 0
            first = first if channel else [recv, slot]
        return first[0], first[1]

    def write(self) -> None:
        """Write all parts."""
        for part in range(len(self.ends)):
            self.write_part(part)

    def write_part(self, part: int) -> None:
        """Write one part in stored order: chunk group after chunk group, step after step, H0 before H1.

        Parts are written in their order; rows of other queues may come between them.
        """
        groups = range(self.starts[part], self.starts[part + 1])
        if self.ranks == 1:
            self._local_copy(groups)
            return
        if self.enters and not part:
            self._enter()
        for group in groups:
            if self.scatters:
                self._reduce_scatter(group)
            if self.gathers:
                self._all_gather(group)

    def part_of(self, group: int) -> int:
        """Return the part of a chunk group; groups are numbered through all parts."""
        return bisect_right(self.starts, group) - 1

    def _ends(self, group: int) -> Ends:
        return self.ends[self.part_of(group)]

    def _fences(self, group: int) -> bool:
        return self.fence_first and group in self.starts

    def _local_copy(self, groups: range) -> None:
        raw = self.board.op if self.board.op is Op.FMA else Op.NONE  # the only contribution is scaled as well
        for group in groups:
            ends = self._ends(group)
            if ends.source.buffer != ends.target.buffer or raw is Op.FMA:
                at = self._at(group, [0], 0)
                source, target = [at.place(ends.source)], [at.place(ends.target)]
                at.rows(Leaf.DIRECT_COPY, 0, 0, source, target, op=raw, fence=self._fences(group))

    def _enter(self) -> None:
        """Each rank tells the one before it that its output may be written; the credits come back at the end."""
        at = self._at(0, [0], 0, halves=1)
        at.rows(Leaf.POST_RECV, 0, 0, signals=[at.give_credit(min(self.slots, self._receives))])

    @property
    def _receives(self) -> int:
        return self.starts[-1] * (self.ranks - 1) * self.halves

    def _reduce_scatter(self, group: int) -> None:
        n, ends, op = self.ranks, self._ends(group), self.board.op
        own = ends.source
        at = self._at(group, [0], 1)
        raw = op if op is Op.FMA else Op.NONE  # a raw input is scaled when it is first read
        fence = self._fences(group)
        at.rows(Leaf.SEND, 0, 0, [at.place(own)], [at.next_slot()], [at.credit()], [at.post()], op=raw, fence=fence)
        at = self._at(group, range(1, n - 1), 1)
        sources, passed = [at.own_slot(), at.place(own)], [at.post(), at.give_credit()]
        waits = [at.received(), at.credit()]
        at.rows(Leaf.RECV_REDUCE_SEND, 0, 0, sources, [at.next_slot()], waits, passed, op=op)
        at = self._at(group, [n - 1], 1)
        target = at.place(ends.target) if self.gathers else at.own_shard(ends.target)
        sources = [at.own_slot(), at.place(own)]
        at.rows(Leaf.RECV_REDUCE_COPY, 0, 0, sources, [target], [at.received()], [at.give_credit()], op=op)

    def _all_gather(self, group: int) -> None:
        n, ends = self.ranks, self._ends(group)
        out = ends.target
        leg, first = (1, n) if self.scatters else (0, 1)
        at = self._at(group, [0], 0, after=n - 1)
        found = self.scatters or ends.source.buffer == out.buffer
        source = at.place(out) if found else at.own_shard(ends.source)
        fence = self.scatters or self._fences(group)  # it reads what the row before it writes
        send = [at.next_place(out)]
        if self.duplicate and not found:
            send, found = [at.place(out), *send], True
        at.rows(Leaf.DIRECT_COPY_SEND, leg, first, [source], send, [at.credit()], [at.post()], fence=fence)
        if not found:
            first += 1
            at.rows(Leaf.DIRECT_COPY, leg, first, [source], [at.place(out)])
        at = self._at(group, range(1, n - 1), 0, after=n - 1)
        waits, passed = [at.received(), at.credit()], [at.post(), self._return(at, group)]
        at.rows(Leaf.DIRECT_RECV_SEND, leg, first, [at.place(out)], [at.next_place(out)], waits, passed)
        at = self._at(group, [n - 1], 0, after=n - 1)
        at.rows(Leaf.DIRECT_RECV, leg, first, waits=[at.received()], signals=[self._return(at, group)])

    def _return(self, at: _At, group: int) -> Signal:
        """The credit a receiving row returns; the last ones of an all-gather keep what `_enter` gave."""
        if not self.enters:
            return at.give_credit()
        halves = self.halves
        received = (group * (self.ranks - 1) + at.step - 1) * halves + at.half
        return at.give_credit(where=received < self._receives - min(self.slots, self._receives))

    def _at(self, group: int, steps: Sequence[int], back: int, *, after: int = 0, halves: int | None = None) -> _At:
        """Return the rows of some steps of a phase: chunk k of step j stands `j + back` places before its rank.

        Args:
            after: sending steps of the phase before this one, when the operation has one.
            halves: rows of each step, by default one for each half.
        """
        n = self.ranks
        every = self.halves
        step, half, channel, member_group, position = np.ix_(
            np.asarray(steps, np.int64), np.arange(halves or every), *map(np.arange, self.rings.shape)
        )
        ring = self.rings
        phases = int(self.scatters) + int(self.gathers)
        sends = (group * phases * (n - 1) + step + (after if phases == 2 else 0)) * every + half
        columns = np.broadcast_arrays(
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

    ring: Ring
    group: int
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
        pieces, group = self._pieces
        size: Array = pieces.size[group, self.channel, self.chunk, self.half]
        return size

    @property
    def _within(self) -> Array:
        """Where the piece starts in its shard; an all-reduce has no shards, and its chunks lie anywhere."""
        pieces, group = self._pieces
        offset: Array = pieces.offset[group, self.channel, self.chunk, self.half]
        if not self.ring.scatters or not self.ring.gathers:
            offset = offset - self.chunk * pieces.shard
        return offset

    @property
    def _pieces(self) -> tuple[Cut, int]:
        """The cut of the row's part, and its chunk group in it."""
        part = self.ring.part_of(self.group)
        return self.ring.pieces[part], self.group - self.ring.starts[part]

    def place(self, region: Region) -> Place:
        """The row's chunk in the rank's own memory."""
        return region.at(0 if self.ring.scatters and self.ring.gathers else self.chunk, self._within)

    def own_shard(self, region: Region) -> Place:
        """The same in a region that holds only the rank's own shard."""
        return region.at(0, self._within)

    def next_place(self, region: Region) -> Place:
        return self.place(region)._replace(rank=self.following)

    def next_slot(self) -> Place:
        return Place(self.ring.slot + self.channel, self._slot_offset(self.sent), self.following)

    def own_slot(self) -> Place:
        return Place(self.ring.slot + self.channel, self._slot_offset(self.sent - self.ring.halves))

    def _slot_offset(self, sent: Array) -> Array:
        return sent % self.ring.slots * self.ring.largest

    def received(self) -> Wait:
        return Wait(self.ring.recv + 2 * self.channel)

    def credit(self) -> Wait:
        return Wait(self.ring.recv + 2 * self.channel + 1)

    def post(self) -> Signal:
        return Signal(self.following, self.ring.recv + 2 * self.channel)

    def give_credit(self, add: int = 1, *, where: Array | None = None) -> Signal:
        return Signal(self.preceding, self.ring.recv + 2 * self.channel + 1, add, where)

    def rows(
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
    ) -> None:
        """Write these rows."""
        self.ring.board.rows(
            leaf,
            self.rank,
            queue=self.channel,
            size=self.size if sources else 0,
            leg=leg,
            step=first_step + self.step,
            part=2 * self.group + self.half,
            op=op,
            fence=fence,
            reads=sources,
            writes=targets,
            waits=waits,
            signals=signals,
        )
