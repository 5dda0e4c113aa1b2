"""The SB2SB leg of the device model: the cores of a logical core carry out their 0xBF words, from the bytes alone.

Each word is an exchange with its partner, or with itself: announce that this core is ready, read that the other one is,
build the descriptors, publish those that write, signal, wait for the signal, start, complete. A core goes on when what
it sent has left and what it receives has come, so the cores go through their common words in step, and every order in
which they run gives the same bytes: words of which this is not true are refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rota.columns import I64, U8, Array, ranges
from rota.device.sb2sb_words import check_common, decode_section, place_of, starts
from rota.errors import StuckError, UnsupportedError, UsageError
from rota.isa.arch import ARCHES, Arch
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, decode_length, len_ctrl, limits_of
from rota.isa.dtypes import size_of
from rota.isa.engines import SBUF_FEED_OFFSET, SBUF_PARTITION, features_of
from rota.isa.layout import Buffer
from rota.isa.semaphores import SEMAPHORES, STRIDE, Window, decode_register, register_offset
from rota.isa.state_buffer import (
    COMPUTE_VIEW,
    ENGINE_MASK,
    LEG_SOURCE,
    LOG_ANNOUNCE,
    LOG_CHANNELS,
    LOG_DECODE,
    LOG_OPERATION,
    LOG_PRE_SYNC,
    MIN_GENERATION,
    PARTITION_SIZE,
    PARTITIONS,
    POOL_VIEW,
    READY,
    Handshake,
    log_line,
    partner,
    place_in_state_buffer,
    state_buffer,
)
from rota.isa.transfers import LncSize, Sb2Sb

MAX_CORES: Final = 2  # of a logical core
_SEMAPHORE_ITEMS: Final = 2  # behind the data of a word: LOCAL, then REMOTE


@dataclass(frozen=True, slots=True, eq=False)
class Exchanged:
    """What is left when all words have run.

    Attributes:
        buffers: state buffer of each core, shape (partitions, bytes of a partition).
        semaphores: shape (cores, 256).
        log: the firmware's lines of each core.
    """

    buffers: tuple[U8, ...]
    semaphores: I64
    log: tuple[tuple[str, ...], ...]


def empty_state_buffer(arch: str) -> U8:
    """Return a state buffer of zeros, shape (partitions, bytes of a partition).

    Raises:
        UsageError: the architecture is unknown.
    """
    features_of(arch)
    return np.zeros((PARTITIONS, PARTITION_SIZE[arch]), np.uint8)


def run_sb2sb(
    streams: Sequence[Buffer],
    buffers: Sequence[U8],
    *,
    arch: str,
    core: int = 0,
    rng: np.random.Generator | None = None,
) -> Exchanged:
    """Run the words of all cores of a logical core; the buffers that are given stay as they are.

    Args:
        streams: words of each core, in order; none for a core that does nothing.
        buffers: state buffer of each core, shape (partitions, bytes of a partition).
        core: number of the first core on its chip.
        rng: chooses who goes next and in which order data lands; without one the cores take turns.

    Raises:
        DecodeError: a stream holds what the device does not decode, or a word that breaks a rule.
        StuckError: nobody can go on.
        UnsupportedError: the architecture has no such leg, or two words that run at once write what one of them reads.
        UsageError: the cores are none of a logical core, or a buffer has another shape.
    """
    generation = features_of(arch).generation
    if generation < MIN_GENERATION:
        message = f"SB2SB needs core version {MIN_GENERATION} or later, {arch} is {generation}"
        raise UnsupportedError(message, source=LEG_SOURCE)
    _check_cores(streams, buffers, arch, core)
    words = [decode_section(stream) if len(stream) else () for stream in streams]
    check_common(words, core)
    machine = _Machine(ARCHES[arch], words, buffers, core, rng)
    machine.run()
    return Exchanged(tuple(machine.memory), machine.semaphores, tuple(tuple(each.log) for each in machine.cores))


def _check_cores(streams: Sequence[Buffer], buffers: Sequence[U8], arch: str, core: int) -> None:
    if not 1 <= len(streams) <= MAX_CORES or len(buffers) != len(streams):
        raise UsageError(f"SB2SB: expected words and state buffers of 1 or 2 cores, got {len(streams)}, {len(buffers)}")
    if not 0 <= core <= ARCHES[arch].cores - len(streams) or core % len(streams):
        raise UsageError(f"core {core}: expected the first of a logical core of {len(streams)} on {arch}")
    want = (PARTITIONS, PARTITION_SIZE[arch])
    for i, each in enumerate(buffers):
        if each.shape != want or each.dtype != np.uint8:
            raise UsageError(f"state buffer of core {core + i}: expected bytes of shape {want}, got {each.shape}")


# --- descriptors ------------------------------------------------------------------------------------------------------


def descriptors(word: Sb2Sb, sender: int, receiver: int, *, arch: Arch) -> tuple[Array, Array]:
    """Return what the sender builds for a word: the runs of each channel, then the semaphores LOCAL and REMOTE.

    Returns:
        Structured arrays of `descriptors.DESCRIPTOR`: those that read, those that write.
    """
    size, channels = size_of(word.in_dtype), word.num_channels
    source, target = starts(word.src, size), starts(word.dst, size)
    follows = (source[1:] == source[:-1] + size) & (target[1:] == target[:-1] + size)
    run = np.concatenate(([0], np.cumsum(~follows)))
    first = np.flatnonzero(np.diff(run, prepend=-1))
    lengths = np.append(np.tile(np.bincount(run) * size, channels), [STRIDE] * _SEMAPHORE_ITEMS)
    data = channels * first.size
    limits = limits_of(arch.name)
    begins = np.ones(lengths.size, np.bool_)
    begins[:data] = np.arange(data) % min(limits.tx_cap, limits.rx_cap) == 0
    ends = np.roll(begins, -1)
    tx, rx = np.zeros(lengths.size, DESCRIPTOR), np.zeros(lengths.size, DESCRIPTOR)
    tx["len_ctrl"] = len_ctrl(lengths, first=begins, last=ends, concat=~ends)
    rx["len_ctrl"] = len_ctrl(lengths, strong_order=np.arange(lengths.size) == data - 1)
    tx["meta_ctrl"] = COPY_WORD
    for side, core, pattern, start in ((tx, sender, word.src, source), (rx, receiver, word.dst, target)):
        partition = (place_of(pattern)[0] + np.arange(channels)) * SBUF_PARTITION
        side["buf_ptr"][:data] = (state_buffer(arch, core) + np.add.outer(partition, start[first])).ravel()
    tx["buf_ptr"][data:] = state_buffer(arch, sender) + SBUF_FEED_OFFSET
    rx["buf_ptr"][data] = _semaphores(arch, sender) + register_offset(Window.INC, word.events.update_idx)
    rx["buf_ptr"][data + 1] = _semaphores(arch, receiver) + register_offset(Window.INC, word.events.wait_idx)
    return tx, rx


def _semaphores(arch: Arch, core: int) -> int:
    """Return the address of the semaphores of a core: those of its first stream processor."""
    return arch.semaphores(core * arch.sps_per_core)


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Queue:
    """The descriptors of one word, and how far the engine is."""

    tx: Array
    rx: Array
    order: I64  # in which the data land
    published: int = 0  # descriptors below the RX tail
    started: bool = False
    next: int = 0


@dataclass(slots=True, eq=False)
class _Core:
    """One core: where it is in its words, what it has counted, its engine's queue."""

    number: int
    words: Sequence[Sb2Sb]
    at: int = 0
    step: Handshake = Handshake.ISSUE
    queue: _Queue | None = None
    expected: dict[int, int] = field(default_factory=dict)  # semaphore -> value when all so far is done
    log: list[str] = field(default_factory=list)

    @property
    def peer(self) -> int:
        """Number of the core its word exchanges with."""
        return self.number if self.words[self.at].lnc_size is LncSize.LNC1 else partner(self.number)


