"""Reading one rank's image: container, digest, section table, identity, buffers and presets.

What descriptors and programs mean is `dma` and `program`; what images say about each other is `world` and `checks`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rota.errors import DecodeError, UsageError
from rota.isa import arch as isa
from rota.isa.arch import Arch, arch_of_id
from rota.isa.barrier_records import FEEDS, RING_END
from rota.isa.config import CONFIGURATIONS
from rota.isa.descriptors import DESCRIPTOR_SIZE
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
    SLOTS_PER_SP,
    BufferUse,
    Section,
)
from rota.isa.network import NETWORK_ALIGNMENT, SECTION_HEADER
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, MAX_VALUE
from rota.isa.spad import CONTROL_REGION_SIZE, ENTRY_SIZE, SLOT_REGION_SIZE, SLOTS
from rota.isa.streams import STREAMS

_NAME_FIELD: Final = 32
_FEED_WORD: Final = 4
_LARGEST: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Part:
    """One section: where it starts in the file, its bytes, and where its row of the table is."""

    offset: int
    data: memoryview
    entry: int


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
    """One rank's image, its container checked: every section is one of those an image has, and of a size it can have.

    Whether the sections fit each other, and those of the other ranks, is not yet known.
    """

    arch: Arch
    rank: int
    ranks: int
    span: int
    chip: int
    lane: int
    lnc: int
    stream_processors: int
    streams: int
    folds: int
    operations: int
    chains: int
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
                "section table", offset=HEADER.size, expected=f"a section {kind.name} {index}", got="none"
            )
        return part


@contextmanager
def of_rank(rank: int) -> Iterator[None]:
    """Say in errors raised inside whose image is meant; offsets are in that file."""
    try:
        yield
    except DecodeError as error:
        what = f"image of rank {rank}: {error.what}"
        raise DecodeError(what, offset=error.offset, expected=error.expected, got=error.got) from None


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
    _check_parts(parts, arch, meta)
    return Image(
        arch=arch,
        rank=meta["rank"],
        ranks=meta["ranks"],
        span=meta["span"],
        chip=meta["chip"],
        lane=meta["lane"],
        lnc=meta["lnc"],
        stream_processors=meta["stream_processors"],
        streams=meta["streams"],
        folds=meta["folds"],
        operations=meta["operations"],
        chains=meta["chains"],
        ring_size=meta["ring_size"],
        memory_size=meta["memory_size"],
        buffers=_buffers(parts[Section.BUFFERS, 0], meta["memory_size"]),
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
                "image section",
                offset=at,
                expected=f"bytes from {aligned} to at most {end}, behind zeros",
                got=f"{start}+{size}",
            )
        part = memoryview(data)[start : start + size]
        if digests and zlib.crc32(part) != entry["crc32"]:
            raise DecodeError("image section", offset=start, expected=f"CRC-32 {entry['crc32']:08x}", got="another")
        parts[(Section(entry["kind"]), entry["index"])] = Part(start, part, at)
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
        raise DecodeError("image META arch_id", offset=offset, expected="a known one", got=str(error)) from None
    ring = meta["ring_size"]
    lanes = arch.cores // max(meta["lnc"], 1)
    most = arch.chips * arch.cores
    window = min(meta["lnc"] << arch.hbm_shift, MAX_MEMORY)
    most_entries = CONTROL_REGION_SIZE // ENTRY_SIZE
    most_streams = min(STREAMS, meta["stream_processors"])
    laws = (
        ("ranks", 1 <= meta["ranks"] <= most, f"1 to {most}"),
        ("rank", meta["rank"] < meta["ranks"], f"below {meta['ranks']}"),
        ("span", meta["span"] < meta["ranks"], f"below {meta['ranks']}"),
        ("chip", meta["chip"] < arch.chips, f"below {arch.chips}"),
        ("lnc", meta["lnc"] in (1, 2), "1 or 2"),
        ("lane", meta["lane"] < lanes, f"below {lanes}"),
        ("stream_processors", meta["stream_processors"] == meta["lnc"] * arch.sps_per_core, "the rank's TOP_SPs"),
        ("streams", 1 <= meta["streams"] <= most_streams, f"1 to {most_streams}"),
        ("folds", 1 <= meta["folds"] <= isa.ENGINES, f"1 to {isa.ENGINES}"),
        ("operations", 1 <= meta["operations"] <= most_entries, f"1 to {most_entries}"),
        ("chains", meta["chains"] <= meta["operations"], f"at most {meta['operations']}, the operations"),
        ("ring_size", 32 <= ring <= 1 << 24 and ring & (ring - 1) == 0, "a power of two from 32 to 2^24"),
        ("memory_size", isa.FIRST_BUFFER <= meta["memory_size"] <= window, f"{isa.FIRST_BUFFER} to {window}"),
        ("reserved", meta["reserved"] == 0, "0"),
    )
    for name, holds, expected in laws:
        if not holds:
            raise DecodeError(f"image META {name}", offset=offset, expected=expected, got=str(meta[name]))
    return arch


def _check_parts(parts: Mapping[tuple[Section, int], Part], arch: Arch, meta: Mapping[str, int]) -> None:
    """Only sections an image of this machine can have, of whole records, and every one it must have."""
    sps = range(meta["stream_processors"])
    slots = {sp * SLOTS_PER_SP + slot for sp in sps for slot in range(SLOTS)}
    queues = range(isa.ENGINES * isa.QUEUES)
    control, conf = ENTRY_SIZE * meta["operations"], CONFIGURATIONS[arch.name].size
    feeds = isa.FEED_WORD_COUNT * _FEED_WORD
    shapes: Mapping[Section, tuple[range | set[int], int, int, int]] = {
        # kind             indices            record           least            most
        Section.META:    ({0},                META.size,       META.size,       META.size),
        Section.CTRL:    (sps,                ENTRY_SIZE,      control,         control),
        Section.SLOT:    (slots,              ENTRY_SIZE,      ENTRY_SIZE,      SLOT_REGION_SIZE),
        Section.CONF:    (sps,                conf,            conf,            conf),
        Section.TX:      (queues,             DESCRIPTOR_SIZE, DESCRIPTOR_SIZE, _LARGEST),
        Section.RX:      (queues,             DESCRIPTOR_SIZE, DESCRIPTOR_SIZE, _LARGEST),
        Section.MEM:     ({isa.FEED_WORDS},   _FEED_WORD,      _FEED_WORD,      feeds),
        Section.SEMA:    ({0},                PRESET.size,     PRESET.size,     _LARGEST),
        Section.BUFFERS: ({0},                BUFFER.size,     BUFFER.size,     _LARGEST),
        Section.WORDS:   ({0},                1,               1,               _LARGEST),
        Section.REQUEST: ({0},                1,               1,               _LARGEST),
        Section.NETWORK: (sps,                NETWORK_ALIGNMENT, SECTION_HEADER.size, _LARGEST),
    }  # fmt: skip
    page = ({FEEDS}, _FEED_WORD, RING_END - FEEDS, RING_END - FEEDS)  # of a barrier
    for (kind, index), part in parts.items():
        if kind not in shapes:
            expected = f"one of {', '.join(each.name for each in shapes)}"
            raise DecodeError("image section", offset=part.entry, expected=expected, got=kind.name)
        indices, record, least, most = page if (kind, index) == (Section.MEM, FEEDS) else shapes[kind]
        size = len(part.data)
        if index not in indices:
            raise DecodeError(
                "image section", offset=part.entry, expected=f"a {kind.name} this machine has", got=f"index {index}"
            )
        if size % record or not least <= size <= most:
            expected = f"whole records of {record} bytes, {least} to {most} bytes"
            raise DecodeError(f"{kind.name} {index}", offset=part.offset, expected=expected, got=f"{size} bytes")
    needed = [(Section.BUFFERS, 0)]
    needed += [(kind, sp) for kind in (Section.CTRL, Section.CONF) for sp in sps]
    for kind, index in needed:
        if (kind, index) not in parts:
            raise DecodeError(
                "section table", offset=HEADER.size, expected=f"a section {kind.name} {index}", got="none"
            )


def _buffers(part: Part, memory_size: int) -> tuple[DeclaredBuffer, ...]:
    """Read the buffers, which lie back to back in the order in which they are declared and fill the memory."""
    out: list[DeclaredBuffer] = []
    position = isa.FIRST_BUFFER
    for at in range(0, len(part.data), BUFFER.size):
        row = BUFFER.decode(part.data, at)
        raw = row["name"].to_bytes(_NAME_FIELD, "little").rstrip(b"\0")
        offset, size = row["offset"], row["size"]
        printable = raw.isascii() and raw.decode("ascii", "replace").isprintable() and raw != b""
        if not printable or raw.decode() in [buffer.name for buffer in out] or row["reserved"] or row["use"] > 3:
            raise DecodeError("declared buffer", offset=part.offset + at, expected="a fresh ASCII name", got=repr(raw))
        if offset != position or offset + size > memory_size:
            expected = f"bytes from {position} to at most {memory_size}"
            raise DecodeError("declared buffer", offset=part.offset + at, expected=expected, got=f"{offset}+{size}")
        out.append(DeclaredBuffer(raw.decode(), offset, size, BufferUse(row["use"])))
        position = offset + -(-size // isa.BUFFER_ALIGNMENT) * isa.BUFFER_ALIGNMENT
    if position != memory_size:
        expected = f"buffers that end where the memory does, at {memory_size}"
        raise DecodeError("declared buffers", offset=part.offset, expected=expected, got=str(position))
    for use in (BufferUse.INPUT, BufferUse.OUTPUT):
        if not any(use in buffer.use for buffer in out):
            raise DecodeError("declared buffers", offset=part.offset, expected=f"an {use.name} buffer", got="none")
    return tuple(out)


def _presets(part: Part | None, sps: int) -> tuple[Preset, ...]:
    if part is None:
        return ()
    out: list[Preset] = []
    for at in range(0, len(part.data), PRESET.size):
        row = PRESET.decode(part.data, at)
        key = (row["sp"], row["id"])
        free = row["sp"] < sps and FIRST_FREE <= row["id"] <= LAST_FREE and 0 < row["value"] <= MAX_VALUE
        if not free or (out and key <= (out[-1].sp, out[-1].identity)):
            expected = "a value for a free semaphore, in ascending order"
            raise DecodeError("semaphore preset", offset=part.offset + at, expected=expected, got=f"{row}")
        out.append(Preset(row["sp"], row["id"], row["value"]))
    return tuple(out)
