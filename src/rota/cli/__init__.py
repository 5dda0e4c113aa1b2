"""The command line. Everything heavy is imported by the command that needs it; nothing else prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rota.cli.exits import INTERRUPTED, OK, USAGE, WRONG
from rota.cli.parser import parser
from rota.cli.talk import print_lines, talk
from rota.errors import RotaError, StuckError, VerifyError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 fine, 1 a schedule or result is wrong, 2 the command is wrong.

    130 when the user interrupts it, as shells have it.
    """
    reader = parser()
    arguments = reader.parse_args(argv)
    if arguments.version:
        return _version()
    if arguments.command is None:
        reader.print_help()
        return OK
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        return int(arguments.command(arguments))
    except (VerifyError, StuckError) as error:
        more = len(error.findings) - 1 if isinstance(error, VerifyError) else 0
        talk(f"{error}" + (f" (and {more} more; `rota verify` lists them)" if more > 0 else ""))
        return WRONG
    except RotaError as error:
        talk(str(error))
        return USAGE
    except KeyboardInterrupt:
        talk("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _version() -> int:
    from importlib.metadata import version

    from rota.native.library import describe

    print_lines([f"rota {version('rota')}", describe()])
    return OK
