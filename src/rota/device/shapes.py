"""How records of a known layout are spelt: one word, then `name=value` for every field, and back to bytes.

A shape shows a record only when no bit is lost; the rest is raw hex, which `listing` decides. The shapes themselves
are in `forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, Final

import numpy as np

from rota.columns import U8, Array
from rota.errors import UsageError
from rota.isa.layout import Bits, Field, Layout

Numbers = Mapping[str, int]
NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One `name=value` of a line.

    Attributes:
        fields: the integers of the layout it stands for; `show` takes them in this order.
        show: the text, different for different numbers and without blanks.
        read: the inverse; it may leave out an integer that another column has. ValueError or UsageError for garbage.
        default: numbers with which the column is left out of the text.
        known: whether a number of the first field means something; None when all do.
    """

    name: str
    fields: tuple[str, ...]
    show: Callable[..., str]
    read: Callable[[str], Numbers]
    default: tuple[int, ...] | None = None
    known: Callable[[int], bool] | None = None


def number(name: str, *, of: str = "", hexadecimal: int = 0, known: Callable[[int], bool] | None = None) -> Column:
    """Return a column for one integer, decimal or with that many hexadecimal digits at least."""
    source = of or name

    def show(value: int) -> str:
        return f"0x{value:0{hexadecimal}x}" if hexadecimal else str(value)

    return Column(name, (source,), show, lambda text: {source: int(text, 0)}, known=known)


def vocabulary(
    name: str, names: Mapping[int, str], *, of: str = "", known: Callable[[int], bool] | None = None
) -> Column:
    """Return a column that shows a number by name, and in hexadecimal where it has none."""
    source = of or name
    numbers = {text.casefold(): value for value, text in names.items()}

    def read(text: str) -> Numbers:
        value = numbers.get(text.casefold())
        return {source: int(text, 0) if value is None else value}

    return Column(name, (source,), lambda value: names.get(value, f"0x{value:02x}"), read, known=known)


def flags(name: str, fields: Sequence[str]) -> Column:
    """Return a column that lists the one-bit fields that are set."""

    def show(*values: int) -> str:
        return "|".join(each for each, value in zip(fields, values, strict=True) if value) or NONE

    def read(text: str) -> Numbers:
        found = [] if text == NONE else text.casefold().split("|")
        if not set(found) <= set(fields):
            raise ValueError(f"one of {', '.join(fields)}")
        return {each: int(each in found) for each in fields}

    return Column(name, tuple(fields), show, read)


def _array(name: str, count: int, hexadecimal: int) -> Column:
    names = tuple(f"{name}[{i}]" for i in range(count))
    spell = (lambda value: f"0x{value:x}" if value else "0") if hexadecimal else str

    def read(text: str) -> Numbers:
        values = [int(each, 0) for each in text.split(",")]
        if values == [0]:
            values *= count
        if len(values) != count:
            raise ValueError(f"{count} values, got {len(values)}")
        return dict(zip(names, values, strict=True))

    return Column(name, names, lambda *values: ",".join(map(spell, values)) if any(values) else "0", read)


def _raw(name: str, size: int, default: tuple[int, ...] | None = None) -> Column:
    """Return a column of bytes in hex, in the order of the file and without the zeros at the end."""

    def show(value: int) -> str:
        return value.to_bytes(size, "little").rstrip(b"\0").hex() or "0"

    def read(text: str) -> Numbers:
        record = b"" if text == "0" else bytes.fromhex(text)
        if len(record) > size:
            raise ValueError(f"at most {size} bytes, got {len(record)}")
        return {name: int.from_bytes(record, "little")}

    return Column(name, (name,), show, read, default)


def plain_column(each: Field | Bits, *, hexadecimal: bool = False) -> Column:
    """Return the column of a field nothing more is known about; `hexadecimal` is for the eight-byte ones."""
    places = list(each.places())
    size = places[0][1].stop - places[0][1].start
    digits = 1 if hexadecimal and each.type.endswith("u8") else 0
    if each.type.startswith("V"):
        return _raw(each.name, size)
    if places[0][0] != each.name:
        return _array(each.name, len(places), digits)
    return number(each.name, hexadecimal=digits)


