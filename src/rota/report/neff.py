"""A NEFF as text and as JSON: header, members, sections, tensors, groups, and the collective words of each stream.

A stream that is damaged is said to be, in its place; the rest is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rota.errors import DecodeError, RotaError
from rota.isa.container import ANY_TARGET
from rota.isa.dtypes import short_name
from rota.isa.neff import Instructions, Neff, Section, architecture, shown, stream_of
from rota.isa.opcodes import Opcode, describe_opcode
from rota.isa.operands import Addr8Form, Pattern2D
from rota.isa.pairs import Pair
from rota.isa.records import WORD_SIZE
from rota.isa.words import Word
from rota.machine.group import format_groups
from rota.request import Groups

Record = dict[str, Any]
_NUMBERS: Final = (
    "pkg_version", "version_major", "version_minor", "data_size", "feature_bits", "core_count", "virtual_core",
)  # fmt: skip
_RAW: Final = (("hash", 32), ("uuid", 16))


def neff_json(neff: Neff) -> Record:
    """Return the JSON document of a container; `damaged` counts the streams that cannot be read."""
    sections = [_section(section) for section in neff.sections]
    return {
        "schema": 1,
        "damaged": sum(stream["damaged"] is not None for section in sections for stream in section["streams"]),
        "header": _header(neff),
        "members": [{"name": name, "size": size} for name, size in neff.members.items()],
        "sections": sections,
    }


def neff_text(document: Record) -> Iterator[str]:
    """Yield the lines of a listing, made of a JSON document: what a line is about, then its fields."""
    yield _line("header", document["header"])
    yield from (_line("member", member) for member in document["members"])
    for section in document["sections"]:
        heading = {name: section[name] for name in ("name", "definition", "cc_streams")}
        yield _line("section", heading)
        yield from (_line("tensor", tensor) for tensor in section["tensors"])
        for identity, groups in enumerate(section["groups"]):
            yield _line("groups", {"id": identity, "ranks": format_groups(groups) or "all"})
        for identity, pairs in enumerate(section["pairs"]):
            yield _line("pairs", {"id": identity, "pairs": ";".join(f"{a}>{b}" for a, b in pairs)})
        for stream in section["streams"]:
            yield _line("stream", {name: stream[name] for name in ("engine", "member", "records")})
            if stream["damaged"] is not None:
                yield f"damaged  {stream['damaged']}"
            yield from (_line("word", word) for word in stream["words"])
            yield from (_line("other", other) for other in stream["others"])


def _header(neff: Neff) -> Record:
    try:
        arch = architecture(neff)
    except RotaError:
        arch = "unknown"
    numbers = {name: neff.header[name] for name in _NUMBERS}
    raw = {name: neff.header[name].to_bytes(size, "little").hex() for name, size in _RAW}
    return {
        "name": neff.name,
        "target": shown(neff.target),
        "architecture": arch or ANY_TARGET,
        **numbers,
        **raw,
    }


def _section(section: Section) -> Record:
    return {
        "name": shown(section.name),
        "definition": section.definition,
        "cc_streams": section.cc_streams,
        "tensors": [
            {
                "id": each.identity,
                "name": shown(each.name),
                "transfer": shown(each.transfer),
                "dtype": shown(each.dtype),
                "size": each.size,
            }
            for _, each in sorted(section.variables.items())
        ],
        "groups": [_lists(groups) for groups in section.groups],
        "pairs": [_lists(pairs) for pairs in section.pairs],
        "streams": [_stream(instructions, section) for instructions in section.instructions],
    }


def _lists(groups: Groups) -> list[list[int]]:
    return [list(group) for group in groups]


def _stream(instructions: Instructions, section: Section) -> Record:
    words: list[Record] = []
    others: list[Record] = []
    damaged = None
    try:
        stream = stream_of(instructions, where=section.name)
        words = [_word(word, section) for word in stream.words] + [_pair(pair, section) for pair in stream.pairs]
        words.sort(key=lambda record: int(record["record"]))
        others = [{"opcode": describe_opcode(code), "count": count} for code, count in sorted(stream.passed.items())]
    except DecodeError as error:
        damaged = str(error)
    return {
        "engine": instructions.engine,
        "member": instructions.member,
        "records": len(instructions.data) // WORD_SIZE,
        "damaged": damaged,
        "words": words,
        "others": others,
    }


def _word(word: Word, section: Section) -> Record:
    return {
        "record": word.index + 1,
        "offset": word.offset,
        "opcode": describe_opcode(word.opcode),
        "kind": word.kind.name,
        "op": word.alu_op.name,
        "dtype": short_name(word.dtype),
        "group": word.group_id,
        "input": _tensor(word.input_id, section),
        "output": _tensor(word.output_id, section),
        "elements": word.num_elements,
        "src_offset": word.src_offset,
        "dst_offset": word.dst_offset,
    }


def _pair(pair: Pair, section: Section) -> Record:
    return {
        "record": pair.index + 1,
        "offset": pair.offset,
        "opcode": describe_opcode(Opcode.PSEUDO_TRIGGER_COLLECTIVE2),
        "kind": pair.kind.name,
        "op": pair.alu_op.name,
        "dtype": short_name(pair.dtype),
        "group": pair.group_id,
        "stream": pair.stream_id,
        "chaining": pair.chaining.name,
        "input": _operand(pair.src0, section),
        "output": _operand(pair.dst, section),
        "elements": pair.num_elements,
    }


def _operand(pattern: Pattern2D, section: Section) -> str:
    if pattern.form is Addr8Form.VARIABLE:
        return _tensor(pattern.value, section)
    return f"{pattern.address:#x}"


def _tensor(identity: int, section: Section) -> str:
    variable = section.variables.get(identity)
    return f"{identity}:{shown(variable.name) if variable else '?'}"


def _line(what: str, fields: Mapping[str, Any]) -> str:
    return f"{what:<8} " + " ".join(f"{name}={_value(value)}" for name, value in fields.items())


def _value(value: Any) -> str:
    text = "?" if value is None else str(value)
    return f"'{text}'" if " " in text or not text else text
