"""verify/program: collectives of several groups that meet, do not meet, or wait for each other."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.verify.findings import Finding
from rota.verify.program import Call, Program, find_program, show


def call(*group: int, kind: str = "all_reduce", count: int = 8, stream: int = 0, channels: int = 1) -> Call:
    return Call(kind, "fp32", count, group, stream, channels)


def found(*ranks: list[Call], communicators: int = 12, streams: int = 4, channels: int = 32) -> list[Finding]:
    program = Program(tuple(map(tuple, ranks)))
    return find_program(program, communicators=communicators, streams=streams, channels=channels)


def only(findings: list[Finding]) -> tuple[str, str]:
    assert len(findings) == 1, findings
    return findings[0].rule, str(findings[0])


def test_ranks_that_agree_finish() -> None:
    """All members of each group enter the same collectives in the same order, whatever the other groups do."""
    both, pair = call(0, 1, 2, 3), [call(0, 1, kind="all_gather"), call(2, 3, count=1)]
    assert found([both, pair[0]], [both, pair[0]], [both, pair[1], pair[1]], [both, pair[1], pair[1]]) == []
    assert found([], []) == []


def test_the_first_difference_of_two_ranks_is_named() -> None:
    """Order mismatch: the index on the group, both entries, and where they stand in the programs."""
    other, gather, reduce = call(1, 2), call(0, 1, kind="all_gather"), call(0, 1)
    ranks = [[reduce, gather, reduce], [other, reduce, reduce, gather], [other]]
    assert only(found(*ranks)) == (
        "order_mismatch",
        "group [0, 1] call 1: rank 0 enters all_gather of 8 fp32, rank 1 all_reduce of 8 fp32 (calls 1 and 2 of their "
        "programs)",
    )


@pytest.mark.parametrize("other", [Call("all_reduce", "bf16", 8, (0, 1)), Call("all_reduce", "fp32", 9, (0, 1))])
def test_element_types_and_counts_must_agree(other: Call) -> None:
    """Two ranks that reduce different counts or types do not meet."""
    assert only(found([call(0, 1)], [other]))[0] == "order_mismatch"


def test_a_rank_that_stops_early_is_missing() -> None:
    """A rank of a group that never enters is named with the collective it leaves the others in."""
    assert only(found([call(0, 1), call(0, 1)], [call(0, 1)])) == (
        "missing_rank",
        "group [0, 1] call 1: rank 0 enters all_reduce of 8 fp32 (call 1 of its program), rank 1 never does",
    )
    assert only(found([call(0, 2)], [], []))[0] == "missing_rank"


def test_a_rank_outside_the_program_never_enters() -> None:
    """A group may name ranks that the program does not have."""
    rule, text = only(found([call(0, 7)]))
    assert rule == "missing_rank"
    assert text.endswith("rank 7 never does")


def test_two_groups_entered_in_opposite_order_block_each_other() -> None:
    """The cycle over program order is printed: who enters what before what."""
    first, second = call(0, 1), call(0, 1, 2, kind="all_gather")
    assert only(found([first, second], [second, first], [second])) == (
        "blocked_groups",
        "rank 0 enters all_reduce 0 of group [0, 1] before all_gather 0 of group [0, 1, 2] on stream 0, rank 1 enters "
        "all_gather 0 of group [0, 1, 2] before all_reduce 0 of group [0, 1] on stream 0: each waits for the next, and "
        "none finishes",
    )


def test_three_groups_can_block_each_other_without_any_two_doing_so() -> None:
    """A cycle may go over more groups than share a pair of ranks."""
    a, b, c = call(0, 1), call(1, 2), call(2, 0)
    rule, text = only(found([a, c], [b, a], [c, b]))
    assert rule == "blocked_groups"
    assert text.count(" before ") == 3


def test_on_two_streams_the_same_groups_do_not_block() -> None:
    """Streams of a rank run at the same time, so neither call holds up the other."""
    first, second = call(0, 1), call(0, 1, 2, stream=1)
    assert found([first, second], [second, first], [second]) == []


def test_what_waits_behind_a_cycle_is_not_another_one() -> None:
    """Only the collectives that wait for each other are named."""
    first, second, behind = call(0, 1), call(0, 1, 2), call(2, 3)
    assert only(found([first, second], [second, first], [second, behind], [behind]))[0] == "blocked_groups"


def test_the_same_ranks_in_another_order_are_another_group() -> None:
    """Ranks that call a group in different orders never meet; both in both orders do, on two communicators."""
    assert only(found([call(0, 1)], [call(1, 0)])) == (
        "group_mismatch",
        "rank 0 calls the group [0, 1], rank 1 the same ranks as [1, 0]: these are two groups, and neither is complete",
    )
    twice = [call(0, 1), call(1, 0)]
    assert found(twice, twice) == []
    assert only(found(twice, twice, communicators=1)[:1])[0] == "communicator_limit"


def test_another_order_in_a_second_program_needs_a_communicator_of_its_own() -> None:
    """The communicator of an earlier program is taken again for the same ranks in the same order only."""
    first, same, other = (Program(((call(*group),),) * 2) for group in ((0, 1), (0, 1), (1, 0)))
    assert find_program(same, communicators=1, streams=1, earlier=[first]) == []
    findings = find_program(other, communicators=1, streams=1, earlier=[first])
    assert [str(finding) for finding in findings] == [
        f"rank {rank} is in 2 groups, and there are 1 communicators; the first too many is [1, 0]" for rank in (0, 1)
    ]


def test_a_member_of_no_order_is_missing() -> None:
    """Where some ranks agree on one order and some on another, a rank that calls neither is missing from both."""
    findings = found([call(0, 1, 2)], [call(1, 0, 2)], [])
    assert sorted({finding.rule for finding in findings}) == ["group_mismatch", "missing_rank"]


@pytest.mark.parametrize(("limit", "count"), [(12, 12), (12, 13), (16, 16), (16, 17)])
def test_communicators_are_limited(limit: int, count: int) -> None:
    """A rank is in at most 12 groups, in newer releases 16."""
    calls = [call(0, other) for other in range(1, count + 1)]
    findings = found(calls, *([one] for one in calls), communicators=limit)
    if count <= limit:
        assert findings == []
        return
    assert only(findings) == (
        "communicator_limit",
        f"rank 0 is in {count} groups, and there are {limit} communicators; the first too many is [0, {count}]",
    )


def test_streams_are_limited() -> None:
    """A rank has four streams."""
    calls = [call(0, stream=number) for number in range(5)]
    assert found(calls[:4]) == []
    assert only(found(calls)) == (
        "stream_limit",
        "rank 0 issues on 5 streams, and there are 4; the first too many is stream 4 at call 4",
    )


def test_channels_of_all_groups_count_together() -> None:
    """The groups of a rank share its channels; a group called twice takes them once."""
    calls = [call(0, channels=20), call(0, channels=20), call(0, 1, channels=12)]
    assert found(calls, calls[2:]) == []
    rule, text = only(found(calls, calls[2:], channels=31))
    assert rule == "channel_limit"
    assert text == "the groups of rank 0 take 32 channels, and there are 31; [0] alone takes 20"


def test_findings_of_a_rule_are_at_most_eight() -> None:
    """A program that is wrong on all ranks does not flood the reader."""
    everybody = tuple(range(20))
    ranks = [[call(*everybody, count=rank)] for rank in everybody]
    assert [finding.rule for finding in found(*ranks)] == ["order_mismatch"] * 8


@pytest.mark.parametrize("group", [(1, 2), (0, 1, 1)])
def test_a_group_without_the_caller_or_with_a_rank_twice_is_refused(group: tuple[int, ...]) -> None:
    """Such a call is no mistake of the order but of the program."""
    with pytest.raises(UsageError, match=r"rank 0 call 0"):
        Program(((call(*group),),))


def test_a_long_group_is_shown_by_its_ends() -> None:
    """Messages stay one line."""
    assert show(tuple(range(64))) == "[0, 1, 2, 3, ... 63] of 64"
