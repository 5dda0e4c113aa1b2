"""Reference schedules of the families of algorithms, as short as they can be: what the proofs of order are tried on.

They are independent of the composers: one queue a rank, chunks of equal size, no halves. Each is a function of the
ranks, of the bytes of a chunk and of whether the output is the input. Source: schedule §4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from rota.columns import I64, Array
from rota.schedule.build import Block, Place, Signal, Wait, assemble
from rota.schedule.ir import MAX_SOURCES, Buffer, Leaf, Op, Schedule, Semaphore

INPUT, OUTPUT = 0, 1
ADD = Op.ADD


def _assembled(
    blocks: Sequence[Block],
    ranks: int,
    sizes: tuple[int, int],
    internal: Sequence[tuple[str, int]],
    semaphores: Sequence[tuple[str, int]],
    in_place: bool,
) -> Schedule:
    """Return the schedule; in place, input and output are one buffer and the second is left unused."""
    buffers = [Buffer("input", sizes[0], user=True), Buffer("output", 0 if in_place else sizes[1], user=True)]
    return assemble(
        blocks,
        ranks=ranks,
        buffers=[*buffers, *(Buffer(*item) for item in internal)],
        semaphores=[Semaphore(*item) for item in semaphores],
        input=INPUT,
        output=INPUT if in_place else OUTPUT,
    )


def two_step_mesh(ranks: int, *, chunk: int = 8, in_place: bool = False) -> Schedule:
    """All-reduce: everybody sends each owner its chunk, the owner adds them up and sends the sum to everybody."""
    out = INPUT if in_place else OUTPUT
    slot, (rs, ag) = 2, (0, 1)
    everyone, (rank, peer) = np.arange(ranks), _peers(ranks)
    blocks = [
        Block(
            rank=rank,
            queue=0,
            leaf=Leaf.SEND,
            size=chunk,
            sources=[Place(INPUT, peer * chunk)],
            targets=[Place(slot, rank * chunk, peer)],
            signals=[Signal(peer, rs)],
        ),
        *_folded(ranks, chunk, [Wait(rs, ranks - 1, ranks - 1)], slot, out),
        Block(
            rank=rank[:ranks],
            queue=0,
            leaf=Leaf.DIRECT_COPY_SEND,
            size=chunk,
            fence=True,
            sources=[Place(out, everyone * chunk)],
            targets=[Place(out, everyone * chunk, peer[:ranks])],
            signals=[Signal(peer[:ranks], ag)],
        ),
        Block(
            rank=rank[ranks:],
            queue=0,
            leaf=Leaf.DIRECT_COPY_SEND,
            size=chunk,
            step=1,
            sources=[Place(out, rank[ranks:] * chunk)],
            targets=[Place(out, rank[ranks:] * chunk, peer[ranks:])],
            signals=[Signal(peer[ranks:], ag)],
        ),
        Block(
            rank=everyone,
            queue=0,
            leaf=Leaf.DIRECT_RECV,
            size=0,
            waits=[Wait(ag, ranks - 1, ranks - 1)],
        ),
    ]
    size = ranks * chunk
    return _assembled(blocks, ranks, (size, size), [("slot", size)], [("rs", 0), ("ag", 0)], in_place)


def _peers(ranks: int) -> tuple[I64, I64]:
    """Return (rank, peer) of all pairs, distance by distance."""
    distance, rank = np.divmod(np.arange((ranks - 1) * ranks), ranks)
    return rank, (rank + distance + 1) % ranks


def _folded(ranks: int, chunk: int, waits: list[Wait], slot: int, out: int) -> list[Block]:
    """Return rows that add a rank's own chunk and what landed in its slots, as many at once as a row may read."""
    rank = np.arange(ranks)
    own = Place(INPUT, rank * chunk)
    landed = [Place(slot, (rank + k) % ranks * chunk) for k in range(1, ranks)]
    cuts = [0, *range(MAX_SOURCES - 1, ranks - 1, MAX_SOURCES - 1), ranks - 1]
    return [
        Block(
            rank=rank,
            queue=0,
            leaf=Leaf.RECV_REDUCE_COPY,
            size=chunk,
            op=ADD,
            fence=first > 0,
            sources=[Place(out, rank * chunk) if first else own, *landed[first:last]],
            targets=[Place(out, rank * chunk)],
            waits=[] if first else waits,
        )
        for first, last in pairwise(cuts)
    ]


