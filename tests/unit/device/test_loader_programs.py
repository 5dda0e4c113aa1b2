"""The loader's checks of programs, row by row of device-model §7: control, slots, configuration, presets, ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from planted import RING, SLOT, SP, descriptors, places, refusal, write
from tests.images import Ring, edit, flip, rebuild, section, table

from rota.device.model import load
from rota.errors import DecodeError
from rota.isa.arch import ARCHES
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.enums import EncOp
from rota.isa.image import PRESET, Section
from rota.isa.layout import Layout

CONF = CONFIGURATIONS["cayman"]
BLOCK_AT = CONF.part("program").at

# --- control, slots, configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "bit"),
    [
        *[(0, bit) for bit in range(8)],  # active, reserved
        *[(1, bit) for bit in range(8)],  # algorithm, sub type, chained
        *[(2, bit) for bit in range(8)],  # reporter, completion flags, safe mode, unique tensors, reserved
        (3, 0),
        (4, 0),
        (4, 1),
        (7, 7),
    ],
)
def test_every_bit_of_a_control_entry_counts(byte: int, bit: int) -> None:
    """Some are only seen where the channel or processor they would bring in has no record: in the configuration."""
    image = flip(RING.images[1], Section.CTRL, SP, byte, bit)
    images = [RING.images[0], image, RING.images[2]]
    with pytest.raises(DecodeError, match="image of rank 1") as caught:
        load(images)
    spots = [(offset, size) for (kind, i), (_, offset, size) in table(image).items() if i == SP and kind in (2, 4)]
    assert any(start <= caught.value.offset < start + size for start, size in spots)


def test_the_algorithm_is_the_same_on_all_ranks() -> None:
    """Single-cycle ring, nibble 4, walks its rows alike; the loader does not take one for the other."""
    image = edit(RING.images[1], Section.CTRL, SP, 1, b"\4")
    assert "algorithm and flags of the entry on other ranks" in refusal(RING, 1, Section.CTRL, SP, image)


@pytest.mark.parametrize("data", [b"\0\0\0\0\1\0\0\0", b"\0\x80\0\0\0\0\0\0", b"\0\1\0\0\0\0\0\0", b"\2\0\0\0\0\0\0\0"])
def test_an_idle_processor_says_nothing(data: bytes) -> None:
    """No channels, no chain, no algorithm, no reserved bit in its entry."""
    refusal(RING, 0, Section.CTRL, 0, edit(RING.images[0], Section.CTRL, 0, 0, data))


def slot_entries() -> int:
    return len(section(RING.images[0], Section.SLOT, SLOT)) // 8 - 2


@pytest.mark.parametrize(
    ("entry", "byte", "value"),
    [
        (0, 6, 1 | 2),  # last row too early
        (-1, 6, 4),  # last row not marked
        (0, 6, 2 | 8),  # a reserved flag
        (0, 7, 1),
        (0, 4, 0),  # never
        (-1, 4, 2),  # the last row twice
        (0, 0, 0),  # no descriptors to read
        (0, 2, 0),
        (0, 0, 7),  # sums differ
        (0, 2, 9),
        (0, 4, 9),
    ],
)
def test_slot_entries(entry: int, byte: int, value: int) -> None:
    """The last row is marked and no other; rows launch what is there. Source: device-model §7, slot entry."""
    at = (entry % slot_entries()) * 8 + byte
    refusal(RING, 0, Section.SLOT, SLOT, edit(RING.images[0], Section.SLOT, SLOT, at, bytes([value])))


def test_rows_that_end_inside_a_packet() -> None:
    """Equal sums, but one reading descriptor moved from one row to the next."""
    raw = np.frombuffer(section(RING.images[0], Section.SLOT, SLOT), "<u2").reshape(-1, 4)[: slot_entries()].copy()
    assert raw[1:3, :3].tolist() == [[5, 4, 2], [4, 3, 2]]  # receive, reduce and send; receive and reduce
    raw[1:3, 0] = (4, 5)
    image = edit(RING.images[0], Section.SLOT, SLOT, 0, raw.tobytes())
    assert "whole packets" in refusal(RING, 0, Section.SLOT, SLOT, image)


def test_the_last_row_does_not_repeat() -> None:
    """Two equal last rows in one entry that marks both."""
    raw = np.frombuffer(section(RING.images[0], Section.SLOT, SLOT), "<u8")
    rows = raw[: slot_entries()].copy().view("<u2").reshape(-1, 4)
    assert rows[-2, :3].tolist() == rows[-1, :3].tolist() == [2, 2, 1]
    rows[-2, 2:] = (2, rows[-1, 3])
    data = rows[:-1].tobytes() + raw[slot_entries() :].tobytes()
    image = rebuild(RING.images[0], {(Section.SLOT, SLOT): data})
    assert "only the last marked, and that once" in refusal(RING, 0, Section.SLOT, SLOT, image)


def test_a_row_leaves_the_gap_of_its_ring() -> None:
    """A row of 21 descriptors in a ring of 32, of which 16 stay free. Source: device-model §3, ring size."""
    alone = Ring(count=20 << 15, groups=((0,),), orders=((0,),), folds=1, halves=1)
    image = edit(alone.images[0], Section.META, 0, 36, (32).to_bytes(4, "little"))
    assert "rows of at most 16" in refusal(alone, 0, Section.SLOT, SLOT, image)


@pytest.mark.parametrize(
    ("word", "change"),
    [
        (0, 1 << 32),  # value 0 or 2
        (0, 1 << 48),  # not END
        (0, 4),  # another address than the one behind it
        (1, 4),
        (1, 0x800),  # another window
        (1, 1 << 54),
    ],
)
def test_the_end_mark(word: int, change: int) -> None:
    at = 8 * (slot_entries() + word)
    old = int.from_bytes(section(RING.images[0], Section.SLOT, SLOT)[at : at + 8], "little")
    image = edit(RING.images[0], Section.SLOT, SLOT, at, (old ^ change).to_bytes(8, "little"))
    refusal(RING, 0, Section.SLOT, SLOT, image)


@pytest.mark.parametrize("slot", [SLOT, 16])
def test_completion_is_posted_on_the_reporter(slot: int) -> None:
    """Also the address behind the END mark of a processor that does not report, which nobody reads."""
    raw = section(RING.images[0], Section.SLOT, slot)
    address = ARCHES["cayman"].semaphores(2) + 0x1804
    mark = 0xFFFD << 48 | 1 << 32 | address & 0xFFFFFFFF
    data = mark.to_bytes(8, "little") + address.to_bytes(8, "little")
    image = edit(RING.images[0], Section.SLOT, slot, len(raw) - 16, data)
    assert "completion semaphore of the reporter, TOP_SP 3" in refusal(RING, 0, Section.SLOT, slot, image)


def test_a_continue_mark_needs_a_chain() -> None:
    image = edit(RING.images[0], Section.SLOT, SLOT, 0, (0xFFFEFFFE << 32).to_bytes(8, "little"))
    assert "one mark for each control entry" in refusal(RING, 0, Section.SLOT, SLOT, image)


def bits_of(layout: Layout, names: list[str]) -> list[tuple[int, int]]:
    """Return byte and bit of the lowest and the highest bit of fields, by trying."""
    out = []
    for name in names:
        for value in (1, layout.columns(b"\xff" * layout.size)[0][name]):
            encoded = layout.encode(**{name: int(value)})
            highest = int.from_bytes(encoded, "little").bit_length() - 1
            out.append((highest // 8, highest % 8))
    return out


RECORD_FIELDS = [
    "next_fold_n",
    "next_type",
    "prev_fold_n",
    "prev_type",
    "recv_sema",
    "send_sema",
    "post_sema",
    "dma_compl_sema",
    "kangaring_mine",
    "m2s_tail_ptr",
    "s2m_tail_ptr",
    "mask",
    "channel_id",
    "spad_slot_idx",
    "fold_n",
    "kangaring_is_primary",
    "kangaring_num_peers",
]


@pytest.mark.parametrize("place", bits_of(RING_CHANNEL, RECORD_FIELDS), ids=str)
def test_ring_record(place: tuple[int, int]) -> None:
    """Every field is what the rest implies, or 0: post semaphore, both tails, types that match the routing."""
    refusal(RING, 0, Section.CONF, SP, flip(RING.images[0], Section.CONF, SP, *place))


@pytest.mark.parametrize("at", [0, 8, 16, 26, 27, 28, 54, 96, 104, 112, 118, 119, 145, 146, 147])
def test_unused_bytes_of_a_ring_record(at: int) -> None:
    """Network indices, Kangaring peers and padding."""
    refusal(RING, 0, Section.CONF, SP, flip(RING.images[0], Section.CONF, SP, at, 3))


@pytest.mark.parametrize(("field", "low"), [("recv_sema", 2), ("post_sema", 3), ("post_sema", 7)])
def test_semaphores_of_a_channel_are_those_it_takes_in_order(field: str, low: int) -> None:
    """Another free id, which no other channel has: only the order of allocation can tell."""
    at = RING_CHANNEL.encode(**{field: 1}).index(1)
    message = refusal(RING, 0, Section.CONF, SP, flip(RING.images[0], Section.CONF, SP, at, low))
    assert "consecutive semaphores" in message


BLOCK_FIELDS = [
    "slot_spad_base",
    "ctrl_spad_base",
    "switch_completed",
    "pring_base_addr",
    "pring_total_desc_num",
    "trigger",
    "trigger_next",
    "complete",
    "complete_prev",
    "tpb_stop_sema",
    "op_num",
    "function_n",
    "tpb_compl_addr_num",
]


@pytest.mark.parametrize("sp", [0, 2, 3])
@pytest.mark.parametrize(
    "at",
    [
        *[int(PROGRAM_BLOCK.dtype.fields[name][1]) for name in BLOCK_FIELDS],  # type: ignore[index]
        *[0, 4, 8, 60, 64, 2143, 2200, 2495, 2496, 3519],  # bitmap, counts, barriers, basic blocks
        *[3540, 3543, 3591],  # reserved bytes; flags
    ],
)
def test_program_block_is_recomputed(sp: int, at: int) -> None:
    """On the reporter, on the one before it, and on an idle processor. Source: device-model §7, program block."""
    for bit in (0, 6):
        refusal(RING, 0, Section.CONF, sp, flip(RING.images[0], Section.CONF, sp, BLOCK_AT + at, bit))


@pytest.mark.parametrize(
    "at",
    [
        31 * 148,  # the record of a channel that is not there
        CONF.part("mesh").at,
        CONF.part("mesh").end - 1,
        CONF.part("hierarchy").at,
    ],
)
def test_what_no_channel_uses_is_zero(at: int) -> None:
    assert "0 in what nothing uses" in refusal(RING, 0, Section.CONF, SP, flip(RING.images[0], Section.CONF, SP, at, 0))


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (0, "device ids dma_apb_rsvd_addr at .*expected 0"),
        (44, "device ids tpb_id at .*expected 1, got 0"),
        (45, "device ids dev_id at .*expected 0, got 0x1"),
        (47, "reserved bits 0"),
    ],
)
def test_a_processor_says_whose_it_is(at: int, says: str) -> None:
    """Core and chip follow from the rank; times are the host's, and 0. Source: device §3.1."""
    place = CONF.part("device_ids").at + at
    assert re.search(says, refusal(RING, 0, Section.CONF, SP, flip(RING.images[0], Section.CONF, SP, place, 0)))


