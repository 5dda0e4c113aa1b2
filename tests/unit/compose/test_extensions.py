"""What the runtime refuses: permute-reduce by pairs, broadcast, reduce, all-gather of unequal shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_pointtopoint import chained, check, data_of, moved, own_names, plan, windows

from rota.compose.extensions import EXTENSIONS, can_all_gather_v, compose_extension
from rota.compose.pointtopoint import window
from rota.errors import UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.schedule.ir import Leaf, Schedule
from rota.select import Settings
from rota.verify import traffic

BROADCAST, REDUCE, PERMUTE_REDUCE, GATHER = EncOp.BROADCAST, EncOp.REDUCE, EncOp.PERMUTE_REDUCE, EncOp.ALLGATHER
GROUPS: dict[str, tuple[str, int, list[tuple[int, ...]]]] = {
    "one": ("trn2.48xlarge", 1, [(3,), (7,)]),
    "pair": ("trn1.32xlarge", 1, [(1, 0), (2, 3)]),
    "chip": ("trn2.48xlarge", 1, [(2, 0, 3, 1), (4, 5, 6, 7)]),
    "trn1 row": ("trn1.32xlarge", 1, [tuple(range(8)), tuple(range(15, 7, -1))]),
    "node": ("trn2.48xlarge", 1, [tuple(range(64))]),
    "network": ("trn2.48xlarge", 4, [(0, 64, 128, 192), (193, 1, 65, 129)]),
}
SMALL = Settings(chunk=128, slots=3)
COUNTS = (3, 0, 40, 1)


def asked_plan(case: str, kind: EncOp, count: int, **other: Any) -> Any:
    name, nodes, groups = GROUPS[case]
    return plan(name, groups, kind, count, nodes=nodes, **other)


def leaves(schedule: Schedule, rank: int, queue: int = 0) -> list[str]:
    rows = schedule.rows
    mine = (rows.rank == rank) & (rows.queue == queue) & (rows.part == 0)
    return [Leaf(leaf).name for leaf in rows.leaf[mine].tolist()]


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("count", "dtype"), [(1, Dtype.INT8), (301, Dtype.BFLOAT16), (1000, Dtype.FP32)])
def test_a_broadcast_leaves_the_root_everywhere(case: str, last: bool, count: int, dtype: Dtype) -> None:
    """Compose §5: a ring chain from the root."""
    root = len(GROUPS[case][2][0]) - 1 if last else 0
    asked = asked_plan(case, BROADCAST, count, root=root, dtype=dtype, settings=SMALL)
    schedule = compose_extension(asked)
    check(schedule, asked, chained(asked, data_of(asked.request, schedule.ranks)))
    assert len(set(own_names(schedule))) == len(schedule)


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP32, Dtype.FP8_EXP4, Dtype.INT32])
def test_a_reduce_leaves_the_reduction_at_the_root(case: str, op: CceType, dtype: Dtype) -> None:
    """Compose §5: a chain like a ring's reduce-scatter that ends at the root; it rounds once a hop."""
    root = len(GROUPS[case][2][0]) // 2
    asked = asked_plan(case, REDUCE, 301, root=root, dtype=dtype, op=op, settings=SMALL)
    schedule = compose_extension(asked)
    check(schedule, asked, chained(asked, data_of(asked.request, schedule.ranks)))
    assert len(set(own_names(schedule))) == len(schedule)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_reduce_of_few_elements(count: int) -> None:
    """Channels and halves without data move nothing and stay balanced."""
    asked = asked_plan("node", REDUCE, count, op=CceType.ADD, root=9)
    schedule = compose_extension(asked)
    check(schedule, asked, chained(asked, data_of(asked.request, schedule.ranks)))


def test_leaves_of_a_broadcast() -> None:
    """Compose §5: root send; others direct_recv_send; last direct_recv."""
    schedule = compose_extension(asked_plan("chip", BROADCAST, 1000, root=0))
    order = [GROUPS["chip"][2][0].index(rank) for rank in (2, 3, 0, 1)]
    assert [leaves(schedule, member) for member in order] == [
        ["SEND", "DIRECT_COPY"],
        ["POST_RECV", "DIRECT_RECV_SEND"],
        ["POST_RECV", "DIRECT_RECV_SEND"],
        ["POST_RECV", "DIRECT_RECV"],
    ]


