"""SINGLE_CYCLE_RING: an all-reduce in one pass around a ring of nodes, for buffers of at most one chunk.

Raw inputs go round, every rank keeps all N of them and reduces once, in rank order, so that all ranks end with the same
bits (compose §8):

    step 0          send              own input -> own slot and next's slot (two rows where a row has one target)
    step 1 .. N-2   direct_recv_send  input just received -> next's slot
    step N-1        recv_reduce_copy  N slots, in rank order -> output

A rank has a slot for every member, which is a send's credit; the reduction returns all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, freeze
from rota.compose.board import Board, Leaf, Region, Signal, Wait
from rota.compose.cube import aligned, input_op, write_copy
from rota.compose.fold import write_fold
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.machine.group import Wiring, wire
from rota.machine.platform import Platform
from rota.schedule.ir import MAX_SOURCES, Schedule
from rota.select.choose import Plan
from rota.select.settings import Settings
from rota.units import format_size

SUNDA: Final = "sunda"
"""The architecture whose rows have one target. Source: design §2 (19)."""
ORDER_SOURCE: Final = Source("design", "2 (10), rank order", CONVENTION)

_CHUNK: Final = Source("compose", "8, size <= one chunk", CONVENTION)
_RING: Final = Source("compose", "9, ring unavailable", HIGH)


@dataclass(frozen=True, slots=True, eq=False)
class SingleCycle:
    """The ring of each group.

    Attributes:
        orders: positions in the order of the ring, shape (groups, ranks).
        chunk: most bytes of a buffer.
        duplicates: a row may write the same bytes to two ranks.
    """

    orders: I64
    chunk: int
    duplicates: bool

    def __post_init__(self) -> None:
        freeze(self.orders)

    def behind(self, steps: Array | int) -> I64:
        """Return the position that stands some places before each position in its ring, shape (groups, ranks)."""
        groups, ranks = self.orders.shape
        place = np.argsort(self.orders, axis=1)
        found: I64 = self.orders[np.arange(groups)[:, None], (place - steps) % ranks]
        return found


def how_of(platform: Platform, members: Sequence[Sequence[int]], settings: Settings) -> SingleCycle:
    """Return the single-cycle rings of groups: the first ring that each can be wired with.

    Raises:
        UsageError, UnsupportedError: as `machine.group.wire`, or a group has no ring.
    """
    return _how(platform, members, [wire(platform, group) for group in members], settings)


def _how(
    platform: Platform, members: Sequence[Sequence[int]], wirings: Sequence[Wiring], settings: Settings
) -> SingleCycle:
    orders = []
    for group, wiring in zip(members, wirings, strict=True):
        if not wiring.channels and len(group) > 1:
            raise UnsupportedError(f"single-cycle ring: {wiring.verdict.reason}", source=_RING)
        ring = np.array(wiring.channels[0].order if wiring.channels else group, np.int64)
        ranks = np.array(group, np.int64)
        by_rank = np.argsort(ranks)
        orders.append(by_rank[np.searchsorted(ranks[by_rank], ring)])
    return SingleCycle(np.stack(orders), settings.chunk, platform.arch != SUNDA)


def compose_single_cycle(plan: Plan) -> Schedule:
    """Compose the single-cycle ring of a plan, an all-reduce.

    Raises:
        UnsupportedError: a buffer of more than one chunk, or a group without a ring.

    Source:
        compose §8.
    """
    board, request = Board.of(plan.request), plan.request
    how = _how(plan.platform, request.groups, plan.wirings, plan.settings)
    write_all_reduce(board, how, Region(board.input), Region(board.output), request.size)
    return board.schedule()


def write_all_reduce(
    board: Board, how: SingleCycle, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce.

    Args:
        source, target: where the buffers start; they may be the same.
        size: bytes of the buffer.
        fence_first: the source is written by earlier rows of the same queue.

    Raises:
        UnsupportedError: the buffer is larger than one chunk.
    """
    if size > how.chunk:
        raise UnsupportedError(
            f"single-cycle ring of {format_size(size)}: expected at most one chunk of {format_size(how.chunk)}; use "
            "less data, or set NEURON_RT_CC_CHUNK_SIZE higher",
            source=_CHUNK,
        )
    ranks, me = board.ranks, board.position
    if ranks == 1:
        write_copy(board, source, target, size, fence=fence_first)
        return
    received, credit = board.semaphore("recv"), board.semaphore("credit", ranks - 1)
    slots = Region(board.buffer("slot", ranks * aligned(size)), 0, aligned(size))
    following, preceding = how.behind(-1), how.behind(1)
    near, far = slots.at(me), slots.at(me, rank=following)
    raw, first, fence = [source.at()], input_op(board, source), fence_first
    if not how.duplicates:
        board.rows(Leaf.DIRECT_COPY, me, size=size, reads=raw, writes=[near], op=first, fence=fence)
        fence = False
    board.rows(
        Leaf.SEND,
        me,
        size=size,
        reads=raw,
        writes=[near, far] if how.duplicates else [far],
        waits=[Wait(credit)],
        signals=[Signal(following, received)],
        op=first,
        fence=fence,
        part=0 if how.duplicates else 1,
    )
    step = np.arange(1, ranks - 1)[:, None, None]
    passed = how.behind(step)
    board.rows(
        Leaf.DIRECT_RECV_SEND,
        me,
        size=size,
        reads=[slots.at(passed)],
        writes=[slots.at(passed, rank=following)],
        waits=[Wait(received), Wait(credit)],
        signals=[Signal(following, received)],
        step=step,
    )
    write_fold(
        board,
        Leaf.RECV_REDUCE_COPY,
        me,
        [slots.at(member) for member in range(ranks)],
        target.at(),
        size,
        Region(board.buffer("partial", size)) if ranks > MAX_SOURCES else slots,
        waits=[Wait(received)],
        signals=[Signal(preceding, credit, ranks - 1)],
        fence=True,
        step=ranks - 1,
    )
