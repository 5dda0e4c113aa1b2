"""Whole packets as values: copies in pieces, and reduces with their operands, written to one place or to several.

A packet is a run of reading (TX) descriptors from FIRST to LAST with the writing (RX) ones that belong to it. Rows of
packets for a schedule are columns, built elsewhere; this is for packets that a person or a container names, and for
reading a ring back. The order inside a packet is a choice: seed, replication, clamp constant, then each source with
its scale before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.cce_info import CceInfo, packet_needs_info
from rota.isa.descriptors import (
    COPY_WORD,
    DESCRIPTOR_SIZE,
    FIRST_PHASE,
    LAYOUT,
    LENGTH_MASK,
    LIMITS_SOURCE,
    MAX_LENGTH,
    NIBBLE,
    RING_ID_MASK,
    RING_ID_SHIFT,
    TRANSFER_SHIFT,
    TRANSFER_SHIFTS,
    CceCtrl,
    MetaCtrl,
    Ordering,
    RxFlag,
    TxFlag,
    cce_word,
    len_ctrl,
    limits_of,
    reduce_packet_bytes,
)
from rota.isa.dtypes import SIZE_SOURCE, Dtype, short_name, size_of
from rota.isa.engines import DIFFERENCES_SOURCE, check_ordering
from rota.isa.enums import CceType
from rota.isa.layout import Buffer
from rota.isa.op_words import OpWord, WordKind, decode_word
from rota.isa.operand_words import (
    CONSTANT_OF_CCE,
    Operand,
    OperandKind,
    Position,
    constant_operand,
    decode_operand,
    encode_operand,
    fma_operand,
    replication_operand,
    seed_operand,
)
from rota.isa.transfer_types import PROMOTED, PROMOTION_SOURCE, needs_promotion, result_bytes

INTERLEAVE_SOURCE: Final = Source("sdma", "7, recommended layout", CONVENTION)
COUNTS_SOURCE: Final = Source("sdma", "7", MEDIUM)
BUILDER_SOURCE: Final = Source("sdma", "6", HIGH)
WORD_KIND: Final = {WordKind[each.name]: each for each in TRANSFER_SHIFTS}


@dataclass(frozen=True, slots=True)
class CopyPacket:
    """A copy of any size as one packet, cut into descriptors of at most 65536 bytes; the ordering is the last one's."""

    source: int
    target: int
    size: int
    ring: int = FIRST_PHASE
    ordering: Ordering = Ordering.NONE


@dataclass(frozen=True, slots=True)
class ReducePacket:
    """One reduce: `count` elements of every source, folded in order, written once to every target.

    Attributes:
        op: how sources meet; EXT combines nothing and converts.
        sources, targets: addresses.
        count: elements of each source.
        transfer, result: type of what is read and of what is written.
        scales: of an FMA, the bits of a float32 for each source.
        constant: of a MAX or MIN that clamps, 32 bits.
        seed: 32 bits when the result is rounded stochastically.
        ring, ordering: phase, and how the packet is kept in order.
    """

    op: CceType
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    count: int
    transfer: Dtype
    result: Dtype
    scales: tuple[int, ...] = ()
    constant: int | None = None
    seed: int | None = None
    ring: int = FIRST_PHASE
    ordering: Ordering = Ordering.NONE


Packet: TypeAlias = CopyPacket | ReducePacket


