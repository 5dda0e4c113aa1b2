"""Laws of machine files: whatever a user's file says, it is a machine or a sentence about what is wrong with it."""

from __future__ import annotations

import copy
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.errors import UnsupportedError, UsageError
from rota.machine.platform import Platform, known_platforms, load_platform
from rota.machine.topology import LINK_PARAMETER, distance, link_class, neighbours, rack_local_rid, routing_id
from rota.report.machines import machine_json, machine_text

NAMES = known_platforms()
TEXTS = {
    name: resources.files("rota.machine").joinpath("platforms", f"{name}.toml").read_text(encoding="utf-8")
    for name in NAMES
}
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

ODD = st.one_of(
    st.integers(-2, 20),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8),
    st.sampled_from([*NAMES, "ring", "chain", "switch", "cube", "all", "sunda", "TRN2U"]),
    st.lists(st.integers(-1, 17), max_size=17),
    st.lists(st.lists(st.integers(0, 16), max_size=4), max_size=17),
    st.just({}),
    st.dictionaries(st.sampled_from(["value", "source", "x", "1"]), st.integers(0, 9), max_size=2),
)


def as_toml(value: Any) -> str:
    """Return a value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(each) for each in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def lines_of(machine: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {as_toml(value)}\n" for key, value in machine.items())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every key and entry of a file."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [each for key in keys for each in ((*path, key), *places(value[key], (*path, key)))]


def load(text: str | bytes, folder: Path, **how: int) -> Platform | None:
    """Return the machine of a file, or None where it is refused in one sentence that names the file."""
    path = folder / "mine.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    try:
        return load_platform(str(path), **how)
    except (UsageError, UnsupportedError) as refusal:
        error = refusal
    assert "\n" not in str(error)
    if isinstance(error, UnsupportedError):
        assert error.source is not None
    else:
        assert "mine.toml" in str(error) or str(error).startswith(("LNC", "nodes"))
    return None


def check(platform: Platform | None) -> None:
    """A machine that was accepted can be printed, and its links are of classes that have rates."""
    if platform is None:
        return
    assert list(machine_text(platform, sources=True))
    assert json.dumps(machine_json(platform))
    for other in range(min(platform.chip_count, 40)):
        kind = link_class(platform, 0, other)
        assert kind is None or platform.parameter(LINK_PARAMETER[kind]) > 0


@QUICK
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_one_changed_value_is_a_machine_or_a_sentence(data: st.DataObject, name: str, tmp_path: Path) -> None:
    """A file in which one value was replaced by another loads, or is refused with UsageError."""
    machine = tomllib.loads(TEXTS[name])
    path = data.draw(st.sampled_from(places(machine)))
    edited = copy.deepcopy(machine)
    inner = edited
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(ODD)
    check(load(lines_of(edited), tmp_path))


@QUICK
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_one_missing_key_is_a_machine_or_a_sentence(data: st.DataObject, name: str, tmp_path: Path) -> None:
    """A file that lost a key loads, or is refused with UsageError."""
    machine = tomllib.loads(TEXTS[name])
    path = data.draw(st.sampled_from(places(machine)))
    inner: Any = machine
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    check(load(lines_of(machine), tmp_path))


@QUICK
@given(data=st.data(), name=st.sampled_from(NAMES), junk=st.binary(max_size=3))
def test_damaged_text_is_a_machine_or_a_sentence(data: st.DataObject, name: str, junk: bytes, tmp_path: Path) -> None:
    """A file cut short, or with bytes replaced, loads or is refused with UsageError."""
    text = TEXTS[name].encode()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.sampled_from([at, at + len(junk), len(text)]))
    check(load(text[:at] + junk + text[end:], tmp_path))


@QUICK
@given(
    base=st.sampled_from(NAMES),
    table=st.dictionaries(
        st.sampled_from(["node", "lnc", "pod", "network", "layouts", "parameters", "readings", "ports", "name"]),
        st.one_of(ODD, st.dictionaries(st.sampled_from(["rows", "columns", "servers", "efa", "1", "shape"]), ODD)),
        max_size=3,
    ),
    lnc=st.sampled_from([1, 2, 3]),
    nodes=st.integers(0, 9),
)
def test_a_file_over_a_base_is_a_machine_or_a_sentence(
    base: str, table: dict[str, Any], lnc: int, nodes: int, tmp_path: Path
) -> None:
    """A file that changes a built-in machine in any way loads, or is refused with a sentence."""
    check(load(lines_of({"base": base, **table}), tmp_path, lnc=lnc, nodes=nodes))


@pytest.mark.parametrize("name", NAMES)
def test_the_writer_of_these_tests_loses_nothing(name: str, tmp_path: Path) -> None:
    """A built-in file written as these tests write files is the same machine, so that only the edit can be refused."""
    found = load(lines_of({"name": name, **tomllib.loads(TEXTS[name])}), tmp_path)
    assert found is not None
    known = load_platform(name)
    assert (found.name, found.parameters, found.layouts, found.sources) == (
        name, known.parameters, known.layouts, known.sources,
    )  # fmt: skip


@QUICK
@given(name=st.sampled_from(NAMES), data=st.data())
def test_links_are_symmetric(name: str, data: st.DataObject) -> None:
    """What joins a to b joins b to a; neighbours are at distance one, and a label is unique on an instance."""
    one = load_platform(name)
    machine = load_platform(name, nodes=data.draw(st.integers(1, 8)) if one.network else 1)
    a, b = (data.draw(st.integers(0, machine.chip_count - 1)) for _ in range(2))
    assert link_class(machine, a, b) is link_class(machine, b, a)
    for other in neighbours(machine, a):
        assert distance(machine, a, other) == 1
        assert a in neighbours(machine, other)
    labels = {routing_id(one, chip) for chip in range(one.chip_count)}
    assert len(labels) == one.chip_count
    assert rack_local_rid(machine, a) <= routing_id(machine, a)
