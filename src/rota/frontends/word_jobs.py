"""Instruction words as jobs: of a bare stream, and of every stream of a NEFF.

A word, a chain of pairs, a send or an exchange is one job each, in the order of its stream. What the records mean is
`isa.words`; what a NEFF holds is `neff`; which tensors of a program the handles are, `tensors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rota.errors import DecodeError, RotaError, UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.frontends.neff import read_neff
from rota.frontends.options import Options, by_size, permute, refuse
from rota.isa.container import GROUP_SOURCE, SINGLE_STREAM_SOURCE, TENSOR_SOURCE
from rota.isa.dtypes import Dtype, short_name, size_of
from rota.isa.enums import CCE_OF_ALU, REDUCING, AluOp, EncOp
from rota.isa.neff import Section, architecture, shown, stream_of, tensor_elements
from rota.isa.opcodes import Opcode, describe_opcode
from rota.isa.operands import Addr8Form, Pattern2D
from rota.isa.pairs import Chain, Pair, chains
from rota.isa.streams import STREAMS, STREAMS_SOURCE
from rota.isa.transfers import Sb2Sb, SendRecv
from rota.isa.words import Stream, Word, check_trigger, decode_stream, encode_word
from rota.machine.group import parse_groups
from rota.machine.platform import Platform
from rota.request import KIND_NAMES, PAIRED, Groups, Job, Operand, Operands, Pairs, Request

PAIR_COUNT_SOURCE: Final = Source("isa", "8.3", CONVENTION)
SECOND_SOURCE: Final = Source("isa", "5.3", CONVENTION)

PAIRS_SOURCE: Final = Source("isa", "10, permute pairs", CONVENTION)
HANDLE_SOURCE: Final = Source("isa", "10, one tensor read and written", CONVENTION)

_ANY: Final = 1 << 62  # bytes, of what walks backwards from where its tensor begins
_NO_GROUP: Final = "it names no group, and this version takes collectives of groups and permutes"


@dataclass(frozen=True, slots=True)
class _Use:
    """Elements of a tensor, by number: from `first` up to `end`, which is None for what walks backwards.

    Attributes:
        whole: all of them in order, and they are all that the collective reads, or writes.
    """

    handle: int
    first: int
    end: int | None
    whole: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    """One collective of a stream, whatever records it stands in.

    Attributes:
        reads, writes: tensors; for one that is no tensor, nothing.
        elements: the input of one rank.
        stream: that it names; carriers that name none are on the first.
    """

    kind: EncOp
    alu_op: AluOp
    dtype: Dtype
    elements: int
    reads: Sequence[_Use]
    writes: Sequence[_Use]
    word: bytes = b""
    notes: tuple[str, ...] = ()
    stream: int = 0


def stream_jobs(path: Path, data: bytes, platform: Platform, options: Options) -> tuple[Job, ...]:
    """Return the jobs of a bare instruction stream, whose one list of groups the command line gives.

    Raises:
        UsageError: options that do not go with a stream.
        DecodeError: the stream is damaged.
    """
    _check_options(path, options)
    groups = options.groups if options.groups is not None else parse_groups("{}", ranks=platform.ranks)
    try:
        stream = decode_stream(data)
    except DecodeError as error:
        what = f"{path}: {error.what}"
        raise DecodeError(what, offset=error.offset, expected=error.expected, got=error.got) from None
    return tuple(_jobs(stream, _Context(str(path), (groups,), platform, options)))


def neff_jobs(path: Path, data: bytes, platform: Platform, options: Options) -> tuple[Job, ...]:
    """Return the jobs of every stream of a NEFF; a list without groups means every rank of the machine.

    Raises:
        UsageError: options that do not go with a NEFF, one for another architecture, or definitions that are wrong.
        UnsupportedError: a version, feature or target that is not known.
        DecodeError: the container or a stream is damaged.
    """
    if options.groups is not None:
        raise UsageError(f"{path}: a NEFF names its own groups; leave --groups and --ranks out")
    _check_options(path, options)
    neff = read_neff(data, where=str(path))
    arch = architecture(neff)
    if arch not in (None, platform.arch):
        raise UsageError(
            f"{path}: is compiled for {arch} (target '{neff.target}'), and {platform.name} is {platform.arch}; name a "
            f"platform of {arch}, or compile it again"
        )
    everyone = (tuple(range(platform.ranks)),)
    jobs: list[Job] = []
    for space, section in enumerate(neff.sections):
        lists = tuple(groups or everyone for groups in section.groups) or (everyone,)
        for instructions in section.instructions:
            context = _Context(f"{path}:{instructions.member}", lists, platform, options, section, space)
            jobs += _jobs(stream_of(instructions, where=str(path)), context)
    return tuple(jobs)


def _check_options(path: Path, options: Options) -> None:
    if options.in_place:
        raise UsageError(f"{path}: its words say themselves what is in place, by one handle; leave --in-place out")


@dataclass(frozen=True, slots=True)
class _Context:
    """Where a stream stands: its file, its lists of groups, and the section of a NEFF with its number."""

    file: str
    lists: tuple[Groups, ...]
    platform: Platform
    options: Options
    section: Section | None = None
    space: int = 0


def _jobs(stream: Stream, context: _Context) -> Iterator[Job]:
    """Yield the jobs of a stream in its order; a chain stands where it begins."""
    alone: list[Pair] = []
    together: tuple[Chain, ...] = ()
    broken = None
    try:
        together = chains(stream.pairs)
    except UnsupportedError as error:
        alone, broken = list(stream.pairs), error
    found: list[tuple[int, Job]] = [(word.index, _word_job(word, context)) for word in stream.words]
    found += [(chain.pairs[0].index, _chain_job(chain, context)) for chain in together]
    found += [(pair.index, refuse(_draft(pair, context), broken)) for pair in alone if broken is not None]
    others: list[SendRecv | Sb2Sb] = [*stream.transfers, *stream.exchanges]
    found += [(each.index, _exchange_job(each, context)) for each in others]
    yield from (job for _, job in sorted(found, key=lambda pair: pair[0]))


def _draft(word: Word | Pair, context: _Context) -> Job:
    """Return what can be said of a collective before it is looked at."""
    name = KIND_NAMES.get(word.kind, word.kind.name.lower())
    pairs = _pairs(word.group_id, context) if word.kind in PAIRED else ()
    groups = context.lists[word.group_id if word.group_id < len(context.lists) else 0]
    return Job(
        name, short_name(word.dtype), () if pairs else groups, file=context.file, line=word.index + 1, pairs=pairs
    )


def _pairs(identity: int, context: _Context) -> Pairs:
    """Return the list of pairs a permute goes by: the one with its group's number. Source: `PAIRS_SOURCE`."""
    lists = () if context.section is None else context.section.pairs
    return tuple((source, target) for source, target in lists[identity]) if identity < len(lists) else ()


