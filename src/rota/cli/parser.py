"""The commands and their options, with the words that `--help` prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rota.cli.barrier import BARRIER_ABOUT, barrier, barrier_arguments
from rota.cli.check import check
from rota.cli.explain import explain
from rota.cli.fault import fault_arguments
from rota.cli.listing import asm, disasm
from rota.cli.lower import lower_command
from rota.cli.platforms import platforms
from rota.cli.run import run_command
from rota.cli.sb2sb import sb2sb_arguments
from rota.cli.sources import DEFAULT_DTYPE, DEFAULT_OP, DEFAULT_PLATFORM, DEFAULT_SIZE
from rota.cli.verify import verify_command

_ABOUT: Final = """\
The collective-communication stack of AWS Trainium's runtime, in the open: select an algorithm, compose its
schedule, emit the bytes a device loads, prove them, run them on a device model, and time them.

  rota run all_reduce --ranks 64 --size 1M --dtype bf16      one collective, end to end
  rota run step.hlo --platform trn2.48xlarge                  every collective of a compiled program
  rota explain all_reduce --ranks 64 --sweep 1K:1G            the algorithm by size
  rota check step.hlo --platform trn2.48xlarge                is it legal there, and why not
"""
_RUN: Final = """\
Compose every collective of SOURCE, prove it, run it on arrays and, where it is emitted, as bytes on the device model;
compare both, and with a float64 golden. One row each; sizes are the whole buffer. The collectives of a file are one
program; words of a stream or NEFF that name one tensor hand its data on, and one that reads and writes it is in place.

  rota run all_gather --platform trn1.32xlarge --ranks 32 --size 64K --dtype fp32
  rota run examples/tensor_parallel.hlo --json
  rota lower words.bin --ranks 8 -o out && rota run out

With --trace: a JSON line for each step of the device model, and when which rank was at work. With --profile: the
message core_graph of the first rank, as protobuf bytes; --json has the records cc_op_info.

  rota run permute --pairs '0>1,1>2,2>3,3>0' --size 16K --trace steps.jsonl
  rota run all_reduce --ranks 8 --size 64K --profile core_graph.pb --json

With --fault: something goes wrong, and either the result is right nevertheless, or the device says which rank is at
fault and who waits for whom, or the comparison reports a wrong result; the exit code is then 1.

  rota run all_reduce --ranks 8 --size 64K --fault kill:rank=2,tick=4
  rota run examples/tensor_parallel.hlo --no-verify --fault skip:rank=6,collective=1

sb2sb moves a tensor of --count elements in each partition inside a core's state buffer, or to that of its partner.

  rota run sb2sb --dtype bf16 --count 1000 --from 0 --to 1 --log
  rota run sb2sb --dtype fp32 --count 64 --channels 32 --partition 32 --to-partition 96 --from 2 --to 2
"""
_EXPLAIN: Final = """\
Say which algorithm the runtime takes for a collective, what each rule said and why, which limit row was read, and what
would change the decision. With --sweep: the algorithm by size, as one picture.

  rota explain all_reduce --platform trn1.32xlarge --ranks 32 --size 64M --dtype fp32 --sources
  rota explain all_reduce --platform trn2.48xlarge --nodes 4 --sweep 1K:1G
  rota explain all_gather --groups '0-15,48-63;16-47' --size 8M --set NEURON_RT_DBG_RDH_CC=0 --json
"""
_CHECK: Final = """\
Say whether replica groups, source-target pairs, or all collectives of a program are legal on a machine: why not, what
the runtime's own message is, and the nearest legal groups. Exit 0 legal (with warnings, too), 1 illegal, 2 bad command.

  rota check --platform trn2.48xlarge --groups '0-31;32-63'
  rota check --platform trn1.32xlarge --pairs '0>1,1>0'
  rota check all_to_all --platform trn2.48xlarge --nodes 2 --groups '0-3,64-67'
  rota check step.hlo --platform trn2.48xlarge --json
"""
_VERIFY: Final = """\
Compose every collective of SOURCE and prove it: that all executions end alike (no deadlock, no race, every rank entered
and finished) and that every output byte holds each contribution once; for a file, also that its collectives match
across the ranks. Exit 0 proved, 1 something is wrong, 2 the command is.

  rota verify all_reduce --platform trn2.48xlarge --ranks 64 --size 1M
  rota verify all_gather --ranks 16 --size 64K --algorithm examples/my_algorithm.py:compose --json
  rota verify examples/data_parallel.hlo
  rota verify ring.sched
