"""The section REQUEST of an image: what is asked for as text, there and back, and what is no such text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import DecodeError, RotaError
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.meaning import Asked, parse_request, request_text
from rota.request import Request

FOUR = ((4, 5, 6, 7), (0, 1, 2, 3))
REQUESTS = (
    Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 12, FOUR, CceType.ADD),
    Request(EncOp.ALLREDUCE, Dtype.INT32, 12, ((9,),), CceType.MAX, in_place=True, integer_as_fp32=True),
    Request(EncOp.ALLREDUCE, Dtype.FP32, 12, FOUR, CceType.FMA, scales=(0.1, -2.0, 3e-39, 1.0)),
    Request(EncOp.ALLGATHER, Dtype.FP8_EXP4, 6, FOUR, gather_counts=(1, 2, 0, 3)),
    Request(EncOp.REDUCE_SCATTER, Dtype.FP16, 12, FOUR, CceType.MIN),
    Request(EncOp.ALLTOALL, Dtype.INT64, 12, FOUR),
    Request(EncOp.ALLTOALL_V, Dtype.UINT8, 3, ((0, 1),), counts=((0, 3), (2, 1))),
    Request(EncOp.PERMUTE, Dtype.FP32, 12, ((0, 1),), pairs=((0, 1), (1, 0))),
    Request(EncOp.BROADCAST, Dtype.FP32, 12, FOUR, root=3),
    Request(EncOp.SEND, Dtype.FP32, 12, ((0, 1),)),
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=12)
ASKED = st.builds(Asked, st.sampled_from(REQUESTS), NAMES, NAMES)
TITLE, FIRST = b"rota request 1\n", b"seed 3\nx y " + REQUESTS[0].to_text().encode() + b"\n"


@given(asked=st.lists(ASKED, min_size=1, max_size=5), seed=st.integers(0, 10**18 - 1))
def test_the_text_comes_back_as_what_was_asked(asked: list[Asked], seed: int) -> None:
    """Every request, tensor and seed."""
    assert parse_request(request_text(asked, seed)) == (tuple(asked), seed)


def test_the_text_by_hand() -> None:
    """A title, the seed, and a line for each collective: what it reads, what it writes, the request."""
    asked = [Asked(REQUESTS[0], "t0.in", "t0.out"), Asked(REQUESTS[1], "x", "x")]
    assert request_text(asked, 7).decode().splitlines() == [
        "rota request 1",
        "seed 7",
        "t0.in t0.out all_reduce bf16 sum 12 4,5,6,7;0,1,2,3",
        "x x all_reduce int32 max 12 9 in_place integer_as_fp32",
    ]


@pytest.mark.parametrize(
    ("data", "offset", "expected"),
    [
        (b"", 0, "'rota request 1', a seed and requests"),
        (b"rota request 2\n" + FIRST, 0, "'rota request 1', a seed and requests"),
        (TITLE, 0, "a seed and requests"),
        (TITLE + b"seed 3\n", 0, "a seed and requests"),
        (TITLE + FIRST.replace(b"seed 3", b"seed -3"), 0, "a seed and requests"),
        (TITLE + FIRST.replace(b"seed 3", b"seed 1000000000000000000"), 0, "a seed and requests"),
        (TITLE + FIRST.replace(b"seed 3", "seed ٣".encode()), 0, "a seed and requests"),
        (TITLE + b"\xff" + FIRST, len(TITLE), "UTF-8 text"),
        (TITLE + b"seed 3\nx y\n", 22, "tensors and a request"),
        (TITLE + FIRST + b"\n", 15 + len(FIRST), "tensors and a request"),
        (TITLE + FIRST + b" y all_reduce bf16 sum 12 0,1\n", 15 + len(FIRST), "tensors and a request"),
        (TITLE + FIRST + b"x y all_reduce bf16 sum 0 0,1\n", 15 + len(FIRST), "tensors and a request"),
        (TITLE + FIRST + b"x y all_reduce bf17 sum 12 0,1\n", 15 + len(FIRST), "tensors and a request"),
        (TITLE + FIRST + b"x y all_gather bf16 sum 12 0,1\n", 15 + len(FIRST), "tensors and a request"),
    ],
)
def test_what_is_no_such_text_is_refused_with_its_place(data: bytes, offset: int, expected: str) -> None:
    """The offset is where the line begins, or the byte that is no text."""
    with pytest.raises(DecodeError) as caught:
        parse_request(data)
    assert caught.value.what == "section REQUEST"
    assert caught.value.offset == offset
    assert expected in caught.value.expected


@given(data=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Never another error, and the offset is in the section."""
    for each in (data, TITLE + b"seed 0\n" + data, TITLE + FIRST + data):
        try:
            parse_request(each)
        except DecodeError as error:
            assert 0 <= error.offset <= len(each)  # noqa: PT017


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 10**6))
def test_damaged_text_is_read_or_refused(at: int, byte: int, cut: int) -> None:
    """A changed byte, or an end too early."""
    good = request_text([Asked(request, "a", "b") for request in REQUESTS], 12)
    changed = bytearray(good)
    changed[at % len(good)] = byte
    for data in (bytes(changed), good[: cut % len(good)]):
        try:
            asked, _ = parse_request(data)
        except RotaError as error:
            assert isinstance(error, DecodeError)  # noqa: PT017
            assert 0 <= error.offset <= len(data)  # noqa: PT017
        else:
            assert parse_request(request_text(asked, 0))[0] == asked
