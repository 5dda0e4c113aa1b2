"""Addresses and access patterns inside instruction records: what the markers of an address mean, piece by piece.

Which record has which operand is in `carriers`, `pairs` and `transfers`. Nothing here resolves an address.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from rota.errors import DecodeError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.layout import Bits, Field, Layout

SOURCE: Final = Source("isa", "4", HIGH)
VARIABLE_SOURCE: Final = Source("isa", "4", CONVENTION)  # where the variable's number lies in its eight bytes
PATTERN_SOURCE: Final = Source("isa", "4", MEDIUM)  # the order of the two arrays

MARKER_MASK: Final = 0xFC
ADDRESS_MASK: Final = 0x1FFFFFFF
QUADRANT_MASK: Final = 0x1E000000
PSUM_BIT: Final = 25
PSUM_START: Final = 0x2000000
PSUM_LAST: Final = 0x2203FFF
SBUF_QUADRANTS: Final = (0x0, 0x800000, 0x1000000, 0x1800000)
SBUF_QUADRANT_SIZE: Final = 0x38000

# A partition offset on the collective path: bit 25 (PSUM) and those above must be clear. Source: isa §5.4, high.
SBUF_ADDRESS_MASK: Final = 0x01FFFFFF
SBUF_ONLY_SOURCE: Final = Source("isa", "5.4", HIGH)

PARTITION_OFFSET: Final = Layout("partition_offset", size=4, source=SOURCE, fields=(
    # name                   at  type  low  width  meaning
    Bits("address",           0, "<u4",  0, 29, "bit 25 clear: SBUF, set: PSUM"),
))  # fmt: skip

ADDR4: Final = Layout("addr4", size=4, source=SOURCE, fields=(
    # name                   at  type  low  width  meaning
    Bits("value",             0, "<u4",  0, 26, "a partition offset, or a register in the lowest byte", "addr4"),
    Bits("marker",            0, "<u4", 26,  6, "bits 7 to 2 of byte 3: Addr4Form", "addr4"),
))  # fmt: skip

ADDR4_REGISTER: Final = Layout("addr4_register", size=4, source=SOURCE, fields=(
    # name                   at  type   meaning
    Field("register",         0, "u1",  "register that holds the address"),
    Field("marker",           3, "u1",  "Addr4Form"),
))  # fmt: skip

ADDR8: Final = Layout("addr8", size=8, source=SOURCE, fields=(
    # name                   at  type  low  width  meaning
    Bits("value",             0, "<u8",  0, 58, "an address, registers, a variable or a table's entry", "addr8"),
    Bits("marker",            0, "<u8", 58,  6, "bits 7 to 2 of byte 7: Addr8Form", "addr8"),
))  # fmt: skip

ADDR8_REGISTER: Final = Layout("addr8_register", size=8, source=SOURCE, fields=(
    # name                   at  type   meaning
    Field("register_low",     0, "u1",  "register that holds the lower half"),
    Field("register_high",    1, "u1",  "register that holds the upper half"),
    Field("marker",           7, "u1",  "Addr8Form"),
))  # fmt: skip

PSEUDO_ADDR8: Final = Layout("pseudo_addr8", size=8, source=VARIABLE_SOURCE, fields=(
    # name                   at  type   meaning
    Field("var_id",           0, "<u4", "number of the variable in the container"),
    Field("marker",           7, "u1",  "0x10: a variable"),
))  # fmt: skip

TENSOR3D: Final = Layout("tensor3d", size=16, source=SOURCE, fields=(
    # name                   at  type    meaning
    Field("address",          0, "<u4",  "ADDR4"),
    Field("step",             4, "3<i2", "elements from one to the next, per dimension"),
    Field("num",             10, "3<u2", "elements of a dimension"),
))  # fmt: skip

TENSOR2D: Final = Layout("tensor2d", size=12, source=PATTERN_SOURCE, fields=(
    # name                   at  type    meaning
    Field("address",          0, "<u4",  "ADDR4"),
    Field("step",             4, "2<i2", "elements from one to the next, per dimension"),
    Field("num",              8, "2<u2", "elements of a dimension"),
))  # fmt: skip

PSEUDO_ADDR8TENSOR2D: Final = Layout("pseudo_addr8tensor2d", size=24, source=PATTERN_SOURCE, fields=(
    # name                   at  type    meaning
    Field("address",          0, "<u8",  "PSEUDO_ADDR8"),
    Field("step",             8, "2<i4", "elements from one to the next, per dimension"),
    Field("num",             16, "2<u4", "elements of a dimension"),
))  # fmt: skip

DTYPE_PAIR: Final = Layout("dtype_pair", size=1, source=SOURCE, fields=(
    # name                   at  type  low  width  meaning
    Bits("src",               0, "u1",   0, 4, "Dtype that is read"),
    Bits("dst",               0, "u1",   4, 4, "Dtype that is written"),
))  # fmt: skip

DMA_CONFIGS: Final = Layout("dma_configs", size=1, source=SOURCE, fields=(
    # name                   at  type  low  width  meaning
    Bits("priority_class",    0, "u1",   0, 3, "0 to 4; read where the architecture has classes", "dma_configs"),
))  # fmt: skip
MAX_PRIORITY: Final = 4

BOUND_CHECK_REG: Final = Layout("bound_check_reg", size=1, source=SOURCE, fields=(
    # name                   at  type  low  width  meaning
    Bits("register",          0, "u1",   0, 6, "register that holds the bound"),
    Bits("silent",            0, "u1",   6, 1, "no notification when out of bounds"),
    Bits("enabled",           0, "u1",   7, 1, "the bound is checked"),
))  # fmt: skip


class Addr4Form(IntEnum):
    """What the marker of a four-byte address says it is. Source: isa §4, high."""

    IMMEDIATE = 0x00
    INDIRECT_IMMEDIATE = 0x20
    SHAPE_IN_REGISTER = 0x40
    ADDRESS_IN_REGISTER = 0x80
    INDIRECT_REGISTER = 0xA0
    BOTH_IN_REGISTERS = 0xC0


class Addr8Form(IntEnum):
    """What the marker of an eight-byte address says it is; the table forms add where the offset is from.

    Source: isa §4, high.
    """

    IMMEDIATE = 0x00
    VARIABLE = 0x10
    TABLE = 0x20
    TABLE_WIDE = 0x24
    TABLE_OFFSET_IN_REGISTER = 0x28
    TABLE_WIDE_OFFSET_IN_REGISTER = 0x2C
    SHAPE_IN_REGISTER = 0x40
    TABLE_SHAPE_IN_REGISTER = 0x60
    TABLE_WIDE_SHAPE_IN_REGISTER = 0x64
    TABLE_BOTH_IN_REGISTERS = 0x68
    TABLE_WIDE_BOTH_IN_REGISTERS = 0x6C
    ADDRESS_IN_REGISTER = 0x80
    BOTH_IN_REGISTERS = 0xC0


class Space(Enum):
    """The two memories a partition has."""

    SBUF = "sbuf"
    PSUM = "psum"


@dataclass(frozen=True, slots=True)
class Place:
    """A partition offset taken apart: `offset` counts bytes from the beginning of the quadrant, or of PSUM."""

    space: Space
    quadrant: int
    offset: int


def locate(address: int) -> Place | None:
    """Return where a partition offset lies, or None when in no quadrant of SBUF and not in PSUM.

    Source:
        isa §4, high.
    """
    if address >> PSUM_BIT & 1:
        return Place(Space.PSUM, 0, address - PSUM_START) if PSUM_START <= address <= PSUM_LAST else None
    for quadrant, start in enumerate(SBUF_QUADRANTS):
        if start <= address < start + SBUF_QUADRANT_SIZE:
            return Place(Space.SBUF, quadrant, address - start)
    return None


def addr4_form(value: int) -> Addr4Form | None:
    """Return the form of a four-byte address, or None when its marker is unknown."""
    marker = value >> 24 & MARKER_MASK
    return Addr4Form(marker) if marker in _ADDR4 else None


@dataclass(frozen=True, slots=True)
class Pattern2D:
    """Elements of a tensor in memory, two dimensions: `num` of each, `step` elements apart; PSEUDO_ADDR8TENSOR2D."""

    address: int  # the eight bytes, marker included
    step: tuple[int, int] = (0, 0)
    num: tuple[int, int] = (0, 0)

    @property
    def form(self) -> Addr8Form | None:
        """Return what the marker says the address is, or None where the marker is unknown."""
        marker = self.address >> 56 & MARKER_MASK
        return Addr8Form(marker) if marker in _ADDR8 else None

    @property
    def value(self) -> int:
        """Return the address without its marker: for a variable its number, for an immediate the address."""
        return self.address & 0xFFFFFFFF if self.form is Addr8Form.VARIABLE else self.address & (1 << 58) - 1

    @property
    def elements(self) -> int:
        """Return how many elements the pattern touches."""
        return self.num[0] * self.num[1]

    def values(self, prefix: str) -> dict[str, int | tuple[int, int]]:
        """Return the fields by the names they have in a record."""
        return {f"{prefix}address": self.address, f"{prefix}step": self.step, f"{prefix}num": self.num}


def variable(var_id: int, *, step: tuple[int, int] = (0, 1), num: tuple[int, int] = (1, 0)) -> Pattern2D:
    """Return a pattern over the variable with this number; see `VARIABLE_SOURCE` for where the number lies."""
    return Pattern2D(Addr8Form.VARIABLE << 56 | var_id, step, num)


def pattern_of(values: dict[str, int], prefix: str, *, offset: int) -> Pattern2D:
    """Return the pattern among the fields of a decoded record; `offset` is where it begins, for the message.

    Raises:
        DecodeError: the address says it is a variable, and has bits set beside the number.
    """
    pattern = Pattern2D(
        values[f"{prefix}address"],
        (values[f"{prefix}step[0]"], values[f"{prefix}step[1]"]),
        (values[f"{prefix}num[0]"], values[f"{prefix}num[1]"]),
    )
    stray = pattern.address >> 32 & 0x03FFFFFF
    if pattern.form is Addr8Form.VARIABLE and stray:
        at = ((stray & -stray).bit_length() - 1) // 8
        expected = "0x10" if at == 3 else "0x00"
        got = f"0x{pattern.address >> 32 + 8 * at & 0xFF:02X}"
        raise DecodeError("reserved byte of a variable's address", offset=offset + 4 + at, expected=expected, got=got)
    return pattern


@dataclass(frozen=True, slots=True)
class Pattern3D:
    """Elements of an on-chip tensor, three dimensions; TENSOR3D."""

    address: int  # the four bytes, marker included
    step: tuple[int, int, int] = (0, 0, 0)
    num: tuple[int, int, int] = (0, 0, 0)

    @property
    def form(self) -> Addr4Form | None:
        """Return what the marker says the address is, or None where the marker is unknown."""
        return addr4_form(self.address)

    @property
    def elements(self) -> int:
        """Return how many elements the pattern touches in one partition."""
        return self.num[0] * self.num[1] * self.num[2]


_ADDR4: Final = frozenset(int(form) for form in Addr4Form)
_ADDR8: Final = frozenset(int(form) for form in Addr8Form)