# --- presets and feed words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4, 9),  # no whole row
        (4, 10),  # another credit than everywhere
        (4, 0),
        (6, 1),
        (0, 3),  # a processor again
        (0, 4),  # no such processor
        (2, 8),  # recv, not a credit
        (2, 10),
        (2, 200),
    ],
)
def test_presets_are_the_credits(at: int, value: int) -> None:
    """Every one is a credit semaphore, and equal to C x fold_n. Source: device-model §7, SEMA."""
    refusal(RING, 0, Section.SEMA, 0, edit(RING.images[0], Section.SEMA, 0, at, bytes([value])))


def test_presets_are_whole_rows() -> None:
    """Nine units for two folds, on every channel of every rank."""
    images = []
    for image in RING.images:
        raw = np.frombuffer(section(image, Section.SEMA), PRESET.dtype).copy()
        raw["value"] = 9
        images.append(edit(image, Section.SEMA, 0, 0, raw.tobytes()))
    with pytest.raises(DecodeError, match="a multiple of 2 folds"):
        load(images)


@pytest.mark.parametrize("bit", [0, 1, 4, 31])
def test_feed_words_add_what_is_taken(bit: int) -> None:
    """A feed word of another value: every semaphore would get more or less than its waits take."""
    image = flip(RING.images[0], Section.MEM, 0x80, 0, bit)
    with pytest.raises(DecodeError, match=r"signals of \d+ in total|feed word"):
        load([image, *RING.images[1:]])


