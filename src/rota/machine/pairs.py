"""Source-target pairs of a permute: from text, into the parts that hang together, and the ring of a part.

Whether the machine can carry a ring is the business of `legality`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rota.errors import UsageError

Pair = tuple[int, int]

_PAIR: Final = {
    "{": re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}", re.ASCII),
    "[": re.compile(r"\[\s*(\d+)\s*,\s*(\d+)\s*\]", re.ASCII),
    ">": re.compile(r"(\d+)\s*>\s*(\d+)", re.ASCII),
}
_FORMS: Final = "{0,1},{1,0} or {{0,1},{1,0}} or [[0,1],[1,0]] or 0>1,1>0"


def parse_pairs(text: str, *, ranks: int) -> tuple[Pair, ...]:
    """Return the (source, target) pairs a text names, in the order written.

    Three forms: braces as in HLO, with or without the outer ones, JSON lists, and arrows (`0>1,1>0`).

    Args:
        text: the pairs.
        ranks: ranks of the machine.

    Raises:
        UsageError: the text is none of these or names no pair, a rank is outside 0 to `ranks` - 1, or a rank is the
            source or the target of two pairs.
    """
    body, form = _body(text.strip())
    pairs: list[Pair] = []
    at = 0
    while True:
        match = _PAIR[form].match(body, at)
        if match is None:
            raise UsageError(f"pairs: {_quote(body[at:])} at pair {len(pairs)}: expected {_FORMS}")
        pairs.append((_rank(match[1], ranks=ranks), _rank(match[2], ranks=ranks)))
        rest = re.compile(r"\s*,\s*").match(body, match.end())
        if rest is None:
            at = match.end()
            break
        at = rest.end()
    if body[at:].strip():
        raise UsageError(f"pairs: {_quote(body[at:])} behind pair {len(pairs) - 1}: expected a comma or the end")
    check_distinct(pairs)
    return tuple(pairs)


def check_distinct(pairs: Sequence[Pair]) -> None:
    """Raise unless every rank is the source of at most one pair and the target of at most one.

    Raises:
        UsageError: a pair is written twice, or a rank is the source or the target of two pairs.

    Source: compose §9, high (a valid circular pattern).
    """
    for end, role in enumerate(("source", "target")):
        first: dict[int, Pair] = {}
        for pair in pairs:
            if pair[end] not in first:
                first[pair[end]] = pair
                continue
            other = first[pair[end]]
            if other == pair:
                raise UsageError(f"pairs: {pair[0]}>{pair[1]} is written twice, write each pair once")
            both = f"{other[0]}>{other[1]} and {pair[0]}>{pair[1]}"
            raise UsageError(f"pairs: rank {pair[end]} is the {role} of {both}, a rank may be the {role} of one pair")


def components(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Return the parts of the pairs that share ranks, each in the order written, by the place of their first pair.

    Source: compose §9, high (union-find over the pairs).
    """
    parent: dict[int, int] = {}

    def root(rank: int) -> int:
        parent.setdefault(rank, rank)
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for source, target in pairs:
        parent[root(source)] = root(target)
    parts: dict[int, list[Pair]] = {}
    for pair in pairs:
        parts.setdefault(root(pair[0]), []).append(pair)
    return tuple(map(tuple, parts.values()))


def ring_of(component: Sequence[Pair]) -> tuple[int, ...] | None:
    """Return the ranks of one component from its lowest along the pairs; None when they form no single ring."""
    target = dict(component)
    if len(target) != len(component) or set(target) != set(target.values()):
        return None
    ring = [min(target)]
    while (rank := target[ring[-1]]) != ring[0]:
        ring.append(rank)
    return tuple(ring) if len(ring) == len(target) else None


def chain_ends(component: Sequence[Pair]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of a component that receive nothing and those that send nothing, both ascending."""
    sources, targets = {source for source, _ in component}, {target for _, target in component}
    return tuple(sorted(sources - targets)), tuple(sorted(targets - sources))


def _body(text: str) -> tuple[str, str]:
    """Return the text between the outer brackets, and which form its pairs have."""
    if not text:
        raise UsageError(f"pairs: the text is empty, expected {_FORMS}")
    form = text[0] if text[0] in _PAIR else ">"
    if form != ">":
        closing = {"{": "}", "[": "]"}[form]
        outer = re.fullmatch(rf"\{form}\s*(\{form}.*\{closing})\s*\{closing}", text, re.DOTALL)
        if outer is not None:
            return outer[1], form
        if form == "[":
            raise UsageError(f"pairs {_quote(text)}: expected {_FORMS}")
    return text, form


def _rank(digits: str, *, ranks: int) -> int:
    """Return the rank; the length is looked at first, so that no number of digits costs anything."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(ranks)) or int(digits) >= ranks:
        raise UsageError(f"pairs: rank {_quote(digits)} is not on the machine: expected 0 to {ranks - 1}")
    return int(digits)


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
