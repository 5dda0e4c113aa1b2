"""Images: everything one rank loads, as bytes; and writing them to a directory, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rota.errors import UsageError
from rota.isa.image import ALIGNMENT, HEADER, MAGIC, SECTION, Section

MANIFEST: Final = "manifest.json"
WORDS_FILE: Final = "words.bin"
SCHEMA: Final = 2  # of the manifest


def pack_image(sections: Sequence[tuple[Section, int, bytes]]) -> bytes:
    """Return the image of these sections: header, table, sections in order of kind and index, digest."""
    ordered = sorted(sections, key=lambda section: section[:2])
    position = HEADER.size + SECTION.size * len(ordered)
    table, body = [], []
    for kind, index, data in ordered:
        gap = -position % ALIGNMENT
        body += [bytes(gap), data]
        position += gap
        table.append(
            SECTION.encode(kind=int(kind), index=index, offset=position, size=len(data), crc32=zlib.crc32(data))
        )
        position += len(data)
    header = HEADER.encode(magic=int.from_bytes(MAGIC, "little"), sections=len(ordered))
    image = b"".join((header, *table, *body))
    return image + hashlib.sha256(image).digest()


def write_images(
    directory: Path, images: Sequence[bytes], ranks: Sequence[int], *, head: Mapping[str, Any], words: bytes
) -> None:
    """Write one image a rank, the words and a manifest; the directory appears complete or not at all.

    A directory of an earlier call is replaced, and stays as it was when the writing fails.

    Args:
        ranks: machine rank of each image.
        head: what the manifest says about the program as a whole.

    Raises:
        UsageError: the directory exists and is not one of ours, or cannot be written.
    """
    if directory.exists() and not _is_ours(directory):
        raise UsageError(f"{directory}: exists and holds more than images of rota; name a new directory")
    names = [f"rank-{rank:03d}.img" for rank in range(len(images))]
    files = [
        {"name": name, "rank": rank, "size": len(image), "sha256": hashlib.sha256(image).hexdigest()}
        for name, rank, image in zip(names, ranks, images, strict=True)
    ]
    manifest = {"schema": SCHEMA, **head, "words": WORDS_FILE, "images": files}
    content = dict(zip(names, images, strict=True)) | {
        WORDS_FILE: words,
        MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode(),
    }
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as aside:
            new = Path(aside) / "new"
            new.mkdir()
            for name, data in content.items():
                (new / name).write_bytes(data)
            _swap(new, directory, old=Path(aside) / "old")
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written ({error.strerror}); name another directory") from None


def _swap(new: Path, directory: Path, *, old: Path) -> None:
    """Put a directory in the place of another one, which comes back if that fails."""
    if not directory.exists():
        os.replace(new, directory)
        return
    os.replace(directory, old)
    try:
        os.replace(new, directory)
    except OSError:
        os.replace(old, directory)
        raise


def _is_ours(directory: Path) -> bool:
    """Say whether a directory is empty, or holds what `write_images` wrote and nothing else."""
    if not directory.is_dir() or directory.is_symlink():
        return False
    found = {path.name for path in directory.iterdir()}
    if not found:
        return True
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        names = {str(entry["name"]) for entry in manifest["images"]}
        known = manifest["schema"] in (1, SCHEMA)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return known and found <= names | {MANIFEST, WORDS_FILE}
