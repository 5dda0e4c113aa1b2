"""The program blocks of all processors, recomputed from everything else and compared; and in which order they complete.

Source: device-model §4, program block, and §5.4, conventions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rota.columns import I64, Array, running_count
from rota.device.machines import COMPLETIONS
from rota.device.mesh import Events
from rota.device.records import Controls, Stack, check_unused, configuration, records_of
from rota.device.rings import Rings
from rota.device.world import World, refuse
from rota.isa.config import DEVICE_BITS, DEVICE_IDS, DMA_ALLOCATIONS, Configuration
from rota.isa.semaphores import SEMAPHORES, STRIDE, Reserved, Window
from rota.isa.spad import control_base, slot_bases


def read_blocks(world: World, table: Stack, controls: Controls, rings: Rings, events: Events) -> I64:
    """Check the order of completion and the program blocks; everything else of a configuration is empty.

    Returns:
        The flat semaphore that each processor adds to when it completes, -1 where it passes nothing on.

    Raises:
        DecodeError: a flag or a field that does not follow from the rest.
    """
    layout = configuration(world)
    following = _following(world, controls)
    for name in ("program", "hierarchy", "device_ids"):
        used = np.full((table.image.size, layout.part(name).count), name != "hierarchy")
        check_unused(table, layout, name, used)
    _check_device(world, table, layout)
    records, _, offsets = records_of(table, layout, "program")
    record, offset = records[:, 0], offsets[:, 0]
    complete = np.where(following < 0, -1, _complete_prev(following))
    want = _expected(world, controls, rings, events, complete)
    for name in record.dtype.names or ():
        if name == "barrier_configs":
            continue  # `bracket` reads it
        found = record[name]
        expected = want.get(name, np.zeros((), found.dtype))
        if found.dtype.kind == "V":
            raw = np.ascontiguousarray(found).view(np.uint8).reshape(found.size, -1)
            largest = raw.max(axis=1)
            refuse(largest != 0, offset, f"program block {name}", "0", largest, image=table.image)
            continue
        wrong = found != expected
        if wrong.ndim > 1:
            place = np.argmax(wrong, axis=1)
            rows = np.arange(place.size)
            found, expected, wrong = found[rows, place], expected[rows, place], wrong.any(axis=1)
        if wrong.any():
            need = hex(int(np.broadcast_to(expected, found.shape)[np.argmax(wrong)]))
            refuse(wrong, offset, f"program block {name}", need, found, image=table.image)
    return complete


def _check_device(world: World, table: Stack, layout: Configuration) -> None:
    """Refuse a processor that says it is another one's: its core and device follow from rank and chip."""
    records, _, offset = records_of(table, layout, "device_ids")
    sp = np.arange(table.image.size) % world.sps
    chip = np.array([image.chip for image in world.images], np.int64)[table.image]
    want = {
        "tpb_id": (world.lane[table.image] * world.sps + sp) // world.arch.sps_per_core,
        "dev_id": chip & DEVICE_BITS,
    }
    for each in DEVICE_IDS.fields:
        found = each.values(records[:, 0])
        expected = np.broadcast_to(want.get(each.name, 0), found.shape)
        wrong = found != expected
        if wrong.any():
            need = str(int(expected[np.argmax(wrong)]))
            refuse(wrong, offset[:, 0], f"device ids {each.name}", need, found, image=table.image)


def _complete_prev(processor: I64) -> I64:
    return processor * SEMAPHORES + Reserved.COMPLETE_PREV


