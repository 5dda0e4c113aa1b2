"""A small NEFF around collective words: header, archive, definitions and the streams of one section.

It holds what a reader needs to find each collective, its group and its tensors, and nothing that computes. Equal
arguments give equal bytes. Reading is `neff`; the two share only the tables of `isa.container`.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rota.errors import UsageError
from rota.isa.container import (
    ANY_TARGET,
    ENGINES,
    GZIPPED,
    HOST_GRAPH,
    INDEX,
    MAX_MAJOR,
    MD5_FILLER,
    NEFF_HEADER,
    OUTPUT,
    PLAIN,
    TARGETS,
)
from rota.isa.dtypes import short_name, size_of
from rota.isa.neff import Variable, tensor_elements
from rota.isa.opcodes import Opcode
from rota.isa.words import Word, decode_word, encode_word
from rota.machine.platform import Platform
from rota.request import Groups

CARRIER: Final = "pe"
"""The engine whose stream carries the words."""
SECTION: Final = "sg00"

_LARGEST_ID: Final = 1 << 16
_LEVEL: Final = 6  # of gzip


def write_neff(
    words: Sequence[tuple[Word, Groups]],
    *,
    target: str,
    pkg_version: int = GZIPPED,
    name: str = "rota",
    virtual_core: int = 1,
    world: int = 1,
    variables: Sequence[Variable] | None = None,
) -> bytes:
    """Return a container whose first engine carries these words.

    Args:
        words: each with its groups, in the order of the stream; no groups mean every rank. The words' group ids are
            replaced by those of the container: one id for each distinct list, that of 0xC7 words first, then in order
            of appearance.
        target: of the index; an architecture's name or `*`.
        virtual_core: physical cores of a logical core, 1 or 2.
        world: ranks of a list without groups, by which the tensors are sized.
        variables: the tensors, numbered from 0 without gaps; made to fit the words when not given.

    Raises:
        UsageError: a target, version or core size no reader takes, a tensor number of 2^16 or more, variables that do
            not fit their numbers, or 0xC7 words with different groups.
    """
    if target not in (*TARGETS, ANY_TARGET):
        raise UsageError(f"NEFF target '{target[:40]}': expected one of {', '.join(filter(None, TARGETS))} or *")
    if pkg_version not in (PLAIN, GZIPPED) or virtual_core not in (1, 2):
        raise UsageError(
            f"NEFF of package version {pkg_version} with {virtual_core} cores in one: expected 1 or 2 of each"
        )
    first = [groups for word, groups in words if word.opcode is Opcode.PSEUDO_TRIGGER_ALL_REDUCE]
    lists = list(dict.fromkeys([*first, *(groups for _, groups in words)]))
    stream = b"".join(encode_word(replace(word, group_id=lists.index(groups))) for word, groups in words)
    tensors = _variables(words, world) if variables is None else tuple(variables)
    if [tensor.identity for tensor in tensors] != list(range(len(tensors))):
        raise UsageError("NEFF tensors: expected var_ids 0, 1, 2, ... in this order")
    files = {
        INDEX: _json(
            {"graphs": [{"definition": f"{SECTION}/def.json", "name": SECTION}], "target": target, "version": "1"}
        ),
        HOST_GRAPH: _json({"name": name, "nodes": [{"name": SECTION, "op": "kernel"}]}),
        f"{SECTION}/def.json": _json(
            {
                "name": SECTION,
                "var": {tensor.name: _entry(tensor) for tensor in tensors},
                "dma_queue": {},
                "replica_groups": [[list(group) for group in groups] for groups in lists],
            }
        ),
    }
    for engine in ENGINES:
        files[f"{SECTION}/{engine}.json"] = _json({"dma": [], "instr": f"{engine}.bin", "name": engine})
        files[f"{SECTION}/{engine}.bin"] = stream if engine == CARRIER else b""
    return _container(files, pkg_version=pkg_version, name=name, virtual_core=virtual_core)


def neff_of(words: Sequence[tuple[int, bytes, Groups]], platform: Platform) -> bytes:
    """Return a container for a machine, made of encoded words with the number of the job each is of.

    Equal words of one job are one word with all their groups. Words that name one tensor do so in the container, too,
    whose tensors are numbered as they are first named.

    Raises:
        UsageError: see `write_neff`.
    """
    merged: dict[tuple[int, bytes], Groups] = {}
    for job, data, groups in words:
        merged[job, data] = merged.get((job, data), ()) + groups
    number: dict[int, int] = {}
    dense = []
    for (_, data), groups in merged.items():
        word = decode_word(data)
        reads, writes = (number.setdefault(each, len(number)) for each in (word.input_id, word.output_id))
        dense.append((replace(word, input_id=reads, output_id=writes), groups))
    return write_neff(dense, target=platform.arch, virtual_core=platform.lnc, world=platform.ranks)


def write_neff_file(path: Path, data: bytes) -> None:
    """Write a container, first aside and then renamed: the file is there whole or not at all.

    Raises:
        UsageError: it cannot be written; an earlier file of this name is as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a directory; name a file for the NEFF")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise UsageError(f"{path}: cannot be written ({error.strerror}); name another file") from None


def _variables(words: Sequence[tuple[Word, Groups]], world: int) -> tuple[Variable, ...]:
    """Return tensors as large as the words need; numbers no word uses are empty."""
    needs: dict[int, tuple[int, str]] = {}
    written = {word.output_id for word, _ in words}
    for word, groups in words:
        ranks = max((len(group) for group in groups), default=world)
        for identity, elements in zip((word.input_id, word.output_id), tensor_elements(word, ranks), strict=True):
            size, dtype = needs.get(identity, (0, short_name(word.dtype)))
            needs[identity] = max(size, elements * size_of(word.dtype)), dtype
    last = max(needs, default=0)
    if last >= _LARGEST_ID:
        raise UsageError(f"NEFF tensor {last}: expected numbers below {_LARGEST_ID}")
    return tuple(
        Variable(
            name=f"{OUTPUT if i in written or not needs else 'input'}{i}",
            identity=i,
            dtype=needs.get(i, (0, "uint8"))[1],
            size=needs.get(i, (0, "uint8"))[0],
            transfer=OUTPUT if i in written or not needs else "input",
        )
        for i in range(last + 1)
    )


def _entry(tensor: Variable) -> dict[str, Any]:
    known = {} if tensor.size is None else {"size": tensor.size}
    return {"var_id": tensor.identity, "#transfer-type": tensor.transfer, "dtype": tensor.dtype} | known


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _container(files: Mapping[str, bytes], *, pkg_version: int, name: str, virtual_core: int) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    plain = archive.getvalue()
    data = plain if pkg_version == PLAIN else gzip.compress(plain, _LEVEL, mtime=0)
    digest = (
        hashlib.sha256(data).digest()
        if pkg_version == PLAIN
        else hashlib.md5(data, usedforsecurity=False).digest() + MD5_FILLER
    )
    header = NEFF_HEADER.encode(
        pkg_version=pkg_version,
        header_size=NEFF_HEADER.size,
        data_size=len(data),
        version_major=MAX_MAJOR,
        producer_flag=int(pkg_version == GZIPPED),
        hash=int.from_bytes(digest, "little"),
        uuid=int.from_bytes(hashlib.sha256(plain).digest()[:16], "little"),
        name=int.from_bytes(name.encode()[:255], "little"),
        core_count=1,
        virtual_core=virtual_core,
    )
    return header + data
