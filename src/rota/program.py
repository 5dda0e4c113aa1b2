"""Whole programs: collectives one after another on the same ranks, as one program on one device model.

Every tensor is a buffer of every rank, whichever collectives read or write it; collectives that are the same but for
their tensors share semaphores and scratch. What a single collective is lowered to, `pipeline` says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rota.columns import I64, U8, Array, Workspace, equal_bytes
from rota.compose.switch.algorithms import compose_switch
from rota.device.disturb import Disturbance
from rota.device.model import Device, called, load
from rota.emit.collective import Collective
from rota.emit.network import with_proxies
from rota.emit.order import Orders
from rota.emit.placement import spans
from rota.emit.program import DEFAULT_FOLDS, Declared, Resources, emit_program
from rota.errors import DecodeError, RotaError, UnsupportedError, UsageError
from rota.execute.arrays import execute
from rota.execute.golden import Accuracy, largest_exact, make_exact_inputs, make_inputs, measure, perform
from rota.isa.dtypes import numpy_dtype
from rota.isa.enums import Algorithm, CceType
from rota.isa.image import BufferUse, Section
from rota.machine.platform import Platform
from rota.pipeline import Composed, Outcome, Watch, ignore, number_warnings, runnable, wiring_warnings
from rota.request import Request
from rota.request import parse_request as parse_one
from rota.schedule.ir import Buffer, Schedule
from rota.schedule.rotate import rotated
from rota.select.admission import over_switch
from rota.simulate.engine import predict
from rota.verify.program import COMMUNICATORS, COMMUNICATORS_SOURCE

_SWITCH: Final = frozenset({"MESH", "SINGLE_STEP_MESH", "LATENCY_OPT_MESH", "BW_OPT_MESH"})
_TITLE: Final = "rota request 1"
_MOST: Final = 1 << 62  # of a part of an exact sum
_SMALLER: Final = ((3, False), (1, False), (1, True), (0, False))
"""Inputs when larger ones would not stay exact: the largest value, and whether it is on one rank only."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of a program, the tensors it reads and writes, by name; one and the same in place; its stream."""

    made: Composed
    input: str
    output: str
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a program is asked to do, as an image tells it to people and to the golden check; the device reads none."""

    request: Request
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program as bytes.

    Attributes:
        ranks: machine rank of each image.
        images: one a rank.
        entries: control entries of each collective; they follow one another.
    """

    ranks: tuple[int, ...]
    images: tuple[bytes, ...]
    resources: Resources
    entries: tuple[int, ...]


Observer = Callable[[Loaded, Device], Callable[[int, I64], None]]
Loader = Callable[[Loaded], tuple[Device, Disturbance | None]]


def load_checked(loaded: Loaded) -> tuple[Device, Disturbance | None]:
    """Load a program as it should be, to run without faults; messages call ranks as the machine does.

    Raises:
        DecodeError: the loader refuses it.
    """
    return called(load(loaded.images), loaded.ranks), None


def steps_of(
    made: Sequence[Composed], tensors: Sequence[tuple[str, str]] = (), streams: Sequence[int] = ()
) -> tuple[Step, ...]:
    """Return collectives as the steps of a program.

    Args:
        tensors: what each reads and writes; one and the same in place. Without them each has tensors of its own.
        streams: of each; all are of stream 0 without them.

    Raises:
        UnsupportedError: a collective is in place and its schedule is not.
    """
    if not tensors:
        tensors = [(f"t{i}.in", f"t{i}.in" if each.schedule.in_place else f"t{i}.out") for i, each in enumerate(made)]
    for each, (reads, writes) in zip(made, tensors, strict=True):
        if (reads == writes) != each.schedule.in_place:
            raise UnsupportedError(
                f"{each.algorithm} reads tensor {reads} and writes {writes}: it is composed otherwise"
            )
    streams = streams or [0] * len(made)
    every = zip(made, tensors, streams, strict=True)
    return tuple(Step(each, reads, writes, stream) for each, (reads, writes), stream in every)


