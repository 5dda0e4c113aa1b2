"""What an explanation says beside the verdicts: what would change it, notes, and where things come from."""

from __future__ import annotations

from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.machine.platform import load_platform
from rota.report.explain import Explanation, asked, explain_text
from rota.report.explain_json import explain_json
from rota.report.text import bracketed, machine, size_text, text_of
from rota.request import Request
from rota.select.choose import Selector
from rota.select.settings import Settings
from rota.select.whatif import switch_points, what_if


def explanation(
    group: tuple[int, ...], size: int, *, platform: str = "trn2.48xlarge", nodes: int = 1, kind: EncOp = EncOp.ALLREDUCE
) -> Explanation:
    selector = Selector(load_platform(platform, nodes=nodes), Settings())
    op = CceType.ADD if kind is EncOp.ALLREDUCE else None
    request = Request(kind=kind, dtype=Dtype.BFLOAT16, count=size // 2, groups=(group,), op=op)
    plan = selector.select(request)
    ranges = switch_points(selector, request, 1, 1 << 40)
    return Explanation(plan, selector.platform, Algorithm.RING, "", ranges, what_if(selector, request))


def test_changes_are_the_neighbouring_ranges() -> None:
    """The range below ends where it ends; the one above begins above the end of this one; settings follow."""
    changes = list(explanation(tuple(range(64)), 1 << 20).changes())
    assert changes[0][:2] == ("up to 32K", Algorithm.SINGLE_STEP_MESH)
    assert changes[1][:2] == ("above 1M", Algorithm.INTRA_RDH)
    assert all(what.startswith("NEURON_RT_") for what, _, _ in changes[2:])


def test_the_first_and_the_last_range_have_one_neighbour() -> None:
    """Below the smallest window and above the largest there is nothing to name."""
    small = [what for what, _, _ in explanation(tuple(range(64)), 2).changes()]
    large = [what for what, _, _ in explanation(tuple(range(64)), 1 << 30).changes()]
    assert not any(what.startswith("up to") for what in small)
    assert not any(what.startswith("above") for what in large)


def test_other_legs_are_a_change() -> None:
    """Where a hierarchy stays one, its legs say what changes."""
    changes = list(explanation(tuple(range(128)), 1 << 26, nodes=2).changes())
    assert changes[0][1] is Algorithm.HIER
    assert "inter_allr=MESH" in changes[0][2]
    assert ("NEURON_RT_DBG_MESH_CC=0", Algorithm.HIER, " (other legs)") in changes


def test_one_chip_of_a_switch_is_noted() -> None:
    """A group on one chip of the switch takes the on-chip path; elsewhere there is no such note."""
    assert "on-chip path" in explanation((0, 1, 2, 3), 1 << 10, platform="trn3pds98").notes()[-1]
    assert explanation((0, 1, 2, 3), 1 << 10).notes() == ()
    assert explanation((5,), 1 << 10, platform="trn3pds98").notes() == ()


def test_sources_only_when_asked() -> None:
    """With sources every verdict and every row ends in brackets; without there are none."""
    made = explanation(tuple(range(64)), 1 << 20)
    with_sources = list(explain_text(made, sources=True))
    plain = list(explain_text(made))
    assert len(with_sources) == len(plain)
    for one, other in zip(with_sources, plain, strict=True):
        assert one.startswith(other)
        assert " §" not in other
    verdicts = [line for line in with_sources if line[:2] == "  " and line.split()[1] in ("yes", "no")]
    assert len(verdicts) == 7
    assert all(line.endswith("]") for line in verdicts)


def test_a_document_names_what_it_compared() -> None:
    """Each row has its window and that of its twin; an open end is null."""
    document = explain_json(explanation(tuple(range(64)), 1 << 20, kind=EncOp.ALLTOALL))
    assert [(row["name"], row["up_to"], row["read"]) for row in document["limits"]] == [
        ("mesh pass 0", 256 << 10, False),
        ("mesh pass 1", None, True),
    ]
    assert all(row["other"] == {"above": row["above"], "up_to": row["up_to"]} for row in document["limits"])
    assert document["carrier"] == "mesh pass 1"


def test_words() -> None:
    """Sizes have their bytes, machines their number and LNC, sources their brackets."""
    made = explanation((0, 1, 2, 3), 1000)
    assert (size_text(1000), size_text(4096)) == ("1000 bytes", "4096 bytes (4K)")
    assert machine(load_platform("trn2.48xlarge", nodes=2, lnc=1)) == "2 x trn2.48xlarge (LNC 1)"
    assert asked(made.plan.request) == "all_reduce sum, bf16, 1 group of 4 ranks"
    assert (bracketed(None), text_of(None)) == ("", None)
