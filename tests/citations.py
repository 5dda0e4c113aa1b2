"""What a source and a value look like on `docs/fidelity.md`: one line each, the same in every process."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from rota.facts import Confidence, Source
from rota.isa.layout import Bits, Layout
from rota.isa.records import RECORD

# These pages record choices.
OUR_PAGES: Final = frozenset({"design", "device-model", "execution", "schedule", "simulation", "topology"})
HEX_FROM: Final = 1024  # smaller numbers read better in decimal

_CITED: Final = re.compile(r"(?:^|\s)Source:\s*(.+?)(?:\.(?=\s)|\.?$)")
_CLAIMS: Final = {
    Confidence.CONVENTION: re.compile(r"\bconventions?\b|\bchoice of this project\b"),
    Confidence.LOW: re.compile(r"\blow\b"),
    Confidence.MEDIUM: re.compile(r"\bmedium\b"),
    Confidence.HIGH: re.compile(r"\bhigh\b"),
}
_CLAIM: Final = re.compile(r",\s*(?:high(?: × observed)?|medium|low|conventions?)\b(?: for the \w+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Citation:
    """Page and section as printed, and the weakest confidence that is claimed."""

    text: str
    confidence: Confidence


def cite(source: Source) -> Citation:
    """Return a source object as it is printed."""
    return Citation(f"{source.page} §{source.section}", source.confidence)


def citation(text: str | None) -> Citation | None:
    """Return the sentence of a docstring or comment that begins with "Source:", or None.

    Where it claims no confidence, that is `Source`'s own default, or a convention for a page that records choices.
    """
    found = _CITED.search(" ".join((text or "").split()))
    if found is None or "§" not in found[1]:
        return None
    claimed = [each for each, words in _CLAIMS.items() if words.search(found[1])]
    ours = any(f"{page} §" in found[1] for page in OUR_PAGES)
    silent = Confidence.CONVENTION if ours else Confidence.HIGH
    return Citation(_CLAIM.sub("", found[1]), claimed[0] if claimed else silent)


def show(value: object) -> str:
    """Return a value on one line, the same in every process."""
    for kind, text in _SHOWN:
        if isinstance(value, kind):
            return text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value) if each.name != "source")
        return ", ".join(f"{name}={each.name if isinstance(each, Layout) else show(each)}" for name, each in named)
    return str(getattr(value, "__name__", type(value).__name__))


def _show_type(value: type) -> str:
    if not issubclass(value, Enum):
        return value.__name__
    return f"{len(value)} members: " + ", ".join(f"{each.name}={show(each.value)}" for each in value)


def _show_layout(value: Layout) -> str:
    same = len(RECORD.fields)
    begins = value != RECORD and value.fields[:same] == RECORD.fields
    fields = value.fields[same:] if begins else value.fields
    places = (f":{each.low}+{each.width}" if isinstance(each, Bits) else f" {each.type}" for each in fields)
    named = [f"{each.name} @{each.at}{place}" for each, place in zip(fields, places, strict=True)]
    return f"{value.size} B: " + ", ".join(["record", *named] if begins else named)


def _show_each(values: Iterable[object]) -> str:
    return ", ".join(show(each) for each in values)


def _order(value: object) -> tuple[int, str]:
    return (value if isinstance(value, int) else 0, show(value))


_SHOWN: Final[tuple[tuple[Any, Callable[[Any], str]], ...]] = (
    (type, _show_type),
    (Enum, lambda value: value.name or str(value.value)),
    ((bool, range, type(None)), str),
    (int, lambda value: str(value) if value < HEX_FROM else f"{value:#x}"),
    ((str, bytes, float), repr),
    (re.Pattern, lambda value: repr(value.pattern)),
    (Layout, _show_layout),
    (Mapping, lambda value: ", ".join(f"{show(key)}: {show(each)}" for key, each in value.items())),
    ((frozenset, set), lambda value: "{" + _show_each(sorted(value, key=_order)) + "}"),
    ((tuple, list), lambda value: "(" + _show_each(value) + ")"),
)
