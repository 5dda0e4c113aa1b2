"""Answers about several groups as one finding: which decides, and what is said of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.errors import UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.legality import Legality, check_groups
from rota.machine.platform import load_platform
from rota.report.legality import Finding, document_of, legality_json, legality_text, phrase_of
from rota.request import Request
from rota.select.choose import Selector
from rota.select.settings import Settings, parse_settings

TRN2 = load_platform("trn2.48xlarge")


def finding(*groups: tuple[int, ...]) -> Finding:
    return Finding(groups, check_groups(TRN2, groups), kind="all_reduce", file="m.hlo", line=7)


def test_the_first_illegal_group_decides() -> None:
    """The reason, the runtime's words and the suggestions are those of the first group that is illegal."""
    found = finding((0, 1, 2, 3), (4, 5, 8), (12, 13, 14))
    wrong = found.answers[1]
    assert not found.legal
    assert (found.reason, found.runtime_message) == (wrong.reason, wrong.runtime_message)
    assert legality_json(found)["suggestions"] == [list(group) for group in wrong.suggestions]


def test_the_fewest_channels_speak_for_legal_groups() -> None:
    """Of legal groups the one with the fewest channels gives the reason; warnings of all are said once each."""
    found = finding(tuple(range(16, 32)), (0, 1, 2, 3, 4, 5, 6, 7))
    assert found.legal
    assert legality_json(found)["channels"] == min(answer.channels for answer in found.answers) == 1
    assert found.reason == found.answers[1].reason
    twice = Finding(found.groups, (warned(), warned()))
    assert legality_json(twice)["warnings"] == ["mind the gap"]


def warned() -> Legality:
    (answer,) = check_groups(TRN2, [(0, 1, 2, 3)])
    return replace(answer, warnings=("mind the gap",))


def test_an_operation_that_is_refused() -> None:
    """Legal groups with a refused operation are illegal for its reason; an illegal group goes before it."""
    because = ("nothing carries it", "no_hier no_mesh")
    found = replace(finding((0, 1, 2, 3)), refusal=because)
    assert (found.legal, found.reason, found.runtime_message) == (False, *because)
    found = replace(finding((4, 5, 8)), refusal=because)
    assert found.reason == found.answers[0].reason
    assert (Finding((), (), refusal=because).legal, Finding((), (), refusal=because).reason) == (False, because[0])


def test_one_document_or_one_a_collective() -> None:
    """A single answer is the document; several stand in `collectives`, each with its place, and `legal` is of all."""
    right, wrong = finding((0, 1, 2, 3)), finding((4, 5, 8))
    assert document_of([right], single=True) == {"schema": 1, **legality_json(right)}
    document = document_of([right, wrong], single=False)
    assert (document["schema"], document["legal"]) == (1, False)
    assert [(each["file"], each["line"], each["kind"]) for each in document["collectives"]] == [
        ("m.hlo", 7, "all_reduce")
    ] * 2


def test_long_lists_are_shortened() -> None:
    """Of many groups the first four are listed, and how many more there are; so of pairs."""
    groups = tuple((4 * chip, 4 * chip + 1) for chip in range(16))
    first = next(legality_text(Finding(groups, check_groups(TRN2, groups)), "here"))
    assert first == "groups 0-1;4-5;8-9;12-13 and 12 more on here"
    pairs = tuple((i, i) for i in range(40))
    first = next(legality_text(Finding((), check_groups(TRN2, [(0,)]), pairs=pairs), "here"))
    assert first.endswith("15>15 and 24 more on here")


@pytest.mark.parametrize(
    ("kind", "group", "nodes", "setting", "phrase"),
    [
        (EncOp.BROADCAST, (0, 1), 1, "MESH_CC=1", "not supported operation (op_type 2)"),
        (
            EncOp.ALLTOALL,
            (0, 64),
            2,
            "CC_INTER_MESH_MAX_NODES=0",
            "alltoall cannot be supported without Mesh algorithm",
        ),
        (EncOp.ALLTOALL, (0, 1, 64, 65), 2, "MESH_CC=1", "node_n == 1 || (rank_n == 4 && enable_pod)"),
    ],
)
def test_the_runtimes_words_are_found(
    kind: EncOp, group: tuple[int, ...], nodes: int, setting: str, phrase: str
) -> None:
    """A refusal of SELECT holds the words of the runtime's own message. Source: select §4 and §10."""
    request = Request(kind=kind, dtype=Dtype.BFLOAT16, count=64, groups=(group,))
    selector = Selector(load_platform("trn2.48xlarge", nodes=nodes), parse_settings([setting]))
    with pytest.raises(UnsupportedError) as refused:
        selector.select(request)
    assert phrase_of(str(refused.value)) == phrase


def test_words_of_our_own_are_no_phrase() -> None:
    """A refusal that is ours alone has nothing to search for."""
    assert phrase_of("this version composes RING") is None
    request = Request(kind=EncOp.ALLREDUCE, dtype=Dtype.BFLOAT16, count=64, groups=((0, 5, 9),), op=CceType.ADD)
    with pytest.raises(UnsupportedError) as refused:
        Selector(TRN2, Settings()).select(request)
    assert phrase_of(str(refused.value)) is None
