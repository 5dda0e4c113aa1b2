"""ALLTOALL and ALLTOALL_V: every rank writes each peer's piece straight into that peer's output.

    LOCAL_HNDSHK_1, GLOBAL_HNDSHK_1   notify chip mates, then all others; wait for theirs
    INTER_GRP_BRDCST_1                own piece -> own output; pieces of ranks on other chips, rotated from the own rank
                                      on; wait
    INTRA_GRP_BRDCST_1                pieces of chip mates, rotated; wait

A piece above a peer's share of the channel buffer goes in several iterations, one share each; the last of a peer
notifies it. A piece of no bytes only notifies. All-to-all-v differs in nothing but where the pieces lie.

Source: compose §12.7; the pairing of events with steps, convention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import I64, Array, freeze
from rota.compose.board import Board, Leaf, Region, Signal
from rota.compose.chip_mesh import CHIP_EVENTS, Exchange, blocks_of
from rota.compose.cut import GRANULE
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.machine.platform import Platform
from rota.request import Groups
from rota.schedule.ir import Schedule
from rota.select.choose import Plan
from rota.select.settings import Settings

BUDGET_SOURCE: Final = Source("compose", "12.7, iterations", CONVENTION)
MOST_PARTS: Final = 1 << 16
"""Rows of one event of a rank that a schedule can number. Source: schedule §1, convention."""


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeHow:
    """How groups exchange pieces.

    Attributes:
        blocks: position of member l of chip g, shape (groups, chips, members of each).
        budget: most bytes of a piece that move in one iteration.
    """

    blocks: I64
    budget: int

    def __post_init__(self) -> None:
        freeze(self.blocks)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of one exchange in bytes; entry [i, j] is what position i sends to position j, shape (ranks, ranks).

    Attributes:
        size: bytes of the piece.
        sent_at: where it lies in the input of i.
        lands_at: where it goes in the output of j.
    """

    size: I64
    sent_at: I64
    lands_at: I64

    @staticmethod
    def equal(ranks: int, size: int, *, source_stride: int, target_stride: int) -> Pieces:
        """Return the pieces of an all-to-all: shard j of i's input becomes shard i of j's output."""
        i, j = np.indices((ranks, ranks), np.int64)
        return Pieces(np.full((ranks, ranks), size, np.int64), j * source_stride, i * target_stride)

    @staticmethod
    def packed(size: ArrayLike, sent_at: ArrayLike = (), lands_at: ArrayLike = ()) -> Pieces:
        """Return pieces of given bytes; without displacements they are packed in the order of the peers.

        Args:
            sent_at: byte of i's input for j, at [i, j].
            lands_at: byte of j's output for the piece from i, at [j, i], as a receiver tells it.
        """
        sizes = np.array(size, np.int64)
        sent, lands = np.array(sent_at, np.int64), np.array(lands_at, np.int64).T
        return Pieces(
            sizes,
            sent if sent.size else np.cumsum(sizes, axis=1) - sizes,
            lands if lands.size else np.cumsum(sizes, axis=0) - sizes,
        )


def how_of(platform: Platform, groups: Groups, settings: Settings) -> ExchangeHow:
    """Return how groups of machine ranks exchange pieces: chips as blocks, one share of the mesh's channel buffer.

    Where chips differ in their members, every rank counts as a chip.
    """
    share = settings.mesh_channel_buffer // len(groups[0]) // GRANULE * GRANULE
    return ExchangeHow(blocks_of(groups, platform.ranks_per_chip), max(share, GRANULE))


