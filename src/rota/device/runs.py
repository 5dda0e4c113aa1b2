"""Data of launches as runs: packets that follow each other in memory move as one. Built when a run in waves begins.

A run never spans two folds of a launch, and never reads what an earlier part of it writes. Runs of one fold that touch
each other keep their order by their turn; all others may move at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, owners, pointers, ranges
from rota.device.dma import DATA, SIGNAL, Items
from rota.device.program import Program
from rota.isa.dtypes import numpy_dtype
from rota.native.arithmetic import F32, Combine

_ADDRESS_BITS: Final = 36  # of a flat byte, for sorting by fold and byte at once


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """One entry per run, step by step.

    Attributes:
        ptr: first run of each step; one longer.
        turn: runs of one step with a lower turn move first.
        operation: index into the operations of the items.
        more_ptr, more: further targets, CSR; more_ptr is empty where no run has any.
        scale: of each source, empty where nothing is scaled.
    """

    ptr: I64
    turn: I64
    operation: I64
    size: I64
    target: I64
    source_ptr: I64
    source: I64
    scale: F32
    more_ptr: I64
    more: I64


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """The signals of all steps, step by step: item, flat semaphore and what is added."""

    ptr: I64
    item: I64
    semaphore: I64
    value: I64


def fold_step(program: Program) -> I64:
    """Return the step of each fold of a launch."""
    return program.launches.step[program.folds.launch]


def items_of(program: Program) -> tuple[I64, I64]:
    """Return all items in the order of the launches, and the fold of a launch that each belongs to."""
    folds = program.folds
    return ranges(folds.item, folds.count), np.repeat(np.arange(folds.count.size), folds.count)


def bytes_of_steps(items: Items, program: Program) -> I64:
    """Return how many bytes of data each step writes, at all targets together."""
    item, owner = items_of(program)
    targets = 1 + np.bincount(items.more_item, minlength=items.count)
    size = np.where(items.kind == DATA, items.size * targets, 0)[item]
    found: I64 = np.bincount(fold_step(program)[owner], size, program.steps).astype(np.int64)
    return found


def build_signals(items: Items, program: Program) -> Signals:
    """Return the signals of all steps."""
    item, owner = items_of(program)
    chosen = items.kind[item] == SIGNAL
    item, step = item[chosen], fold_step(program)[owner[chosen]]
    ptr = pointers(np.bincount(step, minlength=program.steps))
    return Signals(ptr, item, items.target[item], items.value[item])


def build_runs(items: Items, program: Program) -> Runs:
    """Merge the data of all launches into runs."""
    item, owner = items_of(program)
    data = items.kind[item] == DATA
    item, owner = item[data], owner[data]
    fan_in = np.diff(items.source_ptr)[item]
    extra = np.searchsorted(items.more_item, item)
    fan_out = np.searchsorted(items.more_item, item, side="right") - extra
    opens = _opens(items, item, owner, fan_in, fan_out, extra)
    opens |= _overlapping(items, item, opens, fan_in, fan_out, extra)
    head = item[opens]
    run = np.cumsum(opens) - 1
    size = np.bincount(run, items.size[item], head.size).astype(np.int64)
    sources = fan_in[opens]
    place = ranges(items.source_ptr[head], sources)
    source = items.source[place]
    target = items.target[head]
    whose = owner[opens]
    more_count = fan_out[opens]
    more = items.more[ranges(extra[opens], more_count)]
    step = fold_step(program)[whose]
    source_ptr, more_ptr = pointers(sources), pointers(more_count)
    return Runs(
        ptr=pointers(np.bincount(step, minlength=program.steps)),
        turn=_turns(whose, target, size, source_ptr, source, more_ptr, more),
        operation=items.operation[head].astype(np.int64),
        size=size,
        target=target,
        source_ptr=source_ptr,
        source=source,
        scale=items.scale[place] if items.scale.size else items.scale,
        more_ptr=more_ptr if more.size else np.zeros(0, np.int64),
        more=more,
    )


def _opens(items: Items, item: I64, owner: I64, fan_in: I64, fan_out: I64, extra: I64) -> Bool:
    """Say which items do not follow the one before in every place they read and write."""
    opens = np.ones(item.size, np.bool_)
    if item.size < 2:
        return opens
    before, after = item[:-1], item[1:]
    joins = (owner[1:] == owner[:-1]) & (items.operation[after] == items.operation[before])
    joins &= (fan_in[1:] == fan_in[:-1]) & (fan_out[1:] == fan_out[:-1])
    joins &= items.target[after] == items.target[before] + items.size[before]
    for k in range(int(fan_in.max())):
        at = np.flatnonzero(joins & (fan_in[1:] > k))
        left, right = items.source_ptr[before[at]] + k, items.source_ptr[after[at]] + k
        fits = items.source[right] == items.source[left] + items.size[before[at]]
        if items.scale.size:
            fits &= _bits(items.scale[left]) == _bits(items.scale[right])
        joins[at[~fits]] = False
    for k in range(int(fan_out.max())):
        at = np.flatnonzero(joins & (fan_out[1:] > k))
        left, right = items.more[extra[:-1][at] + k], items.more[extra[1:][at] + k]
        joins[at[right != left + items.size[before[at]]]] = False
    opens[1:] = ~joins
    return opens


def _bits(scale: Array) -> Array:
    return scale.view(np.uint32)


def _overlapping(items: Items, item: I64, opens: Bool, fan_in: I64, fan_out: I64, extra: I64) -> Bool:
    """Say which items belong to a run of which a target partly overlaps a source; these stay single."""
    run = np.cumsum(opens) - 1
    head = item[opens]
    size = np.bincount(run, items.size[item], head.size).astype(np.int64)
    bad = np.zeros(head.size, np.bool_)
    fan_in, fan_out, extra = fan_in[opens], fan_out[opens], extra[opens]
    for j in range(-1, int(fan_out.max(initial=0))):
        told = np.flatnonzero(fan_out > j)
        target = items.target[head[told]] if j < 0 else items.more[extra[told] + j]
        for k in range(int(fan_in.max(initial=0))):
            on = fan_in[told] > k
            at = told[on]
            gap = np.abs(items.source[items.source_ptr[head[at]] + k] - target[on])
            bad[at] |= (gap > 0) & (gap < size[at])
    found: Bool = bad[run]
    return found


def _turns(fold: I64, target: I64, size: I64, source_ptr: I64, source: I64, more_ptr: I64, more: I64) -> I64:
    """Return 0 for runs that touch no other run of their fold; where some do, all keep their order.

    Touching is writing what another one reads or writes. A run that reads what it writes touches only itself.
    """
    turn = np.zeros(fold.size, np.int64)
    several = np.zeros(fold.size, np.bool_)
    same = np.diff(fold) == 0
    several[1:] |= same
    several[:-1] |= same
    if not several.any():
        return turn
    reader, writer = owners(source_ptr), np.concatenate([np.arange(fold.size), owners(more_ptr)])
    keep = several[reader] & (source != target[reader])
    written = several[writer]
    run = np.concatenate([reader[keep], writer[written]])
    begin = np.concatenate([source[keep], np.concatenate([target, more])[written]])
    writes = np.concatenate([np.zeros(int(keep.sum()), np.bool_), np.ones(int(written.sum()), np.bool_)])
    key = fold[run] << _ADDRESS_BITS
    order = np.argsort(key | begin, kind="stable")
    run, begin, writes = run[order], (key | begin)[order], writes[order]
    end = begin + size[run]
    touched = begin[1:] < np.maximum.accumulate(np.where(writes, end, 0))[:-1]
    touched |= writes[1:] & (begin[1:] < np.maximum.accumulate(end)[:-1])
    marked = np.zeros(int(fold.max()) + 1, np.bool_)
    marked[fold[run[1:][touched]]] = True
    chosen = np.flatnonzero(marked[fold])
    first = np.searchsorted(fold, fold[chosen])
    turn[chosen] = chosen - first
    return turn


def combine_of(items: Items, operation: int) -> tuple[Combine, np.dtype[np.generic] | None]:
    """Return what an operation does to elements, and their type; None for bytes."""
    found = items.operations[operation]
    return found.how, None if found.element is None else numpy_dtype(found.element)
