"""How the tests of SELECT ask: a request of a group at a size, its decision, and the switch points over sizes."""

from __future__ import annotations

from collections.abc import Sequence

from rota.isa.dtypes import Dtype, size_of
from rota.isa.enums import REDUCING, Algorithm, CceType, EncOp
from rota.machine.platform import Platform, load_platform
from rota.request import PAIRED, Request
from rota.select import Plan, Selector, Settings
from rota.select.whatif import SizeRange, switch_points

AR, AG, RS, A2A, A2AV = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL, EncOp.ALLTOALL_V
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RING, HIER, MESH, KANGARING = Algorithm.RING, Algorithm.HIER, Algorithm.MESH, Algorithm.KANGARING
STEP, POD, LATENCY, BANDWIDTH = (
    Algorithm.SINGLE_STEP_MESH,
    Algorithm.TWO_STEP_POD_MESH,
    Algorithm.LATENCY_OPT_MESH,
    Algorithm.BW_OPT_MESH,
)
INTRA_RDH, INTER_RDH, SINGLE_CYCLE = Algorithm.INTRA_RDH, Algorithm.INTER_RDH, Algorithm.SINGLE_CYCLE_RING
TRN1, TRN2, SWITCH = load_platform("trn1.32xlarge"), load_platform("trn2.48xlarge"), load_platform("trn3pds98")
BYTE = Dtype.FP8_EXP4  # of one byte, and it can be reduced


def chips(*numbers: int, lanes: Sequence[int] = range(4), ranks_per_chip: int = 4) -> tuple[int, ...]:
    """Return the ranks of some chips."""
    return tuple(ranks_per_chip * chip + lane for chip in numbers for lane in lanes)


def one_a_node(platform: Platform) -> tuple[int, ...]:
    """Return the first rank of each node."""
    return tuple(range(0, platform.ranks, platform.node_ranks))


def request(group: Sequence[int], size: int, kind: EncOp = AR, *, dtype: Dtype = BYTE) -> Request:
    """Ask for a whole buffer of `size` bytes; what needs pairs gets those of a ring."""
    members = tuple(group)
    pairs = tuple(zip(members, (*members[1:], members[0]), strict=True)) if kind in PAIRED else ()
    op = CceType.ADD if kind in REDUCING else None
    return Request(kind, dtype, size // size_of(dtype), (members,), op, pairs=pairs)


def plan(
    group: Sequence[int],
    size: int,
    kind: EncOp = AR,
    *,
    platform: Platform = TRN2,
    settings: Settings | None = None,
    dtype: Dtype = BYTE,
) -> Plan:
    """Decide for a whole buffer of `size` bytes."""
    return Selector(platform, settings or Settings()).select(request(group, size, kind, dtype=dtype))


def verdict(decided: Plan, algorithm: Algorithm) -> str:
    """Return a rule's reason, with its answer before it."""
    said = dict(decided.verdicts)[algorithm]
    return f"{'yes' if said else 'no'}: {said.reason}"


def legs(decided: Plan) -> dict[str, Algorithm]:
    """Return slot -> algorithm of all five slots."""
    return {leg.slot: leg.algorithm for leg in decided.legs}


def ranges(
    group: Sequence[int],
    kind: EncOp = AR,
    *,
    platform: Platform = TRN2,
    settings: Settings | None = None,
    dtype: Dtype = BYTE,
    most: int = 4 * GIB,
) -> tuple[SizeRange, ...]:
    """Return the switch points from the smallest buffer up to one of `most` bytes."""
    least = size_of(dtype) * len(group)
    return switch_points(Selector(platform, settings or Settings()), request(group, least, kind, dtype=dtype), 1, most)


def windows(found: Sequence[SizeRange]) -> list[tuple[int, Algorithm | None]]:
    """Return the last size of each range, with its algorithm."""
    return [(each.last, each.algorithm) for each in found]
