"""The checks a loader makes of each record of a lowered stream, in its order; the first that fails is the one named.

The walk of `words` reads streams as a compiler writes them; these are for what the runtime makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from rota.errors import DecodeError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import UpdateMode, WaitMode
from rota.isa.layout import Buffer
from rota.isa.opcodes import Opcode, describe_opcode, exists, is_pseudo
from rota.isa.records import INST_WORD_LEN, RECORD, UPDATES, WAITS, WORD_SIZE

SOURCE: Final = Source("isa", "2.6", HIGH)
NAMES_SOURCE: Final = Source("isa", "2.6", CONVENTION)  # two predicates are quoted, the others are named alike
MODES_SOURCE: Final = Source("isa", "2.6", CONVENTION)  # the rule of valid_event_modes


class Stage(Enum):
    """Whether pseudo instructions may still be there."""

    COMPILED = "compiled"
    LOWERED = "lowered"


# Wait modes that only some architectures have. Source: isa §1, high.
_EVENT_WAITS: Final = frozenset(
    {WaitMode.WAIT_FOR_EVT_SET, WaitMode.EVT_SET_THEN_CLEAR, WaitMode.EVT_CLEAR, WaitMode.EVT_CLEAR_THEN_SET}
)
_LATE_WAITS: Final = frozenset(mode for mode in WaitMode if 0x91 <= mode <= 0x95) | {WaitMode.UNORDERED}
_WAITS_OF: Final[Mapping[str, frozenset[int]]] = {
    "sunda": WAITS - _LATE_WAITS,
    "cayman": WAITS - _LATE_WAITS,
    "mariana": WAITS - _LATE_WAITS,
    "maverick": WAITS - _EVENT_WAITS,
}

# A wait and an update that both take the one value of the record. Source: isa §2.6, convention.
_IMMEDIATE_WAITS: Final = frozenset(mode for mode in WaitMode if 0x01 <= mode <= 0x05)
_IMMEDIATE_UPDATES: Final = frozenset(
    {
        UpdateMode.SEM_ADD_IMM_READ,
        UpdateMode.SEM_SUB_IMM_READ,
        UpdateMode.SEM_WR_IMM_READ,
        UpdateMode.SEM_ADD_IMM_COMPLETE,
        UpdateMode.SEM_SUB_IMM_COMPLETE,
        UpdateMode.SEM_WR_IMM_COMPLETE,
    }
)


def first_failure(record: Buffer, *, arch: str, stage: Stage = Stage.LOWERED) -> str | None:
    """Return the predicate that a 64-byte record fails first, or None when it passes all.

    An extension 0xDA has no header: of a compiled stream, only its opcode is looked at.

    Raises:
        UsageError: no architecture is called that.
        DecodeError: the record is shorter than 64 bytes.
    """
    values = RECORD.decode(record)
    for name, (holds, _) in _PREDICATES.items():
        if not holds(values, arch, stage):
            return name
        if values["opcode"] == Opcode.PSEUDO_EXTENSION:
            return None
    return None


def check_instructions(data: Buffer, *, arch: str, stage: Stage = Stage.LOWERED) -> None:
    """Refuse a stream with a record that fails a predicate; the first such record and its first failure are named.

    Raises:
        DecodeError: "inst failed assertion check: '<predicate>'" with place, expected and got; or a cut record.
        UsageError: no architecture is called that.
    """
    for offset in range(0, len(data), WORD_SIZE):
        record = memoryview(data)[offset : offset + WORD_SIZE]
        RECORD.decode(data, offset)
        failed = first_failure(record, arch=arch, stage=stage)
        if failed is not None:
            at, expected = _PREDICATES[failed][1]
            got = describe_opcode(record[0]) if at == 0 else f"0x{record[at]:02X}"
            raise DecodeError(
                f"inst failed assertion check: '{failed}'", offset=offset + at, expected=expected, got=got
            )


def _has_valid_opcode(values: dict[str, int], arch: str, stage: Stage) -> bool:
    return exists(values["opcode"], arch) and not (stage is Stage.LOWERED and is_pseudo(values["opcode"]))


def _has_valid_inst_len(values: dict[str, int], arch: str, stage: Stage) -> bool:  # noqa: ARG001 -- one signature
    return values["inst_word_len"] == INST_WORD_LEN


def _has_valid_wait_mode(values: dict[str, int], arch: str, stage: Stage) -> bool:  # noqa: ARG001
    return values["wait_mode"] in _WAITS_OF[arch]


def _has_valid_update_mode(values: dict[str, int], arch: str, stage: Stage) -> bool:  # noqa: ARG001
    return values["update_mode"] in UPDATES


def _valid_event_modes(values: dict[str, int], arch: str, stage: Stage) -> bool:  # noqa: ARG001
    return not (values["wait_mode"] in _IMMEDIATE_WAITS and values["update_mode"] in _IMMEDIATE_UPDATES)


_Predicate = Callable[[dict[str, int], str, Stage], bool]

# In the order they are tried: the predicate, the byte it is about, and what it wants there.
_PREDICATES: Final[Mapping[str, tuple[_Predicate, tuple[int, str]]]] = {
    "has_valid_opcode": (_has_valid_opcode, (0, "an instruction of the architecture that is left after lowering")),
    "has_valid_inst_len": (_has_valid_inst_len, (1, f"0x{INST_WORD_LEN:02X}")),
    "has_valid_wait_mode": (_has_valid_wait_mode, (4, "a wait mode of the architecture")),
    "has_valid_update_mode": (_has_valid_update_mode, (6, "an update mode")),
    "valid_event_modes": (_valid_event_modes, (6, "no immediate update beside an immediate wait: they share a value")),
}
PREDICATES: Final = tuple(_PREDICATES)
