"""The data proof: a schedule leaves in every output byte each contribution it should, exactly once, from its own place.

The value of an atom is symbolic: where in which group's data it comes from (origin), and which members' contributions
are in it (a mask of as many bits as the group has ranks). A disjoint union of masks counts every contribution once, so
nothing is hashed and the proof is exact, for the stored order of the rows. That other orders give the same is not
proved here. Memory is rows x ranks / 8 bytes and about 100 bytes an access. Source: schedule §6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, U64, Bool, owners
from rota.errors import VerifyError
from rota.isa.enums import EncOp
from rota.request import KIND_NAMES, Request
from rota.schedule.ir import Op, Schedule
from rota.verify.atoms import Flow, levels, trace

_FINDINGS: Final = 8
_SLICE_BYTES: Final = 1 << 23
_NOTHING: Final = -1
"""The origin of bytes that nobody wrote, or that were mixed."""


def verify_data(schedule: Schedule, request: Request) -> None:
    """Prove that the schedule does what is asked.

    Raises:
        VerifyError: it does not; the findings name the rows.
    """
    findings = find_data(schedule, request)
    if findings:
        raise VerifyError(f"{KIND_NAMES[request.kind]}: {findings[0]}", findings=findings)


def find_data(schedule: Schedule, request: Request) -> list[str]:
    """Return what is wrong with the data of a schedule, at most eight findings of each kind; none means proved.

    Kinds: the schedule is for other ranks or sizes; a row combines with another operation; a row overwrites the input
    of a collective that is not in place; a row reads bytes that hold nothing, adds a contribution twice, or combines
    bytes of different places or groups; an output lacks a contribution, has one it should not have, comes from a wrong
    place, or is never written. What follows from bytes already found wrong is not found again.
    """
    findings = list(_misfits(schedule, request))
    if findings:
        return findings
    flow = trace(schedule)
    proof = _Proof(schedule, request, flow)
    proof.evaluate()
    checks = (_operations(schedule, request), _overwritten(schedule), proof.reads(), proof.outputs())
    for check in checks:
        findings += _few(check)
    return findings


def _few(findings: Iterator[str]) -> list[str]:
    return [finding for _, finding in zip(range(_FINDINGS), findings, strict=False)]


def _misfits(schedule: Schedule, request: Request) -> Iterator[str]:
    asked = len(request.members)
    if schedule.ranks != asked:
        yield f"the schedule is for {schedule.ranks} ranks, the request for {asked}"
    ends = (("input", schedule.input, request.input_size), ("output", schedule.output, request.output_size))
    for name, index, size in ends:
        if schedule.buffers[index].size != size:
            yield f"the {name} of the schedule has {schedule.buffers[index].size} bytes, that of the request {size}"
    if schedule.in_place != request.in_place:
        yield f"the schedule is {_placed(schedule.in_place)}, the request {_placed(request.in_place)}"


def _placed(in_place: bool) -> str:
    return "in place" if in_place else "out of place"


def _operations(schedule: Schedule, request: Request) -> Iterator[str]:
    """A row that combines does so with the operation of the request. FMA scales even a single source."""
    asked = Op.NONE if request.op is None else Op[request.op.name]
    several = np.diff(schedule.sources.ptr) > 1
    op = schedule.rows.op
    for row in np.flatnonzero((several | (op == Op.FMA)) & (op != asked)):
        yield f"{schedule.name(int(row))} has the wrong operation {Op(int(op[row])).name}, expected {asked.name}"


def _overwritten(schedule: Schedule) -> Iterator[str]:
    if schedule.in_place:
        return
    targets = schedule.targets
    for entry in np.flatnonzero(targets.buffer == schedule.input):
        row = int(np.searchsorted(schedule.targets.ptr, entry, side="right")) - 1
        yield f"{schedule.name(row)} overwrites the input of rank {targets.rank[entry]}, which only an in-place one may"


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """Symbolic values. Rows of `mask`: every unit, then the contribution of each member alone, then nothing, then all.

    Attributes:
        mask: shape (units + members + 2, words).
        origin: of every unit, then of every read of an input no row wrote before, then nothing; group x input + offset.
        doubled, mixed: units that add a contribution twice; that combine different origins.
    """

    mask: U64
    origin: I64
    doubled: Bool
    mixed: Bool


class _Proof:
    """One schedule under proof."""

    def __init__(self, schedule: Schedule, request: Request, flow: Flow) -> None:
        self.schedule, self.request, self.flow = schedule, request, flow
        units, members = flow.row.size, request.ranks
        local = flow.atom % max(flow.atoms.count, 1)
        inputs = flow.atoms.span(schedule.input, request.input_size)
        initial = (flow.producer < 0) & (local >= inputs.start) & (local < inputs.stop)
        rank = flow.atom[initial] // max(flow.atoms.count, 1)
        self.unset = (flow.producer < 0) & ~initial
        offset = flow.atoms.start[local[initial]] - flow.atoms.base[schedule.input]
        born = rank // members * request.input_size + offset
        self.mask_at = np.where(self.unset, units + members, flow.producer)
        self.mask_at[initial] = units + rank % members
        self.origin_at = np.where(self.unset, units + born.size, flow.producer)
        self.origin_at[initial] = units + np.arange(born.size)
        self.values = _Values(
            mask=np.concatenate((np.zeros((units, _words(members)), np.uint64), _single_masks(members))),
            origin=np.concatenate((np.zeros(units, np.int64), born, [_NOTHING])),
            doubled=np.zeros(units, np.bool_),
            mixed=np.zeros(units, np.bool_),
        )

    def evaluate(self) -> None:
        """Compute the value every unit writes, a level at a time."""
        fan_in = np.diff(self.flow.ptr)
        for first, last in levels(self.flow):
            self._level(slice(first, last), fan_in[first:last])

    def _level(self, level: slice, fan_in: I64) -> None:
        values, head = self.values, self.flow.ptr[level]
        mask = values.mask.take(self.mask_at[head], axis=0)
        origin = values.origin.take(self.origin_at[head])
        for fold in range(1, int(fan_in.max())):
            more = np.flatnonzero(fan_in > fold)
            entry = head[more] + fold
            added = values.mask.take(self.mask_at[entry], axis=0)
            other, before = values.origin.take(self.origin_at[entry]), origin[more]
            known, same = (other >= 0) & (before >= 0), other == before
            values.doubled[level.start + more] |= (mask[more] & added).any(axis=1) & known & same
            values.mixed[level.start + more] |= known & ~same
            mask[more] |= added
            origin[more] = np.where(same, other, _NOTHING)
        values.mask[level] = mask
        values.origin[level] = origin

    def reads(self) -> Iterator[str]:
        """Yield the findings at the rows that read, in stored order."""
        unset = np.zeros(self.flow.row.size, np.bool_)
        unset[owners(self.flow.ptr)[self.unset]] = True
        bad = np.flatnonzero(unset | self.values.doubled | self.values.mixed)
        for unit in bad[np.unique(self.flow.row[bad], return_index=True)[1]].tolist():  # the first piece of each row
            entries = range(int(self.flow.ptr[unit]), int(self.flow.ptr[unit + 1]))
            if unset[unit]:
                missing = " and ".join(self._place(entry) for entry in entries if self.unset[entry])
                yield f"{self._name(unit)} reads {missing}, which no earlier row writes"
            elif self.values.mixed[unit]:
                parts = [f"{self._place(e)} ({self._origin(self._entry_origin(e))})" for e in entries]
                yield f"{self._name(unit)} combines a wrong chunk: {' with '.join(parts)}"
            else:
                yield self._doubled(unit, entries)

    def _doubled(self, unit: int, entries: range) -> str:
        seen, twice = np.zeros((2, self.values.mask.shape[1]), np.uint64)
        for entry in entries:
            mask = self.values.mask[self.mask_at[entry]]
            twice, seen = twice | (seen & mask), seen | mask
        group, offset = divmod(self._entry_origin(entries[0]), self.request.input_size)
        return (
            f"{self._name(unit)} has {self._contributions(group, twice)} at offset {offset} doubled: it reads "
            f"{' and '.join(self._place(entry) for entry in entries)}"
        )

    def _entry_origin(self, entry: int) -> int:
        return int(self.values.origin[self.origin_at[entry]])

    def outputs(self) -> Iterator[str]:
        """Yield the findings at the outputs: one for each run of bytes wrong in the same way, at its first rank."""
        wrong = self._wrong_outputs()
        atom = np.flatnonzero(wrong.any(axis=0))
        rank = wrong[:, atom].argmax(axis=0)
        held, wanted = self._held(rank, atom), self._wanted(rank, atom)
        starts = self._runs(rank, atom, held, wanted)
        ends = np.append(self._offsets, self.request.output_size)[1:]
        name = self.schedule.buffers[self.schedule.output].name
        for at, last in zip(starts.tolist(), np.append(starts, atom.size)[1:].tolist(), strict=True):
            first, others = int(self._offsets[atom[at]]), int(wrong[:, atom[at]].sum()) - 1
            size = int(ends[atom[last - 1]]) - first
            also = f", and on {others} other rank{'s' * (others > 1)}" if others else ""
            fault = self._fault(int(rank[at]), int(atom[at]), held, wanted, at)
            yield f"rank {rank[at]} {name}+{first} ({size} byte{'s' * (size > 1)}{also}) {fault}"

    def _runs(self, rank: I64, atom: I64, held: tuple[I64, I64], wanted: tuple[I64, I64]) -> I64:
        """Return where a run of neighbouring atoms begins that one row left in the same state."""
        row = np.append(self.flow.row, -1)[self.flow.final[rank, atom]]
        fresh = np.ones(atom.size, np.bool_)
        fresh[1:] = np.diff(atom) > 1
        for column in (rank, row, held[1] - wanted[1], wanted[0], *self.values.mask[held[0]].T):
            fresh[1:] |= column[1:] != column[:-1]
        return np.flatnonzero(fresh)

    def _wrong_outputs(self) -> Bool:
        """Return which atoms of which outputs are wrong and not the consequence of a finding at a row."""
        final, values = self.flow.final, self.values
        wrong = np.zeros(final.shape, np.bool_)
        atom = np.arange(final.shape[1])[None]
        rows = max(1, _SLICE_BYTES // max(1, final.shape[1] * values.mask.shape[1] * 8))
        for first in range(0, final.shape[0], rows):
            rank = np.arange(first, min(first + rows, final.shape[0]))[:, None]
            mask_at, origin = self._held(rank, atom)
            want_mask_at, want_origin = self._wanted(rank, atom)
            same = (values.mask[mask_at] == values.mask[want_mask_at]).all(axis=-1) & (origin == want_origin)
            wrong[first : first + rows] = ~same & ~((final[first : first + rows] >= 0) & (origin == _NOTHING))
        return wrong

    def _held(self, rank: I64, atom: I64) -> tuple[I64, I64]:
        """Return where the final mask of these atoms of these ranks' outputs stands, and their origin."""
        final, request = self.flow.final[rank, atom], self.request
        mask_at, origin = np.full_like(rank, self.flow.row.size + request.ranks), np.full_like(rank, _NOTHING)
        if self.schedule.in_place:  # what nobody wrote is the rank's own input
            mask_at = self.flow.row.size + rank % request.ranks
            origin = rank // request.ranks * request.input_size + self._offsets[atom]
        return np.where(final >= 0, final, mask_at), np.where(final >= 0, self.values.origin[final], origin)

    def _wanted(self, rank: I64, atom: I64) -> tuple[I64, I64]:
        """Return the same, as the collective defines it.

        The first byte of an atom stands for all: no atom comes from beyond the end of an input, so one that begins in
        the right place of a shard does not reach into the next.
        """
        request, offset, home = self.request, self._offsets[atom], rank // self.request.ranks * self.request.input_size
        everyone = np.full_like(rank, self.flow.row.size + request.ranks + 1)
        match request.kind:
            case EncOp.ALLGATHER:
                source, offset = np.divmod(offset, request.share)
                return self.flow.row.size + source + 0 * rank, home + offset
            case EncOp.REDUCE_SCATTER:
                return everyone, home + rank % request.ranks * request.share + offset
            case _:
                return everyone, home + offset

    @property
    def _offsets(self) -> I64:
        """Offset in the output of each of its atoms."""
        atoms, output = self.flow.atoms, self.schedule.output
        offsets: I64 = atoms.start[atoms.span(output, self.request.output_size)] - atoms.base[output]
        return offsets

    def _fault(self, rank: int, atom: int, held: tuple[I64, I64], wanted: tuple[I64, I64], at: int) -> str:
        """Say what is wrong with one atom of an output, and which row did it."""
        unit = int(self.flow.final[rank, atom])
        got, want = self.values.mask[held[0][at]], self.values.mask[wanted[0][at]]
        came, home = int(held[1][at]), int(wanted[1][at])
        group, offset = divmod(home, self.request.input_size)
        if unit < 0:
            return f"is never written; {self._last_writer(rank)}"
        if came != home:
            return f"comes from {self._origin(came)}, not {self._origin(home)}: written last by {self._name(unit)}"
        lost, extra = want & ~got, got & ~want
        if not lost.any():
            return f"has {self._contributions(group, extra)} too much: written last by {self._name(unit)}"
        return (
            f"lost {self._contributions(group, lost)} at offset {offset}: {self._lost_in(unit, group, lost)}"
            f"written last by {self._name(unit)}"
        )

    def _last_writer(self, rank: int) -> str:
        units = self.flow.final[rank]
        if (units >= 0).any():
            return f"the last row that writes this output is {self._name(int(units.max()))}"
        rows = np.flatnonzero(self.schedule.rows.rank == rank)
        return (
            f"the last row of this rank is {self.schedule.name(int(rows[-1]))}" if rows.size else "the rank has no row"
        )

    def _lost_in(self, unit: int, group: int, lost: U64) -> str:
        """Name the first row on the way to `unit` that leaves out a contribution its rank already had."""
        member = _members(lost)[0]
        values, row = self.values, self.flow.row
        bit = np.uint64(1) << np.uint64(member % 64)
        carries = (values.mask[: row.size, member // 64] & bit) > 0
        earliest = {group * self.request.ranks + member: -1}
        for carrier in np.flatnonzero(carries & (values.origin[: row.size] == values.origin[unit])):
            for rank in self._target_ranks(int(row[carrier])):
                earliest.setdefault(rank, int(carrier))
        for step in self._way(unit):
            rank = int(self.schedule.rows.rank[row[step]])
            if earliest.get(rank, step) < step:
                return f"first left out by {self._name(step)}, "
        return ""

    def _target_ranks(self, row: int) -> list[int]:
        targets = self.schedule.targets
        return [int(rank) for rank in targets.rank[targets.ptr[row] : targets.ptr[row + 1]]]

    def _way(self, unit: int) -> list[int]:
        """Return the units whose values came into `unit`, in stored order, itself last."""
        seen, open_units = {unit}, [unit]
        while open_units:
            at = open_units.pop()
            for producer in self.flow.producer[self.flow.ptr[at] : self.flow.ptr[at + 1]].tolist():
                if producer >= 0 and producer not in seen:
                    seen.add(producer)
                    open_units.append(producer)
        return sorted(seen)

    def _name(self, unit: int) -> str:
        return self.schedule.name(int(self.flow.row[unit]))

    def _place(self, entry: int) -> str:
        """Return rank, buffer and offset that an entry reads."""
        atoms = self.flow.atoms
        rank, local = divmod(int(self.flow.atom[entry]), atoms.count)
        address = int(atoms.start[local])
        ends = atoms.base + np.array([buffer.size for buffer in self.schedule.buffers])
        buffer = int(np.searchsorted(ends, address, side="right"))
        return f"rank {rank} {self.schedule.buffers[buffer].name}+{address - int(atoms.base[buffer])}"

    def _origin(self, origin: int) -> str:
        if origin < 0:
            return "nothing"
        group, offset = divmod(origin, self.request.input_size)
        return f"offset {offset}" + (f" of group {group}" if len(self.request.groups) > 1 else "")

    def _contributions(self, group: int, mask: U64) -> str:
        ranks = [group * self.request.ranks + member for member in _members(mask)]
        if len(ranks) == 1:
            return f"rank {ranks[0]}'s contribution"
        return f"the contributions of ranks {', '.join(map(str, ranks[:4]))}{' and more' * (len(ranks) > 4)}"


def _members(mask: U64) -> list[int]:
    """Return the members whose bits are set."""
    bits = np.unpackbits(mask.astype("<u8").view(np.uint8), bitorder="little")
    return [int(member) for member in np.flatnonzero(bits)]


def _words(members: int) -> int:
    return -(-members // 64)


def _single_masks(members: int) -> U64:
    """Return the masks of each member alone, of nobody, and of all."""
    out = np.zeros((members + 2, _words(members)), np.uint64)
    member = np.arange(members)
    out[member, member // 64] = np.uint64(1) << (member % 64).astype(np.uint64)
    out[-1] = np.bitwise_or.reduce(out, axis=0)
    return out
