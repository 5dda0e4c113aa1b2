"""Machines as people and programs see them: the list, the numbers, the open readings, the drawing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rota.facts import HIGH, Source
from rota.machine.cycles import node_cycles
from rota.machine.platform import Parameter, Platform, known_platforms, load_platform
from rota.machine.topology import neighbours, port_owner
from rota.report.machines import (
    drawing,
    list_json,
    list_text,
    machine_json,
    machine_text,
    topology_words,
    value_text,
)

ALL = [load_platform(name) for name in known_platforms()]
SHAPES = ["trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "inf2.48xlarge", "trn3pds98", "trn2.3xlarge"]


def text(platform: Platform, *, sources: bool = False) -> str:
    return "\n".join(machine_text(platform, sources=sources))


def picture(platform: Platform) -> list[str]:
    return list(drawing(platform))


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_has_one_line_a_machine() -> None:
    """A table is fixed-width, one machine a line, and its header begins with #."""
    lines = list(list_text(ALL))
    assert len(lines) == 1 + len(ALL)
    assert [line.startswith("#") for line in lines] == [True] + [False] * len(ALL)
    column = lines[0].index("network")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)


def test_a_line_of_the_list() -> None:
    """Platforms §1: name, family and number, chips, LNC with the default first, ranks, network, topology in words."""
    rows = {line.split()[0]: line.split(maxsplit=6)[1:] for line in list_text(ALL)}
    assert rows["trn3pds98"] == [
        *("TRN3PDS98(15)", "144", "2,1", "576", "EFA"),
        "switched: 2 racks x 18 servers x 4 chips",
    ]
    assert rows["trn2u.48xlarge"] == ["TRN2U(9)", "16", "2,1", "64", "EFA+pods", "4x4 torus, pods by Z links"]
    assert rows["inf2.24xlarge"] == ["INF2(4)", "6", "1", "12", "none", "chain of 6"]
    assert [topology_words(load_platform(name)) for name in ("inf2.48xlarge", "trn1.2xlarge")] == [
        "ring of 12",
        "one chip",
    ]


def test_the_list_shows_the_lnc_in_use_first() -> None:
    """The ranks shown are those at the first LNC of the line."""
    assert list(list_text([load_platform("trn2.48xlarge", lnc=1)]))[1].split()[3:5] == ["1,2", "128"]


def test_the_list_as_a_document() -> None:
    """JSON is one document with a schema number."""
    document = json.loads(json.dumps(list_json(ALL)))
    assert document["schema"] == 1
    assert [row["name"] for row in document["platforms"]] == list(known_platforms())
    assert [row["ranks"] for row in document["platforms"]] == [platform.ranks for platform in ALL]


# --- one machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ALL, ids=known_platforms())
def test_every_number_is_printed(platform: Platform) -> None:
    """A machine is printed with every parameter, its unit and its note, and every open reading."""
    lines = list(machine_text(platform, sources=False))
    for name, entry in platform.parameters.items():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line.split(maxsplit=1)[1].startswith(value_text(entry))
        assert line.endswith(entry.note)
    for reading in platform.readings:
        at = lines.index(f"  {reading.name}")
        assert lines[at + 1] == f"    used   {reading.used}"
        others = tuple(f"    other  {other}" for other in reading.others)
        assert tuple(lines[at + 2 : at + 2 + len(others)]) == others


@pytest.mark.parametrize("platform", ALL, ids=known_platforms())
def test_sources_are_printed_when_asked_for(platform: Platform) -> None:
    """With sources, each parameter, reading and layout ends with where it was read; without, none does."""
    cited = text(platform, sources=True)
    for fact in (*platform.parameters.values(), *platform.readings, *platform.layouts):
        assert f"[{fact.source}]" in cited
    assert "§" not in text(platform)


@pytest.mark.parametrize("platform", ALL, ids=known_platforms())
def test_one_machine_as_a_document(platform: Platform) -> None:
    """JSON has the exact value of every parameter beside its unit and source, and every reading and layout."""
    document = json.loads(json.dumps(machine_json(platform)))
    assert document["schema"] == 1
    assert {key: (entry["value"], entry["unit"]) for key, entry in document["parameters"].items()} == {
        key: (entry.value, entry.unit) for key, entry in platform.parameters.items()
    }
    assert [reading["others"] for reading in document["readings"]] == [list(each.others) for each in platform.readings]
    assert [layout["name"] for layout in document["layouts"]] == [layout.name for layout in platform.layouts]
    assert list_json([platform])["platforms"][0].items() <= document.items()


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (128 * 10**9, "B/s", "128 GB/s"),
        (6_250 * 10**6, "B/s", "6.25 GB/s"),
        (48 * 2**30, "B/s", "51.54 GB/s"),
        (999_999_999, "B/s", "1 GB/s"),
        (15 * 10**6, "ps", "15 us"),
        (1_500_000, "ps", "1.5 us"),
        (680, "permille", "68 %"),
        (725, "permille", "72.5 %"),
        (24 * 2**30, "bytes", "24 GiB"),
        (1000, "bytes", "1000 bytes"),
        (32, "engines", "32 engines"),
    ],
)
def test_values(value: int, unit: str, expected: str) -> None:
    """GB/s are 10^9 bytes a second, GiB are 2^30 bytes; three places at most, to the nearest."""
    assert value_text(Parameter(value, unit, Source("platforms", "2", HIGH))) == expected


