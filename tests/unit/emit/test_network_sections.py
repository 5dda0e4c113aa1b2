"""Rows of network proxies as records: sends and receives in order, addresses, units, and whose section they are in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedules import INPUT, OUTPUT, SCRATCH, Row, build, schedules
from tests.unit.emit.test_network_hops import cut_schedules, read

from rota.emit.network import PROXY_QUEUE, NetworkRun, network_sections, with_proxies
from rota.errors import UsageError
from rota.isa.network import decode_network
from rota.isa.semaphores import PARITIES, Window
from rota.schedule.ir import Schedule

Array = Any
SPAN = np.array([0, 1, 1])
SPS = 2


def memory(member: Array, buffer: Array, offset: Array) -> Array:
    """Return an address from which all three can be read."""
    return (1 << 50) + (member << 40) + (buffer << 32) + offset


def semaphore(member: Array, identity: Array, window: Window) -> Array:
    """Return an address from which all three can be read."""
    return (1 << 51) + (member << 40) + (identity << 16) + int(window)


def run(schedule: Schedule, **more: Any) -> NetworkRun:
    """Return a schedule whose rows of leg n are control entry n, and whose semaphore s counts s + 1 at a time."""
    usual: dict[str, Any] = {
        "member": np.arange(schedule.ranks),
        "entry": schedule.rows.leg.astype(np.int64),
        "processor": lambda queue: SPS - 1 - queue % SPS,
        "unit": np.arange(len(schedule.semaphores)) + 1,
        "element_size": 1,
        "memory": memory,
        "semaphore": semaphore,
    }
    return NetworkRun(schedule, **(usual | more))


def sections(*runs: NetworkRun, members: int = 3, credits: int = 8) -> list[dict[int, bytes]]:
    return network_sections(runs, members, credits=credits)


Operation = tuple[int, int, int]  # member, control entry, queue


def expected(runs: list[NetworkRun]) -> dict[Operation, tuple[list[Any], list[Any]]]:
    """Return sends and receives of each operation, one proxy row after another."""
    found: dict[Operation, tuple[list[Any], list[Any]]] = {}
    for each in runs:
        entry = 0
        for row, leg in zip(read(each.schedule), each.entry.tolist(), strict=True):
            if row.queue < PROXY_QUEUE:
                entry = leg
                continue
            queue = row.queue - PROXY_QUEUE
            sender = int(each.member[row.rank])
            receiver = int(each.member[(row.targets or row.signals)[0][0]])
            semaphores = [semaphore(receiver, s, Window.INC) for _, s, _ in row.signals] + [0] * (2 - len(row.signals))
            values = [add * int(each.unit[s]) for _, s, add in row.signals] + [0] * (2 - len(row.signals))
            source = memory(sender, *row.sources[0][1:]) if row.sources else 0
            target = memory(receiver, *row.targets[0][1:]) if row.targets else 0
            found.setdefault((sender, entry, queue), ([], []))[0].append(
                (receiver, int(not row.waits), source, target, row.size, *semaphores, *values)
            )
            found.setdefault((receiver, entry, queue), ([], []))[1].append((sender, target, row.size, *semaphores))
    for _, receives in found.values():
        receives.sort(key=lambda receive: receive[0])  # stable: by sender
    return found


def listed(made: list[dict[int, bytes]]) -> dict[Operation, tuple[list[Any], list[Any]]]:
    """Return sends and receives of each operation of all sections, and check where the section is."""
    found: dict[Operation, tuple[list[Any], list[Any]]] = {}
    for member, of_member in enumerate(made):
        for sp, data in of_member.items():
            section = decode_network(data)
            table = section.operations
            keys = list(zip([member] * table.entry.size, table.entry.tolist(), table.channel.tolist(), strict=True))
            assert all(sp == SPS - 1 - queue % SPS for _, _, queue in keys)
            assert not set(keys) & set(found)
            found |= {key: ([], []) for key in keys}
            for side, records, owner in (
                (0, section.sends, section.send_operation),
                (1, section.receives, section.receive_operation),
            ):
                columns = [getattr(records, name).tolist() for name in type(records).__slots__]
                for of, values in zip(owner.tolist(), zip(*columns, strict=True), strict=True):
                    found[keys[of]][side].append(values)
    return found


@given(cut=cut_schedules())
def test_each_proxy_row_is_a_send_and_a_receive(cut: tuple[Schedule, list[int]]) -> None:
    """Sends are in the order of their rows, receives by sender in the same order; all fields are those of the row."""
    schedule, span = cut
    made = with_proxies(schedule, np.array(span))
    one = run(made)
    assert listed(sections(one)) == expected([one])


@settings(max_examples=30)
@given(cuts=st.lists(cut_schedules(), min_size=2, max_size=3), data=st.data())
def test_several_collectives_share_the_sections(cuts: list[Any], data: st.DataObject) -> None:
    """Members and control entries are those of the program; entries of one processor stand in one section, in order."""
    runs = []
    for number, (schedule, span) in enumerate(cuts):
        made = with_proxies(schedule, np.array(span))
        member = np.array(data.draw(st.permutations(range(5)))[: schedule.ranks])
        runs.append(run(made, member=member, entry=made.rows.leg.astype(np.int64) + 256 * number))
    assert listed(sections(*runs, members=5)) == expected(runs)


def hop(*, folds: int = 2, signals: int = 1, leg: int = 0) -> NetworkRun:
    """A row of rank 0 that sends eight bytes to rank 1, and tells it so."""
    told = [(1, semaphore, 2) for semaphore in range(signals)]
    rows = [
        Row(0, 3, leg=leg, size=8, sources=[(0, INPUT, 8)], targets=[(1, OUTPUT, 16)], signals=told),
        Row(1, 3, leg=leg, waits=[(semaphore, 2, 2) for semaphore in range(signals)]),
    ]
    made = with_proxies(build(rows, ranks=3, grain=8, initial=[0] * signals), SPAN)
    return run(made, unit=np.full(signals + 1, folds), element_size=4)


def test_records_of_one_hop() -> None:
    """The sender's operation names the semaphore of its queue and its unit, the receiver's has receives only."""
    made = sections(hop())
    assert [sorted(each) for each in made] == [[0], [0], []]
    sender, receiver = (decode_network(made[member][0]) for member in (0, 1))
    table = sender.operations
    assert table.handshake.tolist() == [semaphore(0, 1, Window.READ)]
    assert (table.shift.tolist(), table.steps.tolist()) == ([0], [2])
    assert (table.sends.tolist(), table.receives.tolist()) == ([1], [0])
    assert (table.credits.tolist(), table.element_size.tolist()) == ([8], [4])
    assert sender.sends.value_0.tolist() == [4]
    assert sender.sends.source.tolist() == [memory(0, INPUT, 8)]
    assert receiver.operations.handshake.tolist() == [0]
    assert (receiver.operations.sends.tolist(), receiver.operations.receives.tolist()) == ([0], [1])
    assert receiver.receives.semaphore_0.tolist() == [semaphore(1, 0, Window.INC)]


@pytest.mark.parametrize("parity", PARITIES)
def test_units_of_event_lists_are_shifts(parity: Any) -> None:
    """What counts in steps of 1 << shift is written as that shift."""
    table = decode_network(sections(hop(folds=1 << parity.shift))[0][0]).operations
    assert (table.shift.tolist(), table.steps.tolist()) == ([parity.shift], [1])


def test_a_row_of_three_signals_is_two_sends() -> None:
    """The second send has no data and the third signal."""
    sends = decode_network(sections(hop(signals=3))[0][0]).sends
    assert sends.size.tolist() == [8, 0]
    assert sends.follows.tolist() == [0, 1]
    assert sends.semaphore_1.tolist() == [semaphore(1, 1, Window.INC), 0]
    assert sends.semaphore_0.tolist()[1] == semaphore(1, 2, Window.INC)


def test_a_bounced_row_is_sent_from_its_place() -> None:
    """What stands in an internal buffer is read from the bounce buffer of its queue."""
    row = Row(0, 3, size=8, sources=[(0, SCRATCH, 8)], targets=[(1, OUTPUT, 16)])
    made = with_proxies(build([row], ranks=3, grain=8, initial=[]), SPAN)
    assert decode_network(sections(run(made))[0][0]).sends.source.tolist() == [memory(0, 3, 0)]


@settings(max_examples=30)
@given(schedule=schedules())
def test_nothing_far_is_no_section(schedule: Schedule) -> None:
    """Without a proxy row, and without a collective, no member has a section."""
    assert sections(run(schedule)) == [{}] * 3
    assert sections() == [{}] * 3


def test_credits_are_a_window() -> None:
    """Credits stand in the record; outside of 1 to 511 they are refused."""
    assert decode_network(sections(hop(), credits=511)[0][0]).operations.credits.tolist() == [511]
    for credits in (0, 512):
        with pytest.raises(UsageError, match=f"{credits} send credits: expected 1 to 511"):
            sections(hop(), credits=credits)


def test_rows_of_one_queue_belong_to_the_entries_of_their_rows() -> None:
    """A queue that works in several control entries has an operation for each."""
    rows = [Row(0, 3, leg=leg, size=8, sources=[(0, INPUT, 8 * leg)], targets=[(1, OUTPUT, 8 * leg)]) for leg in (0, 1)]
    made = with_proxies(build([rows[0], replace(rows[0], sources=[(0, INPUT, 64)], targets=[(2, OUTPUT, 0)]), rows[1]],
                              ranks=3, grain=8, initial=[]), SPAN)  # fmt: skip
    table = decode_network(sections(run(made))[0][0]).operations
    assert (table.entry.tolist(), table.sends.tolist()) == ([0, 1], [2, 1])
