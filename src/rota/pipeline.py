"""The stages one after another, as values; who watches them is nobody's business here.

`lower` goes from a request to the bytes a device loads; `run` carries these out on the device model and on arrays,
checks and times them. Source: design §3.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

import numpy as np

from rota.columns import Array
from rota.compose.extensions import EXTENSIONS, compose_extension
from rota.compose.support import composed
from rota.compose.table import Composer, compose
from rota.device.model import run_images
from rota.emit import emit
from rota.errors import UnsupportedError, UsageError
from rota.execute.arrays import execute
from rota.execute.golden import Accuracy, exceeds_exact_integers, make_inputs, measure
from rota.isa.enums import ALU_OF_CCE, Algorithm, AluOp
from rota.isa.words import Word, encode_word
from rota.machine.platform import Platform
from rota.request import KIND_NAMES, RINGED, SHARDED, Request, along
from rota.schedule.ir import Checks, Schedule
from rota.select.choose import Plan, Selector, alike
from rota.select.force import extension_choice, forced_choice, neutral
from rota.select.settings import Settings
from rota.simulate.engine import Timing, predict
from rota.verify import executable, verify
from rota.verify.program import COMMUNICATORS

T = TypeVar("T")
EXTENSION: Final = "EXTENSION"
"""What is reported as the algorithm of an operation that the runtime refuses."""


class Watch(Protocol):
    """Sees each stage's result pass by, and returns it as it is."""

    def __call__(self, stage: str, value: T, /) -> T: ...


def ignore(_: str, value: T, /) -> T:
    """Watch nothing."""
    return value


@dataclass(frozen=True, slots=True)
class How:
    """How collectives are decided, composed and run.

    Attributes:
        any_group: let a group pass that the machine's rules refuse.
        algorithm: to use in place of the selected one.
        composer: of a user's own, in place of all of ours; `name` is how it is reported.
        extensions: also do what the runtime does not: broadcast, reduce, permute_reduce.
        verify: prove every schedule.
        seed: of the inputs.
        streams: collective streams of the program.
        communicators: groups that a rank can be in.
    """

    settings: Settings = field(default_factory=Settings)
    any_group: bool = False
    algorithm: Algorithm | None = None
    composer: Composer | None = None
    name: str = ""
    extensions: bool = False
    verify: bool = True
    seed: int = 0
    streams: int = 1
    communicators: int = COMMUNICATORS


@dataclass(frozen=True, slots=True)
class Composed:
    """A collective as a proved schedule.

    Attributes:
        algorithm: as it is reported: an algorithm's name, or that of a user's composer.
        verified: whether the schedule was proved.
    """

    request: Request
    plan: Plan
    algorithm: str
    schedule: Schedule
    verified: bool


