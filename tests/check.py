"""Everything a change must pass: format, lint, types, import layers, tests. `python -m tests.check`"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
PYTEST = [sys.executable, "-m", "pytest", "-n", str(min(os.cpu_count() or 1, 4))]
STEPS = (
    ("format", [TOOLS / "ruff", "format", "--check", "."]),
    ("lint", [TOOLS / "ruff", "check", "."]),
    ("types", [TOOLS / "mypy"]),
    ("import layers", [TOOLS / "lint-imports"]),
    ("tests", PYTEST),
)
# What computes on elements, once more in numpy alone.
ON_ELEMENTS = (
    "tests/unit/native",
    "tests/unit/device/test_running.py",
    "tests/unit/execute",
    "tests/property/test_mesh_laws.py",
)


def main() -> int:
    """Run the steps in order and stop at the first that fails."""
    without_native = {**os.environ, "ROTA_WITHOUT_NATIVE": "1"}
    steps = [
        *((*step, None) for step in STEPS),
        ("tests without native kernels", [*PYTEST, *ON_ELEMENTS], without_native),
    ]
    for name, command, environment in steps:
        print(f"== {name}", flush=True)
        code = subprocess.run([str(part) for part in command], cwd=ROOT, check=False, env=environment).returncode
        if code:
            print(f"{name} failed with exit code {code}")
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
