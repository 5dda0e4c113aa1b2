"""Laws of recursive halving and doubling, and of the single cycle: right data, a proved order, closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.compose.slow_recursive import corners, slow_inter, slow_intra, slow_single_cycle, twice

from rota.compose.cube import shard_sizes
from rota.compose.intra_rdh import compose_intra_rdh
from rota.compose.recursive import compose_inter_rdh
from rota.compose.single_cycle import compose_single_cycle
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import Platform, load_platform
from rota.native.arithmetic import Combine
from rota.request import COMPOSED, Request
from rota.schedule.ir import Schedule
from rota.select import Plan, Settings, select
from rota.verify import traffic, verify
from rota.verify.order import find_order

AR, AG = EncOp.ALLREDUCE, EncOp.ALLGATHER
NODES = load_platform("trn2.48xlarge", nodes=32)
ON_NODE = {lnc: load_platform("trn2.48xlarge", lnc=lnc) for lnc in (1, 2)}
DTYPES = (Dtype.BFLOAT16, Dtype.FP32, Dtype.FP8_EXP4)
COMBINE = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}
CUBES = (((4,), (11,)), ((0, 3), (4, 5), (8, 12)), ((0, 1, 2, 3), (8, 9, 10, 11)), ((0, 1, 5, 4), (2, 3, 7, 6)))

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Asked:
    """A request, what it runs on, and how."""

    request: Request
    platform: Platform
    settings: Settings
    rotate: bool = False

    @property
    def plan(self) -> Plan:
        return select(self.request, self.platform, self.settings)

    def inputs(self) -> Array:
        dtype = numpy_dtype(self.request.dtype)
        shape = len(self.request.members), self.request.input_size // dtype.itemsize
        return (np.random.default_rng(shape).standard_normal(shape) * 3).astype(dtype)

    def sent(self) -> list[int]:
        """Return the bytes each rank sends: every other shard once in each phase."""
        ranks, sizes = self.request.ranks, np.full(self.request.ranks, self.request.share)
        if self.request.kind is AR:
            sizes, _ = shard_sizes(self.request.size, ranks)
        given = int(sizes.sum()) - sizes
        own = sizes * (ranks - 1)  # in all, a gather sends each shard to all others; which rank does varies
        return [int(given.sum()), int(own.sum())]


@st.composite
def requests(draw: st.DrawFn, groups: tuple[tuple[int, ...], ...], kinds: tuple[EncOp, ...] = COMPOSED) -> Request:
    """Any request on these groups, each in an order of its own: odd sizes, few elements, in place."""
    kind = draw(st.sampled_from(kinds))
    ranks = len(groups[0])
    per_rank = draw(st.integers(1, 40))
    return Request(
        kind,
        draw(st.sampled_from(DTYPES)),
        draw(st.integers(1, 60 * ranks)) if kind is AR else per_rank * ranks,
        tuple(tuple(draw(st.permutations(group))) for group in groups),
        None if kind is AG else draw(st.sampled_from(list(COMBINE))),
        in_place=kind is AR and draw(st.booleans()),
    )


@st.composite
def between_nodes(draw: st.DrawFn, *, powers: bool = True) -> Asked:
    """Any inter-RDH or single cycle: one rank on each node, any receive window that fits the scratch."""
    ranks = 1 << draw(st.integers(0, 4)) if powers else draw(st.integers(1, 12))
    count = draw(st.integers(1, 2))
    groups = tuple(tuple(range(local, NODES.node_ranks * ranks, NODES.node_ranks)) for local in range(count))
    chunk, window = draw(st.sampled_from([64, 128, 1 << 20])), draw(st.integers(0, 6))
    buffer = draw(st.sampled_from([1 << 13, 1 << 25]))
    options = Settings(chunk=chunk, inter_rdh_window=window, inter_rdh_buffer=buffer)
    request = draw(requests(groups, COMPOSED if powers else (AR,)))
    return Asked(request, NODES, options if powers else Settings())


@st.composite
def on_a_node(draw: st.DrawFn) -> Asked:
    """Any intra-RDH: 1, 2 or 4 chips, some groups at once, any scratch, lanes apart or not."""
    machine = ON_NODE[draw(st.integers(1, 2))]
    per_chip = machine.ranks_per_chip
    chips = draw(st.sampled_from(CUBES))
    some = chips[: draw(st.integers(1, len(chips)))]
    groups = tuple(tuple(per_chip * chip + lane for chip in group for lane in range(per_chip)) for group in some)
    scratch = draw(st.sampled_from([None, 256, 1024]))
    request = draw(requests(groups))
    return Asked(request, machine, Settings(intra_rdh_buffer=scratch), draw(st.booleans()))


def proved(schedule: Schedule, asked: Asked) -> Schedule:
    verify(schedule, asked.request)
    assert [str(finding) for finding in find_order(schedule)] == []
    return schedule


def runs_again(schedule: Schedule) -> bool:
    """Return whether an operation may follow itself at once; that nobody reads the first result is no matter."""
    return {finding.rule for finding in find_order(twice(schedule))} <= {"never_read"}


def parts(asked: Asked) -> list[Array]:
    return np.split(asked.inputs(), len(asked.request.groups))


def combine(asked: Asked) -> Combine:
    return Combine.COPY if asked.request.op is None else COMBINE[asked.request.op]


@settings(max_examples=60, deadline=None)
@given(asked=between_nodes())
def test_inter_rdh(asked: Asked) -> None:
    """Any window leaves each contribution once, races with nothing, and gives the bits of the loops."""
    schedule = proved(compose_inter_rdh(asked.plan), asked)
    expected = [slow_inter(asked.request.kind, part, combine(asked)) for part in parts(asked)]
    assert execute(schedule, asked.inputs()).tobytes() == np.concatenate(expected).tobytes()


@settings(max_examples=60, deadline=None)
@given(asked=on_a_node())
def test_intra_rdh(asked: Asked) -> None:
    """Any scratch, order of lanes and of members: each contribution once, no race, the bits of the loops."""
    schedule = proved(compose_intra_rdh(asked.plan, rotate_lanes=asked.rotate), asked)
    expected = [
        slow_intra(asked.request.kind, part, combine(asked), corners(asked.platform, group), rotate=asked.rotate)
        for part, group in zip(parts(asked), asked.request.groups, strict=True)
    ]
    assert execute(schedule, asked.inputs()).tobytes() == np.concatenate(expected).tobytes()


@settings(max_examples=40, deadline=None)
@given(asked=between_nodes(powers=False))
def test_single_cycle(asked: Asked) -> None:
    """Any ring of nodes: each contribution once, no race, one fold in rank order on every rank."""
    schedule = proved(compose_single_cycle(asked.plan), asked)
    expected = [slow_single_cycle(part, combine(asked)) for part in parts(asked)]
    assert execute(schedule, asked.inputs()).tobytes() == np.concatenate(expected).tobytes()


@settings(max_examples=60, deadline=None)
@given(asked=st.one_of(between_nodes(), on_a_node()))
def test_operations_back_to_back(asked: Asked) -> None:
    """A rank may begin the next operation while others are still in this one: no slot is written before it is read."""
    inter = asked.platform is NODES
    assert runs_again(compose_inter_rdh(asked.plan) if inter else compose_intra_rdh(asked.plan))


@settings(max_examples=20, deadline=None)
@given(asked=between_nodes(powers=False))
def test_single_cycles_back_to_back(asked: Asked) -> None:
    """The same for the single cycle."""
    assert runs_again(compose_single_cycle(asked.plan))


@settings(max_examples=40, deadline=None)
@given(asked=st.one_of(between_nodes(), on_a_node()))
def test_bytes_sent(asked: Asked) -> None:
    """A group sends every shard to every other rank once in each phase, whatever the window, scratch and axes."""
    inter = asked.platform is NODES
    schedule = compose_inter_rdh(asked.plan) if inter else compose_intra_rdh(asked.plan, rotate_lanes=asked.rotate)
    scattered, gathered = asked.sent()
    phases = scattered * (asked.request.kind is not AG) + gathered * (asked.request.kind in (AG, AR))
    assert int(traffic(schedule).sent.sum()) == phases * len(asked.request.groups)


@settings(max_examples=30, deadline=None)
@given(asked=between_nodes())
def test_slots_are_bounded(asked: Asked) -> None:
    """Slots are no more than the window, nor, where none is set, than fit the scratch or one."""
    schedule = compose_inter_rdh(asked.plan)
    slots = sum(buffer.size for buffer in schedule.buffers if buffer.name == "slot")
    _, stride = shard_sizes(asked.request.size, asked.request.ranks)
    tile = min(stride, -(-asked.settings.chunk // 32) * 32)
    most = asked.settings.inter_rdh_window * tile or max(asked.settings.inter_rdh_buffer, tile)
    assert slots <= most


@settings(max_examples=20, deadline=None)
@given(asked=st.one_of(between_nodes(), on_a_node()))
def test_equal_plans_give_equal_schedules(asked: Asked) -> None:
    """Composing is a function of the plan."""
    compose = compose_inter_rdh if asked.platform is NODES else compose_intra_rdh
    assert compose(asked.plan) == compose(asked.plan)
