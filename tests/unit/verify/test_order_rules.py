"""verify/order: each rule planted in a schedule small enough to read, and what its finding says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.families import SMALL, hierarchical, kangaring, recursive_doubling, single_step_mesh, two_step_mesh
from tests.unchecked import parse_unchecked

from rota.errors import VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request
from rota.schedule.ir import Checks, Schedule
from rota.schedule.text import parse, to_text
from rota.verify import RULES, Finding, executable, find_data, find_order, verify, verify_order

HEAD = """schedule 1
ranks {ranks}
buffer input 16 user
buffer output 16 user
buffer slot 16
semaphore a 0
semaphore b 0
semaphore credit 1
input input
output output
"""
ROW = re.compile(r"row \d+ \(rank \d+ channel \d+ leg \d+ step \d+ part \d+ [a-z_]+\)")
SEND = "0.0 0.0 send : 0.input+0 -> 1.slot+0 8 !1.a+1"
TAKE = "1.0 0.0 recv_reduce_copy ?a>=1-1 : 1.slot+0 -> 1.output+0 8"


def schedule(*rows: str, ranks: int = 2) -> Schedule:
    return parse_unchecked(HEAD.format(ranks=ranks) + "\n".join(rows) + "\n")


def found(*rows: str, ranks: int = 2) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.rule, finding.rows) for finding in find_order(schedule(*rows, ranks=ranks))]


def edited(plan: Schedule, old: str, new: str, *, times: int = 1) -> Schedule:
    """Return the schedule with a piece of its text replaced, whatever that does to it."""
    text = to_text(plan)
    assert old in text, text
    return parse_unchecked(text.replace(old, new, times))


def rules(findings: list[Finding]) -> list[str]:
    return sorted({finding.rule for finding in findings})


@pytest.mark.parametrize("name", SMALL)
def test_a_right_schedule_of_each_family_has_no_finding(name: str) -> None:
    """The families of compose, in place and out of place, are in order; nothing they write is left unread."""
    assert find_order(SMALL[name]()) == []


def test_a_signal_orders_what_is_written_before_it() -> None:
    """A row that waits for a signal starts after all that the signalling queue did before."""
    assert found(SEND, TAKE) == []
    late = SEND.replace(" !1.a+1", "")
    assert found(late, "0.0 0.1 post_send !1.a+1", TAKE) == []


def test_a_cycle_of_waits_is_a_deadlock() -> None:
    """Two ranks that each wait for the other's next row never start; the cycle is printed."""
    rows = ["0.0 0.0 send ?a>=1-1", "0.0 0.1 send !1.a+1", "1.0 0.0 send ?a>=1-1", "1.0 0.1 send !0.a+1"]
    (finding,) = find_order(schedule(*rows))
    assert (finding.rule, finding.rows) == ("deadlock", (0, 2))
    one, two, three, four = (
        f"row {2 * r + s} (rank {r} channel 0 leg 0 step {s} part 0 send)" for r in (0, 1) for s in (0, 1)
    )
    assert str(finding) == (
        f"{one} waits for a (0 of 1 signalled) from {four}, which comes after {three}, which waits for a (0 of 1 "
        f"signalled) from {two}, which comes after {one}: a cycle of 2 queues"
    )


def test_a_row_that_waits_for_itself_is_a_deadlock() -> None:
    """A queue that waits for a signal of its own later row is a cycle of one."""
    (finding,) = find_order(schedule("0.0 0.0 send ?a>=1-1 !0.a+1"))
    assert (finding.rule, finding.rows) == ("deadlock", (0,))
    assert str(finding).endswith(": a cycle of a queue")


def test_a_long_cycle_is_cut_short_in_its_message() -> None:
    """Sixteen queues are named, and how many more there are; the rows are all there."""
    rows = [f"{r}.0 0.0 send ?a>=1-1 !{(r + 1) % 20}.a+1" for r in range(20)]
    (finding,) = find_order(schedule(*rows, ranks=20))
    assert sorted(finding.rows) == list(range(20))
    assert str(finding).count("waits for a") == 16
    assert "which waits over 4 more queues for row 0 (" in str(finding)


