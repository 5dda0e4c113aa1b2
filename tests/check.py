"""Everything a change must pass: format, lint, types, import layers, tests. `python -m tests.check`"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
STEPS = (
    ("format", [TOOLS / "ruff", "format", "--check", "."]),
    ("lint", [TOOLS / "ruff", "check", "."]),
    ("types", [TOOLS / "mypy"]),
    ("import layers", [TOOLS / "lint-imports"]),
    ("tests", [sys.executable, "-m", "pytest", "-n", str(min(os.cpu_count() or 1, 4))]),
)


def main() -> int:
    """Run the steps in order and stop at the first that fails."""
    for name, command in STEPS:
        print(f"== {name}", flush=True)
        code = subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode
        if code:
            print(f"{name} failed with exit code {code}")
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
