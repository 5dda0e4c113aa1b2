"""Findings: what the proofs of order and of programs say when they fail, each under the stable name of its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

Name: TypeAlias = Callable[[int], str]
"""How messages call a row."""
MOST: Final = 8
"""Findings of one rule that are reported; the rest usually repeat them."""

RULES: Final = {
    "deadlock": "Every row starts: no wait needs a signal that only comes after it, or never.",
    "ambiguous_semaphore": "A wait is released by the signals it is meant for, never by one of a later phase.",
    "race": "Two rows that touch the same bytes, one of them writing, are ordered.",
    "slot_reuse": "An internal buffer is written again only after what it held has been read.",
    "in_place_hazard": "In place, the input is overwritten only after every rank has read its share.",
    "not_entered": "A rank's user buffers are touched by others only after the rank has completed a row.",
    "not_finished": "A rank goes on to its last row only after the last access of others to its user buffers.",
    "wait_count": "What the waits on a semaphore ask for, and what the signals to it give, are the same number.",
    "unbalanced": "Every semaphore returns to its initial value, so that the schedule can run again.",
    "never_read": "What is written is read before it is overwritten, or is the output.",
    "buffer_limit": "The internal buffers of a rank fit in the memory the architecture gives them.",
    "semaphore_limit": "A rank uses no more semaphores than the architecture has.",
    "order_mismatch": "All ranks of a group issue the same collectives on it in the same order.",
    "group_mismatch": "A group is the same participants in the same order wherever it is used.",
    "missing_rank": "Every rank of a group enters each collective of the group.",
    "blocked_groups": "No two groups wait for each other.",
    "communicator_limit": "A rank takes part in no more communicators than the runtime has.",
    "stream_limit": "A rank issues on no more streams than the runtime has.",
    "channel_limit": "A rank opens no more channels than the runtime has.",
}
"""What holds where no finding of the rule is made; `docs/verification.md` has a section for each."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect.

    Attributes:
        rule: a key of `RULES`.
        text: a sentence that names rows as `Schedule.name` does.
        rows: the rows it is about, the one to look at first in front; empty where no row is to blame.
    """

    rule: str
    text: str
    rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.rule in RULES, self.rule

    def __str__(self) -> str:
        return self.text


def few(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first findings of one rule."""
    for _, finding in zip(range(MOST), findings, strict=False):
        yield finding
