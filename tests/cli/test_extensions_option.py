"""`--extensions` and the options of single operations: `--counts`, `--root`, `--scale`, `--in-place`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

Rota = Callable[..., Ran]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    "arguments",
    [
        ("broadcast", "--ranks", "16", "--root", "3"),
        ("reduce", "--ranks", "16", "--root", "15"),
        ("permute_reduce", "--pairs", "0>1,1>2,2>3,3>0"),
        ("all_gather", "--ranks", "4", "--counts", "1,2,3,4"),
    ],
)
def test_an_extension_runs_when_asked_for(rota: Rota, arguments: tuple[str, ...]) -> None:
    """Without the option it is refused as the runtime does; with it, it is proved, run and reported as EXTENSION."""
    size = () if "--counts" in arguments else ("--size", "4K")
    for command in ("run", "verify"):
        ran = rota(command, *arguments, *size)
        assert (ran.code, ran.out) == (2, "")
        assert "not supported operation" in ran.err
        assert "--extensions" in ran.err
        assert ran.err.count("\n") == 1
    ran = rota("run", *arguments, *size, "--extensions", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert ran.code == 0, ran.err
    assert (row["algorithm"], row["verified"], row["device_matches"]) == ("EXTENSION", True, True)
    assert "the runtime takes" not in ran.err, "it takes nothing"
    assert rota("verify", *arguments, *size, "--extensions").code == 0


def test_the_option_leaves_the_others_alone(rota: Rota) -> None:
    """What the runtime does is done as without the option."""
    asked = ("run", "all_reduce", "--ranks", "4", "--size", "4K", "--json")
    assert rota(*asked, "--extensions").out == rota(*asked).out


def test_an_extension_has_no_word(rota: Rota, tmp_path: Path) -> None:
    """`rota lower` writes its images, which run; there is no instruction word that asks for it."""
    for arguments in (("broadcast", "--ranks", "16"), ("all_gather", "--ranks", "4", "--counts", "1,2,3,4")):
        ran = rota("lower", *arguments, "--extensions", "-o", str(tmp_path / "out"))
        assert ran.code == 0, ran.err
        assert (tmp_path / "out" / "words.bin").read_bytes() == b""
        assert rota("run", str(tmp_path / "out")).code == 0


def test_all_to_all_v_moves_what_is_asked(rota: Rota) -> None:
    """`--counts` says the elements of each sender's pieces; zero is none."""
    ran = rota("run", "all_to_all_v", "--ranks", "4", "--counts", "1,2,3,4;0,0,0,0;5,0,0,5;2,2,2,2", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert (ran.code, row["verified"], row["max_ulp"]) == (0, True, 0)


@pytest.mark.parametrize("scale", ["0.5", "1,2,3,4"])
def test_fma_takes_one_scale_or_one_a_rank(rota: Rota, scale: str) -> None:
    """A scaled sum runs with one scale for all ranks, and with one for each."""
    ran = rota("run", "all_reduce", "--ranks", "4", "--size", "4K", "--op", "fma", "--scale", scale, "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert (ran.code, row["op"], row["verified"]) == (0, "fma", True), ran.err


def test_in_place_is_for_all_reduce(rota: Rota) -> None:
    """An all-reduce may leave its result in its input; an all-gather may not."""
    assert rota("run", "all_reduce", "--ranks", "4", "--size", "4K", "--in-place").code == 0
    ran = rota("run", "all_gather", "--ranks", "4", "--size", "4K", "--in-place")
    assert (ran.code, ran.out) == (2, "")
    assert "in place" in ran.err or "in-place" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_gather", "--root", "1"), ("--root", "all_gather has no root")),
        (("broadcast", "--extensions", "--ranks", "4", "--root", "4"), ("root", "4")),
        (("broadcast", "--extensions", "--ranks", "4", "--root", "-1"), ("root", "-1")),
        (("all_reduce", "--op", "fma"), ("--op fma", "--scale")),
        (("all_reduce", "--scale", "2"), ("--scale", "--op fma", "sum")),
        (("all_gather", "--scale", "2"), ("--scale", "all_gather")),
        (("all_reduce", "--ranks", "4", "--op", "fma", "--scale", "1,2"), ("2", "4 ranks")),
        (("all_reduce", "--op", "fma", "--scale", "1,x"), ("1,x", "numbers with commas")),
        (("all_reduce", "--op", "fma", "--scale", "nan"), ("nan",)),
        (("all_reduce", "--counts", "1,2"), ("--counts", "all_reduce")),
        (("all_to_all_v", "--ranks", "2", "--counts", "1,2"), ("2",)),
        (("all_to_all_v", "--ranks", "2", "--counts", "1,2;3"), ("2",)),
        (("all_to_all_v", "--ranks", "2", "--counts", "1,2;3,-4"), ("-4",)),
        (("all_to_all_v", "--ranks", "2", "--counts", "a"), ("--counts a", "rows of numbers")),
        (("all_gather", "--ranks", "2", "--counts", "1,2", "--size", "4K"), ("--counts and --size",)),
        ((str(EXAMPLES / "data_parallel.hlo"), "--root", "1"), ("--root", "operation name")),
        ((str(EXAMPLES / "data_parallel.hlo"), "--scale", "1"), ("--scale", "operation name")),
    ],
)
def test_options_that_do_not_go_together(rota: Rota, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    """An option that the operation has no use for, or that makes no sense, is one sentence and exit code 2."""
    ran = rota("run", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert all(word in ran.err for word in words), ran.err
