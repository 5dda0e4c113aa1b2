"""Which composer makes which algorithm's schedule. What each does is in `support`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rota.compose.hierarchy import compose_hierarchy
from rota.compose.intra_rdh import compose_intra_rdh
from rota.compose.kangaring import compose_kangaring
from rota.compose.mesh import compose_mesh
from rota.compose.pod import compose_pod
from rota.compose.pointtopoint import compose_point_to_point
from rota.compose.recursive import compose_inter_rdh
from rota.compose.ring import compose_ring
from rota.compose.single_cycle import compose_single_cycle
from rota.compose.single_step import compose_single_step
from rota.compose.support import can_compose, composed
from rota.compose.switch.algorithms import compose_switch
from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm
from rota.request import COMPOSED
from rota.schedule.ir import Schedule
from rota.select.admission import over_switch
from rota.select.choose import Plan

__all__ = ["COMPOSERS", "Composer", "compose", "composed"]

Composer = Callable[[Plan], Schedule]


def ring(plan: Plan) -> Schedule:
    """Compose the ring of every group of a plan; a group of one rank copies."""
    request = plan.request
    if request.kind not in COMPOSED:
        return compose_point_to_point(plan)
    position = [{rank: i for i, rank in enumerate(group)} for group in request.groups]
    orders = [
        [[position[g][rank] for rank in wiring.channels[c].order] for g, wiring in enumerate(plan.wirings)]
        for c in range(plan.channels)
    ] or [[[0] for _ in request.groups]]
    return compose_ring(
        orders,
        kind=request.kind,
        size=request.size,
        op=request.op,
        slots=plan.settings.slots,
        chunk=plan.settings.chunk,
        in_place=request.in_place,
    )


def mesh(plan: Plan) -> Schedule:
    """Compose the mesh of every group of a plan, over the cables or over the switch."""
    return compose_switch(plan) if over_switch(plan.platform, plan.geometries[0]) else compose_mesh(plan)


def single_step(plan: Plan) -> Schedule:
    """Compose the one-step all-reduce of every group of a plan, over the cables or over the switch."""
    return compose_switch(plan) if over_switch(plan.platform, plan.geometries[0]) else compose_single_step(plan)


COMPOSERS: Final[Mapping[Algorithm, Composer]] = {
    Algorithm.RING: ring,
    Algorithm.HIER: compose_hierarchy,
    Algorithm.MESH: mesh,
    Algorithm.KANGARING: compose_kangaring,
    Algorithm.SINGLE_CYCLE_RING: compose_single_cycle,
    Algorithm.INTRA_RDH: compose_intra_rdh,
    Algorithm.SINGLE_STEP_MESH: single_step,
    Algorithm.INTER_RDH: compose_inter_rdh,
    Algorithm.TWO_STEP_POD_MESH: compose_pod,
    Algorithm.LATENCY_OPT_MESH: compose_switch,
    Algorithm.BW_OPT_MESH: compose_switch,
}


def compose(plan: Plan, algorithm: Algorithm) -> Schedule:
    """Return the schedule of a plan.

    Raises:
        UnsupportedError: the algorithm has no composer, or not for this operation or group.
    """
    can = can_compose(plan, algorithm)
    if not can:
        raise UnsupportedError(can.reason, source=can.source)
    return COMPOSERS[algorithm](plan)
