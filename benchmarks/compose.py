"""How fast an all-reduce is composed and proved, data and order: one channel, one chunk a rank, no halves, in place.

    python benchmarks/compose.py [--ranks 64 128 256] [--family ring mesh hierarchical]

The ring, the two-step mesh of single ranks and the hierarchy of rings (8 ranks on each node) are the composers' own.
`compose` includes the constructor's checks; `order` and `data` are the two proofs. Each line is its own process, so
that its peak memory is its own. The peers' figures are quoted, not run: compare ratios, and compare runs by the two
fixed workloads timed beside ours.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from rota.compose.board import Board, Op, Region
from rota.compose.chip_mesh import Flavour, MeshHow
from rota.compose.hierarchy import compose_hierarchy
from rota.compose.mesh import FULL_EVENTS, write_all_reduce
from rota.compose.ring import compose_ring
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import load_platform
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.select import Plan, Settings, select
from rota.verify import find_data, find_order
from rota.verify.memory import conflicts

REPEATS = 5
CHUNK = 1024
QUOTED = "2026-09"
GROUP = 8
MUST_MS = {
    "ring": {64: 60, 128: 150, 256: 500, 1024: 10_000},
    "mesh": {64: 40, 128: 100, 256: 400, 1024: 10_000},
    "hierarchical": {64: 50, 128: 120, 256: 400, 1024: 10_000},
}
MUST_MIB = {256: 250, 1024: 3072}
PEERS_MS = {
    "msccl-tools": {
        "ring": {64: "2200", 128: "55900", 256: ">120000"},
        "mesh": {64: "2200", 128: "25800", 256: ">120000"},
        "hierarchical": {64: "3600", 128: "87600", 256: ">120000"},
    },
    "mscclpp DSL": {
        "ring": {64: "1950", 128: "10400", 256: "52000"},
        "mesh": {64: "560", 128: "2700", 256: "12000"},
        "hierarchical": {64: "320", 128: "1400", 256: "9000"},
    },
    "prototype": {
        "ring": {64: "15", 128: "47", 256: "180", 1024: "4400"},
        "mesh": {64: "7", 128: "27", 256: "121", 1024: "3200"},
        "hierarchical": {64: "11", 128: "37", 256: "144", 1024: "4100"},
    },
}  # compose and verify together; mscclpp DSL checks no data


class Measured(NamedTuple):
    """One line's figures: rows, bytes a row, proved pairs of accesses, milliseconds and peak memory in MiB."""

    rows: int
    row_bytes: float
    pairs: int
    compose_ms: float
    order_ms: float
    data_ms: float
    peak_mib: float

    @property
    def both_ms(self) -> float:
        """Compose and verify."""
        return self.compose_ms + self.order_ms + self.data_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--figures-only", action="store_true", help="measure the first of both in this process")
    arguments = parser.parse_args()
    if arguments.figures_only:
        print(*measure(arguments.family[0], arguments.ranks[0]))
        return
    measured = {(f, ranks): in_own_process(f, ranks) for f in arguments.family for ranks in arguments.ranks}
    source = np.ones(8 << 20)
    copy, loop = median_ms(source.copy), median_ms(loop_a_million)
    print(f"# compose and verify: all-reduce, one channel, N chunks, in place, median of {REPEATS}")
    print(f"# fixed workloads of this run: numpy copy of 64 MiB {copy:.1f} ms, a million turns of Python {loop:.1f} ms")
    print("# order and data are the two proofs; both is compose, order and data; ns is of both per proved access pair")
    print("# MiB is the peak memory of the process, Python and numpy included; 'must' is this project's own bar")
    print(f"# peers are quoted from {QUOTED}, milliseconds, and beside them how many times ours takes less")
    peers = "".join(f"{name:>12}{'ratio':>9}" for name in PEERS_MS)
    times = f"{'compose ms':>12}{'order':>8}{'data':>8}{'both':>8}{'must':>6}{'MiB':>6}{'must':>6}"
    print(f"{'# family':<14}{'ranks':>6}{'rows':>9}{'B/row':>7}{'rows/s':>9}{'pairs':>9}{'ns':>6}{times}{peers}")
    for (family, ranks), figures in measured.items():
        print(line(family, ranks, figures))


