"""What the switch's algorithms leave on every rank, and who notifies whom, as plain loops over machine ranks.

Slow, clear, and held equal to what is composed. A rank stands at (row, column, lane): server, chip in the server, lane.
Source: compose §12.6 for the reductions; switch_schedule §3.1 and §4 for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.unit.compose.slow_mesh import Inputs, Reduce

from rota.compose.switch.planned import Phase
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import Platform, load_platform
from rota.request import Request
from rota.select import Plan, Settings
from rota.select.choose import Selector
from rota.select.force import forced_choice, neutral

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
A2A, A2AV = EncOp.ALLTOALL, EncOp.ALLTOALL_V
LATENCY, BANDWIDTH = Algorithm.LATENCY_OPT_MESH, Algorithm.BW_OPT_MESH
MESH, SINGLE = Algorithm.MESH, Algorithm.SINGLE_STEP_MESH
GEN1, GEN2 = "trn3pds98-gen1", "trn3pds98"

Place = tuple[int, int, int]


def box(name: str, lnc: int, servers: Sequence[int], chips: Sequence[int], lanes: Sequence[int]) -> tuple[int, ...]:
    """The ranks of a full box, ascending."""
    at = load_platform(name, lnc=lnc)
    return tuple(
        at.ranks_per_chip * (at.chips * server + chip) + lane for server in servers for chip in chips for lane in lanes
    )


def plan(
    name: str,
    lnc: int,
    groups: Sequence[Sequence[int]],
    kind: EncOp,
    count: int,
    algorithm: Algorithm,
    *,
    dtype: Dtype = Dtype.BFLOAT16,
    op: CceType = CceType.ADD,
    settings: Settings | None = None,
    **other: Any,
) -> Plan:
    """The decision for a request with a forced algorithm; `count` is elements of the whole buffer."""
    combine = op if kind in (AR, RS) else None
    whole = tuple(map(tuple, groups))
    asked = Request(kind, dtype, count, whole, combine, integer_as_fp32=dtype is Dtype.INT32, **other)
    selector = Selector(load_platform(name, lnc=lnc), neutral(settings or Settings()), any_group=True)
    return selector.select(asked, lambda comm, ask: forced_choice(comm, ask, algorithm))


def place(platform: Platform, rank: int) -> Place:
    """Server, chip in the server, lane."""
    chip, lane = divmod(rank, platform.ranks_per_chip)
    return chip // platform.chips, chip % platform.chips, lane


def by_box(platform: Platform, group: Sequence[int]) -> Reduce:
    """Chips are folded by lane and rounded, their sums by column and rounded, the sums of the rows by row."""
    at = {place(platform, rank): position for position, rank in enumerate(group)}
    rows, columns, lanes = (sorted({where[axis] for where in at}) for axis in range(3))

    def reduce(inputs: Inputs, position: int) -> Any:
        row_sums = []
        for row in rows:
            chip_sums = []
            for column in columns:
                chip_sums.append(inputs.fold([inputs.of(at[row, column, lane], position) for lane in lanes]))
            row_sums.append(inputs.fold(chip_sums))
        return inputs.fold(row_sums)

    return reduce


def by_rank(group: Sequence[int]) -> Reduce:
    """All inputs in the order of the group."""

    def reduce(inputs: Inputs, position: int) -> Any:
        return inputs.fold([inputs.of(member, position) for member in range(len(group))])

    return reduce


def hears(phase: Phase, phases: Sequence[Phase], mine: Place, other: Place) -> bool:
    """Whether a rank's notify of a phase reaches another one, or itself."""
    (row, column, lane), (row2, column2, lane2) = mine, other
    chip, same = (row, column) == (row2, column2), mine == other
    bandwidth, alone = Phase.INTRA_CHIP_BROADCAST in phases, not any("broadcast" in each.value for each in phases)
    return {
        Phase.PCIE_PEER_HANDSHAKE: not chip and (lane == lane2 or not bandwidth),
        Phase.INTRA_CHIP_HANDSHAKE: chip and not same,
        Phase.ALL_RANK_HANDSHAKE: not same,
        Phase.INTRA_AXIS_BROADCAST: row == row2 and not same,
        Phase.INTER_AXIS_BROADCAST: row != row2,
        Phase.INTRA_AXIS_BW_BROADCAST: row == row2 and lane == lane2 and not same,
        Phase.INTER_AXIS_BW_BROADCAST: row != row2 and lane == lane2,
        Phase.INTRA_CHIP_BROADCAST: chip and not same,
        Phase.INTRA_AXIS_CHIPR1W: (row == row2 and lane == lane2) or (alone and chip),
        Phase.INTER_AXIS_DIMR1W: column == column2 and lane == lane2,
        Phase.INTRA_RANK_DIMR1W: same,
        Phase.SINGLE_STEP_REDUCE: same,
        Phase.DMA_SYNC: same,
        Phase.FIRST_BARRIER: False,
        Phase.LAST_BARRIER: False,
    }[phase]
