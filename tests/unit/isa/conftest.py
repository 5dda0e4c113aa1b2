"""What the tests of the vocabulary share: reading a golden file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def golden() -> Callable[[str], bytes]:
    """Return a function from the name of a golden file to its bytes, comments left out."""

    def read(name: str) -> bytes:
        lines = (GOLDEN / name).read_text().splitlines()
        return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))

    return read
