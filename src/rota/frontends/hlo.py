"""The collectives of an HLO module: what each moves, how it reduces, and which devices meet.

The reader checks what XLA's own text parser leaves open (groups that overlap, shapes that do not fit them) and says so
per instruction; what the machine can run is for later stages. Cutting the text is in `hlo_text`, finding the
instructions in `hlo_sites`, the groups in `hlo_groups`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rota.errors import UsageError
from rota.facts import CONVENTION, Source
from rota.frontends.hlo_groups import (
    LARGEST_DEVICE_COUNT,
    Groups,
    Numbering,
    Pairs,
    devices_of,
    id_space,
    numbering,
    pairs_of,
    read_groups,
    read_lists,
)
from rota.frontends.hlo_sites import OPCODES, Site, sites
from rota.frontends.hlo_text import (
    Array,
    Instruction,
    ModuleText,
    is_hlo,
    operand_arrays,
    operand_names,
    read_arrays,
    read_attributes,
    read_module,
    tuple_members,
)

__all__ = ["HloCollective", "HloModule", "is_hlo", "parse_hlo"]

_WHOLE: Final = re.compile(r"\d{1,18}", re.ASCII)
_CHECKED: Final = frozenset({"all-reduce", "all-gather", "reduce-scatter"})  # read in full: shapes fit the groups
_REDUCING: Final = frozenset({"all-reduce", "reduce-scatter", "collective-reduce"})
_ONE_ARRAY: Final = frozenset({"collective-broadcast", "collective-reduce", "ragged-all-to-all"})  # the rest steers

REDUCTIONS_SOURCE: Final = Source("interchange", "4.1")
REDUCTIONS: Final = frozenset({"add", "multiply", "minimum", "maximum", "and", "or", "xor"})

INFERRED_COUNT_SOURCE: Final = Source("interchange", "4.1", CONVENTION)

_Spelled: TypeAlias = dict[tuple[str, int], Groups]
_Expanded: TypeAlias = dict[tuple[str, Numbering], Groups]


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective instruction; when it is refused, its other fields hold what could still be read.

    `groups` are global device ids (replica × num_partitions + partition), members in their order; a
    collective-permute has none, but `pairs` of source and target. `operand_bytes` and `operand_elements` are per
    device, summed over the operands: one shard of an all-gather, the whole of a reduce-scatter. `notes` are sentences
    about what is legal but unusual.
    """

    line: int  # of the file, from 1; of the start when asynchronous
    name: str
    opcode: str  # without -start
    computation: str
    element_type: str  # HLO's name, for example bf16
    operand_bytes: int
    operand_elements: int
    reduction: str | None  # the root opcode of the reduction computation
    groups: Groups
    implicit_groups: bool  # none were written: everybody
    is_async: bool
    dimensions: tuple[int, ...]
    channel_id: int | None
    refused: str | None  # why this instruction cannot be used, as one sentence
    notes: tuple[str, ...] = ()
    pairs: Pairs = ()


@dataclass(frozen=True, slots=True)
class HloModule:
    """A module's collectives in the order of the text, and the devices it is for.

    When the header states neither count, `counts_stated` is false and the count is one more than the largest number
    in any group, or 1.
    """

    name: str
    replica_count: int
    num_partitions: int
    collectives: tuple[HloCollective, ...]
    counts_stated: bool = True

    @property
    def devices(self) -> int:
        """Devices the module runs on."""
        return self.replica_count * self.num_partitions


@dataclass(slots=True)
class _Draft:
    """What has been read of one site so far."""

    site: Site
    operands: tuple[Array, ...] = ()
    reduction: str | None = None
    dimensions: tuple[int, ...] = ()
    channel_id: int | None = None
    rule: Numbering = Numbering.CROSS_REPLICA
    spelling: str = ""
    numbers: Groups = ()
    groups: Groups = ()
    pairs: Pairs = ()
    is_implicit: bool = False
    refused: str | None = None
    notes: list[str] = field(default_factory=list)


