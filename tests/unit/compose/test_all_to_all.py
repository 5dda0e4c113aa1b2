"""All-to-all and all-to-all-v: compose §12.7."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import A2A, A2AV, check, data_of, event_laws, events, exchanged, plan

from rota.columns import owners
from rota.compose.all_to_all import Pieces, compose_all_to_all, how_of
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import EncOp
from rota.machine.platform import load_platform
from rota.schedule.ir import Schedule
from rota.select import Settings
from rota.verify import traffic, verify

GROUPS: dict[str, tuple[str, int, list[tuple[int, ...]]]] = {
    "pair": ("trn1.32xlarge", 1, [(1, 0)]),
    "trn1 row": ("trn1.32xlarge", 1, [tuple(range(8)), tuple(range(15, 7, -1))]),
    "chip": ("trn2.48xlarge", 1, [(2, 0, 3, 1), (4, 5, 6, 7)]),
    "row": ("trn2.48xlarge", 1, [tuple(range(16))]),
    "network": ("trn2.48xlarge", 4, [(0, 64, 128, 192), (193, 1, 65, 129)]),
}
BUDGET = 64 << 10


def exchange_plan(case: str, kind: EncOp, count: int, **other: Any) -> Any:
    name, nodes, groups = GROUPS[case]
    return plan(name, groups, kind, count, nodes=nodes, **other)


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("kind", [A2A, A2AV])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.INT8, Dtype.FP32])
def test_every_rank_gets_its_piece_of_everyone(case: str, kind: EncOp, dtype: Dtype) -> None:
    """Compose §5: out[i] = in_i[r]; without counts an all-to-all-v is cut as evenly as it goes."""
    ranks = len(GROUPS[case][2][0])
    asked = exchange_plan(case, kind, 5 * ranks + (3 if kind is A2AV else 0), dtype=dtype)
    schedule = compose_all_to_all(asked)
    check(schedule, asked.request, lambda data, g: exchanged(asked.request, data, g))
    event_laws(schedule)


COUNTS = ((3, 0, 7, 1), (0, 0, 0, 0), (100, 2, 0, 9), (1, 1, 1, 1))


@pytest.mark.parametrize("case", ["chip", "network"])
def test_counts_per_pair(case: str) -> None:
    """Compose §12.7: as all-to-all with per-peer counts; ranks that send or get nothing still meet the others."""
    asked = exchange_plan(case, A2AV, max(map(sum, COUNTS)), counts=COUNTS)
    schedule = compose_all_to_all(asked)
    check(schedule, asked.request, lambda data, g: exchanged(asked.request, data, g))
    event_laws(schedule)


@pytest.mark.parametrize("case", ["chip", "network"])
def test_bytes_moved_are_bytes_asked(case: str) -> None:
    """Nothing is padded to the largest count: what moves is what the counts say, the own piece included."""
    asked = exchange_plan(case, A2AV, max(map(sum, COUNTS)), counts=COUNTS)
    touched = traffic(compose_all_to_all(asked))
    sent = [2 * sum(row) for row in COUNTS] * 2
    taken = [2 * sum(column) for column in zip(*COUNTS, strict=True)] * 2
    assert (touched.read.tolist(), touched.written.tolist()) == (sent, taken)
    assert touched.sent.tolist() == [2 * (sum(row) - row[i]) for i, row in enumerate(COUNTS)] * 2


def test_displacements() -> None:
    """Pieces lie where senders and receivers say: send by destination, receive by source."""
    counts = ((1, 2), (3, 0))
    asked = plan(
        "trn1.32xlarge",
        [(0, 1)],
        A2AV,
        8,
        counts=counts,
        send_displacements=((7, 2), (0, 5)),
        receive_displacements=((4, 0), (1, 6)),
    )
    schedule = compose_all_to_all(asked)
    verify(schedule, asked.request)
    data = data_of(asked.request, 2)
    got = execute(schedule, data)
    assert got[0][4] == data[0][7]
    assert got[1][1:3].tolist() == data[0][2:4].tolist()
    assert got[0][:3].tolist() == data[1][:3].tolist()


def test_pieces_of_a_table() -> None:
    """Without displacements pieces are packed: sent in order of the receiver, received in order of the sender."""
    pieces = Pieces.packed([[1, 2], [3, 4]])
    assert pieces.sent_at.tolist() == [[0, 1], [0, 3]]
    assert pieces.lands_at.tolist() == [[0, 0], [1, 2]]
    assert Pieces.packed([[1, 2], [3, 4]], lands_at=[[5, 6], [7, 8]]).lands_at.tolist() == [[5, 7], [6, 8]]


def sends(schedule: Schedule, rank: int) -> list[tuple[int, int]]:
    """(target, size) of the foreign copies of a rank, in order."""
    row = owners(schedule.targets.ptr)
    return [
        (int(schedule.targets.rank[entry]), int(schedule.rows.size[at]))
        for entry, at in enumerate(row.tolist())
        if schedule.rows.rank[at] == rank and schedule.targets.rank[entry] != rank
    ]


@pytest.mark.parametrize("rank", [0, 5])
def test_peers_are_rotated(rank: int) -> None:
    """Compose §12.7: N-1 copies, rotated, so that ranks begin with different peers."""
    schedule = compose_all_to_all(exchange_plan("row", A2A, 16 * 4))
    order = [to for to, _ in sends(schedule, rank)]
    assert sorted(order) == [to for to in range(16) if to != rank]
    assert order[0] == (rank + 4) % 16
    assert [to // 4 for to in order[-3:]] == [rank // 4] * 3


def test_a_large_share_goes_in_iterations() -> None:
    """Compose §12.7: iterations when a peer's share exceeds its channel budget; only the last one notifies."""
    settings = Settings(mesh_channel_buffer=4 * BUDGET)
    ranks = 4
    asked = exchange_plan("chip", A2A, ranks * (BUDGET + 20) // 2, settings=settings)
    schedule = compose_all_to_all(asked)
    assert [size for _, size in sends(schedule, 0)] == [BUDGET] * 3 + [20] * 3
    check(schedule, asked.request, lambda data, g: exchanged(asked.request, data, g))
    event_laws(schedule)


def test_iterations_of_unequal_pieces() -> None:
    """A peer whose piece fits the budget is told in the first iteration."""
    settings = Settings(mesh_channel_buffer=256)
    counts = ((3, 0, 100, 1), (0, 0, 0, 40), (100, 2, 0, 9), (33, 32, 31, 65))
    asked = exchange_plan("chip", A2AV, max(map(sum, counts)), counts=counts, settings=settings)
    schedule = compose_all_to_all(asked)
    assert int(schedule.rows.size.max()) == 64
    check(schedule, asked.request, lambda data, g: exchanged(asked.request, data, g))
    event_laws(schedule)


@pytest.mark.parametrize(
    ("case", "want"), [("row", [14, 16, 17, 18]), ("chip", [14, 17, 18]), ("network", [16, 17]), ("pair", [14, 17, 18])]
)
def test_events_are_of_the_all_to_all_band(case: str, want: list[int]) -> None:
    """Compose §12.7: events of the band 14 to 22."""
    ranks = len(GROUPS[case][2][0])
    assert events(compose_all_to_all(exchange_plan(case, A2A, 16 * ranks))) == want


def test_the_budget_is_a_share_of_the_channel_buffer() -> None:
    """Compose §12.7, at multiples of 32 bytes; the smallest buffer still moves something."""
    platform = load_platform("trn2.48xlarge")
    assert how_of(platform, ((0, 1, 2, 3),), Settings()).budget == 2 << 20
    assert how_of(platform, (tuple(range(64)),), Settings(mesh_channel_buffer=64)).budget == 32


def test_more_iterations_than_a_schedule_numbers_are_refused() -> None:
    """The message says how many, and what to change."""
    settings = Settings(mesh_channel_buffer=64)
    asked = exchange_plan("chip", A2A, 4 << 18, settings=settings)
    with pytest.raises(UnsupportedError, match="16384 iterations, and a schedule numbers 16384; raise") as caught:
        compose_all_to_all(asked)
    assert caught.value.source is not None


def test_groups_of_different_shapes() -> None:
    """One group on a chip, one over four: every rank counts as a chip then."""
    asked = plan("trn2.48xlarge", [(20, 21, 22, 23), (0, 4, 8, 12)], A2A, 40)
    schedule = compose_all_to_all(asked)
    check(schedule, asked.request, lambda data, g: exchanged(asked.request, data, g))
    assert not np.isin(schedule.rows.event, [14, 18]).any()
