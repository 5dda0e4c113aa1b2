"""The device model: runs the loaded bytes of all ranks, and nothing else.

Two schedulings of one machine. WAVES is fast: every machine whose gate holds steps at once, and a wave of steps moves
as few array operations. RANDOM picks queues and machines one by one by priorities that change now and then, and lets
writes land late unless the descriptors order them. Both are legal; a right program gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from rota.columns import I64, U8, Array, Workspace
from rota.device.barrier import BarrierDevice
from rota.device.bracket import read_bracket
from rota.device.checks import check
from rota.device.disturb import Disturbance, blame
from rota.device.dma import Items, decode_items
from rota.device.load import DeclaredBuffer, load_image, of_rank
from rota.device.memory import Memory
from rota.device.program import Program
from rota.device.proxies import add_proxies
from rota.device.random_order import run_random
from rota.device.steps import Tables, decode_program
from rota.device.stuck import left_over
from rota.device.waves import Work, prepare, run_waves
from rota.device.world import World, build_world
from rota.errors import StuckError, UsageError
from rota.isa.image import BufferUse
from rota.isa.semaphores import SEMAPHORES, Reserved


class Order(Enum):
    """In which order what may run runs."""

    WAVES = "waves"
    RANDOM = "random"


@dataclass(frozen=True, eq=False)
class Device:
    """All ranks of one program, loaded and checked."""

    world: World
    items: Items
    program: Program
    tables: Tables
    barrier: BarrierDevice | None = None

    def buffers(self, use: BufferUse) -> tuple[DeclaredBuffer, ...]:
        """Return the buffers of every rank that hold what goes in, or what comes out."""
        return tuple(buffer for buffer in self.world.images[0].buffers if use in buffer.use)

    def run(
        self,
        inputs: U8,
        *,
        order: Order = Order.WAVES,
        rng: np.random.Generator | None = None,
        disturbance: Disturbance | None = None,
        observe: Callable[[int, I64], None] | None = None,
    ) -> U8:
        """Run a program of one input and one output once.

        Args:
            inputs: shape (ranks, bytes of the input buffer).
            rng: chooses the order; needed for RANDOM.
            disturbance: faults of this run.
            observe: is called with each tick, and the steps that fired in it.

        Returns:
            Shape (ranks, bytes of the output buffer).

        Raises:
            UsageError: inputs of another shape, or the program has several.
            StuckError: nothing can move, or what ran left the machine in a state it must not end in.
        """
        names = [tuple(buffer.name for buffer in self.buffers(use)) for use in (BufferUse.INPUT, BufferUse.OUTPUT)]
        if any(len(each) != 1 for each in names):
            raise UsageError(
                f"the program has inputs {', '.join(names[0])} and outputs {', '.join(names[1])}: name each of them"
            )
        given = {names[0][0]: inputs}
        return self.run_program(given, order=order, rng=rng, disturbance=disturbance, observe=observe)[names[1][0]]

    def run_program(
        self,
        inputs: Mapping[str, U8],
        *,
        order: Order = Order.WAVES,
        rng: np.random.Generator | None = None,
        disturbance: Disturbance | None = None,
        observe: Callable[[int, I64], None] | None = None,
        workspace: Workspace | None = None,
    ) -> Mapping[str, U8]:
        """Run the program once: `run`, with any number of inputs and outputs, by the names of their buffers.

        Args:
            workspace: where the memories of the ranks lie, and what is returned; a new one without it.

        Raises:
            UsageError: inputs are missing, or of another shape.
            StuckError: nothing can move, or what ran left the machine in a state it must not end in.
        """
        memory = Memory(self.world, workspace or Workspace())
        self._check_inputs(inputs)
        self._meet()
        for name, values in inputs.items():
            memory.fill(name, values)
        match order:
            case Order.WAVES:
                work = self._work
                run_waves(self.world, self.items, self.program, work, memory, disturbance=disturbance, observe=observe)
            case Order.RANDOM:
                rng = rng or np.random.default_rng(0)
                run_random(self.world, self.items, self.program, memory, rng, disturbance=disturbance, observe=observe)
        self._check_end(memory, disturbance)
        self._meet()
        return {buffer.name: memory.read(buffer.name) for buffer in self.buffers(BufferUse.OUTPUT)}

    @property
    def memory_size(self) -> int:
        """The bytes that the memories of all ranks take in a run."""
        return int(self.world.memory_base[-1])

    @cached_property
    def _work(self) -> Work:
        return prepare(self.items, self.program)

    def _meet(self) -> None:
        """Bring all ranks together, from the bytes of their barrier; the host does it where these are not there."""
        if self.barrier is not None:
            self.barrier.run(np.random.default_rng(0))

    def _check_inputs(self, inputs: Mapping[str, U8]) -> None:
        wanted = {buffer.name: buffer.size for buffer in self.buffers(BufferUse.INPUT)}
        if inputs.keys() != wanted.keys():
            raise UsageError(f"inputs {', '.join(inputs) or 'none'}: expected {', '.join(wanted)}")
        ranks = len(self.world.images)
        for name, values in inputs.items():
            if values.shape != (ranks, wanted[name]):
                raise UsageError(
                    f"input {name} of shape {values.shape}: expected {ranks} ranks of {wanted[name]} bytes"
                )

    def _check_end(self, memory: Memory, disturbance: Disturbance | None) -> None:
        """All semaphores are back, and every rank has posted once a chain in which it works."""
        change = memory.semaphores - memory.start
        by_rank = change.reshape(len(self.world.images), self.world.sps, SEMAPHORES)
        posts = by_rank[:, :, Reserved.COMPLETION].sum(axis=1)
        by_rank[:, :, Reserved.COMPLETION] = 0
        wrong = posts != self.program.posts
        if wrong.any():
            at = int(np.argmax(wrong))
            rank, expected = self.world.images[at].rank, int(self.program.posts[at])
            raise StuckError(f"rank {rank} posted completion {int(posts[at])} times, expected {expected}")
        if change.any():
            flat = int(np.argmax(change != 0))
            name = self.world.semaphore_name(flat)
            because = blame(self.world, self.items, self.program, disturbance, flat)
            away = f"{name} ends {int(change[flat]):+d} away from its initial value{because}"
            raise StuckError(left_over(self.world, self.items, self.program, away))


def called(device: Device, ranks: Sequence[int]) -> Device:
    """Return the device with its ranks named in messages as the machine numbers them, one number an image."""
    images = tuple(replace(image, rank=rank) for image, rank in zip(device.world.images, ranks, strict=True))
    return replace(device, world=replace(device.world, images=images))


def load(images: Sequence[bytes], *, digests: bool = True) -> Device:
    """Load the images of all ranks, in order of rank.

    Raises:
        DecodeError: an image is damaged, or says what no emitter means.
        UsageError: there are none, or too much memory is asked for.
    """
    world, items, program, tables = _read(images, digests=digests)
    check(world, items, program, tables)
    return _with_extra_machines(world, items, program, tables)


def load_unchecked(images: Sequence[bytes], *, digests: bool = True) -> Device:
    """Load images whose parts fit, without the checks on order, neighbours and balance; see what the machine does then.

    Raises:
        DecodeError: an image is damaged, or its parts contradict each other.
        UsageError: there are none, or too much memory is asked for.
    """
    return _with_extra_machines(*_read(images, digests=digests))


def _read(images: Sequence[bytes], *, digests: bool) -> tuple[World, Items, Program, Tables]:
    loaded = []
    for i, image in enumerate(images):
        with of_rank(i):
            loaded.append(load_image(image, digests=digests))
    world = build_world(loaded)
    items = decode_items(world)
    program, tables = decode_program(world, items)
    return world, items, program, tables


def _with_extra_machines(world: World, items: Items, program: Program, tables: Tables) -> Device:
    """Return the device with the machines of other sections, which the checks of stream processors do not look at."""
    items, program = add_proxies(world, items, program, tables.hops)
    return Device(world, items, program, tables, read_bracket(world))


def run_images(
    images: Sequence[bytes], inputs: Array, *, order: Order = Order.WAVES, rng: np.random.Generator | None = None
) -> Array:
    """Load and run images on the ranks' inputs, shape (ranks, elements), and return the outputs in the same dtype."""
    ranks = inputs.shape[0]
    raw = np.ascontiguousarray(inputs).view(np.uint8).reshape(ranks, -1)
    return load(images).run(raw, order=order, rng=rng).view(inputs.dtype)
