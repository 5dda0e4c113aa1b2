"""Barriers on the device model: the bytes alone run, damage is refused, and each planted mistake shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from rota.barrier.guarantee import Guarantee, find_early, promised
from rota.barrier.program import lower_barrier
from rota.barrier.table import Program, construct
from rota.device.barrier import BarrierTimes, load_barriers
from rota.errors import DecodeError, StuckError, UsageError
from rota.isa.barrier_records import CONFIG, FEEDS, RING, BarrierImage
from rota.isa.descriptors import DESCRIPTOR
from rota.machine.platform import Platform, load_platform

TRN1 = load_platform("trn1.32xlarge")
TRN2 = load_platform("trn2.48xlarge")
GEN1 = load_platform("trn3pds98-gen1")
GEN2 = load_platform("trn3pds98")
POD = load_platform("trn2u.48xlarge", nodes=4)
SMALL = construct(TRN2, [range(4)])
MACHINES = [
    (GEN1, range(256)),
    (GEN2, range(576)),
    (TRN2, range(64)),  # a ring, 4 channels
    (TRN2, range(16)),
    (TRN2, range(4)),  # a mesh
    (TRN2, [0, 4, 8]),
    (TRN1, range(32)),
    (POD, range(256)),
    (POD, [5, 69, 133, 197]),
]
NAMES = ["gen1", "gen2", "ring 64", "ring 16", "mesh", "chips", "trn1", "pod 256", "pod 4"]


def run(program: Program, seed: int, barriers: int = 4) -> BarrierTimes:
    """Run a program's bytes."""
    return load_barriers(lower_barrier(program)).run(np.random.default_rng(seed), barriers=barriers)


def damaged(images: Sequence[BarrierImage], **values: int) -> list[BarrierImage]:
    """Return the images with other values in the configuration of the first."""
    have = CONFIG.decode(images[0].config)
    return [dataclasses.replace(images[0], config=CONFIG.encode(**{**have, **values})), *images[1:]]


# --- global and neighbourhood property (checks 7 and 8) ---------------------------------------------------------------


def hold(platform: Platform, ranks: Sequence[int], seeds: range) -> None:
    """Run four barriers back to back for each seed; all end, and the promise is kept."""
    program = construct(platform, [ranks])
    device = load_barriers(lower_barrier(program))
    for seed in seeds:
        times = device.run(np.random.default_rng(seed), barriers=4)
        assert (times.entry <= times.leave).all()
        assert (times.leave[:-1] <= times.entry[1:]).all()
        assert find_early(program, promised(program), times.entry, times.leave) is None


@pytest.mark.parametrize(("platform", "ranks"), MACHINES, ids=NAMES)
def test_bytes_keep_the_promise_under_random_delays(platform: Platform, ranks: Sequence[int]) -> None:
    """No hang, no early exit, no lost signal: everybody on the switch, the receiving side elsewhere."""
    hold(platform, ranks, range(2))


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "ranks"), MACHINES, ids=NAMES)
def test_twenty_interleavings_of_every_machine(platform: Platform, ranks: Sequence[int]) -> None:
    """The same, for all of the interleavings."""
    hold(platform, ranks, range(2, 20))


def test_a_rank_farther_away_may_still_be_outside() -> None:
    """Outside the switch family a rank can leave before one that is no neighbour has entered."""
    program = construct(TRN2, [range(64)])
    times = run(program, 1)
    early = find_early(program, Guarantee.EVERYBODY, times.entry, times.leave)
    assert early is not None
    assert early.outside not in program.recv.of(early.rank).peer
    assert find_early(program, Guarantee.NEIGHBOURS, times.entry, times.leave) is None


def test_everybody_waits_for_the_last_on_the_switch() -> None:
    """On the switch the first to leave leaves after the last has entered."""
    times = run(construct(GEN1, [range(256)]), 3)
    assert (times.leave.min(axis=1) >= times.entry.max(axis=1)).all()


def test_groups_of_one_program_do_not_wait_for_each_other() -> None:
    """Two chips are two barriers."""
    program = construct(TRN2, [range(4), range(4, 8)])
    one, other = (slice(0, 4), slice(4, 8))
    apart = [run(program, seed, 1) for seed in range(8)]
    assert any(t.leave[0, one].max() < t.entry[0, other].min() or t.leave[0, other].max() < t.entry[0, one].max()
               for t in apart)  # fmt: skip


