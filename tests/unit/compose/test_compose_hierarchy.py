"""HIER: legs inside the nodes and across them, in any combination, plain and pipelined, and what each of them moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rota.compose import hierarchy
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.pipeline import Composed, How, prove
from rota.request import Request
from rota.select.settings import Settings
from rota.verify.traffic import traffic

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
KINDS = [AR, AG, RS]
MESHES, RINGS = Settings(), Settings(mesh=False)


def group(nodes: int, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(64 * node + rank for node in range(nodes) for rank in ranks)


def made(
    kind: EncOp,
    members: Sequence[int],
    count: int,
    *,
    nodes: int,
    settings: Settings = MESHES,
    in_place: bool = False,
    name: str = "trn2.48xlarge",
) -> Composed:
    """Compose and prove; `count` is elements of the whole buffer."""
    op = None if kind is AG else CceType.ADD
    request = Request(kind, Dtype.FP32, count, (tuple(members),), op, in_place=in_place)
    composed = prove(request, load_platform(name, nodes=nodes), How(settings=settings))
    assert composed.algorithm == "HIER"
    return composed


def check_numbers(composed: Composed) -> None:
    """Small whole numbers add exactly, so any order gives the sum."""
    request = composed.request
    shape = (request.ranks, request.input_size // 4)
    inputs = np.random.default_rng(1).integers(0, 9, shape).astype(np.float32)
    result = execute(composed.schedule, inputs)
    if request.kind is AR:
        assert (result == inputs.sum(axis=0)).all()
    elif request.kind is AG:
        assert (result == inputs.reshape(-1)).all()
    else:
        assert (result == inputs.sum(axis=0).reshape(request.ranks, -1)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("nodes", "ranks", "settings"),
    [
        (2, range(4), MESHES),
        (2, range(4), RINGS),
        (4, range(8), RINGS),
        (2, range(16), RINGS),
        (2, range(16), Settings(mesh=False, kangaring_mode=2)),
        (8, range(4), Settings(inter_mesh_max_nodes=0)),
        (6, range(4), Settings(inter_mesh_max_nodes=0, single_cycle_mode=0)),
        (3, range(0, 64, 4), MESHES),
    ],
)
def test_legs_in_any_combination(kind: EncOp, in_place: bool, nodes: int, ranks: range, settings: Settings) -> None:
    """Any inner with any outer algorithm gives what the collective means. Source: compose §13; platforms §4.3."""
    if in_place and kind is not AR:
        return
    members = group(nodes, ranks)
    check_numbers(made(kind, members, 5 * len(members), nodes=nodes, settings=settings, in_place=in_place))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [MESHES, RINGS])
def test_members_in_any_order(kind: EncOp, settings: Settings) -> None:
    """Member i owns shard i wherever it stands."""
    check_numbers(made(kind, (67, 0, 64, 1, 2, 65, 3, 66), 8 * 37, nodes=2, settings=settings))


@pytest.mark.parametrize("kind", KINDS)
def test_pods(kind: EncOp) -> None:
    """Across the nodes of an UltraServer the outer leg is the two-step pod mesh. Source: compose §12.5."""
    composed = made(kind, group(4, range(4)), 16 * 11, nodes=4, name="trn2u.48xlarge")
    outer = [leg.reported for leg in composed.plan.legs if leg.used and leg.slot.startswith("inter")]
    assert outer == [Algorithm.TWO_STEP_POD_MESH]
    check_numbers(composed)


@pytest.mark.parametrize("count", [1, 3, 31, 32, 33, 8 * 8 + 1, 4001])
@pytest.mark.parametrize("settings", [MESHES, RINGS])
def test_an_all_reduce_without_equal_shards_has_a_tail(count: int, settings: Settings) -> None:
    """The bytes behind the last 32 of every local rank are reduced whole, in every node and then across."""
    composed = made(AR, group(2, range(4)), count, nodes=2, settings=settings)
    check_numbers(composed)
    names = {buffer.name for buffer in composed.schedule.buffers}
    assert ("tail" in names) == bool(count * 4 % (4 * 32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slices", [2, 3, 5])
def test_a_pipeline_has_a_queue_for_each_stage(kind: EncOp, slices: int) -> None:
    """Slice t of stage s runs at tick s + t: stages on queues of their own, all rings. Source: compose §13.3."""
    settings = Settings(mesh=False, kangaring_mode=2, hier_pipeline=slices)
    composed = made(kind, group(2, range(16)), 32 * 160, nodes=2, settings=settings)
    assert composed.plan.slices == slices
    stages = 3 if kind is AR else 2
    assert np.unique(composed.schedule.rows.queue).tolist() == list(range(stages))
    check_numbers(composed)


@pytest.mark.parametrize("kind", [AR, RS])
@pytest.mark.parametrize("settings", [MESHES, RINGS])
def test_data_larger_than_the_scratch_run_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, kind: EncOp, settings: Settings
) -> None:
    """The whole program is repeated over pieces whose shards fit the scratch. Source: select §6.2."""
    monkeypatch.setattr(hierarchy, "SCRATCH", {"cayman": 1024})
    composed = made(kind, group(2, range(4)), 8 * 400, nodes=2, settings=settings)
    scratch = sum(buffer.size for buffer in composed.schedule.buffers if buffer.name.startswith("scratch"))
    assert scratch <= 1024
    check_numbers(composed)


def test_a_leg_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of rows have 16 bits, 8 of them for the part of a leg that is no ring."""
    monkeypatch.setattr(hierarchy, "SCRATCH", {"cayman": 64})
    with pytest.raises(UnsupportedError, match=r"MESH leg of \d+ parts, .*expected at most 255"):
        made(AR, group(2, range(4)), 1 << 14, nodes=2)


@pytest.mark.parametrize(("kind", "times"), [(AR, 2), (RS, 1), (AG, 1)])
def test_bytes_sent_are_those_of_both_levels(kind: EncOp, times: int) -> None:
    """(Y-1)/Y of the buffer inside and (X-1)/X of a slice of it across; all-reduce twice. Source: compose §13.2."""
    nodes, local = 4, 16
    members = group(nodes, range(local))
    settings = Settings(mesh=False, kangaring_mode=2)
    composed = made(kind, members, len(members) * 64, nodes=nodes, settings=settings)
    size = composed.request.size
    inside, across = size * (local - 1) // local, size // local * (nodes - 1) // nodes
    assert set(traffic(composed.schedule).sent.tolist()) == {times * (inside + across)}


def test_windows_run_beside_each_other_where_all_legs_are_rings() -> None:
    """One window for each channel of ring-only operations; with a mesh leg there is one. Source: design §2 (28)."""
    members = group(2, range(16))
    rings = made(AR, members, 32 * 512, nodes=2, settings=Settings(mesh=False, kangaring_mode=2))
    assert np.unique(rings.schedule.rows.queue).tolist() == [0]  # two nodes have one ring between them
    four = made(AR, group(4, range(16)), 64 * 512, nodes=4, settings=Settings(mesh=False, kangaring_mode=2))
    assert np.unique(four.schedule.rows.queue).tolist() == [0, 1]
    meshes = made(AR, group(4, range(16)), 64 * 512, nodes=4)
    assert np.unique(meshes.schedule.rows.queue).tolist() == [0]
