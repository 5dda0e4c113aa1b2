"""The path of one all-reduce through all stages, with its values. Source: all-reduce §9; values, device §2 to §12."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.images import edit, rebuild, section

from rota.isa.config import CONFIGURATIONS, MESH_EVENT
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, CceType, EncOp, Pattern
from rota.isa.image import Section
from rota.isa.spad import SLOT, Control, pack_control, pack_end
from rota.machine.platform import load_platform
from rota.pipeline import How, Lowered, lower, prove
from rota.report.stages import stage_lines
from rota.request import Request

STAGES = ("word", "select", "compose", "emit", "host", "device", "complete")
MARGIN = 11


@cache
def lowered(name: str = "trn2.48xlarge", ranks: int = 4) -> Lowered:
    """Return an all-reduce of 65536 bytes of bf16 over a ring."""
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 32768, (tuple(range(ranks)),), CceType.ADD)
    return lower(request, load_platform(name), How(algorithm=Algorithm.RING))


def stages(made: Lowered, name: str = "trn2.48xlarge") -> dict[str, list[str]]:
    """Return the lines of each stage, without the margin."""
    out: dict[str, list[str]] = {}
    stage = ""
    for line in stage_lines(made, load_platform(name)):
        stage = line[:MARGIN].strip() or stage
        out.setdefault(stage, []).append(line[MARGIN:])
    return out


def with_image(made: Lowered, image: bytes) -> Lowered:
    """Return the same collective with another image of its first rank."""
    return replace(made, images=(image, *made.images[1:]))


def has(lines: list[str], *texts: str) -> None:
    """Check that some line has each text."""
    for text in texts:
        assert any(text in line for line in lines), (text, lines)


def test_all_stages_in_order() -> None:
    """Word, SELECT, COMPOSE, EMIT, host, device, completion."""
    assert tuple(stages(lowered())) == STAGES


def test_the_word() -> None:
    """Its 64 bytes as they are, and its fields."""
    lines = stages(lowered())["word"]
    shown = bytes.fromhex("".join(line.split("+", 1)[1].split(" ", 1)[1] for line in lines if line.startswith("  +")))
    assert shown == lowered().word
    has(lines, "0xC8", "kind=ALL_REDUCE op=ADD dtype=bf16", "elements=32768")
    assert stages(replace(lowered(), word=b""))["word"] == ["none: no instruction asks for this collective"]


def test_select() -> None:
    """What was admitted, every rule of the cascade with its reason, and what was selected."""
    lines = stages(lowered())["select"]
    plan = lowered().composed.plan
    assert sum(" yes: " in line or " no: " in line for line in lines) == len(plan.verdicts)
    has(lines, "all_reduce sum, bf16, 1 group of 4 ranks on trn2.48xlarge (LNC 2), 65536 bytes (64K)")
    has(
        lines,
        f"selected {plan.selected.name} ({int(plan.selected)})",
        *(verdict.reason for _, verdict in plan.verdicts),
    )
    has(lines, "admitted RING")


def test_compose() -> None:
    """Channels, chunk groups, halves, steps and step primitives of both phases. Source: all-reduce §6.2 (a)."""
    lines = stages(lowered())["compose"]
    has(lines, "RING: 128 rows of 4 members, 32 of the first", "buffer   slot.0")
    has(lines, "leg 0    2 channels, 1 chunk group in 2 halves, 4 steps", "leg 1    2 channels")
    has(
        lines, "send 4, recv_reduce_send 8, recv_reduce_copy 4", "direct_copy_send 4, direct_recv_send 8, direct_recv 4"
    )


def test_emit() -> None:
    """The reduce words, descriptors of each fold, control entry, slot program, record, semaphores and trigger."""
    lines = stages(lowered())["emit"]
    image = lowered().images[0]
    has(lines, "0x02066000 x ", "CCE ADD of bf16, accumulated as bf16", "0x02066080 x ", "the last source")
    tx, rx = (len(section(image, kind)) // 16 for kind in (Section.TX, Section.RX))
    has(lines, f"queue 0  {tx} TX {rx} RX on each of engines 0x3")
    has(lines, f"control 0: {section(image, Section.CTRL, 3).hex(' ')}  cc_op 1, algo 0.0, channels 0x1, reporter")
    program = section(image, Section.SLOT, 24)
    entries = [program[at : at + 8] for at in range(0, len(program) - 16, 8)]
    has(lines, *(f"slot 0 +{i * 8:<#5x} {entry.hex(' ')}" for i, entry in enumerate(entries)))
    has(
        lines,
        "END, adds 1 at 0x8340001804",
        "program block +0x3448, device ids +0x4250",
        "channel 1 +0x94: engines 0x3",
    )
    has(lines, "tails 0x6000001038 0x6000021038", "recv_sema      id 8 of TOP_SP 3, READ 0x8340001020")
    has(lines, "trigger id 0 of TOP_SP 3, READ 0x8340001000; a step adds 1 at 0x8340001800")
    has(lines, "TOP_SP 0 has no part: control 00 00 00 00 00 00 00 00")


def test_host() -> None:
    """device §9 and §10: the six steps, each register on every TOP_SP of the rank."""
    lines = stages(lowered())["host"]
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names == ["CONFIGURE", "TSYNC", "PREPARE", "START", "STEP", "STOP"]
    has(lines, "writes 1 to host_trigger by dispatch 0x708: 0x82802615a0 0x82c02615a0 0x83002615a0 0x83402615a0")
    has(lines, "writes 1 to init_signal by dispatch 0x6f8: 0x8280261540", "writes 1 to stop_signal by dispatch 0x718")
    has(lines, "writes the number of the block to basic_block_switch: 0x82802615e0", "1 function")
    has(lines, "TOP_SP 3: control 0x1000 at 0x8340100000, slot 0 0x8000 at 0x8340101000")


def test_device() -> None:
    """device §7.3: the run states of both channels, each row once; the reporter waits for the processor before it."""
    lines = stages(lowered())["device"]
    rows = "WAIT_DATA (3) x 12, WAIT_CREDIT (4) x 12, MOVE (5) x 16"
    has(lines, f"TOP_SP 2 op 0: IDLE (0), FETCH (2) x 8, {rows}, COMPLETE (6) x 1, IDLE")
    has(lines, f"TOP_SP 3 op 0: IDLE (0), FETCH (2) x 8, {rows}, WAIT_PREV (1) x 1, COMPLETE (6) x 1, IDLE")


def test_complete() -> None:
    """Who completes, where it is posted, how many notifications, and the record's 48 bytes."""
    lines = stages(lowered())["complete"]
    assert lines[0] == "TOP_SP 2 then TOP_SP 3, by semaphore 254 of the next"
    has(lines, "posts    1 on id 1 of TOP_SP 3, INC 0x8340001804", "notifies 1, 1, 2, 2 times")
    has(lines, "cc_op_info posted_status 0, cc_op 1, op_type 1, alg 0, alg_name Ring")
    shown = bytes.fromhex("".join(line.split("+", 1)[1].split(" ", 1)[1] for line in lines if line.startswith("  +")))
    assert shown == bytes.fromhex("00000000 01000000 01000000 00000000") + b"Ring".ljust(32, b"\0")