class _Machine:
    """The cores of a logical core: state buffers, semaphores, flags, signals. Keys are (who says it, to whom)."""

    def __init__(
        self,
        arch: Arch,
        words: Sequence[Sequence[Sb2Sb]],
        buffers: Sequence[U8],
        first: int,
        rng: np.random.Generator | None,
    ) -> None:
        self.arch, self.first, self.rng = arch, first, rng
        self.memory = [np.array(each, order="C") for each in buffers]
        self.semaphores = np.zeros((len(words), SEMAPHORES), np.int64)
        self.cores = [_Core(first + i, each) for i, each in enumerate(words)]
        self.ready: set[tuple[int, int]] = set()
        self.signals: set[tuple[int, int]] = set()

    def run(self) -> None:
        actions = [(act, core) for core in self.cores for act in (self._advance, self._move)]
        while True:
            order = self.rng.permutation(len(actions)).tolist() if self.rng is not None else range(len(actions))
            went = False
            for i in order:
                act, core = actions[i]
                went = act(core) or went
                if went and self.rng is not None:
                    break
            if not went:
                break
        left = [core for core in self.cores if core.at < len(core.words)]
        if left:
            waiting = [self._waits_for(core) for core in left]
            raise StuckError("; ".join(waiting), waiting=waiting)

    def _advance(self, core: _Core) -> bool:
        """Take the next step of a core's word, and say whether it could be taken."""
        if core.at == len(core.words) or not self._can(core):
            return False
        word, peer = core.words[core.at], core.peer
        match core.step:
            case Handshake.ISSUE:
                self._log_word(core, word, peer)
            case Handshake.ANNOUNCE:
                self.ready.add((core.number, peer))
                core.log.append(log_line(LOG_ANNOUNCE, core.number, core.number, peer))
            case Handshake.READ_READY:
                self.ready.remove((peer, core.number))
                core.log.append(log_line(LOG_PRE_SYNC, core.number, POOL_VIEW, COMPUTE_VIEW, READY))
            case Handshake.BUILD:
                core.queue = self._queue(*descriptors(word, core.number, peer, arch=self.arch))
                for semaphore in (word.events.update_idx, word.events.wait_idx):
                    core.expected[semaphore] = core.expected.get(semaphore, 0) + 1
            case Handshake.RX_TAIL:
                queue = self._core(peer).queue
                assert queue is not None, "the gate has seen it"
                queue.published = queue.rx.size
            case Handshake.SIGNAL:
                self.signals.add((core.number, peer))
            case Handshake.WAIT_SIGNAL:
                self.signals.remove((peer, core.number))
            case Handshake.TX_TAIL:
                assert core.queue is not None, "built before"
                core.queue.started = True
            case Handshake.COMPLETE:
                core.at, core.step = core.at + 1, Handshake.ISSUE
                return True
        core.step = Handshake(core.step + 1)
        return True

    def _can(self, core: _Core) -> bool:
        """Say whether what a core's next step waits for is there."""
        word, peer = core.words[core.at], core.peer
        can = True
        match core.step:
            case Handshake.ISSUE:
                can = self._value(core, word.events.wait_idx) >= word.events.semaphore_value
            case Handshake.ANNOUNCE:
                can = (core.number, peer) not in self.ready
            case Handshake.READ_READY:
                can = (peer, core.number) in self.ready
            case Handshake.BUILD:
                can = core.queue is None
            case Handshake.RX_TAIL:
                queue = self._core(peer).queue
                can = queue is not None and not queue.published
            case Handshake.WAIT_SIGNAL:
                can = (peer, core.number) in self.signals
            case Handshake.COMPLETE:
                can = all(self._value(core, each) >= value for each, value in core.expected.items())
        return can

    def _move(self, core: _Core) -> bool:
        """Let the engine of a core carry out some of its descriptors, and say whether there were any."""
        queue = core.queue
        if queue is None or not queue.started or not queue.published:
            return False
        data = queue.tx.size - _SEMAPHORE_ITEMS
        if queue.next < data:
            count = int(self.rng.integers(1, data - queue.next + 1)) if self.rng is not None else data
            self._copy(queue, queue.order[queue.next : queue.next + count])
            queue.next += count
            return True
        self._signal(int(queue.rx["buf_ptr"][queue.next]))
        queue.next += 1
        if queue.next == queue.tx.size:
            core.queue = None
        return True

    def _copy(self, queue: _Queue, items: I64) -> None:
        size = decode_length(queue.tx["len_ctrl"][items])
        (source, start), (target, end) = (self._flat(side["buf_ptr"][items]) for side in (queue.tx, queue.rx))
        self.memory[target].reshape(-1)[ranges(end, size)] = self.memory[source].reshape(-1)[ranges(start, size)]

    def _flat(self, address: Array) -> tuple[int, I64]:
        """Return whose state buffer addresses of one core mean, and the bytes in it."""
        core, partition, byte = place_in_state_buffer(self.arch, address.astype(np.int64))
        return int(core[0]) - self.first, partition * PARTITION_SIZE[self.arch.name] + byte

    def _signal(self, address: int) -> None:
        """Add the feed word, which is 1, to the semaphore at an address of the INC window."""
        for core in self.cores:
            offset = address - _semaphores(self.arch, core.number)
            if 0 <= offset <= register_offset(Window.INC, SEMAPHORES - 1):
                window, semaphore = decode_register(offset)
                assert window is Window.INC, "built as an increment"
                self.semaphores[core.number - self.first, semaphore] += 1

    def _queue(self, tx: Array, rx: Array) -> _Queue:
        """Return the queue of these descriptors; all data but the last, strongly ordered ones land in any order."""
        order = np.arange(tx.size - _SEMAPHORE_ITEMS)
        if self.rng is not None:
            order[:-1] = self.rng.permutation(order.size - 1)
        return _Queue(tx, rx, order)

    def _core(self, number: int) -> _Core:
        return self.cores[number - self.first]

    def _value(self, core: _Core, semaphore: int) -> int:
        return int(self.semaphores[core.number - self.first, semaphore])

    def _log_word(self, core: _Core, word: Sb2Sb, peer: int) -> None:
        totals = (word.src.elements, word.dst.elements, int(word.in_dtype), peer, core.number, ENGINE_MASK)
        core.log.append(log_line(LOG_DECODE, core.number))
        core.log.append(log_line(LOG_OPERATION, core.number, *totals))
        core.log.append(log_line(LOG_CHANNELS, core.number, word.num_channels, core.number))

    def _waits_for(self, core: _Core) -> str:
        """Say what a core waits for, and why that does not come."""
        word, peer = core.words[core.at], core.peer
        where = f"core {core.number} waits at word {core.at} (offset {word.offset})"
        if core.step is Handshake.ISSUE:
            semaphore, value = word.events.wait_idx, self._value(core, word.events.wait_idx)
            return f"{where} for semaphore {semaphore} to reach {word.events.semaphore_value}, it is {value}"
        other = next((each for each in self.cores if each.number == peer), None)
        if other is None:
            why = f"core {peer} does not run"
        elif other.at == len(other.words):
            why = f"core {peer} has ended after {len(other.words)} words"
        else:
            why = f"core {peer} is at word {other.at} (offset {other.words[other.at].offset})"
        return f"{where} for core {peer} to be ready to receive: {why}"
