"""Ring channel records of all processors as columns, and the laws of one record.

Which entries use a channel is in the control tables, what its rows are in `slots`, who its neighbours are is read off
the semaphores it signals by `check_rings`. Source: device-model §4, ring record, and §5.2, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool
from rota.device.records import (
    Controls,
    Stack,
    bits_of,
    check_unused,
    configuration,
    records_of,
)
from rota.device.world import World, refuse, semaphores_at
from rota.isa import arch as isa
from rota.isa.config import CHANNELS, NeighbourType
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, SEMAPHORES, Window
from rota.isa.spad import SLOTS

ROLES: Final = ("recv_sema", "send_sema", "post_sema", "dma_compl_sema")
"""Semaphores of a channel in the order in which they take ids. Source: device-model §4, convention."""
_PEERS: Final = (0, 1, 3)


@dataclass(frozen=True, slots=True, eq=False)
class Rings:
    """One entry per ring channel record that a control entry names, processor by processor, ascending.

    Attributes:
        recv, send, post, compl: flat semaphores. mine: that of the KangaRing peers; -1 on another ring.
        peers: flat semaphores that are told, shape (records, 3), -1 for none; needs: what is waited for at `mine`.
        count: peers of a primary of the core group, as every record of the group says.
        queue, mask: the descriptors' rings, the same queue on each engine.
        offset: of the record in the file of its rank.
        index: of the record of each (processor, channel), shape (processors, 32), -1 where there is none.
    """

    processor: I64
    image: I64
    channel: I64
    slot: I64
    folds: I64
    next_folds: I64
    prev_folds: I64
    next_type: I64
    prev_type: I64
    recv: I64
    send: I64
    post: I64
    compl: I64
    mine: I64
    needs: I64
    count: I64
    primary: Bool
    peers: I64
    queue: I64
    mask: I64
    offset: I64
    index: I64

    @property
    def kangaring(self) -> Bool:
        """The channel has peers beside its ring."""
        return self.mine >= 0


def read_rings(world: World, table: Stack, controls: Controls) -> Rings:
    """Read the records of all channels that take part in something; all others are empty.

    Raises:
        DecodeError: a record that no emitter could have meant.
    """
    layout = configuration(world)
    live = np.bitwise_or.reduce(controls.channels, axis=1)
    processor, channel = bits_of(live, CHANNELS)
    used = np.zeros((live.size, CHANNELS), np.bool_)
    used[processor, channel] = True
    check_unused(table, layout, "ring", used)
    records, _, offsets = records_of(table, layout, "ring")
    record, offset = records[processor, channel], offsets[processor, channel]
    image = table.image[processor]
    _check_record(record, channel, image, offset)
    queue = queue_of(world, record["m2s_tail_ptr"], record["s2m_tail_ptr"], image, offset, "ring channel tails")
    semaphores = [own_semaphores(world, record[name], processor, image, offset, name) for name in ROLES]
    mine, needs, peers = _peers(world, record, processor, image, offset)
    _check_ids(semaphores, mine, processor, image, offset)
    index = np.full(used.shape, -1, np.int64)
    index[processor, channel] = np.arange(processor.size)
    recv, send, post, compl = semaphores
    return Rings(
        processor=processor,
        image=image,
        channel=channel,
        slot=record["spad_slot_idx"].astype(np.int64),
        folds=record["fold_n"].astype(np.int64),
        next_folds=record["next_fold_n"].astype(np.int64),
        prev_folds=record["prev_fold_n"].astype(np.int64),
        next_type=record["next_type"].astype(np.int64),
        prev_type=record["prev_type"].astype(np.int64),
        recv=recv,
        send=send,
        post=post,
        compl=compl,
        mine=mine,
        needs=needs,
        count=record["kangaring_num_peers"].astype(np.int64),
        primary=record["kangaring_is_primary"] == 1,
        peers=peers,
        queue=queue,
        mask=record["mask"].astype(np.int64),
        offset=offset,
        index=index,
    )


def _check_record(record: Array, channel: I64, image: I64, offset: I64) -> None:
    ones = np.count_nonzero(record["mask"][:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1), axis=1)
    peers = record["kangaring_num_peers"]
    plain = peers == 0
    told = np.where(record["kangaring_is_primary"] == 1, peers, np.minimum(peers, 1))
    laws = (
        ("channel_id", record["channel_id"] == channel, "its place"),
        ("spad_slot_idx", record["spad_slot_idx"] < SLOTS, f"below {SLOTS}"),
        ("mask", (ones > 0) & (record["mask"] >> np.uint32(isa.ENGINES) == 0), "engines"),
        ("fold_n", record["fold_n"] == ones, "one fold for each engine of its mask"),
        ("next_type", record["next_type"] <= NeighbourType.POINT_TO_POINT_POD, "0, 1 or 2"),
        ("prev_type", record["prev_type"] <= NeighbourType.POINT_TO_POINT_POD, "0, 1 or 2"),
        ("kangaring_num_peers", np.isin(peers, _PEERS), "0, 1 or 3"),
        ("kangaring_is_primary", record["kangaring_is_primary"] <= ~plain, "0, or 1 where there are peers"),
        ("kangaring_mine", (record["kangaring_mine"] == 0) == plain, "an address exactly where there are peers"),
        *(
            (f"kangaring_peers[{i}]", (record["kangaring_peers"][:, i] == 0) == (told <= i), "as many as are told")
            for i in range(3)
        ),
        *(
            (f"{side}_network_index[{i}]", record[f"{side}_network_index"][:, i] == 0, "0 inside a node")
            for side in ("next", "prev")
            for i in range(3)
        ),
    )
    for name, holds, expected in laws:
        values = record[name] if "[" not in name else record[name[:-3]][:, int(name[-2])]
        _refuse(~holds, name, expected, values, channel, image, offset)


def _refuse(bad: Bool, name: str, expected: str, values: Array, channel: I64, image: I64, offset: I64) -> None:
    if bad.any():
        what = f"ring channel {int(channel[np.argmax(bad)])} {name}"
        refuse(bad, offset, what, expected, values, image=image)


def queue_of(world: World, m2s: Array, s2m: Array, image: I64, offset: I64, what: str) -> I64:
    """Return the queue whose tails a record advances: the two registers of one queue of the own rank.

    Raises:
        DecodeError: the addresses are not such a pair.
    """
    core = world.lane[image] * world.lnc
    first = world.arch.doorbell(core, np.zeros_like(core), receive=False)
    queue: I64 = np.clip((m2s.astype(np.int64) - first) >> isa.QUEUE_SHIFT, 0, isa.QUEUES - 1)
    for address, receive in ((m2s, False), (s2m, True)):
        wrong = address.astype(np.int64) != world.arch.doorbell(core, queue, receive=receive)
        refuse(wrong, offset, what, "the two tail registers of one queue of the rank", address, image=image)
    return queue


def own_semaphores(world: World, addresses: Array, processor: I64, image: I64, offset: I64, what: str) -> I64:
    """Return the flat semaphores that records of processors wait on: free ones of their own, in the READ window.

    Raises:
        DecodeError: an address is another.
    """
    flat = semaphores_at(world, image, addresses, Window.READ, offset, what)
    identity = flat - processor * SEMAPHORES
    bad = (identity < FIRST_FREE) | (identity > LAST_FREE)
    refuse(bad, offset, what, "a free semaphore of its own processor", addresses, image=image)
    return flat


def told_semaphores(world: World, addresses: Array, image: I64, offset: I64, what: str) -> I64:
    """Return the flat semaphores that records add to: free ones of any rank, in the INC window.

    Raises:
        DecodeError: an address is another.
    """
    flat = semaphores_at(world, image, addresses, Window.INC, offset, what)
    identity = flat % SEMAPHORES
    bad = (identity < FIRST_FREE) | (identity > LAST_FREE)
    refuse(bad, offset, what, "a free semaphore", addresses, image=image)
    return flat


def _peers(world: World, record: Array, processor: I64, image: I64, offset: I64) -> tuple[I64, I64, I64]:
    mine = np.full(processor.size, -1, np.int64)
    peers = np.full((processor.size, 3), -1, np.int64)
    there = np.flatnonzero(record["kangaring_num_peers"])
    if there.size:
        mine[there] = own_semaphores(
            world, record["kangaring_mine"][there], processor[there], image[there], offset[there], "kangaring_mine"
        )
    row, place = np.nonzero(record["kangaring_peers"])
    if row.size:
        address = record["kangaring_peers"][row, place]
        peers[row, place] = told_semaphores(world, address, image[row], offset[row], "kangaring_peers")
    count = record["kangaring_num_peers"].astype(np.int64)
    return mine, np.where(record["kangaring_is_primary"] == 1, count, np.minimum(count, 1)), peers


def _check_ids(semaphores: list[I64], mine: I64, processor: I64, image: I64, offset: I64) -> None:
    """A channel takes consecutive ids, in the order of ROLES; no semaphore belongs to two records."""
    table = np.stack(semaphores)
    identity = table - processor * SEMAPHORES
    bad = (table != table[-1] - np.arange(len(ROLES))[::-1, None]).any(axis=0)
    refuse(bad, offset, "ring channel", "consecutive semaphores of its own processor", identity[-1], image=image)
    every = np.concatenate([table.T.ravel(), mine])
    owner = np.concatenate([np.repeat(np.arange(processor.size), len(ROLES)), np.arange(processor.size)])
    every, owner = every[every >= 0], owner[every >= 0]
    order = np.argsort(every, kind="stable")
    twice = np.zeros(processor.size, np.bool_)
    twice[owner[order[1:][np.diff(every[order]) == 0]]] = True
    refuse(twice, offset, "ring channel", "semaphores of no other channel", identity[-1], image=image)
