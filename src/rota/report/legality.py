"""Whether groups are legal on a machine, for people and for programs: the reason, the runtime's phrase, what is near.

What is legal is decided in `machine.legality`; that an operation asks for more than a legal group is decided by SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rota.machine.legality import Legality
from rota.machine.partition import format_groups, format_ranks
from rota.report.text import bracketed
from rota.request import Groups, Pairs

_SHOWN: Final = 4  # groups of one collective that are listed
_PHRASES: Final = tuple(
    map(
        re.compile,
        (
            r"node_n == 1 \|\| \(rank_n == 4 && enable_pod\)",
            r"alltoall cannot be supported without Mesh algorithm",
            r"Mesh algo untested with \d+ ranks on this instance type",
            r"Mesh does not work with multiple streams",
            r"not supported operation \(op_type \d+\)",
            r"Invalid group id: \d+, group_n: \d+",
            r"Invalid allr alg types",
            r"no_hier no_mesh",
        ),
    )
)
"""What the runtime prints when it refuses an operation, the most telling first. Source: select §4 and §10, high."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was asked about, and the answer.

    Attributes:
        kind: of a collective, or None where only groups or pairs were asked about.
        answers: one for each group, or each ring or chain of pairs.
        refusal: why an operation is refused whose groups are all legal, with the runtime's phrase.
    """

    groups: Groups
    answers: tuple[Legality, ...]
    kind: str | None = None
    pairs: Pairs = ()
    refusal: tuple[str, str | None] | None = None
    file: str | None = None
    line: int | None = None

    @property
    def legal(self) -> bool:
        """Whether everything of it is legal."""
        return self.refusal is None and all(answer.legal for answer in self.answers)

    @property
    def first(self) -> Legality | None:
        """The answer that decides: the first illegal one, or else the first with the fewest channels."""
        wrong = next((answer for answer in self.answers if not answer.legal), None)
        return wrong or min(self.answers, key=lambda answer: answer.channels, default=None)

    @property
    def reason(self) -> str:
        """The sentence that decides."""
        first = self.first
        if first is not None and not first.legal:
            return first.reason
        if self.refusal is not None:
            return self.refusal[0]
        assert first is not None, "a finding without groups has a refusal"
        return first.reason

    @property
    def runtime_message(self) -> str | None:
        """The phrase to search for in the runtime's own log."""
        first = self.first
        if first is not None and not first.legal:
            return first.runtime_message
        if self.refusal is not None:
            return self.refusal[1]
        return next((answer.runtime_message for answer in self.answers if answer.runtime_message), None)


def legality_json(finding: Finding) -> dict[str, Any]:
    """Return the record of one finding, as every document has it."""
    first = finding.first
    return {
        "legal": finding.legal,
        "reason": finding.reason,
        "runtime_message": finding.runtime_message,
        "warnings": _each(finding, "warnings"),
        "channels": 0 if first is None else first.channels,
        "suggestions": [] if first is None else [list(group) for group in first.suggestions],
        "notes": _each(finding, "notes"),
    }


def document_of(findings: Sequence[Finding], *, single: bool) -> dict[str, Any]:
    """Return the JSON document: of the one group or list of pairs, or of every collective with its line."""
    if single:
        return {"schema": 1, **legality_json(findings[0])}
    return {
        "schema": 1,
        "legal": all(finding.legal for finding in findings),
        "collectives": [
            {
                "file": finding.file,
                "line": finding.line,
                "kind": finding.kind,
                "groups": [list(group) for group in finding.groups],
                "pairs": [list(pair) for pair in finding.pairs],
                **legality_json(finding),
            }
            for finding in findings
        ],
    }


def legality_text(finding: Finding, where: str, *, sources: bool = False) -> Iterator[str]:
    """Yield the lines of one finding: what it is about, legal or not and why, and what to do.

    Args:
        where: the machine, in words.
    """
    place = "" if finding.file is None else f"{finding.file}:{finding.line}: "
    about = [word for word in (finding.kind or "", _members(finding)) if word]
    yield f"{place}{' '.join([*about, *(['on'] if about else []), where])}"
    decides = finding.first
    by = bracketed(decides.source) if sources and decides is not None and finding.reason == decides.reason else ""
    yield f"  {'legal' if finding.legal else 'illegal':<10} {finding.reason}{by}"
    if finding.runtime_message is not None:
        yield f'  {"runtime":<10} "{finding.runtime_message}"'
    if decides is not None and decides.suggestions:
        near = " or ".join(format_ranks(group) for group in decides.suggestions)
        yield f"  {'nearest':<10} {near}"
    yield from (f"  {'warning':<10} {warning}" for warning in _each(finding, "warnings"))
    yield from (f"  {'note':<10} {note}" for note in _each(finding, "notes"))


def phrase_of(sentence: str) -> str | None:
    """Return the runtime's own words in a refusal of ours: what to search its log for."""
    found = (phrase.search(sentence) for phrase in _PHRASES)
    return next((match[0] for match in found if match), None)


def _members(finding: Finding) -> str:
    if finding.pairs:
        pairs = [f"{source}>{target}" for source, target in finding.pairs]
        more = f" and {len(pairs) - 4 * _SHOWN} more" if len(pairs) > 4 * _SHOWN else ""
        return f"pairs {', '.join(pairs[: 4 * _SHOWN])}{more}"
    groups = finding.groups
    if not groups:
        return ""
    more = f" and {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else ""
    return f"group{'s' * (len(groups) > 1)} {format_groups(groups[:_SHOWN])}{more}"


def _each(finding: Finding, name: str) -> list[str]:
    """Return the warnings or notes of all answers, each once."""
    return list(dict.fromkeys(text for answer in finding.answers for text in getattr(answer, name)))