"""
_PLATFORMS: Final = """\
List the machines, or show one: its topology as a drawing, ranks and replica groups, every rate with its unit, and which
reading of an open question is used.

  rota platforms
  rota platforms trn2.48xlarge --sources
  rota platforms ./my-machine.toml --json
"""
_LOWER: Final = """\
Write what each rank loads: one image a rank (descriptor rings, slot programs, configuration), the instruction word and
a manifest. The directory appears complete or not at all.

  rota lower all_reduce --ranks 4 --size 64K -o out && rota disasm out/rank-000.img
  rota lower examples/data_parallel.hlo -o out
  rota lower all_gather --ranks 8 --size 64K -o out --neff gather.neff && rota run gather.neff

With --stages: the path of each collective from its word to its completion, with its own bytes and addresses. With
--log: what the runtime logs when one rank loads them. Both are printed without a directory, too. sb2sb writes the words
of each core, one file a core.

  rota lower all_reduce --ranks 4 --size 64K --stages
  rota lower examples/data_parallel.hlo -o out --log --rank 3
  rota lower sb2sb --dtype bf16 --count 1000 --from 0 --to 1 -o move && rota disasm move/core-0.bin
"""
_DISASM: Final = """\
Show instruction streams, images, NEFFs and lowered directories as text, one record a line: offset, record, fields.
What is damaged stays in its place, with what is wrong, and the listing goes on; the exit code is then 1.

  rota disasm out/rank-000.img
  rota disasm out/words.bin --json
  rota disasm dump.bin --as tx --raw
"""
_ASM: Final = """\
Turn the text of `rota disasm` back into the bytes; damaged records come back as they were.

  rota disasm out/words.bin > words.txt && rota asm words.txt -o words.bin
  rota asm image.txt -o edited.img
"""
_SOURCE: Final = (
    "an operation: all_reduce, all_gather, reduce_scatter (also allr, allg, redsct), all_to_all, permute and others; "
    "or a file: an HLO module, a stream of 64-byte instructions, or a NEFF"
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; `command` of its result is the function to call."""
    root = argparse.ArgumentParser(
        prog="rota", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root.add_argument("--version", action="store_true", help="say the version and which arithmetic is in use")
    root.set_defaults(command=None)
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    for name, about, run, add in (
        ("run", _RUN, run_command, _run_arguments),
        ("explain", _EXPLAIN, explain, _explain_arguments),
        ("check", _CHECK, check, _check_arguments),
        ("verify", _VERIFY, verify_command, _verify_arguments),
        ("barrier", BARRIER_ABOUT, barrier, barrier_arguments),
        ("platforms", _PLATFORMS, platforms, _platforms_arguments),
        ("lower", _LOWER, lower_command, _lower_arguments),
        ("disasm", _DISASM, disasm, _disasm_arguments),
        ("asm", _ASM, asm, _asm_arguments),
    ):
        _command(commands, name, about, run, add)
    return root


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    run: Callable[[argparse.Namespace], int],
    add: Callable[[argparse.ArgumentParser], None],
) -> None:
    command = commands.add_parser(
        name,
        help=about.split(". ", 1)[0].split(".\n", 1)[0].replace("\n", " "),
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=run)
    add(command)
    command.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _run_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", help=f"{_SOURCE}; or a directory of `rota lower`; or sb2sb")
    _common(command)
    _pairs(command)
    _composing(command)
    command.add_argument("--no-verify", action="store_true", help="leave the proof out; the output says so")
    command.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a JSON line for each step of the device model"
    )
    command.add_argument(
        "--profile", type=Path, metavar="FILE", help="write what the first rank's profile says of them"
    )
    fault_arguments(command)
    sb2sb_arguments(command)
    command.add_argument("--log", action="store_true", help="sb2sb: also the firmware's log lines")


def _verify_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source", metavar="SOURCE", help=f"{_SOURCE}; or the text of a schedule, whose order is proved"
    )
    _common(command)
    _pairs(command)
    _composing(command)


def _composing(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--algorithm",
        metavar="NAME",
        help="compose this one, whatever the runtime takes: RING, MESH, ...; or file.py:function, a composer of yours",
    )
    command.add_argument(
        "--extensions",
        action="store_true",
        help="also do what the runtime refuses: broadcast, reduce, permute_reduce, all_gather with --counts",
    )
    command.add_argument(
        "--communicators",
        type=int,
        metavar="N",
        help="groups that a rank can be in: 12, or 16 in later releases of the runtime (default 12)",
    )


