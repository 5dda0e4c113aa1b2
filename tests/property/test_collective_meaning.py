"""What every collective means, stated in independent places that must agree.

The proof of a schedule (verify), carrying it out (execute) and the float64 golden each have a statement of their own.
Here is a fourth, as slow and plain as possible: the pieces every output is made of. Schedules written straight from it
are right everywhere; with one mistake planted they are wrong in the proof exactly where they are wrong in the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.row_by_row import run_rows

from rota.errors import VerifyError
from rota.execute.arrays import execute
from rota.execute.golden import measure
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.request import PAIRED, Request, along
from rota.schedule.ir import Schedule
from rota.schedule.text import parse
from rota.verify import find_data

Array = np.ndarray[Any, Any]
Place = tuple[int, str, int]  # rank, buffer, offset in bytes
KINDS = [kind for kind in EncOp if kind is not EncOp.INVALID]
SHIFTS = (EncOp.PERMUTE_IMPLICIT, EncOp.PERMUTE_REDUCE_IMPLICIT)
ITEM = 4  # bytes of the elements used here
SCALES = (-1.0, 0.5, 2.0, 3.0, 4.0, -2.0)  # none is 1, and all are exact
OP_TEXT = {None: "", CceType.ADD: "add", CceType.FMA: "fma"}


@dataclass(frozen=True)
class Piece:
    """Bytes of one output, and the bytes of inputs that combine to them."""

    target: int
    offset: int
    sources: list[tuple[int, int]]  # rank and offset
    size: int


@dataclass(frozen=True)
class Row:
    """One movement of a schedule."""

    op: str
    sources: list[Place]
    targets: list[Place]
    size: int


# --- the plain statement ----------------------------------------------------------------------------------------------


def pieces(request: Request) -> list[Piece]:  # noqa: PLR0912  one branch a kind, as plain as possible
    """Return what every output is made of; an output byte in no piece is nobody's."""
    size, item, out = request.count * request.itemsize, request.itemsize, []
    for number, group in enumerate(request.groups):
        ranks = [number * len(group) + i for i in range(len(group))]
        everyone = [(rank, 0) for rank in ranks]
        shard = size // len(ranks)
        match request.kind:
            case EncOp.ALLREDUCE:
                out += [Piece(rank, 0, everyone, size) for rank in ranks]
            case EncOp.REDUCE:
                out += [Piece(ranks[request.root], 0, everyone, size)]
            case EncOp.REDUCE_SCATTER:
                for i, rank in enumerate(ranks):
                    out += [Piece(rank, 0, [(other, i * shard) for other in ranks], shard)]
            case EncOp.BROADCAST:
                out += [Piece(rank, 0, [(ranks[request.root], 0)], size) for rank in ranks]
            case EncOp.ALLGATHER:
                given_ = request.gather_counts or [shard // item] * len(ranks)
                for rank in ranks:
                    at = 0
                    for other, count in zip(ranks, given_, strict=True):
                        out += [Piece(rank, at, [(other, 0)], count * item)]
                        at += count * item
            case EncOp.ALLTOALL:
                for i, rank in enumerate(ranks):
                    for k, other in enumerate(ranks):
                        out += [Piece(rank, k * shard, [(other, i * shard)], shard)]
            case EncOp.ALLTOALL_V:
                out += exchanged(request, ranks)
            case EncOp.SEND | EncOp.RECV:
                out += [Piece(ranks[1] if len(ranks) > 1 else ranks[0], 0, [(ranks[0], 0)], size)]
            case _:
                neighbours = zip(group, group[1:] + group[:1], strict=True)
                for source, target in request.pairs or neighbours:
                    if source in group:
                        here, there = ranks[group.index(source)], ranks[group.index(target)]
                        two = request.kind in (EncOp.PERMUTE_REDUCE, EncOp.PERMUTE_REDUCE_IMPLICIT)
                        out += [Piece(there, 0, [(here, 0), (here, size)] if two else [(here, 0)], size)]
    return [piece for piece in out if piece.size]


def exchanged(request: Request, ranks: list[int]) -> list[Piece]:
    """Return the pieces of an all-to-all-v: packed in order, or where its displacements say."""
    sent, item = request.sent, request.itemsize
    out, landed = [], [0] * len(ranks)
    for i, rank in enumerate(ranks):
        left = 0
        for j, other in enumerate(ranks):
            leave = request.send_displacements[i][j] if request.send_displacements else left
            land = request.receive_displacements[j][i] if request.receive_displacements else landed[j]
            out += [Piece(other, land * item, [(rank, leave * item)], sent[i][j] * item)]
            left += sent[i][j]
            landed[j] += sent[i][j]
    return out


# --- schedules straight from it ---------------------------------------------------------------------------------------


def direct(request: Request) -> list[Row]:
    """Read every source where it lies."""
    op = OP_TEXT[request.op]
    return [
        Row(op, [(r, "input", at) for r, at in piece.sources], [(piece.target, "output", piece.offset)], piece.size)
        for piece in pieces(request)
    ]


def staged(request: Request) -> list[Row]:
    """Bring every source to the scratch of its target first; an fma scales it on the way, and then adds partials."""
    op, rows, last = OP_TEXT[request.op], [], []
    used: dict[int, int] = {}
    for piece in pieces(request):
        slots = []
        for r, at in piece.sources:
            slot = (piece.target, "scratch", used.get(piece.target, 0))
            used[piece.target] = slot[2] + piece.size
            rows.append(Row("fma" if op == "fma" else "", [(r, "input", at)], [slot], piece.size))
            slots.append(slot)
        end = "input" if request.in_place else "output"
        last.append(Row(op if len(slots) > 1 else "", slots, [(piece.target, end, piece.offset)], piece.size))
    return rows + last


def schedule(request: Request, rows: list[Row]) -> Schedule:
    """Return the schedule of these rows, in this order."""
    scratch = max((at + row.size for row in rows for _, name, at in row.targets if name == "scratch"), default=ITEM)
    head = ["schedule 1", f"ranks {len(request.members)}", f"buffer input {request.input_size} user"]
    head += [] if request.in_place else [f"buffer output {request.output_size} user"]
    head += [f"buffer scratch {scratch}", "input input", f"output {'input' if request.in_place else 'output'}"]
    for step, row in enumerate(rows):
        sources, targets = (" + ".join(f"{r}.{name}+{at}" for r, name, at in e) for e in (row.sources, row.targets))
        head.append(f"{row.targets[0][0]}.0 0.{step} direct_copy : {sources} -> {targets} {row.size} {row.op}".strip())
    return parse("\n".join(head) + "\n")


# --- cases ------------------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn, kind: EncOp, *, op: CceType | None = None) -> Request:
    """A small request of a kind with all it may have; what reduces, with `op` or any exact reduction."""
    ranks, groups = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    members = draw(st.permutations(range(ranks * groups)))
    group = tuple(tuple(members[g * ranks : (g + 1) * ranks]) for g in range(groups))
    each = draw(st.integers(1, 4))
    said: dict[str, Any] = {"count": each, "groups": group, "dtype": Dtype.INT32}
    if kind in (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL):
        said["count"] = each * ranks
    if kind in REDUCING:
        said |= {"dtype": Dtype.FP32, "op": op or CceType.ADD}
    if kind in (EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER) and op is None and draw(st.booleans()):
        scales = draw(st.permutations(SCALES))[: draw(st.sampled_from([1, ranks]))]
        said |= {"op": CceType.FMA, "scales": tuple(scales)}
    if kind is EncOp.ALLREDUCE:
        said["in_place"] = draw(st.booleans())
    if kind in (EncOp.BROADCAST, EncOp.REDUCE):
        said["root"] = draw(st.integers(0, ranks - 1))
    if kind in PAIRED:
        targets = [draw(st.permutations(one)) for one in group]
        pairs = [pair for one, to in zip(group, targets, strict=True) for pair in zip(one, to, strict=True)]
        said["pairs"] = tuple(pairs[: draw(st.integers(1, len(pairs)))])
    if kind is EncOp.ALLTOALL_V and draw(st.booleans()):
        said |= draw(exchanges(ranks))
    if kind is EncOp.ALLGATHER and draw(st.booleans()):
        given_ = draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks).filter(any))
        said |= {"gather_counts": tuple(given_), "count": sum(given_)}
    request = Request(kind, **said)
    if kind in SHIFTS and draw(st.booleans()):
        return along(request, tuple(tuple(draw(st.permutations(one))) for one in group))
    return request


