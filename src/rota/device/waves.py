"""Running in waves: all rows whose gates hold start together, and their data moves in runs of contiguous packets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, pointers, ranges, running_count
from rota.device.dma import COMBINE, DATA, SIGNAL, Items
from rota.device.memory import Memory
from rota.device.program import Program, fold_rows
from rota.device.world import World
from rota.errors import StuckError
from rota.isa.descriptors import CceWord
from rota.isa.dtypes import numpy_dtype
from rota.native.arithmetic import Combine, move_pieces

_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Data of all rows as runs: packets that follow each other in memory, on one fold of one row.

    Attributes:
        row_ptr: runs of each row. turn: place of a run among those of its row and fold.
        shape: index into `shapes`, each (operation, size, sources).
    """

    row_ptr: I64
    turn: I64
    shape: I64
    shapes: Array
    target: I64
    source_ptr: I64
    source: I64


def build_runs(items: Items, program: Program) -> Runs:
    """Merge items into runs; a run never spans two rows or folds, and never reads what an earlier part of it writes."""
    owner = fold_rows(program, items)
    data = np.flatnonzero(items.kind == DATA)
    order = data[np.argsort(owner[data], kind="stable")]
    fan_in = np.diff(items.source_ptr)[order]
    opens = np.ones(order.size, np.bool_)
    if order.size:
        before, after = order[:-1], order[1:]
        joins = (
            (owner[after] == owner[before]) & (items.word[after] == items.word[before]) & (fan_in[1:] == fan_in[:-1])
        )
        joins &= items.target[after] == items.target[before] + items.size[before]
        for k in range(int(fan_in.max())):
            has = joins & (fan_in[1:] > k)
            left = items.source[np.where(has, items.source_ptr[before] + k, 0)]
            right = items.source[np.where(has, items.source_ptr[after] + k, 0)]
            joins &= ~has | (right == left + items.size[before])
        opens[1:] = ~joins
        opens |= _overlapping(items, order, opens, fan_in)
    head = order[opens]
    run = np.cumsum(opens) - 1
    size = np.bincount(run, items.size[order], head.size).astype(np.int64)
    sources = np.diff(items.source_ptr)[head]
    shapes, shape = np.unique(np.stack([items.word[head], size, sources], axis=1), axis=0, return_inverse=True)
    return Runs(
        row_ptr=pointers(np.bincount(owner[head] // program.item.shape[1], minlength=program.rows.items.size)),
        turn=running_count(owner[head]),
        shape=shape.reshape(-1),
        shapes=shapes,
        target=items.target[head],
        source_ptr=pointers(sources),
        source=items.source[ranges(items.source_ptr[head], sources)],
    )


def _overlapping(items: Items, order: I64, opens: Array, fan_in: I64) -> Array:
    """Say which items belong to a run whose target partly overlaps a source; these stay single."""
    run = np.cumsum(opens) - 1
    head = order[opens]
    size = np.bincount(run, items.size[order]).astype(np.int64)
    bad = np.zeros(head.size, np.bool_)
    for k in range(int(fan_in.max())):
        has = np.diff(items.source_ptr)[head] > k
        gap = np.abs(items.source[np.where(has, items.source_ptr[head] + k, 0)] - items.target[head])
        bad |= has & (gap > 0) & (gap < size)
    found: Array = bad[run]
    return found


def run_waves(world: World, items: Items, program: Program, memory: Memory) -> None:
    """Run all rows of all channels.

    Raises:
        StuckError: rows are left and no gate holds.
    """
    runs = build_runs(items, program)
    signals = _Signals(items, program)
    channels, rows = program.channels, program.rows
    row = channels.row.copy()
    end = np.append(channels.row[1:], rows.items.size)
    live = np.flatnonzero(row < end)
    semaphores = memory.semaphores
    while live.size:
        now = row[live]
        receives, sends = rows.receives[now], rows.sends[now]
        gate = ~receives | (semaphores[channels.recv[live]] >= channels.prev_folds[live])
        gate &= ~sends | (semaphores[channels.send[live]] >= channels.next_folds[live])
        if not gate.any():
            raise stuck(world, program, memory, live, now, moving=np.zeros(live.size, np.bool_))
        started, starting = live[gate], now[gate]
        semaphores[channels.recv[started]] -= np.where(receives[gate], channels.prev_folds[started], 0)
        semaphores[channels.send[started]] -= np.where(sends[gate], channels.next_folds[started], 0)
        _move(runs, items.words, starting, memory)
        signals.perform(starting, memory)
        done = semaphores[channels.compl[started]] >= channels.folds[started]
        if not done.all():
            late = started[~done]
            raise stuck(world, program, memory, late, starting[~done], moving=np.ones(late.size, np.bool_))
        semaphores[channels.compl[started]] -= channels.folds[started]
        row[started] += 1
        live = live[row[live] < end[live]]


def _move(runs: Runs, words: tuple[CceWord, ...], rows: I64, memory: Memory) -> None:
    first = runs.row_ptr[rows]
    chosen = ranges(first, runs.row_ptr[rows + 1] - first)
    if not chosen.size:
        return
    for turn in range(int(runs.turn[chosen].max()) + 1):
        here = chosen[runs.turn[chosen] == turn]
        shape = runs.shape[here]
        for s in np.unique(shape).tolist():
            word, size, fan_in = runs.shapes[s].tolist()
            piece = here[shape == s]
            how, dtype = operation(words, word)
            sources = runs.source[runs.source_ptr[piece][:, None] + np.arange(fan_in)]
            move_pieces(memory.bytes, runs.target[piece][:, None], sources, size, how=how, dtype=dtype)


def operation(words: tuple[CceWord, ...], word: int) -> tuple[Combine, np.dtype[np.generic] | None]:
    """Return what a word does to elements, and their type; a word of -1 copies bytes."""
    if word < 0:
        return Combine.COPY, None
    return COMBINE[words[word].op], numpy_dtype(words[word].transfer)


class _Signals:
    """Signal packets of all rows, grouped by row."""

    def __init__(self, items: Items, program: Program) -> None:
        owner = fold_rows(program, items) // program.item.shape[1]
        chosen = np.flatnonzero(items.kind == SIGNAL)
        chosen = chosen[np.argsort(owner[chosen], kind="stable")]
        self.ptr = pointers(np.bincount(owner[chosen], minlength=program.rows.items.size))
        self.target = items.target[chosen]
        self.source = items.source[items.source_ptr[chosen]]

    def perform(self, rows: I64, memory: Memory) -> None:
        first = self.ptr[rows]
        chosen = ranges(first, self.ptr[rows + 1] - first)
        words = memory.bytes.view(np.uint32)
        np.add.at(memory.semaphores, self.target[chosen], words[self.source[chosen] // 4].astype(np.int64))


def stuck(world: World, program: Program, memory: Memory, channels: I64, rows: I64, *, moving: Bool) -> StuckError:
    """Return the error that says who waits for what.

    Args:
        moving: the row has begun, and waits for its own completion.
    """
    table, waiting = program.channels, []
    for channel, row, begun in zip(channels.tolist(), rows.tolist(), moving.tolist(), strict=True):
        gates = [
            (table.compl[channel], table.folds[channel], begun),
            (table.recv[channel], table.prev_folds[channel], not begun and program.rows.receives[row]),
            (table.send[channel], table.next_folds[channel], not begun and program.rows.sends[row]),
        ]
        rank = world.images[int(table.image[channel])].rank
        place = f"rank {rank} channel {int(table.identity[channel])} row {row - int(table.row[channel])}"
        for semaphore, need, on in gates:
            value = int(memory.semaphores[semaphore])
            if on and value < need:
                name = world.semaphore_name(int(semaphore))
                waiting.append(f"{place} waits for {name} to reach {need}, it is {value}")
        if len(waiting) >= _SHOWN:
            break
    return StuckError(f"the device cannot go on: {waiting[0]}", waiting=waiting)
