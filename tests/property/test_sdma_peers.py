"""A second decoder of the DMA records, written with `struct` and strings of bits, on random bytes.

Nothing here reads the tables it checks: formats and places are typed from the specification once more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import DecodeError
from rota.isa.cce_info import (
    ACCESS_PATTERN,
    CCE_INFO_FMA,
    CCE_INFO_MINMAX,
    CCE_INFO_PLAIN,
    VIEW,
    decode_cce_info,
    encode_cce_info,
    kbin_dma_desc,
)
from rota.isa.descriptors import Ordering
from rota.isa.dtypes import HELPER_SIZE, SIZE, Dtype
from rota.isa.engines import CHANNEL_COUNTER
from rota.isa.enums import CceType
from rota.isa.layout import Layout
from rota.isa.op_words import WORDS, WordKind, decode_word, encode_word
from rota.isa.operand_words import OPERANDS, OperandKind, decode_operand, encode_operand
from rota.isa.packets import CopyPacket, ReducePacket, decode_packet, encode_packet, read_packets
from rota.isa.templates import ADDRESS
from rota.isa.vrings import EMBEDDED, PAGE_LINKS, PRING_INFO, SEMAPHORE_BLOB, VRING, VRING_HALF, vring_set

Values = dict[str, int]
Reader = Callable[[bytes], Values]


def bits(value: int, high: int, low: int, width: int = 32) -> int:
    """Return bits high:low, cut out of the number's binary digits."""
    return int(f"{value:0{width}b}"[width - 1 - high : width - low], 2)


def fixed(form: str, *names: str) -> Reader:
    """Return a reader of one `struct` format; a name with `*n` takes n numbers."""

    def read(data: bytes) -> Values:
        numbers = iter(struct.unpack("<" + form, data))
        found: Values = {}
        for name in names:
            base, _, count = name.partition("*")
            if count:
                found |= {f"{base}[{i}]": next(numbers) for i in range(int(count))}
            else:
                number = next(numbers)
                found[base] = int.from_bytes(number, "little") if isinstance(number, bytes) else number
        return found

    return read


def digits(**places: tuple[int, int]) -> Reader:
    """Return a reader of bits high:low of a whole little-endian number."""

    def read(data: bytes) -> Values:
        number = int.from_bytes(data, "little")
        return {name: bits(number, *place, width=8 * len(data)) for name, place in places.items()}

    return read


FRAME = {"op_type": (22, 20), "ssmae_op": (25, 23), "write_barrier": (26, 26), "notification_mask": (28, 28),
         "chain": (30, 30)}  # fmt: skip
SUB, END = {"sub": (2, 0)}, {"cce_barrier": (6, 6), "last": (7, 7)}
TYPES = {"middle_dtype": (15, 12), "result_dtype": (19, 16)}
INPUT, FLAG = {"input_dtype": (11, 8)}, {"flag_4": (4, 4)}
MINMAX = {**SUB, "last_4": (4, 4), "use_constant": (5, 5), **END, **INPUT, **TYPES}
WORD_PEERS = {
    WordKind.COPY: {
        "last_block": (0, 0), "first_block": (1, 1), "crc_iv": (5, 3), "endianness": (13, 6), "validate_crc": (14, 14),
        "use_stored_crc_iv": (15, 15), "send_crc_result": (16, 16), "store_crc_result": (17, 17),
        "store_source_crc": (18, 18), "copy_source_data": (19, 19),
    },
    WordKind.ADD: {**SUB, **FLAG, **END, **TYPES},
    WordKind.FMA: {**SUB, **FLAG, **END, **INPUT, **TYPES},
    WordKind.MAX: MINMAX,
    WordKind.MIN: MINMAX,
    WordKind.EXT: {**SUB, **END, **TYPES},
    WordKind.GCE: {**SUB, **FLAG, **END, **INPUT, **TYPES},
    WordKind.SPLIT: {"count": (2, 0), "many": (5, 5), "shape_index": (15, 8), "dtype": (19, 16)},
    WordKind.TRANSPOSE: {"element_size": (4, 0), "many": (5, 5), "shape_index": (15, 8), "byte_count": (19, 16)},
    WordKind.REPLICATION: {"count": (15, 0)},
}  # fmt: skip

