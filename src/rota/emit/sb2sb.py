"""Moves between state buffers as 0xBF words: the rules, the cutting, and the words of both cores.

A word is an exchange: each core of a logical core sends what its own word says and takes what the other one's says.
So a move to the other core needs a word there too; where nothing goes back, that word sends one element of reserved
bytes to reserved bytes. A word begins when all receptions of earlier words have come, which its wait says, and both
cores go through their common words in step. What one word makes the device do is `sb2sb_leg`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np

from rota.columns import I64
from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION, Source
from rota.isa.arch import ARCHES, Arch
from rota.isa.dtypes import Dtype, short_name, size_of
from rota.isa.engines import SBUF_PARTITION, features_of
from rota.isa.enums import UpdateMode, WaitMode
from rota.isa.image import Section
from rota.isa.opcodes import Opcode, exists
from rota.isa.operands import SBUF_QUADRANTS, Pattern3D
from rota.isa.records import WORD_SIZE, Events
from rota.isa.semaphores import FIRST_FREE, LAST_FREE
from rota.isa.state_buffer import (
    COMPLETION,
    LEG_SOURCE,
    MIN_GENERATION,
    PARTITIONS,
    QUADRANT_PARTITIONS,
    RECEIVE,
    RESERVED_SOURCE,
    SEMAPHORES_SOURCE,
    SINK,
    USABLE,
    partner,
)
from rota.isa.transfers import (
    MAX_CHANNELS,
    MAX_SOURCE_ELEMENTS,
    LncSize,
    Sb2Sb,
    check_sb2sb,
    decode_sb2sb,
    encode_sb2sb,
)

_Triple = tuple[int, int, int]
RACE_SOURCE: Final = Source("device", "11, order of bytes inside a word", CONVENTION)
_STEPS: Final = range(-(1 << 15), 1 << 15)  # of a pattern in a word


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """Elements in the state buffer of a core, the same in every one of its partitions; the last dimension is fastest.

    Attributes:
        core: physical core of the chip.
        partition: the first one; 0, 32, 64 or 96.
        channels: how many partitions.
        offset: byte of the first element in its partition.
        step: elements from one to the next, per dimension; may be negative.
        num: elements of each dimension.
    """

    core: int
    partition: int = 0
    channels: int = PARTITIONS
    offset: int = 0
    step: _Triple = (0, 0, 1)
    num: _Triple
    dtype: Dtype

    @property
    def count(self) -> int:
        """Return the elements in one partition."""
        return self.num[0] * self.num[1] * self.num[2]

    @property
    def span(self) -> tuple[int, int]:
        """Return the first byte of a partition that is touched, and the one behind the last."""
        ends = [step * (num - 1) * size_of(self.dtype) for step, num in zip(self.step, self.num, strict=True)]
        low, high = (sum(limit(end, 0) for end in ends) for limit in (min, max))
        return self.offset + low, self.offset + high + size_of(self.dtype)

    def bytes_of_elements(self) -> I64:
        """Return the byte in its partition where each element starts, in order."""
        plane, line, place = (np.arange(n) * s for n, s in zip(self.num, self.step, strict=True))
        elements = plane[:, None, None] + line[:, None] + place
        found: I64 = self.offset + elements.ravel().astype(np.int64) * size_of(self.dtype)
        return found


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of all elements of one tensor to another of as many, in order."""

    source: StateTensor
    target: StateTensor


def sb2sb_words(
    source: StateTensor,
    target: StateTensor,
    *,
    arch: str,
    lnc: int = 2,
    received: int = 0,
    completion: int = COMPLETION,
    receive: int = RECEIVE,
) -> list[bytes]:
    """Return the words of the core that sends: one move, cut into at most 256 elements of a partition each.

    Args:
        lnc: physical cores of a logical core.
        received: words of this core before these; each has received once.
        completion, receive: semaphores of the core, by which it counts what it sent and what it received.

    Raises:
        UnsupportedError: a rule of the leg is broken; the message names it.
        UsageError: the architecture is unknown, or a semaphore is none that is free.
    """
    check_leg(arch, lnc)
    _check_move(source, target, ARCHES[arch], lnc)
    lnc_size = LncSize.LNC1 if source.core == target.core else LncSize.LNC2
    return [
        _word(src, dst, source.dtype, source.channels, lnc_size, _events(received + i, completion, receive))
        for i, (src, dst) in enumerate(_pieces(source, target))
    ]


