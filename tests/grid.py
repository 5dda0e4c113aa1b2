"""The grid: every machine, group shape, operation, type, size, setting and algorithm that a schedule is composed for.

`cases` enumerates them in a fixed order. What SELECT refuses is part of the grid; a case only says what is asked.
Buffers are small: limits are moved down by the settings that hold them, and sizes stand at, just below and just above.
What a case must fulfil is in `tests/property/test_grid.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle, product
from typing import Any

from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype, size_of
from rota.isa.enums import REDUCING, Algorithm, CceType, EncOp
from rota.machine.platform import Platform, load_platform
from rota.pipeline import How
from rota.request import SCALED, Request
from rota.schedule.ir import Schedule
from rota.select.choose import Plan, Selector
from rota.select.communicator import Communicator
from rota.select.rules import edges
from rota.select.settings import Settings

Groups = tuple[tuple[int, ...], ...]
AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
A2A, A2AV = EncOp.ALLTOALL, EncOp.ALLTOALL_V
MOST_BYTES = 1 << 16
"""Of a buffer of one rank, but for the few cases that reach limits no setting moves."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A platform as a case names it."""

    name: str
    nodes: int = 1
    lnc: int | None = None

    def __str__(self) -> str:
        return self.name + f" x{self.nodes}" * (self.nodes > 1) + (f" lnc{self.lnc}" if self.lnc else "")

    @property
    def platform(self) -> Platform:
        """The machine itself."""
        return _platform(self)


@cache
def _platform(machine: Machine) -> Platform:
    return load_platform(machine.name, nodes=machine.nodes, lnc=machine.lnc)


@dataclass(frozen=True, slots=True)
class Case:
    """One request on one machine, and how it is carried out.

    Attributes:
        legs: algorithms of the inner and the outer legs that take the place of the selected ones; None leaves those.
    """

    machine: Machine
    request: Request
    settings: Settings = field(default_factory=Settings)
    algorithm: Algorithm | None = None
    legs: tuple[Algorithm, Algorithm] | None = None
    any_group: bool = False
    extensions: bool = False

    def __str__(self) -> str:
        groups = self.request.to_text().split()
        short = " ".join(part if len(part) < 60 else f"{part[:50]}...{part[-6:]}" for part in groups)
        named = [name for name in ("any_group", "extensions") if getattr(self, name)]
        legs = [" x ".join(each.name for each in self.legs)] if self.legs else []
        forced = [self.algorithm.name] if self.algorithm is not None else []
        return ", ".join([str(self.machine), short, *forced, *legs, *named, *_changed(self.settings)])

    @property
    def how(self) -> How:
        """The settings and the composer of the pipeline."""
        how = How(
            settings=self.settings, any_group=self.any_group, algorithm=self.algorithm, extensions=self.extensions
        )
        if self.legs is None:
            return how
        return replace(how, composer=_with_legs(*self.legs), name=" x ".join(leg.name for leg in self.legs))


def _changed(settings: Settings) -> Iterator[str]:
    plain = Settings()
    for name in Settings.__slots__:
        if getattr(settings, name) != getattr(plain, name):
            yield f"{name}={getattr(settings, name)}"


def _with_legs(inner: Algorithm, outer: Algorithm) -> Callable[[Plan], Schedule]:
    """Return a composer of a hierarchy with these legs, whatever SELECT takes for them at this size."""
    from rota.compose.hierarchy import compose_hierarchy

    def composer(plan: Plan) -> Schedule:
        held = {"intra": inner, "inter": outer}
        assert plan.selected is Algorithm.HIER, "the hierarchy is asked for by its mode"
        legs = [
            replace(leg, algorithm=held[leg.slot.split("_")[0]], reported=held[leg.slot.split("_")[0]])
            for leg in plan.legs
        ]
        return compose_hierarchy(replace(plan, legs=tuple(legs)))

    return composer


# --- shapes of groups -------------------------------------------------------------------------------------------------

