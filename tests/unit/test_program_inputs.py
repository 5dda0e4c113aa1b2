"""Inputs of a program: exact all the way through what one collective leaves to the next, and there for every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rota.columns import Array
from rota.errors import UnsupportedError
from rota.execute.golden import make_exact_inputs, perform
from rota.isa.dtypes import REDUCIBLE, Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.image import BufferUse
from rota.machine.platform import load_platform
from rota.meaning import Asked, golden_program, make_program_inputs
from rota.pipeline import How, prove
from rota.program import load_program, steps_of
from rota.request import Groups, Request

RANKS = tuple(range(8))
ALL: Groups = (RANKS,)


def request(
    kind: EncOp = EncOp.ALLREDUCE,
    dtype: Dtype = Dtype.BFLOAT16,
    *,
    groups: Groups = ALL,
    op: CceType | None = CceType.ADD,
    scales: tuple[float, ...] = (),
) -> Request:
    return Request(kind, dtype, 128, groups, op, scales=scales)


@pytest.mark.parametrize("dtype", sorted(REDUCIBLE))
def test_exact_inputs_are_not_all_zero(dtype: Dtype) -> None:
    """Every type has whole numbers that eight ranks can add exactly, bf16 with its huge largest number too."""
    inputs = make_exact_inputs(request(dtype=dtype), np.random.default_rng(0)).astype(np.float64)
    assert np.count_nonzero(inputs) >= inputs.size // 8
    assert not (inputs % 1).any()


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32])
def test_exact_inputs_take_every_value_about_as_often(dtype: Dtype) -> None:
    """A move that mistakes one element for another is then seen, whichever two they are, nearly always."""
    asked = Request(EncOp.ALLREDUCE, dtype, 4096, ((0, 1, 2, 3),), CceType.MAX)
    values, often = np.unique(make_exact_inputs(asked, np.random.default_rng(0)).astype(int), return_counts=True)
    assert values.tolist() == list(range(-9, 10))
    assert often.max() < 1.5 * often.min()


def added(parts: Sequence[Array], scales: Sequence[float], order: Array) -> Array:
    """Return the sum in one order, rounded to the type after each addition, as a ring does."""
    dtype = parts[0].dtype
    total = np.zeros(parts[0].shape, np.float32).astype(dtype)
    for i in order.tolist():
        term = parts[i].astype(np.float32) * np.float32(scales[i])
        total = (total.astype(np.float32) + term.astype(dtype).astype(np.float32)).astype(dtype)
    return total


@pytest.mark.parametrize("dtype", sorted(REDUCIBLE))
@pytest.mark.parametrize("scales", [(1.0,), (0.1, 0.3, 7.7, 2.0, 1.0, -0.7, 3.0, 0.5)])
def test_scales_keep_them_exact(dtype: Dtype, scales: tuple[float, ...]) -> None:
    """A scaled sum of exact inputs has one value, whatever the order, also with scales that are no whole numbers."""
    asked = request(dtype=dtype, op=CceType.FMA, scales=scales)
    inputs = make_exact_inputs(asked, np.random.default_rng(1))
    want = perform(asked, inputs)[0]
    rng = np.random.default_rng(2)
    for _ in range(3):
        got = added(list(inputs), np.resize(asked.scales, 8).tolist(), rng.permutation(8))
        assert np.array_equal(got.astype(np.float32), want.astype(np.float32))


PROGRAMS = {
    "sums": [(EncOp.ALLREDUCE, CceType.ADD)] * 3,
    "a gather, then sums": [(EncOp.ALLGATHER, None), (EncOp.ALLREDUCE, CceType.ADD), (EncOp.ALLREDUCE, CceType.ADD)],
    "a sum, then the largest": [(EncOp.ALLREDUCE, CceType.ADD), (EncOp.ALLREDUCE, CceType.MAX)],
}


def program(name: str, dtype: Dtype) -> list[Asked]:
    """Return collectives each of which reads what the one before wrote."""
    return [Asked(request(kind, dtype, op=op), f"t{i}", f"t{i + 1}") for i, (kind, op) in enumerate(PROGRAMS[name])]


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.FP16, Dtype.FP8_EXP4, Dtype.FP8_EXP5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_goes_on_stays_exact(name: str, dtype: Dtype) -> None:
    """Every sum of a program has one value, whatever the order, though sums of sums grow."""
    asked = program(name, dtype)
    inputs = make_program_inputs(asked, RANKS, 5, exact=True)
    want = golden_program(asked, RANKS, inputs)
    memory = dict(inputs)
    rng = np.random.default_rng(0)
    for each in asked:
        given = memory[each.input].view(numpy_dtype(dtype))
        if each.request.op is CceType.ADD:
            memory[each.output] = np.stack([added(list(given), [1.0] * 8, rng.permutation(8)) for _ in RANKS])
        else:
            memory[each.output] = perform(each.request, given)
        assert np.array_equal(memory[each.output].view(np.uint8), want[each.output])
    assert any(value.any() for value in inputs.values()) or dtype in (Dtype.FP8_EXP4, Dtype.FP8_EXP5)


def test_bits_read_as_numbers_are_zero() -> None:
    """Bytes that were moved as another type are no numbers to add: they are 0, and everything is exact."""
    asked = [
        Asked(Request(EncOp.ALLGATHER, Dtype.UINT16, 128, ALL), "a", "b"),
        Asked(request(), "b", "c"),
        Asked(request(), "d", "d"),
    ]
    inputs = make_program_inputs(asked, RANKS, 0, exact=True)
    assert not inputs["a"].any()
    assert inputs["d"].any()


def test_every_rank_that_reads_is_given_something() -> None:
    """A tensor that other ranks have written is filled by the host for those that only read it."""
    halves: tuple[Groups, Groups] = (((0, 1),), ((2, 3),))
    platform = load_platform("trn2.48xlarge")
    made = [prove(request(groups=groups), platform, How(verify=False)) for groups in halves]
    steps = steps_of(made, [("a", "b"), ("b", "c")])
    inputs = make_program_inputs(
        [Asked(s.made.request, s.input, s.output) for s in steps], (0, 1, 2, 3), 0, exact=False
    )
    assert inputs["a"].any(axis=1).tolist() == [True, True, False, False]
    assert inputs["b"].any(axis=1).tolist() == [False, False, True, True]
    from rota.device.load import load_image

    loaded = load_program(steps, platform)
    uses = {buffer.name: buffer.use for buffer in load_image(loaded.images[0]).buffers}
    assert uses["b"] == BufferUse.INPUT | BufferUse.OUTPUT
    assert loaded.entries == (1, 1)


def test_names_fit_the_schedules() -> None:
    """A collective that reads and writes one tensor is composed in place, and only then."""
    made = [prove(request(), load_platform("trn2.48xlarge"), How(verify=False))]
    assert [(step.input, step.output) for step in steps_of(made)] == [("t0.in", "t0.out")]
    with pytest.raises(UnsupportedError, match="reads tensor a and writes a"):
        steps_of(made, [("a", "a")])
