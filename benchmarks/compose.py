"""How fast a ring all-reduce is composed and proved: one channel, one chunk a rank, no halves, in place.

    python benchmarks/compose.py [--ranks 64 128 256]

`compose` includes the constructor's checks, row order and balance among them; `verify` is the proof of the data. Each
line is a process of its own, so that its peak memory is its own. The peers' figures are quoted, not run: compare
ratios, and compare runs by the two fixed workloads timed beside ours.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rota.compose.ring import compose_ring
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.verify import verify

REPEATS = 5
CHUNK = 1024
QUOTED = "2026-09"
MUST_MS = {64: 60, 128: 150, 256: 500}
MUST_MIB = {256: 250}
PEERS_MS = {
    "msccl-tools": {64: "2200", 128: "55900", 256: ">120000"},
    "mscclpp DSL": {64: "1950", 128: "10400", 256: "52000"},
    "prototype": {64: "15", 128: "47", 256: "180"},
}  # compose and verify together; mscclpp DSL checks no data, the prototype also looks for races


class Measured(NamedTuple):
    """One line's figures: rows, milliseconds and peak memory in MiB."""

    rows: int
    compose_ms: float
    verify_ms: float
    peak_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--figures-only", action="store_true", help="measure the first of the ranks in this process")
    arguments = parser.parse_args()
    if arguments.figures_only:
        print(*measure(arguments.ranks[0]))
        return
    measured = {ranks: in_own_process(ranks) for ranks in arguments.ranks}
    source = np.ones(8 << 20)
    copy, loop = median_ms(source.copy), median_ms(loop_a_million)
    print(f"# compose and verify: ring all-reduce, one channel, N chunks, in place, median of {REPEATS}")
    print(f"# fixed workloads of this run: numpy copy of 64 MiB {copy:.1f} ms, a million turns of Python {loop:.1f} ms")
    print("# verify proves the data; row order is proved while composing; races are not looked for yet")
    print("# MiB is the peak memory of the process, Python and numpy included; 'must' is this project's own bar")
    print(f"# peers are quoted from {QUOTED}, milliseconds, and beside them how many times ours takes less")
    peers = "".join(f"{name:>12}{'ratio':>9}" for name in PEERS_MS)
    print(
        f"#{'ranks':>6}{'rows':>9}{'compose ms':>12}{'verify ms':>11}{'both':>8}{'must':>6}{'MiB':>6}{'must':>6}{peers}"
    )
    for ranks, figures in measured.items():
        print(line(ranks, figures))


def line(ranks: int, figures: Measured) -> str:
    both = figures.compose_ms + figures.verify_ms
    ours = f" {ranks:>6}{figures.rows:>9}{figures.compose_ms:>12.1f}{figures.verify_ms:>11.1f}{both:>8.1f}"
    ours += f"{MUST_MS.get(ranks, '-'):>6}{figures.peak_mib:>6.0f}{MUST_MIB.get(ranks, '-'):>6}"
    return ours + "".join(
        f"{known.get(ranks, '-'):>12}{ratio(known.get(ranks), both):>9}" for known in PEERS_MS.values()
    )


def ratio(peer: str | None, ours: float) -> str:
    if peer is None:
        return "-"
    return f"{'>' * peer.startswith('>')}{float(peer.lstrip('>')) / ours:.1f}x"


def in_own_process(ranks: int) -> Measured:
    """Measure in a fresh process, whose peak memory is then that of this number of ranks alone."""
    command = [sys.executable, __file__, "--ranks", str(ranks), "--figures-only"]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return Measured(int(words[0]), *(float(word) for word in words[1:]))


def measure(ranks: int) -> Measured:
    request = Request(
        EncOp.ALLREDUCE, Dtype.BFLOAT16, ranks * CHUNK // 2, (tuple(range(ranks)),), CceType.ADD, in_place=True
    )
    schedule = ring(request)
    compose_ms = median_ms(lambda: ring(request))
    verify_ms = median_ms(lambda: verify(schedule, request))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(len(schedule), compose_ms, verify_ms, peak)


def ring(request: Request) -> Schedule:
    return compose_ring(
        [range(request.ranks)], kind=request.kind, size=request.size, op=request.op, halves=1, in_place=True
    )


def median_ms(work: Callable[[], object]) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    work()
    return 1000 * statistics.median(seconds() for _ in range(REPEATS))


def loop_a_million() -> int:
    total = 0
    for number in range(1_000_000):
        total += number
    return total


if __name__ == "__main__":
    main()
