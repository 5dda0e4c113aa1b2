"""How fast SELECT decides, and how long `rota explain` takes from process start.

    python benchmarks/selection.py [--selections 20000]

A selection is one request on a communicator that exists, four sizes by turns; a creation is the communicator of one
group with the levels of its hierarchy, its rings and its limit tables. Nothing public does the same, so there is no
peer: compare runs by the fixed loop timed beside ours, and `explain` by the import of numpy in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import Platform, load_platform
from rota.request import Request
from rota.select import Selector, Settings

REPEATS: Final = 5
MUST_SELECT: Final = 20_000  # a second, every case
MUST_EXPLAIN: Final = 3.0  # times `import numpy`
COUNTS: Final = (1, 100, 10_000, 1_000_000)  # elements of each rank
CASES: Final = (
    ("trn1.32xlarge", 1, 32),
    ("trn2.48xlarge", 1, 64),
    ("trn2.48xlarge", 4, 256),
    ("trn2u.48xlarge", 4, 256),
    ("trn3pds98", 1, 32),
    ("trn3pds98", 1, 576),
)
ROTA: Final = "import sys; from rota.cli import main; sys.exit(main())"
EXPLAINED: Final = (
    ["all_reduce", "--platform", "trn2.48xlarge", "--ranks", "64", "--size", "1M"],
    ["all_reduce", "--platform", "trn2.48xlarge", "--nodes", "4", "--ranks", "256", "--size", "64M"],
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--selections", type=int, default=20_000)
    arguments = parser.parse_args()
    loop = 1000 * median(loop_a_million)
    print(f"# all-reduce, bf16, one group, CPU time, median of {REPEATS}")
    print(f"# a million turns of Python in this run: {loop:.1f} ms")
    print(f"# 'must' is this project's own bar: selections a second in one process, {MUST_SELECT}")
    print(f"# {'platform':<16}{'nodes':>6}{'ranks':>6}  {'selected':<40}{'select/s':>10}{'must':>7}{'create/s':>10}")
    for name, nodes, ranks in CASES:
        print(line(name, nodes, ranks, arguments.selections))
    print(
        f"# rota explain from process start against python -c 'import numpy', by turns; must be at most {MUST_EXPLAIN}"
    )
    print(f"# {'explain ms':>10}{'numpy ms':>10}{'ratio':>7}  command")
    for words in EXPLAINED:
        print(explained(words))


def line(name: str, nodes: int, ranks: int, selections: int) -> str:
    platform = load_platform(name, nodes=nodes)
    requests = [all_reduce(ranks, ranks * count) for count in COUNTS]
    selector = Selector(platform, Settings())
    selected = ", ".join(dict.fromkeys(selector.select(request).selected.name for request in requests))
    rate = selections / median(lambda: select_all(selector, requests, selections))
    created = 1 / median(lambda: create(platform, ranks))
    return f"  {name:<16}{nodes:>6}{ranks:>6}  {selected:<40}{rate:>10.0f}{MUST_SELECT:>7}{created:>10.0f}"


def all_reduce(ranks: int, count: int) -> Request:
    return Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, count, (tuple(range(ranks)),), CceType.ADD)


def select_all(selector: Selector, requests: Sequence[Request], selections: int) -> None:
    for number in range(selections):
        selector.select(requests[number % len(requests)])


def create(platform: Platform, ranks: int) -> None:
    Selector(platform, Settings()).communicator(tuple(range(ranks)))


def explained(words: Sequence[str]) -> str:
    ours, numpy = [], []
    for _ in range(REPEATS + 1):  # the first of each warms the file cache
        ours.append(seconds(lambda: run("-c", ROTA, "explain", *words)))
        numpy.append(seconds(lambda: run("-c", "import numpy")))
    one, other = statistics.median(ours[1:]), statistics.median(numpy[1:])
    return f"  {1000 * one:>10.0f}{1000 * other:>10.0f}{one / other:>7.2f}  rota explain {' '.join(words)}"


def run(*words: str) -> None:
    subprocess.run([sys.executable, *words], capture_output=True, check=True)


def median(work: Callable[[], object]) -> float:
    """Return the seconds this process computes, the median of several times, one unmeasured time first."""
    work()
    return statistics.median(seconds(work, time.process_time) for _ in range(REPEATS))


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def loop_a_million() -> int:
    total = 0
    for number in range(1_000_000):
        total += number
    return total


if __name__ == "__main__":
    main()
