"""Which composer makes which algorithm's schedule. What is not here cannot be composed yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rota.compose.ring import compose_ring
from rota.errors import UnsupportedError
from rota.facts import Verdict, no, yes
from rota.isa.enums import Algorithm
from rota.schedule.ir import Schedule
from rota.select.choose import Plan

Composer = Callable[[Plan], Schedule]


def ring(plan: Plan) -> Schedule:
    """Compose the ring of every group of a plan; a group of one rank copies."""
    request = plan.request
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


COMPOSERS: Final[Mapping[Algorithm, Composer]] = {
    Algorithm.RING: ring,
}


def composed(selected: Algorithm) -> tuple[Algorithm, Verdict]:
    """Return the algorithm that is composed for a selected one, and whether it is the same."""
    if selected in COMPOSERS:
        return selected, yes(f"{selected.name} is composed as selected")
    return Algorithm.RING, no(f"{selected.name} has no composer in this version; RING does the operation on this group")


def compose(plan: Plan, algorithm: Algorithm) -> Schedule:
    """Return the schedule of a plan.

    Raises:
        UnsupportedError: the algorithm has no composer.
    """
    composer = COMPOSERS.get(algorithm)
    if composer is None:
        raise UnsupportedError(f"{algorithm.name}: this version composes {', '.join(a.name for a in COMPOSERS)}")
    return composer(plan)
