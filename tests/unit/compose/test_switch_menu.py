"""The build side of the switch: switch_schedule §2 to §5, checks 1 and 3; design §2 (5), (6), (23), (29), (30)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.compose.slow_switch import AG, AR, GEN1, GEN2, RS, box, hears, place

from rota.compose.switch.grid import BoxShape, boxes, grid_of
from rota.compose.switch.menu import BUILDERS, PROXY_EVENTS, Slot, initialize_trn3pds98, shape_of, slot_of
from rota.compose.switch.planned import PHASES, PROXY_FOLD, Event, Phase, check_views, count_notifies, plan_event
from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm, EncOp
from rota.isa.events import EventType
from rota.isa.switch_records import MeshEvent, decode_events
from rota.machine.platform import load_platform
from rota.request import Staging
from rota.select import Settings
from rota.select.communicator import communicator
from rota.select.limits import Table

KIB, MIB = 1 << 10, 1 << 20
MENU = [
    "latency-opt all-gather",
    "bandwidth-opt all-gather",
    "reduce-scatter",
    "single-step all-reduce",
    "latency-opt all-reduce",
    "bandwidth-opt all-reduce",
    "latency-opt all-to-all",
]
# local_rack_rank_n -> servers and chips of a box at LNC 2, and lanes; GEN1 above one row
KEYED: dict[int, tuple[str, Any, Any, Any]] = {
    4: (GEN2, [0, 1], [0], [0, 1]),
    8: (GEN2, [0], [0, 1], range(4)),
    16: (GEN2, [0], range(4), range(4)),
    32: (GEN2, range(2), range(4), range(4)),
    64: (GEN1, [0], range(16), range(4)),
    128: (GEN1, range(2), range(16), range(4)),
}
BANDWIDTH_LIMIT = {4: 0x400000, 8: 0x400000, 16: 0x1000000, 32: 0x1800000, 64: 0x1800000, 128: 0x1800000}
STEP_LIMIT = {4: 0x20000, 8: 0x8000, 16: 0x4000, 32: 0x2000, 64: 0x2000}


def menu(ranks: int, *, settings: Settings | None = None) -> tuple[Slot, ...]:
    name, servers, chips, lanes = KEYED[ranks]
    group = box(name, 2, list(servers), list(chips), list(lanes))
    return initialize_trn3pds98(load_platform(name), (group,), settings or Settings())


def limits(slot: Slot, op: EncOp) -> tuple[int, int, int, int]:
    row = slot.subtype.row(op)
    assert row is not None
    return row.plain.maximum, row.plain.minimum, row.sbuf.maximum, row.sbuf.minimum


# --- the phase table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "event", "num_fold", "notify", "copy_mode"),
    [
        (Phase.PCIE_PEER_HANDSHAKE, 1, None, 4, None),
        (Phase.INTRA_CHIP_HANDSHAKE, 2, None, 4, None),
        (Phase.ALL_RANK_HANDSHAKE, 1, None, 4, None),
        (Phase.INTRA_AXIS_BROADCAST, 3, 2, 0, None),
        (Phase.INTER_AXIS_BROADCAST, 11, 2, 0, None),
        (Phase.INTRA_AXIS_BW_BROADCAST, 3, 2, 0, None),
        (Phase.INTER_AXIS_BW_BROADCAST, 11, 2, 0, None),
        (Phase.INTRA_CHIP_BROADCAST, 7, 2, 0, None),
        (Phase.INTRA_AXIS_CHIPR1W, 8, 4, 0, 4),
        (Phase.INTER_AXIS_DIMR1W, 9, 4, 0, 4),
        (Phase.INTRA_RANK_DIMR1W, 10, 8, 0, 0),
        (Phase.SINGLE_STEP_REDUCE, 10, 8, 0, 0),
        (Phase.DMA_SYNC, 0, None, 0, None),
        (Phase.FIRST_BARRIER, 4, None, 4, None),
        (Phase.LAST_BARRIER, 5, None, 4, None),
    ],
)
def test_every_row_of_the_phase_table(
    phase: Phase, event: int, num_fold: int | None, notify: int, copy_mode: int | None
) -> None:
    """§3: event type, num_fold where the page knows it, notify mode, copy_mode."""
    row = PHASES[phase]
    assert (row.event, row.notify, row.copy_mode) == (event, notify, copy_mode)
    assert num_fold is None or row.num_fold == num_fold


def test_only_phases_that_move_data_take_rings() -> None:
    """Compose §3: a handshake triggers directly."""
    direct = {phase for phase, row in PHASES.items() if not row.fires_dma}
    assert direct == {
        Phase.PCIE_PEER_HANDSHAKE,
        Phase.INTRA_CHIP_HANDSHAKE,
        Phase.ALL_RANK_HANDSHAKE,
        Phase.FIRST_BARRIER,
        Phase.LAST_BARRIER,
    }
    assert PROXY_EVENTS == (2, 3, 0, 0)
    assert PROXY_FOLD == 1


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("latency-opt all-gather", [1, 2, 3, 11, 0]),
        ("bandwidth-opt all-gather", [1, 2, 3, 11, 7, 0]),
        ("reduce-scatter", [2, 8, 9, 10, 0]),
        ("single-step all-reduce", [3, 11, 10, 0]),
        ("latency-opt all-reduce", [2, 8, 9, 10, 3, 11, 0]),
        ("bandwidth-opt all-reduce", [2, 8, 9, 10, 3, 11, 7, 0]),
        ("latency-opt all-to-all", [1, 3, 11, 0]),
        ("one-rank-per-chip all-gather", [1, 3, 11, 0]),
        ("one-rank-per-chip all-reduce", [1, 8, 9, 10, 3, 11, 0]),
    ],
)
def test_every_phase_order(name: str, want: list[int]) -> None:
    """§4: the events of each algorithm, in the order in which they are built."""
    assert [PHASES[phase].event for phase in BUILDERS[name].phases] == want


# --- the menu ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", KEYED)
def test_the_menu_at_lnc_2(ranks: int) -> None:
    """§2: seven builders in order; the single step up to 64 ranks in a rack."""
    slots = menu(ranks)
    assert [slot.subtype.name for slot in slots] == MENU
    refused = [slot.subtype.slot for slot in slots if slot.refused is not None]
    assert refused == ([3] if ranks > 64 else [])
    assert all((slot.builder is None) is (slot.refused is not None) is (not slot.events)
               for slot in slots)  # fmt: skip


@pytest.mark.parametrize("ranks", [16, 64, 128])
def test_the_menu_at_lnc_1(ranks: int) -> None:
    """§1: bandwidth-optimised builders and the all-to-all need LNC 2; the menu goes on behind a refusal."""
    servers, chips = {16: ([0], [0, 1]), 64: ([0], range(8)), 128: ([0], range(16))}[ranks]
    platform = load_platform(GEN1, lnc=1)
    group = box(GEN1, 1, servers, list(chips), range(8))
    slots = initialize_trn3pds98(platform, (group,), Settings())
    refused = {slot.subtype.slot: slot.refused.reason for slot in slots if slot.refused is not None}
    assert set(refused) == {1, 5, 6} | ({3} if ranks > 64 else set())
    assert all("does not support LNC1" in refused[slot] for slot in (1, 5, 6))
    with pytest.raises(UnsupportedError, match="bandwidth-opt all-gather does not support LNC1"):
        slot_of(platform, (group,), Settings(), 1)


def test_the_builders_of_256_ranks_in_a_rack() -> None:
    """§5.2: key 256 is an error for the bandwidth-optimised ones, at LNC 1 because of the LNC; only latency is left."""
    platform = load_platform(GEN1, lnc=1)
    whole_rack = box(GEN1, 1, [0, 1], range(16), range(8))
    slots = initialize_trn3pds98(platform, (whole_rack,), Settings())
    assert [slot.subtype.slot for slot in slots if slot.builder] == [0, 2, 4]
    assert slots[1].refused is not None
    assert "LNC1" in slots[1].refused.reason
    shape = replace(shape_of(platform, whole_rack, Settings()), lnc=2)
    slots = initialize_trn3pds98(platform, (whole_rack,), Settings(), shape=shape)
    assert slots[1].refused is not None
    assert slots[1].refused.reason.startswith("Unsupported rank (256) for building bandwidth-opt all-gather")


def test_one_rank_on_every_chip_replaces_two_pairs_of_builders() -> None:
    """Design §2 (29): slots 0 and 4; 1 and 5 stay empty; the others stay."""
    group = box(GEN2, 2, range(36), range(4), [0])
    slots = initialize_trn3pds98(load_platform(GEN2), (group,), Settings())
    built = [slot.subtype.name for slot in slots if slot.builder]
    assert built == ["one-rank-per-chip all-gather", "reduce-scatter", "one-rank-per-chip all-reduce",
                     "latency-opt all-to-all"]  # fmt: skip
    assert [slot.subtype.slot for slot in slots if slot.refused is not None] == [1, 3, 5]


@pytest.mark.parametrize("ranks", KEYED)
def test_the_menu_is_the_one_that_was_selected_from(ranks: int) -> None:
    """Gates and limits are read from the same table on both sides."""
    name, servers, chips, lanes = KEYED[ranks]
    group = box(name, 2, list(servers), list(chips), list(lanes))
    selected = communicator(load_platform(name), group, Settings(), any_group=True).subtypes
    assert tuple(slot.subtype for slot in menu(ranks)) == selected


def test_other_families_are_refused() -> None:
    """§1: the family check, with its status."""
    with pytest.raises(UnsupportedError, match="unsupported instance family for event-based algorithms") as error:
        initialize_trn3pds98(load_platform("trn2.48xlarge"), (tuple(range(16)),), Settings())
    assert error.value.source is not None


@pytest.mark.parametrize(
    ("slot", "algorithm"),
    [
        (0, Algorithm.LATENCY_OPT_MESH),
        (1, Algorithm.BW_OPT_MESH),
        (3, Algorithm.SINGLE_STEP_MESH),
        (4, Algorithm.LATENCY_OPT_MESH),
        (5, Algorithm.BW_OPT_MESH),
    ],
)
def test_names_for_selection(slot: int, algorithm: Algorithm) -> None:
    """§2: latency variants are 9, bandwidth variants 10, the single step 6."""
    assert menu(16)[slot].subtype.reported is algorithm


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", KEYED)
def test_the_limit_table(ranks: int) -> None:
    """§5.2: literal values; the plain rows are 0, the sizes stand in the twins."""
    slots = menu(ranks)
    assert limits(slots[1], AG) == (0, 0, BANDWIDTH_LIMIT[ranks], 0)
    assert limits(slots[5], AR) == (0, 0, BANDWIDTH_LIMIT[ranks], 4 * MIB)
    assert limits(slots[4], AR) == (0, 0, 4 * MIB, 0)
    assert limits(slots[0], AG) == (0, 0, min(8 * MIB // ranks, 4 * MIB), 0)
    if ranks in STEP_LIMIT:
        assert limits(slots[3], AR) == (0, 0, STEP_LIMIT[ranks], 0)


@pytest.mark.parametrize("ranks", KEYED)
@pytest.mark.parametrize("kind", [AG, AR])
def test_the_first_slot_that_takes_a_size_carries_it(ranks: int, kind: EncOp) -> None:
    """§5.3: slots in order; the plain rows never select."""
    slots = menu(ranks)
    rows = tuple((slot.subtype, row) for slot in slots if (row := slot.subtype.row(kind)))
    table = Table(rows)
    assert table.carrier(Staging.DEVICE, 32) is None
    small, large = table.carrier(Staging.STATIC, 32), table.carrier(Staging.STATIC, BANDWIDTH_LIMIT[ranks])
    assert small is not None
    assert small[0].slot == (0 if kind is AG else 3 if ranks <= 64 else 4)
    above = kind is AG or BANDWIDTH_LIMIT[ranks] > 4 * MIB
    assert large is not None
    assert large[0].slot == ((1 if kind is AG else 5) if above else 4)


# --- planned events ---------------------------------------------------------------------------------------------------

GROUPS = {
    "row": (GEN2, 2, box(GEN2, 2, [3], [0, 1, 3], range(4))),
    "box": (GEN2, 2, box(GEN2, 2, [0, 5], [1, 2], range(4))),
    "two racks": (GEN1, 2, box(GEN1, 2, [0, 2], [3, 9, 12], [1, 2])),
    "column": (GEN2, 2, box(GEN2, 2, [0, 1, 2], [2], range(4))),
    "one lane": (GEN2, 2, box(GEN2, 2, [0, 18], [0, 2], [3])),
    "LNC 1": (GEN2, 1, box(GEN2, 1, [0, 1], [0, 1], range(8))),
}


@pytest.mark.parametrize("where", GROUPS)
@pytest.mark.parametrize("name", BUILDERS)
def test_wait_val_counts_the_notifies_of_plain_loops(where: str, name: str) -> None:
    """Check 3: wait_val is the number of ranks whose notify reaches a rank, itself included if it does."""
    machine, lnc, ascending = GROUPS[where]
    group = tuple(np.random.default_rng(7).permutation(ascending).tolist())
    platform = load_platform(machine, lnc=lnc)
    grid, phases = grid_of(platform, (group,)), BUILDERS[name].phases
    at = [place(platform, rank) for rank in group]
    for phase in phases:
        event = plan_event(grid, phase, phases)
        for i, mine in enumerate(at):
            told = {j for j, other in enumerate(at) if hears(phase, phases, mine, other)}
            by = {j for j, other in enumerate(at) if hears(phase, phases, other, mine)}
            assert set(event.notified[0, i].tolist()) == told
            assert set(event.receives[0, i].tolist()) == by
            assert event.wait_val[0, i] == len(by)


@pytest.mark.parametrize("where", GROUPS)
def test_a_b_and_self_are_the_group(where: str) -> None:
    """§3.1: latency-opt groups partition the group; bandwidth-opt ones reach every rank through a mate."""
    machine, lnc, group = GROUPS[where]
    grid = grid_of(load_platform(machine, lnc=lnc), (group,))
    assert (grid.intra_axis.astype(int) + grid.inter_axis + grid.self_only == 1).all()
    first = (grid.row_lane | (grid.own_lane & grid.inter_axis)).astype(int)
    assert (first @ grid.chip.astype(int) == 1).all()


@pytest.mark.parametrize("where", GROUPS)
@pytest.mark.parametrize("name", ["latency-opt all-gather", "bandwidth-opt all-reduce"])
def test_the_kth_copies_of_all_ranks_go_to_different_peers(where: str, name: str) -> None:
    """§3.1: port spraying, so that concurrent senders start at different peers."""
    machine, lnc, group = GROUPS[where]
    grid, phases = grid_of(load_platform(machine, lnc=lnc), (group,)), BUILDERS[name].phases
    for phase in phases:
        event = plan_event(grid, phase, phases)
        for k in range(event.targets.shape[2]):
            assert phase is Phase.INTRA_CHIP_BROADCAST or len(set(event.targets[0, :, k].tolist())) == len(group)


def test_a_bandwidth_gather_hands_on_to_the_die_first() -> None:
    """§3.1: the d2d leg is the mates of the own die, the rmv leg the others."""
    machine, lnc, group = GROUPS["box"]
    grid = grid_of(load_platform(machine, lnc=lnc), (group,))
    event = plan_event(grid, Phase.INTRA_CHIP_BROADCAST, BUILDERS["bandwidth-opt all-gather"].phases)
    assert event.near == 1
    lanes = np.array(group) % 4
    for position, targets in enumerate(event.targets[0].tolist()):
        dies = [int(lanes[target]) // 2 for target in targets]
        own = int(lanes[position]) // 2
        assert dies == [own, 1 - own, 1 - own]


@pytest.mark.parametrize("where", ["row", "box", "two racks", "LNC 1"])
@pytest.mark.parametrize("phase", [Phase.INTRA_AXIS_BROADCAST, Phase.INTER_AXIS_BROADCAST])
def test_who_hands_on_what(where: str, phase: Phase) -> None:
    """Compose §12.6: the rank of the sender's lane on the target's chip; every such copy is handed on once."""
    machine, lnc, group = GROUPS[where]
    platform = load_platform(machine, lnc=lnc)
    grid, phases = grid_of(platform, (group,)), BUILDERS["latency-opt all-gather"].phases
    event = plan_event(grid, phase, phases, proxies=True)
    at = [place(platform, rank) for rank in group]
    handed: set[tuple[int, int, int]] = set()
    for sender, (row, column, lane) in enumerate(at):
        for k, target in enumerate(event.targets[0, sender].tolist()):
            row2, column2, lane2 = at[target]
            far = (row, column) != (row2, column2) and lane != lane2
            lands = at.index((row2, column2, lane)) if far else target
            assert (event.landing is None and not far) or event.landing[0, sender, k] == lands  # type: ignore[index]
            handed |= {(lands, sender, target)} if far else set()
    found = [] if event.handed is None else event.handed[0].tolist()
    assert {(rank, *pair) for rank, pairs in enumerate(found) for pair in pairs} == handed
    assert sum(map(len, found)) == len(handed)


@pytest.mark.parametrize(("where", "name"), [("row", "latency-opt all-gather"), ("one lane", "reduce-scatter")])
def test_events_without_sources_and_destinations_are_empty(where: str, name: str) -> None:
    """§7.4: nothing is allocated for them, and they keep their slot."""
    machine, lnc, group = GROUPS[where]
    grid = grid_of(load_platform(machine, lnc=lnc), (group,))
    phases = BUILDERS[name].phases
    empty = [phase for phase in phases if not plan_event(grid, phase, phases).valid]
    assert empty == ([Phase.INTER_AXIS_BROADCAST] if where == "row" else [Phase.INTRA_CHIP_HANDSHAKE])


def test_barrier_slots_stand_behind_the_phases() -> None:
    """§4: FIRST_COLL, then LAST_COLL, in every populated subtype; their ids are cached."""
    for slot in menu(8):
        types = [event.type for event in slot.events]
        assert types[slot.first_barrier] is EventType.EVT_FUNCTION_BARRIER_FIRST_COLL
        assert types[slot.last_barrier] is EventType.EVT_FUNCTION_BARRIER_LAST_COLL
        assert (slot.first_barrier, slot.last_barrier) == (len(slot.phases), len(slot.phases) + 1)
        assert types[len(slot.phases) - 1] is EventType.EVT_SYNC
        assert len(set(types)) == len(types)


def test_the_builders_log_their_groups_under_their_own_names() -> None:
    """§3: src, dst and recv lists in that order; the intra-chip broadcast is not called intra axis."""
    lines = menu(8)[1].lines(0, 0)
    assert lines[2] == "Building intra-axis bw-opt broadcast event: src-0 dst-4 recv-4"
    assert lines[4] == "Building intra-chip broadcast event: src-0 dst-1,2,3 recv-1,2,3"
    assert lines[1].startswith("Building intra-chip handshake event: src- dst-")
    assert len(lines) == 6


def test_an_event_whose_views_differ_is_refused() -> None:
    """Design §2 (30): never repaired."""
    event = menu(8)[0].events[2]
    more = np.concatenate([event.notified, event.notified[:, :, :1]], axis=2)
    with pytest.raises(UnsupportedError, match=r"intra-axis broadcast .* notifies rank \d 2 times"):
        check_views(replace(event, notified=more))
    with pytest.raises(UnsupportedError, match="7 notifies reach rank 0 of group 0, and it waits for 8"):
        check_views(replace(event, wait_val=event.wait_val + 1))
    shifted = replace(event, receives=(event.receives + 1) % 8)
    with pytest.raises(UnsupportedError, match="expects it"):
        check_views(shifted)
    assert (count_notifies(event.notified) == 7).all()


@pytest.mark.parametrize("slot", [2, 3])
def test_without_the_double_buffer_all_ranks_meet_first(slot: int) -> None:
    """Compose §12.6, reduce-scatter and single step; also with the handshake enforced, and then both halves stay."""
    plain, single, met = (
        menu(8, settings=settings)[slot]
        for settings in (Settings(), Settings(mesh_double_buffer=False), Settings(mesh_global_handshake=1))
    )
    assert (plain.halves, single.halves, met.halves) == (2, 1, 2)
    assert Phase.ALL_RANK_HANDSHAKE not in plain.phases
    assert single.phases[0] is met.phases[0] is Phase.ALL_RANK_HANDSHAKE


def test_a_subtype_as_a_record() -> None:
    """§7.1: events with their types, counts, flags and limit rows."""
    slot = menu(16)[1]
    found = decode_events(slot.record())
    assert [event.type for event in found] == [1, 2, 3, 11, 7, 0, 4, 5]
    assert found[2] == MeshEvent(EventType.EVT_INTER_GRP_BRDCST, True, 1, 3)
    assert [event.valid for event in found] == [True, True, True, False, True, True, True, True]
    assert menu(128)[3].record() == bytes(3016)


# --- the box ----------------------------------------------------------------------------------------------------------


def test_rows_are_servers_and_columns_chips() -> None:
    """Topology §5: both racks' servers are rows; the order of the members does not matter."""
    group = box(GEN2, 2, [0, 1, 18, 19], [1, 3], range(4))
    shape = BoxShape(4, 2, 4, (0, 0, 1, 1))
    assert boxes(load_platform(GEN2), (group, tuple(reversed(group)))) == {shape: (0, 1)}
    grid = grid_of(load_platform(GEN2), (group, tuple(reversed(group))))
    assert grid.flat[0].tolist() == list(range(32))
    assert grid.flat[1].tolist() == list(range(31, -1, -1))


