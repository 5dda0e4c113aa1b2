"""What answering costs: commands that compute nothing on arrays start without numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import contextlib, io, sys
from rota.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
print(code, sorted(name for name in ("numpy", "ml_dtypes") if name in sys.modules))
"""
HLO = Path(__file__).resolve().parents[2] / "examples" / "data_parallel.hlo"


@pytest.mark.parametrize(
    "command",
    [
        "explain all_reduce --ranks 64 --size 1M",
        "explain all_gather --platform trn3pds98 --json",
        "explain all_reduce --nodes 4 --sweep 1K:1G",
        f"explain {HLO}",
        "check --groups 0-15;16-31",
        "check permute --pairs 0>1,1>0",
        f"check {HLO}",
        "platforms",
        "platforms trn2u.48xlarge --nodes 4",
    ],
)
def test_an_answer_loads_no_numpy(command: str) -> None:
    """explain, check and platforms import no array library, not for a program either."""
    ran = subprocess.run([sys.executable, "-c", PROBE, *command.split()], capture_output=True, text=True, check=True)
    assert ran.stdout == "0 []\n"