def test_a_wait_for_a_signal_nobody_sends_is_a_deadlock() -> None:
    """Where the chain of waits ends, the row and the semaphore are named, and how many queues hang on it."""
    rows = ["0.0 0.0 send ?a>=1-1 !1.b+1", "1.0 0.0 send ?b>=1-1"]
    first, count = find_order(schedule(*rows))
    assert (first.rule, first.rows) == ("deadlock", (0,))
    assert "waits for a (0 of 1 signalled), and nobody signals it any more; 2 queues do not finish" in str(first)
    assert count.rule == "wait_count"


def test_each_cycle_is_found_once() -> None:
    """Two pairs that deadlock apart are two findings; queues that only hang on them are none."""
    pairs = [f"{r}.0 0.0 send ?a>=1-1 !{r ^ 1}.a+1" for r in range(4)]
    hanging = ["0.0 0.1 send !2.b+1", "2.1 0.0 send ?b>=1-1"]
    assert found(*pairs, *hanging, ranks=4) == [("deadlock", (0, 1)), ("deadlock", (2, 3))]


def test_rows_stored_out_of_order_are_run_first() -> None:
    """A stored order that is no execution is no defect: rows keep their stored numbers and nothing is found."""
    assert found(TAKE, SEND) == []
    assert found(TAKE.replace(" ?a>=1-1", " ?b>=1-1"), SEND.replace("1.a", "1.b")) == []


def test_findings_of_rows_out_of_order_name_the_stored_rows() -> None:
    """After a greedy run the rows of a race are those of the schedule as it is stored."""
    late = "0.0 0.1 send : 0.input+8 -> 1.slot+0 8"
    plan = schedule(TAKE, SEND, late)
    findings = find_order(plan)
    assert [(finding.rule, finding.rows) for finding in findings] == [("race", (1, 2)), ("race", (2, 0))]
    assert str(findings[1]).startswith(f"{plan.name(2)} writes rank 1 slot+0 (8 bytes), {plan.name(0)} reads it")


def test_an_executable_schedule_has_its_rows_in_an_order_of_execution() -> None:
    """Rows are sorted by a greedy run only if they must be; what deadlocks has no such order."""
    plan, sorted_plan = schedule(TAKE, SEND), schedule(SEND, TAKE)
    assert executable(plan) == sorted_plan
    assert executable(sorted_plan) is sorted_plan
    with pytest.raises(VerifyError, match=r"order: row 0 .* waits for a"):
        executable(schedule("0.0 0.0 send ?a>=1-1"))


def test_data_are_proved_in_an_order_of_execution() -> None:
    """A schedule whose rows are stored rank by rank is proved like the same one step by step."""
    plan = two_step_mesh(3)
    text = to_text(plan).splitlines()
    rows = sorted((line for line in text if line[:1].isdigit()), key=lambda line: line[0])
    shuffled = parse_unchecked("\n".join([*(line for line in text if not line[:1].isdigit()), *rows]))
    request = Request(EncOp.ALLREDUCE, Dtype.FP32, 6, ((0, 1, 2),), CceType.ADD)
    assert find_data(shuffled, request) != []
    verify(shuffled, request)


def test_an_unordered_read_and_write_is_a_race() -> None:
    """Without a wait a row may read before another has written; both rows and the bytes are named."""
    rows = [SEND.replace(" !1.a+1", ""), TAKE.replace(" ?a>=1-1", "")]
    (finding,) = find_order(schedule(*rows))
    assert (finding.rule, finding.rows) == ("race", (0, 1))
    assert str(finding) == (
        "row 0 (rank 0 channel 0 leg 0 step 0 part 0 send) writes rank 1 slot+0 (8 bytes), "
        "row 1 (rank 1 channel 0 leg 0 step 0 part 0 recv_reduce_copy) reads it, and nothing orders the two"
    )


