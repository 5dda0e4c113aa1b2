"""Elements of a collective to elements and bytes of its input and output, by the one place that scales them.

A word counts one rank's unit. `element_counts` multiplies by the ranks where the kind asks for it, and nothing after
it does: an all-to-all is scaled once, here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.dtypes import SIZE_SOURCE, Dtype, short_name, size_of
from rota.isa.enums import PTC_INPUT_SCALE_MASK, PTC_OUTPUT_SCALE_MASK, EncOp

COUNT_SOURCE: Final = Source("isa", "8.3", HIGH)
EMPTY_SOURCE: Final = Source("isa", "8.3", CONVENTION)
ONCE_SOURCE: Final = Source("isa", "12 row 7", HIGH)  # an all-to-all is scaled once, where elements are counted
OVERFLOW_SOURCE: Final = Source("isa", "5.2", CONVENTION)
MAX_BYTES: Final = (1 << 64) - 1

# The kinds without an arm where bytes are counted.
UNCOUNTED: Final = frozenset({EncOp.BROADCAST, EncOp.REDUCE, EncOp.INVALID})


@dataclass(frozen=True, slots=True)
class Counts:
    """What a rank reads and what it ends up with: elements, or bytes."""

    input: int
    output: int


def element_counts(kind: EncOp, num_elements: int, *, ranks: int) -> Counts:
    """Return the elements of the input and of the output of one rank.

    Args:
        num_elements: as the word says: one rank's shard of an all-gather, reduce-scatter or all-to-all, the whole
            tensor of the others.

    Raises:
        UnsupportedError: the kind is not counted, or there are no elements.
        UsageError: fewer than one rank.

    Source:
        isa §8.3, high.
    """
    if kind in UNCOUNTED:
        raise UnsupportedError(f"{kind.name} has no element counts; it is not planned", source=COUNT_SOURCE)
    if ranks < 1:
        raise UsageError(f"element counts of {kind.name}: expected at least 1 rank, got {ranks}")
    if num_elements < 1:
        raise UnsupportedError(
            f"{kind.name}: the collective has no elements, expected at least 1, got {num_elements}",
            source=EMPTY_SOURCE,
        )
    return Counts(
        num_elements * (ranks if PTC_INPUT_SCALE_MASK >> kind & 1 else 1),
        num_elements * (ranks if PTC_OUTPUT_SCALE_MASK >> kind & 1 else 1),
    )


def byte_counts(kind: EncOp, num_elements: int, dtype: Dtype, *, ranks: int) -> Counts:
    """Return the bytes of the input and of the output of one rank; `num_elements` as in `element_counts`.

    Raises:
        UnsupportedError: as `element_counts`; or the type has no transfer size, or the bytes do not fit 64 bits.
        UsageError: fewer than one rank.
    """
    elements = element_counts(kind, num_elements, ranks=ranks)
    size = size_of(dtype)
    if not size:
        raise UnsupportedError(f"{kind.name}: {short_name(dtype)} has no transfer size; use fp32", source=SIZE_SOURCE)
    most = max(elements.input, elements.output) * size
    if most > MAX_BYTES:
        raise UnsupportedError(
            f"{kind.name}: {num_elements} elements of {short_name(dtype)} are {most} bytes for {ranks} ranks, "
            f"expected at most {MAX_BYTES}",
            source=OVERFLOW_SOURCE,
        )
    return Counts(elements.input * size, elements.output * size)


def staged_bytes(kind: EncOp, size: int, *, ranks: int) -> Counts:
    """Return input and output bytes by the rule of the second stage, from the size the first stage hands on.

    An all-to-all comes already scaled, and is not scaled again.

    Raises:
        UnsupportedError: the kind has no rule.

    Source:
        isa §8.3, §12 row 7, high.
    """
    if kind in UNCOUNTED:
        raise UnsupportedError(f"{kind.name} has no element counts; it is not planned", source=COUNT_SOURCE)
    match kind:
        case EncOp.ALLGATHER:
            return Counts(size, ranks * size)
        case EncOp.REDUCE_SCATTER:
            return Counts(ranks * size, size)
        case _:
            return Counts(size, size)
