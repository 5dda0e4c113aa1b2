"""Traffic: how many bytes a schedule moves, rank by rank. How long that takes is `simulate`'s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Array, freeze_columns, owners
from rota.schedule.ir import Places, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """One entry per rank of the schedule.

    Attributes:
        sent: bytes that leave the rank: what its rows write elsewhere, and what rows of other ranks read from it.
        read, written: bytes read from and written to the rank's memory, whoever does it (HBM touches).
        moves: rows of the rank that move data.
        sends: rows of the rank that write to another rank.
    """

    sent: I64
    read: I64
    written: I64
    moves: I64
    sends: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


def traffic(schedule: Schedule) -> Traffic:
    """Return what each rank sends, and what is read and written there."""
    rows, ranks = schedule.rows, schedule.ranks
    read_rank, read_size, read_away = _accesses(schedule, schedule.sources)
    write_rank, write_size, write_away = _accesses(schedule, schedule.targets)
    target_row = owners(schedule.targets.ptr)
    sender = np.unique(target_row[write_away])
    pushed = _sum(rows.rank[target_row[write_away]], write_size[write_away], ranks)
    return Traffic(
        sent=pushed + _sum(read_rank[read_away], read_size[read_away], ranks),
        read=_sum(read_rank, read_size, ranks),
        written=_sum(write_rank, write_size, ranks),
        moves=np.bincount(rows.rank[rows.size > 0], minlength=ranks).astype(np.int64),
        sends=np.bincount(rows.rank[sender], minlength=ranks).astype(np.int64),
    )


def _accesses(schedule: Schedule, places: Places) -> tuple[Array, I64, Array]:
    """Return, for each entry, the rank whose memory it is, the bytes, and whether another rank's row does it."""
    row = owners(places.ptr)
    return places.rank, schedule.rows.size[row], places.rank != schedule.rows.rank[row]


def _sum(rank: Array, size: I64, ranks: int) -> I64:
    """Return exact sums per rank."""
    out = np.zeros(ranks, np.int64)
    np.add.at(out, rank, size)
    return out
