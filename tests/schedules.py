"""Random schedules for properties: any shape of row the constructor admits, not only what a composer makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rota.columns import pointers
from rota.schedule.ir import (
    STORED,
    Buffer,
    Leaf,
    Op,
    Places,
    Rows,
    Schedule,
    Semaphore,
    Signals,
    Waits,
)

INPUT, OUTPUT, SCRATCH = range(3)
CELLS = 16
"""Grains of each buffer; sizes are powers of two and offsets multiples of them, so places meet wholly or not at all."""


@dataclass
class Row:
    """One row as plain values; places are (rank, buffer, offset), waits and signals as their columns."""

    rank: int
    queue: int
    part: int = 0
    leg: int = 0
    step: int = 0
    event: int = 0
    leaf: int = Leaf.SEND
    op: int = Op.NONE
    fence: bool = False
    size: int = 0
    sources: list[tuple[int, int, int]] = field(default_factory=list)
    targets: list[tuple[int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    signals: list[tuple[int, int, int]] = field(default_factory=list)


def build(rows: list[Row], *, ranks: int, grain: int, initial: list[int]) -> Schedule:
    """Return the checked schedule of these rows: three buffers of `CELLS` grains, a semaphore for each initial."""

    def table(kind: Any, name: str) -> Any:
        lists = [getattr(row, name) for row in rows]
        ptr, *columns = STORED[kind].values()
        entries = [entry for items in lists for entry in items]
        values = [np.array([entry[i] for entry in entries], column) for i, column in enumerate(columns)]
        return kind(pointers(np.array([len(items) for items in lists], np.int64)).astype(ptr), *values)

    return Schedule(
        ranks=ranks,
        buffers=tuple(
            Buffer(name, CELLS * grain, user=name != "scratch.0") for name in ("input", "output", "scratch.0")
        ),
        semaphores=tuple(Semaphore(f"s{i}", value) for i, value in enumerate(initial)),
        input=INPUT,
        output=OUTPUT,
        rows=Rows(*(np.array([getattr(row, name) for row in rows], kind) for name, kind in STORED[Rows].items())),
        sources=table(Places, "sources"),
        targets=table(Places, "targets"),
        waits=table(Waits, "waits"),
        signals=table(Signals, "signals"),
    )


@st.composite
def schedules(draw: st.DrawFn, *, grain: int = 8, most_rows: int = 8) -> Schedule:
    """Any legal schedule of up to three ranks with two queues each, balanced, rows in an order that can run.

    Each queue writes its own half of output and scratch and reads only that and the input, so that whatever order the
    queues run in, the outcome is one.
    """
    ranks = draw(st.integers(1, 3))
    initial = draw(st.lists(st.integers(0, 3), max_size=4))
    lanes = [(rank, queue) for rank in range(ranks) for queue in (0, 1)]
    consumer = {(r, s): draw(st.integers(0, 1)) for r in range(ranks) for s in range(len(initial))}
    value = {(r, s): initial[s] for r in range(ranks) for s in range(len(initial))}
    rows = []
    for _ in range(draw(st.integers(0, most_rows))):
        rank, queue = draw(st.sampled_from(lanes))
        row = Row(rank, queue, **_names(draw), fence=draw(st.booleans()))
        row.waits = list(_waits(draw, row, consumer, value))
        for at, semaphore, add in draw(st.lists(_signals(ranks, len(initial)), max_size=3)) if initial else []:
            row.signals.append((at, semaphore, add))
            value[at, semaphore] += add
        _move(draw, row, lanes, grain)
        rows.append(row)
    rows += _closing(consumer, value, initial)
    return build(rows, ranks=ranks, grain=grain, initial=initial)


def _names(draw: st.DrawFn) -> dict[str, int]:
    return {
        "part": draw(st.integers(0, 65535)),
        "leg": draw(st.integers(0, 255)),
        "step": draw(st.integers(0, 65535)),
        "event": draw(st.integers(0, 255)),
        "leaf": draw(st.sampled_from(Leaf)),
    }


def _signals(ranks: int, semaphores: int) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(st.integers(0, ranks - 1), st.integers(0, semaphores - 1), st.integers(1, 3))


def _waits(
    draw: st.DrawFn, row: Row, consumer: dict[Any, int], value: dict[Any, int]
) -> Iterator[tuple[int, int, int]]:
    """Yield waits that hold, on semaphores whose consumer this queue is, and take what they subtract."""
    for (rank, semaphore), queue in consumer.items():
        now = value[rank, semaphore]
        if (rank, queue) == (row.rank, row.queue) and now and draw(st.booleans()):
            at_least = draw(st.integers(1, now))
            subtract = draw(st.integers(0, at_least))
            value[rank, semaphore] -= subtract
            yield semaphore, at_least, subtract


def _move(draw: st.DrawFn, row: Row, lanes: list[tuple[int, int]], grain: int) -> None:
    cells = draw(st.sampled_from([0, 1, 2, 4]))
    if not cells:
        return
    own = lanes.index((row.rank, row.queue))
    ranks = st.sampled_from(sorted({rank for rank, _ in lanes}))
    share = CELLS // 8 if len(lanes) > 4 else CELLS // len(lanes)
    cells = min(cells, share)
    slots = st.integers(own * share // cells, (own + 1) * share // cells - 1)
    written = st.tuples(ranks, st.sampled_from([OUTPUT, SCRATCH]), slots.map(lambda slot: slot * cells * grain))
    given = st.tuples(ranks, st.just(INPUT), st.integers(0, CELLS // cells - 1).map(lambda slot: slot * cells * grain))
    row.size = cells * grain
    row.sources = draw(st.lists(written | given, min_size=1, max_size=3))
    row.targets = draw(st.lists(written, min_size=1, max_size=3, unique=True))
    row.op = draw(st.sampled_from([Op.ADD, Op.MAX, Op.MIN] + [Op.NONE] * (len(row.sources) == 1)))


def _closing(consumer: dict[Any, int], value: dict[Any, int], initial: list[int]) -> Iterator[Row]:
    """Yield the rows that bring every semaphore back to its initial value."""
    for (rank, semaphore), queue in consumer.items():
        over = value[rank, semaphore] - initial[semaphore]
        if over > 0:
            yield Row(rank, queue, waits=[(semaphore, over, over)])
        elif over < 0:
            yield Row(rank, queue, signals=[(rank, semaphore, -over)])
