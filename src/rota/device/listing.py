"""Bytes as lines of text, one record a line: instruction streams, descriptors, scratchpad and configuration.

Records that mean nothing stay in their place as raw hex with what is wrong, and the listing goes on. The container of
an image is in `disasm`, the way back to bytes in `asm`. Nothing here decides whether bytes may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rota.columns import I64, U8, Array, Bool
from rota.device import forms
from rota.device.instructions import BODY, STRICT, WORD_LAYOUTS, WORDS
from rota.device.shapes import Shape
from rota.isa.config import CONFIGURATIONS, Configuration
from rota.isa.enums import Opcode, Pattern
from rota.isa.layout import Buffer
from rota.isa.opcodes import describe_opcode
from rota.isa.records import WORD_SIZE
from rota.isa.spad import CONTINUE, CONTROL_RING, END_TAG, ENTRY_SIZE, MAX_COMPLETIONS, PATTERN_OF_ALGORITHM

VERSION: Final = 1
SCHEMA: Final = 2
RAW, ZERO = ".raw", ".zero"
RAW_LINE: Final = 64  # bytes of unstructured data on one line
_DIM, _WORD, _BAD, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"
_ZERO_RUN: Final = 4  # empty entries of a scratchpad from which one line stands for all

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the part it belongs to, where its bytes are, its statement, and what is wrong or worth saying."""

    part: str
    offset: int
    size: int
    text: str
    note: str
    damaged: bool

    def __str__(self) -> str:
        return f"{self.offset:08x}: {self.text}" + (f"  ; {self.note}" if self.note else "")

    def to_json(self, *, raw: Buffer | None = None) -> Record:
        """Return the record for JSON: numbers where the text has decimal numbers, `raw` the bytes that were listed."""
        word, *rest = self.text.split()
        out: Record = {"part": self.part, "offset": self.offset, "size": self.size, "record": word}
        if word.startswith("."):
            out["value"] = " ".join(rest)
        else:
            pairs = [each.partition("=") for each in rest]
            out["fields"] = {name: int(value) if value.isdecimal() else value for name, _, value in pairs}
        if raw is not None and self.size:
            out["raw"] = bytes(raw[self.offset : self.offset + self.size]).hex()
        return out | ({"note": self.note} if self.note else {}) | ({"damaged": True} if self.damaged else {})


@dataclass(slots=True)
class Listing:
    """Lines as columns, in the order of the bytes; `text` is what `asm` reads, `note` what it passes over."""

    kind: str
    part: list[str] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    note: dict[int, str] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[Line]:
        for i, (part, offset, size, text) in enumerate(zip(self.part, self.offset, self.size, self.text, strict=True)):
            yield Line(part, offset, size, text, self.note.get(i, ""), i in self.damaged)

    def lines(self, *, raw: Buffer | None = None) -> Iterator[str]:
        """Yield the text, the line that says what it is first.

        Args:
            raw: the bytes that were listed, to be appended to each record in hex; None to leave them out.
        """
        yield f"; rota {self.kind} {VERSION}"
        note = self.note
        for i, (offset, size, text) in enumerate(zip(self.offset, self.size, self.text, strict=True)):
            line = f"{offset:08x}: {text}"
            if i in note:
                line += f"  ; {note[i]}"
            if raw is not None and size and not text.startswith("."):
                line += f"  ; {bytes(raw[offset : offset + size]).hex()}"
            yield line

    def painted(self, *, raw: Buffer | None = None) -> Iterator[str]:
        """Yield the same text in the colours of a terminal."""
        for i, line in enumerate(self.lines(raw=raw), start=-1):
            body, sign, remark = line.partition("  ;")
            place, colon, statement = body.partition(": ")
            word, space, rest = statement.partition(" ")
            if colon:
                body = f"{_DIM}{place}:{_PLAIN} {_WORD}{word}{_PLAIN}{space}{rest}"
            yield body + (f"{_BAD if i in self.damaged else _DIM}{sign}{remark}{_PLAIN}" if sign else "")

    def append(self, part: str, offset: int, size: int, text: str, note: str = "", *, damaged: bool = False) -> None:
        """Add one line."""
        if note:
            self.note[len(self.text)] = note
        if damaged:
            self.damaged.add(len(self.text))
        self.part.append(part)
        self.offset.append(offset)
        self.size.append(size)
        self.text.append(text)

    def append_raw(self, part: str, offset: int, data: Buffer, note: str) -> None:
        """Add bytes that mean nothing as hex, `RAW_LINE` bytes a line; `note` says why, and goes to the first."""
        for at in range(0, len(data), RAW_LINE):
            piece = bytes(data[at : at + RAW_LINE])
            self.append(part, offset + at, len(piece), f"{RAW} {piece.hex()}", "" if at else note, damaged=not at)

    def extend(self, part: str, rows: _Rows, *, base: int, collapse: int = 0, empty: str = "") -> None:
        """Add the records of a block; runs of at least `collapse` all-zero ones become one line, 0 for never."""
        size, start = rows.size, len(self.text)
        if not collapse or not rows.empty.any():
            self.part += [part] * len(rows.text)
            self.offset += range(base, base + size * len(rows.text), size)
            self.size += [size] * len(rows.text)
            self.text += rows.text
            self.note |= {start + row: note for row, note in rows.wrong.items()}
            self.damaged |= {start + row for row in rows.wrong}
            return
        edge = np.flatnonzero(np.diff(rows.empty.astype(np.int8), prepend=0, append=0)).tolist()
        runs = {first: last for first, last in zip(edge[::2], edge[1::2], strict=True) if last - first >= collapse}
        row = 0
        while row < len(rows.text):
            if row in runs:
                count = runs[row] - row
                self.append(
                    part, base + row * size, count * size, f"{ZERO} {count * size}", f"{count} x {empty}, all 0"
                )
                row += count
                continue
            wrong = rows.wrong.get(row, "")
            self.append(part, base + row * size, size, rows.text[row], wrong, damaged=bool(wrong))
            row += 1


