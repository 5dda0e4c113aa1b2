"""KANGARING: a ring over primaries, each of which moves the data of its whole core group.

A core group is a primary (member 0) and its secondaries: the ranks of one die. Per half, chunk group and channel, with
P primaries, G ranks in a core group, and K the G chunks that the core group `i` places before a primary owns
(compose §7.2); one row for each chunk of K:

    reduce-scatter  step 0          direct_reduce_send_kangaring  inputs of all members -> next's slot
                    step 1 .. P-2   recv_reduce_send              slot + inputs of all members -> next's slot
                    step P-1        recv_reduce_copy              slot + inputs of all members -> the owner's output
    all-gather      step 0          direct_copy_send              the owner's chunk -> outputs of all members, next's
                    step 1 .. P-2   direct_recv_send              chunk just received -> secondaries' outputs, next's
                    step P-1        direct_recv                   chunk just received -> secondaries' outputs
    secondary       before          post_send                     nothing moves: "my input and output may be used"
                    after           direct_recv                   nothing moves: it waits until they are done with

Received data fold first, then the members in the order of their path. A step of one half is one unit of flow: its
first row takes what it waits for, its last row tells; a slot holds the G pieces of one half. The paths are `machine`'s,
the number of channels `select`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, freeze
from rota.compose.board import Board, Leaf, Op, Place, Region, Signal, Wait
from rota.compose.cut import Cut, cut
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa.enums import EncOp
from rota.machine.group import Wiring, wire
from rota.machine.kangaring import kanga_paths
from rota.machine.platform import Platform
from rota.schedule.ir import Schedule
from rota.select.choose import Plan
from rota.select.settings import MOST_SLOTS, RING_CHUNK, SLOTS, Settings

HALVES: Final = 2
"""Pieces of a chunk that are under way at once. Source: compose §2.1, high (H0 and H1)."""

_ALIKE: Final = Source("schedule", "2, uniform blocks", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class KangaRings:
    """The paths of every channel and group, and how their buffers are cut.

    Attributes:
        members: position of member m of the i-th core group on a path, shape (channels, groups, P, G); member 0 is the
            primary, and the last core group is followed by the first.
        slots: halves a primary buffers, which is the credit of the one before it.
        chunk: most bytes of one rank's chunk in one channel and chunk group.
        halves: pieces of a chunk.

    Raises:
        UsageError: a path that does not name every position once, or slots that would block.
    """

    members: I64
    slots: int = SLOTS
    chunk: int = RING_CHUNK
    halves: int = HALVES

    def __post_init__(self) -> None:
        if self.members.ndim != 4 or not self.members.size:
            raise UsageError(
                f"KangaRing paths: expected shape (channels, groups, P, G), got {self.members.shape}; give a path for "
                "every channel and group"
            )
        channels, groups, primaries, size = self.members.shape
        ranks = primaries * size
        if size < 2:
            raise UsageError(
                "KangaRing paths: expected a primary and at least one secondary in a core group, got one rank"
            )
        if (np.sort(self.members.reshape(channels, groups, ranks), axis=2) != np.arange(ranks)).any():
            raise UsageError(f"KangaRing paths: expected each to name the positions 0 to {ranks - 1} once")
        if self.halves not in (1, HALVES) or not self.halves < self.slots <= MOST_SLOTS:
            raise UsageError(
                f"{self.slots} slots for {self.halves} halves: expected more slots than halves and at most "
                f"{MOST_SLOTS}, or the ring waits for itself"
            )
        freeze(self.members)

    @property
    def channels(self) -> int:
        """Paths of each group."""
        return int(self.members.shape[0])

    @property
    def primaries(self) -> int:
        """Core groups of a path, P."""
        return int(self.members.shape[2])

    @property
    def group_size(self) -> int:
        """Ranks of a core group, G."""
        return int(self.members.shape[3])

    def only(self, *channels: int) -> KangaRings:
        """Return the paths of some channels, numbered from 0: for a window that runs on those alone."""
        return KangaRings(self.members[list(channels)], self.slots, self.chunk, self.halves)


def how_of(
    platform: Platform,
    groups: Sequence[Sequence[int]],
    settings: Settings,
    *,
    wirings: Sequence[Wiring] | None = None,
) -> KangaRings:
    """Return the paths of groups of machine ranks that run together.

    Args:
        groups: member i of a group is its position i.
        wirings: of the groups, where they are known.

    Raises:
        UnsupportedError: a group has no KangaRing, or another number of channels or ranks than the first.
        UsageError: slots that would block.
    """
    made = [wire(platform, ranks) for ranks in groups] if wirings is None else wirings
    paths = [kanga_paths(platform, each) for each in made]
    shapes = {(len(path), len(path[0].primaries)) for path in paths}
    if len(shapes) > 1:
        raise UnsupportedError(
            "the groups get different numbers of KangaRing channels or ranks; make one request for each", source=_ALIKE
        )
    number = np.array([path.logical_path for each in paths for path in each], np.int64)
    ranks = np.asarray(groups, np.int64)
    order = np.argsort(ranks, axis=1)
    by_group = number.reshape(len(paths), -1, ranks.shape[1])
    positions = np.stack([o[np.searchsorted(r[o], p)] for r, o, p in zip(ranks, order, by_group, strict=True)])
    size = paths[0][0].group_size
    members = positions.swapaxes(0, 1).reshape(by_group.shape[1], len(paths), -1, size)
    return KangaRings(members, settings.slots, settings.chunk)


def compose_kangaring(plan: Plan) -> Schedule:
    """Return the KangaRing of every group of a plan: an all-reduce, all-gather or reduce-scatter.

    Raises:
        UnsupportedError: a group has no KangaRing, or more chunk groups than the columns of a schedule can number.

    Source:
        compose §7; topology §3; schedule §4.
    """
    request = plan.request
    how = how_of(plan.platform, request.groups, plan.settings, wirings=plan.wirings)
    board = Board.of(request)
    shard = request.share
    match request.kind:
        case EncOp.REDUCE_SCATTER:
            write_reduce_scatter(board, how, Region(board.input, 0, shard), Region(board.output), shard)
        case EncOp.ALLGATHER:
            write_all_gather(board, how, Region(board.input), Region(board.output, 0, shard), shard)
        case EncOp.ALLREDUCE:
            write_all_reduce(board, how, Region(board.input), Region(board.output), request.size)
        case _:
            raise UnsupportedError(f"{request.kind.name}: a KangaRing does all-reduce, all-gather and reduce-scatter")
    return board.schedule()


# --- writers ----------------------------------------------------------------------------------------------------------
# Channel c uses queue c of the board. The last row of a secondary waits until its buffers are done with, so its next
# row on that queue may use the data; a primary wrote its own with its last rows, so its next row must be fenced.


def write_reduce_scatter(
    board: Board,
    how: KangaRings,
    source: Region,
    target: Region,
    size: int,
    *,
    whole: int | None = None,
    fence_first: bool = False,
) -> None:
    """Write a reduce-scatter: shard k of all sources, combined, to position k.

    Args:
        source: `ranks` shards on every rank.
        target: it starts with the own shard.
        size: bytes of a shard; nothing is written for 0.
        whole: bytes of all shards when the last ones are short or empty.
        fence_first: the sources were written by earlier rows of the same queues.

    Raises:
        UsageError: the paths are not those of the board's groups.
        UnsupportedError: more chunk groups than a schedule can number.
    """
    if size:
        pieces = _cut(EncOp.REDUCE_SCATTER, how, size * board.ranks, whole)
        _Writer(board, how, pieces, _Data(source, target, None), fence_first).write()


def write_all_gather(
    board: Board,
    how: KangaRings,
    source: Region,
    target: Region,
    size: int,
    *,
    whole: int | None = None,
    fence_first: bool = False,
) -> None:
    """Write an all-gather: the shard of position k to shard k of every target.

    Args:
        source: it starts with the own shard; in the buffer of the target, that shard is in its place there.
        target: `ranks` shards on every rank.
        size: bytes of a shard; nothing is written for 0.
        whole: bytes of all shards when the last ones are short or empty.
        fence_first: the sources were written by earlier rows of the same queues.

    Raises:
        UsageError: the paths are not those of the board's groups.
        UnsupportedError: more chunk groups than a schedule can number.
    """
    if size:
        pieces = _cut(EncOp.ALLGATHER, how, size * board.ranks, whole)
        own = None if source.buffer == target.buffer else source
        _Writer(board, how, pieces, _Data(None, own, target), fence_first).write()


def write_all_reduce(
    board: Board, how: KangaRings, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce of a whole buffer, chunk group after chunk group.

    Args:
        source, target: the buffer, from the start of shard 0; both may be the same memory.
        size: bytes of the buffer; nothing is written for 0.
        fence_first: the sources were written by earlier rows of the same queues.

    Raises:
        UsageError: the paths are not those of the board's groups.
        UnsupportedError: more chunk groups than a schedule can number.
    """
    if size:
        pieces = _cut(EncOp.ALLREDUCE, how, size, None)
        _Writer(board, how, pieces, _Data(source, None, target), fence_first).write()


