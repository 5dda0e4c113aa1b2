"""All loaded ranks as one world: whose memory, whose semaphore an address means, as an index into flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, pointers
from rota.device.load import Image, of_rank
from rota.errors import DecodeError, UsageError
from rota.isa import arch as isa
from rota.isa.arch import Arch
from rota.isa.image import Section
from rota.isa.semaphores import BLOCK_SIZE, SEMAPHORES, STRIDE, Window
from rota.isa.streams import stream_of

_ALIGN: Final = 64
_MAX_ARENA: Final = 1 << 35
_COMMON: Final = (
    "lnc",
    "ranks",
    "stream_processors",
    "streams",
    "folds",
    "operations",
    "chains",
    "ring_size",
    "memory_size",
)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The loaded ranks, in the order of their images.

    Attributes:
        index: image of each (span, chip, lane), -1 where none is loaded.
        span, chip, lane: of each image; spans are numbered from 0.
        memory_base: where each image's memory starts in the flat arena; one longer than the images.
        buffer_start, buffer_end: all declared buffers in the flat arena, ascending.
    """

    arch: Arch
    lnc: int
    sps: int
    streams: int
    images: tuple[Image, ...]
    index: I64
    span: I64
    chip: I64
    lane: I64
    memory_base: I64
    memory_size: I64
    buffer_start: I64
    buffer_end: I64

    @property
    def semaphores(self) -> int:
        """Semaphores of all ranks together."""
        return len(self.images) * self.sps * SEMAPHORES

    @property
    def processors(self) -> int:
        """Stream processors of all ranks together; processor p is p mod sps of image p div sps."""
        return len(self.images) * self.sps

    def host_of(self, processor: I64) -> I64:
        """Return the host that triggers processors: host h is of stream h mod streams of image h div streams."""
        image, sp = np.divmod(processor, self.sps)
        return image * self.streams + stream_of(sp, self.streams, self.sps)

    @property
    def hosts(self) -> int:
        """Hosts of all ranks together, one a stream."""
        return len(self.images) * self.streams

    def same_chip(self, one: int | I64, other: I64) -> Bool:
        """Say whether images are on one chip."""
        found: Bool = (self.span[one] == self.span[other]) & (self.chip[one] == self.chip[other])
        return found

    def memory_owner(self, flat: I64) -> I64:
        """Return the image in whose memory each flat byte lies."""
        found: I64 = np.searchsorted(self.memory_base, flat, side="right") - 1
        return found

    def semaphore_name(self, flat: int) -> str:
        """Return how messages call a semaphore."""
        image, rest = divmod(flat, self.sps * SEMAPHORES)
        sp, identity = divmod(rest, SEMAPHORES)
        return f"semaphore {identity} of TOP_SP {sp} of rank {self.images[image].rank}"


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """What addresses mean; one entry each."""

    memory: Bool  # HBM, else a semaphore register
    image: I64
    offset: I64  # bytes in the rank's memory, or in its stream processors' blocks (sp x BLOCK_SIZE + register)


