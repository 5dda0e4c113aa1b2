"""Moves as packets: every row that moves data cut into folds, and each fold into packets, with their descriptors.

A fold that a copy does not reach ends in padding; one that a reduce does not reach reduces one element of the pad line,
so that every fold has as many descriptors. Everything is columns; positions come from prefix sums.
Source: device-model §3, conventions; sdma §7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, U32, U64, Array, Bool, pointers
from rota.emit.placement import Placement
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa import arch as isa
from rota.isa.descriptors import (
    ACCUMULATE,
    COPY_WORD,
    DESCRIPTOR,
    LIMITS,
    MetaCtrl,
    SdmaLimits,
    TxFlag,
    cce_word,
    fma_operands,
    reduce_packet_bytes,
)
from rota.isa.dtypes import Dtype, size_of
from rota.isa.engines import DIFFERENCES_SOURCE
from rota.isa.enums import CceType
from rota.isa.op_words import WordKind, base_of
from rota.isa.operand_words import Operand, encode_operand, fma_operand, replication_operand
from rota.schedule.ir import Op, Schedule

GRANULE: Final = 32  # folds are cut here. Source: device-model §3, fold split, convention
PAD_BYTES: Final = 4
PAD_SOURCE: Final = Source("device-model", "3, padding", CONVENTION)
CCE_OF_OP: Final = {Op.ADD: CceType.ADD, Op.FMA: CceType.FMA, Op.MAX: CceType.MAX, Op.MIN: CceType.MIN}
_FRAME: Final = TxFlag.META | TxFlag.CONCAT


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """One entry per packet that is paired as a whole: one piece of a copy, a reduce, a signal.

    Attributes:
        launch, fold: which start it belongs to, and on which fold.
        tx_at, rx_at: place of its first descriptors among those of the start on this fold.
        size: bytes of each data descriptor.
        reads, writes: descriptors it has on either side.
    """

    launch: I64
    fold: I64
    tx_at: I64
    rx_at: I64
    size: I64
    reads: I64
    writes: I64


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """One entry per TX descriptor.

    Attributes:
        flags: of the length word: FIRST, LAST, CONCAT, META and DMB.
        word, address: what `meta_ctrl` and `buf_ptr` hold; an operand has no length.
    """

    packet: I64
    place: I64
    flags: U32
    word: U32
    address: U64


@dataclass(frozen=True, slots=True, eq=False)
class Writes:
    """One entry per RX descriptor; a strong write lands before later ones."""

    packet: I64
    place: I64
    address: I64
    strong: Bool


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Rows that move data, in the order of their starts, cut into folds.

    Attributes:
        row: of the schedule. fan_in, fan_out: its sources and targets.
        start, length: of each fold's share, shape (moves, folds).
        packet: most bytes of one packet. pieces: packets on each fold that has data, shape (moves, folds).
        each: packets on every fold, those of padding among them.
        reads, writes: descriptors of one packet.
    """

    row: I64
    fan_in: I64
    fan_out: I64
    reduces: Bool
    start: I64
    length: I64
    packet: I64
    pieces: I64
    each: I64
    reads: I64
    writes: I64


