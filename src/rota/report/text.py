"""Words that several reports share: machines, sizes with their bytes, and sources in brackets."""

from __future__ import annotations

from rota.facts import Source
from rota.machine.platform import Platform
from rota.units import format_size


def bracketed(source: Source | None) -> str:
    """Return a source as the end of a line; nothing where there is none."""
    return "" if source is None else f"  [{source}]"


def text_of(source: Source | None) -> str | None:
    """Return a source as JSON has it."""
    return None if source is None else str(source)


def size_text(size: int) -> str:
    """Return the bytes of a size, and its short form where that is shorter."""
    text = format_size(size)
    return f"{size} bytes" if text == str(size) else f"{size} bytes ({text})"


def machine(platform: Platform) -> str:
    """Return a platform as people say it: its name, how many of it, and its LNC."""
    several = f"{platform.instances} x " if platform.instances > 1 else ""
    return f"{several}{platform.name} (LNC {platform.lnc})"
