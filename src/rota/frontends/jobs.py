"""Files as jobs: one per instruction, as requests or as the reason for a refusal.

The kind of a file is decided by its content. Instruction words, bare or in a NEFF, are read in `word_jobs`; which rings
a machine can wire is decided later, by `pipeline`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Final

from rota.errors import RotaError, UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.frontends.hlo import HloCollective, HloModule, is_hlo, parse_hlo
from rota.frontends.options import Options, by_size, permute, refuse
from rota.isa.dtypes import Dtype, parse_dtype, short_name, size_of
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.isa.image import MAGIC
from rota.isa.records import HEADER
from rota.machine.platform import Platform
from rota.request import KIND_NAMES, PAIRED, Job

__all__ = ["FileKind", "Options", "by_size", "jobs_of_file", "kind_of", "read_source"]

HLO_KINDS: Final = {
    "all-reduce": EncOp.ALLREDUCE,
    "all-gather": EncOp.ALLGATHER,
    "reduce-scatter": EncOp.REDUCE_SCATTER,
    "all-to-all": EncOp.ALLTOALL,
    "ragged-all-to-all": EncOp.ALLTOALL_V,
    "collective-permute": EncOp.PERMUTE,
    "collective-broadcast": EncOp.BROADCAST,
    "collective-reduce": EncOp.REDUCE,
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
    NEFF = "a NEFF"


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
    from rota.frontends.neff_archive import is_neff  # with what it needs, it would triple the start of `explain m.hlo`

    if is_neff(data):
        return FileKind.NEFF
    if not data:
        raise UsageError(f"{name}: is empty; expected an HLO module, an instruction stream, an image or a NEFF")
    if b"\0" in data[: HEADER.size * 16] or len(data) % 64 == 0:
        return FileKind.STREAM
    raise UsageError(
        f"{name}: is neither an HLO module, nor a stream of 64-byte instructions, nor an image, nor a NEFF"
    )


def jobs_of_file(path: Path, kind: FileKind, data: bytes, platform: Platform, options: Options) -> tuple[Job, ...]:
    """Return the jobs of an HLO module, an instruction stream or a NEFF, in the order of the file.

    Raises:
        UsageError: there are no collectives, options that do not go with the file, or a NEFF for other machines.
        UnsupportedError: a NEFF of another version.
        DecodeError: the stream or the NEFF is damaged.
    """
    if kind is FileKind.IMAGE:
        raise UsageError(
            f"{path}: is a rank's image; `rota disasm` shows it, `rota run` takes what it was lowered from"
        )
    if kind is FileKind.HLO:
        jobs = _hlo_jobs(path, data, platform, options)
    else:
        from rota.frontends.word_jobs import neff_jobs, stream_jobs

        jobs = (stream_jobs if kind is FileKind.STREAM else neff_jobs)(path, data, platform, options)
    if not jobs:
        raise UsageError(f"{path}: holds no collective; expected at least one, for example an all-reduce")
    return jobs


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
    job = Job(name, one.element_type, groups, file=str(path), line=one.line, notes=notes, pairs=one.pairs)
    try:
        if one.refused is not None:
            raise UsageError(one.refused)
        if kind is None:
            raise UnsupportedError(f"{one.opcode}: this version knows {', '.join(HLO_KINDS)}")
        if module.devices > platform.ranks:
            raise UnsupportedError(
                f"the module runs on {module.devices} devices, and {platform.name} has {platform.ranks} ranks"
            )
        dtype, elements, op = _hlo_elements(one, kind)
        job = replace(job, dtype=short_name(dtype))
        if kind in PAIRED:
            return permute(job, kind, dtype, elements, op, platform, options)
        requests = by_size(kind, dtype, groups, elements, op, options)
    except RotaError as error:
        return refuse(job, error)
    return replace(job, requests=requests)


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
