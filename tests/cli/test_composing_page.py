"""The tutorial tells the truth: its code is the example's, its commands print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rota.verify import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "composing.md").read_text()
EXAMPLE = (ROOT / "examples" / "my_algorithm.py").read_text()
BLOCKS = re.findall(r"```(console|python|py)\n(.*?)```", PAGE, re.DOTALL)
CONSOLE = [block for kind, block in BLOCKS if kind == "console"]
OF_OTHERS = {"buffer_limit", "semaphore_limit"}
"""Rules that nothing on the page can break: nobody told the verifier what there is."""


def run(command: str, directory: Path) -> str:
    """Return what a shell shows of a command, both streams as they come."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=directory,
        env=os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (command, ran.stdout)
    return ran.stdout


def pattern(shown: str) -> str:
    """Return what output matches: '...' is anything, predicted times and rates are any number."""
    text = re.sub(r" +\d+\.\d{2,3}(?= |$)", " <number>", shown, flags=re.MULTILINE)
    return re.escape(text).replace(re.escape("..."), ".*").replace(re.escape(" <number>"), r" +\d+\.\d{2,3}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with nothing but the examples, in which the commands run one after another."""
    directory = tmp_path_factory.mktemp("composing")
    (directory / "examples").symlink_to(ROOT / "examples")
    return directory


def test_every_command_prints_what_stands_below_it(place: Path) -> None:
    """Commands of the page run in order; their output is the page's, but for what it leaves out and for times."""
    for block in CONSOLE:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            printed = run(command, place)
            assert re.fullmatch(pattern(shown), printed, re.DOTALL), (command, shown, printed)


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    """Every Python block of the tutorial stands in the example as it is; together they are its functions."""
    blocks = [block for kind, block in BLOCKS if kind == "python"]
    assert all(block in EXAMPLE for block in blocks)
    body = EXAMPLE[EXAMPLE.index("def compose") :].splitlines()
    missing = [line for line in body if line and line not in "".join(blocks).splitlines()]
    assert missing == [
        "def write_all_gather(board: Board, source: Region, target: Region, size: int) -> None:",
        '    """Write the rows; every rank\'s shard of `size` bytes ends as shard k of `target` on all ranks."""',
        "    if ranks == 1:",
        "        return",
    ]


def test_the_page_names_every_finding_of_an_order() -> None:
    """Every rule that `rota verify` can find broken in one schedule is on the page."""
    program = set(list(RULES)[list(RULES).index("order_mismatch") :])
    assert [rule for rule in RULES if rule not in program | OF_OTHERS and f"**{rule}**" not in PAGE] == []


def test_bruck_wins_with_little_data_and_loses_with_much(place: Path) -> None:
    """The comparison of the page: rounds decide at 64K, cables at 4M."""
    times = {}
    for size in ("64K", "4M"):
        for name in ("RING", "examples/my_algorithm.py:compose"):
            lines = run(
                f"rota run all_gather --ranks 16 --size {size} --algorithm {name} 2>/dev/null", place
            ).splitlines()
            header, row = (line.removeprefix("#").split() for line in lines[-2:])
            times[size, name[:4]] = float(row[header.index("time(us)")])
    assert times["64K", "exam"] < times["64K", "RING"]
    assert times["4M", "exam"] > times["4M", "RING"]


def test_the_library_example_runs() -> None:
    """The last block of the page prints a schedule and a time."""
    (code,) = [block for kind, block in BLOCKS if kind == "py"]
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("schedule 1\nranks 16\n")
    assert int(ran.stdout.splitlines()[-1]) > 0
