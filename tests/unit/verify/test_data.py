"""verify/data: each kind of finding, on schedules small enough to read, and the traffic of a schedule."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from rota.compose.ring import compose_ring
from rota.errors import UnsupportedError, VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request
from rota.schedule.ir import Checks, Schedule, Signals
from rota.schedule.text import parse, to_text
from rota.verify import find_data, traffic, verify, verify_data

HEAD = """schedule 1
ranks {ranks}
buffer input {input} user
buffer output {output} user
buffer scratch 8
input input
output output
"""
FULL_0 = "0.0 0.0 recv_reduce_copy : 0.input+0 + 1.input+0 -> 0.output+0 8 add"
FULL_1 = "1.0 0.0 recv_reduce_copy : 1.input+0 + 0.input+0 -> 1.output+0 8 add"


def schedule(*rows: str, ranks: int = 2, input_size: int = 8, output: int = 8) -> Schedule:
    return parse(HEAD.format(ranks=ranks, input=input_size, output=output) + "\n".join(rows) + "\n")


def request(kind: EncOp = EncOp.ALLREDUCE, *, size: int = 8, groups: int = 1, in_place: bool = False) -> Request:
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    members = tuple((2 * g, 2 * g + 1) for g in range(groups))
    return Request(kind, Dtype.FP8_EXP5, size, members, op, in_place=in_place)


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_a_sum_of_both_inputs_on_both_ranks_is_an_all_reduce() -> None:
    """An all-reduce leaves every contribution once in every output byte."""
    verify_data(schedule(FULL_0, FULL_1), request())


def test_copies_of_both_shards_are_an_all_gather() -> None:
    """An all-gather puts rank i's bytes at shard i of every output."""
    rows = [f"{r}.0 0.{s} direct_copy : {s}.input+0 -> {r}.output+{4 * s} 4" for r in range(2) for s in range(2)]
    verify_data(schedule(*rows, input_size=4), request(EncOp.ALLGATHER))


def test_the_sum_of_the_own_shard_is_a_reduce_scatter() -> None:
    """A reduce-scatter leaves on rank i the sum of everyone's shard i."""
    rows = [f"{r}.0 0.0 recv_reduce_copy : 0.input+{4 * r} + 1.input+{4 * r} -> {r}.output+0 4 add" for r in range(2)]
    verify_data(schedule(*rows, output=4), request(EncOp.REDUCE_SCATTER))


def test_a_missing_contribution_is_lost() -> None:
    """The finding says whose contribution, from which offset, on how many ranks, and which row wrote last."""
    lost = FULL_0.replace(" + 1.input+0", "").replace(" add", "")
    assert only(find_data(schedule(lost, FULL_1), request())) == (
        "rank 0 output+0 (8 bytes) lost rank 1's contribution at offset 0: written last by row 0 (rank 0 channel 0 "
        "leg 0 step 0 part 0 recv_reduce_copy)"
    )


def test_the_row_that_first_leaves_out_a_contribution_is_named() -> None:
    """A ring row that lost a source is named although it wrote no output."""
    ring = compose_ring([[0, 1, 2, 3]], kind=EncOp.ALLREDUCE, size=128, op=CceType.ADD, halves=1, slots=3)
    rows = to_text(ring).splitlines()
    at = next(i for i, row in enumerate(rows) if row.startswith("2.0 0.1 recv_reduce_send"))
    for source in ("2.slot.0+0 + ", " + 2.input+0"):
        broken = parse("\n".join([*rows[:at], rows[at].replace(source, ""), *rows[at + 1 :]]))
        asked = Request(EncOp.ALLREDUCE, Dtype.FP32, 32, ((0, 1, 2, 3),), CceType.ADD)
        finding = only(find_data(broken, asked))
        assert "rank 0 output+0 (32 bytes, and on 3 other ranks) lost rank" in finding
        assert f"first left out by {broken.name(6)}" in finding


def test_only_the_bytes_that_lost_something_are_named() -> None:
    """A row is cut into pieces where another row's access ends: a loss of the last 3 bytes of 8 is at offset 5."""
    late = "0.0 0.1 direct_copy : 0.input+5 -> 0.output+5 3"
    finding = only(find_data(schedule(FULL_0, late, FULL_1), request()))
    assert finding.startswith("rank 0 output+5 (3 bytes) lost rank 1's contribution at offset 5")
    assert "step 1 part 0 direct_copy" in finding


