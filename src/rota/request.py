"""One collective, validated: what is asked for, in elements and ranks. How it is done is decided downstream."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.dtypes import INTEGERS, REDUCIBLE, Dtype, parse_dtype, short_name, size_of
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.machine.pairs import check_distinct, ring_of

COMPOSED: Final = (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER)
"""The collectives that rings, meshes and hierarchies all do. Source: select §5.3, high."""
KIND_NAMES: Final = {
    EncOp.ALLREDUCE: "all_reduce",
    EncOp.ALLGATHER: "all_gather",
    EncOp.REDUCE_SCATTER: "reduce_scatter",
    EncOp.ALLTOALL: "all_to_all",
    EncOp.ALLTOALL_V: "all_to_all_v",
    EncOp.PERMUTE: "permute",
    EncOp.PERMUTE_REDUCE: "permute_reduce",
    EncOp.PERMUTE_IMPLICIT: "permute_implicit",
    EncOp.PERMUTE_REDUCE_IMPLICIT: "permute_reduce_implicit",
    EncOp.SEND: "send",
    EncOp.RECV: "recv",
    EncOp.BROADCAST: "broadcast",
    EncOp.REDUCE: "reduce",
}
KIND_SYNONYMS: Final = {
    "allr": EncOp.ALLREDUCE,
    "allreduce": EncOp.ALLREDUCE,
    "allg": EncOp.ALLGATHER,
    "allgather": EncOp.ALLGATHER,
    "redsct": EncOp.REDUCE_SCATTER,
    "reducescatter": EncOp.REDUCE_SCATTER,
    "alltoall": EncOp.ALLTOALL,
    "alltoallv": EncOp.ALLTOALL_V,
    "collective_permute": EncOp.PERMUTE,
} | {name: kind for kind, name in KIND_NAMES.items()}
SHARDED: Final = frozenset({EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL})
"""The collectives that cut a buffer into one equal shard for each rank. Source: compose §5, high."""
PAIRED: Final = frozenset({EncOp.PERMUTE, EncOp.PERMUTE_REDUCE})
"""The collectives that name their sources and targets. Source: compose §9, high."""
RINGED: Final = frozenset({EncOp.PERMUTE_IMPLICIT, EncOp.PERMUTE_REDUCE_IMPLICIT})
"""The collectives that shift along a ring which their pairs may name. Source: compose §9, high."""
TWO_OPERANDS: Final = frozenset({EncOp.PERMUTE_REDUCE, EncOp.PERMUTE_REDUCE_IMPLICIT})
"""The collectives whose input is `input` and, behind it, `input1`. Source: compose §5, medium; order: convention."""
ROOTED: Final = frozenset({EncOp.BROADCAST, EncOp.REDUCE})
"""The collectives in which one member is special. Source: compose §5, convention."""
SCALED: Final = frozenset({EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER})
"""The collectives that FMA combines. Source: design §2 (27), convention."""
OP_NAMES: Final = {CceType.ADD: "sum", CceType.MAX: "max", CceType.MIN: "min", CceType.FMA: "fma"}
OP_SYNONYMS: Final = {"add": CceType.ADD} | {name: op for op, name in OP_NAMES.items()}
EXACT_INTEGER: Final = 1 << 24
"""The first integer above which float32 no longer holds every integer."""

_NO_INTEGERS: Final = Source("design", "2 (1), fp32 reduce", CONVENTION)
_NO_FP32R: Final = Source("sdma", "9", HIGH)
_LARGEST: Final = 1 << 50
_RANKS: Final = 1 << 31  # more than any machine numbers

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]
Counts = tuple[tuple[int, ...], ...]


class Staging(Enum):
    """Which twin of a limit row speaks for the operands: `static` the 2-D (`_sbuf`) row, `device` the plain one.

    Source: design §2 (4), convention.
    """

    STATIC = "static"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Request:
    """One collective of one or more disjoint groups of equal size, which run together.

    What each kind leaves in the output of member i of a group of N, where `in[i]` is the input of member i:

        all_reduce              all in[k] combined; with fma the sum of scales[k] x in[k]
        all_gather              in[0], in[1], ... end to end; with gather_counts their first gather_counts[k] elements
        reduce_scatter          shard i of all in[k] combined; with fma as above
        all_to_all              shard i of in[0], shard i of in[1], ...
        all_to_all_v            the piece of counts[k][i] elements of each in[k]
        permute                 in[k] where (k, i) is a pair
        permute_implicit        the same; without pairs the ring is the group order, (k, k + 1 mod N)
        permute_reduce          both halves of in[k], input and input1, combined where (k, i) is a pair
        permute_reduce_implicit the same; without pairs as permute_implicit
        send, recv              in[0] where i is 1 (of a group of one: 0); the two describe one movement
        broadcast               in[root], the root's own output included
        reduce                  all in[k] combined where i is the root

    An output byte for which nothing is asked (no pair ends there, no piece lands there, another rank is the root) keeps
    what it held. Source: compose §5; the last sentence, the order of the pieces and of the halves, conventions.

    Attributes:
        kind: what is asked for; which kinds can be composed is said downstream.
        dtype: wire type of one element.
        count: elements of the whole buffer: the output for all-gather, the input for reduce-scatter and all-to-all-v,
            one operand for what has two, the buffer of one rank otherwise.
        groups: machine ranks of each group, in group order: member i owns shard i.
        op: how elements combine; None for what does not reduce.
        in_place: the output is the input (all-reduce only).
        integer_as_fp32: run an integer reduction rounded through float32.
        pairs: (source, target), machine ranks; the groups of a permute are the rings that the pairs form. An implicit
            permute may leave them out or name one ring over each group.
        staging: which twin of the limit rows speaks; None is the platform's own.
        root: position of the special member of a broadcast or reduce.
        scales: of an fma, held as float32: one for each position, or one for all.
        counts: of an all-to-all-v: elements that member i sends to member j; without them `count` elements are cut as
            evenly as they go, see `sent`.
        gather_counts: of an all-gather whose members give differently many elements (an extension).
        send_displacements: of an all-to-all-v: element of member i's input at which its piece for member j begins;
            without them the pieces are packed in order of j.
        receive_displacements: element of member i's output at which the piece from member j begins; packed likewise.

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
    pairs: Pairs = ()
    staging: Staging | None = None
    root: int = 0
    scales: tuple[float, ...] = ()
    counts: Counts = ()
    gather_counts: tuple[int, ...] = ()
    send_displacements: Counts = ()
    receive_displacements: Counts = ()

    def __post_init__(self) -> None:
        _check_kind(self)
        _check_dtype(self)
        _check_groups(self)
        _check_pairs(self)
        _check_scales(self)
        _check_pieces(self)
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
        """Bytes of one rank's shard, C = B / ranks; with gather_counts the largest."""
        return max(self.gather_counts) * self.itemsize if self.gather_counts else self.size // self.ranks

    @property
    def sent(self) -> Counts:
        """Elements that each member sends to each other of an all-to-all-v: `counts`, or as even as it goes.

        A remainder r goes one element each to the member itself and the r - 1 behind it, so that every member sends and
        receives exactly `count` elements. Source: convention.
        """
        if self.counts:
            return self.counts
        each, more = divmod(self.count, self.ranks)
        row = tuple(each + (j < more) for j in range(self.ranks))
        return tuple(row[self.ranks - i :] + row[: self.ranks - i] for i in range(self.ranks))

    @property
    def member_scales(self) -> tuple[float, ...]:
        """The scale of each member, in the numbering of a schedule; none unless it is an fma."""
        return self.scales * (len(self.members) // len(self.scales)) if self.scales else ()

    @property
    def select_size(self) -> int:
        """Bytes that SELECT compares with its limits: C for all-gather and reduce-scatter, else B.

        Source: select §1.1; design §2 (17).
        """
        return self.share if self.kind in (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER) else self.size

    @property
    def input_size(self) -> int:
        """Bytes of one rank's input buffer: C for all-gather, two operands for what has two, else B.

        Source: select §1.1, high; all-to-all-v, whose members need differently much, and two operands: convention.
        """
        if self.kind in TWO_OPERANDS:
            return 2 * self.size
        return self.share if self.kind is EncOp.ALLGATHER else self.size

    @property
    def output_size(self) -> int:
        """Bytes of one rank's output buffer: C for reduce-scatter, what the fullest receives for all-to-all-v, else B.

        Source: select §1.1, high; all-to-all-v: convention.
        """
        if self.counts:
            return _extent(_transposed(self.counts), self.receive_displacements) * self.itemsize
        return self.share if self.kind is EncOp.REDUCE_SCATTER else self.size

    @property
    def bus_factor(self) -> float:
        """What the algorithm bandwidth is multiplied with to give the bus bandwidth. Source: platforms §6, high."""
        once = (self.ranks - 1) / self.ranks
        if self.kind is EncOp.ALLREDUCE:
            return 2 * once
        return once if self.kind in SHARDED or self.kind is EncOp.ALLTOALL_V else 1.0

    def to_text(self) -> str:
        """Return the one-line text that `parse_request` reads back to an equal request."""
        groups = ";".join(",".join(map(str, group)) for group in self.groups)
        op = "-" if self.op is None else OP_NAMES[self.op]
        flags = "".join(
            f" {name}" for name, on in (("in_place", self.in_place), ("integer_as_fp32", self.integer_as_fp32)) if on
        )
        pairs = " pairs=" + ",".join(f"{source}>{target}" for source, target in self.pairs) if self.pairs else ""
        staging = "" if self.staging is None else f" staging={self.staging.value}"
        stated = flags + pairs + staging + (f" root={self.root}" if self.root else "")
        for name in ("scales", "gather_counts"):
            values = ",".join(map(repr, getattr(self, name)))
            stated += f" {name}={values}" if values else ""
        for name in ("counts", "send_displacements", "receive_displacements"):
            table = ";".join(",".join(map(str, row)) for row in getattr(self, name))
            stated += f" {name}={table}" if table else ""
        return f"{KIND_NAMES[self.kind]} {short_name(self.dtype)} {op} {self.count} {groups}{stated}"


def along(request: Request, rings: Groups) -> Request:
    """Return an implicit permute that names its rings: the pairs of neighbours of each, in the order given.

    Args:
        rings: the members of each group in the order of its ring, machine ranks.

    Raises:
        UsageError: the request is no implicit permute, or the rings are not those of its groups.
    """
    neighbours = [zip(ring, (*ring[1:], *ring[:1]), strict=True) for ring in rings]
    return replace(request, pairs=tuple(pair for pairs in neighbours for pair in pairs))


@dataclass(frozen=True, slots=True)
class Operand:
    """Bytes of a tensor that an instruction names by its handle.

    Attributes:
        space: which tensors the handle is one of: equal where equal handles mean one tensor.
        offset: bytes from the beginning of the tensor. size: bytes.
        whole: it is all that one rank reads or writes, in order; else one piece of it, or the bytes it lies among.
    """

    space: int
    handle: int
    offset: int
    size: int
    whole: bool = True


Operands = tuple[tuple[Operand, ...], tuple[Operand, ...]]
"""What one request reads, and what it writes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One instruction: its requests, one for each group size, or why there are none.

    Attributes:
        kind, dtype: as people call them, also of a refused instruction.
        line: of the file, or the record of a stream, from 1; None on the command line.
        words: the instruction word of a stream's record.
        notes: sentences about what is legal but worth saying.
        pairs: (source, target) of a permute, also of one whose pairs form no ring.
        operands: of each request, where instructions name tensors; none on the command line, in HLO, and in SBUF.
        tensors: names of what each request reads and writes in a program; none where it has tensors of its own.
        stream: collectives of one stream run one after another, streams at the same time. streams: of its program.
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
    pairs: Pairs = ()
    operands: tuple[Operands, ...] = ()
    tensors: tuple[tuple[str, str], ...] = ()
    stream: int = 0
    streams: int = 1


_TEXT: Final = re.compile(
    r"(?P<kind>\w+) (?P<dtype>\w+) (?P<op>[\w-]+) (?P<count>\d{1,18}) (?P<groups>\d[\d,;]*)"
    r"(?P<flags>( [\w=>,;.+-]+)*)",
    re.ASCII,
)
_PAIR: Final = r"\d{1,10}>\d{1,10}"
_FLOAT: Final = r"-?\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?"
_LIST: Final = r"\d{1,16}(?:,\d{1,16})*"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _table(text: str) -> Counts:
    return tuple(map(_numbers, text.split(";")))


def _read_pairs(text: str) -> Pairs:
    return tuple((int(source), int(target)) for source, target in (pair.split(">") for pair in text.split(",")))


_STATED: Final[Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]]] = {
    "pairs": (re.compile(rf"{_PAIR}(?:,{_PAIR})*", re.ASCII), _read_pairs),
    "staging": (re.compile("|".join(each.value for each in Staging)), Staging),
    "root": (re.compile(r"\d{1,10}", re.ASCII), int),
    "scales": (re.compile(rf"{_FLOAT}(?:,{_FLOAT})*", re.ASCII), lambda text: tuple(map(float, text.split(",")))),
    "gather_counts": (re.compile(_LIST, re.ASCII), _numbers),
    "counts": (re.compile(rf"{_LIST}(?:;{_LIST})*", re.ASCII), _table),
    "send_displacements": (re.compile(rf"{_LIST}(?:;{_LIST})*", re.ASCII), _table),
    "receive_displacements": (re.compile(rf"{_LIST}(?:;{_LIST})*", re.ASCII), _table),
}
"""How the value of each `name=value` flag looks, and what reads it."""


def parse_request(text: str) -> Request:
    """Return the request that `Request.to_text` printed.

    Raises:
        UsageError: the line is no such text.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"request '{text[:60]}': expected 'kind dtype op count groups [flags]'")
    flags = match["flags"].split()
    stated = dict(flag.split("=", 1) for flag in flags if "=" in flag)
    plain = [flag for flag in flags if "=" not in flag]
    unknown = [flag for flag in plain if flag not in ("in_place", "integer_as_fp32")]
    unknown += [name for name, value in stated.items() if name not in _STATED or not _STATED[name][0].fullmatch(value)]
    members = [group.split(",") for group in match["groups"].split(";")]
    if unknown or not all(rank.isdigit() and len(rank) <= 10 for group in members for rank in group):
        raise UsageError(f"request '{text[:60]}': unreadable {'flag ' + unknown[0] if unknown else 'groups'}")
    return Request(
        kind=parse_kind(match["kind"]),
        dtype=parse_dtype(match["dtype"]),
        count=int(match["count"]),
        groups=tuple(tuple(map(int, group)) for group in members),
        op=None if match["op"] == "-" else parse_op(match["op"]),
        in_place="in_place" in plain,
        integer_as_fp32="integer_as_fp32" in plain,
        **{name: _STATED[name][1](value) for name, value in stated.items()},
    )


