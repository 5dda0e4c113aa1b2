"""Movements without a reduction: 0xCB to or from one rank, and 0xBF between the cores of a chip.

The layouts are in `carriers`. A send or receive counts bytes and has no element type; 0xBF is run by hardware, and
its reduction, if any, is in the descriptors of its leg.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.carriers import SB2SB_WORD, SEND_RECV_WORD
from rota.isa.counts import EMPTY_SOURCE, MAX_BYTES, OVERFLOW_SOURCE
from rota.isa.dtypes import Dtype, short_name
from rota.isa.enums import EncOp
from rota.isa.layout import Buffer, Layout
from rota.isa.opcodes import Opcode, describe_opcode
from rota.isa.operands import PSUM_BIT, Addr4Form, Pattern3D
from rota.isa.records import (
    INST_WORD_LEN,
    NO_EVENTS,
    WORD_SIZE,
    Events,
    check_header,
    check_reserved,
    events_of,
    member,
)

SB2SB_SOURCE: Final = Source("isa", "5.9", HIGH)
SEND_SOURCE: Final = Source("isa", "5.5", CONVENTION)
MAX_SOURCE_ELEMENTS: Final = 256
MAX_CHANNELS: Final = 128
_SHAPES_IN_REGISTERS: Final = (Addr4Form.SHAPE_IN_REGISTER, Addr4Form.BOTH_IN_REGISTERS)


class LncSize(IntEnum):
    """Cores that exchange, LNC_SIZE_FMT. Source: isa §6.5, high."""

    LNC1 = 0
    LNC2 = 1
    LNC4 = 2
    LNC8 = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRecv:
    """One 0xCB: bytes of a tensor to or from one other rank."""

    index: int = 0
    offset: int = 0
    kind: EncOp  # SEND or RECV
    tensor_id: int
    peer_id: int
    offset_bytes: int = 0
    size_bytes: int
    events: Events = NO_EVENTS
    debug_cmd: int = 0
    debug_hint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sb2Sb:
    """One 0xBF: an exchange between the on-chip memories of neighbouring cores."""

    index: int = 0
    offset: int = 0
    in_dtype: Dtype
    out_dtype: Dtype
    src: Pattern3D
    dst: Pattern3D
    lnc_size: LncSize
    num_channels: int
    events: Events = NO_EVENTS
    debug_cmd: int = 0
    debug_hint: int = 0


def decode_send_recv(data: Buffer, *, offset: int = 0) -> SendRecv:
    """Return the send or receive at `offset`.

    Raises:
        DecodeError: the record is cut, is another instruction, has a wrong length or mode, a reserved byte that is set,
            or a direction other than 0 and 1.
    """
    values = _decode(SEND_RECV_WORD, Opcode.PSEUDO_SEND_RECV, data, offset)
    if values["is_send"] > 1:
        got = f"0x{values['is_send']:02X}"
        raise DecodeError("is_send", offset=offset + 24, expected="0x00 or 0x01", got=got)
    return SendRecv(
        index=offset // WORD_SIZE,
        offset=offset,
        kind=EncOp.SEND if values["is_send"] else EncOp.RECV,
        tensor_id=values["tensor_id"],
        peer_id=values["peer_id"],
        offset_bytes=values["offset_bytes"],
        size_bytes=values["size_bytes"],
        events=events_of(values),
        debug_cmd=values["debug_cmd"],
        debug_hint=values["debug_hint"],
    )


def encode_send_recv(transfer: SendRecv) -> bytes:
    """Return the 64 bytes of a send or receive.

    Raises:
        UsageError: the kind is neither, or a value does not fit its field.
    """
    if transfer.kind not in (EncOp.SEND, EncOp.RECV):
        what = describe_opcode(Opcode.PSEUDO_SEND_RECV)
        raise UsageError(f"encode {what}: expected SEND or RECV, got {transfer.kind.name}")
    return SEND_RECV_WORD.encode(
        opcode=Opcode.PSEUDO_SEND_RECV,
        inst_word_len=INST_WORD_LEN,
        debug_cmd=transfer.debug_cmd,
        debug_hint=transfer.debug_hint,
        **transfer.events.values(),
        tensor_id=transfer.tensor_id,
        peer_id=transfer.peer_id,
        is_send=int(transfer.kind is EncOp.SEND),
        offset_bytes=transfer.offset_bytes,
        size_bytes=transfer.size_bytes,
    )


def check_send_recv(transfer: SendRecv) -> None:
    """Refuse a transfer of nothing, or one whose end does not fit 64 bits.

    Raises:
        UnsupportedError: as said.
    """
    where = f"{describe_opcode(Opcode.PSEUDO_SEND_RECV)} at offset {transfer.offset}"
    if not transfer.size_bytes:
        raise UnsupportedError(f"{where}: the transfer has no bytes, expected at least 1", source=EMPTY_SOURCE)
    end = transfer.offset_bytes + transfer.size_bytes
    if end > MAX_BYTES:
        raise UnsupportedError(f"{where}: ends at byte {end}, expected at most {MAX_BYTES}", source=OVERFLOW_SOURCE)


def decode_sb2sb(data: Buffer, *, offset: int = 0) -> Sb2Sb:
    """Return the exchange at `offset`; `check_sb2sb` has the rules of the hardware.

    Raises:
        DecodeError: the record is cut, is another instruction, has a wrong length or mode, a reserved byte that is set,
            or an unknown element type or number of cores.
    """
    values = _decode(SB2SB_WORD, Opcode.SB2SB_COLLECTIVE, data, offset)
    return Sb2Sb(
        index=offset // WORD_SIZE,
        offset=offset,
        in_dtype=member(Dtype, values["in_dtype"], "element type", offset + 12),
        out_dtype=member(Dtype, values["out_dtype"], "element type", offset + 13),
        src=_pattern(values, "src_"),
        dst=_pattern(values, "dst_"),
        lnc_size=member(LncSize, values["lnc_size"], "number of cores", offset + 32),
        num_channels=values["num_channels"],
        events=events_of(values),
        debug_cmd=values["debug_cmd"],
        debug_hint=values["debug_hint"],
    )


def encode_sb2sb(exchange: Sb2Sb) -> bytes:
    """Return the 64 bytes of an exchange.

    Raises:
        UsageError: a value does not fit its field.
    """
    return SB2SB_WORD.encode(
        opcode=Opcode.SB2SB_COLLECTIVE,
        inst_word_len=INST_WORD_LEN,
        debug_cmd=exchange.debug_cmd,
        debug_hint=exchange.debug_hint,
        **exchange.events.values(),
        in_dtype=exchange.in_dtype,
        out_dtype=exchange.out_dtype,
        src_address=exchange.src.address,
        src_step=exchange.src.step,
        src_num=exchange.src.num,
        lnc_size=exchange.lnc_size,
        num_channels=exchange.num_channels,
        dst_address=exchange.dst.address,
        dst_step=exchange.dst.step,
        dst_num=exchange.dst.num,
    )


def check_sb2sb(exchange: Sb2Sb) -> None:
    """Refuse an exchange that the hardware's own checks refuse.

    Raises:
        UnsupportedError: the types differ or are none, four or eight cores, channels outside 1 to 128, an address in
            PSUM, a dimension without elements, or more than 256 elements a partition.

    Source:
        isa §5.9, high.
    """
    where = f"{describe_opcode(Opcode.SB2SB_COLLECTIVE)} at offset {exchange.offset}"

    def refuse(message: str) -> None:
        raise UnsupportedError(f"{where}: {message}", source=SB2SB_SOURCE)

    if exchange.in_dtype is Dtype.INVALID:
        refuse("the element type must be one, got invalid")
    if exchange.in_dtype is not exchange.out_dtype:
        names = f"{short_name(exchange.in_dtype)} and {short_name(exchange.out_dtype)}"
        refuse(f"both element types must be the same, got {names}")
    if exchange.lnc_size not in (LncSize.LNC1, LncSize.LNC2):
        refuse(f"number of cores must be LNC1 or LNC2, got {exchange.lnc_size.name}")
    if not 1 <= exchange.num_channels <= MAX_CHANNELS:
        refuse(f"channels must be from 1 to {MAX_CHANNELS}, got {exchange.num_channels}")
    for name, pattern in (("source", exchange.src), ("destination", exchange.dst)):
        form = pattern.form
        if form is None:
            refuse(f"{name} has an address of an unknown form, marker 0x{pattern.address >> 24:02X}")
        if form in (Addr4Form.IMMEDIATE, Addr4Form.SHAPE_IN_REGISTER) and pattern.address >> PSUM_BIT & 1:
            refuse(f"{name} must lie in SBUF, got PSUM")
        if form not in _SHAPES_IN_REGISTERS and not pattern.elements:
            refuse(f"{name} has a dimension without elements, got {pattern.num}")
    if exchange.src.form not in _SHAPES_IN_REGISTERS and exchange.src.elements > MAX_SOURCE_ELEMENTS:
        refuse(f"source has at most {MAX_SOURCE_ELEMENTS} elements a partition, got {exchange.src.elements}")


def _decode(layout: Layout, opcode: Opcode, data: Buffer, offset: int) -> dict[str, int]:
    values = layout.decode(data, offset)
    if values["opcode"] != opcode:
        got = describe_opcode(values["opcode"])
        raise DecodeError(layout.name, offset=offset, expected=describe_opcode(opcode), got=got)
    check_header(data, offset)
    check_reserved(layout, data, offset)
    return values


def _pattern(values: dict[str, int], prefix: str) -> Pattern3D:
    step, num = (tuple(values[f"{prefix}{name}[{i}]"] for i in range(3)) for name in ("step", "num"))
    return Pattern3D(values[f"{prefix}address"], (step[0], step[1], step[2]), (num[0], num[1], num[2]))
