"""Sends, receives and on-chip exchanges, against isa §5.5 and §5.9."""

from __future__ import annotations

import dataclasses

import pytest

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import EncOp, UpdateMode, WaitMode
from rota.isa.operands import Pattern3D
from rota.isa.records import Events
from rota.isa.transfers import (
    LncSize,
    Sb2Sb,
    SendRecv,
    check_sb2sb,
    check_send_recv,
    decode_sb2sb,
    decode_send_recv,
    encode_sb2sb,
    encode_send_recv,
)
from rota.isa.words import decode_stream

EVENTS = Events(WaitMode.WAIT_FOR_SEM_GE_IMM, 2, UpdateMode.SEM_INC_COMPLETE, 3, 4)
SEND = SendRecv(
    kind=EncOp.SEND, tensor_id=0x04030201, peer_id=0x0807060504030201, offset_bytes=0x40, size_bytes=0x80, events=EVENTS
)
EXCHANGE = Sb2Sb(
    in_dtype=Dtype.BFLOAT16,
    out_dtype=Dtype.BFLOAT16,
    src=Pattern3D(0x800010, (1, -1, 2), (4, 8, 8)),
    dst=Pattern3D(0x1000020, (1, 1, 1), (4, 8, 8)),
    lnc_size=LncSize.LNC2,
    num_channels=128,
    events=EVENTS,
)


def test_send_byte_by_byte() -> None:
    """isa §5.5: tensor at 12, peer at 16, direction at 24, offset at 48, size at 56."""
    data = encode_send_recv(SEND)
    assert data.hex(" ", 4) == (
        "cb100000 05021303 04000000 01020304 01020304 05060708 01000000 00000000 "
        "00000000 00000000 00000000 00000000 40000000 00000000 80000000 00000000"
    )
    assert decode_send_recv(data) == SEND
    receive = dataclasses.replace(SEND, kind=EncOp.RECV)
    assert encode_send_recv(receive) == data[:24] + b"\0" + data[25:]
    assert decode_send_recv(encode_send_recv(receive)) == receive


def test_exchange_byte_by_byte() -> None:
    """isa §5.9: types at 12 and 13, source at 16, cores at 32, channels at 33, destination at 48."""
    data = encode_sb2sb(EXCHANGE)
    assert data.hex(" ", 4) == (
        "bf100000 05021303 04000000 06060000 10008000 0100ffff 02000400 08000800 "
        "01800000 00000000 00000000 00000000 20000001 01000100 01000400 08000800"
    )
    assert decode_sb2sb(data) == EXCHANGE


def test_a_stream_lists_them() -> None:
    """Nothing that moves data between ranks is passed over: the walk lists sends, receives and exchanges."""
    stream = decode_stream(encode_sb2sb(EXCHANGE) + encode_send_recv(SEND))
    assert stream.exchanges == (EXCHANGE,)
    assert stream.transfers == (dataclasses.replace(SEND, index=1, offset=64),)
    assert (stream.words, stream.pairs, stream.passed) == ((), (), {0xBF: 1, 0xCB: 1})


GOOD_SEND, GOOD_EXCHANGE = encode_send_recv(SEND), encode_sb2sb(EXCHANGE)


@pytest.mark.parametrize(
    ("data", "at", "value", "message"),
    [
        (GOOD_SEND, 24, 2, "is_send at offset 24: expected 0x00 or 0x01, got 0x02"),
        (GOOD_SEND, 25, 1, "reserved byte of send_recv_word at offset 25"),
        (GOOD_SEND, 47, 1, "reserved byte of send_recv_word at offset 47"),
        (GOOD_SEND, 1, 0x40, "inst_word_len of PSEUDO_SEND_RECV 0xCB"),
        (GOOD_EXCHANGE, 12, 0x10, "element type at offset 12"),
        (GOOD_EXCHANGE, 13, 0x10, "element type at offset 13"),
        (GOOD_EXCHANGE, 14, 1, "reserved byte of sb2sb_word at offset 14"),
        (GOOD_EXCHANGE, 32, 4, "number of cores at offset 32: expected a value of LncSize, got 0x04"),
        (GOOD_EXCHANGE, 34, 1, "reserved byte of sb2sb_word at offset 34"),
        (GOOD_EXCHANGE, 47, 1, "reserved byte of sb2sb_word at offset 47"),
    ],
)
def test_what_means_nothing(data: bytes, at: int, value: int, message: str) -> None:
    """isa §5.5, §5.9: reserved bytes are 0, and each vocabulary has its values."""
    with pytest.raises(DecodeError, match=message):
        decode_stream(data[:at] + bytes([value]) + data[at + 1 :])