def test_bytes_of_one_row_that_lost_different_things_are_told_apart() -> None:
    """Neighbouring bytes that one row left wrong in different ways are findings of their own."""
    rows = ["0.0 0.0 direct_copy : 0.input+0 -> 0.scratch+0 4", "0.0 0.1 direct_copy : 1.input+4 -> 0.scratch+4 4"]
    found = find_data(schedule(*rows, "0.0 0.2 direct_copy : 0.scratch+0 -> 0.output+0 8", FULL_1), request())
    assert [finding.split(":")[0] for finding in found] == [
        "rank 0 output+0 (4 bytes) lost rank 1's contribution at offset 0",
        "rank 0 output+4 (4 bytes) lost rank 0's contribution at offset 4",
    ]


def test_a_contribution_twice_is_doubled() -> None:
    """Each contribution counts exactly once."""
    twice = FULL_1.replace("0.input", "1.input")
    found = find_data(schedule(FULL_0, twice), request())
    assert found[0].startswith(
        "row 1 (rank 1 channel 0 leg 0 step 0 part 0 recv_reduce_copy) has rank 1's contribution"
    )
    assert "doubled: it reads rank 1 input+0 and rank 1 input+0" in found[0]


def test_in_place_a_reader_that_comes_late_reads_the_sum() -> None:
    """In place, the second rank to reduce reads what the first has already reduced."""
    rows = [row.replace("output", "input") for row in (FULL_0, FULL_1)]
    text = HEAD.format(ranks=2, input=8, output=8).replace("output output", "output input") + "\n".join(rows)
    found = find_data(parse(text), request(in_place=True))
    assert "rank 1's contribution at offset 0 doubled" in only(found)


def test_in_place_nobody_needs_to_write_what_is_already_there() -> None:
    """In place, a group of one has nothing to do; a group of two has."""
    text = HEAD.format(ranks=2, input=8, output=8).replace("output output", "output input")
    alone = Request(EncOp.ALLREDUCE, Dtype.FP8_EXP5, 8, ((0,), (1,)), CceType.ADD, in_place=True)
    assert find_data(parse(text), alone) == []
    assert "rank 0 input+0 (8 bytes, and on 1 other rank) is never written" in only(
        find_data(parse(text), request(in_place=True))
    )


def test_bytes_of_different_places_do_not_combine() -> None:
    """A sum of byte 4 with byte 0 is a wrong chunk."""
    rows = [
        "0.0 0.0 recv_reduce_copy : 0.input+0 + 1.input+4 -> 0.output+0 4 add",
        "0.0 0.1 recv_reduce_copy : 0.input+4 + 1.input+4 -> 0.output+4 4 add",
    ]
    found = only(find_data(schedule(*rows, FULL_1), request()))
    assert found.endswith("combines a wrong chunk: rank 0 input+0 (offset 0) with rank 1 input+4 (offset 4)")
    assert found.startswith("row 0 ")


def test_bytes_of_different_groups_do_not_combine() -> None:
    """Groups of one request are separate: a byte that crosses is from a wrong place, even at the right offset."""
    rows = [FULL_0.replace("1.input", "3.input"), FULL_1]
    rows += [f"{r}.0 0.0 recv_reduce_copy : 2.input+0 + 3.input+0 -> {r}.output+0 8 add" for r in (2, 3)]
    found = only(find_data(schedule(*rows, ranks=4), request(groups=2)))
    assert found.endswith("rank 0 input+0 (offset 0 of group 0) with rank 3 input+0 (offset 0 of group 1)")


def test_a_copy_across_groups_is_from_a_wrong_place() -> None:
    """A complete result of the wrong group is not the result."""
    rows = [f"{r}.0 0.0 recv_reduce_copy : 2.input+0 + 3.input+0 -> {r}.output+0 8 add" for r in range(4)]
    found = only(find_data(schedule(*rows, ranks=4), request(groups=2)))
    assert found.startswith(
        "rank 0 output+0 (8 bytes, and on 1 other rank) comes from offset 0 of group 1, not offset 0 of group 0"
    )
    assert "written last by row 0 (rank 0" in found


def test_bytes_nobody_wrote_are_not_read() -> None:
    """Scratch holds nothing before it is written, and what follows from such a read is not reported again."""
    stale = FULL_0.replace("1.input", "0.scratch")
    found = only(find_data(schedule(stale, FULL_1), request()))
    assert found.startswith("row 0 (rank 0")
    assert found.endswith("reads rank 0 scratch+0, which no earlier row writes")


