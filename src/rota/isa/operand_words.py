"""Operand (META) descriptors: the scale of an FMA source, a clamp constant, a rounding seed, replication, gradient.

An operand moves no bytes; it stands in its packet before the data descriptors it is for. How a packet is put together
is in `packets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rota.errors import DecodeError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.descriptors import (
    DESCRIPTOR_SIZE,
    FIRST_PHASE,
    FMA_META_WORD,
    FMA_SELECTORS,
    OP_TYPE_MASK,
    OP_TYPE_SHIFT,
    RING_ID_MASK,
    RING_ID_SHIFT,
    SSMAE_OP_MASK,
    SSMAE_OP_SHIFT,
    MetaCtrl,
    TxFlag,
)
from rota.isa.enums import CceType
from rota.isa.layout import Bits, Buffer, Field, Layout
from rota.isa.op_words import WordKind, base_of

OPERAND_SOURCE: Final = Source("sdma", "5", HIGH)
MINMAX_SOURCE: Final = Source("sdma", "5", MEDIUM)
SEED_PLACE_SOURCE: Final = Source("sdma", "5, seed init", CONVENTION)
REPLICATION_PLACE_SOURCE: Final = Source("sdma", "7, combo", CONVENTION)

OPERAND_BIT: Final = int(MetaCtrl.WRITE_BARRIER)  # the same bit, in a META descriptor
CONSTANT_SELECTORS: Final = 0x02000000  # the clamp compares with the scale slot


class OperandKind(IntEnum):
    """What an operand descriptor is for; the numbers are ours."""

    FMA = 0
    MAX_CONSTANT = 1
    MIN_CONSTANT = 2
    SEED = 3
    REPLICATION = 4
    GRADIENT = 5


# The operation word of each kind, its changing bits 0.
TAG: Final[Mapping[OperandKind, int]] = {
    OperandKind.FMA: FMA_META_WORD,
    OperandKind.MAX_CONSTANT: base_of(WordKind.MAX) | OPERAND_BIT,
    OperandKind.MIN_CONSTANT: base_of(WordKind.MIN) | OPERAND_BIT,
    OperandKind.SEED: base_of(WordKind.ADD) | OPERAND_BIT,
    OperandKind.REPLICATION: base_of(WordKind.REPLICATION) | OPERAND_BIT,
    OperandKind.GRADIENT: base_of(WordKind.GCE) | OPERAND_BIT | 1,
}
CONSTANT_OF_CCE: Final[Mapping[CceType, OperandKind]] = {
    CceType.MAX: OperandKind.MAX_CONSTANT,
    CceType.MIN: OperandKind.MIN_CONSTANT,
}


class Selector(IntEnum):
    """Where an FMA input comes from. Source: sdma §5, high."""

    STORED_BUFFER = 0
    INPUT_BUFFER = 1
    SCALE = 2


def _flag(name: str, flag: TxFlag, meaning: str) -> Bits:
    return Bits(name, 0, "<u4", flag.bit_length() - 1, 1, meaning)


_LENGTH_WORD: Final = (
    _flag("meta", TxFlag.META, "always 1"),
    Bits("ring", 0, "<u4", RING_ID_SHIFT, RING_ID_MASK.bit_length(), "phase of the ring"),
    _flag("first", TxFlag.FIRST, "begins a packet"),
    _flag("last", TxFlag.LAST, "ends a packet"),
    _flag("dmb", TxFlag.DMB, "starts when all earlier ones have retired"),
    _flag("concat", TxFlag.CONCAT, "the next one belongs to the same packet"),
)
_SUB: Final = Bits("sub", 4, "<u4", 0, 3, "sub-operation, meaning unknown")
_OP_TYPE: Final = Bits("op_type", 4, "<u4", OP_TYPE_SHIFT, OP_TYPE_MASK.bit_length(), "operation within the block")
_BLOCK: Final = Bits("ssmae_op", 4, "<u4", SSMAE_OP_SHIFT, SSMAE_OP_MASK.bit_length(), "SdmaOp: engine block")
_OPERAND: Final = Bits("operand", 4, "<u4", OPERAND_BIT.bit_length() - 1, 1, "always 1; in FMA, a combination's member")
_MODE: Final = Bits("mode", 4, "<u4", 29, 3, "meaning unknown")
_LENGTH: Final = Bits("length", 8, "<u4", 0, 24, "semaphore or length")
_A: Final = Bits("a", 8, "<u4", 24, 2, "Selector: first factor")
_B: Final = Bits("b", 8, "<u4", 26, 2, "Selector: second factor")
_C: Final = Bits("c", 8, "<u4", 28, 2, "Selector: what is added")


def _layout(name: str, source: Source, *more: Field | Bits) -> Layout:
    fields = (*_LENGTH_WORD, _OP_TYPE, _BLOCK, _OPERAND, *more)
    return Layout(name, size=DESCRIPTOR_SIZE, source=source, fields=fields)


_CONSTANT: Final = (_LENGTH, _A, Field("constant", 12, "<u4", "bits of the constant"))
OPERANDS: Final[Mapping[OperandKind, Layout]] = {
    OperandKind.FMA: _layout(
        "fma_operand", OPERAND_SOURCE, _SUB, _MODE, _LENGTH, _A, _B, _C, Field("scale", 12, "<u4", "bits of a float32")
    ),
    OperandKind.MAX_CONSTANT: _layout("max_constant", MINMAX_SOURCE, *_CONSTANT),
    OperandKind.MIN_CONSTANT: _layout("min_constant", MINMAX_SOURCE, *_CONSTANT),
    OperandKind.SEED: _layout("seed_operand", SEED_PLACE_SOURCE, Field("seed", 12, "<u4", "seed")),
    OperandKind.REPLICATION: _layout("replication_operand", REPLICATION_PLACE_SOURCE, _MODE, _LENGTH),
    OperandKind.GRADIENT: _layout(
        "gradient_operand",
        MINMAX_SOURCE,
        Bits("one", 4, "<u4", 0, 1, "always 1"),
        _MODE,
        Field("word2", 8, "<u4", "meaning unknown"),
        Field("word3", 12, "<u4", "meaning unknown"),
    ),
}

# Names that the kind decides, or that say where in a packet the operand stands.
_FIXED: Final = frozenset({"meta", "op_type", "ssmae_op", "one"})
_POSITION: Final = frozenset({"ring", "first", "last", "dmb", "concat"})
MODES: Final[Mapping[OperandKind, int]] = {OperandKind.REPLICATION: 1}  # a replication operand without mode is none


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: its kind, and every field the kind has but those of its length word, as on the wire."""

    kind: OperandKind
    fields: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Position:
    """What the length word of an operand says; DMB stands on the first descriptor of a packet."""

    ring: int = FIRST_PHASE
    first: bool = False
    last: bool = False
    dmb: bool = False
    concat: bool = True