@dataclass(frozen=True, slots=True)
class Lowered:
    """A collective on its way to the device; every stage's result is kept."""

    composed: Composed
    word: bytes
    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A collective that has been run and checked.

    Attributes:
        device_matches: whether the device leaves the same bytes as the schedule on arrays; None where the schedule is
            not emitted, and then `not_on_device` says why.
    """

    composed: Composed
    device_matches: bool | None
    not_on_device: str
    accuracy: Accuracy
    timing: Timing
    warnings: tuple[str, ...]

    @property
    def moves(self) -> int:
        """Rows that move data, of all ranks."""
        return int(np.count_nonzero(self.composed.schedule.rows.size))


def split(request: Request, platform: Platform, how: How | None = None) -> tuple[Request, ...]:
    """Return the request as requests whose groups get one algorithm and equally many ring channels.

    Raises:
        UsageError, UnsupportedError: a group is not on the machine, cannot be wired, or nothing can carry it.
    """
    how = how or How()
    if how.settings.sort_groups:
        request = replace(request, groups=tuple(tuple(sorted(group)) for group in request.groups))
    parts: dict[tuple[int, Algorithm, tuple[Algorithm, ...]], list[tuple[int, ...]]] = {}
    selector = _selector(platform, how)
    for group in request.groups:
        plan = _select(selector, alike(request, (group,)), how)
        key = (plan.channels, plan.selected, tuple(leg.algorithm for leg in plan.legs))
        parts.setdefault(key, []).append(group)
    return tuple(alike(request, tuple(parts[key])) for key in sorted(parts, reverse=True))


def decide(request: Request, platform: Platform, how: How) -> tuple[Plan, Algorithm]:
    """Return what the runtime takes, and what this version composes for it.

    Raises:
        UsageError, UnsupportedError: as SELECT does; or nothing that can be composed does the operation on the group.
    """
    plan = _select(_selector(platform, how), request, how)
    if how.settings.nop or how.settings.force_single_rank:
        raise UsageError(f"{plan.notes[-1]}: there is nothing to run; leave the setting out")
    if how.composer is not None or request.kind in EXTENSIONS or request.gather_counts:
        return plan, plan.selected
    if how.algorithm is None:
        return plan, composed(plan)[0]
    return plan, how.algorithm


def prove(request: Request, platform: Platform, how: How | None = None, *, watch: Watch = ignore) -> Composed:
    """Select, compose and prove one collective.

    Raises:
        UnsupportedError: the machine, or this version, cannot do it.
        VerifyError: the schedule is wrong.
    """
    how = how or How()
    plan, algorithm = watch("select", decide(request, platform, how))
    _check_rows(plan)
    if request.kind in RINGED and not request.pairs:
        rings = [wiring.channels[0].order if wiring.channels else wiring.ranks for wiring in plan.wirings]
        request = along(request, tuple(rings))
        plan = replace(plan, request=request)
    if how.composer is not None:
        made, name = how.composer(plan), how.name
    elif request.kind in EXTENSIONS or request.gather_counts:
        made, name = compose_extension(plan, any_group=how.any_group), EXTENSION
    else:
        made, name = compose(plan, algorithm), algorithm.name
    schedule = watch("compose", made)
    if how.verify:
        verify(schedule, request)
        watch("verify", schedule)
    return Composed(request, plan, name, schedule, how.verify)


def lower(
    request: Request, platform: Platform, how: How | None = None, *, word: bytes = b"", watch: Watch = ignore
) -> Lowered:
    """Lower one collective to the bytes a device would load, and prove its schedule.

    Args:
        word: the instruction word it comes from; made when there is none.

    Raises:
        UnsupportedError: the machine, or this version, cannot do it.
        VerifyError: the schedule is wrong.
    """
    made = prove(request, platform, how, watch=watch)
    return Lowered(made, *_emit(made, platform, word, watch))


def run(
    request: Request, platform: Platform, how: How | None = None, *, word: bytes = b"", watch: Watch = ignore
) -> Outcome:
    """Compose one collective, execute its schedule, run its bytes where it is emitted, compare, measure and time.

    Raises:
        UsageError: it takes more memory than there is.
        UnsupportedError, VerifyError, StuckError: as the stages do.
    """
    how = how or How()
    check_memory(request, how.settings)
    made = prove(request, platform, how, watch=watch)
    made = replace(made, schedule=runnable(made.schedule))
    inputs = make_inputs(made.request, np.random.default_rng(how.seed))
    expected = watch("execute", execute(made.schedule, inputs, scales=made.request.scales))
    matches, because = _on_device(made, platform, word, inputs, expected, watch)
    accuracy = watch("golden", measure(made.request, inputs, expected))
    timing = watch("simulate", predict(made.schedule, made.request, platform))
    warnings = list(wiring_warnings(made))
    warnings += number_warnings(made.request, inputs)
    return Outcome(made, matches, because, accuracy, timing, tuple(dict.fromkeys(warnings)))


def runnable(schedule: Schedule) -> Schedule:
    """Return a schedule whose stored order is an execution.

    Raises:
        StuckError: it has none.
    """
    return executable(schedule) if schedule.checks is Checks.FORM else schedule


def wiring_warnings(made: Composed) -> tuple[str, ...]:
    """Return what is worth saying about how the groups of a collective are wired."""
    return tuple(dict.fromkeys(warning for wiring in made.plan.wirings for warning in wiring.warnings))


def number_warnings(request: Request, inputs: Array) -> tuple[str, ...]:
    """Return what is worth saying about the numbers of a collective."""
    if not exceeds_exact_integers(request, inputs):
        return ()
    return ("values above 2^24 were met: an integer reduced through float32 is no longer exact",)


def _selector(platform: Platform, how: How) -> Selector:
    settings = how.settings if how.algorithm is None else neutral(how.settings)
    return Selector(platform, settings, streams=how.streams, any_group=how.any_group)


def _select(selector: Selector, request: Request, how: How) -> Plan:
    """Return the plan of a request: the runtime's, or that of the algorithm asked for, or of an extension."""
    extends = request.kind in EXTENSIONS or bool(request.gather_counts)
    if extends and not how.extensions:
        name = "all_gather of unequal shards" if request.gather_counts else KIND_NAMES[request.kind]
        raise UnsupportedError(f"{name}: not supported operation (op_type {request.kind:d}); --extensions does it")
    if request.kind in EXTENSIONS:
        return selector.select(request, extension_choice)
    algorithm = Algorithm.MESH if request.gather_counts else how.algorithm
    if algorithm is None:
        return selector.select(request)
    return selector.select(request, partial(forced_choice, algorithm=algorithm))


