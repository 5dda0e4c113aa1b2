"""Reading one rank's image: container, digest, section table, identity and buffers.

What descriptors and programs mean is `dma` and `program`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rota.errors import DecodeError, UsageError
from rota.isa import arch as isa
from rota.isa.arch import Arch, arch_of_id
from rota.isa.image import (
    ALIGNMENT,
    BUFFER,
    DIGEST_SIZE,
    HEADER,
    MAGIC,
    MAX_MEMORY,
    MAX_SECTIONS,
    META,
    PRESET,
    SECTION,
    BufferUse,
    Section,
)

_NAME_FIELD: Final = 32
_MAX_RANKS: Final = 512  # 64 chips of 8: what an address can reach


@dataclass(frozen=True, slots=True)
class Part:
    """One section: where it starts in the file, and its bytes."""

    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class DeclaredBuffer:
    """A buffer of the rank's memory."""

    name: str
    offset: int
    size: int
    use: BufferUse


@dataclass(frozen=True, slots=True)
class Preset:
    """The value a semaphore starts with."""

    sp: int
    identity: int
    value: int


@dataclass(frozen=True, slots=True)
class Image:
    """One rank's image, its container checked."""

    arch: Arch
    rank: int
    ranks: int
    chip: int
    lane: int
    lnc: int
    stream_processors: int
    folds: int
    operations: int
    ring_size: int
    memory_size: int
    buffers: tuple[DeclaredBuffer, ...]
    presets: tuple[Preset, ...]
    parts: Mapping[tuple[Section, int], Part]

    def part(self, kind: Section, index: int) -> Part:
        """Return a section that must be there.

        Raises:
            DecodeError: it is not.
        """
        part = self.parts.get((kind, index))
        if part is None:
            raise DecodeError(
                f"image of rank {self.rank}", offset=HEADER.size, expected=f"a section {kind.name} {index}", got="none"
            )
        return part


def load_image(data: bytes, *, digests: bool = True) -> Image:
    """Read one image.

    Args:
        digests: compare the checksums; tests of damaged images leave them out.

    Raises:
        DecodeError: the bytes are no image, are damaged, or declare what cannot be.
    """
    parts = _sections(data, digests=digests)
    meta_part = parts.get((Section.META, 0))
    if meta_part is None or len(meta_part.data) != META.size:
        raise DecodeError("image", offset=HEADER.size, expected=f"one META section of {META.size} bytes", got="none")
    meta = META.decode(meta_part.data)
    arch = _check_meta(meta, meta_part.offset)
    buffers = _buffers(parts.get((Section.BUFFERS, 0)), meta["memory_size"])
    return Image(
        arch=arch,
        rank=meta["rank"],
        ranks=meta["ranks"],
        chip=meta["chip"],
        lane=meta["lane"],
        lnc=meta["lnc"],
        stream_processors=meta["stream_processors"],
        folds=meta["folds"],
        operations=meta["operations"],
        ring_size=meta["ring_size"],
        memory_size=meta["memory_size"],
        buffers=buffers,
        presets=_presets(parts.get((Section.SEMA, 0)), meta["stream_processors"]),
        parts=parts,
    )