def load_program(
    steps: Sequence[Step],
    platform: Platform,
    *,
    words: bytes = b"",
    seed: int = 0,
    folds: int = DEFAULT_FOLDS,
    orders: Orders | None = None,
    communicators: int = COMMUNICATORS,
) -> Loaded:
    """Lower collectives to one program.

    Args:
        words: instruction words they come from, kept in the images for people.
        seed: of the inputs with which the images are checked.
        orders: machine ranks whose program is another one, wrongly: the collectives in the order in which they do them.
        communicators: groups that a rank can be in.

    Raises:
        UsageError: a tensor is used with two sizes, or written on one stream and used on another.
        UnsupportedError: the program needs more than the machine has.
    """
    _check_streams(steps)
    turn = sorted(range(len(steps)), key=lambda i: steps[i].stream)  # stream after stream, as EMIT takes them
    ranks = tuple(sorted({rank for step in steps for rank in step.made.request.members}))
    place = {rank: i for i, rank in enumerate(ranks)}
    machine = np.array(ranks, np.int64)
    span = spans(machine, platform)[0]
    tensors = _tensors(steps)
    declared = [Declared(Buffer(name, size, user=True), use) for name, (size, use) in tensors.items()]
    number = {name: i for i, name in enumerate(tensors)}
    shapes: dict[tuple[Request, str, int, int], int] = {}
    scratch: dict[tuple[Request, str, int], I64] = {}
    turns: Counter[tuple[Request, str, int]] = Counter()
    runs: Counter[int] = Counter()
    collectives = []
    for step in (steps[i] for i in turn):
        request = step.made.request
        alike = request, step.made.algorithm, step.stream
        half = turns[alike] % 2 if _takes_halves(step.made) else 0
        shape = shapes.setdefault((*alike, half), len(shapes))
        member = np.array([place[rank] for rank in request.members], np.int64)
        schedule = with_proxies(_turned(step.made, turns[alike]), span[member])
        if alike not in scratch:
            scratch[alike] = _scratch(schedule, shape, declared)
        buffers = scratch[alike].copy()
        buffers[schedule.input], buffers[schedule.output] = number[step.input], number[step.output]
        collectives.append(
            Collective(
                schedule=schedule,
                dtype=request.dtype,
                algorithm=Algorithm.__members__.get(step.made.algorithm),
                scales=request.scales,
                member=member,
                buffers=buffers,
                groups=[[place[rank] for rank in group] for group in request.groups],
                shape=shape,
                turn=runs[shape],
                stream=step.stream,
            )
        )
        turns[alike] += 1
        runs[shape] += 1
    asked = request_text(asked_of(steps), seed)
    extra = [(Section.REQUEST, 0, asked), *([(Section.WORDS, 0, words)] if words else [])]
    at = {number: i for i, number in enumerate(turn)}
    own = {place[rank]: [at.get(order[i], order[i]) for i in turn] for rank, order in (orders or {}).items()}
    partitions = [steps[i].made.request.groups for i in turn]
    made = emit_program(
        collectives, machine, declared, platform, folds=folds, extra=extra, orders=own, partitions=partitions
    )
    if made.resources.communicators > communicators:
        raise UnsupportedError(
            f"a rank is in {made.resources.communicators} groups, and a program takes {communicators} communicators; "
            "use fewer partitions, or split the program",
            source=COMMUNICATORS_SOURCE,
        )
    return Loaded(ranks, made.images, made.resources, tuple(made.entries[at[i]] for i in range(len(steps))))


def _check_streams(steps: Sequence[Step]) -> None:
    """Refuse what depends on an order that streams have not.

    Raises:
        UsageError: a tensor is written on one stream and used on another.
    """
    users: dict[str, set[int]] = {}
    for step in steps:
        for name in (step.input, step.output):
            users.setdefault(name, set()).add(step.stream)
    for step in steps:
        others = sorted(users[step.output] - {step.stream})
        if others:
            raise UsageError(
                f"tensor {step.output}: written on stream {step.stream} and used on stream {others[0]}, and nothing "
                "orders streams; use one stream for both"
            )


def _tensors(steps: Sequence[Step]) -> dict[str, tuple[int, BufferUse]]:
    """Return size and use of every tensor, in order of first use; the host fills what nothing has written before.

    Raises:
        UsageError: a tensor is used with two sizes.
    """
    found: dict[str, tuple[int, BufferUse]] = {}
    for step, fresh in zip(steps, _fresh(asked_of(steps)), strict=True):
        schedule = step.made.schedule
        for name, index, use in (
            (step.input, schedule.input, BufferUse.INPUT),
            (step.output, schedule.output, BufferUse.OUTPUT),
        ):
            size = schedule.buffers[index].size
            before, uses = found.get(name, (size, BufferUse.INTERNAL))
            if before != size:
                raise UsageError(f"tensor {name}: used with {before} and with {size} bytes")
            fills = use is BufferUse.OUTPUT or bool(fresh)
            found[name] = (size, uses | use if fills else uses)
    return found


