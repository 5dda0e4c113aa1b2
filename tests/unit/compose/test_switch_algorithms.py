"""The switch's algorithms end to end: switch_schedule §4 and §11, compose §12.6, design §2 (22), (23), (29)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import check, event_laws, events, exchanged, outputs
from tests.unit.compose.slow_switch import (
    A2A,
    A2AV,
    AG,
    AR,
    BANDWIDTH,
    GEN1,
    GEN2,
    LATENCY,
    MESH,
    RS,
    SINGLE,
    box,
    by_box,
    by_rank,
    plan,
)

from rota.compose.board import Board, Region
from rota.compose.chip_mesh import Shards
from rota.compose.switch.algorithms import compose_switch, write_all_gather
from rota.compose.switch.menu import slot_of
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.schedule.ir import Schedule
from rota.select import Plan, Settings
from rota.verify import find_order, traffic

Boxes = tuple[str, int, tuple[int, ...]]

FOUR, EIGHT, ALL16 = range(4), range(8), range(16)
BOXES: dict[str, Boxes] = {
    "gen2 4": (GEN2, 2, box(GEN2, 2, [0], [0, 2], [0, 2])),
    "gen2 8": (GEN2, 2, box(GEN2, 2, [3], [1, 2], FOUR)),
    "gen2 16": (GEN2, 2, box(GEN2, 2, [17], FOUR, FOUR)),
    "gen2 32": (GEN2, 2, box(GEN2, 2, [4, 5], FOUR, FOUR)),
    "gen2 64": (GEN2, 2, box(GEN2, 2, FOUR, FOUR, FOUR)),
    "gen2 4 + 4": (GEN2, 2, box(GEN2, 2, [1, 19], [3], FOUR)),
    "gen2 8 + 8": (GEN2, 2, box(GEN2, 2, [0, 18], [0, 1], FOUR)),
    "gen2 16 + 16": (GEN2, 2, box(GEN2, 2, [2, 20], FOUR, FOUR)),
    "gen2 32 + 32": (GEN2, 2, box(GEN2, 2, [0, 1, 18, 19], FOUR, FOUR)),
    "gen1 8": (GEN1, 2, box(GEN1, 2, [0], [14, 15], FOUR)),
    "gen1 16": (GEN1, 2, box(GEN1, 2, [0, 1], [4, 9], FOUR)),
    "gen1 64": (GEN1, 2, box(GEN1, 2, [1], ALL16, FOUR)),
    "gen1 4 + 4": (GEN1, 2, box(GEN1, 2, [0, 2], [0, 1], [1, 3])),
    "gen1 32 + 32": (GEN1, 2, box(GEN1, 2, [1, 3], EIGHT, FOUR)),
    "gen2 LNC1 4": (GEN2, 1, box(GEN2, 1, [0, 1], [0], [2, 6])),
    "gen2 LNC1 16": (GEN2, 1, box(GEN2, 1, [0], [2, 3], EIGHT)),
    "gen2 LNC1 32": (GEN2, 1, box(GEN2, 1, [7], FOUR, EIGHT)),
    "gen2 LNC1 8 + 8": (GEN2, 1, box(GEN2, 1, [0, 18], [0], EIGHT)),
    "gen1 LNC1 64": (GEN1, 1, box(GEN1, 1, [2, 3], FOUR, EIGHT)),
}
LARGE: dict[str, Boxes] = {
    "gen2 128": (GEN2, 2, box(GEN2, 2, EIGHT, FOUR, FOUR)),
    "gen2 64 + 64": (GEN2, 2, box(GEN2, 2, [0, 1, 2, 3, 18, 19, 20, 21], FOUR, FOUR)),
    "gen2 128 + 128": (GEN2, 2, box(GEN2, 2, [*EIGHT, *range(18, 26)], FOUR, FOUR)),
    "gen1 128": (GEN1, 2, box(GEN1, 2, [2, 3], ALL16, FOUR)),
    "gen1 128 + 128": (GEN1, 2, box(GEN1, 2, FOUR, ALL16, FOUR)),
    "gen2 LNC1 128": (GEN2, 1, box(GEN2, 1, FOUR, FOUR, EIGHT)),
    "gen1 LNC1 128": (GEN1, 1, box(GEN1, 1, [0], ALL16, EIGHT)),
    "gen1 LNC1 256": (GEN1, 1, box(GEN1, 1, [0, 1], ALL16, EIGHT)),
    "gen1 LNC1 64 + 64": (GEN1, 1, box(GEN1, 1, [0, 2], EIGHT, EIGHT)),
}
CI = ("gen2 64 + 64", "gen1 128")
ONE_A_CHIP: dict[str, Boxes] = {
    "gen2 4": (GEN2, 2, box(GEN2, 2, [0], FOUR, [1])),
    "gen2 2 + 2": (GEN2, 2, box(GEN2, 2, [0, 18], [1, 2], [3])),
    "gen1 whole": (GEN1, 2, box(GEN1, 2, FOUR, ALL16, [0])),
    "gen2 whole": (GEN2, 2, box(GEN2, 2, range(36), FOUR, [2])),
    "gen2 one a server": (GEN2, 2, box(GEN2, 2, range(36), [1], [0])),
    "gen1 LNC1": (GEN1, 1, box(GEN1, 1, [0, 1], ALL16, [7])),
}
CASES = [
    (AG, LATENCY, False),
    (AG, BANDWIDTH, False),
    (RS, MESH, False),
    (AR, SINGLE, False),
    (AR, SINGLE, True),
    (AR, LATENCY, False),
    (AR, LATENCY, True),
    (AR, BANDWIDTH, False),
    (AR, BANDWIDTH, True),
    (A2A, LATENCY, False),
]
EVENTS = {
    (AG, LATENCY): [1, 2, 3, 11, 0],
    (AG, BANDWIDTH): [1, 2, 3, 11, 7, 0],
    (RS, MESH): [2, 8, 9, 10, 0],
    (AR, SINGLE): [3, 11, 10, 0],
    (AR, LATENCY): [2, 8, 9, 10, 3, 11, 0],
    (AR, BANDWIDTH): [2, 8, 9, 10, 3, 11, 7, 0],
    (A2A, LATENCY): [1, 3, 11, 0],
}


def shuffled(group: tuple[int, ...], seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).permutation(group).tolist())


def forbidden(at: Boxes, kind: EncOp, algorithm: Algorithm) -> str:
    """What the refusal of a forced algorithm says; empty where it is allowed."""
    name, lnc, group = at
    racks = {rank // (load_platform(name, lnc=lnc).node_ranks * (2 if name == GEN1 else 18)) for rank in group}
    if algorithm is SINGLE and len(group) // len(racks) > 64:
        return "does not do all_reduce"
    if lnc == 1 and (algorithm is BANDWIDTH or kind is A2A):
        return "does not do"
    return ""


def compose_and_prove(asked: Plan, groups: list[tuple[int, ...]], *, laws: bool = True, **how: Any) -> Schedule:
    """Compose, verify, and hold equal to the loops; `laws` also counts notifies, which is slow."""
    schedule = compose_switch(asked, **how)
    request = asked.request

    def want(data: Any, number: int) -> list[Any]:
        if request.kind in (A2A, A2AV):
            return exchanged(request, data, number)
        single = asked.selected is SINGLE
        reduce = by_rank(groups[number]) if single else by_box(asked.platform, groups[number])
        return outputs(request, data, number, reduce)

    check(schedule, request, want)
    if laws:
        event_laws(schedule)
    return schedule


def prove_case(at: Boxes, kind: EncOp, algorithm: Algorithm, *, in_place: bool = False, laws: bool = True) -> None:
    name, lnc, group = at
    groups = [shuffled(group, len(group))]
    count = 777 if kind is AR else 3 * len(group)
    because = forbidden(at, kind, algorithm)
    if because:
        with pytest.raises(UnsupportedError, match=because):
            plan(name, lnc, groups, kind, count, algorithm)
        return
    asked = plan(name, lnc, groups, kind, count, algorithm, in_place=in_place)
    schedule = compose_and_prove(asked, groups, laws=laws)
    assert set(events(schedule)) <= set(EVENTS[kind, algorithm])
    assert [event for event in EVENTS[kind, algorithm] if event in events(schedule)] == events(schedule)


@pytest.mark.parametrize("where", BOXES)
@pytest.mark.parametrize(("kind", "algorithm", "in_place"), CASES)
def test_every_algorithm_on_every_box(where: str, kind: EncOp, algorithm: Algorithm, in_place: bool) -> None:
    """§11 check 6: equal to a plain reference, or refused by a gate; members in any order."""
    prove_case(BOXES[where], kind, algorithm, in_place=in_place)


@pytest.mark.parametrize("where", [pytest.param(name, marks=[pytest.mark.slow] * (name not in CI)) for name in LARGE])
@pytest.mark.parametrize(("kind", "algorithm"), [each[:2] for each in CASES if not each[2]])
def test_every_algorithm_on_the_largest_boxes(where: str, kind: EncOp, algorithm: Algorithm) -> None:
    """128 ranks in a rack, which is 32 chips at LNC 2, and boxes of two racks."""
    prove_case(LARGE[where], kind, algorithm, laws=False)


@pytest.mark.parametrize("where", ONE_A_CHIP)
@pytest.mark.parametrize(("kind", "algorithm", "want"), [(AG, MESH, [1, 3, 11, 0]), (RS, MESH, [8, 9, 10, 0]),
                                                          (AR, MESH, [1, 8, 9, 10, 3, 11, 0])])  # fmt: skip
def test_one_rank_on_every_chip(where: str, kind: EncOp, algorithm: Algorithm, want: list[int]) -> None:
    """Design §2 (29): the all-rank handshake takes the place of the others; no rank key is asked."""
    name, lnc, group = ONE_A_CHIP[where]
    groups = [shuffled(group, 1)]
    asked = plan(name, lnc, groups, kind, 500 if kind is AR else 2 * len(group), algorithm)
    assert "one-rank-per-chip" in asked.carrier.name or kind is RS  # type: ignore[union-attr]  # it was chosen
    found = events(compose_and_prove(asked, groups, laws=len(group) < 100))
    assert found == [event for event in want if event in found]


@pytest.mark.parametrize("where", ["gen2 4", "gen2 whole"])
def test_one_rank_per_chip_all_reduce_in_place(where: str) -> None:
    """What is reduced is read before it is written over; 36 rows are folded in two roundings."""
    name, lnc, group = ONE_A_CHIP[where]
    compose_and_prove(plan(name, lnc, [group], AR, 100, MESH, in_place=True), [group])


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP8_EXP4, Dtype.INT32])
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
@pytest.mark.parametrize("algorithm", [SINGLE, LATENCY, BANDWIDTH])
def test_types_and_operations(dtype: Dtype, op: CceType, algorithm: Algorithm) -> None:
    """Partials are rounded to the wire type: once by chip, once by row, once at the owner."""
    name, lnc, group = BOXES["gen2 8 + 8"]
    compose_and_prove(plan(name, lnc, [group], AR, 130, algorithm, dtype=dtype, op=op), [group])


@pytest.mark.parametrize(("kind", "algorithm"), [(AR, SINGLE), (AR, LATENCY), (AR, BANDWIDTH), (RS, MESH)])
@pytest.mark.parametrize("where", ["gen2 8 + 8", "gen2 4"])
@pytest.mark.parametrize("in_place", [False, True])
def test_only_inputs_are_scaled(kind: EncOp, algorithm: Algorithm, where: str, in_place: bool) -> None:
    """Design §2 (27): with scales 2, every input counts twice and no partial does."""
    if in_place and kind is RS:
        return
    name, lnc, group = BOXES[where]
    asked = plan(name, lnc, [group], kind, 32, algorithm, dtype=Dtype.FP32, op=CceType.FMA, scales=(2.0,),
                 in_place=in_place)  # fmt: skip
    reduce = by_rank(group) if algorithm is SINGLE else by_box(asked.platform, group)
    check(compose_switch(asked), asked.request, lambda data, g: outputs(asked.request, 2 * data, g, reduce))


@pytest.mark.parametrize("kind", [AR, RS])
def test_one_lane_scales_on_the_way(kind: EncOp) -> None:
    """A chip of one rank copies its input into a slot, scaled."""
    name, lnc, group = ONE_A_CHIP["gen2 4"]
    asked = plan(name, lnc, [group], kind, 32, MESH, dtype=Dtype.FP32, op=CceType.FMA, scales=(2.0,))
    reduce = by_box(asked.platform, group)
    check(compose_switch(asked), asked.request, lambda data, g: outputs(asked.request, 2 * data, g, reduce))


@pytest.mark.parametrize("count", [1, 15, 17, 33])
@pytest.mark.parametrize("algorithm", [SINGLE, LATENCY, BANDWIDTH])
@pytest.mark.parametrize("in_place", [False, True])
def test_fewer_elements_than_ranks(count: int, algorithm: Algorithm, in_place: bool) -> None:
    """Most slices are empty, and their rows still tell."""
    name, lnc, group = BOXES["gen2 16"]
    compose_and_prove(plan(name, lnc, [group], AR, count, algorithm, in_place=in_place), [group])


@pytest.mark.parametrize(("kind", "algorithm", "in_place"), CASES)
def test_several_groups_at_once(kind: EncOp, algorithm: Algorithm, in_place: bool) -> None:
    """Groups run side by side, each with its own order of members and its own shape."""
    groups = [
        shuffled(box(GEN2, 2, [0], [0, 1], FOUR), 3),
        shuffled(box(GEN2, 2, [0], [2, 3], FOUR), 4),
        shuffled(box(GEN2, 2, [5, 6], [1], FOUR), 5),
    ]
    compose_and_prove(plan(GEN2, 2, groups, kind, 8 * 5, algorithm, in_place=in_place), groups)


@pytest.mark.parametrize("algorithm", [LATENCY, BANDWIDTH])
@pytest.mark.parametrize("most", [32, 96])
def test_broadcasts_go_in_blocks_with_a_partial_tail(algorithm: Algorithm, most: int) -> None:
    """§6: block k is what the size leaves of k times the maximum, at least nothing."""
    name, lnc, group = BOXES["gen2 8 + 8"]
    asked = plan(name, lnc, [group], AG, 16 * 50, algorithm)
    schedule = compose_and_prove(asked, [group], max_block=most)
    sizes = schedule.rows.size[schedule.rows.size > 0]
    assert set(sizes.tolist()) == {most, 100 % most}


@pytest.mark.parametrize("algorithm", [SINGLE, LATENCY, BANDWIDTH])
def test_an_all_reduce_in_blocks(algorithm: Algorithm) -> None:
    """Blocks cut copies, never reductions."""
    name, lnc, group = BOXES["gen2 8"]
    schedule = compose_and_prove(plan(name, lnc, [group], AR, 8 * 90, algorithm), [group], max_block=64)
    copies = np.isin(schedule.rows.event, (3, 11, 7))
    assert schedule.rows.size[copies].max() == 64 < schedule.rows.size.max()


def test_too_many_blocks_are_refused() -> None:
    """A schedule numbers 65,535 parts of an event."""
    name, lnc, group = BOXES["gen2 8"]
    with pytest.raises(UnsupportedError, match="in blocks of 32 take 3125 blocks"):
        compose_switch(plan(name, lnc, [group], AG, 8 * 50000, LATENCY), max_block=32 * 1)
    with pytest.raises(UnsupportedError, match="send less at a time"):
        compose_switch(plan(name, lnc, [group], A2A, 8 * 40000, LATENCY), max_block=2)


@pytest.mark.parametrize("where", ["gen2 8", "gen2 8 + 8"])
def test_an_all_to_all_v_lands_where_it_should(where: str) -> None:
    """Pieces of any size, nothing among them; packed by the peers' order."""
    name, lnc, group = BOXES[where]
    ranks = len(group)
    counts = np.random.default_rng(5).integers(0, 9, (ranks, ranks))
    counts[1, :], counts[:, 2] = 0, 0
    asked = plan(name, lnc, [group], A2AV, int(counts.sum(axis=1).max()), LATENCY,
                 counts=tuple(map(tuple, counts.tolist())))  # fmt: skip
    compose_and_prove(asked, [group], max_block=6)


