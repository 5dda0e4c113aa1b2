"""Requests: what they mean in bytes, what is refused and why, and their text form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rota.errors import UnsupportedError, UsageError
from rota.isa.dtypes import INTEGERS, REDUCIBLE, Dtype, size_of
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.request import (
    COMPOSED,
    KIND_NAMES,
    KIND_SYNONYMS,
    PAIRED,
    RINGED,
    SCALED,
    SHARDED,
    Request,
    Staging,
    parse_kind,
    parse_op,
    parse_request,
)

FOUR = ((0, 1, 2, 3),)
SIZED = [dtype for dtype in Dtype if size_of(dtype)]
KINDS = [kind for kind in EncOp if kind is not EncOp.INVALID]
AROUND = ((0, 1), (1, 2), (2, 3), (3, 0))


def request(kind: EncOp = EncOp.ALLREDUCE, dtype: Dtype = Dtype.BFLOAT16, count: int = 8, **other: Any) -> Request:
    op = CceType.ADD if kind in REDUCING else None
    pairs = AROUND if kind in PAIRED else ()
    return Request(kind, dtype, count, **{"groups": FOUR, "op": op, "pairs": pairs, **other})


# --- meaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "select_size", "input_size", "output_size", "bus_factor"),
    [
        (EncOp.ALLREDUCE, 32, 32, 32, 1.5),
        (EncOp.ALLGATHER, 8, 8, 32, 0.75),
        (EncOp.REDUCE_SCATTER, 8, 32, 8, 0.75),
        (EncOp.ALLTOALL, 32, 32, 32, 0.75),
        (EncOp.ALLTOALL_V, 32, 32, 32, 0.75),
        (EncOp.SEND, 32, 32, 32, 1.0),
        (EncOp.RECV, 32, 32, 32, 1.0),
        (EncOp.PERMUTE, 32, 32, 32, 1.0),
        (EncOp.PERMUTE_REDUCE, 32, 64, 32, 1.0),
        (EncOp.PERMUTE_IMPLICIT, 32, 32, 32, 1.0),
        (EncOp.PERMUTE_REDUCE_IMPLICIT, 32, 64, 32, 1.0),
        (EncOp.BROADCAST, 32, 32, 32, 1.0),
        (EncOp.REDUCE, 32, 32, 32, 1.0),
    ],
)
def test_sizes(kind: EncOp, select_size: int, input_size: int, output_size: int, bus_factor: float) -> None:
    """SELECT's size is C for all-gather and reduce-scatter and B otherwise; so are inputs, outputs and bus factors.

    Source: select §1.1; ecosystem §1.1 for the factors.
    """
    asked = request(kind, Dtype.FP32)
    assert (asked.size, asked.share, asked.itemsize, asked.ranks) == (32, 8, 4, 4)
    assert (asked.select_size, asked.input_size, asked.output_size) == (select_size, input_size, output_size)
    assert asked.bus_factor == bus_factor


def test_members_are_numbered_group_after_group() -> None:
    """Member i of a schedule is the i-th rank of all groups in order, not the i-th in rank order."""
    assert request(groups=((5, 1), (0, 7))).members == (5, 1, 0, 7)


def test_integers_run_as_floats_only_where_that_means_something() -> None:
    """`integer_as_fp32` is about integer reductions; elsewhere it is dropped, so that equal requests are equal."""
    assert request(dtype=Dtype.INT32, integer_as_fp32=True).integer_as_fp32
    assert request(integer_as_fp32=True) == request()
    gather = request(EncOp.ALLGATHER, Dtype.INT32)
    assert replace(gather, integer_as_fp32=True) == gather


@pytest.mark.parametrize("dtype", SIZED)
def test_moves_take_any_dtype_with_a_size(dtype: Dtype) -> None:
    """Non-reducing operations take any dtype with a size. Source: design §2 (1)."""
    assert request(EncOp.ALLGATHER, dtype).size == 8 * size_of(dtype)


@pytest.mark.parametrize("dtype", sorted(REDUCIBLE))
@pytest.mark.parametrize("op", [CceType.ADD, CceType.MAX, CceType.MIN])
def test_every_float_of_the_wire_reduces(dtype: Dtype, op: CceType) -> None:
    """bf16, fp16, fp32 and the three fp8 formats reduce with sum, max and min."""
    assert request(dtype=dtype, op=op).op is op


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(INTEGERS))
@pytest.mark.parametrize("kind", [EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER])
def test_an_integer_reduction_is_refused_with_the_way_out(dtype: Dtype, kind: EncOp) -> None:
    """Integer reduce is refused with the rule and the nearest way out. Source: design §2 (1)."""
    with pytest.raises(UnsupportedError, match=r"use fp32, or --integer-as-fp32 .*exact up to 2\^24") as error:
        request(kind, dtype)
    assert error.value.source is not None
    assert request(kind, dtype, integer_as_fp32=True).dtype is dtype


@pytest.mark.parametrize("kind", COMPOSED)
def test_fp32r_is_refused(kind: EncOp) -> None:
    """A request whose transfer dtype is FP32R is refused: 'fp32r has no transfer size; use fp32'."""
    with pytest.raises(UnsupportedError, match="fp32r has no transfer size; use fp32") as error:
        request(kind, Dtype.FP32R)
    assert error.value.source is not None


def test_a_dtype_without_size_is_refused() -> None:
    """INVALID has no bytes to move."""
    with pytest.raises(UnsupportedError, match="invalid has no transfer size"):
        request(EncOp.ALLGATHER, Dtype.INVALID)


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_can_be_asked_for(kind: EncOp) -> None:
    """All 13 operations of the enumeration are requests; which can be composed is said downstream."""
    assert request(kind).kind is kind
    assert len(KINDS) == len(KIND_NAMES) == 13


def test_invalid_is_no_collective() -> None:
    """INVALID is refused, and what there is is named."""
    with pytest.raises(UsageError, match=r"^collective INVALID: expected one of all_reduce, all_gather"):
        request(EncOp.INVALID)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in RINGED])
def test_permutes_name_their_pairs(kind: EncOp) -> None:
    """A permute needs pairs of a source and a target, anything else takes none. Source: compose §9."""
    if kind in (EncOp.PERMUTE, EncOp.PERMUTE_REDUCE):
        assert request(kind).pairs == AROUND
        with pytest.raises(UsageError, match=f"^{KIND_NAMES[kind]} needs pairs of a source and a target"):
            request(kind, pairs=())
    else:
        with pytest.raises(UsageError, match=f"^{KIND_NAMES[kind]} takes no pairs: leave them out"):
            request(kind, pairs=AROUND)


@pytest.mark.parametrize("staging", [None, *Staging])
def test_staging_is_part_of_a_request(staging: Staging | None) -> None:
    """`static` or `device`; None is the platform's own. Source: design §2 (4)."""
    assert request(staging=staging).staging is staging
    assert [each.value for each in Staging] == ["static", "device"]


