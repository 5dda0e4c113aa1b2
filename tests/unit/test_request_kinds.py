"""Requests of every kind: what each has beside sizes and groups, in bytes, in text, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.request import COMPOSED, PAIRED, Request, along, parse_op, parse_request

FOUR = ((4, 5, 6, 7),)
AROUND = ((4, 5), (5, 6), (6, 7), (7, 4))
COUNTS = ((1, 2, 0), (0, 4, 3), (5, 0, 0))
A2AV, AG, AR = EncOp.ALLTOALL_V, EncOp.ALLGATHER, EncOp.ALLREDUCE


def request(kind: EncOp, count: int = 8, **other: Any) -> Request:
    op = CceType.ADD if kind in REDUCING else None
    pairs = AROUND if kind in PAIRED else ()
    return Request(kind, Dtype.FP32, count, **{"groups": FOUR, "op": op, "pairs": pairs, **other})


def exchange(count: int = 7, **other: Any) -> Request:
    return Request(A2AV, Dtype.BFLOAT16, count, ((0, 1, 2),), **{"counts": COUNTS, **other})


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "factor"),
    [
        (EncOp.ALLTOALL, 32, 32, 0.75),
        (A2AV, 32, 32, 0.75),
        (EncOp.SEND, 32, 32, 1),
        (EncOp.RECV, 32, 32, 1),
        (EncOp.PERMUTE, 32, 32, 1),
        (EncOp.PERMUTE_IMPLICIT, 32, 32, 1),
        (EncOp.PERMUTE_REDUCE, 64, 32, 1),
        (EncOp.PERMUTE_REDUCE_IMPLICIT, 64, 32, 1),
        (EncOp.BROADCAST, 32, 32, 1),
        (EncOp.REDUCE, 32, 32, 1),
    ],
)
def test_buffers_of_every_kind(kind: EncOp, inputs: int, outputs: int, factor: float) -> None:
    """B in and B out; what has two operands reads both. SELECT compares B. Source: select §1.1, compose §5."""
    asked = request(kind)
    assert (asked.size, asked.input_size, asked.output_size) == (32, inputs, outputs)
    assert (asked.select_size, asked.bus_factor) == (32, factor)


def test_the_buffers_of_an_all_to_all_v_hold_the_fullest_member() -> None:
    """All ranks have equal buffers: inputs as large as the largest sum of a row, outputs as that of a column."""
    asked = exchange()
    assert (asked.input_size, asked.output_size, asked.select_size) == (7 * 2, 6 * 2, 7 * 2)
    assert asked.sent == COUNTS


@given(count=st.integers(1, 99), ranks=st.integers(1, 9))
def test_an_even_all_to_all_v_moves_what_is_asked(count: int, ranks: int) -> None:
    """Without counts every member sends and receives exactly `count` elements, in pieces that differ by at most one."""
    sent = np.array(Request(A2AV, Dtype.UINT8, count, (tuple(range(ranks)),)).sent)
    assert sent.sum(axis=0).tolist() == sent.sum(axis=1).tolist() == [count] * ranks
    assert sent.max() - sent.min() <= 1
    assert (np.diagonal(sent) == sent.max()).all()


def test_displacements_make_room() -> None:
    """With displacements a buffer reaches to the end of its last piece; pieces of no elements need no room."""
    apart = ((0, 10, 90), (90, 0, 20), (3, 90, 90))
    asked = exchange(23, send_displacements=apart)
    assert (asked.input_size, asked.output_size) == (23 * 2, 6 * 2)
    arrive = ((0, 90, 2), (40, 0, 90), (90, 5, 90))
    assert exchange(receive_displacements=arrive).output_size == 42 * 2


def test_a_gather_of_unequal_shards() -> None:
    """Each member gives its own count; inputs are as large as the largest, and that is SELECT's size."""
    asked = request(AG, gather_counts=(1, 5, 0, 2))
    assert (asked.size, asked.share, asked.select_size) == (32, 20, 20)
    assert (asked.input_size, asked.output_size, asked.bus_factor) == (20, 32, 0.75)


