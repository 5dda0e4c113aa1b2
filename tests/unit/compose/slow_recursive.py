"""Recursive halving and doubling as plain loops over ranks and rounds: slow, clear, and held equal to what is composed.

Source: compose §8, §10 and §11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rota.isa.enums import EncOp
from rota.machine.platform import Platform, Shape
from rota.machine.topology import routing_id
from rota.native.arithmetic import Combine, fold
from rota.schedule.ir import Schedule

Array = NDArray[Any]
Chunks = dict[int, Array]


def shards(kind: EncOp, buffer: Array, ranks: int) -> list[Array]:
    """Cut a buffer: equal shards, or for an all-reduce whole granules of 32 bytes until the data end."""
    if kind is not EncOp.ALLREDUCE:
        return list(np.split(buffer, ranks))
    each = ceil(ceil(buffer.nbytes / ranks) / 32) * 32 // buffer.itemsize
    return [buffer[rank * each : (rank + 1) * each] for rank in range(ranks)]


def collective(kind: EncOp, inputs: Array, scatter: Any, gather: Any) -> Array:
    """Return the outputs, shape (ranks, elements), of a scatter and a gather of lists of chunks."""
    ranks = len(inputs)
    if kind is EncOp.ALLGATHER:
        return np.stack([np.concatenate(each) for each in gather(list(inputs))])
    own = scatter([shards(kind, buffer, ranks) for buffer in inputs])
    if kind is EncOp.REDUCE_SCATTER:
        return np.stack(own)
    return np.stack([np.concatenate(each) for each in gather(own)])


# --- between nodes ----------------------------------------------------------------------------------------------------


def sent(rank: int, number: int, bits: int) -> list[int]:
    """Return the chunks a rank sends in a round of the reduce-scatter, as the formula of the table says."""
    base = ((1 << number) ^ (rank & (1 << number))) + (rank & ((1 << number) - 1))
    return [base + i * (1 << (number + 1)) for i in range(1 << (bits - 1 - number))]


def received(rank: int, number: int, bits: int) -> list[int]:
    """Return the chunks a rank receives in a round of the reduce-scatter."""
    base = rank & ((1 << (number + 1)) - 1)
    return [base + i * (1 << (number + 1)) for i in range(1 << (bits - 1 - number))]


def slow_inter(kind: EncOp, inputs: Array, how: Combine) -> Array:
    """Return what inter-RDH leaves on every rank."""
    ranks = len(inputs)
    bits = ranks.bit_length() - 1

    def scatter(chunks: list[list[Array]]) -> list[Array]:
        held = [dict(enumerate(each)) for each in chunks]
        for number in range(bits):
            after: list[Chunks] = []
            for rank in range(ranks):
                partner = rank ^ (1 << number)
                assert sent(partner, number, bits) == received(rank, number, bits)
                after.append({x: fold(how, [held[partner][x], held[rank][x]]) for x in received(rank, number, bits)})
            held = after
        return [held[rank][rank] for rank in range(ranks)]

    def gather(own: list[Array]) -> list[list[Array]]:
        held: list[Chunks] = [{rank: chunk} for rank, chunk in enumerate(own)]
        for number in range(bits):
            step = 1 << (bits - number)
            arriving = []
            for rank in range(ranks):
                partner = rank ^ (1 << (bits - 1 - number))
                arriving.append({x: held[partner][x] for x in range(ranks) if x % step == partner % step})
            for rank in range(ranks):
                held[rank] |= arriving[rank]
        return [[each[x] for x in range(ranks)] for each in held]

    return collective(kind, inputs, scatter, gather)


# --- on one node ------------------------------------------------------------------------------------------------------


def corners(platform: Platform, group: Sequence[int]) -> list[tuple[int, int]]:
    """Return the label of the chip and the lane of each member; labels leave out the bits that all chips share."""
    chips = [rank // platform.ranks_per_chip for rank in group]
    lanes = [rank % platform.ranks_per_chip for rank in group]
    if platform.shape is not Shape.CUBE:
        return [(0, lane) for lane in lanes]
    rids = [routing_id(platform, chip) for chip in chips]
    bits = [bit for bit in range(8) if len({rid >> bit & 1 for rid in rids}) == 2]
    labels = [sum((rid >> bit & 1) << i for i, bit in enumerate(bits)) for rid in rids]
    return list(zip(labels, lanes, strict=True))


def slow_intra(kind: EncOp, inputs: Array, how: Combine, at: Sequence[tuple[int, int]], *, rotate: bool) -> Array:
    """Return what intra-RDH leaves on every rank; `at` is the corner of each position."""
    ranks, position = len(inputs), {corner: i for i, corner in enumerate(at)}
    lanes = len({lane for _, lane in at})
    bits = (ranks // lanes).bit_length() - 1

    def axis(lane: int, step: int) -> int:
        return (step + (lane if rotate else 0)) % bits

    def scatter(chunks: list[list[Array]]) -> list[Array]:
        held: list[Chunks] = []
        for chip, lane in at:
            mine = [x for x in range(ranks) if at[x][1] == lane]
            held.append({x: fold(how, [chunks[position[chip, each]][x] for each in range(lanes)]) for x in mine})
        for step in range(bits):
            after: list[Chunks] = []
            for rank, (chip, lane) in enumerate(at):
                bit = 1 << axis(lane, step)
                partner = held[position[chip ^ bit, lane]]
                keep = [x for x in held[rank] if at[x][0] & bit == chip & bit]
                after.append({x: fold(how, [partner[x], held[rank][x]]) for x in keep})
            held = after
        return [held[rank][rank] for rank in range(ranks)]

    def gather(own: list[Array]) -> list[list[Array]]:
        held: list[Chunks] = [{rank: chunk} for rank, chunk in enumerate(own)]
        for step in reversed(range(bits)):
            arriving = [dict(held[position[chip ^ (1 << axis(lane, step)), lane]]) for chip, lane in at]
            for rank in range(ranks):
                held[rank] |= arriving[rank]
        whole = []
        for chip, _ in at:
            every: Chunks = {}
            for lane in range(lanes):
                every |= held[position[chip, lane]]
            whole.append([every[x] for x in range(ranks)])
        return whole

    return collective(kind, inputs, scatter, gather)


# --- the single cycle -------------------------------------------------------------------------------------------------


def slow_single_cycle(inputs: Array, how: Combine) -> Array:
    """Return all inputs folded in rank order, 32 at first and then 31 more for each rounding."""
    total = fold(how, list(inputs[:32]))
    for start in range(32, len(inputs), 31):
        total = fold(how, [total, *inputs[start : start + 31]])
    return np.stack([total] * len(inputs))


# --- operations back to back ------------------------------------------------------------------------------------------


def twice(schedule: Schedule) -> Schedule:
    """Return a schedule that runs two times; a rank begins the second when its own rows of the first have completed."""

    def again(table: Any) -> Any:
        columns = {name: getattr(table, name) for name in table.__slots__}
        doubled = {name: np.concatenate((column, column)) for name, column in columns.items()}
        if "ptr" in columns:
            ptr = columns["ptr"]
            doubled["ptr"] = np.concatenate((ptr, ptr[1:] + ptr[-1])).astype(ptr.dtype)
        if "fence" in columns:
            doubled["fence"][len(schedule) + np.unique(schedule.lane, return_index=True)[1]] = True
        return type(table)(**doubled)

    names = ("rows", "sources", "targets", "waits", "signals")
    return replace(schedule, **{name: again(getattr(schedule, name)) for name in names})


# --- operations of any kind, on columns of small numbers --------------------------------------------------------------


def scaled_sum(schedule: Schedule, inputs: NDArray[np.float32], scale: Sequence[float]) -> NDArray[np.float32]:
    """Return the outputs of a float32 schedule, row by row; FMA scales what is read from the input buffer."""
    memory = [[np.zeros(buffer.size // 4, np.float32) for buffer in schedule.buffers] for _ in range(schedule.ranks)]
    for rank, given in enumerate(inputs):
        memory[rank][schedule.input][:] = given

    def entries(places: Any, row: int) -> list[tuple[int, int, int]]:
        span = range(int(places.ptr[row]), int(places.ptr[row + 1]))
        return [(int(places.rank[e]), int(places.buffer[e]), int(places.offset[e]) // 4) for e in span]

    fma = 2
    for row in range(len(schedule)):
        size, op = int(schedule.rows.size[row]) // 4, int(schedule.rows.op[row])
        values = []
        for rank, buffer, start in entries(schedule.sources, row):
            value = memory[rank][buffer][start : start + size].copy()
            values.append(value * np.float32(scale[rank]) if op == fma and buffer == schedule.input else value)
        for rank, buffer, start in entries(schedule.targets, row):
            memory[rank][buffer][start : start + size] = sum(values[1:], values[0])
    return np.stack([each[schedule.output] for each in memory])
