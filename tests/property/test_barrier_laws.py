"""Laws of barriers in a token model: many interleavings of one program at once, signals on their way in any order.

The model knows tables, not bytes. A wave lets a random part of the ranks look at their slots, and a random part of the
signals arrive; values are counted as the semaphores count them, so that a lost or doubled signal shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.barrier.guarantee import pairs_of, promised
from rota.barrier.merge import merge
from rota.barrier.table import Program, construct
from rota.columns import pointers, ranges
from rota.isa.barrier_records import SLOTS, STEPS, BarrierType, program_of
from rota.machine.platform import Platform, load_platform

TRN1 = load_platform("trn1.32xlarge")
TRN2 = load_platform("trn2.48xlarge")
GEN1 = load_platform("trn3pds98-gen1")
GEN2 = load_platform("trn3pds98")
POD = load_platform("trn2u.48xlarge", nodes=4)
INF2 = load_platform("inf2.48xlarge")
MACHINES = [
    (GEN1, range(256)),
    (GEN2, range(576)),
    (TRN2, range(64)),
    (TRN2, range(16)),
    (TRN2, range(4)),
    (TRN2, [0, 4, 8]),
    (TRN1, range(32)),
    (TRN1, [0, 2]),
    (INF2, range(24)),
    (POD, range(256)),
    (POD, [5, 69, 133, 197]),
]
NAMES = ["gen1", "gen2", "ring 64", "ring 16", "mesh", "chips", "trn1", "two", "inf2", "pod 256", "pod 4"]
BARRIERS = 4
SEMAPHORES = 2 * BarrierType.MAX
LONGEST = 4000  # waves
WHOLE = 1000  # interleavings of a machine; CI runs a tenth


@dataclasses.dataclass
class Model:
    """Tables as arrays over the places of a program's ranks."""

    ranks: int
    semaphore: Any  # of each slot, shape (ranks, STEPS, SLOTS); the last semaphore of all where there is none
    target: Any
    first: Any  # signal of each (rank, step), CSR
    to: Any  # semaphore of each signal
    value: Any
    waiter: Any  # who waits for whom, places
    other: Any


def model_of(program: Program, *, left_out: int = -1) -> Model:
    """Return the arrays; one step may be left out, so that it neither signals nor waits."""
    ranks = np.array(program.ranks)
    semaphore = np.full((ranks.size, STEPS, SLOTS), ranks.size * SEMAPHORES)
    target = np.zeros((ranks.size, STEPS, SLOTS), np.int64)
    rows: list[np.ndarray] = []
    for step, slots in enumerate(program_of(switch=program.switch)):
        for slot, (kind, operation) in enumerate(slots if step != left_out else ()):
            identity = 2 * kind + operation
            recv, send = (side.where(side.kind == kind) for side in (program.recv, program.send))
            owner = np.searchsorted(ranks, recv.owner)
            np.add.at(target, (owner, step, slot), 1 << recv.bit)
            semaphore[owner, step, slot] = owner * SEMAPHORES + identity
            to = np.searchsorted(ranks, send.peer) * SEMAPHORES + identity
            key = np.searchsorted(ranks, send.owner) * STEPS + step
            rows.append(np.stack([key, to, 1 << send.bit]))
    key, to, value = np.concatenate(rows, axis=1)
    order = np.argsort(key, kind="stable")
    waiter, other = (np.searchsorted(ranks, side) for side in pairs_of(program, promised(program)))
    counts = np.bincount(key, minlength=ranks.size * STEPS)
    return Model(ranks.size, semaphore, target, pointers(counts), to[order], value[order], waiter, other)


class Hang(Exception):
    """Ranks wait, and no signal is on its way."""


class Early(Exception):
    """A rank has left before one it waits for has entered."""


class Lost(Exception):
    """Not all semaphores are back at 0."""


