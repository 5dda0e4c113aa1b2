"""The cores of a logical core carry out their 0xBF words: bytes, log, semaphores, and what is refused. device §11."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rota.columns import U8
from rota.device.sb2sb import descriptors, empty_state_buffer, run_sb2sb
from rota.device.sb2sb_words import core_of_section, decode_section
from rota.emit.sb2sb import Move, StateTensor, sb2sb_sections, sb2sb_streams, sb2sb_words
from rota.emit.sb2sb_leg import leg_of
from rota.errors import DecodeError, StuckError, UnsupportedError, UsageError
from rota.isa.arch import ARCHES
from rota.isa.dtypes import Dtype
from rota.isa.opcodes import Opcode


def line(core: int, count: int, **other: Any) -> StateTensor:
    """Return `count` elements in a row, bf16 where nothing else is said."""
    return StateTensor(**{"core": core, "num": (1, 1, count), "dtype": Dtype.BFLOAT16, "channels": 4, **other})


def filled(cores: int, arch: str = "cayman") -> list[U8]:
    """Return state buffers whose first 16 KiB of every partition are random."""
    rng = np.random.default_rng(7)
    out = [empty_state_buffer(arch) for _ in range(cores)]
    for each in out:
        each[:, : 1 << 14] = rng.integers(0, 256, (128, 1 << 14), np.uint8)
    return out


def partner_streams(count: int = 8) -> tuple[bytes, ...]:
    return sb2sb_streams([[Move(line(0, count), line(1, count, offset=4096))]], arch="cayman")


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["cayman", "mariana"])
def test_a_move_to_the_partner(arch: str) -> None:
    """What core 0 has in partitions 32 to 35 then stands at byte 4096 of core 1's 0 to 3, and nothing else moves."""
    before = filled(2, arch)
    move = Move(line(0, 700, partition=32), line(1, 700, offset=4096))
    after = run_sb2sb(sb2sb_streams([[move]], arch=arch), before, arch=arch)
    want = before[1].copy()
    want[:4, 4096 : 4096 + 1400] = before[0][32:36, :1400]
    assert (after.buffers[0] == before[0]).all()
    assert (after.buffers[1] == want).all()


def test_a_move_on_one_core() -> None:
    """LNC1 copies a core's own bytes; the buffer that was given stays as it was."""
    before = filled(1)
    kept = before[0].copy()
    stream = sb2sb_streams([[Move(line(3, 10), line(3, 10, offset=100))]], arch="cayman", lnc=1, core=3)
    after = run_sb2sb(stream, before, arch="cayman", core=3)
    assert (after.buffers[0][:4, 100:120] == kept[:4, :20]).all()
    assert (before[0] == kept).all()


def test_two_moves_at_once() -> None:
    """Both directions in the words of one step; the longer one goes on alone."""
    before = filled(2)
    there, back = Move(line(0, 600), line(1, 600, offset=4096)), Move(line(1, 20), line(0, 20, offset=8192))
    after = run_sb2sb(sb2sb_streams([[there, back]], arch="cayman"), before, arch="cayman")
    assert (after.buffers[1][:4, 4096:5296] == before[0][:4, :1200]).all()
    assert (after.buffers[0][:4, 8192:8232] == before[1][:4, :40]).all()


def test_elements_go_in_order_of_the_last_dimension() -> None:
    """A transposition: lines of the source become elements of the target's lines."""
    before = filled(2)
    source = line(0, 6, num=(1, 2, 3), step=(0, 1, 2), dtype=Dtype.UINT8, channels=1)
    target = line(1, 6, num=(1, 2, 3), step=(0, -3, 1), offset=103, dtype=Dtype.UINT8, channels=1)
    after = run_sb2sb(sb2sb_streams([[Move(source, target)]], arch="cayman"), before, arch="cayman")
    a = before[0][0]
    assert after.buffers[1][0, 100:106].tolist() == [a[1], a[3], a[5], a[0], a[2], a[4]]


# --- protocol ---------------------------------------------------------------------------------------------------------


def test_semaphores_count_words() -> None:
    """LOCAL adds one to the own completion semaphore, REMOTE one to the peer's receive semaphore. device §11."""
    streams = partner_streams(600)
    after = run_sb2sb(streams, filled(2), arch="cayman")
    assert after.semaphores[:, [8, 9]].tolist() == [[3, 3], [3, 3]]
    assert after.semaphores.sum() == 12


