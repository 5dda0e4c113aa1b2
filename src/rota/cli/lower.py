"""`rota lower`: write what each rank loads."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.sources import how_of, jobs_of, platform_of, settings_of
from rota.cli.talk import Progress, place, print_lines, say_substitutions, talk
from rota.errors import RotaError, UnsupportedError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.machine.platform import Platform
    from rota.pipeline import How
    from rota.request import Groups, Job, Request


def lower_command(arguments: argparse.Namespace) -> int:
    """Lower every collective into its directory; 1 when some are refused, 2 when all are."""
    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    done = _Lowering(platform, how_of(arguments, settings), arguments.output, single)
    for number, job in enumerate(jobs):
        for note in job.notes:
            talk(f"{place(job)}{note}")
        try:
            if job.refused is not None:
                raise UsageError(job.refused)
            _lower_job(number, job, done)
        except VerifyError:
            raise
        except RotaError as error:
            if single:
                raise
            done.refused += 1
            talk(f"{place(job)}{job.kind} refused: {error}")
    if arguments.neff is not None and done.words:
        from rota.frontends.neff_writer import neff_of, write_neff_file

        write_neff_file(arguments.neff, neff_of(done.words, platform))
    _print(done, as_json=arguments.json)
    say_substitutions([(entry["selected"], entry["algorithm"]) for entry in done.written])
    return USAGE if not done.written else (WRONG if done.refused else OK)


@dataclass(slots=True)
class _Lowering:
    """How everything is lowered, and what was written so far."""

    platform: Platform
    how: How
    output: Path
    single: bool
    written: list[dict[str, Any]] = field(default_factory=list)
    words: list[tuple[int, bytes, Groups]] = field(default_factory=list)
    refused: int = 0


def _lower_job(number: int, job: Job, done: _Lowering) -> None:
    from rota.pipeline import split

    for request in job.requests:
        _check_emitted(job, request, done.how)
    parts = [part for request in job.requests for part in split(request, done.platform, done.how)]
    for index, part in enumerate(parts):
        several = f"-{index}" if len(parts) > 1 else ""
        alone = done.single and len(parts) == 1
        directory = done.output if alone else done.output / f"{number:03d}-{job.kind}{several}"
        _lower_part(number, job, part, directory, done)


def _check_emitted(job: Job, request: Request, how: How) -> None:
    """Refuse what can be composed and run on arrays, and has no bytes yet.

    Raises:
        UnsupportedError: a user's own algorithm, or what the runtime does not do.
    """
    from rota.compose.extensions import EXTENSIONS

    if how.composer is not None:
        raise UnsupportedError(f"{how.name} is not emitted in this version; `rota run` and `rota verify` take it")
    if how.extensions and (request.kind in EXTENSIONS or request.gather_counts):
        unequal = " of unequal shards" if request.gather_counts else ""
        raise UnsupportedError(
            f"{job.kind}{unequal} is not emitted in this version; `rota run` and `rota verify` do it"
        )


def _lower_part(number: int, job: Job, part: Request, directory: Path, done: _Lowering) -> None:
    from rota.device.disasm import counts
    from rota.emit import write_images
    from rota.pipeline import lower

    progress = Progress(f"{place(job)}{job.kind}")
    lowered = lower(part, done.platform, done.how, word=job.word, watch=progress)
    write_images(directory, lowered.images, part, done.platform, lowered.word)
    done.words.append((number, lowered.word, part.groups))
    totals = [counts(image) for image in lowered.images]
    sums = {name: sum(total[name] for total in totals) for name in ("bytes", "rows", "tx", "rx")}
    done.written.append(
        {
            "directory": str(directory),
            "request": part.to_text(),
            "selected": lowered.composed.plan.selected.name,
            "algorithm": lowered.composed.algorithm,
            "images": len(totals),
            **sums,
        }
    )


def _print(done: _Lowering, *, as_json: bool) -> None:
    if as_json:
        print_lines([json.dumps({"schema": 1, "platform": done.platform.name, "lowered": done.written}, indent=1)])
        return
    names = ("images", "rows", "tx", "rx", "bytes", "directory")
    print_lines([f"# {'images':>6} {'rows':>9} {'tx':>9} {'rx':>9} {'bytes':>11} directory"])
    widths = (8, 9, 9, 9, 11, 0)
    print_lines(
        " ".join(f"{entry[name]:>{width}}" for name, width in zip(names, widths, strict=True)) for entry in done.written
    )
