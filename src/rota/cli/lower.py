"""`rota lower`: write what each rank loads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.run_images import short_request
from rota.cli.sb2sb import asks_for_sb2sb, lower_move
from rota.cli.sources import how_of, jobs_of, platform_of, settings_of
from rota.cli.talk import Progress, place, print_lines, say_substitutions, talk
from rota.errors import RotaError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.machine.platform import Platform
    from rota.pipeline import Composed, How, Lowered
    from rota.program import Loaded, Step
    from rota.request import Job


def lower_command(arguments: argparse.Namespace) -> int:
    """Lower all collectives as one program; 1 when some are refused, 2 when all are."""
    if asks_for_sb2sb(arguments):
        return lower_move(arguments)
    if arguments.rank is not None and not arguments.log:
        raise UsageError("--rank: goes with --log, the lines of which rank; leave it out")
    if not (arguments.output or arguments.neff or arguments.stages or arguments.log):
        raise UsageError("-o DIR: missing; name the directory to write, or ask for --neff, --stages or --log alone")
    from rota.frontends.tensors import bind_tensors, tensors_of

    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    how = how_of(arguments, settings, jobs)
    made: list[_Part] = []
    requests = refused = 0
    for number, job in enumerate(bind_tensors(jobs)):
        for note in job.notes:
            talk(f"{place(job)}{note}")
        try:
            every = _prove(job, platform, how)
        except VerifyError:
            raise
        except RotaError as error:
            if single:
                raise
            refused += 1
            talk(f"{place(job)}{job.kind} refused: {error}")
            continue
        for index, parts in enumerate(every):
            tensors = tensors_of(job, index, parts, number=requests)
            requests += 1
            made += [_Part(number, job, each, names) for each, names in zip(parts, tensors, strict=True)]
    if not made:
        return USAGE
    _write(arguments, made, platform, how)
    say_substitutions([(part.made.plan.selected.name, part.made.algorithm) for part in made])
    return WRONG if refused else OK


@dataclass(frozen=True, slots=True)
class _Part:
    """One collective of the program: its job, with its number; what it is composed to; its tensors."""

    number: int
    job: Job
    made: Composed
    tensors: tuple[str, str]


def _prove(job: Job, platform: Platform, how: How) -> list[list[Composed]]:
    """Return what each request of a job is composed to."""
    from rota.pipeline import prove, split

    if job.refused is not None:
        raise UsageError(job.refused)
    progress = Progress(f"{place(job)}{job.kind}")
    every = [split(request, platform, how) for request in job.requests]
    return [[prove(part, platform, how, watch=progress) for part in parts] for parts in every]


def _write(arguments: argparse.Namespace, made: list[_Part], platform: Platform, how: How) -> None:
    from rota.emit import write_images
    from rota.frontends.tensors import program_words
    from rota.program import load_program, steps_of
    from rota.report.resources import resources_json

    words = program_words([(part.job, part.made.request, part.tensors) for part in made])
    stream = b"".join(word for _, word in dict.fromkeys(zip((part.number for part in made), words, strict=True)))
    tensors, streams = [part.tensors for part in made], [part.job.stream for part in made]
    steps = steps_of([part.made for part in made], tensors, streams)
    loaded = load_program(steps, platform, words=stream, seed=how.seed, communicators=how.communicators)
    said = _said(arguments, steps, words, loaded, platform)
    collectives = [
        {
            "request": step.made.request.to_text(),
            "selected": step.made.plan.selected.name,
            "algorithm": step.made.algorithm,
            "input": step.input,
            "output": step.output,
            "entries": entries,
        }
        for step, entries in zip(steps, loaded.entries, strict=True)
    ]
    head = {
        "platform": platform.name,
        "nodes": platform.instances,
        "lnc": platform.lnc,
        "seed": arguments.seed,
        "collectives": collectives,
        "resources": resources_json(loaded.resources),
    }
    if arguments.output is not None:
        write_images(arguments.output, loaded.images, loaded.ranks, head=head, words=stream)
    if arguments.neff is not None:
        from rota.frontends.neff_writer import neff_of, write_neff_file

        grouped = [(part.number, word, part.made.request.groups) for part, word in zip(made, words, strict=True)]
        write_neff_file(arguments.neff, neff_of([each for each in grouped if each[1]], platform))
    _print(arguments, head, loaded, platform, said)


def _said(
    arguments: argparse.Namespace, steps: Sequence[Step], words: list[bytes], loaded: Loaded, platform: Platform
) -> dict[str, Any]:
    """Return what else is asked for: the stages of each collective, and the log lines of one rank.

    Raises:
        UsageError: there is no image of that rank.
    """
    from rota.machine.partition import format_ranks
    from rota.report.device_log import device_log
    from rota.report.stages import stage_lines

    said: dict[str, Any] = {}
    if arguments.stages:
        lowered = [_alone(step, word, loaded, platform) for step, word in zip(steps, words, strict=True)]
        said["stages"] = [stage_lines(each, platform) for each in lowered]
    if arguments.log:
        rank = loaded.ranks[0] if arguments.rank is None else arguments.rank
        if rank not in loaded.ranks:
            raise UsageError(f"--rank {rank}: expected a rank of the program, {format_ranks(loaded.ranks)}")
        said |= {"rank": rank, "log": device_log(loaded.images[loaded.ranks.index(rank)])}
    return said


def _alone(step: Step, word: bytes, loaded: Loaded, platform: Platform) -> Lowered:
    """Return a collective with its images: those of the program where it is all of it, else as if it were alone."""
    from rota.emit import emit
    from rota.isa.enums import Algorithm
    from rota.pipeline import Lowered

    made = step.made
    if len(loaded.entries) == 1 and made.request.members == loaded.ranks:
        return Lowered(made, word, loaded.images)
    algorithm = Algorithm.__members__.get(made.algorithm)
    return Lowered(made, word, emit(made.schedule, made.request, platform, algorithm=algorithm, words=word))


def _print(
    arguments: argparse.Namespace, head: dict[str, Any], loaded: Loaded, platform: Platform, said: dict[str, Any]
) -> None:
    from rota.device.disasm import counts
    from rota.report.resources import resource_lines

    totals = [counts(image) for image in loaded.images]
    sums = {name: sum(total[name] for total in totals) for name in ("bytes", "rows", "tx", "rx")}
    directory = None if arguments.output is None else str(arguments.output)
    written = {"directory": directory, "images": len(totals), **sums}
    if arguments.json:
        document = {"schema": 2, "platform": platform.name, **written}
        document |= {name: head[name] for name in ("collectives", "resources")} | said
        print_lines([json.dumps(document, indent=1)])
        return
    names = ("images", "rows", "tx", "rx", "bytes", "directory")
    widths = (8, 9, 9, 9, 11, 0)
    print_lines([f"# {'images':>6} {'rows':>9} {'tx':>9} {'rx':>9} {'bytes':>11} directory"])
    written["directory"] = directory or "-"
    print_lines([" ".join(f"{written[name]:>{width}}" for name, width in zip(names, widths, strict=True))])
    print_lines(resource_lines(loaded.resources))
    for record, lines in zip(head["collectives"], said.get("stages", ()), strict=False):
        print_lines([f"# stages of {short_request(record['request'])}", *lines])
    if "log" in said:
        print_lines([f"# log of rank {said['rank']}", *said["log"]])
