"""Folding many runs of one memory, with the kernels and without: both give what one run after another gives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from rota.native.arithmetic import Combine, fold, move_pieces
from rota.native.library import kernels, without_kernels
from rota.native.runs import fold_runs

Array = NDArray[Any]
DTYPES = ["<f4", "<f2", ml_dtypes.bfloat16, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2, "<i2"]
needs_kernels = pytest.mark.skipif(kernels() is None, reason="waits for the C library, which was not built or is off")


def one_by_one(memory: Array, runs: list[tuple[int, list[int], int]], how: Combine, dtype: Any, scales: Any) -> None:
    """Fold runs in their order, with the definition."""
    entry = 0
    for target, sources, size in runs:
        parts = [memory[at : at + size].copy().view(dtype) for at in sources]
        factors = () if scales is None else scales[entry : entry + len(sources)]
        entry += len(sources)
        with without_kernels():
            memory[target : target + size] = fold(how, parts, factors).view(np.uint8)


def independent_runs(rng: np.random.Generator, item: int) -> tuple[list[tuple[int, list[int], int]], int]:
    """Return runs of many sizes and fan-ins at odd offsets, some in place, and the size of a memory for them."""
    runs, end = [], int(rng.integers(0, 8))
    for _ in range(40):
        size = item * int(rng.choice([1, 2, 3, 16, 100, 1030, 5000]))
        fan_in = int(rng.choice([1, 1, 2, 2, 3, 5]))
        places = [end + (size + 1) * i for i in range(fan_in + 1)]
        end = places[-1] + size + int(rng.integers(0, 4))
        target, *sources = places
        if rng.random() < 0.4:
            target = sources[int(rng.integers(fan_in))]
        runs.append((target, sources, size))
    order = rng.permutation(len(runs)).tolist()
    return [runs[i] for i in order], end


def columns_of(runs: list[tuple[int, list[int], int]]) -> tuple[Array, Array, Array, Array]:
    pointer = np.cumsum([0, *(len(sources) for _, sources, _ in runs)])
    flat = [at for _, sources, _ in runs for at in sources]
    return np.array([run[0] for run in runs]), pointer, np.array(flat), np.array([run[2] for run in runs])


@pytest.mark.parametrize("how", Combine)
@pytest.mark.parametrize("name", DTYPES)
def test_runs_give_what_one_after_another_gives(name: Any, how: Combine) -> None:
    """Runs of all sizes, fan-ins and alignments, in place or not, with kernels and without; nothing else is written."""
    dtype = np.dtype(name)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        runs, end = independent_runs(rng, dtype.itemsize)
        memory = rng.integers(0, 256, end).astype(np.uint8)
        scales = rng.standard_normal(sum(len(run[1]) for run in runs)).astype(np.float32)
        factors = scales if how is Combine.FMA and seed % 2 else None
        expected, plain = memory.copy(), memory.copy()
        one_by_one(expected, runs, how, dtype, factors)
        fold_runs(memory, *columns_of(runs), how=how, dtype=dtype, scales=factors)
        assert memory.tobytes() == expected.tobytes()
        with without_kernels():
            fold_runs(plain, *columns_of(runs), how=how, dtype=dtype, scales=factors)
        assert plain.tobytes() == expected.tobytes()


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize(
    ("target", "pointer", "source", "size"),
    [
        ([0, 93], [0, 1, 2], [0, 0], [8, 8]),
        ([0, -1], [0, 1, 2], [0, 0], [8, 8]),
        ([0, 8], [0, 1, 2], [0, 97], [8, 4]),
        ([0, 8], [0, 1, 2], [0, -4], [8, 4]),
        ([0, 8], [0, 1, 2], [0, 8], [8, -4]),
        ([0, 8], [0, 1, 2], [0, 8], [8, 6]),
        ([0, 8], [0, 1, 1], [0, 8], [8, 4]),
        ([0, 8], [0, 1, 3], [0, 8], [8, 4]),
        ([0, 8], [0, 1], [0], [8, 4]),
        ([0, 8], [0, 1, 2], [0, 8], [8]),
    ],
)
def test_runs_outside_the_memory_are_refused(native: bool, target: Any, pointer: Any, source: Any, size: Any) -> None:
    """Offsets, sizes and lists that fit no memory of 100 bytes raise before anything moves."""
    memory = np.arange(100, dtype=np.uint8)
    columns = [np.array(part, np.int64) for part in (target, pointer, source, size)]

    def run() -> None:
        with pytest.raises(IndexError):
            fold_runs(memory, *columns, how=Combine.ADD, dtype=np.dtype(np.float32))

    if native:
        run()
    else:
        with without_kernels():
            run()
    assert memory.tolist() == list(range(100))


def test_no_runs() -> None:
    """Nothing to fold folds nothing, with kernels and without."""
    memory, none = np.arange(8, dtype=np.uint8), np.zeros(0, np.int64)
    for how in (Combine.COPY, Combine.ADD):
        fold_runs(memory, none, np.zeros(1, np.int64), none, none, how=how, dtype=np.dtype(np.float32))
        with without_kernels():
            fold_runs(memory, none, np.zeros(1, np.int64), none, none, how=how, dtype=np.dtype(np.float32))
    assert memory.tolist() == list(range(8))


def test_a_copy_may_overlap_itself() -> None:
    """A copied run that overlaps its source in part arrives whole."""
    memory = np.arange(10_000).astype(np.uint8)
    expected = memory.copy()
    expected[3:9003] = memory[:9000]
    columns = [np.array(part, np.int64) for part in ([3], [0, 1], [0], [9000])]
    fold_runs(memory, *columns, how=Combine.COPY, dtype=None)
    assert memory.tobytes() == expected.tobytes()


@needs_kernels
def test_pieces_outside_the_memory_are_refused() -> None:
    """`move_pieces` checks offsets before C sees them; read-only memory is numpy's to refuse."""
    memory = np.zeros(70_000, np.uint8)
    for target, source in ([60_000, 0], [0, 60_000], [-1, 0], [0, -1]):
        with pytest.raises(IndexError, match="leaves the memory of 70000 bytes"):
            move_pieces(memory, np.array([[target]]), np.array([[source]]), 1 << 16)
    memory.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        move_pieces(memory, np.array([[0]]), np.array([[8]]), 1 << 16)


@needs_kernels
@pytest.mark.parametrize("how", Combine)
@pytest.mark.parametrize("size", [64, 1000, 1024, 4096, 70_000])
def test_pieces_move_alike_in_c(size: int, how: Combine) -> None:
    """Pieces that trade places, go to several targets and have scales move in C as in numpy, staged or not."""
    rng = np.random.default_rng(size)
    for trade in (False, True):
        places = (np.arange(12) * (size + 4)).reshape(3, 4)
        targets, sources = places[:, :2], places[::-1, 1:] if trade else places[:, 1:]
        memory = rng.integers(0, 256, 12 * (size + 4)).astype(np.uint8)
        scales = rng.standard_normal((3, 3)).astype(np.float32)
        expected = memory.copy()
        arguments = {"how": how, "dtype": np.dtype(np.float32), "scales": scales}
        move_pieces(memory, targets, sources, size, **arguments)
        with without_kernels():
            move_pieces(expected, targets, sources, size, **arguments)
        assert memory.tobytes() == expected.tobytes()
