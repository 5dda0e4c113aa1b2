"""The C library is there where a compiler is, says which it is, and can be gone without."""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import TWINS_ONLY

import rota
from rota.native import library
from rota.native.library import LEVELS, describe, kernels, without_kernels


def test_a_compiler_means_kernels() -> None:
    """Where there is a C compiler the extension was built and loads: an optional part must not get lost unseen."""
    if TWINS_ONLY:
        assert kernels() is None
    elif shutil.which("cc") or shutil.which("gcc"):
        assert kernels() is not None, "install again; `pip install -v -e .` shows what the compiler says"


def test_going_without_kernels_ends_with_the_block() -> None:
    """`without_kernels` holds inside its block, nests, and the library is back after it."""
    before = kernels() is None
    with without_kernels():
        assert kernels() is None
        with without_kernels():
            assert kernels() is None
        assert kernels() is None
    assert (kernels() is None) == before


def test_the_description_names_what_is_in_use() -> None:
    """One line: the level of instructions, or that there are none."""
    found = kernels()
    level = "none, numpy does all arithmetic" if found is None else LEVELS[found.rota_level()]
    assert describe() == f"native kernels: {level}"
    with without_kernels():
        assert describe() == "native kernels: none, numpy does all arithmetic"


def test_the_version_says_it_without_numpy() -> None:
    """`rota --version` has a second line, and loads no numpy for it."""
    code = "import sys; from rota.cli import main; main(['--version']); print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, numpy = ran.stdout.splitlines()
    assert first.startswith("rota 0.")
    assert second.startswith("native kernels: ")
    assert numpy == "False"


def test_all_modules_can_be_imported() -> None:
    """The library is no Python module, and nothing that walks the package takes it for one."""
    names = {module.name for module in pkgutil.walk_packages(rota.__path__, "rota.")}
    assert "rota.native.library" in names
    assert not any("built" in name or name.endswith("kernels") for name in names)


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path) -> None:
    """A library of another machine, or of another source, means numpy, not a crash."""
    broken = tmp_path / "kernels.abi3.so"
    broken.write_bytes(b"not a library")
    assert library._opened(broken) is None
