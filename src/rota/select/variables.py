"""What an environment variable of the runtime takes: kinds of value, bounds, and the text of each.

The variables themselves, their defaults and the object that holds their values are in `settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

from rota.errors import UsageError
from rota.facts import Source
from rota.isa.enums import Algorithm, CommScope
from rota.units import format_size, parse_size

Value: TypeAlias = int | str | tuple[int, ...] | None
"""A bool counts as an int; None and the empty tuple mean that the variable is not set."""

ALG_TYPES: Final = "NEURON_RT_CC_ALG_TYPES"
ALGORITHMS: Final = int(Algorithm.INVALID)
"""Algorithms of one scope in the admission bitmap, bit = algorithm + 11 x scope. Source: select §3.1, high."""
ALL_ALG_TYPES: Final = (1 << ALGORITHMS * CommScope.MAX) - 1
"""Every bit of the admission bitmap, which is the default. Source: select §3.1, convention."""

_UINT: Final = re.compile(r"\d{1,20}|0x[0-9a-f]{1,16}", re.IGNORECASE | re.ASCII)
_SPELLED_FLAGS: Final = {"0": False, "1": True, "false": False, "true": True}
_SHOWN: Final = 40  # characters of a bad value that a message repeats
_COMPARED: Final = 80  # characters of an unknown word that are compared with the known ones


class Kind(Enum):
    """What the text of a variable stands for."""

    FLAG = "bool"
    COUNT = "uint"
    MODE = "mode"
    BYTES = "bytes"
    BYTES_LIST = "bytes list"
    BITMAP = "bitmap"
    TEXT = "string"


@dataclass(frozen=True, slots=True)
class Domain:
    """The values a variable takes.

    Attributes:
        kind: how its text is read.
        low: least value, of each entry of a list, or least characters of a text.
        high: greatest, likewise.
        step: values are multiples of it.
        zero: 0 is legal too.
        entries: least and most entries of a list; `cut` drops those behind the most instead of refusing them.
        optional: the variable may be unset; empty text says so.
        names: words for the values 0, 1, 2 and so on.
        why: what is wrong outside, for the message.
    """

    kind: Kind
    low: int = 0
    high: int = 1
    step: int = 1
    zero: bool = False
    entries: tuple[int, int] = (0, 0)
    cut: bool = False
    optional: bool = False
    names: tuple[str, ...] = ()
    why: str = ""

    @property
    def legal(self) -> str:
        """The legal values in words."""
        match self.kind:
            case Kind.FLAG:
                words = "0, 1, true or false"
            case Kind.BITMAP:
                words = "[INTRA_|INTER_]<NAME>_ALG with commas between, ^ before all of them for all but these"
            case Kind.TEXT:
                words = f"{self.low} to {self.high} visible ASCII characters"
            case Kind.MODE:
                words = ", ".join(map(str, range(self.low, self.high))) + f" or {self.high}"
            case Kind.COUNT:
                words = f"{self.low} to {self.high}"
            case Kind.BYTES:
                multiple = f"a multiple of {self.step} bytes from " if self.step > 1 else ""
                words = f"{multiple}{self.low} to {_size(self.high)}" + ("" if multiple else " bytes")
            case Kind.BYTES_LIST:
                least, most = self.entries
                many = str(most) if least == most else f"{least} to {most}"
                zero = "0 or " if self.zero else ""
                words = f"{many} sizes with commas between, each {zero}{self.low} to {self.high} bytes"
        return words + (f", or {', '.join(self.names)}" if self.names else "")

    def holds(self, value: Value) -> bool:
        """Say whether a value of the right type is legal."""
        match value:
            case None | ():
                return self.optional
            case str():
                return self.low <= len(value) <= self.high and all("!" <= each <= "~" for each in value)
            case tuple():
                return self.entries[0] <= len(value) <= self.entries[1] and all(map(self._holds_one, value))
        return self._holds_one(value)

    def _holds_one(self, value: int) -> bool:
        return (self.low <= value <= self.high and value % self.step == 0) or (self.zero and value == 0)


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: as the runtime spells it.
        field: of `Settings`.
        domain: the values it takes.
        default: of the field.
        meaning: what it changes.
        sources: of the default first, then of what the values mean.
        used: the packages that read the field; empty where nothing here depends on it.
        shown: the default in words, where the value of the field does not say it.
    """

    name: str
    field: str
    domain: Domain
    default: Value
    meaning: str
    sources: tuple[Source, ...]
    used: str = ""
    shown: str = ""

    @property
    def kind(self) -> Kind:
        """How its text is read."""
        return self.domain.kind

    @property
    def low(self) -> int:
        """Least value."""
        return self.domain.low

    @property
    def high(self) -> int:
        """Greatest value."""
        return self.domain.high

    @property
    def source(self) -> Source:
        """Where the default was read."""
        return self.sources[0]

    @property
    def default_text(self) -> str:
        """The default as a user reads it."""
        if self.shown:
            return self.shown
        if self.kind is Kind.BYTES and isinstance(self.default, int):
            return format_size(self.default)
        return str(self.format(self.default)) or "unset"

    def check(self, value: Value) -> None:
        """Refuse a value outside the domain.

        Raises:
            UsageError: with the name, what was expected and what was there.
        """
        if not self.domain.holds(value):
            raise self._bad(str(self.format(value)) if self.kind is not Kind.BITMAP else str(value))

    def parse(self, text: str) -> Value:
        """Return the value a text stands for.

        Raises:
            UsageError: the text is of another kind, or its value is not in the domain.
        """
        stripped = text.strip()
        if not stripped and self.domain.optional:
            return self.default
        value = self._read(stripped)
        if not self.domain.holds(value):
            raise self._bad(stripped)
        return value

    def format(self, value: Value) -> str | int:
        """Return a value as the number, or else the text, that `parse` reads back; unset is the empty text."""
        match value:
            case None:
                return ""
            case str():
                return value
            case tuple():
                return ",".join(map(str, value))
        return format_alg_types(value) if self.kind is Kind.BITMAP else int(value)

    def _read(self, text: str) -> Value:
        value: Value = None
        match self.kind:
            case Kind.FLAG:
                value = _SPELLED_FLAGS.get(text.lower())
            case Kind.COUNT | Kind.MODE if _UINT.fullmatch(text):
                value = _number(text)
            case Kind.MODE if text.upper() in self.domain.names:
                value = self.domain.names.index(text.upper())
            case Kind.BYTES:
                value = self._bytes(text, text)
            case Kind.BYTES_LIST:
                sizes = tuple(self._bytes(each.strip(), text) for each in text.split(","))
                value = sizes[: self.domain.entries[1]] if self.domain.cut else sizes
            case Kind.BITMAP:
                value = parse_alg_types(text)
            case Kind.TEXT:
                value = text
        if value is None:
            raise self._bad(text)
        return value

    def _bytes(self, text: str, whole: str) -> int:
        if _UINT.fullmatch(text):
            return _number(text)
        try:
            return parse_size(text)
        except UsageError:
            raise self._bad(whole) from None

    def _bad(self, got: str) -> UsageError:
        why = f"; {self.domain.why}" if self.domain.why else ""
        shown = shorten(got)
        return UsageError(f"{self.name}={shown}: expected {self.domain.legal}, got {shown or 'nothing'}{why}")


