"""Records of the network proxy: operations, what each sends and what each receives, as columns and as bytes.

A section holds those of one stream processor: a header, its operations, then the send list and the receive list of
each operation, in their order, every list with a terminator. What a proxy does with them is in `device.network`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from rota.columns import I64, U32, U64, Array, Bool, freeze_columns, owners, pointers, ranges, running_count
from rota.errors import DecodeError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.layout import Buffer, Field, Layout
from rota.isa.semaphores import MAX_VALUE

SOURCE: Final = Source("device", "13", HIGH)
ENTRY_SOURCE: Final = Source("device", "13, places inside an entry", CONVENTION)

LOOP_SIZE: Final = 512
"""Send index and receive index are separate, both modulo this. Source: device §13, high."""
LEAST_CREDITS: Final = 1
MOST_CREDITS: Final = 511
"""Initial send credits and ending receive credits, both ends included. Source: device §13, high."""
ENTRY_SIGNALS: Final = 2
"""Semaphores one entry can signal, which is what 72 and 48 bytes have room for. Source: device §13, convention."""
PROXY_QUEUE: Final = 128
"""Queues below can have a proxy; that of queue q is queue 128 + q of a schedule. Source: device §13, convention."""
NETWORK_ALIGNMENT: Final = 8
"""Sections have a multiple of so many bytes, as all their records do. Source: device §13, convention."""
NOBODY: Final = -1
"""The rank in a terminator. Source: device §13, high."""


class Mark(IntEnum):
    """What an entry is. Source: device §13, high."""

    TRANSFER = 0
    OP_COMPLETE = 1
    EXEC_COMPLETE = 2


SECTION_HEADER: Final = Layout("network_section", size=16, source=ENTRY_SOURCE, fields=(
    # name                     at  type   meaning
    Field("operations",         0, "<u4", "operation records"),
    Field("sends",              4, "<u4", "send entries, terminators included"),
    Field("receives",           8, "<u4", "receive entries, terminators included"),
))  # fmt: skip

OPERATION: Final = Layout("network_operation", size=96, source=SOURCE, fields=(
    # name                     at  type   meaning
    Field("sema_shift_offset",  0, "<u2", "the handshake counts in steps of 1 << this"),
    Field("early_send",         2, "u1",  "1: a send completes before the data have arrived; not written"),
    Field("early_recv",         3, "u1",  "1: a receive is posted before its turn; not written"),
    Field("send_handshake",     8, "<u8", "semaphore that says the data of a send are there; 0 without sends"),
    Field("send_complete",     16, "<u8", "semaphore of completed sends; not written, entries name their own"),
    Field("recv_handshake",    24, "<u8", "semaphore of posted receives; not written"),
    Field("recv_complete",     32, "<u8", "semaphore of completed receives; not written, entries name their own"),
    Field("tx_count",          40, "<u4", "sends, without the terminator"),
    Field("rx_count",          44, "<u4", "receives, without the terminator"),
    Field("index_loop_size",   48, "<u4", "indices are modulo this, 512"),
    Field("initial_send_credits", 52, "<u4", "sends that may be under way at once, 1 to 511"),
    Field("ending_recv_credits", 56, "<u4", "what they are again at the end"),
    Field("element_size",      64, "<u8", "bytes of an element"),
    Field("variable_peer",     73, "u1",  "1: the sends go to several ranks"),
    Field("basic_block_id",    76, "<u4", "basic block, 0"),
    Field("relative_op_index", 80, "<u4", "control entry the operation belongs to"),
    Field("unrolled_count",    84, "<u4", "steps by which a row of the channel raises the handshake: its folds"),
    Field("channel",           88, "<u4", "queue whose rows the sends follow"),
))  # fmt: skip

SEND: Final = Layout("network_send", size=72, source=ENTRY_SOURCE, fields=(
    # name                     at  type   meaning
    Field("mark",               0, "u1",  "Mark"),
    Field("signals",            1, "u1",  "semaphores signalled when the data are there"),
    Field("net_index",          2, "<u2", "running number of the channel's sends, modulo 512"),
    Field("op_index",           4, "<u4", "operation of the section"),
    Field("rank",               8, "<i4", "member that receives"),
    Field("follows",           12, "u1",  "1: what it sends is there when that of the send before is"),
    Field("source",            16, "<u8", "first byte, as the sender sees it; 0 without data"),
    Field("target",            24, "<u8", "first byte, as the receiver sees it; 0 without data"),
    Field("size",              32, "<u8", "bytes"),
    Field("semaphore",         40, f"{ENTRY_SIGNALS}<u8", "INC address, as the receiver sees it; 0 for none"),
    Field("value",             56, f"{ENTRY_SIGNALS}<u4", "what is added"),
))  # fmt: skip

RECEIVE: Final = Layout("network_receive", size=48, source=ENTRY_SOURCE, fields=(
    # name                     at  type   meaning
    Field("mark",               0, "u1",  "Mark"),
    Field("signals",            1, "u1",  "semaphores signalled when the data are there"),
    Field("net_index",          2, "<u2", "running number of the channel's receives, modulo 512"),
    Field("op_index",           4, "<u4", "operation of the section"),
    Field("rank",               8, "<i4", "member that sends"),
    Field("target",            16, "<u8", "first byte, as the receiver sees it; 0 without data"),
    Field("size",              24, "<u8", "bytes"),
    Field("semaphore",         32, f"{ENTRY_SIGNALS}<u8", "INC address, as the receiver sees it; 0 for none"),
))  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """What the proxy of one queue does for one control entry, one row each, by entry and channel.

    Attributes:
        entry: control entry.
        channel: queue whose rows the sends follow.
        handshake: READ address of the semaphore those rows raise; 0 without sends.
        shift, steps: one row raises it by `steps << shift`.
        sends, receives: how many there are.
        credits: sends under way at once.
        element_size: bytes of an element.
    """

    entry: I64
    channel: I64
    handshake: U64
    shift: I64
    steps: I64
    sends: I64
    receives: I64
    credits: I64
    element_size: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Transfers to other members, by operation; a semaphore of 0 is none.

    Attributes:
        follows: 1 where a send is of the same row as the one before it, and so waits for a credit alone.
    """

    rank: I64
    follows: I64
    source: U64
    target: U64
    size: I64
    semaphore_0: U64
    semaphore_1: U64
    value_0: U32
    value_1: U32

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class Receives:
    """Transfers from other members, by operation, member, and order in which that sends them."""

    rank: I64
    target: U64
    size: I64
    semaphore_0: U64
    semaphore_1: U64

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class NetworkSection:
    """All records of one stream processor; sends and receives of an operation are as many rows as it says."""

    operations: Operations
    sends: Sends
    receives: Receives

    @property
    def send_operation(self) -> I64:
        """Return the operation of each send."""
        return owners(pointers(self.operations.sends))

    @property
    def receive_operation(self) -> I64:
        """Return the operation of each receive."""
        return owners(pointers(self.operations.receives))

    @property
    def send_index(self) -> I64:
        """Return the index of each send: how many its channel has sent before, modulo 512."""
        return running_count(self.operations.channel[self.send_operation]) % LOOP_SIZE

    @property
    def receive_index(self) -> I64:
        """Return the index of each receive: how many its channel has received before, modulo 512."""
        return running_count(self.operations.channel[self.receive_operation]) % LOOP_SIZE


