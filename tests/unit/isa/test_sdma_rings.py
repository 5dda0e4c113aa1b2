"""Virtual rings, template addresses and ring cursors."""

from __future__ import annotations

import numpy as np
import pytest

from rota.columns import Array
from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.isa.descriptors import DESCRIPTOR, LAYOUT, Ordering
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType
from rota.isa.packets import CopyPacket, Packet, ReducePacket, decode_packet, encode_packet
from rota.isa.ring_cursor import (
    FLUSH_THRESHOLD,
    GUARD,
    HOST_RING_ALLOCATED,
    HOST_RING_NOMINAL,
    RingCursor,
    doorbells,
)
from rota.isa.templates import Template, decode_template, encode_template, resolve
from rota.isa.vrings import (
    MAX_DESCRIPTORS,
    PAGE_LINKS_AT,
    PAGE_SIZE,
    PRING_INFO,
    PRING_RX,
    PRING_TX,
    SEMAPHORE_BLOB,
    VRING,
    VRING_HALF,
    EmbeddedSemaphore,
    barrier_on_last_packet,
    dump,
    embed_semaphore,
    embedded_semaphore,
    move_addresses,
    pack,
    pages_for,
    place_of,
    vring_set,
)

ADD = ReducePacket(CceType.ADD, (1, 2), (3,), 8, Dtype.FP32, Dtype.FP32)
FMA = ReducePacket(CceType.FMA, (0x100, 0x200), (3,), 8, Dtype.FP32, Dtype.FP32, scales=(0x100, 0x180))


def vring(*packets: Packet) -> tuple[Array, Array]:
    """Return the halves of a vring with these packets."""
    pairs = [encode_packet(each, arch="sunda") for each in packets]
    tx, rx = (np.frombuffer(b"".join(side), DESCRIPTOR) for side in zip(*pairs, strict=True))
    return tx, rx


def bounds(tx: Array) -> list[int]:
    """Return the descriptors of each packet."""
    return np.diff(np.flatnonzero(tx["len_ctrl"] >> 27 & 1), prepend=-1).tolist()


def test_structures() -> None:
    """sdma §14.1: sizes and places of the records."""
    at = {each.name: each.at for layout in (VRING_HALF, PRING_INFO) for each in layout.fields}
    assert at == {
        "used_desc_count": 0, "head": 8, "tail": 0x10, "is_template": 0x18, "max_var_id": 0x1C,
        "type": 0, "ring_mem": 8, "ring_offset_bytes": 0x10, "used": 0x18, "allocated": 0x1C,
    }  # fmt: skip
    ring = {each.name: each.at for each in VRING.fields}
    assert [ring[name] for name in ("name", "tx_used_desc_count", "rx_used_desc_count")] == [0, 0x100, 0x120]
    assert [ring[name] for name in ("total_tx_size", "total_rx_size", "stochastic_rounding_en")] == [320, 328, 336]
    assert [each.size for each in (VRING_HALF, VRING, vring_set(), PRING_INFO, SEMAPHORE_BLOB)] == [
        32,
        344,
        5520,
        32,
        6,
    ]
    assert (PAGE_LINKS_AT, PAGE_SIZE) == (0x100000, 0x100010)
    assert (PRING_TX, PRING_RX) == (1, 2)


def test_allocation() -> None:
    """sdma §14.2: page and slot of an index; the limit; a page begins at slot 0."""
    assert [place_of(each) for each in (0, 65535, 65536, 16_777_199)] == [(0, 0), (0, 65535), (1, 0), (255, 65519)]
    assert [pages_for(each) for each in (0, 1, 65536, 65537)] == [0, 1, 1, 2]
    assert MAX_DESCRIPTORS == 16_777_200
    for index in (16_777_200, -1):
        with pytest.raises(UsageError, match=f"below 16777200, got {index}"):
            place_of(index)


def test_pack_joins_copies() -> None:
    """sdma §14.3: packets limited by bytes; FIRST, LAST, CONCAT written anew; new minus old packets."""
    tx, _ = vring(*(CopyPacket(i * 4096, 0, 4096) for i in range(7)))
    packed, more = pack(tx, arch="cayman", max_bytes=3 * 4096)
    assert (bounds(packed), more) == ([3, 3, 1], -4)
    assert [f"{word:08x}" for word in packed["len_ctrl"][:4].tolist()] == [
        "85001000",
        "81001000",
        "09001000",
        "85001000",
    ]
    assert (packed["buf_ptr"] == tx["buf_ptr"]).all()
    again, none = pack(packed, arch="cayman", max_bytes=3 * 4096)
    assert (again == packed).all()
    assert none == 0


@pytest.mark.parametrize(("arch", "want"), [("cayman", [60, 60, 30]), ("sunda", [128, 22])])
def test_pack_keeps_to_the_cap(arch: str, want: list[int]) -> None:
    """sdma §7, §14.3: descriptors of a packet, by architecture; a copy has as many RX as TX, so both caps hold."""
    tx, _ = vring(*(CopyPacket(0, 0, 4) for _ in range(150)))
    assert bounds(pack(tx, arch=arch, max_bytes=1 << 30)[0]) == want


