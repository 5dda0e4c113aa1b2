"""Settings a decision depends on, by the names of the runtime's environment variables.

Each field of `Settings` states its variable once: default, real name, legal values, who reads it, what it changes, and
where that was read. How the text of a value is read is in `variables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from rota.errors import UsageError
from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Source
from rota.select.variables import (
    ALG_NAMES,
    ALG_TYPES,
    ALL_ALG_TYPES,
    Domain,
    Kind,
    Value,
    Variable,
    nearest,
    shorten,
)
from rota.select.variables import admits as admits  # noqa: PLC0414 -- offered here with the field it reads
from rota.select.variables import format_alg_types as format_alg_types  # noqa: PLC0414
from rota.select.variables import parse_alg_types as parse_alg_types  # noqa: PLC0414
from rota.units import format_size

_T = TypeVar("_T", bound=Value)

CHANNEL_BUFFER: Final = 8 << 20
"""Bytes of a communicator's mesh channel buffer. Source: select §7.1, high."""
RING_CHUNK: Final = 2 << 20
"""Bytes of one rank's chunk in one channel and chunk group. Source: select §8, high."""
SLOTS: Final = 8
LEAST_SLOTS: Final = 3
MOST_SLOTS: Final = 32
SLOTS_SOURCE: Final = Source("select", "8, channel buffer depth", HIGH)

INTRA_RDH_BUFFER: Final = 40 << 20
"""Bytes of scratch of recursive doubling inside a node. Source: select §3.1, medium."""
INTRA_RDH_BUFFER_MARIANA: Final = 80 << 20
"""The same where the architecture is number 4. Source: select §3.1, medium."""
INTER_RDH_BUFFER: Final = 32 << 20
"""Bytes of scratch of recursive doubling between nodes. Source: select §3.1, medium."""
INTER_MESH_MAX_NODES: Final = 16
"""Most nodes of a mesh over the network. Source: select §3.1, low."""
OFF: Final = 2
"""The value of a mode variable that switches its algorithm off. Source: select §3.1, high."""
FORCED: Final = 1
"""The value that takes the algorithm before the cascade when its rule agrees. Source: select §3.1, convention."""

_TABLE: Final = Source("select", "3.1", MEDIUM)  # a default read from the instruction that stores it
_UNSURE: Final = Source("select", "3.1", LOW)  # the limit of nodes of a network mesh
_OURS: Final = Source("select", "3.1", CONVENTION)  # what the page does not give: values of a mode, a missing default
_GATE: Final = Source("select", "3.1", HIGH)  # the value that switches an algorithm off
_CHUNK: Final = Source("select", "8, ring chunk", HIGH)  # the default size of a ring chunk
_BUFFER: Final = Source("select", "7.1, channel buffer", HIGH)  # the default size of a mesh channel buffer
_PIPELINE: Final = Source("select", "6.2", CONVENTION)  # what a number of slices means
_STREAM_PACKETS: Final = Source("sdma", "7, copy packets for collectives", HIGH)  # default, most bytes of a packet
_CLASS_PACKETS: Final = Source("sdma", "7, reduce packet size", HIGH)  # five classes, of which 0 leaves one uncapped
_LNC: Final = Source("platforms", "3.7", HIGH)  # the default of each machine, and both names
_POD_MODES: Final = Source("platforms", "1, UltraServer modes", HIGH)  # numbers and words of the pod modes

_UINT_MOST: Final = (1 << 32) - 1
"""Greatest value of a variable that the runtime keeps in 32 bits. Source: select §3.1, convention."""
_SIZE_MOST: Final = 1 << 50
"""Most bytes of a buffer, which is the largest size a user can write. Source: select §3.1, convention."""
_GRANULE: Final = 32
_HALVES: Final = 2 * _GRANULE
_COPY_MOST: Final = 64 << 10

