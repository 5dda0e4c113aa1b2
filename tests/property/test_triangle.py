"""Three meanings of one plan: the schedule on arrays, its bytes on the device in waves and in random order, its proof.

They agree bit for bit; and for reductions with a fourth that knows no schedule, a loop over the hops of each ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.images import PLATFORMS, TRN1, TRN2, Array, Ring

from rota.device.model import Order, run_images
from rota.execute.arrays import execute
from rota.isa.dtypes import INTEGERS, Dtype, numpy_dtype
from rota.isa.enums import CceType, EncOp
from rota.request import COMPOSED
from rota.verify import verify

FLOATS = (Dtype.BFLOAT16, Dtype.FP16, Dtype.FP32, Dtype.FP8_EXP3, Dtype.FP8_EXP4, Dtype.FP8_EXP5)
OPS = (CceType.ADD, CceType.MAX, CceType.MIN)
CHUNKS = (64, 192, 448, 4096, 2 << 20)


@st.composite
def rings(draw: st.DrawFn, *, kinds: tuple[EncOp, ...] = COMPOSED, dtypes: tuple[Dtype, ...] = (*Dtype,)) -> Ring:
    """Any ring this version lowers: platform, ranks anywhere on it, orders, channels, folds, slots, sizes, groups."""
    platform = draw(st.sampled_from((TRN1, TRN2)))
    ranks, groups = draw(st.integers(1, 8)), draw(st.sampled_from((1, 1, 2, 3)))
    members = draw(st.permutations(range(PLATFORMS[platform].ranks)))
    order = st.permutations(range(ranks)).map(tuple)
    dtype = draw(st.sampled_from([d for d in dtypes if d not in (Dtype.INVALID, Dtype.FP32R)]))
    kind = draw(st.sampled_from(kinds))
    shards = 1 if kind is EncOp.ALLREDUCE else ranks
    return Ring(
        kind=kind,
        dtype=dtype,
        count=draw(st.integers(1, 3000 // numpy_dtype(dtype).itemsize // groups)) * shards,
        groups=tuple(tuple(members[g * ranks : (g + 1) * ranks]) for g in range(groups)),
        orders=tuple(
            tuple(draw(order) for _ in range(groups)) for _ in range(draw(st.integers(1, 4 if ranks > 1 else 2)))
        ),
        op=draw(st.sampled_from(OPS)),
        platform_name=platform,
        folds=draw(st.integers(1, 3 if ranks > 1 else 2)),
        slots=draw(st.integers(3, 8)),
        chunk=draw(st.sampled_from(CHUNKS)),
        in_place=kind is EncOp.ALLREDUCE and ranks > 1 and draw(st.booleans()),
    )


def bits(values: Array) -> Array:
    """Return the bytes."""
    return np.ascontiguousarray(values).view(np.uint8)


def bits_but_of_nan(values: Array) -> Array:
    """Return the bytes, all NaN alike: a reference that adds in another way gets other ones."""
    with np.errstate(invalid="ignore"):
        return bits(np.where(np.isnan(values), np.array(np.nan, values.dtype), values))


def assert_triangle(ring: Ring, inputs: Array, seed: int = 0) -> Array:
    verify(ring.schedule, ring.request)
    expected = execute(ring.schedule, inputs)
    waves = run_images(ring.images, inputs)
    assert np.array_equal(bits(expected), bits(waves))
    random = run_images(ring.images, inputs, order=Order.RANDOM, rng=np.random.default_rng(seed))
    assert np.array_equal(bits(expected), bits(random))
    return expected


@settings(max_examples=60, deadline=None)
@given(ring=rings(), seed=st.integers(0, 1 << 30))
def test_schedule_waves_and_random_order_agree(ring: Ring, seed: int) -> None:
    """Inputs of any bit pattern: NaN with any payload, infinities, both zeros, subnormals, whole integers."""
    assert_triangle(ring, ring.random_bits(seed), seed)


@settings(max_examples=30, deadline=None)
@given(ring=rings(kinds=(EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER), dtypes=tuple(INTEGERS)), seed=st.integers(0, 99))
def test_integers_reduced_through_float32_are_exact_while_they_are_small(ring: Ring, seed: int) -> None:
    """Sums under 2^24 that fit the type are the integer sums."""
    dtype = numpy_dtype(ring.dtype)
    least, most = (-15, 16) if dtype.kind == "i" else (0, 31)
    shape = (len(ring.request.members), ring.count)
    inputs = np.random.default_rng(seed).integers(least, most, shape).astype(dtype)
    result = assert_triangle(ring, inputs, seed)
    combine: Any = {CceType.ADD: np.add, CceType.MAX: np.maximum, CceType.MIN: np.minimum}[ring.op or CceType.ADD]
    n = ring.request.ranks
    for first in range(0, shape[0], n):
        whole = combine.reduce(inputs[first : first + n], axis=0, dtype=dtype)
        got = result[first : first + n]
        assert np.array_equal(got.reshape(-1), whole if ring.kind is EncOp.REDUCE_SCATTER else np.tile(whole, n))


@settings(max_examples=30, deadline=None)
@given(ring=rings(kinds=(EncOp.ALLGATHER,)), seed=st.integers(0, 99))
def test_moves_keep_every_bit(ring: Ring, seed: int) -> None:
    """An all-gather puts the members' bytes behind each other, whatever they mean."""
    inputs = ring.random_bits(seed)
    result = assert_triangle(ring, inputs, seed)
    n = ring.request.ranks
    for first in range(0, inputs.shape[0], n):
        whole = bits(inputs[first : first + n]).reshape(1, -1)
        assert np.array_equal(bits(result[first : first + n]), np.repeat(whole, n, axis=0))


