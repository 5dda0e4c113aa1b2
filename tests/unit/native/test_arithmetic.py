"""The element arithmetic against an independent reference, for every bit pattern; and moving pieces.

The reference never converts with numpy or ml_dtypes: it decodes patterns by their fields, computes in float64, where a
sum of two float32 values rounds innocuously (53 >= 2 x 24 + 2), and rounds by scaling to whole units of the last place.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rota.native.arithmetic import Combine, fold, move_pieces

F64 = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with infinities: the widths of its fields."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def least(self) -> int:
        """Exponent of the unit of subnormals."""
        return 1 - self.bias - self.mantissa

    @property
    def largest(self) -> float:
        return float((2 - Fraction(1, 1 << self.mantissa)) * Fraction(2) ** self.bias)

    def decode(self, patterns: Array) -> F64:
        """Return the value of each pattern, by its fields."""
        raw = patterns.astype(np.int64)
        sign = np.where(raw >> (self.bits - 1), -1.0, 1.0)
        exponent = raw >> self.mantissa & (1 << self.exponent) - 1
        fraction = raw & (1 << self.mantissa) - 1
        normal = np.ldexp((fraction + (1 << self.mantissa)).astype(np.float64), exponent - 1 + self.least)
        value = np.where(exponent == 0, np.ldexp(fraction.astype(np.float64), self.least), normal)
        special = exponent == (1 << self.exponent) - 1
        return sign * np.where(special, np.where(fraction == 0, np.inf, np.nan), value)

    def round(self, value: F64) -> F64:
        """Return the nearest value of the format, ties to even, overflow to infinity, subnormals kept."""
        finite = np.isfinite(value)
        exponent = np.frexp(np.where(finite, value, 1.0))[1] - 1
        unit = np.maximum(exponent - self.mantissa, self.least)
        whole = np.rint(np.ldexp(np.where(finite, value, 0.0), -unit))
        near = np.ldexp(whole, unit)
        near = np.where(np.abs(near) > self.largest, np.copysign(np.inf, value), near)
        return np.where(finite, np.copysign(near, value), value)


FP32 = Format(8, 23)
FORMATS = {
    "bf16": (ml_dtypes.bfloat16, Format(8, 7)),
    "fp16": (np.float16, Format(5, 10)),
    "fp8_e3m4": (ml_dtypes.float8_e3m4, Format(3, 4)),
    "fp8_e4m3": (ml_dtypes.float8_e4m3, Format(4, 3)),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, Format(5, 2)),
}


def all_pairs(name: str) -> tuple[Array, Array]:
    """Return patterns to combine: all 65,536 pairs of an 8-bit format, all 65,536 patterns of a 16-bit one shuffled."""
    if FORMATS[name][1].bits == 8:
        every = np.arange(256, dtype=np.uint8)
        return np.repeat(every, 256), np.tile(every, 256)
    every = np.arange(1 << 16, dtype=np.uint16)
    return every, np.random.default_rng(16).permutation(every)


def combined(how: Combine, name: str, *patterns: Array) -> F64:
    """Return what `fold` gives, decoded by fields."""
    dtype, form = FORMATS[name]
    result = fold(how, [one.view(dtype) for one in patterns])
    assert result.dtype == dtype
    return form.decode(result.view(patterns[0].dtype))


def assert_same(found: F64, expected: F64) -> None:
    """Values are equal with their signs, zero's included; any NaN equals any NaN."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan], expected[~nan])
    np.testing.assert_array_equal(np.signbit(found[~nan]), np.signbit(expected[~nan]))


def extreme(how: Combine, left: F64, right: F64) -> F64:
    """Return the larger or smaller of two values one by one: NaN if either is, -0 below +0."""
    pick = max if how is Combine.MAX else min
    keys = [(value, -np.signbit(value).astype(int)) for value in (left, right)]
    pairs = zip(*(zip(value.tolist(), sign.tolist(), strict=True) for value, sign in keys), strict=True)
    return np.array([np.nan if a[0] != a[0] or b[0] != b[0] else pick(a, b)[0] for a, b in pairs])


# --- exactness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_the_reference_decodes_what_ml_dtypes_does(name: str) -> None:
    """The reference agrees with ml_dtypes about every pattern's value, so that it tests arithmetic and not reading."""
    dtype, form = FORMATS[name]
    patterns = np.arange(1 << form.bits, dtype=f"u{form.bits // 8}")
    with np.errstate(invalid="ignore"):
        assert_same(form.decode(patterns), patterns.view(dtype).astype(np.float64))


