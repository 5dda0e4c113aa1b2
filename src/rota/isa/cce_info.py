"""The records in which a container asks for DMA descriptors: reduce parameters, access patterns, whole requests.

The reduce parameters are a union; which view holds follows from the operation of the request around it. What a
request turns into is in `packets`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import HIGH, MEDIUM, Source
from rota.isa.dtypes import DTYPE_OF_KBIN, Dtype, short_name
from rota.isa.enums import CCE_OF_KBIN, CceType, KbinOp
from rota.isa.layout import Buffer, Field, Layout

CCE_INFO_SOURCE: Final = Source("sdma", "10", HIGH)
PLACES_SOURCE: Final = Source("sdma", "10", MEDIUM)  # sizes and order are given, the offsets inside follow from them
MAX_SOURCES: Final = 32
CCE_INFO_SIZE: Final = 140
_SOURCES: Final = Field("num_sources", 0, "<u4", "sources, 1 to 32")
_DESTS: Final = Field("num_dests", 136, "<u4", "targets; 0 and 1 are one, more replicate")

CCE_INFO_PLAIN: Final = Layout("cce_info", size=CCE_INFO_SIZE, source=CCE_INFO_SOURCE, fields=(_SOURCES, _DESTS))
CCE_INFO_FMA: Final = Layout("cce_info_fma", size=CCE_INFO_SIZE, source=CCE_INFO_SOURCE, fields=(
    # name               at  type     meaning
    _SOURCES,
    Field("scale_dtype",  4, "<u4",   "container type of the scales: FP32"),
    Field("scale",        8, "32<u4", "bits of a float32 a source"),
    _DESTS,
))  # fmt: skip
CCE_INFO_MINMAX: Final = Layout("cce_info_minmax", size=CCE_INFO_SIZE, source=CCE_INFO_SOURCE, fields=(
    _SOURCES,
    Field("use_constant",    4, "u1",  "0 or 1"),
    Field("constant_dtype",  8, "<u4", "container type of the constant"),
    Field("constant",       12, "<u4", "bits of the constant"),
    _DESTS,
))  # fmt: skip
VIEW: Final[Mapping[CceType, Layout]] = {
    CceType.ADD: CCE_INFO_PLAIN,
    CceType.FMA: CCE_INFO_FMA,
    CceType.MAX: CCE_INFO_MINMAX,
    CceType.MIN: CCE_INFO_MINMAX,
}

ACCESS_PATTERN: Final = Layout("access_pattern", size=160, source=PLACES_SOURCE, fields=(
    # name          at   type     meaning
    Field("idx",      0, "<u8",   "tensor"),
    Field("off",      8, "<u8",   "first element"),
    Field("num_dims",16, "<u4",   "dimensions in use"),
    Field("steps",   24, "8<i8",  "elements from one index to the next, by dimension"),
    Field("sizes",   88, "8<u8",  "indices of a dimension"),
    Field("dtype",  152, "<u4",   "container type of an element"),
))  # fmt: skip

_TO: Final = 8
_FROM: Final = _TO + ACCESS_PATTERN.size
_TILING: Final = _FROM + MAX_SOURCES * ACCESS_PATTERN.size
KBIN_DMA_DESC_SIZE: Final = 5456


def kbin_dma_desc() -> Layout:
    """Return the layout of a whole request, one operation's DATA view; its 650 fields are built when asked for."""
    return Layout("kbin_dma_desc", size=KBIN_DMA_DESC_SIZE, source=CCE_INFO_SOURCE, fields=(
        # name                      at       type    meaning
        Field("desc_type",           0,      "<u4",  "kind of the request"),
        Field("op",                  4,      "<i4",  "KbinOp"),
        *ACCESS_PATTERN.at(_TO, prefix="to_"),
        *(each for i in range(MAX_SOURCES)
          for each in ACCESS_PATTERN.at(_FROM + i * ACCESS_PATTERN.size, prefix=f"from{i}_")),
        Field("num_tiling_dims",     _TILING,     "<u4",  "dimensions that are tiled"),
        Field("cce_info",            _TILING + 4, "V140", "reduce parameters, or those of a transpose"),
        Field("block_id",            0x1538, "<u4",  "block"),
        Field("block_end",           0x153C, "<u4",  "end of the block"),
        Field("function_name",       0x1540, "<u8",  "pointer to a name"),
        Field("priority_class",      0x1548, "<u4",  "priority class, 0 to 4"),
    ))  # fmt: skip


_KBIN_OF_DTYPE: Final = {dtype: kbin for kbin, dtype in DTYPE_OF_KBIN.items()}
SCALE_KBIN: Final = _KBIN_OF_DTYPE[Dtype.FP32]


@dataclass(frozen=True, slots=True)
class Constant:
    """What MAX or MIN clamps with: 32 bits, and the type they are of."""

    dtype: Dtype
    bits: int


@dataclass(frozen=True, slots=True)
class CceInfo:
    """The parameters of a reduce.

    Attributes:
        sources: 1 to 32.
        scales: bits of a float32 for each source of an FMA, else empty.
        constant: of a MAX or MIN that clamps.
        targets: as the container says it; 0 and 1 both mean one.
    """

    sources: int
    scales: tuple[int, ...] = ()
    constant: Constant | None = None
    targets: int = 0