def single_step_mesh(ranks: int, *, ops: int = 3, chunk: int = 8, halves: int = 2, counters: int = 2) -> Schedule:
    """Several all-reduces in a row: everybody sends everybody its input, which lands in alternating halves.

    Args:
        halves, counters: how many regions and semaphores the operations take in turn; fewer than two of each is wrong.
    """
    everyone, (rank, peer) = np.arange(ranks), _peers(ranks)
    blocks = []
    for op in range(ops):
        mesh, bc, at = 2 + op % halves, op % counters, op * chunk
        blocks.append(
            Block(
                rank=rank,
                queue=0,
                leaf=Leaf.SEND,
                size=chunk,
                leg=op,
                sources=[Place(INPUT, at)],
                targets=[Place(mesh, rank * chunk, peer)],
                signals=[Signal(peer, bc)],
            )
        )
        landed = [Place(mesh, (everyone + k) % ranks * chunk) for k in range(1, ranks)]
        blocks.append(
            Block(
                rank=everyone,
                queue=0,
                leaf=Leaf.RECV_REDUCE_COPY,
                size=chunk,
                leg=op,
                op=ADD,
                sources=[Place(INPUT, at), *landed],
                targets=[Place(OUTPUT, at)],
                waits=[Wait(bc, ranks - 1, ranks - 1)],
            )
        )
    size = ops * chunk
    regions = [(f"mesh.{i}", ranks * chunk) for i in range(halves)]
    return _assembled(blocks, ranks, (size, size), regions, [(f"bc.{i}", 0) for i in range(counters)], False)


def chip_mesh(chips: int, lanes: int, *, chunk: int = 8, in_place: bool = False) -> Schedule:
    """All-reduce in which the ranks of a chip add their inputs before anything crosses to another chip."""
    ranks, out = chips * lanes, INPUT if in_place else OUTPUT
    slot = 2
    local, copy, local2, bcast2, intra = range(5)
    rank = np.arange(ranks)
    chip, lane = np.divmod(rank, lanes)
    mates = [chip * lanes + (lane + k) % lanes for k in range(1, lanes)]

    def inputs(offset: Array) -> list[Place]:
        return [Place(INPUT, offset, chip * lanes + k) for k in range(lanes)]

    def wait(semaphore: int, count: I64 | int) -> list[Wait]:
        count = np.broadcast_to(count, rank.shape)
        return [Wait(semaphore, count, count, where=count > 0)]

    def row(**other: object) -> Block:
        return Block(**{"rank": rank, "queue": 0, "leaf": Leaf.SEND, "size": chunk} | other)  # type: ignore[arg-type]

    blocks = [row(size=0, signals=[Signal(mate, local) for mate in mates])]
    for k in range(1, chips):
        owner = (chip + k) % chips * lanes + lane
        blocks.append(
            row(
                op=ADD,
                sources=inputs(owner * chunk),
                targets=[Place(slot, chip * chunk, owner)],
                waits=wait(local, lanes - 1) if k == 1 else [],
                signals=[Signal(owner, copy)],
            )
        )
    others = [Place(slot, (chip + k) % chips * chunk) for k in range(1, chips)]
    blocks.append(
        row(
            op=ADD,
            leaf=Leaf.RECV_REDUCE_COPY,
            sources=[*inputs(rank * chunk), *others],
            targets=[Place(out, rank * chunk)],
            waits=wait(copy, chips - 1),
            signals=[Signal(mate, local2) for mate in mates],
        )
    )
    blocks.append(row(size=0, leg=1, fence=True, waits=wait(local2, lanes - 1)))
    landed = np.zeros(ranks, np.int64)
    for k in range(1, chips):
        landing = (chip + k) % chips * lanes + chip % lanes
        np.add.at(landed, landing, 1)
        blocks.append(
            row(
                leg=1,
                step=k,
                sources=[Place(out, rank * chunk)],
                targets=[Place(out, rank * chunk, landing)],
                signals=[Signal(landing, bcast2)],
            )
        )
    blocks.append(
        row(
            leg=2,
            sources=[Place(out, rank * chunk)],
            targets=[Place(out, rank * chunk, mate) for mate in mates],
            signals=[Signal(mate, intra) for mate in mates],
        )
    )
    received = np.zeros(ranks, np.int64)
    for mate in mates:
        np.add.at(received, mate, 1)
    first = np.ones(ranks, np.bool_)
    for source in range(chips):  # the lane on which a chip's chunks land hands them on
        serves = (chip != source) & (lane == source % lanes)
        if not serves.any():
            continue
        who, count = rank[serves], landed[serves]
        block = chunk * lanes
        blocks.append(
            row(
                rank=who,
                leg=3,
                step=source,
                size=block,
                sources=[Place(out, source * block)],
                targets=[Place(out, source * block, mate[serves]) for mate in mates],
                waits=[Wait(bcast2, count, count, where=first[serves])],
                signals=[Signal(mate[serves], intra) for mate in mates],
            )
        )
        first[serves] = False
        for mate in mates:
            np.add.at(received, mate[serves], 1)
    blocks.append(row(size=0, leg=4, leaf=Leaf.DIRECT_RECV, waits=wait(intra, received)))
    size = ranks * chunk
    names = [(name, 0) for name in ("local", "copy", "local2", "bcast2", "intra")]
    return _assembled(blocks, ranks, (size, size), [("slot", chips * chunk)], names, in_place)