@pytest.mark.parametrize("name", FORMATS)
def test_add_is_float32_with_one_rounding(name: str) -> None:
    """ADD widens to float32, adds, and rounds once, to nearest, ties to even: all pairs (8 bits), all patterns (16).

    Overflow goes to infinity and subnormals are kept. Source: design §2 (2); execution §4.
    """
    left, right = all_pairs(name)
    form = FORMATS[name][1]
    with np.errstate(invalid="ignore"):
        exact = form.decode(left) + form.decode(right)
    expected = form.round(FP32.round(exact))
    assert_same(combined(Combine.ADD, name, left, right), expected)
    assert_same(combined(Combine.ADD, name, right, left), expected)
    assert np.isinf(expected[np.isfinite(form.decode(left)) & np.isfinite(form.decode(right))]).any()
    assert ((expected != 0) & (np.abs(expected) < 2.0 ** (1 - form.bias))).any()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("how", [Combine.MAX, Combine.MIN])
def test_max_and_min(name: str, how: Combine) -> None:
    """MAX and MIN propagate NaN from either side and hold -0 < +0, in both operand orders. Source: design §2 (2)."""
    left, right = all_pairs(name)
    form = FORMATS[name][1]
    expected = extreme(how, form.decode(left), form.decode(right))
    assert_same(combined(how, name, left, right), expected)
    assert_same(combined(how, name, right, left), expected)


def test_float32_adds_as_float32() -> None:
    """fp32 sums round once to float32: against the float64 sum rounded by hand, over random patterns of all kinds."""
    rng = np.random.default_rng(32)
    left, right = (rng.integers(0, 1 << 32, 200_000, np.uint32) for _ in range(2))
    near = rng.integers(-(1 << 25), 1 << 25, 100_000)  # neighbours, where cancellation and ties are
    left = np.concatenate([left, left[:100_000]])
    right = np.concatenate([right, (left[:100_000].astype(np.int64) + near & 0xFFFFFFFF).astype(np.uint32)])
    with np.errstate(invalid="ignore"):
        expected = FP32.round(FP32.decode(left) + FP32.decode(right))
    found = fold(Combine.ADD, [left.view(np.float32), right.view(np.float32)])
    assert_same(FP32.decode(found.view(np.uint32)), expected)


@pytest.mark.parametrize(
    ("how", "left", "right", "expected"),
    [
        (Combine.MAX, -0.0, 0.0, 0.0),
        (Combine.MIN, -0.0, 0.0, -0.0),
        (Combine.MAX, -0.0, -0.0, -0.0),
        (Combine.MIN, 0.0, 0.0, 0.0),
        (Combine.MAX, np.nan, 1.0, np.nan),
        (Combine.MIN, np.nan, -np.inf, np.nan),
        (Combine.MAX, np.inf, 1.0, np.inf),
        (Combine.ADD, np.inf, -np.inf, np.nan),
        (Combine.ADD, 1e-45, 1e-45, 2.8e-45),  # subnormals
        (Combine.ADD, 3e38, 3e38, np.inf),
    ],
)
def test_corners_of_float32(how: Combine, left: float, right: float, expected: float) -> None:
    """Zeros with sign, NaN, infinities and subnormals, in both orders."""
    a, b, want = (np.array([value], np.float32) for value in (left, right, expected))
    for sources in ([a, b], [b, a]):
        assert_same(fold(how, sources).astype(np.float64), want.astype(np.float64))


def test_the_four_exponent_format_ends_at_240() -> None:
    """FP8_EXP4 is the IEEE-like e4m3: its largest finite value is 240, and above it is infinity."""
    largest = np.array([240.0], ml_dtypes.float8_e4m3)
    assert FORMATS["fp8_e4m3"][1].largest == 240.0
    assert float(fold(Combine.ADD, [largest, np.array([7.5], largest.dtype)])[0]) == 240.0
    assert float(fold(Combine.ADD, [largest, np.array([8.0], largest.dtype)])[0]) == np.inf


