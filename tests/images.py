"""Ring collectives all the way to images, and images taken apart, edited and sealed again; for tests."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rota.compose.ring import compose_ring
from rota.emit import emit, pack_image
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.image import DIGEST_SIZE, HEADER, SECTION, Section
from rota.machine.platform import Platform, load_platform
from rota.request import Request
from rota.schedule.ir import Schedule

TRN1, TRN2 = "trn1.32xlarge", "trn2.48xlarge"
PLATFORMS = {name: load_platform(name) for name in (TRN1, TRN2)}
CRC_AT = 24  # of a row of the section table

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """One ring collective; `orders` has one ring of positions for each channel, the same in every group."""

    kind: EncOp = EncOp.ALLREDUCE
    dtype: Dtype = Dtype.BFLOAT16
    count: int = 400
    groups: tuple[tuple[int, ...], ...] = ((0, 1, 4),)
    orders: Sequence[Sequence[Any]] = field(default=((0, 1, 2), (2, 1, 0)))
    op: CceType | None = CceType.ADD
    platform_name: str = TRN2
    folds: int = 2
    slots: int = 4
    halves: int = 2
    chunk: int = 2 << 20
    in_place: bool = False
    words: bytes = b"\xc7 words for people"

    @property
    def platform(self) -> Platform:
        return PLATFORMS[self.platform_name]

    @cached_property
    def request(self) -> Request:
        op = None if self.kind is EncOp.ALLGATHER else self.op
        return Request(self.kind, self.dtype, self.count, self.groups, op, self.in_place, integer_as_fp32=True)

    @cached_property
    def schedule(self) -> Schedule:
        return compose_ring(
            self.orders,
            kind=self.kind,
            size=self.request.size,
            op=self.request.op,
            slots=self.slots,
            halves=self.halves,
            chunk=self.chunk,
            in_place=self.in_place,
        )

    @cached_property
    def images(self) -> tuple[bytes, ...]:
        return emit(self.schedule, self.request, self.platform, folds=self.folds, words=self.words)

    def random_bits(self, seed: int | np.random.Generator) -> Array:
        """Return inputs of any bit pattern, shape (members, elements)."""
        dtype = numpy_dtype(self.dtype)
        rng = np.random.default_rng(seed)
        shape = (len(self.request.members), self.request.input_size)
        return rng.integers(0, 256, shape, dtype=np.uint8).view(dtype)

    def raw_inputs(self, seed: int = 0) -> Array:
        """Return inputs near one as bytes, shape (members, bytes)."""
        dtype = numpy_dtype(self.dtype)
        shape = (len(self.request.members), self.request.input_size // dtype.itemsize)
        values = np.random.default_rng(seed).uniform(1, 100, shape).astype(np.float32)
        return values.astype(dtype).view(np.uint8)


def table(image: bytes) -> dict[tuple[Section, int], tuple[int, int, int]]:
    """Return, for each section, the offset of its row in the table, its own offset, and its size."""
    out = {}
    for row in range(HEADER.decode(image)["sections"]):
        at = HEADER.size + row * SECTION.size
        entry = SECTION.decode(image, at)
        out[Section(entry["kind"]), entry["index"]] = (at, entry["offset"], entry["size"])
    return out


def section(image: bytes, kind: Section, index: int = 0) -> bytes:
    """Return the bytes of a section."""
    _, offset, size = table(image)[kind, index]
    return image[offset : offset + size]


def edit(image: bytes, kind: Section, index: int, at: int, data: bytes) -> bytes:
    """Overwrite bytes of a section and seal the image again."""
    _, offset, size = table(image)[kind, index]
    assert at + len(data) <= size
    return seal(image[: offset + at] + data + image[offset + at + len(data) :])


def rebuild(image: bytes, changes: Mapping[tuple[Section, int], bytes]) -> bytes:
    """Return the image with sections replaced or added, of any size."""
    sections = {place: section(image, *place) for place in table(image)} | dict(changes)
    return pack_image([(*place, data) for place, data in sections.items()])


def flip(image: bytes, kind: Section, index: int, at: int, bit: int) -> bytes:
    """Flip one bit of a section and seal the image again; bits from 8 on are in the bytes behind `at`."""
    byte = section(image, kind, index)[at + bit // 8] ^ 1 << bit % 8
    return edit(image, kind, index, at + bit // 8, bytes([byte]))


def seal(image: bytes, *, checksums: bool = True) -> bytes:
    """Return the image with the digest of its bytes, and first the checksums of its sections, made right."""
    out = bytearray(image)
    for at, offset, size in table(image).values() if checksums else ():
        out[at + CRC_AT : at + CRC_AT + 4] = zlib.crc32(out[offset : offset + size]).to_bytes(4, "little")
    out[-DIGEST_SIZE:] = hashlib.sha256(out[:-DIGEST_SIZE]).digest()
    return bytes(out)
