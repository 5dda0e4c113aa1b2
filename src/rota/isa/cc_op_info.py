"""What a profile says of collectives: the flat record of one, and the messages around it on the wire.

Messages are tables of numbered fields; one encoder and one decoder serve them all, by the public rules of Protocol
Buffers: ascending fields, zeros left out, lists of numbers packed. Which collectives there are is `report.records`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, TypeAlias

from rota.errors import DecodeError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import Algorithm, EncOp
from rota.isa.layout import Buffer, Field, Layout

# What the runtime calls an algorithm; several share a name, so that a name says less than the number.
REPORTED_NAMES_SOURCE: Final = Source("device", "2.1, names reported by the runtime", HIGH)
REPORTED_NAMES: Final[Mapping[Algorithm, str]] = {
    Algorithm.RING: "Ring",
    Algorithm.HIER: "Hier",
    Algorithm.MESH: "Mesh",
    Algorithm.KANGARING: "Kangaring",
    Algorithm.SINGLE_CYCLE_RING: "Invalid",
    Algorithm.INTRA_RDH: "RDH",
    Algorithm.SINGLE_STEP_MESH: "Single Step Mesh",
    Algorithm.INTER_RDH: "RDH",
    Algorithm.TWO_STEP_POD_MESH: "UltraServer Mesh",
    Algorithm.LATENCY_OPT_MESH: "Mesh",
    Algorithm.BW_OPT_MESH: "Bw Optimal Mesh",
    Algorithm.INVALID: "Invalid",
}

RECORD_SOURCE: Final = Source("device", "12, types and offsets", CONVENTION)
POSTED: Final = 0  # `posted_status` of what was posted
NAME_SIZE: Final = 32

CC_OP_INFO: Final = Layout("cc_op_info", size=48, source=RECORD_SOURCE, fields=(
    # name                 at  type   meaning
    Field("posted_status",  0, "<i4", "0 for posted"),
    Field("cc_op",          4, "<i4", "1 for an active operation, as in its control entry"),
    Field("op_type",        8, "<i4", "EncOp"),
    Field("alg",           12, "<i4", "Algorithm"),
    Field("alg_name",      16, f"V{NAME_SIZE}", "what the runtime calls it, ASCII, padded with zero bytes"),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class CcOpInfo:
    """The record of one collective; its name follows from the algorithm."""

    op_type: EncOp
    alg: Algorithm
    cc_op: bool = True
    posted_status: int = POSTED

    @property
    def alg_name(self) -> str:
        """Return what the runtime calls the algorithm."""
        return REPORTED_NAMES[self.alg]


def encode_cc_op_info(info: CcOpInfo) -> bytes:
    """Return the bytes of a record.

    Raises:
        UsageError: the status does not fit.
    """
    name = int.from_bytes(info.alg_name.encode("ascii"), "little")
    return CC_OP_INFO.encode(
        posted_status=info.posted_status, cc_op=info.cc_op, op_type=info.op_type, alg=info.alg, alg_name=name
    )


def decode_cc_op_info(data: Buffer, *, offset: int = 0) -> CcOpInfo:
    """Return the record at `offset`; the inverse of `encode_cc_op_info`.

    Raises:
        DecodeError: bytes are missing, a number stands for nothing, or the name is not the algorithm's.
    """
    values = CC_OP_INFO.decode(data, offset)
    places = {field.name: offset + field.at for field in CC_OP_INFO.fields}
    known = {"cc_op": (0, 1), "op_type": tuple(EncOp), "alg": tuple(Algorithm)}
    for name, some in known.items():
        if values[name] not in some:
            expected = f"a number from 0 to {int(max(some))}"
            raise DecodeError(f"cc_op_info {name}", offset=places[name], expected=expected, got=str(values[name]))
    info = CcOpInfo(EncOp(values["op_type"]), Algorithm(values["alg"]), bool(values["cc_op"]), values["posted_status"])
    if values["alg_name"] != int.from_bytes(info.alg_name.encode("ascii"), "little"):
        got = repr(values["alg_name"].to_bytes(NAME_SIZE, "little").rstrip(b"\0"))
        raise DecodeError("cc_op_info alg_name", offset=places["alg_name"], expected=f"'{info.alg_name}'", got=got)
    return info


# --- messages ---------------------------------------------------------------------------------------------------------


class Wire(IntEnum):
    """How the value of a field is delimited, the low three bits of its tag; groups (3, 4) are not taken."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


class Kind(Enum):
    """What a field holds."""

    INT32 = "int32"
    UINT64 = "uint64"
    TEXT = "string"
    MESSAGE = "message"


Scalar: TypeAlias = int | str
Value: TypeAlias = "Scalar | Sequence[int] | Sequence[Values] | Values | None"
Values: TypeAlias = "Mapping[str, Value]"

_RANGES: Final = {Kind.INT32: (-(1 << 31), (1 << 31) - 1), Kind.UINT64: (0, (1 << 64) - 1)}
_VARINT_BYTES: Final = 10
_MAX_NUMBER: Final = (1 << 29) - 1


