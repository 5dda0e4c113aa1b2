"""Images of several collectives: chains of control entries, marks, presets, feed words, what ranks and runs share.

Section numbers are those of device-model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from by_hand import schedule_of
from rows import Rows
from test_activities import TWO, composed
from tests.images import PLATFORMS, TRN2, Ring, section, table
from tests.schedules import INPUT, OUTPUT, Row

from rota.compose.ring import compose_ring
from rota.emit.collective import Collective
from rota.emit.program import Declared, Program, emit_program
from rota.errors import UnsupportedError
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.descriptors import DESCRIPTOR
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp, Pattern
from rota.isa.image import BUFFER, META, PRESET, BufferUse, Section
from rota.isa.spad import CONTINUE, SLOT, Control, is_end, pack_control, unpack_control
from rota.machine.platform import Platform, load_platform
from rota.schedule.ir import Schedule

Group = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Together:
    """Collectives one after another: (schedule, members that take part, shape); those of one shape are its turns.

    They share all but their user buffers.
    """

    parts: Sequence[tuple[Schedule, Group, int]]
    members: int = 2
    folds: int = 2
    platform: Platform = PLATFORMS[TRN2]
    ranks: Sequence[int] = ()
    algorithm: Algorithm | None = None

    @cached_property
    def program(self) -> Program:
        declared: list[Declared] = []
        seen: dict[int, list[int]] = {}
        turns: dict[int, int] = {}
        collectives = []
        for number, (schedule, group, shape) in enumerate(self.parts):
            numbers = []
            for i, buffer in enumerate(schedule.buffers):
                if shape in seen and not buffer.user:
                    numbers.append(seen[shape][i])
                    continue
                use = BufferUse.INTERNAL | (BufferUse.INPUT if i == schedule.input else 0)
                use |= BufferUse.OUTPUT if i == schedule.output else 0
                numbers.append(len(declared))
                declared.append(Declared(replace(buffer, name=f"c{number}.{buffer.name}"), BufferUse(use)))
            seen.setdefault(shape, numbers)
            turns[shape] = turns.get(shape, -1) + 1
            collectives.append(
                Collective(
                    schedule=schedule, dtype=Dtype.BFLOAT16, algorithm=self.algorithm, scales=(),
                    member=np.array(group), buffers=np.array(numbers), groups=[list(group)], shape=shape,
                    turn=turns[shape],
                )
            )  # fmt: skip
        ranks = np.array(self.ranks or range(self.members))
        return emit_program(collectives, ranks, declared, self.platform, folds=self.folds)

    def control(self, member: int, sp: int) -> list[Control]:
        raw = section(self.program.images[member], Section.CTRL, sp)
        return [unpack_control(raw, offset=at) for at in range(0, len(raw), 8)]

    def meta(self, member: int = 0) -> dict[str, Any]:
        return META.decode(section(self.program.images[member], Section.META))

    def block(self, member: int, sp: int) -> dict[str, Any]:
        at = CONFIGURATIONS[self.platform.arch].part("program").at
        return PROGRAM_BLOCK.decode(section(self.program.images[member], Section.CONF, sp), at)

    def slot(self, member: int, index: int) -> list[int]:
        return np.frombuffer(section(self.program.images[member], Section.SLOT, index), "<u8").tolist()


def ring(channels: int = 1, ranks: int = 2, count: int = 64) -> Schedule:
    order = list(range(ranks))
    return compose_ring([order] * channels, kind=EncOp.ALLREDUCE, size=2 * count, op=CceType.ADD, slots=4, halves=1)


def mesh(queue: int = 0, ranks: int = 2) -> Schedule:
    """Each rank copies its input to the next one's output and tells it."""
    rows = [
        Row(r, queue, size=64, sources=[(r, INPUT, 0)], targets=[((r + 1) % ranks, OUTPUT, 0)],
            signals=[((r + 1) % ranks, 0, 1)])
        for r in range(ranks)
    ]  # fmt: skip
    return schedule_of([*rows, *(Row(r, queue, waits=[(0, 1, 1)]) for r in range(ranks))], ("event",), ranks=ranks)


