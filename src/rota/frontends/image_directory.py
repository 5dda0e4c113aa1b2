"""Directories that `rota lower -o` wrote: the manifest and every image, held against what the manifest says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rota.emit.image import MANIFEST, SCHEMA
from rota.errors import UsageError


@dataclass(frozen=True, slots=True)
class ImageDirectory:
    """A lowered program as it stands on disk.

    Attributes:
        head: the manifest.
        ranks: machine rank of each image.
    """

    path: Path
    head: Mapping[str, Any]
    ranks: tuple[int, ...]
    images: tuple[bytes, ...]


def is_image_directory(path: Path) -> bool:
    """Say whether a path is a directory with a manifest."""
    return path.is_dir() and (path / MANIFEST).is_file()


def read_image_directory(path: Path) -> ImageDirectory:
    """Read the images of a program.

    Raises:
        UsageError: there is no manifest of ours, or a file is missing, cut short or changed.
    """
    head, files = _manifest(path)
    images = []
    for file in files:
        data = _read(path / file.name)
        if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise UsageError(
                f"{path / file.name}: is not what the manifest says, {file.size} bytes with SHA-256 "
                f"{file.sha256[:12]}...; got {len(data)} bytes; lower it again"
            )
        images.append(data)
    return ImageDirectory(path, head, tuple(file.rank for file in files), tuple(images))


class _File(NamedTuple):
    """An image as the manifest has it."""

    name: str
    rank: int
    size: int
    sha256: str


def _manifest(path: Path) -> tuple[dict[str, Any], list[_File]]:
    where = path / MANIFEST
    data = _read(where)
    try:
        head: dict[str, Any] = json.loads(data)
        schema = head["schema"]
        files = [_File(str(e["name"]), int(e["rank"]), int(e["size"]), str(e["sha256"])) for e in head["images"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UsageError(f"{where}: is no manifest of `rota lower`; expected JSON with schema and images") from None
    if schema != SCHEMA:
        raise UsageError(f"{where}: schema {schema}, expected {SCHEMA}; lower it again with this version")
    if not files or any(Path(file.name).name != file.name for file in files):
        raise UsageError(f"{where}: expected at least one image, each a file of this directory")
    ranks = {file.rank for file in files}
    if len(ranks) < len(files) or min(ranks) < 0:
        raise UsageError(f"{where}: expected each image to be of a rank of its own")
    return head, files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected what `rota lower -o` wrote") from None
