"""What a row costs: each term of the model alone, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from rota.errors import UsageError
from rota.isa.enums import EncOp
from rota.machine.group import wire
from rota.machine.platform import Parameter, Platform, load_platform
from rota.schedule.ir import Leaf, Op
from rota.schedule.text import parse
from rota.simulate import Costs, lower_bound_ps, platform_costs, uniform_costs
from rota.simulate.cost import ask

PLENTY = 10**18
UNLIMITED = {
    "link_bytes_per_second": PLENTY,
    "link_efficiency_permille": 1000,
    "hbm_bytes_per_second": PLENTY,
    "dma_engine_bytes_per_second": PLENTY,
    "dma_engines": 1,
    "hop_latency_ps": 0,
    "onchip_hop_latency_ps": 0,
}
ROW = tuple(range(16))
KIB = 1024


def machine(name: str = "trn2.48xlarge", **parameters: int) -> Platform:
    """Return a machine on which nothing costs anything but what is named."""
    platform = load_platform(name)
    values = UNLIMITED | parameters
    table: Mapping[str, Parameter] = {
        key: replace(parameter, value=values.get(key, parameter.value))
        for key, parameter in platform.parameters.items()
    }
    return replace(platform, parameters=table)


def occupancies(costs: Costs, rows: np.ndarray) -> set[int]:
    return set(costs.occupancy_ps[rows].tolist())


def test_uniform_rows_that_send_pay_transfer_and_hop_and_others_nothing() -> None:
    """Occupancy is size / rate rounded to 1 ps, latency one hop; a row that stays on its rank costs nothing."""
    schedule = parse(
        "schedule 1\nranks 2\nbuffer input 64 user\nbuffer output 64 user\ninput input\noutput output\n"
        "0.0 0.0 direct_copy_send : 0.input+0 -> 1.output+0 10\n"
        "0.0 0.1 direct_copy : 0.input+0 -> 0.output+0 10\n"
        "1.0 0.0 post_send\n"
    )
    costs = uniform_costs(schedule, rate=3 * 10**12, hop_ps=7)
    assert costs.occupancy_ps.tolist() == [3, 0, 0]
    assert costs.latency_ps.tolist() == [7, 0, 0]


def test_cable_time_is_bytes_over_efficient_rate(plan: Callable) -> None:
    """A hop by cable takes size / (link rate x efficiency), rounded up; a hop on the chip takes no cable."""
    made = plan(machine(link_bytes_per_second=10**9, link_efficiency_permille=700), [ROW], 64 * KIB)
    costs, asked = platform_costs(*made), ask(*made)
    rows = asked.demands[0].row
    size = made.schedule.rows.size[rows]
    assert (costs.occupancy_ps[rows] == -(-size * 10**4 // 7)).all()
    others = np.setdiff1d(np.arange(len(made.schedule)), rows)
    assert costs.occupancy_ps[others].max() <= 1


def test_two_rings_on_a_cable_get_half_of_it_each(plan: Callable) -> None:
    """Equal groups whose rings use the same directed cables take twice as long over each as one of them alone."""
    column = [(0, 16, 32, 48), (1, 17, 33, 49)]
    platform = machine(link_bytes_per_second=10**9)
    alone = plan(platform, column[:1], 64 * KIB)
    both = plan(platform, column, 64 * KIB)
    assert occupancies(platform_costs(*alone), ask(*alone).demands[0].row) == {64 * KIB // 16 * 1000}
    assert occupancies(platform_costs(*both), ask(*both).demands[0].row) == {64 * KIB // 16 * 2000}


def test_a_queue_with_little_to_send_is_not_slowed_to_the_end_of_the_others(plan: Callable) -> None:
    """A part is never under an equal one: no queue is slower than the number of queues that share the resource."""
    made = plan(
        machine(hbm_bytes_per_second=10**9), [ROW], 16 * 64 + 2
    )  # one element more than the first channel holds
    costs, (_, hbm, _) = platform_costs(*made), ask(*made).demands
    touched = np.zeros(len(made.schedule), np.int64)
    np.maximum.at(touched, hbm.row, hbm.size)
    assert (made.schedule.rows.queue[touched > 0] == 1).any()
    assert (costs.occupancy_ps <= touched * 1000 * 4 + 1).all()  # a rank's own queue and its predecessor's, 2 channels


@pytest.mark.parametrize(
    ("leaf", "touches"),
    [(Leaf.SEND, 1), (Leaf.RECV_REDUCE_SEND, 2), (Leaf.RECV_REDUCE_COPY, 3), (Leaf.DIRECT_RECV_SEND, 1)],
)
def test_hbm_touches_of_the_issuer_are_all_reads_and_own_writes(plan: Callable, leaf: Leaf, touches: int) -> None:
    """Reduce-scatter reads two and writes one, all-gather reads one and writes one (platforms §4.1, HBM touches)."""
    made = plan(machine(), [ROW], 64 * KIB)
    hbm = ask(*made).demands[1]
    rows = np.flatnonzero(made.schedule.rows.leaf == leaf)
    own = np.isin(hbm.row, rows) & (hbm.resource == made.schedule.rows.rank[hbm.row])
    assert (hbm.size[own] == touches * made.schedule.rows.size[hbm.row[own]]).all()
    assert own.sum() == rows.size


def test_hbm_bound_reduce_scatter_is_timed_by_all_touches_of_a_rank(plan: Callable) -> None:
    """A queue gets the part that its touches are of all: 32 of a rank's 47 a channel here, so two touches cost 2.94."""
    made = plan(machine(hbm_bytes_per_second=10**9), [ROW], 64 * KIB, EncOp.REDUCE_SCATTER)
    rows = np.flatnonzero(made.schedule.rows.leaf == Leaf.RECV_REDUCE_SEND)
    piece, channels = 1 * KIB, 2
    assert occupancies(platform_costs(*made), rows) == {2 * piece * 1000 * channels * 47 // 32}


def test_dma_reduces_at_half_of_the_copy_rate(plan: Callable) -> None:
    """DMA compute (CCE) runs at about half of the copy rate (platforms §2); the queues of a rank share its engines."""
    made = plan(machine(dma_engine_bytes_per_second=10**9, dma_engines=4), [ROW], 64 * KIB)
    leaf, rows = made.schedule.rows.leaf, made.schedule.rows
    scales = leaf == Leaf.DIRECT_COPY_SEND  # as if it multiplied its one source
    schedule = replace(made.schedule, rows=replace(rows, op=np.where(scales, np.uint8(Op.FMA), rows.op)))
    costs = platform_costs(schedule, *made[1:])
    piece = 64 * KIB // 16 // 2 // 2
    copy, reduce = (piece * 1000 * 2 * slower // 4 for slower in (1, 2))
    assert occupancies(costs, np.flatnonzero(leaf == Leaf.DIRECT_RECV_SEND)) == {copy}
    assert occupancies(costs, np.flatnonzero(leaf == Leaf.RECV_REDUCE_SEND)) == {reduce}
    assert occupancies(costs, np.flatnonzero(scales)) == {reduce}


def test_latency_is_the_cable_hop_the_chip_hop_or_both_at_a_gateway(plan: Callable) -> None:
    """A hop by cable, a hop on the chip, a hop through a gateway (cable and chip), and nothing without a hop."""
    platform = machine(hop_latency_ps=100, onchip_hop_latency_ps=7)
    full, lane = plan(platform, [ROW], 64 * KIB), plan(platform, [(0, 16, 32, 48)], 64 * KIB)
    latency = platform_costs(*full).latency_ps
    by_cable = ask(*full).demands[0].row
    stays = np.isin(full.schedule.rows.leaf, [Leaf.RECV_REDUCE_COPY, Leaf.DIRECT_RECV])
    assert set(latency[by_cable].tolist()) == {100}
    assert set(latency[stays].tolist()) == {0}
    assert set(np.delete(latency, np.concatenate([by_cable, np.flatnonzero(stays)])).tolist()) == {7}
    assert all(all(channel.gateway) for channel in wire(lane.platform, lane.request.groups[0]).channels)
    assert set(platform_costs(*lane).latency_ps[ask(*lane).demands[0].row].tolist()) == {107}


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
def test_all_costs_come_from_the_machine_file(plan: Callable, name: str) -> None:
    """With nothing limited and no latency, no row takes longer than the picosecond it is rounded up to."""
    made = plan(machine(name), [tuple(range(8))], 64 * KIB)
    costs = platform_costs(*made)
    assert costs.occupancy_ps.max() == 1
    assert costs.latency_ps.max() == 0
    assert lower_bound_ps(*made) == 0


@pytest.mark.parametrize(
    ("occupancy", "words"), [([5, -1], "occupancy_ps of row 1: expected 0 or more"), ([1 << 61, 1 << 61], "less data")]
)
def test_costs_that_are_no_times_are_refused(occupancy: list[int], words: str) -> None:
    """Time is whole picoseconds in 64 bits, never negative."""
    with pytest.raises(UsageError, match=words):
        Costs(occupancy_ps=np.array(occupancy), latency_ps=np.zeros(2, np.int64))
