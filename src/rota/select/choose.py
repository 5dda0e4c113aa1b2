"""SELECT: the algorithm the runtime takes for a request on one node, with everything that was asked on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import HIGH, Source, Verdict
from rota.isa.enums import Algorithm
from rota.machine.group import Wiring, wire
from rota.machine.platform import Platform
from rota.request import Request
from rota.select.limits import mesh_limits
from rota.select.rules import CASCADE, Situation, admitting
from rota.select.settings import Settings

CASCADE_SOURCE: Final = Source("select", "5.2", HIGH)


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision.

    Attributes:
        selected: what the runtime would report.
        wirings: the rings of each group of the request.
        verdicts: what each predicate said, in the order of the cascade.
        channels: ring channels of every group.
    """

    request: Request
    selected: Algorithm
    wirings: tuple[Wiring, ...]
    verdicts: tuple[tuple[Algorithm, Verdict], ...]
    channels: int
    settings: Settings


Verdicts = tuple[tuple[Algorithm, Verdict], ...]


def select(request: Request, platform: Platform, settings: Settings) -> Plan:
    """Decide for a request whose groups all get one algorithm and equally many ring channels.

    Raises:
        UsageError: a rank is not on the machine.
        UnsupportedError: a group cannot be wired, or the groups differ in algorithm or number of channels.
    """
    wirings = tuple(wire(platform, group) for group in request.groups)
    counts = {len(wiring.channels) for wiring in wirings}
    if len(counts) > 1:
        raise UnsupportedError(
            "the groups of the request get different numbers of ring channels; make one request for each"
        )
    verdicts, selected = _ask(Situation(request, platform, wirings[0]))
    if any(_ask(Situation(request, platform, wiring))[1] is not selected for wiring in wirings[1:]):
        raise UnsupportedError("the groups of the request get different algorithms; make one request for each")
    return Plan(
        request=request,
        selected=selected,
        wirings=wirings,
        verdicts=verdicts,
        channels=counts.pop(),
        settings=settings,
    )


def _ask(at: Situation) -> tuple[Verdicts, Algorithm]:
    """Ask every predicate about a group; return what they said, and the algorithm as it is reported."""
    verdicts = tuple((algorithm, rule(at)) for algorithm, rule in CASCADE)
    winner = next(algorithm for algorithm, verdict in verdicts if verdict)
    row = admitting(at, mesh_limits(at.platform.family, at.ranks)) if winner is Algorithm.MESH else None
    return verdicts, winner if row is None else row.reported
