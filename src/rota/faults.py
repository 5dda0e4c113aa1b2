"""Faults to run a program with: what a user writes, and what it does to programs, images and runs.

A fault is one of four things: another program for a rank (skip, swap), another image (flip, credits), or a disturbance
of the run (drop, double, delay, early, kill, late). What a device does with it is the device's.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from rota.device.disturb import Disturbance, signal_name, signals_of
from rota.device.model import Device, called, load, load_unchecked
from rota.emit.image import pack_image
from rota.emit.order import OMITTED, Orders
from rota.errors import UsageError, VerifyError
from rota.isa.dtypes import short_name
from rota.isa.image import DIGEST_SIZE, HEADER, PRESET, SECTION, Section
from rota.isa.semaphores import SEMAPHORES
from rota.isa.streams import STREAMS
from rota.request import KIND_NAMES, Request
from rota.verify.program import COMMUNICATORS, Call, Program, find_program

_MOST: Final = 1 << 31  # of a number in a fault
_DIGITS: Final = 10
_CRC: Final = next(each.at for each in SECTION.fields if each.name == "crc32")
SECTIONS: Final = {
    name.lower(): Section[name] for name in ("TX", "RX", "CTRL", "SLOT", "CONF", "SEMA", "MEM", "NETWORK")
}


class FaultKind(Enum):
    """What goes wrong."""

    DROP = "drop"
    DOUBLE = "double"
    DELAY = "delay"
    EARLY = "early"
    KILL = "kill"
    LATE = "late"
    FLIP = "flip"
    CREDITS = "credits"
    SKIP = "skip"
    SWAP = "swap"


SIGNALS: Final = frozenset({FaultKind.DROP, FaultKind.DOUBLE, FaultKind.DELAY, FaultKind.EARLY})
PROGRAMS: Final = frozenset({FaultKind.SKIP, FaultKind.SWAP})


@dataclass(frozen=True, slots=True)
class _Form:
    """How a kind is written: the keys it must have, those it may have, and what it does."""

    needs: tuple[str, ...]
    takes: tuple[str, ...]
    about: str


_ONE: Final = ("collective", "nth")
FORMS: Final = {
    FaultKind.DROP: _Form(("rank",), _ONE, "one signal of the rank is not performed"),
    FaultKind.DOUBLE: _Form(("rank",), _ONE, "one signal of the rank is performed twice"),
    FaultKind.DELAY: _Form(("rank", "ticks"), _ONE, "one signal of the rank lands that many ticks later"),
    FaultKind.EARLY: _Form(("rank",), _ONE, "one signal of the rank is performed before the data of its launch"),
    FaultKind.KILL: _Form(("rank",), ("tick",), "nothing of the rank steps from that tick on (default: half-way)"),
    FaultKind.LATE: _Form(("rank", "ticks"), (), "the host of the rank triggers that many ticks late"),
    FaultKind.FLIP: _Form(
        ("rank", "section", "byte", "bit"), (), f"one bit of the rank's image: {'|'.join(SECTIONS)}; digests made right"
    ),
    FaultKind.CREDITS: _Form(("rank",), ("value",), "the credits, in sends, that the rank starts with (default 0)"),
    FaultKind.SKIP: _Form(("rank", "collective"), (), "the rank's program lacks that collective"),
    FaultKind.SWAP: _Form(
        ("rank", "collectives"), (), "the rank's program has two collectives, K+L, the other way round"
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        rank: of the machine.
        numbers: the other keys; `section` and `collectives` are not among them.
    """

    kind: FaultKind
    rank: int
    numbers: Mapping[str, int] = field(default_factory=dict)
    section: Section | None = None
    collectives: tuple[int, int] | None = None

    def get(self, key: str) -> int | None:
        """Return a number, None where it is not given."""
        return self.numbers.get(key)

    def __str__(self) -> str:
        parts = [f"rank={self.rank}"]
        parts += [f"section={self.section.name.lower()}"] if self.section is not None else []
        parts += [f"collectives={'+'.join(map(str, self.collectives))}"] if self.collectives is not None else []
        parts += [f"{key}={value}" for key, value in self.numbers.items()]
        return f"{self.kind.value}:{','.join(parts)}"


def fault_lines() -> Iterator[str]:
    """Yield how each kind is written, one line each."""
    width = max(len(_form(kind)) for kind in FaultKind)
    for kind in FaultKind:
        yield f"{_form(kind):<{width}}  {FORMS[kind].about}"