@pytest.mark.parametrize(
    ("kind", "op"),
    [(kind, None) for kind in sorted(REDUCING)] + [(kind, CceType.FMA) for kind in sorted(REDUCING - SCALED)],
)
def test_a_reduction_needs_an_operation(kind: EncOp, op: CceType | None) -> None:
    """Reducing collectives name one of sum, max, min."""
    with pytest.raises(UsageError, match="needs a reduction: one of sum, max, min"):
        request(kind, op=op)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REDUCING])
def test_what_does_not_reduce_takes_no_operation(kind: EncOp) -> None:
    """All-gather and the other moves do not reduce."""
    with pytest.raises(UsageError, match=f"^{KIND_NAMES[kind]} does not reduce"):
        request(kind, op=CceType.ADD)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not EncOp.ALLREDUCE])
def test_only_an_all_reduce_is_in_place(kind: EncOp) -> None:
    """Where input and output differ in size the one cannot be the other."""
    assert request(in_place=True).in_place
    with pytest.raises(UsageError, match="cannot be in place"):
        request(kind, in_place=True)


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ((), "at least one group, and no empty one"),
        (((),), "at least one group, and no empty one"),
        (((0, 1), ()), "at least one group, and no empty one"),
        (((0, 1), (2,)), "equal sizes; make one request for each size"),
        (((0, 1, 0),), "rank 0 appears twice"),
        (((0, 1), (1, 2)), "rank 1 appears twice"),
        (((3, 4), (9, 3), (4, 7)), "rank 3 appears twice"),
        (((0, -1),), "ranks -1 to 0, expected 0 to"),
        (((0, 1 << 31),), "ranks 0 to 2147483648, expected 0 to 2147483647"),
    ],
)
def test_groups_that_are_none(groups: tuple[tuple[int, ...], ...], sentence: str) -> None:
    """Overlapping, empty and unequal groups, a rank twice and a rank no machine has are refused; the rank is named."""
    with pytest.raises(UsageError, match=sentence):
        request(groups=groups)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, -4, (1 << 50) + 4])
