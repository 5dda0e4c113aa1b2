"""`rota verify`: compose every collective and prove it; prove the order of a schedule's text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.sources import how_of, jobs_of, kind_named, platform_of, settings_of
from rota.cli.talk import Progress, place, print_lines, say_substitutions, talk
from rota.errors import DecodeError, RotaError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.machine.platform import Platform
    from rota.pipeline import Composed, How
    from rota.request import Job, Request
    from rota.schedule.ir import Schedule

FORM: Final = "form"
"""Stands where a finding's rule does when the rows are no schedule at all."""
DATA: Final = "data"
"""The same for what is wrong with the data."""


def verify_command(arguments: argparse.Namespace) -> int:
    """Prove everything; 1 when something is wrong or some are refused, 2 when all are refused."""
    if kind_named(arguments.source) is None and _is_schedule(Path(arguments.source)):
        return _verify_text(arguments)
    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    how = how_of(arguments, settings, jobs)
    records = [record for job in jobs for record in _verify_job(job, platform, how, single=single)]
    program = [] if single else _program_findings(jobs, platform, how.communicators)
    if arguments.json:
        document = {"schema": 1, "platform": platform.name, "nodes": platform.instances, "lnc": platform.lnc}
        print_lines([json.dumps(document | {"collectives": records, "program": program}, indent=1)])
    else:
        print_lines(_lines(records))
        print_lines(f"  program: {_told(finding)}" for finding in program)
    say_substitutions([(record["selected"], record["algorithm"]) for record in records], own=how.name)
    if all(record["refused"] for record in records):
        return USAGE
    return OK if all(record["proved"] for record in records) and not program else WRONG


def _verify_job(job: Job, platform: Platform, how: How, *, single: bool) -> Iterator[dict[str, Any]]:
    """Yield the records of one instruction; a single one raises what refuses it."""
    from rota.pipeline import split

    for note in job.notes:
        talk(f"{place(job)}{note}")
    if job.refused is not None:
        if single:
            raise UsageError(job.refused)
        yield _record(job, None, refused=job.refused)
    for request in job.requests:
        try:
            parts = split(request, platform, how)
            yield from [_verify_part(job, part, platform, how) for part in parts]
        except RotaError as error:
            if single:
                raise
            yield _record(job, request, refused=str(error))


def _verify_part(job: Job, part: Request, platform: Platform, how: How) -> dict[str, Any]:
    """Return the record of groups that get one algorithm.

    Raises:
        UsageError, UnsupportedError: it is refused.
    """
    from rota.pipeline import prove

    try:
        made = prove(part, platform, replace(how, verify=False), watch=Progress(f"{place(job)}{job.kind}"))
    except VerifyError as error:  # the composer's rows are no schedule
        findings = [_finding(FORM, text) for text in error.findings or (str(error),)]
        return _record(job, part, findings=findings) | {"algorithm": how.name or None}
    return _record(job, part, made=made, findings=_findings(made.schedule, made.request))


def _findings(schedule: Schedule, request: Request) -> list[dict[str, Any]]:
    """Return what is wrong with a schedule: its order, or, where that is proved, its data."""
    from rota.schedule.ir import Checks
    from rota.verify import executable, find_data

    found = _order_findings(schedule)
    if found:
        return found
    ordered = executable(schedule) if schedule.checks is Checks.FORM else schedule
    return [_finding(DATA, text) for text in find_data(ordered, request)]


def _order_findings(schedule: Schedule) -> list[dict[str, Any]]:
    from rota.verify import find_order

    return [_finding(found.rule, found.text, found.rows) for found in find_order(schedule)]


def _finding(rule: str, text: str, rows: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"rule": rule, "text": text, "rows": list(rows)}


def _record(
    job: Job,
    request: Request | None,
    *,
    made: Composed | None = None,
    findings: list[dict[str, Any]] | None = None,
    refused: str | None = None,
) -> dict[str, Any]:
    groups = job.groups if request is None else request.groups
    schedule = None if made is None else made.schedule
    return {
        "kind": job.kind,
        "groups": [list(group) for group in groups],
        "bytes": None if request is None else request.size,
        "selected": None if made is None else made.plan.selected.name,
        "algorithm": None if made is None else made.algorithm,
        "proved": refused is None and not findings,
        "findings": findings or [],
        "refused": refused,
        "rows": None if schedule is None else len(schedule),
        "semaphores": None if schedule is None else len(schedule.semaphores),
        "buffers": None if schedule is None else len(schedule.buffers),
        "source": {"file": job.file, "line": job.line},
    }