def _form(kind: FaultKind) -> str:
    letters = {"collective": "K", "nth": "N", "ticks": "T", "tick": "T", "section": "NAME", "byte": "B", "bit": "b"}
    letters |= {"value": "V", "collectives": "K+L", "rank": "R"}
    needs = ",".join(f"{key}={letters[key]}" for key in FORMS[kind].needs)
    return f"{kind.value}:{needs}{''.join(f'[,{key}={letters[key]}]' for key in FORMS[kind].takes)}"


def parse_fault(text: str) -> Fault:
    """Return the fault that a text describes, as `fault_lines` say.

    Raises:
        UsageError: it describes none.
    """
    name, colon, rest = text.partition(":")
    kind = next((kind for kind in FaultKind if kind.value == name), None)
    if kind is None:
        names = ", ".join(each.value for each in FaultKind)
        raise UsageError(
            f"--fault {text[:60]}: expected KIND:key=value,... with one of {names}; --fault help lists them"
        )
    form = FORMS[kind]
    found: dict[str, str] = {}
    for part in rest.split(",") if colon and rest else ():
        key, equals, value = part.partition("=")
        if not equals or key not in (*form.needs, *form.takes) or key in found:
            raise UsageError(f"--fault {text[:60]}: got '{part[:30]}', expected {_form(kind)}")
        found[key] = value
    missing = [key for key in form.needs if key not in found]
    if missing:
        raise UsageError(f"--fault {text[:60]}: {missing[0]}= is missing, expected {_form(kind)}")
    section, pair = found.pop("section", None), found.pop("collectives", None)
    if section is not None and section not in SECTIONS:
        raise UsageError(f"--fault {text[:60]}: section {section[:20]}, expected one of {', '.join(SECTIONS)}")
    numbers = {key: _number(text, key, value) for key, value in found.items()}
    if numbers.get("bit", 0) > 7:
        raise UsageError(f"--fault {text[:60]}: bit {numbers['bit']}, expected 0 to 7")
    rank = numbers.pop("rank")
    return Fault(kind, rank, numbers, SECTIONS[section] if section else None, _pair(text, pair) if pair else None)


def _number(text: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > _DIGITS or int(value) >= _MOST:
        raise UsageError(f"--fault {text[:60]}: {key}={value[:20]}, expected a whole number below 2^31")
    return int(value)


def _pair(text: str, value: str) -> tuple[int, int]:
    one, plus, other = value.partition("+")
    if not plus:
        raise UsageError(f"--fault {text[:60]}: collectives={value[:20]}, expected two numbers, for example 0+1")
    pair = _number(text, "collectives", one), _number(text, "collectives", other)
    if pair[0] == pair[1]:
        raise UsageError(f"--fault {text[:60]}: collectives={value[:20]}, expected two different ones")
    return pair


def check_faults(faults: Sequence[Fault], ranks: Sequence[int], collectives: int) -> None:
    """Refuse faults of ranks or collectives that the program has not, and faults that do not go together.

    Raises:
        UsageError: as said.
    """
    changes = {fault.kind for fault in faults} & PROGRAMS
    for fault in faults:
        if fault.rank not in ranks:
            raise UsageError(f"--fault {fault}: no rank {fault.rank} in the program, which has {_spread(ranks)}")
        named = [*(fault.collectives or ()), *([fault.numbers["collective"]] if "collective" in fault.numbers else [])]
        if named and max(named) >= collectives:
            has = f"{collectives} collective{'s' * (collectives > 1)}, numbered from 0"
            raise UsageError(f"--fault {fault}: no collective {max(named)} in the program, which has {has}")
        if changes and fault.kind is FaultKind.FLIP:
            raise UsageError(f"--fault {fault}: does not go with skip or swap, which no loader checks; leave one out")
        if changes and fault.kind not in PROGRAMS and "collective" in fault.numbers:
            raise UsageError(f"--fault {fault}: collective= does not go with skip or swap; use nth= alone")


def _spread(ranks: Sequence[int]) -> str:
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks[:8])) + (f" ... {ranks[-1]}" if len(ranks) > 8 else "")


# --- programs ---------------------------------------------------------------------------------------------------------


