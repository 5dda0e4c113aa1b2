"""Tensor handles of instruction words as the tensors of one program: the same handle is the same buffer.

Words that a rank carries out on a tensor take the same bytes of it, or bytes that do not touch: then what one leaves
there the next one finds. Anything else is refused, with both words named. A chain of several pairs, or one with gaps,
takes pieces; it runs on tensors of its own, and nothing that it shares may be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from rota.errors import RotaError, UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.frontends.options import refuse
from rota.isa.words import decode_word, encode_word
from rota.pipeline import Composed, word_of
from rota.request import Job, Operand, Operands, Request

Names = tuple[str, str]
"""What a request reads, and what it writes; one and the same name in place."""

SHARED_SOURCE: Final = Source("isa", "10, two words on one tensor", CONVENTION)
_WHOLE: Final = 1  # operands that a request takes whole, on each side


@dataclass(frozen=True, slots=True)
class _Used:
    """Bytes of a tensor in use by a word, on these ranks."""

    operand: Operand
    writes: bool
    ranks: frozenset[int]
    job: Job


def bind_tensors(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the jobs of a file with the names of their tensors; those that disagree with an earlier one are refused.

    Jobs of the command line and of HLO, and collectives in pieces, get no names: they have tensors of their own.
    """
    used: dict[tuple[int, int], dict[tuple[Operand, bool, frozenset[int]], _Used]] = {}
    names: dict[tuple[int, int], dict[tuple[int, int], str]] = {}
    out = []
    for job in jobs:
        try:
            uses = list(_uses(job))
            _check_alone(job)
            for use in uses:
                _check_together(use, used.get(_key(use.operand), {}).values())
        except RotaError as error:
            out.append(replace(refuse(job, error), operands=()))
            continue
        for use in uses:
            used.setdefault(_key(use.operand), {}).setdefault((use.operand, use.writes, use.ranks), use)
        out.append(replace(job, tensors=_tensors(job, names)))
    return tuple(out)


def _key(operand: Operand) -> tuple[int, int]:
    return operand.space, operand.handle


def _uses(job: Job) -> Iterator[_Used]:
    for request, sides in zip(job.requests, job.operands, strict=False):
        ranks = frozenset(request.members)
        for side, operands in enumerate(sides):
            yield from (_Used(operand, bool(side), ranks, job) for operand in operands)


def _whole(operands: Operands) -> bool:
    """Say whether a request reads one tensor and writes one, each whole."""
    return all(len(side) == _WHOLE and side[0].whole for side in operands)


def _check_alone(job: Job) -> None:
    """Refuse a word that writes over part of what it reads.

    Raises:
        UsageError: it does.
    """
    for operands, request in zip(job.operands, job.requests, strict=False):
        if not _whole(operands):
            continue
        (reads,), (writes,) = operands
        if not request.in_place and _key(reads) == _key(writes) and _touch(reads, writes):
            raise UsageError(
                f"it reads {_bytes(reads)} of tensor {reads.handle} and writes {_bytes(writes)}: only an all_reduce is "
                "in place, and on the same bytes"
            )


def _check_together(use: _Used, before: Iterable[_Used]) -> None:
    """Refuse a word that takes other bytes of a tensor than an earlier one does on the same rank.

    Raises:
        UsageError: their sizes or places differ.
        UnsupportedError: one of them takes pieces, and one of them writes.
    """
    mine = use.operand
    for each in before:
        other = each.operand
        if not _touch(mine, other) or use.ranks.isdisjoint(each.ranks) or each.job is use.job:
            continue
        both = f"word {use.job.line} {_verb(use)} {_bytes(mine)} of tensor {mine.handle}, and {_named(each, use.job)}"
        if not (mine.whole and other.whole):
            if use.writes or each.writes:
                message = f"{both} {_verb(each)} {_bytes(other)}; what is taken in pieces cannot be shared"
                raise UnsupportedError(message, source=SHARED_SOURCE)
        elif (mine.offset, mine.size) != (other.offset, other.size):
            raise UsageError(f"{both} {_verb(each)} {_bytes(other)}; expected the same bytes, or bytes apart")


def _touch(one: Operand, other: Operand) -> bool:
    return one.offset < other.offset + other.size and other.offset < one.offset + one.size


def _verb(use: _Used) -> str:
    return "writes" if use.writes else "reads"


def _named(use: _Used, other: Job) -> str:
    return f"word {use.job.line}" + ("" if use.job.file == other.file else f" of {use.job.file}")


def _bytes(operand: Operand) -> str:
    if not operand.whole:
        return "pieces"
    return f"{operand.size} bytes" + (f" from byte {operand.offset} on" if operand.offset else "")


def _tensors(job: Job, names: dict[tuple[int, int], dict[tuple[int, int], str]]) -> tuple[Names, ...]:
    """Return the names of each request's tensors; equal bytes of a tensor have one name."""
    if not job.operands or not all(map(_whole, job.operands)):
        return ()

    def name(operand: Operand) -> str:
        known = names.setdefault(_key(operand), {})
        graph = f"graph{operand.space}." if operand.space else ""
        more = f".{len(known)}" if known else ""
        return known.setdefault((operand.offset, operand.size), f"{graph}tensor.{operand.handle}{more}")

    return tuple((name(reads), name(writes)) for (reads,), (writes,) in job.operands)


def tensors_of(job: Job, index: int, parts: Sequence[Composed], *, number: int) -> list[Names]:
    """Return the tensors of the parts of one request, which share them.

    Args:
        index: of the request in its job.
        number: of its own, for the names of tensors that no word names.
    """
    if job.tensors:
        return [job.tensors[index]] * len(parts)
    return [(f"t{number}.in", f"t{number}.in" if each.schedule.in_place else f"t{number}.out") for each in parts]


# --- words for a program ----------------------------------------------------------------------------------------------


def program_words(parts: Sequence[tuple[Job, Request, Names]]) -> list[bytes]:
    """Return the word of each collective of a program, so that equal handles are the same tensor in all of them.

    A word of a stream stays as it is; where streams of several graphs meet, whose handles mean different tensors, all
    words get handles of their own.

    Args:
        parts: the job it is of, what is asked for, and the tensors it reads and writes.
    """
    spaces = {each.space for job, _, _ in parts for sides in job.operands for side in sides for each in side}
    keep = len(spaces) <= 1
    raw = [job.word or word_of(request) for job, request, _ in parts]
    words = [decode_word(each) if each else None for each in raw]
    kept = [keep and bool(job.word) for job, _, _ in parts]
    handles: dict[str, int] = {}
    for word, stays, (_, _, (reads, writes)) in zip(words, kept, parts, strict=True):
        if stays and word is not None:
            handles |= {reads: word.input_id, writes: word.output_id}
    taken = set(handles.values())
    fresh = (handle for handle in count() if handle not in taken)
    out = []
    for word, stays, (job, _, tensors) in zip(words, kept, parts, strict=True):
        if stays or word is None:
            out.append(job.word)
            continue
        for name in tensors:
            if name not in handles:
                handles[name] = next(fresh)
        source, target = (handles[name] for name in tensors)
        out.append(encode_word(replace(word, input_id=source, output_id=target, src_offset=0, dst_offset=0)))
    return out
