"""The loadable image of one rank as layouts: header, section table, sections, digest. No file is read or written here.

header 16 B | table, 32 B a section | sections, each at a multiple of 64, gaps zero | SHA-256 of all before it
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

from rota.facts import CONVENTION, Source
from rota.isa.layout import Field, Layout

SOURCE: Final = Source("device-model", "4, image", CONVENTION)
MAGIC: Final = b"ROTAIMG1"
ALIGNMENT: Final = 64
DIGEST_SIZE: Final = 32
MAX_SECTIONS: Final = 4096
SLOTS_PER_SP: Final = 8  # factor of the section index of a slot program
MAX_MEMORY: Final = 1 << 36


class Section(IntEnum):
    """What a section holds; its index says for which processor, slot, engine or queue."""

    META = 1
    CTRL = 2  # control table; index sp
    SLOT = 3  # slot program; index sp x 8 + slot
    CONF = 4  # device configuration; index sp
    TX = 5  # source descriptors; index engine x 16 + queue
    RX = 6  # destination descriptors; index engine x 16 + queue
    MEM = 7  # initial bytes; index is the offset in the rank's memory
    SEMA = 8  # semaphore presets
    BUFFERS = 9  # the declared buffers
    WORDS = 10  # the instruction words the image was lowered from; for people, never executed
    REQUEST = 11  # what is asked for, as text, and the seed of the inputs; for `rota run`, never executed
    NETWORK = 12  # operations, sends and receives of the network proxy of a stream processor; index sp
    SB2SB = 13  # words that move bytes between state buffers; index sp


class BufferUse(IntFlag):
    """What a declared buffer is for."""

    INTERNAL = 0
    INPUT = 1
    OUTPUT = 2


HEADER: Final = Layout("image_header", size=16, source=SOURCE, fields=(
    Field("magic",     0, "V8",  "always ROTAIMG1"),
    Field("sections",  8, "<u4", "rows of the section table"),
    Field("reserved", 12, "<u4", "0"),
))  # fmt: skip

SECTION: Final = Layout("image_section", size=32, source=SOURCE, fields=(
    Field("kind",      0, "<u4", "Section"),
    Field("index",     4, "<u4", "which one of its kind"),
    Field("offset",    8, "<u8", "first byte in the file"),
    Field("size",     16, "<u8", "bytes"),
    Field("crc32",    24, "<u4", "CRC-32 of the bytes"),
    Field("reserved", 28, "<u4", "0"),
))  # fmt: skip

META: Final = Layout("image_meta", size=64, source=SOURCE, fields=(
    Field("arch_id",            0, "<u4", "architecture, by its firmware image number"),
    Field("rank",               4, "<u4", "member of the operation this image is for"),
    Field("ranks",              8, "<u4", "members of the operation"),
    Field("chip",              12, "<u4", "chip of the rank"),
    Field("lane",              16, "<u4", "rank on the chip"),
    Field("lnc",               20, "<u4", "physical cores of the rank"),
    Field("stream_processors", 24, "<u4", "TOP_SPs of the rank"),
    Field("folds",             28, "<u4", "DMA folds of every channel"),
    Field("operations",        32, "<u4", "entries of every control table"),
    Field("ring_size",         36, "<u4", "descriptors of a hardware ring, a power of two"),
    Field("memory_size",       40, "<u8", "bytes of the rank's memory that are used"),
    Field("chains",            48, "<u4", "runs of chained control entries; the host triggers each once"),
    Field("span",              52, "<u4", "which machine: ranks of one span reach each other by addresses"),
    Field("streams",           56, "<u4", "streams that share the TOP_SPs"),
    Field("reserved",          60, "V4",  "0"),
))  # fmt: skip

BUFFER: Final = Layout("image_buffer", size=64, source=SOURCE, fields=(
    Field("name",      0, "V32", "ASCII, padded with zero bytes"),
    Field("offset",   32, "<u8", "first byte in the rank's memory"),
    Field("size",     40, "<u8", "bytes"),
    Field("use",      48, "<u4", "BufferUse"),
    Field("reserved", 52, "V12", "0"),
))  # fmt: skip

PRESET: Final = Layout("image_preset", size=8, source=SOURCE, fields=(
    Field("sp",    0, "<u2", "TOP_SP of the rank"),
    Field("id",    2, "<u2", "semaphore"),
    Field("value", 4, "<u4", "value at the start"),
))  # fmt: skip
