"""The laws of one launch: signals come last, what orders data before them, and whose rings are whose.

Source: device-model §3, order in a fold and order of writes; §5.2 and §5.5, conventions.
"""

from __future__ import annotations

import numpy as np

from rota.columns import I64, Bool
from rota.device.dma import DATA, PAD, SIGNAL
from rota.device.placed import Placed
from rota.device.world import refuse
from rota.isa.semaphores import PARITIES


def check_rings_apart(placed: Placed) -> None:
    """Machines that may run at the same time share no ring: of one entry, of two processors of a chain, of two streams.

    Raises:
        DecodeError: two of them do; at the control entry of the second.
    """
    folds, launches, workers = placed.program.folds, placed.program.launches, placed.tables.workers
    machines = placed.program.machines
    machine = placed.program.machine[launches.step[folds.launch]]
    worker = machine - (machines.count - workers.count)
    pairs = np.unique(np.stack([folds.section, worker]), axis=1)
    section, worker = pairs
    chain = placed.tables.controls.chain[workers.entry[worker]]
    stream = placed.world.host_of(workers.processor[worker]) % placed.world.streams
    everywhere = np.zeros(worker.size, np.int64)
    for group, one in (
        (workers.entry[worker], worker),
        (chain, workers.processor[worker]),
        (everywhere, stream),
    ):
        order = np.lexsort((one, group, section))
        same = (np.diff(section[order]) == 0) & (np.diff(group[order]) == 0) & (np.diff(one[order]) != 0)
        bad = np.zeros(workers.count, np.bool_)
        bad[worker[order[1:][same]]] = True
        expected = "descriptor rings that nothing uses at the same time"
        refuse(bad, workers.offset, "control entry", expected, workers.entry, image=workers.image)


def check_launches(placed: Placed) -> None:
    """Check what stands in which order in every launch.

    Raises:
        DecodeError: an item that is not in its place.
    """
    fold, signal = placed.fold, placed.signal
    same = fold[1:] == fold[:-1]
    early = np.append(signal[:-1] & ~signal[1:] & same, False)[: fold.size]
    placed.refuse(early, "row", "signals behind all data and padding", placed.items.kind[placed.item])
    _check_completion(placed)
    if placed.world.arch.sow:
        _check_strong(placed)
    else:
        _check_barriers(placed)
    _check_events(placed)


def _last_of(fold: I64, chosen: Bool) -> Bool:
    """Say which of the chosen items is the last chosen one of its fold."""
    out = np.zeros(fold.size, np.bool_)
    at = np.flatnonzero(chosen)
    out[at] = np.append(fold[at][1:] != fold[at][:-1], True)[: at.size]
    return out


def _check_completion(placed: Placed) -> None:
    """A ring row ends in its own completion on every fold; the last launch of a list on a ring in one it waits for."""
    rings, target = placed.tables.rings, placed.items.target[placed.item]
    last = _last_of(placed.fold, np.ones(placed.fold.size, np.bool_))
    own = np.append(rings.compl, -1)[placed.record]
    wrong = last & (placed.record >= 0) & (~placed.signal | (target != own))
    placed.refuse(wrong, "row", "its own completion as the last descriptor of every fold", target)
    listed = np.flatnonzero(last & (placed.record < 0))
    closes = listed[_last_launch(placed, listed)]
    signal = placed.signal[closes]
    wrong = np.zeros(placed.item.size, np.bool_)
    wrong[closes[~signal]] = True
    wrong[closes[signal][~_awaited(placed, closes[signal])]] = True
    placed.refuse(wrong, "event list", "a signal that its list still waits for at the end of each ring", target)


def _last_launch(placed: Placed, chosen: I64) -> Bool:
    """Say which of the chosen items, one a fold, belong to the last launch of their worker on their section."""
    section = placed.program.folds.section[placed.fold[chosen]]
    key = placed.worker[chosen] * (int(section.max(initial=0)) + 1) + section
    order = np.lexsort((placed.fold[chosen], key))
    final = np.zeros(chosen.size, np.bool_)
    final[order] = np.append(np.diff(key[order]) != 0, True)[: chosen.size]
    return final


def _awaited(placed: Placed, chosen: I64) -> Bool:
    """Say which of the chosen signals go to a semaphore that their own machine waits for at a later step."""
    program = placed.program
    gates = program.gates
    step = np.repeat(np.arange(program.steps), np.diff(gates.ptr))
    width = program.semaphores
    order = np.lexsort((step, program.machine[step] * width + gates.semaphore))
    key = (program.machine[step] * width + gates.semaphore)[order]
    at = program.launches.step[placed.launch[chosen]]
    want = program.machine[at] * width + placed.items.target[placed.item[chosen]]
    found = np.searchsorted(key, want, side="right") - 1  # the last step that waits there
    held: Bool = (found >= 0) & (key[found] == want) & (step[order][found] > at)
    return held


def _check_strong(placed: Placed) -> None:
    """The last data write of every launch and fold is ordered before the signals; no other write is."""
    strong = placed.items.strong[placed.item]
    bad = strong != _last_of(placed.fold, placed.data)
    placed.refuse(bad, "RX descriptor", "strong order exactly on the last data write of a row", strong)


def _check_barriers(placed: Placed) -> None:
    """Where writes have no order, the first signal behind data waits for them; no other descriptor does."""
    items = placed.items
    meant = np.flatnonzero(items.kind != PAD)
    kind, section = items.kind[meant], np.searchsorted(items.section_ptr, meant, side="right")
    behind = np.zeros(meant.size, np.bool_)
    behind[1:] = (kind[1:] == SIGNAL) & (kind[:-1] == DATA) & (np.diff(section) == 0)
    first = np.zeros(items.kind.size, np.bool_)
    first[meant] = behind
    follows = first[placed.item]
    barrier = placed.items.barrier[placed.item]
    bad = barrier != follows
    expected = "a barrier exactly on the first signal behind data"
    placed.refuse(bad, "TX descriptor", expected, barrier, transmit=True)


def _check_events(placed: Placed) -> None:
    """What an event adds to a semaphore is a number of units of its operation, on all folds and legs together."""
    at = np.flatnonzero(placed.signal & (placed.record < 0))
    if not at.size:
        return
    workers, controls = placed.tables.workers, placed.tables.controls
    item = placed.item[at]
    step = placed.program.launches.step[placed.launch[at]]
    _, group = np.unique(step * placed.program.semaphores + placed.items.target[item], return_inverse=True)
    total = np.bincount(group, placed.items.value[item]).astype(np.int64)[group]
    shift = controls.shift[workers.processor[placed.worker[at]], workers.entry[placed.worker[at]]]
    mask = np.zeros_like(shift)
    for each in PARITIES:
        mask[shift == each.shift] = each.mask
    bad = np.zeros(placed.item.size, np.bool_)
    bad[at] = (total % (1 << shift) != 0) | (total >> shift > mask)
    values = placed.items.value[placed.item]
    placed.refuse(bad, "signal", "a number of units of the operation, on all folds together", values)