def _fresh(asked: Sequence[Asked]) -> Iterator[list[int]]:
    """Yield, for each collective, the members whose input nothing has filled or written before."""
    known: dict[str, set[int]] = {}
    for each in asked:
        members = each.request.members
        before = known.setdefault(each.input, set())
        yield [i for i, rank in enumerate(members) if rank not in before]
        before.update(members)
        known.setdefault(each.output, set()).update(members)


def _turned(made: Composed, turn: int) -> Schedule:
    """Return the schedule of a run that is not the first: slots go on, meshes of the switch take the other half."""
    if _takes_halves(made) and turn % 2:
        return compose_switch(made.plan, parity=1)
    return rotated(made.schedule, turn)


def _takes_halves(made: Composed) -> bool:
    """Say whether successive runs take turns with two halves of what they share, buffers and perhaps semaphores."""
    return made.algorithm in _SWITCH and over_switch(made.plan.platform, made.plan.geometries[0])


def _scratch(schedule: Schedule, shape: int, declared: list[Declared]) -> I64:
    """Declare what only this shape uses; return the number of each of its buffers, -1 for tensors."""
    out = np.full(len(schedule.buffers), -1, np.int64)
    for i, buffer in enumerate(schedule.buffers):
        if i not in (schedule.input, schedule.output):
            out[i] = len(declared)
            declared.append(Declared(replace(buffer, name=f"s{shape}.{buffer.name}"), BufferUse.INTERNAL))
    return out


# --- what it means ----------------------------------------------------------------------------------------------------


def asked_of(steps: Sequence[Step]) -> tuple[Asked, ...]:
    """Return what the steps of a program are asked to do."""
    return tuple(Asked(step.made.request, step.input, step.output) for step in steps)


