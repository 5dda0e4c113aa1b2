"""What a program costs from request to checked bytes: each stage in seconds, and its run beside a numpy copy.

    python benchmarks/device.py [--ranks N] [--nodes N] [--size S] [--algorithm A ...] [--collectives N] [--numpy]

The stages are those of `rota run`, as they follow one another; arrays are moved, and their result measured, beside emit
and load, so that `execute` is the rest of that. Payload is the bytes that rows write at all their targets, all ranks;
GB/s is payload over the time of the run, `copy` that over a numpy copy of 64 MiB on one core timed in the same run,
`sums` the share of the run's time in moving and combining elements. The run is timed the second time, with memory that
was touched before, and what is checked is what it leaves; `total` is everything but that second run. With --numpy, or
where nothing was built in C, numpy does the arithmetic.
"""

from __future__ import annotations

import argparse
import resource
import time
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np

import rota.device.model
import rota.device.waves
from rota.columns import Workspace
from rota.device.memory import Memory
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.native.library import kernels, without_kernels
from rota.pipeline import How, prove
from rota.program import run_program
from rota.request import Request
from rota.units import parse_size

T = TypeVar("T")
STAGES = ("prove", "inputs", "emit", "load", "execute", "device", "check")


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
    """A watch of `rota run`: the seconds up to each stage's end since the end of the one before."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.last = time.perf_counter()

    def __call__(self, stage: str, value: T, /) -> T:
        """Note that a stage has ended."""
        now = time.perf_counter()
        stage = stage if stage in self.seconds else "prove"
        self.seconds[stage] += now - self.last
        self.last = now
        return value


class Twice:
    """Runs the machines of a device a second time, in the memory that the first run leaves, and times that.

    Attributes:
        run: seconds of the second run. sums: those of it in moving and combining elements.
    """

    def __init__(self) -> None:
        self.run = self.sums = 0.0
        self._waves = rota.device.model.run_waves
        self._fold = rota.device.waves.fold_runs

    def __enter__(self) -> Twice:
        rota.device.model.run_waves = self._run
        return self

    def __exit__(self, *_: object) -> None:
        rota.device.model.run_waves = self._waves

    def _run(self, world: Any, items: Any, program: Any, work: Any, memory: Memory, **rest: Any) -> None:
        self._waves(world, items, program, work, memory, **rest)
        memory.semaphores[:] = memory.start
        rota.device.waves.fold_runs = self._folded
        start = time.perf_counter()
        self._waves(world, items, program, work, memory, **rest)
        self.run = time.perf_counter() - start
        rota.device.waves.fold_runs = self._fold

    def _folded(self, *args: Any, **named: Any) -> None:
        start = time.perf_counter()
        self._fold(*args, **named)
        self.sums += time.perf_counter() - start


def one(algorithm: Algorithm | None, arguments: argparse.Namespace, bar: float) -> None:
    """Print the line of one program."""
    platform = load_platform("trn2.48xlarge", nodes=arguments.nodes)
    count, collectives = parse_size(arguments.size) // 2, arguments.collectives
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, count, (tuple(range(arguments.ranks)),), CceType.ADD)
    clock = Clock()
    made = prove(request, platform, How(algorithm=algorithm), watch=clock)
    with Twice() as second:
        ran = run_program([made] * collectives, platform, watch=clock)
    clock("check", None)
    clock.seconds["device"] -= second.run
    right = all(outcome.device_matches and outcome.accuracy.ranks_identical for outcome in ran.outcomes)
    payload = collectives * int((made.schedule.rows.size * np.diff(made.schedule.targets.ptr)).sum())
    stages = " ".join(f"{took:8.3f}" for took in clock.seconds.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    rate = payload / second.run / 1e9
    print(
        f"  {made.algorithm:<16} {stages} {sum(clock.seconds.values()):8.3f} {second.run:7.3f} {rate:7.2f} "
        f"{rate / bar:6.1%} {second.sums / second.run:6.1%} {peak:8}" + ("" if right else "  WRONG")
    )


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=1, help="instances; over several, RING and HIER go by proxies")
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
    machine = "trn2.48xlarge" if arguments.nodes == 1 else f"{arguments.nodes} x trn2.48xlarge"
    print(f"# {arguments.collectives} x all-reduce, bf16, {arguments.ranks} ranks x {arguments.size}, {machine}")
    print(
        f"# arithmetic in {'numpy' if kernels() is None else 'C'}; numpy copy {bar:.1f} GB/s, "
        f"new memory {page_rate():.1f} GB/s"
    )
    heads = " ".join(f"{stage:>8}" for stage in STAGES)
    print(f"# {'seconds':<16} {heads} {'total':>8} {'run':>7} {'GB/s':>7} {'copy':>6} {'sums':>6} {'peak MiB':>8}")
    for name in arguments.algorithm:
        algorithm = None if name == "selected" else Algorithm[name]
        one(algorithm, arguments, bar)


if __name__ == "__main__":
    main()
