"""Moves between state buffers as 0xBF words: the rules of device §11, the cutting, both cores' words, descriptors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rota.emit.sb2sb import Move, StateTensor, encode_section, idle_words, sb2sb_sections, sb2sb_streams, sb2sb_words
from rota.emit.sb2sb_leg import RECEIVING, leg_of
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa import state_buffer as facts
from rota.isa.arch import ARCHES
from rota.isa.descriptors import COPY_WORD, RxFlag, TxFlag, decode_length
from rota.isa.dtypes import Dtype
from rota.isa.engines import SBUF_FEED_OFFSET
from rota.isa.image import Section
from rota.isa.opcodes import Opcode
from rota.isa.state_buffer import Handshake
from rota.isa.transfers import LncSize, decode_sb2sb
from rota.machine.platform import load_platform


def line(core: int, count: int, **other: Any) -> StateTensor:
    """Return `count` elements in a row, bf16 where nothing else is said."""
    return StateTensor(**{"core": core, "num": (1, 1, count), "dtype": Dtype.BFLOAT16, "channels": 4, **other})


def words_of(stream: bytes) -> list[bytes]:
    return [stream[at : at + 64] for at in range(0, len(stream), 64)]


# --- facts ------------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_leg() -> None:
    """device §11, all-reduce §8, platforms §2: typed a second time."""
    assert (facts.PARTITIONS, facts.MIN_GENERATION, facts.QUADRANT_PARTITIONS) == (128, 3, 32)
    assert facts.PARTITION_SIZE == {"sunda": 196608, "cayman": 229376, "mariana": 262144}
    assert (facts.REACH, facts.SINK, facts.SINK_SIZE, facts.USABLE, facts.LIMIT) == (
        0x38000, 0x37FF0, 8, 0x37FF0, 229372,
    )  # fmt: skip
    assert (facts.COMPLETION, facts.RECEIVE, facts.ENGINE_MASK, facts.READY) == (8, 9, 1, 1)
    assert (facts.POOL_VIEW, facts.COMPUTE_VIEW) == (0x40000000, 0x42000000)
    assert {0xBF, 0xBE, 0xF0} == facts.DECODED
    assert not facts.DECODED & {Opcode(each) for each in (0xC7, 0xC8, 0xD9, 0xDA)}
    assert list(facts.DECODE_SET) == [
        "ExtendedInstCopy", "ExtendedInstCptc", "ExtendedInstRandGetState", "ExtendedInstRandSetState",
        "ExtendedInstTensorTensorArith", "GetSequenceBounds", "SB2SB_Collective", "Sbuf2Sbuf",
    ]  # fmt: skip
    assert [each.name for each in Handshake] == [
        "ISSUE", "ANNOUNCE", "READ_READY", "BUILD", "RX_TAIL", "SIGNAL", "WAIT_SIGNAL", "TX_TAIL", "COMPLETE",
    ]  # fmt: skip


def test_partners() -> None:
    """Cores pair up 0-1, 2-3, ..; the engine that faces one on the other die is engine XOR 2. isa §6.5, device §11."""
    assert [facts.partner(core) for core in range(8)] == [1, 0, 3, 2, 5, 4, 7, 6]
    assert [facts.die_partner(engine) for engine in range(4)] == [2, 3, 0, 1]


@pytest.mark.parametrize("arch", ["cayman", "mariana"])
def test_addresses_of_state_buffers(arch: str) -> None:
    """A window a core, the die in bit 47; the pair of cores that faces one differs in that bit alone."""
    place = ARCHES[arch]
    found = [facts.state_buffer(place, core) for core in range(8)]
    assert found[:4] == [0x20_0000_0000, 0x30_0000_0000, 0x40_0000_0000, 0x50_0000_0000]
    for core in range(8):
        across = 2 * facts.die_partner(core // 2) + core % 2
        assert found[core] ^ found[across] == 1 << 47
    address = np.array([found[5] + (97 << 18) + 12345])
    assert [int(each[0]) for each in facts.place_in_state_buffer(place, address)] == [5, 97, 12345]


@pytest.mark.parametrize(
    ("platform", "arch", "lnc"),
    [("trn1.2xlarge", "sunda", 1), ("trn2.3xlarge", "cayman", 2), ("trn3pds98", "mariana", 2)],
)
def test_a_state_buffer_is_as_large_as_the_machine_file_says(platform: str, arch: str, lnc: int) -> None:
    """platforms §2: partitions x bytes of a partition x cores of the rank."""
    want = facts.PARTITIONS * facts.PARTITION_SIZE[arch] * lnc
    assert load_platform(platform).parameters["sbuf_bytes"].value == want


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_word_byte_by_byte() -> None:
    """isa §5.9: the wait names the semaphore of receptions, the update that of completions; LNC2 to the partner."""
    source = line(0, 4, partition=32, offset=16, channels=32, num=(1, 2, 2), step=(0, -8, 1))
    target = line(1, 4, partition=64, offset=0x100, channels=32)
    (word,) = sb2sb_words(source, target, arch="cayman", received=3)
    assert word.hex(" ", 4) == (
        "bf100000 05091308 03000000 06060000 10008000 0000f8ff 01000100 02000200 "
        "01200000 00000000 00000000 00000000 00010001 00000000 01000100 01000400"
    )
    (own,) = sb2sb_words(line(0, 4), line(0, 4, offset=64), arch="cayman")
    assert decode_sb2sb(own).lnc_size is LncSize.LNC1


@pytest.mark.parametrize(
    ("num", "step", "shapes"),
    [
        ((1, 1, 256), (0, 0, 1), [(1, 1, 256)]),
        ((1, 1, 600), (0, 0, 2), [(1, 1, 256), (1, 1, 256), (1, 1, 88)]),
        ((4, 16, 16), (1000, 20, 1), [(1, 16, 16)] * 4),
        ((9, 4, 20), (1000, 50, 2), [(3, 4, 20)] * 3),
        ((2, 2, 300), (4000, 700, 2), [(1, 1, 256), (1, 1, 44)] * 4),  # the line is cut, then its rest
        ((2, 5, 100), (4000, 300, 2), [(1, 2, 100), (1, 2, 100), (1, 1, 100)] * 2),
        ((4, 16, 16), (256, 16, 1), [(1, 1, 256)] * 4),  # one line after all
        ((2, 16, 3), (3, 6, 1), [(2, 16, 3)]),
        ((3, 1, 2), (40000, 0, 1), [(1, 1, 2)] * 3),  # the step does not fit a word
        ((1, 1, 3), (0, 0, -40000), [(1, 1, 1)] * 3),
    ],
)
def test_a_move_is_cut_at_256_elements(
    num: tuple[int, int, int], step: tuple[int, int, int], shapes: list[tuple[int, int, int]]
) -> None:
    """Each word has the most elements that are a pattern on both sides. device §11: source at most 256 elements."""
    source = line(0, 1, num=num, step=step, offset=90_000 if min(step) < 0 else 0, dtype=Dtype.UINT8)
    target = line(1, num[0] * num[1] * num[2], dtype=Dtype.UINT8)
    words = [decode_sb2sb(word) for word in sb2sb_words(source, target, arch="mariana")]
    assert [word.src.num for word in words] == shapes
    assert all(word.src.elements == word.dst.elements <= 256 for word in words)
    assert [word.events.semaphore_value for word in words] == list(range(len(words)))


def test_shapes_that_do_not_nest_are_cut_to_common_runs() -> None:
    """One word may hold two shapes; where lines of 200 meet lines of 3, a word ends at the end of either."""
    source = line(0, 12, num=(1, 3, 4), step=(0, 10, 1))
    target = line(1, 12, num=(1, 4, 3), step=(0, 10, 1))
    (word,) = (decode_sb2sb(word) for word in sb2sb_words(source, target, arch="cayman"))
    assert (word.src.num, word.dst.num) == ((1, 3, 4), (1, 4, 3))
    source = line(0, 600, num=(1, 3, 200), step=(0, 250, 1))
    target = line(1, 600, num=(1, 200, 3), step=(0, 10, 1))
    words = [decode_sb2sb(word) for word in sb2sb_words(source, target, arch="cayman")]
    assert [word.src.elements for word in words] == [198, 2, 1, 198, 1, 2, 198]


def test_a_core_that_only_receives_sends_reserved_bytes() -> None:
    """Every word of one core has one on the other; what has nothing to send moves an element of the sink."""
    streams = sb2sb_streams([[Move(line(1, 300), line(0, 300))]], arch="cayman")
    assert [len(words_of(stream)) for stream in streams] == [2, 2]
    idle = [decode_sb2sb(word) for word in words_of(streams[0])]
    assert {(word.src.address, word.dst.address, word.num_channels) for word in idle} == {(0x37FF0, 0x37FF0, 1)}
    assert [word.events.semaphore_value for word in idle] == [0, 1]
    assert words_of(streams[0]) == idle_words(2, dtype=Dtype.BFLOAT16)


def test_receptions_are_counted_over_all_moves() -> None:
    """A self copy is received too; two moves at once share their words."""
    own = Move(line(0, 300), line(0, 300, offset=4096))
    there, back = Move(line(0, 600), line(1, 600, offset=4096)), Move(line(1, 100), line(0, 100, offset=8192))
    streams = sb2sb_streams([[own], [there, back], [there]], arch="cayman")
    counts = [[decode_sb2sb(word).events.semaphore_value for word in words_of(stream)] for stream in streams]
    assert counts == [list(range(2 + 3 + 3)), list(range(3 + 3))]
    lnc = [[decode_sb2sb(word).lnc_size.value for word in words_of(stream)] for stream in streams]
    assert lnc == [[0, 0, 1, 1, 1, 1, 1, 1], [1] * 6]


# --- rules ------------------------------------------------------------------------------------------------------------

GOOD, FAR = line(0, 8), line(1, 8)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (GOOD, FAR, {"arch": "sunda"}, "rule 'core version': expected 3 or later, sunda is 2"),
        (GOOD, FAR, {"lnc": 4}, r"rule 'lnc format': expected LNC1 \(self\) or LNC2 \(partner\), got 4 cores"),
        (GOOD, FAR, {"lnc": 1}, "rule 'lnc format': expected a target on core 0 itself, got core 1"),
        (GOOD, line(2, 8), {}, "rule 'lnc format': expected a target on core 0 itself or core 1, got core 2"),
        (line(1, 8), line(2, 8), {}, "rule 'lnc format': expected a target on core 1 itself or core 0, got core 2"),
        (line(8, 8), FAR, {}, "rule 'core': source: expected a core from 0 to 7, got 8"),
        (GOOD, line(1, 8, channels=5), {}, "rule 'active channels': source has 4, target 5"),
        (line(0, 8, channels=0), FAR, {}, "rule 'active channels': source: expected 1 to 128, got 0"),
        (GOOD, line(1, 8, channels=129), {}, "rule 'active channels': target: expected 1 to 128, got 129"),
        (GOOD, line(1, 8, channels=33, partition=96), {}, "rule 'active channels': target: ends at partition 128"),
        (GOOD, line(1, 8, partition=31), {}, "rule 'start partition': target: expected one of 0, 32, 64, 96, got 31"),
        (GOOD, line(1, 8, dtype=Dtype.FP16), {}, "rule 'equal dtypes': got bf16 and fp16"),
        (line(0, 8, dtype=Dtype.FP32R), FAR, {}, "rule 'equal dtypes': source: fp32r has no size"),
        (line(0, 8, dtype=Dtype.INVALID), FAR, {}, "rule 'equal dtypes': source: invalid has no size"),
        (GOOD, line(1, 9), {}, "rule 'element count': source has 8 elements a partition, target 9"),
        (line(0, 0), FAR, {}, "rule 'element count': source: every dimension has an element"),
        (line(0, 8, offset=-1), FAR, {}, "rule 'state buffer': source: bytes -1 to 14 of a partition"),
        (line(0, 8, step=(0, 0, -1)), FAR, {}, "rule 'state buffer': source: bytes -14 to 1 of a partition"),
        (GOOD, line(1, 8, offset=0x37FF0 - 15), {}, "rule 'state buffer': target: .* expected 0 to 229359"),
        (GOOD, line(0, 8, offset=15), {}, "rule 'order': source and target share bytes of core 0"),
        (GOOD, line(1, 8, num=(1, 2, 4), step=(0, 3, 1)), {}, "rule 'order': two elements of the target share a byte"),
        (GOOD, FAR, {"completion": 9}, "rule 'semaphores': completion and reception need one each, got 9"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(
    source: StateTensor, target: StateTensor, options: dict[str, Any], message: str
) -> None:
    """device §11: each rule of validity refuses what breaks it."""
    sb2sb_words(GOOD, FAR, arch="cayman")
    with pytest.raises(UnsupportedError, match=message):
        sb2sb_words(source, target, **{"arch": "cayman", **options})


def test_what_is_no_request() -> None:
    """Unknown architectures, semaphores with a meaning, steps that are none."""
    there, back = Move(GOOD, line(1, 8, offset=64)), Move(line(1, 8), line(0, 8, offset=64))
    sb2sb_streams([[there, back]], arch="cayman")
    bad: list[tuple[list[list[Move]], dict[str, Any], str]] = [
        ([[there]], {"arch": "tonga"}, "architecture 'tonga'"),
        ([[there]], {"receive": 1}, "semaphore 1: expected a free id from 8 to 253"),
        ([[there]], {"core": 1}, "core 1: expected the first of a logical core of 2"),
        ([[there]], {"core": 2}, "step 0: expected tensors on cores 2 to 3"),
        ([[there], []], {}, "step 1: expected one move, or two that start on different cores, got 0"),
        ([[there, there]], {}, "step 0: expected one move, or two that start on different cores, got 2"),
        ([[there, Move(line(1, 8), line(1, 8, offset=64))]], {}, "step 0: two moves at once go in opposite directions"),
    ]
    for steps, options, message in bad:
        with pytest.raises(UsageError, match=message):
            sb2sb_streams(steps, **{"arch": "cayman", **options})


def test_moves_at_once_do_not_write_what_the_other_one_reads() -> None:
    """Two cores that swap in place need a third place."""
    with pytest.raises(UnsupportedError, match="rule 'order': step 0: a move writes what the other one reads"):
        sb2sb_streams([[Move(GOOD, FAR), Move(FAR, GOOD)]], arch="cayman")


# --- descriptors ------------------------------------------------------------------------------------------------------


def test_the_descriptors_of_a_word() -> None:
    """device §11: data of every channel, then LOCAL on the own core and REMOTE on the peer, fed by a constant word."""
    source = line(4, 4, num=(1, 2, 2), step=(0, 8, 1), channels=2, partition=32)
    (word,) = sb2sb_words(source, line(5, 4, channels=2), arch="cayman")
    leg = leg_of(word, core=4, arch="cayman")
    here, there = (1 << 47) + 0x20_0000_0000, (1 << 47) + 0x30_0000_0000
    assert (leg.sender, leg.receiver, leg.engines) == (4, 5, 1)
    feed = here + SBUF_FEED_OFFSET
    base = here + (32 << 18)
    assert leg.tx["buf_ptr"].tolist() == [base, base + 16, base + (1 << 18), base + (1 << 18) + 16, feed, feed]
    semaphores = [(1 << 47) + 0x82_8000_0000 + (0 << 30), (1 << 47) + 0x82_8000_0000 + (2 << 30)]
    assert leg.rx["buf_ptr"].tolist() == [
        there, there + 4, there + (1 << 18), there + (1 << 18) + 4,
        semaphores[0] + 0x1800 + 4 * 8, semaphores[1] + 0x1800 + 4 * 9,
    ]  # fmt: skip
    assert decode_length(leg.tx["len_ctrl"]).tolist() == decode_length(leg.rx["len_ctrl"]).tolist() == [4] * 6
    assert set(leg.tx["meta_ctrl"].tolist()) == {COPY_WORD}
    assert (leg.tx["len_ctrl"] & TxFlag.FIRST != 0).tolist() == [True, False, False, False, True, True]
    assert (leg.tx["len_ctrl"] & TxFlag.LAST != 0).tolist() == [False, False, False, True, True, True]
    assert (leg.rx["len_ctrl"] & RxFlag.STRONG_ORDER_WR != 0).tolist() == [False, False, False, True, False, False]


def test_packets_of_a_word_are_as_long_as_the_engine_takes() -> None:
    """sdma §7: at most 60 descriptors; elements that do not touch each other have one each."""
    (word,) = sb2sb_words(line(0, 100, step=(0, 0, 2)), line(1, 100), arch="cayman")
    leg = leg_of(word, core=0, arch="cayman")
    assert leg.tx.size == 4 * 100 + 2
    assert np.flatnonzero(leg.tx["len_ctrl"] & TxFlag.FIRST).tolist() == [*range(0, 400, 60), 400, 401]


def test_who_does_what_for_a_word() -> None:
    """device §11: the receiver announces, publishes and signals; the sender does the rest. A self copy does both."""
    (word,) = sb2sb_words(GOOD, FAR, arch="cayman")
    steps = leg_of(word, core=0, arch="cayman").handshake
    assert [step for core, step in steps if core == 1] == sorted(RECEIVING)
    assert [step for _, step in steps] == list(Handshake)
    (own,) = sb2sb_words(GOOD, line(0, 8, offset=64), arch="cayman")
    assert {core for core, _ in leg_of(own, core=0, arch="cayman").handshake} == {0}


def test_a_leg_needs_addresses_and_a_size() -> None:
    """What is in a register is not known here."""
    (word,) = sb2sb_words(GOOD, FAR, arch="cayman")
    with pytest.raises(UnsupportedError, match="expected elements with a size, at addresses in the word"):
        leg_of(word[:19] + b"\x80" + word[20:], core=0, arch="cayman")
    with pytest.raises(UnsupportedError, match="expected elements with a size"):
        leg_of(word[:12] + b"\x0b\x0b" + word[14:], core=0, arch="cayman")
    with pytest.raises(DecodeError):
        leg_of(word[:63], core=0, arch="cayman")


# --- sections ---------------------------------------------------------------------------------------------------------


def test_sections_of_an_image() -> None:
    """One section a core that has words, by its first stream processor; its bytes are the words."""
    streams = sb2sb_streams([[Move(GOOD, FAR)]], arch="cayman")
    assert sb2sb_sections(streams, arch="cayman") == [(Section.SB2SB, 0, streams[0]), (Section.SB2SB, 2, streams[1])]
    own = sb2sb_streams([[Move(GOOD, line(0, 8, offset=64))]], arch="cayman")
    assert [index for _, index, _ in sb2sb_sections(own, arch="cayman")] == [0]


def test_what_is_no_section() -> None:
    """Only whole words that the hardware takes are put into an image."""
    (word,) = sb2sb_words(GOOD, FAR, arch="cayman")
    assert encode_section(word) == word
    with pytest.raises(UsageError, match="at least one word"):
        encode_section(b"")
    with pytest.raises(DecodeError, match="truncated sb2sb_word at offset 64"):
        encode_section(word + word[:63])
    with pytest.raises(UnsupportedError, match="channels must be from 1 to 128, got 0"):
        encode_section(word[:33] + b"\0" + word[34:])
    with pytest.raises(DecodeError, match="expected SB2SB_COLLECTIVE 0xBF"):
        encode_section(b"\xc7" + word[1:])


def test_tensors_are_values() -> None:
    """Two spellings of one tensor are equal; where its bytes are follows from the fields."""
    tensor = line(0, 6, num=(1, 2, 3), step=(0, -4, 1), offset=100)
    assert tensor == dataclasses.replace(tensor)
    assert (tensor.count, tensor.span) == (6, (92, 106))
    assert tensor.bytes_of_elements().tolist() == [100, 102, 104, 92, 94, 96]
