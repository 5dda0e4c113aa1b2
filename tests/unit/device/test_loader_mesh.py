"""The loader's checks of event lists, several targets, KangaRings and whole programs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.images import edit, rebuild, section, table
from tests.unit.device.collectives import CONF, Chained, Lowering, channel, event, processors, with_channel, with_event

from rota.device.model import Order, load, load_unchecked
from rota.device.program import Kind
from rota.device.runs import bytes_of_steps
from rota.errors import DecodeError, StuckError, UsageError
from rota.isa.arch import ARCHES
from rota.isa.config import CONFIGURATIONS
from rota.isa.descriptors import DESCRIPTOR, RxFlag, TxFlag
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.isa.image import META, PRESET, Section
from rota.isa.spad import CONTINUE

SP, SLOT = 3, 24
MESH = Lowering(algorithm=Algorithm.MESH)
RDH = Lowering(algorithm=Algorithm.INTRA_RDH)
KANGARING = Lowering(algorithm=Algorithm.KANGARING, ranks=16, count=16 * 64)
RING = Lowering(algorithm=Algorithm.RING, count=300)
FMA = Lowering(algorithm=Algorithm.MESH, op=CceType.FMA, scales=(1.0, 0.5, 2.0, 3.0))
PROGRAM = Chained((MESH, RING), (0, 0, 1, 0, 1))
ARCH = ARCHES["cayman"]


def refused(images: tuple[bytes, ...], rank: int, image: bytes, expected: str) -> DecodeError:
    """Load with one rank's image replaced; the refusal says what it expects, at a place inside the image."""
    changed = list(images)
    changed[rank] = image
    with pytest.raises(DecodeError, match=expected) as caught:
        load(changed)
    assert 0 <= caught.value.offset < len(image)
    return caught.value


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowering", [MESH, RDH, KANGARING, FMA], ids=lambda each: each.algorithm.name)
def test_bytes_mean_what_their_schedule_means(lowering: Lowering) -> None:
    """Events, direct triggers, pulls, several targets, peers and scales: equal bits, in waves and in random order."""
    device, raw = load(lowering.images), lowering.raw_inputs()
    want = lowering.expected(raw)
    assert np.array_equal(device.run(raw), want)
    for seed in range(2):
        assert np.array_equal(device.run(raw, order=Order.RANDOM, rng=np.random.default_rng(seed)), want)


def test_the_lowered_collectives_have_what_they_are_here_for() -> None:
    """A mesh tells by itself, an RDH reads its neighbours and writes to several places, a KangaRing has peers."""
    mesh, rdh, kangaring = (load(each.images) for each in (MESH, RDH, KANGARING))
    assert (mesh.tables.events.told >= 0).any()
    assert rdh.items.more.size
    assert kangaring.items.more.size
    owner = rdh.items.image_of(np.repeat(np.arange(rdh.items.count), np.diff(rdh.items.source_ptr)))
    assert (rdh.world.memory_owner(rdh.items.source) != owner).any()
    assert set(kangaring.tables.rings.count.tolist()) == {1}
    assert kangaring.tables.rings.primary.sum() * 2 == kangaring.tables.rings.image.size


def test_a_program_runs_entry_by_entry() -> None:
    """Chained and unchained entries of two collectives, parities that alternate, one result for each."""
    inputs = PROGRAM.inputs()
    want = PROGRAM.expected(inputs)
    assert PROGRAM.device.tables.controls.trigger_next[0].tolist() == [True, False, False, False, False]
    assert PROGRAM.device.tables.controls.shift[SP].tolist()[:2] == [4, 20]
    for order in Order:
        got = PROGRAM.device.run_program(inputs, order=order, rng=np.random.default_rng(2))
        assert all(np.array_equal(got[name], want[name]) for name in want)


