"""An algorithm of one's own: Bruck's all-gather, for any number of ranks N, in log2 N rounds instead of a ring's N - 1.

    row                 waits for                 moves                                      signals
    copy                                          own input -> own shard of the output
    enter, round b                                                                           2^b behind: ready.b
    round b             ready.b, arrived.(b-1)    of the 2^b shards from its own on,
                                                  those up to the end -> the rank 2^b before
    ... and around                                those at the start -> the same rank        2^b before: arrived.b
    leave               the last arrived.b

Before round b a rank holds the 2^b shards from its own on; the next ones come from the rank 2^b behind it. The last
round sends only what is still missing. Proved and run by

    rota verify all_gather --ranks 16 --size 64K --algorithm examples/my_algorithm.py:compose
    rota run all_gather --ranks 16 --size 64K --algorithm examples/my_algorithm.py:compose
"""

import numpy as np

from rota import Board, Checks, EncOp, Leaf, Plan, Region, Schedule, Signal, UnsupportedError, Wait

CHECKS = Checks.ALL


def compose(plan: Plan) -> Schedule:
    """Return the schedule of a plan."""
    request = plan.request
    if request.kind is not EncOp.ALLGATHER or request.gather_counts:
        raise UnsupportedError("my_algorithm does all_gather of equal shards, nothing else")
    board = Board.of(request)
    source = Region(board.input)
    target = Region(board.output, stride=request.share)
    write_all_gather(board, source, target, request.share)
    return board.schedule(checks=CHECKS)


def write_all_gather(board: Board, source: Region, target: Region, size: int) -> None:
    """Write the rows; every rank's shard of `size` bytes ends as shard k of `target` on all ranks."""
    me, ranks = board.position, board.ranks
    board.rows(Leaf.DIRECT_COPY, me, size=size, reads=[source.at()], writes=[target.at(me)])
    if ranks == 1:
        return
    rounds = range((ranks - 1).bit_length())
    ready = [board.semaphore(f"ready.{b}") for b in rounds]
    arrived = [board.semaphore(f"arrived.{b}") for b in rounds]
    for b in rounds:
        behind = (me + 2**b) % ranks
        board.rows(Leaf.POST_RECV, me, step=1 + b, signals=[Signal(behind, ready[b])])
    for b in rounds:
        before = (me - 2**b) % ranks
        shards = min(2**b, ranks - 2**b)
        straight = np.minimum(shards, ranks - me)
        waits = [Wait(ready[b])]
        if b > 0:
            waits.append(Wait(arrived[b - 1]))
        board.rows(
            Leaf.DIRECT_RECV_SEND,
            me,
            step=len(ready) + 1 + b,
            size=straight * size,
            reads=[target.at(me)],
            writes=[target.at(me, rank=before)],
            waits=waits,
            fence=b == 0,
        )
        board.rows(
            Leaf.DIRECT_RECV_SEND,
            me,
            step=len(ready) + 1 + b,
            part=1,
            size=(shards - straight) * size,
            reads=[target.at(0)],
            writes=[target.at(0, rank=before)],
            signals=[Signal(before, arrived[b])],
        )
    board.rows(Leaf.DIRECT_RECV, me, step=2 * len(ready) + 1, waits=[Wait(arrived[-1])])
