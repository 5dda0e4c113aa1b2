"""Roundings: the longest chain of combining rows of a schedule, and the closed forms that `explain` prints."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.pipeline import Composed, How, prove
from rota.request import Request
from rota.select.movement import fold_roundings, link_loads, roundings
from rota.select.settings import Settings
from rota.verify.roundings import roundings as counted

ROW = [16 * chip + lane for chip in range(4) for lane in range(4)]
TWO = [64 * node + rank for node in range(2) for rank in range(16)]
CASES = {
    "ring": ("trn2.48xlarge", 1, range(16), Algorithm.RING, True, 15),
    "kangaring": ("trn2.48xlarge", 1, range(16), Algorithm.KANGARING, True, 8),
    "mesh": ("trn2.48xlarge", 1, range(16), Algorithm.MESH, True, 2),
    "mesh on a chip": ("trn2.48xlarge", 1, range(4), Algorithm.MESH, True, 1),
    "mesh, one a chip": ("trn2.48xlarge", 1, range(0, 64, 4), Algorithm.MESH, True, 1),
    "full mesh": ("trn1.32xlarge", 1, range(32), Algorithm.MESH, True, 2),
    "halving": ("trn2.48xlarge", 1, range(16), Algorithm.INTRA_RDH, True, 3),
    "halving between nodes": ("trn2.48xlarge", 8, range(0, 512, 64), Algorithm.INTER_RDH, True, 3),
    "single step": ("trn2.48xlarge", 1, range(64), Algorithm.SINGLE_STEP_MESH, True, 3),
    "single cycle": ("trn2.48xlarge", 6, range(0, 384, 64), Algorithm.SINGLE_CYCLE_RING, True, 1),
    "hierarchy of meshes": ("trn2.48xlarge", 2, TWO, Algorithm.HIER, True, 3),
    "hierarchy of rings": ("trn2.48xlarge", 2, TWO, Algorithm.HIER, False, 9),
}


def made(name: str, nodes: int, group: Sequence[int], algorithm: Algorithm, mesh: bool, kind: EncOp) -> Composed:
    op = None if kind is EncOp.ALLGATHER else CceType.ADD
    request = Request(kind, Dtype.FP32, 16 * len(group), (tuple(group),), op)
    settings = Settings(inter_mesh_max_nodes=16 if mesh else 0, rdh_mode=1)
    how = How(algorithm=algorithm, settings=settings, verify=False)
    if not mesh:
        how = How(settings=Settings(mesh=False), verify=False)
    return prove(request, load_platform(name, nodes=nodes), how)


@pytest.mark.parametrize("case", CASES)
def test_closed_forms_are_those_of_the_schedules(case: str) -> None:
    """Each row that combines rounds once; the form counts the rows on the longest way. Source: design §2 (2), (20)."""
    *what, expected = CASES[case]
    composed = made(*what, EncOp.ALLREDUCE)
    assert (roundings(composed.plan), counted(composed.schedule)) == (expected, expected)


def test_moves_are_not_rounded() -> None:
    """A gather combines nothing."""
    composed = made("trn2.48xlarge", 1, range(16), Algorithm.MESH, True, EncOp.ALLGATHER)
    assert (roundings(composed.plan), counted(composed.schedule)) == (None, 0)


@pytest.mark.parametrize(("sources", "rows"), [(1, 0), (2, 1), (32, 1), (33, 2), (63, 2), (64, 3), (94, 3), (95, 4)])
def test_wide_reductions_are_chains(sources: int, rows: int) -> None:
    """The first 32 sources, then the partial and the next 31. Source: design §2 (20)."""
    assert fold_roundings(sources) == rows


def test_link_loads_of_recursive_doubling() -> None:
    """60 shards on the busiest cable of a node with one axis order, 15 rotated, a mesh 32. Source: topology §6."""
    composed = made("trn2.48xlarge", 1, range(64), Algorithm.INTRA_RDH, True, EncOp.ALLGATHER)
    assert link_loads(composed.plan) == (60, 15, 32)
    row = made("trn2.48xlarge", 1, range(16), Algorithm.INTRA_RDH, True, EncOp.ALLGATHER)
    assert link_loads(row.plan) == (12, 6, 8)