@pytest.mark.parametrize(
    ("group", "want"),
    [
        ((0, 1, 4, 5, 8, 9, 16, 17), BoxShape(1, 4, 2, (0, 0))),
        ((0, 1, 2, 4), BoxShape(1, 4, 1, (0,))),
        ((0, 16, 32), BoxShape(3, 1, 1, (0,))),
    ],
)
def test_what_fills_no_box_is_one_axis(group: tuple[int, ...], want: BoxShape) -> None:
    """§4: unequal rows make one row of chips; unequal chips one row of ranks."""
    assert list(boxes(load_platform(GEN2), (group,))) == [want]


def test_groups_of_a_machine_are_split_by_shape() -> None:
    """Two boxes of eight ranks, along a row and along a column."""
    row, column = box(GEN2, 2, [0], [0, 1], range(4)), box(GEN2, 2, [1, 2], [0], range(4))
    shapes = boxes(load_platform(GEN2), (row, column, tuple(rank + 8 for rank in row)))
    assert list(shapes.values()) == [(0, 2), (1,)]


def test_events_are_read_only() -> None:
    """A plan is a value."""
    event: Event = menu(8)[2].events[1]
    assert event.phase is Phase.INTRA_AXIS_CHIPR1W
    with pytest.raises(ValueError, match="read-only"):
        event.wait_val[0, 0] = 1
    assert BUILDERS["reduce-scatter"].kinds == (RS,)
    assert event.row.event is EventType.EVT_REDUCE_COPY
    assert KIB < MIB