def idle_words(
    count: int, *, dtype: Dtype, received: int = 0, completion: int = COMPLETION, receive: int = RECEIVE
) -> list[bytes]:
    """Return words for a core that only receives: each sends one element of the reserved bytes to reserved bytes."""
    sink = Pattern3D(SINK, (0, 0, 1), (1, 1, 1))
    return [_word(sink, sink, dtype, 1, LncSize.LNC2, _events(received + i, completion, receive)) for i in range(count)]


def sb2sb_streams(
    steps: Sequence[Sequence[Move]],
    *,
    arch: str,
    lnc: int = 2,
    core: int = 0,
    completion: int = COMPLETION,
    receive: int = RECEIVE,
) -> tuple[bytes, ...]:
    """Return the words of each core of a logical core, for moves one after the other.

    Args:
        steps: of one move each, or of two in opposite directions between the cores that happen at once.
        core: the first core of the logical core.

    Raises:
        UnsupportedError: as `sb2sb_words`, or the moves of a step write what the other one reads.
        UsageError: as `sb2sb_words`, a tensor lies on a core outside, or a step is none.
    """
    check_leg(arch, lnc)
    if core % lnc:
        raise UsageError(f"core {core}: expected the first of a logical core of {lnc}")
    streams: list[list[bytes]] = [[] for _ in range(lnc)]
    for number, step in enumerate(steps):
        moves = {move.source.core - core: move for move in step}
        if not 1 <= len(step) <= 2 or len(moves) < len(step):
            raise UsageError(f"step {number}: expected one move, or two that start on different cores, got {len(step)}")
        if any(each.core - core not in range(lnc) for move in step for each in (move.source, move.target)):
            raise UsageError(f"step {number}: expected tensors on cores {core} to {core + lnc - 1}")
        if len(step) == 2:
            _check_opposite(number, step[0], step[1])
        common = {"completion": completion, "receive": receive}
        words = {
            c: sb2sb_words(m.source, m.target, arch=arch, lnc=lnc, received=len(streams[c]), **common)
            for c, m in moves.items()
        }
        most = max(len(each) for each in words.values())
        both = step[0].source.core != step[0].target.core
        for c, stream in enumerate(streams):
            here = words.get(c, [])
            idle = most - len(here) if both else 0
            before = len(stream) + len(here)
            stream += [*here, *idle_words(idle, dtype=step[0].source.dtype, received=before, **common)]
    return tuple(b"".join(stream) for stream in streams)


def encode_section(stream: bytes) -> bytes:
    """Return the bytes of an image's SB2SB section: the words of one core.

    Raises:
        DecodeError: a word is cut, or is none.
        UnsupportedError: a word breaks a rule of the hardware.
        UsageError: there are none.
    """
    if not stream:
        raise UsageError("SB2SB section: expected at least one word")
    for offset in range(0, len(stream), WORD_SIZE):
        check_sb2sb(decode_sb2sb(stream, offset=offset))
    return bytes(stream)


def sb2sb_sections(streams: Sequence[bytes], *, arch: str) -> list[tuple[Section, int, bytes]]:
    """Return the sections of a rank's image; the index is the first stream processor of the core.

    Raises:
        DecodeError, UnsupportedError: as `encode_section`, or the architecture has no such leg.
        UsageError: the architecture is unknown.
    """
    check_leg(arch, len(streams))
    per_core = ARCHES[arch].sps_per_core
    return [(Section.SB2SB, i * per_core, encode_section(stream)) for i, stream in enumerate(streams) if stream]


