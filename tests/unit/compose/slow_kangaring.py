"""KangaRing's tables as plain loops: rows as lines of text, and numbers. Source: compose §7.2, topology §3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rota.compose.cut import Cut
from rota.isa.enums import EncOp
from rota.native.arithmetic import Combine, fold

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER

Path = Sequence[Sequence[int]]
"""Core groups in the order of the cycle, the primary of each first."""


class SlowKangaRing:
    """One primary's rows on one channel, written down from the tables of the specification, as lines of text.

    `na` is the cycle from the primary on: na[0] is its own core group, na[i + 1] the next of na[i]. A step of one half
    moves one chunk for every member of the core group that owns them: the first of these rows waits, the last one
    tells. A sending step takes the next slot in turn; a receiving step reads the slot its predecessor sent to.
    """

    def __init__(self, kind: EncOp, path: Path, at: int, channel: int, pieces: Cut, slots: int) -> None:
        self.na = [*path[at:], *path[:at]]
        self.kind, self.channel, self.pieces, self.slots = kind, channel, pieces, slots
        self.members = self.na[0]
        self.size = len(self.members)
        self.rank, self.secondaries = self.members[0], self.members[1:]
        self.next, self.prev = self.na[1 % len(path)][0], self.na[-1][0]
        self.share = 0 if kind is AR else int(pieces.size.sum()) // sum(map(len, path))
        self.group = self.sent = self.received = 0

    def of_secondary(self, rank: int) -> list[str]:
        """compose §7.2: ready before the first step, done after the last."""
        c, count = self.channel, len(self.na)
        last = {RS: f"0.{count - 1}", AG: f"0.{count}", AR: f"1.{2 * count - 1}"}[self.kind]
        return [f"{rank}.{c} 0.0 post_send !{self.rank}.ready.{c}+1", f"{rank}.{c} {last} direct_recv ?done.{c}>=1-1"]

    def lines(self) -> Iterator[str]:
        c, alone = self.channel, len(self.na) == 1
        if self.kind is AG and not alone:
            yield f"{self.rank}.{c} 0.0 post_recv !{self.prev}.credit.{c}+{min(self.slots, self.receives)}"
        for group in range(self.pieces.groups):
            self.group = group
            if self.kind is not AG:
                yield from self.reduce_scatter()
            if self.kind is not RS:
                yield from self.all_gather()

    @property
    def receives(self) -> int:
        return self.pieces.groups * (len(self.na) - 1) * self.pieces.halves

    def reduce_scatter(self) -> Iterator[str]:
        """Step 0 sends K(na[P-1]), step j K(na[P-1-j]), step P-1 keeps K(na[0]); P = 1 is a single local reduce."""
        n = len(self.na)
        if n == 1:
            yield from self.step(0, 0, "recv_reduce_copy", self.members, "inputs", "owner", "ready")
            return
        yield from self.step(0, 0, "direct_reduce_send_kangaring", self.na[n - 1], "inputs", "slot", "ready credit")
        for j in range(1, n - 1):
            yield from self.step(0, j, "recv_reduce_send", self.na[n - 1 - j], "slot inputs", "slot", "recv credit")
        yield from self.step(0, n - 1, "recv_reduce_copy", self.members, "slot inputs", "owner", "recv")

    def all_gather(self) -> Iterator[str]:
        """Step 0 gives K(na[0]) to all members and next, step i K(na[P-i]) to secondaries and next, the last not on."""
        n = len(self.na)
        leg, first = (1, n) if self.kind is AR else (0, 1)
        ready = "ready" if self.kind is AG else "fence"
        if n == 1:
            yield from self.step(leg, first, "direct_copy", self.members, "owner", "members", ready)
            return
        yield from self.step(leg, first, "direct_copy_send", self.members, "owner", "members next", ready + " credit")
        for i in range(1, n - 1):
            yield from self.step(
                leg, first + i, "direct_recv_send", self.na[n - i], "own", "secondaries next", "recv credit"
            )
        yield from self.step(leg, first + n - 1, "direct_recv", self.na[1], "own", "secondaries", "recv")

    def step(
        self, leg: int, step: int, leaf: str, owners: Sequence[int], sources: str, targets: str, waits: str
    ) -> Iterator[str]:
        """Yield the rows of one step: halves, then the owners of the chunks."""
        c, count = self.channel, len(self.na)
        last_leg = leg == (1 if self.kind is AR else 0) and leaf not in ("direct_copy_send", "direct_recv_send")
        for half in range(self.pieces.halves):
            for m, chunk in enumerate(owners):
                part, size = 2 * self.group + half, int(self.pieces.size[self.group, c, chunk, half])
                leads, trails = m == 0, m == self.size - 1
                if not (size or leads or trails):
                    continue
                opens = leads and half == 0
                starts = opens and self.group == 0
                line = f"{self.rank}.{c} {leg}.{step}" + (f".{part}" if part else "") + f" {leaf}"
                line += " |" * ("fence" in waits and opens)
                for name in ("recv", "credit"):
                    line += f" ?{name}.{c}>=1-1" * (name in waits and leads)
                others = self.size - 1
                line += f" ?ready.{c}>={others}-{others}" * ("ready" in waits and starts)
                if size:
                    read = [place for kind in sources.split() for place in self.places(kind, chunk, half, m, read=True)]
                    write = [place for kind in targets.split() for place in self.places(kind, chunk, half, m)]
                    line += f" : {' + '.join(read)} -> {' + '.join(write)} {size}" + " add" * (len(read) > 1)
                sends, receives = "credit" in waits, "recv" in waits
                line += f" !{self.next}.recv.{c}+1" * (sends and trails)
                kept = self.kind is AG and self.received >= self.receives - min(self.slots, self.receives)
                line += f" !{self.prev}.credit.{c}+1" * (receives and trails and not kept)
                ends = trails and half == self.pieces.halves - 1 and self.group == self.pieces.groups - 1
                final = last_leg and step == {RS: count - 1, AG: count, AR: 2 * count - 1}[self.kind]
                if ends and final:
                    line += "".join(f" !{rank}.done.{c}+1" for rank in self.secondaries)
                self.sent += sends and trails
                self.received += receives and trails
                yield line

    def places(self, kind: str, chunk: int, half: int, m: int, *, read: bool = False) -> list[str]:
        """Return the places a word of the tables stands for."""
        offset = int(self.pieces.offset[self.group, self.channel, chunk, half])
        shard = offset - chunk * self.share
        if kind == "slot":
            taken = self.received if read else self.sent
            at = (taken % self.slots * self.size + m) * self.pieces.largest
            return [f"{self.rank if read else self.next}.slot.{self.channel}+{at}"]
        if kind == "inputs":
            return [f"{rank}.input+{offset}" for rank in self.members]
        if kind == "owner":
            return [f"{chunk}.{'input' if self.kind is AG else 'output'}+{offset if self.kind is AR else shard}"]
        ranks = {
            "members": [rank for rank in self.members if self.kind is AG or rank != chunk],
            "secondaries": self.secondaries,
            "next": [self.next],
            "own": [self.rank],
        }[kind]
        return [f"{rank}.output+{offset}" for rank in ranks]


def slow_numbers(
    kind: EncOp, how: Combine, paths: Sequence[Path], inputs: np.ndarray[Any, Any], pieces: Cut
) -> list[np.ndarray[Any, Any]]:
    """Return what every member of one group ends with: each chunk folded core group by core group along its path.

    Args:
        paths: of each channel.
        inputs: shape (ranks, elements of the input buffer).
    """
    ranks, item = inputs.shape[0], inputs.itemsize
    share = int(pieces.size.sum()) // ranks if kind is not AR else 0
    total = share * ranks if kind is AG else inputs.shape[1] * item
    whole = np.zeros(total // item, inputs.dtype)
    for channel, path in enumerate(paths):
        for at, owners in enumerate(path):
            for chunk in owners:
                for group in range(pieces.groups):
                    for half in range(pieces.halves):
                        offset = int(pieces.offset[group, channel, chunk, half])
                        size = int(pieces.size[group, channel, chunk, half])
                        if not size:
                            continue
                        span = slice(offset // item, (offset + size) // item)
                        if kind is AG:
                            own = slice((offset - chunk * share) // item, (offset - chunk * share + size) // item)
                            whole[span] = inputs[chunk, own]
                            continue
                        value = None
                        for step in range(1, len(path) + 1):
                            members = [inputs[rank, span] for rank in path[(at + step) % len(path)]]
                            value = fold(how, members if value is None else [value, *members])
                        whole[span] = value
    if kind is RS:
        return [whole[rank * share // item : (rank + 1) * share // item] for rank in range(ranks)]
    return [whole] * ranks