def line(family: str, ranks: int, figures: Measured) -> str:
    both = figures.both_ms
    ours = f"{family:<14}{ranks:>6}{figures.rows:>9}{figures.row_bytes:>7.1f}{figures.rows / both * 1000:>9.2g}"
    ours += f"{figures.pairs:>9}{both * 1e6 / figures.pairs:>6.0f}"
    ours += f"{figures.compose_ms:>12.1f}{figures.order_ms:>8.1f}{figures.data_ms:>8.1f}{both:>8.1f}"
    ours += f"{MUST_MS[family].get(ranks, '-'):>6}{figures.peak_mib:>6.0f}{MUST_MIB.get(ranks, '-'):>6}"
    known = [peer[family].get(ranks) for peer in PEERS_MS.values()]
    return ours + "".join(f"{time or '-':>12}{ratio(time, both):>9}" for time in known)


def ratio(peer: str | None, ours: float) -> str:
    if peer is None:
        return "-"
    return f"{'>' * peer.startswith('>')}{float(peer.lstrip('>')) / ours:.1f}x"


def in_own_process(family: str, ranks: int) -> Measured:
    """Measure in a fresh process, whose peak memory is then that of this schedule alone."""
    command = [sys.executable, __file__, "--family", family, "--ranks", str(ranks), "--figures-only"]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return Measured(int(words[0]), float(words[1]), int(words[2]), *(float(word) for word in words[3:]))


def measure(family: str, ranks: int) -> Measured:
    group = tuple(range(ranks))
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, ranks * CHUNK // 2, (group,), CceType.ADD, in_place=True)
    schedule = FAMILIES[family](ranks)
    compose_ms = median_ms(lambda: FAMILIES[family](ranks))
    order_ms = median_ms(lambda: nothing(find_order(schedule)))
    data_ms = median_ms(lambda: nothing(find_data(schedule, request)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row_bytes = sum(column.nbytes for column in schedule.columns()) / len(schedule)
    pairs = conflicts(schedule).first.size
    return Measured(len(schedule), row_bytes, pairs, compose_ms, order_ms, data_ms, peak)


def ring(ranks: int) -> Schedule:
    return compose_ring(
        [range(ranks)], kind=EncOp.ALLREDUCE, size=ranks * CHUNK, op=CceType.ADD, halves=1, in_place=True
    )


def mesh(ranks: int) -> Schedule:
    board = Board(ranks=ranks, input_size=ranks * CHUNK, output_size=ranks * CHUNK, op=Op.ADD, in_place=True)
    blocks = np.arange(ranks, dtype=np.int64)[None, :, None]
    how = MeshHow(Flavour.FULL, blocks, FULL_EVENTS)
    write_all_reduce(board, how, Region(board.input), Region(board.output), ranks * CHUNK)
    return board.schedule()


@cache
def hierarchy_plan(ranks: int) -> Plan:
    """Select once: this benchmark composes and proves."""
    platform = load_platform("trn2.48xlarge", nodes=ranks // GROUP)
    group = tuple(node * platform.node_ranks + rank for node in range(ranks // GROUP) for rank in range(GROUP))
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, ranks * CHUNK // 2, (group,), CceType.ADD, in_place=True)
    return select(request, platform, Settings(mesh=False, kangaring_mode=2))


def hierarchy(ranks: int) -> Schedule:
    return compose_hierarchy(hierarchy_plan(ranks))


FAMILIES: dict[str, Callable[[int], Schedule]] = {"ring": ring, "mesh": mesh, "hierarchical": hierarchy}


def nothing(findings: object) -> None:
    if findings:
        raise SystemExit(f"not proved: {findings}")


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