def parse_kind(text: str) -> EncOp:
    """Return the collective a name stands for: ours, or nccom-test's short one.

    Raises:
        UsageError: no such collective in this version.
    """
    kind = KIND_SYNONYMS.get(text.lower().replace("-", "_"))
    if kind is None:
        known = ", ".join(KIND_NAMES.values())
        raise UsageError(f"collective '{text[:40]}': expected one of {known} (also allr, allg, redsct)")
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
    if request.kind not in KIND_NAMES:
        raise UsageError(f"collective {request.kind.name}: expected one of {', '.join(KIND_NAMES.values())}")
    ops = {op: name for op, name in OP_NAMES.items() if op is not CceType.FMA or request.kind in SCALED}
    if request.kind in REDUCING and request.op not in ops:
        raise UsageError(f"{KIND_NAMES[request.kind]} needs a reduction: one of {', '.join(ops.values())}")
    if request.kind not in REDUCING and request.op is not None:
        raise UsageError(f"{KIND_NAMES[request.kind]} does not reduce: leave the reduction out")
    if request.in_place and request.kind is not EncOp.ALLREDUCE:
        raise UsageError(f"{KIND_NAMES[request.kind]} cannot be in place: leave in_place out")
    for name, kinds in _BELONGS.items():
        if getattr(request, name) and request.kind not in kinds:
            only = " and ".join(KIND_NAMES[kind] for kind in sorted(kinds))
            them = "leave them out; they are" if name.endswith("s") else "leave it out; it is"
            raise UsageError(f"{KIND_NAMES[request.kind]} takes no {name}: {them} for {only}")


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
    if request.gather_counts and sum(request.gather_counts) != request.count:
        raise UsageError(
            f"gather_counts: they sum to {sum(request.gather_counts)} elements, count says {request.count}"
        )
    if request.counts and request.count != (extent := _extent(request.counts, request.send_displacements)):
        raise UsageError(f"counts: the fullest input has {extent} elements, count says {request.count}")
    if request.output_size > _LARGEST:
        raise UsageError(f"receive_displacements: an output of {request.output_size} bytes, expected at most 1024T")
    if request.kind in SHARDED and not request.gather_counts and request.count % request.ranks:
        raise UsageError(
            f"{KIND_NAMES[request.kind]} of {request.count} elements over {request.ranks} ranks: expected a whole "
            f"number of elements for each rank; the next is {-(-request.count // request.ranks) * request.ranks}"
        )