def test_two_unordered_writes_are_a_race() -> None:
    """Which of two unordered writes is last is chance."""
    rows = ["0.0 0.0 send : 0.input+0 -> 0.output+0 8", "0.1 0.0 send : 0.input+8 -> 0.output+4 8"]
    finding = next(iter(find_order(schedule(*rows))))
    assert (finding.rule, finding.rows) == ("race", (0, 1))
    assert "writes rank 0 output+4 (4 bytes)" in str(finding)


def test_two_reads_are_no_race() -> None:
    """Reading together harms nobody."""
    rows = ["0.0 0.0 send : 0.input+0 -> 0.output+0 8", "0.1 0.0 send : 0.input+0 -> 0.output+8 8"]
    assert found(*rows) == []


def test_rows_of_one_queue_race_without_a_fence() -> None:
    """A row starts when the row before it has started, not when it has completed; a fence waits for that."""
    copy, use = "0.0 0.0 send : 0.input+0 -> 0.slot+0 8", "0.0 0.1 send : 0.slot+0 -> 0.output+0 8"
    assert found(copy, use) == [("race", (0, 1))]
    assert found(copy, use.replace("send", "send |")) == []


def test_a_round_trip_orders_rows_of_one_queue() -> None:
    """A queue that waits for the answer to its own signal has completed what it did before that signal."""
    rows = [
        "0.0 0.0 send : 0.input+0 -> 0.slot+0 8 !1.a+1",
        "1.0 0.0 send ?a>=1-1 !0.b+1",
        "0.0 0.1 send ?b>=1-1 : 0.slot+0 -> 0.output+0 8",
    ]
    assert found(*rows) == []


def test_a_chain_over_many_queues_orders_its_ends() -> None:
    """Order is transitive, however long the chain; cut anywhere, the ends race."""
    rows = ["0.0 0.0 send : 0.input+0 -> 0.slot+0 8 !1.a+1"]
    rows += [f"{r}.0 0.0 send ?a>=1-1 !{(r + 1) % 5}.a+1" for r in range(1, 5)]
    rows += ["0.1 0.0 send ?a>=1-1 : 0.slot+0 -> 0.output+0 8"]
    assert found(*rows, ranks=5) == []
    cut = [row.replace(" ?a>=1-1", "") if row.startswith("3.0") else row for row in rows]
    assert ("race", (0, 5)) in found(*cut, ranks=5)


def test_a_slot_written_before_its_credit_returns_is_reused() -> None:
    """The sender's second move into a slot must come after the receiver has read the first."""
    again = "0.0 0.1 send ?credit>=1-1 : 0.input+8 -> 1.slot+0 8 !1.a+1"
    reads = [TAKE, TAKE.replace("0.0 recv", "0.1 recv").replace("output+0", "output+8")]
    rows = [SEND.replace("send", "send ?credit>=1-1"), reads[0] + " !0.credit+1", again, reads[1] + " !0.credit+1"]
    assert found(*rows) == []
    findings = find_order(schedule(rows[0], reads[0], again.replace(" ?credit>=1-1", ""), reads[1] + " !0.credit+1"))
    assert [(finding.rule, finding.rows) for finding in findings] == [("slot_reuse", (2, 1))]
    assert "writes rank 1 slot+0 (8 bytes) again, and nothing orders that after row 1" in str(findings[0])


def test_an_input_overwritten_before_it_is_read_is_an_in_place_hazard() -> None:
    """In place, a peer's late read of the input races with the write of the output."""
    plan = edited(two_step_mesh(3, in_place=True), "?rs>=2-2", "?rs>=1-1", times=3)
    assert rules(find_order(plan))[0] == "ambiguous_semaphore"
    ring = kangaring(3, 2, in_place=True)
    text = to_text(ring).replace("semaphore recv 0", "semaphore recv 9")
    findings = find_order(parse_unchecked(text))
    assert "in_place_hazard" in rules(findings)
    finding = next(f for f in findings if f.rule == "in_place_hazard")
    assert re.search(
        r"overwrites rank \d input\+\d+ \(8 bytes\) in place, and nothing orders that after row", str(finding)
    )


