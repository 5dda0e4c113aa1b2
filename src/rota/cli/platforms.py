"""`rota platforms`: the machines, and one of them in full."""

from __future__ import annotations

import argparse
import json

from rota.cli.exits import OK
from rota.cli.sources import platform_of, settings_of
from rota.cli.talk import print_lines
from rota.errors import UsageError


def platforms(arguments: argparse.Namespace) -> int:
    """List the machines, or show one."""
    from rota.machine.platform import known_platforms, load_platform
    from rota.report.machines import list_json, list_text, machine_json, machine_text

    if arguments.platform is None:
        if arguments.nodes != 1 or arguments.lnc is not None:
            raise UsageError("--nodes, --lnc: go with the NAME of a machine")
        machines = [load_platform(name) for name in known_platforms()]
        lines = [_text(list_json(machines))] if arguments.json else list_text(machines)
    else:
        machine = platform_of(arguments, settings_of(arguments))
        lines = [_text(machine_json(machine))] if arguments.json else machine_text(machine, sources=arguments.sources)
    print_lines(lines)
    return OK


def _text(document: dict[str, object]) -> str:
    return json.dumps(document, indent=1, allow_nan=False)
