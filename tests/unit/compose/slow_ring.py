"""The ring's tables as plain loops: slow, clear, and held equal to what is composed. Source: compose §6.2-6.3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rota.compose.cut import Cut
from rota.isa.enums import EncOp

AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER


class SlowRing:
    """One rank's rows on one channel, written down from the tables of the specification, as lines of text.

    `na` is the ring from the rank on: na[0] is the rank itself, na[i + 1] the next of na[i]. A send takes the next
    slot in turn; a receive reads the slot the rank before it sent to.
    """

    def __init__(self, kind: EncOp, order: Sequence[int], rank: int, channel: int, pieces: Cut, slots: int) -> None:
        at = order.index(rank)
        self.na = [*order[at:], *order[:at]]
        self.kind, self.channel, self.pieces, self.slots = kind, channel, pieces, slots
        self.next, self.prev, self.rank = self.na[1 % len(order)], self.na[-1], rank
        self.share = int(pieces.size.sum()) // len(order)
        self.group = self.sent = self.received = 0

    def lines(self) -> Iterator[str]:
        if self.kind is AG:
            given = min(self.slots, self.receives)
            yield f"{self.rank}.{self.channel} 0.0 post_recv !{self.prev}.credit.{self.channel}+{given}"
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
        """compose §6.2: step 0 sends na[N-1], step j na[N-1-j], step N-1 keeps na[0]."""
        n = len(self.na)
        for half in self.halves():
            chunk = self.na[n - 1]
            yield self.row(
                0, 0, half, "send", chunk, [self.own("input", chunk, half)], self.slot_of_next(), credit=1, post=1
            )
        for j in range(1, n - 1):
            for half in self.halves():
                chunk = self.na[n - 1 - j]
                sources = [self.own_slot(), self.own("input", chunk, half)]
                yield self.row(
                    0,
                    j,
                    half,
                    "recv_reduce_send",
                    chunk,
                    sources,
                    self.slot_of_next(),
                    recv=1,
                    credit=1,
                    post=1,
                    give=1,
                )
        for half in self.halves():
            target = self.own("output", self.rank, half, shard=self.kind is RS)
            sources = [self.own_slot(), self.own("input", self.rank, half)]
            yield self.row(0, n - 1, half, "recv_reduce_copy", self.rank, sources, target, recv=1, give=1)

    def all_gather(self) -> Iterator[str]:
        """compose §6.3: the bridge sends na[0], step i na[N-1-i], the last receives na[1] and moves nothing."""
        n = len(self.na)
        leg, step, fence = (1, n, " |") if self.kind is AR else (0, 1, "")
        own = "output" if self.kind is AR else "input"
        for half in self.halves():
            source = self.own(own, self.rank, half, shard=self.kind is AG)
            yield self.row(
                leg,
                step,
                half,
                "direct_copy_send" + fence,
                self.rank,
                [source],
                self.output_of_next(self.rank, half),
                credit=1,
                post=1,
            )
        if self.kind is AG:
            for half in self.halves():
                source = self.own("input", self.rank, half, shard=True)
                yield self.row(
                    leg, step + 1, half, "direct_copy", self.rank, [source], self.own("output", self.rank, half)
                )
            step += 1
        for i in range(n - 2):
            for half in self.halves():
                chunk = self.na[n - 1 - i]
                source, target = self.own("output", chunk, half), self.output_of_next(chunk, half)
                yield self.row(
                    leg,
                    step + 1 + i,
                    half,
                    "direct_recv_send",
                    chunk,
                    [source],
                    target,
                    recv=1,
                    credit=1,
                    post=1,
                    give=1,
                )
        for half in self.halves():
            yield self.row(leg, step + n - 1, half, "direct_recv", self.na[1], [], "", recv=1, give=1)

    def halves(self) -> range:
        return range(self.pieces.halves)

    def own(self, buffer: str, chunk: int, half: int, *, shard: bool = False) -> str:
        offset = int(self.pieces.offset[self.group, self.channel, chunk, half]) - shard * chunk * self.share
        return f"{self.rank}.{buffer}+{offset}"

    def output_of_next(self, chunk: int, half: int) -> str:
        return f"{self.next}." + self.own("output", chunk, half).split(".", 1)[1]

    def slot_of_next(self) -> str:
        return f"{self.next}.slot.{self.channel}+{self.sent % self.slots * self.pieces.largest}"

    def own_slot(self) -> str:
        return f"{self.rank}.slot.{self.channel}+{self.received % self.slots * self.pieces.largest}"

    def row(
        self, leg: int, step: int, half: int, leaf: str, chunk: int, sources: list[str], target: str, **sync: int
    ) -> str:
        c, part = self.channel, 2 * self.group + half
        size = int(self.pieces.size[self.group, c, chunk, half])
        line = f"{self.rank}.{c} {leg}.{step}" + (f".{part}" if part else "") + f" {leaf}"
        line += "".join(f" ?{name}.{c}>=1-1" for name in ("recv", "credit") if name in sync)
        if sources and size:
            line += f" : {' + '.join(sources)} -> {target} {size}" + " add" * (len(sources) > 1)
        if "post" in sync:
            line += f" !{self.next}.recv.{c}+1"
            self.sent += 1
        gives = "give" in sync and (
            self.kind is not AG or self.received < self.receives - min(self.slots, self.receives)
        )
        if gives:
            line += f" !{self.prev}.credit.{c}+1"
        self.received += "recv" in sync
        return line
