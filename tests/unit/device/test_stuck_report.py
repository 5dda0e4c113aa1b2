"""What a stuck device says: the rank at fault first, then who waits for whom, then what would help."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from tests.images import Ring, section
from tests.unit.device.test_running import ring, with_credit

from rota.columns import Array
from rota.device.disturb import Disturbance, signal_name, signals_of
from rota.device.model import Device, Order, called, load, load_unchecked
from rota.device.waits import show_group, show_ranks
from rota.emit.order import check_orders
from rota.errors import StuckError, UsageError
from rota.faults import calls_of, parse_fault, with_credits
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp
from rota.isa.image import PRESET, BufferUse, Section
from rota.isa.streams import STREAMS
from rota.machine.platform import load_platform
from rota.meaning import as_bytes, make_program_inputs
from rota.pipeline import How, prove, runnable
from rota.program import asked_of, execute_program, load_program, steps_of
from rota.request import Request
from rota.verify.program import COMMUNICATORS, find_program

ORDERS = [pytest.param(None, id="waves"), pytest.param(0, id="random"), pytest.param(7, id="other random")]
RING, MESH = Algorithm.RING, Algorithm.MESH


def says(device: Device, inputs: dict[str, Array], seed: int | None, disturbance: Disturbance | None = None) -> str:
    """Run a device that gets stuck, and return what it says."""
    order = Order.WAVES if seed is None else Order.RANDOM
    with pytest.raises(StuckError) as caught:
        device.run_program(inputs, order=order, rng=np.random.default_rng(seed), disturbance=disturbance)
    assert len(caught.value.waiting) <= 12
    return str(caught.value)


def one(collective: Ring) -> dict[str, Array]:
    """Return the input of the only collective of a device."""
    (name,) = (buffer.name for buffer in load(collective.images).buffers(BufferUse.INPUT))
    return {name: collective.raw_inputs()}


# --- programs that differ from rank to rank ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """Collectives of one group, one after another; `orders` are those of ranks with another program."""

    kinds: tuple[EncOp, ...]
    ranks: tuple[int, ...] = tuple(range(8))
    algorithm: Algorithm | None = RING

    def requests(self) -> list[Request]:
        made = []
        for i, kind in enumerate(self.kinds):
            op = CceType.ADD if kind in (EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER) else None
            pairs = tuple(zip(self.ranks, (*self.ranks[1:], self.ranks[0]), strict=True))
            count = (i + 1) * 16 * len(self.ranks)
            more = {"pairs": pairs} if kind is EncOp.PERMUTE else {}
            made.append(Request(kind, Dtype.BFLOAT16, count, (self.ranks,), op, **more))
        return made

    @property
    def findings(self) -> list[str]:
        """What the verifier says of it where every rank has the same program: nothing."""
        return self.found({})

    def found(self, orders: dict[int, tuple[int, ...]]) -> list[str]:
        """Return what the verifier says before anything runs."""
        program = calls_of(self.requests(), orders)
        return [str(each) for each in find_program(program, communicators=COMMUNICATORS, streams=STREAMS)]

    def says(self, orders: dict[int, tuple[int, ...]], seed: int | None) -> str:
        """Return what the device says when ranks have these programs."""
        return says(*loaded(self, tuple(orders.items())), seed)


@cache
def loaded(program: Program, orders: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[Device, dict[str, Array]]:
    platform = load_platform("trn2.48xlarge")
    how = How(algorithm=program.algorithm, any_group=True)
    made = [prove(each, platform, how) for each in program.requests()]
    steps = steps_of([replace(each, schedule=runnable(each.schedule)) for each in made])
    images = load_program(steps, platform, orders=dict(orders))
    inputs = make_program_inputs(asked_of(steps), images.ranks, 0, exact=True)
    device = called(load_unchecked(images.images), images.ranks)
    return device, {name: as_bytes(value) for name, value in inputs.items()}


AR, AG, RS = EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
FOUR = (AR, AG, RS, AR)


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("algorithm", [RING, MESH])
@pytest.mark.parametrize("lacks", range(4))
def test_a_rank_with_fewer_collectives_is_named(algorithm: Algorithm, lacks: int, seed: int | None) -> None:
    """A different count of operations: before anything runs, and by the device, each with the rank."""
    program = Program(FOUR, algorithm=algorithm)
    orders = {5: tuple(-1 if i == lacks else i for i in range(4))}
    assert program.findings == []
    assert any("rank 5" in text for text in program.found(orders))
    first, *lines = program.says(orders, seed).splitlines()
    assert first == (
        f"rank 5 never entered group [0..7] in operation {lacks}; its program has 3 operations, the others 4"
    )
    assert lines[-1] == "  fix: enter it on every rank of the group, or leave rank 5 out of the group"
    assert f" of operation {lacks} waits for semaphore " in lines[0]


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("algorithm", [RING, MESH])
@pytest.mark.parametrize("odd", [0, 3, 7])
def test_a_rank_with_another_order_is_named(algorithm: Algorithm, odd: int, seed: int | None) -> None:
    """A different order of operations: the verifier names the rank, and the device calls it the odd one."""
    program = Program(FOUR, algorithm=algorithm)
    orders = {odd: (0, 2, 1, 3)}
    assert any(f"rank {odd}" in text for text in program.found(orders))
    first, *lines = program.says(orders, seed).splitlines()
    assert first.startswith(f"rank {odd} has its operations in another order than the others: in operation 1 rank ")
    assert lines[-1] == "  fix: issue the operations in the same order on every rank"


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("algorithm", [RING, MESH])
def test_of_two_ranks_both_are_named(algorithm: Algorithm, seed: int | None) -> None:
    """Which of two orders is the right one nobody can say."""
    program = Program((AR, AG), (0, 1), algorithm)
    first = program.says({1: (1, 0)}, seed).partition("\n")[0]
    assert first.startswith("ranks 0, 1 have their operations in different orders: in operation 0 rank ")


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("kind", [AR, AG, RS, EncOp.PERMUTE, EncOp.ALLTOALL])
def test_a_rank_that_is_missing_is_named(kind: EncOp, seed: int | None) -> None:
    """A rank missing from the only collective of its group: its program has none."""
    program = Program((kind,), algorithm=None, ranks=(0, 1, 2, 3))
    assert any("rank 2" in text for text in program.found({2: (-1,)}))
    first = program.says({2: (-1,)}, seed).partition("\n")[0]
    assert first == "rank 2 never entered group [0..3] in operation 0; its program has 0 operations, the others 1"


@pytest.mark.parametrize("seed", ORDERS)
def test_ranks_are_called_as_the_machine_does(seed: int | None) -> None:
    """Images are numbered from 0, ranks are not."""
    program = Program((AR, AG), (4, 5, 6, 7), MESH)
    first = program.says({6: (0, -1)}, seed).partition("\n")[0]
    assert first == "rank 6 never entered group [4..7] in operation 1; its program has 1 operation, the others 2"


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("algorithm", [RING, MESH])
def test_a_rank_that_lacks_one_of_two_equal_collectives(algorithm: Algorithm, seed: int | None) -> None:
    """It takes part in the first of them, whichever its program lacks, and the others wait in the second."""
    requests = Program((AR,), algorithm=algorithm).requests() * 2
    platform = load_platform("trn2.48xlarge")
    steps = steps_of([prove(each, platform, How(algorithm=algorithm)) for each in requests])
    images = load_program(steps, platform, orders={3: (0, -1)})
    inputs = make_program_inputs(asked_of(steps), images.ranks, 0, exact=True)
    device = called(load_unchecked(images.images), images.ranks)
    text = says(device, {name: as_bytes(value) for name, value in inputs.items()}, seed)
    assert text.startswith(
        "rank 3 never entered group [0..7] in operation 1; its program has 1 operation, the others 2"
    )


def test_operations_of_a_program_without_faults_run_through_the_same_report() -> None:
    """The same programs with all ranks alike end, with what the schedules say."""
    program = Program(FOUR, algorithm=MESH)
    device, inputs = loaded(program, ())
    platform = load_platform("trn2.48xlarge")
    steps = steps_of([prove(each, platform, How(algorithm=MESH)) for each in program.requests()])
    want = execute_program(steps, tuple(range(8)), make_program_inputs(asked_of(steps), range(8), 0, exact=True))
    got = device.run_program(inputs)
    assert all(np.array_equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_missing_root_is_named_although_nobody_is_stuck(seed: int | None) -> None:
    """All other ranks of a reduction end; what they told the root nobody has taken."""
    request = Request(EncOp.REDUCE, Dtype.BFLOAT16, 64, ((0, 1, 2, 3),), CceType.ADD, root=1)
    platform = load_platform("trn2.48xlarge")
    steps = steps_of([prove(request, platform, How(extensions=True, any_group=True))])
    images = load_program(steps, platform, orders={1: (-1,)})
    inputs = make_program_inputs(asked_of(steps), images.ranks, 0, exact=True)
    text = says(load_unchecked(images.images), {name: as_bytes(value) for name, value in inputs.items()}, seed)
    first, second, third = text.splitlines()
    assert first == "rank 1 never entered group [0..3] in operation 0; its program has 0 operations, the others 1"
    assert re.fullmatch(r"  semaphore \d+ of TOP_SP \d of rank \d ends [+-]\d+ away from its initial value", second)
    assert third.startswith("  fix: enter it on every rank")


@pytest.mark.parametrize("seed", ORDERS)
def test_a_rank_of_another_node_that_is_missing(seed: int | None) -> None:
    """Nothing reaches it but what proxies carry, and these have no records of it: who has no part is named."""
    request = Request(AR, Dtype.BFLOAT16, 64, ((0, 64),), CceType.ADD)
    platform = load_platform("trn2.48xlarge", nodes=2)
    steps = steps_of([prove(request, platform, How(algorithm=Algorithm.SINGLE_CYCLE_RING))])
    images = load_program(steps, platform, orders={64: (-1,)})
    inputs = make_program_inputs(asked_of(steps), images.ranks, 0, exact=True)
    device = called(load_unchecked(images.images), images.ranks)
    text = says(device, {name: as_bytes(value) for name, value in inputs.items()}, seed)
    assert text.startswith("rank 64 has no part in operation 0, and rank 0 channel 0 row ")
    assert "nothing that is left raises it" in text.partition("\n")[0]


# --- credits ----------------------------------------------------------------------------------------------------------


def starved(collective: Ring, rank: int) -> Device:
    """Return a device on which one rank starts without a credit."""
    images = list(collective.images)
    images[rank] = with_credits(images[rank], parse_fault(f"credits:rank={rank}"), load(images), rank)
    return load_unchecked(images)


@pytest.mark.parametrize("seed", ORDERS)
def test_too_few_credits(seed: int | None) -> None:
    """The channel that starts with least, what it waits for, who returns that, and how many it takes."""
    collective = ring(5)
    first, *lines = says(starved(collective, 3), one(collective), seed).splitlines()
    assert first.startswith("rank 3 channel 0 waits for credit (semaphore 9 of TOP_SP 3) to reach 2, it is 0; rank 4, ")
    assert "rank 4, which returns it, waits for data of rank 3 (semaphore 8 of TOP_SP 3) to reach 2" in first
    assert lines[-1] == (
        "  fix: start with at least 3 credits (NEURON_RT_CC_CHANNEL_BUFFER_N); this channel starts with 0"
    )
    assert any(line.startswith("  and so again for rank ") for line in lines)


@pytest.mark.parametrize("halves", [1, 2])
def test_the_credits_it_asks_for_are_enough_and_no_more(halves: int) -> None:
    """Sends before the first receive, and one. Source: device-model §5.3."""
    collective = ring(4, halves=halves)
    raw = one(collective)
    for rows in range(1, halves + 1):
        text = says(load(with_credit(collective, rows)), raw, None)
        assert f"start with at least {halves + 1} credits" in text
    load(with_credit(collective, halves + 1)).run_program(raw)


def test_enough_credits_are_not_asked_for() -> None:
    """Where a dropped signal leaves a ring without credit, more of them are no remedy."""
    collective = ring(4)
    device = load(collective.images)
    preset = np.frombuffer(section(collective.images[0], Section.SEMA), PRESET.dtype)
    assert preset["value"].tolist() == [8 * collective.folds]
    raw = one(collective)
    for item in signals_of(device.items, device.program, 1).tolist():
        assert "credits" not in says(device, raw, None, Disturbance(dropped=frozenset({item})))


# --- disturbances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("tick", [0, 3, 6])
def test_a_dead_rank_is_named_with_all_who_wait_for_it(tick: int, seed: int | None) -> None:
    """Also those that wait for somebody who waits for it; the chain ends there."""
    collective = ring(4)
    text = says(load(collective.images), one(collective), seed, Disturbance(dead={2: tick}))
    first, *lines = text.splitlines()
    assert first == f"rank 2 was killed at tick {tick}; ranks 0, 1, 3 wait for it"
    assert lines[-1].startswith("  rank 2 ")
    assert lines[-1].endswith(" is dead")


def test_two_dead_ranks() -> None:
    """Both are named; a rank that died behind its last step is not."""
    collective = ring(4)
    device, raw = load(collective.images), one(collective)
    text = says(device, raw, None, Disturbance(dead={2: 3, 0: 5}))
    assert text.startswith("rank 0 was killed at tick 5, rank 2 was killed at tick 3; ranks 1, 3 wait for them")
    device.run_program(raw, disturbance=Disturbance(dead={1: 10**6}))


@pytest.mark.parametrize("seed", ORDERS)
def test_a_dropped_signal_is_named(seed: int | None) -> None:
    """Of every kind there is: data, credit, completion; nobody else raises the last of each."""
    collective = ring(3)
    device, raw = load(collective.images), one(collective)
    for item in signals_of(device.items, device.program, 1).tolist():
        name = signal_name(device.world, device.items, device.program, item)
        assert name.startswith("the signal of rank 1 channel 0 row ")
        text = says(device, raw, seed, Disturbance(dropped=frozenset({item})))
        assert f"{name} was dropped" in text.partition("\n")[0]
    assert text.startswith(f"{name} was dropped: nobody else in the program raises it\n")


@pytest.mark.parametrize("seed", ORDERS)
def test_a_doubled_signal_is_named(seed: int | None) -> None:
    """The semaphore that ends too high, and the signal that made it so."""
    collective = ring(3)
    device, raw = load(collective.images), one(collective)
    item = int(signals_of(device.items, device.program, 2)[4])
    name = signal_name(device.world, device.items, device.program, item)
    text = says(device, raw, seed, Disturbance(doubled=frozenset({item})))
    assert " away from its initial value: " in text
    assert text.endswith(f"{name} was performed twice")


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("ticks", [1, 50, 10**12])
def test_what_is_late_only_takes_time(ticks: int, seed: int | None) -> None:
    """Time in which nothing happens is skipped: a run has no more steps than there is to do."""
    collective = ring(4)
    device, raw = load(collective.images), one(collective)
    order, rng = Order.WAVES if seed is None else Order.RANDOM, np.random.default_rng(seed)
    want = load(collective.images).run_program(raw)
    item = int(signals_of(device.items, device.program, 1)[5])
    fired: list[int] = []
    for late in (Disturbance(delayed={item: ticks}), Disturbance(late={2: ticks, 0: ticks // 2})):
        fired.clear()
        got = device.run_program(
            raw, order=order, rng=rng, disturbance=late, observe=lambda tick, steps: fired.extend([tick] * steps.size)
        )
        assert all(np.array_equal(got[name], want[name]) for name in want)
        assert len(fired) == device.program.steps
    assert max(fired) >= ticks


@pytest.mark.parametrize("seed", ORDERS)
def test_one_slow_rank_in_a_permute_shows(seed: int | None) -> None:
    """Results are right, and the first and last ticks of the ranks say who came late and who waited for it."""
    device, inputs = loaded(Program((EncOp.PERMUTE,), (0, 1, 2, 3), None), ())
    want = device.run_program(inputs)
    first, last = np.full(4, -1), np.zeros(4, np.int64)
    kinds = device.program.machines.channel >= 0
    kinds |= (device.program.machines.entry >= 0) & (device.program.machines.channel < 0)

    def sees(tick: int, steps: np.ndarray) -> None:
        machine = device.program.machine[steps]
        ranks = device.program.machines.image[machine[kinds[machine]]]
        first[ranks] = np.where(first[ranks] < 0, tick, first[ranks])
        last[ranks] = tick

    order, slow = Order.WAVES if seed is None else Order.RANDOM, 1000
    late = Disturbance(late={2: slow})
    got = device.run_program(inputs, order=order, rng=np.random.default_rng(seed), disturbance=late, observe=sees)
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert (first >= slow).tolist() == [False, False, True, False]
    assert last[1] >= slow, "it sends to rank 2"
    assert last[3] >= slow, "it receives from rank 2"


# --- words ------------------------------------------------------------------------------------------------------------


def test_long_chains_are_cut() -> None:
    """A chain through sixteen ranks shows twelve of them."""
    collective = ring(16)
    device = load(collective.images)
    item = int(signals_of(device.items, device.program, 3)[-1])
    assert "nobody else" in says(device, one(collective), None, Disturbance(dropped=frozenset({item})))
    text = says(load(with_credit(collective, 1)), one(collective), None)
    assert "\n  ... and 4 more\n" in text


def test_groups_and_ranks_in_words() -> None:
    """Short as the runtime writes them, and never longer than a line."""
    assert show_group(range(8)) == "[0..7]"
    assert show_group([3]) == "[3]"
    assert show_group([0, 2, 4]) == "[0, 2, 4]"
    assert show_group(list(range(0, 64, 2))) == "[0, 2, 4, 6, ... 62] of 32"
    assert show_ranks([4]) == "rank 4"
    assert show_ranks([1, 2]) == "ranks 1, 2"
    assert show_ranks(list(range(20))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... 19"


@pytest.mark.parametrize("orders", [{8: (0, 1)}, {-1: (0, 1)}, {0: (0,)}, {0: (0, 0)}, {0: (0, 2)}, {0: (0, -2)}])
def test_orders_of_no_member_or_no_collective_are_refused(orders: dict[int, tuple[int, ...]]) -> None:
    """Each place of the program has one collective or none, and none comes twice."""
    with pytest.raises(UsageError, match=r"member -?\d: expected the 2 collectives in some order"):
        check_orders(orders, 2, 8)
    check_orders({0: (1, 0), 7: (-1, -1)}, 2, 8)