_OPERATION_COLUMNS: Final = {
    "entry": "relative_op_index",
    "channel": "channel",
    "handshake": "send_handshake",
    "shift": "sema_shift_offset",
    "steps": "unrolled_count",
    "sends": "tx_count",
    "receives": "rx_count",
    "credits": "initial_send_credits",
    "element_size": "element_size",
}
_SEND_COLUMNS: Final = {name: name for name in ("rank", "follows", "source", "target", "size")}
_RECEIVE_COLUMNS: Final = {name: name for name in ("rank", "target", "size")}
_ADDRESSES: Final = ("handshake", "source", "target")


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_network(section: NetworkSection) -> bytes:
    """Return the bytes of a section.

    Raises:
        UsageError: a value does not fit its field, or is none that `decode_network` takes.
    """
    given = section.operations
    operations = np.zeros(given.entry.size, OPERATION.dtype)
    for name, field in _OPERATION_COLUMNS.items():
        _put(operations, field, getattr(given, name), "network_operation")
    operations["index_loop_size"] = LOOP_SIZE
    operations["ending_recv_credits"] = operations["initial_send_credits"]
    operations["variable_peer"] = _several(given.sends, section.sends.rank)
    sends, moved = _with_terminators(SEND, given.sends, section.send_index)
    for name, field in _SEND_COLUMNS.items():
        _put(sends, field, getattr(section.sends, name), "network_send", moved)
    receives, taken = _with_terminators(RECEIVE, given.receives, section.receive_index)
    for name, field in _RECEIVE_COLUMNS.items():
        _put(receives, field, getattr(section.receives, name), "network_receive", taken)
    for k in range(ENTRY_SIGNALS):
        sends["semaphore"][moved, k] = getattr(section.sends, f"semaphore_{k}")
        sends["value"][moved, k] = getattr(section.sends, f"value_{k}")
        receives["semaphore"][taken, k] = getattr(section.receives, f"semaphore_{k}")
    sends["signals"] = (sends["semaphore"] != 0).sum(axis=1)
    receives["signals"] = (receives["semaphore"] != 0).sum(axis=1)
    header = SECTION_HEADER.encode(operations=operations.size, sends=sends.size, receives=receives.size)
    out = b"".join((header, operations.tobytes(), sends.tobytes(), receives.tobytes()))
    try:
        decode_network(out)
    except DecodeError as error:
        raise UsageError(f"these are no network records: {error}") from None
    return out


