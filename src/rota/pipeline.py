"""The stages one after another, as values; who watches them is nobody's business here.

`lower` goes from a request to the bytes a device loads; `run` carries these out on the device model and on arrays,
checks and times them. Source: design §3.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from rota.compose.table import compose, composed
from rota.device.model import run_images
from rota.emit import emit
from rota.errors import UsageError
from rota.execute.arrays import execute
from rota.execute.golden import Accuracy, exceeds_exact_integers, make_inputs, measure
from rota.isa.enums import ALU_OF_CCE, Algorithm, AluOp, EncOp
from rota.isa.words import Word, encode_word
from rota.machine.platform import Platform
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.select.choose import Plan, Selector, alike, select
from rota.select.settings import Settings
from rota.simulate.engine import Timing, predict
from rota.verify import verify

T = TypeVar("T")


class Watch(Protocol):
    """Sees each stage's result pass by, and returns it as it is."""

    def __call__(self, stage: str, value: T, /) -> T: ...


def ignore(_: str, value: T, /) -> T:
    """Watch nothing."""
    return value


@dataclass(frozen=True, slots=True)
class Lowered:
    """A collective on its way to the device; every stage's result is kept."""

    request: Request
    plan: Plan
    algorithm: Algorithm
    schedule: Schedule
    word: bytes
    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A collective that has been run and checked."""

    lowered: Lowered
    device_matches: bool
    accuracy: Accuracy
    timing: Timing
    warnings: tuple[str, ...]

    @property
    def moves(self) -> int:
        """Rows that move data, of all ranks."""
        return int(np.count_nonzero(self.lowered.schedule.rows.size))


def split(
    request: Request, platform: Platform, settings: Settings | None = None, *, any_group: bool = False
) -> tuple[Request, ...]:
    """Return the request as requests whose groups get one algorithm and equally many ring channels.

    Raises:
        UsageError, UnsupportedError: a group is not on the machine, cannot be wired, or nothing can carry it.
    """
    selector = Selector(platform, settings or Settings(), any_group=any_group)
    if selector.settings.sort_groups:
        request = replace(request, groups=tuple(tuple(sorted(group)) for group in request.groups))
    parts: dict[tuple[int, Algorithm, tuple[Algorithm, ...]], list[tuple[int, ...]]] = {}
    for group in request.groups:
        plan = selector.select(alike(request, (group,)))
        key = (plan.channels, plan.selected, tuple(leg.algorithm for leg in plan.legs))
        parts.setdefault(key, []).append(group)
    return tuple(alike(request, tuple(parts[key])) for key in sorted(parts, reverse=True))


def decide(
    request: Request, platform: Platform, settings: Settings, *, any_group: bool = False
) -> tuple[Plan, Algorithm]:
    """Return what the runtime takes, and what this version composes for it.

    Raises:
        UsageError, UnsupportedError: as SELECT does; or nothing that can be composed does the operation on the group.
    """
    plan = select(request, platform, settings, any_group=any_group)
    if settings.nop or settings.force_single_rank:
        raise UsageError(f"{plan.notes[-1]}: there is nothing to run; leave the setting out")
    return plan, composed(plan)[0]


def lower(
    request: Request,
    platform: Platform,
    *,
    settings: Settings | None = None,
    any_group: bool = False,
    word: bytes = b"",
    watch: Watch = ignore,
) -> Lowered:
    """Lower one collective to the bytes a device would load, and prove its schedule.

    Args:
        any_group: let a group pass that the machine's rules refuse.
        word: the instruction word it comes from; made when there is none.

    Raises:
        UnsupportedError: the machine, or this version, cannot do it.
        VerifyError: the schedule is wrong.
    """
    plan, algorithm = watch("select", decide(request, platform, settings or Settings(), any_group=any_group))
    _check_rows(plan)
    schedule = watch("compose", compose(plan, algorithm))
    verify(schedule, request)
    watch("verify", schedule)
    own_word = word or _word(request)
    images = watch("emit", emit(schedule, request, platform, algorithm=algorithm, words=own_word))
    return Lowered(request, plan, algorithm, schedule, own_word, images)


def run(
    request: Request,
    platform: Platform,
    *,
    seed: int = 0,
    settings: Settings | None = None,
    any_group: bool = False,
    word: bytes = b"",
    watch: Watch = ignore,
) -> Outcome:
    """Lower one collective, run its bytes, execute its schedule, compare both, measure and time.

    Args:
        seed: of the inputs.

    Raises:
        UsageError: it takes more memory than there is.
        UnsupportedError, VerifyError, StuckError: as the stages do.
    """
    _check_memory(request, settings or Settings())
    lowered = lower(request, platform, settings=settings, any_group=any_group, word=word, watch=watch)
    inputs = make_inputs(request, np.random.default_rng(seed))
    expected = watch("execute", execute(lowered.schedule, inputs))
    result = watch("device", run_images(lowered.images, inputs))
    matches = np.array_equal(expected.view(np.uint8), result.view(np.uint8))
    accuracy = watch("golden", measure(request, inputs, result))
    timing = watch("simulate", predict(lowered.schedule, request, platform))
    warnings = [warning for wiring in lowered.plan.wirings for warning in wiring.warnings]
    if exceeds_exact_integers(request, inputs):
        warnings.append("values above 2^24 were met: an integer reduced through float32 is no longer exact")
    return Outcome(lowered, matches, accuracy, timing, tuple(dict.fromkeys(warnings)))


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


def _check_memory(request: Request, settings: Settings) -> None:
    """Refuse what cannot fit before anything is built."""
    slots = settings.slots * min(settings.chunk, request.size // request.ranks + 64)
    needs = _COPIES * len(request.members) * (request.input_size + request.output_size + slots)
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needs > _SHARE * has:
        raise UsageError(
            f"{len(request.members)} ranks of {request.size} bytes take about {needs >> 30} GiB to run, and this "
            f"machine has {has >> 30} GiB; use a smaller size or fewer ranks"
        )


def _word(request: Request) -> bytes:
    """Return the compiler's word for a request: tensor 0 to tensor 1, group list 0."""
    elements = request.count if request.kind is EncOp.ALLREDUCE else request.count // request.ranks
    alu = AluOp.BYPASS if request.op is None else ALU_OF_CCE[request.op]
    return encode_word(
        Word(kind=request.kind, alu_op=alu, dtype=request.dtype, input_id=0, output_id=1, num_elements=elements)
    )
