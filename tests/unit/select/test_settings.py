"""What a user may change, and what would block."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.select import Settings


def test_defaults() -> None:
    """NEURON_RT_CC_CHANNEL_BUFFER_N is 8, NEURON_RT_CC_CHUNK_SIZE 2 MiB. Source: select §3.1."""
    assert (Settings().slots, Settings().chunk) == (8, 2 << 20)


@pytest.mark.parametrize("slots", [2, 1, 0, -1, 33])
def test_slots_are_refused_below_3_and_above_32(slots: int) -> None:
    """Slots: default 8, at most 32, refused below 3. Source: design §2 (16)."""
    with pytest.raises(UsageError, match=f"NEURON_RT_CC_CHANNEL_BUFFER_N={slots}: expected 3 to 32"):
        Settings(slots=slots)
    assert [Settings(slots=n).slots for n in (3, 32)] == [3, 32]


@pytest.mark.parametrize("chunk", [0, 32, 63, 100, -64])
def test_a_chunk_has_aligned_halves(chunk: int) -> None:
    """A ring chunk must be even; its halves are whole granules of 32 bytes."""
    with pytest.raises(UsageError, match=f"ring chunk {chunk}: expected a multiple of 64 bytes"):
        Settings(chunk=chunk)
    assert Settings(chunk=64).chunk == 64
