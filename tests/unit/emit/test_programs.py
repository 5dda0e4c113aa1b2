"""What stream processors load: control entries, slot programs, ring records, program blocks, presets.

Section numbers are those of device-model.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from by_hand import Stages
from rows import Rows
from tests.images import TRN1, TRN2, Ring, section, table

from rota.emit.launches import Launches
from rota.emit.processors import ring_program
from rota.isa.arch import ARCHES
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.enums import EncOp
from rota.isa.image import META, PRESET, Section
from rota.isa.spad import SLOT

CAYMAN = ARCHES["cayman"]
ORDER = (0, 1, 2)


def channels(number: int, **more: object) -> Ring:
    return replace(Ring(groups=((0, 1, 4),), orders=(ORDER,) * number), **more)


def record(ring: Ring, rank: int, sp: int, channel: int) -> dict[str, int]:
    return RING_CHANNEL.decode(section(ring.images[rank], Section.CONF, sp), channel * RING_CHANNEL.size)


def block(ring: Ring, rank: int, sp: int) -> dict[str, int]:
    at = CONFIGURATIONS[ring.platform.arch].part("program").at
    return PROGRAM_BLOCK.decode(section(ring.images[rank], Section.CONF, sp), at)


def entries(ring: Ring, rank: int, slot: int) -> np.ndarray:
    """Return the slot entries before the END mark and its one address."""
    return np.frombuffer(section(ring.images[rank], Section.SLOT, slot)[:-16], SLOT.dtype)


# --- control table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("platform", "sps"), [(TRN1, 3), (TRN2, 4)])
@pytest.mark.parametrize("count", range(1, 8))
def test_channel_c_runs_on_sp_s_minus_1_minus_c_mod_s(count: int, platform: str, sps: int) -> None:
    """Channel 0 is on the highest processor, which reports. §5.4."""
    ring = channels(count, platform_name=platform, groups=((0, 1, 2),))
    for sp in range(sps):
        raw = section(ring.images[0], Section.CTRL, sp)
        mine = [c for c in range(count) if sps - 1 - c % sps == sp]
        assert int.from_bytes(raw[4:], "little") == sum(1 << c for c in mine)
        assert (raw[0], raw[1], raw[3]) == ((1, 0, 0) if mine else (0, 0, 0))
        slots = [i for (kind, i) in table(ring.images[0]) if kind is Section.SLOT and i // 8 == sp]
        assert slots == [8 * sp + k for k in range(len(mine))]  # the k-th channel uses slot k
        for k, channel in enumerate(mine):
            assert record(ring, 0, sp, channel)["spad_slot_idx"] == k


def test_processors_complete_in_ascending_order_and_the_highest_reports() -> None:
    """Byte 2: reporter, waits for the one below, passes on to the one above. §5.4."""
    two = channels(2)
    assert [section(two.images[0], Section.CTRL, sp)[2] for sp in range(4)] == [0, 0, 0b100, 0b011]
    five = channels(5)
    assert [section(five.images[0], Section.CTRL, sp)[2] for sp in range(4)] == [0b100, 0b110, 0b110, 0b011]
    assert [section(channels(1).images[0], Section.CTRL, sp)[2] for sp in range(4)] == [0, 0, 0, 0b001]


def test_an_idle_processor_has_a_nop_entry() -> None:
    """All zero, with a configuration and no slot program, so that all advance together. §4, NOP."""
    ring = channels(1)
    for sp in range(3):
        assert section(ring.images[0], Section.CTRL, sp) == bytes(8)
        assert (Section.SLOT, 8 * sp) not in table(ring.images[0])
        conf = bytearray(section(ring.images[0], Section.CONF, sp))
        for name in ("program", "device_ids"):
            part = CONFIGURATIONS["cayman"].part(name)
            conf[part.at : part.end] = bytes(part.end - part.at)
        assert not any(conf)
        assert block(ring, 0, sp)["op_num"] == 1


# --- slot programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER])
@pytest.mark.parametrize("folds", [1, 2, 3])
def test_slot_rows_launch_the_descriptors_of_every_fold(kind: EncOp, folds: int) -> None:
    """Sum of counts x repeat = descriptors of each fold, TX and RX. §4, slot entry."""
    ring = channels(2, kind=kind, folds=folds, count=3 * 700, chunk=192)
    for rank in range(3):
        for channel, slot in ((0, 24), (1, 16)):
            rows = entries(ring, rank, slot).astype(
                [("m2s_val", int), ("s2m_val", int), ("repeat", int), ("flags", int)]
            )
            for fold in range(folds):
                tx, rx = (section(ring.images[rank], k, 16 * fold + channel) for k in (Section.TX, Section.RX))
                assert (rows["m2s_val"] * rows["repeat"]).sum() == len(tx) // 16
                assert (rows["s2m_val"] * rows["repeat"]).sum() == len(rx) // 16


def test_rows_of_a_ring_all_reduce() -> None:
    """N reduce-scatter and N all-gather rows a half: one that only sends, N - 2 that do both, one that receives. §4."""
    ring = Ring(groups=((0, 1, 2, 3),), orders=((0, 1, 2, 3),), count=4 * 64, folds=1)
    rows = entries(ring, 0, 24)
    # equal rows of both halves in one entry: TX descriptors, RX descriptors, repeat, flags
    assert rows.tolist() == [
        (3, 3, 2, 2),  # send: no receive
        (5, 4, 4, 0),  # two sources, data, both signals, completion
        (4, 3, 2, 4),  # no send
        (3, 3, 2, 2),  # bridge
        (4, 4, 4, 0),
        (2, 2, 1, 4),  # the last receive of half 0
        (2, 2, 1, 5),  # and of half 1, the last row
    ]
    assert rows["repeat"].sum() == 2 * 2 * 4


def test_equal_rows_repeat_and_others_do_not() -> None:
    """Counts and flags must both be equal; the last row stands alone because of its flag."""
    same = Rows(sizes=(64,) * 9)  # the first of them waits for data
    assert np.frombuffer(section(same.image, Section.SLOT, 24)[:-16], SLOT.dtype).tolist() == [
        (2, 2, 1, 4),
        (2, 2, 7, 6),
        (2, 2, 1, 7),
    ]
    mixed = Rows(sizes=(64, 64, 64, 70_000, 64))
    raw = np.frombuffer(section(mixed.image, Section.SLOT, 24)[:-16], SLOT.dtype)
    assert raw.tolist() == [(2, 2, 1, 4), (2, 2, 2, 6), (3, 3, 1, 6), (2, 2, 1, 7)]


def test_more_rows_than_a_repeat_count_holds_take_two_entries() -> None:
    """The count is 16 bits wide. The descriptors' own limit ends it before; so the program alone is looked at."""
    n = 70_000
    done = Stages(schedule=Rows(sizes=(64,) * 9).schedule).emitted
    columns = {each.name: np.resize(getattr(done.plan.starts, each.name)[4:5], n) for each in fields(done.plan.starts)}
    rings = replace(done.rings, m2s=np.ones(n, np.int64), s2m=np.ones(n, np.int64))
    many = replace(done, plan=replace(done.plan, starts=Launches(**columns)), rings=rings)
    raw = np.frombuffer(ring_program(many, 0, n), SLOT.dtype)
    assert raw.tolist() == [(1, 1, 65535, 6), (1, 1, n - 1 - 65535, 6), (1, 1, 1, 7)]