def _program_findings(jobs: tuple[Job, ...], platform: Platform, communicators: int) -> list[dict[str, Any]]:
    """Return what is wrong with the collectives of a file taken together: every rank enters all of its groups in order.

    Source: compose §1.1 for the limits.
    """
    from rota.isa.streams import STREAMS
    from rota.verify.program import Call, Program, find_program

    calls: list[list[Call]] = [[] for _ in range(platform.ranks)]
    for job in jobs:
        for request in job.requests:
            for group in request.groups:
                call = Call(job.kind, job.dtype, request.count, group, job.stream)
                for rank in group:
                    if rank < platform.ranks:
                        calls[rank].append(call)
    program = Program(tuple(map(tuple, calls)))
    found = find_program(program, communicators=communicators, streams=STREAMS)
    return [_finding(finding.rule, finding.text) for finding in found]


_COLUMNS: Final = (
    ("line", 5),
    ("kind", 14),
    ("groups", 7),
    ("algorithm", 17),
    ("rows", 9),
    ("semaphores", 10),
    ("proved", 6),
)


def _lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table; under a row that is wrong, its findings with their rules."""
    longest = max((len(_text(record["algorithm"])) for record in records), default=0)
    widths = [max(width, longest) if name == "algorithm" else width for name, width in _COLUMNS]
    yield "# " + " ".join(f"{name:>{width}}" for (name, _), width in zip(_COLUMNS, widths, strict=True))
    for record in records:
        cells = (
            _text(record["source"]["line"]),
            record["kind"],
            f"{len(record['groups'])}x{max(map(len, record['groups']), default=0)}",
            _text(record["algorithm"]),
            _text(record["rows"]),
            _text(record["semaphores"]),
            "yes" if record["proved"] else "-" if record["refused"] else "NO",
        )
        line = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"  {line}" + (f"  refused: {record['refused']}" if record["refused"] else "")
        yield from (f"        {_told(finding)}" for finding in record["findings"])


def _told(finding: dict[str, Any]) -> str:
    return f"{finding['rule']}: {finding['text']}"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


# --- the text of a schedule -------------------------------------------------------------------------------------------


def _is_schedule(path: Path) -> bool:
    """Return whether a file begins as the text of a schedule does, of whatever version."""
    try:
        with path.open("rb") as file:
            lines = (line.strip() for line in file)
            first = next((line for line in lines if line and not line.startswith(b"#")), b"")
    except OSError:
        return False
    return first.split()[:1] == [b"schedule"]


_OF_A_COLLECTIVE: Final = ("algorithm", "ranks", "groups", "pairs", "size", "dtype", "op", "scale", "root", "counts")


def _verify_text(arguments: argparse.Namespace) -> int:
    """Prove the order of a schedule's text.

    Raises:
        UsageError: options that say something of a collective; a line that means nothing.
    """
    from rota.schedule.ir import Checks
    from rota.schedule.text import parse

    path = Path(arguments.source)
    for name in _OF_A_COLLECTIVE:
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name}: goes with a collective; {path} is the text of a schedule")
    rows: int | None = None
    try:
        schedule = parse(path.read_text(encoding="utf-8"), checks=Checks.FORM)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is no text; expected a schedule") from None
    except DecodeError as error:
        raise UsageError(f"{path}: line {error.offset}: expected {error.expected}, got {error.got}") from None
    except VerifyError as error:
        findings = [_finding(FORM, text) for text in error.findings or (str(error),)]
    else:
        rows, findings = len(schedule), _order_findings(schedule)
    if arguments.json:
        document = {"schema": 1, "file": str(path), "rows": rows, "proved": not findings, "findings": findings}
        print_lines([json.dumps(document, indent=1)])
    else:
        print_lines(map(_told, findings) if findings else [f"{path}: {rows} rows, all executions end alike"])
        talk("a schedule's text says no collective, so only its order is proved")
    return WRONG if findings else OK
