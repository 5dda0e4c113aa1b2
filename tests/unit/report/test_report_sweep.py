"""The picture of a sweep: every size in one row, at a column that grows with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import load_platform
from rota.report.sweep import Sweep, sweep_json, sweep_text
from rota.request import Request
from rota.select.whatif import SizeRange

TRN1 = load_platform("trn1.32xlarge")
REQUEST = Request(kind=EncOp.ALLGATHER, dtype=Dtype.UINT8, count=8, groups=((0, 1),))
BEGIN = 35  # where the bars begin


def sweep(*ends: int, low: int = 1) -> Sweep:
    """Return a sweep whose ranges end at these sizes, algorithm after algorithm."""
    starts = [low, *(end + 1 for end in ends[:-1])]
    ranges = tuple(
        SizeRange(first, last, Algorithm(i % 2)) for i, (first, last) in enumerate(zip(starts, ends, strict=True))
    )
    return Sweep(REQUEST, TRN1, low, ends[-1], ranges)


def bars(made: Sweep) -> list[str]:
    return [line[BEGIN:] for line in sweep_text(made) if line.endswith("=")]


def test_a_picture() -> None:
    """Six columns for each doubling, where they fit; the mark of a size stands where it begins."""
    lines = list(sweep_text(sweep(32, 1024)))
    asked = "all_gather, uint8, 1 group of 2 ranks on trn1.32xlarge (LNC 1)"
    assert lines[0] == f"# {asked}, by size of the whole buffer"
    scale = lines[1][BEGIN:]
    assert [scale[column:].split()[0] for column in range(0, 60, 6)] == [str(1 << i) for i in range(10)]
    assert bars(sweep(32, 1024)) == ["=" * 30, " " * 30 + "=" * 30]
    assert [line.split() for line in lines[-2:]] == [["1", "32", "RING"], ["33", "1K", "HIER"]]


@given(st.integers(1, 1 << 30), st.lists(st.integers(1, 1 << 40), min_size=1, max_size=6))
def test_every_range_is_drawn(low: int, steps: list[int]) -> None:
    """A range too short for a column still has one; the rows together leave none out, and fit a terminal."""
    ends = [low]
    for step in steps:
        ends.append(ends[-1] + step)
    made = sweep(*ends[1:], low=low)
    drawn = bars(made)
    assert len(drawn) == len({each.name for each in made.ranges})
    marked = {column for bar in drawn for column, mark in enumerate(bar) if mark == "="}
    assert marked == set(range(min(marked), max(marked) + 1))
    assert max(marked) < 60


def test_points_take_the_next_size_that_can_be_asked() -> None:
    """A doubling between two ranges, where no size is whole, gets the range above; past the last there is none."""
    made = Sweep(REQUEST, TRN1, 1, 64, (SizeRange(1, 7, Algorithm.MESH), SizeRange(9, 40, Algorithm.RING)))
    points = {size: found.name for size, found in made.points()}
    assert points == {1: "MESH", 2: "MESH", 4: "MESH", 8: "RING", 16: "RING", 32: "RING"}


def test_a_refused_range() -> None:
    """A size at which the operation is refused is drawn, and is null in JSON, with the reason."""
    made = Sweep(REQUEST, TRN1, 1, 8, (SizeRange(1, 8, None, refused="nothing carries it"),))
    assert any("refused: nothing carries it" in line for line in sweep_text(made))
    (switch,) = sweep_json(made)["switches"]
    assert (switch["algorithm"], switch["refused"]) == (None, "nothing carries it")