def test_documented_groups_of_trn2() -> None:
    """Topology §4: each layout with its role, ranks, number of groups and first group."""
    rows = {line.strip() for line in machine_text(load_platform("trn2.48xlarge"), sources=False)}
    rows = {re.sub(r"  +", " | ", row) for row in rows}
    assert "16x4, a row | tp | 16 | 4 | 0-15" in rows
    assert "16x4, the column of one lane | dp | 4 | 16 | 0,16,32,48" in rows
    assert "32x2 Logic2, rows 0 and 3 or 1 and 2 | tp | 32 | 2 | 0-15,48-63" in rows
    assert "32x2 Logic2, one lane of two rows | dp | 2 | 32 | 0,16" in rows


def test_documented_groups_at_lnc_1() -> None:
    """Topology §4: at LNC 1 half a chip is a group, and its complement takes lanes k and k + 4 of every chip."""
    document = machine_json(load_platform("trn2.48xlarge", lnc=1))
    first = {layout["name"]: layout["first_group"] for layout in document["layouts"]}
    assert first["4x32, half a chip"] == [0, 1, 2, 3]
    assert first["4x32, one lane of both halves of every chip"] == list(range(0, 128, 4))
    assert "documented groups: no list" in text(load_platform("trn3pds98"))


def test_nodes_and_pods_in_words() -> None:
    """The head says how many instances there are, how chips are numbered through them, and what the pods are."""
    four = text(load_platform("trn2u.48xlarge", nodes=8, pod_mode=3))
    assert "instance n has chips 16n to 16n+15" in four
    assert "  pods     X2V, nodes 0,2; 1,3; 4,6; 5,7" in four
    assert "  pods     none with 1 node; a pod is 2 or 4 nodes" in text(load_platform("trn2u.48xlarge"))
    assert "pods " not in text(load_platform("trn2.48xlarge"))
    assert "one pod of 36 servers" in text(load_platform("trn3pds98"))
    assert "network  none: collectives of Inf2 stay on one instance" in text(load_platform("inf2.48xlarge"))


# --- drawings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lnc", [1, 2])
def test_the_torus_is_drawn_with_the_owners_of_its_ports(lnc: int) -> None:
    """Platforms §3.3: at each end of each cable of Trn2 stands the lane that owns the port there."""
    trn2 = load_platform("trn2.48xlarge", lnc=lnc)
    lines = picture(trn2)
    rows = [i for i, line in enumerate(lines) if "[" in line]
    assert len(rows) == 4
    for row, at in enumerate(rows):
        cells = re.findall(r"(\d)\[ ?(\d+)\](\d)", lines[at])
        assert [int(chip) for _, chip, _ in cells] == [4 * row + column for column in range(4)]
        above, below = lines[at - 1].split(), lines[at + 1].split()
        for column, (left, _, right) in enumerate(cells):
            chip = 4 * row + column
            ways = (
                (left, 4 * row + (column - 1) % 4),
                (right, 4 * row + (column + 1) % 4),
                (above[column], (chip - 4) % 16),
                (below[column], (chip + 4) % 16),
            )
            assert [int(owner) for owner, _ in ways] == [port_owner(trn2, chip, other) for _, other in ways]
            assert sorted(other for _, other in ways) == list(neighbours(trn2, chip))


def test_the_torus_of_trn1_has_no_owners() -> None:
    """Topology §2: on Trn1 a port belongs to no rank; the grid has its cables around the edges all the same."""
    lines = picture(load_platform("trn1.32xlarge"))
    assert lines[1] == "  ...-[ 0]-----[ 1]-----[ 2]-----[ 3]-..."
    assert lines[0].split() == lines[8].split() == [":"] * 4
    assert not any("owns" in line for line in lines)


def test_marks_stand_in_one_column() -> None:
    """Below each other: the mark of a cable, the owner of its port, and the number of the chip."""
    lines = picture(load_platform("trn2.48xlarge"))[:17]
    columns = [[match.start() for match in re.finditer(r"\S", line)] for line in lines if "[" not in line]
    assert all(column == columns[0] for column in columns)
    inside = [match.start() for match in re.finditer(r"\[", next(line for line in lines if "[" in line))]
    assert columns[0] == [place + 1 for place in inside]


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge"])
def test_the_two_cycles_are_named(name: str) -> None:
    """Topology §2: the node has two edge-disjoint cycles, A and B, each drawn closed."""
    platform = load_platform(name)
    lines = picture(platform)
    for letter, cycle in zip("AB", node_cycles(platform), strict=True):
        assert f"  cycle {letter}  {' '.join(map(str, cycle))} {cycle[0]}" in lines


