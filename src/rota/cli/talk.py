"""Saying things: data on stdout, talk on stderr. Nothing else in rota prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from rota.request import Job

T = TypeVar("T")


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


def say_substitutions(composed: Sequence[tuple[str | None, str | None]]) -> None:
    """Say in one line which algorithms the runtime takes that another was composed for.

    Args:
        composed: what was selected and what was composed, of every row.
    """
    other = [(selected, algorithm) for selected, algorithm in composed if selected != algorithm]
    if other:
        names = sorted({str(selected) for selected, _ in other})
        rows_of = {name: sum(selected == name for selected, _ in other) for name in names}
        counted = ", ".join(f"{name} ({count} row{'s' * (count > 1)})" for name, count in rows_of.items())
        talk(f"the runtime takes {counted}; this version composes {other[0][1]} instead")