def _lower_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", help=f"{_SOURCE}; or sb2sb")
    _common(command)
    _composing(command)
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory to write")
    command.add_argument("--neff", type=Path, metavar="FILE", help="write the words into a NEFF as well")
    command.add_argument("--stages", action="store_true", help="print the path of each collective to its bytes")
    command.add_argument("--log", action="store_true", help="print what the runtime logs when a rank loads them")
    command.add_argument("--rank", type=int, metavar="N", help="the rank of --log (default the first)")
    sb2sb_arguments(command)


def _explain_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", help=_SOURCE)
    _common(command)
    _pairs(command)
    command.add_argument("--sweep", metavar="LOW:HIGH", help="the algorithm at every size between, for example 1K:1G")
    command.add_argument(
        "--phases", action="store_true", help="also the phases of a mesh over a switch, and their log lines"
    )
    command.add_argument("--sources", action="store_true", help="end every choice with where it was read")


def _check_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", nargs="?", help=f"{_SOURCE}; without it only groups or pairs")
    _common(command)
    _pairs(command)
    command.add_argument("--sources", action="store_true", help="end every answer with where it was read")


def _platforms_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("platform", metavar="NAME", nargs="?", help="a machine, or the path of a machine file (.toml)")
    _machine(command)
    command.add_argument("--sources", action="store_true", help="show where each number was read")


def _asm_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("text", type=Path, help="a listing; its first line says of what: '; rota stream 1'")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="file to write")


def _disasm_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, help="a stream, an image, a NEFF, or a directory that `rota lower` wrote")
    command.add_argument(
        "--as",
        dest="kind",
        choices=("stream", "image", "tx", "rx", "ctrl", "slot", "conf"),
        help="what the bytes of FILE are, whatever they look like: a stream, an image, or a bare part of an image",
    )
    command.add_argument("--raw", action="store_true", help="append the bytes of each record in hex")


def _pairs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pairs", help="source-target pairs of a permute: '0>1,1>0', '{0,1},{1,0}', '[[0,1],[1,0]]'")


def _machine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="how many instances of it (default 1)")
    command.add_argument(
        "--lnc", type=int, metavar="N", help="physical cores in a logical core: 1 or 2, where it has it"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the runtime, for example NEURON_RT_DBG_RDH_CC=0; again for more (those of the environment "
        "count, too)",
    )


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--platform",
        default=DEFAULT_PLATFORM,
        help=f"machine: a name of `rota platforms` or a .toml file (default {DEFAULT_PLATFORM})",
    )
    _machine(command)
    command.add_argument("--ranks", type=int, metavar="N", help="ranks 0 to N-1 (default all of the machine)")
    command.add_argument(
        "--groups", help="replica groups: '[[0,1],[2,3]]', '0-15,48-63;16-47', '{{0,1},{2,3}}', '{}' for all"
    )
    command.add_argument(
        "--any-group", action="store_true", help="let groups pass that the machine's rules refuse, never wrong results"
    )
    command.add_argument("--size", help=f"whole buffer, for example 8, 32K, 64M (default {DEFAULT_SIZE})")
    command.add_argument(
        "--dtype", help=f"bf16 fp16 fp32 fp8_e3m4 fp8_e4m3 fp8_e5m2 int8 .. uint64 (default {DEFAULT_DTYPE})"
    )
    command.add_argument("--op", help=f"sum, max, min or fma (default {DEFAULT_OP})")
    command.add_argument("--scale", help="scales of an fma: one for all ranks, or one for each, with commas between")
    command.add_argument("--in-place", action="store_true", help="the output is the input (all_reduce)")
    command.add_argument("--root", type=int, metavar="N", help="position of a broadcast's or reduce's root (default 0)")
    command.add_argument(
        "--counts", help="elements of an all_to_all_v, one row for each sender ('1,2;3,4'); of an all_gather, one row"
    )
    command.add_argument(
        "--integer-as-fp32", action="store_true", help="reduce integers rounded through float32, exact up to 2^24"
    )
    command.add_argument(
        "--staging",
        choices=("static", "device"),
        help="where operands lie: static reads the _sbuf limit rows (default on switch machines), device the others",
    )
    command.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")