_TRN2 = Machine("trn2.48xlarge")
_TRN2_LNC1 = Machine("trn2.48xlarge", lnc=1)
_INF2, _INF2_SMALL = Machine("inf2.48xlarge"), Machine("inf2.24xlarge")
_TRN1, _TRN1N = Machine("trn1.32xlarge"), Machine("trn1n.32xlarge")
_SWITCH = Machine("trn3pds98")


def run(start: int, stop: int, step: int = 1) -> tuple[int, ...]:
    """Return ranks in a row."""
    return tuple(range(start, stop, step))


def mixed(group: tuple[int, ...]) -> tuple[int, ...]:
    """Return a group in another order: every seventh or, where seven divides it, every eleventh member in turn."""
    step = next(each for each in (7, 11, 13, 1) if len(group) % each or each == 1)
    return tuple(group[(i * step + 3) % len(group)] for i in range(len(group)))


def nodes(machine: Machine, *local: int) -> tuple[int, ...]:
    """Return these ranks of every node."""
    ranks = machine.platform.node_ranks
    return tuple(node * ranks + rank for node in range(machine.nodes) for rank in local)


@cache
def shapes() -> tuple[tuple[Machine, Groups], ...]:
    """Return the groups of the grid, machine by machine."""
    found: list[tuple[Machine, Groups]] = []

    def add(machine: Machine, *partitions: Groups) -> None:
        found.extend((machine, groups) for groups in partitions)

    add(_INF2_SMALL, ((0, 1),), (run(0, 4),), (run(0, 6),), (run(0, 12),), (mixed(run(0, 12)),))
    add(_INF2_SMALL, ((0, 1), (2, 3), (10, 11)), (run(0, 6), run(6, 12)), ((5,), (2,)), ((0, 2),))
    add(_INF2, (run(0, 8),), (mixed(run(0, 8)), run(8, 16), run(16, 24)), (run(0, 24),), (run(0, 24, 2),))
    add(_INF2, (run(0, 12), mixed(run(12, 24))), (run(0, 18),))
    add(Machine("trn1.2xlarge"), ((0, 1),), ((1, 0),), ((0,), (1,)))
    for older in (_TRN1, _TRN1N):
        add(older, ((0, 1),), (run(0, 8),), (mixed(run(0, 16)),), (run(0, 32),), (mixed(run(0, 32)),))
        add(older, (run(0, 8), run(8, 16), run(16, 24), run(24, 32)), tuple((rank,) for rank in range(8)))
        add(older, (run(0, 32, 2),), ((0, 1), (2, 3)), (run(0, 4),))
        two = Machine(older.name, 2)
        add(two, (nodes(two, 0),), (nodes(two, *run(0, 2)),), (nodes(two, *run(0, 8)),), ((3, 35), (40, 8)))
        add(two, (nodes(two, *run(0, 32)),))
    add(Machine("trn1.32xlarge", 4), (nodes(Machine("trn1.32xlarge", 4), 0, 1),))
    small = Machine("trn2.3xlarge")
    add(small, ((0, 1),), (run(0, 4),), (mixed(run(0, 4)),), ((0, 1), (2, 3)))
    add(Machine(small.name, lnc=1), (run(0, 8),), (run(0, 4), run(4, 8)), (mixed(run(0, 8)),))
    add(_TRN2, ((0, 1),), ((0, 4),), (run(0, 4),), (mixed(run(0, 8)),), (run(0, 16),), (run(0, 64, 4),))
    add(_TRN2, (mixed(run(0, 16)), run(16, 32)), (run(4, 8), run(0, 4), run(60, 64)), (run(0, 64),), (run(0, 32),))
    add(_TRN2, tuple((rank,) for rank in range(8)), (mixed(run(0, 64)),), tuple(run(i, 64, 4) for i in range(4)))
    add(_TRN2, (run(0, 16, 4),), (run(0, 64, 8),), (run(0, 12),))
    add(_TRN2_LNC1, (run(0, 8),), (mixed(run(0, 16)),), (run(0, 32),), (run(0, 128, 8),), (run(8, 16), run(0, 8)))
    add(_TRN2_LNC1, (run(0, 4),), (run(0, 128),))
    for count in (2, 4, 8, 16):
        many = Machine(_TRN2.name, count)
        add(many, (nodes(many, 0),), (nodes(many, *run(0, 4)),), (nodes(many, 1), nodes(many, 7)))
        add(many, (mixed(nodes(many, *run(0, 2))),))
        if count <= 4:
            add(many, (nodes(many, *run(0, 8)),), (mixed(nodes(many, *run(0, 4))), nodes(many, *run(4, 8))))
    two = Machine(_TRN2.name, 2)
    add(two, (nodes(two, *run(0, 64)),), (nodes(two, *run(0, 64, 4)),), (nodes(two, 0, 4, 8, 12),))
    lnc1 = Machine(_TRN2.name, 2, 1)
    add(lnc1, (nodes(lnc1, *run(0, 8)),), (nodes(lnc1, *run(0, 16)),))
    for count in (2, 4):
        pod = Machine("trn2u.48xlarge", count)
        add(pod, (nodes(pod, 0),), (mixed(nodes(pod, 5)), nodes(pod, 9)), (nodes(pod, *run(0, 4)),))
        add(pod, (mixed(nodes(pod, *run(0, 8))),), (nodes(pod, 0, 1),), (run(0, 4),), (run(0, 16),))
        add(pod, (nodes(pod, *run(0, 64, 4)),), tuple(nodes(pod, lane) for lane in range(16)))
    add(_SWITCH, ((0, 1),), (run(0, 4),), (mixed(run(0, 4)),), (run(0, 4), run(4, 8)), (run(0, 16),), (run(0, 64, 4),))
    add(_SWITCH, ((9,),))
    racks = Machine(_SWITCH.name, 2)
    add(racks, (nodes(racks, *run(0, 4)),), (nodes(racks, 0),))
    return tuple(found)


