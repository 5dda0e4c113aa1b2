"""The loader's checks, row by row of device-model §7: planted damage under right checksums, refused where it is.

The collective is an all-reduce of three ranks, two on chip 0 and one on chip 1. Channel 0 runs on TOP_SP 3 and sends
0 -> 1 -> 2 -> 0, channel 1 on TOP_SP 2 and the other way round; each has folds on engines 0 and 1.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.images import TRN1, Ring, edit, flip, section, table

from rota.device.model import load
from rota.emit import pack_image
from rota.errors import DecodeError
from rota.isa.arch import ARCHES
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.descriptors import DESCRIPTOR, RxFlag, TxFlag
from rota.isa.enums import EncOp
from rota.isa.image import Section
from rota.isa.layout import Layout

RING = Ring()
SUNDA = Ring(platform_name=TRN1, groups=((0, 1, 2),))
SP, SLOT = 3, 24  # of channel 0
CONF = CONFIGURATIONS["cayman"]
BLOCK_AT = CONF.part("program").at
PADDED = 1  # the ring of channel 1 on engine 0: some of its rows are shorter than a granule for each fold


def refusal(ring: Ring, rank: int, kind: Section, index: int, image: bytes, *, where: Section | None = None) -> str:
    """Load with one rank's image replaced; the refusal must name the rank, and a place inside the section."""
    images = list(ring.images)
    images[rank] = image
    with pytest.raises(DecodeError) as caught:
        load(images)
    spots = [
        (offset, size)
        for (k, i), (_, offset, size) in table(image).items()
        if k is (where or kind) and (where or i == index)
    ]
    assert any(start <= caught.value.offset < start + size for start, size in spots), (caught.value, spots)
    assert f"image of rank {rank}: " in str(caught.value)
    return str(caught.value)


def descriptors(ring: Ring, rank: int, kind: Section, index: int = 0) -> np.ndarray:
    return np.frombuffer(section(ring.images[rank], kind, index), DESCRIPTOR)


def places(ring: Ring, rank: int, index: int = 0) -> dict[str, int]:
    """Return the first descriptor of some kinds in a ring: TX and RX."""
    tx, rx = descriptors(ring, rank, Section.TX, index), descriptors(ring, rank, Section.RX, index)
    block = ARCHES[ring.platform.arch].topsp
    signal = (rx["buf_ptr"] & ((1 << 47) - 1)) >= block
    reduces = np.flatnonzero(tx["meta_ctrl"] >> 25 == 1)
    return {
        "data": 0,
        "signal": int(np.argmax(signal)),
        "completion": int(np.flatnonzero(signal)[1]),
        "reduce": int(reduces[0]),
        "reduce_last": int(reduces[1]),
        "pad": int(np.argmax((rx["buf_ptr"] & 0xFFF) == 0x40)),
        "pad_tx": int(np.argmax((tx["buf_ptr"] & 0xFFF) == 0x40)),
    }


def write(ring: Ring, rank: int, kind: Section, index: int, at: int, **fields: int) -> bytes:
    """Change fields of a descriptor."""
    table_ = descriptors(ring, rank, kind, index)[at : at + 1].copy()
    for name, value in fields.items():
        table_[name] = value
    return edit(ring.images[rank], kind, index, 16 * at, table_.tobytes())


# --- descriptor words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [*range(16, 24), 28, 29, 30])
def test_tx_word_0_has_no_other_bits(bit: int) -> None:
    """Length adjustment, DUMMY, META, INT_EN, NO_SNOOP, and DMB where writes can be ordered."""
    image = flip(RING.images[0], Section.TX, 0, 0, bit)
    assert "no other flags" in refusal(RING, 0, Section.TX, 0, image)


@pytest.mark.parametrize("bit", [*range(16, 24), 26, 27, 28, 30, 31])
def test_rx_word_0_has_no_other_bits(bit: int) -> None:
    image = flip(RING.images[0], Section.RX, 0, 16, bit)
    assert "no other flags" in refusal(RING, 0, Section.RX, 0, image)


@pytest.mark.parametrize("bit", [26, 27, 31])
def test_packets_are_framed(bit: int) -> None:
    """FIRST, LAST and CONCAT agree with each other."""
    image = flip(RING.images[0], Section.TX, 0, 0, bit)
    assert "TX packet" in refusal(RING, 0, Section.TX, 0, image)