def test_several_inputs_go_by_name() -> None:
    """`run` is for programs of one input and one output; `run_program` takes every input, and no other."""
    inputs = dict(PROGRAM.inputs())
    with pytest.raises(UsageError, match=r"inputs 0\.input, 1\.input and outputs 0\.output, 1\.output: name each"):
        PROGRAM.device.run(inputs["0.input"])
    with pytest.raises(UsageError, match=r"inputs 0\.input: expected 0\.input, 1\.input"):
        PROGRAM.device.run_program({"0.input": inputs["0.input"]})
    with pytest.raises(UsageError, match=r"input 1\.input of shape \(4, 1\): expected 4 ranks of 600 bytes"):
        PROGRAM.device.run_program({**inputs, "1.input": inputs["1.input"][:, :1]})


@pytest.mark.parametrize("order", Order)
def test_every_step_fires_once(order: Order) -> None:
    """The observer sees each step in one tick, the steps of a machine in order; their bytes are all that is written."""
    program, ticks = PROGRAM.device.program, {}
    seen: list[int] = []

    def observe(tick: int, steps: np.ndarray) -> None:
        for step in steps.tolist():
            assert step not in ticks
            ticks[step] = tick
            seen.append(step)

    PROGRAM.device.run_program(PROGRAM.inputs(), order=order, rng=np.random.default_rng(0), observe=observe)
    assert sorted(seen) == list(range(program.steps))
    steps = np.array(seen)
    for machine in np.unique(program.machine).tolist():
        mine = steps[program.machine[steps] == machine]
        assert (np.diff(mine) == 1).all()
    moved = bytes_of_steps(PROGRAM.device.items, program)
    kinds = program.kind(np.arange(program.steps))
    assert moved[np.isin(kinds, (Kind.HOST, Kind.WALK))].sum() == 0
    entry = program.entry(np.arange(program.steps))
    by_entry = np.bincount(entry[moved > 0], moved[moved > 0])
    assert by_entry[0] == by_entry[1] == by_entry[3] > 0
    assert by_entry[2] == by_entry[4] > 0


# --- event records ----------------------------------------------------------------------------------------------------

TELLS, STARTS, WAITS = 0, 1, 2  # records of every list of MESH


@pytest.mark.parametrize(
    ("place", "fields", "expected"),
    [
        (TELLS, {"direct_trigger": 2}, "0 or 1"),
        (TELLS, {"direct_trigger_sema[0]": 0}, "an address exactly where one is told"),
        (TELLS, {"direct_trigger_sema[1]": 0}, "addresses from the first on"),
        (TELLS, {"direct_trigger_sema[2]": ARCH.semaphores(7) + 0x1020}, "INC window"),
        (TELLS, {"direct_trigger_sema[2]": ARCH.semaphores(7) + 0x1804}, "a free semaphore"),
        (TELLS, {"direct_trigger_sema[2]": ARCH.semaphores(7) + 0x1800 + 4 * 99}, "something waits on"),
        (TELLS, {"leg0_mask": 1}, "engines exactly where descriptors are started"),
        (TELLS, {"leg1_m2s_tail_ptr": 8}, "0 where there is no leg"),
        (STARTS, {"dma_trigger": 0}, "engines exactly where descriptors are started"),
        (STARTS, {"leg0_mask": 0}, "engines exactly where descriptors are started"),
        (STARTS, {"leg0_mask": 1 << 16 | 1}, "engines"),
        (STARTS, {"leg0_mask": 1}, "program block dma_alloc_bitmap"),
        (STARTS, {"leg1_mask": 4}, "the two tail registers of one queue"),
        (STARTS, {"direct_trigger_sema[0]": ARCH.semaphores(7) + 0x1820}, "an address exactly where one is told"),
        (WAITS, {"wait_val": 0}, "a number exactly where something is waited for"),
        (WAITS, {"wait_val": 2}, "signals of"),
        (WAITS, {"wait_event": 0}, "0 in what nothing uses"),
        (WAITS, {"event_wait_sema": 0}, "an address exactly where it is waited on"),
        (WAITS, {"event_wait_sema": ARCH.semaphores(7) + 0x1030}, "something waits on|still waits for|signals of"),
        (WAITS, {"event_wait_sema": ARCH.semaphores(5) + 0x102C}, "a free semaphore of its own processor"),
        (WAITS, {"event_wait_sema": ARCH.semaphores(7) + 0x182C}, "READ window"),
        (WAITS, {"event_type": 53}, "at most 52"),
    ],
)
def test_event_records(place: int, fields: dict[str, int], expected: str) -> None:
    """What a record does not do it says nothing of; what it does, it says whole. Source: device-model §5.5."""
    refused(MESH.images, 1, with_event(MESH.images[1], SP, place, **fields), expected)