def shorten(text: str) -> str:
    """Return a text of a user as one short line of a message."""
    plain = text if text.isprintable() else ascii(text)[1:-1]
    return plain if len(plain) <= _SHOWN else plain[: _SHOWN - 3] + "..."


def nearest(word: str, known: tuple[str, ...]) -> str:
    """Return the known word that is most like a given one."""
    import difflib  # noqa: PLC0415 -- only a wrong name needs it

    return difflib.get_close_matches(word[:_COMPARED], known, n=1, cutoff=0.0)[0]


def _number(text: str) -> int:
    return int(text, 16) if text[:2] in ("0x", "0X") else int(text)


def _size(size: int) -> str:
    return format_size(size) if size >= 1 << 20 else str(size)


# The admission bitmap as text.


def admission_bit(algorithm: Algorithm, scope: CommScope) -> int:
    """Return the bitmap that admits one algorithm in one scope. Source: select §3.1, high."""
    return 1 << algorithm + ALGORITHMS * scope


def admits(alg_types: int, algorithm: Algorithm, scope: CommScope) -> bool:
    """Say whether a bitmap admits an algorithm in a scope; INVALID never. Source: select §4, high."""
    return algorithm is not Algorithm.INVALID and bool(alg_types & admission_bit(algorithm, scope))