# --- FMA --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", [(0.5,), (1.0, -2.0, 0.0, 3e-39)])
@pytest.mark.parametrize("kind", [AR, EncOp.REDUCE_SCATTER])
def test_an_fma_has_a_scale_for_all_or_for_each(kind: EncOp, scales: tuple[float, ...]) -> None:
    """Scales are held to float32, subnormals included. Source: design §2 (27)."""
    asked = request(kind, op=CceType.FMA, scales=scales)
    assert asked.scales == tuple(np.array(scales, np.float32).astype(float).tolist())
    assert parse_op("fma") is CceType.FMA
    two = replace(asked, groups=((4, 5, 6, 7), (0, 1, 2, 3)))
    assert two.member_scales == (asked.scales * 8)[:8]
    assert request(kind).member_scales == ()


@pytest.mark.parametrize("scales", [(), (1.0,) * 3, (1.0,) * 5])
def test_an_fma_has_no_other_number_of_scales(scales: tuple[float, ...]) -> None:
    """Neither without scales nor with too few or too many."""
    with pytest.raises(UsageError, match=rf"^scales: {len(scales)} for 4 ranks; fma needs one for each rank, or one"):
        request(AR, op=CceType.FMA, scales=scales)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), 3.5e38, 10**400])
def test_a_scale_is_a_float32(scale: float) -> None:
    """What float32 does not hold is no scale."""
    with pytest.raises(UsageError, match="expected a finite number that float32 holds"):
        request(AR, op=CceType.FMA, scales=(scale,))


@pytest.mark.parametrize("kind", sorted(REDUCING - {AR, EncOp.REDUCE_SCATTER}))
def test_nothing_else_combines_with_fma(kind: EncOp) -> None:
    """FMA is for all-reduce and reduce-scatter."""
    with pytest.raises(UsageError, match=r"needs a reduction: one of sum, max, min$"):
        request(kind, op=CceType.FMA)


def test_scales_without_fma() -> None:
    """A sum has no scales."""
    with pytest.raises(UsageError, match=r"^all_reduce with sum takes no scales: they are for fma"):
        request(AR, scales=(1.0,))


# --- fields of other kinds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in EncOp if kind is not EncOp.INVALID])
@pytest.mark.parametrize(
    ("field", "value", "kinds"),
    [
        ("root", 1, {EncOp.BROADCAST, EncOp.REDUCE}),
        ("gather_counts", (1, 2, 3, 2), {AG}),
        ("counts", ((2,) * 4,) * 4, {A2AV}),
        ("pairs", AROUND, {kind for kind in EncOp if "PERMUTE" in kind.name}),
    ],
)
def test_a_field_is_for_its_kinds(kind: EncOp, field: str, value: Any, kinds: set[EncOp]) -> None:
    """What a kind does not have is refused, and the kinds that have it are named."""
    if kind in kinds:
        assert getattr(request(kind, **{field: value}), field) == value
        return
    with pytest.raises(UsageError, match=rf"takes no {field}: leave (it|them) out; (it is|they are) for \w+"):
        request(kind, **{field: value})


@pytest.mark.parametrize("root", [-1, 4])
def test_a_root_is_a_position(root: int) -> None:
    """Roots count positions in the group, not machine ranks."""
    with pytest.raises(UsageError, match=f"^root {root}: expected a position in a group of 4"):
        request(EncOp.BROADCAST, root=root)


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_a_permute_may_leave_ranks_out() -> None:
    """A rank without a pair neither sends nor receives; order and rings are the machine's matter."""
    assert request(EncOp.PERMUTE, pairs=((5, 4), (4, 7))).pairs == ((5, 4), (4, 7))


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (((4, 5), (4, 6)), "rank 4 is the source of 4>5 and 4>6"),
        (((4, 5), (6, 5)), "rank 5 is the target of 4>5 and 6>5"),
        (((4, 5), (4, 5)), "4>5 is written twice"),
        (((4, 8),), "4>8 leaves its group"),
        (((4, 9),), "4>9 leaves its group"),
        (((99, 4),), "99>4 leaves its group"),
    ],
)
def test_pairs_that_are_no_permutation(pairs: tuple[tuple[int, int], ...], sentence: str) -> None:
    """A rank is the source of one pair and the target of one, both in one group."""
    with pytest.raises(UsageError, match=f"^pairs: .*{sentence}"):
        Request(EncOp.PERMUTE, Dtype.FP32, 8, ((4, 5, 6, 7), (8, 10, 11, 12)), pairs=pairs)


