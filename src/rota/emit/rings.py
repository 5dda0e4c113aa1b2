"""Moves as DMA descriptors: per rank, engine and queue one ring of sources (TX) and one of destinations (RX).

A device row puts on every fold, in this order: its data, padding, one packet for each signal, one for its completion.
All folds of a row have equal counts. Everything is built as columns of items, an item being one destination descriptor
with its sources; positions come from prefix sums, nothing is sorted. Source: device-model §3, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, owners, pointers, running_count
from rota.emit.placement import ROLES, DeviceRows, Placement, semaphore_roles
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa import arch as isa
from rota.isa.descriptors import (
    ACCUMULATE,
    COPY_WORD,
    DESCRIPTOR,
    FIRST_PHASE,
    LIMITS,
    SdmaLimits,
    cce_word,
    len_ctrl,
    reduce_packet_bytes,
)
from rota.isa.dtypes import Dtype, size_of
from rota.isa.enums import CceType
from rota.isa.ring_cursor import GUARD
from rota.isa.semaphores import Window
from rota.schedule.ir import Op, Schedule

GRANULE: Final = 32  # folds are cut here. Source: device-model §3, fold split, convention
RING_SIZE: Final = 4096
RING_SOURCE: Final = Source("sdma", "14.6", HIGH)
PAD_BYTES: Final = 4
PAD_SOURCE: Final = Source("device-model", "3, padding", CONVENTION)
CCE_OF_OP: Final = {Op.ADD: CceType.ADD, Op.MAX: CceType.MAX, Op.MIN: CceType.MIN}


@dataclass(frozen=True, slots=True, eq=False)
class Rings:
    """All descriptors of all ranks, section after section.

    Attributes:
        tx, rx: structured arrays of `descriptors.DESCRIPTOR`.
        tx_ptr, rx_ptr: where each section starts; a section is (rank, queue, fold), folds varying fastest.
        rank, queue: of each channel; channel k has sections k * folds to (k + 1) * folds.
        m2s, s2m: descriptors of each device row on every fold.
        feeds: the constants that each rank's semaphore packets add, in the order of its feed words.
    """

    folds: int
    tx: Array
    rx: Array
    tx_ptr: I64
    rx_ptr: I64
    rank: I64
    queue: I64
    m2s: I64
    s2m: I64
    feeds: tuple[I64, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """One entry per destination descriptor."""

    row: I64  # device row
    fold: I64
    at: I64  # place among the row's items on this fold
    tx_at: I64  # place among the row's source descriptors on this fold
    sources: I64  # source descriptors
    size: I64
    target: I64  # address
    strong: Bool  # its write must land before later ones


@dataclass(frozen=True, slots=True, eq=False)
class _Reads:
    """One entry per source descriptor."""

    item: I64
    place: I64  # among the item's sources
    address: I64
    word: I64
    first: Bool
    last: Bool
    barrier: Bool  # starts only when everything before it has landed


def build_rings(schedule: Schedule, rows: DeviceRows, owner: I64, *, dtype: Dtype, at: Placement, folds: int) -> Rings:
    """Return the descriptors of a schedule.

    Args:
        owner: device row of each row of the schedule.
        dtype: wire type of the elements.
        folds: queues each channel spreads over, 1 to 16.

    Raises:
        UnsupportedError: a row the engines cannot do: a pull, a duplication, more descriptors than a ring or a counter
            takes.
    """
    _check_moves(schedule)
    limits = LIMITS[at.arch.name]
    data, data_reads, counts = _data(schedule, owner, dtype, at, folds, limits, rows.rank.size)
    signals, signal_reads, feeds = _signals(schedule, rows, owner, at, folds, counts)
    items, reads = _join(data, signals), _join_reads(data_reads, signal_reads, data.row.size)
    s2m = counts.items + counts.signals + 1
    m2s = counts.reads + counts.signals + 1
    _check_counts(rows, m2s, s2m)
    return _scatter(items, reads, rows, m2s, s2m, folds, feeds)


def _check_moves(schedule: Schedule) -> None:
    source_row = owners(schedule.sources.ptr)
    pulls = np.flatnonzero(schedule.sources.rank != schedule.rows.rank[source_row])
    if pulls.size:
        raise UnsupportedError(
            f"{schedule.name(int(source_row[pulls[0]]))}: reads another rank's memory; this version pushes"
        )
    several = np.flatnonzero(np.diff(schedule.targets.ptr) > 1)
    if several.size:
        raise UnsupportedError(f"{schedule.name(int(several[0]))}: this version emits one target a row")
    other = np.flatnonzero(~np.isin(schedule.rows.op, [Op.NONE, *CCE_OF_OP]))
    if other.size:
        row, names = int(other[0]), ", ".join(op.name for op in CCE_OF_OP)
        raise UnsupportedError(
            f"{schedule.name(row)}: operation {Op(int(schedule.rows.op[row])).name}; this version emits {names}"
        )


def _check_counts(rows: DeviceRows, m2s: I64, s2m: I64) -> None:
    longest = int(m2s.max(initial=0))
    if longest > RING_SIZE - GUARD:
        raise UnsupportedError(
            f"a row needs {longest} descriptors on one fold, and a ring of {RING_SIZE} takes {RING_SIZE - GUARD}; "
            "use more folds",
            source=RING_SOURCE,
        )
    lane = np.cumsum(np.isin(np.arange(rows.rank.size), rows.channel_start)) - 1
    most = int(max(np.bincount(lane, m2s).max(initial=0), np.bincount(lane, s2m).max(initial=0)))
    cap = LIMITS["cayman"].max_descriptors_per_channel
    if most > cap:
        raise UnsupportedError(
            f"a channel needs {most} descriptors for one operation, and its counter ends at {cap}; use a smaller size",
            source=Source("sdma", "7", HIGH),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Per device row, on every fold."""

    items: I64  # data and padding
    reads: I64  # their source descriptors
    signals: I64
    has_data: Bool  # shape (rows, folds)


