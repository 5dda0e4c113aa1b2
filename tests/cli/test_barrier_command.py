"""`rota barrier`: tables of every rank, the merged device table or the collision, and a run on the device model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import Ran

from rota.barrier.guarantee import Early, Guarantee
from rota.cli.barrier import BARRIER_ABOUT, barrier, barrier_arguments
from rota.errors import UnsupportedError, UsageError
from rota.report import barrier as report

Rota = Callable[..., Ran]


@pytest.fixture
def rota(capsys: pytest.CaptureFixture[str]) -> Rota:
    """Run the command with these arguments; errors of rota pass through."""

    def run(*arguments: str) -> Ran:
        command = argparse.ArgumentParser()
        barrier_arguments(command)
        command.add_argument("--json", action="store_true")
        code = barrier(command.parse_args(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def document(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out)
    assert found.pop("schema") == 1
    return found


def test_both_tables_of_every_rank(rota: Rota) -> None:
    """Each rank has a send and a receive line for each entry: the peer, type, bit, group, and the peer's fields."""
    ran = rota("--platform", "trn2.48xlarge", "--groups", "0-3;16-19")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith("program 0 on trn2.48xlarge (LNC 2), nobody leaves before every rank on the receiving")
    assert lines[1:3] == ["  group 0: 0-3, strategy mesh", "  group 1: 16-19, strategy mesh"]
    rows = [line.split() for line in lines[4 : 4 + 8 * 6]]
    assert rows[0] == ["0", "send", "1", "INTRA_CHIP", "1", "0", "0", "0", "2", "0", "0"]
    assert [row[1] for row in rows[:6]] == ["send"] * 3 + ["recv"] * 3
    assert lines[52] == "device tables, receiving side of all programs"
    assert lines[54].split() == ["0", "INTRA_CHIP", "1", "128", "1"]
    assert len(lines) == 54 + 8 * 3


def test_columns_stand_under_their_headers(rota: Rota) -> None:
    """Numbers end where the header of their column ends."""
    lines = rota("--platform", "trn2u.48xlarge", "--nodes", "4", "--groups", "5,69,133,197").out.splitlines()
    header, row = lines[2], lines[3]
    ends = [header.index(name) + len(name) for name in ("rank", "peer", "bit", "group", "neuron_dev", "reservation")]
    assert all(row[end - 1] != " " and row[end : end + 1] in {"", " "} for end in ends)


def test_two_programs_that_collide(rota: Rota) -> None:
    """The collision takes the place of the device tables, with both peers, type and bit; the exit code is 1."""
    asked = ("--platform", "trn2.48xlarge", "--groups", "0-15", "--groups", "0,16,32,48")
    ran = rota(*asked, "--run")
    assert ran.code == 1
    last = ran.out.splitlines()[-1]
    assert last.startswith("collision: barrier: [nec_dev 0] rank 0 has two peers")
    assert "barrier type 4 (INTER_CHIP_RING_REMOTE), bit position 0" in last
    found = document(rota(*asked, "--json"))
    assert found["device_tables"] is None
    assert "peer0 rank 15" in found["collision"]
    assert found["runs"] == []
    assert len(found["programs"]) == 2


def test_two_programs_with_the_same_peers(rota: Rota) -> None:
    """The same peer under one key stands once."""
    one = document(rota("--groups", "0-15", "--json"))
    two = document(rota("--groups", "0-15", "--groups", "0-15", "--json"))
    assert one["device_tables"] == two["device_tables"]
    assert two["collision"] is None


def test_a_run_on_the_switch(rota: Rota) -> None:
    """Entry and exit of every rank are printed, and that nobody left before everybody had entered."""
    ran = rota("--platform", "trn3pds98-gen1", "--groups", "0-15", "--run", "--seed", "7")
    assert ran.code == 0
    lines = ran.out.splitlines()
    start = lines.index("program 0 on the device model, times in us")
    times = [[float(word) for word in line.split()] for line in lines[start + 2 : start + 18]]
    assert [int(row[0]) for row in times] == list(range(16))
    assert min(row[2] for row in times) >= max(row[1] for row in times)
    assert lines[start + 18] == "promised, held: nobody leaves before everybody of its group has entered"
    assert lines[start + 19].startswith("not promised, held: nobody leaves before every rank on the receiving side")


