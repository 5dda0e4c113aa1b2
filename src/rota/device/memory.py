"""The state of all ranks: one arena of bytes, one array of semaphores."""

from __future__ import annotations

import numpy as np

from rota.columns import I64, U8, Workspace
from rota.device.world import World
from rota.errors import UsageError
from rota.isa.image import Section
from rota.isa.semaphores import SEMAPHORES


class Memory:
    """Bytes and semaphores of a world, at the values the images give them.

    Args:
        workspace: where the bytes lie.

    Raises:
        UsageError: there is not enough memory.
    """

    def __init__(self, world: World, workspace: Workspace) -> None:
        self.world = world
        size = int(world.memory_base[-1])
        try:
            self.bytes: U8 = workspace.zeros(size)
        except MemoryError:
            raise UsageError(
                f"the ranks' memories take {size >> 20} MiB, more than there is here; use a smaller size"
            ) from None
        self.semaphores: I64 = np.zeros(world.semaphores, np.int64)
        for i, image in enumerate(world.images):
            base = int(world.memory_base[i])
            for (kind, index), part in image.parts.items():
                if kind is Section.MEM:
                    self.bytes[base + index : base + index + len(part.data)] = np.frombuffer(part.data, np.uint8)
            for preset in image.presets:
                self.semaphores[(i * world.sps + preset.sp) * SEMAPHORES + preset.identity] = preset.value
        self.start: I64 = self.semaphores.copy()

    def fill(self, name: str, values: U8) -> None:
        """Put the bytes of every rank, shape (ranks, bytes), into the buffer of that name."""
        for row, (start, size) in zip(values, self._spans(name), strict=True):
            self.bytes[start : start + size] = row

    def read(self, name: str) -> U8:
        """Return the bytes of a buffer of every rank, shape (ranks, bytes); a view where all ranks have one layout."""
        spans = self._spans(name)
        starts, size = np.array([start for start, _ in spans], np.int64), spans[0][1]
        strides = np.diff(starts)
        if (strides == strides[:1]).all():
            stride = int(strides[0]) if strides.size else self.bytes.size
            return np.lib.stride_tricks.as_strided(self.bytes[starts[0] :], (len(spans), size), (stride, 1))
        return np.stack([self.bytes[start : start + size] for start in starts.tolist()])

    def _spans(self, name: str) -> list[tuple[int, int]]:
        return [
            (int(self.world.memory_base[i]) + buffer.offset, buffer.size)
            for i, image in enumerate(self.world.images)
            for buffer in image.buffers
            if buffer.name == name
        ]
