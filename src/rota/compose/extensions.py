"""What the runtime refuses and this project offers behind an option of the caller.

    kind                          movement                                           source
    permute-reduce                permute-reduce-implicit with the request's pairs   compose §5
    broadcast                     a chain around the ring, from the root on          compose §5
    reduce                        a chain around the ring that ends at the root      compose §5
    all-gather of unequal shards  the mesh where `can_all_gather_v`                  platforms §5

A chain runs on all channels, each around its own ring with its own window of the buffer; i is the place in the chain:

    broadcast  i = 0          send               own input -> next's output (and a direct_copy to the own one)
               i = 1 .. N-2   direct_recv_send   what was received in the own output -> next's output
               i = N-1        direct_recv        nothing moves
    reduce     i = 0          send               own input -> next's slot
               i = 1 .. N-2   recv_reduce_send   slot + own input -> next's slot
               i = N-1        recv_reduce_copy   slot + own input -> own output, at the root

A sending row takes a credit and a receiving row returns one. A broadcast begins with a post_recv of all but the root,
which lets the one before write; the slots of a reduce are the runtime's, so their credits are there from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array
from rota.compose.board import Board, Leaf, Op, Place, Region, Signal, Wait
from rota.compose.cut import Cut
from rota.compose.fold import first_op
from rota.compose.mesh import compose_mesh
from rota.compose.pointtopoint import check_ring, compose_moves, window
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source, Verdict, no, yes
from rota.isa.enums import EncOp
from rota.schedule.ir import Schedule
from rota.select.choose import Plan

EXTENSIONS: Final = frozenset({EncOp.PERMUTE_REDUCE, EncOp.BROADCAST, EncOp.REDUCE})
"""The kinds the runtime never does; beside them an all-gather with `gather_counts`. Source: compose §5, convention."""
CHAIN_SOURCE: Final = Source("compose", "5, extensions", CONVENTION)
"""The movement of a broadcast and of a reduce."""
GATHER_V_SOURCE: Final = Source("platforms", "5, AllGatherV", HIGH)
GATHER_V_LNC: Final = 2
GATHER_V_RANKS: Final = 4
"""Cores in a logical core, and ranks of the one chip, where an all-gather of unequal shards is known to run."""


def compose_extension(plan: Plan, *, any_group: bool = False) -> Schedule:
    """Compose PERMUTE_REDUCE, BROADCAST, REDUCE, or an all-gather of unequal shards of every group of a plan.

    SELECT refuses the first three with the runtime's words; the plan of another ring operation of the same groups,
    with the request replaced, has what is needed.

    Args:
        any_group: compose an all-gather of unequal shards also where `can_all_gather_v` refuses.

    Raises:
        UnsupportedError: a group has no ring; or the machine does no such all-gather on these groups.

    Source:
        compose §5; platforms §5.
    """
    request = plan.request
    match request.kind:
        case EncOp.PERMUTE_REDUCE:
            return compose_moves(plan)
        case EncOp.BROADCAST | EncOp.REDUCE:
            return _compose_chain(plan)
        case _:
            assert request.kind is EncOp.ALLGATHER, "other kinds have other composers"
    verdict = can_all_gather_v(plan, any_group)
    if not verdict:
        raise UnsupportedError(f"{verdict.reason}; use equal shards, or allow any group", source=verdict.source)
    return compose_mesh(plan)


def can_all_gather_v(plan: Plan, any_group: bool) -> Verdict:
    """Return whether the groups of a plan do an all-gather of unequal shards: the four ranks of one chip at LNC 2.

    Args:
        any_group: let any group pass, as runtimes that were announced would.

    Source:
        platforms §5, high.
    """
    name = "an all-gather of unequal shards"
    if any_group:
        return yes(f"{name} is composed on any group, as asked", GATHER_V_SOURCE)
    lnc = plan.platform.lnc
    if lnc != GATHER_V_LNC:
        return no(f"{name} is for LNC {GATHER_V_LNC}, not {lnc}", GATHER_V_SOURCE)
    for shape in plan.geometries:
        if shape.rank_n != GATHER_V_RANKS or len(shape.chips) != 1:
            chips = f"{len(shape.chips)} chip{'s' * (len(shape.chips) > 1)}"
            text = f"{name} is for the {GATHER_V_RANKS} ranks of one chip, not {shape.rank_n} on {chips}"
            return no(text, GATHER_V_SOURCE)
    return yes(f"{name} runs on the {GATHER_V_RANKS} ranks of one chip at LNC {GATHER_V_LNC}", GATHER_V_SOURCE)


def _compose_chain(plan: Plan) -> Schedule:
    request = plan.request
    check_ring(plan)
    board = Board.of(request)
    rings = _rings(plan)
    pieces = window(request.size, channels=rings.shape[0], chunk=plan.settings.chunk)
    source, target = Region(board.input), Region(board.output)
    if request.kind is EncOp.BROADCAST:
        write_broadcast(board, _turned(rings, request.root), source, target, pieces, plan.settings.slots)
    else:
        ends = np.roll(_turned(rings, request.root), -1, axis=2)
        write_reduce(board, ends, source, target, pieces, plan.settings.slots)
    return board.schedule()


def _rings(plan: Plan) -> I64:
    """Return the ring of each channel and group, positions, shape (channels, groups, ranks)."""
    if plan.request.ranks == 1:
        return np.zeros((1, len(plan.request.groups), 1), np.int64)
    found = []
    for group, wiring in zip(plan.request.groups, plan.wirings, strict=True):
        members = np.array(group, np.int64)
        by_rank = np.argsort(members)
        orders = np.array([channel.order for channel in wiring.channels[: plan.channels]], np.int64)
        found.append(by_rank[np.searchsorted(members[by_rank], orders)])
    return np.stack(found, axis=1)


def _turned(rings: I64, first: int) -> I64:
    """Return the rings, each begun at a position."""
    start = np.argmax(rings == first, axis=2)[..., None]
    places = (start + np.arange(rings.shape[2])) % rings.shape[2]
    return np.take_along_axis(rings, places, axis=2)


# --- writers ----------------------------------------------------------------------------------------------------------


def write_broadcast(board: Board, chains: I64, source: Region, target: Region, pieces: Cut, slots: int) -> None:
    """Write a broadcast: the source of the first of each chain to the target of all.

    Args:
        chains: positions in the order of each channel and group, shape (channels, groups, ranks).
        pieces: of the buffer, from `window`; channel c uses queue c of the board.
        slots: credits of a channel.

    Source:
        compose §5, convention.
    """
    chain = _Chain(board, chains, pieces)
    given = chain.declare(slots, own_slots=False)
    last = chain.length - 1
    if last:
        at = chain.at(0, range(1, chain.length), halves=1)
        at.rows(Leaf.POST_RECV, signals=[at.give_credit(given)], opening=True)
    for group in range(pieces.groups):
        at = chain.at(group, [0])
        reads = [at.place(source)]
        if last:
            at.rows(Leaf.SEND, reads, [at.next_place(target)], [at.credit()], [at.post()])
        at.rows(Leaf.DIRECT_COPY, reads, [at.place(target)], later=1, when=at.size > 0)
        at = chain.at(group, range(1, last))
        back = at.give_credit(where=at.sent < chain.sent - given)
        waits, writes = [at.received(), at.credit()], [at.next_place(target)]
        at.rows(Leaf.DIRECT_RECV_SEND, [at.place(target)], writes, waits, [at.post(), back])
        if last:
            at = chain.at(group, [last])
            back = at.give_credit(where=at.sent < chain.sent - given)
            at.rows(Leaf.DIRECT_RECV, waits=[at.received()], signals=[back])


def write_reduce(board: Board, chains: I64, source: Region, target: Region, pieces: Cut, slots: int) -> None:
    """Write a reduction: the sources of each chain, combined in its order, to the target of its last.

    Args:
        chains: positions in the order of each channel and group, shape (channels, groups, ranks).
        pieces: of the buffer, from `window`; channel c uses queue c of the board.
        slots: half-chunks a channel buffers, which is its credit.

    Source:
        compose §5, convention.
    """
    chain = _Chain(board, chains, pieces)
    chain.declare(slots, own_slots=True)
    last, op, raw = chain.length - 1, board.op, first_op(board)
    for group in range(pieces.groups):
        at = chain.at(group, [0])
        if not last:
            at.rows(Leaf.DIRECT_COPY, [at.place(source)], [at.place(target)], op=raw, when=at.size > 0)
            continue
        at.rows(Leaf.SEND, [at.place(source)], [at.next_slot()], [at.credit()], [at.post()], op=raw)
        at = chain.at(group, range(1, last))
        reads, waits = [at.own_slot(), at.place(source)], [at.received(), at.credit()]
        at.rows(Leaf.RECV_REDUCE_SEND, reads, [at.next_slot()], waits, [at.post(), at.give_credit()], op=op)
        at = chain.at(group, [last])
        reads = [at.own_slot(), at.place(source)]
        at.rows(Leaf.RECV_REDUCE_COPY, reads, [at.place(target)], [at.received()], [at.give_credit()], op=op)


class _Chain:
    """One chain in every channel and group; arrays have shape (places, halves, channels, groups, 1)."""

    def __init__(self, board: Board, chains: I64, pieces: Cut) -> None:
        self.board, self.chains, self.pieces = board, chains, pieces
        self.channels, _, self.length = chains.shape
        self.sent = pieces.groups * pieces.halves  # rows of a sender in a channel
        self.recv = self.slot = self.slots = 0

    def declare(self, slots: int, *, own_slots: bool) -> int:
        """Declare the semaphores of every channel, and the slots; return the credits that are given first."""
        first: list[tuple[int, int]] = []
        for channel in range(self.channels if self.length > 1 else 0):
            recv = self.board.semaphore(f"recv.{channel}")
            self.board.semaphore(f"credit.{channel}", slots if own_slots else 0)
            slot = self.board.buffer(f"slot.{channel}", slots * self.pieces.largest) if own_slots else 0
            first.append((recv, slot))
        if first:
            self.recv, self.slot = first[0]
        self.slots = slots
        return min(slots, self.sent)

    def at(self, group: int, places: Sequence[int], *, halves: int | None = None) -> _At:
        """Return the rows of some places of the chains in a chunk group."""
        place, half, channel, member_group, _ = np.ix_(
            np.asarray(places, np.int64),
            np.arange(halves or self.pieces.halves),
            np.arange(self.channels),
            np.arange(self.chains.shape[1]),
            np.arange(1),
        )
        columns = np.broadcast_arrays(
            self.chains[channel, member_group, place],
            self.chains[channel, member_group, (place + 1) % self.length],
            self.chains[channel, member_group, place - 1],
            self.pieces.size[group, channel, 0, half],
            self.pieces.offset[group, channel, 0, half],
            group * self.pieces.halves + half,
            half,
            channel,
            place,
        )
        return _At(self, group, *columns)


@dataclass(frozen=True, slots=True)
class _At:
    """Rows of a few places, and the memory, waits and signals that a step of a chain is made of."""

    chain: _Chain
    group: int
    rank: Array  # position in the group, as the next two
    following: Array
    preceding: Array
    size: Array
    within: Array
    sent: Array  # rows of each sender before this half of this chunk group
    half: Array
    channel: Array
    number: Array  # place in the chain

    def place(self, region: Region) -> Place:
        """The piece in the rank's own memory."""
        return region.at(0, self.within)

    def next_place(self, region: Region) -> Place:
        return region.at(0, self.within, self.following)

    def own_slot(self) -> Place:
        return Place(self.chain.slot + self.channel, self.sent % self.chain.slots * self.chain.pieces.largest)

    def next_slot(self) -> Place:
        return self.own_slot()._replace(rank=self.following)

    def received(self) -> Wait:
        return Wait(self.chain.recv + 2 * self.channel)

    def credit(self) -> Wait:
        return Wait(self.chain.recv + 2 * self.channel + 1)

    def post(self) -> Signal:
        return Signal(self.following, self.chain.recv + 2 * self.channel)

    def give_credit(self, add: int = 1, *, where: Array | None = None) -> Signal:
        return Signal(self.preceding, self.chain.recv + 2 * self.channel + 1, add, where)

    def rows(
        self,
        leaf: Leaf,
        reads: Sequence[Place] = (),
        writes: Sequence[Place] = (),
        waits: Sequence[Wait] = (),
        signals: Sequence[Signal] = (),
        *,
        op: Op = Op.NONE,
        later: int = 0,
        opening: bool = False,
        when: Array | None = None,
    ) -> None:
        """Write these rows.

        Args:
            later: steps behind the one of the place.
            opening: the rows come before step 1, at which the first place sends.
        """
        self.chain.board.rows(
            leaf,
            self.rank,
            size=self.size if reads else 0,
            reads=reads,
            writes=writes,
            waits=waits,
            signals=signals,
            op=op,
            queue=self.channel,
            step=0 if opening else 1 + self.number + later,
            part=2 * self.group + self.half,
            when=when,
        )
