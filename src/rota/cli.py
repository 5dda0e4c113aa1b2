"""The command line. Everything heavy is imported by the command that needs it; nothing else prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rota.errors import RotaError, StuckError, UsageError, VerifyError

if TYPE_CHECKING:
    from rota.frontends.jobs import Options
    from rota.machine.platform import Platform
    from rota.report.rows import Row
    from rota.request import Groups, Job, Request

T = TypeVar("T")

DEFAULT_PLATFORM: Final = "trn2.48xlarge"
DEFAULT_SIZE: Final = "1M"
DEFAULT_DTYPE: Final = "bf16"
DEFAULT_OP: Final = "sum"
OK, WRONG, USAGE = 0, 1, 2

_ABOUT: Final = """\
The collective-communication stack of AWS Trainium's runtime, in the open: select an algorithm, compose its
schedule, emit the bytes a device loads, prove them, run them on a device model, and time them.

  rota run all_reduce --ranks 64 --size 1M --dtype bf16      one collective, end to end
  rota run step.hlo --platform trn2.48xlarge                  every collective of a compiled program
"""
_RUN: Final = """\
Lower every collective of SOURCE to bytes, run these on the device model, and compare with the schedule executed on
arrays and with a float64 golden. One row each; sizes are the whole buffer.

  rota run all_gather --platform trn1.32xlarge --ranks 32 --size 64K --dtype fp32
  rota run examples/tensor_parallel.hlo --json
"""
_EXPLAIN: Final = """\
Say which algorithm the runtime takes for a collective, what each rule said and why, and where each number comes from.

  rota explain all_reduce --platform trn1.32xlarge --ranks 32 --size 64M --dtype fp32
  rota explain all_gather --groups '0-15,48-63;16-47' --size 8M --json
"""
_LOWER: Final = """\
Write what each rank loads: one image a rank (descriptor rings, slot programs, configuration), the instruction word and
a manifest. The directory appears complete or not at all.

  rota lower all_reduce --ranks 4 --size 64K -o out && rota disasm out/rank-000.img
  rota lower examples/data_parallel.hlo -o out
  rota lower all_gather --ranks 8 --size 64K -o out --neff gather.neff && rota run gather.neff
"""
_DISASM: Final = """\
Show instruction streams, images, NEFFs and lowered directories as text, one record a line: offset, record, fields.
What is damaged stays in its place, with what is wrong, and the listing goes on; the exit code is then 1.

  rota disasm out/rank-000.img
  rota disasm out/words.bin --json
  rota disasm dump.bin --as tx --raw
"""
_ASM: Final = """\
Turn the text of `rota disasm` back into the bytes; damaged records come back as they were.

  rota disasm out/words.bin > words.txt && rota asm words.txt -o words.bin
  rota asm image.txt -o edited.img
