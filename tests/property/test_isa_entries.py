"""Laws of control entries and marks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.errors import DecodeError
from rota.isa.enums import Pattern
from rota.isa.semaphores import decode_register, register_offset
from rota.isa.spad import AlgoReading, Control, is_end, pack_control, pack_end, pattern_of, unpack_control, unpack_end

BOOLS = {
    name: st.booleans()
    for name in ("trigger_next", "reporter", "ring_wait_complete", "ring_send_complete", "safe_mode", "unique_tensors")
}


@st.composite
def controls(draw: st.DrawFn, reading: AlgoReading) -> Control:
    """Draw an active entry whose pattern is the one its algorithm bits stand for."""
    algo = draw(st.integers(0, 10 if reading is AlgoReading.ALGORITHM else 1))
    pattern = pattern_of(algo, reading=reading)
    flags = {name: draw(values) for name, values in BOOLS.items()}
    sub = draw(st.integers(0, 7))
    if pattern is Pattern.RING:
        channels = draw(st.integers(0, (1 << 32) - 1))
        return Control(pattern=pattern, algo_type=algo, algo_sub_type=sub, channel_list=channels, **flags)
    shift, mask, event = draw(st.integers(0, 0xFFFF)), draw(st.integers(0, 0xFFFF)), draw(st.integers(0, 255))
    return Control(
        pattern=pattern,
        algo_type=algo,
        algo_sub_type=sub,
        first_event=event,
        sema_shift_offset=shift,
        sema_mask=mask,
        **flags,
    )


@given(data=st.data(), reading=st.sampled_from(AlgoReading))
def test_a_control_entry_goes_through_its_bytes(data: st.DataObject, reading: AlgoReading) -> None:
    """unpack∘pack is the identity, in both readings of the algorithm bits."""
    entry = data.draw(controls(reading))
    assert unpack_control(pack_control(entry), reading=reading) == entry


@given(record=st.binary(max_size=16), offset=st.integers(0, 16), reading=st.sampled_from(AlgoReading))
def test_random_entries_are_entries_or_decode_errors(record: bytes, offset: int, reading: AlgoReading) -> None:
    """Whatever the bytes, the answer packs back to them or is a DecodeError."""
    try:
        entry = unpack_control(record, offset=offset, reading=reading)
    except DecodeError:
        return
    assert pack_control(entry) == record[offset : offset + 8]


@given(addresses=st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=2), value=st.integers(0, 0xFFFF))
def test_an_end_mark_goes_through_its_bytes(addresses: list[int], value: int) -> None:
    """unpack∘pack is the identity on END marks, and the first entry is recognised."""
    data = pack_end(addresses, value=value)
    assert is_end(int.from_bytes(data[:8], "little"))
    assert unpack_end(data, offset=0, count=len(addresses)) == (value, tuple(addresses))


@given(offset=st.integers(-16, 0x3000))
def test_offsets_are_registers_or_decode_errors(offset: int) -> None:
    """Every offset is one register, which has this offset, or none."""
    try:
        window, semaphore = decode_register(offset)
    except DecodeError:
        return
    assert register_offset(window, semaphore) == offset
