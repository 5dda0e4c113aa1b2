"""Whole programs: collectives one after another on the same ranks, as one program on one device model.

Every tensor is a buffer of every rank, whichever collectives read or write it; collectives that are the same but for
their tensors share semaphores and scratch. What a single collective is lowered to, `pipeline` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rota.columns import I64, U8, Array, Workspace
from rota.compose.switch.algorithms import compose_switch
from rota.device.disturb import Disturbance
from rota.device.model import Device, called, load
from rota.emit.collective import Collective
from rota.emit.network import with_proxies
from rota.emit.order import Orders
from rota.emit.placement import spans
from rota.emit.program import DEFAULT_FOLDS, Declared, Resources, emit_program
from rota.errors import UnsupportedError, UsageError
from rota.execute.arrays import execute, memory_size
from rota.execute.golden import Accuracy, measure
from rota.isa.enums import Algorithm
from rota.isa.image import BufferUse, Section
from rota.machine.platform import Platform
from rota.meaning import Asked, as_bytes, forward, fresh_members, make_program_inputs, request_text, same_bytes
from rota.pipeline import Composed, Outcome, Watch, ignore, number_warnings, runnable, wiring_warnings
from rota.request import Request
from rota.schedule.ir import Buffer, Schedule
from rota.schedule.rotate import rotated
from rota.select.admission import over_switch
from rota.simulate.engine import predict
from rota.verify.program import COMMUNICATORS, COMMUNICATORS_SOURCE

_SWITCH: Final = frozenset({"MESH", "SINGLE_STEP_MESH", "LATENCY_OPT_MESH", "BW_OPT_MESH"})


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of a program, the tensors it reads and writes, by name; one and the same in place; its stream."""

    made: Composed
    input: str
    output: str
    stream: int = 0


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
    for step, fresh in zip(steps, fresh_members(asked_of(steps)), strict=True):
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


def asked_of(steps: Sequence[Step]) -> tuple[Asked, ...]:
    """Return what the steps of a program are asked to do."""
    return tuple(Asked(step.made.request, step.input, step.output) for step in steps)


def execute_program(steps: Sequence[Step], ranks: Sequence[int], inputs: Mapping[str, Array]) -> dict[str, U8]:
    """Return what the schedules of a program leave in every tensor they write, one after another on arrays."""
    workspace = Workspace()

    def do(number: int, given: Array) -> Array:
        made = steps[number].made
        return execute(made.schedule, given, scales=made.request.scales, workspace=workspace)

    return forward(asked_of(steps), ranks, inputs, do)


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
    workspace = Workspace(max((memory_size(step.made.schedule) for step in steps), default=0))
    inputs = watch("inputs", make_program_inputs(asked_of(steps), ranks, seed, exact=False))
    accuracies: list[Accuracy] = []
    warnings: list[tuple[str, ...]] = []

    def do(number: int, given: Array) -> Array:
        request = steps[number].made.request
        result = execute(steps[number].made.schedule, given, scales=request.scales, workspace=workspace)
        accuracies.append(measure(request, given, result))
        warnings.append((*wiring_warnings(steps[number].made), *number_warnings(request, given)))
        return result

    got: Mapping[str, U8] = {}
    resources, because = None, ""
    with ThreadPoolExecutor(1) as beside:  # arrays are moved in C and lowering is Python, so that two cores have work
        executed = beside.submit(forward, asked_of(steps), ranks, inputs, do)
        try:
            if not any(len(step.made.schedule) for step in steps):
                raise UnsupportedError("no rank moves anything: there is nothing to load")
            loaded = load_program(steps, platform, words=words, seed=seed, orders=orders, communicators=communicators)
            loaded = watch("emit", loaded)
        except UnsupportedError as error:
            because = str(error)
            expected = watch("execute", executed.result())
        else:
            resources = loaded.resources
            device, disturbance = watch("load", loader(loaded))
            given = {name: as_bytes(value) for name, value in inputs.items()}
            sees = None if observe is None else observe(loaded, device)
            expected = watch("execute", executed.result())  # before the device works in the same memory
            got = watch("device", device.run_program(given, disturbance=disturbance, observe=sees, workspace=workspace))
    outcomes = []
    for step, accuracy, said in zip(steps, accuracies, warnings, strict=True):
        same = same_bytes(got[step.output], expected[step.output]) if got else None
        timing = predict(step.made.schedule, step.made.request, platform)
        outcomes.append(Outcome(step.made, same, because, accuracy, timing, said))
    return Ran(tuple(outcomes), resources, because)
