"""The proof of a program: the collectives that ranks issue on groups meet, in an order in which all of them finish.

A program says for every rank which collectives it enters, on which group and stream. The n-th one that a rank enters
on a group meets the n-th of every other member; it finishes when all have entered, and the stream goes on after it.
Streams of a rank run at the same time. A group is its ranks in order: the same ranks in another order are another
group. What happens inside a collective is proved by `order` and `data`. Source: compose §1, conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rota.errors import UsageError
from rota.facts import HIGH, Source
from rota.verify.findings import Finding, few

COMMUNICATORS: Final = 12
COMMUNICATORS_SOURCE: Final = Source("compose", "1.1", HIGH)
"""Replica groups that a rank can be in, NEC_MAX_COMM_N."""
MOST_COMMUNICATORS: Final = 16
MOST_SOURCE: Final = Source("platforms", "8", HIGH)
"""The same in later releases of the runtime."""

Group = tuple[int, ...]
_ENTERED: Final = ("order_mismatch", "group_mismatch", "missing_rank")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank enters it.

    Attributes:
        kind, dtype: by name; they only have to be equal on all ranks.
        count: elements.
        group: the ranks that take part, in the order of the communicator.
        stream: calls of one stream run one after another.
        channels: channels of the machine that the group needs.
    """

    kind: str
    dtype: str
    count: int
    group: Group
    stream: int = 0
    channels: int = 1

    def __str__(self) -> str:
        return f"{self.kind} of {self.count} {self.dtype}"


@dataclass(frozen=True, eq=False)
class Program:
    """The calls of every rank, in program order.

    Raises:
        UsageError: a rank calls a group that it is not in, or a group that names a rank twice.
    """

    calls: tuple[tuple[Call, ...], ...]

    def __post_init__(self) -> None:
        checked: set[int] = set()
        for rank, calls in enumerate(self.calls):
            for index, call in enumerate(calls):
                if id(call.group) not in checked and len(set(call.group)) != len(call.group):
                    raise UsageError(f"rank {rank} call {index}: group {show(call.group)} names a rank twice")
                checked.add(id(call.group))
                if rank not in call.group:
                    what = f"group {show(call.group)}, which it is not in; leave the call out or add the rank"
                    raise UsageError(f"rank {rank} call {index} is on {what}")

    @cached_property
    def members(self) -> Mapping[Group, Mapping[int, Sequence[int]]]:
        """For each group, in order of appearance, the calls of each rank on it; who has none is left out."""
        out: dict[Group, dict[int, list[int]]] = {}
        known: dict[int, dict[int, list[int]]] = {}  # by identity: hashing a large group takes long
        for rank, calls in enumerate(self.calls):
            for index, call in enumerate(calls):
                if id(call.group) not in known:
                    known[id(call.group)] = out.setdefault(call.group, {})
                known[id(call.group)].setdefault(rank, []).append(index)
        return out


def find_program(
    program: Program, *, communicators: int, streams: int, channels: int | None = None, earlier: Sequence[Program] = ()
) -> list[Finding]:
    """Return what is wrong with a program, at most eight findings of each rule; none means that it finishes.

    Args:
        communicators: groups that a rank can be in, those of earlier programs included.
        streams: streams that a rank has.
        channels: channels that all groups of a rank may take together; None is no limit.
        earlier: programs whose communicators are still open.
    """
    entered = [*_mismatches(program), *_reordered(program)]
    return [
        *(f for rule in _ENTERED for f in few(finding for finding in entered if finding.rule == rule)),
        *few(_blocked(program)),
        *few(_too_many_groups(program, communicators, earlier)),
        *few(_too_many_streams(program, streams)),
        *(few(_too_many_channels(program, channels)) if channels is not None else ()),
    ]


def show(group: Group) -> str:
    """Return how messages call a group: its ranks in order, the middle of a long one left out."""
    if len(group) <= 8:
        return f"[{', '.join(map(str, group))}]"
    return f"[{', '.join(map(str, group[:4]))}, ... {group[-1]}] of {len(group)}"


def _mismatches(program: Program) -> Iterator[Finding]:
    """Yield where a member enters something else than the others do, or nothing."""
    orders = _orders(program)
    for group, entered in program.members.items():
        longest = max(entered, key=lambda rank: (len(entered[rank]), -rank))
        model = [program.calls[longest][index] for index in entered[longest]]
        for rank in group:
            calls = [program.calls[rank][index] for index in entered.get(rank, ())]
            at = next((i for i, pair in enumerate(zip(model, calls, strict=False)) if _differ(*pair)), len(calls))
            where = f"group {show(group)} call {at}"
            if at < len(calls):
                ours, other = f"rank {longest} enters {model[at]}", f"rank {rank} {calls[at]}"
                places = f"calls {entered[longest][at]} and {entered[rank][at]} of their programs"
                yield Finding("order_mismatch", f"{where}: {ours}, {other} ({places})")
            elif at < len(model) and (calls or len(orders[tuple(sorted(group))]) == 1):
                text = f"{where}: rank {longest} enters {model[at]} (call {entered[longest][at]} of its program), "
                yield Finding("missing_rank", f"{text}rank {rank} never does")


def _differ(one: Call, other: Call) -> bool:
    return (one.kind, one.dtype, one.count) != (other.kind, other.dtype, other.count)


def _orders(program: Program) -> Mapping[Group, Sequence[Group]]:
    """Return the groups of the same ranks, by those ranks in ascending order."""
    out: dict[Group, list[Group]] = {}
    for group in program.members:
        out.setdefault(tuple(sorted(group)), []).append(group)
    return out


