"""Laws of the SB2SB leg: moves equal plain indexing in every order of the cores; no bytes break the decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.columns import I64, U8
from rota.device.sb2sb import descriptors, empty_state_buffer, run_sb2sb
from rota.device.sb2sb_words import decode_section
from rota.emit.sb2sb import Move, StateTensor, sb2sb_streams, sb2sb_words
from rota.emit.sb2sb_leg import leg_of
from rota.errors import DecodeError, RotaError, StuckError, UnsupportedError
from rota.isa.arch import ARCHES
from rota.isa.dtypes import Dtype, size_of
from rota.isa.transfers import encode_sb2sb

ARCH = ("cayman", "mariana")
DTYPES = tuple(dtype for dtype in Dtype if size_of(dtype))
HALF = 100_000  # bytes of a partition for sources; targets lie behind them
CHANNELS = {0: 128, 32: 96, 64: 64, 96: 32}


ZEROS = [empty_state_buffer("cayman") for _ in range(2)]
Given, Result = TypeVar("Given"), TypeVar("Result")


def outcome(act: Callable[[Given], Result], given: Given) -> tuple[Result | None, RotaError | None]:
    """Return the result, or the error that rota raises on purpose."""
    try:
        return act(given), None
    except RotaError as error:
        return None, error


def indices(tensor: StateTensor) -> tuple[I64, I64]:
    """Return partition and byte of every byte of a tensor: channel, element, byte; written without numpy's strides."""
    size = size_of(tensor.dtype)
    elements = [
        tensor.offset + size * (i * tensor.step[0] + j * tensor.step[1] + k * tensor.step[2])
        for i in range(tensor.num[0])
        for j in range(tensor.num[1])
        for k in range(tensor.num[2])
    ]
    at = np.array([[start + byte for byte in range(size)] for start in elements])
    rows = np.arange(tensor.partition, tensor.partition + tensor.channels)
    return rows[:, None, None], at[None]


def expected(steps: list[list[Move]], buffers: list[U8]) -> list[U8]:
    """Return the state buffers after the steps, by plain indexing; the moves of a step read before any writes."""
    out = [each.copy() for each in buffers]
    for step in steps:
        read = [out[move.source.core][indices(move.source)] for move in step]
        for move, value in zip(step, read, strict=True):
            out[move.target.core][indices(move.target)] = value
    return out


@cache
def contents(arch: str) -> list[U8]:
    """Return two state buffers that are random where the tensors of these tests lie; nobody changes them."""
    rng = np.random.default_rng(20)
    out = [empty_state_buffer(arch) for _ in range(2)]
    for each in out:
        for start in (0, HALF):
            each[:, start : start + 3000] = rng.integers(0, 256, (128, 3000), np.uint8)
    return out


@st.composite
def factored(draw: st.DrawFn, count: int) -> tuple[int, int, int]:
    """Return three factors of a count."""
    first = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    rest = count // first
    second = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
    return first, second, rest // second


@st.composite
def tensors(draw: st.DrawFn, *, core: int, count: int, channels: int, dtype: Dtype, target: bool) -> StateTensor:
    """Return a tensor of so many elements; those of a target share no bytes, and lie behind all sources."""
    num = draw(factored(count))
    signs = draw(st.tuples(*[st.sampled_from((1, 1, -1))] * 3))
    if target:
        order = draw(st.permutations(range(3)))
        sizes, reach = [0, 0, 0], 1
        for axis in order:
            sizes[axis] = reach + draw(st.integers(0, 2))
            reach += sizes[axis] * (num[axis] - 1)
    else:
        sizes = [draw(st.integers(0, 6)) for _ in range(3)]
    step = (signs[0] * sizes[0], signs[1] * sizes[1], signs[2] * sizes[2])
    low = sum(min(s * (n - 1), 0) for s, n in zip(step, num, strict=True)) * size_of(dtype)
    partition = draw(st.sampled_from([first for first, most in CHANNELS.items() if channels <= most]))
    offset = HALF * target - low + draw(st.integers(0, 9))
    return StateTensor(
        core=core, partition=partition, channels=channels, offset=offset, step=step, num=num, dtype=dtype
    )


@st.composite
def moves(draw: st.DrawFn, *, sender: int, receiver: int, most: int = 700) -> Move:
    """Return a move; its source lies in the first half of the partitions, its target in the second."""
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(st.one_of(st.integers(1, 40), st.sampled_from([60, 256, 257, 300, most])))
    channels = draw(st.sampled_from((1, 3, 32, 96, 128)))
    common = {"count": count, "channels": channels, "dtype": dtype}
    source = draw(tensors(core=sender, target=False, **common))
    return Move(source, draw(tensors(core=receiver, target=True, **common)))


@st.composite
def programs(draw: st.DrawFn) -> list[list[Move]]:
    """Return a few steps: a move on a core, one to the partner, or one in either direction."""
    steps = []
    for kind in draw(st.lists(st.sampled_from(("self", "partner", "both")), min_size=1, max_size=3)):
        core = draw(st.integers(0, 1))
        step = [draw(moves(sender=core, receiver=core if kind == "self" else 1 - core))]
        if kind == "both":
            step.append(draw(moves(sender=1 - core, receiver=core)))
        steps.append(step)
    return steps


