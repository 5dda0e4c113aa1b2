"""The tables of a NEFF against the numbers of isa §11, written out."""

from __future__ import annotations

import pytest

from rota.isa.container import (
    ANY_TARGET,
    BLOCK,
    ENGINES,
    GNU_MAGIC,
    GZIPPED,
    HOST_GRAPH,
    INDEX,
    INVALID_CODE,
    MAX_MAJOR,
    MD5_FILLER,
    NEFF_HEADER,
    OUTPUT,
    PARTIAL_SB2SB,
    PLAIN,
    POSIX_MAGIC,
    TAR_BLOCK,
    TAR_DIRECTORY,
    TAR_EXTENDED,
    TAR_LONG_NAME,
    TAR_REGULAR,
    TARGETS,
    UNKNOWN_FEATURES,
    VERSION_CODE,
)
from rota.isa.layout import Field, Layout

HEADER = """
0x000 8 pkg_version | 0x008 8 header_size | 0x010 8 data_size | 0x018 8 version_major | 0x020 8 version_minor
0x028 128 build_label | 0x0A8 4 producer_flag | 0x0AC 32 hash | 0x0CC 16 uuid | 0x0DC 256 name | 0x1DC 4 core_count
0x1E0 64 per_node | 0x220 8 feature_bits | 0x228 4 virtual_core
"""
TAR = "0 100 name | 124 12 size | 148 8 sum | 156 1 type | 257 8 magic | 345 155 prefix"


def places(layout: Layout) -> list[tuple[int, int, str]]:
    """Return offset, bytes and name of every field, found by writing all ones into it."""
    out = []
    for field in layout.fields:
        assert isinstance(field, Field)
        record = layout.encode(**{field.name: (1 << 8 * _width(layout, field.name)) - 1})
        ones = [at for at, value in enumerate(record) if value == 0xFF]
        assert ones == list(range(ones[0], ones[-1] + 1))
        out.append((ones[0], len(ones), field.name))
    return out


def _width(layout: Layout, name: str) -> int:
    return layout.dtype[name].itemsize


def table(text: str) -> list[tuple[int, int, str]]:
    rows = [row.split() for line in text.strip().splitlines() for row in line.split("|")]
    return [(int(at, 0), int(size), name) for at, size, name in rows]


def test_the_header() -> None:
    """1024 bytes, fourteen fields; isa §11.1."""
    assert NEFF_HEADER.size == 1024
    assert places(NEFF_HEADER) == table(HEADER)


def test_the_block() -> None:
    """A block of an archive has 512 bytes; the fields are those of every tar."""
    assert TAR_BLOCK.size == BLOCK == 512
    assert places(TAR_BLOCK) == table(TAR)


def test_the_gates() -> None:
    """Versions 1 and 2, major at most 2, bits 27 to 62 unknown, bit 22 known; codes 10 and 2; isa §11.1."""
    assert (PLAIN, GZIPPED, MAX_MAJOR, VERSION_CODE, INVALID_CODE) == (1, 2, 2, 10, 2)
    assert [bit for bit in range(64) if UNKNOWN_FEATURES >> bit & 1] == list(range(27, 63))
    assert PARTIAL_SB2SB == 1 << 22
    assert MD5_FILLER == b"0" * 16


def test_the_archive() -> None:
    """The GNU dialect is the fixture's; files are `0` or NUL, directories `5`; isa §11.2."""
    assert (GNU_MAGIC, POSIX_MAGIC) == (b"ustar  \0", b"ustar\x0000")
    assert (chr(TAR_DIRECTORY), chr(TAR_LONG_NAME)) == ("5", "L")
    assert set(TAR_REGULAR) == {0, ord("0")}
    assert set(TAR_EXTENDED) == {ord("x"), ord("g")}
    assert (INDEX, HOST_GRAPH, OUTPUT) == ("kelf-a.json", "neff.json", "output")


def test_the_engines() -> None:
    """The loader goes through pe, act, pool, dve, sp; isa §11.3."""
    assert ENGINES == ("pe", "act", "pool", "dve", "sp")


@pytest.mark.parametrize(
    ("arch", "names"), [("sunda", {"", "sunda", "v2"}), ("cayman", {"cayman", "v3"}), ("mariana", {"mariana", "v4"})]
)
def test_the_targets(arch: str, names: set[str]) -> None:
    """Codename or version, and nothing for the oldest; isa §1."""
    assert {name for name, each in TARGETS.items() if each == arch} == names
    assert ANY_TARGET not in TARGETS
