"""The cube: whom a rank meets in each round of recursive halving and doubling, and the rows of both.

Members stand at the corners of a cube: one for each label, on one or several lanes that do not meet here. In each
round a rank meets the one whose label differs in one bit. Which members these are, and what happens before and after,
is `recursive`'s between nodes and `intra_rdh`'s on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array, Bool, freeze
from rota.compose.board import Board, Leaf, Op, Place, Region, Signal, Wait
from rota.compose.cut import GRANULE

# --- the cube ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Cube:
    """The members of each group at the corners of a cube.

    Attributes:
        position: of the member with each label on each lane, shape (groups, labels, lanes).
        axes: label bit of each halving round, by lane, shape (lanes, rounds); doubling takes the rounds backwards.
        label, lane: of the member at each position, shape (groups, ranks).
    """

    position: I64
    axes: I64
    label: I64 = field(init=False)
    lane: I64 = field(init=False)

    def __post_init__(self) -> None:
        groups, labels, lanes = self.position.shape
        assert self.axes.shape == (lanes, labels.bit_length() - 1), "an axis for every round of every lane"
        label, lane = np.divmod(np.argsort(self.position.reshape(groups, -1), axis=1), lanes)
        for name, column in (("label", label), ("lane", lane)):
            object.__setattr__(self, name, column)
        for column in (self.position, self.axes, self.label, self.lane):
            freeze(column)

    @property
    def labels(self) -> int:
        """Corners of the cube."""
        return int(self.position.shape[1])

    @property
    def rounds(self) -> int:
        """Axes of the cube."""
        return int(self.axes.shape[1])

    def lookup(self, table: I64, label: ArrayLike) -> I64:
        """Return what a table of shape (groups, labels, lanes) holds for labels on each position's own lane."""
        found: I64 = table[np.arange(self.position.shape[0])[:, None], np.asarray(label), self.lane]
        return found

    def bit(self, number: int) -> I64:
        """Return the label bit in which the partners of a halving round differ, shape (groups, ranks)."""
        bit: I64 = np.int64(1) << self.axes[self.lane, number]
        return bit

    def partner(self, number: int) -> I64:
        """Return the position of each member's partner in a halving round, shape (groups, ranks)."""
        return self.lookup(self.position, self.label ^ self.bit(number))

    def keeps(self, number: int) -> I64:
        """Return the labels a member keeps in a halving round: those like its own on all axes so far.

        In order, shape (labels kept, groups, ranks). The partner keeps the same with the other bit of the round.
        """
        sides = (np.int64(1) << self.axes[:, : number + 1]).sum(axis=1)
        free = np.zeros((self.labels >> (number + 1), self.axes.shape[0]), np.int64)
        for i, axis in enumerate(self.axes[:, number + 1 :].T):
            free |= ((np.arange(free.shape[0])[:, None] >> i) & 1) << axis
        kept: I64 = (self.label & sides[self.lane]) | free[:, self.lane]
        return kept


@dataclass(frozen=True, slots=True)
class Shards:
    """Where the chunk of each label lies in a region: shard `index[group, label, lane]`."""

    cube: Cube
    region: Region
    index: I64

    @staticmethod
    def of_members(cube: Cube, region: Region) -> Shards:
        """Shards by position, as in the buffers of a collective."""
        return Shards(cube, region, cube.position)

    @staticmethod
    def of_labels(cube: Cube, region: Region) -> Shards:
        """Shards by label, of one lane, as in scratch."""
        labels = np.arange(cube.labels)[None, :, None]
        return Shards(cube, region, np.broadcast_to(labels, cube.position.shape))

    @staticmethod
    def of_kept(cube: Cube, region: Region) -> Shards:
        """Shards by label, without the bit of the first round: one side of the cube holds no more."""
        labels, axis = np.arange(cube.labels)[:, None], cube.axes[:, 0]
        kept = (labels >> (axis + 1) << axis) | (labels & ((np.int64(1) << axis) - 1))
        return Shards(cube, region, np.broadcast_to(kept, cube.position.shape))

    @staticmethod
    def of_one(cube: Cube, region: Region) -> Shards:
        """The only shard of a region, which is the rank's own."""
        return Shards(cube, region, np.zeros_like(cube.position))

    def place(self, label: ArrayLike, within: ArrayLike = 0, rank: Array | None = None) -> Place:
        """Return the place of the chunk with a label, `within` bytes behind its start."""
        return self.region.at(self.cube.lookup(self.index, label), within, rank)

    def behind(self, start: int) -> Shards:
        """Return the same chunks without their first bytes."""
        return replace(self, region=replace(self.region, offset=np.asarray(self.region.offset) + start))


