"""Who works in which control entry: every ring channel and every event list of every processor, one row each.

Also their parts of the slot programs: the entries between two marks, and what the marks say. A slot program is the
parts of the entries that use its slot, one behind another. Source: device-model §4, slot programs, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, pointers, ranges, running_count
from rota.device.load import of_rank
from rota.device.mesh import Events
from rota.device.records import Controls, bits_of, segments, unnamed_bits
from rota.device.rings import Rings
from rota.device.world import World, refuse, semaphores_at
from rota.errors import DecodeError
from rota.isa.config import CHANNELS
from rota.isa.image import SLOTS_PER_SP, Section
from rota.isa.semaphores import SEMAPHORES, Reserved, Window
from rota.isa.spad import CONTINUE, END_TAG, ENTRY_SIZE, SLOT, SlotFlag

COMPLETIONS: Final = 1  # addresses behind an END mark
_MARK_WORDS: Final = 2  # a mark, and the control entry or the address behind it
_REPORTER: Final = np.uint64(1 << 16)  # bit 0 of byte 2 of a control entry
_KNOWN_FLAGS: Final = sum(SlotFlag)


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """One entry per ring channel or event list in a control entry: image by image, entry by entry.

    Attributes:
        record: index of the channel in `Rings`; -1 for an event list.
        slot: program of its processor that it walks; offset: of its control entry in the file of its rank.
        row: first of its rows; one longer.
        ends: its mark is END.
    """

    image: I64
    processor: I64
    entry: I64
    channel: I64  # -1 for an event list
    record: I64
    slot: I64
    offset: I64
    row: I64
    ends: Bool

    @property
    def ring(self) -> Bool:
        """It is a ring channel."""
        return self.record >= 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self.image.size


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One entry per row of a slot program: what is started at once, a ring row as often as it repeats.

    Attributes:
        m2s, s2m: descriptors on each fold.
        offset: of its slot entry in the file of its rank.
    """

    m2s: I64
    s2m: I64
    flags: I64
    offset: I64


def read_workers(world: World, controls: Controls, rings: Rings, events: Events) -> tuple[Workers, Rows]:
    """Read who works, and the slot programs.

    Raises:
        DecodeError: slot programs that do not fit the control tables.
    """
    image, entry, processor, channel = _who(controls, world.sps)
    record = np.where(channel < 0, -1, rings.index[processor, np.maximum(channel, 0)])
    slot = np.where(channel < 0, 0, np.append(rings.slot, 0)[record])
    offset = controls.offset[processor, entry]
    key = (processor * SLOTS_PER_SP + slot) * controls.entries + entry
    order = np.argsort(key, kind="stable")
    again = np.zeros(key.size, np.bool_)
    again[order[1:]] = np.diff(key[order]) == 0
    refuse(again, offset, "control entry", "a slot for each of its channels", slot, image=image)
    programs = _Programs(world)
    whose = np.where(record < 0, offset, np.append(rings.offset, 0)[record])
    mark = _marks_of(programs, processor * SLOTS_PER_SP + slot, image, whose)
    raw = controls.raw[processor]
    _check_marks(world, programs, controls, mark, image, processor, entry, raw)
    start, count = programs.start[mark], programs.mark[mark] - programs.start[mark]
    empty = (record >= 0) & (count == 0)
    refuse(empty, programs.offset[programs.mark[mark]], "slot program", "rows of a channel", count, image=image)
    word = ranges(start, count)
    owner, place = segments(count)
    _check_entries(programs, word, owner, place, count, rings, record, image)
    entries = programs.table[word]
    repeat = entries["repeat"].astype(np.int64)
    rows = Rows(
        m2s=np.repeat(entries["m2s_val"].astype(np.int64), repeat),
        s2m=np.repeat(entries["s2m_val"].astype(np.int64), repeat),
        flags=np.repeat(entries["flags"].astype(np.int64), repeat),
        offset=np.repeat(programs.offset[word], repeat),
    )
    row = pointers(np.bincount(owner, repeat, image.size).astype(np.int64))
    ends = programs.raw[programs.mark[mark]] != np.uint64(CONTINUE)
    workers = Workers(image, processor, entry, channel, record, slot, offset, row, ends)
    _check_legs(workers, rows, events)
    return workers, rows


