"""The control registers of a stream processor: offsets per architecture, dispatch slots, and what the host writes when.

Also the states a channel goes through between those writes, and the notifications that come back. Where the block of a
given stream processor lies is in `arch`, its semaphores are in `semaphores`. Nothing here writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.arch import ARCHES

BLOCK_SOURCE: Final = Source("device", "8.2", HIGH)
CORE_OFFSET: Final = 0x200000  # the core and its local registers, behind the semaphores and the memory of a processor

OFFSETS_SOURCE: Final = Source("device", "9", HIGH)
APERTURE: Final = 0x60000  # what a getter adds to the local offset of a register


class Register(Enum):
    """A control register the host writes. Source: device §9, high."""

    INIT_SIGNAL = "init_signal"
    TSYNC_SIGNAL = "tsync_signal"
    HOST_TRIGGER = "host_trigger"
    STOP_SIGNAL = "stop_signal"
    BASIC_BLOCK_SWITCH = "basic_block_switch"


class Dispatch(IntEnum):
    """A slot of the hardware layer's table of functions, as its byte offset. Source: device §9, high.

    An empty slot, and a table for no architecture, are assertions of the runtime.
    """

    RELEASE_RUN_STALL = 0x6F0
    SET_INIT_SIGNAL = 0x6F8
    SET_TSYNC_SIGNAL = 0x700
    SET_HOST_TRIGGER = 0x708
    GET_HOST_TRIGGER = 0x710
    SET_STOP_SIGNAL = 0x718
    GET_STOP_SIGNAL = 0x720
    GET_BASIC_BLOCK_SWITCH = 0x728
    READ_CONFIG_ADDRESS = 0x730
    DMA_INIT = 0x738
    PROGRAM_START = 0x740


@dataclass(frozen=True, slots=True)
class ControlRegister:
    """One control register.

    Attributes:
        local: offset among the local registers; the getter of cayman and mariana adds `APERTURE`.
        sunda: what the getter of sunda returns; None where it is not known.
        value: what is written; None for the number of a basic block.
        write: the slot that writes it, None without.
        offset: the slot that returns its offset, None without.
    """

    local: int
    sunda: int | None
    value: int | None
    write: Dispatch | None
    offset: Dispatch | None
    source: Source


_SWITCH: Final = Source("device", "9, basic_block_switch of sunda", CONVENTION)
REGISTERS: Final[Mapping[Register, ControlRegister]] = {
    # register                                        local   sunda    value  set                        get
    Register.INIT_SIGNAL:        ControlRegister(0x1540, None,    1,     Dispatch.SET_INIT_SIGNAL,  None,
                                                 OFFSETS_SOURCE),
    Register.TSYNC_SIGNAL:       ControlRegister(0x1560, None,    1,     Dispatch.SET_TSYNC_SIGNAL, None,
                                                 OFFSETS_SOURCE),
    Register.HOST_TRIGGER:       ControlRegister(0x15A0, 0x60848, 1,     Dispatch.SET_HOST_TRIGGER,
                                                 Dispatch.GET_HOST_TRIGGER, OFFSETS_SOURCE),
    Register.STOP_SIGNAL:        ControlRegister(0x15C0, 0x6084C, 1,     Dispatch.SET_STOP_SIGNAL,
                                                 Dispatch.GET_STOP_SIGNAL, OFFSETS_SOURCE),
    Register.BASIC_BLOCK_SWITCH: ControlRegister(0x15E0, 0x60850, None,  None,
                                                 Dispatch.GET_BASIC_BLOCK_SWITCH, _SWITCH),
}  # fmt: skip


def register_offset(arch: str, register: Register, top_sp: int) -> int:
    """Return what the architecture's getter of a register returns, from the beginning of the core's registers.

    Args:
        top_sp: whom a refusal names.

    Raises:
        UnsupportedError: the architecture is unknown, or its offset of this register is.
    """
    row = REGISTERS[register]
    if arch not in ARCHES:
        raise UnsupportedError(
            f"{register.value} of TOP_SP {top_sp}: unknown architecture '{arch}'; expected one of {', '.join(ARCHES)}",
            source=OFFSETS_SOURCE,
        )
    if arch != "sunda":
        return APERTURE + row.local
    if row.sunda is None:
        raise UnsupportedError(
            f"{register.value} of TOP_SP {top_sp}: its offset on {arch} is not known", source=OFFSETS_SOURCE
        )
    return row.sunda


def register_address(arch: str, register: Register, top_sp: int) -> int:
    """Return the address of a control register of a TOP_SP of the chip, as the chip itself sees it.

    Args:
        top_sp: number on the chip; above 7 it is on the second die.

    Raises:
        UnsupportedError: the architecture is unknown, or its offset of this register is.
        UsageError: the chip has no such TOP_SP.

    Source:
        device §9, high.
    """
    offset = register_offset(arch, register, top_sp)
    chip = ARCHES[arch]
    if not 0 <= top_sp < chip.sps:
        raise UsageError(f"TOP_SP {top_sp}: {arch} has TOP_SPs 0 to {chip.sps - 1}")
    return chip.semaphores(top_sp) + CORE_OFFSET + offset


class HostStep(Enum):
    """What the host does with an executable, in this order; STEP once a function call. Source: device §10, high."""

    CONFIGURE = "read the configuration address, load the initial image"
    TSYNC = "synchronise the time"
    PREPARE = "compare the communicator's signature, bind the rings, enqueue one network and one barrier proxy task"
    START = "load the control SPAD, the slot SPAD and the execution image"
    STEP = "wait for the acknowledgement, switch the basic block"
    STOP = "stop"


# What each step ends with writing; PREPARE writes nothing.
WRITES_SOURCE: Final = Source("device", "10", HIGH)
WRITES: Final[Mapping[HostStep, Register | None]] = {
    HostStep.CONFIGURE: Register.INIT_SIGNAL,
    HostStep.TSYNC: Register.TSYNC_SIGNAL,
    HostStep.PREPARE: None,
    HostStep.START: Register.HOST_TRIGGER,
    HostStep.STEP: Register.BASIC_BLOCK_SWITCH,
    HostStep.STOP: Register.STOP_SIGNAL,
}


class RunState(IntEnum):
    """Where a ring channel stands, `run_state` of its live row. Source: device §7.3, convention."""

    IDLE = 0
    WAIT_PREV = 1
    FETCH = 2
    WAIT_DATA = 3
    WAIT_CREDIT = 4
    MOVE = 5
    COMPLETE = 6
    CHAIN = 7


class Notification(IntEnum):
    """What a record of a notification queue reports. Source: device §10, high."""

    TRACE = 0
    EVENT = 1
    ERROR = 2
    INFER_STATUS = 3
    DMA = 4
    THROTTLE = 5
    TOPSP_TRACE = 6
    TOPSP_EVENT = 7
    TOPSP_ERROR = 8
    TOPSP_CC_STATUS = 9


NOTIFICATIONS_SOURCE: Final = Source("device", "10, counting rule", MEDIUM)
END_NOTIFICATIONS: Final = 1  # each TOP_SP's own, behind one for each operation it has a part in
