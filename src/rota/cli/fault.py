"""`rota run --fault KIND:key=value,...`: faults of a run, and what is said when the device cannot go on.

A stuck device speaks of operations, which are control entries; here they get the names of their collectives.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rota.cli.exits import OK
from rota.cli.talk import print_lines, talk
from rota.errors import DecodeError, StuckError, UsageError

if TYPE_CHECKING:
    from rota.device.disturb import Disturbance
    from rota.device.model import Device
    from rota.emit.order import Orders
    from rota.faults import Fault
    from rota.frontends.image_directory import ImageDirectory
    from rota.program import Loaded
    from rota.request import Request


class _FaultAction(argparse.Action):
    """Collects faults; `help` lists the kinds and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        if values == "help":
            from rota.faults import fault_lines

            print_lines(fault_lines())
            parser.exit(OK)
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), values])


def fault_arguments(command: argparse.ArgumentParser) -> None:
    """Add the option."""
    command.add_argument(
        "--fault",
        action=_FaultAction,
        metavar="KIND:key=value,...",
        help="run with a fault, for example drop:rank=3 or kill:rank=2,tick=40; again for more; 'help' lists them",
    )


class Faults:
    """The faults of a command, and what a program under them is made of."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.given: tuple[Fault, ...] = ()
        self.verify = not arguments.no_verify
        self.requests: Sequence[Request] = ()
        self.entries: Sequence[int] = ()
        if arguments.fault:
            from rota.faults import parse_fault

            self.given = tuple(map(parse_fault, arguments.fault))

    def orders(self, requests: Sequence[Request]) -> Orders:
        """Return the order in which some ranks do the collectives of a program.

        Raises:
            UsageError: a fault is of a rank or a collective that the program has not.
            VerifyError: programs that differ do not go together, unless nothing is to be verified.
        """
        from rota.faults import check_faults, check_programs, orders_of

        self.requests = requests
        if not self.given:
            return {}
        check_faults(self.given, sorted({rank for each in requests for rank in each.members}), len(requests))
        orders = orders_of(self.given, requests)
        if self.verify:
            check_programs(requests, orders)
        return orders

    def __call__(self, loaded: Loaded) -> tuple[Device, Disturbance | None]:
        """Put a program with its faults on a device: a `program.Loader`."""
        from rota.program import load_checked

        self.entries = loaded.entries
        return self.load(loaded.images, loaded.ranks, loaded.entries) if self.given else load_checked(loaded)

    def load(self, images: Sequence[bytes], ranks: Sequence[int], entries: Sequence[int]) -> tuple[Device, Disturbance]:
        """Put images with their faults on a device.

        Args:
            ranks, entries: as `faults.prepare` takes them.

        Raises:
            UsageError: there is nothing for a fault to change.
            StuckError: the loader refuses what a fault has changed.
        """
        from rota.faults import prepare

        self.entries = entries
        try:
            prepared = prepare(images, ranks, self.given, entries=entries)
        except DecodeError as error:
            raise StuckError(f"the loader refuses the program with its faults: {error}") from None
        for note in prepared.notes:
            talk(f"fault {note}")
        return prepared.device, prepared.disturbance

    def reload(
        self, device: Device, found: ImageDirectory, requests: Sequence[Request], entries: Sequence[int]
    ) -> tuple[Device, Disturbance | None]:
        """Return the device of a directory of images, loaded again where there are faults.

        Raises:
            UsageError, VerifyError, StuckError: as `orders` and `load` do.
        """
        from rota.device.model import called

        changes = self.orders(requests)
        self.entries = entries
        if changes:
            raise UsageError(f"--fault skip, swap: {found.path} is lowered already; give the SOURCE instead")
        return self.load(found.images, found.ranks, entries) if self.given else (called(device, found.ranks), None)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say in errors of a stuck device raised inside which collectives its operations are."""
        try:
            yield
        except StuckError as error:
            lines = [str(error), *self._collectives(str(error).partition("\n")[0])]
            raise StuckError("\n  ".join(lines), waiting=error.waiting) from None

    def _collectives(self, text: str) -> Iterator[str]:
        """Yield a line for each operation that a text names, where there are several collectives."""
        from rota.cli.run_images import short_request

        if not 1 < len(self.requests) == len(self.entries):
            return
        first = [sum(self.entries[:i]) for i in range(len(self.entries))]
        for number in sorted({int(found) for found in re.findall(r"operation (\d+)", text)}):
            known = [i for i, begin in enumerate(first) if begin <= number < begin + self.entries[i]]
            for i in known:
                yield f"operation {number} is of collective {i}: {short_request(self.requests[i].to_text())}"

    def check_ran(self, because: str) -> None:
        """Refuse faults of a program that does not run on the device model.

        Raises:
            UsageError: it does not, because of this.
        """
        if self.given and because:
            raise UsageError(f"--fault: the program does not run on the device model: {because}")

    def say_harmless(self, right: bool) -> None:
        """Say that all results are right although there were faults."""
        if self.given and right:
            talk("--fault: every result is right nevertheless")
