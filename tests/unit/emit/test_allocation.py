"""What a stream processor hands out: semaphore ids lowest first, channel records, slots; and when there is no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from by_hand import schedule_of
from test_activities import composed
from tests.grid import AG, AR, RS
from tests.images import Ring
from tests.schedules import Row

from rota.emit.activities import activities
from rota.emit.allocation import LAST_ID, Allocator, Shape, presets
from rota.emit.network import with_proxies
from rota.errors import UnsupportedError
from rota.isa.barrier_records import FIRST_SEMAPHORE, SEMAPHORES_PER_CONTEXT
from rota.isa.config import CHANNELS
from rota.isa.enums import Algorithm
from rota.isa.semaphores import FIRST_FREE, Reserved
from rota.schedule.ir import Schedule

SPS = 4
KINDS = {Algorithm.RING: (AR, AG, RS), Algorithm.KANGARING: (AR, AG, RS), Algorithm.MESH: (AR, AG, RS)}


def give(allocator: Allocator, schedule: Schedule, algorithm: Algorithm | None = None) -> Shape:
    return allocator.shape(schedule, activities(schedule, algorithm))


def lists(queues: int, semaphores: int) -> Schedule:
    """Return rows of one rank: each queue waits on so many semaphores of its own."""
    names = [f"q{queue}.s{i}" for queue in range(queues) for i in range(semaphores)]
    rows = [
        Row(0, queue, signals=[(0, queue * semaphores + i, 1) for i in range(semaphores)]) for queue in range(queues)
    ]
    rows += [
        Row(0, queue, waits=[(queue * semaphores + i, 1, 1) for i in range(semaphores)]) for queue in range(queues)
    ]
    return schedule_of(rows, names, ranks=1)


def ids(shape: Shape) -> dict[int, list[int]]:
    """Return all ids that a shape has been given, by processor; each once."""
    found = set(zip(shape.sp[shape.identity >= 0].tolist(), shape.identity[shape.identity >= 0].tolist(), strict=True))
    for activity, own in zip(shape.parts.table, shape.own.tolist(), strict=True):
        found |= {(SPS - 1 - activity.queue % SPS, identity) for identity in own if identity >= 0}
    return {sp: sorted(identity for at, identity in found if at == sp) for sp in sorted({at for at, _ in found})}


# --- semaphores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "kind"), [(name, kind) for name, kinds in KINDS.items() for kind in kinds])
def test_ids_are_taken_lowest_first(algorithm: Algorithm, kind: Any) -> None:
    """From 8 on, without a gap, each once; the next schedule goes on where this one ended. Device §8.3."""
    allocator = Allocator(SPS)
    first = ids(give(allocator, composed(algorithm, kind), algorithm))
    for sp, mine in first.items():
        assert mine == list(range(FIRST_FREE, allocator.next_id[sp]))
    ends = list(allocator.next_id)
    second = ids(give(allocator, composed(algorithm, kind), algorithm))
    for sp, mine in second.items():
        assert mine == list(range(ends[sp], allocator.next_id[sp]))


def test_a_ring_channel_has_data_credit_post_and_completion() -> None:
    """Four ids in this order; a KangaRing has a fifth for all it hears of its peers. Device-model §4."""
    ring = give(Allocator(SPS), composed(Algorithm.RING), Algorithm.RING)
    assert ring.own.tolist() == [[8, 9, 10, 11, -1], [8, 9, 10, 11, -1]]
    assert ring.identity.tolist() == [{"recv": 8, "credit": 9}[name] for name in roles(composed(Algorithm.RING))]
    kangaring = give(Allocator(SPS), composed(Algorithm.KANGARING), Algorithm.KANGARING)
    assert kangaring.own.tolist() == [[8, 9, 10, 11, 12], [8, 9, 10, 11, 12]]
    want = {"recv": 8, "credit": 9, "ready": 12, "done": 12}
    waited = np.unique(composed(Algorithm.KANGARING).waits.semaphore).tolist()
    for number in waited:
        assert kangaring.identity[number] == want[roles(composed(Algorithm.KANGARING))[number]]


def roles(schedule: Schedule) -> list[str]:
    return [semaphore.name.split(".")[0] for semaphore in schedule.semaphores]


def test_an_event_list_has_its_semaphores_and_a_completion() -> None:
    """Those that it waits on, in the order of the schedule, and one more. Device-model §4."""
    shape = give(Allocator(SPS), lists(2, 3))
    assert shape.identity.tolist() == [8, 9, 10, 8, 9, 10]
    assert shape.sp.tolist() == [3, 3, 3, 2, 2, 2]
    assert shape.own.tolist() == [[-1, -1, -1, 11, -1], [-1, -1, -1, 11, -1]]


def test_a_semaphore_that_nobody_waits_on_has_no_id() -> None:
    rows = [Row(0, 0, signals=[(0, 1, 1)]), Row(0, 0, waits=[(1, 1, 1)])]
    shape = give(Allocator(SPS), schedule_of(rows, ("unused", "used"), ranks=1))
    assert shape.identity.tolist() == [-1, 8]


def test_what_only_a_proxy_waits_on_is_on_the_processor_of_its_queue() -> None:
    """The id stands with those of the queue whose hops the proxy carries. Device §13, convention."""
    schedule = with_proxies(composed(Algorithm.RING), np.arange(16) // 8)
    shape = give(Allocator(SPS), schedule, Algorithm.RING)
    net = [i for i, semaphore in enumerate(schedule.semaphores) if semaphore.name.startswith("net.")]
    assert [(int(shape.sp[i]), int(shape.identity[i])) for i in net] == [(3, 12), (2, 12)]


def test_ids_of_barriers_are_not_handed_out() -> None:
    """The two contexts of barriers have the ids up to 253; what is left for collectives ends below. Barrier §8.2."""
    barrier = range(FIRST_SEMAPHORE - SEMAPHORES_PER_CONTEXT, FIRST_SEMAPHORE + SEMAPHORES_PER_CONTEXT)
    assert barrier[-1] == Reserved.COMPLETE_PREV - 1
    assert barrier[0] == LAST_ID + 1
    room = LAST_ID - FIRST_FREE + 1
    shape = give(Allocator(SPS), lists(1, room - 1))
    assert ids(shape) == {3: list(range(FIRST_FREE, LAST_ID + 1))}
    with pytest.raises(
        UnsupportedError, match=rf"TOP_SP 3: {room + 1} semaphores wanted, and {room} are left"
    ) as caught:
        give(Allocator(SPS), lists(1, room))
    assert caught.value.source is not None


def test_too_many_communicators() -> None:
    """Every shape of collective takes its own; when a processor has no more, the program is refused. Device §8.3."""
    allocator = Allocator(SPS)
    each = lists(1, 9)
    room = (LAST_ID - FIRST_FREE + 1) // 10
    for _ in range(room):
        give(allocator, each)
    with pytest.raises(UnsupportedError, match=r"10 semaphores wanted, and . are left; too many communicators"):
        give(allocator, each)


def test_presets_are_in_what_a_semaphore_counts() -> None:
    """A credit counts folds, an event 16 for each signal. Device-model §4, initial credits."""
    ring = Ring(groups=((0, 1, 2),), orders=((0, 1, 2),), slots=5)
    shape = give(Allocator(SPS), ring.schedule, Algorithm.RING)
    for folds in (1, 3):
        assert presets(ring.schedule, shape, folds=folds).tolist() == [0, 5 * folds]
    rows = [Row(0, 0, waits=[(0, 2, 2)], signals=[(0, 0, 2)])]
    event = schedule_of(rows, (("slots", 2),), ranks=1)
    shape = give(Allocator(SPS), event)
    assert shape.carries
    assert presets(event, shape, folds=4).tolist() == [32]


# --- channels, slots, processors --------------------------------------------------------------------------------------


def rings(channels: int) -> Schedule:
    return Ring(groups=((0, 1),), orders=((0, 1),) * channels, count=64).schedule


def test_a_channel_has_the_record_of_its_queue_while_that_is_free() -> None:
    """The next shape takes the lowest free ones."""
    allocator = Allocator(SPS)
    assert give(allocator, rings(3)).channel.tolist() == [0, 1, 2]
    assert give(allocator, rings(5)).channel.tolist() == [3, 4, 5, 6, 7]
    assert allocator.channels == set(range(8))
    assert give(allocator, lists(2, 1)).channel.tolist() == [-1, -1]


def test_a_rank_has_32_channel_records() -> None:
    """The table of a device configuration. Device §4."""
    allocator = Allocator(SPS)
    for _ in range(CHANNELS // 4):
        give(allocator, rings(4))
    assert allocator.channels == set(range(CHANNELS))
    with pytest.raises(UnsupportedError, match="more than 32 ring channels on a rank"):
        give(allocator, rings(1))


@pytest.mark.parametrize("sps", [2, 3, 4])
def test_a_processor_has_six_slots(sps: int) -> None:
    """The k-th channel of a processor runs slot k. Device-model §4, slot number."""
    give(Allocator(sps), rings(6 * sps))
    with pytest.raises(
        UnsupportedError, match=rf"channel {6 * sps}: {sps} stream processors with 6 slots each"
    ) as caught:
        give(Allocator(sps), rings(6 * sps + 1))
    assert caught.value.source is not None


def test_one_event_list_a_processor_and_entry() -> None:
    """Lists take slot 0 and run alone; as many queues as processors are fine, and legs one after another."""
    give(Allocator(SPS), lists(4, 1))
    with pytest.raises(UnsupportedError, match="TOP_SP 3: 2 queues of one operation at once, and an event list runs"):
        give(Allocator(SPS), lists(5, 1))
    legs = [Row(0, 0, leg=leg, signals=[(0, leg, 1)]) for leg in range(2)]
    ends = [Row(0, 0, leg=leg, waits=[(leg, 1, 1)]) for leg in range(2)]
    rows = [legs[0], ends[0], legs[1], ends[1]]
    shape = give(Allocator(SPS), schedule_of(rows, ("a.s", "b.s"), ranks=1))
    assert shape.own[:, 3].tolist() == [9, 11]
    assert shape.identity.tolist() == [8, 10]


def test_a_ring_beside_a_list_on_one_processor_is_refused() -> None:
    """One entry is a ring or a mesh."""
    rows = [Row(0, 0, step=0, signals=[(0, 0, 1)]), Row(0, 0, step=1, waits=[(0, 1, 1)])]
    other = [Row(0, 4, signals=[(0, 1, 1)]), Row(0, 4, waits=[(1, 1, 1)])]
    with pytest.raises(UnsupportedError, match="TOP_SP 3: 2 queues of one operation at once"):
        give(Allocator(SPS), schedule_of([*rows, *other], ("recv.0", "x.event"), ranks=1))
    apart = [replace(row, queue=1) for row in other]
    shape = give(Allocator(SPS), schedule_of([*rows, *apart], ("recv.0", "x.event"), ranks=1))
    assert [each.ring for each in shape.parts.table] == [True, False]