def test_the_end_mark_holds_the_completion_of_the_reporter() -> None:
    """0xFFFD, value 1, low address half; then the whole INC address of id 1, on every channel's program. §4, END."""
    ring = channels(5)
    for rank, lane in ((0, 0), (1, 1), (2, 0)):
        address = CAYMAN.semaphores(4 * lane + 3) + 0x1800 + 4
        for slot in (0, 8, 16, 24, 25):
            mark, target = np.frombuffer(section(ring.images[rank], Section.SLOT, slot)[-16:], "<u8").tolist()
            assert mark == 0xFFFD << 48 | 1 << 32 | address & 0xFFFFFFFF
            assert target == address


def test_no_slot_entry_looks_like_a_mark() -> None:
    """Byte 7 and the upper bits of byte 6 stay 0. §4, slot entry."""
    raw = np.frombuffer(section(channels(2).images[0], Section.SLOT, 24)[:-16], "u1").reshape(-1, 8)
    assert not raw[:, 7].any()
    assert not (raw[:, 6] & ~np.uint8(7)).any()


# --- configuration ----------------------------------------------------------------------------------------------------


def test_semaphore_ids_are_taken_from_8_in_the_order_of_roles() -> None:
    """recv, send, post, compl; the next channel of the processor goes on. In the READ window. §4, semaphore ids."""
    ring = channels(6)
    for channel, sp, first in ((0, 3, 8), (1, 2, 8), (4, 3, 12), (5, 2, 12)):
        read = CAYMAN.semaphores(4 + sp) + 0x1000
        found = record(ring, 1, sp, channel)
        roles = [found[name] for name in ("recv_sema", "send_sema", "post_sema", "dma_compl_sema")]
        assert roles == [read + 4 * (first + i) for i in range(4)]


