"""What running shows: credits and deadlock, writes that land late, ends that do not add up, and the shape of inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.images import TRN1, TRN2, Array, Ring, edit, section, table

from rota.device.model import Device, Order, load, load_unchecked, run_images
from rota.errors import StuckError, UsageError
from rota.execute.arrays import execute
from rota.isa.descriptors import DESCRIPTOR, RxFlag, TxFlag
from rota.isa.dtypes import Dtype, numpy_dtype
from rota.isa.enums import EncOp
from rota.isa.image import PRESET, Section


def ring(ranks: int, *, slots: int = 8, **more: object) -> Ring:
    order = tuple(range(ranks))
    return replace(Ring(count=2 * ranks * 32, groups=(order,), orders=(order,), slots=slots), **more)


def with_credit(collective: Ring, rows: int) -> list[bytes]:
    """Edit every preset of every image to that many rows."""
    out = []
    for image in collective.images:
        raw = np.frombuffer(section(image, Section.SEMA), PRESET.dtype).copy()
        raw["value"] = rows * collective.folds
        out.append(edit(image, Section.SEMA, 0, 0, raw.tobytes()))
    return out


def expected(collective: Ring, raw: Array) -> Array:
    return execute(collective.schedule, raw.view(numpy_dtype(collective.dtype))).view(np.uint8)


def run(device: Device, raw: Array, seed: int | None = None) -> Array:
    if seed is None:
        return device.run(raw)
    return device.run(raw, order=Order.RANDOM, rng=np.random.default_rng(seed))


# --- credits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("ranks", range(2, 7))
@pytest.mark.parametrize("credit", [1, 2, 3])
def test_credits(ranks: int, credit: int, seed: int | None) -> None:
    """With halves one credit blocks any ring, two block three ranks or more, three none. Source: device-model §5.3."""
    collective = ring(ranks)
    device, raw = load(with_credit(collective, credit)), collective.raw_inputs()
    if credit == 1 or (credit == 2 and ranks > 2):
        with pytest.raises(StuckError) as caught:
            run(device, raw, seed)
        assert len(caught.value.waiting) == min(ranks, 12)
    else:
        assert np.array_equal(run(device, raw, seed), expected(collective, raw))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_without_halves_two_credits_are_enough(ranks: int) -> None:
    """There the rule of at least 2 holds; with 1, three ranks or more block each other. Source: device-model §5.3."""
    collective = ring(ranks, halves=1)
    raw = collective.raw_inputs()
    assert np.array_equal(load(with_credit(collective, 2)).run(raw), expected(collective, raw))
    blocked = load(with_credit(collective, 1))
    if ranks == 2:
        assert np.array_equal(blocked.run(raw), expected(collective, raw))
    else:
        with pytest.raises(StuckError):
            blocked.run(raw)


@pytest.mark.parametrize("seed", [None, 4])
def test_who_waits_is_named_with_what_it_waits_for(seed: int | None) -> None:
    """Rank, channel, row, semaphore, value and threshold, for every channel that is stuck. Source: device-model §6."""
    collective = ring(3)
    with pytest.raises(StuckError) as caught:
        run(load(with_credit(collective, 1)), collective.raw_inputs(), seed)
    want = [
        f"rank {rank} channel 0 row 1 of operation 0 waits for semaphore 9 of TOP_SP 3 of rank {rank} to reach 2, "
        "it is 0"
        for rank in range(3)
    ]
    assert list(caught.value.waiting) == want
    assert want[0] in str(caught.value)


def test_a_row_that_waits_for_its_own_completion_says_so() -> None:
    """One fold signals another rank's semaphore in the place of its completion; only the unchecked loader takes it."""
    collective = ring(2)
    rx = np.frombuffer(section(collective.images[0], Section.RX), DESCRIPTOR).copy()
    rx["buf_ptr"][2] = rx["buf_ptr"][1]
    image = edit(collective.images[0], Section.RX, 0, 0, rx.tobytes())
    device = load_unchecked([image, collective.images[1]])
    for seed in (None, 1):
        with pytest.raises(StuckError) as caught:
            run(device, collective.raw_inputs(), seed)
        line = "rank 0 channel 0 row 0 of operation 0 waits for semaphore 11 of TOP_SP 3 of rank 0 to reach 2, it is 1"
        assert line in caught.value.waiting