def test_a_row_does_not_read_what_it_writes_itself() -> None:
    """The producer of a read is an earlier row, never the row that reads."""
    found = find_data(schedule("0.0 0.0 direct_copy : 0.output+0 -> 0.output+0 8", FULL_1), request())
    assert "reads rank 0 output+0, which no earlier row writes" in only(found)


def test_an_output_nobody_writes() -> None:
    """The finding names the bytes and the last row that did write this output."""
    half = FULL_1.replace("output+0 8", "output+0 4")
    found = only(find_data(schedule(FULL_0, half), request()))
    assert found.startswith(
        "rank 1 output+4 (4 bytes) is never written; the last row that writes this output is row 1 (rank 1"
    )


def test_the_odd_end_of_a_buffer_is_looked_at_too() -> None:
    """Moves of 4 bytes leave the last 2 of 6 unwritten."""
    rows = [row.replace(" 8 add", " 4 add") for row in (FULL_0, FULL_1)]
    found = only(find_data(schedule(*rows, input_size=6, output=6), request(size=6)))
    assert found.startswith("rank 0 output+4 (2 bytes, and on 1 other rank) is never written")


def test_too_many_contributions_in_a_gather() -> None:
    """An all-gather does not reduce: a sum has the wrong operation, and a contribution too much."""
    rows = [f"{r}.0 0.{s} direct_copy : {s}.input+0 -> {r}.output+{4 * s} 4" for r in range(2) for s in range(2)]
    rows[0] = "0.0 0.0 recv_reduce_copy : 0.input+0 + 1.input+0 -> 0.output+0 4 add"
    found = find_data(schedule(*rows, input_size=4), request(EncOp.ALLGATHER))
    assert found[0].endswith("has the wrong operation ADD, expected NONE")
    assert found[1].startswith("rank 0 output+0 (4 bytes) has rank 1's contribution too much: written last by row 0")
    assert len(found) == 2


def test_another_operation_than_asked() -> None:
    """A row that combines does so with the operation of the request."""
    found = only(find_data(schedule(FULL_0, FULL_1.replace("add", "max")), request()))
    assert found.startswith("row 1 (rank 1")
    assert found.endswith("has the wrong operation MAX, expected ADD")


def test_the_input_of_an_out_of_place_collective_stays() -> None:
    """Nobody writes into the caller's input unless the collective is in place."""
    found = only(find_data(schedule(FULL_0, FULL_1, "0.0 0.2 direct_copy : 0.output+0 -> 1.input+0 8"), request()))
    assert found.startswith("row 2 (rank 0")
    assert "overwrites the input of rank 1" in found


def test_the_last_write_counts() -> None:
    """A right value that a later row overwrites is lost, and that later row is named."""
    found = only(find_data(schedule(FULL_0, FULL_1, "0.0 0.2 direct_copy : 0.input+0 -> 1.output+0 8"), request()))
    assert found.startswith("rank 1 output+0 (8 bytes) lost rank 1's contribution")
    assert "written last by row 2 (rank 0 channel 0 leg 0 step 2 part 0 direct_copy)" in found


def test_outputs_are_looked_at_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few outputs are compared at a time, the last rank's is among them."""
    monkeypatch.setattr("rota.verify.data._SLICE_BYTES", 1)
    verify_data(schedule(FULL_0, FULL_1), request())
    assert only(find_data(schedule(FULL_0), request())).startswith("rank 1 output+0 (8 bytes) is never written")


def test_a_schedule_for_another_request() -> None:
    """Ranks, buffer sizes and in place must be those of the request."""
    plan = schedule(FULL_0, FULL_1)
    assert find_data(plan, request(groups=2)) == ["the schedule is for 2 ranks, the request for 4"]
    assert "the input of the schedule has 8 bytes, that of the request 4" in find_data(plan, request(size=4))
    assert find_data(plan, request(in_place=True)) == ["the schedule is out of place, the request in place"]


def test_findings_of_one_kind_are_at_most_eight() -> None:
    """A schedule that is wrong everywhere does not flood the reader."""
    rows = [f"0.0 0.{b} direct_copy : 0.scratch+{b} -> 0.output+{b} 1" for b in range(8)]
    rows += [f"1.0 0.{b} direct_copy : 0.scratch+{b} -> 1.output+{b} 1" for b in range(8)]
    assert len(find_data(schedule(*rows), request())) == 8


