"""A decision that was made by hand: `--algorithm` in place of the cascade, as far as the group allows it.

Sizes and settings that only steer the choice are passed over; what the group cannot be wired or built for is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source, Verdict
from rota.isa.enums import Algorithm
from rota.request import KIND_NAMES
from rota.select.choose import Choice
from rota.select.communicator import Communicator
from rota.select.hierarchy import legs
from rota.select.limits import NO_ROWS, Row, Subtype
from rota.select.rules import CASCADE, POINT_TO_POINT, RING_OPS, SHARDED_OPS, Question
from rota.select.settings import Settings
from rota.select.variables import ALL_ALG_TYPES

FORCE_SOURCE: Final = Source("select", "9, S5", CONVENTION)
RING_FAMILY: Final = (Algorithm.KANGARING, Algorithm.SINGLE_CYCLE_RING, Algorithm.INTER_RDH)


def neutral(settings: Settings) -> Settings:
    """Return settings that turn no algorithm off."""
    return replace(
        settings,
        alg_types=ALL_ALG_TYPES,
        hier_mode=0,
        kangaring_mode=0,
        single_cycle_mode=0,
        rdh_mode=1,
        mesh=True,
    )


def forced_choice(comm: Communicator, ask: Question, algorithm: Algorithm) -> Choice:
    """Return the choice of an algorithm for an operation, whatever the cascade says.

    Args:
        comm: made with `neutral` settings.

    Raises:
        UnsupportedError: the group, or the operation, does not go with the algorithm.
    """
    verdicts = tuple((each, rule(comm, ask)) for each, rule in CASCADE)
    if algorithm is Algorithm.RING:
        known = ask.kind in RING_OPS and (comm.wiring.channels or comm.ranks == 1 or ask.kind in POINT_TO_POINT)
        if not known:
            raise _refuse(algorithm, ask, comm.wiring.verdict)
        return Choice(algorithm, algorithm, verdicts, None, ())
    if algorithm is Algorithm.HIER:
        if ask.kind not in SHARDED_OPS or not comm.admitted[algorithm]:
            raise _refuse(algorithm, ask, comm.admitted[algorithm])
        return Choice(algorithm, algorithm, verdicts, None, legs(comm, ask.kind, ask.size, ask.staging))
    if algorithm in RING_FAMILY:
        said = comm.kangaring if algorithm is Algorithm.KANGARING else comm.admitted[algorithm]
        if ask.kind not in SHARDED_OPS or not said:
            raise _refuse(algorithm, ask, said)
        return Choice(algorithm, algorithm, verdicts, None, ())
    found = _carrier(comm, ask, algorithm)
    if found is None:
        raise _refuse(algorithm, ask, comm.admitted.get(algorithm, comm.admitted[Algorithm.MESH]))
    winner = Algorithm.INTRA_RDH if algorithm is Algorithm.INTRA_RDH else Algorithm.MESH
    return Choice(algorithm, winner, verdicts, found[0], ())


def extension_choice(comm: Communicator, ask: Question) -> Choice:
    """Return the choice for an operation that the runtime refuses and that is done beside it, along a ring.

    Raises:
        UnsupportedError: the group has no ring.
    """
    verdicts = tuple((each, rule(comm, ask)) for each, rule in CASCADE)
    if not comm.wiring.channels and comm.ranks > 1:
        raise UnsupportedError(f"{KIND_NAMES[ask.kind]} takes a ring: {comm.wiring.verdict.reason}")
    return Choice(Algorithm.RING, Algorithm.RING, verdicts, None, ())


def _carrier(comm: Communicator, ask: Question, algorithm: Algorithm) -> tuple[Subtype, Row] | None:
    """Return the subtype that takes the size, else the last one reported as this algorithm that does the operation."""
    table = comm.halving if algorithm is Algorithm.INTRA_RDH else comm.offered
    rows = [found for found in table.get(ask.kind, NO_ROWS).rows if found[0].reported is algorithm]
    fits = [found for found in rows if found[1].window(ask.staging).admits(ask.size)]
    return fits[0] if fits else rows[-1] if rows else None


def _refuse(algorithm: Algorithm, ask: Question, said: Verdict) -> UnsupportedError:
    because = f"it does not do {KIND_NAMES[ask.kind]} here" if said else said.reason
    return UnsupportedError(f"--algorithm {algorithm.name}: {because}", source=said.source or FORCE_SOURCE)
