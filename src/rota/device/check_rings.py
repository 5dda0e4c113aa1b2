"""The laws of rings: to whom a channel's rows signal and write, that neighbours agree, and the peers of a KangaRing.

Neighbours are in no record: who follows a channel is read off the semaphores it signals, and must then hold everywhere.
Source: device-model §3-§5 and §7, conventions.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rota.columns import I64, Bool, owners, pointers
from rota.device.check_network import far_signals
from rota.device.load import of_rank
from rota.device.placed import Placed
from rota.errors import DecodeError
from rota.isa.config import NeighbourType

RECV: Final = 0
CREDIT: Final = 1
COMPLETION: Final = 2
HANDSHAKE: Final = 3  # with the proxy of its queue


def check_rings(placed: Placed) -> None:
    """Check all ring channels.

    Raises:
        DecodeError: a signal, a write or a record that no ring has.
    """
    at = np.flatnonzero(placed.signal & (placed.record >= 0))
    role, to = _roles(placed)
    target = placed.items.target[placed.item[at]]
    _check_signals(placed, at, role[target], to[target])
    following = _neighbours(placed, at, role[target], to[target])
    _check_folds(placed, following)
    _check_places(placed, following[0])
    _check_peers(placed)


def _roles(placed: Placed) -> tuple[I64, I64]:
    """Return role and record of every semaphore, -1 for those of no ring."""
    rings = placed.tables.rings
    role, to = np.full((2, placed.world.semaphores), -1, np.int64)
    for each, column in ((RECV, rings.recv), (CREDIT, rings.send), (COMPLETION, rings.compl)):
        role[column], to[column] = each, np.arange(column.size)
    if (hops := placed.tables.hops) is not None:
        role[hops.operations.handshake], to[hops.operations.handshake] = HANDSHAKE, 0
    return role, to


def _check_signals(placed: Placed, at: I64, role: I64, to: I64) -> None:
    """Signals go to semaphores of the same channel, in one order, once and alike on each fold."""
    rings, own = placed.tables.rings, placed.record[at]
    items, program = placed.items, placed.program
    target = items.target[placed.item]

    def law(bad: Bool, expected: str) -> None:
        found = np.zeros(placed.item.size, np.bool_)
        found[at] = bad
        placed.refuse(found, "signal", expected, target)

    law(to < 0, "a semaphore that a ring channel waits on")
    near = role != HANDSHAKE
    law(near & (rings.channel[to] != rings.channel[own]), "a semaphore of the same channel of another rank")
    law((role == COMPLETION) & (to != own), "the completion of its own row")
    fold, launch = placed.fold[at], placed.launch[at]
    again, chosen = np.zeros(fold.size, np.bool_), np.flatnonzero(near)
    again[chosen[1:]] = (np.diff(fold[chosen]) == 0) & (np.diff(role[chosen]) <= 0)
    law(again, "data, credit, completion, in this order and once")
    count = np.bincount(fold, minlength=program.folds.count.size)
    first = program.folds.ptr[:-1]
    uneven = np.zeros(first.size, np.bool_)
    uneven[program.folds.launch[count != count[first[program.folds.launch]]]] = True
    law(uneven[launch], "as many signals on every fold")
    signals = pointers(count)
    place = np.arange(fold.size) - signals[fold]
    start = signals[first[launch]]  # the first signal on the first fold of the launch
    value = items.value[placed.item[at]]
    other = (target[at] != target[at[start + place]]) | (value != value[start + place])
    law(other, "the same signals on every fold")


def _neighbours(placed: Placed, at: I64, role: I64, to: I64) -> tuple[I64, I64]:
    """Return the record that follows each and the one before it, -1 where there is none; each follows one only."""
    rings, world = placed.tables.rings, placed.world
    own = placed.record[at]
    sides = []
    for wanted in (RECV, CREDIT):
        chosen = role == wanted
        peer = np.full(rings.image.size, -1, np.int64)
        peer[own[chosen]] = to[chosen]
        bad = np.zeros(placed.item.size, np.bool_)
        bad[at[chosen]] = to[chosen] != peer[own[chosen]]
        placed.refuse(bad, "signal", "one neighbour on each side of a channel", placed.items.target[placed.item])
        sides.append(peer)
    far = _far_neighbours(placed, sides)
    following, preceding = sides
    every = np.arange(following.size)
    agree = (following < 0) | (preceding[following] == every)
    agree &= (preceding < 0) | (following[preceding] == every)
    _refuse(placed, ~agree, "a ring or a chain: the next one's previous is this one", following)
    following[far[0]], preceding[far[1]] = -1, -1
    for name, peer, found in (("next", following, rings.next_type), ("prev", preceding, rings.prev_type)):
        near = (peer < 0) | world.same_chip(rings.image, rings.image[peer])
        pod = (found == NeighbourType.POINT_TO_POINT_POD) & (rings.folds == 1)
        right = np.where(near, found == NeighbourType.LOCAL, (found == NeighbourType.POINT_TO_POINT) | pod)
        _refuse(placed, ~right, f"a {name}_type that says whether it is on this chip", found)
    return following, preceding


def _far_neighbours(placed: Placed, sides: list[I64]) -> tuple[I64, I64]:
    """Put the neighbours that the network reaches into both sides, and return the records that have one there."""
    rings, hops = placed.tables.rings, placed.tables.hops
    none = np.zeros(0, np.int64)
    if hops is None:
        return none, none
    hop, own, semaphore = far_signals(placed, hops)
    role, to = _roles(placed)
    role, to = role[semaphore], to[semaphore]
    image, offset = hops.operations.image[hops.operation[hop]], hops.offset[hop]
    stray = ((role != RECV) & (role != CREDIT)) | (rings.channel[to] != rings.channel[own])
    expected = "data or credit of the same channel of another rank"
    refuse_decimal(stray, offset, "network_send semaphore", expected, semaphore, image)
    for wanted, peer in zip((RECV, CREDIT), sides, strict=True):
        chosen = role == wanted
        held = peer[own[chosen]] >= 0
        peer[own[chosen]] = to[chosen]
        bad = np.zeros(hop.size, np.bool_)
        bad[chosen] = held | (peer[own[chosen]] != to[chosen])
        expected = "one neighbour on each side of a channel"
        refuse_decimal(bad, offset, "network_send semaphore", expected, semaphore, image)
    return np.unique(own[role == RECV]), np.unique(own[role == CREDIT])


def _check_folds(placed: Placed, sides: tuple[I64, I64]) -> None:
    """A channel counts the folds of its neighbours, or its own where it has none."""
    rings = placed.tables.rings
    for name, peer, found in zip(("next", "prev"), sides, (rings.next_folds, rings.prev_folds), strict=True):
        want = np.where(peer >= 0, rings.folds[peer], rings.folds)
        _refuse(placed, found != want, f"a {name}_fold_n of the neighbour's folds", found)


def _check_places(placed: Placed, following: I64) -> None:
    """A plain ring reads its own rank, and writes there or to the memory of the next rank on the channel."""
    rings, world, items = placed.tables.rings, placed.world, placed.items
    plain = np.append(~rings.kangaring, False)[placed.record]
    chosen = np.flatnonzero(placed.data & plain)
    own = rings.image[placed.record[chosen]]
    follower = following[placed.record[chosen]]
    follower = np.where(follower >= 0, rings.image[follower], own)
    there = world.memory_owner(items.target[placed.item[chosen]])
    bad = np.zeros(placed.item.size, np.bool_)
    bad[chosen] = (there != own) & (there != follower)
    if items.more.size:
        where = np.full(items.count, -1, np.int64)
        where[placed.item[chosen]] = chosen
        at = where[items.more_item]
        far, at = world.memory_owner(items.more[at >= 0]), at[at >= 0]
        mine = rings.image[placed.record[at]]
        beyond = following[placed.record[at]]
        beyond = np.where(beyond >= 0, rings.image[beyond], mine)
        bad[at[(far != mine) & (far != beyond)]] = True
    placed.refuse(bad, "RX address", "memory of the rank or of its neighbour", items.target[placed.item])
    source = owners(items.source_ptr)
    pulls = np.zeros(items.count, np.bool_)
    pulls[source[world.memory_owner(items.source) != items.image_of(source)]] = True
    bad = pulls[placed.item] & placed.data & plain
    expected = "the rank's own memory, on a plain ring"
    placed.refuse(bad, "TX address", expected, items.target[placed.item], transmit=True)


def _check_peers(placed: Placed) -> None:
    """Primary and secondaries of a KangaRing name each other, and say alike how many there are."""
    rings = placed.tables.rings
    group = np.flatnonzero(rings.kangaring)
    if not group.size:
        return
    record = np.full(placed.world.semaphores, -1, np.int64)
    record[rings.mine[group]] = group
    row, place = np.nonzero(rings.peers >= 0)
    peer = record[rings.peers[row, place]]
    bad = np.zeros(rings.image.size, np.bool_)
    bad[row[(peer < 0) | (peer == row)]] = True
    _refuse(placed, bad, "KangaRing peers that are such", rings.peers[:, 0])
    back = (rings.peers[peer] == rings.mine[row][:, None]).any(axis=1)
    agrees = back & (rings.primary[peer] != rings.primary[row]) & (rings.count[peer] == rings.count[row])
    bad[row[~agrees]] = True
    _refuse(placed, bad, "peers of a KangaRing that name each other, one of them primary", rings.count)


def _refuse(placed: Placed, bad: Bool, expected: str, values: I64) -> None:
    """Raise DecodeError for the first bad record, if there is one."""
    rings = placed.tables.rings
    if bad.any():
        what = f"ring channel {int(rings.channel[np.argmax(bad)])}"
        refuse_decimal(bad, rings.offset, what, expected, values, rings.image)


def refuse_decimal(bad: Bool, offset: I64, what: str, expected: str, values: I64, image: I64) -> None:
    """Raise DecodeError for the first bad entry, whose value reads as a number."""
    if bad.any():
        at = int(np.argmax(bad))
        with of_rank(int(image[at])):
            raise DecodeError(what, offset=int(offset[at]), expected=expected, got=str(int(values[at])))
