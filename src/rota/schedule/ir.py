"""The schedule: who moves which bytes, after what, as columns. One row is one data movement of one rank.

A row starts when the row before it in its queue has started and all its waits hold (a fenced row: when every earlier
row of its queue has completed); it subtracts at its start, and signals when it and all rows before it have completed.
Nothing else orders anything. Names (`leg`, `step`, `part`, `event`, `leaf`) are for people and for the emitter.
Rank r of a schedule is the r-th member of its request, not a machine rank. Source: schedule §1-2, conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import Final

import numpy as np

from rota.columns import I32, I64, U8, U16, Array, Bool, freeze, freeze_columns, owners

MAX_RANKS: Final = 65535
MAX_NUMBER: Final = 10**18 - 1
"""The largest size of a buffer and initial value of a semaphore: sums of two fit int64, and the text form 18 digits."""
MAX_SOURCES: Final = 32
"""Sources of one row: what one CCE packet reads. Source: design §2 (20)."""


class Op(IntEnum):
    """How the sources of a row combine; NONE copies the only source."""

    NONE = 0
    ADD = 1
    FMA = 2
    MAX = 3
    MIN = 4


class Leaf(IntEnum):
    """The step primitive a row stands for; those of a mesh stand for one copy, reduction, notify or wait of an event.

    Source: compose §2.1 and §2.2, high; MESH_WAIT, convention.
    """

    SEND = 0
    RECV_REDUCE_SEND = 1
    RECV_REDUCE_COPY = 2
    RECV_REDUCE_COPY_SEND = 3
    DIRECT_COPY_SEND = 4
    DIRECT_RECV_SEND = 5
    DIRECT_RECV = 6
    DIRECT_COPY = 7
    POST_SEND = 8
    POST_RECV = 9
    DIRECT_PULL = 10
    DIRECT_SEND = 11
    DIRECT_REDUCE_SEND_KANGARING = 12
    DIRECT_REDUCE_SEND_PERMUTE = 13
    RDH_SEND = 14
    RDH_RECV = 15
    RDH_REDUCE = 16
    RDH_COPY = 17
    MESH_SEND = 18
    MESH_REDUCE = 19
    MESH_NOTIFY = 20
    MESH_WAIT = 21


_LEAF_NAMES: Final = {int(leaf): leaf.name.lower() for leaf in Leaf}


class Checks(Enum):
    """How much the constructor checks.

    UNBALANCED leaves out that semaphores return to their initial values; FORM also that the stored order is an
    execution, so that the order verifier can say why it is none.
    """

    ALL = "all"
    UNBALANCED = "unbalanced"
    FORM = "form"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A region every rank has: `user` buffers belong to the caller, the others to the runtime."""

    name: str
    size: int
    user: bool = False


@dataclass(frozen=True, slots=True)
class Semaphore:
    """A counter every rank has."""

    name: str
    initial: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One entry per row, in stored order, which is a legal execution."""

    rank: U16
    queue: U8
    part: U16  # 2 x chunk group + half
    leg: U8
    step: U16
    event: U8
    leaf: U8
    op: U8
    fence: Bool
    size: I64  # bytes of every source and target; 0 for a row that only waits or signals

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Sources or targets: row i has entries `ptr[i]` to `ptr[i + 1]`, sources in fold order."""

    ptr: I32
    rank: U16
    buffer: U8
    offset: I64

    def __post_init__(self) -> None:
        _freeze_csr(self)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Waits of the issuing rank: value >= at_least, then subtract."""

    ptr: I32
    semaphore: U16
    at_least: I32
    subtract: I32

    def __post_init__(self) -> None:
        _freeze_csr(self)


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Additions to a semaphore of any rank, performed when the row has completed."""

    ptr: I32
    rank: U16
    semaphore: U16
    add: I32

    def __post_init__(self) -> None:
        _freeze_csr(self)


STORED: Final[Mapping[type, Mapping[str, type[np.generic]]]] = {
    Rows: {
        "rank": np.uint16,
        "queue": np.uint8,
        "part": np.uint16,
        "leg": np.uint8,
        "step": np.uint16,
        "event": np.uint8,
        "leaf": np.uint8,
        "op": np.uint8,
        "fence": np.bool_,
        "size": np.int64,
    },
    Places: {"ptr": np.int32, "rank": np.uint16, "buffer": np.uint8, "offset": np.int64},
    Waits: {"ptr": np.int32, "semaphore": np.uint16, "at_least": np.int32, "subtract": np.int32},
    Signals: {"ptr": np.int32, "rank": np.uint16, "semaphore": np.uint16, "add": np.int32},
}
"""How each column is stored. Source: schedule §1, conventions."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A checked schedule of all ranks.

    Attributes:
        ranks: members that take part.
        buffers, semaphores: the same list on every rank; rows name them by index.
        input, output: indices of the buffers that hold what goes in and what comes out; equal when in place.

    Raises:
        VerifyError: a constructor check fails; the findings name the rows.
    """

    ranks: int
    buffers: tuple[Buffer, ...]
    semaphores: tuple[Semaphore, ...]
    input: int
    output: int
    rows: Rows
    sources: Places
    targets: Places
    waits: Waits
    signals: Signals
    checks: Checks = field(default=Checks.ALL, compare=False)

    def __post_init__(self) -> None:
        from rota.schedule.check import check  # noqa: PLC0415  the checks read schedules, so they cannot come first

        check(self)

    def __len__(self) -> int:
        return self.rows.rank.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        head = (self.ranks, self.buffers, self.semaphores, self.input, self.output)
        same = head == (other.ranks, other.buffers, other.semaphores, other.input, other.output)
        return same and all(np.array_equal(a, b) for a, b in zip(self.columns(), other.columns(), strict=True))

    __hash__ = None  # type: ignore[assignment]  # schedules compare by content and are no keys

    def columns(self) -> tuple[Array, ...]:
        """Return every column of the schedule, rows first."""
        tables = (self.rows, self.sources, self.targets, self.waits, self.signals)
        return tuple(getattr(table, name) for table in tables for name in table.__slots__)

    @property
    def in_place(self) -> bool:
        """Whether the output is the input."""
        return self.input == self.output

    @cached_property
    def lane(self) -> I64:
        """The in-order queue of each row as one number: rank x 256 + queue."""
        return self.rows.rank.astype(np.int64) * 256 + self.rows.queue

    @cached_property
    def wait_row(self) -> I64:
        """The row of each wait."""
        return owners(self.waits.ptr)

    @cached_property
    def signal_row(self) -> I64:
        """The row of each signal."""
        return owners(self.signals.ptr)

    def name(self, row: int) -> str:
        """Return how messages call a row: rank, queue, leg, step and leaf."""
        rows = self.rows
        leaf = _LEAF_NAMES.get(int(rows.leaf[row]), f"leaf {rows.leaf[row]}")
        return (
            f"row {row} (rank {rows.rank[row]} channel {rows.queue[row]} leg {rows.leg[row]} step {rows.step[row]} "
            f"part {rows.part[row]} {leaf})"
        )


def _freeze_csr(table: Places | Waits | Signals) -> None:
    """Check that the pointers are one-dimensional and the other columns equally long; make all read-only."""
    columns = {name: getattr(table, name) for name in table.__slots__}
    lengths = {name: column.shape for name, column in columns.items() if name != "ptr"}
    if len(set(lengths.values())) != 1 or any(column.ndim != 1 for column in columns.values()):
        raise ValueError(f"columns of {type(table).__name__} differ in length: {lengths}")
    for column in columns.values():
        freeze(column)
