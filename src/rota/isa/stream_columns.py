"""An instruction stream of any length as columns, and back to the same bytes.

Nothing is checked: every stream of whole records has columns. `words` reads the same fields one by one, and refuses
what means nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, U8, U16, U32, U64, Array, Bool, freeze, freeze_columns
from rota.errors import UsageError
from rota.isa.carriers import COLLECTIVE2_WORD, EXTENSION_WORD
from rota.isa.layout import Buffer, Layout
from rota.isa.opcodes import Opcode
from rota.isa.records import RECORD, WORD_SIZE
from rota.isa.words import ALL_REDUCE_WORD, COLLECTIVE_WORD

BLOCK: Final = 2048  # records at a time: what is read once stays in the cache for every column


@dataclass(frozen=True, slots=True, eq=False)
class StreamColumns:
    """The records of a stream, one row each; a field that a record does not have is 0.

    A collective word is wholly in its row. Of every other record, and of one with a reserved bit set, the 64 bytes are
    in `Raw` too; on encoding, the columns of the row win over them.
    """

    opcode: U8
    inst_word_len: U8
    debug_cmd: U8
    debug_hint: U8
    wait_mode: U8
    wait_idx: U8
    update_mode: U8
    update_idx: U8
    semaphore_value: U32
    op: U8
    dtype: U8
    ctype: U8
    cc_dim: U8
    chaining: U8
    dma_configs: U8  # bits 2 to 0: the priority class
    group_id: U16
    channel_id: U16
    stream_id: U16
    input_id: U32
    output_id: U32
    num_elements: U64
    src_offset: U64
    dst_offset: U64

    def __post_init__(self) -> None:
        freeze_columns(self)

    @property
    def rows(self) -> int:
        """Return how many records there are."""
        return self.opcode.size


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """Records kept as bytes: `row` ascending, and their bytes, shape (rows, 64)."""

    row: I64
    record: U8

    def __post_init__(self) -> None:
        freeze(self.row)
        freeze(self.record)


_TYPES: Final = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}
_COLUMNS: Final = {each.name: np.dtype(_TYPES[str(each.type)]) for each in dataclasses.fields(StreamColumns)}
_WORDS: Final = {
    int(Opcode.PSEUDO_TRIGGER_COLLECTIVE): COLLECTIVE_WORD,
    int(Opcode.PSEUDO_TRIGGER_ALL_REDUCE): ALL_REDUCE_WORD,
}
_LAYOUTS: Final = {
    **_WORDS,
    int(Opcode.PSEUDO_TRIGGER_COLLECTIVE2): COLLECTIVE2_WORD,
    int(Opcode.PSEUDO_EXTENSION): EXTENSION_WORD,
}


_HEAD: Final = tuple(RECORD.dtype.names or ())  # the opcode comes first
_KINDS: Final = {opcode: layout.dtype for opcode, layout in _LAYOUTS.items()}
_FIELDS: Final = {
    opcode: tuple(name for name in kind.names or () if name in _COLUMNS and name not in _HEAD)
    for opcode, kind in _KINDS.items()
}


def _gaps(layout: Layout) -> tuple[tuple[int, int], ...]:
    """Return the reserved bits by 8-byte word of a record, where there are any."""
    named = int.from_bytes(layout.encode(**layout.decode(b"\xff" * WORD_SIZE)), "little")
    unnamed = ((1 << 8 * WORD_SIZE) - 1) & ~named
    words = ((at, unnamed >> 64 * at & (1 << 64) - 1) for at in range(WORD_SIZE // 8))
    return tuple((at, mask) for at, mask in words if mask)


_GAPS: Final = {opcode: _gaps(layout) for opcode, layout in _WORDS.items()}
_WHOLE: Final = np.isin(np.arange(256), list(_WORDS))


def stream_columns(data: Buffer) -> tuple[StreamColumns, Raw]:
    """Return a stream as columns, and the records that do not fit into them as bytes.

    Raises:
        DecodeError: the length is no whole number of records.
    """
    records = RECORD.columns(data)
    lines = np.frombuffer(data, np.uint8).reshape(-1, WORD_SIZE)
    columns = {name: np.zeros(records.size, kind) for name, kind in _COLUMNS.items()}
    kept: list[Array] = []
    for start in range(0, records.size, BLOCK):
        block = lines[start : start + BLOCK]
        here = {name: column[start : start + BLOCK] for name, column in columns.items()}
        for name in _HEAD:
            here[name][:] = records[name][start : start + BLOCK]
        loose = ~_WHOLE[here["opcode"]]
        for opcode, rows in _special(here["opcode"]):
            chosen = block[rows]
            if opcode == Opcode.PSEUDO_EXTENSION:
                for name in _HEAD[1:]:
                    here[name][rows] = 0
            view = chosen.view(_KINDS[opcode])[:, 0]
            for name in _FIELDS[opcode]:
                here[name][rows] = view[name]
            if opcode in _GAPS:
                loose[rows] = _stray(chosen, _GAPS[opcode])
        if loose.any():
            kept.append(start + np.flatnonzero(loose))
    row = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    return StreamColumns(**columns), Raw(row, lines[row])


def encode_columns(columns: StreamColumns, raw: Raw | None = None) -> U8:
    """Return the bytes of the records, shape (64 x rows,): the inverse of `stream_columns`.

    Raises:
        UsageError: a raw record names a row that is not there, or `raw` is not 64 bytes a row.
    """
    out = np.zeros((columns.rows, WORD_SIZE), np.uint8)
    if raw is not None and raw.row.size:
        if raw.record.shape != (raw.row.size, WORD_SIZE):
            raise UsageError(f"raw records: expected shape ({raw.row.size}, {WORD_SIZE}), got {raw.record.shape}")
        if raw.row.min() < 0 or raw.row.max() >= columns.rows:
            got = f"{raw.row.min()} to {raw.row.max()}"
            raise UsageError(f"raw records: expected rows from 0 to {columns.rows - 1}, got {got}")
        out[raw.row] = raw.record
    for start in range(0, columns.rows, BLOCK):
        block = out[start : start + BLOCK]
        here = {name: getattr(columns, name)[start : start + BLOCK] for name in _COLUMNS}
        special = [(opcode, rows, np.array(block[rows])) for opcode, rows in _special(here["opcode"])]
        view = block.view(RECORD.dtype)[:, 0]
        for name in _HEAD:
            view[name] = here[name]
        for opcode, rows, chosen in special:
            view = chosen.view(_KINDS[opcode])[:, 0]
            heading = ("opcode",) if opcode == Opcode.PSEUDO_EXTENSION else _HEAD
            for name in (*heading, *_FIELDS[opcode]):
                view[name] = here[name][rows]
            block[rows] = chosen
    return out.reshape(-1)


def _special(opcode: U8) -> Iterator[tuple[int, I64 | slice]]:
    """Yield each layout with columns of its own in a block, by its opcode, and the rows that have it."""
    counts = np.bincount(opcode, minlength=256)
    for each in _LAYOUTS:
        if counts[each]:
            yield each, slice(None) if counts[each] == opcode.size else np.flatnonzero(opcode == each)


def _stray(records: U8, gaps: tuple[tuple[int, int], ...]) -> Bool:
    """Say which records have a bit set that no field names."""
    words = records.view("<u8")
    stray = np.zeros(len(records), np.uint64)
    for at, mask in gaps:
        stray |= words[:, at] & np.uint64(mask)
    out: Bool = stray != 0
    return out
