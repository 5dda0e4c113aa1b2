"""Where the collectives of an HLO module stand: each instruction once, starts paired with their dones.

An asynchronous collective is a start, any number of updates and a done; a generic `async-start` runs a computation
whose root is the collective. What a collective says about itself is read in `hlo`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rota.errors import UsageError
from rota.facts import Source
from rota.frontends.hlo_text import Computation, Instruction, ModuleText, operand_names, read_attributes

OPCODES_SOURCE: Final = Source("interchange", "4.2")
OPCODES: Final = frozenset(
    {
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
        "collective-reduce", "ragged-all-to-all",
    }
)  # fmt: skip
_FAMILIES: Final = ("all-", "collective-", "reduce-scatter-", "ragged-all-")  # what a newer collective would be called


@dataclass(frozen=True, slots=True)
class Site:
    """Where a collective stands: the instruction a reader sees, and the one that carries the attributes."""

    shown: Instruction
    computation: Computation
    body: Instruction
    body_computation: Computation
    opcode: str
    is_async: bool
    fault: str | None  # what is wrong with its start, updates and done
    is_broken: bool = False  # the fault leaves nothing else to read: a done without its start, a start of nothing


def sites(module: ModuleText) -> Iterator[Site]:
    """Yield every collective once, in the order of the text: starts for asynchronous ones, lost dones as faults."""
    wrapped = _wrapped_computations(module)
    for computation in module.computations.values():
        faults = _pairing_faults(computation)
        for one in computation.instructions.values():
            base, part = parts_of(one.opcode)
            fault = faults.get(one.name)
            if part in ("update", "done"):
                if fault:
                    yield Site(one, computation, one, computation, base, True, fault, is_broken=True)
            elif base == "async":
                called = _called(one)
                body = wrapped.get(called)
                if called not in module.computations:
                    fault = f"async-start calls '{called[:60]}', which is no computation of the module"
                    yield Site(one, computation, one, computation, base, True, fault, is_broken=True)
                elif body is not None:
                    yield Site(one, computation, body.root, body, parts_of(body.root.opcode)[0], True, fault)
            elif _is_collective(base) and not (computation.name in wrapped and one is computation.root):
                yield Site(one, computation, one, computation, base, part == "start", fault)


def parts_of(opcode: str) -> tuple[str, str]:
    """Return an opcode as its base and `start`, `update`, `done` or nothing."""
    base, _, last = opcode.rpartition("-")
    return (base, last) if base and last in ("start", "update", "done") else (opcode, "")


def _is_collective(base: str) -> bool:
    return base in OPCODES or base.startswith(_FAMILIES)


def _called(one: Instruction) -> str:
    """Return the computation a generic start wraps; blank when its attributes do not say."""
    with suppress(UsageError):
        return read_attributes(one).get("calls", "").removeprefix("%")
    return ""


def _wrapped_computations(module: ModuleText) -> dict[str, Computation]:
    """Return the computations that a generic start runs and whose root, what they are for, is a collective."""
    out: dict[str, Computation] = {}
    for computation in module.computations.values():
        for one in computation.instructions.values():
            if one.opcode == "async-start":
                body = module.computations.get(_called(one))
                if body is not None and _is_collective(parts_of(body.root.opcode)[0]):
                    out[body.name] = body
    return out


def _pairing_faults(computation: Computation) -> dict[str, str]:
    """Return what is wrong with starts, updates and dones, by the name of the instruction at fault."""
    origin: dict[str, str] = {}  # of a start or update: the start
    dones: Counter[str] = Counter()
    faults: dict[str, str] = {}
    for one in computation.instructions.values():
        base, part = parts_of(one.opcode)
        if not part or not (base == "async" or _is_collective(base)):
            continue
        if part == "start":
            origin[one.name] = one.name
            continue
        operands = operand_names(one)
        start = origin.get(operands[0]) if len(operands) == 1 else None
        if start is None or parts_of(computation.instructions[start].opcode)[0] != base:
            faults[one.name] = f"{one.opcode} must name one {base}-start before it, got '{one.operands.strip()[:60]}'"
        elif part == "update":
            origin[one.name] = start
        else:
            dones[start] += 1
    for start in {name for name, first in origin.items() if name == first}:
        if dones[start] != 1:
            opcode = computation.instructions[start].opcode
            faults[start] = f"{opcode} must have one {parts_of(opcode)[0]}-done, got {dones[start] or 'none'}"
    return faults
