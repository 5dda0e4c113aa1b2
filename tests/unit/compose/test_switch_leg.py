"""The switch's mesh as a leg of a hierarchy: topology §5 (576 ranks run as sleds within racks)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.compose.slow_switch import GEN1, GEN2, box

from rota.compose.board import Board, Region
from rota.compose.switch.leg import how_of, write_all_gather, write_all_reduce, write_reduce_scatter
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import load_platform
from rota.schedule.ir import Op
from rota.select import Settings
from rota.verify import find_order

SLEDS = tuple(box(GEN2, 2, [server], range(4), range(4)) for server in (0, 7))
RANKS = 16


@pytest.mark.parametrize("reported", [Algorithm.MESH, Algorithm.BW_OPT_MESH])
def test_a_gather_behind_a_reduce_scatter_is_an_all_reduce(reported: Algorithm) -> None:
    """Two legs on strided regions, the second from scratch."""
    how = how_of(load_platform(GEN2), SLEDS, Settings(), reported=reported)
    stride, size, share = 32, 20, 5
    board = Board(ranks=RANKS, groups=2, input_size=RANKS * stride, output_size=RANKS * stride, op=Op.ADD)
    scratch = Region(board.buffer("scratch", size))
    first, second = (board.part(board.members, leg=leg, prefix=f"leg{leg}.") for leg in (0, 1))
    write_reduce_scatter(first, how, Region(board.input, 0, stride), scratch, size)
    write_all_gather(second, how, scratch, Region(board.output, 0, stride), size, fence_first=True)
    schedule = board.schedule()
    assert not list(find_order(schedule))
    data = np.random.default_rng(1).integers(-99, 99, (2 * RANKS, RANKS * stride // 4)).astype(np.float32)
    got = execute(schedule, data).reshape(2, RANKS, RANKS, stride // 4)[..., :share]
    want = data.reshape(2, RANKS, RANKS, stride // 4).sum(axis=1)[:, None, :, :share]
    assert (got == want).all()


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        (Algorithm.MESH, "single-step all-reduce"),
        (Algorithm.LATENCY_OPT_MESH, "latency-opt all-reduce"),
        (Algorithm.BW_OPT_MESH, "bandwidth-opt all-reduce"),
    ],
)
def test_the_chosen_algorithm_carries_the_leg(reported: Algorithm, name: str) -> None:
    """Else the first in the menu that does the operation."""
    how = how_of(load_platform(GEN2), SLEDS, Settings(), reported=reported)
    board = Board(ranks=RANKS, groups=2, input_size=400, output_size=400, op=Op.ADD)
    assert [slot.subtype.name for _, _, slot in how.parts(board, EncOp.ALLREDUCE)] == [name]
    write_all_reduce(board, how, Region(board.input), Region(board.output), 400)
    schedule = board.schedule()
    assert not list(find_order(schedule))


def test_an_operation_that_no_builder_does_is_refused() -> None:
    """The all-to-all needs LNC 2."""
    how = how_of(load_platform(GEN1, lnc=1), (box(GEN1, 1, [0], [0, 1], range(8)),), Settings())
    with pytest.raises(UnsupportedError, match="no builder of the switch does all_to_all"):
        list(how.parts(Board(ranks=16, input_size=16, output_size=16), EncOp.ALLTOALL))
