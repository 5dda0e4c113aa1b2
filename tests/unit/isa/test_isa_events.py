"""The event types, against the table and the sentences of compose §1.2."""

from __future__ import annotations

import pytest

from rota.isa.events import EVENT_BANDS, MAX_EVENTS, EventBand, EventType

ANCHORS = {
    "EVT_SYNC": 0,
    "EVT_GLOBAL_HNDSHK": 1,
    "EVT_LOCAL_HNDSHK": 2,
    "EVT_INTER_GRP_BRDCST": 3,
    "EVT_FUNCTION_BARRIER_FIRST_COLL": 4,
    "EVT_FUNCTION_BARRIER_LAST_COLL": 5,
    "EVT_REDUCE_LOCAL_HNDSHK": 6,
    "EVT_INTRA_GRP_BRDCST": 7,
    "EVT_REDUCE_COPY": 8,
    "EVT_REDUCE_COPY_2": 9,
    "EVT_REDUCE_WRITE": 10,
    "EVT_INTER_GRP_BRDCST_2": 11,
    "EVT_LOCAL_AND_POD_GRP_BRDCST": 12,
    "EVT_LOCAL_AND_POD_GRP_BRDCST_2": 13,
    "EVT_2DEV_BRDCST": 20,
    "EVT_2DEV_HNDSHK": 21,
    "EVT_COPY_FROM_HOST": 22,
    "EVT_RH_STEP_0": 23,
    "EVT_RDH_LOCAL_PEER_HANDSHAKE": 52,
}


@pytest.mark.parametrize(("name", "number"), ANCHORS.items())
def test_events_the_runtime_anchors(name: str, number: int) -> None:
    """Compose §1.2: column C is anchored by sourced values 0-13, 20, 21, 22, 23 and 52."""
    assert EventType[name] == number


def test_events_count_up_in_the_order_of_the_table() -> None:
    """Compose §1.2: 53 values; no number is missing and none is used twice but for one second name."""
    assert [int(event) for event in EventType] == list(range(53))
    assert len(EventType.__members__) == 54


def test_recursive_halving_step_9_is_the_local_handshake() -> None:
    """Compose §1.2: EVT_RH_STEP_9 = EVT_RDH_LOCAL_HANDSHAKE = 32, and EVT_RDH_AXES_HANDSHAKE follows."""
    assert EventType["EVT_RDH_LOCAL_HANDSHAKE"] is EventType.EVT_RH_STEP_9
    assert (EventType.EVT_RH_STEP_9, EventType.EVT_RDH_AXES_HANDSHAKE) == (32, 33)


def test_bands_cover_every_event_once() -> None:
    """Compose §1.2: COMMON 0-7, MESH 8-13, A2A 14-22, RDH 23-52."""
    assert [n for band in EventBand for n in EVENT_BANDS[band]] == list(range(53))
    assert [len(EVENT_BANDS[band]) for band in EventBand] == [8, 6, 9, 30]


@pytest.mark.parametrize(
    ("name", "band"),
    [
        ("EVT_INTRA_GRP_BRDCST", EventBand.COMMON),
        ("EVT_REDUCE_COPY", EventBand.MESH),
        ("EVT_LOCAL_HNDSHK_1", EventBand.A2A),
        ("EVT_COPY_FROM_HOST", EventBand.A2A),
        ("EVT_RH_STEP_0", EventBand.RDH),
    ],
)
def test_the_band_of_an_event(name: str, band: EventBand) -> None:
    """An event lies in the band of its number."""
    assert EventType[name].band is band


def test_a_subtype_has_room_for_every_event_once() -> None:
    """Compose §15 (9): every event type at most once per subtype, and at most 64 events."""
    assert len(EventType) <= MAX_EVENTS == 64
