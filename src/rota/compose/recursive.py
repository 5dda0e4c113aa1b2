"""RECURSIVE: halving and doubling over the axes of a cube; between nodes, with one rank on each, INTER_RDH.

Members stand at the corners of a cube: one for each label, on one or several lanes that do not meet here. With k rounds
and N = 2^k labels, in round b a rank meets the rank whose label differs in one bit; lowest bit first (compose §10):

    reduce-scatter  round 0         rdh_send    input x -> partner's slot, for the N/2 chunks x of the partner's side
                                    rdh_reduce  slot + input x -> partial x, for the N/2 chunks x of the own side
                    round 1 .. k-1  the same with partials for inputs, N/4, N/8, ... chunks; the last into the output
    all-gather      before          rdh_recv    nothing moves: "my output may be written"; rdh_copy of the own chunk
                    round 0 .. k-1  rdh_send    chunks held -> partner's output, 1, 2, 4, ... of them; highest bit first
                    after           rdh_recv    nothing moves: the last round has arrived

Chunks are cut into tiles, one row for each. A round has one semaphore, told by its last tile. Slots hold the tiles of
all rounds where the receive window is that large; where it is smaller, slots are used in turn, each tile takes a credit
and tells of its own, and sends run ahead of reductions by the window. A reduce-scatter of its own returns a credit for
each round, because no gather keeps the next operation away. `intra_rdh` writes its axes with the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from rota.columns import I64
from rota.compose.board import Board, Leaf, Region
from rota.compose.cube import (
    Credit,
    Cube,
    Doubling,
    Halving,
    Shards,
    Slots,
    aligned,
    input_op,
    may_hold_partials,
    semaphores,
    shard_sizes,
    write_copy,
)
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import EncOp
from rota.machine.platform import Platform
from rota.schedule.ir import Schedule
from rota.select.choose import Plan
from rota.select.settings import Settings
from rota.units import format_size

MAX_TILES: Final = 1 << 15
"""Most tiles of one round: a row's `part` is 2 x tile, + 1 for a reduction, in 16 bits. Source: schedule §1."""

