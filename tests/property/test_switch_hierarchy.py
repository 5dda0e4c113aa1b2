"""Hierarchies whose legs lie over the switch: what their schedules do, once and twice in a row."""

from __future__ import annotations

import pytest
from tests.backtoback import twice

from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.pipeline import How, prove
from rota.request import Request
from rota.schedule.ir import Schedule
from rota.verify import find_order

SLEDS = (*range(8), *range(16, 24))
"""Two chips of each of two sleds of Gen2."""


def hierarchy(kind: EncOp) -> Schedule:
    """Compose and prove a hierarchy; the legs inside a sled and those across lie over the switch."""
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    request = Request(kind, Dtype.FP32, 2 * len(SLEDS), (SLEDS,), op)
    return prove(request, load_platform("trn3pds98"), How(algorithm=Algorithm.HIER)).schedule


@pytest.mark.parametrize("kind", [EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLREDUCE])
def test_legs_over_the_switch_are_proved_and_may_follow_themselves(kind: EncOp) -> None:
    """Legs have no parity, so all ranks meet before a buffer with one half is used again."""
    assert find_order(twice(hierarchy(kind))) == []


def test_a_block_in_its_place_is_not_copied_onto_itself() -> None:
    """The gather inside a sled finds the own shard in the output already; writing it again would race its readers."""
    made = hierarchy(EncOp.ALLGATHER)
    one = (made.sources.ptr[1:] - made.sources.ptr[:-1] == 1) & (made.targets.ptr[1:] - made.targets.ptr[:-1] == 1)
    source, target = made.sources.ptr[:-1][one], made.targets.ptr[:-1][one]
    same = (
        (made.sources.rank[source] == made.targets.rank[target])
        & (made.sources.buffer[source] == made.targets.buffer[target])
        & (made.sources.offset[source] == made.targets.offset[target])
    )
    assert one.sum() > len(SLEDS)
    assert not same.any()
