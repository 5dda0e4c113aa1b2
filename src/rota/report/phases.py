"""What a mesh over the switch is built of: one row for each phase, as the first rank of the first group sees it.

Ranks are places in the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.compose.switch.menu import Slot, slot_of
from rota.compose.switch.planned import Event
from rota.errors import UsageError
from rota.isa.enums import Algorithm
from rota.machine.platform import Platform
from rota.select.admission import over_switch
from rota.select.choose import Plan

_HEADER = f"# {'phase':<30}{'event':<34}{'id':>3} num_fold wait_val notify_mode copy_mode"


def phases_text(plan: Plan, platform: Platform) -> Iterator[str]:
    """Yield the phases as a table, and below it what their builders log.

    Raises:
        UsageError: what is selected is not built of phases.
    """
    slot = _slot(plan, platform)
    yield f"phases     slot {slot.subtype.slot}, {slot.subtype.name}, in the order in which they are built"
    yield _HEADER
    for each in phases_json(plan, platform):
        copied = "-" if each["copy_mode"] is None else each["copy_mode"]
        numbers = f"{each['num_fold']:>8} {each['wait_val']:>8} {each['notify_mode']:>11} {copied:>9}"
        yield f"  {each['phase']:<30}{each['event']:<34}{each['id']:>3} {numbers}"
    yield from slot.lines()


def phases_json(plan: Plan, platform: Platform) -> list[dict[str, Any]]:
    """Return the phases as records.

    Raises:
        UsageError: what is selected is not built of phases.
    """
    return [_record(number, event) for number, event in enumerate(_slot(plan, platform).events)]


def _slot(plan: Plan, platform: Platform) -> Slot:
    if plan.winner is not Algorithm.MESH or plan.carrier is None or not over_switch(platform, plan.geometries[0]):
        raise UsageError(f"--phases: {plan.selected.name} has none here; only a mesh over a switch is built of phases")
    return slot_of(platform, plan.request.groups[:1], plan.settings, plan.carrier.slot)


def _record(number: int, event: Event) -> dict[str, Any]:
    row = event.row
    return {
        "phase": event.phase.value,
        "event": event.type.name,
        "id": number,
        "num_fold": row.num_fold,
        "wait_val": int(event.wait_val[0, 0]),
        "notify_mode": row.notify,
        "copy_mode": row.copy_mode,
        "src": event.sources[0, 0].tolist(),
        "dst": event.targets[0, 0].tolist(),
        "recv": event.receives[0, 0].tolist(),
    }