@pytest.mark.parametrize("kind", [EncOp.PERMUTE_IMPLICIT, EncOp.PERMUTE_REDUCE_IMPLICIT])
def test_an_implicit_permute_may_name_its_ring(kind: EncOp) -> None:
    """The pairs of an implicit permute are one ring over each group, in any order; `along` writes them."""
    two = ((4, 5, 6), (0, 1, 2))
    asked = along(request(kind, groups=two), ((4, 6, 5), (2, 1, 0)))
    assert asked.pairs == ((4, 6), (6, 5), (5, 4), (2, 1), (1, 0), (0, 2))
    assert along(request(kind, groups=((3,),)), ((3,),)).pairs == ((3, 3),)
    for broken in (
        asked.pairs[:5],
        ((4, 6), (6, 4), *asked.pairs[3:]),
        asked.pairs[:3],
        ((4, 4), *asked.pairs[1:2], (5, 6), *asked.pairs[3:]),
    ):
        with pytest.raises(UsageError, match=r"are no single ring over group [01]; name one, or no pairs"):
            replace(asked, pairs=broken)


def test_other_kinds_go_along_no_ring() -> None:
    """`along` is for the implicit permutes."""
    with pytest.raises(UsageError, match="all_reduce takes no pairs"):
        along(request(AR), FOUR)


# --- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"counts": COUNTS[:2]}, "counts: expected 3 lists of 3 numbers"),
        ({"counts": (*COUNTS[:2], (1, 2))}, "counts: expected 3 lists of 3 numbers"),
        ({"counts": (*COUNTS[:2], (5, -1, 0))}, "counts: -1 is negative"),
        ({"count": 8}, "counts: the fullest input has 7 elements, count says 8"),
        ({"counts": ((0,) * 3,) * 3}, "counts: the fullest input has 0 elements, count says 7"),
        ({"counts": (), "send_displacements": COUNTS}, "send_displacements: they need counts"),
        ({"send_displacements": COUNTS[1:]}, "send_displacements: expected 3 lists"),
        ({"send_displacements": ((0, 1, -3), *COUNTS[1:])}, "send_displacements: -3 is negative"),
        ({"receive_displacements": ((0,) * 3,) * 3}, "two pieces overlap at element 0 of the output of member 0"),
        ({"receive_displacements": ((1 << 50, 0, 0),) * 3}, "expected at most 1024T"),
    ],
)
def test_pieces_that_make_no_exchange(other: dict[str, Any], sentence: str) -> None:
    """Counts are a square of whole numbers that fit the input; what arrives does not overlap."""
    with pytest.raises(UsageError, match=sentence):
        exchange(**other)


def test_pieces_that_arrive_may_touch_but_not_overlap() -> None:
    """The message says by how much."""
    assert exchange(receive_displacements=((5, 9, 0), (4, 0, 9), (9, 0, 9))).output_size == 12
    with pytest.raises(UsageError, match="at element 4 of the output of member 0; leave 1 more elements"):
        exchange(receive_displacements=((4, 9, 0), (4, 0, 9), (9, 0, 9)))


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((1, 2, 3), "gather_counts: 3 for 4 ranks"),
        ((1, 2, 3, 4), "gather_counts: they sum to 10 elements, count says 8"),
        ((9, 0, 0, -1), "gather_counts: -1 is negative"),
    ],
)
def test_gather_counts_that_make_no_gather(counts: tuple[int, ...], sentence: str) -> None:
    """One count for each rank, together the whole buffer."""
    with pytest.raises(UsageError, match=sentence):
        request(AG, gather_counts=counts)


