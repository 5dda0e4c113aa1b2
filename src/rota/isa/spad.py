"""The scratchpad of a stream processor: control entries, slot entries and the marks between them.

The rings, events and program block an entry refers to are in `config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from rota.errors import DecodeError, UsageError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.enums import Algorithm, Pattern
from rota.isa.layout import Bits, Buffer, Field, Layout

ENTRY_SIZE: Final = 8

REGIONS_SOURCE: Final = Source("device", "2.3", HIGH)
CONTROL_REGION_SIZE: Final = 0x1000
SLOT_REGION_SIZE: Final = 0x8000
SLOTS: Final = 6  # slot programs of a stream processor

SPAD_OFFSET_SOURCE: Final = Source("device", "8.2", HIGH)
SPAD_OFFSET: Final = 0x100000  # the scratchpad's memory, behind the semaphore block of its processor


def control_base(block: int) -> int:
    """Return the address of the control table of the processor whose semaphore block is at `block`."""
    return block + SPAD_OFFSET


def slot_bases(block: int) -> tuple[int, ...]:
    """Return the addresses of the slot programs, behind the control table. Source: device-model §4, convention."""
    first = control_base(block) + CONTROL_REGION_SIZE
    return tuple(first + slot * SLOT_REGION_SIZE for slot in range(SLOTS))


CONTROL_SOURCE: Final = Source("device", "2.1", HIGH)
_CONTROL: Final = Layout("control_entry", size=4, source=CONTROL_SOURCE, fields=(
    # name                    at  type  low width meaning
    Bits("cc_op",              0, "u1",  0, 1,    "1 for an active operation, 0 for one this processor has no part in"),
    Bits("algo_type",          1, "u1",  0, 4,    "low bits of Algorithm, or Pattern; see AlgoReading"),
    Bits("algo_sub_type",      1, "u1",  4, 3,    "MeshType of a mesh, else 0"),
    Bits("trigger_next",       1, "u1",  7, 1,    "the next entry starts without a trigger of its own"),
    Bits("reporter",           2, "u1",  0, 1,    "this processor reports completion"),
    Bits("ring_wait_complete", 2, "u1",  1, 1,    "completion waits for a processor of lower index"),
    Bits("ring_send_complete", 2, "u1",  2, 1,    "completion is passed to a processor of higher index"),
    Bits("safe_mode",          2, "u1",  3, 1,    "the operation belongs to a chain of permutes"),
    Bits("unique_tensors",     2, "u1",  4, 1,    "no tensor is shared with another operation"),
))  # fmt: skip

CONTROL_RING: Final = Layout("ring_control_entry", size=ENTRY_SIZE, source=CONTROL_SOURCE, fields=(
    *_CONTROL.at(0),
    Field("channel_list",      4, "<u4", "one bit for each channel that takes part"),
))  # fmt: skip

CONTROL_MESH: Final = Layout("mesh_control_entry", size=ENTRY_SIZE, source=CONTROL_SOURCE, fields=(
    *_CONTROL.at(0),
    Field("first_event",       3, "u1",  "index of the first event record"),
    Field("sema_shift_offset", 4, "<u2", "position of the count in an event semaphore"),
    Field("sema_mask",         6, "<u2", "width of the count, after the shift"),
))  # fmt: skip

CONTROL: Final[Mapping[Pattern, Layout]] = {Pattern.RING: CONTROL_RING, Pattern.MESH: CONTROL_MESH}
FIRST_EVENT_SOURCE: Final = Source("device-model", "4", CONVENTION)

SLOT: Final = Layout("slot_entry", size=ENTRY_SIZE, source=Source("device", "2.2", HIGH), fields=(
    # name                    at  type   meaning
    Field("m2s_val",           0, "<u2", "reading descriptors of a row, on each fold"),
    Field("s2m_val",           2, "<u2", "writing descriptors of a row, on each fold"),
    Field("repeat",            4, "<u2", "how many equal rows this stands for"),
    Bits("last_row",           6, "u1",  0, 1, "the last row of the operation", word="flags"),
    Bits("no_receive",         6, "u1",  1, 1, "the row waits for no data", word="flags"),
    Bits("no_send",            6, "u1",  2, 1, "the row takes no credit", word="flags"),
    Bits("wait_peers",         6, "u1",  3, 1, "the row waits for the peers of its core group", word="flags"),
    Bits("signal_peers",       6, "u1",  4, 1, "the row tells the peers of its core group", word="flags"),
))  # fmt: skip
SLOT_FLAGS_SOURCE: Final = Source("device-model", "4", CONVENTION)


class SlotFlag(IntEnum):
    """Byte 6 of a slot entry, as `SLOT.dtype` holds it in `flags`; the other bits are 0."""

    LAST_ROW = 1
    NO_RECEIVE = 2
    NO_SEND = 4
    WAIT_PEERS = 8
    SIGNAL_PEERS = 16


# Marks stand in a slot program where an entry would; no entry looks like one, since its last byte is 0.
CONTINUE: Final = 0xFFFEFFFE00000000
CONTINUE_SOURCE: Final = Source("device", "2.2", HIGH)
END_TAG: Final = 0xFFFD
END_SOURCE: Final = Source("device-model", "4", CONVENTION)
MAX_COMPLETIONS: Final = 2


class AlgoReading(Enum):
    """What the four bits of `algo_type` hold; the sources disagree. Source: all-reduce, medium; device §2.1 (E1)."""

    ALGORITHM = "algorithm"
    PATTERN = "pattern"


# The view of a control entry by algorithm. A hierarchical operation is several entries, each with its leg's own.
PATTERN_SOURCE: Final = Source("device", "2.1", CONVENTION)
PATTERN_OF_ALGORITHM: Final[Mapping[Algorithm, Pattern]] = {
    Algorithm.RING: Pattern.RING,
    Algorithm.HIER: Pattern.RING,
    Algorithm.MESH: Pattern.MESH,
    Algorithm.KANGARING: Pattern.RING,
    Algorithm.SINGLE_CYCLE_RING: Pattern.RING,
    Algorithm.INTRA_RDH: Pattern.MESH,
    Algorithm.SINGLE_STEP_MESH: Pattern.MESH,
    Algorithm.INTER_RDH: Pattern.MESH,
    Algorithm.TWO_STEP_POD_MESH: Pattern.MESH,
    Algorithm.LATENCY_OPT_MESH: Pattern.MESH,
    Algorithm.BW_OPT_MESH: Pattern.MESH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control entry: the part of one stream processor in one operation.

    `channel_list` belongs to `Pattern.RING`; `first_event`, `sema_shift_offset` and `sema_mask` to `Pattern.MESH`.
    An entry with no part in the operation has `Pattern.INVALID` and nothing set but perhaps `trigger_next`.
    """

    pattern: Pattern
    algo_type: int = 0
    algo_sub_type: int = 0
    trigger_next: bool = False
    reporter: bool = False
    ring_wait_complete: bool = False
    ring_send_complete: bool = False
    safe_mode: bool = False
    unique_tensors: bool = False
    channel_list: int = 0
    first_event: int = 0
    sema_shift_offset: int = 0
    sema_mask: int = 0