def orders_of(faults: Sequence[Fault], requests: Sequence[Request]) -> Orders:
    """Return the order in which each rank with a fault of its program does the collectives, by machine rank.

    Raises:
        UsageError: a rank takes no part in a collective that it should skip or swap.
    """
    orders: dict[int, list[int]] = {}
    for fault in faults:
        if fault.kind not in PROGRAMS:
            continue
        named = fault.collectives or (fault.numbers["collective"],)
        for each in named:
            if fault.rank not in requests[each].members:
                raise UsageError(f"--fault {fault}: rank {fault.rank} has no part in collective {each}")
        order = orders.setdefault(fault.rank, list(range(len(requests))))
        if fault.collectives is None:
            order[order.index(named[0])] = OMITTED
            continue
        if not {*named} <= {*order}:
            raise UsageError(f"--fault {fault}: rank {fault.rank} skips one of them; leave one of the faults out")
        one, other = (order.index(each) for each in fault.collectives)
        order[one], order[other] = order[other], order[one]
    return orders


def calls_of(requests: Sequence[Request], orders: Orders) -> Program:
    """Return the collectives as each rank of the machine enters them."""
    ranks = 1 + max((rank for each in requests for rank in each.members), default=-1)
    groups = [{rank: group for group in each.groups for rank in group} for each in requests]
    calls: list[tuple[Call, ...]] = []
    for rank in range(ranks):
        mine = [i for i in orders.get(rank, range(len(requests))) if i != OMITTED and rank in groups[i]]
        calls.append(tuple(_call(requests[i], groups[i][rank]) for i in mine))
    return Program(tuple(calls))


def _call(request: Request, group: tuple[int, ...]) -> Call:
    return Call(KIND_NAMES[request.kind], short_name(request.dtype), request.count, group)


def check_programs(requests: Sequence[Request], orders: Orders) -> None:
    """Refuse programs that differ from rank to rank.

    Raises:
        VerifyError: with what is wrong, and on which rank.
    """
    if not orders:
        return
    found = find_program(calls_of(requests, orders), communicators=COMMUNICATORS, streams=STREAMS)
    if found:
        texts = [f"{finding.rule}: {finding.text}" for finding in found]
        raise VerifyError(f"{texts[0]}; --no-verify runs it nevertheless", findings=texts)


# --- images -----------------------------------------------------------------------------------------------------------


def sections_of(image: bytes) -> dict[tuple[Section, int], tuple[int, int, int]]:
    """Return, for each section of an image, the offset of its row in the table, its own offset, and its size."""
    out = {}
    for row in range(HEADER.decode(image)["sections"]):
        at = HEADER.size + row * SECTION.size
        entry = SECTION.decode(image, at)
        out[Section(entry["kind"]), entry["index"]] = (at, entry["offset"], entry["size"])
    return out


def resealed(image: bytes) -> bytes:
    """Return an image with the checksums of its sections and the digest of its bytes made right."""
    out = bytearray(image)
    for at, offset, size in sections_of(image).values():
        out[at + _CRC : at + _CRC + 4] = zlib.crc32(out[offset : offset + size]).to_bytes(4, "little")
    out[-DIGEST_SIZE:] = hashlib.sha256(out[:-DIGEST_SIZE]).digest()
    return bytes(out)


def flipped(image: bytes, fault: Fault) -> bytes:
    """Return an image with one bit changed; bytes count through all sections of the kind, in order of their index.

    Raises:
        UsageError: there are not so many bytes.
    """
    assert fault.section is not None
    byte, bit = fault.numbers["byte"], fault.numbers["bit"]
    spots = [
        (offset, size) for (kind, _), (_, offset, size) in sorted(sections_of(image).items()) if kind is fault.section
    ]
    rest = byte
    for offset, size in spots:
        if rest < size:
            out = bytearray(image)
            out[offset + rest] ^= 1 << bit
            return resealed(bytes(out))
        rest -= size
    total, name = sum(size for _, size in spots), fault.section.name.lower()
    raise UsageError(f"--fault {fault}: rank {fault.rank} has {total} bytes of {name}")


