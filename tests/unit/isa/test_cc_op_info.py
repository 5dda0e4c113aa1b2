"""The record of a collective and the messages of a profile, against device §2.1 and §12 and all-reduce §6.3."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import DecodeError, UsageError
from rota.facts import HIGH, Source
from rota.isa.cc_op_info import (
    CC_OP_INFO,
    COLLECTIVES_COMM_INFO,
    COLLECTIVES_OP,
    COLLECTIVES_OP_INFO,
    COLLECTIVES_STREAM_INFO,
    CORE_GRAPH,
    NAME_SIZE,
    POSTED,
    REPORTED_NAMES,
    CcOpInfo,
    Kind,
    Message,
    Numbered,
    Values,
    Wire,
    decode_cc_op_info,
    decode_message,
    encode_cc_op_info,
    encode_message,
    varint,
)
from rota.isa.enums import Algorithm, EncOp

MESSAGES = [COLLECTIVES_OP, COLLECTIVES_COMM_INFO, COLLECTIVES_STREAM_INFO, COLLECTIVES_OP_INFO, CORE_GRAPH]

# Made by hand from the rules of the wire format; parsed by the protobuf package as well.
GOLDEN: list[tuple[Message, Values, str]] = [
    # type 1, algorithm 0 is left out, 300 elements, comm 0 is left out, bf16, "Ring"
    (COLLECTIVES_OP, {"type": 1, "num_elements": 300, "data_type": 6, "algorithm_name": "Ring"},
     "0801 18ac02 2806 320452696e67"),
    # id 2, rank 3 of 64 over 2 nodes, 32 of them on this one, stream 0 is left out
    (COLLECTIVES_COMM_INFO, {"id": 2, "rank": 3, "rank_n": 64, "node_n": 2, "local_rank_n": 32},
     "0802 1003 1840 2002 2820"),
    # cores 2 and 300 packed, id -1 in ten bytes
    (COLLECTIVES_STREAM_INFO, {"cc_core_id": (2, 300), "id": -1}, "0a03 02ac02 10ffffffffffffffffff01"),
    # two operations, the second without anything, and the status 6
    (COLLECTIVES_OP_INFO, {"operations": ({"algorithm": 7}, {}), "status": 6}, "0a02 1007 0a00 1006"),
    # fields above 15 have tags of two bytes
    (CORE_GRAPH, {"cc_op_info": {}, "comm_info": ({"id": 1},), "stream_info": ({"cc_core_id": (0,)},)},
     "7a00 8201 02 0801 8a01 03 0a0100"),
]  # fmt: skip
golden = pytest.mark.parametrize(("message", "values", "text"), GOLDEN, ids=[each[0].name for each in GOLDEN])


T = TypeVar("T")


def attempt(decode: Callable[[], T]) -> T | DecodeError:
    """Return what a decoder returns, or why it refuses."""
    try:
        return decode()
    except DecodeError as error:
        return error


# --- the flat record --------------------------------------------------------------------------------------------------


def test_reported_names() -> None:
    """device §2.1: names reported by the runtime, in order 0..11."""
    names = "Ring, Hier, Mesh, Kangaring, Invalid, RDH, Single Step Mesh, RDH, UltraServer Mesh, Mesh, Bw Optimal Mesh"
    assert [REPORTED_NAMES[Algorithm(number)] for number in range(12)] == [*names.split(", "), "Invalid"]


def test_the_record_of_an_all_reduce() -> None:
    """all-reduce §6.3: op_type = ENC_ALLREDUCE (1), cc_op = 1, alg = enc_alg_type; posted is 0."""
    data = encode_cc_op_info(CcOpInfo(EncOp.ALLREDUCE, Algorithm.KANGARING))
    assert data[:16].hex(" ", 4) == "00000000 01000000 01000000 03000000"
    assert data[16:] == b"Kangaring".ljust(NAME_SIZE, b"\0")
    assert POSTED == 0


def test_places_of_the_record() -> None:
    """Four numbers of four bytes in the order of device §12, then the name."""
    names = [(field.name, field.at, field.type) for field in CC_OP_INFO.fields]
    numbers = ["posted_status", "cc_op", "op_type", "alg"]
    assert names == [*((name, 4 * i, "<i4") for i, name in enumerate(numbers)), ("alg_name", 16, "V32")]
    assert CC_OP_INFO.size == 48


@given(
    kind=st.sampled_from(EncOp),
    algorithm=st.sampled_from(Algorithm),
    cc_op=st.booleans(),
    status=st.integers(-(1 << 31), (1 << 31) - 1),
    before=st.binary(max_size=9),
)
def test_records_come_back(kind: EncOp, algorithm: Algorithm, cc_op: bool, status: int, before: bytes) -> None:
    """decode(encode(x)) = x, at any offset."""
    info = CcOpInfo(kind, algorithm, cc_op, status)
    assert decode_cc_op_info(before + encode_cc_op_info(info), offset=len(before)) == info


@pytest.mark.parametrize(
    ("at", "what"),
    [(4, "cc_op_info cc_op"), (8, "cc_op_info op_type"), (12, "cc_op_info alg "), (16, "cc_op_info alg_name")],
)
def test_a_record_that_means_nothing(at: int, what: str) -> None:
    """A number that stands for nothing, or another name than the algorithm's, is refused where it stands."""
    data = bytearray(encode_cc_op_info(CcOpInfo(EncOp.ALLREDUCE, Algorithm.RING)))
    data[at] = 77
    with pytest.raises(DecodeError, match=what) as caught:
        decode_cc_op_info(b"..." + data, offset=3)
    assert caught.value.offset == 3 + at