# --- text -------------------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any request with what its kind has beside sizes and groups."""
    kind = draw(st.sampled_from([AR, AG, EncOp.REDUCE_SCATTER, A2AV, *PAIRED, EncOp.PERMUTE_IMPLICIT, EncOp.REDUCE]))
    ranks, groups = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    members = draw(st.permutations(range(ranks * groups)))
    each = draw(st.integers(1, 50))
    said: dict[str, Any] = {
        "count": each * ranks if kind in COMPOSED else each,
        "groups": tuple(tuple(members[g * ranks : (g + 1) * ranks]) for g in range(groups)),
        "op": draw(st.sampled_from([CceType.ADD, CceType.MIN])) if kind in REDUCING else None,
    }
    number = st.integers(0, 9)
    if kind in (AR, EncOp.REDUCE_SCATTER) and draw(st.booleans()):
        scales = st.floats(width=32, allow_nan=False, allow_infinity=False)
        few = draw(st.sampled_from([1, ranks]))
        said |= {"op": CceType.FMA, "scales": tuple(draw(st.lists(scales, min_size=few, max_size=few)))}
    if kind is AG:
        given_ = draw(st.lists(number, min_size=ranks, max_size=ranks).filter(any))
        said |= {"count": sum(given_), "gather_counts": tuple(given_)}
    if kind is A2AV:
        row = st.lists(number, min_size=ranks, max_size=ranks).filter(any).map(tuple)
        said["counts"] = tuple(draw(st.lists(row, min_size=ranks, max_size=ranks)))
        said["count"] = max(map(sum, said["counts"]))
        if draw(st.booleans()):
            said["send_displacements"] = said["receive_displacements"] = tuple(
                tuple(10 * j for j in range(ranks)) for _ in range(ranks)
            )
            said["count"] = max(10 * j + size for counts in said["counts"] for j, size in enumerate(counts) if size)
    if kind in PAIRED or kind is EncOp.PERMUTE_IMPLICIT:
        ring = [(group[i - 1], group[i]) for group in said["groups"] for i in range(ranks)]
        said["pairs"] = tuple(ring)
    if kind is EncOp.REDUCE:
        said["root"] = draw(st.integers(0, ranks - 1))
    return Request(kind, Dtype.FP32, **said)


@settings(deadline=None, max_examples=200)
@given(asked=requests())
def test_every_kind_prints_and_parses_back(asked: Request) -> None:
    """What a request has beside sizes and groups is in its line, and comes back from it."""
    assert "\n" not in asked.to_text()
    assert parse_request(asked.to_text()) == asked


def test_the_text_of_every_field() -> None:
    """Each field is a flag of its own; what has its default is left out."""
    texts = [
        "all_reduce fp32 fma 8 4,5,6,7 in_place scales=0.5,-1.0,1e+20,0.0",
        "all_gather fp32 - 8 4,5,6,7 gather_counts=1,5,0,2",
        "all_to_all_v bf16 - 7 0,1,2 counts=1,2,0;0,4,3;5,0,0",
        "all_to_all_v bf16 - 5 0 counts=3 send_displacements=2 receive_displacements=1",
        "reduce fp32 max 8 4,5,6,7 root=3",
        "permute_implicit fp32 - 8 4,5 pairs=4>5,5>4 staging=static",
    ]
    for text in texts[1:]:
        assert parse_request(text).to_text() == text
    assert parse_request(texts[0]).scales == (0.5, -1.0, float(np.float32(1e20)), 0.0)


@pytest.mark.parametrize(
    "flag",
    ["scales=", "scales=nan", "scales=1,", "scales=0x1", "counts=1;", "counts=1,,2", "root=-1", "root=", "sideways=3"],
)
def test_a_damaged_flag_is_named(flag: str) -> None:
    """A value that cannot be read is refused under its name."""
    with pytest.raises(UsageError, match=f"unreadable flag {flag.split('=', maxsplit=1)[0]}"):
        parse_request(f"all_reduce fp32 sum 8 0,1 {flag}")


@settings(deadline=None, max_examples=200)
@given(asked=requests(), data=st.data())
def test_a_damaged_line_of_any_kind_is_refused_or_means_something(asked: Request, data: st.DataObject) -> None:
    """One character more, less or other gives a request or one of our refusals, never another error."""
    text = asked.to_text()
    at = data.draw(st.integers(0, len(text)))
    other = data.draw(st.sampled_from(["", "0", "9", ",", ";", " ", "x", "-", ".", "e", "=", ">", "\u0665", "\n"]))
    try:
        again = parse_request(text[:at] + other + text[at + data.draw(st.integers(0, 2)) :])
    except (UsageError, UnsupportedError):
        return
    assert parse_request(again.to_text()) == again
