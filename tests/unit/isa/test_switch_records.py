"""The records of the switch: switch_schedule §7.1, §7.2, §7.5, typed a second time from the page."""

from __future__ import annotations

import pytest

from rota.errors import DecodeError
from rota.isa import switch_records
from rota.isa.enums import EncOp
from rota.isa.events import EventType
from rota.isa.layout import Layout
from rota.isa.switch_records import COPY_MODES, MeshEvent, decode_events, encode_subtype

PLACES: list[tuple[Layout, int, dict[str, tuple[int, int]]]] = [
    # §7.1
    (switch_records.SUBTYPE, 3016, {"events": (0, 2560), "num_events": (2560, 4), "drv_mesh": (2568, 8),
                                    "mesh": (2576, 8), "op_max_limit": (2584, 104), "op_min_limit": (2688, 104),
                                    "op_max_limit_sbuf": (2792, 104), "op_min_limit_sbuf": (2896, 104),
                                    "no_inplace_support": (3000, 1), "is_single_step_mesh": (3003, 1),
                                    "alltoall_iteration": (3008, 4)}),
    # §7.2
    (switch_records.MESH_EVENT, 40, {"src_ranks": (0, 8), "src_n": (8, 4), "dst_ranks": (16, 8), "dst_n": (24, 4),
                                     "valid": (32, 1), "evt_type": (36, 4)}),
    # §7.5
    (switch_records.COPY_PARAMS, 184, {"src_idx": (0, 4), "s_addr": (8, 16), "s_mhandle": (24, 8),
                                       "s_offsets": (32, 24), "d_addrs": (56, 24), "d_skip_copy": (80, 40),
                                       "d_ranks": (120, 24), "copy_sizes": (144, 24), "host_d_addr": (168, 8),
                                       "d_mhandle": (176, 8)}),
    (switch_records.REDUCE_PARAMS, 104, {"s_addrs": (0, 24), "src_idx": (24, 24), "d_addrs": (48, 24),
                                         "dst_idx": (72, 24), "reduce_size": (96, 8)}),
]  # fmt: skip
EVENTS = (
    MeshEvent(EventType.EVT_LOCAL_HNDSHK, True, 0, 3),
    MeshEvent(EventType.EVT_REDUCE_COPY, True, 4, 2),
    MeshEvent(EventType.EVT_SYNC, False, 0, 0),
)


@pytest.mark.parametrize(("layout", "size", "places"), PLACES, ids=[each[0].name for each in PLACES])
def test_places_and_sizes(layout: Layout, size: int, places: dict[str, tuple[int, int]]) -> None:
    """Offset and bytes of every field of the page."""
    assert layout.size == layout.dtype.itemsize == size
    assert {name: (layout.dtype.fields[name][1], layout.dtype.fields[name][0].itemsize) for name in places} == places


def test_copy_modes() -> None:
    """§3: 4 for both reductions into scratch, 0 for the one into the output."""
    assert {event.name: mode for event, mode in COPY_MODES.items()} == {
        "EVT_REDUCE_COPY": 4,
        "EVT_REDUCE_COPY_2": 4,
        "EVT_REDUCE_WRITE": 0,
    }


def test_a_subtype_reads_back() -> None:
    """§7.1: events at 40 bytes each, limits by operation, flags by name."""
    data = encode_subtype(EVENTS, {EncOp.ALLGATHER: (0, 0, 1 << 22, 5)}, {"is_bw_opt"})
    assert len(data) == 3016
    assert decode_events(data) == EVENTS
    values = switch_records.SUBTYPE.decode(data)
    assert values["op_max_limit_sbuf[0]"] == 1 << 22
    assert values["op_min_limit_sbuf[0]"] == 5
    assert values["op_max_limit[0]"] == values["op_max_limit_sbuf[1]"] == 0
    assert [name for name in switch_records.FLAGS if values[name]] == ["is_bw_opt"]
    assert data[40 * 1 + 36] == EventType.EVT_REDUCE_COPY
    assert switch_records.OP_TYPES == 13


def test_a_damaged_subtype_is_refused() -> None:
    """At the byte that is wrong."""
    data = bytearray(encode_subtype(EVENTS, {}, ()))
    data[36] = 99
    with pytest.raises(DecodeError, match="evt_type of an event at offset 36"):
        decode_events(bytes(data))
    data[2560] = 65
    with pytest.raises(DecodeError, match="num_events of a subtype at offset 2560: expected 0 to 64, got 65"):
        decode_events(bytes(data))
    with pytest.raises(DecodeError, match="truncated enc_alg_mesh_subtype"):
        decode_events(bytes(data[:3000]))