def test_tails_mask_and_queue_of_a_channel() -> None:
    """Channel c uses queue c mod 16; fold f is the f-th set bit of the mask. §2, §4."""
    ring = channels(3, folds=3)
    for channel, sp in ((0, 3), (1, 2), (2, 1)):
        found = record(ring, 1, sp, channel)
        assert found["mask"] == 0b111
        assert (found["fold_n"], found["next_fold_n"], found["prev_fold_n"]) == (3, 3, 3)
        queue = 0x60_2000_0000 + ((channel + 1) << 12) + 0x38  # broadcast registers of core 2
        assert (found["m2s_tail_ptr"], found["s2m_tail_ptr"]) == (queue, queue + 0x20000)
        assert found["channel_id"] == channel
        rings = {i for kind, i in table(ring.images[1]) if kind is Section.TX and i % 16 == channel}
        assert rings == {channel, 16 + channel, 32 + channel}


def test_neighbour_types_say_whether_the_hop_leaves_the_chip() -> None:
    """0 on the chip, 1 between chips; addresses 0 inside a node. §4, ring record."""
    ring = channels(2, orders=(ORDER, ORDER[::-1]))
    types = [
        [(found["next_type"], found["prev_type"]) for found in (record(ring, r, 3, 0), record(ring, r, 2, 1))]
        for r in range(3)
    ]
    assert types == [[(0, 1), (1, 0)], [(1, 0), (0, 1)], [(1, 1), (1, 1)]]
    assert not any(record(ring, 0, 3, 0)[f"{side}_network_index[{i}]"] for side in ("next", "prev") for i in range(3))
    assert not any(value for name, value in record(ring, 0, 3, 0).items() if "kangaring" in name)


def test_program_block() -> None:
    """Trigger to read, trigger_next to add to, completion to the next higher processor. §4, program block."""
    ring = channels(2)
    for sp in range(4):
        own = CAYMAN.semaphores(4 + sp)
        found = block(ring, 1, sp)
        assert found["trigger"] == own + 0x1000
        assert found["trigger_next"] == own + 0x1800
        assert found["complete_prev"] == own + 0x1000 + 4 * 254
        assert found["complete"] == (CAYMAN.semaphores(4 + 3) + 0x1800 + 4 * 254 if sp == 2 else 0)
        assert (found["op_num"], found["function_n"], found["tpb_compl_addr_num"]) == (1, 1, 1)
        assert found["leader"] == (sp == 3)
        assert found["ctrl_spad_base"] == own + 0x10_0000
        assert [found[f"slot_spad_base[{i}]"] for i in range(6)] == [own + 0x10_1000 + i * 0x8000 for i in range(6)]
        pairs = {3: [0, 0b11], 2: [1, 0b11]}.get(sp, [])
        assert [found[f"dma_alloc_bitmap[{i}]"] for i in range(16)] == pairs + [0] * (16 - len(pairs))


@pytest.mark.parametrize("folds", [1, 2, 3])
def test_presets_are_credits_times_folds(folds: int) -> None:
    """One for the credit of each channel, the same on every rank. §4, initial credits."""
    ring = channels(6, slots=5, folds=folds)
    for image in ring.images:
        found = np.frombuffer(section(image, Section.SEMA), PRESET.dtype).tolist()
        credits = [(0, 9), (1, 9), (2, 9), (2, 13), (3, 9), (3, 13)]
        assert found == [(sp, identity, 5 * folds) for sp, identity in credits]


def test_an_all_gather_has_no_preset() -> None:
    """Its credits are given when the neighbour's output may be written."""
    ring = channels(1, kind=EncOp.ALLGATHER, count=3 * 100)
    assert (Section.SEMA, 0) not in table(ring.images[0])


def test_meta_says_who_and_what() -> None:
    ring = channels(2, folds=3)
    found = META.decode(section(ring.images[2], Section.META))
    memory = 0x1000 + sum(-(-buffer.size // 128) * 128 for buffer in ring.schedule.buffers)
    assert found == {
        "arch_id": 0x0C,
        "rank": 2,
        "ranks": 3,
        "chip": 1,
        "lane": 0,
        "lnc": 2,
        "stream_processors": 4,
        "streams": 1,
        "folds": 3,
        "operations": 1,
        "ring_size": 4096,
        "memory_size": memory,
        "chains": 1,
        "span": 0,
        "reserved": 0,
    }


def test_the_words_are_kept_for_people() -> None:
    assert section(Ring(words=b"word").images[0], Section.WORDS) == b"word"
    assert (Section.WORDS, 0) not in table(Ring(words=b"").images[0])


def test_equal_input_gives_equal_bytes() -> None:
    assert channels(3).images == channels(3).images
