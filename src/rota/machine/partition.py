"""Replica groups as text: from the three ways people write them, and back.

Only text and distinct ranks are checked here; whether the machine can wire a group is the business of `group`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rota.errors import UsageError

_RANGE: Final = re.compile(r"(\d+)(?:\s*-\s*(\d+))?", re.ASCII)
_NESTED: Final = {
    "[": re.compile(r"\[\s*(\[[^][]*\](?:\s*,\s*\[[^][]*\])*)\s*\]"),
    "{": re.compile(r"\{\s*(\{[^}{]*\}(?:\s*,\s*\{[^}{]*\})*)\s*\}"),
}
_INNER: Final = {"[": re.compile(r"\[([^][]*)\]"), "{": re.compile(r"\{([^}{]*)\}")}
_FORMS: Final = "0-15,48-63;16-47 or [[0,1],[2,3]] or {{0,1},{2,3}}"


def parse_groups(text: str, *, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the replica groups a text names, members in the order written.

    Three forms: lists (`0-15,48-63;16-47`), JSON lists of lists, and the braces of HLO, where `{}` is one group of all
    ranks. A range includes both ends and may stand in any form. Groups need not cover all ranks.

    Args:
        text: the groups.
        ranks: ranks of the machine.

    Raises:
        UsageError: the text is none of these, a group is empty, or a rank is outside 0 to `ranks` - 1 or named twice.
    """
    text = text.strip()
    if re.fullmatch(r"\{\s*\}", text):
        return (tuple(range(ranks)),)
    owner: dict[int, int] = {}
    groups: list[tuple[int, ...]] = []
    for index, members in enumerate(_split(text)):
        group: list[int] = []
        for rank in _members(members, index=index, ranks=ranks):
            if rank in owner:
                where = f"twice in group {index}" if owner[rank] == index else f"in group {owner[rank]} and in {index}"
                raise UsageError(f"groups: rank {rank} is {where}: name each rank once")
            owner[rank] = index
            group.append(rank)
        groups.append(tuple(group))
    return tuple(groups)


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text that `parse_groups` reads back in the same order: `0-15,48-63`."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and runs[-1][1] + 1 == rank:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def format_groups(groups: Sequence[Sequence[int]]) -> str:
    """Return groups as text that `parse_groups` reads back: `0-15,48-63;16-47`."""
    return ";".join(format_ranks(group) for group in groups)


def _split(text: str) -> Sequence[str]:
    """Return the text between the delimiters of each group."""
    if not text:
        raise UsageError(f"groups: the text is empty, expected {_FORMS}")
    bracket = text[0]
    if bracket not in _NESTED:
        return text.split(";")
    match = _NESTED[bracket].fullmatch(text)
    if match is None:
        raise UsageError(f"groups {_quote(text)}: expected a list of lists of ranks, {_FORMS}")
    return _INNER[bracket].findall(match[1])


def _members(text: str, *, index: int, ranks: int) -> Iterator[int]:
    if not text.strip():
        raise UsageError(f"groups: group {index} is empty, expected at least one rank")
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"groups: {_quote(part.strip())} in group {index}: expected a rank or a range like 0-15")
        low = _rank(match[1], ranks=ranks)
        high = low if match[2] is None else _rank(match[2], ranks=ranks)
        if low > high:
            raise UsageError(f"groups: range {low}-{high} in group {index} runs down, write {high}-{low}")
        yield from range(low, high + 1)


def _rank(digits: str, *, ranks: int) -> int:
    """Return the rank; the length is looked at first, so that no number of digits costs anything."""
    plain = digits.lstrip("0") or "0"
    if len(plain) > len(str(ranks)) or int(plain) >= ranks:
        raise UsageError(f"groups: rank {_quote(digits)} is not on the machine: expected 0 to {ranks - 1}")
    return int(plain)


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
