"""Where a number comes from, and why a rule says yes or no."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Confidence(Enum):
    """How sure the specification is of a fact; CONVENTION marks a choice of this project (`docs/open-questions.md`)."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    CONVENTION = "convention"


HIGH = Confidence.HIGH
MEDIUM = Confidence.MEDIUM
LOW = Confidence.LOW
CONVENTION = Confidence.CONVENTION


@dataclass(frozen=True, slots=True)
class Source:
    """The page and section a fact was read from."""

    page: str
    section: str
    confidence: Confidence = HIGH

    def __str__(self) -> str:
        return f"{self.page} §{self.section}, {self.confidence.value}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a rule, with its reason; true exactly when the rule agrees."""

    ok: bool
    reason: str
    source: Source | None = None

    def __bool__(self) -> bool:
        return self.ok


def yes(reason: str, source: Source | None = None) -> Verdict:
    """Return a verdict that agrees."""
    return Verdict(True, reason, source)


def no(reason: str, source: Source | None = None) -> Verdict:
    """Return a verdict that refuses."""
    return Verdict(False, reason, source)
