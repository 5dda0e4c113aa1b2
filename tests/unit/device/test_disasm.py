"""Listings: what each kind of record reads like, and that damage stays in its place."""

from __future__ import annotations

import re
import struct

import pytest
from tests.images import Ring, rebuild, seal, table

from rota.device.asm import assemble
from rota.device.disasm import KINDS, Listing, disassemble, disassemble_image, disassemble_stream
from rota.device.instructions import WORD_LAYOUTS, WORDS, read_update, read_wait, show_update, show_wait
from rota.errors import UsageError
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, len_ctrl, meta_len_ctrl
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, EncOp, Opcode, UpdateMode, WaitMode
from rota.isa.image import DIGEST_SIZE, Section
from rota.isa.network import SECTION_HEADER
from rota.isa.spad import CONTINUE, SLOT, Control, Pattern, pack_control, pack_end
from rota.isa.words import Word, encode_word

WORD = Word(
    kind=EncOp.ALLREDUCE,
    alu_op=AluOp.ADD,
    dtype=Dtype.BFLOAT16,
    input_id=3,
    output_id=4,
    num_elements=32,
    wait_mode=WaitMode.WAIT_FOR_SEM_GT_IMM,
    wait_idx=10,
    update_idx=22,
)
NOP = bytes([Opcode.NOP, 0x10]) + bytes(62)
PAIR = bytes([0xD9, 0x10]) + bytes(12) + b"\x01" + bytes(49), bytes([0xDA]) + bytes(63)


def texts(listing: Listing) -> list[str]:
    """Return the statements."""
    return listing.text


def notes(data: bytes, kind: str = "stream") -> list[str]:
    """Return what is said of each line."""
    return [line.note for line in disassemble(data, kind)]


def test_first_line_says_what_the_text_is() -> None:
    """A listing describes itself, also when there is nothing to list."""
    for kind in set(KINDS) - {"image"}:
        assert list(disassemble(b"", kind).lines()) == [f"; rota {kind} 1"]
    with pytest.raises(UsageError, match="expected one of stream, tx"):
        disassemble(b"", "neff")


def test_collective_word_reads_by_name() -> None:
    """The opcode has the runtime's name, and every field its own."""
    (text,) = texts(disassemble_stream(encode_word(WORD)))
    assert text == (
        "PseudoTriggerCol kind=ALL_REDUCE op=ADD dtype=bf16 group=0 input=3 output=4 elements=32 src_offset=0 "
        "dst_offset=0 wait=S[10]>0 update=S[22]++ value=0 debug_cmd=0 debug_hint=0"
    )


def test_columns_are_aligned() -> None:
    """Records of one kind have each field at the same place, and all fields begin at one place."""
    other = Word(**{name: getattr(WORD, name) for name in Word.__slots__} | {"num_elements": 1 << 40, "input_id": 1})
    first, second, third = texts(disassemble_stream(encode_word(WORD) + encode_word(other) + NOP))
    assert first.index("wait=") == second.index("wait=")
    assert first.index("kind=") == third.index("body=")


def test_every_opcode_has_its_own_word() -> None:
    """Two opcodes are never spelt alike, though the runtime cuts names at 16 characters."""
    words = [shape.word.casefold() for shape in WORDS.values()]
    assert len(words) == len(set(words))
    assert WORDS[0xD9].word == "PseudoTriggerCol.D9"
    assert WORDS[0x41].word == "0x41"


