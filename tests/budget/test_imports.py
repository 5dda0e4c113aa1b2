"""What starting costs: modules that a command must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys
from rota.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print("loaded:", sorted(name for name in ("numpy", "ml_dtypes", "rota.isa", "rota.device") if name in sys.modules))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["explain", "--help"], ["disasm", "--help"]])
def test_help_loads_no_numpy(arguments: list[str]) -> None:
    """Help imports neither numpy nor anything that computes."""
    code = PROBE.format(arguments=arguments)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "loaded: []"
