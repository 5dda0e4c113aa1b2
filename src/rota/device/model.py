"""The device model: runs the loaded bytes of all ranks, and nothing else.

Two schedulings of one machine. WAVES is fast: every channel whose gate holds starts its row at once, and a wave of rows
moves as few array operations. RANDOM picks queues and channels one by one by priorities that change now and then, and
lets writes land late unless the descriptors order them. Both are legal; a right program gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from rota.columns import U8, Array
from rota.device.checks import check
from rota.device.dma import Items, decode_items
from rota.device.load import load_image, of_rank
from rota.device.memory import Memory
from rota.device.program import Program, decode_program, walk
from rota.device.random_order import run_random
from rota.device.waves import run_waves
from rota.device.world import World, build_world
from rota.errors import StuckError, UsageError
from rota.isa.image import BufferUse
from rota.isa.semaphores import SEMAPHORES, Reserved


class Order(Enum):
    """In which order what may run runs."""

    WAVES = "waves"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """All ranks of one operation, loaded and checked."""

    world: World
    items: Items
    program: Program

    def run(self, inputs: U8, *, order: Order = Order.WAVES, rng: np.random.Generator | None = None) -> U8:
        """Run the operation once; the host has triggered every stream processor, and each has taken its trigger.

        Args:
            inputs: shape (ranks, bytes of the input buffer).
            rng: chooses the order; needed for RANDOM.

        Returns:
            Shape (ranks, bytes of the output buffer).

        Raises:
            UsageError: inputs of another shape.
            StuckError: nothing can move, or what ran left the machine in a state it must not end in.
        """
        memory = Memory(self.world)
        memory.fill(self._flat(inputs))
        if order is Order.WAVES:
            run_waves(self.world, self.items, self.program, memory)
        else:
            run_random(self.world, self.items, self.program, memory, rng or np.random.default_rng(0))
        self._complete(memory)
        self._check_end(memory)
        return memory.read(BufferUse.OUTPUT)

    def _flat(self, inputs: U8) -> U8:
        want = next(b.size for b in self.world.images[0].buffers if BufferUse.INPUT in b.use)
        if inputs.shape != (len(self.world.images), want):
            raise UsageError(f"inputs of shape {inputs.shape}: expected {len(self.world.images)} ranks of {want} bytes")
        return inputs

    def _complete(self, memory: Memory) -> None:
        """Processors complete one after another, and the reporter posts."""
        for processor in walk(self.program):
            home = (processor.image * self.world.sps + processor.sp) * SEMAPHORES
            if processor.control.ring_wait_complete:
                previous = home + Reserved.COMPLETE_PREV
                if memory.semaphores[previous] < 1:
                    rank = self.world.images[processor.image].rank
                    raise StuckError(
                        f"TOP_SP {processor.sp} of rank {rank} waits for the processor before it to complete"
                    )
                memory.semaphores[previous] -= 1
            if processor.complete >= 0:
                memory.semaphores[processor.complete] += 1
            for semaphore, value in processor.posts:
                memory.semaphores[semaphore] += value

    def _check_end(self, memory: Memory) -> None:
        """All semaphores are back, and every rank has posted once."""
        change = memory.semaphores - memory.start
        by_rank = change.reshape(len(self.world.images), self.world.sps, SEMAPHORES)
        posts = by_rank[:, :, Reserved.COMPLETION].sum(axis=1)
        by_rank[:, :, Reserved.COMPLETION] = 0
        if (posts != 1).any():
            rank = int(np.argmax(posts != 1))
            raise StuckError(f"rank {rank} posted completion {int(posts[rank])} times, expected once")
        if change.any():
            flat = int(np.argmax(change != 0))
            raise StuckError(
                f"{self.world.semaphore_name(flat)} ends {int(change[flat]):+d} away from its initial value"
            )


def load(images: Sequence[bytes], *, digests: bool = True) -> Device:
    """Load the images of all ranks, in order of rank.

    Raises:
        DecodeError: an image is damaged, or says what no emitter means.
        UsageError: there are none, or too much memory is asked for.
    """
    device = load_unchecked(images, digests=digests)
    check(device.world, device.items, device.program)
    return device


def load_unchecked(images: Sequence[bytes], *, digests: bool = True) -> Device:
    """Load images whose parts fit, without the checks on order, neighbours and balance; see what the machine does then.

    Raises:
        DecodeError: an image is damaged, or its parts contradict each other.
        UsageError: there are none, or too much memory is asked for.
    """
    loaded = []
    for i, image in enumerate(images):
        with of_rank(i):
            loaded.append(load_image(image, digests=digests))
    world = build_world(loaded)
    items = decode_items(world)
    return Device(world, items, decode_program(world, items))


def run_images(
    images: Sequence[bytes], inputs: Array, *, order: Order = Order.WAVES, rng: np.random.Generator | None = None
) -> Array:
    """Load and run images on the ranks' inputs, shape (ranks, elements), and return the outputs in the same dtype."""
    ranks = inputs.shape[0]
    raw = np.ascontiguousarray(inputs).view(np.uint8).reshape(ranks, -1)
    return load(images).run(raw, order=order, rng=rng).view(inputs.dtype)
