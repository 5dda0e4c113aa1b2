"""Hops that no address reaches: what rows become, for any schedule; and every kind of collective between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.grid import Case, cases, cost
from tests.property.test_grid import random_inputs, refusal
from tests.row_by_row import places, run_rows
from tests.schedules import INPUT, OUTPUT, SCRATCH, Row, build, schedules

from rota.columns import owners
from rota.emit.network import PROXY_QUEUE, with_proxies
from rota.emit.placement import spans
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.pipeline import Composed, prove
from rota.schedule.ir import Checks, Leaf, Op, Rows, Schedule
from rota.verify import executable, find_order, verify_data

GRAIN = 8


# --- the twin ---------------------------------------------------------------------------------------------------------


def read(schedule: Schedule) -> list[Row]:
    """Return the rows of a schedule as plain values."""
    columns = zip(*(getattr(schedule.rows, name).tolist() for name in Rows.__slots__), strict=True)
    waits, signals = _entries(schedule.waits), _entries(schedule.signals)
    sources, targets = places(schedule.sources), places(schedule.targets)
    lists = zip(sources, targets, waits, signals, strict=True)
    return [Row(*values, *entries) for values, entries in zip(columns, lists, strict=True)]


def _entries(table: Any) -> list[list[tuple[int, ...]]]:
    names = [name for name in table.__slots__ if name != "ptr"]
    entries = list(zip(*(getattr(table, name).tolist() for name in names), strict=True))
    return [entries[a:b] for a, b in zip(table.ptr[:-1].tolist(), table.ptr[1:].tolist(), strict=True)]


def proxied(schedule: Schedule, span: list[int]) -> tuple[list[Row], dict[str, int], list[str]]:
    """Return the rows with proxies, one row after another, and the buffers and semaphores they need besides."""
    rows = read(schedule)
    far = [[rank for rank in _named(row) if span[rank] != span[row.rank]] for row in rows]
    queues = sorted({row.queue for row, ranks in zip(rows, far, strict=True) if ranks})
    bounced = [
        bool(_away(row, row.targets, span)) and not _whole(schedule, rows, i, span) for i, row in enumerate(rows)
    ]
    with_buffer = sorted({row.queue for row, bounces in zip(rows, bounced, strict=True) if bounces})
    buffer = {queue: len(schedule.buffers) + i for i, queue in enumerate(with_buffer)}
    semaphore = {queue: len(schedule.semaphores) + i for i, queue in enumerate(queues)}
    used: dict[tuple[int, int], int] = {}
    out = []
    for row, ranks, bounces in zip(rows, far, bounced, strict=True):
        new = replace(row)
        out.append(new)
        if not ranks:
            continue
        source = row.sources[:1]
        if bounces:
            place = used.get((row.rank, row.queue), 0)
            used[row.rank, row.queue] = place + -(-row.size // 32) * 32
            source = [(row.rank, buffer[row.queue], place)]
        new.targets = [*_near(row, row.targets, span), *(source if bounces else [])]
        if not new.targets:
            new.size, new.sources = 0, []
        parts = list(_parts(row, span, list(dict.fromkeys(ranks))))
        new.signals = [*_near(row, row.signals, span), (row.rank, semaphore[row.queue], 1)]
        for number, (targets, signals) in enumerate(parts):
            proxy = replace(row, queue=PROXY_QUEUE + row.queue, op=0, size=row.size if targets else 0)
            proxy.sources, proxy.targets, proxy.signals = source if targets else [], targets, signals
            proxy.waits = [(semaphore[row.queue], 1, 1)] if number == 0 else []
            out.append(proxy)
    sizes = {f"net.{q}": max(end for (_, queue), end in used.items() if queue == q) for q in with_buffer}
    return out, sizes, [f"net.{queue}" for queue in queues]


def _named(row: Row) -> list[int]:
    return [place[0] for place in (*row.targets, *row.signals)]


def _away(row: Row, entries: list[Any], span: list[int]) -> list[Any]:
    return [each for each in entries if span[each[0]] != span[row.rank]]


def _near(row: Row, entries: list[Any], span: list[int]) -> list[Any]:
    return [each for each in entries if span[each[0]] == span[row.rank]]


def _parts(row: Row, span: list[int], ranks: list[int]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield targets and signals of each proxy row: one target, two signals, these with the last target or after it."""
    for rank in ranks:
        targets = [each for each in _away(row, row.targets, span) if each[0] == rank]
        signals = [each for each in _away(row, row.signals, span) if each[0] == rank]
        yield from (([target], []) for target in targets[:-1])
        yield targets[-1:], signals[:2]
        yield from (([], signals[at : at + 2]) for at in range(2, len(signals), 2))


