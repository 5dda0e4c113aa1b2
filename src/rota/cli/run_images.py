"""`rota run DIR`: load the images that `rota lower -o` wrote, run them, and hold the result against what was asked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rota.cli.exits import OK, WRONG
from rota.cli.fault import Faults
from rota.cli.talk import Progress, print_lines, talk
from rota.cli.trace import Recording, write_trace
from rota.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from rota.columns import U8
    from rota.device.model import Device
    from rota.meaning import Asked

_OF_A_COLLECTIVE: Final = ("ranks", "groups", "pairs", "size", "dtype", "op", "scale", "root", "counts", "algorithm")


def run_directory(path: Path, arguments: argparse.Namespace) -> int:
    """Run images; 1 when a result is not what was asked for.

    Raises:
        UsageError: options that say something of a collective, or no complete directory.
        DecodeError: an image is damaged.
    """
    from rota.columns import Workspace
    from rota.device.model import load
    from rota.frontends.image_directory import read_image_directory
    from rota.isa.image import Section
    from rota.meaning import as_bytes, golden_program, make_program_inputs, parse_request
    from rota.report.trace import span_lines

    for name in _OF_A_COLLECTIVE:
        if getattr(arguments, name, None) is not None:
            raise UsageError(f"--{name}: goes with an operation name; the images of {path} say their own")
    if arguments.profile is not None:
        raise UsageError(f"--profile: goes with what is lowered, not with the images of {path}; leave it out")
    recording = None if arguments.trace is None else Recording(arguments.trace)
    faults = Faults(arguments)
    found = read_image_directory(path)
    progress = Progress(str(path))
    device = progress("load", load(found.images))
    part = device.world.images[0].parts.get((Section.REQUEST, 0))
    if part is None:
        raise DecodeError(
            "image of rank 0", offset=0, expected="a section REQUEST", got="none; nothing to compare with"
        )
    asked, seed = parse_request(bytes(part.data))
    missing = {rank for each in asked for rank in each.request.members} - set(found.ranks)
    if missing:
        raise UsageError(f"{path}: no image of rank {min(missing)}, which the program names")
    workspace = Workspace(device.memory_size)
    inputs = make_program_inputs(asked, found.ranks, seed, exact=True)
    for name in (name for name, value in inputs.items() if not value.any()):
        talk(f"{path}: tensor {name} is all 0, because with nothing else every sum stays exact")
    entries = _entries(found.head, device)
    device, disturbance = faults.reload(device, found, [each.request for each in asked], entries)
    observe = None if recording is None else recording.of(device, found.ranks, entries)
    given = {name: as_bytes(value) for name, value in inputs.items()}
    try:
        with faults.explained():
            got = device.run_program(given, disturbance=disturbance, observe=observe, workspace=workspace)
        progress("device", got)
    finally:
        trace = write_trace(recording)
    want = progress("golden", golden_program(asked, found.ranks, inputs))
    records = _compared(asked, found.ranks, got, want)
    if arguments.json:
        document: dict[str, Any] = {"schema": 2, "directory": str(path), "seed": seed}
        document |= ({} if trace is None else {"trace": trace}) | {"collectives": records}
        print_lines([json.dumps(document, indent=1)])
    else:
        print_lines([f"# rota run {path}: {len(found.images)} images, seed {seed}", "# result  request"])
        print_lines(f"  {_said(record):<7} {short_request(record['request'])}" for record in records)
        print_lines(() if trace is None else span_lines(trace))
    faults.say_harmless(all(record["matches"] for record in records))
    return OK if all(record["matches"] for record in records) else WRONG


def _compared(
    asked: Sequence[Asked], ranks: Sequence[int], got: Mapping[str, U8], want: Mapping[str, U8]
) -> list[dict[str, Any]]:
    """Return of each collective what was asked for, and the ranks that hold something else now."""
    from rota.columns import equal_bytes

    records = []
    for each in asked:
        rows = zip(ranks, got[each.output], want[each.output], strict=True)
        wrong = [rank for rank, left, right in rows if not equal_bytes(left, right)]
        tensors = {"request": each.request.to_text(), "input": each.input, "output": each.output}
        records.append(tensors | {"matches": not wrong, "wrong_ranks": wrong})
    return records


def _entries(head: Mapping[str, Any], device: Device) -> list[int]:
    """Return the control entries of each collective as the manifest has them; none where it does not fit the images."""
    try:
        entries = [int(each["entries"]) for each in head["collectives"]]
    except (KeyError, TypeError, ValueError):
        return []
    return entries if min(entries, default=0) > 0 and sum(entries) == device.tables.controls.entries else []


def _said(record: dict[str, Any]) -> str:
    return "right" if record["matches"] else "WRONG"


def short_request(text: str) -> str:
    """Return the text of a request, cut in the middle where its groups make it long."""
    return text if len(text) <= 100 else f"{text[:80]}...{text[-16:]}"
