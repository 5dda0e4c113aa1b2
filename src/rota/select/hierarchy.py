"""The legs of a hierarchical operation: their slices, and the algorithm of each of the five slots."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source, Verdict, no, yes
from rota.isa.enums import Algorithm, EncOp
from rota.request import Staging
from rota.select.communicator import Communicator
from rota.select.limits import NO_ROWS, LimitRead
from rota.select.rules import (
    Question,
    can_inter_rdh,
    can_intra_rdh,
    can_kangaring,
    can_mesh,
    can_single_cycle_ring,
    edges,
)

SLICES_SOURCE: Final = Source("select", "6, slices", HIGH)
LEGALITY_SOURCE: Final = Source("select", "6.1", HIGH)
_FALLBACK: Final = Source("select", "6", MEDIUM)
_PIPELINE: Final = Source("select", "6.2", CONVENTION)
STAGES: Final = 3
"""Stages of a pipelined hierarchy, NEC_HIER_CC_PIPELINE_STAGE_N. Source: select §6.2, high."""
MOST_SLICES: Final = 8
"""Most slices of a pipeline whose number is chosen by size. Source: select §6.2, convention."""

SLOTS: Final = (
    # slot             scope    operation              tested in this order
    ("intra_allg",     "intra", EncOp.ALLGATHER,      (Algorithm.INTRA_RDH, Algorithm.MESH, Algorithm.KANGARING)),
    ("intra_redsct",   "intra", EncOp.REDUCE_SCATTER, (Algorithm.INTRA_RDH, Algorithm.MESH, Algorithm.KANGARING)),
    ("inter_allr",     "inter", EncOp.ALLREDUCE,
     (Algorithm.MESH, Algorithm.INTER_RDH, Algorithm.SINGLE_CYCLE_RING)),
    ("inter_allg",     "inter", EncOp.ALLGATHER,      (Algorithm.MESH, Algorithm.INTER_RDH)),
    ("inter_redsct",   "inter", EncOp.REDUCE_SCATTER, (Algorithm.MESH, Algorithm.INTER_RDH)),
)  # fmt: skip
"""The five slots in the order in which they are logged, with what is asked for each. Source: select §6, high."""

_OPERATION: Final = {slot: op for slot, _, op, _ in SLOTS}
_PRIORITY: Final = {slot: priority for slot, _, _, priority in SLOTS}

LEGS: Final = {
    EncOp.ALLREDUCE: ("intra_redsct", "inter_allr", "intra_allg"),
    EncOp.REDUCE_SCATTER: ("intra_redsct", "inter_redsct"),
    EncOp.ALLGATHER: ("inter_allg", "intra_allg"),
}
"""The legs each operation has, in the order in which they run. Source: select §6.1, high."""

LEGAL: Final = {
    "intra_allg": frozenset({Algorithm.MESH, Algorithm.INTRA_RDH, Algorithm.RING, Algorithm.KANGARING}),
    "intra_redsct": frozenset({Algorithm.MESH, Algorithm.INTRA_RDH, Algorithm.RING, Algorithm.KANGARING}),
    "inter_allr": frozenset({Algorithm.MESH, Algorithm.RING, Algorithm.INTER_RDH, Algorithm.SINGLE_CYCLE_RING}),
    "inter_allg": frozenset({Algorithm.MESH, Algorithm.RING, Algorithm.INTER_RDH}),
    "inter_redsct": frozenset({Algorithm.MESH, Algorithm.RING, Algorithm.INTER_RDH}),
}
"""What each slot may hold: the mesh branch and the ring branch. Source: select §6.1, high."""

_RULES: Final = {
    Algorithm.INTRA_RDH: can_intra_rdh,
    Algorithm.MESH: can_mesh,
    Algorithm.KANGARING: can_kangaring,
    Algorithm.INTER_RDH: can_inter_rdh,
    Algorithm.SINGLE_CYCLE_RING: can_single_cycle_ring,
}


@dataclass(frozen=True, slots=True)
class Leg:
    """One slot of a hierarchy.

    Attributes:
        slot: as it is logged, without `alg_`.
        algorithm: what the slot holds.
        reported: the same, refined by the subtype that carries it.
        used: whether the operation has this leg.
        size: the slice that its limits are compared with, in bytes.
        level: the communicator it runs in.
    """

    slot: str
    algorithm: Algorithm
    reported: Algorithm
    used: bool
    size: int
    staging: Staging
    level: Communicator = field(compare=False, repr=False)

    @property
    def ask(self) -> Question:
        """What its predicates are asked."""
        return Question(_OPERATION[self.slot], self.size, self.staging)

    @property
    def channels(self) -> int:
        """Ring channels of its level."""
        return len(self.level.wiring.channels)

    @property
    def verdicts(self) -> tuple[tuple[Algorithm, Verdict], ...]:
        """What each predicate of the slot says, in the order in which they are tested, and the ring last."""
        ask = self.ask
        said = [(algorithm, _RULES[algorithm](self.level, ask)) for algorithm in _PRIORITY[self.slot]]
        ring = self.level.ring and yes("the ring is left when no other agrees", _FALLBACK)
        return (*said, (Algorithm.RING, ring))

    @property
    def limits(self) -> tuple[LimitRead, ...]:
        """The rows that are compared with its size."""
        tables = (self.level.offered, self.level.halving)
        found = [table.get(_OPERATION[self.slot], NO_ROWS).reads(self.staging, self.size) for table in tables]
        return (*found[0], *found[1])


def legs(comm: Communicator, kind: EncOp, size: int, staging: Staging) -> tuple[Leg, ...]:
    """Fill the five slots of a hierarchical operation.

    The slice of the inner legs is `size` divided by the ranks of a node, that of the outer ones as many times that as
    there are nodes.

    Raises:
        UnsupportedError: a leg that the operation has can be carried by nothing.

    Source:
        select §6.
    """
    assert comm.intra is not None, "the communicator has no levels"
    assert comm.inter is not None, "the communicator has no levels"
    intra_slice = -(-size // comm.intra.ranks)
    slices = {"intra": (comm.intra, intra_slice), "inter": (comm.inter, intra_slice * comm.inter.nodes)}
    has = LEGS[kind]
    filled: list[Leg] = []
    for slot, scope, _, _ in SLOTS:
        level, part = slices[scope]
        algorithm, reported = _held(level, slot, part, staging)
        filled.append(Leg(slot, algorithm, reported, slot in has, part, staging, level))
    missing = next((leg for leg in filled if leg.used and leg.algorithm is Algorithm.INVALID), None)
    if missing is not None:
        because = missing.level.ring.reason
        text = "Invalid allr alg types" if kind is EncOp.ALLREDUCE else "invalid leg algorithms"
        raise UnsupportedError(
            f"{text}: leg {missing.slot} has no algorithm, because {because}", source=LEGALITY_SOURCE
        )
    return tuple(filled)


def _held(level: Communicator, slot: str, size: int, staging: Staging) -> tuple[Algorithm, Algorithm]:
    """Return what a slot holds, and as what it is reported; between two edges of its rules it is asked once."""
    steps = level.steps.get(slot)
    if steps is None:
        steps = level.steps[slot] = sorted(set(edges(level, _OPERATION[slot])))
    key = (slot, staging is Staging.STATIC, bisect_left(steps, size))
    held = level.held.get(key)
    if held is None:
        held = level.held[key] = _first(level, slot, Question(_OPERATION[slot], size, staging))
    return held


def _first(level: Communicator, slot: str, ask: Question) -> tuple[Algorithm, Algorithm]:
    """Return the first algorithm whose predicate passes, else the ring; and as reported. Source: select §6, high."""
    otherwise = Algorithm.RING if level.ring else Algorithm.INVALID
    winner = next((algorithm for algorithm in _PRIORITY[slot] if _RULES[algorithm](level, ask)), otherwise)
    assert winner is Algorithm.INVALID or winner in LEGAL[slot], f"{slot} may not hold {winner.name}"
    carries = level.offered.get(ask.kind, NO_ROWS).carrier(ask.staging, ask.size) if winner is Algorithm.MESH else None
    return winner, winner if carries is None else carries[0].reported


def pipeline_slices(comm: Communicator, filled: tuple[Leg, ...], size: int) -> tuple[int, Verdict]:
    """Return into how many slices a hierarchy is pipelined, and why; 1 is no pipeline. Source: select §6.2."""
    mode = comm.settings.hier_pipeline
    if mode == 0:
        return 1, no("NEURON_RT_DBG_HIER_CC_PIPELINE is 0", _PIPELINE)
    if comm.streams > 1:
        return 1, no(f"{comm.streams} streams: a pipeline takes one", _PIPELINE)
    other = next((leg for leg in filled if leg.used and leg.algorithm is not Algorithm.RING), None)
    if other is not None:
        return 1, no(f"leg {other.slot} is {other.algorithm.name}, and a pipeline takes rings alone", _PIPELINE)
    if mode > 1:
        return mode, yes(f"NEURON_RT_DBG_HIER_CC_PIPELINE is {mode}", _PIPELINE)
    slices = min(max(-(-size // (STAGES * comm.settings.chunk)), 1), MOST_SLICES)
    return slices, yes(f"one slice for {STAGES} chunks, at most {MOST_SLICES}", _PIPELINE)
