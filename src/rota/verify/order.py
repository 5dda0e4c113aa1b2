"""The proof of order: in every execution all rows start, and what touches the same bytes does so in one order.

What each row reads and writes in that order is `data`'s. The proof is exact but for one refusal: a semaphore signalled
by several queues whose signals of one phase could be taken for those of another is a finding, even where no harm comes
of it. Source: schedule §5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rota.columns import I64, Bool
from rota.errors import VerifyError
from rota.schedule.ir import Schedule
from rota.verify.before import Order
from rota.verify.counts import counts, limits
from rota.verify.ends import any_of, not_entered, not_finished, visits
from rota.verify.findings import Finding, Name, few
from rota.verify.lanes import Lanes, lanes
from rota.verify.match import Matching, Needs, Signals, match, needs
from rota.verify.memory import conflicts, races, unread
from rota.verify.runs import deadlocks, reorder, run


def verify_order(schedule: Schedule, *, internal_bytes: int | None = None, semaphores: int | None = None) -> None:
    """Prove that a schedule does the same whatever the timing, and can run again.

    Args:
        internal_bytes, semaphores: what a rank has for internal buffers, and how many semaphores; None is no limit.

    Raises:
        VerifyError: it does not; the findings name the rows.
    """
    findings = find_order(schedule, internal_bytes=internal_bytes, semaphores=semaphores)
    if findings:
        raise VerifyError(f"order: {findings[0]}", findings=[str(finding) for finding in findings])


def find_order(
    schedule: Schedule, *, internal_bytes: int | None = None, semaphores: int | None = None
) -> list[Finding]:
    """Return what is wrong with the order of a schedule, at most eight findings of each rule; none means proved.

    The stored order need not be an execution. Races are looked for where nothing deadlocks and no semaphore is
    ambiguous, and what is never read where there is no race.

    Args:
        internal_bytes, semaphores: what a rank has for internal buffers, and how many semaphores; None is no limit.
    """
    queues, waits = lanes(schedule), needs(schedule)
    given = Signals(schedule, queues)
    numbers, values = counts(schedule, given, waits)
    rest = [*few(numbers), *few(values), *limits(schedule, internal_bytes, semaphores)]
    matching = match(given, waits, queues)
    if matching.runs:
        return [*_findings(schedule, schedule.name, queues, waits, matching), *rest]
    ran = run(schedule, waits, queues)
    if ran.order.size < len(schedule):
        return [*few(deadlocks(schedule, waits, queues, ran)), *rest]
    ordered = reorder(schedule, ran.order)
    queues, waits = lanes(ordered), needs(ordered)
    matching = match(Signals(ordered, queues), waits, queues)
    assert matching.runs, "a greedy run is an execution"
    found = _findings(ordered, lambda row: schedule.name(int(ran.order[row])), queues, waits, matching)
    stored = [replace(finding, rows=tuple(ran.order[list(finding.rows)].tolist())) for finding in found]
    return [*stored, *rest]


def executable(schedule: Schedule) -> Schedule:
    """Return the schedule with its rows stored in an order of execution: itself if they are.

    Raises:
        VerifyError: it deadlocks.
    """
    queues, waits = lanes(schedule), needs(schedule)
    if match(Signals(schedule, queues), waits, queues).runs:
        return schedule
    ran = run(schedule, waits, queues)
    findings = [str(finding) for finding in few(deadlocks(schedule, waits, queues, ran))]
    if findings:
        raise VerifyError(f"order: {findings[0]}", findings=findings)
    return reorder(schedule, ran.order)


def _findings(schedule: Schedule, name: Name, queues: Lanes, waits: Needs, matching: Matching) -> Iterator[Finding]:
    """Yield what is wrong with a schedule whose stored order is an execution."""
    order = Order(schedule, queues, matching.signal, matching.wait)
    pairs, guests = conflicts(schedule), visits(schedule, queues)
    first, last, claimant = queues.first[guests.lane], queues.last[guests.lane], waits.row[matching.claimant]
    elsewhere = np.flatnonzero(queues.of[claimant] != queues.of[matching.next_signal])
    claimed, ordered, entered, finished = _decide(
        order,
        _Question(claimant[elsewhere], matching.next_signal[elsewhere]),
        _Question(pairs.first, pairs.second),
        _Question(first, guests.first[guests.visit], guests.visit),
        _Question(guests.last[guests.visit], last, guests.visit),
    )
    ambiguous = [*few(_ambiguous(schedule, name, waits, matching, elsewhere[~claimed]))]
    if ambiguous:
        yield from ambiguous
        return
    yield from races(schedule, name, pairs, np.flatnonzero(~ordered))
    yield from few(not_entered(name, guests, np.flatnonzero(~any_of(guests, entered))))
    yield from few(not_finished(name, guests, queues, np.flatnonzero(~any_of(guests, finished))))
    if ordered.all():
        yield from few(unread(schedule, name, pairs))


class _Question(NamedTuple):
    """Pairs of rows to be ordered; of those with the same `choice`, one is enough."""

    first: I64
    second: I64
    choice: I64 | None = None


def _decide(order: Order, *questions: _Question) -> list[Bool]:
    """Return which pairs are ordered; what one edge does not show goes to the clocks at once."""
    answers, rest = [], []
    for question in questions:
        near = order.near(question.first, question.second)
        done = near if question.choice is None else np.isin(question.choice, question.choice[near])
        answers.append(near)
        rest.append(np.flatnonzero(~done))
    first = np.concatenate([question.first[some] for question, some in zip(questions, rest, strict=True)])
    second = np.concatenate([question.second[some] for question, some in zip(questions, rest, strict=True)])
    far = np.split(order.far(first, second), np.cumsum([some.size for some in rest])[:-1])
    for answer, some, ordered in zip(answers, rest, far, strict=True):
        answer[some] = ordered
    return answers


def _ambiguous(schedule: Schedule, name: Name, waits: Needs, matching: Matching, bad: I64) -> Iterator[Finding]:
    """Yield waits that a signal of a later phase may release."""
    pairs = [(matching.excess, matching.surplus), (matching.claimant[bad], matching.next_signal[bad])]
    for wait, by in ((w, y) for some, rows in pairs for w, y in zip(some.tolist(), rows.tolist(), strict=True)):
        row = int(waits.row[wait])
        semaphore = schedule.semaphores[int(waits.key[wait]) % len(schedule.semaphores)].name
        text = f"{name(row)} waits for {semaphore} from several queues, and may be released by {name(by)}"
        yield Finding("ambiguous_semaphore", f"{text} instead of a row it is meant to wait for", (row, by))
