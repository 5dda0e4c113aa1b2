"""The vectorised data proof and the slow reference say the same, on schedules that are right and on broken ones."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mutation.mutants import Edit, build, mutants
from tests.mutation.reference import wrong_data

from rota.compose.ring import compose_ring
from rota.errors import VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED, Request
from rota.schedule.ir import Checks, Op, Places, Rows, Schedule
from rota.verify import find_data

MOST = 8  # findings of one kind that find_data returns
PHRASES = {
    "reads": r"row (\d+) .*(?:, which no earlier row writes|combines a wrong chunk: .*|doubled: it reads .*)",
    "operation": r"row (\d+) .* has the wrong operation .*",
    "overwritten": r"row (\d+) .* overwrites the input .*",
    "output": r"rank (\d+) .* (?:is never written;|comes from|too much:|lost) .*",
}


def said(findings: list[str]) -> dict[str, set[int]]:
    """Sort findings by what they are about, and give the rows they name."""
    out: dict[str, set[int]] = {name: set() for name in PHRASES}
    for finding in findings:
        name = next(name for name, pattern in PHRASES.items() if re.fullmatch(pattern, finding))
        match = re.match(r"row (\d+)", finding)
        out[name].add(int(match[1]) if match else -1)
    return out


def assert_agreement(schedule: Schedule, request: Request, grain: int = 1) -> None:
    """Both find the same rows wrong, and both or neither an output."""
    slow: dict[str, set[int]] = {name: set() for name in PHRASES}
    for kind, row in wrong_data(schedule, request, grain=grain):
        slow[kind if kind in slow else "reads"].add(row)
    fast = said(find_data(schedule, request))
    for name, rows in slow.items():
        assert fast[name] == set(sorted(rows)[:MOST]), name


@st.composite
def rings(draw: st.DrawFn) -> tuple[Schedule, Request]:
    """A small ring collective of any kind, odd sizes and several groups included."""
    ranks, channels, groups = draw(st.integers(1, 5)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kind = draw(st.sampled_from(COMPOSED))
    orders = [[draw(st.permutations(range(ranks))) for _ in range(groups)] for _ in range(channels)]
    count = draw(st.integers(1, 150)) * (1 if kind is EncOp.ALLREDUCE else ranks)
    halves = draw(st.integers(1, 2))
    request = Request(
        kind,
        draw(st.sampled_from([Dtype.FP8_EXP5, Dtype.BFLOAT16])),
        count,
        tuple(tuple(range(g * ranks, (g + 1) * ranks)) for g in range(groups)),
        None if kind is EncOp.ALLGATHER else draw(st.sampled_from([CceType.ADD, CceType.MAX])),
        in_place=kind is EncOp.ALLREDUCE and draw(st.booleans()),
    )
    schedule = compose_ring(
        orders,
        kind=kind,
        size=request.size,
        op=request.op,
        slots=draw(st.integers(halves + 1, 4)),
        halves=halves,
        chunk=64,
        in_place=request.in_place,
    )
    return schedule, request


@settings(max_examples=60, deadline=None)
@given(ring=rings())
def test_rings_are_right_by_both(ring: tuple[Schedule, Request]) -> None:
    """A composed ring leaves every contribution once, says the proof and says the reference."""
    schedule, request = ring
    assert wrong_data(schedule, request) == set()
    assert find_data(schedule, request) == []


@settings(max_examples=150, deadline=None)
@given(ring=rings(), data=st.data())
def test_broken_rings_are_wrong_alike(ring: tuple[Schedule, Request], data: st.DataObject) -> None:
    """After up to three edits of places, operations and order, both find the same rows wrong."""
    schedule, request = ring
    for _ in range(data.draw(st.integers(1, 3))):
        edit = data.draw(st.sampled_from([_move_place, _move_place, _change_operation, _swap_targets, _drop_source]))
        try:
            schedule = edit(schedule, data.draw)
        except VerifyError:
            return
    assert_agreement(schedule, request)


def _move_place(schedule: Schedule, draw: st.DrawFn) -> Schedule:
    """Let one source or target lie elsewhere, at any byte."""
    name = draw(st.sampled_from(["sources", "targets"]))
    table = getattr(schedule, name)
    if not table.offset.size:
        return schedule
    entry = draw(st.integers(0, table.offset.size - 1))
    size = int(schedule.rows.size[np.searchsorted(table.ptr, entry, side="right") - 1])
    rank, buffer, offset = table.rank.copy(), table.buffer.copy(), table.offset.copy()
    if draw(st.booleans()):
        rank[entry] = draw(st.integers(0, schedule.ranks - 1))
    if draw(st.booleans()):
        buffer[entry] = draw(st.integers(0, len(schedule.buffers) - 1))
    if draw(st.booleans()):
        offset[entry] = draw(st.integers(0, max(0, schedule.buffers[buffer[entry]].size - size)))
    return replace(schedule, **{name: Places(table.ptr, rank, buffer, offset)}, checks=Checks.UNBALANCED)


def _change_operation(schedule: Schedule, draw: st.DrawFn) -> Schedule:
    op = schedule.rows.op.copy()
    op[draw(st.integers(0, len(schedule) - 1)) if op.size else []] = Op.MIN
    columns = {name: getattr(schedule.rows, name) for name in Rows.__slots__} | {"op": op}
    return replace(schedule, rows=Rows(**columns), checks=Checks.UNBALANCED)


def _swap_targets(schedule: Schedule, draw: st.DrawFn) -> Schedule:
    """Let two entries of the targets change places."""
    table = schedule.targets
    if not table.offset.size:
        return schedule
    order = np.arange(table.offset.size)
    one, other = draw(st.integers(0, order.size - 1)), draw(st.integers(0, order.size - 1))
    order[[one, other]] = order[[other, one]]
    targets = Places(table.ptr, table.rank[order], table.buffer[order], table.offset[order])
    return replace(schedule, targets=targets, checks=Checks.UNBALANCED)


def _drop_source(schedule: Schedule, draw: st.DrawFn) -> Schedule:
    sources = [mutant for mutant in mutants(schedule) if mutant.edit is Edit.DROP_SOURCE]
    return build(schedule, draw(st.sampled_from(sources))) if sources else schedule