def _put(records: Array, field: str, column: Array, name: str, at: I64 | None = None) -> None:
    """Write a column into a field of some records; a value that does not fit is refused, never wrapped."""
    limits = np.iinfo(records[field].dtype)
    if column.size and (int(column.min()) < limits.min or int(column.max()) > limits.max):
        value = int(column.min()) if int(column.min()) < limits.min else int(column.max())
        raise UsageError(f"{name}.{field}: expected a value from {limits.min} to {limits.max}, got {value}")
    records[field][slice(None) if at is None else at] = column


def _with_terminators(layout: Layout, counts: I64, index: I64) -> tuple[Array, I64]:
    """Return entries with a terminator behind those of each operation, and where the transfers are among them."""
    number = np.arange(counts.size)
    records = np.zeros(int(counts.sum()) + counts.size, layout.dtype)
    at = np.arange(index.size) + owners(pointers(counts))
    records["op_index"] = np.repeat(number, counts + 1)
    end = pointers(counts + 1)[1:] - 1
    records["mark"][end] = Mark.OP_COMPLETE
    records["rank"][end] = NOBODY
    records["net_index"][at] = index
    return records, at


def _several(counts: I64, rank: I64) -> Bool:
    """Return which lists name several ranks."""
    out = np.zeros(counts.size, np.bool_)
    owner = owners(pointers(counts))
    first = pointers(counts)[:-1][owner]
    out[owner[rank != rank[first]]] = True
    return out


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_network(data: Buffer) -> NetworkSection:
    """Return the records of a section.

    Raises:
        DecodeError: a list, a mark, an index or a field is not as `encode_network` writes it.
    """
    head = SECTION_HEADER.decode(data)
    sizes = (
        head["operations"] * OPERATION.size,
        head["sends"] * SEND.size,
        head["receives"] * RECEIVE.size,
    )
    total = SECTION_HEADER.size + sum(sizes)
    if total != memoryview(data).nbytes:
        got = f"{memoryview(data).nbytes} bytes"
        raise DecodeError("network section", offset=0, expected=f"{total} bytes as its header says", got=got)
    if SECTION_HEADER.reserved(bytes(data[: SECTION_HEADER.size])) is not None or not head["operations"]:
        raise DecodeError("network section", offset=0, expected="a header with at least one operation", got="another")
    start = SECTION_HEADER.size
    tables = []
    for layout, size in zip((OPERATION, SEND, RECEIVE), sizes, strict=True):
        tables.append(_Table(layout, memoryview(data)[start : start + size], start))
        start += size
    operations, sends, receives = tables
    _check_operations(operations, sends, receives)
    moved, taken = _check_list(sends, operations, "tx_count"), _check_list(receives, operations, "rx_count")
    section = NetworkSection(
        operations=Operations(**_columns(operations.records, _OPERATION_COLUMNS)),
        sends=Sends(
            **_columns(sends.records[moved], _SEND_COLUMNS), **_signals(sends.records, moved, ("semaphore", "value"))
        ),
        receives=Receives(
            **_columns(receives.records[taken], _RECEIVE_COLUMNS), **_signals(receives.records, taken, ("semaphore",))
        ),
    )
    _check_transfers(sends, moved, section.send_index, operations)
    _check_transfers(receives, taken, section.receive_index, operations)
    _check_order(section, operations, receives, taken)
    first = np.ones(moved.size, np.bool_)
    first[1:] = np.diff(section.send_operation) != 0
    sends.expect("follows", sends.records["follows"][moved] <= ~first, "1 where the send before is of its row", moved)
    return section


