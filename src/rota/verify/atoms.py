"""Atoms: the pieces of memory that no move cuts, and which piece of which row wrote what each piece of a row reads.

The buffers of a rank stand end to end in one address space, and all ranks are cut at the same addresses. A *unit* is
one piece of one row: it reads one atom of each source and writes one atom of each target. What a unit reads was written
by the last unit before it in stored order, which is an execution. Which values are right is `data`'s.
Source: schedule §6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, owners, pointers, ranges
from rota.errors import UnsupportedError
from rota.schedule.ir import Places, Schedule

GRID_PIECES: Final = 8
"""Most pieces of an access for which the grid of common divisors is used. Source: schedule §6, convention."""
_MAX_UNITS: Final = 1 << 27
_MAX_PASSES: Final = 1 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Atoms:
    """The cuts of one rank's memory, the same for every rank.

    Attributes:
        start: address of each atom, and the end of the last one.
        base: address of each buffer.
        grain: bytes of every atom when all are equal, else 0.
    """

    start: I64
    base: I64
    grain: int

    @property
    def count(self) -> int:
        """Atoms of one rank."""
        return self.start.size - 1

    def index(self, address: I64) -> I64:
        """Return the atom that starts at each address; each must be a cut."""
        return address // self.grain if self.grain else np.searchsorted(self.start, address)

    def span(self, buffer: int, size: int) -> slice:
        """Return the atoms of a buffer of this many bytes."""
        first, last = self.index(self.base[buffer] + np.array([0, size]))
        return slice(int(first), int(last))


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Where each piece of each row gets its bytes. Atoms of all ranks are numbered rank x atoms + atom.

    Attributes:
        row: row of each unit, in stored order.
        ptr: unit u reads entries `ptr[u]` to `ptr[u + 1]`, in fold order.
        atom: atom each entry reads.
        producer: unit that wrote it, or -1 where no earlier row did.
        final: unit that last writes each atom of the output, shape (ranks, atoms of the output); -1 where none does.
    """

    atoms: Atoms
    row: I64
    ptr: I64
    atom: I64
    producer: I64
    final: I64


def trace(schedule: Schedule) -> Flow:
    """Cut the schedule into units and find the producer of each read.

    Memory is about 100 bytes for each access of each unit, 150 off the grid; time is one sort of them.

    Raises:
        UnsupportedError: the moves cut each other into more pieces than this version follows.
    """
    atoms = cut(schedule, closed=True)
    move = np.flatnonzero(schedule.rows.size > 0)
    pieces = _pieces(schedule, atoms, move)
    row = np.repeat(move, pieces)
    piece = np.arange(row.size) - np.repeat(pointers(pieces)[:-1], pieces)
    read_ptr, read = _entries(schedule.sources, atoms, row, piece)
    write_ptr, written = _entries(schedule.targets, atoms, row, piece)
    writer = owners(write_ptr)
    place, meaning = _sorted(read, read_ptr, written, write_ptr, writer)
    producer, last_atom, last_unit = _producers(place, meaning, read.size)
    span = atoms.span(schedule.output, schedule.buffers[schedule.output].size)
    final = _final(last_atom, last_unit, schedule.ranks, atoms.count, span)
    return Flow(atoms=atoms, row=row, ptr=read_ptr, atom=read, producer=producer, final=final)


def levels(flow: Flow) -> list[tuple[int, int]]:
    """Return consecutive ranges of units that do not read each other: each ends before the first that would."""
    if not flow.row.size:
        return []
    reach = np.maximum.accumulate(np.maximum.reduceat(flow.producer, flow.ptr[:-1]))
    out, first = [], 0
    while first < reach.size:
        last = int(np.searchsorted(reach, first))
        assert last > first, "a producer comes before its reader"
        out.append((first, last))
        first = last
    return out


def cut(schedule: Schedule, *, closed: bool = False) -> Atoms:
    """Cut memory where an access begins or ends; `closed`, so that all accesses of a row are cut alike.

    Raises:
        UnsupportedError: `closed`, and the moves cut each other into more pieces than this version follows.
    """
    sizes = np.array([buffer.size for buffer in schedule.buffers], np.int64)
    base = pointers(sizes)
    total = int(base[-1])
    places = (schedule.sources, schedule.targets)
    entries = sum(table.offset.size for table in places)
    divisors = (schedule.rows.size, sizes, *(table.offset for table in places))
    grain = int(np.gcd.reduce([int(np.gcd.reduce(column, initial=0)) for column in divisors]))
    largest = int(schedule.rows.size.max(initial=0))
    if grain and largest <= GRID_PIECES * grain and total <= GRID_PIECES * grain * (entries + sizes.size):
        return Atoms(start=np.arange(0, total + 1, grain), base=base[:-1], grain=grain)
    row = np.concatenate([owners(table.ptr) for table in places])
    address = np.concatenate([base[table.buffer] + table.offset for table in places])
    cuts = np.unique(np.concatenate((base, address, address + schedule.rows.size[row])))
    if closed:
        cuts = _close(cuts, row, address, schedule.rows.size)
    return Atoms(start=cuts, base=base[:-1], grain=0)


