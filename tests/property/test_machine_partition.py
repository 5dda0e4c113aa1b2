"""Laws of the text of replica groups: it parses back, and no text does anything but parse or be refused."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rota.errors import UsageError
from rota.machine.group import format_groups, parse_groups

RANKS = 64


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Draw disjoint, non-empty groups of ranks."""
    ranks = draw(st.lists(st.integers(0, RANKS - 1), unique=True, min_size=1))
    cuts = [*sorted(draw(st.sets(st.integers(1, len(ranks))))), len(ranks)]
    starts = [0, *cuts]
    return tuple(tuple(ranks[a:b]) for a, b in zip(starts, cuts, strict=False) if a < b)


@given(partitions())
def test_every_form_parses_back(groups: tuple[tuple[int, ...], ...]) -> None:
    """Ranges, JSON and HLO braces of the same groups read back to those groups."""
    nested = json.dumps(groups)
    for text in (format_groups(groups), nested, nested.replace("[", "{").replace("]", "}")):
        assert parse_groups(text, ranks=RANKS) == groups


def read(text: str) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Return the groups of a text, or the sentence that refuses it; any other error is the test's failure."""
    try:
        return parse_groups(text, ranks=RANKS), ""
    except UsageError as error:
        return (), str(error)


@given(
    st.one_of(
        st.text(),
        st.text(alphabet="0123456789,;-[]{} ", max_size=40),
        st.text(alphabet="0123[],{}", max_size=20).map(lambda text: f"[[{text}]]"),
        st.from_regex(r"[0-9]{1,3}(-[0-9]{1,30})?([,;][0-9]{1,3}(-[0-9]{1,3})?)*", fullmatch=True),
    )
)
def test_any_text_parses_or_is_refused(text: str) -> None:
    """Any text is groups of distinct ranks of the machine, or a usage error of one line."""
    groups, message = read(text)
    assert "\n" not in message
    assert bool(groups) != bool(message)
    ranks = [rank for group in groups for rank in group]
    assert all(groups)
    assert len(ranks) == len(set(ranks))
    assert all(0 <= rank < RANKS for rank in ranks)
