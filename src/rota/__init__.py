"""rota: the collective-communication stack of AWS Trainium's runtime, open.

The public names. Each is loaded when it is first used, so that `import rota` costs nothing. `select`, `compose` and
`verify` are packages: what they do is `rota.select.select`, `rota.compose.table.compose` and `rota.verify.verify`.

    write an algorithm   Board, Region, Place, Wait, Signal, Leaf, Op, write_fold, first_op, cut
    ask for something    Request, EncOp, CceType, Dtype, load_platform, Settings, Selector, Plan
    see it through       How, prove, run, lower, split and the Composed, Outcome and Lowered they return
    look at a schedule   Schedule, Checks, to_text, parse
    what goes wrong      RotaError, UsageError, UnsupportedError, VerifyError, StuckError, DecodeError
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rota.compose.board import Board, Region
    from rota.compose.cut import cut
    from rota.compose.fold import first_op, write_fold
    from rota.errors import DecodeError, RotaError, StuckError, UnsupportedError, UsageError, VerifyError
    from rota.isa.dtypes import Dtype
    from rota.isa.enums import CceType, EncOp
    from rota.machine.platform import Platform, load_platform
    from rota.pipeline import Composed, How, Lowered, Outcome, lower, prove, run, split
    from rota.request import Request
    from rota.schedule.build import Place, Signal, Wait
    from rota.schedule.ir import Checks, Leaf, Op, Schedule
    from rota.schedule.text import parse, to_text
    from rota.select.choose import Plan, Selector
    from rota.select.settings import Settings

__all__ = [
    "Board",
    "CceType",
    "Checks",
    "Composed",
    "DecodeError",
    "Dtype",
    "EncOp",
    "How",
    "Leaf",
    "Lowered",
    "Op",
    "Outcome",
    "Place",
    "Plan",
    "Platform",
    "Region",
    "Request",
    "RotaError",
    "Schedule",
    "Selector",
    "Settings",
    "Signal",
    "StuckError",
    "UnsupportedError",
    "UsageError",
    "VerifyError",
    "Wait",
    "cut",
    "first_op",
    "load_platform",
    "lower",
    "parse",
    "prove",
    "run",
    "split",
    "to_text",
    "write_fold",
]

_HOMES: Final = {
    "rota.compose.board": ("Board", "Region"),
    "rota.compose.cut": ("cut",),
    "rota.compose.fold": ("first_op", "write_fold"),
    "rota.errors": ("DecodeError", "RotaError", "StuckError", "UnsupportedError", "UsageError", "VerifyError"),
    "rota.isa.dtypes": ("Dtype",),
    "rota.isa.enums": ("CceType", "EncOp"),
    "rota.machine.platform": ("Platform", "load_platform"),
    "rota.pipeline": ("Composed", "How", "Lowered", "Outcome", "lower", "prove", "run", "split"),
    "rota.request": ("Request",),
    "rota.schedule.build": ("Place", "Signal", "Wait"),
    "rota.schedule.ir": ("Checks", "Leaf", "Op", "Schedule"),
    "rota.schedule.text": ("parse", "to_text"),
    "rota.select.choose": ("Plan", "Selector"),
    "rota.select.settings": ("Settings",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES: Final = ("compose", "select", "verify")


def __getattr__(name: str) -> object:
    """Load a public name from where it lives."""
    if name in _PACKAGES:
        return import_module(f"rota.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rota' has no attribute '{name}'")
    found: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
