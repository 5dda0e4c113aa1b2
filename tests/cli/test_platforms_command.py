"""`rota platforms`: the list of machines, one of them in full, and machine files of users."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from rota.machine.platform import known_platforms

Rota = Callable[..., Ran]
NAMES = {
    "inf2.24xlarge", "inf2.48xlarge", "trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge", "trn2.3xlarge",
    "trn2.48xlarge", "trn2u.48xlarge", "trn3pds98", "trn3pds98-gen1",
}  # fmt: skip


def test_the_list(rota: Rota) -> None:
    """Every machine is a line, with as many fields as the header has, up to the words of its topology."""
    ran = rota("platforms")
    header, *rows = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert header.startswith("# name")
    assert {row.split()[0] for row in rows} == NAMES == set(known_platforms())
    assert {row.split()[4] for row in rows if "trn2.48" in row} == {"64"}
    document = json.loads(rota("platforms", "--json").out)
    assert document["schema"] == 1
    assert {each["name"] for each in document["platforms"]} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_one_machine(rota: Rota, name: str) -> None:
    """A machine is shown with its chips, a drawing, its parameters; sources only when asked; JSON holds the same."""
    text = rota("platforms", name)
    assert (text.code, text.err) == (0, "")
    assert text.out.startswith(f"{name}: family ")
    assert "# parameter" in text.out
    assert "[" in text.out, "a drawing"
    assert "§" not in text.out
    assert "§" in rota("platforms", name, "--sources").out
    document = json.loads(rota("platforms", name, "--json").out)
    assert (document["schema"], document["name"]) == (1, name)
    assert all(each["source"] for each in document["parameters"].values())


def test_open_readings_are_printed(rota: Rota) -> None:
    """Where the sources are open, the machine says which reading it uses, and the others."""
    document = json.loads(rota("platforms", "trn3pds98", "--json").out)
    assert document["readings"]
    out = rota("platforms", "trn3pds98").out
    for reading in document["readings"]:
        assert reading["name"] in out
        assert reading["used"] in out
        assert all(other in out for other in reading["others"])


def test_nodes_and_lnc(rota: Rota) -> None:
    """--nodes and --lnc show the machine so; four trn2u are one UltraServer."""
    document = json.loads(rota("platforms", "trn2u.48xlarge", "--nodes", "4", "--lnc", "1", "--json").out)
    assert (document["nodes"], document["lnc"], document["ranks"], document["pod_nodes"]) == (4, 1, 512, 4)
    document = json.loads(
        rota("platforms", "trn2u.48xlarge", "--nodes", "4", "--set", "ULTRASERVER_MODE=4", "--json").out
    )
    assert document["pod_nodes"] == 1


def test_a_users_own_file(rota: Rota, tmp_path: Path) -> None:
    """A path is a machine, too, in every command; what is wrong with it is one sentence that names file and key."""
    text = resources.files("rota.machine").joinpath("platforms", "trn1.32xlarge.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('"trn1.32xlarge"', '"mine"'))
    assert rota("platforms", str(path)).out.startswith("mine: family TRN1")
    assert rota("check", "--platform", str(path), "--ranks", "8").code == 0
    ran = rota("run", "allr", "--platform", str(path), "--ranks", "8", "--size", "4K", "--algorithm", "RING", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert row["device_matches"]
    path.write_text(text.replace("rows", "rowz"))
    ran = rota("platforms", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert str(path) in ran.err
    assert "row" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trn2.48xl"], ["trn2.48xl", "trn2.48xlarge"]),
        (["./missing.toml"], ["missing.toml"]),
        (["--nodes", "2"], ["--nodes", "NAME"]),
        (["trn1.2xlarge", "--nodes", "2"], ["no EFA"]),
        (["inf2.48xlarge", "--lnc", "2"], ["LNC 2"]),
    ],
)
def test_refused_with_one_sentence(rota: Rota, arguments: list[str], words: list[str]) -> None:
    """A machine that is not there, or not so, gets one sentence and exit code 2."""
    ran = rota("platforms", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert all(word in ran.err for word in words), ran.err
