"""What one 0xBF word makes the device do: the handshake of the two cores, and the descriptors of the copy.

The device builds these itself, from the word; here they are for people, and for tests that compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array
from rota.emit.sb2sb import check_leg
from rota.errors import UnsupportedError
from rota.isa.arch import ARCHES, Arch
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, len_ctrl, limits_of
from rota.isa.dtypes import size_of
from rota.isa.engines import SBUF_FEED_OFFSET, SBUF_PARTITION
from rota.isa.operands import Addr4Form, Pattern3D
from rota.isa.semaphores import STRIDE, Window, register_offset
from rota.isa.state_buffer import ENGINE_MASK, Handshake, partner, state_buffer
from rota.isa.transfers import SB2SB_SOURCE, LncSize, Sb2Sb, check_sb2sb, decode_sb2sb

# The steps of the receiver; the others are the sender's. Source: device §11, high.
RECEIVING: Final = frozenset({Handshake.ANNOUNCE, Handshake.RX_TAIL, Handshake.SIGNAL})


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """What one word makes the device do.

    Attributes:
        engines: mask of the DMA engines.
        handshake: core and what it does, in an order that the waits permit.
        tx, rx: structured arrays of `descriptors.DESCRIPTOR`: data, then the semaphores LOCAL and REMOTE.
    """

    sender: int
    receiver: int
    engines: int
    handshake: tuple[tuple[int, Handshake], ...]
    tx: Array
    rx: Array


def leg_of(word: bytes, *, core: int, arch: str) -> Leg:
    """Return the handshake and the descriptors of one word of a core.

    Raises:
        DecodeError: the bytes are no such word.
        UnsupportedError: the word breaks a rule of the hardware, or the architecture has no such leg.
        UsageError: the architecture is unknown.
    """
    check_leg(arch, lnc=2)
    exchange = decode_sb2sb(word)
    check_sb2sb(exchange)
    if {exchange.src.form, exchange.dst.form} != {Addr4Form.IMMEDIATE} or not size_of(exchange.in_dtype):
        raise UnsupportedError(
            "SB2SB word: expected elements with a size, at addresses in the word", source=SB2SB_SOURCE
        )
    receiver = core if exchange.lnc_size is LncSize.LNC1 else partner(core)
    tx, rx = _descriptors(exchange, core, receiver, ARCHES[arch])
    handshake = tuple((receiver if step in RECEIVING else core, step) for step in Handshake)
    return Leg(core, receiver, ENGINE_MASK, handshake, tx, rx)


def _descriptors(word: Sb2Sb, sender: int, receiver: int, arch: Arch) -> tuple[Array, Array]:
    """Return what reads and what writes: the runs of every channel, then LOCAL, then REMOTE."""
    size = size_of(word.in_dtype)
    src, dst = _elements(word.src, size), _elements(word.dst, size)
    broken = (np.diff(src) != size) | (np.diff(dst) != size)
    start = np.concatenate(([0], 1 + np.flatnonzero(broken)))
    length = np.diff(np.append(start, src.size)) * size
    channel = np.arange(word.num_channels, dtype=np.int64)[:, None] * SBUF_PARTITION
    data = word.num_channels * start.size
    feed = state_buffer(arch, sender) + SBUF_FEED_OFFSET
    increments = [
        arch.semaphores(core * arch.sps_per_core) + register_offset(Window.INC, identity)
        for core, identity in ((sender, word.events.update_idx), (receiver, word.events.wait_idx))
    ]
    sizes = np.concatenate((np.tile(length, word.num_channels), [STRIDE, STRIDE]))
    limits = limits_of(arch.name)
    packet = np.arange(data) % min(limits.tx_cap, limits.rx_cap)
    first = np.concatenate((packet == 0, [True, True]))
    last = np.append(first[1:], True)
    tx, rx = (np.zeros(data + 2, DESCRIPTOR) for _ in range(2))
    tx["len_ctrl"] = len_ctrl(sizes, first=first, last=last, concat=~last)
    tx["meta_ctrl"] = COPY_WORD
    tx["buf_ptr"] = np.append((state_buffer(arch, sender) + src[start] + channel).ravel(), [feed, feed])
    rx["len_ctrl"] = len_ctrl(sizes, strong_order=np.arange(data + 2) == data - 1)
    rx["buf_ptr"] = np.append((state_buffer(arch, receiver) + dst[start] + channel).ravel(), increments)
    return tx, rx


def _elements(pattern: Pattern3D, size: int) -> I64:
    """Return where each element starts in the window of a state buffer, for the first channel."""
    plane, line, place = (np.arange(n) * s for n, s in zip(pattern.num, pattern.step, strict=True))
    elements: I64 = pattern.address + (plane[:, None, None] + line[:, None] + place).ravel().astype(np.int64) * size
    return elements