def build_world(images: Sequence[Image]) -> World:
    """Put the ranks of one operation together.

    Raises:
        DecodeError: the images do not belong together.
        UsageError: their memories are too large to model.
    """
    if not images:
        raise UsageError("no images to load")
    first = images[0]
    known, span = np.unique(np.array([image.span for image in images], np.int64), return_inverse=True)
    index = np.full((known.size, first.arch.chips, first.arch.cores // first.lnc), -1, np.int64)
    for i, image in enumerate(images):
        with of_rank(i):
            _check_same(image, first, i)
            meta = image.part(Section.META, 0).offset
            place = (int(span[i]), image.chip, image.lane)
            if index[place] >= 0:
                raise DecodeError(
                    "image META",
                    offset=meta,
                    expected="a chip and lane of its own",
                    got=f"those of rank {index[place]}, chip {image.chip} lane {image.lane}",
                )
        index[place] = i
    if len(images) != first.ranks:
        at = first.part(Section.META, 0).offset
        raise DecodeError(
            "image META ranks", offset=at, expected=f"as many as images, {len(images)}", got=str(first.ranks)
        )
    size = np.array([image.memory_size for image in images], np.int64)
    base = pointers(-(-size // _ALIGN) * _ALIGN)
    if base[-1] > _MAX_ARENA:
        raise UsageError(
            f"the ranks' memories take {int(base[-1]) >> 30} GiB, more than this model holds; use a smaller size"
        )
    starts = [base[i] + b.offset for i, image in enumerate(images) for b in image.buffers]
    ends = [base[i] + b.offset + b.size for i, image in enumerate(images) for b in image.buffers]
    return World(
        arch=first.arch,
        lnc=first.lnc,
        sps=first.lnc * first.arch.sps_per_core,
        streams=first.streams,
        images=tuple(images),
        index=index,
        span=span.reshape(-1).astype(np.int64),
        chip=np.array([image.chip for image in images], np.int64),
        lane=np.array([image.lane for image in images], np.int64),
        memory_base=base,
        memory_size=size,
        buffer_start=np.array(starts, np.int64),
        buffer_end=np.array(ends, np.int64),
    )


def _check_same(image: Image, first: Image, rank: int) -> None:
    """The image is that of a rank, and declares the same machine and the same buffers as the first one."""
    meta = image.part(Section.META, 0).offset
    pairs = [("arch", first.arch.name, image.arch.name)]
    pairs += [(name, getattr(first, name), getattr(image, name)) for name in _COMMON]
    for name, want, got in pairs:
        if got != want:
            raise DecodeError(f"image META {name}", offset=meta, expected=f"that of rank 0, {want}", got=str(got))
    if image.rank != rank:
        raise DecodeError("image META rank", offset=meta, expected=f"{rank}, its place", got=str(image.rank))
    part = image.part(Section.BUFFERS, 0)
    if part.data != first.part(Section.BUFFERS, 0).data:
        raise DecodeError("declared buffers", offset=part.offset, expected="those of rank 0", got="others")


def resolve(world: World, image: int | I64, addresses: Array, offsets: I64, what: str) -> Places:
    """Return what the addresses in ranks' descriptors or records mean.

    Args:
        image: whose they are: one for all, or one each.
        addresses: uint64.
        offsets: where each stands in the file, for messages.

    Raises:
        DecodeError: an address has a spelling or a region that does not exist, or names a rank that is not loaded.
    """
    arch, own = world.arch, world.chip[image]
    address = addresses.astype(np.int64)
    valid = (address >> isa.CHIP_VALID_BIT & 1).astype(np.bool_)
    beyond = address >> arch.chip_bits_end != 0
    field = isa.chip_of(np.where(beyond, 0, address))
    odd = beyond | np.where(valid, field == own, field != 0)
    refuse(odd, offsets, what, "routing bits zero, or valid and of another chip", addresses, image=image)
    chip = np.where(valid, field, own)
    die, local = address >> isa.DIE_BIT & 1, address & isa.LOCAL_MASK
    in_memory, core, byte = _window(local, die, arch.hbm, arch.hbm_shift, arch.cores_per_die, arch.cores)
    in_block, sp, register = _window(local, die, arch.topsp, arch.topsp_shift, arch.sps_per_die, arch.sps)
    in_block &= register < BLOCK_SIZE
    refuse(~(in_memory | in_block), offsets, what, "an address in HBM or in a semaphore block", addresses, image=image)
    lane = np.where(in_memory, core // world.lnc, sp // world.sps)
    found = world.index[world.span[image], chip, lane]
    refuse(found < 0, offsets, what, "a rank of this operation", addresses, image=image)
    byte = byte + (core % world.lnc << arch.hbm_shift)
    return Places(in_memory, found, np.where(in_memory, byte, sp % world.sps * BLOCK_SIZE + register))


def semaphore_index(
    world: World, places: Places, window: Window, offsets: I64, what: str, *, image: int | I64 | None = None
) -> I64:
    """Return the flat indices of semaphores, which must be addressed in the given window.

    Args:
        image: whose record or descriptor it is, for messages; None when the caller says so.
    """
    sp, register = places.offset // BLOCK_SIZE, places.offset % BLOCK_SIZE
    identity, odd = np.divmod(register - window, STRIDE)
    refuse(
        places.memory | (odd != 0) | (identity < 0) | (identity >= SEMAPHORES),
        offsets,
        what,
        f"a register of the {window.name} window",
        register,
        image=image,
    )
    flat: I64 = (places.image * world.sps + sp) * SEMAPHORES + identity
    return flat


def semaphores_at(world: World, image: I64, addresses: Array, window: Window, offsets: I64, what: str) -> I64:
    """Return the flat indices of the semaphores at the addresses of records, each with the image it is from.

    Raises:
        DecodeError: an address is not that of a semaphore in this window.
    """
    places = resolve(world, image, addresses, offsets, what)
    return semaphore_index(world, places, window, offsets, what, image=image)


def refuse(bad: Bool, offsets: I64, what: str, expected: str, values: Array, *, image: int | I64 | None = None) -> None:
    """Raise DecodeError for the first entry that is bad, if there is one.

    Args:
        image: one for each entry where the caller does not say which file it is; a single number says nothing.
    """
    if not bad.any():
        return
    at = int(np.argmax(bad))
    error = DecodeError(what, offset=int(offsets[at]), expected=expected, got=hex(int(values[at])))
    if isinstance(image, np.ndarray):
        with of_rank(int(image[at])):
            raise error
    raise error


def _window(local: I64, die: I64, base: int, shift: int, per_die: int, count: int) -> tuple[Bool, I64, I64]:
    """Return whether an address lies in a row of windows, in which one, and how far into it."""
    distance = local - base
    index = die * per_die + (distance >> shift)
    inside = (distance >= 0) & (distance < per_die << shift) & (index < count)
    return inside, np.where(inside, index, 0), distance & ((1 << shift) - 1)
