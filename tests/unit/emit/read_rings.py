"""Descriptors of EMIT read back as moves, by flags and words alone: what is read, what is written, with which scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rota.columns import Array
from rota.emit.descriptors import Rings
from rota.isa.descriptors import DESCRIPTOR_SIZE, RxFlag, TxFlag, decode_length
from rota.isa.op_words import OpWord, WordKind, decode_word
from rota.isa.operand_words import OperandKind, decode_operand


@dataclass(frozen=True)
class Move:
    """One packet, or one descriptor of a plain copy.

    Attributes:
        scales: bits of the scale of each source, of an FMA.
        tx, rx: its first descriptor on either side, among those read.
    """

    word: OpWord
    size: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    strong: tuple[bool, ...]
    scales: tuple[int, ...] = ()
    tx: int = 0
    rx: int = 0


def moves(tx: Array, rx: Array) -> Iterator[Move]:
    """Yield what the descriptors of a ring move, in order; sizes of a packet must be equal, counts must fit."""
    raw = tx.tobytes()
    first, last, meta = ((tx["len_ctrl"] & flag) != 0 for flag in (TxFlag.FIRST, TxFlag.LAST, TxFlag.META))
    lengths, written = decode_length(tx["len_ctrl"]).tolist(), decode_length(rx["len_ctrl"]).tolist()
    strong = (rx["len_ctrl"] & RxFlag.STRONG_ORDER_WR) != 0
    at, stop = 0, 0
    for begin in np.flatnonzero(first).tolist():
        assert begin == stop, "a packet begins where the one before it ends"
        stop = begin + int(np.argmax(last[begin:])) + 1
        assert last[stop - 1]
        assert not first[begin + 1 : stop].any()
        data = [i for i in range(begin, stop) if not meta[i]]
        operands = [decode_operand(raw, offset=i * DESCRIPTOR_SIZE)[0] for i in range(begin, stop) if meta[i]]
        words = [decode_word(int(tx["meta_ctrl"][i])) for i in data]
        kind = words[-1].kind
        replicated = [operand.fields for operand in operands if operand.kind is OperandKind.REPLICATION]
        count = replicated[0]["length"] if replicated else 1
        if kind in (WordKind.COPY, WordKind.REPLICATION):
            count = words[-1].field("count") if kind is WordKind.REPLICATION else 1
            groups = [([i], [word]) for i, word in zip(data, words, strict=True)]
        else:
            groups = [(data, words)]
        for mine, own in groups:
            size = {lengths[i] for i in mine} | set(written[at : at + count])
            assert len(size) == 1, "all lengths of a packet are equal"
            yield Move(
                word=own[-1],
                size=size.pop(),
                sources=tuple(tx["buf_ptr"][mine].tolist()),
                targets=tuple(rx["buf_ptr"][at : at + count].tolist()),
                strong=tuple(strong[at : at + count].tolist()),
                scales=tuple(o.fields["scale"] for o in operands if o.kind is OperandKind.FMA),
                tx=mine[0],
                rx=at,
            )
            at += count
    assert (stop, at) == (tx.size, rx.size), "every descriptor is part of a packet"


def launch(rings: Rings, number: int, fold: int) -> tuple[Array, Array]:
    """Return the descriptors of one start on one fold."""
    lane = int(np.searchsorted(rings.launch_ptr, number, side="right")) - 1
    first = int(rings.launch_ptr[lane])
    section = lane * rings.folds + fold
    out = []
    for ring, ptr, counts in ((rings.tx, rings.tx_ptr, rings.m2s), (rings.rx, rings.rx_ptr, rings.s2m)):
        begin = int(ptr[section] + counts[first:number].sum())
        out.append(ring[begin : begin + int(counts[number])])
    return out[0], out[1]