@pytest.mark.parametrize("slots", [3, 4, 5, 7])
@pytest.mark.parametrize("kind", [EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER])
def test_slots_are_used_in_the_order_of_sending(kind: EncOp, slots: int) -> None:
    """Counts run on over chunk groups, so a number of slots that does not divide the sends is as good as any other.

    Source: device-model §5.2.
    """
    collective = ring(4, slots=slots, kind=kind, count=4 * 500, chunk=128)
    device, raw = load(collective.images), collective.raw_inputs()
    for seed in (None, 0, 1):
        assert np.array_equal(run(device, raw, seed), expected(collective, raw))


# --- late writes ------------------------------------------------------------------------------------------------------


def without_order(collective: Ring) -> list[bytes]:
    """Clear what orders data before signals, in all images: strong order, or barriers where there is none."""
    out = []
    for image in collective.images:
        for kind, index in list(table(image)):
            if kind in (Section.TX, Section.RX):
                ring_ = np.frombuffer(section(image, kind, index), DESCRIPTOR).copy()
                ring_["len_ctrl"] &= ~np.uint32(TxFlag.DMB if kind is Section.TX else RxFlag.STRONG_ORDER_WR)
                image = edit(image, kind, index, 0, ring_.tobytes())  # noqa: PLW2901
        out.append(image)
    return out


@pytest.mark.parametrize("platform", [TRN1, TRN2])
def test_random_order_finds_data_that_is_not_ordered_before_its_signal(platform: str) -> None:
    """Without strong order (TRN2) or the barrier (TRN1) late writes overtake the signal: wrong bits in every run.

    Source: device-model §3, order of writes.
    """
    collective = ring(4, platform_name=platform)
    device, raw = load_unchecked(without_order(collective)), collective.raw_inputs()
    want = expected(collective, raw)
    wrong = [not np.array_equal(run(device, raw, seed), want) for seed in range(8)]
    assert all(wrong)
    whole = load_unchecked(collective.images)
    assert all(np.array_equal(run(whole, raw, seed), want) for seed in range(8))


def test_one_write_without_order_is_found_in_a_few_runs() -> None:
    """A single strong-order flag less, on one fold of one row."""
    collective = ring(4, kind=EncOp.REDUCE_SCATTER)
    raw = collective.raw_inputs()
    want = expected(collective, raw)
    rx = np.frombuffer(section(collective.images[1], Section.RX), DESCRIPTOR).copy()
    at = int(np.flatnonzero(rx["len_ctrl"] & RxFlag.STRONG_ORDER_WR)[2])
    rx["len_ctrl"][at] &= ~np.uint32(RxFlag.STRONG_ORDER_WR)
    images = list(collective.images)
    images[1] = edit(images[1], Section.RX, 0, 0, rx.tobytes())
    device = load_unchecked(images)
    assert any(not np.array_equal(run(device, raw, seed), want) for seed in range(12))


def test_what_lands_late_is_not_in_the_result() -> None:
    """A group of one: nobody waits for the copy, so only the post can come too early."""
    alone = Ring(groups=((7,),), orders=((0,),), count=1000)
    raw = alone.raw_inputs()
    device = load_unchecked(without_order(alone))
    assert any(not np.array_equal(run(device, raw, seed), raw) for seed in range(4))
    assert np.array_equal(run(load(alone.images), raw, 0), raw)