def test_verify_raises_the_findings() -> None:
    """The error's message begins with the collective; its findings are those of find_data."""
    plan = schedule(FULL_0)
    with pytest.raises(VerifyError, match="all_reduce: rank 1 output\\+0 \\(8 bytes\\) is never written") as error:
        verify_data(plan, request())
    assert list(error.value.findings) == find_data(plan, request())


def test_verify_checks_the_balance_that_was_left_out() -> None:
    """A schedule made without the balance check does not pass as verified."""
    ring = compose_ring([[0, 1]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD, halves=1, slots=3)
    add = ring.signals.add.copy()
    add[-1] += 1
    signals = Signals(ring.signals.ptr, ring.signals.rank, ring.signals.semaphore, add)
    loose = replace(ring, signals=signals, checks=Checks.UNBALANCED)
    asked = Request(EncOp.ALLREDUCE, Dtype.FP32, 16, ((0, 1),), CceType.ADD)
    assert find_data(loose, asked) == []
    with pytest.raises(VerifyError, match="ends \\+1 away from its initial value"):
        verify(loose, asked)


def test_moves_that_cut_each_other_without_end_are_refused() -> None:
    """Two buffers copied onto each other with a shift of one byte cut each other at every byte."""
    text = HEAD.format(ranks=1, input=4096, output=4096).replace("scratch 8", "scratch 4096")
    rows = ["0.0 0.0 direct_copy : 0.input+0 -> 0.scratch+0 4096"]
    rows += [
        "0.0 0.1 direct_copy : 0.scratch+0 -> 0.output+1 4095",
        "0.0 0.2 direct_copy : 0.output+0 -> 0.input+0 4096",
    ]
    asked = Request(EncOp.ALLREDUCE, Dtype.FP32, 1024, ((0,),), CceType.ADD)
    with pytest.raises(UnsupportedError, match="too many pieces to verify"):
        find_data(parse(text + "\n".join(rows)), asked)


def test_a_group_of_more_than_a_word_of_ranks() -> None:
    """Masks are words of 64 bits: the 65th rank's contribution is proved and missed like any other."""
    ring = compose_ring([range(66)], kind=EncOp.ALLREDUCE, size=66 * 32, op=CceType.MAX, halves=1)
    asked = Request(EncOp.ALLREDUCE, Dtype.FP32, 66 * 8, (tuple(range(66)),), CceType.MAX)
    assert find_data(ring, asked) == []
    rows = to_text(ring).splitlines()
    at = next(i for i, row in enumerate(rows) if row.startswith("0.0 0.1 recv_reduce_send"))
    broken = parse("\n".join([*rows[:at], rows[at].replace("0.slot.0+0 + ", ""), *rows[at + 1 :]]))
    finding = only(find_data(broken, asked))
    assert "(32 bytes, and on 65 other ranks) lost rank 65's contribution" in finding
    assert re.search(r"first left out by row \d+ \(rank 0 channel 0 leg 0 step 1 ", finding)


def test_traffic_counts_pushes_pulls_and_copies() -> None:
    """Bytes leave a rank when its rows write elsewhere and when others read from it; memory is touched either way."""
    rows = [
        "0.0 0.0 send : 0.input+0 -> 1.scratch+0 8",
        "1.0 0.1 recv_reduce_copy : 1.scratch+0 + 1.input+0 -> 1.output+0 + 0.output+0 8 add",
        "0.0 0.2 direct_copy : 1.input+0 -> 0.scratch+0 4",
        "0.0 0.3 direct_recv",
        "2.0 0.4 send : 2.input+0 -> 0.scratch+0 + 1.scratch+0 2",
    ]
    moved = traffic(schedule(*rows, ranks=3))
    assert moved.sent.tolist() == [8, 8 + 4, 2 + 2]
    assert moved.read.tolist() == [8, 16 + 4, 2]
    assert moved.written.tolist() == [8 + 4 + 2, 8 + 8 + 2, 0]
    assert moved.moves.tolist() == [2, 1, 1]
    assert moved.sends.tolist() == [1, 1, 1]


def test_traffic_of_an_empty_schedule_is_zero() -> None:
    """No rows, no bytes."""
    moved = traffic(schedule())
    assert not any(np.any(getattr(moved, name)) for name in type(moved).__slots__)
