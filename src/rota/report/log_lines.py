"""The runtime's own log lines about a decision, with our values in them: what to search a log for.

Two literals are known; the lines of the other operations are not, so nothing is printed for them.
"""

from __future__ import annotations

from typing import Final

from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import Platform
from rota.report.pieces import pieces_of
from rota.select.choose import Plan

HIER_SOURCE: Final = Source("all-reduce", "6.1", HIGH)
ALL_REDUCE_SOURCE: Final = Source("all-reduce", "6.2", HIGH)
SLICES_SOURCE: Final = Source("select", "8, copy_slice_sz and reduce_slice_sz", CONVENTION)
_ALIGNED: Final = 32  # slices are whole multiples of this many bytes. Source: select §8, convention


def log_lines(plan: Plan, platform: Platform) -> tuple[str, ...]:
    """Return the lines the runtime would log for the first rank of the first group.

    A pointer is unknown here, so `comm(%p)` stays as it is;
    the operands' element type and the reduction are the numbers of the device's enumerations.
    """
    request = plan.request
    device = request.groups[0][0] // platform.ranks_per_chip
    if plan.selected is Algorithm.HIER:
        numbers = " ".join(f"alg_{leg.slot} {leg.algorithm.value}" for leg in plan.legs)
        return (f"[nec_dev {device}] Hier algorithm selections - {numbers}",)
    if request.kind is not EncOp.ALLREDUCE or request.op is None or request.ranks == 1:
        return ()
    slices, copied, reduced = _slices(plan)
    channels = plan.channels if plan.selected in _RINGS else 1
    return (
        f"[nec_dev {device}] allreduce: comm(%p) alg({plan.selected.value}) dtype({request.dtype.value}), "
        f"optype({request.op.value}), channel_n({channels})",
        f"  pipeline slice_n({slices}) priority_class:0 copy_slice_sz:{copied:#x} reduce_slice_sz:{reduced:#x}",
    )


_RINGS: Final = frozenset({Algorithm.RING, Algorithm.KANGARING, Algorithm.SINGLE_CYCLE_RING, Algorithm.INTER_RDH})


def _slices(plan: Plan) -> tuple[int, int, int]:
    """Return slices, and the bytes each rank gathers and reduces in one. Source: `SLICES_SOURCE`."""
    request = plan.request
    slices = 1
    if plan.selected in _RINGS and plan.channels:
        cut = pieces_of(
            request.kind, request.size, ranks=request.ranks, channels=plan.channels, chunk=plan.settings.chunk
        )
        slices = cut.groups
    share = -(-request.size // (request.ranks * slices))
    size = -(-share // _ALIGNED) * _ALIGNED
    return slices, size, size