def fma_operand(scale: int, *, member: bool = False) -> Operand:
    """Return the operand `running = input * scale + running`; `scale` is the bits of a float32.

    Args:
        scale: the 32 bits.
        member: whether it belongs to a combination with several targets.
    """
    names = {"a": _A, "b": _B, "c": _C}
    selectors = {name: FMA_SELECTORS >> each.low & (1 << each.width) - 1 for name, each in names.items()}
    zero = {"sub": 0, "mode": 0, "length": 0}
    return Operand(OperandKind.FMA, {**zero, **selectors, "operand": int(member), "scale": scale})


def constant_operand(op: CceType, constant: int, *, size: int) -> Operand:
    """Return the operand that clamps a MAX or MIN with 32 constant bits; `size` is the bytes of one source.

    Raises:
        UsageError: the operation is neither MAX nor MIN.
    """
    kind = CONSTANT_OF_CCE.get(op)
    if kind is None:
        raise UsageError(f"clamp constant: expected MAX or MIN, got {op.name}")
    select = CONSTANT_SELECTORS >> _A.low
    return Operand(kind, {"operand": 1, "length": size, "a": select, "constant": constant})


def seed_operand(seed: int) -> Operand:
    """Return the operand that turns on stochastic rounding for its packet, with a 32-bit seed."""
    return Operand(OperandKind.SEED, {"operand": 1, "seed": seed})


