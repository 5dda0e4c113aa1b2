"""What the meshes leave on every rank, as plain loops over ranks: slow, clear, and held equal to what is composed.

Only values are modelled: which inputs are folded, in which order, and where a partial is rounded. Positions are those
of the group. Source: compose §12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import load_platform
from rota.native.arithmetic import Combine, fold
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.select import Plan, Settings, select
from rota.verify import verify

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
A2A, A2AV = EncOp.ALLTOALL, EncOp.ALLTOALL_V
Array = Any
HOW = {CceType.ADD: Combine.ADD, CceType.MAX: Combine.MAX, CceType.MIN: Combine.MIN}
Slice = Callable[[int], Array]
Reduce = Callable[["Inputs", int], Array]


class Inputs:
    """The inputs of one group, cut into a slice for every position."""

    def __init__(self, request: Request, data: Array) -> None:
        self.data, self.request = data, request
        self.ranks = request.ranks
        self.how = HOW[request.op or CceType.ADD] if request.op is not CceType.FMA else Combine.ADD

    def bounds(self, position: int) -> tuple[int, int]:
        """Elements of a position's slice: equal ones, or for all-reduce multiples of 32 bytes, the last ones short."""
        if self.request.kind is RS:
            each = self.request.count // self.ranks
            return position * each, (position + 1) * each
        grain = 32 // self.request.itemsize
        each = 0
        while each * self.ranks < self.request.count:
            each += grain
        count = self.request.count
        return min(position * each, count), min((position + 1) * each, count)

    def of(self, member: int, position: int) -> Array:
        """A member's input for a position."""
        first, last = self.bounds(position)
        return self.data[member][first:last]

    def fold(self, sources: Sequence[Array]) -> Array:
        """Fold in order; the first 32 are rounded, then that with the next 31, and so on."""
        total, rest = fold(self.how, list(sources[:32])), list(sources[32:])
        while rest:
            total, rest = fold(self.how, [total, *rest[:31]]), rest[31:]
        return total


