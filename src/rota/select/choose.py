"""SELECT: the algorithm the runtime takes for a request, with everything that was asked on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source, Verdict
from rota.isa.enums import Algorithm, CommScope, EncOp
from rota.machine.geometry import Geometry
from rota.machine.group import Wiring
from rota.machine.platform import Platform, Shape
from rota.request import KIND_NAMES, Request, Staging
from rota.select.communicator import Communicator, communicator
from rota.select.hierarchy import Leg, legs, pipeline_slices
from rota.select.limits import NO_ROWS, LimitRead, Subtype, Table
from rota.select.rules import CASCADE, MESH_ONLY, POINT_TO_POINT, UNSUPPORTED, Question
from rota.select.settings import FORCED, Settings

__all__ = ["CASCADE_SOURCE", "Choice", "Leg", "LimitRead", "Plan", "Selector", "alike", "choose", "select"]

CASCADE_SOURCE: Final = Source("select", "5.2", HIGH)
FORCE_SOURCE: Final = Source("select", "3.1, mode 1 forces an algorithm", CONVENTION)
_REFUSED: Final = Source("select", "9, S1", HIGH)
_MESH_ONLY: Final = Source("select", "9, S7", HIGH)
_NOTHING: Final = Source("select", "10", HIGH)
_HYBRID: Final = Source("select", "8, hybrid ring", HIGH)
HYBRID_RANKS: Final = 16
"""Ranks of a hybrid ring. Source: select §8, high."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision.

    Attributes:
        selected: what the runtime reports, refined by the subtype that carries the operation.
        winner: what won the cascade.
        wirings, geometries: of each group of the request.
        verdicts: what each predicate said, in the order of the cascade.
        admissions: what the communicator may use at all.
        tables: of the rows that the size is compared with.
        carrier: the mesh subtype that carries the operation; None for rings and hierarchies.
        legs: the five slots of a hierarchy, else none.
        channels: ring channels of every group.
        slices: of a pipelined hierarchy; 1 where there is no pipeline.
        notes: sentences worth saying.
    """

    request: Request
    platform: Platform
    selected: Algorithm
    winner: Algorithm
    wirings: tuple[Wiring, ...]
    geometries: tuple[Geometry, ...]
    verdicts: tuple[tuple[Algorithm, Verdict], ...]
    admissions: tuple[tuple[Algorithm, Verdict], ...]
    tables: tuple[Table, ...]
    carrier: Subtype | None
    legs: tuple[Leg, ...]
    channels: int
    slices: int
    scope: CommScope
    staging: Staging
    settings: Settings
    notes: tuple[str, ...]

    @property
    def limits(self) -> tuple[LimitRead, ...]:
        """The rows that were compared with the size."""
        size = self.request.select_size
        return tuple(read for table in self.tables for read in table.reads(self.staging, size))

    @property
    def leg_names(self) -> Mapping[str, str]:
        """Slot -> algorithm of the legs the operation has."""
        return {leg.slot: leg.algorithm.name for leg in self.legs if leg.used}


@dataclass(frozen=True, slots=True)
class Choice:
    """What one communicator takes for one operation; the part of a plan that depends on the size."""

    selected: Algorithm
    winner: Algorithm
    verdicts: tuple[tuple[Algorithm, Verdict], ...]
    carrier: Subtype | None
    legs: tuple[Leg, ...]


Chooser = Callable[[Communicator, Question], Choice]


class Selector:
    """The communicators of a machine, made when a group is first met, and the decisions on them."""

    def __init__(self, platform: Platform, settings: Settings, *, streams: int = 1, any_group: bool = False) -> None:
        self.platform = platform
        self.settings = settings
        self.streams = streams
        self.any_group = any_group
        self._made: dict[tuple[tuple[int, ...], bool], Communicator] = {}
        self._met: dict[tuple[int, bool], tuple[tuple[int, ...], Communicator]] = {}  # by identity: hashing takes long

    def communicator(self, group: tuple[int, ...], *, pairs: bool = False) -> Communicator:
        """Return the communicator of a group.

        Raises:
            UsageError, UnsupportedError: as `select.communicator.communicator`.
        """
        met = self._met.get((id(group), pairs))
        if met is not None and met[0] is group:
            return met[1]
        made = self._made.get((group, pairs))
        if made is None:
            made = communicator(
                self.platform,
                group,
                self.settings,
                streams=self.streams,
                pairs=pairs,
                any_group=self.any_group,
            )
            self._made[group, pairs] = made
        self._met[id(group), pairs] = (group, made)
        return made

    def select(self, request: Request, choose_for: Chooser | None = None) -> Plan:
        """Decide for a request whose groups all get one algorithm and equally many ring channels.

        Args:
            choose_for: what decides for one communicator; `choose` by default.

        Raises:
            UsageError: a rank is not on the machine.
            UnsupportedError: a group cannot be wired or nothing can carry the operation, with the reason; or the groups
                differ in algorithm or number of channels.
        """
        comms = [self.communicator(group, pairs=bool(request.pairs)) for group in request.groups]
        counts = {len(comm.wiring.channels) for comm in comms}
        if len(counts) > 1:
            raise UnsupportedError(
                "the groups of the request get different numbers of ring channels; make one request for each"
            )
        ask = question(request, self.platform, request.select_size)
        decide = choose_for or choose
        choice = decide(comms[0], ask)
        for comm in comms[1:]:
            other = decide(comm, ask)
            if other.selected is not choice.selected or [leg.algorithm for leg in other.legs] != [
                leg.algorithm for leg in choice.legs
            ]:
                raise UnsupportedError("the groups of the request get different algorithms; make one request for each")
        return self._plan(request, comms, ask, choice, counts.pop())

    def choice_at(self, request: Request, size: int) -> Choice:
        """Return what the first group of a request takes at another size: `size` is what SELECT compares.

        Raises:
            UsageError, UnsupportedError: as `select`.
        """
        comm = self.communicator(request.groups[0], pairs=bool(request.pairs))
        return choose(comm, question(request, self.platform, size))

    def _plan(self, request: Request, comms: list[Communicator], ask: Question, choice: Choice, channels: int) -> Plan:
        first = comms[0]
        return Plan(
            request=request,
            platform=self.platform,
            selected=choice.selected,
            winner=choice.winner,
            wirings=tuple(comm.wiring for comm in comms),
            geometries=tuple(comm.geometry for comm in comms),
            verdicts=choice.verdicts,
            admissions=first.admissions,
            tables=tuple(table[ask.kind] for table in (first.offered, first.halving) if ask.kind in table),
            carrier=choice.carrier,
            legs=choice.legs,
            channels=channels,
            slices=pipeline_slices(first, choice.legs, ask.size)[0]
            if self.settings.hier_pipeline and choice.legs
            else 1,
            scope=first.scope,
            staging=ask.staging,
            settings=self.settings,
            notes=_notes(first, choice, self.settings),
        )


def select(
    request: Request, platform: Platform, settings: Settings, *, streams: int = 1, any_group: bool = False
) -> Plan:
    """Decide for one request; a `Selector` keeps the communicators for many.

    Raises:
        UsageError, UnsupportedError: as `Selector.select`.
    """
    return Selector(platform, settings, streams=streams, any_group=any_group).select(request)


def question(request: Request, platform: Platform, size: int) -> Question:
    """Return what the predicates are asked about a request at a size."""
    staging = request.staging or (Staging.STATIC if platform.shape is Shape.SWITCH else Staging.DEVICE)
    return Question(request.kind, size, staging, max(size // request.itemsize, 1) * _shards(request))


def choose(comm: Communicator, ask: Question) -> Choice:
    """Ask every predicate, and return the first that agrees, as it is reported.

    Raises:
        UnsupportedError: the runtime does not support the operation, or nothing can carry it.
    """
    verdicts = tuple((algorithm, rule(comm, ask)) for algorithm, rule in CASCADE)
    if comm.ranks == 1 or comm.settings.force_single_rank:
        return Choice(Algorithm.RING, Algorithm.RING, verdicts, None, ())
    if ask.kind in UNSUPPORTED:
        name = KIND_NAMES[ask.kind]
        raise UnsupportedError(f"{name}: not supported operation (op_type {ask.kind:d})", source=_REFUSED)
    winner = _winner(comm, ask, dict(verdicts))
    if winner is Algorithm.HIER:
        filled = legs(comm, ask.kind, ask.size, ask.staging)
        return Choice(winner, winner, verdicts, None, filled)
    tables = comm.offered if winner is Algorithm.MESH else comm.halving if winner is Algorithm.INTRA_RDH else {}
    found = tables.get(ask.kind, NO_ROWS).carrier(ask.staging, ask.size)
    reported = winner if found is None else found[0].reported
    return Choice(reported, winner, verdicts, None if found is None else found[0], ())


def _winner(comm: Communicator, ask: Question, said: Mapping[Algorithm, Verdict]) -> Algorithm:
    """Return what wins the cascade. Source: select §9, S3 to S7."""
    if ask.kind in POINT_TO_POINT:
        if not said[Algorithm.RING]:
            reason = said[Algorithm.RING].reason
            raise UnsupportedError(f"{KIND_NAMES[ask.kind]} takes a ring: {reason}", source=_NOTHING)
        return Algorithm.RING
    if ask.kind in MESH_ONLY:
        if not said[Algorithm.MESH]:
            raise UnsupportedError(
                f"{KIND_NAMES[ask.kind]} of {comm.ranks} ranks: alltoall cannot be supported without Mesh algorithm, "
                f"and {said[Algorithm.MESH].reason}",
                source=_MESH_ONLY,
            )
        return Algorithm.MESH
    forced = _forced(comm, said)
    if forced is not None:
        return forced
    flat = said[Algorithm.KANGARING] or said[Algorithm.MESH] or said[Algorithm.SINGLE_CYCLE_RING]
    if said[Algorithm.HIER] and not flat and not comm.ring:
        return Algorithm.HIER
    for algorithm, _ in CASCADE[1:]:
        if said[algorithm]:
            return algorithm
    raise UnsupportedError(
        "failed (2) to init a collective algorithm, reason: no_hier no_mesh: "
        f"{said[Algorithm.HIER].reason}; {said[Algorithm.MESH].reason}; {said[Algorithm.RING].reason}",
        source=_NOTHING,
    )


def _forced(comm: Communicator, said: Mapping[Algorithm, Verdict]) -> Algorithm | None:
    """Return the first algorithm that a mode variable forces and that agrees. Source: `FORCE_SOURCE`."""
    settings = comm.settings
    modes = (
        (Algorithm.HIER, settings.hier_mode),
        (Algorithm.KANGARING, settings.kangaring_mode),
        (Algorithm.SINGLE_CYCLE_RING, settings.single_cycle_mode),
    )
    return next((algorithm for algorithm, mode in modes if mode == FORCED and said[algorithm]), None)


def _shards(request: Request) -> int:
    return request.ranks if request.kind in (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER) else 1


def _notes(comm: Communicator, choice: Choice, settings: Settings) -> tuple[str, ...]:
    """Return what is worth saying beside the decision."""
    said: list[str] = []
    shape = comm.geometry
    hybrid = comm.platform.lnc == 2 and comm.ranks == HYBRID_RANKS and shape.per_chip == 1 and shape.node_n == 1
    if choice.selected is Algorithm.RING and hybrid and settings.hybrid_ring and len(comm.wiring.channels) == 4:
        said.append(f"a hybrid ring: {HYBRID_RANKS} ranks, one a chip, pass gateways on 4 channels [{_HYBRID}]")
    if settings.nop:
        said.append("NEURON_RT_DBG_CC_NOP=1: the runtime does nothing for this operation")
    if settings.force_single_rank:
        said.append("NEURON_RT_DBG_CC_FORCE_SINGLE_RANK_RG=1: every rank is a group of its own; results are undefined")
    return tuple(said)


def alike(request: Request, groups: tuple[tuple[int, ...], ...]) -> Request:
    """Return the request for some of its groups; pairs go with their groups."""
    members = {rank for group in groups for rank in group}
    pairs = tuple(pair for pair in request.pairs if pair[0] in members)
    return replace(request, groups=groups, pairs=pairs)
