"""A decision as a JSON document. What each field means is in `docs/json.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.facts import Verdict
from rota.isa.dtypes import short_name
from rota.isa.enums import Algorithm
from rota.machine.group import Wiring
from rota.report.explain import Explanation
from rota.report.log_lines import log_lines
from rota.report.text import text_of
from rota.request import KIND_NAMES, OP_NAMES, Request, Staging
from rota.select.hierarchy import Leg
from rota.select.limits import UNBOUNDED, LimitRead, Window
from rota.select.settings import format_settings

Record = dict[str, Any]


def explain_json(explanation: Explanation) -> Record:
    """Return the document of an explanation."""
    plan, platform = explanation.plan, explanation.platform
    composed = explanation.composed
    return {
        "schema": 1,
        "platform": platform.name,
        "nodes": platform.instances,
        "lnc": platform.lnc,
        "request": request_json(plan.request),
        "algorithm": plan.selected.name,
        "cascade": plan.winner.name,
        "carrier": None if plan.carrier is None else plan.carrier.name,
        "composed": None if composed is None else composed.name,
        "composed_because": explanation.because or None,
        "legs": legs_json(plan.legs),
        "leg_details": [_leg(leg) for leg in plan.legs],
        "channels": plan.channels,
        "staging": plan.staging.value,
        "verdicts": _verdicts(plan.verdicts),
        "admissions": _verdicts(plan.admissions),
        "limits": [_limit(read) for read in plan.limits],
        "rings": [_ring(wiring) for wiring in plan.wirings],
        "changes": [
            {"what": what, "algorithm": None if algorithm is None else algorithm.name}
            for what, algorithm, _ in explanation.changes()
        ],
        "notes": list(explanation.notes()),
        "log": list(log_lines(plan, platform)),
        "settings": format_settings(plan.settings),
    }


def request_json(request: Request) -> Record:
    """Return the record of what was asked for."""
    return {
        "kind": KIND_NAMES[request.kind],
        "dtype": short_name(request.dtype),
        "op": None if request.op is None else OP_NAMES[request.op],
        "bytes": request.size,
        "select_size": request.select_size,
        "groups": [list(group) for group in request.groups],
        "pairs": [list(pair) for pair in request.pairs],
    }


def legs_json(legs: Sequence[Leg]) -> dict[str, str]:
    """Return the algorithm of each leg, by its slot."""
    return {leg.slot: leg.algorithm.name for leg in legs}


def _verdicts(verdicts: Sequence[tuple[Algorithm, Verdict]]) -> list[Record]:
    return [
        {"algorithm": rule.name, "ok": verdict.ok, "reason": verdict.reason, "source": text_of(verdict.source)}
        for rule, verdict in verdicts
    ]


def _leg(leg: Leg) -> Record:
    return {
        "slot": leg.slot,
        "algorithm": leg.algorithm.name,
        "reported": leg.reported.name,
        "size": leg.size,
        "used": leg.used,
        "verdicts": _verdicts(leg.verdicts),
        "limits": [_limit(read) for read in leg.limits],
    }


def _limit(read: LimitRead) -> Record:
    """Return one row that was compared: the twin that was read, and what the other holds."""
    static = read.staging is Staging.STATIC
    window, other = (read.row.sbuf, read.row.plain) if static else (read.row.plain, read.row.sbuf)
    return {
        "slot": read.subtype.slot,
        "name": read.subtype.name,
        "algorithm": read.subtype.reported.name,
        "kind": KIND_NAMES[read.row.op],
        "size": read.size,
        "twin": "sbuf" if static else "plain",
        **_window(window),
        "read": read.admits,
        "other": _window(other),
        "source": text_of(read.row.source),
    }


def _window(window: Window) -> Record:
    return {"above": window.minimum, "up_to": None if window.maximum >= UNBOUNDED else window.maximum}


def _ring(wiring: Wiring) -> Record:
    return {
        "ranks": list(wiring.ranks),
        "reason": wiring.verdict.reason,
        "source": text_of(wiring.verdict.source),
        "warnings": list(wiring.warnings),
        "channels": [list(channel.order) for channel in wiring.channels],
        "gateway_hops": [sum(channel.gateway) for channel in wiring.channels],
    }