def test_a_single_rank_leaves_at_once() -> None:
    """A rank without peers waits for its own descriptors only."""
    times = run(construct(TRN2, [[3]]), 0, 2)
    assert (times.leave >= times.entry).all()


def test_the_same_seed_gives_the_same_times() -> None:
    """Chance comes from the generator alone."""
    assert (run(SMALL, 5).leave == run(SMALL, 5).leave).all()
    assert not (run(SMALL, 5).leave == run(SMALL, 6).leave).all()


def test_a_context_of_the_host_runs_as_well() -> None:
    """The other semaphores carry a barrier, too."""
    device = load_barriers(lower_barrier(SMALL, context=1))
    assert device.run(np.random.default_rng(0)).leave.shape == (1, 4)


# --- planted mistakes -------------------------------------------------------------------------------------------------


def test_trap_one_type_for_both_sides_of_a_pair() -> None:
    """With one type per ring pair, signals go to a semaphore that nobody waits for: the barrier hangs."""
    program = construct(TRN2, [range(16)])
    recv = dataclasses.replace(program.recv, kind=program.send.kind)
    wrong = dataclasses.replace(program, recv=recv)
    with pytest.raises(StuckError, match=r"barrier is stuck: rank \d+ waits in step 1") as stuck:
        run(wrong, 0, 1)
    assert stuck.value.waiting


def test_a_missing_signal_hangs() -> None:
    """Without one send entry its receiver waits forever; the message has semaphore and bit."""
    keep = np.ones(SMALL.send.owner.size, np.bool_)
    keep[0] = False
    with pytest.raises(StuckError, match=r"rank 1 waits in step 0 of barrier 0 .*\(missing 0x2\)"):
        run(dataclasses.replace(SMALL, send=SMALL.send.where(keep)), 0, 1)


def test_a_signal_too_many_is_left_over() -> None:
    """Without one receive entry a signal is never taken: a semaphore ends away from its start, or a barrier hangs."""
    keep = np.ones(SMALL.recv.owner.size, np.bool_)
    keep[-1] = False
    with pytest.raises(StuckError, match=r"semaphore \d+ of TOP_SP 0 of rank 3 ends \+\d+ away from its initial"):
        run(dataclasses.replace(SMALL, recv=SMALL.recv.where(keep)), 0, 1)


def test_a_wrong_bit_is_noticed() -> None:
    """A sender that sets another bit than its receiver expects lets it hang, or pass with a value left over."""
    bit = SMALL.send.bit.copy()
    bit[0] = 4
    with pytest.raises(StuckError):
        run(dataclasses.replace(SMALL, send=dataclasses.replace(SMALL.send, bit=bit)), 0)


def without_step(image: BarrierImage, step: int) -> BarrierImage:
    """Return an image whose step neither signals nor waits."""
    have = CONFIG.decode(image.config)
    launch = [have[f"step{i}_m2s_val"] for i in range(4)]
    first, last = sum(launch[:step]), sum(launch[: step + 1])
    count, kept = sum(launch), sum(launch) - launch[step]
    rows = np.frombuffer(image.page, DESCRIPTOR, 2 * count, RING).reshape(2, count)
    ring = np.delete(rows, slice(first, last), axis=1).tobytes()
    page = image.page[:RING] + ring.ljust(len(image.page) - RING, b"\0")
    gone = {f"step{step}_{name}[{slot}]": 0 for name in ("barrier_sema", "target_sema_val") for slot in range(4)}
    counts = {f"step{step}_m2s_val": 0, f"step{step}_s2m_val": 0, "desc_count": kept, "total_desc_n": 2 * kept}
    return dataclasses.replace(image, config=CONFIG.encode(**{**have, **gone, **counts}), page=page)