@dataclass(frozen=True, slots=True)
class Numbered:
    """One field of a message: `repeated` numbers are packed, `of` is the message it holds."""

    number: int
    name: str
    kind: Kind
    repeated: bool = False
    of: Message | None = None

    @property
    def wire(self) -> Wire:
        """Return how its value is written."""
        return Wire.VARINT if self.kind in _RANGES and not self.repeated else Wire.LENGTH


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of a message, ascending by number.

    Raises:
        ValueError: numbers do not ascend, a name stands twice, or a field of messages names none; a mistake in the
            table itself.
    """

    name: str
    source: Source
    fields: tuple[Numbered, ...]

    def __post_init__(self) -> None:
        numbers = [each.number for each in self.fields]
        if numbers != sorted(set(numbers)) or len({each.name for each in self.fields}) < len(numbers):
            raise ValueError(f"{self.name}: numbers ascend and names differ")
        if any((each.kind is Kind.MESSAGE) != (each.of is not None) for each in self.fields):
            raise ValueError(f"{self.name}: a field holds a message exactly when it says which")


FIELDS_SOURCE: Final = Source("device", "12", HIGH)  # names and numbers; the kinds of numbers are ours
OP_INFO_SOURCE: Final = Source("device", "12, collectives_op_info", CONVENTION)

COLLECTIVES_OP: Final = Message("collectives_op", FIELDS_SOURCE, (
    Numbered(1, "type",           Kind.INT32),  # EncOp
    Numbered(2, "algorithm",      Kind.INT32),  # Algorithm
    Numbered(3, "num_elements",   Kind.UINT64),
    Numbered(4, "comm_id",        Kind.INT32),
    Numbered(5, "data_type",      Kind.INT32),  # Dtype
    Numbered(6, "algorithm_name", Kind.TEXT),
))  # fmt: skip

COLLECTIVES_COMM_INFO: Final = Message("collectives_comm_info", FIELDS_SOURCE, (
    Numbered(1, "id",             Kind.INT32),
    Numbered(2, "rank",           Kind.INT32),
    Numbered(3, "rank_n",         Kind.INT32),
    Numbered(4, "node_n",         Kind.INT32),
    Numbered(5, "local_rank_n",   Kind.INT32),
    Numbered(6, "stream_id",      Kind.INT32),
))  # fmt: skip

COLLECTIVES_STREAM_INFO: Final = Message("collectives_stream_info", FIELDS_SOURCE, (
    Numbered(1, "cc_core_id",     Kind.INT32, repeated=True),
    Numbered(2, "id",             Kind.INT32),
))  # fmt: skip

COLLECTIVES_OP_INFO: Final = Message("collectives_op_info", OP_INFO_SOURCE, (
    Numbered(1, "operations",     Kind.MESSAGE, repeated=True, of=COLLECTIVES_OP),
    Numbered(2, "status",         Kind.INT32),
))  # fmt: skip

# The part of a core's graph that speaks of collectives; its other fields are passed over.
CORE_GRAPH: Final = Message("core_graph", FIELDS_SOURCE, (
    Numbered(15, "cc_op_info",    Kind.MESSAGE, of=COLLECTIVES_OP_INFO),
    Numbered(16, "comm_info",     Kind.MESSAGE, repeated=True, of=COLLECTIVES_COMM_INFO),
    Numbered(17, "stream_info",   Kind.MESSAGE, repeated=True, of=COLLECTIVES_STREAM_INFO),
))  # fmt: skip


def encode_message(message: Message, values: Values) -> bytes:
    """Return a message with these values; what is left out is 0, empty or absent, and takes no bytes.

    Raises:
        UsageError: a name is unknown, or a value is of another kind or out of range.
    """
    stray = sorted(values.keys() - {each.name for each in message.fields})
    if stray:
        names = ", ".join(each.name for each in message.fields)
        raise UsageError(f"{message.name} has no field '{stray[0]}': expected one of {names}")
    return b"".join(_encode_field(message, each, values.get(each.name)) for each in message.fields)


def _encode_field(message: Message, field: Numbered, value: Value) -> bytes:
    where = f"{message.name}.{field.name}"
    if value is None or (not value and not isinstance(value, Mapping)):
        return b""
    if field.of is not None:
        several = value if field.repeated else [value]
        if not isinstance(several, Sequence) or not all(isinstance(each, Mapping) for each in several):
            raise UsageError(f"{where}: expected {'a list of ' * field.repeated}{field.of.name}, got {value!r}")
        pieces = [encode_message(field.of, each) for each in several if isinstance(each, Mapping)]
        return b"".join(_delimited(field, piece) for piece in pieces)
    if field.kind is Kind.TEXT:
        if not isinstance(value, str):
            raise UsageError(f"{where}: expected text, got {value!r}")
        return _delimited(field, value.encode())
    numbers = value if field.repeated else [value]
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise UsageError(f"{where}: expected numbers, got {value!r}")
    packed = b"".join(_number(where, field.kind, each) for each in numbers)
    return _delimited(field, packed) if field.repeated else _tag(field) + packed


def _number(where: str, kind: Kind, value: object) -> bytes:
    low, high = _RANGES[kind]
    if not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{where}: expected a number from {low} to {high}, got {value!r}")
    return varint(value % (1 << 64))


def _tag(field: Numbered) -> bytes:
    return varint(field.number << 3 | field.wire)


def _delimited(field: Numbered, data: bytes) -> bytes:
    return _tag(field) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a number below 2^64 in groups of seven bits, the lowest first, bit 7 set in all but the last."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_message(message: Message, data: Buffer, *, offset: int = 0) -> dict[str, Value]:
    """Return the values of a message, every field of the table by name; of equal fields of one number the last counts.

    Args:
        data: the message alone.
        offset: of its first byte, for errors.

    Returns:
        Numbers (0 where absent), text, tuples of numbers or of mappings, or a mapping (None where absent).

    Raises:
        DecodeError: bytes are missing or mean nothing, or a field of the table has another kind. Fields that the
            table does not name are passed over.
    """
    return _decode(message, memoryview(data).cast("B"), offset)


def _decode(message: Message, data: memoryview, base: int) -> dict[str, Value]:
    by_number = {each.number: each for each in message.fields}
    found: dict[str, list[Scalar | dict[str, Value]]] = {each.name: [] for each in message.fields}
    for number, wire, at, payload in _records(message, data, base):
        field = by_number.get(number)
        if field is None:
            continue
        where = f"{message.name}.{field.name}"
        if wire is not field.wire and not (field.repeated and field.kind in _RANGES and wire is Wire.VARINT):
            raise DecodeError(where, offset=at, expected=f"{field.wire.name} wire type", got=wire.name)
        if isinstance(payload, int):
            found[field.name].append(_ranged(where, field.kind, payload, at))
        elif field.of is not None:
            found[field.name].append(_decode(field.of, payload, at))
        elif field.kind is Kind.TEXT:
            found[field.name].append(_text(where, payload, at))
        else:
            found[field.name] += [_ranged(where, field.kind, value, each) for value, each in _varints(payload, at)]
    return {each.name: _settled(message, each, found[each.name], base) for each in message.fields}


def _settled(message: Message, field: Numbered, some: list[Scalar | dict[str, Value]], base: int) -> Value:
    """Return what several occurrences of a field amount to."""
    if field.repeated:
        return tuple(some)  # type: ignore[return-value]  # all of one kind, the field's
    if field.of is not None and len(some) > 1:
        raise DecodeError(f"{message.name}.{field.name}", offset=base, expected="at most one", got=str(len(some)))
    absent: Value = None if field.of is not None else ("" if field.kind is Kind.TEXT else 0)
    return some[-1] if some else absent


def _records(message: Message, data: memoryview, base: int) -> Iterator[tuple[int, Wire, int, int | memoryview]]:
    """Yield number, wire type, offset and content of each field: a number, or bytes."""
    at = 0
    while at < len(data):
        start, (tag, at) = at, _varint(data, at, base)
        number, low = tag >> 3, tag & 7
        if not 0 < number <= _MAX_NUMBER or low not in {int(wire) for wire in Wire}:
            expected = f"a number from 1 to {_MAX_NUMBER} and wire type 0, 1, 2 or 5"
            raise DecodeError(f"tag in {message.name}", offset=base + start, expected=expected, got=f"0x{tag:X}")
        wire = Wire(low)
        if wire is Wire.VARINT:
            value, behind = _varint(data, at, base)
            yield number, wire, base + at, value
            at = behind
            continue
        size = {Wire.FIXED64: 8, Wire.FIXED32: 4}.get(wire, 0)
        if wire is Wire.LENGTH:
            size, at = _varint(data, at, base)
        if size > len(data) - at:
            got = f"{len(data) - at} bytes"
            raise DecodeError(f"field {number} of {message.name}", offset=base + at, expected=f"{size} bytes", got=got)
        yield number, wire, base + at, data[at : at + size]
        at += size


def _varints(data: memoryview, base: int) -> Iterator[tuple[int, int]]:
    """Yield each number of a packed list, and its offset."""
    at = 0
    while at < len(data):
        value, behind = _varint(data, at, base)
        yield value, base + at
        at = behind


def _varint(data: memoryview, at: int, base: int) -> tuple[int, int]:
    """Return the number at `at`, and where the next byte is."""
    value = 0
    for place in range(_VARINT_BYTES):
        if at + place >= len(data):
            raise DecodeError("varint", offset=base + at, expected="a last byte below 0x80", got="the end of the bytes")
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    raise DecodeError("varint", offset=base + at, expected="at most 64 bits", got="more")


def _ranged(where: str, kind: Kind, value: int, at: int) -> int:
    low, high = _RANGES[kind]
    signed = value - (1 << 64) if low < 0 and value >> 63 else value
    if not low <= signed <= high:
        raise DecodeError(where, offset=at, expected=f"a number from {low} to {high}", got=str(signed))
    return signed


def _text(where: str, data: memoryview, at: int) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        got = f"0x{data[error.start]:02X}"
        raise DecodeError(where, offset=at + error.start, expected="UTF-8 text", got=got) from None