def test_leaves_of_a_reduce() -> None:
    """A reduce has the leaves of a ring's reduce-scatter, and its root, the last, never sends."""
    schedule = compose_extension(asked_plan("chip", REDUCE, 1000, root=0, op=CceType.ADD))
    order = [GROUPS["chip"][2][0].index(rank) for rank in (3, 0, 1, 2)]
    middle = ["RECV_REDUCE_SEND"]
    assert [leaves(schedule, member) for member in order] == [["SEND"], middle, middle, ["RECV_REDUCE_COPY"]]


@pytest.mark.parametrize("case", ["pair", "chip", "node", "network"])
def test_bytes_of_a_broadcast(case: str) -> None:
    """All but the last of each chain send the buffer once; the root reads it once more for its own output."""
    asked = asked_plan(case, BROADCAST, 4096, root=1)
    touched, ranks = traffic(compose_extension(asked)), asked.request.ranks
    groups, size = len(asked.request.groups), asked.request.size
    assert int(touched.sent.sum()) == groups * (ranks - 1) * size
    assert set(touched.written.tolist()) == {size}
    assert touched.read.reshape(groups, ranks)[:, 1].tolist() == [2 * size] * groups
    assert int(touched.read.sum()) == groups * ranks * size


@pytest.mark.parametrize("case", ["pair", "chip", "node", "network"])
def test_bytes_of_a_reduce(case: str) -> None:
    """All but the root send one partial; every hop but the first reads two and writes one."""
    asked = asked_plan(case, REDUCE, 4096, root=1, op=CceType.ADD)
    touched, ranks = traffic(compose_extension(asked)), asked.request.ranks
    groups, size = len(asked.request.groups), asked.request.size
    assert touched.sent.reshape(groups, ranks)[:, 1].tolist() == [0] * groups
    assert int(touched.sent.sum()) == groups * (ranks - 1) * size
    assert int(touched.written.sum()) == groups * ranks * size
    assert int(touched.read.sum()) == groups * (2 * ranks - 1) * size


@pytest.mark.parametrize("kind", [BROADCAST, REDUCE])
def test_a_chain_runs_around_every_channel(kind: EncOp) -> None:
    """Half the channels run the other way, so the second of a chain differs from channel to channel."""
    op = CceType.ADD if kind is REDUCE else None
    asked = asked_plan("node", kind, 1 << 16, root=0, op=op)
    schedule = compose_extension(asked)
    assert set(schedule.rows.queue.tolist()) == {0, 1, 2, 3}
    leaf, step = (Leaf.DIRECT_RECV_SEND, 2) if kind is BROADCAST else (Leaf.RECV_REDUCE_SEND, 63)
    for queue, channel in enumerate(asked.wirings[0].channels):
        root = channel.order.index(0)
        neighbour = channel.order[(root + 1) % 64 if kind is BROADCAST else root - 1]
        row = (schedule.rows.queue == queue) & (schedule.rows.leaf == leaf) & (schedule.rows.step == step)
        assert set(schedule.rows.rank[row].tolist()) == {neighbour}


@pytest.mark.parametrize("kind", [BROADCAST, REDUCE])
def test_a_row_has_one_target(kind: EncOp) -> None:
    """Design §2 (19): Trn1 cannot write twice in one row, so the root of a broadcast copies its own output apart."""
    schedule = compose_extension(asked_plan("trn1 row", kind, 100, op=CceType.ADD if kind is REDUCE else None))
    assert int(np.diff(schedule.targets.ptr).max()) == 1


@pytest.mark.parametrize(
    ("case", "pairs"),
    [
        ("chip", ((0, 1), (1, 2), (2, 3), (3, 0), (7, 4), (4, 5), (5, 6), (6, 7))),
        ("chip", ((3, 1), (1, 0), (5, 5))),
        ("network", ((0, 64), (64, 192), (129, 1))),
        ("one", ((3, 3),)),
    ],
)
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX])
def test_a_permute_reduce_follows_its_pairs(case: str, pairs: Any, op: CceType) -> None:
    """Compose §5: as permute-reduce-implicit, with explicit pairs."""
    asked = asked_plan(case, PERMUTE_REDUCE, 301, pairs=pairs, op=op, settings=SMALL)
    schedule = compose_extension(asked)
    check(schedule, asked, moved(asked.request, data_of(asked.request, schedule.ranks), pairs))
    moving = schedule.rows.leaf[schedule.rows.size > 0]
    assert set(moving.tolist()) == {Leaf.DIRECT_REDUCE_SEND_PERMUTE}