def test_an_event_may_be_called_anything() -> None:
    """The type is a name for people: another one of the 53 runs alike."""
    images = [with_event(MESH.images[0], SP, WAITS, event_type=52), *MESH.images[1:]]
    raw = MESH.raw_inputs()
    assert np.array_equal(load(images).run(raw), MESH.expected(raw))


def test_tails_are_those_of_one_queue() -> None:
    """Each of the two registers changed alone, and both to those of another rank."""
    good = event(MESH.images[1], SP, STARTS)
    for fields in (
        {"leg0_m2s_tail_ptr": good["leg0_m2s_tail_ptr"] + 0x1000},
        {"leg0_s2m_tail_ptr": good["leg0_s2m_tail_ptr"] ^ 0x20000},
        {name: good[name] ^ 1 << 28 for name in ("leg0_m2s_tail_ptr", "leg0_s2m_tail_ptr")},
    ):
        image = with_event(MESH.images[1], SP, STARTS, **fields)
        refused(MESH.images, 1, image, "the two tail registers of one queue of the rank")


def test_records_of_no_list_are_empty() -> None:
    image = with_event(MESH.images[1], SP, 7, wait_val=1)
    refused(MESH.images, 1, image, "0 in what nothing uses")


def test_a_list_has_an_end() -> None:
    """The table full to its last record, and a list that would begin behind it."""
    part = CONFIGURATIONS["cayman"].part("mesh")
    record = section(MESH.images[1], Section.CONF, SP)[CONF.part("mesh").at :][: part.layout.size]
    image = edit(MESH.images[1], Section.CONF, SP, part.at, record * part.count)
    refused(MESH.images, 1, image, f"an event list that ends among {part.count} records")
    image = edit(MESH.images[1], Section.CTRL, SP, 3, bytes([part.count]))
    refused(MESH.images, 1, image, f"an event list that ends among {part.count} records")


def test_a_list_begins_where_its_entry_says() -> None:
    """One record later: the first is no longer used."""
    image = edit(MESH.images[1], Section.CTRL, SP, 3, b"\1")
    refused(MESH.images, 1, image, "0 in what nothing uses")


@pytest.mark.parametrize(
    ("at", "data", "expected"),
    [
        (4, b"\x05", "the shift and the mask of even or of odd operations"),
        (6, b"\x0f\x0f", "the shift and the mask"),
        (4, b"\x14\0\xff\x07", "one parity on all ranks"),
        (1, b"\x06", "algorithm and flags of the entry on other ranks"),  # single-step mesh
        (1, b"\x22", "algorithm and flags of the entry on other ranks"),  # another kind of mesh
        (1, b"\x42", "a kind of mesh"),
        (2, b"\x09", "algorithm and flags of the entry on other ranks"),  # safe_mode
        (2, b"\x21", "reserved bits 0"),
        (0, b"\x03", "reserved bits 0"),
    ],
)
def test_mesh_control_entries(at: int, data: bytes, expected: str) -> None:
    refused(MESH.images, 1, edit(MESH.images[1], Section.CTRL, SP, at, data), expected)


@pytest.mark.parametrize(("byte", "value"), [(4, 2), (6, 2), (6, 8), (6, 16), (7, 1)])
def test_slot_entries_of_a_mesh_neither_repeat_nor_wait(byte: int, value: int) -> None:
    """Repeat 1, and no flag but the last one's. Source: device-model §5.5."""
    refused(MESH.images, 1, edit(MESH.images[1], Section.SLOT, SLOT, byte, bytes([value])), "rows that repeat")


