"""The data proof: a schedule leaves in every output byte each contribution it should, exactly once, from its own place.

The value of an atom is symbolic: where in which group's data it comes from (origin), and whose contributions are in it
(a mask of as many bits as a group has contributors; `meaning` says what they are, and what an output must hold). A
disjoint union of masks counts every contribution once, so nothing is hashed and the proof is exact, for the stored
order of the rows. That other orders give the same is not proved here. Memory is rows x ranks / 8 bytes and about 100
bytes an access. Source: schedule §6.

Scales of an fma: a row with op FMA scales what it reads from an input that no row has written before, with the scale of
the rank whose memory it is; nothing else is scaled. What a row wrote to an input must not be read by such a row.
Source: design §2 (27).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, U64, Bool, owners
from rota.errors import VerifyError
from rota.request import KIND_NAMES, TWO_OPERANDS, Request
from rota.schedule.ir import Op, Schedule
from rota.verify.atoms import Flow, levels, trace
from rota.verify.meaning import NOTHING, Meaning

_FINDINGS: Final = 8
_SLICE_BYTES: Final = 1 << 23


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
    of a collective that is not in place; a row reads bytes that hold nothing, adds a contribution twice, scales what
    was written before, or combines bytes of different places or groups; an output lacks a contribution, has one it
    should not have or has it unscaled, comes from a wrong place, is never written, or is written where nothing is
    asked. What follows from bytes already found wrong is not found again.
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
    """A row that combines does so with the operation of the request. FMA scales even a single source.

    An fma may add what needs no scale: to add a raw contribution leaves it unscaled, which the outputs show.
    """
    asked = Op.NONE if request.op is None else Op[request.op.name]
    several = np.diff(schedule.sources.ptr) > 1
    op = schedule.rows.op
    wrong = op != asked if asked is not Op.FMA else (op != Op.ADD) & (op != Op.FMA)
    for row in np.flatnonzero((several | (op == Op.FMA)) & wrong):
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
    """Symbolic values. Rows of `mask`: every unit, then those of the meaning.

    Attributes:
        mask: shape (units + masks of the meaning, words).
        origin: of every unit, then of every read of an input no row wrote before, then nothing: places of the meaning.
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
        self.meaning = meaning = Meaning(request)
        units = flow.row.size
        local = flow.atom % max(flow.atoms.count, 1)
        inputs = flow.atoms.span(schedule.input, request.input_size)
        inside = (local >= inputs.start) & (local < inputs.stop)
        initial = (flow.producer < 0) & inside
        self.unset = (flow.producer < 0) & ~initial
        self.rescaled = np.zeros(0, np.int64)
        scaled: Bool | None = None
        if meaning.scaled:
            entry_scaled = inside & (schedule.rows.op[flow.row] == Op.FMA)[owners(flow.ptr)]
            self.rescaled, scaled = np.flatnonzero(entry_scaled & (flow.producer >= 0)), entry_scaled[initial]
        rank = flow.atom[initial] // max(flow.atoms.count, 1)
        offset = flow.atoms.start[local[initial]] - flow.atoms.base[schedule.input]
        contributor, born = meaning.contribution(rank, offset, scaled)
        self.nobody = units + meaning.contributors
        self.mask_at = np.where(self.unset, self.nobody, flow.producer)
        self.mask_at[initial] = units + contributor
        self.origin_at = np.where(self.unset, units + born.size, flow.producer)
        self.origin_at[initial] = units + np.arange(born.size)
        self.mask_at[self.rescaled], self.origin_at[self.rescaled] = self.nobody, units + born.size
        words = meaning.masks.shape[1]
        self.values = _Values(
            mask=np.concatenate((np.zeros((units, words), np.uint64), meaning.masks)),
            origin=np.concatenate((np.zeros(units, np.int64), born, [NOTHING])),
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
            origin[more] = np.where(same, other, NOTHING)
        values.mask[level] = mask
        values.origin[level] = origin

    def reads(self) -> Iterator[str]:
        """Yield the findings at the rows that read, in stored order."""
        unset, rescaled = np.zeros((2, self.flow.row.size), np.bool_)
        unset[owners(self.flow.ptr)[self.unset]] = True
        rescaled[np.searchsorted(self.flow.ptr, self.rescaled, side="right") - 1] = True
        bad = np.flatnonzero(unset | rescaled | self.values.doubled | self.values.mixed)
        for unit in bad[np.unique(self.flow.row[bad], return_index=True)[1]].tolist():  # the first piece of each row
            entries = range(int(self.flow.ptr[unit]), int(self.flow.ptr[unit + 1]))
            if unset[unit]:
                missing = " and ".join(self._place(entry) for entry in entries if self.unset[entry])
                yield f"{self._name(unit)} reads {missing}, which no earlier row writes"
            elif rescaled[unit]:
                twice = " and ".join(self._place(entry) for entry in entries if entry in self.rescaled)
                yield f"{self._name(unit)} scales {twice}, which an earlier row writes; only an own input is, once"
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
        group, offset = divmod(self._entry_origin(entries[0]), self.meaning.span)
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
        ends = self._ends
        name = self.schedule.buffers[self.schedule.output].name
        for at, last in zip(starts.tolist(), np.append(starts, atom.size)[1:].tolist(), strict=True):
            first, others = int(self._offsets[atom[at]]), int(wrong[:, atom[at]].sum()) - 1
            size = int(ends[atom[last - 1]]) - first
            also = f", and on {others} other rank{'s' * (others > 1)}" if others else ""
            fault = self._fault(int(rank[at]), int(atom[at]), held, wanted, at)
            yield f"rank {rank[at]} {name}+{first} ({size} byte{'s' * (size > 1)}{also}) {fault}"

    def _runs(self, rank: I64, atom: I64, held: tuple[I64, I64], wanted: tuple[I64, ...]) -> I64:
        """Return where a run of neighbouring atoms begins that one row left in the same state."""
        row = np.append(self.flow.row, -1)[self.flow.final[rank, atom]]
        fresh = np.ones(atom.size, np.bool_)
        fresh[1:] = np.diff(atom) > 1
        came = np.where(wanted[1] == NOTHING, NOTHING, held[1] - wanted[1])
        for column in (rank, row, came, wanted[0], self._ends[atom] > wanted[2], *self.values.mask[held[0]].T):
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
            row, place, end = self.meaning.wanted(rank, self._offsets[atom])
            same = (values.mask[mask_at] == self.meaning.masks[row]).all(axis=-1) & (origin == place)
            same &= self._ends[atom] <= end
            wrong[first : first + rows] = ~same & ~((final[first : first + rows] >= 0) & (origin == NOTHING))
        return wrong

    def _held(self, rank: I64, atom: I64) -> tuple[I64, I64]:
        """Return where the final mask of these atoms of these ranks' outputs stands, and their origin."""
        final = self.flow.final[rank, atom]
        mask_at, origin = np.full_like(rank, self.nobody), np.full_like(rank, NOTHING)
        if self.schedule.in_place:  # what nobody wrote is the rank's own input
            contributor, origin = self.meaning.contribution(rank, self._offsets[atom])
            mask_at = self.flow.row.size + contributor
        return np.where(final >= 0, final, mask_at), np.where(final >= 0, self.values.origin[final], origin)

    def _wanted(self, rank: I64, atom: I64) -> tuple[I64, I64, I64]:
        """Return which mask these atoms must have, their origin, and where something else is wanted.

        The first byte of an atom stands for all: it comes from one run of bytes with one mask, and what is wanted of an
        output changes where such a run cannot go on. So an atom that reaches beyond that end is wrong.
        """
        row, place, end, _ = np.broadcast_arrays(*self.meaning.wanted(rank, self._offsets[atom]), rank)
        return self.flow.row.size + row, place, end

    @property
    def _offsets(self) -> I64:
        """Offset in the output of each of its atoms."""
        atoms, output = self.flow.atoms, self.schedule.output
        offsets: I64 = atoms.start[atoms.span(output, self.request.output_size)] - atoms.base[output]
        return offsets

    @property
    def _ends(self) -> I64:
        """Offset in the output behind each of its atoms."""
        return np.append(self._offsets, self.request.output_size)[1:]

    def _fault(self, rank: int, atom: int, held: tuple[I64, I64], wanted: tuple[I64, ...], at: int) -> str:
        """Say what is wrong with one atom of an output, and which row did it."""
        unit = int(self.flow.final[rank, atom])
        got, want = self.values.mask[held[0][at]], self.values.mask[wanted[0][at]]
        came, home, end = int(held[1][at]), int(wanted[1][at]), int(wanted[2][at])
        group, offset = divmod(home, self.meaning.span)
        if unit < 0:
            return f"is never written; {self._last_writer(rank)}"
        last = f"written last by {self._name(unit)}"
        if home == NOTHING:
            return f"is written where nothing is asked: {last}"
        if came != home:
            return f"comes from {self._origin(came)}, not {self._origin(home)}: {last}"
        lost, extra, raw = want & ~got, got & ~want, self._unscaled(got)
        if raw.any():
            return f"has {self._contributions(group, raw)} unscaled at offset {offset}: {last}"
        if lost.any():
            missing = self._contributions(group, lost)
            return f"lost {missing} at offset {offset}: {self._lost_in(unit, group, lost)}{last}"
        past = f"goes on in {self._origin(came)} beyond output offset {end}, where another place begins"
        return f"{f'has {self._contributions(group, extra)} too much' if extra.any() else past}: {last}"

    def _unscaled(self, mask: U64) -> U64:
        """Return those contributors of a mask that must be scaled and are not."""
        every = np.bitwise_or.reduce(self.meaning.masks[: self.meaning.scaled], axis=0)
        return mask & np.asarray(every, np.uint64)

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
        earliest = {group * self.request.ranks + member % self.request.ranks: -1}
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
        group, offset = divmod(origin, self.meaning.span)
        return f"offset {offset}" + (f" of group {group}" if len(self.request.groups) > 1 else "")

    def _contributions(self, group: int, mask: U64) -> str:
        of = [divmod(contributor, self.request.ranks) for contributor in _members(mask)]
        ranks = [group * self.request.ranks + member for _, member in of]
        if self.request.kind in TWO_OPERANDS:
            parts = [
                f"rank {rank}'s {'input1' if second else 'input'}" for rank, (second, _) in zip(ranks, of, strict=True)
            ]
            return f"{' and '.join(parts[:4])}{' and more' * (len(parts) > 4)}"
        if len(ranks) == 1:
            return f"rank {ranks[0]}'s contribution"
        return f"the contributions of ranks {', '.join(map(str, ranks[:4]))}{' and more' * (len(ranks) > 4)}"


def _members(mask: U64) -> list[int]:
    """Return the members whose bits are set."""
    bits = np.unpackbits(mask.astype("<u8").view(np.uint8), bitorder="little")
    return [int(member) for member in np.flatnonzero(bits)]
