"""Which items each launch starts: the descriptors of a ring belong to its launches in the order of the program."""

from __future__ import annotations

from typing import Final

import numpy as np

from rota.columns import I64, Bool, pointers
from rota.device.dma import Items
from rota.device.load import of_rank
from rota.device.program import Folds, Launches
from rota.device.world import World, refuse
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.image import Section
from rota.isa.ring_cursor import GUARD

SECTIONS: Final = isa.ENGINES * isa.QUEUES  # rings of one rank


def place_launches(world: World, items: Items, launches: Launches) -> Folds:
    """Give every launch its items; those of a rank are in the order of its control entries.

    Raises:
        DecodeError: the launches and the descriptors that are there do not agree.
    """
    launch, engine = np.nonzero(launches.mask[:, None] >> np.arange(isa.ENGINES) & 1)
    key = launches.image[launch] * SECTIONS + engine * isa.QUEUES + launches.queue[launch]
    known = items.sections[:, 0] * SECTIONS + items.sections[:, 1]
    _check_sizes(world, launches)
    section = np.searchsorted(known, key)
    missing = np.append(known, -1)[section] != key
    _refuse(launches, launch, missing, "a ring on each of its engines", key % SECTIONS)
    _check_used(world, items, section)
    order = np.argsort(section, kind="stable")
    item = np.empty(launch.size, np.int64)
    edge = np.ones(launch.size, np.bool_)  # the first launch of its section
    edge[1:] = np.diff(section[order]) != 0
    start = items.section_ptr[section[order]]
    rx = _before(launches.s2m[launch[order]], edge)
    tx = _before(launches.m2s[launch[order]], edge)
    _check_totals(items, launches, launch[order], section[order], edge, tx, rx)
    found = items.rx_ptr[start] + rx
    if items.more.size:
        found = np.searchsorted(items.rx_ptr, found)
    inside = items.rx_ptr[found] != items.rx_ptr[start] + rx
    inside |= items.tx_ptr[found] - items.tx_ptr[start] != tx
    inside |= ~items.first[np.minimum(found, items.count - 1)] if items.count else inside
    _refuse(launches, launch[order], inside, "rows that launch whole packets", launches.m2s[launch[order]])
    item[order] = found
    count = np.empty(launch.size, np.int64)
    following = np.append(found[1:], items.count)
    closes = np.append(edge[1:], True)[: edge.size]
    count[order] = np.where(closes, items.section_ptr[section[order] + 1], following) - found
    return Folds(launch, pointers(np.bincount(launch, minlength=launches.count)), section, item, count)


def _before(counts: I64, edge: Bool) -> I64:
    """Return the sum of what stands before each in its section."""
    total = np.cumsum(counts) - counts
    start = np.flatnonzero(edge)
    return total - np.repeat(total[start], np.diff(np.append(start, counts.size)))


def _refuse(launches: Launches, launch: I64, bad: Bool, expected: str, values: I64) -> None:
    refuse(bad, launches.offset[launch], "slot program", expected, values, image=launches.image[launch])


def _check_sizes(world: World, launches: Launches) -> None:
    """A launch leaves the gap of its ring free, and some launch has as many folds as META says."""
    most = world.images[0].ring_size - GUARD
    every = np.arange(launches.count)
    _refuse(launches, every, launches.m2s > most, f"rows of at most {most}", launches.m2s)
    _refuse(launches, every, launches.s2m > most, f"rows of at most {most}", launches.s2m)
    folds = np.count_nonzero(launches.mask[:, None] >> np.arange(isa.ENGINES) & 1, axis=1)
    meta = world.images[0].folds
    if launches.count and folds.max() != meta:
        at = int(np.argmax(folds))
        with of_rank(0):
            raise DecodeError(
                "image META folds",
                offset=world.images[0].part(Section.META, 0).offset,
                expected=f"the most folds of a row, {int(folds[at])}",
                got=str(meta),
            )


def _check_used(world: World, items: Items, section: I64) -> None:
    """Every ring that is there is used."""
    unused = np.ones(items.sections.shape[0], np.bool_)
    unused[section] = False
    if unused.any():
        image, place = items.sections[int(np.argmax(unused))].tolist()
        with of_rank(image):
            offset = world.images[image].part(Section.TX, place).entry
            expected = "rings that something on the rank uses"
            got = f"engine {place // isa.QUEUES} queue {place % isa.QUEUES}"
            raise DecodeError("section table", offset=offset, expected=expected, got=got)


def _check_totals(items: Items, launches: Launches, launch: I64, section: I64, edge: Bool, tx: I64, rx: I64) -> None:
    """The launches of a ring start all its descriptors and no more."""
    last = np.append(edge[1:], True)[: edge.size]
    first, end = items.section_ptr[section], items.section_ptr[section + 1]
    rx_there, tx_there = items.rx_ptr[end] - items.rx_ptr[first], items.tx_ptr[end] - items.tx_ptr[first]
    rx_used, tx_used = rx + launches.s2m[launch], tx + launches.m2s[launch]
    bad = last & ((rx_used != rx_there) | (tx_used != tx_there))
    if bad.any():
        at = int(np.argmax(bad))
        expected = f"{int(rx_there[at])} writing and {int(tx_there[at])} reading descriptors in all"
        got = f"{int(rx_used[at])} and {int(tx_used[at])}"
        with of_rank(int(launches.image[launch[at]])):
            raise DecodeError("slot program", offset=int(launches.offset[launch[at]]), expected=expected, got=got)
