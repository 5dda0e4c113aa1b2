"""Races: which pairs of rows must be ordered because they touch the same bytes, and what to call them if they are not.

Between one write of an atom and the next stand its reads. The write must come before each of them, and they before the
next write; where there are none, the one write before the other. All other conflicts follow. A pair that stands so in
one execution and is not ordered is a race: the opposite order is impossible. Source: schedule §5 (4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rota.columns import I64, Bool, owners, ranges
from rota.schedule.ir import Schedule
from rota.verify.atoms import Atoms, cut
from rota.verify.findings import Finding, Name, few


@dataclass(frozen=True, slots=True, eq=False)
class Conflicts:
    """Pairs of rows that must be ordered, by the atom they meet in.

    Attributes:
        place: atom of each pair, rank x atoms + atom.
        first, second: the rows, the one that comes first in stored order in front.
        reads_first, reads_second: whether that row reads there; else it writes.
        unread, unread_place: rows that write an atom which nobody reads afterwards, and the atom.
    """

    atoms: Atoms
    place: I64
    first: I64
    second: I64
    reads_first: Bool
    reads_second: Bool
    unread: I64
    unread_place: I64


def conflicts(schedule: Schedule) -> Conflicts:
    """Return the pairs to prove. Time is one sort of the accesses, cut into atoms; pairs are at most twice as many."""
    atoms = cut(schedule)
    place, row, write = _accesses(schedule, atoms)
    reads, writes = np.flatnonzero(~write), np.flatnonzero(write)
    earlier = reads - np.arange(reads.size)  # writes in front of each read, of all atoms
    padded = np.concatenate(([-1], writes, [-1]))
    last, following = padded[earlier], padded[earlier + 1]
    after = (last >= 0) & (place[last] == place[reads])
    before = (following >= 0) & (place[following] == place[reads])
    again = writes[1:][(np.diff(writes) == 1) & (place[writes[1:]] == place[writes[:-1]])]
    first = np.concatenate((last[after], reads[before], again - 1))
    second = np.concatenate((reads[after], following[before], again))
    keep = row[first] != row[second]
    first, second = first[keep], second[keep]
    final = writes[np.append(place, -1)[writes + 1] != place[writes]]
    dead = np.sort(np.concatenate((again - 1, final[~_is_output(schedule, atoms, place[final])])))
    return Conflicts(
        atoms=atoms,
        place=place[second],
        first=row[first],
        second=row[second],
        reads_first=~write[first],
        reads_second=~write[second],
        unread=row[dead],
        unread_place=place[dead],
    )


def _accesses(schedule: Schedule, atoms: Atoms) -> tuple[I64, I64, Bool]:
    """Return atom, row and whether it writes, of every access to every atom, by (atom, row, reads before writes)."""
    size = schedule.rows.size
    bits = max(len(schedule), 1).bit_length() + 1
    top = (schedule.ranks * max(atoms.count, 1)).bit_length()
    parts = []
    for table in (schedule.sources, schedule.targets):
        row = owners(table.ptr)
        address = atoms.base[table.buffer] + table.offset
        first = atoms.index(address)
        pieces = atoms.index(address + size[row]) - first
        atom = table.rank.astype(np.int64) * atoms.count + first
        if pieces.size and pieces.max() > 1:
            row, atom = np.repeat(row, pieces), ranges(atom, pieces)
        parts.append((atom, row))
    names = np.unique(np.concatenate([atom for atom, _ in parts])) if top + bits > 63 else None
    keys = [
        ((atom if names is None else np.searchsorted(names, atom)) << bits) | (row << 1) | writes
        for writes, (atom, row) in enumerate(parts)
    ]
    key: I64 = np.concatenate(keys)
    key.sort()
    place: I64 = key >> bits
    write: Bool = (key & 1).astype(np.bool_)
    key &= (1 << bits) - 1
    key >>= 1
    return place if names is None else names[place], key, write


def _is_output(schedule: Schedule, atoms: Atoms, place: I64) -> Bool:
    span = atoms.span(schedule.output, schedule.buffers[schedule.output].size)
    local = place % max(atoms.count, 1)
    inside: Bool = (local >= span.start) & (local < span.stop)
    return inside


def races(schedule: Schedule, name: Name, found: Conflicts, bad: I64) -> Iterator[Finding]:
    """Yield the findings of the pairs `bad`, rule by rule, each pair of rows once, by the row that comes second."""
    buffer, reads = _buffers(schedule, found.atoms, found.place[bad]), found.reads_first[bad]
    user = np.array([buffer.user for buffer in schedule.buffers], np.bool_)
    reuse = reads & ~user[buffer]
    hazard = reads & ~reuse & (buffer == schedule.input) & schedule.in_place
    for rule, those in (("race", ~reuse & ~hazard), ("slot_reuse", reuse), ("in_place_hazard", hazard)):
        yield from few(_races(schedule, name, found, bad[those], rule))


def _races(schedule: Schedule, name: Name, found: Conflicts, bad: I64, rule: str) -> Iterator[Finding]:
    pair = found.second[bad] * (len(schedule) + 1) + found.first[bad]
    for at in np.unique(pair, return_index=True)[1].tolist():
        first, second = int(found.first[bad[at]]), int(found.second[bad[at]])
        where = _where(schedule, found.atoms, found.place[bad[pair == pair[at]]])
        before, after = name(first), name(second)
        behind = f"and nothing orders that after {before}, which reads it"
        if rule == "slot_reuse":
            text = f"{after} writes {where} again, {behind}: no credit returns"
        elif rule == "in_place_hazard":
            text = f"{after} overwrites {where} in place, {behind}"
        else:
            reads = (found.reads_first[bad[at]], found.reads_second[bad[at]])
            does = ["reads" if read else "writes" for read in reads]
            text = f"{before} {does[0]} {where}, {after} {does[1]} it, and nothing orders the two"
        yield Finding(rule, text, (first, second) if rule == "race" else (second, first))


def unread(schedule: Schedule, name: Name, found: Conflicts) -> Iterator[Finding]:
    """Yield the rows that write what nobody reads."""
    rows, starts = np.unique(found.unread, return_index=True)
    for row in rows[np.argsort(starts, kind="stable")].tolist():
        where = _where(schedule, found.atoms, found.unread_place[found.unread == row])
        text = f"{name(row)} writes {where}, which nobody reads before it is overwritten or the end"
        yield Finding("never_read", text, (row,))


def _buffers(schedule: Schedule, atoms: Atoms, places: I64) -> I64:
    """Return the buffer that each atom lies in."""
    ends = atoms.base + np.array([buffer.size for buffer in schedule.buffers])
    inside: I64 = np.searchsorted(ends, atoms.start[places % max(atoms.count, 1)], side="right")
    return inside


def _where(schedule: Schedule, atoms: Atoms, places: I64) -> str:
    """Return how messages call the first of these atoms and those of its buffer right behind it."""
    rank, local = divmod(int(places[0]), atoms.count)
    buffers = _buffers(schedule, atoms, places)
    together = (places == places[0] + np.arange(places.size)) & (buffers == buffers[0])
    more = places.size if together.all() else int(together.argmin())
    address, end = int(atoms.start[local]), int(atoms.start[local + more])
    buffer = int(buffers[0])
    offset = address - int(atoms.base[buffer])
    return f"rank {rank} {schedule.buffers[buffer].name}+{offset} ({end - address} bytes)"