W1, W2 = 32, 64
META = {"meta": (23, 23), "ring": (25, 24), "first": (26, 26), "last": (27, 27), "dmb": (30, 30), "concat": (31, 31),
        "op_type": (W1 + 22, W1 + 20), "ssmae_op": (W1 + 25, W1 + 23), "operand": (W1 + 26, W1 + 26)}  # fmt: skip
MODE = {"mode": (W1 + 31, W1 + 29)}
LENGTH = {"length": (W2 + 23, W2)}
CONSTANT = {**META, **LENGTH, "a": (W2 + 25, W2 + 24), "constant": (127, 96)}
OPERAND_PEERS = {
    OperandKind.FMA: {**META, "sub": (W1 + 2, W1), **MODE, **LENGTH, "a": (W2 + 25, W2 + 24),
                      "b": (W2 + 27, W2 + 26), "c": (W2 + 29, W2 + 28), "scale": (127, 96)},
    OperandKind.MAX_CONSTANT: CONSTANT,
    OperandKind.MIN_CONSTANT: CONSTANT,
    OperandKind.SEED: {**META, "seed": (127, 96)},
    OperandKind.REPLICATION: {**META, **MODE, **LENGTH},
    OperandKind.GRADIENT: {**META, "one": (W1, W1), **MODE, "word2": (W2 + 31, W2), "word3": (127, 96)},
}  # fmt: skip

PATTERN = "QQI4x8q8QI4x"
PATTERN_NAMES = ("idx", "off", "num_dims", "steps*8", "sizes*8", "dtype")
HALF = "I4xQQB3xI"
HALF_NAMES = ("used_desc_count", "head", "tail", "is_template", "max_var_id")
RING = "256s" + 2 * HALF + "QQB7x"
RING_NAMES = (
    "name", *(f"{side}_{name}" for side in ("tx", "rx") for name in HALF_NAMES),
    "total_tx_size", "total_rx_size", "stochastic_rounding_en",
)  # fmt: skip

PEERS: list[tuple[Layout, Reader]] = [
    *((WORDS[kind], digits(**places, **FRAME)) for kind, places in WORD_PEERS.items()),
    *((OPERANDS[kind], digits(**places)) for kind, places in OPERAND_PEERS.items()),
    (CCE_INFO_PLAIN, fixed("I132xI", "num_sources", "num_dests")),
    (CCE_INFO_FMA, fixed("II32II", "num_sources", "scale_dtype", "scale*32", "num_dests")),
    (CCE_INFO_MINMAX, fixed("IB3xII120xI", "num_sources", "use_constant", "constant_dtype", "constant", "num_dests")),
    (ACCESS_PATTERN, fixed(PATTERN, *PATTERN_NAMES)),
    (
        kbin_dma_desc(),
        fixed(
            "Ii" + 33 * PATTERN + "I140sIIQI4x", "desc_type", "op",
            *(f"{who}_{name}" for who in ("to", *(f"from{i}" for i in range(32))) for name in PATTERN_NAMES),
            "num_tiling_dims", "cce_info", "block_id", "block_end", "function_name", "priority_class",
        ),
    ),
    (CHANNEL_COUNTER, digits(m2s_val=(15, 0), s2m_val=(31, 16), repeat=(47, 32), last_sync=(48, 48))),
    (ADDRESS, digits(offset=(35, 0), var_id=(54, 36), template=(61, 61))),
    (VRING_HALF, fixed(HALF, *HALF_NAMES)),
    (VRING, fixed(RING, *RING_NAMES)),
    (vring_set(), fixed(16 * RING + "QQ", *(f"vring{i}_{name}" for i in range(16) for name in RING_NAMES),
                      "count", "tile")),
    (PAGE_LINKS, fixed("QQ", "next", "prev")),
    (PRING_INFO, fixed("I4xQQII", "type", "ring_mem", "ring_offset_bytes", "used", "allocated")),
    (SEMAPHORE_BLOB, fixed("BHBH", "sow", "mark", "csr_index", "semaphore")),
    (EMBEDDED, digits(sow=(29, 29), packed=(31, 31), semaphore=(47, 32), csr_index=(55, 48), mark=(63, 56))),
]  # fmt: skip
LAYOUTS = [pytest.param(*pair, id=pair[0].name) for pair in PEERS]


