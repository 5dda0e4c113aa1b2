"""`rota run`: compose, prove, execute, run on the device model what is emitted, compare and time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.sources import DEFAULT_PLATFORM, how_of, jobs_of, platform_of, settings_of
from rota.cli.talk import Progress, place, print_lines, say_not_on_device, say_substitutions, talk
from rota.errors import RotaError, StuckError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.machine.platform import Platform
    from rota.pipeline import How
    from rota.report.rows import Row
    from rota.request import Job


def run_command(arguments: argparse.Namespace) -> int:
    """Run every collective; 1 when a result is wrong or some are refused, 2 when all are."""
    from rota.report.rows import table

    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    how = how_of(arguments, settings)
    rows = [row for job in jobs for row in _run_job(job, platform, how, single=single)]
    if arguments.json:
        document = {"schema": 1, "platform": platform.name, "nodes": platform.instances, "lnc": platform.lnc}
        document["seed"] = arguments.seed
        print_lines(
            [json.dumps(document | {"collectives": [row.to_json() for row in rows]}, indent=1, allow_nan=False)]
        )
    else:
        several = f"{platform.instances} x " if platform.instances > 1 else ""
        default = " (default)" if arguments.platform == DEFAULT_PLATFORM else ""
        machine = f"{several}{platform.name}{default} of {platform.ranks} ranks"
        print_lines([f"# rota run {arguments.source}: {machine}, seed {arguments.seed}"])
        print_lines(table(rows))
    say_substitutions([(row.selected, row.algorithm) for row in rows], own=how.name)
    say_not_on_device([row.not_on_device for row in rows])
    if arguments.no_verify:
        talk("--no-verify: nothing was proved")
    if all(row.refused for row in rows):
        return USAGE
    return OK if all(row.good for row in rows) else WRONG


def _run_job(job: Job, platform: Platform, how: How, *, single: bool) -> Iterator[Row]:
    """Yield the rows of one instruction; a single one raises what refuses it."""
    from rota.pipeline import run, split
    from rota.report.rows import refused_row, row_of

    for note in job.notes:
        talk(f"{place(job)}{note}")
    if job.refused is not None:
        if single:
            raise UsageError(job.refused)
        yield refused_row(job, job.refused)
    for request in job.requests:
        progress = Progress(f"{place(job)}{job.kind}")
        try:
            parts = split(request, platform, how)
            outcomes = [run(part, platform, how, word=job.word, watch=progress) for part in parts]
        except (VerifyError, StuckError):
            raise
        except RotaError as error:
            if single:
                raise
            yield refused_row(job, str(error), request)
            continue
        for warning in dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings):
            talk(f"{place(job)}warning: {warning}")
        yield row_of(job, request, outcomes)