@pytest.mark.parametrize("where", ["gen2 8", "gen2 32 + 32", "gen1 4 + 4", "gen1 16", "gen2 LNC1 16"])
@pytest.mark.parametrize(("kind", "algorithm", "in_place"), [each for each in CASES if each[1] in (LATENCY, SINGLE)])
def test_through_proxy_buffers(where: str, kind: EncOp, algorithm: Algorithm, in_place: bool) -> None:
    """Compose §12.6: copies for another lane of another chip land with the sender's lane there, which hands them on."""
    name, lnc, ascending = BOXES[where]
    if forbidden(BOXES[where], kind, algorithm):
        return
    group = shuffled(ascending, 9)
    count = 777 if kind is AR else 3 * len(group)
    asked = plan(name, lnc, [group], kind, count, algorithm, in_place=in_place)
    schedule = compose_and_prove(asked, [group], laws=False, proxies=True)
    chip, lane = np.divmod(np.array(group), asked.platform.ranks_per_chip)
    row = np.repeat(np.arange(len(schedule)), np.diff(schedule.targets.ptr))
    here, there = schedule.rows.rank[row], schedule.targets.rank
    crossing = chip[here] != chip[there]
    assert crossing.any()
    assert (lane[here] == lane[there])[crossing].all()


@pytest.mark.parametrize(("kind", "algorithm"), [(AG, BANDWIDTH), (RS, MESH)])
def test_what_keeps_to_its_lane_needs_no_proxy(kind: EncOp, algorithm: Algorithm) -> None:
    """Bandwidth-optimised broadcasts and reductions go to the own lane of other chips."""
    name, lnc, group = BOXES["gen2 16"]
    asked = plan(name, lnc, [group], kind, 64, algorithm)
    assert compose_switch(asked, proxies=True) == compose_switch(asked)


