"""Which composer makes which algorithm's schedule. What is not here cannot be composed yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rota.compose.ring import compose_ring
from rota.errors import UnsupportedError
from rota.facts import Verdict, no, yes
from rota.isa.enums import Algorithm, EncOp
from rota.request import COMPOSED, KIND_NAMES
from rota.schedule.ir import Schedule
from rota.select.choose import Plan


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


@dataclass(frozen=True, slots=True)
class Composer:
    """A composer, and the collectives it does."""

    kinds: frozenset[EncOp]
    compose: Callable[[Plan], Schedule]


COMPOSERS: Final[Mapping[Algorithm, Composer]] = {
    Algorithm.RING: Composer(frozenset(COMPOSED), ring),
}


def composed(plan: Plan) -> tuple[Algorithm, Verdict]:
    """Return the algorithm that is composed for a plan, and whether it is the selected one.

    Raises:
        UnsupportedError: neither the selected algorithm nor a ring can be composed for this operation on this group.
    """
    kind, selected = plan.request.kind, plan.selected
    if selected in COMPOSERS and kind in COMPOSERS[selected].kinds:
        return selected, yes(f"{selected.name} is composed as selected")
    because = f"the runtime takes {selected.name} for {KIND_NAMES[kind]}, which has no composer in this version"
    if kind not in COMPOSERS[Algorithm.RING].kinds:
        raise UnsupportedError(f"{because}, and a ring does not do it")
    if not plan.channels and plan.request.ranks > 1:
        raise UnsupportedError(f"{because}, and there is no ring to take its place: {plan.wirings[0].verdict.reason}")
    return Algorithm.RING, no(f"{because}; RING does the operation on this group")


def compose(plan: Plan, algorithm: Algorithm) -> Schedule:
    """Return the schedule of a plan.

    Raises:
        UnsupportedError: the algorithm has no composer, or not for this operation.
    """
    composer = COMPOSERS.get(algorithm)
    if composer is None or plan.request.kind not in composer.kinds:
        kind = KIND_NAMES[plan.request.kind]
        raise UnsupportedError(
            f"{algorithm.name} of {kind}: this version composes {', '.join(a.name for a in COMPOSERS)}"
        )
    return composer.compose(plan)
