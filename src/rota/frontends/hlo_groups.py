"""Replica groups of HLO: the three ways they are written, and which devices their numbers mean.

Knows text like `{{0,1},{2,3}}`, `[2,4]<=[8]` and `mesh['x'=4,'y'=2] {'y'}`. Whether the groups suit the shapes of an
instruction is for `hlo` to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from math import prod
from typing import Final, NamedTuple, TypeAlias, assert_never

from rota.errors import UsageError
from rota.facts import CONVENTION, Source

Groups: TypeAlias = tuple[tuple[int, ...], ...]
Pairs: TypeAlias = tuple[tuple[int, int], ...]
Factor: TypeAlias = tuple[int, int]  # how many places, and how far apart their numbers are

LARGEST_DEVICE_COUNT: Final = 1_000_000
LARGEST_DEVICE_COUNT_SOURCE: Final = Source("interchange", "4.3", CONVENTION)

_NUMBERS: Final = r"\d{1,18}(?:,\d{1,18})*+"
_LISTS: Final = re.compile(rf"\{{(?:\{{(?:{_NUMBERS})?\}}(?:,\{{(?:{_NUMBERS})?\}})*+)?\}}", re.ASCII)
_IOTA: Final = re.compile(rf"\[({_NUMBERS})\]<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?", re.ASCII)
_MESH: Final = re.compile(r"mesh\[([^\[\]]*)\](?:,?device_ids=\(([^{}]*)\))?\{([^{}]*)\}")
_MESH_AXIS: Final = re.compile(r"('[^']*'|[\w.\-]+)=(\d{1,18})", re.ASCII)
_GROUP_AXIS: Final = re.compile(r"('[^']*'|[\w.\-]+)(?::\((\d{1,18})\)(\d{1,18}))?", re.ASCII)
_DEVICE_IOTA: Final = re.compile(rf"\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?", re.ASCII)
_DEVICE_LIST: Final = re.compile(_NUMBERS, re.ASCII)


class _Part(NamedTuple):
    """A part of a mesh axis: the axis is split into `before`, `size` and the rest, and this is the middle."""

    axis: str
    before: int
    size: int


class Numbering(Enum):
    """What the numbers in a group name, and who joins them. Source: interchange §4.3, high."""

    CROSS_REPLICA = "replica ids"
    CROSS_PARTITION = "partition ids"
    CROSS_REPLICA_AND_PARTITION = "replica ids, each with all its partitions"
    FLATTENED = "replica × num_partitions + partition"


NUMBERING_SOURCE: Final = Source("interchange", "4.3")

# Opcodes that carry use_global_device_ids; with a channel id the others count partitions.
FLAGGED_OPCODES: Final = frozenset({"all-reduce", "all-gather", "reduce-scatter", "collective-reduce"})


def numbering(opcode: str, *, has_channel: bool, has_global_ids: bool) -> Numbering:
    """Return what the numbers in the groups of an instruction mean.

    Raises:
        UsageError: `use_global_device_ids` without a channel id, or on an opcode that has no such flag.

    Source:
        interchange §4.3, high; the second and third row of its table differ by the flag alone.
    """
    if has_global_ids and opcode not in FLAGGED_OPCODES:
        raise UsageError(f"{opcode} has no use_global_device_ids")
    if has_global_ids and not has_channel:
        raise UsageError("use_global_device_ids=true needs a channel_id, and there is none")
    if not has_channel:
        return Numbering.CROSS_REPLICA
    if opcode not in FLAGGED_OPCODES:
        return Numbering.CROSS_PARTITION
    return Numbering.FLATTENED if has_global_ids else Numbering.CROSS_REPLICA_AND_PARTITION


def read_groups(text: str, *, limit: int) -> Groups:
    """Return the groups that a `replica_groups` value spells, numbers as written, members in order.

    Args:
        text: the value; `{}` gives no groups.
        limit: the most numbers there may be; larger lists are refused before they are spelled out.

    Raises:
        UsageError: the text is none of the three forms, or its sizes do not agree.
    """
    flat = "".join(text.split())
    if flat.startswith("mesh["):
        return _mesh(flat, limit)
    if flat.startswith("["):
        return _iota(flat, limit)
    return read_lists(flat)


def read_lists(text: str) -> Groups:
    """Return the tuples of `{{0,1},{2,3}}`: groups, or the pairs of a permute.

    Raises:
        UsageError: the text is no list of lists of numbers.
    """
    flat = "".join(text.split())
    if not _LISTS.fullmatch(flat):
        raise UsageError(f"expected groups such as {{{{0,1}},{{2,3}}}} or [2,4]<=[8], got '{flat[:60]}'")
    inner = flat[2:-2]
    return tuple(_numbers(part) for part in inner.split("},{")) if flat != "{}" else ()


def devices_of(groups: Groups, rule: Numbering, *, replicas: int, partitions: int) -> Groups:
    """Return the groups in global device ids, which are replica × `partitions` + partition.

    No groups means one group of everybody who may join it under this numbering.

    Raises:
        UsageError: a group is empty, a number is out of range or comes twice, or there are no groups where global
            ids ask for them.
    """
    if rule is Numbering.FLATTENED and not groups:
        raise UsageError("use_global_device_ids=true needs groups, and replica_groups is empty")
    limit, unit = id_space(rule, replicas=replicas, partitions=partitions)
    groups = groups or (tuple(range(limit)),)
    _check_members(groups, limit, unit)
    replica, partition = range(replicas), range(partitions)
    match rule:
        case Numbering.FLATTENED:
            return groups
        case Numbering.CROSS_REPLICA:
            return tuple(tuple(r * partitions + p for r in group) for group in groups for p in partition)
        case Numbering.CROSS_PARTITION:
            return tuple(tuple(r * partitions + p for p in group) for r in replica for group in groups)
        case Numbering.CROSS_REPLICA_AND_PARTITION:
            return tuple(tuple(r * partitions + p for r in group for p in partition) for group in groups)
        case _:
            assert_never(rule)


def pairs_of(pairs: Groups, rule: Numbering, *, replicas: int, partitions: int) -> Pairs:
    """Return the pairs of a permute in global device ids: partition ids once in every replica, and the reverse.

    Source:
        interchange §4.3, high; a permute has no flag, so that its numbers are replica ids or partition ids.
    """
    if rule is Numbering.CROSS_PARTITION:
        bases = [replica * partitions for replica in range(replicas)]
        return tuple((base + source, base + target) for base in bases for source, target in pairs)
    return tuple(
        (source * partitions + partition, target * partitions + partition)
        for source, target in pairs
        for partition in range(partitions)
    )


def id_space(rule: Numbering, *, replicas: int, partitions: int) -> tuple[int, str]:
    """Return how many numbers there are under a numbering, and the words that say what they are."""
    match rule:
        case Numbering.FLATTENED:
            return replicas * partitions, "global device ids"
        case Numbering.CROSS_PARTITION:
            return partitions, "partition ids"
        case Numbering.CROSS_REPLICA | Numbering.CROSS_REPLICA_AND_PARTITION:
            return replicas, "replica ids"
        case _:
            assert_never(rule)


def _check_members(groups: Groups, limit: int, unit: str) -> None:
    seen: dict[int, int] = {}
    for at, group in enumerate(groups):
        if not group:
            raise UsageError(f"group {at} is empty")
        for number in group:
            if number >= limit:
                raise UsageError(f"number {number} in group {at} is out of range, expected {unit} below {limit}")
            if number in seen:
                place = "twice in group" if seen[number] == at else f"in group {seen[number]} and in group"
                raise UsageError(f"number {number} is {place} {at}")
            seen[number] = at


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _iota(text: str, limit: int) -> Groups:
    match = _IOTA.fullmatch(text)
    if match is None:
        raise UsageError(f"expected groups such as [2,4]<=[2,2,2]T(0,2,1), got '{text[:60]}'")
    shape, dims, order = _numbers(match[1]), _numbers(match[2]), _numbers(match[3])
    if len(shape) != 2:
        raise UsageError(f"expected [groups,size] before '<=', got {len(shape)} numbers in '{text[:60]}'")
    count = _product(dims, limit, text)
    if shape[0] * shape[1] != count:
        raise UsageError(f"{shape[0]} groups of {shape[1]} are not the {count} devices of '{text[:60]}'")
    return _cut(_transposed(dims, order, text), shape[1])


def _mesh(text: str, limit: int) -> Groups:
    match = _MESH.fullmatch(text)
    if match is None:
        raise UsageError(f"expected groups such as mesh['x'=4,'y'=2] {{'y'}}, got '{text[:60]}'")
    axes = _mesh_axes(match[1], text)
    count = _product(tuple(axes.values()), limit, text)
    parts = _group_parts(match[3], axes, text)
    parts_of: dict[str, list[_Part]] = {name: [] for name in axes}
    for part in parts:
        parts_of[part.axis].append(part)
    fixed: list[Factor] = []
    factors: dict[_Part, Factor] = {}
    stride = count
    for name, size in axes.items():
        stride //= size
        rest, own = _axis_factors(size, stride, sorted(parts_of[name]))
        fixed.extend(rest)
        factors.update(own)
    inner = [factors[part] for part in parts]
    ids = _walk([*fixed, *inner])
    if match[2] is not None:
        devices = _device_ids(match[2], count, text)
        ids = [devices[place] for place in ids]
    return _cut(ids, prod(size for size, _ in inner))


def _mesh_axes(text: str, whole: str) -> Mapping[str, int]:
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = _MESH_AXIS.fullmatch(part)
        if match is None or match[1].strip("'") in axes:
            raise UsageError(f"expected different axes such as 'x'=4, got '{part[:40]}' in '{whole[:60]}'")
        axes[match[1].strip("'")] = int(match[2])
    return axes


def _group_parts(text: str, axes: Mapping[str, int], whole: str) -> list[_Part]:
    """Return the parts of axes that a group varies, slowest first."""
    parts: list[_Part] = []
    for word in text.split(","):
        match = _GROUP_AXIS.fullmatch(word)
        name = match[1].strip("'") if match else ""
        if match is None or name not in axes:
            raise UsageError(f"expected axes of the mesh such as 'x' or 'x':(2)4, got '{word[:40]}' in '{whole[:60]}'")
        before, size = (int(match[2]), int(match[3])) if match[2] else (1, axes[name])
        if before < 1 or size < 1 or axes[name] % (before * size):
            raise UsageError(f"({before}){size} does not divide axis '{name}' of {axes[name]} in '{whole[:60]}'")
        parts.append(_Part(name, before, size))
    return parts


def _axis_factors(size: int, stride: int, parts: Sequence[_Part]) -> tuple[list[Factor], dict[_Part, Factor]]:
    """Split an axis of `size` places, `stride` apart, into what lies between the parts, and the parts.

    Raises:
        UsageError: two of the parts overlap.
    """
    between: list[Factor] = []
    own: dict[_Part, Factor] = {}
    done = 1
    for part in parts:
        if part.before % done:
            raise UsageError(f"the parts of axis '{part.axis}' that the groups vary overlap")
        between.append((part.before // done, size // part.before * stride))
        done = part.before * part.size
        own[part] = (part.size, size // done * stride)
    return [*between, (size // done, stride)], own


def _device_ids(text: str, count: int, whole: str) -> list[int]:
    """Return the device at each place of the mesh: a list of numbers, or `[dims]T(perm)` of 0, 1, 2 ..."""
    if match := _DEVICE_IOTA.fullmatch(text):
        dims = _numbers(match[1])
        if _product(dims, count, whole) == count:
            return _transposed(dims, _numbers(match[2]), whole)
    elif _DEVICE_LIST.fullmatch(text):
        devices = list(_numbers(text))
        if sorted(devices) == list(range(count)):
            return devices
    raise UsageError(f"expected device_ids that name each of the {count} places of the mesh once, in '{whole[:60]}'")


def _product(dims: Sequence[int], limit: int, text: str) -> int:
    count = 1
    for dim in dims:
        count *= dim
        if not 0 < count <= limit:
            raise UsageError(f"expected 1 to {limit} devices, got {'none' if not count else 'more'} in '{text[:60]}'")
    return count


def _transposed(dims: Sequence[int], order: Sequence[int], text: str) -> list[int]:
    """Return 0, 1, 2 ... of shape `dims`, transposed by `order` (none: as it is) and flattened."""
    order = order or range(len(dims))
    if sorted(order) != list(range(len(dims))):
        raise UsageError(f"expected T(...) to name each of {len(dims)} dimensions once, in '{text[:60]}'")
    strides = [1] * len(dims)
    for axis in range(len(dims) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * dims[axis]
    return _walk([(dims[axis], strides[axis]) for axis in order])


def _walk(factors: Sequence[Factor]) -> list[int]:
    """Return all sums of one multiple of each stride, the first factor slowest."""
    out = [0]
    for size, stride in factors:
        if size > 1:
            steps = range(0, size * stride, stride)
            out = [base + step for base in out for step in steps]
    return out


def _cut(ids: Sequence[int], size: int) -> Groups:
    return tuple(tuple(ids[begin : begin + size]) for begin in range(0, len(ids), size))
