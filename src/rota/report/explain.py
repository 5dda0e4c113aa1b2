"""A decision a person can follow: what was asked, what each rule said and why, and what the ring looks like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.compose.cut import CHUNK_SOURCE, GRANULE_SOURCE, cut
from rota.facts import Source, Verdict
from rota.isa.dtypes import short_name
from rota.isa.enums import Algorithm, EncOp
from rota.machine.group import format_ranks
from rota.machine.platform import Platform
from rota.request import KIND_NAMES, OP_NAMES
from rota.select.choose import CASCADE_SOURCE, Plan
from rota.select.limits import RDH_LIMIT, mesh_limits
from rota.select.settings import SLOTS_SOURCE
from rota.units import format_size

SIZE_SOURCE = Source("select", "1.1")


def explain_text(plan: Plan, algorithm: Algorithm, platform: Platform) -> Iterator[str]:
    """Yield the lines of an explanation; every choice ends with its source in brackets."""
    request = plan.request
    op = "" if request.op is None else f" {OP_NAMES[request.op]}"
    groups = len(request.groups)
    shape = f"{groups} group{'s' * (groups > 1)} of {request.ranks} ranks"
    asked = f"{KIND_NAMES[request.kind]}{op}, {short_name(request.dtype)}"
    yield f"request    {asked}, {shape} on {platform.name} (LNC {platform.lnc})"
    symbol = "B" if request.kind is EncOp.ALLREDUCE else "C = B / ranks"
    compared = f"SELECT compares {symbol} = {_size(request.select_size)}{_by(SIZE_SOURCE)}"
    yield f"size       whole buffer B = {_size(request.size)}; {compared}"
    for wiring in plan.wirings[:4]:
        yield f"group      {format_ranks(sorted(wiring.ranks))}: {_reason(wiring.verdict)}"
        yield from (f"warning    {warning}" for warning in wiring.warnings)
    if len(plan.wirings) > 4:
        yield f"group      ... and {len(plan.wirings) - 4} more"
    yield f"cascade    every rule is asked, the first yes wins{_by(CASCADE_SOURCE)}"
    for rule, verdict in plan.verdicts:
        mark = "yes" if verdict else "no"
        yield f"  {rule.name:<18} {mark:<4} {_reason(verdict)}"
    yield f"selected   {plan.selected.name}"
    if algorithm is not plan.selected:
        yield f"composed   {algorithm.name}: {plan.selected.name} has no composer in this version"
    yield from _ring(plan)


def explain_json(plan: Plan, algorithm: Algorithm, platform: Platform) -> dict[str, Any]:
    """Return the JSON document of an explanation."""
    request = plan.request
    rows = [*mesh_limits(platform.family, request.ranks), RDH_LIMIT] if request.ranks > 1 else []
    return {
        "schema": 1,
        "platform": platform.name,
        "request": {
            "kind": KIND_NAMES[request.kind],
            "dtype": short_name(request.dtype),
            "op": None if request.op is None else OP_NAMES[request.op],
            "bytes": request.size,
            "select_size": request.select_size,
            "groups": [list(group) for group in request.groups],
        },
        "algorithm": plan.selected.name,
        "composed": algorithm.name,
        "legs": {},
        "channels": plan.channels,
        "verdicts": [
            {"algorithm": rule.name, "ok": verdict.ok, "reason": verdict.reason, "source": _text(verdict.source)}
            for rule, verdict in plan.verdicts
        ],
        "limits": [
            {
                "name": row.name,
                "algorithm": row.reported.name,
                "kinds": [KIND_NAMES[kind] for kind in row.kinds],
                "above": row.minimum,
                "up_to": row.maximum,
                "read": row.admits(request.kind, request.select_size),
                "source": _text(row.source),
            }
            for row in rows
        ],
        "rings": [
            {
                "ranks": list(wiring.ranks),
                "reason": wiring.verdict.reason,
                "source": _text(wiring.verdict.source),
                "warnings": list(wiring.warnings),
                "channels": [list(channel.order) for channel in wiring.channels],
                "gateway_hops": [sum(channel.gateway) for channel in wiring.channels],
            }
            for wiring in plan.wirings
        ],
        "settings": {"NEURON_RT_CC_CHANNEL_BUFFER_N": plan.settings.slots, "CC_CHUNK_SIZE": plan.settings.chunk},
    }


def _ring(plan: Plan) -> Iterator[str]:
    request, settings = plan.request, plan.settings
    if not plan.channels:
        yield "ring       none: a group of one rank copies its input to its output"
        return
    pieces = cut(request.kind, request.size, ranks=request.ranks, channels=plan.channels, chunk=settings.chunk)
    yield f"ring       {plan.channels} channels, {pieces.groups} chunk groups{_by(CHUNK_SOURCE)}"
    yield f"           half-chunks of at most {_size(pieces.largest)}, cut at 32 bytes{_by(GRANULE_SOURCE)}"
    yield f"           {settings.slots} slots, one half-chunk each, which is the credit of a channel{_by(SLOTS_SOURCE)}"
    for i, channel in enumerate(plan.wirings[0].channels):
        gateways = sum(channel.gateway)
        through = f"; {gateways} hops through a gateway" if gateways else ""
        yield f"  channel {i}: {' '.join(map(str, channel.order))}{through}"


def _reason(verdict: Verdict) -> str:
    return verdict.reason + _by(verdict.source)


def _by(source: Source | None) -> str:
    return "" if source is None else f"  [{source}]"


def _text(source: Source | None) -> str | None:
    return None if source is None else str(source)


def _size(size: int) -> str:
    text = format_size(size)
    return f"{size} bytes" if text == str(size) else f"{size} bytes ({text})"
