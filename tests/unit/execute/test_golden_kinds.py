"""The golden of every kind: what is compared with what, by hand on a few numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rota.execute.golden import Accuracy, exceeds_exact_integers, make_inputs, measure
from rota.isa.dtypes import Dtype
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.request import Request

PAIR, THREE = ((0, 1),), ((4, 9, 7),)
RIGHT, MOVED_WRONG = Accuracy(0.0, None), Accuracy(None, None)


def ask(kind: EncOp, count: int = 4, groups: Any = PAIR, **other: Any) -> Request:
    op = CceType.ADD if kind in REDUCING else None
    return Request(kind, Dtype.FP32, count, groups, **{"op": op, **other})


def found(request: Request, inputs: Any, outputs: Any) -> Accuracy:
    return measure(request, np.array(inputs, np.float32), np.array(outputs, np.float32))


def test_all_to_all() -> None:
    """out[i] = in_i[r]; every output differs, so they are not compared with each other."""
    request, inputs = ask(EncOp.ALLTOALL), [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert found(request, inputs, [[1, 2, 5, 6], [3, 4, 7, 8]]) == RIGHT
    assert found(request, inputs, [[1, 2, 5, 6], [7, 8, 3, 4]]) == MOVED_WRONG


def test_all_to_all_v() -> None:
    """Pieces of counts[i][j], packed or where they are said to be; what lies between them is not looked at."""
    counts, inputs = ((0, 3), (2, 1)), [[1, 2, 3], [4, 5, 6]]
    request = ask(EncOp.ALLTOALL_V, 3, counts=counts)
    assert found(request, inputs, [[4, 5, 99, 99], [1, 2, 3, 6]]) == RIGHT
    assert found(request, inputs, [[4, 5, 0, 0], [1, 2, 3, 5]]) == MOVED_WRONG
    apart = {"send_displacements": ((9, 0), (1, 0)), "receive_displacements": ((9, 1), (2, 0))}
    assert found(ask(EncOp.ALLTOALL_V, 3, counts=counts, **apart), inputs, [[9, 5, 6, 9, 9], [4, 9, 1, 2, 3]]) == RIGHT
    even = ask(EncOp.ALLTOALL_V, 3)
    assert found(even, inputs, [[1, 2, 4], [3, 5, 6]]) == RIGHT
    assert found(even, inputs, [[1, 2, 4], [3, 6, 5]]) == MOVED_WRONG


def test_a_gather_of_unequal_shards() -> None:
    """The first gather_counts[k] elements of each, end to end, alike on every rank."""
    request, inputs = ask(EncOp.ALLGATHER, gather_counts=(1, 3)), [[1, 99, 99], [2, 3, 4]]
    assert found(request, inputs, [[1, 2, 3, 4]] * 2) == Accuracy(0.0, True)
    assert found(request, inputs, [[1, 2, 3, 4], [1, 2, 3, 5]]) == Accuracy(None, False)


@pytest.mark.parametrize("kind", [EncOp.SEND, EncOp.RECV])
def test_send_and_receive(kind: EncOp) -> None:
    """Member 1 holds the input of member 0; what member 0 holds is its own matter."""
    assert found(ask(kind, 1), [[1], [2]], [[77], [1]]) == RIGHT
    assert found(ask(kind, 1), [[1], [2]], [[1], [2]]) == MOVED_WRONG
    assert found(ask(kind, 1, ((3,),)), [[1]], [[1]]) == RIGHT
    assert found(ask(kind, 1, THREE), [[1], [2], [3]], [[99], [1], [99]]) == RIGHT


def test_permutes_by_pairs_and_along_rings() -> None:
    """Pairs are machine ranks; without them an implicit permute goes along the group order."""
    inputs = [[1], [2], [3]]
    assert found(ask(EncOp.PERMUTE, 1, THREE, pairs=((7, 4), (4, 7))), inputs, [[3], [99], [1]]) == RIGHT
    assert found(ask(EncOp.PERMUTE, 1, THREE, pairs=((7, 4),)), inputs, [[2], [99], [1]]) == MOVED_WRONG
    assert found(ask(EncOp.PERMUTE_IMPLICIT, 1, THREE), inputs, [[3], [1], [2]]) == RIGHT
    ring = ((4, 7), (7, 9), (9, 4))
    assert found(ask(EncOp.PERMUTE_IMPLICIT, 1, THREE, pairs=ring), inputs, [[2], [3], [1]]) == RIGHT
    both = ask(EncOp.PERMUTE, 1, ((0, 1), (5, 3)), pairs=((0, 1), (3, 5)))
    assert found(both, [[1], [2], [3], [4]], [[0], [1], [4], [0]]) == RIGHT


@pytest.mark.parametrize(("op", "sums"), [(CceType.ADD, [33, 11]), (CceType.MAX, [30, 10]), (CceType.MIN, [3, 1])])
def test_permutes_that_reduce(op: CceType, sums: list[float]) -> None:
    """The target holds input combined with input1 of its source, in units of the last place."""
    inputs = [[1, 10], [3, 30]]
    for kind, pairs in ((EncOp.PERMUTE_REDUCE, ((0, 1), (1, 0))), (EncOp.PERMUTE_REDUCE_IMPLICIT, ())):
        request = ask(kind, 1, op=op, pairs=pairs)
        assert found(request, inputs, [[sums[0]], [sums[1]]]) == RIGHT
        off = found(request, inputs, [[np.nextafter(np.float32(sums[0]), np.float32(99))], [sums[1]]])
        assert off == Accuracy(1.0, None)


def test_broadcast_and_reduce() -> None:
    """The root's input everywhere, alike; everyone's inputs at the root alone."""
    inputs = [[1], [2], [3]]
    assert found(ask(EncOp.BROADCAST, 1, THREE, root=2), inputs, [[3]] * 3) == Accuracy(0.0, True)
    assert found(ask(EncOp.BROADCAST, 1, THREE, root=2), inputs, [[3], [3], [2]]) == Accuracy(None, False)
    assert found(ask(EncOp.REDUCE, 1, THREE, root=1), inputs, [[99], [6], [99]]) == RIGHT
    assert found(ask(EncOp.REDUCE, 1, THREE, root=1), inputs, [[6], [7], [6]]).max_ulp == 2.0**21


@pytest.mark.parametrize(("scales", "total"), [((2.0,), 10.0), ((0.5, -1.0), -2.5 + 1)])
def test_an_fma_weighs_its_inputs(scales: tuple[float, ...], total: float) -> None:
    """out = sum of scale[r] x input[r], in float64. Source: design §2 (27)."""
    request = ask(EncOp.ALLREDUCE, 1, op=CceType.FMA, scales=scales)
    assert found(request, [[3], [2 if len(scales) == 1 else 3]], [[total]] * 2) == Accuracy(0.0, True)
    shards = ask(EncOp.REDUCE_SCATTER, 2, op=CceType.FMA, scales=(0.5, 4.0))
    assert found(shards, [[2, 4], [1, 10]], [[5], [42]]) == RIGHT
    assert found(shards, [[2, 4], [1, 10]], [[5], [14]]).max_ulp != 0


@pytest.mark.parametrize("kind", [kind for kind in EncOp if kind is not EncOp.INVALID])
def test_inputs_fill_the_input_buffer_of_every_kind(kind: EncOp) -> None:
    """One input a member, as large as the request says."""
    pairs = ((0, 1), (1, 0)) if kind in (EncOp.PERMUTE, EncOp.PERMUTE_REDUCE) else ()
    request = ask(kind, 6, pairs=pairs)
    assert make_inputs(request, np.random.default_rng(1)).shape == (2, request.input_size // 4)


def test_inputs_of_an_fma_sum_to_about_one() -> None:
    """They are divided by a power of two not under the sum of the scales, so that no format overflows."""
    request = Request(
        EncOp.ALLREDUCE, Dtype.FP8_EXP4, 200, PAIR, CceType.FMA, scales=(100.0, -30.0), integer_as_fp32=True
    )
    inputs = make_inputs(request, np.random.default_rng(1)).astype(float)
    assert 0.5 / 256 <= inputs.mean() <= 1.5 / 128
    alone = make_inputs(ask(EncOp.PERMUTE_REDUCE_IMPLICIT, 200, ((0,),)), np.random.default_rng(1))
    assert alone.max() <= 0.75
    assert make_inputs(request, np.random.default_rng(1)).dtype == ml_dtypes.float8_e4m3


@pytest.mark.parametrize(
    ("kind", "other", "parts", "exceeds"),
    [
        (EncOp.ALLREDUCE, {"op": CceType.FMA, "scales": (2.0, 1.0)}, [[1 << 23], [0]], False),
        (EncOp.ALLREDUCE, {"op": CceType.FMA, "scales": (2.0, 1.0)}, [[1 << 23], [1]], True),
        (EncOp.ALLREDUCE, {"op": CceType.FMA, "scales": (0.25,)}, [[(1 << 24) + 1], [0]], True),
        (EncOp.PERMUTE_REDUCE_IMPLICIT, {}, [[1 << 23, 1 << 23], [1 << 23, 0]], False),
        (EncOp.PERMUTE_REDUCE_IMPLICIT, {}, [[1 << 23, (1 << 23) + 1], [0, 0]], True),
    ],
)
def test_when_integers_of_two_operands_or_scales_stop_being_exact(
    kind: EncOp, other: dict[str, Any], parts: Any, exceeds: bool
) -> None:
    """Both operands of one source are summed, not those of all; scales count."""
    request = Request(kind, Dtype.INT32, 1, PAIR, **{"op": CceType.ADD, "integer_as_fp32": True, **other})
    assert exceeds_exact_integers(request, np.array(parts, np.int32)) is exceeds


def test_groups_of_one_request_do_not_add_up() -> None:
    """Two groups below the limit are below it together."""
    request = Request(EncOp.ALLREDUCE, Dtype.INT32, 1, ((0,), (1,)), CceType.ADD, integer_as_fp32=True)
    assert not exceeds_exact_integers(request, np.array([[1 << 24], [1 << 24]], np.int32))
