"""The C kernels against the numpy code that defines them: equal bits, on every level of instructions this machine runs.

All pairs of the 8-bit formats, all patterns of the 16-bit ones with many second operands, and for float32 patterns of
every kind; NaNs with their payloads and signs, infinities, subnormals and both zeros included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from rota.native import calls
from rota.native.arithmetic import NUMBER, Combine, fold
from rota.native.library import LEVELS, kernels, without_kernels

Array = NDArray[Any]
Fold = Callable[..., Array]

DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp8_e3m4": np.dtype(ml_dtypes.float8_e3m4),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
FOLDS = [Combine.ADD, Combine.MAX, Combine.MIN, Combine.FMA]
SCALES = [
    1,
    -1,
    0.5,
    3,
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    -np.nan,
    1e-45,
    -3e-42,
    1.1754944e-38,
    3e38,
    1 / 3,
    -2.7e-20,
]

needs_kernels = pytest.mark.skipif(kernels() is None, reason="waits for the C library, which was not built or is off")


def levels() -> list[str]:
    """Return the levels this machine runs."""
    library = kernels()
    return [] if library is None else list(LEVELS[: library.rota_level() + 1])


@pytest.fixture(params=LEVELS)
def fold_at(request: pytest.FixtureRequest) -> Fold:
    """Fold like `fold`, with the kernels of one level."""
    library = kernels()
    if library is None or request.param not in levels():
        pytest.skip(f"waits for the C library and a machine that runs its level {request.param}")
    level = LEVELS.index(request.param)

    def run(how: Combine, sources: list[Array], scales: Any = ()) -> Array:
        memory = np.concatenate([np.zeros_like(sources[0]), *sources]).view(np.uint8)
        size, count = sources[0].nbytes, len(sources)
        columns = [np.array(part, np.int64) for part in ([0], [0, count], np.arange(1, count + 1) * size, [size])]
        factors = np.array(scales, np.float32)
        addresses = [column.ctypes.data for column in columns]
        number = calls.number_of(sources[0].dtype)
        pointer = factors.ctypes.data if factors.size else None
        library.rota_fold_runs_at(level, memory.ctypes.data, 1, *addresses, NUMBER[how], number, pointer)
        return memory[:size].view(sources[0].dtype)

    return run


def twin(how: Combine, sources: list[Array], scales: Any = ()) -> Array:
    with without_kernels():
        return fold(how, sources, scales)


def patterns(dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    """Return all patterns of a format; of float32 random ones, of all exponents, and what lies next to its edges."""
    if dtype.itemsize < 4:
        return np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype)
    anything = rng.integers(0, 1 << 32, 60_000).astype(np.uint32)
    edges = [0, 0x00800000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x80000000]
    near = (np.array(edges)[:, None] + np.arange(-40, 40)).reshape(-1) & 0xFFFFFFFF
    signs = np.concatenate([near, near ^ 0x80000000]).astype(np.uint32)
    return np.concatenate([anything, signs]).view(np.float32)


def corners(dtype: np.dtype[Any]) -> Array:
    """Return zeros, least and largest values, infinities and NaNs of every sign and kind of payload."""
    bits = np.dtype(f"u{dtype.itemsize}")
    infinity = int(np.array([np.inf], dtype).view(bits)[0])
    one = int(np.array([1], dtype).view(bits)[0])
    top = (1 << 8 * dtype.itemsize - 1) - 1
    plain = [
        0,
        1,
        2,
        one - 1,
        one,
        one + 1,
        infinity - 1,
        infinity,
        infinity + 1,
        (infinity + top + 1) // 2,
        top - 1,
        top,
    ]
    return np.array([*plain, *(value | top + 1 for value in plain)]).astype(bits).view(dtype)


def second_operands(values: Array, rng: np.random.Generator) -> Iterator[Array]:
    """Yield arrays to combine with all patterns: every one (8 bits), or each corner, neighbours, random orders."""
    if values.dtype.itemsize == 1:
        yield from (np.full_like(values, value) for value in values)
        return
    yield from (np.full_like(values, value) for value in corners(values.dtype))
    yield from (np.roll(values, shift) for shift in (0, 1, 5, values.size // 2))
    yield from (rng.permutation(values) for _ in range(4))


def assert_same_bits(found: Array, expected: Array) -> None:
    bits = f"u{expected.dtype.itemsize}"
    different = np.flatnonzero(found.view(bits) != expected.view(bits))
    assert not different.size, (different.size, found.view(bits)[different[:4]], expected.view(bits)[different[:4]])


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", FOLDS)
@pytest.mark.parametrize("name", DTYPES)
def test_two_sources_have_the_bits_of_numpy(fold_at: Fold, name: str, how: Combine) -> None:
    """Every pattern with every second operand, both ways round; FMA with a scale of every kind for each of them."""
    rng = np.random.default_rng(2)
    values = patterns(DTYPES[name], rng)
    pairs = [[values, other] for other in second_operands(values, rng)]
    firsts, seconds = (np.concatenate(part) for part in zip(*pairs, strict=True))
    for sources in ([firsts, seconds], [seconds, firsts]):
        assert_same_bits(fold_at(how, sources), twin(how, sources))
    if how is Combine.FMA:
        few = [part[:: max(1, part.size // 70_000) | 1] for part in (firsts, seconds)]
        for scale in SCALES:
            for scales in ([scale, 1], [1, scale], [scale, scale]):
                factors = np.array(scales, np.float32)
                assert_same_bits(fold_at(how, few, factors), twin(how, few, factors))


@pytest.mark.parametrize("count", [1, 3, 5, 32])
@pytest.mark.parametrize("how", FOLDS)
@pytest.mark.parametrize("name", DTYPES)
def test_many_sources_have_the_bits_of_numpy(fold_at: Fold, name: str, how: Combine, count: int) -> None:
    """One source is rounded as many are; sums of many values in order, with NaNs here and there and without any."""
    rng = np.random.default_rng(count)
    values = patterns(DTYPES[name], rng)
    if values.size < 60_000:
        values = np.tile(values, 64)
    calm = values[np.isfinite(values.astype(np.float32))]
    rare = calm.copy()
    rare[:: rare.size // 100] = np.resize(corners(values.dtype), rare[:: rare.size // 100].size)
    for some in (values, calm, rare):
        sources = [some, *(rng.permutation(some) for _ in range(count - 1))]
        assert_same_bits(fold_at(how, sources), twin(how, sources))
        if how is Combine.FMA:
            for scales in (np.resize(SCALES, count), rng.standard_normal(count)):
                factors = scales.astype(np.float32)
                assert_same_bits(fold_at(how, sources, factors), twin(how, sources, factors))


@pytest.mark.parametrize("how", FOLDS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_length_ends_where_it_should(fold_at: Fold, name: str, how: Combine) -> None:
    """Arrays shorter than a vector and with a part of one at their end, NaNs at any place."""
    rng = np.random.default_rng(9)
    values = patterns(DTYPES[name], rng)
    for count in (*range(1, 70), 127, 128, 129, 1000):
        sources = [rng.choice(values, count) for _ in range(3)]
        assert_same_bits(fold_at(how, sources), twin(how, sources))


@needs_kernels
def test_a_product_is_rounded_before_it_is_added() -> None:
    """No fused multiply-add: (1 + 2^-23)^2 - (1 + 2^-22) is 0 if the product was rounded, 2^-46 if it was not."""
    one = np.float32(1 + 2**-23)
    sources = [np.full(100, -(1 + 2**-22), np.float32), np.full(100, one)]
    assert not fold(Combine.FMA, sources, [np.float32(1), one]).any()


@needs_kernels
def test_fold_uses_the_kernels_only_where_they_apply() -> None:
    """Strided sources, scales that broadcast and integers stay on numpy; all give what numpy gives."""
    rng = np.random.default_rng(4)
    wide = rng.standard_normal((40, 6)).astype(np.float32)
    columns = rng.standard_normal((2, 40, 1)).astype(np.float32)
    cases: list[tuple[Combine, list[Array], Any]] = [
        (Combine.ADD, [wide, wide[::-1]], ()),
        (Combine.ADD, [wide[:, 0], wide[:, 1]], ()),
        (Combine.FMA, [wide, wide.copy()], columns),
        (Combine.FMA, [wide, wide.copy()], [np.float32(2), np.float32(3)]),
        (Combine.FMA, [wide, wide.copy()], np.array([2, 3], np.float32)),
        (Combine.MAX, [np.arange(9, dtype=np.int16), np.arange(9, dtype=np.int16)[::-1].copy()], ()),
        (Combine.ADD, [wide.astype(">f4"), wide.astype(">f4")], ()),
        (Combine.ADD, [wide[:0], wide[:0]], ()),
    ]
    for how, sources, scales in cases:
        found, expected = fold(how, sources, scales), twin(how, sources, scales)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="zip"):
        fold(Combine.FMA, [wide, wide], [np.float32(2)])