def _events(received: int, completion: int, receive: int) -> Events:
    for semaphore in (completion, receive):
        if not FIRST_FREE <= semaphore <= LAST_FREE:
            raise UsageError(f"semaphore {semaphore}: expected a free id from {FIRST_FREE} to {LAST_FREE}")
    if completion == receive:
        _refuse("semaphores", f"completion and reception need one each, got {receive} for both", SEMAPHORES_SOURCE)
    return Events(WaitMode.WAIT_FOR_SEM_GE_IMM, receive, UpdateMode.SEM_INC_COMPLETE, completion, received)


def _word(src: Pattern3D, dst: Pattern3D, dtype: Dtype, channels: int, lnc: LncSize, events: Events) -> bytes:
    exchange = Sb2Sb(
        in_dtype=dtype, out_dtype=dtype, src=src, dst=dst, lnc_size=lnc, num_channels=channels, events=events
    )
    check_sb2sb(exchange)
    return encode_sb2sb(exchange)


# --- rules ------------------------------------------------------------------------------------------------------------


def _refuse(rule: str, message: str, source: Source = LEG_SOURCE) -> NoReturn:
    raise UnsupportedError(f"SB2SB, rule '{rule}': {message}", source=source)


def check_leg(arch: str, lnc: int) -> None:
    """Refuse an architecture without the leg, and logical cores of more than two cores.

    Raises:
        UnsupportedError: as said.
        UsageError: the architecture is unknown.
    """
    generation = features_of(arch).generation
    if generation < MIN_GENERATION:
        _refuse("core version", f"expected {MIN_GENERATION} or later, {arch} is {generation}")
    if not exists(Opcode.SB2SB_COLLECTIVE, arch):
        _refuse("opcode", f"{arch} has no 0xBF")
    if lnc not in (1, 2):
        _refuse("lnc format", f"expected LNC1 (self) or LNC2 (partner), got {lnc} cores")


def _check_move(source: StateTensor, target: StateTensor, arch: Arch, lnc: int) -> None:
    for name, each in (("source", source), ("target", target)):
        _check_tensor(name, each, arch)
    if source.core != target.core and (lnc == 1 or target.core != partner(source.core)):
        where = f"core {source.core} itself" + (f" or core {partner(source.core)}" if lnc == 2 else "")
        _refuse("lnc format", f"expected a target on {where}, got core {target.core}")
    if source.dtype is not target.dtype:
        _refuse("equal dtypes", f"got {short_name(source.dtype)} and {short_name(target.dtype)}")
    if source.channels != target.channels:
        _refuse("active channels", f"source has {source.channels}, target {target.channels}; expected as many")
    if source.count != target.count:
        _refuse("element count", f"source has {source.count} elements a partition, target {target.count}")
    if np.unique(_all_bytes(target)).size < target.count * size_of(target.dtype):
        _refuse("order", "two elements of the target share a byte", RACE_SOURCE)
    if _share_bytes(source, target):
        _refuse("order", f"source and target share bytes of core {source.core}", RACE_SOURCE)


