"""What is asked for: the machine, the settings, and the operation or the file of a command line, as jobs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rota.cli.algorithm import algorithm_of
from rota.errors import UsageError

if TYPE_CHECKING:
    from rota.frontends.options import Options
    from rota.isa.dtypes import Dtype
    from rota.isa.enums import CceType, EncOp
    from rota.machine.platform import Platform
    from rota.pipeline import How
    from rota.request import Counts, Groups, Job, Pairs, Request
    from rota.select.settings import Settings

DEFAULT_PLATFORM: Final = "trn2.48xlarge"
DEFAULT_SIZE: Final = "1M"
DEFAULT_DTYPE: Final = "bf16"
DEFAULT_OP: Final = "sum"
MOST_RANKS: Final = 1 << 20
"""Ranks a text may name; which of them the machine has is for it to say, so that every command says it alike."""


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings: what `--set` assigns, over the known variables of the environment, over the defaults."""
    from rota.select.settings import parse_settings

    return parse_settings(arguments.set, os.environ)


def platform_of(arguments: argparse.Namespace, settings: Settings) -> Platform:
    """Return the machine; its LNC is that of `--lnc`, or of the settings, or its own."""
    from rota.machine.platform import load_platform

    lnc = next((lnc for lnc in (arguments.lnc, settings.virtual_core_size, settings.logical_nc_config) if lnc), None)
    return load_platform(arguments.platform, lnc=lnc, nodes=arguments.nodes, pod_mode=settings.ultraserver_mode)


def how_of(arguments: argparse.Namespace, settings: Settings, jobs: Sequence[Job] = ()) -> How:
    """Return how everything is decided, composed and run.

    Raises:
        UsageError: `--algorithm` names neither an algorithm nor a composer in a file.
    """
    from rota.pipeline import How

    algorithm, composer, name = algorithm_of(arguments.algorithm)
    return How(
        settings=settings,
        any_group=arguments.any_group,
        algorithm=algorithm,
        composer=composer,
        name=name,
        extensions=arguments.extensions,
        verify=not getattr(arguments, "no_verify", False),
        seed=arguments.seed,
        streams=streams_of(jobs),
        communicators=_communicators(arguments),
    )


def streams_of(jobs: Sequence[Job]) -> int:
    """Return the collective streams that jobs of one file share."""
    return max((job.streams for job in jobs), default=1)


def _communicators(arguments: argparse.Namespace) -> int:
    from rota.verify.program import COMMUNICATORS, MOST_COMMUNICATORS

    limit = getattr(arguments, "communicators", None)
    if limit is not None and not 1 <= limit <= MOST_COMMUNICATORS:
        raise UsageError(f"--communicators {limit}: expected 1 to {MOST_COMMUNICATORS}, the most of any release")
    return COMMUNICATORS if limit is None else limit


def groups_of(arguments: argparse.Namespace, platform: Platform) -> Groups | None:
    """Return the groups of `--groups` or `--ranks`; None where neither is given."""
    from rota.machine.partition import parse_groups

    if arguments.groups is not None and arguments.ranks is not None:
        raise UsageError("--ranks and --groups: give one of them")
    if arguments.groups is not None:
        text = arguments.groups.strip()
        everyone = text[:1] == "{" and not text.strip("{} ")
        return parse_groups(text, ranks=platform.ranks if everyone else MOST_RANKS)
    if arguments.ranks is not None:
        if not 1 <= arguments.ranks <= platform.ranks:
            raise UsageError(f"--ranks {arguments.ranks}: expected 1 to {platform.ranks} on {platform.name}")
        return (tuple(range(arguments.ranks)),)
    return None


def pairs_of(arguments: argparse.Namespace) -> Pairs:
    """Return the pairs of `--pairs`; none where it is not given."""
    from rota.machine.pairs import parse_pairs

    text: str | None = getattr(arguments, "pairs", None)
    return () if text is None else parse_pairs(text, ranks=MOST_RANKS)


def jobs_of(arguments: argparse.Namespace, platform: Platform) -> tuple[tuple[Job, ...], bool]:
    """Return the jobs of the command line, and whether they are one named operation."""
    from rota.frontends.options import Options
    from rota.request import Staging

    if arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed}: expected 0 or more")
    options = Options(
        groups=groups_of(arguments, platform),
        integer_as_fp32=arguments.integer_as_fp32,
        pairs=pairs_of(arguments),
        staging=None if arguments.staging is None else Staging(arguments.staging),
        in_place=arguments.in_place,
        root=arguments.root or 0,
        scales=_numbers(arguments.scale),
        counts=_counts(arguments.counts),
    )
    kind = kind_named(arguments.source)
    if kind is not None:
        return (_operation(kind, arguments, platform, options),), True
    path = file_named(arguments.source)
    for name in ("size", "dtype", "op", "pairs", "scale", "counts", "root"):
        if getattr(arguments, name, None) is not None:
            raise UsageError(f"--{name}: goes with an operation name; {path} says its own")
    from rota.frontends.jobs import jobs_of_file, read_source

    found, data = read_source(path)
    return jobs_of_file(path, found, data, platform, options), False


def _numbers(text: str | None) -> tuple[float, ...]:
    """Return the scales of `--scale`: one for all ranks, or one for each."""
    if text is None:
        return ()
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise UsageError(f"--scale {text[:40]}: expected numbers with commas between, for example 0.5,2") from None


