"""The text form of a schedule: a header, then one row a line in stored order. It parses back to an equal schedule.

    0.0 0.1 recv_reduce_send ?recv.0>=1-1 : 0.slot.0+0 + 0.input+2048 -> 1.slot.0+1024 1024 add !1.recv.0+1

reads rank.queue, leg.step or leg.step.part, leaf (`@event` behind it when it has one), `|` for a fence, waits,
sources in fold order, targets, size, operation, signals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from rota.columns import Array, pointers
from rota.errors import DecodeError
from rota.schedule.ir import Buffer, Checks, Leaf, Op, Places, Rows, Schedule, Semaphore, Signals, Waits

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.]*"
_ROW: Final = re.compile(
    r"(?P<rank>\d{1,5})\.(?P<queue>\d{1,3}) (?P<leg>\d{1,3})\.(?P<step>\d{1,5})(?:\.(?P<part>\d{1,5}))? "
    r"(?P<leaf>[a-z_]+)(?:@(?P<event>\d{1,3}))?(?P<fence> \|)?"
    rf"(?P<waits>(?: \?{_NAME}>=\d{{1,9}}-\d{{1,9}})*)"
    rf"(?: : (?P<sources>[\w.]+\+\d{{1,18}}(?: \+ [\w.]+\+\d{{1,18}})*)"
    rf" -> (?P<targets>[\w.]+\+\d{{1,18}}(?: \+ [\w.]+\+\d{{1,18}})*) (?P<size>\d{{1,18}})(?: (?P<op>[a-z]+))?)?"
    rf"(?P<signals>(?: !\d{{1,5}}\.{_NAME}\+\d{{1,9}})*)",
    re.ASCII,
)
_LEAVES: Final = {leaf.name.lower(): leaf for leaf in Leaf}
_OPS: Final = {op.name.lower(): op for op in Op}


def to_text(schedule: Schedule) -> str:
    """Return the text form, with a newline at the end."""
    return "\n".join([*_head(schedule), *_body(schedule)]) + "\n"


def parse(text: str) -> Schedule:
    """Return the schedule a text stands for.

    Raises:
        DecodeError: a line is no line of a schedule; the offset is the line number.
        VerifyError: the text is well-formed and the schedule is not.
    """
    lines = text.splitlines()
    head = _Head(lines)
    body = _Body(head)
    for number in range(head.rows_at, len(lines)):
        if lines[number].strip():
            body.read(lines[number], number + 1)
    return body.schedule()


def _head(schedule: Schedule) -> Iterator[str]:
    yield "schedule 1"
    yield f"ranks {schedule.ranks}"
    for buffer in schedule.buffers:
        yield f"buffer {buffer.name} {buffer.size}{' user' if buffer.user else ''}"
    for semaphore in schedule.semaphores:
        yield f"semaphore {semaphore.name} {semaphore.initial}"
    yield f"input {schedule.buffers[schedule.input].name}"
    yield f"output {schedule.buffers[schedule.output].name}"


def _body(schedule: Schedule) -> Iterator[str]:
    rows = schedule.rows
    names = [semaphore.name for semaphore in schedule.semaphores]
    waits = _spans(
        schedule.waits.ptr,
        [
            f" ?{names[s]}>={a}-{b}"
            for s, a, b in zip(
                schedule.waits.semaphore.tolist(),
                schedule.waits.at_least.tolist(),
                schedule.waits.subtract.tolist(),
                strict=True,
            )
        ],
        "",
    )
    signals = _spans(
        schedule.signals.ptr,
        [
            f" !{r}.{names[s]}+{a}"
            for r, s, a in zip(
                schedule.signals.rank.tolist(),
                schedule.signals.semaphore.tolist(),
                schedule.signals.add.tolist(),
                strict=True,
            )
        ],
        "",
    )
    sources = _spans(schedule.sources.ptr, _places(schedule, schedule.sources), " + ")
    targets = _spans(schedule.targets.ptr, _places(schedule, schedule.targets), " + ")
    columns = [getattr(rows, name).tolist() for name in Rows.__slots__]
    for i, (rank, queue, part, leg, step, event, leaf, op, fence, size) in enumerate(zip(*columns, strict=True)):
        place = f"{leg}.{step}.{part}" if part else f"{leg}.{step}"
        name = Leaf(leaf).name.lower() + (f"@{event}" if event else "")
        moves = ""
        if size:
            moves = f" : {sources[i]} -> {targets[i]} {size}" + (f" {Op(op).name.lower()}" if op else "")
        yield f"{rank}.{queue} {place} {name}{' |' if fence else ''}{waits[i]}{moves}{signals[i]}"


def _places(schedule: Schedule, places: Places) -> list[str]:
    names = [buffer.name for buffer in schedule.buffers]
    return [
        f"{r}.{names[b]}+{o}"
        for r, b, o in zip(places.rank.tolist(), places.buffer.tolist(), places.offset.tolist(), strict=True)
    ]


def _spans(ptr: Array, items: list[str], joint: str) -> list[str]:
    ends = ptr.tolist()
    return [joint.join(items[a:b]) for a, b in pairwise(ends)]


class _Head:
    """The header lines: declarations, then the number of the first row."""

    def __init__(self, lines: list[str]) -> None:
        self.ranks = 0
        self.buffers: list[Buffer] = []
        self.semaphores: list[Semaphore] = []
        self.ends = {"input": "", "output": ""}
        if not lines or lines[0].split() != ["schedule", "1"]:
            raise DecodeError(
                "schedule text", offset=1, expected="'schedule 1'", got=f"'{lines[0][:40] if lines else ''}'"
            )
        self.rows_at = len(lines)
        for number, line in enumerate(lines[1:], start=1):
            if not self._read(line.split(), line, number + 1):
                self.rows_at = number
                break
        missing = [name for name, value in self.ends.items() if value not in [b.name for b in self.buffers]]
        if missing or not self.ranks:
            what = f"an '{missing[0]}' line that names a declared buffer" if missing else "a 'ranks' line"
            raise DecodeError("schedule text", offset=self.rows_at + 1, expected=what, got="none")

    def _read(self, words: list[str], line: str, number: int) -> bool:
        match words:
            case ["ranks", count] if _small(count):
                self.ranks = int(count)
            case ["buffer", name, size, *rest] if _small(size) and rest in ([], ["user"]):
                self.buffers.append(Buffer(name, int(size), user=bool(rest)))
            case ["semaphore", name, initial] if _small(initial):
                self.semaphores.append(Semaphore(name, int(initial)))
            case ["input" | "output" as which, name]:
                self.ends[which] = name
            case [first, *_] if first[:1].isdigit():
                return False
            case []:
                pass
            case _:
                raise DecodeError(
                    "schedule text", offset=number, expected="a declaration or a row", got=f"'{line[:60]}'"
                )
        return True


def _small(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


class _Body:
    """The rows, collected as plain lists."""

    def __init__(self, head: _Head) -> None:
        self.head = head
        self.buffer = {b.name: i for i, b in enumerate(head.buffers)}
        self.semaphore = {s.name: i for i, s in enumerate(head.semaphores)}
        self.rows: list[tuple[int, ...]] = []
        self.sources: list[list[tuple[int, ...]]] = []
        self.targets: list[list[tuple[int, ...]]] = []
        self.waits: list[list[tuple[int, ...]]] = []
        self.signals: list[list[tuple[int, ...]]] = []

    def read(self, line: str, number: int) -> None:
        match = _ROW.fullmatch(line.rstrip())
        if match is None:
            raise DecodeError("schedule text", offset=number, expected="a row", got=f"'{line[:60]}'")
        leaf, op = _LEAVES.get(match["leaf"]), _OPS.get(match["op"] or "none")
        if leaf is None or op is None:
            raise DecodeError(
                "schedule text", offset=number, expected="a known leaf and operation", got=f"'{line[:60]}'"
            )
        ids = [int(match[name] or 0) for name in ("rank", "queue", "part", "leg", "step", "event")]
        self.rows.append((*ids, leaf, op, match["fence"] is not None, int(match["size"] or 0)))
        try:
            self.sources.append([self._place(p) for p in (match["sources"] or "").split(" + ") if p])
            self.targets.append([self._place(p) for p in (match["targets"] or "").split(" + ") if p])
            self.waits.append([self._wait(w) for w in match["waits"].split()])
            self.signals.append([self._signal(s) for s in match["signals"].split()])
        except (KeyError, ValueError):
            raise DecodeError("schedule text", offset=number, expected="declared names", got=f"'{line[:60]}'") from None

    def _place(self, text: str) -> tuple[int, ...]:
        where, offset = text.rsplit("+", 1)
        rank, name = where.split(".", 1)
        return int(rank), self.buffer[name], int(offset)

    def _wait(self, text: str) -> tuple[int, ...]:
        name, numbers = text[1:].split(">=", 1)
        at_least, subtract = numbers.split("-", 1)
        return self.semaphore[name], int(at_least), int(subtract)

    def _signal(self, text: str) -> tuple[int, ...]:
        where, add = text[1:].rsplit("+", 1)
        rank, name = where.split(".", 1)
        return int(rank), self.semaphore[name], int(add)

    def schedule(self) -> Schedule:
        types = (np.uint16, np.uint8, np.uint16, np.uint8, np.uint16, np.uint8, np.uint8, np.uint8, np.bool_, np.int64)
        rank_type = (np.uint16, np.uint8, np.int64)
        return Schedule(
            ranks=self.head.ranks,
            buffers=tuple(self.head.buffers),
            semaphores=tuple(self.head.semaphores),
            input=self.buffer[self.head.ends["input"]],
            output=self.buffer[self.head.ends["output"]],
            rows=Rows(*_columns(self.rows, types)),
            sources=Places(_ptr(self.sources), *_columns(_flat(self.sources), rank_type)),
            targets=Places(_ptr(self.targets), *_columns(_flat(self.targets), rank_type)),
            waits=Waits(_ptr(self.waits), *_columns(_flat(self.waits), (np.uint16, np.int32, np.int32))),
            signals=Signals(_ptr(self.signals), *_columns(_flat(self.signals), (np.uint16, np.uint16, np.int32))),
            checks=Checks.ALL,
        )


def _flat(lists: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    return [item for items in lists for item in items]


def _ptr(lists: list[list[tuple[int, ...]]]) -> Array:
    return pointers(np.array([len(items) for items in lists], np.int64)).astype(np.int32)


def _columns(items: list[tuple[int, ...]], types: tuple[type, ...]) -> list[Array]:
    out: list[Array] = []
    for index, kind in enumerate(types):
        values = [item[index] for item in items]
        info = None if kind is np.bool_ else np.iinfo(kind)
        if info is not None and values and max(values) > info.max:
            raise DecodeError("schedule text", offset=0, expected=f"numbers up to {info.max}", got=str(max(values)))
        out.append(np.array(values, kind))
    return out
