"""Scratchpad entries, marks and semaphores, against device §2 and §8 and the conventions built on them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rota.errors import DecodeError, UsageError
from rota.isa.enums import Algorithm, MeshType, Pattern
from rota.isa.semaphores import (
    BLOCK_SIZE,
    EVENTS,
    FIRST_FREE,
    LAST_FREE,
    MAX_VALUE,
    PARITIES,
    SEMAPHORES,
    Reserved,
    Window,
    decode_register,
    register_offset,
)
from rota.isa.spad import (
    CONTINUE,
    CONTROL_REGION_SIZE,
    ENTRY_SIZE,
    SLOT,
    SLOT_REGION_SIZE,
    AlgoReading,
    Control,
    SlotFlag,
    algo_type,
    is_end,
    pack_control,
    pack_end,
    pattern_of,
    unpack_control,
    unpack_end,
)

EXAMPLE = Control(
    pattern=Pattern.MESH,
    algo_type=Pattern.MESH,
    algo_sub_type=MeshType.MESH_SWITCH,
    trigger_next=True,
    reporter=True,
    sema_shift_offset=4,
    sema_mask=0x00F0,
)


def test_worked_example() -> None:
    """device §2.1: algo 1, sub 3, trigger_next, reporter, shift 4, mask 0x00F0 are 01 B1 01 00 04 00 F0 00."""
    data = bytes.fromhex("01 B1 01 00 04 00 F0 00")
    assert pack_control(EXAMPLE) == data
    assert unpack_control(data, reading=AlgoReading.PATTERN) == EXAMPLE


def test_first_word_formula() -> None:
    """device §2.1: the first word is trigger_next << 15 | sub << 12 | algo << 8 | 1."""
    for algo in range(12):
        for sub in range(8):
            for following in (False, True):
                entry = Control(pattern=Pattern.RING, algo_type=algo, algo_sub_type=sub, trigger_next=following)
                word = int.from_bytes(pack_control(entry)[:2], "little")
                assert word == following << 15 | sub << 12 | algo << 8 | 1


@pytest.mark.parametrize(
    ("flag", "bit"),
    [("reporter", 0), ("ring_wait_complete", 1), ("ring_send_complete", 2), ("safe_mode", 3), ("unique_tensors", 4)],
)
def test_flags_of_byte_2(flag: str, bit: int) -> None:
    """device §2.1 (E2): wait is bit 1 and send is bit 2."""
    entry = dataclasses.replace(Control(pattern=Pattern.RING, channel_list=0x80000001), **{flag: True})
    data = pack_control(entry)
    assert data == bytes([1, 0, 1 << bit, 0, 1, 0, 0, 0x80])
    assert unpack_control(data) == entry


def test_mesh_entry_names_its_first_event() -> None:
    """device-model §4: byte 3 is the index of the first event record."""
    entry = Control(
        pattern=Pattern.MESH, algo_type=Algorithm.MESH, first_event=7, sema_shift_offset=20, sema_mask=0x7FF
    )
    assert pack_control(entry).hex(" ") == "01 02 00 07 14 00 ff 07"
    assert unpack_control(pack_control(entry)) == entry


@pytest.mark.parametrize("following", [False, True])
def test_inactive_entry_keeps_only_trigger_next(following: bool) -> None:
    """device-model §4: an entry without a part is all zero but for the chain bit."""
    entry = Control(pattern=Pattern.INVALID, trigger_next=following)
    assert pack_control(entry) == bytes([0, 0x80 * following, 0, 0, 0, 0, 0, 0])
    assert unpack_control(pack_control(entry)) == entry


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("03 00 00 00 01 00 00 00", 0),  # reserved header bit
        ("01 00 20 00 01 00 00 00", 2),  # reserved flag
        ("01 00 00 01 01 00 00 00", 3),  # byte 3 of a ring entry
        ("01 0b 00 00 01 00 00 00", 1),  # INVALID algorithm
        ("01 0f 00 00 01 00 00 00", 1),  # no algorithm
        ("00 01 00 00 00 00 00 00", 0),  # inactive, yet an algorithm
        ("00 80 00 00 01 00 00 00", 0),  # inactive, yet a channel
        ("01 00 00 00 01 00 00", 0),  # a byte is missing
    ],
)
def test_control_entries_that_mean_nothing(data: str, offset: int) -> None:
    """device-model §7: reserved bits, unknown algorithms and payload of an inactive entry are found."""
    with pytest.raises(DecodeError) as caught:
        unpack_control(b"\0" * 8 + bytes.fromhex(data), offset=8)
    assert caught.value.offset == 8 + offset


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Control(pattern=Pattern.RING, sema_mask=1), "pattern RING: it has no sema_mask"),
        (Control(pattern=Pattern.RING, first_event=1), "pattern RING: it has no first_event"),
        (Control(pattern=Pattern.MESH, channel_list=1), "pattern MESH: it has no channel_list"),
        (Control(pattern=Pattern.INVALID, reporter=True), "pattern INVALID: it has no reporter"),
        (Control(pattern=Pattern.RING, algo_type=16), "algo_type: expected a value from 0 to 15, got 16"),
        (Control(pattern=Pattern.MESH, sema_mask=1 << 16), "sema_mask: expected a value from 0 to 65535"),
    ],
)
def test_control_entries_that_cannot_be_packed(entry: Control, message: str) -> None:
    """A value of the other view or out of range is a UsageError."""
    with pytest.raises(UsageError, match=message):
        pack_control(entry)


def test_algorithm_bits_in_both_readings() -> None:
    """device §2.1 (E1): the algorithm's own number by default, the pattern on request."""
    assert [algo_type(Algorithm(alg)) for alg in range(11)] == list(range(11))
    patterns = [algo_type(Algorithm(alg), reading=AlgoReading.PATTERN) for alg in range(11)]
    assert patterns == [0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1]
    assert [int(pattern_of(alg)) for alg in range(11)] == patterns
    assert [pattern_of(bits, reading=AlgoReading.PATTERN) for bits in (0, 1)] == [Pattern.RING, Pattern.MESH]


