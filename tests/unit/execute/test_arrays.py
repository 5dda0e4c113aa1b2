"""Executing a schedule on arrays, against an interpreter that carries out one row after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedules import schedules

from rota.compose.ring import compose_ring
from rota.errors import UsageError
from rota.execute.arrays import execute
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED
from rota.schedule.ir import Op, Schedule
from rota.schedule.text import parse

Array = np.ndarray[Any, Any]
DTYPES = [np.dtype(name) for name in ("<f4", "<f2", "<i4", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, "|u1")]
HEAD = "schedule 1\nranks 2\nbuffer input 8 user\nbuffer output 8 user\nbuffer scratch 8\ninput input\noutput output\n"


def slow_execute(schedule: Schedule, inputs: Array, scales: Sequence[float] = ()) -> Array:
    """Run the rows one by one in stored order, element by element in float32, on a dictionary of buffers.

    Args:
        scales: one for each rank.
    """
    dtype = inputs.dtype
    memory = {
        (rank, i): np.zeros(buffer.size, np.uint8)
        for rank in range(schedule.ranks)
        for i, buffer in enumerate(schedule.buffers)
    }
    for rank in range(schedule.ranks):
        memory[rank, schedule.input][:] = np.ascontiguousarray(inputs[rank]).view(np.uint8)
    for row in range(len(schedule)):
        size = int(schedule.rows.size[row])
        parts = [memory[r, b][at : at + size].copy() for r, b, at in _entries(schedule.sources, row)]
        if parts:
            op, values = Op(int(schedule.rows.op[row])), [part.view(dtype) for part in parts]
            places = _entries(schedule.sources, row)
            factors = [scales[r] if b == schedule.input else 1.0 for r, b, _ in places] if op is Op.FMA else []
            value = _combine(op, values, factors)
            for r, b, at in _entries(schedule.targets, row):
                memory[r, b][at : at + size] = value.view(np.uint8)
    return np.stack([memory[rank, schedule.output].view(dtype) for rank in range(schedule.ranks)])


def _entries(table: Any, row: int) -> list[tuple[int, int, int]]:
    entries = range(int(table.ptr[row]), int(table.ptr[row + 1]))
    return [(int(table.rank[e]), int(table.buffer[e]), int(table.offset[e])) for e in entries]


def _combine(op: Op, parts: list[Array], factors: list[float]) -> Array:
    if op is Op.NONE:
        return parts[0]
    if op is Op.FMA:
        sums = parts[0].astype(np.float32) * np.float32(factors[0])
        for part, factor in zip(parts[1:], factors[1:], strict=True):
            sums = sums + part.astype(np.float32) * np.float32(factor)
        return sums.astype(parts[0].dtype)
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        other = part.astype(np.float32)
        total = {Op.ADD: np.add, Op.MAX: np.maximum, Op.MIN: np.minimum}[op](total, other)
    if parts[0].dtype.kind in "iu":
        total = np.minimum(total, np.iinfo(parts[0].dtype).max)  # integers saturate; none here is negative
    return total.astype(parts[0].dtype)


def small(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Return numbers from 1 to 3: every format holds them, no zero has two signs, and sums show which were added."""
    return rng.integers(1, 4, shape).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(schedule=schedules(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_blocks_of_rows_do_what_rows_do(schedule: Schedule, dtype: np.dtype[Any], seed: int) -> None:
    """Running rows in blocks is running them one by one: several sources and targets, all operations, unwritten bytes.

    What was never written is zero.
    """
    elements = schedule.buffers[schedule.input].size // dtype.itemsize
    inputs = small(np.random.default_rng(seed), (schedule.ranks, elements), dtype)
    with np.errstate(over="ignore"):
        expected = slow_execute(schedule, inputs)
    assert execute(schedule, inputs).tobytes() == expected.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    schedule=schedules(),
    dtype=st.sampled_from([dtype for dtype in DTYPES if dtype.kind not in "iu"]),
    scales=st.lists(st.sampled_from([1.0, -0.5, 0.3, 3.0, 7e4]), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_blocks_of_rows_scale_as_rows_do(
    schedule: Schedule, dtype: np.dtype[Any], scales: list[float], seed: int
) -> None:
    """The same where what was added is an fma: whatever stands in an input is scaled, and nothing else."""
    op = np.where(schedule.rows.op == Op.ADD, Op.FMA, schedule.rows.op).astype(np.uint8)
    schedule = replace(schedule, rows=replace(schedule.rows, op=op))
    elements = schedule.buffers[schedule.input].size // dtype.itemsize
    inputs = small(np.random.default_rng(seed), (schedule.ranks, elements), dtype)
    scales = scales[: schedule.ranks]
    with np.errstate(all="ignore"):
        expected = slow_execute(schedule, inputs, scales)
    found = execute(schedule, inputs, scales=scales)
    if np.isnan(expected.astype(float)).any():  # which NaN is another matter
        assert np.array_equal(found.astype(float), expected.astype(float), equal_nan=True)
    else:
        assert found.tobytes() == expected.tobytes()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rings_do_what_their_rows_do(data: st.DataObject) -> None:
    """The same of rings of every kind, with bytes of any value, so that rounding at every hop is the same too."""
    kind = data.draw(st.sampled_from(COMPOSED))
    ranks, channels, groups = (data.draw(st.integers(1, top)) for top in (5, 3, 2))
    dtype = data.draw(st.sampled_from(DTYPES))
    order = st.permutations(range(ranks))
    count = data.draw(st.integers(1, 300)) * (1 if kind is EncOp.ALLREDUCE else ranks)
    schedule = compose_ring(
        [[data.draw(order) for _ in range(groups)] for _ in range(channels)],
        kind=kind,
        size=count * dtype.itemsize,
        op=None if kind is EncOp.ALLGATHER else data.draw(st.sampled_from([CceType.ADD, CceType.MAX, CceType.MIN])),
        slots=3,
        chunk=data.draw(st.sampled_from([64, 2 << 20])),
        in_place=kind is EncOp.ALLREDUCE and data.draw(st.booleans()),
    )
    shape = schedule.ranks, schedule.buffers[schedule.input].size // dtype.itemsize
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    inputs = (rng.random(shape) + 0.5).astype(dtype) if dtype.kind not in "iu" else small(rng, shape, dtype)
    assert execute(schedule, inputs).tobytes() == slow_execute(schedule, inputs).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 3 * 5000, 1 << 17])
def test_an_all_reduce_is_the_sum(dtype: np.dtype[Any], size: int) -> None:
    """Every rank ends with the sum of small integers, which every format adds exactly; pieces large and small."""
    ranks = 4
    schedule = compose_ring(
        [[0, 1, 2, 3], [3, 1, 2, 0]], kind=EncOp.ALLREDUCE, size=size * dtype.itemsize, op=CceType.ADD
    )
    inputs = np.random.default_rng(1).integers(0, 2, (ranks, size)).astype(dtype)
    outputs = execute(schedule, inputs)
    assert outputs.dtype == dtype
    assert (outputs.astype(np.int64) == inputs.astype(np.int64).sum(axis=0)).all()


def test_a_ring_rounds_once_a_hop() -> None:
    """A ring reduce-scatter rounds once per hop: bf16 256 + 1 + 1 + 1 around three hops is 256 (design §2)."""
    inputs = np.zeros((4, 32 * 4), ml_dtypes.bfloat16)
    inputs[:, :32] = np.array([[1], [256], [1], [1]], ml_dtypes.bfloat16)  # chunk 0 starts at rank 1
    schedule = compose_ring([[0, 1, 2, 3]], kind=EncOp.REDUCE_SCATTER, size=256, op=CceType.ADD)
    assert set(execute(schedule, inputs)[0].astype(float).tolist()) == {256.0}
    inputs[:, :32] = np.array([[256], [1], [1], [1]], ml_dtypes.bfloat16)
    assert set(execute(schedule, inputs)[0].astype(float).tolist()) == {260.0}  # 3 + 256 ties to even


def test_inputs_stay_as_they_were() -> None:
    """Executing in place leaves the caller's array alone."""
    schedule = compose_ring([[0, 1]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD, in_place=True)
    inputs = np.ones((2, 16), np.float32)
    assert (execute(schedule, inputs) == 2).all()
    assert (inputs == 1).all()


@pytest.mark.parametrize("spread", ["strided", "transposed", "broadcast", "read-only"])
def test_any_memory_layout(spread: str) -> None:
    """Inputs may be any view: strided, transposed, broadcast or read-only."""
    schedule = compose_ring([[0, 1]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD)
    values = np.arange(16, dtype=np.float32)
    match spread:
        case "strided":
            inputs = np.repeat(np.stack([values, values]), 2, axis=1)[:, ::2]
        case "transposed":
            inputs = np.stack([values, values], axis=1).T
        case "broadcast":
            inputs = np.broadcast_to(values, (2, 16))
        case _:
            inputs = np.stack([values, values])
            inputs.flags.writeable = False
    assert execute(schedule, inputs).tolist() == [(2 * values).tolist()] * 2


@pytest.mark.parametrize("shape", [(2, 15), (2, 17), (1, 16), (3, 16), (32,), (2, 4, 4)])
def test_inputs_that_do_not_fit(shape: tuple[int, ...]) -> None:
    """One row of inputs a rank, of the bytes of the input buffer."""
    schedule = compose_ring([[0, 1]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD)
    with pytest.raises(UsageError, match="expected 2 ranks of 64 bytes"):
        execute(schedule, np.zeros(shape, np.float32))


def scaled(*rows: str, inputs: Any, scales: Any, dtype: Any = np.float32) -> Any:
    """Execute rows with scales on inputs of 8 bytes a rank."""
    return execute(parse(HEAD + "\n".join(rows)), np.array(inputs).astype(dtype), scales=scales).astype(float).tolist()


def test_an_fma_scales_what_it_reads_from_inputs() -> None:
    """A row with op FMA multiplies a source in an input with that rank's scale, and any other with 1. Source: design §2
    (27).
    """
    rows = [
        "0.0 0.0 direct_copy : 1.input+0 -> 0.scratch+0 8 fma",
        "0.0 0.1 direct_copy : 0.input+0 + 0.scratch+0 -> 0.output+0 8 fma",
        "1.0 0.0 direct_copy : 1.input+0 -> 1.scratch+0 8",  # a plain copy scales nothing
        "1.0 0.1 direct_copy : 0.input+0 + 1.scratch+0 -> 1.output+0 8 fma",
    ]
    inputs = [[1, 2], [10, 20]]
    assert scaled(*rows, inputs=inputs, scales=(3, 0.5)) == [[3 + 5, 6 + 10], [3 + 10, 6 + 20]]
    assert scaled(*rows, inputs=inputs, scales=(2,)) == [[2 + 20, 4 + 40], [2 + 10, 4 + 20]]
    sums = [row.replace(" fma", " add") for row in rows]
    assert scaled(*sums, inputs=inputs, scales=(3, 0.5)) == [[11, 22], [11, 22]]


def test_scales_belong_to_positions() -> None:
    """With several groups rank r is at position r mod the number of scales."""
    text = HEAD.replace("ranks 2", "ranks 4")
    rows = [f"{r}.0 0.0 direct_copy : {r}.input+0 -> {r}.output+0 8 fma" for r in range(4)]
    outputs = execute(parse(text + "\n".join(rows)), np.ones((4, 2), np.float32), scales=(3, 5))
    assert outputs[:, 0].tolist() == [3, 5, 3, 5]


def test_an_fma_rounds_its_products_to_float32_and_the_sum_at_the_write() -> None:
    """FMA: float32 multiply, then float32 add; one rounding at the write. Source: design §2 (2)."""
    row = "0.0 0.0 direct_copy : 0.input+0 + 1.input+0 -> 0.output+0 8 fma"
    x = 1 + 2.0**-23
    two = scaled(row, inputs=[[x, x], [-1, -1]], scales=(x, 1))
    assert two[0] == [2.0**-22] * 2  # a fused multiply-add would keep 2^-46 more
    bf16 = scaled(row, inputs=[[256] * 4, [1] * 4], scales=(1, 1.5), dtype=ml_dtypes.bfloat16)
    assert bf16[0] == [258.0] * 4  # 257.5; a product rounded to bf16 first gives the same, a sum of 256 + 1 does not


@pytest.mark.parametrize("how", [Op.FMA, Op.ADD])
def test_large_and_small_pieces_are_scaled_alike(how: Op) -> None:
    """Pieces above and below the size where a loop takes over give the same bits."""
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((2, 4096)).astype(np.float16)
    head = HEAD.replace(" 8", " 8192")
    row = "{r}.0 0.0 direct_copy : {r}.input+{at} + {o}.input+{at} -> {r}.output+{at} {size} {op}"
    whole, parts = (
        [row.format(r=r, o=1 - r, at=at, size=size, op=how.name.lower()) for r in (0, 1) for at in range(0, 8192, size)]
        for size in (8192, 512)
    )
    found = [execute(parse(head + "\n".join(rows)), inputs, scales=(0.3, -7)) for rows in (whole, parts)]
    assert found[0].tobytes() == found[1].tobytes()
    scales = np.array([0.3, -7], np.float32)[:, None] if how is Op.FMA else np.ones((2, 1), np.float32)
    wide = inputs.astype(np.float32) * scales
    assert found[0][0].tobytes() == (wide[0] + wide[1]).astype(np.float16).tobytes()


@pytest.mark.parametrize("scales", [(), (1, 2, 3)])
def test_rows_that_scale_need_scales(scales: tuple[float, ...]) -> None:
    """Without scales, or with those of other groups, FMA is refused, not taken for something else."""
    schedule = parse(HEAD + "0.0 0.0 recv_reduce_copy : 0.input+0 + 1.input+0 -> 0.output+0 8 fma\n")
    with pytest.raises(UsageError, match=f"^{len(scales)} scales: a schedule of 2 ranks with FMA rows needs one"):
        execute(schedule, np.zeros((2, 2), np.float32), scales=scales)


def test_rows_read_before_they_write() -> None:
    """A row that copies its source to two places and one that reads what the first wrote: the order is the queue's."""
    rows = [
        "0.0 0.0 direct_copy : 0.input+0 -> 0.output+0 + 1.scratch+0 8",
        "0.0 0.1 direct_copy : 1.scratch+0 -> 1.output+0 8",
    ]
    inputs = np.array([[1, 2], [3, 4]], np.float32)
    assert execute(parse(HEAD + "\n".join(rows)), inputs).tolist() == [[1, 2], [1, 2]]


def test_what_no_row_writes_is_zero() -> None:
    """Internal buffers and outputs start as zeros, so that two runs give the same."""
    schedule = parse(HEAD + "0.0 0.0 direct_copy : 0.scratch+0 -> 0.output+0 8\n")
    assert execute(schedule, np.ones((2, 2), np.float32)).tolist() == [[0, 0], [0, 0]]
    assert execute(replace(schedule, output=schedule.input), np.ones((2, 2), np.float32)).tolist() == [[1, 1], [1, 1]]