def test_the_lines_of_the_firmware() -> None:
    """all-reduce §8, device §14: literal lines, values in them; P is the core."""
    after = run_sb2sb(partner_streams(), filled(2), arch="cayman")
    assert list(after.log[0]) == [
        "P0: Decode : SB2SB_Collective",
        "P0: SB2SB_Collective : total_src_nelem = 8, total_dst_nelem = 8, dtype=6, dst_nc=1, src_nc=0, mask=0x1",
        "P0: SB2SB_Collective: num_chans = 4, tpb_idx = 0",
        "P0: SB2SB Pre-sync: This TPB (NC 0) is letting NC 1 know that we are ready to receive data.",
        "P0: SB2SB Pre-sync: remote_pool_xt_addr=0x40000000, remote_q7_xt_addr=0x42000000, "
        "sb2sb_ready_to_receive_remote=0x1",
    ]
    assert after.log[1][1:4] == (
        "P1: SB2SB_Collective : total_src_nelem = 1, total_dst_nelem = 1, dtype=6, dst_nc=0, src_nc=1, mask=0x1",
        "P1: SB2SB_Collective: num_chans = 1, tpb_idx = 1",
        "P1: SB2SB Pre-sync: This TPB (NC 1) is letting NC 0 know that we are ready to receive data.",
    )


def test_a_receiver_that_is_never_ready() -> None:
    """The message names both cores and the word."""
    own = Move(line(1, 8), line(1, 8, offset=64))
    streams = partner_streams(600)
    with pytest.raises(StuckError) as caught:
        run_sb2sb([streams[0], b""], filled(2), arch="cayman")
    assert str(caught.value) == (
        "core 0 waits at word 0 (offset 0) for core 1 to be ready to receive: core 1 has ended after 0 words"
    )
    short = sb2sb_streams([[own]], arch="cayman")[1]
    with pytest.raises(StuckError, match="core 1 has ended after 1 words") as caught:
        run_sb2sb([streams[0], short], filled(2), arch="cayman")
    assert len(caught.value.waiting) == 1
    with pytest.raises(StuckError, match=r"core 1 waits at word 2 \(offset 128\) for core 0 .* core 0 has ended"):
        run_sb2sb([streams[0][:128], streams[1]], filled(2), arch="cayman")
    with pytest.raises(StuckError, match="for core 1 to be ready to receive: core 1 does not run"):
        run_sb2sb([streams[0]], filled(1), arch="cayman")


def test_a_wait_that_never_ends() -> None:
    """A word that waits for more receptions than come, and its partner that waits for it."""
    streams = partner_streams(600)
    late = streams[1][:64] + streams[1][64:72] + b"\5" + streams[1][73:]
    with pytest.raises(StuckError) as caught:
        run_sb2sb([streams[0], late], filled(2), arch="cayman")
    assert caught.value.waiting == (
        "core 0 waits at word 1 (offset 64) for core 1 to be ready to receive: core 1 is at word 1 (offset 64)",
        "core 1 waits at word 1 (offset 64) for semaphore 9 to reach 5, it is 1",
    )


def rounds(count: int) -> tuple[bytes, ...]:
    """Return words by which a value goes from core to core, on each of them first to another place."""
    steps = []
    for i in range(count):
        here, there = i % 2, 1 - i % 2
        steps.append([Move(line(here, 2), line(here, 2, offset=64))])
        steps.append([Move(line(here, 2, offset=64), line(there, 2))])
    return sb2sb_streams(steps, arch="cayman")


@pytest.mark.parametrize("waits", [True, False])
def test_every_order_gives_the_same_bytes(waits: bool) -> None:
    """Whoever goes next and however data lands, also where no word says how many receptions it waits for."""
    streams = list(rounds(40))
    if not waits:
        zeroed = [bytearray(stream) for stream in streams]
        for stream in zeroed:
            for at in range(0, len(stream), 64):
                stream[at + 8 : at + 12] = bytes(4)
        streams = [bytes(stream) for stream in zeroed]
    before = filled(2)
    want = before[0][:4, :4]
    turns = run_sb2sb(streams, before, arch="cayman")
    for seed in range(4):
        after = run_sb2sb(streams, before, arch="cayman", rng=np.random.default_rng(seed))
        for core in range(2):
            assert (after.buffers[core][:4, :4] == want).all()
            assert (after.buffers[core][:4, 64:68] == want).all()
            assert np.array_equal(after.buffers[core], turns.buffers[core])
        assert (turns.semaphores == after.semaphores).all()
        assert turns.log == after.log


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [0xC7, 0xC8, 0xD9, 0xDA])
def test_a_trigger_never_reaches_the_device(opcode: int) -> None:
    """all-reduce §8: no trigger is in the decode set; the error names the operation, and the eight there are."""
    streams = partner_streams()
    with pytest.raises(DecodeError) as caught:
        run_sb2sb([streams[0] + bytes([opcode]) + bytes(63), streams[1]], filled(2), arch="cayman")
    name = Opcode(opcode).name
    assert str(caught.value) == (
        "operation at offset 64: expected an operation of the device (ExtendedInstCopy, ExtendedInstCptc, "
        "ExtendedInstRandGetState, ExtendedInstRandSetState, ExtendedInstTensorTensorArith, GetSequenceBounds, "
        f"SB2SB_Collective, Sbuf2Sbuf), got {name} 0x{opcode:02X}, which the host lowers"
    )