_FLAG: Final = Domain(Kind.FLAG)
_COUNT: Final = Domain(Kind.COUNT, 0, _UINT_MOST)
_MODE: Final = Domain(Kind.MODE, 0, OFF)
_BYTES: Final = Domain(Kind.BYTES, _HALVES, _SIZE_MOST)
_CORE_SIZE: Final = Domain(Kind.MODE, 1, 2, optional=True)
_CLASSES: Final = Domain(Kind.BYTES_LIST, _GRANULE, _COPY_MOST, zero=True, entries=(5, 5), optional=True)
_INTRA_RDH_DEFAULT: Final = f"{format_size(INTRA_RDH_BUFFER)}, on Trn3 {format_size(INTRA_RDH_BUFFER_MARIANA)}"
_LNC_DEFAULT: Final = "2, on Inf2 and Trn1 1"


def _variable(
    default: _T,
    name: str,
    domain: Domain,
    used: str,
    meaning: str,
    *sources: Source,
    shown: str = "",
) -> _T:
    """Return a field with its default and, as metadata, its variable; the field's own name is filled in later."""
    about = Variable(name, "", domain, default, meaning, sources, used=used, shown=shown)
    made: _T = field(default=default, metadata={"variable": about})
    return made


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may change; `settings_table` prints what each field is.

    Raises:
        UsageError: a value that would block or that no hardware takes, or two names of one thing that differ.
    """

    # fmt: off
    alg_types: int = _variable(
        ALL_ALG_TYPES, ALG_TYPES, Domain(Kind.BITMAP, 0, ALL_ALG_TYPES), "select",
        f"algorithms that may be built, inside a node and between nodes: {', '.join(ALG_NAMES)}", _OURS, shown="all")
    slots: int = _variable(
        SLOTS, "NEURON_RT_CC_CHANNEL_BUFFER_N",
        Domain(Kind.COUNT, LEAST_SLOTS, MOST_SLOTS, why="with fewer, the two halves of a chunk wait for each other"),
        "select compose", "half-chunks a ring channel buffers, which is its credit", SLOTS_SOURCE)
    chunk: int = _variable(
        RING_CHUNK, "NEURON_RT_CC_CHUNK_SIZE",
        Domain(Kind.BYTES, _HALVES, _UINT_MOST // _HALVES * _HALVES, step=_HALVES, why="halves must stay aligned"),
        "select compose", "most bytes of one rank's chunk in one ring channel and chunk group", _CHUNK)
    hier_mode: int = _variable(
        0, "NEURON_RT_DBG_HIERARCHICAL_CC", _MODE, "select",
        "hierarchy over nodes: 0 by the cascade, 1 before it where legal, 2 never", _TABLE, _OURS, _GATE)
    hier_pipeline: int = _variable(
        0, "NEURON_RT_DBG_HIER_CC_PIPELINE", _COUNT, "select",
        "slices of a pipelined hierarchy: 0 one, 1 chosen by size, else this many", _TABLE, _PIPELINE)
    kangaring_mode: int = _variable(
        0, "NEURON_RT_DBG_KANGARING_CC", _MODE, "select",
        "KangaRing: 0 by the cascade, 1 before it where legal, 2 never", _TABLE, _OURS, _GATE)
    single_cycle_mode: int = _variable(
        OFF, "NEURON_RT_DBG_SINGLE_CYCLE_RING_ALLR_CC", _MODE, "select",
        "all-reduce on a single-cycle ring: 0 by the cascade, 1 before it where legal, 2 never", _TABLE, _OURS)
    rdh_mode: int = _variable(
        1, "NEURON_RT_DBG_RDH_CC", _COUNT, "select", "recursive doubling inside a node: 0 never, else by the cascade",
        _TABLE, _OURS, _GATE)
    mesh: bool = _variable(
        True, "NEURON_RT_DBG_MESH_CC", _FLAG, "select", "meshes, and with them recursive doubling in a node", _TABLE)
    inter_mesh_max_nodes: int = _variable(
        INTER_MESH_MAX_NODES, "NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES", _COUNT, "select",
        "most nodes of a mesh over the network; 0 means no such mesh", _UNSURE)
    mesh_channel_buffer: int = _variable(
        CHANNEL_BUFFER, "NEURON_RT_DBG_MESH_CHANNEL_BUFFER_SIZE", _BYTES, "select",
        "buffer a mesh receives into; its shares bound what a mesh takes", _BUFFER)
    mesh_double_buffer: bool = _variable(
        True, "NEURON_RT_DBG_MESH_DOUBLE_BUF", _FLAG, "select",
        "two halves of the mesh buffer by turns, so that ranks need not all meet between operations", _TABLE)
    mesh_global_handshake: int = _variable(
        0, "NEURON_RT_DBG_ENFORCE_MESH_GLOBAL_HANDSHAKE", _COUNT, "compose",
        "not 0: all ranks of a mesh meet before every operation, double buffer or not", _TABLE)
    rdh_double_buffer: bool = _variable(
        False, "NEURON_RT_DBG_RDH_DOUBLE_BUF", _FLAG, "",
        "two halves of the recursive-doubling scratch by turns", _TABLE)
    rdh_global_handshake: int = _variable(
        0, "NEURON_RT_DBG_ENFORCE_RDH_GLOBAL_HANDSHAKE", _COUNT, "",
        "not 0: all ranks meet before every recursive doubling", _TABLE)
    intra_rdh_buffer: int | None = _variable(
        None, "NEURON_RT_DBG_INTRA_RDH_CHANNEL_BUFFER_SIZE", Domain(Kind.BYTES, _HALVES, _SIZE_MOST, optional=True),
        "select", "scratch of recursive doubling inside a node", _TABLE, shown=_INTRA_RDH_DEFAULT)
    inter_rdh_buffer: int = _variable(
        INTER_RDH_BUFFER, "NEURON_RT_DBG_INTER_RDH_CHANNEL_BUFFER_SIZE", _BYTES, "select",
        "scratch of recursive doubling between nodes", _TABLE)
    inter_rdh_window: int = _variable(
        0, "NEURON_RT_DBG_INTER_RDH_RECV_WINDOW_N", _COUNT, "select",
        "receives a rank grants ahead between nodes; 0 means as many tiles as the scratch holds", _TABLE, _OURS)
    force_2dev_proxy: bool = _variable(
        False, "NEURON_RT_DBG_FORCE_2DEV_PROXY", _FLAG, "", "traffic of two chips through a host proxy", _TABLE)
    hybrid_ring: bool = _variable(
        True, "NEURON_RT_DBG_HYBRID_RING_CC_EN", _FLAG, "select",
        "ring with gateways for one rank on each of 16 chips", _TABLE)
    stream_mode: int = _variable(
        1, "NEURON_RT_DBG_CC_STREAM_MODE", _COUNT, "", "how operations are spread over streams", _TABLE)
    sort_groups: bool = _variable(
        False, "NEURON_RT_DBG_CC_SORT_RG", _FLAG, "pipeline", "ranks of a group in ascending order", _TABLE)
    force_single_rank: bool = _variable(
        False, "NEURON_RT_DBG_CC_FORCE_SINGLE_RANK_RG", _FLAG, "select",
        "every group counts as one rank and copies its input; results are undefined", _TABLE)
    nop: bool = _variable(
        False, "NEURON_RT_DBG_CC_NOP", _FLAG, "select", "collectives do nothing; results are undefined", _TABLE)
    check_signatures: bool = _variable(
        True, "NEURON_RT_DBG_CC_CHECK_SIGS", _FLAG, "", "ranks compare what each thinks it runs", _TABLE)
    early_completion: bool = _variable(
        True, "NEURON_RT_DBG_EARLY_COMPLETION", _FLAG, "", "network proxy reports a transfer done early", _TABLE)
    early_posting: bool = _variable(
        True, "NEURON_RT_DBG_EARLY_POSTING", _FLAG, "", "network proxy posts transfers early", _TABLE)
    ranks_per_proxy: int = _variable(
        1, "NEURON_RT_RANKS_PER_NETWORK_PROXY", Domain(Kind.COUNT, 1, _UINT_MOST), "",
        "ranks that share a network proxy; more than 1 needs the execution barrier in hardware", _TABLE)
    dma_packet_sizes: tuple[int, ...] = _variable(
        (), "NEURON_RT_DBG_CC_DMA_PACKET_SIZE",
        Domain(Kind.BYTES_LIST, _GRANULE, _COPY_MOST, entries=(1, 16), cut=True, optional=True), "",
        "packet of a copy, one entry a stream; entries past the sixteenth are dropped", _STREAM_PACKETS, _TABLE,
        shown=format_size(_COPY_MOST))
    copy_priority_packet_sizes: tuple[int, ...] = _variable(
        (), "NEURON_RT_DBG_CC_DMA_COPY_DMA_PRIO_PKT_SIZE", _CLASSES, "",
        "packet of a copy, one entry a priority class; 0 means no cap of its own", _OURS, _CLASS_PACKETS)
    reduce_priority_packet_sizes: tuple[int, ...] = _variable(
        (), "NEURON_RT_DBG_CC_CCE_REDUCE_DMA_PRIO_PKT_SIZE", _CLASSES, "",
        "packet of a reduction, one entry a priority class; 0 means no cap of its own", _OURS, _CLASS_PACKETS)
    disable_rmv_routing: bool = _variable(
        False, "NEURON_RT_DBG_DISABLE_RMV_DST_ROUTING", _FLAG, "", "no destination routing of the RMV kind", _OURS)
    validate_groups: bool = _variable(
        False, "NEURON_RT_ENABLE_RG_VALIDATION", _FLAG, "", "replica groups are checked when a program loads", _OURS)
    compress_groups: bool = _variable(
        False, "NEURON_EXPERIMENTAL_COMPRESS_RG", _FLAG, "", "replica groups are kept in compressed form", _OURS)
    virtual_core_size: int | None = _variable(
        None, "NEURON_RT_VIRTUAL_CORE_SIZE", _CORE_SIZE, "cli",
        "physical cores in a logical core (LNC), which is a rank", _TABLE, _LNC, shown=_LNC_DEFAULT)
    logical_nc_config: int | None = _variable(
        None, "NEURON_LOGICAL_NC_CONFIG", _CORE_SIZE, "cli", "the same by its other name", _TABLE, _LNC,
        shown=_LNC_DEFAULT)
    ultraserver_mode: int = _variable(
        0, "NEURON_RT_ULTRASERVER_MODE", Domain(Kind.MODE, 0, 4, names=("UNSET", "X4", "X2H", "X2V", "X1")), "cli",
        "nodes of a pod: UNSET by their number, X4 four, X2H and X2V two, X1 no pod", _TABLE, _POD_MODES)
    root_comm_id: str | None = _variable(
        None, "NEURON_RT_ROOT_COMM_ID", Domain(Kind.TEXT, 1, 255, optional=True), "",
        "address where the ranks of a job meet; the runtime needs it to load a collective", _TABLE)
    # fmt: on

    def __post_init__(self) -> None:
        for variable, value in zip(VARIABLES, _values_of(self), strict=True):
            if value is not variable.default:
                variable.check(value)
        one, other = self.virtual_core_size, self.logical_nc_config
        if one and other and one != other:
            raise UsageError(
                f"NEURON_LOGICAL_NC_CONFIG={other}: expected {one}, the value of NEURON_RT_VIRTUAL_CORE_SIZE, which is "
                f"its other name, got {other}; set one of them"
            )

    @property
    def lnc(self) -> int | None:
        """Physical cores in a logical core by either name, or None where the machine decides."""
        return self.virtual_core_size or self.logical_nc_config


VARIABLES: Final[tuple[Variable, ...]] = tuple(
    replace(each.metadata["variable"], field=each.name) for each in fields(Settings)
)
"""Every variable, in the order of the fields."""
BY_NAME: Final[Mapping[str, Variable]] = MappingProxyType({each.name: each for each in VARIABLES})
_PREFIXES: Final = ("NEURON_RT_DBG_", "NEURON_RT_", "NEURON_")
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {each.name.removeprefix(prefix): each.name for each in VARIABLES for prefix in ("", *_PREFIXES)}
)
_ALIASES: Final = frozenset({"virtual_core_size", "logical_nc_config"})
_values_of = attrgetter(*(each.field for each in VARIABLES))


def intra_rdh_bytes(settings: Settings, arch: str) -> int:
    """Return the scratch of recursive doubling inside a node: as set, or the default of the architecture."""
    if settings.intra_rdh_buffer is not None:
        return settings.intra_rdh_buffer
    return INTRA_RDH_BUFFER_MARIANA if arch == "mariana" else INTRA_RDH_BUFFER


def find_variable(name: str) -> Variable:
    """Return the variable of a real name, or of its part behind NEURON_RT_DBG_, NEURON_RT_ or NEURON_, in any case.

    Raises:
        UsageError: no such variable; the message has the nearest.
    """
    given = name.strip().upper()
    if given in _NAMES:
        return BY_NAME[_NAMES[given]]
    near = _NAMES[nearest(given, tuple(_NAMES))]
    raise UsageError(
        f"setting {shorten(name.strip()) or 'without a name'}: expected the name of an environment variable that rota "
        f"knows, got another; the nearest is {near}"
    )


def parse_settings(assignments: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Return the settings that `NAME=VALUE` assignments make, over those of an environment.

    Args:
        assignments: names as `find_variable` takes them; each at most once.
        environment: real names only are read, the rest is ignored; an empty value counts as not set.

    Raises:
        UsageError: no assignment, an unknown name, a bad value, or a variable given twice.
    """
    given: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(
                f"setting {shorten(assignment)}: expected NAME=VALUE, got no '='; for example {ALG_TYPES}=^MESH_ALG"
            )
        variable = find_variable(name)
        if variable.field in given:
            raise UsageError(f"{variable.name}: expected one value, got a second, {shorten(text)}; remove one of them")
        given[variable.field] = variable.parse(text)
    overridden = set(given) | (_ALIASES if _ALIASES & given.keys() else set())
    for variable in VARIABLES:
        text = environment.get(variable.name, "")
        if text.strip() and variable.field not in overridden:
            given[variable.field] = variable.parse(text)
    return Settings(**given)