def test_one_round_is_no_barrier_of_all() -> None:
    """On the switch, one round between chips alone lets a rank out before somebody has entered."""
    program = construct(GEN1, [range(256)])
    device = load_barriers([without_step(image, 2) for image in lower_barrier(program)])
    runs = [device.run(np.random.default_rng(seed)) for seed in range(4)]
    assert any(find_early(program, Guarantee.EVERYBODY, each.entry, each.leave) for each in runs)
    assert not any(find_early(program, Guarantee.NEIGHBOURS, each.entry, each.leave) for each in runs)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "what", "offset"),
    [
        ({"execute_device_barrier": 0}, "execute_device_barrier", 0x124),
        ({"step1_s2m_val": 9}, "step1_s2m_val", 0x36),
        ({"desc_count": 6}, "desc_count", 0x118),
        ({"total_desc_n": 7}, "total_desc_n", 0x11C),
        ({"m2s_tail_ptr": 0x38}, "m2s_tail_ptr", 0x0F0),
        ({"s2m_tail_ptr": 0x38}, "s2m_tail_ptr", 0x0F8),
        ({"mask": 3}, "mask", 0x100),
        ({"mask": 3, "dma_engines_bitmap": 3}, "dma_engines_bitmap", 0x120),
        ({"queue_id": 77}, "queue_id", 0x122),
        ({"start_network_proxy": 1}, "start_network_proxy", 0x104),
        ({"tdrbp_low": 0}, "descriptors", 0x110),
        ({"step0_target_sema_val[0]": 0}, "step0_barrier_sema", 4),
        ({"step0_barrier_sema[0]": 0}, "step0_barrier_sema", 4),
        ({"step0_barrier_sema[0]": 12}, "step0_barrier_sema", 4),
        ({"step0_target_sema_val[0]": 1 << 31}, "step0_barrier_sema", 4),
        ({"dma_sync_sema[0]": 0}, "dma_sync_sema", 0x0D0),
    ],
)
def test_a_damaged_configuration_is_refused(values: dict[str, int], what: str, offset: int) -> None:
    """A value that no emitter means is named, with its offset and the rank."""
    with pytest.raises(DecodeError, match=f"barrier of rank 0: {what}") as bad:
        load_barriers(damaged(lower_barrier(SMALL), **values))
    assert bad.value.offset == offset


def test_a_semaphore_of_another_rank_is_not_waited_for() -> None:
    """A slot waits for a semaphore of its own rank."""
    images = lower_barrier(SMALL)
    other = CONFIG.decode(images[1].config)["step0_barrier_sema[0]"]
    with pytest.raises(DecodeError, match="a semaphore of its own"):
        load_barriers(damaged(images, **{"step0_barrier_sema[0]": other}))


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (RING, "signal, reading"),
        (RING + 4, "signal, reading"),
        (RING + 8, "source of a signal"),
        (RING + 14, "source of a signal"),
        (RING + 7 * 16, "signal, writing"),
        (RING + 7 * 16 + 4, "signal, writing"),
        (RING + 7 * 16 + 8, "target of a signal"),
        (RING + 7 * 16 + 14, "target of a signal"),
        (FEEDS + 4, "word that is added"),
    ],
)
def test_a_damaged_descriptor_is_refused(at: int, what: str) -> None:
    """A flipped bit of a descriptor, or of a word it reads, is named."""
    images = list(lower_barrier(SMALL))
    page = bytearray(images[0].page)
    page[at] ^= 2
    images[0] = dataclasses.replace(images[0], page=bytes(page))
    with pytest.raises(DecodeError, match=f"barrier of rank 0: {what}"):
        load_barriers(images)


@pytest.mark.parametrize("name", ["config", "page"])
def test_bytes_of_another_size(name: str) -> None:
    """A configuration has 296 bytes, a page 4096; reserved bits are zero."""
    images = list(lower_barrier(SMALL))
    short = dataclasses.replace(images[0], **{name: getattr(images[0], name)[:-1]})
    with pytest.raises(DecodeError, match="bytes"):
        load_barriers([short, *images[1:]])
    stray = dataclasses.replace(images[0], config=images[0].config[:-1] + b"\1")
    with pytest.raises(DecodeError, match="reserved bits zero") as bad:
        load_barriers([stray, *images[1:]])
    assert bad.value.offset == CONFIG.size - 1


def test_images_that_do_not_belong_together() -> None:
    """There is an image, each has a place of its own, and a target is a rank that is loaded."""
    images = lower_barrier(SMALL)
    with pytest.raises(UsageError, match="no images"):
        load_barriers([])
    with pytest.raises(UsageError, match="a place of its own"):
        load_barriers([images[0], images[0]])
    with pytest.raises(DecodeError, match="a rank of this operation"):
        load_barriers(images[:3])
    with pytest.raises(UsageError, match="barriers: expected 1 or more, got 0"):
        load_barriers(images).run(np.random.default_rng(0), barriers=0)
