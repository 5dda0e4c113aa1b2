"""Send, receive and the permutes: compose §9."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_pointtopoint import check, data_of, moved, own_names, plan

from rota.columns import owners
from rota.compose.pointtopoint import (
    POINT_TO_POINT,
    Moves,
    compose_point_to_point,
    implicit_pairs,
    permute_channels,
)
from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import RINGED, Request
from rota.schedule.ir import Leaf, Schedule
from rota.select import Settings
from rota.verify import find_order, traffic

SEND, RECV, PERMUTE = EncOp.SEND, EncOp.RECV, EncOp.PERMUTE
SHIFT, SHIFT_REDUCE = EncOp.PERMUTE_IMPLICIT, EncOp.PERMUTE_REDUCE_IMPLICIT
ROW = tuple(range(16))
GROUPS: dict[str, tuple[str, int, list[tuple[int, ...]]]] = {
    "one": ("trn2.48xlarge", 1, [(3,), (7,)]),
    "pair": ("trn1.32xlarge", 1, [(1, 0), (2, 3)]),
    "chip": ("trn2.48xlarge", 1, [(2, 0, 3, 1), (4, 5, 6, 7)]),
    "trn1 row": ("trn1.32xlarge", 1, [tuple(range(8)), tuple(range(15, 7, -1))]),
    "row": ("trn2.48xlarge", 1, [ROW]),
    "node": ("trn2.48xlarge", 1, [tuple(range(64))]),
    "network": ("trn2.48xlarge", 4, [(0, 64, 128, 192), (193, 1, 65, 129)]),
}
SMALL = Settings(chunk=128)


def asked_plan(case: str, kind: EncOp, count: int, **other: Any) -> Any:
    name, nodes, groups = GROUPS[case]
    return plan(name, groups, kind, count, nodes=nodes, **other)


def leaves(schedule: Schedule, rank: int, queue: int = 0) -> list[str]:
    rows = schedule.rows
    mine = (rows.rank == rank) & (rows.queue == queue)
    return [Leaf(leaf).name for leaf in rows.leaf[mine].tolist()]


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("count", [1, 77, 1000])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.INT8])
def test_an_implicit_permute_shifts_along_the_ring(case: str, count: int, dtype: Dtype) -> None:
    """Compose §9: target = ring next of the group, source = prev."""
    asked = asked_plan(case, SHIFT, count, dtype=dtype, settings=SMALL)
    data = data_of(asked.request, len(asked.request.members))
    want = np.zeros_like(data)
    number = {rank: at for at, rank in enumerate(asked.request.members)}
    for group, wiring in zip(asked.request.groups, asked.wirings, strict=True):
        ring = wiring.channels[0].order if wiring.channels else group
        for place, rank in enumerate(ring):
            want[number[rank]] = data[number[ring[place - 1]]]
    check(compose_point_to_point(asked), asked, want)


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.FP8_EXP4, Dtype.INT32])
def test_a_permute_reduce_delivers_both_operands_combined(case: str, op: CceType, dtype: Dtype) -> None:
    """Compose §5: out at next(r) = input_r combined with input1_r."""
    asked = asked_plan(case, SHIFT_REDUCE, 301, dtype=dtype, op=op, settings=SMALL)
    data = data_of(asked.request, len(asked.request.members))
    check(compose_point_to_point(asked), asked, moved(asked.request, data, implicit_pairs(asked)))


@pytest.mark.parametrize("kind", [SEND, RECV])
@pytest.mark.parametrize("case", ["one", "pair"])
@pytest.mark.parametrize("count", [1, 333])
def test_a_send_is_one_directed_movement(kind: EncOp, case: str, count: int) -> None:
    """Compose §5: one directed leg, from member 0 to member 1; both instructions describe the same."""
    asked = asked_plan(case, kind, count, settings=SMALL)
    schedule = compose_point_to_point(asked)
    ends = [(group[0], group[-1]) for group in asked.request.groups]
    check(schedule, asked, moved(asked.request, data_of(asked.request, schedule.ranks), ends))
    assert set(schedule.rows.queue.tolist()) == {0}, "compose §9: one channel"


PAIRS: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {
    "ring": ("chip", ((0, 1), (1, 2), (2, 3), (3, 0), (7, 4), (4, 5), (5, 6), (6, 7))),
    "swaps": ("chip", ((0, 1), (1, 0), (6, 7), (7, 6))),
    "chain": ("chip", ((3, 1), (1, 0))),
    "own targets": ("chip", ((2, 2), (0, 1), (5, 5), (6, 7), (7, 6))),
    "only own": ("chip", ((2, 2), (3, 3))),
    "one pair": ("row", ((15, 2),)),
    "between nodes": ("network", ((0, 64), (64, 192), (129, 1))),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("count", [1, 1000])
def test_a_permute_follows_its_pairs(name: str, count: int) -> None:
    """Compose §9: direct_send to the target, direct_recv from the source."""
    case, pairs = PAIRS[name]
    asked = asked_plan(case, PERMUTE, count, pairs=pairs, settings=SMALL)
    schedule = compose_point_to_point(asked)
    check(schedule, asked, moved(asked.request, data_of(asked.request, schedule.ranks), pairs))


def test_ranks_outside_the_pairs_have_no_rows() -> None:
    """Compose §9: ranks with no target skip the send, those with no source the receive, others take no part."""
    schedule = compose_point_to_point(asked_plan("chip", PERMUTE, 1, pairs=((3, 1), (1, 0))))
    first, middle, last, idle = (leaves(schedule, member) for member in (2, 3, 1, 0))
    assert first == ["DIRECT_SEND", "DIRECT_SEND"]
    assert middle == ["POST_RECV", "DIRECT_SEND", "DIRECT_SEND", "DIRECT_RECV", "DIRECT_RECV"]
    assert last == ["POST_RECV", "DIRECT_RECV", "DIRECT_RECV"]
    assert idle == []


def test_a_rank_that_is_its_own_target_copies() -> None:
    """A pair of one rank moves its input to its output, without a handshake."""
    schedule = compose_point_to_point(asked_plan("chip", PERMUTE, 100, pairs=((2, 2),)))
    assert leaves(schedule, 0) == ["DIRECT_COPY", "DIRECT_COPY"]
    assert schedule.semaphores == ()


@pytest.mark.parametrize(
    ("name", "group", "channels"),
    [
        ("trn2.48xlarge", range(64), 4),
        ("trn2.48xlarge", range(1, 64, 4), 4),
        ("trn2.48xlarge", range(16), 2),
        ("trn2.48xlarge", range(2), 1),
        ("trn1.32xlarge", range(32), 4),
        ("trn1.32xlarge", range(8), 2),
        ("trn2.48xlarge", [5], 1),
    ],
)
@pytest.mark.parametrize("kind", [SHIFT, PERMUTE])
def test_channels_of_a_permute(name: str, group: Any, channels: int, kind: EncOp) -> None:
    """Platforms §4.4: at most 4 channels when the group covers all devices of a node, else 2."""
    ring = tuple(group)
    pairs = tuple(zip(ring, (*ring[1:], *ring[:1]), strict=True)) if kind is PERMUTE else ()
    asked = plan(name, [ring], kind, 4096, pairs=pairs)
    assert permute_channels(asked) == channels
    schedule = compose_point_to_point(asked)
    assert set(schedule.rows.queue.tolist()) == set(range(channels))
    assert np.unique(schedule.rows.size[schedule.rows.size > 0]).tolist() == [4096 * 2 // channels // 2]


def test_more_wired_channels_than_a_permute_takes_are_left_out() -> None:
    """Platforms §4.4: the limit holds whatever the ring has."""
    whole, part = asked_plan("node", SHIFT, 1), asked_plan("row", SHIFT, 1)
    assert permute_channels(replace(whole, channels=16)) == 4
    assert permute_channels(replace(part, channels=16)) == 2
    mixed = replace(whole, channels=16, geometries=(*whole.geometries, *part.geometries))
    assert permute_channels(mixed) == 2


@pytest.mark.parametrize("case", ["pair", "chip", "row", "node", "network"])
def test_bytes_of_a_shift(case: str) -> None:
    """Every rank reads its buffer once, sends it once and gets one: nothing is staged."""
    asked = asked_plan(case, SHIFT, 1001)
    touched = traffic(compose_point_to_point(asked))
    assert set(touched.sent.tolist()) == set(touched.read.tolist()) == set(touched.written.tolist()) == {2002}


def test_a_permute_reduce_reads_two_and_writes_one() -> None:
    """Compose §2.1: direct_reduce_send_permute reads input and input1 of self and writes the target."""
    asked = asked_plan("row", SHIFT_REDUCE, 1001, op=CceType.ADD)
    schedule = compose_point_to_point(asked)
    touched = traffic(schedule)
    assert (set(touched.read.tolist()), set(touched.written.tolist())) == ({4004}, {2002})
    assert set(leaves(schedule, 5)) == {"POST_RECV", "DIRECT_REDUCE_SEND_PERMUTE", "DIRECT_RECV"}


@pytest.mark.parametrize(("count", "groups"), [(64, 1), (65, 2), (640, 10)])
def test_rows_of_a_send(count: int, groups: int) -> None:
    """One row for each chunk group and half on either side, and one that lets the sender in."""
    schedule = compose_point_to_point(asked_plan("pair", SEND, count, settings=SMALL))
    assert leaves(schedule, 0) == ["DIRECT_SEND"] * 2 * groups
    assert leaves(schedule, 1) == ["POST_RECV"] + ["DIRECT_RECV"] * 2 * groups
    assert len(set(own_names(schedule))) == len(schedule)


@pytest.mark.parametrize("slots", [3, 8, 32])
def test_credits_bound_what_is_under_way(slots: int) -> None:
    """A sender has as many rows under way as the channel has slots, and every credit it takes was given."""
    asked = asked_plan("pair", SEND, 640, settings=Settings(chunk=128, slots=slots))
    schedule = compose_point_to_point(asked)
    credit = [semaphore.name for semaphore in schedule.semaphores].index("credit.0")
    adds = schedule.signals.add[(schedule.signals.semaphore == credit) & (schedule.signals.rank == 0)].tolist()
    assert adds[0] == min(slots, 20)
    assert sum(adds) == 20


def test_a_schedule_names_its_rows_once() -> None:
    """Schedule §1: a device row is keyed by rank, queue, leg, step and part."""
    for kind in sorted(POINT_TO_POINT - {SEND, RECV}):
        pairs = PAIRS["own targets"][1] if kind is PERMUTE else ()
        op = CceType.ADD if kind is SHIFT_REDUCE else None
        schedule = compose_point_to_point(asked_plan("chip", kind, 1000, pairs=pairs, op=op, settings=SMALL))
        assert len(set(own_names(schedule))) == len(schedule)


@pytest.mark.parametrize("kind", sorted(RINGED))
def test_pairs_of_an_implicit_permute_are_kept(kind: EncOp) -> None:
    """An implicit permute that names its ring follows it, whatever the wiring says."""
    pairs = ((0, 2), (2, 1), (1, 3), (3, 0))
    op = CceType.ADD if kind is SHIFT_REDUCE else None
    asked = plan("trn2.48xlarge", [(0, 1, 2, 3)], kind, 10, op=op, pairs=pairs)
    assert implicit_pairs(asked) == pairs
    schedule = compose_point_to_point(asked)
    check(schedule, asked, moved(asked.request, data_of(asked.request, 4), pairs))


def test_pairs_of_the_wiring_make_a_request() -> None:
    """The pairs derived from the wiring are next-pairs of its first ring; a request takes them."""
    asked = asked_plan("chip", SHIFT, 10)
    pairs = implicit_pairs(asked)
    assert pairs == ((0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4))
    assert replace(asked.request, pairs=pairs).pairs == pairs
    assert implicit_pairs(asked_plan("one", SHIFT, 10)) == ((3, 3), (7, 7))


def test_two_ranks_send() -> None:
    """A send has one sender and one receiver."""
    with pytest.raises(UsageError, match=r"send of a group of 4: expected two ranks.*use permute"):
        compose_point_to_point(asked_plan("chip", SEND, 10))


@pytest.mark.parametrize("kind", [SEND, PERMUTE, SHIFT])
def test_without_a_ring_it_fails_at_once(kind: EncOp) -> None:
    """Compose §9: ring unavailable, fail at once with an error."""
    pairs = ((0, 1),) if kind is PERMUTE else ()
    wired = plan("trn1.32xlarge", [(0, 1)], kind, 10, pairs=pairs)
    bare = replace(wired, channels=0, wirings=tuple(replace(each, channels=()) for each in wired.wirings))
    with pytest.raises(UnsupportedError, match="takes a ring: ") as refusal:
        compose_point_to_point(bare)
    assert str(refusal.value.source) == "compose §9, ring unavailable, high"


def test_moves_of_pairs() -> None:
    """Pairs of machine ranks become positions of their groups, both ways; nobody is -1."""
    request = Request(PERMUTE, Dtype.BFLOAT16, 1, ((5, 9, 7), (1, 0, 2)), pairs=((9, 5), (5, 7), (2, 2)))
    moves = Moves.of(request, request.pairs)
    assert moves.target.tolist() == [[2, 0, -1], [-1, -1, 2]]
    assert moves.source.tolist() == [[1, -1, 0], [-1, -1, 2]]
    assert moves.stays.tolist() == [[False] * 3, [False, False, True]]
    assert (moves.sends.sum(), moves.receives.sum()) == (2, 2)


def test_no_row_writes_elsewhere_without_a_credit() -> None:
    """Schedule §5: what is written to another rank's output waits for that rank, whose first row lets it in."""
    pairs = PAIRS["own targets"][1]
    schedule = compose_point_to_point(asked_plan("chip", PERMUTE, 1000, pairs=pairs, settings=SMALL))
    assert find_order(schedule) == []
    credits = [at for at, semaphore in enumerate(schedule.semaphores) if semaphore.name.startswith("credit.")]
    assert [schedule.semaphores[at].initial for at in credits] == [0] * len(credits)
    paid = set(schedule.wait_row[np.isin(schedule.waits.semaphore, credits)].tolist())
    foreign = np.flatnonzero(schedule.targets.rank != schedule.rows.rank[owners(schedule.targets.ptr)])
    assert set(owners(schedule.targets.ptr)[foreign].tolist()) <= paid
    for target in (0, 1, 6, 7):
        member = schedule_member(target)
        entering = np.flatnonzero(schedule.rows.rank == member)
        expected = "POST_RECV" if target in {to for source, to in pairs if source != to} else "DIRECT_SEND"
        assert Leaf(int(schedule.rows.leaf[entering[0]])).name == expected


def schedule_member(rank: int) -> int:
    """The member of the schedule of "chip" that a machine rank is."""
    return [rank for group in GROUPS["chip"][2] for rank in group].index(rank)
