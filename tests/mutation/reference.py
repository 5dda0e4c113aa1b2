"""The data proof written as slowly and plainly as possible: one Python value for each byte, one row after another.

A byte's value is (group, offset, members): whose input, where in it, and the set of members that contributed. `SPOILED`
stands for bytes already reported, so that what follows from them is not reported again.
"""

from __future__ import annotations

from typing import Any

from rota.isa.enums import EncOp
from rota.request import Request
from rota.schedule.ir import Op, Schedule

SPOILED = "spoiled"
Place = tuple[int, int, int]
Memory = dict[Place, Any]
Found = set[tuple[str, int]]


def wrong_data(schedule: Schedule, request: Request, *, grain: int = 1) -> Found:
    """Return what is wrong as (kind, row), row -1 for what is wrong at the end.

    Args:
        grain: bytes that one value stands for; every size and offset must be a multiple of it.
    """
    memory = {
        (rank, schedule.input, offset): (rank // request.ranks, offset, frozenset([rank % request.ranks]))
        for rank in range(schedule.ranks)
        for offset in range(0, request.input_size, grain)
    }
    asked = Op.NONE if request.op is None else Op[request.op.name]
    found: Found = set()
    for row in range(len(schedule)):
        sources, targets = _places(schedule.sources, row), _places(schedule.targets, row)
        if len(sources) > 1 and schedule.rows.op[row] != asked:
            found.add(("operation", row))
        if not schedule.in_place and any(buffer == schedule.input for _, buffer, _ in targets):
            found.add(("overwritten", row))
        found |= {
            (kind, row) for kind in _move(memory, sources, targets, range(0, int(schedule.rows.size[row]), grain))
        }
    return found | _outputs(schedule, request, grain, memory)


def _move(memory: Memory, sources: list[Place], targets: list[Place], steps: range) -> set[str]:
    """Carry out one row; return what is wrong with it."""
    kinds: set[str] = set()
    written = {}
    for at in steps:
        value = _fold([memory.get((rank, buffer, offset + at)) for rank, buffer, offset in sources], kinds)
        written |= {(rank, buffer, offset + at): value for rank, buffer, offset in targets}
    memory |= written
    return kinds


def _fold(values: list[Any], kinds: set[str]) -> Any:
    if None in values:
        kinds.add("uninitialised")
        return SPOILED
    total = values[0]
    for value in values[1:]:
        if SPOILED in (total, value):
            return SPOILED
        if total[:2] != value[:2]:
            kinds.add("chunk")
            return SPOILED
        if total[2] & value[2]:
            kinds.add("doubled")
        total = (*total[:2], total[2] | value[2])
    return total


def _places(table: Any, row: int) -> list[Place]:
    entries = range(int(table.ptr[row]), int(table.ptr[row + 1]))
    return [(int(table.rank[e]), int(table.buffer[e]), int(table.offset[e])) for e in entries]


def _outputs(schedule: Schedule, request: Request, grain: int, memory: Memory) -> Found:
    everyone = frozenset(range(request.ranks))
    found: Found = set()
    for rank in range(schedule.ranks):
        group, member = divmod(rank, request.ranks)
        for offset in range(0, request.output_size, grain):
            value = memory.get((rank, schedule.output, offset))
            match request.kind:
                case EncOp.ALLGATHER:
                    wanted = (group, offset % request.share, frozenset([offset // request.share]))
                case EncOp.REDUCE_SCATTER:
                    wanted = (group, member * request.share + offset, everyone)
                case EncOp.ALLTOALL:
                    source, within = divmod(offset, request.share)
                    wanted = (group, member * request.share + within, frozenset([source]))
                case EncOp.PERMUTE:
                    source = next(a for a, b in request.pairs if b == request.groups[group][member])
                    wanted = (group, offset, frozenset([request.groups[group].index(source)]))
                case _:
                    wanted = (group, offset, everyone)
            if value not in (SPOILED, wanted):
                found.add(("output", -1))
    return found