def _word_job(word: Word, context: _Context) -> Job:
    job = _draft(word, context)
    try:
        check_trigger(word)
        if word.kind not in PAIRED:
            _check_group(word.group_id, context)
        _check_single_stream(word, context)
        ranks = _group_size(word.kind, job)
        reads, writes = tensor_elements(word, ranks)
        asked = _Asked(
            kind=word.kind,
            alu_op=word.alu_op,
            dtype=word.dtype,
            elements=reads - word.src_offset,
            reads=[_Use(word.input_id, word.src_offset, reads, whole=True)],
            writes=[_Use(word.output_id, word.dst_offset, writes, whole=True)],
            word=encode_word(word),
        )
        return _finish(job, asked, context)
    except RotaError as error:
        return refuse(job, error)


def _chain_job(chain: Chain, context: _Context) -> Job:
    """Return the job of a chain of pairs: its patterns say what is read and written, and must fit its groups."""
    first = chain.pairs[0]
    job = _draft(first, context)
    try:
        for pair in chain.pairs:
            check_trigger(pair)
            if pair.src1 is not None:
                raise UnsupportedError("a second source: what it is for is not known", source=SECOND_SOURCE)
        if first.kind not in PAIRED:
            _check_group(first.group_id, context)
        ranks = _group_size(first.kind, job)
        _check_patterns(chain, ranks)
        in_tensors = first.src0.form is Addr8Form.VARIABLE
        asked = _Asked(
            kind=first.kind,
            alu_op=first.alu_op,
            dtype=first.dtype,
            elements=chain.num_elements,
            reads=_uses([pair.src0 for pair in chain.pairs]) if in_tensors else (),
            writes=_uses([pair.dst for pair in chain.pairs]) if in_tensors else (),
            stream=first.stream_id,
            notes=() if in_tensors else ("its operands lie in SBUF; it is run on buffers in memory",),
        )
        return _finish(job, asked, context)
    except RotaError as error:
        return refuse(job, error)


