"""Proofs about schedules: that every output byte holds each contribution exactly once. Races are not looked for yet.

That the stored order of the rows is an execution, hence that nothing deadlocks, is checked when a schedule is made.
"""

from __future__ import annotations

from dataclasses import replace

from rota.request import Request
from rota.schedule.ir import Checks, Schedule
from rota.verify.data import find_data, verify_data
from rota.verify.traffic import Traffic, traffic

__all__ = ["Traffic", "find_data", "traffic", "verify", "verify_data"]


def verify(schedule: Schedule, request: Request) -> None:
    """Prove that a schedule does what is asked; one built without all checks is checked again first.

    Raises:
        VerifyError: it is malformed, unbalanced or out of order, or its data are wrong; the findings name the rows.
    """
    if schedule.checks is not Checks.ALL:
        schedule = replace(schedule, checks=Checks.ALL)
    verify_data(schedule, request)