def _whole(schedule: Schedule, rows: list[Row], at: int, span: list[int]) -> bool:
    """Say whether a row only copies bytes of its rank's user buffer to far members, and nobody writes them later."""
    row = rows[at]
    if row.op != Op.NONE or _near(row, row.targets, span):
        return False
    (rank, buffer, offset) = row.sources[0]
    later = [
        target[2] < offset + row.size and offset < target[2] + other.size
        for other in rows[at + 1 :]
        for target in other.targets
        if target[:2] == (rank, buffer)
    ]
    return schedule.buffers[buffer].user and rank == row.rank and not any(later)


@st.composite
def cut_schedules(draw: st.DrawFn) -> tuple[Schedule, list[int]]:
    """Any schedule, and spans of its ranks such that no row reads from another span."""
    schedule = draw(schedules(grain=GRAIN))
    span = draw(st.lists(st.integers(0, 1), min_size=schedule.ranks, max_size=schedule.ranks))
    own = schedule.rows.rank[owners(schedule.sources.ptr)]
    rank = schedule.sources.rank
    near = np.where(np.array(span)[rank] == np.array(span)[own], rank, own)
    return replace(schedule, sources=replace(schedule.sources, rank=near.astype(np.uint16))), span


@given(cut=cut_schedules())
def test_rows_with_proxies_are_those_of_the_twin(cut: tuple[Schedule, list[int]]) -> None:
    """The columns are what one row after another gives."""
    schedule, span = cut
    made = with_proxies(schedule, np.array(span))
    rows, sizes, names = proxied(schedule, span)
    assert read(made) == rows
    assert {buffer.name: buffer.size for buffer in made.buffers[len(schedule.buffers) :]} == sizes
    assert [each.name for each in made.semaphores[len(schedule.semaphores) :]] == names
    assert not any(buffer.user for buffer in made.buffers[len(schedule.buffers) :])


