"""What other checkers pass: four small schedules that replay correctly or balance in sum, and are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unchecked import parse_unchecked

from rota.errors import VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import Request
from rota.schedule.text import parse
from rota.verify import find_data, find_order, verify

TEXTS = Path(__file__).parents[2] / "text"


def text(name: str) -> str:
    return (TEXTS / f"{name}.sched").read_text()


def all_reduce(ranks: int, size: int) -> Request:
    return Request(EncOp.ALLREDUCE, Dtype.FP32, size // 4, (tuple(range(ranks)),), CceType.ADD)


def test_an_instance_that_sends_on_what_another_receives_races_with_it() -> None:
    """An all-gather on two queues whose second sends chunks that the first has not received replays, and is a race."""
    wrong = parse(text("doubling_two_instances"))
    gather = Request(EncOp.ALLGATHER, Dtype.FP32, 8, ((0, 1, 2, 3),))
    assert find_data(wrong, gather) == []
    found = find_order(wrong)
    assert {finding.rule for finding in found} == {"race"}
    assert [finding.rows for finding in found] == [(13, 20), (9, 21), (15, 22), (11, 23)]
    assert str(found[0]) == (
        "row 13 (rank 1 channel 0 leg 0 step 2 part 0 direct_copy_send) writes rank 0 output+8 (8 bytes), "
        "row 20 (rank 0 channel 1 leg 1 step 0 part 0 direct_recv_send) reads it, and nothing orders the two"
    )


def test_with_the_queues_joined_the_same_all_gather_is_right() -> None:
    """The second queue waits for the first, and nothing is found."""
    joined = text("doubling_two_instances").replace("?ready.2>=1-1", "?ready.2>=1-1 ?both>=1-1")
    joined = joined.replace("semaphore ready.0", "semaphore both 0\nsemaphore ready.0")
    told = r"\1.0 0.3 direct_recv | ?recv.0>=1-1 !\1.both+1\n\1.0 1.0 direct_recv_send | ?ready.1>=1-1 :"
    joined = re.sub(r"(\d)\.0 1\.0 direct_recv_send \| \?ready\.1>=1-1 \?recv\.0>=1-1 :", told, joined)
    verify(parse(joined), Request(EncOp.ALLGATHER, Dtype.FP32, 8, ((0, 1, 2, 3),)))


def test_a_reduce_with_its_local_operand_at_the_senders_offset_combines_a_wrong_chunk() -> None:
    """Every contribution arrives once and nothing races, but one is taken from another place than its partner."""
    wrong = parse(text("operand_at_the_senders_offset"))
    assert find_order(wrong) == []
    (finding, *_) = find_data(wrong, all_reduce(2, 16))
    assert "row 3 (rank 1 channel 0 leg 0 step 1 part 0 recv_reduce_copy) combines a wrong chunk" in finding
    verify(
        parse(text("operand_at_the_senders_offset").replace("1.slot+0 + 1.input+0", "1.slot+0 + 1.input+8")),
        all_reduce(2, 16),
    )


def test_signals_and_waits_on_different_connections_are_not_balanced_by_their_sum() -> None:
    """As many signals as waits, but a rank waits where nobody signals: it never ends, and both semaphores are named."""
    with pytest.raises(VerifyError, match=r"recv\.0 of rank 1 ends \+1 away"):
        parse(text("other_connection"))
    found = find_order(parse_unchecked(text("other_connection")))
    assert [(finding.rule, str(finding)) for finding in found] == [
        (
            "deadlock",
            "row 7 (rank 1 channel 0 leg 0 step 3 part 0 direct_recv) waits for recv.1 (0 of 1 signalled), and nobody "
            "signals it any more",
        ),
        (
            "wait_count",
            "the waits on recv.0 of rank 1 ask for 0 signals in all, and 1 are sent; nobody waits, and the last signal "
            "is row 4 (rank 0 channel 0 leg 0 step 2 part 0 direct_copy_send)",
        ),
        (
            "wait_count",
            "the waits on recv.1 of rank 1 ask for 1 signals in all, and 0 are sent; the last wait is row 7 (rank 1 "
            "channel 0 leg 0 step 3 part 0 direct_recv)",
        ),
    ]
    verify(
        parse(text("other_connection").replace("?recv.1", "?recv.0")),
        Request(EncOp.ALLGATHER, Dtype.FP32, 4, ((0, 1),)),
    )


def test_a_ring_with_one_slot_deadlocks_in_a_cycle() -> None:
    """With two slots a ring of three runs; with one, every rank waits for a credit of the next, all around."""
    verify(parse(text("ring_two_slots")), all_reduce(3, 192))
    with pytest.raises(VerifyError, match="waits for credit"):
        parse(text("ring_one_slot"))
    (finding,) = find_order(parse_unchecked(text("ring_one_slot")))
    assert finding.rule == "deadlock"
    assert finding.rows == (3, 4, 5)
    sends = [f"row {3 + r} (rank {r} channel 0 leg 0 step 1 part 0 recv_reduce_send)" for r in range(3)]
    assert str(finding) == (
        f"{sends[0]} waits for credit.0 (0 of 1 signalled) from {sends[1]}, "
        f"which waits for credit.0 (0 of 1 signalled) from {sends[2]}, "
        f"which waits for credit.0 (0 of 1 signalled) from {sends[0]}: a cycle of 3 queues"
    )
