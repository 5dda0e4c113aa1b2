"""Running the command line inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from rota.cli import main


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def rota(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `rota` with these arguments."""

    def run(*arguments: str) -> Ran:
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
