"""Images: everything one rank loads, as bytes; and writing them to a directory, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rota.columns import I64, Bool
from rota.emit.placement import ROLES, DeviceRows, Placement, device_rows, place, semaphore_roles
from rota.emit.processors import Neighbours, processor_sections
from rota.emit.rings import RING_SIZE, Rings, build_rings
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa import arch as isa
from rota.isa.enums import Algorithm
from rota.isa.image import ALIGNMENT, BUFFER, HEADER, MAGIC, META, PRESET, SECTION, BufferUse, Section
from rota.machine.platform import Platform
from rota.request import Request
from rota.schedule.ir import Schedule

DEFAULT_FOLDS: Final = 2
FOLDS_SOURCE: Final = Source("device-model", "1, folds", CONVENTION)
CREDITS_SOURCE: Final = Source("device-model", "5.3, credits", CONVENTION)
MANIFEST: Final = "manifest.json"
WORDS_FILE: Final = "words.bin"
SCHEMA: Final = 1  # of the manifest


def emit(
    schedule: Schedule,
    request: Request,
    platform: Platform,
    *,
    algorithm: Algorithm = Algorithm.RING,
    folds: int = DEFAULT_FOLDS,
    words: bytes = b"",
) -> tuple[bytes, ...]:
    """Return the loadable image of each member.

    Args:
        folds: DMA queues each channel spreads its rows over.
        words: the instruction words this comes from, kept in the image for people.

    Raises:
        UnsupportedError: the schedule needs what the machine, or this version, does not have.
    """
    if not 1 <= folds <= isa.ENGINES:
        raise UsageError(f"{folds} folds: expected 1 to {isa.ENGINES}")
    if not len(schedule):
        raise UsageError("the schedule has no rows: there is nothing to load")
    at = place(schedule, request.members, platform)
    rows, owner = device_rows(schedule)
    _check_credits(schedule, rows)
    rings = build_rings(schedule, rows, owner, dtype=request.dtype, at=at, folds=folds)
    neighbours = _neighbours(schedule, rings)
    common = _common_sections(schedule, at, words)
    presets = _presets(schedule, at, folds)
    out = []
    for member in range(schedule.ranks):
        sections = [
            (Section.META, 0, _meta(member, schedule, at, folds)),
            *processor_sections(member, rings, rows, at, neighbours, algorithm),
            *_ring_sections(member, rings),
            (Section.MEM, isa.FEED_WORDS, rings.feeds[member].astype("<u4").tobytes()),
            *common,
            *([(Section.SEMA, 0, presets)] if presets else []),
        ]
        out.append(pack_image(sections))
    return tuple(out)


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


def write_images(directory: Path, images: Sequence[bytes], request: Request, platform: Platform, words: bytes) -> None:
    """Write one image a rank, the words and a manifest; the directory appears complete or not at all.

    A directory of an earlier call is replaced, and stays as it was when the writing fails.

    Raises:
        UsageError: the directory exists and is not one of ours, or cannot be written.
    """
    if directory.exists() and not _is_ours(directory):
        raise UsageError(f"{directory}: exists and holds more than images of rota; name a new directory")
    names = [f"rank-{rank:03d}.img" for rank in range(len(images))]
    files = [
        {"name": name, "rank": request.members[i], "size": len(image), "sha256": hashlib.sha256(image).hexdigest()}
        for i, (name, image) in enumerate(zip(names, images, strict=True))
    ]
    manifest = {
        "schema": SCHEMA,
        "platform": platform.name,
        "request": request.to_text(),
        "words": WORDS_FILE,
        "images": files,
    }
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
        known = manifest["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return known and found <= names | {MANIFEST, WORDS_FILE}


def _meta(member: int, schedule: Schedule, at: Placement, folds: int) -> bytes:
    return META.encode(
        arch_id=at.arch.arch_id,
        rank=member,
        ranks=schedule.ranks,
        chip=int(at.chip[member]),
        lane=int(at.lane[member]),
        lnc=at.lnc,
        stream_processors=at.sps,
        folds=folds,
        operations=1,
        ring_size=RING_SIZE,
        memory_size=at.memory_size,
    )


def _ring_sections(member: int, rings: Rings) -> Iterator[tuple[Section, int, bytes]]:
    for k in np.flatnonzero(rings.rank == member).tolist():
        for fold in range(rings.folds):
            section = k * rings.folds + fold
            index = fold * isa.QUEUES + int(rings.queue[k])
            yield Section.TX, index, rings.tx[rings.tx_ptr[section] : rings.tx_ptr[section + 1]].tobytes()
            yield Section.RX, index, rings.rx[rings.rx_ptr[section] : rings.rx_ptr[section + 1]].tobytes()


def _common_sections(schedule: Schedule, at: Placement, words: bytes) -> list[tuple[Section, int, bytes]]:
    buffers = b"".join(
        BUFFER.encode(
            name=int.from_bytes(buffer.name.encode(), "little"),
            offset=int(at.buffers[i]),
            size=buffer.size,
            use=(BufferUse.INPUT if i == schedule.input else 0) | (BufferUse.OUTPUT if i == schedule.output else 0),
        )
        for i, buffer in enumerate(schedule.buffers)
    )
    return [(Section.BUFFERS, 0, buffers), *([(Section.WORDS, 0, words)] if words else [])]


def _presets(schedule: Schedule, at: Placement, folds: int) -> bytes:
    """Initial credits, in units of folds; the same on every rank."""
    role, channel = semaphore_roles(schedule)
    used = set(schedule.rows.queue.tolist())
    found = sorted(
        (
            int(at.sp(channel[i : i + 1])[0]),
            int(at.semaphore_id(channel[i : i + 1], role[i : i + 1])[0]),
            semaphore.initial,
        )
        for i, semaphore in enumerate(schedule.semaphores)
        if semaphore.initial and int(channel[i]) in used
    )
    return b"".join(PRESET.encode(sp=sp, id=identity, value=value * folds) for sp, identity, value in found)


def _check_credits(schedule: Schedule, rows: DeviceRows) -> None:
    """Each channel can send once more than it does before it first receives, or the ring waits for itself.

    Channels without initial credit get theirs from their neighbour.
    """
    role, channel = semaphore_roles(schedule)
    initial = np.zeros(256, np.int64)
    for i in np.flatnonzero(role == ROLES.index("credit")).tolist():
        initial[channel[i]] = schedule.semaphores[i].initial
    start = rows.channel_start
    before = np.zeros(start.size, np.int64)
    lane = np.repeat(np.arange(start.size), np.diff(np.append(start, rows.rank.size)))
    received = np.cumsum(rows.receives)
    early: Bool = received - (received - rows.receives)[start][lane] == 0
    np.add.at(before, lane, early & rows.sends)
    short = (initial[rows.queue[start]] > 0) & (initial[rows.queue[start]] <= before) & (before > 0)
    if short.any():
        at = int(start[np.argmax(short)])
        c, sends = int(rows.queue[at]), int(before[np.argmax(short)])
        raise UnsupportedError(
            f"rank {rows.rank[at]} channel {c}: sends {sends} times before it first receives, so it needs a credit of "
            f"at least {sends + 1}, and has {initial[c]}; use more slots",
            source=CREDITS_SOURCE,
        )


def _neighbours(schedule: Schedule, rings: Rings) -> Neighbours:
    """Read from the signals who follows and who precedes each rank on each channel.

    Raises:
        UnsupportedError: a channel signals two ranks in one role.
    """
    role, _ = semaphore_roles(schedule)
    lane = rings.rank * 256 + rings.queue
    out: list[I64] = []
    for wanted in (0, 1):
        chosen = role[schedule.signals.semaphore] == wanted
        peer = rings.rank.copy()
        index = np.searchsorted(lane, schedule.lane[schedule.signal_row[chosen]])
        peer[index] = schedule.signals.rank[chosen]
        several = np.flatnonzero(peer[index] != schedule.signals.rank[chosen])
        if several.size:
            row = schedule.name(int(schedule.signal_row[chosen][several[0]]))
            raise UnsupportedError(f"{row}: a ring channel has one neighbour on each side, and this one signals two")
        out.append(peer)
    return Neighbours(following=out[0], preceding=out[1])