@dataclass(frozen=True, eq=False)
class Shape:
    """The spelling of one kind of record: `fixed` are the numbers that its word stands for."""

    word: str
    layout: Layout
    columns: tuple[Column, ...]
    fixed: Numbers = field(default_factory=dict)

    def __post_init__(self) -> None:
        shown = {name for column in self.columns for name in column.fields} | set(self.fixed)
        named = {name for each in self.layout.fields for name, _ in each.places()}
        if shown != named:
            raise ValueError(f"{self.word}: shows {sorted(shown)} of a record with {sorted(named)}")

    @cached_property
    def unnamed(self) -> U8:
        """Return the bits no field names, shape (bytes of a record,)."""
        named = 0
        for each in self.layout.fields:
            for _, place in each.places():
                named |= ((1 << place.width) - 1) << (8 * place.start + place.low)
        mask = ~named & ((1 << 8 * self.layout.size) - 1)
        return np.frombuffer(mask.to_bytes(self.layout.size, "little"), np.uint8)

    @cached_property
    def _by_name(self) -> Mapping[str, Column]:
        """Columns by what a text may call them: their own name, or that of their only field."""
        ours = {column.fields[0]: column for column in self.columns if len(column.fields) == 1}
        return ours | {column.name: column for column in self.columns}

    def show(self, records: U8, *, width: int = 0) -> tuple[list[str], dict[int, str]]:
        """Return the text of records, aligned, and what is wrong with some of them.

        Args:
            records: their bytes, shape (records, bytes of one); no unnamed bit is set.
            width: characters the word is padded to.
        """
        flat = np.ascontiguousarray(records)
        table = flat.reshape(-1).view(self.layout.dtype)
        numbers = {name: values for each in self.layout.fields for name, values in _numbers(each, table)}
        cells: list[list[str]] = [[self.word.ljust(width)] * len(records)]
        rare: list[list[str]] = []
        wrong: dict[int, str] = {}
        for column in self.columns:
            values = [numbers[name] for name in column.fields]
            keys: list[Any] = values[0] if len(values) == 1 else list(zip(*values, strict=True))
            spelt = _spell(column, set(keys))
            optional = column.default is not None
            widest = max(map(len, spelt.values()), default=0)
            padded = spelt if optional else {key: text.ljust(widest) for key, text in spelt.items()}
            (rare if optional else cells).append([padded[key] for key in keys])
            if column.known is not None:
                known = column.known
                odd = {value for value in set(values[0]) if not known(value)}
                for row, value in enumerate(values[0] if odd else ()):
                    if value in odd:
                        wrong.setdefault(row, f"{column.fields[0]} 0x{value:02X} means nothing here")
        cells += rare
        return [" ".join(line).rstrip() for line in zip(*cells, strict=True)], wrong

    def read(self, pairs: Mapping[str, str]) -> bytes:
        """Return the bytes of a record; fields that are not given are 0, or their default.

        Raises:
            UsageError: a name is unknown, a value means nothing or does not fit, or two columns contradict each other.
        """
        numbers = dict(self.fixed)
        for column in self.columns:
            if column.default is not None:
                numbers.update(zip(column.fields, column.default, strict=True))
        given: dict[str, int] = {}
        for name, text in pairs.items():
            column = self._column(name)
            try:
                found = column.read(text)
            except (ValueError, KeyError) as error:
                raise UsageError(f"{self.word} {name}={text[:80]}: means nothing ({error})") from None
            for each, value in found.items():
                if given.setdefault(each, value) != value:
                    raise UsageError(f"{self.word} {name}={text[:80]}: contradicts {each}={given[each]} of the line")
        return self.layout.encode(**(numbers | given))

    def _column(self, name: str) -> Column:
        column = self._by_name.get(name)
        if column is None:
            names = ", ".join(each.name for each in self.columns) or "none"
            raise UsageError(f"{self.word} has no field '{name[:80]}': expected one of {names}")
        return column


def shape_of(
    word: str,
    layout: Layout,
    *columns: Column,
    fixed: Numbers | None = None,
    hexadecimal: bool = False,
) -> Shape:
    """Return a shape with these columns first, and a plain one for every field they leave."""
    done = {name for column in columns for name in column.fields} | set(fixed or {})
    rest = [
        plain_column(each, hexadecimal=hexadecimal)
        for each in layout.fields
        if not done & {name for name, _ in each.places()}
    ]
    return Shape(word, layout, (*columns, *rest), fixed or {})


def _spell(column: Column, keys: set[Any]) -> dict[Any, str]:
    """Return the text for each value; a default's is empty."""
    single = len(column.fields) == 1
    out = {key: f"{column.name}={column.show(key) if single else column.show(*key)}" for key in keys}
    if column.default is not None:
        out[column.default[0] if single else column.default] = ""
    return out


def _numbers(each: Field | Bits, table: Array) -> Iterator[tuple[str, list[int]]]:
    """Yield every integer of a field, with its values in all records."""
    names = [name for name, _ in each.places()]
    column = each.values(table)
    if column.dtype.kind == "V":
        size = column.dtype.itemsize
        data = np.ascontiguousarray(column).tobytes()
        starts = range(0, len(data), size)
        yield names[0], [int.from_bytes(data[at : at + size], "little") for at in starts]
    elif names[0] != each.name:
        yield from zip(names, column.T.tolist(), strict=True)
    else:
        yield from zip(names, repeat(column.tolist()))