# --- sizes ------------------------------------------------------------------------------------------------------------

SMALL = Settings(chunk=128, slots=3, mesh_channel_buffer=2048, intra_rdh_buffer=1024, inter_rdh_buffer=1024)
"""Every limit that a setting moves is near."""
RINGS = Settings(chunk=256, mesh=False)
SINGLE = Settings(
    chunk=512,
    slots=5,
    mesh_double_buffer=False,
    mesh_global_handshake=1,
    mesh_channel_buffer=8192,
    single_cycle_mode=1,
    inter_rdh_window=2,
)
KANGARING = Settings(chunk=192, kangaring_mode=1, hier_mode=2, mesh=False, hybrid_ring=False, rdh_mode=0)
PLAIN = Settings()
SELECTED = (PLAIN, SMALL, RINGS, SINGLE, KANGARING)
FORCED = (PLAIN, replace(SMALL, inter_rdh_window=3), replace(SINGLE, mesh_channel_buffer=2048))
REDUCED = (Dtype.FP32, Dtype.BFLOAT16, Dtype.FP16, Dtype.FP8_EXP4, Dtype.FP8_EXP5, Dtype.FP8_EXP3, Dtype.INT32)
MOVED = (Dtype.BFLOAT16, Dtype.UINT8, Dtype.FP32, Dtype.INT64, Dtype.FP8_EXP3, Dtype.INT16)
OPS = (CceType.ADD, CceType.MAX, CceType.FMA, CceType.MIN)


class Turns:
    """Types, reductions and flags, taken in turn, so that every value meets the others without a product of all."""

    def __init__(self) -> None:
        self.reduced, self.moved, self.ops = cycle(REDUCED), cycle(MOVED), cycle(OPS)
        self.in_place, self.scaled = cycle((False, True, False, True, True)), cycle((True, False))

    def request(self, kind: EncOp, groups: Groups, count: int, **more: Any) -> Request:
        """Return a request whose type, reduction and place come next in turn."""
        reduces = kind in REDUCING
        dtype = more.pop("dtype", None) or next(self.reduced if reduces else self.moved)
        op = next(self.ops) if reduces else None
        if op is CceType.FMA and kind not in SCALED:
            op = CceType.ADD
        if op is CceType.FMA:
            own = tuple((1.0, 2.0, -1.0)[i % 3] for i in range(len(groups[0])))
            more["scales"] = own if next(self.scaled) else (-1.0,)
        return Request(
            kind,
            dtype,
            count,
            groups,
            op,
            in_place=kind is AR and next(self.in_place),
            integer_as_fp32=reduces and dtype is Dtype.INT32,
            **more,
        )