def test_a_run_elsewhere_says_what_it_is_not(rota: Rota) -> None:
    """Outside the switch the neighbours are promised; a rank that left while another was outside is named."""
    ran = rota("--run", "--seed", "1")
    assert ran.code == 0
    promise, other = ran.out.splitlines()[-2:]
    assert promise.startswith("promised, held: nobody leaves before every rank on the receiving side of its own table")
    assert other.startswith("not promised, broken: rank ")
    assert "was outside: nobody leaves before everybody" in other


def test_json_of_a_run(rota: Rota) -> None:
    """Times are whole picoseconds, guarantees have who broke them; the same seed gives the same document."""
    asked = ("--platform", "trn2.48xlarge", "--groups", "0-15", "--run", "--seed", "3", "--json")
    found = document(rota(*asked))
    assert found == document(rota(*asked))
    (ran,) = found["runs"]
    assert ran["ranks"] == list(range(16))
    assert all(one < two for one, two in zip(ran["entry_ps"], ran["exit_ps"], strict=True))
    assert [each["promised"] for each in ran["guarantees"]] == [True, False]
    assert ran["guarantees"][0]["held"]
    assert (ran["guarantees"][1]["early_rank"] is None) == ran["guarantees"][1]["held"]
    table = found["programs"][0]["tables"][0]
    assert table["send"][0] == {"peer": 15, "type": "INTER_CHIP_RING_LOCAL", "bit": 1, "group": 0}
    assert table["recv"][0] == {"peer": 15, "type": "INTER_CHIP_RING_REMOTE", "bit": 0, "group": 0}


def test_lnc_and_machines(rota: Rota) -> None:
    """At LNC 1 a chip has eight ranks, with seven peers each."""
    found = document(rota("--platform", "trn3pds98", "--lnc", "1", "--groups", "0-7", "--json"))
    assert [len(each["recv"]) for each in found["programs"][0]["tables"]] == [7] * 8
    assert found["programs"][0]["strategies"] == ["switch"]
    assert found["programs"][0]["lnc"] == 1


def test_all_ranks_are_the_default(rota: Rota) -> None:
    """Without groups the program is one group of all ranks; so says '{}'."""
    assert rota("--platform", "trn1.32xlarge").out == rota("--platform", "trn1.32xlarge", "--groups", "{}").out


def test_refusals(rota: Rota) -> None:
    """A group that the builder refuses, a negative seed and a rank that the machine has not are errors."""
    with pytest.raises(UnsupportedError, match="D1, status 2"):
        rota("--groups", "0-2")
    with pytest.raises(UnsupportedError, match="D2, status 2"):
        rota("--platform", "trn3pds98", "--groups", "0-6")
    with pytest.raises(UsageError, match="--seed -1: expected 0 or more"):
        rota("--seed", "-1")
    with pytest.raises(UsageError, match="rank 64 is not on"):
        rota("--groups", "0,64")


def test_a_broken_promise_is_exit_code_1(rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that left early is named, and the command fails."""
    from rota.barrier import guarantee

    monkeypatch.setattr(guarantee, "find_early", lambda *_: Early(0, 2, 3))
    ran = rota("--groups", "0-3", "--run")
    assert ran.code == 1
    assert "promised, broken: rank 2 left while rank 3 was outside: nobody leaves before every rank" in ran.out
    assert {each.value for each in Guarantee} == {line.split(": ")[-1] for line in ran.out.splitlines()[-2:]}


def test_the_help_has_examples() -> None:
    """The words of the command name what it prints, and its examples are commands of it."""
    assert BARRIER_ABOUT.count("rota barrier ") == 3
    assert BARRIER_ABOUT.splitlines()[0].startswith("Show the barrier tables of every rank")
    command = argparse.ArgumentParser()
    barrier_arguments(command)
    command.add_argument("--json", action="store_true")
    for line in BARRIER_ABOUT.splitlines():
        if line.startswith("  rota barrier "):
            command.parse_args(line.replace("'", "").split()[2:])
    assert report.__doc__
