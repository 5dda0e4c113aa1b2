"""Where each member's memory, doorbells and semaphores are, as addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rota.columns import I64
from rota.errors import UnsupportedError
from rota.isa import arch as isa
from rota.isa.arch import Arch, T
from rota.isa.semaphores import STRIDE, Window
from rota.machine.platform import Platform, Shape
from rota.machine.topology import pod_node_of, pod_of
from rota.schedule.ir import Buffer

Q = TypeVar("Q", int, I64)


@dataclass(frozen=True, slots=True)
class Processors:
    """The stream processors that the channels of one stream share, the same on every member.

    Attributes:
        first, count: lowest of them, and how many there are.
        queue: first queue of the stream.
    """

    first: int
    count: int
    queue: int = 0

    def sp(self, queue: Q) -> Q:
        """Return the stream processor of a queue: the first queue is on the highest, which is the reporter."""
        found: Q = self.first + self.count - 1 - (queue - self.queue) % self.count
        return found

    def slot(self, queue: int) -> int:
        """Return which slot program of its stream processor a queue runs."""
        return (queue - self.queue) // self.count


@dataclass(frozen=True, slots=True)
class Placement:
    """The address of everything a schedule names.

    Attributes:
        span, node, chip, lane: of each member, shape (members,); the members of a span reach each other by addresses.
        pods: nodes of a span are joined by pod links.
        lnc: physical cores of a rank.
        buffers: offset of each buffer in a member's memory.
        memory_size: bytes of a member's memory that are used.
        streams: that share the stream processors.
    """

    arch: Arch
    span: I64
    node: I64
    chip: I64
    lane: I64
    pods: bool
    lnc: int
    buffers: I64
    memory_size: int
    streams: int = 1

    @property
    def sps(self) -> int:
        """Stream processors of a rank."""
        return self.lnc * self.arch.sps_per_core

    def memory(self, member: I64, viewer: I64) -> I64:
        """Return the address of a member's memory as another member's engines see it."""
        local = self.arch.memory(self.lane[member] * self.lnc)
        return isa.route(local, self.chip[member], self.chip[viewer])

    def doorbell(self, core: T, queue: T, *, receive: bool) -> T:
        """Return the address that advances a queue of the schedule: queue q takes queue q mod 16 of its engines."""
        address: T = self.arch.doorbell(core, queue % isa.QUEUES, receive=receive)
        return address

    def semaphore(self, member: I64, sp: I64, identity: I64, window: Window, viewer: I64) -> I64:
        """Return the address of a semaphore of a member in one of its windows, as another member sees it."""
        block = self.arch.semaphores(self.lane[member] * self.sps + sp)
        local = block + int(window) + identity * STRIDE
        return isa.route(local, self.chip[member], self.chip[viewer])


def place(ranks: I64, buffers: Sequence[Buffer], platform: Platform) -> Placement:
    """Lay out ranks on a machine.

    Args:
        ranks: machine ranks that take part.
        buffers: of every rank, in order.

    Raises:
        UnsupportedError: the buffers do not fit a rank's memory.
    """
    sizes = np.array([buffer.size for buffer in buffers], np.int64)
    room = -(-sizes // isa.BUFFER_ALIGNMENT) * isa.BUFFER_ALIGNMENT
    arch = isa.ARCHES[platform.arch]
    span, inside = spans(ranks, platform)
    placement = Placement(
        arch=arch,
        span=span,
        node=ranks // platform.node_ranks,
        chip=inside // platform.ranks_per_chip,
        lane=ranks % platform.ranks_per_chip,
        pods=platform.shape is not Shape.SWITCH and platform.pod_nodes > 1,
        lnc=platform.lnc,
        buffers=isa.FIRST_BUFFER + np.cumsum(room) - room,
        memory_size=int(isa.FIRST_BUFFER + room.sum()),
    )
    window = placement.lnc << placement.arch.hbm_shift
    if placement.memory_size > window:
        raise UnsupportedError(
            f"the buffers take {placement.memory_size} bytes, and a rank of {platform.name} has {window}; use a "
            "smaller size"
        )
    return placement


def spans(ranks: I64, platform: Platform) -> tuple[I64, I64]:
    """Return which ranks reach each other by addresses, and each one's number in that span.

    A node is a span; so are the servers of a switch machine, and the nodes of a pod, whose chips one address field
    names.
    """
    node, inside = np.divmod(ranks, platform.node_ranks)
    if platform.shape is Shape.SWITCH:
        span, place = np.divmod(node, platform.servers)
    else:
        pods = [(pod_of(platform, each), pod_node_of(platform, each)) for each in range(platform.nodes)]
        span, place = np.array(pods, np.int64)[node].T
    return span, place * platform.node_ranks + inside
