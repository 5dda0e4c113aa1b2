"""Instruction streams, images and bare parts of images as listings, for people; `asm` turns the text into the bytes.

Everything is shown that can be, damaged or not. Nothing here decides whether bytes may run: `load` does.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from rota.device import forms
from rota.device.listing import (
    LISTERS,
    SCHEMA,
    ZERO,
    Line,
    Lister,
    Listing,
    list_conf,
    list_ctrl,
    list_network,
    list_part,
    list_records,
    list_rx,
    list_slot,
    list_stream,
    list_text,
    list_tx,
)
from rota.device.load import load_image
from rota.errors import DecodeError, UsageError
from rota.isa import arch as isa
from rota.isa.descriptors import DESCRIPTOR
from rota.isa.image import ALIGNMENT, DIGEST_SIZE, HEADER, MAGIC, MAX_SECTIONS, SECTION, SLOTS_PER_SP, Section
from rota.isa.spad import CONTINUE, END_TAG, SLOT

__all__ = ["KINDS", "SCHEMA", "Line", "Listing", "counts", "disassemble", "disassemble_image", "disassemble_stream"]

Record = dict[str, Any]
KINDS: Final = (*LISTERS, "image")
ALIGN, SECTION_BEGIN, SECTION_END, AUTO = ".align", ".section", ".end", "auto"


def disassemble(data: bytes, kind: str) -> Listing:
    """Return the listing of bytes of which the kind is known.

    Raises:
        UsageError: no kind is called that.
    """
    if kind not in KINDS:
        raise UsageError(f"'{kind}': expected one of {', '.join(KINDS)}")
    return disassemble_image(data) if kind == "image" else list_part(kind, data)


def disassemble_stream(data: bytes) -> Listing:
    """Return the listing of an instruction stream."""
    return list_part("stream", data)


def disassemble_image(data: bytes) -> Listing:
    """Return the listing of an image, its container included; every byte is in exactly one line."""
    listing = Listing("image")
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        listing.append_raw(
            "image", 0, data, f"no header: expected {HEADER.size} bytes that begin with {MAGIC.decode()}"
        )
        return listing
    rows = _rows(data)
    bodies = _bodies(data, rows)
    list_records(listing, data[: HEADER.size], forms.IMAGE, part="image", base=0)
    _list_table(listing, data, rows, bodies)
    position = HEADER.size + len(rows) * SECTION.size
    for body in sorted(bodies.values(), key=lambda body: (body.start, body.row)):
        _list_gap(listing, data, position, body.start, aligned=True)
        _list_body(listing, data, body, rows[body.row])
        position = body.end
    end = max(position, len(data) - DIGEST_SIZE)
    _list_gap(listing, data, position, end, aligned=False)
    _list_digest(listing, data, end)
    _blame(listing, data)
    return listing


def counts(data: bytes) -> Record:
    """Return how many rows, descriptors and bytes an image has.

    Raises:
        DecodeError: the container is damaged.
    """
    image = load_image(data)
    rows = sum(_repeats(part.data) for (kind, _), part in image.parts.items() if kind is Section.SLOT)
    tx = sum(len(part.data) // DESCRIPTOR.itemsize for (kind, _), part in image.parts.items() if kind is Section.TX)
    rx = sum(len(part.data) // DESCRIPTOR.itemsize for (kind, _), part in image.parts.items() if kind is Section.RX)
    return {"rank": image.rank, "bytes": len(data), "rows": rows, "tx": tx, "rx": rx}


def _repeats(program: memoryview) -> int:
    """Return the rows a slot program stands for, up to its END mark; CONTINUE marks and what follows them are none."""
    words = np.frombuffer(program, "<u8")
    ends = np.flatnonzero(words >> np.uint64(48) == END_TAG)
    marks = words[: int(ends[0]) if ends.size else None] == np.uint64(CONTINUE)
    following = np.append(False, marks[:-1])
    repeat = np.frombuffer(program, SLOT.dtype)["repeat"][: marks.size]
    return int(repeat[~(marks | following)].sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class _Body:
    """The bytes of one section, as far as they are there."""

    row: int
    start: int
    end: int
    whole: bool


def _rows(data: bytes) -> list[Mapping[str, int]]:
    """Return the rows of the section table that are there."""
    there = (len(data) - HEADER.size) // SECTION.size
    count = min(HEADER.decode(data)["sections"], MAX_SECTIONS, there)
    return [SECTION.decode(data, HEADER.size + row * SECTION.size) for row in range(count)]


def _bodies(data: bytes, rows: list[Mapping[str, int]]) -> dict[int, _Body]:
    """Return the sections that lie behind the table and on no earlier one, by row."""
    position = HEADER.size + len(rows) * SECTION.size
    out: dict[int, _Body] = {}
    for row in sorted(range(len(rows)), key=lambda row: (rows[row]["offset"], rows[row]["size"], row)):
        start, size = rows[row]["offset"], rows[row]["size"]
        if not position <= start <= len(data):
            continue
        position = min(start + size, len(data))
        out[row] = _Body(row, start, position, start + size == position)
    return out


def _list_table(listing: Listing, data: bytes, rows: list[Mapping[str, int]], bodies: Mapping[int, _Body]) -> None:
    """Add the section table; what follows from the section itself reads `auto`."""
    start = len(listing)
    table = data[HEADER.size : HEADER.size + len(rows) * SECTION.size]
    list_records(listing, table, forms.SECTION_ROW, part="table", base=HEADER.size)
    for row, entry in enumerate(rows):
        line, body = start + row, bodies.get(row)
        if body is None or not body.whole:
            listing.damaged.add(line)
            listing.note[line] = "expected a place of its own behind the table and inside the file"
        if body is None:
            continue
        crc = zlib.crc32(data[body.start : body.end])
        name = f"section {row}: {_label(entry)}"
        automatic = [("offset", f"0x{body.start:08x}")]
        automatic += [("size", str(entry["size"]))] if body.whole else []
        if crc == entry["crc32"]:
            automatic.append(("crc32", f"0x{crc:08x}"))
        elif line not in listing.damaged:
            listing.damaged.add(line)
            listing.note[line] = f"{name}: expected CRC-32 0x{crc:08x}, got another"
        listing.note.setdefault(line, f"{name}, {entry['size']} bytes at 0x{body.start:08x}")
        listing.text[line] = _automatic(listing.text[line], dict(automatic))
    listing.text[start:] = _align(listing.text[start:])


def _automatic(text: str, values: Mapping[str, str]) -> str:
    """Replace the values that follow from the rest by `auto`."""
    same = {f"{name}={value}": f"{name}={AUTO}" for name, value in values.items()}
    return " ".join(same.get(word, word) for word in text.split())


def _align(texts: Sequence[str]) -> list[str]:
    """Pad the words of lines so that they stand in columns."""
    lines = [text.split() for text in texts]
    widths = [max(map(len, words)) for words in zip_longest(*lines, fillvalue="")]
    return [" ".join(word.ljust(width) for word, width in zip(words, widths, strict=False)).rstrip() for words in lines]


def _label(entry: Mapping[str, int]) -> str:
    """Say what a section is for."""
    kind, index = entry["kind"], entry["index"]
    name = Section(kind).name.lower() if kind in {int(each) for each in Section} else f"kind {kind}"
    if kind in (Section.TX, Section.RX):
        return f"{name} {index // isa.QUEUES}.{index % isa.QUEUES}"
    if kind == Section.SLOT:
        return f"{name} {index // SLOTS_PER_SP}.{index % SLOTS_PER_SP}"
    return f"{name} {index}"


def _list_gap(listing: Listing, data: bytes, start: int, end: int, *, aligned: bool) -> None:
    """Add the bytes between two sections: zeros up to the next multiple of 64, or whatever they are."""
    gap = data[start:end]
    if not gap:
        return
    if not any(gap):
        usual = aligned and end == -(-start // ALIGNMENT) * ALIGNMENT
        text = f"{ALIGN} {ALIGNMENT}" if usual else f"{ZERO} {len(gap)}"
        listing.append("gap", start, len(gap), text, "" if usual else "bytes of no section", damaged=not usual)
        return
    listing.append_raw("gap", start, gap, "bytes of no section, expected zeros")


def _list_body(listing: Listing, data: bytes, body: _Body, entry: Mapping[str, int]) -> None:
    part, piece = _label(entry), data[body.start : body.end]
    listing.append(part, body.start, 0, f"{SECTION_BEGIN} {body.row}", part)
    kind = entry["kind"]
    if kind in _RECORDS:
        list_records(listing, piece, _RECORDS[kind], part=part, base=body.start)
    elif kind in _LISTERS:
        _LISTERS[kind](listing, piece, part=part, base=body.start)
    else:
        listing.append_raw(part, body.start, piece, f"no section has kind {kind}")
    listing.append(part, body.end, 0, SECTION_END)


_RECORDS: Final = {
    int(Section.META): forms.META_RECORD,
    int(Section.MEM): forms.FEED_WORD,
    int(Section.SEMA): forms.PRESET_RECORD,
    int(Section.BUFFERS): forms.BUFFER_RECORD,
}
_LISTERS: Final[Mapping[int, Lister]] = {
    int(Section.CTRL): list_ctrl,
    int(Section.SLOT): list_slot,
    int(Section.CONF): list_conf,
    int(Section.TX): list_tx,
    int(Section.RX): list_rx,
    int(Section.WORDS): list_stream,
    int(Section.REQUEST): list_text,
    int(Section.NETWORK): list_network,
    int(Section.SB2SB): list_stream,
}


def _list_digest(listing: Listing, data: bytes, start: int) -> None:
    digest = hashlib.sha256(memoryview(data)[:start]).digest()
    if len(data) - start != DIGEST_SIZE:
        rest = data[start:]
        listing.append_raw("digest", start, rest, f"truncated: {len(rest)} of {DIGEST_SIZE} bytes of the SHA-256")
        if not rest:
            listing.append(
                "digest", start, 0, f"{ZERO} 0", "truncated: the SHA-256 of the file is missing", damaged=True
            )
        return
    list_records(listing, data[start:], forms.DIGEST, part="digest", base=start)
    if data[start:] == digest:
        listing.text[-1] = f"{forms.DIGEST.word} sha256={AUTO}"
        return
    line = len(listing) - 1
    listing.note[line] = f"expected the SHA-256 of the file, {digest.hex()}: the file is damaged"
    listing.damaged.add(line)


def _blame(listing: Listing, data: bytes) -> None:
    """Say what the loader has against the image, beside checksums, on the line where it is."""
    try:
        load_image(data, digests=False)
    except DecodeError as error:
        sized = [i for i, size in enumerate(listing.size) if size and listing.offset[i] <= error.offset]
        line = sized[-1] if sized else 0
        if line not in listing.damaged:
            listing.note[line] = str(error)
            listing.damaged.add(line)
