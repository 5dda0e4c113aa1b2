"""The loader's checks of a record, against isa §2.6."""

from __future__ import annotations

import pytest

from rota.errors import DecodeError, UsageError
from rota.isa.enums import UpdateMode, WaitMode
from rota.isa.validators import PREDICATES, Stage, check_instructions, first_failure

ARCHES = ("sunda", "cayman", "mariana", "maverick")


def inst(opcode: int = 0xA4, length: int = 0x10, wait: int = 0, update: int = 0) -> bytes:
    """Return a record with these bytes in the header and the events."""
    return bytes([opcode, length, 0, 0, wait, 0, update]).ljust(64, b"\0")


def test_order() -> None:
    """isa §2.6: opcode, length, wait and update mode, then the two together."""
    assert PREDICATES == (
        "has_valid_opcode",
        "has_valid_inst_len",
        "has_valid_wait_mode",
        "has_valid_update_mode",
        "valid_event_modes",
    )


@pytest.mark.parametrize(
    ("record", "predicate"),
    [
        (inst(0xC0, 0x40, 0x08, 0x06), "has_valid_opcode"),
        (inst(0xA4, 0x40, 0x08, 0x06), "has_valid_inst_len"),
        (inst(0xA4, 0x10, 0x08, 0x06), "has_valid_wait_mode"),
        (inst(0xA4, 0x10, 0x05, 0x06), "has_valid_update_mode"),
        (inst(0xA4, 0x10, 0x05, 0x15), "valid_event_modes"),
        (inst(0xFF), "has_valid_opcode"),
        (inst(0xA4, 0x10, 0xFF), "has_valid_wait_mode"),
        (inst(0xA4, 0x10, 0x00, 0xFF), "has_valid_update_mode"),
        (inst(), None),
    ],
)
def test_the_first_failure_wins(record: bytes, predicate: str | None) -> None:
    """isa §2.6: a record wrong in several places is refused for the first."""
    assert first_failure(record, arch="cayman") == predicate


def test_the_text() -> None:
    """isa §2.6: the sentence begins as the loader's, and says where and what beside it."""
    with pytest.raises(DecodeError) as caught:
        check_instructions(inst() + inst(length=0x40), arch="cayman")
    assert str(caught.value) == (
        "inst failed assertion check: 'has_valid_inst_len' at offset 65: expected 0x10, got 0x40"
    )


@pytest.mark.parametrize("arch", ARCHES)
def test_no_pseudo_instruction_survives_lowering(arch: str) -> None:
    """isa §3.1: after lowering no 0b110 opcode has an arm; a compiled stream may hold it."""
    assert first_failure(inst(0xC8), arch=arch) == "has_valid_opcode"
    assert first_failure(inst(0xC8), arch=arch, stage=Stage.COMPILED) is None
    check_instructions(inst(0xD9) + inst(0xDA, 3, 0xFF, 0xFF), arch=arch, stage=Stage.COMPILED)


@pytest.mark.parametrize("arch", ARCHES)
def test_opcodes_by_architecture(arch: str) -> None:
    """isa §1: the exchange 0xBF is refused on v2 alone."""
    assert (first_failure(inst(0xBF), arch=arch) is None) == (arch != "sunda")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("mode", list(WaitMode))
def test_wait_modes_by_architecture(arch: str, mode: WaitMode) -> None:
    """isa §1: v5 alone has offsets and UNORDERED, and no event modes; nobody has INVALID."""
    late, event = mode in {0x91, 0x92, 0x93, 0x94, 0x95, 0xFE}, mode in {0x06, 0x07, 0x0E, 0x0F}
    legal = mode != 0xFF and not (event if arch == "maverick" else late)
    assert (first_failure(inst(wait=mode), arch=arch) is None) == legal


@pytest.mark.parametrize("wait", [0, 1, 5, 6, 0x81])
@pytest.mark.parametrize("update", [mode for mode in UpdateMode if mode is not UpdateMode.INVALID])
def test_one_value_serves_one(wait: int, update: UpdateMode) -> None:
    """isa §2.6: an immediate wait and an ADD, SUB or WR of an immediate would share one value, and are refused."""
    shared = 1 <= wait <= 5 and "_IMM_" in update.name
    assert first_failure(inst(wait=wait, update=update), arch="cayman") == ("valid_event_modes" if shared else None)


def test_cut_and_misspelt() -> None:
    """A record cut short has its offset; an unknown architecture is a usage error."""
    with pytest.raises(DecodeError, match="truncated record at offset 64: expected 64 bytes, got 5 bytes"):
        check_instructions(inst() + bytes(5), arch="cayman")
    with pytest.raises(UsageError, match="architecture 'v3'"):
        check_instructions(inst(), arch="v3")
