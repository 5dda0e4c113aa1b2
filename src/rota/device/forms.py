"""The shapes of descriptors, scratchpad, configuration and container, and what each kind of text may hold.

Those of instructions are in `instructions`. How a shape becomes text is in `shapes`; which one stands where is in
`listing`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rota.device.instructions import WORDS_BY_NAME
from rota.device.shapes import Column, Numbers, Shape, flags, number, shape_of, vocabulary
from rota.errors import DecodeError, RotaError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa.config import BROADCAST, DEVICE_IDS, HIERARCHY, MESH_EVENT, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.descriptors import (
    COPY_WORD,
    DESCRIPTOR_SIZE,
    FMA_META_WORD,
    LAYOUT,
    LENGTH_MASK,
    MAX_LENGTH,
    RING_ID_MASK,
    RING_ID_SHIFT,
    RxFlag,
    TxFlag,
    cce_word,
    decode_cce_word,
)
from rota.isa.dtypes import Dtype, short_name
from rota.isa.enums import Algorithm, CceType, Pattern
from rota.isa.image import BUFFER, DIGEST_SIZE, HEADER, MAGIC, META, PRESET, SECTION, BufferUse, Section
from rota.isa.layout import Bits, Field, Layout
from rota.isa.network import OPERATION, RECEIVE, SECTION_HEADER, SEND
from rota.isa.spad import CONTINUE, CONTROL_MESH, CONTROL_RING, END_SOURCE, END_TAG, SLOT, SlotFlag

SOURCE: Final = Source("device-model", "text form", CONVENTION)

# --- descriptors ------------------------------------------------------------------------------------------------------


def _descriptor_layout(name: str, bits: type[TxFlag] | type[RxFlag]) -> Layout:
    """Split the length word of a descriptor into its parts."""
    length, operation, address = LAYOUT.fields
    places = [("length", 0, LENGTH_MASK.bit_length()), ("phase", RING_ID_SHIFT, RING_ID_MASK.bit_length())]
    places += [(bit.name.lower(), bit.bit_length() - 1, 1) for bit in bits]
    parts = (Bits(part, length.at, length.type, low, width, "", word=length.name) for part, low, width in places)
    return Layout(name, size=DESCRIPTOR_SIZE, source=LAYOUT.source, fields=(*parts, operation, address))


def _read_size(text: str) -> Numbers:
    size = int(text, 0)
    if not 1 <= size <= MAX_LENGTH:
        raise ValueError(f"expected 1 to {MAX_LENGTH} bytes")
    return {"length": size & LENGTH_MASK}


_OPERATIONS: Final = {COPY_WORD: "copy", FMA_META_WORD: "fma_operand"}
_DTYPES: Final = {short_name(dtype): dtype for dtype in Dtype}


def show_operation(word: int) -> str:
    """Return `copy`, `add:fp32>fp32r`, `max:bf16>bf16:last`, or the word itself in hexadecimal."""
    if word in _OPERATIONS:
        return _OPERATIONS[word]
    try:
        found = decode_cce_word(word)
    except DecodeError:
        return f"0x{word:08x}"
    text = f"{found.op.name.lower()}:{short_name(found.transfer)}>{short_name(found.accumulate)}"
    text += ":barrier" * found.barrier + ":last" * found.last
    return text if read_operation(text)["meta_ctrl"] == word else f"0x{word:08x}"


def read_operation(text: str) -> Numbers:
    """Return the operation word; the inverse of `show_operation`."""
    for word, name in _OPERATIONS.items():
        if text == name:
            return {"meta_ctrl": word}
    if ":" not in text:
        return {"meta_ctrl": int(text, 0)}
    op, types, *marks = text.split(":")
    transfer, accumulate = types.split(">")
    if not set(marks) <= {"barrier", "last"}:
        raise ValueError("expected :barrier and :last at most")
    try:
        word = cce_word(
            CceType[op.upper()],
            _DTYPES[transfer],
            _DTYPES[accumulate],
            last="last" in marks,
            barrier="barrier" in marks,
        )
    except RotaError as error:
        raise UsageError(f"op={text[:80]}: {error}") from None
    return {"meta_ctrl": word}


_SIZE: Final = Column("size", ("length",), lambda length: str(length or MAX_LENGTH), _read_size)
_ADDRESS: Final = number("address", of="buf_ptr", hexadecimal=16)
TX: Final = shape_of(
    "tx",
    _descriptor_layout("tx_descriptor", TxFlag),
    _SIZE,
    _ADDRESS,
    number("phase"),
    Column("op", ("meta_ctrl",), show_operation, read_operation),
    flags("flags", [flag.name.lower() for flag in TxFlag]),
)
RX: Final = shape_of(
    "rx",
    _descriptor_layout("rx_descriptor", RxFlag),
    _SIZE,
    _ADDRESS,
    number("phase"),
    flags("flags", [flag.name.lower() for flag in RxFlag]),
    Column("op", ("meta_ctrl",), show_operation, read_operation, default=(0,), known=frozenset({0}).__contains__),
)

# --- scratchpad -------------------------------------------------------------------------------------------------------

_ALGORITHMS: Final = {int(algorithm): algorithm.name for algorithm in Algorithm if algorithm is not Algorithm.INVALID}
_CONTROL_COLUMNS: Final = (
    vocabulary("alg", _ALGORITHMS, of="algo_type"),
    number("subalg", of="algo_sub_type"),
    number("trignext", of="trigger_next"),
)
_CHANNELS: Final = number("chlist", of="channel_list", hexadecimal=8)
CONTROLS: Final[Mapping[Pattern, Shape]] = {
    Pattern.RING: shape_of("ring_control", CONTROL_RING, *_CONTROL_COLUMNS, _CHANNELS, fixed={"cc_op": 1}),
    Pattern.MESH: shape_of("mesh_control", CONTROL_MESH, *_CONTROL_COLUMNS, fixed={"cc_op": 1}),
    Pattern.INVALID: shape_of(
        "nop_control",
        Layout(
            "inactive_control_entry",
            size=CONTROL_RING.size,
            source=CONTROL_RING.source,
            fields=tuple(each for each in CONTROL_RING.fields if each.name in ("cc_op", "trigger_next")),
        ),
        number("trignext", of="trigger_next"),
        fixed={"cc_op": 0},
    ),
}

_CONTINUE_MARK: Final = Layout("continue_mark", size=8, source=END_SOURCE, fields=(
    Field("mark", 0, "<u8", "always CONTINUE"),
))  # fmt: skip
_END_MARK: Final = Layout("end_mark", size=8, source=END_SOURCE, fields=(
    Field("low",     0, "<u4", "low half of the first completion address"),
    Field("value",   4, "<u2", "what is added there"),
    Field("tag",     6, "<u2", "always END_TAG"),
))  # fmt: skip
_COMPLETION: Final = Layout("completion_address", size=8, source=END_SOURCE, fields=(
    Field("address", 0, "<u8", "where completion is signalled"),
))  # fmt: skip
ENTRY: Final = shape_of(
    "slot",
    SLOT,
    number("m2s", of="m2s_val"),
    number("s2m", of="s2m_val"),
    number("repeat"),
    flags("flags", [flag.name.lower() for flag in SlotFlag]),
)
CONTINUES: Final = shape_of("continue", _CONTINUE_MARK, fixed={"mark": CONTINUE})
END: Final = shape_of("end", _END_MARK, number("value"), number("low", hexadecimal=8), fixed={"tag": END_TAG})
COMPLETION: Final = shape_of("completion", _COMPLETION, number("address", hexadecimal=16))

# --- configuration ----------------------------------------------------------------------------------------------------

CONFIGURATION: Final[Mapping[str, Shape]] = {
    layout.name: shape_of(
        word,
        layout,
        *(number(each.name, hexadecimal=4) for each in layout.fields if each.name in masks),
        hexadecimal=True,
    )
    for word, layout, masks in (
        ("channel", RING_CHANNEL, {"mask"}),
        ("event", MESH_EVENT, {f"leg{leg}_{each.name}" for leg in (0, 1) for each in BROADCAST.fields[2:]}),
        ("hierarchy", HIERARCHY, frozenset[str]()),
        ("program", PROGRAM_BLOCK, frozenset[str]()),
        ("device_ids", DEVICE_IDS, frozenset[str]()),
    )
}

# --- network proxies --------------------------------------------------------------------------------------------------

NETWORK: Final = tuple(
    shape_of(word, layout, hexadecimal=True)
    for word, layout in (
        ("net_header", SECTION_HEADER),
        ("net_operation", OPERATION),
        ("net_send", SEND),
        ("net_receive", RECEIVE),
    )
)

# --- image ------------------------------------------------------------------------------------------------------------

_PLAIN_NAME: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:/-]*")


def _show_name(value: int) -> str:
    raw = value.to_bytes(32, "little").rstrip(b"\0")
    return raw.decode("ascii") if _PLAIN_NAME.fullmatch(raw) else f"0x{raw.hex()}"


def _read_name(text: str) -> Numbers:
    raw = bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode("ascii")
    return {"name": int.from_bytes(raw, "little")}


_RESERVED: Final = Column(
    "reserved",
    ("reserved",),
    hex,
    lambda text: {"reserved": int(text, 0)},
    default=(0,),
    known=frozenset({0}).__contains__,
)
_FEED: Final = Layout("feed_word", size=4, source=SOURCE, fields=(
    Field("value", 0, "<u4", "initial value of a word of memory"),
))  # fmt: skip
_DIGEST: Final = Layout("image_digest", size=DIGEST_SIZE, source=SOURCE, fields=(
    Field("sha256", 0, f"V{DIGEST_SIZE}", "SHA-256 of all before it"),
))  # fmt: skip
_SECTIONS: Final = {int(kind): kind.name for kind in Section}
_USES: Final = {int(use): use.name or "INTERNAL" for use in map(BufferUse, range(4))}
IMAGE: Final = shape_of(
    "image", HEADER, number("sections"), _RESERVED, fixed={"magic": int.from_bytes(MAGIC, "little")}
)
SECTION_ROW: Final = shape_of(
    "section",
    SECTION,
    vocabulary("kind", _SECTIONS, known=_SECTIONS.__contains__),
    number("index"),
    number("offset", hexadecimal=8),
    number("size"),
    number("crc32", hexadecimal=8),
    _RESERVED,
)
META_RECORD: Final = shape_of("meta", META, _RESERVED)
BUFFER_RECORD: Final = shape_of(
    "buffer",
    BUFFER,
    Column("name", ("name",), _show_name, _read_name),
    number("offset", hexadecimal=8),
    number("size"),
    vocabulary("use", _USES, known=_USES.__contains__),
    _RESERVED,
)
PRESET_RECORD: Final = shape_of("preset", PRESET)
FEED_WORD: Final = shape_of("feed", _FEED)
DIGEST: Final = shape_of("digest", _DIGEST)

# --- what each kind of text may hold ----------------------------------------------------------------------------------

_SPAD: Final = (*CONTROLS.values(), ENTRY, CONTINUES, END, COMPLETION)
_CONTAINER: Final = (IMAGE, SECTION_ROW, META_RECORD, BUFFER_RECORD, PRESET_RECORD, FEED_WORD, DIGEST)
KINDS: Final[Mapping[str, Mapping[str, Shape]]] = {
    name: {**words} | {shape.word.casefold(): shape for shape in shapes}
    for name, words, shapes in (
        ("stream", WORDS_BY_NAME, ()),
        ("tx", {}, (TX,)),
        ("rx", {}, (RX,)),
        ("ctrl", {}, tuple(CONTROLS.values())),
        ("slot", {}, _SPAD),
        ("conf", {}, tuple(CONFIGURATION.values())),
        ("image", WORDS_BY_NAME, (*_CONTAINER, TX, RX, *_SPAD, *CONFIGURATION.values(), *NETWORK)),
    )
}
