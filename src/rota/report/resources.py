"""What a program takes on the device, as lines and as a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rota.emit.program import Resources


def resources_json(resources: Resources) -> dict[str, Any]:
    """Return the record of the JSON document."""
    return asdict(resources)


def resource_lines(resources: Resources) -> Iterator[str]:
    """Yield comment lines: what the whole program takes, and what the fullest rank and stream processor take."""
    streams = f" on {resources.streams} streams" if resources.streams > 1 else ""
    yield (
        f"# program: {resources.collectives} collectives{streams} in {resources.entries} control entries, "
        f"{resources.chains} chains; {resources.rings} rings with {resources.descriptors} descriptors"
    )
    yield (
        f"# a rank: {resources.communicators} communicators, {resources.channels} ring channels, {resources.memory} "
        f"bytes; a stream processor: {resources.semaphores} semaphores, {resources.events} event records"
    )
    yield f"# barrier around the program: by the {resources.barrier}"
