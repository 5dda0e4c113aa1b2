"""The runtime's log lines, read from an image. Source: device §10 and §14; the marks, device-model §4."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.images import Ring, rebuild, section

from rota.device.load import Part
from rota.errors import DecodeError
from rota.isa.config import CONFIGURATIONS, MESH_EVENT, PROGRAM_BLOCK, RING_CHANNEL
from rota.isa.enums import Pattern
from rota.isa.image import META, Section
from rota.isa.spad import CONTINUE, SLOT, Control, pack_control, pack_end
from rota.report.device_log import Processor, device_log, expected_notifications, processor_lines, read_processor

LAYOUT = CONFIGURATIONS["cayman"]
DONE = 0x8340001804
CONTROL_AT, CONF_AT, SLOT_AT = 1 << 16, 1 << 17, 1 << 18  # offsets of the sections in an imaginary file


def steps(*rows: tuple[int, int, int]) -> bytes:
    """Return slot entries of (m2s, s2m, repeat)."""
    return b"".join(SLOT.encode(m2s_val=m2s, s2m_val=s2m, repeat=repeat) for m2s, s2m, repeat in rows)


def proceed(following: Control) -> bytes:
    """Return a CONTINUE mark and the control entry behind it."""
    return CONTINUE.to_bytes(8, "little") + pack_control(following)


RING = Control(pattern=Pattern.RING, trigger_next=True, reporter=True, channel_list=0b101)
NOP = Control(pattern=Pattern.INVALID, trigger_next=True)
MESH = Control(
    pattern=Pattern.MESH, algo_type=2, algo_sub_type=3, first_event=4, sema_shift_offset=4, sema_mask=0xFFF,
    reporter=True, safe_mode=True,
)  # fmt: skip
MESH_QUIET = Control(
    pattern=Pattern.MESH, algo_type=2, algo_sub_type=3, first_event=4, sema_shift_offset=4, sema_mask=0xFFF,
    safe_mode=True,
)  # fmt: skip
TABLE = (RING, MESH)
SLOTS = {
    0: steps((3, 2, 2), (5, 4, 1)) + proceed(MESH_QUIET) + steps((7, 7, 1)) + pack_end([DONE]),
    1: steps((9, 8, 300)) + proceed(MESH_QUIET),
}
EVENTS = {
    4: {"dma_trigger": 1, "leg0_mask": 3, "event_type": 9},
    5: {"wait_event": 1, "wait_val": 6, "event_type": 1},
}


def configuration(
    events: Mapping[int, Mapping[str, int]] = EVENTS, *, operations: int = 2, completions: int = 1
) -> bytes:
    """Return a configuration with ring channels 0 and 2 in slots 0 and 1."""
    out = bytearray(LAYOUT.size)
    records = [("ring", channel, RING_CHANNEL, {"spad_slot_idx": channel // 2}) for channel in (0, 2)]
    records += [("mesh", index, MESH_EVENT, dict(record)) for index, record in events.items()]
    block = {"op_num": operations, "tpb_compl_addr_num": completions, "ctrl_spad_base": 0x8340100000}
    for name, index, layout, values in [*records, ("program", 0, PROGRAM_BLOCK, block)]:
        at = LAYOUT.part(name).at + index * layout.size
        out[at : at + layout.size] = layout.encode(**values)
    return bytes(out)


def parts(control: bytes, conf: bytes, slots: Mapping[int, bytes]) -> tuple[Part, Part, dict[int, Part]]:
    """Return sections as they would stand in a file."""
    programs = {slot: Part(SLOT_AT * (slot + 1), memoryview(data), 0) for slot, data in slots.items()}
    return Part(CONTROL_AT, memoryview(control), 0), Part(CONF_AT, memoryview(conf), 0), programs


def processor(
    table: tuple[Control, ...] = TABLE, conf: bytes | None = None, slots: Mapping[int, bytes] = SLOTS
) -> Processor:
    """Return what TOP_SP 3 of the chip loads."""
    control = b"".join(map(pack_control, table))
    sections = parts(control, configuration() if conf is None else conf, slots)
    return read_processor(*sections, arch="cayman", sp=1, top_sp=3)


def lines(*arguments: Any, **named: Any) -> list[str]:
    return list(processor_lines(processor(*arguments, **named), 5))


def test_a_chain_of_a_ring_and_a_mesh() -> None:
    """Events when they are installed; per operation control mark, slot continue marks, step lists, marks; then loads.

    Keys of a control mark have a dash and decimal values; a slot continue mark says the same without the reporter.
    """
    mesh = "-alg 2 -subalg 3 -trignext 0 -chlist 0"
    count = "-sema_shift_offset 4 -sema_mask 4095 -safe_mode 1"
    assert lines() == [
        "[nec_dev 5] TOPSP 3 op 0 control mark: -alg 0 -subalg 0 -trignext 1 -chlist 5 -reporter 1 "
        "-sema_shift_offset 0 -sema_mask 0 -safe_mode 0",
        "[nec_dev 5] ch 0 op 0 slot 0: tp_inc_steps[0] = 3, 2, 2",
        "[nec_dev 5] ch 0 op 0 slot 0: tp_inc_steps[1] = 5, 4, 1",
        "[nec_dev 5] TOPSP 3 continue mark",
        "[nec_dev 5] ch 2 op 0 slot 1: tp_inc_steps[0] = 9, 8, 300",
        "[nec_dev 5] TOPSP 3 continue mark",
        "[nec_dev 5] mesh event 4: type 9, sem_val 0",
        "[nec_dev 5] mesh event 5: type 1, sem_val 6",
        f"[nec_dev 5] TOPSP 3 op 1 control mark: {mesh} -reporter 1 {count}",
        f"[nec_dev 5] TOPSP 3 op 1 slot continue mark: {mesh} {count}",
        f"[nec_dev 5] TOPSP 3 op 1 slot continue mark: {mesh} {count}",
        "[nec_dev 5] ch 0 op 1 slot 0: tp_inc_steps[0] = 7, 7, 1",
        "[nec_dev 5] TOPSP 3 end mark: completion address 0x8340001804 semaphore bits 0x1",
        "TOP_SP 3 configs staged: 2 operations",
        "[nec_dev 5] TOP_SP 3 SPAD load: control, 0x1000",
        "[nec_dev 5] TOP_SP 3 SPAD load: slot 0, 0x8000",
        "[nec_dev 5] TOP_SP 3 SPAD load: slot 1, 0x8000",
        "[nec_dev 5] TOP_SP 3 started: 69632 bytes loaded, 0x8340100000",
    ]


def test_an_operation_without_a_part_has_no_line() -> None:
    """A NOP entry is walked past: no mark, no step list, and no slot continue mark in the operation behind it."""
    slots = {0: steps((1, 1, 1)) + proceed(NOP) + pack_end([DONE]), 1: steps((2, 2, 1)) + proceed(NOP)}
    found = lines((RING, NOP, MESH), slots=slots)
    assert [line.split(" op ")[1].split(":")[0] for line in found if " op " in line] == [
        "0 control mark",
        "0 slot 0",
        "0 slot 1",
        "2 control mark",
    ]


def test_events_are_installed_once() -> None:
    """Two operations over one event list: its lines come once, before the first."""
    chained = Control(**{name: getattr(MESH, name) for name in Control.__slots__} | {"trigger_next": True})
    slots = {0: steps((1, 1, 1)) + proceed(MESH_QUIET) + steps((1, 1, 1)) + pack_end([DONE])}
    found = lines((chained, MESH), slots=slots)
    assert [i for i, line in enumerate(found) if "mesh event" in line] == [0, 1]


def test_a_list_ends_at_the_first_record_that_does_nothing() -> None:
    """Records behind it belong to other lists."""
    events = {**EVENTS, 7: {"wait_event": 1, "wait_val": 1}}
    slots = {0: pack_end([DONE])}
    assert processor((MESH,), configuration(events), slots).entries[0].events == (4, 5)


def test_two_completion_addresses() -> None:
    """The program block says how many addresses an END mark has."""
    slots = {0: pack_end([DONE, DONE + 8], value=3)}
    (end,) = [line for line in lines((MESH,), configuration(completions=2), slots) if "end mark" in line]
    assert end == "[nec_dev 5] TOPSP 3 end mark: completion address 0x8340001804, 0x834000180c semaphore bits 0x3"


@pytest.mark.parametrize(
    ("table", "conf", "slots", "what", "offset"),
    [
        ((RING,), None, {0: SLOTS[0]}, "slot program .* got slot 1", CONF_AT + 2 * 148),
        ((MESH,), None, {}, "slot program .* got slot 0", CONTROL_AT),
        ((MESH,), None, {0: steps((1, 1, 1))}, "expected a CONTINUE or END mark", SLOT_AT),
        ((MESH,), None, {0: pack_end([DONE])[:8]}, "truncated END mark", SLOT_AT),
        ((MESH,), None, {0: pack_end([DONE])[:8] + bytes(8)}, "completion address", SLOT_AT + 8),
        ((MESH,), None, {0: CONTINUE.to_bytes(8, "little")}, "truncated ring_control_entry", SLOT_AT + 8),
        ((MESH,), None, {0: CONTINUE.to_bytes(8, "little") + b"\xff" * 8}, "algo_type", SLOT_AT + 9),
        ((MESH,), configuration(completions=3), SLOTS, "tpb_compl_addr_num", CONF_AT + 0x3448),
        ((MESH,), configuration()[:-1], SLOTS, "configuration .* expected 17024 bytes", CONF_AT),
    ],
)
def test_tables_that_contradict_each_other(
    table: tuple[Control, ...], conf: bytes | None, slots: Mapping[int, bytes], what: str, offset: int
) -> None:
    """Each is refused at its place in the file."""
    with pytest.raises(DecodeError, match=what) as caught:
        processor(table, conf, slots)
    assert caught.value.offset == offset


def test_an_event_the_device_has_not() -> None:
    """device §5: 108 records."""
    beyond = Control(pattern=Pattern.MESH, algo_type=2, first_event=108)
    with pytest.raises(DecodeError, match=r"first_event .* expected an event below 108, got 108"):
        processor((beyond,))


def test_a_control_entry_that_means_nothing() -> None:
    """A reserved bit, at its byte in the file."""
    control = bytearray(b"".join(map(pack_control, TABLE)))
    control[8 + 2] |= 0x80
    with pytest.raises(DecodeError, match="control entry") as caught:
        read_processor(*parts(bytes(control), configuration(), SLOTS), arch="cayman", sp=1, top_sp=3)
    assert caught.value.offset == CONTROL_AT + 10


@given(data=st.data())
def test_damaged_sections(data: st.DataObject) -> None:
    """Any bytes have lines, or a DecodeError inside one of the sections."""
    sections = [bytearray(b"".join(map(pack_control, TABLE))), bytearray(configuration())]
    sections += [bytearray(program) for program in SLOTS.values()]
    live = [range(len(sections[0])), [*range(5 * 148), *range(0x3448, 0x4250)], *map(range, map(len, sections[2:]))]
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.sampled_from(range(4)))
        at = data.draw(st.sampled_from(live[which]))
        sections[which][at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sections[3])))
    control, conf, *programs = map(bytes, sections)
    read = parts(control, conf, {0: programs[0], 1: programs[1][:cut]})
    try:
        found = read_processor(*read, arch="cayman", sp=1, top_sp=3)
    except DecodeError as error:
        offset = error.offset
        everything = [read[0], read[1], *read[2].values()]
        assert any(part.offset <= offset <= part.offset + len(part.data) for part in everything)
        return
    assert all(isinstance(line, str) for line in processor_lines(found, 0))


# --- whole images -----------------------------------------------------------------------------------------------------


@cache
def images() -> tuple[bytes, ...]:
    """Return the images of ranks 0, 1 and 4: two channels, on the two highest of four stream processors."""
    return Ring().images


def test_an_image() -> None:
    """All stream processors in turn; the step lists launch exactly the descriptors that are there."""
    found = device_log(images()[0])
    staged = [line for line in found if "configs staged" in line]
    assert staged == [f"TOP_SP {sp} configs staged: 1 operations" for sp in range(4)]
    assert sum("control mark" in line for line in found) == 2
    launched = np.zeros(2, np.int64)
    for line in found:
        if "tp_inc_steps" in line:
            m2s, s2m, repeat = map(int, line.split(" = ")[1].split(", "))
            launched += np.array([m2s, s2m]) * repeat
    loaded = [
        sum(len(section(images()[0], kind, queue)) for queue in (0, 1)) // 16 for kind in (Section.TX, Section.RX)
    ]
    assert launched.tolist() == loaded


def test_devices_and_top_sps_are_those_of_the_chip() -> None:
    """nec_dev is the chip; TOP_SPs count over the chip: lane 1 of chip 0 has 4 to 7, rank 4 is lane 0 of chip 1."""
    second, third = (device_log(image) for image in images()[1:])
    assert {line.split()[1] for line in second if line.startswith("[")} == {"0]"}
    assert [line.split()[1] for line in second if "staged" in line] == ["4", "5", "6", "7"]
    assert {line.split()[1] for line in third if line.startswith("[")} == {"1]"}
    assert [line.split()[1] for line in third if "staged" in line] == ["0", "1", "2", "3"]


def test_expected_notifications() -> None:
    """device §10: one for each operation a TOP_SP does, and an end marker, also of one that does none."""
    assert expected_notifications(images()[0]) == (1, 1, 2, 2)
    meta = META.decode(section(images()[0], Section.META)) | {"operations": 3, "chains": 1}
    names = {field.name for field in META.fields}
    changes = {(Section.META, 0): META.encode(**{name: value for name, value in meta.items() if name in names})}
    for sp in range(4):
        entries = [RING, NOP, MESH] if sp == 3 else [NOP, RING, NOP] if sp == 2 else [NOP, NOP, NOP]
        changes[Section.CTRL, sp] = b"".join(map(pack_control, entries))
    assert expected_notifications(rebuild(images()[0], changes)) == (1, 1, 2, 3)


def test_a_damaged_image_has_no_lines() -> None:
    """The loader's own refusal."""
    with pytest.raises(DecodeError, match="SHA-256"):
        device_log(images()[0][:-1] + b"?")