_RDH: Final = (Algorithm.INTRA_RDH, Algorithm.INTER_RDH)
ALG_NAMES: Final[Mapping[str, tuple[Algorithm, Algorithm]]] = MappingProxyType(
    {each.name: (each, each) for each in Algorithm if each not in (*_RDH, Algorithm.INVALID)} | {"RDH": _RDH}
)
"""Names of the grammar, each with its algorithm inside a node and between nodes. Source: select §3.1, convention."""
_SCOPED: Final[Mapping[str, int]] = MappingProxyType(
    {
        f"{scope.name}_{name}_ALG": admission_bit(pair[scope], scope)
        for name, pair in ALG_NAMES.items()
        for scope in (CommScope.INTRA, CommScope.INTER)
    }
)
_BOTH: Final[Mapping[str, int]] = MappingProxyType(
    {f"{name}_ALG": _SCOPED[f"INTRA_{name}_ALG"] | _SCOPED[f"INTER_{name}_ALG"] for name in ALG_NAMES}
)
_TOKENS: Final[Mapping[str, int]] = MappingProxyType({**_BOTH, **_SCOPED})
_NAMELESS: Final = ALL_ALG_TYPES & ~sum(_BOTH.values())
"""The bits of recursive doubling in the other's scope, which nothing reads."""


def parse_alg_types(text: str) -> int:
    """Return the admission bitmap that a list of algorithms stands for.

    `RING_ALG,INTRA_MESH_ALG` admits these alone and `^INTER_RDH_ALG` all but these; a name without scope means both
    scopes, `^` alone everything. A bitmap no list names is written as one hexadecimal number.

    Raises:
        UsageError: an unknown or empty token, with the nearest known one; a number of more than 22 bits.

    Source:
        select §3.1, convention.
    """
    text = text.strip()
    if text[:2] in ("0x", "0X") and _UINT.fullmatch(text):
        bitmap = _number(text)
        if bitmap > ALL_ALG_TYPES:
            raise UsageError(f"{ALG_TYPES}={text}: expected 0 to {ALL_ALG_TYPES:#x}, got {text}")
        return bitmap
    listed = text.removeprefix("^")
    named = 0
    for token in listed.split(",") if listed != "" or text == "" else ():
        named |= _token(token.strip())
    return ALL_ALG_TYPES & ~named if text.startswith("^") else named


def _token(token: str) -> int:
    if token in _TOKENS:
        return _TOKENS[token]
    expected = "[INTRA_|INTER_]<NAME>_ALG"
    if not token:
        raise UsageError(f"{ALG_TYPES}: expected {expected} between commas, got nothing; for example ^INTER_RDH_ALG")
    if token.startswith("^"):
        raise UsageError(f"{ALG_TYPES}: expected ^ once, before the whole list, got {shorten(token)} inside it")
    near = nearest(token.upper(), tuple(_TOKENS))
    raise UsageError(f"{ALG_TYPES}: expected {expected}, got {shorten(token)}; the nearest known token is {near}")


def format_alg_types(bitmap: int) -> str:
    """Return the text of an admission bitmap; `parse_alg_types` reads the same bitmap back.

    Raises:
        UsageError: a bitmap of more than 22 bits.
    """
    if not 0 <= bitmap <= ALL_ALG_TYPES:
        raise UsageError(f"{ALG_TYPES}: expected a bitmap of 0 to {ALL_ALG_TYPES:#x}, got {bitmap:#x}")
    if bitmap & _NAMELESS == _NAMELESS:
        return "^" + _list(ALL_ALG_TYPES & ~bitmap)
    if bitmap and not bitmap & _NAMELESS:
        return _list(bitmap)
    return f"{bitmap:#x}"


def _list(bitmap: int) -> str:
    tokens: list[str] = []
    for token, both in _BOTH.items():
        halves = [f"{scope}_{token}" for scope in ("INTRA", "INTER") if bitmap & _SCOPED[f"{scope}_{token}"]]
        tokens += [token] if bitmap & both == both else halves
    return ",".join(tokens)
