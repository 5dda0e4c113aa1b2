"""All descriptors of one operation, put at their places: ring after ring, start after start, on every fold alike."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from rota.columns import I64, Array, Bool, pointers
from rota.emit.launches import Launches
from rota.emit.moves import Packets, Reads, Writes
from rota.isa.descriptors import DESCRIPTOR, TxFlag, encode_length, len_ctrl

Group = tuple[Packets, Reads, Writes]
Table = TypeVar("Table", Packets, Reads, Writes)


@dataclass(frozen=True, slots=True, eq=False)
class Rings:
    """Descriptors of one operation; the phase of each ring is not set yet, since it depends on what comes before.

    Attributes:
        tx, rx: structured arrays of `descriptors.DESCRIPTOR`.
        tx_ptr, rx_ptr: where each section starts; a section is (lane, fold), folds varying fastest.
        lane: rank x 256 + queue of each section pair, ascending. launch_ptr: its first start.
        m2s, s2m: descriptors of each start on every fold.
    """

    folds: int
    tx: Array
    rx: Array
    tx_ptr: I64
    rx_ptr: I64
    lane: I64
    launch_ptr: I64
    m2s: I64
    s2m: I64


def join(moves: Group, signals: Group) -> Group:
    """Return the packets of both groups as one."""
    packets = _joined(moves[0], signals[0])
    shift = moves[0].launch.size
    reads = _joined(moves[1], replace(signals[1], packet=signals[1].packet + shift))
    writes = _joined(moves[2], replace(signals[2], packet=signals[2].packet + shift))
    return packets, reads, writes


def _joined(one: Table, other: Table) -> Table:
    columns = {f.name: np.concatenate((getattr(one, f.name), getattr(other, f.name))) for f in fields(one)}
    return replace(one, **columns)


def scatter(group: Group, starts: Launches, m2s: I64, s2m: I64, folds: int) -> Rings:
    """Put every descriptor at its place."""
    packets, reads, writes = group
    begins = (
        np.flatnonzero(np.concatenate(([True], np.diff(starts.lane) != 0)))
        if starts.lane.size
        else np.zeros(0, np.int64)
    )
    launch_ptr = np.append(begins, starts.lane.size)
    lane = np.searchsorted(begins, packets.launch, side="right") - 1
    section = lane * folds + packets.fold
    tx_ptr, tx_base = _sections(m2s, launch_ptr, folds)
    rx_ptr, rx_base = _sections(s2m, launch_ptr, folds)
    rx = np.zeros(int(rx_ptr[-1]), DESCRIPTOR)
    slot = (rx_ptr[section] + rx_base[packets.launch] + packets.rx_at)[writes.packet] + writes.place
    rx["len_ctrl"][slot] = len_ctrl(packets.size[writes.packet], ring=0, strong_order=writes.strong)
    rx["buf_ptr"][slot] = writes.address
    tx = np.zeros(int(tx_ptr[-1]), DESCRIPTOR)
    slot = (tx_ptr[section] + tx_base[packets.launch] + packets.tx_at)[reads.packet] + reads.place
    length = encode_length(packets.size)[reads.packet]
    tx["len_ctrl"][slot] = np.where(_operand(reads), np.uint32(0), length) | reads.flags
    tx["meta_ctrl"][slot] = reads.word
    tx["buf_ptr"][slot] = reads.address
    return Rings(folds, tx, rx, tx_ptr, rx_ptr, starts.lane[begins], launch_ptr, m2s, s2m)


def _operand(reads: Reads) -> Bool:
    found: Bool = (reads.flags & np.uint32(TxFlag.META)) != 0
    return found


def _sections(counts: I64, launch_ptr: I64, folds: int) -> tuple[I64, I64]:
    """Return where each section starts, and for each start how far into its sections it begins."""
    before = pointers(counts)
    totals = before[launch_ptr[1:]] - before[launch_ptr[:-1]]
    return pointers(np.repeat(totals, folds)), before[:-1] - np.repeat(before[launch_ptr[:-1]], np.diff(launch_ptr))