def test_no_bits_for_no_algorithm() -> None:
    """device §2.1: 11 is INVALID; in the pattern reading only 0 and 1 mean anything."""
    with pytest.raises(UsageError, match="INVALID is no algorithm"):
        algo_type(Algorithm.INVALID)
    with pytest.raises(DecodeError, match="at offset 0: expected one of 0, 1, got 2"):
        pattern_of(2, reading=AlgoReading.PATTERN)


def test_slot_entry() -> None:
    """device §2.2, device-model §4: three counts, then last row, does not receive, does not send."""
    assert SLOT.encode(m2s_val=0x0102, s2m_val=0x0304, repeat=5, no_receive=1).hex(" ") == "02 01 04 03 05 00 02 00"
    for name, flag in (
        ("last_row", SlotFlag.LAST_ROW),
        ("no_receive", SlotFlag.NO_RECEIVE),
        ("no_send", SlotFlag.NO_SEND),
    ):
        data = SLOT.encode(**{name: 1})
        assert data == bytes([0, 0, 0, 0, 0, 0, flag, 0])
        assert SLOT.columns(data)["flags"].tolist() == [flag]


def test_no_slot_entry_looks_like_a_mark() -> None:
    """device-model §4: the highest byte of an entry is 0, of a mark 0xFF."""
    largest = SLOT.encode(m2s_val=0xFFFF, s2m_val=0xFFFF, repeat=0xFFFF, last_row=1, no_receive=1, no_send=1)
    assert largest[7] == 0
    assert CONTINUE >> 56 == 0xFF
    stray = [bit for bit in range(64) if SLOT.reserved((1 << bit).to_bytes(8, "little")) is not None]
    assert stray == [*range(53, 56), *range(56, 64)]


def test_marks() -> None:
    """device §2.2, device-model §4: CONTINUE is one constant; END is tag, value and low address, then the addresses."""
    assert CONTINUE == 0xFFFEFFFE00000000
    mark = pack_end([0x8280001804, 0x1122334455667788])
    assert [f"{word:016X}" for word in np.frombuffer(mark, "<u8").tolist()] == [
        "FFFD000180001804",
        "0000008280001804",
        "1122334455667788",
    ]
    assert unpack_end(b"\0" * 8 + mark, offset=8, count=2) == (1, (0x8280001804, 0x1122334455667788))
    assert is_end(0xFFFD000180001804)
    assert not is_end(CONTINUE)
    assert not is_end(0)


