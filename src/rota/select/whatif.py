"""What would change a decision: the sizes at which another algorithm takes over, and the settings that turn it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm, EncOp
from rota.request import Request
from rota.select.choose import Choice, Selector
from rota.select.communicator import Communicator
from rota.select.hierarchy import SLOTS
from rota.select.rules import edges
from rota.select.settings import Settings

_SHARED: Final = (EncOp.ALLGATHER, EncOp.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes that one choice serves, whole-buffer bytes, both ends included.

    Attributes:
        algorithm: as reported; None where the operation is refused, and `refused` says why, of the first size.
        legs: slot -> algorithm of a hierarchy.
    """

    first: int
    last: int
    algorithm: Algorithm | None
    legs: tuple[tuple[str, Algorithm], ...] = ()
    refused: str = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return "refused" if self.algorithm is None else self.algorithm.name


@dataclass(frozen=True, slots=True)
class Change:
    """A setting, and what it would let win; None where the operation would be refused."""

    variable: str
    value: str
    algorithm: Algorithm | None
    legs: tuple[tuple[str, Algorithm], ...] = ()

    @property
    def what(self) -> str:
        """The assignment, as a shell writes it."""
        return f"{self.variable}={self.value}"

    @property
    def name(self) -> str:
        """What would win, with the legs of a hierarchy."""
        if self.algorithm is None:
            return "refused"
        legs = ", ".join(f"{slot} {algorithm.name}" for slot, algorithm in self.legs)
        return f"{self.algorithm.name} ({legs})" if legs else self.algorithm.name


def switch_points(selector: Selector, request: Request, low: int, high: int) -> tuple[SizeRange, ...]:
    """Return the choices of the request's first group between two whole-buffer sizes, exact to the element.

    Sizes are whole elements (of every shard, for a sharded operation) and at least one; ranges without any are left
    out.

    Args:
        low, high: bytes; both ends are included.

    Raises:
        UsageError, UnsupportedError: the group itself is refused.
    """
    comm = selector.communicator(request.groups[0], pairs=bool(request.pairs))
    shards = request.ranks if request.kind in _SHARED else 1
    unit = request.itemsize
    first, last = max(-(-low // (shards * unit)), 1), high // (shards * unit)
    if last < first:
        return ()
    edges = {first, last + 1}
    least = (request.ranks - 1) * unit // shards  # below it some rank gets no element of a buffer that is cut
    for limit in (least, *_limits(comm, request.kind)):
        edges.add(min(max(limit // unit + 1, first), last + 1))
    starts = sorted(edges)
    ranges: list[SizeRange] = []
    for start, end in pairwise(starts):
        found = _range(selector, request, start * unit, start * unit * shards, (end - 1) * unit * shards)
        if ranges and (ranges[-1].algorithm, ranges[-1].legs) == (found.algorithm, found.legs):
            ranges[-1] = replace(ranges[-1], last=found.last)
        else:
            ranges.append(found)
    return tuple(ranges)


def _range(selector: Selector, request: Request, size: int, first: int, last: int) -> SizeRange:
    try:
        choice = selector.choice_at(request, size)
    except UnsupportedError as error:
        return SizeRange(first, last, None, refused=str(error))
    return SizeRange(first, last, choice.selected, _legs(choice))


def _legs(choice: Choice) -> tuple[tuple[str, Algorithm], ...]:
    return tuple((leg.slot, leg.algorithm) for leg in choice.legs if leg.used)


def _limits(comm: Communicator, kind: EncOp) -> Iterator[int]:
    """Yield every size, as SELECT compares it, at which some rule may change its answer."""
    yield from edges(comm, kind)
    if comm.intra is None or comm.inter is None:
        return
    for _, scope, op, _ in SLOTS:
        level = comm.intra if scope == "intra" else comm.inter
        times = 1 if scope == "intra" else comm.inter.nodes
        for limit in edges(level, op):
            yield limit // times * comm.intra.ranks


# --- settings ---------------------------------------------------------------------------------------------------------

FLIPS: Final[tuple[tuple[str, str, Callable[[Settings], Settings]], ...]] = (
    ("NEURON_RT_DBG_MESH_CC", "0", lambda settings: replace(settings, mesh=False)),
    ("NEURON_RT_DBG_RDH_CC", "0", lambda settings: replace(settings, rdh_mode=0)),
    ("NEURON_RT_DBG_KANGARING_CC", "1", lambda settings: replace(settings, kangaring_mode=1)),
    ("NEURON_RT_DBG_KANGARING_CC", "2", lambda settings: replace(settings, kangaring_mode=2)),
    ("NEURON_RT_DBG_SINGLE_CYCLE_RING_ALLR_CC", "0", lambda settings: replace(settings, single_cycle_mode=0)),
    ("NEURON_RT_DBG_HIERARCHICAL_CC", "2", lambda settings: replace(settings, hier_mode=2)),
    ("NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES", "0", lambda settings: replace(settings, inter_mesh_max_nodes=0)),
)
"""Settings that may turn a decision, each on its own."""


def what_if(selector: Selector, request: Request) -> tuple[Change, ...]:
    """Return the settings that would change the choice of the request's first group, each changed alone."""
    size = request.select_size
    now = selector.choice_at(request, size)
    changes: list[Change] = []
    for variable, value, flip in FLIPS:
        settings = flip(selector.settings)
        if settings == selector.settings:
            continue
        other = Selector(selector.platform, settings, streams=selector.streams, any_group=selector.any_group)
        try:
            choice = other.choice_at(request, size)
        except UnsupportedError:
            changes.append(Change(variable, value, None))
            continue
        if choice.selected is not now.selected or _legs(choice) != _legs(now):
            changes.append(Change(variable, value, choice.selected, _legs(choice)))
    return tuple(changes)
