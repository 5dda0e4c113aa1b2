"""`rota explain`: a decision a person can follow, and the algorithm by size."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.sources import jobs_of, platform_of, settings_of, streams_of
from rota.cli.talk import place, print_lines
from rota.errors import RotaError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from rota.isa.enums import Algorithm
    from rota.report.explain import Explanation
    from rota.request import Job, Request
    from rota.select.choose import Selector

_LEAST, _MOST = 1, 1 << 40  # bytes between which a size that would change a decision is looked for


def explain(arguments: argparse.Namespace) -> int:
    """Explain every collective; 1 when some are refused, 2 when all are."""
    from rota.report.explain import explain_text
    from rota.report.explain_json import explain_json
    from rota.select.choose import Selector

    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    selector = Selector(platform, settings, streams=streams_of(jobs), any_group=arguments.any_group)
    if arguments.sweep is not None:
        return _sweep(arguments, jobs, selector, single=single)
    documents: list[dict[str, Any]] = []
    refused = 0
    for job in jobs:
        where = {"source": {"file": job.file, "line": job.line}}
        for part, reason in _parts(job, selector, single=single):
            if reason is not None:
                refused += 1
                documents.append({"schema": 1, "refused": reason, **where})
                print_lines([] if arguments.json else [f"{place(job)}{job.kind} refused: {reason}", ""])
            elif part is not None:
                phases = _phases(part, single=single) if arguments.phases else None
                documents.append(explain_json(part) | ({} if phases is None else {"phases": phases[1]}) | where)
                if not arguments.json:
                    print_lines([] if single else [place(job).rstrip()])
                    lines = [] if phases is None else phases[0]
                    print_lines([*explain_text(part, sources=arguments.sources), *lines, ""])
    if arguments.json:
        document = documents[0] if len(documents) == 1 and single else {"schema": 1, "collectives": documents}
        print_lines([json.dumps(document, indent=1, allow_nan=False)])
    return USAGE if refused == len(documents) else (WRONG if refused else OK)


def _parts(job: Job, selector: Selector, *, single: bool) -> list[tuple[Explanation | None, str | None]]:
    """Return what can be explained of a job and why the rest is refused; a named operation's refusal is raised."""
    if job.refused is not None:
        if single:
            raise UsageError(job.refused)
        return [(None, job.refused)]
    parts: list[tuple[Explanation | None, str | None]] = []
    for request in job.requests:
        try:
            parts += [(_explanation(part, selector), None) for part in _split(request, selector)]
        except RotaError as error:
            if single:
                raise
            parts.append((None, str(error)))
    return parts


def _split(request: Request, selector: Selector) -> list[Request]:
    """Return the request as requests whose groups get one algorithm, the same legs and equally many channels."""
    from rota.select.choose import alike

    if selector.settings.sort_groups:
        request = replace(request, groups=tuple(tuple(sorted(group)) for group in request.groups))
    found: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for group in request.groups:
        plan = selector.select(alike(request, (group,)))
        key = (-plan.channels, -plan.selected, tuple(leg.algorithm for leg in plan.legs))
        found.setdefault(key, []).append(group)
    return [alike(request, tuple(groups)) for _, groups in sorted(found.items())]


def _explanation(request: Request, selector: Selector) -> Explanation:
    from rota.compose.support import composed
    from rota.report.explain import Explanation
    from rota.select.whatif import switch_points, what_if

    plan = selector.select(request)
    try:
        algorithm, verdict = composed(plan)
        made: Algorithm | None = algorithm
        because = "" if verdict else verdict.reason
    except UnsupportedError as error:
        made, because = None, str(error)
    ranges = switch_points(selector, request, _LEAST, _MOST)
    return Explanation(plan, selector.platform, made, because, ranges, what_if(selector, request))


def _phases(part: Explanation, *, single: bool) -> tuple[list[str], list[dict[str, Any]]] | None:
    """Return the phases as lines and as records; None for what has none in a file, a refusal when it was named."""
    from rota.report.phases import phases_json, phases_text

    try:
        return list(phases_text(part.plan, part.platform)), phases_json(part.plan, part.platform)
    except UsageError:
        if single:
            raise
        return None


def _sweep(arguments: argparse.Namespace, jobs: tuple[Job, ...], selector: Selector, *, single: bool) -> int:
    from rota.report.sweep import Sweep, sweep_json, sweep_text
    from rota.select.whatif import switch_points

    low, high = _bounds(arguments.sweep)
    if not single or arguments.size is not None:
        raise UsageError("--sweep: goes with an operation name, and without --size")
    (job,) = jobs
    if job.refused is not None:
        raise UsageError(job.refused)
    sweeps = []
    for request in job.requests:
        ranges = switch_points(selector, request, low, high)
        if not ranges:
            raise UsageError(f"--sweep {arguments.sweep}: no size in it gives each of {request.ranks} ranks an element")
        if all(each.algorithm is None for each in ranges):
            selector.select(request)  # refuses it with the whole sentence
        sweeps.append(Sweep(request, selector.platform, low, high, ranges))
    if arguments.json:
        documents = [sweep_json(sweep) for sweep in sweeps]
        document = documents[0] if len(documents) == 1 else {"schema": 1, "sweeps": documents}
        print_lines([json.dumps(document, indent=1, allow_nan=False)])
    else:
        for sweep in sweeps:
            print_lines([*sweep_text(sweep), ""])
    return OK if any(each.algorithm is not None for sweep in sweeps for each in sweep.ranges) else USAGE


def _bounds(text: str) -> tuple[int, int]:
    from rota.units import parse_size

    low, colon, high = text.partition(":")
    if not colon:
        raise UsageError(f"--sweep {text[:40]}: expected LOW:HIGH, for example 1K:1G")
    bounds = parse_size(low), parse_size(high)
    if bounds[0] >= bounds[1]:
        raise UsageError(f"--sweep {text[:40]}: expected a size below {high[:20]} before the colon")
    return bounds
