"""Records of the network proxy: sizes, places, golden bytes, terminators, indices, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.columns import running_count
from rota.errors import DecodeError, UsageError
from rota.isa.layout import Layout
from rota.isa.network import (
    ENTRY_SIGNALS,
    LEAST_CREDITS,
    LOOP_SIZE,
    MOST_CREDITS,
    NOBODY,
    OPERATION,
    PROXY_QUEUE,
    RECEIVE,
    SECTION_HEADER,
    SEND,
    Mark,
    NetworkSection,
    Operations,
    Receives,
    Sends,
    decode_network,
    encode_network,
)
from rota.isa.semaphores import MAX_VALUE

KINDS = {"U64": np.uint64, "U32": np.uint32, "I64": np.int64}


def table(kind: Any, rows: list[tuple[int, ...]]) -> Any:
    """Return a table of columns from its rows."""
    fields = list(kind.__dataclass_fields__.values())
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    return kind(
        **{f.name: np.array(c, np.int64).astype(KINDS[str(f.type)]) for f, c in zip(fields, columns, strict=True)}
    )


def section(operations: list[tuple[int, ...]], sends: list[tuple[int, ...]], receives: list[tuple[int, ...]]) -> Any:
    return NetworkSection(table(Operations, operations), table(Sends, sends), table(Receives, receives))


def same(one: NetworkSection, other: NetworkSection) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in NetworkSection.__slots__)
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in type(a).__dataclass_fields__
    )


def places(layout: Layout) -> dict[str, int]:
    return {each.name: each.at for each in layout.fields}


def small() -> NetworkSection:
    """One operation of channel 3 in entry 1: it sends four bytes with a signal, a signal alone, and receives one."""
    return section(
        [(1, 3, 0x828000_1020, 0, 2, 2, 1, 8, 2)],
        [
            (5, 0, 0x10_0000_1000, 0x10_0000_2000, 4, 0x828000_1824, 0, 2, 0),
            (6, 1, 0, 0, 0, 0x828000_1828, 0x82C000_182C, 1, 7),
        ],
        [(4, 0x10_0000_3000, 6, 0x828000_1830, 0)],
    )


GOLDEN = "".join((
    "01000000 03000000 02000000 00000000",  # one operation; lists of 3 and 2 with their terminators
    # operation
    "0000 00 00 00000000", "2010008082000000", "0000000000000000", "0000000000000000", "0000000000000000",
    "02000000 01000000 00020000 08000000 08000000 00000000",
    "0200000000000000", "00 01 0000", "00000000", "01000000 02000000 03000000 00000000",
    # send 0, send 1, terminator
    "00 01 0000 00000000 05000000 00000000", "0010000010000000", "0020000010000000", "0400000000000000",
    "2418008082000000", "0000000000000000", "02000000 00000000", "0000000000000000",
    "00 02 0100 00000000 06000000 01 000000", "0000000000000000", "0000000000000000", "0000000000000000",
    "2818008082000000", "2C1800C082000000", "01000000 07000000", "0000000000000000",
    "01 00 0000 00000000 FFFFFFFF 00000000", "00" * 56,
    # receive 0, terminator
    "00 01 0000 00000000 04000000 00000000", "0030000010000000", "0600000000000000",
    "3018008082000000", "0000000000000000",
    "01 00 0000 00000000 FFFFFFFF 00000000", "00" * 32,
))  # fmt: skip


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_sizes_of_the_records() -> None:
    """An operation has 96 bytes, a send entry 72, a receive entry 48."""
    assert (OPERATION.size, SEND.size, RECEIVE.size, SECTION_HEADER.size) == (96, 72, 48, 16)


def test_places_of_the_operation() -> None:
    """Every field that device §13 places is where it says."""
    assert places(OPERATION) == {
        "sema_shift_offset": 0, "early_send": 2, "early_recv": 3, "send_handshake": 8, "send_complete": 16,
        "recv_handshake": 24, "recv_complete": 32, "tx_count": 40, "rx_count": 44, "index_loop_size": 48,
        "initial_send_credits": 52, "ending_recv_credits": 56, "element_size": 64, "variable_peer": 73,
        "basic_block_id": 76, "relative_op_index": 80, "unrolled_count": 84, "channel": 88,
    }  # fmt: skip


def test_marks_and_limits() -> None:
    """TRANSFER 0, OP_COMPLETE 1, EXEC_COMPLETE 2; indices modulo 512; credits from 1 to 511."""
    assert [(mark.name, mark.value) for mark in Mark] == [("TRANSFER", 0), ("OP_COMPLETE", 1), ("EXEC_COMPLETE", 2)]
    assert (LOOP_SIZE, LEAST_CREDITS, MOST_CREDITS, NOBODY) == (512, 1, 511, -1)
    assert (ENTRY_SIGNALS, PROXY_QUEUE) == (2, 128)


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_golden_bytes() -> None:
    """A section written out by hand: header, operation, both lists and both terminators."""
    assert encode_network(small()) == bytes.fromhex(GOLDEN)
    assert same(decode_network(bytes.fromhex(GOLDEN)), small())


def test_every_list_ends_with_a_terminator() -> None:
    """Operation index = count - 1, size 0, mark 1, rank -1, on both lists, also on one without a transfer."""
    made = section(
        [(0, 0, 8, 0, 1, 1, 0, 8, 1), (0, 1, 0, 0, 1, 0, 2, 8, 1)],
        [(1, 0, 16, 24, 1, 0, 0, 0, 0)],
        [(2, 40, 3, 0, 0), (2, 0, 0, 48, 0)],
    )
    data = encode_network(made)
    sends = SEND.columns(data[16 + 2 * 96 :][: 3 * 72])
    receives = RECEIVE.columns(data[16 + 2 * 96 + 3 * 72 :])
    assert sends["mark"].tolist() == [0, 1, 1]
    assert receives["mark"].tolist() == [1, 0, 0, 1]
    for entries, ends in ((sends, [1, 2]), (receives, [0, 3])):
        assert entries["op_index"][ends].tolist() == [0, 1]
        assert entries["rank"][ends].tolist() == [-1, -1]
        assert entries["size"][ends].tolist() == [0, 0]


def test_indices_run_on_across_operations_modulo_512() -> None:
    """The sends of a channel are counted from the start of the program, its receives apart, both modulo 512."""
    counts = (300, 5, 300)
    operations = [
        (entry, channel, 8, 0, 1, count, 0, 8, 1)
        for entry, channel, count in zip((0, 0, 1), (2, 3, 2), counts, strict=True)
    ]
    made = section(operations, [(1, 0, 16, 24, 1, 0, 0, 0, 0)] * sum(counts), [])
    wanted = [*range(300), *range(5), *range(300, 512), *range(88)]
    assert made.send_index.tolist() == wanted
    read = SEND.columns(encode_network(made)[16 + 3 * 96 : -3 * 48])
    assert read["net_index"][read["mark"] == Mark.TRANSFER].tolist() == wanted


def test_several_receivers_are_a_variable_peer() -> None:
    """The flag is set where the sends of an operation go to more than one rank."""
    for ranks, flag in (((1, 1), 0), ((1, 2), 1)):
        made = section([(0, 0, 8, 0, 1, 2, 0, 8, 1)], [(rank, 0, 0, 0, 0, 48, 0, 1, 0) for rank in ranks], [])
        assert OPERATION.decode(encode_network(made), 16)["variable_peer"] == flag


# --- properties -------------------------------------------------------------------------------------------------------

ADDRESS = st.integers(1, (1 << 62) - 1)


@st.composite
def sections(draw: st.DrawFn) -> NetworkSection:
    """Any section that means something."""
    keys = draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, PROXY_QUEUE - 1)), min_size=1, max_size=4))
    operations, sends, receives = [], [], []
    for entry, channel in sorted(keys):
        element = draw(st.sampled_from((1, 2, 4)))
        shift = draw(st.integers(0, 20))
        sent = [draw(transfers(element)) for _ in range(draw(st.integers(0, 3)))]
        taken = [draw(transfers(element)) for _ in range(draw(st.integers(0 if sent else 1, 3)))]
        handshake = draw(ADDRESS) if sent else 0
        credits = draw(st.integers(LEAST_CREDITS, MOST_CREDITS))
        steps = draw(st.integers(1, 16))
        operations.append((entry, channel, handshake, shift, steps, len(sent), len(taken), credits, element))
        sends += [(rank, follows * (i > 0), *rest) for i, (rank, follows, *rest) in enumerate(sent)]
        receives += [(rank, target, size, *semaphores) for rank, _, _, target, size, *semaphores, _, _ in sorted(taken)]
    return section(operations, sends, receives)


@st.composite
def transfers(draw: st.DrawFn, element: int) -> tuple[int, ...]:
    """Return a send of data, of signals, or of both."""
    size = element * draw(st.integers(0, 1 << 20))
    signals = draw(st.integers(0 if size else 1, ENTRY_SIGNALS))
    semaphores = [draw(ADDRESS) if k < signals else 0 for k in range(ENTRY_SIGNALS)]
    values = [draw(st.integers(1, MAX_VALUE)) if k < signals else 0 for k in range(ENTRY_SIGNALS)]
    source, target = (draw(ADDRESS), draw(ADDRESS)) if size else (0, 0)
    return (draw(st.integers(0, 511)), draw(st.integers(0, 1)), source, target, size, *semaphores, *values)


@given(made=sections())
def test_columns_come_back(made: NetworkSection) -> None:
    """Decoding what was encoded gives the same columns, and encoding these the same bytes."""
    data = encode_network(made)
    assert same(decode_network(data), made)
    assert encode_network(decode_network(data)) == data


@given(made=sections())
def test_sizes_follow_from_the_counts(made: NetworkSection) -> None:
    """A section is its header and its records, back to back."""
    count = made.operations.entry.size
    sends, receives = made.sends.rank.size + count, made.receives.rank.size + count
    assert len(encode_network(made)) == 16 + 96 * count + 72 * sends + 48 * receives
    assert np.array_equal(made.send_index, running_count(made.operations.channel[made.send_operation]) % 512)


@given(made=sections(), at=st.integers(0), bit=st.integers(0, 7))
def test_a_changed_bit_is_refused_or_read(made: NetworkSection, at: int, bit: int) -> None:
    """No damage is dropped silently: what is read of changed bytes encodes to just those bytes."""
    data = bytearray(encode_network(made))
    data[at % len(data)] ^= 1 << bit
    try:
        read = decode_network(bytes(data))
    except DecodeError:
        return
    assert encode_network(read) == bytes(data)


@given(data=st.binary(max_size=400) | st.builds(lambda n, tail: struct.pack("<4I", *n) + tail,
       st.tuples(*[st.integers(0, 3)] * 3, st.just(0)), st.binary(max_size=400)))  # fmt: skip
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Bytes that mean nothing are a DecodeError."""
    try:
        read = decode_network(data)
    except DecodeError:
        return
    assert encode_network(read) == data


