"""The 0xBF words a device is given: what it decodes and what it refuses, before anything runs.

The form of a word and the checks of the hardware are in `isa.transfers`; this adds what makes the outcome depend on
nothing but the bytes. Carrying words out is `sb2sb`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

import numpy as np

from rota.columns import I64
from rota.errors import DecodeError, UnsupportedError
from rota.facts import CONVENTION, Source
from rota.isa.arch import Arch
from rota.isa.dtypes import short_name, size_of
from rota.isa.enums import UpdateMode, WaitMode
from rota.isa.layout import Buffer
from rota.isa.opcodes import Opcode, describe_opcode, is_pseudo
from rota.isa.operands import Addr4Form, Pattern3D, locate
from rota.isa.records import WORD_SIZE
from rota.isa.semaphores import FIRST_FREE, LAST_FREE
from rota.isa.state_buffer import DECODE_SET, DECODED, LIMIT, PARTITIONS, QUADRANT_PARTITIONS
from rota.isa.transfers import LncSize, Sb2Sb, check_sb2sb, decode_sb2sb

RACE_SOURCE: Final = Source("device", "11, words that run at once", CONVENTION)
_OPERATIONS: Final = f"an operation of the device ({', '.join(DECODE_SET)})"


def decode_section(data: Buffer, *, at: int = 0) -> tuple[Sb2Sb, ...]:
    """Return the words of one core, each of them one that this model can carry out.

    Args:
        data: an SB2SB section of an image, or a stream.
        at: where it begins in its file, for the offsets in messages.

    Raises:
        DecodeError: there are no words, one is cut, is another operation, or breaks a rule.
    """
    if not len(data):
        raise DecodeError("SB2SB section", offset=at, expected="at least one word", got="no bytes")
    return tuple(_decode_word(data, offset, at) for offset in range(0, len(data), WORD_SIZE))


def core_of_section(index: int, *, arch: Arch, lnc: int, offset: int = 0) -> int:
    """Return the core of its rank that a section is for; the index is the first stream processor of that core.

    Raises:
        DecodeError: it is not; `offset` is where the index stands.
    """
    core, rest = divmod(index, arch.sps_per_core)
    if rest or not 0 <= core < lnc:
        known = ", ".join(str(arch.sps_per_core * each) for each in range(lnc))
        raise DecodeError("index of an SB2SB section", offset=offset, expected=f"one of {known}", got=str(index))
    return core


def check_common(words: Sequence[Sequence[Sb2Sb]], core: int) -> None:
    """Refuse words that run at once, the k-th of each core for the other, when they do not fit each other.

    Args:
        words: of each core, decoded.
        core: number of the first core.

    Raises:
        UnsupportedError: they count on different semaphores, or one writes what the other one reads.
    """
    common = [[word for word in each if word.lnc_size is LncSize.LNC2] for each in words]
    for one, other in zip(*common, strict=False) if len(common) > 1 else ():
        where = f"word {one.index} of core {core} and word {other.index} of core {core + 1}"
        ids = [(word.events.wait_idx, word.events.update_idx) for word in (one, other)]
        if ids[0] != ids[1]:
            raise UnsupportedError(
                f"{where}: expected the same semaphores, got {ids[0]} and {ids[1]}", source=RACE_SOURCE
            )
        for reading, writing, here in ((one, other, core), (other, one, core + 1)):
            sizes = size_of(reading.in_dtype), size_of(writing.in_dtype)
            if _clash(reading.src, writing.dst, *sizes, reading.num_channels, writing.num_channels):
                message = f"{where} run at once, and one reads what the other one writes on core {here}"
                raise UnsupportedError(message, source=RACE_SOURCE)


def starts(pattern: Pattern3D, size: int) -> I64:
    """Return the byte in its partition where each element starts; the last dimension is fastest."""
    index = np.indices(pattern.num).reshape(3, -1)
    start: I64 = np.tensordot(np.array(pattern.step, np.int64), index, 1) * size + place_of(pattern)[1]
    return start


def place_of(pattern: Pattern3D) -> tuple[int, int]:
    """Return the first partition, and the byte where the pattern begins in it."""
    place = locate(pattern.address)
    assert place is not None, "checked when the word was decoded"
    return place.quadrant * QUADRANT_PARTITIONS, place.offset


def _touched(pattern: Pattern3D, size: int) -> I64:
    found: I64 = np.add.outer(starts(pattern, size), np.arange(size)).ravel()
    return found


def _clash(one: Pattern3D, other: Pattern3D, size: int, other_size: int, channels: int, other_channels: int) -> bool:
    """Say whether two patterns in one state buffer share a byte."""
    first, second = place_of(one)[0], place_of(other)[0]
    if max(first, second) >= min(first + channels, second + other_channels):
        return False
    return bool(np.intersect1d(_touched(one, size), _touched(other, other_size)).size)


def _decode_word(data: Buffer, offset: int, at: int) -> Sb2Sb:
    opcode = data[offset]
    if opcode not in DECODED:
        got = describe_opcode(opcode) + (", which the host lowers" if is_pseudo(opcode) else "")
        raise DecodeError("operation", offset=at + offset, expected=_OPERATIONS, got=got)
    if opcode != Opcode.SB2SB_COLLECTIVE:
        got = f"{describe_opcode(opcode)}, which moves nothing between state buffers"
        raise DecodeError("operation", offset=at + offset, expected=describe_opcode(Opcode.SB2SB_COLLECTIVE), got=got)
    try:
        word = decode_sb2sb(data, offset=offset)
        check_sb2sb(word)
    except DecodeError as error:
        where = at + error.offset
        raise DecodeError(error.what, offset=where, expected=error.expected, got=error.got) from None
    except UnsupportedError as error:
        raise DecodeError(
            "SB2SB word", offset=at + offset, expected="one that passes the checks of the hardware", got=str(error)
        ) from None
    _check_word(word, at + offset)
    return word


def _refuse(offset: int, what: str, expected: str, got: object) -> NoReturn:
    raise DecodeError(f"{what} of an SB2SB word", offset=offset, expected=expected, got=str(got))


def _check_word(word: Sb2Sb, offset: int) -> None:
    """Refuse what the model cannot carry out in a way that does not depend on luck."""
    size, channels = size_of(word.in_dtype), word.num_channels
    if not size:
        _refuse(offset + 12, "element type", "a type with a size", short_name(word.in_dtype))
    _check_events(word, offset)
    for at, pattern in ((16, word.src), (48, word.dst)):
        _check_pattern(pattern, size, channels, offset + at)
    if word.src.elements != word.dst.elements:
        expected = f"those of {word.src.elements} elements, as many as the source"
        _refuse(offset + 48, "descriptors", expected, word.dst.elements)
    if np.unique(_touched(word.dst, size)).size < word.dst.elements * size:
        _refuse(offset + 48, "target", "every byte written once", "two elements that share one")
    if word.lnc_size is LncSize.LNC1 and _clash(word.src, word.dst, size, size, channels, channels):
        _refuse(offset + 48, "target", "bytes that the word does not read", "some of the source's")


def _check_events(word: Sb2Sb, offset: int) -> None:
    """The word waits for the semaphore of its receptions and counts on another one."""
    events = word.events
    if events.wait_mode is not WaitMode.WAIT_FOR_SEM_GE_IMM:
        expected = "WAIT_FOR_SEM_GE_IMM on the semaphore of receptions"
        _refuse(offset + 4, "wait_mode", expected, events.wait_mode.name)
    if events.update_mode is not UpdateMode.SEM_INC_COMPLETE:
        expected = "SEM_INC_COMPLETE of the semaphore of completions"
        _refuse(offset + 6, "update_mode", expected, events.update_mode.name)
    for at, semaphore in ((5, events.wait_idx), (7, events.update_idx)):
        if not FIRST_FREE <= semaphore <= LAST_FREE:
            _refuse(offset + at, "semaphore", f"a free one, {FIRST_FREE} to {LAST_FREE}", semaphore)
    if events.wait_idx == events.update_idx:
        _refuse(offset + 7, "update_idx", "another semaphore than the wait's", events.update_idx)


def _check_pattern(pattern: Pattern3D, size: int, channels: int, offset: int) -> None:
    """The pattern lies in the part of the partitions that words reach."""
    place = locate(pattern.address) if pattern.form is Addr4Form.IMMEDIATE else None
    if place is None:
        _refuse(offset, "address", "a place in a quadrant of the state buffer", f"0x{pattern.address:08X}")
    most = PARTITIONS - place.quadrant * QUADRANT_PARTITIONS
    if channels > most:
        _refuse(offset, "address", f"a first partition with {channels} behind it", f"one with {most}")
    start = starts(pattern, size) if pattern.elements <= LIMIT else None
    if start is None or start.min() < 0 or start.max() + size > LIMIT:
        got = f"{pattern.elements} elements" if start is None else f"{start.min()} to {start.max() + size - 1}"
        _refuse(offset, "access pattern", f"bytes 0 to {LIMIT - 1} of a partition", got)