@given(data=st.binary(min_size=40, max_size=56))
def test_any_bytes_as_a_record(data: bytes) -> None:
    """Any bytes are a record that encodes to the same bytes, or a DecodeError inside them."""
    found = attempt(lambda: decode_cc_op_info(data))
    if isinstance(found, DecodeError):
        assert 0 <= found.offset <= len(data)
    else:
        assert encode_cc_op_info(found) == data[: CC_OP_INFO.size]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_numbers_of_the_fields() -> None:
    """device §12: the numbers and names of the messages; 15, 16 and 17 of the graph."""
    tables = {each.name: " ".join(f"{field.number} {field.name}" for field in each.fields) for each in MESSAGES}
    assert tables == {
        "collectives_op": "1 type 2 algorithm 3 num_elements 4 comm_id 5 data_type 6 algorithm_name",
        "collectives_comm_info": "1 id 2 rank 3 rank_n 4 node_n 5 local_rank_n 6 stream_id",
        "collectives_stream_info": "1 cc_core_id 2 id",
        "collectives_op_info": "1 operations 2 status",
        "core_graph": "15 cc_op_info 16 comm_info 17 stream_info",
    }
    assert [each.repeated for each in CORE_GRAPH.fields] == [False, True, True]
    assert {int(wire) for wire in Wire} == {0, 1, 2, 5}


@golden
def test_golden_bytes(message: Message, values: Values, text: str) -> None:
    """Each message by hand: tag = number x 8 + wire type, numbers in sevens, lists packed, zeros left out."""
    data = bytes.fromhex(text)
    assert encode_message(message, values) == data
    full = decode_message(message, data)
    assert {name: each for name, each in full.items() if name in values} == decoded(message, values)


@golden
def test_golden_bytes_by_another_decoder(message: Message, values: Values, text: str) -> None:
    """A second decoder, that finds numbers by a pattern, reads the same."""
    assert second(message, bytes.fromhex(text)) == decoded(message, values)


@pytest.mark.parametrize(("number", "text"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (1 << 63, None)])
def test_varints(number: int, text: str | None) -> None:
    """Seven bits a byte, the lowest first."""
    assert varint(number).hex() == (text or "80" * 9 + "01")


