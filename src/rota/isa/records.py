"""What all records of an instruction stream begin with, and the checks of it that every decoder shares.

What follows the header is in `words`, `pairs`, `transfers` and `carriers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from rota.errors import DecodeError
from rota.facts import HIGH, Source
from rota.isa.enums import UpdateMode, WaitMode
from rota.isa.layout import Buffer, Field, Layout
from rota.isa.opcodes import describe_opcode

Vocabulary = TypeVar("Vocabulary", bound=IntEnum)

WORD_SIZE: Final = 64
INST_WORD_LEN: Final = 0x10  # in four-byte words; the only value a loader takes

HEADER: Final = Layout("header", size=4, source=Source("isa", "2.1", HIGH), fields=(
    # name                   at  type   meaning
    Field("opcode",           0, "u1",  "Opcode"),
    Field("inst_word_len",    1, "u1",  "always 0x10: sixteen four-byte words"),
    Field("debug_cmd",        2, "u1",  "what the profiler notes"),
    Field("debug_hint",       3, "u1",  "trace hint"),
))  # fmt: skip

EVENTS: Final = Layout("events", size=8, source=Source("isa", "2.2", HIGH), fields=(
    # name                   at  type   meaning
    Field("wait_mode",        0, "u1",  "WaitMode: what must hold before issue"),
    Field("wait_idx",         1, "u1",  "semaphore or event waited for"),
    Field("update_mode",      2, "u1",  "UpdateMode: what happens when done"),
    Field("update_idx",       3, "u1",  "semaphore or event updated"),
    Field("semaphore_value",  4, "<u4", "one value for the wait and for the update"),
))  # fmt: skip

EVENTS_EXTENDED: Final = Layout("events_extended", size=12, source=Source("isa", "2.3", HIGH), fields=(
    # name                   at  type   meaning
    Field("wait_mode",        0, "u1",  "WaitMode: what must hold before issue"),
    Field("wait_idx",         1, "u1",  "semaphore or event waited for"),
    Field("update_mode",      2, "u1",  "UpdateMode: what happens when done"),
    Field("update_idx",       3, "u1",  "semaphore or event updated"),
    Field("wait_value",       4, "<u4", "value the wait compares with"),
    Field("update_value",     8, "<u4", "value the update takes"),
))  # fmt: skip

# The beginning of every record but an extension.
RECORD: Final = Layout("record", size=WORD_SIZE, source=Source("isa", "2", HIGH), fields=(*HEADER.at(0), *EVENTS.at(4)))

WAITS: Final = frozenset(int(mode) for mode in WaitMode) - {WaitMode.INVALID}
UPDATES: Final = frozenset(int(mode) for mode in UpdateMode) - {UpdateMode.INVALID}


@dataclass(frozen=True, slots=True)
class Events:
    """What a record waits for and what it updates, by one value; the eight bytes of EVENTS."""

    wait_mode: WaitMode = WaitMode.NONE
    wait_idx: int = 0
    update_mode: UpdateMode = UpdateMode.NONE
    update_idx: int = 0
    semaphore_value: int = 0

    def values(self) -> dict[str, int]:
        """Return the fields by the names of the layout."""
        return {
            "wait_mode": self.wait_mode,
            "wait_idx": self.wait_idx,
            "update_mode": self.update_mode,
            "update_idx": self.update_idx,
            "semaphore_value": self.semaphore_value,
        }


NO_EVENTS: Final = Events()


def events_of(values: dict[str, int]) -> Events:
    """Return the events of a decoded record whose header was checked."""
    return Events(
        WaitMode(values["wait_mode"]),
        values["wait_idx"],
        UpdateMode(values["update_mode"]),
        values["update_idx"],
        values["semaphore_value"],
    )


def check_header(data: Buffer, offset: int) -> None:
    """Refuse a record of another length than 0x10, or with unknown modes.

    Raises:
        DecodeError: at the byte that is wrong, the length first, then the wait, then the update mode.
    """
    values = RECORD.decode(data, offset)
    what = describe_opcode(values["opcode"])
    if values["inst_word_len"] != INST_WORD_LEN:
        got = f"0x{values['inst_word_len']:02X}"
        raise DecodeError(f"inst_word_len of {what}", offset=offset + 1, expected=f"0x{INST_WORD_LEN:02X}", got=got)
    for name, at, known in (("wait_mode", 4, WAITS), ("update_mode", 6, UPDATES)):
        if values[name] not in known:
            expected = "one of " + ", ".join(f"0x{mode:02X}" for mode in sorted(known))
            raise DecodeError(f"{name} of {what}", offset=offset + at, expected=expected, got=f"0x{values[name]:02X}")


def check_reserved(layout: Layout, data: Buffer, offset: int) -> None:
    """Refuse a record with a bit set that no field of its layout names.

    Raises:
        DecodeError: at the first such byte.
    """
    stray = layout.reserved(data[offset : offset + layout.size])
    if stray is not None:
        got = f"0x{data[offset + stray]:02X}"
        raise DecodeError(f"reserved byte of {layout.name}", offset=offset + stray, expected="0x00", got=got)


def member(kind: type[Vocabulary], value: int, what: str, offset: int) -> Vocabulary:
    """Return the member of a vocabulary with this value.

    Raises:
        DecodeError: there is none.
    """
    try:
        return kind(value)
    except ValueError:
        raise DecodeError(what, offset=offset, expected=f"a value of {kind.__name__}", got=f"0x{value:02X}") from None