@pytest.mark.parametrize("opcode", [0xBE, 0xF0])
def test_operations_of_the_decode_set_that_move_nothing(opcode: int) -> None:
    """They are known, and no part of this model."""
    with pytest.raises(DecodeError, match=r"expected SB2SB_COLLECTIVE 0xBF, got .*, which moves nothing between"):
        decode_section(bytes([opcode]) + bytes(63))
    with pytest.raises(DecodeError, match=r"expected an operation of the device .*, got opcode 0x00"):
        decode_section(bytes(64))


def test_an_architecture_without_the_leg() -> None:
    """device §11: core version 3 or later."""
    with pytest.raises(UnsupportedError, match="SB2SB needs core version 3 or later, sunda is 2"):
        run_sb2sb(partner_streams(), [empty_state_buffer("sunda")] * 2, arch="sunda")
    with pytest.raises(UsageError, match="architecture 'tonga'"):
        run_sb2sb(partner_streams(), filled(2), arch="tonga")


WORD = partner_streams()[0]


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (1, b"\x40", "inst_word_len of SB2SB_COLLECTIVE 0xBF at offset 1"),
        (4, b"\x00", "wait_mode of an SB2SB word at offset 4: expected WAIT_FOR_SEM_GE_IMM .*, got NONE"),
        (5, b"\x07", "semaphore of an SB2SB word at offset 5: expected a free one, 8 to 253, got 7"),
        (6, b"\x15", "update_mode of an SB2SB word at offset 6: expected SEM_INC_COMPLETE"),
        (7, b"\xfe", "semaphore of an SB2SB word at offset 7: expected a free one, 8 to 253, got 254"),
        (7, b"\x09", "update_idx of an SB2SB word at offset 7: expected another semaphore than the wait's, got 9"),
        (12, b"\x0b\x0b", "element type of an SB2SB word at offset 12: expected a type with a size, got fp32r"),
        (12, b"\x07", "SB2SB word at offset 0: expected one that passes .*: both element types must be the same"),
        (14, b"\x01", "reserved byte of sb2sb_word at offset 14"),
        (16, b"\xf0\x7f\x03\x00\x01", "access pattern of an SB2SB word at offset 16: expected bytes 0 to 229371"),
        (16, b"\x00\x80\x03", "address of an SB2SB word at offset 16: expected a place in a quadrant .*0x00038000"),
        (19, b"\x02", "source must lie in SBUF, got PSUM"),
        (19, b"\x80", "address of an SB2SB word at offset 16: expected a place in a quadrant .*, got 0x80000000"),
        (24, b"\xff\xff", "access pattern of an SB2SB word at offset 16: .*, got -14 to 1"),
        (30, b"\x01\x01", "source has at most 256 elements a partition, got 257"),
        (30, b"\x09", "descriptors of an SB2SB word at offset 48: expected those of 9 elements, as many as the source"),
        (32, b"\x02", "number of cores must be LNC1 or LNC2, got LNC4"),
        (32, b"\x04", "number of cores at offset 32"),
        (32, b"\x00" + bytes([4]) + bytes(14) + b"\x02\x00\x00\x00", "target of an SB2SB word at offset 48: .* bytes"),
        (33, b"\x00", "channels must be from 1 to 128, got 0"),
        (33, b"\x81", "channels must be from 1 to 128, got 129"),
        (50, b"\x04", "address of an SB2SB word at offset 48"),
        (51, b"\x02", "destination must lie in SBUF, got PSUM"),
        (56, b"\x00", "target of an SB2SB word at offset 48: expected every byte written once, got two elements"),
        (58, b"\xff\xff\xff\xff\xff\xff", "access pattern of an SB2SB word .* 281462092005375 elements"),
    ],
)  # fmt: skip
def test_a_damaged_word(at: int, value: bytes, message: str) -> None:
    """Every rule is checked before anything runs; the offset is that of the section, behind what comes before it."""
    damaged = WORD[:at] + value + WORD[at + len(value) :]
    with pytest.raises(DecodeError, match=message):
        decode_section(damaged)
    with pytest.raises(DecodeError) as caught:
        decode_section(WORD + damaged, at=1000)
    assert 1064 <= caught.value.offset < 1128


