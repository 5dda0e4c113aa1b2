"""What the tests of time share: a ring collective composed for the rings a machine gives its groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from rota.compose.ring import compose_ring
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.group import wire
from rota.machine.platform import Platform
from rota.request import REDUCING, Request
from rota.schedule.ir import Schedule


class Plan(NamedTuple):
    """The arguments of `predict`, in its order."""

    schedule: Schedule
    request: Request
    platform: Platform


@pytest.fixture
def plan() -> Callable[..., Plan]:
    """Return a function that wires groups on a machine and composes a bf16 ring collective of `size` bytes for them."""

    def build(
        platform: Platform, groups: Sequence[Sequence[int]], size: int, kind: EncOp = EncOp.ALLREDUCE, **ring: int
    ) -> Plan:
        wirings = tuple(wire(platform, group) for group in groups)
        op = CceType.ADD if kind in REDUCING else None
        request = Request(kind, Dtype.BFLOAT16, size // 2, tuple(tuple(group) for group in groups), op=op)
        members = list(zip(groups, wirings, strict=True))
        orders = [
            [[group.index(rank) for rank in wiring.channels[channel].order] for group, wiring in members]
            for channel in range(len(wirings[0].channels))
        ]
        return Plan(compose_ring(orders, kind=kind, size=size, op=op, **ring), request, platform)

    return build