def run(model: Model, rng: np.random.Generator, *, runs: int, slow: int | None = None) -> None:
    """Run barriers back to back in many interleavings.

    Args:
        slow: a rank's place that looks at its slots 50 times less often.
    """
    value = np.zeros((runs, model.ranks * SEMAPHORES + 1), np.int64)
    stage = np.zeros((runs, model.ranks), np.int64)  # barriers x (STEPS + 1) + steps; the last of a barrier: outside
    entered = np.zeros((runs, model.ranks), np.int64)
    speed = rng.choice([0.1, 0.5, 0.9], (runs, model.ranks))
    if slow is not None:
        speed[:, slow] = 0.01
    late = rng.choice([0.25, 0.5, 0.9], runs)
    inside = STEPS + 1
    pending: list[np.ndarray] = [np.zeros(0, np.int64), np.zeros(0, np.int64)]  # run, signal
    for _ in range(LONGEST):
        able = (stage < BARRIERS * inside) & (rng.random(stage.shape) < speed)
        pending = _move(model, value, stage, entered, able, pending)
        arrives = rng.random(pending[0].size) < late[pending[0]]
        which = pending[1][arrives]
        np.add.at(value, (pending[0][arrives], model.to[which]), model.value[which])
        pending = [part[~arrives] for part in pending]
        if (stage == BARRIERS * inside).all() and not pending[0].size:
            break
        if not pending[0].size and not _can_move(model, value, stage).any():
            raise Hang
    else:
        raise AssertionError("the model is too slow for its number of waves")
    if value.any():
        raise Lost


def _gates(model: Model, value: np.ndarray, run: np.ndarray, rank: np.ndarray, step: np.ndarray) -> np.ndarray:
    found: np.ndarray = value[run[:, None], model.semaphore[rank, step]] >= model.target[rank, step]
    return found.all(axis=1)


def _can_move(model: Model, value: np.ndarray, stage: np.ndarray) -> np.ndarray:
    run, rank = np.nonzero(stage < BARRIERS * (STEPS + 1))
    step = stage[run, rank] % (STEPS + 1) - 1
    return (step < 0) | _gates(model, value, run, rank, np.maximum(step, 0))


def _move(
    model: Model,
    value: np.ndarray,
    stage: np.ndarray,
    entered: np.ndarray,
    able: np.ndarray,
    pending: list[np.ndarray],
) -> list[np.ndarray]:
    """Let ranks that may go on do so: enter, or leave a step; then start the signals of the step they are in."""
    run, rank = np.nonzero(able)
    step = stage[run, rank] % (STEPS + 1) - 1  # -1: outside
    go = (step < 0) | _gates(model, value, run, rank, np.maximum(step, 0))
    run, rank, step = run[go], rank[go], step[go]
    waits = step >= 0
    at = (run[waits, None], model.semaphore[rank[waits], step[waits]])
    np.subtract.at(value, at, model.target[rank[waits], step[waits]])
    entered[run[~waits], rank[~waits]] += 1
    stage[run, rank] += 1
    leaves = step == STEPS - 1
    if leaves.any():
        _check_exit(model, entered, run[leaves], rank[leaves])
    starts = ~leaves
    key = rank[starts] * STEPS + step[starts] + 1
    counts = model.first[key + 1] - model.first[key]
    signals = ranges(model.first[key], counts)
    return [np.concatenate((pending[0], np.repeat(run[starts], counts))), np.concatenate((pending[1], signals))]


def _check_exit(model: Model, entered: np.ndarray, run: np.ndarray, rank: np.ndarray) -> None:
    """A rank has entered as often as it leaves; those it waits for have, too."""
    if model.waiter.size == model.ranks**2:
        least = entered.min(axis=1)
        if (least[run] < entered[run, rank]).any():
            raise Early
        return
    order = np.argsort(model.waiter, kind="stable")
    first = pointers(np.bincount(model.waiter, minlength=model.ranks))
    counts = first[rank + 1] - first[rank]
    others = model.other[order][ranges(first[rank], counts)]
    if (entered[np.repeat(run, counts), others] < np.repeat(entered[run, rank], counts)).any():
        raise Early