def test_every_named_field_is_printed() -> None:
    """A record of a known layout shows all its fields; what it does not show is implied by its word."""
    for opcode, layout in WORD_LAYOUTS.items():
        shown = {name for column in WORDS[opcode].columns for name in column.fields} | {"opcode"}
        assert shown == {name for each in layout.fields for name, _ in each.places()}, layout.name


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (WaitMode.NONE, "NONE[7]"),
        (WaitMode.WAIT_FOR_SEM_EQ_IMM, "S[7]==5"),
        (WaitMode.WAIT_FOR_SEM_LT_IMM, "S[7]<5"),
        (WaitMode.WAIT_FOR_SEM_LE_IMM, "S[7]<=5"),
        (WaitMode.WAIT_FOR_SEM_GT_IMM, "S[7]>5"),
        (WaitMode.WAIT_FOR_SEM_GE_IMM, "S[7]>=5"),
        (WaitMode.WAIT_FOR_EVT_SET, "WAIT_FOR_EVT_SET[7]"),
        (WaitMode.WAIT_FOR_SEM_GE_REG, "WAIT_FOR_SEM_GE_REG[7]"),
    ],
)
def test_wait_mode(mode: WaitMode, text: str) -> None:
    """0x04 is strictly greater, 0x05 greater or equal; a mode without a sign goes by its name."""
    assert show_wait(mode, 7, 5) == text


def test_update_mode_says_when() -> None:
    """`_COMPLETE` fires when the whole instruction is done, `_READ` when its reads are."""
    assert show_update(UpdateMode.SEM_INC_COMPLETE, 7, 5) == "S[7]++"
    assert show_update(UpdateMode.SEM_INC_READ, 7, 5) == "S[7]++@read"
    assert show_update(UpdateMode.SEM_SUB_IMM_READ, 7, 5) == "S[7]-=5@read"
    assert show_update(UpdateMode.NONE, 0, 5) == "-"


def test_waits_and_updates_read_back() -> None:
    """All 256 modes, known or not, with and without an index."""
    for mode in range(256):
        for index in (0, 7, 255):
            wait = read_wait(show_wait(mode, index, 9))
            update = read_update(show_update(mode, index, 9))
            assert (wait["wait_mode"], wait["wait_idx"], wait.get("semaphore_value", 9)) == (mode, index, 9)
            assert (update["update_mode"], update["update_idx"], update.get("semaphore_value", 9)) == (mode, index, 9)


def test_damaged_records_stay_in_place() -> None:
    """What is wrong is said on the line of the record, and the records behind it are shown."""
    word = encode_word(WORD)
    cases = [
        (b"\0" + word[1:], ".raw 00", "unknown opcode 0x00"),
        (word[:1] + b"\x20" + word[2:], "inst_word_len=0x20", "inst_word_len 0x20 means nothing here"),
        (word[:4] + b"\x33" + word[5:], "wait=0x33[10]", "wait_mode 0x33"),
        (word[:6] + b"\xff" + word[7:], "update=INVALID[22]", "update_mode 0xFF"),
        (word[:13] + b"\x77" + word[14:], "dtype=0x77", "dtype 0x77"),
        (word[:32] + b"\x00" + word[33:], "kind=0x00", "ctype 0x00"),
        (word[:40] + b"\x5a" + word[41:], ".raw c8", "reserved bits of PseudoTriggerCol set in byte 40: 0x5A"),
    ]
    for record, text, note in cases:
        lines = list(disassemble_stream(NOP + record + word))
        assert [line.offset for line in lines] == [0, 64, 128]
        assert [line.damaged for line in lines] == [False, True, False]
        assert text in lines[1].text
        assert note in lines[1].note
        assert lines[2].text.startswith("PseudoTriggerCol ")


def test_truncated_record_is_raw() -> None:
    """The tail that is no whole record is shown with how much is missing."""
    *_, last = disassemble_stream(NOP + NOP[:63])
    assert str(last) == f"00000040: .raw {NOP[:63].hex()}  ; truncated: 63 of 64 bytes"


def test_pairs_that_are_none() -> None:
    """0xDA belongs right behind 0xD9, and 0xD9 right before it."""
    first, second = PAIR
    assert notes(first + second) == ["", ""]
    assert notes(second + first) == ["extends no record before it", "expected PSEUDO_EXTENSION 0xDA next"]
    assert notes(first + first + second)[0] == "expected PSEUDO_EXTENSION 0xDA next"
    assert notes(bytes([0xD4, 0x10]) + bytes(62) + second[:1] + b"\xff" * 63) == ["", ""]


