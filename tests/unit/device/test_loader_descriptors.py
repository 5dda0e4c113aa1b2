"""The loader's checks of descriptors, row by row of device-model §7: words, addresses, and what a row is made of."""

from __future__ import annotations

import numpy as np
import pytest
from planted import PADDED, RING, SP, descriptors, places, refusal, write
from tests.images import TRN1, Ring, edit, flip

from rota.isa.arch import ARCHES
from rota.isa.descriptors import RxFlag, TxFlag
from rota.isa.image import Section

SUNDA = Ring(platform_name=TRN1, groups=((0, 1, 2),))

# --- descriptor words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [*range(16, 23), 28, 29, 30])
def test_tx_word_0_has_no_other_bits(bit: int) -> None:
    """Length adjustment, DUMMY, INT_EN, NO_SNOOP, and DMB where writes can be ordered."""
    image = flip(RING.images[0], Section.TX, 0, 0, bit)
    assert "no other flags" in refusal(RING, 0, Section.TX, 0, image)


def test_an_operand_reads_nothing() -> None:
    """META on a descriptor with a length. Source: sdma §5."""
    image = flip(RING.images[0], Section.TX, 0, 0, 23)
    assert "no length, and data behind it" in refusal(RING, 0, Section.TX, 0, image)


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
    ],
)
def test_a_whole_packet_of_other_reduce_words(first: int, last: int) -> None:
    """All words of the packet changed alike, so that only the law about the word itself can tell."""
    at = places(RING, 0)["reduce"]
    image = write(RING, 0, Section.TX, 0, at, meta_ctrl=first)
    ring = Ring()
    ring.__dict__["images"] = (image, *RING.images[1:])
    message = refusal(ring, 0, Section.TX, 0, write(ring, 0, Section.TX, 0, at + 1, meta_ctrl=last))
    assert "an operation this version runs, without a barrier" in message


def test_lengths_of_both_sides_agree() -> None:
    for kind in (Section.TX, Section.RX):
        for bit in (0, 5, 15):
            assert "TX length" in refusal(RING, 0, Section.TX, 0, flip(RING.images[0], kind, 0, 0, bit))


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_fma_has_its_scales() -> None:
    """A reduce packet of FMA words whose sources stand without operands."""
    at = places(RING, 0)["reduce"]
    ring = Ring()
    ring.__dict__["images"] = (write(RING, 0, Section.TX, 0, at, meta_ctrl=0x0216A600), *RING.images[1:])
    image = write(ring, 0, Section.TX, 0, at + 1, meta_ctrl=0x0216A680)
    assert "its operands in their places" in refusal(ring, 0, Section.TX, 0, image)


def test_a_ring_reads_its_own_rank() -> None:
    """The same buffer of another rank of the chip, which a mesh may read. Source: device-model §7."""
    at = places(RING, 0)["data"]
    source = int(descriptors(RING, 0, Section.TX)[at]["buf_ptr"])
    image = write(RING, 0, Section.TX, 0, at, buf_ptr=source ^ 2 << 34)
    assert "the rank's own memory, on a plain ring" in refusal(RING, 0, Section.TX, 0, image)


def test_nobody_reads_a_semaphore() -> None:
    at = places(RING, 0)["data"]
    image = write(RING, 0, Section.TX, 0, at, buf_ptr=ARCHES["cayman"].semaphores(SP) + 0x1020)
    assert "memory of a rank" in refusal(RING, 0, Section.TX, 0, image)