def _check_tensor(name: str, tensor: StateTensor, arch: Arch) -> None:
    if not 0 <= tensor.core < arch.cores:
        _refuse("core", f"{name}: expected a core from 0 to {arch.cores - 1}, got {tensor.core}")
    if not size_of(tensor.dtype):
        _refuse("equal dtypes", f"{name}: {short_name(tensor.dtype)} has no size")
    if not 1 <= tensor.channels <= MAX_CHANNELS:
        _refuse("active channels", f"{name}: expected 1 to {MAX_CHANNELS}, got {tensor.channels}")
    first = [quadrant // SBUF_PARTITION for quadrant in SBUF_QUADRANTS]
    if tensor.partition not in first:
        names = ", ".join(str(each) for each in first)
        _refuse("start partition", f"{name}: expected one of {names}, got {tensor.partition}")
    if tensor.partition + tensor.channels > PARTITIONS:
        end = tensor.partition + tensor.channels - 1
        _refuse("active channels", f"{name}: ends at partition {end}, expected at most {PARTITIONS - 1}")
    if min(tensor.num) < 1:
        _refuse("element count", f"{name}: every dimension has an element, got {tensor.num}")
    low, high = tensor.span
    if low < 0 or high > USABLE:
        message = f"{name}: bytes {low} to {high - 1} of a partition, expected 0 to {USABLE - 1}"
        _refuse("state buffer", message, RESERVED_SOURCE)


def _check_opposite(number: int, one: Move, other: Move) -> None:
    pair = {one.source.core: one.target.core, other.source.core: other.target.core}
    if any(start == end or pair.get(end) != start for start, end in pair.items()):
        raise UsageError(f"step {number}: two moves at once go in opposite directions between the two cores")
    if _share_bytes(one.source, other.target) or _share_bytes(other.source, one.target):
        _refuse("order", f"step {number}: a move writes what the other one reads", RACE_SOURCE)


def _all_bytes(tensor: StateTensor) -> I64:
    found: I64 = (tensor.bytes_of_elements()[:, None] + np.arange(size_of(tensor.dtype))).ravel()
    return found


def _share_bytes(one: StateTensor, other: StateTensor) -> bool:
    first, last = (
        max(one.partition, other.partition),
        min(one.partition + one.channels, other.partition + other.channels),
    )
    if one.core != other.core or first >= last:
        return False
    (low, high), (least, most) = one.span, other.span
    return low < most and least < high and bool(np.intersect1d(_all_bytes(one), _all_bytes(other)).size)


# --- cutting ----------------------------------------------------------------------------------------------------------


def _pieces(source: StateTensor, target: StateTensor) -> Iterator[tuple[Pattern3D, Pattern3D]]:
    """Yield the patterns of each word: the longest runs of elements that are boxes on both sides."""
    one, other = _Side(source), _Side(target)
    at = 0
    while at < source.count:
        for length in range(min(MAX_SOURCE_ELEMENTS, source.count - at), 0, -1):
            src, dst = one.shape(at, length), other.shape(at, length)
            if src is not None and dst is not None:
                yield one.pattern(at, src), other.pattern(at, dst)
                at += length
                break


class _Side:
    """A tensor with as few dimensions as it takes, so that its boxes are large."""

    def __init__(self, tensor: StateTensor) -> None:
        self.size = size_of(tensor.dtype)
        self.start = SBUF_QUADRANTS[tensor.partition // QUADRANT_PARTITIONS] + tensor.offset
        axes: list[tuple[int, int]] = []
        for step, num in zip(tensor.step, tensor.num, strict=True):
            if num == 1:
                continue
            if axes and axes[-1][1] == step * num:
                axes[-1] = (axes[-1][0] * num, step)
            else:
                axes.append((num, step))
        axes = [(1, 0)] * (3 - len(axes)) + axes
        self.num, self.step = tuple(num for num, _ in axes), tuple(step for _, step in axes)

    def shape(self, at: int, length: int) -> _Triple | None:
        """Return planes, lines and elements of `length` elements from `at` on, None when a word cannot hold them."""
        line, plane = self.num[2], self.num[1] * self.num[2]
        if at % line + length <= line:
            found = (1, 1, length)
        elif at % line or length % line:
            return None
        elif at % plane + length <= plane:
            found = (1, length // line, line)
        elif at % plane or length % plane:
            return None
        else:
            found = (length // plane, self.num[1], line)
        fits = all(n == 1 or step in _STEPS for n, step in zip(found, self.step, strict=True))
        return found if fits else None

    def pattern(self, at: int, num: _Triple) -> Pattern3D:
        """Return the pattern of a box that begins with element `at`."""
        line, plane = self.num[2], self.num[1] * self.num[2]
        index = (at // plane, at % plane // line, at % line)
        element = sum(i * step for i, step in zip(index, self.step, strict=True))
        step = [step if n > 1 else 0 for n, step in zip(num, self.step, strict=True)]
        return Pattern3D(self.start + element * self.size, (step[0], step[1], step[2]), num)
