"""`rota run`: compose, prove, execute, run on the device model what is emitted, compare and time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.cli.exits import OK, USAGE, WRONG
from rota.cli.fault import Faults
from rota.cli.sb2sb import asks_for_sb2sb, run_move
from rota.cli.sources import DEFAULT_PLATFORM, how_of, jobs_of, platform_of, settings_of
from rota.cli.talk import Progress, place, print_lines, say_not_on_device, say_substitutions, talk
from rota.cli.trace import Recording, check_writable, write_trace, write_whole
from rota.errors import RotaError, StuckError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.emit.program import Resources
    from rota.machine.platform import Platform
    from rota.pipeline import Composed, How
    from rota.program import Observer
    from rota.report.rows import Row
    from rota.request import Job, Request


def run_command(arguments: argparse.Namespace) -> int:
    """Run every collective; 1 when a result is wrong or some are refused, 2 when all are."""
    from rota.cli.run_images import run_directory
    from rota.frontends.image_directory import is_image_directory

    if asks_for_sb2sb(arguments):
        return run_move(arguments)
    if arguments.log:
        raise UsageError("--log: goes with sb2sb; `rota lower --log` prints what the runtime logs of collectives")
    if is_image_directory(Path(arguments.source)):
        return run_directory(Path(arguments.source), arguments)
    from rota.frontends.tensors import bind_tensors
    from rota.report.resources import resource_lines, resources_json
    from rota.report.rows import table
    from rota.report.trace import span_lines

    settings = settings_of(arguments)
    platform = platform_of(arguments, settings)
    jobs, single = jobs_of(arguments, platform)
    how = how_of(arguments, settings, jobs)
    check_writable(arguments.profile)
    recording = None if arguments.trace is None else Recording(arguments.trace)
    faults = Faults(arguments)
    trace = None
    try:
        rows, made, resources = _rows(bind_tensors(jobs), platform, how, faults, recording, single=single)
    finally:
        trace = write_trace(recording)
    if arguments.profile is not None:
        _write_profile(arguments.profile, [each for parts in made for each in parts], platform)
    if arguments.json:
        document: dict[str, Any] = {"schema": 1, "platform": platform.name, "nodes": platform.instances}
        document |= {"lnc": platform.lnc, "seed": arguments.seed}
        document |= {"resources": None if resources is None else resources_json(resources)}
        document |= {} if arguments.trace is None else {"trace": trace}
        records = zip(rows, made, strict=True)
        document |= {"collectives": [row.to_json() | {"cc_op_info": _cc_op_info(parts)} for row, parts in records]}
        print_lines([json.dumps(document, indent=1, allow_nan=False)])
    else:
        several = f"{platform.instances} x " if platform.instances > 1 else ""
        default = " (default)" if arguments.platform == DEFAULT_PLATFORM else ""
        machine = f"{several}{platform.name}{default} of {platform.ranks} ranks"
        print_lines([f"# rota run {arguments.source}: {machine}, seed {arguments.seed}"])
        print_lines(table(rows))
        print_lines(() if resources is None or single else resource_lines(resources))
        print_lines(() if trace is None else span_lines(trace))
    say_substitutions([(row.selected, row.algorithm) for row in rows], own=how.name)
    say_not_on_device([row.not_on_device for row in rows])
    if recording is not None and trace is None:
        talk(f"--trace: nothing ran on the device model, {recording.path} is not written")
    faults.say_harmless(all(row.good for row in rows))
    if arguments.no_verify:
        talk("--no-verify: nothing was proved")
    if all(row.refused for row in rows):
        return USAGE
    return OK if all(row.good for row in rows) else WRONG


_Asked = tuple["Job", "Request | None", "list[Composed]", str]
"""A job, one of its requests, what it is composed to, and why it is refused."""


def _rows(
    jobs: tuple[Job, ...], platform: Platform, how: How, faults: Faults, observe: Observer | None, *, single: bool
) -> tuple[list[Row], list[list[Composed]], Resources | None]:
    """Return the row of each collective with what it is composed to, and what the program takes that they form.

    One refused alone raises.
    """
    from rota.frontends.tensors import tensors_of
    from rota.pipeline import word_of
    from rota.program import run_program
    from rota.report.rows import refused_row, row_of

    asked: list[_Asked] = []
    tensors: list[tuple[str, str]] = []
    streams: list[int] = []
    for job in jobs:
        for note in job.notes:
            talk(f"{place(job)}{note}")
        if job.refused is not None and single:
            raise UsageError(job.refused)
        if job.refused is not None:
            asked.append((job, None, [], job.refused))
        for index, request in enumerate(job.requests):
            try:
                parts = _prove(job, request, platform, how)
            except (VerifyError, StuckError):
                raise
            except RotaError as error:
                if single:
                    raise
                asked.append((job, request, [], str(error)))
                continue
            tensors += tensors_of(job, index, parts, number=len(asked))
            streams += [job.stream] * len(parts)
            asked.append((job, request, parts, ""))
    made = [parts for _, _, parts, _ in asked]
    every = [each for parts in made for each in parts]
    if not every:
        return [refused_row(job, refused, request) for job, request, _, refused in asked], made, None
    words = b"".join(job.word or word_of(each.request) for job, _, parts, _ in asked for each in parts)
    orders = faults.orders([each.request for each in every])
    with faults.explained():
        ran = run_program(
            every,
            platform,
            tensors=tensors,
            streams=streams,
            words=words,
            seed=how.seed,
            observe=observe,
            loader=faults,
            orders=orders,
            communicators=how.communicators,
            watch=Progress("program"),
        )
    faults.check_ran(ran.not_on_device)
    outcomes = iter(ran.outcomes)
    rows = []
    for job, wanted, parts, refused in asked:
        if wanted is None or not parts:
            rows.append(refused_row(job, refused, wanted))
            continue
        mine = [next(outcomes) for _ in parts]
        for warning in dict.fromkeys(warning for outcome in mine for warning in outcome.warnings):
            talk(f"{place(job)}warning: {warning}")
        rows.append(row_of(job, wanted, mine))
    return rows, made, ran.resources


def _prove(job: Job, request: Request, platform: Platform, how: How) -> list[Composed]:
    from rota.pipeline import check_memory, prove, split

    check_memory(request, how.settings)
    progress = Progress(f"{place(job)}{job.kind}")
    return [prove(part, platform, how, watch=progress) for part in split(request, platform, how)]


def _cc_op_info(parts: list[Composed]) -> list[dict[str, Any]]:
    """Return the runtime's record of each part of a collective: its fields, and its bytes."""
    from rota.isa.cc_op_info import CC_OP_INFO, encode_cc_op_info
    from rota.report.records import cc_op_info_of

    records = []
    for info in map(cc_op_info_of, parts):
        data = encode_cc_op_info(info)
        records.append(CC_OP_INFO.decode(data) | {"alg_name": info.alg_name, "bytes": data.hex()})
    return records


def _write_profile(path: Path, made: list[Composed], platform: Platform) -> None:
    """Write what the profile of the first rank says of the collectives: the message core_graph; say so if none ran.

    Raises:
        UsageError: the file cannot be written.
    """
    import numpy as np

    from rota.emit.placement import place as place_of
    from rota.report.records import core_graph_bytes

    if not made:
        talk(f"--profile: no collective ran, {path} is not written")
        return
    rank = min(rank for each in made for rank in each.request.members)
    at = place_of(np.array([rank]), [], platform)
    first = int(at.lane[0]) * at.sps
    write_whole(path, [core_graph_bytes(made, platform, rank, cc_cores=range(first, first + at.sps))])