def replication_operand(targets: int) -> Operand:
    """Return the operand that makes a packet write its result to `targets` places."""
    return Operand(OperandKind.REPLICATION, {"operand": 1, "mode": MODES[OperandKind.REPLICATION], "length": targets})


def encode_operand(operand: Operand, position: Position | None = None) -> bytes:
    """Return the 16 bytes of an operand descriptor; a field that is not given is 0.

    Raises:
        UsageError: a field does not fit, is decided by the kind, or the kind has none of that name.
    """
    fixed = (_FIXED | _POSITION) & operand.fields.keys()
    if fixed:
        raise UsageError(f"{operand.kind.name} operand: leave out {', '.join(sorted(fixed))}")
    if operand.kind is not OperandKind.FMA and operand.fields.get("operand", 0) != 1:
        raise UsageError(f"{operand.kind.name} operand: expected operand 1, got {operand.fields.get('operand', 0)}")
    if operand.kind in MODES and not operand.fields.get("mode"):
        raise UsageError(f"{operand.kind.name} operand: expected a mode from 1 to 7, got 0")
    at = position or Position()
    layout = OPERANDS[operand.kind]
    tag = layout.decode(bytes(4) + TAG[operand.kind].to_bytes(4, "little") + bytes(8))
    fixed_values = {name: tag[name] for name in _FIXED & tag.keys()}
    places = {"ring": at.ring, "first": int(at.first), "last": int(at.last), "dmb": int(at.dmb)}
    return layout.encode(**{**operand.fields, **fixed_values, **places, "concat": int(at.concat), "meta": 1})


def decode_operand(data: Buffer, *, offset: int = 0) -> tuple[Operand, Position]:
    """Return the operand in 16 bytes, and what its length word says; `encode_operand` gives the bytes back.

    Args:
        data: bytes that hold the descriptor.
        offset: where in `data` it begins.

    Raises:
        DecodeError: it is cut short, no operand descriptor, of no known kind, or has a bit nobody names.
    """
    record = bytes(memoryview(data)[offset : offset + DESCRIPTOR_SIZE])
    if offset < 0 or len(record) < DESCRIPTOR_SIZE:
        raise DecodeError(
            "operand descriptor", offset=offset, expected=f"{DESCRIPTOR_SIZE} bytes", got=f"{len(record)} bytes"
        )
    length, tag = int.from_bytes(record[:4], "little"), int.from_bytes(record[4:8], "little")
    if not length & TxFlag.META:
        raise DecodeError("operand descriptor", offset=offset, expected="the META flag", got=f"0x{length:08X}")
    kind = _kind(tag)
    if kind is None:
        raise DecodeError("operand word", offset=offset + 4, expected="a kind of operand", got=f"0x{tag:08X}")
    layout = OPERANDS[kind]
    stray = layout.reserved(record)
    if stray is not None:
        raise DecodeError(layout.name, offset=offset + stray, expected="reserved bits 0", got=f"0x{record[stray]:02X}")
    values = layout.decode(record)
    if kind in MODES and not values["mode"]:
        raise DecodeError(layout.name, offset=offset + 4, expected="a mode from 1 to 7", got=f"0x{tag:08X}")
    position = Position(values["ring"], *(bool(values[name]) for name in ("first", "last", "dmb", "concat")))
    left = {name: value for name, value in values.items() if name not in _FIXED | _POSITION}
    return Operand(kind, left), position


def _kind(tag: int) -> OperandKind | None:
    """Return the kind whose class, operand bit and constant bits a word has."""
    for kind, want in TAG.items():
        loose = OPERAND_BIT if kind is OperandKind.FMA else 0
        one = 1 if kind is OperandKind.GRADIENT else 0
        mask = SSMAE_OP_MASK << SSMAE_OP_SHIFT | OP_TYPE_MASK << OP_TYPE_SHIFT | OPERAND_BIT | one
        if (tag ^ want) & mask & ~loose == 0:
            return kind
    return None