def _cut(kind: EncOp, how: KangaRings, size: int, whole: int | None) -> Cut:
    ranks, channels = how.primaries * how.group_size, how.channels
    return cut(kind, size, ranks=ranks, channels=channels, halves=how.halves, chunk=how.chunk, whole=whole)


@dataclass(frozen=True, slots=True)
class _Data:
    """Where the data lie.

    Attributes:
        whole: every chunk, before a reduction; None without one.
        own: only the own chunks, after the reduction or before the gather; None where they lie among all of `gathered`.
        gathered: every chunk, after a gather; None without one.
    """

    whole: Region | None
    own: Region | None
    gathered: Region | None


@dataclass(slots=True)
class _Writer:
    """The rows of one collective; arrays have shape (steps, halves, members, channels, groups, P)."""

    board: Board
    how: KangaRings
    pieces: Cut
    data: _Data
    fence: bool
    recv: int = field(init=False)
    credit: int = field(init=False)
    ready: int = field(init=False)
    done: int = field(init=False)
    slot: int = field(init=False)  # buffer of channel 0's slots; those of the other channels follow

    def write(self) -> None:
        """Write the rows in stored order: chunk group after chunk group, step after step, H0 before H1."""
        board, groups, ranks = self.board, self.how.members.shape[1], self.how.primaries * self.how.group_size
        if (groups, ranks) != (board.groups, board.ranks):
            raise UsageError(
                f"KangaRing paths of {groups} groups of {ranks} ranks: the board has {board.groups} of {board.ranks}; "
                "make the paths for its groups"
            )
        self._declare()
        self._open()
        if not self.scatters and self.how.primaries > 1:
            self._enter()
        for group in range(self.pieces.groups):
            if self.scatters:
                self._reduce_scatter(group)
            if self.gathers:
                self._all_gather(group)
        self._close()

    @property
    def scatters(self) -> bool:
        return self.data.whole is not None

    @property
    def gathers(self) -> bool:
        return self.data.gathered is not None

    @property
    def _last(self) -> tuple[int, int]:
        """Leg and step of the last rows."""
        steps = self.how.primaries
        if not self.gathers:
            return 0, steps - 1
        return (1, 2 * steps - 1) if self.scatters else (0, steps)

    def _declare(self) -> None:
        """Declare what every channel needs, and keep the ids of channel 0; those of the others follow."""
        board, how = self.board, self.how
        credit = how.slots if self.scatters else 0
        channels = range(how.channels)
        self.ready = min(board.semaphore(f"ready.{c}") for c in channels)
        self.done = min(board.semaphore(f"done.{c}") for c in channels)
        if how.primaries == 1:
            return
        self.recv = min(board.semaphore(f"recv.{c}") for c in channels)
        self.credit = min(board.semaphore(f"credit.{c}", credit) for c in channels)
        if self.scatters:
            size = how.slots * how.group_size * self.pieces.largest
            self.slot = min(board.buffer(f"slot.{c}", size) for c in channels)

    def _open(self) -> None:
        """Each secondary tells its primary that its buffers may be used."""
        members, channel = self._members
        ready = Signal(members[:, :1], self.ready + channel)
        self.board.rows(Leaf.POST_SEND, members[:, 1:], queue=channel, signals=[ready])

    def _close(self) -> None:
        """Each secondary waits until its buffers are done with."""
        members, channel = self._members
        leg, step = self._last
        done = Wait(self.done + channel)
        self.board.rows(Leaf.DIRECT_RECV, members[:, 1:], queue=channel, leg=leg, step=step, waits=[done])

    def _enter(self) -> None:
        """Each primary tells the one before it that its output may be written; the credits come back at the end."""
        members, channel = self._members
        primary, given = members[:, :1], min(self.how.slots, self._receives)
        enter = Signal(np.roll(primary, 1, axis=3), self.credit + channel, given)
        self.board.rows(Leaf.POST_RECV, primary, queue=channel, signals=[enter])

    @property
    def _members(self) -> tuple[Array, Array]:
        """The members, shape (channels, G, groups, P), and the channel of each."""
        return np.moveaxis(self.how.members, 3, 1), np.arange(self.how.channels)[:, None, None, None]

    @property
    def _receives(self) -> int:
        return self.pieces.groups * (self.how.primaries - 1) * self.pieces.halves

    def _reduce_scatter(self, group: int) -> None:
        count, op = self.how.primaries, self.board.op
        at = self._at(group, [0], 1)
        start, fence = [at.ready()], at.first & self.fence
        if count == 1:
            done = [] if self.gathers else at.dones()
            at.rows(Leaf.RECV_REDUCE_COPY, 0, 0, at.inputs(), [at.owner_place()], start, done, op=op, fence=fence)
            return
        leaf, waits = Leaf.DIRECT_REDUCE_SEND_KANGARING, [at.credits(), *start]
        at.rows(leaf, 0, 0, at.inputs(), [at.next_slot()], waits, [at.post()], op=op, fence=fence)
        at = self._at(group, range(1, count - 1), 1)
        waits, passed = [at.received(), at.credits()], [at.post(), at.give_credit()]
        sources = [at.own_slot(), *at.inputs()]
        at.rows(Leaf.RECV_REDUCE_SEND, 0, 0, sources, [at.next_slot()], waits, passed, op=op)
        at = self._at(group, [count - 1], 1)
        passed = [at.give_credit(), *([] if self.gathers else at.dones())]
        sources = [at.own_slot(), *at.inputs()]
        at.rows(Leaf.RECV_REDUCE_COPY, 0, 0, sources, [at.owner_place()], [at.received()], passed, op=op)

    def _all_gather(self, group: int) -> None:
        count = self.how.primaries
        leg, first = (1, count) if self.scatters else (0, 1)
        at = self._at(group, [0], 0, after=count - 1)
        waits = [] if self.scatters else [at.ready()]
        fence = at.opening if self.scatters else at.first & self.fence  # it reads what the rows before it wrote
        if count == 1:
            targets, signals = at.members_places(), at.dones()
            at.rows(Leaf.DIRECT_COPY, leg, first, [at.owner_place()], targets, waits, signals, fence=fence)
            return
        waits, targets = [at.credits(), *waits], [*at.members_places(), at.next_place()]
        at.rows(Leaf.DIRECT_COPY_SEND, leg, first, [at.owner_place()], targets, waits, [at.post()], fence=fence)
        at = self._at(group, range(1, count - 1), 0, after=count - 1)
        waits, passed = [at.received(), at.credits()], [at.post(), self._return(at, group)]
        targets = [*at.secondaries_places(), at.next_place()]
        at.rows(Leaf.DIRECT_RECV_SEND, leg, first, [at.own_place()], targets, waits, passed)
        at = self._at(group, [count - 1], 0, after=count - 1)
        signals = [self._return(at, group), *at.dones()]
        targets = at.secondaries_places()
        at.rows(Leaf.DIRECT_RECV, leg, first, [at.own_place()], targets, [at.received()], signals)

    def _return(self, at: _At, group: int) -> Signal:
        """The credit a receiving step returns; the last ones of an all-gather keep what `_enter` gave."""
        if self.scatters:
            return at.give_credit()
        received = (group * (self.how.primaries - 1) + at.step - 1) * self.pieces.halves + at.half
        return at.give_credit(received < self._receives - min(self.how.slots, self._receives))

    def _at(self, group: int, steps: Sequence[int], back: int, *, after: int = 0) -> _At:
        """Return the rows of some steps of a phase: the chunks of step j stand `j + back` places before a primary.

        Args:
            after: sending steps of the phase before this one, when the operation has one.
        """
        path, every, count = self.how.members, self.pieces.halves, self.how.primaries
        axes = (every, self.how.group_size, *path.shape[:3])
        step, half, member, channel, board_group, place = np.ix_(np.asarray(steps, np.int64), *map(np.arange, axes))
        phases = int(self.scatters) + int(self.gathers)
        return _At(
            writer=self,
            group=group,
            step=step,
            half=half,
            member=member,
            channel=channel,
            core=np.moveaxis(path[channel, board_group, place], -1, 0),
            following=path[channel, board_group, (place + 1) % count, 0],
            preceding=path[channel, board_group, (place - 1) % count, 0],
            chunk=path[channel, board_group, (place - step - back) % count, member],
            sent=(group * phases * (count - 1) + step + (after if phases == 2 else 0)) * every + half,
        )