@pytest.mark.parametrize(("halves", "counters", "said"), [(2, 1, "ambiguous_semaphore"), (1, 2, "slot_reuse")])
def test_operations_in_a_row_need_two_halves_and_two_semaphores(halves: int, counters: int, said: str) -> None:
    """A fast peer's next operation releases the wait on a shared semaphore, or lands in a half still being read."""
    assert rules(find_order(single_step_mesh(3, ops=4, halves=halves, counters=counters))) == [said]
    assert find_order(single_step_mesh(3, ops=4)) == []


def test_one_semaphore_for_all_rounds_is_ambiguous() -> None:
    """Rounds have different partners: a signal of a later round is taken for one of this round."""
    (finding, *_) = find_order(recursive_doubling(4, counters=1))
    assert finding.rule == "ambiguous_semaphore"
    assert re.search(r"waits for round\.0 from several queues, and may be released by row \d+", str(finding))


def test_a_wait_for_some_of_several_signals_is_ambiguous() -> None:
    """A wait for one of two producers does not say which."""
    rows = ["0.0 0.0 send !2.a+1", "1.0 0.0 send !2.a+1", "2.0 0.0 send ?a>=1-1", "2.0 0.1 send ?a>=1-1"]
    assert found(*rows, ranks=3)[0] == ("ambiguous_semaphore", (2, 1))
    assert found(*rows[:2], "2.0 0.0 send ?a>=2-2", ranks=3) == []


def test_signals_of_one_queue_are_never_ambiguous() -> None:
    """One producer's signals come in order, so a wait knows which it gets."""
    rows = ["0.0 0.0 send !1.a+1", "0.0 0.1 send !1.a+1", "1.0 0.0 send ?a>=1-1", "1.0 0.1 send ?a>=1-1"]
    assert found(*rows) == []


def test_a_rank_that_has_not_begun_is_not_entered() -> None:
    """Others touch a rank's user buffers only after a row of it has completed."""
    write = "0.0 0.0 send : 0.input+0 -> 1.output+0 8 !1.a+1"
    (finding,) = find_order(schedule(write, "1.0 0.0 send ?a>=1-1"))
    assert (finding.rule, finding.rows) == ("not_entered", (0,))
    assert "touches user buffers of rank 1 before any row of that rank must have completed" in str(finding)
    entered = write.replace("send", "send ?b>=1-1")
    assert found("1.0 0.0 send !0.b+1", entered, "1.0 0.1 send ?a>=1-1") == []


def test_a_rank_that_ends_before_the_last_access_is_not_finished() -> None:
    """A rank's last row of some queue starts only after the last foreign access to its user buffers."""
    rows = ["1.0 0.0 send !0.b+1", "0.0 0.0 send ?b>=1-1 : 0.input+0 -> 1.output+0 8 !1.a+1"]
    assert found(*rows, "1.1 0.0 send", "1.0 0.1 send ?a>=1-1") == []
    findings = find_order(schedule(*rows, "1.0 0.1 send"))
    assert [(finding.rule, finding.rows) for finding in findings] == [("not_finished", (1, 2)), ("wait_count", (1,))]


def test_a_rank_without_rows_neither_enters_nor_finishes() -> None:
    """Who does not take part cannot be asked for its buffers."""
    assert found("0.0 0.0 send : 1.input+0 -> 0.output+0 8") == [("not_entered", (0,)), ("not_finished", (0,))]


def test_waits_that_ask_for_fewer_signals_than_are_sent_are_counted() -> None:
    """From nothing, a semaphore is given exactly what its waits ask for."""
    (finding,) = find_order(
        schedule(SEND, SEND.replace(" : 0.input+0 -> 1.slot+0 8", "").replace("0.0 s", "0.1 s"), TAKE)
    )
    assert (finding.rule, finding.rows) == ("wait_count", (2, 1))
    assert "the waits on a of rank 1 ask for 1 signals in all, and 2 are sent; the last wait is row 2" in str(finding)