def descriptor_counts(packet: Packet) -> tuple[int, int]:
    """Return how many reading and writing descriptors a packet has. Source: sdma §7, medium."""
    if isinstance(packet, CopyPacket):
        pieces = -(-packet.size // MAX_LENGTH)
        return pieces, pieces
    scales = len(packet.sources) if packet.op is CceType.FMA else 0
    operands = sum((packet.seed is not None, len(packet.targets) > 1, packet.constant is not None))
    return operands + scales + len(packet.sources), len(packet.targets)


def reduce_sizes(size: int, dtype: Dtype, arch: str, *, cap: int = 0) -> tuple[int, ...]:
    """Return the bytes of each reduce packet of a transfer: full ones, then what remains.

    Raises:
        UnsupportedError: the elements have no size.
        UsageError: the bytes are no whole number of elements, the limit is less than 32 bytes, or the architecture
            is unknown.
    """
    full = reduce_packet_bytes(dtype, arch, cap=cap)
    if size < 0 or size % size_of(dtype) or not full:
        raise UsageError(f"reduce of {size} bytes in packets of {full}: expected whole {short_name(dtype)} elements")
    return (full,) * (size // full) + ((size % full,) if size % full else ())


def promoted(packet: ReducePacket) -> ReducePacket:
    """Return the packet as it travels: one source of unchanged one-byte elements goes as UINT16. Source: sdma §9, high.

    Raises:
        UsageError: the packet has an odd number of such elements.
    """
    if not needs_promotion(len(packet.sources), packet.transfer, packet.result):
        return packet
    if packet.count % size_of(PROMOTED):
        raise UsageError(f"one source of {short_name(packet.transfer)}: expected an even count, got {packet.count}")
    count = packet.count // size_of(PROMOTED)
    return ReducePacket(
        packet.op, packet.sources, packet.targets, count, PROMOTED, PROMOTED, packet.scales, packet.constant,
        packet.seed, packet.ring, packet.ordering,
    )  # fmt: skip


def packet_of_request(
    op: CceType,
    info: CceInfo | None,
    *,
    sources: tuple[int, ...],
    targets: tuple[int, ...],
    count: int,
    transfer: Dtype,
    result: Dtype,
) -> ReducePacket:
    """Return the packet for a container's request; without parameters, ADD and MAX or MIN without constant.

    Raises:
        UnsupportedError: an FMA without parameters.
        UsageError: the parameters say another number of sources or targets than there are addresses.
    """
    if info is None:
        if packet_needs_info(op, constant=False):
            raise UnsupportedError(f"{op.name} without parameters has no scale", source=BUILDER_SOURCE)
        return ReducePacket(op, sources, targets, count, transfer, result)
    if (info.sources, max(info.targets, 1)) != (len(sources), len(targets)):
        raise UsageError(
            f"{op.name} parameters: expected {len(sources)} sources and {len(targets)} targets, got {info.sources} and "
            f"{max(info.targets, 1)}"
        )
    constant = None if info.constant is None else info.constant.bits
    return ReducePacket(op, sources, targets, count, transfer, result, info.scales, constant)


def encode_packet(packet: Packet, *, arch: str) -> tuple[bytes, bytes]:
    """Return the reading and the writing descriptors of a packet.

    Raises:
        UnsupportedError: the architecture has not what the packet asks for: a strong-ordered write, more than one
            target, so many descriptors, elements or bytes, or the type has no transfer size.
        UsageError: a value does not fit, scales or constant do not go with the operation, or the architecture is
            unknown.
    """
    check_ordering(packet.ordering, arch)
    if isinstance(packet, CopyPacket):
        return _encode_copy(packet, arch)
    _check_reduce(packet, arch)
    return _encode_reduce(packet)


def _encode_copy(packet: CopyPacket, arch: str) -> tuple[bytes, bytes]:
    limits = limits_of(arch)
    most = min(limits.tx_cap, limits.rx_cap)
    if not 1 <= packet.size <= most * MAX_LENGTH:
        raise UsageError(f"copy packet on {arch}: expected 1 to {most * MAX_LENGTH} bytes, got {packet.size}; cut it")
    tx, rx = bytearray(), bytearray()
    for at in range(0, packet.size, MAX_LENGTH):
        size = min(MAX_LENGTH, packet.size - at)
        last = at + size == packet.size
        how = packet.ordering if last else Ordering.NONE
        reading = len_ctrl(size, ring=packet.ring, first=at == 0, last=last, concat=not last, dmb=how is Ordering.DMB)
        writing = len_ctrl(size, ring=packet.ring, strong_order=how is Ordering.STRONG_ORDER_WR)
        barrier = MetaCtrl.WRITE_BARRIER if how is Ordering.WRITE_BARRIER else 0
        tx += LAYOUT.encode(len_ctrl=int(reading), meta_ctrl=COPY_WORD | barrier, buf_ptr=packet.source + at)
        rx += LAYOUT.encode(len_ctrl=int(writing), buf_ptr=packet.target + at)
    return bytes(tx), bytes(rx)


def _check_reduce(packet: ReducePacket, arch: str) -> None:
    """Refuse a reduce that breaks a limit of the architecture or mixes what does not go together."""
    limits, op = limits_of(arch), packet.op
    if op not in TRANSFER_SHIFTS:
        raise UnsupportedError(f"{op.name}: the format of its descriptors is not known", source=BUILDER_SOURCE)
    if not size_of(packet.transfer) or not result_bytes(packet.result):
        kinds = f"{short_name(packet.transfer)} into {short_name(packet.result)}"
        raise UnsupportedError(f"{kinds}: one has no transfer size; use fp32", source=SIZE_SOURCE)
    if needs_promotion(len(packet.sources), packet.transfer, packet.result):
        raise UnsupportedError("one source of one-byte elements travels as uint16", source=PROMOTION_SOURCE)
    if not 1 <= len(packet.sources) <= limits.max_sources or not packet.targets:
        raise UsageError(f"{op.name} packet: expected 1 to {limits.max_sources} sources and a target")
    if len(packet.scales) != (len(packet.sources) if op is CceType.FMA else 0):
        raise UsageError(f"{op.name} packet: {len(packet.scales)} scales for {len(packet.sources)} sources")
    if packet.constant is not None and op not in CONSTANT_OF_CCE:
        raise UsageError(f"{op.name} packet: only MAX and MIN take a constant")
    several = len(packet.targets) > 1 or op is CceType.EXT
    if several and not limits.replication:
        raise UnsupportedError(f"{arch} has no replication; use one packet a target", source=DIFFERENCES_SOURCE)
    size = packet.count * max(size_of(packet.transfer), result_bytes(packet.result))
    if not 1 <= packet.count <= limits.max_cce_elements or size > limits.max_cce_bytes:
        most = f"{limits.max_cce_elements} elements and {limits.max_cce_bytes} bytes"
        got = f"{packet.count} of {size} bytes"
        raise UnsupportedError(f"{op.name} packet on {arch}: at most {most}, got {got}; cut it", source=LIMITS_SOURCE)
    reading, writing = descriptor_counts(packet)
    if reading > limits.tx_cap or writing > limits.rx_cap:
        most = f"{limits.tx_cap} reading and {limits.rx_cap} writing descriptors"
        raise UnsupportedError(
            f"{op.name} packet on {arch}: at most {most}, got {reading} and {writing}", source=LIMITS_SOURCE
        )


def _encode_reduce(packet: ReducePacket) -> tuple[bytes, bytes]:
    size = packet.count * size_of(packet.transfer)
    combination = len(packet.targets) > 1
    rows: list[Operand | int] = []  # an operand, or the place of a source
    if packet.seed is not None:
        rows.append(seed_operand(packet.seed))
    if combination:
        rows.append(replication_operand(len(packet.targets)))
    if packet.constant is not None:
        rows.append(constant_operand(packet.op, packet.constant, size=size))
    for i in range(len(packet.sources)):
        if packet.op is CceType.FMA:
            rows.append(fma_operand(packet.scales[i], member=combination))
        rows.append(i)

    tx = bytearray()
    dmb = packet.ordering is Ordering.DMB
    for at, row in enumerate(rows):
        first, last = at == 0, at == len(rows) - 1
        if isinstance(row, Operand):
            tx += encode_operand(row, Position(packet.ring, first=first, dmb=dmb and first))
            continue
        length = len_ctrl(size, ring=packet.ring, first=first, last=last, concat=not last, dmb=dmb and first)
        chain = MetaCtrl.CHAIN if combination and not last else 0
        word = _data_word(packet, last=last) | chain
        tx += LAYOUT.encode(len_ctrl=int(length), meta_ctrl=word, buf_ptr=packet.sources[row])
    rx = bytearray()
    for i, target in enumerate(packet.targets):
        strong = packet.ordering is Ordering.STRONG_ORDER_WR and i == len(packet.targets) - 1
        length = len_ctrl(packet.count * result_bytes(packet.result), ring=packet.ring, strong_order=strong)
        rx += LAYOUT.encode(len_ctrl=int(length), buf_ptr=target)
    return bytes(tx), bytes(rx)


def _data_word(packet: ReducePacket, *, last: bool) -> int:
    """Return the operation word of one source; a clamped MAX or MIN has the result's type in the middle nibble."""
    barrier = last and packet.ordering is Ordering.WRITE_BARRIER
    word = cce_word(packet.op, packet.transfer, packet.result, last=last, barrier=barrier)
    if packet.constant is None:
        return word
    return word & ~(NIBBLE << TRANSFER_SHIFT) | packet.result << TRANSFER_SHIFT | CceCtrl.USE_CONSTANT


def decode_packet(tx: Buffer, rx: Buffer, *, arch: str) -> Packet:
    """Return what the descriptors of exactly one packet say; `encode_packet` gives both back.

    Raises:
        DecodeError: they are no packet that `encode_packet` makes for this architecture; offsets from the length of
            `tx` on are in `rx`.
        UsageError: the architecture is unknown.
    """
    limits_of(arch)
    tx, rx = bytes(tx), bytes(rx)
    for base, side in ((0, tx), (len(tx), rx)):
        if not side or len(side) % DESCRIPTOR_SIZE:
            raise DecodeError(
                "packet", offset=base, expected="whole descriptors, one or more", got=f"{len(side)} bytes"
            )
    guess = _guess(tx, rx)
    try:
        want = encode_packet(guess, arch=arch)
    except (UsageError, UnsupportedError) as refusal:
        raise DecodeError("packet", offset=0, expected=f"one that {arch} takes", got=str(refusal)) from None
    for base, right, there in ((0, want[0], tx), (len(tx), want[1], rx)):
        if len(right) != len(there):
            counts = tuple(str(len(each) // DESCRIPTOR_SIZE) for each in (right, there))
            raise DecodeError("packet", offset=base, expected=f"{counts[0]} descriptors", got=counts[1])
        for at in range(0, len(right), 4):
            if right[at : at + 4] != there[at : at + 4]:
                words = tuple(f"0x{int.from_bytes(each[at : at + 4], 'little'):08X}" for each in (right, there))
                raise DecodeError("packet", offset=base + at, expected=words[0], got=words[1])
    return guess


def _guess(tx: bytes, rx: bytes) -> Packet:
    """Return the packet that the descriptors would be if nothing in them is wrong."""
    operands: list[Operand] = []
    data: list[tuple[OpWord, dict[str, int]]] = []
    for at in range(0, len(tx), DESCRIPTOR_SIZE):
        row = LAYOUT.decode(tx, at)
        if row["len_ctrl"] & TxFlag.META:
            operands.append(decode_operand(tx, offset=at)[0])
        else:
            data.append((decode_word(row["meta_ctrl"], offset=at + 4), row))
    if not data:
        raise DecodeError("packet", offset=0, expected="a descriptor that reads data", got="operands alone")
    targets = [LAYOUT.decode(rx, at) for at in range(0, len(rx), DESCRIPTOR_SIZE)]
    word, row = data[-1]
    ring = row["len_ctrl"] >> RING_ID_SHIFT & RING_ID_MASK
    strong = targets[-1]["len_ctrl"] & RxFlag.STRONG_ORDER_WR
    if word.kind is WordKind.COPY:
        dmb = row["len_ctrl"] & TxFlag.DMB
        sizes = (_length(each) for _, each in data)
        return CopyPacket(data[0][1]["buf_ptr"], targets[0]["buf_ptr"], sum(sizes), ring, _ordering(dmb, word, strong))
    dmb = int.from_bytes(tx[:4], "little") & TxFlag.DMB
    op = WORD_KIND.get(word.kind)
    if op is None:
        raise DecodeError("packet", offset=4, expected="a copy or a reduce", got=word.kind.name)
    return _guess_reduce(op, data, operands, targets, ring=ring, ordering=_ordering(dmb, word, strong))


def _guess_reduce(
    op: CceType,
    data: list[tuple[OpWord, dict[str, int]]],
    operands: list[Operand],
    targets: list[dict[str, int]],
    *,
    ring: int,
    ordering: Ordering,
) -> ReducePacket:
    word, row = data[-1]
    middle = op in (CceType.ADD, CceType.EXT)
    transfer = Dtype(word.field("middle_dtype" if middle else "input_dtype"))
    found = {each.kind: each.fields for each in operands}
    seed, constant = found.get(OperandKind.SEED), found.get(CONSTANT_OF_CCE.get(op, OperandKind.GRADIENT))
    return ReducePacket(
        op=op,
        sources=tuple(each["buf_ptr"] for _, each in data),
        targets=tuple(each["buf_ptr"] for each in targets),
        count=_length(row) // (size_of(transfer) or 1),
        transfer=transfer,
        result=Dtype(word.field("result_dtype")),
        scales=tuple(each.fields["scale"] for each in operands if each.kind is OperandKind.FMA),
        constant=constant["constant"] if constant is not None else None,
        seed=seed["seed"] if seed is not None else None,
        ring=ring,
        ordering=ordering,
    )


def _ordering(dmb: int, word: OpWord, strong: int) -> Ordering:
    if strong:
        return Ordering.STRONG_ORDER_WR
    if word.barrier:
        return Ordering.WRITE_BARRIER
    return Ordering.DMB if dmb else Ordering.NONE


def _length(row: dict[str, int]) -> int:
    return row["len_ctrl"] & LENGTH_MASK or MAX_LENGTH


def read_packets(tx: Buffer, rx: Buffer, *, arch: str) -> tuple[Packet, ...]:
    """Return the packets of two halves of a ring, in order; a copy has as many RX descriptors as TX ones.

    Raises:
        DecodeError: a packet is cut short, does not begin with FIRST, is none of ours, or descriptors are left over;
            offsets from the length of `tx` on are in `rx`.
        UsageError: the architecture is unknown.
    """
    tx, rx = bytes(tx), bytes(rx)
    bounds, written = [0, *_ends(tx)], 0
    packets: list[Packet] = []
    for start, stop in pairwise(bounds):
        targets = _targets(tx, start, stop) * DESCRIPTOR_SIZE
        mine, theirs = tx[start:stop], rx[written : written + targets]
        try:
            packets.append(decode_packet(mine, theirs, arch=arch))
        except DecodeError as error:
            inside = error.offset < len(mine)
            offset = error.offset + start if inside else error.offset - len(mine) + len(tx) + written
            raise DecodeError(error.what, offset=offset, expected=error.expected, got=error.got) from None
        written += targets
    if bounds[-1] != len(tx) or written != len(rx):
        offset = bounds[-1] if bounds[-1] != len(tx) else len(tx) + written
        raise DecodeError("ring", offset=offset, expected="whole packets", got="descriptors of no packet")
    return tuple(packets)


def _ends(tx: bytes) -> list[int]:
    """Return the offsets after each LAST descriptor."""
    starts = range(0, len(tx) - DESCRIPTOR_SIZE + 1, DESCRIPTOR_SIZE)
    return [at + DESCRIPTOR_SIZE for at in starts if int.from_bytes(tx[at : at + 4], "little") & TxFlag.LAST]


def _targets(tx: bytes, start: int, stop: int) -> int:
    """Return how many writing descriptors belong to the reading ones between two offsets."""
    rows = [LAYOUT.decode(tx, at) for at in range(start, stop, DESCRIPTOR_SIZE)]
    if rows[-1]["meta_ctrl"] & ~MetaCtrl.WRITE_BARRIER == COPY_WORD:
        return len(rows)
    for at, row in zip(range(start, stop, DESCRIPTOR_SIZE), rows, strict=True):
        if row["len_ctrl"] & TxFlag.META:
            operand, _ = decode_operand(tx, offset=at)
            if operand.kind is OperandKind.REPLICATION:
                return operand.fields["length"]
    return 1
