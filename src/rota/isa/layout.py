"""Binary records as tables: name, place, type and meaning of every field, from which all else follows.

A `Layout` decodes and encodes one record, views many as columns, and finds bytes that no field names. It knows
no particular record and no rule about values; those are in the files that declare layouts. numpy is loaded only
by the methods that return arrays.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Final

from rota.errors import DecodeError, UsageError
from rota.facts import Source

if TYPE_CHECKING:
    import numpy as np

    from rota.columns import Array

Buffer = bytes | bytearray | memoryview

_TYPE: Final = re.compile(r"(?:([1-9]\d*)?(u1|i1|<[ui][248]))|V([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class _Type:
    count: int  # 0: not an array
    size: int  # bytes of one element
    signed: bool
    code: str  # numpy's spelling of one element


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one integer value lives."""

    start: int
    stop: int
    signed: bool
    low: int
    width: int

    @property
    def least(self) -> int:
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def largest(self) -> int:
        return (1 << (self.width - self.signed)) - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A whole-byte field: an integer (`u1`, `<u4`, `<i8`), an array of them (`6<u8`), or raw bytes (`V8`).

    Raw bytes are one little-endian integer wherever a value is asked for.
    """

    name: str
    at: int
    type: str
    meaning: str

    @property
    def column(self) -> str:
        """Return what the numpy type calls the field."""
        return self.name

    def places(self) -> Iterator[tuple[str, _Place]]:
        """Yield every integer of the field, with its name."""
        kind = _parse(self.type, self.name)
        for i in range(max(kind.count, 1)):
            start = self.at + i * kind.size
            name = f"{self.name}[{i}]" if kind.count else self.name
            yield name, _Place(start, start + kind.size, kind.signed, 0, 8 * kind.size)

    def moved(self, offset: int, prefix: str) -> Field:
        """Return the field `offset` bytes further on, renamed."""
        return dataclasses.replace(self, name=prefix + self.name, at=self.at + offset)

    def values(self, records: Array) -> Array:
        """Return the field's column."""
        column: Array = records[self.name]
        return column


@dataclass(frozen=True, slots=True)
class Bits:
    """A few bits of an unsigned integer, bit 0 the lowest; fields of one integer share `word`, `at` and `type`."""

    name: str
    at: int
    type: str
    low: int
    width: int
    meaning: str
    word: str = ""  # what the numpy type calls the integer; `word<at>` when empty

    @property
    def column(self) -> str:
        """Return what the numpy type calls the integer."""
        return self.word or f"word{self.at}"

    def places(self) -> Iterator[tuple[str, _Place]]:
        """Yield the one value of the field, with its name."""
        kind = _parse(self.type, self.name)
        if kind.count or kind.signed or kind.code.startswith("V"):
            raise ValueError(f"{self.name}: bits lie in an unsigned integer, not in '{self.type}'")
        if not (self.low >= 0 < self.width and self.low + self.width <= 8 * kind.size):
            raise ValueError(f"{self.name}: bits {self.low}..{self.low + self.width} are not inside '{self.type}'")
        yield self.name, _Place(self.at, self.at + kind.size, False, self.low, self.width)

    def moved(self, offset: int, prefix: str) -> Bits:
        """Return the bits `offset` bytes further on, renamed together with their integer."""
        word = prefix + self.column if prefix or self.word else ""
        return dataclasses.replace(self, name=prefix + self.name, at=self.at + offset, word=word)

    def values(self, records: Array) -> Array:
        """Return the field's column, shifted down."""
        word: Array = records[self.column]
        as_word = word.dtype.type
        column: Array = (word >> as_word(self.low)) & as_word((1 << self.width) - 1)
        return column


