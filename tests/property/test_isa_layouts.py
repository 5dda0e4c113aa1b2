"""Laws of every record layout there is."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rota.isa
from rota.errors import DecodeError
from rota.isa.layout import Layout

MODULES = [importlib.import_module(f"rota.isa.{module.name}") for module in pkgutil.iter_modules(rota.isa.__path__)]
LAYOUTS = {
    each.name: each for module in MODULES for each in vars(module).values() if isinstance(each, Layout)
}  # fmt: skip
CUTTABLE = [layout for layout in LAYOUTS.values() if layout.size > 1]
layouts = pytest.mark.parametrize("layout", list(LAYOUTS.values()), ids=list(LAYOUTS))


def named_bits(layout: Layout) -> int:
    """Return the bits of a record that some field names, found through `encode` alone."""
    bits = 0
    for name, value in layout.decode(b"\xff" * layout.size).items():
        bits |= int.from_bytes(layout.encode(**{name: value}), "little")
    return bits


def test_the_layouts_are_found() -> None:
    """The scan sees the words, descriptors, entries and configuration records."""
    assert {"all_reduce_word", "collective_word", "descriptor", "slot_entry", "ring_channel", "program_block"} <= set(
        LAYOUTS
    )


@layouts
@given(data=st.data())
def test_encode_undoes_decode(layout: Layout, data: st.DataObject) -> None:
    """A record without reserved bits encodes, from its values, to the same bytes; reserved bits are found."""
    record = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    clean = (int.from_bytes(record, "little") & named_bits(layout)).to_bytes(layout.size, "little")
    assert layout.encode(**layout.decode(record)) == clean
    assert layout.reserved(clean) is None
    differing = [at for at in range(layout.size) if record[at] != clean[at]]
    assert layout.reserved(record) == (differing[0] if differing else None)


@layouts
@given(data=st.data())
def test_decode_undoes_encode(layout: Layout, data: st.DataObject) -> None:
    """Any values that fit come back."""
    record = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    values = layout.decode(record)
    assert layout.decode(layout.encode(**values)) == values


@layouts
@given(data=st.data())
def test_columns_agree_with_decode(layout: Layout, data: st.DataObject) -> None:
    """Many records as columns are the same numbers as one record after the other."""
    rows = data.draw(st.integers(0, 3))
    records = data.draw(st.binary(min_size=rows * layout.size, max_size=rows * layout.size))
    columns = layout.columns(records)
    assert columns.dtype.itemsize == layout.size
    for row in range(rows):
        values = layout.decode(records, row * layout.size)
        for field in layout.fields:
            element = layout.column(columns, field.name)[row]
            if field.type.startswith("V"):
                assert int.from_bytes(element.tobytes(), "little") == values[field.name]
            elif field.name in values:
                assert int(element) == values[field.name]
            else:
                assert [values[f"{field.name}[{i}]"] for i in range(element.size)] == element.tolist()


@pytest.mark.parametrize("layout", CUTTABLE, ids=lambda layout: layout.name)
@given(data=st.data())
def test_wrong_lengths_are_decode_errors(layout: Layout, data: st.DataObject) -> None:
    """Bytes that are no whole number of records have the offset of the one that is cut."""
    rows = data.draw(st.integers(0, 2))
    rest = data.draw(st.integers(1, layout.size - 1))
    records = bytes(rows * layout.size + rest)
    for read in (lambda: layout.columns(records), lambda: layout.decode(records, rows * layout.size)):
        with pytest.raises(DecodeError) as caught:
            read()
        assert caught.value.offset == rows * layout.size