def test_pack_splits_and_leaves_reduces_alone() -> None:
    """A packet too long for the limit is cut, a descriptor too long is alone, a reduce stays as it is."""
    tx, _ = vring(CopyPacket(0, 0, 3 * 65536), CopyPacket(0, 0, 4), ADD, FMA, CopyPacket(0, 0, 4), CopyPacket(0, 0, 4))
    packed, more = pack(tx, arch="sunda", max_bytes=65536)
    assert (bounds(packed), more) == ([1, 1, 1, 1, 2, 4, 2], 1)
    assert (packed[4:10] == tx[4:10]).all()
    empty, none = pack(tx[:0], arch="sunda", max_bytes=4)
    assert (empty.size, none) == (0, 0)


def test_edits_want_whole_packets() -> None:
    """A half that begins or ends inside a packet is a DecodeError at the descriptor."""
    tx, _ = vring(ADD, ADD)
    for part, offset in ((tx[1:], 0), (tx[:3], 32), (tx[[0, 0, 1]], 16)):
        with pytest.raises(DecodeError) as caught:
            pack(part, arch="sunda", max_bytes=4096)
        assert caught.value.offset == offset


def test_barrier_on_the_last_packet() -> None:
    """sdma §8: on the first descriptor of the last packet, an operand or not; nothing where writes can be ordered."""
    tx, rx = vring(ADD, FMA)
    edited = barrier_on_last_packet(tx, arch="sunda")
    assert np.flatnonzero(edited["len_ctrl"] != tx["len_ctrl"]).tolist() == [2]
    last = decode_packet(edited[2:].tobytes(), rx[1:].tobytes(), arch="sunda")
    assert last.ordering is Ordering.DMB
    assert (barrier_on_last_packet(edited, arch="sunda") == edited).all()
    assert barrier_on_last_packet(tx, arch="cayman") is tx
    with pytest.raises(UsageError, match="got an empty vring"):
        barrier_on_last_packet(tx[:0], arch="sunda")


def test_embedded_semaphore() -> None:
    """sdma §14.3, §16: on the last RX descriptor, v4 only, and not twice."""
    _, rx = vring(ADD, ADD)
    wanted = EmbeddedSemaphore(csr_index=5, semaphore=0x1234, sow=True)
    edited = embed_semaphore(rx, wanted, arch="mariana")
    assert edited[0] == rx[0]
    assert edited[1].tolist() == (0xA1000020, 0x01051234, 3)
    assert embedded_semaphore(edited) == wanted
    assert embedded_semaphore(rx) is None
    assert embed_semaphore(edited, EmbeddedSemaphore(1, 1, False), arch="mariana") is edited
    for arch in ("sunda", "cayman"):
        with pytest.raises(UnsupportedError, match=f"{arch} has no embedded semaphores"):
            embed_semaphore(rx, wanted, arch=arch)
    with pytest.raises(UsageError, match="a region below 32"):
        embed_semaphore(rx, EmbeddedSemaphore(32, 0, False), arch="mariana")
    broken = edited.copy()
    broken["meta_ctrl"][1] = 0
    with pytest.raises(DecodeError, match="expected the mark 0x01, got 0x00") as caught:
        embedded_semaphore(broken)
    assert caught.value.offset == 20


def test_addresses_move() -> None:
    """sdma §14.3: every TX address in [base, base + size) moves; operands are no addresses."""
    tx, _ = vring(FMA)
    assert tx["buf_ptr"].tolist() == [0x100 << 32 | 0x09000000, 0x100, 0x180 << 32 | 0x09000000, 0x200]
    moved = move_addresses(tx, base=0x100, size=0x100, new=0x10)
    assert moved["buf_ptr"][1::2].tolist() == [0x10, 0x200]
    everything = move_addresses(tx, base=0, size=1 << 63, new=0x1000)
    assert everything["buf_ptr"].tolist() == [tx["buf_ptr"][0], 0x1100, tx["buf_ptr"][2], 0x1200]


def test_dump_pads_with_no_ops() -> None:
    """sdma §14.5: the descriptors, then 4-byte self copies up to the size; TX and RX apart; a trap after them."""
    tx, rx = vring(ADD)
    reading = dump(tx, padded_size=4, address=0x40, receive=False)
    writing = dump(rx, padded_size=3, address=0x40, receive=True, trap=bytes(16))
    assert reading[:2].tobytes() == tx.tobytes()
    assert writing.size == 4
    pads = [(reading[i : i + 1].tobytes(), writing[i - 1 : i].tobytes()) for i in (2, 3)]
    assert [decode_packet(*pad, arch="sunda") for pad in pads] == [CopyPacket(0x40, 0x40, 4)] * 2
    assert dump(tx, padded_size=2, address=0, receive=False).size == 2
    with pytest.raises(UsageError, match="dump to a ring of 1 descriptors: 2 are in use"):
        dump(tx, padded_size=1, address=0, receive=False)
    with pytest.raises(UsageError, match="expected 16 bytes or none, got 3"):
        dump(tx, padded_size=2, address=0, receive=False, trap=bytes(3))


