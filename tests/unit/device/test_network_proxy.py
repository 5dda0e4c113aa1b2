"""Network proxies on the device: hops between nodes from their records alone, and records that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.grid import AG, AR, RINGS, RS, Case, Machine, Turns, nodes, run
from tests.images import rebuild, seal, section, table
from tests.property.test_grid import random_inputs

from rota.device.disturb import Disturbance
from rota.device.model import Device, Order, load
from rota.device.network import Hops
from rota.device.program import Kind
from rota.device.proxies import NAMES, add_proxies
from rota.emit import emit
from rota.errors import DecodeError, StuckError
from rota.execute.arrays import execute
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, EncOp
from rota.isa.image import DIGEST_SIZE, Section
from rota.isa.network import MOST_CREDITS, NetworkSection, decode_network, encode_network
from rota.pipeline import Composed, prove

Array = Any
SP = 3  # of queue 0
TWO, EIGHT = Machine("trn2.48xlarge", 2), Machine("trn2.48xlarge", 8)


@dataclass(frozen=True)
class Crossing:
    """A collective between nodes, down to images."""

    case: Case
    folds: int = 2

    @cached_property
    def made(self) -> Composed:
        return prove(self.case.request, self.case.machine.platform, self.case.how)

    @cached_property
    def images(self) -> tuple[bytes, ...]:
        algorithm = Algorithm[self.made.algorithm]
        platform = self.case.machine.platform
        return emit(self.made.schedule, self.made.request, platform, algorithm=algorithm, folds=self.folds)

    @cached_property
    def device(self) -> Device:
        return load(self.images)

    @cached_property
    def inputs(self) -> Array:
        return random_inputs(self.made.request)

    @cached_property
    def raw(self) -> Array:
        return np.ascontiguousarray(self.inputs).view(np.uint8).reshape(len(self.images), -1)

    @cached_property
    def expected(self) -> Array:
        return execute(self.made.schedule, self.inputs, scales=self.made.request.scales).view(np.uint8)

    @property
    def hops(self) -> Hops:
        found = self.device.tables.hops
        assert found is not None
        return found


@cache
def crossing(name: str) -> Crossing:
    turns = Turns()
    two, four, lane = nodes(TWO, 0), nodes(TWO, *run(0, 4)), nodes(EIGHT, 0)
    request = turns.request
    found = {
        "ring": (TWO, request(AR, (two,), 1000, dtype=Dtype.BFLOAT16), RINGS, Algorithm.RING),
        "ring in eight nodes": (EIGHT, request(RS, (lane,), 8 * 53), RINGS, Algorithm.RING),
        "one cycle": (EIGHT, request(AR, (lane,), 61), RINGS, Algorithm.SINGLE_CYCLE_RING),
        "gather": (EIGHT, request(AG, (lane,), 8 * 77), RINGS, Algorithm.RING),
        "levels": (TWO, request(AR, (four,), 501, dtype=Dtype.FP32), RINGS, None),
        "permute": (EIGHT, request(EncOp.PERMUTE_IMPLICIT, (lane,), 99), RINGS, None),
    }[name]  # fmt: skip
    return Crossing(Case(*found))


NAMED = ("ring", "ring in eight nodes", "one cycle", "gather", "levels", "permute")


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_hops_between_nodes_give_the_bits_of_the_schedule(name: str) -> None:
    """In waves and in random orders, with writes that land late."""
    one = crossing(name)
    assert np.array_equal(one.device.run(one.raw), one.expected)
    for seed in range(8):
        got = one.device.run(one.raw, order=Order.RANDOM, rng=np.random.default_rng(seed))
        assert np.array_equal(got, one.expected)


MESHES = {
    "two": (TWO, AR, 301, Algorithm.MESH),
    "reduce": (EIGHT, RS, 8 * 31, Algorithm.MESH),
    "gather": (EIGHT, AG, 8 * 31, Algorithm.MESH),
    "exchange": (EIGHT, EncOp.ALLTOALL, 8 * 16, None),
    "halving": (EIGHT, AR, 64, Algorithm.INTER_RDH),
}


@pytest.mark.parametrize("name", MESHES)
def test_hops_of_event_lists(name: str) -> None:
    """What event lists send goes the same way."""
    machine, kind, count, algorithm = MESHES[name]
    case = Case(machine, Turns().request(kind, (nodes(machine, 0),), count), algorithm=algorithm)
    one = Crossing(case)
    assert np.array_equal(one.device.run(one.raw), one.expected)
    for seed in range(8):
        got = one.device.run(one.raw, order=Order.RANDOM, rng=np.random.default_rng(seed))
        assert np.array_equal(got, one.expected)


@pytest.mark.parametrize("name", NAMED)
def test_every_proxy_row_is_a_hop(name: str) -> None:
    """Hops of the images are the proxy rows of the schedule: as many bytes between the same ranks."""
    one = crossing(name)
    hops = one.hops
    sender = hops.operations.image[hops.operation]
    assert (one.device.world.span[sender] != one.device.world.span[hops.receiver]).all()
    schedule = one.made.schedule
    member = np.array(one.made.request.members)
    targets = schedule.targets
    row = np.repeat(np.arange(len(schedule)), np.diff(targets.ptr))
    node = member // one.case.machine.platform.node_ranks
    far = node[schedule.rows.rank[row]] != node[targets.rank]
    assert hops.size.sum() == schedule.rows.size[row[far]].sum()


@pytest.mark.parametrize("credits", [1, 2, MOST_CREDITS])
@pytest.mark.parametrize("name", ["ring", "levels"])
def test_any_window_of_credits_finishes(name: str, credits: int) -> None:
    """One credit is enough, since a notice returns it whatever the receiving rank does; more change no bit."""
    one = crossing(name)

    def windowed(found: NetworkSection) -> NetworkSection:
        table = found.operations
        return replace(found, operations=replace(table, credits=np.full(table.entry.size, credits)))

    device = load([changed(image, windowed) for image in one.images])
    for order in Order:
        assert np.array_equal(device.run(one.raw, order=order, rng=np.random.default_rng(5)), one.expected)


def test_machines_of_an_operation() -> None:
    """A rank that sends has a send proxy, one that receives a receive proxy for each that sends to it."""
    one = crossing("levels")
    machines = one.device.program.machines
    sends, receives = (np.flatnonzero(machines.kind == kind) for kind in (Kind.SEND_PROXY, Kind.RECEIVE_PROXY))
    assert machines.image[sends].tolist() == one.hops.operations.image.tolist()
    pairs = np.unique(np.stack([one.hops.operation, one.hops.receiver]), axis=1)
    assert receives.size == pairs.shape[1]
    steps = np.diff(machines.step)
    assert steps[sends].tolist() == (np.diff(one.hops.operations.send) + 2).tolist()
    assert steps[receives].sum() == one.hops.size.size
    text = one.device.program.describe(one.device.world, int(machines.step[sends[0]]) + 1)
    assert text.startswith("rank 0 network channel ")
    assert " send 0 of operation " in text


def test_images_without_hops_are_left_alone() -> None:
    """Where there is no section NETWORK, items and program stay the very same."""
    case = Case(Machine("trn2.48xlarge"), Turns().request(AR, (run(0, 2),), 10), RINGS, Algorithm.RING)
    device = Crossing(case).device
    items, program = add_proxies(device.world, device.items, device.program, device.tables.hops)
    assert device.tables.hops is None
    assert (items is device.items, program is device.program) == (True, True)


# --- faults -----------------------------------------------------------------------------------------------------------


def notices(device: Device) -> list[int]:
    """Return the items by which sends arrive."""
    found: list[int] = np.flatnonzero(
        (device.items.target >= device.world.semaphores) & (device.items.kind == 1)
    ).tolist()
    return found


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("name", ["ring", "levels"])
def test_late_notices_delay_the_end_and_change_nothing(name: str, order: Order) -> None:
    """Each control entry waits until what it has sent has arrived, however late that is."""
    one = crossing(name)
    late = Disturbance(delayed={item: 5 + item % 40 for item in notices(one.device)})
    got = one.device.run(one.raw, order=order, rng=np.random.default_rng(1), disturbance=late)
    assert np.array_equal(got, one.expected)


@pytest.mark.parametrize("order", Order)
def test_a_lost_transfer_is_named(order: Order) -> None:
    """Without its notice the receive proxy waits, and so do its rank and the sender's control entry."""
    one = crossing("ring")
    for item in (notices(one.device)[0], notices(one.device)[-1]):
        lost = Disturbance(dropped=frozenset({item}))
        with pytest.raises(StuckError) as caught:
            one.device.run(one.raw, order=order, rng=np.random.default_rng(1), disturbance=lost)
        assert any(name in str(caught.value) for name in NAMES)
        assert "network channel 0" in str(caught.value)


