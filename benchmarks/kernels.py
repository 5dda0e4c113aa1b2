"""How fast elements combine on one core, beside a copy of the same bytes in the same rounds.

    python benchmarks/kernels.py [--sizes 1M 64M] [--rounds 15] [--no-twins]

`a = a + b` in place, as a reduction into one of its sources is: one run, by the C kernels alone, by `fold_runs` that
calls them, and by its numpy twin. GB/s is 10^9 bytes of `a` a second, the best of all rounds, in seconds of the
processor; a round measures the copy and every case once, from fresh data. Other work on the machine slows the copy more
than most cases: a ratio counts only from a run whose copy was undisturbed, so give it rounds, and look at the copy.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rota.native.arithmetic import NUMBER, Combine
from rota.native.calls import number_of
from rota.native.library import describe, kernels, without_kernels
from rota.native.runs import fold_runs
from rota.units import format_size, parse_size

DTYPES: Final = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp8_e3m4": np.dtype(ml_dtypes.float8_e3m4),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
FOLDS: Final = (Combine.ADD, Combine.FMA, Combine.MAX, Combine.MIN)
MUST: Final = {  # of the copy, for ADD in C: at sizes that fit a cache, and at sizes that do not
    "bf16": (0.40, 0.90),
    "fp16": (0.7, 1.0),
    "fp8_e3m4": (0.04, 0.12),
    "fp8_e4m3": (0.04, 0.12),
    "fp8_e5m2": (0.04, 0.12),
}
FITS: Final = 4 << 20
SHORTEST: Final = 0.001  # seconds of a measurement
TWIN_ROUNDS: Final = 2
PATTERN: Final = 1 << 16  # bytes of data, repeated
Array = NDArray[Any]


class Case:
    """Two arrays, the halves of one memory, and how they combine."""

    def __init__(self, how: Combine, name: str, memory: Array) -> None:
        rng = np.random.default_rng(7)
        self.how, self.name, self.memory = how, name, memory
        self.size = memory.size // 2
        self.dtype = DTYPES.get(name, np.dtype(np.uint8))
        self.data = rng.uniform(0.5, 2, PATTERN // self.dtype.itemsize).astype(self.dtype).view(np.uint8)
        self.columns = [np.array(part) for part in ([0], [0, 2], [0, self.size], [self.size])]
        self.scales = np.array([0.5, 0.25], np.float32) if how is Combine.FMA else None
        self.best = np.inf
        self.raw: Callable[[], None] | None = None

    def as_copy(self) -> Case:
        """Return the case, as a plain copy of the same bytes: no more Python around it than around the kernels."""
        start = self.memory.ctypes.data
        self.raw = partial(ctypes.memmove, start, start + self.size, self.size)
        return self

    def without_python(self, library: ctypes.CDLL) -> Case:
        """Return the case, with addresses and numbers looked up beforehand."""
        at = [column.ctypes.data for column in self.columns]
        scales = None if self.scales is None else self.scales.ctypes.data
        numbers = NUMBER[self.how], number_of(self.dtype)
        self.raw = partial(library.rota_fold_runs, self.memory.ctypes.data, 1, *at, *numbers, scales)
        return self

    def work(self) -> None:
        if self.raw:
            self.raw()
        else:
            fold_runs(self.memory, *self.columns, how=self.how, dtype=self.dtype, scales=self.scales)

    def measure(self) -> None:
        """Time fresh data, several times in a row if it is short, after one time that does not count."""
        self.memory.reshape(-1, PATTERN)[:] = self.data
        self.work()
        count, spent, start = 0, 0.0, time.thread_time()
        while spent < SHORTEST:
            self.work()
            count += 1
            spent = time.thread_time() - start
        self.best = min(self.best, spent / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1M", "64M"], help="multiples of 64K")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-twins", action="store_true", help="leave numpy out, which takes most of the time")
    arguments = parser.parse_args()
    print(f"# {describe()}; best of {arguments.rounds} rounds (numpy: of 2), GB/s of payload and ratio to the copy")
    print("# 'must' is this project's own bar for ADD in C")
    for size in map(parse_size, arguments.sizes):
        print_size(size, arguments.rounds, with_twins=not arguments.no_twins)


def print_size(size: int, rounds: int, *, with_twins: bool) -> None:
    memory = np.zeros(2 * size, np.uint8)
    copy = Case(Combine.COPY, "copy", memory).as_copy()
    bare, native, twins = ([Case(how, name, memory) for how in FOLDS for name in DTYPES] for _ in range(3))
    library = kernels()
    in_c = [] if library is None else [case.without_python(library) for case in bare] + native
    for turn in range(rounds):
        copy.measure()
        for case in in_c:
            case.measure()
        with without_kernels():
            for case in twins if with_twins and turn < TWIN_ROUNDS else []:
                case.measure()
    print(f"# {format_size(size)}, copy {size / copy.best / 1e9:.1f} GB/s")
    columns = ("C GB/s", "of copy", "must", "fold_runs", "of copy", "numpy", "of copy")
    print(f"# {'':<15}" + "".join(f"{name:>10}" for name in columns))
    for case, called, twin in zip(bare, native, twins, strict=True):
        must = MUST.get(case.name) if case.how is Combine.ADD else None
        bar = "-" if must is None else f"{must[size > FITS]:.2f}"
        rest = f"{figures(called, copy)}{figures(twin, copy)}"
        print(f"  {case.how.name:<5}{case.name:<10}{figures(case, copy)}{bar:>10}{rest}")


def figures(case: Case, copy: Case) -> str:
    if not np.isfinite(case.best):
        return f"{'-':>10}{'-':>10}"
    return f"{case.size / case.best / 1e9:>10.2f}{copy.best / case.best:>10.3f}"


if __name__ == "__main__":
    main()