def test_every_leg_has_a_slot_entry() -> None:
    raw = section(MESH.images[1], Section.SLOT, SLOT)
    image = rebuild(MESH.images[1], {(Section.SLOT, SLOT): raw[8:]})
    refused(MESH.images, 1, image, "2 entries, one for each leg of its events")


def last_signals(lowering: Lowering, rank: int) -> tuple[np.ndarray, int]:
    rx = np.frombuffer(section(lowering.images[rank], Section.RX), DESCRIPTOR)
    return rx, rx.size - 1


def test_a_list_waits_for_what_it_has_started() -> None:
    """The last packet of the last launch goes to a semaphore of another rank."""
    rx, last = last_signals(MESH, 1)
    other = (int(rx["buf_ptr"][last]) - ARCH.semaphores(7) + ARCH.semaphores(3)).to_bytes(8, "little")
    image = edit(MESH.images[1], Section.RX, 0, 16 * last + 8, other)
    refused(MESH.images, 1, image, "a signal that its list still waits for at the end of each ring")


def test_folds_share_what_an_event_adds() -> None:
    """A feed word of half as much: no whole unit on all folds together. Source: device-model §5.5."""
    words = np.frombuffer(section(MESH.images[1], Section.MEM, 0x80), "<u4")
    assert words.tolist() == [8]
    image = edit(MESH.images[1], Section.MEM, 0x80, 0, b"\4")
    refused(MESH.images, 1, image, "a number of units of the operation, on all folds together")
    image = edit(MESH.images[1], Section.MEM, 0x80, 0, b"\x10")
    refused(MESH.images, 1, image, r"signals of \d+ in total")


# --- packets ----------------------------------------------------------------------------------------------------------


def packet(lowering: Lowering, rank: int, wanted: int) -> tuple[int, int]:
    """Return section index and place of the first TX descriptor whose operation word has these bits."""
    for kind, index in table(lowering.images[rank]):
        if kind is Section.TX:
            words = np.frombuffer(section(lowering.images[rank], kind, index), DESCRIPTOR)["meta_ctrl"]
            found = np.flatnonzero(words & 0x03F00000 == wanted)
            if found.size:
                return index, int(found[0])
    raise AssertionError("no such packet")


@pytest.mark.parametrize(
    ("field", "change", "expected"),
    [
        ("len_ctrl", int(TxFlag.META), "transfer type of a reduce word"),
        ("len_ctrl", int(TxFlag.LAST), "no length, and data behind it"),
        ("len_ctrl", 1, "no length, and data behind it"),
        ("len_ctrl", int(TxFlag.FIRST), "FIRST behind each LAST"),
        ("len_ctrl", int(TxFlag.CONCAT), "CONCAT on all but the last"),
        ("meta_ctrl", 1 << 26, "the marks of several targets"),
        ("meta_ctrl", 1 << 20, "a scale or a number of targets"),
        ("buf_ptr", 1 << 24, "a scale that multiplies the source behind it"),
    ],
)
def test_scales(field: str, change: int, expected: str) -> None:
    """Every bit of an FMA's operand counts but those of its scale. Source: sdma §5."""
    index, at = packet(FMA, 1, 0x02100000)
    tx = np.frombuffer(section(FMA.images[1], Section.TX, index), DESCRIPTOR)[at : at + 1].copy()
    tx[field] ^= np.array(change, tx[field].dtype)
    refused(FMA.images, 1, edit(FMA.images[1], Section.TX, index, 16 * at, tx.tobytes()), expected)


def test_another_scale_is_another_sum() -> None:
    index, at = packet(FMA, 1, 0x02100000)
    raw = FMA.raw_inputs()
    scale = np.float32(7).tobytes()
    image = edit(FMA.images[1], Section.TX, index, 16 * at + 12, scale)
    result = load([FMA.images[0], image, *FMA.images[2:]]).run(raw)
    assert not np.array_equal(result, FMA.expected(raw))


