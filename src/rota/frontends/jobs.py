"""Files as jobs: one per instruction, as requests or as the reason for a refusal.

The kind of a file is decided by its content. Which rings a machine can wire is decided later, by `pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from rota.errors import RotaError, UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.frontends.hlo import HloCollective, HloModule, is_hlo, parse_hlo
from rota.isa.dtypes import Dtype, parse_dtype, short_name, size_of
from rota.isa.enums import CCE_OF_ALU, REDUCING, CceType, EncOp
from rota.isa.image import MAGIC
from rota.isa.words import HEADER, Word, check_trigger, decode_stream, encode_word
from rota.machine.group import parse_groups
from rota.machine.platform import Platform
from rota.request import COMPOSED, KIND_NAMES, Groups, Job, Request

HLO_KINDS: Final = {
    "all-reduce": EncOp.ALLREDUCE,
    "all-gather": EncOp.ALLGATHER,
    "reduce-scatter": EncOp.REDUCE_SCATTER,
}
HLO_OPS: Final = {"add": CceType.ADD, "maximum": CceType.MAX, "minimum": CceType.MIN}
HLO_NOT_OURS: Final = frozenset(
    {"f8e4m3fn", "f8e4m3fnuz", "f8e5m2fnuz", "f8e4m3b11fnuz", "f8e8m0fnu", "f64", "c64", "c128", "pred"}
)
"""Element types that move as bytes; the device's arithmetic is not for them. Source: interchange §4.5, convention."""
_E4M3FN: Final = " (the device's e4m3 is IEEE-like: it has infinities, and 240 is its largest)"
MOVES_AS: Final = {1: Dtype.UINT8, 2: Dtype.UINT16, 4: Dtype.UINT32, 8: Dtype.UINT64}
MOVES_SOURCE: Final = Source("design", "2 (1), non-reducing ops take any dtype with a size", CONVENTION)


class FileKind(Enum):
    """What a file holds."""

    HLO = "an HLO module"
    STREAM = "an instruction stream"
    IMAGE = "a rank's image"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the source; None where it says nothing."""

    groups: Groups | None = None
    integer_as_fp32: bool = False


def read_source(path: Path) -> tuple[FileKind, bytes]:
    """Read a file and say what it is.

    Raises:
        UsageError: it cannot be read, or is nothing rota knows.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a directory; name a file in it, or a directory of images to `rota disasm`")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected an operation name or a file") from None
    return kind_of(data, str(path)), data


def kind_of(data: bytes, name: str) -> FileKind:
    """Say what bytes are, by content.

    Raises:
        UsageError: empty, or nothing rota knows.
    """
    if data.startswith(MAGIC):
        return FileKind.IMAGE
    if is_hlo(data):
        return FileKind.HLO
    if not data:
        raise UsageError(f"{name}: is empty; expected an HLO module, an instruction stream or an image")
    if b"\0" in data[: HEADER.size * 16] or len(data) % 64 == 0:
        return FileKind.STREAM
    raise UsageError(f"{name}: is neither an HLO module, nor a stream of 64-byte instructions, nor an image")


def jobs_of_file(path: Path, kind: FileKind, data: bytes, platform: Platform, options: Options) -> tuple[Job, ...]:
    """Return the jobs of an HLO module or an instruction stream, in the order of the file.

    Raises:
        UsageError: there are no collectives, or options that do not go with the file.
        DecodeError: the stream is damaged.
    """
    if kind is FileKind.IMAGE:
        raise UsageError(
            f"{path}: is a rank's image; `rota disasm` shows it, `rota run` takes what it was lowered from"
        )
    jobs = (
        _hlo_jobs(path, data, platform, options)
        if kind is FileKind.HLO
        else _stream_jobs(path, data, platform, options)
    )
    if not jobs:
        raise UsageError(f"{path}: holds no collective; expected at least one, for example an all-reduce")
    return jobs


def by_size(
    kind: EncOp, dtype: Dtype, groups: Groups, elements: int, op: CceType | None, options: Options
) -> tuple[Request, ...]:
    """Return one request for each group size; `elements` is per rank: a gather's shard, the input of the others."""
    sizes = sorted({len(group) for group in groups}, reverse=True)
    return tuple(
        Request(
            kind=kind,
            dtype=dtype,
            count=elements * size if kind is EncOp.ALLGATHER else elements,
            groups=tuple(group for group in groups if len(group) == size),
            op=op,
            integer_as_fp32=options.integer_as_fp32,
        )
        for size in sizes
    )