def agree(layout: Layout, peer: Reader, records: int) -> None:
    """Compare both decoders on random records; what no field names is lost by encoding and nothing else is."""
    rng = np.random.default_rng(0x5D3A)
    named = int.from_bytes(layout.encode(**_ones(layout)), "little")
    for _ in range(records):
        record = rng.bytes(layout.size)
        values = layout.decode(record)
        assert values == peer(record)
        kept = int.from_bytes(record, "little") & named
        assert layout.encode(**values) == kept.to_bytes(layout.size, "little")
        assert (layout.reserved(record) is None) == (kept == int.from_bytes(record, "little"))


def _ones(layout: Layout) -> Values:
    """Return the values of a record of all ones."""
    return layout.decode(b"\xff" * layout.size)


@pytest.mark.parametrize(("layout", "peer"), LAYOUTS)
def test_layouts_against_struct(layout: Layout, peer: Reader) -> None:
    """Two readings of the specification agree on every field, and encoding is the inverse of decoding."""
    agree(layout, peer, 200 if layout.size < 1000 else 20)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "peer"), LAYOUTS)
def test_layouts_against_struct_at_length(layout: Layout, peer: Reader) -> None:
    """The same on 10,000 records a layout."""
    agree(layout, peer, 10_000)


@pytest.mark.parametrize("layout", [pytest.param(pair[0], id=pair[0].name) for pair in PEERS if pair[0].size < 1000])
@settings(deadline=None)
@given(data=st.data())
def test_columns_are_the_records(layout: Layout, data: st.DataObject) -> None:
    """The columns of many records hold what each record decodes to."""
    raw = data.draw(st.lists(st.binary(min_size=layout.size, max_size=layout.size), max_size=3).map(b"".join))
    columns = layout.columns(raw)
    for i in range(len(raw) // layout.size):
        values = layout.decode(raw, i * layout.size)
        for each in layout.fields:
            got = layout.column(columns, each.name)[i]
            if each.name in values:
                number = int.from_bytes(got.tobytes(), "little") if got.dtype.kind == "V" else int(got)
                assert number == values[each.name]
            else:
                assert got.tolist() == [values[f"{each.name}[{j}]"] for j in range(got.size)]


@settings(deadline=None)
@given(word=st.one_of(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 20) - 1).map(lambda low: low | 0x02000000)))
def test_every_operation_word_reads_back_or_is_refused(word: int) -> None:
    """Any 32 bits: the encoder's inverse, or a DecodeError and nothing else."""
    try:
        found = decode_word(word)
    except DecodeError:
        return
    assert encode_word(found, arch="mariana") == word
    places = WORD_PEERS[found.kind] | {name: FRAME[name] for name in ("write_barrier", "notification_mask", "chain")}
    assert dict(found.fields) == {name: bits(word, *place) for name, place in places.items()}


@settings(deadline=None)
@given(kind=st.sampled_from(list(WordKind)), data=st.data())
def test_every_field_of_an_operation_word(kind: WordKind, data: st.DataObject) -> None:
    """Random values in the class's own bits are accepted and come back."""
    block, op_type = {"COPY": (2, 0), "SPLIT": (1, 0), "TRANSPOSE": (1, 1), "REPLICATION": (1, 2)}.get(
        kind.name, (4, ["ADD", "FMA", "MAX", "MIN", "EXT", "GCE"].index(kind.name) if kind.value in range(1, 7) else 0)
    )
    word = block << 23 | op_type << 20
    for high, low in (*WORD_PEERS[kind].values(), (26, 26), (28, 28), (30, 30)):
        word |= data.draw(st.integers(0, (1 << high - low + 1) - 1)) << low
    found = decode_word(word)
    assert found.kind is kind
    assert encode_word(found, arch="mariana") == word