def _data(
    schedule: Schedule, owner: I64, dtype: Dtype, at: Placement, folds: int, limits: SdmaLimits, rows: int
) -> tuple[_Items, _Reads, _Counts]:
    """Cut every move into folds and packets."""
    move = np.flatnonzero(schedule.rows.size)
    move = move[np.argsort(owner[move], kind="stable")]
    row, size = owner[move], schedule.rows.size[move]
    fan_in = np.diff(schedule.sources.ptr)[move].astype(np.int64)
    reduces = fan_in > 1
    start, length = _fold_cut(size, folds)
    packet = np.where(
        reduces, reduce_packet_bytes(dtype, at.arch.name) if reduces.any() else 1, limits.max_descriptor_bytes
    )
    pieces = -(-length // packet[:, None])
    each = pieces.max(axis=1, initial=0)

    repeat = np.repeat(np.arange(move.size), each * folds)
    position = np.arange(repeat.size) - pointers(each * folds)[repeat]
    fold, piece = np.divmod(position, each[repeat])
    offset, bytes_, real = _pieces(
        piece, length[repeat, fold], each[repeat], packet[repeat], reduces[repeat], size_of(dtype)
    )

    issuer = schedule.rows.rank[move].astype(np.int64)
    target_at = schedule.targets.ptr[move].astype(np.int64)
    target = _address(schedule.targets.rank, schedule.targets.buffer, schedule.targets.offset, target_at, issuer, at)
    pad_line = at.memory(issuer, issuer) + isa.PAD_LINE
    within = start[repeat, fold] + offset
    item_target = np.where(real, target[repeat] + within, pad_line[repeat])
    strong = (
        real
        & _last_real(row, length)[repeat, fold]
        & (piece == np.where(reduces[repeat], each[repeat], pieces[repeat, fold]) - 1)
    )

    item_at = _prefix_within(row, each)[repeat] + piece
    tx_at = (
        _prefix_within(row, each * np.where(reduces, fan_in, 1))[repeat] + piece * np.where(reduces, fan_in, 1)[repeat]
    )
    items = _Items(row[repeat], fold, item_at, tx_at, fan_in[repeat], bytes_, item_target, strong & at.arch.sow)

    item = np.repeat(np.arange(repeat.size), fan_in[repeat])
    place = np.arange(item.size) - pointers(fan_in[repeat])[item]
    source_at = schedule.sources.ptr[move].astype(np.int64)[repeat[item]] + place
    source = _address(
        schedule.sources.rank, schedule.sources.buffer, schedule.sources.offset, source_at, issuer[repeat[item]], at
    )
    cap = limits.rx_cap
    copy_first = (piece % cap == 0) | ~real
    copy_last = (piece % cap == cap - 1) | (piece == pieces[repeat, fold] - 1) | ~real
    is_reduce = reduces[repeat[item]]
    last = np.where(is_reduce, place == fan_in[repeat[item]] - 1, copy_last[item])
    reads = _Reads(
        item=item,
        place=place,
        address=np.where(real[item], source + within[item], pad_line[repeat[item]]),
        word=_words(schedule.rows.op[move][repeat[item]], is_reduce, last, dtype),
        first=np.where(is_reduce, place == 0, copy_first[item]),
        last=last,
        barrier=np.zeros(item.size, np.bool_),
    )
    has_data = np.zeros((rows, folds), np.bool_)
    np.logical_or.at(has_data, row, length > 0)
    counts = _Counts(
        items=np.bincount(row, each, rows).astype(np.int64),
        reads=np.bincount(row, each * np.where(reduces, fan_in, 1), rows).astype(np.int64),
        signals=np.bincount(owner[schedule.signal_row], minlength=rows),
        has_data=has_data,
    )
    return items, reads, counts


def _fold_cut(size: I64, folds: int) -> tuple[I64, I64]:
    """Cut rows at granules, the tail to the last fold: start and length, shape (moves, folds)."""
    granules = -(-size // GRANULE)
    edges = np.minimum(granules[:, None] * np.arange(folds + 1) // folds * GRANULE, size[:, None])
    return edges[:, :-1], np.diff(edges, axis=1)


def _pieces(piece: I64, length: I64, each: I64, packet: I64, reduces: Bool, itemsize: int) -> tuple[I64, I64, Bool]:
    """Return offset, bytes and reality of each piece of a fold.

    A copy fold with fewer pieces ends in padding. A reduce fold that is one packet short halves its last packet; one
    without a byte reduces one element of the pad line instead, so that every fold has the same shape.
    """
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


def _last_real(row: I64, length: I64) -> Bool:
    """Say which move of a row is the last with bytes on each fold, shape (moves, folds)."""
    moves = np.arange(row.size)
    last = np.full((int(row.max(initial=-1)) + 1, length.shape[1]), -1, np.int64)
    np.maximum.at(last, row, np.where(length > 0, moves[:, None], -1))
    found: Bool = last[row] == moves[:, None]
    return found


def _prefix_within(row: I64, amount: I64) -> I64:
    """Return the sum of `amount` over earlier moves of the same row; moves are sorted by row."""
    total = np.cumsum(amount) - amount
    fresh = np.flatnonzero(np.concatenate(([True], row[1:] != row[:-1]))) if row.size else np.zeros(0, np.int64)
    return total - np.repeat(total[fresh], np.diff(np.append(fresh, row.size)))


def _address(rank: Array, buffer: Array, offset: Array, index: I64, viewer: I64, at: Placement) -> I64:
    return at.memory(rank[index].astype(np.int64), viewer) + at.buffers[buffer[index]] + offset[index]


def _words(op: Array, reduces: Bool, last: Bool, dtype: Dtype) -> I64:
    word = np.full(op.size, COPY_WORD, np.int64)
    for value in np.unique(op[reduces]).tolist():
        for ends in (False, True):
            chosen = reduces & (op == value) & (last == ends)
            word[chosen] = cce_word(CCE_OF_OP[Op(value)], dtype, ACCUMULATE.get(dtype, dtype), last=ends)
    return word


def _signals(
    schedule: Schedule, rows: DeviceRows, owner: I64, at: Placement, folds: int, counts: _Counts
) -> tuple[_Items, _Reads, tuple[I64, ...]]:
    """One 4-byte packet per signal and fold: data to the next rank, credit to the one before, own completion last."""
    role, channel = semaphore_roles(schedule)
    signals = schedule.signals
    order = np.lexsort((role[signals.semaphore], owner[schedule.signal_row]))
    row = owner[schedule.signal_row][order]
    peer, semaphore = signals.rank[order].astype(np.int64), signals.semaphore[order]
    every = np.arange(rows.rank.size)
    all_row = np.concatenate((row, every))
    all_peer = np.concatenate((peer, rows.rank))
    all_channel = np.concatenate((channel[semaphore], rows.queue))
    all_role = np.concatenate((role[semaphore], np.full(every.size, ROLES.index("compl"))))
    add = np.concatenate((signals.add[order].astype(np.int64), np.ones(every.size, np.int64)))
    rank_in_row = np.concatenate((running_count(row), counts.signals))
    issuer = rows.rank[all_row]
    target = at.semaphore(all_peer, at.sp(all_channel), at.semaphore_id(all_channel, all_role), Window.INC, issuer)
    feeds, word = _feeds(issuer, add, schedule.ranks)
    source = at.memory(issuer, issuer) + isa.FEED_WORDS + 4 * word
    n = all_row.size
    fold = np.tile(np.arange(folds), n)
    one = np.repeat(np.arange(n), folds)
    items = _Items(
        row=all_row[one],
        fold=fold,
        at=(counts.items[all_row] + rank_in_row)[one],
        tx_at=(counts.reads[all_row] + rank_in_row)[one],
        sources=np.ones(one.size, np.int64),
        size=np.full(one.size, 4, np.int64),
        target=target[one],
        strong=np.zeros(one.size, np.bool_),
    )
    true = np.ones(one.size, np.bool_)
    barrier = (rank_in_row[one] == 0) & counts.has_data[all_row[one], fold] & (not at.arch.sow)
    word = np.full(one.size, COPY_WORD, np.int64)
    reads = _Reads(np.arange(one.size), np.zeros(one.size, np.int64), source[one], word, true, true, barrier)
    return items, reads, feeds


def _feeds(rank: I64, add: I64, ranks: int) -> tuple[tuple[I64, ...], I64]:
    """Return the distinct values that each rank's signals add, ascending, and which of them each signal reads."""
    keys, word = np.unique(rank << 32 | add, return_inverse=True)
    start = np.searchsorted(keys, np.arange(ranks + 1) << 32)
    most = int(np.diff(start).max(initial=0))
    if most > isa.FEED_WORD_COUNT:
        raise UnsupportedError(f"{most} different signal values: the feed area holds {isa.FEED_WORD_COUNT}")
    feeds = tuple(keys[start[r] : start[r + 1]] & 0xFFFFFFFF for r in range(ranks))
    return feeds, word - start[rank]


def _join(data: _Items, signals: _Items) -> _Items:
    return _Items(*(np.concatenate((getattr(data, f), getattr(signals, f))) for f in _Items.__slots__))


def _join_reads(data: _Reads, signals: _Reads, items: int) -> _Reads:
    moved = {f: np.concatenate((getattr(data, f), getattr(signals, f))) for f in _Reads.__slots__}
    moved["item"] = np.concatenate((data.item, signals.item + items))
    return _Reads(**moved)


def _scatter(
    items: _Items, reads: _Reads, rows: DeviceRows, m2s: I64, s2m: I64, folds: int, feeds: tuple[I64, ...]
) -> Rings:
    """Put every descriptor at its place: sections in order, rows in order inside, phases by position."""
    start = rows.channel_start
    rx_ptr, rx_base = _sections(s2m, start, folds)
    tx_ptr, tx_base = _sections(m2s, start, folds)
    channel = np.searchsorted(start, items.row, side="right") - 1
    section = channel * folds + items.fold
    rx_index = rx_base[items.row] + items.at
    rx = np.zeros(int(rx_ptr[-1]), DESCRIPTOR)
    slot = rx_ptr[section] + rx_index
    rx["len_ctrl"][slot] = len_ctrl(items.size, ring=_phase(rx_index), strong_order=items.strong)
    rx["buf_ptr"][slot] = items.target
    tx_index = (tx_base[items.row] + items.tx_at)[reads.item] + reads.place
    tx = np.zeros(int(tx_ptr[-1]), DESCRIPTOR)
    slot = tx_ptr[section[reads.item]] + tx_index
    tx["len_ctrl"][slot] = len_ctrl(
        items.size[reads.item],
        ring=_phase(tx_index),
        first=reads.first,
        last=reads.last,
        concat=~reads.last,
        dmb=reads.barrier,
    )
    tx["meta_ctrl"][slot] = reads.word
    tx["buf_ptr"][slot] = reads.address
    return Rings(folds, tx, rx, tx_ptr, rx_ptr, rows.rank[start], rows.queue[start], m2s, s2m, feeds)


def _sections(counts: I64, start: I64, folds: int) -> tuple[I64, I64]:
    """Return where each section starts, and for each device row how far into its sections it starts."""
    before = pointers(counts)
    ends = np.append(start, counts.size)
    totals = before[ends[1:]] - before[ends[:-1]]
    return pointers(np.repeat(totals, folds)), before[:-1] - np.repeat(before[start], np.diff(ends))


def _phase(index: I64) -> I64:
    return (FIRST_PHASE + index // RING_SIZE) & 3