def parse_hlo(text: str, *, where: str = "HLO") -> HloModule:
    """Return the collectives of an HLO module in the text form that XLA prints.

    Each textual instruction counts once, in whatever computation it stands; a start, its updates and its done count
    once, at the start. A module without collectives has an empty tuple.

    Args:
        text: the module.
        where: the name that messages give to the text, for example its file.

    Raises:
        UsageError: the text is no HLO module, is broken in its structure, or is for more than a million devices.
            An instruction that is wrong by itself does not raise; its `refused` says why.

    Source:
        interchange §4, high.
    """
    module = read_module(text, where=where)
    counts = _stated_counts(module, where)
    spelled: _Spelled = {}
    drafts = [_Draft(site) for site in sites(module)]
    for draft in drafts:
        with _refusing(draft):
            _read(draft, module, spelled, counts)
    replicas, partitions = counts or _inferred_counts(drafts)
    expanded: _Expanded = {}
    for draft in drafts:
        if draft.refused is None:
            with _refusing(draft):
                _meet(draft, expanded, replicas, partitions)
    return HloModule(module.name, replicas, partitions, tuple(map(_collective, drafts)), counts is not None)


@contextmanager
def _refusing(draft: _Draft) -> Iterator[None]:
    """Keep an error in reading one instruction as its refusal, so that the others are still read."""
    try:
        yield
    except UsageError as error:
        draft.refused = str(error)


def _stated_counts(module: ModuleText, where: str) -> tuple[int, int] | None:
    """Return replica_count and num_partitions (1 where one is not stated), or nothing when neither is."""
    words = [module.attributes.get(name) for name in ("replica_count", "num_partitions")]
    for name, word in zip(("replica_count", "num_partitions"), words, strict=True):
        if word is not None and _whole(word) is None:
            raise UsageError(f"{where}: expected a whole number above 0 for {name}, got '{word[:40]}'")
    if words == [None, None]:
        return None
    replicas, partitions = (_whole(word or "1") or 1 for word in words)
    if replicas * partitions > LARGEST_DEVICE_COUNT:
        raise UsageError(
            f"{where}: expected a module for at most {LARGEST_DEVICE_COUNT} devices, got replica_count={replicas} and "
            f"num_partitions={partitions}"
        )
    return replicas, partitions


def _inferred_counts(drafts: list[_Draft]) -> tuple[int, int]:
    """Return the counts that make room for every number the groups name, when the header states none.

    Replica ids count replicas and partition ids partitions; global ids go with whichever is used, partitions when
    neither is. A module that names both by number leaves both at 1.

    Source:
        `INFERRED_COUNT_SOURCE`: XLA prints no count that is 1 and checks no number against a count of 1.
    """
    largest = dict.fromkeys(Numbering, 0)
    for draft in drafts:
        if draft.refused is None and draft.numbers:
            largest[draft.rule] = max(largest[draft.rule], 1 + max(map(max, filter(None, draft.numbers)), default=0))
    replicas = max(largest[Numbering.CROSS_REPLICA], largest[Numbering.CROSS_REPLICA_AND_PARTITION])
    partitions = largest[Numbering.CROSS_PARTITION]
    flattened = largest[Numbering.FLATTENED]
    if replicas and partitions:
        return 1, 1
    return (max(replicas, flattened), 1) if replicas else (1, max(partitions, flattened, 1))