def test_other_records_are_refused() -> None:
    """Each decoder reads its own opcode."""
    with pytest.raises(DecodeError, match="send_recv_word at offset 0: expected PSEUDO_SEND_RECV 0xCB, got SB2SB"):
        decode_send_recv(GOOD_EXCHANGE)
    with pytest.raises(DecodeError, match="sb2sb_word at offset 0: expected SB2SB_COLLECTIVE 0xBF"):
        decode_sb2sb(GOOD_SEND)
    with pytest.raises(UsageError, match="expected SEND or RECV, got ALLREDUCE"):
        encode_send_recv(dataclasses.replace(SEND, kind=EncOp.ALLREDUCE))


def test_transfers_that_cannot_be() -> None:
    """A transfer has bytes, and ends within 64 bits."""
    check_send_recv(SEND)
    with pytest.raises(UnsupportedError, match="the transfer has no bytes, expected at least 1"):
        check_send_recv(dataclasses.replace(SEND, size_bytes=0))
    with pytest.raises(UnsupportedError, match="ends at byte 18446744073709551616, expected at most"):
        check_send_recv(dataclasses.replace(SEND, offset_bytes=1, size_bytes=(1 << 64) - 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out_dtype": Dtype.FP16}, "both element types must be the same, got bf16 and fp16"),
        ({"in_dtype": Dtype.INVALID, "out_dtype": Dtype.INVALID}, "the element type must be one"),
        ({"lnc_size": LncSize.LNC4}, "number of cores must be LNC1 or LNC2, got LNC4"),
        ({"lnc_size": LncSize.LNC8}, "got LNC8"),
        ({"num_channels": 0}, "channels must be from 1 to 128, got 0"),
        ({"num_channels": 129}, "channels must be from 1 to 128, got 129"),
        ({"src": Pattern3D(0x2000000, num=(1, 1, 1))}, "source must lie in SBUF, got PSUM"),
        ({"dst": Pattern3D(0x2000000, num=(1, 1, 1))}, "destination must lie in SBUF, got PSUM"),
        ({"dst": Pattern3D(0x10000000, num=(1, 1, 1))}, "unknown form, marker 0x10"),
        ({"src": Pattern3D(0, num=(1, 0, 1))}, "source has a dimension without elements"),
        ({"src": Pattern3D(0, num=(257, 1, 1))}, "source has at most 256 elements a partition, got 257"),
    ],
)
def test_the_hardwares_own_checks(change: dict[str, object], message: str) -> None:
    """isa §5.9: each rule of the exchange refuses what breaks it."""
    check_sb2sb(EXCHANGE)
    with pytest.raises(UnsupportedError, match=message):
        check_sb2sb(dataclasses.replace(EXCHANGE, **change))  # type: ignore[arg-type]


def test_a_shape_in_a_register_is_not_counted() -> None:
    """isa §5.9: each dimension has an element, or the shape is in a register."""
    check_sb2sb(dataclasses.replace(EXCHANGE, src=Pattern3D(0x40000000), dst=Pattern3D(0xC0000000)))
    check_sb2sb(dataclasses.replace(EXCHANGE, src=Pattern3D(0, num=(256, 1, 1)), lnc_size=LncSize.LNC1))