def algo_type(algorithm: Algorithm, *, reading: AlgoReading = AlgoReading.ALGORITHM) -> int:
    """Return the four bits that stand for an algorithm.

    Raises:
        UsageError: the algorithm is INVALID.
    """
    if algorithm is Algorithm.INVALID:
        raise UsageError("control entry: INVALID is no algorithm")
    return int(algorithm if reading is AlgoReading.ALGORITHM else PATTERN_OF_ALGORITHM[algorithm])


def pattern_of(algo: int, *, reading: AlgoReading = AlgoReading.ALGORITHM, offset: int = 0) -> Pattern:
    """Return the view of an active entry from its four bits; the inverse of `algo_type` as far as there is one.

    Raises:
        DecodeError: the bits stand for nothing.
    """
    patterns = {int(algorithm): pattern for algorithm, pattern in PATTERN_OF_ALGORITHM.items()}
    if reading is AlgoReading.PATTERN:
        patterns = {int(pattern): pattern for pattern in CONTROL}
    if algo not in patterns:
        expected = f"one of {', '.join(str(known) for known in patterns)}"
        raise DecodeError("algo_type of a control entry", offset=offset, expected=expected, got=str(algo))
    return patterns[algo]


def pack_control(entry: Control) -> bytes:
    """Return the eight bytes of a control entry.

    Raises:
        UsageError: a value does not fit, or belongs to another pattern than the entry's.
    """
    values = {name: int(getattr(entry, name)) for name in Control.__slots__ if name != "pattern"}
    if entry.pattern is Pattern.INVALID:
        layout, active = CONTROL_RING, 0
        stray = {name for name, value in values.items() if value} - {"trigger_next"}
    else:
        layout, active = CONTROL[entry.pattern], 1
        stray = {name for name, value in values.items() if value} - {field.name for field in layout.fields}
    if stray:
        raise UsageError(f"control entry of pattern {entry.pattern.name}: it has no {', '.join(sorted(stray))}")
    return layout.encode(cc_op=active, **{f.name: values[f.name] for f in layout.fields if f.name != "cc_op"})


