"""`rota run sb2sb` and `rota lower sb2sb`: the move of a tensor in the state buffer, on a core or to its partner."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rota.cli.exits import OK, WRONG
from rota.cli.sources import DEFAULT_DTYPE, platform_of, settings_of
from rota.cli.talk import print_lines
from rota.errors import UsageError

if TYPE_CHECKING:
    from rota.columns import U8
    from rota.emit.sb2sb import Move, StateTensor
    from rota.machine.platform import Platform

NAME: Final = "sb2sb"
MANIFEST: Final = "sb2sb.json"
SCHEMA: Final = 1
_ALIGNMENT: Final = 64  # bytes, of where a move on one core ends up unless it is said
_OURS: Final = ("count", "channels", "partition", "to_partition", "offset", "to_offset", "from_core", "to_core")
_NOT_OURS: Final = (
    "ranks", "groups", "size", "op", "scale", "root", "counts", "pairs", "staging", "algorithm", "trace", "profile",
    "neff", "fault", "any_group", "in_place", "integer_as_fp32", "extensions", "no_verify", "stages", "rank",
)  # fmt: skip


def sb2sb_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of a move in the state buffer."""
    group = command.add_argument_group(f"{NAME}, the move of a tensor in the state buffer")
    group.add_argument("--from", dest="from_core", type=int, metavar="CORE", help="physical core it is on (default 0)")
    group.add_argument("--to", dest="to_core", type=int, metavar="CORE", help="that core, or its partner (default)")
    group.add_argument("--count", type=int, metavar="N", help="elements in each partition")
    group.add_argument("--channels", type=int, metavar="N", help="partitions (default 128)")
    group.add_argument("--partition", type=int, metavar="N", help="the first: 0, 32, 64 or 96 (default 0)")
    group.add_argument("--to-partition", type=int, metavar="N", help="likewise of the target (default 0)")
    group.add_argument("--offset", type=int, metavar="B", help="first byte in a partition (default 0)")
    group.add_argument(
        "--to-offset", type=int, metavar="B", help="likewise of the target (default: the same; on one core behind it)"
    )


def asks_for_sb2sb(arguments: argparse.Namespace) -> bool:
    """Say whether a move in the state buffer is asked for.

    Raises:
        UsageError: it is not, and there are options of one; or a directory that `lower_move` wrote is to run.
    """
    if arguments.source.lower() == NAME:
        return True
    given = _given(arguments, _OURS)
    if given:
        raise UsageError(f"{given[0]}: goes with {NAME}, the move of a tensor in the state buffer")
    if (Path(arguments.source) / MANIFEST).is_file():
        raise UsageError(f"{arguments.source}: holds words of {NAME}; `rota disasm` shows each file of it")
    return False