@pytest.mark.parametrize(
    ("kind", "index", "at", "data", "text"),
    [
        (Section.CTRL, 3, 1, b"\x83", "algo 3.0, channels 0x1, trigger_next"),
        (Section.SLOT, 24, 0, b"\x99\x02", "m2s 665, s2m 3, repeat 2, no_receive"),
        (Section.CONF, 3, 56, b"\x40", "recv_sema      id 16 of TOP_SP 3, READ 0x8340001040"),
        (Section.CONF, 3, 56, b"\x40" * 6, "recv_sema      no semaphore, 0x404040404040"),
        (Section.CONF, 3, 62, b"\x45", "recv_sema      id 8 of chip 5 TOP_SP 3, READ 0x45008340001020"),
        (Section.CONF, 3, 0x3448 + 3552, b"\x10", "a step adds 1 at 0x8340001810"),
        (Section.TX, 0, 4, b"\x02\x00\xa0\x00", "0x00A00002 x 1: copy to 2 targets"),
        (Section.TX, 0, 4, b"\x00\xaa\x2b\x02", "0x022BAA00 x 1: CCE MAX of fp32, accumulated as fp32r"),
        (Section.TX, 0, 2, b"\x80", "operands 1 descriptors"),
    ],
)
def test_values_come_from_the_bytes(kind: Section, index: int, at: int, data: bytes, text: str) -> None:
    """Another byte in the image is another word in the lines."""
    image = edit(lowered().images[0], kind, index, at, data)
    has(stages(with_image(lowered(), image))["emit"], text)


