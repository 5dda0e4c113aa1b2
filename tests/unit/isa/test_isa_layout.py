"""What a Layout promises: tables that cannot be wrong quietly, values in and out, and no byte unaccounted for."""

from __future__ import annotations

import numpy as np
import pytest

from rota.errors import DecodeError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa.layout import Bits, Field, Layout

SOURCE = Source("test", "0", CONVENTION)

INNER = Layout("inner", size=4, source=SOURCE, fields=(
    Bits("low",   0, "u1", 0, 3, "three bits"),
    Bits("high",  0, "u1", 4, 4, "four bits"),
    Field("word", 2, "<u2", "a word"),
))  # fmt: skip
OUTER = Layout("outer", size=32, source=SOURCE, fields=(
    Field("first",  0, "<u4",  "unsigned"),
    Field("signed", 4, "<i2",  "signed"),
    *INNER.at(8, prefix="in_"),
    Field("many",  12, "3<i4", "an array"),
    Field("raw",   24, "V3",   "raw bytes"),
))  # fmt: skip


def layout(*fields: Field | Bits, size: int = 8) -> Layout:
    return Layout("bad", size=size, source=SOURCE, fields=fields)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ((Field("a", 0, "<u4", ""), Field("b", 3, "u1", "")), "overlaps"),
        ((Field("a", 0, "u1", ""), Bits("b", 0, "u1", 7, 1, "")), "overlaps"),
        ((Bits("a", 0, "u1", 0, 4, ""), Bits("b", 0, "u1", 3, 1, "")), "overlaps"),
        ((Field("a", 5, "<u4", ""),), "not inside"),
        ((Field("a", -1, "u1", ""),), "not inside"),
        ((Field("a", 0, "3<u4", ""),), "not inside"),
        ((Field("a", 0, "u1", ""), Field("a", 1, "u1", "")), "one name"),
        ((Field("a", 0, "u4", ""),), "is no type"),
        ((Field("a", 0, "<u3", ""),), "is no type"),
        ((Field("a", 0, ">u4", ""),), "is no type"),
        ((Field("a", 0, "0<u4", ""),), "is no type"),
        ((Field("a", 0, "<f4", ""),), "is no type"),
        ((Bits("a", 0, "i1", 0, 1, ""),), "unsigned"),
        ((Bits("a", 0, "V1", 0, 1, ""),), "unsigned"),
        ((Bits("a", 0, "2<u2", 0, 1, ""),), "unsigned"),
        ((Bits("a", 0, "u1", 5, 4, ""),), "bits 5..9"),
        ((Bits("a", 0, "u1", 0, 0, ""),), "bits 0..0"),
        ((Bits("a", 0, "u1", 0, 1, "", word="w"), Bits("b", 1, "u1", 0, 1, "", word="w")), "two columns"),
    ],
)
def test_a_wrong_table_is_refused_when_it_is_made(fields: tuple[Field | Bits, ...], complaint: str) -> None:
    """Overlaps, overruns, duplicate names and misspelt types are our own mistakes and raise ValueError."""
    with pytest.raises(ValueError, match=complaint):
        layout(*fields)


def test_spliced_fields_keep_their_place_and_get_the_prefix() -> None:
    """`at` moves fields and their shared integer, and renames both."""
    assert [(field.name, field.at) for field in INNER.at(8, prefix="in_")] == [
        ("in_low", 8),
        ("in_high", 8),
        ("in_word", 10),
    ]
    assert layout(*INNER.at(0), *INNER.at(4, prefix="b_")).decode(bytes([0x15, 0, 0, 0, 0x26, 0, 1, 0])) == {
        "low": 5, "high": 1, "word": 0, "b_low": 6, "b_high": 2, "b_word": 1,
    }  # fmt: skip


def test_spliced_bits_keep_the_name_of_their_integer() -> None:
    """An integer that has a name of its own keeps it when its bits move without a prefix."""
    (moved,) = layout(Bits("a", 0, "u1", 2, 1, "", word="flags")).at(3)
    assert (moved.at, moved.column) == (3, "flags")
    assert layout(moved).dtype.names == ("flags",)


def test_encode_writes_little_endian_and_zero_elsewhere() -> None:
    """Bytes are where the table says, least significant first, and everything unnamed is 0."""
    record = OUTER.encode(first=0x01020304, signed=-2, in_low=5, in_high=0xA, in_word=0x1234, many=(1, -1, 2), raw=0xC)
    assert record.hex(" ", 4) == "04030201 feff0000 a5003412 01000000 ffffffff 02000000 0c000000 00000000"


