"""The text form back to bytes: what may be written by hand, and what is refused with its line."""

from __future__ import annotations

import re

import pytest
from tests.images import CRC_AT, Ring, edit, table

from rota.device.asm import assemble
from rota.device.disasm import disassemble, disassemble_image, disassemble_stream
from rota.device.forms import KINDS
from rota.device.instructions import WORD_LAYOUTS, WORDS
from rota.device.load import load_image
from rota.errors import UsageError
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, EncOp, Opcode, UpdateMode, WaitMode
from rota.isa.image import Section
from rota.isa.words import Word, decode_word, encode_word

WORD = encode_word(
    Word(kind=EncOp.ALLREDUCE, alu_op=AluOp.ADD, dtype=Dtype.FP32, input_id=3, output_id=4, num_elements=32)
)


def text_of(data: bytes, kind: str) -> str:
    """Return a listing as one text."""
    return "\n".join(disassemble(data, kind).lines())


def test_what_is_written_by_hand() -> None:
    """Fields in any order, names in any case, numbers in any base, remarks; what is left out is 0 or usual."""
    text = """; rota stream 1

    ; one word
    pseudo_trigger_collective elements=0x20 kind=all_reduce dtype=BF16 op=add input_id=3 output=4 wait=S[10]>=7 ; go
    00000040: .raw a410
      .zero 62
    """
    data = assemble(text)
    word = decode_word(data)
    assert (word.kind, word.dtype, word.num_elements, word.input_id) == (EncOp.ALLREDUCE, Dtype.BFLOAT16, 32, 3)
    assert (word.wait_mode, word.wait_idx, word.semaphore_value) == (WaitMode.WAIT_FOR_SEM_GE_IMM, 10, 7)
    assert word.update_mode is UpdateMode.NONE
    assert data[1] == 0x10
    assert data[64:] == bytes([Opcode.NOP, 0x10]) + bytes(62)
    canonical = text_of(data, "stream")
    assert text_of(assemble(canonical), "stream") == canonical


def test_names_and_words_are_told_apart() -> None:
    """Of two opcodes the runtime calls alike, the plain word is the lower one, and full names always work."""
    assert assemble("; rota stream 1\nPseudoTriggerCol")[0] == 0xC8
    assert assemble("; rota stream 1\nPseudoTriggerCol.D9")[0] == 0xD9
    for word in ("PSEUDO_TRIGGER_COLLECTIVE2", "PseudoTriggerCollective2"):
        assert assemble(f"; rota stream 1\n{word}")[0] == 0xD9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected '; rota KIND 1'"),
        ("; rota stream 2", "line 1"),
        ("; rota neff 1", "line 1"),
        ("; rota stream 1\nFlub", "line 2: 'Flub': expected a record of kind stream"),
        ("; rota tx 1\nNop", "line 2: 'Nop': expected a record of kind tx"),
        ("; rota stream 1\n\nNop colour=3", "line 3: Nop has no field 'colour': expected one of body, wait"),
        ("; rota stream 1\nNop value=3 value=4", "each name once"),
        ("; rota stream 1\nNop value", "expected name=value"),
        ("; rota stream 1\nNop value=x", "Nop value=x: means nothing"),
        ("; rota stream 1\nNop value=4294967296", "expected a value from 0 to 4294967295"),
        ("; rota stream 1\nNop wait=S[1]>3 value=4", "contradicts"),
        ("; rota stream 1\nNop wait=S[1]>3 update=S[2]+=4", "contradicts"),
        ("; rota stream 1\nNop wait=soon", "expected S[1]>0"),
        ("; rota stream 1\nNop update=S[1]+=5@later", "means nothing"),
        ("; rota stream 1\nNop update=S[1]++5", "means nothing"),
        ("; rota stream 1\nNop body=" + "00" * 53, "at most 52 bytes"),
        ("; rota stream 1\n.raw xyz", "expected hexadecimal bytes"),
        ("; rota stream 1\n.zero -1", "expected how many bytes"),
        ("; rota stream 1\n.zero 9999999999999", "larger than"),
        ("; rota stream 1\n.align 3", "a power of two up to 64"),
        ("; rota stream 1\n.section 0", "'.section': expected a record"),
        ("; rota tx 1\ntx size=0", "expected 1 to 65536 bytes"),
        ("; rota tx 1\ntx size=4 op=gce:bf16>bf16", "op=gce:bf16>bf16"),
        ("; rota tx 1\ntx size=4 op=add:fp32r>fp32r", "no transfer size"),
        ("; rota tx 1\ntx size=4 op=add:bf16>bf16:first", "at most"),
        ("; rota tx 1\ntx size=4 flags=first|strong", "one of dummy, meta"),
        ("; rota image 1\n.section 0", "expected a row of the table"),
        ("; rota image 1\n.end", "expected alone, and behind .section"),
        ("; rota image 1\nsection kind=TX crc32=auto", "'auto' needs a .section 0"),
        ("; rota image 1\nsection kind=TX\n.section 0", "expected .end"),
    ],
)
def test_refusals_name_the_line(text: str, message: str) -> None:
    """A text that means nothing is refused in one sentence that says where and what was expected."""
    with pytest.raises(UsageError, match=re.escape(message)):
        assemble(text)


