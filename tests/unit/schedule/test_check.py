"""Every constructor check of schedule §3, each planted once in a schedule that is right, and named in the finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rota.errors import VerifyError
from rota.schedule.ir import (
    MAX_NUMBER,
    MAX_RANKS,
    MAX_SOURCES,
    Buffer,
    Checks,
    Leaf,
    Places,
    Rows,
    Schedule,
    Semaphore,
    Signals,
    Waits,
)
from rota.schedule.text import parse

HEAD = """schedule 1
ranks 2
buffer input 64 user
buffer output 64 user
buffer slot 32
semaphore recv 0
semaphore credit 2
input input
output output
"""
SEND = "0.0 0.0 send ?credit>=1-1 : 0.input+0 -> 1.slot+0 32 !1.recv+1"
REDUCE = "1.0 0.1 recv_reduce_copy ?recv>=1-1 : 1.slot+0 + 1.input+0 -> 1.output+0 32 add !0.credit+1"
LAST = "0.0 0.2 direct_copy : 0.input+32 -> 0.output+32 + 1.output+32 32"
SENDER, REDUCER, COPIER = (
    "row 0 (rank 0 channel 0 leg 0 step 0 part 0 send)",
    "row 1 (rank 1 channel 0 leg 0 step 1 part 0 recv_reduce_copy)",
    "row 2 (rank 0 channel 0 leg 0 step 2 part 0 direct_copy)",
)
TABLES = {"rows": Rows, "sources": Places, "targets": Places, "waits": Waits, "signals": Signals}


def schedule(*rows: str) -> Schedule:
    return parse(HEAD + "\n".join(rows or (SEND, REDUCE, LAST)) + "\n")


def column(table: Any, name: str, *values: Any) -> Any:
    """Return the table with other values in one column, stored as the column is."""
    columns = {slot: getattr(table, slot) for slot in table.__slots__}
    return type(table)(**columns | {name: np.array(values, columns[name].dtype)})


def findings(change: Any) -> list[str]:
    with pytest.raises(VerifyError) as error:
        change()
    assert str(error.value) == f"not a schedule: {error.value.findings[0]}"
    return list(error.value.findings)


def only(*rows: str) -> str:
    """Return the one finding of a schedule of these rows."""
    found = findings(lambda: schedule(*rows))
    assert len(found) == 1, found
    return found[0]


def planted(table: str, name: str, *values: Any, **other: Any) -> list[str]:
    """Return the findings of the right schedule with other values in one column."""
    right = schedule()
    return findings(lambda: replace(right, **{table: column(getattr(right, table), name, *values)}, **other))


def test_the_unplanted_schedule_is_right() -> None:
    """The base of every plant passes all checks, and its columns are read-only."""
    right = schedule()
    assert (len(right), right.sources.offset.size, right.targets.offset.size) == (3, 4, 4)
    assert not any(stored.flags.writeable for stored in right.columns())


# --- columns and pointers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "name"),
    [(table, name) for table, kind in TABLES.items() for name in kind.__slots__ if name != "ptr"],
)
def test_column_lengths(table: str, name: str) -> None:
    """Columns of a table are equally long; the message names the table and the column."""
    whole = getattr(schedule(), table)
    with pytest.raises(ValueError, match=rf"columns of {TABLES[table].__name__} differ in length: .*'{name}': \(0,\)"):
        column(whole, name)


@pytest.mark.parametrize("table", ["sources", "targets", "waits", "signals"])
@pytest.mark.parametrize("plant", ["starts late", "ends early", "runs back", "too short", "none at all"])
def test_pointers(table: str, plant: str) -> None:
    """Pointers run monotonely from 0 to the number of entries, one for each row and one more."""
    ptr = getattr(schedule(), table).ptr.tolist()
    match plant:
        case "starts late":
            ptr[0] = 1
        case "ends early":
            ptr[-1] -= 1
        case "runs back":
            ptr[1], ptr[2] = ptr[2] + 1, ptr[1]
        case "too short":
            del ptr[1]
        case "none at all":
            ptr = []
    (finding,) = planted(table, "ptr", *ptr)
    assert finding.startswith(f"pointers of {table} do not run from 0 to ")


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, kind in TABLES.items() for name in kind.__slots__]
)
def test_stored_types(table: str, name: str) -> None:
    """A column is stored as schedule §1 says, so that no negative number hides in it and a row stays small."""
    right = schedule()
    whole = getattr(right, table)
    columns = {slot: getattr(whole, slot) for slot in whole.__slots__}
    wrong = TABLES[table](**columns | {name: columns[name].astype(np.float64)})
    (finding,) = findings(lambda: replace(right, **{table: wrong}))
    assert finding.startswith(f"column {name} of {TABLES[table].__name__} is float64, expected ")


# --- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0, -1, MAX_RANKS + 1])
def test_number_of_ranks(ranks: int) -> None:
    """Above 65,535 ranks a wider dtype is needed: refuse, do not wrap."""
    right = schedule()
    found = findings(lambda: replace(right, ranks=ranks))
    assert found[0] == f"{ranks} ranks, expected 1 to 65535"


@pytest.mark.parametrize("which", ["input", "output"])
@pytest.mark.parametrize("index", [-1, 3])
def test_ends_are_declared(which: str, index: int) -> None:
    """Input and output are declared buffers."""
    right = schedule()
    assert findings(lambda: replace(right, **{which: index})) == [
        f"{which} buffer {index}, expected one of the 3 declared"
    ]


@pytest.mark.parametrize(
    ("buffer", "sentence"),
    [
        (Buffer("no name", 8), "buffer name 'no name', expected letters"),
        (Buffer("", 8), "buffer name '', expected letters"),
        (Buffer("1st", 8), "buffer name '1st', expected letters"),
        (Buffer("input", 8), "buffer input is declared twice"),
        (Buffer("more", -1), "buffer more of -1, expected 0 to"),
        (Buffer("more", MAX_NUMBER + 1), f"buffer more of {MAX_NUMBER + 1}, expected 0 to"),
    ],
)
def test_declared_buffers(buffer: Buffer, sentence: str) -> None:
    """A buffer has a name the text form can print, once, and a size it can print."""
    right = schedule()
    (finding,) = findings(lambda: replace(right, buffers=(*right.buffers, buffer)))
    assert finding.startswith(sentence)


@pytest.mark.parametrize(
    ("semaphore", "sentence"),
    [
        (Semaphore("a b"), "semaphore name 'a b', expected letters"),
        (Semaphore("recv"), "semaphore recv is declared twice"),
        (Semaphore("more", -1), "semaphore more of -1, expected 0 to"),
    ],
)
def test_declared_semaphores(semaphore: Semaphore, sentence: str) -> None:
    """The same of semaphores and their initial values; a semaphore may be called like a buffer."""
    right = schedule()
    (finding,) = findings(lambda: replace(right, semaphores=(*right.semaphores, semaphore)))
    assert finding.startswith(sentence)
    assert len(replace(right, semaphores=(*right.semaphores, Semaphore("input"))).semaphores) == 3


# --- ids and bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "name", "values", "finding"),
    [
        ("rows", "rank", (0, 1, 2), f"{COPIER.replace('rank 0', 'rank 2')}: rank does not exist"),
        ("rows", "leaf", (0, 200, 7), f"{REDUCER.replace('recv_reduce_copy', 'leaf 200')}: leaf does not exist"),
        ("rows", "op", (0, 5, 0), f"{REDUCER}: operation does not exist"),
        ("rows", "size", (32, 32, -1), f"{COPIER}: size is negative"),
        ("waits", "semaphore", (1, 2), f"{REDUCER}: waits on an undeclared semaphore"),
        ("signals", "semaphore", (0, 2), f"{REDUCER}: signals an undeclared semaphore"),
        ("signals", "rank", (2, 0), f"{SENDER}: signals a rank that does not exist"),
        ("sources", "rank", (0, 1, 2, 0), f"{REDUCER}: source rank does not exist"),
        ("sources", "buffer", (0, 2, 0, 3), f"{COPIER}: source buffer is not declared"),
        ("targets", "rank", (2, 1, 0, 1), f"{SENDER}: target rank does not exist"),
        ("targets", "buffer", (2, 1, 1, 9), f"{COPIER}: target buffer is not declared"),
    ],
)
def test_ids(table: str, name: str, values: tuple[int, ...], finding: str) -> None:
    """Ranks, buffers, semaphores, leaves and operations that a row names exist."""
    assert planted(table, name, *values) == [finding]


@pytest.mark.parametrize("offset", [33, 64, -1, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("table", ["sources", "targets"])
def test_bounds(table: str, offset: int) -> None:
    """0 <= offset and offset + size <= buffer, also where the sum leaves 64 bits; the last byte is inside."""
    assert planted(table, "offset", 0, 0, 0, offset) == [f"{COPIER}: {table[:-1]} lies outside its buffer"]
    right = schedule()
    assert len(replace(right, **{table: column(getattr(right, table), "offset", 0, 0, 0, 32)}))


# --- movement ---------------------------------------------------------------------------------------------------------


def without(table: Places, row: int) -> Places:
    """Return the table without the entries of one row."""
    first, last = int(table.ptr[row]), int(table.ptr[row + 1])
    keep = np.ones(table.offset.size, np.bool_)
    keep[first:last] = False
    ptr = table.ptr - np.where(np.arange(table.ptr.size) > row, last - first, 0)
    return Places(ptr.astype(np.int32), *(getattr(table, name)[keep] for name in ("rank", "buffer", "offset")))


def test_size_without_sources_or_targets() -> None:
    """Size > 0 if and only if there are sources and targets: a row with bytes and one of them missing is refused."""
    right = schedule()
    assert findings(lambda: replace(right, sources=without(right.sources, 2))) == [
        f"{COPIER}: a size without a source, or a source without a size"
    ]
    assert findings(lambda: replace(right, targets=without(right.targets, 2))) == [
        f"{COPIER}: a size without a target, or a target without a size"
    ]


def test_sources_and_targets_without_size() -> None:
    """A row of no bytes has no places."""
    found = planted("rows", "size", 32, 32, 0)
    assert found == [
        f"{COPIER}: a size without a source, or a source without a size",
        f"{COPIER}: a size without a target, or a target without a size",
    ]
    nothing = replace(
        schedule(),
        rows=column(schedule().rows, "size", 32, 32, 0),
        sources=without(schedule().sources, 2),
        targets=without(schedule().targets, 2),
    )
    assert nothing.rows.size.tolist() == [32, 32, 0]


def test_several_sources_need_an_operation() -> None:
    """More than one source needs an op; one source may have one."""
    assert planted("rows", "op", 0, 0, 0) == [f"{REDUCER}: several sources and no operation"]
    assert schedule(SEND, REDUCE, LAST + " max").rows.op.tolist() == [0, 1, 3]


def test_an_operation_needs_data() -> None:
    """A row that moves nothing combines nothing; the text form could not print it."""
    right = schedule(SEND, REDUCE, "0.0 0.2 direct_recv")
    assert findings(lambda: replace(right, rows=column(right.rows, "op", 0, 1, 1))) == [
        f"{COPIER.replace('direct_copy', 'direct_recv')}: an operation and no data"
    ]


def test_at_most_32_sources() -> None:
    """A row has at most 32 sources. Source: design §2 (20)."""
    row = "0.0 0.2 direct_copy : {} -> 0.output+32 1 add"
    sources = [f"0.input+{i}" for i in range(MAX_SOURCES + 1)]
    assert len(schedule(SEND, REDUCE, row.format(" + ".join(sources[:MAX_SOURCES])))) == 3
    assert only(SEND, REDUCE, row.format(" + ".join(sources))) == f"{COPIER}: more than 32 sources"


@pytest.mark.parametrize("second", ["0.output+0", "0.output+1", "0.output+31"])
def test_overlapping_targets(second: str) -> None:
    """No two targets of a row are equal or overlap."""
    row = "0.0 0.2 direct_copy : 0.input+32 -> {} 32"
    for pair in (f"0.output+0 + {second}", f"{second} + 0.output+0", f"0.output+0 + 1.output+0 + {second}"):
        assert only(SEND, REDUCE, row.format(pair)) == f"{COPIER}: two targets overlap"


@pytest.mark.parametrize("second", ["0.output+32", "1.output+0", "0.slot+0"])
def test_targets_side_by_side(second: str) -> None:
    """Targets may touch, or lie in other buffers or on other ranks."""
    assert len(schedule(SEND, REDUCE, f"0.0 0.2 direct_copy : 0.input+32 -> 0.output+0 + {second} 32")) == 3


@pytest.mark.parametrize("offset", [1, 31])
def test_a_source_partly_overlaps_a_target(offset: int) -> None:
    """A source overlaps a target of its row only if identical, on either side and in any place of the list."""
    row = "0.0 0.2 direct_copy : {} -> {} 32{}"
    overlap = f"{COPIER}: a source partly overlaps a target"
    assert only(SEND, REDUCE, row.format("0.output+0", f"0.output+{offset}", "")) == overlap
    assert only(SEND, REDUCE, row.format(f"0.output+{offset}", "0.output+0", "")) == overlap
    sources, targets = f"1.input+0 + 0.output+{offset}", "1.output+0 + 0.output+0"
    assert only(SEND, REDUCE, row.format(sources, targets, " add")) == overlap


@pytest.mark.parametrize("source", ["0.output+0", "0.output+32", "1.output+1", "0.input+1"])
def test_a_source_beside_or_upon_a_target(source: str) -> None:
    """Identical bytes, bytes beside, another rank and another buffer are no partial overlap."""
    assert len(schedule(SEND, REDUCE, f"0.0 0.2 direct_copy : 0.input+0 + {source} -> 0.output+0 32 add")) == 3


# --- semaphores -------------------------------------------------------------------------------------------------------

NEEDS = "wait needs at_least >= 1 and 0 <= subtract <= at_least"


@pytest.mark.parametrize(("at_least", "subtract"), [(0, 0), (-1, 0), (1, 2), (1, -1)])
def test_wait_ranges(at_least: int, subtract: int) -> None:
    """at_least >= 1 and 0 <= subtract <= at_least."""
    right = schedule()
    waits = column(column(right.waits, "at_least", at_least, 1), "subtract", subtract, 1)
    assert findings(lambda: replace(right, waits=waits)) == [f"{SENDER}: {NEEDS}"]


@pytest.mark.parametrize("add", [0, -1])
def test_signal_range(add: int) -> None:
    """add >= 1."""
    assert planted("signals", "add", 1, add) == [f"{REDUCER}: signal adds less than 1"]


def test_two_waits_on_one_semaphore() -> None:
    """Two waits on one semaphore in a row are ambiguous: tested together, or in turn?"""
    twice = SEND.replace("?credit>=1-1", "?credit>=1-1 ?credit>=1-0")
    assert only(twice, REDUCE, LAST) == f"{SENDER}: two waits on one semaphore in a row"
    apart = SEND.replace("?credit>=1-1", "?credit>=1-1 ?recv>=1-0")
    give = "1.0 0.0 post_send !0.recv+1"
    with pytest.raises(VerifyError, match="semaphore recv of rank 0 ends \\+1 away"):
        schedule(give, apart, REDUCE, LAST)  # two semaphores in a row are fine; only the balance is not


ON_TWO_QUEUES = ("0.0 0.0 post_send ?credit>=1-{} !0.credit+{}", "0.1 0.1 post_send ?credit>=1-{} !0.credit+{}")


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 0), (0, 1)])
def test_one_consumer_queue(first: int, second: int) -> None:
    """A semaphore is waited on by one queue only where a wait subtracts; the row in the other queue is named."""
    rows = [row.format(n, n) for row, n in zip(ON_TWO_QUEUES, (first, second), strict=True)]
    rows = [row.replace(" !0.credit+0", "") for row in rows]
    assert only(*rows) == (
        "row 1 (rank 0 channel 1 leg 0 step 1 part 0 post_send): waits on a semaphore that another queue consumes"
    )


def test_several_queues_may_look() -> None:
    """Several queues may wait if none subtracts, and equal names on two ranks are two semaphores."""
    looks = [row.replace(" !0.credit+{}", "").format(0) for row in ON_TWO_QUEUES]
    assert len(schedule(*looks)) == 2
    other = "1.1 0.1 post_send ?credit>=1-1 !1.credit+1"
    assert len(schedule(ON_TWO_QUEUES[0].format(1, 1), other)) == 2


# --- balance and row order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        (
            (SEND.replace(" !1.recv+1", " !1.recv+3"), REDUCE, LAST),
            f"semaphore recv of rank 1 ends +2 away from its initial value; the last row that touches it is {REDUCER}",
        ),
        (
            (SEND, REDUCE.replace(" !0.credit+1", ""), LAST),
            f"semaphore credit of rank 0 ends -1 away from its initial value; the last row that touches it is {SENDER}",
        ),
    ],
)
def test_balance(rows: tuple[str, ...], finding: str) -> None:
    """initial + adds - subtractions = initial for each semaphore of each rank, so that a schedule can run again."""
    assert only(*rows) == finding


def test_the_balance_can_be_left_out() -> None:
    """UNBALANCED leaves out the balance and nothing else."""
    right = schedule()
    adds = column(right.signals, "add", 3, 1)
    assert len(replace(right, signals=adds, checks=Checks.UNBALANCED)) == 3
    assert planted("waits", "subtract", 1, 2, checks=Checks.UNBALANCED) == [f"{REDUCER}: {NEEDS}"]


def test_row_order() -> None:
    """A wait at row i has its additions in rows before i: the stored order is an execution."""
    assert only(REDUCE, SEND, LAST) == (
        f"{REDUCER.replace('row 1', 'row 0')} waits for recv to have received 1, but the rows before it give only 0"
    )


def test_a_row_does_not_release_itself() -> None:
    """Signals are performed at completion, so a row's own signal cannot release its wait."""
    assert "waits for recv to have received 1" in only("0.0 0.0 post_send ?recv>=1-1 !0.recv+1")


