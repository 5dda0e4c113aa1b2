"""Which collectives each algorithm's composer does, and what is composed for a decision; loads no composer, no numpy.

The composers themselves are in `table`, which holds the same algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import Verdict, no, yes
from rota.isa.enums import Algorithm, EncOp
from rota.request import COMPOSED, KIND_NAMES
from rota.select.choose import Plan
from rota.select.rules import POINT_TO_POINT

_SHARDED: Final = frozenset(COMPOSED)
_ALL_REDUCE: Final = frozenset({EncOp.ALLREDUCE})

SUPPORT: Final[Mapping[Algorithm, frozenset[EncOp]]] = MappingProxyType(
    {
        Algorithm.RING: _SHARDED | POINT_TO_POINT,
        Algorithm.HIER: _SHARDED,
        Algorithm.MESH: _SHARDED | {EncOp.ALLTOALL, EncOp.ALLTOALL_V},
        Algorithm.KANGARING: _SHARDED,
        Algorithm.SINGLE_CYCLE_RING: _ALL_REDUCE,
        Algorithm.INTRA_RDH: _SHARDED,
        Algorithm.SINGLE_STEP_MESH: _ALL_REDUCE,
        Algorithm.INTER_RDH: _SHARDED,
        Algorithm.TWO_STEP_POD_MESH: _SHARDED,
        Algorithm.LATENCY_OPT_MESH: frozenset({EncOp.ALLGATHER, EncOp.ALLREDUCE, EncOp.ALLTOALL, EncOp.ALLTOALL_V}),
        Algorithm.BW_OPT_MESH: frozenset({EncOp.ALLGATHER, EncOp.ALLREDUCE}),
    }
)
"""Algorithm -> the collectives its composer does. Source: select §5.3, high."""


def can_compose(plan: Plan, algorithm: Algorithm) -> Verdict:
    """Return whether an algorithm can be composed for a plan."""
    kind = KIND_NAMES[plan.request.kind]
    if plan.request.kind not in SUPPORT.get(algorithm, ()):
        return no(f"{algorithm.name} of {kind} has no composer in this version")
    return yes(f"{algorithm.name} is composed")


def composed(plan: Plan) -> tuple[Algorithm, Verdict]:
    """Return the algorithm that is composed for a plan, and whether it is the selected one.

    Raises:
        UnsupportedError: neither the selected algorithm nor a ring can be composed for this operation on this group.
    """
    selected = plan.selected
    can = can_compose(plan, selected)
    if can:
        return selected, yes(f"{selected.name} is composed as selected")
    because = f"the runtime takes {selected.name}, and {can.reason}"
    if selected is Algorithm.RING:
        raise UnsupportedError(can.reason)
    if plan.request.kind not in SUPPORT[Algorithm.RING]:
        raise UnsupportedError(f"{because}; a ring does not do it")
    if not plan.channels and plan.request.ranks > 1:
        raise UnsupportedError(f"{because}; there is no ring to take its place: {plan.wirings[0].verdict.reason}")
    return Algorithm.RING, no(f"{because}; RING does the operation on this group")
