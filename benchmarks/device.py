"""What a program costs from request to checked bytes: each stage in seconds, and its run beside a numpy copy.

    python benchmarks/device.py [--ranks N] [--size S] [--algorithm A ...] [--collectives N] [--numpy]

Payload is the bytes that rows write at all their targets, all ranks; GB/s is payload over the time of the run, `copy`
that over a numpy copy of 64 MiB on one core timed in the same run, `sums` the share of the run's time in moving and
combining elements. The run is timed the second time, with memory that was touched before; `total` is everything but
that second run. With --numpy, or where nothing was built in C, numpy does the arithmetic.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

import rota.device.waves
from rota.columns import Workspace
from rota.execute.arrays import execute
from rota.execute.golden import measure
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.meaning import as_bytes, make_program_inputs, same_bytes
from rota.native.library import kernels, without_kernels
from rota.pipeline import How, prove
from rota.program import asked_of, load_checked, load_program, steps_of
from rota.request import Request
from rota.units import parse_size

STAGES = ("prove", "inputs", "emit", "load", "execute", "run", "check")


def copy_rate() -> float:
    """Return the GB/s of a single-core copy of 64 MiB, best of five."""
    source = np.zeros(64 << 20, np.uint8)
    target = np.ones_like(source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - start)
    return source.size / min(times) / 1e9


def page_rate() -> float:
    """Return the GB/s at which new memory is written the first time: what bounds stages that make arrays."""
    start = time.perf_counter()
    Workspace().zeros(512 << 20)[:] = 1
    return (512 << 20) / (time.perf_counter() - start) / 1e9


class Clock:
    """Seconds of stages, and within them of what `counted` wraps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inside = 0.0

    def __call__(self, stage: str, work: Callable[[], Any]) -> Any:
        """Time a stage."""
        start = time.perf_counter()
        value = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        return value

    def counted(self, work: Callable[..., None]) -> Callable[..., None]:
        """Return the same function, whose time adds up."""

        def timed(*args: Any, **named: Any) -> None:
            start = time.perf_counter()
            work(*args, **named)
            self.inside += time.perf_counter() - start

        return timed


def one(algorithm: Algorithm | None, ranks: int, count: int, collectives: int, bar: float) -> None:
    """Print the line of one program."""
    platform = load_platform("trn2.48xlarge")
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, count, (tuple(range(ranks)),), CceType.ADD)
    clock, workspace = Clock(), Workspace()
    made = clock("prove", lambda: prove(request, platform, How(algorithm=algorithm)))
    steps = steps_of([made] * collectives)
    asked, members = asked_of(steps), tuple(range(ranks))
    inputs = clock("inputs", lambda: make_program_inputs(asked, members, 0, exact=False))
    loaded = clock("emit", lambda: load_program(steps, platform))
    device, _ = clock("load", lambda: load_checked(loaded))
    given = {name: as_bytes(value) for name, value in inputs.items()}
    got = clock("first run", lambda: device.run_program(given, workspace=workspace))
    plain, rota.device.waves.fold_runs = rota.device.waves.fold_runs, clock.counted(rota.device.waves.fold_runs)
    run = _run_alone(device, given, workspace)
    rota.device.waves.fold_runs = plain
    beside = Workspace()
    right = True
    for step in steps:
        values = inputs[step.input]
        expected = clock("execute", partial(execute, made.schedule, values, workspace=beside))
        right &= clock("check", partial(_checked, request, values, expected, got[step.output]))
    clock.seconds["run"] = run
    total = sum(took for stage, took in clock.seconds.items() if stage != "run")
    rows = made.schedule.rows
    payload = collectives * int((rows.size * np.diff(made.schedule.targets.ptr)).sum())
    stages = " ".join(f"{clock.seconds[stage]:8.3f}" for stage in STAGES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    rate = payload / run / 1e9
    print(
        f"  {made.algorithm:<16} {stages} {total:8.3f} {rate:7.2f} {rate / bar:6.1%} {clock.inside / run:6.1%} {peak:8}"
        + ("" if right else "  WRONG")
    )


def _run_alone(device: Any, given: Any, workspace: Workspace) -> float:
    """Run once more and return the seconds of the machines, without those of filling memory."""
    alone = Clock()
    waves = rota.device.model.run_waves
    rota.device.model.run_waves = alone.counted(waves)  # type: ignore[assignment]
    device.run_program(given, workspace=workspace)
    rota.device.model.run_waves = waves
    return alone.inside


def _checked(request: Request, given: Any, expected: Any, got: Any) -> bool:
    accuracy = measure(request, given, expected)
    return bool(accuracy.ranks_identical) and same_bytes(got, as_bytes(expected))


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--size", default="1M")
    parser.add_argument("--algorithm", nargs="*", default=["RING", "MESH", "INTRA_RDH", "KANGARING"])
    parser.add_argument("--collectives", type=int, default=1)
    parser.add_argument("--numpy", action="store_true", help="do the arithmetic in numpy")
    arguments = parser.parse_args()
    with without_kernels() if arguments.numpy else nullcontext():
        table(arguments)


def table(arguments: argparse.Namespace) -> None:
    """Print one line an algorithm."""
    bar = copy_rate()
    print(f"# {arguments.collectives} x all-reduce, bf16, {arguments.ranks} ranks x {arguments.size}, trn2.48xlarge")
    print(
        f"# arithmetic in {'numpy' if kernels() is None else 'C'}; numpy copy {bar:.1f} GB/s, "
        f"new memory {page_rate():.1f} GB/s"
    )
    heads = " ".join(f"{stage:>8}" for stage in STAGES)
    print(f"# {'seconds':<16} {heads} {'total':>8} {'GB/s':>7} {'copy':>6} {'sums':>6} {'peak MiB':>8}")
    for name in arguments.algorithm:
        algorithm = None if name == "selected" else Algorithm[name]
        one(algorithm, arguments.ranks, parse_size(arguments.size) // 2, arguments.collectives, bar)


if __name__ == "__main__":
    main()
