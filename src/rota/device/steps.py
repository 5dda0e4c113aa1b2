"""The steps of all machines: hosts, control walks, ring channels and event lists, from the tables of their images.

Everything is made in blocks: one array operation for all gates, adds or launches of a kind. Source: device-model §5,
conventions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rota.columns import I64, Array, Bool, owners, pointers
from rota.device.blocks import read_blocks
from rota.device.dma import Items
from rota.device.launches import place_launches
from rota.device.machines import Rows, Workers, read_workers
from rota.device.mesh import Events, read_events
from rota.device.network import Hops, read_hops
from rota.device.program import WHOLE, Adds, Gates, Kind, Launches, Machines, Program
from rota.device.records import Controls, read_controls, segments, stack
from rota.device.rings import Rings, read_rings
from rota.device.world import World
from rota.isa.image import Section
from rota.isa.semaphores import SEMAPHORES, Reserved
from rota.isa.spad import SlotFlag


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What the images say, beside descriptors: the checks look here."""

    controls: Controls
    rings: Rings
    events: Events
    workers: Workers
    rows: Rows
    hops: Hops | None


def decode_program(world: World, items: Items) -> tuple[Program, Tables]:
    """Read the programs of all images. That they are ones an emitter could mean, `checks` sees.

    Raises:
        DecodeError: tables that contradict each other or the descriptors.
    """
    controls = read_controls(world)
    conf = stack(world, Section.CONF)
    rings, events = read_rings(world, conf, controls), read_events(world, conf, controls)
    workers, rows = read_workers(world, controls, rings, events)
    complete = read_blocks(world, conf, controls, rings, events)
    tables = Tables(controls, rings, events, workers, rows, read_hops(world, controls))
    build = _Build(world, tables, complete)
    build.hosts()
    build.walks()
    build.channels()
    build.lists()
    return build.finish(items), tables


