"""Whether a program may use a replica group, a partition or a list of pairs, why not, and what to use instead.

Nothing here raises for a group that is written correctly: illegal is a value. Each answer carries the words of the
runtime's own message where one is known, so that a user who met it finds the reason.

Source of the rules: topology §4 and §5; platforms §5 for what is documented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rota.errors import UsageError
from rota.facts import CONVENTION, HIGH, LOW, Source
from rota.machine.geometry import Geometry, geometry
from rota.machine.group import FLAT_FAMILIES, Decision, Outcome, decide, verdict
from rota.machine.layouts import box_doubts, documented_sizes, is_documented, nearest, node_groups, splits
from rota.machine.pairs import Pair, chain_ends, check_distinct, components, ring_of
from rota.machine.partition import format_ranks
from rota.machine.platform import Platform, Shape
from rota.machine.topology import link_class, one_die_turns

UNSUPPORTED_TOPOLOGY: Final = (
    "Unsupported topology. Supported number of Neuron Cores is 1, 2, 8, 16 or a multiple of 32"
)
FEWER_CHANNELS: Final = "global comm ({parent}) has less channels than this replica group ({group})"
NO_ALGORITHM: Final = "failed (2) to init a collective algorithm ... reason: no_hier no_mesh"
NOT_A_MEMBER: Final = "replica groups (0/1) does not have myself {rank}"
MESH_UNTESTED: Final = "Mesh algo untested with {ranks} ranks on this instance type"
NO_BOX_BUILDER: Final = "Unsupported rank ({ranks}) for building"
POD_MESH: Final = "node_n == 1 || (rank_n == 4 && enable_pod)"
PHRASES_SOURCE: Final = Source("select", "10, and public reports", LOW)
"""Words of the runtime's messages, to search for."""

MESH_RANKS: Final = frozenset({2, 4, 8, 16, 32, 64, 128})
"""Ranks of a group on one node for which a mesh is tested. Source: select §4, convention."""

NETWORK_MESH_NODES: Final = 16
"""Most nodes of a mesh over the network with one rank on each. Source: select §3.1, low."""

_POD_MESH_RANKS: Final = 4  # Source: select §4, high
_RULES: Final = Source("topology", "4", HIGH)
_PAIRS: Final = Source("compose", "9", HIGH)
_ACROSS: Final = Source("topology", "4", CONVENTION)


@dataclass(frozen=True, slots=True)
class Legality:
    """The answer for one group, or for one ring of pairs."""

    legal: bool
    reason: str
    runtime_message: str | None  # words of the runtime's message, also where the group is legal with a warning
    warnings: tuple[str, ...]
    channels: int  # ring channels; 0 where there is no flat ring, or none is needed
    suggestions: tuple[tuple[int, ...], ...]  # legal groups: the same size, smaller, larger
    ranks: tuple[int, ...]  # in the caller's order
    source: Source
    notes: tuple[str, ...] = ()


def check_group(platform: Platform, ranks: Sequence[int], *, any_group: bool = False) -> Legality:
    """Return whether a group is legal, with the first test it fails, and what lies near it.

    Args:
        platform: the machine.
        ranks: the members, in any order.
        any_group: call a group legal that cannot be wired, with its reason as a warning.

    Source: topology §4 (order of the tests, suggestions).
    """
    try:
        at = geometry(platform, ranks)
    except UsageError as error:
        return _malformed(platform, ranks, str(error))
    made = decide(platform, at)
    reason = verdict(platform, at, made).reason
    if made.outcome is Outcome.REFUSED:
        allowed = (f"{reason}; it is taken as it is, because any group is allowed",) if any_group else ()
        words = UNSUPPORTED_TOPOLOGY if _wrong_count(platform, at) else NO_ALGORITHM
        near, notes = nearest(platform, at.ranks).groups, _layout_notes(platform, at)
        return Legality(any_group, reason, words, allowed, 0, near, at.ranks, made.source, notes)
    warnings, message = _warnings(platform, at, made)
    known = made.outcome is Outcome.LOCAL or bool(is_documented(platform, at.ranks, shape=at))
    return Legality(
        legal=True,
        reason=reason,
        runtime_message=message,
        warnings=warnings,
        channels=len(made.channels),
        suggestions=() if known else nearest(platform, at.ranks).groups,
        ranks=at.ranks,
        source=made.source,
        notes=(*(() if known else _layout_notes(platform, at)), *_node_notes(platform, at, made)),
    )


