"""Whether the device model notices that a schedule is wrong."""

from __future__ import annotations

from rota.request import Request
from rota.schedule.ir import Schedule


def catch(schedule: Schedule, request: Request, seed: int = 0) -> str | None:  # noqa: ARG001
    """Return what the device says, with the row named, or None when it notices nothing."""
    return None