@pytest.mark.parametrize("kind", [Section.TX, Section.RX])
@pytest.mark.parametrize("bit", [24, 25])
def test_the_phase_is_that_of_the_place(kind: Section, bit: int) -> None:
    assert "ring phase" in refusal(RING, 0, kind, 0, flip(RING.images[0], kind, 0, 16, bit))


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_a_copy_word_counts(bit: int) -> None:
    """Bit 26, the write barrier, among them."""
    refusal(RING, 0, Section.TX, 0, flip(RING.images[0], Section.TX, 0, 4, bit))


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("which", ["reduce", "reduce_last"])
def test_every_bit_of_a_reduce_word_counts(bit: int, which: str) -> None:
    at = places(RING, 0)[which]
    refusal(RING, 0, Section.TX, 0, flip(RING.images[0], Section.TX, 0, 16 * at + 4, bit))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0x02066040, 0x020660C0),  # the barrier of a reduce word
        (0x020A6000, 0x020A6080),  # another accumulator than bf16's
        (0x0206A000, 0x0206A080),  # fp32 that is not accumulated as fp32r
        (0x02466000, 0x02466080),  # EXT
        (0x02160A60, 0x02160AE0),  # FMA without operand descriptors
    ],
)
def test_a_whole_packet_of_other_reduce_words(first: int, last: int) -> None:
    """All words of the packet changed alike, so that only the law about the word itself can tell."""
    at = places(RING, 0)["reduce"]
    image = write(RING, 0, Section.TX, 0, at, meta_ctrl=first)
    ring = Ring()
    ring.__dict__["images"] = (image, *RING.images[1:])
    refusal(ring, 0, Section.TX, 0, write(ring, 0, Section.TX, 0, at + 1, meta_ctrl=last))


def test_lengths_of_both_sides_agree() -> None:
    for kind in (Section.TX, Section.RX):
        for bit in (0, 5, 15):
            assert "TX length" in refusal(RING, 0, Section.TX, 0, flip(RING.images[0], kind, 0, 0, bit))


# --- addresses --------------------------------------------------------------------------------------------------------


def test_a_source_is_in_the_own_rank() -> None:
    """Bit 34 names the other core's window, and with it the other rank's equal feed word. Source: device-model §7."""
    at = places(RING, 0)["signal"]
    source = int(descriptors(RING, 0, Section.TX)[at]["buf_ptr"])
    image = write(RING, 0, Section.TX, 0, at, buf_ptr=source ^ 2 << 34)  # lane 1: cores 2 and 3
    assert "the rank's own memory" in refusal(RING, 0, Section.TX, 0, image)


@pytest.mark.parametrize("kind", [Section.TX, Section.RX])
def test_data_lies_inside_one_declared_buffer(kind: Section) -> None:
    """Before the first buffer, across the end of one, behind the last. Source: device-model §7, low address bits."""
    at = places(RING, 0)["data"]
    own = ARCHES["cayman"].memory(0)
    for offset in (0xFF0, 0x1000 + 790, 0x2000, 1 << 30):
        image = write(RING, 0, kind, 0, at, buf_ptr=own + offset)
        assert "inside one declared buffer" in refusal(RING, 0, kind, 0, image)


@pytest.mark.parametrize("bit", [20, 21, 29, 63, 62, 61, 55, 54, 53, 48, 46])
def test_a_signal_goes_to_a_semaphore_block_and_no_alias(bit: int) -> None:
    """Bits above the 1 MiB block, and routing bits the own chip or no chip has."""
    at = places(RING, 0)["completion"]
    image = flip(RING.images[0], Section.RX, 0, 16 * at + 8, bit)
    refusal(RING, 0, Section.RX, 0, image)


@pytest.mark.parametrize(
    ("register", "expected"),
    [
        (0x1000 + 4 * 9, "INC window"),
        (0x1400 + 4 * 9, "INC window"),
        (0x1C00 + 4 * 9, "INC window"),
        (0x1800 + 4 * 9 + 2, "INC window"),
        (0x1800 + 4 * 7, "a free semaphore"),
        (0x1800 + 4 * 254, "a free semaphore"),
        (0x1800 + 4 * 255, "a free semaphore"),
        (0x1800 + 4 * 10, "a ring channel waits on"),  # the post semaphore
        (0x1800 + 4 * 40, "a ring channel waits on"),
        (0x1800 + 4 * 8, "last descriptor"),  # recv in the place of the completion
    ],
)
def test_a_signal_adds_to_a_semaphore_that_counts(register: int, expected: str) -> None:
    """Window and id exact, 4-byte aligned, id 8 to 253, and one that somebody waits on."""
    at = places(RING, 0)["completion"]
    target = ARCHES["cayman"].semaphores(SP) + register
    image = write(RING, 0, Section.RX, 0, at, buf_ptr=target)
    message = refusal(RING, 0, Section.RX, 0, image)
    assert expected in message or "last descriptor" in message


