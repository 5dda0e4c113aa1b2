"""Control registers, dispatch slots, host sequence and run states, against device §7.3, §9 and §10."""

from __future__ import annotations

from itertools import product

import pytest

from rota.errors import UnsupportedError, UsageError
from rota.isa.arch import ARCHES
from rota.isa.registers import (
    APERTURE,
    CORE_OFFSET,
    END_NOTIFICATIONS,
    REGISTERS,
    WRITES,
    Dispatch,
    HostStep,
    Notification,
    Register,
    RunState,
    register_address,
    register_offset,
)
from rota.isa.semaphores import BLOCK_SIZE
from rota.isa.spad import SPAD_OFFSET

GETTERS = [
    # register                   cayman   mariana  sunda
    (Register.HOST_TRIGGER,       0x615A0, 0x615A0, 0x60848),
    (Register.STOP_SIGNAL,        0x615C0, 0x615C0, 0x6084C),
    (Register.BASIC_BLOCK_SWITCH, 0x615E0, 0x615E0, 0x60850),
]  # fmt: skip


@pytest.mark.parametrize(("register", "cayman", "mariana", "sunda"), GETTERS)
def test_getters(register: Register, cayman: int, mariana: int, sunda: int) -> None:
    """device §9 and all-reduce §7: what the getter of each architecture returns."""
    assert [register_offset(arch, register, 0) for arch in ("cayman", "mariana", "sunda")] == [cayman, mariana, sunda]


def test_host_trigger_of_top_sp_0() -> None:
    """device §9: host trigger of TOP_SP 0 on cayman is 0x82802615A0."""
    assert register_address("cayman", Register.HOST_TRIGGER, 0) == 0x82802615A0


@pytest.mark.parametrize("top_sp", range(16))
def test_address_of_later_generations(top_sp: int) -> None:
    """device §9: (i < 8 ? 0x8280200000 : 0x808280200000) + ((i % 8) << 30) + getter."""
    base = 0x8280200000 if top_sp < 8 else 0x808280200000
    for arch, register in product(("cayman", "mariana"), Register):
        local = REGISTERS[register].local
        assert register_address(arch, register, top_sp) == base + ((top_sp % 8) << 30) + 0x60000 + local


@pytest.mark.parametrize("top_sp", range(6))
def test_address_of_sunda(top_sp: int) -> None:
    """device §9: 0xFFFD0200000 + (i << 22) + getter on arch 2."""
    for register, _, _, getter in GETTERS:
        assert register_address("sunda", register, top_sp) == 0xFFFD0200000 + (top_sp << 22) + getter


def test_local_offsets_and_values() -> None:
    """device §9: local offsets, 0x20 apart but for the trigger, and the value 1, a block number for the switch."""
    assert {register.name: row.local for register, row in REGISTERS.items()} == {
        "INIT_SIGNAL": 0x1540,
        "TSYNC_SIGNAL": 0x1560,
        "HOST_TRIGGER": 0x15A0,
        "STOP_SIGNAL": 0x15C0,
        "BASIC_BLOCK_SWITCH": 0x15E0,
    }
    assert [REGISTERS[register].value for register in Register] == [1, 1, 1, 1, None]
    assert (APERTURE, CORE_OFFSET) == (0x60000, 0x200000)


def test_dispatch_slots() -> None:
    """device §9: eleven slots back to back from 0x6F0; a trigger is written by 0x708 and its offset read by 0x710."""
    assert [int(slot) for slot in Dispatch] == [*range(0x6F0, 0x748, 8)]
    found = {register: (row.write, row.offset) for register, row in REGISTERS.items()}
    assert found == {
        Register.INIT_SIGNAL: (0x6F8, None),
        Register.TSYNC_SIGNAL: (0x700, None),
        Register.HOST_TRIGGER: (0x708, 0x710),
        Register.STOP_SIGNAL: (0x718, 0x720),
        Register.BASIC_BLOCK_SWITCH: (None, 0x728),
    }
    assert (Dispatch.RELEASE_RUN_STALL, Dispatch.READ_CONFIG_ADDRESS) == (0x6F0, 0x730)
    assert (Dispatch.DMA_INIT, Dispatch.PROGRAM_START) == (0x738, 0x740)


@pytest.mark.parametrize("register", [Register.INIT_SIGNAL, Register.TSYNC_SIGNAL])
def test_offsets_that_are_not_known(register: Register) -> None:
    """device §9: init and tsync of sunda are unknown; the refusal names the TOP_SP."""
    with pytest.raises(UnsupportedError, match=f"{register.value} of TOP_SP 4: its offset on sunda is not known"):
        register_address("sunda", register, 4)


@pytest.mark.parametrize("register", Register)
def test_an_unknown_architecture(register: Register) -> None:
    """device §9: unknown architecture on stop is a failure with the TOP_SP index; so on all others."""
    with pytest.raises(UnsupportedError, match="TOP_SP 3: unknown architecture 'v9'") as caught:
        register_address("v9", register, 3)
    assert caught.value.source is not None


@pytest.mark.parametrize(("arch", "top_sp"), [("sunda", 6), ("cayman", 16), ("mariana", -1)])
def test_a_top_sp_the_chip_has_not(arch: str, top_sp: int) -> None:
    """device §8.2: 6, 16 and 16 TOP_SPs."""
    with pytest.raises(UsageError, match=f"TOP_SP {top_sp}: {arch} has TOP_SPs 0 to"):
        register_address(arch, Register.STOP_SIGNAL, top_sp)


@pytest.mark.parametrize("arch", ARCHES)
def test_registers_lie_apart(arch: str) -> None:
    """No two registers of a chip share an address; none lies among semaphores or scratchpad, nor in the next block."""
    chip = ARCHES[arch]
    registers = [register for register in Register if arch != "sunda" or REGISTERS[register].sunda is not None]
    places = [(sp, register_address(arch, each, sp)) for sp in range(chip.sps) for each in registers]
    assert len({address for _, address in places}) == len(places)
    offsets = {address - chip.semaphores(sp) for sp, address in places}
    assert all(BLOCK_SIZE <= SPAD_OFFSET < CORE_OFFSET < offset < 0x300000 for offset in offsets)


def test_host_sequence() -> None:
    """device §10: CONFIGURE, TSYNC, PREPARE, START, STEP, STOP, and what each writes."""
    assert [step.name for step in HostStep] == ["CONFIGURE", "TSYNC", "PREPARE", "START", "STEP", "STOP"]
    assert [WRITES[step] for step in HostStep] == [
        Register.INIT_SIGNAL,
        Register.TSYNC_SIGNAL,
        None,
        Register.HOST_TRIGGER,
        Register.BASIC_BLOCK_SWITCH,
        Register.STOP_SIGNAL,
    ]


def test_run_states() -> None:
    """device §7.3: the proposed states, in the order of their numbers."""
    names = "IDLE WAIT_PREV FETCH WAIT_DATA WAIT_CREDIT MOVE COMPLETE CHAIN"
    assert " ".join(RunState(number).name for number in range(8)) == names


def test_notifications() -> None:
    """device §10: ten types, 9 for the status of a collective; one end marker."""
    names = "TRACE EVENT ERROR INFER_STATUS DMA THROTTLE TOPSP_TRACE TOPSP_EVENT TOPSP_ERROR TOPSP_CC_STATUS"
    assert " ".join(Notification(number).name for number in range(10)) == names
    assert END_NOTIFICATIONS == 1