def write_all_to_all(
    board: Board, how: ExchangeHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-to-all: shard j of position i's source to shard i of position j's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.

    Raises:
        UnsupportedError: more iterations than a schedule can number.
    """
    pieces = Pieces.equal(board.ranks, size, source_stride=source.stride, target_stride=target.stride)
    write_pieces(board, how, source, target, pieces, fence_first=fence_first)


def write_pieces(
    board: Board, how: ExchangeHow, source: Region, target: Region, pieces: Pieces, *, fence_first: bool = False
) -> None:
    """Write an exchange of any pieces, displaced from the starts of the regions.

    Args:
        fence_first: the first row reads what earlier rows of the queue wrote.

    Raises:
        UnsupportedError: more iterations than a schedule can number.
    """
    iterations = max(1, -(-int(pieces.size.max()) // how.budget))
    if iterations * board.ranks >= MOST_PARTS:
        raise UnsupportedError(
            f"an all-to-all of {int(pieces.size.max())} bytes for each peer in shares of {how.budget} takes "
            f"{iterations} iterations, and a schedule numbers {MOST_PARTS // board.ranks}; raise "
            "NEURON_RT_DBG_MESH_CHANNEL_BUFFER_SIZE or send less at a time",
            source=BUDGET_SOURCE,
        )
    exchange = _Pieces(board, how.blocks, CHIP_EVENTS)
    exchange.meet(EventType.EVT_LOCAL_HNDSHK_1, exchange.mates, fence=fence_first)
    others = exchange.elsewhere
    exchange.meet(EventType.EVT_GLOBAL_HNDSHK_1, others, fence=fence_first and not exchange.mates)
    exchange.send(EventType.EVT_INTER_GRP_BRDCST_1, others, how, source, target, pieces, iterations, own=True)
    exchange.send(EventType.EVT_INTRA_GRP_BRDCST_1, exchange.mates, how, source, target, pieces, iterations)


class _Pieces(Exchange):
    """The phases of an exchange of pieces."""

    @property
    def elsewhere(self) -> list[Array]:
        """Positions on other chips, rotated: the next chip's members from the own lane on, then those behind it."""
        return [self.peer(self.block + i, self.lane + j) for i in range(1, self.count) for j in range(self.width)]

    def send(
        self,
        event: EventType,
        peers: list[Array],
        how: ExchangeHow,
        source: Region,
        target: Region,
        pieces: Pieces,
        iterations: int,
        *,
        own: bool = False,
    ) -> None:
        """Send the pieces of some peers, iteration after iteration, and wait for theirs; `own` copies the own piece."""
        everyone = [*([self.me] if own else []), *peers]
        if not everyone:
            return
        to = np.stack(everyone)
        number = np.arange(len(everyone))[:, None, None]
        done = self.semaphore(event) if peers else 0
        turn = np.arange(iterations)[:, None, None, None]
        size = pieces.size[self.me, to]
        last = np.maximum(-(-size // how.budget), 1) - 1
        start = np.minimum(turn * how.budget, size)
        notified = (to != self.me) & (turn == last)
        self.board.rows(
            Leaf.MESH_SEND,
            self.me,
            size=np.minimum(size - start, how.budget),
            reads=[self.place(source, np.broadcast_to(self.me, to.shape), pieces.sent_at[self.me, to] + start)],
            writes=[self.place(target, to, pieces.lands_at[self.me, to] + start)],
            signals=[Signal(to, done, where=notified)] if peers else [],
            event=event,
            step=self.step,
            part=turn * len(everyone) + number,
            when=(turn <= last) & ((size > 0) | (to != self.me)),
        )
        self.wait(event, done, np.full(self.me.shape, len(peers)), part=iterations * len(everyone))
        self.step += 1


def compose_all_to_all(plan: Plan) -> Schedule:
    """Compose the all-to-all or all-to-all-v of every group of a plan.

    Raises:
        UnsupportedError: more iterations than a schedule can number.

    Source:
        compose §12.7.
    """
    request = plan.request
    board = Board.of(request)
    unit, groups = request.itemsize, request.groups
    single = tuple((rank,) for rank in range(request.ranks))
    blocks = [blocks_of([group], plan.platform.ranks_per_chip) for group in groups]
    alike = len({each.shape for each in blocks}) == 1
    how = how_of(plan.platform, groups, plan.settings)
    if not alike:
        flat = np.broadcast_to(np.array(single)[None], (len(groups), request.ranks, 1)).copy()
        how = ExchangeHow(flat, how.budget)
    given, wanted = Region(board.input, 0, request.share), Region(board.output, 0, request.share)
    if request.kind is EncOp.ALLTOALL:
        write_all_to_all(board, how, given, wanted, request.share)
        return board.schedule()
    displaced = [
        np.array(table, np.int64) * unit for table in (request.send_displacements, request.receive_displacements)
    ]
    write_pieces(board, how, given, wanted, Pieces.packed(np.array(request.sent, np.int64) * unit, *displaced))
    return board.schedule()