@given(cut=cut_schedules(), seed=st.integers(0, 1000))
def test_a_schedule_with_proxies_gives_the_same_bytes(cut: tuple[Schedule, list[int]], seed: int) -> None:
    """Proxies change neither what arrives, nor that semaphores balance, nor that the stored order can run."""
    schedule, span = cut
    made = with_proxies(schedule, np.array(span))
    assert made.checks is Checks.ALL
    size = schedule.buffers[INPUT].size
    inputs = np.random.default_rng(seed).integers(0, 9, (schedule.ranks, size // 4)).astype(np.float32)
    assert np.array_equal(run_rows(made, inputs), run_rows(schedule, inputs))
    assert np.array_equal(execute(made, inputs), execute(schedule, inputs))


@given(cut=cut_schedules())
def test_only_proxies_reach_other_spans(cut: tuple[Schedule, list[int]]) -> None:
    """No row of a queue below 128 writes to or signals another span; a proxy row has one target and two signals."""
    schedule, span = cut
    made = with_proxies(schedule, np.array(span))
    _check_reach(made, np.array(span))
    assert with_proxies(schedule, np.zeros(schedule.ranks, np.int64)) is schedule


def _check_reach(made: Schedule, span: Any) -> None:
    proxy = made.rows.queue >= PROXY_QUEUE
    for row, rank in (
        (owners(made.targets.ptr), made.targets.rank),
        (made.signal_row, made.signals.rank),
        (owners(made.sources.ptr), made.sources.rank),
    ):
        far = span[rank] != span[made.rows.rank[row]]
        assert not far[~proxy[row]].any()
        assert rank is made.sources.rank or far[proxy[row]].all()
    assert np.diff(made.targets.ptr)[proxy].max(initial=0) <= 1
    assert np.diff(made.signals.ptr)[proxy].max(initial=0) <= 2
    assert np.diff(made.waits.ptr)[proxy].max(initial=0) <= 1


# --- single rows ------------------------------------------------------------------------------------------------------

SPAN = np.array([0, 0, 1, 1])
SIZE = 4 * GRAIN


def rewritten(*rows: Row, semaphores: int = 3) -> list[Row]:
    """Return what becomes of rows of ranks 0 and 1 of one node and 2 and 3 of another; signals are waited for."""
    total: dict[tuple[int, int], int] = {}
    for rank, semaphore, add in (signal for row in rows for signal in row.signals):
        total[rank, semaphore] = total.get((rank, semaphore), 0) + add
    ends = [Row(rank, 7, waits=[(semaphore, add, add)]) for (rank, semaphore), add in sorted(total.items())]
    made = with_proxies(build([*rows, *ends], ranks=4, grain=GRAIN, initial=[0] * semaphores), SPAN)
    return read(made)[: -len(ends) or None]


def copy(source: tuple[int, int, int], *targets: tuple[int, int, int], **more: Any) -> Row:
    return Row(source[0], 5, size=SIZE, sources=[source], targets=list(targets), **more)


def test_a_copy_from_a_user_buffer_is_left_to_the_proxy_whole() -> None:
    """The row keeps its place and moves nothing; the proxy reads the user buffer itself, and keeps the names."""
    names = {"part": 3, "leg": 2, "step": 9, "event": 4, "leaf": Leaf.DIRECT_SEND, "fence": True}
    row, proxy = rewritten(copy((0, INPUT, 8), (2, OUTPUT, 16), signals=[(2, 1, 3)], **names))
    assert (row.size, row.sources, row.targets, row.signals) == (0, [], [], [(0, 3, 1)])
    assert (proxy.rank, proxy.queue, proxy.size) == (0, PROXY_QUEUE + 5, SIZE)
    assert (proxy.sources, proxy.targets) == ([(0, INPUT, 8)], [(2, OUTPUT, 16)])
    assert (proxy.waits, proxy.signals) == ([(3, 1, 1)], [(2, 1, 3)])
    assert {name: getattr(proxy, name) for name in names} == {name: getattr(row, name) for name in names} == names


@pytest.mark.parametrize(
    "other",
    [
        Row(1, 0, size=GRAIN, sources=[(1, INPUT, 0)], targets=[(0, OUTPUT, SIZE)]),
        Row(3, 0, size=GRAIN, sources=[(3, INPUT, 0)], targets=[(0, OUTPUT, SIZE)]),
    ],
    ids=["near", "far"],
)
def test_what_is_written_later_is_bounced(other: Row) -> None:
    """Data leave later than without a proxy: a source that somebody writes again is copied aside first."""
    row = copy((0, OUTPUT, GRAIN), (2, OUTPUT, 0))
    assert rewritten(row, other)[0].targets == [(0, 3, 0)]
    assert rewritten(other, row)[-2].targets == []
    beside = replace(other, targets=[(0, OUTPUT, SIZE + GRAIN)])
    assert rewritten(row, beside)[0].targets == []


def test_a_local_target_stays() -> None:
    """A row with a local target keeps it, and its data for the proxy stand aside."""
    row, proxy = rewritten(copy((0, INPUT, 0), (0, OUTPUT, 8), (2, OUTPUT, 8)))
    assert (row.size, row.targets) == (SIZE, [(0, OUTPUT, 8), (0, 3, 0)])
    assert (proxy.sources, proxy.targets) == ([(0, 3, 0)], [(2, OUTPUT, 8)])


@pytest.mark.parametrize(
    ("source", "op"), [((0, SCRATCH, 0), Op.NONE), ((1, INPUT, 0), Op.NONE), ((0, INPUT, 0), Op.FMA)]
)
def test_all_else_is_bounced(source: tuple[int, int, int], op: Op) -> None:
    """An internal buffer, another rank's memory, and what is computed are copied aside; the proxy only copies."""
    row, proxy = rewritten(Row(0, 5, op=op, size=SIZE, sources=[source], targets=[(2, OUTPUT, 0)]))
    assert (row.op, row.sources, row.targets) == (op, [source], [(0, 3, 0)])
    assert (proxy.op, proxy.sources) == (Op.NONE, [(0, 3, 0)])


def test_each_row_has_a_place_of_its_own() -> None:
    """Places are multiples of 32, one behind the other in a rank's queue, and never used twice."""
    rows = [
        Row(0, 5, size=size, sources=[(0, SCRATCH, 0)], targets=[(2, OUTPUT, 0)], fence=True)
        for size in (GRAIN, SIZE + GRAIN, SIZE)
    ]
    other = Row(1, 5, size=GRAIN, sources=[(1, SCRATCH, 0)], targets=[(2, OUTPUT, SIZE)])
    made = rewritten(*rows, other)
    assert [row.targets for row in made[::2]] == [[(0, 3, 0)], [(0, 3, 32)], [(0, 3, 96)], [(1, 3, 0)]]


def test_several_members_have_several_proxy_rows() -> None:
    """One row a member, in the order in which the row names them; the first waits for the row, and the rest for it."""
    row, *proxies = rewritten(
        copy((0, INPUT, 0), (3, OUTPUT, 0), (2, OUTPUT, 0), signals=[(2, 0, 1), (1, 0, 1), (3, 0, 1)])
    )
    assert row.signals == [(1, 0, 1), (0, 3, 1)]
    assert [proxy.waits for proxy in proxies] == [[(3, 1, 1)], []]
    assert [(proxy.targets, proxy.signals) for proxy in proxies] == [
        ([(3, OUTPUT, 0)], [(3, 0, 1)]),
        ([(2, OUTPUT, 0)], [(2, 0, 1)]),
    ]


def test_more_than_one_entry_holds_is_several_rows() -> None:
    """Each target of a member is a row; signals come with the last of them, and two by two in rows without data."""
    signals = [(2, semaphore, 1) for semaphore in (0, 1, 2)]
    row, *proxies = rewritten(copy((0, INPUT, 0), (2, OUTPUT, 0), (2, SCRATCH, 0), signals=signals))
    assert row.signals == [(0, 3, 1)]
    assert [(proxy.size, proxy.targets, proxy.signals) for proxy in proxies] == [
        (SIZE, [(2, OUTPUT, 0)], []),
        (SIZE, [(2, SCRATCH, 0)], signals[:2]),
        (0, [], signals[2:]),
    ]


def test_a_row_that_only_signals() -> None:
    """A far signal without data goes through the proxy too; the waits stay with the row."""
    row, proxy = rewritten(Row(0, 5, signals=[(3, 0, 2), (1, 0, 1)]))
    assert (row.signals, row.size) == ([(1, 0, 1), (0, 3, 1)], 0)
    assert (proxy.size, proxy.targets, proxy.signals) == (0, [], [(3, 0, 2)])


def test_refusals() -> None:
    """A source of another span, and a queue that is a proxy's, are refused by the row's name."""
    pull = Row(0, 5, leaf=Leaf.DIRECT_PULL, size=SIZE, sources=[(2, INPUT, 0)], targets=[(0, OUTPUT, 0)])
    with pytest.raises(UnsupportedError, match=r"row 0 \(rank 0 channel 5 .* direct_pull\): reads what rank 2 of"):
        rewritten(pull)
    with pytest.raises(UnsupportedError, match=r"row 0 \(rank 1 channel 128 .*\): queues from 128 on"):
        rewritten(Row(1, 128, size=SIZE, sources=[(1, INPUT, 0)], targets=[(1, OUTPUT, 0)]))


# --- collectives between nodes ----------------------------------------------------------------------------------------

PARTS = 4
NAMES = ("trn1.32xlarge", "trn2.48xlarge")


def _glance(case: Case) -> tuple[Any, ...]:
    rings = case.algorithm is None and not case.settings.mesh
    return case.machine.name, case.request.kind, case.algorithm, rings, *(case.legs or ()), case.request.in_place


def crossing() -> Iterator[tuple[Case, Composed]]:
    """Yield the cheapest case of each machine, operation, algorithm and legs, in place or not, that crosses a node."""
    seen, refused = set(), set()
    for case in sorted((each for each in cases() if each.machine.nodes > 1 and each.machine.name in NAMES), key=cost):
        group = np.array(case.request.groups[0])
        forced = (case.machine, case.request.groups, case.request.kind, case.algorithm, case.legs)
        far = np.unique(spans(group, case.machine.platform)[0]).size > 1
        if not far or _glance(case) in seen or forced in refused:
            continue
        if refusal(case):
            refused.add(forced)
            continue
        try:
            made = prove(case.request, case.machine.platform, replace(case.how, verify=False))
        except UnsupportedError:
            refused.add(forced)
            continue
        seen.add(_glance(case))
        yield case, made


def _span(case: Case, made: Composed) -> Any:
    return spans(np.array(made.request.members, np.int64), case.machine.platform)[0]


def problems(case: Case, made: Composed) -> Iterator[str]:
    """Yield what is wrong with a collective once proxies carry its hops."""
    schedule = made.schedule if made.schedule.checks is not Checks.FORM else executable(made.schedule)
    span = _span(case, made)
    result = with_proxies(schedule, span)
    _check_reach(result, span)
    yield from (f"{case}: {finding}" for finding in find_order(result))
    verify_data(result, made.request)
    inputs = random_inputs(made.request)
    one, other = (execute(each, inputs, scales=made.request.scales) for each in (schedule, result))
    if not np.array_equal(one.view(np.uint8), other.view(np.uint8)):
        yield f"{case}: other bits"
    if not (result.rows.queue >= PROXY_QUEUE).any():
        yield f"{case}: no hop"


@pytest.fixture(scope="module")
def hops() -> list[tuple[Case, Composed]]:
    return list(crossing())


def test_what_crosses_nodes_is_met(hops: list[tuple[Case, Composed]]) -> None:
    """The sample holds every algorithm and kind of operation that a group over nodes can have, also in place."""
    names = {made.algorithm for _, made in hops}
    wanted = {"RING", "HIER", "MESH", "SINGLE_STEP_MESH", "INTER_RDH", "SINGLE_CYCLE_RING", "EXTENSION"}
    assert wanted <= names
    across = ("MESH", "RING", "INTER_RDH", "SINGLE_CYCLE_RING")
    assert {f"{one} x {other}" for one, other in product(("MESH", "RING", "INTRA_RDH"), across)} <= names
    kinds = {made.request.kind.name for _, made in hops}
    assert {"ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER", "ALLTOALL", "ALLTOALL_V", "PERMUTE", "SEND"} <= kinds
    assert {case.request.in_place for case, _ in hops} == {False, True}


@pytest.mark.parametrize("part", range(PARTS))
def test_collectives_between_nodes(hops: list[tuple[Case, Composed]], part: int) -> None:
    """With proxies each is proved again, order and data, and leaves the same bits."""
    assert [each for case, made in hops[part::PARTS] for each in problems(case, made)] == []