# --- folding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_many_sources_fold_in_order_and_round_once(name: str) -> None:
    """N sources fold in list order in float32 and round once at the write. Source: design §2 (2)."""
    form = FORMATS[name][1]
    rng = np.random.default_rng(5)
    patterns = [rng.integers(0, 1 << form.bits, 4000).astype(f"u{form.bits // 8}") for _ in range(5)]
    total = form.decode(patterns[0])
    with np.errstate(invalid="ignore"):
        for one in patterns[1:]:
            total = FP32.round(total + form.decode(one))
    assert_same(combined(Combine.ADD, name, *patterns), form.round(total))


def test_one_rounding_is_not_two() -> None:
    """bf16 256 + 1 + 1: one row of three sources gives 258; two rows, with a rounding between them, give 256."""
    parts = [np.array([value], ml_dtypes.bfloat16) for value in (256, 1, 1)]
    assert float(fold(Combine.ADD, parts)[0]) == 258
    assert float(fold(Combine.ADD, [fold(Combine.ADD, parts[:2]), parts[2]])[0]) == 256


def test_the_order_of_sources_is_the_order_of_sums() -> None:
    """float32 sums depend on their order: 2^24 + 1 + 1 loses both ones, 1 + 1 + 2^24 keeps two."""
    large, one = np.array([1 << 24], np.float32), np.array([1], np.float32)
    assert float(fold(Combine.ADD, [large, one, one])[0]) == 1 << 24
    assert float(fold(Combine.ADD, [one, one, large])[0]) == (1 << 24) + 2


def test_a_copy_keeps_every_bit() -> None:
    """COPY moves bytes: signalling NaNs and integers beyond 2^24 come out as they went in."""
    for dtype in ("u1", "u2", "u4", "u8", "<f4", "<f2"):
        patterns = np.random.default_rng(1).integers(0, 256, 4096).astype(np.uint8).view(dtype)
        assert fold(Combine.COPY, [patterns]).tobytes() == patterns.tobytes()


# --- integers ---------------------------------------------------------------------------------------------------------

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def through_float32(value: int) -> Fraction:
    """Return an integer or fraction rounded to float32 with exact arithmetic."""
    exact = abs(Fraction(value))
    if not exact:
        return exact
    unit = Fraction(2) ** max(exact.numerator.bit_length() - exact.denominator.bit_length() - 24, -149)
    while exact / unit >= 1 << 24:
        unit *= 2
    while exact / unit < 1 << 23:
        unit /= 2
    return round(exact / unit) * unit * (1 if value > 0 else -1)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_go_through_float32(name: str) -> None:
    """Integers widen to float32, sum, round to the nearest and saturate: extremes, edges of 2^24, random ones."""
    info = np.iinfo(name)
    rng = np.random.default_rng(7)
    edges = [0, 1, 2, 3, -1, -2, info.min, info.min + 1, info.max, info.max - 1, info.max // 2, info.max // 2 + 1]
    edges += [sign * ((1 << 24) + near) for sign in (1, -1) for near in range(-2, 4)]
    edges += [(1 << 53) + 1, (1 << 63) - (1 << 38), (1 << 63) + (1 << 39) + 1, -(1 << 62) - (1 << 38) - 1]
    edges = [value for value in edges if info.min <= value <= info.max]
    others = rng.integers(info.min, info.max, 30, dtype=name, endpoint=True).tolist()
    pairs = [(a, b) for a in edges for b in edges + others]
    left, right = (np.array([pair[i] for pair in pairs], name) for i in (0, 1))
    for how, combine in [(Combine.ADD, lambda a, b: through_float32(a + b)), (Combine.MAX, max), (Combine.MIN, min)]:
        exact = [combine(through_float32(a), through_float32(b)) for a, b in pairs]
        expected = [min(max(round(value), info.min), info.max) for value in exact]
        found = fold(how, [left, right])
        assert found.dtype == left.dtype
        assert found.tolist() == expected


@pytest.mark.parametrize("name", INTEGERS)
def test_small_integers_are_exact(name: str) -> None:
    """Up to 2^24 float32 holds every integer, so that sums in range are exact."""
    rng = np.random.default_rng(3)
    top = min(int(np.iinfo(name).max), 1 << 24) // 8
    parts = [rng.integers(0, top, 500, endpoint=True).astype(name) for _ in range(8)]
    expected = sum(part.astype(np.int64) for part in parts)
    assert fold(Combine.ADD, parts).astype(np.int64).tolist() == expected.tolist()


# --- moving pieces ----------------------------------------------------------------------------------------------------


def slow_move(memory: Array, targets: Any, sources: Any, size: int, how: Combine, dtype: Any) -> None:
    """Move pieces the plain way: read everything, then write everything."""
    read = [[memory[at : at + size].copy() for at in piece] for piece in sources]
    values = [
        parts[0] if how is Combine.COPY else fold(how, [part.view(dtype) for part in parts]).view(np.uint8)
        for parts in read
    ]
    for piece, value in zip(targets, values, strict=True):
        for at in piece:
            memory[at : at + size] = value


def columns(pieces: list[list[int]]) -> Any:
    return np.array(pieces, np.int64).reshape(len(pieces), -1)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_gather_and_loop_move_alike(data: st.DataObject) -> None:
    """Small pieces go through an index gather, large ones through a loop: either way all reads come before all writes.

    Sizes on both sides of the change at 4096 bytes, odd offsets, several sources and targets, sources that other
    pieces overwrite.
    """
    how = data.draw(st.sampled_from(Combine))
    name = data.draw(st.sampled_from(["<f4", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, "<i2"]))
    item = np.dtype(name).itemsize
    size = data.draw(st.sampled_from([1, 3, 8, 96, 4092, 4095, 4096, 4097, 4100, 8192])) // item * item or item
    count = data.draw(st.integers(1, 4))
    n_targets, n_sources = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shift = data.draw(st.integers(0, 9))
    slots = count * n_targets + 3
    memory = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 256, slots * size + 16).astype(np.uint8)
    places = data.draw(st.permutations(range(slots)))[: count * n_targets]
    targets = columns([[shift + size * at for at in places[i::count]] for i in range(count)])
    anywhere = st.integers(0, slots * size)
    aligned = st.integers(0, slots - 1).map(lambda slot: shift + size * slot)
    sources = columns([[data.draw(aligned | anywhere) for _ in range(n_sources)] for _ in range(count)])
    sources = np.minimum(sources, memory.size - size)
    expected = memory.copy()
    slow_move(expected, targets.tolist(), sources.tolist(), size, how, np.dtype(name))
    move_pieces(memory, targets, sources, size, how=how, dtype=np.dtype(name))
    assert memory.tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [8, 4095, 4096, 10_000])