class _Table:
    """Some records of one layout, and where they begin in the section."""

    def __init__(self, layout: Layout, data: memoryview, start: int) -> None:
        self.layout, self.start = layout, start
        self.records = layout.columns(data)
        again = np.zeros(self.records.size, layout.dtype)
        for name in layout.dtype.names or ():
            again[name] = self.records[name]
        stray = np.flatnonzero(np.frombuffer(data, np.uint8) != again.view(np.uint8))
        if stray.size:
            at = int(stray[0])
            raise DecodeError(
                f"reserved byte of {layout.name}", offset=start + at, expected="0", got=f"0x{data[at]:02X}"
            )

    def expect(self, field: str, good: Bool, expected: str, at: I64 | None = None) -> None:
        """Refuse the first of these records (of all) whose field is not good."""
        bad = np.flatnonzero(~good)
        if bad.size:
            record = int(bad[0] if at is None else at[bad[0]])
            place = next(each.at for each in self.layout.fields if each.name == field)
            raise DecodeError(
                f"{field} of {self.layout.name} {record}",
                offset=self.start + record * self.layout.size + place,
                expected=expected,
                got=str(self.records[field][record].tolist()),
            )


def _check_operations(operations: _Table, sends: _Table, receives: _Table) -> None:
    records, expect = operations.records, operations.expect
    for field in ("early_send", "early_recv", "send_complete", "recv_handshake", "recv_complete", "basic_block_id"):
        expect(field, records[field] == 0, "0")
    expect("index_loop_size", records["index_loop_size"] == LOOP_SIZE, str(LOOP_SIZE))
    credits = records["initial_send_credits"]
    bounds = f"{LEAST_CREDITS} to {MOST_CREDITS}"
    expect("initial_send_credits", (credits >= LEAST_CREDITS) & (credits <= MOST_CREDITS), bounds)
    expect("ending_recv_credits", records["ending_recv_credits"] == credits, "the initial send credits")
    expect("element_size", (records["element_size"] > 0) & (records["element_size"] <= MAX_VALUE), "at least 1 byte")
    expect("sema_shift_offset", records["sema_shift_offset"] < MAX_VALUE.bit_length(), "a bit below the sign")
    steps, shift = records["unrolled_count"].astype(np.int64), records["sema_shift_offset"].astype(np.int64)
    expect("unrolled_count", (steps > 0) & (steps <= MAX_VALUE >> shift), "what a semaphore can hold")
    expect("channel", records["channel"] < PROXY_QUEUE, f"a queue below {PROXY_QUEUE}")
    moves = records["tx_count"] > 0
    expect("send_handshake", (records["send_handshake"] != 0) == moves, "an address exactly where there are sends")
    expect("rx_count", moves | (records["rx_count"] > 0), "a transfer in every operation")
    key = records["relative_op_index"].astype(np.int64) * PROXY_QUEUE + records["channel"]
    expect("channel", np.concatenate(([True], key[1:] > key[:-1])), "operations in order of entry and channel")
    for field, entries in (("tx_count", sends), ("rx_count", receives)):
        listed = entries.records.size - records.size
        total = np.cumsum(records[field].astype(np.int64))
        expect(field, total <= listed, f"at most {listed} in all")
        expect(field, np.append(np.ones(records.size - 1, np.bool_), total[-1] == listed), f"{listed} in all")