@dataclass(frozen=True, slots=True)
class _At:
    """Rows of a few steps, and the places, waits and signals a step is made of. Arrays broadcast to the rows."""

    writer: _Writer
    group: int
    step: Array
    half: Array
    member: Array  # whose chunk of the core group that owns them
    channel: Array
    core: Array  # member of the own core group -> its position; the first is the issuer
    following: Array  # position of the next primary
    preceding: Array
    chunk: Array  # number of the chunk, and position of its owner
    sent: Array  # halves the channel sent before this row's

    @property
    def opening(self) -> Bool:
        """The first row of each primary among these."""
        opening: Bool = (self.member == 0) & (self.half == 0) & (self.step == 0)
        return opening

    @property
    def first(self) -> Bool:
        """The first row of each primary in the whole collective, where it is among these."""
        return self.opening & (self.group == 0)

    @property
    def _leading(self) -> Bool:
        first: Bool = self.member == 0
        return first

    @property
    def _trailing(self) -> Bool:
        last: Bool = self.member == self.writer.how.group_size - 1
        return last

    # --- places

    def _in(self, region: Region, rank: Array | None) -> Place:
        """The row's chunk in a region that holds all of them, on a member or on the issuer."""
        pieces = self.writer.pieces
        return region.at(self.chunk if pieces.shard else 0, self._within, rank)

    @property
    def _within(self) -> Array:
        """Where the piece starts in its shard; an all-reduce has no shards, and its chunks lie anywhere."""
        pieces = self.writer.pieces
        within: Array = pieces.offset[self.group, self.channel, self.chunk, self.half] - self.chunk * pieces.shard
        return within

    def inputs(self) -> list[Place]:
        """The chunk in the inputs of all members of the core group."""
        whole = self.writer.data.whole
        assert whole is not None, "only a reduction reads inputs"
        return [self._in(whole, None if m == 0 else rank) for m, rank in enumerate(self.core)]

    def owner_place(self) -> Place:
        """The chunk where its owner, a member of the core group, keeps it between the phases."""
        own = self.writer.data.own
        return self._in(self._gathered, self.chunk) if own is None else own.at(0, self._within, self.chunk)

    def own_place(self) -> Place:
        """The chunk in the primary's own output."""
        return self._in(self._gathered, None)

    def members_places(self) -> list[Place]:
        """A member's own chunk in the outputs of all members; not where it is already."""
        kept = self.writer.data.own is None
        places = [self.own_place(), *self.secondaries_places()]
        return [place._replace(where=self.member != m) if kept else place for m, place in enumerate(places)]

    def secondaries_places(self) -> list[Place]:
        """The chunk in the outputs of the secondaries."""
        return [self._in(self._gathered, rank) for rank in self.core[1:]]

    def next_place(self) -> Place:
        return self._in(self._gathered, self.following)

    @property
    def _gathered(self) -> Region:
        gathered = self.writer.data.gathered
        assert gathered is not None, "only a gather writes outputs"
        return gathered

    def next_slot(self) -> Place:
        return self._slot(self.sent)._replace(rank=self.following)

    def own_slot(self) -> Place:
        return self._slot(self.sent - self.writer.pieces.halves)

    def _slot(self, sent: Array) -> Place:
        how, largest = self.writer.how, self.writer.pieces.largest
        place = (sent % how.slots * how.group_size + self.member) * largest
        return Place(self.writer.slot + self.channel, place)

    # --- waits and signals

    def ready(self) -> Wait:
        """All secondaries are, before the first row of all."""
        others = self.writer.how.group_size - 1
        return Wait(self.writer.ready + self.channel, others, others, self.first)

    def received(self) -> Wait:
        return Wait(self.writer.recv + self.channel, where=self._leading)

    def credits(self) -> Wait:
        return Wait(self.writer.credit + self.channel, where=self._leading)

    def post(self) -> Signal:
        return Signal(self.following, self.writer.recv + self.channel, where=self._trailing)

    def give_credit(self, where: Array | None = None) -> Signal:
        mask = self._trailing if where is None else self._trailing & where
        return Signal(self.preceding, self.writer.credit + self.channel, where=mask)

    def dones(self) -> list[Signal]:
        """The end, told to every secondary by the last row of all."""
        pieces = self.writer.pieces
        last = self._trailing & (self.half == pieces.halves - 1) & (self.group == pieces.groups - 1)
        return [Signal(rank, self.writer.done + self.channel, where=last) for rank in self.core[1:]]

    # --- rows

    def rows(
        self,
        leaf: Leaf,
        leg: int,
        first_step: int,
        sources: Sequence[Place],
        targets: Sequence[Place],
        waits: Sequence[Wait],
        signals: Sequence[Signal],
        *,
        op: Op = Op.NONE,
        fence: Array | bool = False,
    ) -> None:
        """Write these rows; one between the first and the last of its step exists only if it has data."""
        size = self.writer.pieces.size[self.group, self.channel, self.chunk, self.half]
        exists = (size > 0) | self._leading | self._trailing
        self.writer.board.rows(
            leaf,
            self.core[0],
            queue=self.channel,
            size=size,
            leg=leg,
            step=first_step + self.step,
            part=2 * self.group + self.half,
            op=op,
            fence=fence,
            reads=sources,
            writes=targets,
            waits=waits,
            signals=signals,
            when=None if exists.all() else exists,
        )
