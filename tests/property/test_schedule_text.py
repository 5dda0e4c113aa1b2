"""Schedules of every shape print and parse back equal; text that is none is refused in our own words."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.schedules import schedules

from rota.compose.ring import compose_ring
from rota.errors import DecodeError, VerifyError
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED
from rota.schedule.ir import Schedule
from rota.schedule.text import parse, to_text


@st.composite
def rings(draw: st.DrawFn) -> Schedule:
    """Ring schedules of every kind: orders, channels, groups, halves, slots, sizes, in place or not."""
    kind = draw(st.sampled_from(COMPOSED))
    ranks, channels, groups = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size = draw(st.integers(1, 700)) * (1 if kind is EncOp.ALLREDUCE else ranks)
    order = st.permutations(range(ranks))
    return compose_ring(
        [[draw(order) for _ in range(groups)] for _ in range(channels)],
        kind=kind,
        size=size,
        op=None if kind is EncOp.ALLGATHER else draw(st.sampled_from([CceType.ADD, CceType.MAX, CceType.MIN])),
        slots=draw(st.integers(3, 8)),
        halves=draw(st.integers(1, 2)),
        chunk=draw(st.sampled_from([64, 128, 2 << 20])),
        in_place=kind is EncOp.ALLREDUCE and draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(schedule=rings())
def test_rings_print_and_parse_back(schedule: Schedule) -> None:
    """Every stage's result prints as text that parses back to an equal value."""
    text = to_text(schedule)
    again = parse(text)
    assert again == schedule
    assert to_text(again) == text


@settings(max_examples=50, deadline=None)
@given(schedule=schedules())
def test_any_schedule_prints_and_parses_back(schedule: Schedule) -> None:
    """The same of schedules no composer makes: fences, events, several targets, waits that look without taking."""
    assert parse(to_text(schedule)) == schedule


def read(text: str) -> None:
    """Parse; what is refused must be refused by one of our own errors, and what is not must print and parse back."""
    try:
        schedule = parse(text)
    except (DecodeError, VerifyError):
        return
    assert parse(to_text(schedule)) == schedule


RING_3 = to_text(compose_ring([[0, 1, 2], [2, 1, 0]], kind=EncOp.ALLREDUCE, size=512, op=CceType.ADD, halves=1))
PIECES = [
    *("", " ", "#", "|", "?", "!", ":", "->", "+", "-", ".", "@", "\n", "\t", "\x00", "\u2028", "\u0663", "x", "_"),
    *("0", "1", "7", "255", "256", "65535", "65536", "4294967296", "999999999999999999", "9" * 40),
    *("add", "fma", "send", "direct_recv", "input", "output", "slot.0", "recv.0", "credit.1", "user"),
    *(" : 0.input+0 -> 1.output+0 8", " ?credit.0>=1-1", " !1.recv.0+1", "ranks 2\n", "semaphore s 0\n"),
]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_lines(data: st.DataObject) -> None:
    """A schedule with up to three cuts, insertions or replacements is a schedule or one of our refusals."""
    text = RING_3
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(PIECES)) + text[at + data.draw(st.integers(0, 6)) :]
    read(text)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_lines_dropped_repeated_and_swapped(data: st.DataObject) -> None:
    """So is one with lines gone, twice, or in another order."""
    lines = RING_3.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match data.draw(st.integers(0, 2)):
            case 0:
                del lines[at]
            case 1:
                lines.insert(other, lines[at])
            case _:
                lines[at], lines[other] = lines[other], lines[at]
    read("\n".join(lines))


@settings(max_examples=150, deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
@example("schedule 1\nranks 65535\nbuffer b 0\ninput b\noutput b\n")
@example("schedule 1\nranks 1\nbuffer b 8\ninput b\noutput b\n0.0 0.0 send : 0.b+0 -> 0.b+0 8 fma\n")
@example("schedule 1\nranks 1\nbuffer b 999999999999999999\ninput b\noutput b\n0.0 0.0 send : 0.b+1 -> 0.b+9 8\n")
def test_any_text(text: str) -> None:
    """So is any text, alone and behind a header that is right."""
    read(text)
    read("".join(line for line in RING_3.splitlines(keepends=True) if not line[0].isdigit()) + text)