TAGS = {OperandKind.FMA: 0x02100000, OperandKind.MAX_CONSTANT: 0x06200000, OperandKind.MIN_CONSTANT: 0x06300000,
        OperandKind.SEED: 0x06000000, OperandKind.REPLICATION: 0x04A00000,
        OperandKind.GRADIENT: 0x06500001}  # fmt: skip
DECIDED = {"meta", "op_type", "ssmae_op", "operand", "one"}


@settings(deadline=None)
@given(kind=st.sampled_from(list(OperandKind)), data=st.data())
def test_every_field_of_an_operand(kind: OperandKind, data: st.DataObject) -> None:
    """Random values in a kind's own bits are accepted and come back; an FMA's member bit is its own."""
    number = 1 << 23 | TAGS[kind] << 32
    own = {name: place for name, place in OPERAND_PEERS[kind].items() if name not in DECIDED}
    own |= {"operand": (58, 58)} if kind is OperandKind.FMA else {}
    for name, (high, low) in own.items():
        least = 1 if (kind, name) == (OperandKind.REPLICATION, "mode") else 0
        number |= data.draw(st.integers(least, (1 << high - low + 1) - 1)) << low
    record = number.to_bytes(16, "little")
    operand, position = decode_operand(record)
    assert operand.kind is kind
    assert encode_operand(operand, position) == record


@settings(deadline=None)
@given(record=st.binary(max_size=20), tag=st.sampled_from([*TAGS.values(), None]))
def test_random_operands(record: bytes, tag: int | None) -> None:
    """Any bytes: the encoder's inverse, or a DecodeError and nothing else."""
    if tag is not None and len(record) >= 8:
        record = record[:2] + bytes([record[2] | 0x80]) + record[3:4] + tag.to_bytes(4, "little") + record[8:]
    try:
        operand, position = decode_operand(record)
    except DecodeError:
        return
    assert encode_operand(operand, position) == record[:16]


@settings(deadline=None)
@given(
    op=st.sampled_from(list(CceType)),
    head=st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 20)),
    tail=st.binary(max_size=128),
)
def test_random_reduce_parameters(op: CceType, head: tuple[int, int, int], tail: bytes) -> None:
    """Any 140 bytes: the encoder's inverse, or a DecodeError and nothing else."""
    data = struct.pack("<III", *head) + tail.ljust(128, b"\0")
    try:
        info = decode_cce_info(data, op)
    except DecodeError:
        return
    assert op in VIEW
    assert encode_cce_info(info, op) == data


ADDRESSES = st.integers(0, (1 << 57) - 1)
U32S = st.integers(0, (1 << 32) - 1)


@st.composite
def reduces(draw: st.DrawFn) -> ReducePacket:
    """Reduce packets that cayman takes."""
    op = draw(st.sampled_from([CceType.ADD, CceType.FMA, CceType.MAX, CceType.MIN, CceType.EXT]))
    sources = tuple(draw(st.lists(ADDRESSES, min_size=2, max_size=5)))
    transfer = draw(st.sampled_from([dtype for dtype in Dtype if SIZE[dtype]]))
    result = draw(st.sampled_from([dtype for dtype in Dtype if HELPER_SIZE[dtype]]))
    most = 0x2000 // max(SIZE[transfer], HELPER_SIZE[result])
    clamp = op in (CceType.MAX, CceType.MIN)
    return ReducePacket(
        op, sources, tuple(draw(st.lists(ADDRESSES, min_size=1, max_size=4))),
        draw(st.integers(1, min(most, 0x800))), transfer, result,
        scales=tuple(draw(U32S) for _ in sources) if op is CceType.FMA else (),
        constant=draw(st.none() | U32S) if clamp else None,
        seed=draw(st.none() | U32S), ring=draw(st.integers(0, 3)), ordering=draw(st.sampled_from(list(Ordering))),
    )  # fmt: skip


