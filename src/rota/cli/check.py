"""`rota check`: whether groups, pairs or the collectives of a program are legal on a machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rota.cli.exits import OK, WRONG
from rota.cli.sources import groups_of, jobs_of, pairs_of, platform_of, settings_of
from rota.cli.talk import print_lines
from rota.errors import RotaError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from rota.machine.platform import Platform
    from rota.report.legality import Finding
    from rota.request import Job
    from rota.select.choose import Selector
    from rota.select.settings import Settings


def check(arguments: argparse.Namespace) -> int:
    """Answer for every group, list of pairs, or collective of a file; 1 when one is illegal."""
    from rota.report.legality import Finding, document_of, legality_text
    from rota.report.text import machine

    settings = settings_of(arguments)
    single = True
    try:
        platform = platform_of(arguments, settings)
    except UnsupportedError as error:
        where = f"{arguments.nodes} x {arguments.platform}"
        findings = [Finding((), (), refusal=(str(error), None))]
    else:
        where = f"{machine(platform)}, ranks 0-{platform.ranks - 1}"
        findings, single = _findings(arguments, platform, settings)
    if arguments.json:
        print_lines([json.dumps(document_of(findings, single=single), indent=1, allow_nan=False)])
    else:
        for finding in findings:
            print_lines(legality_text(finding, where, sources=arguments.sources))
    return OK if all(finding.legal for finding in findings) else WRONG


def _findings(arguments: argparse.Namespace, platform: Platform, settings: Settings) -> tuple[list[Finding], bool]:
    """Return every answer, and whether there is just one to give, about no file."""
    from rota.select.choose import Selector

    if arguments.source is None:
        bare = list(_bare(arguments, platform))
        return bare, len(bare) == 1
    selector = Selector(platform, settings, any_group=arguments.any_group)
    jobs, single = jobs_of(arguments, platform)
    if not single:
        return [_of_job(job, platform, selector) for job in jobs], False
    (job,) = jobs
    whole = _of_job(job, platform, selector)
    if job.pairs or len(job.groups) == 1:
        return [whole], True
    alone = zip(job.groups, whole.answers, strict=True)
    return [_asked(replace(whole, groups=(group,), answers=(answer,)), job, selector) for group, answer in alone], False


def _bare(arguments: argparse.Namespace, platform: Platform) -> Iterator[Finding]:
    """Yield what is to be said of groups or pairs without an operation; of each group its own."""
    from rota.machine.legality import check_groups, check_pairs
    from rota.report.legality import Finding

    for name in ("size", "dtype", "op"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name}: goes with an operation name, and there is none")
    groups, pairs = groups_of(arguments, platform), pairs_of(arguments)
    if groups is not None and pairs:
        raise UsageError("--groups and --pairs: give one of them")
    if pairs:
        yield Finding((), check_pairs(platform, pairs, any_group=arguments.any_group), pairs=pairs)
    elif groups is not None:
        answers = check_groups(platform, groups, any_group=arguments.any_group)
        for group, answer in zip(groups, answers, strict=True):
            yield Finding((group,), (answer,))
    else:
        raise UsageError("check: name what to check: --groups '0-15;16-31', --ranks 16, --pairs '0>1,1>0', or a FILE")


def _of_job(job: Job, platform: Platform, selector: Selector) -> Finding:
    """Return what is to be said of a collective: its groups, and, when these are legal, the operation on them."""
    from rota.machine.legality import check_groups, check_pairs
    from rota.report.legality import Finding

    if job.pairs:
        answers = check_pairs(platform, job.pairs, any_group=selector.any_group)
    else:
        answers = check_groups(platform, job.groups, any_group=selector.any_group) if job.groups else ()
    place = Finding(job.groups, answers, kind=job.kind, pairs=job.pairs, file=job.file, line=job.line)
    return _asked(place, job, selector)


def _asked(finding: Finding, job: Job, selector: Selector) -> Finding:
    """Return a finding with what SELECT says of the operation, where its groups are legal."""
    from rota.report.legality import phrase_of
    from rota.select.choose import alike

    finding = replace(finding, refusal=None)
    if not finding.legal:
        return finding
    reason = job.refused
    try:
        for request in job.requests:
            for group in request.groups:
                if job.pairs or group in finding.groups:
                    selector.select(alike(request, (group,)))
    except RotaError as error:
        reason = str(error)
    return finding if reason is None else replace(finding, refusal=(reason, phrase_of(reason)))
