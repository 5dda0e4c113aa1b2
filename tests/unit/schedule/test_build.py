"""Building in uniform blocks, against the rows written one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rota.schedule.build import Block, Place, Signal, Wait, assemble
from rota.schedule.ir import Buffer, Checks, Leaf, Op, Schedule, Semaphore
from rota.schedule.text import parse

BUFFERS = [Buffer("input", 64, user=True), Buffer("output", 64, user=True), Buffer("slot", 64)]
SEMAPHORES = [Semaphore("recv"), Semaphore("credit", 4)]
HEAD = """schedule 1
ranks 3
buffer input 64 user
buffer output 64 user
buffer slot 64
semaphore recv 0
semaphore credit 4
input input
output output
"""
RANKS = np.arange(3)


def built(*blocks: Block, **other: Any) -> Schedule:
    return assemble(
        blocks, **{"ranks": 3, "buffers": BUFFERS, "semaphores": SEMAPHORES, "input": 0, "output": 1, **other}
    )


def written(*rows: str) -> Schedule:
    return parse(HEAD + "\n".join(rows))


def test_a_block_is_its_rows() -> None:
    """Every column broadcasts to the rows of the block, and sources, targets, waits and signals go row by row."""
    send = Block(
        rank=RANKS,
        queue=1,
        leaf=Leaf.SEND,
        size=np.array([8, 16, 8]),
        step=RANKS + 5,
        part=2,
        event=3,
        sources=[Place(0, 8 * RANKS)],
        targets=[Place(2, 0, (RANKS + 1) % 3)],
        waits=[Wait(1)],
        signals=[Signal((RANKS + 1) % 3, 0)],
    )
    keep = Block(
        rank=RANKS,
        queue=1,
        leaf=Leaf.RECV_REDUCE_COPY,
        size=8,
        leg=1,
        op=Op.ADD,
        fence=True,
        sources=[Place(2, 0), Place(0, 16)],
        targets=[Place(1, 0), Place(1, 8)],
        waits=[Wait(0)],
        signals=[Signal((RANKS - 1) % 3, 1)],
    )
    rows = [
        f"{r}.1 0.{r + 5}.2 send@3 ?credit>=1-1 : {r}.input+{8 * r} -> {n}.slot+0 {16 if r == 1 else 8} !{n}.recv+1"
        for r, n in ((0, 1), (1, 2), (2, 0))
    ] + [
        f"{r}.1 1.0 recv_reduce_copy | ?recv>=1-1 : {r}.slot+0 + {r}.input+16 -> {r}.output+0 + {r}.output+8 8 add "
        f"!{p}.credit+1"
        for r, p in ((0, 2), (1, 0), (2, 1))
    ]
    assert built(send, keep) == written(*rows)


def test_rows_outside_a_mask_have_no_entry() -> None:
    """`where` says which rows have a source, wait or signal; the others lack it, and only it."""
    even = RANKS % 2 == 0
    block = Block(
        rank=RANKS,
        queue=0,
        leaf=Leaf.RECV_REDUCE_COPY,
        size=8,
        op=Op.MAX,
        sources=[Place(0, 0, where=even), Place(0, 8)],
        targets=[Place(1, 0)],
        waits=[Wait(1, 2, 0, where=~even)],
        signals=[Signal(RANKS, 0, 2, where=even)],
    )
    assert built(block, checks=Checks.UNBALANCED).sources.ptr.tolist() == [0, 2, 3, 5]
    take = Block(rank=RANKS[even], queue=0, leaf=Leaf.POST_RECV, size=0, waits=[Wait(0, 2, 2)])
    assert built(block, take) == written(
        "0.0 0.0 recv_reduce_copy : 0.input+0 + 0.input+8 -> 0.output+0 8 max !0.recv+2",
        "1.0 0.0 recv_reduce_copy ?credit>=2-0 : 1.input+8 -> 1.output+0 8 max",
        "2.0 0.0 recv_reduce_copy : 2.input+0 + 2.input+8 -> 2.output+0 8 max !2.recv+2",
        "0.0 0.0 post_recv ?recv>=2-2",
        "2.0 0.0 post_recv ?recv>=2-2",
    )


def test_rows_of_no_bytes_keep_their_waits_and_signals() -> None:
    """A row of size 0 moves nothing and combines nothing; what it waits for and signals stays."""
    block = Block(
        rank=RANKS,
        queue=0,
        leaf=Leaf.SEND,
        size=np.array([0, 8, 0]),
        op=Op.ADD,
        sources=[Place(0, 0)],
        targets=[Place(1, 0)],
        waits=[Wait(1)],
        signals=[Signal(RANKS, 1)],
    )
    assert built(block) == written(
        "0.0 0.0 send ?credit>=1-1 !0.credit+1",
        "1.0 0.0 send ?credit>=1-1 : 1.input+0 -> 1.output+0 8 add !1.credit+1",
        "2.0 0.0 send ?credit>=1-1 !2.credit+1",
    )


def test_blocks_of_any_shape_are_read_in_c_order() -> None:
    """A block of shape (steps, ranks) is stored step after step; empty blocks leave no trace."""
    steps, ranks = np.meshgrid(np.arange(2), RANKS, indexing="ij")
    block = Block(rank=ranks, queue=0, leaf=Leaf.DIRECT_RECV, size=0, step=steps)
    empty = Block(rank=RANKS[:0], queue=0, leaf=Leaf.DIRECT_RECV, size=0)
    schedule = built(empty, block, empty)
    assert schedule.rows.rank.tolist() == [0, 1, 2, 0, 1, 2]
    assert schedule.rows.step.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(built(empty)) == len(built()) == 0


@pytest.mark.parametrize(
    ("name", "value"), [("queue", 256), ("step", 65536), ("part", -1), ("leg", 300), ("event", 256)]
)
def test_what_a_column_cannot_hold_is_never_wrapped(name: str, value: int) -> None:
    """A value outside its column's type is our own mistake and stops the build."""
    columns = {"queue": 0, name: value}
    with pytest.raises(OverflowError, match="a schedule column holds values outside uint"):
        built(Block(rank=RANKS, leaf=Leaf.DIRECT_RECV, size=0, **columns))