def cut_moves(schedule: Schedule, row: I64, dtype: Dtype, arch: isa.Arch, folds: int) -> Cut:
    """Cut rows into folds and packets.

    Args:
        row: rows of the schedule that move data.

    Raises:
        UnsupportedError: the machine cannot write one value to several places, or elements have no size.
    """
    limits = LIMITS[arch.name]
    fan_in = np.diff(schedule.sources.ptr)[row].astype(np.int64)
    fan_out = np.diff(schedule.targets.ptr)[row].astype(np.int64)
    op = schedule.rows.op[row]
    reduces = (fan_in > 1) | (op == Op.FMA)
    if not limits.replication and (fan_out > 1).any():
        name = schedule.name(int(row[np.argmax(fan_out > 1)]))
        raise UnsupportedError(
            f"{name}: {arch.name} writes to one place at a time; use two rows", source=DIFFERENCES_SOURCE
        )
    start, length = fold_cut(schedule.rows.size[row], folds)
    reduced = reduce_packet_bytes(dtype, arch.name) if reduces.any() else 1
    packet = np.where(reduces, reduced, limits.max_descriptor_bytes)
    pieces = -(-length // packet[:, None])
    operands = (op == Op.FMA) * fan_in + (reduces & (fan_out > 1))
    return Cut(
        row=row,
        fan_in=fan_in,
        fan_out=fan_out,
        reduces=reduces,
        start=start,
        length=length,
        packet=packet,
        pieces=pieces,
        each=pieces.max(axis=1, initial=0),
        reads=np.where(reduces, fan_in + operands, 1),
        writes=fan_out,
    )


def fold_cut(size: I64, folds: int) -> tuple[I64, I64]:
    """Cut rows at granules, the tail to the last fold: start and length, shape (moves, folds)."""
    granules = -(-size // GRANULE)
    edges = np.minimum(granules[:, None] * np.arange(folds + 1) // folds * GRANULE, size[:, None])
    return edges[:, :-1], np.diff(edges, axis=1)


def pack_moves(
    schedule: Schedule,
    cut: Cut,
    launch: I64,
    *,
    dtype: Dtype,
    scales: Sequence[float],
    at: Placement,
    member: I64,
    buffers: I64,
) -> tuple[Packets, Reads, Writes]:
    """Return the packets of moves.

    Args:
        launch: which start each move belongs to, ascending.
        scales: of an FMA, as `execute` takes them.
        member: of the placement, for each rank of the schedule.
        buffers: offset of each buffer of the schedule in a member's memory.
    """
    folds = cut.length.shape[1]
    one = np.repeat(np.arange(cut.row.size), cut.each * folds)
    position = np.arange(one.size) - pointers(cut.each * folds)[one]
    each = cut.each[one]
    fold, piece = position // each, position % each
    offset, size, real = _pieces(cut, one, fold, piece, size_of(dtype))
    tx_at = _prefix_within(launch, cut.each * cut.reads)[one] + piece * cut.reads[one]
    rx_at = _prefix_within(launch, cut.each * cut.writes)[one] + piece * cut.writes[one]
    packets = Packets(launch[one], fold, tx_at, rx_at, size, cut.reads[one], cut.writes[one])
    issuer = member[schedule.rows.rank[cut.row].astype(np.int64)]
    pad = (at.memory(issuer, issuer) + isa.PAD_LINE)[one]
    within = cut.start[one, fold] + offset
    where = _Where(one, piece, real, pad, within, issuer)
    strong = real & (at.arch.sow & _last_real(launch, cut.length)[one, fold])
    strong &= piece == np.where(cut.reduces[one], cut.each[one], cut.pieces[one, fold]) - 1
    address = _Addresses(schedule, at, member, buffers)
    return (
        packets,
        _reads(schedule, cut, where, packets, address, dtype, scales, fold, LIMITS[at.arch.name]),
        _writes(schedule, cut, where, packets, address, strong),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Where:
    """Of each packet: the move, which piece of its fold, whether it is no padding, and addresses."""

    move: I64
    piece: I64
    real: Bool
    pad: I64
    within: I64
    issuer: I64  # of each move


@dataclass(frozen=True, slots=True, eq=False)
class _Addresses:
    schedule: Schedule
    at: Placement
    member: I64
    buffers: I64

    def __call__(self, rank: Array, buffer: Array, offset: Array, viewer: I64) -> I64:
        place: I64 = self.at.memory(self.member[rank.astype(np.int64)], viewer) + self.buffers[buffer] + offset
        return place


def _reads(
    schedule: Schedule, cut: Cut, where: _Where, packets: Packets, address: _Addresses, dtype: Dtype,
    scales: Sequence[float], fold: I64, limits: SdmaLimits,
) -> Reads:  # fmt: skip
    packet = np.repeat(np.arange(packets.launch.size), packets.reads)
    place = np.arange(packet.size) - pointers(packets.reads)[packet]
    move = where.move[packet]
    reduces = cut.reduces[move]
    op = schedule.rows.op[cut.row][move]
    several = cut.fan_out[move] > 1
    replicates = reduces & several & (place == 0)
    inner = place - (reduces & several)
    fma = reduces & (op == Op.FMA)
    operand = fma & (inner % 2 == 0) & ~replicates
    source = np.where(fma, inner // 2, inner)
    source = np.where(replicates, 0, source)
    entry = schedule.sources.ptr[cut.row].astype(np.int64)[move] + source
    sources = schedule.sources
    data = address(sources.rank[entry], sources.buffer[entry], sources.offset[entry], where.issuer[move])
    data = np.where(where.real[packet], data + where.within[packet], where.pad[packet])

    piece, final = where.piece[packet], cut.pieces[move, fold[packet]] - 1
    alone = several | ~where.real[packet]
    cap = limits.rx_cap
    copy_first = (piece % cap == 0) | alone
    copy_last = (piece % cap == cap - 1) | (piece == final) | alone
    first = np.where(reduces, place == 0, copy_first)
    last = np.where(reduces, place == packets.reads[packet] - 1, copy_last)
    is_operand = operand | replicates
    flags = np.where(first, TxFlag.FIRST, 0) | np.where(last, TxFlag.LAST, 0)
    flags |= np.where(is_operand, _FRAME, np.where(last, 0, TxFlag.CONCAT))

    word = _words(op, reduces, several, last, cut.fan_out[move], dtype)
    bits = data.astype(np.uint64)
    if is_operand.any():
        factor = _factors(schedule, scales)[entry[operand]]
        for chained in (False, True):
            tag = _operand(fma_operand(0, member=chained))
            chosen = operand & (several == chained)
            word[chosen] = tag["meta_ctrl"]
        bits[operand] = fma_operands(factor)
        for count in np.unique(cut.fan_out[move[replicates]]).tolist():
            tag = _operand(replication_operand(count))
            chosen = replicates & (cut.fan_out[move] == count)
            word[chosen], bits[chosen] = tag["meta_ctrl"], tag["buf_ptr"]
    return Reads(packet, place, flags.astype(np.uint32), word.astype(np.uint32), bits)


def _writes(schedule: Schedule, cut: Cut, where: _Where, packets: Packets, address: _Addresses, strong: Bool) -> Writes:
    packet = np.repeat(np.arange(packets.launch.size), packets.writes)
    place = np.arange(packet.size) - pointers(packets.writes)[packet]
    move = where.move[packet]
    entry = schedule.targets.ptr[cut.row].astype(np.int64)[move] + place
    targets = schedule.targets
    data = address(targets.rank[entry], targets.buffer[entry], targets.offset[entry], where.issuer[move])
    data = np.where(where.real[packet], data + where.within[packet], where.pad[packet])
    return Writes(packet, place, data, strong[packet] & (place == packets.writes[packet] - 1))


def _operand(operand: Operand) -> Array:
    one: Array = np.frombuffer(encode_operand(operand), DESCRIPTOR)[0]
    return one


def _factors(schedule: Schedule, scales: Sequence[float]) -> Array:
    """Return what each source of an FMA is multiplied with: an input by its rank's scale, all else by 1."""
    own = np.resize(np.array(scales or (1.0,), np.float32), schedule.ranks)
    factors: Array = np.where(schedule.sources.buffer == schedule.input, own[schedule.sources.rank], np.float32(1))
    return factors


def _pieces(cut: Cut, one: I64, fold: I64, piece: I64, itemsize: int) -> tuple[I64, I64, Bool]:
    """Return offset, bytes and reality of each piece of a fold.

    A copy fold with fewer pieces ends in padding. A reduce fold that is one packet short halves its last packet; one
    without a byte reduces one element of the pad line instead, so that every fold has the same shape.
    """
    length, each, packet, reduces = cut.length[one, fold], cut.each[one], cut.packet[one], cut.reduces[one]
    offset = piece * packet
    size = np.clip(length - offset, 0, packet)
    short = reduces & (length > 0) & (-(-length // packet) < each)
    tail = length - (each - 2) * packet
    half = tail // 2 // itemsize * itemsize
    offset = np.where(short & (piece == each - 1), (each - 2) * packet + half, offset)
    size = np.where(short & (piece == each - 2), half, size)
    size = np.where(short & (piece == each - 1), tail - half, size)
    real = size > 0
    return offset, np.where(real, size, np.where(reduces, itemsize, PAD_BYTES)), real


def _last_real(launch: I64, length: I64) -> Bool:
    """Say which move of a start is the last with bytes on each fold, shape (moves, folds)."""
    moves = np.arange(launch.size)
    last = np.full((int(launch.max(initial=-1)) + 1, length.shape[1]), -1, np.int64)
    np.maximum.at(last, launch, np.where(length > 0, moves[:, None], -1))
    found: Bool = last[launch] == moves[:, None]
    return found


def _prefix_within(launch: I64, amount: I64) -> I64:
    """Return the sum of `amount` over earlier moves of the same start; moves are sorted by start."""
    total: I64 = np.cumsum(amount) - amount
    fresh = (
        np.flatnonzero(np.concatenate(([True], launch[1:] != launch[:-1]))) if launch.size else np.zeros(0, np.int64)
    )
    within: I64 = total - np.repeat(total[fresh], np.diff(np.append(fresh, launch.size)))
    return within


def _words(op: Array, reduces: Bool, several: Bool, last: Bool, targets: I64, dtype: Dtype) -> I64:
    word: I64 = np.full(op.size, COPY_WORD, np.int64)
    for count in np.unique(targets[several & ~reduces]).tolist():
        word[several & ~reduces & (targets == count)] = base_of(WordKind.REPLICATION) | count
    for value in np.unique(op[reduces]).tolist():
        for ends in (False, True):
            chosen = reduces & (op == value) & (last == ends)
            word[chosen] = cce_word(CCE_OF_OP[Op(value)], dtype, ACCUMULATE.get(dtype, dtype), last=ends)
    word[reduces & several & ~last] |= int(MetaCtrl.CHAIN)
    return word
