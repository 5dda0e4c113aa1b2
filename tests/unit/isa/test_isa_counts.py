"""Elements to bytes, against isa §8.3 and §12."""

from __future__ import annotations

import pytest

from rota.errors import UnsupportedError, UsageError
from rota.isa.counts import UNCOUNTED, Counts, byte_counts, element_counts, staged_bytes
from rota.isa.dtypes import Dtype
from rota.isa.enums import EncOp

COUNTED = [kind for kind in EncOp if kind not in UNCOUNTED]
TABLE = {EncOp.ALLGATHER: (1, 8), EncOp.ALLREDUCE: (1, 1), EncOp.REDUCE_SCATTER: (8, 1), EncOp.ALLTOALL: (8, 8)}


@pytest.mark.parametrize("kind", COUNTED)
def test_elements(kind: EncOp) -> None:
    """isa §8.3: gather n, nR; all-reduce n, n; scatter nR, n; all-to-all nR, nR; the others n, n."""
    scale_in, scale_out = TABLE.get(kind, (1, 1))
    assert element_counts(kind, 100, ranks=8) == Counts(100 * scale_in, 100 * scale_out)
    assert byte_counts(kind, 100, Dtype.FP32, ranks=8) == Counts(400 * scale_in, 400 * scale_out)


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_the_two_stages_agree(kind: EncOp, ranks: int) -> None:
    """isa §8.3, §12 row 7: both rules give the same bytes, for an all-to-all when its size comes in scaled, once."""
    whole = byte_counts(kind, 24, Dtype.BFLOAT16, ranks=ranks)
    size = 48 * ranks if kind is EncOp.ALLTOALL else 48
    assert staged_bytes(kind, size, ranks=ranks) == whole


@pytest.mark.parametrize("kind", sorted(UNCOUNTED))
def test_kinds_without_counts(kind: EncOp) -> None:
    """isa §8.3: broadcast and reduce have no arm."""
    for count in (lambda: element_counts(kind, 1, ranks=2), lambda: staged_bytes(kind, 1, ranks=2)):
        with pytest.raises(UnsupportedError, match=f"{kind.name} has no element counts"):
            count()


def test_no_elements() -> None:
    """A collective of no elements is refused, with what was expected."""
    with pytest.raises(UnsupportedError, match="ALLREDUCE: the collective has no elements, expected at least 1"):
        byte_counts(EncOp.ALLREDUCE, 0, Dtype.FP32, ranks=2)


@pytest.mark.parametrize("dtype", [Dtype.FP32R, Dtype.INVALID])
def test_types_without_a_size(dtype: Dtype) -> None:
    """isa §9: a type whose collective size is 0 cannot be counted in bytes."""
    with pytest.raises(UnsupportedError, match="has no transfer size; use fp32"):
        byte_counts(EncOp.ALLGATHER, 1, dtype, ranks=2)


def test_bytes_fit_64_bits_or_are_refused() -> None:
    """The largest count whose scaled bytes fit is taken, one more element is not."""
    largest = ((1 << 64) - 1) // 4
    assert byte_counts(EncOp.ALLREDUCE, largest, Dtype.FP32, ranks=2).input == 4 * largest
    with pytest.raises(
        UnsupportedError, match="18446744073709551616 bytes for 2 ranks, expected at most 1844674407370"
    ):
        byte_counts(EncOp.ALLREDUCE, largest + 1, Dtype.FP32, ranks=2)
    with pytest.raises(UnsupportedError, match="expected at most"):
        byte_counts(EncOp.ALLGATHER, largest, Dtype.FP32, ranks=2)


def test_a_group_has_a_rank() -> None:
    """Fewer than one rank is a usage error."""
    with pytest.raises(UsageError, match="expected at least 1 rank, got 0"):
        element_counts(EncOp.ALLREDUCE, 1, ranks=0)
