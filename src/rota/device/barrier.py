"""Barriers on the device model: every rank runs the four steps of its configuration, over and over, at random times.

Read are the 296 bytes, the descriptors and the words they add; nothing says which ranks belong together. In a step the
processor advances the tail of its queue and then waits, slot after slot, until the slot's semaphore has reached its
target, which it subtracts; behind the last step it waits for the drained descriptors. The engine sends one signal after
another, each after a random while. Source: barrier §9, the order of launch and wait a convention.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, freeze
from rota.device.load import Image
from rota.device.world import Places, World, refuse, resolve, semaphore_index
from rota.errors import DecodeError, StuckError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa.arch import ARCHES
from rota.isa.barrier_records import (
    CONFIG,
    FEEDS,
    LEADERS,
    MOST_SIGNALS,
    RING,
    RING_END,
    SLOTS,
    STEPS,
    BarrierImage,
)
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, DESCRIPTOR_SIZE, len_ctrl
from rota.isa.semaphores import FIRST_FREE, LAST_FREE, MAX_VALUE, SEMAPHORES, Reserved, Window

RUN_SOURCE: Final = Source("barrier", "9", CONVENTION)
_WORD: Final = 4
_SHOWN: Final = 8  # ranks that a blocked report names

# Times of the random order, picoseconds; they decide nothing but who is early. Arrivals and pauses have a long tail, so
# that the last rank comes long after the one before it, however many there are.
ARRIVAL_PS: Final = 20_000_000
PAUSE_PS: Final = 10_000_000
SIGNAL_PS: Final = 500_000
SLOW_PS: Final = 20_000_000
SLOW_SHARE: Final = 0.02
TIMES_SOURCE: Final = Source("device-model", "6", CONVENTION)


@dataclass(frozen=True, slots=True, eq=False)
class BarrierTimes:
    """When each rank entered and left each barrier; picoseconds, shape (barriers, ranks), ranks as they were loaded."""

    entry: I64
    leave: I64


@dataclass(frozen=True, slots=True)
class _Wait:
    """A semaphore, by its flat index, and what is subtracted once it has reached it."""

    semaphore: int
    target: int


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """One rank's program.

    Attributes:
        launch: signals each step starts.
        waits: of each step, and then of the drained descriptors.
        target, value: of each signal, the flat semaphore and what is added.
    """

    launch: tuple[int, ...]
    waits: tuple[tuple[_Wait, ...], ...]
    target: tuple[int, ...]
    value: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BarrierDevice:
    """All ranks of a program, loaded and checked."""

    world: World
    ranks: tuple[_Rank, ...]

    def run(self, rng: np.random.Generator, *, barriers: int = 1) -> BarrierTimes:
        """Run some barriers back to back, with random arrivals, pauses and delays.

        Raises:
            UsageError: fewer than one barrier.
            StuckError: ranks wait and no signal is on its way, or a semaphore is not back where it started.
        """
        if barriers < 1:
            raise UsageError(f"barriers: expected 1 or more, got {barriers}")
        return _Run(self, rng, barriers).run()


def load_barriers(images: Sequence[BarrierImage]) -> BarrierDevice:
    """Load what the ranks of a program run.

    Raises:
        DecodeError: bytes that no emitter means, with their offset in the configuration, or in the rank's page.
        UsageError: there are no images.
    """
    world = _world(images)
    ranks = []
    for index, image in enumerate(images):
        with _of_rank(image.rank):
            ranks.append(_rank(world, index, image))
    return BarrierDevice(world, tuple(ranks))


# --- loading ----------------------------------------------------------------------------------------------------------


@contextmanager
def _of_rank(rank: int) -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        what = f"barrier of rank {rank}: {error.what}"
        raise DecodeError(what, offset=error.offset, expected=error.expected, got=error.got) from None


def _world(images: Sequence[BarrierImage]) -> World:
    """Return where the ranks stand; a barrier touches no declared buffer."""
    if not images:
        raise UsageError("barrier: no images to load")
    first = images[0]
    arch = ARCHES[first.arch]
    sps = first.lnc * arch.sps_per_core
    index = np.full((1, arch.chips, arch.cores // first.lnc), -1, np.int64)
    for i, image in enumerate(images):
        if (image.arch, image.lnc) != (first.arch, first.lnc) or index[0, image.chip, image.lane] >= 0:
            raise UsageError(
                f"barrier: rank {image.rank} on chip {image.chip} lane {image.lane} of {image.arch}, LNC {image.lnc}: "
                f"expected {first.arch}, LNC {first.lnc}, and a place of its own; load the ranks of one program"
            )
        index[0, image.chip, image.lane] = i
    nothing = np.zeros(0, np.int64)
    placed = tuple(
        Image(
            arch=arch,
            rank=image.rank,
            ranks=len(images),
            span=0,
            chip=image.chip,
            lane=image.lane,
            lnc=image.lnc,
            stream_processors=sps,
            folds=1,
            streams=1,
            operations=0,
            chains=0,
            ring_size=MOST_SIGNALS,
            memory_size=RING_END,
            buffers=(),
            presets=(),
            parts={},
        )
        for image in images
    )
    size = np.full(len(images), RING_END, np.int64)
    return World(
        arch=arch,
        lnc=first.lnc,
        sps=sps,
        streams=1,
        images=placed,
        index=index,
        span=np.zeros(len(images), np.int64),
        chip=np.array([image.chip for image in images], np.int64),
        lane=np.array([image.lane for image in images], np.int64),
        memory_base=np.zeros(len(images) + 1, np.int64),
        memory_size=size,
        buffer_start=nothing,
        buffer_end=nothing,
    )


def _rank(world: World, index: int, image: BarrierImage) -> _Rank:
    if len(image.config) != CONFIG.size:
        raise DecodeError("configuration", offset=0, expected=f"{CONFIG.size} bytes", got=f"{len(image.config)} bytes")
    if len(image.page) != RING_END:
        raise DecodeError("page", offset=0, expected=f"{RING_END} bytes", got=f"{len(image.page)} bytes")
    stray = CONFIG.reserved(image.config)
    if stray is not None:
        raise DecodeError("configuration", offset=stray, expected="reserved bits zero", got=hex(image.config[stray]))
    values = CONFIG.decode(image.config)
    if not values["execute_device_barrier"]:
        raise DecodeError("execute_device_barrier", offset=_at("execute_device_barrier"), expected="1", got="0")
    launch = tuple(values[f"step{step}_m2s_val"] for step in range(STEPS))
    _check_queue(world, image, values, launch)
    target, value = _signals(world, index, image, values)
    return _Rank(launch, _waits(world, index, values), target, value)


def _check_queue(world: World, image: BarrierImage, values: dict[str, int], launch: tuple[int, ...]) -> None:
    """The counts agree with each other, and the registers with the queue and the engines."""
    arch, core, count = world.arch, image.lane * image.lnc, sum(launch)
    queue = min(values["queue_id"], 15)
    base = values["tdrbp_high"] << 32 | values["tdrbp_low"]
    expected = {
        **{f"step{step}_s2m_val": launch[step] for step in range(STEPS)},
        "desc_count": count,
        "total_desc_n": 2 * count,
        "queue_id": queue,
        "m2s_tail_ptr": arch.doorbell(core, queue, receive=False),
        "s2m_tail_ptr": arch.doorbell(core, queue, receive=True),
        "mask": values["dma_engines_bitmap"],
        "start_network_proxy": 0,
    }
    for name, want in expected.items():
        if values[name] != want:
            raise DecodeError(name, offset=_at(name), expected=hex(want), got=hex(values[name]))
    if values["dma_engines_bitmap"].bit_count() != 1:
        got = hex(values["dma_engines_bitmap"])
        raise DecodeError("dma_engines_bitmap", offset=_at("dma_engines_bitmap"), expected="one engine", got=got)
    if not 1 <= count <= MOST_SIGNALS or base != arch.memory(core) + RING:
        expected_ring = f"1 to {MOST_SIGNALS} descriptors at {arch.memory(core) + RING:#x}"
        raise DecodeError("descriptors", offset=_at("tdrbp_low"), expected=expected_ring, got=f"{count} at {base:#x}")


def _waits(world: World, index: int, values: dict[str, int]) -> tuple[tuple[_Wait, ...], ...]:
    """Return what each step waits for, and behind them what the drained descriptors reach."""
    steps = []
    for step in range(STEPS):
        pairs = [
            (f"step{step}_barrier_sema[{slot}]", values[f"step{step}_target_sema_val[{slot}]"]) for slot in range(SLOTS)
        ]
        steps.append(_slots(world, index, values, pairs))
    leaders = [(f"dma_sync_sema[{leader}]", values["dma_sync_sema_value"]) for leader in range(LEADERS)]
    drained = [(name, value) for name, value in leaders if values[name]]
    if not drained:
        raise DecodeError("dma_sync_sema", offset=_at("dma_sync_sema"), expected="one leader or more", got="none")
    return (*steps, _slots(world, index, values, drained))


def _slots(world: World, index: int, values: dict[str, int], pairs: list[tuple[str, int]]) -> tuple[_Wait, ...]:
    waits = []
    for name, target in pairs:
        offset = _at(name.split("[")[0])
        if bool(values[name]) != bool(target) or target > MAX_VALUE:
            raise DecodeError(
                name, offset=offset, expected="a semaphore and what it reaches, or neither", got=f"target {target}"
            )
        if not target:
            continue
        at = np.array([offset], np.int64)
        places = resolve(world, index, np.array([values[name]], np.uint64), at, name)
        flat = int(semaphore_index(world, places, Window.READ, at, name)[0])
        if flat // (world.sps * SEMAPHORES) != index:
            raise DecodeError(name, offset=offset, expected="a semaphore of its own", got=hex(values[name]))
        waits.append(_Wait(flat, target))
    return tuple(waits)


def _signals(
    world: World, index: int, image: BarrierImage, values: dict[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the semaphore and the value of every descriptor pair."""
    count = values["desc_count"]
    tx = np.frombuffer(image.page, DESCRIPTOR, count=count, offset=RING)
    rx = np.frombuffer(image.page, DESCRIPTOR, count=count, offset=RING + count * DESCRIPTOR_SIZE)
    at = RING + DESCRIPTOR_SIZE * np.arange(2 * count, dtype=np.int64)
    _check_words(tx, rx, at)
    sources = resolve(world, index, tx["buf_ptr"], at[:count], "source of a signal")
    odd = ~sources.memory | (sources.image != index) | (sources.offset < FEEDS) | (sources.offset % _WORD != 0)
    refuse(odd | (sources.offset > RING - _WORD), at[:count], "source of a signal", "a word it adds", tx["buf_ptr"])
    words = np.frombuffer(image.page, "<u4")
    value = words[sources.offset // _WORD].astype(np.int64)
    refuse((value == 0) | (value > MAX_VALUE), sources.offset, "word that is added", "1 to 2^31 - 1", value)
    idle = words.copy()
    idle[sources.offset // _WORD] = 0
    idle[RING // _WORD : (RING + 2 * count * DESCRIPTOR_SIZE) // _WORD] = 0
    refuse(idle != 0, _WORD * np.arange(idle.size), "page of the barrier", "0 where nothing is read", idle)
    places: Places = resolve(world, index, rx["buf_ptr"], at[count:], "target of a signal")
    target = semaphore_index(world, places, Window.INC, at[count:], "target of a signal")
    identity = target % SEMAPHORES
    own = (identity == Reserved.BARRIER_DMA_SYNC) & (places.image == index)
    free = (identity >= FIRST_FREE) & (identity <= LAST_FREE)
    refuse(~(own | free), at[count:], "target of a signal", "a semaphore that is handed out", rx["buf_ptr"])
    return tuple(target.tolist()), tuple(value.tolist())


def _check_words(tx: Array, rx: Array, at: I64) -> None:
    count = tx.size
    want = int(len_ctrl(_WORD, first=True, last=True)), int(len_ctrl(_WORD))
    refuse(tx["len_ctrl"] != want[0], at[:count], "signal, reading", f"{want[0]:#x}", tx["len_ctrl"])
    refuse(tx["meta_ctrl"] != COPY_WORD, at[:count], "signal, reading", f"{COPY_WORD:#x}", tx["meta_ctrl"])
    refuse(rx["len_ctrl"] != want[1], at[count:], "signal, writing", f"{want[1]:#x}", rx["len_ctrl"])
    refuse(rx["meta_ctrl"] != 0, at[count:], "signal, writing", "0", rx["meta_ctrl"])


def _at(name: str) -> int:
    return next(each.at for each in CONFIG.fields if each.name == name)


# --- running ----------------------------------------------------------------------------------------------------------

_ENTER: Final = 0
_DELIVER: Final = 1


class _Run:
    """One run: events by time, and what each rank stands at."""

    def __init__(self, device: BarrierDevice, rng: np.random.Generator, barriers: int) -> None:
        self.device, self.rng, self.barriers = device, rng, barriers
        count = len(device.ranks)
        self.value = [0] * device.world.semaphores
        self.per_rank = device.world.sps * SEMAPHORES
        self.done = [0] * count  # barriers
        self.step = [-1] * count  # -1 outside
        self.slot = [0] * count
        self.next = [0] * count  # signal
        self.tail = [0] * count
        self.entry = np.zeros((barriers, count), np.int64)
        self.leave = np.zeros((barriers, count), np.int64)
        self.events: list[tuple[int, int, int, int]] = []
        self.sequence = 0
        self.delays: list[int] = []

    def run(self) -> BarrierTimes:
        for rank, at in enumerate(self.rng.geometric(1 / ARRIVAL_PS, len(self.device.ranks)).tolist()):
            self._schedule(at, _ENTER, rank)
        while self.events:
            now, _, what, rank = heapq.heappop(self.events)
            if what == _ENTER:
                self.entry[self.done[rank], rank] = now
                self.step[rank] = 0
                self._launch(rank, now)
                self._advance(rank, now)
            else:
                self._deliver(rank, now)
        self._check_end()
        freeze(self.entry)
        freeze(self.leave)
        return BarrierTimes(self.entry, self.leave)

    def _schedule(self, at: int, what: int, rank: int) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (at, self.sequence, what, rank))

    def _delay(self) -> int:
        if not self.delays:
            usual = self.rng.integers(1, SIGNAL_PS, 4096)
            slow = self.rng.random(4096) < SLOW_SHARE
            self.delays = np.where(slow, self.rng.integers(1, SLOW_PS, 4096), usual).tolist()
        return self.delays.pop()

    def _launch(self, rank: int, now: int) -> None:
        """Advance the tail by the signals of the step; an idle engine starts on them."""
        idle = self.next[rank] == self.tail[rank]
        self.tail[rank] += self.device.ranks[rank].launch[self.step[rank]]
        if idle and self.next[rank] < self.tail[rank]:
            self._schedule(now + self._delay(), _DELIVER, rank)

    def _deliver(self, rank: int, now: int) -> None:
        program, at = self.device.ranks[rank], self.next[rank]
        target = program.target[at]
        self.value[target] += program.value[at]
        if self.value[target] > MAX_VALUE:
            raise StuckError(f"{self.device.world.semaphore_name(target)} exceeds {MAX_VALUE}")
        self.next[rank] += 1
        if self.next[rank] < self.tail[rank]:
            self._schedule(now + self._delay(), _DELIVER, rank)
        self._advance(target // self.per_rank, now)

    def _advance(self, rank: int, now: int) -> None:
        """Go on while waits are over; the last one ends the barrier."""
        program = self.device.ranks[rank]
        while self.step[rank] >= 0:
            waits = program.waits[self.step[rank]]
            while self.slot[rank] < len(waits):
                wait = waits[self.slot[rank]]
                if self.value[wait.semaphore] < wait.target:
                    return
                self.value[wait.semaphore] -= wait.target
                self.slot[rank] += 1
            self.slot[rank] = 0
            self.step[rank] += 1
            if self.step[rank] < STEPS:
                self._launch(rank, now)
            elif self.step[rank] > STEPS:
                self._complete(rank, now)

    def _complete(self, rank: int, now: int) -> None:
        """Leave; the host refills the ring, and the rank comes back after a pause."""
        self.leave[self.done[rank], rank] = now
        self.step[rank] = -1
        self.done[rank] += 1
        self.next[rank] = self.tail[rank] = 0
        if self.done[rank] < self.barriers:
            self._schedule(now + int(self.rng.geometric(1 / PAUSE_PS)), _ENTER, rank)

    def _check_end(self) -> None:
        waiting = [rank for rank, done in enumerate(self.done) if done < self.barriers]
        if waiting:
            says = [self._says(rank) for rank in waiting]
            more = f" and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
            raise StuckError(f"barrier is stuck: {'; '.join(says[:_SHOWN])}{more}", waiting=says)
        odd = next((flat for flat, value in enumerate(self.value) if value), None)
        if odd is not None:
            raise StuckError(
                f"{self.device.world.semaphore_name(odd)} ends {self.value[odd]:+d} away from its initial value"
            )

    def _says(self, rank: int) -> str:
        step, name = self.step[rank], self.device.world.images[rank].rank
        wait = self.device.ranks[rank].waits[step][self.slot[rank]]
        where = f"step {step}" if step < STEPS else "the drained descriptors"
        have = self.value[wait.semaphore]
        missing = wait.target & ~have
        return (
            f"rank {name} waits in {where} of barrier {self.done[rank]} for "
            f"{self.device.world.semaphore_name(wait.semaphore)} to reach {wait.target:#x}, it is {have:#x}"
            f" (missing {missing:#x})"
        )
