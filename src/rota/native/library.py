"""The C library of the element kernels: finding it, the types of its functions, and going without it.

Building it is optional, and all arithmetic has a numpy twin of equal bits; what chooses between them asks `kernels()`.
Loads no numpy. The kernels themselves are `kernels.c` and `lanes.h`; calls go through `runs`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

INTERFACE: Final = 1  # of kernels.c; a library built from another source is not used
LEVELS: Final = ("plain", "x86-64-v3", "x86-64-v4")

_WANTED: Final[ContextVar[bool]] = ContextVar("native kernels wanted", default=True)
_WORD, _LONG, _ADDRESS = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_RUNS: Final = (_ADDRESS, _LONG, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _WORD, _WORD, _ADDRESS)
_FUNCTIONS: Final = {
    "rota_level": (_WORD, ()),
    "rota_bad_run": (_LONG, (_LONG, _LONG, _LONG, _LONG, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS)),
    "rota_fold_runs": (None, _RUNS),
    "rota_fold_runs_at": (None, (_WORD, *_RUNS)),
}


@cache
def kernels() -> ctypes.CDLL | None:
    """Return the library with the types of its functions set, or None where it was not built or is not wanted."""
    if not _WANTED.get():
        return None
    folder = Path(__file__).parent / "built"  # no package, so that nobody imports what is no module
    found = (folder / f"kernels{suffix}" for suffix in EXTENSION_SUFFIXES)
    path = next((path for path in found if path.exists()), None)
    return None if path is None else _opened(path)


def _opened(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
        if library.rota_interface() != INTERFACE:
            return None
    except (OSError, AttributeError):  # of another machine, or of another source
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = library[name]
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


@contextmanager
def without_kernels() -> Iterator[None]:
    """Make `kernels()` None inside the block, for all threads; for tests and benchmarks."""
    token = _WANTED.set(False)
    kernels.cache_clear()
    kernels()
    try:
        yield
    finally:
        _WANTED.reset(token)
        kernels.cache_clear()


def describe() -> str:
    """Return a line that says whether kernels are in use, and which."""
    library = kernels()
    if library is None:
        return "native kernels: none, numpy does all arithmetic"
    return f"native kernels: {LEVELS[library.rota_level()]}"
