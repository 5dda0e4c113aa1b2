"""NEFFs made by hand for tests: `struct`, `tarfile` and `hashlib`, from the specification and not from our tables."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

Entry = tuple[tarfile.TarInfo, bytes]

# The 32-element fp32 all-reduce of isa §5.2: tensor 3 to tensor 4, group 0, wait S[10] > 0, S[22] += 1 when done.
RECORD = bytes.fromhex(
    "c8100000040a131600000000040a0000"
    "03000000040000002000000000000000"
    "01000000000000000000000000000000"
    "00000000000000000000000000000000"
)
ENGINES = ("pe", "act", "pool", "dve", "sp")


def dma_trigger(name: bytes, wait: int) -> bytes:
    events = bytes([4, wait, 0, 0]) if wait else bytes(4)
    return (b"\xc1\x10\0\0" + events + bytes(4) + name).ljust(64, b"\0")


def variables(**sizes: int) -> dict[str, Any]:
    """Return tensors in order, 0 upwards; the last one is the output."""
    names = list(sizes)
    return {
        name: {"var_id": i, "#transfer-type": "output" if name == names[-1] else "input", "dtype": "fp32", "size": size}
        for i, (name, size) in enumerate(sizes.items())
    }


def definition(**changes: Any) -> dict[str, Any]:
    """Return the definition of the shipped fixture, isa §11.3."""
    kinds = {
        "input": "input",
        "SB": "state-buffer",
        "output": "output",
        "gradient_in": "input",
        "gradient_out": "input",
    }
    return {
        "name": "sg00",
        "var": {
            name: {"var_id": i, "#transfer-type": kind, "dtype": "float32", "size": 128, "element_size": 4}
            for i, (name, kind) in enumerate(kinds.items())
        },
        "dma_queue": {
            "q_gradient_in": {"owner": "pool", "semaphore": 10, "type": "in"},
            "q_gradient_out": {"owner": "pool", "semaphore": 11, "type": "out"},
        },
        "replica_groups": [[]],
    } | changes


def files(*, target: str = "sunda", pe: bytes = RECORD, sg: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """Return the members of the fixture, by name."""
    out = {
        "kelf-a.json": json.dumps(
            {"graphs": [{"definition": "sg00/def.json", "name": "sg00"}], "version": "0.5", "target": target}
        ).encode(),
        "neff.json": b'{"nodes": []}',
        "sg00/def.json": json.dumps(definition() if sg is None else sg).encode(),
    }
    semaphore = b"\xa0\x10\0\0\x04\x0b\0\0".ljust(64, b"\0")
    pool = dma_trigger(b"q_gradient_in", 0) + dma_trigger(b"q_gradient_out", 22) + semaphore
    for engine in ENGINES:
        out[f"sg00/{engine}.json"] = json.dumps({"dma": [], "instr": f"{engine}.bin", "name": engine}).encode()
        out[f"sg00/{engine}.bin"] = {"pe": pe, "pool": pool}.get(engine, b"")
    return out


def entry(name: str, body: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "") -> Entry:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(body), kind, link
    return member, body


def tar(entries: Iterable[Entry], *, dialect: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=dialect) as archive:
        for member, body in entries:
            archive.addfile(member, io.BytesIO(body))
    return out.getvalue()


def pack(archive: bytes, **fields: int) -> bytes:
    """Return a container around a plain archive, with the right hash for what is in it."""
    pkg = fields.get("pkg", 2)
    return wrap(archive if pkg == 1 else gzip.compress(archive, 1, mtime=0), **fields)


def wrap(
    data: bytes,
    *,
    pkg: int = 2,
    header_size: int = 1024,
    data_size: int | None = None,
    major: int = 2,
    features: int = 0,
    core: int = 1,
) -> bytes:
    """Return a container around an archive as it stands in the file."""
    digest = hashlib.sha256(data).digest() if pkg == 1 else hashlib.md5(data).digest() + b"0" * 16
    size = len(data) if data_size is None else data_size
    header = bytearray(1024)
    struct.pack_into("<5Q", header, 0, pkg, header_size, size, major, 0)
    struct.pack_into("<I32s16s256s", header, 0xA8, int(pkg == 2), digest, b"\x11" * 16, b"fixture")
    struct.pack_into("<QI", header, 0x220, features, core)
    return bytes(header) + data


def container(members: Mapping[str, bytes] | None = None, **fields: int) -> bytes:
    """Return a container of these files, those of the fixture when none are given."""
    return pack(tar(entry(name, body) for name, body in (files() if members is None else members).items()), **fields)