def _given(arguments: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    values = {name: getattr(arguments, name, None) for name in names}
    found = [name for name, value in values.items() if value is not None and value is not False]
    return [f"--{name.removesuffix('_core').replace('_', '-')}" for name in found]


def _asked(arguments: argparse.Namespace) -> tuple[Platform, Move]:
    """Return the machine and the move that a command line asks for.

    Raises:
        UsageError: options that do not go with a move, or no count.
    """
    from rota.emit.sb2sb import Move, StateTensor
    from rota.isa.dtypes import parse_dtype, size_of
    from rota.isa.state_buffer import partner

    given = _given(arguments, _NOT_OURS)
    if given:
        raise UsageError(f"{given[0]}: goes with collectives, not with {NAME}; leave it out")
    if arguments.count is None:
        raise UsageError(f"{NAME}: needs --count, the elements in each partition")
    for name in ("count", "seed"):
        if getattr(arguments, name) < (name == "count"):
            least = "at least 1" if name == "count" else "0 or more"
            raise UsageError(f"--{name} {getattr(arguments, name)}: expected {least}")
    platform = platform_of(arguments, settings_of(arguments))
    dtype = parse_dtype(arguments.dtype or DEFAULT_DTYPE)
    source_core = _or(arguments.from_core, 0)
    reach = [source_core, partner(source_core)][: platform.lnc]
    target_core = _or(arguments.to_core, reach[-1])
    if target_core not in reach:
        raise UsageError(f"--to {target_core}: expected core {' or its partner '.join(map(str, reach))}")
    partition, offset = _or(arguments.partition, 0), _or(arguments.offset, 0)
    behind = -(-(offset + arguments.count * size_of(dtype)) // _ALIGNMENT) * _ALIGNMENT
    common: dict[str, Any] = {"channels": _or(arguments.channels, 128), "num": (1, 1, arguments.count), "dtype": dtype}
    source = StateTensor(core=source_core, partition=partition, offset=offset, **common)
    target = StateTensor(
        core=target_core,
        partition=_or(arguments.to_partition, 0),
        offset=_or(arguments.to_offset, behind if source_core == target_core else offset),
        **common,
    )
    return platform, Move(source, target)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _streams(platform: Platform, move: Move) -> tuple[int, tuple[bytes, ...]]:
    """Return the first core of the logical core, and the words of each of its cores."""
    from rota.emit.sb2sb import sb2sb_streams

    first = move.source.core - move.source.core % platform.lnc
    return first, sb2sb_streams([[move]], arch=platform.arch, lnc=platform.lnc, core=first)


# --- run --------------------------------------------------------------------------------------------------------------


def run_move(arguments: argparse.Namespace) -> int:
    """Run a move on the device model, and compare with plain indexing; 1 when a byte differs."""
    import numpy as np

    from rota.device.sb2sb import empty_state_buffer, run_sb2sb
    from rota.isa.state_buffer import USABLE

    platform, move = _asked(arguments)
    first, streams = _streams(platform, move)
    rng = np.random.default_rng(arguments.seed)
    shape = empty_state_buffer(platform.arch).shape
    buffers: list[U8] = [rng.integers(0, 256, shape, np.uint8) for _ in streams]
    wanted = [buffer.copy() for buffer in buffers]
    reads, writes = _places(move.source), _places(move.target)
    wanted[move.target.core - first][writes] = buffers[move.source.core - first][reads]
    ran = run_sb2sb(streams, buffers, arch=platform.arch, core=first)
    pairs = zip(ran.buffers, wanted, strict=True)
    exact = all(np.array_equal(got[:, :USABLE], want[:, :USABLE]) for got, want in pairs)
    record = _record(platform, move, first, streams) | {"seed": arguments.seed, "exact": exact}
    log = {str(first + i): list(lines) for i, lines in enumerate(ran.log)} if arguments.log else {}
    if arguments.json:
        print_lines([json.dumps({"schema": SCHEMA, **record, **({"log": log} if arguments.log else {})}, indent=1)])
    else:
        print_lines(_table(f"rota run {NAME}", record, "exact", "yes" if exact else "NO"))
        print_lines(line for lines in log.values() for line in lines)
    return OK if exact else WRONG


def _places(tensor: StateTensor) -> tuple[Any, Any]:
    """Return the index of a tensor's bytes in its state buffer: partitions, and bytes of one."""
    import numpy as np

    from rota.isa.dtypes import size_of

    partition = np.arange(tensor.partition, tensor.partition + tensor.channels)
    byte = tensor.bytes_of_elements()[:, None] + np.arange(size_of(tensor.dtype))
    return partition[:, None], byte.reshape(1, -1)


def _record(platform: Platform, move: Move, first: int, streams: tuple[bytes, ...]) -> dict[str, Any]:
    """Return what there is to say of a move, for JSON and for the table."""
    from rota.isa.dtypes import short_name, size_of
    from rota.isa.records import WORD_SIZE

    source, size = move.source, size_of(move.source.dtype)
    sides = {
        name: {"core": each.core, "partition": each.partition, "offset": each.offset}
        for name, each in (("from", source), ("to", move.target))
    }
    return {
        "platform": platform.name,
        "lnc": platform.lnc,
        "dtype": short_name(source.dtype),
        "count": source.count,
        "channels": source.channels,
        **sides,
        "bytes": source.count * source.channels * size,
        "words": {str(first + i): len(stream) // WORD_SIZE for i, stream in enumerate(streams)},
    }


def _table(title: str, record: dict[str, Any], last: str, value: str) -> list[str]:
    head = f"# {title}: {record['platform']} (LNC {record['lnc']}), {record['count']} {record['dtype']} in each of "
    head += f"{record['channels']} partitions, core {record['from']['core']} byte {record['from']['offset']} of "
    head += f"partition {record['from']['partition']} on, to core {record['to']['core']} byte {record['to']['offset']} "
    head += f"of partition {record['to']['partition']} on"
    words = ",".join(f"{core}:{count}" for core, count in record["words"].items())
    return [head, f"# {'words':>14} {'bytes':>9} {last}", f"  {words:>14} {record['bytes']:>9} {value}"]


# --- lower ------------------------------------------------------------------------------------------------------------


def lower_move(arguments: argparse.Namespace) -> int:
    """Write the words of each core of a move."""
    if arguments.log:
        raise UsageError(f"--log: the lines of {NAME} come with `rota run`; leave it out")
    if arguments.output is None:
        raise UsageError("-o DIR: missing; name the directory to write")
    platform, move = _asked(arguments)
    first, streams = _streams(platform, move)
    files = {f"core-{first + i}.bin": stream for i, stream in enumerate(streams) if stream}
    record = _record(platform, move, first, streams)
    _write(arguments.output, files, record)
    record |= {"directory": str(arguments.output), "files": sorted(files)}
    if arguments.json:
        print_lines([json.dumps({"schema": SCHEMA, **record}, indent=1)])
    else:
        print_lines(_table(f"rota lower {NAME}", record, "files", " ".join(str(arguments.output / f) for f in files)))
    return OK


def _write(directory: Path, files: dict[str, bytes], record: dict[str, Any]) -> None:
    """Write files and a manifest; the directory appears complete or not at all, in the place of an earlier one.

    Raises:
        UsageError: the directory holds something else, or cannot be written.
    """
    import hashlib
    import tempfile

    if directory.exists() and not _is_ours(directory):
        raise UsageError(f"{directory}: exists and holds more than words of {NAME}; name a new directory")
    entries = [{"name": n, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for n, data in files.items()]
    manifest = {"schema": SCHEMA, "kind": NAME, **record, "files": entries}
    content = files | {MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()}
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as aside:
            new, old = Path(aside) / "new", Path(aside) / "old"
            new.mkdir()
            for name, data in content.items():
                (new / name).write_bytes(data)
            if directory.exists():
                os.replace(directory, old)
            try:
                os.replace(new, directory)
            except OSError:
                if old.exists():
                    os.replace(old, directory)
                raise
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written ({error.strerror}); name another directory") from None


def _is_ours(directory: Path) -> bool:
    """Say whether a directory is empty, or holds what `rota lower sb2sb` wrote and nothing else."""
    if not directory.is_dir() or directory.is_symlink():
        return False
    found = {path.name for path in directory.iterdir()}
    try:
        manifest: Any = json.loads((directory / MANIFEST).read_bytes()) if found else {"kind": NAME, "files": []}
        names = {str(entry["name"]) for entry in manifest["files"]}
        ours = bool(manifest["kind"] == NAME)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return ours and found <= names | {MANIFEST}
