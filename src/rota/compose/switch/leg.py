"""The mesh over the switch as a leg of a hierarchy: how its groups run, and one writer for each part of an all-reduce.

Source: topology §5, 576 ranks; design §2 (28).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rota.compose.board import Board, Region
from rota.compose.chip_mesh import Shards
from rota.compose.switch import algorithms
from rota.compose.switch.grid import boxes
from rota.compose.switch.menu import Slot, check_family, initialize_trn3pds98
from rota.errors import UnsupportedError
from rota.isa.enums import Algorithm, EncOp
from rota.machine.platform import Platform
from rota.request import KIND_NAMES, Groups
from rota.select.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class SwitchHow:
    """How the groups of a leg run.

    Attributes:
        shapes: box shape -> its groups, and the slots of their communicators.
        reported: the algorithm that was chosen; where no slot of that name carries an operation, the first that does.
    """

    shapes: tuple[tuple[tuple[int, ...], tuple[Slot, ...]], ...]
    reported: Algorithm

    def parts(self, board: Board, kind: EncOp) -> Iterator[tuple[Board, list[int], Slot]]:
        """Yield a board, the groups and the slot of an operation for each box shape.

        Raises:
            UnsupportedError: every builder of the operation refuses these groups.
        """
        for number, (groups, slots) in enumerate(self.shapes):
            found = [slot for slot in slots if slot.builder is not None and kind in slot.builder.kinds]
            chosen = [slot for slot in found if slot.subtype.reported is self.reported]
            if not found:
                raise UnsupportedError(f"no builder of the switch does {KIND_NAMES[kind]} of these groups")
            several = len(self.shapes) > 1
            part = board.part(board.members[list(groups)], prefix=f"shape{number}.") if several else board
            yield part, list(groups), (chosen or found)[0]


def how_of(
    platform: Platform, groups: Groups, settings: Settings, *, reported: Algorithm = Algorithm.MESH
) -> SwitchHow:
    """Return how groups of machine ranks run: without the double buffer, since legs have no parity to go by.

    Raises:
        UnsupportedError: the platform is of another family.
    """
    check_family(platform)
    settings = replace(settings, mesh_double_buffer=False)
    shapes = tuple(
        (numbers, initialize_trn3pds98(platform, tuple(groups[each] for each in numbers), settings))
        for numbers in boxes(platform, groups).values()
    )
    return SwitchHow(shapes, reported)


def write_reduce_scatter(
    board: Board, how: SwitchHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write a reduce-scatter: shard k of every rank's source, combined, to shard 0 of position k's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    for part, groups, slot in how.parts(board, EncOp.REDUCE_SCATTER):
        ends = source.of(groups), target.of(groups)
        algorithms.write_reduce_scatter(part, slot, *ends, size, fence_first=fence_first)


def write_all_gather(
    board: Board, how: SwitchHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-gather: shard 0 of position k's source to shard k of every rank's target.

    Args:
        size: bytes of a shard.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    for part, groups, slot in how.parts(board, EncOp.ALLGATHER):
        given, wanted = source.of(groups), target.of(groups)
        shards = Shards.of(wanted, part.ranks, size)
        algorithms.write_all_gather(part, slot, given, wanted, shards, fence_first=fence_first)


def write_all_reduce(
    board: Board, how: SwitchHow, source: Region, target: Region, size: int, *, fence_first: bool = False
) -> None:
    """Write an all-reduce of whole buffers.

    Args:
        size: bytes of the buffer.
        fence_first: the first row reads what earlier rows of the queue wrote.
    """
    for part, groups, slot in how.parts(board, EncOp.ALLREDUCE):
        ends = source.of(groups), target.of(groups)
        algorithms.write_all_reduce(part, slot, *ends, size, fence_first=fence_first)