def test_channels_end_with_the_state_buffer() -> None:
    """From partition 96 on there are 32 channels."""
    (word,) = sb2sb_words(line(0, 8, partition=96), line(1, 8), arch="cayman")
    with pytest.raises(DecodeError, match="expected a first partition with 33 behind it, got one with 32"):
        decode_section(word[:33] + b"\x21" + word[34:])


def test_words_that_run_at_once_fit_each_other() -> None:
    """One may not write what the other one reads, and both count on the same semaphores."""
    there, back = line(0, 8), line(1, 8, offset=8)
    words = [b"".join(sb2sb_words(a, b, arch="cayman")) for a, b in ((there, back), (back, there))]
    with pytest.raises(UnsupportedError, match=r"word 0 of core 0 and word 0 of core 1 run at once, .* on core 0"):
        run_sb2sb(words, filled(2), arch="cayman")
    with pytest.raises(UnsupportedError, match=r"expected the same semaphores, got \(9, 8\) and \(9, 10\)"):
        run_sb2sb([words[0], words[1][:7] + b"\x0a" + words[1][8:]], filled(2), arch="cayman")


def test_what_is_no_run() -> None:
    """Shapes and numbers of cores."""
    streams = partner_streams()
    for bad, buffers, core, message in (
        ([], [], 0, "expected words and state buffers of 1 or 2 cores, got 0, 0"),
        (streams, filled(1), 0, "expected words and state buffers of 1 or 2 cores, got 2, 1"),
        (streams, filled(2), 1, "core 1: expected the first of a logical core of 2 on cayman"),
        (streams, filled(2), 8, "core 8: expected the first"),
        (
            streams,
            [each[:, :64] for each in filled(2)],
            0,
            r"state buffer of core 0: expected bytes of shape \(128, 2293",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            run_sb2sb(bad, buffers, arch="cayman", core=core)


def test_nothing_to_do() -> None:
    """Without words nothing happens."""
    after = run_sb2sb([b"", b""], filled(2), arch="cayman")
    assert (after.log, after.semaphores.sum()) == (((), ()), 0)


# --- against the emitter ----------------------------------------------------------------------------------------------


def test_sections_come_back() -> None:
    """What the emitter puts into sections, the device reads as the words of the right core."""
    streams = partner_streams(600)
    for _, index, data in sb2sb_sections(streams, arch="cayman"):
        core = core_of_section(index, arch=ARCHES["cayman"], lnc=2)
        assert [word.offset for word in decode_section(data)] == [0, 64, 128]
        assert data == streams[core]
    with pytest.raises(DecodeError, match="index of an SB2SB section at offset 7: expected one of 0, 2, got 1"):
        core_of_section(1, arch=ARCHES["cayman"], lnc=2, offset=7)
    with pytest.raises(DecodeError, match="expected one of 0, got 2"):
        core_of_section(2, arch=ARCHES["cayman"], lnc=1)
    with pytest.raises(DecodeError, match="SB2SB section at offset 5: expected at least one word, got no bytes"):
        decode_section(b"", at=5)


@pytest.mark.parametrize("core", [0, 5, 6])
def test_the_device_builds_the_descriptors_that_the_emitter_foresees(core: int) -> None:
    """Two builders, one set of bytes."""
    source = line(core, 40, num=(2, 4, 5), step=(60, 10, 1), partition=64, offset=6)
    (word,) = sb2sb_words(source, line(core ^ 1, 40, step=(0, 0, 3)), arch="mariana")
    leg = leg_of(word, core=core, arch="mariana")
    tx, rx = descriptors(decode_section(word)[0], core, core ^ 1, arch=ARCHES["mariana"])
    assert tx.tobytes() == leg.tx.tobytes()
    assert rx.tobytes() == leg.rx.tobytes()