def check_groups(
    platform: Platform, groups: Sequence[Sequence[int]], *, any_group: bool = False
) -> tuple[Legality, ...]:
    """Return the answers for the groups of one partition.

    Each note stands once. Advice on the whole partition is in the notes of the first group: the documented layouts with
    groups of this size, when a group, or a group across the given ones, is illegal or undocumented.

    Source: topology §4 (rule 4).
    """
    checked = [check_group(platform, group, any_group=any_group) for group in groups]
    owner: dict[int, int] = {}
    for index, one in enumerate(checked):
        twice = next((rank for rank in one.ranks if owner.setdefault(rank, index) != index), None)
        if twice is not None:
            reason = f"groups: rank {twice} is in group {owner[twice]} and in {index}, name each rank once"
            checked[index] = replace(one, legal=False, reason=reason, channels=0, source=_RULES)
    said: set[str] = set()
    answers: list[Legality] = []
    for one in checked:
        answers.append(replace(one, notes=tuple(note for note in one.notes if note not in said)))
        said.update(one.notes)
    more = [note for note in _partition_notes(platform, answers) if note not in said]
    if more:
        answers[0] = replace(answers[0], notes=(*answers[0].notes, *more))
    return tuple(answers)


def check_pairs(platform: Platform, pairs: Sequence[Pair], *, any_group: bool = False) -> tuple[Legality, ...]:
    """Return the answers for source-target pairs, one for each part that hangs together.

    A part is legal if its pairs form a ring and each of them stays on a chip or uses a direct link. Ranks of the
    machine that no pair names stay idle; the notes of the first part say which.

    Args:
        platform: the machine.
        pairs: (source, target) pairs.
        any_group: call a part legal that is none of this, with its reason as a warning.

    Raises:
        UsageError: a rank is the source or the target of two pairs.

    Source: compose §9, high; platforms §5.
    """
    check_distinct(pairs)
    answers = [_check_component(platform, component, any_group=any_group) for component in components(pairs)]
    named = {rank for pair in pairs for rank in pair}
    idle = [rank for rank in range(platform.ranks) if rank not in named]
    if answers and idle:
        words = NOT_A_MEMBER.format(rank=idle[0])
        ranks = f"rank {idle[0]} is" if len(idle) == 1 else f"ranks {format_ranks(idle)} are"
        note = f'{ranks} in no pair and idle: a program that runs there as well is told "{words}"'
        first = answers[0]
        answers[0] = replace(first, runtime_message=first.runtime_message or words, notes=(*first.notes, note))
    return tuple(answers)


# --- groups -----------------------------------------------------------------------------------------------------------


def _malformed(platform: Platform, ranks: Sequence[int], reason: str) -> Legality:
    inside = sorted({int(rank) for rank in ranks if 0 <= rank < platform.ranks})
    near = nearest(platform, inside).groups if inside else ()
    return Legality(False, reason, None, (), 0, near, tuple(int(rank) for rank in ranks), _RULES)


def _wrong_count(platform: Platform, at: Geometry) -> bool:
    """Return whether Trn1 refuses a number of ranks. Source: platforms §5, high (4 adjacent ones since 2.21)."""
    listed = at.rank_n == 1 or at.rank_n in documented_sizes(platform, 1) or at.rank_n % platform.node_ranks == 0
    return platform.family in FLAT_FAMILIES and not listed


def _warnings(platform: Platform, at: Geometry, made: Decision) -> tuple[tuple[str, ...], str | None]:
    """Return the warnings of a legal group, and the words of the runtime's message for the first."""
    if made.outcome is Outcome.LOCAL:
        return (), None
    count = len(made.channels)
    wired = f"wired with {count} ring channel{'' if count == 1 else 's'}"
    if made.outcome is Outcome.HIER:
        wired = "run as HIER"
    if platform.shape is Shape.SWITCH:
        doubts = tuple(f"{doubt}; it is {wired}" for doubt in box_doubts(platform, at))
        return doubts, NO_BOX_BUILDER.format(ranks=at.local_rack_rank_n) if doubts else None
    warnings: list[str] = []
    message = None
    documented = is_documented(platform, at.ranks, shape=at)
    if not documented:
        message, more = _undocumented_message(platform, at, count)
        warnings.append(f"{documented.reason}; it is {wired}{more}")
    turns = one_die_turns(platform, made.cycle)
    if turns:
        chips = f"chip{'' if len(turns) == 1 else 's'} {format_ranks(sorted(turns))}"
        warnings.append(f"its rings turn on one die of {chips}: KangaRing cannot own its ports there")
    return tuple(warnings), message


def _undocumented_message(platform: Platform, at: Geometry, count: int) -> tuple[str | None, str]:
    """Return the runtime's words for a group that is wired but not documented, and what to say of it."""
    if len(at.chips) > 1 and at.lanes and not at.whole_chips and at.node_n == 1:
        parent = _parent(platform, at)
        of_parent = len(decide(platform, geometry(platform, parent)).channels)
        message = FEWER_CHANNELS.format(parent=of_parent, group=count)
        both = f"by this model the ranks around it, {format_ranks(parent)}, get {of_parent} and it gets {count}"
        return message, f'; the runtime may refuse it with "{message}": {both}'
    if platform.family in FLAT_FAMILIES:
        return UNSUPPORTED_TOPOLOGY, f'; the runtime may refuse it with "{UNSUPPORTED_TOPOLOGY}"'
    if at.node_n == 1 and at.rank_n not in MESH_RANKS and platform.port_lane is not None:
        message = MESH_UNTESTED.format(ranks=at.rank_n)
        return message, f'; the runtime may say "{message}"'
    return None, ""


