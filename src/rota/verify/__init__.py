"""Proofs about schedules: that all executions are alike, and that every output byte holds each contribution once."""

from __future__ import annotations

from rota.request import Request
from rota.schedule.ir import Checks, Schedule
from rota.verify.data import find_data, verify_data
from rota.verify.findings import RULES, Finding
from rota.verify.order import executable, find_order, verify_order
from rota.verify.traffic import Traffic, traffic

__all__ = [
    "RULES",
    "Finding",
    "Traffic",
    "executable",
    "find_data",
    "find_order",
    "traffic",
    "verify",
    "verify_data",
    "verify_order",
]


def verify(schedule: Schedule, request: Request) -> None:
    """Prove that a schedule does what is asked, whatever the timing: its order first, then its data.

    Rows need not be stored in an order of execution.

    Raises:
        VerifyError: it does not; the findings name the rows, and those of the order come without any of the data,
            which would be those of one execution only.
    """
    verify_order(schedule)
    verify_data(executable(schedule) if schedule.checks is Checks.FORM else schedule, request)
