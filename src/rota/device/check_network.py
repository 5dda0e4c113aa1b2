"""The laws between stream processors and network proxies: who says that data are there, and whom a ring reaches so.

Source: device §13 and device-model §5.2; how they are joined, conventions.
"""

from __future__ import annotations

import numpy as np

from rota.columns import I64, owners
from rota.device.network import NOWHERE, Hops
from rota.device.placed import Placed
from rota.device.world import refuse
from rota.isa.semaphores import SEMAPHORES


def check_network(placed: Placed) -> None:
    """Only what works on its processor tells a proxy that data are there, in each entry as often as that sends.

    Raises:
        DecodeError: another processor does, or something waits for it beside the proxy, or the numbers differ.
    """
    hops = placed.tables.hops
    if hops is None:
        return
    operations, program = hops.operations, placed.program
    entries = placed.tables.controls.entries
    semaphore, entry, processor, value = _told(placed)
    shake = np.zeros(program.semaphores, np.bool_)
    shake[operations.handshake] = True
    here = shake[semaphore]
    semaphore, entry, processor, value = semaphore[here], entry[here], processor[here], value[here]
    bad = np.zeros(program.semaphores, np.bool_)
    bad[semaphore[semaphore // SEMAPHORES != processor]] = True
    bad[program.gates.semaphore] = True
    bad[hops.semaphore[hops.semaphore != NOWHERE]] = True
    what, expected = "network_operation send_handshake", "a semaphore that only its processor raises, for this proxy"
    refuse(bad[operations.handshake], operations.offset, what, expected, operations.handshake, image=operations.image)
    key = semaphore * entries + entry
    wanted = operations.handshake * entries + operations.entry
    keys, first, place = np.unique(wanted, return_index=True, return_inverse=True)
    again = np.ones(wanted.size, np.bool_)
    again[first] = False
    refuse(again, operations.offset, what, "one of its own in each entry", operations.handshake, image=operations.image)
    stray = ~np.isin(key, keys)
    lost = np.isin(operations.handshake, semaphore[stray])
    expected = "rows that raise it in its entry"
    refuse(lost, operations.offset, what, expected, operations.handshake, image=operations.image)
    given = np.bincount(np.searchsorted(keys, key), value, keys.size).astype(np.int64)[place]
    taken = hops.taken
    at = int(np.argmax(given != taken))
    expected = f"as many rows as raise it in its entry, {int(given[at])} in all"
    refuse(given != taken, operations.offset, "network_operation", expected, taken, image=operations.image)
    _check_atomic(placed, hops)


def _told(placed: Placed) -> tuple[I64, I64, I64, I64]:
    """Return semaphore, control entry, processor and value of all that stream processors and their queues add."""
    items, program, workers = placed.items, placed.program, placed.tables.workers
    signal = placed.item[placed.signal]
    worker = placed.worker[placed.signal]
    step = owners(program.adds.ptr)
    machine = program.machine[step]
    entry = np.maximum(program.machines.entry[machine], 0)
    processor = program.machines.image[machine] * placed.world.sps + program.machines.sp[machine]
    return (
        np.concatenate((items.target[signal], program.adds.semaphore)),
        np.concatenate((workers.entry[worker], entry)),
        np.concatenate((workers.processor[worker], processor)),
        np.concatenate((items.value[signal], program.adds.value)),
    )


def far_signals(placed: Placed, hops: Hops) -> tuple[I64, I64, I64]:
    """Return hop, ring record that sends it, and semaphore, of all signals of hops that ring channels send."""
    entries, workers = placed.tables.controls.entries, placed.tables.workers
    at = np.flatnonzero(placed.signal & (placed.record >= 0))
    key = placed.items.target[placed.item[at]] * entries + workers.entry[placed.worker[at]]
    keys, first = np.unique(key, return_index=True)
    operations = hops.operations
    wanted = operations.handshake * entries + operations.entry
    found = np.searchsorted(keys, wanted)
    there = np.append(keys, -1)[found] == wanted
    record = np.where(there, placed.record[at[np.append(first, 0)[found]]], -1) if at.size else np.full(found.size, -1)
    hop, k = np.nonzero((hops.semaphore != NOWHERE) & (record[hops.operation] >= 0)[:, None])
    return hop, record[hops.operation[hop]], hops.semaphore[hop, k]


def _check_atomic(placed: Placed, hops: Hops) -> None:
    """What a proxy waits for cannot come together from parts of two rows.

    A row of a ring is alone on its channel, and raises the handshake once, by all of its folds together; an event list
    has several starts under way, and so one fold.
    """
    items, folds, operations = placed.items, placed.program.folds, hops.operations
    unit = np.zeros(placed.program.semaphores, np.int64)
    unit[operations.handshake] = operations.unit
    at = np.flatnonzero(placed.signal)
    unit = unit[items.target[placed.item[at]]]
    at, unit = at[unit > 0], unit[unit > 0]
    count = np.diff(folds.ptr)[placed.launch[at]]
    value, ring = items.value[placed.item[at]], placed.record[at] >= 0
    again = np.zeros(at.size, np.bool_)
    again[1:] = np.diff(placed.fold[at]) == 0
    bad = np.zeros(placed.item.size, np.bool_)
    bad[at] = (count > 1) & (~ring | again | (value * count != unit))
    expected = "one fold for a handshake, or one unit of it from all folds of a row of a ring"
    placed.refuse(bad, "signal", expected, items.value[placed.item])