def kangaring(places: int, members: int, *, chunk: int = 8, slots: int = 2, in_place: bool = False) -> Schedule:
    """All-reduce in which only the first rank of each place is in the ring, and reads and writes for its members."""
    ranks, out = places * members, INPUT if in_place else OUTPUT
    recv, credit, ready, done = range(4)
    place = np.arange(places)
    primary, after, prior = (
        place * members,
        (place + 1) % places * members,
        (place - 1) % places * members,
    )
    others = [primary + k for k in range(1, members)]
    second = np.concatenate(others)
    slot = 2

    def inputs(offset: Array) -> list[Place]:
        return [Place(INPUT, offset, primary + k) for k in range(members)]

    def row(**other: object) -> Block:
        fields = {"rank": primary, "queue": 0, "leaf": Leaf.SEND, "size": chunk}
        return Block(**fields | other)  # type: ignore[arg-type]

    blocks = [row(rank=second, size=0, signals=[Signal(second // members * members, ready)])]
    for step in range(places):
        index = (place - 1 - step) % places * chunk
        first, last = step == 0, step == places - 1
        held = [] if first else [Place(slot, (step - 1) % slots * chunk)]
        waits = [Wait(ready, members - 1, members - 1)] if first else [Wait(recv)]
        signals = [] if first else [Signal(prior, credit)]
        target = Place(out, index) if last else Place(slot, step % slots * chunk, after)
        blocks.append(
            row(
                step=step,
                op=ADD,
                sources=[*held, *inputs(index)],
                targets=[target],
                waits=waits if last else [*waits, Wait(credit)],
                signals=signals if last else [*signals, Signal(after, recv)],
            )
        )
    for step in range(places):
        index = (place - step) % places * chunk
        last = step == places - 1
        onward = [] if last else [Place(out, index, after)]
        blocks.append(
            row(
                leg=1,
                step=step,
                fence=step == 0,
                sources=[Place(out, index)],
                targets=[*onward, *(Place(out, index, other) for other in others)],
                waits=[Wait(recv)] if step else [],
                signals=[Signal(other, done) for other in others] if last else [Signal(after, recv)],
            )
        )
    blocks.append(row(rank=second, leg=2, size=0, waits=[Wait(done)]))
    size = places * chunk
    semaphores = [("recv", 0), ("credit", slots), ("ready", 0), ("done", 0)]
    return _assembled(blocks, ranks, (size, size), [("slot", slots * chunk)], semaphores, in_place)


def recursive_doubling(ranks: int, *, chunk: int = 8, in_place: bool = False, counters: int = 0) -> Schedule:
    """All-reduce by halving and doubling: round by round with the partner whose number differs in one bit.

    Args:
        counters: how many semaphores the rounds share; by default each has its own.
    """
    rounds, out = ranks.bit_length() - 1, INPUT if in_place else OUTPUT
    count = counters or 2 * rounds
    rank, index = np.arange(ranks), np.arange(ranks)
    blocks: list[Block] = []
    region = 0
    for number in range(rounds):
        bit, semaphore = 1 << number, number % count
        partner, below = rank ^ bit, index & (bit - 1)
        held = INPUT if number == 0 else out
        sent = [index[(index & (bit - 1) == r & (bit - 1)) & (index & bit != r & bit)] for r in rank]
        kept = [index[(index & (bit - 1) == r & (bit - 1)) & (index & bit == r & bit)] for r in rank]
        assert below.size
        tiles = len(sent[0])
        for tile in range(tiles):
            of = np.array([chunks[tile] for chunks in sent])
            blocks.append(
                Block(
                    rank=rank,
                    queue=0,
                    leaf=Leaf.SEND,
                    size=chunk,
                    step=number,
                    part=tile,
                    fence=tile == 0 and number > 0,
                    sources=[Place(held, of * chunk)],
                    targets=[Place(2, (region + tile) * chunk, partner)],
                    signals=[Signal(partner, semaphore)] if tile == tiles - 1 else [],
                )
            )
        for tile in range(tiles):
            of = np.array([chunks[tile] for chunks in kept])
            blocks.append(
                Block(
                    rank=rank,
                    queue=0,
                    leaf=Leaf.RECV_REDUCE_COPY,
                    size=chunk,
                    step=number,
                    part=tile,
                    op=ADD,
                    sources=[Place(2, (region + tile) * chunk), Place(held, of * chunk)],
                    targets=[Place(out, of * chunk)],
                    waits=[Wait(semaphore)] if tile == 0 else [],
                )
            )
        region += tiles
    for number in reversed(range(rounds)):
        bit, semaphore = 1 << number, (2 * rounds - 1 - number) % count
        has = [index[index & (2 * bit - 1) == r & (2 * bit - 1)] for r in rank]
        tiles = len(has[0])
        for tile in range(tiles):
            of = np.array([chunks[tile] for chunks in has])
            blocks.append(
                Block(
                    rank=rank,
                    queue=0,
                    leaf=Leaf.DIRECT_COPY_SEND,
                    size=chunk,
                    leg=1,
                    step=number,
                    part=tile,
                    fence=tile == 0 and number == rounds - 1,
                    sources=[Place(out, of * chunk)],
                    targets=[Place(out, of * chunk, rank ^ bit)],
                    signals=[Signal(rank ^ bit, semaphore)] if tile == tiles - 1 else [],
                )
            )
        blocks.append(
            Block(rank=rank, queue=0, leaf=Leaf.DIRECT_RECV, size=0, leg=1, step=number, waits=[Wait(semaphore)])
        )
    size = ranks * chunk
    semaphores = [(f"round.{i}", 0) for i in range(count)]
    return _assembled(blocks, ranks, (size, size), [("slot", (ranks - 1) * chunk)], semaphores, in_place)


def hierarchical(nodes: int, locals_: int, *, chunk: int = 8, slots: int = 2, in_place: bool = False) -> Schedule:
    """All-reduce: reduce-scatter in a ring of each node, all-reduce in a ring of nodes, all-gather in each node."""
    ranks, out = nodes * locals_, INPUT if in_place else OUTPUT
    slot0, slot1, scratch = 2, 3, 4
    recv0, credit0, recv1, credit1, recv2 = range(5)
    rank = np.arange(ranks)
    node, local = np.divmod(rank, locals_)
    wide = nodes * chunk
    next0, prior0 = node * locals_ + (local + 1) % locals_, node * locals_ + (local - 1) % locals_
    next1, prior1 = (node + 1) % nodes * locals_ + local, (node - 1) % nodes * locals_ + local

    def row(leg: int, step: int, **other: object) -> Block:
        fields = {"rank": rank, "queue": 0, "leaf": Leaf.SEND, "leg": leg, "step": step, "op": ADD}
        return Block(**fields | other)  # type: ignore[arg-type]

    def reduce_scatter(leg: int, length: int, at: I64, size: int, source: int, where: tuple[Array, Array]) -> None:
        slot, recv, credit = ((slot0, recv0, credit0), (slot1, recv1, credit1))[leg]
        for step in range(length):
            index = (at - 1 - step) % length * size
            first, last = step == 0, step == length - 1
            target = Place(scratch, index if leg else 0) if last else Place(slot, step % slots * size, where[0])
            blocks.append(
                row(
                    leg,
                    step,
                    size=size,
                    fence=first and leg == 1,
                    sources=[*([] if first else [Place(slot, (step - 1) % slots * size)]), Place(source, index)],
                    targets=[target],
                    waits=[*([] if first else [Wait(recv)]), *([] if last else [Wait(credit)])],
                    signals=[
                        *([] if last else [Signal(where[0], recv)]),
                        *([] if first else [Signal(where[1], credit)]),
                    ],
                    op=Op.NONE if first else ADD,
                )
            )

    blocks: list[Block] = []
    reduce_scatter(0, locals_, local, wide, INPUT, (next0, prior0))
    reduce_scatter(1, nodes, node, chunk, scratch, (next1, prior1))
    for step in range(nodes - 1):
        index = (node - step) % nodes * chunk
        blocks.append(
            row(
                1,
                nodes + step,
                size=chunk,
                fence=step == 0,
                sources=[Place(scratch, index)],
                targets=[Place(scratch, index, next1)],
                waits=[Wait(recv1)] if step else [],
                signals=[Signal(next1, recv1)],
                op=Op.NONE,
            )
        )
    for step in range(locals_ - 1):
        index = (local - step) % locals_ * wide
        own = [Place(out, index)] if step == 0 else []
        blocks.append(
            row(
                2,
                step,
                size=wide,
                sources=[Place(out if step else scratch, index if step else 0)],
                targets=[*own, Place(out, index, next0)],
                waits=[Wait(recv2)] if step else [Wait(recv1)],
                signals=[Signal(next0, recv2)],
                op=Op.NONE,
            )
        )
    blocks.append(row(2, locals_, size=0, leaf=Leaf.DIRECT_RECV, waits=[Wait(recv2)], op=Op.NONE))
    size = locals_ * wide
    internal = [("slot.0", slots * wide), ("slot.1", slots * chunk), ("scratch", wide)]
    semaphores = [("recv.0", 0), ("credit.0", slots), ("recv.1", 0), ("credit.1", slots), ("recv.2", 0)]
    return _assembled(blocks, ranks, (size, size), internal, semaphores, in_place)


def all_to_all(ranks: int, *, chunk: int = 8) -> Schedule:
    """Everybody tells everybody that it is there, then sends each its slice."""
    everyone, (rank, peer) = np.arange(ranks), _peers(ranks)
    hs, bc = 0, 1
    wait, send, recv = Leaf.POST_RECV, Leaf.DIRECT_COPY_SEND, Leaf.DIRECT_RECV
    own = [Place(INPUT, everyone * chunk)], [Place(OUTPUT, everyone * chunk)]
    blocks = [
        Block(rank=rank, queue=0, leaf=wait, size=0, signals=[Signal(peer, hs)]),
        Block(rank=everyone, queue=0, leaf=wait, size=0, step=1, waits=[Wait(hs, ranks - 1, ranks - 1)]),
        Block(
            rank=rank,
            queue=0,
            leaf=send,
            size=chunk,
            step=2,
            sources=[Place(INPUT, peer * chunk)],
            targets=[Place(OUTPUT, rank * chunk, peer)],
            signals=[Signal(peer, bc)],
        ),
        Block(rank=everyone, queue=0, leaf=Leaf.DIRECT_COPY, size=chunk, step=3, sources=own[0], targets=own[1]),
        Block(rank=everyone, queue=0, leaf=recv, size=0, step=4, waits=[Wait(bc, ranks - 1, ranks - 1)]),
    ]
    size = ranks * chunk
    return _assembled(blocks, ranks, (size, size), [], [("hs", 0), ("bc", 0)], False)


def permute(ranks: int, *, chunk: int = 8) -> Schedule:
    """Everybody sends its input to the next, which has said that it is there."""
    rank = np.arange(ranks)
    after, prior = (rank + 1) % ranks, (rank - 1) % ranks
    blocks = [
        Block(rank=rank, queue=0, leaf=Leaf.POST_RECV, size=0, signals=[Signal(prior, 0)]),
        Block(
            rank=rank,
            queue=0,
            leaf=Leaf.DIRECT_COPY_SEND,
            size=chunk,
            step=1,
            sources=[Place(INPUT, 0)],
            targets=[Place(OUTPUT, 0, after)],
            waits=[Wait(0)],
            signals=[Signal(after, 1)],
        ),
        Block(rank=rank, queue=0, leaf=Leaf.DIRECT_RECV, size=0, step=2, waits=[Wait(1)]),
    ]
    return _assembled(blocks, ranks, (chunk, chunk), [], [("credit", 0), ("recv", 0)], False)


SMALL: dict[str, Callable[[], Schedule]] = {
    "two-step mesh 4": lambda: two_step_mesh(4),
    "two-step mesh 4 in place": lambda: two_step_mesh(4, in_place=True),
    "single-step mesh 3 x 4 ops": lambda: single_step_mesh(3, ops=4),
    "chip mesh 2 x 2": lambda: chip_mesh(2, 2),
    "chip mesh 2 x 2 in place": lambda: chip_mesh(2, 2, in_place=True),
    "kangaring 3 x 2": lambda: kangaring(3, 2),
    "kangaring 3 x 2 in place": lambda: kangaring(3, 2, in_place=True),
    "recursive doubling 4": lambda: recursive_doubling(4),
    "recursive doubling 4 in place": lambda: recursive_doubling(4, in_place=True),
    "hierarchical 2 x 2": lambda: hierarchical(2, 2),
    "hierarchical 2 x 2 in place": lambda: hierarchical(2, 2, in_place=True),
    "hierarchical 2 x 3": lambda: hierarchical(2, 3),
    "all-to-all 4": lambda: all_to_all(4),
    "permute 3": lambda: permute(3),
}
"""One small schedule of each family, in place and out of place where there is a choice."""
