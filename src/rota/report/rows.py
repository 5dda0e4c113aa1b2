"""One row per collective that was run or refused: as a record for JSON, and as a fixed-width table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rota.isa.dtypes import short_name
from rota.pipeline import Outcome
from rota.request import KIND_NAMES, OP_NAMES, Groups, Job, Request
from rota.units import PICOSECONDS_PER_MICROSECOND, PICOSECONDS_PER_SECOND, format_size


@dataclass(frozen=True, slots=True)
class Row:
    """What one instruction did, for one group size; None where there is nothing to say.

    Attributes:
        bytes: the whole buffer, B.
        moves: rows of the schedule that move data, all ranks.
        max_ulp: largest error against a float64 golden, in units of the last place.
        time_us: predicted. algbw, busbw: GB/s, 10^9 bytes a second.
    """

    kind: str
    ranks: int
    groups: Groups
    dtype: str
    file: str | None
    line: int | None
    bytes: int | None = None
    op: str | None = None
    selected: str | None = None
    algorithm: str | None = None
    channels: int | None = None
    moves: int | None = None
    verified: bool | None = None
    device_matches: bool | None = None
    not_on_device: str | None = None
    max_ulp: float | None = None
    ranks_identical: bool | None = None
    time_us: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    refused: str | None = None

    @property
    def good(self) -> bool:
        """Whether it ran, and gave what it means on every rank, on the device too where it ran there."""
        return self.refused is None and self.device_matches is not False and self.max_ulp is not None

    def to_json(self) -> dict[str, Any]:
        """Return the record of the JSON document."""
        names = [name for name in Row.__slots__ if name not in ("file", "line")]
        record = {name: getattr(self, name) for name in names}
        record["groups"] = [list(group) for group in self.groups]
        record["source"] = {"file": self.file, "line": self.line}
        return record


def row_of(job: Job, request: Request, outcomes: Sequence[Outcome]) -> Row:
    """Return the row of a request that was run, its groups in parts that get one algorithm and number of channels."""
    time_ps = max(outcome.timing.makespan_ps for outcome in outcomes)
    algbw = request.size * PICOSECONDS_PER_SECOND / time_ps / 10**9 if time_ps else None
    ulps = [outcome.accuracy.max_ulp for outcome in outcomes]
    same = [outcome.accuracy.ranks_identical for outcome in outcomes]
    matches = [outcome.device_matches for outcome in outcomes]
    return Row(
        kind=KIND_NAMES[request.kind],
        ranks=request.ranks,
        groups=request.groups,
        dtype=short_name(request.dtype),
        file=job.file,
        line=job.line,
        bytes=request.size,
        op=None if request.op is None else OP_NAMES[request.op],
        selected=_joined(outcome.composed.plan.selected.name for outcome in outcomes),
        algorithm=_joined(outcome.composed.algorithm for outcome in outcomes),
        channels=min(outcome.composed.plan.channels for outcome in outcomes),
        moves=sum(outcome.moves for outcome in outcomes),
        verified=all(outcome.composed.verified for outcome in outcomes),
        device_matches=False if False in matches else None if None in matches else True,
        not_on_device=next((outcome.not_on_device for outcome in outcomes if outcome.not_on_device), None),
        max_ulp=None if None in ulps else max(ulp for ulp in ulps if ulp is not None),
        ranks_identical=None if None in same else all(same),
        time_us=time_ps / PICOSECONDS_PER_MICROSECOND,
        algbw=algbw,
        busbw=None if algbw is None else algbw * request.bus_factor,
    )


def _joined(names: Iterable[str]) -> str:
    """Return the different names, with + between them."""
    return "+".join(dict.fromkeys(names))


def refused_row(job: Job, reason: str, request: Request | None = None) -> Row:
    """Return the row of what did not run."""
    groups = job.groups if request is None else request.groups
    return Row(
        kind=job.kind,
        ranks=max((len(group) for group in groups), default=0),
        groups=groups,
        dtype=job.dtype,
        file=job.file,
        line=job.line,
        bytes=None if request is None else request.size,
        refused=reason,
    )


_COLUMNS: Final = (
    ("line", 5),
    ("kind", 14),
    ("groups", 7),
    ("size", 9),
    ("dtype", 8),
    ("op", 4),
    ("algorithm", 17),
    ("ch", 2),
    ("moves", 8),
    ("verified", 8),
    ("device", 6),
    ("max_ulp", 8),
    ("identical", 9),
    ("time(us)", 10),
    ("algbw", 8),
    ("busbw", 8),
)


def table(rows: Iterable[Row]) -> list[str]:
    """Return the lines of the table, the header first; a refused row ends in its reason."""
    rows = list(rows)
    names = [name for name, _ in _COLUMNS]
    cells = [_cells(row) for row in rows]
    algorithm = names.index("algorithm")
    widths = [width for _, width in _COLUMNS]
    widths[algorithm] = max(widths[algorithm], *(len(line[algorithm]) for line in cells), 0)
    lines = ["# " + _line(names, widths)]
    for row, line in zip(rows, cells, strict=True):
        lines.append("  " + _line(line, widths) + (f"  refused: {row.refused}" if row.refused else ""))
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        _text(row.line),
        row.kind,
        f"{len(row.groups)}x{row.ranks}",
        "-" if row.bytes is None else format_size(row.bytes),
        row.dtype,
        row.op or "-",
        row.algorithm or "-",
        _text(row.channels),
        _text(row.moves),
        _yes(row.verified),
        "-" if row.device_matches is None else ("equal" if row.device_matches else "DIFFER"),
        "-" if row.max_ulp is None else f"{row.max_ulp:.1f}",
        _yes(row.ranks_identical),
        "-" if row.time_us is None else f"{row.time_us:.2f}",
        _rate(row.algbw),
        _rate(row.busbw),
    )


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _yes(value: bool | None) -> str:
    return "-" if value is None else ("yes" if value else "NO")


def _rate(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"