def test_ring_and_chain_are_drawn() -> None:
    """Platforms §3.1: a ring of 12 chips, in two rows that meet at both ends; an open chain of 6."""
    assert picture(load_platform("inf2.48xlarge"))[:3] == [
        "  [0]----[1]----[2]----[3]----[4]----[5]",
        "   |                                  |",
        "  [11]---[10]---[9]----[8]----[7]----[6]",
    ]
    assert picture(load_platform("inf2.24xlarge"))[0] == "  [0]---[1]---[2]---[3]---[4]---[5]"


def test_the_pod_is_drawn() -> None:
    """Platforms §3.4: the ring 0-1-2-3; left joins n and n ^ 1, right joins n and n ^ 3."""
    ring = [
        "  node 0 ==left== node 1",
        "    |               |",
        "  right           right",
        "    |               |",
        "  node 3 ==left== node 2",
    ]
    four = picture(load_platform("trn2u.48xlarge", nodes=4))
    at = four.index(ring[0])
    assert four[at : at + 5] == ring
    assert "64 GB/s" in four[at + 5]
    one = picture(load_platform("trn2u.48xlarge"))
    assert one[one.index(ring[0]) - 1] == "  a pod, with --nodes 4:"
    two = picture(load_platform("trn2u.48xlarge", nodes=2))
    assert ring[0] in two
    assert ring[4] not in two
    split = picture(load_platform("trn2u.48xlarge", nodes=4, pod_mode=3))
    assert "  node 0 ==left== node 2" in split


def test_owners_of_pod_cables() -> None:
    """Platforms §3.4: s-engines 1 and 2 own the left cables, 0 and 3 the right ones; §3.3 says which lanes they are."""
    lines = picture(load_platform("trn2u.48xlarge", nodes=4))
    assert "  chips 0-3,8-11: lanes 0 and 2 own left, 1 and 3 right" in lines
    assert "  chips 4-7,12-15: lanes 1 and 3 own left, 0 and 2 right" in lines


@pytest.mark.parametrize(
    ("name", "first", "last", "step"),
    [
        (
            "trn3pds98",
            "| server  0  [  0   1   2   3] |=====| server 18  [ 72  73  74  75] |",
            "| server 17  [ 68  69  70  71] |=====| server 35  [140 141 142 143] |",
            18,
        ),
        (
            "trn3pds98-gen1",
            "| server 0  [ 0  1 ... 15] |=====| server 2  [32 33 ... 47] |",
            "| server 1  [16 17 ... 31] |=====| server 3  [48 49 ... 63] |",
            2,
        ),
    ],
)
def test_racks_are_drawn(name: str, first: str, last: str, step: int) -> None:
    """Topology §5: two racks, and between them a cable from chip i of server s to chip i of server s + S."""
    lines = picture(load_platform(name))
    assert f"  {first}" in lines
    assert f"  {last}" in lines
    assert any(f"server s to chip i of server s + {step}," in line for line in lines)
    assert len(lines) < 16


@pytest.mark.parametrize("name", SHAPES)
def test_rates_come_from_parameters(name: str) -> None:
    """A drawing prints the rate of every class of link from the parameters, and no other number with a unit."""
    platform = load_platform(name, nodes=4 if name.startswith("trn2u") else 1)
    rates = [key for key in platform.parameters if key.endswith("bytes_per_second")]
    odd = {key: replace(platform.parameters[key], value=(7001 + i) * 10**9) for i, key in enumerate(rates)}
    drawn = "\n".join(drawing(replace(platform, parameters={**platform.parameters, **odd})))
    found = set(re.findall(r"([\d.]+) GB/s", drawn))
    assert found <= {str(7001 + i) for i in range(len(rates))}
    assert found or platform.chips == 1


def test_two_instances_say_the_rate_between_them() -> None:
    """Several instances are joined by EFA at the rate of a chip."""
    assert "by EFA, 25 GB/s a chip each way" in picture(load_platform("trn2.48xlarge", nodes=2))[-1]


@pytest.mark.parametrize(
    ("rows", "columns", "devices", "drawn"),
    [
        (1, 2, (0, 1), ["      [0]-----[1]"]),
        (2, 2, (0, 1, 2, 3), ["      [0]-----[1]", "       |       |", "      [2]-----[3]"]),
        (1, 8, tuple(range(8)), ["  [0] --- [1] [2] [4]", "  [1] --- [0] [3] [5]", "  [2] --- [0] [3] [6]"]),
    ],
)
def test_other_tori(rows: int, columns: int, devices: Sequence[int], drawn: list[str]) -> None:
    """A small torus is drawn without cables around its edges; a cube that is no grid, by its neighbours."""
    lines = picture(replace(load_platform("trn1.32xlarge"), rows=rows, columns=columns, routing_ids=tuple(devices)))
    assert lines[: len(drawn)] == drawn
