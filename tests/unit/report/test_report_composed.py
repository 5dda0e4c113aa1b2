"""What `explain` says is composed is what the composers' table composes, refusals word for word."""

from __future__ import annotations

import pytest

from rota.compose.table import COMPOSERS, composed
from rota.errors import UnsupportedError
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.report.composed import COMPOSES, composed_for
from rota.request import Request
from rota.select.choose import Plan, Selector
from rota.select.settings import Settings

CASES = {
    "a mesh, for which a ring stands in": ("trn2.48xlarge", 1, EncOp.ALLREDUCE, tuple(range(64)), 512),
    "a ring": ("trn1.32xlarge", 1, EncOp.ALLREDUCE, tuple(range(32)), 1 << 24),
    "one rank": ("trn1.32xlarge", 1, EncOp.ALLGATHER, (3,), 64),
    "an operation that no ring does": ("trn2.48xlarge", 1, EncOp.ALLTOALL, tuple(range(64)), 1024),
    "a group without a flat ring": ("trn2.48xlarge", 2, EncOp.ALLREDUCE, tuple(range(128)), 1 << 20),
}


def plan(platform: str, nodes: int, kind: EncOp, group: tuple[int, ...], count: int) -> Plan:
    op = CceType.ADD if kind is EncOp.ALLREDUCE else None
    request = Request(kind=kind, dtype=Dtype.BFLOAT16, count=count, groups=(group,), op=op)
    return Selector(load_platform(platform, nodes=nodes), Settings()).select(request)


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_the_composers_table(case: str) -> None:
    """The same algorithm, or the same refusal."""
    made = plan(*CASES[case])
    try:
        expected: tuple[Algorithm | None, str] = composed(made)[0], ""
    except UnsupportedError as error:
        expected = None, str(error)
    assert composed_for(made) == expected


def test_a_composer_that_enters_the_table_is_known_here() -> None:
    """The algorithms and the operations are those of the table."""
    assert {algorithm: composer.kinds for algorithm, composer in COMPOSERS.items()} == COMPOSES