BOTH = (0, 1)


# --- chains -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "chained"),
    [
        ([(mesh(), BOTH, 0), (mesh(), BOTH, 0), (mesh(), BOTH, 0)], [True, True, False]),
        ([(ring(), BOTH, 0), (mesh(), BOTH, 1)], [True, False]),  # both on the highest processor
        ([(ring(2), BOTH, 0), (ring(2), BOTH, 0)], [False, False]),  # each on two processors
        ([(ring(2), BOTH, 0), (mesh(), BOTH, 1), (mesh(), BOTH, 1)], [False, True, False]),
        ([(mesh(0), BOTH, 0), (mesh(1), BOTH, 1)], [False, False]),  # on two processors, nothing orders them
        ([(mesh(0), BOTH, 0), (mesh(4), BOTH, 1)], [True, False]),  # queue 4 is on the processor of queue 0
    ],
)
def test_successive_collectives_of_one_processor_are_a_chain(parts: Any, chained: list[bool]) -> None:
    """A chain orders entries within a stream processor only. On every processor the same entries go on. §5.4."""
    made = Together(parts=parts)
    for member in BOTH:
        for sp in range(4):
            assert [entry.trigger_next for entry in made.control(member, sp)] == chained
            assert made.block(member, sp)["op_num"] == len(chained)
        assert made.meta(member)["operations"] == len(chained)
        assert made.meta(member)["chains"] == chained.count(False)
    assert made.program.resources.chains == chained.count(False)


def test_a_collective_that_leaves_ranks_out_is_a_chain_of_its_own() -> None:
    """A rank outside would run ahead of it otherwise. §5.4."""
    made = Together(parts=[(mesh(), (0, 1), 0), (mesh(), (0, 1), 0), (mesh(ranks=3), (0, 1, 2), 1)], members=3)
    for member in range(3):
        assert [entry.trigger_next for entry in made.control(member, 3)] == [False, False, False]


@pytest.mark.parametrize("legs", [(Algorithm.RING, Algorithm.RING), (Algorithm.MESH, Algorithm.INTER_RDH)])
def test_the_legs_of_a_collective_are_a_chain(legs: tuple[Algorithm, Algorithm]) -> None:
    """Three entries of a hierarchical all-reduce are started once. §5.4."""
    schedule = composed(Algorithm.HIER, EncOp.ALLREDUCE, TWO, legs)
    made = Together(parts=[(schedule, range(16), 0)], members=16, algorithm=Algorithm.HIER)  # all on one node
    for sp in range(4):
        assert [entry.trigger_next for entry in made.control(0, sp)] == [True, True, False]
    assert (made.meta()["operations"], made.meta()["chains"]) == (3, 1)


# --- control entries --------------------------------------------------------------------------------------------------