def test_a_copy_to_several_targets() -> None:
    """One TX, as many RX as its word says, ordered on the last one alone, all to memory. Source: sdma §7."""
    index, at = packet(RDH, 1, 0x00A00000)
    tx = np.frombuffer(section(RDH.images[1], Section.TX, index), DESCRIPTOR)
    targets = int(tx["meta_ctrl"][at]) & 0xFFFF
    assert targets > 1
    for word in (int(tx["meta_ctrl"][at]) + 1, int(tx["meta_ctrl"][at]) - 1, 0x00A00001, 0x00A00000):
        image = edit(RDH.images[1], Section.TX, index, 16 * at + 4, word.to_bytes(4, "little"))
        refused(RDH.images, 1, image, "as TX needs|2 targets or more|that of the packet's first target|whole packets")
    rx = np.frombuffer(section(RDH.images[1], Section.RX, index), DESCRIPTOR)
    strong = int(np.flatnonzero(rx["len_ctrl"] & RxFlag.STRONG_ORDER_WR)[-1])
    device = load(RDH.images)
    several = device.items.more_item[device.items.image_of(device.items.more_item) == 1]
    assert several.size
    first = int(device.items.rx_ptr[several[0]])
    base = int(device.items.rx_ptr[device.items.section_ptr[device.items.section_of(several[:1])[0]]])
    place = first - base
    section_of = int(device.items.sections[device.items.section_of(several[:1])[0], 1])
    image = edit(RDH.images[1], Section.RX, section_of, 16 * place + 3, bytes([0x21]))
    refused(RDH.images, 1, image, "strong order on the last target alone")
    assert strong >= 0


def test_sunda_replicates_nothing() -> None:
    """Its DMA engines have no such word. Source: sdma §7."""
    assert not any(
        np.isin(np.frombuffer(section(image, kind, index), DESCRIPTOR)["meta_ctrl"] >> 20, [0x00A]).any()
        for image in MESH.images
        for kind, index in table(image)
        if kind is Section.TX
    )


# --- KangaRing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "fields", "expected"),
    [
        (0, {"kangaring_num_peers": 2}, "0, 1 or 3"),
        (0, {"kangaring_num_peers": 3}, "as many as are told"),
        (0, {"kangaring_num_peers": 0}, "an address exactly where there are peers|0, or 1 where"),
        (0, {"kangaring_is_primary": 0}, "name each other, one of them primary"),
        (1, {"kangaring_is_primary": 1}, "name each other, one of them primary"),
        (0, {"kangaring_is_primary": 2}, "0, or 1 where there are peers"),
        (0, {"kangaring_mine": 0}, "an address exactly where there are peers"),
        (0, {"kangaring_peers[0]": 0}, "as many as are told"),
        (0, {"kangaring_peers[1]": ARCH.semaphores(7) + 0x1830}, "as many as are told"),
        (0, {"kangaring_peers[0]": ARCH.semaphores(7) + 0x1820}, "KangaRing peers that are such"),
        (0, {"kangaring_peers[0]": ARCH.semaphores(7) + 0x1030}, "INC window"),
        (0, {"kangaring_mine": ARCH.semaphores(3) + 0x1020}, "semaphores of no other channel"),
    ],
)
def test_kangaring_records(rank: int, fields: dict[str, int], expected: str) -> None:
    """Primary and secondary name each other's semaphores. Source: device §7.3."""
    image = with_channel(KANGARING.images[rank], SP, 0, **fields)
    refused(KANGARING.images, rank, image, expected)


def test_peers_are_those_of_a_kangaring() -> None:
    """A plain ring has no row that waits for peers, nor one that tells them."""
    for flag in (8, 16):
        raw = bytearray(section(RING.images[0], Section.SLOT, SLOT)[:8])
        raw[6] |= flag
        image = edit(RING.images[0], Section.SLOT, SLOT, 0, bytes(raw))
        refused(RING.images, 0, image, "rows that repeat")


