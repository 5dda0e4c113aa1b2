"""HLO text taken apart: strings, comments, brackets, computations, instructions, attributes, shapes.

Knows the shape of the text and nothing of what an instruction means; collectives live in `hlo`, replica groups in
`hlo_groups`. Every pass over the text is linear and nothing here recurses, so that any text is read or refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rota.errors import UsageError
from rota.facts import Source

# A quoted string or a comment; one that never ends runs to the end of the text and is refused there.
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\(?:.|\Z))*+("?)|/\*.*?(\*/|\Z)|//[^\n]*', re.DOTALL)
_FIRST_WORD: Final = re.compile(r"\ufeff?(?:\s|//[^\n]*|/\*.*?\*/)*+HloModule\s", re.DOTALL)
_BRACKET: Final = re.compile(r"[()\[\]{}]")
_BRACKET_OR_COMMA: Final = re.compile(r"[()\[\]{},]")
_OPENED_BY: Final = {")": "(", "]": "[", "}": "{"}

_MODULE: Final = re.compile(r"HloModule\s+([^\s,]+)\s*(?:,(.*))?", re.DOTALL)
_COMPUTATION: Final = re.compile(r"\s*(?:ENTRY\s+)?(%[\w.\-]++|(?!HloModule\b)[A-Za-z_][\w.\-]*+)\s*+(?:\(|\{?\s*+$)")
_TABLE: Final = re.compile(r"[A-Za-z]\w*|\d+\s.*", re.DOTALL)  # FileNames, FunctionNames ... and their numbered rows
_INSTRUCTION: Final = re.compile(r"(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_SHAPE_WORD: Final = re.compile(r"\w*")
_OPCODE: Final = re.compile(r"\s*([a-z][\w\-]*)\s*\(")
_ATTRIBUTE: Final = re.compile(r"(\w+)\s*=\s*(.*)", re.DOTALL)
_ARRAY: Final = re.compile(r"(?<!\w)(\w++)\[([^\[\]]*)\]")
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)

_HEAD_BYTES: Final = 1 << 16
_LARGEST_ARRAY: Final = 1 << 50  # elements; nothing real is near, and products stay small numbers

ELEMENT_SIZES_SOURCE: Final = Source("interchange", "4.5")
ELEMENT_SIZES: Final[Mapping[str, int]] = {
    "pred": 1,
    "s8": 1, "s16": 2, "s32": 4, "s64": 8,
    "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16,
    "f8e4m3fn": 1, "f8e4m3": 1, "f8e5m2": 1, "f8e3m4": 1, "f8e8m0fnu": 1,
    "f8e4m3fnuz": 1, "f8e5m2fnuz": 1, "f8e4m3b11fnuz": 1,
}  # fmt: skip
SUB_BYTE_TYPES: Final = frozenset({"s1", "u1", "s2", "u2", "s4", "u4", "f4e2m1fn"})
NOT_DATA_TYPES: Final = frozenset({"token", "opaque"})


@dataclass(frozen=True, slots=True)
class Array:
    """The shape of one array: HLO's element name and the dimensions, layout dropped."""

    element: str
    dims: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements of the array."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return self.count * ELEMENT_SIZES[self.element]

    def __str__(self) -> str:
        return f"{self.element}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its parts still text: `name = shape opcode(operands), attributes`."""

    line: int
    name: str
    root: bool
    shape: str
    opcode: str
    operands: str
    attributes: str


@dataclass(frozen=True, slots=True)
class Computation:
    """The instructions of one computation by name, in the order of the text."""

    line: int
    name: str
    instructions: Mapping[str, Instruction]
    root: Instruction  # the one marked ROOT, or the last one