def _check_list(entries: _Table, operations: _Table, count: str) -> I64:
    """Check operations and marks of the entries, and the terminators; return where the transfers are."""
    counts = operations.records[count].astype(np.int64)
    records, number = entries.records, np.repeat(np.arange(counts.size), counts + 1)
    entries.expect("op_index", records["op_index"] == number, "the operation whose list it is in")
    end = pointers(counts + 1)[1:] - 1
    at = ranges(pointers(counts + 1)[:-1], counts)
    is_end = np.zeros(records.size, np.bool_)
    is_end[end] = True
    wanted = np.where(is_end, int(Mark.OP_COMPLETE), int(Mark.TRANSFER))
    entries.expect("mark", records["mark"] == wanted, "1 at the end of a list, and 0 before")
    entries.expect("rank", (records["rank"] == NOBODY) == is_end, "-1 at the end of a list, and a member before")
    entries.expect("rank", records["rank"] >= NOBODY, "a member")
    for name in records.dtype.names or ():
        if name not in ("mark", "op_index", "rank"):
            zero = (records[name][end] == 0).reshape(end.size, -1).all(axis=1)
            entries.expect(name, zero, "0 at the end of a list", end)
    return at


def _columns(records: Array, names: dict[str, str]) -> dict[str, Any]:
    wide = {name: np.uint64 if name in _ADDRESSES else np.int64 for name in names}
    return {name: records[field].astype(wide[name]) for name, field in names.items()}


def _signals(records: Array, at: I64, names: tuple[str, ...]) -> dict[str, Any]:
    return {f"{name}_{k}": np.ascontiguousarray(records[name][at, k]) for name in names for k in range(ENTRY_SIGNALS)}


def _check_transfers(entries: _Table, at: I64, index: I64, operations: _Table) -> None:
    records = entries.records[at]
    owner = records["op_index"]
    entries.expect("net_index", records["net_index"] == index, "the running number of its channel, modulo 512", at)
    used = np.arange(ENTRY_SIGNALS) < records["signals"][:, None]
    entries.expect("signals", records["signals"] <= ENTRY_SIGNALS, f"at most {ENTRY_SIGNALS}", at)
    entries.expect(
        "semaphore", ((records["semaphore"] != 0) == used).all(axis=1), "an address for each signal, then 0", at
    )
    if "value" in (records.dtype.names or ()):
        good = (records["value"] > 0) == used
        good &= records["value"] <= MAX_VALUE
        entries.expect("value", good.all(axis=1), "at least 1 for each signal, then 0", at)
    size = records["size"]
    element = operations.records["element_size"][owner]
    entries.expect("size", (size % element == 0) & (size <= np.iinfo(np.int64).max), "whole elements", at)
    entries.expect("size", (size > 0) | (records["signals"] > 0), "data, a signal, or both", at)
    for name in ("source", "target"):
        if name in (records.dtype.names or ()):
            entries.expect(name, (records[name] != 0) == (size > 0), "an address exactly where there are data", at)


def _check_order(section: NetworkSection, operations: _Table, receives: _Table, taken: I64) -> None:
    several = _several(section.operations.sends, section.sends.rank)
    operations.expect("variable_peer", operations.records["variable_peer"] == several, "1 where sends go to several")
    owner, rank = section.receive_operation, section.receives.rank
    ordered = np.ones(rank.size, np.bool_)
    ordered[1:] = (owner[1:] != owner[:-1]) | (rank[1:] >= rank[:-1])
    receives.expect("rank", ordered, "the receives of an operation by member", taken)
