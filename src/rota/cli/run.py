"""`rota run`: lower, run on the device model, compare and time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.sources import DEFAULT_PLATFORM, jobs_of, platform_of, settings_of
from rota.cli.talk import Progress, place, print_lines, say_substitutions, talk
from rota.errors import RotaError, StuckError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.machine.platform import Platform
    from rota.report.rows import Row
    from rota.request import Job
    from rota.select.settings import Settings


def run_command(arguments: argparse.Namespace) -> int:
    """Run every collective; 1 when a result is wrong or some are refused, 2 when all are."""
    from rota.report.rows import table

    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    how = _How(platform, settings, arguments.seed, arguments.any_group, single)
    rows = [row for job in jobs for row in _run_job(job, how)]
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
    say_substitutions([(row.selected, row.algorithm) for row in rows])
    if all(row.refused for row in rows):
        return USAGE
    return OK if all(row.good for row in rows) else WRONG


@dataclass(frozen=True, slots=True)
class _How:
    """How every collective of a command is run; a single one raises what refuses it."""

    platform: Platform
    settings: Settings
    seed: int
    any_group: bool
    single: bool


def _run_job(job: Job, how: _How) -> Iterator[Row]:
    from rota.pipeline import run, split
    from rota.report.rows import refused_row, row_of

    for note in job.notes:
        talk(f"{place(job)}{note}")
    if job.refused is not None:
        if how.single:
            raise UsageError(job.refused)
        yield refused_row(job, job.refused)
    for request in job.requests:
        progress = Progress(f"{place(job)}{job.kind}")
        try:
            parts = split(request, how.platform, how.settings, any_group=how.any_group)
            outcomes = [
                run(
                    part,
                    how.platform,
                    seed=how.seed,
                    settings=how.settings,
                    word=job.word,
                    any_group=how.any_group,
                    watch=progress,
                )
                for part in parts
            ]
        except (VerifyError, StuckError):
            raise
        except RotaError as error:
            if how.single:
                raise
            yield refused_row(job, str(error), request)
            continue
        for outcome in outcomes:
            for warning in outcome.warnings:
                talk(f"{place(job)}warning: {warning}")
        yield row_of(job, request, outcomes)