COPIES = st.builds(
    CopyPacket, ADDRESSES, ADDRESSES, st.integers(1, 4 * 65536), st.integers(0, 3), st.sampled_from(list(Ordering))
)


@settings(deadline=None)
@given(packet=reduces())
def test_reduces_against_struct(packet: ReducePacket) -> None:
    """sdma §5, §7: what a second reader finds in the descriptors of a reduce."""
    tx, rx = encode_packet(packet, arch="cayman")
    rows = list(struct.iter_unpack("<IIQ", tx))
    data = [row for row in rows if not bits(row[0], 23, 23)]
    operands = [row for row in rows if bits(row[0], 23, 23)]
    assert [row[2] for row in data] == list(packet.sources)
    assert {bits(row[0], 15, 0) for row in data} == {packet.count * SIZE[packet.transfer]}
    assert [bits(row[0], 26, 26) for row in rows] == [1] + [0] * (len(rows) - 1)
    assert [bits(row[0], 27, 27) for row in rows] == [0] * (len(rows) - 1) + [1]
    assert [bits(row[0], 31, 31) for row in rows] == [1] * (len(rows) - 1) + [0]
    assert {bits(row[0], 25, 24) for row in rows} == {packet.ring}
    assert {bits(row[1], 25, 20) for row in data} == {4 << 3 | packet.op}
    assert [bits(row[1], 7, 7) for row in data] == [0] * (len(data) - 1) + [1]
    assert {bits(row[1], 19, 16) for row in data} == {packet.result}
    scales = [row[2] >> 32 for row in operands if row[1] & ~0x04000000 == 0x02100000]
    assert scales == list(packet.scales)
    assert [row[2] >> 32 for row in operands if row[1] == 0x06000000] == ([] if packet.seed is None else [packet.seed])
    constants = [row[2] >> 32 for row in operands if row[1] in (0x06200000, 0x06300000)]
    assert constants == ([] if packet.constant is None else [packet.constant])
    written = list(struct.iter_unpack("<IIQ", rx))
    assert [row[2] for row in written] == list(packet.targets)
    assert {(bits(row[0], 15, 0), row[1]) for row in written} == {(packet.count * HELPER_SIZE[packet.result], 0)}


@settings(deadline=None)
@given(packets=st.lists(reduces() | COPIES, max_size=4), flip=st.none() | st.tuples(st.integers(0), st.integers(0, 7)))
def test_packets_read_back(packets: list[ReducePacket | CopyPacket], flip: tuple[int, int] | None) -> None:
    """Packets read back as they were; with one bit flipped they are others that encode to it, or a DecodeError."""
    pairs = [encode_packet(each, arch="cayman") for each in packets]
    tx, rx = (b"".join(pair[side] for pair in pairs) for side in (0, 1))
    assert read_packets(tx, rx, arch="cayman") == tuple(packets)
    if flip is None or not tx:
        return
    both = bytearray(tx + rx)
    both[flip[0] % len(both)] ^= 1 << flip[1]
    tx, rx = bytes(both[: len(tx)]), bytes(both[len(tx) :])
    try:
        found = read_packets(tx, rx, arch="cayman")
    except DecodeError as error:
        refusal = error
    else:
        pairs = [encode_packet(each, arch="cayman") for each in found]
        assert b"".join(pair[0] for pair in pairs) == tx
        assert b"".join(pair[1] for pair in pairs) == rx
        return
    assert 0 <= refusal.offset <= len(both)


@settings(deadline=None)
@given(tx=st.binary(max_size=64), rx=st.binary(max_size=48), arch=st.sampled_from(["sunda", "cayman", "mariana"]))
def test_random_packets(tx: bytes, rx: bytes, arch: str) -> None:
    """Any bytes: the encoder's inverse, or a DecodeError and nothing else."""
    offsets = []
    for read in (decode_packet, read_packets):
        try:
            read(tx, rx, arch=arch)
        except DecodeError as error:
            offsets.append(error.offset)
    assert all(0 <= offset <= len(tx) + len(rx) for offset in offsets)