def _emit(made: Composed, platform: Platform, word: bytes, watch: Watch) -> tuple[bytes, tuple[bytes, ...]]:
    own_word = word or word_of(made.request)
    algorithm = Algorithm.__members__.get(made.algorithm)
    return own_word, watch("emit", emit(made.schedule, made.request, platform, algorithm=algorithm, words=own_word))


def _on_device(
    made: Composed, platform: Platform, word: bytes, inputs: Array, expected: Array, watch: Watch
) -> tuple[bool | None, str]:
    """Run a schedule's bytes where they are emitted; return whether the results are equal, or why they are not run."""
    try:
        _, images = _emit(made, platform, word, watch)
    except UnsupportedError as error:
        return None, str(error)
    result = watch("device", run_images(images, inputs))
    return np.array_equal(expected.view(np.uint8), result.view(np.uint8)), ""


_MOST_ROWS: Final = 1 << 24


def _check_rows(plan: Plan) -> None:
    """Refuse a schedule that no device's counters, and no memory here, would take."""
    request, channels = plan.request, max(plan.channels, 1)
    pieces = request.size // (channels * plan.settings.chunk) // (request.ranks if request.op else 1)
    rows = 4 * (pieces + 1) * channels * request.ranks * len(request.members)
    if rows > _MOST_ROWS:
        raise UsageError(
            f"{request.size} bytes over {len(request.members)} ranks make about {rows} rows, and one schedule "
            f"takes {_MOST_ROWS}; use a smaller size or fewer ranks"
        )


_COPIES: Final = 4  # of all buffers: execute, device, inputs and results
_SHARE: Final = 0.8  # of the machine's memory


def check_memory(request: Request, settings: Settings) -> None:
    """Refuse what cannot fit before anything is built."""
    slots = settings.slots * min(settings.chunk, request.size // request.ranks + 64)
    needs = _COPIES * len(request.members) * (request.input_size + request.output_size + slots)
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needs > _SHARE * has:
        raise UsageError(
            f"{len(request.members)} ranks of {request.size} bytes take about {needs >> 30} GiB to run, and this "
            f"machine has {has >> 30} GiB; use a smaller size or fewer ranks"
        )


def word_of(request: Request) -> bytes:
    """Return the compiler's word for a request: tensor 0 to tensor 1, group list 0; none for what has no word."""
    if request.kind in EXTENSIONS or request.gather_counts:
        return b""
    elements = request.count // request.ranks if request.kind in SHARDED else request.count
    alu = AluOp.BYPASS if request.op is None else ALU_OF_CCE[request.op]
    return encode_word(
        Word(kind=request.kind, alu_op=alu, dtype=request.dtype, input_id=0, output_id=1, num_elements=elements)
    )
