"""Saying things: data on stdout, talk on stderr. Nothing else in rota prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from rota.request import Job

T = TypeVar("T")
_EXTENSION: Final = "EXTENSION"
"""How what the runtime refuses is reported when it is composed: in place of nothing."""


class Progress:
    """Says on stderr which stage a collective has reached, once it takes longer than two seconds."""

    _PATIENCE: Final = 2.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.next = time.monotonic() + self._PATIENCE

    def __call__(self, stage: str, value: T, /) -> T:
        now = time.monotonic()
        if now > self.next:
            talk(f"{self.name}: {stage} done")
            self.next = now + self._PATIENCE
        return value


def place(job: Job) -> str:
    return "" if job.file is None else f"{job.file}:{job.line}: "


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def talk(text: str) -> None:
    print(f"rota: {text}", file=sys.stderr)


def say_substitutions(composed: Sequence[tuple[str | None, str | None]], *, own: str = "") -> None:
    """Say in one line which algorithms the runtime takes that another was composed for.

    Args:
        composed: what was selected and what was composed, of every row.
        own: the user's own algorithm, if that is what was composed.
    """
    known = [(selected, algorithm) for selected, algorithm in composed if algorithm != _EXTENSION]
    other = [(selected, algorithm) for selected, algorithm in known if algorithm and selected not in (None, algorithm)]
    if other:
        counted = _counted([str(selected) for selected, _ in other])
        by = f"composed is {own}" if own else f"this version composes {other[0][1]} instead"
        talk(f"the runtime takes {counted}; {by}")


def say_not_on_device(reasons: Sequence[str | None]) -> None:
    """Say in one line what did not run on the device model, and why.

    Args:
        reasons: of every row; None where it ran there.
    """
    known = [reason for reason in reasons if reason]
    if known:
        talk(f"not run on the device model: {_counted(known)}")


def _counted(names: Sequence[str]) -> str:
    rows_of = {name: names.count(name) for name in sorted(set(names))}
    return ", ".join(f"{name} ({count} row{'s' * (count > 1)})" for name, count in rows_of.items())