def test_other_record_with_reserved_bits_shows_its_body() -> None:
    """A stream is not refused for them, so they are no damage; no bit is lost."""
    record = bytes([0xD8, 0x10]) + bytes(60) + b"\x01\x02"
    (line,) = disassemble_stream(record)
    assert line.text.startswith(f"PseudoCoreBarrie.body body={'00' * 50}0102 ")
    assert not line.damaged


def test_descriptors() -> None:
    """Length 0 is 65536 bytes; operations, flags and phase go by name."""
    table = [
        (int(len_ctrl(65536, ring=2, first=True, last=True)), COPY_WORD, 0x1000),
        (int(len_ctrl(64, concat=True)), 0x020BA000, 0x2000),
        (int(meta_len_ctrl(1)[0]), 0x02100000, 0x3F80000009000000),
        (int(len_ctrl(4)), 0xDEADBEEF, 0),
        (1 << 16, COPY_WORD, 0),
    ]
    lines = list(disassemble(b"".join(struct.pack("<IIQ", *row) for row in table), "tx"))
    assert lines[0].text.split() == [
        "tx",
        "size=65536",
        "address=0x0000000000001000",
        "phase=2",
        "op=copy",
        "flags=first|last",
    ]
    assert "op=add:fp32>fp32r" in lines[1].text
    assert "op=fma_operand" in lines[2].text
    assert "flags=meta|concat" in lines[2].text
    assert "op=0xdeadbeef" in lines[3].text
    assert (lines[4].text[:5], lines[4].damaged) == (".raw ", True)
    assert DESCRIPTOR.itemsize == 16


def test_receiving_descriptor_has_no_operation() -> None:
    """The operation word of a writing descriptor is 0."""
    (line,) = disassemble(struct.pack("<IIQ", int(len_ctrl(4, strong_order=True)), COPY_WORD, 0), "rx")
    assert "flags=strong_order_wr" in line.text
    assert (line.damaged, "meta_ctrl" in line.note) == (True, True)


def test_control_entries() -> None:
    """Ring and mesh view by the algorithm; an entry without a part in the operation says only trigger_next."""
    ring = pack_control(Control(pattern=Pattern.RING, channel_list=5, reporter=True))
    mesh = bytes.fromhex("0162000004000f00")
    lines = list(disassemble(ring + mesh + b"\0\x80" + bytes(6) + b"\1\x0c" + bytes(6) + b"\0\0\1" + bytes(5), "ctrl"))
    assert "alg=RING" in lines[0].text
    assert "chlist=0x00000005 reporter=1" in lines[0].text
    assert lines[1].text.startswith("mesh_control alg=MESH subalg=6 trignext=0")
    assert "sema_shift_offset=4" in lines[1].text
    assert lines[2].text == "nop_control  trignext=1"
    assert [line.note for line in lines[3:]] == ["no algorithm 12", "reserved bits of nop_control set in byte 2: 0x01"]


def test_slot_program() -> None:
    """Behind CONTINUE stands a control entry, behind END the completion addresses; entries name their flags."""
    entry = SLOT.encode(m2s_val=5, s2m_val=4, repeat=3, last_row=1, no_send=1)
    control = pack_control(Control(pattern=Pattern.RING, channel_list=1))
    program = entry + CONTINUE.to_bytes(8, "little") + control + entry + pack_end([0x12345678, 0x10])
    words = [text.split() for text in texts(disassemble(program + bytes(80) + entry, "slot"))]
    assert [each[0] for each in words] == [
        "slot",
        "continue",
        "ring_control",
        "slot",
        "end",
        "completion",
        "completion",
        ".zero",
        ".raw",
    ]
    assert words[0][1:] == ["m2s=5", "s2m=4", "repeat=3", "flags=last_row|no_send"]
    assert words[4][1:] == ["value=1", "low=0x12345678"]
    assert notes(program + entry, "slot")[-1] == "behind the END mark"
    assert notes(CONTINUE.to_bytes(8, "little"), "slot") == ["expected a control entry next"]
    assert notes(pack_end([8])[:8], "slot") == ["expected a completion address next"]
    assert notes(pack_end([8])[:8] + pack_end([9])[8:], "slot")[1].startswith("expected an address that ends in")


