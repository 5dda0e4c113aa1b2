"""Errors say one sentence and carry what tools need; facts and verdicts say where they come from."""

from __future__ import annotations

import pytest

from rota.errors import DecodeError, RotaError, StuckError, UnsupportedError, UsageError, VerifyError
from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Confidence, Source, no, yes


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UsageError("no such file"), "no such file"),
        (UnsupportedError("not here", source=Source("isa", "5")), "not here"),
        (VerifyError("wrong", findings=["row 1", "row 2"]), "wrong"),
        (StuckError("stuck", waiting=["rank 0"]), "stuck"),
        (
            DecodeError("truncated word", offset=64, expected="64 bytes", got="63"),
            "truncated word at offset 64: expected 64 bytes, got 63",
        ),
    ],
)
def test_every_error_is_one_sentence(error: RotaError, sentence: str) -> None:
    """Every error is a RotaError, and what it prints is the sentence the user reads."""
    assert isinstance(error, RotaError)
    assert str(error) == sentence


def test_errors_carry_what_tools_need() -> None:
    """A refusal carries its source, a decode error its place, a verdict on a schedule its findings, in tuples."""
    assert UnsupportedError("x").source is None
    decode = DecodeError("word", offset=3, expected="a", got="b")
    assert (decode.what, decode.offset, decode.expected, decode.got) == ("word", 3, "a", "b")
    assert VerifyError("x", findings=["row 1"]).findings == ("row 1",)
    assert StuckError("x", waiting=["rank 0"]).waiting == ("rank 0",)
    assert (VerifyError("x").findings, StuckError("x").waiting) == ((), ())


@pytest.mark.parametrize(
    ("confidence", "text"), [(HIGH, "high"), (MEDIUM, "medium"), (LOW, "low"), (CONVENTION, "convention")]
)
def test_a_source_prints_page_section_and_confidence(confidence: Confidence, text: str) -> None:
    """`rota explain` prints where a fact was read and how sure it is."""
    assert str(Source("select", "7.4", confidence)) == f"select §7.4, {text}"


def test_a_verdict_is_its_answer() -> None:
    """A verdict is true exactly when the rule agrees, and says why either way."""
    source = Source("select", "4")
    assert yes("because", source)
    assert not no("because not", source)
    assert (no("because not", source).reason, no("because not", source).source) == ("because not", source)
