"""Size windows as data: what a row of a limit table is, and how one admits a size.

Which rows a communicator has is in `subtypes`. Sizes are what SELECT compares: one rank's shard for all-gather and
reduce-scatter, the whole buffer otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.facts import CONVENTION, Source, Verdict
from rota.isa.enums import Algorithm, EncOp
from rota.request import Staging
from rota.units import format_size

UNBOUNDED: Final = 1 << 62
"""The maximum of a row without an upper bound: larger messages go in iterations. Source: select §7.4, convention."""
BOUNDARY: Final = Source("select", "7.1, admission rule", CONVENTION)


@dataclass(frozen=True, slots=True)
class Window:
    """Sizes above `minimum` and up to `maximum`, in bytes; a maximum of 0 offers nothing. Source: `BOUNDARY`."""

    minimum: int
    maximum: int

    def admits(self, size: int) -> bool:
        """Say whether the window holds a size."""
        return self.minimum < size <= self.maximum

    def __str__(self) -> str:
        if self.maximum <= self.minimum:
            return "no size"
        low = f"above {format_size(self.minimum)}" if self.minimum else ""
        high = f"up to {format_size(self.maximum)}" if self.maximum < UNBOUNDED else ""
        return " and ".join(part for part in (low, high) if part) or "any size"


NOTHING: Final = Window(0, 0)


@dataclass(frozen=True, slots=True)
class Row:
    """The two windows of one operation in one subtype: for plain operands, and for 2-D ones (`_sbuf`)."""

    op: EncOp
    plain: Window
    sbuf: Window
    source: Source
    words: tuple[str, str] = ("", "")  # the two windows as text

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", (str(self.plain), str(self.sbuf)))

    def window(self, staging: Staging) -> Window:
        """Return the window that speaks for operands staged this way. Source: design §2 (4)."""
        return self.sbuf if staging is Staging.STATIC else self.plain

    def text(self, staging: Staging) -> str:
        """Return the words of `window(staging)`."""
        return self.words[staging is Staging.STATIC]


@dataclass(frozen=True, slots=True)
class Subtype:
    """One way a mesh communicator can carry operations, with the sizes it takes.

    Attributes:
        slot: place among the 20 of the communicator, which is its priority.
        reported: the algorithm that is reported when this subtype carries an operation.
        is_rdh: asked by the predicate of recursive doubling and halving alone, all others by that of the mesh.
        refused: why the builder left the slot empty; such a subtype has no rows.
    """

    slot: int
    name: str
    reported: Algorithm
    rows: tuple[Row, ...]
    is_rdh: bool = False
    refused: Verdict | None = None

    def row(self, op: EncOp) -> Row | None:
        """Return the row of an operation; None where the subtype does not do it."""
        return next((row for row in self.rows if row.op is op), None)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one operation that one predicate reads, in slot order."""

    rows: tuple[tuple[Subtype, Row], ...] = ()
    outside: tuple[str, str] = ("", "")  # from where to where the plain windows and the `_sbuf` ones reach, as text

    def __post_init__(self) -> None:
        object.__setattr__(self, "outside", (self._reach(Staging.DEVICE), self._reach(Staging.STATIC)))

    def _reach(self, staging: Staging) -> str:
        windows = [row.window(staging) for _, row in self.rows]
        offered = [window for window in windows if window.maximum > window.minimum]
        if not offered:
            return ""
        low, high = min(window.minimum for window in offered), max(window.maximum for window in offered)
        return f"above {format_size(low)} and up to {format_size(high)}"

    def carrier(self, staging: Staging, size: int) -> tuple[Subtype, Row] | None:
        """Return the first subtype in slot order that takes a size. Source: select §7.1, convention."""
        static = staging is Staging.STATIC
        for found in self.rows:
            window = found[1].sbuf if static else found[1].plain
            if window.minimum < size <= window.maximum:
                return found
        return None

    def reads(self, staging: Staging, size: int) -> tuple[LimitRead, ...]:
        """Return every row as it is compared with a size."""
        return tuple(LimitRead(subtype, row, staging, size) for subtype, row in self.rows)


NO_ROWS: Final = Table()


@dataclass(frozen=True, slots=True)
class LimitRead:
    """One row that was compared with a size."""

    subtype: Subtype
    row: Row
    staging: Staging
    size: int

    @property
    def admits(self) -> bool:
        """Whether the row takes the size."""
        return self.row.window(self.staging).admits(self.size)
