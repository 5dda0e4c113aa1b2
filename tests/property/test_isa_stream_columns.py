"""Laws of streams as columns, and of pairs and transfers as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.errors import DecodeError, UsageError
from rota.isa.carriers import COLLECTIVE2_WORD, EXTENSION_WORD
from rota.isa.layout import Layout
from rota.isa.pairs import decode_pair, encode_pair
from rota.isa.records import RECORD
from rota.isa.stream_columns import BLOCK, Raw, StreamColumns, encode_columns, stream_columns
from rota.isa.transfers import decode_sb2sb, decode_send_recv, encode_sb2sb, encode_send_recv
from rota.isa.words import ALL_REDUCE_WORD, COLLECTIVE_WORD

T = TypeVar("T")
WORDS = {0xC8: COLLECTIVE_WORD, 0xC7: ALL_REDUCE_WORD}
LAYOUTS = {**WORDS, 0xD9: COLLECTIVE2_WORD, 0xDA: EXTENSION_WORD}

rest = st.binary(min_size=63, max_size=63) | st.just(bytes(63))
records = st.builds(lambda opcode, tail: bytes([opcode]) + tail, st.sampled_from([*LAYOUTS, 0xA5, 0x00]), rest)
streams = st.lists(records, max_size=12).map(b"".join)
NAMES = StreamColumns.__dataclass_fields__


def row_by_row(data: bytes) -> list[dict[str, int]]:
    """Return what the columns should hold, one record at a time."""
    rows = []
    for offset in range(0, len(data), 64):
        layout: Layout = LAYOUTS.get(data[offset], RECORD)
        values = layout.decode(data, offset)
        if layout is EXTENSION_WORD:
            values["dma_configs"] = data[offset + 41]
        rows.append({name: values.get(name, 0) for name in NAMES})
    return rows


@given(data=streams)
@example(data=b"\xda" + b"\xff" * 63)
@example(data=(b"\xc8" + bytes(63)) * 3)
def test_columns_are_the_rows(data: bytes) -> None:
    """Each column holds what reading one record after the other finds, 0 where a record has no such field."""
    columns, raw = stream_columns(data)
    rows = row_by_row(data)
    assert columns.rows == len(rows)
    for name in NAMES:
        assert getattr(columns, name).tolist() == [row[name] for row in rows]
    loose = [
        at
        for at in range(len(rows))
        if (layout := WORDS.get(data[64 * at])) is None or layout.reserved(data[64 * at : 64 * at + 64]) is not None
    ]
    assert raw.row.tolist() == loose
    assert [record.tobytes() for record in raw.record] == [data[64 * at : 64 * at + 64] for at in loose]


@given(data=streams)
@example(data=b"\xda" + b"\xff" * 63)
@example(data=b"\xc8" + b"\xff" * 63)
def test_encoding_undoes_decoding(data: bytes) -> None:
    """Any whole number of records, whatever is in them, comes back byte for byte."""
    columns, raw = stream_columns(data)
    assert encode_columns(columns, raw).tobytes() == data


def test_blocks_of_every_mixture() -> None:
    """Streams longer than a block, with one kind a block and with all of them, come back and agree with the rows."""
    rng = np.random.default_rng(0)
    lines = rng.integers(0, 256, (6 * BLOCK + 17, 64), dtype=np.uint8)
    for block, opcode in enumerate([0xC8, 0xC7, 0xD9, 0xDA, 0xA5]):
        lines[block * BLOCK : (block + 1) * BLOCK, 0] = opcode
    lines[5 * BLOCK :, 0] = rng.choice([0xC8, 0xC7, 0xD9, 0xDA, 0xA5], BLOCK + 17)
    lines[:64, 33:48] = 0  # some collective words that are wholly in their columns
    data = lines.tobytes()
    columns, raw = stream_columns(data)
    assert encode_columns(columns, raw).tobytes() == data
    rows = row_by_row(data)
    for name in NAMES:
        assert getattr(columns, name).tolist() == [row[name] for row in rows]


def test_columns_win_over_raw_bytes() -> None:
    """A changed column changes the record, also one that is kept as bytes."""
    columns, raw = stream_columns(bytes([0xA5, 0x10]).ljust(64, b"\x07"))
    changed = StreamColumns(
        **{name: getattr(columns, name).copy() for name in NAMES} | {"wait_idx": np.full(1, 9, "u1")}
    )
    assert encode_columns(changed, raw).tobytes() == bytes([0xA5, 0x10, 7, 7, 7, 9]).ljust(64, b"\x07")


def test_columns_cannot_be_written() -> None:
    """Columns are read-only, and raw records too."""
    columns, raw = stream_columns(bytes(64))
    for array in (columns.opcode, raw.row, raw.record):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_damage() -> None:
    """A cut record has its offset; raw records that do not fit are usage errors."""
    with pytest.raises(DecodeError, match="truncated record at offset 64"):
        stream_columns(bytes(65))
    columns, raw = stream_columns(bytes(64))
    with pytest.raises(UsageError, match="expected rows from 0 to 0, got 1 to 1"):
        encode_columns(columns, Raw(np.ones(1, np.int64), raw.record.copy()))
    with pytest.raises(UsageError, match=r"expected shape \(1, 64\), got \(1, 63\)"):
        encode_columns(columns, Raw(np.zeros(1, np.int64), np.zeros((1, 63), np.uint8)))


def outcome(read: Callable[[bytes], T], data: bytes) -> T | None:
    """Return what reading gives, or None where the bytes are refused; any other error is a failure."""
    try:
        return read(data)
    except DecodeError as error:
        if not 0 <= error.offset <= len(data):
            raise
        return None


# Bytes that are often sound: small values, where vocabularies are, and zeros, where reserved bytes are.
byte = st.integers(0, 255)


def mostly(layout_size: int, fixed: dict[int, int], free: set[int]) -> st.SearchStrategy[bytes]:
    """Return records that are 0 but for some free bytes, and fixed ones, and one byte changed now and then."""

    def build(values: list[int], at: int, value: int) -> bytes:
        data = bytearray(layout_size)
        for place, each in zip(sorted(free), values, strict=True):
            data[place] = each
        for place, each in fixed.items():
            data[place] = each
        if at < layout_size:
            data[at] = value
        return bytes(data)

    return st.builds(
        build, st.lists(byte, min_size=len(free), max_size=len(free)), st.integers(0, 8 * layout_size), byte
    )


PAIR_FREE = {2, 3, 5, *range(7, 12), *range(16, 20), *range(24, 44), *range(48, 64)}
PAIR_FREE |= {*range(66, 76), *range(80, 105), *range(108, 120)}
pairs = mostly(128, {0: 0xD9, 1: 0x10, 6: 0x13, 12: 4, 13: 6, 14: 1, 23: 0x10, 47: 0x10, 64: 0xDA, 79: 0x10}, PAIR_FREE)
sends = mostly(64, {0: 0xCB, 1: 0x10, 24: 1}, {2, 3, 5, *range(7, 24), *range(48, 64)})
exchanges = mostly(
    64, {0: 0xBF, 1: 0x10, 12: 6, 13: 6, 32: 1}, {2, 3, 5, *range(7, 12), *range(16, 32), 33, *range(48, 64)}
)


@given(data=pairs | st.binary(min_size=128, max_size=128))
def test_a_pair_goes_through_its_bytes(data: bytes) -> None:
    """encode∘decode is the identity on every pair that is taken; everything else is a DecodeError inside it."""
    pair = outcome(decode_pair, data)
    if pair is not None:
        assert encode_pair(pair) == data
        assert decode_pair(encode_pair(pair)) == pair


def test_pairs_are_taken() -> None:
    """The strategy's unchanged pair is sound, so that the law above is about something."""
    data = bytearray(128)
    for at, value in {0: 0xD9, 1: 0x10, 6: 0x13, 12: 4, 13: 6, 14: 1, 23: 0x10, 47: 0x10, 64: 0xDA, 79: 0x10}.items():
        data[at] = value
    assert decode_pair(bytes(data)).kind.name == "ALLREDUCE"


@given(data=sends | exchanges | st.binary(min_size=64, max_size=64))
def test_transfers_go_through_their_bytes(data: bytes) -> None:
    """encode∘decode is the identity on every send, receive and exchange that is taken."""
    transfer = outcome(decode_send_recv, data)
    exchange = outcome(decode_sb2sb, data)
    assert transfer is None or encode_send_recv(transfer) == data
    assert exchange is None or encode_sb2sb(exchange) == data
