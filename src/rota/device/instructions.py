"""The shapes of the 64-byte records of an instruction stream, and how waits, updates and operands read.

A record whose layout is known shows every field; any other shows header, events and its body as bytes. The layouts
are those of `isa`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from rota.device.shapes import NONE, Column, Numbers, Shape, number, plain_column, vocabulary
from rota.facts import CONVENTION, Source
from rota.isa.carriers import CARRIERS, BranchTarget, PseudoOpcode
from rota.isa.dtypes import Dtype, short_name
from rota.isa.enums import AluOp, Chaining, CollectiveType, UpdateMode, WaitMode
from rota.isa.layout import Bits, Field, Layout
from rota.isa.opcodes import KNOWN_OPCODES, MNEMONICS, Opcode, runtime_name
from rota.isa.operands import MARKER_MASK, MAX_PRIORITY, Addr8Form
from rota.isa.pairs import Dimension
from rota.isa.records import INST_WORD_LEN, RECORD, WORD_SIZE
from rota.isa.transfers import LncSize
from rota.isa.words import ALL_REDUCE_WORD, COLLECTIVE_WORD

SOURCE: Final = Source("device-model", "text form", CONVENTION)

# The records whose every field is known.
WORD_LAYOUTS: Final[Mapping[int, Layout]] = {
    **{int(opcode): layout for opcode, layout in CARRIERS.items()},
    Opcode.PSEUDO_TRIGGER_ALL_REDUCE: ALL_REDUCE_WORD,
    Opcode.PSEUDO_TRIGGER_COLLECTIVE: COLLECTIVE_WORD,
}
# Those a stream is refused for when a value in them means nothing, or a reserved bit is set.
STRICT: Final = frozenset(
    {
        Opcode.PSEUDO_TRIGGER_ALL_REDUCE,
        Opcode.PSEUDO_TRIGGER_COLLECTIVE,
        Opcode.PSEUDO_TRIGGER_COLLECTIVE2,
        Opcode.PSEUDO_EXTENSION,
        Opcode.PSEUDO_SEND_RECV,
        Opcode.SB2SB_COLLECTIVE,
    }
)
BODY: Final = 0x100  # added to an opcode: the key of its shape that shows the body as bytes
_BODY: Final = 12  # behind header and events
_OTHER_WORD: Final = Layout("other_record", size=WORD_SIZE, source=SOURCE, fields=(
    *RECORD.fields,
    Field("body", _BODY, f"V{WORD_SIZE - _BODY}", "what the operation needs"),
))  # fmt: skip
_EXTENSION: Final = Layout("extension_record", size=WORD_SIZE, source=SOURCE, fields=(
    Field("opcode", 0, "u1", "Opcode"),
    Field("body", 1, f"V{WORD_SIZE - 1}", "the second half of the record before"),
))  # fmt: skip

_COMPARE: Final[Mapping[WaitMode, str]] = {
    WaitMode.WAIT_FOR_SEM_EQ_IMM: "==",
    WaitMode.WAIT_FOR_SEM_LT_IMM: "<",
    WaitMode.WAIT_FOR_SEM_LE_IMM: "<=",
    WaitMode.WAIT_FOR_SEM_GT_IMM: ">",
    WaitMode.WAIT_FOR_SEM_GE_IMM: ">=",
}
_CHANGE: Final[Mapping[UpdateMode, str]] = {
    UpdateMode.SEM_INC_COMPLETE: "++",
    UpdateMode.SEM_DEC_COMPLETE: "--",
    UpdateMode.SEM_INC_READ: "++@read",
    UpdateMode.SEM_DEC_READ: "--@read",
}
_CHANGE_BY: Final[Mapping[UpdateMode, tuple[str, str]]] = {
    UpdateMode.SEM_ADD_IMM_COMPLETE: ("+=", ""),
    UpdateMode.SEM_SUB_IMM_COMPLETE: ("-=", ""),
    UpdateMode.SEM_WR_IMM_COMPLETE: ("=", ""),
    UpdateMode.SEM_ADD_IMM_READ: ("+=", "@read"),
    UpdateMode.SEM_SUB_IMM_READ: ("-=", "@read"),
    UpdateMode.SEM_WR_IMM_READ: ("=", "@read"),
}
_WAIT: Final = re.compile(r"S\[([0-9]+)\](==|<=|>=|<|>)(\w+)", re.ASCII)
_UPDATE: Final = re.compile(r"S\[([0-9]+)\](\+\+|--|\+=|-=|=)(\w*)(@read)?", re.ASCII)
_MODE: Final = re.compile(r"(\w+)\[([0-9]+)\]", re.ASCII)


def _mode(names: Mapping[int, str], mode: int, index: int) -> str:
    return f"{names.get(mode, f'0x{mode:02x}')}[{index}]" if mode or index else NONE


def _read_mode(names: Mapping[int, str], text: str, what: str) -> Numbers:
    if text == NONE:
        return {f"{what}_mode": 0, f"{what}_idx": 0}
    match = _MODE.fullmatch(text)
    if match is None:
        raise ValueError(f"expected S[1]>0, S[1]+=1, MODE[1] or {NONE}")
    found = [mode for mode, name in names.items() if name.casefold() == match[1].casefold()]
    return {f"{what}_mode": found[0] if found else int(match[1], 0), f"{what}_idx": int(match[2])}


_WAITS: Final = {int(mode): mode.name for mode in WaitMode}
_UPDATES: Final = {int(mode): mode.name for mode in UpdateMode}
_COMPARES: Final = {sign: int(mode) for mode, sign in _COMPARE.items()}
_CHANGES: Final = {sign: int(mode) for mode, sign in _CHANGE.items()}
_CHANGES_BY: Final = {signs: int(mode) for mode, signs in _CHANGE_BY.items()}
_SIGN_OF: Final = {int(mode): sign for mode, sign in _COMPARE.items()}
_CHANGE_OF: Final = {int(mode): sign for mode, sign in _CHANGE.items()}
_CHANGE_BY_OF: Final = {int(mode): signs for mode, signs in _CHANGE_BY.items()}


def show_wait(mode: int, index: int, value: int) -> str:
    """Return `S[10]>0` for a comparison with the value of the record, else the mode's name and the index."""
    sign = _SIGN_OF.get(mode)
    return _mode(_WAITS, mode, index) if sign is None else f"S[{index}]{sign}{value}"


