"""The README tells the truth: its commands run, and CI takes its line from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", README, re.DOTALL)
SHELL = [line for kind, block in BLOCKS if kind == "sh" for line in block.strip().splitlines()]
SETUP = [line for line in SHELL if line.startswith("python3 -m venv")]
COMMANDS = [line for line in SHELL if line not in SETUP]


def test_two_commands_are_all_the_set_up() -> None:
    """One line installs and runs the main job, one installs and passes the tests."""
    assert len(SETUP) == 2
    assert SETUP[0].endswith(".venv/bin/rota run examples/data_parallel.hlo")
    assert SETUP[1].endswith(".venv/bin/python -m tests.check")
    assert all(line.startswith("rota ") for line in COMMANDS)


def test_ci_takes_its_line_from_the_readme(tmp_path: Path) -> None:
    """`.ci/run` runs exactly the line of the README that runs the tests."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (tmp_path / "README.md").write_text(README.replace(SETUP[1], "echo ran # python -m tests.check"))
    ran = subprocess.run(["bash", str(tmp_path / ".ci" / "run")], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["+ echo ran # python -m tests.check", "ran"]
    found = subprocess.run(
        ["grep", "-m1", r"tests\.check$", "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == SETUP[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with nothing but the examples, in which the commands run one after another."""
    directory = tmp_path_factory.mktemp("readme")
    (directory / "examples").symlink_to(ROOT / "examples")
    return directory


def test_every_command_runs(place: Path) -> None:
    """Every other command of the README succeeds, in order, in a shell that finds `rota`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in COMMANDS:
        command = ["bash", "-euo", "pipefail", "-c", line]
        ran = subprocess.run(
            command, cwd=place, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (line, ran.stderr)
    assert (place / "again.bin").read_bytes() == (place / "out" / "words.bin").read_bytes()


def test_the_library_example_runs() -> None:
    """The Python block of the README prints a schedule."""
    (code,) = [block for kind, block in BLOCKS if kind == "python"]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("schedule 1\nranks 4\n")
