"""The text of a listing back to the bytes: the inverse of `disasm` for every byte string it can show.

A line is an offset, which is only for reading, a word, and `name=value` for each field; `;` begins a remark. What is
left out is 0. `.raw`, `.zero` and `.align` put bytes; `.section N` to `.end` is what row N of an image's table means.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rota.device import forms
from rota.device.disasm import ALIGN, AUTO, SECTION_BEGIN, SECTION_END
from rota.device.listing import RAW, VERSION, ZERO
from rota.device.shapes import Shape
from rota.errors import UsageError
from rota.isa.image import ALIGNMENT, DIGEST_SIZE, SECTION

LARGEST: Final = 1 << 30  # bytes of a result
TITLE: Final = "; rota "  # what a listing begins with
_TITLE: Final = re.compile(r";\s*rota\s+(\w+)\s+(\w+)\s*", re.ASCII)
_OFFSET: Final = re.compile(r"[0-9A-Fa-f]+:", re.ASCII)
_AUTOMATIC: Final = ("offset", "size", "crc32")


def assemble(text: str) -> bytes:
    """Return the bytes a listing stands for.

    Raises:
        UsageError: the first line does not say what the text is, or a line means nothing; it names the line.
    """
    title, *lines = text.splitlines() or [""]
    match = _TITLE.fullmatch(title)
    if match is None or match[1] not in forms.KINDS or match[2] != str(VERSION):
        kinds = ", ".join(forms.KINDS)
        raise UsageError(f"line 1: expected '; rota KIND {VERSION}' with KIND one of {kinds}, got '{title[:80]}'")
    assembly = _Assembly(match[1], forms.KINDS[match[1]])
    for row, line in enumerate(lines, start=2):
        words = line.partition(";")[0].split()
        if words and _OFFSET.fullmatch(words[0]):
            del words[0]
        if not words:
            continue
        try:
            assembly.add(words)
        except UsageError as error:
            raise UsageError(f"line {row}: {error}") from None
    return assembly.finish()


@dataclass(slots=True)
class _Row:
    """A row of the section table whose values follow from its section."""

    at: int
    numbers: dict[str, int]
    automatic: frozenset[str]


@dataclass(slots=True)
class _Assembly:
    """The bytes so far, and what can only be filled in at the end."""

    kind: str
    shapes: Mapping[str, Shape]
    out: bytearray = field(default_factory=bytearray)
    rows: list[_Row] = field(default_factory=list)
    sections: dict[int, tuple[int, int]] = field(default_factory=dict)
    digests: list[int] = field(default_factory=list)
    begun: tuple[int, int] | None = None  # row and first byte of the section that has no end yet

    def add(self, words: list[str]) -> None:
        """Add one line."""
        word, *rest = words
        if word in (RAW, ZERO, ALIGN):
            self._put(word, rest)
        elif self.kind == "image" and word in (SECTION_BEGIN, SECTION_END):
            self._section(word, rest)
        else:
            self._record(word, rest)
        if len(self.out) > LARGEST:
            raise UsageError(f"the result is larger than {LARGEST} bytes")

    def _put(self, word: str, rest: list[str]) -> None:
        try:
            (value,) = rest
            if word == RAW:
                self.out += bytes.fromhex(value)
                return
            count = int(value, 0)
            if word == ALIGN:
                if count not in (1 << bit for bit in range(ALIGNMENT.bit_length())):
                    raise ValueError("no alignment")
                count = -len(self.out) % count
            if count < 0:
                raise ValueError("no size")
        except ValueError:
            what = {RAW: "hexadecimal bytes", ZERO: "how many bytes"}.get(word, f"a power of two up to {ALIGNMENT}")
            raise UsageError(f"{word}: expected {what}, got '{' '.join(rest)[:80]}'") from None
        if len(self.out) + count > LARGEST:
            raise UsageError(f"the result is larger than {LARGEST} bytes")
        self.out += bytes(count)

    def _section(self, word: str, rest: list[str]) -> None:
        if word == SECTION_END:
            if self.begun is None or rest:
                raise UsageError(f"{SECTION_END}: expected alone, and behind {SECTION_BEGIN}")
            row, start = self.begun
            self.sections[row], self.begun = (start, len(self.out)), None
            return
        row = int(rest[0]) if len(rest) == 1 and rest[0].isascii() and rest[0].isdecimal() and len(rest[0]) < 9 else -1
        if not 0 <= row < len(self.rows) or row in self.sections or self.begun is not None:
            got = " ".join(rest)[:80]
            raise UsageError(f"{SECTION_BEGIN}: expected a row of the table, once, outside of others; got '{got}'")
        self.begun = (row, len(self.out))

    def _record(self, word: str, rest: list[str]) -> None:
        shape = self.shapes.get(word.casefold())
        if shape is None:
            raise UsageError(f"'{word[:80]}': expected a record of kind {self.kind}, {RAW} or {ZERO}")
        pairs: dict[str, str] = {}
        for each in rest:
            name, sign, value = each.partition("=")
            if not sign or name in pairs:
                raise UsageError(f"{shape.word}: expected name=value, each name once, got '{each[:80]}'")
            pairs[name] = value
        if shape is forms.SECTION_ROW:
            automatic = frozenset(name for name in _AUTOMATIC if pairs.get(name) == AUTO)
            kept = {name: value for name, value in pairs.items() if name not in automatic}
            record = shape.read(kept)
            self.rows.append(_Row(len(self.out), SECTION.decode(record), automatic))
        elif shape is forms.DIGEST and pairs == {"sha256": AUTO}:
            self.digests.append(len(self.out))
            record = bytes(DIGEST_SIZE)
        else:
            record = shape.read(pairs)
        self.out += record

    def finish(self) -> bytes:
        """Fill in what follows from the rest.

        Raises:
            UsageError: a section has no end, or a row that is to follow from its section has none.
        """
        if self.begun is not None:
            raise UsageError(f"{SECTION_BEGIN} {self.begun[0]}: expected {SECTION_END} before the end of the text")
        for number, row in enumerate(self.rows):
            if not row.automatic:
                continue
            if number not in self.sections:
                raise UsageError(f"row {number} of the table: 'auto' needs a {SECTION_BEGIN} {number}")
            start, end = self.sections[number]
            found = {"offset": start, "size": end - start, "crc32": zlib.crc32(memoryview(self.out)[start:end])}
            row.numbers |= {name: found[name] for name in row.automatic}
            self.out[row.at : row.at + SECTION.size] = SECTION.encode(**row.numbers)
        for at in self.digests:
            self.out[at : at + DIGEST_SIZE] = hashlib.sha256(memoryview(self.out)[:at]).digest()
        return bytes(self.out)
