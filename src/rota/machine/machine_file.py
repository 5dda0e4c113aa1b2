"""Machine files as text: read one TOML file, lay it over its base, and ask it for checked values.

The two parts with rules of their own, the cube of the chips and the pods of the nodes, are read here too; the rest of
a machine is put together in `platform`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Final, NoReturn

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, Confidence, Source
from rota.isa.enums import PodType

SUFFIX: Final = ".toml"
S_ENGINES: Final = 4
"""S-engines of a chip whose ports belong to ranks. Source: platforms §2, high."""

PODS: Final = ("automatic", "X4", "X2H", "X2V", "X1")
"""How instances form pods, by NEURON_RT_ULTRASERVER_MODE. Source: platforms §1, high; "automatic" is UNSET there."""

_LARGEST_FILE: Final = 1 << 20
_LARGEST_SERVERS: Final = 256
_LONGEST_QUOTE: Final = 40
_LONGEST_PATH: Final = 200
_OWN_VALUE: Final = ("value", "by_lnc")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a machine file, with its place for the error messages.

    Every method that looks up a key raises UsageError when the key is missing or its value is not as asked.
    """

    file: str
    path: tuple[str, ...]
    entries: Mapping[str, Any]

    def refuse(self, key: str, expected: str, got: str) -> NoReturn:
        """Raise the error for a key of this table.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.file}: {'.'.join((*self.path, key))}: expected {expected}, got {got}")

    def only(self, keys: Sequence[str]) -> None:
        """Refuse any key that is not one of these; a key like it is suggested.

        Raises:
            UsageError: there is one.
        """
        for key in self.entries:
            if key not in keys:
                self.refuse(quote(key), nearest_name(key, keys), "a key without meaning")

    def has(self, key: str) -> bool:
        """Return whether the table has the key."""
        return key in self.entries

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`."""
        value = self._get(key)
        if type(value) is not int or not low <= value <= high:
            self.refuse(key, f"a whole number from {low} to {high}", quote(value))
        return int(value)

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value = self._get(key)
        if type(value) is not bool:
            self.refuse(key, "true or false", quote(value))
        return value is True

    def text(self, key: str, default: str | None = None) -> str:
        """Return one line of text that is not empty."""
        if default is not None and key not in self.entries:
            return default
        value = self._get(key)
        if type(value) is not str or not value.strip() or not value.isprintable():
            self.refuse(key, "one line of text", quote(value))
        return str(value)

    def one_of(self, key: str, values: Sequence[str]) -> str:
        """Return one of these texts."""
        value = self.text(key)
        if value not in values:
            self.refuse(key, nearest_name(value, values), quote(value))
        return value

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """Return a list of whole numbers, each from `low` to `high`."""
        return self._integers(key, self._get(key), low, high)

    def integer_rows(self, key: str, low: int, high: int) -> tuple[tuple[int, ...], ...]:
        """Return a list of lists of whole numbers, each from `low` to `high`."""
        value = self._get(key)
        if type(value) is not list:
            self.refuse(key, "a list of lists of whole numbers", quote(value))
        return tuple(self._integers(f"{key}[{i}]", row, low, high) for i, row in enumerate(value))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of lines of text."""
        value = self._get(key)
        if type(value) is not list or any(type(each) is not str or not each.isprintable() for each in value):
            self.refuse(key, "a list of lines of text", quote(value))
        return tuple(value)

    def table(self, key: str) -> Table:
        """Return the table of this name; an empty one where there is none."""
        value = self.entries.get(key, {})
        if type(value) is not dict:
            self.refuse(key, "a table", quote(value))
        return Table(self.file, (*self.path, key), value)

    def tables(self, key: str) -> tuple[Table, ...]:
        """Return the tables of a list of tables (`[[key]]`); none where the key is missing."""
        value = self.entries.get(key, [])
        if type(value) is not list or any(type(each) is not dict for each in value):
            self.refuse(key, f"tables, each under [[{key}]]", quote(value))
        return tuple(Table(self.file, (*self.path, f"{key}[{i}]"), each) for i, each in enumerate(value))

    def named_tables(self) -> tuple[tuple[str, Table], ...]:
        """Return the tables in this table, by name, in the order of the file."""
        return tuple((key, self.table(key)) for key in self.entries)

    def source(self) -> Source:
        """Return where the table says its values were read; without `source`, the file itself, as a convention."""
        if "source" not in self.entries:
            return Source(self.file, ".".join(self.path), CONVENTION)
        entry = self.table("source")
        entry.only(("page", "section", "confidence"))
        confidence = entry.one_of("confidence", [each.value for each in Confidence])
        return Source(entry.text("page"), entry.text("section"), Confidence(confidence))

    def _get(self, key: str) -> Any:
        if key not in self.entries:
            self.refuse(key, "a value", "nothing; add the key")
        return self.entries[key]

    def _integers(self, key: str, value: object, low: int, high: int) -> tuple[int, ...]:
        if type(value) is not list or any(type(each) is not int or not low <= each <= high for each in value):
            self.refuse(key, f"a list of whole numbers from {low} to {high}", quote(value))
        return tuple(value)


def builtin_names() -> tuple[str, ...]:
    """Return the names of the machine files of the package, in alphabetical order."""
    entries = resources.files("rota.machine").joinpath("platforms").iterdir()
    return tuple(sorted(entry.name.removesuffix(SUFFIX) for entry in entries if entry.name.endswith(SUFFIX)))


def is_path(name: str) -> bool:
    """Return whether the text names a file of the user rather than a machine of the package."""
    return "/" in name or name.endswith(SUFFIX)


def read_machine(name: str) -> Table:
    """Return a machine file laid over its base: a built-in machine by name, or a file of the user by path.

    A file that says `base = "NAME"` takes every key of that built-in machine that it does not have itself; tables are
    joined key by key, anything else is replaced. A parameter with a value of its own takes nothing from the base but
    its unit.

    Raises:
        UsageError: there is no such machine, or the file cannot be read, or is no TOML.
    """
    if is_path(name):
        file = _shown(name)
        own = _parse(_user_text(name), file=file)
        own.setdefault("name", Path(name).name.removesuffix(SUFFIX))
        return Table(file, (), _over_base(own, file=file))
    return Table(name + SUFFIX, (), _builtin(name, what="platform"))


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return what was expected instead of a name: all there are, and those it begins or else the one most like it."""
    wanted = name.lower()[:_LONGEST_QUOTE]
    folded = {each.lower(): each for each in known}
    close = [each for each in folded if wanted and each.startswith(wanted)] or get_close_matches(wanted, folded, 1)
    mean = f" (do you mean {' or '.join(folded[each] for each in close)}?)" if close and len(known) > 1 else ""
    return f"one of {', '.join(known)}{mean}"