@dataclass(slots=True)
class _Rows:
    """The text of equally large records, what is wrong with some, and which are all zeros."""

    size: int
    text: list[str]
    wrong: dict[int, str]
    empty: Bool


def _render(records: U8, choice: Array, shapes: Mapping[int, Shape], why: Callable[[int], str]) -> _Rows:
    """Show records, each in its own shape; one without a shape, or with a bit set that has no name, is raw hex.

    Args:
        records: their bytes, shape (records, bytes of one).
        choice: key of the shape of each record.
        why: what to say of a record whose choice is no key.
    """
    size = records.shape[1]
    text = [""] * len(records)
    wrong: dict[int, str] = {}
    hexed: list[int] = []
    keys = np.unique(choice).tolist()
    width = max((len(shapes[key].word) for key in keys if key in shapes), default=0)
    for key in keys:
        rows = np.flatnonzero(choice == key)
        shape = shapes.get(key)
        if shape is None:
            hexed += rows.tolist()
            wrong |= {row: why(row) for row in rows.tolist()}
            continue
        block = records[rows]
        stray = (block & shape.unnamed) != 0
        bad = stray.any(axis=1)
        if bad.any():
            places = stray[bad].argmax(axis=1).tolist()
            for row, at in zip(rows[bad].tolist(), places, strict=True):
                wrong[row] = f"reserved bits of {shape.word} set in byte {at}: 0x{records[row, at]:02X}"
                hexed.append(row)
            rows, block = rows[~bad], block[~bad]
        lines, notes = shape.show(block, width=width)
        where = rows.tolist()
        for row, line in zip(where, lines, strict=True):
            text[row] = line
        wrong |= {where[row]: note for row, note in notes.items()}
    for row in hexed:
        text[row] = f"{RAW} {records[row].tobytes().hex()}"
    return _Rows(size, text, wrong, np.logical_not(records.any(axis=1)))


def _records(data: Buffer, size: int) -> tuple[U8, memoryview]:
    """Return the whole records, shape (records, size), and the bytes left over."""
    view = memoryview(data)
    whole = len(view) // size * size
    return np.frombuffer(view[:whole], np.uint8).reshape(-1, size), view[whole:]


def _append_rest(listing: Listing, part: str, offset: int, rest: memoryview, size: int) -> None:
    if rest:
        text = f"{RAW} {rest.hex()}"
        listing.append(part, offset, len(rest), text, f"truncated: {len(rest)} of {size} bytes", damaged=True)


# --- instructions -----------------------------------------------------------------------------------------------------


def list_stream(listing: Listing, data: Buffer, *, part: str = "stream", base: int = 0) -> None:
    """Add the records of an instruction stream."""
    records, rest = _records(data, WORD_SIZE)
    opcode = records[:, 0]
    rows = _render(records, _word_keys(records), WORDS, lambda row: f"unknown opcode 0x{opcode[row]:02X}")
    for row, note in _lonely(opcode).items():
        rows.wrong.setdefault(row, note)
    listing.extend(part, rows, base=base)
    _append_rest(listing, part, base + records.size, rest, WORD_SIZE)


