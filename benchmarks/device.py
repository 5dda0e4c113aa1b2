"""What a collective costs from request to checked bytes: each stage, beside a numpy copy of the same bytes.

    python benchmarks/device.py [--ranks N] [--size S]

GB/s are bytes that rows move, all ranks, over the time of the stage; `share` is that over a single-core numpy copy of
64 MiB timed in the same run.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from rota.compose.table import compose
from rota.device.model import load
from rota.emit import emit
from rota.execute.arrays import execute
from rota.execute.golden import make_inputs
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.request import Request
from rota.select import Settings, select
from rota.units import parse_size
from rota.verify import verify


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


def main() -> None:
    """Print one line a stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--size", default="1M")
    arguments = parser.parse_args()
    platform = load_platform("trn2.48xlarge")
    group = tuple(range(arguments.ranks))
    size = parse_size(arguments.size)
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, size // 2, (group,), CceType.ADD)
    inputs = make_inputs(request, np.random.default_rng(0))
    bar = copy_rate()
    print(
        f"# ring all-reduce, bf16, {arguments.ranks} ranks x {arguments.size}, trn2.48xlarge; numpy copy {bar:.1f} GB/s"
    )
    print(f"# {'stage':<10} {'seconds':>8} {'GB/s':>8} {'share':>7}")

    def stage(name, work):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        value = work()
        took = time.perf_counter() - start
        rate = moved / took / 1e9 if moved else 0.0
        print(f"  {name:<10} {took:8.3f} {rate:8.2f} {rate / bar:7.1%}")
        return value

    moved = 0
    plan = stage("select", lambda: select(request, platform, Settings()))
    schedule = stage("compose", lambda: compose(plan, Algorithm.RING))
    stage("verify", lambda: verify(schedule, request))
    images = stage("emit", lambda: emit(schedule, request, platform))
    device = stage("load", lambda: load(images))
    moved = int(schedule.rows.size.sum())
    outputs = stage("device", lambda: device.run(inputs.view(np.uint8)))
    expected = stage("execute", lambda: execute(schedule, inputs))
    assert np.array_equal(outputs, expected.view(np.uint8)), "the bytes and the schedule disagree"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"# {len(schedule)} rows, {sum(map(len, images)) >> 10} KiB of images, peak {peak} MiB")


if __name__ == "__main__":
    main()
