"""The grouped mesh of Inf2: compose §12.2."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import AG, AR, RS, by_sixes, check, event_laws, events, outputs, plan

from rota.compose.grouped import GROUP
from rota.compose.mesh import compose_mesh
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.events import EventType
from rota.schedule.ir import Leaf
from rota.verify import traffic

SIXES = [tuple(range(6)), tuple(range(11, 5, -1))]
TWELVE = [(3, 1, 2, 0, 5, 4, 11, 10, 7, 8, 9, 6)]
NODE = [tuple(range(24))]


@pytest.mark.parametrize("groups", [SIXES, TWELVE, NODE])
@pytest.mark.parametrize(("kind", "in_place"), [(AR, False), (AR, True), (AG, False), (RS, False)])
@pytest.mark.parametrize("share", [1, 37])
def test_every_rank_ends_with_what_the_loops_give(
    groups: list[tuple[int, ...]], kind: EncOp, in_place: bool, share: int
) -> None:
    """Six inputs give a partial at a root, and the partials of all sixes give the result."""
    ranks = len(groups[0])
    count = share * ranks + (3 if kind is AR else 0)
    asked = plan("inf2.48xlarge", groups, kind, count, in_place=in_place)
    schedule = compose_mesh(asked)
    check(schedule, asked.request, lambda data, g: outputs(asked.request, data, g, by_sixes(groups[g])))
    event_laws(schedule)


@pytest.mark.parametrize("op", [CceType.MAX, CceType.MIN])
def test_other_operations(op: CceType) -> None:
    """Maximum and minimum run the same rows."""
    asked = plan("inf2.48xlarge", TWELVE, AR, 100, op=op, dtype=Dtype.FP16)
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, data, g, by_sixes(TWELVE[g])))


def test_only_inputs_are_scaled() -> None:
    """Design §2 (27)."""
    asked = plan("inf2.48xlarge", TWELVE, AR, 100, op=CceType.FMA, scales=(2.0,), dtype=Dtype.FP32)
    check(compose_mesh(asked), asked.request, lambda data, g: outputs(asked.request, 2 * data, g, by_sixes(TWELVE[g])))


@pytest.mark.parametrize(
    ("groups", "kind", "want"),
    [
        (NODE, AR, [2, 8, 1, 3, 10, 11, 7]),
        (NODE, RS, [2, 8, 1, 3, 10, 0]),
        (NODE, AG, [2, 1, 3, 7]),
        (SIXES, AR, [2, 8, 10, 7]),
    ],
)
def test_events_in_the_order_of_the_specification(groups: list[tuple[int, ...]], kind: EncOp, want: list[int]) -> None:
    """Compose §12.2: LOCAL, REDUCE_COPY, GLOBAL, INTER, REDUCE_WRITE, INTER_2, INTRA; of a root."""
    assert events(compose_mesh(plan("inf2.48xlarge", groups, kind, 240)), rank=1) == want


def test_the_root_for_a_group_is_its_number_mod_six() -> None:
    """Compose §12.2: root for destination group q = member q mod 6; others reduce nothing for foreign ranks."""
    schedule = compose_mesh(plan("inf2.48xlarge", NODE, RS, 240))
    rows = schedule.rows
    copies = (rows.event == EventType.EVT_REDUCE_COPY) & (rows.leaf == Leaf.MESH_REDUCE)
    members, times = np.unique(rows.rank[copies] % GROUP, return_counts=True)
    assert (members.tolist(), times.tolist()) == ([0, 1, 2, 3], [4 * GROUP] * 4)


def test_a_group_sends_one_partial_for_each_foreign_rank() -> None:
    """Compose §12.0: a destination receives one chunk per group."""
    schedule = compose_mesh(plan("inf2.48xlarge", NODE, RS, 240))
    sends = schedule.rows.event == EventType.EVT_INTER_GRP_BRDCST
    moving = sends & (schedule.rows.size > 0)
    assert int(moving.sum()) == 24 * 3


def test_touches_of_an_all_gather() -> None:
    """Every chunk is written once everywhere, the own copy included."""
    touched = traffic(compose_mesh(plan("inf2.48xlarge", NODE, AG, 24 * 16)))
    assert (touched.written == 24 * 32).all()
    assert (touched.sent == 23 * 32).all()