def unpack_control(data: Buffer, *, offset: int = 0, reading: AlgoReading = AlgoReading.ALGORITHM) -> Control:
    """Return the control entry at `offset`; the inverse of `pack_control`.

    Raises:
        DecodeError: fewer than eight bytes are left, a reserved bit is set, an inactive entry says more than
            `trigger_next`, or `algo_type` stands for nothing.
    """
    head = CONTROL_RING.decode(data, offset)
    pattern = pattern_of(head["algo_type"], reading=reading, offset=offset + 1) if head["cc_op"] else Pattern.INVALID
    layout = CONTROL.get(pattern, CONTROL_RING)
    record = bytes(data[offset : offset + ENTRY_SIZE])
    stray = layout.reserved(record)
    if stray is not None:
        got = f"0x{record[stray]:02X}"
        raise DecodeError("control entry", offset=offset + stray, expected="reserved bits 0", got=got)
    values = layout.decode(record)
    if pattern is Pattern.INVALID and record != layout.encode(trigger_next=values["trigger_next"]):
        raise DecodeError(
            "inactive control entry", offset=offset, expected="nothing set but trigger_next", got=record.hex(" ")
        )
    flags = ("trigger_next", "reporter", "ring_wait_complete", "ring_send_complete", "safe_mode", "unique_tensors")
    return Control(
        pattern=pattern,
        algo_type=values["algo_type"],
        algo_sub_type=values["algo_sub_type"],
        **{name: bool(values[name]) for name in flags},
        channel_list=values.get("channel_list", 0),
        first_event=values.get("first_event", 0),
        sema_shift_offset=values.get("sema_shift_offset", 0),
        sema_mask=values.get("sema_mask", 0),
    )


def pack_end(addresses: Sequence[int], *, value: int = 1) -> bytes:
    """Return the END mark: one entry, then the full address of each completion target.

    Args:
        addresses: where completion is signalled, at least one and at most two.
        value: what is added there.

    Raises:
        UsageError: there are too few or too many addresses, or a value does not fit.
    """
    if not 1 <= len(addresses) <= MAX_COMPLETIONS:
        raise UsageError(f"END mark: expected 1 to {MAX_COMPLETIONS} completion addresses, got {len(addresses)}")
    if not 0 <= value < 1 << 16 or any(not 0 <= address < 1 << 64 for address in addresses):
        raise UsageError(f"END mark: value {value} and its addresses must fit 16 and 64 bits")
    mark = END_TAG << 48 | value << 32 | addresses[0] & 0xFFFFFFFF
    return b"".join(word.to_bytes(ENTRY_SIZE, "little") for word in (mark, *addresses))


def is_end(entry: int) -> bool:
    """Say whether a slot entry, as a 64-bit number, is the END mark."""
    return entry >> 48 == END_TAG


def unpack_end(data: Buffer, *, offset: int, count: int) -> tuple[int, tuple[int, ...]]:
    """Return what the END mark at `offset` adds, and its `count` completion addresses.

    Raises:
        DecodeError: bytes are missing, there is no END mark, or its address is not that of the first target.
    """
    size = ENTRY_SIZE * (1 + count)
    record = bytes(data[offset : offset + size])
    if len(record) < size:
        raise DecodeError("truncated END mark", offset=offset, expected=f"{size} bytes", got=f"{len(record)} bytes")
    mark, *addresses = (int.from_bytes(record[at : at + ENTRY_SIZE], "little") for at in range(0, size, ENTRY_SIZE))
    if not is_end(mark):
        raise DecodeError("slot entry", offset=offset, expected="an END mark", got=f"0x{mark:016X}")
    if addresses and (addresses[0] ^ mark) & 0xFFFFFFFF:
        got = f"0x{addresses[0]:016X}"
        expected = f"an address that ends in 0x{mark & 0xFFFFFFFF:08X}"
        raise DecodeError("completion address", offset=offset + ENTRY_SIZE, expected=expected, got=got)
    return mark >> 32 & 0xFFFF, tuple(addresses)
