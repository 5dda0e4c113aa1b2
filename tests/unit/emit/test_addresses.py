"""Where things are: memory, registers and semaphores of a rank, seen from the rank and from elsewhere.

Section numbers are those of device-model.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.images import TRN1, TRN2, Ring, section

from rota.isa.arch import ARCHES
from rota.isa.config import RING_CHANNEL
from rota.isa.descriptors import DESCRIPTOR
from rota.isa.image import BUFFER, BufferUse, Section

DIE = 1 << 47
VALID = 1 << 54


def rx(ring: Ring, rank: int) -> np.ndarray:
    return np.frombuffer(section(ring.images[rank], Section.RX), DESCRIPTOR)["buf_ptr"]


def tx(ring: Ring, rank: int) -> np.ndarray:
    return np.frombuffer(section(ring.images[rank], Section.TX), DESCRIPTOR)["buf_ptr"]


@pytest.mark.parametrize(
    ("rank", "memory", "queue", "top_sp"),
    [
        (0, 0x10_0000_0000, 0x60_0000_0000, 0x82_8000_0000),  # cores 0, 1
        (1, 0x18_0000_0000, 0x60_2000_0000, 0x83_8000_0000),  # cores 2, 3; TOP_SPs 4 to 7
        (2, 0x10_0000_0000 | DIE, 0x60_0000_0000 | DIE, 0x82_8000_0000 | DIE),  # die 1; TOP_SP 8 there
        (3, 0x18_0000_0000 | DIE, 0x60_2000_0000 | DIE, 0x83_8000_0000 | DIE),
    ],
)
def test_a_lane_of_lnc_2(rank: int, memory: int, queue: int, top_sp: int) -> None:
    """Cores 2l and 2l + 1, die l >> 1, registers of core 2l, TOP_SPs 4l to 4l + 3. Design §2 (18)."""
    ring = Ring(groups=((rank, 4 + rank),), orders=((0, 1),), folds=1)
    record = RING_CHANNEL.decode(section(ring.images[0], Section.CONF, 3))
    assert record["m2s_tail_ptr"] == queue + 0x1038
    assert record["s2m_tail_ptr"] == queue + 0x1038 + 0x20000
    assert record["recv_sema"] == top_sp + (3 << 30) + 0x1000 + 4 * 8
    assert int(tx(ring, 0)[0]) & ~0xFFFFF == memory


@pytest.mark.parametrize(
    ("rank", "memory", "queue", "top_sp"),
    [
        (0, 0x10_0000_0000, 0x60_0000_0000, 0xFFF_D000_0000),
        (1, 0x14_0000_0000, 0x60_1000_0000, 0xFFF_D0C0_0000),  # TOP_SPs 3 to 5
    ],
)
def test_a_core_of_trn1(rank: int, memory: int, queue: int, top_sp: int) -> None:
    """Core c: one HBM window, TOP_SPs 3c to 3c + 2 at a stride of 4 MiB, no die. Design §2 (19)."""
    ring = Ring(platform_name=TRN1, groups=((rank, 2 + rank),), orders=((0, 1),), folds=1)
    record = RING_CHANNEL.decode(section(ring.images[0], Section.CONF, 2))
    assert record["m2s_tail_ptr"] == queue + 0x1038
    assert record["s2m_tail_ptr"] == queue + 0x1038 + 0x20000
    assert record["recv_sema"] == top_sp + (2 << 22) + 0x1000 + 4 * 8
    assert int(tx(ring, 0)[0]) & ~0xFFFFF == memory
    assert len(section(ring.images[0], Section.CONF, 2)) == 0x3060


@pytest.mark.parametrize("platform", [TRN1, TRN2])
def test_addresses_of_another_chip_say_which(platform: str) -> None:
    """Bit 54 and the chip in 53:48 for another chip's memory and semaphores; nothing for the own chip. §2, routing."""
    per_chip = 2 if platform == TRN1 else 4
    ring = Ring(platform_name=platform, groups=((0, 1, 13 * per_chip),), orders=((0, 1, 2),), folds=1)
    chips = [0, 0, 13]
    for rank in range(3):
        behind, before = (rank + 1) % 3, (rank - 1) % 3
        seen = set((rx(ring, rank) >> np.uint64(48)).tolist())
        want = {0} | {chips[peer] | 1 << 6 for peer in (behind, before) if chips[peer] != chips[rank]}
        assert seen == want
        assert set((tx(ring, rank) >> np.uint64(48)).tolist()) == {0}  # a rank reads its own memory only
    assert (int(rx(ring, 1)[0]) & (0x7F << 48)) == VALID | 13 << 48


def test_no_address_uses_the_bits_above_54() -> None:
    """Bits 63:55 are 0 in a loaded image. §2."""
    ring = Ring(groups=((0, 63),), orders=((0, 1),))
    for rank in range(2):
        assert not (rx(ring, rank) >> np.uint64(55)).any()


def test_buffers_follow_each_other_at_multiples_of_128() -> None:
    """From 0x1000, in the order of the schedule, input and output marked. §2, inside a rank's window."""
    ring = Ring(count=77)
    raw = section(ring.images[0], Section.BUFFERS)
    found = [BUFFER.decode(raw, at) for at in range(0, len(raw), BUFFER.size)]
    offset = 0x1000
    for row, buffer in zip(found, ring.schedule.buffers, strict=True):
        assert (row["offset"], row["size"]) == (offset, buffer.size)
        assert row["name"].to_bytes(32, "little").rstrip(b"\0").decode() == buffer.name
        offset += -(-buffer.size // 128) * 128
    uses = [BufferUse(row["use"]) for row in found]
    assert uses == [BufferUse.INPUT, BufferUse.OUTPUT, BufferUse.INTERNAL, BufferUse.INTERNAL]


def test_in_place_one_buffer_is_both() -> None:
    ring = Ring(in_place=True)
    row = BUFFER.decode(section(ring.images[0], Section.BUFFERS))
    assert BufferUse(row["use"]) == BufferUse.INPUT | BufferUse.OUTPUT


def test_mariana_has_the_map_of_cayman() -> None:
    """One address map for both. §2."""
    for core in range(8):
        assert ARCHES["mariana"].memory(core) == ARCHES["cayman"].memory(core)