def message_values(message: Message) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the values of a message, every field given."""
    single = {
        Kind.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
        Kind.UINT64: st.integers(0, (1 << 64) - 1),
        Kind.TEXT: st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    }
    fields = {}
    for field in message.fields:
        one: st.SearchStrategy[Any] = message_values(field.of) if field.of else single[field.kind]
        several = st.lists(one, max_size=3).map(tuple)
        fields[field.name] = several if field.repeated else (st.none() | one if field.of else one)
    return st.fixed_dictionaries(fields)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
@given(data=st.data())
def test_messages_come_back(message: Message, data: st.DataObject) -> None:
    """decode(encode(x)) = x, and the second decoder agrees."""
    values = data.draw(message_values(message))
    wire = encode_message(message, values)
    assert decode_message(message, wire) == values
    assert {name: each for name, each in values.items() if each not in (0, "", (), None)} == second(message, wire)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
@given(data=st.binary(max_size=40))
def test_any_bytes_as_a_message(message: Message, data: bytes) -> None:
    """Any bytes are a message whose canonical form reads the same, or a DecodeError inside them."""
    found = attempt(lambda: decode_message(message, data, offset=100))
    if isinstance(found, DecodeError):
        assert 100 <= found.offset <= 100 + len(data)
    else:
        assert decode_message(message, encode_message(message, found)) == found


@given(data=st.data(), values=message_values(CORE_GRAPH))
def test_damaged_messages(data: st.DataObject, values: dict[str, Any]) -> None:
    """A flipped or missing byte never raises anything but a DecodeError inside the bytes."""
    wire = bytearray(encode_message(CORE_GRAPH, values))
    cut = data.draw(st.integers(0, len(wire)))
    for at in data.draw(st.lists(st.integers(0, max(cut - 1, 0)), max_size=3)):
        wire[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
    found = attempt(lambda: decode_message(CORE_GRAPH, wire[:cut]))
    assert not isinstance(found, DecodeError) or 0 <= found.offset <= cut


def test_what_the_table_does_not_name_is_passed_over() -> None:
    """Unknown fields of every wire type, and a list of numbers that is not packed."""
    known = bytes.fromhex("0a01 05 0806 0809")
    unknown = bytes.fromhex("3803 39 0102030405060708 3a02 ffff 3d 01020304")
    values = decode_message(COLLECTIVES_STREAM_INFO, unknown + known + bytes.fromhex("1003 1004"))
    assert values == {"cc_core_id": (5, 6, 9), "id": 4}


@pytest.mark.parametrize(
    ("text", "offset", "what"),
    [
        ("08", 1, "varint at offset 1: expected a last byte below 0x80"),
        ("10" + "ff" * 10 + "01", 1, "varint at offset 1: expected at most 64 bits"),
        ("10" + "ff" * 9 + "02", 1, "varint at offset 1: expected at most 64 bits"),
        ("00", 0, "tag in collectives_stream_info at offset 0"),
        ("0b", 0, "tag in collectives_stream_info at offset 0"),
        ("1001 0a0501", 4, "field 1 of collectives_stream_info at offset 4: expected 5 bytes, got 1 bytes"),
        ("1500000000", 1, "collectives_stream_info.id at offset 1: expected VARINT wire type, got FIXED32"),
        ("10 8080808010", 1, "collectives_stream_info.id at offset 1: expected a number from -2147483648"),
    ],
)
def test_bytes_that_are_no_message(text: str, offset: int, what: str) -> None:
    """Each way to be wrong, with its offset."""
    with pytest.raises(DecodeError, match=re.escape(what)) as caught:
        decode_message(COLLECTIVES_STREAM_INFO, bytes.fromhex(text))
    assert caught.value.offset == offset


def test_offsets_inside_a_message_of_a_message() -> None:
    """An error in a nested message is at its own place: text that is no UTF-8, and one message twice."""
    inner = bytes.fromhex("0801 3203 41ff41")
    wire = bytes.fromhex("7a") + varint(2 + len(inner)) + b"\x0a" + varint(len(inner)) + inner
    with pytest.raises(DecodeError, match="algorithm_name at offset 9: expected UTF-8 text, got 0xFF"):
        decode_message(CORE_GRAPH, wire)
    with pytest.raises(DecodeError, match=r"core_graph\.cc_op_info at offset 0: expected at most one, got 2"):
        decode_message(CORE_GRAPH, bytes.fromhex("7a00 7a00"))


@pytest.mark.parametrize(
    ("message", "values", "what"),
    [
        (COLLECTIVES_OP, {"kind": 1}, "collectives_op has no field 'kind'"),
        (COLLECTIVES_OP, {"type": 1 << 31}, "collectives_op.type: expected a number from"),
        (COLLECTIVES_OP, {"num_elements": -1}, "collectives_op.num_elements: expected a number from 0"),
        (COLLECTIVES_OP, {"algorithm_name": 5}, "collectives_op.algorithm_name: expected text"),
        (COLLECTIVES_OP, {"type": "one"}, "collectives_op.type: expected a number"),
        (COLLECTIVES_STREAM_INFO, {"cc_core_id": 5}, "collectives_stream_info.cc_core_id: expected numbers"),
        (COLLECTIVES_OP_INFO, {"operations": {"type": 1}}, "collectives_op_info.operations: expected a list of"),
        (CORE_GRAPH, {"cc_op_info": 3}, "core_graph.cc_op_info: expected collectives_op_info"),
    ],
)
def test_values_that_do_not_fit(message: Message, values: Values, what: str) -> None:
    """A wrong name, kind or range is said with the field."""
    with pytest.raises(UsageError, match=re.escape(what)):
        encode_message(message, values)


@pytest.mark.parametrize(
    "fields",
    [
        (Numbered(2, "a", Kind.INT32), Numbered(1, "b", Kind.INT32)),
        (Numbered(1, "a", Kind.INT32), Numbered(2, "a", Kind.INT32)),
        (Numbered(1, "a", Kind.MESSAGE),),
    ],
)
def test_tables_that_are_wrong(fields: tuple[Numbered, ...]) -> None:
    """A table of messages is checked when it is made."""
    with pytest.raises(ValueError, match="wrong:"):
        Message("wrong", Source("device", "12", HIGH), fields)


@golden
def test_protobuf_agrees(message: Message, values: Values, text: str) -> None:
    """The protobuf package parses and writes the golden bytes alike."""
    pytest.importorskip("google.protobuf", reason="waits for the protobuf package")
    made = protobuf_class(message)()
    made.ParseFromString(bytes.fromhex(text))
    assert from_protobuf(message, made) == decoded(message, values)
    assert made.SerializeToString() == bytes.fromhex(text)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
@given(data=st.data())
def test_protobuf_agrees_on_everything(message: Message, data: st.DataObject) -> None:
    """The protobuf package writes and reads any values as we do."""
    pytest.importorskip("google.protobuf", reason="waits for the protobuf package")
    wire = encode_message(message, data.draw(message_values(message)))
    made = protobuf_class(message)()
    made.ParseFromString(wire)
    assert made.SerializeToString() == wire
    assert from_protobuf(message, made) == second(message, wire)


# --- other decoders ---------------------------------------------------------------------------------------------------


def decoded(message: Message, values: Values) -> dict[str, Any]:
    """Return the given values as the decoder would, messages filled up with what they leave out."""
    return {field.name: filled(field, values[field.name]) for field in message.fields if field.name in values}


def filled(field: Numbered, value: Any) -> Any:
    if field.of is None:
        return value
    return tuple(full(field.of, each) for each in value) if field.repeated else full(field.of, value)


def full(message: Message, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a message, every field given."""
    given = decoded(message, values)
    return {field.name: given.get(field.name, empty(field)) for field in message.fields}