def make_program_inputs(asked: Sequence[Asked], ranks: Sequence[int], seed: int, *, exact: bool) -> dict[str, Array]:
    """Return the tensors that the host fills, shape (ranks, elements); rows of ranks that read nothing there are 0.

    Args:
        exact: whole numbers whose every partial result is exact.
    """
    place = {rank: i for i, rank in enumerate(ranks)}
    make = make_exact_inputs if exact else make_inputs
    out: dict[str, Array] = {}
    for number, (each, fresh) in enumerate(zip(asked, _fresh(asked), strict=True)):
        request = each.request
        if fresh:
            values = make(request, np.random.default_rng((seed, number)))
            rows = _rows([place[rank] for rank in request.members], len(ranks))
            if each.input not in out and rows == slice(None):
                out[each.input] = values
                continue
            shape = (len(ranks), request.input_size // request.itemsize)
            held = out.setdefault(each.input, np.zeros(shape, numpy_dtype(request.dtype)))
            held[[place[request.members[i]] for i in fresh]] = values[fresh].view(held.dtype)
    if exact:
        _keep_exact(asked, ranks, out, seed)
    return out


def _keep_exact(asked: Sequence[Asked], ranks: Sequence[int], inputs: dict[str, Array], seed: int) -> None:
    """Make inputs smaller, and at last zero, where what one collective leaves is too large for the next one's sums."""
    written: set[str] = set()
    carried = False
    for each in asked:
        carried |= each.input in written
        written.add(each.output)
    levels = dict.fromkeys(inputs, 0) if carried else {}
    while levels:
        found = {name for name in _inexact(asked, ranks, inputs) if levels[name] < len(_SMALLER)}
        if not found:
            return
        for name in sorted(found):
            most, alone = _SMALLER[levels[name]]
            held = inputs[name]
            values = np.random.default_rng((seed, levels[name])).integers(0, most, held.shape, np.int8, endpoint=True)
            if alone:
                values *= np.arange(held.shape[1]) % len(ranks) == np.arange(len(ranks))[:, None]
            held[:] = np.where(held.astype(np.float32).any(axis=1, keepdims=True), values, 0).astype(held.dtype)
            levels[name] += 1


def _inexact(asked: Sequence[Asked], ranks: Sequence[int], inputs: Mapping[str, Array]) -> set[str]:
    """Return the inputs of the first sum that may round, whatever its order; none where every sum is exact."""
    place = {rank: i for i, rank in enumerate(ranks)}
    held: dict[str, Array] = {name: np.abs(value.astype(np.float32)) for name, value in inputs.items()}
    types = {name: value.dtype for name, value in inputs.items()}
    come: dict[str, set[str]] = {name: {name} if held[name].any() else set() for name in inputs}
    for each in asked:
        request, dtype = each.request, numpy_dtype(each.request.dtype)
        rows = [place[rank] for rank in request.members]
        comes = come[each.input]
        known = types[each.input] == dtype
        if request.op is not None and comes and not known:
            return comes
        size = request.output_size // request.itemsize
        if known:
            given = held[each.input][rows]
            sums = request.op in (CceType.ADD, CceType.FMA)
            op = None if request.op is None else request.op if sums else CceType.MAX
            result = perform(replace(request, op=op, scales=tuple(map(abs, request.scales))), given)
            if sums and comes and not _stays_exact(given, result, dtype):
                return comes
        else:
            result = np.zeros((len(rows), size), np.float32)
        if each.output not in held or types[each.output] != dtype or held[each.output].shape[1] != size:
            held[each.output] = np.zeros((len(ranks), size), np.float32)
        held[each.output][rows] = result
        types[each.output] = dtype if known else np.dtype(np.void)
        come[each.output] = come.get(each.output, set()) | comes
    return set()


def _stays_exact(given: Array, total: Array, dtype: np.dtype[Any]) -> bool:
    """Say whether sums are exact in any order: they have few bits above the lowest that any part has, and fit.

    Args:
        given, total: magnitudes of the parts, and of their sums.
    """
    most = float(given.max(initial=0))
    if (given % 1).any() or most >= _MOST:
        return False
    bits = int(np.bitwise_or.reduce(given.astype(np.int64), axis=None))
    lowest = bits & -bits or 1
    with np.errstate(all="ignore"):
        fits = np.array_equal(total.astype(dtype).astype(np.float32), total)
    return fits and float(total.max(initial=0)) / lowest <= largest_exact(dtype)


def execute_program(steps: Sequence[Step], ranks: Sequence[int], inputs: Mapping[str, Array]) -> dict[str, U8]:
    """Return what the schedules of a program leave in every tensor they write, one after another on arrays."""
    workspace = Workspace()

    def do(number: int, given: Array) -> Array:
        made = steps[number].made
        return execute(made.schedule, given, scales=made.request.scales, workspace=workspace)

    return _forward(asked_of(steps), ranks, inputs, do)


def golden_program(asked: Sequence[Asked], ranks: Sequence[int], inputs: Mapping[str, Array]) -> dict[str, U8]:
    """Return what a program means, collective after collective; exact where the inputs are."""
    return _forward(asked, ranks, inputs, lambda number, given: perform(asked[number].request, given))


def _forward(
    asked: Sequence[Asked], ranks: Sequence[int], inputs: Mapping[str, Array], do: Callable[[int, Array], Array]
) -> dict[str, U8]:
    """Carry tensors through a program; return those that are written as bytes, shape (ranks, bytes).

    Args:
        do: carries out one collective; what it returns may be written over by the next call.
    """
    place = {rank: i for i, rank in enumerate(ranks)}
    memory = {name: as_bytes(value) for name, value in inputs.items()}
    owned: set[str] = set()
    for number, each in enumerate(asked):
        rows = _rows([place[rank] for rank in each.request.members], len(ranks))
        result = as_bytes(do(number, memory[each.input][rows].view(numpy_dtype(each.request.dtype))))
        held = memory.get(each.output)
        if rows == slice(None) and (held is None or held.shape == result.shape):
            memory[each.output] = _kept(result)
            owned.discard(each.output)
            continue
        if each.output not in owned:
            held = np.zeros((len(ranks), result.shape[1]), np.uint8) if held is None else held.copy()
            memory[each.output] = held
            owned.add(each.output)
        memory[each.output][rows] = result
    return {name: memory[name] for name in dict.fromkeys(each.output for each in asked)}


def _kept(rows: U8) -> U8:
    """Return a copy, or one row in the place of all where they are equal, so that large results take little memory."""
    if all(equal_bytes(rows[0], row) for row in rows[1:]):
        return np.broadcast_to(rows[0].copy(), rows.shape)
    return rows.copy()


def _rows(places: list[int], count: int) -> slice | list[int]:
    """Return places as a slice where they are all there are, in order, so that nothing is copied."""
    return slice(None) if places == list(range(count)) else places


def same_bytes(one: U8, other: U8) -> bool:
    """Say whether two arrays of shape (ranks, bytes) are equal, without a third one of their size."""
    return one.shape == other.shape and all(equal_bytes(a, b) for a, b in zip(one, other, strict=True))


def as_bytes(value: Array) -> U8:
    """Return an array of shape (ranks, elements) as bytes, shape (ranks, bytes)."""
    raw: U8 = (
        value.view(np.uint8) if value.strides[-1] == value.itemsize else np.ascontiguousarray(value).view(np.uint8)
    )
    return raw.reshape(value.shape[0], -1)


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that has been run.

    Attributes:
        outcomes: of each collective, in order.
        resources: what it takes on the device; None where it is not emitted, and then `not_on_device` says why.
    """

    outcomes: tuple[Outcome, ...]
    resources: Resources | None
    not_on_device: str


def run_program(
    made: Sequence[Composed],
    platform: Platform,
    *,
    tensors: Sequence[tuple[str, str]] = (),
    streams: Sequence[int] = (),
    words: bytes = b"",
    seed: int = 0,
    observe: Observer | None = None,
    loader: Loader = load_checked,
    orders: Orders | None = None,
    communicators: int = COMMUNICATORS,
    watch: Watch = ignore,
) -> Ran:
    """Run proved collectives one after another on arrays, and as one program on one device model; compare and time.

    Args:
        tensors, streams: as `steps_of` takes them.
        observe: is given the program and the device it is loaded on, and returns what sees each tick of its run.
        loader: puts the program on a device, and says what goes wrong when it runs.
        orders, communicators: as `load_program` takes them.

    Raises:
        UsageError: a tensor is used with two sizes.
        StuckError: the device cannot go on.
    """
    steps = steps_of([replace(each, schedule=runnable(each.schedule)) for each in made], tensors, streams)
    ranks = tuple(sorted({rank for step in steps for rank in step.made.request.members}))
    inputs = make_program_inputs(asked_of(steps), ranks, seed, exact=False)
    workspace = Workspace()
    accuracies: list[Accuracy] = []
    warnings: list[tuple[str, ...]] = []

    def do(number: int, given: Array) -> Array:
        request = steps[number].made.request
        result = execute(steps[number].made.schedule, given, scales=request.scales, workspace=workspace)
        accuracies.append(measure(request, given, result))
        warnings.append((*wiring_warnings(steps[number].made), *number_warnings(request, given)))
        return result

    expected = watch("execute", _forward(asked_of(steps), ranks, inputs, do))
    got: Mapping[str, U8] = {}
    resources, because = None, ""
    try:
        if not any(len(step.made.schedule) for step in steps):
            raise UnsupportedError("no rank moves anything: there is nothing to load")
        loaded = load_program(steps, platform, words=words, seed=seed, orders=orders, communicators=communicators)
        loaded = watch("emit", loaded)
    except UnsupportedError as error:
        because = str(error)
    else:
        resources = loaded.resources
        device, disturbance = watch("load", loader(loaded))
        given = {name: as_bytes(value) for name, value in inputs.items()}
        sees = None if observe is None else observe(loaded, device)
        got = watch("device", device.run_program(given, disturbance=disturbance, observe=sees, workspace=workspace))
    outcomes = []
    for step, accuracy, said in zip(steps, accuracies, warnings, strict=True):
        same = same_bytes(got[step.output], expected[step.output]) if got else None
        timing = predict(step.made.schedule, step.made.request, platform)
        outcomes.append(Outcome(step.made, same, because, accuracy, timing, said))
    return Ran(tuple(outcomes), resources, because)


# --- the section REQUEST ----------------------------------------------------------------------------------------------


def request_text(asked: Sequence[Asked], seed: int) -> bytes:
    """Return what is asked for as the text of an image's section."""
    lines = [_TITLE, f"seed {seed}", *(f"{each.input} {each.output} {each.request.to_text()}" for each in asked)]
    return ("\n".join(lines) + "\n").encode()


def parse_request(data: bytes) -> tuple[tuple[Asked, ...], int]:
    """Return what an image's section says is asked for, and the seed.

    Raises:
        DecodeError: it says nothing that makes sense; the offset is in the section.
    """
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DecodeError("section REQUEST", offset=error.start, expected="UTF-8 text", got="other bytes") from None
    head = re.fullmatch(r"seed (\d{1,18})", lines[1], re.ASCII) if len(lines) > 2 and lines[0] == _TITLE else None
    if head is None:
        raise DecodeError("section REQUEST", offset=0, expected=f"'{_TITLE}', a seed and requests", got=repr(data[:40]))
    asked, offset = [], sum(len(line) + 1 for line in lines[:2])
    for line in lines[2:]:
        parts = line.split(" ", 2)
        try:
            if len(parts) < 3 or not all(parts):
                raise UsageError("fewer than three words")
            asked.append(Asked(parse_one(parts[2]), parts[0], parts[1]))
        except RotaError as error:
            raise DecodeError(
                "section REQUEST", offset=offset, expected="tensors and a request", got=str(error)
            ) from None
        offset += len(line) + 1
    return tuple(asked), int(head[1])
