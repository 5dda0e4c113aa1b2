"""Everything rota raises on purpose.

An error is one sentence a user can act on: what is wrong, where, what was expected, what was there, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.facts import Source


class RotaError(Exception):
    """The base of every error rota raises; `str()` of it is the sentence the user reads."""


class UsageError(RotaError):
    """A bad argument or a bad file."""


class DecodeError(RotaError):
    """Bytes or text that mean nothing, with the place and what would have been right there."""

    def __init__(self, what: str, *, offset: int, expected: str, got: str) -> None:
        super().__init__(f"{what} at offset {offset}: expected {expected}, got {got}")
        self.what = what
        self.offset = offset
        self.expected = expected
        self.got = got


class UnsupportedError(RotaError):
    """A well-formed request that the machine, or this version, refuses; `source` says who says so."""

    def __init__(self, message: str, *, source: Source | None = None) -> None:
        super().__init__(message)
        self.source = source


class VerifyError(RotaError):
    """A schedule that is wrong; `findings` are its defects, each a sentence that names the row."""

    def __init__(self, message: str, *, findings: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class StuckError(RotaError):
    """A simulation or a device that cannot go on; `waiting` says who waits, and for what."""

    def __init__(self, message: str, *, waiting: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.waiting = tuple(waiting)