@pytest.mark.parametrize("order", Order)
def test_a_rank_that_dies_stops_its_senders(order: Order) -> None:
    """A dead rank returns no credit: the message names it."""
    one = crossing("ring")
    with pytest.raises(StuckError, match="rank 1"):
        one.device.run(one.raw, order=order, rng=np.random.default_rng(1), disturbance=Disturbance(dead={1: 3}))


# --- records that do not fit ------------------------------------------------------------------------------------------

Change = Callable[[NetworkSection], NetworkSection]


def changed(image: bytes, change: Change, sp: int | None = None) -> bytes:
    """Return the image with the records of one processor, or of all, changed."""
    chosen = [place for place in table(image) if place[0] is Section.NETWORK and sp in (None, place[1])]
    return rebuild(image, {place: encode_network(change(decode_network(section(image, *place)))) for place in chosen})


def without(image: bytes, sp: int) -> bytes:
    """Return the image without one section NETWORK."""
    from rota.emit import pack_image

    kept = [place for place in table(image) if place != (Section.NETWORK, sp)]
    return pack_image([(*place, section(image, *place)) for place in kept])


def one_more(column: Array, at: int = 0, by: int = 1) -> Array:
    out = column.copy()
    out[at] = int(out[at]) + by
    return out


def of(name: str, column: str, at: int = 0, by: int = 1) -> Change:
    """Return the change of one value of a column of operations, sends or receives."""

    def change(found: NetworkSection) -> NetworkSection:
        part = getattr(found, name)
        return replace(found, **{name: replace(part, **{column: one_more(getattr(part, column), at, by)})})

    return change