def test_packets_that_read_what_the_one_before_wrote_stay_single() -> None:
    """Sources one packet behind their targets: the first packet comes out everywhere. Source: device-model §9."""
    packet, packets = 65536, 4
    alone = Ring(groups=((0,),), orders=((0,),), count=packets * packet // 2, folds=1, halves=1, chunk=packets * packet)
    tx = np.frombuffer(section(alone.images[0], Section.TX), DESCRIPTOR).copy()
    rx = np.frombuffer(section(alone.images[0], Section.RX), DESCRIPTOR)
    tx["buf_ptr"][1:packets] = rx["buf_ptr"][: packets - 1]
    raw = alone.raw_inputs()
    result = load([edit(alone.images[0], Section.TX, 0, 0, tx.tobytes())]).run(raw)
    assert np.array_equal(result, np.tile(raw[:, :packet], packets))


# --- ends -------------------------------------------------------------------------------------------------------------


def adding(device: Device, flat: int, value: int) -> Device:
    """Change what machines add to a semaphore by themselves."""
    adds = device.program.adds
    values = np.where(adds.semaphore == flat, value, adds.value)
    return replace(device, program=replace(device.program, adds=replace(adds, value=values)))


COMPLETION, COMPLETE_PREV = 1, 254


def test_every_rank_posts_once() -> None:
    """Two posts are an error of the run; without one the host waits. Source: device-model §6, end checks."""
    collective = ring(2)
    device, raw = load(collective.images), collective.raw_inputs()
    flat = 3 * 256 + COMPLETION  # rank 0, TOP_SP 3
    with pytest.raises(StuckError, match="rank 0 posted completion 2 times, expected 1"):
        adding(device, flat, 2).run(raw)
    with pytest.raises(StuckError, match=r"rank 0 host before chain 0 waits for semaphore 1 of TOP_SP 3 of rank 0"):
        adding(device, flat, 0).run(raw)


def test_processors_complete_in_order() -> None:
    """A reporter whose predecessor does not pass completion on waits for it."""
    collective = Ring()
    device = adding(load(collective.images), 3 * 256 + COMPLETE_PREV, 0)
    with pytest.raises(StuckError, match="rank 0 TOP_SP 3 entry 0 waits for semaphore 254 of TOP_SP 3 of rank 0"):
        device.run(collective.raw_inputs())


def test_semaphores_end_where_they_began() -> None:
    """A credit that goes astray is missed at the end, where the loader has not refused it. Source: device-model §6."""
    collective = ring(3)
    rx = np.frombuffer(section(collective.images[0], Section.RX), DESCRIPTOR).copy()
    credits = np.flatnonzero((rx["buf_ptr"] & 0xFFF) == 0x824)  # INC of semaphore 9
    rx["buf_ptr"][credits[-1]] += 4 * 20  # semaphore 29, which nobody waits on
    images = [edit(collective.images[0], Section.RX, 0, 0, rx.tobytes()), *collective.images[1:]]
    device = load_unchecked(images)
    for seed in (None, 3):
        with pytest.raises(StuckError, match=r"semaphore \d+ of TOP_SP 3 of rank 2 ends [+-]1 away from its initial"):
            run(device, collective.raw_inputs(), seed)


def test_the_host_gives_one_input_a_rank() -> None:
    device = load(ring(2).images)
    for shape in ((1, 256), (2, 255), (3, 256)):
        with pytest.raises(UsageError, match="expected 2 ranks of 256 bytes"):
            device.run(np.zeros(shape, np.uint8))


def test_an_operation_can_run_again() -> None:
    """Nothing of a run stays in the device. Inputs are left as they were."""
    collective = Ring()
    device = load(collective.images)
    for seed in range(2):
        raw = collective.raw_inputs(seed)
        kept = raw.copy()
        assert np.array_equal(device.run(raw), expected(collective, raw))
        assert np.array_equal(raw, kept)


def test_two_runs_with_one_seed_are_one_run() -> None:
    """Also of a program whose result depends on the order."""
    collective = ring(4)
    device, raw = load_unchecked(without_order(collective)), collective.raw_inputs()
    results = [run(device, raw, seed) for seed in (5, 5, 6, 7)]
    assert np.array_equal(results[0], results[1])
    assert not all(np.array_equal(results[0], result) for result in results[2:])


# --- rings that wrap --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32, 64])
def test_small_rings_wrap_many_times(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Rings of 32 and 64 slots: phases go round, the bits stay. Source: device-model §1 and §3, RING_ID."""
    monkeypatch.setattr("rota.emit.collective.RING_SIZE", size)
    monkeypatch.setattr("rota.emit.program.RING_SIZE", size)
    collective = Ring(count=5000, chunk=192, dtype=Dtype.FP32)
    images, raw = collective.images, collective.raw_inputs()
    phases = np.frombuffer(section(images[0], Section.RX), DESCRIPTOR)["len_ctrl"] >> 24 & 3
    assert phases.size > 5 * size
    assert phases[: 5 * size : size].tolist() == [1, 2, 3, 0, 1]
    values = raw.view(np.float32)
    for order in Order:
        result = run_images(images, values, order=order, rng=np.random.default_rng(1))
        assert np.array_equal(result.view(np.uint8), expected(collective, raw))