_BELONGS: Final = {
    "pairs": PAIRED | RINGED,
    "root": ROOTED,
    "scales": SCALED,
    "gather_counts": frozenset({EncOp.ALLGATHER}),
    "counts": frozenset({EncOp.ALLTOALL_V}),
    "send_displacements": frozenset({EncOp.ALLTOALL_V}),
    "receive_displacements": frozenset({EncOp.ALLTOALL_V}),
}
"""The kinds each field is for."""


def _check_pairs(request: Request) -> None:
    name = KIND_NAMES[request.kind]
    if not 0 <= request.root < request.ranks:
        raise UsageError(f"root {request.root}: expected a position in a group of {request.ranks}, from 0")
    if request.kind in PAIRED and not request.pairs:
        raise UsageError(f"{name} needs pairs of a source and a target")
    if not request.pairs:
        return
    check_distinct(request.pairs)
    home = {rank: number for number, group in enumerate(request.groups) for rank in group}
    for source, target in request.pairs:
        if source not in home or home[source] != home.get(target):
            raise UsageError(f"pairs: {source}>{target} leaves its group; expected two ranks of one group")
    if request.kind in PAIRED:
        return
    parts: dict[int, list[tuple[int, int]]] = {}
    for pair in request.pairs:
        parts.setdefault(home[pair[0]], []).append(pair)
    for number in range(len(request.groups)):
        ring = ring_of(parts[number]) if number in parts else None
        if ring is None or len(ring) < request.ranks:
            raise UsageError(f"pairs: those of {name} are no single ring over group {number}; name one, or no pairs")


