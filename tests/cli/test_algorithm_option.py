"""`--algorithm`: one of ours by name, or a function of the user's in a file of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

Rota = Callable[..., Ran]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "my_algorithm.py"
ASKED = ("all_gather", "--ranks", "16", "--size", "64K")


def test_a_users_algorithm_is_proved_run_and_timed(rota: Rota) -> None:
    """A function in a file gets everything: proof, execution, golden, time, and its bytes run on the device model."""
    ran = rota("run", *ASKED, "--algorithm", f"{EXAMPLE}:compose", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert ran.code == 0
    assert (row["algorithm"], row["selected"]) == ("my_algorithm.py:compose", "MESH")
    assert (row["verified"], row["max_ulp"], row["ranks_identical"]) == (True, 0, True)
    assert (row["device_matches"], row["not_on_device"]) == (True, None)
    assert ran.err.splitlines() == ["rota: the runtime takes MESH (1 row); composed is my_algorithm.py:compose"]
    (ring,) = json.loads(rota("run", *ASKED, "--algorithm", "RING", "--json").out)["collectives"]
    assert row["time_us"] < ring["time_us"], "log2 N rounds against N - 1, at a size where latency decides"


@pytest.mark.parametrize("groups", ["0", "0-1", "0-3;4-7", "0-63", "0-15;16-31,32-47"])
def test_the_example_does_groups_of_any_size(rota: Rota, groups: str) -> None:
    """The example composes groups of 1 to 64 ranks, several at once, of several sizes."""
    ran = rota("verify", "all_gather", "--groups", groups, "--size", "64K", "--algorithm", f"{EXAMPLE}:compose")
    assert ran.code == 0, ran.out + ran.err


def test_a_long_name_keeps_the_columns_in_line(rota: Rota) -> None:
    """The column of the algorithm is as wide as its longest name, under its header."""
    for command in ("run", "verify"):
        lines = rota(command, *ASKED, "--algorithm", f"{EXAMPLE}:compose").out.splitlines()
        header, row = lines[-2:]
        assert header.index("algorithm") + len("algorithm") == row.index("my_algorithm.py:compose") + 23
        assert len(header) == len(row)


@pytest.mark.parametrize(("name", "called"), [("RING", "RING"), ("mesh", "MESH"), ("inter-rdh", "INTER_RDH")])
def test_one_of_ours_by_name(rota: Rota, name: str, called: str) -> None:
    """Names are those of the reports, in either case; it is composed whatever the runtime takes."""
    ran = rota("run", "all_reduce", "--ranks", "16", "--size", "64K", "--algorithm", name, "--json")
    if called == "INTER_RDH":
        assert (ran.code, "INTER_RDH" in ran.err) == (2, True), "one node has no inter-node algorithm"
        return
    (row,) = json.loads(ran.out)["collectives"]
    assert (ran.code, row["algorithm"], row["verified"]) == (0, called, True)
    assert row["device_matches"] is True
    assert "the runtime takes" not in ran.err


FILES = {
    "syntax.py": "def compose(plan:\n    pass\n",
    "loads.py": "import json\njson.loads('{')\n",
    "exits.py": "raise SystemExit('bye')\n",
    "other.py": "def ring(plan):\n    return None\n",
    "empty.py": "",
    "raises.py": "def compose(plan):\n    return plan + 1\n",
    "asserts.py": "def compose(plan):\n    assert plan is None, 'no\\nplan'\n",
    "nothing.py": "def compose(plan):\n    pass\n",
    "refuses.py": "import rota\ndef compose(plan):\n    raise rota.UnsupportedError('only on Tuesdays')\n",
    "ranks.py": "import rota\ndef compose(plan):\n    board = rota.Board.of(plan.request)\n"
    "    board.rows(rota.Leaf.SEND, [1, 2, 3], signals=[rota.Signal(board.position, 0)])\n",
}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.py:compose", "--algorithm {}/missing.py:compose: there is no file"),
        (".:compose", "there is no file"),
        ("syntax.py:compose", "--algorithm {}/syntax.py: line 1: '(' was never closed"),
        ("loads.py:compose", "loads.py raised JSONDecodeError: Expecting property name"),
        ("exits.py:compose", "exits.py raised SystemExit: bye (line 1)"),
        ("other.py:compose", "other.py:compose: the file has no function of this name; it has ring"),
        ("empty.py:compose", "the file has no function of this name; it has none"),
        ("other.py:", "the file has no function of this name; it has ring"),
        ("other.py", "name the function, too: {}/other.py:function"),
        ("raises.py:compose", "raises.py:compose raised TypeError: unsupported operand type(s)"),
        ("asserts.py:compose", "asserts.py:compose raised AssertionError: no plan (line 2)"),
        ("nothing.py:compose", "nothing.py:compose returned NoneType, expected a Schedule; end it with `return"),
        ("refuses.py:compose", "rota: only on Tuesdays"),
        ("ranks.py:compose", "ranks.py:compose raised ValueError: shape mismatch"),
    ],
)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_bad_files_are_refused_in_one_sentence(
    rota: Rota, tmp_path: Path, command: str, source: str, message: str
) -> None:
    """What a user's file does wrong is one sentence with the place, exit code 2; a traceback never appears."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ran = rota(command, *ASKED, "--algorithm", f"{tmp_path}/{source}")
    assert (ran.code, ran.out) == (2, "")
    assert message.format(tmp_path) in ran.err
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", ["NONE", "INVALID", "", "compose"])
def test_unknown_names_are_refused_with_the_known(rota: Rota, name: str) -> None:
    """A name that is none of ours is refused; those of ours, and the form of a file, are named."""
    ran = rota("run", *ASKED, "--algorithm", name)
    assert (ran.code, ran.out) == (2, "")
    assert all(word in ran.err for word in ("RING", "KANGARING", "file.py:function"))