"""
_SOURCE: Final = (
    "all_reduce, all_gather or reduce_scatter (also allr, allg, redsct); or a file: an HLO module, a stream of "
    "64-byte instructions, or a NEFF"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 fine, 1 a schedule or result is wrong, 2 the command is wrong."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        return _version()
    if arguments.command is None:
        parser.print_help()
        return OK
    try:
        return int(arguments.command(arguments))
    except (VerifyError, StuckError) as error:
        _talk(str(error))
        return WRONG
    except RotaError as error:
        _talk(str(error))
        return USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rota", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="store_true", help="say the version and which arithmetic is in use")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, about, run in (
        ("run", _RUN, _run),
        ("explain", _EXPLAIN, _explain),
        ("lower", _LOWER, _lower),
        ("disasm", _DISASM, _disasm),
        ("asm", _ASM, _asm),
    ):
        command = commands.add_parser(
            name,
            help=about.split(".", 1)[0].replace("\n", " "),
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=run)
        if run is _disasm:
            _disasm_arguments(command)
        elif run is _asm:
            command.add_argument("text", type=Path, help="a listing; its first line says of what: '; rota stream 1'")
            command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="file to write")
        else:
            _common(command)
        command.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        if run is _lower:
            command.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to write")
            command.add_argument("--neff", type=Path, metavar="FILE", help="write the words into a NEFF as well")
    return parser


def _disasm_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, help="a stream, an image, a NEFF, or a directory that `rota lower` wrote")
    command.add_argument(
        "--as",
        dest="kind",
        choices=("stream", "image", "tx", "rx", "ctrl", "slot", "conf"),
        help="what the bytes of FILE are, whatever they look like: a stream, an image, or a bare part of an image",
    )
    command.add_argument("--raw", action="store_true", help="append the bytes of each record in hex")


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", help=_SOURCE)
    command.add_argument("--platform", default=DEFAULT_PLATFORM, help=f"machine (default {DEFAULT_PLATFORM})")
    command.add_argument("--ranks", type=int, metavar="N", help="ranks 0 to N-1 (default all of the machine)")
    command.add_argument(
        "--groups", help="replica groups: '[[0,1],[2,3]]', '0-15,48-63;16-47', '{{0,1},{2,3}}', '{}' for all"
    )
    command.add_argument("--size", help=f"whole buffer, for example 8, 32K, 64M (default {DEFAULT_SIZE})")
    command.add_argument(
        "--dtype", help=f"bf16 fp16 fp32 fp8_e3m4 fp8_e4m3 fp8_e5m2 int8 .. uint64 (default {DEFAULT_DTYPE})"
    )
    command.add_argument("--op", help=f"sum, max or min (default {DEFAULT_OP})")
    command.add_argument(
        "--integer-as-fp32", action="store_true", help="reduce integers rounded through float32, exact up to 2^24"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")


def _version() -> int:
    from importlib.metadata import version

    print(f"rota {version('rota')}, arithmetic: numpy")
    return OK


# --- commands ---------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from rota.machine.platform import load_platform
    from rota.report.rows import table

    platform = load_platform(arguments.platform)
    jobs, single = _jobs(arguments, platform)
    rows = [row for job in jobs for row in _run_job(job, platform, arguments.seed, single)]
    if arguments.json:
        document = {"schema": 1, "platform": platform.name, "seed": arguments.seed}
        _print([json.dumps(document | {"collectives": [row.to_json() for row in rows]}, indent=1, allow_nan=False)])
    else:
        where = "(default) " if arguments.platform == DEFAULT_PLATFORM else ""
        _print(
            [f"# rota run {arguments.source}: {platform.name} {where}of {platform.ranks} ranks, seed {arguments.seed}"]
        )
        _print(table(rows))
    _say_substitutions(rows)
    if all(row.refused for row in rows):
        return USAGE
    return OK if all(row.good for row in rows) else WRONG


def _say_substitutions(rows: Sequence[Row]) -> None:
    """Say in one line which algorithms the runtime takes that another was composed for."""
    other = [row for row in rows if row.selected != row.algorithm]
    if other:
        names = sorted({str(row.selected) for row in other})
        rows_of = {name: sum(row.selected == name for row in other) for name in names}
        counted = ", ".join(f"{name} ({count} row{'s' * (count > 1)})" for name, count in rows_of.items())
        _talk(f"the runtime takes {counted}; this version composes {other[0].algorithm} instead")


def _run_job(job: Job, platform: Platform, seed: int, single: bool) -> Iterator[Row]:
    from rota.pipeline import run, split
    from rota.report.rows import refused_row, row_of

    for note in job.notes:
        _talk(f"{_place(job)}{note}")
    if job.refused is not None:
        yield refused_row(job, job.refused)
    for request in job.requests:
        progress = _Progress(f"{_place(job)}{job.kind}")
        try:
            outcomes = [
                run(part, platform, seed=seed, word=job.word, watch=progress) for part in split(request, platform)
            ]
        except (VerifyError, StuckError):
            raise
        except RotaError as error:
            if single:
                raise
            yield refused_row(job, str(error), request)
            continue
        for outcome in outcomes:
            for warning in outcome.warnings:
                _talk(f"{_place(job)}warning: {warning}")
        yield row_of(job, request, outcomes)


def _explain(arguments: argparse.Namespace) -> int:
    from rota.machine.platform import load_platform
    from rota.pipeline import decide, split
    from rota.report.explain import explain_json, explain_text
    from rota.select.settings import Settings

    platform = load_platform(arguments.platform)
    jobs, single = _jobs(arguments, platform)
    documents: list[dict[str, Any]] = []
    refused = 0
    for job in jobs:
        if job.refused is not None:
            refused += 1
            documents.append({"schema": 1, "refused": job.refused, "source": {"file": job.file, "line": job.line}})
            _print([] if arguments.json else [f"{_place(job)}{job.kind} refused: {job.refused}", ""])
        for request in job.requests:
            for part in split(request, platform):
                plan, algorithm = decide(part, platform, Settings())
                documents.append(
                    explain_json(plan, algorithm, platform) | {"source": {"file": job.file, "line": job.line}}
                )
                if not arguments.json:
                    _print([*([] if single else [_place(job).rstrip()]), *explain_text(plan, algorithm, platform), ""])
    if arguments.json:
        document = documents[0] if single else {"schema": 1, "collectives": documents}
        _print([json.dumps(document, indent=1, allow_nan=False)])
    return USAGE if refused == len(documents) else (WRONG if refused else OK)


def _lower(arguments: argparse.Namespace) -> int:
    from rota.device.disasm import counts
    from rota.emit import write_images
    from rota.frontends.neff_writer import neff_of, write_neff_file
    from rota.machine.platform import load_platform
    from rota.pipeline import lower, split

    platform = load_platform(arguments.platform)
    jobs, single = _jobs(arguments, platform)
    written: list[dict[str, Any]] = []
    words: list[tuple[int, bytes, Groups]] = []
    refused = 0
    for number, job in enumerate(jobs):
        if job.refused is not None:
            refused += 1
            _talk(f"{_place(job)}{job.kind} refused: {job.refused}")
        parts = [part for request in job.requests for part in split(request, platform)]
        for index, part in enumerate(parts):
            lowered = lower(part, platform, word=job.word, watch=_Progress(f"{_place(job)}{job.kind}"))
            several = f"-{index}" if len(parts) > 1 else ""
            directory = (
                arguments.output
                if single and len(parts) == 1
                else arguments.output / f"{number:03d}-{job.kind}{several}"
            )
            write_images(directory, lowered.images, part, platform, lowered.word)
            words.append((number, lowered.word, part.groups))
            totals = [counts(image) for image in lowered.images]
            sums = {name: sum(total[name] for total in totals) for name in ("bytes", "rows", "tx", "rx")}
            written.append(
                {
                    "directory": str(directory),
                    "request": part.to_text(),
                    "algorithm": lowered.algorithm.name,
                    "images": len(totals),
                    **sums,
                }
            )
    if arguments.neff is not None and words:
        write_neff_file(arguments.neff, neff_of(words, platform))
    if arguments.json:
        _print([json.dumps({"schema": 1, "platform": platform.name, "lowered": written}, indent=1)])
    else:
        names = ("images", "rows", "tx", "rx", "bytes", "directory")
        _print([f"# {'images':>6} {'rows':>9} {'tx':>9} {'rx':>9} {'bytes':>11} directory"])
        widths = (8, 9, 9, 9, 11, 0)
        _print(
            " ".join(f"{entry[name]:>{width}}" for name, width in zip(names, widths, strict=True)) for entry in written
        )
    return USAGE if not written else (WRONG if refused else OK)


def _disasm(arguments: argparse.Namespace) -> int:
    from rota.device.asm import TITLE
    from rota.device.disasm import SCHEMA, disassemble
    from rota.frontends.jobs import FileKind, read_source

    path: Path = arguments.file
    if path.is_dir():
        return _disasm_directory(path, as_json=arguments.json)
    kind: str = arguments.kind
    if kind is not None:
        data = _read(path)
    else:
        found, data = read_source(path)
        if found is FileKind.NEFF:
            return _disasm_neff(path, data, as_json=arguments.json)
        if found is FileKind.HLO:
            raise UsageError(f"{path}: is an HLO module, already text; expected an instruction stream or an image")
        if data.startswith(TITLE.encode()):
            raise UsageError(f"{path}: is a listing, already text; `rota asm` turns it into bytes")
        kind = "image" if found is FileKind.IMAGE else "stream"
    listing = disassemble(data, kind)
    raw = data if arguments.raw else None
    if arguments.json:
        records = [line.to_json(raw=raw) for line in listing]
        document = {"schema": SCHEMA, "kind": kind, "damaged": len(listing.damaged), "records": records}
        _print([json.dumps(document)])
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        _print(listing.painted(raw=raw) if colour else listing.lines(raw=raw))
    return WRONG if listing.damaged else OK


def _disasm_directory(path: Path, *, as_json: bool) -> int:
    from rota.device.disasm import counts
    from rota.errors import DecodeError

    images = sorted(path.glob("rank-*.img")) or sorted(path.glob("*/rank-*.img"))
    if not images:
        raise UsageError(f"{path}: holds no image; expected a directory that `rota lower -o` wrote")
    totals: list[dict[str, Any]] = []
    for image in images:
        data = _read(image)
        name = {"file": str(image.relative_to(path))}
        try:
            totals.append(name | counts(data))
        except DecodeError as error:
            totals.append(name | {"bytes": len(data), "damaged": str(error)})
    if as_json:
        _print([json.dumps({"schema": 1, "images": totals}, indent=1)])
    else:
        widths = {"rank": 6, "rows": 7, "tx": 8, "rx": 8, "bytes": 9}
        _print(["#" + " ".join(f"{name:>{width}}" for name, width in widths.items())[1:] + " file"])
        for total in totals:
            numbers = " ".join(f"{total.get(name, '-'):>{width}}" for name, width in widths.items())
            wrong = f"  ; {total['damaged']}" if "damaged" in total else ""
            _print([f"{numbers} {total['file']}{wrong}"])
    return WRONG if any("damaged" in total for total in totals) else OK


def _asm(arguments: argparse.Namespace) -> int:
    from rota.device.asm import assemble

    try:
        text = _read(arguments.text).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{arguments.text}: is no text; expected a listing that `rota disasm` printed") from None
    try:
        data = assemble(text)
    except UsageError as error:
        raise UsageError(f"{arguments.text}: {error}") from None
    try:
        arguments.output.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{arguments.output}: cannot be written ({error.strerror})") from None
    if arguments.json:
        _print([json.dumps({"schema": 1, "file": str(arguments.output), "bytes": len(data)})])
    return OK


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a file") from None


def _disasm_neff(path: Path, data: bytes, *, as_json: bool) -> int:
    from rota.frontends.neff import read_neff
    from rota.report.neff import neff_json, neff_text

    document = neff_json(read_neff(data, where=str(path)))
    _print([json.dumps(document, indent=1)] if as_json else neff_text(document))
    return WRONG if document["damaged"] else OK


# --- what is asked for ------------------------------------------------------------------------------------------------


def _jobs(arguments: argparse.Namespace, platform: Platform) -> tuple[tuple[Job, ...], bool]:
    """Return the jobs of the command line, and whether they are one named operation."""
    from rota.frontends.jobs import Options, jobs_of_file, read_source
    from rota.machine.group import parse_groups
    from rota.request import KIND_SYNONYMS

    groups = None
    if arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed}: expected 0 or more")
    if arguments.groups is not None and arguments.ranks is not None:
        raise UsageError("--ranks and --groups: give one of them")
    if arguments.groups is not None:
        groups = parse_groups(arguments.groups, ranks=platform.ranks)
    elif arguments.ranks is not None:
        if not 1 <= arguments.ranks <= platform.ranks:
            raise UsageError(f"--ranks {arguments.ranks}: expected 1 to {platform.ranks} on {platform.name}")
        groups = (tuple(range(arguments.ranks)),)
    options = Options(groups=groups, integer_as_fp32=arguments.integer_as_fp32)
    path = Path(arguments.source)
    if arguments.source.lower().replace("-", "_") in KIND_SYNONYMS:
        return (_operation(arguments, platform, options),), True
    if not path.exists():
        known = "all_reduce, all_gather, reduce_scatter"
        raise UsageError(f"{arguments.source}: is no file, and no operation of this version ({known})")
    for name in ("size", "dtype", "op"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name}: goes with an operation name; {path} says its own")
    kind, data = read_source(path)
    return jobs_of_file(path, kind, data, platform, options), False


def _operation(arguments: argparse.Namespace, platform: Platform, options: Options) -> Job:
    from rota.frontends.jobs import by_size
    from rota.isa.dtypes import parse_dtype, short_name, size_of
    from rota.isa.enums import REDUCING, EncOp
    from rota.request import KIND_NAMES, Job, parse_kind, parse_op
    from rota.units import parse_size

    kind = parse_kind(arguments.source)
    dtype = parse_dtype(arguments.dtype or DEFAULT_DTYPE)
    size = parse_size(arguments.size or DEFAULT_SIZE)
    groups = options.groups or (tuple(range(platform.ranks)),)
    if kind not in REDUCING and arguments.op is not None:
        raise UsageError(f"--op: {KIND_NAMES[kind]} does not reduce; leave it out")
    op = parse_op(arguments.op or DEFAULT_OP) if kind in REDUCING else None
    width = size_of(dtype) or 1
    if size % width:
        raise UsageError(f"--size {size}: expected a whole number of {short_name(dtype)} elements, {width} bytes each")
    elements = size // width
    requests: list[Request] = []
    for ranks in sorted({len(group) for group in groups}, reverse=True):
        if kind is not EncOp.ALLREDUCE and elements % ranks:
            raise UsageError(
                f"--size {size}: expected a whole number of elements for each of {ranks} ranks; the next size is "
                f"{-(-elements // ranks) * ranks * width}"
            )
        mine = tuple(group for group in groups if len(group) == ranks)
        requests += by_size(kind, dtype, mine, elements // ranks if kind is EncOp.ALLGATHER else elements, op, options)
    return Job(KIND_NAMES[kind], short_name(dtype), groups, tuple(requests))


# --- talking ----------------------------------------------------------------------------------------------------------


class _Progress:
    """Says on stderr which stage a collective has reached, once it takes longer than two seconds."""

    _PATIENCE: Final = 2.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.next = time.monotonic() + self._PATIENCE

    def __call__(self, stage: str, value: T, /) -> T:
        now = time.monotonic()
        if now > self.next:
            _talk(f"{self.name}: {stage} done")
            self.next = now + self._PATIENCE
        return value


def _place(job: Job) -> str:
    return "" if job.file is None else f"{job.file}:{job.line}: "


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _talk(text: str) -> None:
    print(f"rota: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
