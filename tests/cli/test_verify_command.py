"""`rota verify`: a collective, a program, the text of a schedule: what is proved, what is found, exit codes, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from rota.verify import RULES

Rota = Callable[..., Ran]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KEYS = {
    "kind", "groups", "bytes", "selected", "algorithm", "proved", "findings", "refused", "rows", "semaphores",
    "buffers", "source",
}  # fmt: skip


def test_a_collective_is_proved(rota: Rota) -> None:
    """One row says what was composed, its rows and semaphores, and that it is proved; JSON has the same."""
    asked = ("verify", "all_reduce", "--ranks", "16", "--size", "64K")
    ran = rota(*asked)
    assert (ran.code, ran.err) == (0, "")
    header, row = ran.out.splitlines()
    assert header.startswith("# ")
    document = json.loads(rota(*asked, "--json").out)
    (record,) = document.pop("collectives")
    assert document == {"schema": 1, "platform": "trn2.48xlarge", "nodes": 1, "lnc": 2, "program": []}
    assert set(record) == KEYS
    assert (record["proved"], record["findings"], record["refused"]) == (True, [], None)
    assert record["algorithm"] == record["selected"]
    assert row.split() == [
        "-", "all_reduce", "1x16", record["algorithm"], str(record["rows"]), str(record["semaphores"]), "yes",
    ]  # fmt: skip


def test_groups_that_get_different_algorithms_are_proved_apart(rota: Rota) -> None:
    """Every group size, and every part of it with an algorithm of its own, is a record."""
    ran = rota("verify", "all_reduce", "--groups", "0-15;16-19;20-23", "--size", "4K", "--json")
    records = json.loads(ran.out)["collectives"]
    assert ran.code == 0
    assert sorted(len(group) for record in records for group in record["groups"]) == [4, 4, 16]
    assert all(record["proved"] for record in records)


def test_a_program_is_proved_collective_by_collective_and_as_a_whole(rota: Rota) -> None:
    """Of a file every collective has a record with its line; its collectives together have no finding."""
    ran = rota("verify", str(EXAMPLES / "tensor_parallel.hlo"), "--json")
    document = json.loads(ran.out)
    assert (ran.code, len(document["collectives"]), document["program"]) == (0, 17, [])
    assert all(record["proved"] and record["source"]["line"] for record in document["collectives"])


def test_refusals(rota: Rota, tmp_path: Path) -> None:
    """A refused operation is exit 2 and one sentence; in a file it is a row, and exit 1 while others are proved."""
    ran = rota("verify", "all_reduce", "--platform", "trn1.32xlarge", "--ranks", "5")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    ran = rota("verify", "nowhere.sched")
    assert (ran.code, ran.out) == (2, "")
    assert "is no file" in ran.err
    hlo = (EXAMPLES / "data_parallel.hlo").read_text()
    (tmp_path / "m.hlo").write_text(hlo)
    ran = rota("verify", str(tmp_path / "m.hlo"), "--platform", "trn1.2xlarge")
    assert ran.code == 2, ran.out + ran.err


# --- the text of a schedule -------------------------------------------------------------------------------------------

HEAD = """\
# a comment
schedule 1
ranks 2
buffer input 8 user
buffer output 16 user
buffer slot 8
semaphore ready 0
semaphore done 0
semaphore credit 1
input input
output output
"""
SWAP = """\
0.0 0.0 post_recv !1.ready+1
1.0 0.0 post_recv !0.ready+1
0.0 0.1 send ?ready>=1-1 : 0.input+0 -> 1.output+0 8 !1.done+1
1.0 0.1 send ?ready>=1-1 : 1.input+0 -> 0.output+0 8 !0.done+1
0.0 0.2 direct_recv ?done>=1-1
1.0 0.2 direct_recv ?done>=1-1
"""


def without(text: str, *parts: str) -> str:
    for part in parts:
        assert part in text
        text = text.replace(part, "")
    return text


PLANTED = {
    "deadlock": SWAP.replace("0.0 0.0 post_recv !1.ready+1\n", "").replace(
        "0.0 0.2 direct_recv", "0.0 0.2 post_recv !1.ready+1\n0.0 0.3 direct_recv"
    ).replace("1.0 0.0 post_recv !0.ready+1\n", "").replace(
        "1.0 0.2 direct_recv", "1.0 0.2 post_recv !0.ready+1\n1.0 0.3 direct_recv"
    ),
    "race": SWAP.replace("0.0 0.2", "0.0 0.1 direct_copy : 0.output+0 -> 0.output+8 8\n0.0 0.2"),
    "not_entered": without(SWAP, "0.0 0.0 post_recv !1.ready+1\n", "1.0 0.0 post_recv !0.ready+1\n", " ?ready>=1-1"),
    "not_finished": without(
        SWAP, " !1.done+1", " !0.done+1", "0.0 0.2 direct_recv ?done>=1-1\n", "1.0 0.2 direct_recv ?done>=1-1\n"
    ),
    "wait_count": without(SWAP, " !1.done+1").replace("0.output+0 8", "0.output+0 8 !0.done+1"),
    "unbalanced": SWAP + "0.0 0.3 post_send !1.credit+1\n",
    "never_read": SWAP.replace("0.0 0.2", "0.0 0.1 direct_copy : 0.input+0 -> 0.slot+0 8\n0.0 0.2"),
}  # fmt: skip


def test_the_text_of_a_schedule_is_proved(rota: Rota, tmp_path: Path) -> None:
    """The order of a schedule's text is proved without a collective; the talk says that its data is not."""
    (tmp_path / "swap.sched").write_text(HEAD + SWAP)
    ran = rota("verify", str(tmp_path / "swap.sched"))
    assert (ran.code, ran.out) == (0, f"{tmp_path}/swap.sched: 6 rows, all executions end alike\n")
    assert ran.err == "rota: a schedule's text says no collective, so only its order is proved\n"
    document = json.loads(rota("verify", str(tmp_path / "swap.sched"), "--json").out)
    assert document == {
        "schema": 1, "file": f"{tmp_path}/swap.sched", "rows": 6, "proved": True, "findings": [],
    }  # fmt: skip


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_mistake_is_exit_1_and_its_finding(rota: Rota, tmp_path: Path, rule: str) -> None:
    """A schedule with a deadlock, a race, ... is exit 1; the finding has its rule, its sentence and its rows."""
    assert rule in RULES
    path = tmp_path / "planted.sched"
    path.write_text(HEAD + PLANTED[rule])
    ran = rota("verify", str(path))
    assert ran.code == 1
    assert any(line.startswith(f"{rule}: ") for line in ran.out.splitlines()), ran.out
    ran = rota("verify", str(path), "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["proved"]) == (1, False)
    assert rule in [finding["rule"] for finding in document["findings"]]
    assert all(set(finding) == {"rule", "text", "rows"} for finding in document["findings"])


def test_the_deadlock_of_a_ring_with_one_slot(rota: Rota) -> None:
    """The cycle of the one-slot ring is the message."""
    ran = rota("verify", str(ROOT / "tests" / "text" / "ring_one_slot.sched"))
    assert ran.code == 1
    assert ran.out.startswith("deadlock: row ")
    assert "which waits for" in ran.out


def test_text_that_is_no_schedule(rota: Rota, tmp_path: Path) -> None:
    """A place outside its buffer is a finding (exit 1); a line that means nothing, and bytes, are a bad file (2)."""
    path = tmp_path / "bad.sched"
    path.write_text(HEAD + SWAP.replace("1.output+0 8", "1.output+9 8"))
    ran = rota("verify", str(path))
    assert (ran.code, ran.out.startswith("form: row 2 (rank 0")) == (1, True)
    document = json.loads(rota("verify", str(path), "--json").out)
    assert (document["rows"], document["proved"], document["findings"][0]["rule"]) == (None, False, "form")
    for data, message in (
        (
            (HEAD + "0.0 0.0 juggle\n").encode(),
            f"{path}: line 12: expected a known leaf and operation, got '0.0 0.0 juggle'",
        ),
        (b"schedule 2\n", f"{path}: line 1: expected 'schedule 1', got 'schedule 2'"),
        (HEAD.encode() + b"\xff\xfe\n", "is no text"),
    ):
        path.write_bytes(data)
        ran = rota("verify", str(path))
        assert (ran.code, ran.out) == (2, ""), data
        assert message in ran.err
        assert ran.err.count("\n") == 1


def test_options_of_a_collective_do_not_go_with_a_text(rota: Rota, tmp_path: Path) -> None:
    """A text says its own ranks and sizes; an option that would say something of a collective is refused."""
    (tmp_path / "swap.sched").write_text(HEAD + SWAP)
    for flag, value in (("--algorithm", "RING"), ("--ranks", "2"), ("--size", "4K"), ("--counts", "1,2")):
        ran = rota("verify", str(tmp_path / "swap.sched"), flag, value)
        assert (ran.code, ran.out) == (2, "")
        assert flag in ran.err


# --- an algorithm that is wrong ---------------------------------------------------------------------------------------


def test_findings_of_an_algorithm_stand_under_its_row(rota: Rota, tmp_path: Path) -> None:
    """All findings are listed with their rule; JSON has them as data."""
    text = (EXAMPLES / "my_algorithm.py").read_text()
    for old, new, rule in (
        ("fence=b == 0,", "", "race"),
        ("waits = [Wait(ready[b])]", "waits = []", "form"),
        ("min(2**b, ranks - 2**b)", "max(1, 2**b - 1)", "data"),
    ):
        assert text.count(old) == 1
        (tmp_path / "mistake.py").write_text(text.replace(old, new))
        asked = (
            "verify",
            "all_gather",
            "--ranks",
            "16",
            "--size",
            "64K",
            "--algorithm",
            f"{tmp_path}/mistake.py:compose",
        )
        ran = rota(*asked)
        lines = ran.out.splitlines()
        assert (ran.code, lines[1].split()[-1]) == (1, "NO")
        assert all(line.startswith(f"        {rule}: ") for line in lines[2:])
        (record,) = json.loads(rota(*asked, "--json").out)["collectives"]
        assert record["proved"] is False
        assert [finding["rule"] for finding in record["findings"]] == [rule] * (len(lines) - 2)
        assert record["algorithm"] == "mistake.py:compose"