def test_a_signal_to_a_rank_that_does_not_exist() -> None:
    """Lane 3 of the chip is not in the operation; chip 5 neither."""
    at = places(RING, 0)["signal"]
    for address in (ARCHES["cayman"].semaphores(15) + 0x1820, ARCHES["cayman"].semaphores(3) + (0x45 << 48) + 0x1820):
        image = write(RING, 0, Section.RX, 0, at, buf_ptr=address)
        assert "a rank of this operation" in refusal(RING, 0, Section.RX, 0, image)


def test_a_signal_is_fed_by_a_feed_word() -> None:
    at = places(RING, 0)["signal"]
    own = ARCHES["cayman"].memory(0)
    for offset in (0x7C, 0x82, 0x84, 0x1000):
        image = write(RING, 0, Section.TX, 0, at, buf_ptr=own + offset)
        assert "a feed word" in refusal(RING, 0, Section.TX, 0, image)


def test_padding_is_the_start_of_the_pad_line_and_short() -> None:
    """All traffic of the line is ignored, so nothing about it may vary."""
    at = places(RING, 0, PADDED)
    assert int(descriptors(RING, 0, Section.RX, PADDED)["buf_ptr"][at["pad"]]) == ARCHES["cayman"].memory(0) + 0x40
    for kind, name in ((Section.RX, "pad"), (Section.TX, "pad_tx")):
        for bit in (0, 2, 5):
            refusal(RING, 0, kind, PADDED, flip(RING.images[0], kind, PADDED, 16 * at[name] + 8, bit))


# --- rows -------------------------------------------------------------------------------------------------------------


def test_strong_order_is_required_on_the_last_data_write() -> None:
    image = flip(RING.images[0], Section.RX, 0, 0, 29)
    assert int(descriptors(RING, 0, Section.RX)[0]["len_ctrl"]) & RxFlag.STRONG_ORDER_WR
    assert "strong order exactly" in refusal(RING, 0, Section.RX, 0, image)


@pytest.mark.parametrize("name", ["signal", "completion", "pad"])
def test_strong_order_is_refused_elsewhere(name: str) -> None:
    """On a signal, on the completion, on padding: there it would order nothing."""
    at = places(RING, 0, PADDED)[name]
    image = flip(RING.images[0], Section.RX, PADDED, 16 * at, 29)
    assert "strong order exactly" in refusal(RING, 0, Section.RX, PADDED, image)


def test_trn1_has_no_strong_order() -> None:
    """Bit 29 of RX is refused there. Source: design §2 (19)."""
    image = flip(SUNDA.images[0], Section.RX, 0, 0, 29)
    assert "no other flags" in refusal(SUNDA, 0, Section.RX, 0, image)


def test_trn1_needs_a_barrier_on_the_first_signal_behind_data() -> None:
    at = places(SUNDA, 0)["signal"]
    assert int(descriptors(SUNDA, 0, Section.TX)[at]["len_ctrl"]) & TxFlag.DMB
    image = flip(SUNDA.images[0], Section.TX, 0, 16 * at, 30)
    assert "a barrier exactly on the first signal" in refusal(SUNDA, 0, Section.TX, 0, image)


@pytest.mark.parametrize("name", ["data", "completion", "reduce", "reduce_last"])
def test_trn1_takes_a_barrier_nowhere_else(name: str) -> None:
    """Not on data, on a second signal, or on any source of a reduction."""
    at = places(SUNDA, 0)[name]
    image = flip(SUNDA.images[0], Section.TX, 0, 16 * at, 30)
    assert "barrier" in refusal(SUNDA, 0, Section.TX, 0, image)