def read_wait(text: str) -> Numbers:
    """Return the numbers of a wait; the inverse of `show_wait`."""
    match = _WAIT.fullmatch(text)
    if match is None:
        return _read_mode(_WAITS, text, "wait")
    return {"wait_mode": _COMPARES[match[2]], "wait_idx": int(match[1]), "semaphore_value": int(match[3], 0)}


def show_update(mode: int, index: int, value: int) -> str:
    """Return `S[22]++`, `S[22]+=5`, `S[22]=5`, with `@read` where it happens after the reads; else the mode's name."""
    if mode in _CHANGE_OF:
        return f"S[{index}]{_CHANGE_OF[mode]}"
    if mode in _CHANGE_BY_OF:
        sign, when = _CHANGE_BY_OF[mode]
        return f"S[{index}]{sign}{value}{when}"
    return _mode(_UPDATES, mode, index)


def read_update(text: str) -> Numbers:
    """Return the numbers of an update; the inverse of `show_update`."""
    match = _UPDATE.fullmatch(text)
    if match is None:
        return _read_mode(_UPDATES, text, "update")
    index, sign, value, when = int(match[1]), match[2], match[3], match[4] or ""
    if sign + when in _CHANGES and not value:
        return {"update_mode": _CHANGES[sign + when], "update_idx": index}
    return {"update_mode": _CHANGES_BY[sign, when], "update_idx": index, "semaphore_value": int(value, 0)}


_EVENT_COLUMNS: Final = (
    Column(
        "wait",
        ("wait_mode", "wait_idx", "semaphore_value"),
        show_wait,
        read_wait,
        known=(frozenset(_WAITS) - {WaitMode.INVALID}).__contains__,
    ),
    Column(
        "update",
        ("update_mode", "update_idx", "semaphore_value"),
        show_update,
        read_update,
        known=(frozenset(_UPDATES) - {UpdateMode.INVALID}).__contains__,
    ),
    number("value", of="semaphore_value"),
    number("debug_cmd"),
    number("debug_hint"),
)
_LENGTH_COLUMN: Final = Column(
    "inst_word_len",
    ("inst_word_len",),
    lambda value: f"0x{value:02x}",
    lambda text: {"inst_word_len": int(text, 0)},
    default=(INST_WORD_LEN,),
    known=frozenset({INST_WORD_LEN}).__contains__,
)

# Vocabularies a field's meaning begins with.
_VOCABULARIES: Final[Mapping[str, Mapping[int, str]]] = {
    "Dtype": {int(dtype): short_name(dtype) for dtype in Dtype},
    "CollectiveType": {int(kind): kind.name for kind in CollectiveType if kind is not CollectiveType.INVALID},
    **{
        kind.__name__: {int(each): each.name for each in kind}
        for kind in (AluOp, BranchTarget, Chaining, Dimension, LncSize, PseudoOpcode, UpdateMode, WaitMode)
    },
}
# What a field is called in text where its own name says less or more.
_TEXT_NAMES: Final[Mapping[str, str]] = {
    "ctype": "kind",
    "group_id": "group",
    "input_id": "input",
    "output_id": "output",
    "num_elements": "elements",
}
_LIMITED: Final[Mapping[str, frozenset[int]]] = {
    "priority_class": frozenset(range(MAX_PRIORITY + 1)),
    "is_send": frozenset({0, 1}),
}
_VARIABLE: Final = re.compile(r"var\[([0-9]+)\]", re.ASCII)
_MARKER_SHIFT: Final = 56
_VARIABLE_BITS: Final = 32