def _reordered(program: Program) -> Iterator[Finding]:
    """Yield groups that some members call in one order and some in another, and members that call neither."""
    for groups in _orders(program).values():
        lacking = [group for group in groups if len(program.members[group]) < len(group)]
        if len(groups) == 1 or not lacking:
            continue
        group = lacking[0]
        absent = [rank for rank in group if rank not in program.members[group]]
        other = {rank: next((g for g in lacking if rank in program.members[g]), None) for rank in absent}
        for rank, theirs in other.items():
            if theirs is None:
                text = f"group {show(group)} call 0: rank {rank} never enters, not even in another order of the ranks"
                yield Finding("missing_rank", text)
        rank, theirs = next(((rank, theirs) for rank, theirs in other.items() if theirs is not None), (-1, None))
        if theirs is not None:
            text = f"rank {min(program.members[group])} calls the group {show(group)}, rank {rank} the same ranks as "
            yield Finding("group_mismatch", f"{text}{show(theirs)}: these are two groups, and neither is complete")


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One collective as it meets: the n-th on a group."""

    group: Group
    number: int


def _blocked(program: Program) -> Iterator[Finding]:
    """Yield cycles of collectives of which each must finish on some rank before that rank enters the next."""
    after = _successors(program)
    waiting = dict.fromkeys(after, 0)
    for others in after.values():
        for other in others:
            waiting[other] += 1
    ready = [meeting for meeting, count in waiting.items() if not count]
    while ready:
        for other in after[ready.pop()]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    before: dict[_Meeting, _Meeting] = {}
    for meeting, others in after.items():
        for other in others:
            if waiting[meeting] and waiting[other]:
                before.setdefault(other, meeting)
    seen: dict[_Meeting, _Meeting] = {}
    for start in before:
        path, at = [], start
        while at not in seen:
            seen[at] = start
            path.append(at)
            at = before[at]
        if seen[at] == start and at in path:
            yield _cycle(program, path[path.index(at) :][::-1], after)


def _successors(program: Program) -> dict[_Meeting, dict[_Meeting, tuple[int, int]]]:
    """Return what comes next to each collective on some rank and stream, and the rank and its first call there."""
    after: dict[_Meeting, dict[_Meeting, tuple[int, int]]] = {}
    number = {
        (rank, index): _Meeting(group, n)
        for group, entered in program.members.items()
        for rank, indices in entered.items()
        for n, index in enumerate(indices)
    }
    for rank, calls in enumerate(program.calls):
        last: dict[int, int] = {}
        for index, call in enumerate(calls):
            here = after.setdefault(number[rank, index], {})
            if call.stream in last:
                after[number[rank, last[call.stream]]].setdefault(number[rank, index], (rank, last[call.stream]))
            last[call.stream] = index
            assert here is after[number[rank, index]]
    return after


def _cycle(
    program: Program, path: Sequence[_Meeting], after: Mapping[_Meeting, Mapping[_Meeting, tuple[int, int]]]
) -> Finding:
    parts = []
    for meeting, other in zip(path, [*path[1:], path[0]], strict=True):
        rank, index = after[meeting][other]
        stream = program.calls[rank][index].stream
        parts.append(f"rank {rank} enters {_name(program, meeting)} before {_name(program, other)} on stream {stream}")
    return Finding("blocked_groups", f"{', '.join(parts)}: each waits for the next, and none finishes")


def _name(program: Program, meeting: _Meeting) -> str:
    entered = program.members[meeting.group]
    rank = next(rank for rank, indices in entered.items() if len(indices) > meeting.number)
    call = program.calls[rank][entered[rank][meeting.number]]
    return f"{call.kind} {meeting.number} of group {show(meeting.group)}"


def _too_many_groups(program: Program, limit: int, earlier: Sequence[Program]) -> Iterator[Finding]:
    groups: dict[int, list[Group]] = {}
    for group in dict.fromkeys(group for each in (*earlier, program) for group in each.members):
        for rank in group:
            groups.setdefault(rank, []).append(group)
    for rank in sorted(groups):
        if len(groups[rank]) > limit:
            text = f"rank {rank} is in {len(groups[rank])} groups, and there are {limit} communicators"
            yield Finding("communicator_limit", f"{text}; the first too many is {show(groups[rank][limit])}")


def _too_many_streams(program: Program, limit: int) -> Iterator[Finding]:
    for rank, calls in enumerate(program.calls):
        first: dict[int, int] = {}
        for index, call in enumerate(calls):
            first.setdefault(call.stream, index)
        if len(first) > limit:
            stream, index = list(first.items())[limit]
            text = f"rank {rank} issues on {len(first)} streams, and there are {limit}"
            yield Finding("stream_limit", f"{text}; the first too many is stream {stream} at call {index}")


def _too_many_channels(program: Program, limit: int) -> Iterator[Finding]:
    taken: list[dict[Group, int]] = [{} for _ in program.calls]
    for group, entered in program.members.items():
        for rank, indices in entered.items():
            taken[rank][group] = max(program.calls[rank][index].channels for index in indices)
    for rank, groups in enumerate(taken):
        if sum(groups.values()) > limit:
            most = max(groups, key=lambda group: groups[group])
            text = f"the groups of rank {rank} take {sum(groups.values())} channels, and there are {limit}"
            yield Finding("channel_limit", f"{text}; {show(most)} alone takes {groups[most]}")