def scale_bits(scale: float) -> int:
    """Return the 32 bits of the float32 nearest to a scale.

    Raises:
        UsageError: the scale is finite and too large for a float32.
    """
    try:
        return int.from_bytes(struct.pack("<f", scale), "little")
    except OverflowError:
        raise UsageError(f"FMA scale: expected a float32, got {scale}") from None


def scale_of(bits: int) -> float:
    """Return the float32 with these 32 bits."""
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def cce_of_kbin(op: int, *, offset: int = 0) -> CceType:
    """Return the reduce a container's operation asks for. Source: sdma §6, high.

    Raises:
        DecodeError: the number is no operation, or one that combines nothing.
    """
    known = {int(kbin): cce for kbin, cce in CCE_OF_KBIN.items()}
    if op not in known:
        name = KbinOp(op).name if op in set(KbinOp) else "unknown"
        raise DecodeError("container operation", offset=offset, expected="FMA, ADD, MIN or MAX", got=f"{op} ({name})")
    return known[op]


def encode_cce_info(info: CceInfo, op: CceType) -> bytes:
    """Return the 140 bytes of the reduce parameters; what the operation does not use is 0.

    Raises:
        UnsupportedError: the operation is EXT or GCE, which no container asks for.
        UsageError: the sources are not 1 to 32, a scale or a constant does not go with the operation, or a value
            does not fit.
    """
    if op not in VIEW:
        raise UnsupportedError(f"{op.name}: no container asks for it", source=CCE_INFO_SOURCE)
    if not 1 <= info.sources <= MAX_SOURCES:
        raise UsageError(f"{op.name} sources: expected 1 to {MAX_SOURCES}, got {info.sources}")
    if len(info.scales) != (info.sources if op is CceType.FMA else 0):
        want = f"{info.sources}, one a source" if op is CceType.FMA else "none"
        raise UsageError(f"{op.name} scales: expected {want}, got {len(info.scales)}")
    if info.constant is not None and VIEW[op] is not CCE_INFO_MINMAX:
        raise UsageError(f"{op.name} constant: expected none, got {short_name(info.constant.dtype)}")
    values: dict[str, int | tuple[int, ...]] = {"num_sources": info.sources, "num_dests": info.targets}
    if op is CceType.FMA:
        values |= {"scale_dtype": SCALE_KBIN, "scale": info.scales + (0,) * (MAX_SOURCES - info.sources)}
    if info.constant is not None:
        kbin = _KBIN_OF_DTYPE.get(info.constant.dtype, 0)
        values |= {"use_constant": 1, "constant_dtype": kbin, "constant": info.constant.bits}
    return VIEW[op].encode(**values)


def decode_cce_info(data: Buffer, op: CceType, *, offset: int = 0) -> CceInfo:
    """Return the reduce parameters of a request; `encode_cce_info` gives the bytes back.

    Raises:
        DecodeError: it is cut short, the operation has no view, or a value breaks a rule: 1 to 32 sources, scales in
            FP32, everything that is not used 0.
    """
    layout = VIEW.get(op)
    if layout is None:
        raise DecodeError("reduce parameters", offset=offset, expected="ADD, FMA, MAX or MIN", got=op.name)
    values = layout.decode(data, offset)
    sources = values["num_sources"]
    _expect(1 <= sources <= MAX_SOURCES, layout, "num_sources", offset, f"1 to {MAX_SOURCES}", sources)
    scales: tuple[int, ...] = ()
    constant = None
    if op is CceType.FMA:
        kind = values["scale_dtype"]
        _expect(kind == SCALE_KBIN, layout, "scale_dtype", offset, f"{SCALE_KBIN}, FP32", kind)
        scales = tuple(values[f"scale[{i}]"] for i in range(sources))
    if values.get("use_constant"):
        kind = values["constant_dtype"]
        _expect(kind in DTYPE_OF_KBIN, layout, "constant_dtype", offset, "a container type from 1 to 15", kind)
        constant = Constant(DTYPE_OF_KBIN[kind], values["constant"])
    info = CceInfo(sources, scales, constant, values["num_dests"])
    want, got = encode_cce_info(info, op), bytes(memoryview(data)[offset : offset + layout.size])
    for i, (right, there) in enumerate(zip(want, got, strict=True)):
        if right != there:
            raise DecodeError(layout.name, offset=offset + i, expected=f"0x{right:02X}", got=f"0x{there:02X}")
    return info


def _expect(ok: bool, layout: Layout, name: str, offset: int, expected: str, got: int) -> None:
    if not ok:
        at = next(each.at for each in layout.fields if each.name == name)
        raise DecodeError(f"{layout.name}.{name}", offset=offset + at, expected=expected, got=str(got))


def packet_needs_info(op: CceType, *, constant: bool) -> bool:
    """Say whether a request needs parameters: FMA, and MAX or MIN with a constant. Source: sdma §6, high."""
    return op is CceType.FMA or constant