def _read(draft: _Draft, module: ModuleText, spelled: _Spelled, counts: tuple[int, int] | None) -> None:
    """Read everything that does not depend on how many devices there are."""
    site = draft.site
    if site.is_broken:
        raise UsageError(site.fault or "")
    if site.opcode not in OPCODES:
        raise UsageError(
            f"{site.opcode} is no collective this reader knows, expected one of {', '.join(sorted(OPCODES))}"
        )
    attributes = read_attributes(site.body)
    operands = operand_arrays(site.body, site.body_computation)
    draft.operands = operands[:1] if site.opcode in _ONE_ARRAY else operands
    if "channel_id" in attributes:
        draft.channel_id = _whole(attributes["channel_id"])
        if draft.channel_id is None:
            raise UsageError(f"expected a whole number above 0 for channel_id, got '{attributes['channel_id'][:40]}'")
    if "dimensions" in attributes:
        draft.dimensions = _dimensions(attributes["dimensions"])
    if site.opcode in _REDUCING:
        if "to_apply" not in attributes:
            raise UsageError("it has no to_apply, so its reduction is unknown")
        draft.reduction = _reduction(attributes["to_apply"], module)
    draft.rule = numbering(
        site.opcode, has_channel=draft.channel_id is not None, has_global_ids=_flag(attributes, "use_global_device_ids")
    )
    _read_numbers(draft, attributes, spelled, counts)
    if site.opcode in _CHECKED and len({one.element for one in draft.operands}) > 1:
        kinds = ", ".join(sorted({one.element for one in draft.operands}))
        raise UsageError(f"its operands mix element types: {kinds}")
    if site.fault:
        raise UsageError(site.fault)


def _read_numbers(
    draft: _Draft, attributes: Mapping[str, str], spelled: _Spelled, counts: tuple[int, int] | None
) -> None:
    """Read the groups, or the pairs of a permute, as the numbers that are written."""
    if draft.site.opcode == "collective-permute":
        if "source_target_pairs" not in attributes:
            raise UsageError("collective-permute has no source_target_pairs")
        draft.numbers = read_lists(attributes["source_target_pairs"])
        return
    limit = LARGEST_DEVICE_COUNT
    if counts is not None:
        limit, _ = id_space(draft.rule, replicas=counts[0], partitions=counts[1])
    draft.spelling = attributes.get("replica_groups", "{}")
    if (draft.spelling, limit) not in spelled:
        spelled[draft.spelling, limit] = read_groups(draft.spelling, limit=limit)
    draft.numbers = spelled[draft.spelling, limit]
    draft.is_implicit = not draft.numbers
    largest = max((max(group, default=0) for group in draft.numbers), default=0)
    if counts is None and largest >= LARGEST_DEVICE_COUNT:
        raise UsageError(f"number {largest} in its groups is out of range, expected below {LARGEST_DEVICE_COUNT}")


def _meet(draft: _Draft, expanded: _Expanded, replicas: int, partitions: int) -> None:
    """Turn the numbers into devices, and check that the shapes fit the groups."""
    site = draft.site
    if site.opcode == "collective-permute":
        limit, unit = id_space(draft.rule, replicas=replicas, partitions=partitions)
        _check_pairs(draft.numbers, limit, unit)
        draft.pairs = pairs_of(draft.numbers, draft.rule, replicas=replicas, partitions=partitions)
        return
    key = (draft.spelling, draft.rule)
    if key not in expanded:
        expanded[key] = devices_of(draft.numbers, draft.rule, replicas=replicas, partitions=partitions)
    draft.groups = expanded[key]
    idle = replicas * partitions - sum(map(len, draft.groups))
    if idle:
        draft.notes.append(f"{idle} of the {replicas * partitions} devices of the module are in no group")
    if site.opcode in _CHECKED:
        _check_shapes(draft, _results(site.body, site.opcode, draft.operands))


def _check_pairs(pairs: Groups, limit: int, unit: str) -> None:
    for pair in pairs:
        if len(pair) != 2:
            raise UsageError(f"expected pairs of a source and a target, got {len(pair)} numbers")
        if max(pair) >= limit:
            raise UsageError(f"pair {pair[0]} to {pair[1]} is out of range, expected {unit} below {limit}")
    for what, numbers in (("source", [pair[0] for pair in pairs]), ("target", [pair[1] for pair in pairs])):
        number, times = Counter(numbers).most_common(1)[0] if numbers else (0, 0)
        if times > 1:
            raise UsageError(f"number {number} is the {what} of {times} pairs, expected one")


