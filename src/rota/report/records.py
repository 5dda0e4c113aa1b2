"""What a profile holds of the collectives of a program: their records, the communicators, the streams.

The layouts and the wire format are `isa.cc_op_info`; here is which values they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rota.facts import CONVENTION, Source
from rota.isa.cc_op_info import CORE_GRAPH, POSTED, REPORTED_NAMES, CcOpInfo, Values, encode_message
from rota.isa.enums import Algorithm
from rota.machine.platform import Platform
from rota.pipeline import Composed
from rota.request import SHARDED

STREAM: Final = 0
STREAM_SOURCE: Final = Source("device", "12, one stream a rank", CONVENTION)


def algorithm_of(made: Composed) -> Algorithm:
    """Return the algorithm that a collective is reported with: what is composed; INVALID for one of a user's own."""
    return Algorithm.__members__.get(made.algorithm, Algorithm.INVALID)


def cc_op_info_of(made: Composed, *, status: int = POSTED) -> CcOpInfo:
    """Return the record of one collective."""
    return CcOpInfo(op_type=made.request.kind, alg=algorithm_of(made), posted_status=status)


def core_graph_of(
    collectives: Sequence[Composed], platform: Platform, rank: int, *, cc_cores: Sequence[int], status: int = POSTED
) -> Values:
    """Return what the graph of one rank says of the collectives of a program, as values of `CORE_GRAPH`.

    A collective that the rank has no part in is left out. A communicator is one group of ranks in one order, numbered
    as they are first met.

    Args:
        rank: a rank of the machine.
        cc_cores: the TOP_SPs that carry the rank's stream, by their number on the chip.
        status: of the operations as a whole, 0 for posted.
    """
    comms: dict[tuple[int, ...], int] = {}
    operations: list[Values] = []
    for made in collectives:
        request = made.request
        group = next((each for each in request.groups if rank in each), None)
        if group is None:
            continue
        algorithm = algorithm_of(made)
        operations.append(
            {
                "type": int(request.kind),
                "algorithm": int(algorithm),
                "num_elements": request.count // (request.ranks if request.kind in SHARDED else 1),
                "comm_id": comms.setdefault(group, len(comms)),
                "data_type": int(request.dtype),
                "algorithm_name": REPORTED_NAMES[algorithm],
            }
        )
    stream: Values = {"cc_core_id": tuple(cc_cores), "id": STREAM}
    return {
        "cc_op_info": {"operations": tuple(operations), "status": status},
        "comm_info": tuple(_comm(group, number, platform, rank) for group, number in comms.items()),
        "stream_info": (stream,),
    }


def core_graph_bytes(
    collectives: Sequence[Composed], platform: Platform, rank: int, *, cc_cores: Sequence[int], status: int = POSTED
) -> bytes:
    """Return the message of `core_graph_of` as it goes into a profile."""
    return encode_message(CORE_GRAPH, core_graph_of(collectives, platform, rank, cc_cores=cc_cores, status=status))


def _comm(group: tuple[int, ...], number: int, platform: Platform, rank: int) -> Values:
    """Return what one member is told of its communicator."""
    nodes = [member // platform.node_ranks for member in group]
    return {
        "id": number,
        "rank": group.index(rank),
        "rank_n": len(group),
        "node_n": len(set(nodes)),
        "local_rank_n": nodes.count(rank // platform.node_ranks),
        "stream_id": STREAM,
    }