def _following(world: World, controls: Controls) -> I64:
    """Return the processor that each passes completion on to, -1 for none; they complete in ascending order."""
    shape = (-1, world.sps, controls.entries)
    active = controls.active.reshape(shape)
    place = np.arange(world.sps)[:, None]
    ahead = np.where(active, place, world.sps)[:, ::-1]
    ahead = np.minimum.accumulate(ahead, axis=1)[:, ::-1]
    ahead = np.concatenate([ahead[:, 1:], np.full_like(ahead[:, :1], world.sps)], axis=1)
    higher = ahead < world.sps
    lower = np.cumsum(active, axis=1) - active > 0
    flags = (controls.reporter, controls.wait_complete, controls.send_complete)
    reporter, waits, sends = (each.reshape(shape) for each in flags)
    ends = ~controls.trigger_next.reshape(shape)
    wrong = active & ((reporter == higher) | (waits != (lower & ends)) | (sends != (higher & ends)))
    image = np.repeat(controls.image, controls.entries)
    offset, raw = controls.offset.ravel(), controls.raw.ravel()
    expected = "completion at the end of a chain, ascending, reported by the highest processor that takes part"
    refuse(wrong.ravel(), offset, "control entry", expected, raw, image=image)
    least = np.where(sends & active, ahead, world.sps).min(axis=2)
    most = np.where(sends & active, ahead, -1).max(axis=2)
    several = sends & active & (ahead != least[:, :, None])
    expected = "completion passed on to one processor in all entries"
    refuse(several.ravel(), offset, "control entry", expected, raw, image=image)
    first = np.arange(active.shape[0])[:, None] * world.sps
    found: I64 = np.where(most >= 0, first + most, -1).ravel()
    return found


def _expected(world: World, controls: Controls, rings: Rings, events: Events, complete: I64) -> Mapping[str, Array]:
    count = controls.image.size
    sp = np.arange(count) % world.sps
    own = world.arch.semaphores(world.lane[controls.image] * world.sps + sp)
    prev = world.arch.semaphores(world.lane[controls.image] * world.sps + complete // SEMAPHORES % world.sps)
    passed = np.where(complete < 0, 0, prev + Window.INC + STRIDE * Reserved.COMPLETE_PREV)
    host = world.host_of(np.arange(count))
    latest = np.full(world.hosts, -1, np.int64)
    np.maximum.at(latest, host, np.max(np.where(controls.active, np.arange(controls.entries), -1), axis=1))
    last = latest[host]
    leads = (last >= 0) & controls.reporter[np.arange(count), np.maximum(last, 0)]
    return {
        "dma_alloc_bitmap": _allocations(count, rings, events),
        "slot_spad_base": own[:, None] + np.array(slot_bases(0)),
        "ctrl_spad_base": own + control_base(0),
        "trigger": own + Window.READ + STRIDE * Reserved.TRIGGER,
        "trigger_next": own + Window.INC + STRIDE * Reserved.TRIGGER,
        "complete": passed,
        "complete_prev": own + Window.READ + STRIDE * Reserved.COMPLETE_PREV,
        "op_num": np.full(count, controls.entries),
        "function_n": np.ones(count, np.int64),
        "tpb_compl_addr_num": np.full(count, COMPLETIONS),
        "word3591": leads.astype(np.int64),
    }


def _allocations(count: int, rings: Rings, events: Events) -> I64:
    """Return the first eight distinct pairs of queue and engines of each processor, in order of use, flattened."""
    leg_row, leg = np.nonzero(events.mask)
    processor = np.concatenate([rings.processor, events.processor[leg_row]])
    queue = np.concatenate([rings.queue, events.queue[leg_row, leg]])
    mask = np.concatenate([rings.mask, events.mask[leg_row, leg]])
    _, first = np.unique(np.stack([processor, queue, mask]), axis=1, return_index=True)
    chosen = np.sort(first)
    chosen = chosen[np.argsort(processor[chosen], kind="stable")]
    place = running_count(processor[chosen])
    chosen, place = chosen[place < DMA_ALLOCATIONS], place[place < DMA_ALLOCATIONS]
    out = np.zeros((count, DMA_ALLOCATIONS, 2), np.int64)
    out[processor[chosen], place, 0] = queue[chosen]
    out[processor[chosen], place, 1] = mask[chosen]
    return out.reshape(count, -1)
