"""The runtime's log lines with our values. Source: all-reduce §6.1 and §6.2; device §14."""

from __future__ import annotations

from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.machine.platform import load_platform
from rota.report.log_lines import log_lines
from rota.request import Request
from rota.select.choose import Selector
from rota.select.settings import Settings


def lines(
    kind: EncOp, group: tuple[int, ...], size: int, *, platform: str = "trn1.32xlarge", nodes: int = 1
) -> tuple[str, ...]:
    machine = load_platform(platform, nodes=nodes)
    op = None if kind is EncOp.ALLGATHER else CceType.MAX
    request = Request(kind=kind, dtype=Dtype.FP32, count=size // 4, groups=(group,), op=op)
    return log_lines(Selector(machine, Settings()).select(request), machine)


def test_an_all_reduce_on_a_ring() -> None:
    """The ring's channels and passes; each rank's share of a pass, in whole granules of 32 bytes, in hex."""
    assert lines(EncOp.ALLREDUCE, tuple(range(32)), 1 << 30) == (
        "[nec_dev 0] allreduce: comm(%p) alg(0) dtype(10), optype(2), channel_n(4)",
        "  pipeline slice_n(4) priority_class:0 copy_slice_sz:0x800000 reduce_slice_sz:0x800000",
    )


def test_a_mesh_has_one_channel_and_one_slice() -> None:
    """A mesh has one channel whatever rings there are; 100 bytes over 4 ranks are 25, rounded up to 32."""
    first, second = lines(EncOp.ALLREDUCE, (4, 5, 6, 7), 100)
    assert first == "[nec_dev 2] allreduce: comm(%p) alg(6) dtype(10), optype(2), channel_n(1)"
    assert second == "  pipeline slice_n(1) priority_class:0 copy_slice_sz:0x20 reduce_slice_sz:0x20"


def test_a_hierarchy_logs_its_five_slots() -> None:
    """The five slots in the order of the line, as numbers."""
    (line,) = lines(EncOp.ALLGATHER, tuple(range(128)), 1 << 20, platform="trn2.48xlarge", nodes=2)
    words = line.split()
    assert words[:6] == ["[nec_dev", "0]", "Hier", "algorithm", "selections", "-"]
    assert words[6::2] == ["alg_intra_allg", "alg_intra_redsct", "alg_inter_allr", "alg_inter_allg", "alg_inter_redsct"]
    assert all(word.isdigit() for word in words[7::2])


def test_lines_that_are_not_known_are_not_made_up() -> None:
    """No literal is known for the other operations, nor for a group of one rank."""
    assert lines(EncOp.ALLGATHER, tuple(range(32)), 1 << 20) == ()
    assert lines(EncOp.ALLREDUCE, (3,), 1 << 20) == ()
