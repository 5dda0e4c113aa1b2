"""The ring, row by row: the tables of compose §6.2-6.3 as plain loops, held equal to what is composed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_ring import AG, AR, RS, SlowRing

from rota.compose.cut import MAX_CHUNK_GROUPS, cut
from rota.compose.ring import MAX_CHANNELS, compose_ring
from rota.errors import RotaError, UnsupportedError, UsageError
from rota.isa.enums import CceType, EncOp
from rota.schedule.ir import Leaf, Schedule
from rota.schedule.text import to_text

ORDERS = {
    2: [[0, 1]],
    3: [[0, 1, 2], [0, 2, 1]],
    4: [[0, 1, 2, 3], [2, 0, 3, 1]],
    8: [[1, 0, 3, 2, 5, 4, 7, 6], [6, 7, 4, 5, 2, 3, 0, 1]],
}
SENDS = {Leaf.SEND, Leaf.RECV_REDUCE_SEND, Leaf.DIRECT_COPY_SEND, Leaf.DIRECT_RECV_SEND}


def ring(orders: Any, kind: EncOp = AR, **other: Any) -> Schedule:
    op = {} if kind is AG else {"op": CceType.ADD}
    return compose_ring(orders, **{"kind": kind, **op, **other})


# --- rows -----------------------------------------------------------------------------------------------------------


def rows_by_lane(schedule: Schedule) -> dict[str, list[str]]:
    """Return the lines of each rank and channel, in order."""
    lanes = defaultdict(list)
    for line in to_text(schedule).splitlines():
        if line[0].isdigit():
            lanes[line.split()[0]].append(line)
    return lanes


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("ranks", ORDERS)
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize(("size", "chunk", "slots"), [(64 * 48, 2 << 20, 8), (64 * 48 + 72, 64, 3), (24, 128, 4)])
def test_every_row(kind: EncOp, ranks: int, halves: int, size: int, chunk: int, slots: int) -> None:
    """Who sends which chunk from where to where at each step, with which waits and signals. Source: compose §6.2-6.3.

    One pass, several chunk groups with a small last one, and less data than pieces; in halves and whole.
    """
    size = size // ranks * ranks
    orders = ORDERS[ranks]
    lanes = rows_by_lane(ring(orders, kind, size=size, halves=halves, chunk=chunk, slots=slots))
    pieces = cut(kind, size, ranks=ranks, channels=len(orders), halves=halves, chunk=chunk)
    assert sorted(lanes) == sorted(f"{r}.{c}" for r in range(ranks) for c in range(len(orders)))
    for channel, order in enumerate(orders):
        for rank in range(ranks):
            assert lanes[f"{rank}.{channel}"] == list(SlowRing(kind, order, rank, channel, pieces, slots).lines())


def moved(schedule: Schedule, leaf: Leaf, *, table: str, chunk_size: int) -> dict[tuple[int, int], set[int]]:
    """Return (step, rank) -> the chunks that rows of a leaf read or write in the user buffers."""
    places, found = getattr(schedule, table), defaultdict(set)
    for row in np.flatnonzero(schedule.rows.leaf == leaf).tolist():
        for entry in range(int(places.ptr[row]), int(places.ptr[row + 1])):
            if schedule.buffers[int(places.buffer[entry])].user:
                at = int(schedule.rows.step[row]), int(schedule.rows.rank[row])
                found[at].add(int(places.offset[entry]) // chunk_size)
    return dict(found)


def test_chunks_of_a_ring_of_four() -> None:
    """Step 0 sends chunk r-1, each later step the one before; rank r ends with chunk r, then gathers r-1, r-2, ...

    The table is written out for ranks 0 1 2 3 in order.
    """
    schedule = ring([[0, 1, 2, 3]], size=4 * 64)
    sends = {0: [3, 0, 1, 2], 1: [2, 3, 0, 1], 2: [1, 2, 3, 0]}
    keeps = {3: [0, 1, 2, 3]}
    passes = {5: [3, 0, 1, 2], 6: [2, 3, 0, 1]}
    for leaf, table, steps in [
        (Leaf.SEND, "sources", {0: sends[0]}),
        (Leaf.RECV_REDUCE_SEND, "sources", {1: sends[1], 2: sends[2]}),
        (Leaf.RECV_REDUCE_COPY, "targets", keeps),
        (Leaf.DIRECT_COPY_SEND, "targets", {4: [0, 1, 2, 3]}),
        (Leaf.DIRECT_RECV_SEND, "targets", passes),
    ]:
        expected = {(step, rank): {chunk} for step, row in steps.items() for rank, chunk in enumerate(row)}
        assert moved(schedule, leaf, table=table, chunk_size=64) == expected


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_reduce_scatter_ends_with_chunk_r_on_rank_r(ranks: int) -> None:
    """Rank r ends owning chunk r, in whatever order the ring runs: its shard is the whole output."""
    order = [(3 * i + 1) % ranks if ranks % 3 else (ranks - 1 - i) for i in range(ranks)]
    schedule = ring([order], RS, size=ranks * 128)
    last = schedule.rows.leaf == Leaf.RECV_REDUCE_COPY
    assert sorted(schedule.rows.rank[last].tolist()) == sorted(2 * list(range(ranks)))
    read = moved(schedule, Leaf.RECV_REDUCE_COPY, table="sources", chunk_size=128)
    assert read == {(ranks - 1, rank): {rank} for rank in range(ranks)}
    assert schedule.buffers[schedule.output].size == 128


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("halves", [1, 2])
def test_counts(ranks: int, channels: int, halves: int) -> None:
    """Rows that send: 2(N-1) per half, chunk group and channel of each rank; all rows 2N."""
    schedule = ring([range(ranks)] * channels, size=ranks * channels * 64 * 3, halves=halves, chunk=128)
    lanes = ranks * channels * halves * 2  # two chunk groups
    assert len(schedule) == 2 * ranks * lanes
    assert int(np.isin(schedule.rows.leaf, list(SENDS)).sum()) == 2 * (ranks - 1) * lanes
    assert np.unique(schedule.rows.part).tolist() == [0, 1, 2, 3] if halves == 2 else [0, 2]


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize(("kind", "enters"), [(AR, False), (RS, False), (AG, True)])
def test_only_an_all_gather_enters(ranks: int, kind: EncOp, enters: bool) -> None:
    """An all-gather writes into peers' outputs at once, so each rank first says that its own may be written.

    Ring AG alone is 'not entered' without that row. Source: schedule §11 (2).
    """
    schedule = ring([range(ranks)], kind, size=ranks * 256)
    rows = np.flatnonzero(schedule.rows.leaf == Leaf.POST_RECV)
    assert rows.tolist() == (list(range(ranks)) if enters else [])
    credit = next(s for s in schedule.semaphores if s.name == "credit.0")
    assert credit.initial == (0 if enters else 8)
    first = np.flatnonzero(np.isin(schedule.rows.leaf, list(SENDS)))[: 2 * ranks]
    assert np.isin(first, schedule.wait_row[schedule.waits.semaphore == 1]).all()


@pytest.mark.parametrize("kind", [AR, AG, RS])
def test_rows_are_stored_step_after_step(kind: EncOp) -> None:
    """Stored order is chunk group, then step, then half: H0 of all ranks before H1. Source: compose §6.2."""
    rows = ring([range(5), range(5)], kind, size=5 * 2 * 64 * 3, chunk=64).rows
    key = (rows.part.astype(np.int64) // 2 << 24) + (rows.step.astype(np.int64) << 8) + rows.part % 2
    assert (np.diff(key[rows.leaf != Leaf.POST_RECV]) >= 0).all()


def test_only_the_bridge_is_fenced() -> None:
    """The bridge reads what the row before it wrote; nothing else needs a fence. Source: schedule §2."""
    for kind in (AR, AG, RS):
        rows = ring([range(4), [2, 0, 3, 1]], kind, size=4096).rows
        assert set(rows.leaf[rows.fence].tolist()) == ({Leaf.DIRECT_COPY_SEND} if kind is AR else set())
        assert kind is not AR or rows.fence[rows.leaf == Leaf.DIRECT_COPY_SEND].all()


# --- buffers, groups, one rank ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "in_place", "names"),
    [
        (AR, False, {"input": 4000, "output": 4000, "slot.0": 2048, "slot.1": 2048}),
        (AR, True, {"input": 4000, "slot.0": 2048, "slot.1": 2048}),
        (RS, False, {"input": 4000, "output": 1000, "slot.0": 2048, "slot.1": 2048}),
        (AG, False, {"input": 1000, "output": 4000}),
    ],
)
def test_buffers(kind: EncOp, in_place: bool, names: dict[str, int]) -> None:
    """User buffers have the sizes of the request; a slot holds one half-chunk; a gather stages nothing."""
    schedule = ring([range(4), range(4)], kind, size=4000, in_place=in_place)
    assert {buffer.name: buffer.size for buffer in schedule.buffers} == names
    assert [buffer.name for buffer in schedule.buffers if buffer.user] == [n for n in names if not n.startswith("slot")]
    assert schedule.in_place is in_place


def test_in_place_is_the_same_plan_in_one_buffer() -> None:
    """Nothing is added anywhere in place: the same rows, with the input where the output was. Source: schedule §4."""
    apart, same = (to_text(ring([range(3)], size=600, in_place=in_place)) for in_place in (False, True))
    apart = apart.replace("buffer output 600 user\n", "").replace("output output", "output input")
    assert apart.replace(".output+", ".input+") == same


def test_groups_run_together_and_share_nothing() -> None:
    """Groups of one request are the same rings beside each other: no row of one names a rank of another."""
    orders = [[[0, 1, 2], [2, 0, 1]], [[2, 1, 0], [1, 0, 2]]]
    both = rows_by_lane(ring(orders, size=600))
    for group in range(2):
        alone = rows_by_lane(ring([channel[group] for channel in orders], size=600))
        for lane, lines in alone.items():
            rank, channel = lane.split(".")
            shifted = [_shift(line, 3 * group) for line in lines]
            assert both[f"{int(rank) + 3 * group}.{channel}"] == shifted


def _shift(line: str, by: int) -> str:
    """Return a line with every rank higher by so much."""
    return re.sub(r"^\d+|(?<=[ !])\d+(?=\.[a-z])", lambda rank: str(int(rank[0]) + by), line)


@pytest.mark.parametrize("kind", [AR, AG, RS])
def test_a_group_of_one_is_a_local_copy(kind: EncOp) -> None:
    """One rank copies its input to its output, with no semaphore and no slot; in place there is nothing to do."""
    schedule = ring([[0]], kind, size=96)
    assert rows_by_lane(schedule) == {
        "0.0": [
            "0.0 0.0 direct_copy : 0.input+0 -> 0.output+0 64",
            "0.0 0.0.1 direct_copy : 0.input+64 -> 0.output+64 32",
        ]
    }
    assert (len(schedule.semaphores), len(schedule.buffers)) == (0, 2)
    assert len(ring([[0]], AR, size=96, in_place=True)) == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("halves", "least"), [(1, 2), (2, 3)])
def test_slots(halves: int, least: int) -> None:
    """Slots are more than the halves that wait in them and at most 32. Source: design §2 (16); schedule §5."""
    for slots in (least, 32):
        assert ring([range(4)], size=512, halves=halves, slots=slots).semaphores[1].initial == slots
    for slots in (0, 1, least - 1, 33):
        with pytest.raises(UsageError, match=f"{slots} slots for {halves} halves: expected more slots than halves and"):
            ring([range(4)], size=512, halves=halves, slots=slots)


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ([], "expected 1 to 32 channels of at least one rank, got"),
        ([[]], "expected 1 to 32 channels of at least one rank, got"),
        ([0, 1, 2], "expected 1 to 32 channels"),
        ([[[[0]]]], "expected 1 to 32 channels"),
        ([[0, 1]] * (MAX_CHANNELS + 1), "expected 1 to 32 channels"),
        ([[0, 1], [0]], "expected equally long lists of positions"),
        ([["a", "b"]], "expected equally long lists of positions"),
        ([[0, 0]], "expected each to name the positions 0 to 1 once"),
        ([[0, 1], [1, 2]], "expected each to name the positions 0 to 1 once"),
        ([[0, -1]], "expected each to name the positions 0 to 1 once"),
    ],
)
def test_orders_that_are_no_rings(orders: Any, sentence: str) -> None:
    """Each channel names every position once; there are 1 to 32 channels."""
    with pytest.raises(UsageError, match=f"^ring orders: {sentence}"):
        ring(orders, size=512)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"kind": EncOp.BROADCAST}, UsageError, "BROADCAST: a ring does all_reduce, all_gather, reduce_scatter"),
        ({"op": None}, UsageError, "all_reduce needs a reduction: one of ADD, FMA, MAX, MIN"),
        ({"op": CceType.EXT}, UsageError, "all_reduce needs a reduction: one of ADD, FMA, MAX, MIN"),
        ({"kind": AG, "op": CceType.ADD}, UsageError, "all_gather does not reduce"),
        ({"kind": AG, "in_place": True}, UsageError, "all_gather cannot be in place"),
        ({"kind": RS, "in_place": True}, UsageError, "reduce_scatter cannot be in place"),
        ({"size": 0}, UsageError, "0 bytes for 4 ranks"),
        ({"kind": RS, "size": 514}, UsageError, "514 bytes for 4 ranks"),
        ({"chunk": 100}, UsageError, "chunk of 100 bytes: expected a multiple of 64"),
        ({"chunk": 0}, UsageError, "chunk of 0 bytes"),
        ({"halves": 3}, UsageError, "8 slots for 3 halves"),
        (
            {"size": 64 * 4 * (MAX_CHUNK_GROUPS + 1), "chunk": 64},
            UnsupportedError,
            "32769 chunk groups, .* numbers 32768",
        ),
        ({"orders": np.zeros((1, 65536, 1), int)}, UnsupportedError, "65536 ranks: a schedule numbers 65535"),
    ],
)
def test_other_refusals(arguments: dict[str, Any], error: type[RotaError], sentence: str) -> None:
    """What makes no ring collective, or no schedule, is refused before anything is built."""
    with pytest.raises(error, match=sentence):
        ring(**{"orders": [range(4)], "size": 512, **arguments})


# --- equal inputs, equal bytes ----------------------------------------------------------------------------------------

PRINT = """
from rota.compose.ring import compose_ring
from rota.isa.enums import CceType, EncOp
from rota.schedule.text import to_text
for kind, op in [(EncOp.ALLREDUCE, CceType.MAX), (EncOp.ALLGATHER, None), (EncOp.REDUCE_SCATTER, CceType.ADD)]:
    print(to_text(compose_ring([[0, 2, 1], [1, 2, 0]], kind=kind, size=3 * 1000, op=op, chunk=64)), end="")
"""


def test_two_processes_compose_the_same_bytes() -> None:
    """Two runs with equal input give equal bytes, whatever the seed of the hashes."""
    texts = [
        subprocess.run(
            [sys.executable, "-c", PRINT], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "20261")
    ]
    assert len(texts[0]) > 10_000
    assert texts[0] == texts[1] == texts[2]