def test_size_zero_and_more_than_the_most(kind: EncOp, count: int) -> None:
    """Size 0 is refused, and so is what no machine holds."""
    with pytest.raises(UsageError, match=f"count {count}: expected between 1 element and 1024T"):
        request(kind, count=count)


@pytest.mark.parametrize("kind", sorted(SHARDED))
def test_shards_are_whole_elements(kind: EncOp) -> None:
    """All-gather, reduce-scatter and all-to-all need whole elements a rank; the next count that fits is named."""
    with pytest.raises(UsageError, match=r"10 elements over 4 ranks: expected a whole number .*; the next is 12"):
        request(kind, count=10)
    assert request(kind, count=12).share == 6
    assert request(EncOp.ALLREDUCE, count=10).size == 20


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all_reduce", EncOp.ALLREDUCE),
        ("allr", EncOp.ALLREDUCE),
        ("All-Reduce", EncOp.ALLREDUCE),
        ("allreduce", EncOp.ALLREDUCE),
        ("all_gather", EncOp.ALLGATHER),
        ("allg", EncOp.ALLGATHER),
        ("allgather", EncOp.ALLGATHER),
        ("reduce_scatter", EncOp.REDUCE_SCATTER),
        ("redsct", EncOp.REDUCE_SCATTER),
        ("reduce-scatter", EncOp.REDUCE_SCATTER),
        ("reducescatter", EncOp.REDUCE_SCATTER),
        ("all-to-all", EncOp.ALLTOALL),
        ("alltoall", EncOp.ALLTOALL),
        ("alltoallv", EncOp.ALLTOALL_V),
        ("collective-permute", EncOp.PERMUTE),
        ("permute", EncOp.PERMUTE),
        ("send", EncOp.SEND),
        ("broadcast", EncOp.BROADCAST),
    ],
)
def test_operation_names(name: str, kind: EncOp) -> None:
    """Our names, HLO's, and nccom-test's short ones."""
    assert parse_kind(name) is kind


def test_an_unknown_operation_lists_the_known() -> None:
    """What is unknown is answered with what is known."""
    with pytest.raises(UsageError, match="'barrier': expected one of all_reduce, all_gather, reduce_scatter"):
        parse_kind("barrier")
    with pytest.raises(UsageError, match="reduction 'mult': expected one of sum, max, min"):
        parse_op("mult")
    assert [parse_op(name) for name in ("sum", "ADD", "Max", "min")] == [
        CceType.ADD,
        CceType.ADD,
        CceType.MAX,
        CceType.MIN,
    ]


def test_every_name_is_read_back() -> None:
    """Every collective's own name stands for it, and every synonym for one that has a name."""
    assert {parse_kind(name) for name in KIND_NAMES.values()} == set(KINDS)
    assert set(KIND_SYNONYMS.values()) <= set(KIND_NAMES)