def _results(body: Instruction, opcode: str, operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the arrays an instruction gives: of a start with a tuple (operands, results, ...), the results."""
    if opcode in (body.opcode, "all-reduce"):
        return read_arrays(body.shape)
    members = tuple_members(body.shape)
    if len(members) < 2 or read_arrays(members[0]) != operands:
        raise UsageError(f"expected {body.opcode} to give a tuple of its operands, its results and what else it needs")
    return read_arrays(members[1])


def _check_shapes(draft: _Draft, results: tuple[Array, ...]) -> None:
    """Check the results against the operands and the group size."""
    opcode, operands = draft.site.opcode, draft.operands
    if opcode == "all-reduce":
        expected = operands
    else:
        sizes = sorted({len(group) for group in draft.groups})
        if len(sizes) > 1:
            raise UsageError(f"{opcode} needs groups of one size, got {' and '.join(map(str, sizes[:2]))}")
        if len(draft.dimensions) != 1:
            raise UsageError(f"{opcode} needs one dimension in dimensions={{}}, got {len(draft.dimensions)}")
        expected = tuple(_resized(one, draft.dimensions[0], sizes[0], opcode) for one in operands)
    if results != expected:
        got, want = (", ".join(map(str, arrays[:4])) for arrays in (results, expected))
        size = len(draft.groups[0])
        raise UsageError(f"{opcode} over groups of {size} gives {got or 'nothing'}, expected {want} from its operands")


def _resized(one: Array, axis: int, size: int, opcode: str) -> Array:
    """Return an operand grown (all-gather) or divided (reduce-scatter) by the group size along one dimension."""
    if axis >= len(one.dims):
        raise UsageError(f"dimension {axis} is not in {one}")
    dim = one.dims[axis]
    if opcode == "reduce-scatter" and dim % size:
        raise UsageError(f"dimension {axis} of {one} does not divide by the group size {size}")
    own = dim // size if opcode == "reduce-scatter" else dim * size
    return Array(one.element, (*one.dims[:axis], own, *one.dims[axis + 1 :]))


def _reduction(name: str, module: ModuleText) -> str:
    """Return the root opcode of a reduction computation, whatever the computation is called."""
    computation = module.computations.get(name.removeprefix("%"))
    if computation is None:
        raise UsageError(f"its reduction '{name[:60]}' is no computation of the module")
    root = computation.root
    parameters = {one.name for one in computation.instructions.values() if one.opcode == "parameter"}
    if root.opcode not in REDUCTIONS:
        known = ", ".join(sorted(REDUCTIONS))
        raise UsageError(f"its reduction {computation.name} ends in {root.opcode}, expected one of {known}")
    if len(parameters) != 2 or set(operand_names(root)) != parameters:
        raise UsageError(f"its reduction {computation.name} does not combine its two parameters and nothing else")
    return root.opcode


def _whole(word: str) -> int | None:
    """Return a whole number above 0, or nothing when the word is none."""
    number = int(word) if _WHOLE.fullmatch(word) else 0
    return number or None


def _dimensions(text: str) -> tuple[int, ...]:
    lists = read_lists(f"{{{text}}}")
    return lists[0] if lists else ()


def _flag(attributes: Mapping[str, str], name: str) -> bool:
    word = attributes.get(name, "false")
    if word not in ("true", "false"):
        raise UsageError(f"expected true or false for {name}, got '{word[:40]}'")
    return word == "true"


def _collective(draft: _Draft) -> HloCollective:
    site = draft.site
    return HloCollective(
        line=site.shown.line,
        name=site.shown.name,
        opcode=site.opcode,
        computation=site.computation.name,
        element_type=draft.operands[0].element if draft.operands else "",
        operand_bytes=sum(one.size for one in draft.operands),
        operand_elements=sum(one.count for one in draft.operands),
        reduction=draft.reduction,
        groups=draft.groups,
        implicit_groups=draft.is_implicit,
        is_async=site.is_async,
        dimensions=draft.dimensions,
        channel_id=draft.channel_id,
        refused=draft.refused,
        notes=tuple(draft.notes),
        pairs=draft.pairs,
    )