def test_a_credit_that_is_not_returned_is_unbalanced() -> None:
    """A semaphore ends at its initial value, or the schedule cannot run again."""
    (finding,) = find_order(schedule("0.0 0.0 send ?credit>=1-1"))
    assert (finding.rule, finding.rows) == ("unbalanced", (0,))
    assert str(finding).startswith(
        "credit of rank 0 ends -1 away from its initial value; the last row that touches it is"
    )


def test_a_wait_that_does_not_subtract_is_unbalanced() -> None:
    """A counter that only grows has the right number of signals and no way back."""
    assert found("0.0 0.0 send !1.a+1", "1.0 0.0 send ?a>=1-0") == [("unbalanced", (1, 0))]


def test_what_nobody_reads_is_found() -> None:
    """Bytes written to an internal buffer are read, those of the output not overwritten unread."""
    findings = find_order(schedule("0.0 0.0 send : 0.input+0 -> 0.slot+4 8"))
    assert [(finding.rule, finding.rows) for finding in findings] == [("never_read", (0,))]
    assert "writes rank 0 slot+4 (8 bytes), which nobody reads before it is overwritten or the end" in str(findings[0])
    twice = ["0.0 0.0 send : 0.input+0 -> 0.output+0 8", "0.0 0.1 send | : 0.input+8 -> 0.output+0 8"]
    assert found(*twice) == [("never_read", (0,))]


def test_an_internal_buffer_larger_than_there_is_is_found() -> None:
    """The internal buffers of a rank together have the room that is given; user buffers do not count."""
    plan = schedule(SEND, TAKE)
    assert find_order(plan, internal_bytes=16) == []
    (finding,) = find_order(plan, internal_bytes=15)
    assert finding.rule == "buffer_limit"
    assert str(finding) == "the internal buffers take 16 bytes a rank, and there are 15; the largest is slot with 16"


def test_more_semaphores_than_there_are_is_found() -> None:
    """A rank has a fixed number of semaphores."""
    plan = schedule(SEND, TAKE)
    assert find_order(plan, semaphores=3) == []
    (finding,) = find_order(plan, semaphores=2)
    assert finding.rule == "semaphore_limit"
    assert str(finding).endswith("the first too many is credit")


def test_findings_of_a_rule_are_at_most_eight() -> None:
    """A schedule that is wrong everywhere does not flood the reader."""
    rows = [f"{r}.0 0.0 send : {r}.input+0 -> {r}.slot+0 8" for r in range(12)]
    assert len(found(*rows, ranks=12)) == 8


def test_every_finding_is_of_a_known_rule_and_names_its_rows() -> None:
    """Rules are the keys of one table; whatever is dropped from a hierarchy, the text holds the row's name."""
    text = to_text(hierarchical(2, 2, in_place=True))
    for old in (" ?recv.1>=1-1", " ?recv.0>=1-1", " ?credit.0>=1-1", " |", " !2.recv.1+1"):
        plan = parse_unchecked(text.replace(old, "", 1))
        findings = find_order(plan)
        assert findings or old == " |", old
        for finding in findings:
            assert finding.rule in RULES
            assert ROW.search(str(finding)), finding
            assert plan.name(finding.rows[0]) in str(finding)


def test_verify_order_raises_the_findings() -> None:
    """The error carries every finding as its sentence."""
    plan = schedule(SEND.replace(" !1.a+1", ""), TAKE.replace(" ?a>=1-1", ""))
    with pytest.raises(VerifyError, match=r"^order: row 0 .* writes rank 1 slot\+0") as error:
        verify_order(plan)
    assert list(error.value.findings) == [str(finding) for finding in find_order(plan)]


def test_a_schedule_without_rows_is_in_order() -> None:
    """Nothing to do is done in order."""
    assert find_order(schedule()) == []
    assert parse(HEAD.format(ranks=1)).checks is Checks.ALL


def test_every_rule_has_a_page() -> None:
    """The documentation has a section for each rule, and its tables one row."""
    text = (Path(__file__).parents[3] / "docs" / "verification.md").read_text()
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == list(RULES)
    assert re.findall(r"^\| \[`(\w+)`\]\(#\1\)", text, re.MULTILINE) == list(RULES)