def test_configuration_by_size() -> None:
    """The two architectures' configurations differ in size; unused records are one line."""
    assert [line.text for line in disassemble(bytes(0x3060), "conf")][1] == ".zero 4000"
    whole = [line.text for line in disassemble(bytes(0x4280), "conf")]
    assert whole == [".zero 4736", ".zero 8640", ".zero 8", ".zero 3592", ".zero 48"]
    assert notes(bytes(0x4281), "conf")[-1] == "behind the 17024 bytes there are"
    for size in (1, 148, 149, 0x1280, 0x427F):
        assert re.search(r"\d+ of \d+ bytes", notes(bytes(size), "conf")[-1])


def test_image_lists_every_byte_once() -> None:
    """The lines of an image cover the file without gap or overlap, and a sound one has no damage."""
    image = Ring(words=encode_word(WORD)).images[0]
    listing = disassemble_image(image)
    position = 0
    for line in listing:
        assert line.offset == position
        position += line.size
    assert position == len(image)
    assert not listing.damaged
    assert "section kind=META" in listing.text[1]
    assert listing.text[-1] == "digest sha256=auto"


def test_what_is_asked_for_reads_as_text() -> None:
    """A line of the section is a line of the listing, whatever its bytes are."""
    asked = b"all_reduce bf16\nseed=3\n\xff\0 end"
    image = rebuild(Ring().images[0], {(Section.REQUEST, 0): asked})
    listing = disassemble_image(image)
    lines = [line for line in listing if line.part == "request 0" and line.size]
    assert [line.note for line in lines] == ["all_reduce bf16", "seed=3", "\ufffd? end"]
    assert not any(line.damaged for line in lines)
    assert assemble("\n".join(listing.lines())) == image


def test_records_of_network_proxies() -> None:
    """A header, then as many operations, sends and receives as it says; the rest is raw."""
    data = SECTION_HEADER.encode(operations=1, sends=2, receives=1) + bytes(96 + 2 * 72 + 48) + b"morebyte"
    listing = disassemble_image(rebuild(Ring().images[0], {(Section.NETWORK, 2): data}))
    words = [line.text.split()[0] for line in listing if line.part == "network 2"]
    assert words == [".section", "net_header", "net_operation", "net_send", "net_send", "net_receive", ".raw", ".end"]


def test_damaged_image_names_the_place() -> None:
    """Checksum, digest, and what the loader refuses are each said where they are."""
    image = Ring(words=encode_word(WORD)).images[0]
    rows = table(image)
    _, start, _ = rows[Section.META, 0]
    flipped = bytearray(image)
    flipped[start + 20] = 3  # lnc
    damage = {line.text.split()[0]: line.note for line in disassemble_image(bytes(flipped)) if line.damaged}
    assert set(damage) == {"section", "meta", "digest"}
    assert "expected CRC-32" in damage["section"]
    assert "META lnc" in damage["meta"]
    assert "SHA-256" in damage["digest"]
    sealed = {line.text.split()[0] for line in disassemble_image(seal(bytes(flipped))) if line.damaged}
    assert sealed == {"meta"}
    cut = list(disassemble_image(image[: len(image) - DIGEST_SIZE - 16]))
    assert any(line.damaged for line in cut)
    assert cut[0].text == f"image sections={len(rows)}"


def test_same_bytes_with_and_without_raw() -> None:
    """`raw` appends the bytes of each record in hex, and changes nothing else."""
    data = encode_word(WORD) + NOP
    plain = list(disassemble_stream(data).lines())
    assert [line + f"  ; {part.hex()}" for line, part in zip(plain[1:], (data[:64], NOP), strict=True)] == list(
        disassemble_stream(data).lines(raw=data)
    )[1:]


def test_painted_text_is_the_text() -> None:
    """Colours add escapes and nothing else; what is wrong is red."""
    listing = disassemble_stream(NOP + b"\0" * 64)
    painted = list(listing.painted())
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == list(listing.lines())
    assert "\x1b[31m" in painted[2]
    assert "\x1b[31m" not in painted[1]