def _counts(text: str | None) -> Counts:
    """Return the elements of `--counts`: one row for each sender, or one row for an all-gather."""
    if text is None:
        return ()
    try:
        return tuple(tuple(int(each) for each in row.split(",")) for row in text.split(";"))
    except ValueError:
        raise UsageError(f"--counts {text[:40]}: expected rows of numbers, for example '1,2;3,4'") from None


def kind_named(source: str) -> EncOp | None:
    """Return the collective a SOURCE names; None where it is meant as a file."""
    from rota.request import KIND_SYNONYMS

    return KIND_SYNONYMS.get(source.lower().replace("-", "_"))


def file_named(source: str) -> Path:
    """Return the file a SOURCE names.

    Raises:
        UsageError: there is none.
    """
    from rota.request import KIND_NAMES

    path = Path(source)
    if not path.exists():
        raise UsageError(f"{source}: is no file, and no operation of this version ({', '.join(KIND_NAMES.values())})")
    return path


def _operation(kind: EncOp, arguments: argparse.Namespace, platform: Platform, options: Options) -> Job:
    from rota.frontends.options import by_size, permute
    from rota.isa.dtypes import parse_dtype, short_name, size_of
    from rota.isa.enums import REDUCING, EncOp
    from rota.request import KIND_NAMES, PAIRED, Job, parse_op
    from rota.units import parse_size

    dtype = parse_dtype(arguments.dtype or DEFAULT_DTYPE)
    size = parse_size(arguments.size or DEFAULT_SIZE)
    op = parse_op(arguments.op or DEFAULT_OP) if kind in REDUCING else None
    _check_options(kind, op, arguments)
    width = size_of(dtype) or 1
    if size % width:
        raise UsageError(f"--size {size}: expected a whole number of {short_name(dtype)} elements, {width} bytes each")
    elements = size // width
    name, called = KIND_NAMES[kind], short_name(dtype)
    if kind in PAIRED:
        if not options.pairs:
            raise UsageError(f"{name} goes by pairs: name them with --pairs '0>1,1>0'")
        if options.groups is not None:
            raise UsageError(f"{name} goes by --pairs, which say what ranks there are; leave --ranks and --groups out")
        return permute(Job(name, called, (), pairs=options.pairs), kind, dtype, elements, op, platform, options)
    if options.pairs:
        raise UsageError(f"--pairs: {name} goes by groups; use --groups")
    groups = options.groups or (tuple(range(platform.ranks)),)
    if options.counts:
        return Job(name, called, groups, (_counted(kind, dtype, groups, options, arguments),))
    if arguments.size is None:
        shared = lcm(*map(len, groups))
        elements = -(-elements // shared) * shared  # the default is the next size that every group can share
    _check_shards(kind, groups, elements, width)
    requests: list[Request] = []
    for ranks in sorted({len(group) for group in groups}, reverse=True):
        mine = tuple(group for group in groups if len(group) == ranks)
        each = elements // ranks if kind is EncOp.ALLGATHER else elements
        requests += by_size(kind, dtype, mine, each, op, options)
    return Job(name, called, groups, tuple(requests))


def _check_options(kind: EncOp, op: CceType | None, arguments: argparse.Namespace) -> None:
    """Refuse options that the operation has no use for, and a scaled sum without scales."""
    from rota.isa.enums import CceType
    from rota.request import KIND_NAMES, OP_NAMES, ROOTED

    name = KIND_NAMES[kind]
    if op is None and arguments.op is not None:
        raise UsageError(f"--op: {name} does not reduce; leave it out")
    if op is CceType.FMA and arguments.scale is None:
        raise UsageError("--op fma: needs --scale, one number for all ranks, or one for each with commas between")
    if op is not CceType.FMA and arguments.scale is not None:
        raise UsageError(f"--scale: is for --op fma, not for {name if op is None else OP_NAMES[op]}; leave it out")
    if kind not in ROOTED and arguments.root is not None:
        raise UsageError(f"--root: {name} has no root; leave it out")


def _counted(kind: EncOp, dtype: Dtype, groups: Groups, options: Options, arguments: argparse.Namespace) -> Request:
    """Return the request of an all-to-all-v or an all-gather whose elements `--counts` says.

    Raises:
        UsageError: another operation, or a size beside the counts.
    """
    from rota.isa.enums import EncOp
    from rota.request import KIND_NAMES, Request

    if arguments.size is not None:
        raise UsageError("--counts and --size: give one of them")
    if kind is EncOp.ALLTOALL_V:
        most = max(map(sum, options.counts))
        return Request(kind, dtype, most, groups, counts=options.counts, staging=options.staging)
    if kind is EncOp.ALLGATHER and len(options.counts) == 1:
        (row,) = options.counts
        return Request(kind, dtype, sum(row), groups, gather_counts=row, staging=options.staging)
    raise UsageError(f"--counts: {KIND_NAMES[kind]} takes none; they are for all_to_all_v, and one row for all_gather")


def _check_shards(kind: EncOp, groups: Groups, elements: int, width: int) -> None:
    """Refuse a whole buffer that its ranks cannot share equally; the message names the next that they can."""
    from rota.request import SHARDED

    for ranks in sorted({len(group) for group in groups}, reverse=True):
        if kind in SHARDED and elements % ranks:
            raise UsageError(
                f"--size {elements * width}: expected a whole number of elements for each of {ranks} ranks; the next "
                f"size is {-(-elements // ranks) * ranks * width}"
            )