def format_settings(settings: Settings) -> dict[str, str | int]:
    """Return the value of every variable by its real name; `NAME=value` of each parses to equal settings."""
    return {each.name: each.format(getattr(settings, each.field)) for each in VARIABLES}


def changed(settings: Settings) -> dict[str, str | int]:
    """Return the values that differ from their defaults, by real name."""
    every = format_settings(settings)
    return {each.name: every[each.name] for each in VARIABLES if getattr(settings, each.field) != each.default}


def describe(settings: Settings | None = None) -> list[dict[str, object]]:
    """Return every variable as a JSON document would hold it, with its value in some settings."""
    values = format_settings(settings or Settings())
    return [
        {
            "name": each.name,
            "field": each.field,
            "kind": each.kind.value,
            "value": values[each.name],
            "default": each.default_text,
            "low": each.low,
            "high": each.high,
            "legal": each.domain.legal,
            "meaning": each.meaning,
            "used": each.used.split(),
            "sources": [
                {"page": one.page, "section": one.section, "confidence": one.confidence.value} for one in each.sources
            ],
        }
        for each in VARIABLES
    ]


def settings_table() -> Iterator[str]:
    """Yield the variables as fixed-width text, one a line: name, default, source, legal values, what it does."""
    head = ("# variable", "default", "read by", "source", "legal", "what it does")
    rows = [
        (each.name, each.default_text, each.used or "-", str(each.source), each.domain.legal, each.meaning)
        for each in VARIABLES
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