def show_address(value: int) -> str:
    """Return `var[5]` for the address that is a variable, else the eight bytes as a number."""
    plain = value >> _VARIABLE_BITS == Addr8Form.VARIABLE << _MARKER_SHIFT - _VARIABLE_BITS
    return f"var[{value & (1 << _VARIABLE_BITS) - 1}]" if plain else f"0x{value:016x}"


def read_address(text: str) -> int:
    """Return the eight bytes; the inverse of `show_address`."""
    match = _VARIABLE.fullmatch(text)
    if match is None:
        return int(text, 0)
    if int(match[1]) >> _VARIABLE_BITS:
        raise ValueError(f"a variable's number has {_VARIABLE_BITS} bits")
    return Addr8Form.VARIABLE << _MARKER_SHIFT | int(match[1])


def _is_address(value: int) -> bool:
    """Say whether an address is one: a variable has nothing beside its number."""
    marked = value >> _MARKER_SHIFT & MARKER_MASK == Addr8Form.VARIABLE
    return not marked or value >> _VARIABLE_BITS == Addr8Form.VARIABLE << _MARKER_SHIFT - _VARIABLE_BITS


def _word_column(each: Field | Bits, *, strict: bool) -> Column:
    """Return the column of a field that is the operation's own."""
    name, of = _TEXT_NAMES.get(each.name, each.name), each.name
    word = re.split("[ :,]", each.meaning)[0]
    anything: Callable[[int], bool] | None = None
    if word in _VOCABULARIES:
        names = _VOCABULARIES[word]
        return vocabulary(name, names, of=of, known=names.__contains__ if strict else anything)
    if word == "PSEUDO_ADDR8":
        return Column(name, (of,), show_address, lambda text: {of: read_address(text)}, known=_is_address)
    if word == "ADDR4":
        return number(name, of=of, hexadecimal=8)
    if of in _LIMITED:
        return number(name, of=of, known=_LIMITED[of].__contains__ if strict else anything)
    return number(name, of=of) if name != of else plain_column(each)


def _shape(opcode: int, layout: Layout, word: str) -> Shape:
    """Return the shape of an instruction: what it asks for, then waits, updates and the profiler's bytes."""
    common = {each.name for each in RECORD.fields} if layout.fields[1].name == "inst_word_len" else {"opcode"}
    own = [_word_column(each, strict=opcode in STRICT) for each in layout.fields if each.name not in common]
    own.sort(key=lambda column: column.name != "kind")
    late = (*_EVENT_COLUMNS, _LENGTH_COLUMN) if len(common) > 1 else ()
    return Shape(word, layout, (*own, *late), {"opcode": opcode})


def _words() -> Mapping[int, str]:
    """Return what a line of each opcode begins with: the runtime's name, with the opcode where two have one name."""
    out: dict[int, str] = {}
    for opcode in sorted(KNOWN_OPCODES):
        name = runtime_name(opcode)
        out[opcode] = f"{name}.{opcode:02X}" if name in out.values() else name
    return out


def _shapes() -> dict[int, Shape]:
    out: dict[int, Shape] = {}
    for opcode, word in _words().items():
        body = _EXTENSION if opcode == Opcode.PSEUDO_EXTENSION else _OTHER_WORD
        if opcode in WORD_LAYOUTS:
            out[opcode] = _shape(opcode, WORD_LAYOUTS[opcode], word)
            out[opcode + BODY] = _shape(opcode, body, f"{word}.body")
        else:
            out[opcode] = _shape(opcode, body, word)
    return out


# By opcode; where the fields are known, by opcode + BODY for the record as bytes.
WORDS: Final[Mapping[int, Shape]] = _shapes()
# By what a text may call them: the word a listing prints, or the opcode's full name in either spelling.
WORDS_BY_NAME: Final[Mapping[str, Shape]] = {
    **{name.casefold(): WORDS[opcode] for opcode, name in MNEMONICS.items() if opcode in WORDS},
    **{opcode.name.casefold(): WORDS[opcode] for opcode in Opcode if opcode in WORDS},
    **{shape.word.casefold(): shape for shape in WORDS.values()},
}
