"""Instance families as data: read one machine file, check it, and hand it out frozen.

What follows from the numbers lives elsewhere: distances and cables in `topology`, rings in `cycles` and `rings`,
replica groups in `group`. No number of a machine is written here; each stands in `platforms/*.toml` beside its source.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from rota.errors import UsageError
from rota.facts import Confidence, Source

_SUFFIX: Final = ".toml"


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


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a machine, with its unit and where it was read."""

    value: int
    unit: str
    source: Source
    note: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """A documented way to split the node: groups of all chips that agree outside some routing id bits."""

    name: str
    bits: tuple[int, ...]  # routing id bits in which the chips of one group differ
    lanes: int  # lanes of each chip that are members: all, or 1
    source: Source


@dataclass(frozen=True, slots=True)
class Platform:
    """A node of chips on a torus whose labels, the routing ids, are the corners of a cube.

    A rank is `ranks_per_chip * chip + lane`; chips are numbered as the user sees them, row by row.
    """

    name: str
    family: Family
    arch: str  # "sunda", "cayman" or "mariana"
    lnc: int  # physical cores in a logical core
    rows: int
    columns: int
    ranks_per_chip: int
    routing_ids: tuple[int, ...]  # routing id -> chip
    port_lane: tuple[tuple[int, ...], ...] | None  # chip -> lane that owns the port of routing id bit 0, 1, ...
    parameters: Mapping[str, Parameter] = field(hash=False)
    layouts: tuple[Layout, ...] = ()  # documented replica groups

    @property
    def chips(self) -> int:
        """Chips of the node."""
        return self.rows * self.columns

    @property
    def ranks(self) -> int:
        """Ranks of the node."""
        return self.chips * self.ranks_per_chip

    def parameter(self, name: str) -> int:
        """Return the value of a parameter.

        Raises:
            UsageError: the machine file has no such parameter.
        """
        if name not in self.parameters:
            raise UsageError(f"{self.name} has no parameter '{name}': expected one of {', '.join(self.parameters)}")
        return self.parameters[name].value


def known_platforms() -> tuple[str, ...]:
    """Return the names `load_platform` takes, in alphabetical order."""
    entries = resources.files("rota.machine").joinpath("platforms").iterdir()
    return tuple(sorted(entry.name.removesuffix(_SUFFIX) for entry in entries if entry.name.endswith(_SUFFIX)))


def load_platform(name: str) -> Platform:
    """Read one machine file.

    Raises:
        UsageError: there is no machine of this name.
    """
    known = known_platforms()
    if name not in known:
        raise UsageError(f"platform {name[:40]!r} is not known: expected one of {', '.join(known)}")
    text = resources.files("rota.machine").joinpath("platforms", name + _SUFFIX).read_text(encoding="utf-8")
    return _platform(tomllib.loads(text))


def _platform(machine: Mapping[str, Any]) -> Platform:
    routing_ids = tuple(machine["routing"]["devices"])
    neighbours = _neighbours(machine["torus"]["neighbours"], routing_ids)
    lane_of_s_engine = machine["ports"]["lane_of_s_engine"] if "ports" in machine else None
    columns = machine["columns"]
    return Platform(
        name=machine["name"],
        family=Family[machine["family"]],
        arch=machine["arch"],
        lnc=machine["lnc"],
        rows=machine["rows"],
        columns=columns,
        ranks_per_chip=machine["ranks_per_chip"],
        routing_ids=routing_ids,
        port_lane=_port_lane(neighbours, lane_of_s_engine, columns=columns) if lane_of_s_engine else None,
        parameters=MappingProxyType({key: _parameter(entry) for key, entry in machine["parameters"].items()}),
        layouts=tuple(_layout(entry) for entry in machine["layouts"]),
    )


def _neighbours(table: list[list[int]], routing_ids: tuple[int, ...]) -> list[dict[int, int]]:
    """Return, for each chip, the position in its row of the table of the port of each routing id bit."""
    bits = (len(routing_ids) - 1).bit_length()
    assert sorted(routing_ids) == list(range(1 << bits)), "routing ids: expected each chip once, 2^n of them"
    routing_id = {chip: rid for rid, chip in enumerate(routing_ids)}
    ports: list[dict[int, int]] = []
    for chip, row in enumerate(table):
        steps = [routing_id[chip] ^ routing_id[other] for other in row]
        assert sorted(steps) == [1 << bit for bit in range(bits)], f"chip {chip}: expected one cable per routing id bit"
        ports.append({step.bit_length() - 1: port for port, step in enumerate(steps)})
    return ports


def _port_lane(ports: list[dict[int, int]], lanes: list[list[int]], *, columns: int) -> tuple[tuple[int, ...], ...]:
    """Return chip -> owner of the port of each routing id bit; the s-engines of a chip follow its place's parities."""
    owners: list[tuple[int, ...]] = []
    for chip, port_of_bit in enumerate(ports):
        row, column = divmod(chip, columns)
        lane_of_s_engine = lanes[2 * (row % 2) + column % 2]
        owners.append(tuple(lane_of_s_engine[port_of_bit[bit]] for bit in sorted(port_of_bit)))
    return tuple(owners)


def _source(entry: Mapping[str, str]) -> Source:
    return Source(entry["page"], entry["section"], Confidence(entry["confidence"]))


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    return Parameter(entry["value"], entry["unit"], _source(entry["source"]), entry.get("note", ""))


def _layout(entry: Mapping[str, Any]) -> Layout:
    return Layout(entry["name"], tuple(entry["bits"]), entry["lanes"], _source(entry["source"]))