@pytest.mark.parametrize(("addresses", "value"), [([], 1), ([1, 2, 3], 1), ([1], 1 << 16), ([1 << 64], 1), ([-1], 1)])
def test_end_marks_that_cannot_be_packed(addresses: list[int], value: int) -> None:
    """device §2.2: one or two addresses, and what fits."""
    with pytest.raises(UsageError, match="END mark"):
        pack_end(addresses, value=value)


@pytest.mark.parametrize(
    ("data", "count", "offset", "message"),
    [
        (pack_end([8])[:15], 1, 0, "truncated END mark"),
        (CONTINUE.to_bytes(8, "little") * 2, 1, 0, "expected an END mark, got 0xFFFEFFFE00000000"),
        (pack_end([8])[:8] + bytes(8), 1, 8, "expected an address that ends in 0x00000008"),
    ],
)
def test_end_marks_that_mean_nothing(data: bytes, count: int, offset: int, message: str) -> None:
    """A cut mark, another entry, or an address that does not match the mark is a DecodeError."""
    with pytest.raises(DecodeError, match=message) as caught:
        unpack_end(data, offset=0, count=count)
    assert caught.value.offset == offset


def test_region_sizes() -> None:
    """device §2.3: 512 control entries and 4096 slot entries."""
    assert (CONTROL_REGION_SIZE, SLOT_REGION_SIZE) == (512 * ENTRY_SIZE, 4096 * ENTRY_SIZE) == (0x1000, 0x8000)


@pytest.mark.parametrize(
    ("window", "offset"),
    [(Window.EVENTS, 0), (Window.READ, 0x1000), (Window.SET, 0x1400), (Window.INC, 0x1800), (Window.DEC, 0x1C00)],
)
def test_semaphore_windows(window: Window, offset: int) -> None:
    """device §8.1: window offsets, stride 4, 256 ids in each, all inside the 1 MiB block."""
    assert SEMAPHORES == EVENTS == 256
    assert [register_offset(window, i) for i in range(256)] == list(range(offset, offset + 1024, 4))
    assert [decode_register(offset + 4 * i) for i in range(256)] == [(window, i) for i in range(256)]
    assert register_offset(window, 255) < BLOCK_SIZE == 1 << 20


@pytest.mark.parametrize("offset", [-4, 2, 0x400, 0xFFC, 0x1001, 0x2000, 1 << 20])
def test_offsets_that_are_no_register(offset: int) -> None:
    """device §8.1: the gap behind the events, odd bytes and everything from 0x2000 on hold no register."""
    with pytest.raises(DecodeError):
        decode_register(offset)


@pytest.mark.parametrize("semaphore", [-1, 256])
def test_semaphore_ids_end_at_255(semaphore: int) -> None:
    """device §8.1: ids from 256 on fall into reserved space."""
    with pytest.raises(UsageError, match="expected an id from 0 to 255"):
        register_offset(Window.INC, semaphore)


def test_reserved_semaphores_are_never_handed_out() -> None:
    """device §8.3, device-model §4: ids 0 to 7, 254 and 255 have a meaning; the rest is free."""
    assert sorted(Reserved) == [*range(8), 254, 255]
    assert sorted([*Reserved, *range(FIRST_FREE, LAST_FREE + 1)]) == list(range(SEMAPHORES))
    assert (Reserved.TRIGGER, Reserved.COMPLETION, Reserved.COMPLETE_PREV, Reserved.NULL) == (0, 1, 254, 255)


def test_parities_do_not_touch() -> None:
    """device-model §5.5: the counts of two successive operations share no bit, and bit 31 stays clear."""
    even, odd = (parity.mask << parity.shift for parity in PARITIES)
    assert (even, odd) == (0xFFF0, 0x7FF00000)
    assert not even & odd
    assert max(even, odd) <= MAX_VALUE == 0x7FFFFFFF