def _exchange_job(record: SendRecv | Sb2Sb, context: _Context) -> Job:
    """Return the refusal of what moves data between ranks and is no collective of a group."""
    if isinstance(record, SendRecv):
        job = Job(record.kind.name.lower(), "-", (), file=context.file, line=record.index + 1)
        return refuse(job, UnsupportedError(f"{record.kind.name}: {_NO_GROUP}"))
    job = Job("sb2sb", short_name(record.in_dtype), (), file=context.file, line=record.index + 1)
    what = describe_opcode(Opcode.SB2SB_COLLECTIVE)
    return refuse(job, UnsupportedError(f"{what}: cores of one chip exchange without a plan; {_NO_GROUP}"))


def _finish(job: Job, asked: _Asked, context: _Context) -> Job:
    """Check ranks and tensors, and make the requests."""
    op = CCE_OF_ALU.get(asked.alu_op) if asked.kind in REDUCING else None
    notes: tuple[str, ...] = ()
    if context.section is not None:
        _check_ranks(job.pairs or job.groups, context.platform)
        notes = _tensor_notes(asked, context.section)
    _check_stream(asked.stream, context)
    streams = asked.stream + 1 if context.section is None else context.section.cc_streams
    job = replace(job, word=asked.word, notes=(*notes, *asked.notes), stream=asked.stream, streams=streams)
    options = replace(context.options, in_place=asked.kind is EncOp.ALLREDUCE and _in_place(asked))
    if asked.kind in PAIRED:
        job = permute(job, asked.kind, asked.dtype, asked.elements, op, context.platform, options)
    else:
        job = replace(job, requests=by_size(asked.kind, asked.dtype, job.groups, asked.elements, op, options))
    if not asked.reads:
        return job
    return replace(job, operands=tuple(_operands(asked, request, context.space) for request in job.requests))


def _in_place(asked: _Asked) -> bool:
    """Say whether a collective writes exactly what it reads: one handle, one place. Source: `HANDLE_SOURCE`."""
    return all(use.whole for use in asked.reads) and list(asked.reads) == list(asked.writes)


def _operands(asked: _Asked, request: Request, space: int) -> Operands:
    """Return the bytes that a request reads and writes, those of its own group size where it takes a tensor whole."""
    sides = ((asked.reads, request.input_size), (asked.writes, request.output_size))
    reads, writes = (tuple(_operand(use, size, request.itemsize, space) for use in uses) for uses, size in sides)
    return reads, writes


def _operand(use: _Use, size: int, itemsize: int, space: int) -> Operand:
    if not use.whole:
        size = _ANY if use.end is None else (use.end - use.first) * itemsize
    return Operand(space, use.handle, use.first * itemsize, size, use.whole)


def _check_group(group_id: int, context: _Context) -> None:
    if group_id >= len(context.lists):
        hint = " (a bare stream has one list of groups)" if context.section is None else ""
        raise UnsupportedError(
            f"Invalid group id: {group_id}, group_n: {len(context.lists)}{hint}", source=GROUP_SOURCE
        )


def _check_stream(stream: int, context: _Context) -> None:
    streams = STREAMS if context.section is None else context.section.cc_streams
    if stream >= streams:
        raise UnsupportedError(f"stream {stream}: there are {streams}, from 0", source=STREAMS_SOURCE)