@st.composite
def exchanges(draw: st.DrawFn, ranks: int) -> dict[str, Any]:
    """Counts of an all-to-all-v, packed or apart."""
    row = st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks).filter(any).map(tuple)
    counts = tuple(draw(st.lists(row, min_size=ranks, max_size=ranks)))
    if draw(st.booleans()):
        return {"counts": counts, "count": max(map(sum, counts))}
    apart = st.permutations(range(ranks)).map(lambda order: tuple(4 * at for at in order))
    leave, land = (tuple(draw(st.lists(apart, min_size=ranks, max_size=ranks))) for _ in range(2))
    ends = [at + n for ats, row in zip(leave, counts, strict=True) for at, n in zip(ats, row, strict=True) if n]
    return {"counts": counts, "count": max(ends), "send_displacements": leave, "receive_displacements": land}


def inputs_of(request: Request, seed: int) -> Array:
    """Return whole numbers, none of them 0, whose scaled sums float32 holds exactly and that rarely meet by chance."""
    shape = (len(request.members), request.input_size // ITEM)
    return np.random.default_rng(seed).integers(1, 1 << 18, shape).astype(numpy_dtype(request.dtype))


def wrong_in_numbers(request: Request, plan: Schedule, seed: int) -> bool:
    """Carry a schedule out and say whether an output is not what the golden asks, or has bytes for which none ask.

    It runs row by row in stored order, which is what the proof of data looks at: a mistake may leave rows of two ranks
    without an order, and then another execution gives other numbers.
    """
    inputs = inputs_of(request, seed)
    outputs = run_rows(plan, inputs, scales=request.scales)
    found = measure(request, inputs, outputs)
    free = np.ones(outputs.shape, np.bool_)
    for piece in pieces(request):
        free[piece.target, piece.offset // ITEM : (piece.offset + piece.size) // ITEM] = False
    return found.max_ulp != 0 or found.ranks_identical is False or bool(outputs[free].any())


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_schedule_written_from_the_meaning_is_right_everywhere(kind: EncOp, data: st.DataObject) -> None:
    """Pulled directly or through scratch, every kind is proved, and its numbers are those of the golden."""
    request = data.draw(requests(kind))
    ways = [staged] if request.in_place else [direct, staged]
    for way in ways:
        plan = schedule(request, way(request))
        seed = data.draw(st.integers(0, 99))
        assert find_data(plan, request) == []
        assert not wrong_in_numbers(request, plan, seed)
        assert (
            measure(
                request, inputs_of(request, seed), execute(plan, inputs_of(request, seed), scales=request.scales)
            ).max_ulp
            == 0
        )


def any_row(row: Row) -> bool:
    """Say that any row can have it."""
    return row.size > 0


MISTAKES: Final[Mapping[str, Callable[[Row], bool]]] = {
    "drop row": any_row,
    "drop source": lambda row: len(row.sources) > 1,
    "repeat source": lambda row: row.op != "",
    "source rank": any_row,
    "source offset": any_row,
    "target rank": any_row,
    "target offset": any_row,
    "size": any_row,
    "swap rows": any_row,
    "merge rows": any_row,
    "finish early": any_row,
    "operation": lambda row: row.op != "",
}
"""What can be wrong with a row, and the rows that can have it."""


def mistaken(rows: list[Row], mistake: str, data: st.DataObject, ranks: int) -> list[Row]:
    """Return the rows with one mistake, of which there is one that can have it."""
    at = data.draw(st.sampled_from([at for at, row in enumerate(rows) if MISTAKES[mistake](row)]))
    row = rows[at]
    source = data.draw(st.integers(0, len(row.sources) - 1))
    rank, name, offset = row.targets[0] if mistake.startswith(("target", "merge")) else row.sources[source]
    if mistake.endswith("rank"):
        moved = ((rank + data.draw(st.integers(1, 3))) % ranks, name, offset)
    else:
        moved = (rank, name, offset + data.draw(st.sampled_from([-ITEM] * (offset > 0) + [ITEM, 2 * ITEM])))
    match mistake:
        case "drop row":
            return rows[:at] + rows[at + 1 :]
        case "swap rows":
            other = data.draw(st.integers(0, len(rows) - 1))
            return [rows[{at: other, other: at}.get(i, i)] for i in range(len(rows))]
        case "finish early":  # in place, what a rank has finished is then read by the next
            return sorted(rows, key=lambda one: one.targets[0][0])
        case "merge rows":  # with the row that goes on where this one ends, whatever it reads
            end = (rank, name, offset + row.size)
            after = [other for other in rows if other.targets == [end]]
            row = replace(row, size=row.size + sum(other.size for other in after))
            return [row if i == at else other for i, other in enumerate(rows) if other not in after]
        case "drop source":
            row = replace(row, sources=row.sources[:source] + row.sources[source + 1 :])
        case "repeat source":
            row = replace(row, sources=[*row.sources, row.sources[source]])
        case "source rank" | "source offset":
            row = replace(row, sources=[*row.sources[:source], moved, *row.sources[source + 1 :]])
        case "target rank" | "target offset":
            row = replace(row, targets=[moved])
        case "size":
            row = replace(
                row, size=row.size + data.draw(st.sampled_from([-ITEM] * (row.size > ITEM) + [ITEM, 2 * ITEM]))
            )
        case _:
            several = len(row.sources) > 1
            row = replace(row, op="max" if several and row.op == "add" else "add" if several else "")
    return [*rows[:at], row, *rows[at + 1 :]]


@pytest.mark.parametrize("mistake", MISTAKES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_planted_mistake_is_wrong_in_the_proof_where_it_is_in_the_numbers(mistake: str, data: st.DataObject) -> None:
    """With one mistake a schedule is refused by the proof exactly if executing it gives something else than asked."""
    kinds = KINDS if MISTAKES[mistake](Row("", [(0, "", 0)], [], 2 * ITEM)) else sorted(REDUCING)
    request = data.draw(st.sampled_from(kinds).flatmap(requests))
    rows = (staged if request.in_place or data.draw(st.booleans()) else direct)(request)
    assume(any(map(MISTAKES[mistake], rows)))
    try:
        plan = schedule(request, mistaken(rows, mistake, data, len(request.members)))
    except VerifyError:  # outside a buffer
        return
    assert bool(find_data(plan, request)) == wrong_in_numbers(request, plan, data.draw(st.integers(0, 99)))
