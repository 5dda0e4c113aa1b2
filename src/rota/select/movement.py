"""What a decision means for the data, in closed form: roundings on the way, and the load of the busiest cable.

No schedule is composed for it; tests hold both to schedules.
"""

from __future__ import annotations

from typing import Final

from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import REDUCING, Algorithm, CceType
from rota.machine.platform import Family
from rota.select.choose import Plan

LOADS_SOURCE: Final = Source("topology", "6", HIGH)
ROUNDINGS_SOURCE: Final = Source("design", "2 (2) and (20)", CONVENTION)
FOLD: Final = 32
"""Sources of one row; a wider reduction is a chain. Source: design §2 (20), convention."""
CORE_GROUP: Final = {1: 4, 2: 2}
"""Ranks under one primary of a KangaRing, by LNC. Source: compose §7.1, high."""


def fold_roundings(sources: int) -> int:
    """Return the rows, and so the roundings, of a reduction of some sources."""
    return 0 if sources < 2 else 1 + max(-(-(sources - FOLD) // (FOLD - 1)), 0)


def roundings(plan: Plan) -> int | None:
    """Return how often a contribution is rounded at most; None where bytes only move, or no form is known."""
    request = plan.request
    if request.kind not in REDUCING or request.ranks == 1 or request.op is CceType.FMA:
        return None
    if plan.legs:
        shape = plan.geometries[0]
        parts = [
            _roundings(plan, leg.reported, shape.local_rank_n if leg.slot == "intra_redsct" else shape.node_n, leg.slot)
            for leg in plan.legs
            if leg.used and not leg.slot.endswith("allg")
        ]
        return None if None in parts else sum(part or 0 for part in parts)
    return _roundings(plan, plan.selected, request.ranks, "")


def _roundings(plan: Plan, algorithm: Algorithm, ranks: int, slot: str) -> int | None:
    shape = plan.geometries[0]
    chips = 1 if slot.startswith("inter") else len(shape.chips) // shape.node_n
    lanes = 1 if slot.startswith("inter") or shape.node_n == ranks > 1 else shape.per_chip
    times: int | None = None
    match algorithm:
        case Algorithm.RING:
            times = ranks - 1
        case Algorithm.KANGARING:
            times = ranks // CORE_GROUP[plan.platform.lnc]
        case Algorithm.SINGLE_STEP_MESH | Algorithm.SINGLE_CYCLE_RING:
            times = fold_roundings(ranks)
        case Algorithm.INTER_RDH:
            times = (ranks - 1).bit_length()
        case Algorithm.INTRA_RDH:
            times = 1 + (chips - 1).bit_length()
        case Algorithm.MESH if plan.platform.family is not Family.INF2 and lanes:
            blocks = ranks // lanes
            times = fold_roundings(lanes + blocks - 1) + (1 if lanes > 1 and blocks > 1 else 0)
        case _:
            pass
    return times


def link_loads(plan: Plan) -> tuple[int, int, int] | None:
    """Return the shards over the busiest cable in a gather by recursive doubling: one axis order, rotated, and a mesh.

    None where nothing doubles on a node.

    Source:
        topology §6; design §2 (14).
    """
    shape = plan.geometries[0]
    chips, lanes = len(shape.chips), shape.per_chip
    if plan.selected is not Algorithm.INTRA_RDH or chips == 1:
        return None
    axes = (chips - 1).bit_length()
    return lanes * (chips - 1), (chips - 1) * -(-lanes // axes), lanes * chips // 2
