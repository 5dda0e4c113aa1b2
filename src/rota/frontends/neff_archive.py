"""The outside of a NEFF: its header, the hash, the compression and the archive, as members in memory.

Nothing is ever written to disk, and every size is compared with a limit before memory is taken for it. What the members
say is `neff`.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.container import (
    BLOCK,
    GNU_MAGIC,
    GZIPPED,
    INVALID_CODE,
    MAX_MAJOR,
    MD5_FILLER,
    NEFF_HEADER,
    PLAIN,
    POSIX_MAGIC,
    SOURCE,
    TAR_BLOCK,
    TAR_DIRECTORY,
    TAR_EXTENDED,
    TAR_LONG_NAME,
    TAR_REGULAR,
    UNKNOWN_FEATURES,
    VERSION_CODE,
)
from rota.isa.neff import shown

_PIECE: Final = 1 << 20  # bytes decompressed at a time
_LONGEST_NAME: Final = 4096
_OCTAL: Final = re.compile(rb" *([0-7]{1,11})[ \0]*")
_HARMLESS: Final = re.compile(rb"(?:\d+ (?:[acm]time|[ug]id|[ug]name|comment)=[^\n]*\n)*\0*")


@dataclass(frozen=True, slots=True)
class Caps:
    """The most a container may ask of its reader.

    Attributes:
        archive: bytes, decompressed.
        members: of the archive, directories included.
        depth: names in a member's path.
        json: bytes of one member that is read as JSON.
    """

    archive: int = 1 << 30
    members: int = 4096
    depth: int = 8
    json: int = 64 << 20


CAPS: Final = Caps()


def is_neff(data: bytes) -> bool:
    """Say whether bytes begin like a NEFF, of whatever version; there is no magic.

    The second field is the header's size. The first is a small number, where an instruction has a length byte.
    """
    version, size = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little")
    return len(data) >= 16 and version < 256 and size == NEFF_HEADER.size


def read_header(data: bytes, *, where: str) -> Mapping[str, int]:
    """Return the header's fields once they are known to be those of a file a loader takes.

    Raises:
        DecodeError: it is cut off, or its sizes are impossible.
        UnsupportedError: a version or feature that is not known.

    Source:
        isa §11.1, high.
    """
    if len(data) < NEFF_HEADER.size:
        raise DecodeError(f"{where}: header", offset=0, expected=f"{NEFF_HEADER.size} bytes", got=f"{len(data)} bytes")
    header = NEFF_HEADER.decode(data)
    room = len(data) - NEFF_HEADER.size
    if header["pkg_version"] not in (PLAIN, GZIPPED):
        _refuse_version(where, f"package version {header['pkg_version']}, expected {PLAIN} or {GZIPPED}")
    if header["header_size"] != NEFF_HEADER.size:
        raise DecodeError(
            f"{where}: header size", offset=0x008, expected=str(NEFF_HEADER.size), got=str(header["header_size"])
        )
    if header["data_size"] > room:
        raise DecodeError(
            f"{where}: size of the archive (code {INVALID_CODE})",
            offset=0x010,
            expected=f"at most the {room} bytes behind the header",
            got=str(header["data_size"]),
        )
    if header["version_major"] > MAX_MAJOR:
        _refuse_version(where, f"format version {header['version_major']}, expected at most {MAX_MAJOR}")
    unknown = header["feature_bits"] & UNKNOWN_FEATURES
    if header["version_major"] == MAX_MAJOR and unknown:
        _refuse_version(where, f"feature bits {unknown:#x} are set, expected none of 27 to 62")
    if header["virtual_core"] not in (1, 2):
        raise DecodeError(
            f"{where}: virtual core size", offset=0x228, expected="1 or 2", got=str(header["virtual_core"])
        )
    return header


def read_archive(data: bytes, header: Mapping[str, int], *, where: str, caps: Caps = CAPS) -> memoryview:
    """Return the tar archive of a container; its hash is compared first, over the bytes as they stand in the file.

    Raises:
        DecodeError: the hash differs, or the compressed data is damaged, cut off, or followed by something.
        UsageError: it is larger than `caps` allow.
    """
    packed = memoryview(data)[NEFF_HEADER.size : NEFF_HEADER.size + header["data_size"]]
    want = header["hash"].to_bytes(32, "little")
    is_plain = header["pkg_version"] == PLAIN
    have = (
        hashlib.sha256(packed).digest()
        if is_plain
        else hashlib.md5(packed, usedforsecurity=False).digest() + MD5_FILLER
    )
    if have != want:
        kind = "SHA-256" if is_plain else "MD5"
        raise DecodeError(f"{where}: {kind} of the archive", offset=0x0AC, expected=want.hex(), got=have.hex())
    if not is_plain:
        return _unpack(packed, where, caps)
    if len(packed) > caps.archive:
        _refuse_size(where, caps)
    return packed


def read_members(archive: memoryview, *, where: str, caps: Caps = CAPS) -> Mapping[str, memoryview]:
    """Return the regular files of a tar archive by name, without a leading `./`; directories are passed over.

    The order of the members means nothing, which is why a name that is there twice is refused.

    Raises:
        DecodeError: a block is damaged or cut off, or something stands behind the end mark; offsets are into the
            archive.
        UsageError: more members than `caps` allow, a name twice, a path that leads out of the archive or too deep, or
            a member that is no file: links, devices, sparse files, extended headers that rename or resize.

    Source:
        isa §11.2, high.
    """
    members: dict[str, memoryview] = {}
    at, count, long_name = 0, 0, b""
    while True:
        block = bytes(archive[at : at + BLOCK])
        if len(block) < BLOCK:
            raise DecodeError(
                f"{where}: archive", offset=at, expected="a member or the end mark", got=f"{len(block)} bytes"
            )
        if block.count(0) == BLOCK:
            break
        size = _check_block(block, at, where)
        values = TAR_BLOCK.decode(block)
        body = archive[at + BLOCK : at + BLOCK + size]
        if len(body) < size:
            raise DecodeError(
                f"{where}: member in the archive", offset=at, expected=f"{size} bytes", got=f"{len(body)} bytes"
            )
        at += BLOCK * (1 + -(-size // BLOCK))
        count += 1
        if count > caps.members:
            raise UsageError(f"{where}: the archive has more than {caps.members} members; it is no program")
        if values["type"] == TAR_LONG_NAME and 0 < size <= _LONGEST_NAME:
            long_name = bytes(body).split(b"\0", 1)[0]
            continue
        if values["type"] in TAR_EXTENDED and size <= _LONGEST_NAME and _HARMLESS.fullmatch(bytes(body)):
            continue
        raw, long_name = long_name or _raw_name(block), b""
        is_directory = values["type"] == TAR_DIRECTORY
        if not is_directory and values["type"] not in TAR_REGULAR:
            raise UsageError(
                f"{where}: member '{shown(raw)}' is of type '{shown(bytes([values['type']]))}', expected a file or a "
                "directory; links, devices, sparse files and renaming headers have no place in a NEFF"
            )
        name = _path(raw, is_directory, where, caps)
        if is_directory:
            continue
        if name in members:
            raise UsageError(f"{where}: member '{name}' is there twice, expected each name once")
        members[name] = body
    tail = bytes(archive[at:])
    if tail.count(0) != len(tail):
        stray = at + len(tail) - len(tail.lstrip(b"\0"))
        raise DecodeError(f"{where}: archive", offset=stray, expected="nothing behind the end mark", got="more bytes")
    return members


def _refuse_version(where: str, what: str) -> NoReturn:
    raise UnsupportedError(f"{where}: {what} (code {VERSION_CODE}); compile it for this version", source=SOURCE)


def _refuse_size(where: str, caps: Caps) -> NoReturn:
    raise UsageError(f"{where}: the archive is larger than {caps.archive} bytes unpacked; it is no program")


def _unpack(packed: memoryview, where: str, caps: Caps) -> memoryview:
    """Return gzip data decompressed, a piece at a time so that a bomb ends at the limit."""
    unpacker = zlib.decompressobj(wbits=31)
    out = bytearray()
    try:
        for start in range(0, len(packed), _PIECE):
            piece: bytes | memoryview = packed[start : start + _PIECE]
            while piece and not unpacker.eof:
                out += unpacker.decompress(piece, _PIECE)
                piece = unpacker.unconsumed_tail
                if len(out) > caps.archive:
                    _refuse_size(where, caps)
            if unpacker.eof:
                break
    except zlib.error as error:
        raise DecodeError(
            f"{where}: archive", offset=NEFF_HEADER.size, expected="gzip data", got=f"damage ({shown(str(error))})"
        ) from None
    end = NEFF_HEADER.size + len(packed)
    if not unpacker.eof:
        raise DecodeError(f"{where}: archive", offset=end, expected="more gzip data", got="its end")
    stray = len(unpacker.unused_data) + max(0, len(packed) - start - _PIECE)
    if stray:
        raise DecodeError(f"{where}: archive", offset=end - stray, expected="its end", got=f"{stray} more bytes")
    return memoryview(out).toreadonly()


def _check_block(block: bytes, at: int, where: str) -> int:
    """Return the size of a member once its block is known to be one."""
    magic = block[257:265]
    if magic not in (GNU_MAGIC, POSIX_MAGIC):
        raise DecodeError(f"{where}: archive", offset=at + 257, expected="a tar block", got=f"magic {magic.hex()}")
    size = _OCTAL.fullmatch(block[124:136])
    total = _OCTAL.fullmatch(block[148:156])
    have = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if total is None or int(total[1], 8) != have:
        got = shown(block[148:156])
        raise DecodeError(f"{where}: sum of a tar block", offset=at + 148, expected=f"{have:06o}", got=f"'{got}'")
    if size is None:
        got = shown(block[124:136])
        raise DecodeError(f"{where}: size of a member", offset=at + 124, expected="an octal number", got=f"'{got}'")
    return int(size[1], 8)


def _raw_name(block: bytes) -> bytes:
    name, prefix = block[:100].split(b"\0", 1)[0], block[345:500].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and block[257:265] == POSIX_MAGIC else name


def _path(raw: bytes, is_directory: bool, where: str, caps: Caps) -> str:
    """Return the path of a member, relative to the archive."""
    name = raw.decode("utf-8", "surrogateescape").removeprefix("./")
    if is_directory:
        name = name.removesuffix("/")
        if name in ("", "."):
            return ""
    parts = name.split("/")
    if len(parts) > caps.depth:
        raise UsageError(f"{where}: member '{shown(raw)}' lies {len(parts)} names deep, expected at most {caps.depth}")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise UsageError(
            f"{where}: member '{shown(raw)}' is no plain path, expected names with '/' between them that stay inside"
        )
    return name