# --- refusals ---------------------------------------------------------------------------------------------------------

OPERATION_AT, SEND_AT, RECEIVE_AT = 16, 16 + 96, 16 + 96 + 3 * 72
REFUSED = {
    "early_send of network_operation 0": (OPERATION_AT + 2, "<B", 1),
    "send_complete of network_operation 0": (OPERATION_AT + 16, "<Q", 8),
    "index_loop_size of network_operation 0": (OPERATION_AT + 48, "<I", 511),
    "initial_send_credits of network_operation 0": (OPERATION_AT + 52, "<I", 512),
    "ending_recv_credits of network_operation 0": (OPERATION_AT + 56, "<I", 7),
    "reserved byte of network_operation": (OPERATION_AT + 60, "<B", 1),
    "element_size of network_operation 0": (OPERATION_AT + 64, "<Q", 0),
    "variable_peer of network_operation 0": (OPERATION_AT + 73, "<B", 0),
    "unrolled_count of network_operation 0": (OPERATION_AT + 84, "<I", 0),
    "channel of network_operation 0": (OPERATION_AT + 88, "<I", 128),
    "tx_count of network_operation 0": (OPERATION_AT + 40, "<I", 1),
    "rx_count of network_operation 0": (OPERATION_AT + 44, "<I", 2),
    "send_handshake of network_operation 0": (OPERATION_AT + 8, "<Q", 0),
    "mark of network_send 0": (SEND_AT, "<B", Mark.EXEC_COMPLETE),
    "mark of network_send 2": (SEND_AT + 2 * 72, "<B", 0),
    "signals of network_send 0": (SEND_AT + 1, "<B", 3),
    "net_index of network_send 1": (SEND_AT + 72 + 2, "<H", 2),
    "op_index of network_send 0": (SEND_AT + 4, "<I", 1),
    "rank of network_send 0": (SEND_AT + 8, "<i", -1),
    "rank of network_send 1": (SEND_AT + 72 + 8, "<i", -2),
    "follows of network_send 0": (SEND_AT + 12, "<B", 1),
    "follows of network_send 1": (SEND_AT + 72 + 12, "<B", 2),
    "source of network_send 0": (SEND_AT + 16, "<Q", 0),
    "size of network_send 0": (SEND_AT + 32, "<Q", 3),
    "semaphore of network_send 0": (SEND_AT + 40, "<Q", 0),
    "value of network_send 0": (SEND_AT + 56, "<I", 0),
    "reserved byte of network_send": (SEND_AT + 64, "<B", 1),
    "size of network_send 2": (SEND_AT + 2 * 72 + 32, "<Q", 2),
    "rank of network_receive 1": (RECEIVE_AT + 48 + 8, "<i", 0),
    "target of network_receive 0": (RECEIVE_AT + 16, "<Q", 0),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    """Each field that means nothing is named, with its place."""
    at, code, value = REFUSED[what]
    data = bytearray(bytes.fromhex(GOLDEN))
    struct.pack_into(code, data, at, value)
    with pytest.raises(DecodeError, match=what) as raised:
        decode_network(bytes(data))
    assert raised.value.offset == at


def test_sections_of_another_length_are_refused() -> None:
    """A header that does not fit its section, and a section without operations."""
    data = bytes.fromhex(GOLDEN)
    for damaged in (data[:-1], data + b"\0", data[:15], bytes(16)):
        with pytest.raises(DecodeError):
            decode_network(damaged)


def test_what_does_not_fit_is_refused() -> None:
    """A value outside its field is not wrapped, and columns that could not be read back are not written."""
    with pytest.raises(
        UsageError, match=r"network_operation\.relative_op_index: expected a value from 0 to 4294967295"
    ):
        encode_network(section([(1 << 32, 0, 8, 0, 1, 1, 0, 8, 1)], [(1, 0, 16, 24, 1, 0, 0, 0, 0)], []))
    with pytest.raises(UsageError, match="operations in order of entry and channel"):
        encode_network(
            section([(0, channel, 8, 0, 1, 1, 0, 8, 1) for channel in (1, 0)], [(1, 0, 16, 24, 1, 0, 0, 0, 0)] * 2, [])
        )
