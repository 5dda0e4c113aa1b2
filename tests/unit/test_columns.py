"""Columns and CSR lists, each against the loop it stands for."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.columns import I64, U8, Workspace, freeze, freeze_columns, owners, pointers, ranges, running_count

COUNTS = st.lists(st.integers(0, 5), max_size=20)


@dataclass(frozen=True)
class Pair:
    """Two columns."""

    left: I64
    right: I64


def column(*values: int) -> I64:
    return np.array(values, np.int64)


def test_frozen_columns_cannot_be_written() -> None:
    """A table's columns are read-only once it is made, and so are views of them."""
    pair = Pair(column(1, 2), column(3, 4))
    freeze_columns(pair)
    with pytest.raises(ValueError, match="read-only"):
        pair.left[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        pair.right[:1][0] = 5


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (column(1), column(1, 2)),
        (column(1).reshape(1, 1), column(1).reshape(1, 1)),
        (column(1), np.int64(1).reshape(())),
    ],
)
def test_columns_of_unequal_length_are_named(left: I64, right: I64) -> None:
    """Columns of a table are one-dimensional and equally long; the message names the table and the lengths."""
    with pytest.raises(ValueError, match=r"columns of Pair differ in length: {'left': .*'right': "):
        freeze_columns(Pair(left, right))


def test_freeze_is_for_one_array() -> None:
    """A frozen array refuses writes; a copy of it takes them."""
    array = column(1)
    freeze(array)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2
    copy = array.copy()
    copy[0] = 2
    assert (array[0], copy[0]) == (1, 2)


@settings(deadline=None)
@given(counts=COUNTS)
def test_pointers_are_where_lists_start(counts: list[int]) -> None:
    """`ptr[i]` is the sum of the lengths before list i, and the last is the total."""
    ptr = pointers(np.array(counts, np.int64))
    assert ptr.tolist() == [sum(counts[:i]) for i in range(len(counts) + 1)]
    assert ptr.dtype == np.int64


@settings(deadline=None)
@given(counts=COUNTS)
def test_owners_undo_pointers(counts: list[int]) -> None:
    """Each element belongs to the list its place lies in."""
    expected = [i for i, count in enumerate(counts) for _ in range(count)]
    assert owners(pointers(np.array(counts, np.int64)).astype(np.int32)).tolist() == expected


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5)), max_size=20),
    narrow=st.booleans(),
    alike=st.booleans(),
)
def test_ranges_are_concatenated_aranges(pairs: list[tuple[int, int]], narrow: bool, alike: bool) -> None:
    """`ranges` is the concatenation of `range(start, start + count)`, also when columns are narrow, or counts equal."""
    kind = np.int8 if narrow else np.int64
    pairs = [(start, pairs[0][1] if alike else count) for start, count in pairs]
    starts, counts = (np.array([pair[i] for pair in pairs], kind) for i in (0, 1))
    found = ranges(starts, counts)
    assert found.tolist() == [v for start, count in pairs for v in range(start, start + count)]
    assert found.dtype == np.int64


@pytest.mark.parametrize("expected", [0, 1 << 20, 70 << 20])
def test_a_workspace_gives_zeros_again_and_again(expected: int) -> None:
    """Whatever was expected and written before, what is asked for is all 0, less or more than what was expected."""
    workspace = Workspace(expected)
    for size in (65 << 20, 3, 71 << 20, 65 << 20):
        memory = workspace.zeros(size)
        assert memory.size == size
        assert not memory.any()
        memory[:] = 1


def test_a_workspace_waits_for_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given out is not touched any more, since it may hold something by then."""
    touched: list[int] = []

    def late(pages: U8) -> None:
        time.sleep(0.1)
        touched.append(pages.size)

    monkeypatch.setattr("rota.columns._touch", late)
    Workspace(64 << 20).zeros(8)
    assert touched == [64 << 20]


@settings(deadline=None)
@given(keys=st.lists(st.integers(0, 4), max_size=40))
def test_running_count_counts_earlier_equal_keys(keys: list[int]) -> None:
    """The n-th occurrence of a key has n - 1 before it."""
    expected = [keys[:i].count(key) for i, key in enumerate(keys)]
    assert running_count(np.array(keys, np.int64)).tolist() == expected