def planted(directory: Path, *changes: tuple[str, str]) -> str:
    """Write the example with a mistake, and return what `--algorithm` takes."""
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (directory / "mistake.py").write_text(text)
    return f"{directory}/mistake.py:compose"


def test_a_wrong_schedule_is_exit_1(rota: Rota, tmp_path: Path) -> None:
    """A user's schedule that races does not run: its first finding, how many more there are, exit code 1."""
    source = planted(tmp_path, ("fence=b == 0,", ""))
    ran = rota("run", *ASKED, "--algorithm", source)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("rota: order: row 0 (rank 0 channel 0")
    assert "nothing orders the two (and 7 more; `rota verify` lists them)" in ran.err
    assert ran.err.count("\n") == 1


def test_no_verify_says_so(rota: Rota, tmp_path: Path) -> None:
    """Without a proof the race runs in the one order it is stored in; the output says that nothing was proved."""
    source = planted(tmp_path, ("fence=b == 0,", ""))
    ran = rota("run", *ASKED, "--algorithm", source, "--no-verify", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert (ran.code, row["verified"]) == (0, False)
    assert "rota: --no-verify: nothing was proved" in ran.err.splitlines()
    ran = rota("run", *ASKED, "--no-verify")
    assert " NO " in ran.out
    assert "rota: --no-verify: nothing was proved" in ran.err.splitlines()


LATE = """
from rota import Board, Checks, Leaf, Region, Signal, Wait

def compose(plan):
    board = Board.of(plan.request)
    me, share = board.position, plan.request.share
    ready, done = board.semaphore("ready"), board.semaphore("done")
    out, own = Region(board.output, stride=share), Region(board.input)
    board.rows(Leaf.DIRECT_RECV, me, queue=1, waits=[Wait(done)])
    board.rows(Leaf.DIRECT_COPY, me, size=share, reads=[own.at()], writes=[out.at(me)])
    board.rows(Leaf.SEND, me, size=share, reads=[own.at()], writes=[out.at(me, rank=1 - me)], waits=[Wait(ready)],
               signals=[Signal(1 - me, done)])
    board.rows(Leaf.POST_RECV, me, queue=2, signals=[Signal(1 - me, ready)])
    return board.schedule(checks=Checks.FORM)
"""


def test_rows_may_be_written_in_any_order(rota: Rota, tmp_path: Path) -> None:
    """With Checks.FORM the rows are put into an order of execution before they run; a cycle is said as such."""
    (tmp_path / "late.py").write_text(LATE)
    ran = rota("run", "all_gather", "--ranks", "2", "--size", "1K", "--algorithm", f"{tmp_path}/late.py:compose")
    assert ran.code == 0, ran.err
    (tmp_path / "late.py").write_text(LATE.replace("queue=2", "queue=0"))
    ran = rota("verify", "all_gather", "--ranks", "2", "--size", "1K", "--algorithm", f"{tmp_path}/late.py:compose")
    assert ran.code == 1
    assert "deadlock: row " in ran.out
    assert "a cycle of 2 queues" in ran.out


def test_lower_takes_what_is_emitted(rota: Rota, tmp_path: Path) -> None:
    """`rota lower` writes what is composed, a user's algorithm as well, and `rota run` runs it from there."""
    for name, called in ((f"{EXAMPLE}:compose", "my_algorithm.py:compose"), ("MESH", "MESH"), ("RING", "RING")):
        ran = rota("lower", *ASKED, "--algorithm", name, "-o", str(tmp_path / "out"), "--json")
        document = json.loads(ran.out)
        (entry,) = document["collectives"]
        assert (ran.code, entry["algorithm"], document["images"]) == (0, called, 16)
        assert rota("run", str(tmp_path / "out")).code == 0