def test_a_row_that_does_not_tell_its_peers() -> None:
    raw = np.frombuffer(section(KANGARING.images[0], Section.SLOT, SLOT), "u1").reshape(-1, 8)
    at = int(np.flatnonzero(raw[:, 6] & 16)[0])
    image = edit(KANGARING.images[0], Section.SLOT, SLOT, 8 * at + 6, bytes([raw[at, 6] ^ 16]))
    refused(KANGARING.images, 0, image, r"signals of \d+ in total")


def test_who_waits_for_a_peer_says_so() -> None:
    """A primary that tells nobody: its secondary waits, and the primary is named."""
    images = list(KANGARING.images)
    raw = np.frombuffer(section(images[0], Section.SLOT, SLOT), "u1").reshape(-1, 8).copy()
    rows = raw[:-2]
    rows[:, 6] &= ~np.uint8(16)
    images[0] = edit(images[0], Section.SLOT, SLOT, 0, rows.tobytes())
    with pytest.raises(StuckError, match=r"rank 1 channel 0 row \d+ of operation 0 waits for semaphore 12") as caught:
        load_unchecked(images).run(KANGARING.raw_inputs())
    assert any("rank 1" in line for line in caught.value.waiting)


def test_folds_are_those_of_the_neighbour() -> None:
    good = channel(RING.images[0], SP, 0)
    assert good["next_fold_n"] == 2
    for name in ("next_fold_n", "prev_fold_n"):
        image = with_channel(RING.images[0], SP, 0, **{name: 3})
        refused(RING.images, 0, image, "of the neighbour's folds|signals of|a multiple of")


# --- whole programs ---------------------------------------------------------------------------------------------------


def words(rank: int, slot: int = SLOT) -> np.ndarray:
    return np.frombuffer(section(PROGRAM.images[rank], Section.SLOT, slot), "<u8").copy()


def test_a_mark_is_followed_by_the_next_entry() -> None:
    """CONTINUE carries the processor's next control entry without its reporter bit. Source: device-model §4."""
    raw = words(1)
    at = int(np.flatnonzero(raw == CONTINUE)[0])
    for change in (1 << 16, 1 << 8, 1 << 24, 1 << 40):
        changed = raw.copy()
        changed[at + 1] ^= np.uint64(change)
        image = edit(PROGRAM.images[1], Section.SLOT, SLOT, 0, changed.tobytes())
        refused(PROGRAM.images, 1, image, "the processor's next control entry behind CONTINUE")


def test_marks_say_whether_the_chain_goes_on() -> None:
    """An END mark in the middle of a chain, a CONTINUE at its end."""
    raw = words(1)
    at = int(np.flatnonzero(raw == CONTINUE)[0])
    end = int(np.flatnonzero(raw >> np.uint64(48) == 0xFFFD)[0])
    changed = raw.copy()
    changed[at : at + 2] = raw[end : end + 2]
    image = edit(PROGRAM.images[1], Section.SLOT, SLOT, 0, changed.tobytes())
    refused(PROGRAM.images, 1, image, "CONTINUE where the entry is chained to the next one, END elsewhere")
    changed = raw.copy()
    changed[end : end + 2] = raw[at : at + 2]
    image = edit(PROGRAM.images[1], Section.SLOT, SLOT, 0, changed.tobytes())
    refused(PROGRAM.images, 1, image, "CONTINUE where the entry is chained to the next one, END elsewhere")


@pytest.mark.parametrize("sp", [0, SP])
@pytest.mark.parametrize("entry", [0, 1, 4])
def test_the_same_entries_are_chained_everywhere(sp: int, entry: int) -> None:
    """On processors that take part and on idle ones; the last entry is chained to nothing."""
    old = section(PROGRAM.images[1], Section.CTRL, sp)[8 * entry + 1]
    image = edit(PROGRAM.images[1], Section.CTRL, sp, 8 * entry + 1, bytes([old ^ 0x80]))
    refused(PROGRAM.images, 1, image, "the same entries chained on every processor, and the last one not")


