"""Records of collectives for a profile. Source: device §12; the algorithm of a record, all-reduce §6.3."""

from __future__ import annotations

import pytest

from rota.isa.cc_op_info import CORE_GRAPH, decode_message
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.pipeline import Composed, How, prove
from rota.report.records import STREAM, algorithm_of, cc_op_info_of, core_graph_bytes, core_graph_of
from rota.request import Request

TWO_NODES = load_platform("trn2.48xlarge", nodes=2)


def made(
    kind: EncOp, groups: tuple[tuple[int, ...], ...], *, algorithm: Algorithm | None = Algorithm.RING, count: int = 640
) -> Composed:
    """Return a collective of bf16, not proved."""
    op = CceType.ADD if kind in (EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER) else None
    request = Request(kind, Dtype.BFLOAT16, count, groups, op)
    return prove(request, TWO_NODES, How(algorithm=algorithm, extensions=True, verify=False))


@pytest.mark.parametrize(
    ("kind", "group", "algorithm", "name"),
    [
        (EncOp.ALLREDUCE, (0, 1, 2, 3), Algorithm.RING, "Ring"),
        (EncOp.ALLGATHER, (0, 1, 2, 3), Algorithm.MESH, "Mesh"),
        (EncOp.ALLREDUCE, (0, 64), Algorithm.SINGLE_CYCLE_RING, "Invalid"),
    ],
)
def test_the_record_of_a_collective(kind: EncOp, group: tuple[int, ...], algorithm: Algorithm, name: str) -> None:
    """op_type is the kind, alg what is composed, alg_name what the runtime calls it; cc_op 1, posted."""
    info = cc_op_info_of(made(kind, (group,), algorithm=algorithm))
    assert (info.posted_status, info.cc_op, info.op_type, info.alg, info.alg_name) == (0, True, kind, algorithm, name)


def test_a_status_of_ones_own() -> None:
    """A collective that failed keeps its record."""
    assert cc_op_info_of(made(EncOp.ALLREDUCE, ((0, 1),)), status=5).posted_status == 5


def test_what_is_no_algorithm_of_the_runtime() -> None:
    """An extension is none of the twelve."""
    assert algorithm_of(made(EncOp.BROADCAST, ((0, 1, 2, 3),), algorithm=None)) is Algorithm.INVALID


def test_the_graph_of_a_rank() -> None:
    """Operations in order, each naming its communicator; one communicator for equal groups; one stream."""
    near, far = ((0, 1, 2, 3), (4, 5, 6, 7)), ((3, 67),)
    program = [
        made(EncOp.ALLREDUCE, near),
        made(EncOp.ALLGATHER, far, count=128),
        made(EncOp.REDUCE_SCATTER, near),
        made(EncOp.ALLREDUCE, ((8, 9),)),
    ]
    graph = core_graph_of(program, TWO_NODES, 3, cc_cores=(14, 15))
    ring = {"algorithm": 0, "data_type": 6, "algorithm_name": "Ring"}
    assert STREAM == 0
    assert graph == {
        "cc_op_info": {
            "operations": (
                {"type": 1, "num_elements": 640, "comm_id": 0, **ring},
                {"type": 0, "num_elements": 64, "comm_id": 1, **ring},
                {"type": 4, "num_elements": 160, "comm_id": 0, **ring},
            ),
            "status": 0,
        },
        "comm_info": (
            {"id": 0, "rank": 3, "rank_n": 4, "node_n": 1, "local_rank_n": 4, "stream_id": 0},
            {"id": 1, "rank": 0, "rank_n": 2, "node_n": 2, "local_rank_n": 1, "stream_id": 0},
        ),
        "stream_info": ({"cc_core_id": (14, 15), "id": STREAM},),
    }


def test_the_graph_as_bytes() -> None:
    """A profile reads back as what was put in; a rank without a part has no operation and no communicator."""
    program = [made(EncOp.ALLREDUCE, ((0, 1, 2, 3),))]
    for rank in (2, 9):
        wire = core_graph_bytes(program, TWO_NODES, rank, cc_cores=(10,), status=6)
        assert decode_message(CORE_GRAPH, wire) == core_graph_of(program, TWO_NODES, rank, cc_cores=(10,), status=6)
    assert decode_message(CORE_GRAPH, wire)["comm_info"] == ()
