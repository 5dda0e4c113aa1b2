"""How fast a schedule is timed: 64 MiB ring all-reduce, one channel, no halves, every occupancy jittered by 10 %.

    python benchmarks/simulate.py [--ranks 64 256 1024]

Composing is not timed. `build` finds the dependencies of the rows, once for a schedule; `time` is one evaluation. The
peers' figures are quoted, not run: compare ratios, and compare runs by the two fixed workloads timed beside ours.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.schedule.ir import Schedule
from rota.simulate import Costs, uniform_costs
from rota.simulate.engine import dependencies, evaluate
from rota.units import transfer_ps

MESSAGE = 64 << 20
RATE = 50 * 10**9
HOP_PS = 500_000
REPEATS = 5
QUOTED = "2026-09"
PEERS = {
    "ASTRA-sim": {64: 0.018, 256: 0.153, 1024: 2.81},
    "SimGrid 4.1": {64: 0.017, 256: 0.212, 1024: 3.89},
    "LogGOPSim": {64: 0.010, 256: 0.060, 1024: 0.99},
}  # seconds of the lock-step case, without reading or converting its input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    measured = [line(ranks) for ranks in parser.parse_args().ranks]
    source = np.ones(8 << 20)
    copy, loop = median_ms(source.copy), median_ms(loop_a_million)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"# simulate: ring all-reduce of 64 MiB, jittered, median of {REPEATS}, one process")
    print(f"# fixed workloads of this run: numpy copy of 64 MiB {copy:.1f} ms, a million turns of Python {loop:.1f} ms")
    print(f"# peak memory of the process, composing included: {peak:.0f} MiB; `MiB` is what build and time add")
    print(
        f"# peers are quoted from {QUOTED} for the case without jitter (with it, ASTRA-sim took 144 s at 1024 ranks);"
    )
    print("# their columns are peer's time over ours: build and time / time alone")
    peers = "".join(f"{name:>14}" for name in PEERS)
    print(f"#{'ranks':>6}{'rows':>10}{'levels':>8}{'build ms':>10}{'time ms':>9}{'ns/row':>8}{'MiB':>6}{peers}")
    print("\n".join(measured))


def line(ranks: int) -> str:
    """Return one line of the table, having checked the exact vector of the case without jitter."""
    schedule = compose_ring([range(ranks)], kind=EncOp.ALLREDUCE, size=MESSAGE, op=CceType.ADD, slots=8, halves=1)
    costs, order = jittered(schedule), dependencies(schedule)
    exact = evaluate(order, uniform_costs(schedule, rate=RATE, hop_ps=HOP_PS)).makespan_ps
    assert exact == 2 * (ranks - 1) * (HOP_PS + transfer_ps(MESSAGE // ranks, RATE)), "the closed form does not hold"
    build = median_ms(lambda: dependencies(schedule))
    once = median_ms(lambda: evaluate(order, costs))
    levels = order.block.size - 1
    ours = f" {ranks:>6}{len(schedule):>10}{levels:>8}{build:>10.2f}{once:>9.2f}{once * 1e6 / len(schedule):>8.1f}"
    return f"{ours}{added_mib(schedule, costs):>6.0f}" + "".join(
        f"{ratios(seconds.get(ranks), build, once):>14}" for seconds in PEERS.values()
    )


def ratios(peer_seconds: float | None, build: float, once: float) -> str:
    return (
        "-" if peer_seconds is None else f"{peer_seconds * 1e3 / (build + once):.1f} / {peer_seconds * 1e3 / once:.0f}"
    )


def added_mib(schedule: Schedule, costs: Costs) -> float:
    """Return the peak memory of building and timing once, beside what schedule and costs hold."""
    tracemalloc.start()
    evaluate(dependencies(schedule), costs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (1 << 20)


def jittered(schedule: Schedule) -> Costs:
    """Return uniform costs with every occupancy off by up to a tenth."""
    costs = uniform_costs(schedule, rate=RATE, hop_ps=HOP_PS)
    permille = np.random.default_rng(1).integers(900, 1101, len(schedule))
    return Costs(occupancy_ps=costs.occupancy_ps * permille // 1000, latency_ps=costs.latency_ps.copy())


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