# --- text form --------------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any legal request."""
    kind = draw(st.sampled_from(KINDS))
    ranks, groups = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    top = draw(st.sampled_from([64, 1 << 31]))
    members = draw(st.lists(st.integers(0, top - 1), unique=True, min_size=ranks * groups, max_size=ranks * groups))
    each = draw(st.integers(1, 10 ** draw(st.integers(1, 13))))
    dtype = draw(st.sampled_from(SIZED))
    rings = tuple(tuple(members[g * ranks : (g + 1) * ranks]) for g in range(groups))
    around = tuple(pair for ring in rings for pair in zip(ring, (*ring[1:], ring[0]), strict=True))
    return Request(
        kind=kind,
        dtype=dtype,
        count=each * ranks if kind in SHARDED else each,
        groups=rings,
        op=draw(st.sampled_from([CceType.ADD, CceType.MAX, CceType.MIN])) if kind in REDUCING else None,
        in_place=kind is EncOp.ALLREDUCE and draw(st.booleans()),
        integer_as_fp32=dtype in INTEGERS or draw(st.booleans()),
        pairs=around if kind in PAIRED else (),
        staging=draw(st.sampled_from([None, *Staging])),
    )


@settings(deadline=None)
@given(asked=requests())
def test_a_request_prints_and_parses_back(asked: Request) -> None:
    """Every request prints as one line that parses back to an equal request."""
    text = asked.to_text()
    assert "\n" not in text
    assert parse_request(text) == asked


def test_the_text_of_a_request() -> None:
    """The line reads kind, dtype, operation, count, groups, flags."""
    assert request(in_place=True).to_text() == "all_reduce bf16 sum 8 0,1,2,3 in_place"
    gather = request(EncOp.ALLGATHER, Dtype.FP8_EXP4, groups=((0, 2), (3, 1)))
    assert gather.to_text() == "all_gather fp8_e4m3 - 8 0,2;3,1"
    moved = request(EncOp.PERMUTE, groups=((0, 1),), pairs=((0, 1), (1, 0)), staging=Staging.DEVICE)
    assert moved.to_text() == "permute bf16 - 8 0,1 pairs=0>1,1>0 staging=device"


@given(
    text=st.text()
    | st.from_regex(r"\w+ \w+ [\w-]+ \d{1,20} [\d,;]{1,30}( \w+)*")
    | st.from_regex(r"(permute|send) bf16 - [1-9] 0,1( (pairs|staging)=[0-9>,a-z]{0,12}){1,2}", fullmatch=True)
)
@example("permute bf16 - 8 0,1 pairs=")
@example("permute bf16 - 8 0,1 pairs=0>1,")
@example("permute bf16 - 8 0,1 pairs=0>1 pairs=1>0")
@example("permute bf16 - 8 0,1 pairs=0>99999999999")
@example("send bf16 - 8 0,1 staging=")
@example("send bf16 - 8 0,1 staging=dynamic")
@example("send bf16 - 8 0,1 sharding=static")
@example("all_reduce bf16 sum 8 0,1;")
@example("all_reduce bf16 sum 8 0,,1")
@example("all_reduce bf16 sum 8 0,1 sideways")
@example("all_reduce bf16 sum 8 99999999999")
@example("all_reduce bf16 sum " + "9" * 5000 + " 0")
@settings(max_examples=300, deadline=None)
def test_what_is_no_request_is_refused(text: str) -> None:
    """Any text is a request or one of our refusals, never another error."""
    try:
        asked = parse_request(text)
    except (UsageError, UnsupportedError):
        return
    assert parse_request(asked.to_text()) == asked


@settings(deadline=None)
@given(asked=requests(), data=st.data())
def test_a_damaged_line_is_refused_or_means_something(asked: Request, data: st.DataObject) -> None:
    """One character more, less or other in a printed request gives a request or one of our refusals."""
    text = asked.to_text()
    at = data.draw(st.integers(0, len(text)))
    other = data.draw(st.sampled_from(["", "0", "9", ",", ";", " ", "x", "-", ">", "=", "\u0665", "\n"]))
    damaged = text[:at] + other + text[at + data.draw(st.integers(0, 2)) :]
    assume(damaged != text)
    try:
        again = parse_request(damaged)
    except (UsageError, UnsupportedError):
        return
    assert parse_request(again.to_text()) == again