def with_credits(image: bytes, fault: Fault, device: Device, member: int) -> bytes:
    """Return an image with other presets: so many sends, for whatever it starts with a credit.

    Args:
        device: on which the whole image is loaded. member: whose it is.

    Raises:
        UsageError: it starts with none.
    """
    presets = device.world.images[member].presets
    if not presets:
        raise UsageError(f"--fault {fault}: rank {fault.rank} starts with no credits; only rings and some meshes do")
    gates, value = device.program.gates, fault.get("value") or 0
    rows = []
    for each in presets:
        flat = (member * device.world.sps + each.sp) * SEMAPHORES + each.identity
        at = np.flatnonzero(gates.semaphore == flat)
        shift = int(gates.shift[at[0]]) if at.size else 0
        unit = 1 << shift if shift else int(gates.subtract[at[0]]) if at.size else 1
        if value * unit >= _MOST:
            raise UsageError(f"--fault {fault}: value {value}, expected at most {(_MOST - 1) // unit}")
        rows += [PRESET.encode(sp=each.sp, id=each.identity, value=value * unit)] if value else []
    sections = [
        (kind, index, image[offset : offset + size])
        for (kind, index), (_, offset, size) in sections_of(image).items()
        if kind is not Section.SEMA
    ]
    return pack_image([*sections, *([(Section.SEMA, 0, b"".join(rows))] if rows else [])])


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A program on a device with all its faults.

    Attributes:
        device: what runs; it calls ranks as the machine does.
        disturbance: of the run.
        notes: what was done, one sentence a fault of the run.
    """

    device: Device
    disturbance: Disturbance
    notes: tuple[str, ...]


def prepare(
    images: Sequence[bytes], ranks: Sequence[int], faults: Sequence[Fault], *, entries: Sequence[int] = ()
) -> Prepared:
    """Load images with their faults: through all checks where the fault is not one that the loader must refuse.

    Args:
        images: as they were emitted, with what skip and swap do already in them.
        ranks: machine rank of each image.
        entries: control entries of each collective; none where nobody knows.

    Raises:
        DecodeError: the loader refuses an image with a flipped bit.
        UsageError: a fault that there is nothing for.
    """
    member = {rank: i for i, rank in enumerate(ranks)}
    found = list(images)
    for fault in faults:
        if fault.kind is FaultKind.FLIP:
            found[member[fault.rank]] = flipped(found[member[fault.rank]], fault)
    strict = not any(fault.kind in PROGRAMS for fault in faults)
    device = load(found) if strict else load_unchecked(found)
    starved = [fault for fault in faults if fault.kind is FaultKind.CREDITS]
    for fault in starved:
        at = member[fault.rank]
        found[at] = with_credits(found[at], fault, device, at)
    device = called(load_unchecked(found) if starved else device, ranks)
    disturbance, notes = _disturbance(device, member, faults, entries)
    return Prepared(device, disturbance, notes)


def _disturbance(
    device: Device, member: Mapping[int, int], faults: Sequence[Fault], entries: Sequence[int]
) -> tuple[Disturbance, tuple[str, ...]]:
    items: dict[FaultKind, dict[int, int]] = {kind: {} for kind in SIGNALS}
    late: dict[int, int] = {}
    dead: dict[int, int] = {}
    notes = []
    for fault in faults:
        at = member[fault.rank]
        if fault.kind in SIGNALS:
            item = _signal(device, fault, at, entries)
            items[fault.kind][item] = fault.get("ticks") or 0
            notes.append(f"{fault}: {signal_name(device.world, device.items, device.program, item)}")
        elif fault.kind is FaultKind.LATE:
            late[at] = fault.numbers["ticks"]
        elif fault.kind is FaultKind.KILL:
            tick = fault.get("tick")
            dead[at] = _half_way(device, at) if tick is None else tick
            notes.append(f"{fault}: rank {fault.rank} dies at tick {dead[at]}")
    disturbance = Disturbance(
        dropped=frozenset(items[FaultKind.DROP]),
        doubled=frozenset(items[FaultKind.DOUBLE]),
        delayed=items[FaultKind.DELAY],
        early=frozenset(items[FaultKind.EARLY]),
        late=late,
        dead=dead,
    )
    return disturbance, tuple(notes)


def _signal(device: Device, fault: Fault, member: int, entries: Sequence[int]) -> int:
    """Return the signal that a fault means: the one it counts to, or else the middle one.

    Raises:
        UsageError: there are not so many.
    """
    collective, nth = fault.get("collective"), fault.get("nth")
    if collective is not None and not entries:
        raise UsageError(f"--fault {fault}: these images do not say which collective is which; leave collective= out")
    begin = sum(entries[:collective]) if collective is not None else 0
    chosen = range(begin, begin + entries[collective]) if collective is not None else None
    early = fault.kind is FaultKind.EARLY
    found = signals_of(device.items, device.program, member, entries=chosen, with_data=early)
    which = found.size // 2 if nth is None else nth
    if which >= found.size:
        where = "" if collective is None else f" in collective {collective}"
        what = "signals behind data" if early else "signals"
        raise UsageError(f"--fault {fault}: rank {fault.rank} performs {found.size} {what}{where}, numbered from 0")
    return int(found[which])


def _half_way(device: Device, member: int) -> int:
    """Return a tick before which a rank cannot have ended: half the steps of its longest machine, one a tick."""
    machines = device.program.machines
    steps = np.diff(machines.step)[machines.image == member]
    return int(steps.max(initial=0)) // 2
