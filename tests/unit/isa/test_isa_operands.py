"""Addresses and access patterns, against isa §4."""

from __future__ import annotations

import pytest

from rota.errors import DecodeError
from rota.isa.operands import (
    MARKER_MASK,
    PSEUDO_ADDR8,
    Addr4Form,
    Addr8Form,
    Pattern2D,
    Pattern3D,
    Place,
    Space,
    addr4_form,
    locate,
    pattern_of,
    variable,
)

SBUF, PSUM = Space.SBUF, Space.PSUM


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (0x0, Place(SBUF, 0, 0)),
        (0x37FFF, Place(SBUF, 0, 0x37FFF)),
        (0x38000, None),
        (0x800000, Place(SBUF, 1, 0)),
        (0x1000001, Place(SBUF, 2, 1)),
        (0x1837FFF, Place(SBUF, 3, 0x37FFF)),
        (0x1838000, None),
        (0x2000000, Place(PSUM, 0, 0)),
        (0x2203FFF, Place(PSUM, 0, 0x203FFF)),
        (0x2204000, None),
        (0x4000000, None),
    ],
)
def test_partition_offsets(address: int, place: Place | None) -> None:
    """isa §4: four quadrants of 0x38000 bytes in SBUF, PSUM up to 0x2203FFF, nothing between."""
    assert locate(address) == place


def test_four_byte_forms() -> None:
    """isa §4: the six markers of ADDR4, whatever the lowest two bits; every other is unknown."""
    known = {0x00: "IMMEDIATE", 0x40: "SHAPE_IN_REGISTER", 0x80: "ADDRESS_IN_REGISTER", 0xC0: "BOTH_IN_REGISTERS",
             0x20: "INDIRECT_IMMEDIATE", 0xA0: "INDIRECT_REGISTER"}  # fmt: skip
    assert {int(form): form.name for form in Addr4Form} == known
    for marker in range(256):
        form = addr4_form(marker << 24 | 0x1234)
        assert (form.name if form is not None else None) == known.get(marker & MARKER_MASK)
        assert Pattern3D(marker << 24).form is form


def test_eight_byte_forms() -> None:
    """isa §4: the markers of ADDR8; a table may take its offset from a register (+8) and be wide (+4)."""
    tables = {base + register + wide for base in (0x20, 0x60) for register in (0, 8) for wide in (0, 4)}
    assert {int(form) for form in Addr8Form} == {0x00, 0x10, 0x40, 0x80, 0xC0} | tables
    for marker in range(256):
        form = Pattern2D(marker << 56).form
        assert (form is None) == (marker & MARKER_MASK not in set(Addr8Form))


def test_a_variable() -> None:
    """isa §4: the variable's number is a u32 at 0, its marker 0x10 at 7."""
    pattern = variable(0x0102, num=(2, 3))
    assert pattern.address.to_bytes(8, "little").hex() == "0201000000000010"
    assert PSEUDO_ADDR8.encode(var_id=0x0102, marker=0x10) == pattern.address.to_bytes(8, "little")
    assert (pattern.form, pattern.value, pattern.elements) == (Addr8Form.VARIABLE, 0x0102, 6)
    assert Pattern2D(0x1FFFFFF).value == 0x1FFFFFF


@pytest.mark.parametrize("at", [4, 5, 6, 7])
def test_a_variable_has_nothing_beside_its_number(at: int) -> None:
    """isa §4: bytes 4 to 6 of a variable, and the lowest bits of its marker, are reserved."""
    address = variable(1).address | 1 << 8 * at
    values = {"address": address, "step[0]": 0, "step[1]": 0, "num[0]": 0, "num[1]": 0}
    with pytest.raises(DecodeError, match="reserved byte of a variable's address") as caught:
        pattern_of(values, "", offset=100)
    assert caught.value.offset == 100 + at


def test_elements() -> None:
    """A pattern touches the product of its dimensions."""
    assert Pattern2D(0, num=(0xFFFFFFFF, 2)).elements == 2 * 0xFFFFFFFF
    assert Pattern3D(0, num=(2, 3, 4)).elements == 24