def test_chains_are_counted() -> None:
    """META says how many; on one rank, or wrong on all."""
    old = META.decode(section(PROGRAM.images[0], Section.META))
    assert (old["operations"], old["chains"]) == (5, 4)
    for chains in (0, 3, 5):
        images = [
            edit(
                image,
                Section.META,
                0,
                0,
                META.encode(**(META.decode(section(image, Section.META)) | {"chains": chains})),
            )
            for image in PROGRAM.images
        ]
        with pytest.raises(DecodeError, match="image META chains"):
            load(images)
        refused(PROGRAM.images, 1, images[1], "that of rank 0, 4")


def test_folds_are_the_most_of_any_row() -> None:
    images = [
        edit(image, Section.META, 0, 0, META.encode(**(META.decode(section(image, Section.META)) | {"folds": 3})))
        for image in MESH.images
    ]
    with pytest.raises(DecodeError, match=r"image META folds.*expected the most folds of a row, 2"):
        load(images)


def test_ranks_post_once_a_chain() -> None:
    """Four chains, in all of which every rank works."""
    assert PROGRAM.device.program.posts.tolist() == [4] * 4


def test_presets_are_alike_on_all_ranks() -> None:
    """A row more of credit on one rank is refused there."""
    raw = np.frombuffer(section(PROGRAM.images[2], Section.SEMA), PRESET.dtype).copy()
    raw["value"][0] += 2
    image = edit(PROGRAM.images[2], Section.SEMA, 0, 0, raw.tobytes())
    refused(PROGRAM.images, 2, image, "the value on the other ranks")


def test_a_credit_that_is_missing() -> None:
    """One rank less has it preset; the record that waits for it is named."""
    data = section(PROGRAM.images[2], Section.SEMA)
    assert len(data) > PRESET.size
    image = rebuild(PROGRAM.images[2], {(Section.SEMA, 0): data[PRESET.size :]})
    refused(PROGRAM.images, 2, image, "a preset of 16 for semaphore")


def test_rings_that_two_things_would_use_at_once() -> None:
    """A second channel on the queue of the first: both rows start at once, and their descriptors would mix."""
    both = Lowering(algorithm=Algorithm.RING, count=4096, kind=EncOp.ALLREDUCE, ranks=16)
    device = load(both.images)
    workers, folds = device.tables.workers, device.program.folds
    assert np.unique(workers.channel).size > 1
    used = np.unique(folds.section)
    assert used.size == device.items.sections.shape[0]
    good = channel(both.images[0], SP, 0)
    other = channel(both.images[0], SP - 1, 1)
    fields = {name: good[name] for name in ("m2s_tail_ptr", "s2m_tail_ptr")}
    assert fields != {name: other[name] for name in fields}
    image = with_channel(both.images[0], SP - 1, 1, **fields)
    refused(both.images, 0, image, "rings that something on the rank uses|in all|program block")


def test_processors_with_slot_programs_are_those_that_work() -> None:
    for image in PROGRAM.images:
        active = PROGRAM.device.tables.controls.active[: PROGRAM.device.world.sps].any(axis=1)
        assert processors(image) == np.flatnonzero(active).tolist()


def test_wide_types_are_cut_into_whole_elements() -> None:
    """fp32 through the same lists; the messages of refusals name the rank."""
    wide = Lowering(algorithm=Algorithm.MESH, dtype=Dtype.FP32, count=257)
    raw = wide.raw_inputs()
    assert np.array_equal(load(wide.images).run(raw), wide.expected(raw))
    error = refused(wide.images, 3, with_event(wide.images[3], SP, WAITS, wait_val=0), "a number exactly")
    assert re.match("image of rank 3: mesh event wait_val", str(error))