def _who(controls: Controls, sps: int) -> tuple[I64, I64, I64, I64]:
    """Return image, entry, processor and channel of every worker, in that order."""
    processor, entry = np.nonzero(controls.ring)
    which, channel = bits_of(controls.channels[processor, entry], CHANNELS)
    lists, list_entry = np.nonzero(controls.mesh)
    processor = np.concatenate([processor[which], lists])
    entry = np.concatenate([entry[which], list_entry])
    channel = np.concatenate([channel, np.full(lists.size, -1, np.int64)])
    order = np.lexsort((channel, processor, entry, processor // sps))
    return processor[order] // sps, entry[order], processor[order], channel[order]


class _Programs:
    """All slot programs behind each other, cut at their marks.

    `mark` is the place of each mark, `start` that of the first entry of its part; `first` is the first mark of each
    program, `place` the processor x SLOTS_PER_SP + slot of each.
    """

    def __init__(self, world: World) -> None:
        parts = [
            (i, index, part)
            for i, image in enumerate(world.images)
            for (kind, index), part in image.parts.items()
            if kind is Section.SLOT
        ]
        data = b"".join(part.data for _, _, part in parts)
        size = np.array([len(part.data) // ENTRY_SIZE for _, _, part in parts], np.int64)
        begin = pointers(size)
        section, within = segments(size)
        base = np.array([part.offset for _, _, part in parts], np.int64)
        self.image_of = np.array([i for i, _, _ in parts], np.int64)
        self.entry_of = np.array([part.entry for _, _, part in parts], np.int64)
        self.place = np.array([i * world.sps * SLOTS_PER_SP + index for i, index, _ in parts], np.int64)
        self.raw = np.frombuffer(data, "<u8")
        self.table = np.frombuffer(data, SLOT.dtype)
        self.bytes = np.frombuffer(data, np.uint8).reshape(-1, ENTRY_SIZE)
        self.offset = base[section] + ENTRY_SIZE * within
        self.image = self.image_of[section]
        is_mark = (self.raw == np.uint64(CONTINUE)) | (self.raw >> np.uint64(48) == END_TAG)
        after = np.concatenate([np.zeros(min(1, is_mark.size), np.bool_), is_mark[:-1]])
        self.mark = np.flatnonzero(is_mark)
        last = np.zeros(self.raw.size, np.bool_)
        last[begin[1:] - 1] = True
        self._refuse(is_mark & after, "a mark behind no other")
        self._refuse(is_mark & last, "what belongs behind a mark")
        self._refuse(last & ~after, "a mark at its end")
        self.first = np.searchsorted(self.mark, begin)
        self.start = np.zeros(self.mark.size, np.int64)
        self.start[1:] = self.mark[:-1] + _MARK_WORDS
        self.start[self.first[:-1]] = begin[:-1]

    def _refuse(self, bad: Bool, expected: str) -> None:
        refuse(bad, self.offset, "slot program", expected, self.raw, image=self.image)


def _marks_of(programs: _Programs, place: I64, image: I64, offset: I64) -> I64:
    """Return the mark at the end of each worker's part: those of a program belong to its workers in order."""
    known = np.searchsorted(programs.place, place)
    known[known == programs.place.size] = 0
    there = programs.place[known] == place if programs.place.size else np.zeros(place.size, np.bool_)
    expected = "a section SLOT for the slot program that it walks"
    refuse(~there, offset, "slot program", expected, place % SLOTS_PER_SP, image=image)
    uses = np.bincount(known, minlength=programs.place.size)
    unused = uses == 0
    if unused.any():
        at = int(np.argmax(unused))
        with of_rank(int(programs.image_of[at])):
            got = f"SLOT of processor {int(programs.place[at]) // SLOTS_PER_SP}"
            raise DecodeError(
                "image section", offset=int(programs.entry_of[at]), expected="a slot program of a channel", got=got
            )
    marks = np.diff(programs.first)
    end = programs.offset[programs.mark[programs.first[1:] - 1]]
    expected = "one mark for each control entry that uses it"
    refuse(marks != uses, end, "slot program", expected, marks, image=programs.image_of)
    found: I64 = programs.first[known] + running_count(known)
    return found


def _check_marks(
    world: World,
    programs: _Programs,
    controls: Controls,
    mark: I64,
    image: I64,
    processor: I64,
    entry: I64,
    raw: Array,
) -> None:
    """CONTINUE is followed by the processor's next control entry, END by the completion of the entry's reporter."""
    at = programs.mark[mark]
    behind, offset = programs.raw[at + 1], programs.offset[at + 1]
    ends = programs.raw[at] != np.uint64(CONTINUE)
    chained = controls.trigger_next[processor, entry]
    expected = "CONTINUE where the entry is chained to the next one, END elsewhere"
    refuse(ends == chained, programs.offset[at], "slot program mark", expected, programs.raw[at], image=image)
    following = raw[np.arange(entry.size), np.minimum(entry + 1, controls.entries - 1)]
    idle = ~controls.active[processor, np.minimum(entry + 1, controls.entries - 1)]
    wrong = ~ends & (behind != (following & ~_REPORTER)) & ~(idle & (behind == 0))
    refuse(
        wrong, offset, "slot program mark", "the processor's next control entry behind CONTINUE", behind, image=image
    )
    value = programs.raw[at] >> np.uint64(32) & np.uint64(0xFFFF)
    refuse(ends & (value != 1), programs.offset[at], "END mark", "an END mark of value 1", value, image=image)
    low = (programs.raw[at] ^ behind) & np.uint64(0xFFFFFFFF) != 0
    refuse(ends & low, offset, "completion address", "the address its mark ends in", behind, image=image)
    chosen = np.flatnonzero(ends)
    flat = semaphores_at(world, image[chosen], behind[chosen], Window.INC, offset[chosen], "completion address")
    first = image[chosen] * world.sps
    active = controls.active.reshape(-1, world.sps, controls.entries)[image[chosen], :, entry[chosen]]
    reporter = world.sps - 1 - np.argmax(active[:, ::-1], axis=1)
    bad = flat != (first + reporter) * SEMAPHORES + Reserved.COMPLETION
    if bad.any():
        one = int(np.argmax(bad))
        expected = f"the completion semaphore of the reporter, TOP_SP {int(reporter[one])}"
        refuse(bad, offset[chosen], "completion address", expected, behind[chosen], image=image[chosen])


def _check_entries(
    programs: _Programs, word: I64, owner: I64, place: I64, count: I64, rings: Rings, record: I64, image: I64
) -> None:
    """Rows that repeat, only the last one marked, and that once; the flags of peers where there are such."""
    entries, ring = programs.table[word], record[owner] >= 0
    flags, repeat = entries["flags"].astype(np.int64), entries["repeat"]
    final = place == count[owner] - 1
    peers = np.append(rings.kangaring, False)[record[owner]]
    stray = (programs.bytes[word] & unnamed_bits(SLOT)).any(axis=1)
    bad = stray | ((flags & ~_KNOWN_FLAGS) != 0) | (((flags & SlotFlag.LAST_ROW) != 0) != final)
    bad |= (repeat == 0) | ((final | ~ring) & (repeat != 1)) | (entries["s2m_val"] == 0) | (entries["m2s_val"] == 0)
    bad |= ~peers & ((flags & (SlotFlag.WAIT_PEERS | SlotFlag.SIGNAL_PEERS)) != 0)
    bad |= ~ring & ((flags & ~int(SlotFlag.LAST_ROW)) != 0)
    expected = "rows that repeat, only the last marked, and that once"
    refuse(bad, programs.offset[word], "slot program", expected, programs.raw[word], image=image[owner])


def _check_legs(workers: Workers, rows: Rows, events: Events) -> None:
    """An event list has one slot entry for each leg of its records."""
    legs = pointers(np.count_nonzero(events.mask, axis=1))
    first = events.first[workers.processor, workers.entry]
    last = first + events.length[workers.processor, workers.entry]
    count = np.diff(workers.row)
    bad = ~workers.ring & (count != legs[last] - legs[first])
    if bad.any():
        at = int(np.argmax(bad))
        offset = np.append(rows.offset, 0)[np.minimum(workers.row[:-1], rows.offset.size)]
        offset = np.where(count > 0, offset, workers.offset)
        expected = f"{int(legs[last[at]] - legs[first[at]])} entries, one for each leg of its events"
        refuse(bad, offset, "slot program", expected, count, image=workers.image)