def _close(cuts: I64, row: I64, address: I64, size: I64) -> I64:
    """Return the cuts closed under the moves: a cut inside one access of a row cuts all its accesses."""
    ptr = pointers(np.bincount(row, minlength=size.size))
    access = address[np.argsort(row, kind="stable")]
    for _ in range(_MAX_PASSES):
        first = np.searchsorted(cuts, address, side="right")
        inside = np.searchsorted(cuts, address + size[row]) - first
        if int(inside.sum()) > _MAX_UNITS:
            break
        owner = np.repeat(np.arange(row.size), inside)
        into = cuts[ranges(first, inside)] - address[owner]
        order = np.lexsort((into, row[owner]))
        into, at = into[order], row[owner][order]
        fresh = np.ones(at.size, np.bool_)
        fresh[1:] = (at[1:] != at[:-1]) | (into[1:] != into[:-1])
        into, at = into[fresh], at[fresh]
        counts = ptr[at + 1] - ptr[at]
        wider = np.union1d(cuts, access[ranges(ptr[at], counts)] + np.repeat(into, counts))
        if wider.size == cuts.size:
            return cuts
        cuts = wider
    raise UnsupportedError(
        f"the rows of this schedule cut each other into too many pieces to verify ({cuts.size} cuts after "
        f"{_MAX_UNITS} pieces or {_MAX_PASSES} passes); use moves whose offsets and sizes share a divisor"
    )


def _pieces(schedule: Schedule, atoms: Atoms, move: I64) -> I64:
    """Return the pieces of each moving row: the atoms of its first target."""
    size = schedule.rows.size[move]
    if atoms.grain:
        return size // atoms.grain
    first = schedule.targets.ptr[:-1].astype(np.int64)[move]
    address = atoms.base[schedule.targets.buffer[first]] + schedule.targets.offset[first]
    return atoms.index(address + size) - atoms.index(address)


def _entries(places: Places, atoms: Atoms, row: I64, piece: I64) -> tuple[I64, I64]:
    """Return the pointers of the units into the entries, and the atom of each entry."""
    first = places.ptr[:-1].astype(np.int64)
    counts = np.diff(places.ptr).astype(np.int64)[row]
    entry = ranges(first[row], counts)
    atom = places.rank.astype(np.int64) * atoms.count
    atom += atoms.index(atoms.base[places.buffer] + places.offset)
    return pointers(counts), atom[entry] + np.repeat(piece, counts)


def _sorted(read: I64, read_ptr: I64, written: I64, write_ptr: I64, writer: I64) -> tuple[I64, I64]:
    """Return all accesses by (atom, time): the atom of each, and the entry that reads it or -1 - the unit that writes.

    Time is the position in stored order, the reads of a unit before its writes.
    """
    accesses = read.size + written.size
    meaning = np.empty(accesses, np.int64)
    read_time = np.arange(read.size) + write_ptr[owners(read_ptr)]
    write_time = np.arange(written.size) + read_ptr[writer + 1]
    meaning[read_time] = np.arange(read.size)
    meaning[write_time] = -1 - writer
    bits = accesses.bit_length()
    atom = np.concatenate((read, written))
    names: Array | None = None
    if int(atom.max(initial=0)).bit_length() + bits > 63:  # number only the atoms in use
        names, atom = np.unique(atom, return_inverse=True)
    key = np.sort((atom << bits) | np.concatenate((read_time, write_time)))
    place = key >> bits
    return place if names is None else names[place], meaning[key & ((1 << bits) - 1)]


def _producers(place: I64, meaning: I64, entries: int) -> tuple[I64, I64, I64]:
    """Return the producer of each entry, and the written atoms with the unit that writes each last."""
    position = np.arange(place.size)
    last = np.maximum.accumulate(np.where(meaning < 0, position, -1))
    writer = np.where((last >= 0) & (place[last] == place), -1 - meaning[last], -1)
    reads = meaning >= 0
    producer = np.empty(entries, np.int64)
    producer[meaning[reads]] = writer[reads]
    ends = np.ones(place.size, np.bool_)
    ends[:-1] = place[1:] != place[:-1]
    ends &= writer >= 0
    return producer, place[ends], writer[ends]


def _final(atom: I64, unit: I64, ranks: int, count: int, span: slice) -> I64:
    rank, local = np.divmod(atom, max(count, 1))
    inside = (local >= span.start) & (local < span.stop)
    out = np.full((ranks, span.stop - span.start), -1, np.int64)
    out[rank[inside], local[inside] - span.start] = unit[inside]
    return out
