"""Where each member's memory, doorbells and semaphores are, as addresses; and which device row each move belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze_columns
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa import arch as isa
from rota.isa.arch import Arch
from rota.isa.semaphores import FIRST_FREE, STRIDE, Window
from rota.isa.spad import SLOTS
from rota.machine.platform import Platform, Shape
from rota.schedule.ir import Schedule

ROLES: Final = ("recv", "credit", "post", "compl")
"""Semaphores of a channel in the order in which they take ids."""
ROLE_SOURCE: Final = Source("device-model", "4, semaphore ids", CONVENTION)
_ROLE: Final = re.compile(r"(recv|credit)\.(\d{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Placement:
    """The address of everything a schedule names.

    Attributes:
        chip, lane: of each member, shape (members,).
        lnc: physical cores of a rank.
        buffers: offset of each buffer in a member's memory.
        memory_size: bytes of a member's memory that are used.
    """

    arch: Arch
    chip: I64
    lane: I64
    lnc: int
    buffers: I64
    memory_size: int

    @property
    def sps(self) -> int:
        """Stream processors of a rank."""
        return self.lnc * self.arch.sps_per_core

    def memory(self, member: I64, viewer: I64) -> I64:
        """Return the address of a member's memory as another member's engines see it."""
        local = self.arch.memory(self.lane[member] * self.lnc)
        return isa.route(local, self.chip[member], self.chip[viewer])

    def sp(self, channel: I64) -> I64:
        """Return the stream processor of a channel: channel 0 on the highest, which is the reporter."""
        return self.sps - 1 - channel % self.sps

    def slot(self, channel: I64) -> I64:
        """Return which slot program of its stream processor a channel runs."""
        return channel // self.sps

    def semaphore_id(self, channel: I64, role: I64) -> I64:
        """Return the id of a channel's semaphore on its stream processor; `role` indexes ROLES."""
        return FIRST_FREE + self.slot(channel) * len(ROLES) + role

    def semaphore(self, member: I64, sp: I64, identity: I64, window: Window, viewer: I64) -> I64:
        """Return the address of a semaphore of a member in one of its windows, as another member sees it."""
        block = self.arch.semaphores(self.lane[member] * self.sps + sp)
        local = block + int(window) + identity * STRIDE
        return isa.route(local, self.chip[member], self.chip[viewer])


def place(schedule: Schedule, members: tuple[int, ...], platform: Platform) -> Placement:
    """Lay out the members of a request on a machine.

    Raises:
        UnsupportedError: the members are on several nodes that no address reaches; the machine's processors have too
            few slots or its engines too few queues for the channels; or the buffers do not fit a rank's memory.
    """
    ranks = np.array(members, np.int64)
    _check_reach(ranks, platform)
    sizes = np.array([buffer.size for buffer in schedule.buffers], np.int64)
    room = -(-sizes // isa.BUFFER_ALIGNMENT) * isa.BUFFER_ALIGNMENT
    offsets = isa.FIRST_BUFFER + np.cumsum(room) - room
    placement = Placement(
        arch=isa.ARCHES[platform.arch],
        chip=ranks // platform.ranks_per_chip,
        lane=ranks % platform.ranks_per_chip,
        lnc=platform.lnc,
        buffers=offsets,
        memory_size=int(isa.FIRST_BUFFER + room.sum()),
    )
    channels = int(schedule.rows.queue.max(initial=0)) + 1
    if channels > placement.sps * SLOTS:
        raise UnsupportedError(
            f"{channels} channels: {placement.sps} stream processors with {SLOTS} slots each take at most "
            f"{placement.sps * SLOTS}"
        )
    if channels > isa.QUEUES:
        raise UnsupportedError(f"{channels} channels: an engine has {isa.QUEUES} queues, and each channel takes one")
    window = placement.lnc << placement.arch.hbm_shift
    if placement.memory_size > window:
        raise UnsupportedError(
            f"the buffers take {placement.memory_size} bytes, and a rank of {platform.name} has {window}; use a "
            "smaller size"
        )
    return placement


def _check_reach(ranks: I64, platform: Platform) -> None:
    """Refuse members that an address cannot name: those of other nodes, but for the servers of one switch machine."""
    span = ranks // (platform.node_ranks * (platform.servers if platform.shape is Shape.SWITCH else 1))
    if np.unique(span).size > 1:
        raise UnsupportedError(
            f"the members are on several nodes of {platform.name}: this version emits no network or pod hops; "
            "`rota explain` still says what the runtime takes"
        )


def semaphore_roles(schedule: Schedule) -> tuple[I64, I64]:
    """Return role (index into ROLES) and channel of each declared semaphore.

    Raises:
        UnsupportedError: a semaphore has no place in a ring channel, or another queue than its channel's waits on it.
    """
    matches = [_ROLE.fullmatch(semaphore.name) for semaphore in schedule.semaphores]
    found = [match for match in matches if match is not None]
    if len(found) < len(matches):
        name = schedule.semaphores[matches.index(None)].name
        raise UnsupportedError(f"semaphore {name}: this version emits ring channels, with recv.N and credit.N")
    role = np.array([ROLES.index(match[1]) for match in found], np.int64)
    channel = np.array([int(match[2]) for match in found], np.int64)
    waits, queue = schedule.waits, schedule.rows.queue[schedule.wait_row]
    stray = np.flatnonzero((channel[waits.semaphore] != queue) | (waits.at_least != 1) | (waits.subtract != 1))
    if stray.size:
        row = schedule.name(int(schedule.wait_row[stray[0]]))
        raise UnsupportedError(f"{row}: a ring channel waits for one unit of its own semaphores, and subtracts it")
    return role, channel


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """What a stream processor starts at once: all moves of one (rank, channel, leg, step, part), in queue order."""

    rank: I64
    queue: I64
    receives: Bool  # waits for the neighbour's data first
    sends: Bool  # waits for a credit first
    last: Bool  # ends the operation on its channel

    def __post_init__(self) -> None:
        freeze_columns(self)

    @property
    def channel_start(self) -> I64:
        """First row of each (rank, queue), in order."""
        lane = self.rank * 256 + self.queue
        return np.flatnonzero(np.concatenate(([True], lane[1:] != lane[:-1]))) if lane.size else np.zeros(0, np.int64)


def device_rows(schedule: Schedule) -> tuple[DeviceRows, I64]:
    """Return the device rows, and for each row of the schedule the device row it is part of."""
    rows = schedule.rows
    order = np.argsort(schedule.lane, kind="stable")
    keys = np.stack([schedule.lane[order], rows.leg[order], rows.step[order], rows.part[order]])
    fresh = np.ones(order.size, np.bool_)
    fresh[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    owner = np.empty(order.size, np.int64)
    owner[order] = np.cumsum(fresh) - 1
    first = order[fresh]
    lane = schedule.lane[first]
    waits = np.zeros((2, first.size), np.int64)
    role, _ = semaphore_roles(schedule)
    np.add.at(waits, (role[schedule.waits.semaphore], owner[schedule.wait_row]), 1)
    if (waits > 1).any():
        row = schedule.name(int(first[np.argmax(waits.max(axis=0) > 1)]))
        raise UnsupportedError(f"{row}: its moves wait twice for one semaphore, and a device row has one gate")
    return (
        DeviceRows(
            rank=lane >> 8,
            queue=lane & 255,
            receives=waits[0] > 0,
            sends=waits[1] > 0,
            last=np.concatenate((lane[1:] != lane[:-1], [True])) if lane.size else np.zeros(0, np.bool_),
        ),
        owner,
    )