@dataclass(slots=True)
class _Table:
    """Columns that grow in blocks, one entry per gate, add or launch; `step` says whose each is."""

    blocks: list[tuple[Array, ...]] = field(default_factory=list)

    def add(self, step: I64, *columns: I64 | int) -> None:
        """Add a block; a number stands for a whole column."""
        self.blocks.append((step, *(np.broadcast_to(np.asarray(c, np.int64), step.shape) for c in columns)))

    def columns(self, width: int) -> tuple[I64, ...]:
        """Return step and all columns, in the order of the steps."""
        blocks = self.blocks or [tuple(np.zeros(0, np.int64) for _ in range(width + 1))]
        joined = [np.concatenate(each) for each in zip(*blocks, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return tuple(each[order] for each in joined)


class _Build:
    """Steps are numbered machine by machine: hosts, walks, workers; counters behind the semaphores."""

    def __init__(self, world: World, tables: Tables, complete: I64) -> None:
        self.world, self.tables, self.complete = world, tables, complete
        controls, workers = tables.controls, tables.workers
        self.chains = int(controls.chain[-1]) + 1
        self.ended = world.semaphores
        self.walked = self.ended + world.processors
        self.turn = self.walked + world.hosts
        self.gates, self.adds, self.starts = _Table(), _Table(), _Table()
        self._posted()
        self._ring_rows()
        hosts, walks = world.hosts, world.processors
        lists = ~workers.ring
        length = tables.events.length[workers.processor, workers.entry]
        count = np.concatenate(
            [
                np.full(hosts, self.chains + 1),
                np.full(walks, 2 * controls.entries),
                np.where(lists, length, np.diff(workers.row) + self.extra_in) + 1,
            ]
        )
        self.step = pointers(count)
        self.base = self.step[hosts + walks : -1]
        self.last = self.step[hosts + walks + 1 :] - 1
        self.place = np.zeros(int(self.step[-1]), np.int64)

    def _posted(self) -> None:
        """Find where each rank posts: `post_entry` by host and chain, -1 where its stream posts nothing there."""
        workers, chain = self.tables.workers, self.tables.controls.chain
        self.post_entry = np.full((self.world.hosts, self.chains), -1, np.int64)
        ends = np.flatnonzero(workers.ends)
        host = self.world.host_of(workers.processor[ends])
        self.post_entry[host, chain[workers.entry[ends]]] = workers.entry[ends]

    def _ring_rows(self) -> None:
        """Find the rows of ring channels, and where a step of its own takes the completion of the row before."""
        workers, rows = self.tables.workers, self.tables.rows
        self.owner, self.within = segments(np.diff(workers.row))
        ring = workers.ring[self.owner]
        self.receives = ring & (rows.flags & SlotFlag.NO_RECEIVE == 0)
        self.sends = ring & (rows.flags & SlotFlag.NO_SEND == 0)
        self.waits_peers = rows.flags & SlotFlag.WAIT_PEERS != 0
        self.tells_peers = rows.flags & SlotFlag.SIGNAL_PEERS != 0
        gated = self.receives | self.sends | self.waits_peers
        self.extra = gated & (self.within > 0)
        self.extra[1:] &= self.tells_peers[:-1]
        self.extra_in = np.bincount(self.owner, self.extra, workers.count).astype(np.int64)

    def hosts(self) -> None:
        """Add the host of each rank and stream: it triggers a chain when the one before it has been posted.

        It triggers every processor of its stream, and what its stream does not post it waits for to have been walked.
        """
        world, hosts = self.world, self.world.hosts
        host, chain = np.divmod(np.arange(hosts * self.chains), self.chains)
        step = self.step[host] + chain
        self.place[: hosts * (self.chains + 1)] = np.tile(np.arange(self.chains + 1), hosts)
        processor = np.arange(world.processors)
        of = world.host_of(processor)
        start = (self.step[of][:, None] + np.arange(self.chains)).ravel()
        self.adds.add(start, np.repeat(processor * SEMAPHORES + Reserved.TRIGGER, self.chains), 1)
        entry = self.post_entry[host, chain]
        quiet, posts = np.flatnonzero(entry < 0), np.flatnonzero(entry >= 0)
        walkers = np.bincount(of, minlength=hosts)[host[quiet]]
        self.gates.add(step[quiet] + 1, self.walked + host[quiet], 0, WHOLE, walkers, walkers, chain[quiet])
        reporter = self._reporter(host[posts] // world.streams, entry[posts])
        before = np.zeros(posts.size, np.int64)
        order = np.argsort(reporter, kind="stable")
        fresh = np.ones(posts.size, np.bool_)
        fresh[1:] = np.diff(reporter[order]) != 0
        at = np.arange(posts.size)
        before[order] = at - np.maximum.accumulate(np.where(fresh, at, 0))
        done = reporter * SEMAPHORES + Reserved.COMPLETION
        self.gates.add(step[posts] + 1, done, 0, WHOLE, before + 1, 0, chain[posts])

    def _reporter(self, image: I64, entry: I64) -> I64:
        """Return the processor that reports an entry on a rank."""
        controls = self.tables.controls
        there = controls.active.reshape(-1, self.world.sps, controls.entries)[image, :, entry]
        found: I64 = (image + 1) * self.world.sps - 1 - np.argmax(there[:, ::-1], axis=1)
        return found

    def walks(self) -> None:
        """Add the walk of each control table: two steps an entry, one that starts it and one that ends it."""
        world, controls, workers = self.world, self.tables.controls, self.tables.workers
        entries, hosts = controls.entries, world.hosts
        processor, entry = np.divmod(np.arange(world.processors * entries), entries)
        begin = self.step[hosts + processor] + 2 * entry
        home = processor * SEMAPHORES
        self.place[begin], self.place[begin + 1] = entry, entry
        self.gates.add(begin, home + Reserved.TRIGGER, 0, WHOLE, 1, 1, entry)
        of = workers.processor * entries + workers.entry
        self.adds.add(begin[of], self.turn + np.arange(workers.count), 1)
        busy = np.bincount(of, minlength=begin.size)
        some = np.flatnonzero(busy)
        self.gates.add(begin[some] + 1, self.ended + processor[some], 0, WHOLE, busy[some], busy[some], entry[some])
        waits = np.flatnonzero(controls.wait_complete.ravel())
        self.gates.add(begin[waits] + 1, home[waits] + Reserved.COMPLETE_PREV, 0, WHOLE, 1, 1, entry[waits])
        passes = np.flatnonzero(controls.send_complete.ravel())
        self.adds.add(begin[passes] + 1, self.complete[processor[passes]], 1)
        host, chain = world.host_of(processor), controls.chain[entry]
        posts = np.flatnonzero(controls.reporter.ravel() & (self.post_entry[host, chain] == entry))
        self.adds.add(begin[posts] + 1, home[posts] + Reserved.COMPLETION, 1)
        chained = np.flatnonzero(controls.trigger_next.ravel())
        self.adds.add(begin[chained] + 1, home[chained] + Reserved.TRIGGER, 1)
        quiet = ~controls.trigger_next.ravel() & (self.post_entry[host, chain] < 0)
        last = np.flatnonzero(quiet)
        self.adds.add(begin[last] + 1, self.walked + host[last], 1)

    def channels(self) -> None:
        """Add the ring channels: a step starts a row when the one before has completed, and its own gates hold."""
        workers, rows, rings = self.tables.workers, self.tables.rows, self.tables.rings
        row = np.flatnonzero(workers.ring[self.owner])
        owner, within = self.owner[row], self.within[row]
        before = np.cumsum(self.extra[row]) - pointers(self.extra_in)[owner]
        step = self.base[owner] + within + before
        extra = self.extra[row]
        self.place[step], self.place[step[extra] - 1] = within, within[extra] - 1
        final = np.append(within[1:] == 0, True)[: row.size]
        follows = np.append(step[1:] - extra[1:], 0)[: row.size]
        takes = np.where(final, self.last[owner], follows)  # step that takes the completion of the row
        self.place[self.last[owner[final]]] = within[final]
        first = step[within == 0]
        mine = np.flatnonzero(workers.ring)
        self.gates.add(first, self.turn + mine, 0, WHOLE, 1, 1, 0)
        record = workers.record[owner]
        folds = rings.folds[record]
        self.gates.add(takes, rings.compl[record], 0, WHOLE, folds, folds, within)
        for chosen, semaphore, count in (
            (self.receives, rings.recv, rings.prev_folds),
            (self.sends, rings.send, rings.next_folds),
            (self.waits_peers, rings.mine, rings.needs),
        ):
            on = np.flatnonzero(chosen[row])
            need = count[record[on]]
            self.gates.add(step[on], semaphore[record[on]], 0, WHOLE, need, need, within[on])
        tells = np.flatnonzero(self.tells_peers[row])
        at, which = np.nonzero(rings.peers[record[tells]] >= 0)
        self.adds.add(takes[tells[at]], rings.peers[record[tells[at]], which], 1)
        self.adds.add(self.last[mine], self.ended + workers.processor[mine], 1)
        self.starts.add(
            step, workers.image[owner], rings.queue[record], rings.mask[record], rows.m2s[row], rows.s2m[row],
            rows.offset[row],
        )  # fmt: skip

    def lists(self) -> None:
        """Add the event lists: a step performs an event when what the one before waits for is there."""
        workers, events, controls = self.tables.workers, self.tables.events, self.tables.controls
        rows = self.tables.rows
        mine = np.flatnonzero(~workers.ring)
        processor, entry = workers.processor[mine], workers.entry[mine]
        length = events.length[processor, entry]
        owner, within = segments(length)
        record = events.first[processor, entry][owner] + within
        step = self.base[mine][owner] + within
        self.place[step] = within
        self.place[self.last[mine]] = np.maximum(length - 1, 0)
        self.gates.add(self.base[mine], self.turn + mine, 0, WHOLE, 1, 1, 0)
        shift, mask = controls.shift[processor, entry][owner], controls.mask[processor, entry][owner]
        on = np.flatnonzero(events.wait[record] >= 0)
        count = events.count[record[on]]
        self.gates.add(
            step[on] + 1, events.wait[record[on]], shift[on], mask[on], count, count << shift[on], within[on]
        )
        at, which = np.nonzero(events.told[record] >= 0)
        self.adds.add(step[at], events.told[record[at], which], 1 << shift[at])
        self.adds.add(self.last[mine], self.ended + processor, 1)
        at, leg = np.nonzero(events.mask[record])
        row = workers.row[mine][owner[at]] + _place_in(owner[at])
        self.starts.add(
            step[at], workers.image[mine][owner[at]], events.queue[record[at], leg], events.mask[record[at], leg],
            rows.m2s[row], rows.s2m[row], rows.offset[row],
        )  # fmt: skip

    def finish(self, items: Items) -> Program:
        """Return the program."""
        world, workers, controls = self.world, self.tables.workers, self.tables.controls
        hosts, processors, steps = world.hosts, world.processors, int(self.step[-1])
        none = np.full(hosts, -1, np.int64)
        every = np.arange(processors)
        machines = Machines(
            kind=np.concatenate(
                [
                    np.full(hosts, Kind.HOST),
                    np.full(processors, Kind.WALK),
                    np.where(workers.ring, int(Kind.CHANNEL), int(Kind.EVENTS)),
                ]
            ).astype(np.int64),
            image=np.concatenate([np.arange(hosts) // world.streams, every // world.sps, workers.image]),
            sp=np.concatenate([none, every % world.sps, workers.processor % world.sps]),
            entry=np.concatenate([none, np.full(processors, -1), workers.entry]),
            channel=np.concatenate([np.arange(hosts) % world.streams, np.full(processors, -1), workers.channel]),
            step=self.step,
        )
        gate_step, *gates = self.gates.columns(6)
        add_step, *adds = self.adds.columns(2)
        launches = Launches(*self.starts.columns(6))
        assert controls.entries
        return Program(
            machines=machines,
            machine=owners(self.step),
            place=self.place,
            gates=Gates(_csr(gate_step, steps), *gates),
            adds=Adds(_csr(add_step, steps), *adds),
            launches=launches,
            launch=_csr(launches.step, steps),
            folds=place_launches(world, items, launches),
            semaphores=self.turn + workers.count,
            posts=np.count_nonzero(self.post_entry >= 0, axis=1).reshape(-1, world.streams).sum(axis=1),
        )


def _csr(step: I64, steps: int) -> I64:
    return pointers(np.bincount(step, minlength=steps))


def _place_in(owner: I64) -> I64:
    """Return the place of each in its run of equal owners."""
    at = np.arange(owner.size)
    fresh: Bool = np.ones(owner.size, np.bool_)
    fresh[1:] = np.diff(owner) != 0
    return at - np.maximum.accumulate(np.where(fresh, at, 0))
