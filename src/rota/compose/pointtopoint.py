"""Point to point: SEND, RECV and the permutes. Each source writes what it has straight into its target's output.

Per channel, and for the data rows per chunk group and half (compose §9):

    step 0   post_recv     the target lets its source write: so many credits as the channel has slots
    step 1   direct_send   own input -> target's output; takes a credit (permute-reduce: input and input1 combined,
                           direct_reduce_send_permute)
    step 2   direct_recv   nothing moves; returns a credit, but for those given last

A rank without a target has no sending rows, one without a source neither lets in nor receives. A rank that is its own
target copies. Channels run beside each other to the same target, each with its window of the buffer.

    kind                                          pairs                                        channels
    send, recv                                    member 0 -> member 1                         1
    permute, permute-reduce                       those of the request                         `permute_channels`
    permute-implicit, permute-reduce-implicit     those of the request, else each rank to the  `permute_channels`
                                                  next in the ring of the wiring's channel 0

What the runtime does not do, permute-reduce among it, is asked for in `extensions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, freeze
from rota.compose.board import Board, Leaf, Op, Region, Signal, Wait
from rota.compose.cut import Cut, cut
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import EncOp
from rota.request import KIND_NAMES, PAIRED, RINGED, TWO_OPERANDS, Pairs, Request
from rota.schedule.ir import Schedule
from rota.select.choose import Plan

DIRECTED: Final = frozenset({EncOp.SEND, EncOp.RECV})
"""The kinds with one sender and one receiver. Source: compose §9, high."""
POINT_TO_POINT: Final = DIRECTED | RINGED | {EncOp.PERMUTE}
"""What `compose_point_to_point` does. Source: select §9, S3, high."""
CHANNELS_OF_NODE: Final = 4
CHANNELS_OF_PART: Final = 2
CHANNELS_SOURCE: Final = Source("platforms", "4.4, implicit permute channels", HIGH)
"""Most channels of a permute of a group on all chips of its nodes, and of any other group."""
SHIFT_SOURCE: Final = Source("compose", "9, shift along the ring", CONVENTION)
"""The direction of an implicit permute, and whose channel's ring it follows."""
_RING: Final = Source("compose", "9, ring unavailable", HIGH)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Who sends to whom in each group: positions, -1 for nobody.

    Attributes:
        target: to whom each position sends, shape (groups, ranks).
        source: from whom each position receives, the same the other way round.
    """

    target: I64
    source: I64 = field(init=False)

    def __post_init__(self) -> None:
        source = np.full_like(self.target, -1)
        group, position = np.nonzero(self.target >= 0)
        source[group, self.target[group, position]] = position
        object.__setattr__(self, "source", source)
        freeze(self.target)
        freeze(self.source)

    @staticmethod
    def of(request: Request, pairs: Pairs) -> Moves:
        """Return the moves that pairs of machine ranks name, each within a group of the request."""
        members = np.array(request.members, np.int64)
        by_rank = np.argsort(members)
        ends = by_rank[np.searchsorted(members[by_rank], np.array(pairs, np.int64).reshape(-1, 2))]
        group, position = np.divmod(ends, request.ranks)
        target = np.full((len(request.groups), request.ranks), -1, np.int64)
        target[group[:, 0], position[:, 0]] = position[:, 1]
        return Moves(target)

    @property
    def _self(self) -> I64:
        return np.arange(self.target.shape[1], dtype=np.int64)[None, :]

    @property
    def stays(self) -> Bool:
        """Which positions are their own target."""
        found: Bool = self.target == self._self
        return found

    @property
    def sends(self) -> Bool:
        """Which positions have another rank as target."""
        found: Bool = (self.target >= 0) & ~self.stays
        return found

    @property
    def receives(self) -> Bool:
        """Which positions have another rank as source."""
        found: Bool = (self.source >= 0) & ~self.stays
        return found


def compose_point_to_point(plan: Plan) -> Schedule:
    """Compose SEND, RECV, PERMUTE, PERMUTE_IMPLICIT or PERMUTE_REDUCE_IMPLICIT of every group of a plan.

    The schedule of an implicit permute without pairs follows `implicit_pairs`; put these into the request that it is
    proved against, because a request without pairs means the order of its group.

    Raises:
        UsageError: a send or receive of more than two ranks.
        UnsupportedError: a group has no ring, or the data takes more chunk groups than a schedule numbers.

    Source:
        compose §9; schedule §4.
    """
    assert plan.request.kind in POINT_TO_POINT, "other kinds have other composers"
    return compose_moves(plan)


def compose_moves(plan: Plan) -> Schedule:
    """Compose any kind of this page, and PERMUTE_REDUCE, which the runtime refuses.

    Raises:
        UsageError, UnsupportedError: as `compose_point_to_point`.
    """
    request = plan.request
    check_ring(plan)
    board = Board.of(request)
    sources = [Region(board.input)]
    if request.kind in TWO_OPERANDS:
        sources.append(Region(board.input, request.size))
    channels = 1 if request.kind in DIRECTED else permute_channels(plan)
    pieces = window(request.size, channels=channels, chunk=plan.settings.chunk)
    moves = Moves.of(request, pairs_of(plan))
    write_moves(board, moves, sources, Region(board.output), pieces, plan.settings.slots)
    return board.schedule()


def check_ring(plan: Plan) -> None:
    """Raise unless every group of a plan has a ring or a single rank.

    Raises:
        UnsupportedError: a group has no ring.

    Source:
        compose §9, high.
    """
    if plan.request.ranks > 1 and not plan.channels:
        reason = plan.wirings[0].verdict.reason
        raise UnsupportedError(f"{KIND_NAMES[plan.request.kind]} takes a ring: {reason}", source=_RING)


def window(size: int, *, channels: int, chunk: int, halves: int = 2) -> Cut:
    """Cut a buffer that goes whole from rank to rank: shape (chunk groups, channels, 1, halves).

    Args:
        size: bytes of the buffer.
        chunk: most bytes in one channel and chunk group.

    Raises:
        UsageError, UnsupportedError: as `cut`.
    """
    return cut(EncOp.ALLREDUCE, size, ranks=1, channels=channels, halves=halves, chunk=chunk)


def pairs_of(plan: Plan) -> Pairs:
    """Return the (source, target) pairs of a plan, machine ranks.

    Raises:
        UsageError: a send or receive of more than two ranks.
        UnsupportedError: an implicit permute of a group without a ring.
    """
    request = plan.request
    if request.kind in PAIRED:
        return request.pairs
    if request.kind in RINGED:
        return implicit_pairs(plan)
    if request.ranks > 2:
        raise UsageError(
            f"{KIND_NAMES[request.kind]} of a group of {request.ranks}: expected two ranks, the sender and the "
            "receiver; make a group of each such pair, or use permute"
        )
    return tuple((group[0], group[-1]) for group in request.groups)


def implicit_pairs(plan: Plan) -> Pairs:
    """Return the pairs along which an implicit permute shifts: those of the request, or the ring of channel 0.

    Without pairs in the request each rank sends to the next in the first ring of its group's wiring. The caller puts
    the pairs into the request before it proves a schedule.

    Raises:
        UnsupportedError: a group has no ring.

    Source:
        compose §9; the direction and the channel, convention.
    """
    if plan.request.pairs:
        return plan.request.pairs
    check_ring(plan)
    rings = [wiring.channels[0].order if wiring.channels else wiring.ranks for wiring in plan.wirings]
    return tuple(pair for ring in rings for pair in zip(ring, (*ring[1:], *ring[:1]), strict=True))


def permute_channels(plan: Plan) -> int:
    """Return how many channels the permutes of a plan run: as many as wired, up to a limit by the chips of the group.

    Groups that differ in that limit take the lower one, because a schedule has one channel count.

    Source:
        platforms §4.4, high, for implicit permutes; for explicit ones compose §5, one composer for both.
    """
    chips = plan.platform.chips
    whole = all(len(shape.chips) == chips * shape.node_n for shape in plan.geometries)
    return max(min(plan.channels, CHANNELS_OF_NODE if whole else CHANNELS_OF_PART), 1)


# --- writer -----------------------------------------------------------------------------------------------------------


def write_moves(board: Board, moves: Moves, sources: Sequence[Region], target: Region, pieces: Cut, slots: int) -> None:
    """Write one movement of all groups: the sources of each sending rank, combined, to its target's region.

    Args:
        sources: one operand, or two that the board's operation combines.
        pieces: of the buffer, from `window`; channel c uses queue c of the board.
        slots: credits of a channel.
    """
    writer = _Writer(board, moves, sources, target, pieces, slots)
    if moves.sends.any():
        writer.enter()
    for group in range(pieces.groups):
        writer.write(group)


class _Writer:
    """The rows of one movement; arrays have shape (halves, channels, groups, ranks)."""

    def __init__(
        self, board: Board, moves: Moves, sources: Sequence[Region], target: Region, pieces: Cut, slots: int
    ) -> None:
        self.board, self.moves, self.pieces = board, moves, pieces
        self.sources, self.target = sources, target
        self.half = np.arange(pieces.halves)[:, None, None, None]
        self.channel = np.arange(pieces.size.shape[1])[None, :, None, None]
        self.sent = pieces.groups * pieces.halves
        self.given = min(slots, self.sent)
        self.combines = len(sources) > 1
        self.recv = 0  # semaphore of channel 0; its credit follows, then those of channel 1

    @property
    def received(self) -> Array:
        return self.recv + 2 * self.channel

    @property
    def credit(self) -> Array:
        return self.recv + 2 * self.channel + 1

    def enter(self) -> None:
        """Declare the semaphores of every channel; each target lets its source write."""
        for channel in range(self.channel.size):
            recv = self.board.semaphore(f"recv.{channel}")
            self.board.semaphore(f"credit.{channel}")
            self.recv = self.recv if channel else recv
        self.board.rows(
            Leaf.POST_RECV,
            self.board.position,
            queue=self.channel,
            signals=[Signal(self.moves.source, self.credit, self.given)],
            when=self.moves.receives,
        )

    def write(self, group: int) -> None:
        """Write the rows of one chunk group."""
        size = self.pieces.size[group, self.channel, 0, self.half]
        within = self.pieces.offset[group, self.channel, 0, self.half]
        stays, sends = self.moves.stays & (size > 0), self.moves.sends
        sender = Leaf.DIRECT_REDUCE_SEND_PERMUTE if self.combines else Leaf.DIRECT_SEND
        self._move(sender if self.combines else Leaf.DIRECT_COPY, group, size, within, stays)
        if not sends.any():
            return
        waits, signals = [Wait(self.credit)], [Signal(self.moves.target, self.received)]
        self._move(sender, group, size, within, sends, waits, signals)
        again = group * self.pieces.halves + self.half < self.sent - self.given
        self.board.rows(
            Leaf.DIRECT_RECV,
            self.board.position,
            queue=self.channel,
            waits=[Wait(self.received)],
            signals=[Signal(self.moves.source, self.credit, where=again)],
            step=2,
            part=2 * group + self.half,
            when=self.moves.receives,
        )

    def _move(
        self,
        leaf: Leaf,
        group: int,
        size: Array,
        within: Array,
        when: Array,
        waits: Sequence[Wait] = (),
        signals: Sequence[Signal] = (),
    ) -> None:
        self.board.rows(
            leaf,
            self.board.position,
            queue=self.channel,
            size=size,
            reads=[source.at(0, within) for source in self.sources],
            writes=[self.target.at(0, within, self.moves.target)],
            waits=waits,
            signals=signals,
            op=self.board.op if self.combines else Op.NONE,
            step=1,
            part=2 * group + self.half,
            when=when,
        )