@pytest.mark.parametrize("kind", sorted(EXTENSIONS))
def test_an_extension_needs_a_ring(kind: EncOp) -> None:
    """Compose §9: ring unavailable, fail at once with an error."""
    op = None if kind is BROADCAST else CceType.ADD
    wired = asked_plan("pair", kind, 10, op=op, pairs=((0, 1),) if kind is PERMUTE_REDUCE else ())
    bare = replace(wired, channels=0, wirings=tuple(replace(each, channels=()) for each in wired.wirings))
    with pytest.raises(UnsupportedError, match="takes a ring: "):
        compose_extension(bare)


def gathered(data: Any, counts: tuple[int, ...]) -> Any:
    """The first counts[k] elements of each member, end to end, for all members of each group."""
    groups = data.reshape(-1, len(counts), data.shape[1])
    whole = [np.concatenate([row[:count] for row, count in zip(group, counts, strict=True)]) for group in groups]
    return np.repeat(np.array(whole), len(counts), axis=0)


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP16, Dtype.INT8])
@pytest.mark.parametrize("counts", [COUNTS, (0, 0, 0, 7), (5, 5, 5, 5)])
def test_an_all_gather_of_unequal_shards(dtype: Dtype, counts: tuple[int, ...]) -> None:
    """Out is the members' elements end to end, each as many as it says; some may give none."""
    asked = asked_plan("chip", GATHER, sum(counts), gather_counts=counts, dtype=dtype)
    schedule = compose_extension(asked)
    check(schedule, asked, gathered(data_of(asked.request, schedule.ranks), counts))
    sent = traffic(schedule).sent.reshape(2, 4)
    assert sent.tolist() == [[3 * count * asked.request.itemsize for count in counts]] * 2


@pytest.mark.parametrize(
    ("name", "lnc", "group", "reason"),
    [
        ("trn2.48xlarge", 2, (0, 1, 2, 3), ""),
        ("trn2.48xlarge", 2, (11, 8, 10, 9), ""),
        ("trn2.48xlarge", 1, (0, 1, 2, 3), "an all-gather of unequal shards is for LNC 2, not 1"),
        ("trn1.32xlarge", 1, (0, 1), "an all-gather of unequal shards is for LNC 2, not 1"),
        ("trn2.48xlarge", 2, (0, 1), "an all-gather of unequal shards is for the 4 ranks of one chip, not 2 on 1 chip"),
        ("trn2.48xlarge", 2, (0, 4, 8, 12), "an all-gather of unequal shards is for the 4 ranks of one chip, not 4 on"),
        (
            "trn2.48xlarge",
            2,
            tuple(range(16)),
            "an all-gather of unequal shards is for the 4 ranks of one chip, not 16",
        ),
    ],
)
def test_where_an_all_gather_of_unequal_shards_runs(name: str, lnc: int, group: tuple[int, ...], reason: str) -> None:
    """Platforms §5: LNC 2, exactly 4 ranks of one chip."""
    counts = tuple(range(len(group)))
    asked = plan(name, [group], GATHER, sum(counts), lnc=lnc, gather_counts=counts)
    verdict = can_all_gather_v(asked, any_group=False)
    assert bool(verdict) is not bool(reason)
    assert verdict.reason.startswith(reason)
    assert str(verdict.source) == "platforms §5, AllGatherV, high"
    assert can_all_gather_v(asked, any_group=True)
    schedule = compose_extension(asked, any_group=True)
    check(schedule, asked, gathered(data_of(asked.request, schedule.ranks), counts))
    if reason:
        with pytest.raises(UnsupportedError, match="use equal shards, or allow any group"):
            compose_extension(asked)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 255, 256, 257, 4096, 5000])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_windows_cover_the_buffer_once(size: int, channels: int) -> None:
    """Select §8: passes = ceil(size / (channels * chunk)); the last shares the rest."""
    pieces = window(size, channels=channels, chunk=128)
    found = [
        (channel, int(offset[0]), int(offset[0] + size.sum()))
        for group in range(pieces.groups)
        for channel, (offset, size) in enumerate(zip(pieces.offset[group, :, 0], pieces.size[group, :, 0], strict=True))
    ]
    assert found == windows(size, channels, 128)
    assert pieces.groups == -(-size // (channels * 128))
