"""The text form of a schedule: a header, then one row a line in stored order. It parses back to an equal schedule.

    0.0 0.1 recv_reduce_send ?recv.0>=1-1 : 0.slot.0+0 + 0.input+2048 -> 1.slot.0+1024 1024 add !1.recv.0+1

reads rank.queue, leg.step or leg.step.part, leaf (`@event` behind it when it has one), `|` for a fence, waits,
sources in fold order, targets, size, operation, signals. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from rota.columns import Array, pointers
from rota.errors import DecodeError
from rota.schedule.ir import (
    MAX_NUMBER,
    STORED,
    Buffer,
    Checks,
    Leaf,
    Op,
    Places,
    Rows,
    Schedule,
    Semaphore,
    Signals,
    Waits,
)

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.]*"
_PLACE: Final = rf"\d{{1,5}}\.{_NAME}\+\d{{1,18}}"
_ROW: Final = re.compile(
    r"(?P<rank>\d{1,5})\.(?P<queue>\d{1,3}) (?P<leg>\d{1,3})\.(?P<step>\d{1,5})(?:\.(?P<part>\d{1,5}))? "
    r"(?P<leaf>[a-z_]+)(?:@(?P<event>\d{1,3}))?(?P<fence> \|)?"
    rf"(?P<waits>(?: \?{_NAME}>=\d{{1,10}}-\d{{1,10}})*)"
    rf"(?: : (?P<sources>{_PLACE}(?: \+ {_PLACE})*) -> (?P<targets>{_PLACE}(?: \+ {_PLACE})*)"
    rf" (?P<size>\d{{1,18}})(?: (?P<op>[a-z]+))?)?"
    rf"(?P<signals>(?: !\d{{1,5}}\.{_NAME}\+\d{{1,10}})*)",
    re.ASCII,
)
_LEAVES: Final = {leaf.name.lower(): leaf for leaf in Leaf}
_OPS: Final = {op.name.lower(): op for op in Op}


def to_text(schedule: Schedule) -> str:
    """Return the text form, with a newline at the end."""
    return "\n".join([*_head(schedule), *_body(schedule)]) + "\n"


def parse(text: str, *, checks: Checks = Checks.ALL) -> Schedule:
    """Return the schedule a text stands for.

    Args:
        checks: how much of it the constructor checks.

    Raises:
        DecodeError: a line is no line of a schedule; the offset is the line number.
        VerifyError: the text is well-formed and the schedule is not.
    """
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip() and line[0] != "#"]
    head = _Head(lines)
    body = _Body(head)
    for number, line in lines[head.size :]:
        body.read(line, number)
    return body.schedule(checks)


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
    """The header lines; `size` is how many there are."""

    def __init__(self, lines: list[tuple[int, str]]) -> None:
        self.ranks = 0
        self.buffers: list[Buffer] = []
        self.semaphores: list[Semaphore] = []
        self.ends = {"input": "", "output": ""}
        number, first = lines[0] if lines else (1, "")
        if first.split() != ["schedule", "1"]:
            raise DecodeError("schedule text", offset=number, expected="'schedule 1'", got=f"'{first[:40]}'")
        self.size = 1
        for number, line in lines[1:]:
            if not self._read(line.split(), line, number):
                break
            self.size += 1
        missing = [name for name, value in self.ends.items() if value not in [b.name for b in self.buffers]]
        if missing or not self.ranks:
            what = f"an '{missing[0]}' line that names a declared buffer" if missing else "a 'ranks' line"
            raise DecodeError("schedule text", offset=number, expected=f"{what} before the first row", got="none")

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
            case _:
                raise DecodeError(
                    "schedule text", offset=number, expected="a declaration or a row", got=f"'{line[:60]}'"
                )
        return True


def _small(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))


class _Body:
    """The rows, collected as plain lists."""

    def __init__(self, head: _Head) -> None:
        self.head = head
        self.buffer = {b.name: i for i, b in enumerate(head.buffers)}
        self.semaphore = {s.name: i for i, s in enumerate(head.semaphores)}
        self.lines: list[int] = []
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
        self.lines.append(number)
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

    def schedule(self, checks: Checks) -> Schedule:
        return Schedule(
            ranks=self.head.ranks,
            buffers=tuple(self.head.buffers),
            semaphores=tuple(self.head.semaphores),
            input=self.buffer[self.head.ends["input"]],
            output=self.buffer[self.head.ends["output"]],
            rows=Rows(*_columns(self.rows, self.lines, STORED[Rows])),
            sources=Places(*self._csr(self.sources, STORED[Places])),
            targets=Places(*self._csr(self.targets, STORED[Places])),
            waits=Waits(*self._csr(self.waits, STORED[Waits])),
            signals=Signals(*self._csr(self.signals, STORED[Signals])),
            checks=checks,
        )

    def _csr(self, lists: list[list[tuple[int, ...]]], stored: Mapping[str, type[np.generic]]) -> list[Array]:
        ptr = pointers(np.array([len(items) for items in lists], np.int64)).astype(stored["ptr"])
        items = [item for items in lists for item in items]
        lines = [line for line, items in zip(self.lines, lists, strict=True) for _ in items]
        return [ptr, *_columns(items, lines, {name: kind for name, kind in stored.items() if name != "ptr"})]


def _columns(items: list[tuple[int, ...]], lines: list[int], stored: Mapping[str, type[np.generic]]) -> list[Array]:
    """Return the columns of a table, refusing what a column cannot hold; `lines` says where each item stands."""
    out: list[Array] = []
    for index, (name, kind) in enumerate(stored.items()):
        values = [item[index] for item in items]
        most = 1 if kind is np.bool_ else int(np.iinfo(np.dtype(kind)).max)
        worst = max(values, default=0)
        if worst > most:
            line = lines[values.index(worst)]
            raise DecodeError("schedule text", offset=line, expected=f"{name} of at most {most}", got=str(worst))
        out.append(np.array(values, kind))
    return out