def reference(ring: Ring, inputs: Array) -> Array:
    """Reduce each group hop by hop, rounding at every hop; knows the rings and the cut of the buffer, no schedule.

    Chunk k of a channel starts at the member behind member k and goes round to it; what has arrived comes first in
    every hop. Source: compose §6.2, design §2 (2).
    """
    n, dtype = ring.request.ranks, inputs.dtype
    out = np.empty(inputs.shape, dtype)
    channel, chunk = owners(ring, np.arange(inputs.shape[1]) * dtype.itemsize)
    for first in range(0, inputs.shape[0], n):
        for c in range(len(ring.orders)):
            order = np.array(ring.orders[c]).reshape(-1, n)[first // n].tolist()
            for k in range(n):
                here = (channel == c) & (chunk == k)
                start = order.index(k)
                total = inputs[first + order[(start + 1) % n], here]
                for hop in range(2, n + 1):
                    total = combine(ring.op, total, inputs[first + order[(start + hop) % n], here]).astype(dtype)
                out[first : first + n, here] = total
    if ring.kind is EncOp.ALLREDUCE:
        return out
    share = inputs.shape[1] // n
    return np.stack([out[r, r % n * share : (r % n + 1) * share] for r in range(out.shape[0])])


def owners(ring: Ring, at: Array) -> tuple[Array, Array]:
    """Return the channel and the chunk of bytes of the whole buffer. Source: select §8, compose §6.1."""
    n, channels = ring.request.ranks, len(ring.orders)
    if ring.kind is EncOp.ALLREDUCE:
        return np.divmod(units_of(ring, at, ring.request.size, channels * n), n)
    share = ring.request.size // n
    return units_of(ring, at % share, share, channels), at // share


def units_of(ring: Ring, at: Array, total: int, units: int) -> Array:
    """Whole groups of `units` chunks, then the rest in equal parts rounded up to 32 bytes a half."""
    group, within = np.divmod(at, units * ring.chunk)
    rest = total - group * units * ring.chunk
    part = np.ceil(np.ceil(rest / units) / 64) * 64
    return within // np.minimum(ring.chunk, part).astype(np.int64)


def combine(op: CceType | None, left: Array, right: Array) -> Array:
    """One hop in float32: NaN wins, and -0 is less than +0."""
    a, b = left.astype(np.float32), right.astype(np.float32)
    if op is CceType.ADD:
        return a + b
    larger = (a > b) | ((a == b) & ~np.signbit(a))
    chosen = np.where(larger if op is CceType.MAX else ~larger, a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), chosen)


@settings(max_examples=40, deadline=None)
@given(
    ring=rings(kinds=(EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER), dtypes=(Dtype.BFLOAT16, Dtype.FP16, Dtype.FP32)),
    seed=st.integers(0, 1 << 30),
    plain=st.booleans(),
)
def test_hop_by_hop_reference(ring: Ring, seed: int, plain: bool) -> None:
    """Numbers near one, where every hop rounds, and any bit patterns: equal to a loop over the ring."""
    inputs = ring.raw_inputs(seed).view(numpy_dtype(ring.dtype)) if plain else ring.random_bits(seed)
    with np.errstate(all="ignore"):
        expected = reference(ring, inputs)
    assert np.array_equal(bits_but_of_nan(run_images(ring.images, inputs)), bits_but_of_nan(expected))


SPECIALS = (
    np.nan,
    -np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-40,
    6e-8,
    1.0,
    -1.0,
    3.4e38,
    -3.4e38,
    65504.0,
)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_pair_of_special_values(dtype: Dtype, op: CceType) -> None:
    """All pairs of NaN, infinities, both zeros, subnormals and the largest numbers meet in one hop."""
    values = np.array(SPECIALS, np.float32)
    with np.errstate(all="ignore"):
        pairs = np.stack([np.repeat(values, values.size), np.tile(values, values.size)]).astype(numpy_dtype(dtype))
        ring = Ring(dtype=dtype, count=pairs.shape[1], groups=((3, 9),), orders=((0, 1),), op=op, folds=3)
        result = assert_triangle(ring, pairs)
        assert np.array_equal(bits_but_of_nan(result), bits_but_of_nan(reference(ring, pairs)))


def test_a_whole_trn1_node() -> None:
    """Reduce-scatter of all 32 ranks in random order of rank, four channels, two chunk groups, odd shards."""
    there = tuple(range(32))
    members = tuple(np.random.default_rng(5).permutation(32).tolist())
    ring = Ring(
        kind=EncOp.REDUCE_SCATTER,
        count=201 * 32,
        groups=(members,),
        orders=(there, there[::-1], (*there[::2], *there[1::2]), (*there[::-2], *there[-2::-2])),
        platform_name=TRN1,
        chunk=64,
    )
    assert_triangle(ring, ring.raw_inputs(3).view(numpy_dtype(ring.dtype)), 3)


def test_a_whole_trn2_node() -> None:
    """All-reduce of all 64 ranks, a channel each way round, odd size."""
    there = tuple(range(64))
    ring = Ring(count=8009, groups=(there,), orders=(there, there[::-1]), folds=1)
    assert_triangle(ring, ring.raw_inputs(3).view(numpy_dtype(ring.dtype)), 3)