def empty(field: Numbered) -> Any:
    if field.repeated:
        return ()
    return None if field.of else "" if field.kind is Kind.TEXT else 0


VARINT = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")


def number_of(raw: bytes) -> int:
    """Return what a varint stands for, read from its last byte to its first."""
    value = 0
    for byte in reversed(raw):
        value = value * 128 + byte % 128
    return value


def second(message: Message, data: bytes) -> dict[str, Any]:
    """Decode a message without what it leaves out, with nothing of the first decoder; only well-formed ones."""
    known = {field.number: field for field in message.fields}
    out: dict[str, Any] = {}
    while data:
        number, wire = divmod(number_of(raw := VARINT.match(data)[0]), 8)  # type: ignore[index]
        data = data[len(raw) :]
        value = number_of(raw := VARINT.match(data)[0])  # type: ignore[index]
        data = data[len(raw) :]
        field = known[number]
        if wire == 0:
            out[field.name] = value if field.kind is Kind.UINT64 or value < 1 << 63 else value - (1 << 64)
            continue
        piece, data = data[:value], data[value:]
        if field.of is not None:
            inner = full(field.of, second(field.of, piece))
            out[field.name] = (*out.get(field.name, ()), inner) if field.repeated else inner
        elif field.kind is Kind.TEXT:
            out[field.name] = piece.decode()
        else:
            numbers = [number_of(each) for each in VARINT.findall(piece)]
            out[field.name] = tuple(each - (1 << 64) if each >> 63 else each for each in numbers)
    return out


def protobuf_class(message: Message) -> Callable[[], Any]:
    """Return the class that the protobuf package makes of our tables."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="profile", syntax="proto3")
    types = {Kind.INT32: 5, Kind.UINT64: 4, Kind.TEXT: 9, Kind.MESSAGE: 11}
    for each in MESSAGES:
        table = file.message_type.add(name=each.name)
        for field in each.fields:
            row = table.field.add(name=field.name, number=field.number, type=types[field.kind])
            row.label = 3 if field.repeated else 1
            if field.of is not None:
                row.type_name = f".profile.{field.of.name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: Callable[[], Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"profile.{message.name}"))
    return made


def from_protobuf(message: Message, made: Any) -> dict[str, Any]:
    """Return what a message of the protobuf package holds, without what it leaves out."""
    out = {}
    for descriptor, value in made.ListFields():
        field = next(each for each in message.fields if each.number == descriptor.number)
        if field.of is None:
            out[field.name] = tuple(value) if field.repeated else value
        elif field.repeated:
            out[field.name] = tuple(full(field.of, from_protobuf(field.of, each)) for each in value)
        else:
            out[field.name] = full(field.of, from_protobuf(field.of, value))
    return out