@pytest.mark.parametrize("words", [[1, 4, 5], [1, 4, 4], [1, 4, 0]])
def test_feed_words_are_all_read_and_distinct(words: list[int]) -> None:
    """An all-gather has two: 1, and the credit given at the start; a third that nobody reads is refused."""
    ring = Ring(kind=EncOp.ALLGATHER, count=3 * 200)
    assert np.frombuffer(section(ring.images[0], Section.MEM, 0x80), "<u4").tolist() == [1, 4]
    image = rebuild(ring.images[0], {(Section.MEM, 0x80): np.array(words, "<u4").tobytes()})
    assert "ascending values, each one read" in refusal(ring, 0, Section.MEM, 0x80, image)


# --- across ranks -----------------------------------------------------------------------------------------------------


def test_data_goes_to_the_rank_or_its_neighbour() -> None:
    """The same buffer of the rank before it: only who follows whom can tell. Source: device-model §7."""
    ring = Ring(count=4000, groups=((0, 1, 2, 3),), orders=((0, 1, 2, 3),))
    target = int(descriptors(ring, 0, Section.RX)[0]["buf_ptr"])
    arch = ARCHES["cayman"]
    for lane in (2, 3):
        image = write(ring, 0, Section.RX, 0, 0, buf_ptr=target - arch.memory(2) + arch.memory(2 * lane))
        assert "memory of the rank or of its neighbour" in refusal(ring, 0, Section.RX, 0, image)