def _hlo_jobs(path: Path, data: bytes, platform: Platform, options: Options) -> tuple[Job, ...]:
    if options.groups is not None:
        raise UsageError(f"{path}: an HLO module names its own groups; leave --groups and --ranks out")
    module = parse_hlo(data.decode("utf-8", "replace"), where=str(path))
    return tuple(_hlo_job(path, module, one, platform, options) for one in module.collectives)


def _hlo_job(path: Path, module: HloModule, one: HloCollective, platform: Platform, options: Options) -> Job:
    notes = (*one.notes, *(("no groups are named: all devices meet",) if one.implicit_groups else ()))
    groups = (tuple(range(platform.ranks)),) if one.implicit_groups and not module.counts_stated else one.groups
    kind = HLO_KINDS.get(one.opcode)
    name = KIND_NAMES[kind] if kind is not None else one.opcode.replace("-", "_")
    job = Job(name, one.element_type, groups, file=str(path), line=one.line, notes=notes)
    try:
        if one.refused is not None:
            raise UsageError(one.refused)
        if kind is None:
            raise UnsupportedError(f"{one.opcode}: this version composes {', '.join(HLO_KINDS)}")
        if module.devices > platform.ranks:
            raise UnsupportedError(
                f"the module runs on {module.devices} devices, and {platform.name} has {platform.ranks} ranks"
            )
        dtype, elements, op = _hlo_elements(one, kind)
        requests = by_size(kind, dtype, groups, elements, op, options)
    except RotaError as error:
        return _refuse(job, error)
    return replace(job, dtype=short_name(dtype), requests=requests)


def _hlo_elements(one: HloCollective, kind: EncOp) -> tuple[Dtype, int, CceType | None]:
    """Return wire type, elements per rank and reduction of an HLO collective.

    Raises:
        UnsupportedError: the device does not reduce this type, or not this way.
    """
    name = one.element_type
    if kind in REDUCING:
        if name in HLO_NOT_OURS:
            because = _E4M3FN if name == "f8e4m3fn" else ""
            raise UnsupportedError(f"{name} cannot be reduced: it is no type of the device{because}")
        op = HLO_OPS.get(one.reduction or "")
        if op is None:
            raise UnsupportedError(f"reduction '{one.reduction}': the device does {', '.join(HLO_OPS)}")
        return parse_dtype(name), one.operand_elements, op
    if name in HLO_NOT_OURS:
        width = one.operand_bytes // max(one.operand_elements, 1)
        dtype = MOVES_AS.get(width, Dtype.UINT8)
        return dtype, one.operand_bytes // size_of(dtype), None
    return parse_dtype(name), one.operand_elements, None


def _stream_jobs(path: Path, data: bytes, platform: Platform, options: Options) -> tuple[Job, ...]:
    groups = options.groups if options.groups is not None else parse_groups("{}", ranks=platform.ranks)
    return tuple(_stream_job(path, word, groups, options) for word in decode_stream(data).words)


def _stream_job(path: Path, word: Word, groups: Groups, options: Options) -> Job:
    name = KIND_NAMES.get(word.kind, word.kind.name.lower())
    dtype = short_name(word.dtype)
    job = Job(name, dtype, groups, file=str(path), line=word.index + 1)
    try:
        check_trigger(word)
        if word.kind not in COMPOSED:
            raise UnsupportedError(f"{word.kind.name}: this version composes {', '.join(KIND_NAMES.values())}")
        if word.group_id:
            raise UnsupportedError(
                f"Invalid group id: {word.group_id}, group_n: 1 (a bare stream has one list of groups)"
            )
        op = CCE_OF_ALU.get(word.alu_op) if word.kind in REDUCING else None
        sizes = {len(group) for group in groups}
        scale = next(iter(sizes)) if word.kind is EncOp.REDUCE_SCATTER else 1
        if word.kind is EncOp.REDUCE_SCATTER and len(sizes) > 1:
            raise UnsupportedError("reduce_scatter over groups of different sizes: a word has one element count")
        requests = by_size(word.kind, word.dtype, groups, word.num_elements * scale, op, options)
    except RotaError as error:
        return _refuse(job, error)
    return replace(job, requests=requests, word=encode_word(word))


def _refuse(job: Job, error: RotaError) -> Job:
    return replace(job, refused=str(error))
