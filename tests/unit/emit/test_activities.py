"""Which rows of a schedule are a ring channel, which an event list, and in which control entry."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from by_hand import schedule_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.grid import AG, AR, RS, Case, Machine, Turns, nodes, run
from tests.schedules import INPUT, OUTPUT, Row, schedules

from rota.emit.activities import Activities, activities
from rota.emit.network import with_proxies
from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm
from rota.pipeline import prove
from rota.schedule.ir import Schedule
from rota.select.settings import Settings

TRN2 = Machine("trn2.48xlarge")
TWO = Machine("trn2.48xlarge", 2)
RINGS = (Algorithm.RING, Algorithm.KANGARING)
RING_RING = (Algorithm.RING, Algorithm.RING)
PIPELINED = Settings(hier_mode=1, chunk=128, hier_pipeline=2, mesh=False)
LISTS = (Algorithm.MESH, Algorithm.SINGLE_STEP_MESH, Algorithm.INTRA_RDH)


@cache
def composed(algorithm: Algorithm | None, kind: Any = AR, machine: Machine = TRN2, legs: Any = None) -> Schedule:
    """Return 16 ranks' schedule; of several nodes, 8 ranks of each of two."""
    groups = (run(0, 16) if machine is TRN2 else nodes(machine, *run(0, 8)),)
    settings = Settings() if legs is None else Settings(hier_mode=2)
    case = Case(machine, Turns().request(kind, groups, 16 * 64), settings, algorithm, legs)
    return prove(case.request, machine.platform, replace(case.how, verify=False)).schedule


def forms(parts: Activities) -> list[tuple[int, int, bool, str]]:
    return [(each.queue, each.entry, each.ring, each.algorithm.name) for each in parts.table]


# --- what composers make ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("algorithm", RINGS)
def test_rows_that_wait_for_data_and_credit_are_a_ring_channel(algorithm: Algorithm, kind: Any) -> None:
    """One channel a queue, with all its rows; KangaRing's waits for its peers beside. Device-model §5.2."""
    schedule = composed(algorithm, kind)
    parts = activities(schedule, algorithm)
    assert forms(parts) == [(0, 0, True, algorithm.name), (1, 0, True, algorithm.name)]
    assert (parts.of_row == schedule.rows.queue).all()
    for each in parts.table:
        named = {role: schedule.semaphores[getattr(each, role)].name for role in ("recv", "credit")}
        assert named == {"recv": f"recv.{each.queue}", "credit": f"credit.{each.queue}"}
        assert each.kangaring == (algorithm is Algorithm.KANGARING)
        assert not each.waited


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize("algorithm", LISTS)
def test_all_other_rows_are_event_lists(algorithm: Algorithm, kind: Any) -> None:
    """A list knows every semaphore its rows wait on, ascending. Device-model §5.5."""
    schedule = composed(algorithm, kind) if algorithm is not Algorithm.SINGLE_STEP_MESH else composed(algorithm)
    parts = activities(schedule, algorithm)
    assert not any(each.ring for each in parts.table)
    for index, each in enumerate(parts.table):
        waited = np.unique(schedule.waits.semaphore[parts.of_row[schedule.wait_row] == index])
        assert each.waited == tuple(waited.tolist())
        assert each.algorithm is algorithm


@pytest.mark.parametrize("algorithm", [*RINGS, *LISTS])
def test_a_semaphore_belongs_to_the_activity_that_waits_on_it(algorithm: Algorithm) -> None:
    schedule = composed(algorithm)
    parts = activities(schedule, algorithm)
    assert (parts.of_semaphore[schedule.waits.semaphore] == parts.of_row[schedule.wait_row]).all()
    nobody = np.setdiff1d(np.arange(len(schedule.semaphores)), schedule.waits.semaphore)
    assert (parts.of_semaphore[nobody] == -1).all()


@pytest.mark.parametrize("kind", [AR, AG, RS])
@pytest.mark.parametrize(
    "legs", [(Algorithm.MESH, Algorithm.INTER_RDH), (Algorithm.RING, Algorithm.RING), (Algorithm.RING, Algorithm.MESH)]
)
def test_legs_of_a_hierarchy_are_control_entries_in_order(legs: tuple[Algorithm, Algorithm], kind: Any) -> None:
    """Each leg is an entry of its queue, called what it is; none is called HIER. Device-model §5.4, chains."""
    schedule = composed(Algorithm.HIER, kind, TWO, legs)
    parts = activities(schedule, Algorithm.HIER)
    inner, outer = legs
    want = {AR: [inner, outer, inner], AG: [outer, inner], RS: [inner, outer]}[kind]
    for queue in np.unique(schedule.rows.queue).tolist():
        mine = [each for each in parts.table if each.queue == queue]
        assert [each.entry for each in mine] == list(range(len(mine)))
        assert [each.algorithm for each in mine] == want
        assert [each.ring for each in mine] == [leg is Algorithm.RING for leg in want]
    assert parts.entries == len(want)
    for lane in np.unique(schedule.lane).tolist():
        assert (np.diff(parts.of_row[schedule.lane == lane]) >= 0).all(), "entries of a queue follow each other"