def test_thresholds_count_what_earlier_waits_took() -> None:
    """T = at_least + subtractions of earlier waits - initial: with credit 2, the third wait needs one addition."""
    take = "0.0 0.{} post_send ?credit>=1-1"
    back = "1.0 0.{} post_recv !0.credit+{}"
    assert len(schedule(take.format(0), take.format(1), back.format(2, 3), take.format(3))) == 4
    found = only(take.format(0), take.format(1), take.format(3), back.format(2, 3))
    assert found.startswith("row 2 (rank 0 channel 0 leg 0 step 3")
    assert "waits for credit to have received 1, but the rows before it give only 0" in found


def test_at_most_eight_findings() -> None:
    """A schedule with many defects names the first eight."""
    rows = [f"0.0 0.{i} direct_copy : 0.input+64 -> 0.output+0 8" for i in range(20)]
    found = findings(lambda: schedule(*rows))
    assert len(found) == 8
    assert found[7].startswith("row 7 ")


def test_every_leaf_has_a_name() -> None:
    """Messages call a row by rank, queue, leg, step, part and leaf."""
    for leaf in Leaf:
        right = replace(schedule(), rows=column(schedule().rows, "leaf", leaf, 2, 7))
        assert right.name(0).endswith(f" {leaf.name.lower()})")
