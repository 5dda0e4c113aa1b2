"""What becomes of the mutants of ring collectives: who catches each, and what the oracle says of the rest.

Run as a program, it prints the table. Each mutant meets, in this order: the constructor (with the balance check off)
and its row-order proof, the data proof, the device. What those that pass all three really do, the oracle decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from device_catcher import catch
from mutants import Drop, Mutant, build, mutants
from oracle import Verdict, judge

from rota.compose.ring import compose_ring
from rota.errors import VerifyError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED, KIND_NAMES, Request
from rota.schedule.ir import Checks, Leaf, Schedule
from rota.verify import find_data

GRAIN = 32
ORDER_VERDICTS = frozenset({Verdict.RACE, Verdict.NOT_ENTERED, Verdict.NOT_FINISHED})
"""What no proof of this version sees, and no stored order shows."""


class Catcher(Enum):
    """Who notices a mutant; NOBODY leaves it to the oracle."""

    CONSTRUCTOR = "constructor"
    ROW_ORDER = "row order"
    DATA = "data"
    DEVICE = "device"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Case:
    """One ring collective with the fewest possible pieces per rank."""

    kind: EncOp
    ranks: int
    channels: int = 1
    halves: int = 1
    slots: int = 3
    passes: int = 1  # chunk groups
    in_place: bool = False

    def request(self) -> Request:
        size = self.ranks * self.channels * self.halves * self.passes * GRAIN
        op = None if self.kind is EncOp.ALLGATHER else CceType.ADD
        return Request(self.kind, Dtype.BFLOAT16, size // 2, (tuple(range(self.ranks)),), op, in_place=self.in_place)

    def schedule(self) -> Schedule:
        request = self.request()
        orders = [range(self.ranks), range(self.ranks)[::-1]]
        return compose_ring(
            orders[: self.channels],
            kind=self.kind,
            size=request.size,
            op=request.op,
            slots=self.slots,
            halves=self.halves,
            chunk=GRAIN * self.halves,
            in_place=self.in_place,
        )


@dataclass(frozen=True)
class Fate:
    """What became of one mutant.

    Attributes:
        said: what the catcher said, or the rows the oracle points at.
        named: how messages call the edited row, without its number.
        verdict: the oracle's, where nobody caught the mutant.
        imbalance: what the constructor says with the balance check on; empty if nothing, or if there is no schedule.
    """

    case: Case
    mutant: Mutant
    leaf: Leaf
    named: str
    catcher: Catcher
    said: str = ""
    verdict: Verdict | None = None
    imbalance: str = ""


CASES: Sequence[Case] = (
    *(Case(*shape) for shape in product(COMPOSED, range(2, 7), (1, 2), (1, 2))),
    *(Case(EncOp.ALLREDUCE, ranks, in_place=True) for ranks in range(2, 5)),
    *(Case(kind, 3, halves=2, slots=4, passes=2) for kind in COMPOSED),
    Case(EncOp.ALLREDUCE, 4, slots=8),
)


def fates(cases: Iterable[Case] = CASES, *, most: int | None = None, every_pair: bool = False) -> Iterator[Fate]:
    """Yield what becomes of the mutants of these collectives.

    Args:
        most: mutants of one collective, taken at equal distances; all by default.
        every_pair: pair each wait with every signal of its semaphore.
    """
    for case in cases:
        schedule, request = case.schedule(), case.request()
        every = list(mutants(schedule, every_pair=every_pair))
        step = 1 if most is None else -(-len(every) // most)
        for seed, mutant in enumerate(every[::step]):
            yield _fate(case, schedule, request, mutant, seed=seed)


def _fate(case: Case, schedule: Schedule, request: Request, mutant: Mutant, *, seed: int) -> Fate:
    named = schedule.name(mutant.row).split(" ", 2)[2]
    fate = Fate(case, mutant, Leaf(int(schedule.rows.leaf[mutant.row])), named, Catcher.NOBODY)
    try:
        broken = build(schedule, mutant)
    except VerifyError as error:
        catcher = Catcher.ROW_ORDER if " waits for " in str(error) else Catcher.CONSTRUCTOR
        return replace(fate, catcher=catcher, said=str(error))
    fate = replace(fate, imbalance=_imbalance(broken))
    findings = find_data(broken, request)
    if findings:
        return replace(fate, catcher=Catcher.DATA, said="\n".join(findings))
    said = catch(broken, request, seed)
    if said:
        return replace(fate, catcher=Catcher.DEVICE, said=said)
    judgement = judge(broken, request, grain=GRAIN)
    rows = ", ".join(broken.name(row) if row >= 0 else "the end" for row in judgement.rows)
    return replace(fate, verdict=judgement.verdict, said=rows)


def _imbalance(broken: Schedule) -> str:
    """Return what the constructor says of the mutant with the balance check on."""
    try:
        replace(broken, checks=Checks.ALL)
    except VerifyError as error:
        return str(error)
    return ""


def table(results: Iterable[Fate]) -> str:
    """Return who caught what, one line for each kind of edit, then what is left to the analysis of order."""
    results = list(results)
    columns = [catcher.value for catcher in Catcher if catcher is not Catcher.NOBODY]
    columns += [verdict.value for verdict in Verdict]
    counts = Counter((fate.mutant.drop, fate.verdict.value if fate.verdict else fate.catcher.value) for fate in results)
    lines = [
        "# who catches what; from 'deadlock' on: the oracle's verdict on mutants that nobody caught, and how many of"
    ]
    lines += ["# all those the balance check catches as soon as it is on"]
    lines += [
        "".join([f"{'# dropped':<18}{'mutants':>9}", *(f"{name:>{len(name) + 2}}" for name in columns), "  balance"])
    ]
    for drop in Drop:
        row = [counts[drop, name] for name in columns]
        unbalanced = sum(
            fate.mutant.drop is drop and fate.verdict is not None and fate.imbalance != "" for fate in results
        )
        cells = "".join(f"{count:>{len(name) + 2}}" for name, count in zip(columns, row, strict=True))
        lines.append(f"{drop.value:<18}{sum(row):>9}{cells}{unbalanced:>9}")
    return "\n".join([*lines, "", *_left(results)])


def _left(results: Sequence[Fate]) -> Iterator[str]:
    """Yield what only the analysis of order can catch, by the leaf of the edited row."""
    yield "# left to the analysis of order"
    yield f"{'# collective':<16}{'verdict':<14}{'dropped':<18}{'leaf':<22}{'mutants':>7}"
    groups = Counter(
        (fate.case.kind, fate.verdict, fate.mutant.drop, fate.leaf)
        for fate in results
        if fate.verdict in ORDER_VERDICTS
    )
    for kind, verdict, drop, leaf in product(COMPOSED, Verdict, Drop, Leaf):
        count = groups[kind, verdict, drop, leaf]
        if count:
            yield f"{KIND_NAMES[kind]:<16}{verdict.value:<14}{drop.value:<18}{leaf.name.lower():<22}{count:>7}"


if __name__ == "__main__":
    print(table(fates()))
