"""Replica groups as text: the three forms, and what is refused."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.machine.group import format_groups, format_ranks, parse_groups

LOGIC2 = ((*range(16), *range(48, 64)), tuple(range(16, 48)))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("0-15,48-63;16-47", LOGIC2),
        (" 0 - 15 , 48-63 ; 16-47 ", LOGIC2),
        ("7", ((7,),)),
        ("3,1,2", ((3, 1, 2),)),
        ("5-5", ((5,),)),
        ("[[0,1],[2,3]]", ((0, 1), (2, 3))),
        (" [ [0, 1] ,\n [2, 3] ] ", ((0, 1), (2, 3))),
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{63}}", ((63,),)),
        ("{{0-3},{60-63}}", ((0, 1, 2, 3), (60, 61, 62, 63))),
        ("{}", (tuple(range(64)),)),
        (" { } ", (tuple(range(64)),)),
        ("007", ((7,),)),
    ],
)
def test_forms(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """Lists with inclusive ranges, nested JSON lists, and HLO braces, where `{}` is one group of all ranks."""
    assert parse_groups(text, ranks=64) == groups


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty, expected 0-15,48-63;16-47 or"),
        ("  ", "the text is empty"),
        ("0-3;", "group 1 is empty, expected at least one rank"),
        (";0-3", "group 0 is empty"),
        ("{{}}", "group 0 is empty"),
        ("[[0],[]]", "group 1 is empty"),
        ("[]", r"groups '\[\]': expected a list of lists of ranks"),
        ("[0,1]", "expected a list of lists of ranks"),
        ("{0,1}", "expected a list of lists of ranks"),
        ("[[0,1]", "expected a list of lists of ranks"),
        ("[[0],{1}]", "expected a list of lists of ranks"),
        ("[[[0]]]", "expected a list of lists of ranks"),
        ("[[0] [1]]", "expected a list of lists of ranks"),
        ("[[0],]", "expected a list of lists of ranks"),
        ("[" * 100_000, r"groups '\[{37}\.\.\.': expected"),
        ("0,,1", "'' in group 0: expected a rank or a range like 0-15"),
        ("0-", "'0-' in group 0: expected a rank or a range"),
        ("-1", "'-1' in group 0: expected a rank or a range"),
        ("1.0", "'1.0' in group 0"),
        ("[[true]]", "'true' in group 0"),
        ("1_0", "'1_0' in group 0"),
        ("١", "in group 0: expected a rank"),
        ("all", "'all' in group 0"),
        ("5-3", "range 5-3 in group 0 runs down, write 3-5"),
        ("64", "rank '64' is not on the machine: expected 0 to 63"),
        ("0-64", "rank '64' is not on the machine"),
        ("0-99999999999", "rank '99999999999' is not on the machine"),
        ("0-" + "9" * 100_000, "rank '9{37}\\.\\.\\.' is not on the machine"),
        ("0-3,2", "rank 2 is twice in group 0: name each rank once"),
        ("0-3;3-5", "rank 3 is in group 0 and in 1: name each rank once"),
        ("{{0,1},{1,2}}", "rank 1 is in group 0 and in 1"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    """Empty, malformed and overlapping groups, and ranks outside the machine, are refused in one sentence."""
    with pytest.raises(UsageError, match=message) as caught:
        parse_groups(text, ranks=64)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_format() -> None:
    """Groups print as ranges, in the order of their members."""
    assert format_groups(LOGIC2) == "0-15,48-63;16-47"
    assert format_ranks((3, 2, 1, 5, 6)) == "3,2,1,5-6"
