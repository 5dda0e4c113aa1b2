"""The records of a NEFF: the 1024 bytes before the archive, and the blocks of the archive.

Values and limits that a loader compares stand beside them. Walking an archive is `frontends.neff_archive`, what its
members say is `frontends.neff`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rota.facts import HIGH, MEDIUM, Source
from rota.isa.layout import Field, Layout

SOURCE: Final = Source("isa", "11.1", HIGH)

NEFF_HEADER: Final = Layout("neff_header", size=1024, source=SOURCE, fields=(
    # name                  at     type    meaning
    Field("pkg_version",    0x000, "<u8",  "1: plain tar and SHA-256; 2: gzip tar and MD5"),
    Field("header_size",    0x008, "<u8",  "bytes before the archive, 1024"),
    Field("data_size",      0x010, "<u8",  "bytes of the archive as it stands in the file"),
    Field("version_major",  0x018, "<u8",  "at most 2"),
    Field("version_minor",  0x020, "<u8",  "not looked at"),
    Field("build_label",    0x028, "V128", "text of the producer, not parsed"),
    Field("producer_flag",  0x0A8, "<u4",  "1 when gzipped; not looked at"),
    Field("hash",           0x0AC, "V32",  "of the archive as it stands in the file: SHA-256, or MD5 and a filler"),
    Field("uuid",           0x0CC, "V16",  "identity"),
    Field("name",           0x0DC, "V256", "text"),
    Field("core_count",     0x1DC, "<u4",  "cores asked for"),
    Field("per_node",       0x1E0, "V64",  "counts per node"),
    Field("feature_bits",   0x220, "<u8",  "what a loader must know; looked at when the major version is 2"),
    Field("virtual_core",   0x228, "<u4",  "physical cores of a logical core, 1 or 2"),
))  # fmt: skip

PLAIN: Final = 1
GZIPPED: Final = 2
MAX_MAJOR: Final = 2
UNKNOWN_FEATURES: Final = ((1 << 63) - 1) & ~((1 << 27) - 1)
"""Bits 27 to 62, each a feature no loader knows."""
PARTIAL_SB2SB: Final = 1 << 22
MD5_FILLER: Final = b"0" * 16
VERSION_CODE: Final = 10
"""What a loader returns for a version or feature it does not know."""
INVALID_CODE: Final = 2
"""What it returns for a file that contradicts itself."""

BLOCK: Final = 512
ARCHIVE_SOURCE: Final = Source("isa", "11.2", HIGH)

TAR_BLOCK: Final = Layout("tar_block", size=BLOCK, source=ARCHIVE_SOURCE, fields=(
    # name          at   type    meaning
    Field("name",     0, "V100", "path of the member"),
    Field("size",   124, "V12",  "bytes of the member, octal"),
    Field("sum",    148, "V8",   "sum of the block's bytes with blanks in this place, octal"),
    Field("type",   156, "u1",   "kind of the member, an ASCII digit or letter"),
    Field("magic",  257, "V8",   "dialect"),
    Field("prefix", 345, "V155", "directories before the name (POSIX dialect alone)"),
))  # fmt: skip

# Dialects, and the kinds of members that are not refused. Source: isa §11.2, high.
GNU_MAGIC: Final = b"ustar  \0"
POSIX_MAGIC: Final = b"ustar\x0000"
TAR_REGULAR: Final = frozenset(b"0\0")
TAR_DIRECTORY: Final = ord("5")
TAR_LONG_NAME: Final = ord("L")
TAR_EXTENDED: Final = frozenset(b"xg")

INDEX: Final = "kelf-a.json"
HOST_GRAPH: Final = "neff.json"
ENGINES_SOURCE: Final = Source("isa", "11.3", HIGH)
ENGINES: Final = ("pe", "act", "pool", "dve", "sp")
"""Engines in the order in which a loader reads their streams."""

OUTPUT: Final = "output"
"""The transfer type that at least one tensor of a definition has. Source: isa §11.3, high."""

TARGETS_SOURCE: Final = Source("isa", "1", HIGH)
TARGETS: Final[Mapping[str, str]] = {
    "": "sunda",
    "sunda": "sunda",
    "v2": "sunda",
    "cayman": "cayman",
    "v3": "cayman",
    "mariana": "mariana",
    "v4": "mariana",
}
"""Architecture by target string; `*` fits any."""
ANY_TARGET: Final = "*"

GROUP_SOURCE: Final = Source("isa", "9", HIGH)
SINGLE_STREAM_SOURCE: Final = Source("isa", "9", HIGH)
TENSOR_SOURCE: Final = Source("isa", "9", MEDIUM)
