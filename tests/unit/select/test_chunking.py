"""How a selected ring is cut, and the slices an operation is logged with. Source: select §8."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.select.asking import AG, AR, KIB, MIB, RING, RS, TRN1, TRN2, chips, one_a_node, plan, request

from rota.facts import CONVENTION, HIGH, MEDIUM
from rota.isa.enums import EncOp
from rota.machine.platform import load_platform
from rota.select import Selector, Settings
from rota.select.chunking import (
    CHUNK_SOURCE,
    DYNAMIC_PARTS,
    DYNAMIC_SOURCE,
    ROUNDING,
    SLICE_SOURCE,
    Chunks,
    Slices,
    chunks,
    slices,
)

NODE = chips(*range(16))


def test_defaults() -> None:
    """Chunk 2 MiB (CC_CHUNK_SIZE), depth 8 (CC_CHANNEL_BUFFER_N), at most 32. High."""
    found = chunks(plan(NODE, 1 << 30))
    assert found is not None
    assert (found.chunk, found.slots, found.channels) == (2 * MIB, 8, 4)
    assert CHUNK_SOURCE.confidence is HIGH
    assert DYNAMIC_PARTS == 32  # NEC_MAX_NR_CHANNEL_CHUNKS


@pytest.mark.parametrize(
    ("kind", "size", "passes"),
    [
        (AR, 64 * 4 * 2 * MIB, 1),  # size_n = rank_n x channel_n x chunk_n: one pass
        (AR, 64 * 4 * 2 * MIB + 64, 2),
        (AR, 1, 1),
        (AG, 64 * 4 * 2 * MIB, 1),  # the share of each rank over the channels
        (AG, 64 * 4 * 2 * MIB + 64, 2),
        (RS, 64 * 4 * 2 * MIB, 1),
        (RS, 64 * 4 * 2 * MIB * 3, 3),
    ],
)
def test_passes(kind: EncOp, size: int, passes: int) -> None:
    """passes = ceil(size_n / (rank_n x channel_n x chunk_n)). High."""
    found = chunks(plan(NODE, max(size, 64) if kind is not AR else size, kind))
    assert found is not None
    assert found.passes == passes


def test_settings_reach_the_chunks() -> None:
    """Chunk and depth are the settings'."""
    decided = plan(NODE, 64 * 4 * MIB, settings=Settings(chunk=MIB, slots=5))
    found = chunks(decided)
    assert isinstance(found, Chunks)
    assert (found.chunk, found.slots, found.passes) == (MIB, 5, 1)


@pytest.mark.parametrize(
    ("group", "channels"),
    [(NODE, 4), (chips(0), 2), (chips(0, 1), 1), (chips(0, lanes=[0, 1]), 1), (chips(*range(4)), 2)],
)
def test_channels(group: tuple[int, ...], channels: int) -> None:
    """4 on a full node, 2 otherwise, 1 for two ranks, two chips and open chains: conventions, design §2 (13)."""
    assert plan(group, 64 * MIB).channels == channels


def test_channels_of_trn1_and_of_nodes() -> None:
    """32 ranks of Trn1 have 4; one rank on each of several nodes 2, of two nodes 1."""
    assert plan(range(32), 64 * MIB, platform=TRN1).channels == 4
    for nodes, channels in ((2, 1), (3, 2), (4, 2)):
        platform = load_platform("trn2.48xlarge", nodes=nodes)
        assert plan(one_a_node(platform), 64 * MIB, platform=platform).channels == channels


@pytest.mark.parametrize("lane", range(4))
def test_hybrid_ring(lane: int) -> None:
    """node_n == 1, vcore 2, two chip cycles, rank_n == 16, equal device % 4: hybrid, channel_n = 4. High."""
    decided = plan(chips(*range(16), lanes=[lane]), 64 * MIB)
    assert (decided.selected, decided.channels, len(decided.notes)) == (RING, 4, 1)
    off = plan(chips(*range(16), lanes=[lane]), 64 * MIB, settings=Settings(hybrid_ring=False))
    assert (off.selected, off.notes) == (RING, ())


@pytest.mark.parametrize("group", [NODE, chips(*range(4)), chips(*range(8), lanes=[0])])
def test_no_hybrid_ring(group: tuple[int, ...]) -> None:
    """Other groups are not hybrid."""
    assert plan(group, 64 * MIB).notes == ()


def test_no_ring_has_no_chunks() -> None:
    """One rank has no channel, and a hierarchy no flat ring."""
    four = load_platform("trn2.48xlarge", nodes=4)
    assert chunks(plan([7], 64)) is None
    assert chunks(plan(range(256), MIB, platform=four)) is None


# --- dynamic chunks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "applies"), [(64, True), (4 * 64 * 2 * MIB - 4, True), (4 * 64 * 2 * MIB, False), (1 << 30, False)]
)
def test_when_dynamic_chunking_applies(size: int, applies: bool) -> None:
    """When size / channel_n < rank_n x chunk bytes: a convention; reported, never applied."""
    found = chunks(plan(NODE, size))
    assert found is not None
    assert (found.dynamic is not None) is applies


def test_the_dynamic_chunk() -> None:
    """total = chunk x depth; new = total / 32 rounded up to 32 bytes; depth = total / new. Medium."""
    found = chunks(plan(NODE, 64))
    assert found is not None
    assert found.dynamic == (512 * KIB, 32)  # 8 x 2 MiB in 32 parts
    odd = chunks(plan(NODE, 64, settings=Settings(chunk=192, slots=7)))
    assert odd is not None
    assert odd.dynamic == (64, 21)  # 1344 / 32 = 42, rounded up to 64
    assert DYNAMIC_SOURCE.confidence is MEDIUM
    assert ROUNDING == 32


@settings(deadline=None, max_examples=100)
@given(
    chunk=st.integers(1, 1 << 16).map(lambda part: 64 * part), slots=st.integers(3, 32), size=st.integers(1, 1 << 36)
)
def test_chunks_cover_the_buffer(chunk: int, slots: int, size: int) -> None:
    """Passes are as many as needed and no more; a dynamic chunk is whole granules and never deeper than 32."""
    decided = Selector(TRN2, Settings(chunk=chunk, slots=slots)).select(request(NODE, size))
    found = chunks(decided)
    assert found is not None
    each = 64 * found.channels * chunk
    assert (found.passes - 1) * each < size <= found.passes * each
    if found.dynamic is not None:
        part, depth = found.dynamic
        assert part % 32 == 0
        assert part * depth <= chunk * slots < part * (depth + 1)
        assert 1 <= depth <= 32


# --- slices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "size", "count", "expected"),
    [
        (AR, 64 * 100, 1, Slices(1, 128, 128)),
        (AR, 64 * 100, 4, Slices(4, 32, 32)),
        (AR, 64 * 32, 1, Slices(1, 32, 32)),
        (AR, 1, 1, Slices(1, 32, 32)),
        (AG, 64 * 100, 1, Slices(1, 128, 0)),  # AG logs only the copy slice (high)
        (RS, 64 * 100, 2, Slices(2, 0, 64)),
    ],
)
def test_slices(kind: EncOp, size: int, count: int, expected: Slices) -> None:
    """reduce and copy slice = ceil(share / slice_n), rounded up to 32 bytes: a convention."""
    assert slices(plan(NODE, size, kind), count) == expected
    assert SLICE_SOURCE.confidence is CONVENTION
