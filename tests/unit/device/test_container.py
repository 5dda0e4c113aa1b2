"""The image file: what is a container, which META and buffers it may declare, and which images belong together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from tests.images import Ring, edit, rebuild, seal, section, table

from rota.device.load import load_image
from rota.device.model import load
from rota.errors import DecodeError, UsageError
from rota.isa.image import BUFFER, DIGEST_SIZE, HEADER, META, SECTION, Section

RING = Ring()
ALONE = Ring(groups=((5,),), orders=((0,),))


@cache
def image(rank: int = 1) -> bytes:
    return RING.images[rank]


def refused(data: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        load_image(data)
    return caught.value


def refused_together(images: Sequence[bytes]) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        load(images)
    return caught.value


def test_an_image_loads_with_what_it_declares() -> None:
    """META says who the rank is; the buffers are those of the schedule, in its order."""
    loaded = load_image(image(2))
    assert (loaded.rank, loaded.ranks, loaded.chip, loaded.lane, loaded.lnc) == (2, 3, 1, 0, 2)
    assert [b.name for b in loaded.buffers] == [b.name for b in RING.schedule.buffers]
    assert [b.size for b in loaded.buffers] == [b.size for b in RING.schedule.buffers]


def test_no_prefix_is_an_image() -> None:
    """Every prefix length is refused; under a digest of its own too, with a place inside it."""
    data = ALONE.images[0]
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            load_image(data[:length])
    for length in (
        *range(0, 1200),
        *range(1200, len(data) - 600, 61),
        *range(len(data) - 600, len(data) - DIGEST_SIZE),
    ):
        part = seal(data[:length] + bytes(DIGEST_SIZE), checksums=False)
        assert 0 <= refused(part).offset <= len(part)


def test_bytes_behind_the_digest_are_refused() -> None:
    assert "SHA-256" in str(refused(image() + b"\0"))
    assert "digest right after" in str(refused(seal(image()[:-DIGEST_SIZE] + bytes(64) + bytes(DIGEST_SIZE))))


def test_another_magic_is_refused() -> None:
    error = refused(seal(b"ROTAIMG2" + image()[8:]))
    assert error.offset == 0
    assert "ROTAIMG1" in error.expected


def test_a_wrong_checksum_of_a_section_is_refused_where_the_section_is() -> None:
    """The digest is right, one CRC-32 is not."""
    at, offset, _ = table(image())[Section.CONF, 2]
    data = bytearray(image())
    data[at + 24] ^= 1
    assert refused(seal(bytes(data), checksums=False)).offset == offset


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (8, b"\0\0\0\0"),  # no section
        (8, b"\xff\xff\xff\xff"),  # more than the file has
        (8, (4097).to_bytes(4, "little")),
        (12, b"\1"),  # reserved
        (HEADER.size, b"\x0b"),  # an unknown kind
        (HEADER.size + 4, b"\1"),  # META 1
        (HEADER.size + 8, b"\1"),  # not at a multiple of 64
        (HEADER.size + 15, b"\x80"),  # far outside
        (HEADER.size + 23, b"\x80"),  # enormous
        (HEADER.size + 28, b"\1"),  # reserved
        (HEADER.size + SECTION.size, b"\1"),  # two sections called META 0
    ],
)
def test_header_and_table(at: int, value: bytes) -> None:
    """Sections are known, ascending, aligned and inside the file; reserved words are 0."""
    data = image()[:at] + value + image()[at + len(value) :]
    assert refused(seal(data, checksums=False)).offset < HEADER.size + SECTION.size * len(table(image()))


def test_gaps_are_zero() -> None:
    end = HEADER.size + SECTION.size * len(table(image()))
    start = min(offset for _, offset, _ in table(image()).values())
    assert start > end
    data = image()[: start - 1] + b"\1" + image()[start:]
    assert "zeros" in str(refused(seal(data)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arch_id", 0x1C),
        ("rank", 3),
        ("ranks", 0),
        ("ranks", 513),
        ("chip", 64),
        ("lane", 4),
        ("lnc", 0),
        ("lnc", 1),  # the rank's TOP_SPs would be 2
        ("lnc", 3),
        ("stream_processors", 5),
        ("folds", 0),
        ("folds", 17),
        ("operations", 0),
        ("operations", 513),  # more than a control table takes
        ("chains", 2),
        ("span", 3),
        ("ring_size", 0),
        ("ring_size", 16),
        ("ring_size", 4095),
        ("ring_size", 1 << 25),
        ("memory_size", 0xFFF),
        ("memory_size", 1 << 63),
        ("memory_size", (2 << 34) + 1),  # two HBM windows of 16 GiB
        ("reserved", 1),
    ],
)
def test_meta_limits(field: str, value: int) -> None:
    """Nothing is allocated from a number that is out of range. Source: device-model §7, first row."""
    old = META.decode(section(image(), Section.META))
    data = META.encode(**(old | {field: value}))
    error = refused(edit(image(), Section.META, 0, 0, data))
    assert error.offset == table(image())[Section.META, 0][1]
    assert field in error.what or field == "lnc"


def test_memory_size_is_where_the_buffers_end() -> None:
    """A memory that is larger than its buffers, or smaller, is refused at the buffers."""
    for change in (128, -128, 1):
        old = META.decode(section(image(), Section.META))
        data = META.encode(**(old | {"memory_size": old["memory_size"] + change}))
        start = table(image())[Section.BUFFERS, 0][1]
        error = refused(edit(image(), Section.META, 0, 0, data))
        assert start <= error.offset < start + len(section(image(), Section.BUFFERS))


@pytest.mark.parametrize(
    ("row", "field", "value"),
    [
        (0, "name", 0),
        (1, "name", int.from_bytes(b"input", "little")),
        (0, "name", int.from_bytes(b"in\0put", "little")),
        (0, "name", 0xFF),
        (0, "offset", 0x1080),
        (1, "offset", 0x1000),
        (2, "size", 1 << 62),
        (0, "use", 2),
        (0, "use", 0),
        (1, "use", 4),
        (0, "reserved", 1),
    ],
)
def test_buffers_are_back_to_back_with_an_input_and_an_output(row: int, field: str, value: int) -> None:
    old = BUFFER.decode(section(image(), Section.BUFFERS), row * BUFFER.size)
    data = BUFFER.encode(**(old | {field: value}))
    error = refused(edit(image(), Section.BUFFERS, 0, row * BUFFER.size, data))
    start = table(image())[Section.BUFFERS, 0][1]
    assert start <= error.offset < start + len(section(image(), Section.BUFFERS))


@pytest.mark.parametrize(
    ("kind", "index", "gone"),
    [
        (Section.CTRL, 3, Section.CTRL),
        (Section.CONF, 0, Section.CONF),
        (Section.BUFFERS, 0, Section.BUFFERS),
        (Section.MEM, 0x80, Section.MEM),
        (Section.SLOT, 24, Section.SLOT),
    ],
)
def test_a_section_under_another_index_is_missed(kind: Section, index: int, gone: Section) -> None:
    """Every processor has a control table and a configuration; buffers and feed words are there; slots are loaded."""
    at, _, _ = table(image())[kind, index]
    data = bytearray(image())
    data[at + 4 : at + 8] = (index ^ 7).to_bytes(4, "little")
    with pytest.raises(DecodeError, match=r"section|order") as caught:
        load([RING.images[0], seal(bytes(data), checksums=False), RING.images[2]])
    assert caught.value.offset < HEADER.size + SECTION.size * len(table(image()))
    assert gone in Section


@pytest.mark.parametrize(
    ("kind", "index"),
    [
        (Section.META, 1),
        (Section.CTRL, 4),  # the rank has TOP_SPs 0 to 3
        (Section.CONF, 4),
        (Section.SLOT, 6),  # a processor has slots 0 to 5
        (Section.SLOT, 32),
        (Section.TX, 256),  # 16 engines of 16 queues
        (Section.RX, 256),
        (Section.MEM, 0x84),
        (Section.MEM, 0x1000),  # over the input
        (Section.SEMA, 1),
        (Section.BUFFERS, 1),
        (Section.WORDS, 1),
    ],
)
def test_a_section_the_machine_does_not_have(kind: Section, index: int) -> None:
    """Refused at its row of the table, though nobody would read it."""
    like = next(i for k, i in table(image()) if k is kind)
    data = rebuild(image(), {(kind, index): section(image(), kind, like)})
    error = refused(data)
    assert error.offset == table(data)[kind, index][0]
    assert f"a {kind.name} this machine has" in error.expected


def test_a_slot_program_that_no_channel_runs() -> None:
    """Slot 1 of TOP_SP 3 exists, but its only channel uses slot 0."""
    data = rebuild(image(), {(Section.SLOT, 25): section(image(), Section.SLOT, 24)})
    error = refused_together([RING.images[0], data, RING.images[2]])
    assert error.offset == table(data)[Section.SLOT, 25][0]
    assert "a slot program of a channel" in error.expected


@pytest.mark.parametrize("kind", [k for k in Section if k < Section.WORDS])
@pytest.mark.parametrize("change", [-1, 1, 2])
def test_sections_are_whole_records(kind: Section, change: int) -> None:
    """A byte less or more is refused where the section is."""
    index = next(i for k, i in table(image()) if k is kind)
    old = section(image(), kind, index)
    data = rebuild(image(), {(kind, index): (old + bytes(2))[: len(old) + change]})
    error = refused(data)
    assert error.offset == table(data)[kind, index][1] or kind is Section.META


@pytest.mark.parametrize(
    ("kind", "index", "size"),
    [
        (Section.CTRL, 3, 16),  # two operations
        (Section.SLOT, 24, 0x8008),  # longer than its region
        (Section.MEM, 0x80, 68),  # 17 feed words
        (Section.SEMA, 0, 0),
        (Section.TX, 0, 0),
        (Section.BUFFERS, 0, 0),
    ],
)
def test_sections_have_a_size_they_can_have(kind: Section, index: int, size: int) -> None:
    data = rebuild(image(), {(kind, index): bytes(size)})
    error = refused(data)
    assert error.offset == table(data)[kind, index][1]
    assert error.got == f"{size} bytes"


def test_images_of_one_operation_load_together() -> None:
    assert len(load(RING.images).world.images) == 3


def test_no_images() -> None:
    with pytest.raises(UsageError, match="no images"):
        load([])


def test_ranks_in_another_order_are_refused() -> None:
    first, second, third = RING.images
    error = refused_together([second, first, third])
    assert "rank" in error.what
    assert error.got == "1"


def test_a_rank_that_is_not_loaded() -> None:
    """Fewer images than the operation has ranks, or addresses of a rank that is not there."""
    assert "expected as many as images, 2" in str(refused_together(RING.images[:2]))
    fewer = [edit(data, Section.META, 0, 8, (2).to_bytes(4, "little")) for data in RING.images[:2]]
    assert "a rank of this operation" in str(refused_together(fewer))


def test_one_rank_twice_is_refused() -> None:
    assert "image META rank" in refused_together([image(0), image(0), image(2)]).what


def test_two_ranks_on_one_lane_are_refused() -> None:
    """Rank 1 claims the place of rank 0."""
    twin = edit(image(1), Section.META, 0, 16, section(image(0), Section.META)[16:20])
    error = refused_together([image(0), twin, image(2)])
    assert error.what.startswith("image of rank 1")
    assert "a chip and lane of its own" in error.expected


@pytest.mark.parametrize(("field", "other"), [("ring_size", 8192), ("folds", 1), ("ranks", 4)])
def test_ranks_agree_about_the_operation(field: str, other: int) -> None:
    old = META.decode(section(image(1), Section.META))
    changed = edit(image(1), Section.META, 0, 0, META.encode(**(old | {field: other})))
    error = refused_together([image(0), changed, image(2)])
    assert field in error.what
    assert "rank 1" in error.what


def test_ranks_agree_about_their_buffers() -> None:
    """A name that differs is refused: buffers are the same list on every rank. Source: schedule §1."""
    changed = edit(image(1), Section.BUFFERS, 0, 0, b"Input")
    error = refused_together([image(0), changed, image(2)])
    assert error.offset == table(image(1))[Section.BUFFERS, 0][1]