def shorter(found: NetworkSection, name: str) -> NetworkSection:
    """Return the section without its last send or receive."""
    part, operations = getattr(found, name), found.operations
    columns = {each: getattr(part, each)[:-1] for each in type(part).__slots__}
    counts = one_more(getattr(operations, name), -1, -1)
    return replace(found, **{name: type(part)(**columns)}, operations=replace(operations, **{name: counts}))


CHANGES: dict[str, tuple[int, Change]] = {
    "network_send .* a receive entry of the rank it goes to": (1, lambda found: shorter(found, "receives")),
    "network_receive .* a send entry of the rank it comes from": (0, lambda found: shorter(found, "sends")),
    "network_send .* the size of its receive entry": (1, of("receives", "size", 0, -2)),
    "network_send .* the target of its receive entry": (1, of("receives", "target", 0, 2)),
    "network_send .* the semaphores of its receive entry": (1, of("receives", "semaphore_0", 0, 4)),
    "network_send .* the unit of its receive entry": (1, of("operations", "steps")),
    "network_send .* the credits of its receive entry": (1, of("operations", "credits")),
    "network_send .* the element size of its receive entry": (1, of("operations", "element_size", 0, -1)),
    "network_send rank .* a rank that no address reaches": (0, of("sends", "rank", 0, -1)),
    "network_receive rank .* a rank that no address reaches": (0, of("receives", "rank", -1, 1)),
    "network_operation .* a control entry below 1": (0, of("operations", "entry")),
    "network_send source .* bytes inside one declared buffer": (0, of("sends", "source", 0, 1 << 20)),
    "send_handshake .* a register of the READ window": (0, of("operations", "handshake", 0, 0x400)),
    "send_handshake .* a semaphore of its processor": (0, of("operations", "handshake", 0, -(1 << 30))),
    "send_handshake .* that only its processor raises": (0, of("operations", "handshake", 0, -4)),
    "follows of network_send|as many rows as raise it": (0, of("sends", "follows", 1)),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_records_that_do_not_fit_are_refused(what: str) -> None:
    """Both sides of a transfer must be there, say the same, and name memory and semaphores that can be meant."""
    rank, change = CHANGES[what]
    images = list(crossing("ring").images)
    images[rank] = changed(images[rank], change, SP)
    with pytest.raises(DecodeError, match=what) as caught:
        load(images)
    spots = [spot for image in images for (kind, _), spot in table(image).items() if kind is Section.NETWORK]
    assert "image of rank " in str(caught.value)
    assert any(start <= caught.value.offset < start + size for _, start, size in spots)


def test_both_sides_wrong_alike_are_refused() -> None:
    """A transfer that is missing on both sides leaves a row without its send."""
    images = [
        changed(image, lambda found: shorter(shorter(found, "sends"), "receives"), SP)
        for image in crossing("ring").images
    ]
    with pytest.raises(DecodeError, match="as many rows as raise it in its entry"):
        load(images)


def test_sources_of_another_rank_are_refused() -> None:
    """A proxy reads its own rank, also where an address reaches others."""
    images = list(crossing("levels").images)
    sp = next(index for kind, index in table(images[0]) if kind is Section.NETWORK)
    images[0] = changed(images[0], of("sends", "source", 0, 1 << 35), sp)
    with pytest.raises(DecodeError, match=r"network_send source .* memory of its own rank"):
        load(images)


def test_a_unit_from_two_rows_is_refused() -> None:
    """With several folds a unit is what one row raises: from two rows it could come before either is done."""

    def two_rows(found: NetworkSection) -> NetworkSection:
        operations, follows = found.operations, found.sends.follows.copy()
        follows[np.flatnonzero(follows == 0)[1::2]] = 1
        return replace(
            found,
            operations=replace(operations, steps=2 * operations.steps),
            sends=replace(found.sends, follows=follows),
        )

    with pytest.raises(DecodeError, match="one unit of it from all folds of a row of a ring"):
        load([changed(image, two_rows, SP) for image in crossing("ring").images])


def test_both_sides_must_name_semaphores_that_can_be_meant() -> None:
    """Also where both say so: nobody signals a trigger, or what no ring channel waits for."""
    images = crossing("ring").images
    found = int(decode_network(section(images[1], Section.NETWORK, SP)).receives.semaphore_0[0]) >> 2 & 0xFF
    for by, expected in ((-4 * found, "of its own rank from 8"), (4 * (200 - found), "data or credit of the same")):
        both = [
            changed(images[0], of("sends", "semaphore_0", 0, by), SP),
            changed(images[1], of("receives", "semaphore_0", 0, by), SP),
        ]
        with pytest.raises(DecodeError, match=expected):
            load(both)


def test_a_missing_section_is_refused() -> None:
    """A rank that others send to, or whose rows raise a handshake, needs its records."""
    images = list(crossing("ring").images)
    with pytest.raises(DecodeError, match="a receive entry of the rank it goes to"):
        load([images[0], without(images[1], SP)])
    with pytest.raises(DecodeError):
        load([without(image, SP) for image in images])


def test_sections_of_no_processor_are_refused() -> None:
    """The index of a section is a stream processor of the rank."""
    image = crossing("ring").images[0]
    with pytest.raises(DecodeError, match="a NETWORK this machine has"):
        load([rebuild(image, {(Section.NETWORK, 4): section(image, Section.NETWORK, SP)}), crossing("ring").images[1]])


# --- damage -----------------------------------------------------------------------------------------------------------


def fate(one: Crossing, rank: int, damaged: bytes) -> str:
    """Return what becomes of a collective when one rank loads other bytes."""
    images = list(one.images)
    images[rank] = damaged
    try:
        result = load(images).run(one.raw)
    except DecodeError as error:
        return "refused" if 0 <= error.offset < len(damaged) - DIGEST_SIZE else f"refused at {error.offset}"
    except StuckError:
        return "stuck"
    return "right" if np.array_equal(result, one.expected) else "wrong"


@pytest.mark.parametrize(("name", "flips"), [("ring", 120), ("levels", 60)])
def test_no_flipped_bit_of_a_record_is_silent(name: str, flips: int) -> None:
    """Single flips of network records under right checksums: nearly all are refused, the others give other bits."""
    one, rng = crossing(name), np.random.default_rng(11)
    found: dict[str, int] = {}
    for _ in range(flips):
        rank = int(rng.integers(len(one.images)))
        spots = [(at, size) for (kind, _), (_, at, size) in table(one.images[rank]).items() if kind is Section.NETWORK]
        start, size = spots[int(rng.integers(len(spots)))]
        damaged = bytearray(one.images[rank])
        damaged[start + int(rng.integers(size))] ^= 1 << int(rng.integers(8))
        what = fate(one, rank, seal(bytes(damaged)))
        found[what] = found.get(what, 0) + 1
    assert set(found) <= {"refused", "wrong"}, found
    assert found["refused"] > 0.8 * flips


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_records_never_crash(data: st.DataObject) -> None:
    """Any bytes over a section NETWORK, sealed: refused, stuck, wrong or right, and nothing else."""
    one = crossing("ring")
    damaged = bytearray(one.images[1])
    _, start, size = table(one.images[1])[Section.NETWORK, SP]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, size - 1))
        new = data.draw(st.binary(min_size=1, max_size=min(16, size - at)))
        damaged[start + at : start + at + len(new)] = new
    assert fate(one, 1, seal(bytes(damaged))) in ("refused", "stuck", "wrong", "right")
