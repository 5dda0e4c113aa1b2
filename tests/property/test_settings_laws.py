"""Laws of the settings: text and back, and no text that does anything but parse or be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from rota.errors import UsageError
from rota.select.settings import (
    VARIABLES,
    Settings,
    changed,
    describe,
    format_alg_types,
    format_settings,
    parse_alg_types,
    parse_settings,
)
from rota.select.variables import Kind, Value, Variable

T = TypeVar("T")
NAMES = [each.name for each in VARIABLES]
BITMAPS = st.integers(0, (1 << 22) - 1)


def outcome(call: Callable[[], T]) -> tuple[T, str]:
    """Return what a call gives and no text, or nothing and why it refuses; other errors fail the test."""
    try:
        return call(), ""
    except UsageError as error:
        return None, str(error)  # type: ignore[return-value]


def values(variable: Variable) -> st.SearchStrategy[Value]:
    """Draw legal values of a variable."""
    domain = variable.domain
    numbers = st.integers(domain.low // domain.step, domain.high // domain.step).map(lambda n: n * domain.step)
    match variable.kind:
        case Kind.FLAG:
            legal: st.SearchStrategy[Value] = st.booleans()
        case Kind.TEXT:
            legal = st.text(
                st.characters(min_codepoint=33, max_codepoint=126), min_size=domain.low, max_size=domain.high
            )
        case Kind.BYTES_LIST:
            entry = numbers | st.just(0) if domain.zero else numbers
            legal = st.lists(entry, min_size=domain.entries[0], max_size=domain.entries[1]).map(tuple)
        case _:
            legal = numbers
    return legal | st.just(variable.default)


@st.composite
def settings(draw: st.DrawFn) -> Settings:
    """Draw settings, both names of the logical core alike."""
    drawn = {each.field: draw(values(each)) for each in draw(st.lists(st.sampled_from(VARIABLES), unique=True))}
    if drawn.get("virtual_core_size") and drawn.get("logical_nc_config"):
        drawn["logical_nc_config"] = drawn["virtual_core_size"]
    return Settings(**drawn)  # type: ignore[arg-type]


@given(made=settings())
def test_settings_survive_their_text(made: Settings) -> None:
    """Every value, or those that changed alone, parse to equal settings with an equal hash."""
    whole = parse_settings([f"{name}={value}" for name, value in format_settings(made).items()])
    part = parse_settings([f"{name}={value}" for name, value in changed(made).items()])
    assert whole == part == made
    assert hash(whole) == hash(part) == hash(made)


@given(made=settings())
def test_settings_survive_the_environment(made: Settings) -> None:
    """An environment that a process would hand on means the same as assignments."""
    assert parse_settings([], {name: str(value) for name, value in format_settings(made).items()}) == made


@given(made=settings())
def test_descriptions_are_json(made: Settings) -> None:
    """A description is what JSON can hold, unchanged."""
    rows = describe(made)
    assert json.loads(json.dumps(rows)) == rows


@given(bitmap=BITMAPS)
def test_bitmaps_survive_their_text(bitmap: int) -> None:
    """The text of every bitmap of 22 bits parses to the same bitmap."""
    assert parse_alg_types(format_alg_types(bitmap)) == bitmap


TOKENS = st.builds(
    "{}{}_ALG".format,
    st.sampled_from(["", "INTRA_", "INTER_"]),
    st.sampled_from(
        ["RING", "HIER", "MESH", "KANGARING", "SINGLE_CYCLE_RING", "RDH", "SINGLE_STEP_MESH", "TWO_STEP_POD_MESH",
         "LATENCY_OPT_MESH", "BW_OPT_MESH"]
    ),
)  # fmt: skip


@given(tokens=st.lists(TOKENS, min_size=1))
def test_a_list_and_its_complement_divide_the_bitmap(tokens: list[str]) -> None:
    """A list is the union of its tokens in any order; behind ^ it is the complement."""
    listed = parse_alg_types(",".join(tokens))
    union = 0
    for token in reversed(tokens):
        union |= parse_alg_types(token)
    assert listed == union
    assert listed ^ parse_alg_types("^" + ",".join(tokens)) == (1 << 22) - 1


@given(text=st.lists(TOKENS | st.sampled_from(["^", ",", " ", "0x1", "ALG"]) | st.text(max_size=5)).map("".join))
def test_alg_types_parse_or_are_refused(text: str) -> None:
    """Any text is a bitmap or a UsageError of one line."""
    bitmap, refusal = outcome(lambda: parse_alg_types(text))
    assert refusal.isprintable()
    assert refusal or 0 <= bitmap < 1 << 22


ANY_TEXT = st.text() | st.sampled_from(
    ["", "0", "1", "2", "true", "4M", "0x10", "1,2,3,4,5", "^", "RING_ALG", "X4", "9" * 30]
)
ASSIGNMENTS = st.builds("{}{}{}".format, st.sampled_from(NAMES) | st.text(), st.sampled_from(["=", "==", ""]), ANY_TEXT)


@given(
    assignments=st.lists(ASSIGNMENTS | st.text(), max_size=4),
    environment=st.dictionaries(st.sampled_from(NAMES) | st.text(), ANY_TEXT, max_size=4),
)
def test_parsing_is_total(assignments: list[str], environment: dict[str, str]) -> None:
    """Any assignments over any environment are settings or a UsageError of one short line, nothing else."""
    made, refusal = outcome(lambda: parse_settings(assignments, environment))
    assert refusal.isprintable()
    assert len(refusal) < 400
    assert refusal or parse_settings([f"{name}={value}" for name, value in changed(made).items()]) == made


@given(first=st.sampled_from(VARIABLES), text=ANY_TEXT)
def test_only_the_named_field_changes(first: Variable, text: str) -> None:
    """An assignment touches its own variable alone."""
    made, refusal = outcome(lambda: parse_settings([f"{first.name}={text}"]))
    assert first.name in refusal if refusal else set(changed(made)) <= {first.name}
