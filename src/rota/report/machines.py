"""Machines for people and for programs: the list of them, and one with its numbers, open readings and a drawing.

Everything printed is read from the machine file or follows from it in `machine.topology`; no number is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rota.isa.enums import PodType
from rota.machine.cycles import node_cycles
from rota.machine.machine_file import PODS
from rota.machine.partition import format_ranks
from rota.machine.platform import Layout, Parameter, Platform, Shape
from rota.machine.topology import (
    LINK_PARAMETER,
    LinkClass,
    neighbours,
    pod_node_of,
    pod_of,
    port_owner,
    routing_id,
)
from rota.report.text import bracketed, text_of
from rota.units import PICOSECONDS_PER_MICROSECOND, format_size

_GIGA: Final = 10**9
_HEAD: Final = 2  # of a long list, before the dots
_SHORT: Final = 4  # a list up to this long is printed whole
_POD_OF_FOUR: Final = 4


# --- the list ---------------------------------------------------------------------------------------------------------


def list_text(platforms: Sequence[Platform]) -> Iterator[str]:
    """Yield the machines, one a line below a header; of several LNCs the first is the one whose ranks are shown."""
    rows = [("# name", "family", "chips", "LNC", "ranks", "network", "topology")]
    for platform in platforms:
        family = f"{platform.family.name}({platform.family.value})"
        counts = (str(platform.chip_count), ",".join(map(str, _lncs(platform))), str(platform.ranks))
        rows.append(("  " + platform.name, family, *counts, _network_word(platform), topology_words(platform)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        name, family, chips, lnc, ranks, network, topology = (
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        )
        numbers = f"{chips.strip():>{widths[2]}}  {lnc}  {ranks.strip():>{widths[4]}}"
        yield f"{name}  {family}  {numbers}  {network}  {topology}".rstrip()


def list_json(platforms: Sequence[Platform]) -> dict[str, Any]:
    """Return the machines as one document."""
    return {"schema": 1, "platforms": [_facts(platform) for platform in platforms]}


def topology_words(platform: Platform) -> str:
    """Return how the chips of one instance are joined, in a few words."""
    if platform.shape is Shape.SWITCH:
        racks = platform.servers // platform.servers_per_rack
        return f"switched: {_many(racks, 'rack')} x {platform.servers_per_rack} servers x {platform.chips} chips"
    if platform.chips == 1:
        return "one chip"
    if platform.shape is Shape.CUBE:
        return f"{platform.rows}x{platform.columns} torus" + (", pods by Z links" if platform.pod_left else "")
    return f"{platform.shape.value} of {platform.chips}"


# --- one machine ------------------------------------------------------------------------------------------------------


def machine_text(platform: Platform, *, sources: bool) -> Iterator[str]:
    """Yield one machine: facts, drawing, parameters, open readings, documented layouts; with `sources`, where from."""
    yield f"{platform.name}: family {platform.family.name} ({platform.family.value}), arch {platform.arch}"
    yield f"  chips    {platform.chip_count}: {_chips_words(platform)}{_cited(platform, 'node', sources)}"
    also = "".join(f" (also LNC {lnc})" for lnc in _lncs(platform)[1:])
    each = f"{platform.ranks_per_chip} on a chip at LNC {platform.lnc}{also}"
    yield f"  ranks    {platform.ranks}: {each}{_cited(platform, 'lnc', sources)}"
    yield f"  network  {_network_words(platform)}{_cited(platform, 'network', sources)}"
    if platform.pod_left or platform.pod_type is not PodType.NONE:
        yield f"  pods     {_pod_words(platform)}{_cited(platform, 'pod', sources)}"
    yield ""
    yield from drawing(platform)
    yield ""
    yield from _parameter_lines(platform, sources=sources)
    if platform.readings:
        yield ""
        yield "# open questions: what is used here, and what else the sources could mean"
    for reading in platform.readings:
        yield f"  {reading.name}{bracketed(reading.source) if sources else ''}"
        yield f"    used   {reading.used}"
        yield from (f"    other  {other}" for other in reading.others)
        if reading.note:
            yield f"    why    {reading.note}"
    yield ""
    yield from _layout_lines(platform, sources=sources)


def machine_json(platform: Platform) -> dict[str, Any]:
    """Return one machine as one document; values are in the unit beside them."""
    return {
        "schema": 1,
        **_facts(platform),
        "routing_ids": list(platform.routing_ids),
        "port_owners": None if platform.port_lane is None else [list(owners) for owners in platform.port_lane],
        "parameters": {
            name: {"value": entry.value, "unit": entry.unit, "note": entry.note, "source": text_of(entry.source)}
            for name, entry in platform.parameters.items()
        },
        "readings": [
            {
                "name": reading.name,
                "used": reading.used,
                "others": list(reading.others),
                "note": reading.note,
                "source": text_of(reading.source),
            }
            for reading in platform.readings
        ],
        "layouts": [
            {
                "name": layout.name,
                "partition": layout.partition,
                "role": layout.role,
                "routing_id_bits": list(layout.bits),
                "lanes": layout.lanes,
                "lane_step": layout.lane_step,
                "first_group": list(_first_group(platform, layout)),
                "source": text_of(layout.source),
            }
            for layout in platform.layouts
        ],
        "sources": {key: text_of(source) for key, source in platform.sources.items()},
    }


def _facts(platform: Platform) -> dict[str, Any]:
    return {
        "name": platform.name,
        "family": platform.family.name,
        "family_number": platform.family.value,
        "arch": platform.arch,
        "lnc": platform.lnc,
        "lncs": list(platform.lncs),
        "shape": platform.shape.value,
        "topology": topology_words(platform),
        "rows": platform.rows,
        "columns": platform.columns,
        "instances": platform.instances,
        "nodes": platform.nodes,
        "chips": platform.chip_count,
        "ranks_per_chip": platform.ranks_per_chip,
        "ranks": platform.ranks,
        "servers": platform.servers,
        "servers_per_rack": platform.servers_per_rack,
        "pod_type": platform.pod_type.name,
        "pod_mode": platform.pod_mode,
        "pod_nodes": platform.pod_nodes,
        "network": platform.network,
        "no_network_reason": platform.no_network_reason,
    }


# --- its words --------------------------------------------------------------------------------------------------------


def _lncs(platform: Platform) -> tuple[int, ...]:
    """Return the logical core sizes, the one in use first."""
    return (platform.lnc, *(lnc for lnc in platform.lncs if lnc != platform.lnc))


def _network_word(platform: Platform) -> str:
    return ("EFA" if platform.network else "none") + ("+pods" if platform.pod_left else "")


def _network_words(platform: Platform) -> str:
    return "EFA joins instances" if platform.network else f"none: {platform.no_network_reason}"


def _chips_words(platform: Platform) -> str:
    words = topology_words(platform)
    if platform.instances == 1:
        return words
    each = platform.chips * platform.servers
    return f"{platform.instances} instances, each {words}; instance n has chips {each}n to {each}n+{each - 1}"


def _pod_words(platform: Platform) -> str:
    if platform.pod_type is PodType.SWITCH:
        return f"an instance is one pod of {platform.servers} servers; each server is a node"
    if platform.pod_type is PodType.NONE:
        return f"none with {_many(platform.nodes, 'node')}; a pod is 2 or {_POD_OF_FOUR} nodes"
    pods = [format_ranks(_nodes_of_pod(platform, pod)) for pod in range(platform.nodes // platform.pod_nodes)]
    return f"{PODS[platform.pod_mode]}, nodes {'; '.join(_shortened(pods))}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _cited(platform: Platform, key: str, sources: bool) -> str:
    return bracketed(platform.sources.get(key)) if sources else ""


def _shortened(texts: Sequence[str]) -> list[str]:
    """Return a long list as its first two entries, dots, and its last."""
    return list(texts) if len(texts) <= _SHORT else [*texts[:_HEAD], "...", texts[-1]]


def _parameter_lines(platform: Platform, *, sources: bool) -> Iterator[str]:
    rows = [(name, value_text(entry), entry) for name, entry in platform.parameters.items()]
    names, values = max(len(name) for name, _, _ in rows), max(len(value) for _, value, _ in rows)
    yield f"# {'parameter':<{names}}  {'value':>{values}}  what it is"
    for name, value, entry in rows:
        cited = bracketed(entry.source) if sources else ""
        yield f"  {name:<{names}}  {value:>{values}}  {entry.note}{cited}".rstrip()


def value_text(parameter: Parameter) -> str:
    """Return the value of a parameter with a unit a person reads: GB/s, us, %, GiB."""
    value = parameter.value
    match parameter.unit:
        case "B/s":
            return f"{_decimal(value, _GIGA)} GB/s"
        case "ps":
            return f"{_decimal(value, PICOSECONDS_PER_MICROSECOND)} us"
        case "permille":
            return f"{_decimal(value, 10)} %"
        case "bytes":
            text = format_size(value)
            return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} bytes"
    return f"{value} {parameter.unit}"


def _decimal(value: int, unit: int) -> str:
    """Return value / unit rounded to the nearest of three places, without zeros at the end."""
    whole, rest = divmod((2 * 1000 * value + unit) // (2 * unit), 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def _layout_lines(platform: Platform, *, sources: bool) -> Iterator[str]:
    if not platform.layouts:
        yield "# documented groups: no list; a group is the same chips on several servers, with the same lanes of each"
        return
    rows = [(layout, format_ranks(_first_group(platform, layout))) for layout in platform.layouts]
    width = max(len(layout.name) for layout, _ in rows)
    yield "# documented groups of a node"
    yield f"# {'layout':<{width}}  role  ranks  groups  first group"
    for layout, first in rows:
        size = len(_first_group(platform, layout))
        cited = bracketed(layout.source) if sources else ""
        numbers = f"{size:>5}  {platform.node_ranks // size:>6}"
        yield f"  {layout.name:<{width}}  {layout.role:<4}  {numbers}  {first}{cited}"


def _first_group(platform: Platform, layout: Layout) -> tuple[int, ...]:
    """Return the group of a layout that has rank 0."""
    fixed = ~sum(1 << bit for bit in layout.bits)
    origin = routing_id(platform, 0)
    lanes = layout.lane_sets(platform.ranks_per_chip)[0]
    chips = [chip for chip in range(platform.chips) if not (routing_id(platform, chip) ^ origin) & fixed]
    return tuple(platform.ranks_per_chip * chip + lane for chip in chips for lane in lanes)


# --- drawings ---------------------------------------------------------------------------------------------------------


def drawing(platform: Platform) -> Iterator[str]:
    """Yield a drawing of one node, and of what joins the nodes of a pod; a number in brackets is a chip."""
    match platform.shape:
        case Shape.SWITCH:
            yield from _racks(platform)
        case Shape.RING:
            yield from _ring(platform)
        case Shape.CHAIN:
            yield f"  {'---'.join(f'[{chip}]' for chip in range(platform.chips))}"
            yield f"  ---  one cable: {_rate(platform, LinkClass.CABLE)} each way"
        case Shape.CUBE:
            yield from _torus(platform)
    if platform.instances > 1:
        yield f"  instances: by EFA, {_rate(platform, LinkClass.NETWORK)} a chip each way"


def _rate(platform: Platform, kind: LinkClass) -> str:
    return value_text(platform.parameters[LINK_PARAMETER[kind]])


def _ring(platform: Platform) -> Iterator[str]:
    """Yield a ring as two rows, the second running back."""
    half = (platform.chips + 1) // 2
    there, back = list(range(half)), list(range(platform.chips - 1, half - 1, -1))
    cell = len(str(platform.chips - 1)) + 2
    rows = ["---".join(f"[{chip}]".ljust(cell, "-") for chip in row).rstrip("-") for row in (there, back)]
    end = (cell + 3) * (half - 1) + 1
    yield f"  {rows[0]}"
    yield f"   {'|'.ljust(end - 1)}{'|' if len(back) == half else '/'}"
    yield f"  {rows[1]}"
    yield f"  ---  one cable: {_rate(platform, LinkClass.CABLE)} each way"


# --- the torus --------------------------------------------------------------------------------------------------------


def _torus(platform: Platform) -> Iterator[str]:
    if platform.chips == 1:
        yield f"  [0]  one chip, ranks 0-{platform.ranks_per_chip - 1}; no cable"
    elif _is_grid(platform):
        yield from _grid(platform)
    else:
        for chip in range(platform.chips):
            yield f"  [{chip}] --- {' '.join(f'[{other}]' for other in neighbours(platform, chip))}"
    yield from _lane_lines(platform)
    if platform.rows == platform.columns == _SHORT and _is_grid(platform):
        for letter, cycle in zip("AB", node_cycles(platform), strict=True):
            yield f"  cycle {letter}  {' '.join(map(str, (*cycle, cycle[0])))}"
        yield "  A and B share no cable; rings run along both, each way"
    if platform.pod_left:
        yield ""
        yield from _pod(platform)


def _around(platform: Platform, chip: int) -> tuple[int, int, int, int]:
    """Return the chips above, left, right and below on the grid, around its edges."""
    rows, columns = platform.rows, platform.columns
    row, column = divmod(chip, columns)
    places = ((row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column))
    above, left, right, below = (r % rows * columns + c % columns for r, c in places)
    return above, left, right, below


def _is_grid(platform: Platform) -> bool:
    """Return whether the cables are those of the grid, row by row, closed around its edges."""
    chips = range(platform.chips)
    return all({*_around(platform, chip)} - {chip} == set(neighbours(platform, chip)) for chip in chips)


def _grid(platform: Platform) -> Iterator[str]:
    """Yield the chips in rows; beside each end of a cable stands the owner of its port."""
    owned = platform.port_lane is not None
    digits = len(str(platform.chips - 1))
    sides, tops = platform.columns > 2, platform.rows > 2
    for row in range(platform.rows):
        chips = [row * platform.columns + column for column in range(platform.columns)]
        cells = [f"{_end(platform, chip, 1)}[{chip:>{digits}}]{_end(platform, chip, 2)}" for chip in chips]
        if not sides:  # the cable around the edge of two columns is the one between them
            cells[0], cells[-1] = " " + cells[0][1:], cells[-1][:-1]
        above = [_end(platform, chip, 0) for chip in chips]
        below = [_end(platform, chip, 3) for chip in chips]
        if row or tops:
            yield _column(["|" if row else ":"] * len(chips), digits)
        if owned and (row or tops):
            yield _column(above, digits)
        yield f"  {'...' if sides else '   '}{'---'.join(cells)}{'...' if sides else ''}".rstrip()
        if owned and (row + 1 < platform.rows or tops):
            yield _column(below, digits)
    if tops:
        yield _column([":"] * platform.columns, digits)
    edge = ";  ... :  the cable around the edge" if tops or sides else ""
    yield f"  --- |  one cable: {_rate(platform, LinkClass.CABLE)} each way{edge}"


def _end(platform: Platform, chip: int, side: int) -> str:
    """Return what stands at one end of a cable: the owner of its port, or the cable itself."""
    other = _around(platform, chip)[side]
    if other == chip:
        return " "
    owner = port_owner(platform, chip, other)
    return "-" if owner is None else str(owner)


def _column(marks: Sequence[str], digits: int) -> str:
    """Return a line with one mark above or below the middle of each chip."""
    before = " " * (len("  ...0[") + (digits - 1) // 2)
    between = " " * (len("0[]0---") + digits - 1)
    return (before + between.join(marks)).rstrip()


def _lane_lines(platform: Platform) -> Iterator[str]:
    """Yield what the numbers at the ends of cables are, and which lanes share a die."""
    if platform.port_lane is None:
        return
    per = platform.lanes_per_engine
    half = platform.ranks_per_chip // 2
    if platform.chips > 1:
        who = "lane" if per == 1 else f"pair k of lanes, {per}k and {per}k+{per - 1},"
        yield f"  a number at the end of a cable: the {who} that owns the port there"
    rank = f"rank = {platform.ranks_per_chip} * chip + lane"
    yield f"  dies: lanes 0-{half - 1} and {half}-{platform.ranks_per_chip - 1} of every chip; {rank}"


# --- pods and racks ---------------------------------------------------------------------------------------------------


def _nodes_of_pod(platform: Platform, pod: int) -> list[int]:
    """Return the nodes of a pod by their number in it."""
    nodes = [node for node in range(platform.nodes) if pod_of(platform, node) == pod]
    return sorted(nodes, key=lambda node: pod_node_of(platform, node))


def _pod(platform: Platform) -> Iterator[str]:
    """Yield the Z ring of a pod of four, or the cables of a pod of two."""
    shown = platform.pod_type is not PodType.NONE
    nodes = _nodes_of_pod(platform, 0) if shown else list(range(_POD_OF_FOUR))
    if not shown:
        yield f"  a pod, with --nodes {_POD_OF_FOUR}:"
    width = max(len(f"node {node}") for node in nodes)
    names = [f"node {node}".ljust(width) for node in nodes]
    yield f"  {names[0]} ==left== {names[1]}".rstrip()
    if len(nodes) == _POD_OF_FOUR:
        gap = " " * (width + len(" ==left== ") - len("right"))
        yield from (f"  {side}{gap}{side}".rstrip() for side in ("  |  ", "right", "  |  "))
        yield f"  {names[3]} ==left== {names[2]}".rstrip()
    rate = _rate(platform, LinkClass.POD)
    yield f"  chip i of a node to chip i of the next: {rate} to each neighbour, each way"
    yield from _pod_owners(platform)


def _pod_owners(platform: Platform) -> Iterator[str]:
    """Yield which lanes own the cables to the left and to the right, for the chips where they are the same."""
    assert platform.s_engine_lane is not None, "a machine with pods has ports"
    chips_of: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for chip, lanes in enumerate(platform.s_engine_lane):
        left, right = (
            tuple(sorted(lanes[engine] for engine in engines)) for engines in (platform.pod_left, platform.pod_right)
        )
        chips_of.setdefault((left, right), []).append(chip)
    what = "lanes" if platform.lanes_per_engine == 1 else "pairs"
    for (left, right), chips in chips_of.items():
        left_text, right_text = (" and ".join(map(str, owners)) for owners in (left, right))
        yield f"  chips {format_ranks(chips)}: {what} {left_text} own left, {right_text} right"


def _racks(platform: Platform) -> Iterator[str]:
    """Yield the racks of one instance side by side, with the first servers and the last of each."""
    per_rack, racks = platform.servers_per_rack, platform.servers // platform.servers_per_rack
    columns: list[list[str]] = []
    for rack in range(racks):
        servers = range(rack * per_rack, (rack + 1) * per_rack)
        lines = _shortened([_server(platform, server) for server in servers])
        width = max(map(len, lines))
        box = f"+{' switch '.center(width + 2, '-')}+"
        columns.append([f"rack {rack}", box, *(f"| {line:<{width}} |" for line in lines), f"+{'-' * (width + 2)}+"])
    for lines_of in zip(*columns, strict=True):
        join = "=====" if "[" in lines_of[0] else "     "
        yield f"  {join.join(line.ljust(len(columns[0][1])) for line in lines_of)}".rstrip()
    yield f"  in a server   every chip to every other, {_rate(platform, LinkClass.SERVER)} a chip each way"
    yield f"  in a rack     every chip to every other, {_rate(platform, LinkClass.RACK)} a chip each way"
    if racks > 1:
        rate = _rate(platform, LinkClass.INTER_RACK)
        yield f"  =====         chip i of server s to chip i of server s + {per_rack}, {rate} each way"
    yield f"  rank = {platform.ranks_per_chip} * ({platform.chips} * server + chip in server) + lane"


def _server(platform: Platform, server: int) -> str:
    chips = [str(chip) for chip in range(server * platform.chips, (server + 1) * platform.chips)]
    width = len(str(platform.servers * platform.chips - 1))
    numbers = " ".join(text.rjust(width) for text in _shortened(chips))
    return f"server {server:>{len(str(platform.servers - 1))}}  [{numbers}]"
