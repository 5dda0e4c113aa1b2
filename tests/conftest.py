"""Settings of all tests: no deadlines, since a machine under load is no defect; the same examples every time in CI.

With ROTA_WITHOUT_NATIVE=1 everything that runs in this process does its arithmetic in numpy.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import settings

from rota.native.library import without_kernels

TWINS_ONLY: Final = os.environ.get("ROTA_WITHOUT_NATIVE", "0") not in ("", "0")

settings.register_profile("explore", deadline=None)
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.load_profile("repeat" if os.environ.get("CI") else "explore")


def pytest_configure(config: pytest.Config) -> None:
    """Go without kernels from before the first test is collected to the end."""
    if TWINS_ONLY:
        block = without_kernels()
        block.__enter__()
        config.add_cleanup(lambda: block.__exit__(None, None, None))
