"""Whether the device model notices that a schedule is wrong: it runs the emitted bytes in random orders."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from rota.columns import Array
from rota.device.model import Order, load
from rota.emit import emit
from rota.errors import DecodeError, StuckError, UnsupportedError, UsageError
from rota.isa.arch import ARCHES
from rota.isa.dtypes import numpy_dtype
from rota.isa.enums import EncOp
from rota.isa.semaphores import FIRST_FREE
from rota.machine.platform import Platform, load_platform
from rota.request import Request
from rota.schedule.ir import Schedule

ORDERS = 4  # random orders tried for each mutant
ROLES = ("recv", "credit", "post", "compl")  # semaphores of a ring channel, in the order of their ids
WALK = re.compile(r"rank (\d+):? (?:ring )?channel (\d+)(?: row (\d+))?")
SEMAPHORE = re.compile(r"semaphore (\d+) of TOP_SP (\d+) of rank (\d+)")


@cache
def machine() -> Platform:
    return load_platform("trn2.48xlarge")


def catch(schedule: Schedule, request: Request, seed: int = 0) -> str | None:
    """Return what the device says, with the row named, or None when it notices nothing."""
    rng = np.random.default_rng(seed)
    try:
        device = load(emit(schedule, request, machine(), folds=1))
    except (UnsupportedError, UsageError, DecodeError) as refusal:
        return named(schedule, f"not loadable: {refusal}")
    inputs = integers(request, rng)
    wanted = meaning(request, inputs)
    for _ in range(ORDERS):
        try:
            raw = device.run(inputs.view(np.uint8), order=Order.RANDOM, rng=rng)
        except StuckError as stuck:
            return named(schedule, str(stuck))
        wrong = np.argwhere(raw.view(inputs.dtype) != wanted)
        if wrong.size:
            rank, element = wrong[0].tolist()
            row = last_writer(schedule, rank, element * request.itemsize)
            return f"wrong result at rank {rank} element {element}, written last by {schedule.name(row)}"
    return None


def named(schedule: Schedule, said: str) -> str:
    """Return what the device says with the schedule's row added: it speaks of walks and semaphores, not of rows."""
    walk, semaphore = WALK.search(said), SEMAPHORE.search(said)
    if walk is not None:
        rank, channel, place = (int(number or 0) for number in walk.groups())
        row = np.flatnonzero(schedule.lane == rank * 256 + channel)[place]
        return f"{said}: {schedule.name(int(row))}"
    if semaphore is None:
        return said
    identity, sp, rank = map(int, semaphore.groups())
    slot, role = divmod(identity - FIRST_FREE, len(ROLES))
    processors = machine().lnc * ARCHES[machine().arch].sps_per_core
    name = f"{ROLES[role]}.{processors - 1 - sp + processors * slot}"
    index = [s.name for s in schedule.semaphores].index(name)
    waits = schedule.wait_row[schedule.waits.semaphore == index]
    waits = waits[schedule.rows.rank[waits] == rank]
    signals = schedule.signal_row[(schedule.signals.semaphore == index) & (schedule.signals.rank == rank)]
    return f"{said}: {schedule.name(int(max(waits.max(initial=0), signals.max(initial=0))))}"


def integers(request: Request, rng: np.random.Generator) -> Array:
    """Return small integers, which every order of addition sums exactly."""
    shape = (len(request.members), request.input_size // request.itemsize)
    return rng.integers(1, 9, shape).astype(numpy_dtype(request.dtype))


def meaning(request: Request, inputs: Array) -> Array:
    """Return what every rank of the only group holds afterwards."""
    if request.kind is EncOp.ALLGATHER:
        return np.broadcast_to(inputs.reshape(-1), (request.ranks, inputs.size))
    total = inputs.astype(np.float32).sum(axis=0).astype(inputs.dtype)
    if request.kind is EncOp.REDUCE_SCATTER:
        return total.reshape(request.ranks, -1)
    return np.broadcast_to(total, (request.ranks, total.size))


def last_writer(schedule: Schedule, rank: int, offset: int) -> int:
    """Return the last row, in stored order, that writes a byte of a rank's output."""
    targets = schedule.targets
    row = np.repeat(np.arange(len(schedule)), np.diff(targets.ptr))
    hit = (targets.rank == rank) & (targets.buffer == schedule.output)
    hit &= (targets.offset <= offset) & (offset < targets.offset + schedule.rows.size[row])
    return int(row[hit].max(initial=0))
