"""`rota run --trace FILE` and files like it: written aside and renamed, so that they are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.errors import UsageError

if TYPE_CHECKING:
    from rota.columns import I64
    from rota.device.model import Device
    from rota.program import Loaded
    from rota.report.trace import Trace


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file, first aside and then renamed.

    Raises:
        UsageError: it cannot be written; an earlier file of this name is as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.writelines(pieces)
        os.replace(aside, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); name another file") from None
    finally:
        aside.unlink(missing_ok=True)


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is done for it.

    Raises:
        UsageError: as said.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; name a file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot be written; name a file in a directory that is there and takes it")


class Recording:
    """What fires on a device while it runs, and then the file of it."""

    def __init__(self, path: Path) -> None:
        check_writable(path)
        self.path = path
        self.fired: list[tuple[int, I64]] = []
        self.found: tuple[Device, Sequence[int], Sequence[int]] | None = None

    def __call__(self, loaded: Loaded, device: Device) -> Callable[[int, I64], None]:
        """Return what sees each tick of a program's run: a `program.Observer`."""
        return self.of(device, loaded.ranks, loaded.entries)

    def of(self, device: Device, ranks: Sequence[int], entries: Sequence[int]) -> Callable[[int, I64], None]:
        """Return what sees each tick of the run of a device.

        Args:
            ranks, entries: as `report.trace.trace_of` takes them.
        """
        self.found = device, ranks, entries
        return lambda tick, steps: self.fired.append((tick, steps.copy()))

    def write(self) -> Trace | None:
        """Write what has fired so far, also when the device got stuck; None, and no file, where there was no device.

        Raises:
            UsageError: the file cannot be written.
        """
        from rota.report.trace import trace_lines, trace_of

        if self.found is None:
            return None
        trace = trace_of(*self.found, self.fired)
        write_whole(self.path, (f"{line}\n".encode() for line in trace_lines(trace)))
        return trace


def write_trace(recording: Recording | None) -> dict[str, Any] | None:
    """Write a recording and return its record for a JSON document; None where there is none, or nothing ran.

    Raises:
        UsageError: the file cannot be written.
    """
    if recording is None:
        return None
    from rota.report.trace import trace_json

    trace = recording.write()
    return None if trace is None else trace_json(trace, str(recording.path))
