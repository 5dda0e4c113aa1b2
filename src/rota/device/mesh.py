"""Mesh event records of all processors as columns, the lists they make, and the laws of one record.

A list begins where a control entry says and ends before the first record that does nothing. Records may be shared by
lists. Source: device-model §4, event list, and §5.5, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool
from rota.device.records import Controls, Stack, check_unused, configuration, records_of
from rota.device.rings import own_semaphores, queue_of, told_semaphores
from rota.device.world import World, refuse
from rota.isa import arch as isa
from rota.isa.events import EventType

LEGS: Final = 2
DIRECT: Final = 3
_FLAGS: Final = ("dma_trigger", "direct_trigger", "wait_event")


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """One entry per event record that a list has, processor by processor, ascending.

    Attributes:
        queue, mask: descriptors' rings of each leg, shape (records, 2); a mask of 0 where there is no leg.
        told: flat semaphores of the direct trigger, shape (records, 3), -1 for none.
        wait: flat semaphore, -1 where nothing is waited for; count: how much, in units of the operation.
        offset: of the record in the file of its rank.
        first, length: of the list of each control entry, shape (processors, entries), as index here; 0 long where the
            entry has none.
    """

    processor: I64
    image: I64
    queue: I64
    mask: I64
    told: I64
    wait: I64
    count: I64
    type: I64
    offset: I64
    first: I64
    length: I64


def read_events(world: World, table: Stack, controls: Controls) -> Events:
    """Read the records of all event lists; all others are empty.

    Raises:
        DecodeError: a record that no emitter could have meant, or a list without an end.
    """
    layout = configuration(world)
    records, _, offsets = records_of(table, layout, "mesh")
    first, end, used = _lists(records, controls)
    check_unused(table, layout, "mesh", used)
    processor, place = np.nonzero(used)
    record, offset, image = records[processor, place], offsets[processor, place], table.image[processor]
    _check_record(record, image, offset)
    number: I64 = np.cumsum(used).reshape(used.shape) - used  # index of the first used record from each place on
    row, column = np.nonzero(controls.mesh)
    start = np.zeros(controls.mesh.shape, np.int64)
    start[row, column] = number[row, np.minimum(first[row, column], used.shape[1] - 1)]
    queue, mask = np.zeros((2, processor.size, LEGS), np.int64)
    for leg in range(LEGS):
        mask[:, leg] = record[f"leg{leg}_mask"]
        there = np.flatnonzero(mask[:, leg])
        m2s, s2m = record[f"leg{leg}_m2s_tail_ptr"][there], record[f"leg{leg}_s2m_tail_ptr"][there]
        queue[there, leg] = queue_of(world, m2s, s2m, image[there], offset[there], f"mesh event leg {leg} tails")
    clash = (mask[:, 0] & mask[:, 1] != 0) & (queue[:, 0] == queue[:, 1])
    refuse(clash, offset, "mesh event", "legs with rings of their own", record["leg1_mask"], image=image)
    told = np.full((processor.size, DIRECT), -1, np.int64)
    at, which = np.nonzero(record["direct_trigger_sema"])
    address = record["direct_trigger_sema"][at, which]
    told[at, which] = told_semaphores(world, address, image[at], offset[at], "direct_trigger_sema")
    wait = np.full(processor.size, -1, np.int64)
    at = np.flatnonzero(record["wait_event"])
    address = record["event_wait_sema"][at]
    wait[at] = own_semaphores(world, address, processor[at], image[at], offset[at], "event_wait_sema")
    return Events(
        processor=processor,
        image=image,
        queue=queue,
        mask=mask,
        told=told,
        wait=wait,
        count=record["wait_val"].astype(np.int64),
        type=record["event_type"].astype(np.int64),
        offset=offset,
        first=start,
        length=np.where(controls.mesh, end - first, 0),
    )


def _lists(records: Array, controls: Controls) -> tuple[I64, I64, Bool]:
    """Return first and end record of the list of each entry, and which records are in a list."""
    count = records.shape[1]
    ends = np.logical_not(np.stack([records[name] for name in _FLAGS]).any(axis=0))
    following = np.where(ends, np.arange(count), count)
    following = np.minimum.accumulate(following[:, ::-1], axis=1)[:, ::-1]
    first = np.where(controls.mesh, controls.first_event, 0)
    outside = first >= count
    end = following[np.arange(records.shape[0])[:, None], np.minimum(first, count - 1)]
    bad = controls.mesh & (outside | (end == count))
    image = np.repeat(controls.image, controls.entries)
    refuse(
        bad.ravel(),
        controls.offset.ravel(),
        "control entry",
        f"an event list that ends among {count} records",
        controls.first_event.ravel(),
        image=image,
    )
    edge = np.zeros((records.shape[0], count + 1), np.int64)
    row, column = np.nonzero(controls.mesh)
    np.add.at(edge, (row, first[row, column]), 1)
    np.add.at(edge, (row, end[row, column]), -1)
    return first, end, np.cumsum(edge, axis=1)[:, :count] > 0


def _check_record(record: Array, image: I64, offset: I64) -> None:
    """What a record does not do it says nothing of; what it does, it says whole."""
    dma, direct, wait = (record[name] for name in _FLAGS)
    told = record["direct_trigger_sema"] != 0
    legs = np.stack([_says(record, f"leg{leg}_") for leg in range(LEGS)])
    whole = np.stack([record[f"leg{leg}_mask"] != 0 for leg in range(LEGS)])
    engines = np.stack([record[f"leg{leg}_mask"] >> np.uint32(isa.ENGINES) == 0 for leg in range(LEGS)])
    laws = (
        ("dma_trigger", dma <= 1, "0 or 1"),
        ("direct_trigger", direct <= 1, "0 or 1"),
        ("wait_event", wait <= 1, "0 or 1"),
        ("leg0_mask", (whole[0] == (dma == 1)) & engines[0], "engines exactly where descriptors are started"),
        ("leg0_m2s_tail_ptr", legs[0] == whole[0], "0 where there is no leg"),
        ("leg1_mask", ~(whole[1] & ~whole[0]) & engines[1], "engines behind those of the first leg only"),
        ("leg1_m2s_tail_ptr", legs[1] == whole[1], "0 where there is no leg"),
        ("direct_trigger", told[:, 0] == (direct == 1), "an address exactly where one is told"),
        ("direct_trigger", ~(told[:, 1:] & ~told[:, :-1]).any(axis=1), "addresses from the first on"),
        ("wait_val", (record["wait_val"] != 0) == (wait == 1), "a number exactly where something is waited for"),
        (
            "event_wait_sema",
            (record["event_wait_sema"] != 0) == (wait == 1),
            "an address exactly where it is waited on",
        ),
        ("event_type", record["event_type"] <= max(EventType), f"at most {max(EventType)}"),
    )
    for name, holds, expected in laws:
        refuse(~holds, offset, f"mesh event {name}", expected, record[name], image=image)


def _says(record: Array, leg: str) -> Bool:
    found: Bool = (
        (record[f"{leg}m2s_tail_ptr"] != 0) | (record[f"{leg}s2m_tail_ptr"] != 0) | (record[f"{leg}mask"] != 0)
    )
    return found