@dataclass(frozen=True, slots=True)
class Layout:
    """A record of fixed size. Bytes and bits that no field names are reserved: written as 0, found by `reserved`.

    Raises:
        ValueError: two fields overlap or have one name, a field leaves the record, or a type is misspelt; always
            a mistake in the table itself.
    """

    name: str
    size: int = dataclasses.field(kw_only=True)
    source: Source = dataclasses.field(kw_only=True)
    fields: tuple[Field | Bits, ...] = dataclasses.field(kw_only=True)
    _places: Mapping[str, _Place] = dataclasses.field(init=False, repr=False, compare=False)
    _named: int = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = dict(pair for each in self.fields for pair in each.places())
        if len({each.name for each in self.fields}) < len(self.fields):
            raise ValueError(f"{self.name}: two fields have one name")
        named = 0
        for name, place in places.items():
            if not 0 <= place.start < place.stop <= self.size:
                raise ValueError(f"{self.name}.{name}: bytes {place.start}..{place.stop} are not inside {self.size}")
            bits = ((1 << place.width) - 1) << (8 * place.start + place.low)
            if named & bits:
                raise ValueError(f"{self.name}.{name} overlaps an earlier field")
            named |= bits
        _columns(self)
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_named", named)

    def at(self, offset: int, *, prefix: str = "") -> tuple[Field | Bits, ...]:
        """Return the fields moved by `offset` bytes, for splicing into a larger layout."""
        return tuple(each.moved(offset, prefix) for each in self.fields)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of a record: offsets and size as given, gaps kept, bit fields as their integer."""
        import numpy as np  # noqa: PLC0415 -- the tables are read by commands that need no array

        columns = _columns(self)
        formats: list[Any] = [(kind.code, (kind.count,)) if kind.count else kind.code for _, kind in columns.values()]
        offsets = [at for at, _ in columns.values()]
        return np.dtype({"names": list(columns), "formats": formats, "offsets": offsets, "itemsize": self.size})

    def decode(self, data: Buffer, offset: int = 0) -> dict[str, int]:
        """Return the values of the record at `offset` by name; element i of array `a` is named `a[i]`.

        Reserved bytes are not looked at; `reserved` does that.

        Raises:
            DecodeError: fewer bytes are left than the record has.
        """
        record = memoryview(data)[offset : offset + self.size]
        if offset < 0 or len(record) < self.size:
            raise DecodeError(
                f"truncated {self.name}", offset=offset, expected=f"{self.size} bytes", got=f"{len(record)} bytes"
            )
        return {name: _read(record, place) for name, place in self._places.items()}

    def encode(self, **values: int | Sequence[int]) -> bytes:
        """Return the record with these values and 0 everywhere else; an array is given whole or by `a[i]`.

        Raises:
            UsageError: a name is unknown or a value does not fit.
        """
        numbers = dict(pair for name, value in values.items() for pair in self._numbers(name, value))
        out = bytearray(self.size)
        for name, number in numbers.items():
            place = self._places.get(name)
            if place is None:
                raise UsageError(f"{self.name} has no field '{name}': expected one of {', '.join(self._places)}")
            if not place.least <= number <= place.largest:
                raise UsageError(
                    f"{self.name}.{name}: expected a value from {place.least} to {place.largest}, got {number}"
                )
            _write(out, place, number)
        return bytes(out)

    def columns(self, data: Buffer) -> Array:
        """Return all records of `data` as a structured array that shares its memory, shape (records,).

        Raises:
            DecodeError: the length is no whole number of records.
        """
        import numpy as np  # noqa: PLC0415

        total = memoryview(data).nbytes
        rest = total % self.size
        if rest:
            raise DecodeError(
                f"truncated {self.name}", offset=total - rest, expected=f"{self.size} bytes", got=f"{rest} bytes"
            )
        return np.frombuffer(data, self.dtype)

    def column(self, records: Array, name: str) -> Array:
        """Return one field of the records `columns` gave, bit fields shifted down.

        Raises:
            UsageError: no field has this name.
        """
        for each in self.fields:
            if each.name == name:
                return each.values(records)
        names = ", ".join(each.name for each in self.fields)
        raise UsageError(f"{self.name} has no field '{name}': expected one of {names}")

    def reserved(self, data: Buffer, *, start: int = 0) -> int | None:
        """Return the offset of the first byte with a bit set that no field names, or None.

        `data` from `start` on is read as records back to back; an incomplete last one is read as far as it goes.
        """
        unnamed = ~self._named
        for offset in range(start, len(data), self.size):
            stray = int.from_bytes(data[offset : offset + self.size], "little") & unnamed
            if stray:
                return offset + ((stray & -stray).bit_length() - 1) // 8
        return None

    def _numbers(self, name: str, value: int | Sequence[int]) -> Iterator[tuple[str, int]]:
        """Yield the integers a keyword of `encode` stands for."""
        if not isinstance(value, Sequence):
            yield name, index(value)
            return
        have = sum(1 for key in self._places if key.startswith(f"{name}["))
        if len(value) != have:
            raise UsageError(f"{self.name}.{name}: expected {have} values of an array, got {len(value)}")
        yield from ((f"{name}[{i}]", index(number)) for i, number in enumerate(value))


def _parse(text: str, name: str) -> _Type:
    match = _TYPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{name}: '{text}' is no type; expected u1, <u4, <i8, an array such as 6<u8, or raw bytes V8")
    count, code, raw = match.groups()
    if raw:
        return _Type(0, int(raw), False, text)
    return _Type(int(count or 0), int(code[-1]), "i" in code, code)


def _columns(layout: Layout) -> dict[str, tuple[int, _Type]]:
    """Return offset and type of each column, the integers that bit fields share once."""
    columns: dict[str, tuple[int, _Type]] = {}
    for each in layout.fields:
        place = (each.at, _parse(each.type, each.name))
        if columns.setdefault(each.column, place) != place:
            raise ValueError(f"{layout.name}: two columns are called '{each.column}'")
    return columns


def _read(record: memoryview, place: _Place) -> int:
    word = int.from_bytes(record[place.start : place.stop], "little", signed=place.signed)
    return word if place.signed else (word >> place.low) & ((1 << place.width) - 1)


def _write(record: bytearray, place: _Place, value: int) -> None:
    """Put a value where there are zeros."""
    size = place.stop - place.start
    word = int.from_bytes(record[place.start : place.stop], "little")
    word |= (value << place.low) & ((1 << 8 * size) - 1)
    record[place.start : place.stop] = word.to_bytes(size, "little")