def test_a_mesh() -> None:
    """Events with what each launches, signals and waits for; a mesh goes through no run states of a ring."""
    image = lowered().images[0]
    layout = CONFIGURATIONS["cayman"]
    conf = bytearray(section(image, Section.CONF, 3))
    base = 0x8340000000
    records = {
        4: {"dma_trigger": 1, "leg0_mask": 3, "leg1_mask": 12, "event_type": 9},
        5: {"direct_trigger": 1, "direct_trigger_sema": (base + 0x1820, 0, base + 0x1824), "wait_event": 1,
            "wait_val": 6, "event_wait_sema": base + 0x1028, "event_type": 1},
    }  # fmt: skip
    for index, record in records.items():
        at = layout.part("mesh").at + index * MESH_EVENT.size
        conf[at : at + MESH_EVENT.size] = MESH_EVENT.encode(**record)
    control = Control(
        pattern=Pattern.MESH, algo_type=2, first_event=4, sema_shift_offset=4, sema_mask=0xFFF, reporter=True
    )  # fmt: skip
    changes = {
        (Section.CTRL, 3): pack_control(control),
        (Section.CONF, 3): bytes(conf),
        (Section.SLOT, 24): SLOT.encode(m2s_val=3, s2m_val=2, repeat=1) + pack_end([base + 0x1804]),
    }
    found = stages(with_image(lowered(), rebuild(image, changes)))
    at = layout.part("mesh").at + 4 * MESH_EVENT.size
    has(found["emit"], "cc_op 1, algo 2.0, events from 4, shift 4 mask 0xfff, reporter")
    has(found["emit"], f"event 4 +{at:#x}: type 9, launch on engines 0x3 and 0xc")
    signals = "signal id 8 of TOP_SP 3, INC 0x8340001820, signal id 9 of TOP_SP 3, INC 0x8340001824"
    has(found["emit"], f"event 5 +{at + 80:#x}: type 1, {signals}, wait for 6 on id 10 of TOP_SP 3, READ 0x8340001028")
    has(
        found["device"], "TOP_SP 3 op 0: 2 events from index 4, each fires, then waits: dma_trigger 1, direct_trigger 1"
    )


def test_an_emitted_mesh() -> None:
    """What the emitter writes for a mesh reads back: every event launches, signals or waits."""
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 32768, ((0, 1, 2, 3),), CceType.ADD)
    made = lower(request, load_platform("trn2.48xlarge"), How(algorithm=Algorithm.MESH))
    found = stages(made)
    events = [line for line in found["emit"] if line.strip().startswith("event ")]
    assert events
    assert all(" launch on " in line or " signal id " in line or " wait for " in line for line in events)
    has(found["compose"], "mesh_send", "mesh_reduce", "parts")
    has(found["device"], f"{len(events)} events from index 0")
    has(found["complete"], "alg 2, alg_name Mesh")


def test_a_hierarchy() -> None:
    """Its five slots, its legs as they were composed, and the states of the whole. Source: device §6 and §7.3."""
    groups = ((0, 1, 2, 3, 64, 65, 66, 67),)
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 4096, groups, CceType.ADD)
    how = How(algorithm=Algorithm.HIER, verify=False)
    found = stages(replace(lowered(), composed=prove(request, load_platform("trn2.48xlarge", nodes=2), how)))
    assert sum(line.startswith("  alg_") for line in found["select"]) == 5
    assert [line[:7] for line in found["compose"] if line.startswith("  leg ")] == ["  leg 0", "  leg 2", "  leg 4"]
    has(found["device"], "hierarchy: intra_redsct (0), inter_allr (1), intra_allg (2), done (3)")
    has(found["complete"], "alg 1, alg_name Hier")


def test_long_lists_are_cut() -> None:
    """Of a program of many steps the first stand there, how many more there are, and the mark."""
    image = lowered().images[0]
    program = b"".join(SLOT.encode(m2s_val=3, s2m_val=2, repeat=i) for i in range(1, 31)) + pack_end([0x8340001804])
    lines = stages(with_image(lowered(), rebuild(image, {(Section.SLOT, 24): program})))["emit"]
    has(lines, "m2s 3, s2m 2, repeat 8", "... and 22 more", "slot 0 +0xf0  END")
    assert not any("repeat 9" in line for line in lines)


def test_trn1_has_offsets_that_are_not_known() -> None:
    """device §9: init and tsync of sunda are unknown, and said to be; the trigger is at 0x60848."""
    lines = stages(lowered("trn1.32xlarge", 8), "trn1.32xlarge")["host"]
    has(lines, "writes 1 by dispatch 0x6f8; init_signal of TOP_SP 0: its offset on sunda is not known")
    has(lines, "writes 1 to host_trigger by dispatch 0x708: 0xfffd0260848 0xfffd0660848 0xfffd0a60848")
