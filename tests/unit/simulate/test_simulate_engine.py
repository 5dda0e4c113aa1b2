"""When rows start and complete: closed forms, the rules of a queue by hand, and what a result says about itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from rota.compose.ring import compose_ring
from rota.errors import UsageError
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import load_platform
from rota.schedule.build import assemble
from rota.schedule.ir import Buffer, Schedule
from rota.schedule.text import parse
from rota.simulate import Costs, lower_bound_ps, predict, simulate, uniform_costs

MESSAGE = 64 << 20
RATE = 50 * 10**9
HOP_PS = 500_000


def ring(ranks: int) -> Schedule:
    return compose_ring([range(ranks)], kind=EncOp.ALLREDUCE, size=MESSAGE, op=CceType.ADD, slots=8, halves=1)


def of(*rows: str) -> Schedule:
    """Return a schedule of two ranks with one counter each."""
    head = "buffer input 64 user\nbuffer output 64 user\ninput input\noutput output\nsemaphore done 0\n"
    return parse(f"schedule 1\nranks 2\n{head}" + "\n".join(rows) + "\n")


def costs(occupancy: list[int], latency: list[int]) -> Costs:
    return Costs(occupancy_ps=np.array(occupancy, np.int64), latency_ps=np.array(latency, np.int64))


@pytest.mark.parametrize(
    ("ranks", "expected_ns"),
    [(64, 2_705_411.5), (256, 2_928_868.8), pytest.param(1024, 3_704_733.1, marks=pytest.mark.slow)],
)
def test_ring_vectors(ranks: int, expected_ns: float) -> None:
    """Ring all-reduce takes 2(N-1) hops of a + S/(N B), each rounded to 1 ps (performance §2, exact vectors)."""
    schedule = ring(ranks)
    timing = simulate(schedule, uniform_costs(schedule, rate=RATE, hop_ps=HOP_PS))
    piece = MESSAGE // ranks
    assert timing.makespan_ps == 2 * (ranks - 1) * (HOP_PS + round(piece * 10**12 / RATE))
    assert round(timing.makespan_ps / 1000, 1) == expected_ns


def test_a_ring_takes_two_levels_a_step() -> None:
    """The certificate names the evaluator; a ring of N has 2N rows in a queue and as many blocks, whatever N is."""
    schedule = ring(64)
    timing = simulate(schedule, uniform_costs(schedule, rate=RATE, hop_ps=HOP_PS))
    assert timing.certificate == "max-plus, 128 levels"


def test_the_next_row_of_a_queue_does_not_wait_for_the_latency() -> None:
    """A queue is occupied for the transfer alone: the next row starts while the last one's bytes still travel."""
    timing = simulate(of("0.0 0.0 send", "0.0 0.1 send"), costs([5, 3], [100, 1]))
    assert timing.start_ps.tolist() == [0, 5]


def test_rows_of_a_queue_complete_in_order() -> None:
    """A row completes no earlier than the row before it in its queue (schedule §2, 2)."""
    timing = simulate(of("0.0 0.0 send", "0.0 0.1 send", "0.1 0.0 send"), costs([5, 3, 2], [100, 1, 1]))
    assert timing.end_ps.tolist() == [105, 105, 3]


def test_a_fenced_row_waits_for_completion() -> None:
    """A fenced row starts when every earlier row of its queue has completed (schedule §1)."""
    timing = simulate(of("0.0 0.0 send", "0.0 0.1 send", "0.0 0.2 send |"), costs([5, 3, 1], [100, 1, 0]))
    assert timing.start_ps.tolist() == [0, 5, 105]


def test_a_wait_holds_when_the_signal_has_been_performed() -> None:
    """Signals happen at completion, and a wait for n holds at the n-th of them."""
    schedule = of(
        "0.0 0.0 send !1.done+1",
        "0.0 0.1 send !1.done+1",
        "1.0 0.0 post_recv ?done>=1-1",
        "1.0 0.1 post_recv ?done>=1-1",
    )
    timing = simulate(schedule, costs([5, 5, 0, 0], [2, 90, 0, 0]))
    assert timing.start_ps.tolist() == [0, 5, 7, 100]