def test_signals_go_to_one_neighbour_on_each_side() -> None:
    """One signal of many to the semaphore of the rank after the next."""
    ring = Ring(groups=((0, 1, 2, 3),), orders=((0, 1, 2, 3),), folds=1)
    at = places(ring, 0)["signal"]
    address = int(descriptors(ring, 0, Section.RX)[at]["buf_ptr"])
    arch = ARCHES["cayman"]
    other = address - arch.semaphores(7) + arch.semaphores(11)
    image = write(ring, 0, Section.RX, 0, at, buf_ptr=other)
    assert "one neighbour" in refusal(ring, 0, Section.RX, 0, image)


def test_signals_stay_on_their_channel() -> None:
    """The same semaphore id on the processor of the other channel."""
    at = places(RING, 0)["signal"]
    arch = ARCHES["cayman"]
    address = int(descriptors(RING, 0, Section.RX)[at]["buf_ptr"])
    image = write(RING, 0, Section.RX, 0, at, buf_ptr=address - arch.semaphores(7) + arch.semaphores(6))
    assert "the same channel" in refusal(RING, 0, Section.RX, 0, image)


def test_the_rings_close() -> None:
    """next(prev(r)) = r: the image of a rank that follows another one does not fit. Source: device-model §7."""
    right, other = (Ring(groups=((0, 1, 2),), orders=(order,)) for order in ((0, 1, 2), (0, 2, 1)))
    with pytest.raises(DecodeError, match="the next one's previous is this one"):
        load([other.images[0], *right.images[1:]])


@pytest.mark.parametrize("flag", [2, 4])
def test_what_is_signalled_is_waited_for(flag: int) -> None:
    """A row that does not receive, or takes no credit: the semaphore gets more than is taken from it."""
    raw = np.frombuffer(section(RING.images[0], Section.SLOT, SLOT), "u1").reshape(-1, 8)[: slot_entries()]
    entry = int(np.flatnonzero(raw[:, 6] == 0)[0])  # receives and sends
    image = edit(RING.images[0], Section.SLOT, SLOT, 8 * entry + 6, bytes([flag]))
    assert "signals of" in refusal(RING, 0, Section.SLOT, SLOT, image, where=Section.CONF)
