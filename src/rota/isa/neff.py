"""What a NEFF is once it has been read: header, sections, tensors, group lists and instruction streams as values.

Files become these values in `frontends.neff`; nothing here reads or writes one. The records are in `container`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rota.errors import DecodeError, UnsupportedError
from rota.isa.container import ANY_TARGET, TARGETS, TARGETS_SOURCE
from rota.isa.counts import element_counts
from rota.isa.words import Stream, Word, decode_stream

Lists = tuple[tuple[int, ...], ...]
"""Lists of ranks: replica groups, or the pairs of a permute."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One tensor of a section; `size` is bytes, None where the file does not say.

    Attributes:
        identity: the number by which words name it.
        transfer: what it is for: input, output, state-buffer, virtual, ...
    """

    name: str
    identity: int
    dtype: str
    size: int | None
    transfer: str


@dataclass(frozen=True, slots=True)
class Instructions:
    """One engine's instructions in one section, as bytes; `member` is the file in the archive."""

    engine: str
    member: str
    data: memoryview


@dataclass(frozen=True, slots=True)
class Section:
    """One definition of a container.

    Attributes:
        definition: the member it was read from.
        variables: tensors by their number, which has no gaps.
        groups: the lists of replica groups, by group id; an empty list means every rank.
        pairs: the lists of (source, target) ranks of permutes.
        cc_streams: streams that collectives are spread over.
        instructions: one for each engine that has any, in the loader's order.
    """

    name: str
    definition: str
    variables: Mapping[int, Variable]
    groups: tuple[Lists, ...]
    pairs: tuple[Lists, ...]
    cc_streams: int
    instructions: tuple[Instructions, ...]


@dataclass(frozen=True, slots=True)
class Neff:
    """A container, read; `members` are its files and their sizes in bytes, in the order of the archive."""

    header: Mapping[str, int]
    name: str
    target: str
    members: Mapping[str, int]
    sections: tuple[Section, ...]


def stream_of(instructions: Instructions, *, where: str = "NEFF") -> Stream:
    """Return what an instruction stream holds.

    Raises:
        DecodeError: the stream is damaged; the message names the member, the offset is into it.
    """
    try:
        return decode_stream(instructions.data)
    except DecodeError as error:
        what = f"{where}: {instructions.member}: {error.what}"
        raise DecodeError(what, offset=error.offset, expected=error.expected, got=error.got) from None


def architecture(neff: Neff) -> str | None:
    """Return the architecture a container is for, None when it fits any.

    Raises:
        UnsupportedError: no architecture is called that.

    Source:
        isa §1, high.
    """
    if neff.target == ANY_TARGET:
        return None
    arch = TARGETS.get(neff.target)
    if arch is None:
        known = ", ".join(f"'{name}'" for name in (*TARGETS, ANY_TARGET))
        raise UnsupportedError(f"NEFF target '{shown(neff.target)}': expected one of {known}", source=TARGETS_SOURCE)
    return arch


def tensor_elements(word: Word, ranks: int) -> tuple[int, int]:
    """Return the elements one rank reads and writes, each counted from the beginning of its tensor.

    Raises:
        UnsupportedError: the kind is not counted, or there are no elements.
    """
    counts = element_counts(word.kind, word.num_elements, ranks=ranks)
    return word.src_offset + counts.input, word.dst_offset + counts.output


def shown(text: str | bytes) -> str:
    """Return text of a file fit for a message: at most 80 characters, what cannot be printed as `?`."""
    string = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(each if each.isprintable() else "?" for each in string[:80])