def test_template_addresses() -> None:
    """sdma §14.4, §19: bit 61, the variable at 54:36, the offset at 35:0."""
    assert encode_template(Template(5, 0x100)) == 0x2000005000000100
    assert decode_template(0x2000005000000100) == Template(5, 0x100)
    widest = Template((1 << 19) - 1, (1 << 36) - 1)
    assert encode_template(widest) == (1 << 61) | (1 << 55) - 1
    assert decode_template(encode_template(widest)) == widest
    for template in (Template(1 << 19, 0), Template(0, 1 << 36), Template(-1, 0)):
        with pytest.raises(UsageError, match="template_address"):
            encode_template(template)
    for address in (0, 1 << 61 | 1 << 55, 1 << 61 | 1 << 63, 1 << 64):
        with pytest.raises(DecodeError) as caught:
            decode_template(address, offset=24)
        assert caught.value.offset == 24


def test_templates_resolve() -> None:
    """sdma §14.4: PA(var) + offset; plain addresses and operands stay; unknown variables are errors."""
    rows = [(16, 0x01080003, encode_template(Template(2, 8))), (16, 0x01080003, 0x77),
            (0x800000, 0x02100000, 1 << 61), (16, 0x01080003, encode_template(Template(0, 1)))]  # fmt: skip
    half = np.array(rows, DESCRIPTOR)
    done = resolve(half, {0: 0x1000, 2: 1 << 40}, max_var_id=2)
    assert done["buf_ptr"].tolist() == [(1 << 40) + 8, 0x77, 1 << 61, 0x1001]
    assert (done[["len_ctrl", "meta_ctrl"]] == half[["len_ctrl", "meta_ctrl"]]).all()
    with pytest.raises(UsageError, match="template variables without a tensor: 0, 2"):
        resolve(half, {}, max_var_id=2)
    with pytest.raises(DecodeError, match="expected at most 1, got 2") as caught:
        resolve(half, {0: 0, 2: 0}, max_var_id=1)
    assert caught.value.offset == 8
    half["buf_ptr"][3] |= np.uint64(1 << 60)
    with pytest.raises(DecodeError) as caught:
        resolve(half, {0: 0, 2: 0}, max_var_id=2)
    assert caught.value.offset == 3 * 16 + 8
    assert resolve(half[:0], {}, max_var_id=0).size == 0


def test_free_slots_keep_a_gap() -> None:
    """sdma §14.6: free = (consumer - (producer + 16)) & mask."""
    assert RingCursor(64).free == 48
    assert RingCursor(64, producer=48, consumer=0).free == 0
    assert RingCursor(64, producer=10, consumer=30).free == 4
    assert (GUARD, HOST_RING_NOMINAL, HOST_RING_ALLOCATED, FLUSH_THRESHOLD) == (16, 4096, 8192, 2031)


def test_phase_goes_on_at_each_wrap() -> None:
    """sdma §2.1, §14.6: RING_ID starts at 1 and advances modulo 4 when the producer wraps."""
    cursor = RingCursor(64, producer=60, consumer=60)
    assert cursor.phases(8).tolist() == [1] * 4 + [2] * 4
    seen = []
    for _ in range(5):
        cursor = cursor.filled(32).retired(32).filled(32).retired(32)
        seen.append(cursor.phase)
    assert seen == [2, 3, 0, 1, 2]
    assert (cursor.producer, cursor.consumer, cursor.pending) == (60, 60, 0)
    assert RingCursor(64).filled(48) == RingCursor(64, producer=48)


def test_a_ring_never_takes_more_than_is_free() -> None:
    """sdma §14.6: 0 descriptors, more than the ring, more than is free, or more retired than pending are refused."""
    cursor = RingCursor(64)
    for count, message in ((0, "expected 1 to 64"), (65, "expected 1 to 64"), (49, "49 descriptors do not fit, 48")):
        with pytest.raises(UsageError, match=message):
            cursor.filled(count)
    with pytest.raises(UsageError, match="1 descriptors retired, 0 are pending"):
        cursor.retired(1)
    with pytest.raises(UsageError, match="expected 1 to 64"):
        cursor.phases(0)


@pytest.mark.parametrize("arguments", [(16,), (100,), (0,), (64, 64), (64, 0, 64), (64, -1), (64, 0, 0, 4)])
def test_rings_that_cannot_be(arguments: tuple[int, ...]) -> None:
    """sdma §14.6: a power of two above the gap, and positions inside."""
    with pytest.raises(UsageError, match="ring"):
        RingCursor(*arguments)


def test_doorbells() -> None:
    """sdma §1, §14.6: RX before TX, counts of 24 bits."""
    assert doorbells(3, 1) == ((True, 1), (False, 3))
    for counts in ((0, 1), (1, 0), (1 << 24, 1)):
        with pytest.raises(UsageError, match="expected 1 to 16777215 descriptors"):
            doorbells(*counts)


def test_descriptor_layout_is_the_column_type() -> None:
    """The halves of a vring are rows of the one descriptor type."""
    assert LAYOUT.dtype == DESCRIPTOR
