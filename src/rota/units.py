"""Bytes, rates and times: from text and to text. Sizes are powers of two, bandwidths powers of ten."""

from __future__ import annotations

import re
from typing import Final

from rota.errors import UsageError

PICOSECONDS_PER_SECOND: Final = 10**12
PICOSECONDS_PER_MICROSECOND: Final = 10**6
_SIZE: Final = re.compile(r"(\d{1,18})\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE | re.ASCII)
_SHIFT: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LARGEST_SIZE: Final = 1 << 50


def parse_size(text: str) -> int:
    """Return the bytes that `8`, `32K`, `128M` or `1G` stand for (powers of two).

    Raises:
        UsageError: the text is no size, is zero, or is above 1 PiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size '{text[:40]}': expected a whole number with an optional K, M, G or T, for example 64M")
    size = int(match[1]) << _SHIFT[match[2].upper()]
    if not 0 < size <= _LARGEST_SIZE:
        raise UsageError(f"size '{text}': expected between 1 byte and 1024T, got {size} bytes")
    return size


def format_size(size: int) -> str:
    """Return the shortest exact text of a size: 65536 is `64K`, 1000 is `1000`."""
    for letter in "TGMK":
        if size and size % (1 << _SHIFT[letter]) == 0:
            return f"{size >> _SHIFT[letter]}{letter}"
    return str(size)


def transfer_ps(size: int, rate: int) -> int:
    """Return the picoseconds, rounded to the nearest, that `size` bytes take at `rate` bytes per second."""
    return (2 * size * PICOSECONDS_PER_SECOND + rate) // (2 * rate)
