"""A decision a person can follow: what was asked, what each rule said and why, and what would change it.

The same as a document for programs is in `explain_json`, the runtime's own lines in `log_lines`, an algorithm by size
in `sweep`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rota.facts import Source, Verdict
from rota.isa.dtypes import short_name
from rota.isa.enums import Algorithm
from rota.machine.group import Wiring, format_ranks
from rota.machine.platform import Platform, Shape
from rota.report.log_lines import ALL_REDUCE_SOURCE, HIER_SOURCE, log_lines
from rota.report.pieces import CHUNK_SOURCE, GRANULE_SOURCE, pieces_of
from rota.report.text import bracketed, machine, size_text
from rota.request import COMPOSED, KIND_NAMES, OP_NAMES, Request, Staging
from rota.select.choose import CASCADE_SOURCE, Plan
from rota.select.hierarchy import SLICES_SOURCE, Leg
from rota.select.limits import LimitRead, Row
from rota.select.movement import LOADS_SOURCE, ROUNDINGS_SOURCE, link_loads, roundings
from rota.select.rules import RING_OPS
from rota.select.settings import SLOTS_SOURCE, changed
from rota.select.whatif import Change, SizeRange
from rota.units import format_size

SIZE_SOURCE: Final = Source("select", "1.1")
_SHOWN: Final = 4  # groups, and channels of the first group


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision and what belongs to it.

    Attributes:
        composed: what this version composes for it; None where it composes nothing, and then `because` says why.
        ranges: what the request gets at every size; the one that holds its size has neighbours.
        settings: what would turn the decision at this size.
    """

    plan: Plan
    platform: Platform
    composed: Algorithm | None
    because: str = ""
    ranges: tuple[SizeRange, ...] = ()
    settings: tuple[Change, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Return what is worth saying of the decision."""
        chips = self.plan.geometries[0].chips
        if self.platform.shape is not Shape.SWITCH or len(chips) > 1 or self.plan.request.ranks == 1:
            return self.plan.notes
        path = f"the group lies on chip {chips[0]} alone: it takes the on-chip path, with the limits of one device"
        return (*self.plan.notes, f"{path}; the switch's own tables begin at two chips")

    def changes(self) -> Iterator[tuple[str, Algorithm | None, str]]:
        """Yield what would change the decision, what would win, and what more there is to say of it."""
        size = self.plan.request.size
        below = [each for each in self.ranges if each.last < size]
        here = [each for each in self.ranges if each.first <= size <= each.last]
        above = [each for each in self.ranges if each.first > size]
        if below:
            yield f"up to {format_size(below[-1].last)}", below[-1].algorithm, _more(below[-1])
        if above:
            edge = here[-1].last if here else above[0].first - 1
            yield f"above {format_size(edge)}", above[0].algorithm, _more(above[0])
        for change in self.settings:
            other = " (other legs)" if change.algorithm is self.plan.selected else ""
            yield f"{change.variable}={change.value}", change.algorithm, other


def explain_text(explanation: Explanation, *, sources: bool = False) -> Iterator[str]:
    """Yield the lines of an explanation; with sources, every choice ends with its own in brackets."""
    words = _Words(sources)
    plan, platform = explanation.plan, explanation.platform
    yield f"request    {asked(plan.request)} on {machine(platform)}"
    yield _size_line(plan.request, words)
    yield from _groups(plan.wirings, words)
    for name, value in changed(plan.settings).items():
        yield f"setting    {name}={value}"
    yield from (f"note       {note}" for note in explanation.notes())
    order = "every rule is asked, the first yes wins, HIER only where no flat one does"
    yield f"cascade    {order}{words.by(CASCADE_SOURCE)}"
    yield from _verdicts(plan.verdicts, words)
    yield from _limits(plan.limits, words)
    yield f"selected   {plan.selected.name}{_refined(plan)}"
    yield from _legs(plan.legs, words)
    yield from _movement(plan, words)
    if explanation.composed is None:
        yield f"composed   nothing: {explanation.because}"
    elif explanation.composed is not plan.selected:
        yield f"composed   {explanation.composed.name}: {explanation.because}"
    for what, algorithm, more in explanation.changes():
        yield f"instead    {what} -> {'refused' if algorithm is None else algorithm.name}{more}"
    yield from _rings(explanation, words)
    yield from _log(plan, platform, words)


def _movement(plan: Plan, words: _Words) -> Iterator[str]:
    """Say how often a contribution is rounded, and what recursive doubling asks of the cables."""
    times = roundings(plan)
    if times is not None:
        often = f"{times} time{'s' * (times > 1)} at most, once in each row that combines"
        yield f"rounded    {often}{words.by(ROUNDINGS_SOURCE)}"
    loads = link_loads(plan)
    if loads is not None:
        fixed, rotated, mesh = loads
        lanes = f"with lanes on different axes {rotated}, a mesh {mesh}"
        yield f"links      a gather puts {fixed} shards on the busiest cable, {lanes}{words.by(LOADS_SOURCE)}"


def asked(request: Request) -> str:
    """Return what a request asks for, as people say it."""
    op = "" if request.op is None else f" {OP_NAMES[request.op]}"
    groups = len(request.groups)
    ranks = f"{request.ranks} rank{'s' * (request.ranks != 1)}"
    return f"{KIND_NAMES[request.kind]}{op}, {short_name(request.dtype)}, {groups} group{'s' * (groups > 1)} of {ranks}"


def _more(found: SizeRange) -> str:
    legs = " ".join(f"{slot}={algorithm.name}" for slot, algorithm in found.legs)
    return f" ({legs or found.refused})" if legs or found.refused else ""


@dataclass(frozen=True, slots=True)
class _Words:
    """How much is said of where things come from."""

    sources: bool

    def by(self, source: Source | None) -> str:
        return bracketed(source) if self.sources else ""

    def reason(self, verdict: Verdict) -> str:
        return verdict.reason + self.by(verdict.source)


def _size_line(request: Request, words: _Words) -> str:
    whole, seen = size_text(request.size), size_text(request.select_size)
    symbol = "B" if request.select_size == request.size else "C = B / ranks"
    return f"size       whole buffer B = {whole}; SELECT compares {symbol} = {seen}{words.by(SIZE_SOURCE)}"


def _groups(wirings: Sequence[Wiring], words: _Words) -> Iterator[str]:
    for wiring in wirings[:_SHOWN]:
        yield f"group      {format_ranks(sorted(wiring.ranks))}: {words.reason(wiring.verdict)}"
        yield from (f"warning    {warning}" for warning in wiring.warnings)
    if len(wirings) > _SHOWN:
        yield f"group      ... and {len(wirings) - _SHOWN} more"


def _verdicts(verdicts: Sequence[tuple[Algorithm, Verdict]], words: _Words, indent: str = "  ") -> Iterator[str]:
    for rule, verdict in verdicts:
        yield f"{indent}{rule.name:<18} {'yes' if verdict else 'no':<4} {words.reason(verdict)}"


def _limits(limits: Sequence[LimitRead], words: _Words, indent: str = "") -> Iterator[str]:
    if not limits:
        return
    staging = limits[0].staging
    twin, other = ("_sbuf", "plain") if staging is Staging.STATIC else ("plain", "_sbuf")
    yield f"{indent}limits     the {twin} rows are read, because the operands' staging is {staging.value}"
    for read in limits:
        held = _other(read.row, staging)
        same = "the same" if held == read.row.text(staging) else held
        name = f"{read.subtype.slot} {read.subtype.name}"
        mark = "takes" if read.admits else "not"
        yield (
            f"{indent}  {name:<24} {mark:<5} {format_size(read.size)}: {read.row.text(staging)} "
            f"(the {other} row: {same}){words.by(read.row.source)}"
        )


def _other(row: Row, staging: Staging) -> str:
    return row.text(Staging.DEVICE if staging is Staging.STATIC else Staging.STATIC)


def _refined(plan: Plan) -> str:
    if plan.selected is plan.winner:
        return ""
    return f": {plan.winner.name} wins, and its subtype reports {plan.selected.name}"


def _legs(legs: Sequence[Leg], words: _Words) -> Iterator[str]:
    if not legs:
        return
    yield f"legs       each takes the first that says yes{words.by(SLICES_SOURCE)}"
    for leg in legs:
        if not leg.used:
            yield f"  {leg.slot:<13} {leg.algorithm.name}, which this operation does not use"
            continue
        refined = "" if leg.reported is leg.algorithm else f" ({leg.reported.name})"
        yield f"  {leg.slot:<13} {leg.algorithm.name}{refined}, for slices of {size_text(leg.size)}"
        yield from _verdicts(leg.verdicts, words, "    ")
        yield from _limits(leg.limits, words, "    ")


def _rings(explanation: Explanation, words: _Words) -> Iterator[str]:
    """Yield the rings of the first group, where the operation may go round them, and how they cut the buffer."""
    request, settings = explanation.plan.request, explanation.plan.settings
    if request.kind not in RING_OPS:
        return
    first = explanation.plan.wirings[0]
    if not first.channels:
        alone = request.ranks == 1
        why = "a group of one rank copies its input to its output" if alone else words.reason(first.verdict)
        yield f"ring       none: {why}"
        return
    channels = len(first.channels)
    if request.kind in COMPOSED:
        pieces = pieces_of(request.kind, request.size, ranks=request.ranks, channels=channels, chunk=settings.chunk)
        yield f"ring       {channels} channels, {pieces.groups} chunk groups{words.by(CHUNK_SOURCE)}"
        largest = size_text(pieces.largest)
        yield f"           half-chunks of at most {largest}, cut at 32 bytes{words.by(GRANULE_SOURCE)}"
        slots = f"{settings.slots} slots, one half-chunk each, which is the credit of a channel"
        yield f"           {slots}{words.by(SLOTS_SOURCE)}"
    else:
        yield f"ring       {channels} channels"
    for i, channel in enumerate(first.channels[:_SHOWN]):
        gateways = sum(channel.gateway)
        through = f"; {gateways} hops through a gateway" if gateways else ""
        yield f"  channel {i}: {' '.join(map(str, channel.order))}{through}"


def _log(plan: Plan, platform: Platform, words: _Words) -> Iterator[str]:
    source = HIER_SOURCE if plan.legs else ALL_REDUCE_SOURCE
    for i, line in enumerate(log_lines(plan, platform)):
        yield f"{'' if i else 'log':<11}{line}{'' if i else words.by(source)}"
