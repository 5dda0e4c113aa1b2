"""How a ring cuts a buffer, said without arrays, is how the composer cuts it. Source: select §8; compose §6.1."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.compose.cut import CHUNK_SOURCE, GRANULE_SOURCE, cut
from rota.isa.enums import EncOp
from rota.report import pieces
from rota.report.pieces import pieces_of
from rota.request import COMPOSED
from rota.select.settings import RING_CHUNK


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(COMPOSED),
    ranks=st.integers(1, 9),
    channels=st.integers(1, 5),
    share=st.integers(1, 40_000),
    chunk=st.sampled_from([64, 128, 448, 4096, RING_CHUNK]),
)
def test_the_same_as_the_composers_cut(kind: EncOp, ranks: int, channels: int, share: int, chunk: int) -> None:
    """As many passes, and half-chunks as large."""
    size = share if kind is EncOp.ALLREDUCE else share * ranks
    made = cut(kind, size, ranks=ranks, channels=channels, chunk=chunk)
    said = pieces_of(kind, size, ranks=ranks, channels=channels, chunk=chunk)
    assert (said.groups, said.largest) == (made.groups, made.largest)


def test_the_same_sources() -> None:
    """Both cite the same sections."""
    assert (pieces.CHUNK_SOURCE, pieces.GRANULE_SOURCE) == (CHUNK_SOURCE, GRANULE_SOURCE)
