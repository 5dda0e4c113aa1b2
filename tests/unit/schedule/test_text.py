"""The text form of a schedule: what each part of a line means, and what is refused with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rota.compose.ring import compose_ring
from rota.errors import DecodeError, VerifyError
from rota.isa.enums import CceType, EncOp
from rota.schedule.ir import MAX_NUMBER, Buffer, Leaf, Op, Schedule, Semaphore
from rota.schedule.text import parse, to_text

GOLDEN = Path(__file__).parents[2] / "golden" / "ring_4.sched"
HEAD = """schedule 1
ranks 4
buffer input 4096 user
buffer output 4096 user
buffer slot 2048
semaphore recv 0
semaphore credit 2
input input
output output
"""
HEAD_LINES = HEAD.count("\n")
GIVE = "3.0 0.0 post_send !0.recv+1\n"
ROW = "0.1 2.3.4 recv_reduce_send@9 | ?recv>=1-1 ?credit>=1-0 : 0.slot+0 + 0.input+8 -> 1.slot+8 + 2.slot+8 8 max"


def failure(text: str) -> DecodeError:
    with pytest.raises(DecodeError) as error:
        parse(text)
    return error.value


# --- meaning ----------------------------------------------------------------------------------------------------------


def test_every_part_of_a_line() -> None:
    """rank.queue leg.step.part leaf@event | waits : sources -> targets size op signals. Source: schedule §10."""
    schedule = parse(HEAD + GIVE + ROW + "\n")
    rows = schedule.rows
    columns = (rows.rank, rows.queue, rows.leg, rows.step, rows.part, rows.leaf, rows.event, rows.fence, rows.size)
    assert [column[1] for column in columns] == [0, 1, 2, 3, 4, Leaf.RECV_REDUCE_SEND, 9, True, 8]
    assert rows.op[1] == Op.MAX
    sources, targets, waits, signals = schedule.sources, schedule.targets, schedule.waits, schedule.signals
    assert [column.tolist() for column in (sources.rank, sources.buffer, sources.offset)] == [[0, 0], [2, 0], [0, 8]]
    assert [column.tolist() for column in (targets.rank, targets.buffer, targets.offset)] == [[1, 2], [2, 2], [8, 8]]
    assert [column.tolist() for column in (waits.semaphore, waits.at_least, waits.subtract)] == [[0, 1], [1, 1], [1, 0]]
    assert [column.tolist() for column in (signals.rank, signals.semaphore, signals.add)] == [[0], [0], [1]]
    assert [schedule.buffers[i] for i in (0, 2)] == [Buffer("input", 4096, user=True), Buffer("slot", 2048)]
    assert schedule.semaphores == (Semaphore("recv"), Semaphore("credit", 2))
    assert (schedule.ranks, schedule.input, schedule.output, schedule.in_place) == (4, 0, 1, False)
    assert to_text(schedule) == HEAD + GIVE + ROW + "\n"


def test_the_published_example() -> None:
    """The five rows printed in schedule §10 read as they stand there, beside the rows they wait for."""
    text = HEAD + "\n".join(
        [
            "0.0 0.0 send ?credit>=1-1 : 0.input+3072 -> 1.slot+0 1024 !1.recv+1",
            "3.0 0.0 send ?credit>=1-1 : 3.input+2048 -> 0.slot+0 1024 !0.recv+1",
            "0.0 0.1 recv_reduce_send ?recv>=1-1 ?credit>=1-1 : 0.slot+0 + 0.input+2048 -> 1.slot+1024 1024 add "
            "!1.recv+1 !3.credit+1",
            "3.0 0.1 post_send !0.recv+1",
            "0.0 0.3 recv_reduce_copy ?recv>=1-1 : 0.slot+0 + 0.input+0 -> 0.output+0 1024 add",
            "0.0 1.4 direct_copy_send | : 0.output+0 -> 1.output+0 1024 !1.recv+1",
            "1.0 0.1 post_recv ?recv>=3-3 !0.credit+2",
            "3.0 0.2 post_send !0.recv+1",
            "0.0 1.7 direct_recv ?recv>=1-1",
        ]
    )
    schedule = parse(text)
    assert len(schedule) == 9
    assert to_text(schedule) == text + "\n"


def test_comments_and_blank_lines() -> None:
    """Lines that begin with `#` and blank lines are no part of a schedule, wherever they stand."""
    plain = parse(HEAD + GIVE + ROW)
    lines = "".join(f"# {line}\n\n   \n{line}\n" for line in (HEAD + GIVE + ROW).splitlines())
    assert parse(lines) == plain
    assert parse("#\n" + HEAD + "#no row\n" + GIVE + ROW + "\n# last") == plain


def test_the_golden_ring() -> None:
    """The ring of four ranks with two slots prints as the file that was checked by hand, and is what it parses to."""
    ring = compose_ring([[0, 1, 2, 3]], kind=EncOp.ALLREDUCE, size=4096, op=CceType.ADD, slots=2, halves=1)
    text = GOLDEN.read_text(encoding="utf-8")
    assert [line.split(":")[0] for line in text.splitlines()[:3]] == ["# made", "# source", "# checked"]
    assert parse(text) == ring
    assert to_text(ring) == "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def test_a_schedule_without_rows() -> None:
    """Nothing to do is a schedule too: a group of one, in place."""
    nothing = compose_ring([[0]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD, in_place=True)
    assert (len(nothing), nothing.in_place) == (0, True)
    assert parse(to_text(nothing)) == nothing


def test_the_largest_numbers() -> None:
    """What columns and declarations can hold prints and parses back."""
    right = parse(HEAD + GIVE + ROW)
    most = replace(
        right,
        buffers=(Buffer("input", MAX_NUMBER, user=True), *right.buffers[1:]),
        semaphores=(Semaphore("recv"), Semaphore("credit", MAX_NUMBER)),
        waits=type(right.waits)(
            right.waits.ptr, right.waits.semaphore, np.array([1, 2**31 - 1], np.int32), right.waits.subtract
        ),
        rows=type(right.rows)(
            **{name: getattr(right.rows, name) for name in right.rows.__slots__}
            | {name: np.array([65535, 65535], np.uint16) for name in ("part", "step")}
            | {name: np.array([255, 255], np.uint8) for name in ("queue", "leg", "event")}
        ),
    )
    assert parse(to_text(most)) == most


def test_equal_means_equal_content() -> None:
    """Schedules compare by content: another name, number or row makes another schedule, another object does not."""
    one = parse(HEAD + GIVE + ROW)
    assert one == parse(HEAD + GIVE + ROW)
    for before, after in [("slot 2048", "slot 2049"), ("credit 2", "credit 3"), (" max", " min"), ("2.3.4", "2.3.5")]:
        assert one != parse((HEAD + GIVE + ROW).replace(before, after))
    assert one != "a schedule"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment\n", "schedule 2\n", "schedule\n", "ranks 4\nschedule 1\n", "schedule 1 1\n"]
)
def test_the_first_line(text: str) -> None:
    """A text that does not begin with its kind and version is refused."""
    assert failure(text).expected == "'schedule 1'"


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ("ranks 4\n", "a 'ranks' line"),
        ("input input\n", "an 'input' line that names a declared buffer"),
        ("output output\n", "an 'output' line that names a declared buffer"),
        ("buffer output 4096 user\n", "an 'output' line that names a declared buffer"),
    ],
)
def test_what_the_header_must_say(without: str, expected: str) -> None:
    """Ranks, input and output are declared before the first row; the offset is the line they are missed at."""
    error = failure(HEAD.replace(without, "") + GIVE)
    assert error.expected == f"{expected} before the first row"
    assert error.offset == HEAD_LINES


@pytest.mark.parametrize(
    "line",
    [
        "ranks four",
        "ranks -4",
        "ranks \u0664",
        "ranks 1000000000000000000",
        "buffer slot",
        "buffer more 8 internal",
        "semaphore recv one",
        "input",
        "colour red",
    ],
)
def test_header_lines(line: str) -> None:
    """A header line that is no declaration is refused with its number, comments counted."""
    error = failure("# made by hand\n" + HEAD + line + "\n" + GIVE)
    assert (error.offset, error.expected) == (HEAD_LINES + 2, "a declaration or a row")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0.0 0.0", "a row"),
        ("0 0.0 send", "a row"),
        ("0.0 0.0 send extra", "a row"),
        ("0.0 0.0 send !0.recv", "a row"),
        ("0.0 0.0 send !0.recv+1 ?credit>=1-1", "a row"),
        ("0.0 0.0 send ?credit>=1", "a row"),
        ("0.0 0.0 send ?credit>=-1-1", "a row"),
        ("0.0 0.0 send : 0.input+0 -> 1.slot+0", "a row"),
        ("0.0 0.0 send : 0.input+0 1.slot+0 8", "a row"),
        ("0.0 0.0 send : -> 1.slot+0 8", "a row"),
        ("0.0 0.0 send : 0.input+-1 -> 1.slot+0 8", "a row"),
        ("0.0 0.0 send : 0_0.input+0 -> 1.slot+0 8", "a row"),
        ("0.0 0.0 send : input+0 -> 1.slot+0 8", "a row"),
        ("0.0  0.0 send", "a row"),
        ("0.0 0.0 send@", "a row"),
        ("0.0 0.0 sent", "a known leaf and operation"),
        ("0.0 0.0 send : 0.input+0 -> 1.slot+0 8 multiply", "a known leaf and operation"),
        ("0.0 0.0 send ?debit>=1-1", "declared names"),
        ("0.0 0.0 send !1.debit+1", "declared names"),
        ("0.0 0.0 send : 0.inputs+0 -> 1.slot+0 8", "declared names"),
        ("0.0 0.0 send : 0.input+0 -> 1.recv+0 8", "declared names"),
    ],
)
def test_rows_that_are_none(row: str, expected: str) -> None:
    """A line that is no row is refused with its number and what was expected there."""
    error = failure(HEAD + GIVE + "# a comment\n" + row + "\n" + ROW)
    assert (error.offset, error.expected) == (HEAD_LINES + 3, expected)
    assert row[:10] in error.got


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("65536.0 0.0 send", "rank of at most 65535"),
        ("0.256 0.0 send", "queue of at most 255"),
        ("0.0 256.0 send", "leg of at most 255"),
        ("0.0 0.65536 send", "step of at most 65535"),
        ("0.0 0.0.65536 send", "part of at most 65535"),
        ("0.0 0.0 send@256", "event of at most 255"),
        ("0.0 0.0 send : 65536.input+0 -> 1.slot+0 8", "rank of at most 65535"),
        ("0.0 0.0 send ?recv>=2147483648-0", "at_least of at most 2147483647"),
        ("0.0 0.0 send !0.recv+2147483648", "add of at most 2147483647"),
    ],
)
def test_numbers_too_large_for_their_column(row: str, expected: str) -> None:
    """A number that a column cannot hold is refused with its line, never wrapped."""
    error = failure(HEAD + GIVE + row + "\n" + ROW)
    assert (error.offset, error.expected) == (HEAD_LINES + 2, expected)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (HEAD + ROW + "\n" + GIVE, "waits for recv to have received 1"),
        (HEAD + GIVE, "semaphore recv of rank 0 ends +1"),
        (HEAD.replace("ranks 4", "ranks 70000") + GIVE + ROW, "70000 ranks"),
        (HEAD.replace("buffer slot", "buffer in+put") + "0.0 0.0 direct_recv", "buffer name 'in+put'"),
        (HEAD + "0.0 0.0 send : 0.input+0 -> 1.slot+0 0", "a source without a size"),
        (HEAD + "0.0 0.0 send : 0.input+4096 -> 1.slot+0 8", "source lies outside its buffer"),
    ],
)
def test_well_formed_and_wrong(text: str, finding: str) -> None:
    """A text that reads well and means no schedule is refused by the checks of the constructor."""
    with pytest.raises(VerifyError) as error:
        parse(text)
    assert finding in error.value.findings[0]


def test_text_of_a_schedule_is_ascii() -> None:
    """The text form of anything composed is ASCII with one newline a row, so that line tools work on it."""
    ring: Schedule = compose_ring([[0, 1], [1, 0]], kind=EncOp.ALLGATHER, size=128)
    text = to_text(ring)
    assert text.isascii()
    assert len([line for line in text.splitlines() if line[0].isdigit()]) == len(ring)
    assert text.endswith("\n")
