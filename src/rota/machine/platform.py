"""Machines as data: what a machine file means, checked, for one logical core size and one number of instances.

What follows from the numbers lives elsewhere: distances, cables and racks in `topology`, rings in `cycles` and `rings`,
replica groups in `group`. Reading the text is `machine_file`'s. No number of a machine is written here; each stands in
`platforms/*.toml` beside its source.

A *node* is what the runtime calls a node: an instance, or a server of a switch machine. Chips and ranks are numbered
through all nodes: chip = node * chips of a node + chip in node, rank = chip * ranks of a chip + lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import Source
from rota.isa.enums import PodType
from rota.machine.machine_file import (
    PODS,
    S_ENGINES,
    Cube,
    Pods,
    Table,
    builtin_names,
    read_cube,
    read_machine,
    read_pods,
    read_racks,
)

PARAMETERS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType({
    # name                               unit        largest
    "link_bytes_per_second":            ("B/s",      10**15),
    "link_efficiency_permille":         ("permille", 1000),
    "pod_link_bytes_per_second":        ("B/s",      10**15),
    "server_link_bytes_per_second":     ("B/s",      10**15),
    "rack_link_bytes_per_second":       ("B/s",      10**15),
    "inter_rack_link_bytes_per_second": ("B/s",      10**15),
    "hop_latency_ps":                   ("ps",       10**12),
    "onchip_hop_latency_ps":            ("ps",       10**12),
    "network_bytes_per_second":         ("B/s",      10**15),
    "network_efficiency_permille":      ("permille", 1000),
    "network_hop_latency_ps":           ("ps",       10**12),
    "hbm_bytes_per_second":             ("B/s",      10**15),
    "hbm_bytes":                        ("bytes",    10**13),
    "sbuf_bytes":                       ("bytes",    10**12),
    "dma_engine_bytes_per_second":      ("B/s",      10**15),
    "dma_engines":                      ("engines",  10**4),
    "cc_cores":                         ("cores",    10**4),
})  # fmt: skip
"""Every parameter a machine may have; each is a whole number above 0. hbm_, sbuf_, dma_ and cc_ are of one rank."""

LARGEST_INSTANCES: Final = 1024
"""Most instances of one machine; a bound of this project, so that a slip of the keyboard costs nothing."""

_EVERY: Final = ("link_efficiency_permille", "hop_latency_ps", "onchip_hop_latency_ps", "hbm_bytes_per_second",
                 "dma_engine_bytes_per_second", "dma_engines")  # fmt: skip
_NETWORK: Final = ("network_bytes_per_second", "network_hop_latency_ps")
_SWITCH: Final = ("server_link_bytes_per_second", "rack_link_bytes_per_second", "inter_rack_link_bytes_per_second")
_TOP: Final = ("name", "family", "arch", "node", "lnc", "routing", "torus", "ports",
               "pod", "network", "layouts", "parameters", "readings")  # fmt: skip
_CUBE_ONLY: Final = ("routing", "torus", "ports")
_WITH_SOURCE: Final = ("node", "lnc", *_CUBE_ONLY, "pod", "network")
_ARCHES: Final = ("sunda", "cayman", "mariana")
_LNCS: Final = ("1", "2")
_LARGEST_SIDE: Final = 64
_LARGEST_SWITCH_CHIPS: Final = 16  # the low nibble of a routing id


class Family(IntEnum):
    """Instance family as the runtime numbers it. Source: platforms §1, high."""

    TRN1 = 2
    TRN1N = 3
    INF2 = 4
    TRN2 = 5
    TRN2N = 6
    INF2E = 7
    TRN2P = 8
    TRN2U = 9
    TRN2E = 10
    TRN2EU = 11
    TRN2AC = 12
    TRN2UAC = 13
    TRN3 = 14
    TRN3PDS98 = 15


class Shape(Enum):
    """How cables join the chips of one node."""

    CUBE = "cube"  # a torus of 2^n chips, labelled as the corners of a cube; one chip is the cube of no dimension
    RING = "ring"
    CHAIN = "chain"
    SWITCH = "switch"  # every chip of a server reaches every other through a switch


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a machine, with its unit and where it was read."""

    value: int
    unit: str
    source: Source
    note: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A question on which the sources disagree or are silent: what this machine file takes, and what else could be."""

    name: str
    used: str
    others: tuple[str, ...]
    source: Source
    note: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """A documented way to split the node: groups of all chips that agree outside some routing id bits."""

    name: str
    bits: tuple[int, ...]  # routing id bits (without a cube: chip number bits) in which the chips of one group differ
    lanes: int  # lanes of each chip that are members
    source: Source
    lane_step: int = 1  # from one member lane to the next
    partition: str = ""  # the split this group belongs to, e.g. "32x2 Logic2"; "" where it has no name
    role: str = "tp"  # "tp": the groups of the split; "dp": the groups across them

    def lane_sets(self, ranks_per_chip: int) -> tuple[tuple[int, ...], ...]:
        """Return the sets of lanes a group of this layout may take of each chip; together they are the whole chip."""
        block = self.lanes * self.lane_step
        starts = [low + first for low in range(0, ranks_per_chip, block) for first in range(self.lane_step)]
        return tuple(tuple(range(start, start + block, self.lane_step)) for start in starts)


@dataclass(frozen=True, slots=True)
class Platform:
    """One machine at one logical core size, in one or more instances."""

    name: str
    family: Family
    arch: str  # "sunda", "cayman" or "mariana"
    lnc: int  # physical cores in a logical core
    lncs: tuple[int, ...]  # those the machine has, the default first
    shape: Shape
    rows: int  # of chips of one node, numbered row by row
    columns: int
    ranks_per_chip: int
    routing_ids: tuple[int, ...]  # CUBE: routing id -> chip in node; else ()
    port_lane: tuple[tuple[int, ...], ...] | None  # chip in node -> owner of the port of routing id bit 0, 1, ...:
    # a lane at LNC 2, a pair of lanes at LNC 1 (lane // lanes_per_engine); None where ports belong to no rank
    parameters: Mapping[str, Parameter] = field(hash=False)
    layouts: tuple[Layout, ...] = ()  # documented replica groups of one node
    readings: tuple[Reading, ...] = ()
    instances: int = 1
    servers: int = 1  # nodes of one instance
    servers_per_rack: int = 0  # 0 where there are no racks
    pod_type: PodType = PodType.NONE
    pod_mode: int = 0  # NEURON_RT_ULTRASERVER_MODE
    pod_nodes: int = 1  # nodes of one pod
    network: bool = False  # whether instances can be joined for collectives
    no_network_reason: str = ""
    s_engine_lane: tuple[tuple[int, ...], ...] | None = None  # chip in node -> owner, as above, by s-engine
    pod_left: tuple[int, ...] = ()  # s-engines that own the cables to the left pod neighbour, node ^ 1
    pod_right: tuple[int, ...] = ()  # to the right one, node ^ 3
    sources: Mapping[str, Source] = field(default_factory=dict, hash=False)  # table of the file -> its source

    @property
    def chips(self) -> int:
        """Chips of one node."""
        return self.rows * self.columns

    @property
    def nodes(self) -> int:
        """Nodes of all instances."""
        return self.instances * self.servers

    @property
    def chip_count(self) -> int:
        """Chips of all nodes."""
        return self.nodes * self.chips

    @property
    def node_ranks(self) -> int:
        """Ranks of one node."""
        return self.chips * self.ranks_per_chip

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.node_ranks

    @property
    def lanes_per_engine(self) -> int:
        """Lanes that share one port: 1 where each rank owns its port, or none does."""
        return self.ranks_per_chip // S_ENGINES if self.port_lane else 1

    def parameter(self, name: str) -> int:
        """Return the value of a parameter.

        Raises:
            UsageError: the machine file has no such parameter.
        """
        if name not in self.parameters:
            raise UsageError(f"{self.name} has no parameter '{name}': expected one of {', '.join(self.parameters)}")
        return self.parameters[name].value


def known_platforms() -> tuple[str, ...]:
    """Return the names of the built-in machines, in alphabetical order."""
    return builtin_names()


def load_platform(name: str, *, lnc: int | None = None, nodes: int = 1, pod_mode: int = 0) -> Platform:
    """Read one machine file.

    Args:
        name: a built-in machine, or a path of a user's file (it has a "/" or ends in ".toml").
        lnc: physical cores in a logical core; None is the machine's default.
        nodes: instances, joined by network or as pods.
        pod_mode: NEURON_RT_ULTRASERVER_MODE: 0 automatic, 1 pods of four instances (X4), 2 and 3 pods of two (X2H,
            X2V), 4 no pods (X1). Automatic takes pods of four if `nodes` is a multiple of 4, one pod of two if it is 2.

    Raises:
        UsageError: there is no machine of this name, the file is damaged or lacks a key, or an argument is not one of
            the machine's.
        UnsupportedError: several instances of a machine that has no network for collectives, or a pod mode of a
            machine without pods.

    Source:
        platforms §1 and §3.4 for the pods; the automatic choice is a convention.
    """
    machine = read_machine(name)
    machine.only(_TOP)
    lncs = _lncs(machine)
    core = lncs[0] if lnc is None else lnc
    if core not in lncs:
        raise UsageError(f"LNC {core}: expected {' or '.join(map(str, sorted(lncs)))} on {machine.text('name')}")
    if not 1 <= nodes <= LARGEST_INSTANCES:
        raise UsageError(f"nodes: expected 1 to {LARGEST_INSTANCES} of {machine.text('name')}, got {nodes}")
    shape, rows, columns = _node(machine)
    ranks_per_chip = machine.table("lnc").table(str(core)).integer("ranks_per_chip", 1, _LARGEST_SIDE)
    cube = _cube(machine, shape, rows, columns, ranks_per_chip=ranks_per_chip)
    pods = _pods(machine, shape, nodes=nodes, mode=pod_mode)
    network, reason = _network(machine, nodes=nodes)
    return Platform(
        name=machine.text("name"),
        family=Family[machine.one_of("family", [each.name for each in Family])],
        arch=machine.one_of("arch", _ARCHES),
        lnc=core,
        lncs=lncs,
        shape=shape,
        rows=rows,
        columns=columns,
        ranks_per_chip=ranks_per_chip,
        routing_ids=cube.routing_ids,
        port_lane=cube.port_lane,
        parameters=_parameters(machine, _required(shape, pods, chips=rows * columns, network=network), lnc=core),
        layouts=_layouts(machine, shape, rows * columns, lnc=core, ranks_per_chip=ranks_per_chip),
        readings=tuple(_reading(key, entry) for key, entry in machine.table("readings").named_tables()),
        instances=nodes,
        servers=pods.servers,
        servers_per_rack=pods.servers_per_rack,
        pod_type=pods.kind,
        pod_mode=pod_mode,
        pod_nodes=pods.nodes,
        network=network,
        no_network_reason=reason,
        s_engine_lane=cube.s_engine_lane,
        pod_left=pods.left,
        pod_right=pods.right,
        sources=MappingProxyType({key: machine.table(key).source() for key in _WITH_SOURCE if machine.has(key)}),
    )


# --- the node ---------------------------------------------------------------------------------------------------------


def _node(machine: Table) -> tuple[Shape, int, int]:
    """Return the shape, rows and columns of one node."""
    node = machine.table("node")
    node.only(("shape", "rows", "columns", "source"))
    shape = Shape(node.one_of("shape", [each.value for each in Shape]))
    rows, columns = (node.integer(key, 1, _LARGEST_SIDE) for key in ("rows", "columns"))
    if shape is Shape.SWITCH and rows * columns > _LARGEST_SWITCH_CHIPS:
        node.refuse("columns", f"at most {_LARGEST_SWITCH_CHIPS} chips on a server", f"{rows * columns}")
    return shape, rows, columns


def _cube(machine: Table, shape: Shape, rows: int, columns: int, *, ranks_per_chip: int) -> Cube:
    if shape is Shape.CUBE:
        if machine.has("ports") and ranks_per_chip % S_ENGINES:
            machine.refuse("ports", f"a multiple of {S_ENGINES} ranks on a chip", f"{ranks_per_chip}")
        return read_cube(machine, rows=rows, columns=columns)
    for key in _CUBE_ONLY:
        if machine.has(key):
            machine.refuse(key, f"shape '{Shape.CUBE.value}' beside it", f"shape '{shape.value}'")
    return Cube()


def _pods(machine: Table, shape: Shape, *, nodes: int, mode: int) -> Pods:
    if not 0 <= mode < len(PODS):
        expected = ", ".join(f"{number} ({name})" for number, name in enumerate(PODS))
        raise UsageError(f"ultraserver mode: expected {expected}, got {mode}")
    return read_racks(machine, mode=mode) if shape is Shape.SWITCH else read_pods(machine, nodes=nodes, mode=mode)


def _lncs(machine: Table) -> tuple[int, ...]:
    """Return the logical core sizes of the file, in its order."""
    table = machine.table("lnc")
    table.only((*_LNCS, "source"))
    lncs = tuple(int(key) for key in table.entries if key in _LNCS)
    if not lncs:
        machine.refuse("lnc", "a table [lnc.1] or [lnc.2]", "none")
    for key in lncs:
        table.table(str(key)).only(("ranks_per_chip",))
    return lncs


def _network(machine: Table, *, nodes: int) -> tuple[bool, str]:
    network = machine.table("network")
    network.only(("efa", "reason", "source"))
    if network.boolean("efa"):
        return True, ""
    reason = network.text("reason")
    if nodes > 1:
        raise UnsupportedError(f"{nodes} nodes of {machine.text('name')}: {reason}; use 1", source=network.source())
    return False, reason


# --- parameters, layouts, readings ------------------------------------------------------------------------------------


def _required(shape: Shape, pods: Pods, *, chips: int, network: bool) -> tuple[str, ...]:
    cable = ("link_bytes_per_second",) if chips > 1 else ()
    return (
        *_EVERY,
        *(_SWITCH if shape is Shape.SWITCH else cable),
        *(_NETWORK if network else ()),
        *(("pod_link_bytes_per_second",) if pods.left else ()),
    )


def _parameters(machine: Table, required: tuple[str, ...], *, lnc: int) -> Mapping[str, Parameter]:
    table = machine.table("parameters")
    table.only(tuple(PARAMETERS))
    for name in required:
        if not table.has(name):
            table.refuse(name, "a table with the value", "nothing; add the key")
    return MappingProxyType(
        {name: _parameter(table.table(name), name, lnc=lnc) for name in PARAMETERS if table.has(name)}
    )


def _parameter(entry: Table, name: str, *, lnc: int) -> Parameter:
    entry.only(("value", "by_lnc", "unit", "note", "source"))
    unit, largest = PARAMETERS[name]
    if entry.text("unit", unit) != unit:
        entry.refuse("unit", f"'{unit}'", f"'{entry.text('unit')}'")
    if entry.has("value") == entry.has("by_lnc"):
        entry.refuse("value", "either value or by_lnc", "both" if entry.has("value") else "neither")
    if entry.has("value"):
        value = entry.integer("value", 1, largest)
    else:
        entry.table("by_lnc").only(_LNCS)
        value = entry.table("by_lnc").integer(str(lnc), 1, largest)
    return Parameter(value, unit, entry.source(), entry.text("note", ""))


def _layouts(machine: Table, shape: Shape, chips: int, *, lnc: int, ranks_per_chip: int) -> tuple[Layout, ...]:
    entries = machine.tables("layouts")
    if entries and shape is Shape.SWITCH:
        machine.refuse("layouts", "none on a switch machine", f"{len(entries)}")
    found = [_layout(entry, chips, lnc=lnc, ranks_per_chip=ranks_per_chip) for entry in entries]
    return tuple(layout for layout in found if layout is not None)


def _layout(entry: Table, chips: int, *, lnc: int, ranks_per_chip: int) -> Layout | None:
    """Return a layout, or None where it is one of another logical core size."""
    entry.only(("name", "partition", "role", "bits", "lanes", "lane_step", "lnc", "source"))
    if entry.has("lnc") and lnc not in entry.integers("lnc", 1, 2):
        return None
    bits = entry.integers("bits", 0, max(0, (chips - 1).bit_length() - 1))
    if len(set(bits)) != len(bits):
        entry.refuse("bits", "each bit once", str(list(bits)))
    step = entry.integer("lane_step", 1, ranks_per_chip) if entry.has("lane_step") else 1
    whole = entry.entries.get("lanes") == "all"
    lanes = ranks_per_chip if whole else entry.integer("lanes", 1, ranks_per_chip)
    if ranks_per_chip % (lanes * step):
        entry.refuse("lanes", f"lanes x lane_step that divides {ranks_per_chip} ranks of a chip", f"{lanes} x {step}")
    role = entry.one_of("role", ("tp", "dp")) if entry.has("role") else "tp"
    size = lanes * min(chips, 1 << len(bits))
    other = chips * ranks_per_chip // size
    numbers = {"{tp}": size if role == "tp" else other, "{dp}": other if role == "tp" else size}
    name, partition = entry.text("name"), entry.text("partition", "")
    for mark, number in numbers.items():
        name, partition = name.replace(mark, str(number)), partition.replace(mark, str(number))
    return Layout(name, bits, lanes, entry.source(), step, partition, role)


def _reading(name: str, entry: Table) -> Reading:
    entry.only(("used", "others", "note", "source"))
    return Reading(name, entry.text("used"), entry.texts("others"), entry.source(), entry.text("note", ""))