@settings(max_examples=20, deadline=None)
@given(steps=programs(), arch=st.sampled_from(ARCH), seed=st.integers(0, 2**32 - 1))
def test_moves_are_plain_indexing_in_every_order(steps: list[list[Move]], arch: str, seed: int) -> None:
    """Words carried out in turns and in random order leave what indexing leaves, and count each word once."""
    before = contents(arch)
    streams = sb2sb_streams(steps, arch=arch)
    want = expected(steps, before)
    for rng in (None, np.random.default_rng(seed)):
        after = run_sb2sb(streams, before, arch=arch, rng=rng)
        assert all(np.array_equal(got, right) for got, right in zip(after.buffers, want, strict=True))
        words = [len(stream) // 64 for stream in streams]
        assert after.semaphores[:, 8].tolist() == after.semaphores[:, 9].tolist() == words


@settings(max_examples=30, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_every_type_is_moved_as_it_is(data: st.DataObject, dtype: Dtype) -> None:
    """All types that have a size: bits arrive unchanged, not-a-number too, on the core itself and on the partner."""
    receiver = data.draw(st.integers(0, 1))
    common = {"count": 37, "channels": 3, "dtype": dtype}
    source = data.draw(tensors(core=0, target=False, **common))
    move = Move(source, data.draw(tensors(core=receiver, target=True, **common)))
    before = contents("cayman")
    after = run_sb2sb(sb2sb_streams([[move]], arch="cayman"), before, arch="cayman")
    assert (after.buffers[receiver][indices(move.target)] == before[0][indices(move.source)]).all()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_words_cut_a_move_without_gap_or_overlap(data: st.DataObject) -> None:
    """The words' elements, one after the other, are the move's, and none has more than 256."""
    move = data.draw(moves(sender=0, receiver=1, most=2500))
    words = decode_section(b"".join(sb2sb_words(move.source, move.target, arch="mariana")))
    assert all(1 <= word.src.elements == word.dst.elements <= 256 for word in words)
    for name, tensor in (("src", move.source), ("dst", move.target)):
        found: list[int] = []
        for word in words:
            pattern = getattr(word, name)
            start = pattern.address - (tensor.partition << 18)
            part = StateTensor(core=0, offset=start, step=pattern.step, num=pattern.num, dtype=tensor.dtype)
            found += indices(part)[1][0, :, 0].tolist()
        assert found == indices(tensor)[1][0, :, 0].tolist()
    assert sum(word.src.elements for word in words) == math.prod(move.source.num)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), arch=st.sampled_from(ARCH), core=st.integers(0, 7))
def test_emitter_and_device_build_the_same_descriptors(data: st.DataObject, arch: str, core: int) -> None:
    """Two builders of one word's descriptors agree on every byte, on either die."""
    receiver = data.draw(st.sampled_from((core, core ^ 1)))
    move = data.draw(moves(sender=core, receiver=receiver))
    for word in sb2sb_words(move.source, move.target, arch=arch):
        leg = leg_of(word, core=core, arch=arch)
        tx, rx = descriptors(decode_section(word)[0], core, receiver, arch=ARCHES[arch])
        assert (tx.tobytes(), rx.tobytes()) == (leg.tx.tobytes(), leg.rx.tobytes())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_words_are_refused_or_run(data: st.DataObject) -> None:
    """Any bytes: a DecodeError with a place inside, or words that encode to the same bytes and run to an end."""
    source = StateTensor(core=0, num=(2, 3, 4), step=(12, 4, 1), channels=2, dtype=Dtype.FP16)
    target = StateTensor(core=1, num=(1, 1, 24), channels=2, offset=512, dtype=Dtype.FP16)
    streams = list(sb2sb_streams([[Move(source, target)]] * 2, arch="cayman"))
    damaged = bytearray(streams[0])
    byte = st.one_of(st.sampled_from((0, 1, 2, 8, 9, 0x7F, 0x80, 0xBF, 0xC7, 0xFF)), st.integers(0, 255))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(damaged) - 1), byte), max_size=4)):
        damaged[at] = value
    streams[0] = bytes(damaged[: data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))])
    words, error = outcome(decode_section, streams[0])
    if words is None:
        assert isinstance(error, DecodeError)
        assert 0 <= error.offset <= len(streams[0])
        return
    assert b"".join(encode_sb2sb(word) for word in words) == streams[0]
    after, error = outcome(partial(run_sb2sb, buffers=ZEROS, arch="cayman"), streams)
    assert after is not None or (isinstance(error, StuckError | UnsupportedError) and "core 0" in str(error))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    """Bytes that nobody made."""
    words, error = outcome(decode_section, data)
    assert words is not None or (isinstance(error, DecodeError) and 0 <= error.offset <= len(data))
