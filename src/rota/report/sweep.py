"""The algorithm by size: as one picture in the terminal, and as a JSON document.

Sizes are whole buffers, as the command line speaks of them; where each algorithm begins and ends is found by SELECT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rota.machine.platform import Platform
from rota.report.explain import asked
from rota.report.text import machine
from rota.request import Request
from rota.select.whatif import SizeRange
from rota.units import format_size

_WIDTH: Final = 60  # columns of the picture
_WIDEST: Final = 6  # columns of one doubling
_LABEL: Final = 34


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one request gets at every size from `low` to `high`; there is at least one range."""

    request: Request
    platform: Platform
    low: int
    high: int
    ranges: tuple[SizeRange, ...]

    def points(self) -> Iterator[tuple[int, SizeRange]]:
        """Yield every doubling of the lowest size, with what it gets, or what the next size that can be asked gets."""
        size = self.low
        while size <= self.high:
            found = next((each for each in self.ranges if size <= each.last), None)
            if found is not None:
                yield size, found
            size *= 2


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Return the document: the decision at each doubling, and every range of sizes with its exact ends in bytes."""
    return {
        "schema": 1,
        "platform": sweep.platform.name,
        "sweep": [{"size": size, "algorithm": _name(found), "legs": _legs(found)} for size, found in sweep.points()],
        "switches": [
            {
                "from": each.first,
                "to": each.last,
                "algorithm": _name(each),
                "legs": _legs(each),
                "refused": each.refused or None,
            }
            for each in sweep.ranges
        ],
    }


def sweep_text(sweep: Sweep) -> Iterator[str]:
    """Yield the picture, one row for each algorithm and leg, and the table of exact sizes below it."""
    columns = _Columns(sweep.low, sweep.high)
    yield f"# {asked(sweep.request)} on {machine(sweep.platform)}, by size of the whole buffer"
    yield f"# {'':<{_LABEL - 2}} {columns.scale()}"
    for label, ranges in _rows(sweep.ranges).items():
        yield f"  {label:<{_LABEL - 2}} {columns.bar(ranges)}".rstrip()
    yield f"# {'from':>12} {'to':>12} algorithm"
    for each in sweep.ranges:
        legs = "".join(f" {slot}={name}" for slot, name in _legs(each).items())
        refused = f": {each.refused}" if each.refused else ""
        yield f"  {format_size(each.first):>12} {format_size(each.last):>12} {each.name}{legs}{refused}"


def _name(found: SizeRange) -> str | None:
    return None if found.algorithm is None else found.algorithm.name


def _legs(found: SizeRange) -> dict[str, str]:
    return {slot: algorithm.name for slot, algorithm in found.legs}


def _rows(ranges: Sequence[SizeRange]) -> dict[str, list[SizeRange]]:
    """Return the ranges of each row: of an algorithm, and below a hierarchy those of each of its legs."""
    names = list(dict.fromkeys(each.name for each in ranges))
    rows: dict[str, list[SizeRange]] = {}
    for name in names:
        rows[name] = [each for each in ranges if each.name == name]
        slots = list(dict.fromkeys(slot for each in rows[name] for slot, _ in each.legs))
        for slot in slots:
            for each in rows[name]:
                rows.setdefault(f"  {slot:<13} {_legs(each)[slot]}", []).append(each)
    return rows


class _Columns:
    """Sizes on a logarithmic scale: as many columns for each doubling as fit."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low.bit_length() - 1
        doublings = max((high - 1).bit_length() - self.low, 1)
        self.each = max(1, min(_WIDEST, _WIDTH // doublings))
        self.width = doublings * self.each

    def at(self, size: int) -> int:
        """Return the column of a size: of its doubling, and how far it is between this one and the next."""
        power = size.bit_length() - 1
        within = (size - (1 << power)) * self.each >> power
        return min(max((power - self.low) * self.each + within, 0), self.width)

    def bar(self, ranges: Sequence[SizeRange]) -> str:
        """Return one row of the picture; a range too short for a column still gets one."""
        row = [" "] * self.width
        for each in ranges:
            begin = min(self.at(each.first), self.width - 1)
            for column in range(begin, max(self.at(each.last + 1), begin + 1)):
                row[column] = "="
        return "".join(row)

    def scale(self) -> str:
        """Return the sizes above the picture, each above the column where it begins."""
        text = ""
        for column in range(0, self.width, self.each):
            label = format_size(1 << (self.low + column // self.each))
            if column >= len(text) + (1 if text else 0) and column + len(label) <= self.width + _LABEL:
                text = f"{text:<{column}}{label}"
        return text