def test_a_constant_is_one_of_the_own_rank() -> None:
    """Bit 34 names the other core's window, and with it the other rank's equal feed word. Source: device-model §7."""
    at = places(RING, 0)["signal"]
    source = int(descriptors(RING, 0, Section.TX)[at]["buf_ptr"])
    image = write(RING, 0, Section.TX, 0, at, buf_ptr=source ^ 2 << 34)  # lane 1: cores 2 and 3
    assert "a feed word" in refusal(RING, 0, Section.TX, 0, image)


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
    wanted = "routing bits" if bit >= 48 else "in HBM or in a semaphore block"
    assert wanted in refusal(RING, 0, Section.RX, 0, image)


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
    ],
)
def test_a_signal_adds_to_a_semaphore_that_counts(register: int, expected: str) -> None:
    """Window and id exact, 4-byte aligned, id 8 to 253, and one that somebody waits on."""
    at = places(RING, 0)["signal"]
    target = ARCHES["cayman"].semaphores(4 + SP) + register  # of rank 1, the next one
    image = write(RING, 0, Section.RX, 0, at, buf_ptr=target)
    assert expected in refusal(RING, 0, Section.RX, 0, image)


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


def test_a_signal_is_a_packet_of_its_own() -> None:
    """Two of them joined: one FIRST, one LAST, as framing allows and no emitter means."""
    at = places(RING, 0)["signal"]
    ring = descriptors(RING, 0, Section.TX)[at : at + 2].copy()
    ring["len_ctrl"] ^= np.array([TxFlag.LAST | TxFlag.CONCAT, TxFlag.FIRST], np.uint32)
    image = edit(RING.images[0], Section.TX, 0, 16 * at, ring.tobytes())
    assert "a packet of its own" in refusal(RING, 0, Section.TX, 0, image)


def test_a_copy_packet_has_at_most_60_descriptors() -> None:
    """The 61st joined to the first 60. Source: sdma §7."""
    alone = Ring(count=61 << 15, groups=((0,),), orders=((0,),), folds=1, halves=1, chunk=61 << 16)
    ring = descriptors(alone, 0, Section.TX)[59:61].copy()
    ring["len_ctrl"] ^= np.array([TxFlag.LAST | TxFlag.CONCAT, TxFlag.FIRST], np.uint32)
    image = edit(alone.images[0], Section.TX, 0, 16 * 59, ring.tobytes())
    assert "at most the packet cap" in refusal(alone, 0, Section.TX, 0, image)


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


def test_signals_of_a_row_have_one_order() -> None:
    """Data and credit of a row exchanged on one fold."""
    rx = descriptors(RING, 0, Section.RX)
    signal = (rx["buf_ptr"] & ((1 << 47) - 1)) >= ARCHES["cayman"].topsp
    first = int(np.flatnonzero(signal[:-2] & signal[1:-1] & signal[2:])[0])  # data, credit, completion
    pair = rx[[first + 1, first]].copy()
    image = edit(RING.images[0], Section.RX, 0, 16 * first, pair.tobytes())
    assert "in this order" in refusal(RING, 0, Section.RX, 0, image)


def test_every_fold_gives_as_many_signals() -> None:
    """A credit more on a fold that has padding to turn into one."""
    at = places(RING, 0, PADDED)["pad"]
    assert at == 0  # the first row: padding, data, completion
    arch = ARCHES["cayman"]
    targets = descriptors(RING, 0, Section.RX, PADDED)["buf_ptr"].tolist()
    before = arch.semaphores(4 + 2) + 0x1800 + 4 * 9  # channel 1 goes the other way round: rank 1 is behind
    image = write(RING, 0, Section.RX, PADDED, 0, buf_ptr=targets[1])
    image = edit(image, Section.RX, PADDED, 16 + 8, before.to_bytes(8, "little"))
    image = edit(image, Section.TX, PADDED, 8, (arch.memory(0) + 0x80).to_bytes(8, "little"))
    assert "as many signals on every fold" in refusal(RING, 0, Section.RX, PADDED, image)


def test_every_fold_gives_the_same_signals() -> None:
    """A credit in the place of the data signal, on one fold of the first row."""
    at = places(RING, 0)["signal"]
    before = (1 << 54) + (1 << 48) + ARCHES["cayman"].semaphores(SP) + 0x1800 + 4 * 9  # rank 4 is lane 0 of chip 1
    image = write(RING, 0, Section.RX, 0, at, buf_ptr=before)
    assert "the same signals on every fold" in refusal(RING, 0, Section.RX, 16, image)
