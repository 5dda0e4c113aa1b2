"""The event types of the mesh families: what each event of a subtype is called, and in which band it lies.

The numbers are those of the 2.31.24 runtime. Which events an operation uses is `compose`'s; what the device does with
them is `emit`'s and `device`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from rota.facts import CONVENTION, HIGH, Source

EVENTS_SOURCE: Final = Source("compose", "1.2, column C", HIGH)
RESERVED_SOURCE: Final = Source("compose", "1.2, the further all-to-all event", CONVENTION)
MAX_EVENTS: Final = 64
"""Most events of a subtype, ENC_MESH_MAX_NUM_EVENTS. Source: compose §1.1, high."""


class EventType(IntEnum):
    """What an event of a mesh, all-to-all or recursive-doubling subtype is.

    The runtime's all-to-all band has one event more than the header, of unknown name and place; here it is
    `EVT_A2A_RESERVED` at 19. `EVT_RDH_LOCAL_HANDSHAKE` is another name of `EVT_RH_STEP_9`.

    Source:
        compose §1.2, column C, high; 14 to 19 and the reserved event, convention. Design §2 (6).
    """

    EVT_SYNC = 0
    EVT_GLOBAL_HNDSHK = 1
    EVT_LOCAL_HNDSHK = 2
    EVT_INTER_GRP_BRDCST = 3
    EVT_FUNCTION_BARRIER_FIRST_COLL = 4
    EVT_FUNCTION_BARRIER_LAST_COLL = 5
    EVT_REDUCE_LOCAL_HNDSHK = 6
    EVT_INTRA_GRP_BRDCST = 7
    EVT_REDUCE_COPY = 8
    EVT_REDUCE_COPY_2 = 9
    EVT_REDUCE_WRITE = 10
    EVT_INTER_GRP_BRDCST_2 = 11
    EVT_LOCAL_AND_POD_GRP_BRDCST = 12
    EVT_LOCAL_AND_POD_GRP_BRDCST_2 = 13
    EVT_LOCAL_HNDSHK_1 = 14
    EVT_LOCAL_HNDSHK_2 = 15
    EVT_GLOBAL_HNDSHK_1 = 16
    EVT_INTER_GRP_BRDCST_1 = 17
    EVT_INTRA_GRP_BRDCST_1 = 18
    EVT_A2A_RESERVED = 19
    EVT_2DEV_BRDCST = 20
    EVT_2DEV_HNDSHK = 21
    EVT_COPY_FROM_HOST = 22
    EVT_RH_STEP_0 = 23
    EVT_RH_STEP_1 = 24
    EVT_RH_STEP_2 = 25
    EVT_RH_STEP_3 = 26
    EVT_RH_STEP_4 = 27
    EVT_RH_STEP_5 = 28
    EVT_RH_STEP_6 = 29
    EVT_RH_STEP_7 = 30
    EVT_RH_STEP_8 = 31
    EVT_RH_STEP_9 = 32
    EVT_RDH_LOCAL_HANDSHAKE = 32
    EVT_RDH_AXES_HANDSHAKE = 33
    EVT_RD_STEP_0 = 34
    EVT_RD_STEP_1 = 35
    EVT_RD_STEP_2 = 36
    EVT_RD_STEP_3 = 37
    EVT_RD_STEP_4 = 38
    EVT_RD_STEP_5 = 39
    EVT_RD_STEP_6 = 40
    EVT_RDH_AXES_HANDSHAKE_2 = 41
    EVT_1DEV_RDH_STEP_1 = 42
    EVT_1DEV_RDH_STEP_2 = 43
    EVT_1DEV_RD_STEP_1 = 44
    EVT_1DEV_RD_STEP_2 = 45
    EVT_1DEV_RH_STEP_1 = 46
    EVT_2DEV_RD_STEP_0 = 47
    EVT_2DEV_RD_STEP_1 = 48
    EVT_2DEV_RD_STEP_2 = 49
    EVT_2DEV_RD_STEP_3 = 50
    EVT_2DEV_RD_STEP_4 = 51
    EVT_RDH_LOCAL_PEER_HANDSHAKE = 52

    @property
    def band(self) -> EventBand:
        """The band the event's number lies in."""
        return next(band for band, numbers in EVENT_BANDS.items() if self in numbers)


class EventBand(Enum):
    """Which families an event is for."""

    COMMON = "common"
    MESH = "mesh"
    A2A = "all-to-all"
    RDH = "recursive doubling and halving"


EVENT_BANDS: Final[Mapping[EventBand, range]] = MappingProxyType(
    {
        EventBand.COMMON: range(8),
        EventBand.MESH: range(8, 14),
        EventBand.A2A: range(14, 23),
        EventBand.RDH: range(23, 53),
    }
)
"""The numbers of each band; together they are all events. Source: compose §1.2, high."""
