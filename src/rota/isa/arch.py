"""Where things are on a chip: address windows, doorbells, semaphore blocks and routing bits, per architecture.

Works on ints and on int64 arrays alike. What lies in a window is `descriptors`, `spad` and `image`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from rota.columns import I64
from rota.errors import UsageError
from rota.facts import CONVENTION, HIGH, Source

T = TypeVar("T", int, I64)

DIE_BIT: Final = 47
CHIP_SHIFT: Final = 48
CHIP_VALID_BIT: Final = 54
CHIP_BITS: Final = 6
CHIP_HIGH_SHIFT: Final = 55
LOCAL_MASK: Final = (1 << DIE_BIT) - 1
ROUTING_SOURCE: Final = Source("device", "8.2", HIGH)
CHIP_HIGH_SOURCE: Final = Source("design", "2 (21), chip field", CONVENTION)

QUEUES: Final = 16
ENGINES: Final = 16
TAIL_INCREMENT: Final = 0x38
QUEUE_SHIFT: Final = 12
RX_BANK: Final = 0x20000
DOORBELL_SOURCE: Final = Source("device-model", "2, memory map", CONVENTION)

PAD_LINE: Final = 0x40
PAD_LINE_SIZE: Final = 64
FEED_WORDS: Final = 0x80
FEED_WORD_COUNT: Final = 16
FIRST_BUFFER: Final = 0x1000
BUFFER_ALIGNMENT: Final = 128
MEMORY_SOURCE: Final = Source("device-model", "2, memory map", CONVENTION)


@dataclass(frozen=True, slots=True)
class Arch:
    """The address map of one NeuronCore generation.

    Attributes:
        arch_id: number by which firmware images are selected.
        cores: physical cores of a chip; core c lies on die c // cores_per_die.
        sps_per_core: TOP_SPs (stream processors) a core owns.
        hbm, registers, topsp: base of the window of core or TOP_SP 0; each next one is `1 << shift` further.
        sow: writes can be strongly ordered; without, a data memory barrier orders the signal.
        chips: chips an address can name; above 64 by two bits more.
    """

    name: str
    arch_id: int
    cores: int
    cores_per_die: int
    sps_per_core: int
    hbm: int
    hbm_shift: int
    registers: int
    registers_shift: int
    topsp: int
    topsp_shift: int
    sow: bool
    chips: int
    source: Source

    @property
    def sps(self) -> int:
        """TOP_SPs of a chip."""
        return self.cores * self.sps_per_core

    @property
    def sps_per_die(self) -> int:
        """TOP_SPs of a die."""
        return self.cores_per_die * self.sps_per_core

    @property
    def chip_bits_end(self) -> int:
        """The first address bit above the chip field; it and all above it are zero."""
        return CHIP_VALID_BIT + 1 + (self.chips - 1).bit_length() - CHIP_BITS

    def memory(self, core: T) -> T:
        """Return the address of the HBM window of a core."""
        return self._window(core, self.cores_per_die, self.hbm, self.hbm_shift)

    def doorbell(self, core: T, queue: T, *, receive: bool) -> T:
        """Return the address whose writes advance a queue's TX (for `receive`, RX) tail on every engine of a mask."""
        block = self._window(core, self.cores_per_die, self.registers, self.registers_shift)
        return block + ((queue + 1) << QUEUE_SHIFT) + TAIL_INCREMENT + (RX_BANK if receive else 0)

    def semaphores(self, sp: T) -> T:
        """Return the address of the semaphore block of a TOP_SP of the chip."""
        return self._window(sp, self.sps_per_die, self.topsp, self.topsp_shift)

    def _window(self, index: T, per_die: int, base: int, shift: int) -> T:
        address: T = base + ((index % per_die) << shift) + ((index // per_die) << DIE_BIT)
        return address


def route(address: T, chip: T, own_chip: T) -> T:
    """Return a local address as seen from another chip; the own chip is never spelled out.

    Source:
        device §8.2; the high bits of the chip, `CHIP_HIGH_SOURCE`.
    """
    other = (chip != own_chip) * 1
    low, high = chip % (1 << CHIP_BITS), chip >> CHIP_BITS
    routed: T = address + other * ((low << CHIP_SHIFT) + (1 << CHIP_VALID_BIT) + (high << CHIP_HIGH_SHIFT))
    return routed


def chip_of(address: T) -> T:
    """Return the chip that a routed address names."""
    low = address >> CHIP_SHIFT & (1 << CHIP_BITS) - 1
    chip: T = low + ((address >> CHIP_HIGH_SHIFT) << CHIP_BITS)
    return chip


ARCHES: Final[Mapping[str, Arch]] = {
    arch.name: arch
    for arch in (
        # name       id    cores die sp  hbm           shift registers     shift top_sp         shift sow  chips
        Arch("sunda",   0x05, 2, 2, 3, 0x10_0000_0000, 34, 0x60_0000_0000, 28, 0xFFFD0000000, 22, False, 64,
             Source("design", "2 (19), sunda", CONVENTION)),
        Arch("cayman",  0x0C, 8, 4, 2, 0x10_0000_0000, 34, 0x60_0000_0000, 28, 0x8280000000, 30, True, 64,
             Source("device-model", "2, memory map", CONVENTION)),
        Arch("mariana", 0x14, 8, 4, 2, 0x10_0000_0000, 34, 0x60_0000_0000, 28, 0x8280000000, 30, True, 256,
             Source("device-model", "2, memory map", CONVENTION)),
    )
}  # fmt: skip


def arch_of_id(arch_id: int) -> Arch:
    """Return the architecture with this image-selection number.

    Raises:
        UsageError: no architecture has it.
    """
    for arch in ARCHES.values():
        if arch.arch_id == arch_id:
            return arch
    known = ", ".join(f"{arch.arch_id:#x} ({arch.name})" for arch in ARCHES.values())
    raise UsageError(f"architecture {arch_id:#x}: expected one of {known}")
