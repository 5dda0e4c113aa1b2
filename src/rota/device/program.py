"""Everything that steps on its own, of all ranks, as one table: machines, their steps, and what each step does.

A step waits until all its gates hold, subtracts, starts its launches, and then adds. What makes them is `steps`, which
items a launch has `launches`. Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from rota.columns import I64
from rota.device.world import World

WHOLE: Final = 0xFFFFFFFF  # the mask of a gate that looks at the whole value


class Kind(IntEnum):
    """What a machine is."""

    HOST = 0
    WALK = 1  # of a control table
    CHANNEL = 2  # of a ring, in one control entry
    EVENTS = 3  # a list of mesh events, in one control entry
    SEND_PROXY = 4  # of the network, for one operation
    RECEIVE_PROXY = 5  # of the network, for one operation and one rank that sends


@dataclass(frozen=True, slots=True, eq=False)
class Machines:
    """One entry per machine: hosts, then walks, then what works in control entries.

    Attributes:
        sp: -1 of a host. entry: control entry, -1 of hosts and walks. channel: -1 where it is none.
        step: first of its steps; one longer.
    """

    kind: I64
    image: I64
    sp: I64
    entry: I64
    channel: I64
    step: I64

    @property
    def count(self) -> int:
        """How many there are."""
        return self.kind.size


@dataclass(frozen=True, slots=True, eq=False)
class Gates:
    """What steps wait for: ((value >> shift) & mask) >= at_least, then value -= subtract. CSR by step.

    Attributes:
        place: the row or event that this is about; a step may still wait for the end of the one before its own.
    """

    ptr: I64
    semaphore: I64
    shift: I64
    mask: I64
    at_least: I64
    subtract: I64
    place: I64


@dataclass(frozen=True, slots=True, eq=False)
class Adds:
    """What steps add by themselves when they fire. CSR by step."""

    ptr: I64
    semaphore: I64
    value: I64


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """One entry per tail increment: descriptors of one queue, on every engine of a mask. In the order of the steps.

    Attributes:
        step: whose it is. offset: of the slot entry in the file of its rank.
    """

    step: I64
    image: I64
    queue: I64
    mask: I64
    m2s: I64
    s2m: I64
    offset: I64

    @property
    def count(self) -> int:
        """How many there are."""
        return self.step.size


@dataclass(frozen=True, slots=True, eq=False)
class Folds:
    """One entry per launch and engine, launch by launch, engines ascending: a range of items of one section.

    Attributes:
        launch: whose it is; ptr: first fold of each launch, one longer.
        section: index into the sections of the items.
        item, count: its items.
    """

    launch: I64
    ptr: I64
    section: I64
    item: I64
    count: I64


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Everything the machines of all ranks do.

    Attributes:
        machine, place: of each step: its machine, and the row, event, control entry or chain it is about.
        launch: first launch of each step; one longer.
        semaphores: of the ranks and, behind them, counters that no address names: what machines tell each other. First
            those of what works on each processor, then those of the walks of each rank, then the turn of each worker.
        posts: how often each rank posts.
        names: of the counters behind these: the first of each kind, and how messages call one.
    """

    machines: Machines
    machine: I64
    place: I64
    gates: Gates
    adds: Adds
    launches: Launches
    launch: I64
    folds: Folds
    semaphores: int
    posts: I64
    names: tuple[tuple[int, str], ...] = ()

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return self.machine.size

    def kind(self, step: I64) -> I64:
        """Return the kind of machine of steps."""
        return self.machines.kind[self.machine[step]]

    def image(self, step: I64) -> I64:
        """Return the image of steps."""
        return self.machines.image[self.machine[step]]

    def entry(self, step: I64) -> I64:
        """Return the control entry of steps, -1 of those of a host."""
        walks = self.kind(step) == Kind.WALK
        return np.where(walks, self.place[step], self.machines.entry[self.machine[step]])

    def describe(self, world: World, step: int, *, place: int | None = None) -> str:
        """Return how messages call a step, or the row or event `place` that it still waits for."""
        at = int(self.machine[step])
        machines = self.machines
        place = int(self.place[step]) if place is None else place
        rank = f"rank {world.images[int(machines.image[at])].rank}"
        sp, entry = int(machines.sp[at]), int(machines.entry[at])
        match Kind(int(machines.kind[at])):
            case Kind.HOST:
                of = f" of stream {int(machines.channel[at])}" if world.streams > 1 else ""
                return f"{rank} host{of} before chain {place}"
            case Kind.WALK:
                return f"{rank} TOP_SP {sp} entry {place}"
            case Kind.CHANNEL:
                return f"{rank} channel {int(machines.channel[at])} row {place} of operation {entry}"
            case Kind.EVENTS:
                return f"{rank} TOP_SP {sp} event {place} of operation {entry}"
            case Kind.SEND_PROXY:
                return f"{rank} network channel {int(machines.channel[at])} send {place} of operation {entry}"
            case Kind.RECEIVE_PROXY:
                return f"{rank} network channel {int(machines.channel[at])} receive {place} of operation {entry}"

    def semaphore_name(self, world: World, flat: int) -> str:
        """Return how messages call a semaphore or a counter."""
        if flat < world.semaphores:
            return world.semaphore_name(flat)
        named = [name for first, name in self.names if first <= flat]
        if named:
            return named[-1]
        flat -= world.semaphores
        if flat < world.processors:
            image, sp = divmod(flat, world.sps)
            return f"the end of what works on TOP_SP {sp} of rank {world.images[image].rank}"
        flat -= world.processors
        if flat < world.hosts:
            return f"the control walks of rank {world.images[flat // world.streams].rank}"
        return "its turn in the control table"
