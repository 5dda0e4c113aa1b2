"""One collective, validated: what is asked for, in elements and ranks. How it is done is decided downstream."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.dtypes import INTEGERS, REDUCIBLE, Dtype, parse_dtype, short_name, size_of
from rota.isa.enums import REDUCING, CceType, EncOp

COMPOSED: Final = (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER)
KIND_NAMES: Final = {
    EncOp.ALLREDUCE: "all_reduce",
    EncOp.ALLGATHER: "all_gather",
    EncOp.REDUCE_SCATTER: "reduce_scatter",
}
KIND_SYNONYMS: Final = {
    "allr": EncOp.ALLREDUCE,
    "allreduce": EncOp.ALLREDUCE,
    "allg": EncOp.ALLGATHER,
    "allgather": EncOp.ALLGATHER,
    "redsct": EncOp.REDUCE_SCATTER,
    "reducescatter": EncOp.REDUCE_SCATTER,
} | {name: kind for kind, name in KIND_NAMES.items()}
OP_NAMES: Final = {CceType.ADD: "sum", CceType.MAX: "max", CceType.MIN: "min"}
OP_SYNONYMS: Final = {"add": CceType.ADD} | {name: op for op, name in OP_NAMES.items()}
EXACT_INTEGER: Final = 1 << 24
"""The first integer above which float32 no longer holds every integer."""

_NO_INTEGERS: Final = Source("design", "2 (1), fp32 reduce", CONVENTION)
_NO_FP32R: Final = Source("sdma", "9", HIGH)
_LARGEST: Final = 1 << 50
_RANKS: Final = 1 << 31  # more than any machine numbers

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One collective of one or more disjoint groups of equal size, which run together.

    Attributes:
        kind: all-reduce, all-gather or reduce-scatter.
        dtype: wire type of one element.
        count: elements of the whole buffer: the buffer of one rank for all-reduce, the output for all-gather, the
            input for reduce-scatter.
        groups: machine ranks of each group, in group order: member i owns shard i.
        op: how elements combine; None for all-gather.
        in_place: the output is the input (all-reduce only).
        integer_as_fp32: run an integer reduction rounded through float32.

    Raises:
        UsageError: sizes or groups that make no collective.
        UnsupportedError: a collective the device cannot do; the message says what to use instead.
    """

    kind: EncOp
    dtype: Dtype
    count: int
    groups: Groups
    op: CceType | None = None
    in_place: bool = False
    integer_as_fp32: bool = False

    def __post_init__(self) -> None:
        _check_kind(self)
        _check_dtype(self)
        _check_groups(self)
        _check_count(self)

    @property
    def ranks(self) -> int:
        """Ranks of one group."""
        return len(self.groups[0])

    @property
    def members(self) -> tuple[int, ...]:
        """Machine ranks of all groups, group after group: the numbering of a schedule."""
        return tuple(rank for group in self.groups for rank in group)

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the wire."""
        return size_of(self.dtype)

    @property
    def size(self) -> int:
        """Bytes of the whole buffer, B."""
        return self.count * self.itemsize

    @property
    def share(self) -> int:
        """Bytes of one rank's shard of an all-gather or reduce-scatter, C = B / ranks."""
        return self.size // self.ranks

    @property
    def select_size(self) -> int:
        """Bytes that SELECT compares with its limits: B for all-reduce, C otherwise. Source: select §1.1."""
        return self.size if self.kind is EncOp.ALLREDUCE else self.share

    @property
    def input_size(self) -> int:
        """Bytes of one rank's input buffer."""
        return self.share if self.kind is EncOp.ALLGATHER else self.size

    @property
    def output_size(self) -> int:
        """Bytes of one rank's output buffer."""
        return self.share if self.kind is EncOp.REDUCE_SCATTER else self.size

    @property
    def bus_factor(self) -> float:
        """What the algorithm bandwidth is multiplied with to give the bus bandwidth."""
        once = (self.ranks - 1) / self.ranks
        return 2 * once if self.kind is EncOp.ALLREDUCE else once

    def to_text(self) -> str:
        """Return the one-line text that `parse_request` reads back to an equal request."""
        groups = ";".join(",".join(map(str, group)) for group in self.groups)
        op = "-" if self.op is None else OP_NAMES[self.op]
        flags = "".join(
            f" {name}" for name, on in (("in_place", self.in_place), ("integer_as_fp32", self.integer_as_fp32)) if on
        )
        return f"{KIND_NAMES[self.kind]} {short_name(self.dtype)} {op} {self.count} {groups}{flags}"


@dataclass(frozen=True, slots=True)
class Job:
    """One instruction: its requests, one for each group size, or why there are none.

    Attributes:
        kind, dtype: as people call them, also of a refused instruction.
        line: of the file, or the record of a stream, from 1; None on the command line.
        words: the instruction word of a stream's record.
        notes: sentences about what is legal but worth saying.
    """

    kind: str
    dtype: str
    groups: Groups
    requests: tuple[Request, ...] = ()
    refused: str | None = None
    file: str | None = None
    line: int | None = None
    word: bytes = b""
    notes: tuple[str, ...] = ()