def test_pieces_that_trade_places(size: int) -> None:
    """All reads come before all writes: two pieces that copy to each other's place swap, a chain moves on by one."""
    memory = np.random.default_rng(0).integers(0, 256, 3 * size).astype(np.uint8)
    a, b, c = (memory[i * size : (i + 1) * size].tobytes() for i in range(3))
    move_pieces(memory, columns([[size], [0]]), columns([[0], [size]]), size)
    assert memory.tobytes() == b + a + c
    move_pieces(memory, columns([[size], [2 * size]]), columns([[0], [size]]), size)
    assert memory.tobytes() == b + b + a


@pytest.mark.parametrize("size", [16, 4096])
def test_a_target_may_be_its_own_source(size: int) -> None:
    """In place: a reduction into one of its sources, and a copy onto itself and elsewhere."""
    memory = np.arange(2 * size // 4, dtype="<i4").view(np.uint8)
    both = memory.view("<i4")[: size // 4] + memory.view("<i4")[size // 4 :]
    move_pieces(memory, columns([[0]]), columns([[0, size]]), size, how=Combine.ADD, dtype=np.dtype("<i4"))
    assert memory.view("<i4")[: size // 4].tolist() == both.tolist()
    move_pieces(memory, columns([[0, size]]), columns([[0]]), size)
    assert memory[:size].tobytes() == memory[size:].tobytes()


def test_a_memory_smaller_than_a_word() -> None:
    """Pieces of a memory of three bytes are moved byte by byte."""
    memory = np.array([1, 2, 3], np.uint8)
    move_pieces(memory, columns([[2], [1]]), columns([[0], [2]]), 1)
    assert memory.tolist() == [1, 3, 1]


def test_no_pieces() -> None:
    """Nothing to move moves nothing, in either way."""
    memory = np.array([1, 2, 3], np.uint8)
    for size in (1, 5000):
        move_pieces(memory, np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64), size)
    assert memory.tolist() == [1, 2, 3]