@dataclass(frozen=True, slots=True)
class ModuleText:
    """A module: the attributes of its header as text, and its computations by name."""

    name: str
    attributes: Mapping[str, str]
    computations: Mapping[str, Computation]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A stretch of text that ends where a line ends with no bracket open."""

    line: int
    text: str
    opens: bool  # the head of a computation, up to its brace
    inside: bool  # an instruction of the computation that was opened last


def is_hlo(data: bytes) -> bool:
    """Return whether the first word, after blanks and comments, is `HloModule`."""
    return _FIRST_WORD.match(data[:_HEAD_BYTES].decode("utf-8", "replace")) is not None


def read_module(text: str, *, where: str) -> ModuleText:
    """Return the module that the text spells.

    Raises:
        UsageError: the text has no `HloModule` line, no computation, a bracket, string or comment that does not
            close, a line that is no instruction, or a name that is defined twice.
    """
    header: str | None = None
    heads: list[_Statement] = []
    bodies: list[list[_Statement]] = []
    for statement in _statements(_without_strings(text.removeprefix("\ufeff"), where), where):
        at = f"{where}, line {statement.line}"
        if header is None:
            if not _MODULE.fullmatch(statement.text):
                raise UsageError(
                    f"{at}: expected an HLO module that starts with 'HloModule name', got {_short(statement.text)}"
                )
            header = statement.text
        elif statement.opens:
            heads.append(statement)
            bodies.append([])
        elif statement.inside:
            bodies[-1].append(statement)
        elif not (statement.text.startswith(",") and heads) and not _TABLE.fullmatch(statement.text):
            raise UsageError(
                f"{at}: expected a computation with one instruction a line, as XLA prints it, got "
                f"{_short(statement.text)}"
            )
    match = _MODULE.fullmatch(header or "")
    if match is None:
        raise UsageError(f"{where}: expected an HLO module that starts with 'HloModule name', got no text")
    if not heads:
        raise UsageError(f"{where}: expected a module with computations, got the header of '{match[1]}' alone")
    return ModuleText(match[1], _header_attributes(match[2] or "", where), _computations(heads, bodies, where))


def split_commas(text: str) -> list[str]:
    """Return the parts between the commas outside all brackets, stripped; of a blank text, none."""
    parts: list[str] = []
    depth = begin = 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        if match[0] == ",":
            if depth == 0:
                parts.append(text[begin : match.start()].strip())
                begin = match.end()
        else:
            depth += 1 if match[0] in "([{" else -1
    last = text[begin:].strip()
    return [*parts, last] if parts or last else []


def read_attributes(instruction: Instruction) -> dict[str, str]:
    """Return the attributes of an instruction by name, their values as text (strings blank).

    Raises:
        UsageError: an attribute has no name, or a name comes twice.
    """
    out: dict[str, str] = {}
    for part in split_commas(instruction.attributes):
        match = _ATTRIBUTE.fullmatch(part)
        if match is None:
            raise UsageError(f"expected attributes of the form name=value, got {_short(part)}")
        if match[1] == "device_ids" and "replica_groups" in out:  # the comma inside a mesh of devices
            out["replica_groups"] += f", {part}"
        elif match[1] in out:
            raise UsageError(f"attribute {match[1]} is given twice")
        else:
            out[match[1]] = match[2]
    return out


def read_arrays(shape: str) -> tuple[Array, ...]:
    """Return the arrays of a shape, nested tuples flattened, layouts dropped.

    Raises:
        UsageError: an element type is unknown, is no data or has no whole-byte size; a dimension is dynamic or
            too large.
    """
    return tuple(_array(match[1], match[2]) for match in _ARRAY.finditer(shape))


def tuple_members(shape: str) -> list[str]:
    """Return the members of a tuple shape as text; of a shape that is no tuple, the shape itself."""
    shape = shape.strip()
    return split_commas(shape[1:-1]) if shape.startswith("(") and shape.endswith(")") else [shape]


def operand_names(instruction: Instruction) -> list[str]:
    """Return the names of the operands, with neither `%` nor the printed shapes."""
    return [part.rsplit(None, 1)[-1].removeprefix("%") for part in split_commas(instruction.operands) if part]


def operand_arrays(instruction: Instruction, computation: Computation) -> tuple[Array, ...]:
    """Return the array each operand is, from its definition in the same computation.

    Raises:
        UsageError: there is no operand, an operand is not defined, is a tuple, or is printed with another shape.
    """
    out: list[Array] = []
    for part in split_commas(instruction.operands):
        *printed, name = part.rsplit(None, 1) or [""]
        definition = computation.instructions.get(name.removeprefix("%"))
        if definition is None:
            raise UsageError(f"operand {name or 'without a name'} is not defined in computation {computation.name}")
        arrays = () if definition.shape.startswith("(") else read_arrays(definition.shape)
        if len(arrays) != 1:
            raise UsageError(f"operand {name} is {_short(definition.shape)}, expected one array")
        if printed and read_arrays(printed[0]) != arrays:
            raise UsageError(f"operand {name} is printed as {_short(printed[0])} but defined as {arrays[0]}")
        out.extend(arrays)
    if not out:
        raise UsageError("it has no operand")
    return tuple(out)


def _array(element: str, dims: str) -> Array:
    if element in SUB_BYTE_TYPES:
        raise UsageError(f"element type {element} has no whole-byte size")
    if element in NOT_DATA_TYPES:
        raise UsageError(f"element type {element} is no data")
    if element not in ELEMENT_SIZES:
        raise UsageError(f"element type {_short(element)} is unknown, expected one of {', '.join(ELEMENT_SIZES)}")
    numbers: list[int] = []
    count = 1
    for dim in split_commas(dims):
        if not _NUMBER.fullmatch(dim):
            raise UsageError(f"dimension {_short(dim)} is no fixed number")
        numbers.append(int(dim))
        count *= numbers[-1]
        if count > _LARGEST_ARRAY:
            raise UsageError(f"an array of {element} has more than {_LARGEST_ARRAY} elements")
    return Array(element, tuple(numbers))


def _without_strings(text: str, where: str) -> str:
    """Return the text with strings emptied and comments blanked, every line where it was."""

    def blank(match: re.Match[str]) -> str:
        is_string = match[1] is not None
        if "" in (match[1], match[2]):
            line = text.count("\n", 0, match.start()) + 1
            raise UsageError(f"{where}, line {line}: the {'string' if is_string else 'comment'} begun here never ends")
        return ('""' if is_string else " ") + "\n" * match[0].count("\n")

    return _QUOTED.sub(blank, text)


def _statements(text: str, where: str) -> Iterator[_Statement]:
    """Yield the header, the heads of computations, their instructions and what stands between, checking brackets."""
    opened: list[tuple[str, int]] = []
    parts: list[str] = []
    first = 1
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        begin = 0
        end = len(line.rstrip())
        for match in _BRACKET.finditer(line):
            bracket = match[0]
            if bracket in "([{":
                opened.append((bracket, number))
                if len(opened) == 1 and bracket == "{" and match.end() == end and _is_head(parts, line):
                    yield _Statement(first if parts else number, _joined(parts, line[: match.start()]), True, False)
                    parts, begin, inside = [], match.end(), True
                continue
            if not opened or opened.pop()[0] != _OPENED_BY[bracket]:
                raise UsageError(f"{where}, line {number}: '{bracket}' closes a bracket that is not open")
            if inside and not opened:
                if last := _joined(parts, line[begin : match.start()]):
                    yield _Statement(first if parts else number, last, False, True)
                parts, begin, inside = [], match.end(), False
        rest = line[begin:].strip()
        if not rest:
            continue
        if not parts:
            first = number
        parts.append(rest)
        if len(opened) == inside and rest[-1] not in ",=":
            yield _Statement(first, _joined(parts, ""), False, inside)
            parts = []
    if opened:
        raise UsageError(f"{where}, line {opened[-1][1]}: '{opened[-1][0]}' is never closed")
    if parts:
        raise UsageError(f"{where}, line {first}: the text ends in the middle of {_short(parts[0])}")


def _is_head(parts: list[str], line: str) -> bool:
    return _COMPUTATION.match(parts[0] if parts else line) is not None


def _joined(parts: list[str], last: str) -> str:
    return " ".join([*parts, last]).strip()


def _header_attributes(text: str, where: str) -> dict[str, str]:
    """Return the attributes of the `HloModule` line; those without a value are dropped."""
    matches = [_ATTRIBUTE.fullmatch(part) for part in split_commas(text)]
    out: dict[str, str] = {}
    for match in matches:
        if match and match[1] in out:
            raise UsageError(f"{where}: the HloModule line gives {match[1]} twice")
        if match:
            out[match[1]] = match[2]
    return out


def _computations(heads: list[_Statement], bodies: list[list[_Statement]], where: str) -> dict[str, Computation]:
    out: dict[str, Computation] = {}
    for head, body in zip(heads, bodies, strict=True):
        match = _COMPUTATION.match(head.text)
        assert match is not None
        name = match[1].removeprefix("%")
        if name in out:
            raise UsageError(
                f"{where}, line {head.line}: computation {name} is defined a second time, first on line "
                f"{out[name].line}"
            )
        if not body:
            raise UsageError(f"{where}, line {head.line}: computation {name} has no instructions")
        instructions: dict[str, Instruction] = {}
        for statement in body:
            one = _instruction(statement, where)
            if one.name in instructions:
                raise UsageError(
                    f"{where}, line {one.line}: {one.name} is defined a second time in computation {name}, first on "
                    f"line {instructions[one.name].line}"
                )
            instructions[one.name] = one
        *_, last = instructions.values()
        root = next((one for one in instructions.values() if one.root), last)
        out[name] = Computation(head.line, name, instructions, root)
    return out


def _instruction(statement: _Statement, where: str) -> Instruction:
    text = statement.text
    head = _INSTRUCTION.match(text)
    if head is not None:
        shape_end = _shape_end(text, head.end())
        opcode = _OPCODE.match(text, shape_end)
        if opcode is not None and shape_end > head.end():
            closing = _closing(text, opcode.end() - 1)
            rest = text[closing + 1 :].lstrip()
            if not rest or rest[0] == ",":
                shape = text[head.end() : shape_end]
                operands = text[opcode.end() : closing]
                return Instruction(statement.line, head[2], bool(head[1]), shape, opcode[1], operands, rest[1:])
    raise UsageError(
        f"{where}, line {statement.line}: expected an instruction 'name = shape opcode(operands), attributes', got "
        f"{_short(text)}"
    )


def _shape_end(text: str, begin: int) -> int:
    """Return where a shape ends: a word and the bracketed parts that follow it without a blank."""
    match = _SHAPE_WORD.match(text, begin)
    end = match.end() if match else begin
    while end < len(text) and text[end] in "([{":
        end = _closing(text, end) + 1
    return end


def _closing(text: str, begin: int) -> int:
    """Return the place of the bracket that closes the one at `begin`; kinds were matched when the text was cut."""
    depth = 0
    for match in _BRACKET.finditer(text, begin):
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return match.start()
    raise AssertionError("statements are balanced")


def _short(text: str) -> str:
    """Return the text quoted on one line, cut to a length that fits a message."""
    flat = " ".join(text[:200].split())
    return repr(flat if len(flat) <= 60 else flat[:57] + "...")
