"""`--algorithm`: an algorithm of ours by name, or a function of the user's in a file, `file.py:function`.

What the user's own code raises is said in one sentence, with the line of the file: the one place of rota that catches
everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

from rota.errors import RotaError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.compose.table import Composer
    from rota.isa.enums import Algorithm
    from rota.schedule.ir import Schedule
    from rota.select.choose import Plan


def algorithm_of(text: str | None) -> tuple[Algorithm | None, Composer | None, str]:
    """Return the algorithm a name stands for, or the composer of `file.py:function` and how it is reported.

    Raises:
        UsageError: no such name, file or function, or the file cannot be loaded.
    """
    from rota.compose.support import SUPPORT
    from rota.isa.enums import Algorithm

    if text is None:
        return None, None, ""
    path, colon, function = text.rpartition(":")
    if colon:
        return None, _composer(Path(path), function), f"{Path(path).name}:{function}"
    if text.endswith(".py"):
        raise UsageError(f"--algorithm {text}: name the function, too: {text}:function")
    known = [each.name for each in SUPPORT]
    name = text.upper().replace("-", "_")
    if name not in known:
        raise UsageError(f"--algorithm {text[:40]}: expected one of {', '.join(known)}, or file.py:function")
    return Algorithm[name], None, ""


def _composer(path: Path, function: str) -> Composer:
    """Load a composer of the user's: a function from a plan to a schedule, in a file of its own."""
    import runpy

    if not path.is_file():
        raise UsageError(f"--algorithm {path}:{function}: there is no file {path}")
    with _told(f"--algorithm {path}", path):
        found = runpy.run_path(str(path))
    composer = found.get(function)
    if not callable(composer):
        own = [name for name, value in found.items() if getattr(value, "__module__", "") == found["__name__"]]
        has = f"it has {', '.join(own)}" if own else "it has none"
        raise UsageError(f"--algorithm {path}:{function}: the file has no function of this name; {has}")
    return _guarded(composer, f"{path.name}:{function}", path)


def _guarded(composer: Callable[[Plan], object], name: str, path: Path) -> Composer:
    """Return the composer as one that raises nothing but errors of rota, and returns a schedule."""
    from rota.schedule.ir import Schedule

    def compose(plan: Plan) -> Schedule:
        with _told(name, path):
            made = composer(plan)
        if not isinstance(made, Schedule):
            raise UsageError(
                f"{name} returned {type(made).__name__}, expected a Schedule; end it with `return board.schedule()`"
            )
        return _in_order(made)

    return compose


def _in_order(made: Schedule) -> Schedule:
    """Return a schedule whose order the constructor did not check with its rows in an order of execution.

    One that deadlocks stays as it is: the verifier says why.
    """
    from rota.schedule.ir import Checks
    from rota.verify import executable

    if made.checks is not Checks.FORM:
        return made
    try:
        return executable(made)
    except VerifyError:
        return made


@contextmanager
def _told(name: str, path: Path) -> Iterator[None]:
    """Turn whatever the user's code raises into a sentence; errors of rota speak for themselves."""
    try:
        yield
    except RotaError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{name}: line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        said = " ".join(str(error).split())
        raise UsageError(f"{name} raised {type(error).__name__}: {said}{where}") from None
