"""Source-target pairs: the forms of the text, the parts that hang together, and rings."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.machine.pairs import check_distinct, components, parse_pairs, ring_of


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("{0,1},{1,0}", ((0, 1), (1, 0))),
        ("{{0,1},{1,0}}", ((0, 1), (1, 0))),
        (" { { 0 , 1 } , { 1 , 0 } } ", ((0, 1), (1, 0))),
        ("[[0,1],[1,0]]", ((0, 1), (1, 0))),
        ("[[0,1]]", ((0, 1),)),
        ("{{63,0}}", ((63, 0),)),
        ("{3,2}", ((3, 2),)),
        ("0>1,1>0", ((0, 1), (1, 0))),
        (" 2 > 3 ", ((2, 3),)),
        ("007>1", ((7, 1),)),
        ("0" * 5000 + ">1", ((0, 1),)),
    ],
)
def test_forms(text: str, pairs: tuple[tuple[int, int], ...]) -> None:
    """Braces of HLO with or without the outer ones, JSON lists, and arrows."""
    assert parse_pairs(text, ranks=64) == pairs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty, expected {0,1},{1,0} or"),
        ("{}", "'{}' at pair 0: expected"),
        ("{{}}", "'{}' at pair 0"),
        ("[]", "pairs '[]': expected"),
        ("[0,1]", "pairs '[0,1]': expected"),
        ("{0,1", "at pair 0"),
        ("{0,1},", "'' at pair 1"),
        ("{0,1}{1,0}", "'{1,0}' behind pair 0: expected a comma or the end"),
        ("{0,1},[1,0]", "'[1,0]' at pair 1"),
        ("{0,1,2}", "at pair 0"),
        ("{-1,0}", "at pair 0"),
        ("0>1>2", "'>2' behind pair 0"),
        ("0-1", "at pair 0"),
        ("{64,0}", "rank '64' is not on the machine: expected 0 to 63"),
        ("0>" + "9" * 100_000, "rank '" + "9" * 37 + "...' is not on the machine"),
        ("{" * 100_000, "at pair 0"),
        ("{0,1},{0,1}", "0>1 is written twice, write each pair once"),
        ("{0,1},{0,2}", "rank 0 is the source of 0>1 and 0>2, a rank may be the source of one pair"),
        ("{0,2},{1,2}", "rank 2 is the target of 0>2 and 1>2"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    """Empty and malformed text, ranks outside the machine and repeated ends are refused in one sentence."""
    with pytest.raises(UsageError) as caught:
        parse_pairs(text, ranks=64)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_same_pair_object_twice() -> None:
    """A repeated pair is found even when both are one object."""
    with pytest.raises(UsageError, match="0>1 is written twice"):
        check_distinct(((0, 1),) * 2)


def test_components() -> None:
    """Compose §9: union-find over the pairs, parts by the place of their first pair."""
    pairs = ((4, 5), (0, 1), (2, 0), (5, 4), (1, 2), (7, 8), (9, 9))
    assert components(pairs) == (((4, 5), (5, 4)), ((0, 1), (2, 0), (1, 2)), ((7, 8),), ((9, 9),))
    assert components(()) == ()


@pytest.mark.parametrize(
    ("pairs", "ring"),
    [
        (((0, 1), (1, 0)), (0, 1)),
        (((5, 3), (3, 9), (9, 5)), (3, 9, 5)),
        (((7, 7),), (7,)),
        (((0, 1),), None),
        (((0, 1), (1, 2)), None),
        (((0, 1), (1, 0), (2, 3), (3, 2)), None),
        (((0, 1), (0, 2)), None),
        (((0, 1), (1, 0), (2, 0)), None),
    ],
)
def test_ring_of(pairs: tuple[tuple[int, int], ...], ring: tuple[int, ...] | None) -> None:
    """A ring starts at its lowest rank and follows the pairs; an open chain or two rings are none."""
    assert ring_of(pairs) == ring