def test_a_wait_for_several_queues_holds_at_the_last() -> None:
    """A counter that several queues signal reaches the threshold with the latest of them, whatever the stored order."""
    schedule = of("0.0 0.0 send !1.done+1", "0.1 0.0 send !1.done+1", "1.0 0.0 post_recv ?done>=2-2")
    assert simulate(schedule, costs([50, 5, 0], [0, 0, 0])).start_ps[2] == 50
    assert simulate(schedule, costs([5, 50, 0], [0, 0, 0])).start_ps[2] == 50


def test_critical_rows_of_a_ring_are_its_hops() -> None:
    """The longest chain of a ring all-reduce is one piece on its way: 2(N-1) sends, one after the other."""
    schedule = ring(32)
    timing = simulate(schedule, uniform_costs(schedule, rate=RATE, hop_ps=HOP_PS))
    path = np.array(timing.critical(schedule))
    sends = path[np.diff(schedule.targets.ptr)[path] > 0]
    assert timing.start_ps[path[0]] == 0
    assert timing.end_ps[path[-1]] == timing.makespan_ps
    assert sends.size == 2 * 31


def test_nothing_takes_no_time() -> None:
    """A schedule without rows is over when it starts."""
    schedule = assemble([], ranks=1, buffers=[Buffer("all", 0, user=True)], semaphores=[], input=0, output=0)
    timing = simulate(schedule, costs([], []))
    assert timing.makespan_ps == 0
    assert timing.critical(schedule) == ()


def test_costs_of_another_schedule_are_refused() -> None:
    """Costs are one entry per row."""
    with pytest.raises(UsageError, match="costs of 1 rows for a schedule of 2"):
        simulate(of("0.0 0.0 send", "0.0 0.1 send"), costs([1], [1]))


@pytest.mark.parametrize(("ranks", "published_us"), [(8, 28_019.1), (16, 29_283.5), (32, 16_218.4)])
def test_large_rings_are_near_published_times(plan: Callable, ranks: int, published_us: float) -> None:
    """All-reduce of 1 GiB on trn1.32xlarge is within 15 % of published times with one efficiency (platforms §7, 1)."""
    made = plan(load_platform("trn1.32xlarge"), [tuple(range(ranks))], 1 << 30)
    assert predict(*made).makespan_ps / 1e6 == pytest.approx(published_us, rel=0.15)


def test_a_large_ring_runs_near_its_bound(plan: Callable) -> None:
    """A full-node ring of 64 MiB is bound by HBM on trn2.48xlarge and takes at most a tenth longer than that bound."""
    made = plan(load_platform("trn2.48xlarge"), [tuple(range(64))], 64 << 20)
    assert lower_bound_ps(*made) <= predict(*made).makespan_ps <= 1.1 * lower_bound_ps(*made)


SCRIPT = """
import hashlib
from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.isa.dtypes import Dtype
from rota.machine.group import wire
from rota.machine.platform import load_platform
from rota.request import Request
from rota.simulate import predict

platform = load_platform("trn2.48xlarge")
wiring = wire(platform, range(16))
orders = [channel.order for channel in wiring.channels]
schedule = compose_ring(orders, kind=EncOp.ALLREDUCE, size=1 << 20, op=CceType.ADD)
request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 1 << 19, (tuple(range(16)),), op=CceType.ADD)
timing = predict(schedule, request, platform)
print(hashlib.sha256(timing.start_ps.tobytes() + timing.end_ps.tobytes()).hexdigest(), timing.certificate)
"""


def test_two_runs_give_equal_bytes() -> None:
    """Two processes with different hash seeds time a schedule alike, to the byte."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""