def test_a_gather_of_unequal_shards() -> None:
    """Blocks may differ in size, and one may be empty."""
    name, lnc, group = BOXES["gen2 8"]
    board = Board(ranks=8, input_size=40, output_size=8 * 40)
    shards = Shards.packed([0, 40, 4, 8, 12, 36, 0, 20])
    slot = slot_of(load_platform(name, lnc=lnc), (group,), Settings(), 1)
    write_all_gather(board, slot, Region(board.input), Region(board.output), shards, max_block=16)
    schedule = board.schedule()
    assert {finding.rule for finding in find_order(schedule)} <= {"never_read"}
    data = np.random.default_rng(2).integers(0, 255, (8, 40)).astype(np.uint8)
    whole = np.concatenate([data[rank, :size] for rank, size in enumerate(shards.size.tolist())])
    assert (execute(schedule, data)[:, : whole.size] == whole).all()


def test_what_is_refused() -> None:
    """Any other family; a bandwidth-optimised algorithm at LNC 1; an operation that a ring carries."""
    asked = plan(GEN2, 2, [BOXES["gen2 8"][2]], AG, 16, LATENCY)
    other = replace(asked, platform=load_platform("trn2.48xlarge"))
    with pytest.raises(UnsupportedError, match="unsupported instance family for event-based algorithms"):
        compose_switch(other)
    with pytest.raises(UnsupportedError, match="no subtype of the switch carries all_gather"):
        compose_switch(replace(asked, carrier=None))
    with pytest.raises(UnsupportedError, match="bandwidth-opt all-gather does not support LNC1"):
        compose_switch(replace(asked, platform=load_platform(GEN2, lnc=1), carrier=replace(asked.carrier, slot=1)))  # type: ignore[type-var]  # a subtype