def test_result_is_bounded() -> None:
    """A few lines cannot ask for more memory than an image may have."""
    with pytest.raises(UsageError, match="larger than"):
        assemble("; rota tx 1\n" + ".zero 8\n.zero 1073741820\n")


@pytest.mark.parametrize("kind", ["stream", "tx", "rx", "ctrl"])
def test_every_field_reads_back(kind: str) -> None:
    """What a column shows for a number is what it reads as that number, byte by byte of each record."""
    known = {shape.word: shape for shape in KINDS[kind].values()}
    if kind == "stream":
        known = {word: known[word] for word in (*(WORDS[opcode].word for opcode in WORD_LAYOUTS), "Nop")}
    for word, shape in known.items():
        blank = shape.read({})
        free = bytes(~bits & 0xFF for bits in shape.unnamed.tolist())
        data = b"".join(
            blank[:at] + bytes([value & free[at]]) + blank[at + 1 :]
            for at in range(shape.layout.size)
            for value in (1, 0x10, 0x80, 0xFF)
        )
        assert assemble(text_of(data, kind)) == data, word


def test_image_comes_back() -> None:
    """Container, sections and digest: the text of an image is the image."""
    for image in (*Ring().images, *Ring(kind=EncOp.ALLGATHER, count=402, platform_name="trn1.32xlarge").images):
        assert assemble("\n".join(disassemble_image(image).lines())) == image


def test_edited_image_is_sealed() -> None:
    """Checksums, sizes and digest follow an edit, so that the loader takes the image."""
    image = Ring(words=WORD).images[0]
    text = text_of(image, "image")
    edited = assemble(text.replace("elements=32 ", "elements=48 ", 1))
    _, offset, _ = table(image)[Section.WORDS, 0]
    assert edited == edit(image, Section.WORDS, 0, 24, (48).to_bytes(1, "little"))
    assert decode_word(edited[offset : offset + 64]).num_elements == 48
    longer = assemble(re.sub(r"(?m)^(.*PseudoTriggerCol.*)$", r"\1\n\1", text))
    assert len(load_image(longer).parts[Section.WORDS, 0].data) == 128


def test_damaged_image_comes_back() -> None:
    """Flipped, cut and overlapping: whatever the table says, every byte is in the text once."""
    image = Ring().images[0]
    rows = table(image)
    for at in (9, 13, *(row[0] + place for row in list(rows.values())[:6] for place in (0, 8, 12, 16, 20, CRC_AT, 28))):
        for value in (0, 1, 0xFF):
            damaged = image[:at] + bytes([value]) + image[at + 1 :]
            listing = disassemble_image(damaged)
            assert assemble("\n".join(listing.lines())) == damaged
            assert listing.damaged or damaged == image
    for size in (0, 7, 8, 16, 40, 48, 700, 1024, len(image) - 40, len(image) - 32, len(image) - 1):
        listing = disassemble_image(image[:size])
        assert assemble("\n".join(listing.lines())) == image[:size]
        assert listing.damaged or not size
    longer = image + b"more"
    assert assemble("\n".join(disassemble_image(longer).lines())) == longer


def test_raw_hex_is_passed_over() -> None:
    """The bytes that `--raw` appends are remarks."""
    data = WORD + bytes(64) + WORD[:5]
    assert assemble("\n".join(disassemble_stream(data).lines(raw=data))) == data