_POWER: Final = Source("compose", "10", HIGH)
_WINDOW: Final = Source("compose", "10, receive window credits bound tiles in flight", HIGH)
_PARTS: Final = Source("schedule", "1, part", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class InterRdh:
    """Inter-RDH of some groups.

    Attributes:
        cube: the positions themselves as labels, on one lane.
        chunk: most bytes of a tile.
        window: tiles a rank takes ahead; 0 is as many as fit `buffer` bytes of slots.
    """

    cube: Cube
    chunk: int
    window: int
    buffer: int


def how_of(platform: Platform, members: Sequence[Sequence[int]], settings: Settings) -> InterRdh:
    """Return the recursive halving and doubling of groups by position.

    Raises:
        UnsupportedError: the number of members is no power of two.

    Source:
        compose §10; the partner is design §2 (9).
    """
    del platform  # an index set is a matter of positions, whatever the machine
    groups, ranks = len(members), len(members[0])
    if ranks & (ranks - 1):
        near = 1 << (ranks.bit_length() - 1)
        raise UnsupportedError(
            f"recursive halving of {ranks} ranks: expected a power of two; use {near} or {2 * near}", source=_POWER
        )
    position = np.broadcast_to(np.arange(ranks, dtype=np.int64)[:, None], (groups, ranks, 1)).copy()
    axes = np.arange(ranks.bit_length() - 1, dtype=np.int64)[None, :]
    return InterRdh(Cube(position, axes), settings.chunk, settings.inter_rdh_window, settings.inter_rdh_buffer)


def compose_inter_rdh(plan: Plan) -> Schedule:
    """Compose the inter-RDH of a plan: all-reduce, all-gather or reduce-scatter.

    Raises:
        UnsupportedError: the number of ranks is no power of two, tiles that do not fit the scratch, or more of them
            than a schedule can number.

    Source:
        compose §10; schedule §4.
    """
    request = plan.request
    board = Board.of(request)
    how = how_of(plan.platform, request.groups, plan.settings)
    share = request.share
    if request.kind is EncOp.ALLGATHER:
        write_all_gather(board, how, Region(board.input), Region(board.output, 0, share), share)
    elif request.kind is EncOp.REDUCE_SCATTER:
        write_reduce_scatter(board, how, Region(board.input, 0, share), Region(board.output), share)
    else:
        write_all_reduce(board, how, Region(board.input), Region(board.output), request.size, gather_leg=1)
    return board.schedule()


def write_reduce_scatter(
    board: Board, how: InterRdh, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write a reduce-scatter: N shards of every rank's source, the own one reduced into its target.

    Args:
        source: shard k belongs to position k.
        target: the rank's own shard; the same object as `source` puts it where shard k was.
        size: bytes of a shard.
        fence_first: the source is written by earlier rows of the same queue.

    Raises:
        UnsupportedError: tiles that do not fit the scratch, or more of them than a schedule can number.
    """
    cube = how.cube
    if cube.rounds == 0:
        write_copy(board, source, target, size, fence=fence_first)
        return
    result = Shards.of_members(cube, target) if target is source else Shards.of_one(cube, target)
    sizes = np.full(board.ranks, size, np.int64)
    _halve(board, how, source, result, sizes, share=size, stride=size, closed=False, fence=fence_first)


def write_all_gather(
    board: Board,
    how: InterRdh,
    source: Region,
    target: Region,
    size: int,
    *,
    fence_first: bool = False,
    entered: bool = False,
) -> None:
    """Write an all-gather: every rank's own shard into the N shards of all targets.

    Args:
        source: the rank's own shard; the same object as `target` where it is at its place already.
        target: shard k comes from position k.
        size: bytes of a shard.
        fence_first: the source is written by earlier rows of the same queue.
        entered: a rank cannot get here before all others may be written to.

    Raises:
        UnsupportedError: more tiles than a schedule can number.
    """
    if how.cube.rounds == 0:
        write_copy(board, source, target, size, fence=fence_first)
        return
    sizes = np.full(board.ranks, size, np.int64)
    own = None if source is target else source
    _double(board, how, own, target, sizes, stride=size, first_step=0, fence=fence_first, entered=entered)


def write_all_reduce(
    board: Board,
    how: InterRdh,
    source: Region,
    target: Region,
    size: int,
    *,
    fence_first: bool = False,
    gather_leg: int = 0,
) -> None:
    """Write an all-reduce: a reduce-scatter, then an all-gather of the same cut of the buffer.

    Args:
        source, target: where the buffers start; they may be the same.
        size: bytes of the buffer.
        fence_first: the source is written by earlier rows of the same queue.
        gather_leg: leg of the all-gather, counted from that of the reduce-scatter.

    Raises:
        UnsupportedError: tiles that do not fit the scratch, or more of them than a schedule can number.
    """
    cube = how.cube
    if cube.rounds == 0:
        write_copy(board, source, target, size, fence=fence_first)
        return
    sizes, stride = shard_sizes(size, board.ranks)
    source, target = replace(source, stride=stride), replace(target, stride=stride)
    result, share = Shards.of_members(cube, target), -(-size // board.ranks)
    _halve(board, how, source, result, sizes, share=share, stride=stride, closed=True, fence=fence_first)
    after = board.part(board.members, leg=gather_leg)
    _double(after, how, None, target, sizes, stride=stride, first_step=cube.rounds, fence=True, entered=True)


def _halve(
    board: Board,
    how: InterRdh,
    source: Region,
    result: Shards,
    sizes: I64,
    *,
    share: int,
    stride: int,
    closed: bool,
    fence: bool,
) -> None:
    """Write the halving; `closed` where an all-gather of the result follows."""
    cube = how.cube
    tile, tiles = _tiling(how, stride, cube.labels // 2)
    window = _window(how, share, tile, tiles * (cube.labels - 1))
    few = window < tiles * (cube.labels - 1)
    credit = Credit.TILE if few else Credit.NONE if closed else Credit.ROUND
    slots = _slots(board, cube, credit, tile=tile, tiles=tiles, window=window)
    partial = result
    if cube.rounds > 1 and not (closed and may_hold_partials(board, result.region)):
        room = aligned(stride)
        region = Region(board.buffer("partial", cube.labels // 2 * room), 0, room)
        partial = Shards.of_kept(cube, region)
    Halving(
        board=board,
        cube=cube,
        source=Shards.of_members(cube, source),
        partial=partial,
        result=result,
        size=sizes,
        tile=tile,
        tiles=tiles,
        slots=slots,
        copies=input_op(board, source),
        fence=fence,
    ).write()


def _double(
    board: Board,
    how: InterRdh,
    own: Region | None,
    target: Region,
    sizes: I64,
    *,
    stride: int,
    first_step: int,
    fence: bool,
    entered: bool,
) -> None:
    cube = how.cube
    tile, tiles = _tiling(how, stride, cube.labels // 2)
    received = semaphores(board, "double", [0] * cube.rounds)
    ready = None if entered else semaphores(board, "ready", [0] * cube.rounds)
    first = first_step + (own is not None or not entered)
    doubling = Doubling(
        board=board,
        cube=cube,
        own=own,
        target=Shards.of_members(cube, target),
        size=sizes,
        tile=tile,
        tiles=tiles,
        received=received,
        ready=ready,
        first_step=first,
        fence=fence and own is None,
    )
    if not entered:
        doubling.enter(Leaf.RDH_RECV, step=first_step)
    doubling.copy(step=first_step, fence=fence)
    doubling.write()
    board.rows(Leaf.RDH_RECV, board.position, waits=doubling.last(), step=first + cube.rounds)


def _tiling(how: InterRdh, stride: int, chunks: int) -> tuple[int, int]:
    """Return the bytes of a tile and the tiles of a shard."""
    tile = min(stride, how.chunk)
    tiles = -(-stride // tile)
    if tiles * chunks > MAX_TILES:
        raise UnsupportedError(
            f"shards of {format_size(stride)} in tiles of {format_size(tile)} take {tiles * chunks} tiles in a round, "
            f"and a schedule numbers {MAX_TILES}; use less data or larger chunks",
            source=_PARTS,
        )
    return tile, tiles


def _window(how: InterRdh, share: int, tile: int, tiles: int) -> int:
    """Return the slots of a rank, at most one for each tile it receives."""
    needs = min(share, how.chunk) * max(how.window, 1)
    if needs > how.buffer:
        raise UnsupportedError(
            f"tiles in flight of inter-RDH take {format_size(needs)}, and NEURON_RT_DBG_INTER_RDH_CHANNEL_BUFFER_SIZE "
            f"gives {format_size(how.buffer)}; use a smaller window, smaller chunks or a larger buffer",
            source=_WINDOW,
        )
    return min(how.window or max(how.buffer // aligned(tile), 1), tiles)


def _slots(board: Board, cube: Cube, credit: Credit, *, tile: int, tiles: int, window: int) -> Slots:
    """Declare the slots and semaphores of a halving."""
    received, given = semaphores(board, "halve", [0] * cube.rounds), 0
    if credit is Credit.ROUND:
        given = semaphores(board, "credit", [1] * cube.rounds)
    if credit is Credit.TILE:
        starts = [tiles * (cube.labels - (cube.labels >> number)) for number in range(cube.rounds + 1)]
        given = semaphores(
            board, "credit", [min(max(window - start, 0), end - start) for start, end in pairwise(starts)]
        )
    slot = aligned(tile)
    return Slots(board.buffer("slot", window * slot), window, slot, received, credit, given)