def box(platform: Platform, rng: np.random.Generator) -> list[int]:
    """Return a random full box: servers alike in both racks or of one, the same chips of each, the same lanes."""
    per_rack = platform.servers_per_rack
    local = rng.choice(per_rack, rng.integers(1, min(per_rack, 6) + 1), replace=False)
    racks = [[0], [1], [0, 1]][rng.integers(3)]
    places = rng.choice(platform.chips, rng.integers(1, min(platform.chips, 6) + 1), replace=False)
    lanes = [[0], [3], [0, 1], [1, 3], range(4)][rng.integers(5)]
    chips = [(rack * per_rack + s) * platform.chips + place for rack in racks for s in local for place in places]
    return [chip * 4 + lane for chip in sorted(chips) for lane in lanes]


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("platform", "ranks"), MACHINES, ids=NAMES)
def test_four_barriers_back_to_back(platform: Platform, ranks: Sequence[int]) -> None:
    """No hang, no early exit, and all semaphores are back at 0, in a tenth of the interleavings."""
    run(model_of(construct(platform, [ranks])), np.random.default_rng(1), runs=WHOLE // 10)


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "ranks"), MACHINES, ids=NAMES)
def test_a_thousand_interleavings_of_every_machine(platform: Platform, ranks: Sequence[int]) -> None:
    """The same in a thousand, a part at a time."""
    model = model_of(construct(platform, [ranks]))
    for seed in range(20):
        run(model, np.random.default_rng(100 + seed), runs=WHOLE // 20)


def hold_in_boxes(seeds: range) -> None:
    """Run ten interleavings of a random box for each seed, and count entries."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        platform = (GEN1, GEN2)[seed % 2]
        program = construct(platform, [box(platform, rng)])
        for kind, most in ((BarrierType.INTRA_RACK, 20), (BarrierType.INTER_RACK, 18)):
            counts = np.bincount(program.recv.owner[program.recv.kind == kind], minlength=1)
            assert counts.max() <= most
        run(model_of(program), rng, runs=10)


def test_random_boxes() -> None:
    """The same on random boxes of the switch, with at most 20 entries in the rack and 18 across."""
    hold_in_boxes(range(10))


@pytest.mark.slow
def test_a_hundred_random_boxes() -> None:
    """The same for the rest of a hundred."""
    hold_in_boxes(range(10, 100))


@pytest.mark.parametrize("index", [0, 2, 4, 10], ids=["gen1", "ring 64", "mesh", "pod 4"])
def test_barriers_back_to_back_with_one_slow_rank(index: int) -> None:
    """With a slow rank no signal is lost or counted twice."""
    platform, ranks = MACHINES[index]
    run(model_of(construct(platform, [ranks])), np.random.default_rng(2), runs=4, slow=len(ranks) // 2)


# --- the model finds mistakes -----------------------------------------------------------------------------------------


def test_the_model_finds_one_type_per_pair() -> None:
    """With one type for both sides of a ring neighbour the barrier hangs."""
    program = construct(TRN2, [range(16)])
    wrong = dataclasses.replace(program, recv=dataclasses.replace(program.recv, kind=program.send.kind))
    with pytest.raises(Hang):
        run(model_of(wrong), np.random.default_rng(0), runs=4)


def test_the_model_finds_a_missing_round() -> None:
    """On the switch one round between chips lets a rank leave early."""
    program = construct(GEN1, [range(256)])
    with pytest.raises(Early):
        run(model_of(program, left_out=2), np.random.default_rng(0), runs=4)


def test_the_model_finds_a_missing_pair() -> None:
    """A pair that neither signals nor waits lets one of a ring leave before its neighbour has entered."""
    program = construct(TRN2, [range(16)])
    whole = model_of(program)
    sides = {
        name: rows.where((rows.owner + rows.peer != 15) | (rows.owner * rows.peer != 0))
        for name, rows in (("send", program.send), ("recv", program.recv))
    }  # ranks 0 and 15
    short = model_of(dataclasses.replace(program, **sides))
    with pytest.raises(Early):
        run(dataclasses.replace(short, waiter=whole.waiter, other=whole.other), np.random.default_rng(0), runs=20)


def test_the_model_finds_two_peers_on_one_bit() -> None:
    """Two peers on one bit are taken for each other: the trap of a merge that has the peer in its key."""
    program = construct(TRN2, [range(4)])
    one, two = (
        dataclasses.replace(side, bit=np.where(side.owner == 0, 1, side.bit)) for side in (program.send, program.recv)
    )
    wrong = dataclasses.replace(program, send=one, recv=two)
    with pytest.raises((Hang, Early, Lost)):
        run(model_of(wrong), np.random.default_rng(0), runs=20)


@settings(max_examples=40)
@given(data=st.data())
def test_any_dropped_entry_shows(data: st.DataObject) -> None:
    """Without any one send entry a barrier hangs; without any one receive entry it is early, hangs, or is off."""
    platform, ranks = data.draw(st.sampled_from([(TRN2, range(4)), (TRN1, range(8)), (GEN2, range(16))]))
    program = construct(platform, [ranks])
    side = data.draw(st.sampled_from(["send", "recv"]))
    rows = getattr(program, side)
    keep = np.ones(rows.owner.size, np.bool_)
    keep[data.draw(st.integers(0, rows.owner.size - 1))] = False
    wrong = dataclasses.replace(program, **{side: rows.where(keep)})
    with pytest.raises((Hang, Early, Lost)):
        run(model_of(wrong), np.random.default_rng(0), runs=4)


# --- tables -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 20), platform=st.sampled_from([GEN1, GEN2]))
def test_boxes_agree_in_pairs_and_merge(seed: int, platform: Platform) -> None:
    """In a random box a sends to b exactly where b receives from a, with one bit a peer; boxes merge."""
    rng = np.random.default_rng(seed)
    programs = [construct(platform, [box(platform, rng)]) for _ in range(2)]
    for program in programs:
        send, recv = program.send, program.recv
        sent = sorted(zip(send.owner, send.peer, send.kind, send.bit, strict=True))
        received = sorted(zip(recv.peer, recv.owner, recv.kind, recv.bit, strict=True))
        assert sent == received
    merged = merge(programs)
    keys = set(zip(merged.owner.tolist(), merged.kind.tolist(), merged.bit.tolist(), strict=True))
    assert len(keys) == merged.owner.size


@settings(max_examples=60)
@given(data=st.data())
def test_any_group_agrees_in_pairs(data: st.DataObject) -> None:
    """Rings, chains, chips and pods of any shape agree in pairs, and no two peers of a rank share a bit."""
    platform = data.draw(st.sampled_from([TRN1, TRN2, INF2, POD]))
    chips = data.draw(st.sets(st.integers(0, platform.chip_count - 1), min_size=1, max_size=16))
    lanes = data.draw(st.sampled_from([[0], range(platform.ranks_per_chip)]))
    if len({chip // platform.chips for chip in chips}) > 1:
        chips = {node * platform.chips + min(chips) % platform.chips for node in range(platform.nodes)}
    program = construct(platform, [[chip * platform.ranks_per_chip + lane for chip in sorted(chips) for lane in lanes]])
    send, recv = program.send, program.recv
    sent = sorted(zip(send.owner, send.peer, send.kind, send.bit, strict=True))
    received = sorted(zip(recv.peer, recv.owner, recv.kind, recv.bit, strict=True))
    assert sent == received
    assert (recv.bit >= 0).all()
    assert len(set(zip(recv.owner, recv.kind, recv.bit, strict=True))) == recv.owner.size