def chips(group: Sequence[int], per_chip: int) -> list[list[int]]:
    """Positions of each chip, by rank; chips in the order in which the group names them first."""
    order: list[int] = []
    for rank in group:
        if rank // per_chip not in order:
            order.append(rank // per_chip)
    return [
        [group.index(rank) for rank in sorted(group) if rank // per_chip == chip] for chip in order
    ]  # fmt: skip


def by_blocks(blocks: Sequence[Sequence[int]]) -> Reduce:
    """Foreign blocks give one rounded partial, the own block its inputs; in the order of the blocks."""

    def reduce(inputs: Inputs, position: int) -> Array:
        sources = []
        for block in blocks:
            given = [inputs.of(member, position) for member in block]
            sources += given if position in block or len(block) == 1 else [inputs.fold(given)]
        return inputs.fold(sources)

    return reduce


def by_sixes(group: Sequence[int]) -> Reduce:
    """Every six gives one rounded partial."""
    order = sorted(range(len(group)), key=lambda position: group[position])

    def reduce(inputs: Inputs, position: int) -> Array:
        sixes = [order[first : first + 6] for first in range(0, len(order), 6)]
        return inputs.fold([inputs.fold([inputs.of(member, position) for member in six]) for six in sixes])

    return reduce


def by_pod(nodes: Sequence[int]) -> Reduce:
    """Own, direct's, and what proxy and its direct give together. `nodes`: the pod node of each position."""

    def reduce(inputs: Inputs, position: int) -> Array:
        def at(difference: int) -> Array:
            return inputs.of(nodes.index(nodes[position] ^ difference), position)

        return inputs.fold([at(0), at(1), inputs.fold([at(3), at(2)])])

    return reduce


def outputs(request: Request, data: Array, group: int, reduce: Reduce) -> list[Array]:
    """What every member of a group ends with, in group order."""
    ranks = request.ranks
    inputs = Inputs(request, data[group * ranks : (group + 1) * ranks])
    if request.kind is AG:
        return [np.concatenate(list(inputs.data))] * ranks
    slices = [reduce(inputs, position) for position in range(ranks)]
    return slices if request.kind is RS else [np.concatenate(slices)] * ranks


def exchanged(request: Request, data: Array, group: int) -> list[Array]:
    """What every member of a group ends with after an all-to-all or a packed all-to-all-v; the rest is zero."""
    ranks, unit = request.ranks, request.itemsize
    counts = request.sent if request.kind is A2AV else [[request.count // ranks] * ranks] * ranks
    found = []
    for to in range(ranks):
        pieces = []
        for sender in range(ranks):
            first = sum(counts[sender][:to])
            pieces.append(data[group * ranks + sender][first : first + counts[sender][to]])
        whole = np.zeros(request.output_size // unit, data.dtype)
        packed = np.concatenate(pieces)
        whole[: packed.size] = packed
        found.append(whole)
    return found


# --- cases ------------------------------------------------------------------------------------------------------------


def plan(
    name: str,
    groups: Sequence[Sequence[int]],
    kind: EncOp,
    count: int,
    *,
    nodes: int = 1,
    lnc: int | None = None,
    dtype: Dtype = Dtype.BFLOAT16,
    op: CceType = CceType.ADD,
    settings: Settings | None = None,
    **other: Any,
) -> Plan:
    """Return the decision for a request; `count` is elements of the whole buffer."""
    platform = load_platform(name, nodes=nodes, lnc=lnc)
    whole = tuple(map(tuple, groups))
    combine = op if kind in (AR, RS) else None
    request = Request(kind, dtype, count, whole, combine, integer_as_fp32=dtype is Dtype.INT32, **other)
    return select(request, platform, settings or Settings(), any_group=True)


def data_of(request: Request, members: int, seed: int = 0) -> Array:
    """Values whose sums round, of every rank; integers are small."""
    random = np.random.default_rng(seed)
    shape = (members, request.input_size // request.itemsize)
    dtype = numpy_dtype(request.dtype)
    if np.dtype(dtype).kind in "iu":
        return random.integers(-99, 99, shape).astype(dtype)
    return random.normal(size=shape).astype(np.float32).astype(dtype)


def check(schedule: Schedule, request: Request, want: Callable[[Array, int], list[Array]], seed: int = 0) -> None:
    """Prove a schedule, data and order, and hold what it leaves equal to a reference, bit for bit."""
    verify(schedule, request)

    data = data_of(request, schedule.ranks, seed)
    scaled = request.op is CceType.FMA
    got = execute(schedule, data, scales=request.scales) if scaled else execute(schedule, data)
    for group in range(len(request.groups)):
        for position, expected in enumerate(want(data, group)):
            assert got[group * request.ranks + position].tobytes() == np.asarray(expected).tobytes()


def event_laws(schedule: Schedule) -> None:
    """Every event is used once by a rank, fires before it waits, and waits for as many ranks as notify it."""
    rows, waits, signals = schedule.rows, schedule.waits, schedule.signals
    for rank in range(schedule.ranks):
        mine = np.flatnonzero(rows.rank == rank)
        runs = [
            int(rows.event[row]) for i, row in enumerate(mine) if not i or rows.event[row] != rows.event[mine[i - 1]]
        ]
        assert len(runs) == len(set(runs)), f"rank {rank} comes back to an event: {runs}"
        keys = list(zip(rows.leg[mine].tolist(), rows.step[mine].tolist(), rows.part[mine].tolist(), strict=True))
        assert len(set(keys)) == len(keys), "two rows of a queue have one name"
    told: dict[tuple[int, int, int], set[int]] = {}
    for entry, row in enumerate(schedule.signal_row.tolist()):
        key = int(signals.rank[entry]), int(signals.semaphore[entry]), int(rows.event[row])
        assert signals.add[entry] == 1
        assert int(rows.rank[row]) not in told.get(key, set()), "a rank notifies twice"
        told.setdefault(key, set()).add(int(rows.rank[row]))
    awaited = {
        (int(rows.rank[row]), int(waits.semaphore[entry]), int(rows.event[row])): int(waits.at_least[entry])
        for entry, row in enumerate(schedule.wait_row.tolist())
    }
    assert awaited == {key: len(ranks) for key, ranks in told.items()}
    assert awaited.keys() or schedule.ranks == 1


def events(schedule: Schedule, rank: int = 0) -> list[int]:
    """The events of a rank, in order."""
    found = schedule.rows.event[schedule.rows.rank == rank].tolist()
    return [event for i, event in enumerate(found) if not i or event != found[i - 1]]