def test_rows_of_network_proxies_are_in_no_activity() -> None:
    """They are records of the proxy; what only it waits on is its own. Device §13."""
    plain = composed(Algorithm.HIER, AR, TWO, (Algorithm.MESH, Algorithm.INTER_RDH))
    schedule = with_proxies(plain, np.arange(16) // 8)
    parts, before = activities(schedule, Algorithm.HIER), activities(plain, Algorithm.HIER)
    proxied = schedule.rows.queue >= 128
    assert proxied.any()
    assert ((parts.of_row < 0) == proxied).all()
    assert forms(parts) == forms(before)
    net = [i for i, semaphore in enumerate(schedule.semaphores) if semaphore.name.startswith("net.")]
    assert net
    assert (parts.of_semaphore[net] < 0).all()


# --- by hand ----------------------------------------------------------------------------------------------------------


def hop(rank: int, step: int, *, recv: int = 0, credit: int = 1, **more: Any) -> Row:
    """A row that takes data and a credit, and gives both to the other rank."""
    usual: dict[str, Any] = {"waits": [(recv, 1, 1), (credit, 1, 1)], "signals": [(1 - rank, recv, 1)]}
    usual["signals"] = [*usual["signals"], (1 - rank, credit, 1)]
    return Row(rank, 0, step=step, **(usual | more))


def start(*semaphores: int) -> list[Row]:
    """Rows that hand out one unit of each semaphore to the other rank, so that `hop` can run."""
    return [Row(rank, 0, step=0, signals=[(1 - rank, s, 1) for s in semaphores]) for rank in (0, 1)]


def end(*semaphores: int) -> list[Row]:
    return [Row(rank, 0, step=99, waits=[(s, 1, 1) for s in semaphores]) for rank in (0, 1)]


def move(source: int, target: int) -> dict[str, Any]:
    return {"size": 64, "sources": [(source, INPUT, 0)], "targets": [(target, OUTPUT, 0)]}


NAMES = ("recv.0", "credit.0")


def test_a_ring_by_hand() -> None:
    rows = [*start(0, 1), hop(0, 1), hop(1, 1), *end(0, 1)]
    assert forms(activities(schedule_of(rows, NAMES), Algorithm.RING)) == [(0, 0, True, "RING")]


FALLBACKS = {
    "a step that waits twice for data": [
        *start(0, 1), *start(0, 1), hop(0, 1), hop(0, 1, signals=[(1, 0, 1), (1, 1, 1)]), hop(1, 1), hop(1, 2),
        *end(0, 1), *(Row(rank, 0, step=100, waits=[(0, 1, 1), (1, 1, 1)]) for rank in (0, 1)),
    ],
    "two units at once": [*start(0), *start(0), *(Row(r, 0, step=2, waits=[(0, 2, 2)]) for r in (0, 1))],
    "a wait that takes nothing": [*start(0), *(Row(r, 0, step=2, waits=[(0, 1, 0)]) for r in (0, 1)), *end(0)],
    "data for two ranks": [
        Row(0, 0, step=0, signals=[(1, 0, 1)]), Row(0, 0, step=1, signals=[(0, 0, 1)]),
        Row(0, 0, step=2, waits=[(0, 1, 1)]), Row(1, 0, step=2, waits=[(0, 1, 1)]),
    ],
    "data of another rank": [*start(0), *(Row(r, 0, step=1, waits=[(0, 1, 1)], **move(1 - r, r)) for r in (0, 1))],
    "data for a rank that is not told": [
        Row(0, 0, step=0, signals=[(0, 0, 1)]), Row(0, 0, step=1, waits=[(0, 1, 1)], **move(0, 1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FALLBACKS)
def test_rows_that_no_channel_can_do_are_an_event_list(name: str) -> None:
    """A step of a ring takes one unit of data and one credit; a channel has one neighbour on either side. §5.2.

    It reads its own rank, and writes there or to the neighbour it tells.
    """
    parts = activities(schedule_of(FALLBACKS[name], NAMES), Algorithm.RING)
    assert forms(parts) == [(0, 0, False, "MESH")], name
    assert parts.table[0].waited == tuple(sorted({s for row in FALLBACKS[name] for s, _, _ in row.waits}))


def test_a_kangaring_reads_the_ranks_of_its_chip() -> None:
    """Its primaries fetch what their peers have; that makes no event list of it. Device-model §5.2; compose §7."""
    schedule = composed(Algorithm.KANGARING)
    row = np.repeat(np.arange(len(schedule)), np.diff(schedule.sources.ptr))
    assert (schedule.sources.rank != schedule.rows.rank[row]).any()
    assert all(each.ring for each in activities(schedule, Algorithm.KANGARING).table)


def test_a_channel_has_one_semaphore_of_each_role() -> None:
    """Names of two queues on one queue: two channels' semaphores, so a list of events."""
    rows = [*start(0, 1, 2, 3), hop(0, 1), hop(1, 1), hop(0, 2, recv=2, credit=3), hop(1, 2, recv=2, credit=3)]
    parts = activities(schedule_of([*rows, *end(0, 1), *end(2, 3)], (*NAMES, "recv.1", "credit.1")), None)
    assert forms(parts) == [(0, 0, False, "MESH")]


def test_a_name_in_front_tells_legs_apart() -> None:
    """What stands before the role is the leg's name; each leg is a channel, and an entry, of its own."""
    names = ("a.recv.0", "a.credit.0", "b.recv.0", "b.credit.0")
    rows = [*start(0, 1), hop(0, 1), hop(1, 1), *end(0, 1)]
    rows += [replace(row, leg=1) for row in (*start(2, 3), hop(0, 1, recv=2, credit=3), hop(1, 1, recv=2, credit=3))]
    rows += [replace(row, leg=1) for row in end(2, 3)]
    parts = activities(schedule_of(rows, names), Algorithm.HIER)
    assert forms(parts) == [(0, 0, True, "RING"), (0, 1, True, "RING")]
    assert [(each.recv, each.credit) for each in parts.table] == [(0, 1), (2, 3)]


def test_the_chunks_of_a_pipeline_come_back_to_a_channel() -> None:
    """Each time is a control entry of its own; all of a leg share its semaphores, and every row is in one of them."""
    case = Case(TWO, Turns().request(AR, (nodes(TWO, *run(0, 4)),), 200), PIPELINED, None, RING_RING)
    schedule = prove(case.request, TWO.platform, replace(case.how, verify=False)).schedule
    parts = activities(schedule, Algorithm.HIER)
    first = [(each.entry, each.ring, each.shares) for each in parts.table if each.queue == 0]
    assert first == [(0, True, -1), (1, False, -1), (2, True, 0), (3, False, 1), (4, True, -1), (5, True, -1)]
    for index, each in enumerate(parts.table):
        home = parts.table[each.shares] if each.shares >= 0 else each
        assert replace(each, entry=home.entry, shares=home.shares) == home
        mine = schedule.waits.semaphore[parts.of_row[schedule.wait_row] == index]
        assert (parts.of_semaphore[mine] == parts.homes[index]).all()
    for lane in np.unique(schedule.lane):
        assert (np.diff(parts.of_row[schedule.lane == lane]) >= 0).all()


def test_ranks_that_come_to_legs_in_other_orders_have_one_list() -> None:
    """No control entry could stand for both orders."""
    names = ("a.recv", "a.credit", "b.two")
    rows = [
        Row(rank, 0, leg=leg, signals=[] if later else [(rank, 2 * leg, 1)], waits=[(2 * leg, 1, 1)] if later else [])
        for rank, legs in ((0, (0, 1)), (1, (1, 0)))
        for later in (False, True)
        for leg in legs
    ]
    parts = activities(schedule_of(rows, names, ranks=2), Algorithm.HIER)
    assert forms(parts) == [(0, 0, False, "MESH")]


def test_a_queue_that_comes_back_to_a_leg_is_one_list() -> None:
    """Legs that alternate on a queue cannot be entries one after another."""
    names = ("a.one", "b.two")
    rows = [Row(0, 0, leg=leg, signals=[(0, leg, 1)]) for leg in (0, 1)]
    rows += [Row(0, 0, leg=leg, waits=[(leg, 1, 1)]) for leg in (0, 1)]
    assert forms(activities(schedule_of(rows, names, ranks=1), Algorithm.HIER)) == [(0, 0, False, "MESH")]
    one_after_another = [rows[0], rows[2], rows[1], rows[3]]
    parts = activities(schedule_of(one_after_another, names, ranks=1), Algorithm.HIER)
    assert forms(parts) == [(0, 0, False, "MESH"), (0, 1, False, "MESH")]


def test_each_queue_counts_its_own_entries() -> None:
    """Slices of a hierarchy: queue 0 has a ring and then tells queue 1, which waits and has a ring of its own."""
    names = ("a.recv.0", "b.recv.0", "stage")
    rings = [Row(0, 0, step=0, signals=[(0, 0, 1)]), Row(0, 0, step=1, waits=[(0, 1, 1)])]
    rings += [Row(0, 0, leg=1, signals=[(0, 2, 1)]), Row(0, 1, leg=1, waits=[(2, 1, 1)])]
    rings += [Row(0, 1, leg=2, step=0, signals=[(0, 1, 1)]), Row(0, 1, leg=2, step=1, waits=[(1, 1, 1)])]
    parts = activities(schedule_of(rings, names, ranks=1), Algorithm.HIER)
    assert [(each.queue, each.entry, each.ring) for each in parts.table] == [
        (0, 0, True), (0, 1, False), (1, 0, False), (1, 1, True)
    ]  # fmt: skip
    assert parts.entries == 2


def test_a_row_without_a_semaphore_belongs_to_the_row_before_it_or_behind() -> None:
    """Copies in front of a ring are its rows; copies of another leg are an entry."""
    copy: dict[str, Any] = {"size": 64, "sources": [(0, INPUT, 0)]}
    places = [{**copy, "targets": [(0, OUTPUT, 64 * i)]} for i in range(3)]
    ring = [Row(0, 0, step=2, signals=[(0, 0, 1)]), Row(0, 0, step=3, waits=[(0, 1, 1)])]
    rows = [Row(0, 0, step=1, **places[0]), *ring, Row(0, 0, step=4, **places[1])]
    assert forms(activities(schedule_of(rows, ("recv.0",), ranks=1), Algorithm.RING)) == [(0, 0, True, "RING")]
    apart = [Row(0, 0, leg=0, **places[0]), *(replace(row, leg=1) for row in ring), Row(0, 0, leg=2, **places[2])]
    parts = activities(schedule_of(apart, ("recv.0",), ranks=1), None)
    assert [(each.entry, each.ring) for each in parts.table] == [(0, False), (1, True), (2, False)]
    assert parts.of_row.tolist() == [0, 1, 1, 2]


def test_a_semaphore_that_two_queues_wait_on_is_refused() -> None:
    """A semaphore is on one stream processor, and a list waits on its own processor's."""
    rows = [Row(0, 0, signals=[(0, 0, 1), (1, 0, 1)]), Row(0, 0, waits=[(0, 1, 1)]), Row(1, 1, waits=[(0, 1, 1)])]
    with pytest.raises(UnsupportedError, match="semaphore shared: queues 0 and 1 wait on it"):
        activities(schedule_of(rows, ("shared",)), None)


@settings(max_examples=35)
@given(schedule=schedules(most_rows=12), names=st.permutations(["recv.0", "credit.0", "ready.0", "event"]))
def test_activities_are_a_partition_that_keeps_the_order_of_queues(schedule: Schedule, names: list[str]) -> None:
    """Each row is in one activity, of its queue; entries of a lane never go back; a list knows what it waits for."""
    assume(len(schedule))
    named = [replace(each, name=name) for each, name in zip(schedule.semaphores, names, strict=False)]
    schedule = replace(schedule, semaphores=tuple(named))
    try:
        parts = activities(schedule, None)
    except UnsupportedError as error:
        assert "wait on it" in str(error)  # noqa: PT017  the property goes on below where it is not refused
        return
    queue = np.array([each.queue for each in parts.table])
    entry = np.array([each.entry for each in parts.table])
    assert (queue[parts.of_row] == schedule.rows.queue).all()
    assert np.unique(np.stack([queue, entry]), axis=1).shape[1] == queue.size
    for lane in np.unique(schedule.lane).tolist():
        assert (np.diff(entry[parts.of_row[schedule.lane == lane]]) >= 0).all()
    activity = parts.of_row[schedule.wait_row]
    assert (parts.of_semaphore[schedule.waits.semaphore] == activity).all()
    for index, each in enumerate(parts.table):
        held = {i for i in (each.recv, each.credit, each.ready, each.done, *each.waited) if i >= 0}
        assert held == set(schedule.waits.semaphore[activity == index].tolist())