_TEXT: Final = re.compile(
    r"(?P<kind>\w+) (?P<dtype>\w+) (?P<op>[\w-]+) (?P<count>\d{1,18}) (?P<groups>\d[\d,;]*)(?P<flags>( \w+)*)", re.ASCII
)


def parse_request(text: str) -> Request:
    """Return the request that `Request.to_text` printed.

    Raises:
        UsageError: the line is no such text.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"request '{text[:60]}': expected 'kind dtype op count groups [flags]'")
    flags = match["flags"].split()
    unknown = [flag for flag in flags if flag not in ("in_place", "integer_as_fp32")]
    members = [group.split(",") for group in match["groups"].split(";")]
    if unknown or not all(rank.isdigit() and len(rank) <= 10 for group in members for rank in group):
        raise UsageError(f"request '{text[:60]}': unreadable {'flag ' + unknown[0] if unknown else 'groups'}")
    return Request(
        kind=parse_kind(match["kind"]),
        dtype=parse_dtype(match["dtype"]),
        count=int(match["count"]),
        groups=tuple(tuple(map(int, group)) for group in members),
        op=None if match["op"] == "-" else parse_op(match["op"]),
        in_place="in_place" in flags,
        integer_as_fp32="integer_as_fp32" in flags,
    )


def parse_kind(text: str) -> EncOp:
    """Return the collective a name stands for: ours, or nccom-test's short one.

    Raises:
        UsageError: no such collective in this version.
    """
    kind = KIND_SYNONYMS.get(text.lower().replace("-", "_"))
    if kind is None:
        known = ", ".join(KIND_NAMES.values())
        raise UsageError(f"collective '{text[:40]}': this version knows {known} (also allr, allg, redsct)")
    return kind


def parse_op(text: str) -> CceType:
    """Return the reduction a name stands for.

    Raises:
        UsageError: no such reduction.
    """
    op = OP_SYNONYMS.get(text.lower())
    if op is None:
        raise UsageError(f"reduction '{text[:40]}': expected one of {', '.join(OP_NAMES.values())}")
    return op


def _check_kind(request: Request) -> None:
    if request.kind not in COMPOSED:
        raise UnsupportedError(f"{request.kind.name}: this version composes {', '.join(KIND_NAMES.values())}")
    if request.kind in REDUCING and request.op not in OP_NAMES:
        raise UsageError(f"{KIND_NAMES[request.kind]} needs a reduction: one of {', '.join(OP_NAMES.values())}")
    if request.kind not in REDUCING and request.op is not None:
        raise UsageError(f"{KIND_NAMES[request.kind]} does not reduce: leave the reduction out")
    if request.in_place and request.kind is not EncOp.ALLREDUCE:
        raise UsageError(f"{KIND_NAMES[request.kind]} cannot be in place: its input and output differ in size")


def _check_dtype(request: Request) -> None:
    dtype = request.dtype
    if dtype is Dtype.FP32R:
        raise UnsupportedError("dtype fp32r has no transfer size; use fp32", source=_NO_FP32R)
    if size_of(dtype) == 0:
        raise UnsupportedError(f"dtype {short_name(dtype)} has no transfer size; use another dtype", source=_NO_FP32R)
    if request.kind in REDUCING and dtype in INTEGERS and not request.integer_as_fp32:
        raise UnsupportedError(
            f"{KIND_NAMES[request.kind]} of {short_name(dtype)}: the device reduces in float32 only; use fp32, or "
            "--integer-as-fp32 to run it rounded through float32 (exact up to 2^24)",
            source=_NO_INTEGERS,
        )
    if request.kind in REDUCING and dtype not in INTEGERS and dtype not in REDUCIBLE:
        raise UnsupportedError(f"dtype {short_name(dtype)} cannot be reduced; use bf16, fp16, fp32 or fp8")
    if request.integer_as_fp32 and (request.kind not in REDUCING or dtype not in INTEGERS):
        object.__setattr__(request, "integer_as_fp32", False)


def _check_groups(request: Request) -> None:
    groups = request.groups
    if not groups or not all(groups):
        raise UsageError("groups: expected at least one group, and no empty one")
    if len({len(group) for group in groups}) > 1:
        raise UsageError("groups of one request must have equal sizes; make one request for each size")
    members = request.members
    if len(set(members)) != len(members):
        twice = min(rank for rank, times in Counter(members).items() if times > 1)
        raise UsageError(f"groups: rank {twice} appears twice; groups of one request share no rank")
    if not 0 <= min(members) <= max(members) < _RANKS:
        raise UsageError(f"groups: ranks {min(members)} to {max(members)}, expected 0 to {_RANKS - 1}")


def _check_count(request: Request) -> None:
    if request.count <= 0 or request.size > _LARGEST:
        raise UsageError(f"count {request.count}: expected between 1 element and 1024T of data")
    if request.kind is not EncOp.ALLREDUCE and request.count % request.ranks:
        raise UsageError(
            f"{KIND_NAMES[request.kind]} of {request.count} elements over {request.ranks} ranks: expected a whole "
            f"number of elements for each rank; the next is {-(-request.count // request.ranks) * request.ranks}"
        )