def _check_single_stream(word: Word, context: _Context) -> None:
    streams = 1 if context.section is None else context.section.cc_streams
    if streams > 1 and word.opcode is Opcode.PSEUDO_TRIGGER_COLLECTIVE:
        raise UnsupportedError(
            f"{streams} streams are set up: {describe_opcode(word.opcode)} takes single streams only",
            source=SINGLE_STREAM_SOURCE,
        )


def _check_ranks(groups: Groups, platform: Platform) -> None:
    last = max(rank for group in groups for rank in group)
    if last >= platform.ranks:
        raise UsageError(f"rank {last} in its groups: {platform.name} has ranks 0 to {platform.ranks - 1}")


def _group_size(kind: EncOp, job: Job) -> int:
    """Return the ranks of the largest group; where the count depends on it, all groups have equally many.

    A permute counts nothing by its ranks, but needs its pairs.
    """
    if kind in PAIRED:
        if not job.pairs:
            raise UnsupportedError(f"{job.kind}: no list of pairs has its number", source=PAIRS_SOURCE)
        return 1
    sizes = {len(group) for group in job.groups}
    if kind is EncOp.REDUCE_SCATTER and len(sizes) > 1:
        raise UnsupportedError("reduce_scatter over groups of different sizes: a word has one element count")
    return max(sizes)


def _check_patterns(chain: Chain, ranks: int) -> None:
    """Refuse a chain whose patterns are not those of its kind over groups of this size."""
    kind, reads = chain.pairs[0].kind, chain.num_elements
    writes = sum(pair.dst.elements for pair in chain.pairs)
    more_in = ranks if kind is EncOp.REDUCE_SCATTER else 1
    more_out = ranks if kind is EncOp.ALLGATHER else 1
    if reads * more_out != writes * more_in:
        raise UnsupportedError(
            f"{KIND_NAMES[kind]} over {ranks} ranks reads {reads} elements and writes {writes}, expected "
            f"{reads * more_out // more_in} written",
            source=PAIR_COUNT_SOURCE,
        )


def _uses(patterns: Sequence[Pattern2D]) -> list[_Use]:
    """Return what patterns touch of their tensors: from the beginning to the last element, in whatever order."""
    return [_use(pattern, alone=len(patterns) == 1) for pattern in patterns]


def _use(pattern: Pattern2D, *, alone: bool) -> _Use:
    if min(pattern.step) < 0:
        return _Use(pattern.value, 0, None, whole=False)
    (line, element), (lines, elements) = pattern.step, pattern.num
    last = line * (lines - 1) + element * (elements - 1)
    dense = (elements == 1 or element == 1) and (lines == 1 or line == elements)
    return _Use(pattern.value, 0, last + 1, whole=alone and dense)


def _tensor_notes(asked: _Asked, section: Section) -> tuple[str, ...]:
    """Return sentences about the tensors of a collective, once it is known to stay inside them.

    Raises:
        UnsupportedError: a tensor is missing.
        UsageError: one is smaller than what is read or written.
    """
    notes: list[str] = []
    names: dict[str, list[str]] = {"reads": [], "writes": []}
    for verb, places in (("reads", asked.reads), ("writes", asked.writes)):
        for use in places:
            variable = section.variables.get(use.handle)
            if variable is None:
                known = f"0 to {len(section.variables) - 1}" if section.variables else "none"
                message = f"the word {verb} it, and {section.definition} declares {known}"
                raise UnsupportedError(f"unknown tensor handle {use.handle}: {message}", source=TENSOR_SOURCE)
            name = shown(variable.name)
            names[verb].append(name)
            size = None if use.end is None else use.end * size_of(asked.dtype)
            if size is None or variable.size is None:
                notes.append(
                    f"whether {name} is large enough is not known: it {verb} {_bytes(size)} of {_bytes(variable.size)}"
                )
            elif size > variable.size:
                raise UsageError(
                    f"it {verb} {size} bytes of {name}, and {section.definition} gives it {variable.size} bytes"
                )
    if not names["reads"]:
        return ()
    return (f"tensors {', '.join(names['reads'])} -> {', '.join(names['writes'])}", *notes)


def _bytes(size: int | None) -> str:
    return "a number of bytes that is not stated" if size is None else f"{size} bytes"