def swapped(ring: Ring, rank: int, index: int, left: int, right: int) -> bytes:
    """Exchange two packets of one TX and one RX descriptor; the phase is the same for both."""
    images = ring.images[rank]
    for kind in (Section.TX, Section.RX):
        both = descriptors(ring, rank, kind, index)
        images = edit(images, kind, index, 16 * left, both[right : right + 1].tobytes())
        images = edit(images, kind, index, 16 * right, both[left : left + 1].tobytes())
    return images


def test_the_completion_of_a_row_comes_last() -> None:
    """The signal to the next rank and the own completion exchanged, on one fold."""
    at = places(RING, 0)
    image = swapped(RING, 0, 0, at["signal"], at["completion"])
    assert "last descriptor of every fold" in refusal(RING, 0, Section.RX, 0, image)


def test_signals_come_behind_the_data() -> None:
    image = swapped(RING, 0, 0, 0, 1)
    assert "signals behind all data" in refusal(RING, 0, Section.RX, 0, image)


def test_every_fold_gives_the_same_signals() -> None:
    """Data and credit of a row exchanged on one fold: the order says which comes first."""
    tx, rx = descriptors(RING, 0, Section.TX), descriptors(RING, 0, Section.RX)
    block = ARCHES["cayman"].topsp
    signal = (rx["buf_ptr"] & ((1 << 47) - 1)) >= block
    first = int(np.flatnonzero(signal[:-2] & signal[1:-1] & signal[2:])[0])  # three in a row: data, credit, completion
    image = RING.images[0]
    pair = rx[[first + 1, first]].copy()
    image = edit(image, Section.RX, 0, 16 * first, pair.tobytes())
    assert tx.size > rx.size
    assert "in this order" in refusal(RING, 0, Section.RX, 0, image)


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


def test_the_algorithm_is_a_ring() -> None:
    """Single-cycle ring, nibble 4, walks its rows alike; the loader does not take one for the other."""
    assert "plain RING" in refusal(RING, 0, Section.CTRL, SP, edit(RING.images[0], Section.CTRL, SP, 1, b"\4"))


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
    """Equal sums, but one descriptor moved from one row to the next."""
    raw = np.frombuffer(section(RING.images[0], Section.SLOT, SLOT), "<u2").reshape(-1, 4)[: slot_entries()].copy()
    pair = next(i for i in range(raw.shape[0] - 1) if raw[i, 2] == raw[i + 1, 2] == 1)
    raw[pair, :2] += 1
    raw[pair + 1, :2] -= 1
    image = edit(RING.images[0], Section.SLOT, SLOT, 0, raw.tobytes())
    images = [image, *RING.images[1:]]
    with pytest.raises(DecodeError, match=r"whole packets|last descriptor of every fold"):
        load(images)


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
    assert "CONTINUE" in refusal(RING, 0, Section.SLOT, SLOT, image)


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
    assert "semaphores 8 to 11" in message


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
        CONF.part("device_ids").at,
        CONF.size - 1,
    ],
)
def test_what_no_channel_uses_is_zero(at: int) -> None:
    assert "0 in what no channel uses" in refusal(
        RING, 0, Section.CONF, SP, flip(RING.images[0], Section.CONF, SP, at, 0)
    )


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
    sections = {place: section(ring.images[0], *place) for place in table(ring.images[0])}
    sections[Section.MEM, 0x80] = np.array(words, "<u4").tobytes()
    image = pack_image([(*place, data) for place, data in sections.items()])
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
    """next(prev(r)) = r: images of two collectives in which rank 0 follows another rank do not fit."""
    other = Ring(orders=((0, 2, 1), (1, 2, 0)))
    with pytest.raises(DecodeError) as caught:
        load([other.images[0], *RING.images[1:]])
    assert "ring" in str(caught.value)


@pytest.mark.parametrize("flag", [2, 4])
def test_what_is_signalled_is_waited_for(flag: int) -> None:
    """A row that does not receive, or takes no credit: the semaphore gets more than is taken from it."""
    raw = np.frombuffer(section(RING.images[0], Section.SLOT, SLOT), "u1").reshape(-1, 8)[: slot_entries()]
    entry = int(np.flatnonzero(raw[:, 6] == 0)[0])  # receives and sends
    image = edit(RING.images[0], Section.SLOT, SLOT, 8 * entry + 6, bytes([flag]))
    assert "signals of" in refusal(RING, 0, Section.SLOT, SLOT, image, where=Section.CONF)