def test_the_last_word_on_an_element_counts() -> None:
    """An element given after its array replaces it."""
    assert OUTER.encode(**{"many": (7, 7, 7), "many[1]": 8})[12:24] == bytes([7, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0])


def test_decode_names_array_elements() -> None:
    """Values come out by name, elements of arrays one by one, raw bytes as one integer."""
    values = {"first": 7, "signed": -1, "in_low": 1, "in_high": 2, "in_word": 3,
              "many[0]": -4, "many[1]": 5, "many[2]": 6, "raw": 0x010203}  # fmt: skip
    assert OUTER.decode(b"xx" + OUTER.encode(**values), 2) == values


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"nothing": 1}, "has no field 'nothing': expected one of first, signed"),
        ({"first": 1 << 32}, "outer.first: expected a value from 0 to 4294967295, got 4294967296"),
        ({"first": -1}, "outer.first"),
        ({"signed": 32768}, "outer.signed: expected a value from -32768 to 32767, got 32768"),
        ({"in_low": 8}, "outer.in_low: expected a value from 0 to 7, got 8"),
        ({"many": (1, 2)}, "outer.many: expected 3 values of an array, got 2"),
        ({"many": 1}, "has no field 'many'"),
        ({"first": (1, 2)}, "expected 0 values of an array, got 2"),
        ({"many[3]": 1}, r"has no field 'many\[3\]'"),
    ],
)
def test_encode_refuses_what_does_not_fit(values: dict[str, int], complaint: str) -> None:
    """An unknown name or a value out of range is a UsageError that says what would be right."""
    with pytest.raises(UsageError, match=complaint):
        OUTER.encode(**values)


@pytest.mark.parametrize("offset", [0, 1, 33, -1])
def test_decode_of_too_few_bytes_names_the_place(offset: int) -> None:
    """A record that is not all there is a DecodeError with its offset."""
    with pytest.raises(DecodeError, match="truncated outer") as caught:
        OUTER.decode(bytes(31), offset)
    assert (caught.value.offset, caught.value.expected) == (offset, "32 bytes")


def test_columns_share_memory_and_keep_gaps() -> None:
    """Many records are one structured array over the same memory, of the record's size."""
    data = bytearray(OUTER.encode(first=1, in_high=3) + OUTER.encode(first=2, in_high=4, many=(7, 8, 9)))
    records = OUTER.columns(data)
    records["first"][1] = 9
    assert OUTER.dtype.itemsize == 32
    assert OUTER.decode(data, 32)["first"] == 9
    assert OUTER.column(records, "in_high").tolist() == [3, 4]
    assert OUTER.column(records, "many").tolist() == [[0, 0, 0], [7, 8, 9]]
    assert OUTER.column(records, "in_high").dtype == np.uint8


def test_columns_of_no_records() -> None:
    """No bytes are no records, not an error."""
    assert OUTER.columns(b"").shape == (0,)


def test_columns_refuse_a_partial_record() -> None:
    """The error has the offset of the partial record, and how much of it is there."""
    with pytest.raises(DecodeError) as caught:
        OUTER.columns(bytes(70))
    assert (caught.value.offset, caught.value.expected, caught.value.got) == (64, "32 bytes", "6 bytes")


def test_column_of_an_unknown_field() -> None:
    """A name the table does not have is refused with those it has."""
    with pytest.raises(UsageError, match="has no field 'nothing': expected one of first, signed, in_low"):
        OUTER.column(OUTER.columns(b""), "nothing")


@pytest.mark.parametrize(
    ("at", "value", "found"), [(6, 1, 6), (8, 0x08, 8), (8, 0x77, None), (27, 1, 27), (40, 0x08, 40)]
)
def test_reserved_finds_bits_that_no_field_names(at: int, value: int, found: int | None) -> None:
    """A set bit outside all fields, between bit fields too, is found at its byte; named ones are not."""
    data = bytearray(64)
    data[at] = value
    assert OUTER.reserved(data) == found


def test_reserved_starts_where_it_is_told() -> None:
    """Records before `start` are not looked at, and the offset counts from the beginning of the data."""
    data = bytearray(64)
    data[6] = data[38] = 1
    assert OUTER.reserved(data, start=32) == 38
