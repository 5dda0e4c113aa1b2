"""Reductions of any width as rows of at most 32 sources.

A wider one is a chain: the first 32 sources in fold order into scratch, then the scratch and the next 31, and so on,
the last row to where the result goes. Each row rounds once.

    sources    rows                                                           roundings
    1 .. 32    s0 + .. + s31 -> target                                        1
    33 .. 63   s0 + .. + s31 -> scratch · scratch + s32 + .. -> target         2

Source: design §2 (20).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rota.columns import Array
from rota.compose.board import Board, Leaf, Op, Place, Region, Signal, Wait
from rota.schedule.ir import MAX_SOURCES


def fold_rows(sources: int) -> int:
    """Return the rows, which are the roundings, of a reduction of so many sources."""
    assert sources >= 1, "a reduction has a source"
    return 1 + max(0, -(-(sources - MAX_SOURCES) // (MAX_SOURCES - 1)))


def first_op(board: Board) -> Op:
    """Return the operation of a row that copies one raw input on its way into a reduction.

    A scaled sum scales a rank's input when it is first read; every other operation copies it.

    Source:
        design §2 (27).
    """
    return board.op if board.op is Op.FMA else Op.NONE


def write_fold(
    board: Board,
    leaf: Leaf,
    rank: ArrayLike,
    reads: Sequence[Place],
    write: Place,
    size: ArrayLike,
    scratch: Region,
    *,
    waits: Sequence[Wait] = (),
    signals: Sequence[Signal] = (),
    fence: ArrayLike = False,
    queue: ArrayLike = 0,
    leg: int = 0,
    step: ArrayLike = 0,
    part: ArrayLike = 0,
    event: int = 0,
    when: Array | None = None,
) -> None:
    """Write the rows of one reduction for every entry of the arrays.

    The first row has the waits, the last one the signals. Rows behind the first are fenced, because they read what the
    row before writes; a caller who uses the same scratch for two wide reductions fences the second as well. A
    reduction of size 0 keeps its first and last row, if they wait or signal.

    Args:
        reads: sources in fold order, on every row; those in the request's input are scaled when the operation is FMA.
        scratch: its shard 0 on the issuer takes partials; used only by more than 32 sources.
        part: of the first row; the others count up from it.
        when: reductions that exist; all by default.
    """
    chain = _chain(reads, scratch)
    for number, sources in enumerate(chain):
        first, last = number == 0, number == len(chain) - 1
        exists = when
        if not (first or last):
            exists = np.asarray(size) > 0 if when is None else when & (np.asarray(size) > 0)
        board.rows(
            leaf,
            rank,
            size=size,
            reads=sources,
            writes=[write if last else scratch.at()],
            waits=waits if first else (),
            signals=signals if last else (),
            op=board.op if len(sources) > 1 else first_op(board),
            fence=fence if first else True,
            queue=queue,
            leg=leg,
            step=step,
            part=np.asarray(part) + number,
            event=event,
            when=exists,
        )


def _chain(reads: Sequence[Place], scratch: Region) -> list[list[Place]]:
    """Return the sources of each row."""
    chain = [list(reads[:MAX_SOURCES])]
    for start in range(MAX_SOURCES, len(reads), MAX_SOURCES - 1):
        chain.append([scratch.at(), *reads[start : start + MAX_SOURCES - 1]])
    assert len(chain) == fold_rows(len(reads)), "one row for 32 sources, then one for every 31"
    return chain
