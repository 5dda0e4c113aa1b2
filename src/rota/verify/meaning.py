"""What each byte of each output must hold: whose contributions, and from which place of their inputs.

This is the proof's own statement of every collective; nothing that carries one out or measures one reads it. How a
schedule is followed to what it does leave there is `data`'s. Source: compose §5.

A *contributor* is what can come into a value once: the input of a member; for two operands, `input` of each member and
then `input1` of each; for fma, the unscaled input of each member and then the scaled. A set of contributors is a mask
of as many bits. A *place* is a byte's offset in its input (in its operand), counted on from group to group.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from rota.columns import I64, U64, Array, Bool
from rota.isa.enums import CceType, EncOp
from rota.request import TWO_OPERANDS, Request

NOTHING: Final = -1
"""The place of bytes that nobody wrote, that were mixed, or for which nothing is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """What lands where in an output that is cut unevenly: disjoint pieces by their start.

    Attributes:
        start, end: member x output size + offset; without the member where all outputs are alike.
        source: the member whose bytes they are.
        place: where in its input the piece starts.
    """

    start: I64
    end: I64
    source: I64
    place: I64


class Meaning:
    """One request's meaning for the proof.

    Attributes:
        contributors: bits of a mask.
        scaled: added to a contributor where its input was scaled; 0 where nothing is.
        span: places of one group.
        masks: shape (contributors + 1 or more, words): each contributor alone, nobody, and the other sets an output may
            hold.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        ranks = request.ranks
        two, fma = request.kind in TWO_OPERANDS, request.op is CceType.FMA
        self.contributors = 2 * ranks if two or fma else ranks
        self.scaled = ranks if fma else 0
        self.span = request.size if two else request.input_size
        alone = _single_masks(self.contributors)
        if two:
            sets = alone[:ranks] | alone[ranks:-1]
        else:
            sets = np.bitwise_or.reduce(alone[self.scaled :], axis=0, keepdims=True)
        self.masks = np.concatenate((alone, sets))
        self._source = _sources(request)
        self._pieces = _pieces(request)

    def contribution(self, rank: I64, offset: I64, scaled: Bool | None = None) -> tuple[I64, I64]:
        """Return the contributor that a byte of an input is, and its place.

        Args:
            rank: of the schedule.
            offset: in the input of that rank.
            scaled: whether the read scales it.
        """
        group, member = np.divmod(rank, self._request.ranks)
        if self._request.kind in TWO_OPERANDS:
            operand, offset = np.divmod(offset, self._request.size)
            member = member + operand * self._request.ranks
        if scaled is not None:
            member = member + scaled * self.scaled
        return member, group * self.span + offset

    def wanted(self, rank: I64, offset: I64) -> tuple[Array, Array, Array]:
        """Return what bytes of outputs must hold; the arguments, and so the results, broadcast against each other.

        Returns:
            The row of `masks`, the place, and the offset at which something else is wanted. Where nothing is asked, the
            row of nobody and `NOTHING`: such a byte must not be written.
        """
        request = self._request
        group, member = np.divmod(rank, request.ranks)
        home, end = group * self.span, np.asarray(request.output_size)
        if self._pieces is not None:
            return self._from_pieces(self._pieces, member, home, offset)
        row, place = np.asarray(self.contributors + 1), home + offset  # all contributions to the own place
        match request.kind:
            case EncOp.ALLREDUCE:
                pass
            case EncOp.REDUCE_SCATTER:
                place = place + member * request.share
            case EncOp.ALLGATHER | EncOp.ALLTOALL:
                row, within = np.divmod(offset, request.share)
                end = (row + 1) * request.share
                place = home + within + (member * request.share if request.kind is EncOp.ALLTOALL else 0)
            case EncOp.REDUCE:
                row, place = self._where(member == request.root, row, place)
            case EncOp.BROADCAST:
                row = np.asarray(request.root)
            case EncOp.SEND | EncOp.RECV:
                row, place = self._where(member == min(1, request.ranks - 1), np.asarray(0), place)
            case EncOp.PERMUTE | EncOp.PERMUTE_IMPLICIT:
                source = self._source[rank]
                row, place = self._where(source >= 0, source, place)
            case EncOp.PERMUTE_REDUCE | EncOp.PERMUTE_REDUCE_IMPLICIT:
                source = self._source[rank]
                row, place = self._where(source >= 0, row + source, place)
            case _:
                raise AssertionError(request.kind)
        return row, place, end

    def _where(self, asked: Array, chosen: Array, place: Array) -> tuple[Array, Array]:
        return np.where(asked, chosen, self.contributors), np.where(asked, place, NOTHING)

    def _from_pieces(self, pieces: _Pieces, member: I64, home: I64, offset: I64) -> tuple[Array, Array, Array]:
        base = member * self._request.output_size if self._request.kind is EncOp.ALLTOALL_V else 0 * member
        key = base + offset
        at = np.searchsorted(pieces.start, key, side="right") - 1
        asked = (at >= 0) & (key < pieces.end[at])
        row, place = self._where(asked, pieces.source[at], home + pieces.place[at] + key - pieces.start[at])
        following = np.append(pieces.start, np.iinfo(np.int64).max)[at + 1]
        return row, place, np.where(asked, pieces.end[at], following) - base


def _sources(request: Request) -> I64:
    """Return, for each rank of the schedule, the position in its group that a permute moves to it; -1 where none."""
    ranks = request.ranks
    if not request.pairs:
        before: I64 = (np.arange(len(request.members)) - 1) % ranks
        return before
    number = {rank: at for at, rank in enumerate(request.members)}
    out = np.full(len(request.members), -1, np.int64)
    for source, target in request.pairs:
        out[number[target]] = number[source] % ranks
    return out


def _pieces(request: Request) -> _Pieces | None:
    """Return the pieces of an all-to-all-v, or of a gather of unequal shards."""
    if request.kind is EncOp.ALLTOALL_V:
        sizes = np.array(request.sent, np.int64)
        place = _displaced(sizes, request.send_displacements)
        start = _displaced(sizes.T, request.receive_displacements)  # by member that receives, by source
        start = start * request.itemsize + np.arange(request.ranks)[:, None] * request.output_size
        source = np.broadcast_to(np.arange(request.ranks), sizes.shape)
        return _sorted(start, sizes.T * request.itemsize, source, place.T * request.itemsize)
    if not request.gather_counts:
        return None
    sizes = np.array(request.gather_counts, np.int64) * request.itemsize
    return _sorted(np.cumsum(sizes) - sizes, sizes, np.arange(sizes.size), np.zeros_like(sizes))


def _displaced(sizes: I64, stated: tuple[tuple[int, ...], ...]) -> I64:
    return np.array(stated or [[0, *accumulate(row[:-1])] for row in sizes.tolist()], np.int64)


def _sorted(start: I64, size: I64, source: I64, place: I64) -> _Pieces:
    keep = np.flatnonzero(size.ravel() > 0)
    order = keep[np.argsort(start.ravel()[keep], kind="stable")]
    first = start.ravel()[order]
    return _Pieces(first, first + size.ravel()[order], source.ravel()[order], place.ravel()[order])


def _single_masks(contributors: int) -> U64:
    """Return the masks of each contributor alone, and of nobody."""
    out = np.zeros((contributors + 1, -(-contributors // 64)), np.uint64)
    one = np.arange(contributors)
    out[one, one // 64] = np.uint64(1) << (one % 64).astype(np.uint64)
    return out