def _sections(data: bytes, *, digests: bool) -> dict[tuple[Section, int], Part]:
    if len(data) < HEADER.size + DIGEST_SIZE or data[: len(MAGIC)] != MAGIC:
        raise DecodeError(
            "image", offset=0, expected=f"a file that begins with {MAGIC.decode()}", got=f"{len(data)} bytes"
        )
    end = len(data) - DIGEST_SIZE
    if digests and hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        raise DecodeError("image", offset=end, expected="the SHA-256 of the file", got="another; the file is damaged")
    header = HEADER.decode(data)
    count = header["sections"]
    table_end = HEADER.size + count * SECTION.size
    if header["reserved"] or not 0 < count <= MAX_SECTIONS or table_end > end:
        raise DecodeError("image", offset=8, expected=f"a table of 1 to {MAX_SECTIONS} sections", got=f"{count}")
    parts: dict[tuple[Section, int], Part] = {}
    position, last = table_end, (0, -1)
    for row in range(count):
        at = HEADER.size + row * SECTION.size
        entry = SECTION.decode(data, at)
        key = (entry["kind"], entry["index"])
        start, size = entry["offset"], entry["size"]
        aligned = -(-position // ALIGNMENT) * ALIGNMENT
        if entry["kind"] not in {int(kind) for kind in Section} or key <= last or entry["reserved"]:
            raise DecodeError("image section", offset=at, expected="a known kind, in ascending order", got=f"{key}")
        if start != aligned or start + size > end or any(data[position:start]):
            raise DecodeError(
                "image section", offset=at, expected=f"bytes from {aligned} to at most {end}", got=f"{start}+{size}"
            )
        part = memoryview(data)[start : start + size]
        if digests and zlib.crc32(part) != entry["crc32"]:
            raise DecodeError("image section", offset=start, expected=f"CRC-32 {entry['crc32']:08x}", got="another")
        parts[(Section(entry["kind"]), entry["index"])] = Part(start, part)
        position, last = start + size, key
    if position != end:
        raise DecodeError(
            "image",
            offset=position,
            expected="the digest right after the last section",
            got=f"{end - position} more bytes",
        )
    return parts


def _check_meta(meta: Mapping[str, int], offset: int) -> Arch:
    try:
        arch = arch_of_id(meta["arch_id"])
    except UsageError as error:
        raise DecodeError("image META", offset=offset, expected="a known architecture", got=str(error)) from None
    ring = meta["ring_size"]
    lanes = arch.cores // max(meta["lnc"], 1)
    laws = (
        ("ranks", 1 <= meta["ranks"] <= _MAX_RANKS, f"1 to {_MAX_RANKS}"),
        ("rank", meta["rank"] < meta["ranks"], f"below {meta['ranks']}"),
        ("chip", meta["chip"] < isa.MAX_CHIPS, f"below {isa.MAX_CHIPS}"),
        ("lnc", meta["lnc"] in (1, 2), "1 or 2"),
        ("lane", meta["lane"] < lanes, f"below {lanes}"),
        ("stream_processors", meta["stream_processors"] == meta["lnc"] * arch.sps_per_core, "the rank's TOP_SPs"),
        ("folds", 1 <= meta["folds"] <= isa.ENGINES, f"1 to {isa.ENGINES}"),
        ("operations", meta["operations"] == 1, "1 in this version"),
        ("ring_size", 32 <= ring <= 1 << 24 and ring & (ring - 1) == 0, "a power of two from 32 to 2^24"),
        ("memory_size", isa.FIRST_BUFFER <= meta["memory_size"] <= MAX_MEMORY, f"{isa.FIRST_BUFFER} to {MAX_MEMORY}"),
        ("reserved", meta["reserved"] == 0, "0"),
    )
    for name, holds, expected in laws:
        if not holds:
            raise DecodeError(f"image META {name}", offset=offset, expected=expected, got=str(meta[name]))
    return arch


def _buffers(part: Part | None, memory_size: int) -> tuple[DeclaredBuffer, ...]:
    if part is None or len(part.data) % BUFFER.size or not len(part.data):
        raise DecodeError(
            "image", offset=HEADER.size, expected="a section of declared buffers", got="none, or a part of one"
        )
    out: list[DeclaredBuffer] = []
    position = isa.FIRST_BUFFER
    for at in range(0, len(part.data), BUFFER.size):
        row = BUFFER.decode(part.data, at)
        raw = row["name"].to_bytes(_NAME_FIELD, "little").rstrip(b"\0")
        offset, size = row["offset"], row["size"]
        printable = raw.isascii() and raw.decode("ascii", "replace").isprintable() and raw != b""
        if not printable or raw.decode() in [buffer.name for buffer in out] or row["reserved"] or row["use"] > 3:
            raise DecodeError("declared buffer", offset=part.offset + at, expected="a fresh ASCII name", got=repr(raw))
        if offset < position or offset % isa.BUFFER_ALIGNMENT or offset + size > memory_size:
            raise DecodeError(
                "declared buffer",
                offset=part.offset + at,
                expected=f"aligned bytes from {position} to at most {memory_size}",
                got=f"{offset}+{size}",
            )
        out.append(DeclaredBuffer(raw.decode(), offset, size, BufferUse(row["use"])))
        position = offset + size
    for use in (BufferUse.INPUT, BufferUse.OUTPUT):
        if sum(use in buffer.use for buffer in out) != 1:
            raise DecodeError(
                "declared buffers", offset=part.offset, expected=f"one {use.name} buffer", got="none or several"
            )
    return tuple(out)


def _presets(part: Part | None, sps: int) -> tuple[Preset, ...]:
    if part is None:
        return ()
    if len(part.data) % PRESET.size:
        raise DecodeError(
            "semaphore presets", offset=part.offset, expected="whole records", got=f"{len(part.data)} bytes"
        )
    out: list[Preset] = []
    for at in range(0, len(part.data), PRESET.size):
        row = PRESET.decode(part.data, at)
        key = (row["sp"], row["id"])
        if (
            row["sp"] >= sps
            or not 8 <= row["id"] < 254
            or row["value"] >= 1 << 31
            or (out and key <= (out[-1].sp, out[-1].identity))
        ):
            raise DecodeError(
                "semaphore preset",
                offset=part.offset + at,
                expected="a free semaphore, in ascending order",
                got=f"{key}",
            )
        out.append(Preset(row["sp"], row["id"], row["value"]))
    return tuple(out)