def _word_keys(records: U8) -> I64:
    """Return the key of each record's shape: the body as bytes where its fields are not known or would lose a bit."""
    opcode = records[:, 0]
    keys = opcode.astype(np.int64)
    for key in sorted(set(WORD_LAYOUTS) - STRICT):
        rows = np.flatnonzero(opcode == key)
        keys[rows[(records[rows] & WORDS[key].unnamed).any(axis=1)]] += BODY
    other = np.append(False, opcode == Opcode.PSEUDO_DMA_DIRECT2D)[:-1]
    keys[(opcode == Opcode.PSEUDO_EXTENSION) & other] += BODY
    return keys


def _lonely(opcode: Array) -> dict[int, str]:
    """Return the records that stand alone where two belong together, with what is missing."""
    extension = opcode == Opcode.PSEUDO_EXTENSION
    needs = opcode == Opcode.PSEUDO_TRIGGER_COLLECTIVE2
    takes = needs | (opcode == Opcode.PSEUDO_DMA_DIRECT2D)
    name = describe_opcode(Opcode.PSEUDO_EXTENSION)
    headless = np.flatnonzero(extension & ~np.append(False, takes)[:-1]).tolist()
    alone = np.flatnonzero(needs & ~np.append(extension, False)[1:]).tolist()
    return dict.fromkeys(headless, "extends no record before it") | dict.fromkeys(alone, f"expected {name} next")


# --- descriptors ------------------------------------------------------------------------------------------------------


def list_tx(listing: Listing, data: Buffer, *, part: str = "tx", base: int = 0) -> None:
    """Add the descriptors of a reading queue."""
    _list_plain(listing, data, forms.TX, part, base, 0)


def list_rx(listing: Listing, data: Buffer, *, part: str = "rx", base: int = 0) -> None:
    """Add the descriptors of a writing queue."""
    _list_plain(listing, data, forms.RX, part, base, 0)


def _list_plain(listing: Listing, data: Buffer, shape: Shape, part: str, base: int, collapse: int) -> None:
    size = shape.layout.size
    records, rest = _records(data, size)
    rows = _render(records, np.zeros(len(records), np.int8), {0: shape}, str)
    listing.extend(part, rows, base=base, collapse=collapse, empty=shape.word)
    _append_rest(listing, part, base + records.size, rest, size)


def list_records(listing: Listing, data: Buffer, shape: Shape, *, part: str, base: int) -> None:
    """Add records of one shape."""
    _list_plain(listing, data, shape, part, base, 0)


# --- scratchpad -------------------------------------------------------------------------------------------------------

_CONTROL_KEYS: Final = {int(pattern): shape for pattern, shape in forms.CONTROLS.items()}
_UNKNOWN: Final = -1


def _patterns(records: U8) -> I64:
    """Return the pattern of each control entry, -1 for an active one of no algorithm."""
    known = np.full(16, _UNKNOWN, np.int64)
    for algorithm, pattern in PATTERN_OF_ALGORITHM.items():
        known[algorithm] = pattern
    table = np.ascontiguousarray(records).reshape(-1).view(CONTROL_RING.dtype)
    active = CONTROL_RING.column(table, "cc_op")
    return np.where(active, known[CONTROL_RING.column(table, "algo_type")], int(Pattern.INVALID))


def list_ctrl(listing: Listing, data: Buffer, *, part: str = "control", base: int = 0) -> None:
    """Add the entries of a control table."""
    records, rest = _records(data, ENTRY_SIZE)
    rows = _render(records, _patterns(records), _CONTROL_KEYS, lambda row: f"no algorithm {records[row, 1] & 15}")
    listing.extend(part, rows, base=base, collapse=_ZERO_RUN, empty="entry")
    _append_rest(listing, part, base + records.size, rest, ENTRY_SIZE)


_ENTRY, _CONTINUE, _END, _COMPLETION, _BEHIND = 16, 17, 18, 19, 20
_SLOT_KEYS: Final = _CONTROL_KEYS | {
    _ENTRY: forms.ENTRY,
    _CONTINUE: forms.CONTINUES,
    _END: forms.END,
    _COMPLETION: forms.COMPLETION,
}