def quote(value: object) -> str:
    """Return a value as short text on one line."""
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."


# --- files ------------------------------------------------------------------------------------------------------------


def _builtin(name: str, *, what: str) -> dict[str, Any]:
    known = builtin_names()
    if name not in known:
        raise UsageError(f"{what} {quote(name)} is not known: expected {nearest_name(name, known)}")
    text = resources.files("rota.machine").joinpath("platforms", name + SUFFIX).read_text(encoding="utf-8")
    return _over_base(tomllib.loads(text), file=name + SUFFIX)


def _user_text(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"machine file {_shown(name)} cannot be read: {error.strerror or 'no such file'}") from error
    except ValueError as error:
        raise UsageError(f"machine file {_shown(name)}: expected UTF-8 text, got other bytes") from error
    if len(content) > _LARGEST_FILE:
        raise UsageError(f"machine file {_shown(name)}: expected at most {_LARGEST_FILE} bytes, got more")
    return text


def _parse(text: str, *, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "a value that is too large"
        raise UsageError(f"machine file {file}: expected TOML, got {reason}") from error


def _over_base(own: dict[str, Any], *, file: str) -> dict[str, Any]:
    if "base" not in own:
        return own
    base = Table(file, (), own).text("base")
    return _join(_builtin(base, what=f"{file}: base"), {key: each for key, each in own.items() if key != "base"})


def _join(base: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(base)
    for key, value in own.items():
        under = joined.get(key)
        if not isinstance(value, dict) or not isinstance(under, dict):
            joined[key] = value
        elif any(each in value for each in _OWN_VALUE):
            joined[key] = {**{k: under[k] for k in ("unit",) if k in under}, **value}
        else:
            joined[key] = _join(under, value)
    return joined


def _shown(name: str) -> str:
    """Return a path as an error says it: whole if a person can read it."""
    return name if name.isprintable() and len(name) <= _LONGEST_PATH else quote(name)


# --- the cube ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cube:
    """The labels of the chips of a torus, and who owns their ports; all empty for other shapes."""

    routing_ids: tuple[int, ...] = ()  # routing id -> chip
    port_lane: tuple[tuple[int, ...], ...] | None = None  # chip -> owner of the port of routing id bit 0, 1, ...
    s_engine_lane: tuple[tuple[int, ...], ...] | None = None  # chip -> lane of s-engine 0, 1, ...


def read_cube(machine: Table, *, rows: int, columns: int) -> Cube:
    """Return the labels and ports of a torus of rows x columns chips.

    Raises:
        UsageError: the chips are no power of two, a label is missing, or a cable joins chips that are no neighbours.
    """
    chips = rows * columns
    routing = machine.table("routing")
    routing.only(("devices", "source"))
    routing_ids = routing.integers("devices", 0, chips - 1)
    if chips & chips - 1 or sorted(routing_ids) != list(range(chips)):
        routing.refuse("devices", f"each of {chips} chips once, and 2^n chips", f"{len(routing_ids)} numbers")
    ports = _ports(machine.table("torus"), routing_ids)
    if not machine.has("ports"):
        return Cube(routing_ids)
    if chips > 1 << S_ENGINES:
        machine.refuse("ports", f"at most {S_ENGINES} cables on a chip", f"{chips} chips")
    lanes = _s_engine_lanes(machine.table("ports"), chips, columns=columns)
    owners = tuple(tuple(lanes[chip][port] for port in row) for chip, row in enumerate(ports))
    return Cube(routing_ids, owners, lanes)


def _ports(torus: Table, routing_ids: tuple[int, ...]) -> list[list[int]]:
    """Return, for each chip, the position in its row of the table of the port of routing id bit 0, 1, ..."""
    torus.only(("neighbours", "source"))
    chips = len(routing_ids)
    bits = chips.bit_length() - 1
    table = torus.integer_rows("neighbours", 0, chips - 1)
    if len(table) != chips:
        torus.refuse("neighbours", f"one row for each of {chips} chips", f"{len(table)} rows")
    routing_id = {chip: rid for rid, chip in enumerate(routing_ids)}
    ports: list[list[int]] = []
    for chip, row in enumerate(table):
        steps = [routing_id[chip] ^ routing_id[other] for other in row]
        if sorted(steps) != [1 << bit for bit in range(bits)]:
            expected = f"for each of {bits} routing id bits the chip that differs in it"
            torus.refuse(f"neighbours[{chip}]", expected, quote(list(row)))
        ports.append([steps.index(1 << bit) for bit in range(bits)])
    return ports


def _s_engine_lanes(ports: Table, chips: int, *, columns: int) -> tuple[tuple[int, ...], ...]:
    """Return chip -> lane of s-engine 0, 1, ...; the s-engines of a chip follow the parities of its row and column."""
    ports.only(("lane_of_s_engine", "source"))
    table = ports.integer_rows("lane_of_s_engine", 0, S_ENGINES - 1)
    if len(table) != 4 or any(sorted(row) != list(range(S_ENGINES)) for row in table):
        expected = f"four rows, each with the lanes 0 to {S_ENGINES - 1} once"
        ports.refuse("lane_of_s_engine", expected, quote([list(row) for row in table]))
    return tuple(table[2 * (chip // columns % 2) + chip % columns % 2] for chip in range(chips))


# --- pods and racks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pods:
    """How the nodes of a machine form pods."""

    kind: PodType = PodType.NONE
    nodes: int = 1  # of one pod
    servers: int = 1  # nodes of one instance
    servers_per_rack: int = 0
    left: tuple[int, ...] = ()  # s-engines of the cables to node ^ 1
    right: tuple[int, ...] = ()  # to node ^ 3


def read_racks(machine: Table, *, mode: int) -> Pods:
    """Return the one pod of a switch machine: its servers, in one rack or two.

    Raises:
        UsageError: the servers do not fill one rack or two.
        UnsupportedError: an UltraServer mode, which is for pods of instances, is asked for.
    """
    pod = machine.table("pod")
    pod.only(("servers", "servers_per_rack", "source"))
    servers = pod.integer("servers", 1, _LARGEST_SERVERS)
    per_rack = pod.integer("servers_per_rack", 1, servers)
    if servers not in (per_rack, 2 * per_rack):
        pod.refuse("servers_per_rack", f"all or half of the {servers} servers", f"{per_rack}")
    if mode:
        _refuse_mode(machine, mode)
    return Pods(PodType.SWITCH, servers, servers, per_rack)


def read_pods(machine: Table, *, nodes: int, mode: int) -> Pods:
    """Return the pods of a number of instances; none where the machine has no cables between instances.

    Raises:
        UsageError: the mode does not divide the nodes, or the cables have no owners.
        UnsupportedError: a mode with pods is asked for, and the machine has none.
    """
    pod = machine.table("pod")
    if not pod.entries:
        if PODS[mode] not in ("automatic", "X1"):
            _refuse_mode(machine, mode)
        return Pods()
    pod.only(("left_s_engines", "right_s_engines", "source"))
    left, right = (pod.integers(f"{side}_s_engines", 0, S_ENGINES - 1) for side in ("left", "right"))
    if not machine.has("ports") or sorted(left + right) != list(range(S_ENGINES)):
        expected = "[ports], and each s-engine once, here or in right_s_engines"
        pod.refuse("left_s_engines", expected, quote([list(left), list(right)]))
    size = _pod_nodes(nodes, mode)
    return Pods(PodType.P2P if size > 1 else PodType.NONE, size, left=left, right=right)


def _pod_nodes(nodes: int, mode: int) -> int:
    """Return the nodes of one pod. Source: platforms §1 and §3.4; the automatic choice, convention."""
    name = PODS[mode]
    if name == "X1":
        return 1
    if name == "automatic":
        return 4 if nodes % 4 == 0 else 2 if nodes == 2 else 1
    if nodes % 4 == 0:
        return 4 if name == "X4" else 2
    if name == "X4" or nodes % 2 or (name == "X2V" and nodes != 2):
        several = {"X4": "a multiple of 4", "X2H": "a multiple of 2", "X2V": "2, or a multiple of 4,"}[name]
        raise UsageError(f"ultraserver mode {mode} ({name}): expected {several} nodes, got {nodes}")
    return 2


def _refuse_mode(machine: Table, mode: int) -> NoReturn:
    message = f"ultraserver mode {mode} ({PODS[mode]}): {machine.text('name')} is no UltraServer of instances; use 0"
    raise UnsupportedError(message, source=machine.table("node").source())