def test_a_processor_without_a_part_has_an_inactive_entry_in_the_chain() -> None:
    """All zero but for trigger_next, so that all processors advance together. §4, NOP."""
    made = Together(parts=[(mesh(), BOTH, 0), (mesh(), BOTH, 0)])
    for sp in range(3):
        raw = section(made.program.images[0], Section.CTRL, sp)
        assert raw == pack_control(Control(pattern=Pattern.INVALID, trigger_next=True)) + bytes(8)
        assert not [i for kind, i in table(made.program.images[0]) if kind is Section.SLOT and i // 8 == sp]


def test_a_member_outside_of_a_group_has_inactive_entries() -> None:
    """It loads nothing for it, and reports nothing."""
    made = Together(parts=[(mesh(), (0, 1), 0), (mesh(), (1, 2), 1)], members=3)
    active = [[entry.pattern is Pattern.MESH for entry in made.control(member, 3)] for member in range(3)]
    assert active == [[True, False], [True, True], [False, True]]
    assert [made.block(member, 3)["leader"] for member in range(3)] == [1, 1, 1]
    assert len(made.slot(0, 24)) == 1 + 2
    assert len(made.slot(1, 24)) == 2 * (1 + 2)


def test_a_member_that_only_takes_part_in_a_leg_reports_the_last_entry() -> None:
    """What ends a chain posts, so it has an empty event list there. §5.4."""
    first = [replace(row, leg=0) for row in rows_of(2)]
    second = [replace(row, leg=1, waits=[(1, 1, 1)] if row.waits else []) for row in rows_of(2)]
    second = [replace(row, signals=[(r, 1, 1) for r, _, _ in row.signals]) for row in second if row.rank == 0]
    second = [replace(row, signals=[(0, 1, 1)] if row.signals else []) for row in second]
    made = Together(parts=[(schedule_of([*first, *second], ("a.s", "b.s")), BOTH, 0)])
    entries = made.control(1, 3)
    assert [entry.pattern for entry in entries] == [Pattern.MESH, Pattern.MESH]
    assert [entry.reporter for entry in entries] == [True, True]
    events = CONFIGURATIONS["cayman"].part("mesh")
    at = events.at + entries[1].first_event * 80
    assert section(made.program.images[1], Section.CONF, 3)[at : at + 80] == bytes(80)


def rows_of(ranks: int) -> list[Row]:
    rows = [Row(r, 0, signals=[((r + 1) % ranks, 0, 1)]) for r in range(ranks)]
    return rows + [Row(r, 0, waits=[(0, 1, 1)]) for r in range(ranks)]


def test_parities_alternate_with_the_runs_of_a_shape() -> None:
    """Even runs count from bit 4, odd ones from bit 20; the list of records is the same, and stands once. §5.5."""
    made = Together(parts=[(mesh(), BOTH, shape) for shape in (0, 0, 1, 0)])
    entries = made.control(0, 3)
    assert [entry.sema_shift_offset for entry in entries] == [4, 20, 4, 4]
    assert [entry.sema_mask for entry in entries] == [0x0FFF, 0x07FF, 0x0FFF, 0x0FFF]
    assert [entry.first_event for entry in entries] == [0, 0, 3, 0]


def test_runs_of_a_shape_share_channels_and_semaphores() -> None:
    """Twenty runs of one ring have the records, ids and presets of one."""
    one, many = (Together(parts=[(ring(2), BOTH, 0)] * count) for count in (1, 20))
    for sp in (2, 3):
        confs = [section(made.program.images[0], Section.CONF, sp)[: 32 * RING_CHANNEL.size] for made in (one, many)]
        assert confs[0] == confs[1]
    assert section(one.program.images[0], Section.SEMA) == section(many.program.images[0], Section.SEMA)
    assert (many.program.resources.channels, many.program.resources.semaphores) == (2, 4)
    other = Together(parts=[(ring(2), BOTH, 0), (ring(2), BOTH, 1)])
    assert (other.program.resources.channels, other.program.resources.semaphores) == (4, 8)
    presets = np.frombuffer(section(other.program.images[0], Section.SEMA), PRESET.dtype).tolist()
    assert presets == [(2, 9, 8), (2, 13, 8), (3, 9, 8), (3, 13, 8)]


def test_the_control_table_takes_512_entries() -> None:
    """0x1000 bytes of SPAD. Device §2.3."""
    rows = [[Row(0, 0, leg=i, signals=[(0, i, 1)]), Row(0, 0, leg=i, waits=[(i, 1, 1)])] for i in range(32)]
    legs = schedule_of([row for leg in rows for row in leg], [f"leg{i}.s" for i in range(32)], ranks=1)
    parts = [(legs, [0], 0)] * 16
    assert len(Together(parts=parts, members=1).control(0, 3)) == 512
    one = schedule_of(rows[0], ("event",), ranks=1)
    with pytest.raises(UnsupportedError, match="control block overflow: 513 entries, the region takes 512"):
        _ = Together(parts=[*parts, (one, [0], 1)], members=1).program


# --- slot programs ----------------------------------------------------------------------------------------------------


def test_a_slot_program_has_a_mark_for_each_entry_that_uses_it() -> None:
    """CONTINUE and the next control entry with reporter cleared inside a chain; END and its address at the end. §4."""
    made = Together(parts=[(mesh(), BOTH, 0)] * 3)
    words = made.slot(0, 24)
    control = made.control(0, 3)
    one = np.array([(2, 2, 1, 0)], SLOT.dtype)  # data, event and completion make three, and no more is started
    one["m2s_val"], one["s2m_val"], one["flags"] = 3, 3, 1
    entry = int(one.view("<u8")[0])
    following = [int.from_bytes(pack_control(replace(each, reporter=False)), "little") for each in control[1:]]
    assert words[:6] == [entry, CONTINUE, following[0], entry, CONTINUE, following[1]]
    assert words[6] == entry
    assert is_end(words[7])
    assert words[8] == 0x83_4000_0000 + 0x1800 + 4
    assert len(words) == 9


def test_an_end_between_chains() -> None:
    """Rings of two processors: each run ends in its own mark, on both."""
    made = Together(parts=[(ring(2), BOTH, 0)] * 3)
    for index in (16, 24):
        words = made.slot(1, index)
        ends = [i for i, word in enumerate(words) if is_end(word)]
        assert len(ends) == 3
        assert {words[i + 1] for i in ends} == {0x84_4000_0000 + 0x1800 + 4}, "the reporter is the highest processor"
        assert CONTINUE not in words
        assert len(words) % 3 == 0
        third = len(words) // 3
        assert words[:third] == words[third : 2 * third] == words[2 * third :]


def test_a_processor_that_took_part_in_a_chain_is_there_at_its_end() -> None:
    """Queue 1 has one leg and queue 0 three: an inactive entry follows the mark, and at the end an empty list. §5.4.

    What ends the chain is posted by the highest processor when the lower ones have passed their completion on.
    """
    rows = [Row(0, q, leg=leg, signals=[(0, s, 1)]) for leg, q, s in ((0, 0, 0), (0, 1, 1), (1, 0, 2), (2, 0, 3))]
    order = [each for row in rows for each in (row, replace(row, signals=[], waits=[(row.signals[0][1], 1, 1)]))]
    made = Together(parts=[(schedule_of(order, ("a.s", "b.s", "c.s", "d.s"), ranks=1), [0], 0)], members=1)
    assert [entry.pattern for entry in made.control(0, 3)] == [Pattern.MESH] * 3
    entries = made.control(0, 2)
    assert [entry.pattern for entry in entries] == [Pattern.MESH, Pattern.INVALID, Pattern.MESH]
    flags = [(entry.ring_wait_complete, entry.ring_send_complete, entry.reporter) for entry in entries]
    assert flags[2] == (False, True, False)
    assert flags[0] == (False, False, False), "inside a chain nobody waits"
    last = made.control(0, 3)[2]
    assert (last.ring_wait_complete, last.ring_send_complete, last.reporter) == (True, False, True)
    inactive = int.from_bytes(pack_control(Control(pattern=Pattern.INVALID, trigger_next=True)), "little")
    words = made.slot(0, 16)
    assert words[:2] == [CONTINUE, inactive]
    assert is_end(words[2])
    assert len(words) == 4


# --- presets, feed words, rings ---------------------------------------------------------------------------------------


def test_presets_are_those_of_members_that_wait() -> None:
    """Credits of a ring of ranks 0 and 2 are no matter of rank 1."""
    made = Together(parts=[(ring(), (0, 2), 0)], members=3)
    found = [(Section.SEMA, 0) in table(image) for image in made.program.images]
    assert found == [True, False, True]


def test_feed_words_are_those_of_all_collectives() -> None:
    """A ring's signal adds 1 a fold; a mesh's half of 16, in the next run half of 1 << 20. Each word once. §2."""
    parts = [(ring(), BOTH, 0), (mesh(), BOTH, 1), (mesh(), BOTH, 1), (mesh(), BOTH, 1), (ring(), BOTH, 0)]
    made = Together(parts=parts)
    for image in made.program.images:
        assert np.frombuffer(section(image, Section.MEM, 0x80), "<u4").tolist() == [1, 8, 1 << 19]


@pytest.mark.parametrize("collectives", [8, 9])
def test_a_program_has_at_most_16_feed_words(collectives: int) -> None:
    """Counted over all of its collectives. §2."""
    parts = []
    for i in range(collectives):
        rows = [Row(0, 0, signals=[(0, 0, 3 + i)]), Row(0, 0, waits=[(0, 3 + i, 3 + i)])]
        parts.append((schedule_of(rows, ("event",), ranks=1), [0], i))
        parts.append((schedule_of(rows, ("event",), ranks=1), [0], i))
    if collectives * 2 > 14:
        with pytest.raises(UnsupportedError, match=r"different signal values: the feed area holds 16"):
            _ = Together(parts=parts, members=1).program
        return
    assert Together(parts=parts, members=1).program


def test_a_queue_goes_on_where_the_collective_before_it_ended() -> None:
    """Descriptor i of a section has phase (1 + i div 4096) & 3, whichever collective it is of. §3, RING_ID."""
    long = Rows(sizes=(2000 << 16,)).schedule
    made = Together(parts=[(long, [0], 0)] * 11, members=1, folds=1)
    for kind in (Section.TX, Section.RX):
        ring = np.frombuffer(section(made.program.images[0], kind, 0), DESCRIPTOR)
        assert ring.size == 11 * 2001 > 5 * 4096
        assert (ring["len_ctrl"] >> 24 & 3).tolist() == [(1 + i // 4096) & 3 for i in range(ring.size)]


def test_descriptors_of_a_queue_stand_in_program_order() -> None:
    """A ring and a mesh that use the same queue and engines."""
    first, second = Together(parts=[(ring(), BOTH, 0)]), Together(parts=[(mesh(), BOTH, 0)])
    both = Together(parts=[(ring(), BOTH, 0), (mesh(), BOTH, 1)])
    for kind in (Section.TX, Section.RX):
        counts = [len(section(made.program.images[0], kind, 16)) for made in (first, second, both)]
        assert counts[2] == counts[0] + counts[1]
        lengths = [
            np.frombuffer(section(made.program.images[0], kind, 16), DESCRIPTOR)["len_ctrl"] for made in (first, both)
        ]
        assert lengths[1][: lengths[0].size].tolist() == lengths[0].tolist()


def test_bundles_are_those_of_channels_and_then_of_events() -> None:
    """The first eight pairs of queue and engines. Device §3."""
    made = Together(parts=[(mesh(4), BOTH, 0), (ring(), BOTH, 1), (mesh(0), BOTH, 2)])
    pairs = [made.block(0, 3)[f"dma_alloc_bitmap[{i}]"] for i in range(16)]
    assert pairs == [0, 3, 4, 3] + [0] * 12


# --- folds, buffers, what it takes ------------------------------------------------------------------------------------


def test_a_ring_between_nodes_of_a_pod_has_one_fold() -> None:
    """Its events and its rings inside a node have as many as are asked for. Device §4."""
    pod = load_platform("trn2u.48xlarge", nodes=2)
    far, near = (0, 64), (0, 1)
    for ranks, folds in ((far, 1), (near, 2)):
        made = Together(parts=[(ring(), BOTH, 0)], platform=pod, ranks=ranks)
        channel = RING_CHANNEL.decode(section(made.program.images[0], Section.CONF, 3), 0)
        assert (channel["fold_n"], channel["next_fold_n"], channel["prev_fold_n"]) == (folds, folds, folds)
        assert channel["next_type"] == (2 if ranks is far else 0)
        assert made.meta()["folds"] == folds
    mixed = Together(parts=[(ring(), BOTH, 0), (mesh(), BOTH, 1)], platform=pod, ranks=far)
    assert mixed.meta()["folds"] == 2
    assert [made.meta(member)["chip"] for made in (mixed,) for member in BOTH] == [0, 16]


def test_a_collective_without_rows_takes_nothing() -> None:
    """An in-place all-reduce of one rank; the program goes on without it."""
    empty = compose_ring([[0]], kind=EncOp.ALLREDUCE, size=64, op=CceType.ADD, in_place=True)
    assert not len(empty)
    made = Together(parts=[(empty, [0], 0), (mesh(), BOTH, 1), (empty, [1], 2)])
    alone = Together(parts=[(mesh(), BOTH, 1)])
    for member in BOTH:
        images = [each.program.images[member] for each in (made, alone)]
        assert sorted(table(images[0])) == sorted(table(images[1]))
        for kind, index in table(images[0]):
            if kind in (Section.CTRL, Section.SLOT, Section.MEM):
                assert section(images[0], kind, index) == section(images[1], kind, index)
    assert (made.program.resources.collectives, made.program.resources.entries) == (3, 1)


def test_a_name_that_is_too_long_ends_in_a_number() -> None:
    """The field has 32 bytes; two long names that begin alike stay two."""
    long = [f"inter_redsct.0.shape0.row_sums.{i}" for i in range(2)]
    one = mesh()
    buffers = [*one.buffers, *(replace(one.buffers[2], name=name) for name in long)]
    made = Together(parts=[(replace(one, buffers=tuple(buffers)), BOTH, 0)])
    raw = section(made.program.images[0], Section.BUFFERS)
    names = [BUFFER.decode(raw, at)["name"].to_bytes(32, "little").rstrip(b"\0") for at in range(0, len(raw), 64)]
    assert names[:3] == [b"c0.input", b"c0.output", b"c0.scratch.0"]
    assert names[3:] == [b"c0.inter_redsct.0.shape0.row_s~3", b"c0.inter_redsct.0.shape0.row_s~4"]
    assert all(len(name) == 32 for name in names[3:])


def test_resources_are_what_the_images_hold() -> None:
    """Descriptors and rings of all ranks; channels, semaphores, records and bytes of one. Entries and chains."""
    made = Together(parts=[(ring(2), BOTH, 0), (mesh(), BOTH, 1), (mesh(), BOTH, 1), (ring(2), BOTH, 0)])
    found = made.program.resources
    sections = [(image, kind, index) for image in made.program.images for kind, index in table(image)]
    rings = [(image, kind, index) for image, kind, index in sections if kind in (Section.TX, Section.RX)]
    assert found.rings == len(rings)
    assert found.descriptors == sum(len(section(*each)) // 16 for each in rings)
    assert (found.collectives, found.entries, found.chains) == (4, 4, 3)
    assert (found.channels, found.communicators) == (2, 1)
    assert found.semaphores == 4 + 2  # a channel's, an event's and its completion
    assert found.events == 3
    assert found.memory == made.meta()["memory_size"]


def test_processors_that_complete_in_two_orders_are_refused() -> None:
    """A processor has one address to pass its completion on to: that of the next higher one that takes part. §5.4."""

    def on(*queues: int) -> Schedule:
        rows = [Row(0, q, signals=[(0, i, 1)]) for i, q in enumerate(queues)]
        rows += [Row(0, q, waits=[(i, 1, 1)]) for i, q in enumerate(queues)]
        return schedule_of(rows, [f"s{q}" for q in queues], ranks=1)

    made = Together(parts=[(on(0, 1, 2), [0], 0), (on(0, 1), [0], 1)], members=1)
    assert [made.block(0, sp)["complete"] for sp in range(4)] == [
        0,
        0x83_0000_0000 + 0x1800 + 4 * 254,
        0x83_4000_0000 + 0x1800 + 4 * 254,
        0,
    ]
    with pytest.raises(UnsupportedError, match="TOP_SP 1: passes its completion on to two processors"):
        _ = Together(parts=[(on(0, 1, 2), [0], 0), (on(0, 2), [0], 1)], members=1).program


def test_equal_programs_give_equal_bytes() -> None:
    parts = [(ring(2), BOTH, 0), (mesh(), BOTH, 1), (Ring(groups=((0, 1),), orders=((0, 1),)).schedule, BOTH, 2)]
    assert Together(parts=parts).program == Together(parts=parts).program