def list_slot(listing: Listing, data: Buffer, *, part: str = "slot", base: int = 0) -> None:
    """Add a slot program: entries, CONTINUE with the control entry behind it, END with its completion addresses."""
    records, rest = _records(data, ENTRY_SIZE)
    words = np.ascontiguousarray(records).reshape(-1).view("<u8")
    choice, wrong = _slot_choice(records, words)

    def why(row: int) -> str:
        return "behind the END mark" if choice[row] == _BEHIND else f"no algorithm {records[row, 1] & 15}"

    rows = _render(records, choice, _SLOT_KEYS, why)
    for row in np.flatnonzero((choice == _BEHIND) & rows.empty).tolist():
        rows.text[row] = f"{ZERO} {ENTRY_SIZE}"
        del rows.wrong[row]
    for row, note in wrong.items():
        rows.wrong.setdefault(row, note)
    listing.extend(part, rows, base=base, collapse=_ZERO_RUN, empty="entry")
    _append_rest(listing, part, base + records.size, rest, ENTRY_SIZE)


def _slot_choice(records: U8, words: Array) -> tuple[I64, dict[int, str]]:
    """Say what stands in each place of a slot program, and which marks lack what belongs behind them."""
    choice = np.full(len(records), _ENTRY, np.int64)
    wrong: dict[int, str] = {}
    patterns = _patterns(records)
    taken = -1
    for row in np.flatnonzero((words == CONTINUE) | (words >> np.uint64(48) == END_TAG)).tolist():
        if row == taken:  # the control entry behind a CONTINUE, whatever it looks like
            continue
        if words[row] == CONTINUE:
            choice[row] = _CONTINUE
            taken = row + 1
            if taken < len(choice):
                choice[taken] = patterns[taken]
            else:
                wrong[row] = "expected a control entry next"
            continue
        choice[row] = _END
        behind = words[row + 1 : row + 1 + MAX_COMPLETIONS]
        count = int(np.argmin(np.append(behind != 0, False)))
        choice[row + 1 :] = _BEHIND
        choice[row + 1 : row + 1 + count] = _COMPLETION
        if not count:
            wrong[row] = "expected a completion address next"
        elif (int(words[row]) ^ int(words[row + 1])) & 0xFFFFFFFF:
            wrong[row + 1] = f"expected an address that ends in 0x{int(words[row]) & 0xFFFFFFFF:08X}"
        break
    return choice, wrong


# --- configuration ----------------------------------------------------------------------------------------------------


def list_conf(listing: Listing, data: Buffer, *, part: str = "conf", base: int = 0) -> None:
    """Add the records of a device configuration; its size says which architecture's."""
    by_size = {each.size: each for each in CONFIGURATIONS.values()}
    layout: Configuration = by_size.get(len(data)) or max(by_size.values(), key=lambda each: each.size)
    view = memoryview(data)
    for each in layout.parts:
        piece = view[each.at : each.end]
        if piece:
            _list_plain(listing, piece, forms.CONFIGURATION[each.layout.name], part, base + each.at, 1)
    if len(view) > layout.size:
        listing.append_raw(part, base + layout.size, view[layout.size :], f"behind the {layout.size} bytes there are")
    last = len(listing) - 1
    if 0 < len(view) < layout.size and last not in listing.damaged:
        listing.note[last] = f"the last one: {len(view)} of {layout.size} bytes"
        listing.damaged.add(last)


# --- sections that are not of a stream processor ----------------------------------------------------------------------


def list_text(listing: Listing, data: Buffer, *, part: str, base: int) -> None:
    """Add text, a line of it on each line: its bytes, and what they say beside them."""
    for line in bytes(data).splitlines(keepends=True):
        says = "".join(c if c.isprintable() else "?" for c in line.decode("utf-8", "replace").rstrip("\r\n"))
        listing.append(part, base, len(line), f"{RAW} {line.hex()}", says)
        base += len(line)


def list_network(listing: Listing, data: Buffer, *, part: str, base: int) -> None:
    """Add the records of a network proxy: a header, then operations, sends and receives, as many as it says."""
    view = memoryview(data)
    head, *shapes = forms.NETWORK
    counts = [1]
    if len(view) >= head.layout.size:
        values = head.layout.decode(view)
        counts += [values[name] for name in ("operations", "sends", "receives")]
    for shape, count in zip((head, *shapes), counts, strict=False):
        piece = view[: count * shape.layout.size]
        _list_plain(listing, piece, shape, part, base, 0)
        base, view = base + len(piece), view[len(piece) :]
    if view:
        listing.append_raw(part, base, view, "behind the records that the header counts")


Lister = Callable[..., None]
LISTERS: Final[Mapping[str, Lister]] = {
    "stream": list_stream,
    "tx": list_tx,
    "rx": list_rx,
    "ctrl": list_ctrl,
    "slot": list_slot,
    "conf": list_conf,
}


def list_part(kind: str, data: Buffer) -> Listing:
    """Return the listing of a stream, or of a bare part of an image; any bytes have one."""
    listing = Listing(kind)
    LISTERS[kind](listing, data)
    return listing