def _check_scales(request: Request) -> None:
    """Check the scales of an FMA, and hold them to float32."""
    if request.op is not CceType.FMA:
        if request.scales:
            op = "no reduction" if request.op is None else OP_NAMES[request.op]
            raise UsageError(f"{KIND_NAMES[request.kind]} with {op} takes no scales: they are for fma")
        return
    if len(request.scales) not in (1, request.ranks):
        raise UsageError(
            f"scales: {len(request.scales)} for {request.ranks} ranks; fma needs one for each rank, or one for all"
        )
    object.__setattr__(request, "scales", tuple(map(_single, request.scales)))


def _single(scale: float) -> float:
    """Return the float32 nearest to a scale."""
    try:
        if math.isfinite(scale):
            return float(struct.unpack("<f", struct.pack("<f", scale))[0])
    except OverflowError:
        pass
    raise UsageError(f"scale {scale}: expected a finite number that float32 holds")


def _check_pieces(request: Request) -> None:
    """Check the counts and displacements of an all-to-all-v, and the counts of an all-gather."""
    ranks = request.ranks
    if request.gather_counts and len(request.gather_counts) != ranks:
        raise UsageError(f"gather_counts: {len(request.gather_counts)} for {ranks} ranks, expected one for each")
    tables = {name: getattr(request, name) for name in ("counts", "send_displacements", "receive_displacements")}
    for name, table in tables.items():
        if table and (len(table) != ranks or any(len(row) != ranks for row in table)):
            raise UsageError(f"{name}: expected {ranks} lists of {ranks} numbers, a list for each rank")
        if table and not request.counts:
            raise UsageError(f"{name}: they need counts; say how many elements each rank sends to each")
    tables["gather_counts"] = (request.gather_counts,)
    for name, table in tables.items():
        least = min((min(row, default=0) for row in table), default=0)
        if least < 0:
            raise UsageError(f"{name}: {least} is negative, expected 0 or more elements")
    if request.receive_displacements:
        _check_overlaps(request)


def _check_overlaps(request: Request) -> None:
    for member, row in enumerate(_transposed(request.counts)):
        pieces = sorted(piece for piece in _pieces(row, request.receive_displacements[member]) if piece[1])
        for (start, size), (following, _) in pairwise(pieces):
            if start + size > following:
                raise UsageError(
                    f"receive_displacements: two pieces overlap at element {following} of the output of member "
                    f"{member}; leave {start + size - following} more elements between them"
                )


def _pieces(counts: tuple[int, ...], displacements: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(displacements, counts, strict=True)


def _transposed(table: Counts) -> Counts:
    return tuple(zip(*table, strict=True))


def _extent(counts: Counts, displacements: Counts) -> int:
    """Return the elements of the fullest buffer: to the end of its last piece, or of all its pieces packed."""
    if not displacements:
        return max(map(sum, counts))
    rows = zip(counts, displacements, strict=True)
    return max((start + size for row in rows for start, size in _pieces(*row) if size), default=0)
