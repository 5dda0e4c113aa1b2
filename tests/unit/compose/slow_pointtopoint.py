"""What sends, permutes and chains leave on every rank, as plain loops over ranks and steps: slow, clear, and held equal
to what is composed. Source: compose §5, §9; the windows of the channels, select §8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rota.compose.pointtopoint import implicit_pairs
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import load_platform
from rota.native.arithmetic import Combine, fold
from rota.request import RINGED, Request
from rota.schedule.ir import Schedule
from rota.select import Plan, Settings, select
from rota.verify import verify

Array = Any
HOW = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}
REFUSED = frozenset({EncOp.PERMUTE_REDUCE, EncOp.BROADCAST, EncOp.REDUCE})


def moved(request: Request, data: Array, pairs: Sequence[tuple[int, int]]) -> Array:
    """What every member ends with when each pair's source delivers its operand, or both combined; else zero."""
    number = {rank: at for at, rank in enumerate(request.members)}
    out = np.zeros((len(number), request.count), data.dtype)
    for source, target in pairs:
        given = data[number[source]]
        if request.op is not None:
            given = fold(HOW[request.op], [given[: request.count], given[request.count :]])
        out[number[target]] = given
    return out


def windows(size: int, channels: int, chunk: int) -> list[tuple[int, int, int]]:
    """(channel, first, last) byte of every window: full chunks, the last pass shares the rest in steps of 64 bytes."""
    found, at = [], 0
    while at < size:
        each = chunk
        if size - at < channels * chunk:
            each = 64
            while each * channels < size - at:
                each += 64
        for channel in range(channels):
            first, last = min(at + channel * each, size), min(at + (channel + 1) * each, size)
            found.append((channel, first, last))
        at += channels * each
    return found


def chained(plan: Plan, data: Array) -> Array:
    """What every member ends with after a broadcast or a reduce around the rings of a plan; else zero."""
    request = plan.request
    out = np.zeros((len(request.members), request.count), data.dtype)
    for g, group in enumerate(request.groups):
        rows = data[g * request.ranks : (g + 1) * request.ranks]
        if request.kind is EncOp.BROADCAST:
            for position in range(request.ranks):
                out[g * request.ranks + position] = rows[request.root]
            continue
        rings = [list(channel.order) for channel in plan.wirings[g].channels] or [[group[0]]]
        for channel, first, last in windows(request.size, len(rings), plan.settings.chunk):
            ring, root = rings[channel], group[request.root]
            part = slice(first // request.itemsize, last // request.itemsize)
            place = ring.index(root)
            order = [group.index(ring[(place + i) % len(ring)]) for i in range(1, len(ring) + 1)]
            total = rows[order[0]][part]
            for member in order[1:]:
                total = fold(HOW[request.op or CceType.ADD], [total, rows[member][part]])
            out[g * request.ranks + request.root][part] = total
    return out


# --- cases ------------------------------------------------------------------------------------------------------------


def plan(
    name: str,
    groups: Sequence[Sequence[int]],
    kind: EncOp,
    count: int,
    *,
    nodes: int = 1,
    lnc: int | None = None,
    dtype: Dtype = Dtype.BFLOAT16,
    settings: Settings | None = None,
    **other: Any,
) -> Plan:
    """Return the decision for a request; one that SELECT refuses gets the plan of a shift along the ring."""
    platform = load_platform(name, nodes=nodes, lnc=lnc)
    whole = tuple(map(tuple, groups))
    request = Request(kind, dtype, count, whole, integer_as_fp32=dtype is Dtype.INT32, **other)
    if kind not in REFUSED:
        return select(request, platform, settings or Settings(), any_group=True)
    stand_in = Request(EncOp.PERMUTE_IMPLICIT, dtype, count, whole)
    return replace(select(stand_in, platform, settings or Settings(), any_group=True), request=request)


def data_of(request: Request, members: int, seed: int = 0) -> Array:
    """Values whose sums round, of every rank; integers are small."""
    random = np.random.default_rng(seed)
    shape = (members, request.input_size // request.itemsize)
    dtype = np.dtype(numpy_dtype(request.dtype))
    if dtype.kind in "iu":
        return random.integers(-99, 99, shape).astype(dtype)
    return random.normal(size=shape).astype(np.float32).astype(dtype)


def check(schedule: Schedule, asked: Plan, want: Array) -> None:
    """Prove a schedule, order and data, and hold what it leaves equal to a reference, bit for bit."""
    request = asked.request
    if request.kind in RINGED:
        request = replace(request, pairs=implicit_pairs(asked))
    verify(schedule, request)
    got = execute(schedule, data_of(request, schedule.ranks))
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


def own_names(schedule: Schedule) -> list[tuple[int, ...]]:
    """(rank, queue, leg, step, part) of every row: by it a device knows a row."""
    rows = schedule.rows
    columns = (rows.rank, rows.queue, rows.leg, rows.step, rows.part)
    return list(zip(*(column.tolist() for column in columns), strict=True))