def limits(machine: Machine, groups: Groups, kind: EncOp, settings: Settings) -> list[int]:
    """Return the sizes in bytes, of what SELECT compares, at which an answer about the first group may change.

    Of a hierarchy also those at which the slice of a leg is at a limit of its level. Source: select §6, slices.
    """
    comm = _communicator(machine, groups[0], settings)
    if comm is None:
        return []
    found = set(edges(comm, kind))
    if comm.intra is not None and comm.inter is not None:
        local, many = comm.intra.ranks, comm.inter.nodes
        found |= {edge * local for leg in (RS, AG) for edge in edges(comm.intra, leg)}
        found |= {edge // many * local for leg in (AR, RS, AG) for edge in edges(comm.inter, leg)}
    return sorted(found)


@cache
def _communicator(machine: Machine, group: tuple[int, ...], settings: Settings) -> Communicator | None:
    try:
        return Selector(machine.platform, settings).communicator(group)
    except (UnsupportedError, UsageError):
        return None


def counts(machine: Machine, groups: Groups, kind: EncOp, settings: Settings, dtype: Dtype) -> Iterator[int]:
    """Yield elements of a whole buffer: one, fewer than ranks, odd ones, and those around each limit."""
    ranks, width = len(groups[0]), size_of(dtype)
    shares = ranks if kind in (AG, RS, A2A) else 1
    least = (1, 3, 37) if shares > 1 else (1, max(ranks - 1, 1), 3 * ranks + 1, 1021)
    seen = set()
    whole = (shares if kind in (AG, RS) else 1) * width
    for edge in limits(machine, groups, kind, settings):
        at = edge // width
        seen |= {each for each in (at - 1, at, at + 1) if 0 < each * whole <= MOST_BYTES}
    if kind is A2A:
        seen = {-(-each // ranks) for each in seen}
    yield from (each * shares for each in sorted(seen | set(least)))


# --- the cases --------------------------------------------------------------------------------------------------------

HEAVY = 32
"""Groups of at least so many ranks take part with few sizes only."""


@cache
def cases() -> tuple[Case, ...]:
    """Return every case in a fixed order, those that SELECT refuses among them."""
    return tuple(_cases(Turns()))


def _cases(turns: Turns) -> Iterator[Case]:
    yield from _selected(turns)
    yield from _forced(turns)
    yield from _hierarchies(turns)
    yield from _exchanges(turns)
    yield from _movements(turns)
    yield from _extensions(turns)
    yield from _far(turns)


def _selected(turns: Turns) -> Iterator[Case]:
    """What selection takes, by settings, around its limits."""
    for (machine, groups), kind, settings in product(shapes(), (AR, AG, RS), SELECTED):
        dtype = next(turns.reduced if kind in REDUCING else turns.moved)
        found = list(counts(machine, groups, kind, settings, dtype))
        members = sum(map(len, groups))
        most = 4 if members < HEAVY else 2 if members < 2 * HEAVY else 1
        if members >= 2 * HEAVY and settings in (SINGLE, SMALL):
            continue
        for count in thinned(found, most):
            yield Case(machine, turns.request(kind, groups, count, dtype=dtype), settings)


def thinned(values: list[int], most: int) -> list[int]:
    """Return at most so many of some values, evenly spread, the last among them."""
    return values[:: -(-len(values) // most)] if len(values) > most else values


def _forced(turns: Turns) -> Iterator[Case]:
    """Every algorithm on every group, whatever selection takes."""
    for (machine, groups), kind, algorithm in product(shapes(), (AR, AG, RS), Algorithm):
        if algorithm is Algorithm.INVALID:
            continue
        ranks, members = len(groups[0]), sum(map(len, groups))
        sizes = (1 if kind is AR else ranks, 5 * ranks + (3 if kind is AR else 0) * (ranks > 1), 97 * ranks)
        for number, settings in enumerate(FORCED if members < HEAVY else FORCED[1:2]):
            count = sizes[number if members < HEAVY else 1]
            yield Case(machine, turns.request(kind, groups, count), settings, algorithm)


def _hierarchies(turns: Turns) -> Iterator[Case]:
    """Every inner with every outer algorithm, by replacing the legs, and the pipelines."""
    inner = (Algorithm.MESH, Algorithm.INTRA_RDH, Algorithm.RING, Algorithm.KANGARING)
    outer = (Algorithm.MESH, Algorithm.RING, Algorithm.INTER_RDH, Algorithm.SINGLE_CYCLE_RING)
    settings = Settings(hier_mode=1, chunk=256, slots=3, mesh_channel_buffer=2048)
    for count, within, across in product((2, 4, 8), inner, outer):
        machine = Machine(_TRN2.name, count)
        local = 16 if within is Algorithm.KANGARING else 4  # the fewest chips its ring may turn on
        if count * local > 2 * HEAVY or (across is Algorithm.INTER_RDH) != (count == 8):
            continue
        group = nodes(machine, *run(0, local))
        for kind in (AR, AG, RS):
            if across is Algorithm.SINGLE_CYCLE_RING and kind is not AR:
                continue
            for shape, size in (((group,), 5), ((mixed(group),), 67)):
                many = size * len(group) + (3 if kind is AR else 0)
                yield Case(machine, turns.request(kind, shape, many), settings, legs=(within, across))
    for count, slices, kind, size in product((2, 4), (1, 2, 3, 5), (AR, AG, RS), (1, 21, 150)):
        machine = Machine(_TRN2.name, count)
        group = nodes(machine, *run(0, 4))
        rings = Settings(hier_pipeline=slices, mesh=False, chunk=128)
        partition: Groups = (mixed(group),) if size == 21 else (group, nodes(machine, *run(4, 8)))
        yield Case(machine, turns.request(kind, partition, size * len(group) + (kind is AR)), rings)


def _exchanges(turns: Turns) -> Iterator[Case]:
    """All-to-all, and all-to-all-v with even, uneven and placed pieces."""
    for machine, groups in shapes():
        ranks, members = len(groups[0]), sum(map(len, groups))
        if members >= 2 * HEAVY:
            continue
        for settings in (PLAIN, SMALL, SINGLE) if members < HEAVY else (SMALL,):
            found = list(counts(machine, groups, A2A, settings, Dtype.FP32))
            for count in thinned(found, 4):
                yield Case(machine, turns.request(A2A, groups, count, dtype=Dtype.FP32), settings)
            yield Case(machine, turns.request(A2A, groups, 7 * ranks), settings)
            yield Case(machine, turns.request(A2AV, groups, 3 * ranks + 1), settings)
            for pieces in (_uneven(ranks), _sparse(ranks)):
                most = max(map(sum, pieces))
                yield Case(machine, turns.request(A2AV, groups, most, counts=pieces), settings)
            yield Case(machine, _placed(turns, groups), settings)


def _uneven(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return pieces of many sizes, some of them nothing."""
    return (*(tuple((5 * i + 3 * j) % 11 for j in range(ranks)) for i in range(ranks - 1)), (4,) * ranks)


def _sparse(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return pieces of which each member sends one, large one."""
    return tuple(tuple(45 * (j == (i + 1) % ranks) for j in range(ranks)) for i in range(ranks))


def _placed(turns: Turns, groups: Groups) -> Request:
    """Return an all-to-all-v whose pieces lie apart, in backward order."""
    ranks = len(groups[0])
    pieces = (*(tuple((i + j) % 4 for j in range(ranks)) for i in range(ranks - 1)), (2,) * ranks)
    backward = tuple(tuple(5 * (ranks - 1 - j) for j in range(ranks)) for _ in range(ranks))
    placed = {"send_displacements": backward, "receive_displacements": backward}
    most = max(backward[i][j] + pieces[i][j] for i in range(ranks) for j in range(ranks) if pieces[i][j])
    return turns.request(A2AV, groups, most, counts=pieces, **placed)


def _movements(turns: Turns) -> Iterator[Case]:
    """Send, receive and the permutes, with and without pairs."""
    small = Settings(chunk=128, slots=3)
    for machine, groups in shapes():
        ranks, members = len(groups[0]), sum(map(len, groups))
        if members >= 2 * HEAVY:
            continue
        rings = tuple(zip(group, (*group[1:], *group[:1]), strict=True) for group in groups)
        around = tuple(pair for ring in rings for pair in ring)
        for count, settings in ((1, PLAIN), (701, small)):
            if ranks <= 2:
                for kind in (EncOp.SEND, EncOp.RECV):
                    yield Case(machine, turns.request(kind, groups, count), settings, any_group=True)
            for kind in (EncOp.PERMUTE_IMPLICIT, EncOp.PERMUTE_REDUCE_IMPLICIT):
                yield Case(machine, turns.request(kind, groups, count), settings)
            yield Case(machine, turns.request(EncOp.PERMUTE_IMPLICIT, groups, count, pairs=around), settings)
            yield Case(machine, turns.request(EncOp.PERMUTE, groups, count, pairs=around), settings)
            back = tuple((target, source) for source, target in around[:-1])
            if back:
                permute = turns.request(EncOp.PERMUTE, groups, count, pairs=back)
                yield Case(machine, permute, settings, any_group=True)


def _extensions(turns: Turns) -> Iterator[Case]:
    """What the runtime does not do: broadcast, reduce, permute-reduce, all-gather of unequal shards."""
    small = Settings(chunk=128, slots=3, mesh_channel_buffer=2048)
    for machine, groups in shapes():
        ranks, members = len(groups[0]), sum(map(len, groups))
        if members >= HEAVY:
            continue
        around = tuple((group[i], group[i - 1]) for group in groups for i in range(ranks))
        for count, settings in ((1, PLAIN), (533, small)):
            for kind in (EncOp.BROADCAST, EncOp.REDUCE):
                rooted = turns.request(kind, groups, count, root=ranks // 2)
                yield Case(machine, rooted, settings, extensions=True)
            reduced = turns.request(EncOp.PERMUTE_REDUCE, groups, count, pairs=around)
            yield Case(machine, reduced, settings, extensions=True, any_group=True)
        unequal = tuple((7 * i + 1) % 5 for i in range(ranks))
        if sum(unequal):
            gather = turns.request(AG, groups, sum(unequal), gather_counts=unequal)
            yield Case(machine, gather, small, extensions=True)
            yield Case(machine, gather, small, extensions=True, any_group=True)


def _far(turns: Turns) -> Iterator[Case]:
    """Limits that no setting moves: the passes of the device mesh, recursive doubling in a node, writes of one MiB."""
    kib = 1 << 10
    for machine in (_TRN2, Machine("trn2.3xlarge")):
        group = (run(0, 4),)
        for kind, size in product((AR, RS), (256 * kib, 256 * kib + 4, 1024 * kib + 4)):
            shares = 4 if kind is RS else 1
            yield Case(machine, turns.request(kind, group, size // 4 * shares, dtype=Dtype.FP32), PLAIN)
        for size in (256 * kib, 256 * kib + 4, 1024 * kib + 4):
            yield Case(machine, turns.request(AG, group, size, dtype=Dtype.FP32), PLAIN)
    yield Case(_TRN2_LNC1, turns.request(AR, (run(0, 8),), 256 * kib + 3, dtype=Dtype.FP32), PLAIN)
    yield Case(_TRN1, turns.request(AG, (run(0, 2),), 2 * (256 * kib + 1), dtype=Dtype.FP32), PLAIN)


def cost(case: Case) -> int:
    """Return bytes of all inputs and outputs, the measure by which a case is cheap."""
    request = case.request
    return len(request.members) * (request.ranks * 64 + request.input_size + request.output_size)
