"""The public names of the package: `import rota` is free, and each name is what it is where it lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rota

SOURCE = ast.parse(Path(rota.__file__).read_text())


def typed() -> dict[str, str]:
    """Return the names that the type checker is told, with the modules they are said to live in."""
    (guarded,) = [node for node in SOURCE.body if isinstance(node, ast.If)]
    return {
        alias.name: str(node.module)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_importing_rota_loads_nothing() -> None:
    """`import rota` loads no other module of rota, and no numpy; a name loads what it needs."""
    code = "import sys, rota; print(sorted(n for n in sys.modules if n.startswith(('rota.', 'numpy', 'ml_dtypes'))))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    code = "import sys; from rota import UsageError; print('numpy' in sys.modules, UsageError.__name__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False UsageError\n"


@pytest.mark.parametrize("name", rota.__all__)
def test_a_public_name_is_what_it_is_at_home(name: str) -> None:
    """What the type checker is told of a name is what the package gives."""
    home = typed()[name]
    module = __import__(home, fromlist=[name])
    assert getattr(rota, name) is getattr(module, name)


def test_what_is_typed_is_what_is_public() -> None:
    """The names for the type checker, `__all__` and `dir` are the same, and in order."""
    assert sorted(typed()) == sorted(rota.__all__) == rota.__all__
    assert set(rota.__all__) <= set(dir(rota))


@pytest.mark.parametrize("name", ["select", "compose", "verify"])
def test_packages_stay_packages(name: str) -> None:
    """A name that is a package is the package, whatever was imported before."""
    code = f"import rota; print(rota.{name}.__name__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"rota.{name}\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name the package has not is refused as any module does."""
    with pytest.raises(AttributeError, match="module 'rota' has no attribute 'nothing'"):
        _ = rota.nothing  # type: ignore[attr-defined]
