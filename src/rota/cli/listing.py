"""`rota disasm` and `rota asm`: bytes to text, and back."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rota.cli.exits import OK, WRONG
from rota.cli.talk import print_lines
from rota.errors import UsageError


def disasm(arguments: argparse.Namespace) -> int:
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
        print_lines([json.dumps(document)])
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print_lines(listing.painted(raw=raw) if colour else listing.lines(raw=raw))
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
        print_lines([json.dumps({"schema": 1, "images": totals}, indent=1)])
    else:
        widths = {"rank": 6, "rows": 7, "tx": 8, "rx": 8, "bytes": 9}
        print_lines(["#" + " ".join(f"{name:>{width}}" for name, width in widths.items())[1:] + " file"])
        for total in totals:
            numbers = " ".join(f"{total.get(name, '-'):>{width}}" for name, width in widths.items())
            wrong = f"  ; {total['damaged']}" if "damaged" in total else ""
            print_lines([f"{numbers} {total['file']}{wrong}"])
    return WRONG if any("damaged" in total for total in totals) else OK


def asm(arguments: argparse.Namespace) -> int:
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
        print_lines([json.dumps({"schema": 1, "file": str(arguments.output), "bytes": len(data)})])
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
    print_lines([json.dumps(document, indent=1)] if as_json else neff_text(document))
    return WRONG if document["damaged"] else OK
