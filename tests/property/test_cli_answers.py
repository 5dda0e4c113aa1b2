"""Laws of the command line: every question gets an answer, and the commands agree about it."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.cli.conftest import Ran

from rota.cli import main
from rota.isa.enums import REDUCING
from rota.machine.platform import known_platforms, load_platform
from rota.request import KIND_NAMES, PAIRED, parse_kind

KINDS = sorted(name for kind, name in KIND_NAMES.items() if kind not in PAIRED)


@dataclass(frozen=True)
class Asked:
    """A question about one group."""

    kind: str
    options: tuple[str, ...]


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Any operation on one group of one machine: a range, a stride, or any ranks."""
    platform = draw(st.sampled_from(known_platforms()))
    ranks = load_platform(platform).ranks
    count = draw(st.integers(1, min(ranks, 64)))
    stride = draw(st.sampled_from([1, 1, 2, 4, 16]))
    first = draw(st.integers(0, ranks - 1))
    group = [first + stride * i for i in range(count) if first + stride * i < ranks]
    if draw(st.integers(0, 3)) == 0:
        group = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6, unique=True))
    size = draw(st.sampled_from([1, 64, 4096, 1 << 20, 1 << 28])) * len(group) * 4
    options = ["--platform", platform, "--groups", ",".join(map(str, group)), "--size", str(size), "--dtype", "fp32"]
    options += draw(st.sampled_from([[], ["--set", "MESH_CC=0"], ["--staging", "device"], ["--staging", "static"]]))
    return Asked(draw(st.sampled_from(KINDS)), tuple(options))


def rota(*arguments: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue())


@settings(max_examples=60, deadline=None)
@given(asked())
def test_check_and_explain_agree(question: Asked) -> None:
    """`explain` answers exactly what `check` calls legal, and refuses the rest with its reason, in one sentence."""
    checked = rota("check", question.kind, *question.options, "--json")
    explained = rota("explain", question.kind, *question.options, "--json")
    document = json.loads(checked.out)
    event(f"legal {document['legal']}")
    assert checked.code == (0 if document["legal"] else 1)
    assert explained.code == (0 if document["legal"] else 2)
    if document["legal"]:
        assert json.loads(explained.out)["algorithm"]
    else:
        assert explained.out == ""
        assert explained.err.startswith(f"rota: {document['reason']}")
        assert explained.err.count("\n") == 1


@settings(max_examples=30, deadline=None)
@given(asked())
def test_text_and_json_are_one_answer(question: Asked) -> None:
    """The text names the algorithm and every verdict of the document."""
    explained = rota("explain", question.kind, *question.options, "--json")
    text = rota("explain", question.kind, *question.options)
    assert text.code == explained.code
    if text.code == 0:
        document = json.loads(explained.out)
        assert f"selected   {document['algorithm']}" in text.out
        assert all(verdict["reason"] in text.out for verdict in document["verdicts"])
        assert (document["request"]["op"] == "sum") is (parse_kind(question.kind) in REDUCING)