def _parent(platform: Platform, at: Geometry) -> tuple[int, ...]:
    """Return the smallest documented group that holds all members and more, or the node. Source: convention."""
    first = platform.node_ranks * at.nodes[0]
    members = frozenset(at.local_ranks)
    whole = tuple(range(platform.node_ranks))
    around = (group for group in node_groups(platform) if len(group) > at.rank_n and members.issubset(group))
    return tuple(first + rank for rank in next(around, whole))


def _layout_notes(platform: Platform, at: Geometry) -> tuple[str, ...]:
    if at.node_n > 1 or at.rank_n == platform.node_ranks:
        return ()
    return tuple(str(split) for split in splits(platform, at.rank_n))


def _node_notes(platform: Platform, at: Geometry, made: Decision) -> tuple[str, ...]:
    """Say what a group over several nodes runs as, and what it does not run."""
    if at.node_n == 1 or platform.shape is Shape.SWITCH:
        return ()
    notes = []
    if made.outcome is Outcome.HIER:
        parts = (
            f"{at.node_n} groups of {at.local_rank_n} on the nodes and {at.local_rank_n} groups of {at.node_n} across"
        )
        notes.append(f"it runs as HIER: {parts}")
    pod_mesh = at.rank_n == _POD_MESH_RANKS and at.enable_pod
    if not pod_mesh and not (at.local_rank_n == 1 and at.node_n <= NETWORK_MESH_NODES):
        notes.append(f'all-to-all is refused on it: "{POD_MESH}"')
    return tuple(notes)


def _partition_notes(platform: Platform, checked: Sequence[Legality]) -> tuple[str, ...]:
    """Return advice on groups that cut a node into equal parts."""
    size = len(checked[0].ranks)
    members = sorted(rank for one in checked for rank in one.ranks)
    if (
        len(checked) < 2
        or any(len(one.ranks) != size for one in checked)
        or members != list(range(platform.node_ranks))
    ):
        return ()
    layouts = tuple(str(split) for split in splits(platform, size))
    across = [check_group(platform, group) for group in zip(*(one.ranks for one in checked), strict=True)]
    bad = next((one for one in across if not one.legal), None)
    if bad is None:
        return layouts if any(one.suggestions for one in (*checked, *across)) else ()
    return (f"the groups across these, such as {format_ranks(bad.ranks)}, are not legal: {bad.reason}", *layouts)


# --- pairs ------------------------------------------------------------------------------------------------------------


def _check_component(platform: Platform, component: Sequence[Pair], *, any_group: bool) -> Legality:
    ranks = tuple(dict.fromkeys(rank for pair in component for rank in pair))
    fault = _range_fault(platform, ranks)
    ring = ring_of(component)
    if fault is None and ring is None:
        fault = _open_chain(component)
    if fault is None and ring is not None:
        fault = _missing_link(platform, ring)
    if fault is None:
        assert ring is not None
        what = "a copy of a rank to itself" if len(ring) == 1 else f"a ring of {len(ring)} ranks over direct links"
        return Legality(True, f"the pairs form {what}", None, (), min(1, len(ring) - 1), (), ring, _PAIRS)
    if not any_group:
        return Legality(False, fault, None, (), 0, (), ring or ranks, _PAIRS)
    warning = f"{fault}; they are taken as they are, because any group is allowed"
    return Legality(True, fault, None, (warning,), 0, (), ring or ranks, _PAIRS)


def _range_fault(platform: Platform, ranks: Sequence[int]) -> str | None:
    outside = next((rank for rank in ranks if not 0 <= rank < platform.ranks), None)
    if outside is None:
        return None
    return f"pairs: rank {outside} is not on {platform.name}, expected 0 to {platform.ranks - 1}"


def _open_chain(component: Sequence[Pair]) -> str:
    starts, ends = chain_ends(component)
    chain = f"the pairs are an open chain from rank {starts[0]} to rank {ends[0]}, and a permute takes rings only"
    return f"{chain}; add {ends[0]}>{starts[0]} to close it"


def _missing_link(platform: Platform, ring: Sequence[int]) -> str | None:
    for i, rank in enumerate(ring):
        other = ring[(i + 1) % len(ring)]
        one, next_one = (each // platform.ranks_per_chip for each in (rank, other))
        if one != next_one and link_class(platform, one, next_one) is None:
            return f"the pair {rank}>{other} joins chips {one} and {next_one}, which have no direct link"
    return None
