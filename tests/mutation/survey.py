"""What becomes of the mutants of schedules: who catches each, and what the oracle says of the rest.

Run as a program (`python -m tests.mutation.survey`), it prints the tables of all rings and of all other families. Each
mutant meets, in this order: the constructor (with the balance check off; a stored order that is no execution is let
through), the proof of order, the data proof. What those that pass do, the oracle decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from tests.families import SMALL
from tests.mutation.mutants import Edit, Mutant, build, mutants
from tests.mutation.oracle import Verdict, judge

from rota.compose.ring import compose_ring
from rota.errors import VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import REDUCING, Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.pipeline import How, prove
from rota.request import COMPOSED, Request
from rota.schedule.ir import Checks, Leaf, Schedule
from rota.verify import executable, find_data, find_order
from rota.verify.findings import Finding

GRAIN = 32
CHUNK = 8  # of the families


class Catcher(Enum):
    """Who notices a mutant first; NOBODY leaves it to the oracle."""

    CONSTRUCTOR = "constructor"
    DEADLOCK = "deadlock"
    ORDER = "order"
    BALANCE = "balance"
    NEVER_READ = "never read"
    DATA = "data"
    NOBODY = "nobody"


CATCHERS: Mapping[str, Catcher] = {
    "deadlock": Catcher.DEADLOCK,
    "ambiguous_semaphore": Catcher.ORDER,
    "race": Catcher.ORDER,
    "slot_reuse": Catcher.ORDER,
    "in_place_hazard": Catcher.ORDER,
    "not_entered": Catcher.ORDER,
    "not_finished": Catcher.ORDER,
    "wait_count": Catcher.BALANCE,
    "unbalanced": Catcher.BALANCE,
    "never_read": Catcher.NEVER_READ,
}
VERDICTS: Mapping[str, frozenset[Verdict]] = {
    "deadlock": frozenset({Verdict.DEADLOCK}),
    **{rule: frozenset({Verdict.RACE, Verdict.WRONG}) for rule in ("race", "slot_reuse", "in_place_hazard")},
}
"""What the oracle, which names the worst alone, must say where a rule is the first finding."""


@dataclass(frozen=True)
class Case:
    """A schedule to mutate, and what it is for."""

    name: str
    request: Request
    make: Callable[[], Schedule]
    grain: int
    ranks: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Fate:
    """What became of one mutant.

    Attributes:
        rule, said: what the catcher said, and by which rule; or the rows the oracle points at.
        named: how messages call the edited row, without its number.
        verdict: the oracle's, where it was asked.
        imbalance: what the constructor says with the balance check on; empty if nothing, or if there is no schedule.
    """

    case: Case
    mutant: Mutant
    leaf: Leaf
    named: str
    catcher: Catcher
    rule: str = ""
    said: str = ""
    verdict: Verdict | None = None
    imbalance: str = ""


def ring(
    kind: EncOp,
    ranks: int,
    channels: int = 1,
    halves: int = 1,
    *,
    slots: int = 3,
    passes: int = 1,
    in_place: bool = False,
) -> Case:
    """Return a ring collective with the fewest possible pieces per rank; `passes` are chunk groups."""
    size = ranks * channels * halves * passes * GRAIN
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    request = Request(kind, Dtype.BFLOAT16, size // 2, (tuple(range(ranks)),), op, in_place=in_place)

    def make() -> Schedule:
        return compose_ring(
            [range(ranks), range(ranks)[::-1]][:channels],
            kind=kind,
            size=request.size,
            op=request.op,
            slots=slots,
            halves=halves,
            chunk=GRAIN * halves,
            in_place=in_place,
        )

    shape = f"{channels}x{halves} slots {slots} passes {passes}{' in place' * in_place}"
    return Case(f"ring {kind.name} {ranks} {shape}", request, make, GRAIN, ranks)


RINGS: Sequence[Case] = (
    *(ring(*shape) for shape in product(COMPOSED, range(2, 7), (1, 2), (1, 2))),
    *(ring(EncOp.ALLREDUCE, ranks, in_place=True) for ranks in range(2, 5)),
    *(ring(kind, 3, halves=2, slots=4, passes=2) for kind in COMPOSED),
    ring(EncOp.ALLREDUCE, 4, slots=8),
)


def _family(name: str, make: Callable[[], Schedule]) -> Case:
    schedule = make()
    size, group = schedule.buffers[schedule.input].size, tuple(range(schedule.ranks))
    if name.startswith("all-to-all"):
        request = Request(EncOp.ALLTOALL, Dtype.BFLOAT16, size // 2, (group,))
    elif name.startswith("permute"):
        pairs = tuple(zip(group, (*group[1:], group[0]), strict=True))
        request = Request(EncOp.PERMUTE, Dtype.BFLOAT16, size // 2, (group,), pairs=pairs)
    else:
        op, in_place = CceType.ADD, schedule.in_place
        request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, size // 2, (group,), op, in_place=in_place)
    return Case(name, request, make, CHUNK, schedule.ranks)


FAMILIES: Sequence[Case] = tuple(_family(name, make) for name, make in SMALL.items())


def _composed(
    machine: str, kind: EncOp, algorithm: Algorithm | None, group: tuple[int, ...], *, in_place: bool = False
) -> Case:
    """Return what a composer of the package makes of a machine, `name` or `name x nodes`, and one group."""
    name, _, nodes = machine.partition(" x ")
    platform = load_platform(name, nodes=int(nodes or 1))
    op = CceType.ADD if kind in REDUCING else None
    request = Request(kind, Dtype.BFLOAT16, len(group), (group,), op, in_place=in_place)

    def make() -> Schedule:
        return prove(request, platform, How(algorithm=algorithm, verify=False)).schedule

    label = "selected" if algorithm is None else algorithm.name
    ends = " in place" * in_place
    return Case(f"{label} {kind.name} {machine} {','.join(map(str, group))}{ends}", request, make, 2, len(group))


_AR, _AG, _RS, _A2A = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL
_FOUR, _TWO_BY_TWO = (0, 1, 2, 3), (0, 1, 64, 65)
COMPOSERS: Sequence[Case] = (
    *(_composed("inf2.24xlarge", kind, Algorithm.MESH, _FOUR) for kind in (_AG, _RS, _A2A)),
    _composed("inf2.24xlarge", _RS, Algorithm.MESH, (0, 1, 2, 3, 4, 5)),
    *(_composed("trn2.3xlarge", kind, Algorithm.MESH, _FOUR) for kind in (_AG, _RS, _AR, _A2A)),
    *(_composed("trn1.32xlarge x 2", kind, Algorithm.MESH, (0, 32)) for kind in (_AG, _RS, _AR)),
    _composed("trn2.3xlarge", _AR, Algorithm.SINGLE_STEP_MESH, _FOUR),
    _composed("inf2.24xlarge", _AR, Algorithm.SINGLE_STEP_MESH, _FOUR),
    *(_composed("trn2.3xlarge", kind, Algorithm.INTRA_RDH, _FOUR) for kind in (_AG, _RS, _AR)),
    _composed("trn2.3xlarge", _AR, Algorithm.INTRA_RDH, _FOUR, in_place=True),
    *(_composed("trn2.48xlarge x 8", kind, Algorithm.INTER_RDH, tuple(range(0, 512, 64))) for kind in (_AG, _RS, _AR)),
    *(_composed("trn2.48xlarge x 2", kind, Algorithm.HIER, _TWO_BY_TWO) for kind in (_AG, _RS, _AR)),
    *(_composed("trn2u.48xlarge x 4", kind, Algorithm.TWO_STEP_POD_MESH, (0, 64, 128, 192)) for kind in (_AG, _AR)),
    _composed("trn2.48xlarge x 2", _AR, Algorithm.SINGLE_CYCLE_RING, (0, 64), in_place=True),
    *(_composed("trn3pds98 x 2", kind, Algorithm.KANGARING, (0, 1, 2, 3, 16, 17, 18, 19)) for kind in (_AG, _RS)),
)
"""What the composers of the package make of groups as small as each family takes."""


def fates(
    cases: Iterable[Case] = RINGS, *, most: int | None = None, every_pair: bool = False, judged: bool = False
) -> Iterator[Fate]:
    """Yield what becomes of the mutants of these collectives.

    Args:
        most: mutants of one collective, taken at equal distances; all by default.
        every_pair: pair each wait with every signal of its semaphore.
        judged: ask the oracle of all mutants, not only of those that nobody catches.
    """
    for case in cases:
        schedule = case.make()
        every = list(mutants(schedule, every_pair=every_pair))
        step = 1 if most is None else -(-len(every) // most)
        for mutant in every[::step]:
            yield _fate(case, schedule, mutant, judged=judged)


def _fate(case: Case, schedule: Schedule, mutant: Mutant, *, judged: bool) -> Fate:
    named = schedule.name(mutant.row).split(" ", 2)[2]
    fate = Fate(case, mutant, Leaf(int(schedule.rows.leaf[mutant.row])), named, Catcher.NOBODY)
    try:
        broken = build(schedule, mutant)
    except VerifyError as error:
        if " waits for " not in str(error):
            return replace(fate, catcher=Catcher.CONSTRUCTOR, said=str(error))
        broken = build(schedule, mutant, checks=Checks.FORM)
    findings = find_order(broken)
    fate = replace(fate, imbalance=_imbalance(broken))
    if judged or not findings:
        runs = broken if "deadlock" in {finding.rule for finding in findings} else executable(broken)
        judgement = judge(runs, case.request, grain=case.grain)
        rows = ", ".join(runs.name(row) if row >= 0 else "the end" for row in judgement.rows)
        fate = replace(fate, verdict=judgement.verdict, said=rows)
    if findings:
        first = min(findings, key=lambda finding: list(CATCHERS).index(finding.rule))
        return replace(fate, catcher=CATCHERS[first.rule], rule=first.rule, said=_text(findings))
    wrong = find_data(executable(broken), case.request)
    if wrong:
        return replace(fate, catcher=Catcher.DATA, rule="data", said="\n".join(wrong))
    return fate


def _text(findings: Sequence[Finding]) -> str:
    return "\n".join(map(str, findings))


def _imbalance(broken: Schedule) -> str:
    """Return what the constructor says of the mutant with the balance check on."""
    try:
        replace(broken, checks=Checks.ALL)
    except VerifyError as error:
        return str(error)
    return ""


def table(results: Iterable[Fate]) -> str:
    """Return who caught what first, one line for each kind of edit; the last column must stay empty."""
    results = list(results)
    columns = [catcher.value for catcher in Catcher if catcher is not Catcher.NOBODY] + ["equivalent", "survivors"]
    counts = Counter((fate.mutant.edit, _column(fate)) for fate in results)
    lines = ["".join([f"{'# edit':<23}{'mutants':>9}", *(f"{name:>{len(name) + 2}}" for name in columns)])]
    for edit in Edit:
        row = [counts[edit, name] for name in columns]
        cells = "".join(f"{count:>{len(name) + 2}}" for name, count in zip(columns, row, strict=True))
        lines.append(f"{edit.value:<23}{sum(row):>9}{cells}")
    rules = Counter(fate.rule for fate in results if fate.rule)
    lines += ["", "# rules that saw them first", *(f"{rule:<23}{count:>9}" for rule, count in rules.most_common())]
    return "\n".join(lines)


def _column(fate: Fate) -> str:
    if fate.catcher is not Catcher.NOBODY:
        return fate.catcher.value
    return "equivalent" if fate.verdict is Verdict.EQUIVALENT else "survivors"


if __name__ == "__main__":
    for title, cases in (("rings", RINGS), ("other families", FAMILIES), ("composers", COMPOSERS)):
        print(f"## {title}\n{table(fates(cases))}\n")
