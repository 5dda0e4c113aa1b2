"""`rota barrier`: who synchronises with whom, over which bits, and the barrier on the device model."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from rota.cli.exits import OK, WRONG
from rota.cli.sources import DEFAULT_PLATFORM, groups_of, platform_of, settings_of
from rota.cli.talk import print_lines
from rota.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from rota.barrier.table import Program
    from rota.report.barrier import Ran

BARRIER_ABOUT: Final = """\
Show the barrier tables of every rank: whom it signals, who signals it, over which kind of link and which bit; and the
merged table of the devices, or the two peers that would share a bit. Each --groups is a program of its own, loaded on
the same devices. With --run: the emitted bytes run on the device model, with random arrivals. Exit 0 fine, 1 the
programs collide or a rank left early, 2 the command is wrong or the machine refuses a group.

  rota barrier --platform trn2.48xlarge --groups '0-15;16-31'
  rota barrier --platform trn3pds98 --groups '0-63' --run --seed 7
  rota barrier --platform trn2.48xlarge --groups '0-15' --groups '0,16,32,48' --json
"""


def barrier_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `rota barrier`."""
    command.add_argument(
        "--platform",
        default=DEFAULT_PLATFORM,
        help=f"machine: a name of `rota platforms` or a .toml file (default {DEFAULT_PLATFORM})",
    )
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="how many instances of it (default 1)")
    command.add_argument(
        "--lnc", type=int, metavar="N", help="physical cores in a logical core: 1 or 2, where it has it"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the runtime; again for more"
    )
    command.add_argument(
        "--groups",
        action="append",
        help="replica groups of a program: '0-15,48-63;16-47', '[[0,1],[2,3]]', '{}' for all (the default); again for "
        "another program on the same devices",
    )
    command.add_argument("--run", action="store_true", help="run each program's barrier on the device model")
    command.add_argument("--seed", type=int, default=0, help="seed of the arrivals (default 0)")


def barrier(arguments: argparse.Namespace) -> int:
    """Print tables, merge and runs; 1 when programs collide or a rank leaves early."""
    from rota.barrier.merge import merge
    from rota.barrier.table import construct
    from rota.report.barrier import Barriers, barrier_json, barrier_text

    if arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed}: expected 0 or more")
    platform = platform_of(arguments, settings_of(arguments))
    programs = tuple(
        construct(platform, groups_of(argparse.Namespace(groups=text, ranks=None), platform) or ())
        for text in arguments.groups or ["{}"]
    )
    table, collision = None, None
    try:
        table = merge(programs)
    except UnsupportedError as error:
        collision = str(error)
    runs = tuple(_run(program, arguments.seed) for program in programs if arguments.run and collision is None)
    found = Barriers(programs, table, collision, runs)
    print_lines([json.dumps(barrier_json(found), indent=1, allow_nan=False)] if arguments.json else barrier_text(found))
    return OK if collision is None and found.kept else WRONG


def _run(program: Program, seed: int) -> Ran:
    """Run one barrier of a program from its bytes."""
    import numpy as np

    from rota.barrier.guarantee import Guarantee, find_early
    from rota.barrier.program import lower_barrier
    from rota.device.barrier import load_barriers
    from rota.report.barrier import Ran

    times = load_barriers(lower_barrier(program)).run(np.random.default_rng(seed))
    early = {guarantee: find_early(program, guarantee, times.entry, times.leave) for guarantee in Guarantee}
    return Ran(times, early)
