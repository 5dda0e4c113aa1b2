"""What loaded programs must look like beyond fitting their rings: all laws, in the order in which they are looked at.

The device would run a program without these checks, and some wrong ones to a right result. Order inside a launch is
`check_launches`, neighbours `check_rings`, what is given and taken `check_balance`. Source: device-model §3-§5 and §7,
conventions.
"""

from __future__ import annotations

import numpy as np

from rota.columns import I64, Bool
from rota.device.check_balance import check_balance, check_feeds, check_presets
from rota.device.check_launches import check_launches, check_rings_apart
from rota.device.check_network import check_network
from rota.device.check_rings import check_rings
from rota.device.dma import Items
from rota.device.placed import place_items
from rota.device.program import Program
from rota.device.steps import Tables
from rota.device.world import World, refuse
from rota.isa.enums import Algorithm


def check(world: World, items: Items, program: Program, tables: Tables) -> None:
    """Refuse programs no emitter means.

    Raises:
        DecodeError: with the offset in the file of the rank it names.
    """
    _check_operations(world, tables)
    placed = place_items(world, items, program, tables)
    check_rings_apart(placed)
    check_launches(placed)
    check_network(placed)
    check_rings(placed)
    check_balance(placed)
    check_presets(placed)
    check_feeds(placed)


def _check_operations(world: World, tables: Tables) -> None:
    """An entry is one operation on all ranks, on each processor, of one parity; an empty one is a plain mesh."""
    controls, events = tables.controls, tables.events
    image = np.repeat(controls.image, controls.entries)
    offset, raw = controls.offset.ravel(), controls.raw.ravel()
    parity = np.where(controls.mesh, controls.shift, -1)
    odd = controls.mesh & (parity != parity.max(axis=0))
    refuse(odd.ravel(), offset, "control entry", "one parity on all ranks", raw, image=image)
    empty = controls.mesh & (events.length == 0)
    plain = (controls.algorithm == Algorithm.MESH) & (controls.sub_type == 0) & (controls.flags == 0)
    expected = "a plain mesh where nothing is done"
    refuse((empty & ~plain).ravel(), offset, "control entry", expected, raw, image=image)
    kinds = np.stack([controls.algorithm, controls.sub_type, controls.flags])
    busy = controls.active & ~empty
    other = busy & ~_same_by_sp(kinds, busy, world.sps)
    expected = "algorithm and flags of the entry on other ranks"
    refuse(other.ravel(), offset, "control entry", expected, raw, image=image)


def _same_by_sp(kinds: I64, busy: Bool, sps: int) -> Bool:
    """Say where an entry is of the kind of the first busy one of its number, on the same processor of a rank."""
    shape = (-1, sps, busy.shape[1])
    there = busy.reshape(shape)
    first = np.argmax(there, axis=0)  # image
    sp, entry = np.indices(first.shape)
    out = np.ones(there.shape, np.bool_)
    for column in kinds:
        values = column.reshape(shape)
        out &= values == values[first, sp, entry]
    found: Bool = out.reshape(busy.shape)
    return found