# --- halving ----------------------------------------------------------------------------------------------------------


class Credit(Enum):
    """What a rank asks before it writes to its partner's slots."""

    NONE = "none"  # nothing: each slot is used once, and the operation does not end before all have been read
    ROUND = "round"  # a credit for all slots of a round, which the partner's last reduction returns
    TILE = "tile"  # a credit for each slot, which the reduction of its tile returns
    ASKED = "asked"  # a credit for all slots of a round, which the partner has given by a row of its own


@dataclass(frozen=True, slots=True)
class Slots:
    """What tiles are received into.

    Attributes:
        buffer: the buffer, of `count` slots of `size` bytes.
        received: the semaphore of round 0's tiles; those of the other rounds follow.
        credit: the same for what `how` says.
    """

    buffer: int
    count: int
    size: int
    received: int
    how: Credit
    credit: int = 0

    def at(self, number: Array, rank: Array | None = None) -> Place:
        """Return the slot of a tile by its number in the operation."""
        return Place(self.buffer, number % self.count * self.size, rank)


@dataclass(frozen=True, slots=True)
class Halving:
    """The rows of a recursive halving.

    Attributes:
        source, partial, result: what round 0 reads, what rounds hand on, what the last one writes.
        size: bytes of each position's shard, shape (ranks,).
        tile, tiles: bytes of a tile, and tiles of a shard.
        first, later: how round 0 combines, and the others.
        copies: how round 0 sends.
        first_step: step of round 0.
        piece: how often the same rows were written before.
        fence: the first row reads what earlier rows of its queue wrote.
        events: event of each round; none by default.
    """

    board: Board
    cube: Cube
    source: Shards
    partial: Shards
    result: Shards
    size: I64
    tile: int
    tiles: int
    slots: Slots
    copies: Op = Op.NONE
    first_step: int = 0
    piece: int = 0
    fence: bool = False
    events: Sequence[int] = ()

    def write(self) -> None:
        """Write round after round; where slots are few, sends and reductions of a round by turns."""
        for number in range(self.cube.rounds):
            count = self.count(number)
            if self.slots.how is not Credit.TILE:
                self._send(number, 0, count)
                self._reduce(number, 0, count)
                continue
            batch = max(1, self.slots.count // 2)
            ahead = self.slots.count // batch * batch
            self._send_batches(number, 0, min(ahead, count), batch)
            for start in range(0, count, batch):
                self._reduce(number, start, min(start + batch, count))
                self._send_batches(number, start + ahead, min(start + ahead + batch, count), batch)

    def count(self, number: int) -> int:
        """Return the tiles of a round."""
        return self.tiles * (self.cube.labels >> (number + 1))

    def _start(self, number: int) -> int:
        """Return the tiles of the rounds before."""
        return self.tiles * (self.cube.labels - (self.cube.labels >> number))

    def _send_batches(self, number: int, start: int, stop: int, batch: int) -> None:
        for at in range(start, stop, batch):
            self._send(number, at, min(at + batch, stop))

    def _tiles(self, number: int, start: int, stop: int) -> tuple[I64, I64, I64, I64]:
        """Return tile number in the round, labels kept, bytes before the tile in its chunk, and the number of all."""
        tile = np.arange(start, stop)[:, None, None]
        chunk, part = np.divmod(tile, self.tiles)
        return tile, self.cube.keeps(number)[chunk[:, 0, 0]], part * self.tile, tile + self._start(number)

    def _size(self, label: I64, within: I64) -> I64:
        shard = self.size[self.cube.lookup(self.cube.position, label)]
        size: I64 = np.clip(shard - within, 0, self.tile)
        return size

    def _exists(self, size: I64, *ends: Bool) -> Bool | None:
        """Return the rows that move something or hold a wait or signal; None where all do."""
        if self.slots.how is Credit.TILE:
            return None
        keep: Bool = size > 0
        for end in ends:
            keep = keep | end
        return None if keep.all() else keep

    def _event(self, number: int) -> int:
        return self.events[number] if self.events else 0

    def _send(self, number: int, start: int, stop: int) -> None:
        tile, kept, within, serial = self._tiles(number, start, stop)
        label, partner, slots = kept ^ self.cube.bit(number), self.cube.partner(number), self.slots
        size, first, last = self._size(label, within), tile == 0, tile == self.count(number) - 1
        each = slots.how is Credit.TILE
        credit = Wait(slots.credit + number, where=None if each else first)
        self.board.rows(
            Leaf.RDH_SEND,
            self.board.position,
            size=size,
            reads=[(self.partial if number else self.source).place(label, within)],
            writes=[slots.at(serial, partner)],
            waits=[] if slots.how is Credit.NONE else [credit],
            signals=[Signal(partner, slots.received + number, where=None if each else last)],
            op=Op.NONE if number else self.copies,
            fence=first if number or self.fence else False,
            step=self.first_step + number,
            part=2 * (self.piece * self.count(number) + tile),
            event=self._event(number),
            when=self._exists(size, first, last),
        )

    def _reduce(self, number: int, start: int, stop: int) -> None:
        tile, label, within, serial = self._tiles(number, start, stop)
        size, first, last = self._size(label, within), tile == 0, tile == self.count(number) - 1
        each, slots = self.slots.how is Credit.TILE, self.slots
        ends = number == self.cube.rounds - 1
        self.board.rows(
            Leaf.RDH_REDUCE,
            self.board.position,
            size=size,
            reads=[slots.at(serial), (self.partial if number else self.source).place(label, within)],
            writes=[(self.result if ends else self.partial).place(label, within)],
            waits=[Wait(slots.received + number, where=None if each else first)],
            signals=list(self._returned(number, serial, last)),
            op=self.board.op,
            step=self.first_step + number,
            part=2 * (self.piece * self.count(number) + tile) + 1,
            event=self._event(number),
            when=self._exists(size, first, last),
        )

    def _returned(self, number: int, serial: I64, last: Bool) -> list[Signal]:
        """Return the credit a reduction gives: to whoever uses its slot next, in this operation or the next one."""
        match self.slots.how:
            case Credit.ROUND:
                return [Signal(self.cube.partner(number), self.slots.credit + number, where=last)]
            case Credit.TILE:
                return self._slot_returned(serial)
            case Credit.NONE | Credit.ASKED:
                return []

    def _slot_returned(self, serial: I64) -> list[Signal]:
        """Return the credits of slots used in turn.

        The next operation begins with slot 0, and credits are taken in order. So where the turns end at another slot,
        the slots behind it wait for those before it, and are all given back with the last tile.
        """
        rounds, count, every = self.cube.rounds, self.slots.count, self._start(self.cube.rounds)
        begun = every % count or count  # slots of the last turn
        after, next_time = serial + count, serial - (every - begun)
        user = np.where(after < every, after, np.maximum(next_time, 0))
        starts = np.array([self._start(each) for each in range(rounds + 1)])
        to = (np.searchsorted(starts, user, side="right") - 1)[:, 0, 0]
        partners = np.stack([self.cube.partner(each) for each in range(rounds)])
        given = [Signal(partners[to], self.slots.credit + to[:, None, None], 1, (after < every) | (next_time >= 0))]
        if int(serial[-1, 0, 0]) < every - 1:
            return given
        rest = np.diff(np.clip(starts, begun, count)).tolist()
        end = serial == every - 1
        return given + [Signal(partners[b], self.slots.credit + b, rest[b], end) for b in range(rounds) if rest[b]]


# --- doubling ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Doubling:
    """The rows of a recursive doubling: the rounds of a halving backwards, without reductions.

    Attributes:
        own: where the rank's own chunk is read; None is in `target`.
        target: where all chunks go.
        size, tile, tiles, first_step, fence, events: as those of `Halving`.
        received: the semaphore of round 0's tiles; those of the other rounds follow.
        ready: the same for the partner's word that its target may be written; None where that is known.
    """

    board: Board
    cube: Cube
    own: Region | None
    target: Shards
    size: I64
    tile: int
    tiles: int
    received: int
    ready: int | None = None
    first_step: int = 0
    fence: bool = False
    events: Sequence[int] = ()

    def write(self) -> None:
        """Write round after round; each begins when the one before it has arrived."""
        for number in range(self.cube.rounds):
            self._round(number)

    def last(self) -> list[Wait]:
        """Return the wait for the last round."""
        return [Wait(self.received + self.cube.rounds - 1)] if self.cube.rounds else []

    def enter(self, leaf: Leaf, *, step: int, event: int = 0) -> None:
        """Write the row that tells every partner that the rank's target may be written."""
        assert self.ready is not None, "there is a semaphore to tell"
        rounds = self.cube.rounds
        told = [Signal(self.cube.partner(rounds - 1 - i), self.ready + i) for i in range(rounds)]
        self.board.rows(leaf, self.board.position, signals=told, step=step, event=event)

    def copy(self, *, step: int, fence: bool) -> None:
        """Write the rows that copy the rank's own chunk to its place, where it is not there already."""
        if self.own is None:
            return
        tile = np.arange(self.tiles)[:, None, None]
        within = tile * self.tile
        size = np.clip(self.size - within, 0, self.tile)
        writes = [self.target.place(self.cube.label, within)]
        self.board.rows(
            Leaf.RDH_COPY,
            self.board.position,
            size=size,
            reads=[self.own.at(0, within)],
            writes=writes,
            fence=(tile == 0) if fence else False,
            step=step,
            part=2 * tile + 1,
            when=(size > 0) | (tile == 0),
        )

    def held(self, label: I64, within: Array | int = 0) -> Place:
        """Return where a rank reads a chunk it holds."""
        place = self.target.place(label, within)
        if self.own is None:
            return place
        own, mine = self.own.at(0, within), label == self.cube.label
        return Place(np.where(mine, own.buffer, place.buffer), np.where(mine, own.offset, place.offset))

    def sizes(self, label: I64, within: Array | int = 0) -> I64:
        """Return the bytes of a tile of the chunk with a label."""
        shard = self.size[self.cube.lookup(self.cube.position, label)]
        size: I64 = np.clip(shard - within, 0, self.tile)
        return size

    def _round(self, number: int) -> None:
        mirror = self.cube.rounds - 1 - number
        kept, partner = self.cube.keeps(mirror), self.cube.partner(mirror)
        tile = np.arange(self.tiles * kept.shape[0])[:, None, None]
        chunk, part = np.divmod(tile, self.tiles)
        label, within = kept[chunk[:, 0, 0]], part * self.tile
        size, first, last = self.sizes(label, within), tile == 0, tile == tile.size - 1
        exists = (size > 0) | first | last
        waits = [Wait(self.received + number - 1, where=first)] if number else []
        if self.ready is not None:
            waits.append(Wait(self.ready + number, where=first))
        self.board.rows(
            Leaf.RDH_SEND,
            self.board.position,
            size=size,
            reads=[self.held(label, within)],
            writes=[self.target.place(label, within, partner)],
            waits=waits,
            signals=[Signal(partner, self.received + number, where=last)],
            fence=first if self.fence and not number else False,
            step=self.first_step + number,
            part=2 * tile,
            event=self.events[number] if self.events else 0,
            when=None if exists.all() else exists,
        )


# --- cuts, scratch and operations -------------------------------------------------------------------------------------


def shard_sizes(size: int, ranks: int) -> tuple[I64, int]:
    """Return the bytes of each rank's shard of an all-reduced buffer, and the bytes from one shard to the next.

    Shards are whole granules but for where the data end; the last ones may be empty. Source: as `compose.cut`.
    """
    stride = aligned(-(-size // ranks))
    return np.clip(size - np.arange(ranks, dtype=np.int64) * stride, 0, stride), stride


def write_copy(board: Board, source: Region, target: Region, size: int, *, fence: bool) -> None:
    """Write what a group of one rank does: nothing where source and target are one place, else a copy."""
    op = input_op(board, source)
    given, wanted = source.at(), target.at()
    if op is Op.NONE and given.buffer == wanted.buffer and bool(np.all(given.offset == wanted.offset)):
        return
    board.rows(
        Leaf.DIRECT_COPY,
        board.position,
        size=size,
        reads=[given],
        writes=[wanted],
        op=op,
        fence=fence,
    )


def input_op(board: Board, source: Region) -> Op:
    """Return how a single source is copied into a reduction: FMA scales a rank's input where it is first read.

    Source: design §2 (27).
    """
    return Op.FMA if board.op is Op.FMA and source.buffer == board.input else Op.NONE


def may_hold_partials(board: Board, region: Region) -> bool:
    """Return whether a region may hold partial sums: FMA would scale again what it reads from the input buffer."""
    return board.op is not Op.FMA or region.buffer != board.input


def aligned(size: int) -> int:
    """Return a size rounded up to whole granules, as scratch is cut."""
    return -(-size // GRANULE) * GRANULE


def semaphores(board: Board, name: str, initial: Sequence[int]) -> int:
    """Declare one semaphore for each round, and return the first; the others follow."""
    made = [board.semaphore(f"{name}.{number}", value) for number, value in enumerate(initial)]
    return made[0] if made else 0
