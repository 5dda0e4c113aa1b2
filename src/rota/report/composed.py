"""What this version composes for a decision, said without loading a composer, so that `explain` starts at once.

The composers themselves, and the refusals of `run` and `lower`, are in `compose.table`; tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rota.isa.enums import Algorithm, EncOp
from rota.request import COMPOSED, KIND_NAMES
from rota.select.choose import Plan

COMPOSES: Final[Mapping[Algorithm, frozenset[EncOp]]] = MappingProxyType({Algorithm.RING: frozenset(COMPOSED)})
"""The algorithms that have a composer, and the operations it does."""


def composed_for(plan: Plan) -> tuple[Algorithm | None, str]:
    """Return the algorithm that `run` and `lower` compose, or None and the sentence with which they refuse."""
    kind, selected = plan.request.kind, plan.selected
    if kind in COMPOSES.get(selected, ()):
        return selected, ""
    because = f"the runtime takes {selected.name} for {KIND_NAMES[kind]}, which has no composer in this version"
    if kind not in COMPOSES[Algorithm.RING]:
        return None, f"{because}, and a ring does not do it"
    if not plan.channels and plan.request.ranks > 1:
        return None, f"{because}, and there is no ring to take its place: {plan.wirings[0].verdict.reason}"
    return Algorithm.RING, ""
