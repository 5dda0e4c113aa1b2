"""The operation word of a data descriptor, every class of it: copy, reduces, extension, compression, reshaping.

One rule names the class; one table a class names the bits. The words of operand descriptors are in `operand_words`,
the short form for the reduce words of a collective in `descriptors.cce_word`. Values are kept as they are on the
wire: what a type nibble or a `sub` means is not this file's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from rota.columns import I32, U32
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Source
from rota.isa.descriptors import (
    ACCUMULATE_SHIFT,
    FMA_INPUT_SHIFT,
    OP_TYPE_MASK,
    OP_TYPE_SHIFT,
    SSMAE_OP_MASK,
    SSMAE_OP_SHIFT,
    TRANSFER_SHIFT,
    CceCtrl,
    MetaCtrl,
    limits_of,
)
from rota.isa.dtypes import Dtype
from rota.isa.engines import DIFFERENCES_SOURCE, features_of
from rota.isa.enums import CceType, SdmaOp
from rota.isa.layout import Bits, Layout

WORD_SIZE: Final = 4
RULE_SOURCE: Final = Source("sdma", "3.1", HIGH)
COPY_SOURCE: Final = Source("sdma", "3", HIGH)
BITS_SOURCE: Final = Source("sdma", "4", LOW)  # the places are certain, the names are not
EITHER_BARRIER_SOURCE: Final = Source("sdma", "8", CONVENTION)


class WordKind(IntEnum):
    """The classes of operation words; the numbers are ours."""

    COPY = 0
    ADD = 1
    FMA = 2
    MAX = 3
    MIN = 4
    EXT = 5
    GCE = 6
    SPLIT = 7
    TRANSPOSE = 8
    REPLICATION = 9


# Engine block and operation type of each class.
CLASS: Final[Mapping[WordKind, tuple[SdmaOp, int]]] = {
    WordKind.COPY: (SdmaOp.CME, 0),
    WordKind.ADD: (SdmaOp.CCE, CceType.ADD),
    WordKind.FMA: (SdmaOp.CCE, CceType.FMA),
    WordKind.MAX: (SdmaOp.CCE, CceType.MAX),
    WordKind.MIN: (SdmaOp.CCE, CceType.MIN),
    WordKind.EXT: (SdmaOp.CCE, CceType.EXT),
    WordKind.GCE: (SdmaOp.CCE, CceType.GCE),
    WordKind.SPLIT: (SdmaOp.DRE, 0),
    WordKind.TRANSPOSE: (SdmaOp.DRE, 1),
    WordKind.REPLICATION: (SdmaOp.DRE, 2),
}
_KIND: Final = {pair: kind for kind, pair in CLASS.items()}
KIND_OF_CCE: Final[Mapping[CceType, WordKind]] = {each: _KIND[SdmaOp.CCE, each] for each in CceType}


def _bit(name: str, flag: int, meaning: str) -> Bits:
    """Return the one-bit field of a flag."""
    return Bits(name, 0, "<u4", flag.bit_length() - 1, 1, meaning)


def _part(name: str, low: int, width: int, meaning: str) -> Bits:
    return Bits(name, 0, "<u4", low, width, meaning)


_FRAME: Final = (
    _part("op_type",  OP_TYPE_SHIFT,  OP_TYPE_MASK.bit_length(),  "operation within the block"),
    _part("ssmae_op", SSMAE_OP_SHIFT, SSMAE_OP_MASK.bit_length(), "SdmaOp: engine block"),
    _bit("write_barrier",     MetaCtrl.WRITE_BARRIER,     "later writes of the ring wait"),
    _bit("notification_mask", MetaCtrl.NOTIFICATION_MASK, "v4: no notification"),
    _bit("chain",             MetaCtrl.CHAIN,             "more descriptors of a combination follow"),
)  # fmt: skip
_SUB: Final = _part("sub", 0, 3, "sub-operation, meaning unknown")
_INPUT: Final = _part("input_dtype", FMA_INPUT_SHIFT, 4, "Dtype of a source")
_MIDDLE: Final = _part("middle_dtype", TRANSFER_SHIFT, 4, "Dtype: of a source, of the scale, or of a clamped result")
_RESULT: Final = _part("result_dtype", ACCUMULATE_SHIFT, 4, "Dtype of the running value and the result")
_FLAG_4: Final = _part("flag_4", 4, 1, "meaning unknown")
_CCE_BARRIER: Final = _bit("cce_barrier", CceCtrl.WRITE_BARRIER, "later writes of the ring wait")
_LAST: Final = _bit("last", CceCtrl.LAST, "last source: write the result")

_MINMAX: Final = (
    _SUB,
    _bit("last_4", CceCtrl.MINMAX_LAST, "last source, the other reading"),
    _bit("use_constant", CceCtrl.USE_CONSTANT, "clamp with the constant of the operand"),
    _CCE_BARRIER, _LAST, _INPUT, _MIDDLE, _RESULT,
)  # fmt: skip

_INTERIOR: Final[Mapping[WordKind, tuple[Bits, ...]]] = {
    WordKind.COPY: (
        _bit("last_block", MetaCtrl.LAST_BLOCK, "last block"),
        _bit("first_block", MetaCtrl.FIRST_BLOCK, "first block"),
        _part("crc_iv", 3, 3, "index of the cached CRC start value"),
        _part("endianness", 6, 8, "endianness controls"),
        _bit("validate_crc", MetaCtrl.VALIDATE_CRC, "compare the CRC"),
        _bit("use_stored_crc_iv", MetaCtrl.USE_STORED_CRC_IV, "start from the stored CRC"),
        _bit("send_crc_result", MetaCtrl.SEND_CRC_RESULT, "send the CRC"),
        _bit("store_crc_result", MetaCtrl.STORE_CRC_RESULT, "store the CRC"),
        _bit("store_source_crc", MetaCtrl.STORE_SOURCE_CRC, "store the source's CRC"),
        _bit("copy_source_data", MetaCtrl.COPY_SOURCE_DATA, "copy the data"),
    ),
    WordKind.ADD: (_SUB, _FLAG_4, _CCE_BARRIER, _LAST, _MIDDLE, _RESULT),
    WordKind.FMA: (_SUB, _FLAG_4, _CCE_BARRIER, _LAST, _INPUT, _MIDDLE, _RESULT),
    WordKind.MAX: _MINMAX,
    WordKind.MIN: _MINMAX,
    WordKind.EXT: (_SUB, _CCE_BARRIER, _LAST, _MIDDLE, _RESULT),
    WordKind.GCE: (_SUB, _FLAG_4, _CCE_BARRIER, _LAST, _INPUT, _MIDDLE, _RESULT),
    WordKind.SPLIT: (
        _part("count", 0, 3, "parts"),
        _part("many", 5, 1, "more than one part"),
        _part("shape_index", 8, 8, "shape"),
        _part("dtype", 16, 4, "Dtype of an element"),
    ),
    WordKind.TRANSPOSE: (
        _part("element_size", 0, 5, "bytes of an element"),
        _part("many", 5, 1, "shape larger than one"),
        _part("shape_index", 8, 8, "shape of the result"),
        _part("byte_count", 16, 4, "bytes, or a Dtype"),
    ),
    WordKind.REPLICATION: (_part("count", 0, 16, "copies"),),
}

WORDS: Final[Mapping[WordKind, Layout]] = {
    kind: Layout(
        f"{kind.name.lower()}_word",
        size=WORD_SIZE,
        source=COPY_SOURCE if kind is WordKind.COPY else BITS_SOURCE,
        fields=(*_INTERIOR[kind], *_FRAME),
    )
    for kind in WordKind
}

# What sunda refuses. Source: sdma §7, high.
NEEDS_REPLICATION: Final = frozenset({WordKind.EXT, WordKind.REPLICATION})
SPLIT_SOURCE: Final = Source("sdma", "4", MEDIUM)


@dataclass(frozen=True, slots=True)
class OpWord:
    """An operation word taken apart: its class, and every other field of the class by name, as on the wire."""

    kind: WordKind
    fields: Mapping[str, int]

    def field(self, name: str) -> int:
        """Return a field, 0 when it was not given or the class has none of that name."""
        return self.fields.get(name, 0)

    @property
    def last(self) -> bool:
        """Whether it marks the last source, by either bit."""
        return bool(self.field("last") or self.field("last_4"))

    @property
    def barrier(self) -> bool:
        """Whether it is a write barrier, by either bit. Source: sdma §8, convention."""
        return bool(self.field("write_barrier") or self.field("cce_barrier"))


def base_of(kind: WordKind) -> int:
    """Return the word of a class with nothing but the class in it. Source: sdma §3.1, high."""
    block, op_type = CLASS[kind]
    return block << SSMAE_OP_SHIFT | op_type << OP_TYPE_SHIFT


def encode_word(word: OpWord, *, arch: str) -> int:
    """Return the 32 bits of an operation word; a field that is not given is 0.

    Raises:
        UnsupportedError: the architecture has no replication, or no notification mask, and the word asks for it.
        UsageError: a field does not fit, the class has none of that name, or the architecture is unknown.
    """
    if word.kind in NEEDS_REPLICATION and not limits_of(arch).replication:
        raise UnsupportedError(f"{arch} has no {word.kind.name}; use one packet a target", source=DIFFERENCES_SOURCE)
    if word.field("notification_mask") and not features_of(arch).notification_mask:
        raise UnsupportedError(f"{arch} has no notification mask", source=DIFFERENCES_SOURCE)
    framing = {"op_type", "ssmae_op"} & word.fields.keys()
    if framing:
        raise UsageError(f"{word.kind.name} word: the class decides {', '.join(sorted(framing))}; leave it out")
    block, op_type = CLASS[word.kind]
    data = WORDS[word.kind].encode(**{**word.fields, "ssmae_op": block, "op_type": op_type})
    return int.from_bytes(data, "little")


def decode_word(word: int, *, offset: int = 0) -> OpWord:
    """Return what the operation word of a data descriptor says; `encode_word` gives the same 32 bits back.

    Raises:
        DecodeError: the class does not exist, or a bit is set that the class does not name.
    """
    if word >> 8 * WORD_SIZE:
        raise DecodeError("operation word", offset=offset, expected="32 bits", got=f"{word:#x}")
    pair = (word >> SSMAE_OP_SHIFT & SSMAE_OP_MASK, word >> OP_TYPE_SHIFT & OP_TYPE_MASK)
    kind = {(int(block), op_type): each for (block, op_type), each in _KIND.items()}.get(pair)
    if kind is None:
        got = f"block {pair[0]} operation {pair[1]} in 0x{word:08X}"
        raise DecodeError("operation word", offset=offset, expected="a copy, reduce or reshaping class", got=got)
    data = word.to_bytes(WORD_SIZE, "little")
    stray = WORDS[kind].reserved(data)
    if stray is not None:
        known = int.from_bytes(WORDS[kind].encode(**WORDS[kind].decode(data)), "little")
        raise DecodeError(
            f"{kind.name} word", offset=offset + stray, expected=f"0x{known:08X}", got=f"0x{word:08X}, a bit of no name"
        )
    values = WORDS[kind].decode(data)
    return OpWord(kind, {name: value for name, value in values.items() if name not in ("op_type", "ssmae_op")})


def kinds_of(words: U32) -> I32:
    """Return the WordKind of each operation word, -1 where there is no such class; other bits are not looked at."""
    classes = np.full((SSMAE_OP_MASK + 1) * (OP_TYPE_MASK + 1), -1, np.int32)
    for (block, op_type), kind in _KIND.items():
        classes[block * (OP_TYPE_MASK + 1) + op_type] = kind
    found: I32 = classes[words >> np.uint32(OP_TYPE_SHIFT) & np.uint32(classes.size - 1)]
    return found


def split_word(count: int, *, shape_index: int, dtype: Dtype) -> OpWord:
    """Return the word that reads with a stride in `count` parts, 1 to 7."""
    return OpWord(
        WordKind.SPLIT, {"count": count, "many": int(count > 1), "shape_index": shape_index, "dtype": int(dtype)}
    )


def transpose_word(element_size: int, *, shape: int, shape_index: int, byte_count: int) -> OpWord:
    """Return the word that transposes elements of `element_size` bytes; `shape` above 1 sets the flag beside it."""
    fields = {"element_size": element_size, "many": int(shape > 1), "shape_index": shape_index}
    return OpWord(WordKind.TRANSPOSE, {**fields, "byte_count": byte_count})


def replication_word(count: int) -> OpWord:
    """Return the word that writes what is read `count` times; architectures after sunda have it."""
    return OpWord(WordKind.REPLICATION, {"count": count})