@pytest.mark.parametrize(("kind", "algorithm"), [each[:2] for each in CASES if not each[2]])
def test_two_composed_plans_are_equal(kind: EncOp, algorithm: Algorithm) -> None:
    """Composing is a function of the plan."""
    name, lnc, group = BOXES["gen2 8"]
    first, second = (compose_switch(plan(name, lnc, [group], kind, 80, algorithm)) for _ in range(2))
    assert first == second


def test_a_gather_writes_each_block_once_to_each_rank() -> None:
    """Latency: N-1 copies of a block leave a rank. Bandwidth: one for each other chip, then N/L for every mate."""
    name, lnc, group = BOXES["gen2 32 + 32"]
    share = 8
    latency, bandwidth = (
        compose_switch(plan(name, lnc, [group], AG, 64 * share // 2, algorithm)) for algorithm in (LATENCY, BANDWIDTH)
    )
    assert set(traffic(latency).sent.tolist()) == {63 * share}
    assert set(traffic(bandwidth).sent.tolist()) == {(15 + 16 * 3) * share}


def test_a_row_reads_at_most_the_chip_the_row_or_the_column() -> None:
    """Compose §12.6: L inputs, then C partials, then R."""
    name, lnc, group = BOXES["gen2 64"]
    schedule = compose_switch(plan(name, lnc, [group], RS, 64, MESH))
    sources = np.diff(schedule.sources.ptr)
    for event, want in ((8, 4), (9, 4), (10, 4)):
        assert set(sources[(schedule.rows.event == event) & (schedule.rows.size > 0)].tolist()) == {want}
