"""What a NEFF says: its definitions with their tensors, group lists and instruction streams.

The header and the archive are read in `neff_archive`, the values made here are those of `isa.neff`. How words become
requests is `jobs`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rota.errors import UsageError
from rota.frontends.neff_archive import CAPS, Caps, is_neff, read_archive, read_header, read_members
from rota.isa.container import ENGINES, INDEX, OUTPUT
from rota.isa.neff import Instructions, Lists, Neff, Section, Variable, shown

__all__ = ["is_neff", "read_neff"]

_RANKS: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class _Files:
    """The members of a container, and what messages call it."""

    members: Mapping[str, memoryview]
    where: str
    caps: Caps


def read_neff(data: bytes, *, where: str = "NEFF", caps: Caps = CAPS) -> Neff:
    """Read a container. Its instruction streams stay bytes; `isa.neff.stream_of` reads one.

    Args:
        where: the name that messages give to the container, for example its file.
        caps: what it may take at most.

    Raises:
        DecodeError: the header or the archive is damaged.
        UnsupportedError: a version or feature this reader does not know.
        UsageError: members are missing or not what they should be, definitions contradict themselves, or the
            container takes more than `caps` allow.

    Source:
        isa §11, high.
    """
    header = read_header(data, where=where)
    members = read_members(read_archive(data, header, where=where, caps=caps), where=where, caps=caps)
    files = _Files(members, where, caps)
    index = _json(files, INDEX)
    target = _text(index.get("target", ""), f"{where}: {INDEX}: target")
    graphs = _list(index.get("graphs"), f"{where}: {INDEX}: graphs")
    sections = tuple(_section(graph, files) for graph in graphs)
    if not sections:
        raise UsageError(f"{where}: {INDEX} names no graph, expected at least one definition")
    definitions = [section.definition for section in sections]
    if len(set(definitions)) < len(definitions):
        raise UsageError(f"{where}: {INDEX} names a definition twice, expected each once")
    return Neff(
        header=header,
        name=shown(header["name"].to_bytes(256, "little").split(b"\0", 1)[0]),
        target=target,
        members={name: len(body) for name, body in members.items()},
        sections=sections,
    )


# --- definitions ------------------------------------------------------------------------------------------------------


def _section(graph: Any, files: _Files) -> Section:
    entry = _object(graph, f"{files.where}: {INDEX}: graph")
    path = _text(entry.get("definition"), f"{files.where}: {INDEX}: definition").removeprefix("./")
    definition = _json(files, path)
    folder, slash, _ = path.rpartition("/")
    where = f"{files.where}: {path}"
    return Section(
        name=_text(definition.get("name", folder), f"{where}: name"),
        definition=path,
        variables=_variables(definition, where),
        groups=tuple(_groups(definition, where)),
        pairs=tuple(_pairs(definition, where)),
        cc_streams=_cc_streams(definition, where),
        instructions=tuple(_instructions(folder + slash, files)),
    )


def _variables(definition: Mapping[str, Any], where: str) -> Mapping[int, Variable]:
    """Return tensors by number; the numbers have no gaps, and one tensor at least is an output."""
    out: dict[int, Variable] = {}
    for name, entry in _object(definition.get("var"), f"{where}: var").items():
        place = f"{where}: tensor '{shown(name)}'"
        fields = _object(entry, place)
        identity = _number(fields.get("var_id"), f"{place}: var_id", below=1 << 32)
        if identity in out:
            raise UsageError(f"{place}: var_id {identity} belongs to '{shown(out[identity].name)}', expected its own")
        size = None if fields.get("size") is None else _number(fields["size"], f"{place}: size", below=1 << 63)
        transfer = fields.get("#transfer-type", fields.get("type", ""))
        out[identity] = Variable(
            name=name,
            identity=identity,
            dtype=_text(fields.get("dtype", ""), f"{place}: dtype"),
            size=size,
            transfer=_text(transfer, f"{place}: #transfer-type"),
        )
    if out and max(out) + 1 != len(out):
        raise UsageError(f"{where}: {len(out)} tensors have var_ids up to {max(out)}, expected 0 to {len(out) - 1}")
    if not any(variable.transfer == OUTPUT for variable in out.values()):
        raise UsageError(f"{where}: no tensor is an {OUTPUT}, expected at least one")
    return out


def _groups(definition: Mapping[str, Any], where: str) -> Iterator[Lists]:
    """Yield the lists in the order of their ids: that the outer index is the group id is isa §10, medium."""
    for number, topology in enumerate(_list(definition.get("replica_groups", []), f"{where}: replica_groups")):
        place = f"{where}: replica_groups[{number}]"
        groups = tuple(_ranks(group, place) for group in _list(topology, place))
        members = [rank for group in groups for rank in group]
        if not all(groups):
            raise UsageError(
                f"{place}: a group has no ranks, expected at least one in each, or no groups for all ranks"
            )
        if len(set(members)) < len(members):
            raise UsageError(f"{place}: a rank is there twice, expected each once")
        yield groups


def _pairs(definition: Mapping[str, Any], where: str) -> Iterator[Lists]:
    for number, entry in enumerate(_list(definition.get("src_target_pairs", []), f"{where}: src_target_pairs")):
        place = f"{where}: src_target_pairs[{number}]"
        pairs = tuple(_ranks(pair, place) for pair in _list(entry, place))
        if any(len(pair) != 2 for pair in pairs):
            raise UsageError(f"{place}: expected pairs of a source and a target")
        yield pairs


def _ranks(group: Any, where: str) -> tuple[int, ...]:
    return tuple(_number(rank, f"{where}: rank", below=_RANKS) for rank in _list(group, where))


def _cc_streams(definition: Mapping[str, Any], where: str) -> int:
    """Return the number of streams collectives are spread over: stated in either of two places, or 1."""
    value = definition.get("num_streams")
    if value is None and definition.get("cc_stream") is not None:
        value = _object(definition["cc_stream"], f"{where}: cc_stream").get("num_streams")
    return 1 if value is None else _number(value, f"{where}: num_streams", below=1 << 16)


def _instructions(folder: str, files: _Files) -> Iterator[Instructions]:
    """Yield the streams that the engines' manifests name; an engine without a manifest has none."""
    for engine in ENGINES:
        manifest = f"{folder}{engine}.json"
        if manifest not in files.members:
            if f"{folder}{engine}.bin" in files.members:
                raise UsageError(f"{files.where}: '{folder}{engine}.bin' is there without its manifest '{manifest}'")
            continue
        instr = _text(_json(files, manifest).get("instr"), f"{files.where}: {manifest}: instr")
        member = folder + instr.removeprefix("./")
        if member not in files.members:
            raise UsageError(f"{files.where}: {manifest} names '{shown(member)}', which is not in the archive")
        yield Instructions(engine, member, files.members[member])


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json(files: _Files, name: str) -> Mapping[str, Any]:
    """Return a member that is a JSON object."""
    data = files.members.get(name)
    if data is None:
        raise UsageError(f"{files.where}: member '{shown(name)}' is missing; is the archive whole?")
    if len(data) > files.caps.json:
        raise UsageError(f"{files.where}: member '{name}' has {len(data)} bytes, expected at most {files.caps.json}")
    try:
        value = json.loads(bytes(data), object_pairs_hook=_unique)
    except RecursionError:
        raise UsageError(f"{files.where}: member '{name}' is nested too deeply to be a definition") from None
    except ValueError as error:
        raise UsageError(f"{files.where}: member '{name}' is no JSON ({shown(str(error))})") from None
    return _object(value, f"{files.where}: {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{shown(twice)}' is there twice")
    return out


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what}: expected an object, got {_kind(value)}")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{what}: expected a list, got {_kind(value)}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{what}: expected text, got {_kind(value)}")
    return value


def _number(value: Any, what: str, *, below: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        raise UsageError(f"{what}: expected a whole number from 0 to {below - 1}, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """Say what a JSON value is, and a number or word itself."""
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else shown(json.dumps(value))
