"""Planted damage: one collective, its descriptors, and what must be true of a refusal.

The collective is an all-reduce of three ranks, two on chip 0 and one on chip 1. Channel 0 runs on TOP_SP 3 and sends
0 -> 1 -> 2 -> 0, channel 1 on TOP_SP 2 and the other way round; each has folds on engines 0 and 1.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.images import Ring, edit, section, table

from rota.device.model import load
from rota.errors import DecodeError
from rota.isa.arch import ARCHES
from rota.isa.descriptors import DESCRIPTOR
from rota.isa.image import Section

RING = Ring()
SP, SLOT = 3, 24  # of channel 0
PADDED = 1  # the ring of channel 1 on engine 0: some of its rows are shorter than a granule for each fold


def refusal(ring: Ring, rank: int, kind: Section, index: int, image: bytes, *, where: Section | None = None) -> str:
    """Load with one rank's image replaced; the refusal must name the rank, and a place inside the section."""
    images = list(ring.images)
    images[rank] = image
    with pytest.raises(DecodeError) as caught:
        load(images)
    spots = [
        (offset, size)
        for (k, i), (_, offset, size) in table(image).items()
        if k is (where or kind) and (where or i == index)
    ]
    assert any(start <= caught.value.offset < start + size for start, size in spots), (caught.value, spots)
    assert f"image of rank {rank}: " in str(caught.value)
    return str(caught.value)


def descriptors(ring: Ring, rank: int, kind: Section, index: int = 0) -> np.ndarray:
    return np.frombuffer(section(ring.images[rank], kind, index), DESCRIPTOR)


def places(ring: Ring, rank: int, index: int = 0) -> dict[str, int]:
    """Return the first descriptor of some kinds in a ring: TX and RX."""
    tx, rx = descriptors(ring, rank, Section.TX, index), descriptors(ring, rank, Section.RX, index)
    block = ARCHES[ring.platform.arch].topsp
    signal = (rx["buf_ptr"] & ((1 << 47) - 1)) >= block
    reduces = np.flatnonzero(tx["meta_ctrl"] >> 25 == 1)
    return {
        "data": 0,
        "signal": int(np.argmax(signal)),
        "completion": int(np.flatnonzero(signal)[1]),
        "reduce": int(reduces[0]),
        "reduce_last": int(reduces[1]),
        "pad": int(np.argmax((rx["buf_ptr"] & 0xFFF) == 0x40)),
        "pad_tx": int(np.argmax((tx["buf_ptr"] & 0xFFF) == 0x40)),
    }


def write(ring: Ring, rank: int, kind: Section, index: int, at: int, **fields: int) -> bytes:
    """Change fields of a descriptor."""
    table_ = descriptors(ring, rank, kind, index)[at : at + 1].copy()
    for name, value in fields.items():
        table_[name] = value
    return edit(ring.images[rank], kind, index, 16 * at, table_.tobytes())
