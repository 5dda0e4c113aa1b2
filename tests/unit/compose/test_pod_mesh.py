"""The two-step pod mesh: compose §12.5, design §2 (26), topology §5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_mesh import AG, AR, RS, by_pod, check, event_laws, events, outputs, plan

from rota.columns import owners
from rota.compose.pod import compose_pod, how_of
from rota.errors import UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.schedule.ir import Schedule
from rota.verify import traffic

GROUPS = [(0, 64, 128, 192), (65, 193, 1, 129)]


def pod_plan(kind: EncOp, count: int, groups: list[tuple[int, ...]] = GROUPS, **other: Any) -> Any:
    return plan("trn2u.48xlarge", groups, kind, count, nodes=4, **other)


def nodes(group: int) -> list[int]:
    return [rank // 64 for rank in GROUPS[group]]


@pytest.mark.parametrize(("kind", "in_place"), [(AR, False), (AR, True), (AG, False), (RS, False)])
@pytest.mark.parametrize("share", [1, 37])
def test_every_rank_ends_with_what_the_loops_give(kind: EncOp, in_place: bool, share: int) -> None:
    """Two halvings, the partial of the first rounded; groups whose members come in another order of nodes."""
    asked = pod_plan(kind, 4 * share + (1 if kind is AR else 0), in_place=in_place)
    schedule = compose_pod(asked)
    check(schedule, asked.request, lambda data, g: outputs(asked.request, data, g, by_pod(nodes(g))))
    event_laws(schedule)


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP8_EXP4, Dtype.INT32])
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
def test_types_and_operations(dtype: Dtype, op: CceType) -> None:
    """The same rows for all of them."""
    asked = pod_plan(AR, 50, dtype=dtype, op=op)
    check(compose_pod(asked), asked.request, lambda data, g: outputs(asked.request, data, g, by_pod(nodes(g))))


@pytest.mark.parametrize("in_place", [False, True])
def test_only_inputs_are_scaled(in_place: bool) -> None:
    """Design §2 (27)."""
    asked = pod_plan(AR, 50, op=CceType.FMA, scales=(2.0,), dtype=Dtype.FP32, in_place=in_place)
    check(compose_pod(asked), asked.request, lambda data, g: outputs(asked.request, 2 * data, g, by_pod(nodes(g))))


@pytest.mark.parametrize(("kind", "want"), [(RS, [1, 8, 9, 10]), (AG, [1, 12, 13]), (AR, [1, 8, 9, 10, 12, 13])])
def test_events_in_the_order_of_the_specification(kind: EncOp, want: list[int]) -> None:
    """Compose §12.5: GLOBAL 1, REDUCE_COPY 8, REDUCE_COPY_2 9, REDUCE_WRITE 10, LOCAL_AND_POD 12, _2 13."""
    assert events(compose_pod(pod_plan(kind, 256))) == want


def loads(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Bytes from each node to each other, of the first group (its positions are its nodes)."""
    row = owners(schedule.targets.ptr)
    found: dict[tuple[int, int], int] = {}
    for entry, at in enumerate(row.tolist()):
        pair = int(schedule.rows.rank[at]), int(schedule.targets.rank[entry])
        if pair[0] != pair[1]:
            found[pair] = found.get(pair, 0) + int(schedule.rows.size[at])
    return found


@pytest.mark.parametrize(("kind", "times"), [(AG, 1), (RS, 1), (AR, 2)])
def test_loads_of_the_z_links(kind: EncOp, times: int) -> None:
    """Topology §5: 2 L C on the left cables (node ^ 1), L C on the right ones (node ^ 3), none to the opposite."""
    found = loads(compose_pod(pod_plan(kind, 64, GROUPS[:1])))
    assert found == {(n, n ^ 1): 64 * times for n in range(4)} | {(n, n ^ 3): 32 * times for n in range(4)}


def test_loads_of_a_chip_with_four_lanes() -> None:
    """Topology §5: 8 C and 4 C per chip and direction, four groups at once, one of each lane."""
    groups = [tuple(lane + 64 * node for node in range(4)) for lane in range(4)]
    schedule = compose_pod(pod_plan(AG, 64, groups))
    row = owners(schedule.targets.ptr)
    sender, taker = (
        schedule.rows.rank[row] % 4,
        schedule.targets.rank % 4,
    )  # the node: positions of a group are its nodes
    for difference, chunks in ((1, 8), (3, 4), (2, 0)):
        for node in range(4):
            here = (sender == node) & (taker == node ^ difference)
            assert int(schedule.rows.size[row[here]].sum()) == 32 * chunks


@pytest.mark.parametrize(("kind", "times"), [(AG, 1), (RS, 1), (AR, 2)])
def test_bytes_sent(kind: EncOp, times: int) -> None:
    """Compose §15 (6): (N-1) C, for an all-reduce twice that."""
    assert (traffic(compose_pod(pod_plan(kind, 64))).sent == 3 * 32 * times).all()


def test_an_all_gather_of_unequal_shards() -> None:
    """The extension: members give differently many elements."""
    counts = (3, 0, 5, 1)
    asked = pod_plan(AG, sum(counts), GROUPS[:1], gather_counts=counts)

    def want(data: Any, _: int) -> list[Any]:
        return [np.concatenate([data[k][:count] for k, count in enumerate(counts)])] * 4

    check(compose_pod(asked), asked.request, want)


def test_members_are_found_by_their_node() -> None:
    """Positions of nodes 0 to 3 of a group in another order."""
    how = how_of(load_platform("trn2u.48xlarge", nodes=4), GROUPS)
    assert how.nodes.tolist() == [[0, 1, 2, 3], [2, 0, 3, 1]]


@pytest.mark.parametrize("group", [(0, 64, 128), (0, 1, 64, 128), (0, 64)])
def test_a_group_is_one_rank_on_each_of_four_nodes(group: tuple[int, ...]) -> None:
    """Anything else has no direct and no proxy."""
    with pytest.raises(UnsupportedError, match="expected one rank on each of the 4 nodes of one pod") as caught:
        how_of(load_platform("trn2u.48xlarge", nodes=4), [group])
    assert caught.value.source is not None


def test_four_nodes_of_a_pod_select_it() -> None:
    """Select §7.4: in a pod of four the two-step builders take the place of the plain ones."""
    assert pod_plan(AG, 4 * 1024).selected is Algorithm.TWO_STEP_POD_MESH
